//! A digest of what the tables hold, to compare two databases that applied the same entries.

use super::Db;
use rusqlite::types::ValueRef;

/// BLAKE3-256 of all tables: by name, their rows in order of the primary key, each value with its type and
/// length. Two databases that applied the same entries have the same digest; indexes, page layout and soft state do not count.
///
/// # Errors
/// SQLite fails.
pub fn digest(db: &Db) -> rusqlite::Result<[u8; 32]> {
    let tables = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY name";
    let tables: Vec<String> = db.all(tables, [])?;
    let mut hash = blake3::Hasher::new();
    tables.iter().try_for_each(|table| add_table(db, table, &mut hash))?;
    Ok(hash.finalize().into())
}

fn add_table(db: &Db, table: &str, hash: &mut blake3::Hasher) -> rusqlite::Result<()> {
    let key: Vec<String> = db.all("SELECT name FROM pragma_table_info(?1) WHERE pk > 0 ORDER BY pk", [table])?;
    assert!(!key.is_empty(), "table {table} has a primary key");
    add(hash, b't', table.as_bytes());
    let mut query = db.conn().prepare(&format!("SELECT * FROM {table} ORDER BY {}", key.join(", ")))?;
    let columns = query.column_count();
    let mut rows = query.query([])?;
    while let Some(row) = rows.next()? {
        hash.update(b"r");
        for column in 0..columns {
            match row.get_ref(column)? {
                ValueRef::Null => _ = hash.update(b"n"),
                ValueRef::Integer(value) => _ = hash.update(b"i").update(&value.to_le_bytes()),
                ValueRef::Real(value) => _ = hash.update(b"f").update(&value.to_bits().to_le_bytes()),
                ValueRef::Text(value) => add(hash, b's', value),
                ValueRef::Blob(value) => add(hash, b'b', value),
            }
        }
    }
    Ok(())
}

fn add(hash: &mut blake3::Hasher, kind: u8, bytes: &[u8]) {
    hash.update(&[kind]).update(&(bytes.len() as u64).to_le_bytes()).update(bytes);
}
