//! A simulated program that uses the store: the client's real cores, one operation after another.

mod packs;

use crate::oracle::{Content, Oracle, Violation};
use crate::plan::{Family, Plan, Rng};
use bytes::Bytes;
use packs::{Listing, Refilling};
use prost::Message;
use std::collections::BTreeMap;
use std::sync::Arc;
use tessera_client::FileError;
use tessera_client::config::Options;
use tessera_client::exchange::Core;
use tessera_client::read::cache::ChunkCache;
use tessera_client::read::core::{Delivery, ReadAction, ReadCore, ReadEvent, ReadNotice, ReadParams, ReadRequest};
use tessera_client::view::{SharedView, View};
use tessera_client::write::core::{
    ChunkReady, Owner, Target, WriteAction, WriteCore, WriteDone, WriteEvent, WriteNotice, WriteParams, WriteRequest,
};
use tessera_net::BufferPool;
use tessera_policy::Policy;
use tessera_wire::meta::{
    CommitMode, DescribeReads, DescribeReadsReply, Entry, InoRange, MakeDir, OpenRead, OpenReadReply, Unlink,
};
use tessera_wire::rpc::{Answer, Call, Peer};
use tessera_wire::{Code, Error, Hint};

/// Bytes of a record of a shared log.
pub const RECORD_BYTES: usize = 700;
const ROOT: u64 = 1;
/// Bits of a token that hold the core's call number, from 1; the bits above hold the number of the operation.
const TOKEN_BITS: u32 = 40;

enum Op {
    Write {
        core: Box<WriteCore>,
        path: String,
        content: Content,
    },
    /// Writes small files together.
    Pack {
        core: Box<WriteCore>,
        files: Vec<(String, Content)>,
    },
    /// Stores a pack of what lies elsewhere.
    Move {
        core: Box<WriteCore>,
    },
    /// Asks what may move into a pack.
    List {
        of: Listing,
        again_at_ns: i64,
    },
    /// Reads packs, to write what is left of them anew.
    Refill(Box<Refilling>),
    Append {
        core: Box<WriteCore>,
        log: String,
        record: Vec<u8>,
    },
    Read {
        core: Box<ReadCore>,
        path: String,
        got: Vec<u8>,
        /// The file was not opened: if the read fails, it is.
        described: bool,
    },
    /// Asks what the manager knows of a file, to read it without a session.
    Describe {
        path: String,
        again_at_ns: i64,
    },
    Remove {
        path: String,
        op_id: u64,
        again_at_ns: i64,
    },
    /// Makes a directory, for the inode numbers that come with it.
    MakeDir {
        op_id: u64,
        again_at_ns: i64,
    },
}

/// How a read ended.
enum ReadEnd {
    All,
    NoFile,
    Failed(FileError),
}

/// One client.
pub struct ClientHost {
    /// Place in the world.
    pub index: usize,
    /// Grows when it is killed.
    pub incarnation: u64,
    /// The process is stopped, but not killed.
    pub paused: bool,
    /// Operations not started yet.
    pub todo: usize,
    /// Errors of operations: code and text.
    pub errors: Vec<(Code, String)>,
    /// Length of the file that the last read found; none if the file did not exist.
    pub found_bytes: Option<usize>,
    op: Option<Op>,
    /// Number of the current operation; answers to calls of earlier ones are dropped.
    op_number: u64,
    rng: Rng,
    /// Length of its chunks.
    piece_bytes: usize,
    view: SharedView,
    options: Arc<Options>,
    pool: BufferPool,
    hints: Vec<Hint>,
    /// Reserved inode numbers.
    inos: Vec<u64>,
    /// The client's own files, and whether they exist.
    exists: BTreeMap<String, bool>,
    /// Those of them that were written by themselves: inode number, version and content.
    alone: BTreeMap<String, (u64, u64, Content)>,
    /// Inode number for the file being written; 0: any.
    new_ino: u64,
    /// What was listed last: much of it is elsewhere by now.
    lists: Vec<(Listing, Bytes)>,
}

