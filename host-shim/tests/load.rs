//! Images that a boot stub loads into a board, against the live host. `SLUICE_VIRT_STUB` names the stub, `SLUICE_VIRT_LOADABLE`
//! the firmware's image with its header.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use sluice_core::exec::image::{BadImage, BoardId, IMAGE_HEADER_BYTES, ImageHeader, VIRT_ROOM, crc32};
use sluice_core::exec::{CoreIndex, HostBoot, LaneIndex, Workload};
use sluice_core::layout::swimlane::AicpuTaskRecord;
use sluice_core::layout::{ArchId, Shape, SubsystemId};
use sluice_core::mem::{CopyMemory, DevAddr};
use sluice_host::device::Device;
use sluice_host::device::heap::Heap;
use sluice_host::device::qemu::{QemuConfig, QemuDevice, QemuError};
use sluice_host::dfx::{BufferMeta, DfxConfig, Freeze, Session, Sink, SubsystemConfig};
use zerocopy::FromBytes;

const LANES: u32 = 2;
const BOUND: Duration = Duration::from_secs(60);

fn named(variable: &str) -> PathBuf {
    std::env::var_os(variable).expect("the image: run `cargo xtask test --only qemu`").into()
}

fn firmware() -> PathBuf {
    named("SLUICE_VIRT_LOADABLE")
}

fn config(image: PathBuf) -> QemuConfig {
    QemuConfig { stub: Some(named("SLUICE_VIRT_STUB")), start_bound: BOUND, ..QemuConfig::new(image, LANES) }
}

/// The firmware's image with another header or another payload.
fn variant(name: &str, change: impl FnOnce(&mut ImageHeader, &mut Vec<u8>)) -> PathBuf {
    let image = std::fs::read(firmware()).expect("an image");
    let (header, payload) = image.split_first_chunk::<IMAGE_HEADER_BYTES>().expect("a header");
    let mut header = ImageHeader::decode(header, image.len() as u64).expect("a whole image");
    let mut payload = payload.to_vec();
    change(&mut header, &mut payload);
    written(name, &[&header.encode()[..], &payload].concat())
}

fn written(name: &str, bytes: &[u8]) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("load");
    std::fs::create_dir_all(&folder).expect("a folder");
    let path = folder.join(name);
    std::fs::write(&path, bytes).expect("a file");
    path
}

/// Another build, at the same address: it has some bytes more, where zeros begin.
fn other_build() -> PathBuf {
    variant("other.slim", |header, payload| {
        payload.extend_from_slice(&[0x5A; 64]);
        header.payload_bytes = payload.len() as u64;
        header.payload_crc = crc32(payload);
        header.build = *b"another build.  ";
    })
}

/// Keeps all records.
#[derive(Default)]
struct Kept(Mutex<Vec<(u32, AicpuTaskRecord)>>);

impl Sink for Kept {
    fn buffer(&self, meta: &BufferMeta, records: &[u8]) -> io::Result<()> {
        let read = |bytes: &[u8]| AicpuTaskRecord::read_from_bytes(bytes).expect("a whole record");
        let records =
            records.chunks(size_of::<AicpuTaskRecord>()).map(|bytes| (meta.instance.0, read(bytes)));
        self.0.lock().expect("no panic").extend(records);
        Ok(())
    }

    fn freeze(&self, _: &Freeze) -> io::Result<()> {
        Ok(())
    }
}

/// Has the lanes of `device` make up `records` records, and gives back what was collected of them.
fn record(device: &Arc<QemuDevice>, records: u64) -> Vec<(u32, AicpuTaskRecord)> {
    let map = device.map();
    let heap = Heap::new(map.ram.base, map.ram.bytes);
    let cores = CoreIndex::all(map.registers.tpbs()).count() as u32;
    let shape = Shape::new(ArchId::A2a3, LANES, cores).expect("a shape");
    let swimlane = SubsystemConfig::new(SubsystemId::Swimlane, shape);
    let config = DfxConfig::new(shape).with(SubsystemId::Swimlane, swimlane);
    let boot = HostBoot::attach(device.memory(), map.boot).expect("a boot block");
    boot.set_workload(&Workload::tasks(records)).expect("mapped");
    let kept = Arc::new(Kept::default());
    let session =
        Session::start(device, &heap, config, Arc::clone(&kept) as Arc<dyn Sink>).expect("a session");
    let began = Instant::now();
    let is_made = |lane| boot.workload_made(lane).expect("mapped");
    while !(0..LANES).filter_map(LaneIndex::new).all(is_made) {
        assert!(began.elapsed() < BOUND, "the lanes make {records} records");
        device.wait_progress(device.progress(), Duration::from_millis(10));
    }
    let accounts = session.stop().expect("accounts");
    assert!(accounts[&SubsystemId::Swimlane].is_lossless());
    std::mem::take(&mut kept.0.lock().expect("no panic"))
}

