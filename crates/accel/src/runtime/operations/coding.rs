//! Operations of a code of either family, behind one interface.

use super::{Multiply, XorFragments};
use crate::coder::Coder;
use crate::runtime::Operation;
use std::ops::Range;
use std::sync::Arc;

/// Where the fragments of a batch of chunks lie: chunk by chunk, those of a chunk one after the other, each padded with
/// zeros.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Fragments of a chunk in the input.
    pub sources: usize,
    /// Fragments of a chunk in the output.
    pub targets: usize,
    /// Bytes of a fragment, with its padding.
    pub fragment: usize,
    /// Chunks.
    pub chunks: usize,
}

impl Layout {
    pub(super) fn input_bytes(&self) -> usize {
        self.chunks * self.sources * self.fragment
    }

    pub(super) fn output_bytes(&self) -> usize {
        self.chunks * self.targets * self.fragment
    }

    /// Source number `place` of a chunk in the input.
    pub(super) fn source_range(&self, chunk: usize, place: usize) -> Range<usize> {
        let start = (chunk * self.sources + place) * self.fragment;
        start..start + self.fragment
    }

    /// Copies source number `place` of a chunk to the input; a source shorter than a fragment is filled up with zeros.
    pub(super) fn pack(&self, chunk: usize, place: usize, bytes: &[u8], input: &mut [u8]) {
        let (start, padding) = input[self.source_range(chunk, place)].split_at_mut(bytes.len());
        start.copy_from_slice(bytes);
        padding.fill(0);
    }

    /// The sources of each chunk, and the bytes for its targets, of which there are some.
    pub(super) fn chunks<'a>(
        &self,
        input: &'a [u8],
        output: &'a mut [u8],
    ) -> impl Iterator<Item = (Vec<&'a [u8]>, Vec<&'a mut [u8]>)> {
        assert!(input.len() == self.input_bytes() && output.len() == self.output_bytes(), "lengths of {self:?}");
        // Where fragments have no bytes, or there are none, there is nothing to do.
        let fragment = self.fragment.max(1);
        let inputs = input.chunks((self.sources * fragment).max(1));
        let both = inputs.zip(output.chunks_mut((self.targets * fragment).max(1)));
        both.map(move |(input, output)| (input.chunks(fragment).collect(), output.chunks_mut(fragment).collect()))
    }
}

/// An operation on the fragments of a batch of chunks.
pub trait Coding: Operation {
    /// Where fragments lie.
    fn layout(&self) -> Layout;

    /// Copies source number `place` of a chunk to the input; a source shorter than a fragment is filled up with zeros.
    fn pack(&self, chunk: usize, place: usize, bytes: &[u8], input: &mut [u8]) {
        self.layout().pack(chunk, place, bytes, input);
    }

    /// Where result number `row` of a chunk lies in the output.
    fn target_range(&self, chunk: usize, row: usize) -> Range<usize> {
        let Layout { targets, fragment, .. } = self.layout();
        let start = (chunk * targets + row) * fragment;
        start..start + fragment
    }
}

fn shared(operation: impl Coding + 'static) -> Arc<dyn Coding> {
    Arc::new(operation)
}

/// Parity of `chunks` chunks with fragments of `len` bytes. `None` if the code does not support this length.
pub(crate) fn encode(coder: &Coder, len: usize, chunks: usize) -> Option<Arc<dyn Coding>> {
    match coder {
        Coder::Rs(code) => Some(shared(Multiply::encode(code, len, chunks))),
        Coder::Xor(code) => XorFragments::encode(code, len, chunks).map(shared),
    }
}

/// Fragments `wanted` from the fragments `sources`, both in rising order. `None` if the sources do not determine them.
pub(crate) fn reconstruct(
    coder: &Coder,
    sources: &[usize],
    wanted: &[usize],
    len: usize,
    chunks: usize,
) -> Option<Arc<dyn Coding>> {
    match coder {
        Coder::Rs(code) => Multiply::reconstruct(code, sources, wanted, len, chunks).map(shared),
        Coder::Xor(code) => XorFragments::reconstruct(code, sources, wanted, len, chunks).map(shared),
    }
}

/// Parity after data fragment `index` changed. Sources: the fragment before, after, and the parity before.
pub(crate) fn update(coder: &Coder, index: usize, len: usize, chunks: usize) -> Option<Arc<dyn Coding>> {
    match coder {
        Coder::Rs(code) => Multiply::update(code, index, len, chunks).map(shared),
        Coder::Xor(code) => XorFragments::update(code, index, len, chunks).map(shared),
    }
}

/// Expected parity plus actual parity: zero everywhere where they are equal. Sources: all k + m fragments.
pub(super) fn differences(coder: &Coder, len: usize, chunks: usize) -> Option<Arc<dyn Coding>> {
    match coder {
        Coder::Rs(code) => Some(shared(Multiply::differences(code, len, chunks))),
        Coder::Xor(code) => XorFragments::differences(code, len, chunks).map(shared),
    }
}
