//! [`XorCode`]: checks the arguments of calls, then runs programs.

use super::bits::BitRow;
use super::dispatch::{self, Slot};
use super::program::{Equations, PacketSum, Program};
use super::solve::Shape;
use super::{Technique, XorCodeError};
use crate::erasure::cache::{Cache, Pattern};
use crate::erasure::{CoderError, check_count, check_numbers};
use crate::isa::Isa;
use std::ops::{Deref, Range};
use std::sync::Arc;

/// A code of k data and m parity fragments made of XOR alone. Cheap to share; all methods take `&self`.
#[derive(Debug)]
pub struct XorCode {
    technique: Technique,
    packet_bytes: usize,
    shape: Shape,
    encoder: Program,
    decoders: Cache<Program>,
}

impl XorCode {
    /// The code by `technique` with stripes of `w` packets of `packet_bytes` (a positive multiple of 8). Each
    /// [`Technique`] lists its valid k, m and w.
    ///
    /// # Errors
    /// The technique has no code with these parameters.
    pub fn new(
        technique: Technique,
        k: usize,
        m: usize,
        w: usize,
        packet_bytes: usize,
    ) -> Result<XorCode, XorCodeError> {
        technique.check(k, m, w)?;
        // A stripe's length must fit `isize`.
        let countable = packet_bytes.checked_mul(w).is_some_and(|stripe| stripe <= isize::MAX as usize);
        if packet_bytes == 0 || !packet_bytes.is_multiple_of(8) || !countable {
            return Err(XorCodeError::PacketBytes { got: packet_bytes });
        }
        let shape = Shape { k, m, w, rows: technique.rows(k, m, w) };
        let nothing_else = Equations { rows: Vec::new(), lost: BitRow::new(shape.words()) };
        let encoder = Program::optimised(w, &wanted_parity(&shape, 0..m * w, &[], &[]), nothing_else);
        Ok(XorCode { technique, packet_bytes, shape, encoder, decoders: Cache::default() })
    }

    /// Data fragments.
    pub fn k(&self) -> usize {
        self.shape.k
    }

    /// Parity fragments.
    pub fn m(&self) -> usize {
        self.shape.m
    }

    /// Numbers of the parity fragments.
    pub(crate) fn parities(&self) -> Range<usize> {
        self.k()..self.k() + self.m()
    }

    /// Packets of a fragment in a stripe.
    pub fn w(&self) -> usize {
        self.shape.w
    }

    /// Bytes in a packet.
    pub fn packet_bytes(&self) -> usize {
        self.packet_bytes
    }

    /// The construction of the bit matrix.
    pub fn technique(&self) -> Technique {
        self.technique
    }

    /// Bytes of a fragment in a stripe; fragment lengths are multiples of this.
    pub fn stripe_bytes(&self) -> usize {
        self.shape.w * self.packet_bytes
    }

    /// Bytes of each fragment of a chunk of `chunk_len` bytes: 1/k of it, rounded up to whole stripes. `None` if that
    /// is more than memory can address.
    pub fn fragment_len(&self, chunk_len: usize) -> Option<usize> {
        chunk_len.div_ceil(self.k()).checked_next_multiple_of(self.stripe_bytes())
    }

    /// Whether packet `i` of parity fragment `parity` contains packet `j` of data fragment `data`. False out of range.
    pub fn bit(&self, parity: usize, i: usize, data: usize, j: usize) -> bool {
        let Shape { k, m, w, rows } = &self.shape;
        parity < *m && i < *w && data < *k && j < *w && rows[parity * w + i].has(data * w + j)
    }

    /// The encoding schedule.
    pub fn encode_program(&self) -> &Program {
        &self.encoder
    }

    /// Fills the m `parity` slices from the k `data` slices; all have the same length, whole stripes.
    ///
    /// # Errors
    /// Counts or lengths do not fit the code.
    pub fn encode(&self, data: &[&[u8]], parity: &mut [&mut [u8]]) -> Result<(), CoderError> {
        self.encode_on(Isa::best(), data, parity)
    }

