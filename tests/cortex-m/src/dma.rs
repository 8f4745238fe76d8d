//! Descriptor encoders and ring cursors on the board, against known answers.

use sluice_core::dma::{
    AddrWord, ChunkLen, CopySpec, DescError, Descriptor, Pair, PairCursor, RingId, RingIds, RxDesc, TxDesc,
};
use sluice_core::mem::CopyMemory;
use zerocopy::FromBytes;

use crate::board::Shared;
use crate::harness::{Failure, Outcome, Test, check, check_eq, scratch};
use crate::vectors::{COPIES, Copy, SLOT_RINGS, SLOTS};

pub(crate) const TESTS: &[Test] = &[
    Test { name: "dma: descriptors have the bytes of the vectors", run: known_answers },
    Test { name: "dma: descriptors in ring memory decode to the copy they were made of", run: round_trip },
    Test { name: "dma: a length field of 0 means 65536 bytes, and nothing longer is accepted", run: lengths },
    Test { name: "dma: slots and phases go round as in the vectors", run: slots },
    Test { name: "dma: a ring takes no more than it can hold and stays as it was", run: ring_full },
];

fn spec(copy: &Copy) -> Result<(CopySpec, RingIds), Failure> {
    let Ok(len) = ChunkLen::new(copy.bytes) else { return Err(Failure { line: line!() }) };
    let (Some(tx), Some(rx)) = (RingId::new(copy.ring_ids.0), RingId::new(copy.ring_ids.1)) else {
        return Err(Failure { line: line!() });
    };
    let spec = CopySpec {
        source: AddrWord(copy.source),
        destination: AddrWord(copy.destination),
        len,
        barrier: copy.barrier,
        completion: copy.completion,
    };
    Ok((spec, RingIds { tx, rx }))
}

fn known_answers(_shared: &Shared) -> Outcome {
    for copy in COPIES {
        let (spec, ids) = spec(copy)?;
        let pair = Pair::encode(spec, ids);
        check_eq!(pair.tx.wire_bytes(), copy.tx.to_be_bytes());
        check_eq!(pair.rx.wire_bytes(), copy.rx.to_be_bytes());
    }
    Ok(())
}

fn round_trip(shared: &Shared) -> Outcome {
    for copy in COPIES {
        let (spec, ids) = spec(copy)?;
        let written = Pair::encode(spec, ids);
        shared.write_bytes(scratch(0x40), written.tx.wire_bytes())?;
        shared.write_bytes(scratch(0x50), written.rx.wire_bytes())?;
        let mut ring = [0; 32];
        shared.read_bytes(scratch(0x40), &mut ring)?;
        let (tx, rx) = ring.split_at(16);
        let (Ok(tx), Ok(rx)) = (TxDesc::read_from_bytes(tx), RxDesc::read_from_bytes(rx)) else {
            return Err(Failure { line: line!() });
        };
        check_eq!(Pair { tx, rx }.decode(), Ok(spec));
    }
    Ok(())
}

fn lengths(_shared: &Shared) -> Outcome {
    check_eq!(ChunkLen::new(65_536).map(ChunkLen::bytes), Ok(65_536));
    check_eq!(ChunkLen::new(0), Err(DescError::Empty));
    // The low 32 bits alone would be a valid length.
    for bytes in [65_537, 0x1_0000_0004, u64::MAX] {
        check_eq!(ChunkLen::new(bytes), Err(DescError::TooLong { bytes }));
    }
    Ok(())
}

fn slots(_shared: &Shared) -> Outcome {
    let Ok(mut queue) = PairCursor::new(SLOT_RINGS.0, SLOT_RINGS.1) else {
        return Err(Failure { line: line!() });
    };
    let mut number = 0;
    for &(at, tx_index, tx_id, rx_index, rx_id) in SLOTS {
        let (tx, rx) = loop {
            let handed_out = queue.reserve(1).ok().and_then(|mut slots| slots.next());
            let (Some(pair), Ok(())) = (handed_out, queue.complete(1)) else {
                return Err(Failure { line: line!() });
            };
            number += 1;
            if number > at {
                break pair;
            }
        };
        check_eq!(
            (tx.index, tx.ring_id.get(), rx.index, rx.ring_id.get()),
            (tx_index, tx_id, rx_index, rx_id)
        );
    }
    Ok(())
}

fn ring_full(_shared: &Shared) -> Outcome {
    let Ok(mut queue) = PairCursor::new(32, 64) else { return Err(Failure { line: line!() }) };
    check_eq!(queue.free(), 16);
    check!(queue.reserve(16).is_ok());
    let before = queue;
    check!(queue.reserve(1).is_err());
    check!(queue.complete(17).is_err());
    check_eq!(queue, before);
    check!(queue.complete(16).is_ok());
    check_eq!(queue.free(), 16);
    Ok(())
}
