//! `sluice load`: firmware onto a board through its boot stub.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::ensure;
use serde_json::json;
use sluice_host::device::qemu::{QemuConfig, QemuDevice};

use crate::options::DeviceName;
use crate::output;

/// Load firmware into a board
///
/// Starts a board with nothing but its boot stub, and has that check and start one image after another.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The device; the simulated one takes no image
    #[arg(long, value_name = "NAME")]
    device: DeviceName,
    /// The boot stub, an ELF file
    #[arg(long, value_name = "FILE")]
    stub: PathBuf,
    /// Lanes of the device
    #[arg(long, value_name = "N", default_value_t = 1)]
    lanes: u32,
    /// Print what came of it as JSON
    #[arg(long)]
    json: bool,
    /// Images, each with its header
    #[arg(required = true, value_name = "FIRMWARE")]
    images: Vec<PathBuf>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    ensure!(args.device == DeviceName::QemuAarch64, "the simulated device takes no image");
    let mut loaded = Vec::new();
    let mut board: Option<QemuDevice> = None;
    for image in &args.images {
        let began = Instant::now();
        let device = match board.take() {
            Some(device) => device.reload(image)?,
            None => {
                let config = QemuConfig::new(image.clone(), args.lanes);
                QemuDevice::start(&QemuConfig { stub: Some(args.stub.clone()), ..config })?
            }
        };
        let (processors, ready_ms) = (device.processors(), began.elapsed().as_millis() as u64);
        if !args.json {
            let image = image.display();
            output::print(&format!("{image}: {processors} processors ready after {ready_ms} ms\n"))?;
        }
        loaded.push(json!({
            "image": image.display().to_string(), "processors": processors, "ready_ms": ready_ms,
        }));
        board = Some(device);
    }
    if args.json {
        output::print(&format!("{}\n", json!({ "device": "qemu-aarch64", "images": loaded })))?;
    }
    Ok(ExitCode::SUCCESS)
}
