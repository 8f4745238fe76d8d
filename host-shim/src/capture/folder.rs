//! The folder of a run's artefacts, and how files come into it.
//!
//! A file is written under a fresh hidden name in its own folder and renamed when it is whole ([`Staged`]), so a
//! reader sees the old file or the new one, and a symbolic link at the destination is replaced, never followed.
//!
//! Two locks of the kernel, which end with the process that took them, however it ends:
//!
//! | lock on | held by | what it says |
//! |---|---|---|
//! | the folder | a run, from before its first file to its end | no other run may use the folder |
//! | a hidden file | whoever writes it | its writer lives; a hidden file without a lock is left over and removed |

use std::ffi::OsString;
use std::fs::{self, File, Metadata, OpenOptions, TryLockError};
use std::io::{self, BufWriter, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// Why artefacts cannot be written to a folder.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// The folder is not there and cannot be made.
    #[error("cannot make output folder {}: {error}", path.display())]
    Make {
        /// The folder.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// The folder cannot be locked.
    #[error("cannot lock output folder {}: {error}", path.display())]
    Lock {
        /// The folder.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// Another run has it.
    #[error("output folder {} is in use by another run", path.display())]
    InUse {
        /// The folder.
        path: PathBuf,
    },
    /// A file cannot be made in it.
    #[error("cannot write to output folder {}: {error}", path.display())]
    Write {
        /// The folder.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// An artefact's name is taken by a folder.
    #[error("cannot write {}: a folder of that name is in the way", path.display())]
    Taken {
        /// The artefact.
        path: PathBuf,
    },
}

/// A folder that artefacts can be written to: proven when it is made, before anything runs, and ours alone from then on.
#[derive(Debug)]
pub struct RunFolder {
    path: PathBuf,
    artefacts: Vec<String>,
    /// Open on the folder; the lock goes with it.
    locked: File,
}

impl RunFolder {
    /// Makes the folder where needed, locks it, removes what dead runs left half-written, and proves that files named
    /// `artefacts` can be written to it.
    pub fn prepare(path: &Path, artefacts: &[&str]) -> Result<Self, FolderError> {
        /// Written and removed again.
        const PROBE: &str = "probe";
        fs::create_dir_all(path).map_err(|error| FolderError::Make { path: path.into(), error })?;
        let refused = |error| FolderError::Lock { path: path.into(), error };
        let locked = File::open(path).map_err(refused)?;
        locked.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => FolderError::InUse { path: path.into() },
            TryLockError::Error(error) => refused(error),
        })?;
        let artefacts = artefacts.iter().map(|&name| name.into()).collect();
        let folder = Self { path: path.into(), artefacts, locked };
        let mut paths = folder.artefacts.iter().map(|name| folder.path_of(name));
        if let Some(taken) = paths.find(|path| path.is_dir()) {
            return Err(FolderError::Taken { path: taken });
        }
        for name in folder.artefacts.iter().map(String::as_str).chain([PROBE]) {
            remove_left_over(&folder.path_of(name));
        }
        // Only making a file tells: permission bits say nothing to root, on read-only and on full file systems.
        let mut probe = Staged::create(&folder.path_of(PROBE), 0o600)
            .map_err(|error| FolderError::Write { path: path.into(), error })?;
        probe.file.write_all(&[0]).map_err(|error| FolderError::Write { path: path.into(), error })?;
        Ok(folder)
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where an artefact stands.
    pub fn path_of(&self, artefact: &str) -> PathBuf {
        self.path.join(artefact)
    }

    /// Removes all artefacts: those of an earlier run must not be taken for this one's.
    pub fn clear(&self) -> io::Result<()> {
        self.artefacts.iter().try_for_each(|name| match fs::remove_file(self.path_of(name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        })
    }

    /// Writes an artefact through `fill`; refuses when another folder now has the name of this one.
    pub fn write<T, E: From<io::Error>>(
        &self,
        artefact: &str,
        fill: impl FnOnce(&mut BufWriter<&File>) -> Result<T, E>,
    ) -> Result<T, E> {
        if !is_same(&fs::metadata(&self.path)?, &self.locked.metadata()?) {
            return Err(io::Error::other("the folder was replaced during the run").into());
        }
        write_file(&self.path_of(artefact), fill)
    }
}

/// Whether both describe one and the same file.
pub(super) fn is_same(one: &Metadata, other: &Metadata) -> bool {
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}

/// Beginning of the hidden names under which `destination` is written.
fn hidden_prefix(destination: &Path) -> io::Result<OsString> {
    let name = destination.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let mut hidden = OsString::from(".");
    hidden.push(name);
    hidden.push(".");
    Ok(hidden)
}

/// Removes hidden files of `destination` whose writers are dead; what cannot be removed stays.
fn remove_left_over(destination: &Path) {
    let folder = destination.parent().filter(|folder| !folder.as_os_str().is_empty());
    let entries = fs::read_dir(folder.unwrap_or(Path::new(".")));
    let (Ok(prefix), Ok(entries)) = (hidden_prefix(destination), entries) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let is_count = |rest: &[u8]| rest.iter().all(|byte| byte.is_ascii_digit() || *byte == b'-');
        if !name.as_bytes().strip_prefix(prefix.as_bytes()).is_some_and(is_count) {
            continue;
        }
        let opened = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
            .open(entry.path());
        if opened.is_ok_and(|file| file.try_lock().is_ok()) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// A file that is not yet under its name; removed when dropped before [`commit`](Staged::commit).
#[derive(Debug)]
pub struct Staged {
    file: File,
    staged: PathBuf,
    destination: PathBuf,
    committed: bool,
}

impl Staged {
    /// Makes an empty file that is to become `destination`, with permission bits `mode` (the process's mask
    /// applies).
    pub fn create(destination: &Path, mode: u32) -> io::Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let prefix = hidden_prefix(destination)?;
        loop {
            let mut hidden = prefix.clone();
            hidden.push(format!("{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed)));
            let staged = destination.with_file_name(hidden);
            let opened = OpenOptions::new()
                .read(true)
                .write(true)
                .create_new(true)
                .mode(mode)
                .custom_flags(libc::O_NOFOLLOW)
                .open(&staged);
            match opened {
                Ok(file) => {
                    // Where files cannot be locked, nobody takes this one for left over either.
                    let _ = file.try_lock();
                    // Somebody may have, in the moment without a lock.
                    if file.metadata()?.nlink() > 0 {
                        return Ok(Self { file, staged, destination: destination.into(), committed: false });
                    }
                }
                // Left behind by a process of the same number.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// The open file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Gives the file its name, replacing what has it.
    pub fn commit(mut self) -> io::Result<()> {
        fs::rename(&self.staged, &self.destination)?;
        self.committed = true;
        Ok(())
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        if !self.committed {
            let _ = fs::remove_file(&self.staged);
        }
    }
}

/// Writes a whole file through `fill` and gives it its name at the end; nothing is left behind when `fill` fails.
pub fn write_file<T, E: From<io::Error>>(
    destination: &Path,
    fill: impl FnOnce(&mut BufWriter<&File>) -> Result<T, E>,
) -> Result<T, E> {
    remove_left_over(destination);
    let staged = Staged::create(destination, 0o644)?;
    let mut out = BufWriter::with_capacity(1 << 18, staged.file());
    let filled = fill(&mut out)?;
    out.flush()?;
    drop(out);
    staged.commit()?;
    Ok(filled)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// A folder of this test, empty at the start and removed at the end.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("sluice-folder-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            fs::create_dir(&path).unwrap();
            Self(path)
        }

        fn names(&self) -> Vec<String> {
            let mut names: Vec<_> = fs::read_dir(&self.0)
                .unwrap()
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .collect();
            names.sort();
            names
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_said() {
        let scratch = Scratch::new("refused");
        fs::write(scratch.0.join("file"), "").unwrap();
        let error = RunFolder::prepare(&scratch.0.join("file/out"), &[]).unwrap_err();
        assert!(error.to_string().starts_with("cannot make output folder"), "{error}");
        let error = RunFolder::prepare(Path::new("/proc/self"), &[]).unwrap_err();
        assert!(error.to_string().starts_with("cannot write to output folder /proc/self: "), "{error}");
        fs::create_dir(scratch.0.join("trace")).unwrap();
        let error = RunFolder::prepare(&scratch.0, &["capture", "trace"]).unwrap_err();
        assert!(error.to_string().ends_with("trace: a folder of that name is in the way"), "{error}");
    }

    #[test]
    fn preparing_makes_parents_and_leaves_nothing() {
        let scratch = Scratch::new("fresh");
        let folder = RunFolder::prepare(&scratch.0.join("a/b"), &["x"]).unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_folder_has_one_run_at_a_time() {
        let scratch = Scratch::new("locked");
        let first = RunFolder::prepare(&scratch.0, &["x"]).unwrap();
        let error = RunFolder::prepare(&scratch.0, &["x"]).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("output folder {} is in use by another run", scratch.0.display())
        );
        drop(first);
        RunFolder::prepare(&scratch.0, &["x"]).unwrap();
    }

    #[test]
    fn half_written_files_of_the_dead_are_removed_and_those_of_the_living_stay() {
        let scratch = Scratch::new("left-over");
        let alive = Staged::create(&scratch.0.join("x"), 0o600).unwrap();
        for name in [".x.7-0", ".probe.7-1", ".x.orig", ".y.7-0", "x.7-0"] {
            fs::write(scratch.0.join(name), "").unwrap();
        }
        let folder = RunFolder::prepare(&scratch.0, &["x"]).unwrap();
        let living = alive.staged.file_name().unwrap().to_str().unwrap().to_owned();
        let mut left = vec![living, ".x.orig".into(), ".y.7-0".into(), "x.7-0".into()];
        left.sort();
        assert_eq!(scratch.names(), left);
        fs::write(scratch.0.join(".y.7-1"), "").unwrap();
        write_file(&folder.path_of("y"), |out| out.write_all(b"new")).unwrap();
        assert!(!scratch.names().iter().any(|name| name.starts_with(".y.")), "{:?}", scratch.names());
    }

    #[test]
    fn clearing_takes_the_artefacts_and_nothing_else() {
        let scratch = Scratch::new("clear");
        for name in ["x", "z"] {
            fs::write(scratch.0.join(name), "").unwrap();
        }
        RunFolder::prepare(&scratch.0, &["x", "y"]).unwrap().clear().unwrap();
        assert_eq!(scratch.names(), ["z"]);
    }

    #[test]
    fn a_folder_that_took_the_place_of_the_runs_own_is_left_alone() {
        let scratch = Scratch::new("replaced");
        let path = scratch.0.join("out");
        let folder = RunFolder::prepare(&path, &["x"]).unwrap();
        let write = || folder.write("x", |out| out.write_all(b"mine"));
        write().unwrap();
        fs::rename(&path, scratch.0.join("moved")).unwrap();
        assert_eq!(write().unwrap_err().kind(), io::ErrorKind::NotFound);
        fs::create_dir(&path).unwrap();
        assert_eq!(write().unwrap_err().to_string(), "the folder was replaced during the run");
        assert_eq!(fs::read_dir(&path).unwrap().count(), 0);
    }

    #[test]
    fn a_link_at_the_destination_is_replaced_not_followed() {
        let scratch = Scratch::new("link");
        let (victim, link) = (scratch.0.join("victim"), scratch.0.join("out"));
        fs::write(&victim, "precious").unwrap();
        symlink(&victim, &link).unwrap();
        write_file(&link, |out| out.write_all(b"new")).unwrap();
        assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
        assert_eq!(fs::read_to_string(&link).unwrap(), "new");
        assert!(!fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(scratch.names(), ["out", "victim"]);
    }

    #[test]
    fn a_failed_file_leaves_the_old_one() {
        let scratch = Scratch::new("failed");
        let path = scratch.0.join("report");
        fs::write(&path, "old").unwrap();
        let failed = write_file(&path, |out| {
            out.write_all(b"half")?;
            Err::<(), _>(io::Error::other("no more"))
        });
        assert_eq!(failed.unwrap_err().to_string(), "no more");
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        assert_eq!(scratch.names(), ["report"]);
    }

    #[test]
    fn staged_files_are_as_private_as_asked() {
        let scratch = Scratch::new("mode");
        let path = scratch.0.join("capture");
        Staged::create(&path, 0o600).unwrap().commit().unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
    }
}
