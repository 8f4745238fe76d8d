//! `cargo xtask flash`: the forms in which programmers take firmware, and the programmer where the board is a real one.
//!
//! | file | what it is |
//! |---|---|
//! | `NAME.elf` | the executable as it was linked, with symbols |
//! | `NAME.bin` | its bytes from the first to the last, flat |
//! | `NAME.hex` | the same in Intel's hexadecimal form, with addresses and the entry |
//! | `NAME.slim` | the image with its header, for a boot stub |

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, bail};
use sluice_core::exec::image::BoardId;

use crate::components::{self, Component, on_path};
use crate::elf::{Elf, Segment};
use crate::image::{self, Image};
use crate::toolchain::Target;
use crate::{pack, workspace};

/// Most data bytes of a line of a HEX file.
const LINE_BYTES: usize = 32;

/// Writes the firmware of a board as ELF, BIN and HEX, and flashes it where the board is a real one.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The board.
    #[arg(long, value_name = "NAME", default_value = "virt")]
    board: String,
    /// Flash it by this chip's name, as probe-rs lists it, or by OpenOCD's configuration of the board (`*.cfg`).
    #[arg(long, value_name = "CHIP|FILE.cfg")]
    target: Option<String>,
    /// Folder for the files; `target/sluice/flash` if none is given.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// A board that firmware is built for.
struct Board {
    name: &'static str,
    image: &'static Image,
    id: BoardId,
    needs: &'static [Component],
}

const BOARDS: &[Board] = &[Board {
    name: "virt",
    image: &image::VIRT,
    id: BoardId::VIRT,
    needs: &[Component::Target(Target::Aarch64)],
}];

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let Some(board) = BOARDS.iter().find(|board| board.name == args.board) else {
        let known: Vec<_> = BOARDS.iter().map(|board| board.name).collect();
        bail!("no firmware for a board `{}`, only for {}", args.board, known.join(", "));
    };
    components::ensure(board.needs)?;
    let built = image::build(board.image)?;
    let folder = args.out.unwrap_or_else(|| workspace::artefact("flash"));
    let elf = write_all(board, &built, &folder)?;
    match args.target {
        None => Ok(ExitCode::SUCCESS),
        Some(target) => Err(workspace::exec(programmer(&elf, &target)?)),
    }
}

/// Writes all forms into `folder`, and says where the executable lies.
fn write_all(board: &Board, built: &Path, folder: &Path) -> anyhow::Result<PathBuf> {
    let file = std::fs::read(built).with_context(|| built.display().to_string())?;
    let Elf { entry, segments, .. } = Elf::read(&file)?;
    let (_, flat) = pack::flat(&segments)?;
    std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    let write = |ending: &str, bytes: &[u8]| {
        let path = folder.join(board.name).with_extension(ending);
        std::fs::write(&path, bytes).with_context(|| path.display().to_string())?;
        println!("{}: {} bytes", path.display(), bytes.len());
        anyhow::Ok(path)
    };
    write("bin", &flat)?;
    write("hex", hex(&segments, entry)?.as_bytes())?;
    let path = write("elf", &file)?;
    let packed = pack::pack_file(&path, board.id)?;
    println!("{}", packed.display());
    Ok(path)
}

/// The programmer that flashes `elf`: OpenOCD with a configuration, probe-rs with a chip.
fn programmer(elf: &Path, target: &str) -> anyhow::Result<Command> {
    let by_configuration = Path::new(target).extension().is_some_and(|ending| ending == "cfg");
    let (program, how_to_get) = if by_configuration {
        ("openocd", "`apt-get install openocd`, or your system's package of that name")
    } else {
        ("probe-rs", "`cargo install probe-rs-tools --locked`, or https://probe.rs")
    };
    let path =
        on_path(program).with_context(|| format!("`{program}` is not here; get it by {how_to_get}"))?;
    let mut command = Command::new(path);
    if by_configuration {
        command.args(["-f", target, "-c"]).arg(format!("program {{{}}} verify reset exit", elf.display()));
    } else {
        command.args(["download", "--verify", "--chip", target]).arg(elf);
    }
    Ok(command)
}

/// `segments` in Intel's hexadecimal form.
fn hex(segments: &[Segment<'_>], entry: u64) -> anyhow::Result<String> {
    let mut text = String::new();
    let mut upper = 0;
    for segment in segments {
        for (index, line) in segment.bytes.chunks(LINE_BYTES).enumerate() {
            let at = segment.at + (index * LINE_BYTES) as u64;
            let at = u32::try_from(at).with_context(|| format!("{at:#x} has more than 32 bits"))?;
            // A line may not cross the 64 KiB that its upper half names.
            let room = (0x1_0000 - (at & 0xFFFF)) as usize;
            for (at, part) in
                [(at, &line[..room.min(line.len())]), (at + room as u32, &line[room.min(line.len())..])]
            {
                if part.is_empty() {
                    continue;
                }
                if at >> 16 != upper {
                    upper = at >> 16;
                    record(&mut text, 0, 4, &(upper as u16).to_be_bytes());
                }
                record(&mut text, at as u16, 0, part);
            }
        }
    }
    let entry = u32::try_from(entry).with_context(|| format!("entry {entry:#x} has more than 32 bits"))?;
    record(&mut text, 0, 5, &entry.to_be_bytes());
    record(&mut text, 0, 1, &[]);
    Ok(text)
}

/// One line: `:`, count, address, kind, data, and what makes the sum of all bytes 0.
fn record(text: &mut String, at: u16, kind: u8, data: &[u8]) {
    let [high, low] = at.to_be_bytes();
    let mut line = vec![data.len() as u8, high, low, kind];
    line.extend_from_slice(data);
    line.push(line.iter().fold(0u8, |sum, &byte| sum.wrapping_add(byte)).wrapping_neg());
    text.push(':');
    for byte in line {
        let _ = write!(text, "{byte:02X}");
    }
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hexadecimal_lines_carry_address_and_checksum() {
        let segments = [
            Segment { at: 0x4008_FFFE, bytes: &[1, 2, 3], memory_bytes: 3 },
            Segment { at: 0x100, bytes: &[], memory_bytes: 8 },
        ];
        assert_eq!(
            hex(&segments, 0x4008_0004).unwrap(),
            ":020000044008B2\n:02FFFE000102FE\n:020000044009B1\n:0100000003FC\n:0400000540080004AB\n:00000001FF\n"
        );
        assert!(hex(&[], 1 << 32).is_err());
    }

    #[test]
    fn a_programmer_that_is_missing_is_told_with_the_way_to_get_it() {
        for (target, program) in [("board.cfg", "openocd"), ("STM32F407", "probe-rs")] {
            match programmer(Path::new("virt.elf"), target) {
                Ok(command) => assert!(command.get_program().to_string_lossy().ends_with(program)),
                Err(error) => {
                    let said = error.to_string();
                    assert!(said.starts_with(&format!("`{program}` is not here; get it by `")), "{said}");
                }
            }
        }
    }
}
