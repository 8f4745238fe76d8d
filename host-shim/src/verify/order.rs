//! Which runs of blocks are over before which begin, however engines get on.
//!
//! ```text
//!   pool   p0 ──► p1, signals s ───┐
//!   sp     s0 ──► s1               └──► s2, waits for s        p0 and p1 come before s2; nothing orders p1 and s1
//! ```
//!
//! An engine runs its blocks one after the other. A wait for a semaphore to reach `n` ends behind those signals without
//! which it can't get so far: as many of an engine's as are left once all others have signalled as often as they can
//! before the wait ends.

use sluice_core::exec::{RunBlock, SemaphoreWait};
use sluice_core::mmio::{Engine, SemaphoreId};

use crate::neff::{Program, Work};

/// How often the order is refined at most. It is not complete then, but nothing in it is wrong.
const MAX_PASSES: usize = 8;

/// A run of a block: its engine, and its place among the runs of that engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Run {
    pub(super) engine: Engine,
    pub(super) index: usize,
}

/// The runs of one engine; none of an engine whose program is not ours.
pub(super) fn runs(program: &Program, engine: Engine) -> &[RunBlock] {
    match &program.engines[engine.index()].work {
        Work::Blocks(runs) => runs,
        Work::Idle | Work::Opaque => &[],
    }
}

/// All runs in an order that the semaphores allow. That every block gets its turn is a promise of the container's reader.
pub(super) fn schedule(program: &Program) -> Vec<Run> {
    let mut semaphores = [0u32; SemaphoreId::COUNT as usize];
    let mut next = [0; Engine::COUNT];
    let mut order = Vec::new();
    loop {
        let known = order.len();
        for engine in Engine::ALL {
            let index = &mut next[engine.index()];
            while let Some(run) = runs(program, engine).get(*index) {
                let reached =
                    |wait: &SemaphoreWait| semaphores[wait.semaphore.get() as usize] >= wait.at_least;
                if !run.waits.iter().all(reached) {
                    break;
                }
                if let Some(signal) = run.signal {
                    semaphores[signal.get() as usize] += 1;
                }
                order.push(Run { engine, index: *index });
                *index += 1;
            }
        }
        if order.len() == known {
            return order;
        }
    }
}

/// How many runs of each engine are over.
type Over = [usize; Engine::COUNT];

/// What is over before each run of a program begins.
#[derive(Debug)]
pub(super) struct Order([Vec<Over>; Engine::COUNT]);

impl Order {
    pub(super) fn of(program: &Program, schedule: &[Run]) -> Self {
        let signals = Signals::of(program);
        let mut order = Self(Engine::ALL.map(|engine| vec![Over::default(); runs(program, engine).len()]));
        for _ in 0..MAX_PASSES {
            let mut changed = false;
            for &run in schedule {
                let over = order.look(program, &signals, run);
                let known = &mut order.0[run.engine.index()][run.index];
                changed |= *known != over;
                *known = over;
            }
            if !changed {
                break;
            }
        }
        order
    }

    /// Whether `first` is over whenever `then` begins.
    pub(super) fn is_before(&self, first: Run, then: Run) -> bool {
        self.over(then)[first.engine.index()] > first.index
    }

    fn over(&self, run: Run) -> &Over {
        &self.0[run.engine.index()][run.index]
    }

    /// What is over before `run` begins, by what is known of the others.
    fn look(&self, program: &Program, signals: &Signals, run: Run) -> Over {
        let mut over = *self.over(run);
        let join = |over: &mut Over, first: Run| {
            for (over, known) in over.iter_mut().zip(self.over(first)) {
                *over = (*over).max(*known);
            }
            let own = &mut over[first.engine.index()];
            *own = (*own).max(first.index + 1);
        };
        if let Some(index) = run.index.checked_sub(1) {
            join(&mut over, Run { index, ..run });
        }
        for wait in &runs(program, run.engine)[run.index].waits {
            let of = Engine::ALL.map(|engine| signals.of_engine(engine, wait.semaphore));
            let most = Engine::ALL.map(|engine| self.most_before(of[engine.index()], engine, run));
            let all: usize = most.iter().sum();
            for engine in Engine::ALL {
                let needed = (wait.at_least as usize).saturating_sub(all - most[engine.index()]);
                if let Some(&index) = needed.checked_sub(1).and_then(|last| of[engine.index()].get(last)) {
                    join(&mut over, Run { engine, index });
                }
            }
        }
        over
    }

    /// How many of these runs of `engine` can be over when `run` begins.
    fn most_before(&self, signalling: &[usize], engine: Engine, run: Run) -> usize {
        let after = |index: usize| match engine == run.engine {
            true => index >= run.index,
            false => self.is_before(run, Run { engine, index }),
        };
        signalling.partition_point(|&index| !after(index))
    }
}

/// Which runs of each engine signal each semaphore, in order.
struct Signals(Vec<[Vec<usize>; Engine::COUNT]>);

