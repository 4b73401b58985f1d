//! Cluster membership: registration, heartbeats, the lease, and rejoining after the manager declared the node out
//! (P11).
//!
//! A node acknowledges puts only while its lease lasts. The node counts the lease from when it *sent* the answered
//! heartbeat; the manager counts from when the heartbeat arrived. So a node stops acknowledging before the manager
//! declares it out.

use super::event::{Action, ManagerMark};
use super::{CallPurpose, NodeCore};
use crate::config::{NodeConfig, ms};
use tessera_stripe::KEY_BYTES;
use tessera_wire::meta::{Heartbeat, HeartbeatReply, RegisterNode, RegisterNodeReply, TaskResult};
use tessera_wire::rpc::{Answer, Peer};
use tessera_wire::{Code, DiskInfo, Error, Health, NodeInfo};

#[derive(Debug, Default)]
pub(super) struct Membership {
    pub(super) node_id: u64,
    pub(super) incarnation: u64,
    pub(super) lease_until_ns: i64,
    /// Key of the receipts, as the manager knows it.
    pub(super) receipt_key: [u8; KEY_BYTES],
    heartbeat_ms: u64,
    /// Registered: it sends heartbeats. Otherwise it registers.
    joined: bool,
    /// The registration or heartbeat in progress.
    token: Option<u64>,
    /// How many of these failed in a row.
    failures: u32,
    /// How they failed, as the log says.
    told: Option<Code>,
    /// When the next one is due.
    next_call_ns: i64,
    /// Op id and disks of a registration that may have arrived; op id 0: none may have.
    op_id: u64,
    disks: Vec<usize>,
    /// The manager declared this node out. It refuses requests as fenced until it has rejoined.
    fenced: bool,
    /// Another node serves these disks or has this name.
    rival: Rival,
    heartbeat_number: u64,
    last_beat_ns: i64,
}

/// Another node that the manager counts as alive in this one's place. This node's previous incarnation counts as alive for
/// some heartbeats after it ended, and one of its heartbeats may still arrive late. But the manager does not keep hearing
/// from it.
#[derive(Debug, Default)]
pub(crate) struct Rival {
    /// When the manager last heard from it.
    heard_ns: u64,
    /// How often that time has advanced.
    beats: u32,
}

/// If the manager refuses this node because another one is alive, this node stops after the manager has heard the other
/// this many times more.
const RIVAL_BEATS: u32 = 3;

impl Rival {
    /// Whether a refusal is about a rival, dead or alive.
    pub(crate) fn is_named(error: &Error) -> bool {
        error.code() == Code::Exists && error.current != 0
    }

    /// True if another node is certainly alive in this one's place, by this refusal and those before.
    pub(crate) fn is_alive(&mut self, error: &Error) -> bool {
        if !Rival::is_named(error) {
            return false;
        }
        let beats = self.heard_ns != 0 && error.current > self.heard_ns;
        self.heard_ns = self.heard_ns.max(error.current);
        self.beats += u32::from(beats);
        self.beats >= RIVAL_BEATS
    }
}

/// A heartbeat in progress and its report; an answer removes the reported items from the lists.
#[derive(Debug)]
pub(super) struct PendingHeartbeat {
    sent_ns: i64,
    mark: ManagerMark,
    deleted: usize,
    bad: usize,
    results: Vec<TaskResult>,
}

impl Membership {
    pub(super) fn new(config: &NodeConfig) -> Self {
        let (lease_until_ns, next_call_ns) = (i64::MIN, i64::MIN);
        Membership { lease_until_ns, next_call_ns, heartbeat_ms: config.heartbeat_ms, ..Membership::default() }
    }

    /// Whether the log is to tell this failure: it does not repeat itself with each attempt.
    fn tell(&mut self, error: &Error) -> bool {
        self.told.replace(error.code()) != Some(error.code())
    }

    /// The pause after a failed registration or heartbeat; doubles up to `max_ms`.
    fn pause_ms(&mut self, min_ms: u64, max_ms: u64) -> u64 {
        self.failures += 1;
        min_ms.saturating_mul(1 << (self.failures - 1).min(16)).min(max_ms)
    }
}

impl NodeCore {
    /// Returns an error unless puts may be acknowledged now (P11).
    pub(super) fn check_lease(&self) -> Result<(), Error> {
        let it = &self.membership;
        let (code, message) = match it.joined {
            false if it.fenced => {
                (Code::Fenced, "this node was declared out and is rejoining; ask the manager for the map again")
            }
            false => (Code::Unavailable, "this node has not yet registered with its manager; ask again"),
            true if self.now_ns >= it.lease_until_ns => {
                (Code::Unavailable, "this node has not heard from its manager for longer than its lease; ask again")
            }
            true => return Ok(()),
        };
        Err(Error::new(code, message))
    }

