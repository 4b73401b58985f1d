//! Counts the redundancy of the committed chunks.
//!
//! A chunk is *full* when each fragment is on a disk that is up, *reduced* when some are not (lost, down, missing, not yet
//! backfilled), and *lost* when the rest do not suffice to read it. Only groups with an impaired member are counted chunk by
//! chunk.

use crate::db::Db;
use crate::db::cache::all_classes;
use crate::db::rows::{self, DiskRow, Member};
use crate::db::sql::args;
use crate::error::Result;
use std::collections::{BTreeMap, BTreeSet};
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

/// Counts full, reduced and lost chunks among `chunks` committed chunks.
pub fn redundancy(db: &Db, chunks: u64) -> Result<Redundancy> {
    let mut sum = Redundancy::default();
    let disks = rows::disk_map(db)?;
    let troubled: BTreeSet<u64> = db.all("SELECT DISTINCT pg_id FROM missing_fragments", [])?;
    let groups = rows::groups(db, 0)?;
    let classes = all_classes(db)?;
    for (pg_id, members) in &groups {
        let trouble =
            troubled.contains(pg_id) || members.iter().any(|m| m.incoming != 0 || !readable(&disks, m.disk_id));
        if trouble {
            add_group(db, (&disks, &classes), *pg_id, members, &mut sum)?;
        }
    }
    assert!(groups.values().all(|members| !members.is_empty()), "a group has members");
    sum.full = chunks.saturating_sub(sum.reduced + sum.lost);
    Ok(sum)
}

fn readable(disks: &BTreeMap<u64, DiskRow>, disk: u64) -> bool {
    disks.get(&disk).is_some_and(DiskRow::readable)
}

/// Members of a group whose fragment of `chunk` cannot be read now.
fn away(disks: &BTreeMap<u64, DiskRow>, members: &[Member], chunk: u64) -> BTreeSet<u32> {
    members.iter().filter(|m| !readable(disks, m.serving_disk(chunk))).map(|m| m.position).collect()
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

type DisksAndClasses<'a> = (&'a BTreeMap<u64, DiskRow>, &'a BTreeMap<u32, ClassInfo>);

/// The counter for chunks of a class whose fragments `away` cannot be read.
fn count_of<'a>(sum: &'a mut Redundancy, class: Option<&ClassInfo>, away: &BTreeSet<u32>) -> Option<&'a mut u64> {
    let readable = class.is_some_and(|class| class.suffices_without(|fragment| away.contains(&fragment)));
    match (away.is_empty(), readable) {
        (true, _) => None,
        (_, true) => Some(&mut sum.reduced),
        (_, false) => Some(&mut sum.lost),
    }
}

fn add_group(
    db: &Db,
    (disks, classes): DisksAndClasses<'_>,
    pg_id: u64,
    members: &[Member],
    sum: &mut Redundancy,
) -> Result<()> {
    sum.backfilling += members.iter().filter(|m| m.incoming != 0).count() as u64;
    for (from, to) in ranges(members) {
        let away = away(disks, members, from);
        let unfilled = members.iter().filter(|m| to_backfill(disks, m, from)).count() as u64;
        let by_class: Vec<(u32, u64)> = db.all(
            "SELECT class_id, count(*) FROM chunks
             WHERE pg_id = ?1 AND chunk_id >= ?2 AND chunk_id < ?3 AND state = 2 GROUP BY class_id",
            args![pg_id, from, to],
        )?;
        for (class_id, chunks) in by_class {
            sum.to_repair += chunks * unfilled;
            count_of(sum, classes.get(&class_id), &away).into_iter().for_each(|n| *n += chunks);
        }
    }
    add_missing_rows(db, (disks, classes), pg_id, members, sum)
}

/// Whether a backfill must still write this member's fragment of the chunks from `from` on, now or once a disk is found
/// to take over.
fn to_backfill(disks: &BTreeMap<u64, DiskRow>, m: &Member, from: u64) -> bool {
    let out = disks.get(&m.disk_id).is_some_and(|d| d.health() == Health::Out);
    let ahead = from > m.fill_cursor && (m.fill_until == 0 || from < m.fill_until);
    (m.incoming == 0 && out) || (m.incoming != 0 && ahead)
}

/// Counts chunks with missing rows one by one, and subtracts what the ranges counted for them.
fn add_missing_rows(
    db: &Db,
    (disks, classes): DisksAndClasses<'_>,
    pg_id: u64,
    members: &[Member],
    sum: &mut Redundancy,
) -> Result<()> {
    let mut lacking: BTreeMap<(u64, u32), BTreeSet<u32>> = BTreeMap::new();
    let rows: Vec<(u64, u32, u32, bool)> = db.all(
        "SELECT f.chunk_id, c.class_id, f.fragment, f.incoming FROM missing_fragments f
         JOIN chunks c ON c.chunk_id = f.chunk_id
         WHERE f.pg_id = ?1 AND c.state = 2",
        args![pg_id],
    )?;
    sum.to_repair += rows.len() as u64;
    for (chunk_id, class_id, fragment, _) in rows.into_iter().filter(|(.., incoming)| !incoming) {
        lacking.entry((chunk_id, class_id)).or_default().insert(fragment);
    }
    for ((chunk, class_id), mut fragments) in lacking {
        let (class, away) = (classes.get(&class_id), away(disks, members, chunk));
        count_of(sum, class, &away).into_iter().for_each(|n| *n -= 1);
        fragments.extend(away);
        count_of(sum, class, &fragments).into_iter().for_each(|n| *n += 1);
    }
    Ok(())
}
