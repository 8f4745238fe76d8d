//! Firmware for QEMU's `virt` board: a processor per lane, the others for compute cores.
//!
//! ```text
//!   processor 0: page table, GIC, UART ─► starts 1, 2, … by PSCI ─► its services
//!   processors 1 …                                                  their services
//!   doorbell (UART) ─► processor 0 ─► software interrupts ─► all others
//! ```
//!
//! A processor that panics or faults leaves its reason in the status block, rings the host, and stands still. When the host
//! wants the board back, all processors but the first switch themselves off, and that goes on in the boot stub.
#![no_std]
#![no_main]

mod cpu;
mod gic;
mod machine;
mod processor;
mod shared;
mod stack;
mod uart;

use core::fmt::Write;
use core::panic::PanicInfo;

use aarch64_rt::{ExceptionHandlers, RegisterStateRef, entry, exception_handlers};
use sluice_aicpu_fw::{AgentDelays, Node, Startup};
use sluice_core::mmio::Engine;

use machine::Machine;
use processor::Processor;

/// Pages of the stack that a processor starts on, and takes exceptions on.
const START_PAGES: usize = 4;

/// Most TPBs of the device.
const TPBS: usize = 4;

/// Their cores.
const CORES: usize = TPBS * Engine::COUNT;

/// What all processors find out together.
static STARTUP: Startup = Startup::new();

entry!(main, START_PAGES);

fn main(_: u64, _: u64, _: u64, _: u64) -> ! {
    let machine = Machine::start();
    for id in 1..machine.processors() {
        machine.start_processor(id);
    }
    stack::run_on(0, run)
}

/// Runs the services of processor `id` until the host wants the board back.
extern "C" fn run(id: u64) -> ! {
    let id = id as u32;
    #[cfg(feature = "virt-overflow")]
    if id == 2 {
        core::hint::black_box(stack::overflow(0));
    }
    let machine = Machine::get();
    let processor = Processor::start(machine, id);
    if id < machine.lanes() { serve::<1, TPBS, CORES>(processor) } else { serve::<0, 0, CORES>(processor) }
}

fn serve<const LANES: usize, const TPBS: usize, const CORES: usize>(processor: Processor) -> ! {
    let mut node = match Node::<_, LANES, TPBS, CORES>::start(processor, &STARTUP, AgentDelays::default()) {
        Ok(node) => node,
        Err(error) => panic!("{error}"),
    };
    let machine = Machine::get();
    machine.note_ready();
    node.run(|| !machine.is_recalled());
    machine.hand_back()
}

exception_handlers!(Exceptions);

struct Exceptions;

impl ExceptionHandlers for Exceptions {
    extern "C" fn sync_current(state: RegisterStateRef) {
        let [syndrome, address] = cpu::fault_registers();
        if let Some(processor) = stack::overflowed_at(address) {
            panic!("stack of processor {processor} overflowed at instruction {:#x}", state.elr);
        }
        panic!("fault {syndrome:#x} at instruction {:#x}, address {address:#x}", state.elr);
    }
}

#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    let mut text = Text { bytes: [0; 400], used: 0 };
    // What does not fit is cut off.
    let _ = write!(text, "{info}");
    machine::stand_still(text.as_str())
}

/// Words for the host.
struct Text {
    bytes: [u8; 400],
    used: usize,
}

impl Text {
    fn as_str(&self) -> &str {
        let bytes = &self.bytes[..self.used];
        core::str::from_utf8(bytes).unwrap_or("a panic whose words are no text")
    }
}

impl Write for Text {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        for character in text.chars() {
            let place = self.bytes.get_mut(self.used..self.used + character.len_utf8());
            self.used += character.encode_utf8(place.ok_or(core::fmt::Error)?).len();
        }
        Ok(())
    }
}
