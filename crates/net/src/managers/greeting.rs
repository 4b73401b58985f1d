//! The first contact of a process that does not know its cluster: it greets all managers of its list at once.
//!
//! A manager that lost its directory and was started without `--join` founds a new, empty cluster at its old address. A process
//! that asked only this one would take the empty cluster for its own, and would have its changes acknowledged there. So no call
//! passes before all managers have answered, or [`PATIENCE`] after the first did. Those that have not answered are greeted until
//! they do. As soon as two clusters have answered, no call passes any more, and those under way fail (P14).
//!
//! A manager that has answered once and is of another cluster later is passed over: its first answer has confirmed the cluster.

use super::{Inner, ManagerCall, Managers};
use crate::dialer::{Failure, Identity};
use crate::endpoint::Endpoint;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use tessera_wire::{Code, Error, Role, hex};

/// Wait for further managers once one has answered: more than a round trip and a new connection take, and little beside a
/// command.
const PATIENCE: Duration = Duration::from_millis(300);
/// Pause before managers that have not answered are greeted again.
const GREET_AGAIN: Duration = Duration::from_secs(3);

/// Whether calls may pass.
pub(super) enum Gate {
    /// No manager has been reached.
    Closed,
    /// The managers are greeted; these calls wait for it, each with the manager that it is to ask.
    Greeting(Vec<(Endpoint, ManagerCall)>),
    /// One cluster answered.
    Open,
    /// No call passes any more.
    Refused(Error),
}

/// How a greeting ended.
struct Answer {
    manager: Endpoint,
    result: Result<(), Error>,
    took: Duration,
}

impl Managers {
    /// Greets all managers, and waits until each has answered or its time is over. Returns the cluster that they serve.
    ///
    /// # Errors
    /// Two clusters answered, or no manager did: one of them and its error, of those that may answer later if there are any.
    pub fn learn_cluster(&self) -> Result<Vec<u8>, (Endpoint, Error)> {
        let answers: Vec<Answer> = self.greet(self.list().endpoints()).iter().collect();
        if let Some((other, error)) = self.conflict() {
            return Err((other, error));
        }
        if let Some(first) = reached(&answers).first() {
            let identity = self.0.dialer.identity(first).expect("a peer that answered has an identity");
            return Ok(identity.cluster_id);
        }
        let failures = || answers.iter().filter_map(|it| it.result.as_ref().err().map(|error| (it, error)));
        let failure = failures().find(|(_, error)| error.is_retryable()).or_else(|| failures().next());
        let (answer, error) = failure.expect("a list has at least one manager");
        Err((answer.manager.clone(), error.clone()))
    }

    /// Returns the call if it may go on; otherwise it is answered, or goes on after the greeting.
    pub(super) fn pass(&self, manager: &Endpoint, call: ManagerCall) -> Option<ManagerCall> {
        let mut gate = self.0.gate.lock();
        match &mut *gate {
            Gate::Open => return Some(call),
            Gate::Refused(error) => {
                let error = error.clone();
                drop(gate);
                (call.callback)(Err(error));
            }
            Gate::Greeting(waiting) => waiting.push((manager.clone(), call)),
            Gate::Closed => {
                *gate = Gate::Greeting(vec![(manager.clone(), call)]);
                drop(gate);
                self.greet_in_background();
            }
        }
        None
    }

    /// Why no call passes any more, if so.
    pub(super) fn refusal(&self) -> Option<Error> {
        match &*self.0.gate.lock() {
            Gate::Refused(error) => Some(error.clone()),
            Gate::Closed | Gate::Greeting(_) | Gate::Open => None,
        }
    }

    /// Ends the calls that wait for the greeting, and lets none pass any more.
    pub(super) fn close_gate(&self) {
        self.refuse_all(Error::new(Code::Unavailable, "the connections of this process were closed"));
    }

