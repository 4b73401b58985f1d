//! Managers in the world: start, faults, the effects of their handlers, and what is asked of the one that leads.

use super::*;
use prost::Message as _;
use tessera_consensus::PeerError;
use tessera_wire::Role;
use tessera_wire::meta::{CloseSession, OpenRead, OpenReadReply, RenewSession};

/// The simulator's own reader.
#[derive(Default)]
pub(super) struct Reader {
    /// Its session; 0: it has none.
    session_id: u64,
    /// The question that waits for an answer: manager, incarnation, number.
    asked: Option<(usize, u64, u64)>,
}

impl Reader {
    pub(super) fn is_open(&self) -> bool {
        self.session_id != 0
    }
}

impl World {
    /// Starts all managers and nodes: the first manager founds the cluster.
    pub(super) fn start_all(&mut self) -> Result<(), Violation> {
        self.managers[0].found();
        self.started(0);
        for manager in 1..self.managers.len() {
            self.start_manager(manager)?;
        }
        (0..self.nodes.len()).for_each(|node| self.start_node(node));
        Ok(())
    }

    /// Starts a manager on its disk, or on an empty one.
    pub(super) fn start_manager(&mut self, manager: usize) -> Result<(), Violation> {
        let host = &mut self.managers[manager];
        if host.is_running() {
            return Ok(());
        }
        if let Err(fact) = host.start() {
            if !host.damaged {
                return broken("P1", format!("manager {manager} does not start on its own disk: {fact}"));
            }
            self.record(&format!("m{manager} begins anew: {fact}"));
            self.group.note("damaged managers that join anew");
            self.managers[manager].lose();
            return self.start_manager(manager);
        }
        self.started(manager);
        Ok(())
    }

    fn started(&mut self, manager: usize) {
        self.held_events.retain(|(of, _)| *of != Actor::Manager(manager));
        let incarnation = self.managers[manager].incarnation;
        self.push(self.now_ns, Event::ManagerTick { manager, incarnation });
    }

    /// Resumes a paused manager. One that does not run starts.
    pub(super) fn resume_manager(&mut self, manager: usize) -> Result<(), Violation> {
        if self.managers[manager].power_fails_soon {
            self.managers[manager].power_off(CrashKind::KeepSome);
        }
        self.managers[manager].paused = false;
        self.start_manager(manager)?;
        self.release(Actor::Manager(manager));
        Ok(())
    }

    pub(super) fn harm_manager(&mut self, who: Who, what: ManagerFault, back_ms: u64) -> Result<(), Violation> {
        let manager = self.index_of(who);
        let mut back = Fault::StartManager(manager);
        let host = &mut self.managers[manager];
        match what {
            ManagerFault::Kill => host.kill(),
            ManagerFault::PowerOff => self.power_off_manager(manager),
            ManagerFault::Pause => {
                host.paused = host.is_running();
                back = Fault::ResumeManager(manager);
            }
            ManagerFault::Lose => host.lose(),
            ManagerFault::Retire => host.retire(),
            ManagerFault::RollBack => self.roll_back(manager, back_ms),
            ManagerFault::Rot => host.rot(),
        }
        if let Some(back_ns) = i64::try_from(back_ms).ok().and_then(|ms| ms.checked_mul(MS)) {
            self.push(self.now_ns + back_ns, Event::Fault(back));
        }
        Ok(())
    }

    /// The manager that a fault means.
    pub(super) fn index_of(&self, who: Who) -> usize {
        match who {
            Who::Index(index) => index,
            Who::Leader => self.leading().unwrap_or(0),
        }
    }

    /// Powers a manager off, at once or in the middle of one of its next disk operations.
    fn power_off_manager(&mut self, manager: usize) {
        let kind = *self.rng.pick(&[CrashKind::KeepNone, CrashKind::KeepAll, CrashKind::KeepSome, CrashKind::Torn]);
        let (soon, after) = (self.rng.percent(60), self.rng.between(1, 6));
        let host = &mut self.managers[manager];
        if host.is_running() && soon {
            host.disk().fail_at(host.disk().io_count() + after, DiskFault::PowerLoss);
            host.power_fails_soon = true;
        } else {
            host.power_off(kind);
        }
    }

    pub(super) fn tick_manager(&mut self, manager: usize, incarnation: u64) -> Result<(), Violation> {
        let host = &self.managers[manager];
        if host.incarnation != incarnation || !host.is_running() {
            return Ok(());
        }
        self.push(self.now_ns + 100 * MS, Event::ManagerTick { manager, incarnation });
        self.with_manager(manager, |host, now| host.tick(now))?;
        self.check_slow_node()?;
        if self.plan.endless_reader && self.leading() == Some(manager) {
            self.keep_reading(manager)?;
        }
        self.end_failed(manager)
    }

