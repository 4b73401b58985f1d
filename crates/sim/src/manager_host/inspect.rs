//! What the simulator reads from a manager: its database, and its status as the leader sees it.

use super::ManagerHost;
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use tessera_manager::db::rows;
use tessera_manager::db::{Db, digest};
use tessera_wire::meta::{ClusterStatus, Drain, FIRST_CONTENT, GetStatus, Maintain, MaintainReply, MaintenanceJob};
use tessera_wire::{ClassInfo, Health, NodeInfo, Role};

/// A committed chunk and where its fragments should be.
#[derive(Debug, Clone)]
pub struct Placed {
    /// Id.
    pub chunk_id: u64,
    /// Its class: which fragments suffice to read it.
    pub class: Rc<ClassInfo>,
    /// (fragment, node), `None` if no node is known to serve it.
    pub fragments: Vec<(u32, Option<usize>)>,
}

fn given_up(status: &ClusterStatus, lost: &[String]) -> bool {
    status.nodes.iter().all(|n: &NodeInfo| n.health() == Health::Out || !lost.contains(&n.name))
}

impl ManagerHost {
    /// Whether this manager serves.
    #[must_use]
    pub fn leads(&self) -> bool {
        self.manager.as_ref().is_some_and(|manager| manager.core().is_some())
    }

    /// The database of a manager that leads.
    fn led(&self) -> Option<&Db> {
        self.manager.as_ref().filter(|manager| manager.core().is_some())?.db()
    }

    /// The last entry that the database holds, and the digest of what it holds.
    #[must_use]
    pub fn digest(&self) -> Option<(u64, [u8; 32])> {
        let manager = self.manager.as_ref()?;
        let at = manager.applied()?;
        Some((at, digest(manager.db()?).expect("the schema is fixed")))
    }

    /// A fault changes a row of the database, in which clients see no difference. False: it is not at rest.
    pub fn harm_metadata(&self) -> bool {
        let Some(manager) = self.manager.as_ref().filter(|manager| manager.applied().is_some()) else { return false };
        let harm = |db: &Db| db.conn().execute("UPDATE inodes SET uid = uid + 1 WHERE ino = 1", []);
        manager.db().is_some_and(|db| harm(db).is_ok())
    }

    /// Every committed chunk, and the nodes that should hold its fragments now.
    pub fn placed(&self) -> Vec<Placed> {
        let Some(db) = self.led() else { return Vec::new() };
        let hosts: BTreeMap<u64, usize> = rows::disks(db)
            .expect("the schema is fixed")
            .iter()
            .filter_map(|disk| Some((disk.disk_id, disk.host.strip_prefix('n')?.parse().ok()?)))
            .collect();
        let classes = tessera_manager::db::cache::all_classes(db).expect("the schema is fixed");
        let classes: BTreeMap<u32, Rc<ClassInfo>> =
            classes.into_iter().map(|(id, class)| (id, Rc::new(class))).collect();
        let sql = "SELECT chunk_id, pg_id, class_id FROM chunks WHERE state = 2 ORDER BY 1";
        let mut statement = db.conn().prepare_cached(sql).expect("the schema is fixed");
        let row = |r: &rusqlite::Row<'_>| Ok((r.get::<_, i64>(0)? as u64, r.get::<_, i64>(1)? as u64, r.get(2)?));
        let chunks = statement.query_map([], row).expect("the schema is fixed");
        let mut groups: BTreeMap<u64, Vec<rows::Member>> = BTreeMap::new();
        let place = |(chunk_id, pg_id, class_id): (u64, u64, u32)| {
            let members = groups.entry(pg_id).or_insert_with(|| rows::members(db, pg_id).expect("the schema is fixed"));
            let at = |m: &rows::Member| (m.position, hosts.get(&m.serving_disk(chunk_id)).copied());
            Placed { chunk_id, class: classes[&class_id].clone(), fragments: members.iter().map(at).collect() }
        };
        chunks.map(|row| row.expect("the schema is fixed")).map(place).collect()
    }

