//! Events of clients, and the messages between all actors.

use super::*;

/// The longer of the leases of simulated nodes and of entries (`Mutant::manager_config`), in ms.
const LEASE_MS: i64 = 600;

impl World {
    // --- clients --------------------------------------------------------------------------------------------

    pub(super) fn tick_client(&mut self, client: usize, incarnation: u64) -> Result<(), Violation> {
        let host = &mut self.clients[client];
        if host.incarnation != incarnation {
            return Ok(());
        }
        let calls = host.tick(self.clocks.of(Actor::Client(client), self.now_ns), &mut self.oracle)?;
        self.after_client(client, calls)
    }

    /// Sends a client's calls, and checks that its last operation did not end with a code that no operation may end with.
    pub(super) fn after_client(&mut self, client: usize, calls: Vec<Call>) -> Result<(), Violation> {
        if let Some((code, text)) = self.clients[client].errors.last()
            && matches!(code, Code::Unknown | Code::Internal | Code::Invalid | Code::Unsupported)
        {
            return broken("P14", format!("client {client} got {code:?}: {text}"));
        }
        if let Some((Code::Corrupt, text)) = self.clients[client].errors.last()
            && text.contains("of the manager's database is damaged")
            && !(self.plan.rots_metadata || self.plan.harms_metadata)
        {
            return broken("P5", format!("client {client}: {text}"));
        }
        self.note_operation(client);
        let incarnation = self.clients[client].incarnation;
        for call in calls {
            self.send(Actor::Client(client), incarnation, call);
        }
        let host = &self.clients[client];
        if host.is_done() {
            return Ok(());
        }
        let pause = self.now_ns + self.rng.between(1, 900) as i64 * MS;
        let next = host.next_due().map_or(pause, |at| self.clocks.true_ns(Actor::Client(client), at));
        self.schedule_tick((Actor::Client(client), incarnation), Some(next), Event::ClientTick { client, incarnation });
        Ok(())
    }

    // --- messages -------------------------------------------------------------------------------------------

    pub(super) fn send(&mut self, from: Actor, incarnation: u64, mut call: Call) {
        if self.is_mutated(from) {
            self.mutant.corrupt_call(&mut call);
        }
        if self.mutant == Mutant::OldReceipts && (self.is_mutated(from) || matches!(from, Actor::Node(_))) {
            self.old_receipts.change(from, &mut call);
        }
        if self.log.is_some() && !matches!(call.kind, Kind::Heartbeat | Kind::Consensus) {
            self.record(&format!("{from:?} -> {:?} {}", call.peer, call.kind.name()));
        }
        self.mix(call.kind as u64, call.token);
        self.note_question(from, &call);
        let to = match &call.peer {
            Peer::Manager => {
                let routed = self.routes.begin((from, incarnation), call, self.now_ns);
                return self.attempt(routed);
            }
            Peer::Node(id) => self.node_index(*id),
            Peer::Connection(number) => Some(Actor::Client(*number as usize)),
            Peer::Address(address) => Actor::at(address),
        };
        // No node has that id: there is nothing to connect to.
        let to = to.unwrap_or(Actor::Node(usize::MAX));
        let (_, outcome) = self.network.call((from, incarnation), to, call);
        self.schedule_messages(from, outcome);
    }

    /// Asks a manager that may lead.
    pub(super) fn attempt(&mut self, routed: Routed) {
        let (to, call) = routed.attempt();
        let from = routed.caller;
        let (ticket, outcome) = self.network.call(from, to, call);
        self.routed.insert(ticket, routed);
        self.schedule_messages(from.0, outcome);
    }

    /// Whether the mutant changes what this side sends and receives.
    fn is_mutated(&self, who: Actor) -> bool {
        self.liar.is_none_or(|liar| who == Actor::Client(liar))
    }

    pub(super) fn answer(
        &mut self,
        from: Actor,
        incarnation: u64,
        ticket: u64,
        result: Result<(bytes::Bytes, bytes::Bytes), Error>,
    ) {
        let Some((caller, kind)) = self.callers.get(&ticket).copied() else { return };
        let result = result.map(|(mut body, payload)| {
            if self.is_mutated(caller) {
                self.mutant.corrupt_answer(kind, &mut body);
            }
            (body, payload)
        });
        let outcome = self.network.answer((from, incarnation), caller, ticket, result);
        self.schedule_messages(from, outcome);
    }

