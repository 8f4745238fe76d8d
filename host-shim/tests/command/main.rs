//! `sluice run`, `stress`, `check`, `export` and `report` as a person calls them, on the simulated device.

mod captures;
mod folder;
mod run;
mod stress;
mod tasks;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

/// A folder that goes away with the test.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Self {
        let path = std::env::temp_dir().join(format!("sluice-command-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn out(&self) -> &str {
        self.0.to_str().unwrap()
    }

    fn report(&self) -> Value {
        serde_json::from_slice(&std::fs::read(self.path("report.json")).unwrap()).unwrap()
    }

    fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.0).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn sluice(args: &[&str]) -> Output {
    command().args(args).output().unwrap()
}

fn command() -> Command {
    Command::new(env!("CARGO_BIN_EXE_sluice"))
}

fn code(output: &Output) -> i32 {
    output.status.code().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// `sluice check --json` of a capture, and its exit code.
fn check(capture: &Path) -> (Value, i32) {
    let output = command().args(["check", "--json"]).arg(capture).output().unwrap();
    (serde_json::from_slice(&output.stdout).unwrap(), code(&output))
}

/// Starts a command that would take for ever, and returns once its capture grows.
fn endless(folder: &Folder, args: &[&str]) -> Child {
    let child = command().args(args).args(["--out", folder.out()]).stdout(Stdio::piped()).spawn().unwrap();
    let capture = folder.path("capture.slc");
    while std::fs::metadata(&capture).map_or(0, |file| file.len()) < 100_000 {
        std::thread::yield_now();
    }
    child
}

fn signal(child: &Child, name: &str) {
    assert!(Command::new("kill").args([name, &child.id().to_string()]).status().unwrap().success());
}
