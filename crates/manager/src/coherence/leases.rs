//! Leases: a client may cache what it learned of an inode until the manager recalls the lease, or the lease ends.
//!
//! A lease on inode x covers the attributes and hints of x and the name by which the client reached x. Before the manager
//! applies a command that changes them, it recalls the leases of all other holders. The command waits until each holder
//! answers or its lease ends. A lease does not cover a directory's times and link count: they change with every name.
//! Leases live in memory. A manager that starts waits for one lease duration before it changes anything, if leases were
//! ever granted (`meta.leases_granted`).
//!
//! A lease on a *listing* covers the names that a directory has, which inode each stands for, and the attributes of these inodes. Any number
//! of clients hold it. The manager recalls it before another client removes or moves one of the names, or changes one of the inodes.
//!
//! A *delegation* is a lease on the names in a directory; at most one client holds it. A client gets it when it creates the
//! directory, or asks for it with a new file in a directory with few names. The manager recalls it before another client
//! creates a name there or changes the directory. So the holder knows which names do not exist, and may create files without
//! asking: they come into being with their first commit ([`tessera_wire::meta::OpenWrite::ino`]). A delegation does not cover
//! removals of names.

use std::collections::HashMap;
use tessera_failpoint as failpoint;
use tessera_wire::meta::RecallLease;

/// What a lease is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LeaseTarget {
    /// An inode.
    Inode(u64),
    /// The names in a directory, those that it does not have included.
    Names(u64),
    /// The names that a directory has.
    Listing(u64),
}

/// A connection that holds a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Holder {
    connection: u64,
    until_ns: i64,
    /// Number of the last grant.
    grant: u64,
}

/// What a recall asked one connection to give back.
#[derive(Debug)]
pub struct Recall {
    connection: u64,
    targets: Vec<LeaseTarget>,
    /// The last grant before the recall: the answer gives back no later one.
    last_grant: u64,
}

/// Leases granted by this manager since it started.
#[derive(Default)]
pub struct Leases {
    held: HashMap<LeaseTarget, Vec<Holder>>,
    count: usize,
    grants: u64,
    /// Targets that admitted commands will change: no lease on them is granted.
    changing: HashMap<LeaseTarget, u32>,
}

impl Leases {
    /// Grants `connection` a lease on each of `inos` until `until_ns`. Grants none if a command is about to change one of them,
    /// or there are too many leases.
    pub fn grant(&mut self, inos: &[u64], connection: u64, until_ns: i64, max: usize) -> bool {
        let changes = |ino: &u64| self.changing.contains_key(&LeaseTarget::Inode(*ino));
        if self.count + inos.len() > max || inos.iter().any(changes) {
            return false;
        }
        inos.iter().for_each(|ino| self.hold(LeaseTarget::Inode(*ino), connection, until_ns));
        true
    }

    /// Grants `connection` the delegation of `directory`, unless another connection holds it, a command is about to create a
    /// name there, or there are too many leases.
    pub fn grant_names(&mut self, directory: u64, connection: u64, until_ns: i64, max: usize) -> bool {
        if self.count >= max || !self.may_grant_names(directory, connection) {
            return false;
        }
        self.hold(LeaseTarget::Names(directory), connection, until_ns);
        let holders = self.held.get(&LeaseTarget::Names(directory)).map_or(0, Vec::len);
        assert_eq!(holders, 1, "directory {directory}: one client at most holds the delegation");
        true
    }

    /// Grants `connection` a lease on the names that `directory` has, unless a command is about to take one away, or there are too many leases.
    pub fn grant_listing(&mut self, directory: u64, connection: u64, until_ns: i64, max: usize) -> bool {
        let listing = LeaseTarget::Listing(directory);
        let free = self.count < max && !self.changing.contains_key(&listing);
        if free {
            self.hold(listing, connection, until_ns);
        }
        free
    }

    /// Whether no other connection holds the delegation of `directory`, and no command is about to create a name there.
    pub fn may_grant_names(&self, directory: u64, connection: u64) -> bool {
        let names = LeaseTarget::Names(directory);
        let others = self.held.get(&names).is_some_and(|held| held.iter().any(|h| h.connection != connection));
        !others && !self.changing.contains_key(&names)
    }

