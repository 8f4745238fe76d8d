//! `sluice pack`: a compiled model from its text form.

use std::fs::{self, File};
use std::io::{ErrorKind, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use sluice_host::neff::{Package, models, pack_as};

use crate::inspect::with_status;

/// Larger texts are not models that a person wrote.
const MAX_SPEC_BYTES: u64 = 64 << 20;

/// Pack a model from its text form
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Text form of the model, or the name of a built-in one: gather, pointers
    spec: PathBuf,
    /// Compiled model to write
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Store the archive uncompressed
    #[arg(long)]
    plain: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let is_of = |path: &Path| fs::metadata(path).ok().map(|file| (file.dev(), file.ino()));
    if is_of(&args.output).is_some_and(|output| is_of(&args.spec) == Some(output)) {
        bail!("{}: the model would overwrite its own text", args.output.display());
    }
    let text = read_spec(&args.spec)?;
    let package = if args.plain { Package::Plain } else { Package::Gzip };
    let container = pack_as(&args.spec.display().to_string(), &text, package).map_err(with_status)?;
    fs::write(&args.output, container).with_context(|| format!("cannot write {}", args.output.display()))?;
    Ok(ExitCode::SUCCESS)
}

/// The text of the file, or of the built-in model where there is no such file.
fn read_spec(spec: &Path) -> anyhow::Result<String> {
    let file = match (File::open(spec), spec.to_str().and_then(models::builtin)) {
        (Err(error), Some(text)) if error.kind() == ErrorKind::NotFound => return Ok(text.into()),
        (file, _) => file.with_context(|| format!("cannot read {}", spec.display()))?,
    };
    let mut text = String::new();
    file.take(MAX_SPEC_BYTES + 1)
        .read_to_string(&mut text)
        .with_context(|| format!("cannot read {}", spec.display()))?;
    if text.len() as u64 > MAX_SPEC_BYTES {
        bail!("{}: more than {MAX_SPEC_BYTES} bytes", spec.display());
    }
    Ok(text)
}
