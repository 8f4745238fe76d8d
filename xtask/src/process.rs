//! Commands run to their end with their output shown, kept, and bounded in time.
//!
//! Standard output and standard error share one pipe, so the kept text has the order a person saw. When the
//! bound passes, the command and everything it started are killed: cargo's own children hold the pipe open.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::Context;

/// How often a silent command is asked whether it has ended.
const POLL: Duration = Duration::from_millis(100);
/// Silent polls after its end before an orphan that still holds the pipe is left alone.
const ORPHAN_POLLS: u32 = 20;

/// How a bounded command ended.
#[derive(Debug)]
pub(crate) enum End {
    /// It ended by itself.
    Exited(ExitStatus),
    /// It was killed after this bound.
    TimedOut(Duration),
}

/// What a bounded command left behind.
#[derive(Debug)]
pub(crate) struct Finished {
    /// How it ended.
    pub(crate) end: End,
    /// Everything it printed, in order.
    pub(crate) output: String,
}

impl Finished {
    /// Nothing when it ended well, otherwise one line that says how it ended.
    pub(crate) fn complaint(&self) -> Option<String> {
        match self.end {
            End::Exited(status) if status.success() => None,
            End::Exited(status) => Some(format!("ended with {status}")),
            End::TimedOut(bound) => Some(format!("still running after {} s, killed", bound.as_secs())),
        }
    }
}

/// Runs `command` for at most `bound`, copying its output to `echo` line by line.
///
/// # Errors
/// When the command cannot be started.
pub(crate) fn run_bounded(
    mut command: Command,
    bound: Duration,
    echo: &mut dyn Write,
) -> anyhow::Result<Finished> {
    let program = command.get_program().to_string_lossy().into_owned();
    let (reader, writer) = std::io::pipe().context("cannot make a pipe")?;
    command.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer);
    let mut child = command.spawn().with_context(|| format!("cannot start `{program}`"))?;
    drop(command); // holds the last write ends of the pipe on this side

    let (lines, received) = mpsc::channel();
    std::thread::spawn(move || {
        let mut reader = BufReader::new(reader);
        let mut line = Vec::new();
        while reader.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
            if lines.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                return;
            }
            line.clear();
        }
    });

    let deadline = Instant::now() + bound;
    let mut output = String::new();
    let mut ended = None;
    let mut silent_polls = 0;
    loop {
        match received.recv_timeout(POLL) {
            Ok(line) => {
                // A reader of ours that went away must not stop the command.
                let _ = echo.write_all(line.as_bytes());
                output.push_str(&line);
            }
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) if ended.is_none() => ended = child.try_wait()?,
            Err(RecvTimeoutError::Timeout) if silent_polls >= ORPHAN_POLLS => break,
            Err(RecvTimeoutError::Timeout) => silent_polls += 1,
        }
        if ended.is_none() && Instant::now() >= deadline {
            kill_tree(&mut child);
            return Ok(Finished { end: End::TimedOut(bound), output });
        }
    }
    let status = match ended {
        Some(status) => status,
        None => child.wait()?,
    };
    Ok(Finished { end: End::Exited(status), output })
}

/// Runs `command` silently; its standard output when it succeeded.
pub(crate) fn capture(mut command: Command) -> Option<String> {
    let output = command.stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// The last `lines` lines of `text`.
pub(crate) fn tail(text: &str, lines: usize) -> String {
    let all: Vec<_> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

/// Kills a child and all that descends from it, youngest last.
fn kill_tree(child: &mut Child) {
    let mut doomed = vec![child.id()];
    let children = children_by_parent();
    let mut next = 0;
    while let Some(parent) = doomed.get(next) {
        doomed.extend(children.get(parent).into_iter().flatten().copied());
        next += 1;
    }
    let _ = Command::new("kill")
        .arg("-KILL")
        .args(doomed.iter().map(u32::to_string))
        .stderr(Stdio::null())
        .status();
    let _ = child.kill();
    let _ = child.wait();
}

/// Parent to children of every process; empty where there is no `/proc`.
fn children_by_parent() -> BTreeMap<u32, Vec<u32>> {
    let mut map: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        if let Some(parent) = parent_in_stat(&stat) {
            map.entry(parent).or_default().push(pid);
        }
    }
    map
}

/// The parent's id in a line of `/proc/PID/stat`, whose second field may itself hold blanks and parentheses.
fn parent_in_stat(stat: &str) -> Option<u32> {
    let (_, after_name) = stat.rsplit_once(')')?;
    after_name.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    fn run(script: &str, bound: Duration) -> Finished {
        run_bounded(shell(script), bound, &mut std::io::sink()).unwrap()
    }

    #[test]
    fn both_streams_are_kept_in_order() {
        let finished = run("echo one; echo two >&2; echo three", Duration::from_secs(60));
        assert_eq!(finished.output, "one\ntwo\nthree\n");
        assert_eq!(finished.complaint(), None);
    }

    #[test]
    fn a_failure_is_told_by_its_status() {
        let finished = run("exit 3", Duration::from_secs(60));
        assert_eq!(finished.complaint().unwrap(), "ended with exit status: 3");
    }

    #[test]
    fn a_hang_is_killed_with_its_children() {
        let finished = run("echo $$; sleep 1000 & wait", Duration::from_secs(1));
        assert!(matches!(finished.end, End::TimedOut(_)), "{finished:?}");
        let shell_id: u32 = finished.output.trim().parse().unwrap();
        assert!(!children_by_parent().contains_key(&shell_id));
    }

    #[test]
    fn an_orphan_that_holds_the_pipe_does_not_hold_us() {
        let finished = run("sleep 5 & echo done", Duration::from_secs(60));
        assert_eq!(finished.output, "done\n");
        assert_eq!(finished.complaint(), None);
    }

    #[test]
    fn the_tail_is_what_came_last() {
        assert_eq!(tail("a\nb\nc\n", 2), "b\nc");
        assert_eq!(tail("a", 2), "a");
    }

    #[test]
    fn the_parent_is_found_behind_an_odd_name() {
        assert_eq!(parent_in_stat("12 (a) (b c) S 7 12 12 0"), Some(7));
        assert_eq!(parent_in_stat("12"), None);
    }
}