    fn hold(&mut self, what: LeaseTarget, connection: u64, until_ns: i64) {
        self.grants += 1;
        let grant = self.grants;
        let holders = self.held.entry(what).or_default();
        match holders.iter_mut().find(|holder| holder.connection == connection) {
            Some(holder) => *holder = Holder { connection, until_ns: holder.until_ns.max(until_ns), grant },
            None => {
                holders.push(Holder { connection, until_ns, grant });
                self.count += 1;
            }
        }
    }

    /// Whether `connection` holds the delegation of `directory`.
    pub fn has_names(&self, directory: u64, connection: u64, now_ns: i64) -> bool {
        let held = self.held.get(&LeaseTarget::Names(directory));
        held.is_some_and(|held| held.iter().any(|h| h.connection == connection && h.until_ns > now_ns))
    }

    /// Connections other than `except` that hold leases on any of `changes`, each with the targets it holds.
    pub fn holders(&self, changes: &[LeaseTarget], except: u64, now_ns: i64) -> HashMap<u64, Vec<LeaseTarget>> {
        let mut found: HashMap<u64, Vec<LeaseTarget>> = HashMap::new();
        for &what in changes {
            for holder in self.held.get(&what).into_iter().flatten() {
                if holder.connection != except && holder.until_ns > now_ns {
                    found.entry(holder.connection).or_default().push(what);
                }
            }
        }
        found
    }

    /// What a recall of these targets that is sent now asks a connection to give back.
    pub fn begin_recall(&self, connection: u64, targets: Vec<LeaseTarget>) -> Recall {
        Recall { connection, targets, last_grant: self.grants }
    }

    /// A holder gave back what was recalled. Its answer may come late, when it holds the same targets under later grants: it got those
    /// after the recalled ones were given back in another answer, or had ended.
    pub fn release(&mut self, recall: &Recall) {
        let forgets_grants = failpoint::is_active("manager.late_answer_releases");
        for &what in &recall.targets {
            let is_later = |holder: &Holder| holder.grant > recall.last_grant && !forgets_grants;
            self.retain(what, |holder| holder.connection != recall.connection || is_later(holder));
        }
    }

    /// A holder gave all its leases back.
    pub fn release_all(&mut self, connection: u64) {
        self.retain_everywhere(|holder| holder.connection != connection);
    }

    /// Forgets leases that have ended.
    pub fn expire(&mut self, now_ns: i64) {
        self.retain_everywhere(|holder| holder.until_ns > now_ns);
    }

    fn retain_everywhere(&mut self, mut keep: impl FnMut(&Holder) -> bool) {
        let all: Vec<LeaseTarget> = self.held.keys().copied().collect();
        all.into_iter().for_each(|what| self.retain(what, &mut keep));
    }

    fn retain(&mut self, what: LeaseTarget, keep: impl FnMut(&Holder) -> bool) {
        if let Some(holders) = self.held.get_mut(&what) {
            let before = holders.len();
            holders.retain(keep);
            let released = before - holders.len();
            assert!(released <= self.count, "{released} leases released, {} held", self.count);
            self.count -= released;
            if holders.is_empty() {
                self.held.remove(&what);
            }
        }
    }

    /// A command that changes these targets was admitted.
    pub fn begin_change(&mut self, changes: &[LeaseTarget]) {
        changes.iter().for_each(|&what| *self.changing.entry(what).or_default() += 1);
    }

    /// The command was applied or refused.
    pub fn end_change(&mut self, changes: &[LeaseTarget]) {
        for what in changes {
            let count = self.changing.get_mut(what);
            let count = count.unwrap_or_else(|| panic!("{what:?}: a change ends that never began"));
            *count -= 1;
            if *count == 0 {
                self.changing.remove(what);
            }
        }
    }

    /// Number of leases held.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether no lease is held.
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }
}

/// The message that recalls these leases.
pub fn recall(held: &[LeaseTarget]) -> RecallLease {
    let mut recall = RecallLease::default();
    for what in held {
        match *what {
            LeaseTarget::Inode(ino) | LeaseTarget::Listing(ino) => recall.inos.push(ino),
            LeaseTarget::Names(directory) => recall.delegated_dirs.push(directory),
        }
    }
    recall.inos.sort_unstable();
    recall.inos.dedup();
    recall
}

/// Leases that may come with a command's reply.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LeaseGrants {
    /// On the inode that the command created or changed.
    pub inode: bool,
    /// On the names in a directory.
    pub names: Option<GrantedNames>,
}

/// A directory in which the client may create names without asking.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GrantedNames {
    /// The directory that the command created.
    OfNewDirectory,
    /// A delegation that the client holds and that is extended.
    Kept(u64),
    /// A new delegation; the reply lists the directory's names.
    Listed(u64),
}

