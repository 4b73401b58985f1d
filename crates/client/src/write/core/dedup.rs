//! The dedup question: which chunks the cluster has already, and where the others go.

use super::*;
use tessera_stripe::ClassLayout;
use tessera_wire::meta::{AllocateChunks, ChunkAnswer, ChunkState};

/// Chunks to ask the manager about.
#[derive(Debug, Default)]
pub(super) struct Dedup {
    pub queue: VecDeque<usize>,
    pub in_flight: usize,
    /// Groups to avoid, and until when.
    pub avoid: BTreeMap<u64, i64>,
    /// Chunks to ask about again, and when.
    pub retries: Timers<usize>,
}

/// What a dedup question is about.
#[derive(Debug)]
pub(super) struct Asked {
    chunks: Vec<usize>,
    /// It named groups to avoid.
    avoided: bool,
    /// Chunks that it reported as stored.
    reported: Vec<usize>,
}

impl Dedup {
    /// Questions gather while others are in flight, so batches grow with the load.
    fn next_batch(&mut self, is_last: bool, options: &Options) -> Option<Vec<usize>> {
        assert!(self.in_flight <= options.asks_in_flight, "{} dedup questions in flight", self.in_flight);
        let few = self.queue.len() < options.ask_chunks / 8 && !is_last;
        if self.queue.is_empty() || self.in_flight == options.asks_in_flight || (self.in_flight > 0 && few) {
            return None;
        }
        self.in_flight += 1;
        let count = self.queue.len().min(options.ask_chunks);
        Some(self.queue.drain(..count).collect())
    }

    fn avoided(&mut self, now: i64) -> Vec<u64> {
        self.avoid.retain(|_, until| *until > now);
        self.avoid.keys().copied().collect()
    }

    pub fn tick(&mut self, now: i64) {
        while let Some(index) = self.retries.pop_due(now) {
            self.queue.push_back(index);
        }
    }

    /// Forgets every question that was not sent.
    pub fn clear(&mut self) {
        self.queue.clear();
        self.retries.clear();
    }
}

impl WriteCore {
    pub(super) fn pump_asks(&mut self) {
        let is_last = self.committer.ending.is_some();
        while let Some(batch) = self.dedup.next_batch(is_last, &self.options) {
            let avoid_pgs = self.dedup.avoided(self.now);
            // A question is about one class.
            let scheme = self.scheme_of(batch[0]).to_string();
            let (chunks, others): (Vec<_>, Vec<_>) = batch.into_iter().partition(|i| self.scheme_of(*i) == scheme);
            others.into_iter().rev().for_each(|index| self.dedup.queue.push_front(index));
            self.mark_asked(&chunks);
            self.ask(scheme, chunks, avoid_pgs);
        }
    }

    /// The scheme of a chunk: of one that was placed already, the one that it has.
    fn scheme_of(&self, index: usize) -> &str {
        self.chunks[index].class.as_ref().map_or(&self.session.scheme, |class| &class.spec)
    }

    /// Asks about `chunks` and reports what was stored meanwhile.
    pub(super) fn ask(&mut self, scheme: String, chunks: Vec<usize>, avoid_pgs: Vec<u64>) {
        let (reported, stored) = self.take_reports();
        let request = AllocateChunks {
            op_id: self.rpcs.op_id(),
            session_id: self.session.lease.id,
            redundancy: scheme,
            chunks: chunks.iter().map(|i| self.chunks[*i].wire_name()).collect(),
            known_map_version: self.view.read().known_version(),
            avoid_pgs,
            stored,
        };
        let asked = Asked { chunks, avoided: !request.avoid_pgs.is_empty(), reported };
        self.rpcs.ask_manager(self.now, &request, Purpose::Ask(asked), &self.options);
    }

    pub(super) fn mark_asked(&mut self, chunks: &[usize]) {
        for &index in chunks {
            self.chunks[index].set_stage(Stage::Asked);
            self.session.note_asked(self.chunks[index].len_bytes);
        }
    }

    pub(super) fn requeue(&mut self, chunks: Vec<usize>) {
        for index in chunks {
            self.chunks[index].set_stage(Stage::Queued);
            self.dedup.queue.push_back(index);
        }
    }

    pub(super) fn on_asked(&mut self, answer: Answer, asked: Asked, waited_ms: u64) {
        assert!(self.dedup.in_flight > 0, "an answer to no dedup question");
        self.dedup.in_flight -= 1;
        let Asked { chunks, avoided, reported } = asked;
        match answer.decode::<AllocateChunks>() {
            Ok((reply, _)) if reply.answers.len() == chunks.len() => {
                self.on_reported(&reported);
                self.on_allocated(reply, chunks);
            }
            Ok((reply, _)) => {
                let message = format!("{} answers to {} chunks", reply.answers.len(), chunks.len());
                self.refused("AllocateChunks", Error::new(Code::Internal, message), waited_ms);
            }
            // Nothing depends on a report.
            Err(_) if chunks.is_empty() => {}
            Err(error) if avoided && matches!(error.code(), Code::TooFewHosts | Code::NoSpace) => {
                self.stay_in_group(chunks, error);
            }
            Err(error) => self.refused("AllocateChunks", error, waited_ms),
        }
    }

