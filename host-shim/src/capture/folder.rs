//! The folder of a run's artefacts, and how files come into it.
//!
//! A file is written under a fresh hidden name in its own folder and renamed when it is whole ([`Staged`]), so a
//! reader sees the old file or the new one, and a symbolic link at the destination is replaced, never followed.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
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

/// A folder that artefacts can be written to: proven when it is made, before anything runs.
#[derive(Debug)]
pub struct RunFolder {
    path: PathBuf,
}

impl RunFolder {
    /// Makes the folder where needed and proves that files named `artefacts` can be written to it.
    pub fn prepare(path: &Path, artefacts: &[&str]) -> Result<Self, FolderError> {
        fs::create_dir_all(path).map_err(|error| FolderError::Make { path: path.into(), error })?;
        let folder = Self { path: path.into() };
        if let Some(taken) = artefacts.iter().map(|name| folder.path_of(name)).find(|path| path.is_dir()) {
            return Err(FolderError::Taken { path: taken });
        }
        // Only making a file tells: permission bits say nothing to root, on read-only and on full file systems.
        let mut probe = Staged::create(&folder.path_of("probe"), 0o600)
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
        let name = destination.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        loop {
            let mut hidden = std::ffi::OsString::from(".");
            hidden.push(name);
            hidden.push(format!(".{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed)));
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
                    return Ok(Self { file, staged, destination: destination.into(), committed: false });
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
    use std::os::unix::fs::{MetadataExt, symlink};

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
