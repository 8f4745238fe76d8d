//! Tensors that a thread has bound, each with the bytes that it has to hold.

use anyhow::ensure;
use sluice_core::mem::DevAddr;
use sluice_host::device::heap::Heap;
use sluice_host::device::sim::SimDevice;
use sluice_host::kbl::{Tensor, TensorSet};

use super::random::{Dice, noise};
use super::recipes::{Shape, TRIPLE};

/// Tensors of a binding that are bound to no name.
const SPARES: usize = 2;

/// Most bytes that a tensor is longer than needed, and that a slice lies behind the start of its storage.
const SLACK: u64 = 200;

/// A tensor and what it holds.
struct Buffer {
    tensor: Tensor,
    content: Vec<u8>,
}

impl Buffer {
    fn new(tensor: Tensor, device: &SimDevice, dice: &mut Dice) -> anyhow::Result<Self> {
        let mut buffer = Self { content: vec![0; tensor.size_bytes() as usize], tensor };
        buffer.fill(device, dice)?;
        Ok(buffer)
    }

    fn fill(&mut self, device: &SimDevice, dice: &mut Dice) -> anyhow::Result<()> {
        self.content = noise(dice.roll(1 << 31), self.content.len());
        Ok(self.tensor.write(device, 0, &self.content)?)
    }

    fn check(&self, device: &SimDevice, name: &str) -> anyhow::Result<()> {
        let mut found = vec![0; self.content.len()];
        self.tensor.read(device, 0, &mut found)?;
        let differing = found.iter().zip(&self.content).position(|(found, expected)| found != expected);
        let at = self.tensor.at();
        ensure!(
            differing.is_none(),
            "`{name}` of {} bytes at {at:?} differs from byte {differing:?} on",
            found.len()
        );
        Ok(())
    }
}

/// Inputs that all threads share: any thread moves them to other storage at any time, nobody writes to that.
pub(super) struct Common {
    pub(super) set: TensorSet,
    tensors: Vec<Tensor>,
    storages: Vec<Buffer>,
}

impl Common {
    pub(super) fn new(heap: &Heap, device: &SimDevice, dice: &mut Dice) -> anyhow::Result<Self> {
        let bytes = TRIPLE.largest_bytes() as u64;
        let storage = |_| Buffer::new(Tensor::allocate(heap, bytes)?, device, dice);
        let storages = (0..4).map(storage).collect::<anyhow::Result<Vec<_>>>()?;
        let mut set = TensorSet::with_capacity(TRIPLE.inputs.len());
        let mut tensors = Vec::new();
        for (&(name, _), first) in TRIPLE.inputs.iter().zip(&storages) {
            let tensor = first.tensor.slice(0, bytes)?;
            set.add(name, tensor.clone())?;
            tensors.push(tensor);
        }
        Ok(Self { set, tensors, storages })
    }

    /// Moves one of the tensors.
    pub(super) fn shift(&self, dice: &mut Dice) {
        let storage = &self.storages[dice.roll(self.storages.len() as u64) as usize];
        self.tensors[dice.roll(self.tensors.len() as u64) as usize].attach(&storage.tensor);
    }

    /// What lies at the start of a storage.
    pub(super) fn content(&self, at: DevAddr) -> Option<&[u8]> {
        let storage = self.storages.iter().find(|storage| storage.tensor.at() == at)?;
        Some(&storage.content)
    }
}

/// Two sets of tensors for models of one shape.
pub(super) struct Binding {
    pub(super) shape: &'static Shape,
    pub(super) inputs: TensorSet,
    pub(super) outputs: TensorSet,
    /// In the order of the shape's names; spare ones at the end.
    buffers: Vec<Buffer>,
    /// The common inputs are used instead.
    pub(super) is_common: bool,
}

