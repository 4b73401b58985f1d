//! Runs a core: its events queue up, and one thread at a time handles them and carries out the core's actions.
//!
//! A thread that brings an event (an answer, a finished job, the clock) leaves it in the inbox and, unless another
//! thread is driving, lets the core handle it. That takes microseconds and waits for nothing, so a connection's reading
//! thread may do it. Sending may wait for a slow peer, so the core's calls are left to the session's owner if it is
//! waiting, else to a worker. Most acknowledgements cause no call and wake no thread.

use crate::context::{Context, now_ns};
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tessera_wire::Kind;
use tessera_wire::rpc::{Answer, Call};

use crate::job::{Job, Numbered, Output};

/// A sans-io core that a session drives.
pub(crate) trait Core: Send + 'static {
    type Event: Send + 'static;
    type Action;
    /// What the session's owner sees: results, deliveries, fill levels.
    type Status: Default + Send + 'static;

    fn handle(&mut self, now: i64, event: Self::Event);
    fn poll(&mut self) -> Option<Self::Action>;
    fn next_due(&self) -> Option<i64>;
    /// Whether the core will produce no more actions.
    fn is_finished(&self) -> bool;
    fn answer(answer: Answer) -> Self::Event;
    fn computed(output: Numbered<Output>) -> Self::Event;
    fn tick() -> Self::Event;
    /// The event for an owner that stopped waiting.
    fn cancel() -> Self::Event;
    /// Sorts an action: the session carries out calls and jobs, and reports the rest in the status.
    fn classify(action: Self::Action) -> Effect<Self::Action>;
    fn report(action: Self::Action, status: &mut Self::Status);
    /// Updates fill levels and the like after events. Returns whether anything changed that a waiter may wait for.
    fn update_status(&mut self, status: &mut Self::Status) -> bool;
}

/// An action, by what carries it out.
pub(crate) enum Effect<A> {
    Call(Call),
    Compute(Numbered<Job>),
    Report(A),
}

/// Jobs on at most this many bytes run on the thread that starts them: handing them over would cost more.
const INLINE_BYTES: usize = 32 << 10;

/// See the module.
pub(crate) struct Driver<C: Core> {
    core: Mutex<C>,
    inbox: Mutex<VecDeque<C::Event>>,
    /// Calls not sent yet. Only the thread that holds `scheduled` may take them.
    unsent: Mutex<Vec<Call>>,
    /// A thread is driving. It may pass the role on, together with the unsent calls.
    scheduled: AtomicBool,
    gate: Mutex<Gate<C::Status>>,
    wake: Condvar,
    context: Arc<Context>,
}

struct Gate<S> {
    status: S,
    waiting: usize,
    /// A waiter was asked to drive.
    handed: bool,
}

impl<C: Core> Driver<C> {
    pub fn new(core: C, context: Arc<Context>) -> Arc<Self> {
        let driver = Arc::new(Driver {
            core: Mutex::new(core),
            inbox: Mutex::default(),
            unsent: Mutex::default(),
            scheduled: AtomicBool::new(false),
            gate: Mutex::new(Gate { status: C::Status::default(), waiting: 0, handed: false }),
            wake: Condvar::new(),
            context: context.clone(),
        });
        context.register(Arc::downgrade(&driver) as std::sync::Weak<dyn DriverHandle>);
        driver
    }

    /// Queues an event, and handles it unless another thread is driving. Sends nothing on this thread.
    pub fn post(self: &Arc<Self>, event: C::Event) {
        self.inbox.lock().push_back(event);
        if self.scheduled.swap(true, Ordering::AcqRel) {
            return;
        }
        while let Some(events) = self.next_events() {
            let calls = self.process(events);
            if !calls.is_empty() {
                self.unsent.lock().extend(calls);
                return self.hand_over();
            }
        }
    }

    /// Passes driving on: to the owner if it waits, else to a worker.
    fn hand_over(self: &Arc<Self>) {
        {
            let mut gate = self.gate.lock();
            if gate.waiting > 0 {
                gate.handed = true;
                drop(gate);
                self.wake.notify_one();
                return;
            }
        }
        let driver = self.clone();
        self.context.workers.urgent(move || driver.drive());
    }

    /// Queues events and handles them on this thread, unless another thread is driving.
    pub fn post_and_drive(self: &Arc<Self>, events: impl IntoIterator<Item = C::Event>) {
        self.inbox.lock().extend(events);
        if !self.scheduled.swap(true, Ordering::AcqRel) {
            self.drive();
        }
    }

