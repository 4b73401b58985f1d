//! State that all sessions of a client share: the transport, the threads, the buffers, the view of the cluster,
//! and the clock.

use crate::config::Options;
use crate::driver::DriverHandle;
use crate::memory::{Memory, cache_bytes};
use crate::read::cache::{ChunkCache, SharedCache};
use crate::read::core::ReadReport;
use crate::transport::Transport;
use crate::view::SharedView;
use crate::workers::Workers;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use tessera_net::{BufferPool, boot_ns};

/// How often the clock looks for sessions that have something due.
const TICK: Duration = Duration::from_millis(10);

/// Write windows that all sessions in the background may hold together.
const BACKGROUND_WINDOWS: u64 = 4;

/// Packs that can be fetched at once for many files, at most.
const PACK_TURNS: usize = 64;

/// See the module.
pub(crate) struct Context {
    pub transport: Arc<dyn Transport>,
    pub workers: Workers,
    pub pool: BufferPool,
    pub view: SharedView,
    pub cache: SharedCache,
    pub memory: Memory,
    pub options: Arc<Options>,
    seeds: AtomicU64,
    /// Requests to close a session that the manager has not answered yet.
    pub pending_closes: AtomicU64,
    drivers: Mutex<Vec<Weak<dyn DriverHandle>>>,
    background: Mutex<Vec<Arc<dyn DriverHandle>>>,
    /// The sum over all read sessions that ended.
    pub read_report: Mutex<ReadReport>,
    /// Held while a pack is fetched for many files; packs share turns by their ids.
    pub pack_turns: [Mutex<()>; PACK_TURNS],
}

impl Context {
    pub fn start(
        transport: Arc<dyn Transport>,
        pool: BufferPool,
        view: SharedView,
        options: Options,
    ) -> std::io::Result<Arc<Self>> {
        let context = Arc::new(Context {
            transport,
            workers: Workers::start(options.worker_threads)?,
            pool,
            view,
            cache: ChunkCache::shared(cache_bytes(&options)),
            memory: Memory::new(options.memory_bytes),
            options: Arc::new(options),
            seeds: AtomicU64::new(rand::random()),
            pending_closes: AtomicU64::new(0),
            drivers: Mutex::default(),
            background: Mutex::default(),
            read_report: Mutex::default(),
            pack_turns: [const { Mutex::new(()) }; PACK_TURNS],
        });
        let weak = Arc::downgrade(&context);
        std::thread::Builder::new().name("client-clock".into()).spawn(move || clock(weak))?;
        Ok(context)
    }

    /// A seed for op ids, different for every session of this client. The step is odd, so no seed repeats.
    pub fn seed(&self) -> u64 {
        self.seeds.fetch_add(0xda94_2042_e4dd_58b5, Ordering::Relaxed)
    }

    pub fn register(&self, driver: Weak<dyn DriverHandle>) {
        self.drivers.lock().push(driver);
    }

    /// The sessions that still have an owner.
    pub fn sessions(&self) -> Vec<Arc<dyn DriverHandle>> {
        let mut drivers = self.drivers.lock();
        drivers.retain(|driver| driver.strong_count() > 0);
        drivers.iter().filter_map(Weak::upgrade).collect()
    }

    /// Keeps a session running after its owner dropped it, until it has finished (redundancy of an optimistic write). If such
    /// sessions hold too many bytes, the oldest ones end: they leave redundancy to repair.
    pub fn run_in_background(&self, driver: Arc<dyn DriverHandle>) {
        let mut ending = Vec::new();
        {
            let mut background = self.background.lock();
            background.push(driver);
            background.retain(|driver| !driver.is_finished());
            let mut bytes: u64 = background.iter().map(|driver| driver.background_bytes()).sum();
            while bytes > BACKGROUND_WINDOWS * self.options.write_window_bytes && background.len() > 1 {
                let oldest = background.remove(0);
                bytes = bytes.saturating_sub(oldest.background_bytes());
                ending.push(oldest);
            }
        }
        ending.into_iter().for_each(|driver| driver.cancel());
    }

    /// Number of sessions that run in the background.
    pub fn in_background(&self) -> usize {
        let mut background = self.background.lock();
        background.retain(|driver| !driver.is_finished());
        background.len()
    }

    /// Ends the sessions that run in the background: they leave redundancy to repair.
    pub fn end_background(&self) {
        let sessions = self.background.lock().clone();
        sessions.into_iter().for_each(|driver| driver.cancel());
    }

    /// Counts a session that is about to tell the manager that it ends.
    pub fn close_begins(&self) {
        self.pending_closes.fetch_add(1, Ordering::AcqRel);
    }

    /// Uncounts it: the manager has answered, or never will.
    pub fn close_ends(&self) {
        self.pending_closes.fetch_sub(1, Ordering::AcqRel);
    }

    /// Adds the report of a read session that ended.
    pub fn note_read(&self, report: ReadReport) {
        let mut sum = self.read_report.lock();
        sum.bad += report.bad;
        sum.unreachable += report.unreachable;
        sum.late += report.late;
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
        let alive = context.sessions();
        context.in_background();
        drop(context);
        let now = boot_ns();
        alive.into_iter().for_each(|driver| driver.tick(now));
    }
}
