//! Status codes of the runtime's C interface, and how the results of several cores become one.
//!
//! | class | members | meaning |
//! |---|---|---|
//! | 3 | 1004, 1201, 1202, 1203, 1205 | the execution is wrong and the hardware may be |
//! | 2 | 5, 6, 1200, 1204, 1206 | the execution did not end, or its end was not seen |
//! | 1 | every other code but 0 | refused, or ended with a known defect |
//! | 0 | 0 | success |
//!
//! Numbers, names and classes are those of the KBL facts; 8 and 12 are gaps.

use super::notification::ErrorClass;
use crate::layout::describe::wire_enum;

wire_enum! {
    /// A status code. Any number is representable, for callers pass codes through.
    pub struct NrtStatus: u32 {
        /// Done.
        SUCCESS = 0, "SUCCESS";
        /// A failure without a code of its own.
        FAILURE = 1, "FAILURE";
        /// An argument, a file or a state that doesn't fit.
        INVALID = 2, "INVALID";
        /// No such model.
        INVALID_HANDLE = 3, "INVALID_HANDLE";
        /// Device memory or another resource is short.
        RESOURCE = 4, "RESOURCE";
        /// Not done in time.
        TIMEOUT = 5, "TIMEOUT";
        /// The hardware failed.
        HW_ERROR = 6, "HW_ERROR";
        /// A queue has no room.
        QUEUE_FULL = 7, "QUEUE_FULL";
        /// Fewer cores than the program needs.
        LOAD_NOT_ENOUGH_NC = 9, "LOAD_NOT_ENOUGH_NC";
        /// A container this runtime doesn't read.
        UNSUPPORTED_NEFF_VERSION = 10, "UNSUPPORTED_NEFF_VERSION";
        /// Host memory is short.
        FAIL_HOST_MEM_ALLOC = 11, "FAIL_HOST_MEM_ALLOC";
        /// The runtime is not initialised yet.
        UNINITIALIZED = 13, "UNINITIALIZED";
        /// The runtime is closed.
        CLOSED = 14, "CLOSED";
        /// A queue has nothing in it.
        QUEUE_EMPTY = 15, "QUEUE_EMPTY";
        /// The execution unit can't go on without a restart.
        EXEC_UNIT_UNRECOVERABLE = 101, "EXEC_UNIT_UNRECOVERABLE";
        /// Inputs that can't be executed.
        EXEC_BAD_INPUT = 1002, "EXEC_BAD_INPUT";
        /// Ended with NaN or infinity.
        EXEC_COMPLETED_WITH_NUM_ERR = 1003, "EXEC_COMPLETED_WITH_NUM_ERR";
        /// Ended with an error.
        EXEC_COMPLETED_WITH_ERR = 1004, "EXEC_COMPLETED_WITH_ERR";
        /// The core is taken.
        EXEC_NC_BUSY = 1005, "EXEC_NC_BUSY";
        /// An access out of bounds.
        EXEC_OOB = 1006, "EXEC_OOB";
        /// A collective is not finished.
        COLL_PENDING = 1100, "COLL_PENDING";
        /// Hardware error in a collective.
        EXEC_HW_ERR_COLLECTIVES = 1200, "EXEC_HW_ERR_COLLECTIVES";
        /// Uncorrectable error in device memory.
        EXEC_HW_ERR_HBM_UE = 1201, "EXEC_HW_ERR_HBM_UE";
        /// Uncorrectable error in a core.
        EXEC_HW_ERR_NC_UE = 1202, "EXEC_HW_ERR_NC_UE";
        /// A DMA queue stopped.
        EXEC_HW_ERR_DMA_ABORT = 1203, "EXEC_HW_ERR_DMA_ABORT";
        /// Notifications were lost for want of room.
        EXEC_SW_NQ_OVERFLOW = 1204, "EXEC_SW_NQ_OVERFLOW";
        /// Uncorrectable but repairable error in device memory.
        EXEC_HW_ERR_REPAIRABLE_HBM_UE = 1205, "EXEC_HW_ERR_REPAIRABLE_HBM_UE";
        /// The network proxy failed.
        NETWORK_PROXY_FAILURE = 1206, "NETWORK_PROXY_FAILURE";
    }
}

