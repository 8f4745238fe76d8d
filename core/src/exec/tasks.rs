//! The task table: what the items of a program are, for recorders that tell of more than time.
//!
//! ```text
//!   control page            bindings, per build         table, per load
//!   ┌──────────────┐        ┌────────────────┐          ┌───────────────────────────────┐
//!   │ task bindings├───────►│ head: table ───┼─────────►│ head: programs, counts        │
//!   └──────────────┘        │ place × tensor │          │ item × each, engine by engine │
//!                           └──────▲─────────┘          │ argument × each               │
//!                                  └─── tensor number ──┤ dependency × each             │
//!                                                       └───────────────────────────────┘
//! ```
//!
//! The host writes both before it posts the execution; a pair of the execution ring stores the address of the bindings in
//! the control page before the execution starts, and nothing changes until it has ended. A device that records takes the
//! address out again then, so an execution without such a pair has no table. Everything is read by copy, and each
//! index is held against the table, of which [`TaskTable::open`] has made sure that it lies in memory as a whole.
//!
//! All integers are little-endian.

use core::fmt;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::place::{CoreIndex, DeviceRange};
use crate::layout::args_dump::{MAX_DIMS, Role};
use crate::mem::{CopyMemory, DevAddr, Fault};
use crate::mmio::Engine;

const TABLE_MAGIC: u32 = u32::from_le_bytes(*b"SLT1");
const BINDINGS_MAGIC: u32 = u32::from_le_bytes(*b"SLT2");

/// One task: a work item of one execution. Fits the task identities of the wire contract.
///
/// | bits | what |
/// |---|---|
/// | 56..64 | core |
/// | 32..56 | place of the item in the program of the core, from 1 |
/// | 0..32 | ordinal of the execution among those of its TPB |
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TaskId(pub u64);

impl TaskId {
    /// The item `ordinal`, at most [`MAX_ITEMS`], of `core` in an execution.
    pub const fn new(core: CoreIndex, ordinal: u32, execution: u32) -> Self {
        Self((core.get() as u64) << 56 | ((ordinal & MAX_ITEMS) as u64) << 32 | execution as u64)
    }

    /// Number of the core; such as a device has, if the identity came from one.
    pub const fn core(self) -> u32 {
        (self.0 >> 56) as u32
    }

    /// Place of the item in the core's program, from 1.
    pub const fn ordinal(self) -> u32 {
        (self.0 >> 32) as u32 & MAX_ITEMS
    }

    /// Ordinal of the execution among those of its TPB.
    pub const fn execution(self) -> u32 {
        self.0 as u32
    }
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "item {} of core {} in execution {}", self.ordinal(), self.core(), self.execution())
    }
}

/// Most items of one engine.
pub const MAX_ITEMS: u32 = (1 << 24) - 1;

/// An item of a program: its engine, and its place in the program of the engine, from 1 to [`MAX_ITEMS`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ItemPlace {
    /// The engine.
    pub engine: Engine,
    /// The place.
    pub ordinal: u32,
}

impl ItemPlace {
    /// As it stands in a table.
    pub const fn packed(self) -> u32 {
        (self.engine as u32) << 24 | self.ordinal & MAX_ITEMS
    }

    /// From what stands in a table; `None` for an engine that there is not.
    pub fn unpacked(packed: u32) -> Option<Self> {
        let engine = Engine::ALL.get((packed >> 24) as usize)?;
        Some(Self { engine: *engine, ordinal: packed & MAX_ITEMS })
    }
}

/// Code of an element type, as records carry it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(transparent)]
pub struct ElementType(pub u8);

impl ElementType {
    /// Every type that has a code: name in containers, bytes of an element. The place is the code.
    const KNOWN: [(&'static str, u8); 9] = [
        ("float32", 4),
        ("float16", 2),
        ("int32", 4),
        ("int16", 2),
        ("int8", 1),
        ("uint8", 1),
        ("bfloat16", 2),
        ("int64", 8),
        ("uint64", 8),
    ];

    /// Plain bytes.
    pub const BYTE: Self = Self(5);

    /// The type of that name.
    pub fn named(name: &str) -> Option<Self> {
        (0..).zip(Self::KNOWN).find_map(|(code, (known, _))| (known == name).then_some(Self(code)))
    }

    /// Its name, if the code is one.
    pub fn name(self) -> Option<&'static str> {
        Self::KNOWN.get(self.0 as usize).map(|(name, _)| *name)
    }