    /// There is no group besides those to avoid: chunks that had one try it again, or accept fewer fragments.
    fn stay_in_group(&mut self, chunks: Vec<usize>, error: Error) {
        self.dedup.avoid.clear();
        let (fresh, placed): (Vec<_>, Vec<_>) = chunks.into_iter().partition(|i| self.chunks[*i].chunk_id == 0);
        self.requeue(fresh);
        for index in placed {
            self.chunks[index].set_stage(Stage::Storing);
            if let Some(active) = &mut self.chunks[index].active {
                active.last_error = format!("{}; {}", active.last_error, error.message);
            }
            if !self.settle_degraded(index) {
                self.put_later(index);
            }
        }
    }

    pub(super) fn on_allocated(&mut self, reply: AllocateChunksReply, chunks: Vec<usize>) {
        if let Some(map) = &reply.map {
            self.view.write().merge(map, false);
        }
        let nonsense = |message| Error::new(Code::Internal, message);
        let Some(info) = reply.class else {
            return self.refused("AllocateChunks", nonsense("chunks were allocated without a class"), 0);
        };
        if reply.answers.iter().any(|answer| answer.chunk_id == 0) {
            return self.refused("AllocateChunks", nonsense("a chunk was allocated without an id"), 0);
        }
        let class = self.view.write().class_of(&info);
        let class = match class {
            Ok(class) => class,
            Err(error) => return self.fail(Cause::Policy(error.to_string())),
        };
        for (index, answer) in chunks.into_iter().zip(&reply.answers) {
            self.chunks[index].class = Some(class.clone());
            self.on_chunk_answer(index, answer);
        }
    }

    pub(super) fn on_chunk_answer(&mut self, index: usize, answer: &ChunkAnswer) {
        let chunk = &mut self.chunks[index];
        let all = chunk.class.as_ref().map_or(0, |c| c.fragments());
        let wanted: Vec<u32> = match answer.state() {
            ChunkState::Durable => Vec::new(),
            ChunkState::Incomplete => answer.missing.iter().copied().filter(|f| *f < all).collect(),
            ChunkState::New | ChunkState::Unknown => (0..all).collect(),
        };
        assert!(!chunk.pinned, "chunk {} of a commit is placed anew", chunk.chunk_id);
        (chunk.chunk_id, chunk.pg_id, chunk.epoch) = (answer.chunk_id, answer.pg_id, answer.epoch);
        chunk.told_epoch = 0;
        chunk.durable = wanted.is_empty();
        chunk.missing.clear();
        chunk.receipts.clear();
        chunk.set_stage(Stage::Storing);
        if chunk.durable {
            return self.settle(index);
        }
        if let Some(active) = &mut chunk.active {
            active.frags = wanted.into_iter().map(Frag::waiting).collect();
        }
        self.encode(index);
    }

    /// Starts computing the fragments that have no bytes yet.
    pub(super) fn encode(&mut self, index: usize) {
        let chunk = &self.chunks[index];
        let (Some(active), Some(class)) = (&chunk.active, &chunk.class) else { return };
        let job = Job::Encode {
            class: class.clone(),
            chunk: active.data.clone(),
            wanted: active.frags.iter().map(|f| f.number).collect(),
        };
        self.compute(index, job);
    }

    pub(super) fn compute(&mut self, index: usize, job: Job) {
        let job = self.jobs.start(index, job);
        self.actions.push_back(Action::Compute(job));
    }

    pub(super) fn on_computed(&mut self, done: Numbered<Output>) {
        let Some(index) = self.jobs.finish(done.id) else { return };
        match done.value {
            Output::Encoded(fragments) => {
                let Some(active) = &mut self.chunks[index].active else { return };
                // The chunk may have moved and been answered again meanwhile; its fragments are the same bytes.
                for fragment in fragments {
                    if let Some(frag) = active.frags.iter_mut().find(|f| f.number == fragment.number) {
                        (frag.bytes, frag.crc32c, frag.ready) = (fragment.bytes, fragment.crc32c, true);
                    }
                }
                self.place(index);
            }
            Output::Decoded(decoded) => self.refetch_step(index, |fetch, cx| fetch.on_decoded(decoded, cx)),
            Output::Range(_) => {}
        }
    }
}
