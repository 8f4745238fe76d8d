//! A device in QEMU: the firmware's own image on an emulated board, whose memory this process maps.
//!
//! ```text
//!   this process                                   QEMU
//!   file in memory, sealed ── mapped by both ────► shared part of the board's RAM
//!   ring: link block, a byte on a socket ────────► UART ─► interrupt
//!   listener thread ◄──── a byte on the socket ─── UART ◄─ ring: link block
//! ```
//!
//! With a boot stub the board starts without firmware: the host stages an image, and another after it
//! ([`reload`](QemuDevice::reload)) in the same board.
//!
//! The board runs from [`start`](QemuDevice::start) until the device is dropped, or until QEMU dies by itself: then nothing
//! that waits for the device is woken any more, every wait ends at its own bound, and [`Device::fate`] says what happened.

mod board;
mod clock;
mod line;
mod load;
pub mod shared;

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use sluice_core::exec::image::BadImage;
use sluice_core::exec::link::{HostLink, LINK_BYTES, LinkPlace, Ringer};
use sluice_core::exec::vitals::{ProcessorState, StatusReader, TEXT_BYTES};
use sluice_core::exec::{BOOT_BYTES, BootError, BootShape, DeviceMap, DeviceRange, status_block};
use sluice_core::layout::ArchId;
use sluice_core::mem::{Clock, DevAddr, Fault};
use sluice_core::mmio::{RegisterMap, TpbId};

use super::mapping::{self, MappedMemory};
use super::progress::Progress;
use super::{Device, Driver};
use crate::neff::Target;
use board::Board;
use clock::BoardClock;
use line::Line;

/// Where the memory that is shared begins on the board.
const SHARED: DevAddr = DevAddr(0x4200_0000);

/// Granularity of the parts, in bytes.
const PAGE_BYTES: u64 = 0x1_0000;

/// Most that the board maps of it.
const MOST_BYTES: u64 = (4 << 30) - SHARED.0;

/// What a device in QEMU is to be.
#[derive(Clone, Debug)]
pub struct QemuConfig {
    /// Whose wire contract it has. The counter is the board's own.
    pub arch: ArchId,
    /// Whose models it takes.
    pub target: Target,
    /// TPBs, 1..=8.
    pub tpbs: u32,
    /// Lanes, 1 up to the most of the architecture.
    pub lanes: u32,
    /// Processors, from as many as there are lanes up to 8; those that lanes leave run compute cores.
    pub processors: u32,
    /// Bytes of RAM that descriptors, programs and tensors may lie in.
    pub ram_bytes: u64,
    /// QEMU for AArch64.
    pub qemu: PathBuf,
    /// The boot stub, which loads `image` into the running board; QEMU does it where there is none.
    pub stub: Option<PathBuf>,
    /// The firmware: an image with a header if there is a stub, else an ELF file.
    pub image: PathBuf,
    /// Longest that is waited until all processors of the board have their services.
    pub start_bound: Duration,
}

impl QemuConfig {
    /// A device of one TPB with `lanes` lanes that runs `image`, by the QEMU that is found in the path.
    pub fn new(image: PathBuf, lanes: u32) -> Self {
        Self {
            arch: ArchId::A2a3,
            target: Target::Any,
            tpbs: 1,
            lanes,
            processors: (lanes + 1).min(8),
            ram_bytes: 2 << 30,
            qemu: "qemu-system-aarch64".into(),
            stub: None,
            image,
            start_bound: Duration::from_secs(30),
        }
    }
}

