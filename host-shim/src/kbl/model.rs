//! A loaded model: one image per subgraph, and what was built for it so far.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, PoisonError};
use std::thread::{self, Scope, ScopedJoinHandle};
use std::time::Duration;

use sluice_core::fmap::{Direction, VarId};
use sluice_core::mmio::{TpbId, TpbRegisters};

use super::batch::PROLOGUE_PAIRS;
use super::build::{BuildData, BuildKey};
use super::choice::ArgChoice;
use super::collective::{self, CollectiveModel, Collectives};
use super::error::LoadError;
use super::image::{ImageOptions, TpbImage};
use super::lru::Lru;
use super::place;
use super::work::{EngineReport, WorkItem};
use crate::device::Device;
use crate::device::heap::{DeviceBlock, Heap};
use crate::neff::{Neff, Program};
use crate::sync::{Mutex, MutexGuard};

/// How a model is loaded.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// The TPB that runs the first subgraph. The others run on those behind it, in their order.
    pub first_tpb: TpbId,
    /// Longest that an execution of the model may take; more than nothing. Runtimes give it in whole seconds.
    pub timeout: Duration,
    /// Rings kept per queue although no execution uses them, each for other tensors; any number, and 0 for none.
    pub ring_cache: usize,
    /// Whole builds kept, one per pair of sets; any number, and 0 for none.
    pub build_cache: usize,
    /// Whether executions tell the device what their items are, as recorders of dependencies and arguments need it, and which
    /// arguments are chosen: one pair more in the exec ring.
    pub task_table: Option<ArgChoice>,
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self {
            first_tpb: TpbId::FIRST,
            timeout: Duration::from_secs(30),
            ring_cache: 8,
            build_cache: 8,
            task_table: None,
        }
    }
}

/// How often a build found everything as before.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct BuildCounts {
    /// Builds that were a look at the keys of two sets.
    pub hits: u64,
    /// Builds that joined tensors to the model anew.
    pub misses: u64,
}

/// An input or output of a model.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wanted {
    /// The program that has it.
    pub tpb: TpbId,
    /// The name that a tensor is bound under.
    pub name: String,
    /// Which set it is looked up in.
    pub direction: Direction,
    /// Least length of the tensor.
    pub size_bytes: u64,
    /// Of what the address of the tensor has to be a multiple.
    pub align_bytes: u64,
    /// The variable of the program.
    pub var: VarId,
}

/// A model in device memory.
#[derive(Debug)]
pub struct Model {
    name: String,
    uuid: [u8; 16],
    timeout: Duration,
    images: Vec<(TpbId, TpbImage)>,
    /// Before what it may use on the device.
    pub(super) collective: Option<collective::Held>,
    _shared: Option<DeviceBlock>,
    pub(super) builds: Builds,
}

/// What was built for one load. It lives and dies with the load, so its keys need not name the load.
#[derive(Debug)]
pub(super) struct Builds(Mutex<Kept>);

#[derive(Debug)]
struct Kept {
    builds: Lru<BuildKey, BuildData>,
    counts: BuildCounts,
}

impl Builds {
    fn new(capacity: usize) -> Self {
        Self(Mutex::new(Kept { builds: Lru::new(capacity), counts: BuildCounts::default() }))
    }

    /// The build that was kept for these tensors: a hit, if there is one.
    pub(super) fn again(&self, key: &BuildKey) -> Option<Arc<BuildData>> {
        let mut kept = self.lock();
        let build = kept.builds.get(key)?;
        kept.counts.hits += 1;
        Some(build)
    }

    /// Keeps a build that had to be made: a miss. Returns the one to use, which another thread may have kept meanwhile.
    pub(super) fn keep(&self, key: BuildKey, build: BuildData) -> Arc<BuildData> {
        let build = Arc::new(build);
        let mut kept = self.lock();
        kept.counts.misses += 1;
        let (build, evicted) = kept.builds.insert(key, build);
        // Hits of all models wait for this lock, and an evicted build gives all its memory back.
        drop(kept);
        drop(evicted);
        build
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A thread of its own for the load onto `tpb`, if there is one to be had.
fn spawn_load<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    tpb: TpbId,
    load: impl FnOnce() -> T + Send + 'scope,
) -> io::Result<ScopedJoinHandle<'scope, T>> {
    #[cfg(test)]
    if super::mock::threads_are_out() {
        return Err(io::ErrorKind::WouldBlock.into());
    }
    thread::Builder::new().name(format!("load TPB {tpb}")).spawn_scoped(scope, load)
}

