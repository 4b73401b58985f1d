//! The first contact of a process that does not know its cluster: it greets all managers of its list at once.
//!
//! A manager that lost its directory and was started without `--join` founds a new, empty cluster at its old address. A process
//! that asked only this one would take the empty cluster for its own, and would have its changes acknowledged there. So no call
//! passes before all managers have answered, or [`PATIENCE`] after the first did; if two clusters answer, none passes at all
//! (P14). A manager that answers later and is of another cluster is refused by the dialer.

use super::{ManagerCall, Managers};
use crate::dialer::Failure;
use crate::endpoint::Endpoint;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use tessera_wire::{Code, Error};

/// Wait for further managers once one has answered: more than a round trip and a new connection take, and little beside a
/// command.
const PATIENCE: Duration = Duration::from_millis(300);

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

    /// Ends the calls that wait for the greeting, and lets none pass any more.
    pub(super) fn close_gate(&self) {
        let refused = Gate::Refused(Error::new(Code::Unavailable, "the connections of this process were closed"));
        let before = std::mem::replace(&mut *self.0.gate.lock(), refused);
        if let Gate::Greeting(waiting) = before {
            waiting.into_iter().for_each(|(_, call)| call.give_up());
        }
    }

    fn greet_in_background(&self) {
        let managers = self.clone();
        let spawned = std::thread::Builder::new().name("greet-managers".into()).spawn(move || managers.greet());
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

    fn greet(&self) {
        let began = Instant::now();
        let (sender, receiver) = channel();
        for endpoint in self.list().endpoints() {
            let (sender, manager) = (sender.clone(), endpoint.clone());
            // After the wait nobody listens.
            let done = move |result| drop(sender.send(Answer { manager, result, took: began.elapsed() }));
            self.0.dialer.greet(endpoint, Box::new(done));
        }
        drop(sender);
        self.greeted(&gather(&receiver));
    }

    fn greeted(&self, answers: &[Answer]) {
        let conflict = conflict(answers);
        let reached = reached(answers);
        let next = match (&conflict, reached.is_empty()) {
            (Some(error), _) => Gate::Refused(error.clone()),
            (None, true) => Gate::Closed,
            (None, false) => Gate::Open,
        };
        let mut gate = self.0.gate.lock();
        // Closed meanwhile.
        if !matches!(&*gate, Gate::Greeting(_)) {
            return;
        }
        let Gate::Greeting(waiting) = std::mem::replace(&mut *gate, next) else { unreachable!("looked at above") };
        drop(gate);
        self.0.route.lock().prefer(&reached);
        for (manager, mut call) in waiting {
            if conflict.is_some() || reached.contains(&manager) {
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

/// The error of every call if two clusters answered.
fn conflict(answers: &[Answer]) -> Option<Error> {
    let is_other = |answer: &&Answer| answer.result.as_ref().is_err_and(|error| error.code() == Code::WrongCluster);
    let other = &answers.iter().find(is_other)?.manager;
    let good: Vec<String> = reached(answers).iter().map(ToString::to_string).collect();
    if good.is_empty() {
        return None;
    }
    let text = format!(
        "two clusters answer at the managers that were named: {} are of one, {other} is of another. Was a manager \
         whose directory was lost started without --join? `tessera manager list --manager ADDR` shows each; stop the one that \
         is wrong, remove its directory, and start it with --join",
        good.join(",")
    );
    Some(Error::new(Code::WrongCluster, text))
}
