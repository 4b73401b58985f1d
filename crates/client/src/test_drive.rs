//! Runs one core of this crate against a cluster in memory in virtual time, event by event, and keeps a trace.

use crate::config::{MS, Options};
use crate::error::FileError;
use crate::exchange::Core;
use crate::job::Numbered;
use crate::read::cache::ChunkCache;
use crate::read::core::{Delivery, ReadAction, ReadCore, ReadEvent, ReadNotice, ReadParams, ReadRequest};
use crate::view::{SharedView, View};
use crate::write::core::{
    ChunkReady, Owner, Target, WriteAction, WriteCore, WriteDone, WriteEvent, WriteNotice, WriteParams, WriteRequest,
};
use bytes::Bytes;
use prost::Message;
use std::collections::BTreeMap;
use std::sync::Arc;
use tessera_net::BufferPool;
use tessera_testkit::Cluster;
use tessera_wire::meta::{CommitMode, GetMap};
use tessera_wire::rpc::{Answer, Call, Peer};
use tessera_wire::{Error, Kind};

/// Virtual time, answers in flight, and a trace for people.
pub(crate) struct Drive {
    pub cluster: Cluster,
    /// The client's time; the manager's is never behind it.
    pub now: i64,
    pub options: Arc<Options>,
    pub view: SharedView,
    pub pool: BufferPool,
    pub trace: Vec<String>,
    queue: BTreeMap<(i64, u64), Answer>,
    sequence: u64,
    pub seed: u64,
    /// So many commits are carried out, and their answers lost.
    pub lost_commits: u32,
}

impl Drive {
    pub fn new(mut cluster: Cluster) -> Self {
        Drive {
            now: cluster.now_ns,
            options: Arc::new(Options::default()),
            view: view_of(&mut cluster),
            cluster,
            pool: BufferPool::new(0),
            trace: Vec::new(),
            queue: BTreeMap::new(),
            sequence: 0,
            seed: 1,
            lost_commits: 0,
        }
    }

    /// Carries out a call now, without delay.
    pub fn call(&mut self, call: &Call) -> Answer {
        self.cluster.now_ns = self.cluster.now_ns.max(self.now);
        Answer { token: call.token, result: self.cluster.call(call) }
    }

    fn carry(&mut self, call: Call) {
        let (peer, delay_ns) = match &call.peer {
            Peer::Node(id) => (format!("n{id}"), self.cluster.node(*id).delay_ns),
            _ if call.kind == Kind::Commit && self.lost_commits > 0 => {
                self.lost_commits -= 1;
                ("manager".into(), i64::MAX)
            }
            _ => ("manager".into(), 0),
        };
        let answer = self.call(&call);
        let timeout_ns = crate::config::ms(call.timeout_ms);
        let (delay_ns, answer) = match delay_ns >= timeout_ns {
            true => (timeout_ns, Answer { result: Err(Error::new(tessera_wire::Code::Timeout, "late")), ..answer }),
            false => (delay_ns, answer),
        };
        let outcome = match &answer.result {
            Ok(_) => String::new(),
            Err(e) => format!(": {:?}", e.code()),
        };
        self.trace.push(format!("{peer} {}{}{outcome}", call.kind.name(), detail(&call)));
        self.sequence += 1;
        self.queue.insert((self.now + MS + delay_ns, self.sequence), answer);
    }

    /// The next answer, unless `due` comes before it; advances the clock.
    fn next(&mut self, due: Option<i64>) -> Option<Answer> {
        match (self.queue.first_key_value().map(|(k, _)| *k), due) {
            (Some((at, _)), due) if due.is_none_or(|due| at <= due) => {
                self.now = self.now.max(at);
                self.queue.pop_first().map(|(_, answer)| answer)
            }
            (_, Some(due)) => {
                self.now = self.now.max(due);
                None
            }
            _ => panic!("stuck: nothing is on its way\n{}", self.trace.join("\n")),
        }
    }