impl Binding {
    pub(super) fn new(
        shape: &'static Shape,
        heap: &Heap,
        device: &SimDevice,
        dice: &mut Dice,
    ) -> anyhow::Result<Self> {
        let count = shape.names().count() + SPARES;
        let bytes = shape.largest_bytes() as u64;
        let tensors = if dice.roll(3) == 0 {
            // Neighbours in one storage.
            let stride = (bytes + SLACK).next_multiple_of(shape.align_bytes);
            let storage = Tensor::allocate(heap, stride * count as u64)?;
            let slice = |place| {
                let offset = offset(shape, dice);
                storage.slice(stride * place + offset, bytes + dice.roll(SLACK - offset))
            };
            (0..count as u64).map(slice).collect::<Result<Vec<_>, _>>()?
        } else {
            (0..count).map(|_| tensor(shape, heap, dice)).collect::<anyhow::Result<Vec<_>>>()?
        };
        let buffer = |tensor| Buffer::new(tensor, device, dice);
        let buffers = tensors.into_iter().map(buffer).collect::<anyhow::Result<Vec<_>>>()?;
        let sets = [(); 2].map(|()| TensorSet::with_capacity(count));
        let [inputs, outputs] = sets;
        let mut binding = Self { shape, inputs, outputs, buffers, is_common: false };
        for place in 0..shape.names().count() {
            binding.bind(place)?;
        }
        Ok(binding)
    }

    /// Enters the buffer at `place` under the name of that place; a spare one has none.
    fn bind(&mut self, place: usize) -> anyhow::Result<()> {
        if let Some((name, is_output)) = self.shape.names().nth(place) {
            let set = if is_output { &mut self.outputs } else { &mut self.inputs };
            set.add(name, self.buffers[place].tensor.clone())?;
        }
        Ok(())
    }

    /// Changes something at random; returns whether other addresses are bound now.
    pub(super) fn change(
        &mut self,
        heap: &Heap,
        device: &SimDevice,
        dice: &mut Dice,
    ) -> anyhow::Result<bool> {
        let places = self.buffers.len();
        let [one, other] = [(); 2].map(|()| dice.roll(places as u64) as usize);
        match dice.roll(8) {
            // Roles and spares move on by one: what was an output is an input next.
            0 => {
                self.buffers.rotate_right(1);
                (0..places).try_for_each(|place| self.bind(place))?;
            }
            1 if one != other => {
                self.buffers.swap(one, other);
                self.bind(one)?;
                self.bind(other)?;
            }
            // The bytes of one tensor go to another one, which leaves its own.
            2 if one != other => {
                let spare = tensor(self.shape, heap, dice)?;
                self.buffers[one].tensor.attach(&self.buffers[other].tensor);
                self.buffers[one].content = std::mem::take(&mut self.buffers[other].content);
                self.buffers[other] = Buffer::new(spare, device, dice)?;
                self.bind(other)?;
            }
            // A tensor is given back and another one, mostly at the same place, takes its role.
            3 => {
                self.buffers[one].tensor = self.buffers[(one + 1) % places].tensor.clone();
                self.bind(one)?;
                let tensor = tensor(self.shape, heap, dice)?;
                self.buffers[one] = Buffer::new(tensor, device, dice)?;
                self.bind(one)?;
            }
            4 => self.is_common = *self.shape == TRIPLE && !self.is_common,
            _ => {
                self.buffers[one].fill(device, dice)?;
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// What its own inputs hold.
    pub(super) fn input_contents(&self) -> Vec<&[u8]> {
        self.buffers.iter().take(self.shape.inputs.len()).map(|buffer| &buffer.content[..]).collect()
    }

    /// Checks every byte of the tensors, spare ones included, after executions that wrote `outputs`. Returns how many.
    pub(super) fn check(&mut self, device: &SimDevice, outputs: &[Vec<u8>]) -> anyhow::Result<u64> {
        for (buffer, output) in self.buffers.iter_mut().skip(self.shape.inputs.len()).zip(outputs) {
            buffer.content[..output.len()].copy_from_slice(output);
        }
        let names = self.shape.names().map(|(name, _)| name).chain(std::iter::repeat("spare"));
        self.buffers.iter().zip(names).try_for_each(|(buffer, name)| buffer.check(device, name))?;
        Ok(self.buffers.iter().map(|buffer| buffer.content.len() as u64).sum())
    }
}

/// A tensor for any role of a shape, on storage of its own or somewhere inside it.
fn tensor(shape: &Shape, heap: &Heap, dice: &mut Dice) -> anyhow::Result<Tensor> {
    let (bytes, before, behind) = (shape.largest_bytes() as u64, offset(shape, dice), dice.roll(SLACK));
    Ok(if dice.roll(2) == 0 {
        Tensor::allocate(heap, bytes + behind)?
    } else {
        Tensor::allocate(heap, before + bytes + behind)?.slice(before, bytes)?
    })
}

/// Where in its storage a tensor may begin.
fn offset(shape: &Shape, dice: &mut Dice) -> u64 {
    dice.roll(SLACK) / shape.align_bytes * shape.align_bytes
}
