//! What a lane records, and when: attached, flushed and detached as the boot block says.
//!
//! ```text
//!   dfx_generation moves ──► the run is judged; each subsystem that it names attaches
//!   submit, dispatch, finish, end ──► every recorder that is attached is told
//!   dfx_stop_generation catches up ──► what is dispatched from now on is not recorded
//!   cores owe no record any more ──► flush every pool, say so, record no more
//! ```
//!
//! Recording blocks, and only recording does: a lane with a full buffer stands at the push gate or waits for a slot, one
//! with none stands at the pop gate or waits for a buffer, up to the deadline of one switch. A lane that is not asked to
//! record spends two loads per round, one that is a load more per subsystem. Nothing waits for a core: that is looked for
//! in every round, because a core's agent may share the lane's processor. No clock is read for a time that nobody records.
//!
//! A new subsystem is a module with a `Recorder` that is a [`Recording`](event::Recording), and its name in
//! `with_subsystems`.

mod args_dump;
mod batch;
mod core;
mod dep_gen;
mod event;
mod heartbeat;
mod parking;
mod phases;
mod pmu;
mod run;
mod scope_stats;
mod swimlane;
mod tasks;
mod wishes;

use ::core::num::NonZeroU32;

use sluice_core::exec::vitals::LaneVitals;
use sluice_core::exec::{CoreIndex, LaneBoot, LaneIndex, Recorders, status_block};
use sluice_core::mem::{DeviceMemory, Fault};
use sluice_core::mmio::TpbId;
use sluice_core::producer::Settlement;

use crate::platform::{Activity, Context, Platform};
use event::{Recording, Stamps};
use heartbeat::Heartbeat;
use parking::{Parking, Signs};
use run::Run;
use wishes::Events;

pub(crate) use self::batch::{Batch, Turn};
pub(crate) use self::core::{CoreRecord, CoreSlots};
pub(crate) use event::{Dispatch, EngineEnd, Finish, Grant, ItemAt, Picked, Submit};

/// The one list of what lanes record, in the order in which recorders are told and flushed.
macro_rules! with_subsystems {
    ($apply:ident! $($arguments:tt)*) => {
        $apply! { [phases, swimlane, pmu, dep_gen, args_dump, scope_stats] $($arguments)* }
    };
}

/// What is attached.
macro_rules! declare {
    ([$($subsystem:ident),+]) => {
        /// The recorders of one lane, those that are attached.
        struct Attached<M: DeviceMemory, const CORES: usize> {
            $($subsystem: Option<$subsystem::Recorder<M, CORES>>,)+
        }

        impl<M: DeviceMemory, const CORES: usize> Attached<M, CORES> {
            const NONE: Self = Self { $($subsystem: None,)+ };

            fn attach<P: Platform<Memory = M>>(cx: &Context<P>, lane: LaneIndex, run: &Run<'_>) -> Self {
                Self { $($subsystem: $subsystem::Recorder::attach(cx, lane, run),)+ }
            }

            fn is_empty(&self) -> bool {
                true $(&& self.$subsystem.is_none())+
            }

            /// Records that all have lost.
            #[inline]
            fn dropped<P: Platform<Memory = M>>(&self) -> u32 {
                0u32 $(.wrapping_add(self.$subsystem.as_ref().map_or(0, Recording::<P>::dropped)))+
            }

            /// Follows what the host wants. Says whether that has changed.
            #[inline]
            fn follow<P: Platform<Memory = M>>(&mut self) -> bool {
                let mut has_changed = false;
                $(if let Some(recorder) = &mut self.$subsystem
                    && let Some(wishes) = Recording::<P>::wishes(recorder)
                    && let Some(level) = wishes.follow()
                {
                    Recording::<P>::set_level(recorder, level);
                    has_changed = true;
                })+
                has_changed
            }

            /// Whether any does not record all that it is told of.
            fn selects<P: Platform<Memory = M>>(&mut self) -> bool {
                false $(|| self.$subsystem.as_mut().and_then(Recording::<P>::wishes).is_some_and(|wishes| wishes.selects()))+
            }

            /// Who records what belongs to that execution of a TPB.
            #[cold]
            fn pick<P: Platform<Memory = M>>(&mut self, cx: &Context<P>, execution: u32) -> Picked {
                let (mut picked, mut place) = (Picked::ALL, 1);
                $(
                    if let Some(wishes) = self.$subsystem.as_mut().and_then(Recording::<P>::wishes)
                        && !wishes.picks(execution, || cx.now_cycles())
                    {
                        picked.0 &= !place;
                    }
                    place <<= 1;
                )+
                let _ = place;
                picked
            }

            /// Counts what those do not record who were not picked. A submit is one of `tpb`.
            #[cold]
            fn pass_over<P: Platform<Memory = M>>(&mut self, picked: Picked, event: Events, tpb: TpbId) {
                let mut place = 1;
                $(
                    if picked.0 & place == 0
                        && let Some(recorder) = &mut self.$subsystem
                    {
                        if let Some(wishes) = Recording::<P>::wishes(recorder) {
                            wishes.pass_over(event);
                        }
                        if event == Events::Submits {
                            Recording::<P>::passed_over(recorder, tpb);
                        }
                    }
                    place <<= 1;
                )+
                let _ = place;
            }

            fn stamps<P: Platform<Memory = M>>(&self) -> Stamps {
                let mut stamps = Stamps::default();
                $(if let Some(recorder) = &self.$subsystem {
                    stamps = stamps.or(Recording::<P>::stamps(recorder));
                })+
                stamps
            }

            /// Whether any is asked before a dispatch.
            fn grants<P: Platform<Memory = M>>(&self) -> bool {
                false $(|| self.$subsystem.as_ref().is_some_and(Recording::<P>::grants))+
            }
        }
    };
}

