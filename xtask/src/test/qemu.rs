//! Images that test themselves on an emulated board, and the firmware on one against the live host.
//!
//! An image prints one line per test, then `N passed, M failed`, then ends the emulator with an exit code. Anything
//! else is a failure: another last line (a fault), no end within the bound (a hang), a status that is not zero.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use sluice_core::exec::image::BoardId;

use super::{Outcome, counts, run_all, run_counted};
use crate::components::Component;
use crate::toolchain::Target;
use crate::{image, pack, sizes, workspace};

/// What the images need.
pub(super) const NEEDS: &[Component] =
    &[Component::Target(Target::Thumbv7m), Component::Target(Target::Aarch64), Component::Qemu];

/// A hundred times what the image needs on a busy machine.
const BOUND: Duration = Duration::from_secs(120);

/// Unit tests of `core` on the `mps2-an385` board, the host's tests with the firmware on `virt`, and the sizes of images.
pub(super) fn all() -> anyhow::Result<Outcome> {
    let image = image::build(&image::CORTEX_M_TESTS)?;
    let on_board =
        run_counted(mps2_an385(&image), BOUND, |output| counts::of_last_line(output).unwrap_or_default())?;
    let mut command = workspace::cargo();
    command.args(["test", "--package", "sluice-host", "--features", "board-tests"]);
    command.args(["--test", "board", "--test", "load"]);
    command.env("SLUICE_OVERFLOW_IMAGE", image::build_as(&image::VIRT_OVERFLOW, "sluice-virt-overflow")?);
    let firmware = image::build(&image::VIRT)?;
    command.env("SLUICE_VIRT_LOADABLE", pack::pack_file(&firmware, BoardId::VIRT)?);
    command.env("SLUICE_VIRT_STUB", image::build(&image::VIRT_STUB)?).env("SLUICE_VIRT_IMAGE", firmware);
    let mut outcome = run_all([command])?;
    for Outcome { counts, complaints } in [on_board, sizes::outcome()?] {
        outcome.counts += counts;
        outcome.complaints.extend(complaints);
    }
    Ok(outcome)
}

/// The emulated board, with nothing attached but semihosting.
fn mps2_an385(image: &Path) -> Command {
    let mut command = Command::new("qemu-system-arm");
    command.args([
        "-M",
        "mps2-an385",
        "-display",
        "none",
        "-monitor",
        "none",
        "-serial",
        "null",
        "-nic",
        "none",
    ]);
    command.args(["-semihosting-config", "enable=on,target=native", "-kernel"]).arg(image);
    command
}
