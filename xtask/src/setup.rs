//! `cargo xtask setup`: installs what is missing, and nothing else.

use std::process::ExitCode;

use crate::components;

/// Installs what is missing: bare-metal targets, Miri, QEMU.
///
/// What cannot be installed by this user is named with the line to type. Miri may be lacking outside continuous
/// integration.
#[derive(clap::Args)]
pub(crate) struct Args {}

pub(crate) fn run(_args: Args) -> anyhow::Result<ExitCode> {
    let required = components::ensure(components::REQUIRED);
    let optional = components::ensure_where_possible(components::OPTIONAL).map(drop);
    let mut code = ExitCode::SUCCESS;
    for error in [required, optional].into_iter().filter_map(Result::err) {
        eprintln!("error: {error:#}");
        code = ExitCode::FAILURE;
    }
    Ok(code)
}
