//! The first contact of a process that does not know its cluster: it greets all managers of its list at once.
//!
//! A manager that lost its directory and was started without `--join` founds a new, empty cluster at its old address. A process
//! that asked only this one would take the empty cluster for its own, and would have its changes acknowledged there. So no call
//! passes before most of the list are known to serve one cluster. Where fewer answer, all others must have refused the connection
//! or been silent for the dialer's whole time-out (P14).
//!
//! One thread greets those that did not answer until they do. What they say later counts too: if most of the list do not serve the
//! cluster any more, and some serve another one, no call passes, and those under way fail. They pass again once it is mended.

use super::tally::{Verdict, disagreement, judge};
use super::{Inner, ManagerCall, Managers};
use crate::dialer::{Failure, Identity};
use crate::endpoint::Endpoint;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use tessera_wire::{Code, Error, Role, hex};

/// Pause before managers that have not answered are greeted again.
const GREET_AGAIN: Duration = Duration::from_secs(3);
/// A greeting that failed after this long waited for a manager in vain; a refused connection takes less.
const SILENT_AFTER: Duration = Duration::from_secs(1);

/// Whether calls may pass.
pub(super) enum Gate {
    /// No manager has been reached. The next call begins a greeting.
    Unknown,
    /// The managers are greeted; these calls wait for it, each with the manager that it is to ask.
    Greeting(Vec<(Endpoint, ManagerCall)>),
    /// The cluster is known.
    Open,
    /// Two clusters answer: no call passes while they do.
    Refused(Error),
    /// The process ends: no call passes any more.
    Ended(Error),
}

/// How one greeting ended.
struct Answer {
    manager: Endpoint,
    result: Result<(), Error>,
    took: Duration,
}

impl Answer {
    fn is_silent(&self) -> bool {
        self.result.is_err() && self.took >= SILENT_AFTER
    }
}

impl Managers {
    /// Greets all managers, and waits until each has answered or its time is over. Returns the cluster that they serve.
    ///
    /// Stricter than a call: what its caller does with the answer stays. One manager of another cluster is enough for an error.
    ///
    /// # Errors
    /// Two clusters answered; or no manager did; or less than most of the list did and another took the connection and was
    /// silent. It comes with the manager that caused it, of those that may answer later if there are any.
    pub fn learn_cluster(&self) -> Result<Vec<u8>, (Endpoint, Error)> {
        let answers: Vec<Answer> = self.greet(self.list().endpoints()).iter().collect();
        let said = self.said();
        if let Some(disagreement) = disagreement(&said) {
            return Err(disagreement);
        }
        let failures = || answers.iter().filter_map(|it| it.result.as_ref().err().map(|error| (&it.manager, error)));
        let hung = failures().find(|(_, error)| error.code() == Code::Timeout);
        match judge(&said, answers.len(), hung.is_none()) {
            Verdict::Cluster(id) if answers.iter().any(|it| it.result.is_ok()) => return Ok(id),
            Verdict::Wait if !said.is_empty() => {
                let hung = hung.expect("all have answered if none is silent").0;
                let text = format!(
                    "{hung} takes connections and answers nothing, so it may be of another cluster than {}; end it, or name \
                     only the managers that answer",
                    said[0].0
                );
                return Err((hung.clone(), Error::new(Code::Unavailable, text)));
            }
            _ => {}
        }
        let failure = failures().find(|(_, error)| error.is_retryable()).or_else(|| failures().next());
        let unknown = || Error::new(Code::Unavailable, "it does not know its cluster yet");
        Err(match failure {
            Some((manager, error)) => (manager.clone(), error.clone()),
            None => (answers[0].manager.clone(), unknown()),
        })
    }

    /// Returns the call if it may go on; otherwise it is answered, or goes on after the greeting.
    pub(super) fn pass(&self, manager: &Endpoint, call: ManagerCall) -> Option<ManagerCall> {
        let mut gate = self.0.gate.lock();
        match &mut *gate {
            Gate::Open => return Some(call),
            Gate::Refused(error) | Gate::Ended(error) => {
                let error = error.clone();
                drop(gate);
                (call.callback)(Err(error));
            }
            Gate::Greeting(waiting) => waiting.push((manager.clone(), call)),
            Gate::Unknown => {
                *gate = Gate::Greeting(vec![(manager.clone(), call)]);
                drop(gate);
                self.greet_in_background();
            }
        }
        None
    }

