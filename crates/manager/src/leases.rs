//! Leases: clients may keep what they were told of an inode until the manager takes it back, or the lease ends.
//!
//! A lease on inode x covers the answer's attributes and hints of x and the name x was reached by. Before a command that
//! changes them is applied, every other holder is asked to forget; the command waits for the answers or for the leases'
//! end. A directory's times and count of links are not covered: names appear in directories all the time, and a client that must know
//! asks. Leases live in memory; a manager that starts waits as long as a lease lasts before it changes anything,
//! if leases were ever granted (`meta.leases_granted`).

use crate::command::Command;
use crate::db::Db;
use crate::error::Outcome;
use crate::inodes;
use rusqlite::OptionalExtension;
use std::collections::HashMap;
use tessera_wire::meta::Commit;

/// Who holds a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Holder {
    connection: u64,
    until_ns: i64,
}

/// Leases granted by this manager since it started.
#[derive(Default)]
pub struct Leases {
    by_ino: HashMap<u64, Vec<Holder>>,
    count: usize,
    /// Inodes that admitted commands will change: nobody gets a lease on them.
    changing: HashMap<u64, u32>,
}

impl Leases {
    /// Grants `connection` a lease on each of `inos` until `until_ns`, or none if one of them is about to change or there are
    /// too many leases.
    pub fn grant(&mut self, inos: &[u64], connection: u64, until_ns: i64, max: usize) -> bool {
        if self.count + inos.len() > max || inos.iter().any(|ino| self.changing.contains_key(ino)) {
            return false;
        }
        for &ino in inos {
            let holders = self.by_ino.entry(ino).or_default();
            match holders.iter_mut().find(|holder| holder.connection == connection) {
                Some(holder) => holder.until_ns = holder.until_ns.max(until_ns),
                None => {
                    holders.push(Holder { connection, until_ns });
                    self.count += 1;
                }
            }
        }
        true
    }

    /// Connections other than `except` that hold leases on any of `inos`, each with what it holds of them.
    pub fn holders(&self, inos: &[u64], except: u64, now_ns: i64) -> HashMap<u64, Vec<u64>> {
        let mut found: HashMap<u64, Vec<u64>> = HashMap::new();
        for &ino in inos {
            for holder in self.by_ino.get(&ino).into_iter().flatten() {
                if holder.connection != except && holder.until_ns > now_ns {
                    found.entry(holder.connection).or_default().push(ino);
                }
            }
        }
        found
    }

    /// A holder has given these back.
    pub fn release(&mut self, connection: u64, inos: &[u64]) {
        for &ino in inos {
            self.retain(ino, |holder| holder.connection != connection);
        }
    }

    /// A holder has given back all it had.
    pub fn release_all(&mut self, connection: u64) {
        self.retain_everywhere(|holder| holder.connection != connection);
    }

    /// Forgets leases that have ended.
    pub fn expire(&mut self, now_ns: i64) {
        self.retain_everywhere(|holder| holder.until_ns > now_ns);
    }

    fn retain_everywhere(&mut self, mut keep: impl FnMut(&Holder) -> bool) {
        let inos: Vec<u64> = self.by_ino.keys().copied().collect();
        inos.into_iter().for_each(|ino| self.retain(ino, &mut keep));
    }

    fn retain(&mut self, ino: u64, keep: impl FnMut(&Holder) -> bool) {
        if let Some(holders) = self.by_ino.get_mut(&ino) {
            let before = holders.len();
            holders.retain(keep);
            self.count -= before - holders.len();
            if holders.is_empty() {
                self.by_ino.remove(&ino);
            }
        }
    }

    /// A command that changes these was admitted.
    pub fn begin_change(&mut self, inos: &[u64]) {
        inos.iter().for_each(|&ino| *self.changing.entry(ino).or_default() += 1);
    }

    /// It was applied or refused.
    pub fn end_change(&mut self, inos: &[u64]) {
        for ino in inos {
            if let Some(count) = self.changing.get_mut(ino) {
                *count -= 1;
                if *count == 0 {
                    self.changing.remove(ino);
                }
            }
        }
    }

    /// Leases held.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether none are.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }
}

/// Inodes of which a command changes what a lease covers, as far as can be told before it is applied. Names that an
/// earlier waiting command gives to another inode are covered by what that command changes.
pub fn changed_by(db: &Db, command: &Command) -> Outcome<Vec<u64>> {
    let named = |parent: u64, name: &[u8]| inodes::lookup(db, if parent == 0 { inodes::ROOT } else { parent }, name);
    Ok(match command {
        Command::Unlink(r) => named(r.parent, &r.name)?.into_iter().collect(),
        Command::Rename(r) => {
            let from = named(r.from_parent, &r.from_name)?;
            from.into_iter().chain(named(r.to_parent, &r.to_name)?).collect()
        }
        Command::ExpireFiles(c) => c.inos.clone(),
        Command::Link(r) => vec![r.ino],
        Command::SetAttr(r) => vec![r.ino],
        Command::SetXattr(r) => vec![r.ino],
        Command::RemoveXattr(r) => vec![r.ino],
        Command::Commit(Commit { open: Some(open), .. }) => match (open.parent, open.ino) {
            (0, ino) => vec![ino],
            (parent, _) => named(parent, &open.name)?.into_iter().collect(),
        },
        Command::Commit(r) if !r.partial => {
            let target: Option<(i64, i64, Vec<u8>)> = db
                .stmt("SELECT ino, parent, name FROM sessions WHERE session_id = ?1")?
                .query_row([r.session_id as i64], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
                .optional()?;
            match target {
                Some((ino, 0, _)) => vec![ino as u64],
                Some((_, parent, name)) => named(parent as u64, &name)?.into_iter().collect(),
                None => Vec::new(),
            }
        }
        _ => Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_held_until_released_or_ended() {
        let mut leases = Leases::default();
        assert!(leases.grant(&[1, 2], 7, 100, 10));
        assert!(leases.grant(&[2], 8, 50, 10));
        assert_eq!(leases.holders(&[2], 7, 10), HashMap::from([(8, vec![2])]));
        assert_eq!(leases.holders(&[2], 7, 50), HashMap::new(), "ended");
        leases.release(7, &[1, 2]);
        assert_eq!(leases.holders(&[1, 2], 0, 10), HashMap::from([(8, vec![2])]));
        assert!(leases.grant(&[3], 8, 500, 10));
        leases.release_all(7);
        assert_eq!(leases.len(), 2, "of another connection");
        leases.expire(60);
        assert_eq!(leases.len(), 1);
        leases.release_all(8);
        assert!(leases.is_empty());
    }

    #[test]
    fn nobody_gets_a_lease_on_what_is_about_to_change() {
        let mut leases = Leases::default();
        leases.begin_change(&[5]);
        assert!(!leases.grant(&[4, 5], 1, 100, 10));
        assert!(leases.is_empty());
        leases.end_change(&[5]);
        assert!(leases.grant(&[4, 5], 1, 100, 10));
        assert!(!leases.grant(&[6], 1, 100, 2), "too many");
    }
}
