//! The first contact of a process that does not know its cluster: it greets all managers of its list at once.
//!
//! A manager that lost its directory and was started without `--join` founds a new, empty cluster at its old address. A process
//! that asked only this one would take the empty cluster for its own, and would have its changes acknowledged there. So no call
//! passes before most of the list are known to serve one cluster ([`super::tally`]). Where fewer are, all others must have refused the
//! connection, been silent for the dialer's whole time-out, or taken it for [`STARTS_WITHIN`] without naming a cluster;
//! [`Managers::doubt`] names them (P14).
//!
//! One thread greets those that have not named the cluster until they do. What they say later counts too: if most of the list do not serve the
//! cluster any more, and some serve another one, no call passes, and those under way fail. They pass again once it is mended.

use super::route::SILENT_AFTER;
use super::tally::{Said, Verdict, disagreement, judge, strays};
use super::{Inner, ManagerCall, Managers};
use crate::dialer::{Failure, Identity, Unreached};
use crate::endpoint::Endpoint;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use tessera_wire::{Code, Error, Role, hex};

/// Pause before managers that have not named the cluster are greeted again, once calls pass or are refused.
const GREET_AGAIN: Duration = Duration::from_secs(3);
/// Pause before managers that are starting are greeted again, while calls wait.
const STARTING: Duration = Duration::from_millis(250);
/// A manager that takes connections and names no cluster is waited for this long: it opens its database.
const STARTS_WITHIN: Duration = Duration::from_secs(3);

/// Whether calls may pass, and who greets the managers.
pub(super) struct Gate {
    state: State,
    /// A thread greets managers.
    has_greeter: bool,
    doubt: Option<String>,
}

enum State {
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
    result: Result<(), Unreached>,
    took: Duration,
}

impl Answer {
    fn error(&self) -> Option<&Error> {
        self.result.as_ref().err().map(|why| &why.error)
    }

    /// It runs, and may name its cluster soon.
    fn is_starting(&self) -> bool {
        let may = |why: &Unreached| why.is_taken && why.error.is_retryable() && self.took < SILENT_AFTER;
        self.result.as_ref().err().is_none_or(may)
    }
}

impl Managers {
    /// Greets all managers, and waits until each has answered or its time is over. Returns the cluster that they serve.
    ///
    /// Stricter than a call: what its caller does with the answer stays. One manager of another cluster is enough for an error, and so
    /// are silent ones that leave the cluster without most of the list.
    ///
    /// # Errors
    /// Two clusters may be meant, or no manager named one. It comes with the manager that caused it, of those that may answer later if
    /// there are any.
    pub fn learn_cluster(&self) -> Result<Vec<u8>, (Endpoint, Error)> {
        let list = self.list().endpoints();
        let answers: Vec<Answer> = self.greet(list).iter().collect();
        let said = self.said();
        if let Some(disagreement) = disagreement(&said) {
            return Err(disagreement);
        }
        let has_most = judge(&said, list, false) != Verdict::Wait;
        match judge(&said, list, true) {
            Verdict::Cluster(id) if answers.iter().any(|it| it.result.is_ok()) => {
                let unknown = strays(&said, list, &id);
                let Some((first, _)) = unknown.first().filter(|_| !has_most) else { return Ok(id) };
                let names: Vec<String> = unknown.iter().map(|(manager, _)| manager.to_string()).collect();
                let text = format!(
                    "{} serves cluster {}, does not know {} as a member, and gets no answer from there, so two clusters may be named; \
                     start that manager, or name only those of one cluster",
                    said[0].manager,
                    hex(&id),
                    names.join(",")
                );
                return Err((first.clone(), Error::new(Code::Unavailable, text)));
            }
            _ => {}
        }
        let failures = || answers.iter().filter_map(|it| it.error().map(|error| (&it.manager, error)));
        let failure = failures().find(|(_, error)| error.is_retryable()).or_else(|| failures().next());
        let (manager, error) = failure.map(|(manager, error)| (manager, error.clone())).unwrap_or_else(|| {
            (&answers[0].manager, Error::new(Code::Unavailable, "it does not know its cluster yet"))
        });
        Err((manager.clone(), error))
    }

    /// What the user should know of the cluster that was taken: managers of the list are of another one, or may be. `None`: nothing, or
    /// no call has passed yet.
    #[must_use]
    pub fn doubt(&self) -> Option<String> {
        self.0.gate.lock().doubt.clone()
    }

