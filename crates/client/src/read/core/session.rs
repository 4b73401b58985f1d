//! Opens the version, reopens it after its session was lost, and words refusals.

use super::*;
use tessera_policy::{Cache, Policy};

/// The read session, as the manager knows it.
#[derive(Debug, Default)]
pub(super) struct Session {
    pub lease: SessionLease,
    /// It expired, and the version is being reopened.
    pub reopening: bool,
    pub closed: bool,
}

impl ReadCore {
    pub(super) fn open(&mut self) {
        if let Some(known) = self.params.known.take() {
            return self.on_opened(*known);
        }
        let OpenRead { offset, len_bytes, .. } = self.params.open;
        let file = match &self.opened {
            Some(opened) => {
                OpenRead { ino: opened.attr.ino, version: opened.version.version, offset, ..OpenRead::default() }
            }
            None => self.params.open.clone(),
        };
        // The manager answers an empty range without extents, which the core takes for an error.
        let (len_bytes, known_map_version) = (len_bytes.max(1), self.view.read().known_version());
        let request = OpenRead { len_bytes, known_map_version, ..file };
        self.rpcs.ask_manager(self.now, &request, Purpose::Open, &self.options);
    }

    pub(super) fn on_reply(&mut self, reply: Reply<Purpose>) {
        let Reply { purpose, sent_ns, waited_ms, answer } = reply;
        match purpose {
            Purpose::Open => match answer.decode::<OpenRead>() {
                Ok((reply, _)) => self.on_opened(reply),
                Err(error) => self.open_failed(error, waited_ms),
            },
            Purpose::Extents { offset } => self.on_extents(answer, offset, waited_ms),
            Purpose::Map { chunks } => self.on_map(answer, chunks),
            Purpose::Get { node_id, items } => self.on_got(node_id, items, sent_ns, answer),
            Purpose::Renew => match answer.decode::<RenewSession>() {
                Ok((reply, _)) => self.session.lease.set_lifetime(reply.session_ms),
                Err(error) if error.code() == Code::SessionExpired => self.reopen(),
                Err(error) => tracing::debug!(%error, "read session not renewed"),
            },
            Purpose::Report | Purpose::Close => {}
        }
    }

    pub(super) fn on_opened(&mut self, reply: OpenReadReply) {
        self.session.lease.id = reply.session_id;
        self.session.lease.set_lifetime(reply.session_ms);
        self.session.lease.renewed_ns = self.now;
        if std::mem::take(&mut self.session.reopening) {
            self.pages.asked = None;
            return;
        }
        let (Some(attr), Some(version)) = (reply.attr, reply.version) else {
            let message = "a version was opened that has no description".to_string();
            return self.open_ends(Cause::Nonsense(message));
        };
        let hints = reply.policy.iter().map(|h| (h.name.as_str(), h.value.as_str()));
        // This build may ignore hints that it does not know.
        let policy = Policy::from_hints(hints).ok();
        self.region_bytes = policy.as_ref().and_then(Policy::region_bytes);
        self.cache.limit_bytes = match policy.map(|policy| policy.cache) {
            Some(Cache::Limit { bytes }) => Some(bytes),
            _ => None,
        };
        let opened = Opened { attr, version, policy: reply.policy };
        self.opened = Some(opened.clone());
        self.actions.push_back(Action::Notify(ReadNotice::Opened(Box::new(opened))));
        if let Some(extents) = reply.extents {
            self.take_extents(self.params.open.offset, extents);
        }
        // Reads that were requested before the length was known.
        let early: Vec<u64> = self.reads.keys().copied().collect();
        for id in early {
            self.clip(id);
        }
    }

    pub(super) fn open_failed(&mut self, error: Error, waited_ms: u64) {
        let cause = Cause::of_manager("OpenRead", error, waited_ms);
        match std::mem::take(&mut self.session.reopening) {
            true => self.fail_all(cause),
            false => self.open_ends(cause),
        }
    }

    fn open_ends(&mut self, cause: Cause) {
        self.fail_all(cause.clone());
        self.actions.push_back(Action::Notify(ReadNotice::OpenFailed(cause.of(&self.params.file))));
        self.close();
    }

    /// Opens the same version under a new session: the old one expired (the client was cut off for too long).
    pub(super) fn reopen(&mut self) {
        if !self.session.reopening {
            self.session.reopening = true;
            self.open();
        }
    }
}