    /// Waits until `look` returns something from the status, driving meanwhile; `None` after `limit`.
    pub fn wait<T>(self: &Arc<Self>, limit: Duration, mut look: impl FnMut(&mut C::Status) -> Option<T>) -> Option<T> {
        let deadline = std::time::Instant::now() + limit;
        let mut gate = self.gate.lock();
        let found = loop {
            if let Some(found) = look(&mut gate.status) {
                break Some(found);
            }
            if std::mem::take(&mut gate.handed) {
                drop(gate);
                self.drive();
                gate = self.gate.lock();
                continue;
            }
            gate.waiting += 1;
            let late = self.wake.wait_until(&mut gate, deadline).timed_out();
            gate.waiting -= 1;
            if late && !gate.handed {
                break look(&mut gate.status);
            }
        };
        if std::mem::take(&mut gate.handed) {
            drop(gate);
            let driver = self.clone();
            self.context.workers.urgent(move || driver.drive());
        }
        found
    }

    /// Calls `look` with the status.
    pub fn with_status<T>(&self, look: impl FnOnce(&mut C::Status) -> T) -> T {
        look(&mut self.gate.lock().status)
    }

    /// Sends the unsent calls, and handles events until the inbox stays empty.
    fn drive(self: &Arc<Self>) {
        let unsent = std::mem::take(&mut *self.unsent.lock());
        self.send(unsent);
        while let Some(events) = self.next_events() {
            let calls = self.process(events);
            self.send(calls);
        }
    }

    /// Takes the inbox; if it is empty, driving ends.
    fn next_events(&self) -> Option<VecDeque<C::Event>> {
        loop {
            let events = std::mem::take(&mut *self.inbox.lock());
            if !events.is_empty() {
                return Some(events);
            }
            self.scheduled.store(false, Ordering::Release);
            // An event queued between the check above and the store found `scheduled` set: this thread must handle it.
            let missed = !self.inbox.lock().is_empty();
            if !missed || self.scheduled.swap(true, Ordering::AcqRel) {
                return None;
            }
        }
    }

    /// Lets the core handle events; returns the calls to send.
    fn process(self: &Arc<Self>, mut events: VecDeque<C::Event>) -> Vec<Call> {
        let (mut calls, mut reports) = (Vec::new(), Vec::new());
        let mut core = self.core.lock();
        while let Some(event) = events.pop_front() {
            core.handle(now_ns(), event);
            while let Some(action) = core.poll() {
                match C::classify(action) {
                    Effect::Call(call) => {
                        // Counted while the core is locked: a thread that sees the session ended sees this count too.
                        if call.kind == Kind::CloseSession {
                            self.context.close_begins();
                        }
                        calls.push(call);
                    }
                    Effect::Compute(job) if job.value.bytes() <= INLINE_BYTES => {
                        let value = job.value.run(&self.context.pool);
                        events.push_back(C::computed(Numbered { id: job.id, value }));
                    }
                    Effect::Compute(job) => self.compute(job),
                    Effect::Report(action) => reports.push(action),
                }
            }
        }
        // The core stays locked, so reports keep their order.
        let mut gate = self.gate.lock();
        let reported = !reports.is_empty();
        reports.into_iter().for_each(|action| C::report(action, &mut gate.status));
        let changed = core.update_status(&mut gate.status);
        if gate.waiting > 0 && (reported || changed) {
            drop(gate);
            self.wake.notify_all();
        }
        calls
    }

    fn send(self: &Arc<Self>, calls: Vec<Call>) {
        for call in calls {
            let (driver, closes) = (self.clone(), call.kind == Kind::CloseSession);
            let done = move |answer| {
                if closes {
                    driver.context.close_ends();
                }
                driver.post(C::answer(answer));
            };
            self.context.transport.call(call, Box::new(done));
        }
    }

    fn compute(self: &Arc<Self>, job: Numbered<Job>) {
        let driver = self.clone();
        self.context.workers.submit(move || {
            let value = job.value.run(&driver.context.pool);
            driver.post_and_drive([C::computed(Numbered { id: job.id, value })]);
        });
    }

    /// The client this session belongs to.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }
}

/// What the clock calls on a session.
pub(crate) trait DriverHandle: Send + Sync {
    fn tick(self: Arc<Self>, now: i64);
    fn cancel(self: Arc<Self>);
    /// Whether the session will do nothing more.
    fn is_finished(&self) -> bool;
}

impl<C: Core> DriverHandle for Driver<C> {
    fn tick(self: Arc<Self>, now: i64) {
        // A core that is busy now is looked at again at the next tick.
        let due = self.core.try_lock().and_then(|core| core.next_due());
        if due.is_some_and(|at| at <= now) {
            self.post(C::tick());
        }
    }

    fn cancel(self: Arc<Self>) {
        self.post_and_drive([C::cancel()]);
    }

    fn is_finished(&self) -> bool {
        self.core.lock().is_finished()
    }
}
