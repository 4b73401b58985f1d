//! The connection of a mount to the manager, as the client library keeps it: requests that are sent again under the same
//! op id after a lost connection or a timeout (`Client::ask`), and recalls.
//!
//! The world carries the messages: it takes [`Link::take_outgoing`] and hands answers, recalls and the loss of the
//! connection in.

use super::env::Env;
use super::executor::{Owner, lock};
use crate::plan::Rng;
use bytes::Bytes;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use tessera_wire::meta::RecallLease;
use tessera_wire::rpc::Answer;
use tessera_wire::{Code, Error, Kind, Request};

/// A request to the manager counts as lost after this long.
pub const TIMEOUT_MS: u64 = 500;
/// A request is repeated for this long.
pub const DEADLINE_MS: u64 = 20_000;
/// Wait before the first repetition; it doubles five times.
const BACKOFF_MS: u64 = 10;

/// A message to the manager.
#[derive(Debug, Clone)]
pub enum Outgoing {
    /// A request; the answer comes under its ticket.
    Request {
        /// Number of the request.
        ticket: u64,
        /// Kind of the message.
        kind: Kind,
        /// The encoded message.
        body: Bytes,
        /// Limit of the wait for the answer.
        timeout_ms: u64,
    },
    /// The answer to a recall.
    Recalled {
        /// The connection on which the recall came.
        connection: u64,
        /// The manager's number of the recall.
        token: u64,
    },
}

/// What hears of recalls.
pub trait RecallHook {
    /// Leases on these inodes end; `None`: the connection and all leases are lost.
    fn recalled(&self, inos: Option<Vec<u64>>);
    /// Delegations end; `answer` is called once the manager may go on.
    fn delegation_recalled(&self, directories: Vec<u64>, answer: Box<dyn FnOnce() + Send>);
    /// The manager decides about the locks of these files again.
    fn locks_recalled(&self, files: &[u64]);
}

#[derive(Default)]
struct Slot {
    waker: Option<Waker>,
    result: Option<Result<Bytes, Error>>,
}

struct State {
    rng: Rng,
    slots: BTreeMap<u64, Slot>,
    hook: Option<Rc<dyn RecallHook>>,
    /// Mutant: a repeated request gets another op id.
    fresh_op_ids: bool,
}

/// See the module. Clones share the connection.
#[derive(Clone)]
pub struct Link {
    env: Env,
    owner: Owner,
    state: Rc<RefCell<State>>,
    /// Apart, because an answer to a recall may come from any place.
    outgoing: Arc<Mutex<Vec<Outgoing>>>,
}

impl Link {
    /// A link that is not connected yet.
    pub fn new(env: Env, owner: Owner, seed: u64, fresh_op_ids: bool) -> Link {
        let state = State { rng: Rng::new(seed), slots: BTreeMap::new(), hook: None, fresh_op_ids };
        Link { env, owner, state: Rc::new(RefCell::new(state)), outgoing: Arc::default() }
    }

    /// Time, timers and tasks.
    pub fn env(&self) -> &Env {
        &self.env
    }

    /// The process.
    pub fn owner(&self) -> Owner {
        self.owner
    }

    /// A random number.
    pub fn random(&self) -> u64 {
        self.state.borrow_mut().rng.any()
    }

    /// A fresh op id.
    pub fn op_id(&self) -> u64 {
        self.random() >> 1 | 1
    }

    /// Registers what hears of recalls.
    pub fn set_hook(&self, hook: Rc<dyn RecallHook>) {
        self.state.borrow_mut().hook = Some(hook);
    }

    /// Sends a request, and repeats it (P8) until the manager answers or the deadline passes.
    ///
    /// # Errors
    /// The manager's, or the last failure.
    pub async fn ask<R: Request>(&self, request: R) -> Result<R::Reply, Error> {
        let until_ns = self.env.now_ns() + DEADLINE_MS as i64 * 1_000_000;
        let mut body: Bytes = request.encode_to_vec().into();
        for attempt in 0.. {
            match self.call(R::KIND, body.clone(), TIMEOUT_MS).await {
                Err(error) if error.is_retryable() && self.env.now_ns() < until_ns => {
                    self.env.sleep_ms(BACKOFF_MS << attempt.min(5)).await;
                    if self.state.borrow_mut().fresh_op_ids {
                        body = self.with_fresh_op_id(body);
                    }
                }
                answer => return decode::<R>(answer),
            }
        }
        unreachable!("the loop has no end of its own")
    }

