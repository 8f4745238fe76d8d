//! Run parameters in the data headers of the regions: what the host writes before a lane attaches.
//!
//! | subsystem | words |
//! |---|---|
//! | swimlane | cores, level; the device adds which lane has which core |
//! | pmu | cores, event group |
//! | dep_gen, scope_stats | one instance |
//! | args_dump | lanes, records per buffer, arena bytes, level, and the magic number last |

use sluice_core::layout::{SubsystemId, args_dump, dep_gen, pmu, scope_stats, swimlane};
use sluice_core::mem::{DevAddr, Fault, Memory, Word};

use super::config::DfxConfig;

/// Writes the run parameters of `subsystem` into its region at `region`.
///
/// # Errors
/// [`Fault`] when the transport fails.
pub(super) fn write<M: Memory>(
    memory: &M,
    region: DevAddr,
    subsystem: SubsystemId,
    config: &DfxConfig,
    level: u32,
) -> Result<(), Fault> {
    let shape = config.shape;
    let arch = shape.arch();
    let store = |words: &[(usize, u32)]| {
        words.iter().try_for_each(|&(at, value)| memory.word(region.offset(at as u64))?.try_store(value))
    };
    match subsystem {
        SubsystemId::Swimlane => {
            let words = swimlane::header_words(arch);
            store(&[(words.num_cores, shape.cores()), (words.chip_swimlane_level, level)])
        }
        SubsystemId::Pmu => {
            let words = pmu::header_words(arch);
            store(&[(words.num_cores, shape.cores()), (words.event_type, config.event_group)])
        }
        SubsystemId::DepGen => store(&[(dep_gen::header_words(arch).num_instances, 1)]),
        SubsystemId::ArgsDump => {
            let words = args_dump::header_words(arch);
            store(&[
                (words.num_dump_threads, shape.lanes()),
                (words.records_per_buffer, args_dump::RECORDS as u32),
                (words.arena_size_per_thread, config.arena_bytes() as u32),
                (words.arena_size_per_thread + 4, (config.arena_bytes() >> 32) as u32),
                (words.dump_args_level, level),
                (words.magic, args_dump::MAGIC),
            ])
        }
        SubsystemId::ScopeStats => store(&[(scope_stats::header_words(arch).num_instances, 1)]),
    }
}
