//! What the manager's database says, and whether it agrees with the disks.

use crate::{CLUSTER_ID, Cluster, Stored, dump};
use bytes::Bytes;
use prost::Message;
use std::collections::{BTreeMap, BTreeSet};
use tessera_manager::db::Db;
use tessera_manager::db::cache::all_classes;
use tessera_manager::db::rows::{self, Member};
use tessera_manager::replay_all;
use tessera_stripe::ClassLayout;
use tessera_wire::ClassInfo;
use tessera_wire::meta::{Commit, CommitReply, CompleteFragments};

/// A chunk that the manager has a row for.
#[derive(Debug, Clone, PartialEq)]
pub struct Chunk {
    /// Id.
    pub chunk_id: u64,
    /// BLAKE3 of its bytes; empty while it is preallocated.
    pub hash: Bytes,
    /// Its length.
    pub len_bytes: u64,
    /// Its class.
    pub class_id: u32,
    /// Its group.
    pub pg_id: u64,
    /// A version names it.
    pub committed: bool,
    /// Fragments that the manager knows to be missing for readers.
    pub missing: Vec<u32>,
}

impl Cluster {
    /// All chunks, by id; pending, preallocated and garbage ones too.
    pub fn chunks(&self) -> Vec<Chunk> {
        self.select("?1 = 0", 0)
    }

    /// The chunks that versions name, by id.
    pub fn committed(&self) -> Vec<Chunk> {
        self.select("?1 = 0 AND state = 2 AND refs > 0", 0)
    }

    /// A chunk.
    pub fn chunk(&self, chunk_id: u64) -> Option<Chunk> {
        self.select("chunk_id = ?1", chunk_id).pop()
    }

