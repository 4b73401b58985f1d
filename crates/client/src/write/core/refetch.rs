//! Reads a chunk back after its bytes were freed, when a commit asks for some of its fragments again.

use super::*;
use crate::fetch::{FetchContext, split_answer};
use tessera_wire::data::{GetFragments, GetItem};
use tessera_wire::rpc::Peer;

impl WriteCore {
    pub(super) fn refetch(&mut self, index: usize) {
        let chunk = &self.chunks[index];
        let Some(class) = chunk.class.clone() else { return };
        let info = tessera_wire::ChunkInfo {
            chunk_id: chunk.chunk_id,
            hash: Bytes::copy_from_slice(&chunk.hash),
            len_bytes: chunk.len_bytes,
            class_id: class.class_id,
            pg_id: chunk.pg_id,
            missing: chunk.again.clone(),
        };
        match Fetch::new(info, class, self.now) {
            Ok(fetch) => {
                self.fetches.insert(index, fetch);
                self.refetch_step(index, Fetch::start);
            }
            Err(message) => self.refused("Commit", Error::new(Code::Internal, message), 0),
        }
    }

    pub(super) fn refetch_step(&mut self, index: usize, step: impl FnOnce(&mut Fetch, &mut FetchContext<'_>)) {
        let Some(fetch) = self.fetches.get_mut(&index) else { return };
        for step in fetch.run(self.now, &self.view, &self.options, step) {
            match step {
                Step::Get(want) => self.get_back(index, want),
                Step::Decode(job) => self.compute(index, Job::Decode(job)),
                Step::NeedMap => self.want_map(index),
                Step::Waits(_) | Step::Bad(_) | Step::Late(_) => {}
                Step::Done(parts) => self.refetched(index, parts),
                Step::Failed(cause) => {
                    let (offset, cause) = (self.chunks[index].offset, Box::new(cause));
                    self.fail(Cause::Lost { offset, cause });
                }
            }
        }
    }

    fn get_back(&mut self, index: usize, want: FragmentRequest) {
        let item = GetItem {
            chunk_id: self.chunks[index].chunk_id,
            fragment: want.fragment,
            disk_id: want.disk_id,
            whole: true,
            ..Default::default()
        };
        let request = GetFragments { items: vec![item], hints: Vec::new() };
        let call = Call::new(Peer::Node(want.node_id), 0, &request, Vec::new(), self.options.get_timeout_ms);
        self.rpcs.send_once(self.now, call, Purpose::Refetch { chunk: index, want });
    }

    pub(super) fn on_refetched(&mut self, index: usize, want: FragmentRequest, answer: Answer) {
        let result = split_answer(answer, 1).and_then(|mut all| all.remove(0));
        self.refetch_step(index, |fetch, cx| fetch.on_fragment(&want, result, cx));
    }

    pub(super) fn tick_fetches(&mut self) {
        let indexes: Vec<usize> = self.fetches.keys().copied().collect();
        for index in indexes {
            self.refetch_step(index, Fetch::tick);
        }
    }

    /// The bytes are back: encodes and sends the fragments that the commit asked for.
    fn refetched(&mut self, index: usize, parts: Vec<Bytes>) {
        self.fetches.remove(&index);
        let data: Bytes = parts.concat().into();
        let tree = tessera_accel::hash::tree(&data);
        assert_eq!(
            tree.root.0, self.chunks[index].hash,
            "chunk {} was read back unverified",
            self.chunks[index].chunk_id
        );
        let again = std::mem::take(&mut self.chunks[index].again);
        let frags = again.into_iter().map(Frag::waiting).collect();
        self.chunks.restore_bytes(index, Active::new(data, tree.groups.concat().into(), frags));
        self.encode(index);
    }
}