    pub(super) fn membership_deadline_ns(&self) -> i64 {
        if self.membership.token.is_none() { self.membership.next_call_ns } else { i64::MAX }
    }

    /// When to look again. While a call is under way that is when the next one is due if the answer comes in time: its arrival then changes
    /// no deadline, and wakes no timer.
    pub(super) fn timer_deadline_ns(&self) -> i64 {
        match self.membership.token.is_some() && self.now_ns < self.membership.next_call_ns {
            true => self.membership.next_call_ns,
            false => self.membership_deadline_ns(),
        }
    }

    pub(super) fn run_membership(&mut self) {
        if self.now_ns >= self.membership_deadline_ns() {
            if self.membership.joined { self.beat() } else { self.register() }
        }
    }

    /// True if an event at `now_ns` makes this node send a heartbeat.
    pub fn is_heartbeat_due(&self, now_ns: i64) -> bool {
        self.membership.joined && now_ns >= self.membership_deadline_ns()
    }

    /// Schedules the next heartbeat early, because the manager should learn something soon.
    pub(super) fn heartbeat_soon(&mut self) {
        let it = &mut self.membership;
        if it.joined {
            it.next_call_ns = it.next_call_ns.min(it.last_beat_ns.saturating_add(ms(self.config.early_heartbeat_ms)));
        }
    }

    // --- registering ----------------------------------------------------------------------------------------

    fn register(&mut self) {
        let fresh = self.random.next_u64() | 1;
        let serving: Vec<usize> = (0..self.disks.len()).filter(|&i| self.disks[i].failed.is_none()).collect();
        // An attempt that may have arrived is repeated with the same op id: one registration, one incarnation (P8).
        if self.membership.op_id == 0 || self.membership.disks != serving {
            (self.membership.op_id, self.membership.disks) = (fresh, serving);
        }
        let disks = self.membership.disks.iter().map(|&i| self.disk_info(i)).collect();
        let (op_id, node, receipt_key) = (self.membership.op_id, Some(self.node_info()), self.me.receipt_key.to_vec());
        let message = RegisterNode { op_id, node, disks, receipt_key, check_only: false };
        let purpose = CallPurpose::Register { sent_ns: self.now_ns, mark: self.mark };
        let token = self.call(Peer::Manager, &message, self.config.register_timeout_ms, purpose);
        self.membership.token = Some(token);
    }

    pub(super) fn on_registered(&mut self, sent_ns: i64, mark: ManagerMark, answer: Answer) {
        match answer.decode::<RegisterNode>() {
            Ok((reply, _)) => self.try_join(sent_ns, mark, reply),
            Err(error) => {
                let hopeless = [Code::WrongCluster, Code::ProtocolVersion, Code::Permission, Code::Unsupported];
                let hopeless = hopeless.contains(&error.code());
                if (hopeless && self.membership.node_id == 0) || self.membership.rival.is_alive(&error) {
                    let message = match error.code() {
                        Code::Unsupported => format!("no manager answers: {}", error.message),
                        _ => error.message.clone(),
                    };
                    self.out.push_back(Action::Fatal(Error { message, ..error }));
                } else {
                    if self.membership.tell(&error) {
                        tracing::warn!(%error, "registration failed; trying again until it succeeds");
                    }
                    // The manager would repeat a final refusal for the same op id.
                    self.join_later(error.is_retryable());
                }
            }
        }
    }

    fn join_later(&mut self, keep_op_id: bool) {
        let (min, max) = (self.config.register_retry_min_ms, self.config.register_retry_max_ms);
        let jitter = self.random.below(min.max(1));
        let it = &mut self.membership;
        it.token = None;
        it.next_call_ns = self.now_ns.saturating_add(ms(it.pause_ms(min, max) + jitter));
        if !keep_op_id {
            it.op_id = 0;
        }
    }