    /// A manager that cannot go on ends, and is started again; one that the group has gone on without joins anew.
    fn end_failed(&mut self, manager: usize) -> Result<(), Violation> {
        if !self.managers[manager].ends() {
            return Ok(());
        }
        let failed = self.managers[manager].manager().and_then(|manager| manager.failed().cloned());
        self.record(&format!("m{manager} ends: {failed:?}"));
        if self.managers[manager].gauge("metadata_differs") == Some(1) {
            if !self.group.is_rotten {
                return broken(
                    "P7",
                    format!("m{manager} differs from the others, and nothing has changed its database"),
                );
            }
            self.group.note("databases rebuilt");
        }
        match self.managers[manager].stopped() {
            Some(PeerError::Outdated) => {
                self.note_lost(Actor::Manager(manager));
                self.managers[manager].lose();
            }
            Some(PeerError::Forgotten { .. }) if self.managers[manager].damaged => {
                self.group.note("damaged managers that join anew");
                self.managers[manager].lose();
            }
            Some(why @ PeerError::Forgotten { .. }) => return broken("P1", format!("manager {manager}: {why}")),
            _ => self.managers[manager].kill(),
        }
        self.push(self.now_ns + 500 * MS, Event::Fault(Fault::StartManager(manager)));
        Ok(())
    }

    /// Has a manager do something, and carries out what follows.
    pub(super) fn with_manager(
        &mut self,
        manager: usize,
        act: impl FnOnce(&mut ManagerHost, i64),
    ) -> Result<(), Violation> {
        if !self.managers[manager].is_running() {
            return Ok(());
        }
        let now_ns = self.clocks.of(Actor::Manager(manager), self.now_ns);
        let host = &mut self.managers[manager];
        let incarnation = host.incarnation;
        act(host, now_ns);
        let (calls, answers) = host.pump(now_ns);
        for call in calls {
            self.send(Actor::Manager(manager), incarnation, call);
        }
        for (ticket, result) in answers {
            self.answer(Actor::Manager(manager), incarnation, ticket, result);
        }
        if self.managers[manager].disk().is_off() {
            self.managers[manager].power_off(CrashKind::KeepSome);
            return if self.quiesced { self.start_manager(manager) } else { Ok(()) };
        }
        self.watch_manager(manager)
    }

    // --- the one that leads ---------------------------------------------------------------------------------

    /// The manager that serves: of several that believe so the one with the highest term.
    pub(super) fn leading(&self) -> Option<usize> {
        let serving = (0..self.managers.len()).filter(|&i| self.managers[i].leads());
        serving.max_by_key(|&i| self.managers[i].manager().map(|manager| manager.peer().standing().term))
    }

    /// The manager that serves; if there is none, one that does not.
    pub(super) fn leader(&self) -> &ManagerHost {
        &self.managers[self.leading().unwrap_or(0)]
    }

    pub(super) fn leader_mut(&mut self) -> &mut ManagerHost {
        let leader = self.leading().unwrap_or(0);
        &mut self.managers[leader]
    }

    pub(super) fn with_leader(&mut self, act: impl FnOnce(&mut ManagerHost, i64)) -> Result<(), Violation> {
        self.with_manager(self.leading().unwrap_or(0), act)
    }

    /// Index of a node by its id. Ids that are committed are never given to another node.
    pub(super) fn node_index(&mut self, node_id: u64) -> Option<Actor> {
        if let Some(index) = self.node_indexes.get(&node_id) {
            return Some(Actor::Node(*index));
        }
        let sql = "SELECT name FROM nodes WHERE node_id = ?1";
        let db = self.leader().db()?;
        let name: String = db.conn().query_row(sql, [node_id as i64], |r| r.get(0)).ok()?;
        let index = name.strip_prefix('n')?.parse().ok()?;
        if db.conn().is_autocommit() {
            self.node_indexes.insert(node_id, index);
        }
        Some(Actor::Node(index))
    }

    // --- the simulator's reader -----------------------------------------------------------------------------

    /// Opens a reader on any file, or renews it. A manager that no longer knows it opens it again.
    fn keep_reading(&mut self, manager: usize) -> Result<(), Violation> {
        let incarnation = self.managers[manager].incarnation;
        if let Some((asked, then, id)) = self.reader.asked
            && (asked, then) == (manager, incarnation)
        {
            let Some(answer) = self.managers[manager].take_answer(id) else { return Ok(()) };
            let opened = answer.map(|body| OpenReadReply::decode(body).map_or(0, |reply| reply.session_id));
            self.reader.session_id = match (self.reader.session_id, opened) {
                (0, Ok(opened)) => opened,
                (renewed, Ok(_)) => renewed,
                (renewed, Err(error)) if error.is_retryable() => renewed,
                (_, Err(_)) => 0,
            };
        }
        let session_id = self.reader.session_id;
        let sql = "SELECT min(i.ino) FROM inodes i JOIN versions v ON v.ino = i.ino WHERE i.nlink > 0";
        let file = self.managers[manager]
            .db()
            .and_then(|db| db.conn().query_row(sql, [], |r| r.get::<_, Option<i64>>(0)).ok().flatten());
        let mut id = None;
        self.with_manager(manager, |host, now| {
            id = match (session_id, file) {
                (0, None) => None,
                (0, Some(ino)) => host.ask_as(Role::Client, now, &OpenRead { ino: ino as u64, ..OpenRead::default() }),
                _ => host.ask_as(Role::Client, now, &RenewSession { session_id, ..RenewSession::default() }),
            };
        })?;
        self.reader.asked = id.map(|id| (manager, incarnation, id));
        Ok(())
    }

    /// Closes the simulator's reader.
    pub(super) fn end_reading(&mut self) -> Result<(), Violation> {
        let Reader { session_id, .. } = std::mem::take(&mut self.reader);
        if session_id == 0 {
            return Ok(());
        }
        self.with_leader(|host, now| {
            _ = host.ask_as(Role::Client, now, &CloseSession { session_id, ..Default::default() })
        })
    }
}
