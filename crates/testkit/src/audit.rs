//! Recounts: the values that the stored counts of a manager's database must equal at rest (P4). Dumps, to compare databases.

use rusqlite::{Connection, Result, Row};
use std::collections::BTreeMap;
use std::fmt::Write;
use tessera_accel::hash::chunk_hash;
use tessera_manager::for_each_chunk;
use tessera_stripe::{ClassLayout, describe};

/// All rows of a query, as `read` takes them.
fn all<T>(db: &Connection, sql: &str, read: impl FnMut(&Row<'_>) -> Result<T>) -> Result<Vec<T>> {
    db.prepare(sql)?.query_map([], read)?.collect()
}

/// Compares each stored count with a recount (P4). Each line of the result names one difference; at rest it is empty.
///
/// # Errors
/// The database fails.
pub fn recount(db: &Connection) -> Result<Vec<String>> {
    let mut wrong = refs(db)?;
    wrong.extend(inlined(db)?);
    wrong.extend(totals(db)?);
    wrong.extend(pages_of_versions(db)?);
    wrong.extend(missing(db)?);
    wrong.extend(groups(db)?);
    Ok(wrong)
}

fn groups(db: &Connection) -> Result<Vec<String>> {
    let sql = "SELECT n.pg_id, n.len_bytes, c.spec FROM chunks n JOIN classes c ON c.class_id = n.class_id";
    let chunks: Vec<(i64, i64, String)> = all(db, sql, |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
    let mut counted: BTreeMap<i64, [i64; 3]> = BTreeMap::new();
    for (group, len, spec) in chunks {
        let class = describe(0, spec.parse().expect("a canonical class"));
        let held = |position| class.room_bytes(len as u64, position) as i64;
        let sums = counted.entry(group).or_default().iter_mut();
        sums.zip([len, held(0), held(1)]).for_each(|(sum, bytes)| *sum += bytes);
    }
    let sql = "SELECT pg_id, bytes, first_bytes, other_bytes FROM pgs";
    let groups: Vec<(i64, [i64; 3])> = all(db, sql, |row| Ok((row.get(0)?, [row.get(1)?, row.get(2)?, row.get(3)?])))?;
    let counted = |group| counted.get(&group).copied().unwrap_or_default();
    let wrong = groups.into_iter().filter(|&(group, stored)| stored != counted(group));
    let line = |(group, stored)| format!("group {group}: bytes {stored:?} stored, {:?} counted", counted(group));
    Ok(wrong.map(line).collect())
}

fn refs(db: &Connection) -> Result<Vec<String>> {
    let mut counted: BTreeMap<i64, i64> = BTreeMap::new();
    for table in ["pages", "staged_pages", "dropped_pages"] {
        for extents in all(db, &format!("SELECT extents FROM {table}"), |row| row.get::<_, Vec<u8>>(0))? {
            for_each_chunk(&extents, |chunk| *counted.entry(chunk as i64).or_default() += 1);
        }
    }
    let mut wrong = Vec::new();
    let contents: Vec<(i64, i64, i64, i64, i64)> = all(
        db,
        "SELECT c.content_id, c.refs, c.chunk_id, c.chunk_offset + c.len_bytes, ifnull(n.len_bytes, 0)
         FROM contents c LEFT JOIN chunks n ON n.chunk_id = c.chunk_id",
        |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?)),
    )?;
    for (content, refs, chunk, end, chunk_end) in contents {
        let expected = counted.remove(&content).unwrap_or(0);
        if refs != expected || refs == 0 {
            wrong.push(format!("content {content}: refs {refs}, counted {expected}"));
        }
        if chunk == 0 {
            continue;
        }
        if end > chunk_end {
            wrong.push(format!("content {content}: ends at {end} of chunk {chunk}, which has {chunk_end} bytes"));
        }
        *counted.entry(chunk).or_default() += 1;
    }
    let rows: Vec<(i64, i64, i64)> =
        all(db, "SELECT chunk_id, refs, state FROM chunks", |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
    for (chunk, refs, state) in rows {
        let expected = counted.remove(&chunk).unwrap_or(0);
        if refs != expected {
            wrong.push(format!("chunk {chunk}: refs {refs}, counted {expected}"));
        }
        if refs > 0 && state != 2 {
            wrong.push(format!("chunk {chunk}: referred to, yet pending"));
        }
    }
    wrong.extend(counted.into_keys().map(|chunk| format!("chunk {chunk}: referred to, and has no row")));
    Ok(wrong)
}

/// Contents that lie in the metadata have bytes there, which are what their names say, and no others have.
fn inlined(db: &Connection) -> Result<Vec<String>> {
    let sql = "SELECT content_id, c.chunk_id, c.len_bytes, c.hash, i.bytes FROM contents c FULL JOIN inlined i USING (content_id)
               WHERE c.chunk_id = 0 OR i.bytes IS NOT NULL";
    let look = |row: &Row<'_>| -> Result<(i64, bool)> {
        let (chunk, len_bytes): (Option<i64>, Option<i64>) = (row.get(1)?, row.get(2)?);
        let (hash, bytes): (Option<Vec<u8>>, Option<Vec<u8>>) = (row.get(3)?, row.get(4)?);
        let is_named = bytes.is_some_and(|bytes| {
            Some(bytes.len() as i64) == len_bytes && hash.is_some_and(|hash| chunk_hash(&bytes).0[..] == hash[..])
        });
        Ok((row.get(0)?, chunk == Some(0) && is_named))
    };
    let wrong = all(db, sql, look)?.into_iter().filter(|(_, is_right)| !is_right);
    Ok(wrong.map(|(content, _)| format!("content {content}: its bytes in the metadata are not what it is")).collect())
}

