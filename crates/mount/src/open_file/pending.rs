//! The states of an open file: where the bytes are that this mount has written and no version has.
//!
//! | from | to | when |
//! |---|---|---|
//! | `Clean` | `Written` | the file is written or its length is set |
//! | `Clean` | `Spooled` | the same, in the mode complete-local |
//! | `Written` | `Clean` | a version has everything |
//! | `Written` | `Draining` | the file is closed in the mode incremental, and need not be durable yet |
//! | `Draining` | `Clean` | a version has everything |
//! | `Draining` | `Written` | a commit is done, and bytes are still buffered or a length is not set |
//! | `Spooled` | `Clean` | the push stored the log's content, or the log is lost |
//! | `Spooled` | `Pouring` | a commit, or the spool is full |
//! | `Pouring` | `Spooled` | the commit failed |
//! | `Pouring` | `Clean`, `Written` | the commit is done, or was not needed |
//! | any but `Pouring` | `Failed` | bytes are lost that the kernel was told are written |
//! | `Failed` in `Draining` | `Failed` in `Clean` | the push gives up |
//! | `Failed` in `Spooled` | `Failed` in `Written` | the last writer closed: the log waits for the next mount as it was closed before |

use super::session::Session;
use crate::errno::{Errno, Outcome};
use crate::spool::log::Log;
use crate::write_buffer::WriteBuffer;

/// See the module.
#[allow(clippy::large_enum_variant, reason = "an open file has one")]
pub(super) enum Pending<W> {
    /// A version has everything. A session that committed it can go on.
    Clean { session: Option<Session<W>> },
    /// Bytes are buffered or in a session, or the length changed.
    Written(Written<W>),
    /// As `Written`, and the file was closed: the spool holds a handle of it, and a push commits it.
    Draining(Written<W>),
    /// Writes go to a log in the spool, which holds a handle of the file.
    Spooled(Log),
    /// The log's content goes to a session. Only while the file's lock is held.
    Pouring { log: Log, written: Written<W> },
    /// Bytes are lost: every later caller gets this error. `before`: the state in which the file failed, without a
    /// session.
    Failed { errno: Errno, before: Box<Pending<W>> },
}

/// What was written around the spool.
pub(super) struct Written<W> {
    /// Bytes that are not in the session yet.
    pub buffer: WriteBuffer,
    /// None: everything is buffered.
    pub session: Option<Session<W>>,
    /// Length that the next version gets.
    pub length: NextLength,
    /// Length that the next version has at least, whatever is in buffer and session: the file was made longer without a write, or
    /// the bytes before it are on their way to the session.
    pub grown_bytes: u64,
}

/// Length of the next version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum NextLength {
    /// That of the version below, or up to the end of what was written here.
    AtLeast,
    /// A program set it: it holds over any version below. No write may leave a gap behind the end before a commit, or
    /// what another mount wrote there would show in the gap.
    Exact,
    /// As `Exact`, and the file was shortened. No write behind the end is allowed before a commit, or the bytes that
    /// were cut off would show through.
    Cut,
}

impl<W> Written<W> {
    fn new(session: Option<Session<W>>) -> Written<W> {
        Written { buffer: WriteBuffer::default(), session, length: NextLength::AtLeast, grown_bytes: 0 }
    }
}

/// What a commit leaves to be released.
pub(super) struct Released {
    /// The log, which the version replaces.
    pub log: Option<Log>,
    /// Whether the file was draining: the spool holds a handle.
    pub drained: bool,
}

impl<W> Pending<W> {
    /// A version has everything, and no session is open.
    pub fn clean() -> Pending<W> {
        Pending::Clean { session: None }
    }

    /// The state, or that in which the file failed.
    fn state(&self) -> &Pending<W> {
        match self {
            Pending::Failed { before, .. } => before,
            state => state,
        }
    }

    /// As [`Pending::state`].
    fn state_mut(&mut self) -> &mut Pending<W> {
        match self {
            Pending::Failed { before, .. } => before,
            state => state,
        }
    }

    /// Replaces the state, or that in which the file failed.
    fn become_of<T>(&mut self, next: impl FnOnce(Pending<W>) -> (Pending<W>, T)) -> T {
        let state = self.state_mut();
        let result;
        (*state, result) = next(std::mem::replace(state, Pending::clean()));
        result
    }