    fn select(&self, filter: &str, value: u64) -> Vec<Chunk> {
        let sql = format!(
            "SELECT chunk_id, hash, len_bytes, class_id, pg_id, state = 2 AND refs > 0,
             (SELECT group_concat(fragment) FROM missing_fragments f WHERE f.chunk_id = c.chunk_id AND incoming = 0)
             FROM chunks c WHERE {filter} ORDER BY chunk_id"
        );
        let mut query = self.db().conn().prepare_cached(&sql).expect("the schema is ours");
        let missing =
            |text: Option<String>| text.unwrap_or_default().split(',').filter_map(|n| n.parse().ok()).collect();
        let chunk = |r: &rusqlite::Row<'_>| {
            Ok(Chunk {
                chunk_id: r.get::<_, i64>(0)? as u64,
                hash: r.get::<_, Vec<u8>>(1)?.into(),
                len_bytes: r.get::<_, i64>(2)? as u64,
                class_id: r.get(3)?,
                pg_id: r.get::<_, i64>(4)? as u64,
                committed: r.get(5)?,
                missing: missing(r.get(6)?),
            })
        };
        query.query_map([value as i64], chunk).and_then(Iterator::collect).expect("the schema is ours")
    }

    /// Inode and encoded extents of each page, by inode and offset.
    pub fn pages(&self) -> Vec<(i64, Vec<u8>)> {
        let sql = "SELECT ino, extents FROM pages ORDER BY ino, start";
        let mut query = self.db().conn().prepare_cached(sql).expect("the schema is ours");
        let row = |r: &rusqlite::Row<'_>| Ok((r.get(0)?, r.get(1)?));
        query.query_map([], row).and_then(Iterator::collect).expect("the schema is ours")
    }

    /// Damages the database: the pages of an inode get these extents.
    pub fn damage_pages(&self, ino: i64, extents: &[u8]) {
        let sql = "UPDATE pages SET extents = ?2 WHERE ino = ?1";
        self.db().conn().execute(sql, rusqlite::params![ino, extents]).expect("the schema is ours");
    }

    /// Damages the database: a chunk gets this name.
    pub fn damage_name(&self, chunk_id: u64, hash: &[u8]) {
        let sql = "UPDATE chunks SET hash = ?2 WHERE chunk_id = ?1";
        self.db().conn().execute(sql, rusqlite::params![chunk_id as i64, hash]).expect("the schema is ours");
    }

    /// The classes, by id.
    pub fn classes(&self) -> BTreeMap<u32, ClassInfo> {
        all_classes(self.db()).expect("the schema is ours")
    }

    /// Members of all groups.
    pub fn members(&self) -> Vec<Member> {
        self.groups().into_values().flatten().collect()
    }

    /// Members of a group, by position.
    pub fn members_of(&self, pg_id: u64) -> Vec<Member> {
        rows::members(self.db(), pg_id).expect("the schema is ours")
    }

    /// The epoch of a group.
    pub fn epoch(&self, pg_id: u64) -> u64 {
        let sql = "SELECT epoch FROM pgs WHERE pg_id = ?1";
        let epoch = self.db().conn().query_row(sql, [pg_id as i64], |row| row.get::<_, i64>(0));
        epoch.expect("a known group") as u64
    }

    fn groups(&self) -> BTreeMap<u64, Vec<Member>> {
        rows::groups(self.db(), 0).expect("the schema is ours")
    }

    /// A fragment of a chunk on the disk that takes its puts, to inspect or damage.
    pub fn fragment(&mut self, chunk_id: u64, number: u32) -> Option<&mut Stored> {
        let disk_id = self.members_of(self.chunk(chunk_id)?.pg_id).get(number as usize)?.put_disk();
        self.disks.get_mut(&disk_id)?.held.get_mut(&(chunk_id, number))
    }

    /// Checks that every committed chunk has all its fragments ([`Cluster::check_stored`]).
    pub fn check_all_stored(&self) {
        self.committed().iter().for_each(|chunk| self.check_stored(chunk));
    }

    /// Checks that a chunk has all its fragments on the disks that take its puts, with the right bytes.
    pub fn check_stored(&self, chunk: &Chunk) {
        let id = chunk.chunk_id;
        for m in self.members_of(chunk.pg_id) {
            let stored = self.disks[&m.put_disk()].held.get(&(id, m.position));
            let stored = stored.unwrap_or_else(|| panic!("chunk {id} lacks fragment {}", m.position));
            assert!(stored.is_sound(), "chunk {id}: fragment {} is corrupt", m.position);
        }
    }

    /// Checks that the fragments that a commit acknowledges exist, if the manager accepted it.
    pub(crate) fn check_commit(&self, request: &[u8], reply: &[u8]) {
        let request = Commit::decode(request).expect("an encoded request");
        if !CommitReply::decode(reply).expect("an encoded reply").stale.is_empty() {
            return;
        }
        for ack in &request.acks {
            let members = self.chunk(ack.chunk_id).map(|chunk| self.members_of(chunk.pg_id));
            for m in members.into_iter().flatten().filter(|m| !ack.missing.contains(&m.position)) {
                let key = (ack.chunk_id, m.position);
                let holds = |disk_id| self.disks.get(&disk_id).is_some_and(|disk| disk.held.contains_key(&key));
                assert!(
                    holds(m.disk_id) || holds(m.incoming),
                    "(chunk, fragment) {key:?} was acknowledged and is not there"
                );
            }
        }
    }

    /// Checks that fragments reported as put in place were missing, and are there.
    pub(crate) fn check_completed(&self, request: &CompleteFragments) {
        for f in &request.fragments {
            let chunk = self.chunk(f.chunk_id);
            assert!(chunk.is_some_and(|chunk| chunk.missing.contains(&f.fragment)), "{f:?} was not missing");
            assert!(self.disks[&f.disk_id].held.contains_key(&(f.chunk_id, f.fragment)), "{f:?} is not there");
        }
    }

    /// Forgets which fragments were readable: the test did damage on purpose.
    pub fn damaged(&mut self) {
        self.reachable.clear();
    }

    /// Number of fragments of a chunk that a reader finds through the map, on a disk that serves the member.
    fn within_reach(&self, chunk_id: u64, members: &[Member]) -> usize {
        let found = |m: &&Member| [m.disk_id, m.incoming].iter().any(|d| self.serves(*d, (chunk_id, m.position)));
        members.iter().filter(found).count()
    }

    /// Checks that the manager never lowers redundancy and that a group's disks are on distinct hosts (P6).
    pub fn check(&mut self) {
        let groups = self.groups();
        let count = |chunk: Chunk| (chunk.chunk_id, self.within_reach(chunk.chunk_id, &groups[&chunk.pg_id]));
        let now: BTreeMap<u64, usize> = self.committed().into_iter().map(count).collect();
        for (chunk, before) in &self.reachable {
            if let Some(after) = now.get(chunk) {
                assert!(after >= before, "chunk {chunk}: {before} fragments were within reach, now {after} (P6)");
            }
        }
        self.reachable = now;
        let disks = rows::disks(self.db()).expect("the schema is ours");
        let host: BTreeMap<u64, &str> = disks.iter().map(|d| (d.disk_id, d.host.as_str())).collect();
        for (pg, members) in groups {
            let mut hosts: Vec<(&str, u32)> = Vec::new();
            for m in &members {
                hosts.extend([m.disk_id, m.incoming].iter().filter(|d| **d != 0).map(|d| (host[d], m.position)));
            }
            let distinct: BTreeSet<_> = hosts.iter().map(|h| h.0).collect();
            // A member and its incoming disk may share one.
            assert!(distinct.len() >= members.len(), "group {pg} shares a host between members: {hosts:?} (P6)");
        }
    }

    /// Whether every chunk has all its fragments on its group's disks, and no backfill runs.
    pub fn is_whole(&self) -> bool {
        let (groups, classes) = (self.groups(), self.classes());
        let is_full = |chunk: &Chunk| {
            let there = |m: &&Member| self.serves(m.disk_id, (chunk.chunk_id, m.position));
            groups[&chunk.pg_id].iter().filter(there).count() == classes[&chunk.class_id].fragments() as usize
        };
        groups.values().flatten().all(|m| m.incoming == 0) && self.committed().iter().all(is_full)
    }

    /// Checks that replaying the log on an empty database gives this database (P7).
    pub fn check_replay(&self) {
        let db = Db::in_memory(CLUSTER_ID).expect("a database");
        replay_all(&db, &self.log).expect("the log can be replayed");
        let (ours, theirs) = (dump(self.db().conn()).expect("a dump"), dump(db.conn()).expect("a dump"));
        for (a, b) in ours.lines().zip(theirs.lines()) {
            assert_eq!(a, b, "replaying the log gave another row");
        }
        assert_eq!(ours.len(), theirs.len());
    }
}
