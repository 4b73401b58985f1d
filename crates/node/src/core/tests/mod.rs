//! Scripts: the events that a node gets and the actions that it returns, as text. No socket, disk or clock.

use super::*;
use crate::check::CheckedPut;
use crate::test_chunks::{bytes, class, fragments};
use prost::Message;
use std::collections::BTreeMap;
use tessera_segment::{RecordMeta, Stats};
use tessera_wire::data::PutFragmentsReply;
use tessera_wire::meta::*;
use tessera_wire::{ChunkInfo, Code, DiskInfo, Error, Health, Kind, PgMember};

mod fences;
mod membership;
mod work;

const MS: i64 = 1_000_000;

/// A node, its unanswered calls and operations, and a clock.
struct Script {
    core: NodeCore,
    now_ms: i64,
    /// Unanswered calls by kind, newest last.
    calls: Vec<(Kind, u64, bytes::Bytes)>,
    ops: Vec<(u64, DiskOp)>,
    jobs: Vec<(u64, tessera_stripe::RebuildJob)>,
    /// The disk that is gone.
    gone: Option<usize>,
}

impl Script {
    fn new() -> Script {
        Script::with(NodeConfig { scrub_every_s: 0, compact_every_ms: 0, ..NodeConfig::default() })
    }

    fn with(config: NodeConfig) -> Script {
        let disk = |n: u8| DiskDescription { uuid: [n; 16], path: format!("d{n}"), stats: DiskStats::default() };
        let me = NodeDescription {
            cluster_id: vec![7; 16],
            info: NodeInfo { name: "n".into(), ..NodeInfo::default() },
            device: "cpu".into(),
            seed: 1,
            receipt_key: [5; 32],
            mark: ManagerMark::default(),
        };
        let core = NodeCore::new(config, me, vec![disk(1), disk(2)]);
        Script { core, now_ms: 1_000, calls: Vec::new(), ops: Vec::new(), jobs: Vec::new(), gone: None }
    }

    /// Registered at 1,000 ms as node 9, incarnation 1, disks 101 and 102, lease 1,000 ms; the first heartbeat is in
    /// progress.
    fn joined() -> Script {
        let mut script = Script::new();
        script.join();
        script
    }

    fn join(&mut self) {
        self.tick(0);
        self.answer(Kind::RegisterNode, Ok(welcome(1)));
    }

    /// Joined, with the first heartbeat answered by `reply`.
    fn served(reply: HeartbeatReply) -> Script {
        let mut script = Script::joined();
        script.answer(Kind::Heartbeat, Ok(reply));
        script
    }

    fn tick(&mut self, after_ms: i64) -> Vec<String> {
        self.now_ms += after_ms;
        self.happen(Event::Tick)
    }

    fn happen(&mut self, event: Event) -> Vec<String> {
        self.core.handle(self.now_ms * MS, event);
        let mut lines = Vec::new();
        while let Some(action) = self.core.poll() {
            if let Some(line) = self.note(action) {
                lines.push(line);
            }
        }
        lines
    }

    /// Answers the oldest unanswered call of this kind.
    fn answer<R: Message>(&mut self, kind: Kind, result: Result<R, Error>) -> Vec<String> {
        self.answer_with(kind, result, Vec::new())
    }

    fn answer_with<R: Message>(&mut self, kind: Kind, result: Result<R, Error>, payload: Vec<u8>) -> Vec<String> {
        let at = self.calls.iter().position(|(k, ..)| *k == kind).unwrap_or_else(|| panic!("no {kind:?} waits"));
        let (_, token, _) = self.calls.remove(at);
        let result = result.map(|reply| (reply.encode_to_vec().into(), payload.into()));
        self.happen(Event::Answer(Answer { token, result }))
    }

    /// The message of the newest unanswered call of this kind.
    fn sent<M: Message + Default>(&self, kind: Kind) -> M {
        let call = self.calls.iter().rev().find(|(k, ..)| *k == kind).unwrap_or_else(|| panic!("no {kind:?} waits"));
        M::decode(&call.2[..]).unwrap()
    }

    /// The disks' threads begin all operations that wait.
    fn begin_ops(&mut self) {
        self.core.begin_ops(self.now_ms * MS, self.ops.iter().map(|(op_id, _)| *op_id));
    }

    /// Completes the oldest waiting disk operation.
    fn disk(&mut self, result: Result<DiskReply, DiskFault>) -> Vec<String> {
        let (op_id, _) = self.ops.remove(0);
        self.happen(Event::DiskDone { op_id, result })
    }

