//! Attaching a lane's swimlane recorder to what the boot block names.
//!
//! The region's header says how much to record and for how many cores; a region for fewer cores than the device has is no
//! region for this device. Lane 0 also answers the extension block and writes what the header says of the device: which
//! lane owns which core, how many phase pools are live.

use sluice_core::exec::{CoreIndex, LaneIndex};
use sluice_core::layout::extension::AnswerCode;
use sluice_core::layout::swimlane::{HeaderWords, Level, header_words};
use sluice_core::layout::{Lane, Shape, SubsystemId};
use sluice_core::mem::{CopyMemory, DevAddr, Fault, Memory, Word};
use sluice_core::producer::{AttachError, Attachment, judge, reply, swimlane::SwimlaneRecorder};

use crate::platform::{Context, Platform};

/// Attaches `lane` to the region at `region`, and to the extension block at `extension` unless that is null.
///
/// # Errors
/// A region or a block that is not for this device; the answer says so, if there is a block to answer. The host may then
/// free both.
pub(super) fn attach<P: Platform, const CORES: usize>(
    cx: &Context<P>,
    lane: LaneIndex,
    region: DevAddr,
    extension: DevAddr,
) -> Result<SwimlaneRecorder<P::Memory, CORES>, AttachError> {
    let header = Header { cx, region, words: header_words(cx.arch()) };
    let speaks = lane == LaneIndex::SEQUENCER;
    let level = Level(header.read(header.words.chip_swimlane_level)?);
    let shape = header.shape()?;
    let judged = match shape {
        _ if extension.is_null() => AnswerCode::NONE,
        Some(shape) => judge(cx.memory(), extension, shape)?,
        None => AnswerCode::BAD_SHAPE,
    };
    if speaks && !extension.is_null() {
        reply(cx.memory(), extension, cx.arch(), judged)?;
    }
    let shape = match shape {
        Some(shape) if extension.is_null() || judged == AnswerCode::ACCEPTED => shape,
        Some(_) => return Err(AttachError::Refused(judged)),
        None => return Err(AttachError::Refused(AnswerCode::BAD_SHAPE)),
    };
    let attachment = Attachment::open(cx.memory(), SubsystemId::Swimlane, region, extension, shape)?;
    let own = cores(cx).filter(|core| core.lane(cx.map().lanes) == lane).map(|core| core.get() as u32);
    let recorder = SwimlaneRecorder::attach(cx.memory(), &attachment, Lane(lane.get()), level, own, speaks)?;
    if speaks {
        header.describe_device(level)?;
    }
    Ok(recorder)
}

fn cores<P: Platform>(cx: &Context<P>) -> impl Iterator<Item = CoreIndex> + use<P> {
    CoreIndex::all(cx.map().registers.tpbs())
}

/// Words of the region's header that only this subsystem has.
struct Header<'a, P> {
    cx: &'a Context<P>,
    region: DevAddr,
    words: HeaderWords,
}

impl<P: Platform> Header<'_, P> {
    fn word(&self, offset: usize) -> Result<<P::Memory as Memory>::Word, Fault> {
        self.cx.memory().word(self.region.offset(offset as u64))
    }

    fn read(&self, offset: usize) -> Result<u32, Fault> {
        Ok(self.word(offset)?.load_acquire())
    }

    /// The run: this device's lanes, and as many cores as the region has pools for, if these are enough.
    fn shape(&self) -> Result<Option<Shape>, Fault> {
        let pools = self.read(self.words.num_cores)?;
        let enough = pools as usize >= cores(self.cx).count();
        Ok(Shape::new(self.cx.arch(), self.cx.map().lanes, pools).ok().filter(|_| enough))
    }

    fn describe_device(&self, level: Level) -> Result<(), Fault> {
        let lanes = self.cx.map().lanes;
        let mut count = 0;
        for core in cores(self.cx) {
            let at = self.region.offset((self.words.core_to_thread + core.get()) as u64);
            self.cx.memory().write_bytes(at, &[core.lane(lanes).get() as u8])?;
            count += 1;
        }
        let live = |from: Level, pools: u32| if level >= from { pools } else { 0 };
        self.word(self.words.num_phase_cores)?.store_relaxed(count);
        self.word(self.words.num_sched_phase_threads)?.store_relaxed(live(Level::SCHED, lanes));
        self.word(self.words.num_orch_phase_threads)?.store_relaxed(live(Level::FULL, 1));
        Ok(())
    }
}
