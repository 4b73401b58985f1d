//! A simulated machine that runs a manager: the real member of the group, its log on a disk that loses unsynced bytes, and SQLite
//! in memory. A kill keeps what SQLite has committed; a loss of power may take it back to an earlier commit, as in production,
//! where the log is synced and the database is not.

mod inspect;

pub use inspect::Placed;

use crate::network::Actor;
use crate::plan::Rng;
use bytes::Bytes;
use std::sync::Arc;
use tessera_consensus::{PeerConfig, PeerError};
use tessera_disk::{CrashKind, Disk, SimDisk};
use tessera_manager::config::Config;
use tessera_manager::core::reading::{KnownCounts, ReadJob};
use tessera_manager::core::{Action, Event};
use tessera_manager::db::Db;
use tessera_manager::group::{DbHome, GroupAction, GroupError, LOG_DIR, Manager, Setup};
use tessera_wire::consensus::{Member, PeerKind};
use tessera_wire::rpc::{Answer, Call};
use tessera_wire::{Error, Kind, Request, Role};

/// Result of a call: encoded reply and payload, or the error.
pub type Outcome = Result<(Bytes, Bytes), Error>;
/// Answers to requests, by ticket.
pub type Answers = Vec<(u64, Outcome)>;

/// Connection number of the simulator's own requests.
const SIMULATOR: u64 = u64::MAX;
/// One tick of so many makes the database durable.
const SYNC_TICKS: u64 = 25;
/// Ticks for which a manager that failed may hand leadership over.
const HAND_OVER_TICKS: u64 = 20;

/// What a manager's directory held: files, and the database.
struct Backup {
    files: Vec<(String, Vec<u8>)>,
    image: Vec<u8>,
}

/// The manager's machine.
pub struct ManagerHost {
    /// Place in the world; the manager is called `m<index>`.
    pub index: usize,
    /// Grows with every start and stop.
    pub incarnation: u64,
    /// The process is stopped, but not killed.
    pub paused: bool,
    /// Its power will fail in the middle of one of its next disk operations.
    pub power_fails_soon: bool,
    /// The time of day minus the machine's time since boot, ns.
    pub wall_ahead_ns: i64,
    /// Its database becomes durable from time to time, not only when it is new.
    pub syncs_database: bool,
    /// Its directory was taken back or has rotted: the peer counts as lost.
    pub damaged: bool,
    /// Addresses of peers to which it introduces itself.
    pub seeds: Vec<String>,
    cluster_id: [u8; 16],
    config: Config,
    rng: Rng,
    disk: SimDisk,
    /// The disk holds a manager.
    is_born: bool,
    /// The database on disk, while the manager does not run.
    db: Option<Db>,
    /// What a loss of power leaves of it.
    synced: Vec<u8>,
    backup: Option<Backup>,
    ticks: u64,
    failed_ticks: u64,
    /// It was told to stop.
    retires: bool,
    manager: Option<Manager>,
    calls: Vec<Call>,
    /// Long reads of the manager, which run at the next pump.
    reads: Vec<ReadJob>,
    answers: Answers,
    own_answers: Vec<(u64, Result<Bytes, Error>)>,
    next_question: u64,
}

impl ManagerHost {
    /// A machine with an empty disk. Nothing runs yet.
    #[must_use]
    pub fn new(index: usize, cluster_id: [u8; 16], config: Config, seed: u64) -> ManagerHost {
        let mut rng = Rng::new(seed);
        ManagerHost {
            index,
            incarnation: 0,
            paused: false,
            power_fails_soon: false,
            wall_ahead_ns: 0,
            syncs_database: true,
            damaged: false,
            seeds: Vec::new(),
            cluster_id,
            config,
            disk: SimDisk::new(rng.any()),
            rng,
            is_born: false,
            db: None,
            synced: Vec::new(),
            backup: None,
            ticks: 0,
            failed_ticks: 0,
            retires: false,
            manager: None,
            calls: Vec::new(),
            reads: Vec::new(),
            answers: Vec::new(),
            own_answers: Vec::new(),
            next_question: 1,
        }
    }