    fn try_join(&mut self, sent_ns: i64, asked_at: ManagerMark, reply: RegisterNodeReply) {
        if self.membership.joined {
            return;
        }
        if !self.me.cluster_id.is_empty() && reply.cluster_id != self.me.cluster_id {
            let message = format!(
                "the manager serves cluster {}, these disks belong to {}; check --manager",
                tessera_wire::hex(&reply.cluster_id),
                tessera_wire::hex(&self.me.cluster_id)
            );
            return self.out.push_back(Action::Fatal(Error::new(Code::WrongCluster, message)));
        }
        let mark = ManagerMark { term: reply.term, log_seq: reply.log_seq };
        let disks = self.membership.disks.clone();
        let newer = reply.disk_ids.len() == disks.len() && reply.incarnation > self.membership.incarnation;
        let receipt_key = <[u8; KEY_BYTES]>::try_from(&reply.receipt_key[..]).ok().filter(|_| newer);
        let Some(receipt_key) = receipt_key.filter(|_| self.admit_manager(mark, asked_at)) else {
            tracing::error!(
                incarnation = reply.incarnation,
                disks = reply.disk_ids.len(),
                "the manager's answer to the registration is not believed"
            );
            return self.join_later(false);
        };
        assert!(reply.incarnation > self.membership.incarnation, "incarnation {} again", reply.incarnation);
        for (&disk, &disk_id) in disks.iter().zip(&reply.disk_ids) {
            self.disks[disk].disk_id = disk_id;
        }
        self.me.cluster_id = reply.cluster_id;
        let it = &mut self.membership;
        it.node_id = reply.node_id;
        it.receipt_key = receipt_key;
        it.incarnation = reply.incarnation;
        it.lease_until_ns = sent_ns.saturating_add(ms(reply.lease_ms));
        it.heartbeat_ms = reply.heartbeat_ms.max(1);
        it.fenced = false;
        it.rival = Rival::default();
        it.heartbeat_number = 0;
        it.last_beat_ns = self.now_ns;
        it.next_call_ns = self.now_ns;
        (it.joined, it.token, it.failures, it.told, it.op_id) = (true, None, 0, None, 0);
        tracing::info!(node = reply.node_id, incarnation = reply.incarnation, "registered");
        self.out.push_back(Action::DisksNamed { disk_ids: self.disks.iter().map(|d| d.disk_id).collect() });
        self.report_rot_of_opening();
    }

    /// Rejoins because the manager no longer counts on this incarnation: stops acknowledging, drops tasks, registers
    /// again (P11).
    fn rejoin(&mut self, fenced: bool) {
        tracing::warn!(incarnation = self.membership.incarnation, fenced, "this node must register again");
        self.counters.rejoins += 1;
        let it = &mut self.membership;
        (it.joined, it.token, it.failures, it.fenced) = (false, None, 0, fenced);
        (it.lease_until_ns, it.next_call_ns) = (i64::MIN, self.now_ns);
        self.drop_tasks(None);
        assert!(self.check_lease().is_err(), "a node that must register again still has its lease");
    }

    // --- heartbeats -----------------------------------------------------------------------------------------

    fn beat(&mut self) {
        let most = self.config.max_report_items;
        let results = self.task_results(most);
        let deleted: Vec<_> = self.deletes.done.iter().take(most).cloned().collect();
        let bad: Vec<_> = self.bad.iter().take(most).cloned().collect();
        let named: Vec<usize> = (0..self.disks.len()).filter(|&i| self.disks[i].disk_id != 0).collect();
        let failed = named.iter().filter(|&&i| self.disks[i].failed.is_some());
        assert!(deleted.len() <= most && bad.len() <= most, "a heartbeat reports at most {most} of each");
        assert!(self.membership.incarnation > 0, "a heartbeat before the first registration");
        self.membership.heartbeat_number += 1;
        let message = Heartbeat {
            node_id: self.membership.node_id,
            incarnation: self.membership.incarnation,
            disks: named.iter().map(|&i| self.disk_info(i)).collect(),
            results,
            failed_disks: failed.map(|&i| self.disks[i].disk_id).collect(),
            number: self.membership.heartbeat_number,
            known_map_version: self.cluster.map_version,
            running_tasks: self.tasks.running(),
            scrubbed_bytes: named.iter().map(|&i| self.disks[i].scrub.bytes).collect(),
            deleted,
            bad,
            device_work: self.device_work.clone(),
            // Its voter is on the first disk, and may hang with it.
            voter_id: if self.disks.first().is_some_and(|disk| disk.failed.is_none()) { self.voter_id } else { 0 },
        };
        let sent = PendingHeartbeat {
            sent_ns: self.now_ns,
            mark: self.mark,
            deleted: message.deleted.len(),
            bad: message.bad.len(),
            results: message.results.clone(),
        };
        let token = self.call(Peer::Manager, &message, self.config.heartbeat_timeout_ms, CallPurpose::Heartbeat(sent));
        let it = &mut self.membership;
        it.token = Some(token);
        it.last_beat_ns = self.now_ns;
        it.next_call_ns = self.now_ns.saturating_add(ms(it.heartbeat_ms));
        self.refresh_stats();
    }

