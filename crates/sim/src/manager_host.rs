//! A simulated machine that runs the manager: the real core on SQLite in memory. Committed data survives a kill. After
//! the loss of the machine, the nodes' log replicas restore the database.

use crate::network::Actor;
use bytes::Bytes;
use prost::Message;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use tessera_manager::config::Config;
use tessera_manager::core::{Action, Event, ManagerCore};
use tessera_manager::db::Db;
use tessera_manager::db::rows;
use tessera_manager::restore::Restore;
use tessera_wire::meta::{
    CloseSession, ClusterStatus, Drain, GetStatus, Maintain, MaintainReply, MaintenanceJob, OpenRead, OpenReadReply,
    RenewSession,
};
use tessera_wire::rpc::{Answer, Call};
use tessera_wire::{ClassInfo, Error, Health, Kind, NodeInfo, Request, Role};

/// Result of a call: encoded reply and payload, or the error.
pub type Outcome = Result<(Bytes, Bytes), Error>;
/// Answers to requests, by ticket.
pub type Answers = Vec<(u64, Outcome)>;

/// Connection number of the simulator's own requests.
const SIMULATOR: u64 = u64::MAX;

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

/// The manager's machine.
pub struct ManagerHost {
    /// Grows with every start.
    pub incarnation: u64,
    config: Config,
    nodes: usize,
    /// The database is restored and not started yet: highest term that a replica has seen.
    restored_above_term: Option<u64>,
    /// The database on disk, while the manager does not run.
    db: Option<Db>,
    core: Option<ManagerCore>,
    calls: Vec<Call>,
    answers: Answers,
    own_answers: Vec<(u64, Result<Bytes, Error>)>,
    next_question: u64,
    salt: u64,
    /// Cache of node indexes by id; a restored database may issue the ids of a lost one again.
    indexes: BTreeMap<u64, usize>,
    reader: Reader,
}

/// The simulator's own reader.
#[derive(Default)]
struct Reader {
    /// Its session; 0: it has none.
    session_id: u64,
    /// Number of the question that waits for an answer.
    asked: Option<u64>,
}

impl ManagerHost {
    /// A machine with a fresh database. Nothing runs yet.
    pub fn new(cluster_id: [u8; 16], nodes: usize, config: Config, salt: u64) -> ManagerHost {
        let db = Db::in_memory(cluster_id).expect("a fresh database");
        ManagerHost {
            incarnation: 0,
            config,
            nodes,
            restored_above_term: None,
            db: Some(db),
            core: None,
            calls: Vec::new(),
            answers: Vec::new(),
            own_answers: Vec::new(),
            next_question: 1,
            salt,
            indexes: BTreeMap::new(),
            reader: Reader::default(),
        }
    }

    /// Whether the manager runs.
    pub fn is_running(&self) -> bool {
        self.core.is_some()
    }

    /// Starts it on what is on disk.
    pub fn start(&mut self, now_ns: i64) {
        let Some(db) = self.db.take() else { return };
        self.incarnation += 1;
        let restored = self.restored_above_term.take();
        let core = ManagerCore::start_with(db, self.config.clone(), now_ns, restored.unwrap_or(0), restored.is_some());
        self.core = Some(core.expect("a manager starts on its own database"));
    }

    /// Kills the process; an open transaction is rolled back.
    pub fn kill(&mut self) {
        if let Some(core) = self.core.take() {
            self.incarnation += 1;
            let db = core.into_db();
            // Usually no transaction is open.
            let _ = db.rollback();
            self.db = Some(db);
        }
        self.calls.clear();
        self.answers.clear();
        self.reader.asked = None;
    }

    /// Loses the machine with its disk.
    pub fn lose(&mut self) {
        self.kill();
        self.indexes.clear();
        self.db = None;
    }

    /// Whether the database is lost.
    pub fn is_lost(&self) -> bool {
        self.core.is_none() && self.db.is_none()
    }