    /// Bytes of an element, if the code is one.
    pub fn bytes(self) -> Option<u32> {
        Self::KNOWN.get(self.0 as usize).map(|(_, bytes)| u32::from(*bytes))
    }
}

/// First bytes of a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct TableHead {
    magic: u32,
    args: u32,
    deps: u32,
    tensors: u32,
    programs: [u64; Engine::COUNT],
    items: [u32; Engine::COUNT],
    pad: [u32; 13],
}

/// First bytes of bindings; a [`Binding`] per tensor follows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct BindingsHead {
    magic: u32,
    tensors: u32,
    table: u64,
}

/// One item of a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Item {
    /// One bit per argument that was chosen to be recorded; those from the 64th on go by the last bit.
    pub chosen: u64,
    /// Kernels on the matrix core and the two vector cores; −1 = none.
    pub kernels: [i32; 3],
    /// Blocks it is split into, at least 1.
    pub blocks: u32,
    /// Its first dependency among those of the table.
    pub first_dep: u32,
    /// Dependencies.
    pub deps: u32,
    /// Its first argument among those of the table.
    pub first_arg: u32,
    /// Arguments.
    pub args: u32,
}

impl Item {
    /// Whether argument `index` was chosen.
    pub const fn is_chosen(&self, index: u32) -> bool {
        let bit = if index < u64::BITS { index } else { u64::BITS - 1 };
        self.chosen >> bit & 1 != 0
    }
}

/// An argument of an item: a view of a bound tensor. A view that the numbers cannot express has no dimensions.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Arg {
    /// First element of the view.
    pub start_offset: u64,
    /// Which tensor of the bindings.
    pub tensor: u32,
    /// How the item uses it.
    pub role: Role,
    /// What an element is.
    pub element: ElementType,
    /// Dimensions in use, at most [`MAX_DIMS`].
    pub ndims: u8,
    /// Zero.
    pub pad: u8,
    /// Elements of the view, per dimension, outermost first.
    pub shape: [u32; MAX_DIMS],
    /// Elements from one to the next, per dimension.
    pub strides: [u32; MAX_DIMS],
}

impl Arg {
    /// Its dimensions: elements, and elements from one to the next.
    pub fn dims(&self) -> impl DoubleEndedIterator<Item = (u32, u32)> + ExactSizeIterator + Clone + '_ {
        self.shape.into_iter().zip(self.strides).take(usize::from(self.ndims).min(MAX_DIMS))
    }

    /// Bytes of the view, those of elements that occur twice counted twice; 0 of one without dimensions, `None` when that is
    /// no length.
    pub fn bytes(&self) -> Option<u64> {
        if self.ndims == 0 {
            return Some(0);
        }
        let element = u64::from(self.element.bytes()?);
        self.dims().try_fold(element, |bytes, (size, _)| bytes.checked_mul(size.into()))
    }

    /// Whether its bytes lie in a row.
    pub fn is_dense(&self) -> bool {
        let mut next = 1u64;
        self.dims().rev().all(|(size, stride)| {
            let fits = size == 1 || u64::from(stride) == next;
            next = next.saturating_mul(size.into());
            fits
        })
    }

    /// Where the view ends, in bytes from the start of its tensor; `None` when that is no length.
    pub fn end_bytes(&self) -> Option<u64> {
        let last = self.dims().try_fold(self.start_offset, |last, (size, stride)| {
            last.checked_add(u64::from(size.checked_sub(1)?) * u64::from(stride))
        })?;
        last.checked_add(1)?.checked_mul(self.element.bytes()?.into())
    }
}

