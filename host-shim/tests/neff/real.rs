//! A real compiled model.

use sluice_core::fmap::VarId;
use sluice_core::mmio::Engine;
use sluice_host::neff::{CarveOut, Neff, QueueKind, ReadOptions, Target, VarKind, Work};

use crate::real_model;

#[test]
fn real_model_says_what_is_known_of_it() {
    let Some(path) = real_model::path() else { return };
    let neff = Neff::open(&path, &ReadOptions { verify_hash: true, ..ReadOptions::default() }).unwrap();
    assert_eq!((neff.header.name.as_str(), neff.header.features), ("file.neff", 0x20_9C00));
    assert_eq!((neff.header.virtual_core_size, neff.header.cores_requested), (2, 1));
    assert_eq!(
        neff.programs.iter().map(|program| program.name.as_str()).collect::<Vec<_>>(),
        ["sg00", "sg01"]
    );
    for program in &neff.programs {
        assert_eq!((program.target, program.carve_out), (Target::Cayman, Some(CarveOut::EVENT_ACCELERATOR)));
        let tensors = |vars: &mut dyn Iterator<Item = &sluice_host::neff::Var>| {
            vars.map(|var| (var.name.clone(), var.size_bytes, var.dtype.clone().unwrap(), var.shape.clone()))
                .collect::<Vec<_>>()
        };
        let float16 = |name: &str, shape: [u64; 2]| {
            (name.to_owned(), 2 * shape[0] * shape[1], "float16".to_owned(), shape.to_vec())
        };
        assert_eq!(tensors(&mut program.inputs()), [float16("x", [128, 256]), float16("y", [256, 128])]);
        assert_eq!(tensors(&mut program.outputs()), [float16("output0", [128, 128])]);
        let table = program.var_named("DGETable0").unwrap();
        assert_eq!(table.kind, VarKind::PointerTable { rows: vec![VarId(1), VarId(2), VarId(3)] });
        let VarKind::File { content } = &program.var_named("identity_82_sg0000").unwrap().kind else {
            panic!("not a constant");
        };
        assert_eq!(content.len(), 32_768);
        assert!(program.queues.iter().all(|queue| queue.kind == QueueKind::Dynamic && queue.ring.is_none()));
        assert_eq!(
            program.queues.iter().map(|queue| queue.owner).collect::<Vec<_>>(),
            [Engine::Pool, Engine::Sp]
        );
        assert!(program.engines.iter().all(|engine| engine.work == Work::Opaque && engine.blocks.is_empty()));
        let counts = program.engines.iter().map(|engine| engine.instruction_count());
        assert_eq!(counts.collect::<Vec<_>>(), [12, 5, 7, 2, 3]);
    }
}