impl ClientHost {
    /// A client that will do the plan's operations with files of its policy.
    pub fn new(index: usize, plan: &Plan, seed: u64) -> ClientHost {
        let hint = |name: &str, value: &str| Hint { name: name.into(), value: value.into() };
        let durability = if plan.optimistic { "optimistic" } else { "pessimistic" };
        // In plans beyond redundancy a read of lost data gives up in the end; in survivable plans everything comes
        // back, however late.
        let (get_deadline_ms, put_deadline_ms) = match plan.family {
            Family::Survivable => (60_000, 600_000),
            Family::Beyond => (5_000, 10_000),
        };
        let options = Options {
            manager_timeout_ms: 1_000,
            manager_deadline_ms: 600_000,
            put_timeout_ms: 1_000,
            put_deadline_ms,
            get_timeout_ms: 1_000,
            get_deadline_ms,
            avoid_ms: 2_000,
            suspect_ms: 1_000,
            ask_chunks: if plan.many_chunks { 1_000 } else { 5 },
            put_bytes: if plan.many_chunks { 32_000 } else { 8_000 },
            commit_extents: if plan.many_chunks { 1_000 } else { 7 },
            preallocate_after_files: 1,
            preallocate_chunks: 4,
            preallocate_pause_ms: 60_000,
            remembered_hashes: 2,
            ..Options::default()
        };
        ClientHost {
            index,
            incarnation: 1,
            paused: false,
            todo: plan.operations,
            errors: Vec::new(),
            found_bytes: None,
            op: None,
            op_number: 0,
            rng: Rng::new(seed),
            piece_bytes: plan.piece_bytes,
            view: View::shared(),
            options: Arc::new(options),
            pool: BufferPool::new(0),
            hints: vec![hint("redundancy", plan.redundancy), hint("durability", durability)],
            inos: Vec::new(),
            exists: (0..3).map(|k| (name_of(index, k), false)).collect(),
            new_ino: 0,
            alone: BTreeMap::new(),
            lists: Vec::new(),
        }
    }

    /// Whether all operations have ended.
    pub fn is_done(&self) -> bool {
        self.op.is_none() && self.todo == 0
    }

    /// Number of the operation under way.
    pub fn operation(&self) -> Option<u64> {
        self.op.as_ref().map(|_| self.op_number)
    }

    /// The current operation, for messages.
    pub fn describe_operation(&self) -> String {
        let what = match &self.op {
            None => "nothing".into(),
            Some(Op::Write { core, path, .. }) => format!("writing {path}: {core:?}"),
            Some(Op::Pack { core, .. }) => format!("writing a pack: {core:?}"),
            Some(Op::Move { core }) => format!("moving into a pack: {core:?}"),
            Some(Op::List { of, .. }) => format!("asking for {of:?}"),
            Some(Op::Refill(refilling)) => format!("reading a pack, {} bytes so far", refilling.got.len()),
            Some(Op::Append { core, .. }) => format!("appending: {core:?}"),
            Some(Op::Read { path, got, .. }) => format!("reading {path}, {} bytes so far", got.len()),
            Some(Op::Describe { path, .. }) => format!("asking about {path}"),
            Some(Op::Remove { path, .. }) => format!("removing {path}"),
            Some(Op::MakeDir { .. }) => "making a directory".into(),
        };
        format!("{what}, {} to do, next at {:?}", self.todo, self.next_due())
    }

    /// Kills the process: its operation ends without a message, and a new incarnation starts.
    pub fn kill(&mut self) {
        self.op = None;
        self.op_number += 1;
        self.incarnation += 1;
        self.paused = false;
        self.view = View::shared();
        self.inos.clear();
        self.exists.clear();
    }

    /// Time of the next tick.
    pub fn next_due(&self) -> Option<i64> {
        match self.op.as_ref()? {
            Op::Write { core, .. } | Op::Pack { core, .. } | Op::Move { core } | Op::Append { core, .. } => {
                core.next_due()
            }
            Op::Read { core, .. } => core.next_due(),
            Op::Refill(refilling) => refilling.core.next_due(),
            Op::Remove { again_at_ns, .. }
            | Op::MakeDir { again_at_ns, .. }
            | Op::Describe { again_at_ns, .. }
            | Op::List { again_at_ns, .. } => Some(*again_at_ns),
        }
    }

    /// Begins a read of a file, when idle.
    pub fn read(&mut self, now_ns: i64, path: &str) {
        self.begin_read(now_ns, path, None);
    }

    /// Opens the file, unless it is `known`.
    fn begin_read(&mut self, now_ns: i64, path: &str, known: Option<Box<OpenReadReply>>) {
        self.found_bytes = None;
        let described = known.is_some();
        let params = ReadParams { file: path.into(), open: open_of(path), known, bulk: described };
        let core = self.read_core(now_ns, params);
        self.op = Some(Op::Read { core, path: path.into(), got: Vec::new(), described });
    }

