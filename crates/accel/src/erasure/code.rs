//! [`Code`]: checks the arguments of calls, then multiplies matrices.

use super::cache::{Cache, Pattern};
use super::dispatch::{Coefficients, Source, Target, multiply_ragged};
use super::matrix::decode_rows;
use super::{CodeError, CoderError, MAX_FRAGMENTS, Matrix, check_count, check_numbers, data_slice, fragment_len};
use crate::isa::Isa;
use std::ops::Deref;
use std::sync::Arc;

/// A Reed–Solomon code with k data and m parity fragments. Cheap to share; all methods take `&self`.
#[derive(Debug)]
pub struct Code {
    k: usize,
    m: usize,
    matrix: Matrix,
    pub(crate) parity: Arc<Coefficients>,
    decoders: Cache<Coefficients>,
}

impl Code {
    /// The code with `k` data and `m` parity fragments by `matrix`; 1 ≤ k, 1 ≤ m, k + m ≤ 255.
    ///
    /// # Errors
    /// k or m is 0, k + m is too large, or `matrix` is not safe for this k and m.
    pub fn new(k: usize, m: usize, matrix: Matrix) -> Result<Code, CodeError> {
        if k == 0 {
            return Err(CodeError::NoData);
        }
        if m == 0 {
            return Err(CodeError::NoParity);
        }
        if k > MAX_FRAGMENTS || m > MAX_FRAGMENTS || k + m > MAX_FRAGMENTS {
            return Err(CodeError::TooManyFragments { k, m });
        }
        if !matrix.any_k_suffice(k, m) {
            return Err(CodeError::Unsafe { matrix, k, m });
        }
        let parity = Arc::new(Coefficients::new(k, matrix.parity_rows(k, m)));
        Ok(Code { k, m, matrix, parity, decoders: Cache::default() })
    }

    /// Data fragments.
    pub fn k(&self) -> usize {
        self.k
    }

    /// Parity fragments.
    pub fn m(&self) -> usize {
        self.m
    }

    /// Fragments in all, k + m.
    pub fn fragments(&self) -> usize {
        self.k + self.m
    }

    /// Coefficient of data fragment `column` (0..k) in parity fragment `row` (0..m).
    pub fn coefficient(&self, row: usize, column: usize) -> Option<u8> {
        (row < self.m && column < self.k).then(|| self.parity.get(row, column))
    }

    /// Fills the m `parity` slices, each exactly `frag_len` bytes, from the k `data` slices. A data slice may be
    /// shorter; it counts as zeros beyond its end.
    ///
    /// # Errors
    /// Counts or lengths do not fit the code.
    pub fn encode(&self, data: &[&[u8]], frag_len: usize, parity: &mut [&mut [u8]]) -> Result<(), CoderError> {
        self.encode_on(Isa::best(), data, frag_len, parity)
    }

    /// [`Code::encode`] by the kernels of `isa`; the bytes are the same (P10).
    ///
    /// # Errors
    /// As [`Code::encode`].
    pub fn encode_on(
        &self,
        isa: Isa,
        data: &[&[u8]],
        frag_len: usize,
        parity: &mut [&mut [u8]],
    ) -> Result<(), CoderError> {
        self.check_encode(data, frag_len, parity)?;
        let sources: Vec<_> = data.iter().enumerate().map(|(column, bytes)| Source { column, bytes }).collect();
        let mut targets: Vec<_> = parity.iter_mut().enumerate().map(|(row, bytes)| Target { row, bytes }).collect();
        multiply_ragged(isa, &self.parity, &sources, &mut targets);
        Ok(())
    }

    /// Parity of a whole chunk. `parity` becomes m vectors of [`fragment_len`] bytes (their memory is reused).
    /// Returns that length.
    pub fn encode_chunk(&self, chunk: &[u8], parity: &mut Vec<Vec<u8>>) -> usize {
        let frag_len = fragment_len(chunk.len(), self.k);
        parity.resize_with(self.m, Vec::new);
        parity.iter_mut().for_each(|p| p.resize(frag_len, 0));
        let data: Vec<&[u8]> = (0..self.k).map(|index| data_slice(chunk, self.k, index)).collect();
        let mut parity: Vec<&mut [u8]> = parity.iter_mut().map(|p| &mut p[..]).collect();
        self.encode(&data, frag_len, &mut parity).expect("counts and lengths are the code's");
        frag_len
    }

