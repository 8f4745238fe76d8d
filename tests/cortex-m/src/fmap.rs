//! Name tables on the board: hashing and probing where `usize` has 32 bits.

use sluice_core::fmap::{
    Direction, FixedRoom, Full, InsertError, Miss, Name, TensorSet, VarEntry, VarId, VarMap,
};

use crate::board::Shared;
use crate::harness::{Failure, Outcome, Test, check, check_eq};

pub(crate) const TESTS: &[Test] = &[
    Test { name: "fmap: a full set still overwrites, and refuses one more name", run: full_set },
    Test { name: "fmap: names of one length, one byte apart, stay apart", run: near_names },
    Test { name: "fmap: a name has at most 255 bytes", run: long_names },
    Test { name: "fmap: variables join the sets by name and direction", run: join },
];

/// Handles wider than a word of this machine.
type Handle = u64;

const NAMES: usize = 24;

const fn handle(number: usize) -> Handle {
    (number as u64) << 33 | 5
}

/// A name that differs from all others in one byte, at a place of its own.
fn near_name(number: usize) -> [u8; 40] {
    let mut name = [b'x'; 40];
    name[number] = b'a';
    name
}

fn filled() -> Result<TensorSet<Handle, NAMES>, Failure> {
    let mut set = TensorSet::new();
    for number in 0..NAMES {
        check_eq!(set.insert(&near_name(number), handle(number)), Ok(None));
    }
    Ok(set)
}

fn full_set(_shared: &Shared) -> Outcome {
    let mut set = filled()?;
    check_eq!(set.len(), NAMES);
    check_eq!(set.insert(&near_name(7), handle(1_000)), Ok(Some(handle(7))));
    check_eq!(set.get(&near_name(7)), Some(handle(1_000)));
    let refused = set.insert(b"one more", handle(0));
    check!(matches!(refused, Err(InsertError::Full(Full { capacity: NAMES, count: NAMES }))));
    check_eq!(set.get(b"one more"), None);
    set.clear();
    check!(set.is_empty() && set.get(&near_name(7)).is_none());
    Ok(())
}

fn near_names(_shared: &Shared) -> Outcome {
    let set = filled()?;
    for number in 0..NAMES {
        check_eq!(set.get(&near_name(number)), Some(handle(number)));
    }
    // As long as the others, and as near to them as they are to each other.
    check_eq!(set.get(&[b'x'; 40]), None);
    check_eq!(set.get(&[b'x'; 39]), None);
    Ok(())
}

fn long_names(_shared: &Shared) -> Outcome {
    let bytes = [b'n'; 300];
    let mut set = TensorSet::<Handle, 4>::new();
    check_eq!(set.insert(&bytes[..255], 1), Ok(None));
    check_eq!(set.get(&bytes[..255]), Some(1));
    for length in [256, 300] {
        check_eq!(Name::new(&bytes[..length]).err().map(|error| error.len_bytes), Some(length));
        check!(set.insert(&bytes[..length], 2).is_err());
        check_eq!(set.get(&bytes[..length]), None);
    }
    Ok(())
}

fn join(_shared: &Shared) -> Outcome {
    let mut map = VarMap::<FixedRoom<VarEntry, 4>>::new();
    check_eq!(map.insert(VarId(0), b"x", Direction::Input), Ok(()));
    check_eq!(map.insert(VarId(9), b"x.out", Direction::Output), Ok(()));
    check_eq!(map.insert(VarId(0x7_ffff), b"y", Direction::Input), Ok(()));
    let (mut inputs, mut outputs) = (TensorSet::<Handle, 2>::new(), TensorSet::<Handle, 2>::new());
    check_eq!(inputs.insert(b"x", handle(1)), Ok(None));
    check_eq!(outputs.insert(b"x.out", handle(2)), Ok(None));
    // In the wrong set, where the join must not find it.
    check_eq!(outputs.insert(b"y", handle(3)), Ok(None));
    check_eq!(map.resolve(VarId(0), &inputs, &outputs).ok(), Some(handle(1)));
    check_eq!(map.resolve(VarId(9), &inputs, &outputs).ok(), Some(handle(2)));
    check!(matches!(map.resolve(VarId(0x7_ffff), &inputs, &outputs), Err(Miss::Tensor { .. })));
    check!(matches!(map.resolve(VarId(7), &inputs, &outputs), Err(Miss::Variable { .. })));
    Ok(())
}