fn totals(db: &Connection) -> Result<Vec<String>> {
    let one = |sql: &str| db.query_row(sql, [], |row| row.get::<_, i64>(0));
    let meta = |column: &str| one(&format!("SELECT {column} FROM meta"));
    let sql = "SELECT n.len_bytes, c.spec FROM chunks n JOIN classes c ON c.class_id = n.class_id WHERE n.state = 2";
    let rows: Vec<(i64, String)> = all(db, sql, |row| Ok((row.get(0)?, row.get(1)?)))?;
    let stored = |(len, spec): (i64, String)| {
        describe(0, spec.parse().expect("a canonical class")).stored_bytes(len as u64) as i64
    };
    let stored = rows.into_iter().map(stored).sum();
    let pairs = [
        ("files", one("SELECT count(*) FROM inodes WHERE kind = 1 AND nlink > 0")?),
        ("directories", one("SELECT count(*) FROM inodes WHERE kind = 2")?),
        ("versions", one("SELECT count(*) FROM versions")?),
        ("logical_bytes", one("SELECT ifnull(sum(data_bytes), 0) FROM versions")?),
        ("chunks", one("SELECT count(*) FROM chunks WHERE state = 2")?),
        ("unique_bytes", one("SELECT ifnull(sum(len_bytes), 0) FROM chunks WHERE state = 2")?),
        ("stored_bytes", stored),
        ("inlined_bytes", one("SELECT ifnull(sum(len_bytes), 0) FROM contents WHERE chunk_id = 0")?),
    ];
    let mut wrong = Vec::new();
    for (name, counted) in pairs {
        let stored = meta(name)?;
        if stored != counted {
            wrong.push(format!("{name}: stored {stored}, counted {counted}"));
        }
    }
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
fn pages_of_versions(db: &Connection) -> Result<Vec<String>> {
    let mut wrong = Vec::new();
    let count = |sql: &str| db.query_row(sql, [], |row| row.get::<_, i64>(0));
    let unneeded = count(
        "SELECT count(*) FROM pages p WHERE NOT EXISTS (SELECT 1 FROM versions v WHERE v.ino = p.ino AND v.number >= p.born
         AND (p.died IS NULL OR v.number < p.died))",
    )?;
    if unneeded > 0 {
        wrong.push(format!("{unneeded} pages belong to no kept version"));
    }
    let overlapping = count(
        "SELECT count(*) FROM pages a JOIN pages b ON a.ino = b.ino AND a.start < b.start AND a.end > b.start
         JOIN versions v ON v.ino = a.ino AND v.number >= max(a.born, b.born)
         AND (a.died IS NULL OR v.number < a.died) AND (b.died IS NULL OR v.number < b.died)",
    )?;
    if overlapping > 0 {
        wrong.push(format!("{overlapping} pairs of pages overlap"));
    }
    Ok(wrong)
}

/// Every missing fragment belongs to a chunk, in that chunk's group.
fn missing(db: &Connection) -> Result<Vec<String>> {
    let lost: Vec<(i64, u32)> = all(
        db,
        "SELECT f.chunk_id, f.fragment FROM missing_fragments f LEFT JOIN chunks c ON c.chunk_id = f.chunk_id
         WHERE c.chunk_id IS NULL OR c.pg_id != f.pg_id",
        |row| Ok((row.get(0)?, row.get(1)?)),
    )?;
    let say = |(chunk, fragment)| {
        format!("missing fragment {fragment} of chunk {chunk}: the chunk is gone or in another group")
    };
    Ok(lost.into_iter().map(say).collect())
}

/// Every row of every table as text, in key order. Databases with equal dumps are equal (P7).
///
/// # Errors
/// The database fails.
pub fn dump(db: &Connection) -> Result<String> {
    let tables: Vec<String> = all(
        db,
        "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY name",
        |row| row.get(0),
    )?;
    let mut out = String::new();
    for name in tables {
        let mut rows = db
            .prepare(&format!("SELECT * FROM {name} ORDER BY 1, 2, 3 LIMIT 1000000"))
            .or_else(|_| db.prepare(&format!("SELECT * FROM {name} ORDER BY 1, 2")))
            .or_else(|_| db.prepare(&format!("SELECT * FROM {name} ORDER BY 1")))?;
        let columns = rows.column_count();
        let mut rows = rows.query([])?;
        while let Some(row) = rows.next()? {
            let _ = write!(out, "{name}");
            for i in 0..columns {
                let _ = write!(out, " {:?}", row.get_ref(i)?);
            }
            out.push('\n');
        }
    }
    Ok(out)
}
