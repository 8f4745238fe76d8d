//! Field numbers and values of the Perfetto trace format, as its published schema gives them.

use crate::export::proto::Field;

/// `Trace.packet`
pub(super) const TRACE_PACKET: Field = 1;

/// `TracePacket`
pub(super) mod packet {
    use super::Field;
    pub(in super::super) const TIMESTAMP: Field = 8;
    pub(in super::super) const SEQUENCE_ID: Field = 10;
    pub(in super::super) const TRACK_EVENT: Field = 11;
    pub(in super::super) const INTERNED_DATA: Field = 12;
    pub(in super::super) const SEQUENCE_FLAGS: Field = 13;
    pub(in super::super) const TRACK_DESCRIPTOR: Field = 60;
    /// `SEQ_INCREMENTAL_STATE_CLEARED`: a table of names begins.
    pub(in super::super) const STATE_CLEARED: u64 = 1;
    /// `SEQ_NEEDS_INCREMENTAL_STATE`: the packet refers to the table.
    pub(in super::super) const NEEDS_STATE: u64 = 2;
}

/// `TrackDescriptor`
pub(super) mod track {
    use super::Field;
    pub(in super::super) const UUID: Field = 1;
    pub(in super::super) const NAME: Field = 2;
    pub(in super::super) const PROCESS: Field = 3;
    pub(in super::super) const THREAD: Field = 4;
    pub(in super::super) const PARENT_UUID: Field = 5;
    pub(in super::super) const CHILD_ORDERING: Field = 11;
    pub(in super::super) const SIBLING_ORDER_RANK: Field = 12;
    /// `ChildTracksOrdering.EXPLICIT`
    pub(in super::super) const EXPLICIT: u64 = 3;
}

/// `ProcessDescriptor`
pub(super) mod process {
    use super::Field;
    pub(in super::super) const PID: Field = 1;
    pub(in super::super) const NAME: Field = 6;
}

/// `ThreadDescriptor`
pub(super) mod thread {
    use super::Field;
    pub(in super::super) const PID: Field = 1;
    pub(in super::super) const TID: Field = 2;
    pub(in super::super) const NAME: Field = 5;
}

/// `TrackEvent`
pub(super) mod event {
    use super::Field;
    pub(in super::super) const DEBUG_ANNOTATION: Field = 4;
    pub(in super::super) const TYPE: Field = 9;
    pub(in super::super) const NAME_IID: Field = 10;
    pub(in super::super) const TRACK_UUID: Field = 11;
    pub(in super::super) const FLOW_IDS: Field = 47;
    pub(in super::super) const TERMINATING_FLOW_IDS: Field = 48;
    pub(in super::super) const SLICE_BEGIN: u64 = 1;
    pub(in super::super) const SLICE_END: u64 = 2;
    pub(in super::super) const INSTANT: u64 = 3;
}

/// `InternedData` and its entries
pub(super) mod interned {
    use super::Field;
    pub(in super::super) const EVENT_NAME: Field = 2;
    pub(in super::super) const ANNOTATION_NAME: Field = 3;
    pub(in super::super) const IID: Field = 1;
    pub(in super::super) const TEXT: Field = 2;
}

/// `DebugAnnotation`
pub(super) mod annotation {
    use super::Field;
    pub(in super::super) const NAME_IID: Field = 1;
    pub(in super::super) const UINT: Field = 3;
    pub(in super::super) const TEXT: Field = 6;
}
