//! A node's threads: one writer and several readers per disk, a timer, and compute threads.

use super::metrics::device_work;
use super::shared::Shared;
use crate::core::{DiskFault, DiskOp, Event};
use crate::disk_worker::{self, QueuedOp};
use crossbeam_channel::{Receiver, Sender, unbounded};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::thread::JoinHandle;
use std::time::Duration;
use tessera_net::BufferPool;
use tessera_segment::SegmentStore;
use tessera_stripe::RebuildJob;

/// Work for a thread, or the request to stop.
pub(super) enum Job<T> {
    Do(T),
    Stop,
}

/// The queues of a disk's threads.
pub(super) struct DiskQueue {
    writes: Sender<Job<QueuedOp>>,
    reads: Sender<Job<QueuedOp>>,
    readers: usize,
}

/// The receiving ends of the queues, until the threads start.
pub(super) struct DiskQueueEnds {
    writes: Receiver<Job<QueuedOp>>,
    reads: Receiver<Job<QueuedOp>>,
}

impl DiskQueue {
    pub(super) fn new(readers: usize) -> (DiskQueue, DiskQueueEnds) {
        let (writes, write_end) = unbounded();
        let (reads, read_end) = unbounded();
        (DiskQueue { writes, reads, readers: readers.max(1) }, DiskQueueEnds { writes: write_end, reads: read_end })
    }

    /// Queues an operation without waiting.
    pub(super) fn send(&self, op_id: u64, op: DiskOp) {
        let line = if op.is_write() { &self.writes } else { &self.reads };
        // The threads run until they are told to stop; after that no result is needed.
        let _ = line.send(Job::Do(QueuedOp { op_id, op }));
    }

    /// Tells the threads to finish their queues and stop.
    pub(super) fn stop(&self) {
        let _ = self.writes.send(Job::Stop);
        for _ in 0..self.readers {
            let _ = self.reads.send(Job::Stop);
        }
    }
}

/// Starts a disk's threads.
pub(super) fn serve_disk(
    shared: &Arc<Shared>,
    disk: usize,
    store: &Arc<SegmentStore>,
    ends: DiskQueueEnds,
    readers: usize,
) -> io::Result<Vec<JoinHandle<()>>> {
    let mut threads = Vec::new();
    let (it, on) = (shared.clone(), store.clone());
    threads.push(spawn(&format!("write-{disk}"), move || write_loop(&it, &on, &ends.writes))?);
    for _ in 0..readers.max(1) {
        let (it, on, reads) = (shared.clone(), store.clone(), ends.reads.clone());
        threads.push(spawn(&format!("read-{disk}"), move || read_loop(&it, &on, &reads))?);
    }
    Ok(threads)
}

/// Starts the timer.
pub(super) fn keep_time(shared: &Arc<Shared>) -> io::Result<JoinHandle<()>> {
    let it = shared.clone();
    spawn("timer", move || timer_loop(&it))
}

/// Starts compute threads, which run until their channel tells them to stop.
pub(super) fn compute(
    shared: &Arc<Shared>,
    jobs: &Receiver<Job<(u64, RebuildJob)>>,
    count: usize,
    pool: &BufferPool,
) -> io::Result<Vec<JoinHandle<()>>> {
    let start = |_| {
        let (it, jobs, pool) = (shared.clone(), jobs.clone(), pool.clone());
        spawn("compute", move || {
            while let Ok(Job::Do((op_id, job))) = jobs.recv() {
                let result = job.run(&pool);
                drop(job);
                it.drive([Event::Computed { op_id, result }]);
            }
        })
    };
    (0..count.max(1)).map(start).collect()
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name(name.to_string()).spawn(body)
}

/// Takes all queued writes as one batch: a gathered write, one sync, then the results (P9).
fn write_loop(shared: &Arc<Shared>, store: &SegmentStore, writes: &Receiver<Job<QueuedOp>>) {
    let mut stopping = false;
    while !stopping {
        let Ok(first) = writes.recv() else { return };
        let mut batch = Vec::new();
        for job in std::iter::once(first).chain(writes.try_iter()) {
            match job {
                Job::Do(waiting) => batch.push(waiting),
                Job::Stop => stopping = true,
            }
        }
        if !batch.is_empty() {
            disk_worker::write_batch(store, shared.clock.now_ms(), batch, &mut |done| {
                shared.drive(done.into_iter().map(|(op_id, result)| Event::DiskDone { op_id, result }));
            });
        }
    }
    if let Err(error) = store.close() {
        tracing::error!(disk = %store.disk().describe(), %error, "the last sync failed; nothing of it was acknowledged");
    }
}

fn read_loop(shared: &Arc<Shared>, store: &SegmentStore, reads: &Receiver<Job<QueuedOp>>) {
    while let Ok(Job::Do(QueuedOp { op_id, op })) = reads.recv() {
        let result: Result<_, DiskFault> = disk_worker::read(store, &op);
        shared.drive([Event::DiskDone { op_id, result }]);
    }
}

fn timer_loop(shared: &Arc<Shared>) {
    while !shared.is_stopping() {
        let now_ns = shared.clock.now_ns();
        let deadline_ns = shared.deadline_ns().min(now_ns.saturating_add(60_000_000_000));
        if deadline_ns <= now_ns {
            let due = shared.core.lock().is_heartbeat_due(now_ns);
            if due {
                let work = device_work();
                shared.core.lock().tell_work(work);
            }
            shared.drive([Event::Tick]);
            continue;
        }
        shared.asleep_until_ns.store(deadline_ns, SeqCst);
        // If the deadline moved closer before the store above was visible, nothing would have woken this thread.
        if shared.deadline_ns() >= deadline_ns {
            std::thread::park_timeout(Duration::from_nanos((deadline_ns - now_ns) as u64));
        }
        shared.asleep_until_ns.store(i64::MIN, SeqCst);
    }
}
