//! What the kernel knows of a program that waits for a lock and the FUSE library does not pass on: which call it made,
//! and whether a signal is pending. Both are read from `/proc` while the calling thread waits for the reply.
//!
//! Where `flock` and `fcntl` both lock the whole file, their requests differ only by a flag. The kernel announces a
//! signal by a request of its own, which the library refuses; without this module, a program that waits for a lock
//! could not be killed.

use std::time::Duration;

/// The call that asked for a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockCall {
    /// `flock`.
    Flock,
    /// `fcntl`, `lockf`.
    Fcntl,
    /// Unknown: the program is another user's or in another PID namespace, or there is no `/proc`.
    Unknown,
}

/// Attempts: the request may arrive before the calling thread sleeps.
const TRIES: u32 = 100;
const PAUSE: Duration = Duration::from_micros(300);

/// The call that thread `tid` is in while it waits for the reply.
pub fn lock_call(tid: u32) -> LockCall {
    for _ in 0..TRIES {
        match std::fs::read_to_string(format!("/proc/{tid}/syscall")) {
            Ok(text) if text.starts_with("running") => std::thread::sleep(PAUSE),
            Ok(text) => return named(&text),
            Err(_) => return LockCall::Unknown,
        }
    }
    LockCall::Unknown
}

/// Numbers of `flock` and `fcntl` on x86-64, on AArch64 and RISC-V, and in 32-bit programs (two for `fcntl`). No other
/// call that locks has one of them.
fn named(text: &str) -> LockCall {
    match text.split(' ').next() {
        Some("73" | "32" | "143") => LockCall::Flock,
        Some("72" | "25" | "55" | "221") => LockCall::Fcntl,
        _ => LockCall::Unknown,
    }
}

/// Polls for signals that are pending for a thread.
pub struct Signals {
    tid: u32,
    /// A signal was pending for the whole process, which has several threads: another thread may be about to take it.
    seen: bool,
}

impl Signals {
    /// For thread `tid`; 0: the thread cannot be seen from here.
    pub fn of(tid: u32) -> Signals {
        Signals { tid, seen: false }
    }

    /// Whether the call must be interrupted, for the thread to handle a signal or to end.
    pub fn wait(&mut self) -> bool {
        if self.tid == 0 {
            return false;
        }
        let Ok(text) = std::fs::read_to_string(format!("/proc/{}/status", self.tid)) else { return true };
        let (own, shared, threads) = pending(&text);
        let before = std::mem::replace(&mut self.seen, shared);
        own || shared && (threads <= 1 || before)
    }
}

/// Whether a signal that is neither blocked nor ignored is pending for this thread; for its process; number of threads
/// of the process.
fn pending(status: &str) -> (bool, bool, u32) {
    let line = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map_or("", str::trim);
    let mask = |name: &str| u64::from_str_radix(line(name), 16).unwrap_or(0);
    let heard = !(mask("SigBlk:") | mask("SigIgn:"));
    (mask("SigPnd:") & heard != 0, mask("ShdPnd:") & heard != 0, line("Threads:").parse().unwrap_or(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_told_apart() {
        assert_eq!(named("73 0x3 0x2 0x0"), LockCall::Flock);
        assert_eq!(named("72 0x3 0x7 0x7ffd"), LockCall::Fcntl);
        assert_eq!(named("-1 0x7ffd 0x0"), LockCall::Unknown);
        assert_eq!(lock_call(0), LockCall::Unknown);
    }

    #[test]
    fn blocked_and_ignored_signals_wait_for_nobody() {
        let status = |own, shared, blocked, ignored| {
            format!(
                "Threads:\t2\nSigPnd:\t{own:016x}\nShdPnd:\t{shared:016x}\nSigBlk:\t{blocked:016x}\nSigIgn:\t{ignored:016x}\n"
            )
        };
        assert_eq!(pending(&status(0x100, 0, 0, 0)), (true, false, 2));
        assert_eq!(pending(&status(0, 0x4002, 0x4000, 0)), (false, true, 2));
        assert_eq!(pending(&status(0x2, 0x4000, 0x4000, 0x2)), (false, false, 2));
        assert!(Signals::of(u32::MAX).wait(), "nobody is there any more");
        assert!(!Signals::of(0).wait());
    }
}
