//! The explorations that `cargo xtask model` makes: the protocol in all its sizes, and every rule left out once.

use sluice_core::producer::{Rules, Subsystem};
use sluice_host::dfx::keeper::GateScope;

use super::explore::{Report, explore};
use super::layout::{COUNTER_MASK, LANES};
use super::memory::Grain;
use super::scenarios;
use super::state::{Collecting, Config};

/// The protocol as it ships, on the model's small counters.
struct Shipped;

impl Subsystem for Shipped {
    const COUNTER_MASK: u32 = COUNTER_MASK;
}

/// Subsystems that leave one rule out.
macro_rules! without {
    ($($name:ident: $rule:ident;)+) => {$(
        struct $name;

        impl Subsystem for $name {
            const COUNTER_MASK: u32 = COUNTER_MASK;
            const RULES: Rules = Rules { $rule: false, ..Rules::ALL };
        }
    )+};
}

without! {
    NotCommonMode: common_mode;
    ReleasedUndrained: drained_before_release;
    TwoDeadlines: one_deadline;
    NoLatch: latch;
    ConsumedFirst: shut_before_consume;
    WritesUnchecked: retry_writes;
    LeftShut: open_at_stop;
    GateBehindPublication: gate_before_publication;
    RaisedOnce: raise_by_level;
    NoEpoch: release_epoch;
    LiteralLimit: attainable_limit;
    LeftBeforeSeen: ownership_order;
    ScanWithoutCurrent: complete_scan;
    PublishedUnseen: record_evidence;
    FlushedUnseen: evidence_at_flush;
    ClaimedFirst: publish_before_claim;
    LeftOnFlags: leave_on_acknowledgement;
    ReusedEarly: reuse_after_acknowledgement;
}

/// More states than any of the explorations has.
const LIMIT: usize = 150_000_000;

const fn config(first: usize, crash: bool) -> Config {
    Config {
        buffers: [first, 1],
        crash,
        scope: GateScope::All,
        second_refiller: false,
        grain: Grain::Access,
        lanes: LANES,
        signals_only: false,
        core: false,
        arena_places: 0,
        stop: false,
        faults: false,
        watch_rings: false,
        collector: Collecting::InOrder,
    }
}

const fn faulty(config: Config) -> Config {
    Config { faults: true, ..polls(config) }
}

const fn stopping(config: Config) -> Config {
    Config { stop: true, ..polls(config) }
}

const fn watched(config: Config) -> Config {
    Config { watch_rings: true, ..polls(config) }
}

const fn collecting(collector: Collecting) -> Config {
    Config { collector, ..polls(config(1, false)) }
}

/// One lane and its core.
const fn core(buffers: usize, crash: bool) -> Config {
    Config { core: true, buffers: [buffers, 0], ..alone(config(1, crash)) }
}

/// One lane with an arena.
const fn arena(arena_places: u8, buffers: usize) -> Config {
    Config { arena_places, buffers: [buffers, 0], ..alone(config(1, false)) }
}

const fn crashing(config: Config) -> Config {
    Config { crash: true, ..config }
}

const fn signals_only(config: Config) -> Config {
    Config { signals_only: true, ..config }
}

const fn alone(config: Config) -> Config {
    Config { lanes: 1, ..config }
}

const fn polls(config: Config) -> Config {
    Config { grain: Grain::Poll, ..config }
}

/// One exploration of the protocol as it ships, or one run of it.
pub struct Exploration {
    /// What is explored.
    pub name: &'static str,
    /// Whether the short run leaves it out.
    pub is_long: bool,
    run: fn() -> Report,
}

impl Exploration {
    /// Runs it.
    pub fn run(&self) -> Report {
        (self.run)()
    }
}

/// Explorations by name.
macro_rules! explorations {
    ($($name:literal, $is_long:literal: $config:expr;)+) => {
        [$(Exploration { name: $name, is_long: $is_long, run: || explore::<Shipped>($config, LIMIT) },)+
        Exploration { name: "one deadline", is_long: false, run: scenarios::one_deadline::<Shipped> },
        Exploration { name: "one wait for nobody", is_long: false, run: scenarios::wait_once::<Shipped> }]
    };
}

/// All explorations of the protocol as it ships.
pub const EXPLORATIONS: [Exploration; 28] = explorations! {
    "pools (1,1)", false: config(1, false);
    "pools (1,1), gate scope lane", false: Config { scope: GateScope::Lane, ..config(1, false) };
    "pools (1,1), signals only", false: signals_only(config(1, false));
    "one lane, pool (1), crash", false: alone(config(1, true));
    "pools (2,1), by polls", false: watched(config(2, false));
    "pools (1,1), crash, by polls", false: polls(config(1, true));
    "pools (2,1), crash, by polls", false: polls(config(2, true));
    "one lane, pool (1), one fault, by polls", false: faulty(alone(config(1, false)));
    "pools (1,1), one fault, by polls", false: faulty(config(1, false));
    "pools (1,1), stop, by polls", false: stopping(config(1, false));
    "one lane, pool (1), stop and fault, by polls", false: stopping(faulty(alone(config(1, false))));
    "a core with one buffer", false: core(1, false);
    "a core with two buffers", false: core(2, false);
    "a core with two buffers, crash", false: core(2, true);
    "a core with one buffer, stop, by polls", false: stopping(core(1, false));
    "a core with two buffers, stop, by polls", false: stopping(core(2, false));
    "an arena of 3, one buffer", false: arena(3, 1);
    "an arena of 1, two buffers", false: arena(1, 2);
    "an arena of 2, two buffers", false: arena(2, 2);
    "an arena of 3, two buffers", false: arena(3, 2);
    "an arena of 3, one buffer, stop, by polls", false: stopping(arena(3, 1));
    "an arena of 3, two buffers, stop, by polls", false: stopping(arena(3, 2));
    "an arena of 3, one buffer, crash", false: crashing(arena(3, 1));
    "an arena of 3, two buffers, crash", false: crashing(arena(3, 2));
    "pools (2,1)", true: config(2, false);
    "pools (1,1), crash", true: config(1, true);
};