    pub(super) fn on_heartbeat_answered(&mut self, sent: PendingHeartbeat, answer: Answer) {
        // The answer to an earlier incarnation has another token.
        if self.membership.token.take_if(|token| *token == answer.token).is_none() {
            return;
        }
        match answer.decode::<Heartbeat>() {
            Ok((reply, _)) => self.on_heartbeat_reply(sent, reply),
            Err(error) if matches!(error.code(), Code::NotRegistered | Code::Fenced) => self.rejoin(true),
            Err(error) => {
                if self.membership.tell(&error) {
                    tracing::warn!(%error, "heartbeat not answered; trying again until one is");
                }
                self.counters.heartbeats_lost += 1;
                // Repeated before the next one is due.
                let it = &mut self.membership;
                let pause_ms = it.pause_ms(self.config.register_retry_min_ms, it.heartbeat_ms);
                it.next_call_ns = self.now_ns.saturating_add(ms(pause_ms));
            }
        }
    }

    fn on_heartbeat_reply(&mut self, sent: PendingHeartbeat, reply: HeartbeatReply) {
        (self.membership.failures, self.membership.told) = (0, None);
        let mark = ManagerMark { term: reply.term, log_seq: reply.log_seq };
        if !self.admit_manager(mark, sent.mark) {
            return;
        }
        if reply.must_register {
            return self.rejoin(true);
        }
        self.counters.heartbeats_answered += 1;
        assert!(sent.sent_ns <= self.now_ns, "a heartbeat was answered before it was sent");
        let lease_until = sent.sent_ns.saturating_add(ms(reply.lease_ms));
        self.membership.lease_until_ns = self.membership.lease_until_ns.max(lease_until);
        self.deletes.reported(sent.deleted);
        assert!(sent.bad <= self.bad.len(), "{} of {} bad fragments were reported", sent.bad, self.bad.len());
        self.bad.drain(..sent.bad);
        self.tasks_reported(&sent.results);
        self.repair_bucket.set_rate(reply.repair_bytes_per_s);
        self.scrub_bucket.set_rate(reply.scrub_bytes_per_s);
        if let Some(map) = reply.map {
            self.learn_map(map);
        }
        reply.pgs.into_iter().for_each(|pg| self.learn_pg(pg));
        self.delete_all(&reply.deletes);
        reply.tasks.into_iter().for_each(|task| self.add_task(task));
    }

    /// Stores a group, unless a newer epoch of it is known (P11).
    pub(super) fn learn_pg(&mut self, pg: tessera_wire::PgInfo) {
        let newer = self.cluster.pgs.get(&pg.pg_id).is_none_or(|known| known.epoch < pg.epoch);
        if newer {
            let (pg_id, epoch) = (pg.pg_id, pg.epoch);
            let before = self.cluster.pgs.insert(pg_id, pg);
            assert!(before.is_none_or(|old| old.epoch < epoch), "group {pg_id} went back to epoch {epoch}");
        }
    }

    fn learn_map(&mut self, map: tessera_wire::meta::ClusterMap) {
        self.cluster.map_version = self.cluster.map_version.max(map.version);
        self.cluster.nodes.extend(map.nodes.into_iter().map(|n| (n.node_id, n)));
        self.cluster.disks.extend(map.disks.into_iter().map(|d| (d.disk_id, d)));
        self.cluster.classes.extend(map.classes.into_iter().map(|c| (c.class_id, c)));
        map.pgs.into_iter().for_each(|pg| self.learn_pg(pg));
    }

    pub(super) fn node_info(&self) -> NodeInfo {
        NodeInfo {
            node_id: self.membership.node_id,
            incarnation: self.membership.incarnation,
            health: Health::Up as i32,
            ..self.me.info.clone()
        }
    }

    fn disk_info(&self, disk: usize) -> DiskInfo {
        let state = &self.disks[disk];
        DiskInfo {
            disk_id: state.disk_id,
            node_id: self.membership.node_id,
            uuid: state.about.uuid.to_vec(),
            health: if state.failed.is_none() { Health::Up as i32 } else { Health::Out as i32 },
            capacity_bytes: state.about.stats.capacity_bytes,
            free_bytes: state.about.stats.free_bytes,
            fragments: state.about.stats.store.fragments,
            queue_len: state.queue_len,
            path: state.about.path.clone(),
            used_bytes: state.about.stats.store.file_bytes,
            index_bytes: state.about.stats.store.index_bytes,
            verified_ns: state.scrub.verified_ns,
        }
    }
}
