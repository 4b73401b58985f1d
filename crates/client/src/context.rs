//! State that all sessions of a client share: the transport, the threads, the buffers, the view of the cluster,
//! and the clock.

use crate::config::Options;
use crate::driver::DriverHandle;
use crate::read::cache::{ChunkCache, SharedCache};
use crate::read::core::ReadReport;
use crate::transport::Transport;
use crate::view::SharedView;
use crate::workers::Workers;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tessera_net::BufferPool;
use tessera_wire::meta::CloseSession;
use tessera_wire::rpc::{Answer, Call, Peer};
use tessera_wire::{Error, Request};

/// How often the clock looks for sessions that have something due.
const TICK: Duration = Duration::from_millis(10);

/// See the module.
pub(crate) struct Context {
    pub transport: Arc<dyn Transport>,
    pub workers: Workers,
    pub pool: BufferPool,
    pub view: SharedView,
    pub cache: SharedCache,
    pub options: Arc<Options>,
    seeds: AtomicU64,
    /// Requests to close a session that the manager has not answered yet.
    pending_closes: AtomicU64,
    drivers: Mutex<Vec<Weak<dyn DriverHandle>>>,
    background: Mutex<Vec<Arc<dyn DriverHandle>>>,
    read_report: Mutex<ReadReport>,
}

/// Nanoseconds since 1970.
pub(crate) fn now_ns() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

impl Context {
    pub fn start(
        transport: Arc<dyn Transport>,
        pool: BufferPool,
        view: SharedView,
        options: Arc<Options>,
    ) -> std::io::Result<Arc<Self>> {
        let context = Arc::new(Context {
            transport,
            workers: Workers::start(options.worker_threads)?,
            pool,
            view,
            cache: ChunkCache::shared(options.chunk_cache_bytes),
            options,
            seeds: AtomicU64::new(rand::random()),
            pending_closes: AtomicU64::new(0),
            drivers: Mutex::default(),
            background: Mutex::default(),
            read_report: Mutex::default(),
        });
        let weak = Arc::downgrade(&context);
        std::thread::Builder::new().name("client-clock".into()).spawn(move || clock(weak))?;
        Ok(context)
    }

    /// A seed for op ids, different for every session of this client. The step is odd, so no seed repeats.
    pub fn seed(&self) -> u64 {
        self.seeds.fetch_add(0xda94_2042_e4dd_58b5, Ordering::Relaxed)
    }

    /// A fresh op id.
    pub fn op_id(&self) -> u64 {
        crate::rpc_table::RpcTable::<()>::new(self.seed()).op_id()
    }

    pub fn register(&self, driver: Weak<dyn DriverHandle>) {
        self.drivers.lock().push(driver);
    }

    /// Keeps a session running after its owner dropped it (redundancy of an optimistic write).
    pub fn run_in_background(&self, driver: Arc<dyn DriverHandle>) {
        self.background.lock().push(driver);
    }

    /// Number of sessions that run in the background.
    pub fn in_background(&self) -> usize {
        let mut background = self.background.lock();
        background.retain(|driver| !driver.is_finished());
        background.len()
    }

    /// Counts a session that is about to tell the manager that it ends.
    pub fn close_begins(&self) {
        self.pending_closes.fetch_add(1, Ordering::AcqRel);
    }

    /// Uncounts it: the manager has answered, or never will.
    pub fn close_ends(&self) {
        self.pending_closes.fetch_sub(1, Ordering::AcqRel);
    }

    /// Gives up every session, and waits at most `limit` until the manager knows of all that ended. Returns whether it
    /// does.
    pub fn close_all(self: &Arc<Self>, limit: Duration) -> bool {
        let sessions: Vec<Arc<dyn DriverHandle>> = self.drivers.lock().iter().filter_map(Weak::upgrade).collect();
        sessions.iter().for_each(|driver| driver.clone().cancel());
        self.release_preallocated();
        let closed = || self.pending_closes.load(Ordering::Acquire) == 0;
        wait_until(limit, || closed() && sessions.iter().all(|driver| driver.is_finished()))
    }

    fn release_preallocated(self: &Arc<Self>) {
        let sessions = self.view.write().preallocated.clear();
        for session_id in sessions {
            let call =
                Call::new(Peer::Manager, 0, &CloseSession { session_id }, Vec::new(), self.options.manager_timeout_ms);
            let context = self.clone();
            self.close_begins();
            self.transport.call(call, Box::new(move |_| context.close_ends()));
        }
    }

    /// Adds the report of a read session that ended.
    pub fn note_read(&self, report: ReadReport) {
        *self.read_report.lock() += report;
    }

    /// The sum over all read sessions that ended.
    pub fn read_report(&self) -> ReadReport {
        *self.read_report.lock()
    }

    /// Sends a request once and waits for the reply.
    pub fn ask_once<R: Request>(&self, peer: Peer, request: &R, timeout_ms: u64) -> Result<R::Reply, Error> {
        let call = Call::new(peer, 0, request, Vec::new(), timeout_ms);
        let (sender, receiver) = std::sync::mpsc::sync_channel::<Answer>(1);
        self.transport.call(call, Box::new(move |answer| drop(sender.send(answer))));
        let lost = |_| Error::new(tessera_wire::Code::Unavailable, "the call was dropped");
        Ok(receiver.recv().map_err(lost)?.decode::<R>()?.0)
    }

    /// Sends a request to the manager, and repeats it (P8) with pauses, until it answers or the deadline passes.
    pub fn ask<R: Request>(&self, request: &R) -> Result<R::Reply, Error> {
        let deadline = Instant::now() + Duration::from_millis(self.options.manager_deadline_ms);
        for attempt in 1.. {
            match self.ask_once(Peer::Manager, request, self.options.manager_timeout_ms) {
                Err(error) if error.is_retryable() && Instant::now() < deadline => {}
                done => return done,
            }
            std::thread::sleep(Duration::from_nanos(self.options.backoff_ns(attempt) as u64));
        }
        unreachable!("the loop has no end of its own")
    }
}

/// Waits at most `limit` until something is `done`. Returns whether it is.
pub(crate) fn wait_until(limit: Duration, done: impl Fn() -> bool) -> bool {
    let deadline = Instant::now() + limit;
    while !done() {
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    true
}

/// Ticks all sessions until the client is dropped.
fn clock(context: Weak<Context>) {
    loop {
        std::thread::sleep(TICK);
        let Some(context) = context.upgrade() else { return };
        let alive: Vec<Arc<dyn DriverHandle>> = {
            let mut drivers = context.drivers.lock();
            drivers.retain(|driver| driver.strong_count() > 0);
            drivers.iter().filter_map(Weak::upgrade).collect()
        };
        context.in_background();
        drop(context);
        let now = now_ns();
        alive.into_iter().for_each(|driver| driver.tick(now));
    }
}