    /// The manager's view of a chunk's fragments, for messages.
    pub fn describe_chunk(&self, chunk_id: u64) -> String {
        let Some(db) = self.led() else { return String::new() };
        let sql = "SELECT fragment || iif(incoming, ' (incoming)', '') || ' for cause ' || cause FROM missing_fragments
                   WHERE chunk_id = ?1";
        let mut statement = db.conn().prepare_cached(sql).expect("the schema is fixed");
        let missing = statement.query_map([chunk_id as i64], |r| r.get::<_, String>(0)).expect("the schema is fixed");
        let missing: Vec<String> = missing.map(|row| row.expect("the schema is fixed")).collect();
        let sql = "SELECT pg_id FROM chunks WHERE chunk_id = ?1";
        let pg: i64 = db.conn().query_row(sql, [chunk_id as i64], |r| r.get(0)).expect("the chunk is committed");
        let members = rows::members(db, pg as u64).expect("the schema is fixed");
        format!("chunk {chunk_id} lacks {missing:?} in group {pg} of {members:?}")
    }

    /// Chunks of the current version of a file in the root directory.
    pub fn chunks_of(&self, name: &str) -> BTreeSet<u64> {
        let mut chunks = BTreeSet::new();
        let Some(db) = self.led() else { return chunks };
        let sql = "SELECT p.extents FROM dentries d JOIN pages p ON p.ino = d.ino
                   WHERE d.parent = 1 AND d.name = ?1 AND p.died IS NULL";
        let mut statement = db.conn().prepare_cached(sql).expect("the schema is fixed");
        let pages = statement.query_map([name.as_bytes()], |r| r.get::<_, Vec<u8>>(0)).expect("the schema is fixed");
        for page in pages {
            tessera_manager::for_each_chunk(&page.expect("the schema is fixed"), |id| {
                let sql = "SELECT chunk_id FROM contents WHERE content_id = ?1";
                let pack = |sql: &str| db.conn().query_row(sql, [id as i64], |row| row.get::<_, i64>(0));
                chunks.insert(if id < FIRST_CONTENT { id } else { pack(sql).expect("a content has a row") as u64 });
            });
        }
        chunks
    }

    /// The database, if a manager runs on it.
    pub fn db(&self) -> Option<&Db> {
        self.manager.as_ref()?.db()
    }

    /// A gauge of the running manager.
    pub fn gauge(&self, name: &str) -> Option<u64> {
        let gauges = self.manager.as_ref()?.metrics().gauges;
        gauges.into_iter().find(|(known, _)| *known == name).map(|(_, value)| value)
    }

    /// Whether the manager knows that the `lost` nodes are gone, every chunk has all its fragments, and nothing is
    /// being rebuilt or moved.
    pub fn is_whole(&mut self, lost: &[String]) -> bool {
        let at_rest = |s: &ClusterStatus| s.members_backfilling == 0 && s.fragments_to_repair == 0;
        let whole = |s: ClusterStatus| s.chunks_full == s.chunks && at_rest(&s) && given_up(&s, lost);
        self.status().is_some_and(whole)
    }

    /// Whether the manager knows that the `lost` nodes are gone, and that the others serve. A disk that its node has `failed` need not.
    pub fn has_given_up(&mut self, lost: &[String], failed: &[String]) -> bool {
        // A disk that returns is `Down` until it has been listed.
        let serves = |h: Health| matches!(h, Health::Up | Health::Draining | Health::Drained);
        let here = |s: &ClusterStatus| {
            let is_of = |names: &[String], id: u64| s.nodes.iter().any(|n| n.node_id == id && names.contains(&n.name));
            let may_fail = |id: u64| is_of(lost, id) || is_of(failed, id);
            s.nodes.iter().all(|n| is_of(lost, n.node_id) || serves(n.health()))
                && s.disks.iter().all(|d| may_fail(d.node_id) || serves(d.health()))
        };
        self.status().is_some_and(|s| given_up(&s, lost) && here(&s))
    }

    /// The term that it knows.
    #[must_use]
    pub fn term(&self) -> Option<u64> {
        self.manager.as_ref().map(|manager| manager.peer().standing().term)
    }

    /// Starts a scrub.
    pub fn scrub(&mut self, now_ns: i64) {
        self.ask_as(Role::Node, now_ns, &Maintain { what: MaintenanceJob::Scrub as i32, start: true });
    }

