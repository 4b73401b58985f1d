//! The schema: its version, and a look at every table.

use super::{DbError, SCHEMA_VERSION};
use rusqlite::Connection;

/// "TSRA": marks a Tessera database (PRAGMA application_id).
pub(super) const APPLICATION_ID: i64 = 0x5453_5241;

/// The schema version; rejects foreign databases and newer versions.
pub(super) fn check_schema(conn: &Connection, path: &str) -> Result<i64, DbError> {
    let pragma = |name: &str| {
        conn.pragma_query_value(None, name, |row| row.get::<_, i64>(0)).map_err(|source| {
            match source.sqlite_error_code() {
                Some(rusqlite::ErrorCode::NotADatabase) => DbError::NotManagerDb(path.to_string()),
                _ => DbError::Sqlite { path: path.to_string(), source },
            }
        })
    };
    let got = pragma("user_version")?;
    if pragma("application_id")? != APPLICATION_ID || got < 1 {
        return Err(DbError::NotManagerDb(path.to_string()));
    }
    match got > SCHEMA_VERSION {
        true => Err(DbError::LaterSchema { path: path.to_string(), got }),
        false => Ok(got),
    }
}

/// Reads the first row of every table, with the pages on the way to it.
pub(super) fn look_at_tables(conn: &Connection) -> rusqlite::Result<()> {
    let mut names = conn.prepare("SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")?;
    let names: Vec<String> = names.query_map([], |row| row.get(0))?.collect::<Result<_, _>>()?;
    names.iter().try_for_each(|name| conn.prepare(&format!("SELECT * FROM {name} LIMIT 1"))?.exists([]).map(|_| ()))
}