/// Does `load` for every program, the first here and each other on a thread of its own; all or, if one fails, none: the
/// others are dropped.
fn in_parallel<'a, T: Send>(
    mut programs: impl Iterator<Item = (&'a Program, (TpbId, TpbRegisters))>,
    load: impl Fn(&Program, (TpbId, TpbRegisters)) -> Result<T, LoadError> + Sync,
) -> Result<Vec<T>, LoadError> {
    let Some((first, first_at)) = programs.next() else { return Ok(Vec::new()) };
    let load = &load;
    thread::scope(|scope| {
        let mut loading = Vec::new();
        for (program, at) in programs {
            let thread = spawn_load(scope, at.0, move || load(program, at));
            loading.push(thread.map_err(|_| (program, at)));
        }
        let first = load(first, first_at);
        let others = loading.into_iter().map(|loading| match loading {
            Ok(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            // No thread to be had: this one is as good.
            Err((program, at)) => load(program, at),
        });
        // All are waited for before the first failure is reported.
        let loaded: Vec<_> = std::iter::once(first).chain(others).collect();
        loaded.into_iter().collect()
    })
}

impl Model {
    /// Loads every program of `neff` onto one of `tpbs`, those of the unit. On failure nothing stays on the device.
    pub(super) fn load<D: Device>(
        neff: &Neff,
        tpbs: &[(TpbId, TpbRegisters)],
        device: &D,
        heap: &Heap,
        collectives: &dyn Collectives,
        options: &LoadOptions,
    ) -> Result<Self, LoadError> {
        let (subgraphs, have) = (neff.programs.len(), tpbs.len());
        let (cores, tpbs_per_core) = (neff.header.cores_requested, neff.header.virtual_core_size);
        let need = (subgraphs as u64).max(u64::from(cores) * u64::from(tpbs_per_core));
        let first_tpb = options.first_tpb;
        let tpbs = tpbs.get(first_tpb.get() as usize..).unwrap_or_default();
        if need > tpbs.len() as u64 {
            return Err(LoadError::NotEnoughCores { subgraphs, cores, tpbs_per_core, first_tpb, have });
        }
        let shared = place::shared_scratchpad(&neff.programs, heap)?;
        let image_options = ImageOptions {
            device_target: device.target(),
            ring_cache: options.ring_cache,
            task_table: options.task_table.as_ref(),
        };
        let load = |program: &Program, at: (TpbId, TpbRegisters)| {
            let image = TpbImage::load(program, at, device, heap, shared.as_ref(), image_options)?;
            Ok((at.0, image))
        };
        let images = in_parallel(neff.programs.iter().zip(tpbs.iter().copied()), load)?;
        let streams = neff.programs.iter().map(|program| program.tables.collective_streams);
        let streams = streams.fold(0, u64::saturating_add);
        let name = neff.header.name.clone();
        let collective = match tpbs.first() {
            Some(&(first_tpb, _)) if streams > 0 => {
                let model = CollectiveModel { name: name.clone(), first_tpb, streams };
                Some(collective::Held::new(collectives.load(&model)?))
            }
            _ => None,
        };
        Ok(Self {
            name,
            uuid: neff.header.uuid,
            timeout: options.timeout,
            images,
            collective,
            _shared: shared,
            builds: Builds::new(options.build_cache),
        })
    }

    /// The name in the container's header.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The uuid in the container's header.
    pub fn uuid(&self) -> [u8; 16] {
        self.uuid
    }

    /// Longest that an execution may take.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Place of its first TPB among those of the unit.
    pub(super) fn first_place(&self) -> usize {
        self.images.first().map_or(0, |(tpb, _)| tpb.get() as usize)
    }

    /// The TPBs it runs on.
    pub fn tpbs(&self) -> impl ExactSizeIterator<Item = TpbId> + '_ {
        self.images.iter().map(|&(tpb, _)| tpb)
    }

    /// Every tensor that has to be bound, program by program: inputs, then outputs. Programs may share names; they are
    /// then bound to the same tensor.
    pub fn wants(&self) -> impl Iterator<Item = Wanted> + '_ {
        self.images.iter().flat_map(|(tpb, image)| {
            image.contract().entries().map(|(name, entry)| Wanted {
                tpb: *tpb,
                name: name.to_string(),
                direction: entry.direction,
                size_bytes: entry.size_bytes,
                align_bytes: entry.align_bytes,
                var: entry.var,
            })
        })
    }

    /// The names to bind in one direction, each once: as the first program that has it wants it, but of the greatest length
    /// and alignment that any program wants.
    pub fn names(&self, direction: Direction) -> Vec<Wanted> {
        let mut names: Vec<Wanted> = Vec::new();
        let mut known: HashMap<String, usize> = HashMap::new();
        for wanted in self.wants().filter(|wanted| wanted.direction == direction) {
            let place = *known.entry(wanted.name.clone()).or_insert(names.len());
            match names.get_mut(place) {
                Some(first) => {
                    first.size_bytes = first.size_bytes.max(wanted.size_bytes);
                    first.align_bytes = first.align_bytes.max(wanted.align_bytes);
                }
                None => names.push(wanted),
            }
        }
        names
    }

    /// Its engines and what of them is carried out, in the order of the cores.
    pub fn engines(&self) -> impl Iterator<Item = &EngineReport> {
        self.images.iter().flat_map(|(_, image)| image.engines())
    }

    /// What its engines do in one execution: core by core, each in program order.
    pub fn work_items(&self) -> impl Iterator<Item = &WorkItem> {
        self.images.iter().flat_map(|(_, image)| image.items())
    }

    /// How often builds found everything as before.
    pub fn build_counts(&self) -> BuildCounts {
        self.builds.lock().counts
    }

    /// Most exec-ring pairs that an execution takes on one TPB.
    pub(super) fn batch_pairs(&self) -> u32 {
        let pairs = self.images.iter().map(|(_, image)| image.swap_pairs() + PROLOGUE_PAIRS);
        u32::try_from(pairs.max().unwrap_or(0)).unwrap_or(u32::MAX)
    }

    pub(super) fn images(&self) -> &[(TpbId, TpbImage)] {
        &self.images
    }
}
