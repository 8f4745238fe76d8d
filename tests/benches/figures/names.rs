//! Looking a name up: the fixed-capacity tables of `core` beside a growing hash map.

use std::hint::black_box;

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use sluice_core::fmap::FixedTable;

use crate::Figure;
use crate::cores::{Cores, pin};
use crate::windows::{Effort, best_ns};

const NAME_BYTES: usize = 32;

/// A name as compilers make them: a long common beginning, and what tells it apart at the end.
pub(crate) fn name(number: usize) -> [u8; NAME_BYTES] {
    let text = format!("model/decoder/layer_{number:05}/weight");
    let mut name = [0; NAME_BYTES];
    name.copy_from_slice(text.as_bytes());
    name
}

/// `names` in an order that neither table was filled in.
fn shuffled(names: usize) -> Vec<[u8; NAME_BYTES]> {
    // Any odd step visits all of a power of two.
    (0..names).map(|place| name(place.wrapping_mul(0x9E37_79B1) % names)).collect()
}

/// Nanoseconds per hit in a table of `NAMES` names.
pub(crate) fn lookup<const NAMES: usize>(effort: Effort, cores: &Cores) -> anyhow::Result<Vec<Figure>> {
    pin(cores.one()?)?;
    let mut table = Box::new(FixedTable::<u32, NAMES>::new());
    let mut map = HashMap::with_capacity_and_hasher(NAMES, FixedState::default());
    for number in 0..NAMES {
        let key = name(number);
        table.insert(&key, number as u32)?;
        map.insert(Box::<[u8]>::from(key), number as u32);
    }
    let asked = shuffled(NAMES);
    let (baseline, value) = best_ns(
        effort,
        |rounds| {
            for name in (0..rounds).flat_map(|_| &asked) {
                black_box(map.get(black_box(&name[..])));
            }
        },
        |rounds| {
            for name in (0..rounds).flat_map(|_| &asked) {
                black_box(table.get(black_box(&name[..])));
            }
        },
    );
    let figure = match NAMES {
        64 => "name_lookup_64",
        _ => "name_lookup_512",
    };
    // A round asks for every name.
    let [value, baseline] = [value, baseline].map(|round_ns| round_ns / NAMES as f64);
    Ok(vec![Figure { name: figure, unit: "ns", value, baseline: ("hashbrown_foldhash", baseline) }])
}
