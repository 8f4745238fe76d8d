//! The QEMU process and the folder with its socket. Both go with the device.
#![allow(unsafe_code, reason = "asks the system to end QEMU with the thread that started it")]

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use super::{QemuConfig, QemuError};

/// Bytes of memory that only the board reaches.
const PRIVATE: &str = "32M";

/// The oldest QEMU whose boards are known to work.
pub(super) const OLDEST: &str = "7.0";

/// What QEMU said is kept up to here.
const MOST_WORDS: u64 = 4096;

/// QEMU at work.
pub(super) struct Board {
    child: Mutex<Child>,
    folder: Folder,
}

impl Board {
    /// Starts QEMU with the first `bytes` bytes of `file` as the board's shared memory.
    pub(super) fn start(config: &QemuConfig, file: &File, bytes: u64) -> Result<Self, QemuError> {
        let failed = |source| QemuError::Spawn { qemu: config.qemu.clone(), source };
        let folder = Folder::new().map_err(failed)?;
        let kernel = config.stub.as_ref().unwrap_or(&config.image);
        fs::metadata(kernel).map_err(|error| {
            failed(io::Error::new(error.kind(), format!("{}: {error}", kernel.display())))
        })?;
        check_version(config, failed)?;
        // By this process's own descriptor: the file has no name.
        let shared = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
        let mut command = Command::new(&config.qemu);
        command
            .args(["-M", "virt,gic-version=2", "-cpu", "cortex-a53", "-accel", "tcg,thread=multi"])
            .args(["-smp", &config.processors.to_string()])
            .args(["-m", &format!("{}M", 32 + (bytes >> 20))])
            .args(["-object", &format!("memory-backend-ram,id=private,size={PRIVATE}")])
            .args([
                "-object",
                &format!("memory-backend-file,id=shared,mem-path={shared},size={bytes},share=on"),
            ])
            .args(["-numa", &format!("node,memdev=private,cpus=0-{}", config.processors - 1)])
            .args(["-numa", "node,memdev=shared"])
            .args(["-display", "none", "-monitor", "none", "-nodefaults"])
            .arg("-chardev")
            .arg(format!("socket,id=line,path={},server=on,wait=off", folder.socket().display()))
            .args(["-serial", "chardev:line"])
            .arg("-kernel")
            .arg(kernel)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        // SAFETY: between fork and exec only a system call is made.
        unsafe {
            command.pre_exec(|| match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            });
        }
        let child = command.spawn().map_err(failed)?;
        Ok(Self { child: Mutex::new(child), folder })
    }

    /// The socket of the doorbell line; it is there some time after the start.
    pub(super) fn socket(&self) -> PathBuf {
        self.folder.socket()
    }

    /// How QEMU ended, if it has.
    pub(super) fn ended(&self) -> Option<String> {
        let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        let status = match child.try_wait() {
            Ok(status) => status?,
            Err(error) => return Some(error.to_string()),
        };
        let mut words = String::new();
        if let Some(errors) = child.stderr.take() {
            // What it said does not change that it ended.
            let _ = errors.take(MOST_WORDS).read_to_string(&mut words);
        }
        Some(format!("{status}; {}", words.trim()))
    }
}

impl Drop for Board {
    fn drop(&mut self) {
        let child = self.child.get_mut().unwrap_or_else(PoisonError::into_inner);
        // One that has ended already is as good.
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// Makes sure that QEMU is one, and not too old.
fn check_version(config: &QemuConfig, failed: impl Fn(io::Error) -> QemuError) -> Result<(), QemuError> {
    let output = Command::new(&config.qemu).arg("--version").stdin(Stdio::null()).output().map_err(failed)?;
    let said = String::from_utf8_lossy(&output.stdout);
    let said = said.lines().next().unwrap_or_default();
    let qemu = config.qemu.clone();
    match said.strip_prefix("QEMU emulator version ").and_then(|found| Some((found, version(found)?))) {
        None => Err(QemuError::NotQemu { qemu, said: said.chars().take(200).collect() }),
        Some((found, number)) if Some(number) < version(OLDEST) => {
            Err(QemuError::TooOld { qemu, found: found.into() })
        }
        Some(_) => Ok(()),
    }
}

/// The first two numbers of a version.
fn version(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// A folder that goes with the device.
struct Folder(PathBuf);

impl Folder {
    fn new() -> io::Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("sluice-qemu-{}-{number}", std::process::id()));
        fs::create_dir(&path)?;
        Ok(Self(path))
    }

    fn socket(&self) -> PathBuf {
        self.path().join("line")
    }

    fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_its_first_two_numbers() {
        assert_eq!(version("7.2.22 (Debian 1:7.2+dfsg-7)"), Some((7, 2)));
        assert_eq!(version("10.0"), Some((10, 0)));
        assert!(version("10.0") > version(OLDEST) && version("6.9.9") < version(OLDEST));
        assert_eq!((version("seven"), version("7")), (None, None));
    }
}
