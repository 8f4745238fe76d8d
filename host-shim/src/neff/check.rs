//! The rules of a program that a load relies on, looked at once more.
//!
//! The reader makes no program that breaks them. Its fields are open, though, so that whoever has a program can change it; a
//! number that is wrong then has to be an error of the load, and not a panic or bytes in the wrong place.

use std::collections::HashSet;

use sluice_core::exec::INSTRUCTION_BYTES;
use sluice_core::fmap::VarId;
use sluice_core::mmio::QueueId;

use super::error::Quoted;
use super::program::{POINTER_BYTES, Program, Var, VarKind};

/// A rule that a program breaks.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{what}: {rule}")]
pub struct ProgramFault {
    /// Variable, queue or engine.
    pub what: String,
    /// What is wrong with it.
    pub rule: String,
}

fn fault(what: impl ToString, rule: impl ToString) -> ProgramFault {
    ProgramFault { what: what.to_string(), rule: rule.to_string() }
}

impl Program {
    /// Looks at every rule.
    ///
    /// # Errors
    /// The first one that is broken.
    pub(crate) fn check(&self) -> Result<(), ProgramFault> {
        let mut names = HashSet::with_capacity(self.vars.len());
        for (place, var) in self.vars.iter().enumerate() {
            let broken = |rule: String| fault(format_args!("variable {}", Quoted(&var.name)), rule);
            if var.id.0 as usize != place {
                return Err(broken(format!("has number {} and place {place}", var.id)));
            }
            if !names.insert(&*var.name) {
                return Err(broken("is there twice".into()));
            }
            self.check_var(var).map_err(broken)?;
        }
        self.check_queues()?;
        self.check_engines()
    }

    fn check_var(&self, var: &Var) -> Result<(), String> {
        let &Var { size_bytes, alignment_bytes, .. } = var;
        if !alignment_bytes.is_power_of_two() {
            return Err(format!("is aligned to {alignment_bytes}, want a power of two"));
        }
        let need_bytes = match &var.kind {
            VarKind::File { content } => content.len() as u64,
            VarKind::Pointer { target } => {
                self.check_number(*target)?;
                POINTER_BYTES
            }
            VarKind::PointerTable { rows } => {
                rows.iter().try_for_each(|row| self.check_number(*row))?;
                POINTER_BYTES * rows.len() as u64
            }
            VarKind::List { ids } => {
                ids.iter().try_for_each(|id| self.check_number(*id))?;
                0
            }
            _ => 0,
        };
        if need_bytes > size_bytes {
            return Err(format!("has {size_bytes} bytes, its content needs {need_bytes}"));
        }
        Ok(())
    }

    fn check_number(&self, id: VarId) -> Result<(), String> {
        match self.vars.get(id.0 as usize) {
            Some(_) => Ok(()),
            None => Err(format!("refers to variable {id}, there are {}", self.vars.len())),
        }
    }

    fn check_queues(&self) -> Result<(), ProgramFault> {
        let mut rings = HashSet::new();
        for queue in &self.queues {
            let Some(ring) = queue.ring else { continue };
            let broken = |rule: String| fault(format_args!("queue {}", Quoted(&queue.name)), rule);
            if ring >= QueueId::PROLOGUE {
                return Err(broken(format!(
                    "has ring {ring}, a model has those below {}",
                    QueueId::PROLOGUE
                )));
            }
            if !rings.insert(ring) {
                return Err(broken(format!("has ring {ring}, as another has")));
            }
        }
        Ok(())
    }

    fn check_engines(&self) -> Result<(), ProgramFault> {
        for (place, engine) in self.engines.iter().enumerate() {
            let broken = |rule: String| fault(format_args!("engine {}", engine.engine), rule);
            if engine.engine.index() != place {
                return Err(broken(format!("has place {place}, want {}", engine.engine.index())));
            }
            let bytes = engine.instructions.len();
            if !bytes.is_multiple_of(INSTRUCTION_BYTES) {
                return Err(broken(format!("has {bytes} bytes of instructions of {INSTRUCTION_BYTES} each")));
            }
            for block in &engine.blocks {
                if block.queue >= self.queues.len() {
                    let (id, queue, queues) = (block.id, block.queue, self.queues.len());
                    return Err(broken(format!("block {id} is for queue {queue}, there are {queues}")));
                }
                let vars = block.copies.iter().flat_map(|copy| [copy.from(), copy.to()]);
                for var in vars {
                    self.check_number(var).map_err(|rule| broken(format!("block {} {rule}", block.id)))?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::neff::testing::Container;

    type Edit = fn(&mut Program);

    #[test]
    fn whoever_breaks_a_rule_is_told_which() {
        let small = Container::small().parse().unwrap().programs.remove(0);
        assert_eq!(small.check(), Ok(()));
        let broken: [(Edit, &str); 13] = [
            (|all| all.vars[1].id = VarId(9), "variable `y`: has number 9 and place 1"),
            (|all| all.vars[1].name = "x".into(), "variable `x`: is there twice"),
            (|all| all.vars[0].alignment_bytes = 0, "variable `x`: is aligned to 0, want a power of two"),
            (|all| all.vars[3].size_bytes = 4, "variable `k`: has 4 bytes, its content needs 5"),
            (
                |all| all.vars[5].kind = VarKind::Pointer { target: VarId(7) },
                "variable `at_x`: refers to variable 7, there are 7",
            ),
            (|all| all.vars[5].size_bytes = 7, "variable `at_x`: has 7 bytes, its content needs 8"),
            (
                |all| all.vars[6].kind = VarKind::PointerTable { rows: vec![VarId(0), VarId(8)] },
                "variable `all`: refers to variable 8, there are 7",
            ),
            (|all| all.vars[6].size_bytes = 15, "variable `all`: has 15 bytes, its content needs 16"),
            (
                |all| all.queues[0].ring = Some(QueueId::EXEC),
                "queue `q_dyn`: has ring 15, a model has those below 14",
            ),
            (|all| all.queues[1].ring = all.queues[2].ring, "queue `q_out`: has ring 1, as another has"),
            (|all| all.engines.swap(0, 1), "engine ACT: has place 0, want 1"),
            (
                |all| all.engines[2].instructions = vec![0; 65].into(),
                "engine POOL: has 65 bytes of instructions of 64 each",
            ),
            (|all| all.engines[2].blocks[0].queue = 3, "engine POOL: block 0 is for queue 3, there are 3"),
        ];
        for (breaks, text) in broken {
            let mut program = small.clone();
            breaks(&mut program);
            assert_eq!(program.check().unwrap_err().to_string(), text);
        }
        let mut short = small;
        short.vars.truncate(1);
        assert_eq!(
            short.check().unwrap_err().to_string(),
            "engine POOL: block 0 refers to variable 2, there are 1"
        );
    }
}
