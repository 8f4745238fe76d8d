//! `cargo xtask vectors FILE`: holds the descriptor encoders against a file of known answers.
//!
//! One check each: the default meta word, every queue initialisation, every single case and every step of every
//! sequence. A step whose answer differs is one failure; the sequence goes on from what our rings did.

use std::fmt::Display;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use sluice_core::dma::{
    AddrWord, Barrier, BarrierModes, ChunkLen, CopySpec, DescError, Descriptor, LenCtrl, MetaCtrl, Pair,
    PairCursor, RingError, RingId, RingIds, RxDesc, TxDesc,
};

/// Checks a file of UDMA vectors.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The vector file, JSON.
    file: PathBuf,
}

pub(crate) fn run(args: Args) -> Result<ExitCode> {
    let name = args.file.display();
    let text = std::fs::read_to_string(&args.file).with_context(|| format!("read {name}"))?;
    let root: Value = serde_json::from_str(&text).with_context(|| format!("parse {name}"))?;
    let tally = check_file(&root).with_context(|| format!("check {name}"))?;
    println!("{} passed, {} failed", tally.passed, tally.failed);
    Ok(if tally.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

#[derive(Default)]
struct Tally {
    passed: usize,
    failed: usize,
}

impl Tally {
    fn note(&mut self, what: impl Display, outcome: Result<()>) {
        match outcome {
            Ok(()) => self.passed += 1,
            Err(error) => {
                self.failed += 1;
                println!("FAIL {what}: {error:#}");
            }
        }
    }
}

fn check_file(root: &Value) -> Result<Tally> {
    let mut tally = Tally::default();
    if root.get("default_meta_ctrl").is_some() {
        let same = number(root, "default_meta_ctrl")
            .and_then(|word| same("meta word", word, u64::from(MetaCtrl::PLAIN_COPY.bits())));
        tally.note("default_meta_ctrl", same);
    }
    for (index, init) in list(root, "queue_init")?.iter().enumerate() {
        tally.note(format_args!("queue_init {index}"), check_queue_init(init));
    }
    for (index, case) in list(root, "cases")?.iter().enumerate() {
        tally.note(label("case", index, case), check_case(case));
    }
    for (index, sequence) in list(root, "sequences")?.iter().enumerate() {
        let label = label("sequence", index, sequence);
        match open_queue(sequence) {
            Ok(mut queue) => {
                for (step, op) in list(sequence, "ops")?.iter().enumerate() {
                    tally.note(format_args!("{label} step {step}"), check_step(&mut queue, op));
                }
            }
            Err(error) => tally.note(label, Err(error)),
        }
    }
    ensure!(tally.passed + tally.failed > 0, "no vectors in it");
    Ok(tally)
}

fn check_queue_init(init: &Value) -> Result<()> {
    let queue = PairCursor::new(word(init, "tx_size")?, word(init, "rx_size")?);
    check_rc(init, queue.map_err(RingError::errno))
}

fn check_case(case: &Value) -> Result<()> {
    let input = case.get("in").context("no `in`")?;
    match text(case, "kind")? {
        "pair" | "pair_error" => {
            let ids = RingIds { tx: ring_id(input, "tx_ring_id")?, rx: ring_id(input, "rx_ring_id")? };
            let pair = read_copy(input)?.map(|copy| Pair::encode(copy, ids));
            check_rc(case, pair.map_err(DescError::errno))?;
            check_pair(case, pair.ok())
        }
        "tx" => {
            let meta = MetaCtrl::from_bits_retain(word(input, "meta_ctrl")?);
            let (id, flags) = (ring_id(input, "ring_id")?, flags(input)?);
            let src = AddrWord(number(input, "src")?);
            let desc = read_len(input)?.map(|len| TxDesc::new(src, len, id, flags, meta));
            check_rc(case, desc.map_err(DescError::errno))?;
            check_bytes(case, "tx", desc.ok().as_ref().map(Descriptor::wire_bytes))
        }
        "rx" => {
            let (id, flags) = (ring_id(input, "ring_id")?, flags(input)?);
            let dst = AddrWord(number(input, "dst")?);
            let desc = read_len(input)?.map(|len| RxDesc::new(dst, len, id, flags));
            check_rc(case, desc.map_err(DescError::errno))?;
            check_bytes(case, "rx", desc.ok().as_ref().map(Descriptor::wire_bytes))
        }
        kind => bail!("unknown kind `{kind}`"),
    }
}

fn open_queue(sequence: &Value) -> Result<PairCursor> {
    let queue = PairCursor::new(word(sequence, "tx_ring_size")?, word(sequence, "rx_ring_size")?)?;
    let first = ring_id(sequence, "initial_ring_id")?;
    Ok(queue.in_laps(RingIds { tx: first, rx: first }))
}

fn check_step(queue: &mut PairCursor, op: &Value) -> Result<()> {
    match text(op, "op")? {
        "copy" => check_copy(queue, op),
        "start" => {
            let rung = queue.doorbells(word(op, "tx_count")?, word(op, "rx_count")?);
            let rung = rung.map(|doorbells| {
                Value::from_iter(
                    doorbells.map(|d| Value::from_iter([Value::from(d.half.to_string()), d.count.into()])),
                )
            });
            check_rc(op, rung.as_ref().map_err(|error| error.errno()))?;
            let none = Value::Null;
            same("doorbells", op.get("doorbells").unwrap_or(&none), rung.as_ref().unwrap_or(&none))
        }
        "ack" => {
            let done = queue.complete(word(op, "count")?);
            if op.get("rc").is_some() { check_rc(op, done.map_err(RingError::errno)) } else { Ok(done?) }
        }
        other => bail!("unknown step `{other}`"),
    }
}

fn check_copy(queue: &mut PairCursor, op: &Value) -> Result<()> {
    let (tx_free, rx_free) = (queue.tx().free(), queue.rx().free());
    let placed = match read_copy(op)? {
        Ok(copy) => queue.reserve(1).map(|slots| (copy, slots)).map_err(RingError::errno),
        Err(error) => Err(error.errno()),
    };
    check_rc(op, placed)?;
    same("tx_free_before", word(op, "tx_free_before")?, tx_free)?;
    same("rx_free_before", word(op, "rx_free_before")?, rx_free)?;
    let Ok((copy, mut slots)) = placed else { return check_pair(op, None) };
    let (tx, rx) = slots.next().context("no slot in a reservation of one")?;
    same("tx_index", word(op, "tx_index")?, tx.index)?;
    same("rx_index", word(op, "rx_index")?, rx.index)?;
    same("tx_ring_id", ring_id(op, "tx_ring_id")?.get(), tx.ring_id.get())?;
    same("rx_ring_id", ring_id(op, "rx_ring_id")?.get(), rx.ring_id.get())?;
    check_pair(op, Some(Pair::encode(copy, RingIds { tx: tx.ring_id, rx: rx.ring_id })))
}

/// The number that the file expects against the one that our call would give its C caller.
fn check_rc<T>(answer: &Value, ours: Result<T, i32>) -> Result<()> {
    let rc = answer.get("rc").and_then(Value::as_i64).context("no whole number `rc`")?;
    same("rc", rc, ours.map_or_else(i64::from, |_| 0))
}

/// The bytes of both halves, and that they decode to what they were made of.
fn check_pair(answer: &Value, pair: Option<Pair>) -> Result<()> {
    check_bytes(answer, "tx", pair.as_ref().map(|pair| pair.tx.wire_bytes()))?;
    check_bytes(answer, "rx", pair.as_ref().map(|pair| pair.rx.wire_bytes()))?;
    let Some(pair) = pair else { return Ok(()) };
    let again = Pair::encode(pair.decode()?, RingIds { tx: pair.tx.ring_id(), rx: pair.rx.ring_id() });
    ensure!(again == pair, "decoding and encoding again gives {again:?}");
    Ok(())
}

/// The bytes of one half; none when the copy was refused.
fn check_bytes(answer: &Value, half: &str, ours: Option<&[u8]>) -> Result<()> {
    let want = match answer.get(half) {
        None | Some(Value::Null) => "none",
        Some(value) => value.as_str().with_context(|| format!("`{half}` is not a string"))?,
    };
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    same(half, want, &ours.map_or_else(|| "none".to_owned(), hex))
}

fn same<T: PartialEq + Display>(what: &str, want: T, ours: T) -> Result<()> {
    ensure!(want == ours, "{what}: want {want}, ours {ours}");
    Ok(())
}

/// A copy as the driver takes it, where 0 bytes mean 65,536; or its refusal.
fn read_copy(input: &Value) -> Result<Result<CopySpec, DescError>> {
    let (source, destination) = (AddrWord(number(input, "src")?), AddrWord(number(input, "dst")?));
    let completion = input.get("dst_int").and_then(Value::as_bool).context("no true or false `dst_int`")?;
    let len = read_len(input)?;
    let barrier = read_barrier(input)?;
    Ok(len.and_then(|len| Ok(CopySpec { source, destination, len, barrier: barrier?, completion })))
}

fn read_len(input: &Value) -> Result<Result<ChunkLen, DescError>> {
    Ok(ChunkLen::like_driver(number(input, "size")?))
}

/// A barrier by name, or by the number that a caller of the older driver passes.
fn read_barrier(input: &Value) -> Result<Result<Barrier, DescError>> {
    if let Some(raw) = input.get("barrier_raw") {
        let mode = raw.as_i64().context("`barrier_raw` is not a whole number")?;
        return Ok(Barrier::from_mode(mode, BarrierModes::UpToWriteBarrier));
    }
    Ok(Ok(match text(input, "barrier")? {
        "none" => Barrier::None,
        "dmb" => Barrier::Dmb,
        "write_barrier" => Barrier::WriteBarrier,
        "sow" => Barrier::Sow,
        other => bail!("unknown barrier `{other}`"),
    }))
}

/// Flags by name, which have to give the word that the file also states.
fn flags(input: &Value) -> Result<LenCtrl> {
    let mut flags = LenCtrl::empty();
    for name in list(input, "flags")? {
        flags |= match name.as_str() {
            Some("first") => LenCtrl::FIRST,
            Some("last") => LenCtrl::LAST,
            Some("int") => LenCtrl::INT_EN,
            Some("sow") => LenCtrl::SOW,
            Some("dmb") => LenCtrl::DMB,
            Some("meta") => LenCtrl::META,
            Some("concat") => LenCtrl::CONCAT,
            _ => bail!("unknown flag {name}"),
        };
    }
    same("flags_word", word(input, "flags_word")?, flags.bits())?;
    Ok(flags)
}

fn label(kind: &str, index: usize, value: &Value) -> String {
    value.get("id").and_then(Value::as_str).map_or_else(|| format!("{kind} {index}"), str::to_owned)
}

/// The list under `key`, empty when there is none.
fn list<'a>(value: &'a Value, key: &str) -> Result<&'a [Value]> {
    match value.get(key) {
        None => Ok(&[]),
        Some(Value::Array(items)) => Ok(items),
        Some(_) => bail!("`{key}` is not a list"),
    }
}

