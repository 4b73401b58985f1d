//! Sequences of answers, and where the call goes next.

use super::list::MAX_MANAGERS;
use super::route::{Outcome, Route, Search, Step};
use crate::endpoint::Endpoint;
use std::time::{Duration, Instant};
use tessera_wire::{Code, Error};

/// A route, one call, and a clock.
struct Script {
    route: Route,
    search: Search,
    now: Instant,
}

fn at(name: &str) -> Endpoint {
    Endpoint::Tcp(format!("{name}:1"))
}

fn error(code: Code) -> Error {
    Error::new(code, "why")
}

/// `a b` stands for the list `a:1,b:1`.
fn script(names: &str) -> Script {
    let list: Vec<String> = names.split(' ').map(|name| format!("{name}:1")).collect();
    Script { route: Route::new(&list.join(",").parse().unwrap()), search: Search::default(), now: Instant::now() }
}

impl Script {
    fn begin(&mut self) -> String {
        self.route.begin(&mut self.search).to_string()
    }

    fn step(&mut self, from: &str, outcome: Outcome) -> String {
        match self.route.step(self.now, &mut self.search, &at(from), outcome) {
            Step::Ask(endpoint) => endpoint.to_string(),
            Step::Pause => "pause".into(),
            Step::Fail(error) => format!("{:?}: {}", error.code(), error.message),
            Step::Done { deposed } => {
                let deposed: Vec<String> = deposed.iter().map(|it| format!(" without {it}")).collect();
                format!("done{}", deposed.concat())
            }
        }
    }

    fn answers(&mut self, from: &str) -> String {
        self.step(from, Outcome::Answered)
    }

    /// `from` does not lead; `named` does, unless it is empty.
    fn points(&mut self, from: &str, named: &str) -> String {
        let leader = if named.is_empty() { String::new() } else { format!("{named}:1") };
        self.step(from, Outcome::NotLeader(Error { leader, ..error(Code::NotLeader) }))
    }

    fn refuses(&mut self, from: &str) -> String {
        self.step(from, Outcome::Unreachable { error: error(Code::Unavailable), silent: false })
    }

    fn is_gone(&mut self, from: &str) -> String {
        self.step(from, Outcome::Unreachable { error: error(Code::Unavailable), silent: true })
    }

    fn breaks(&mut self, from: &str) -> String {
        self.step(from, Outcome::Lost { silent: false })
    }

    fn is_silent(&mut self, from: &str) -> String {
        self.step(from, Outcome::Lost { silent: true })
    }
}

#[test]
fn a_call_goes_to_the_leader_that_is_named_and_later_calls_begin_there() {
    let mut it = script("a b c");
    assert_eq!(it.begin(), "a:1");
    assert_eq!(it.points("a", "c"), "c:1");
    assert_eq!(it.answers("c"), "done");
    assert_eq!(it.begin(), "c:1");
}

#[test]
fn without_a_name_the_next_of_the_list_is_asked() {
    let mut it = script("a b c");
    it.begin();
    assert_eq!(it.points("a", ""), "b:1");
    assert_eq!(it.refuses("b"), "c:1");
    assert_eq!(it.answers("c"), "done");
    assert_eq!(it.begin(), "c:1");
}

#[test]
fn a_round_without_a_leader_ends_with_a_pause() {
    let mut it = script("a b c");
    it.begin();
    assert_eq!(it.refuses("a"), "b:1");
    // The others still believe in the one that is gone.
    assert_eq!(it.points("b", "a"), "c:1");
    assert_eq!(it.points("c", "a"), "pause");
    assert_eq!(it.begin(), "a:1", "it may be back");
    assert_eq!(it.refuses("a"), "b:1");
    assert_eq!(it.answers("b"), "done");
}

#[test]
fn managers_that_name_each_other_are_asked_once_a_round() {
    let mut it = script("a b");
    it.begin();
    assert_eq!(it.points("a", "b"), "b:1");
    assert_eq!(it.points("b", "a"), "pause");
    assert_eq!(it.begin(), "a:1");
    assert_eq!(it.points("a", "a"), "b:1", "one that names itself");
    assert_eq!(it.points("b", "unix:"), "pause", "no address");
}

#[test]
fn if_none_can_be_reached_the_call_fails_at_once() {
    let mut it = script("a");
    it.begin();
    assert_eq!(it.refuses("a"), "Unavailable: why");
    let mut it = script("a b");
    it.begin();
    assert_eq!(it.refuses("a"), "b:1");
    assert_eq!(it.refuses("b"), "Unavailable: why (asked a:1,b:1)");
}

/// P14: a wrong address in the list is told apart from managers that restart.
#[test]
fn a_refusal_is_final_only_if_all_refuse() {
    let refused = || Outcome::Unreachable { error: error(Code::WrongCluster), silent: false };
    let mut it = script("a b");
    it.begin();
    assert_eq!(it.step("a", refused()), "b:1");
    assert_eq!(it.step("b", refused()), "WrongCluster: why (managers a:1,b:1)");
    it.begin();
    assert_eq!(it.step("a", refused()), "b:1");
    assert_eq!(it.answers("b"), "done");
    it.begin();
    assert_eq!(it.refuses("b"), "a:1");
    assert_eq!(it.step("a", refused()), "Unavailable: why (asked b:1,a:1)");
}

/// P8: a request that may have been carried out is its caller's to repeat.
#[test]
fn after_a_lost_request_the_next_call_begins_elsewhere() {
    let mut it = script("a b c");
    it.begin();
    assert_eq!(it.breaks("a"), "done");
    assert_eq!(it.begin(), "b:1");
    // An answer that says that `a` serves brings it back.
    assert_eq!(it.points("b", "a"), "a:1");
    assert_eq!(it.answers("a"), "done");
    assert_eq!(it.begin(), "a:1");
    // Many calls fail when a connection breaks: they move on once.
    assert_eq!(it.breaks("a"), "done");
    assert_eq!(it.breaks("a"), "done");
    assert_eq!(it.begin(), "b:1");
    assert_eq!(script("a").breaks("a"), "done");
}

