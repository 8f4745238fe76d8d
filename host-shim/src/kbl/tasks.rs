//! Task tables: what the device is told of the items of a program, for recorders that tell of more than time.
//!
//! A table is written at load and says of each item which it waits for and which parts of bound tensors it touches; each
//! build says where the tensors are. An execution names the bindings by one pair more in its swap list.
//!
//! # What an item waits for
//!
//! The item before it on its engine, and every item whose signal a wait of it can't do without: one is such if the
//! semaphore would not come so far even if, of its engine, all items before it had signalled, and of all others every item
//! that is not behind the wait on the wait's own engine. Each is listed once, the item before first, then by wait, engine and
//! place.
//!
//! # What an item touches
//!
//! For each copy of its block the part of an input or output that is read, then the part that is written. A part that is
//! listed already is not listed again; one that is both read and written is an `inout`. Elements are those of the tensor
//! where the part is made of whole elements, bytes else. A part of more than five dimensions is listed without any.
//! Of an opaque program it is not known what it touches: it is said to take all inputs and give all outputs. Those that the
//! caller chose are marked.

use std::collections::{HashMap, HashSet};

use sluice_core::exec::tasks::{
    Arg, Binding, ElementType, Item, ItemPlace, MAX_ITEMS, TableParts, bindings_head,
};
use sluice_core::fmap::VarId;
use sluice_core::layout::args_dump::{MAX_DIMS, Role};
use sluice_core::layout::dep_gen::NO_KERNEL;
use sluice_core::mem::DevAddr;
use sluice_core::mmio::{Engine, SemaphoreId};
use zerocopy::{FromZeros, IntoBytes};

use super::choice::ArgChoice;
use super::contract::{Bindings, Contract};
use super::error::LoadError;
use super::ring::BuildFault;
use super::sink::Sink;
use crate::device::heap::{DeviceBlock, Heap, UsageTag};
use crate::neff::{Dim, DmaBlock, EngineProgram, Pattern, Program, RunBlock, VarKind, Work};

/// The table of a program, in device memory.
#[derive(Debug)]
pub(super) struct Tasks {
    table: DeviceBlock,
    tensors: u32,
}

impl Tasks {
    /// Describes `program`, whose engines' programs begin at `entries` and of whose arguments `choice` is marked.
    pub(super) fn load(
        program: &Program,
        contract: &Contract,
        choice: &ArgChoice,
        entries: [DevAddr; Engine::COUNT],
        sink: &impl Sink,
        heap: &Heap,
    ) -> Result<Self, LoadError> {
        let described = Described::of(program, contract, choice)?;
        let tensors = contract.entries().count() as u32;
        let parts = TableParts {
            programs: entries,
            items: described.items.each_ref().map(Vec::as_slice),
            args: &described.args,
            deps: &described.deps,
            tensors,
        };
        let bytes: Vec<u8> = parts.pieces().flat_map(|piece| piece.as_ref().to_vec()).collect();
        let table = heap.alloc(bytes.len() as u64, Heap::GRANULE_BYTES, UsageTag::Generic)?;
        sink.put(table.at(), &bytes)?;
        Ok(Self { table, tensors })
    }

    /// Says where the tensors are.
    pub(super) fn bind(
        &self,
        bindings: &Bindings,
        sink: &impl Sink,
        heap: &Heap,
    ) -> Result<DeviceBlock, BuildFault> {
        let mut bytes = bindings_head(self.table.at(), self.tensors).to_vec();
        for place in bindings.places() {
            let bound = place.map_or(Binding { base: 0, size_bytes: 0 }, |place| Binding {
                base: place.base.0,
                size_bytes: place.size_bytes,
            });
            bytes.extend_from_slice(bound.as_bytes());
        }
        let block = heap.alloc(bytes.len() as u64, Heap::GRANULE_BYTES, UsageTag::Generic)?;
        sink.put(block.at(), &bytes)?;
        Ok(block)
    }
}

/// A table before it is bytes.
#[derive(Default, Debug)]
struct Described {
    items: [Vec<Item>; Engine::COUNT],
    args: Vec<Arg>,
    deps: Vec<u32>,
}

impl Described {
    fn of(program: &Program, contract: &Contract, choice: &ArgChoice) -> Result<Self, LoadError> {
        let mut described = Self::default();
        let signals = Signals::of(program);
        for engine in &program.engines {
            let blocks: HashMap<u32, &DmaBlock> =
                engine.blocks.iter().map(|block| (block.id, block)).collect();
            match &engine.work {
                Work::Idle => {}
                Work::Opaque => {
                    let args = whole_tensors(program, contract);
                    described.push(engine.engine, NO_KERNEL, &[], args, choice)?;
                }
                Work::Blocks(runs) => {
                    for (index, run) in runs.iter().enumerate() {
                        let deps = signals.deps(engine, runs, index);
                        let args = blocks.get(&run.block).map(|block| block_args(program, contract, block));
                        let kernel = i32::try_from(run.kernel).unwrap_or(NO_KERNEL);
                        described.push(engine.engine, kernel, &deps, args.unwrap_or_default(), choice)?;
                    }
                }
            }
        }
        Ok(described)
    }

