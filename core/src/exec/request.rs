//! The execution request: what the prologue of a batch copies into the sequencer's control page.
//!
//! ```text
//!   0x00  do_model_switch
//!   0x04  instruction base, low word × 5      engine order PE ACT POOL DVE SP
//!   0x18  instruction base, high word × 5
//!   0x2C  reload_seq_config
//!   0x30  load_act_dve_tables                 the end of the request proper
//!   0x34  cc_dma_increment                    the word behind it, in the same copy
//! ```
//!
//! Little-endian (KBL facts, hardware execution queue).

use core::mem::offset_of;

use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::mem::{DevAddr, Words};
use crate::mmio::{Engine, TpbRegisters};

/// The 52 bytes that describe one execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ExecRequest {
    do_model_switch: U32,
    base_low: [U32; Engine::COUNT],
    base_high: [U32; Engine::COUNT],
    reload_seq_config: U32,
    load_act_dve_tables: U32,
}

/// Bytes of the request and of the word behind it.
pub const REQUEST_BYTES: u64 = 0x38;

/// Where the increment word stands, from the start of the request.
pub const INCREMENT_OFFSET_BYTES: u64 = 0x34;

const _: () = {
    assert!(size_of::<ExecRequest>() as u64 == INCREMENT_OFFSET_BYTES);
    assert!(offset_of!(ExecRequest, base_low) == 0x04 && offset_of!(ExecRequest, base_high) == 0x18);
    assert!(offset_of!(ExecRequest, reload_seq_config) == 0x2C);
    assert!(offset_of!(ExecRequest, load_act_dve_tables) == 0x30);
    assert!(REQUEST_BYTES as u32 + TpbRegisters::REQUEST_OFFSET_BYTES == TpbRegisters::TASKS_OFFSET_BYTES);
};

/// What an execution asks of the sequencer besides its programs. Any non-zero word counts as set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct RequestFlags {
    /// Another model than the last one runs.
    pub do_model_switch: bool,
    /// The sequencer's configuration changed.
    pub reload_seq_config: bool,
    /// The tables of the activation and vector engines changed.
    pub load_act_dve_tables: bool,
}

impl ExecRequest {
    /// A request to run the programs at `bases`; a null address means that the engine has none.
    pub fn new(bases: [DevAddr; Engine::COUNT], flags: RequestFlags) -> Self {
        Self {
            do_model_switch: U32::new(flags.do_model_switch.into()),
            base_low: bases.map(|base| U32::new(base.split().0)),
            base_high: bases.map(|base| U32::new(base.split().1)),
            reload_seq_config: U32::new(flags.reload_seq_config.into()),
            load_act_dve_tables: U32::new(flags.load_act_dve_tables.into()),
        }
    }

    /// Where `engine`'s program starts; null when it has none.
    pub fn base(&self, engine: Engine) -> DevAddr {
        DevAddr::join(self.base_low[engine.index()].get(), self.base_high[engine.index()].get())
    }

    /// The same out of the control page, whose words from the request on are `page`. Word by word: what was copied there a
    /// moment ago is at hand in words, and not yet as a whole.
    pub fn base_in<W: Words>(page: &W, engine: Engine) -> DevAddr {
        let word = |first: usize| page.get((first / size_of::<u32>() + engine.index()) as u32);
        DevAddr::join(word(offset_of!(Self, base_low)), word(offset_of!(Self, base_high)))
    }

    /// The flags.
    pub fn flags(&self) -> RequestFlags {
        RequestFlags {
            do_model_switch: self.do_model_switch.get() != 0,
            reload_seq_config: self.reload_seq_config.get() != 0,
            load_act_dve_tables: self.load_act_dve_tables.get() != 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::{CopyMemory, Line, Mapped, Memory, Slab};

    #[test]
    fn bases_are_split_by_half_not_by_engine() {
        let bases = [1u64, 2, 3, 4, 5].map(|n| DevAddr(n << 32 | (n + 16)));
        let flags = RequestFlags { load_act_dve_tables: true, ..RequestFlags::default() };
        let request = ExecRequest::new(bases, flags);
        let words: std::vec::Vec<u8> = request.as_bytes().iter().step_by(4).copied().collect();
        assert_eq!(words, [0, 17, 18, 19, 20, 21, 1, 2, 3, 4, 5, 0, 1]);
        assert_eq!(Engine::ALL.map(|engine| request.base(engine)), bases);
        assert_eq!(request.flags(), flags);
        let at = DevAddr(0x1000);
        let mut lines = [Line::ZERO];
        let memory = Mapped::new(Slab::over(&mut lines, at));
        memory.write_bytes(at, request.as_bytes()).unwrap();
        let page = memory.words(at, 14).unwrap();
        assert_eq!(Engine::ALL.map(|engine| ExecRequest::base_in(&page, engine)), bases);
    }
}
