//! Operations of a code of either family, behind one interface.

use super::{Multiply, XorFragments};
use crate::coder::Coder;
use crate::runtime::Operation;
use std::ops::Range;
use std::sync::Arc;

/// An operation on the fragments of a batch of chunks.
pub(crate) trait Coding: Operation {
    /// Copies source number `place` of a chunk to the input; a source shorter than a fragment is filled up with zeros.
    fn pack(&self, chunk: usize, place: usize, bytes: &[u8], input: &mut [u8]);

    /// Where result number `row` of a chunk lies in the output.
    fn target_range(&self, chunk: usize, row: usize) -> Range<usize>;
}

macro_rules! codings {
    ($($operation:ty),+) => {$(
        impl Coding for $operation {
            fn pack(&self, chunk: usize, place: usize, bytes: &[u8], input: &mut [u8]) {
                self.pack(chunk, place, bytes, input);
            }

            fn target_range(&self, chunk: usize, row: usize) -> Range<usize> {
                self.target_range(chunk, row)
            }
        }
    )+};
}

codings!(Multiply, XorFragments);

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