fn text<'a>(value: &'a Value, key: &str) -> Result<&'a str> {
    value.get(key).and_then(Value::as_str).with_context(|| format!("no string `{key}`"))
}

/// A number that is not negative, plain or as a hexadecimal string.
fn number(value: &Value, key: &str) -> Result<u64> {
    let found = match value.get(key) {
        Some(Value::String(hex)) => hex.strip_prefix("0x").and_then(|hex| u64::from_str_radix(hex, 16).ok()),
        Some(plain) => plain.as_u64(),
        None => None,
    };
    found.with_context(|| format!("no number `{key}`"))
}

fn word(value: &Value, key: &str) -> Result<u32> {
    u32::try_from(number(value, key)?).with_context(|| format!("`{key}` exceeds 32 bits"))
}

fn ring_id(value: &Value, key: &str) -> Result<RingId> {
    let id = number(value, key)?;
    u8::try_from(id).ok().and_then(RingId::new).with_context(|| format!("`{key}` {id} exceeds 2 bits"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The worked pair of the wire contract, as a file of one case.
    fn file(tx: &str) -> Value {
        json!({ "cases": [{
            "id": "worked", "kind": "pair", "rc": 0, "tx": tx, "rx": "00000011000000000020000000000000",
            "in": { "src": "0x1000", "dst": "0x2000", "size": 65536, "barrier": "write_barrier", "dst_int": true,
                    "tx_ring_id": 1, "rx_ring_id": 1 },
        }]})
    }

    #[test]
    fn right_and_wrong_bytes_are_told_apart() {
        let right = check_file(&file("0000000d030008050010000000000000")).unwrap();
        assert_eq!((right.passed, right.failed), (1, 0));
        let wrong = check_file(&file("0000000d030008050010000000000001")).unwrap();
        assert_eq!((wrong.passed, wrong.failed), (0, 1));
    }

    #[test]
    fn a_step_is_checked_against_the_rings_before_and_after_it() {
        let sequence = |free: u32| {
            json!({ "sequences": [{ "tx_ring_size": 32, "rx_ring_size": 32, "initial_ring_id": 1, "ops": [
                { "op": "copy", "src": "0x1000", "dst": "0x2000", "size": 0, "barrier": "none", "dst_int": false,
                  "rc": 0, "tx_free_before": free, "rx_free_before": 16, "tx_index": 0, "rx_index": 0,
                  "tx_ring_id": 1, "rx_ring_id": 1,
                  "tx": "0000000d030008010010000000000000", "rx": "00000001000000000020000000000000" },
                { "op": "start", "tx_count": 1, "rx_count": 1, "rc": 0, "doorbells": [["rx", 1], ["tx", 1]] },
                { "op": "ack", "count": 1 },
                { "op": "ack", "count": 1 },
            ]}]})
        };
        let tally = check_file(&sequence(16)).unwrap();
        assert_eq!(
            (tally.passed, tally.failed),
            (3, 1),
            "the second acknowledgement has nothing outstanding"
        );
        assert_eq!(check_file(&sequence(15)).unwrap().failed, 2);
    }

    #[test]
    fn rings_start_in_the_lap_that_the_file_says() {
        let copy = |ring_id: u32, tx: &str, rx: &str| {
            json!({ "op": "copy", "src": "0x1000", "dst": "0x2000", "size": 0, "barrier": "none", "dst_int": false,
                    "rc": 0, "tx_free_before": 16, "rx_free_before": 48, "tx_index": 0, "rx_index": 0,
                    "tx_ring_id": ring_id, "rx_ring_id": ring_id, "tx": tx, "rx": rx })
        };
        for (ring_id, tx, rx) in [
            (0, "0000000c030008010010000000000000", "00000000000000000020000000000000"),
            (3, "0000000f030008010010000000000000", "00000003000000000020000000000000"),
        ] {
            let tally = check_file(&json!({ "sequences": [{
                "tx_ring_size": 32, "rx_ring_size": 64, "initial_ring_id": ring_id, "ops": [copy(ring_id, tx, rx)],
            }]}))
            .unwrap();
            assert_eq!((tally.passed, tally.failed), (1, 0), "{ring_id}");
        }
    }

    #[test]
    fn a_malformed_entry_is_a_failure_and_an_empty_file_an_error() {
        let tally = check_file(&json!({ "queue_init": [{ "tx_size": 32 }, 7], "cases": [{}] })).unwrap();
        assert_eq!((tally.passed, tally.failed), (0, 3));
        assert!(check_file(&json!({})).is_err());
        assert!(check_file(&json!({ "cases": 3 })).is_err());
    }
}
