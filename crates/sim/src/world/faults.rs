//! Injection of faults.

use super::*;

impl World {
    pub(super) fn inject(&mut self, fault: Fault) -> Result<(), Violation> {
        if self.is_too_much(&fault) {
            // Once other peers have taken the place of those that are lost.
            self.push(self.now_ns + 250 * MS, Event::Fault(fault));
            return Ok(());
        }
        match fault {
            Fault::KillNode(node) => self.nodes[node].kill(),
            Fault::PowerOffNode(node) => self.power_off(node),
            Fault::StartNode(node) => self.start_node(node),
            Fault::PauseNode(node) => self.nodes[node].paused = true,
            Fault::ResumeNode(node) => self.resume(node),
            Fault::LoseNode(node) => self.nodes[node].lose(),
            Fault::Manager { who, what, back_ms } => return self.harm_manager(who, what, back_ms),
            Fault::StartManager(manager) => return self.start_manager(manager),
            Fault::ResumeManager(manager) => return self.resume_manager(manager),
            Fault::Partition { who, outbound, inbound } => self.partition(who, outbound, inbound),
            Fault::Cut { from, to } => self.network.cut(from, to),
            Fault::HealPartitions => self.network.heal_partitions(),
            Fault::Rot(node) => {
                self.old_receipts.forget_sound(node, &self.nodes[node]);
                drop(self.nodes[node].disk().rot_somewhere());
            }
            Fault::FailSync(node) => {
                let disk = self.nodes[node].disk();
                disk.set_rates(tessera_disk::FaultRates { sync_fails: 1_000_000, ..Default::default() });
            }
            Fault::FillDisk(node) => self.nodes[node].set_capacity(1),
            Fault::EmptyDisk(node) => self.nodes[node].set_capacity(1 << 30),
            Fault::KillClient(client) => {
                self.clients[client].kill();
                self.held_events.retain(|(of, _)| *of != Actor::Client(client));
                let incarnation = self.clients[client].incarnation;
                self.push(self.now_ns + MS, Event::ClientTick { client, incarnation });
            }
            Fault::CollectGarbage => {
                return self.with_leader(|host, now| host.collect_garbage(now));
            }
            Fault::PauseClient(client) => self.clients[client].paused = true,
            Fault::ResumeClient(client) => self.resume_client(client),
            Fault::Slow(who, slowness) => self.slow_down(who, slowness),
            Fault::Isolate(who) => self.isolate(who),
            Fault::BackUp(manager) => self.managers[manager].back_up(),
            Fault::SetWall(manager, by_ms) => self.managers[manager].wall_ahead_ns = by_ms * MS,
            Fault::SetClock(manager, by_ms) => self.clocks.set(Actor::Manager(manager), by_ms),
            Fault::RotMuch(node) => (0..200).for_each(|_| drop(self.nodes[node].disk().rot_somewhere())),
            Fault::HarmMetadata(who) => self.harm_metadata(who),
            Fault::Drain(node) => return self.with_leader(|host, now| host.drain_node(now, node)),
        }
        Ok(())
    }

    /// Changes a manager's database; later, if it does not run or has an open transaction.
    fn harm_metadata(&mut self, who: Who) {
        match self.managers[self.index_of(who)].harm_metadata() {
            true => self.group.is_rotten = true,
            false => self.push(self.now_ns + 20 * MS, Event::Fault(Fault::HarmMetadata(who))),
        }
    }

    /// Powers a node off, at once or in the middle of one of its next disk operations.
    pub(super) fn power_off(&mut self, node: usize) {
        let kind = *self.rng.pick(&[CrashKind::KeepNone, CrashKind::KeepAll, CrashKind::KeepSome, CrashKind::Torn]);
        let host = &mut self.nodes[node];
        if host.is_running() && self.rng.percent(60) {
            let at = host.disk().io_count() + self.rng.between(1, 12);
            host.disk().fail_at(at, DiskFault::PowerLoss);
            host.power_fails_soon = true;
        } else {
            host.power_off(kind);
        }
    }

    pub(super) fn resume_client(&mut self, client: usize) {
        self.clients[client].paused = false;
        self.release(Actor::Client(client));
    }

    /// Cuts a manager off from all peers, but not from the clients.
    fn isolate(&mut self, who: Who) {
        let who = Actor::Manager(self.index_of(who));
        let is_peer = |other: &Actor| *other != who && !matches!(other, Actor::Client(_));
        for other in self.all_actors().into_iter().filter(is_peer) {
            self.network.cut(who, other);
            self.network.cut(other, who);
        }
    }

    pub(super) fn partition(&mut self, who: Actor, outbound: bool, inbound: bool) {
        for other in self.all_actors().into_iter().filter(|other| *other != who) {
            if outbound {
                self.network.cut(who, other);
            }
            if inbound {
                self.network.cut(other, who);
            }
        }
    }
}
