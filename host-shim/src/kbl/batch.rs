//! The exec-ring batch of one execution on one TPB.
//!
//! ```text
//!   swap pairs …                        pointers, table rows, queue bases (see `build`)
//!   request      56 bytes ─► control page, the increment word with it
//!   sequence      4 bytes ─► the word that the prologue queue copies on
//!   start queue   4 bytes ─► RX tail increment of queue 14     DMB: all before it is complete
//!                 4 bytes ─► TX tail increment of queue 14
//!   start event   4 bytes ─► event 0                           DMB: all before it is complete
//! ```
//!
//! A stop record is a batch of one pair: 4 bytes ─► the stop word of the control page, DMB. The device does not store it.
//!
//! What differs between two executions lies in a request slot, 64 bytes of device memory per execution in flight:
//!
//! | offset | bytes | what |
//! |---|---|---|
//! | 0x00 | 52 | execution request |
//! | 0x34 | 4 | increment word: what the collectives ask for, 0 without |
//! | 0x38 | 4 | sequence word: low half of the ticket |

use sluice_core::dma::{
    Barrier, ChunkLen, CopySpec, Descriptor, Pair, PairSlots, RingIds, RxDesc, Slots, TxDesc,
};
use sluice_core::exec::{ExecRequest, INCREMENT_OFFSET_BYTES, REQUEST_BYTES};
use sluice_core::mem::{DevAddr, Fault};
use sluice_core::mmio::{ControlWord, EventId, Half, QueueId, QueueRegister, TpbRegisters};
use zerocopy::{FromZeros, IntoBytes};

use crate::device::Device;

/// Pairs behind the swap pairs.
pub(super) const PROLOGUE_PAIRS: usize = 5;

/// Most pairs of a batch (KBL facts, adding a request to the queue).
pub(super) const MAX_BATCH_PAIRS: u32 = 0x1000;

/// Bytes of a request slot.
pub(super) const SLOT_BYTES: u64 = 64;

const SEQUENCE_OFFSET_BYTES: u64 = 0x38;

/// The content of a request slot.
pub(super) fn slot_bytes(request: &ExecRequest, increment: u32, ticket: u64) -> [u8; SLOT_BYTES as usize] {
    let mut bytes = [0; SLOT_BYTES as usize];
    let request = request.as_bytes();
    bytes[..request.len()].copy_from_slice(request);
    bytes[INCREMENT_OFFSET_BYTES as usize..][..4].copy_from_slice(&increment.to_le_bytes());
    let sequence = SEQUENCE_OFFSET_BYTES as usize;
    bytes[sequence..][..4].copy_from_slice(&(ticket as u32).to_le_bytes());
    bytes
}

/// What the prologue of a batch refers to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Prologue {
    /// Registers of the TPB.
    pub(super) registers: TpbRegisters,
    /// The execution's request slot.
    pub(super) slot: DevAddr,
    /// A word that holds 1.
    pub(super) one: DevAddr,
    /// The word that the prologue queue copies on.
    pub(super) sequence: DevAddr,
}

impl Prologue {
    /// The pairs, in order, not yet placed in a ring.
    pub(super) fn pairs(&self) -> [Pair; PROLOGUE_PAIRS] {
        let Self { registers, slot, one, sequence } = *self;
        let request = registers.request();
        let tail =
            |half| registers.queue_bank(half, QueueId::PROLOGUE).register(QueueRegister::TailIncrement);
        let copy = |source: DevAddr, destination: DevAddr, len, barrier| {
            let copy = CopySpec {
                source: source.into(),
                destination: destination.into(),
                len,
                barrier,
                completion: false,
            };
            Pair::encode(copy, RingIds::UNPLACED)
        };
        let word = |source, destination, barrier| copy(source, destination, ChunkLen::WORD, barrier);
        [
            copy(slot, request, REQUEST_LEN, Barrier::None),
            word(slot.offset(SEQUENCE_OFFSET_BYTES), sequence, Barrier::None),
            word(one, tail(Half::Rx), Barrier::Dmb),
            word(one, tail(Half::Tx), Barrier::None),
            word(one, registers.event(EventId::START), Barrier::Dmb),
        ]
    }
}

/// The pair that stops a TPB behind everything that was queued before. `one` is a word that holds 1.
pub(super) fn stop_record(one: DevAddr, registers: TpbRegisters) -> Pair {
    let copy = CopySpec {
        source: one.into(),
        destination: registers.control_word(ControlWord::Stop).into(),
        len: ChunkLen::WORD,
        barrier: Barrier::Dmb,
        completion: false,
    };
    Pair::encode(copy, RingIds::UNPLACED)
}

/// The request and the word behind it.
const REQUEST_LEN: ChunkLen = match ChunkLen::new(REQUEST_BYTES) {
    Ok(len) => len,
    Err(_) => panic!("a request is 1 to 65,536 bytes"),
};

/// Pairs that are written at once.
const PIECE: usize = 32;

/// Writes pairs to the slots that were handed out for them in both halves of a ring, stamped with the laps of their slots.
/// Pairs beyond the slots are not looked at.
pub(super) fn place_all<D: Device>(
    device: &D,
    [tx, rx]: [DevAddr; 2],
    slots: &PairSlots,
    pairs: impl Iterator<Item = Pair>,
) -> Result<(), Fault> {
    let (mut tx_piece, mut rx_piece) = ([TxDesc::new_zeroed(); PIECE], [RxDesc::new_zeroed(); PIECE]);
    let (mut slots, mut pairs) = (*slots, pairs);
    loop {
        // Both halves are made before either is written: what is made behind writes that wait for their lines waits too.
        let from = slots;
        let places = tx_piece.iter_mut().zip(&mut rx_piece);
        let mut filled = 0;
        for (((tx, rx), (tx_slot, rx_slot)), pair) in places.zip(&mut slots).zip(&mut pairs) {
            (*tx, *rx) = (pair.tx, pair.rx);
            tx.stamp(tx_slot.ring_id);
            rx.stamp(rx_slot.ring_id);
            filled += 1;
        }
        write(device, tx, &from.tx, &tx_piece[..filled])?;
        write(device, rx, &from.rx, &rx_piece[..filled])?;
        if filled < PIECE {
            return Ok(());
        }
    }
}

/// Writes descriptors to the first of `slots`.
fn write<D: Device, T: Descriptor>(
    device: &D,
    ring: DevAddr,
    slots: &Slots,
    mut descriptors: &[T],
) -> Result<(), Fault> {
    for run in slots.runs() {
        let (now, rest) = descriptors.split_at(descriptors.len().min(run.count as usize));
        if now.is_empty() {
            break;
        }
        device.write(ring.offset(u64::from(run.index) * size_of::<T>() as u64), now.as_bytes())?;
        descriptors = rest;
    }
    Ok(())
}