    fn push(
        &mut self,
        engine: Engine,
        kernel: i32,
        deps: &[ItemPlace],
        args: Vec<Touched<'_>>,
        choice: &ArgChoice,
    ) -> Result<(), LoadError> {
        let items = &mut self.items[engine.index()];
        let (all_deps, all_args) = (self.deps.len() + deps.len(), self.args.len() + args.len());
        if items.len() >= MAX_ITEMS as usize || all_deps.max(all_args) > u32::MAX as usize {
            let items = items.len() + 1;
            return Err(LoadError::TaskTable { items, deps: all_deps, args: all_args });
        }
        let mut kernels = [NO_KERNEL; 3];
        kernels[kernel_slot(engine)] = kernel;
        items.push(Item {
            chosen: choice.mask(args.iter().map(|touched| (touched.arg.role, touched.name, touched.bytes))),
            kernels,
            blocks: 1,
            first_dep: self.deps.len() as u32,
            deps: deps.len() as u32,
            first_arg: self.args.len() as u32,
            args: args.len() as u32,
        });
        self.deps.extend(deps.iter().map(|dep| dep.packed()));
        self.args.extend(args.into_iter().map(|touched| touched.arg));
        Ok(())
    }
}

/// Of the kernels of a task the one that is the engine's: that of the matrix core, of the vector cores, of the others.
const fn kernel_slot(engine: Engine) -> usize {
    match engine {
        Engine::Pe => 0,
        Engine::Act | Engine::Dve => 1,
        Engine::Pool | Engine::Sp => 2,
    }
}

/// Which items of each engine signal each semaphore, by their places in order.
struct Signals(HashMap<SemaphoreId, [Vec<u32>; Engine::COUNT]>);

impl Signals {
    fn of(program: &Program) -> Self {
        let mut signals: HashMap<SemaphoreId, [Vec<u32>; Engine::COUNT]> = HashMap::new();
        for engine in &program.engines {
            let Work::Blocks(runs) = &engine.work else { continue };
            for (ordinal, run) in (1..).zip(runs) {
                if let Some(semaphore) = run.signal {
                    signals.entry(semaphore).or_default()[engine.engine.index()].push(ordinal);
                }
            }
        }
        Self(signals)
    }

    /// What item number `index`, from 0, of `engine` waits for.
    fn deps(&self, engine: &EngineProgram, runs: &[RunBlock], index: usize) -> Vec<ItemPlace> {
        let own = engine.engine;
        let before = (index > 0).then_some(ItemPlace { engine: own, ordinal: index as u32 });
        let mut deps: Vec<_> = before.into_iter().collect();
        let mut known: HashSet<_> = deps.iter().copied().collect();
        for wait in &runs[index].waits {
            let Some(signalling) = self.0.get(&wait.semaphore) else { continue };
            let may_come = |engine: Engine| {
                let all = &signalling[engine.index()];
                // Those behind the wait wait for it themselves.
                if engine == own { all.partition_point(|&place| place as usize <= index) } else { all.len() }
            };
            let all: usize = Engine::ALL.into_iter().map(may_come).sum();
            for engine in Engine::ALL {
                let needed = (wait.at_least as usize).saturating_sub(all - may_come(engine));
                let needed = signalling[engine.index()].iter().take(needed.min(may_come(engine)));
                let needed = needed.map(|&ordinal| ItemPlace { engine, ordinal });
                deps.extend(needed.filter(|dep| known.insert(*dep)));
            }
        }
        deps
    }
}

/// An argument with the name of its tensor and its length.
#[derive(Clone, Copy, Debug)]
struct Touched<'a> {
    arg: Arg,
    name: &'a str,
    bytes: u64,
}

/// Names of the tensors of what a block touches, or an opaque program, in the order of its arguments.
pub(super) fn tensors_of(program: &Program, contract: &Contract, block: Option<&DmaBlock>) -> Vec<String> {
    let touched = match block {
        Some(block) => block_args(program, contract, block),
        None => whole_tensors(program, contract),
    };
    touched.into_iter().map(|touched| touched.name.to_owned()).collect()
}

