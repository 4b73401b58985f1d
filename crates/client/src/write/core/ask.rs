//! The dedup question, and what its answers lead to.

use super::*;
use tessera_stripe::{Class, ClassLayout};
use tessera_wire::meta::{AllocateChunks, AllocateChunksReply, ChunkAnswer, ChunkState};

impl WriteCore {
    /// Questions gather while others are on their way, so that batches grow with the load by themselves.
    pub(super) fn pump_asks(&mut self) {
        while !self.ask.is_empty() && self.asks_in_flight < self.options.asks_in_flight {
            let few = self.ask.len() < self.options.ask_chunks / 8;
            if self.asks_in_flight > 0 && few && self.ending.is_none() {
                return;
            }
            let count = self.ask.len().min(self.options.ask_chunks);
            let chunks: Vec<usize> = self.ask.drain(..count).collect();
            self.avoid.retain(|_, until| *until > self.now);
            let avoid_pgs: Vec<u64> = self.avoid.keys().copied().collect();
            for &i in &chunks {
                self.chunks[i].stage = Stage::Asked;
                self.asked_bytes += self.chunks[i].len_bytes;
            }
            let request = AllocateChunks {
                op_id: self.rpcs.op_id(),
                session_id: self.session_id,
                redundancy: self.scheme.clone(),
                chunks: chunks.iter().map(|i| self.chunks[*i].wire_name()).collect(),
                known_map_version: self.view.read().known_version(),
                avoid_pgs,
            };
            let purpose = Purpose::Ask { chunks, avoided: !request.avoid_pgs.is_empty() };
            self.rpcs.ask_manager(self.now, &request, purpose, &self.options);
            self.asks_in_flight += 1;
        }
    }

    pub(super) fn on_asked(&mut self, answer: Answer, chunks: Vec<usize>, avoided: bool, waited_ms: u64) {
        self.asks_in_flight -= 1;
        match answer.decode::<AllocateChunks>() {
            Ok((reply, _)) if reply.answers.len() == chunks.len() => self.on_allocated(reply, chunks),
            Ok((reply, _)) => {
                let message = format!("{} answers to {} chunks", reply.answers.len(), chunks.len());
                self.refused("AllocateChunks", Error::new(Code::Internal, message), waited_ms);
            }
            Err(error) if avoided && matches!(error.kind(), Code::TooFewHosts | Code::NoSpace) => {
                self.nowhere_else(chunks, error);
            }
            Err(error) => self.refused("AllocateChunks", error, waited_ms),
        }
    }

    /// Without the groups that failed there is none: those that had one try it again, or do with less.
    fn nowhere_else(&mut self, chunks: Vec<usize>, error: Error) {
        self.avoid.clear();
        for index in chunks {
            if self.chunks[index].chunk_id == 0 {
                self.chunks[index].stage = Stage::Queued;
                self.ask.push_back(index);
                continue;
            }
            self.chunks[index].stage = Stage::Storing;
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
        let Some(info) = reply.class else {
            let error = Error::new(Code::Internal, "chunks were allocated without a class");
            return self.refused("AllocateChunks", error, 0);
        };
        let class = match Class::new(info.clone()) {
            Ok(class) => {
                let known = self.view.read().class(info.class_id).filter(|known| *known.info() == info);
                known.unwrap_or_else(|| {
                    self.view.write().add_class(&info);
                    Arc::new(class)
                })
            }
            Err(error) => {
                let message = error.to_string();
                return self.fail(WriteError::Policy { file: self.params.file.clone(), message });
            }
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
        (chunk.chunk_id, chunk.pg_id, chunk.epoch) = (answer.chunk_id, answer.pg_id, answer.epoch);
        (chunk.told_epoch, chunk.unwatched_epoch) = (0, 0);
        chunk.durable = wanted.is_empty();
        chunk.missing.clear();
        chunk.stage = Stage::Storing;
        if chunk.durable {
            return self.settle(index);
        }
        if let Some(active) = &mut chunk.active {
            active.frags = wanted.into_iter().map(Frag::waiting).collect();
        }
        self.encode(index);
    }

    /// Has the fragments computed that have no bytes yet.
    pub(super) fn encode(&mut self, index: usize) {
        let chunk = &self.chunks[index];
        let (Some(active), Some(class)) = (&chunk.active, &chunk.class) else { return };
        let job = Job::Encode {
            class: class.clone(),
            chunk: active.data.clone(),
            wanted: active.frags.iter().map(|f| f.number).collect(),
        };
        let id = self.next_job;
        self.next_job += 1;
        self.jobs.insert(id, index);
        self.actions.push_back(WriteAction::Compute(Numbered { id, value: job }));
    }

    pub(super) fn computed(&mut self, done: Numbered<Output>) {
        let Some(index) = self.jobs.remove(&done.id) else { return };
        match done.value {
            Output::Encoded(fragments) => {
                let Some(active) = &mut self.chunks[index].active else { return };
                // A chunk that moved has had another answer meanwhile; its fragments are the same bytes.
                for fragment in fragments {
                    if let Some(frag) = active.frags.iter_mut().find(|f| f.number == fragment.number) {
                        (frag.bytes, frag.crc32c, frag.ready) = (fragment.bytes, fragment.crc32c, true);
                    }
                }
                self.place(index);
            }
            Output::Decoded(decoded) => self.refetch_step(index, |fetch, now, view, options, out| {
                fetch.on_decoded(decoded, now, view, options, out);
            }),
            Output::Range(_) => {}
        }
    }
}