    /// Whether the last scrub is over.
    pub fn has_scrubbed(&mut self) -> bool {
        let ask = Maintain { what: MaintenanceJob::Scrub as i32, start: false };
        let reply: Option<MaintainReply> = self.manager.as_mut().and_then(|manager| manager.inspect(&ask));
        reply.is_some_and(|reply| !reply.running)
    }

    /// Whether no garbage is left, and this many sessions are open.
    pub fn is_clean(&mut self, sessions: u64) -> bool {
        self.status().is_some_and(|s| s.garbage_chunks == 0 && s.deletes_pending == 0 && s.sessions == sessions)
    }

    /// The state in a line, for messages.
    pub fn status_line(&mut self) -> String {
        let Some(s) = self.status() else { return "no manager runs".into() };
        let disks = |n: &NodeInfo| {
            let of_node = s.disks.iter().filter(|disk| disk.node_id == n.node_id);
            of_node.map(|disk| format!("{} {:?}", disk.disk_id, disk.health())).collect::<Vec<_>>().join(", ")
        };
        let health = s.nodes.iter().map(|n| format!("{}:{:?} (disk {})", n.name, n.health(), disks(n)));
        let health: Vec<String> = health.collect();
        format!(
            "chunks {} (full {}, reduced {}, lost {}), filling {}, to repair {}, garbage {}, deletes {}, sessions {}, {}",
            s.chunks,
            s.chunks_full,
            s.chunks_reduced,
            s.chunks_lost,
            s.members_backfilling,
            s.fragments_to_repair,
            s.garbage_chunks,
            s.deletes_pending,
            s.sessions,
            health.join(" ")
        )
    }

    /// The answer of `tessera status`.
    pub fn status(&mut self) -> Option<ClusterStatus> {
        self.manager.as_mut()?.inspect(&GetStatus {})
    }

    /// Starts a garbage collection.
    pub fn collect_garbage(&mut self, now_ns: i64) {
        self.ask_as(Role::Node, now_ns, &Maintain { what: MaintenanceJob::Gc as i32, start: true });
    }

    /// Drains a node, if it is known.
    pub fn drain_node(&mut self, now_ns: i64, index: usize) {
        let name = format!("n{index}");
        let find = |db: &Db| {
            db.conn().query_row("SELECT node_id FROM nodes WHERE name = ?1", [name], |r| r.get::<_, i64>(0)).ok()
        };
        let Some(node_id) = self.led().and_then(find) else { return };
        let op_id = self.rng.any() >> 1;
        self.ask_as(Role::Node, now_ns, &Drain { op_id, node_id: node_id as u64, disk_id: 0, undo: false });
    }

    /// Names of the nodes that drain, or of those that are drained, as the database of the manager that leads has them.
    #[must_use]
    pub fn nodes_in(&self, health: Health) -> Vec<String> {
        let Some(db) = self.led() else { return Vec::new() };
        let find = |db: &Db| -> rusqlite::Result<Vec<String>> {
            let sql = "SELECT n.name FROM nodes n JOIN disks d USING (node_id) WHERE d.health = ?1 AND n.health <> ?2";
            let mut statement = db.conn().prepare_cached(sql)?;
            statement.query_map([health as i32, Health::Out as i32], |row| row.get(0))?.collect()
        };
        find(db).expect("the schema is fixed")
    }

    /// Recounts references, totals and fragments (P4).
    ///
    /// # Errors
    /// The differences from the stored counts.
    pub fn recount(&self) -> Result<(), String> {
        let db = self.db().ok_or("no manager leads")?;
        match tessera_testkit::recount(db.conn()) {
            Ok(differences) if differences.is_empty() => Ok(()),
            Ok(differences) => Err(differences.join("; ")),
            Err(failure) => Err(failure.to_string()),
        }
    }

    /// An encoded commit with the receipts that nodes would have given, for worlds without nodes.
    pub fn with_receipts(&self, commit: Bytes) -> Bytes {
        let Some(db) = self.led() else { return commit };
        tessera_testkit::with_receipts(db.conn(), &commit).map_or(commit, Bytes::from)
    }
}