    /// Runs a write to its end (background redundancy included). Returns the result of `Done` and the largest number of
    /// bytes held.
    pub fn write(
        &mut self,
        core: &mut WriteCore,
        events: Vec<impl Into<WriteEvent>>,
    ) -> (Result<WriteDone, FileError>, u64) {
        let (mut result, mut most) = (None, 0);
        let mut events = events.into_iter().map(Into::into).collect::<std::collections::VecDeque<_>>();
        for step in 0.. {
            assert!(step < 1_000_000, "no end: {core:?}");
            while let Some(action) = core.poll() {
                match action {
                    WriteAction::Notify(WriteNotice::Done(done)) => {
                        self.trace.push(match &done {
                            Ok(done) => format!("done: version {}", done.number),
                            Err(error) => format!("done: {error}"),
                        });
                        result = Some(done);
                    }
                    WriteAction::Notify(WriteNotice::Finished) => return (result.expect("done before finished"), most),
                    action => self.carry_out(core, action),
                }
            }
            most = most.max(core.held_bytes());
            let fed = match events.front() {
                Some(WriteEvent::Request(WriteRequest::Chunk(_))) => {
                    core.held_bytes() < self.options.write_window_bytes
                }
                Some(_) => true,
                None => false,
            };
            if fed {
                core.handle(self.now, events.pop_front().unwrap());
                continue;
            }
            let event = self.next(core.next_due()).map_or(WriteEvent::Tick, WriteEvent::Answer);
            core.handle(self.now, event);
        }
        unreachable!()
    }

    fn carry_out(&mut self, core: &mut WriteCore, action: WriteAction) {
        match action {
            WriteAction::Call(call) => self.carry(call),
            WriteAction::Compute(job) => {
                let value = job.value.run(&self.pool);
                core.handle(self.now, WriteEvent::Computed(Numbered { id: job.id, value }));
            }
            WriteAction::Notify(WriteNotice::Opened { .. })
            | WriteAction::Notify(WriteNotice::Done(_))
            | WriteAction::Notify(WriteNotice::Finished) => {}
        }
    }

    /// Runs a write until its next `Done`; the core can go on.
    pub fn write_until_done(&mut self, core: &mut WriteCore) -> Result<WriteDone, FileError> {
        loop {
            while let Some(action) = core.poll() {
                match action {
                    WriteAction::Notify(WriteNotice::Done(done)) => return done,
                    action => self.carry_out(core, action),
                }
            }
            let event = self.next(core.next_due()).map_or(WriteEvent::Tick, WriteEvent::Answer);
            core.handle(self.now, event);
        }
    }

    /// Lets a write that is not done go on until the clock shows `until_ns`.
    pub fn idle(&mut self, core: &mut WriteCore, until_ns: i64) {
        while self.now < until_ns {
            while let Some(action) = core.poll() {
                self.carry_out(core, action);
            }
            let due = core.next_due().map_or(until_ns, |due| due.min(until_ns));
            let event = self.next(Some(due)).map_or(WriteEvent::Tick, WriteEvent::Answer);
            core.handle(self.now, event);
        }
    }

    /// Opens `name` and reads a range.
    pub fn read(&mut self, name: &str, offset: u64, len_bytes: u64, stream: bool) -> Result<Vec<u8>, FileError> {
        let cache = ChunkCache::shared(1 << 20);
        let mut core = self.reader(name, cache, offset, len_bytes);
        self.read_with(&mut core, 1, offset, len_bytes, stream)
    }

    pub fn reader(
        &mut self,
        name: &str,
        cache: crate::read::cache::SharedCache,
        offset: u64,
        len_bytes: u64,
    ) -> ReadCore {
        let open =
            tessera_wire::meta::OpenRead { parent: 1, name: name.into(), offset, len_bytes, ..Default::default() };
        let params = ReadParams { file: format!("tess:/{name}"), open, known: None, bulk: false };
        self.seed += 1;
        let mut core = ReadCore::new(params, self.options.clone(), self.view.clone(), cache, self.seed);
        core.handle(self.now, ReadRequest::Open);
        core
    }

