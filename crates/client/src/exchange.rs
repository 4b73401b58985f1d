//! How a core and its shell talk: the events and actions that reads and writes have in common.

use crate::job::{Job, Numbered, Output};
use tessera_wire::rpc::{Answer, Call};

/// An event of a core.
#[derive(Debug)]
pub enum Event<R> {
    /// The owner asks for something.
    Request(R),
    /// An answer to a call.
    Answer(Answer),
    /// A job is done.
    Computed(Numbered<Output>),
    /// Time passed.
    Tick,
    /// The owner stopped waiting: give up the write, close the read.
    Cancel,
}

impl<R> From<R> for Event<R> {
    fn from(request: R) -> Self {
        Event::Request(request)
    }
}

/// What a core asks its shell to do.
#[derive(Debug)]
pub enum Action<N> {
    /// Send a call; its answer comes back as an event.
    Call(Call),
    /// Run a job; its output comes back as an event.
    Compute(Numbered<Job>),
    /// Tell the owner.
    Notify(N),
}

/// A sans-io state machine.
pub trait Core: Send + 'static {
    /// What its owner asks for.
    type Request: Send + 'static;
    /// What it tells its owner.
    type Notice;

    /// Handles an event. `now`: ns since 1970; a clock that steps back counts as standing still.
    fn handle(&mut self, now: i64, event: impl Into<Event<Self::Request>>);

    /// The next action.
    fn poll(&mut self) -> Option<Action<Self::Notice>>;

    /// When an [`Event::Tick`] has work to do, ns since 1970.
    fn next_due(&self) -> Option<i64>;

    /// Whether it will do nothing more; its last calls may still be in flight.
    fn is_finished(&self) -> bool;
}