impl Signals {
    fn of(program: &Program) -> Self {
        let mut signals = vec![<[Vec<usize>; Engine::COUNT]>::default(); SemaphoreId::COUNT as usize];
        for engine in Engine::ALL {
            for (index, run) in runs(program, engine).iter().enumerate() {
                if let Some(semaphore) = run.signal {
                    signals[semaphore.get() as usize][engine.index()].push(index);
                }
            }
        }
        Self(signals)
    }

    fn of_engine(&self, engine: Engine, semaphore: SemaphoreId) -> &[usize] {
        &self.0[semaphore.get() as usize][engine.index()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::neff::{Neff, ReadOptions, pack};

    /// A block on the pool engine (`p`), the vector engine (`v`) or the synchronisation engine (`s`), what it waits for and
    /// what it signals.
    type Block<'a> = (char, &'a [(u32, u32)], Option<u32>);

    fn program(blocks: &[Block<'_>]) -> Program {
        let blocks = blocks.iter().map(|(queue, waits, signal)| {
            let waits = waits.iter().map(|(semaphore, least)| {
                format!("{{ semaphore = {semaphore}, at_least = {least} }}, ")
            });
            let signal = signal.map_or(String::new(), |signal| format!("signal = {signal}\n"));
            format!(
                "[[tpb.block]]\nqueue = \"{queue}\"\nwait = [{}]\n{signal}copy = [{{ from = \"x\", to = \"y\", bytes = 8 }}]\n",
                waits.collect::<String>()
            )
        });
        let spec = format!(
            r#"
            [model]
            name = "order"
            target = "cayman"
            [[tpb]]
            var = [{{ name = "x", type = "input", size = 8 }}, {{ name = "y", type = "output", size = 8 }}]
            queue = [
              {{ name = "p", type = "in", owner = "pool", semaphore = 10 }},
              {{ name = "s", type = "out", owner = "sp", semaphore = 11 }},
              {{ name = "v", type = "data", owner = "dve", semaphore = 12 }},
            ]
            {}
            "#,
            blocks.collect::<String>()
        );
        let bytes = pack("order", &spec).unwrap();
        Neff::parse("order", &bytes, &ReadOptions::default()).unwrap().programs.remove(0)
    }

    /// Which of the runs named come before which, such as `p0<s1`.
    fn ordered(program: &Program, pairs: &str) -> String {
        let order = Order::of(program, &schedule(program));
        let run = |name: &str| {
            let engine = match &name[..1] {
                "p" => Engine::Pool,
                "v" => Engine::Dve,
                _ => Engine::Sp,
            };
            Run { engine, index: name[1..].parse().unwrap() }
        };
        let is = |pair: &&str| {
            let (first, then) = pair.split_once('<').unwrap();
            order.is_before(run(first), run(then))
        };
        pairs.split(' ').filter(is).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn a_signal_orders_what_is_before_it_and_behind_the_wait() {
        let program = program(&[
            ('p', &[], None),
            ('p', &[], Some(1)),
            ('p', &[], None),
            ('s', &[], None),
            ('s', &[(1, 1)], None),
            ('s', &[], None),
        ]);
        assert_eq!(
            ordered(&program, "p0<p1 p1<p0 p0<s0 p0<s1 p1<s1 p1<s2 p2<s1 p2<s2 s0<p1 s1<p2"),
            "p0<p1 p0<s1 p1<s1 p1<s2"
        );
    }

    #[test]
    fn of_signals_that_others_can_stand_in_for_none_is_certain() {
        let one = program(&[('p', &[], Some(1)), ('v', &[], Some(1)), ('s', &[(1, 1)], None)]);
        assert_eq!(ordered(&one, "p0<s0 v0<s0"), "");
        let both = program(&[('p', &[], Some(1)), ('v', &[], Some(1)), ('s', &[(1, 2)], None)]);
        assert_eq!(ordered(&both, "p0<s0 v0<s0"), "p0<s0 v0<s0");
        let most =
            program(&[('p', &[], Some(1)), ('p', &[], Some(1)), ('v', &[], Some(1)), ('s', &[(1, 2)], None)]);
        assert_eq!(ordered(&most, "p0<s0 p1<s0 v0<s0"), "p0<s0");
    }

    #[test]
    fn a_signal_behind_the_wait_stands_in_for_none_before_it() {
        // The second round of a barrier: signals of round two wait, by way of semaphore 2, for the end of round one.
        let program = program(&[
            ('p', &[], Some(1)),
            ('v', &[], Some(1)),
            ('s', &[(1, 2)], Some(2)),
            ('p', &[(2, 1)], Some(1)),
            ('v', &[(2, 1)], Some(1)),
            ('s', &[(1, 4)], None),
        ]);
        assert_eq!(
            ordered(&program, "p0<s0 v0<s0 s0<p1 s0<v1 p0<v1 v0<p1 p1<s1 v1<s1 p1<v1"),
            "p0<s0 v0<s0 s0<p1 s0<v1 p0<v1 v0<p1 p1<s1 v1<s1"
        );
    }
}
