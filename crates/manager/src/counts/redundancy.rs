//! Counts the redundancy of the committed chunks.
//!
//! A chunk is *full* when each fragment is on a disk that is up, *reduced* when some are not (lost, down, missing, not yet
//! backfilled), and *lost* when the rest do not suffice to read it. Only groups with an impaired member are counted chunk by
//! chunk.

use crate::db::Db;
use crate::db::cache::Caches;
use crate::db::node_map::NodeMap;
use crate::db::rows::{self, Member};
use crate::db::sql::args;
use crate::error::Result;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tessera_stripe::ClassLayout;
use tessera_wire::{ClassInfo, Health};

/// Redundancy of the committed chunks.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Redundancy {
    /// With every fragment in place.
    pub full: u64,
    /// Readable, but not full.
    pub reduced: u64,
    /// With too few reachable fragments.
    pub lost: u64,
    /// Fragments to be rebuilt or moved.
    pub to_repair: u64,
    /// Members being backfilled.
    pub backfilling: u64,
}

/// Counts full, reduced and lost chunks among the committed chunks.
///
/// # Errors
/// The database fails, or a row is damaged.
pub fn redundancy(db: &Db, caches: &Caches) -> Result<Redundancy> {
    let (node_map, classes) = (caches.node_map(db)?, caches.classes(db)?);
    let mut count = Count::new(db, &node_map, &classes);
    count.pending = pending(db)?;
    let troubled: BTreeSet<u64> = db.all("SELECT DISTINCT pg_id FROM missing_fragments", [])?;
    let groups = rows::groups(db, 0)?;
    for (pg_id, members) in &groups {
        let impaired = |m: &Member| m.incoming != 0 || !node_map.is_readable(m.disk_id);
        if troubled.contains(pg_id) || members.iter().any(impaired) {
            count.add_group(*pg_id, members)?;
            count.add_missing_rows(*pg_id, members)?;
        }
    }
    assert!(groups.values().all(|members| !members.is_empty()), "a group has members");
    let sum = count.sum;
    Ok(Redundancy { full: db.meta()?.chunks.saturating_sub(sum.reduced + sum.lost), ..sum })
}