    pub(super) fn schedule_messages(&mut self, from: Actor, outcome: Outcome) {
        for (delay_ns, envelope) in outcome.deliveries {
            if delay_ns as i64 > LEASE_MS * MS {
                self.group.note("frames held past a lease");
            }
            if let Message::Request { kind, .. } = envelope.content {
                self.callers.insert(envelope.ticket, (from, kind));
            }
            self.push(self.now_ns + delay_ns as i64, Event::Deliver(envelope));
        }
        for (delay_ns, ticket, error) in outcome.failures {
            self.push(self.now_ns + delay_ns as i64, Event::CallFailed { ticket, error });
        }
    }

    pub(super) fn deliver(&mut self, envelope: Envelope) -> Result<(), Violation> {
        self.mix(envelope.ticket, envelope.from.1);
        let Envelope { from, to, ticket, content } = envelope;
        let (kind, body, payload) = match content {
            Message::Answer(result) => return self.close_call(ticket, result),
            Message::Request { kind, body, payload } => (kind, body, payload),
        };
        if self.refuses(to) {
            let error = crate::routes::refused(to);
            self.push(self.now_ns + MS, Event::CallFailed { ticket, error });
            return Ok(());
        }
        match to {
            Actor::Node(node) if node < self.nodes.len() => {
                let incarnation = self.nodes[node].incarnation;
                self.with_node(node, incarnation, |host, now| host.request(now, ticket, kind, &body, payload))
            }
            Actor::Manager(manager) if manager < self.managers.len() => {
                let client_id = match from.0 {
                    Actor::Client(index) => 1_000 + index as u64 + from.1 * 1_000_000,
                    Actor::Node(index) => 1 + index as u64 + from.1 * 1_000_000,
                    Actor::Manager(_) => 0,
                };
                self.with_manager(manager, |host, now| {
                    host.request(now, ticket, from.0, client_id, kind, body, payload);
                })
            }
            // Simulated clients hold no leases, so they answer recalls at once.
            Actor::Client(index) => {
                self.answer(Actor::Client(index), 0, ticket, Ok(Default::default()));
                Ok(())
            }
            Actor::Node(_) | Actor::Manager(_) => Ok(()),
        }
    }

    /// Whether the receiver's host refuses the connection because the process does not run; else the message is lost.
    fn refuses(&mut self, to: Actor) -> bool {
        let runs = match to {
            Actor::Node(node) => self.nodes.get(node).is_none_or(|host| host.lost || host.is_running()),
            Actor::Manager(manager) => self.managers.get(manager).is_none_or(ManagerHost::is_running),
            Actor::Client(_) => true,
        };
        !runs && self.rng.percent(50)
    }

    pub(super) fn close_call(
        &mut self,
        ticket: u64,
        result: Result<(bytes::Bytes, bytes::Bytes), Error>,
    ) -> Result<(), Violation> {
        let Some(((actor, incarnation), answer)) = self.network.close(ticket, result) else { return Ok(()) };
        let answer = match self.routed.remove(&ticket) {
            None => answer,
            Some(routed) => match self.routes.ended(routed, self.now_ns, answer.result) {
                Next::Answer(answer) => answer,
                Next::Ask(routed) => {
                    self.attempt(routed);
                    return Ok(());
                }
                Next::Pause(routed, pause_ns) => {
                    self.push(self.now_ns + pause_ns, Event::Search(Box::new(routed)));
                    return Ok(());
                }
            },
        };
        match actor {
            Actor::Manager(manager) if self.managers[manager].incarnation == incarnation => {
                return self.with_manager(manager, |host, now| host.answer(now, answer));
            }
            Actor::Node(node) => return self.with_node(node, incarnation, |host, now| host.answer(now, answer)),
            Actor::Client(client) if probes::is_probe(answer.token) => {
                self.note_answer(client, answer.token);
                return self.probed(answer);
            }
            Actor::Client(client) if self.clients[client].incarnation == incarnation => {
                self.note_answer(client, answer.token);
                if let (Err(error), true) = (&answer.result, self.log.is_some()) {
                    self.record(&format!("{actor:?} <- {:?}: {error}", error.code()));
                }
                let now = self.clocks.of(Actor::Client(client), self.now_ns);
                let calls = self.clients[client].answer(now, answer, &mut self.oracle)?;
                return self.after_client(client, calls);
            }
            _ => {}
        }
        Ok(())
    }
}