    /// A read session that is being opened.
    fn read_core(&mut self, now_ns: i64, params: ReadParams) -> Box<ReadCore> {
        let cache = ChunkCache::shared(1 << 20);
        let mut core = Box::new(ReadCore::new(params, self.options.clone(), self.view.clone(), cache, self.rng.any()));
        core.handle(now_ns, ReadRequest::Open);
        core
    }

    /// Begins a write of a file of this redundancy, when idle.
    pub fn put(&mut self, now_ns: i64, path: &str, bytes: &[u8], redundancy: &str, oracle: &mut Oracle) {
        self.hints = vec![Hint { name: "redundancy".into(), value: redundancy.into() }];
        let content = Some(Arc::new(bytes.to_vec()));
        oracle.begin(path, content.clone());
        let core = self.write_core(now_ns, path, CommitMode::Replace, bytes);
        self.op = Some(Op::Write { core, path: path.into(), content });
    }

    /// Begins to remove a file, when idle.
    pub fn remove(&mut self, now_ns: i64, path: &str, oracle: &mut Oracle) {
        oracle.begin(path, None);
        let op_id = self.rng.any() >> 1;
        self.op = Some(Op::Remove { path: path.into(), op_id, again_at_ns: now_ns });
    }

    /// Time has passed: continues the operation, or starts the next.
    ///
    /// # Errors
    /// The promise that the result of an operation breaks.
    pub fn tick(&mut self, now_ns: i64, oracle: &mut Oracle) -> Result<Vec<Call>, Violation> {
        match &mut self.op {
            None => self.begin(now_ns, oracle),
            Some(Op::Write { core, .. } | Op::Pack { core, .. } | Op::Move { core } | Op::Append { core, .. }) => {
                core.handle(now_ns, WriteEvent::Tick)
            }
            Some(Op::Read { core, .. }) => core.handle(now_ns, ReadEvent::Tick),
            Some(Op::Refill(refilling)) => refilling.core.handle(now_ns, ReadEvent::Tick),
            Some(Op::Remove { .. } | Op::MakeDir { .. } | Op::Describe { .. } | Op::List { .. }) => {}
        }
        self.advance(now_ns, oracle)
    }

    /// Delivers an answer.
    ///
    /// # Errors
    /// The promise that the result of an operation breaks.
    pub fn answer(&mut self, now_ns: i64, mut answer: Answer, oracle: &mut Oracle) -> Result<Vec<Call>, Violation> {
        if answer.token >> TOKEN_BITS != self.op_number {
            return Ok(Vec::new());
        }
        answer.token &= (1 << TOKEN_BITS) - 1;
        match &mut self.op {
            None => {}
            Some(Op::Write { core, .. } | Op::Pack { core, .. } | Op::Move { core } | Op::Append { core, .. }) => {
                core.handle(now_ns, WriteEvent::Answer(answer))
            }
            Some(Op::Read { core, .. }) => core.handle(now_ns, ReadEvent::Answer(answer)),
            Some(Op::Refill(refilling)) => refilling.core.handle(now_ns, ReadEvent::Answer(answer)),
            Some(Op::List { .. }) => self.listed(now_ns, answer.result),
            Some(Op::Describe { .. }) => self.described(now_ns, answer.result),
            Some(Op::Remove { .. }) => self.removed(now_ns, answer.result, oracle),
            Some(Op::MakeDir { .. }) => self.made(now_ns, answer.result),
        }
        self.advance(now_ns, oracle)
    }

    fn begin(&mut self, now_ns: i64, oracle: &mut Oracle) {
        if self.todo == 0 {
            return;
        }
        self.todo -= 1;
        let path = name_of(self.index, self.rng.between(0, 2));
        match self.rng.between(0, 99) {
            _ if self.inos.is_empty() && self.rng.percent(30) => {
                self.op = Some(Op::MakeDir { op_id: self.rng.any() >> 1, again_at_ns: now_ns });
            }
            0..=5 if self.moves() => self.begin_move(now_ns),
            0..=5 => self.begin_pack(now_ns, oracle),
            6..=44 => self.begin_write(now_ns, path, oracle),
            45..=64 => self.begin_append(now_ns, oracle),
            65..=79 => self.read(now_ns, &path),
            80..=83 => self.op = Some(Op::Describe { path, again_at_ns: now_ns }),
            84..=86 => self.begin_refill(now_ns, Listing::Inlined),
            87..=89 => self.begin_refill(now_ns, Listing::Packs),
            _ => self.remove(now_ns, &path, oracle),
        }
    }

