//! The register window: which address is which register, and back.
//!
//! ```text
//!   TPB t at window + 0x8_0000·t
//!   0x00000  TX block      queue q: bank at + 0x1000·(q + 1), 16 queues
//!   0x20000  RX block      the same
//!   0x40000  events        u32[256]
//!   0x41000  semaphores    u32[256]
//!   0x42000  control page  words between host and sequencer
//!   0x43000  notification  NQ i: block at 0x100 + 0x28·i
//!   0x44000  mailboxes     engine e: at 0x40·e
//!   0x45000  firmware      words among the device's own services
//!   0x46000  counters      engine e: at 0x80·e
//! ```
//!
//! Bank and notification offsets are the wire contract's, the places of the blocks our own choice. An address
//! that a descriptor names is hostile: [`RegisterMap::locate`] answers for every address.

use core::fmt;

use super::counters;
use crate::mem::DevAddr;

/// Which ring of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Half {
    /// Memory to stream: the source half.
    Tx,
    /// Stream to memory: the destination half.
    Rx,
}

impl fmt::Display for Half {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tx => "tx",
            Self::Rx => "rx",
        })
    }
}

/// An index that the register window has no place for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct OutsideWindow {
    /// What was asked for.
    pub what: &'static str,
    /// Its index.
    pub index: u32,
    /// How many there are.
    pub count: u32,
}

impl OutsideWindow {
    /// The driver's number for this error, −1.
    pub const fn errno(self) -> i32 {
        -1
    }
}

impl fmt::Display for OutsideWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, index, count } = self;
        write!(f, "no {what} {index}: there are {count}")
    }
}

impl core::error::Error for OutsideWindow {}

