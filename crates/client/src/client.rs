//! [`Client`]: the connection to a cluster, and the operations that concern all of it. Operations on a path are in
//! [`crate::paths`].

use crate::config::Options;
use crate::context::{Context, wait_until};
use crate::error::Error;
use crate::lease_cache::{DirectoryCache, RecallAnswer, RecallService};
use crate::read::core::ReadReport;
use crate::rpc_table::RpcTable;
use crate::transport::NetTransport;
use crate::view::View;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tessera_accel::device::Work;
use tessera_net::{BufferPool, Dialer, ManagerList, Managers};
use tessera_wire::meta::*;
use tessera_wire::rpc::{Answer, Call, Peer};
use tessera_wire::{Code, Error as WireError, Hello, PROTOCOL_VERSION, Request, Role};

/// Idle buffers kept for input, parity and received payloads, in bytes.
const POOL_BYTES: usize = 384 << 20;

/// A connection to a cluster. Threads may share it; clones share everything.
#[derive(Clone)]
pub struct Client {
    pub(crate) context: Arc<Context>,
    pub(crate) directories: Arc<DirectoryCache>,
    pub(crate) cluster_doubt: Option<String>,
}

impl Client {
    /// Connects to the cluster whose managers are at `managers`: `HOST:PORT` or `unix:PATH`, or several with commas
    /// between them. One suffices while it can be reached; with all, the client continues when another one leads.
    ///
    /// # Errors
    /// `managers` is malformed, no manager of this release answers there, or none leads; or there is no such device.
    pub fn connect(managers: &str, options: Options) -> Result<Self, Error> {
        options.use_device()?;
        let failed = |error| Error::Connect { managers: managers.to_string(), error };
        let list: ManagerList =
            managers.parse().map_err(|message: String| failed(WireError::new(Code::Invalid, message)))?;
        let (view, directories) = (View::shared(), Arc::<DirectoryCache>::default());
        let pool = BufferPool::limited(POOL_BYTES, usize::try_from(options.memory_bytes).unwrap_or(usize::MAX));
        let hello = Hello {
            protocol_version: PROTOCOL_VERSION,
            role: Role::Client as i32,
            // Not known yet: the dialer takes it from the manager's answer.
            cluster_id: Vec::new(),
            release: env!("CARGO_PKG_VERSION").to_string(),
            client_id: rand::random::<u64>().max(1),
            host: options.host.clone(),
        };
        let service = Arc::new(RecallService(directories.clone()));
        let dialer = Dialer::new(hello, service, pool.clone());
        let managers = Managers::new(dialer.clone(), list);
        // The first request is not repeated: a wrong address fails at once.
        let first = GetMap { known_version: 0, pg_ids: Vec::new(), all_nodes: true };
        let timeout = Duration::from_millis(options.manager_timeout_ms);
        let (map, _) = managers.call_wait(&first, Vec::new(), timeout).map_err(failed)?;
        view.write().merge(&map, true);
        let cluster_doubt = managers.doubt();
        let transport = NetTransport::new(dialer, managers, view.clone());
        let context = Context::start(Arc::new(transport), pool, view, options)
            .map_err(|e| failed(WireError::new(Code::Io, format!("cannot start threads: {e}"))))?;
        Ok(Client { context, directories, cluster_doubt })
    }

    /// What the user should know of the cluster that this client works with: managers that were named are of another one, or may be.
    #[must_use]
    pub fn cluster_doubt(&self) -> Option<&str> {
        self.cluster_doubt.as_deref()
    }

    /// Sends a request to the manager once; `done` gets the answer, on any thread, and must not block. Waits for the
    /// answer `wait_ms` longer than for those of other requests, milliseconds.
    pub fn ask_manager<R: Request>(
        &self,
        request: &R,
        wait_ms: u64,
        done: impl FnOnce(Result<R::Reply, WireError>) + Send + 'static,
    ) {
        self.call_manager(request, wait_ms, move |answer| done(answer.decode::<R>().map(|(reply, _)| reply)));
    }

