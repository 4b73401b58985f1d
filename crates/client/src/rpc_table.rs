//! The unanswered calls of one core. Requests to the manager are repeated, with the same bytes and so the same op id
//! (P8), until an answer comes or the deadline passes. Puts and gets are not repeated: their core decides what to do.

use crate::config::{MS, Options, ms};
use crate::job::{Job, Numbered};
use crate::view::SharedView;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use tessera_wire::meta::GetMap;
use tessera_wire::rpc::{Answer, Call, Peer};
use tessera_wire::{Error, Request};

/// See the module. `T` says what a call was for.
#[derive(Debug)]
pub(crate) struct RpcTable<T> {
    next_token: u64,
    pending: HashMap<u64, PendingRpc<T>>,
    retries: Timers<u64>,
    out: VecDeque<Call>,
    op_seed: u64,
}

#[derive(Debug)]
struct PendingRpc<T> {
    purpose: T,
    /// Kept to be repeated; `None` for calls to nodes.
    resend: Option<Call>,
    first_ns: i64,
    sent_ns: i64,
    attempts: u32,
}

/// An answer for the core to handle.
#[derive(Debug)]
pub(crate) struct Reply<T> {
    pub purpose: T,
    pub sent_ns: i64,
    /// For how long the request was repeated.
    pub waited_ms: u64,
    pub answer: Answer,
}

impl<T> RpcTable<T> {
    /// `op_seed`: random, different for each core of a client; op ids derive from it.
    pub fn new(op_seed: u64) -> Self {
        RpcTable { next_token: 1, pending: HashMap::new(), retries: Timers::default(), out: VecDeque::new(), op_seed }
    }

    /// A fresh op id (splitmix64: Steele, Lea, Flood, OOPSLA 2014); never 0.
    pub fn op_id(&mut self) -> u64 {
        self.op_seed = self.op_seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.op_seed ^ self.op_seed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ z >> 31).max(1)
    }

    /// Sends a request to the manager, and repeats it until the deadline.
    pub fn ask_manager<R: Request>(&mut self, now: i64, request: &R, purpose: T, options: &Options) {
        let call = Call::new(Peer::Manager, self.next_token, request, Vec::new(), options.manager_timeout_ms);
        self.push(now, call.clone(), purpose, Some(call));
    }

    /// Sends a call once.
    pub fn send_once(&mut self, now: i64, mut call: Call, purpose: T) {
        call.token = self.next_token;
        self.push(now, call, purpose, None);
    }

    fn push(&mut self, now: i64, call: Call, purpose: T, again: Option<Call>) {
        let rpc = PendingRpc { purpose, resend: again, first_ns: now, sent_ns: now, attempts: 1 };
        self.pending.insert(self.next_token, rpc);
        self.next_token += 1;
        self.out.push_back(call);
    }

    /// The next call to send.
    pub fn poll(&mut self) -> Option<Call> {
        self.out.pop_front()
    }

    /// Handles an answer; `None` if its call will be repeated, or is not pending.
    pub fn on_answer(&mut self, now: i64, answer: Answer, options: &Options) -> Option<Reply<T>> {
        let rpc = self.pending.get_mut(&answer.token)?;
        let waited_ns = now.saturating_sub(rpc.first_ns).max(0);
        let again = matches!(&answer.result, Err(e) if e.is_retryable()) && rpc.resend.is_some();
        if again && waited_ns < ms(options.manager_deadline_ms) {
            let at = now.saturating_add(options.backoff_ns(rpc.attempts));
            rpc.attempts += 1;
            self.retries.add(at, answer.token);
            return None;
        }
        let rpc = self.pending.remove(&answer.token)?;
        Some(Reply { purpose: rpc.purpose, sent_ns: rpc.sent_ns, waited_ms: (waited_ns / MS) as u64, answer })
    }

    /// Repeats the calls that are due.
    pub fn tick(&mut self, now: i64) {
        while let Some(token) = self.retries.pop_due(now) {
            if let Some(rpc) = self.pending.get_mut(&token) {
                rpc.sent_ns = now;
                self.out.extend(rpc.resend.clone());
            }
        }
    }

    /// When [`RpcTable::tick`] has work to do.
    pub fn next_due(&self) -> Option<i64> {
        self.retries.next_due()
    }

    /// Forgets all calls: their answers will be ignored.
    pub fn abandon(&mut self) {
        self.pending.clear();
        self.retries.clear();
    }
}

/// What is to be done, and when.
#[derive(Debug, Default)]
pub(crate) struct Timers<T>(BTreeSet<(i64, T)>);

impl<T: Ord + Copy> Timers<T> {
    pub fn add(&mut self, at: i64, what: T) {
        self.0.insert((at, what));
    }

    pub fn pop_due(&mut self, now: i64) -> Option<T> {
        self.next_due().filter(|at| *at <= now)?;
        self.0.pop_first().map(|(_, what)| what)
    }

