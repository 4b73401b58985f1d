//! The one row of counters and totals, kept in memory and written once per group commit.

use crate::db::Db;
use crate::db::sql::{FromRow, TableRow, row};
use crate::error::corrupt_row;
use rusqlite::{Connection, params_from_iter};
use std::sync::LazyLock;

row! {
    /// The manager's counters and totals; see table `meta` in schema.sql. Ids are drawn with [`draw`].
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Meta {
        /// 16 bytes.
        pub cluster_id: [u8; 16],
        /// Grows at each start and restore.
        pub term: u64,
        /// Last applied entry of the command log.
        pub log_seq: u64,
        /// The cluster clock at the last entry.
        pub last_now_ns: i64,
        /// The time of day at the last entry.
        pub last_wall_ns: i64,
        /// Grows with each change of any node, disk, group or class.
        pub map_version: u64,
        /// 1: clients may hold leases after a restart.
        pub leases_granted: u64,
        /// Next inode.
        pub next_ino: u64,
        /// Next version id.
        pub next_version: u64,
        /// Next chunk id.
        pub next_chunk: u64,
        /// Next content id.
        pub next_content: u64,
        /// Next session.
        pub next_session: u64,
        /// Next placement group.
        pub next_pg: u64,
        /// Next node.
        pub next_node: u64,
        /// Next disk.
        pub next_disk: u64,
        /// Next class.
        pub next_class: u64,
        /// Next incarnation of any node.
        pub next_incarnation: u64,
        /// Regular files that have a name.
        pub files: u64,
        /// Directories, the root included.
        pub directories: u64,
        /// Versions kept.
        pub versions: u64,
        /// Sum of their data bytes.
        pub logical_bytes: u64,
        /// Committed chunks.
        pub chunks: u64,
        /// Their bytes.
        pub unique_bytes: u64,
        /// Their fragments' bytes.
        pub stored_bytes: u64,
        /// Bytes of contents that lie in no pack but in the metadata.
        pub inlined_bytes: u64,
    }
}

impl Meta {
    /// Reads the row.
    ///
    /// # Errors
    /// The row is damaged, or SQLite fails.
    pub fn load(conn: &Connection) -> rusqlite::Result<Meta> {
        conn.prepare_cached(&Meta::select("FROM meta WHERE one = 1"))?.query_row([], Meta::of)
    }

    /// Writes the row.
    ///
    /// # Errors
    /// SQLite fails.
    pub fn store(&self, db: &Db) -> rusqlite::Result<()> {
        static UPDATE: LazyLock<String> = LazyLock::new(|| Meta::update("UPDATE meta", 1));
        db.exec(&UPDATE, params_from_iter(self.values()))
    }
}

/// Subtracts `by` from a total. The removed items were counted when they were added.
///
/// # Errors
/// If the stored total is smaller than `by`: the row is damaged.
pub fn uncount(total: &mut u64, by: u64, name: &str) -> rusqlite::Result<()> {
    match total.checked_sub(by) {
        Some(rest) => {
            *total = rest;
            Ok(())
        }
        None => Err(corrupt_row("meta", format!("{name} is {total}, and {by} of them are removed"))),
    }
}

impl Meta {
    /// Checks that the counters have not decreased during a batch.
    pub fn assert_follows(&self, before: &Meta) {
        assert_eq!(self.cluster_id, before.cluster_id, "a database belongs to one cluster");
        assert!(self.term >= before.term, "term {} after {}", self.term, before.term);
        assert!(self.last_now_ns >= before.last_now_ns, "time {} after {}", self.last_now_ns, before.last_now_ns);
        let (wall_ns, before_ns) = (self.last_wall_ns, before.last_wall_ns);
        assert!(wall_ns >= before_ns, "time of day {wall_ns} after {before_ns}");
        assert!(self.map_version >= before.map_version, "map {} after {}", self.map_version, before.map_version);
        assert!(self.leases_granted >= before.leases_granted, "that leases were granted stays known");
        assert!(self.next_ino >= before.next_ino, "inode {} after {}", self.next_ino, before.next_ino);
        assert!(
            self.next_version >= before.next_version,
            "version {} after {}",
            self.next_version,
            before.next_version
        );
        assert!(self.next_chunk >= before.next_chunk, "chunk {} after {}", self.next_chunk, before.next_chunk);
        assert!(
            self.next_content >= before.next_content,
            "content {} after {}",
            self.next_content,
            before.next_content
        );
        assert!(
            self.next_session >= before.next_session,
            "session {} after {}",
            self.next_session,
            before.next_session
        );
        assert!(self.next_pg >= before.next_pg, "group {} after {}", self.next_pg, before.next_pg);
        assert!(self.next_node >= before.next_node, "node {} after {}", self.next_node, before.next_node);
        assert!(self.next_disk >= before.next_disk, "disk {} after {}", self.next_disk, before.next_disk);
        assert!(self.next_class >= before.next_class, "class {} after {}", self.next_class, before.next_class);
        assert!(
            self.next_incarnation >= before.next_incarnation,
            "incarnation {} after {}",
            self.next_incarnation,
            before.next_incarnation
        );
    }
}

/// Draws the next number of a counter: `draw(&mut meta.next_ino)`.
pub fn draw(counter: &mut u64) -> u64 {
    let id = *counter;
    *counter += 1;
    id
}