    fn note(&mut self, action: Action) -> Option<String> {
        Some(match action {
            Action::Call(call) => {
                let line = format!("call {:?} {}", call.peer, call.kind.name());
                self.calls.push((call.kind, call.token, call.body));
                line
            }
            // Requested with every heartbeat; not shown.
            Action::Disk { op: DiskOp::Stats, op_id, disk } => {
                let store = Stats { dead_bytes: 7, ..Stats::default() };
                let result = match self.gone == Some(disk) {
                    true => Err(fault(true)),
                    false => Ok(DiskReply::Stats(DiskStats { store, ..DiskStats::default() })),
                };
                let lines = self.happen(Event::DiskDone { op_id, result });
                assert!(lines.is_empty(), "{lines:?}");
                return None;
            }
            Action::Disk { disk, op_id, op } => {
                let line = format!("disk {disk} {}", show(&op));
                self.ops.push((op_id, op));
                line
            }
            Action::Compute { op_id, job } => {
                let from: Vec<u32> = job.sources.iter().map(|it| it.number).collect();
                let line = format!("compute {} from {from:?}", job.wanted);
                self.jobs.push((op_id, job));
                line
            }
            Action::Reply { request, result: Ok(body) } => {
                let reply = PutFragmentsReply::decode(body).unwrap();
                let fate = |r: &tessera_wire::data::PutResult| match &r.error {
                    None => format!("ok in incarnation {}", r.incarnation),
                    Some(error) => format!("{:?}", error.code()),
                };
                format!("reply {request}: {}", reply.results.iter().map(fate).collect::<Vec<_>>().join(", "))
            }
            Action::Reply { request, result: Err(error) } => format!("reply {request}: {:?}", error.code()),
            Action::DisksNamed { disk_ids } => format!("disks are {disk_ids:?}"),
            Action::KeepTerm(term) => format!("keep term {term}"),
            Action::Fatal(error) => format!("fatal: {:?}", error.code()),
        })
    }

    /// Puts these (chunk, fragment, disk) of group 5 under an epoch, as copies.
    fn put(&mut self, request: u64, epoch: u64, items: &[(u64, u32, u64)]) -> Vec<String> {
        self.put_at(request, epoch, items, Some(0))
    }

    /// Puts these as parts of their chunks from this offset on; `None`: as parity.
    fn put_at(&mut self, request: u64, epoch: u64, items: &[(u64, u32, u64)], offset: Option<u64>) -> Vec<String> {
        let item = |&(chunk_id, fragment, disk_id): &(u64, u32, u64)| {
            let data = vec![1u8; 10];
            let meta =
                RecordMeta { session_id: 3, pg_id: 5, epoch, class_id: 1, chunk_len_bytes: 10, ..Default::default() };
            let (key, crc32c) = (FragmentKey { chunk_id, fragment }, tessera_accel::checksum::crc32c(&data));
            let append = AppendItem { key, meta, groups: Default::default(), offset, crc32c, data: data.into() };
            (disk_id, append)
        };
        let put = CheckedPut { sync: true, items: items.iter().map(item).collect() };
        self.happen(Event::Put { request, put })
    }
}

fn show(op: &DiskOp) -> String {
    let key = |k: &FragmentKey| format!("{}.{}", k.chunk_id, k.fragment);
    let keys = |keys: &[FragmentKey]| keys.iter().map(key).collect::<Vec<_>>().join(" ");
    match op {
        DiskOp::Append { items, .. } => {
            let session_id = items[0].meta.session_id;
            let named: Vec<String> = items.iter().map(|i| key(&i.key)).collect();
            format!("append {} of session {session_id}", named.join(" "))
        }
        DiskOp::Delete(of) => format!("delete {}", keys(&of.iter().map(FragmentKey::from).collect::<Vec<_>>())),
        DiskOp::Verify(of) => format!("verify {}", keys(of)),
        DiskOp::Read(of) => format!("read {}", key(of)),
        DiskOp::Compact { dead_percent, seal, .. } => {
            format!("{}compact above {dead_percent} %", if *seal { "seal and " } else { "" })
        }
        DiskOp::List { after, limit } => format!("list {limit} after {}", after.as_ref().map_or("-".into(), key)),
        DiskOp::Scrub { cursor, .. } => format!("scrub from {}", cursor.map_or(0, |c| c.offset)),
        DiskOp::Stats => "stats".into(),
    }
}

fn welcome(incarnation: u64) -> RegisterNodeReply {
    RegisterNodeReply {
        node_id: 9,
        incarnation,
        disk_ids: vec![101, 102],
        heartbeat_ms: 200,
        lease_ms: 1_000,
        cluster_id: vec![7; 16],
        term: 1,
        log_seq: 10,
        receipt_key: vec![5; 32],
    }
}

fn beat() -> HeartbeatReply {
    HeartbeatReply { lease_ms: 1_000, term: 1, log_seq: 10, ..HeartbeatReply::default() }
}

fn stored(count: usize) -> Result<DiskReply, DiskFault> {
    Ok(DiskReply::Appended(vec![Ok(()); count]))
}

fn fault(poisoned: bool) -> DiskFault {
    DiskFault { error: Error::new(Code::Io, "broken"), poisoned }
}

fn lost<R>(code: Code) -> Result<R, Error> {
    Err(Error::new(code, "lost"))
}

fn of(chunk_id: u64, fragment: u32, disk_id: u64) -> FragmentRef {
    FragmentRef { chunk_id, fragment, epoch: 0, disk_id }
}

const NOTHING: [&str; 0] = [];