/// A rule left out, and what should notice.
pub struct Mutant {
    /// The rule as the design numbers it.
    pub rule: &'static str,
    /// What is left out.
    pub omission: &'static str,
    run: fn() -> Report,
}

impl Mutant {
    /// Explores the protocol without the rule.
    pub fn run(&self) -> Report {
        (self.run)()
    }
}

/// Every rule left out once.
pub const MUTANTS: [Mutant; 22] = [
    Mutant {
        rule: "P1",
        omission: "only a lane whose queue is of no use to it parks",
        run: || explore::<NotCommonMode>(polls(config(2, false)), LIMIT),
    },
    Mutant {
        rule: "P2",
        omission: "the push gate lies behind publication",
        run: || explore::<GateBehindPublication>(alone(config(2, true)), LIMIT),
    },
    Mutant {
        rule: "P3",
        omission: "a signal is raised once per wait",
        run: || explore::<RaisedOnce>(polls(signals_only(config(2, false))), LIMIT),
    },
    Mutant { rule: "P4", omission: "no release epoch", run: || explore::<NoEpoch>(config(1, false), LIMIT) },
    Mutant {
        rule: "P5",
        omission: "the drain refills beside the keeper",
        run: || explore::<Shipped>(Config { second_refiller: true, ..alone(config(2, false)) }, LIMIT),
    },
    Mutant {
        rule: "P6",
        omission: "a pool's limit is min(slots, buffers)",
        run: || explore::<LiteralLimit>(config(1, false), LIMIT),
    },
    Mutant {
        rule: "P7",
        omission: "a freeze ends without a look at the ready rings",
        run: || explore::<ReleasedUndrained>(watched(config(2, false)), LIMIT),
    },
    Mutant {
        rule: "P7",
        omission: "a signal is taken before its gate is shut",
        run: || explore::<ConsumedFirst>(polls(config(1, false)), LIMIT),
    },
    Mutant {
        rule: "P8",
        omission: "each half of a switch has a deadline of its own",
        run: scenarios::one_deadline::<TwoDeadlines>,
    },
    Mutant {
        rule: "P9",
        omission: "a lane waits again and again for nobody",
        run: scenarios::wait_once::<NoLatch>,
    },
    Mutant {
        rule: "P10",
        omission: "a buffer leaves its old place before it is visible in the new one",
        run: || explore::<LeftBeforeSeen>(alone(config(1, true)), LIMIT),
    },
    Mutant {
        rule: "P11",
        omission: "an attaching host looks at the queues only",
        run: || explore::<ScanWithoutCurrent>(alone(config(1, true)), LIMIT),
    },
    Mutant {
        rule: "P12",
        omission: "a lane that waits for an acknowledgement leaves on flags",
        run: || explore::<LeftOnFlags>(arena(2, 2), LIMIT),
    },
    Mutant {
        rule: "P12",
        omission: "an arena is used again before what is in it is acknowledged",
        run: || explore::<ReusedEarly>(arena(2, 2), LIMIT),
    },
    Mutant {
        rule: "P12",
        omission: "payloads are acknowledged before they are copied",
        run: || explore::<Shipped>(Config { collector: Collecting::AcknowledgedFirst, ..arena(2, 2) }, LIMIT),
    },
    Mutant {
        rule: "P13",
        omission: "a core's buffer is published without its last record",
        run: || explore::<PublishedUnseen>(core(1, false), LIMIT),
    },
    Mutant {
        rule: "P13",
        omission: "a stop publishes a core's buffer without its last record",
        run: || explore::<FlushedUnseen>(stopping(core(2, false)), LIMIT),
    },
    Mutant {
        rule: "P13",
        omission: "a core's only buffer is kept until another can be claimed",
        run: || explore::<ClaimedFirst>(core(1, false), LIMIT),
    },
    Mutant {
        rule: "P14",
        omission: "a host that leaves in a freeze leaves it open",
        run: || explore::<LeftShut>(stopping(config(1, false)), LIMIT),
    },
    Mutant {
        rule: "P15",
        omission: "the state moves although a flag could not be written",
        run: || explore::<WritesUnchecked>(faulty(alone(config(1, false))), LIMIT),
    },
    Mutant {
        rule: "P15",
        omission: "a buffer that could not be copied is not returned",
        run: || explore::<Shipped>(collecting(Collecting::KeptOnFailure), LIMIT),
    },
    Mutant {
        rule: "P16",
        omission: "a buffer is returned before it is copied",
        run: || explore::<Shipped>(collecting(Collecting::ReturnedFirst), LIMIT),
    },
];
