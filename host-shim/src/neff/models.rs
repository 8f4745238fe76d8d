//! The models that come with Sluice, as text; [`pack`](super::pack) makes containers of them.

/// Names of the built-in models.
pub const NAMES: [&str; 2] = ["gather", "pointers"];

/// The text of the built-in model of that name.
pub fn builtin(name: &str) -> Option<&'static str> {
    match name {
        "gather" => Some(include_str!("../../models/gather.toml")),
        "pointers" => Some(include_str!("../../models/pointers.toml")),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;
    use crate::neff::{Neff, Pattern, Program, ReadOptions, VarKind, Work, pack};

    fn model(name: &str) -> Neff {
        let bytes = pack(name, builtin(name).unwrap()).unwrap();
        Neff::parse(name, &bytes, &ReadOptions::default()).unwrap()
    }

    #[test]
    fn every_name_is_a_model() {
        for name in NAMES {
            assert_eq!(model(name).header.name, name);
        }
        assert_eq!(builtin("none"), None);
    }

    #[test]
    fn gather_moves_what_its_text_says() {
        let gather = model("gather");
        let blocks = || gather.programs.iter().flat_map(|p| &p.engines).flat_map(|engine| &engine.blocks);
        let transfers = || blocks().flat_map(|block| &block.copies).flat_map(|copy| copy.transfers());
        assert_eq!(transfers().map(|transfer| transfer.len_bytes).sum::<u64>(), 577_537);
        assert_eq!(blocks().map(|block| block.pairs).sum::<u32>(), 1039);
        assert_eq!(transfers().map(|transfer| transfer.len_bytes).max(), Some(131_072));
        assert!(gather.programs.iter().all(|program| program.queues.len() > 1));
        assert_eq!(gather.programs.len(), 2);
    }

    #[test]
    fn pointers_has_rows_and_cells_of_both_directions_and_of_scratch() {
        let pointers = model("pointers");
        let program = &pointers.programs[0];
        let kinds = |ids: &[sluice_core::fmap::VarId]| -> Vec<VarKind> {
            ids.iter().map(|&id| program.var(id).kind.clone()).collect()
        };
        let cells: Vec<_> = program
            .vars
            .iter()
            .filter_map(|var| match var.kind {
                VarKind::Pointer { target } => Some(target),
                _ => None,
            })
            .collect();
        assert_eq!(kinds(&cells), [VarKind::Input, VarKind::Output, VarKind::Temporary]);
        let VarKind::PointerTable { rows } = &program.var_named("all").unwrap().kind else { panic!() };
        assert_eq!(kinds(rows), [VarKind::Input, VarKind::Input, VarKind::Output, VarKind::Temporary]);
    }

    fn offsets(pattern: &Pattern) -> Vec<usize> {
        pattern.dims().iter().fold(vec![pattern.offset_bytes() as usize], |bases, dim| {
            bases
                .iter()
                .flat_map(|base| (0..dim.size).map(move |i| base + (i * dim.step_bytes) as usize))
                .collect()
        })
    }

    /// Runs the blocks of a program one at a time; `choice` picks among those that may start.
    fn outputs(program: &Program, mut choice: impl FnMut(usize) -> usize) -> HashMap<String, Vec<u8>> {
        let mut memory: Vec<Vec<u8>> = program
            .vars
            .iter()
            .map(|var| match &var.kind {
                VarKind::File { content } => content.to_vec(),
                VarKind::Input => {
                    (0..var.size_bytes).map(|i| (i / 7 * u64::from(var.id.0 + 3)) as u8).collect()
                }
                _ => vec![0xEE; var.size_bytes as usize],
            })
            .collect();
        let mut semaphores = HashMap::new();
        let mut next = [0; 5];
        loop {
            let ready: Vec<_> = program
                .engines
                .iter()
                .enumerate()
                .filter_map(|(at, engine)| match &engine.work {
                    Work::Blocks(runs) => Some((at, runs.get(next[at])?)),
                    _ => None,
                })
                .filter(|(_, run)| {
                    run.waits
                        .iter()
                        .all(|wait| semaphores.get(&wait.semaphore).copied().unwrap_or(0) >= wait.at_least)
                })
                .collect();
            let Some(&(at, run)) = ready.get(choice(ready.len())) else { break };
            next[at] += 1;
            let block = program.engines[at].blocks.iter().find(|block| block.id == run.block).unwrap();
            for copy in &block.copies {
                for (from, to) in offsets(copy.from_pattern()).into_iter().zip(offsets(copy.to_pattern())) {
                    memory[copy.to().0 as usize][to] = memory[copy.from().0 as usize][from];
                }
            }
            if let Some(signal) = run.signal {
                *semaphores.entry(signal).or_insert(0) += 1;
            }
        }
        program.outputs().map(|var| (var.name.clone(), memory[var.id.0 as usize].clone())).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn semaphores_make_the_outputs_independent_of_the_order(picks in prop::collection::vec(any::<usize>(), 16)) {
            for name in NAMES {
                for program in &model(name).programs {
                    let mut picks = picks.iter();
                    let picked = outputs(program, |ready| picks.next().map_or(0, |pick| pick % ready.max(1)));
                    prop_assert!(picked == outputs(program, |_| 0));
                }
            }
        }
    }

    #[test]
    fn outputs_are_written_completely_where_one_core_owns_them() {
        for (name, output) in [("gather", "own0"), ("gather", "own1"), ("pointers", "z")] {
            let model = model(name);
            let program = model.programs.iter().find(|program| program.var_named(output).is_some()).unwrap();
            let written: Vec<_> = program
                .engines
                .iter()
                .flat_map(|engine| &engine.blocks)
                .flat_map(|block| &block.copies)
                .filter(|copy| program.var(copy.to()).name == output)
                .flat_map(|copy| offsets(copy.to_pattern()))
                .collect();
            let distinct: std::collections::HashSet<_> = written.iter().collect();
            let size = program.var_named(output).unwrap().size_bytes as usize;
            assert_eq!((written.len(), distinct.len()), (size, size), "{output}");
        }
    }
}