#[test]
fn a_silent_manager_is_avoided_although_others_name_it() {
    let mut it = script("a b c");
    it.begin();
    assert_eq!(it.is_silent("a"), "done");
    assert_eq!(it.begin(), "b:1");
    assert_eq!(it.points("b", "a"), "c:1");
    assert_eq!(it.points("c", "a"), "pause");
    it.now += Duration::from_secs(2);
    assert_eq!(it.begin(), "b:1");
    assert_eq!(it.points("b", "c"), "c:1");
    assert_eq!(it.answers("c"), "done without a:1");
    assert_eq!(it.answers("c"), "done", "its connection is given up once");
    it.now += Duration::from_secs(2);
    it.begin();
    assert_eq!(it.points("c", "a"), "a:1", "silent for long enough to be asked again");
}

#[test]
fn a_silent_manager_is_asked_if_no_other_answers() {
    let mut it = script("a b");
    it.begin();
    assert_eq!(it.is_gone("a"), "b:1");
    it.begin();
    assert_eq!(it.refuses("b"), "a:1");
    assert_eq!(it.answers("a"), "done");
    it.begin();
    assert_eq!(it.points("a", "b"), "b:1", "no longer avoided");
    let mut alone = script("a");
    alone.begin();
    assert_eq!(alone.is_silent("a"), "done");
    assert_eq!(alone.begin(), "a:1");
}

#[test]
fn a_leader_outside_the_list_is_asked_and_forgotten_when_it_fails() {
    let mut it = script("a b");
    it.begin();
    assert_eq!(it.points("a", "x"), "x:1");
    assert_eq!(it.answers("x"), "done");
    assert_eq!(it.begin(), "x:1");
    assert_eq!(it.refuses("x"), "a:1");
    assert_eq!(it.points("a", "x"), "b:1", "asked in this round");
    assert_eq!(it.answers("b"), "done");
    assert_eq!(it.begin(), "b:1");
    assert_eq!(it.points("b", ""), "a:1");
    assert_eq!(it.points("a", ""), "pause", "nothing remembers it");
}

/// P14: an answer sends nobody round for ever, and to no socket of this machine.
#[test]
fn what_a_manager_names_is_bounded_and_checked() {
    let mut it = script("a b");
    it.begin();
    let mut from = "a".to_string();
    for i in 0.. {
        assert!(i < 3 * MAX_MANAGERS, "no end");
        let named = format!("x{i}");
        if it.points(&from, &named) != format!("{named}:1") {
            break;
        }
        from = named;
    }
    let mut it = script("a b");
    it.begin();
    let unix = Error { leader: "unix:/run/other".into(), ..error(Code::NotLeader) };
    assert_eq!(it.step("a", Outcome::NotLeader(unix)), "b:1");
}

/// The leader lives and answers, late, that it cannot serve now. The standbys name it.
#[test]
fn a_leader_that_answers_unavailable_late_is_asked_again() {
    let list: super::list::ManagerList = "a:1,b:1,c:1".parse().unwrap();
    let mut route = Route::new(&list);
    let (now, mut search) = (Instant::now(), Search::default());
    let a = route.begin(&mut search);
    let busy = Error::new(Code::Unavailable, "no open group has all its members up; try again");
    let outcome = Outcome::of(Some(&busy), true, Duration::from_millis(1100));
    assert_eq!(route.step(now, &mut search, &a, outcome), Step::Done { deposed: vec![] });
    let mut search = Search::default();
    let b = route.begin(&mut search);
    let stands_by = Error { leader: "a:1".into(), ..Error::new(Code::NotLeader, "stands by") };
    let step = route.step(now, &mut search, &b, Outcome::NotLeader(stands_by));
    assert_eq!(step, Step::Ask(a));
}

/// P14: a manager that is alive and says why none leads tells the user more than those that are gone, and than one that names
/// another of them.
#[test]
fn a_failure_says_what_tells_most() {
    let answer = |leader: &str, why: &str| {
        Outcome::NotLeader(Error { leader: leader.to_string(), ..Error::new(Code::NotLeader, why) })
    };
    let gone = || Outcome::Unreachable { error: Error::new(Code::Unavailable, "connection refused"), silent: false };
    let mut it = script("a b c");
    it.begin();
    assert_eq!(it.step("a", answer("", "no majority: b and c are missing")), "b:1");
    assert_eq!(it.step("b", gone()), "c:1");
    assert_eq!(it.step("c", gone()), "pause");
    assert_eq!(it.search.failure().message, "no majority: b and c are missing (asked a:1,b:1,c:1)");
    it.begin();
    assert_eq!(it.step("a", answer("", "its disk is full")), "b:1");
    assert_eq!(it.step("b", answer("a:1", "the one at a leads")), "c:1");
    assert_eq!(it.step("c", answer("a:1", "the one at a leads")), "pause");
    assert_eq!(it.search.failure().message, "its disk is full (asked a:1,b:1,c:1)");
    it.route.prefer(&[at("a")]);
    it.begin();
    assert_eq!(it.is_gone("a"), "b:1");
    assert_eq!(it.step("b", answer("a:1", "the one at a leads")), "c:1");
    assert_eq!(it.step("c", answer("a:1", "the one at a leads")), "pause");
    let says = it.search.failure().message;
    assert!(says.starts_with("the one at a leads, and gives no answer; check the way to it"), "{says}");
}
