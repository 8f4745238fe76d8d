//! One segment as a reader delivers it: its payload, judged once and then borrowed.

use zerocopy::FromBytes;

use super::controls::ControlNote;
use super::format::Kind;
use super::payload::{
    BufferHeader, ClockPair, DevicePhaseNote, FreezeEvent, HostPhase, Items, LossNote, Manifest,
    PayloadHeader, Summary, TransitNote, WaitNote,
};

/// One segment.
#[derive(Debug)]
pub enum Segment<'a> {
    /// What was about to run.
    Manifest(Box<Manifest>),
    /// Records of one buffer, as on the wire; as many bytes as the header states.
    Buffer(BufferHeader, &'a [u8]),
    /// Bytes of a payload, which lie inside it.
    Payload(PayloadHeader, &'a [u8]),
    /// Freezes, in the order of their release.
    Freezes(Items<'a, FreezeEvent>),
    /// Readings of both clocks.
    ClockPairs(Items<'a, ClockPair>),
    /// What the host did.
    HostPhases(Items<'a, HostPhase>),
    /// What lanes of the device went through.
    DevicePhases(Items<'a, DevicePhaseNote>),
    /// Waits of lanes at gates, those of one lane and subsystem in order.
    Waits(Items<'a, WaitNote>),
    /// What became of buffers on the host.
    Transits(Items<'a, TransitNote>),
    /// What was to be recorded from when on, that of one subsystem in order.
    Controls(Items<'a, ControlNote>),
    /// Records that did not arrive.
    Losses(Items<'a, LossNote>),
    /// What the run came to.
    End(Box<Summary>),
    /// Written by a later version.
    Unknown(Kind),
}

/// A payload that makes sense, without the bytes it borrows.
pub(super) enum Content {
    Manifest(Box<Manifest>),
    Buffer(BufferHeader),
    Payload(PayloadHeader),
    Freezes { item_bytes: usize },
    ClockPairs,
    HostPhases,
    DevicePhases,
    Waits,
    Transits,
    Controls,
    Losses,
    End(Box<Summary>),
    Unknown(Kind),
}

impl Content {
    /// Looks whether `payload` is what a segment of that kind can hold; what is wrong with it otherwise.
    pub(super) fn of(kind: Kind, payload: &[u8]) -> Result<Self, String> {
        fn document<T: serde::de::DeserializeOwned>(payload: &[u8]) -> Result<Box<T>, String> {
            serde_json::from_slice(payload).map(Box::new).map_err(|error| error.to_string())
        }
        fn whole_items<T>(payload: &[u8], content: Content) -> Result<Content, String> {
            whole(payload, size_of::<T>(), content)
        }
        fn whole(payload: &[u8], item_bytes: usize, content: Content) -> Result<Content, String> {
            if payload.len().is_multiple_of(item_bytes) {
                Ok(content)
            } else {
                Err(format!("{} bytes are no whole number of {item_bytes}-byte items", payload.len()))
            }
        }
        match kind {
            Kind::MANIFEST => document(payload).map(Self::Manifest),
            Kind::END => document(payload).map(Self::End),
            Kind::BUFFER => match BufferHeader::read_from_prefix(payload) {
                Err(_) => Err(format!("{} bytes are too few for a buffer header", payload.len())),
                Ok((header, records)) if header.records_bytes() != records.len() as u64 => Err(format!(
                    "{} records of {} bytes stated, {} bytes are there",
                    header.records,
                    header.record_bytes,
                    records.len()
                )),
                Ok((header, _)) => Ok(Self::Buffer(header)),
            },
            Kind::PAYLOAD => match PayloadHeader::read_from_prefix(payload) {
                Err(_) => Err(format!("{} bytes are too few for a payload header", payload.len())),
                Ok((header, bytes)) => {
                    let end = header.offset_bytes.checked_add(bytes.len() as u64);
                    if end.is_some_and(|end| end <= header.total_bytes) {
                        Ok(Self::Payload(header))
                    } else {
                        let PayloadHeader { offset_bytes, total_bytes, .. } = header;
                        let bytes = bytes.len();
                        Err(format!("{bytes} bytes from {offset_bytes} on of a payload of {total_bytes}"))
                    }
                }
            },
            Kind::FREEZES | Kind::FREEZES_0 => {
                let is_old = kind == Kind::FREEZES_0;
                let item_bytes = if is_old { FreezeEvent::BYTES_0 } else { size_of::<FreezeEvent>() };
                whole(payload, item_bytes, Self::Freezes { item_bytes })
            }
            Kind::CLOCK_PAIRS => whole_items::<ClockPair>(payload, Self::ClockPairs),
            Kind::HOST_PHASES => whole_items::<HostPhase>(payload, Self::HostPhases),
            Kind::DEVICE_PHASES => whole_items::<DevicePhaseNote>(payload, Self::DevicePhases),
            Kind::WAITS => whole_items::<WaitNote>(payload, Self::Waits),
            Kind::TRANSITS => whole_items::<TransitNote>(payload, Self::Transits),
            Kind::CONTROLS => whole_items::<ControlNote>(payload, Self::Controls),
            Kind::LOSSES => whole_items::<LossNote>(payload, Self::Losses),
            later => Ok(Self::Unknown(later)),
        }
    }

    /// The segment, with the payload that was looked at.
    pub(super) fn with(self, payload: &[u8]) -> Segment<'_> {
        match self {
            Self::Manifest(manifest) => Segment::Manifest(manifest),
            Self::Buffer(header) => Segment::Buffer(header, &payload[size_of::<BufferHeader>()..]),
            Self::Payload(header) => Segment::Payload(header, &payload[size_of::<PayloadHeader>()..]),
            Self::Freezes { item_bytes } => Segment::Freezes(Items::of_size(payload, item_bytes)),
            Self::ClockPairs => Segment::ClockPairs(Items::new(payload)),
            Self::HostPhases => Segment::HostPhases(Items::new(payload)),
            Self::DevicePhases => Segment::DevicePhases(Items::new(payload)),
            Self::Waits => Segment::Waits(Items::new(payload)),
            Self::Transits => Segment::Transits(Items::new(payload)),
            Self::Controls => Segment::Controls(Items::new(payload)),
            Self::Losses => Segment::Losses(Items::new(payload)),
            Self::End(summary) => Segment::End(summary),
            Self::Unknown(kind) => Segment::Unknown(kind),
        }
    }
}
