//! Calls to the managers of a cluster: they go to the one that leads.
//!
//! [`Managers::call`] asks the manager that it believes to lead. `NotLeader` means that nothing was carried out, so the call
//! goes on at once: to the leader that the answer names, else to the next of the list. So does a call that could not be sent.
//! After a round without a leader it pauses. A request that may have been carried out is not repeated here: its caller
//! gets the error and repeats it under the same op id (P8), which then goes to another manager.
//!
//! A process that does not know its cluster greets all managers of its list before its first call ([`greeting`]).
//!
//! [`route`] decides; this module carries out. Calls have no thread: a connection's thread brings them forward, and one
//! thread ends the pauses while there are any.

mod greeting;
mod list;
pub mod route;
#[cfg(test)]
mod route_tests;
mod tally;
#[cfg(test)]
mod tests;

pub use list::{MAX_MANAGERS, ManagerList};

use crate::connection::{Callback, wait_for};
use crate::dialer::{Dialer, Failure};
use crate::endpoint::Endpoint;
use bytes::Bytes;
use greeting::Gate;
use parking_lot::Mutex;
use route::{Outcome, PAUSE, Route, Search, Step};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tessera_wire::{Code, Error, Kind, Request};

/// The managers of a cluster, and which one leads. Cloning shares them.
#[derive(Clone)]
pub struct Managers(Arc<Inner>);

struct Inner {
    dialer: Dialer,
    list: ManagerList,
    route: Mutex<Route>,
    /// The process has no remembered cluster, and takes that of the managers.
    learns_cluster: bool,
    gate: Mutex<Gate>,
    pauses: Mutex<Pauses>,
}

/// Calls between two rounds. All pauses have one length, so the first began first.
#[derive(Default)]
struct Pauses {
    calls: VecDeque<(Instant, ManagerCall)>,
    has_thread: bool,
    is_closed: bool,
}

struct ManagerCall {
    kind: Kind,
    body: Bytes,
    payload: Vec<Bytes>,
    deadline: Instant,
    callback: Callback,
    search: Search,
}

impl ManagerCall {
    fn give_up(self) {
        let error = self.search.failure();
        (self.callback)(Err(error));
    }
}

impl Managers {
    /// The managers of `list`, reached through `dialer`. Opens no connection yet.
    #[must_use]
    pub fn new(dialer: Dialer, list: ManagerList) -> Managers {
        let route = Mutex::new(Route::new(&list));
        let learns_cluster = dialer.cluster_id().is_none();
        let gate = Mutex::new(Gate::new(!learns_cluster));
        Managers(Arc::new(Inner { dialer, list, route, learns_cluster, gate, pauses: Mutex::default() }))
    }

    /// The list that it was made with.
    #[must_use]
    pub fn list(&self) -> &ManagerList {
        &self.0.list
    }

    /// The manager that calls ask first.
    #[must_use]
    pub fn leader(&self) -> Endpoint {
        self.0.route.lock().leader().clone()
    }

    /// Calls the leader; `callback` runs exactly once, on a connection's thread or on this one. `timeout` bounds the search
    /// for the leader and the wait for its answer together.
    ///
    /// The error is the leader's; [`Code::Timeout`], or [`Code::Unavailable`] if its connection broke; [`Code::Unavailable`] if no
    /// manager can be reached, or none was found to lead in time; or why all managers refuse the connection.
    pub fn call(&self, kind: Kind, body: Bytes, payload: Vec<Bytes>, timeout: Duration, callback: Callback) {
        let deadline = Instant::now() + timeout;
        let mut call = ManagerCall { kind, body, payload, deadline, callback, search: Search::default() };
        let first = self.0.route.lock().begin(&mut call.search);
        self.ask(first, call);
    }

    /// Calls and waits for the reply.
    ///
    /// # Errors
    /// As [`Managers::call`].
    pub fn call_wait<R: Request>(
        &self,
        message: &R,
        payload: Vec<Bytes>,
        timeout: Duration,
    ) -> Result<(R::Reply, Bytes), Error> {
        wait_for::<R>(|callback| self.call(R::KIND, message.encode_to_vec().into(), payload, timeout, callback))
    }