    /// Whether the manager runs; it may be paused.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.manager.is_some()
    }

    /// The manager, if it runs.
    #[must_use]
    pub fn manager(&self) -> Option<&Manager> {
        self.manager.as_ref()
    }

    /// Its disk.
    #[must_use]
    pub fn disk(&self) -> &SimDisk {
        &self.disk
    }

    fn setup(&mut self, id: u64) -> Setup {
        let name = format!("m{}", self.index);
        let (host, address) = (name.clone(), format!("{name}:1"));
        let member = Member { id, kind: PeerKind::Manager as i32, host, address, name };
        let peer =
            PeerConfig { voters_max: self.config.max_voters as usize, ..PeerConfig::new(member, self.rng.any()) };
        let disk: Arc<dyn Disk> = Arc::new(self.disk.clone());
        Setup { home: DbHome::Memory, disk, config: self.config.clone(), peer }
    }

    /// Founds the cluster on the empty disk. It has no others to join.
    pub fn found(&mut self) {
        let seeds = std::mem::take(&mut self.seeds);
        self.begin(Manager::found);
        self.seeds = seeds;
    }

    /// Goes on from what is on disk; joins the group if that is nothing.
    ///
    /// # Errors
    /// Why the manager does not start on its own disk.
    pub fn start(&mut self) -> Result<(), String> {
        if self.manager.is_some() {
            return Ok(());
        }
        if !self.is_born {
            self.begin(Manager::join);
            return Ok(());
        }
        let setup = self.setup(0);
        let restarted = Manager::restart(self.db.take(), setup).map_err(|error| error.to_string())?;
        self.run(restarted.ok_or("there is no log, or no snapshot")?);
        Ok(())
    }

    fn begin(&mut self, begin: fn(Db, Setup) -> Result<Manager, GroupError>) {
        let db = Db::in_memory(self.cluster_id).expect("a fresh database");
        let id = self.rng.any() >> 1 | 1;
        let setup = self.setup(id);
        let manager = begin(db, setup).expect("a manager starts on an empty disk");
        self.is_born = true;
        self.run(manager);
        self.sync();
    }

    fn run(&mut self, mut manager: Manager) {
        manager.set_seeds(self.seeds.clone());
        self.manager = Some(manager);
        self.incarnation += 1;
        (self.paused, self.failed_ticks, self.retires) = (false, 0, false);
    }

    /// Makes the database durable.
    fn sync(&mut self) {
        if let Some(manager) = &mut self.manager
            && manager.applied().is_some()
            && let Some(image) = manager.image()
        {
            self.synced = image;
        }
    }

    /// Kills the process; an open transaction is rolled back.
    pub fn kill(&mut self) {
        if let Some(manager) = self.manager.take() {
            self.incarnation += 1;
            self.db = manager.into_db();
            self.disk = self.disk.reopen();
        }
        (self.paused, self.power_fails_soon) = (false, false);
        self.calls.clear();
        self.answers.clear();
        self.own_answers.clear();
    }

    /// The process loses the lead, which no other takes, and leads anew: it forgets what is in memory, and its connections stay.
    ///
    /// # Errors
    /// Why it does not read what it has on disk.
    pub fn lead_anew(&mut self) -> Result<(), String> {
        let incarnation = self.incarnation;
        self.kill();
        self.start()?;
        self.incarnation = incarnation;
        Ok(())
    }

    /// Powers the machine off; `kind` decides about unsynced bytes of the log.
    pub fn power_off(&mut self, kind: CrashKind) {
        // The crash must see the disk as the process left it.
        let disk = self.disk.crash(kind);
        self.kill();
        self.disk = disk;
        if self.is_born && (self.db.is_none() || self.rng.percent(70)) {
            self.db = Db::from_image(&self.synced).ok();
        }
    }

    /// The machine is lost with its disk. Another one takes its place, with an empty disk.
    pub fn lose(&mut self) {
        self.kill();
        self.disk = SimDisk::new(self.rng.any());
        (self.is_born, self.db, self.synced) = (false, None, Vec::new());
        (self.backup, self.damaged) = (None, false);
    }

    /// Whether [`ManagerHost::roll_back`] has something to put back.
    #[must_use]
    pub fn has_backup(&self) -> bool {
        self.backup.is_some()
    }

    /// Keeps a copy of the directory as it is. A copy from when the manager was alone asks at the addresses that it is told.
    pub fn back_up(&mut self) {
        if self.manager.as_ref().is_none_or(|manager| manager.peer().membership().voters.is_empty()) {
            return;
        }
        let image = self.manager.as_mut().and_then(Manager::image);
        let files = self.disk.paths().into_iter().filter_map(|path| Some((path.clone(), self.disk.contents(&path)?)));
        self.backup = image.map(|image| Backup { files: files.collect(), image });
    }

    /// Kills the process and puts the copy of its directory back, if there is one.
    pub fn roll_back(&mut self) {
        let Some(Backup { files, image }) = self.backup.take() else { return };
        self.kill();
        self.disk = SimDisk::new(self.rng.any());
        self.disk.create_dir(LOG_DIR).expect("a fresh disk");
        for (path, bytes) in files {
            self.disk.write_durable(&path, &bytes).expect("a fresh disk");
        }
        self.db = Db::from_image(&image).ok();
        (self.synced, self.damaged) = (image, true);
    }

    /// Stored bytes rot; the process ends, or goes on and meets them later.
    pub fn rot(&mut self) {
        (0..self.rng.between(1, 3)).for_each(|_| drop(self.disk.rot_somewhere()));
        self.damaged = true;
        if self.rng.percent(60) {
            self.kill();
        }
    }

    /// Time has passed.
    pub fn tick(&mut self, now_ns: i64) {
        self.ticks += 1;
        if self.syncs_database && self.ticks.is_multiple_of(SYNC_TICKS) {
            self.sync();
        }
        self.note_wall(now_ns);
        self.event(now_ns, Event::Tick);
    }

    fn note_wall(&mut self, now_ns: i64) {
        let wall_ns = now_ns.saturating_add(self.wall_ahead_ns);
        if let Some(manager) = &mut self.manager {
            manager.note_wall(now_ns, wall_ns);
        }
    }

    /// Whether the process ends because it cannot go on: as in production it hands leadership over first, if it can.
    pub fn ends(&mut self) -> bool {
        let retires = self.retires;
        let is_over = |manager: &&Manager| manager.failed().is_some() || retires;
        let Some(manager) = self.manager.as_ref().filter(is_over) else { return false };
        self.failed_ticks += 1;
        self.failed_ticks > HAND_OVER_TICKS || !manager.can_hand_over()
    }

    /// Stops it in order: it hands leadership over, and ends once that is done.
    pub fn retire(&mut self) {
        if let Some(manager) = &mut self.manager {
            manager.retire();
            self.retires = true;
        }
    }

    /// Why it takes part no more, if so.
    #[must_use]
    pub fn stopped(&self) -> Option<&PeerError> {
        self.manager.as_ref()?.peer().stopped()
    }

    /// Delivers an answer to one of its calls.
    pub fn answer(&mut self, now_ns: i64, answer: Answer) {
        self.event(now_ns, Event::Answer(answer));
    }

    /// Delivers a request: of a client, of a node, or of another peer of the group.
    #[allow(clippy::too_many_arguments, reason = "what a message carries")]
    pub fn request(
        &mut self,
        now_ns: i64,
        ticket: u64,
        from: Actor,
        client_id: u64,
        kind: Kind,
        body: Bytes,
        payload: Bytes,
    ) {
        if let (true, Some(manager)) = (kind.is_for_peer(), &mut self.manager) {
            return manager.request(now_ns, ticket, kind, body, payload);
        }
        let (connection, role) = match from {
            Actor::Client(index) => (index as u64, Role::Client),
            Actor::Node(index) => (1_000 + index as u64, Role::Node),
            Actor::Manager(index) => (2_000 + index as u64, Role::Manager),
        };
        self.event(now_ns, Event::Request { connection, role, client_id, request_id: ticket, kind, body });
    }

    /// Delivers an event of a connection. The requests on all connections have different numbers.
    pub fn event(&mut self, now_ns: i64, event: Event) {
        if let Some(manager) = &mut self.manager {
            manager.handle(now_ns, event);
        }
    }

    /// Commits pending commands; returns the manager's calls and answers.
    pub fn pump(&mut self, now_ns: i64) -> (Vec<Call>, Answers) {
        self.pump_each(now_ns, |_, _| ())
    }

    /// As [`ManagerHost::pump`]; calls `each` after each group commit with the answers since the last one.
    pub fn pump_each(&mut self, now_ns: i64, mut each: impl FnMut(&Db, &[(u64, Outcome)])) -> (Vec<Call>, Answers) {
        let mut answered = 0;
        self.read(now_ns);
        if let Some(manager) = self.manager.as_mut().filter(|manager| manager.is_behind()) {
            manager.catch_up(now_ns);
        }
        self.drain();
        while let Some(manager) = self.manager.as_mut().filter(|manager| manager.wants_commit()) {
            let begun = manager.begin(now_ns);
            self.drain();
            if let (true, Some(manager)) = (begun, &mut self.manager) {
                manager.complete(now_ns);
                self.drain();
            }
            if let Some(manager) = self.manager.as_ref().filter(|manager| manager.applied().is_some())
                && let Some(db) = manager.db()
            {
                each(db, &self.answers[answered..]);
                answered = self.answers.len();
            }
        }
        (std::mem::take(&mut self.calls), std::mem::take(&mut self.answers))
    }

    /// Runs the long reads that the manager handed out.
    fn read(&mut self, now_ns: i64) {
        for job in std::mem::take(&mut self.reads) {
            let Some(manager) = self.manager.as_mut() else { return };
            let Some(db) = manager.db() else { return };
            let done = job.run(db, manager.config(), &mut KnownCounts::default());
            manager.handle(now_ns, Event::Read(done));
        }
    }

    /// Collects what the manager wants. After a loss of power nothing leaves any more.
    fn drain(&mut self) {
        let Some(manager) = self.manager.as_mut().filter(|_| !self.disk.is_off()) else { return };
        while let Some(action) = manager.poll() {
            match action {
                GroupAction::Core(Action::Call(call)) => self.calls.push(call),
                GroupAction::Core(Action::Read(job)) => self.reads.push(job),
                GroupAction::Core(Action::Reply { connection: SIMULATOR, request_id, result, .. }) => {
                    self.own_answers.push((request_id, result));
                }
                GroupAction::Core(Action::Reply { request_id, result, .. }) => {
                    self.answers.push((request_id, result.map(|body| (body, Bytes::new()))));
                }
                GroupAction::Answer { token, result } => {
                    self.answers.push((token, result.map(|(body, payload)| (body, payload.concat().into()))));
                }
                GroupAction::Snapshot(job) => unreachable!("a database in memory is copied at once, not by {job:?}"),
                GroupAction::Digest(job) => unreachable!("a database in memory is read at once, not by {job:?}"),
            }
        }
    }

    /// Asks the manager as a client or a node; returns the number of the question.
    pub fn ask_as<R: Request>(&mut self, role: Role, now_ns: i64, request: &R) -> Option<u64> {
        self.manager.as_ref()?.core()?;
        let request_id = self.next_question;
        self.next_question += 1;
        let body = request.encode_to_vec().into();
        let (connection, client_id) = (SIMULATOR, u64::MAX);
        self.event(now_ns, Event::Request { connection, role, client_id, request_id, kind: R::KIND, body });
        Some(request_id)
    }

    /// The answer to a question, once it is there.
    pub fn take_answer(&mut self, id: u64) -> Option<Result<Bytes, Error>> {
        let at = self.own_answers.iter().position(|(known, _)| *known == id)?;
        Some(self.own_answers.swap_remove(at).1)
    }
}
