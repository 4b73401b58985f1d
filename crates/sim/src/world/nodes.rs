//! Nodes in the world: start, pause, resume, and the effects of their handlers.

use super::*;

impl World {
    pub(super) fn start_node(&mut self, node: usize) {
        let host = &mut self.nodes[node];
        if !host.is_running() {
            // The connections of the earlier incarnation are gone.
            self.held_events.retain(|(of, _)| *of != Actor::Node(node));
            host.start();
            let incarnation = host.incarnation;
            let first_ns = self.now_ns + self.rng.between(0, 100) as i64 * MS;
            self.push(first_ns, Event::VoterTick { node, incarnation });
        }
        let incarnation = self.nodes[node].incarnation;
        self.push(self.now_ns, Event::NodeTick { node, incarnation });
    }

    pub(super) fn tick_voter(&mut self, node: usize, incarnation: u64) -> Result<(), Violation> {
        if self.nodes[node].incarnation == incarnation && self.nodes[node].is_running() {
            self.push(self.now_ns + 100 * MS, Event::VoterTick { node, incarnation });
        }
        self.with_node(node, incarnation, |host, now| host.tick_voter(now))
    }

    /// The process that this event reaches.
    pub(super) fn receiver(&self, what: &Event) -> Option<Actor> {
        Some(match what {
            Event::NodeTick { node, .. }
            | Event::VoterTick { node, .. }
            | Event::NodeDisk { node, .. }
            | Event::NodeDone { node, .. } => Actor::Node(*node),
            Event::ManagerTick { manager, .. } => Actor::Manager(*manager),
            Event::ClientTick { client, .. } => Actor::Client(*client),
            Event::Search(routed) => routed.caller.0,
            Event::Deliver(Envelope { to, content: Message::Request { .. }, .. }) => *to,
            Event::Deliver(Envelope { ticket, .. }) | Event::CallFailed { ticket, .. } => {
                self.network.caller(*ticket)?.0
            }
            _ => return None,
        })
    }

    /// The paused process that this event would reach.
    pub(super) fn paused(&self, what: &Event) -> Option<Actor> {
        let actor = self.receiver(what)?;
        let is_paused = match actor {
            Actor::Node(node) => self.nodes.get(node).is_some_and(|host| host.paused && host.is_running()),
            Actor::Manager(manager) => self.managers.get(manager).is_some_and(|host| host.paused && host.is_running()),
            Actor::Client(client) => self.clients.get(client).is_some_and(|host| host.paused),
        };
        is_paused.then_some(actor)
    }

    /// Resumes a paused node. A node that does not run starts.
    pub(super) fn resume(&mut self, node: usize) {
        self.nodes[node].paused = false;
        self.start_node(node);
        self.release(Actor::Node(node));
    }

    /// A process that was paused receives all held events at once, in random order, many of them too late.
    pub(super) fn release(&mut self, actor: Actor) {
        let (due, others) = std::mem::take(&mut self.held_events).into_iter().partition(|(of, _)| *of == actor);
        self.held_events = others;
        let due: Vec<(Actor, Event)> = due;
        for (_, what) in due {
            let at = self.now_ns + self.rng.between(0, 1_000) as i64 * 1_000;
            self.push(at, what);
        }
    }

    pub(super) fn with_node(
        &mut self,
        node: usize,
        incarnation: u64,
        act: impl FnOnce(&mut NodeHost, i64) -> Vec<Effect>,
    ) -> Result<(), Violation> {
        let host = &mut self.nodes[node];
        if host.incarnation != incarnation || !host.is_running() {
            return Ok(());
        }
        let effects = act(host, self.clocks.of(Actor::Node(node), self.now_ns));
        if host.disk().is_off() {
            host.power_off(CrashKind::KeepSome);
            if self.quiesced {
                self.start_node(node);
            }
            return Ok(());
        }
        self.apply_effects(node, effects);
        self.watch_voter(node)?;
        let next = self.nodes[node].next_deadline_ns().map(|at| self.clocks.true_ns(Actor::Node(node), at));
        self.schedule_tick((Actor::Node(node), incarnation), next, Event::NodeTick { node, incarnation });
        Ok(())
    }

    pub(super) fn apply_effects(&mut self, node: usize, effects: Vec<Effect>) {
        let incarnation = self.nodes[node].incarnation;
        for effect in effects {
            match effect {
                Effect::Call(call) => self.send(Actor::Node(node), incarnation, call),
                Effect::Answer { ticket, result } => self.answer(Actor::Node(node), incarnation, ticket, result),
                Effect::DiskLater => {
                    let at = self.now_ns + self.disk_ns(Actor::Node(node), 50, 4_000);
                    self.push(at, Event::NodeDisk { node, incarnation });
                }
                Effect::EventLater(event) => {
                    let at = self.now_ns + self.disk_ns(Actor::Node(node), 20, 1_000);
                    self.push(at, Event::NodeDone { node, incarnation, event: Box::new(event) });
                }
            }
        }
    }
}
