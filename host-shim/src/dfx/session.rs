//! A profiling session: from planned memory to accounts that add up.
//!
//! ```text
//!  start                                    stop
//!   plan memory, fill free queues            ask the lanes to flush
//!   service thread ── collector threads      keep serving until each has, or its deadline passed
//!   hand the lanes their regions             drain what is left, collect it
//!                                            open all gates, say that nobody serves, add up
//! ```
//!
//! However many subsystems record, two threads serve them all: the service, which turns over every subsystem's drain and
//! keeper, and the collector, which copies each buffer out, hands its records to the [`Sink`], and only then lets the buffer
//! go back. A session may have more collectors; each takes the buffers of some pools. What each thread does while the others
//! are busy: see the service.

use std::mem::offset_of;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use sluice_core::exec::HostBoot;
use sluice_core::layout::extension::{self, Answer, AnswerCode, Heartbeat, LaneActivity, LaneStatus};
use sluice_core::layout::{SUBSYSTEMS, SubsystemId};
use sluice_core::mem::{Fault, Memory, Own, Peer};
use sluice_core::producer::Control;

use super::account::{Account, Accounts};
use super::again::again;
use super::arena::PayloadsUnderWay;
use super::collector::{Collected, Collector, Source};
use super::config::DfxConfig;
use super::control;
use super::pipe::WaitPipe;
use super::plan::{FIRST_CONTROL, Part, Plan, PlanError};
use super::server::{Outlet, Server, ServerCounts, ToCollect};
use super::service::{Orders, Service};
use super::sink::{Change, Sink};
use super::waits::UNDER_WAY;
use super::worker::Worker;
use crate::device::Device;
use crate::device::heap::Heap;

/// How much longer than the device's own deadline the host waits for a flush.
const FLUSH_GRACE: Duration = Duration::from_secs(1);
/// Room in a collector's pipe beside all buffers: freezes that ended and were not written yet.
const FREEZES: usize = 64;