/// Declares an index type with a fixed number of values.
macro_rules! index {
    ($(#[$doc:meta])* $name:ident, $what:literal, $count:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(u8);

        impl $name {
            /// How many there are.
            pub const COUNT: u32 = $count;

            /// The one with this index.
            ///
            /// # Errors
            /// An index of `COUNT` or more.
            pub const fn new(index: u32) -> Result<Self, OutsideWindow> {
                if index < Self::COUNT {
                    Ok(Self(index as u8))
                } else {
                    Err(OutsideWindow { what: $what, index, count: Self::COUNT })
                }
            }

            /// The index.
            pub const fn get(self) -> u32 {
                self.0 as u32
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

index! {
    /// One physical compute core of a device.
    TpbId, "TPB", 8
}
index! {
    /// One of the 16 queues of a DMA engine. Queues 0..=14 belong to models.
    QueueId, "queue", 16
}
index! {
    /// An event register of a TPB.
    EventId, "event", 256
}
index! {
    /// A semaphore of a TPB.
    SemaphoreId, "semaphore", 256
}
index! {
    /// A notification queue of a TPB: NQ type × 16 + queue number.
    NotificationQueue, "notification queue", 96
}

impl QueueId {
    /// The queue whose ring is filled by static prologues.
    pub const PROLOGUE: Self = Self(14);
    /// The execution queue.
    pub const EXEC: Self = Self(15);
}

impl EventId {
    /// The event that the sequencer waits on before an execution.
    pub const START: Self = Self(0);
}

impl TpbId {
    /// The first.
    pub const FIRST: Self = Self(0);
}

impl SemaphoreId {
    /// The first of a TPB's semaphores.
    pub const FIRST: Self = Self(0);
}

impl NotificationQueue {
    const PER_TYPE: u8 = 16;
    const NOTIFY: u8 = 1;
    const ERROR: u8 = 3;

    /// Where device errors are reported.
    pub const ERRORS: Self = Self(Self::ERROR * Self::PER_TYPE + 2);

    /// Where the start and the end of `engine`'s program are reported.
    pub const fn status_of(engine: Engine) -> Self {
        Self(Self::NOTIFY * Self::PER_TYPE + 4 + engine as u8)
    }
}

/// An engine of a TPB, in the order of the wire contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[repr(u8)]
pub enum Engine {
    /// Matrix engine.
    Pe = 0,
    /// Activation engine.
    Act = 1,
    /// Pooling engine.
    Pool = 2,
    /// Vector engine.
    Dve = 3,
    /// Synchronisation engine.
    Sp = 4,
}

impl Engine {
    /// How many there are.
    pub const COUNT: usize = 5;
    /// All of them, in order.
    pub const ALL: [Self; Self::COUNT] = [Self::Pe, Self::Act, Self::Pool, Self::Dve, Self::Sp];

    /// The engine with this number.
    ///
    /// # Errors
    /// A number above 4.
    pub const fn new(index: u32) -> Result<Self, OutsideWindow> {
        match index {
            0 => Ok(Self::Pe),
            1 => Ok(Self::Act),
            2 => Ok(Self::Pool),
            3 => Ok(Self::Dve),
            4 => Ok(Self::Sp),
            _ => Err(OutsideWindow { what: "engine", index, count: Self::COUNT as u32 }),
        }
    }

    /// The number.
    pub const fn index(self) -> usize {
        self as usize
    }

    /// The usual name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pe => "PE",
            Self::Act => "ACT",
            Self::Pool => "POOL",
            Self::Dve => "DVE",
            Self::Sp => "SP",
        }
    }
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A register of a queue bank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum QueueRegister {
    /// Low word of the ring's address.
    BaseLow = 0x28,
    /// High word of the ring's address.
    BaseHigh = 0x2C,
    /// Slots of the ring.
    Length = 0x30,
    /// Index the device reads next.
    HeadPointer = 0x34,
    /// Takes the number of new descriptors: the doorbell.
    TailIncrement = 0x38,
    /// Index after the last descriptor that was started.
    TailPointer = 0x3C,
    /// Laps that the head has finished, modulo 4. Ours: the hardware keeps it inside.
    Lap = 0x50,
}

impl QueueRegister {
    /// Bytes from the start of the bank.
    pub const fn offset_bytes(self) -> u64 {
        self as u64
    }

    const ALL: [Self; 7] = [
        Self::BaseLow,
        Self::BaseHigh,
        Self::Length,
        Self::HeadPointer,
        Self::TailIncrement,
        Self::TailPointer,
        Self::Lap,
    ];

    const fn at(offset_bytes: u64) -> Option<Self> {
        /// By word of the bank.
        const AT: [Option<QueueRegister>; 0x15] = {
            let (mut at, mut next) = ([None; 0x15], 0);
            while next < QueueRegister::ALL.len() {
                let register = QueueRegister::ALL[next];
                at[register.offset_bytes() as usize / 4] = Some(register);
                next += 1;
            }
            at
        };
        let word = offset_bytes / 4;
        if offset_bytes.is_multiple_of(4) && word < AT.len() as u64 { AT[word as usize] } else { None }
    }
}

/// The registers of one half of one queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QueueBank(pub DevAddr);

impl QueueBank {
    /// Address of a register.
    pub const fn register(self, register: QueueRegister) -> DevAddr {
        self.0.offset(register.offset_bytes())
    }
}

/// What lies at an address of the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Register {
    /// A register of a queue bank.
    Queue(Half, QueueId, QueueRegister),
    /// An event.
    Event(EventId),
    /// A semaphore.
    Semaphore(SemaphoreId),
    /// A byte of the control page, so far from its start.
    Control(u32),
    /// None of these: reserved, or not for descriptors.
    Other,
}

/// The window of one TPB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TpbRegisters(DevAddr);

impl TpbRegisters {
    const TX: u64 = 0;
    const RX: u64 = 0x2_0000;
    const BANK: u64 = 0x1000;
    const EVENTS: u64 = 0x4_0000;
    const SEMAPHORES: u64 = 0x4_1000;
    const CONTROL: u64 = 0x4_2000;
    const NOTIFICATION: u64 = 0x4_3000;
    const MAILBOXES: u64 = 0x4_4000;
    const MAILBOX_BYTES: u64 = 0x40;
    const FIRMWARE: u64 = 0x4_5000;
    const COUNTERS: u64 = 0x4_6000;
    const PAGE: u64 = 0x1000;

    /// The registers of one half of `queue`.
    pub const fn queue_bank(self, half: Half, queue: QueueId) -> QueueBank {
        let block = match half {
            Half::Tx => Self::TX,
            Half::Rx => Self::RX,
        };
        QueueBank(self.0.offset(block + Self::BANK * (queue.0 as u64 + 1)))
    }

    /// Address of an event register.
    pub const fn event(self, event: EventId) -> DevAddr {
        self.0.offset(Self::EVENTS + 4 * event.0 as u64)
    }

    /// Address of a semaphore.
    pub const fn semaphore(self, semaphore: SemaphoreId) -> DevAddr {
        self.0.offset(Self::SEMAPHORES + 4 * semaphore.0 as u64)
    }

    /// Address of the control page.
    pub const fn control(self) -> DevAddr {
        self.0.offset(Self::CONTROL)
    }

    /// Address of the register block of a notification queue.
    pub const fn notification(self, queue: NotificationQueue) -> DevAddr {
        self.0.offset(Self::NOTIFICATION + 0x100 + 0x28 * queue.0 as u64)
    }

    /// Address of an engine's mailbox.
    pub const fn mailbox(self, engine: Engine) -> DevAddr {
        self.0.offset(Self::MAILBOXES + Self::MAILBOX_BYTES * engine as u64)
    }

    /// Address of an engine's performance counters.
    pub const fn counters(self, engine: Engine) -> DevAddr {
        self.0.offset(Self::COUNTERS + counters::BLOCK_BYTES * engine as u64)
    }

    /// Address of the page in which the device's services keep words of their own.
    pub const fn firmware(self) -> DevAddr {
        self.0.offset(Self::FIRMWARE)
    }

    #[inline]
    const fn locate(offset: u64) -> Register {
        let index = (offset % Self::PAGE / 4) as u32;
        let found = match offset {
            Self::TX..Self::EVENTS => {
                let half = if offset < Self::RX { Half::Tx } else { Half::Rx };
                let bank = offset % Self::RX / Self::BANK;
                // Bank 0 is the engine's own block; a queue's number is one less than its bank's.
                match (QueueId::new((bank as u32).wrapping_sub(1)), QueueRegister::at(offset % Self::BANK)) {
                    (Ok(queue), Some(register)) => Some(Register::Queue(half, queue, register)),
                    _ => None,
                }
            }
            Self::EVENTS..Self::SEMAPHORES => match EventId::new(index) {
                Ok(event) if offset.is_multiple_of(4) => Some(Register::Event(event)),
                _ => None,
            },
            Self::SEMAPHORES..Self::CONTROL => match SemaphoreId::new(index) {
                Ok(semaphore) if offset.is_multiple_of(4) => Some(Register::Semaphore(semaphore)),
                _ => None,
            },
            Self::CONTROL..Self::NOTIFICATION => Some(Register::Control((offset - Self::CONTROL) as u32)),
            _ => None,
        };
        match found {
            Some(register) => register,
            None => Register::Other,
        }
    }
}

/// The register window of a device with a number of TPBs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegisterMap {
    base: DevAddr,
    tpbs: u32,
}

impl RegisterMap {
    const TPB_BYTES: u64 = 0x8_0000;

    /// The window at `base` of a device with `tpbs` TPBs.
    ///
    /// # Errors
    /// More than 8 TPBs.
    pub const fn new(base: DevAddr, tpbs: u32) -> Result<Self, OutsideWindow> {
        if tpbs > TpbId::COUNT {
            return Err(OutsideWindow { what: "TPB", index: tpbs - 1, count: TpbId::COUNT });
        }
        Ok(Self { base, tpbs })
    }

    /// Address of its first byte.
    pub const fn base(&self) -> DevAddr {
        self.base
    }

    /// Its length.
    pub const fn bytes(&self) -> u64 {
        self.tpbs as u64 * Self::TPB_BYTES
    }

    /// How many TPBs it has.
    pub const fn tpbs(&self) -> u32 {
        self.tpbs
    }

    /// The registers of one TPB.
    ///
    /// # Errors
    /// A TPB that this device does not have.
    pub const fn tpb(&self, tpb: TpbId) -> Result<TpbRegisters, OutsideWindow> {
        if tpb.get() >= self.tpbs {
            return Err(OutsideWindow { what: "TPB", index: tpb.get(), count: self.tpbs });
        }
        Ok(TpbRegisters(self.base.offset(Self::TPB_BYTES * tpb.get() as u64)))
    }

    /// What lies at `address`; `None` outside the window.
    #[inline]
    pub const fn locate(&self, address: DevAddr) -> Option<(TpbId, Register)> {
        let offset = address.0.wrapping_sub(self.base.0);
        if offset >= self.bytes() {
            return None;
        }
        let tpb = TpbId((offset / Self::TPB_BYTES) as u8);
        Some((tpb, TpbRegisters::locate(offset % Self::TPB_BYTES)))
    }

    /// Whether any of `bytes` bytes at `address` lies in the window.
    pub const fn touches(&self, address: DevAddr, bytes: u64) -> bool {
        let before = address.0 < self.base.0 && self.base.0 - address.0 >= bytes;
        !before && address.0.saturating_sub(self.base.0) < self.bytes()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MAP: RegisterMap = match RegisterMap::new(DevAddr(0x10_0000_0000), 2) {
        Ok(map) => map,
        Err(_) => panic!(),
    };

    fn tpb(index: u32) -> TpbRegisters {
        MAP.tpb(TpbId::new(index).unwrap()).unwrap()
    }

    #[test]
    fn addresses_are_those_of_the_contract() {
        let offset = |address: DevAddr| address.0 - MAP.base().0;
        let exec = tpb(1).queue_bank(Half::Rx, QueueId::EXEC);
        assert_eq!(
            offset(exec.register(QueueRegister::TailIncrement)),
            0x8_0000 + 0x2_0000 + 0x1_0000 + 0x38
        );
        assert_eq!(offset(tpb(0).queue_bank(Half::Tx, QueueId::new(0).unwrap()).0), 0x1000);
        assert_eq!(offset(tpb(0).event(EventId::new(255).unwrap())), 0x4_03FC);
        assert_eq!(offset(tpb(0).semaphore(SemaphoreId::new(1).unwrap())), 0x4_1004);
        assert_eq!(offset(tpb(0).control()), 0x4_2000);
        assert_eq!(offset(tpb(0).notification(NotificationQueue::ERRORS)), 0x4_3100 + 0x28 * 50);
        assert_eq!(NotificationQueue::status_of(Engine::Sp).get(), 24);
        assert_eq!(offset(tpb(0).mailbox(Engine::Sp)), 0x4_4100);
    }

    #[test]
    fn what_a_device_lacks_is_refused_with_numbers() {
        assert_eq!(MAP.tpb(TpbId::new(2).unwrap()), Err(OutsideWindow { what: "TPB", index: 2, count: 2 }));
        let queue = QueueId::new(16).unwrap_err();
        assert_eq!((queue, queue.errno()), (OutsideWindow { what: "queue", index: 16, count: 16 }, -1));
        assert!(RegisterMap::new(DevAddr(0), 9).is_err());
        assert!(Engine::new(5).is_err());
    }

    #[test]
    fn gaps_of_the_window_are_no_registers() {
        let locate = |offset| MAP.locate(MAP.base().offset(offset)).map(|(_, register)| register);
        for offset in
            [0x28, 0x1000, 0x1_1028, 0x2_0038, 0x3_1028, 0x4_0001, 0x4_0400, 0x4_1400, 0x4_3100, 0x7_FFFF]
        {
            assert_eq!(locate(offset), Some(Register::Other), "{offset:#x}");
        }
        assert_eq!(locate(0x4_2010), Some(Register::Control(0x10)));
        assert_eq!(locate(0x10_0000), None);
        assert_eq!(MAP.locate(DevAddr(MAP.base().0 - 1)), None);
    }

    #[test]
    fn a_range_touches_the_window_by_any_byte() {
        let (base, end) = (MAP.base().0, MAP.base().0 + MAP.bytes());
        assert!(!MAP.touches(DevAddr(base - 4), 4));
        assert!(MAP.touches(DevAddr(base - 4), 5));
        assert!(MAP.touches(DevAddr(0), u64::MAX));
        assert!(MAP.touches(DevAddr(end - 1), 1));
        assert!(!MAP.touches(DevAddr(end), 8));
    }

    proptest! {
        #[test]
        #[cfg_attr(miri, ignore = "arithmetic only, slow to interpret")]
        fn every_register_is_found_at_its_address(
            t in 0u32..2, queue in 0u32..16, index in 0u32..256, tx: bool, offset in 0x28u64..0x40,
        ) {
            let id = TpbId::new(t).unwrap();
            let half = if tx { Half::Tx } else { Half::Rx };
            let queue = QueueId::new(queue).unwrap();
            if let Some(register) = QueueRegister::at(offset) {
                prop_assert_eq!(register.offset_bytes(), offset);
                let address = tpb(t).queue_bank(half, queue).register(register);
                prop_assert_eq!(MAP.locate(address), Some((id, Register::Queue(half, queue, register))));
            }
            let (event, semaphore) = (EventId::new(index).unwrap(), SemaphoreId::new(index).unwrap());
            prop_assert_eq!(MAP.locate(tpb(t).event(event)), Some((id, Register::Event(event))));
            prop_assert_eq!(MAP.locate(tpb(t).semaphore(semaphore)), Some((id, Register::Semaphore(semaphore))));
        }
    }
}
