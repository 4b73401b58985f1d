//! Which manager to ask next: no sockets, no clock.
//!
//! A *round* asks each manager of the list once, and those that others name as the leader. A round that ends with an answer
//! of a manager that does not lead is repeated after a pause: an election is under way.

use super::list::{MAX_MANAGERS, ManagerList};
use crate::endpoint::Endpoint;
use std::time::{Duration, Instant};
use tessera_wire::{Code, Error};

/// A manager that was silent is not asked for this long while others can be, even if they name it as the leader: they learn
/// later than its clients that it is gone.
const AVOID_SILENT: Duration = Duration::from_secs(3);
/// Pause after a round in which no manager led.
pub const PAUSE: Duration = Duration::from_millis(150);
/// A manager that took this long and gave no answer is silent: its host is gone, or its process stopped. A connection that
/// is refused takes less.
pub(super) const SILENT_AFTER: Duration = Duration::from_secs(1);
/// Most managers asked in one round: the list, and as many that others named.
const MAX_ASKED: usize = 2 * MAX_MANAGERS;

/// How the attempt at one manager ended.
#[derive(Debug)]
pub enum Outcome {
    /// It answered as the leader does.
    Answered,
    /// It does not lead, and may have named the leader.
    NotLeader(Error),
    /// The request did not reach it. `silent`: this took long.
    Unreachable {
        /// Why.
        error: Error,
        /// See the variant.
        silent: bool,
    },
    /// It may have carried out the request, or cannot serve now. `silent`: no answer came in time.
    Lost {
        /// See the variant.
        silent: bool,
    },
}

impl Outcome {
    /// The end of an attempt that took so long and gave this error, or none. `is_sent`: the request was sent.
    #[must_use]
    pub fn of(error: Option<&Error>, is_sent: bool, took: Duration) -> Outcome {
        let Some(error) = error else { return Outcome::Answered };
        let silent = took >= SILENT_AFTER;
        match (is_sent, error.code()) {
            (false, _) => Outcome::Unreachable { error: error.clone(), silent },
            (true, Code::NotLeader) => Outcome::NotLeader(error.clone()),
            (true, Code::Timeout) => Outcome::Lost { silent },
            (true, Code::Unavailable) => Outcome::Lost { silent: false },
            (true, _) => Outcome::Answered,
        }
    }
}

/// What to do next.
#[derive(Debug, PartialEq)]
pub enum Step {
    /// Ask this manager.
    Ask(Endpoint),
    /// Begin another round after a pause.
    Pause,
    /// No manager can be reached: answer so.
    Fail(Error),
    /// Answer what the manager answered. Connections to `deposed` are of no use any more.
    Done {
        /// See the variant.
        deposed: Vec<Endpoint>,
    },
}

/// One call's way to the leader.
#[derive(Debug, Default)]
pub struct Search {
    /// Asked in this round.
    asked: Vec<Endpoint>,
    /// A manager answered in this round.
    is_heard: bool,
    /// What tells most of this round, and the last of such.
    last: Option<(Tells, Error)>,
    /// The first error of this round that no repetition mends.
    refusal: Option<Error>,
    /// All of this round were such errors.
    all_refused: bool,
}

/// How much an error tells a user who finds no leader.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Tells {
    /// A manager cannot be reached.
    Unreachable,
    /// A manager answered, and named another one, which does not lead either.
    Another,
    /// A manager answered why none leads.
    Why,
}

#[derive(Debug)]
struct Silent {
    endpoint: Endpoint,
    until: Instant,
    /// Its connection was reported as of no use.
    is_reported: bool,
}

/// What is known of the managers.
#[derive(Debug)]
pub struct Route {
    list: Vec<Endpoint>,
    /// The manager that calls ask first; perhaps not in the list.
    leader: Endpoint,
    silent: Vec<Silent>,
    /// Managers that refuse, and how: the log tells it once, until they answer or refuse otherwise.
    refusing: Vec<(Endpoint, Code)>,
}

impl Route {
    /// A route that begins at the first of the list.
    #[must_use]
    pub fn new(list: &ManagerList) -> Route {
        let list = list.endpoints().to_vec();
        Route { leader: list[0].clone(), list, silent: Vec::new(), refusing: Vec::new() }
    }

    /// The manager believed to lead.
    #[must_use]
    pub fn leader(&self) -> &Endpoint {
        &self.leader
    }

    /// Of all managers, only those of `answered` have answered a greeting: one of them is asked first.
    pub fn prefer(&mut self, answered: &[Endpoint]) {
        if !answered.contains(&self.leader) {
            let first = self.list.iter().find(|it| answered.contains(it));
            self.leader = first.unwrap_or(&self.leader).clone();
        }
    }

    /// Begins a round; returns the manager to ask first.
    pub fn begin(&self, search: &mut Search) -> Endpoint {
        *search = Search { asked: vec![self.leader.clone()], all_refused: true, ..Search::default() };
        self.leader.clone()
    }

    /// The attempt at `from` has ended.
    pub fn step(&mut self, now: Instant, search: &mut Search, from: &Endpoint, outcome: Outcome) -> Step {
        self.silent.retain(|silent| silent.until > now);
        match outcome {
            Outcome::Answered => Step::Done { deposed: self.trust(from) },
            Outcome::Lost { silent } => {
                self.doubt(now, from, silent);
                Step::Done { deposed: Vec::new() }
            }
            Outcome::Unreachable { error, silent } => {
                self.doubt(now, from, silent);
                self.tell(from, &error);
                search.note(Tells::Unreachable, error);
                self.next(search)
            }
            Outcome::NotLeader(error) => {
                let named = self.named(search, &error.leader);
                search.is_heard = true;
                self.refusing.retain(|(manager, _)| manager != from);
                let tells = if error.leader.is_empty() { Tells::Why } else { Tells::Another };
                search.note(tells, self.explained(error));
                match named {
                    Some(leader) => {
                        self.leader = leader.clone();
                        search.asked.push(leader.clone());
                        Step::Ask(leader)
                    }
                    None => {
                        self.leave(from);
                        self.next(search)
                    }
                }
            }
        }
    }