    /// Restores the database from log replicas; `ask` calls a node.
    ///
    /// # Errors
    /// The reason why the replicas do not suffice.
    pub fn restore(&mut self, ask: &mut dyn FnMut(&Call) -> Outcome) -> Result<(), String> {
        let addresses = (0..self.nodes).map(|i| format!("n{i}:1")).collect();
        let mut restore = Restore::new(addresses, true, &self.config);
        while let Some(call) = restore.poll() {
            let answer = Answer { token: call.token, result: ask(&call) };
            if let Some(restored) = restore.handle(answer).map_err(|e| e.to_string())? {
                self.restored_above_term = Some(restored.highest_term);
                self.db = Some(restored.into_db(None, &mut |_, _| ()).map_err(|e| e.to_string())?);
            }
        }
        Ok(())
    }

    /// Every committed chunk, and the nodes that should hold its fragments now.
    pub fn placed(&self) -> Vec<Placed> {
        let Some(core) = &self.core else { return Vec::new() };
        let db = core.db();
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
        let Some(core) = &self.core else { return String::new() };
        let db = core.db();
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
        let Some(core) = &self.core else { return chunks };
        let sql = "SELECT p.extents FROM dentries d JOIN pages p ON p.ino = d.ino
                   WHERE d.parent = 1 AND d.name = ?1 AND p.died IS NULL";
        let mut statement = core.db().conn().prepare_cached(sql).expect("the schema is fixed");
        let pages = statement.query_map([name.as_bytes()], |r| r.get::<_, Vec<u8>>(0)).expect("the schema is fixed");
        for page in pages {
            tessera_manager::for_each_chunk(&page.expect("the schema is fixed"), |chunk| {
                chunks.insert(chunk);
            });
        }
        chunks
    }

    /// Time has passed.
    pub fn tick(&mut self, now_ns: i64) {
        self.handle(now_ns, Event::Tick);
    }

    /// Delivers an answer to one of its calls.
    pub fn answer(&mut self, now_ns: i64, answer: Answer) {
        self.handle(now_ns, Event::Answer(answer));
    }

    /// Delivers a request.
    #[allow(clippy::too_many_arguments, reason = "what a message carries")]
    pub fn request(
        &mut self,
        now_ns: i64,
        ticket: u64,
        from: Actor,
        client_id: u64,
        kind: Kind,
        body: Bytes,
        _payload: Bytes,
    ) {
        let (connection, role) = match from {
            Actor::Client(index) => (index as u64, Role::Client),
            Actor::Node(index) => (1_000 + index as u64, Role::Node),
            Actor::Manager => (2_000, Role::Manager),
        };
        self.event(now_ns, Event::Request { connection, role, client_id, request_id: ticket, kind, body });
    }

    /// Delivers an event of a connection. The requests on all connections have different numbers.
    pub fn event(&mut self, now_ns: i64, event: Event) {
        self.handle(now_ns, event);
    }

    /// Commits pending commands, and calls `each` after each group commit with the answers since the last one. Returns
    /// the manager's calls and answers.
    pub fn pump_each(&mut self, now_ns: i64, mut each: impl FnMut(&Db, &[(u64, Outcome)])) -> (Vec<Call>, Answers) {
        let mut answered = 0;
        while let Some(core) = self.core.as_mut().filter(|core| core.wants_commit() && core.stopped().is_none()) {
            core.commit_batch(now_ns);
            self.drain();
            if let Some(core) = &self.core {
                each(core.db(), &self.answers[answered..]);
            }
            answered = self.answers.len();
        }
        self.drain();
        (std::mem::take(&mut self.calls), std::mem::take(&mut self.answers))
    }

    /// The database, if a manager runs on it.
    pub fn db(&self) -> Option<&Db> {
        self.core.as_ref().map(ManagerCore::db)
    }

    /// A gauge of the running manager.
    pub fn gauge(&self, name: &str) -> Option<u64> {
        let gauges = self.core.as_ref()?.metrics().gauges;
        gauges.into_iter().find(|(known, _)| *known == name).map(|(_, value)| value)
    }

    /// Commits pending commands; returns the manager's calls and answers.
    pub fn pump(&mut self, now_ns: i64) -> (Vec<Call>, Answers) {
        if let Some(core) = &mut self.core {
            while core.wants_commit() {
                core.commit_batch(now_ns);
                if core.stopped().is_some() {
                    break;
                }
            }
        }
        self.drain();
        (std::mem::take(&mut self.calls), std::mem::take(&mut self.answers))
    }