    /// No call passes any more if two clusters have answered.
    pub(super) fn check_conflict(&self) {
        if let Some((_, error)) = self.conflict().filter(|_| self.refusal().is_none()) {
            self.refuse_all(error);
        }
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

    fn refuse_all(&self, error: Error) {
        let before = std::mem::replace(&mut *self.0.gate.lock(), Gate::Refused(error.clone()));
        if let Gate::Greeting(waiting) = before {
            waiting.into_iter().for_each(|(_, call)| (call.callback)(Err(error.clone())));
        }
    }

    fn greet_in_background(&self) {
        let managers = self.clone();
        let spawned = std::thread::Builder::new().name("greet-managers".into()).spawn(move || {
            let answers = managers.greet(managers.list().endpoints());
            managers.greeted(&gather(&answers));
            let inner = Arc::downgrade(&managers.0);
            managers.check_late(&answers);
            drop(managers);
            greet_the_rest(&inner);
        });
        if let Err(error) = spawned {
            let error = Error::new(Code::Unavailable, format!("cannot start a thread to greet the managers: {error}"));
            let answer = |endpoint: &Endpoint| Answer {
                manager: endpoint.clone(),
                result: Err(error.clone()),
                took: Duration::ZERO,
            };
            self.greeted(&self.list().endpoints().iter().map(answer).collect::<Vec<_>>());
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

    fn greeted(&self, answers: &[Answer]) {
        self.check_conflict();
        let reached = reached(answers);
        let next = if reached.is_empty() { Gate::Closed } else { Gate::Open };
        let mut gate = self.0.gate.lock();
        // Closed meanwhile, or refused.
        if !matches!(&*gate, Gate::Greeting(_)) {
            return;
        }
        let Gate::Greeting(waiting) = std::mem::replace(&mut *gate, next) else { unreachable!("looked at above") };
        drop(gate);
        self.0.route.lock().prefer(&reached);
        for (manager, mut call) in waiting {
            if reached.contains(&manager) {
                self.ask(manager, call);
            } else if !reached.is_empty() {
                let first = self.0.route.lock().begin(&mut call.search);
                self.ask(first, call);
            } else {
                self.unreached(&manager, call, answers);
            }
        }
    }

    /// No manager was reached: the call goes its way as if it had asked by itself.
    fn unreached(&self, manager: &Endpoint, call: ManagerCall, answers: &[Answer]) {
        let answer = answers.iter().find(|answer| answer.manager == *manager);
        let Some(Answer { result: Err(error), took, .. }) = answer else {
            return self.attempt(manager.clone(), call);
        };
        let began = Instant::now().checked_sub(*took).unwrap_or_else(Instant::now);
        self.answered(manager, began, call, Err(Failure { error: error.clone(), is_sent: false }));
    }

    /// Looks at the answers that come after the calls have passed.
    fn check_late(&self, answers: &Receiver<Answer>) {
        answers.iter().for_each(|_| self.check_conflict());
    }

    /// Managers of the list that have not answered yet.
    fn unidentified(&self) -> Vec<Endpoint> {
        let is_new = |it: &&Endpoint| self.0.dialer.identity(it).is_none();
        self.list().endpoints().iter().filter(is_new).cloned().collect()
    }

    /// The first of the list that is of another cluster than one before it, and the error of every call then.
    fn conflict(&self) -> Option<(Endpoint, Error)> {
        let mut clusters: Vec<(Vec<u8>, Vec<&Endpoint>)> = Vec::new();
        for endpoint in self.list().endpoints() {
            let identity = self.0.dialer.identity(endpoint).filter(|it| !it.cluster_id.is_empty());
            let Some(Identity { cluster_id, .. }) = identity else { continue };
            match clusters.iter_mut().find(|(id, _)| *id == cluster_id) {
                Some((_, members)) => members.push(endpoint),
                None => clusters.push((cluster_id, vec![endpoint])),
            }
        }
        let (_, others) = clusters.get(1)?;
        let serves = |(id, members): &(Vec<u8>, Vec<&Endpoint>)| {
            let members: Vec<String> = members.iter().map(ToString::to_string).collect();
            format!("cluster {} at {}", hex(id), members.join(","))
        };
        let clusters: Vec<String> = clusters.iter().map(serves).collect();
        let text = format!(
            "two clusters answer at the managers that were named: {}; was a manager whose directory was lost started without \
             --join? `tessera manager list --manager ADDR` shows each; stop the one that is wrong, remove its directory, and \
             start it with --join",
            clusters.join(", ")
        );
        Some((others[0].clone(), Error::new(Code::WrongCluster, text)))
    }
}

/// Greets the managers that have not answered, until all have, no call passes any more, or nobody uses the managers.
fn greet_the_rest(inner: &Weak<Inner>) {
    loop {
        let rest =
            |managers: &Managers| if managers.refusal().is_some() { Vec::new() } else { managers.unidentified() };
        if inner.upgrade().is_none_or(|inner| rest(&Managers(inner)).is_empty()) {
            return;
        }
        std::thread::sleep(GREET_AGAIN);
        let Some(managers) = inner.upgrade().map(Managers) else { return };
        managers.check_late(&managers.greet(&rest(&managers)));
    }
}

fn reached(answers: &[Answer]) -> Vec<Endpoint> {
    answers.iter().filter(|answer| answer.result.is_ok()).map(|answer| answer.manager.clone()).collect()
}

/// The answers of all managers, or those that came within [`PATIENCE`] of the first good one.
fn gather(receiver: &Receiver<Answer>) -> Vec<Answer> {
    let mut answers = Vec::new();
    let mut deadline: Option<Instant> = None;
    loop {
        let next = match deadline {
            None => receiver.recv().ok(),
            Some(deadline) => receiver.recv_timeout(deadline.saturating_duration_since(Instant::now())).ok(),
        };
        let Some(answer) = next else { return answers };
        if answer.result.is_ok() {
            deadline.get_or_insert_with(|| Instant::now() + PATIENCE);
        }
        answers.push(answer);
    }
}
