//! Payloads, from a lane's arena to the sink and back to the lane as a count.

use std::io;
use std::mem::offset_of;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use sluice_core::layout::SubsystemId;
use sluice_core::layout::args_dump::{ArgKind, BufferState, Record};
use sluice_core::mem::testing::Poke;
use sluice_core::mem::{CopyMemory, DevAddr};
use sluice_core::producer::Beside;
use zerocopy::{FromZeros, IntoBytes};

use super::serving::Show;
use super::stage::ARENA_BYTES;
use crate::device::Device;
use crate::dfx::account::Lost;
use crate::dfx::{BufferMeta, Freeze, PayloadMeta, Sink};

/// Reads a word of the lane's.
type Count = Box<dyn Fn() -> u32 + Send>;

/// A sink that keeps payloads, and looks what the lane knows of them meanwhile.
#[derive(Default)]
struct Keeper {
    payloads: Mutex<Vec<(PayloadMeta, Vec<u8>)>>,
    buffers: AtomicU32,
    refusals: AtomicU32,
    /// Reads how many payloads the lane may forget.
    completed: Mutex<Option<Count>>,
    /// What that read, while payloads and buffers were not safe yet.
    seen: Mutex<Vec<u32>>,
}

impl Keeper {
    fn look(&self) {
        let completed = self.completed.lock().unwrap();
        self.seen.lock().unwrap().extend(completed.as_ref().map(|completed| completed()));
    }
}

