//! Options that several commands share, and what they stand for.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::num::{NonZeroU32, NonZeroU64};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use sluice_core::exec::BootShape;
use sluice_core::layout::pmu_events::{EventGroup, event_groups};
use sluice_core::layout::{self, ArchId, PoolKind, Shape, SubsystemId, args_dump, pmu};
use sluice_core::producer::{Control, RecordWindow, Span};
use sluice_host::dfx::keeper::GateScope;
use sluice_host::dfx::{BufferCounts, DfxConfig, RECORDED, SubsystemConfig};
use sluice_host::kbl::ArgChoice;
use sluice_host::report::Artefacts;
use sluice_host::verify::Extent;

/// More threads than there are processors to run them, for any host.
const MAX_COLLECTORS: u32 = 256;

/// Options that cannot be meant together.
pub(crate) fn conflict(why: impl Display) -> clap::Error {
    clap::Error::raw(clap::error::ErrorKind::ArgumentConflict, format!("{why}\n"))
}

/// Where a run takes place and how it is recorded.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Recording {
    /// Device to run on
    #[arg(long, default_value = "sim")]
    pub(crate) device: DeviceName,
    /// Image of the firmware for an emulated board
    #[arg(long, value_name = "FILE", default_value = "target/aarch64-unknown-none/release/sluice-virt")]
    pub(crate) firmware: PathBuf,
    /// Architecture whose wire contract and counter the device has: a2a3 or a5
    #[arg(long, default_value = "a2a3")]
    pub(crate) arch: ArchId,
    /// Lanes (AICPU threads) of the device
    #[arg(long, default_value_t = 2, value_name = "N")]
    pub(crate) lanes: u32,
    /// Subsystems that record: all, or a list with commas; none with an empty one
    #[arg(long, default_value = "all", value_name = "LIST")]
    pub(crate) dfx: Subsystems,
    /// How much subsystems record, such as args_dump=full,swimlane=task; args_dump=hybrid unless told otherwise
    #[arg(long, value_name = "SUBSYSTEM=LEVEL,...", default_value = "")]
    pub(crate) level: Levels,
    /// Other levels from an execution on, such as 5:swimlane=off,pmu=on; may be given again for later ones
    #[arg(long, value_name = "EXECUTION:SUBSYSTEM=LEVEL,...")]
    pub(crate) at: Vec<LevelsFrom>,
    /// Executions that are recorded, the last one excluded, such as 5..8, 5.. or ..8; all of them unless told otherwise
    #[arg(long, value_name = "FROM..TO")]
    pub(crate) window: Option<Window>,
    /// Every how many executions one is recorded: one number for all subsystems, or a list such as pmu=10,swimlane=100
    #[arg(long, value_name = "N|SUBSYSTEM=N,...", default_value = "1")]
    pub(crate) sample: Samples,
    /// Group of events that cores count, by number or name; pipe unless told otherwise
    #[arg(long, value_name = "GROUP")]
    pub(crate) pmu_events: Option<String>,
    /// Arguments that args_dump=hybrid records with their bytes, and args_dump=partial at all: a list of roles (input, output,
    /// inout), of names of tensors and of sizes such as <=4096; all or none
    #[arg(long, value_name = "LIST", default_value = "<=4096")]
    pub(crate) dump: Choice,
    /// Buffers per pool: one number for every pool, or a list of kinds of pool and of subsystems such as aicpu_task=4,pmu=2
    #[arg(long, value_name = "N|POOL=N,...")]
    pub(crate) buffers: Option<Buffers>,
    /// Threads that copy buffers out and write them; one more serves the device
    #[arg(long, default_value_t = NonZeroU32::MIN, value_name = "N")]
    pub(crate) collectors: NonZeroU32,
    /// Bytes of device memory that each lane has for the bytes of arguments
    #[arg(long, value_name = "BYTES")]
    pub(crate) arena: Option<NonZeroU64>,
    /// Lanes that a starving lane stops
    #[arg(long, value_enum, default_value_t)]
    pub(crate) gate_scope: Scope,
    /// How the host reaches device memory
    #[arg(long, value_enum, default_value_t)]
    pub(crate) transport: Transport,
    /// Whether a run that loses records fails; it says what was lost either way
    #[arg(
        long, default_value_t = true, num_args = 0..=1, default_missing_value = "true", require_equals = true,
        action = clap::ArgAction::Set, value_name = "BOOL"
    )]
    pub(crate) require_lossless: bool,
    /// How long a lane waits for this host before it counts records as lost, in device milliseconds; that of the
    /// architecture by default
    #[arg(long, value_name = "MS")]
    pub(crate) deadline: Option<NonZeroU32>,
    /// Folder for report.json, capture.slc and trace.pftrace
    #[arg(long, default_value = "target/sluice/latest", value_name = "DIR")]
    pub(crate) out: PathBuf,
    /// Print the report as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