    /// Returns the call if it may go on; otherwise it is answered, or goes on after the greeting.
    pub(super) fn pass(&self, manager: &Endpoint, call: ManagerCall) -> Option<ManagerCall> {
        let mut gate = self.0.gate.lock();
        match &mut gate.state {
            State::Open => return Some(call),
            State::Refused(error) | State::Ended(error) => {
                let error = error.clone();
                drop(gate);
                (call.callback)(Err(error));
            }
            State::Greeting(waiting) => waiting.push((manager.clone(), call)),
            State::Unknown => {
                gate.state = State::Greeting(vec![(manager.clone(), call)]);
                let had_greeter = std::mem::replace(&mut gate.has_greeter, true);
                drop(gate);
                if !had_greeter {
                    self.greet_in_background();
                }
            }
        }
        None
    }

    /// Why no call passes, if so.
    pub(super) fn refusal(&self) -> Option<Error> {
        match &self.0.gate.lock().state {
            State::Refused(error) | State::Ended(error) => Some(error.clone()),
            State::Unknown | State::Greeting(_) | State::Open => None,
        }
    }

    /// Ends the calls that wait for the greeting, and lets none pass any more.
    pub(super) fn close_gate(&self) {
        let error = Error::new(Code::Unavailable, "the connections of this process were closed");
        let waiting = self.0.gate.lock().replace(State::Ended(error.clone()));
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
        let mut gate = self.0.gate.lock();
        // Under the lock: of two threads that review, the later one must not decide by what it heard first.
        let said = self.said();
        let is_right = judge(&said, self.list().endpoints(), true) == Verdict::Cluster(cluster_id);
        match &gate.state {
            State::Refused(_) if is_right => {
                tracing::warn!("the managers are of one cluster again");
                gate.state = State::Open;
            }
            // Most of the list may serve another cluster now; what has been done in this one stays there.
            State::Open if !is_right => {
                if let Some((_, error)) = disagreement(&said) {
                    gate.state = State::Refused(error);
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
                result: Err(Unreached { error: error.clone(), is_taken: false }),
                took: Duration::ZERO,
            };
            let answers: Vec<Answer> = self.list().endpoints().iter().map(answer).collect();
            self.0.gate.lock().has_greeter = false;
            self.settle(&answers, true);
        }
    }

    /// Greets the managers that have not named this process's cluster. Returns how long to wait before the next time; `None`: there is
    /// nothing left to do.
    fn greet_once(&self) -> Option<Duration> {
        match self.0.dialer.cluster_id() {
            Some(_) => self.greet(&self.unconfirmed()).iter().for_each(|_| self.review()),
            None => self.make_first_contact(),
        }
        let mut gate = self.0.gate.lock();
        let is_complete = self.unconfirmed().is_empty();
        let pause = match &gate.state {
            // A call came after those that this greeting has answered.
            State::Greeting(_) => Some(Duration::ZERO),
            State::Unknown | State::Ended(_) => None,
            State::Refused(_) | State::Open => (!is_complete).then_some(GREET_AGAIN),
        };
        gate.has_greeter = pause.is_some();
        pause
    }

    /// Greets all managers, and those again that are starting, until it is known which cluster to work with.
    fn make_first_contact(&self) {
        let began = Instant::now();
        let mut answers: Vec<Answer> = Vec::new();
        let mut peers = self.list().endpoints().to_vec();
        loop {
            for answer in self.greet(&peers) {
                answers.retain(|it| it.manager != answer.manager);
                answers.push(answer);
                match self.0.dialer.cluster_id() {
                    Some(_) => self.review(),
                    None => self.settle(&answers, false),
                }
            }
            let said = self.said();
            let is_starting = |it: &&Answer| it.is_starting() && said.iter().all(|said| said.manager != it.manager);
            peers = answers.iter().filter(is_starting).map(|it| it.manager.clone()).collect();
            if self.0.dialer.cluster_id().is_some() {
                return;
            }
            if peers.is_empty() || began.elapsed() >= STARTS_WITHIN {
                return self.settle(&answers, true);
            }
            std::thread::sleep(STARTING);
        }
    }

    /// Greets `peers`; each sends one answer.
    fn greet(&self, peers: &[Endpoint]) -> Receiver<Answer> {
        let began = Instant::now();
        let (sender, receiver) = channel();
        for endpoint in peers {
            let (sender, manager, managers) = (sender.clone(), endpoint.clone(), self.clone());
            let done = move |result: Result<(), Unreached>| {
                let check = |()| managers.check_role(&manager).map_err(|error| Unreached { error, is_taken: true });
                let result = result.and_then(check);
                drop(sender.send(Answer { manager, result, took: began.elapsed() }));
            };
            self.0.dialer.greet(endpoint, Box::new(done));
        }
        receiver
    }

    /// Opens the gate, refuses, or gives up, if these answers of a greeting decide. `is_complete`: no other will come.
    fn settle(&self, answers: &[Answer], is_complete: bool) {
        let (said, list) = (self.said(), self.list().endpoints());
        let serves = |it: &Said, id: &[u8]| {
            it.cluster_id == id && answers.iter().any(|answer| answer.manager == it.manager && answer.result.is_ok())
        };
        match judge(&said, list, is_complete) {
            Verdict::Wait => {}
            Verdict::Conflict(error) => {
                let waiting = self.0.gate.lock().replace(State::Refused(error.clone()));
                waiting.into_iter().for_each(|(_, call)| (call.callback)(Err(error.clone())));
            }
            Verdict::Cluster(id) if said.iter().any(|it| serves(it, &id)) => {
                let reached: Vec<Endpoint> =
                    said.iter().filter(|it| serves(it, &id)).map(|it| it.manager.clone()).collect();
                self.0.gate.lock().doubt = doubt(&strays(&said, list, &id), &id);
                self.0.dialer.settle_cluster(&id);
                self.open_gate(&reached);
            }
            // Only nodes of the cluster have answered.
            Verdict::Cluster(_) if !is_complete => {}
            Verdict::Cluster(_) | Verdict::Nobody => {
                let waiting = self.0.gate.lock().replace(State::Unknown);
                waiting.into_iter().for_each(|(manager, call)| self.unreached(&manager, call, answers));
            }
        }
    }

    /// Lets the calls pass that wait: to the manager that each is to ask, or else to the first of `reached`.
    fn open_gate(&self, reached: &[Endpoint]) {
        let waiting = self.0.gate.lock().replace(State::Open);
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
            Some(Answer { result: Err(why), took, .. }) => (why.error.clone(), *took),
            _ => (Error::new(Code::Unavailable, format!("{manager} does not know its cluster yet")), Duration::ZERO),
        };
        let began = Instant::now().checked_sub(took).unwrap_or_else(Instant::now);
        self.answered(manager, began, call, Err(Failure { error, is_sent: false }));
    }

