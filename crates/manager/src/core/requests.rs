//! Incoming requests: answered from the reply cache, answered at once, queued as commands, or held until leases are recalled.

use super::*;
use crate::db::meta::draw;
use crate::namespace::inodes::root_if_none;
use crate::namespace::names;
use crate::nodes::heartbeat;
use tessera_wire::meta::{DescribeReadsReply, List};

impl ManagerCore {
    pub(super) fn request(&mut self, origin: Origin, client_id: u64, body: Bytes) {
        if let Some(error) = self.stopped.clone() {
            return self.actions.push_back(origin.reply(Err(error)));
        }
        if let Err(error) = origin.kind.check_role(origin.role) {
            return self.reply(origin, Err(error));
        }
        match Command::from_request(origin.kind, &body) {
            Some(command) => {
                match command.and_then(|command| QueuedCommand::new(command, origin.kind as u32, body, client_id)) {
                    Ok(queued) => self.admit(origin, queued),
                    Err(failure) => self.reply(origin, Err(failure.into_wire())),
                }
            }
            None => self.answer_now(origin, client_id, body),
        }
    }

    /// Queues a command, unless it was answered before or must wait for leases.
    pub(super) fn admit(&mut self, origin: Origin, queued: QueuedCommand) {
        if let Some(op_id) = queued.op_id {
            match self.reply_cache.get(&self.db, queued.client_id, op_id) {
                Ok(Some(answer)) if !failpoint::is_active("manager.repeats_apply") => {
                    return self.reply(origin, answer);
                }
                Ok(_) => {}
                Err(error) => return self.reply(origin, Err(Failure::from(error).into_wire())),
            }
        }
        if let Some(error) = self.lacks_room(origin, queued.command.grows() && !self.is_of_pack(&queued.command)) {
            return self.reply(origin, Err(error));
        }
        if self.queue.len() + self.parked.len() >= self.config.max_waiting_requests {
            let text = format!("{} requests wait already; try again shortly", self.config.max_waiting_requests);
            return self.reply(origin, Err(Error::new(Code::Unavailable, text)));
        }
        if let Err(failure) = limits::check(&queued.command, &self.config) {
            return self.reply(origin, Err(failure.into_wire()));
        }
        match &queued.command {
            Command::CloseSession(close) if sessions_of(close).all(|id| self.soft.sessions.is_soft_reader(id)) => {
                sessions_of(close).for_each(|id| self.soft.sessions.forget(id));
                // It shows no state: a later leader does not know these readers.
                return self.reply_as(origin, Ok(Ack {}.encode_to_vec().into()), Confirm::No);
            }
            Command::AllocateChunks(r) => _ = self.soft.sessions.renew(r.session_id, self.clock.time.now_ns, None),
            // The locks of a client that has not asserted them yet are unknown: it repeats the commit after it has.
            Command::Commit(r)
                if r.lock_fence.is_some() && self.soft.locks.may_claim(self.clock.time.now_ns, queued.client_id) =>
            {
                let text = "assert the locks of this client (HoldLocks) before it commits under them";
                return self.reply(origin, Err(Error::new(Code::Unavailable, text)));
            }
            Command::Commit(r) => _ = self.soft.sessions.renew(r.session_id, self.clock.time.now_ns, None),
            _ => {}
        }
        match self.changes(&queued.command) {
            Ok(changes) => self.queue_when_free(AdmittedCommand { queued, origin: Some(origin), changes }),
            Err(failure) => self.reply(origin, Err(failure.into_wire())),
        }
    }

    /// The leases to recall before the command is applied.
    fn changes(&self, command: &Command) -> Result<Vec<LeaseTarget>> {
        match self.meta.leases_granted {
            0 => Ok(Vec::new()),
            _ => command.recalls(&self.db),
        }
    }

