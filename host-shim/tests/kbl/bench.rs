//! A simulated device with a unit on it, and tensors.

use std::sync::Arc;

use sluice_core::fmap::Direction;
use sluice_host::device::Device;
use sluice_host::device::heap::{Heap, HeapUsage};
use sluice_host::device::sim::{SimConfig, SimDevice};
use sluice_host::kbl::{Built, LoadOptions, ModelHandle, Tensor, TensorSet, Unit, UnitOptions};
use sluice_host::neff::{Neff, ReadOptions, models, pack};

use crate::random::noise;

/// A unit on a simulated device.
pub(crate) struct Bench {
    pub(crate) device: Arc<SimDevice>,
    pub(crate) heap: Heap,
    pub(crate) unit: Unit<SimDevice>,
}

impl Bench {
    pub(crate) fn new(options: UnitOptions) -> Self {
        Self::on(Arc::new(SimDevice::start(SimConfig::default()).unwrap()), options)
    }

    pub(crate) fn on(device: Arc<SimDevice>, options: UnitOptions) -> Self {
        let ram = device.map().ram;
        let heap = Heap::new(ram.base, ram.bytes);
        let unit = Unit::open(Arc::clone(&device), heap.clone(), options).unwrap();
        Self { device, heap, unit }
    }

    pub(crate) fn load(&self, neff: &Neff) -> ModelHandle {
        let timeout = std::time::Duration::from_secs(60);
        self.unit.load(neff, &LoadOptions { timeout, ..LoadOptions::default() }).unwrap()
    }

    /// A tensor for every name of the model in one direction, on memory of its own.
    pub(crate) fn tensors(&self, model: ModelHandle, direction: Direction) -> TensorSet {
        let mut set = TensorSet::with_capacity(16);
        for wanted in self.unit.model(model).unwrap().names(direction) {
            set.add(
                &wanted.name,
                Tensor::allocate_aligned(&self.heap, wanted.size_bytes, wanted.align_bytes).unwrap(),
            )
            .unwrap();
        }
        set
    }

    /// Runs one execution and checks that the device has patched what it was to patch.
    pub(crate) fn run(&self, built: &Built) {
        self.unit.stage(built).unwrap().kickoff().unwrap().wait().unwrap();
        for slot in self.unit.patched_slots(built).unwrap() {
            assert_eq!(slot.read_back(&*self.device).unwrap(), slot.expected, "{}", slot.what);
        }
    }

    pub(crate) fn fill(&self, set: &TensorSet, name: &str, seed: u64) -> Vec<u8> {
        let tensor = set.get(name).unwrap();
        let bytes = noise(seed, tensor.size_bytes() as usize);
        tensor.write(&*self.device, 0, &bytes).unwrap();
        bytes
    }

    pub(crate) fn read(&self, set: &TensorSet, name: &str) -> Vec<u8> {
        let tensor = set.get(name).unwrap();
        let mut bytes = vec![0; tensor.size_bytes() as usize];
        tensor.read(&*self.device, 0, &mut bytes).unwrap();
        bytes
    }

    /// Ends the unit and returns the heap's usage before it and after it.
    pub(crate) fn end(self) -> HeapUsage {
        self.unit.close(std::time::Duration::from_secs(60)).unwrap();
        drop(self.unit);
        self.heap.usage()
    }
}

/// A built-in model.
pub(crate) fn builtin(name: &str) -> Neff {
    let container = pack(name, models::builtin(name).unwrap()).unwrap();
    Neff::parse(name, &container, &ReadOptions::default()).unwrap()
}
