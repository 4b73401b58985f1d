//! Directories in which other mounts change something: programs on several mounts may take turns there.

use super::listings::TOLD_NS;
use std::collections::HashMap;

/// A directory counts as shared for so long after a change, ns.
const SHARED_NS: i64 = 10_000_000_000;
/// Limit of such directories.
const MAX_SHARED: usize = 4_096;

/// See the module.
#[derive(Debug, Default)]
pub struct SharedDirectories {
    /// Since when and until when they count as shared.
    of: HashMap<u64, (i64, i64)>,
    /// Until when the kernel may keep names of directories that were forgotten here.
    forgotten_until_ns: i64,
}

impl SharedDirectories {
    /// Another mount changes something in a directory. The kernel keeps names for `kept_ns` at most.
    pub fn note(&mut self, now_ns: i64, directory: u64, kept_ns: i64) {
        if self.of.len() >= MAX_SHARED && !self.of.contains_key(&directory) {
            self.of.clear();
            self.forgotten_until_ns = now_ns.saturating_add(kept_ns).saturating_add(TOLD_NS);
        }
        let (since_ns, until_ns) = self.of.entry(directory).or_insert((now_ns, now_ns));
        if *until_ns < now_ns {
            *since_ns = now_ns;
        }
        *until_ns = now_ns.saturating_add(SHARED_NS);
    }

    /// Since when a directory is shared; none: it is not.
    pub fn since_ns(&self, now_ns: i64, directory: u64) -> Option<i64> {
        self.of.get(&directory).filter(|(_, until_ns)| *until_ns > now_ns).map(|(since_ns, _)| *since_ns)
    }

    /// Whether the kernel may keep names of a directory from before another mount's change in it.
    pub fn may_keep(&self, now_ns: i64, directory: u64) -> bool {
        self.since_ns(now_ns, directory).is_some() || self.forgotten_until_ns > now_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::namespace::MS;

    /// The kernel may hear of a recall after this mount has moved a name, and then keeps what it knew for the new one.
    #[test]
    fn many_shared_directories_do_not_hide_one_that_was_recalled_just_now() {
        const NOW: i64 = 100_000 * MS;
        let mut shared = SharedDirectories::default();
        (0..=MAX_SHARED as u64).for_each(|directory| shared.note(NOW, directory, 1_000 * MS));
        assert!(shared.may_keep(NOW, 0));
        assert!(!shared.may_keep(NOW + 1_050 * MS, 0), "the kernel has forgotten its names");
        assert!(shared.may_keep(NOW + 1_050 * MS, MAX_SHARED as u64), "mounts take turns there");
    }
}