    /// Queues a command if no other client holds leases on what it changes; else recalls those leases and parks the command.
    fn queue_when_free(&mut self, mut command: AdmittedCommand) {
        let (requester, changes) = (command.requester(), &mut command.changes);
        // The requester may itself hold the delegation.
        let (leases, now_ns) = (&self.soft.leases, self.clock.time.now_ns);
        changes.retain(|what| !matches!(what, LeaseTarget::Names(of) if leases.has_names(*of, requester, now_ns)));
        self.soft.leases.begin_change(changes);
        let holders = self.soft.leases.holders(changes, requester, self.clock.time.now_ns);
        let holders = if failpoint::is_active("manager.no_recall") { HashMap::new() } else { holders };
        if holders.is_empty() && (changes.is_empty() || self.clock.time.now_ns >= self.leases_end_ns) {
            return self.queue.push_back(QueueItem::Command(command));
        }
        for (connection, held) in holders {
            let token = draw(&mut self.next_token);
            let recall = leases::recall(&held);
            self.recalls.insert(token, self.soft.leases.begin_recall(connection, held));
            let call = Call::new(Peer::Connection(connection), token, &recall, Vec::new(), self.config.lease_entry_ms);
            self.actions.push_back(Action::Call(call));
        }
        let not_before_ns = if command.changes.is_empty() { 0 } else { self.leases_end_ns };
        self.parked.push((command, not_before_ns));
    }

    /// A client drops its cached answers before it ends a connection, and a process that ended uses nothing. So the end of the
    /// stream gives all leases back (P7). A client whose connection broke may still use its leases: they run out by themselves.
    pub(super) fn connection_closed(&mut self, connection: u64, by_peer: bool) {
        if by_peer {
            self.soft.leases.release_all(connection);
            self.unpark();
        }
    }

    /// Frees the reservations of clients without a connection. Their sessions live on: a client that was only cut off comes
    /// back, and reserves again when it renews them.
    pub(super) fn release_reservations(&mut self) {
        self.soft.sessions.release_reservations(&self.clients_gone);
        // A queued command may still open a session for one of them.
        if self.queue.is_empty() && self.parked.is_empty() && self.open.is_none() {
            self.clients_gone.clear();
        }
    }

    /// Queues the parked commands whose leases were given back or have ended, in the order they came.
    pub(super) fn unpark(&mut self) {
        let (now_ns, leases) = (self.clock.time.now_ns, &self.soft.leases);
        let free = |(p, not_before_ns): &(AdmittedCommand, i64)| {
            now_ns >= *not_before_ns && leases.holders(&p.changes, p.requester(), now_ns).is_empty()
        };
        let (ready, parked): (Vec<_>, _) = std::mem::take(&mut self.parked).into_iter().partition(free);
        self.parked = parked;
        self.queue.extend(ready.into_iter().map(|(command, _)| QueueItem::Command(command)));
    }

    /// Returns a queued command with all that it changes, or parks it again. A name that it changes may have come to stand for
    /// another inode since it was admitted, and its client may have lost a delegation: clients may hold leases on these.
    pub(super) fn recheck(&mut self, mut command: AdmittedCommand) -> Option<AdmittedCommand> {
        // A command that cannot be read now fails when it is applied.
        let mut added = self.changes(&command.queued.command).unwrap_or_default();
        let (requester, leases) = (command.requester(), &self.soft.leases);
        let delegated = |of: u64| leases.has_names(of, requester, self.clock.time.now_ns);
        // Both may be long: a file may have names in very many directories.
        let before: HashSet<LeaseTarget> = command.changes.iter().copied().collect();
        added.retain(|what| !before.contains(what) && !matches!(what, LeaseTarget::Names(of) if delegated(*of)));
        if failpoint::is_active("manager.names_not_rechecked") {
            added.clear();
        }
        if leases.holders(&added, requester, self.clock.time.now_ns).is_empty() {
            self.soft.leases.begin_change(&added);
            command.changes.extend(added);
            return Some(command);
        }
        self.soft.leases.end_change(&command.changes);
        command.changes.extend(added);
        self.queue_when_free(command);
        None
    }

    pub(super) fn answer_now(&mut self, origin: Origin, client_id: u64, body: Bytes) {
        let kind = origin.kind;
        if matches!(kind, Kind::SetLock | Kind::TestLock | Kind::CancelLock | Kind::HoldLocks | Kind::ReturnLocks) {
            return self.locking(origin, client_id, body);
        }
        let mut view = view!(self);
        let taken = registry::take_in(&mut view, kind, &body);
        let proposals = view.proposals;
        match taken {
            Some(Ok(())) if proposals.is_empty() => return self.compose(origin, &body),
            Some(Ok(())) => {
                proposals.into_iter().for_each(|proposal| self.propose(proposal));
                return self.reply_once_logged(origin, body);
            }
            Some(Err(failure)) => return self.reply(origin, Err(failure.into_wire())),
            None if registry::is_committed_read(kind) || registry::needs_counts(kind) => {
                // Before the names are read: from here on their changes are recalled.
                let lease_ms = self.lease_listing(&origin, &body);
                return self.read_beside(origin, body, lease_ms);
            }
            None => {}
        }
        let result = match registry::read(&mut view!(self), client_id, kind, &body) {
            Some(Ok(ReadReply::Plain(reply))) => Ok(reply),
            Some(Ok(ReadReply::Leased(entry))) => Ok(self.lease(origin, *entry)),
            Some(Ok(ReadReply::Described(reply))) => Ok(self.lease_described(origin, *reply)),
            Some(Err(failure)) => Err(failure.into_wire()),
            None => Err(Error::new(Code::Unsupported, format!("{} is not for a manager", kind.name()))),
        };
        self.reply(origin, result);
    }

