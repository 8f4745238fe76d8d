//! Where a program's variables lie in device memory.
//!
//! ```text
//!   WEIGHT                file variables, contents written
//!   SCRATCHPAD_NOT_SHARED range of the virtual variables, then temporaries
//!   SCRATCHPAD            range of the virtual variables that all programs of a model share
//!   GENERIC               pointer cells, pointer tables, and three words of our own:
//!                         padding, source and destination of the execution's sequence number
//! ```
//!
//! One block per tag and program. Inputs and outputs have no place until tensors are bound; state buffers and lists never
//! have one in device memory.

use std::sync::Arc;

use sluice_core::dma::{AddrWord, TemplateAddr};
use sluice_core::fmap::VarId;
use sluice_core::mem::DevAddr;

use super::error::LoadError;
use super::sink::Sink;
use crate::device::heap::{DeviceBlock, Heap, UsageTag};
use crate::neff::{Backing, POINTER_BYTES, Program, Var, VarKind};

/// A pointer in device memory whose target is bound per execution.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct IoPointer {
    /// Name of the pointer or pointer table it belongs to.
    pub(super) owner: Arc<str>,
    /// Its row, if that is a table.
    pub(super) row: Option<u32>,
    /// Where it lies.
    pub(super) at: DevAddr,
    /// The input or output it is to point at.
    pub(super) target: VarId,
}

/// A range in which variables get their places one after another.
#[derive(Debug)]
struct Arena {
    tag: UsageTag,
    bytes: u64,
    align_bytes: u64,
}

impl Arena {
    fn new(tag: UsageTag) -> Self {
        Self { tag, bytes: 0, align_bytes: 1 }
    }

    /// Room for `bytes` bytes, and where it is in the range; `None` if that leaves 64 bits.
    fn reserve(&mut self, bytes: u64, align_bytes: u64) -> Option<u64> {
        let offset = self.bytes.checked_next_multiple_of(align_bytes)?;
        self.cover(offset, bytes, align_bytes)?;
        Some(offset)
    }

    /// Makes the range reach over `bytes` bytes at `offset`.
    fn cover(&mut self, offset: u64, bytes: u64, align_bytes: u64) -> Option<()> {
        self.bytes = self.bytes.max(offset.checked_add(bytes)?);
        self.align_bytes = self.align_bytes.max(align_bytes);
        Some(())
    }

    fn alloc(&self, heap: &Heap) -> Result<Option<DeviceBlock>, LoadError> {
        if self.bytes == 0 {
            return Ok(None);
        }
        Ok(Some(heap.alloc(self.bytes, self.align_bytes, self.tag)?))
    }
}

/// The scratchpad that all programs of a model share; `None` if they need none.
pub(super) fn shared_scratchpad(programs: &[Program], heap: &Heap) -> Result<Option<DeviceBlock>, LoadError> {
    let mut arena = Arena::new(UsageTag::Scratchpad);
    for var in programs.iter().flat_map(|program| &program.vars) {
        if let VarKind::Virtual { offset_bytes, backing } = var.kind
            && is_shared(backing)
        {
            arena.cover(offset_bytes, var.size_bytes, var.alignment_bytes).ok_or_else(|| too_large(var))?;
        }
    }
    arena.alloc(heap)
}

/// Sharded scratchpads are parts of the shared one; the main buffer of a program is its own.
fn is_shared(backing: Backing) -> bool {
    match backing {
        Backing::Shared | Backing::Sharded => true,
        Backing::Local | Backing::Main => false,
    }
}

fn too_large(var: &Var) -> LoadError {
    LoadError::TooLarge { name: var.name.clone(), bytes: var.size_bytes, align_bytes: var.alignment_bytes }
}

/// What descriptors need to know of a variable, in little memory: transfers come back to variables in any order.
#[derive(Clone, Copy, Debug)]
struct Place {
    size_bytes: u64,
    lies: Lies,
}

#[derive(Clone, Copy, Debug)]
enum Lies {
    /// Bound per execution.
    InTensor,
    /// Not in device memory.
    Nowhere,
    /// Placed at load.
    At(DevAddr),
}

/// Places of one program's variables, and the memory they lie in.
#[derive(Debug)]
pub(super) struct Places {
    places: Vec<Place>,
    pointers: Vec<IoPointer>,
    words: DevAddr,
    _blocks: Vec<DeviceBlock>,
}