impl Recording {
    /// Makes sure that there are devices with so many lanes.
    ///
    /// # Errors
    /// The command line makes no sense.
    pub(crate) fn check(&self) -> Result<(), clap::Error> {
        let refused = |option: &str, value: &dyn Display, error: &dyn Display| {
            let text = format!("invalid value '{value}' for '{option}': {error}\n");
            clap::Error::raw(clap::error::ErrorKind::ValueValidation, text)
        };
        let shape = BootShape { arch: self.arch, tpbs: 1, lanes: self.lanes };
        shape.check().map_err(|error| refused("--lanes <N>", &self.lanes, &error))?;
        if self.collectors.get() > MAX_COLLECTORS {
            let error = format!("need 1 to {MAX_COLLECTORS} threads, got {}", self.collectors);
            return Err(refused("--collectors <N>", &self.collectors, &error));
        }
        let changed = self.at.iter().flat_map(|LevelsFrom { levels, .. }| &levels.0);
        if let Some((subsystem, _)) = changed.into_iter().find(|(of, _)| !self.dfx.0.contains(of)) {
            return Err(conflict(format_args!(
                "'--at' changes the level of `{subsystem}`, which '--dfx' does not record"
            )));
        }
        let group = self.event_group();
        group.map(drop).map_err(|error| {
            refused("--pmu-events <GROUP>", &self.pmu_events.as_deref().unwrap_or_default(), &error)
        })
    }

    /// The events that cores count.
    fn event_group(&self) -> Result<u32, String> {
        let Some(wanted) = &self.pmu_events else { return Ok(pmu::DEFAULT_EVENT_TYPE) };
        let groups = event_groups(self.arch);
        let is_wanted = |group: &&EventGroup| group.name == wanted || group.number.to_string() == *wanted;
        groups.iter().find(is_wanted).map(|group| group.number).ok_or_else(|| {
            let known: Vec<_> =
                groups.iter().map(|group| format!("{} ({})", group.number, group.name)).collect();
            format!("cores of {} have the groups {}", self.arch, known.join(", "))
        })
    }

    /// The session, or `None` when nothing is to record.
    pub(crate) fn session(&self, cores: u32, run_id: u64) -> anyhow::Result<Option<DfxConfig>> {
        let shape = Shape::new(self.arch, self.lanes, cores)?;
        let scope = match self.gate_scope {
            Scope::All => GateScope::All,
            Scope::Lane => GateScope::Lane,
        };
        let cycles_of = |ms: NonZeroU32| u64::from(ms.get()) * (self.arch.facts().clock_hz / 1_000);
        let deadline_cycles = self.deadline.map(cycles_of);
        let blank = DfxConfig::new(shape);
        let arena_bytes = self.arena.unwrap_or(blank.arena_bytes);
        let event_group = self.event_group().map_err(anyhow::Error::msg)?;
        let collectors = self.collectors;
        let run = DfxConfig { scope, run_id, collectors, arena_bytes, event_group, deadline_cycles, ..blank };
        let config = self.extents().into_iter().fold(run, |run, extent| {
            let Extent { subsystem, first: Control { level, sample_every, window }, .. } = extent;
            let suggested = SubsystemConfig::new(subsystem, shape);
            let buffers = match &self.buffers {
                Some(buffers) => buffers.counts(subsystem, suggested.buffers),
                None => suggested.buffers,
            };
            run.with(subsystem, SubsystemConfig { level, sample_every, window, buffers })
        });
        let records = !config.enable_mask().is_empty();
        Ok(records.then_some(config))
    }

    /// Who records how much.
    pub(crate) fn extents(&self) -> Vec<Extent> {
        let window = self.window.map_or(RecordWindow::Whole, |Window(span)| RecordWindow::Executions(span));
        let extent = |&subsystem: &SubsystemId| {
            let (level, sample_every) = (self.level.of(subsystem), self.sample.of(subsystem));
            let first = Control { level, sample_every, window };
            Extent { subsystem, first, changes: self.changes(subsystem, first) }
        };
        let extents = self.dfx.0.iter().map(extent);
        extents.filter(|extent| extent.first.level > 0 || !extent.changes.is_empty()).collect()
    }

