//! The calls of one core that are not answered yet. Requests to the manager are repeated, the same bytes and
//! so the same op id (P8), until an answer comes or the deadline passes; puts and gets are not: what to do
//! about those is for their core to decide.

use crate::config::{MS, Options, ms};
use std::collections::{BTreeSet, HashMap, VecDeque};
use tessera_wire::rpc::{Answer, Call, Peer};
use tessera_wire::{Code, Error, Request};

/// See the module. `T` says what a call was for.
#[derive(Debug)]
pub(crate) struct Calls<T> {
    next_token: u64,
    open: HashMap<u64, Open<T>>,
    retries: BTreeSet<(i64, u64)>,
    out: VecDeque<Call>,
    op_seed: u64,
}

#[derive(Debug)]
struct Open<T> {
    what: T,
    /// Kept to be repeated; none for calls to nodes.
    again: Option<Call>,
    first_ns: i64,
    sent_ns: i64,
    attempts: u32,
}

/// An answer that its core has to deal with.
#[derive(Debug)]
pub(crate) struct Final<T> {
    pub what: T,
    pub sent_ns: i64,
    /// For how long the manager was asked.
    pub waited_ms: u64,
    pub answer: Answer,
}

impl<T> Calls<T> {
    /// `op_seed`: random, different for each core of a client; op ids are made of it.
    pub fn new(op_seed: u64) -> Self {
        Calls { next_token: 1, open: HashMap::new(), retries: BTreeSet::new(), out: VecDeque::new(), op_seed }
    }

    /// A fresh op id (splitmix64: Steele, Lea, Flood, OOPSLA 2014); never 0.
    pub fn op_id(&mut self) -> u64 {
        self.op_seed = self.op_seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.op_seed ^ self.op_seed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ z >> 31).max(1)
    }

    /// Asks the manager, and again until the deadline.
    pub fn manager<R: Request>(&mut self, now: i64, request: &R, what: T, options: &Options) {
        let call = Call::new(Peer::Manager, self.next_token, request, Vec::new(), options.manager_timeout_ms);
        self.push(now, call.clone(), what, Some(call));
    }

    /// Asks somebody once.
    pub fn once(&mut self, now: i64, mut call: Call, what: T) {
        call.token = self.next_token;
        self.push(now, call, what, None);
    }

    fn push(&mut self, now: i64, call: Call, what: T, again: Option<Call>) {
        let open = Open { what, again, first_ns: now, sent_ns: now, attempts: 1 };
        self.open.insert(self.next_token, open);
        self.next_token += 1;
        self.out.push_back(call);
    }

    /// The next call to be sent.
    pub fn poll(&mut self) -> Option<Call> {
        self.out.pop_front()
    }

    /// Takes an answer in; `None` if it is to be asked again, or nobody asked.
    pub fn answered(&mut self, now: i64, answer: Answer, options: &Options) -> Option<Final<T>> {
        let open = self.open.get_mut(&answer.token)?;
        let waited_ns = now.saturating_sub(open.first_ns).max(0);
        let again = matches!(&answer.result, Err(e) if e.is_retryable()) && open.again.is_some();
        if again && waited_ns < ms(options.manager_deadline_ms) {
            let at = now.saturating_add(options.backoff_ns(open.attempts));
            open.attempts += 1;
            self.retries.insert((at, answer.token));
            return None;
        }
        let open = self.open.remove(&answer.token)?;
        Some(Final { what: open.what, sent_ns: open.sent_ns, waited_ms: (waited_ns / MS) as u64, answer })
    }

    /// Sends again what is due.
    pub fn tick(&mut self, now: i64) {
        while let Some(&(at, token)) = self.retries.first().filter(|(at, _)| *at <= now) {
            self.retries.remove(&(at, token));
            if let Some(open) = self.open.get_mut(&token) {
                open.sent_ns = now;
                self.out.extend(open.again.clone());
            }
        }
    }

    /// When [`Calls::tick`] has something to do.
    pub fn next_due(&self) -> Option<i64> {
        self.retries.first().map(|(at, _)| *at)
    }

    /// Forgets everything: answers that still come are nobody's.
    pub fn abandon(&mut self) {
        self.open.clear();
        self.retries.clear();
    }
}

/// Whether the error is of the transport, or the other side was not itself: the same request may succeed elsewhere.
pub(crate) fn is_transport(error: &Error) -> bool {
    matches!(error.kind(), Code::Unavailable | Code::Timeout)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tessera_wire::meta::GetMap;

    fn answer(token: u64, code: Option<Code>) -> Answer {
        let result = match code {
            Some(code) => Err(Error::new(code, "x")),
            None => Ok(Default::default()),
        };
        Answer { token, result }
    }

    /// P8: a repeated request is the same request.
    #[test]
    fn a_silent_manager_is_asked_again_the_same_until_the_deadline() {
        let options = Options { manager_deadline_ms: 1000, ..Options::default() };
        let mut calls = Calls::new(1);
        calls.manager(0, &GetMap { known_version: 5, ..Default::default() }, "map", &options);
        let first = calls.poll().unwrap();
        let mut now = 0;
        let mut attempts = 0;
        let last = loop {
            if let Some(last) = calls.answered(now, answer(first.token, Some(Code::Unavailable)), &options) {
                break last;
            }
            assert!(calls.poll().is_none(), "not before its time");
            now = calls.next_due().unwrap();
            calls.tick(now);
            let again = calls.poll().unwrap();
            assert_eq!((again.token, &again.body), (first.token, &first.body));
            attempts += 1;
        };
        assert_eq!(last.what, "map");
        assert!(attempts > 3 && last.waited_ms >= 1000);
        assert!(calls.answered(now, answer(first.token, None), &options).is_none(), "answered once");
    }

    #[test]
    fn refusals_and_answers_are_final() {
        let options = Options::default();
        let mut calls = Calls::new(1);
        for code in [Some(Code::Invalid), None] {
            calls.manager(0, &GetMap::default(), (), &options);
            let token = calls.poll().unwrap().token;
            assert!(calls.answered(1, answer(token, code), &options).is_some());
        }
    }
}
