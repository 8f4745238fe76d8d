//! The run that recorders attach to, judged once per lane and generation.
//!
//! A region for another number of cores than this device has, or an extension block that it does not understand, is not for
//! this device: nothing is recorded then. Lane 0 says so in the block.

use core::mem::offset_of;
use core::num::NonZeroU32;

use sluice_core::exec::{CoreIndex, LaneIndex, Recorders};
use sluice_core::layout::extension::{AnswerCode, HEAD, Head};
use sluice_core::layout::{Shape, SubsystemId, num_cores_word};
use sluice_core::mem::{DevAddr, Fault, Memory, Word};
use sluice_core::producer::{AttachError, judge, reply};

use crate::platform::{Context, Platform};

/// What all recorders of a lane attach to.
pub(super) struct Run<'a> {
    /// What the host asked for.
    pub(super) recorders: &'a Recorders,
    /// Tells it from the runs before, never 0.
    pub(super) number: NonZeroU32,
    /// Lanes of this device, and as many cores as the regions have pools for.
    pub(super) shape: Shape,
}

impl<'a> Run<'a> {
    /// Judges what `recorders` names and, on lane 0, answers the extension block if there is one.
    ///
    /// # Errors
    /// A region or a block that is not for this device. The host may then free both.
    pub(super) fn open<P: Platform>(
        cx: &Context<P>,
        lane: LaneIndex,
        number: NonZeroU32,
        recorders: &'a Recorders,
    ) -> Result<Self, AttachError> {
        let extension = recorders.extension;
        let shape = shape(cx, recorders)?;
        let judged = match shape {
            _ if extension.is_null() => AnswerCode::ACCEPTED,
            Some(shape) => judge(cx.memory(), extension, shape)?,
            None => AnswerCode::BAD_SHAPE,
        };
        if lane == LaneIndex::SEQUENCER && !extension.is_null() {
            reply(cx.memory(), extension, cx.arch(), judged)?;
        }
        match shape {
            Some(shape) if judged == AnswerCode::ACCEPTED => Ok(Self { recorders, number, shape }),
            Some(_) => Err(AttachError::Refused(judged)),
            None => Err(AttachError::Refused(AnswerCode::BAD_SHAPE)),
        }
    }
}

/// The cores of this device.
pub(super) fn cores<P: Platform>(cx: &Context<P>) -> impl Iterator<Item = CoreIndex> + use<P> {
    CoreIndex::all(cx.map().registers.tpbs())
}

/// This device's lanes and as many cores as all regions say, if these are enough. Where no region says it, the block does.
fn shape<P: Platform>(cx: &Context<P>, recorders: &Recorders) -> Result<Option<Shape>, Fault> {
    let read = |at: DevAddr, offset: usize| -> Result<u32, Fault> {
        Ok(cx.memory().word(at.offset(offset as u64))?.load_acquire())
    };
    let own = cores(cx).count() as u32;
    let mut pools = None;
    for subsystem in SubsystemId::ALL {
        let (Some(region), Some(word)) = (recorders.region(subsystem), num_cores_word(subsystem, cx.arch()))
        else {
            continue;
        };
        let cores = read(region, word)?;
        if *pools.get_or_insert(cores) != cores {
            return Ok(None);
        }
    }
    let pools = match pools {
        Some(pools) => pools,
        None if recorders.extension.is_null() => own,
        None => read(recorders.extension, HEAD + offset_of!(Head, cores))?,
    };
    Ok(Shape::new(cx.arch(), cx.map().lanes, pools).ok().filter(|_| pools >= own))
}