    /// Sends a request once.
    ///
    /// # Errors
    /// The manager's, or [`Code::Unavailable`], [`Code::Timeout`].
    pub async fn ask_once<R: Request>(&self, request: &R, timeout_ms: u64) -> Result<R::Reply, Error> {
        decode::<R>(self.call(R::KIND, request.encode_to_vec().into(), timeout_ms).await)
    }

    /// Sends a request without waiting for the answer.
    pub fn tell<R: Request>(&self, request: &R) {
        let (ticket, body) = (self.env.number(), request.encode_to_vec().into());
        lock(&self.outgoing).push(Outgoing::Request { ticket, kind: R::KIND, body, timeout_ms: TIMEOUT_MS });
    }

    /// The op id is the first field of every mutating request: a later one of the same tag takes its place.
    fn with_fresh_op_id(&self, body: Bytes) -> Bytes {
        const OP_ID_TAG: u8 = 1 << 3;
        if body.first() != Some(&OP_ID_TAG) {
            return body;
        }
        let mut changed = body.to_vec();
        changed.push(OP_ID_TAG);
        prost::encoding::encode_varint(self.op_id(), &mut changed);
        changed.into()
    }

    async fn call(&self, kind: Kind, body: Bytes, timeout_ms: u64) -> Result<Bytes, Error> {
        let ticket = self.env.number();
        {
            self.state.borrow_mut().slots.insert(ticket, Slot::default());
            lock(&self.outgoing).push(Outgoing::Request { ticket, kind, body, timeout_ms });
        }
        let _forget = Forget { link: self, ticket };
        poll_fn(|context| {
            let mut state = self.state.borrow_mut();
            let slot = state.slots.entry(ticket).or_default();
            match slot.result.take() {
                Some(result) => Poll::Ready(result),
                None => {
                    slot.waker = Some(context.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }

    // --- the world's side ---------------------------------------------------------------------------------------

    /// Messages to be sent.
    pub fn take_outgoing(&self) -> Vec<Outgoing> {
        std::mem::take(&mut *lock(&self.outgoing))
    }

    /// An answer arrived, or there will be none. Returns whether a task waits for it.
    pub fn complete(&self, ticket: u64, result: Result<Bytes, Error>) -> bool {
        let mut state = self.state.borrow_mut();
        let Some(slot) = state.slots.get_mut(&ticket).filter(|slot| slot.result.is_none()) else { return false };
        slot.result = Some(result);
        let waker = slot.waker.take();
        drop(state);
        waker.into_iter().for_each(Waker::wake);
        true
    }

    /// The connection is lost: no request that was sent gets an answer, and all leases end.
    pub fn connection_lost(&self, sent: &[u64]) {
        for ticket in sent {
            self.complete(*ticket, Err(Error::new(Code::Unavailable, "the connection to the manager broke")));
        }
        let hook = self.state.borrow().hook.clone();
        if let Some(hook) = hook {
            hook.recalled(None);
        }
    }

    /// The manager recalls leases.
    pub fn recall(&self, connection: u64, token: u64, recall: RecallLease) {
        let RecallLease { inos, delegated_dirs: directories, delegated_files } = recall;
        let hook = self.state.borrow_mut().hook.clone();
        let outgoing = self.outgoing.clone();
        let answer = move || lock(&outgoing).push(Outgoing::Recalled { connection, token });
        match hook {
            None => answer(),
            Some(hook) => {
                hook.locks_recalled(&delegated_files);
                hook.recalled(Some(inos));
                match directories.is_empty() {
                    true => answer(),
                    false => hook.delegation_recalled(directories, Box::new(answer)),
                }
            }
        }
    }
}

/// Forgets a call whose task no longer waits.
struct Forget<'a> {
    link: &'a Link,
    ticket: u64,
}

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        self.link.state.borrow_mut().slots.remove(&self.ticket);
    }
}

fn decode<R: Request>(answer: Result<Bytes, Error>) -> Result<R::Reply, Error> {
    let answer = Answer { token: 0, result: answer.map(|body| (body, Bytes::new())) };
    Ok(answer.decode::<R>()?.0)
}