    /// What else is recorded of `subsystem` than at `first`, and from which execution on; the last one named counts.
    fn changes(&self, subsystem: SubsystemId, first: Control) -> Vec<(u64, Control)> {
        let named = self.at.iter().filter_map(|LevelsFrom { execution, levels }| {
            levels.named(subsystem).map(|level| (*execution, Control { level, ..first }))
        });
        named.collect::<BTreeMap<_, _>>().into_iter().collect()
    }
}

/// Buffers per pool of `config`, by name of the kind of pool.
pub(crate) fn buffers_of(config: &DfxConfig) -> BTreeMap<String, u32> {
    let mut buffers = BTreeMap::new();
    for (subsystem, of_subsystem) in config.enabled() {
        for array in layout::region(subsystem, config.shape).arrays() {
            buffers.insert(array.name.to_owned(), of_subsystem.buffers.of(array.kind));
        }
    }
    buffers
}

/// The capture that a path means: a file, or the one in the folder of a run.
pub(crate) fn capture_at(path: &Path) -> Cow<'_, Path> {
    match path.is_dir() {
        true => path.join(Artefacts::CAPTURE).into(),
        false => path.into(),
    }
}

/// The arguments of this command as text; what is no text in them is replaced.
pub(crate) fn command_line() -> String {
    let arguments = std::env::args_os().skip(1);
    arguments.map(|argument| argument.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
}

/// A device that this command has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum DeviceName {
    /// Threads of this process.
    Sim,
    /// An emulated AArch64 board.
    QemuAarch64,
}

impl FromStr for DeviceName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "sim" => Ok(Self::Sim),
            "qemu-aarch64" => Ok(Self::QemuAarch64),
            _ => Err(format!("this build has no device `{text}`, only `sim` and `qemu-aarch64`")),
        }
    }
}

/// Subsystems to record, in the order of reports.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Subsystems(pub(crate) Vec<SubsystemId>);

impl FromStr for Subsystems {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut named = Vec::new();
        for name in text.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            match name {
                "all" => named.extend(RECORDED),
                _ => {
                    let subsystem: SubsystemId =
                        name.parse().map_err(|error| format!("`{name}`: {error}, or all"))?;
                    if !RECORDED.contains(&subsystem) {
                        let recorded: Vec<_> = RECORDED.iter().map(|subsystem| subsystem.name()).collect();
                        let recorded = recorded.join(", ");
                        return Err(format!(
                            "the firmware of this build does not record `{subsystem}`, only {recorded}"
                        ));
                    }
                    named.push(subsystem);
                }
            }
        }
        named.sort();
        named.dedup();
        Ok(Self(named))
    }
}

/// Levels of some subsystems.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Levels(Vec<(SubsystemId, u32)>);

impl Levels {
    /// Of arguments not all bytes are recorded unless asked for: they are far more than all else.
    fn of(&self, subsystem: SubsystemId) -> u32 {
        self.named(subsystem).unwrap_or(match subsystem {
            SubsystemId::ArgsDump => args_dump::Level::HYBRID.0,
            _ => subsystem.full_level(),
        })
    }

    /// The last one named counts.
    fn named(&self, subsystem: SubsystemId) -> Option<u32> {
        self.0.iter().rev().find(|(of, _)| *of == subsystem).map(|&(_, level)| level)
    }
}

impl FromStr for Levels {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
        let level = |part: &str| {
            let (name, level) =
                part.split_once('=').ok_or_else(|| format!("`{part}` is not of the form SUBSYSTEM=LEVEL"))?;
            let subsystem: SubsystemId = name.parse().map_err(|error| format!("`{name}`: {error}"))?;
            let known = subsystem.levels().find(|(known, _)| *known == level);
            let (_, level) = known.ok_or_else(|| {
                let known: Vec<_> = subsystem.levels().map(|(name, _)| name).collect();
                format!("{subsystem} has no level `{level}`, known are {}", known.join(", "))
            })?;
            Ok((subsystem, level))
        };
        parts.map(level).collect::<Result<_, _>>().map(Self)
    }
}

/// Levels of some subsystems from an execution on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct LevelsFrom {
    pub(crate) execution: u64,
    levels: Levels,
}

