//! Recounts: the values that the stored counts must equal at rest (P4). For tests, the simulator and `tessera` doctors.

use crate::db::Db;
use crate::db::cache::all_classes;
use crate::db::pages;
use std::collections::BTreeMap;
use tessera_stripe::ClassLayout;

/// Compares each stored count with a recount (P4). Each line of the result names one difference; at rest it is empty.
///
/// # Errors
/// The database fails.
pub fn recount(db: &Db) -> rusqlite::Result<Vec<String>> {
    let mut wrong = refs(db)?;
    wrong.extend(totals(db)?);
    wrong.extend(pages_of_versions(db)?);
    wrong.extend(missing(db)?);
    Ok(wrong)
}

fn refs(db: &Db) -> rusqlite::Result<Vec<String>> {
    let mut counted: BTreeMap<u64, i64> = BTreeMap::new();
    for table in ["pages", "staged_pages", "dropped_pages"] {
        for extents in db.all::<Vec<u8>, Vec<_>>(&format!("SELECT extents FROM {table}"), [])? {
            pages::for_each_chunk(&extents, |chunk| *counted.entry(chunk).or_default() += 1);
        }
    }
    let mut wrong = Vec::new();
    let rows: Vec<(u64, i64, i64)> = db.all("SELECT chunk_id, refs, state FROM chunks", [])?;
    for (chunk, refs, state) in rows {
        let expected = counted.remove(&chunk).unwrap_or(0);
        if refs != expected {
            wrong.push(format!("chunk {chunk}: refs {refs}, counted {expected}"));
        }
        if refs > 0 && state != crate::chunks::table::COMMITTED {
            wrong.push(format!("chunk {chunk}: referred to, yet pending"));
        }
    }
    wrong.extend(counted.into_keys().map(|chunk| format!("chunk {chunk}: referred to, and has no row")));
    Ok(wrong)
}

fn totals(db: &Db) -> rusqlite::Result<Vec<String>> {
    let meta = db.meta()?;
    let one = |sql: &str| db.one::<u64>(sql, []);
    let classes = all_classes(db)?;
    let rows: Vec<(u64, u32)> = db.all("SELECT len_bytes, class_id FROM chunks WHERE state = 2", [])?;
    let stored = |(len, class): (u64, u32)| classes.get(&class).map_or(0, |class| class.stored_bytes(len));
    let stored = rows.into_iter().map(stored).sum();
    let pairs = [
        ("files", meta.files, one("SELECT count(*) FROM inodes WHERE kind = 1 AND nlink > 0")?),
        ("directories", meta.directories, one("SELECT count(*) FROM inodes WHERE kind = 2")?),
        ("versions", meta.versions, one("SELECT count(*) FROM versions")?),
        ("logical_bytes", meta.logical_bytes, one("SELECT ifnull(sum(data_bytes), 0) FROM versions")?),
        ("chunks", meta.chunks, one("SELECT count(*) FROM chunks WHERE state = 2")?),
        ("unique_bytes", meta.unique_bytes, one("SELECT ifnull(sum(len_bytes), 0) FROM chunks WHERE state = 2")?),
        ("stored_bytes", meta.stored_bytes, stored),
    ];
    let wrong = pairs.into_iter().filter(|(_, stored, counted)| stored != counted);
    let mut wrong: Vec<String> =
        wrong.map(|(name, stored, counted)| format!("{name}: stored {stored}, counted {counted}")).collect();
    let links = one(
        "SELECT count(*) FROM inodes i WHERE kind != 2 AND nlink != (SELECT count(*) FROM dentries d WHERE d.ino = i.ino)",
    )?;
    let parents = one("SELECT count(*) FROM inodes i WHERE kind = 2
         AND nlink != 2 + (SELECT count(*) FROM inodes d WHERE d.parent = i.ino AND d.kind = 2 AND d.ino != i.ino)")?;
    let nameless =
        one("SELECT count(*) FROM dentries d WHERE NOT EXISTS (SELECT 1 FROM inodes i WHERE i.ino = d.ino)")?;
    if links + parents + nameless > 0 {
        wrong.push(format!(
            "{links} inodes with a wrong count of names, {parents} directories with one of subdirectories, {nameless} names of nothing"
        ));
    }
    Ok(wrong)
}

/// Every page belongs to a kept version, and the pages of a version do not overlap.
fn pages_of_versions(db: &Db) -> rusqlite::Result<Vec<String>> {
    let mut wrong = Vec::new();
    let unneeded: u64 = db.one(
        "SELECT count(*) FROM pages p WHERE NOT EXISTS (SELECT 1 FROM versions v WHERE v.ino = p.ino AND v.number >= p.born
         AND (p.died IS NULL OR v.number < p.died))",
        [],
    )?;
    if unneeded > 0 {
        wrong.push(format!("{unneeded} pages belong to no kept version"));
    }
    let overlapping: u64 = db.one(
        "SELECT count(*) FROM pages a JOIN pages b ON a.ino = b.ino AND a.start < b.start AND a.end > b.start
         JOIN versions v ON v.ino = a.ino AND v.number >= max(a.born, b.born)
         AND (a.died IS NULL OR v.number < a.died) AND (b.died IS NULL OR v.number < b.died)",
        [],
    )?;
    if overlapping > 0 {
        wrong.push(format!("{overlapping} pairs of pages overlap"));
    }
    Ok(wrong)
}

/// Every missing fragment belongs to a chunk, in that chunk's group.
fn missing(db: &Db) -> rusqlite::Result<Vec<String>> {
    let lost: Vec<(u64, u32)> = db.all(
        "SELECT f.chunk_id, f.fragment FROM missing_fragments f LEFT JOIN chunks c ON c.chunk_id = f.chunk_id
         WHERE c.chunk_id IS NULL OR c.pg_id != f.pg_id",
        [],
    )?;
    let say = |(chunk, fragment)| {
        format!("missing fragment {fragment} of chunk {chunk}: the chunk is gone or in another group")
    };
    Ok(lost.into_iter().map(say).collect())
}
