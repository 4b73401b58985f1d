//! A node's threads: one writer, several readers and one for results per disk, a timer, and compute threads.
//!
//! A disk's writer and readers do nothing but disk operations. What follows from their results (the core's work, answers
//! to peers) is for the thread of results, so that no peer can make a disk look slow.

use super::shared::Shared;
use crate::core::{DiskOp, Event};
use crate::disk_worker::{self, Done, QueuedOp};
use crossbeam_channel::{Receiver, Sender, unbounded};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::thread::JoinHandle;
use std::time::Duration;
use tessera_net::BufferPool;
use tessera_wire::meta::DeviceWork;

/// Reader threads per disk, for rebuilds, scrubbing and other background work.
pub(super) const READERS_PER_DISK: usize = 2;
/// A batch of writes ends with the operation that passes this, so that a slow disk shows progress.
const BATCH_BYTES: usize = 64 << 20;
/// Threads that decode fragments for rebuilds.
pub(super) const COMPUTE_THREADS: usize = 2;

/// Work for threads; `None` tells one of them to stop.
pub(super) struct Queue<T> {
    sender: Sender<Option<T>>,
    receiver: Receiver<Option<T>>,
}

impl<T> Queue<T> {
    pub(super) fn new() -> Self {
        let (sender, receiver) = unbounded();
        Queue { sender, receiver }
    }

    pub(super) fn send(&self, work: T) {
        // The receiving end lives as long as the queue.
        let _ = self.sender.send(Some(work));
    }

    /// Tells `threads` threads to finish the queue and stop.
    pub(super) fn stop(&self, threads: usize) {
        for _ in 0..threads {
            let _ = self.sender.send(None);
        }
    }

    fn next(&self) -> Option<T> {
        self.receiver.recv().ok().flatten()
    }
}

/// The queues of a disk's threads.
pub(super) struct DiskQueue {
    pub(super) writes: Queue<QueuedOp>,
    pub(super) reads: Queue<QueuedOp>,
    /// Results, for the thread that gives them to the core.
    results: Queue<Done>,
}

impl DiskQueue {
    pub(super) fn new() -> DiskQueue {
        DiskQueue { writes: Queue::new(), reads: Queue::new(), results: Queue::new() }
    }

    /// Queues an operation without waiting.
    pub(super) fn send(&self, op_id: u64, op: DiskOp) {
        let queue = if op.is_write() { &self.writes } else { &self.reads };
        queue.send(QueuedOp { op_id, op });
    }
}

/// What a thread does until its queue ends.
type Body = Box<dyn FnOnce(&Arc<Shared>) + Send>;

/// Starts all threads of a node; those started are in `threads`, even after an error.
pub(super) fn start(node: &Arc<Shared>, pool: &BufferPool, threads: &mut Vec<JoinHandle<()>>) -> io::Result<()> {
    let mut spawn = |name: String, body: Body| -> io::Result<()> {
        let node = node.clone();
        threads.push(std::thread::Builder::new().name(name).spawn(move || body(&node))?);
        Ok(())
    };
    for disk in 0..node.stores.len() {
        spawn(format!("write-{disk}"), Box::new(move |node| write_loop(node, disk)))?;
        for _ in 0..READERS_PER_DISK {
            spawn(format!("read-{disk}"), Box::new(move |node| read_loop(node, disk)))?;
        }
        spawn(format!("result-{disk}"), Box::new(move |node| result_loop(node, disk)))?;
    }
    for _ in 0..COMPUTE_THREADS {
        let pool = pool.clone();
        spawn("compute".into(), Box::new(move |node| compute_loop(node, &pool)))?;
    }
    spawn("timer".into(), Box::new(timer_loop))
}

fn compute_loop(node: &Arc<Shared>, pool: &BufferPool) {
    while let Some((op_id, job)) = node.computing.next() {
        let result = job.run(pool);
        drop(job);
        node.drive([Event::Computed { op_id, result }]);
    }
}

/// Takes queued writes as one batch: a gathered write, one sync, then the results (P9).
fn write_loop(shared: &Arc<Shared>, disk: usize) {
    let (store, queue) = (&shared.stores[disk], &shared.queues[disk]);
    let mut stopping = false;
    while !stopping {
        let batch = next_batch(&queue.writes.receiver, &mut stopping);
        if !batch.is_empty() {
            shared.begin_ops(batch.iter().map(|op| op.op_id));
            disk_worker::write_batch(store, shared.clock.now_ms(), batch, &mut |done| queue.results.send(done));
        }
    }
    queue.results.stop(1);
    if let Err(error) = store.close() {
        tracing::error!(disk = %store.disk().describe(), %error, "the last sync failed; nothing of it was acknowledged");
    }
}

/// Waits for a write and takes those queued after it, up to [`BATCH_BYTES`]. Sets `stopping` at the end of the queue.
fn next_batch(writes: &Receiver<Option<QueuedOp>>, stopping: &mut bool) -> Vec<QueuedOp> {
    let (mut batch, mut bytes) = (Vec::new(), 0);
    let mut next = writes.recv().ok();
    loop {
        match next {
            Some(Some(op)) => {
                bytes += op.op.append_bytes();
                batch.push(op);
            }
            Some(None) => *stopping = true,
            None => *stopping |= batch.is_empty(),
        }
        if *stopping || bytes >= BATCH_BYTES {
            return batch;
        }
        next = match writes.try_recv() {
            Ok(next) => Some(next),
            Err(_) => return batch,
        };
    }
}

fn read_loop(shared: &Arc<Shared>, disk: usize) {
    let queue = &shared.queues[disk];
    while let Some(QueuedOp { op_id, op }) = queue.reads.next() {
        shared.begin_ops([op_id]);
        queue.results.send(vec![(op_id, disk_worker::read(&shared.stores[disk], &op))]);
    }
    queue.results.stop(1);
}

/// Gives results to the core until the disk's writer and readers have ended.
fn result_loop(shared: &Arc<Shared>, disk: usize) {
    let mut working = 1 + READERS_PER_DISK;
    while working > 0 {
        match shared.queues[disk].results.next() {
            Some(done) => shared.drive(done.into_iter().map(|(op_id, result)| Event::DiskDone { op_id, result })),
            None => working -= 1,
        }
    }
}

fn timer_loop(shared: &Arc<Shared>) {
    let _ = shared.timer.set(std::thread::current());
    while !shared.is_stopping() {
        let now_ns = shared.clock.now_ns();
        let deadline_ns = shared.deadline_ns().min(now_ns.saturating_add(60_000_000_000));
        if deadline_ns <= now_ns {
            let due = shared.core.lock().is_heartbeat_due(now_ns);
            if due {
                let work = device_work();
                shared.core.lock().tell(work, shared.voter.id());
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

/// Work done by the process's devices since it started, for heartbeats and metrics.
pub(super) fn device_work() -> Vec<DeviceWork> {
    let done = tessera_accel::work_done().into_iter();
    done.map(|(device, primitive, work)| DeviceWork::of_process(device, primitive, work.jobs, work.bytes)).collect()
}