    /// Whether something is in no version.
    pub fn is_unsaved(&self) -> bool {
        !self.state().is_clean()
    }

    /// Whether a version has everything, and the file has not failed.
    pub fn is_clean(&self) -> bool {
        matches!(self, Pending::Clean { .. })
    }

    /// Whether the file was closed and waits for a push of its session.
    pub fn is_draining(&self) -> bool {
        matches!(self.state(), Pending::Draining(_))
    }

    /// Reports whether the file failed.
    ///
    /// # Errors
    /// The error with which it failed.
    pub fn check(&self) -> Outcome {
        match self {
            Pending::Failed { errno, .. } => Err(*errno),
            _ => Ok(()),
        }
    }

    /// The log that takes the writes.
    pub fn log(&self) -> Option<&Log> {
        match self.state() {
            Pending::Spooled(log) => Some(log),
            _ => None,
        }
    }

    /// As [`Pending::log`].
    pub fn log_mut(&mut self) -> Option<&mut Log> {
        match self.state_mut() {
            Pending::Spooled(log) => Some(log),
            _ => None,
        }
    }

    /// What was written around the spool, if anything.
    pub fn written(&self) -> Option<&Written<W>> {
        match self.state() {
            Pending::Written(written) | Pending::Draining(written) | Pending::Pouring { written, .. } => Some(written),
            _ => None,
        }
    }

    /// The end of what is written around the spool and in no version: the next one is that long at least.
    pub fn end(&self) -> u64 {
        let Some(written) = self.written() else { return 0 };
        let in_session = written.session.as_ref().and_then(|session| session.uncommitted.as_ref()).map_or(0, |r| r.end);
        written.buffer.end().max(written.grown_bytes).max(in_session)
    }

    /// Length that the next version gets.
    pub fn length(&self) -> NextLength {
        self.written().map_or(NextLength::AtLeast, |written| written.length)
    }

    /// Something is written around the spool: a clean file becomes a written one.
    pub fn write(&mut self) -> &mut Written<W> {
        let state = self.state_mut();
        if let Pending::Clean { session } = state {
            let session = session.take();
            *state = Pending::Written(Written::new(session));
        }
        match state {
            Pending::Written(written) | Pending::Draining(written) | Pending::Pouring { written, .. } => written,
            _ => panic!("a spooled file is written through its log"),
        }
    }

    fn session_slot(&mut self) -> Option<&mut Option<Session<W>>> {
        match self.state_mut() {
            Pending::Clean { session } => Some(session),
            Pending::Written(written) | Pending::Draining(written) | Pending::Pouring { written, .. } => {
                Some(&mut written.session)
            }
            _ => None,
        }
    }

    /// The write session, if one is open.
    pub fn session(&self) -> Option<&Session<W>> {
        match self.state() {
            Pending::Clean { session } => session.as_ref(),
            state => state.written()?.session.as_ref(),
        }
    }

    /// As [`Pending::session`].
    pub fn session_mut(&mut self) -> Option<&mut Session<W>> {
        self.session_slot()?.as_mut()
    }

    /// Abandons the session, and what is in it and in no version.
    pub fn drop_session(&mut self) {
        if let Some(session) = self.session_slot() {
            *session = None;
        }
    }

    /// Bytes are lost.
    pub fn fail(&mut self, lost: Errno) {
        self.drop_session();
        match self {
            Pending::Failed { errno, .. } => *errno = lost,
            Pending::Pouring { .. } => panic!("a log whose content could not be committed takes the writes again"),
            state => {
                let before = Box::new(std::mem::replace(state, Pending::clean()));
                *state = Pending::Failed { errno: lost, before };
            }
        }
    }

    /// From now on writes go to `log`.
    pub fn spool(&mut self, log: Log) {
        assert!(self.is_clean(), "a log begins over a version");
        *self = Pending::Spooled(log);
    }

    /// The file is closed; a push commits the session. Returns whether that is new.
    pub fn drain(&mut self) -> bool {
        let is_new = !self.is_draining();
        self.become_of(|state| match state {
            Pending::Written(written) | Pending::Draining(written) => {
                assert!(written.session.is_some() && written.buffer.is_empty(), "everything is in the session");
                (Pending::Draining(written), is_new)
            }
            _ => panic!("only what was written around the spool drains"),
        })
    }

