//! Counts the redundancy of the committed chunks.
//!
//! A chunk is *full* when each fragment is on a disk that is up, *reduced* when some are not (lost, down, missing, not yet
//! backfilled), and *lost* when the rest do not suffice to read it. Only groups with an impaired member are counted chunk by
//! chunk.

use crate::db::cache::all_classes;
use crate::db::rows::{self, DiskRow, Member, unsigned};
use crate::error::Result;
use rusqlite::{Connection, params};
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
    pub filling: u64,
}

/// Counts full, reduced and lost chunks among `chunks` committed chunks.
pub fn redundancy(conn: &Connection, chunks: u64) -> Result<Redundancy> {
    let mut sum = Redundancy::default();
    let disks: BTreeMap<u64, DiskRow> = rows::disks(conn)?.into_iter().map(|d| (d.disk_id, d)).collect();
    let troubled: BTreeSet<u64> = conn
        .prepare_cached("SELECT DISTINCT pg_id FROM missing_fragments")?
        .query_map([], |row| unsigned(row, 0))?
        .collect::<Result<_, _>>()?;
    let mut groups: BTreeMap<u64, Vec<Member>> = BTreeMap::new();
    for m in rows::all_members(conn, 0)? {
        groups.entry(m.pg_id).or_default().push(m);
    }
    let classes = all_classes(conn)?;
    for (pg_id, members) in &groups {
        let trouble =
            troubled.contains(pg_id) || members.iter().any(|m| m.incoming != 0 || !readable(&disks, m.disk_id));
        if trouble {
            add_group(conn, (&disks, &classes), *pg_id, members, &mut sum)?;
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
fn stand<'a>(sum: &'a mut Redundancy, class: Option<&ClassInfo>, away: &BTreeSet<u32>) -> Option<&'a mut u64> {
    let readable = class.is_some_and(|class| class.suffices_without(|fragment| away.contains(&fragment)));
    match (away.is_empty(), readable) {
        (true, _) => None,
        (_, true) => Some(&mut sum.reduced),
        (_, false) => Some(&mut sum.lost),
    }
}

fn add_group(
    conn: &Connection,
    (disks, classes): DisksAndClasses<'_>,
    pg_id: u64,
    members: &[Member],
    sum: &mut Redundancy,
) -> Result<()> {
    sum.filling += members.iter().filter(|m| m.incoming != 0).count() as u64;
    for (from, to) in ranges(members) {
        let away = away(disks, members, from);
        let unfilled = members.iter().filter(|m| to_backfill(disks, m, from)).count() as u64;
        let mut by_class = conn.prepare_cached(
            "SELECT class_id, count(*) FROM chunks
             WHERE pg_id = ?1 AND chunk_id >= ?2 AND chunk_id < ?3 AND state = 2 GROUP BY class_id",
        )?;
        let mut rows = by_class.query(params![pg_id as i64, from as i64, to as i64])?;
        while let Some(row) = rows.next()? {
            let (class_id, chunks) = (row.get(0)?, unsigned(row, 1)?);
            sum.to_repair += chunks * unfilled;
            stand(sum, classes.get(&class_id), &away).into_iter().for_each(|n| *n += chunks);
        }
    }
    add_missing_rows(conn, (disks, classes), pg_id, members, sum)
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
    conn: &Connection,
    (disks, classes): DisksAndClasses<'_>,
    pg_id: u64,
    members: &[Member],
    sum: &mut Redundancy,
) -> Result<()> {
    let mut lacking: BTreeMap<(u64, u32), BTreeSet<u32>> = BTreeMap::new();
    let mut query = conn.prepare_cached(
        "SELECT f.chunk_id, c.class_id, f.fragment, f.incoming FROM missing_fragments f
         JOIN chunks c ON c.chunk_id = f.chunk_id
         WHERE f.pg_id = ?1 AND c.state = 2",
    )?;
    let mut rows = query.query([pg_id as i64])?;
    while let Some(row) = rows.next()? {
        sum.to_repair += 1;
        if row.get::<_, i32>(3)? == 0 {
            lacking.entry((unsigned(row, 0)?, row.get(1)?)).or_default().insert(row.get(2)?);
        }
    }
    for ((chunk, class_id), mut fragments) in lacking {
        let (class, away) = (classes.get(&class_id), away(disks, members, chunk));
        stand(sum, class, &away).into_iter().for_each(|n| *n -= 1);
        fragments.extend(away);
        stand(sum, class, &fragments).into_iter().for_each(|n| *n += 1);
    }
    Ok(())
}