/// What a block touches of bound tensors.
fn block_args<'a>(program: &'a Program, contract: &Contract, block: &DmaBlock) -> Vec<Touched<'a>> {
    let mut args: Vec<Touched<'a>> = Vec::new();
    let mut known: HashMap<(VarId, &Pattern), usize> = HashMap::new();
    for copy in &block.copies {
        let ends =
            [(copy.from(), copy.from_pattern(), Role::INPUT), (copy.to(), copy.to_pattern(), Role::OUTPUT)];
        for (var, pattern, role) in ends {
            let Some(tensor) = contract.order_of(var) else { continue };
            let place = *known.entry((var, pattern)).or_insert(args.len());
            match args.get_mut(place) {
                Some(Touched { arg, .. }) if arg.role != role => arg.role = Role::INOUT,
                Some(_) => {}
                None => {
                    let var = program.var(var);
                    let element = var.dtype.as_deref().and_then(ElementType::named);
                    let arg = view(tensor, role, element, pattern.offset_bytes(), pattern.dims());
                    args.push(Touched { arg, name: &var.name, bytes: pattern.len_bytes() });
                }
            }
        }
    }
    args
}

/// All inputs and outputs, as they are.
fn whole_tensors<'a>(program: &'a Program, contract: &Contract) -> Vec<Touched<'a>> {
    let io = program.vars.iter().filter(|var| var.kind.is_io());
    let arg = |var: &'a crate::neff::Var| {
        let role = if var.kind == VarKind::Input { Role::INPUT } else { Role::OUTPUT };
        let element = var.dtype.as_deref().and_then(ElementType::named);
        let dims = [Dim { size: var.size_bytes, step_bytes: 1 }];
        let arg = view(contract.order_of(var.id)?, role, element, 0, &dims);
        Some(Touched { arg, name: &var.name, bytes: var.size_bytes })
    };
    io.filter_map(arg).collect()
}

/// A part of a tensor as numbers of elements: of `element` if there are whole ones, of bytes else.
fn view(tensor: u32, role: Role, element: Option<ElementType>, offset_bytes: u64, dims: &[Dim]) -> Arg {
    let blank = Arg { tensor, role, element: ElementType::BYTE, ..Arg::new_zeroed() };
    let dims = joined(dims);
    let elements = element.and_then(|element| {
        let bytes = u64::from(element.bytes()?);
        let (last, outer) = dims.split_last()?;
        let is_whole = last.step_bytes == 1
            && last.size.is_multiple_of(bytes)
            && offset_bytes.is_multiple_of(bytes)
            && outer.iter().all(|dim| dim.step_bytes.is_multiple_of(bytes));
        let last = Dim { size: last.size / bytes, step_bytes: bytes };
        let dims: Vec<Dim> = outer.iter().copied().chain([last]).collect();
        is_whole.then_some((element, bytes, dims))
    });
    let (element, bytes, dims) = elements.unwrap_or((ElementType::BYTE, 1, dims));
    let fits = |number: u64| u32::try_from(number).ok();
    let numbers: Option<Vec<_>> =
        dims.iter().map(|dim| Some((fits(dim.size)?, fits(dim.step_bytes / bytes)?))).collect();
    match numbers {
        Some(numbers) if numbers.len() <= MAX_DIMS => {
            let mut arg = Arg { element, start_offset: offset_bytes / bytes, ..blank };
            arg.ndims = numbers.len() as u8;
            for (place, (size, stride)) in numbers.into_iter().enumerate() {
                (arg.shape[place], arg.strides[place]) = (size, stride);
            }
            arg
        }
        _ => blank,
    }
}

