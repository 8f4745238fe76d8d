//! Writing packets: tracks made when first used, names stored once, slices that never overlap on a track.

use std::collections::HashMap;
use std::io::{self, Write};

use super::schema::{TRACE_PACKET, annotation, event, interned, packet, process, thread, track};
use crate::capture::{Gate, Subsystem};
use crate::export::proto::Message;

/// The only packet sequence.
const SEQUENCE: u64 = 1;
/// Most tracks that a group of overlapping slices spreads over. More is nothing a device does.
const MAX_OVERLAP: usize = 64;
/// Packets are handed on in pieces of about this many bytes.
const CHUNK_BYTES: usize = 1 << 16;

/// Most groups that stand beside each other for one lane or core.
const PLACES: i64 = 4;

const DEVICE_PID: u64 = 1;
const HOST_PID: u64 = 2;

/// A place for slices; spreads over several tracks while slices overlap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Group {
    /// What a lane went through in a session.
    Phases { lane: u32 },
    /// Phases of a lane's loop.
    Scheduler { lane: u32 },
    /// Request decoding of a lane.
    Orchestrator { lane: u32 },
    /// Waits of a lane at gates.
    Waits { lane: u32 },
    /// Executions of a TPB with how full everything was.
    Scopes { tpb: u32 },
    /// Tasks of a core, stamped by its lane.
    Core { core: u32 },
    /// Tasks of a core, stamped by itself.
    Kernel { core: u32 },
    /// Tasks of a core with what its counters read.
    Counters { core: u32 },
    /// Freezes of one gate.
    Freezes { subsystem: Subsystem, gate: Gate },
    /// What a host thread did.
    HostThread(u32),
}

/// A track of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Track {
    /// The device.
    Device,
    /// The host.
    Host,
    /// Folder of lane tracks.
    Lanes,
    /// Folder of core tracks.
    Cores,
    /// Folder of freeze tracks.
    FreezeFolder,
    /// What the capture says of itself.
    Capture,
    /// Lost records.
    Losses,
    /// What was recorded from when on.
    Recording,
    /// One track of a group.
    Of(Group, usize),
}

/// An argument of a slice or mark.
#[derive(Clone, Copy, Debug)]
pub(super) enum Value<'a> {
    Number(u64),
    Text(&'a str),
}

impl From<u64> for Value<'_> {
    fn from(number: u64) -> Self {
        Self::Number(number)
    }
}

impl From<u32> for Value<'_> {
    fn from(number: u32) -> Self {
        Self::Number(number.into())
    }
}

impl<'a> From<&'a str> for Value<'a> {
    fn from(text: &'a str) -> Self {
        Self::Text(text)
    }
}

/// A named argument; units stand in the name.
pub(super) type Argument<'a> = (&'static str, Value<'a>);

/// Arrows between slices, by numbers that both ends know.
#[derive(Clone, Default, Debug)]
pub(super) struct Flows {
    /// Those that begin here.
    pub(super) begin: Vec<u64>,
    /// Those that end here.
    pub(super) end: Vec<u64>,
}

/// What was written.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Written {
    pub(super) slices: u64,
    pub(super) marks: u64,
    pub(super) malformed: u64,
    pub(super) bytes: u64,
}

/// A trace being written.
pub(super) struct TraceWriter<W> {
    out: W,
    packets: Vec<u8>,
    device: String,
    uuids: HashMap<Track, u64>,
    /// When the last slice of each track of a group ended.
    ends: HashMap<Group, Vec<u64>>,
    event_names: Names,
    annotation_names: Names,
    core_names: Vec<String>,
    written: Written,
}

impl<W: Write> TraceWriter<W> {
    /// Begins a trace of a device and its cores, all of them to be shown under these names.
    pub(super) fn begin(out: W, device: String, core_names: Vec<String>) -> Self {
        let mut trace = Self {
            out,
            packets: Vec::with_capacity(2 * CHUNK_BYTES),
            device,
            uuids: HashMap::new(),
            ends: HashMap::new(),
            event_names: Names::default(),
            annotation_names: Names::default(),
            core_names,
            written: Written::default(),
        };
        Message::new(&mut trace.packets).nested(TRACE_PACKET, |m| {
            m.uint(packet::SEQUENCE_ID, SEQUENCE).uint(packet::SEQUENCE_FLAGS, packet::STATE_CLEARED);
        });
        trace.uuid(Track::Device);
        trace.uuid(Track::Host);
        trace
    }