impl NrtStatus {
    /// How bad it is, 0..=3.
    pub const fn class(self) -> u8 {
        match self {
            Self::SUCCESS => 0,
            Self::EXEC_COMPLETED_WITH_ERR
            | Self::EXEC_HW_ERR_HBM_UE
            | Self::EXEC_HW_ERR_NC_UE
            | Self::EXEC_HW_ERR_DMA_ABORT
            | Self::EXEC_HW_ERR_REPAIRABLE_HBM_UE => 3,
            Self::TIMEOUT
            | Self::HW_ERROR
            | Self::EXEC_HW_ERR_COLLECTIVES
            | Self::EXEC_SW_NQ_OVERFLOW
            | Self::NETWORK_PROXY_FAILURE => 2,
            _ => 1,
        }
    }

    /// The status of two cores together: the one of the higher class, this one when both are equally bad.
    #[must_use]
    pub const fn merge(self, other: Self) -> Self {
        if other.class() > self.class() { other } else { self }
    }

    /// What an error record makes of its execution.
    pub const fn of_error(class: ErrorClass) -> Self {
        match class {
            ErrorClass::OUT_OF_BOUNDS => Self::EXEC_OOB,
            ErrorClass::GIVEN_UP => Self::TIMEOUT,
            ErrorClass::NUMERIC => Self::EXEC_COMPLETED_WITH_NUM_ERR,
            ErrorClass::COLLECTIVE => Self::EXEC_HW_ERR_COLLECTIVES,
            ErrorClass::MEMORY => Self::EXEC_HW_ERR_HBM_UE,
            ErrorClass::CORE => Self::EXEC_HW_ERR_NC_UE,
            ErrorClass::REPAIRABLE_MEMORY => Self::EXEC_HW_ERR_REPAIRABLE_HBM_UE,
            ErrorClass::NETWORK_PROXY => Self::NETWORK_PROXY_FAILURE,
            ErrorClass::DMA_ABORT | ErrorClass::PHASE_MISMATCH => Self::EXEC_HW_ERR_DMA_ABORT,
            _ => Self::EXEC_COMPLETED_WITH_ERR,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::string::ToString;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn classes_are_those_of_the_table() {
        let of_class = |class| {
            NrtStatus::KNOWN
                .iter()
                .filter(move |s| s.class() == class)
                .map(|s| s.0)
                .collect::<std::vec::Vec<_>>()
        };
        assert_eq!(of_class(3), [1004, 1201, 1202, 1203, 1205]);
        assert_eq!(of_class(2), [5, 6, 1200, 1204, 1206]);
        assert_eq!(of_class(0), [0]);
        assert_eq!((NrtStatus(8).class(), NrtStatus(4242).class()), (1, 1));
    }

    #[test]
    fn codes_are_shown_by_name_and_unknown_ones_by_number() {
        assert_eq!(NrtStatus(1203).to_string(), "EXEC_HW_ERR_DMA_ABORT");
        assert_eq!(NrtStatus(12).to_string(), "unknown(12)");
    }

    proptest! {
        #[test]
        fn merging_keeps_the_worst_and_the_first_of_equals(codes in prop::collection::vec(0u32..1300, 1..8)) {
            let all: std::vec::Vec<_> = codes.into_iter().map(NrtStatus).collect();
            let merged = all.iter().copied().reduce(NrtStatus::merge).unwrap();
            let worst = all.iter().map(|status| status.class()).max().unwrap();
            prop_assert_eq!(all.iter().find(|status| status.class() == worst), Some(&merged));
        }
    }
}