/// The fewest dimensions that visit the same bytes in the same order.
fn joined(dims: &[Dim]) -> Vec<Dim> {
    let mut joined: Vec<Dim> = Vec::with_capacity(dims.len());
    for dim in dims.iter().filter(|dim| dim.size > 1) {
        match joined.last_mut() {
            Some(outer) if outer.step_bytes == dim.step_bytes.saturating_mul(dim.size) => {
                *outer = Dim { size: outer.size * dim.size, step_bytes: dim.step_bytes };
            }
            _ => joined.push(*dim),
        }
    }
    if joined.is_empty() {
        joined.push(Dim { size: 1, step_bytes: 1 });
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::super::mock::model;
    use super::*;
    use crate::neff::{Neff, ReadOptions, pack};

    fn described(program: &Program) -> Described {
        let choice = ArgChoice::NONE.with_role(Role::OUTPUT);
        Described::of(program, &Contract::of(program).unwrap(), &choice).unwrap()
    }

    /// What each item waits for, as engine and place.
    fn deps(described: &Described, engine: Engine) -> Vec<Vec<(Engine, u32)>> {
        let of = |item: &Item| {
            let range = item.first_dep as usize..(item.first_dep + item.deps) as usize;
            let places = described.deps[range].iter().map(|&packed| ItemPlace::unpacked(packed).unwrap());
            places.map(|place| (place.engine, place.ordinal)).collect()
        };
        described.items[engine.index()].iter().map(of).collect()
    }

    #[test]
    fn items_wait_for_the_one_before_and_for_signals_they_cannot_do_without() {
        let gather = model("gather");
        let described = described(&gather.programs[0]);
        use Engine::{Act, Pool, Sp};
        assert_eq!(deps(&described, Pool), [vec![], vec![(Pool, 1)]]);
        assert_eq!(deps(&described, Sp), [vec![(Pool, 1), (Pool, 2)], vec![(Sp, 1), (Act, 1)]]);
        assert_eq!(deps(&described, Act), [vec![], vec![(Act, 1), (Pool, 1), (Sp, 1)]]);
    }

    fn program(blocks: &str) -> Program {
        let spec = format!(
            r#"
            [model]
            name = "tasks"
            target = "cayman"
            [[tpb]]
            var = [
              {{ name = "x", type = "input", size = 4096, dtype = "float32", shape = [16, 64] }},
              {{ name = "y", type = "output", size = 4096 }},
              {{ name = "t", type = "temporary", size = 4096 }},
            ]
            queue = [
              {{ name = "p", type = "in", owner = "pool", semaphore = 10 }},
              {{ name = "s", type = "out", owner = "sp", semaphore = 11 }},
              {{ name = "v", type = "data", owner = "dve", semaphore = 12 }},
            ]
            {blocks}
            "#
        );
        let bytes = pack("tasks", &spec).unwrap();
        Neff::parse("tasks", &bytes, &ReadOptions::default()).unwrap().programs.remove(0)
    }

    fn block(queue: &str, wait: &str, signal: Option<u32>, copies: &str) -> String {
        let signal = signal.map_or(String::new(), |signal| format!("signal = {signal}\n"));
        format!("[[tpb.block]]\nqueue = \"{queue}\"\nwait = [{wait}]\n{signal}copy = [{copies}]\n")
    }

    #[test]
    fn of_signals_that_others_can_stand_in_for_none_is_waited_for() {
        const COPY: &str = r#"{ from = "x", to = "t", bytes = 8 }"#;
        let signals = block("p", "", Some(1), COPY).repeat(3) + &block("v", "", Some(1), COPY);
        let waits = |least: u32| {
            let wait = format!("{{ semaphore = 1, at_least = {least} }}");
            let program = program(&(signals.clone() + &block("s", &wait, None, COPY)));
            deps(&described(&program), Engine::Sp).remove(0)
        };
        use Engine::{Dve, Pool};
        assert_eq!(waits(1), []);
        assert_eq!(waits(2), [(Pool, 1)]);
        assert_eq!(waits(3), [(Pool, 1), (Pool, 2)]);
        assert_eq!(waits(4), [(Pool, 1), (Pool, 2), (Pool, 3), (Dve, 1)]);
    }

    #[test]
    fn items_touch_the_parts_that_their_copies_do() {
        let program = program(&[
            block("p", "", None, r#"{ from = "x", from_off = 64, from_sizes = [4, 2, 8], from_steps = [256, 8, 1], to = "y", to_off = 1, to_sizes = [64], to_steps = [1] }"#),
            block("p", "", None, r#"{ from = "y", to = "t", bytes = 16 }, { from = "x", to = "y", bytes = 16 }, { from = "x", to = "t", bytes = 16 }"#),
            block("s", "", None, r#"{ from = "t", to = "y", to_sizes = [2, 2, 2, 2, 2, 2], to_steps = [1000, 450, 200, 90, 40, 10] }"#),
        ].concat());
        let described = described(&program);
        let args = |engine: Engine, item: usize| {
            let item = described.items[engine.index()][item];
            let args = &described.args[item.first_arg as usize..(item.first_arg + item.args) as usize];
            let of = |arg: &Arg| {
                let dims: Vec<_> = arg.dims().collect();
                (arg.tensor, arg.role, arg.element.name().unwrap(), arg.start_offset, dims)
            };
            args.iter().map(of).collect::<Vec<_>>()
        };
        let part =
            |tensor, role, element, start, dims: &[(u32, u32)]| (tensor, role, element, start, dims.to_vec());
        assert_eq!(
            args(Engine::Pool, 0),
            [
                part(0, Role::INPUT, "float32", 16, &[(4, 64), (4, 1)]),
                part(1, Role::OUTPUT, "uint8", 1, &[(64, 1)])
            ]
        );
        assert_eq!(
            args(Engine::Pool, 1),
            [part(1, Role::INOUT, "uint8", 0, &[(16, 1)]), part(0, Role::INPUT, "float32", 0, &[(4, 1)]),]
        );
        assert_eq!(args(Engine::Sp, 0), [part(1, Role::OUTPUT, "uint8", 0, &[])], "too many dimensions");
        let chosen = |engine: Engine| described.items[engine.index()].iter().map(|item| item.chosen);
        assert_eq!(chosen(Engine::Pool).chain(chosen(Engine::Sp)).collect::<Vec<_>>(), [0b10, 0, 1]);
    }
}