/// Where a tensor is bound.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Binding {
    /// Device address.
    pub base: u64,
    /// Its length.
    pub size_bytes: u64,
}

const _: () = {
    assert!(size_of::<TableHead>() == 128 && size_of::<BindingsHead>() == 16);
    assert!(size_of::<Item>() == 40 && size_of::<Arg>() == 56 && size_of::<Binding>() == 16);
};

/// The parts of a table before they are bytes.
#[derive(Clone, Copy, Debug)]
pub struct TableParts<'a> {
    /// Where the programs of the engines begin; null for an engine without one.
    pub programs: [DevAddr; Engine::COUNT],
    /// Items of each engine, in program order.
    pub items: [&'a [Item]; Engine::COUNT],
    /// Arguments of all items.
    pub args: &'a [Arg],
    /// Dependencies of all items, packed.
    pub deps: &'a [u32],
    /// Tensors that bindings have to have.
    pub tensors: u32,
}

impl TableParts<'_> {
    /// The pieces of the table, in the order in which they stand one behind the other.
    pub fn pieces(&self) -> impl Iterator<Item = impl AsRef<[u8]>> {
        let head = TableHead {
            magic: TABLE_MAGIC,
            args: self.args.len() as u32,
            deps: self.deps.len() as u32,
            tensors: self.tensors,
            programs: self.programs.map(|program| program.0),
            items: self.items.map(|items| items.len() as u32),
            pad: [0; 13],
        };
        let items = self.items.into_iter().map(|items| Piece::Rest(items.as_bytes()));
        let rest = [Piece::Rest(self.args.as_bytes()), Piece::Rest(self.deps.as_bytes())];
        core::iter::once(Piece::Head(zerocopy::transmute!(head))).chain(items).chain(rest)
    }
}

enum Piece<'a> {
    Head([u8; size_of::<TableHead>()]),
    Rest(&'a [u8]),
}

impl AsRef<[u8]> for Piece<'_> {
    fn as_ref(&self) -> &[u8] {
        match self {
            Self::Head(bytes) => bytes,
            Self::Rest(bytes) => bytes,
        }
    }
}

/// Bytes of the head of bindings to the table at `table`, with `tensors` places behind it.
pub fn bindings_head(table: DevAddr, tensors: u32) -> [u8; 16] {
    zerocopy::transmute!(BindingsHead { magic: BINDINGS_MAGIC, tensors, table: table.0 })
}

/// Why an execution has no table that can be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum TasksError {
    /// The execution names none.
    None,
    /// Something of it lies outside memory.
    OutOfBounds,
    /// There is no table, or none for these bindings.
    BadHead,
    /// Memory cannot be reached.
    Fault(Fault),
}

impl From<Fault> for TasksError {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

/// The table of one execution, as the device reads it.
#[derive(Clone, Debug)]
pub struct TaskTable<M> {
    memory: M,
    at: DevAddr,
    head: TableHead,
    bindings: DevAddr,
}

impl<M: CopyMemory> TaskTable<M> {
    /// The table behind the bindings at `bindings`; both have to lie in `ram`.
    ///
    /// # Errors
    /// [`TasksError`] when there is none that can be read.
    pub fn open(memory: &M, ram: DeviceRange, bindings: DevAddr) -> Result<Self, TasksError> {
        if bindings.is_null() {
            return Err(TasksError::None);
        }
        let inside = |at: DevAddr, bytes: u64| {
            if ram.contains(at, bytes) { Ok(()) } else { Err(TasksError::OutOfBounds) }
        };
        inside(bindings, size_of::<BindingsHead>() as u64)?;
        let bound: BindingsHead = read(memory, bindings)?;
        let at = DevAddr(bound.table);
        if bound.magic != BINDINGS_MAGIC {
            return Err(TasksError::BadHead);
        }
        inside(at, size_of::<TableHead>() as u64)?;
        let table = Self { memory: memory.clone(), at, head: read(memory, at)?, bindings };
        if table.head.magic != TABLE_MAGIC || table.head.tensors != bound.tensors {
            return Err(TasksError::BadHead);
        }
        inside(at, table.deps_offset() + u64::from(table.head.deps) * size_of::<u32>() as u64)?;
        let places = u64::from(bound.tensors) * size_of::<Binding>() as u64;
        inside(bindings, size_of::<BindingsHead>() as u64 + places)?;
        Ok(table)
    }

