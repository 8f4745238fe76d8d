//! A real model, whose instructions a device of the DMA side can't carry out.

use sluice_core::fmap::Direction;
use sluice_host::kbl::{Executability, UnitOptions};
use sluice_host::neff::{Neff, ReadOptions};

use crate::bench::Bench;
use crate::real_model;

#[test]
fn a_real_model_binds_patches_its_table_and_ends() {
    let Some(path) = real_model::path() else { return };
    let neff = Neff::open(&path, &ReadOptions::default()).unwrap();
    let bench = Bench::new(UnitOptions::default());
    let model = bench.load(&neff);
    let loaded = bench.unit.model(model).unwrap();
    let names = |direction| {
        let names = loaded.names(direction).into_iter();
        names.map(|wanted| (wanted.name, wanted.size_bytes)).collect::<Vec<_>>()
    };
    assert_eq!(names(Direction::Input), [("x".into(), 65_536), ("y".into(), 65_536)]);
    assert_eq!(names(Direction::Output), [("output0".into(), 32_768)]);
    assert!(loaded.engines().all(|engine| engine.executability == Executability::Opaque));
    assert_eq!((loaded.engines().count(), loaded.work_items().count()), (10, 10));

    let (mut inputs, outputs) =
        (bench.tensors(model, Direction::Input), bench.tensors(model, Direction::Output));
    for _ in 0..20 {
        let built = bench.unit.build(model, &inputs, &outputs).unwrap();
        bench.run(&built);
        let address = |name: &str| {
            let tensor = inputs.get(name).or_else(|| outputs.get(name));
            tensor.unwrap().at().0
        };
        let slots = bench.unit.patched_slots(&built).unwrap();
        for tpb in 0..2 {
            let rows: Vec<_> = (0..3)
                .filter_map(|row| {
                    let what = format!("TPB {tpb}: pointer table DGETable0, row {row}");
                    slots.iter().find(|slot| slot.what == what)
                })
                .map(|slot| slot.read_back(&*bench.device).unwrap())
                .collect();
            let mut bound = ["x", "y", "output0"].map(address);
            let mut found = rows.clone();
            bound.sort_unstable();
            found.sort_unstable();
            assert_eq!(found, bound, "TPB {tpb}");
        }
        inputs = bench.tensors(model, Direction::Input);
    }
}
