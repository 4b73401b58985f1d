//! Runs a core: its events queue up, and one thread at a time handles them and carries out the core's actions.
//!
//! A thread that brings an event (an answer, a finished job, the clock) leaves it in the inbox and, unless another
//! thread is driving, lets the core handle it. That takes microseconds and waits for nothing, so a connection's reading
//! thread may do it. Sending may wait for a slow peer, so the core's calls are left to the session's owner if it is
//! waiting, else to a worker. Most acknowledgements cause no call and wake no thread.

use crate::context::Context;
use crate::exchange::{Action, Core, Event};
use crate::job::{Job, Numbered};
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tessera_net::{BufferPool, boot_ns};
use tessera_wire::Kind;
use tessera_wire::rpc::Call;

/// A core that a session drives, and what the session's owner sees of it.
pub(crate) trait Driven: Core {
    /// Results, deliveries, fill levels.
    type Status: Default + Send + 'static;

    fn notify(notice: Self::Notice, status: &mut Self::Status);
    /// Updates fill levels and the like after events. Returns whether anything changed that a waiter may wait for.
    fn update_status(&mut self, status: &mut Self::Status) -> bool;
    /// Bytes that it holds while it runs in the background.
    fn background_bytes(&self) -> u64 {
        0
    }
}

/// Jobs on at most this many bytes run on the thread that starts them: handing them over would cost more.
const INLINE_BYTES: usize = 32 << 10;

/// See the module.
pub(crate) struct Driver<C: Driven> {
    core: Mutex<C>,
    inbox: Mutex<VecDeque<Event<C::Request>>>,
    /// Calls not sent yet. Only the thread that holds `scheduled` may take them.
    unsent: Mutex<Vec<Call>>,
    /// A thread is driving. It may pass the role on, together with the unsent calls.
    scheduled: AtomicBool,
    gate: Mutex<Gate<C::Status>>,
    wake: Condvar,
    context: Arc<Context>,
    /// Where its jobs take memory.
    pool: BufferPool,
}

struct Gate<S> {
    status: S,
    waiting: usize,
    /// A waiter was asked to drive.
    handed: bool,
}

impl<C: Driven> Driver<C> {
    pub fn new(core: C, context: Arc<Context>) -> Arc<Self> {
        let pool = context.pool.clone();
        Driver::with_pool(core, context, pool)
    }

    pub fn with_pool(core: C, context: Arc<Context>, pool: BufferPool) -> Arc<Self> {
        let driver = Arc::new(Driver {
            core: Mutex::new(core),
            inbox: Mutex::default(),
            unsent: Mutex::default(),
            scheduled: AtomicBool::new(false),
            gate: Mutex::new(Gate { status: C::Status::default(), waiting: 0, handed: false }),
            wake: Condvar::new(),
            context: context.clone(),
            pool,
        });
        context.register(Arc::downgrade(&driver) as std::sync::Weak<dyn DriverHandle>);
        driver
    }

    /// Queues an event, and handles it unless another thread is driving. Sends nothing on this thread.
    pub fn post(self: &Arc<Self>, event: Event<C::Request>) {
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

    /// Queues requests (or events) and handles them on this thread, unless another thread is driving.
    pub fn post_and_drive<E: Into<Event<C::Request>>>(self: &Arc<Self>, events: impl IntoIterator<Item = E>) {
        self.inbox.lock().extend(events.into_iter().map(E::into));
        if !self.scheduled.swap(true, Ordering::AcqRel) {
            self.drive();
        }
    }

    /// Waits until `look` returns something from the status, driving meanwhile.
    pub fn wait<T>(self: &Arc<Self>, mut look: impl FnMut(&mut C::Status) -> Option<T>) -> T {
        loop {
            if let Some(found) = self.wait_for(Duration::from_secs(60), &mut look) {
                return found;
            }
        }
    }

    /// As [`Driver::wait`]; `None` after `limit`.
    pub fn wait_for<T>(
        self: &Arc<Self>,
        limit: Duration,
        mut look: impl FnMut(&mut C::Status) -> Option<T>,
    ) -> Option<T> {
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
    fn next_events(&self) -> Option<VecDeque<Event<C::Request>>> {
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
    fn process(self: &Arc<Self>, mut events: VecDeque<Event<C::Request>>) -> Vec<Call> {
        let (mut calls, mut notices) = (Vec::new(), Vec::new());
        let mut core = self.core.lock();
        while let Some(event) = events.pop_front() {
            core.handle(boot_ns(), event);
            while let Some(action) = core.poll() {
                match action {
                    Action::Call(call) => {
                        // Counted while the core is locked: a thread that sees the session ended sees this count too.
                        if call.kind == Kind::CloseSession {
                            self.context.close_begins();
                        }
                        calls.push(call);
                    }
                    Action::Compute(job) if job.value.bytes() <= INLINE_BYTES => {
                        let value = job.value.run(&self.pool);
                        events.push_back(Event::Computed(Numbered { id: job.id, value }));
                    }
                    Action::Compute(job) => self.compute(job),
                    Action::Notify(notice) => notices.push(notice),
                }
            }
        }
        // The core stays locked, so notices keep their order.
        let mut gate = self.gate.lock();
        let notified = !notices.is_empty();
        notices.into_iter().for_each(|notice| C::notify(notice, &mut gate.status));
        let changed = core.update_status(&mut gate.status);
        if gate.waiting > 0 && (notified || changed) {
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
                driver.post(Event::Answer(answer));
            };
            self.context.transport.call(call, Box::new(done));
        }
    }

    fn compute(self: &Arc<Self>, job: Numbered<Job>) {
        let driver = self.clone();
        self.context.workers.submit(move || {
            let value = job.value.run(&driver.pool);
            driver.post_and_drive([Event::Computed(Numbered { id: job.id, value })]);
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
    /// Bytes that the session holds while it runs in the background.
    fn background_bytes(&self) -> u64;
}

impl<C: Driven> DriverHandle for Driver<C> {
    fn tick(self: Arc<Self>, now: i64) {
        // A core that is busy now is looked at again at the next tick.
        let due = self.core.try_lock().and_then(|core| core.next_due());
        if due.is_some_and(|at| at <= now) {
            self.post(Event::Tick);
        }
    }

    fn cancel(self: Arc<Self>) {
        self.post_and_drive([Event::Cancel]);
    }

    fn is_finished(&self) -> bool {
        self.core.lock().is_finished()
    }

    fn background_bytes(&self) -> u64 {
        self.core.lock().background_bytes()
    }
}