    /// Fills `out[i]` with fragment `wanted[i]`, from any k of the `present` (number, bytes) fragments.
    ///
    /// Data fragments may be shorter than `frag_len` on either side. A present one counts as zeros beyond its end. A
    /// wanted one gets the first bytes that fit, so a chunk can be rebuilt in place. Parity fragments have exactly
    /// `frag_len` bytes. If more than k are present, data fragments are preferred.
    ///
    /// # Errors
    /// Fewer than k fragments are present, or numbers, counts or lengths do not fit the code.
    pub fn reconstruct(
        &self,
        frag_len: usize,
        present: &[(usize, &[u8])],
        wanted: &[usize],
        out: &mut [&mut [u8]],
    ) -> Result<(), CoderError> {
        self.reconstruct_on(Isa::best(), frag_len, present, wanted, out)
    }

    /// [`Code::reconstruct`] by the kernels of `isa`; the bytes are the same (P10).
    ///
    /// # Errors
    /// As [`Code::reconstruct`].
    pub fn reconstruct_on(
        &self,
        isa: Isa,
        frag_len: usize,
        present: &[(usize, &[u8])],
        wanted: &[usize],
        out: &mut [&mut [u8]],
    ) -> Result<(), CoderError> {
        let present = self.check_reconstruct(frag_len, present, wanted, out)?;
        let (mut missing, mut targets) = (Vec::new(), Vec::new());
        for (&index, room) in wanted.iter().zip(out.iter_mut()) {
            match present[index] {
                Some(bytes) => copy_padded(bytes, room),
                None => {
                    targets.push(Target { row: missing.len(), bytes: room });
                    missing.push(index);
                }
            }
        }
        if missing.is_empty() {
            return Ok(());
        }
        let sources: Vec<(usize, &[u8])> =
            present.iter().enumerate().filter_map(|(i, bytes)| Some((i, (*bytes)?))).take(self.k).collect();
        let rows = self.decoder(sources.iter().map(|(i, _)| *i).collect(), missing)?;
        let sources: Vec<_> = sources.iter().enumerate().map(|(column, (_, bytes))| Source { column, bytes }).collect();
        multiply_ragged(isa, &rows, &sources, &mut targets);
        Ok(())
    }

    /// Rows over the k fragments `sources` (rising) that give the fragments `wanted`.
    pub(super) fn decoder(&self, sources: Vec<usize>, wanted: Vec<usize>) -> Result<Arc<Coefficients>, CoderError> {
        // Fragment numbers are below 255, so each fits a byte.
        let narrow = |list: &[usize]| list.iter().map(|i| *i as u8).collect();
        let pattern = Pattern { sources: narrow(&sources), wanted: narrow(&wanted) };
        self.decoders.get_or_make(pattern, || {
            let rows = decode_rows(self.parity.values(), self.k, &sources, &wanted)
                .ok_or(CoderError::Singular { matrix: self.matrix.name() })?;
            Ok(Coefficients::new(self.k, rows))
        })
    }

    pub(super) fn check_encode(
        &self,
        data: &[&[u8]],
        frag_len: usize,
        parity: &[impl Deref<Target = [u8]>],
    ) -> Result<(), CoderError> {
        check_count("data fragments", self.k, data.len())?;
        check_count("parity fragments", self.m, parity.len())?;
        let refused = |what, index, got| CoderError::Length { what, index, expected: frag_len, got };
        if let Some(index) = data.iter().position(|d| d.len() > frag_len) {
            return Err(refused("data fragment", index, data[index].len()));
        }
        match parity.iter().position(|p| p.len() != frag_len) {
            Some(index) => Err(refused("parity fragment", index, parity[index].len())),
            None => Ok(()),
        }
    }

    /// Checks a call of `reconstruct`; returns the present fragments by number.
    fn check_reconstruct<'a>(
        &self,
        frag_len: usize,
        present: &[(usize, &'a [u8])],
        wanted: &[usize],
        out: &[&mut [u8]],
    ) -> Result<Vec<Option<&'a [u8]>>, CoderError> {
        let by_number = check_numbers(self.k, self.fragments(), present, wanted, out)?;
        let given = present.iter().map(|(index, bytes)| ("fragment", *index, bytes.len()));
        let rebuilt = wanted.iter().zip(out).map(|(index, room)| ("room for fragment", *index, room.len()));
        for (what, index, got) in given.chain(rebuilt) {
            // Data may be short, parity may not: a parity byte beyond its end is not known to be zero.
            if got > frag_len || got < frag_len && index >= self.k {
                return Err(CoderError::Length { what, index, expected: frag_len, got });
            }
        }
        Ok(by_number)
    }
}

fn copy_padded(bytes: &[u8], room: &mut [u8]) {
    let shared = bytes.len().min(room.len());
    room[..shared].copy_from_slice(&bytes[..shared]);
    room[shared..].fill(0);
}