    pub fn read_with(
        &mut self,
        core: &mut ReadCore,
        id: u64,
        offset: u64,
        len_bytes: u64,
        stream: bool,
    ) -> Result<Vec<u8>, FileError> {
        let mut out = Vec::new();
        core.handle(
            self.now,
            ReadRequest::Read { id, offset, len_bytes, stream, window_bytes: self.options.read_window_bytes },
        );
        for _ in 0..1_000_000 {
            while let Some(action) = core.poll() {
                match action {
                    ReadAction::Call(call) => self.carry(call),
                    ReadAction::Compute(job) => {
                        let value = job.value.run(&self.pool);
                        core.handle(self.now, ReadEvent::Computed(Numbered { id: job.id, value }));
                    }
                    ReadAction::Notify(ReadNotice::Opened(_)) | ReadAction::Notify(ReadNotice::OpenFailed(_)) => {}
                    ReadAction::Notify(ReadNotice::Deliver { delivery, .. }) => {
                        let bytes = delivery.len_bytes();
                        match delivery {
                            Delivery::Bytes(parts) => parts.iter().for_each(|p| out.extend_from_slice(p)),
                            Delivery::Zeros(len) => out.resize(out.len() + len as usize, 0),
                        }
                        core.handle(self.now, ReadRequest::Consumed { id, bytes });
                    }
                    ReadAction::Notify(ReadNotice::Done { result, .. }) => {
                        while let Some(action) = core.poll() {
                            if let ReadAction::Call(call) = action {
                                self.carry(call);
                            }
                        }
                        return result.map(|()| out);
                    }
                }
            }
            let event = self.next(core.next_due()).map_or(ReadEvent::Tick, ReadEvent::Answer);
            core.handle(self.now, event);
        }
        panic!("no end")
    }

    pub fn writer(&mut self, name: &str, mode: CommitMode, size_hint_bytes: Option<u64>) -> WriteCore {
        self.seed += 1;
        let params = WriteParams {
            want_lease: false,
            content: 0,
            lock_fence: None,
            pack: None,
            file: format!("tess:/{name}"),
            target: Target::Name { parent: 1, name: name.as_bytes().to_vec() },
            hints: Vec::new(),
            mode,
            if_version: None,
            size_hint_bytes,
            expect_policy: None,
            times: crate::Times::default(),
            owner: Owner::default(),
        };
        WriteCore::new(params, self.options.clone(), self.view.clone(), self.seed)
    }
}

/// What a client that has the whole map of a cluster knows.
pub(crate) fn view_of(cluster: &mut Cluster) -> SharedView {
    let view = View::shared();
    view.write().merge(&cluster.ask(&GetMap::default()).unwrap(), true);
    view
}

/// The detail of a call that the trace shows.
fn detail(call: &Call) -> String {
    match call.kind {
        Kind::PutFragments => {
            let request = tessera_wire::data::PutFragments::decode(&call.body[..]).unwrap();
            format!(" {:?}", request.items.iter().map(|i| i.fragment).collect::<Vec<_>>())
        }
        Kind::GetFragments => {
            let request = tessera_wire::data::GetFragments::decode(&call.body[..]).unwrap();
            format!(" {:?}", request.items.iter().map(|i| i.fragment).collect::<Vec<_>>())
        }
        Kind::AllocateChunks => {
            let request = tessera_wire::meta::AllocateChunks::decode(&call.body[..]).unwrap();
            let avoid = if request.avoid_pgs.is_empty() { "" } else { " elsewhere" };
            format!(" {}{avoid}", request.chunks.len())
        }
        Kind::Commit => {
            let request = tessera_wire::meta::Commit::decode(&call.body[..]).unwrap();
            let partial = if request.partial { " partial" } else { "" };
            format!(" {} extents {} acks{partial}", request.extents.len(), request.acks.len())
        }
        _ => String::new(),
    }
}

/// Bytes that no chunk of another seed has.
pub(crate) fn data(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (0..len).map(next).collect()
}

/// Events of a write of `data` in chunks of `chunk` bytes.
pub(crate) fn write_all(data: &[u8], chunk: usize) -> Vec<WriteEvent> {
    let mut events = vec![WriteRequest::Open.into()];
    for (i, piece) in data.chunks(chunk).enumerate() {
        let ready = ChunkReady::new(i as u64, (i * chunk) as u64, Bytes::copy_from_slice(piece));
        events.push(WriteRequest::Chunk(ready).into());
    }
    events.push(WriteRequest::EndOfInput { size_bytes: data.len() as u64, cuts: false, keep_session: false }.into());
    events
}

/// Reads all of a file, as a stream.
pub(crate) fn read_all(drive: &mut Drive, name: &str) -> Result<Vec<u8>, FileError> {
    drive.read(name, 0, u64::MAX, true)
}