/// Which range a variable was given room in, and where in it.
enum Room {
    None(Lies),
    Weights(u64),
    Scratch(u64),
    Shared(u64),
    Cells(u64),
}

impl Places {
    /// Words of our own, on a line of its own.
    const WORDS_BYTES: u64 = 64;

    /// Gives every variable of `program` its place.
    pub(super) fn new(
        program: &Program,
        heap: &Heap,
        shared: Option<&DeviceBlock>,
    ) -> Result<Self, LoadError> {
        let mut weights = Arena::new(UsageTag::Weight);
        let mut scratch = Arena::new(UsageTag::ScratchpadNotShared);
        let mut cells = Arena::new(UsageTag::Generic);
        for var in &program.vars {
            if let VarKind::Virtual { offset_bytes, backing } = var.kind
                && !is_shared(backing)
            {
                scratch
                    .cover(offset_bytes, var.size_bytes, var.alignment_bytes)
                    .ok_or_else(|| too_large(var))?;
            }
        }
        let words = cells.reserve(Self::WORDS_BYTES, Self::WORDS_BYTES);
        let rooms = program.vars.iter().map(|var| {
            let (bytes, align_bytes) = (var.size_bytes, var.alignment_bytes);
            let room = match var.kind {
                VarKind::Input | VarKind::Output => Some(Room::None(Lies::InTensor)),
                VarKind::StateBuffer | VarKind::List { .. } => Some(Room::None(Lies::Nowhere)),
                VarKind::File { .. } => weights.reserve(bytes, align_bytes).map(Room::Weights),
                VarKind::Temporary => scratch.reserve(bytes, align_bytes).map(Room::Scratch),
                VarKind::Virtual { offset_bytes, backing } if is_shared(backing) => {
                    Some(Room::Shared(offset_bytes))
                }
                VarKind::Virtual { offset_bytes, .. } => Some(Room::Scratch(offset_bytes)),
                VarKind::Pointer { .. } | VarKind::PointerTable { .. } => {
                    cells.reserve(bytes, align_bytes.max(POINTER_BYTES)).map(Room::Cells)
                }
            };
            room.ok_or_else(|| too_large(var))
        });
        let rooms = rooms.collect::<Result<Vec<Room>, LoadError>>()?;
        let (weights, scratch, cells) = (weights.alloc(heap)?, scratch.alloc(heap)?, cells.alloc(heap)?);
        let base = |block: &Option<DeviceBlock>| block.as_ref().map_or(DevAddr::NULL, DeviceBlock::at);
        let places = rooms.into_iter().zip(&program.vars).map(|(room, var)| {
            let lies = match room {
                Room::None(lies) => lies,
                Room::Weights(offset) => Lies::At(base(&weights).offset(offset)),
                Room::Scratch(offset) => Lies::At(base(&scratch).offset(offset)),
                Room::Shared(offset) => {
                    Lies::At(shared.map_or(DevAddr::NULL, DeviceBlock::at).offset(offset))
                }
                Room::Cells(offset) => Lies::At(base(&cells).offset(offset)),
            };
            Place { size_bytes: var.size_bytes, lies }
        });
        let mut all = Self {
            places: places.collect(),
            pointers: Vec::new(),
            words: base(&cells).offset(words.unwrap_or(0)),
            _blocks: [weights, scratch, cells].into_iter().flatten().collect(),
        };
        all.pointers = all.io_pointers(program);
        Ok(all)
    }

