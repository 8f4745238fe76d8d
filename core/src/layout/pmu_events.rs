//! What a core's counters count: the event groups of each architecture (wire contract, PMU event groups).
//!
//! A group gives every counter slot at most one event. Slots without one read 0 and mean nothing.

use super::ArchId;

/// What one counter counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Event {
    /// The counter that counts it.
    pub slot: usize,
    /// Its name in tables.
    pub name: &'static str,
    /// What the counter's selector is set to.
    pub selector: u32,
    /// What agents count for it, which move bytes where silicon computes.
    pub agent: Counted,
}

/// What an agent counts of an item.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Counted {
    /// Cycles from its begin to its end.
    Cycles,
    /// Descriptor pairs that it ran, each of which reads once and writes once.
    Pairs,
    /// Bytes that it moved.
    Bytes,
    /// Itself: 1.
    Items,
    /// Nothing: what the event stands for does not happen to agents.
    Nothing,
}

/// Events that are counted together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EventGroup {
    /// Its number, as it stands in the region's header.
    pub number: u32,
    /// What it is about.
    pub name: &'static str,
    /// Its events, by slot.
    pub events: &'static [Event],
}

const CYCLES: Counted = Counted::Cycles;
const PAIRS: Counted = Counted::Pairs;
const BYTES: Counted = Counted::Bytes;
const ITEMS: Counted = Counted::Items;
const NOTHING: Counted = Counted::Nothing;

const fn event(slot: usize, name: &'static str, selector: u32, agent: Counted) -> Event {
    Event { slot, name, selector, agent }
}

/// The groups that cores of `arch` know.
#[must_use]
pub const fn event_groups(arch: ArchId) -> &'static [EventGroup] {
    match arch {
        ArchId::A2a3 => A2A3,
        ArchId::A5 => A5,
    }
}

/// The group with this number; `None` when cores of `arch` know none.
#[must_use]
pub fn event_group(arch: ArchId, number: u32) -> Option<&'static EventGroup> {
    event_groups(arch).iter().find(|group| group.number == number)
}

const A2A3: &[EventGroup] = &[
    EventGroup {
        number: 1,
        name: "arithmetic",
        events: &[
            event(0, "cube_fp16_exec", 0x49, CYCLES),
            event(1, "cube_int8_exec", 0x4a, CYCLES),
            event(2, "vec_fp32_exec", 0x4b, CYCLES),
            event(3, "vec_fp16_128lane_exec", 0x4c, CYCLES),
            event(4, "vec_fp16_64lane_exec", 0x4d, CYCLES),
            event(5, "vec_int32_exec", 0x4e, CYCLES),
            event(6, "vec_misc_exec", 0x4f, CYCLES),
        ],
    },
    EventGroup {
        number: 2,
        name: "pipe",
        events: &[
            event(0, "vec_busy_cycles", 0x8, CYCLES),
            event(1, "cube_busy_cycles", 0xa, CYCLES),
            event(2, "scalar_busy_cycles", 0x9, CYCLES),
            event(3, "mte1_busy_cycles", 0xb, CYCLES),
            event(4, "mte2_busy_cycles", 0xc, CYCLES),
            event(5, "mte3_busy_cycles", 0xd, CYCLES),
            event(6, "icache_miss", 0x55, NOTHING),
            event(7, "icache_req", 0x54, ITEMS),
        ],
    },
    EventGroup {
        number: 4,
        name: "memory",
        events: &[
            event(0, "ub_read_req", 0x15, PAIRS),
            event(1, "ub_write_req", 0x16, PAIRS),
            event(2, "l1_read_req", 0x31, PAIRS),
            event(3, "l1_write_req", 0x32, PAIRS),
            event(4, "l2_read_req", 0xf, PAIRS),
            event(5, "l2_write_req", 0x10, PAIRS),
            event(6, "main_read_req", 0x12, PAIRS),
            event(7, "main_write_req", 0x13, PAIRS),
        ],
    },
    EventGroup {
        number: 5,
        name: "memory L0",
        events: &[
            event(0, "l0a_read_req", 0x1b, PAIRS),
            event(1, "l0a_write_req", 0x1c, PAIRS),
            event(2, "l0b_read_req", 0x21, PAIRS),
            event(3, "l0b_write_req", 0x22, PAIRS),
            event(4, "l0c_read_req", 0x27, PAIRS),
            event(5, "l0c_write_req", 0x28, PAIRS),
        ],
    },
    EventGroup {
        number: 6,
        name: "resource conflict",
        events: &[
            event(0, "bankgroup_stall_cycles", 0x64, NOTHING),
            event(1, "bank_stall_cycles", 0x65, NOTHING),
            event(2, "vec_resc_conflict_cycles", 0x66, NOTHING),
        ],
    },
    EventGroup {
        number: 7,
        name: "memory UB",
        events: &[
            event(0, "ub_read_bw_mte", 0x3d, BYTES),
            event(1, "l2_write_bw", 0x10, PAIRS),
            event(2, "main_mem_write_bw", 0x13, PAIRS),
            event(3, "ub_write_bw_mte", 0x3e, BYTES),
            event(4, "ub_read_bw_vector", 0x43, BYTES),
            event(5, "ub_write_bw_vector", 0x44, BYTES),
            event(6, "ub_read_bw_scalar", 0x37, BYTES),
            event(7, "ub_write_bw_scalar", 0x38, BYTES),
        ],
    },
    EventGroup {
        number: 8,
        name: "L2 cache",
        events: &[
            event(0, "write_cache_hit", 0x500, NOTHING),
            event(1, "write_cache_miss_allocate", 0x502, NOTHING),
            event(2, "r0_read_cache_hit", 0x504, NOTHING),
            event(3, "r0_read_cache_miss_allocate", 0x506, NOTHING),
            event(4, "r1_read_cache_hit", 0x508, NOTHING),
            event(5, "r1_read_cache_miss_allocate", 0x50a, NOTHING),
        ],
    },
];