/// A device that cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum QemuError {
    /// Its memory cannot be had.
    #[error("cannot map {bytes} bytes to share with a board that has room for {MOST_BYTES}")]
    Map {
        /// Bytes needed.
        bytes: u64,
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// No device is like that.
    #[error(transparent)]
    Boot(#[from] BootError),
    /// Its memory cannot be laid out.
    #[error(transparent)]
    Fault(#[from] Fault),
    /// Fewer processors than lanes, or more than the board has.
    #[error("need {lanes} to 8 processors, got {processors}")]
    Processors {
        /// Processors asked for.
        processors: u32,
        /// Lanes asked for.
        lanes: u32,
    },
    /// Too old to run the board.
    #[error("{} is QEMU {found}, need {} or newer", .qemu.display(), board::OLDEST)]
    TooOld {
        /// What was to be started.
        qemu: PathBuf,
        /// Its version.
        found: String,
    },
    /// Says of itself something else than a version of QEMU.
    #[error("{} does not say which QEMU it is, but: {said}", .qemu.display())]
    NotQemu {
        /// What was to be started.
        qemu: PathBuf,
        /// What it says.
        said: String,
    },
    /// QEMU cannot be started.
    #[error("cannot start {}", .qemu.display())]
    Spawn {
        /// What was to be started.
        qemu: PathBuf,
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// The line to the board is dead.
    #[error("no doorbell line to the board")]
    Line(#[source] io::Error),
    /// The image cannot be read.
    #[error("cannot read {}", .image.display())]
    Image {
        /// Where it was looked for.
        image: PathBuf,
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// The boot stub has looked at the image and does not start it.
    #[error("the boot stub refuses {}: {bad}", .image.display())]
    Refused {
        /// The image.
        image: PathBuf,
        /// Why.
        bad: BadImage,
    },
    /// The boot stub says what this host does not know.
    #[error("the boot stub refuses the image with code {code}, which only a newer one gives")]
    RefusedByCode {
        /// The code.
        code: u64,
    },
    /// Nobody waits for an image.
    #[error("no boot stub waits for an image after {after:?}")]
    NoStub {
        /// How long was waited.
        after: Duration,
    },
    /// QEMU has ended before the firmware was ready.
    #[error("QEMU ended before the firmware was ready: {0}")]
    Ended(String),
    /// A processor has stopped before it was ready.
    #[error("the firmware stopped: {0}")]
    Stopped(String),
    /// Not all processors became ready.
    #[error("{ready} of {processors} processors ready after {after:?}")]
    NotReady {
        /// Processors that were.
        ready: u32,
        /// Processors asked for.
        processors: u32,
        /// How long was waited.
        after: Duration,
    },
}

/// A device in QEMU. Dropping it ends QEMU.
pub struct QemuDevice {
    memory: MappedMemory,
    map: DeviceMap,
    target: Target,
    driver: Driver,
    clock: BoardClock,
    to_device: Ringer<MappedMemory>,
    link: HostLink<MappedMemory>,
    progress: Arc<Progress>,
    line: Line,
    board: Board,
    plan: Plan,
    /// Open for whoever looks at it from another process.
    _file: File,
}

/// How the memory is laid out, for every image anew.
#[derive(Clone, Copy)]
struct Plan {
    shape: BootShape,
    place: LinkPlace,
    /// All of it.
    bytes: u64,
    has_stub: bool,
    bound: Duration,
}

impl Plan {
    /// Writes what an image finds at its start, into memory that reads zero.
    fn lay_out(&self, memory: &MappedMemory) -> Result<(), QemuError> {
        self.shape.write(memory, self.place.boot)?;
        Ok(self.place.write(memory, SHARED)?)
    }
}

impl QemuDevice {
    /// Lays out the memory, starts QEMU, and waits until every processor of the board has its services.
    ///
    /// # Errors
    /// [`QemuError`]; nothing stays behind.
    pub fn start(config: &QemuConfig) -> Result<Self, QemuError> {
        let &QemuConfig { arch, target, tpbs, lanes, processors, ram_bytes, .. } = config;
        let shape = BootShape { arch, tpbs, lanes }.check()?;
        if processors < lanes || processors > 8 {
            return Err(QemuError::Processors { processors, lanes });
        }
        let ram = DeviceRange {
            base: SHARED.offset(LINK_BYTES.next_multiple_of(PAGE_BYTES)),
            bytes: ram_bytes.next_multiple_of(PAGE_BYTES),
        };
        let registers = RegisterMap::new(ram.base.offset(ram.bytes), tpbs)
            .map_err(|_| BootError::Tpbs { asked: tpbs })?;
        let boot = registers.base().offset(registers.bytes().next_multiple_of(PAGE_BYTES));
        let bytes = (boot.0 - SHARED.0 + BOOT_BYTES).next_multiple_of(1 << 20);
        let refused = |source| QemuError::Map { bytes, source };
        if ram_bytes > MOST_BYTES || bytes > MOST_BYTES {
            return Err(refused(io::ErrorKind::OutOfMemory.into()));
        }
        let file = mapping::memory_file(bytes).map_err(refused)?;
        let memory = mapping::map_file(SHARED, bytes, &file).map_err(refused)?;
        let map = DeviceMap { ram, registers, boot, lanes };
        let place = LinkPlace { processors, ram, registers: registers.base(), boot };
        let plan = Plan { shape, place, bytes, has_stub: config.stub.is_some(), bound: config.start_bound };
        plan.lay_out(&memory)?;
        let link = HostLink::attach(&memory, SHARED)?;
        let to_device = Ringer::to_device(&memory, SHARED)?;
        let progress = Arc::new(Progress::default());

        let board = Board::start(config, &file, bytes)?;
        let line = Line::connect(&board, &memory, &progress, config.start_bound)?;
        let mut device = Self {
            memory,
            map,
            target,
            driver: Driver::nobody(),
            clock: BoardClock::unknown(),
            to_device,
            link,
            progress,
            line,
            board,
            plan,
            _file: file,
        };
        if plan.has_stub {
            device.load(&config.image, 0)?;
        }
        device.take_up()?;
        Ok(device)
    }

    /// Waits until the firmware that was started has its services.
    fn take_up(&mut self) -> Result<(), QemuError> {
        let Plan { place, bound, .. } = self.plan;
        self.wait_ready(place.processors, bound)?;
        self.clock = self.read_clock(bound)?;
        Ok(())
    }

    fn wait_ready(&self, processors: u32, bound: Duration) -> Result<(), QemuError> {
        let started = std::time::Instant::now();
        loop {
            let seen = self.progress.get();
            let ready = self.link.ready()?;
            if ready >= processors {
                return Ok(());
            }
            self.still_runs()?;
            let after = started.elapsed();
            if after >= bound {
                return Err(QemuError::NotReady { ready, processors, after });
            }
            self.progress.wait(seen, Duration::from_millis(10));
        }
    }

    fn still_runs(&self) -> Result<(), QemuError> {
        if let Some(reason) = self.fault()? {
            return Err(QemuError::Stopped(reason));
        }
        self.board.ended().map_or(Ok(()), |how| Err(QemuError::Ended(how)))
    }

    /// The device's counter against this process's, by the exchange that took least.
    fn read_clock(&self, bound: Duration) -> Result<BoardClock, QemuError> {
        let started = std::time::Instant::now();
        let mut best = BoardClock::unknown();
        for _ in 0..clock::EXCHANGES {
            let asked = std::time::Instant::now();
            self.link.ask_clock();
            self.ring();
            let cycles = loop {
                let seen = self.progress.get();
                if let Some(cycles) = self.link.clock_answer()? {
                    break cycles;
                }
                self.still_runs()?;
                if started.elapsed() >= bound {
                    return Err(QemuError::Stopped("its counter is not read".into()));
                }
                self.progress.wait(seen, Duration::from_millis(10));
            };
            best = best.better(BoardClock::read(asked, cycles));
        }
        Ok(best)
    }

    fn ring(&self) {
        if self.to_device.ring() {
            self.line.send();
        }
    }

    /// Processors that run firmware.
    pub fn processors(&self) -> u32 {
        self.plan.place.processors
    }

    fn fault(&self) -> Result<Option<String>, Fault> {
        let reader = StatusReader::new(self.memory.clone(), status_block(self.map.boot));
        let mut text = [0; TEXT_BYTES];
        let mut faults = Vec::new();
        for number in 0..self.processors() {
            let processor = reader.processor(number, &mut text)?;
            if processor.state == ProcessorState::FAULTED {
                let text = String::from_utf8_lossy(&text[..processor.text_bytes]);
                faults.push(format!("processor {number}: {text}"));
            }
        }
        Ok(Some(faults.join("; ")).filter(|_| !faults.is_empty()))
    }
}

impl Drop for QemuDevice {
    fn drop(&mut self) {
        if let Some(fate) = self.fate() {
            tracing::warn!("the board had stopped: {fate}");
        }
    }
}

impl Clock for QemuDevice {
    fn now_cycles(&self) -> u64 {
        self.clock.now_cycles()
    }

    fn frequency_hz(&self) -> u64 {
        clock::HZ
    }
}

impl Device for QemuDevice {
    type Mem = MappedMemory;

    fn name(&self) -> &'static str {
        "qemu-aarch64"
    }

    fn target(&self) -> Target {
        self.target
    }

    fn memory(&self) -> &MappedMemory {
        &self.memory
    }

    fn map(&self) -> DeviceMap {
        self.map
    }

    fn driver(&self) -> &Driver {
        &self.driver
    }

    fn ring_doorbell(&self, tpb: TpbId) {
        if self.map.registers.tpb(tpb).is_ok() {
            self.ring();
        }
    }

    fn wake_lanes(&self) {
        self.ring();
    }

    fn fate(&self) -> Option<String> {
        let fault = self.fault().ok().flatten();
        fault.or_else(|| self.board.ended())
    }

    fn progress(&self) -> u32 {
        self.progress.get()
    }

    fn wait_progress(&self, seen: u32, timeout: Duration) -> u32 {
        self.progress.wait(seen, timeout)
    }
}