    fn call_manager<R: Request>(&self, request: &R, wait_ms: u64, done: impl FnOnce(Answer) + Send + 'static) {
        let timeout_ms = self.context.options.manager_timeout_ms + wait_ms;
        let call = Call::new(Peer::Manager, 0, request, Vec::new(), timeout_ms);
        self.context.transport.call(call, Box::new(done));
    }

    /// The machine this client runs on, as the manager and the nodes know it.
    pub fn machine(&self) -> String {
        tessera_net::machine()
    }

    /// How long requests of this client have waited for a manager that answers nothing; zero while it answers.
    pub fn manager_silence(&self) -> Duration {
        self.context.transport.manager_silence()
    }

    /// Requests that the manager does not answer are repeated for this long.
    pub fn manager_deadline(&self) -> Duration {
        Duration::from_millis(self.context.options.manager_deadline_ms)
    }

    /// Sends a request to the manager, and repeats it (P8) until the manager answers or [`Client::manager_deadline`] is over.
    /// The caller may cache answers that came under a lease until [`Client::on_recall`] recalls them, or the lease ends;
    /// it runs from when the request was sent.
    ///
    /// # Errors
    /// The manager refuses, or does not answer.
    pub fn ask<R: Request>(&self, request: &R) -> Result<R::Reply, WireError> {
        let deadline = Instant::now() + Duration::from_millis(self.context.options.manager_deadline_ms);
        for attempt in 1.. {
            match self.ask_once(request) {
                Err(error) if error.is_retryable() && Instant::now() < deadline => {}
                done => return done,
            }
            std::thread::sleep(Duration::from_nanos(self.context.options.backoff_ns(attempt) as u64));
        }
        unreachable!("the loop has no end of its own")
    }

    /// Sends a request to the manager once and waits for the reply.
    pub(crate) fn ask_once<R: Request>(&self, request: &R) -> Result<R::Reply, WireError> {
        let (sender, receiver) = std::sync::mpsc::sync_channel(1);
        self.call_manager(request, 0, move |answer| drop(sender.send(answer)));
        let answer = receiver.recv().map_err(|_| WireError::new(Code::Unavailable, "the call was dropped"))?;
        // Here and not in the closure: the connection's thread has other answers and recalls to read.
        answer.decode::<R>().map(|(reply, _)| reply)
    }

    /// An id for a request that changes something: the manager carries out one request with it.
    pub fn op_id(&self) -> u64 {
        RpcTable::<()>::new(self.context.seed()).op_id()
    }

    /// Registers a function that the client calls with the inodes whose leases the manager recalls. The manager waits until the closure in
    /// the second argument is called. `None`: all leases ended, because the connection was lost. The function must not send requests to
    /// the cluster, and not wait.
    pub fn on_recall(&self, hook: impl Fn(Option<&[u64]>, RecallAnswer) + Send + Sync + 'static) {
        let _ = self.directories.recall_hook.set(Box::new(hook));
    }

    /// Registers a function that the client calls with the directories whose delegation the manager recalls. A lost
    /// connection is reported by [`Client::on_recall`] only. The manager waits until the closure in the second argument
    /// is called. Flush the deferred creates of those directories before that, on another thread.
    pub fn on_delegation_recall(&self, hook: impl Fn(Vec<u64>, RecallAnswer) + Send + Sync + 'static) {
        let _ = self.directories.delegation_recall_hook.set(Box::new(hook));
    }

    /// Registers a function that the client calls with the files whose locks the manager wants to decide about again. The manager is
    /// answered at once; it waits for [`tessera_wire::meta::ReturnLocks`]. The function must not send requests to the cluster, and not wait.
    pub fn on_lock_recall(&self, hook: impl Fn(&[u64]) + Send + Sync + 'static) {
        let _ = self.directories.lock_recall_hook.set(Box::new(hook));
    }