    /// Encodes an entry, with a lease on its inode and the directories of its path if they can be granted.
    pub(super) fn lease(&mut self, origin: Origin, mut entry: Entry) -> Bytes {
        let inos: Vec<u64> = entry.path.iter().copied().chain(entry.attr.as_ref().map(|attr| attr.ino)).collect();
        let (until, max) =
            (self.clock.time.now_ns.saturating_add(ns(self.config.lease_entry_ms)), self.config.max_leases);
        if self.may_lease() && self.soft.leases.grant(&inos, origin.connection, until, max) {
            entry.lease_ms = self.config.lease_entry_ms;
        }
        for ahead in entry.ahead.iter_mut().filter_map(|named| named.entry.as_mut()) {
            let ino = ahead.attr.as_ref().map(|attr| attr.ino);
            ahead.lease_ms =
                self.granted(ino, |leases, ino, until, max| leases.grant(&[ino], origin.connection, until, max));
        }
        entry.encode_to_vec().into()
    }

    /// Encodes descriptions of files, each with a lease on its inode if that can be granted.
    fn lease_described(&mut self, origin: Origin, mut reply: DescribeReadsReply) -> Bytes {
        for file in &mut reply.files {
            let ino = file.attr.as_ref().map(|attr| attr.ino);
            file.lease_ms =
                self.granted(ino, |leases, ino, until, max| leases.grant(&[ino], origin.connection, until, max));
        }
        reply.encode_to_vec().into()
    }

    /// Duration of the lease on the names that a client lists; 0: it gets none.
    fn lease_listing(&mut self, origin: &Origin, body: &Bytes) -> u64 {
        let wanted = (origin.kind == Kind::List).then(|| List::decode(body.clone()).ok()).flatten();
        let directory = wanted.filter(|list| list.want_lease).map(|list| root_if_none(list.ino));
        let connection = origin.connection;
        self.granted(directory, |leases, of, until, max| leases.grant_listing(of, connection, until, max))
    }

    /// Whether leases can be granted. A restarted manager must know that leases exist, so this is logged before the first one.
    fn may_lease(&mut self) -> bool {
        if self.meta.leases_granted == 0 && !self.lease_noted {
            self.lease_noted = true;
            self.propose(NoteLeases {}.propose());
        }
        self.meta.leases_granted != 0
    }

    /// Adds the leases that come with a reply. The cached reply for a repeated request does not contain them.
    pub(super) fn with_leases(&mut self, origin: &Origin, grants: LeaseGrants, answer: Bytes) -> Bytes {
        if !grants.inode && grants.names.is_none() {
            return answer;
        }
        let of_commit = origin.kind == Kind::Commit;
        let entry = match of_commit {
            true => CommitReply::decode(answer.clone()).ok().and_then(|reply| reply.entry),
            false => Entry::decode(answer.clone()).ok(),
        };
        let is_new = entry.as_ref().is_some_and(|entry| entry.inos.is_some());
        let ino = entry.and_then(|entry| entry.attr).map(|attr| attr.ino);
        let names_of = match grants.names {
            Some(GrantedNames::OfNewDirectory) => ino.filter(|_| is_new),
            Some(GrantedNames::Kept(of)) => {
                Some(of).filter(|of| self.soft.leases.has_names(*of, origin.connection, self.clock.time.now_ns))
            }
            Some(GrantedNames::Listed(of)) => Some(of),
            None => None,
        };
        let lease_ms = self.granted(ino.filter(|_| grants.inode), |leases, ino, until, max| {
            leases.grant(&[ino], origin.connection, until, max)
        });
        let names = match grants.names {
            Some(GrantedNames::Listed(of)) => self.listed(of, origin.connection),
            _ => Some(Vec::new()),
        };
        let names_of = names_of.filter(|_| names.is_some());
        let delegation_ms =
            self.granted(names_of, |leases, of, until, max| leases.grant_names(of, origin.connection, until, max));
        if (lease_ms, delegation_ms) == (0, 0) {
            return answer;
        }
        // Protobuf lets a message's fields come in several parts.
        let more = match of_commit {
            true => {
                let entry = (lease_ms > 0).then(|| Entry { lease_ms, ..Entry::default() });
                CommitReply { delegation_ms, entry, ..Default::default() }.encode_to_vec()
            }
            false => {
                let names = names.filter(|_| delegation_ms > 0).unwrap_or_default();
                Entry { delegation_ms, lease_ms, names, ..Entry::default() }.encode_to_vec()
            }
        };
        [&answer[..], &more[..]].concat().into()
    }

