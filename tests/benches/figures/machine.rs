//! A simulated device with a unit on it.

use std::sync::Arc;

use sluice_core::fmap::Direction;
use sluice_host::device::Device;
use sluice_host::device::heap::Heap;
use sluice_host::device::sim::{SimConfig, SimDevice};
use sluice_host::kbl::{LoadOptions, ModelHandle, Tensor, TensorSet, Unit, UnitOptions};
use sluice_host::neff::{Neff, ReadOptions, pack};

/// A device that runs the firmware on threads of its own, and everything that a model needs.
pub(crate) struct Machine {
    pub(crate) unit: Unit<SimDevice>,
    pub(crate) heap: Heap,
}

impl Machine {
    /// A device of `tpbs` TPBs and one lane. Its threads run where the calling one does now.
    pub(crate) fn start(tpbs: u32) -> anyhow::Result<Self> {
        Self::with_delays(tpbs, 0)
    }

    /// As [`start`](Self::start), with items that take up to `most_cycles` longer.
    pub(crate) fn with_delays(tpbs: u32, most_cycles: u64) -> anyhow::Result<Self> {
        let mut config = SimConfig { tpbs, lanes: 1, ..SimConfig::default() };
        config.delays.max_cycles = most_cycles;
        Self::of(config)
    }

    /// As [`start`](Self::start), with that many lanes.
    pub(crate) fn with_lanes(tpbs: u32, lanes: u32) -> anyhow::Result<Self> {
        Self::of(SimConfig { tpbs, lanes, ..SimConfig::default() })
    }

    fn of(config: SimConfig) -> anyhow::Result<Self> {
        let device = Arc::new(SimDevice::start(config)?);
        let ram = device.map().ram;
        let heap = Heap::new(ram.base, ram.bytes);
        let unit = Unit::open(device, heap.clone(), UnitOptions { phase_log: 0, ..UnitOptions::default() })?;
        Ok(Self { unit, heap })
    }

    /// Loads the model that `text` describes.
    pub(crate) fn load(&self, name: &str, text: &str, options: &LoadOptions) -> anyhow::Result<ModelHandle> {
        let neff = Neff::parse(name, &pack(name, text)?, &ReadOptions::default())?;
        Ok(self.unit.load(&neff, options)?)
    }

    /// A tensor for every name of the model in one direction.
    pub(crate) fn tensors(&self, model: ModelHandle, direction: Direction) -> anyhow::Result<TensorSet> {
        let mut set = TensorSet::new();
        for wanted in self.unit.model(model)?.names(direction) {
            set.add(
                &wanted.name,
                Tensor::allocate_aligned(&self.heap, wanted.size_bytes, wanted.align_bytes)?,
            )?;
        }
        Ok(set)
    }
}
