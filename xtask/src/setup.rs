//! `cargo xtask setup`: installs what is missing, and nothing else.

use std::process::ExitCode;

use crate::components;

/// Installs what is missing: bare-metal targets, Miri, QEMU.
///
/// What cannot be installed by this user is named with the line to type.
#[derive(clap::Args)]
pub(crate) struct Args {}

pub(crate) fn run(_args: Args) -> anyhow::Result<ExitCode> {
    components::ensure(components::ALL)?;
    Ok(ExitCode::SUCCESS)
}