    pub fn next_due(&self) -> Option<i64> {
        self.0.first().map(|(at, _)| *at)
    }

    pub fn clear(&mut self) {
        self.0.clear();
    }
}

/// Jobs that are running. `T` says what for.
#[derive(Debug)]
pub(crate) struct JobTable<T> {
    next_id: u64,
    pub pending: HashMap<u64, T>,
}

impl<T> Default for JobTable<T> {
    fn default() -> Self {
        JobTable { next_id: 1, pending: HashMap::new() }
    }
}

impl<T> JobTable<T> {
    pub fn start(&mut self, owner: T, job: Job) -> Numbered<Job> {
        let id = self.next_id;
        self.next_id += 1;
        self.pending.insert(id, owner);
        Numbered { id, value: job }
    }

    /// What the job was for; `None`: it has ended.
    pub fn finish(&mut self, id: u64) -> Option<T> {
        assert!(id < self.next_id, "job {id} was never started");
        self.pending.remove(&id)
    }
}

/// A session as the manager knows it, to be renewed while it is used.
#[derive(Debug, Default)]
pub(crate) struct SessionLease {
    /// 0: no session.
    pub id: u64,
    lifetime_ns: i64,
    pub renewed_ns: i64,
}

impl SessionLease {
    /// The manager keeps the session for `session_ms` from its last renewal on.
    pub fn set_lifetime(&mut self, session_ms: u64) {
        self.lifetime_ns = ms(session_ms.max(1));
    }

    /// When to renew it.
    pub fn renew_due(&self) -> Option<i64> {
        (self.id != 0).then(|| self.renewed_ns.saturating_add(self.lifetime_ns / 3))
    }
}

/// Groups whose members are needed, and what waits for them; one request at a time.
#[derive(Debug, Default)]
pub(crate) struct MapQueue<T> {
    wanted: BTreeMap<u64, Vec<T>>,
    asked: bool,
}

impl<T: PartialEq> MapQueue<T> {
    pub fn add(&mut self, pg_id: u64, waiter: T) {
        let waiters = self.wanted.entry(pg_id).or_default();
        if !waiters.contains(&waiter) {
            waiters.push(waiter);
        }
    }

    /// The request to send now, if any, and those that wait for its reply.
    pub fn next_request(&mut self, view: &SharedView) -> Option<(GetMap, Vec<T>)> {
        if self.asked || self.wanted.is_empty() {
            return None;
        }
        self.asked = true;
        let wanted = std::mem::take(&mut self.wanted);
        let pg_ids = wanted.keys().copied().collect();
        let request = GetMap { known_version: view.read().known_version(), pg_ids, all_nodes: true };
        Some((request, wanted.into_values().flatten().collect()))
    }

    pub fn is_asked(&self) -> bool {
        self.asked
    }

    pub fn on_answer(&mut self) {
        assert!(self.asked, "a map that was not asked for");
        self.asked = false;
    }

    /// Forgets what was not requested yet.
    pub fn clear(&mut self) {
        self.wanted.clear();
    }
}

/// Whether the transport failed or the peer was unavailable: the same request may succeed elsewhere.
pub(crate) fn is_transport(error: &Error) -> bool {
    error.is_retryable()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tessera_wire::Code;

    fn answer(token: u64, code: Option<Code>) -> Answer {
        let result = match code {
            Some(code) => Err(Error::new(code, "x")),
            None => Ok(Default::default()),
        };
        Answer { token, result }
    }

    /// P8: a repeated request has the same bytes.
    #[test]
    fn a_silent_manager_is_asked_again_the_same_until_the_deadline() {
        let options = Options { manager_deadline_ms: 1000, ..Options::default() };
        let mut rpcs = RpcTable::new(1);
        rpcs.ask_manager(0, &GetMap { known_version: 5, ..Default::default() }, "map", &options);
        let first = rpcs.poll().unwrap();
        let mut now = 0;
        let mut attempts = 0;
        let last = loop {
            if let Some(last) = rpcs.on_answer(now, answer(first.token, Some(Code::Unavailable)), &options) {
                break last;
            }
            assert!(rpcs.poll().is_none(), "not before its time");
            now = rpcs.next_due().unwrap();
            rpcs.tick(now);
            let again = rpcs.poll().unwrap();
            assert_eq!((again.token, &again.body), (first.token, &first.body));
            attempts += 1;
        };
        assert_eq!(last.purpose, "map");
        assert!(attempts > 3 && last.waited_ms >= 1000);
        assert!(rpcs.on_answer(now, answer(first.token, None), &options).is_none(), "answered once");
    }

    #[test]
    fn refusals_and_answers_are_final() {
        let options = Options::default();
        let mut rpcs = RpcTable::new(1);
        for code in [Some(Code::Invalid), None] {
            rpcs.ask_manager(0, &GetMap::default(), (), &options);
            let token = rpcs.poll().unwrap().token;
            assert!(rpcs.on_answer(1, answer(token, code), &options).is_some());
        }
    }
}