    /// The content of the log is about to go to a session. Returns the log; none: there is none.
    pub fn pour(&mut self) -> Option<&mut Log> {
        self.become_of(|state| match state {
            Pending::Spooled(log) => (Pending::Pouring { log, written: Written::new(None) }, ()),
            state => (state, ()),
        });
        match self.state_mut() {
            Pending::Pouring { log, .. } => Some(log),
            _ => None,
        }
    }

    /// The content of the log could not be committed: the log takes the writes again. Returns false if no log was
    /// poured.
    pub fn pour_back(&mut self) -> bool {
        self.become_of(|state| match state {
            Pending::Pouring { log, .. } => (Pending::Spooled(log), true),
            state => (state, false),
        })
    }

    /// The content of the log stays in the session, uncommitted: nothing of it was acknowledged. Returns the log.
    pub fn leave_spool(&mut self) -> Option<Log> {
        self.become_of(|state| match state {
            Pending::Pouring { log, written } => (Pending::Written(written), Some(log)),
            state => (state, None),
        })
    }

    /// A version has what is in the session, or the whole file. Bytes that are still buffered, and a length that no
    /// version has, remain.
    pub fn committed(&mut self) -> Released {
        self.become_of(|state| {
            let (written, log, drained) = match state {
                Pending::Written(written) => (written, None, false),
                Pending::Draining(written) => (written, None, true),
                Pending::Pouring { log, written } => (written, Some(log), false),
                _ => panic!("only what was written around the spool is committed"),
            };
            let is_saved =
                written.buffer.is_empty() && written.length == NextLength::AtLeast && written.grown_bytes == 0;
            let next = if is_saved { Pending::Clean { session: written.session } } else { Pending::Written(written) };
            (next, Released { log, drained })
        })
    }

    /// The log is no longer needed, or cannot be read: the file is as the version below it. Returns the log.
    pub fn drop_log(&mut self) -> Option<Log> {
        self.become_of(|state| match state {
            Pending::Spooled(log) => (Pending::clean(), Some(log)),
            state => (state, None),
        })
    }

    /// What drained could not be stored: the version before stands. Returns whether the spool still holds a handle.
    pub fn give_up_draining(&mut self) -> bool {
        assert!(self.check().is_err(), "a push that can be repeated is not given up");
        self.become_of(|state| match state {
            Pending::Draining(_) => (Pending::clean(), true),
            state => (state, false),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spool::budget::Budget;
    use crate::spool::replay::LogOrigin;
    use std::sync::Arc;
    use tessera_disk::SimDisk;

    fn log() -> Log {
        let (cluster_id, name) = (Vec::new(), Vec::new());
        let origin = LogOrigin {
            cluster_id,
            ino: 3,
            parent: 1,
            name,
            base_version: 0,
            base_bytes: 0,
            base_content: 0,
            map_version: 0,
        };
        Log::create(Arc::new(SimDisk::new(1)), 1, Arc::new(Budget::new(1 << 20)), origin).unwrap()
    }

    #[test]
    fn a_commit_keeps_what_is_still_buffered() {
        let mut pending = Pending::<()>::clean();
        pending.write().buffer.write(0, b"bytes");
        assert!(!pending.committed().drained && pending.is_unsaved());
        pending.write().buffer.pop_first();
        pending.committed();
        assert!(pending.is_clean());
    }

    #[test]
    fn a_log_that_is_poured_in_vain_takes_the_writes_again() {
        let mut pending = Pending::<()>::clean();
        pending.spool(log());
        assert!(pending.pour().is_some() && pending.log().is_none());
        assert!(pending.pour_back() && pending.log().is_some());
        pending.pour();
        assert!(pending.committed().log.is_some() && pending.is_clean() && !pending.pour_back());
    }

    #[test]
    fn a_failed_file_keeps_its_log_and_its_error() {
        let mut pending = Pending::<()>::clean();
        pending.spool(log());
        pending.fail(Errno::ENOSPC);
        assert_eq!((pending.check(), pending.is_unsaved(), pending.log().is_some()), (Err(Errno::ENOSPC), true, true));
        assert!(pending.drop_log().is_some());
        assert_eq!((pending.check(), pending.is_unsaved()), (Err(Errno::ENOSPC), false));
        assert!(!pending.is_clean());
    }

    #[test]
    #[should_panic(expected = "through its log")]
    fn a_spooled_file_is_not_written_around_its_log() {
        let mut pending = Pending::<()>::clean();
        pending.spool(log());
        pending.write();
    }
}
