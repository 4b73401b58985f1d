//! Requests that are under way, by the inode that they change.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use tokio::sync::Notify;

/// Number of requests of one kind that are under way, by inode.
#[derive(Default)]
pub(crate) struct UnderWay {
    counts: Mutex<BTreeMap<u64, usize>>,
    /// One has ended.
    ended: Notify,
}

/// A request is under way until this is dropped.
pub struct Counted<'a> {
    all: &'a UnderWay,
    ino: u64,
}

impl Counted<'_> {
    pub(crate) fn ino(&self) -> u64 {
        self.ino
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        let mut counts = self.all.counts.lock();
        let count = counts.get_mut(&self.ino).expect("a request counts until it ends");
        *count -= 1;
        if *count == 0 {
            counts.remove(&self.ino);
        }
        drop(counts);
        self.all.ended.notify_waiters();
    }
}

impl UnderWay {
    pub fn begin(&self, ino: u64) -> Counted<'_> {
        *self.counts.lock().entry(ino).or_default() += 1;
        Counted { all: self, ino }
    }

    pub fn count(&self, ino: u64) -> usize {
        self.counts.lock().get(&ino).copied().unwrap_or(0)
    }

    /// Waits until none is.
    pub async fn until_none(&self, ino: u64) {
        loop {
            // Made before the look, so that no end is missed.
            let ended = self.ended.notified();
            if self.count(ino) == 0 {
                return;
            }
            ended.await;
        }
    }
}