    /// Ends the calls that pause, and lets none pause any more. Those on a connection end with the dialer.
    pub fn close(&self) {
        self.close_gate();
        let paused = {
            let mut pauses = self.0.pauses.lock();
            pauses.is_closed = true;
            std::mem::take(&mut pauses.calls)
        };
        paused.into_iter().for_each(|(_, call)| call.give_up());
    }

    fn ask(&self, manager: Endpoint, call: ManagerCall) {
        if let Some(call) = self.pass(&manager, call) {
            self.attempt(manager, call);
        }
    }

    fn attempt(&self, manager: Endpoint, call: ManagerCall) {
        let began = Instant::now();
        let left = call.deadline.saturating_duration_since(began);
        let (kind, body, payload) = (call.kind, call.body.clone(), call.payload.clone());
        let (managers, asked) = (self.clone(), manager.clone());
        let done = move |result| managers.answered(&asked, began, call, result);
        self.0.dialer.attempt(&manager, kind, body, payload, left, Box::new(done));
    }

    fn answered(
        &self,
        from: &Endpoint,
        began: Instant,
        mut call: ManagerCall,
        result: Result<(Bytes, Bytes), Failure>,
    ) {
        let now = Instant::now();
        if let Some(error) = self.late_refusal(&result) {
            return (call.callback)(Err(error));
        }
        let result = self.check_role(from).map_err(|error| Failure { error, is_sent: false }).and(result);
        let failure = result.as_ref().err();
        let error = failure.map(|failure| &failure.error);
        let outcome = Outcome::of(error, failure.is_none_or(|failure| failure.is_sent), now - began);
        let step = self.0.route.lock().step(now, &mut call.search, from, outcome);
        match step {
            Step::Done { deposed } => {
                (call.callback)(result.map_err(|failure| failure.error));
                deposed.iter().for_each(|manager| self.0.dialer.hang_up(manager));
            }
            Step::Ask(next) if now < call.deadline => self.ask(next, call),
            Step::Pause if now + PAUSE < call.deadline => self.pause(now + PAUSE, call),
            Step::Ask(_) | Step::Pause => call.give_up(),
            Step::Fail(error) => (call.callback)(Err(error)),
        }
    }

    /// Why this answer does not count: a process that took its cluster from the managers has learned meanwhile, perhaps by this
    /// answer, that they are of two.
    fn late_refusal(&self, answer: &Result<(Bytes, Bytes), Failure>) -> Option<Error> {
        if !self.0.learns_cluster {
            return None;
        }
        if answer.as_ref().is_err_and(|failure| failure.error.code() == Code::WrongCluster) {
            self.review();
        }
        self.refusal()
    }

    fn pause(&self, until: Instant, call: ManagerCall) {
        let mut pauses = self.0.pauses.lock();
        if pauses.is_closed {
            drop(pauses);
            return call.give_up();
        }
        pauses.calls.push_back((until, call));
        if std::mem::replace(&mut pauses.has_thread, true) {
            return;
        }
        let managers = self.clone();
        let spawned = std::thread::Builder::new().name("manager-pause".into()).spawn(move || managers.end_pauses());
        if let Err(error) = spawned {
            tracing::warn!(%error, "cannot start a thread to look for the leading manager again");
            pauses.has_thread = false;
            let calls = std::mem::take(&mut pauses.calls);
            drop(pauses);
            calls.into_iter().for_each(|(_, call)| call.give_up());
        }
    }

    /// Begins the next round of each call whose pause is over, until no call pauses.
    fn end_pauses(&self) {
        loop {
            let until = {
                let mut pauses = self.0.pauses.lock();
                match pauses.calls.front() {
                    Some((until, _)) => *until,
                    None => {
                        pauses.has_thread = false;
                        return;
                    }
                }
            };
            std::thread::sleep(until.saturating_duration_since(Instant::now()));
            let due = self.0.pauses.lock().calls.pop_front();
            if let Some((_, mut call)) = due {
                let first = self.0.route.lock().begin(&mut call.search);
                self.ask(first, call);
            }
        }
    }
}
