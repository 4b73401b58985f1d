//! The way of a request to the manager that leads: each process looks for it as the real shells do (`tessera_net::managers`).

use crate::network::Actor;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tessera_net::managers::route::{Outcome, PAUSE, Route, Search, Step};
use tessera_net::{Endpoint, ManagerList};
use tessera_wire::rpc::{Answer, Call};
use tessera_wire::{Code, Error};

/// Text of the error of a call whose receiver does not run.
const REFUSED: &str = "refused the connection";

/// The error of a call whose receiver does not run.
#[must_use]
pub fn refused(to: Actor) -> Error {
    Error::new(Code::Unavailable, format!("{to:?} {REFUSED}"))
}

/// A call on its way to the leader.
pub struct Routed {
    /// The caller and its incarnation.
    pub caller: (Actor, u64),
    call: Call,
    search: Search,
    asked: Endpoint,
    began_ns: i64,
    until_ns: i64,
}

/// What becomes of a call.
pub enum Next {
    /// It asks a manager.
    Ask(Routed),
    /// It asks again after so long, ns.
    Pause(Routed, i64),
    /// The caller gets this.
    Answer(Answer),
}

impl Routed {
    /// The manager to ask, and what.
    #[must_use]
    pub fn attempt(&self) -> (Actor, Call) {
        let left_ms = (self.until_ns - self.began_ns).max(0) as u64 / 1_000_000;
        let to = Actor::at(&self.asked.to_string()).unwrap_or(Actor::Manager(usize::MAX));
        (to, Call { timeout_ms: left_ms.max(1), ..self.call.clone() })
    }

    fn give_up(self) -> Next {
        Next::Answer(Answer { token: self.call.token, result: Err(self.search.failure()) })
    }
}

/// What every process knows of the managers.
pub struct Routes {
    list: ManagerList,
    /// Route clocks are instants; only their differences count.
    start: Instant,
    routes: BTreeMap<Actor, (u64, Route)>,
}

impl Routes {
    /// Routes to so many managers.
    #[must_use]
    pub fn new(managers: usize) -> Routes {
        let list: Vec<String> = (0..managers).map(|i| format!("m{i}:1")).collect();
        #[allow(clippy::disallowed_methods, reason = "only differences count")]
        let start = Instant::now();
        Routes { list: list.join(",").parse().expect("the addresses are good"), start, routes: BTreeMap::new() }
    }

    fn route(&mut self, (actor, incarnation): (Actor, u64)) -> &mut Route {
        let list = &self.list;
        let known = self.routes.entry(actor).or_insert_with(|| (incarnation, Route::new(list)));
        if known.0 != incarnation {
            *known = (incarnation, Route::new(list));
        }
        &mut known.1
    }

    /// A call begins.
    pub fn begin(&mut self, caller: (Actor, u64), call: Call, now_ns: i64) -> Routed {
        let until_ns = now_ns.saturating_add(call.timeout_ms.saturating_mul(1_000_000) as i64);
        let mut search = Search::default();
        let asked = self.route(caller).begin(&mut search);
        Routed { caller, call, search, asked, began_ns: now_ns, until_ns }
    }

    /// Another round begins.
    pub fn again(&mut self, routed: Routed, now_ns: i64) -> Routed {
        let mut routed = routed;
        routed.asked = self.route(routed.caller).begin(&mut routed.search);
        Routed { began_ns: now_ns, ..routed }
    }

    /// An attempt has ended.
    pub fn ended(&mut self, routed: Routed, now_ns: i64, result: Result<(Bytes, Bytes), Error>) -> Next {
        let mut routed = routed;
        let error = result.as_ref().err();
        let is_sent = error.is_none_or(|error| !error.message.ends_with(REFUSED));
        let took = Duration::from_nanos((now_ns - routed.began_ns).max(0) as u64);
        let outcome = Outcome::of(error, is_sent, took);
        let now = self.start + Duration::from_nanos(now_ns.max(0) as u64 % (1 << 62));
        let asked = routed.asked.clone();
        let caller = routed.caller;
        let step = self.route(caller).step(now, &mut routed.search, &asked, outcome);
        let pause_ns = PAUSE.as_nanos() as i64;
        let token = routed.call.token;
        match step {
            Step::Done { .. } => Next::Answer(Answer { token, result }),
            Step::Ask(asked) if now_ns < routed.until_ns => Next::Ask(Routed { asked, began_ns: now_ns, ..routed }),
            Step::Pause if now_ns + pause_ns < routed.until_ns => Next::Pause(routed, pause_ns),
            Step::Ask(_) | Step::Pause => routed.give_up(),
            Step::Fail(error) => Next::Answer(Answer { token, result: Err(error) }),
        }
    }
}