    /// Writes what happened from `start_ns` to `end_ns`.
    pub(super) fn slice<'a>(
        &mut self,
        group: Group,
        name: &str,
        start_ns: u64,
        end_ns: u64,
        arguments: impl IntoIterator<Item = Argument<'a>>,
    ) -> io::Result<()> {
        self.slice_with(group, name, [start_ns, end_ns], &Flows::default(), arguments)
    }

    /// A slice at which arrows begin and end.
    pub(super) fn slice_with<'a>(
        &mut self,
        group: Group,
        name: &str,
        [start_ns, end_ns]: [u64; 2],
        flows: &Flows,
        arguments: impl IntoIterator<Item = Argument<'a>>,
    ) -> io::Result<()> {
        let ends = self.ends.entry(group).or_default();
        let free = ends.iter().position(|&end| end <= start_ns).unwrap_or(ends.len());
        if end_ns < start_ns || free == MAX_OVERLAP {
            self.written.malformed += 1;
            return self.event(Track::Of(group, 0), event::INSTANT, name, start_ns, flows, arguments);
        }
        if free == ends.len() {
            ends.push(end_ns);
        } else {
            ends[free] = end_ns;
        }
        let track = Track::Of(group, free);
        self.event(track, event::SLICE_BEGIN, name, start_ns, flows, arguments)?;
        let uuid = self.uuid(track);
        Message::new(&mut self.packets).nested(TRACE_PACKET, |m| {
            m.uint(packet::TIMESTAMP, end_ns).uint(packet::SEQUENCE_ID, SEQUENCE);
            m.nested(packet::TRACK_EVENT, |m| {
                m.uint(event::TYPE, event::SLICE_END).uint(event::TRACK_UUID, uuid);
            });
        });
        self.written.slices += 1;
        self.hand_on(CHUNK_BYTES)
    }

    /// Writes that something happened at `at_ns`.
    pub(super) fn mark(
        &mut self,
        track: Track,
        name: &str,
        at_ns: u64,
        arguments: &[Argument<'_>],
    ) -> io::Result<()> {
        self.written.marks += 1;
        self.event(track, event::INSTANT, name, at_ns, &Flows::default(), arguments.iter().copied())
    }

    fn event<'a>(
        &mut self,
        track: Track,
        kind: u64,
        name: &str,
        at_ns: u64,
        flows: &Flows,
        arguments: impl IntoIterator<Item = Argument<'a>>,
    ) -> io::Result<()> {
        let uuid = self.uuid(track);
        let (name_iid, name_is_new) = self.event_names.iid(name);
        let annotation_names = &mut self.annotation_names;
        let known = annotation_names.len();
        Message::new(&mut self.packets).nested(TRACE_PACKET, |m| {
            m.uint(packet::TIMESTAMP, at_ns).uint(packet::SEQUENCE_ID, SEQUENCE);
            m.uint(packet::SEQUENCE_FLAGS, packet::NEEDS_STATE);
            m.nested(packet::TRACK_EVENT, |m| {
                m.uint(event::TYPE, kind).uint(event::TRACK_UUID, uuid).uint(event::NAME_IID, name_iid);
                for &flow in &flows.begin {
                    m.fixed64(event::FLOW_IDS, flow);
                }
                for &flow in &flows.end {
                    m.fixed64(event::TERMINATING_FLOW_IDS, flow);
                }
                for (name, value) in arguments {
                    let (iid, _) = annotation_names.iid(name);
                    m.nested(event::DEBUG_ANNOTATION, |m| {
                        m.uint(annotation::NAME_IID, iid);
                        match value {
                            Value::Number(number) => m.uint(annotation::UINT, number),
                            Value::Text(text) => m.text(annotation::TEXT, text),
                        };
                    });
                }
            });
            if name_is_new || annotation_names.len() > known {
                m.nested(packet::INTERNED_DATA, |m| {
                    if name_is_new {
                        entry(m, interned::EVENT_NAME, name_iid, name);
                    }
                    for (iid, name) in annotation_names.since(known) {
                        entry(m, interned::ANNOTATION_NAME, iid, name);
                    }
                });
            }
        });
        self.hand_on(CHUNK_BYTES)
    }

    /// The number of a track; its description is written when it is first asked for.
    fn uuid(&mut self, track: Track) -> u64 {
        if let Some(&uuid) = self.uuids.get(&track) {
            return uuid;
        }
        let parent = parent_of(track).map(|parent| self.uuid(parent));
        let uuid = self.uuids.len() as u64 + 1;
        self.uuids.insert(track, uuid);
        let name = self.name_of(track);
        Message::new(&mut self.packets).nested(TRACE_PACKET, |m| {
            m.uint(packet::SEQUENCE_ID, SEQUENCE);
            m.nested(packet::TRACK_DESCRIPTOR, |m| {
                m.uint(track::UUID, uuid);
                match track {
                    Track::Device | Track::Host => {
                        let pid = if track == Track::Device { DEVICE_PID } else { HOST_PID };
                        m.nested(track::PROCESS, |m| {
                            _ = m.uint(process::PID, pid).text(process::NAME, &name)
                        });
                    }
                    Track::Of(Group::HostThread(tid), 0) => {
                        m.nested(track::THREAD, |m| {
                            // Thread numbers are signed there; anything else a capture states would not decode.
                            let tid = u64::from(tid & i32::MAX as u32);
                            m.uint(thread::PID, HOST_PID).uint(thread::TID, tid).text(thread::NAME, &name);
                        });
                    }
                    _ => _ = m.text(track::NAME, &name),
                }
                if let Some(parent) = parent {
                    m.uint(track::PARENT_UUID, parent);
                }
                m.uint(track::CHILD_ORDERING, track::EXPLICIT).int(track::SIBLING_ORDER_RANK, rank_of(track));
            });
        });
        uuid
    }

    fn name_of(&self, track: Track) -> String {
        let Track::Of(group, overlap) = track else {
            return match track {
                Track::Device => self.device.clone(),
                Track::Host => "host".into(),
                Track::Lanes => "lanes".into(),
                Track::Cores => "cores".into(),
                Track::FreezeFolder => "freezes".into(),
                Track::Capture => "capture".into(),
                Track::Recording => "recording".into(),
                Track::Losses | Track::Of(..) => "losses".into(),
            };
        };
        let core_name = |core: u32| match self.core_names.get(core as usize) {
            Some(name) => name.clone(),
            None => format!("core {core}"),
        };
        let name = match group {
            Group::Phases { lane } => format!("lane {lane} phases"),
            Group::Scheduler { lane } => format!("lane {lane} scheduler"),
            Group::Orchestrator { lane } => format!("lane {lane} orchestrator"),
            Group::Waits { lane } => format!("lane {lane} waits"),
            Group::Scopes { tpb } => format!("TPB{tpb} scopes"),
            Group::Core { core } => core_name(core),
            Group::Kernel { core } => format!("{} kernel", core_name(core)),
            Group::Counters { core } => format!("{} counters", core_name(core)),
            Group::Freezes { subsystem, gate } => format!("{subsystem} {gate}"),
            Group::HostThread(tid) => format!("thread {tid}"),
        };
        if overlap == 0 { name } else { format!("{name} (overlap {overlap})") }
    }

    fn hand_on(&mut self, at_least_bytes: usize) -> io::Result<()> {
        if self.packets.len() >= at_least_bytes {
            self.out.write_all(&self.packets)?;
            self.written.bytes += self.packets.len() as u64;
            self.packets.clear();
        }
        Ok(())
    }

    /// Hands on the rest.
    pub(super) fn finish(mut self) -> io::Result<Written> {
        self.hand_on(1)?;
        self.out.flush()?;
        Ok(self.written)
    }
}

