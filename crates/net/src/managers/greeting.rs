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

/// Each manager that a greeting has ended for.
type Answers = Vec<(Endpoint, Result<(), Error>)>;

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
            let answers =
                self.list().endpoints().iter().map(|endpoint| (endpoint.clone(), Err(error.clone()))).collect();
            self.greeted(Instant::now(), answers);
        }
    }

    fn greet(&self) {
        let began = Instant::now();
        let (sender, receiver) = channel();
        for endpoint in self.list().endpoints() {
            let (sender, manager) = (sender.clone(), endpoint.clone());
            // After the wait nobody listens.
            let done = move |result| drop(sender.send((manager, result)));
            self.0.dialer.greet(endpoint, Box::new(done));
        }
        drop(sender);
        self.greeted(began, gather(&receiver));
    }

    fn greeted(&self, began: Instant, answers: Answers) {
        let conflict = conflict(&answers);
        let reached: Vec<Endpoint> =
            answers.iter().filter(|(_, result)| result.is_ok()).map(|(manager, _)| manager.clone()).collect();
        let is_refused = conflict.is_some();
        let next = match (conflict, reached.is_empty()) {
            (Some(error), _) => Gate::Refused(error),
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
        for (manager, call) in waiting {
            match answers.iter().find(|(from, _)| *from == manager) {
                Some((_, Err(error))) if !is_refused => {
                    let failure = Failure { error: error.clone(), is_sent: false };
                    self.answered(&manager, began, call, Err(failure));
                }
                _ => self.ask(manager, call),
            }
        }
    }
}

/// The answers of all managers, or those that came within [`PATIENCE`] of the first good one.
fn gather(receiver: &Receiver<(Endpoint, Result<(), Error>)>) -> Answers {
    let mut answers = Answers::new();
    let mut deadline = None;
    loop {
        let next = match deadline {
            None => receiver.recv().ok(),
            Some(deadline) => receiver.recv_timeout(Instant::saturating_duration_since(&deadline, Instant::now())).ok(),
        };
        let Some((manager, result)) = next else { return answers };
        if result.is_ok() {
            deadline.get_or_insert_with(|| Instant::now() + PATIENCE);
        }
        answers.push((manager, result));
    }
}

/// The error of every call if two clusters answered.
fn conflict(answers: &Answers) -> Option<Error> {
    let is_other = |result: &Result<(), Error>| matches!(result, Err(error) if error.code() == Code::WrongCluster);
    let (other, _) = answers.iter().find(|(_, result)| is_other(result))?;
    let good: Vec<String> =
        answers.iter().filter(|(_, result)| result.is_ok()).map(|(manager, _)| manager.to_string()).collect();
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