    /// Index of a node by its id.
    pub fn node_index(&mut self, node_id: u64) -> Option<Actor> {
        if let Some(index) = self.indexes.get(&node_id) {
            return Some(Actor::Node(*index));
        }
        let db = self.core.as_ref().map(ManagerCore::db).or(self.db.as_ref())?;
        let name: String =
            db.conn().query_row("SELECT name FROM nodes WHERE node_id = ?1", [node_id as i64], |r| r.get(0)).ok()?;
        let index = name.strip_prefix('n')?.parse().ok()?;
        self.indexes.insert(node_id, index);
        Some(Actor::Node(index))
    }

    /// Whether the manager knows that the `lost` nodes are gone, every chunk has all its fragments, and nothing is
    /// being rebuilt or moved.
    pub fn is_whole(&mut self, now_ns: i64, lost: &[String]) -> bool {
        let at_rest = |s: &ClusterStatus| s.members_backfilling == 0 && s.fragments_to_repair == 0;
        let whole = |s: ClusterStatus| s.chunks_full == s.chunks && at_rest(&s) && given_up(&s, lost);
        self.status(now_ns).is_some_and(whole)
    }

    /// Whether the manager knows that the `lost` nodes are gone, and that the others serve.
    pub fn has_given_up(&mut self, now_ns: i64, lost: &[String]) -> bool {
        // A disk that returns is `Down` until it has been listed.
        let serves = |h: Health| matches!(h, Health::Up | Health::Draining | Health::Drained);
        let here = |s: &ClusterStatus| {
            let gone = |id: u64| s.nodes.iter().any(|n| n.node_id == id && lost.contains(&n.name));
            s.nodes.iter().all(|n| gone(n.node_id) || serves(n.health()))
                && s.disks.iter().all(|d| gone(d.node_id) || serves(d.health()))
        };
        self.status(now_ns).is_some_and(|s| given_up(&s, lost) && here(&s))
    }

    /// Starts a scrub.
    pub fn scrub(&mut self, now_ns: i64) {
        self.ask(now_ns, &Maintain { what: MaintenanceJob::Scrub as i32, start: true });
    }

    /// Whether the last scrub is over.
    pub fn has_scrubbed(&mut self, now_ns: i64) -> bool {
        let Some(id) = self.ask(now_ns, &Maintain { what: MaintenanceJob::Scrub as i32, start: false }) else {
            return false;
        };
        self.take_answer(id).and_then(|body| MaintainReply::decode(body).ok()).is_some_and(|reply| !reply.running)
    }

    /// Whether no garbage is left, and this many sessions are open.
    pub fn is_clean(&mut self, now_ns: i64, sessions: u64) -> bool {
        self.status(now_ns).is_some_and(|s| s.garbage_chunks == 0 && s.deletes_pending == 0 && s.sessions == sessions)
    }

    /// Opens a reader on any file, or renews it. A manager that no longer knows it opens it again.
    pub fn keep_reading(&mut self, now_ns: i64) {
        if let Some(asked) = self.reader.asked {
            let Some(answer) = self.take_result(asked) else { return };
            let opened = answer.map(|body| OpenReadReply::decode(body).map_or(0, |reply| reply.session_id));
            self.reader.session_id = match (self.reader.session_id, opened) {
                (0, Ok(opened)) => opened,
                (renewed, Ok(_)) => renewed,
                (_, Err(_)) => 0,
            };
        }
        let session_id = self.reader.session_id;
        let sql = "SELECT min(i.ino) FROM inodes i JOIN versions v ON v.ino = i.ino WHERE i.nlink > 0";
        let file =
            |core: &ManagerCore| core.db().conn().query_row(sql, [], |r| r.get::<_, Option<i64>>(0)).ok().flatten();
        self.reader.asked = match (session_id, self.core.as_ref().and_then(file)) {
            (0, None) => None,
            (0, Some(ino)) => self.ask_as(Role::Client, now_ns, &OpenRead { ino: ino as u64, ..OpenRead::default() }),
            _ => self.ask_as(Role::Client, now_ns, &RenewSession { session_id, ..RenewSession::default() }),
        };
    }

    /// Whether the simulator's reader is open.
    pub fn is_reading(&self) -> bool {
        self.reader.session_id != 0
    }