    /// A summary of the cluster's state.
    ///
    /// # Errors
    /// The manager does not answer.
    pub fn status(&self) -> Result<ClusterStatus, Error> {
        Ok(self.ask(&GetStatus {})?)
    }

    /// Drains a node or one of its disks (0: all), or stops draining it.
    ///
    /// # Errors
    /// There is no such node or disk, or the manager does not answer.
    pub fn drain(&self, node_id: u64, disk_id: u64, undo: bool) -> Result<(), Error> {
        let node_id = if disk_id == 0 { node_id } else { 0 };
        let request = Drain { op_id: self.op_id(), node_id, disk_id, undo };
        self.ask(&request)?;
        Ok(())
    }

    /// Starts a maintenance job, or reports on the one that runs.
    ///
    /// # Errors
    /// The manager refuses, or does not answer.
    pub fn maintain(&self, what: MaintenanceJob, start: bool) -> Result<MaintainReply, Error> {
        Ok(self.ask(&Maintain { what: what as i32, start })?)
    }

    /// Has one of the peers that keep the metadata lead, or leave.
    ///
    /// # Errors
    /// There is no such peer, or it cannot do so; or the manager does not answer.
    pub fn change_peer(&self, peer_id: u64, change: PeerChange) -> Result<(), Error> {
        self.ask(&ChangePeer { peer_id, change: change as i32 })?;
        Ok(())
    }

    /// Fragments that all ended reads of this client had to do without, summed.
    pub fn read_report(&self) -> ReadReport {
        *self.context.read_report.lock()
    }

    /// The most bytes that the buffers of this client had at any moment.
    pub fn most_memory_bytes(&self) -> u64 {
        self.context.pool.most_bytes() as u64
    }

    /// Tells the manager what this process's devices computed since the last call, for `tessera status`. Ignores
    /// failures.
    pub fn report_work(&self) {
        // Devices belong to the process, so the sums do too.
        static REPORTED: Mutex<BTreeMap<(String, &str), Work>> = Mutex::new(BTreeMap::new());
        let mut reported = REPORTED.lock();
        let mut device_work = Vec::new();
        for (device, primitive, work) in tessera_accel::work_done() {
            let known = reported.entry((device.clone(), primitive)).or_default();
            let (jobs, bytes) = (work.jobs.saturating_sub(known.jobs), work.bytes.saturating_sub(known.bytes));
            if jobs > 0 {
                device_work.push(DeviceWork::of_process(device, primitive, jobs, bytes));
                *known = work;
            }
        }
        if !device_work.is_empty()
            && let Err(error) = self.ask_once(&ReportWork { device_work })
        {
            tracing::debug!(%error, "the manager was not told what was computed");
        }
    }

    /// Gives up all operations, and waits at most `limit` until the manager has closed every session of this client.
    /// Returns whether it has. A process that is about to end calls this; otherwise its sessions last until they
    /// expire. Reads that other threads wait for never end after it.
    pub fn close(&self, limit: Duration) -> bool {
        let sessions = self.context.sessions();
        sessions.iter().for_each(|driver| driver.clone().cancel());
        let preallocated = self.context.view.write().preallocated.clear();
        for session_id in preallocated {
            let context = self.context.clone();
            context.close_begins();
            self.ask_manager(&CloseSession { session_id, ..Default::default() }, 0, move |_| context.close_ends());
        }
        let closed = || self.context.pending_closes.load(Ordering::Acquire) == 0;
        wait_until(limit, || closed() && sessions.iter().all(|driver| driver.is_finished()))
    }

    /// Waits at most `limit` until the redundancy of optimistic writes is stored, and leaves the rest to repair. Returns how many
    /// chunks were stored with reduced redundancy since the last call.
    pub fn flush(&self, limit: Duration) -> u64 {
        let are_over = || self.context.in_background() == 0;
        if !wait_until(limit, are_over) {
            self.context.end_background();
            wait_until(limit, are_over);
        }
        std::mem::take(&mut self.context.view.write().left_to_repair)
    }
}