impl FromStr for LevelsFrom {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let form = || format!("`{text}` is not of the form EXECUTION:SUBSYSTEM=LEVEL");
        let (execution, levels) = text.split_once(':').ok_or_else(form)?;
        let execution =
            execution.parse().map_err(|_| format!("`{execution}` is no number of an execution"))?;
        match levels.parse()? {
            Levels(levels) if levels.is_empty() => Err(form()),
            levels => Ok(Self { execution, levels }),
        }
    }
}

/// Executions that are recorded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Window(Span);

impl FromStr for Window {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (from, to) =
            text.split_once("..").ok_or_else(|| format!("`{text}` is not of the form FROM..TO"))?;
        let number = |text: &str, open: u64| match text {
            "" => Ok(open),
            _ => text.parse().map_err(|_| format!("`{text}` is no number of an execution")),
        };
        match (number(from, 0)?, number(to, u64::MAX)?) {
            (from, to) if from < to => Ok(Self(Span { from, to })),
            _ => Err(format!("there is nothing in `{text}`: its last one is excluded")),
        }
    }
}

/// Every how many executions one is recorded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Samples(Vec<(SubsystemId, u32)>);

impl Samples {
    /// The last one named counts.
    fn of(&self, subsystem: SubsystemId) -> u32 {
        self.0.iter().rev().find(|(of, _)| *of == subsystem).map_or(1, |&(_, every)| every)
    }
}

impl FromStr for Samples {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let every = |text: &str| match text.parse() {
            Ok(every @ 1..) => Ok(every),
            _ => Err(format!("need one execution in 1 or more, got `{text}`")),
        };
        let mut samples = Vec::new();
        for part in text.split(',').map(str::trim) {
            match part.split_once('=') {
                Some((name, number)) => {
                    let subsystem = name.parse().map_err(|error| format!("`{name}`: {error}"))?;
                    samples.push((subsystem, every(number)?));
                }
                None => {
                    let every = every(part)?;
                    samples.extend(SubsystemId::ALL.map(|subsystem| (subsystem, every)));
                }
            }
        }
        Ok(Self(samples))
    }
}

/// Which arguments are chosen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Choice(pub(crate) ArgChoice);

impl FromStr for Choice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut max_bytes: Option<u64> = None;
        let mut choice = ArgChoice::NONE;
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let role = args_dump::Role::KNOWN.iter().find(|role| role.name() == Some(part));
            choice = match (role, part.strip_prefix("<=")) {
                (Some(&role), _) => choice.with_role(role),
                (None, Some(bytes)) => {
                    let bytes = bytes.parse().map_err(|_| format!("need a number of bytes, got `{part}`"))?;
                    max_bytes = max_bytes.max(Some(bytes));
                    choice
                }
                (None, None) if part == "all" => {
                    max_bytes = Some(u64::MAX);
                    choice
                }
                (None, None) if part == "none" => choice,
                (None, None) => choice.with_tensor(part),
            };
        }
        Ok(Self(max_bytes.map_or(choice.clone(), |bytes| choice.and_up_to(bytes))))
    }
}

/// Buffers per pool, for all pools or some.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Buffers {
    /// The same number everywhere.
    Uniform(u32),
    /// Another number for some kinds; the last one named counts.
    ByKind(Vec<(SubsystemId, PoolKind, u32)>),
}

impl Buffers {
    fn counts(&self, subsystem: SubsystemId, suggested: BufferCounts) -> BufferCounts {
        match self {
            Self::Uniform(buffers) => BufferCounts::uniform(*buffers),
            Self::ByKind(kinds) => kinds
                .iter()
                .filter(|(of, ..)| *of == subsystem)
                .fold(suggested, |counts, &(_, kind, buffers)| counts.with(kind, buffers)),
        }
    }
}

/// Every kind of pool, under the name of its own. Names are the same on every architecture.
fn kinds_of_pool() -> impl Iterator<Item = (SubsystemId, PoolKind, &'static str)> {
    SubsystemId::ALL.into_iter().flat_map(|subsystem| {
        let region = layout::region(subsystem, Shape::full(ArchId::A2a3));
        let kinds: Vec<_> = region.arrays().iter().map(|array| (subsystem, array.kind, array.name)).collect();
        kinds
    })
}