    fn begin_write(&mut self, now_ns: i64, path: String, oracle: &mut Oracle) {
        let bytes = Arc::new(self.content());
        oracle.begin(&path, Some(bytes.clone()));
        // A file that does not exist may be created with its content, under an inode number that the client has
        // reserved.
        let absent = self.exists.insert(path.clone(), true) == Some(false);
        self.new_ino = if absent { self.inos.pop().unwrap_or(0) } else { 0 };
        let core = self.write_core(now_ns, &path, CommitMode::Replace, &bytes);
        self.new_ino = 0;
        self.op = Some(Op::Write { core, path, content: Some(bytes) });
    }

    fn begin_append(&mut self, now_ns: i64, oracle: &mut Oracle) {
        let record: Vec<u8> =
            std::iter::repeat_with(|| self.rng.any().to_le_bytes()).flatten().take(RECORD_BYTES).collect();
        oracle.begin_record("log", record.clone());
        let core = self.write_core(now_ns, "log", CommitMode::Append, &record);
        self.op = Some(Op::Append { core, log: "log".into(), record });
    }

    /// Self-similar content: pieces of few kinds, so that chunks repeat in other files and versions.
    fn content(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for _ in 0..self.rng.between(0, 12) {
            let kind = if self.rng.percent(20) { self.rng.any() } else { self.rng.between(0, 9) };
            let mut piece = Rng::new(kind);
            bytes.extend(std::iter::repeat_with(|| piece.any().to_le_bytes()).flatten().take(self.piece_bytes));
        }
        bytes.truncate(bytes.len().saturating_sub(self.rng.between(0, 400) as usize));
        bytes
    }

    fn policy(&self) -> Policy {
        let hints = self.hints.iter().map(|h| (h.name.as_str(), h.value.as_str()));
        Policy::from_hints(hints).expect("the plan's hints are good")
    }

    fn params(&mut self, path: &str, mode: CommitMode, len: usize) -> WriteParams {
        let policy = self.policy();
        WriteParams {
            file: path.into(),
            target: match self.new_ino {
                0 => Target::Name { parent: ROOT, name: path.into() },
                ino => Target::New { parent: ROOT, name: path.into(), ino, inos: 2 },
            },
            hints: self.hints.clone(),
            mode,
            if_version: (self.new_ino != 0).then_some(0),
            size_hint_bytes: Some(len as u64),
            expect_policy: self.rng.percent(70).then_some(policy),
            times: tessera_client::Times::default(),
            owner: Owner::default(),
            want_lease: false,
            content: 0,
            lock_fence: None,
            pack: None,
        }
    }

    fn write_core(&mut self, now_ns: i64, path: &str, mode: CommitMode, bytes: &[u8]) -> Box<WriteCore> {
        let params = self.params(path, mode, bytes.len());
        let mut core = Box::new(WriteCore::new(params, self.options.clone(), self.view.clone(), self.rng.any()));
        let whole = Bytes::copy_from_slice(bytes);
        for (index, start) in (0..bytes.len()).step_by(self.piece_bytes).enumerate() {
            let piece = whole.slice(start..(start + self.piece_bytes).min(bytes.len()));
            core.handle(now_ns, WriteRequest::Chunk(ChunkReady::new(index as u64, start as u64, piece)));
        }
        core.handle(
            now_ns,
            WriteRequest::EndOfInput { size_bytes: bytes.len() as u64, cuts: false, keep_session: false },
        );
        core.handle(now_ns, WriteRequest::Open);
        core
    }