    /// What managers of the list have said of their clusters, in its order.
    fn said(&self) -> Vec<Said> {
        let said = |manager: &Endpoint| {
            let Identity { cluster_id, members, .. } = self.0.dialer.identity(manager)?;
            Some(Said { manager: manager.clone(), cluster_id, members })
        };
        self.list().endpoints().iter().filter_map(said).filter(|said| !said.cluster_id.is_empty()).collect()
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
    /// `is_open`: the cluster is known.
    pub(super) fn new(is_open: bool) -> Gate {
        Gate { state: if is_open { State::Open } else { State::Unknown }, has_greeter: false, doubt: None }
    }

    /// Sets the state, unless the process ends; returns the calls that waited.
    fn replace(&mut self, next: State) -> Vec<(Endpoint, ManagerCall)> {
        if matches!(self.state, State::Ended(_)) {
            return Vec::new();
        }
        match std::mem::replace(&mut self.state, next) {
            State::Greeting(waiting) => waiting,
            State::Unknown | State::Open | State::Refused(_) | State::Ended(_) => Vec::new(),
        }
    }
}

/// Greets the managers again and again until all have named one cluster, or nobody uses them.
fn keep_greeting(inner: &Weak<Inner>) {
    loop {
        let Some(pause) = inner.upgrade().and_then(|inner| Managers(inner).greet_once()) else { return };
        std::thread::sleep(pause);
        if inner.upgrade().is_none_or(|inner| matches!(inner.gate.lock().state, State::Ended(_))) {
            return;
        }
    }
}

/// What is to be said of managers of the list that do not count for the cluster, each with the other one that it named, if any.
fn doubt(strays: &[(Endpoint, Option<Vec<u8>>)], cluster_id: &[u8]) -> Option<String> {
    let tell = |(manager, other): &(Endpoint, Option<Vec<u8>>)| match other {
        Some(other) => format!("{manager} is of cluster {}", hex(other)),
        None => format!("{manager} says nothing and is not known there, so it may be of another cluster"),
    };
    let told: Vec<String> = strays.iter().map(tell).collect();
    let text =
        || format!("working with cluster {}, although {}; check --manager", hex(cluster_id), told.join(", and "));
    (!told.is_empty()).then(text)
}