    /// Why no call passes, if so.
    pub(super) fn refusal(&self) -> Option<Error> {
        match &*self.0.gate.lock() {
            Gate::Refused(error) | Gate::Ended(error) => Some(error.clone()),
            Gate::Unknown | Gate::Greeting(_) | Gate::Open => None,
        }
    }

    /// Ends the calls that wait for the greeting, and lets none pass any more.
    pub(super) fn close_gate(&self) {
        let error = Error::new(Code::Unavailable, "the connections of this process were closed");
        let waiting = self.0.gate.lock().replace(Gate::Ended(error.clone()));
        waiting.into_iter().for_each(|(_, call)| (call.callback)(Err(error.clone())));
    }

    /// The peer that was asked is a node, and can answer no manager's request.
    pub(super) fn check_role(&self, peer: &Endpoint) -> Result<(), Error> {
        match self.0.dialer.identity(peer) {
            Some(Identity { role: Role::Node, .. }) => {
                let text = format!("{peer} is a node and no manager; name the manager with --manager");
                Err(Error::new(Code::Unsupported, text))
            }
            _ => Ok(()),
        }
    }

    /// The managers may have said something new about their clusters since the calls pass.
    pub(super) fn review(&self) {
        let Some(cluster_id) = self.0.dialer.cluster_id() else { return };
        let said = self.said();
        let verdict = judge(&said, self.list().endpoints().len(), true);
        let mut gate = self.0.gate.lock();
        match (&*gate, verdict) {
            (Gate::Refused(_), Verdict::Cluster(id)) if id == cluster_id => {
                tracing::warn!("the managers are of one cluster again");
                *gate = Gate::Open;
            }
            (_, Verdict::Cluster(id)) if id == cluster_id => {}
            (Gate::Open, _) => {
                // Most of the list may serve another cluster now; what has been done in this one stays there.
                if let Some((_, error)) = disagreement(&said) {
                    *gate = Gate::Refused(error);
                }
            }
            _ => {}
        }
    }

    fn greet_in_background(&self) {
        let inner = Arc::downgrade(&self.0);
        let spawned = std::thread::Builder::new().name("greet-managers".into()).spawn(move || keep_greeting(&inner));
        if let Err(error) = spawned {
            let error = Error::new(Code::Unavailable, format!("cannot start a thread to greet the managers: {error}"));
            let answer = |endpoint: &Endpoint| Answer {
                manager: endpoint.clone(),
                result: Err(error.clone()),
                took: Duration::ZERO,
            };
            let answers: Vec<Answer> = self.list().endpoints().iter().map(answer).collect();
            self.settle(&answers, true);
        }
    }

    /// Greets the managers that are not known to be of this process's cluster. Returns whether some of them are left.
    fn greet_once(&self) -> bool {
        let peers = self.unconfirmed();
        let mut answers = Vec::new();
        for answer in self.greet(&peers) {
            answers.push(answer);
            if self.0.dialer.cluster_id().is_some() {
                self.review();
            } else {
                self.settle(&answers, answers.len() == peers.len());
            }
        }
        match &*self.0.gate.lock() {
            Gate::Unknown | Gate::Ended(_) => false,
            Gate::Greeting(_) | Gate::Refused(_) | Gate::Open => !self.unconfirmed().is_empty(),
        }
    }

    /// Greets `peers`; each sends one answer.
    fn greet(&self, peers: &[Endpoint]) -> Receiver<Answer> {
        let began = Instant::now();
        let (sender, receiver) = channel();
        for endpoint in peers {
            let (sender, manager, managers) = (sender.clone(), endpoint.clone(), self.clone());
            let done = move |result: Result<(), Error>| {
                let result = result.and_then(|()| managers.check_role(&manager));
                drop(sender.send(Answer { manager, result, took: began.elapsed() }));
            };
            self.0.dialer.greet(endpoint, Box::new(done));
        }
        receiver
    }