    /// Carries out the core's actions until it waits for an answer.
    fn advance(&mut self, now_ns: i64, oracle: &mut Oracle) -> Result<Vec<Call>, Violation> {
        let mut calls = Vec::new();
        let mut op = match self.op.take() {
            None => return Ok(calls),
            Some(Op::Refill(refilling)) => return self.advance_refill(now_ns, refilling, oracle),
            Some(op) => op,
        };
        let over = match &mut op {
            Op::Write { core, path, content } => {
                let mut written = None;
                let over = self.advance_write(now_ns, core, &mut calls, |done| {
                    oracle.acknowledged(path, content.clone());
                    written = Some((done.ino, done.version, content.clone()));
                });
                self.alone.extend(written.map(|file| (path.clone(), file)));
                over
            }
            Op::Pack { core, files } => {
                files.iter().for_each(|(path, _)| drop(self.alone.remove(path)));
                self.advance_write(now_ns, core, &mut calls, |done| {
                    assert_eq!(done.files.len(), files.len(), "each file of a pack has an answer");
                    for ((path, content), _) in files.iter().zip(&done.files).filter(|(_, file)| file.error.is_none()) {
                        oracle.acknowledged(path, content.clone());
                    }
                })
            }
            Op::Move { core } => self.advance_write(now_ns, core, &mut calls, |_| ()),
            Op::Append { core, log, record } => {
                self.advance_write(now_ns, core, &mut calls, |_| oracle.record_acknowledged(log, record))
            }
            Op::Read { core, path, got, described } => match self.advance_read(now_ns, core, got, &mut calls) {
                // The file may have changed since.
                Some(ReadEnd::Failed(_)) if *described => {
                    self.op_number += 1;
                    let path = path.clone();
                    self.begin_read(now_ns, &path, None);
                    return self.advance(now_ns, oracle);
                }
                Some(end) => {
                    self.judge(path, got, end, oracle)?;
                    true
                }
                None => false,
            },
            Op::Refill(_) => unreachable!("it was taken out above"),
            Op::List { of, again_at_ns } => {
                if *again_at_ns <= now_ns {
                    *again_at_ns = now_ns + 1_200_000_000;
                    calls.push(of.call());
                }
                false
            }
            Op::Describe { path, again_at_ns } => {
                if *again_at_ns <= now_ns {
                    *again_at_ns = now_ns + 1_200_000_000;
                    let known_map_version = self.view.read().known_version();
                    let describe =
                        DescribeReads { files: vec![open_of(path)], known_map_version, ..DescribeReads::default() };
                    calls.push(Call::new(Peer::Manager, 0, &describe, Vec::new(), 1_000));
                }
                false
            }
            Op::Remove { path, op_id, again_at_ns } => {
                self.alone.remove(path);
                if *again_at_ns <= now_ns {
                    *again_at_ns = now_ns + 1_200_000_000;
                    let unlink = Unlink { op_id: *op_id, parent: ROOT, name: path.clone().into(), directory: false };
                    calls.push(Call::new(Peer::Manager, 0, &unlink, Vec::new(), 1_000));
                }
                false
            }
            Op::MakeDir { op_id, again_at_ns } => {
                if *again_at_ns <= now_ns {
                    *again_at_ns = now_ns + 1_200_000_000;
                    let name = format!("d{}-{op_id}", self.index).into_bytes();
                    let make = MakeDir { op_id: *op_id, parent: ROOT, name, inos: 3, ..MakeDir::default() };
                    calls.push(Call::new(Peer::Manager, 0, &make, Vec::new(), 1_000));
                }
                false
            }
        };
        self.number(&mut calls);
        match over {
            true => self.op_number += 1,
            false => self.op = Some(op),
        }
        Ok(calls)
    }

    /// Marks calls as those of the current operation.
    fn number(&self, calls: &mut [Call]) {
        calls.iter_mut().for_each(|call| call.token |= self.op_number << TOKEN_BITS);
    }

    fn advance_write(
        &mut self,
        now_ns: i64,
        core: &mut WriteCore,
        calls: &mut Vec<Call>,
        mut done: impl FnMut(&WriteDone),
    ) -> bool {
        while let Some(action) = core.poll() {
            match action {
                WriteAction::Call(call) => calls.push(call),
                WriteAction::Compute(job) => {
                    let value = job.value.run(&self.pool);
                    core.handle(now_ns, WriteEvent::Computed(tessera_client::job::Numbered { id: job.id, value }));
                }
                WriteAction::Notify(WriteNotice::Opened { .. }) => {}
                WriteAction::Notify(WriteNotice::Done(Ok(made))) => {
                    done(&made);
                    self.inos.extend(made.inos.into_iter().flat_map(numbers));
                }
                WriteAction::Notify(WriteNotice::Done(Err(error))) => {
                    self.exists.clear();
                    self.errors.push((error.code(), error.to_string()));
                }
                WriteAction::Notify(WriteNotice::Finished) => {}
            }
        }
        core.is_finished()
    }

