//! Rechunks small input. A small file is cut and hashed before it is opened, by the policy that it probably has. If
//! its policy differs, all input is still held, and is cut again as the policy asks.

use super::*;
use crate::write::input::{CutRule, Cutting, Stretch, is_hole};
use bytes::BytesMut;

/// The parts of a policy that decide where a stream is cut: chunking and regions.
fn chunking_of(policy: &Policy) -> (tessera_policy::Chunking, Option<u64>) {
    (policy.chunking, policy.region_bytes())
}

impl WriteCore {
    /// Rechunks if the policy in effect would cut the input differently; returns whether it did.
    pub(super) fn rechunk_if_needed(&mut self) -> Result<bool, Cause> {
        let Some(ending) = self.committer.ending else { return Ok(false) };
        let expected = self.params.expect_policy.clone().unwrap_or_default();
        let start = if self.params.mode == CommitMode::Append { self.session.base_bytes } else { 0 };
        let same = chunking_of(&expected) == chunking_of(&self.session.policy)
            && self.session.policy.region_bytes().is_none_or(|region_bytes| start.is_multiple_of(region_bytes));
        // The shell cuts the pieces of a patch after the opening, by the policy in effect. A pack is one chunk.
        if same || self.extents.len() == 0 || self.params.mode == CommitMode::Patch || self.params.pack.is_some() {
            return Ok(false);
        }
        let rule = CutRule::of(&self.session.policy).map_err(Cause::Policy)?;
        let Some(bytes) = self.whole_input() else { return Ok(false) };
        let (pieces, _) = Cutting::new(rule, start).feed(&Stretch { bytes, fresh: 0, last: true });
        self.forget_input();
        for (index, (offset, data)) in (0..).zip(pieces) {
            match is_hole(&data) {
                true => self.take_hole(index, offset, data.len() as u64),
                false => self.take_chunk(ChunkReady::new(index, offset, data)),
            }
        }
        let (cut, size) = (self.input_bytes, ending.size_bytes);
        assert_eq!(cut, size, "{cut} bytes were cut again, the input has {size}");
        Ok(true)
    }

    /// All of the input in one piece, if its bytes are held.
    fn whole_input(&self) -> Option<Bytes> {
        let mut whole = BytesMut::with_capacity(self.input_bytes as usize);
        for piece in self.extents.iter() {
            match piece.chunk {
                Some(index) => whole.extend_from_slice(&self.chunks[index].active.as_ref()?.data),
                None => whole.resize(whole.len() + piece.len_bytes as usize, 0),
            }
        }
        (whole.len() as u64 == self.input_bytes).then(|| whole.freeze())
    }

    /// Forgets all input. No chunk of it was stored, or its session cleans up.
    fn forget_input(&mut self) {
        self.chunks = ChunkTable::default();
        self.extents = ExtentQueue::default();
        self.dedup.clear();
        self.placer.clear();
        self.jobs.pending.clear();
        self.input_bytes = 0;
        self.session.forget_asked();
    }
}
