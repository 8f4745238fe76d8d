//! Trying again: what a transport or a sink refuses once in a while must not cost a session its records or its accounts.

use sluice_core::mem::Fault;

/// A transport that fails so often in a row is broken.
const TRIES: u32 = 8;
/// How often a copy is made, and its bytes are offered to a sink, before the records are given up.
pub(super) const ATTEMPTS: u32 = 3;

/// Makes `attempt`, which a failed transport leaves undone, up to a few times.
///
/// # Errors
/// The last failure, or the first one of another kind.
pub(super) fn again<T>(attempt: impl FnMut() -> Result<T, Fault>) -> Result<T, Fault> {
    repeat(TRIES, attempt, |fault| matches!(fault, Fault::Transport { .. }))
}

/// Makes `attempt` up to [`ATTEMPTS`] times, whatever it fails by.
///
/// # Errors
/// The last failure.
pub(super) fn attempt<T, E>(attempt: impl FnMut() -> Result<T, E>) -> Result<T, E> {
    repeat(ATTEMPTS, attempt, |_| true)
}

fn repeat<T, E>(
    tries: u32,
    mut once: impl FnMut() -> Result<T, E>,
    may_pass: impl Fn(&E) -> bool,
) -> Result<T, E> {
    for _ in 1..tries {
        match once() {
            Err(error) if may_pass(&error) => std::thread::yield_now(),
            result => return result,
        }
    }
    once()
}

#[cfg(test)]
mod tests {
    use sluice_core::mem::DevAddr;

    use super::*;

    #[test]
    fn a_transport_is_asked_a_few_times_and_nothing_else_is() {
        let at = DevAddr(4);
        let asked = |failures: u32, fault: Fault| {
            let mut asked = 0;
            let result = again(|| {
                asked += 1;
                if asked > failures { Ok(()) } else { Err(fault) }
            });
            (asked, result)
        };
        let transport = Fault::Transport { at };
        assert_eq!(asked(0, transport), (1, Ok(())));
        assert_eq!(asked(TRIES - 1, transport), (TRIES, Ok(())));
        assert_eq!(asked(TRIES, transport), (TRIES, Err(transport)));
        let outside = Fault::OutOfRange { at, bytes: 4 };
        assert_eq!(asked(1, outside), (1, Err(outside)));
    }

    #[test]
    fn an_attempt_is_made_a_few_times_whatever_it_fails_by() {
        for failures in 0..=ATTEMPTS {
            let mut made = 0;
            let result = attempt(|| {
                made += 1;
                if made > failures { Ok(made) } else { Err("no") }
            });
            let has_passed = failures < ATTEMPTS;
            assert_eq!(
                (result, made),
                (if has_passed { Ok(made) } else { Err("no") }, ATTEMPTS.min(failures + 1))
            );
        }
    }
}
