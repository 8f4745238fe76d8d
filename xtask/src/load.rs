//! `cargo xtask load`: builds a board's boot stub and firmware, and has the stub load that.

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::bail;
use sluice_core::exec::image::BoardId;

use crate::components::{self, Component};
use crate::toolchain::Target;
use crate::{image, pack, workspace};

const NEEDS: &[Component] = &[Component::Target(Target::Aarch64), Component::Qemu];

/// Builds boot stub and firmware, starts the board with the stub alone, and loads the firmware through it.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The board.
    #[arg(long, value_name = "NAME")]
    device: String,
    /// Further arguments of `sluice load`, such as more images for the same board.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGS")]
    forwarded: Vec<OsString>,
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    if args.device != "qemu-aarch64" {
        bail!("no boot stub for `{}`, only for `qemu-aarch64`", args.device);
    }
    components::ensure(NEEDS)?;
    let stub = image::build(&image::VIRT_STUB)?;
    let firmware = pack::pack_file(&image::build(&image::VIRT)?, BoardId::VIRT)?;
    let mut command = workspace::cargo();
    command.args(["run", "--release", "--package", "sluice-host", "--bin", "sluice", "--", "load"]);
    command.args(["--device", &args.device]).arg("--stub").arg(stub).arg(firmware).args(args.forwarded);
    Err(workspace::exec(command))
}
