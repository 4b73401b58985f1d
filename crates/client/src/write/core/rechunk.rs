//! Input that was cut before the file's policy was known: a small file is named before it is opened, by the policy it will probably have. When that
//! turns out to be another one, all of the input is still here, and is cut again as the file asks.

use super::*;
use crate::write::input::{CutRule, Cutting, Stretch, is_hole};
use bytes::BytesMut;

/// What decides where a stream is cut: chunking and regions.
fn chunking_of(policy: &Policy) -> (tessera_policy::Chunking, Option<u64>) {
    (policy.chunking, policy.region_bytes())
}

impl WriteCore {
    /// Cuts again, if the policy in effect asks for other cuts than what is here has; whether it did.
    pub(super) fn rechunk_if_needed(&mut self) -> Result<bool, WriteError> {
        let Some(ending) = self.ending else { return Ok(false) };
        let expected = self.params.expect_policy.clone().unwrap_or_default();
        let start = if self.params.mode == CommitMode::Append { self.base_bytes } else { 0 };
        let same = chunking_of(&expected) == chunking_of(&self.policy)
            && self.policy.region_bytes().is_none_or(|region_bytes| start.is_multiple_of(region_bytes));
        // Whoever cut it into pieces of its own at offsets of its own (a patch) had the policy.
        if same || self.extents.len() == 0 || self.params.mode == CommitMode::Patch {
            return Ok(false);
        }
        let refused = |message| WriteError::Policy { file: self.params.file.clone(), message };
        let rule = CutRule::of(&self.policy).map_err(refused)?;
        let Some(bytes) = self.whole_input() else { return Ok(false) };
        let (pieces, _) = Cutting::new(rule, start).feed(&Stretch { bytes, fresh: 0, last: true });
        self.forget_input();
        for (index, (offset, data)) in (0..).zip(pieces) {
            match is_hole(&data) {
                true => self.take_hole(index, offset, data.len() as u64),
                false => self.take_chunk(ChunkReady::new(index, offset, data)),
            }
        }
        debug_assert_eq!(self.input_bytes, ending.size_bytes);
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

    /// As if nothing had been given yet. Nothing of it was stored, or what was is left to its session.
    fn forget_input(&mut self) {
        self.chunks.clear();
        self.by_name.clear();
        self.extents = ExtentQueue::default();
        self.ask.clear();
        self.ask_again.clear();
        self.put_again.clear();
        self.map_wanted.clear();
        self.jobs.clear();
        (self.input_bytes, self.asked_bytes, self.held_bytes, self.unsettled) = (0, 0, 0, 0);
    }
}
