//! Asking a transport that failed again: what it refuses once in a while must not cost a session its accounts.

use sluice_core::mem::Fault;

/// A transport that fails so often in a row is broken.
const TRIES: u32 = 8;

/// Makes `attempt`, which a failed transport leaves undone, up to a few times.
///
/// # Errors
/// The last failure, or the first one of another kind.
pub(super) fn again<T>(mut attempt: impl FnMut() -> Result<T, Fault>) -> Result<T, Fault> {
    for _ in 1..TRIES {
        match attempt() {
            Err(Fault::Transport { .. }) => std::thread::yield_now(),
            result => return result,
        }
    }
    attempt()
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
}
