//! The one row of counters and totals, kept in memory and written once per group commit.

use rusqlite::Connection;

macro_rules! meta {
    ($($(#[$doc:meta])* $name:ident: $type:ty,)*) => {
        /// The manager's counters and totals; see table `meta` in schema.sql. Ids are drawn with [`draw`].
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub struct Meta {
            /// 16 bytes.
            pub cluster_id: [u8; 16],
            $($(#[$doc])* pub $name: $type,)*
        }

        const SELECT: &str = concat!("SELECT cluster_id" $(, ", ", stringify!($name))*, " FROM meta WHERE one = 1");
        const UPDATE: &str = concat!("UPDATE meta SET one = 1" $(, ", ", stringify!($name), " = ?")*, " WHERE one = 1");

        impl Meta {
            /// Reads the row.
            pub fn load(conn: &Connection) -> rusqlite::Result<Meta> {
                conn.prepare_cached(SELECT)?.query_row([], |row| {
                    Ok(Meta { cluster_id: row.get("cluster_id")?, $($name: row.get::<_, i64>(stringify!($name))? as $type,)* })
                })
            }

            /// Writes it back.
            pub fn store(&self, conn: &Connection) -> rusqlite::Result<()> {
                conn.prepare_cached(UPDATE)?.execute(rusqlite::params![$(self.$name as i64,)*])?;
                Ok(())
            }
        }
    };
}

meta! {
    /// Grows at each start and restore.
    term: u64,
    /// Last entry of the command log that is applied.
    log_seq: u64,
    /// Time of the last entry.
    last_now_ns: i64,
    /// Grows with each change of any node, disk, group or class.
    map_version: u64,
    /// 1: clients may hold leases after a restart.
    leases_granted: u64,
    /// Next inode.
    next_ino: u64,
    /// Next version id.
    next_version: u64,
    /// Next chunk id.
    next_chunk: u64,
    /// Next session.
    next_session: u64,
    /// Next placement group.
    next_pg: u64,
    /// Next node.
    next_node: u64,
    /// Next disk.
    next_disk: u64,
    /// Next class.
    next_class: u64,
    /// Next life of any node.
    next_incarnation: u64,
    /// Regular files that have a name.
    files: u64,
    /// Directories, the root included.
    directories: u64,
    /// Versions kept.
    versions: u64,
    /// Sum of their data bytes.
    logical_bytes: u64,
    /// Committed chunks.
    chunks: u64,
    /// Their bytes.
    unique_bytes: u64,
    /// Their fragments' bytes.
    stored_bytes: u64,
}

/// Draws the next number of a counter: `draw(&mut meta.next_ino)`.
pub fn draw(counter: &mut u64) -> u64 {
    let id = *counter;
    *counter += 1;
    id
}