    /// `from` leads.
    fn trust(&mut self, from: &Endpoint) -> Vec<Endpoint> {
        self.silent.retain(|silent| silent.endpoint != *from);
        self.refusing.retain(|(manager, _)| manager != from);
        self.leader = from.clone();
        let unreported = self.silent.iter_mut().filter(|silent| !silent.is_reported);
        unreported
            .map(|silent| {
                silent.is_reported = true;
                silent.endpoint.clone()
            })
            .collect()
    }

    /// Logs that `from` refuses the connection, unless the log says so. Returns whether it did.
    fn tell(&mut self, from: &Endpoint, error: &Error) -> bool {
        let refusal = (from.clone(), error.code());
        if error.is_retryable() || self.refusing.contains(&refusal) {
            return false;
        }
        self.refusing.retain(|(manager, _)| manager != from);
        self.refusing.push(refusal);
        // Those beyond the list were named by others, who may name any number.
        if self.refusing.len() > MAX_ASKED {
            self.refusing.remove(0);
        }
        tracing::warn!(manager = %from, %error, "this manager refuses the connection; others are asked");
        true
    }

    /// `from` failed.
    fn doubt(&mut self, now: Instant, from: &Endpoint, silent: bool) {
        if silent && !self.is_silent(from) {
            self.silent.push(Silent { endpoint: from.clone(), until: now + AVOID_SILENT, is_reported: false });
        }
        self.leave(from);
    }

    /// If `from` was believed to lead, the next of the list is asked first.
    fn leave(&mut self, from: &Endpoint) {
        if self.leader == *from {
            let next = self.after(from).find(|it| !self.is_silent(it)).or_else(|| self.after(from).next());
            self.leader = next.unwrap_or(from).clone();
        }
    }

    /// The list, beginning after `from`, without `from`.
    fn after<'a>(&'a self, from: &'a Endpoint) -> impl Iterator<Item = &'a Endpoint> {
        let at = self.list.iter().position(|it| it == from).map_or(0, |at| at + 1);
        self.list[at..].iter().chain(&self.list[..at]).filter(move |it| *it != from)
    }

    fn is_silent(&self, endpoint: &Endpoint) -> bool {
        self.silent.iter().any(|silent| silent.endpoint == *endpoint)
    }

    /// The leader that a manager named, if it is to be asked now. A path of a socket means nothing on another machine, so only
    /// those of the list are believed.
    fn named(&self, search: &Search, text: &str) -> Option<Endpoint> {
        let leader: Endpoint = text.parse().ok()?;
        let is_usable = matches!(leader, Endpoint::Tcp(_)) || self.list.contains(&leader);
        let is_new = !search.asked.contains(&leader) && search.asked.len() < MAX_ASKED;
        (is_usable && is_new && !self.is_silent(&leader)).then_some(leader)
    }

    /// What a manager says that names another one, with what is known of that.
    fn explained(&self, error: Error) -> Error {
        match error.leader.parse().is_ok_and(|leader| self.is_silent(&leader)) {
            true => {
                const TEXT: &str = "and gives no answer; check the way to it, or stop it so that another one leads";
                Error { message: format!("{}, {TEXT}", error.message), ..error }
            }
            false => error,
        }
    }

    /// The next manager of the round.
    fn next(&self, search: &mut Search) -> Step {
        let fresh =
            || std::iter::once(&self.leader).chain(self.after(&self.leader)).filter(|it| !search.asked.contains(it));
        // Silent ones cost a time-out each: they are asked if nothing else answers.
        let next = fresh().find(|it| !self.is_silent(it)).or_else(|| fresh().next().filter(|_| !search.is_heard));
        match next.cloned() {
            Some(next) => {
                search.asked.push(next.clone());
                Step::Ask(next)
            }
            None if search.is_heard => Step::Pause,
            None => Step::Fail(search.failure()),
        }
    }
}

impl Search {
    fn note(&mut self, tells: Tells, error: Error) {
        match error.is_retryable() {
            true => self.all_refused = false,
            false => drop(self.refusal.get_or_insert_with(|| error.clone())),
        }
        if self.last.as_ref().is_none_or(|(most, _)| tells >= *most) {
            self.last = Some((tells, error));
        }
    }

    /// The error of a call that found no leader in time.
    #[must_use]
    pub fn failure(&self) -> Error {
        let Some(last) = self.refusal.as_ref().or(self.last.as_ref().map(|(_, error)| error)) else {
            return Error::new(Code::Unavailable, "no manager was asked");
        };
        let asked: Vec<String> = self.asked.iter().map(ToString::to_string).collect();
        match (asked.len(), self.all_refused) {
            (1, _) if !self.is_heard => last.clone(),
            (_, true) if !self.is_heard => {
                Error { message: format!("{} (managers {})", last.message, asked.join(",")), ..last.clone() }
            }
            _ => Error::new(Code::Unavailable, format!("{} (asked {})", last.message, asked.join(","))),
        }
    }
}