#[cfg(test)]
mod tests {
    use super::LeaseTarget::{Inode, Listing, Names};
    use super::*;

    #[test]
    fn a_lease_is_held_until_released_or_ended() {
        let mut leases = Leases::default();
        assert!(leases.grant(&[1, 2], 7, 100, 10));
        assert!(leases.grant(&[2], 8, 50, 10));
        assert_eq!(leases.holders(&[Inode(2)], 7, 10), HashMap::from([(8, vec![Inode(2)])]));
        assert_eq!(leases.holders(&[Inode(2)], 7, 50), HashMap::new(), "ended");
        leases.release(&leases.begin_recall(7, vec![Inode(1), Inode(2)]));
        assert_eq!(leases.holders(&[Inode(1), Inode(2)], 0, 10), HashMap::from([(8, vec![Inode(2)])]));
        assert!(leases.grant(&[3], 8, 500, 10));
        leases.release_all(7);
        assert_eq!(leases.len(), 2, "of another connection");
        leases.expire(60);
        assert_eq!(leases.len(), 1);
        leases.release_all(8);
        assert!(leases.is_empty());
    }

    #[test]
    fn many_may_hold_the_lease_on_a_listing() {
        let mut leases = Leases::default();
        assert!(leases.grant_listing(9, 1, 100, 10) && leases.grant_listing(9, 2, 100, 10));
        assert!(leases.grant(&[9], 2, 100, 10) && leases.may_grant_names(9, 3));
        let held = leases.holders(&[Inode(9), Listing(9)], 1, 10);
        assert_eq!(held, HashMap::from([(2, vec![Inode(9), Listing(9)])]));
        assert_eq!(recall(&held[&2]).inos, [9]);
        leases.begin_change(&[Listing(9)]);
        assert!(!leases.grant_listing(9, 1, 200, 10), "a name is about to go");
        leases.end_change(&[Listing(9)]);
        assert!(!leases.grant_listing(9, 1, 200, 3), "too many");
        leases.release_all(1);
        leases.release_all(2);
        assert!(leases.is_empty());
    }

    #[test]
    fn a_recall_gives_back_no_later_grant() {
        let mut leases = Leases::default();
        assert!(leases.grant(&[1, 2], 7, 100, 10));
        let recall = leases.begin_recall(7, vec![Inode(1), Inode(2)]);
        assert!(leases.grant(&[2], 7, 100, 10), "while it holds the earlier one");
        leases.release(&recall);
        assert_eq!(leases.holders(&[Inode(1), Inode(2)], 0, 10), HashMap::from([(7, vec![Inode(2)])]));
        assert!(leases.grant(&[1], 7, 100, 10));
        leases.release(&recall);
        assert_eq!(leases.len(), 2);
        leases.release(&leases.begin_recall(7, vec![Inode(1), Inode(2)]));
        assert!(leases.is_empty());
    }

    #[test]
    fn no_lease_is_granted_on_what_is_about_to_change() {
        let mut leases = Leases::default();
        leases.begin_change(&[Inode(5)]);
        assert!(!leases.grant(&[4, 5], 1, 100, 10));
        assert!(leases.is_empty());
        leases.end_change(&[Inode(5)]);
        assert!(leases.grant(&[4, 5], 1, 100, 10));
        assert!(!leases.grant(&[6], 1, 100, 2), "too many");
    }

    #[test]
    fn the_names_in_a_directory_are_one_clients() {
        let mut leases = Leases::default();
        assert!(leases.grant_names(9, 1, 100, 10));
        assert!(leases.grant_names(9, 1, 200, 10), "again");
        assert!(!leases.grant_names(9, 2, 300, 10));
        assert!(leases.has_names(9, 1, 150) && !leases.has_names(9, 1, 200) && !leases.has_names(9, 2, 150));
        assert!(leases.grant(&[9], 2, 300, 10), "the directory itself is another thing");
        assert_eq!(leases.holders(&[Names(9), Inode(9)], 2, 150), HashMap::from([(1, vec![Names(9)])]));
        leases.release(&leases.begin_recall(1, vec![Names(9)]));
        leases.begin_change(&[Names(9)]);
        assert!(!leases.grant_names(9, 1, 300, 10), "others are about to make names");
        leases.end_change(&[Names(9)]);
        assert!(leases.grant_names(9, 2, 300, 10));
    }
}