/// Whether a chunk has a fragment that a backfill must still write, now or once a disk is found for it.
///
/// # Errors
/// The database fails, or a row is damaged.
pub fn backfills_wait(db: &Db, caches: &Caches) -> Result<bool> {
    let (node_map, classes) = (caches.node_map(db)?, caches.classes(db)?);
    let count = Count::new(db, &node_map, &classes);
    for (pg_id, members) in &rows::groups(db, 0)? {
        for (from, to) in ranges(members) {
            const ANY: &str =
                "SELECT 1 FROM chunks WHERE pg_id = ?1 AND chunk_id >= ?2 AND chunk_id < ?3 AND state = 2 LIMIT 1";
            if members.iter().any(|m| count.to_backfill(m, from)) && db.any(ANY, args![*pg_id, from, to])? {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// Ranges of chunk ids (`from..to`) within which all chunks of the group have their fragments on the same disks.
fn ranges(members: &[Member]) -> Vec<(u64, u64)> {
    let mut cuts: BTreeSet<u64> = [0, i64::MAX as u64].into();
    for m in members.iter().filter(|m| m.incoming != 0) {
        cuts.insert(m.fill_cursor.saturating_add(1));
        if m.fill_until != 0 {
            cuts.insert(m.fill_until);
        }
    }
    let cuts: Vec<u64> = cuts.into_iter().collect();
    cuts.windows(2).map(|w| (w[0], w[1])).collect()
}

/// A count under way.
struct Count<'a> {
    db: &'a Db,
    node_map: &'a NodeMap,
    classes: &'a BTreeMap<u32, Arc<ClassInfo>>,
    pending: Pending,
    sum: Redundancy,
}

/// Classes of the chunks that no commit names yet, by group and chunk: they are few.
type Pending = BTreeMap<(u64, u64), u32>;

fn pending(db: &Db) -> Result<Pending> {
    let rows: Vec<(u64, u64, u32)> =
        db.all("SELECT pg_id, chunk_id, class_id FROM chunks WHERE refs = 0 AND state = 1", [])?;
    Ok(rows.into_iter().map(|(pg_id, chunk_id, class_id)| ((pg_id, chunk_id), class_id)).collect())
}

impl<'a> Count<'a> {
    fn new(db: &'a Db, node_map: &'a NodeMap, classes: &'a BTreeMap<u32, Arc<ClassInfo>>) -> Count<'a> {
        Count { db, node_map, classes, pending: Pending::new(), sum: Redundancy::default() }
    }
}

impl Count<'_> {
    /// Committed chunks of a class among the chunks `from..to` of a group. The index alone answers, which has no `state`: that column
    /// changes with each chunk's commit.
    fn committed(&self, pg_id: u64, class_id: u32, (from, to): (u64, u64)) -> Result<u64> {
        let all: u64 = self.db.one(
            "SELECT count(*) FROM chunks WHERE pg_id = ?1 AND chunk_id >= ?2 AND chunk_id < ?3 AND class_id = ?4",
            args![pg_id, from, to, class_id],
        )?;
        let pending = self.pending.range((pg_id, from)..(pg_id, to)).filter(|(_, class)| **class == class_id).count();
        assert!(all >= pending as u64, "group {pg_id}: {pending} of {all} chunks are pending");
        Ok(all - pending as u64)
    }

    /// Members of a group whose fragment of `chunk` cannot be read now.
    fn away(&self, members: &[Member], chunk: u64) -> BTreeSet<u32> {
        let away = members.iter().filter(|m| !self.node_map.is_readable(m.serving_disk(chunk)));
        away.map(|m| m.position).collect()
    }

    /// The counter for chunks of a class whose fragments `away` cannot be read.
    fn of(&mut self, class_id: u32, away: &BTreeSet<u32>) -> Option<&mut u64> {
        let class = self.classes.get(&class_id);
        let readable = class.is_some_and(|class| class.suffices_without(|fragment| away.contains(&fragment)));
        match (away.is_empty(), readable) {
            (true, _) => None,
            (_, true) => Some(&mut self.sum.reduced),
            (_, false) => Some(&mut self.sum.lost),
        }
    }

    fn add_group(&mut self, pg_id: u64, members: &[Member]) -> Result<()> {
        self.sum.backfilling += members.iter().filter(|m| m.incoming != 0).count() as u64;
        for (from, to) in ranges(members) {
            let away = self.away(members, from);
            let unfilled = members.iter().filter(|m| self.to_backfill(m, from)).count() as u64;
            // All is well: how many chunks there are counts for nothing.
            if away.is_empty() && unfilled == 0 {
                continue;
            }
            for (&class_id, class) in self.classes {
                if class.fragments() as usize != members.len() {
                    continue;
                }
                let chunks = self.committed(pg_id, class_id, (from, to))?;
                self.sum.to_repair += chunks * unfilled;
                self.of(class_id, &away).into_iter().for_each(|n| *n += chunks);
            }
        }
        Ok(())
    }

    /// Whether a backfill must still write this member's fragment of the chunks from `from` on, now or once a disk is found
    /// to take over.
    fn to_backfill(&self, m: &Member, from: u64) -> bool {
        let out = self.node_map.disks.get(&m.disk_id).is_some_and(|d| d.health() == Health::Out);
        let ahead = from > m.fill_cursor && (m.fill_until == 0 || from < m.fill_until);
        (m.incoming == 0 && out) || (m.incoming != 0 && ahead)
    }

    /// Counts chunks with missing rows one by one, and subtracts what the ranges counted for them.
    fn add_missing_rows(&mut self, pg_id: u64, members: &[Member]) -> Result<()> {
        let mut lacking: BTreeMap<(u64, u32), BTreeSet<u32>> = BTreeMap::new();
        let rows: Vec<(u64, u32, u32, bool)> = self.db.all(
            "SELECT f.chunk_id, c.class_id, f.fragment, f.incoming FROM missing_fragments f
             JOIN chunks c ON c.chunk_id = f.chunk_id
             WHERE f.pg_id = ?1 AND c.state = 2",
            args![pg_id],
        )?;
        self.sum.to_repair += rows.len() as u64;
        for (chunk_id, class_id, fragment, _) in rows.into_iter().filter(|(.., incoming)| !incoming) {
            lacking.entry((chunk_id, class_id)).or_default().insert(fragment);
        }
        for ((chunk, class_id), mut fragments) in lacking {
            let away = self.away(members, chunk);
            self.of(class_id, &away).into_iter().for_each(|n| *n -= 1);
            fragments.extend(away);
            self.of(class_id, &fragments).into_iter().for_each(|n| *n += 1);
        }
        Ok(())
    }
}