fn entry(m: &mut Message<'_>, field: u32, iid: u64, name: &str) {
    m.nested(field, |m| _ = m.uint(interned::IID, iid).text(interned::TEXT, name));
}

fn parent_of(track: Track) -> Option<Track> {
    Some(match track {
        Track::Device | Track::Host => return None,
        Track::Lanes
        | Track::Cores
        | Track::FreezeFolder
        | Track::Capture
        | Track::Losses
        | Track::Recording => Track::Device,
        Track::Of(group, _) => match group {
            Group::Phases { .. }
            | Group::Scheduler { .. }
            | Group::Orchestrator { .. }
            | Group::Waits { .. }
            | Group::Scopes { .. } => Track::Lanes,
            Group::Core { .. } | Group::Kernel { .. } | Group::Counters { .. } => Track::Cores,
            Group::Freezes { .. } => Track::FreezeFolder,
            Group::HostThread(_) => Track::Host,
        },
    })
}

/// Place among the tracks of the same parent.
fn rank_of(track: Track) -> i64 {
    let pair = |number: u32, place: i64, overlap: usize| {
        (i64::from(number) * PLACES + place) * MAX_OVERLAP as i64 + overlap as i64
    };
    let rank = match track {
        Track::Device | Track::Capture => 0,
        Track::Host | Track::Lanes => 1,
        Track::Cores => 2,
        Track::FreezeFolder => 3,
        Track::Losses => 4,
        Track::Recording => 5,
        Track::Of(group, overlap) => match group {
            Group::Phases { lane } => pair(lane, 0, overlap),
            Group::Scheduler { lane } => pair(lane, 1, overlap),
            Group::Orchestrator { lane } => pair(lane, 2, overlap),
            Group::Waits { lane } => pair(lane, 3, overlap),
            // Behind the lanes.
            Group::Scopes { tpb } => pair(tpb.saturating_add(1 << 8), 0, overlap),
            Group::Core { core } => pair(core, 0, overlap),
            Group::Kernel { core } => pair(core, 1, overlap),
            Group::Counters { core } => pair(core, 2, overlap),
            Group::Freezes { subsystem, gate } => pair(subsystem.0, gate.0.min(1).into(), overlap),
            Group::HostThread(tid) => pair(tid, 0, overlap),
        },
    };
    rank.min(i32::MAX.into())
}

/// Names and their numbers, counted from 1.
#[derive(Debug, Default)]
struct Names {
    iids: HashMap<String, u64>,
    names: Vec<String>,
}

impl Names {
    /// The number of a name, and whether it is new.
    fn iid(&mut self, name: &str) -> (u64, bool) {
        if let Some(&iid) = self.iids.get(name) {
            return (iid, false);
        }
        self.names.push(name.to_owned());
        let iid = self.names.len() as u64;
        self.iids.insert(name.to_owned(), iid);
        (iid, true)
    }

    fn len(&self) -> usize {
        self.names.len()
    }

    /// Names that came after the first `known`.
    fn since(&self, known: usize) -> impl Iterator<Item = (u64, &str)> {
        (known as u64 + 1..).zip(self.names[known..].iter().map(String::as_str))
    }
}