    /// Closes the simulator's reader.
    pub fn end_reading(&mut self, now_ns: i64) {
        let Reader { session_id, .. } = std::mem::take(&mut self.reader);
        if session_id != 0 {
            self.ask_as(Role::Client, now_ns, &CloseSession { session_id });
        }
    }

    /// The state in a line, for messages.
    pub fn status_line(&mut self, now_ns: i64) -> String {
        let Some(s) = self.status(now_ns) else { return "no manager runs".into() };
        let health: Vec<String> = s.nodes.iter().map(|n| format!("{}:{:?}", n.name, n.health())).collect();
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
    pub fn status(&mut self, now_ns: i64) -> Option<ClusterStatus> {
        let id = self.ask(now_ns, &GetStatus {})?;
        ClusterStatus::decode(self.take_answer(id)?).ok()
    }

    fn take_answer(&mut self, id: u64) -> Option<Bytes> {
        self.take_result(id)?.ok()
    }

    fn take_result(&mut self, id: u64) -> Option<Result<Bytes, Error>> {
        self.drain();
        let at = self.own_answers.iter().position(|(known, _)| *known == id)?;
        Some(self.own_answers.swap_remove(at).1)
    }

    /// Starts a garbage collection.
    pub fn collect_garbage(&mut self, now_ns: i64) {
        self.ask(now_ns, &Maintain { what: MaintenanceJob::Gc as i32, start: true });
    }

    /// Drains a node, if it is known.
    pub fn drain_node(&mut self, now_ns: i64, index: usize) {
        let name = format!("n{index}");
        let find = |db: &Db| {
            db.conn().query_row("SELECT node_id FROM nodes WHERE name = ?1", [name], |r| r.get::<_, i64>(0)).ok()
        };
        let Some(node_id) = self.core.as_ref().and_then(|core| find(core.db())) else { return };
        self.salt += 1;
        self.ask(now_ns, &Drain { op_id: self.salt, node_id: node_id as u64, disk_id: 0, undo: false });
    }

    /// Recounts references, totals and fragments (P4).
    ///
    /// # Errors
    /// The differences from the stored counts.
    pub fn recount(&self) -> Result<(), String> {
        let db = self.core.as_ref().map(ManagerCore::db).or(self.db.as_ref()).ok_or("no database")?;
        match tessera_testkit::recount(db.conn()) {
            Ok(differences) if differences.is_empty() => Ok(()),
            Ok(differences) => Err(differences.join("; ")),
            Err(failure) => Err(failure.to_string()),
        }
    }

    /// Asks as a node: the answer need not wait for log replicas, because nothing depends on it.
    fn ask<R: Request>(&mut self, now_ns: i64, request: &R) -> Option<u64> {
        self.ask_as(Role::Node, now_ns, request)
    }

    fn ask_as<R: Request>(&mut self, role: Role, now_ns: i64, request: &R) -> Option<u64> {
        self.core.as_ref()?;
        let request_id = self.next_question;
        self.next_question += 1;
        let body = request.encode_to_vec().into();
        self.handle(
            now_ns,
            Event::Request { connection: SIMULATOR, role, client_id: u64::MAX, request_id, kind: R::KIND, body },
        );
        Some(request_id)
    }

    /// An encoded commit with the receipts that nodes would have given, for worlds without nodes.
    pub fn with_receipts(&self, commit: Bytes) -> Bytes {
        let Some(core) = &self.core else { return commit };
        tessera_testkit::with_receipts(core.db().conn(), &commit).map_or(commit, Bytes::from)
    }

    fn handle(&mut self, now_ns: i64, event: Event) {
        if let Some(core) = &mut self.core {
            core.handle(now_ns, event);
        }
    }

    fn drain(&mut self) {
        let Some(core) = &mut self.core else { return };
        while let Some(action) = core.poll() {
            match action {
                Action::Call(call) => self.calls.push(call),
                Action::Reply { connection: SIMULATOR, request_id, result, .. } => {
                    self.own_answers.push((request_id, result))
                }
                Action::Reply { request_id, result, .. } => {
                    self.answers.push((request_id, result.map(|body| (body, Bytes::new()))))
                }
            }
        }
    }
}