const A5: &[EventGroup] = &[
    EventGroup {
        number: 1,
        name: "arithmetic",
        events: &[
            event(0, "cube_fp_instr_busy", 0x323, CYCLES),
            event(1, "cube_int_instr_busy", 0x324, CYCLES),
        ],
    },
    EventGroup {
        number: 2,
        name: "pipe",
        events: &[
            event(0, "pmu_idc_aic_vec_busy_o", 0x501, CYCLES),
            event(1, "cube_instr_busy", 0x301, CYCLES),
            event(2, "scalar_instr_busy", 0x1, CYCLES),
            event(3, "mte1_instr_busy", 0x701, CYCLES),
            event(4, "mte2_instr_busy", 0x202, CYCLES),
            event(5, "mte3_instr_busy", 0x203, CYCLES),
            event(6, "icache_req", 0x34, ITEMS),
            event(7, "icache_miss", 0x35, NOTHING),
            event(8, "pmu_fix_instr_busy", 0x714, CYCLES),
        ],
    },
    EventGroup {
        number: 4,
        name: "memory",
        events: &[
            event(2, "bif_sc_pmu_read_main_instr_core", 0x400, PAIRS),
            event(3, "bif_sc_pmu_write_main_instr_core", 0x401, PAIRS),
            event(4, "pmu_aiv_ext_rd_ub_instr", 0x56f, PAIRS),
            event(5, "ub_pmu_vec_rd_ub_acc", 0x571, PAIRS),
            event(6, "pmu_aiv_ext_wr_ub_instr", 0x570, PAIRS),
            event(7, "ub_pmu_vec_wr_ub_acc", 0x572, PAIRS),
            event(8, "pmu_rd_l1_instr", 0x707, PAIRS),
            event(9, "pmu_wr_l1_instr", 0x709, PAIRS),
        ],
    },
    EventGroup {
        number: 5,
        name: "memory L0",
        events: &[
            event(0, "cube_sc_pmu_read_l0a_instr", 0x304, PAIRS),
            event(1, "pmu_wr_l0a_instr", 0x703, PAIRS),
            event(2, "cube_sc_pmu_read_l0b_instr", 0x306, PAIRS),
            event(3, "pmu_wr_l0b_instr", 0x705, PAIRS),
            event(4, "fixp_rd_l0c_instr", 0x712, PAIRS),
            event(5, "cube_sc_pmu_read_l0c_instr", 0x30a, PAIRS),
            event(6, "cube_sc_pmu_write_l0c_instr", 0x308, PAIRS),
        ],
    },
    EventGroup {
        number: 6,
        name: "resource conflict",
        events: &[
            event(0, "stu_pmu_wctl_ub_cflt", 0x3556, NOTHING),
            event(1, "ldu_pmu_ib_ub_cflt", 0x3540, NOTHING),
            event(2, "pmu_idc_aic_vec_instr_vf_busy_o", 0x3502, CYCLES),
            event(3, "idu_pmu_ins_iss_cnt", 0x3528, ITEMS),
        ],
    },
    EventGroup {
        number: 7,
        name: "memory UB",
        events: &[
            event(0, "pmu_rd_acc_ub_instr_p", 0x3, PAIRS),
            event(1, "pmu_wr_acc_ub_instr_p", 0x5, PAIRS),
            event(2, "pmu_fix_wr_ub_instr", 0x70c, PAIRS),
            event(3, "mte_sc_pmu_write_acc_ub_instr_0", 0x206, PAIRS),
            event(4, "mte_sc_pmu_read_acc_ub_instr_0", 0x204, PAIRS),
            event(5, "ub_pmu_vec_rd_ub_acc", 0x571, PAIRS),
            event(6, "ub_pmu_vec_wr_ub_acc", 0x572, PAIRS),
        ],
    },
    EventGroup {
        number: 8,
        name: "L2 cache",
        events: &[
            event(0, "bif_sc_pmu_ar_close_l2_hit_core", 0x424, NOTHING),
            event(1, "bif_sc_pmu_ar_close_l2_miss_core", 0x425, NOTHING),
            event(2, "bif_sc_pmu_ar_close_l2_victim_core", 0x426, NOTHING),
            event(3, "bif_sc_pmu_aw_close_l2_hit_core", 0x42a, NOTHING),
            event(4, "bif_sc_pmu_aw_close_l2_miss_core", 0x42b, NOTHING),
            event(5, "bif_sc_pmu_aw_close_l2_victim_core", 0x42c, NOTHING),
        ],
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::pmu::DEFAULT_EVENT_TYPE;

    #[test]
    fn every_event_has_a_counter_of_its_own() {
        for arch in ArchId::ALL {
            let groups = event_groups(arch);
            assert!(groups.iter().all(|group| !group.events.is_empty()));
            assert!(groups.is_sorted_by(|a, b| a.number < b.number));
            for group in groups {
                assert!(group.events.is_sorted_by(|a, b| a.slot < b.slot), "{arch:?} {}", group.name);
                assert!(group.events.iter().all(|event| event.slot < arch.facts().pmu_counters));
            }
        }
    }

    #[test]
    fn the_default_group_is_that_of_pipes() {
        for arch in ArchId::ALL {
            assert_eq!(event_group(arch, DEFAULT_EVENT_TYPE).map(|group| group.name), Some("pipe"));
            assert_eq!(event_group(arch, 3), None);
        }
    }
}
