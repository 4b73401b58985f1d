//! Nodes in the world: starting, pausing, and what they want of it.

use super::*;

impl World {
    pub(super) fn start_node(&mut self, node: usize) {
        let host = &mut self.nodes[node];
        if !host.is_running() {
            // Connections of an earlier life died with it.
            self.asleep.retain(|(of, _)| *of != node);
            host.start();
        }
        let life = host.life;
        self.push(self.now_ns, Happening::NodeTick { node, life });
    }

    /// The paused node that this would reach.
    pub(super) fn sleeper(&self, what: &Happening) -> Option<usize> {
        let node = match what {
            Happening::NodeTick { node, .. } | Happening::NodeDisk { node, .. } | Happening::NodeEvent { node, .. } => {
                *node
            }
            Happening::Deliver(Envelope { to: Actor::Node(node), content: Message::Request { .. }, .. }) => *node,
            Happening::Deliver(Envelope { ticket, .. }) | Happening::Verdict { ticket, .. } => {
                match self.network.caller(*ticket) {
                    Some((Actor::Node(node), _)) => node,
                    _ => return None,
                }
            }
            _ => return None,
        };
        self.nodes.get(node).is_some_and(|host| host.paused && host.is_running()).then_some(node)
    }

    /// A paused node goes on, and everything that reached it meanwhile does so at once, in any order: too late for
    /// many, which is the point. A node that stands still for another reason starts.
    pub(super) fn resume(&mut self, node: usize) {
        self.nodes[node].paused = false;
        self.start_node(node);
        let (due, others) = std::mem::take(&mut self.asleep).into_iter().partition(|(of, _)| *of == node);
        self.asleep = others;
        let due: Vec<(usize, Happening)> = due;
        for (_, what) in due {
            let at = self.now_ns + self.dice.between(0, 1_000) as i64 * 1_000;
            self.push(at, what);
        }
    }

    pub(super) fn with_node(
        &mut self,
        node: usize,
        life: u64,
        act: impl FnOnce(&mut NodeHost, i64) -> Vec<Wish>,
    ) -> Result<(), Violation> {
        let host = &mut self.nodes[node];
        if host.life != life || !host.is_running() {
            return Ok(());
        }
        let wishes = act(host, self.clocks.of(Actor::Node(node), self.now_ns));
        if host.disk().is_off() {
            host.power_off(CrashKind::KeepSome);
            if self.calm {
                self.start_node(node);
            }
            return Ok(());
        }
        self.grant(node, wishes);
        let next = self.nodes[node].next_deadline_ns().map(|at| self.clocks.true_ns(Actor::Node(node), at));
        self.schedule_tick((Actor::Node(node), life), next, Happening::NodeTick { node, life });
        Ok(())
    }

    pub(super) fn grant(&mut self, node: usize, wishes: Vec<Wish>) {
        let life = self.nodes[node].life;
        for wish in wishes {
            match wish {
                Wish::Call(call) => self.send(Actor::Node(node), life, call),
                Wish::Answer { ticket, result } => self.answer(Actor::Node(node), life, ticket, result),
                Wish::DiskLater => {
                    let at = self.now_ns + self.dice.between(50, 4_000) as i64 * 1_000;
                    self.push(at, Happening::NodeDisk { node, life });
                }
                Wish::EventLater(event) => {
                    let at = self.now_ns + self.dice.between(20, 1_000) as i64 * 1_000;
                    self.push(at, Happening::NodeEvent { node, life, event: Box::new(event) });
                }
            }
        }
    }
}