/// Tells each recorder of `$lane` that is attached and picked; the host hears of buffers that were published.
macro_rules! tell {
    ([$($subsystem:ident),+] $lane:ident, $cx:ident, |$recorder:ident, $env:ident| $event:expr) => {
        tell!([$($subsystem),+] $lane, $cx, Picked::ALL, |$recorder, $env| $event)
    };
    ([$($subsystem:ident),+] $lane:ident, $cx:ident, $picked:expr, |$recorder:ident, $env:ident| $event:expr) => {{
        let (Picked(picked), mut place) = ($picked, 1);
        $(
        if picked & place != 0
            && let Some($recorder) = &mut $lane.attached.$subsystem
        {
            let published = Recording::<P>::published($recorder);
            let subsystem = <$subsystem::Recorder<M, CORES> as Recording<P>>::SUBSYSTEM;
            let $env = &mut Parking::new($cx, $lane.lane, subsystem, &mut $lane.signs);
            $event;
            if Recording::<P>::published($recorder) != published {
                $cx.note_host_news();
            }
        }
        place <<= 1;
        )+
        let _ = place;
        $lane.signs.leave($cx);
    }};
}

with_subsystems!(declare!);

impl<M: DeviceMemory, const CORES: usize> Attached<M, CORES> {
    /// Whether a recorder wants to know what items are.
    fn reads_tasks(&self) -> bool {
        self.dep_gen.is_some() || self.args_dump.is_some()
    }
}

/// The recorders of one lane.
pub(crate) struct Recorder<M: DeviceMemory, const CORES: usize> {
    lane: LaneIndex,
    boot: LaneBoot<M>,
    generation: Option<u32>,
    signs: Signs<M>,
    /// Records that earlier recorders of the lane have lost.
    dropped_before: u32,
    attached: Attached<M, CORES>,
    stamps: Stamps,
    /// Whether a recorder is asked before a dispatch.
    grants: bool,
    /// Whether a recorder does not record all that it is told of.
    selects: bool,
    /// Recording is over but for what cores still owe.
    settling: bool,
}

impl<M: DeviceMemory, const CORES: usize> Recorder<M, CORES> {
    /// The recorders of `lane`, none attached yet.
    ///
    /// # Errors
    /// [`Fault`] when the boot block lies outside device memory.
    pub(crate) fn attach<P: Platform<Memory = M>>(cx: &Context<P>, lane: LaneIndex) -> Result<Self, Fault> {
        let boot = cx.map().boot;
        let vitals = LaneVitals::begin(cx.memory(), status_block(boot), lane.get(), cx.platform().core_id())?;
        Ok(Self {
            lane,
            boot: LaneBoot::attach(cx.memory(), boot)?,
            generation: None,
            signs: Signs { heartbeat: Heartbeat::silent(), vitals },
            dropped_before: 0,
            attached: Attached::NONE,
            stamps: Stamps::default(),
            grants: false,
            selects: false,
            settling: false,
        })
    }

