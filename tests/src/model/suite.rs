//! The explorations that `cargo xtask model` makes: the protocol in all its sizes, and every rule left out once.

use sluice_core::producer::{Rules, Subsystem};
use sluice_host::dfx::keeper::GateScope;

use super::explore::{Report, explore};
use super::layout::{COUNTER_MASK, LANES};
use super::memory::Grain;
use super::world::Config;

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
    GateBehindPublication: gate_before_publication;
    RaisedOnce: raise_by_level;
    NoEpoch: release_epoch;
    LiteralLimit: attainable_limit;
    LeftBeforeSeen: ownership_order;
    ScanWithoutCurrent: complete_scan;
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
    }
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

/// One exploration of the protocol as it ships.
pub struct Exploration {
    /// What is explored.
    pub name: &'static str,
    /// Whether the short run leaves it out.
    pub is_long: bool,
    config: Config,
}

impl Exploration {
    /// Runs it.
    pub fn run(&self) -> Report {
        explore::<Shipped>(self.config, LIMIT)
    }
}

/// All explorations of the protocol as it ships.
pub const EXPLORATIONS: [Exploration; 9] = [
    Exploration { name: "pools (1,1)", is_long: false, config: config(1, false) },
    Exploration {
        name: "pools (1,1), gate scope lane",
        is_long: false,
        config: Config { scope: GateScope::Lane, ..config(1, false) },
    },
    Exploration { name: "pools (1,1), signals only", is_long: false, config: signals_only(config(1, false)) },
    Exploration { name: "one lane, pool (1), crash", is_long: false, config: alone(config(1, true)) },
    Exploration { name: "pools (2,1), by polls", is_long: false, config: polls(config(2, false)) },
    Exploration { name: "pools (1,1), crash, by polls", is_long: false, config: polls(config(1, true)) },
    Exploration { name: "pools (2,1), crash, by polls", is_long: false, config: polls(config(2, true)) },
    Exploration { name: "pools (2,1)", is_long: true, config: config(2, false) },
    Exploration { name: "pools (1,1), crash", is_long: true, config: config(1, true) },
];

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
pub const MUTANTS: [Mutant; 7] = [
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
        rule: "P10",
        omission: "a buffer leaves its old place before it is visible in the new one",
        run: || explore::<LeftBeforeSeen>(alone(config(1, true)), LIMIT),
    },
    Mutant {
        rule: "P11",
        omission: "an attaching host looks at the queues only",
        run: || explore::<ScanWithoutCurrent>(alone(config(1, true)), LIMIT),
    },
];