    fn item_count(&self) -> u64 {
        self.head.items.iter().map(|&items| u64::from(items)).sum()
    }

    fn args_offset(&self) -> u64 {
        size_of::<TableHead>() as u64 + self.item_count() * size_of::<Item>() as u64
    }

    fn deps_offset(&self) -> u64 {
        self.args_offset() + u64::from(self.head.args) * size_of::<Arg>() as u64
    }

    /// Items of `engine`.
    pub fn items(&self, engine: Engine) -> u32 {
        self.head.items[engine.index()].min(MAX_ITEMS)
    }

    /// The place of the item whose instruction lies at `instruction`, if it is one of `engine`.
    pub fn place_of(&self, engine: Engine, instruction: DevAddr) -> Option<ItemPlace> {
        let offset = instruction.0.checked_sub(self.head.programs[engine.index()])?;
        let index = offset / super::INSTRUCTION_BYTES as u64;
        let is_item = offset.is_multiple_of(super::INSTRUCTION_BYTES as u64)
            && index < u64::from(self.items(engine))
            && self.head.programs[engine.index()] != 0;
        is_item.then_some(ItemPlace { engine, ordinal: index as u32 + 1 })
    }

    /// The item at `place`.
    pub fn item(&self, place: ItemPlace) -> Option<Item> {
        let index = place.ordinal.checked_sub(1).filter(|&index| index < self.items(place.engine))?;
        let before = self.head.items[..place.engine.index()].iter().map(|&items| u64::from(items));
        let index = before.sum::<u64>() + u64::from(index);
        self.read(size_of::<TableHead>() as u64 + index * size_of::<Item>() as u64)
    }

    /// Dependency `index` of `item`.
    pub fn dep(&self, item: &Item, index: u32) -> Option<ItemPlace> {
        let index = within(index, item.deps, item.first_dep, self.head.deps)?;
        ItemPlace::unpacked(self.read(self.deps_offset() + u64::from(index) * size_of::<u32>() as u64)?)
    }

    /// Argument `index` of `item`.
    pub fn arg(&self, item: &Item, index: u32) -> Option<Arg> {
        let index = within(index, item.args, item.first_arg, self.head.args)?;
        self.read(self.args_offset() + u64::from(index) * size_of::<Arg>() as u64)
    }

    /// Where the tensor of `arg` is bound.
    pub fn binding(&self, arg: &Arg) -> Option<Binding> {
        let offset = size_of::<BindingsHead>() as u64 + u64::from(arg.tensor) * size_of::<Binding>() as u64;
        let is_bound = arg.tensor < self.head.tensors;
        is_bound.then(|| read(&self.memory, self.bindings.offset(offset)).ok()).flatten()
    }