impl Sink for Keeper {
    fn buffer(&self, _: &BufferMeta, _: &[u8]) -> io::Result<()> {
        self.look();
        self.buffers.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn payload(&self, meta: &PayloadMeta, bytes: &[u8]) -> io::Result<()> {
        self.look();
        let one_less = |left: u32| left.checked_sub(1);
        if self.refusals.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_ok() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.payloads.lock().unwrap().push((*meta, bytes.to_vec()));
        Ok(())
    }

    fn freeze(&self, _: &Freeze) -> io::Result<()> {
        Ok(())
    }
}

fn payload(payload_offset: u64, payload_size: u64) -> Record {
    Record { kind: ArgKind::TENSOR, payload_offset, payload_size, task_id: 77, ..Record::new_zeroed() }
}

fn show() -> (Show, Arc<Keeper>, DevAddr) {
    let keeper = Arc::new(Keeper::default());
    let show = Show::of(SubsystemId::ArgsDump, 1, Arc::clone(&keeper) as _);
    let memory = show.device.memory().block.clone();
    let at = show.hand.pool_word(1, offset_of!(BufferState, completed_payload_count));
    let arena = memory.peek_address(show.hand.pool_word(1, offset_of!(BufferState, arena_base)));
    let size = memory.peek(show.hand.pool_word(1, offset_of!(BufferState, arena_size)));
    assert_eq!(u64::from(size), ARENA_BYTES.get());
    *keeper.completed.lock().unwrap() = Some(Box::new(move || memory.peek(at)));
    (show, keeper, arena)
}

fn completed(show: &Show) -> u32 {
    let at = show.hand.pool_word(1, offset_of!(BufferState, completed_payload_count));
    show.device.memory().block.peek(at)
}

#[test]
fn a_payload_is_acknowledged_once_all_of_its_buffer_is_safe() {
    let (mut show, keeper, arena) = show();
    let memory = &show.device.memory().block;
    memory.write_bytes(arena.offset(100), &[7; 50]).unwrap();
    let around = ARENA_BYTES.get() * 3 + 100;
    let scalar = Record { kind: ArgKind::SCALAR, ..payload(0, 8) };
    show.hand.fill_with(1, 1, 0, &[payload(0, 0), payload(around, 50), scalar, payload(200, 3)]);
    show.turn();
    show.collect();
    let payloads = keeper.payloads.lock().unwrap();
    let [(first, bytes), (second, _)] = &payloads[..] else { panic!("{payloads:?}") };
    assert_eq!((first.lane.0, first.sequence, first.record, first.task), (1, 0, 1, 77));
    assert_eq!((first.total_bytes, &bytes[..]), (50, &[7; 50][..]));
    assert_eq!((second.record, second.total_bytes), (3, 3));
    assert_eq!(*keeper.seen.lock().unwrap(), [0, 0, 0], "neither payloads nor records were safe");
    assert_eq!(completed(&show), 2);
    show.turn();
    assert_eq!(show.hand.queued(1), 1);
    assert!(show.account().is_lossless());
}

#[test]
fn a_payload_judged_invalid_is_still_acknowledged() {
    let (mut show, keeper, _) = show();
    let size = ARENA_BYTES.get();
    let invalid = [payload(1, size), payload(0, size + 1), payload(u64::MAX, u64::MAX)];
    show.hand.fill_with(1, 1, 0, &[&invalid[..], &[payload(8, 8)]].concat());
    show.turn();
    show.collect();
    assert_eq!((completed(&show), keeper.payloads.lock().unwrap().len()), (4, 1));
    let account = show.account();
    assert_eq!((account.bad_payloads, account.collected()), (3, 4));
    show.turn();
    assert_eq!(show.hand.queued(1), 1);
}

#[test]
fn only_the_bytes_of_a_payload_are_copied() {
    let (mut show, _, arena) = show();
    show.hand.fill_with(1, 1, 0, &[payload(16, 40), payload(ARENA_BYTES.get() + 1000, 24)]);
    show.turn();
    *show.device.memory().reads.lock().unwrap() = Some(Vec::new());
    show.collect();
    let inside = |(at, _): &&(DevAddr, usize)| (arena.0..arena.0 + ARENA_BYTES.get()).contains(&at.0);
    let reads = show.device.memory().reads.lock().unwrap();
    let reads: Vec<_> = reads.iter().flatten().filter(inside).copied().collect();
    assert_eq!(reads, [(arena.offset(16), 40), (arena.offset(1000), 24)]);
}

#[test]
fn payloads_that_a_full_disk_refuses_are_counted_and_acknowledged() {
    for (refusals, lost) in [(2, 0), (3, 2)] {
        let (mut show, keeper, _) = show();
        keeper.refusals.store(refusals, Ordering::Relaxed);
        show.hand.fill_with(1, 1, 0, &[payload(0, 8), payload(8, 8)]);
        show.turn();
        show.collect();
        assert_eq!(keeper.buffers.load(Ordering::Relaxed), u32::from(lost == 0));
        let account = show.account();
        assert_eq!(account.lost(), Lost { copy_failed: lost, ..Lost::default() });
        assert_eq!((account.produced(), account.collected()), (2, 2 - lost));
        assert_eq!(account.lost_payloads, lost);
        assert_eq!(completed(&show), 2, "the lane must not wait for bytes that nobody gets");
        show.turn();
        assert_eq!(show.hand.queued(1), 1);
    }
}

#[test]
fn payloads_of_a_buffer_that_cannot_be_read_are_counted_and_acknowledged() {
    /// More records than a buffer has: nothing of such a buffer is believed but what its entry says.
    const NONSENSE: u32 = 100_000;
    for (said, count, read_failures, lost) in [
        (Beside::count(2), 2, 3, 2),
        (Beside::count(2), 2, 2, 0),
        (Beside::count(1), NONSENSE, 0, 1),
        (Beside::UNSAID, 2, 3, 0),
        (Beside::count(NONSENSE), 2, 3, 0),
    ] {
        let (mut show, keeper, _) = show();
        let buffer = show.hand.claim(1).unwrap();
        let memory = &show.device.memory().block;
        memory.write_bytes(buffer, [payload(0, 8), payload(8, 8)].as_bytes()).unwrap();
        show.hand.publish_with(1, 1, buffer, 0, count, said);
        show.turn();
        show.device.fail_reads(read_failures);
        show.collect();
        let is_read = read_failures < 3 && count == 2;
        assert_eq!(keeper.payloads.lock().unwrap().len(), if is_read { 2 } else { 0 });
        assert_eq!(completed(&show), if is_read { 2 } else { lost as u32 }, "{said:?}");
        let account = show.account();
        assert_eq!((account.lost_payloads, account.is_lossless()), (lost, is_read));
        show.turn();
        assert_eq!(show.hand.queued(1), 1);
    }
}