    /// Opens the gate, refuses, or gives up, if these answers of a greeting decide. `is_complete`: no other will come.
    fn settle(&self, answers: &[Answer], is_complete: bool) {
        let said = self.said();
        let reaches = |id: &[u8]| {
            let serves =
                |answer: &&Answer| answer.result.is_ok() && said.contains(&(answer.manager.clone(), id.to_vec()));
            answers.iter().filter(serves).map(|answer| answer.manager.clone()).collect::<Vec<_>>()
        };
        match judge(&said, self.list().endpoints().len(), is_complete) {
            Verdict::Wait => {}
            Verdict::Conflict(_, error) => {
                let waiting = self.0.gate.lock().replace(Gate::Refused(error.clone()));
                waiting.into_iter().for_each(|(_, call)| (call.callback)(Err(error.clone())));
            }
            Verdict::Cluster(id) if !reaches(&id).is_empty() => {
                warn_of_others(&id, &said, answers);
                self.0.dialer.settle_cluster(&id);
                self.open_gate(&reaches(&id));
            }
            // Only nodes of the cluster have answered.
            Verdict::Cluster(_) if !is_complete => {}
            Verdict::Cluster(_) | Verdict::Nobody => {
                let waiting = self.0.gate.lock().replace(Gate::Unknown);
                waiting.into_iter().for_each(|(manager, call)| self.unreached(&manager, call, answers));
            }
        }
    }

    /// Lets the calls pass that wait: to the manager that each is to ask, or else to the first of `reached`.
    fn open_gate(&self, reached: &[Endpoint]) {
        let waiting = self.0.gate.lock().replace(Gate::Open);
        self.0.route.lock().prefer(reached);
        for (manager, mut call) in waiting {
            let manager = match reached.contains(&manager) {
                true => manager,
                false => self.0.route.lock().begin(&mut call.search),
            };
            self.ask(manager, call);
        }
    }

    /// No manager was reached: the call goes its way as if it had asked by itself.
    fn unreached(&self, manager: &Endpoint, call: ManagerCall, answers: &[Answer]) {
        let answer = answers.iter().find(|answer| answer.manager == *manager);
        let (error, took) = match answer {
            Some(Answer { result: Err(error), took, .. }) => (error.clone(), *took),
            _ => (Error::new(Code::Unavailable, format!("{manager} does not know its cluster yet")), Duration::ZERO),
        };
        let began = Instant::now().checked_sub(took).unwrap_or_else(Instant::now);
        self.answered(manager, began, call, Err(Failure { error, is_sent: false }));
    }

    /// The managers of the list that have named a cluster, in its order, each with its cluster.
    fn said(&self) -> Vec<(Endpoint, Vec<u8>)> {
        let cluster = |endpoint: &Endpoint| self.0.dialer.identity(endpoint).map(|it| it.cluster_id);
        let said = |endpoint: &Endpoint| Some((endpoint.clone(), cluster(endpoint)?));
        self.list().endpoints().iter().filter_map(said).filter(|(_, id)| !id.is_empty()).collect()
    }

    /// Managers of the list that have not said that they are of this process's cluster.
    fn unconfirmed(&self) -> Vec<Endpoint> {
        let known = self.0.dialer.cluster_id();
        let confirms = |endpoint: &Endpoint| {
            let identity = self.0.dialer.identity(endpoint);
            known.is_some() && identity.map(|it| it.cluster_id) == known
        };
        self.list().endpoints().iter().filter(|it| !confirms(it)).cloned().collect()
    }
}

impl Gate {
    /// Sets the gate, unless the process ends; returns the calls that waited.
    fn replace(&mut self, next: Gate) -> Vec<(Endpoint, ManagerCall)> {
        if matches!(self, Gate::Ended(_)) {
            return Vec::new();
        }
        match std::mem::replace(self, next) {
            Gate::Greeting(waiting) => waiting,
            Gate::Unknown | Gate::Open | Gate::Refused(_) | Gate::Ended(_) => Vec::new(),
        }
    }
}

/// Greets the managers again and again until all have named one cluster, or nobody uses them.
fn keep_greeting(inner: &Weak<Inner>) {
    while inner.upgrade().is_some_and(|inner| Managers(inner).greet_once()) {
        std::thread::sleep(GREET_AGAIN);
    }
}

/// Logs which managers of the list are of another cluster than `id`, and which were silent although they may be.
fn warn_of_others(id: &[u8], said: &[(Endpoint, Vec<u8>)], answers: &[Answer]) {
    for (manager, other) in said.iter().filter(|(_, other)| other != id) {
        let (cluster, other) = (hex(id), hex(other));
        tracing::warn!(%manager, %other, %cluster, "this manager is of another cluster than most that were named");
    }
    for Answer { manager, .. } in answers.iter().filter(|it| it.is_silent()) {
        let cluster = hex(id);
        tracing::warn!(%manager, %cluster, "this manager is silent, and may be of another cluster than those that answer");
    }
}
