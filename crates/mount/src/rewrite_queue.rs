//! Files to be rewritten because a hint about their stored bytes changed: one at a time, each once.

use serde::Serialize;
use std::collections::BTreeSet;

/// Progress of a rewrite, in bytes of the file; total 0: it waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct RewriteProgress {
    /// Bytes rewritten.
    pub done_bytes: u64,
    /// Length of the file.
    pub total_bytes: u64,
}

/// See the module.
#[derive(Debug, Default)]
pub struct RewriteQueue {
    /// A file leaves before its hints are read: a later change of a hint queues it again.
    waiting: BTreeSet<u64>,
    running: Option<(u64, RewriteProgress)>,
}

impl RewriteQueue {
    /// A hint of a file changed. Returns whether the file is new in the queue.
    pub fn hint_changed(&mut self, ino: u64, hint: &str) -> bool {
        tessera_policy::affects_stored_bytes(hint) && self.waiting.insert(ino)
    }

    /// The rewrite of a file begins.
    pub fn begin(&mut self, ino: u64) {
        assert!(self.running.is_none(), "one file is rewritten at a time");
        self.running = Some((ino, RewriteProgress::default()));
        self.waiting.remove(&ino);
    }

    /// Progress of the running rewrite.
    pub fn progress(&mut self, progress: RewriteProgress) {
        if let Some((_, running)) = &mut self.running {
            *running = progress;
        }
    }

    /// The running rewrite ended.
    pub fn end(&mut self) {
        assert!(self.running.take().is_some(), "a rewrite that ends has begun");
    }

    /// Progress of a file's rewrite, if it waits or runs.
    pub fn get(&self, ino: u64) -> Option<RewriteProgress> {
        let running = self.running.filter(|(file, _)| *file == ino).map(|(_, progress)| progress);
        running.or_else(|| self.waiting.contains(&ino).then(RewriteProgress::default))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hint_that_changes_during_a_rewrite_queues_the_file_again() {
        let mut queue = RewriteQueue::default();
        assert!(!queue.hint_changed(7, "lifetime"));
        assert_eq!(queue.get(7), None);
        assert!(queue.hint_changed(7, "redundancy"));
        assert!(!queue.hint_changed(7, "placement"), "it waits once");
        assert_eq!(queue.get(7), Some(RewriteProgress::default()));
        queue.begin(7);
        let half = RewriteProgress { done_bytes: 5, total_bytes: 10 };
        queue.progress(half);
        assert!(queue.hint_changed(7, "chunking"));
        assert_eq!(queue.get(7), Some(half));
        queue.end();
        assert_eq!(queue.get(7), Some(RewriteProgress::default()), "it waits again");
    }
}