    /// [`XorCode::encode`] by the kernels of `isa`; the bytes are the same (P10).
    ///
    /// # Errors
    /// As [`XorCode::encode`].
    pub fn encode_on(&self, isa: Isa, data: &[&[u8]], parity: &mut [&mut [u8]]) -> Result<(), CoderError> {
        let len = self.check_stripes(data, parity)?;
        let mut slots: Vec<Slot<'_>> = data.iter().map(|d| Slot::In(d)).collect();
        slots.extend(parity.iter_mut().map(|p| Slot::Out(p)));
        self.run(isa, &self.encoder, &mut slots, len);
        Ok(())
    }

    /// Fills `out[i]` with fragment `wanted[i]` from at least k `present` (number, bytes) fragments; all have the same
    /// length, whole stripes.
    ///
    /// # Errors
    /// Fewer than k fragments are present, or numbers, counts or lengths do not fit the code.
    pub fn reconstruct(
        &self,
        present: &[(usize, &[u8])],
        wanted: &[usize],
        out: &mut [&mut [u8]],
    ) -> Result<(), CoderError> {
        self.reconstruct_on(Isa::best(), present, wanted, out)
    }

    /// [`XorCode::reconstruct`] by the kernels of `isa`; the bytes are the same (P10).
    ///
    /// # Errors
    /// As [`XorCode::reconstruct`].
    pub fn reconstruct_on(
        &self,
        isa: Isa,
        present: &[(usize, &[u8])],
        wanted: &[usize],
        out: &mut [&mut [u8]],
    ) -> Result<(), CoderError> {
        let (mut slots, len) = self.check_reconstruct(present, wanted, out)?;
        let mut missing = Vec::new();
        for (&index, room) in wanted.iter().zip(out.iter_mut()) {
            match &slots[index] {
                Slot::In(bytes) => room.copy_from_slice(bytes),
                _ => {
                    missing.push(index);
                    slots[index] = Slot::Out(room);
                }
            }
        }
        if missing.is_empty() {
            return Ok(());
        }
        let program = self.decode_program(&present.iter().map(|(i, _)| *i).collect::<Vec<_>>(), &missing)?;
        self.run(isa, &program, &mut slots, len);
        Ok(())
    }

    /// The schedule that gives the fragments `missing` from the fragments `present`. The code caches it.
    ///
    /// # Errors
    /// The fragments `present` do not determine the fragments `missing`.
    pub fn decode_program(&self, present: &[usize], missing: &[usize]) -> Result<Arc<Program>, CoderError> {
        // Fragment numbers are below 255, so each fits a byte. Their order does not change the result.
        let narrow = |list: &[usize]| {
            let mut list: Vec<u8> = list.iter().map(|i| *i as u8).collect();
            list.sort_unstable();
            list.into_boxed_slice()
        };
        let pattern = Pattern { sources: narrow(present), wanted: narrow(missing) };
        self.decoders.get_or_make(pattern, || {
            let rows = self.sums(present, missing)?;
            Ok(Program::optimised(self.w(), &rows, self.equations(present)))
        })
    }

    /// The packets of the fragments `present` that sum to each packet of the fragments `missing`, data before parity.
    pub(crate) fn sums(&self, present: &[usize], missing: &[usize]) -> Result<Vec<PacketSum>, CoderError> {
        let Shape { k, m, w, .. } = self.shape;
        let lost: Vec<usize> = (0..k).filter(|f| !present.contains(f)).collect();
        let parities: Vec<usize> = (0..m).filter(|r| present.contains(&(k + r))).take(lost.len()).collect();
        if parities.len() < lost.len() {
            return Err(CoderError::TooFewFragments { needed: k, got: present.len() });
        }
        let solved = self.shape.lost_data(&lost, &parities);
        let solved = solved.ok_or(CoderError::Singular { matrix: self.technique.name() })?;
        let mut rows = Vec::new();
        for (e, fragment) in lost.iter().enumerate().filter(|(_, f)| missing.contains(f)) {
            for packet in 0..w {
                let present = solved[e * w + packet].clone();
                rows.push(PacketSum { target: fragment * w + packet, present });
            }
        }
        for parity in (0..m).filter(|r| missing.contains(&(k + r))) {
            rows.extend(wanted_parity(&self.shape, parity * w..(parity + 1) * w, &lost, &solved));
        }
        Ok(rows)
    }