impl FromStr for Buffers {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        /// More is no number of buffers that a person means.
        const MOST: u32 = 1 << 16;
        let number = |text: &str| match text.parse() {
            Ok(buffers @ 1..=MOST) => Ok(buffers),
            _ => Err(format!("need 1 to {MOST} buffers per pool, got `{text}`")),
        };
        if !text.contains('=') {
            return number(text).map(Self::Uniform);
        }
        let mut kinds = Vec::new();
        for part in text.split(',') {
            let (name, buffers) =
                part.split_once('=').ok_or_else(|| format!("`{part}` is not of the form POOL=N"))?;
            let buffers = number(buffers)?;
            let meant = kinds_of_pool()
                .filter(|(subsystem, _, own_name)| *own_name == name || subsystem.name() == name)
                .map(|(subsystem, kind, _)| (subsystem, kind, buffers));
            let known_before = kinds.len();
            kinds.extend(meant);
            if kinds.len() == known_before {
                let known: Vec<_> = kinds_of_pool().map(|(_, _, name)| name).collect();
                let known = known.join(", ");
                return Err(format!("no kind of pool is named `{name}`, known are swimlane, {known}"));
            }
        }
        Ok(Self::ByKind(kinds))
    }
}

/// Whom a starving lane stops.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, clap::ValueEnum)]
pub(crate) enum Scope {
    /// All lanes stop at a gate until everyone is served
    #[default]
    All,
    /// Only the starving lane waits
    Lane,
}

impl Scope {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Lane => "lane",
        }
    }
}

/// How the host reaches device memory.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, clap::ValueEnum)]
pub(crate) enum Transport {
    /// Both sides map the same memory
    #[default]
    Shared,
    /// The host reads and writes ranges of it
    Copy,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_one_number_or_a_number_per_kind_of_pool() {
        assert_eq!("3".parse(), Ok(Buffers::Uniform(3)));
        let kinds = vec![
            (SubsystemId::Swimlane, PoolKind::AICPU_TASK, 2),
            (SubsystemId::Swimlane, PoolKind::SCHED_PHASE, 1),
        ];
        assert_eq!("aicpu_task=2,sched_phase=1".parse(), Ok(Buffers::ByKind(kinds)));
        let refused = |text: &str| text.parse::<Buffers>().unwrap_err();
        assert_eq!(refused("0"), "need 1 to 65536 buffers per pool, got `0`");
        assert_eq!(refused("aicpu_task=x"), "need 1 to 65536 buffers per pool, got `x`");
        assert!(
            refused("tasks=1").starts_with("no kind of pool is named `tasks`, known are swimlane, aicpu_")
        );
        assert_eq!(refused("aicpu_task=1,2"), "`2` is not of the form POOL=N");
    }

    #[test]
    fn a_number_for_one_subsystem_leaves_the_others_as_suggested() {
        let shape = Shape::full(ArchId::A5);
        let counts = |text: &str, subsystem, kind| {
            let buffers: Buffers = text.parse().expect("a list");
            buffers.counts(subsystem, BufferCounts::suggested(subsystem, shape)).of(kind)
        };
        let list = "pmu=3,args_dump=5,swimlane=7,orch_phase=9";
        assert_eq!(counts(list, SubsystemId::Pmu, PoolKind::SOLE), 3);
        assert_eq!(counts(list, SubsystemId::ArgsDump, PoolKind::SOLE), 5);
        assert_eq!(counts(list, SubsystemId::Swimlane, PoolKind::AICPU_TASK), 7);
        assert_eq!(counts(list, SubsystemId::Swimlane, PoolKind::ORCH_PHASE), 9);
        assert_eq!(
            counts("pmu=3", SubsystemId::Swimlane, PoolKind::AICPU_TASK),
            8,
            "the same number of kind"
        );
        assert_eq!(counts("3", SubsystemId::ScopeStats, PoolKind::SOLE), 3);
    }

    #[test]
    fn subsystems_are_named_once_each() {
        let swimlane = Subsystems(vec![SubsystemId::Swimlane]);
        for text in ["swimlane", "l2_swimlane", "swimlane, l2_swimlane"] {
            assert_eq!(text.parse().as_ref(), Ok(&swimlane), "{text}");
        }
        assert_eq!("all,swimlane".parse(), Ok(Subsystems(RECORDED.to_vec())));
        assert_eq!("".parse(), Ok(Subsystems(vec![])));
        for subsystem in SubsystemId::ALL {
            let parsed = subsystem.name().parse::<Subsystems>();
            assert_eq!(parsed.is_ok(), RECORDED.contains(&subsystem), "{parsed:?}");
            if let Err(text) = parsed {
                let expected = format!("the firmware of this build does not record `{subsystem}`, only swim");
                assert!(text.starts_with(&expected), "{text}");
            }
        }
        assert!("lanes".parse::<Subsystems>().unwrap_err().starts_with("`lanes`: unknown subsystem"));
    }

