//! State that a node's threads share, and the only way into the core: [`Shared::drive`].

use super::NodeOptions;
use super::clock::Clock;
use super::threads::{DiskQueue, Queue, device_work};
use super::voter::{In, VoterLine};
use crate::core::{Action, Event, NodeCore, NodeMetrics, Traffic};
use crossbeam_channel::Sender;
use parking_lot::{Mutex, RwLock};
use std::collections::HashMap;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64};
use std::sync::{Arc, OnceLock};
use std::thread::Thread;
use std::time::Duration;
use tessera_net::{Connection, Dialer, Endpoint, Managers};
use tessera_segment::SegmentStore;
use tessera_stripe::RebuildJob;
use tessera_wire::rpc::{Answer, Call, Peer};
use tessera_wire::{Code, Error};

/// State that the threads of a node share.
pub(super) struct Shared {
    pub(super) options: NodeOptions,
    pub(super) cluster_id: [u8; 16],
    pub(super) clock: Clock,
    pub(super) core: Mutex<NodeCore>,
    pub(super) queues: Vec<DiskQueue>,
    pub(super) stores: Vec<Arc<SegmentStore>>,
    /// Disk ids in the node's order, once the manager has assigned them.
    pub(super) disk_ids: RwLock<Vec<u64>>,
    pub(super) voter: VoterLine,
    pub(super) requests: Mutex<HashMap<u64, PendingRequest>>,
    pub(super) next_request: AtomicU64,
    pub(super) computing: Queue<(u64, RebuildJob)>,
    pub(super) dialer: Dialer,
    pub(super) managers: Managers,
    /// See [`tessera_net::machine`].
    pub(super) machine: String,
    /// When the timer must call the core again.
    pub(super) deadline_ns: AtomicI64,
    /// When the timer wakes up.
    pub(super) asleep_until_ns: AtomicI64,
    pub(super) timer: OnceLock<Thread>,
    pub(super) stopping: AtomicBool,
    pub(super) fatal: Sender<Error>,
    pub(super) traffic: Mutex<Traffic>,
}

/// A request that waits for its reply.
pub(super) struct PendingRequest {
    connection: Arc<Connection>,
    kind: u16,
    request_id: u64,
}

impl Shared {
    /// Passes events to the core, one after the other, and runs its actions.
    ///
    /// Disk operations are queued before the lock is released: a delete that was decided after an append is queued
    /// after it. Replies and calls need no order and no lock.
    pub(super) fn drive(self: &Arc<Self>, events: impl IntoIterator<Item = Event>) {
        let mut deferred = Vec::new();
        {
            let mut core = self.core.lock();
            let now_ns = self.clock.now_ns();
            for event in events {
                core.handle(now_ns, event);
            }
            while let Some(action) = core.poll() {
                self.start_action(&core, action, &mut deferred);
            }
            self.deadline_ns.store(core.next_deadline_ns(), SeqCst);
        }
        self.wake_timer_if_due_sooner();
        deferred.into_iter().for_each(|(action, endpoint)| self.run(action, endpoint));
    }

    fn start_action(&self, core: &NodeCore, action: Action, deferred: &mut Vec<(Action, Option<Endpoint>)>) {
        match action {
            Action::Disk { disk, op_id, op } => self.queues[disk].send(op_id, op),
            Action::Compute { op_id, job } => self.computing.send((op_id, job)),
            Action::DisksNamed { disk_ids } => {
                assert_eq!(disk_ids.len(), self.stores.len(), "each disk has an id");
                *self.disk_ids.write() = disk_ids;
            }
            // A manager that is deposed gets no majority, and so says nothing; only restored groups count.
            Action::KeepTerm(term) => self.voter.send(In::Term(term)),
            Action::Call(ref call) => {
                let endpoint = match &call.peer {
                    Peer::Node(id) => core.node(*id).map(|node| Endpoint::to_node(node, &self.machine)),
                    Peer::Address(address) => Some(Endpoint::Tcp(address.clone())),
                    Peer::Manager | Peer::Connection(_) => None,
                };
                deferred.push((action, endpoint));
            }
            Action::Reply { .. } | Action::Fatal(_) => deferred.push((action, None)),
        }
    }

    /// Runs an action after the core's lock is released.
    fn run(self: &Arc<Self>, action: Action, endpoint: Option<Endpoint>) {
        match action {
            Action::Reply { request, result } => {
                let Some(pending) = self.requests.lock().remove(&request) else { return };
                pending.connection.reply(pending.kind, pending.request_id, result.map(|body| (body, Vec::new())));
            }
            Action::Call(call) => self.call(call, endpoint),
            Action::Fatal(error) => {
                tracing::error!(%error, "this node cannot serve here");
                let _ = self.fatal.send(error);
            }
            _ => {}
        }
    }

    fn call(self: &Arc<Self>, call: Call, endpoint: Option<Endpoint>) {
        let (token, node) = (call.token, self.clone());
        let answer = move |result: Result<_, Error>| {
            if !node.is_stopping() {
                node.drive([Event::Answer(Answer { token, result })]);
            }
        };
        let timeout = Duration::from_millis(call.timeout_ms);
        match endpoint {
            None if call.peer == Peer::Manager => {
                self.managers.call(call.kind, call.body, call.payload, timeout, Box::new(answer));
            }
            Some(endpoint) => {
                self.dialer.call(&endpoint, call.kind, call.body, call.payload, timeout, Box::new(answer));
            }
            None => answer(Err(Error::new(Code::Unavailable, format!("{:?} has no known address", call.peer)))),
        }
    }

    /// A disk's thread begins these operations.
    pub(super) fn begin_ops(&self, op_ids: impl IntoIterator<Item = u64>) {
        self.core.lock().begin_ops(self.clock.now_ns(), op_ids);
    }

    /// Registers a request; the core replies with its number.
    pub(super) fn remember(&self, connection: &Arc<Connection>, kind: u16, request_id: u64) -> u64 {
        let request = self.next_request.fetch_add(1, Relaxed);
        let before =
            self.requests.lock().insert(request, PendingRequest { connection: connection.clone(), kind, request_id });
        assert!(before.is_none(), "request {request} is used twice");
        request
    }

    /// The store of a disk.
    pub(super) fn store(&self, disk_id: u64) -> Option<Arc<SegmentStore>> {
        let disk = self.disk_ids.read().iter().position(|&id| id == disk_id && id != 0)?;
        self.stores.get(disk).cloned()
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.load(Acquire)
    }

    pub(super) fn deadline_ns(&self) -> i64 {
        self.deadline_ns.load(SeqCst)
    }

    /// Wakes the timer if something is due before `asleep_until_ns`.
    fn wake_timer_if_due_sooner(&self) {
        let deadline = self.deadline_ns();
        if deadline < self.asleep_until_ns.load(SeqCst) {
            self.wake_timer();
        }
    }

    pub(super) fn wake_timer(&self) {
        if let Some(timer) = self.timer.get() {
            timer.unpark();
        }
    }

    /// Marks the node as stopping. Returns true for the first call.
    pub(super) fn begin_stop(&self) -> bool {
        !self.stopping.swap(true, AcqRel)
    }

    pub(super) fn metrics(&self) -> NodeMetrics {
        let (core, traffic) = (self.core.lock().metrics(), self.traffic.lock().clone());
        NodeMetrics { traffic, device_work: device_work(), ..core }
    }
}