    /// Follows the boot block: attaches to what the host asks for, or flushes when it asks for the end. Called at the start
    /// of every round, so that what is kicked off after an attach is recorded. Blocks while it flushes; what cores owe by then
    /// is looked for round by round.
    pub(crate) fn sync<P: Platform<Memory = M>>(&mut self, cx: &Context<P>) -> Activity {
        self.signs.heartbeat.beat();
        self.signs.vitals.note_dropped(self.dropped::<P>());
        let generation = self.boot.generation();
        if generation == self.generation {
            if self.attached.follow::<P>() {
                self.note_wishes::<P>();
            }
            return Activity::Idle;
        }
        if generation.is_none() {
            self.settling = true;
            if let Settlement::Owed { until_cycles } = self.settle(cx) {
                return Activity::Until(until_cycles);
            }
            with_subsystems!(tell! self, cx, |recorder, env| recorder.flush(env));
        }
        self.settling = false;
        self.dropped_before = self.dropped::<P>();
        self.signs.heartbeat = Heartbeat::silent();
        self.attached = Attached::NONE;
        self.generation = generation;
        if let Some(number) = generation.and_then(NonZeroU32::new)
            && let Ok(recorders) = self.boot.recorders()
        {
            self.begin(cx, number, &recorders);
        }
        self.note_wishes::<P>();
        cx.note_host_news();
        Activity::Idle
    }

    /// The lane has its services.
    pub(crate) fn begin_rounds(&self) {
        self.signs.vitals.run();
    }

    fn dropped<P: Platform<Memory = M>>(&self) -> u32 {
        self.dropped_before.wrapping_add(self.attached.dropped::<P>())
    }

    fn note_wishes<P: Platform<Memory = M>>(&mut self) {
        self.stamps = self.attached.stamps::<P>();
        self.grants = self.attached.grants::<P>();
        self.selects = self.attached.selects::<P>();
    }

    /// Whether cores have left what they owe.
    fn settle<P: Platform<Memory = M>>(&mut self, cx: &Context<P>) -> Settlement {
        let mut all = Settlement::Settled;
        with_subsystems!(tell! self, cx, |recorder, env| {
            if let Settlement::Owed { until_cycles } = recorder.settle(env) {
                all = Settlement::Owed { until_cycles };
            }
        });
        all
    }

    /// Attaches what can be attached. What the host asked for and the device refuses it finds in the answer.
    fn begin<P: Platform<Memory = M>>(&mut self, cx: &Context<P>, number: NonZeroU32, recorders: &Recorders) {
        if let Ok(run) = Run::open(cx, self.lane, number, recorders) {
            self.attached = Attached::attach(cx, self.lane, &run);
            let _ = self.attached.follow::<P>();
        }
        if self.lane == LaneIndex::SEQUENCER && self.attached.reads_tasks() {
            tasks::forget_all(cx);
        }
        if self.lane == LaneIndex::SEQUENCER && !self.attached.is_empty() {
            self.signs.heartbeat = Heartbeat::at(cx.memory(), recorders.extension);
        }
    }

    /// The time, if some recorder wants it of a submit.
    #[inline]
    pub(crate) fn submit_clock<P: Platform<Memory = M>>(&self, cx: &Context<P>) -> Option<u64> {
        self.stamps.submits.then(|| cx.now_cycles())
    }

    /// The time, if some recorder wants it of an item.
    #[inline]
    pub(crate) fn item_clock<P: Platform<Memory = M>>(&self, cx: &Context<P>) -> Option<u64> {
        self.stamps.items.then(|| cx.now_cycles())
    }

    /// The time, if some recorder wants it of an item that is dispatched now.
    #[inline]
    pub(crate) fn dispatch_clock<P: Platform<Memory = M>>(&self, cx: &Context<P>) -> Option<u64> {
        if self.settling { None } else { self.item_clock(cx) }
    }

    /// Who records what belongs to that execution of a TPB, as the host wants it.
    #[inline]
    pub(crate) fn pick<P: Platform<Memory = M>>(&mut self, cx: &Context<P>, execution: u32) -> Picked {
        if self.selects { self.attached.pick(cx, execution) } else { Picked::ALL }
    }

    /// Whether `core` may be given the next item, which those record who are `picked`.
    #[inline]
    pub(crate) fn grant<P: Platform<Memory = M>>(
        &mut self,
        cx: &Context<P>,
        core: CoreIndex,
        picked: Picked,
    ) -> Grant {
        if self.grants && !self.settling { self.ask(cx, core, picked) } else { Grant::Granted(None) }
    }

