//! Digests of what the tables hold, to compare databases that applied the same entries. Indexes, page layout and soft state do not count.
//!
//! A database is read in parts of a bounded size ([`part`]), so that no read transaction is long.

use super::{Db, SCHEMA_VERSION};
use crate::error::corrupt_row;
use rusqlite::types::{Value, ValueRef};
use rusqlite::{Connection, Row, params_from_iter};
use tessera_wire::meta::{KeyColumn, PartDigest, TableDigest, TablePosition};

/// BLAKE3-256 of all tables. Two databases that applied the same entries have the same digest.
///
/// # Errors
/// SQLite fails.
pub fn digest(db: &Db) -> rusqlite::Result<[u8; 32]> {
    let whole = part(db.conn(), &TablePosition::default(), u64::MAX)?;
    let mut hash = blake3::Hasher::new();
    for table in &whole.tables {
        add(&mut hash, b't', table.table.as_bytes());
        hash.update(&table.hash);
    }
    Ok(hash.finalize().into())
}

/// Digests of the tables from a position on: of each, BLAKE3-256 of its rows in order of the primary key, each value with its type and
/// length. The part ends with the row that brings it to `max_bytes` of values. Equal databases have equal parts.
///
/// # Errors
/// SQLite fails, or no primary key has the columns of `from`.
pub fn part(conn: &Connection, from: &TablePosition, max_bytes: u64) -> rusqlite::Result<PartDigest> {
    let tables =
        "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%' AND name >= ?1 ORDER BY name";
    let tables: Vec<String> =
        conn.prepare(tables)?.query_map([&from.table], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
    let mut digest = PartDigest { schema_version: SCHEMA_VERSION as u32, ..PartDigest::default() };
    let mut left_bytes = max_bytes;
    for table in tables {
        let after = if table == from.table { &from.key[..] } else { &[] };
        let mut hash = blake3::Hasher::new();
        let stopped_at = add_rows(conn, &table, after, &mut left_bytes, &mut hash)?;
        digest.tables.push(TableDigest { table: table.clone(), hash: hash.finalize().as_bytes().to_vec() });
        if let Some(key) = stopped_at {
            digest.end = Some(TablePosition { table, key });
            break;
        }
    }
    Ok(digest)
}

/// Adds the rows behind a key. Returns the key of the row with which the bytes are used up, if they do not suffice.
fn add_rows(
    conn: &Connection,
    table: &str,
    after: &[KeyColumn],
    left_bytes: &mut u64,
    hash: &mut blake3::Hasher,
) -> rusqlite::Result<Option<Vec<KeyColumn>>> {
    let key = "SELECT name FROM pragma_table_info(?1) WHERE pk > 0 ORDER BY pk";
    let key: Vec<String> = conn.prepare(key)?.query_map([table], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
    assert!(!key.is_empty(), "table {table} has a primary key");
    let columns = key.join(", ");
    let behind = match after.len() {
        0 => String::new(),
        _ => format!("WHERE ({columns}) > ({})", vec!["?"; after.len()].join(", ")),
    };
    let mut query = conn.prepare(&format!("SELECT * FROM {table} {behind} ORDER BY {columns}"))?;
    let key: Vec<usize> = key.iter().map(|name| query.column_index(name)).collect::<rusqlite::Result<_>>()?;
    let after: Vec<Value> = after.iter().cloned().map(value_of).collect();
    let columns = query.column_count();
    let mut rows = query.query(params_from_iter(after))?;
    while let Some(row) = rows.next()? {
        let bytes = add_row(row, columns, hash)?;
        *left_bytes = left_bytes.saturating_sub(bytes);
        if *left_bytes == 0 {
            return key
                .iter()
                .map(|&column| key_column(table, row.get_ref(column)?))
                .collect::<Result<_, _>>()
                .map(Some);
        }
    }
    Ok(None)
}

/// Returns the bytes of its values.
fn add_row(row: &Row<'_>, columns: usize, hash: &mut blake3::Hasher) -> rusqlite::Result<u64> {
    hash.update(b"r");
    let mut bytes = 0;
    for column in 0..columns {
        bytes += match row.get_ref(column)? {
            ValueRef::Null => add(hash, b'n', &[]),
            ValueRef::Integer(value) => add(hash, b'i', &value.to_le_bytes()),
            ValueRef::Real(value) => add(hash, b'f', &value.to_bits().to_le_bytes()),
            ValueRef::Text(value) => add(hash, b's', value),
            ValueRef::Blob(value) => add(hash, b'b', value),
        };
    }
    Ok(bytes)
}

fn add(hash: &mut blake3::Hasher, kind: u8, bytes: &[u8]) -> u64 {
    hash.update(&[kind]).update(&(bytes.len() as u64).to_le_bytes()).update(bytes);
    bytes.len() as u64
}

fn key_column(table: &str, value: ValueRef<'_>) -> rusqlite::Result<KeyColumn> {
    match value {
        ValueRef::Integer(value) => Ok(KeyColumn { integer: Some(value), ..KeyColumn::default() }),
        ValueRef::Blob(value) => Ok(KeyColumn { blob: Some(value.to_vec()), ..KeyColumn::default() }),
        ValueRef::Text(value) => match std::str::from_utf8(value) {
            Ok(text) => Ok(KeyColumn { text: Some(text.to_string()), ..KeyColumn::default() }),
            Err(why) => Err(corrupt_row(format!("a key of table {table}"), why.to_string())),
        },
        ValueRef::Null | ValueRef::Real(_) => Err(corrupt_row(format!("a key of table {table}"), "it is no key")),
    }
}

fn value_of(column: KeyColumn) -> Value {
    match (column.integer, column.blob, column.text) {
        (Some(integer), ..) => Value::Integer(integer),
        (_, Some(blob), _) => Value::Blob(blob),
        (.., Some(text)) => Value::Text(text),
        _ => Value::Null,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn database() -> Db {
        let db = Db::in_memory([1; 16]).unwrap();
        for at in 0..40i64 {
            db.exec("INSERT INTO dentries (parent, name, ino) VALUES (?1, ?2, ?1)", (at / 10, at.to_le_bytes()))
                .unwrap();
            db.exec("INSERT INTO xattrs (ino, name, value) VALUES (?1, ?2, x'01')", (at / 10, format!("user.{at}")))
                .unwrap();
        }
        db
    }

    fn parts(db: &Db, max_bytes: u64) -> Vec<PartDigest> {
        let (mut parts, mut from) = (Vec::new(), Some(TablePosition::default()));
        while let Some(position) = from {
            let next = part(db.conn(), &position, max_bytes).unwrap();
            from = next.end.clone();
            parts.push(next);
        }
        parts
    }

    /// Each row is in one part, whatever its key consists of.
    #[test]
    fn a_change_of_a_row_changes_one_part() {
        let db = database();
        let before = parts(&db, 64);
        assert!(before.len() > 20, "{} parts", before.len());
        assert_eq!(parts(&database(), 64), before, "equal databases have equal parts");
        for change in [
            "UPDATE dentries SET ino = 99 WHERE parent = 2 AND name = x'1700000000000000'",
            "UPDATE xattrs SET value = x'02' WHERE ino = 3 AND name = 'user.31'",
            "UPDATE inodes SET mode = 1 WHERE ino = 1",
            "UPDATE meta SET files = 7",
        ] {
            let db = database();
            assert_eq!(db.run(change, []).unwrap(), 1);
            let after = parts(&db, 64);
            let differ = before.iter().zip(&after).filter(|(before, after)| before != after).count();
            assert_eq!((after.len(), differ), (before.len(), 1), "{change}");
        }
    }

    #[test]
    fn a_part_is_as_long_as_it_was_asked_to_be() {
        let db = database();
        assert_eq!(parts(&db, u64::MAX).len(), 1);
        let whole = parts(&db, u64::MAX)[0].tables.len();
        let tables: usize = parts(&db, 1).iter().map(|part| part.tables.len()).sum();
        assert!(tables > whole + 80, "{tables} pieces of {whole} tables");
    }
}