    #[test]
    fn levels_have_the_names_of_the_layouts() {
        let levels = |text: &str| {
            let levels: Levels = text.parse().expect("levels");
            SubsystemId::ALL.map(|subsystem| levels.of(subsystem))
        };
        assert_eq!(levels(""), [4, 1, 1, 3, 1]);
        assert_eq!(levels("swimlane=task, args_dump=full,pmu=off"), [2, 0, 1, 2, 1]);
        assert_eq!(levels("tensor_dump=partial,args_dump=off"), [4, 1, 1, 0, 1]);
        let refused = |text: &str| text.parse::<Levels>().unwrap_err();
        assert_eq!(
            refused("swimlane=some"),
            "swimlane has no level `some`, known are off, core, task, sched, full"
        );
        assert_eq!(refused("pmu=full"), "pmu has no level `full`, known are off, on");
        assert_eq!(refused("full"), "`full` is not of the form SUBSYSTEM=LEVEL");
        assert!(refused("lanes=full").starts_with("`lanes`: unknown subsystem"));
    }

    #[test]
    fn levels_from_an_execution_on_name_it() {
        let at = |text: &str| {
            text.parse()
                .map(|LevelsFrom { execution, levels }| (execution, levels.0))
                .map_err(|error: String| error)
        };
        let (swimlane, pmu) = (SubsystemId::Swimlane, SubsystemId::Pmu);
        assert_eq!(at("5:swimlane=off,pmu=on"), Ok((5, vec![(swimlane, 0), (pmu, 1)])));
        assert_eq!(
            at("swimlane=off"),
            Err("`swimlane=off` is not of the form EXECUTION:SUBSYSTEM=LEVEL".into())
        );
        assert_eq!(at("5:"), Err("`5:` is not of the form EXECUTION:SUBSYSTEM=LEVEL".into()));
        assert_eq!(at("x:pmu=on"), Err("`x` is no number of an execution".into()));
        assert!(at("5:pmu=most").is_err_and(|error| error.starts_with("pmu has no level `most`")));
    }

    #[test]
    fn arguments_are_chosen_by_size_role_and_name() {
        let choice = |text: &str| text.parse::<Choice>().map(|choice| choice.0);
        assert_eq!(choice("<=4096"), Ok(ArgChoice::up_to(4096)));
        assert_eq!(choice("all"), Ok(ArgChoice::default()));
        assert_eq!(choice("none"), Ok(ArgChoice::NONE));
        let mixed = ArgChoice::up_to(9).with_tensor("own0").with_role(args_dump::Role::OUTPUT);
        assert_eq!(choice("own0,<=9,output, <=3"), Ok(mixed));
        assert_eq!(choice("<=x"), Err("need a number of bytes, got `<=x`".into()));
    }

    #[test]
    fn windows_and_samples_are_of_executions() {
        let window = |text: &str| text.parse().map(|Window(Span { from, to })| (from, to));
        assert_eq!(window("5..8"), Ok((5, 8)));
        assert_eq!(window("5.."), Ok((5, u64::MAX)));
        assert_eq!(window("..8"), Ok((0, 8)));
        assert_eq!(window("8"), Err("`8` is not of the form FROM..TO".into()));
        assert_eq!(window("a..8"), Err("`a` is no number of an execution".into()));
        assert_eq!(window("8..8"), Err("there is nothing in `8..8`: its last one is excluded".into()));
        let samples = |text: &str| {
            let samples: Samples = text.parse()?;
            Ok::<_, String>(SubsystemId::ALL.map(|subsystem| samples.of(subsystem)))
        };
        assert_eq!(samples("1"), Ok([1; 5]));
        assert_eq!(samples("7,pmu=2, tensor_dump=3"), Ok([7, 2, 7, 3, 7]));
        assert_eq!(samples("swimlane=100"), Ok([100, 1, 1, 1, 1]));
        assert_eq!(samples("0"), Err("need one execution in 1 or more, got `0`".into()));
        assert!(samples("lanes=2").is_err_and(|error| error.starts_with("`lanes`: unknown subsystem")));
    }
}