    fn ask<P: Platform<Memory = M>>(&mut self, cx: &Context<P>, core: CoreIndex, picked: Picked) -> Grant {
        let mut grant = Grant::Granted(None);
        with_subsystems!(tell! self, cx, picked, |recorder, env| {
            if Recording::<P>::grants(recorder) {
                grant = recorder.grant(core, env);
            }
        });
        grant
    }

    /// An execution was started.
    pub(crate) fn submitted<P: Platform<Memory = M>>(&mut self, cx: &Context<P>, submit: &Submit) {
        let picked = self.pick(cx, submit.ordinal);
        with_subsystems!(tell! self, cx, picked, |recorder, env| recorder.submitted(submit, env));
        if picked != Picked::ALL {
            self.attached.pass_over::<P>(picked, Events::Submits, submit.tpb);
        }
    }

    /// An item is handed to its core next.
    #[inline]
    pub(crate) fn dispatching<P: Platform<Memory = M>>(
        &mut self,
        cx: &Context<P>,
        core: CoreIndex,
        item: &ItemAt,
        picked: Picked,
    ) {
        with_subsystems!(tell! self, cx, picked, |recorder, env| recorder.dispatching(core, item, env));
    }

    /// An item was handed to its core.
    #[inline]
    pub(crate) fn dispatched<P: Platform<Memory = M>>(&mut self, cx: &Context<P>, dispatch: &Dispatch) {
        if self.settling {
            return;
        }
        with_subsystems!(tell! self, cx, dispatch.picked, |recorder, env| recorder.dispatched(dispatch, env));
        if dispatch.picked != Picked::ALL {
            self.attached.pass_over::<P>(dispatch.picked, Events::Items, dispatch.core.tpb());
        }
    }

    /// A core was given an item that is made up, which it records. Nobody else does.
    pub(crate) fn dispatched_made_up<P: Platform<Memory = M>>(
        &mut self,
        cx: &Context<P>,
        core: CoreIndex,
        token: u32,
    ) {
        let dispatch = Dispatch {
            core,
            token,
            iteration: 0,
            misses: 0,
            dispatch_cycles: None,
            is_recorded_by_core: true,
            picked: Picked::ALL,
        };
        with_subsystems!(tell! self, cx, |recorder, env| {
            if Recording::<P>::grants(recorder) {
                recorder.dispatched(&dispatch, env);
            }
        });
    }

    /// A core has finished an item, and those who wait for it are told next.
    #[inline]
    pub(crate) fn finished<P: Platform<Memory = M>>(&mut self, cx: &Context<P>, finish: &Finish) {
        with_subsystems!(tell! self, cx, finish.picked, |recorder, env| recorder.finished(finish, env));
        // One that is made up was never dispatched.
        if finish.picked != Picked::ALL && finish.item.is_none() {
            self.attached.pass_over::<P>(finish.picked, Events::Items, finish.core.tpb());
        }
    }

    /// Those who wait for the item have been told.
    #[inline]
    pub(crate) fn completed<P: Platform<Memory = M>>(&mut self, cx: &Context<P>, finish: &Finish) {
        with_subsystems!(tell! self, cx, finish.picked, |recorder, env| recorder.completed(finish, env));
    }

    /// Makes up the records of `batch`.
    pub(crate) fn make_up<P: Platform<Memory = M>>(&mut self, cx: &Context<P>, batch: &mut Batch<'_>) {
        with_subsystems!(tell! self, cx, |recorder, env| recorder.make_up(batch, env));
    }

    /// All engines have ended an execution of `tpb`, and the host is told next.
    pub(crate) fn execution_ended<P: Platform<Memory = M>>(&mut self, cx: &Context<P>, tpb: TpbId) {
        with_subsystems!(tell! self, cx, |recorder, env| recorder.execution_ended(tpb, env));
        if self.attached.reads_tasks() {
            tasks::forget(cx, tpb);
        }
    }

    /// An engine has ended its part of an execution.
    pub(crate) fn engine_ended<P: Platform<Memory = M>>(&mut self, cx: &Context<P>, end: &EngineEnd) {
        with_subsystems!(tell! self, cx, |recorder, env| recorder.engine_ended(end, env));
    }

    /// A sequencer can go on no further, and the host is told next.
    pub(crate) fn failed<P: Platform<Memory = M>>(&mut self, cx: &Context<P>) {
        with_subsystems!(tell! self, cx, |recorder, env| recorder.failed(env));
    }
}