    /// The names in a directory, if the delegation can be granted and they are not too many. All admitted commands that create
    /// names in it have then been applied, so the list is complete.
    fn listed(&self, directory: u64, connection: u64) -> Option<Vec<Vec<u8>>> {
        let free = self.soft.leases.may_grant_names(directory, connection);
        let names = free.then(|| names::names(&self.db, directory, self.config.max_list_entries))?;
        names.inspect_err(|failure| tracing::error!(%failure, directory, "names are not leased")).ok().flatten()
    }

    /// Duration of the lease on `what`, or 0 if it is not asked for or cannot be granted.
    fn granted(&mut self, what: Option<u64>, grant: impl FnOnce(&mut Leases, u64, i64, usize) -> bool) -> u64 {
        let (until, max) =
            (self.clock.time.now_ns.saturating_add(ns(self.config.lease_entry_ms)), self.config.max_leases);
        let Some(what) = what.filter(|_| self.may_lease()) else { return 0 };
        if grant(&mut self.soft.leases, what, until, max) { self.config.lease_entry_ms } else { 0 }
    }

    pub(super) fn compose(&mut self, origin: Origin, body: &Bytes) {
        if origin.kind == Kind::HoldLocks {
            // The reply waited until the client was on record.
            return self.reply(origin, Ok(body.clone()));
        }
        if registry::needs_counts(origin.kind) {
            return self.read_beside(origin, body.clone(), 0);
        }
        let result = registry::reply(&mut view!(self), origin.kind, body);
        let confirm = match (&result, origin.kind) {
            (Ok(reply), Kind::Heartbeat) if heartbeat::is_at_rest(body, reply) => Confirm::Soon,
            _ => Confirm::Now,
        };
        self.reply_as(origin, result.map_err(Failure::into_wire), confirm);
    }

    pub(crate) fn propose(&mut self, proposal: Proposal) {
        if self.waits_for_room(&proposal) {
            return;
        }
        match queued(&proposal).and_then(|queued| Ok((self.changes(&queued.command)?, queued))) {
            Ok((changes, queued)) => self.queue_when_free(AdmittedCommand { queued, origin: None, changes }),
            Err(failure) => tracing::error!(%failure, "a proposal of the manager's own"),
        }
    }

    /// Replies; while a batch is open, once it is committed: the database shows what the group may not commit (P7).
    pub(super) fn reply(&mut self, origin: Origin, result: Answer) {
        self.reply_as(origin, result, Confirm::Now);
    }

    pub(super) fn reply_as(&mut self, origin: Origin, result: Answer, wanted: Confirm) {
        if result.is_err() {
            self.metrics.refused += 1;
        }
        let mut action = origin.reply(result);
        if let Action::Reply { confirm, .. } = &mut action {
            *confirm = wanted;
        }
        match self.open.is_some() && !failpoint::is_active("manager.answers_before_commit") {
            true => self.held.push(action),
            false => self.actions.push_back(action),
        }
    }

    pub(super) fn answer(&mut self, answer: rpc::Answer) {
        if self.stopped.is_some() {
            return;
        }
        if let Some(recall) = self.recalls.remove(&answer.token) {
            // Any answer, even a refusal, means that the client has the recall. Without one the lease must end first.
            let heard = !matches!(&answer.result, Err(error) if error.is_retryable());
            if heard {
                self.soft.leases.release(&recall);
            }
            self.unpark();
        }
    }
}

/// The sessions that a request closes.
fn sessions_of(close: &CloseSession) -> impl Iterator<Item = u64> {
    std::iter::once(close.session_id).chain(close.readers.iter().copied())
}
