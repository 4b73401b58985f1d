//! Who hears what when: clients, the manager, and the messages between them and the nodes.

use super::*;

impl World {
    // --- clients --------------------------------------------------------------------------------------------

    pub(super) fn tick_client(&mut self, client: usize, life: u64) -> Result<(), Violation> {
        let host = &mut self.clients[client];
        if host.life != life {
            return Ok(());
        }
        let calls = host.tick(self.clocks.of(Actor::Client(client), self.now_ns), &mut self.oracle)?;
        self.after_client(client, calls)
    }

    /// Sends what a client asks, and judges how its last operation ended: with a code that says what is the matter.
    pub(super) fn after_client(&mut self, client: usize, calls: Vec<Call>) -> Result<(), Violation> {
        if let Some((code, text)) = self.clients[client].errors.last()
            && matches!(code, Code::Unknown | Code::Internal | Code::Invalid | Code::Unsupported)
        {
            return broken("P14", format!("client {client} was told {code:?}: {text}"));
        }
        let life = self.clients[client].life;
        for call in calls {
            self.send(Actor::Client(client), life, call);
        }
        let host = &self.clients[client];
        if host.is_done() {
            return Ok(());
        }
        let pause = self.now_ns + self.dice.between(1, 900) as i64 * MS;
        let next = host.next_due().map_or(pause, |at| self.clocks.true_ns(Actor::Client(client), at));
        self.schedule_tick((Actor::Client(client), life), Some(next), Happening::ClientTick { client, life });
        Ok(())
    }

    // --- the manager ----------------------------------------------------------------------------------------

    pub(super) fn start_manager(&mut self) {
        if self.manager.is_running() {
            return;
        }
        self.manager.start(self.manager_now());
        self.pump_manager();
        self.push(self.now_ns, Happening::ManagerTick { life: self.manager.life });
    }

    /// Commits what waits and sends what the manager has to say.
    pub(super) fn pump_manager(&mut self) {
        let life = self.manager.life;
        let (calls, answers) = self.manager.pump(self.manager_now());
        for call in calls {
            self.send(Actor::Manager, life, call);
        }
        for (ticket, result) in answers {
            self.answer(Actor::Manager, life, ticket, result);
        }
    }

    // --- messages -------------------------------------------------------------------------------------------

    pub(super) fn send(&mut self, from: Actor, life: u64, mut call: Call) {
        self.planted.corrupt_call(&mut call);
        let to = match &call.peer {
            Peer::Manager => Some(Actor::Manager),
            Peer::Node(id) => self.manager.node_index(*id),
            Peer::Connection(number) => Some(Actor::Client(*number as usize)),
            Peer::Address(address) => {
                address.trim_start_matches('n').trim_end_matches(":1").parse().ok().map(Actor::Node)
            }
        };
        if self.log.is_some() && call.kind != Kind::Heartbeat {
            self.say(&format!("{from:?} -> {:?} {}", call.peer, call.kind.name()));
        }
        self.mix(call.kind as u64, call.token);
        // Nobody has that id: the connection cannot even be tried.
        let to = to.unwrap_or(Actor::Node(usize::MAX));
        let outcome = self.network.call((from, life), to, call);
        self.under_way(from, outcome);
    }

    pub(super) fn answer(
        &mut self,
        from: Actor,
        life: u64,
        ticket: u64,
        result: Result<(bytes::Bytes, bytes::Bytes), Error>,
    ) {
        let Some((asker, kind)) = self.askers.get(&ticket).copied() else { return };
        let result = result.map(|(mut body, payload)| {
            self.planted.corrupt_answer(kind, &mut body);
            (body, payload)
        });
        let outcome = self.network.answer((from, life), asker, ticket, result);
        self.under_way(from, outcome);
    }

    pub(super) fn under_way(&mut self, from: Actor, outcome: Outcome) {
        for (delay_ns, envelope) in outcome.deliveries {
            if let Message::Request { kind, .. } = envelope.content {
                self.askers.insert(envelope.ticket, (from, kind));
            }
            self.push(self.now_ns + delay_ns as i64, Happening::Deliver(envelope));
        }
        for (delay_ns, ticket, error) in outcome.verdicts {
            self.push(self.now_ns + delay_ns as i64, Happening::Verdict { ticket, error });
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
            let error = Error::new(Code::Unavailable, format!("{to:?} refused the connection"));
            self.push(self.now_ns + MS, Happening::Verdict { ticket, error });
            return Ok(());
        }
        match to {
            Actor::Node(node) if node < self.nodes.len() => {
                let life = self.nodes[node].life;
                self.with_node(node, life, |host, now| host.request(now, ticket, kind, &body, payload))
            }
            Actor::Manager => {
                let client_id = match from.0 {
                    Actor::Client(index) => 1_000 + index as u64 + from.1 * 1_000_000,
                    Actor::Node(index) => 1 + index as u64 + from.1 * 1_000_000,
                    Actor::Manager => 0,
                };
                self.manager.request(self.manager_now(), ticket, from.0, client_id, kind, body, payload);
                self.pump_manager();
                Ok(())
            }
            // Simulated clients hold no leases: an answer is all a recall needs.
            Actor::Client(index) => {
                self.answer(Actor::Client(index), 0, ticket, Ok(Default::default()));
                Ok(())
            }
            Actor::Node(_) => Ok(()),
        }
    }

    /// A process that is not there: its host says so, or nobody does.
    fn refuses(&mut self, to: Actor) -> bool {
        let there = match to {
            Actor::Node(node) => self.nodes.get(node).is_none_or(|host| host.lost || host.is_running()),
            Actor::Manager => self.manager.is_running(),
            Actor::Client(_) => true,
        };
        !there && self.dice.percent(50)
    }

    pub(super) fn close_call(
        &mut self,
        ticket: u64,
        result: Result<(bytes::Bytes, bytes::Bytes), Error>,
    ) -> Result<(), Violation> {
        let Some(((actor, life), answer)) = self.network.close(ticket, result) else { return Ok(()) };
        match actor {
            Actor::Manager if self.manager.life == life && self.manager.is_running() => {
                self.manager.answer(self.manager_now(), answer);
                self.pump_manager();
            }
            Actor::Node(node) => return self.with_node(node, life, |host, now| host.answer(now, answer)),
            Actor::Client(client) if self.clients[client].life == life => {
                if let (Err(error), true) = (&answer.result, self.log.is_some()) {
                    self.say(&format!("{actor:?} <- {:?}: {error}", error.kind()));
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