#[test]
fn an_image_loaded_after_another_shows_nothing_of_it() {
    let device = Arc::new(QemuDevice::start(&config(firmware())).expect("a board"));
    let first = record(&device, 5000);
    assert_eq!(first.len(), 5000);
    let last_cycles = first.iter().map(|(_, record)| record.finish_time).max().expect("records");
    // What nobody has asked to be cleared.
    let ram = device.map().ram;
    let places = [ram.base.0, ram.base.0 + (1 << 20) + 64, ram.base.0 + ram.bytes - 64].map(DevAddr);
    places.iter().for_each(|&at| device.memory().write_bytes(at, &[0xA5; 64]).expect("mapped"));

    let device = Arc::into_inner(device).expect("nobody else has it");
    let device = Arc::new(device.reload(&other_build()).expect("the same board"));
    for at in places {
        let mut bytes = [1; 64];
        device.memory().read_bytes(at, &mut bytes).expect("mapped");
        assert_eq!(bytes, [0; 64], "at {at}");
    }
    let second = record(&device, 3000);
    assert_eq!(second.len(), 3000);
    let tokens: BTreeSet<_> = second.iter().map(|(core, record)| (core, record.reg_task_id)).collect();
    assert_eq!(tokens.len(), 3000, "every token once");
    let first_cycles = second.iter().map(|(_, record)| record.dispatch_time).min().expect("records");
    assert!(first_cycles > last_cycles, "began at {first_cycles}, the image before ended at {last_cycles}");

    // And the first once more.
    let device = Arc::into_inner(device).expect("nobody else has it");
    let device = Arc::new(device.reload(&firmware()).expect("the same board"));
    assert_eq!(record(&device, 1000).len(), 1000);
}

#[test]
fn an_image_that_does_not_belong_on_the_board_is_refused_with_the_reason() {
    let whole = std::fs::read(firmware()).expect("an image");
    let bad = |image: PathBuf| match QemuDevice::start(&config(image)).err() {
        Some(QemuError::Refused { bad, .. }) => bad,
        other => panic!("expected a refusal, got {other:?}"),
    };
    let cut = |bytes: usize| written("cut.slim", &whole[..bytes]);
    let is = whole.len() as u64;
    assert_eq!(bad(cut(4000)), BadImage::Length { need: is, got: 4000 });
    assert_eq!(bad(cut(20)), BadImage::Length { need: IMAGE_HEADER_BYTES as u64, got: 20 });
    let flipped = |at: usize| {
        let mut bytes = whole.clone();
        bytes[at] ^= 4;
        bad(written("flipped.slim", &bytes))
    };
    assert!(matches!(flipped(20), BadImage::HeaderCrc { .. }));
    assert!(matches!(flipped(whole.len() - 1), BadImage::PayloadCrc { .. }));
    let changed = |change: fn(&mut ImageHeader)| bad(variant("changed.slim", |header, _| change(header)));
    assert_eq!(changed(|header| header.board = BoardId::AN385), BadImage::Board { got: 2, need: 1 });
    assert_eq!(changed(|header| header.layouts[0] = 7), BadImage::Layout { arch: 0, got: 7 });
    let (end, most) = (header_of(&whole).load.0 + (32 << 20), VIRT_ROOM.end.0);
    assert_eq!(changed(|header| header.memory_bytes = 32 << 20), BadImage::Room { end, most });
    // An executable instead of an image.
    assert_eq!(bad(named("SLUICE_VIRT_STUB")), BadImage::Magic { got: u32::from_le_bytes(*b"\x7fELF") });
}

fn header_of(image: &[u8]) -> ImageHeader {
    let header = image.first_chunk().expect("a header");
    ImageHeader::decode(header, image.len() as u64).expect("a whole image")
}

#[test]
fn a_board_that_nobody_loads_is_given_up_in_time() {
    // The firmware where the stub should be waits for no image.
    let board = QemuConfig {
        stub: Some(named("SLUICE_VIRT_IMAGE")),
        start_bound: Duration::from_secs(2),
        ..config(firmware())
    };
    assert!(matches!(QemuDevice::start(&board).err(), Some(QemuError::NoStub { .. })));
    let missing = config("no-such-image".into());
    assert!(matches!(QemuDevice::start(&missing).err(), Some(QemuError::Image { .. })));
    // Without a stub there is nothing to give the board back to.
    let device = QemuDevice::start(&QemuConfig {
        stub: None,
        image: named("SLUICE_VIRT_IMAGE"),
        ..config(firmware())
    });
    let reloaded = device.expect("a board").reload(&firmware());
    assert!(matches!(reloaded.err(), Some(QemuError::NoStub { .. })));
}