    /// Carries out the core's actions until it waits for an answer, or its read has ended.
    fn advance_read(
        &mut self,
        now_ns: i64,
        core: &mut ReadCore,
        got: &mut Vec<u8>,
        calls: &mut Vec<Call>,
    ) -> Option<ReadEnd> {
        let mut end = None;
        while let Some(action) = core.poll() {
            match action {
                ReadAction::Call(call) => calls.push(call),
                ReadAction::Compute(job) => {
                    let value = job.value.run(&self.pool);
                    core.handle(now_ns, ReadEvent::Computed(tessera_client::job::Numbered { id: job.id, value }));
                }
                ReadAction::Notify(ReadNotice::Opened(_)) => core.handle(
                    now_ns,
                    ReadRequest::Read { id: 1, offset: 0, len_bytes: u64::MAX, stream: true, window_bytes: 32 << 20 },
                ),
                ReadAction::Notify(ReadNotice::OpenFailed(error)) => {
                    end = Some(match error.code() {
                        Code::NotFound => ReadEnd::NoFile,
                        _ => ReadEnd::Failed(error),
                    });
                }
                ReadAction::Notify(ReadNotice::Deliver { id, delivery }) => {
                    core.handle(now_ns, ReadRequest::Consumed { id, bytes: delivery.len_bytes() });
                    match delivery {
                        Delivery::Bytes(parts) => parts.iter().for_each(|p| got.extend_from_slice(p)),
                        Delivery::Zeros(len) => got.resize(got.len() + len as usize, 0),
                    }
                }
                ReadAction::Notify(ReadNotice::Done { result, .. }) => {
                    end = Some(result.map_or_else(ReadEnd::Failed, |()| ReadEnd::All));
                    core.handle(now_ns, ReadEvent::Cancel);
                }
            }
        }
        end
    }

    /// Compares what a read found with what the file may be.
    fn judge(&mut self, path: &str, got: &mut Vec<u8>, end: ReadEnd, oracle: &Oracle) -> Result<(), Violation> {
        let found = match end {
            ReadEnd::All => {
                self.found_bytes = Some(got.len());
                Some(Arc::new(std::mem::take(got)))
            }
            ReadEnd::NoFile => None,
            ReadEnd::Failed(error) => {
                self.errors.push((error.code(), error.to_string()));
                return Ok(());
            }
        };
        judge(path, &found, oracle)
    }

    fn described(&mut self, now_ns: i64, result: Result<(Bytes, Bytes), Error>) {
        let Some(Op::Describe { path, again_at_ns }) = &mut self.op else { return };
        let Some(mut reply) = result.ok().and_then(|(body, _)| DescribeReadsReply::decode(body).ok()) else {
            *again_at_ns = now_ns + 300_000_000;
            return;
        };
        self.view.write().learn(&reply.classes, reply.map.as_ref());
        let (path, known) = (path.clone(), reply.files.pop().filter(|file| file.attr.is_some()));
        self.op_number += 1;
        self.begin_read(now_ns, &path, known.map(Box::new));
    }

    fn made(&mut self, now_ns: i64, result: Result<(Bytes, Bytes), Error>) {
        let Some(Op::MakeDir { again_at_ns, .. }) = &mut self.op else { return };
        match result.ok().and_then(|(body, _)| Entry::decode(body).ok()) {
            Some(made) => {
                self.inos.extend(made.inos.into_iter().flat_map(numbers));
                self.op = None;
                self.op_number += 1;
            }
            None => *again_at_ns = now_ns + 300_000_000,
        }
    }

    fn removed(&mut self, now_ns: i64, result: Result<(Bytes, Bytes), Error>, oracle: &mut Oracle) {
        let Some(Op::Remove { path, again_at_ns, .. }) = &mut self.op else { return };
        match result {
            Err(error) if error.code() != Code::NotFound => *again_at_ns = now_ns + 300_000_000,
            _ => {
                oracle.acknowledged(path, None);
                self.exists.insert(path.clone(), false);
                self.op = None;
                self.op_number += 1;
            }
        }
    }
}

fn open_of(path: &str) -> OpenRead {
    OpenRead { parent: ROOT, name: path.into(), len_bytes: 1 << 20, ..OpenRead::default() }
}

/// Name of one of a client's own files.
fn name_of(index: usize, k: u64) -> String {
    format!("c{index}-{k}")
}

fn numbers(inos: InoRange) -> std::ops::Range<u64> {
    inos.first..inos.first + u64::from(inos.count)
}

fn judge(path: &str, found: &Content, oracle: &Oracle) -> Result<(), Violation> {
    match (oracle.logs().iter().any(|l| l == path), found) {
        (true, Some(bytes)) => oracle.check_log(path, bytes, RECORD_BYTES),
        (true, None) => oracle.check_log(path, &[], RECORD_BYTES),
        (false, _) => oracle.check(path, found),
    }
}