    fn read<T: FromBytes + IntoBytes>(&self, offset: u64) -> Option<T> {
        read(&self.memory, self.at.offset(offset)).ok()
    }
}

/// Number `index` of the `count` things from `first` on, if all of them are among the `all` that there are.
fn within(index: u32, count: u32, first: u32, all: u32) -> Option<u32> {
    let end = first.checked_add(count).filter(|&end| end <= all)?;
    first.checked_add(index).filter(|&at| at < end)
}

fn read<M: CopyMemory, T: FromBytes + IntoBytes>(memory: &M, at: DevAddr) -> Result<T, Fault> {
    let mut value = T::new_zeroed();
    memory.read_bytes(at, value.as_mut_bytes())?;
    Ok(value)
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;
    use crate::mem::{Line, Mapped, Slab};
    use crate::mmio::TpbId;

    const BASE: DevAddr = DevAddr(0x10_0000);
    const RAM: DeviceRange = DeviceRange { base: BASE, bytes: 2048 };
    const TABLE: DevAddr = DevAddr(0x10_0100);
    const BINDINGS: DevAddr = DevAddr(0x10_0040);
    const PROGRAM: DevAddr = DevAddr(0x77_0000);

    fn item(first_dep: u32, deps: u32, first_arg: u32, args: u32) -> Item {
        Item { chosen: 0b101, kernels: [7, -1, -1], blocks: 1, first_dep, deps, first_arg, args }
    }

    fn arg(tensor: u32, dims: &[(u32, u32)]) -> Arg {
        let (mut shape, mut strides) = ([0; MAX_DIMS], [0; MAX_DIMS]);
        for (place, &(size, stride)) in dims.iter().enumerate() {
            (shape[place], strides[place]) = (size, stride);
        }
        Arg {
            start_offset: 3,
            tensor,
            role: Role::INPUT,
            element: ElementType::named("float32").unwrap(),
            ndims: dims.len() as u8,
            pad: 0,
            shape,
            strides,
        }
    }

    /// A table of two items of ACT and one of SP, and bindings of one tensor.
    fn with_table(test: impl FnOnce(&Mapped<Slab<crate::mem::Lent<'_>>>)) {
        let mut lines = [Line::ZERO; 32];
        let memory = Mapped::new(Slab::over(&mut lines, BASE));
        let deps = [ItemPlace { engine: Engine::Act, ordinal: 1 }.packed(), 0xFF00_0001];
        let act = [item(0, 0, 0, 1), item(0, 1, 0, 0)];
        let sp = [item(0, 2, 0, 2)];
        let args = [arg(0, &[(4, 8), (2, 1)]), arg(1, &[(1, 9), (6, 1)])];
        let mut programs = [DevAddr::NULL; Engine::COUNT];
        (programs[Engine::Act.index()], programs[Engine::Sp.index()]) = (PROGRAM, PROGRAM.offset(0x1000));
        let items: [&[Item]; Engine::COUNT] = [&[], &act, &[], &[], &sp];
        let parts = TableParts { programs, items, args: &args, deps: &deps, tensors: 1 };
        let bytes: Vec<u8> = parts.pieces().flat_map(|piece| piece.as_ref().to_vec()).collect();
        memory.write_bytes(TABLE, &bytes).unwrap();
        let binding = Binding { base: 0x9000, size_bytes: 64 };
        memory.write_bytes(BINDINGS, &bindings_head(TABLE, 1)).unwrap();
        memory.write_bytes(BINDINGS.offset(16), binding.as_bytes()).unwrap();
        test(&memory);
    }

    #[test]
    fn what_the_host_wrote_is_read() {
        with_table(|memory| {
            let table = TaskTable::open(memory, RAM, BINDINGS).unwrap();
            assert_eq!(Engine::ALL.map(|engine| table.items(engine)), [0, 2, 0, 0, 1]);
            let second = table.place_of(Engine::Act, PROGRAM.offset(64)).unwrap();
            assert_eq!(second, ItemPlace { engine: Engine::Act, ordinal: 2 });
            let second = table.item(second).unwrap();
            assert_eq!(table.dep(&second, 0), Some(ItemPlace { engine: Engine::Act, ordinal: 1 }));
            let sp = table.item(ItemPlace { engine: Engine::Sp, ordinal: 1 }).unwrap();
            assert_eq!((sp.is_chosen(0), sp.is_chosen(1), sp.is_chosen(70)), (true, false, false));
            let args = [0, 1].map(|index| table.arg(&sp, index).unwrap());
            assert_eq!(args, [arg(0, &[(4, 8), (2, 1)]), arg(1, &[(1, 9), (6, 1)])]);
            assert_eq!(table.binding(&args[0]), Some(Binding { base: 0x9000, size_bytes: 64 }));
        });
    }

    #[test]
    fn what_is_not_there_is_refused() {
        with_table(|memory| {
            let table = TaskTable::open(memory, RAM, BINDINGS).unwrap();
            for at in [PROGRAM.offset(128), PROGRAM.offset(1), DevAddr(PROGRAM.0 - 64), DevAddr::NULL] {
                assert_eq!(table.place_of(Engine::Act, at), None, "{at}");
            }
            assert_eq!(table.place_of(Engine::Pe, DevAddr::NULL), None, "an engine without a program");
            for ordinal in [0, 3] {
                assert_eq!(table.item(ItemPlace { engine: Engine::Act, ordinal }), None);
            }
            let sp = table.item(ItemPlace { engine: Engine::Sp, ordinal: 1 }).unwrap();
            assert_eq!((table.dep(&sp, 1), table.dep(&sp, 2)), (None, None), "no engine, no such number");
            assert_eq!(table.arg(&sp, 2), None);
            assert_eq!(table.arg(&Item { first_arg: 1, ..sp }, 0), None, "they end behind the table");
            assert_eq!(table.binding(&arg(1, &[])), None);
        });
    }

    #[test]
    fn a_table_that_is_none_is_not_opened() {
        with_table(|memory| {
            let open = |ram, at| TaskTable::open(memory, ram, at).map(drop);
            assert_eq!(open(RAM, DevAddr::NULL), Err(TasksError::None));
            assert_eq!(open(RAM, TABLE), Err(TasksError::BadHead));
            assert_eq!(open(RAM, BASE.offset(2047)), Err(TasksError::OutOfBounds));
            let short = DeviceRange { bytes: 0x100 + 128 + 3 * 40 + 2 * 56 + 2 * 4 - 1, ..RAM };
            assert_eq!(open(short, BINDINGS), Err(TasksError::OutOfBounds));
            assert_eq!(open(DeviceRange { bytes: short.bytes + 1, ..RAM }, BINDINGS), Ok(()));
            memory.write_bytes(BINDINGS, &bindings_head(TABLE, 2)).unwrap();
            assert_eq!(open(RAM, BINDINGS), Err(TasksError::BadHead));
            memory.write_bytes(BINDINGS, &bindings_head(DevAddr(u64::MAX), 1)).unwrap();
            assert_eq!(open(RAM, BINDINGS), Err(TasksError::OutOfBounds));
        });
    }

    #[test]
    fn views_know_their_length_and_their_end() {
        let figures = |dims: &[(u32, u32)]| {
            let arg = arg(0, dims);
            (arg.bytes(), arg.end_bytes(), arg.is_dense())
        };
        assert_eq!(figures(&[(4, 8), (2, 1)]), (Some(32), Some(4 * (3 + 24 + 1 + 1)), false));
        assert_eq!(figures(&[(4, 2), (2, 1)]), (Some(32), Some(4 * 11), true));
        assert_eq!(figures(&[(1, 9), (6, 1)]), (Some(24), Some(4 * 9), true));
        assert_eq!(figures(&[(3, 0)]), (Some(12), Some(16), false));
        assert_eq!(figures(&[]).0, Some(0));
        assert_eq!(figures(&[(u32::MAX, 1); 4]).0, None);
        assert_eq!(figures(&[(0, 1)]), (Some(0), None, true));
        let odd = Arg { element: ElementType(200), ..arg(0, &[(1, 1)]) };
        assert_eq!((odd.bytes(), odd.end_bytes()), (None, None));
    }

    #[test]
    fn tasks_are_told_apart_by_core_item_and_execution() {
        let core = CoreIndex::of(TpbId::new(7).unwrap(), Engine::Sp);
        let task = TaskId::new(core, MAX_ITEMS, u32::MAX);
        assert_eq!((task.core(), task.ordinal(), task.execution()), (39, MAX_ITEMS, u32::MAX));
        assert_eq!(TaskId::new(core, 1, 2).0, 39 << 56 | 1 << 32 | 2);
        for (name, bytes) in [("float32", Some(4)), ("uint8", Some(1)), ("uint64", Some(8))] {
            let element = ElementType::named(name).unwrap();
            assert_eq!((element.name(), element.bytes()), (Some(name), bytes));
        }
        assert_eq!((ElementType::named("complex"), ElementType::BYTE.name()), (None, Some("uint8")));
    }
}