    /// For each parity packet, the set of it and the packets that sum to it: the set sums to zero.
    fn equations(&self, present: &[usize]) -> Equations {
        let Shape { k, m, w, .. } = self.shape;
        let mut lost = BitRow::new(self.shape.words());
        (0..k + m).filter(|f| !present.contains(f)).flat_map(|f| f * w..(f + 1) * w).for_each(|word| lost.flip(word));
        let rows = wanted_parity(&self.shape, 0..m * w, &[], &[]).into_iter().map(|x| {
            let mut row = x.present;
            row.flip(x.target);
            row
        });
        Equations { rows: rows.collect(), lost }
    }

    pub(super) fn run(&self, isa: Isa, program: &Program, slots: &mut [Slot<'_>], len: usize) {
        dispatch::run(isa, program, self.w(), self.packet_bytes, slots, len);
    }

    /// Checks counts and that lengths are whole stripes; returns the length.
    pub(super) fn check_stripes(
        &self,
        data: &[&[u8]],
        parity: &[impl Deref<Target = [u8]>],
    ) -> Result<usize, CoderError> {
        check_count("data fragments", self.k(), data.len())?;
        check_count("parity fragments", self.m(), parity.len())?;
        let lengths = data.iter().map(|d| d.len()).chain(parity.iter().map(|p| p.len()));
        self.check_lengths(lengths.enumerate())
    }

    /// Checks that all (fragment number, length) pairs have the same length, and returns it; 0 if there are no pairs.
    pub(super) fn check_lengths(&self, mut lengths: impl Iterator<Item = (usize, usize)>) -> Result<usize, CoderError> {
        let Some((_, expected)) = lengths.next() else { return Ok(0) };
        if let Some((index, got)) = lengths.find(|(_, got)| *got != expected) {
            return Err(CoderError::Length { what: "fragment", index, expected, got });
        }
        if !expected.is_multiple_of(self.stripe_bytes()) {
            return Err(CoderError::Stripe { got: expected, stripe_bytes: self.stripe_bytes() });
        }
        Ok(expected)
    }

    /// Checks a call of `reconstruct`; returns the present fragments by number, and their length.
    fn check_reconstruct<'a>(
        &self,
        present: &[(usize, &'a [u8])],
        wanted: &[usize],
        out: &[&mut [u8]],
    ) -> Result<(Vec<Slot<'a>>, usize), CoderError> {
        let by_number = check_numbers(self.k(), self.k() + self.m(), present, wanted, out)?;
        let given = present.iter().map(|(index, bytes)| (*index, bytes.len()));
        let len = self.check_lengths(given.chain(wanted.iter().zip(out).map(|(index, room)| (*index, room.len()))))?;
        Ok((by_number.into_iter().map(|bytes| bytes.map_or(Slot::Absent, Slot::In)).collect(), len))
    }
}

/// Parity packets `rows`, where the packets of the data fragments `lost` are the sums in `solved`.
fn wanted_parity(shape: &Shape, rows: Range<usize>, lost: &[usize], solved: &[BitRow]) -> Vec<PacketSum> {
    let target = |row: usize| shape.k * shape.w + row;
    rows.map(|row| PacketSum { target: target(row), present: shape.lost_parity(row, lost, solved) }).collect()
}
