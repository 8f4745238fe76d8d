//! What a subsystem has to say before a freeze of its gates may end.
//!
//! Drained rings and pools at their limit are common to all subsystems and the keeper's own business. A subsystem whose
//! lanes also wait for something else answers for it here, in one place per subsystem.

use std::sync::Arc;

use sluice_core::layout::SubsystemId;
use sluice_core::mem::Fault;

use super::arena::{Acknowledged, PayloadsUnderWay};

/// A subsystem's word that a freeze may end.
pub trait ReleaseReady {
    /// Whether nothing that a lane waits for is still under way.
    ///
    /// # Errors
    /// [`Fault`] when the transport fails; asked again.
    fn is_ready(&mut self) -> Result<bool, Fault>;
}

/// Lanes of this subsystem wait for buffers and slots alone.
#[derive(Clone, Copy, Default, Debug)]
pub struct Unconditional;

impl ReleaseReady for Unconditional {
    fn is_ready(&mut self) -> Result<bool, Fault> {
        Ok(true)
    }
}

/// Who answers for `subsystem`; `payloads` are those of its lanes.
pub(super) fn of(subsystem: SubsystemId, payloads: &Arc<PayloadsUnderWay>) -> Box<dyn ReleaseReady + Send> {
    match subsystem {
        SubsystemId::ArgsDump => Box::new(Acknowledged::new(Arc::clone(payloads))),
        SubsystemId::Swimlane | SubsystemId::Pmu | SubsystemId::DepGen | SubsystemId::ScopeStats => {
            Box::new(Unconditional)
        }
    }
}
