//! Work on a stripe after it was encoded: updating parity after a data fragment changed, and checking parity against
//! its data.

use super::dispatch::{Source, Target, multiply_ragged};
use super::{Code, CoderError, check_count};
use crate::isa::Isa;

/// Bytes of each fragment per step, so that scratch space stays in the first-level cache.
const BLOCK_BYTES: usize = 4096;

impl Code {
    /// Updates parity in place when data fragment `index` changes from `old` to `new`, without reading the other data:
    /// parity_i += c_i · (old + new). All slices are equally long. They may be any equal byte range of the fragments,
    /// so a small write costs only its own length m + 1 times.
    ///
    /// # Errors
    /// There is no such data fragment, or counts or lengths do not fit.
    pub fn update_on(
        &self,
        isa: Isa,
        index: usize,
        old: &[u8],
        new: &[u8],
        parity: &mut [&mut [u8]],
    ) -> Result<(), CoderError> {
        self.check_update(index, old, new, parity)?;
        let mut delta = [0u8; BLOCK_BYTES];
        let mut scratch = vec![0u8; self.m() * BLOCK_BYTES];
        for (number, (old, new)) in old.chunks(BLOCK_BYTES).zip(new.chunks(BLOCK_BYTES)).enumerate() {
            let (start, len) = (number * BLOCK_BYTES, old.len());
            delta[..len].copy_from_slice(old);
            add(&mut delta[..len], new);
            let source = Source { column: index, bytes: &delta[..len] };
            self.product(isa, &[source], &mut scratch, len);
            for (parity, change) in parity.iter_mut().zip(scratch.chunks(BLOCK_BYTES)) {
                add(&mut parity[start..start + len], &change[..len]);
            }
        }
        Ok(())
    }

    /// The parity fragments (0..m) that differ from what `data` gives; empty if none do. Takes the arguments of
    /// [`Code::encode`]. Does not tell whether data or parity is wrong.
    ///
    /// # Errors
    /// As [`Code::encode`].
    pub fn verify_on(
        &self,
        isa: Isa,
        data: &[&[u8]],
        frag_len: usize,
        parity: &[&[u8]],
    ) -> Result<Vec<usize>, CoderError> {
        self.check_encode(data, frag_len, parity)?;
        let mut wrong = vec![false; self.m()];
        let mut scratch = vec![0u8; self.m() * BLOCK_BYTES];
        for start in (0..frag_len).step_by(BLOCK_BYTES) {
            let len = BLOCK_BYTES.min(frag_len - start);
            let part = |d: &'_ [u8]| start.min(d.len())..(start + len).min(d.len());
            let sources: Vec<_> =
                data.iter().enumerate().map(|(column, d)| Source { column, bytes: &d[part(d)] }).collect();
            self.product(isa, &sources, &mut scratch, len);
            for (i, (parity, expected)) in parity.iter().zip(scratch.chunks(BLOCK_BYTES)).enumerate() {
                wrong[i] |= parity[start..start + len] != expected[..len];
            }
        }
        Ok((0..self.m()).filter(|i| wrong[*i]).collect())
    }

    /// All parity rows times `sources`: `len` bytes per row, at multiples of [`BLOCK_BYTES`] in `scratch`.
    fn product(&self, isa: Isa, sources: &[Source<'_>], scratch: &mut [u8], len: usize) {
        let rows = scratch.chunks_mut(BLOCK_BYTES).enumerate();
        let mut targets: Vec<_> = rows.map(|(row, bytes)| Target { row, bytes: &mut bytes[..len] }).collect();
        // Bytes that no source reaches are zero.
        targets.iter_mut().for_each(|t| t.bytes.fill(0));
        multiply_ragged(isa, &self.parity, sources, &mut targets);
    }

    fn check_update(&self, index: usize, old: &[u8], new: &[u8], parity: &[&mut [u8]]) -> Result<(), CoderError> {
        if index >= self.k() {
            return Err(CoderError::Index { index, total: self.k() });
        }
        let expected = old.len();
        if new.len() != expected {
            return Err(CoderError::Length { what: "the new data of fragment", index, expected, got: new.len() });
        }
        check_count("parity fragments", self.m(), parity.len())?;
        match parity.iter().position(|p| p.len() != expected) {
            Some(index) => {
                Err(CoderError::Length { what: "parity fragment", index, expected, got: parity[index].len() })
            }
            None => Ok(()),
        }
    }
}

/// `sum` ⊕= `x`.
pub(crate) fn add(sum: &mut [u8], x: &[u8]) {
    sum.iter_mut().zip(x).for_each(|(sum, x)| *sum ^= x);
}