    /// Writes file contents and the pointers whose targets lie fast.
    pub(super) fn write(&self, program: &Program, sink: &impl Sink) -> Result<(), LoadError> {
        sink.put(self.words, &[0; Self::WORDS_BYTES as usize])?;
        let write = |at, bytes: &[u8]| if bytes.is_empty() { Ok(()) } else { sink.put(at, bytes) };
        for (var, place) in program.vars.iter().zip(&self.places) {
            let Lies::At(base) = place.lies else { continue };
            match &var.kind {
                VarKind::File { content } => write(base, content)?,
                VarKind::Pointer { target } => write(base, &self.pointer_to(program, *target)?)?,
                VarKind::PointerTable { rows } => {
                    let rows = rows.iter().map(|&row| self.pointer_to(program, row));
                    write(base, &rows.collect::<Result<Vec<_>, _>>()?.concat())?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// The bytes of a pointer to `target`; null for a tensor, which is put in per execution.
    fn pointer_to(
        &self,
        program: &Program,
        target: VarId,
    ) -> Result<[u8; POINTER_BYTES as usize], LoadError> {
        match self.places[target.0 as usize].lies {
            Lies::InTensor => Ok([0; POINTER_BYTES as usize]),
            Lies::At(base) => Ok(base.0.to_le_bytes()),
            Lies::Nowhere => Err(LoadError::NotStaged { name: program.var(target).name.clone() }),
        }
    }

    fn io_pointers(&self, program: &Program) -> Vec<IoPointer> {
        let is_io = |target: &VarId| matches!(self.places[target.0 as usize].lies, Lies::InTensor);
        let mut found = Vec::new();
        for (var, place) in program.vars.iter().zip(&self.places) {
            let Lies::At(base) = place.lies else { continue };
            match &var.kind {
                VarKind::Pointer { target } if is_io(target) => {
                    let owner = Arc::from(&*var.name);
                    found.push(IoPointer { owner, row: None, at: base, target: *target });
                }
                VarKind::PointerTable { rows } => {
                    let owner: Arc<str> = Arc::from(&*var.name);
                    found.extend(rows.iter().enumerate().filter(|(_, row)| is_io(row)).map(
                        |(row, &target)| {
                            let at = base.offset(POINTER_BYTES * row as u64);
                            IoPointer { owner: Arc::clone(&owner), row: Some(row as u32), at, target }
                        },
                    ));
                }
                _ => {}
            }
        }
        found
    }

    /// The pointers that executions patch: cells, then table rows, each in the order of the variables.
    pub(super) fn pointers(&self) -> impl Iterator<Item = &IoPointer> {
        let cells = self.pointers.iter().filter(|pointer| pointer.row.is_none());
        cells.chain(self.pointers.iter().filter(|pointer| pointer.row.is_some()))
    }

    /// What a descriptor says for `bytes` bytes at `offset_bytes` of `var`: symbolic for a tensor, final otherwise.
    pub(super) fn address(
        &self,
        program: &Program,
        var: VarId,
        offset_bytes: u64,
        bytes: u64,
    ) -> Result<AddrWord, LoadError> {
        let Place { size_bytes, lies } = self.places[var.0 as usize];
        let name = || program.var(var).name.clone();
        if offset_bytes.checked_add(bytes).is_none_or(|end| end > size_bytes) {
            return Err(LoadError::OutsideVariable { name: name(), offset_bytes, bytes, size_bytes });
        }
        match lies {
            Lies::InTensor => Ok(TemplateAddr::new(var, offset_bytes)?.into()),
            Lies::At(base) => Ok(base.offset(offset_bytes).into()),
            Lies::Nowhere => Err(LoadError::NotStaged { name: name() }),
        }
    }

    /// The word that padding copies onto itself.
    pub(super) fn padding(&self) -> DevAddr {
        self.words
    }

    /// The word that the exec ring sets to an execution's sequence number.
    pub(super) fn sequence_source(&self) -> DevAddr {
        self.words.offset(4)
    }

    /// The word that the prologue queue copies the sequence number to.
    pub(super) fn sequence_destination(&self) -> DevAddr {
        self.words.offset(8)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use sluice_core::dma::Location;

    use super::super::mock::{MockDevice, read};
    use super::*;
    use crate::device::Device;

    const MODEL: &str = r#"
[model]
name = "places"
target = "cayman"

[[tpb]]
var = [
  { name = "x", type = "input", size = 64 },
  { name = "y", type = "output", size = 64 },
  { name = "sb", type = "state-buffer" },
  { name = "low", type = "virtual", offset = 0, size = 100 },
  { name = "over", type = "virtual", offset = 50, size = 300 },
  { name = "page", type = "temporary", size = 5, alignment = 4096 },
  { name = "both", type = "virtual", offset = 128, size = 64, backing = "shared" },
  { name = "ones", type = "file", size = 200, repeat = "01" },
  { name = "twos", type = "file", size = 3, repeat = "02" },
  { name = "at_ones", type = "pointer", to = "ones" },
  { name = "table", type = "dge-table", rows = ["twos", "x", "at_ones"] },
]

[[tpb]]
var = [
  { name = "y", type = "output", size = 64 },
  { name = "both", type = "virtual", offset = 128, size = 64, backing = "shared" },
]
"#;

    fn final_address(places: &Places, program: &Program, name: &str) -> DevAddr {
        let var = program.var_named(name).unwrap();
        match places.address(program, var.id, 0, var.size_bytes).unwrap().locate().unwrap() {
            Location::Device(at) => at,
            Location::Symbolic(_) => panic!("{name} is symbolic"),
        }
    }

    #[test]
    fn variables_lie_apart_unless_they_are_meant_to_overlap() {
        let (neff, device) = (read("places", MODEL), MockDevice::new(2));
        let heap = device.heap();
        let shared = shared_scratchpad(&neff.programs, &heap).unwrap().unwrap();
        let [first, second] = [0, 1].map(|tpb| &neff.programs[tpb]);
        let places = Places::new(first, &heap, Some(&shared)).unwrap();
        places.write(first, &*device).unwrap();
        let at = |name| final_address(&places, first, name);

        assert_eq!(at("over").0, at("low").0 + 50);
        assert!(at("page").0.is_multiple_of(4096));
        let mut ends: BTreeMap<u64, u64> = BTreeMap::new();
        for name in ["low", "page", "both", "ones", "twos", "at_ones", "table"] {
            // `over` begins inside `low` and ends where the range of virtual variables does.
            let bytes = if name == "low" { 350 } else { first.var_named(name).unwrap().size_bytes };
            ends.insert(at(name).0, at(name).0 + bytes);
        }
        assert!(ends.values().zip(ends.keys().skip(1)).all(|(end, next)| end <= next), "{ends:x?}");

        let other = Places::new(second, &heap, Some(&shared)).unwrap();
        assert_eq!(final_address(&other, second, "both"), at("both"));

        let bytes = |at: DevAddr, count| {
            let mut bytes = vec![0; count];
            device.read(at, &mut bytes).unwrap();
            bytes
        };
        assert_eq!(bytes(at("ones"), 200), [1; 200]);
        assert_eq!(bytes(at("at_ones"), 8), at("ones").0.to_le_bytes());
        let rows = [at("twos").0, 0, at("at_ones").0].map(u64::to_le_bytes).concat();
        assert_eq!(bytes(at("table"), 24), rows);
        let patched: Vec<_> = places.pointers().map(|pointer| (&*pointer.owner, pointer.row)).collect();
        assert_eq!(patched, [("table", Some(1))]);
    }

    #[test]
    fn what_has_no_place_or_leaves_its_variable_is_refused() {
        let (neff, device) = (read("places", MODEL), MockDevice::new(2));
        let (heap, program) = (device.heap(), &neff.programs[0]);
        let shared = shared_scratchpad(&neff.programs, &heap).unwrap();
        let places = Places::new(program, &heap, shared.as_ref()).unwrap();
        let address = |name: &str, offset, bytes| {
            places.address(program, program.var_named(name).unwrap().id, offset, bytes)
        };
        let error = address("sb", 0, 0).unwrap_err();
        assert_eq!(error.to_string(), "Variable sb is not staged in HBM");
        let error = address("low", 90, 11).unwrap_err();
        assert_eq!(error.to_string(), "11 bytes at offset 90 are not inside variable `low` of 100 bytes");
        assert!(address("low", u64::MAX, 2).is_err() && address("low", 90, 10).is_ok());
        assert!(matches!(address("x", 8, 8).unwrap().locate(), Ok(Location::Symbolic(_))));
    }

    #[test]
    fn ranges_that_leave_the_address_space_are_refused() {
        let mut neff = read("places", MODEL);
        let heap = MockDevice::new(1).heap();
        let page = neff.programs[0].vars.iter_mut().find(|var| var.name == "page").unwrap();
        page.size_bytes = u64::MAX - 64;
        let error = Places::new(&neff.programs[0], &heap, None).unwrap_err();
        assert!(matches!(&error, LoadError::TooLarge { name, .. } if name == "page"), "{error}");
    }
}