/// Why a session failed.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// Its memory could not be had.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// Device memory could not be reached.
    #[error(transparent)]
    Fault(#[from] Fault),
    /// The device does not understand the extension block.
    #[error("device refused the extension block: {}", .0.name().unwrap_or("unknown answer"))]
    Refused(AnswerCode),
    /// It is not on in this session.
    #[error("{0} is not on in this session")]
    NotOn(SubsystemId),
    /// Lanes did not follow what was asked of them in time.
    #[error("{lanes} lanes have not followed within {limit:?} what is to be recorded of {subsystem}")]
    NotFollowed {
        /// Of what.
        subsystem: SubsystemId,
        /// How many.
        lanes: u32,
        /// How long was waited.
        limit: Duration,
    },
    /// The sink did not take a change of what is recorded.
    #[error("the change of what is to be recorded of {subsystem} cannot be noted")]
    Unnoted {
        /// Of what.
        subsystem: SubsystemId,
        /// Why.
        #[source]
        error: std::io::Error,
    },
    /// A thread could not be started.
    #[error("cannot start the {role} thread of the profiling session")]
    Thread {
        /// What it is for.
        role: &'static str,
        /// Why.
        #[source]
        error: std::io::Error,
    },
    /// A thread of the session panicked; what it held is lost.
    #[error("the {0} thread of the profiling session panicked")]
    Panicked(&'static str),
    /// A thread of the session did not end: a sink took a buffer and never returned. What it held is lost.
    #[error("the {role} thread of the profiling session did not end within {limit:?}")]
    Stuck {
        /// What it is for.
        role: &'static str,
        /// How long was waited.
        limit: Duration,
    },
}

/// A running session. Dropped without [`stop`](Session::stop), it ends its threads and detaches from the device; what is
/// not collected by then is lost.
pub struct Session<D: Device> {
    device: Arc<D>,
    plan: Arc<Plan>,
    /// Whether every lane has, so that none writes the session's memory any more.
    flushed: bool,
    config: DfxConfig,
    /// Numbers of what lanes were told last, by subsystem.
    told: [u32; SUBSYSTEMS],
    boot: HostBoot<D::Mem>,
    orders: Arc<Orders>,
    sink: Arc<dyn Sink>,
    service: Option<Worker<Service<D>>>,
    collectors: Vec<Worker<Vec<Collected>>>,
    /// What collectors wait at.
    pipes: Arc<[WaitPipe<ToCollect>]>,
}

impl<D: Device> Session<D> {
    /// Plans the memory, starts serving, and has the lanes attach.
    ///
    /// # Errors
    /// [`SessionError`]; nothing stays behind.
    pub fn start(
        device: &Arc<D>,
        heap: &Heap,
        config: DfxConfig,
        sink: Arc<dyn Sink>,
    ) -> Result<Self, SessionError> {
        let memory = device.memory();
        let plan = Arc::new(Plan::new(&config, memory, heap)?);
        let boot = HostBoot::attach(memory, device.map().boot)?;
        let orders = Arc::new(Orders::new());
        let sources: Arc<[Source]> = plan.parts().iter().map(source).collect();
        let buffers: usize = plan.parts().iter().map(|part| part.directory.buffers() as usize).sum();
        let pipes: Arc<[WaitPipe<ToCollect>]> =
            (0..config.collectors.get()).map(|_| WaitPipe::with_capacity(buffers + FREEZES)).collect();
        let servers = plan.parts().iter().zip(&*sources).enumerate().map(|(number, (part, source))| {
            let outlet = Outlet {
                part: number,
                directory: Arc::clone(&part.directory),
                collectors: Arc::clone(&pipes),
                payloads: Arc::clone(&source.payloads),
                waits: Arc::clone(&source.waits),
            };
            let returned = Arc::clone(&source.returned);
            Server::attach(memory, &plan, part, &config, outlet, returned, Arc::clone(&orders))
        });
        let servers = servers.collect::<Result<Vec<_>, _>>()?;
        let heartbeat = plan.extension_word(extension::HEARTBEAT + offset_of!(Heartbeat, heartbeat_host));
        let heartbeat = Own::new(memory.word(heartbeat)?);
        let mirror = plan.mirror(memory, heap)?;
        let service =
            Service::new(Arc::clone(device), servers, heartbeat, mirror, Arc::clone(&orders), config.linger);
        let mut session = Self {
            device: Arc::clone(device),
            plan: Arc::clone(&plan),
            // None has attached yet.
            flushed: true,
            config,
            told: [FIRST_CONTROL; SUBSYSTEMS],
            boot,
            orders: Arc::clone(&orders),
            sink: Arc::clone(&sink),
            service: None,
            collectors: Vec::new(),
            pipes: Arc::clone(&pipes),
        };
        for number in 0..pipes.len() {
            let collector = Collector::new(
                memory.clone(),
                Arc::clone(&sources),
                Arc::clone(&pipes),
                number,
                Arc::clone(&sink),
                service.desk(),
            );
            let orders = Arc::clone(&orders);
            session.collectors.push(Worker::spawn("collecting", move || collector.run(&orders))?);
        }
        session.service = Some(Worker::spawn("serving", move || service.run())?);
        let first: Vec<_> = session.config.enabled().map(|(of, config)| (of, config.control())).collect();
        for (subsystem, control) in first {
            session.note(subsystem, control, FIRST_CONTROL, true)?;
        }
        session.flushed = false;
        session.boot.attach_recorders(&plan.recorders())?;
        device.wake_lanes();
        Ok(session)
    }

    /// Bytes of device memory the session holds.
    pub fn device_bytes(&self) -> u64 {
        self.plan.bytes()
    }

    /// What is recorded of `subsystem`, or was told last to be.
    fn note(
        &self,
        subsystem: SubsystemId,
        control: Control,
        number: u32,
        is_followed: bool,
    ) -> Result<(), SessionError> {
        let change = Change { subsystem, number, control, is_followed, at_cycles: self.device.now_cycles() };
        self.sink.change(&change).map_err(|error| SessionError::Unnoted { subsystem, error })
    }

    /// Has another level, sample or window of `subsystem` recorded from now on. What is kicked off after that is recorded
    /// so; of what is under way a part may be. Blocks until every lane follows, at most a deadline and a second.
    ///
    /// # Errors
    /// [`SessionError`] when the subsystem is not on, the sink does not take the change, or lanes have not followed in time.
    pub fn set(&mut self, subsystem: SubsystemId, control: &Control) -> Result<(), SessionError> {
        if !self.plan.parts().iter().any(|part| part.subsystem == subsystem) {
            return Err(SessionError::NotOn(subsystem));
        }
        let (limit, service) = (self.deadline() + FLUSH_GRACE, self.plan.service(subsystem));
        let until = Instant::now() + limit;
        let seen = offset_of!(LaneStatus, control_seen);
        // What lanes have not read yet must not change under them.
        let follow = |session: &Self, told: u32| {
            let lanes = session.wait_lanes(until, seen, |of, seen| of != subsystem || seen == told)?;
            match lanes.into_iter().sum() {
                0 => Ok(()),
                lanes => Err(SessionError::NotFollowed { subsystem, lanes, limit }),
            }
        };
        let told = self.told[subsystem.index()];
        follow(self, told)?;
        let next = told.wrapping_add(1);
        self.note(subsystem, *control, next, false)?;
        again(|| control::write(self.device.memory(), service, control, next))?;
        self.told[subsystem.index()] = next;
        self.device.wake_lanes();
        follow(self, next)?;
        self.note(subsystem, *control, next, true)
    }

    /// Drains and collects nothing for `duration`, as a host whose consumers are busy elsewhere; lanes must wait it out, in a
    /// freeze once they have no buffers. A stop ends the pause.
    pub fn pause(&self, duration: Duration) {
        self.orders.pause(duration);
    }

    /// A pause in which the owner of the gates does nothing either and the host shows no sign of life, as a process that is
    /// not scheduled. Lanes that wait for longer than their deadline lose records.
    pub fn stand_still(&self, duration: Duration) {
        self.orders.stand_still(duration);
    }

    /// Ends a pause.
    pub fn resume(&self) {
        self.orders.resume();
    }

    /// Asks the lanes to flush, serves them until they have, and adds up. Blocks until every lane has flushed or its deadline
    /// and a second more have passed, and up to the configured linger for a sink that takes nothing. The memory of a session
    /// whose lanes have not flushed is not used again: they may still write it.
    ///
    /// # Errors
    /// [`SessionError`] when the device's memory cannot be reached any more, or a thread panicked or did not end.
    pub fn stop(mut self) -> Result<Accounts, SessionError> {
        self.orders.resume();
        let limit = Instant::now() + self.deadline() + FLUSH_GRACE;
        // A lane that was told to stop before it ever attached would say nothing.
        let attached =
            self.wait_lanes(limit, offset_of!(LaneStatus, state), |_, state| state != LaneActivity::IDLE.0);
        // A device that refuses has attached nothing.
        self.flushed = matches!(attached, Err(SessionError::Refused(_)));
        attached?;
        again(|| self.boot.stop_recorders())?;
        self.device.wake_lanes();
        let missing = self.wait_lanes(limit, offset_of!(LaneStatus, flushed), |_, flushed| flushed == 1)?;
        self.flushed = missing.iter().all(|&lanes| lanes == 0);
        let (service, collected) = self.end_threads()?;
        // A lane that has not flushed may still stamp its own.
        if self.flushed
            && let Err(error) = self.sink.phases(&self.plan.phases(self.device.memory())?)
        {
            tracing::warn!("phases of the device are not kept: {error}");
        }
        let counts = service.counts();
        let parts = self.plan.parts().iter().zip(&counts);
        let account = |((part, counts), (collected, missing)): ((&Part, &ServerCounts), _)| {
            let account = Account::of(self.device.memory(), &self.plan, part, *counts, collected, missing)?;
            Ok((part.subsystem, account))
        };
        parts.zip(collected.iter().zip(missing)).map(account).collect()
    }

    /// Ends the threads. What was collected of each subsystem, and the service with the rest.
    fn end_threads(&mut self) -> Result<(Service<D>, Vec<Collected>), SessionError> {
        self.orders.stop.store(true, Ordering::Release);
        // Within its own bounds; a transport may take its time.
        let service_limit = 2 * self.config.linger + FLUSH_GRACE;
        let service = self.service.take().map(|service| service.join(service_limit));
        // The service has told them, if there was one.
        self.orders.collector_stop.store(true, Ordering::Release);
        self.pipes.iter().for_each(WaitPipe::close);
        let collectors = self.collectors.drain(..).map(|collector| collector.join(self.config.linger));
        let collectors: Vec<_> = collectors.collect();
        self.orders.abandoned.store(true, Ordering::Release);
        let service = service.unwrap_or(Err(SessionError::Panicked("serving")))?;
        again(|| service.detach())?;
        let mut collected: Option<Vec<Collected>> = None;
        for found in collectors {
            let found = found?;
            match &mut collected {
                None => collected = Some(found),
                Some(all) => all.iter_mut().zip(&found).for_each(|(all, found)| all.add(found)),
            }
        }
        Ok((service, collected.unwrap_or_default()))
    }

    fn deadline(&self) -> Duration {
        let facts = self.config.shape.arch().facts();
        let cycles = self.config.deadline_cycles.unwrap_or(facts.default_deadline_cycles());
        Duration::from_secs_f64(cycles as f64 / self.device.frequency_hz() as f64)
    }

    /// Waits until the word at `offset` of what each lane says of itself is `as_wanted`. Returns of how many lanes of each
    /// subsystem it is not by `limit`. A device that refused the extension block has attached no recorder, so nothing is
    /// waited for, and one that has gone says nothing any more.
    fn wait_lanes(
        &self,
        limit: Instant,
        offset: usize,
        as_wanted: impl Fn(SubsystemId, u32) -> bool,
    ) -> Result<Vec<u32>, SessionError> {
        let memory = self.device.memory();
        let words_of = |part: &Part| {
            let word = |lane| {
                again(|| memory.word(self.plan.lane_word(part.subsystem, lane, offset)?)).map(Peer::new)
            };
            (0..self.config.shape.lanes()).map(word).collect::<Result<Vec<_>, Fault>>()
        };
        let words = self.plan.parts().iter().map(words_of).collect::<Result<Vec<_>, _>>()?;
        let answer = self.plan.extension_word(extension::ANSWER + offset_of!(Answer, answer));
        let answer = Peer::new(again(|| memory.word(answer))?);
        loop {
            let seen = self.device.progress();
            let code = AnswerCode(again(|| answer.try_observe())?);
            if code != AnswerCode::NONE && code != AnswerCode::ACCEPTED {
                return Err(SessionError::Refused(code));
            }
            let mut missing = Vec::new();
            for (part, lanes) in self.plan.parts().iter().zip(&words) {
                let mut count = 0;
                for word in lanes {
                    count += u32::from(!as_wanted(part.subsystem, again(|| word.try_observe())?));
                }
                missing.push(count);
            }
            if missing.iter().all(|&lanes| lanes == 0) || Instant::now() >= limit {
                return Ok(missing);
            }
            if self.device.wait_progress(seen, Duration::from_millis(1)) == seen
                && self.device.fate().is_some()
            {
                return Ok(missing);
            }
        }
    }

    /// Ends the threads that are left.
    fn end(&mut self) {
        if self.service.is_none() && self.collectors.is_empty() {
            return;
        }
        let stopped = self.boot.stop_recorders();
        if let Err(error) = stopped.map_err(SessionError::from).and_then(|()| self.end_threads().map(drop)) {
            tracing::warn!("profiling session dropped: {error}");
        }
    }
}

impl<D: Device> Drop for Session<D> {
    fn drop(&mut self) {
        self.end();
        if !self.flushed {
            tracing::warn!("lanes may still record: the memory of their session is not used again");
            std::mem::forget(Arc::clone(&self.plan));
        }
    }
}

fn source(part: &Part) -> Source {
    let returned = Arc::new(WaitPipe::with_capacity(part.directory.buffers() as usize));
    let directory = Arc::clone(&part.directory);
    let waits = Arc::new(WaitPipe::with_capacity(UNDER_WAY));
    let payloads = Arc::new(PayloadsUnderWay::new(part.region.shape().lanes() as usize));
    let (subsystem, region) = (part.subsystem, part.region);
    Source { subsystem, region, directory, returned, arenas: part.arenas(), payloads, waits }
}
