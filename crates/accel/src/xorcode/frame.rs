//! Programs on vectors: every target packet is summed in registers, so each source is loaded once for each sum that
//! contains it and nothing is written twice (Jerasure XORs into memory, operation by operation). Work goes stripe by
//! stripe. Where a stripe of all fragments does not fit the second-level cache, it goes by slices of the packets.
#![allow(unsafe_code)]

use super::dispatch::Slot;
use super::program::Program;
use crate::isa::Isa;
use crate::simd::{OnVectors, Vector, load, on_vectors, store};

/// Bytes of all packets that a slice may touch: the size of a second-level cache. Slices for the first level would be
/// so short that memory reads are no longer sequential, which costs more than they save.
const CACHE_BYTES: usize = 512 * 1024;
/// Smallest slice: long enough to keep the overhead of a step's pointers low.
const MIN_SLICE_BYTES: usize = 512;
/// Vectors summed side by side.
const WIDE: usize = 8;

/// See [`super::dispatch::run`], which has checked what this relies on.
pub fn run(isa: Isa, program: &Program, w: usize, packet: usize, slots: &mut [Slot<'_>], len: usize) {
    on_vectors(isa, Run { program, w, packet, slots, len });
}

/// Every fragment that the program names has `len` bytes, a whole number of stripes of `w` packets, and packets below w;
/// targets are `Out`.
struct Run<'a, 'b> {
    program: &'a Program,
    w: usize,
    packet: usize,
    slots: &'a mut [Slot<'b>],
    len: usize,
}

impl OnVectors for Run<'_, '_> {
    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let Run { program, w, packet, slots, len } = self;
        let bases: Vec<*mut u8> = slots
            .iter_mut()
            .map(|slot| match slot {
                Slot::Absent => std::ptr::null_mut(),
                Slot::In(bytes) => bytes.as_ptr().cast_mut(),
                Slot::Out(bytes) => bytes.as_mut_ptr(),
            })
            .collect();
        let words = slots.len() * w;
        let slice = slice_bytes(words, packet);
        // Word i of the program is packet i % w of fragment i / w; `at` holds its address in the current stripe.
        let mut at: Vec<*mut u8> = Vec::with_capacity(words);
        for start in (0..len).step_by(w * packet) {
            at.clear();
            for base in &bases {
                at.extend((0..w).map(|p| base.wrapping_add(start + p * packet)));
            }
            for from in (0..packet).step_by(slice) {
                let bytes = slice.min(packet - from);
                let mut steps = program.flat();
                while let [target, count, rest @ ..] = steps {
                    let (sources, rest) = rest.split_at(*count as usize);
                    // SAFETY: the instruction set, by the contract; the program names words of fragments with `len` bytes, and from + bytes ≤ packet.
                    unsafe { sum::<V>(&at, *target, sources, from, bytes) };
                    steps = rest;
                }
            }
        }
    }
}

/// Bytes of each packet in one slice.
fn slice_bytes(words: usize, packet: usize) -> usize {
    (CACHE_BYTES / words / MIN_SLICE_BYTES * MIN_SLICE_BYTES).max(MIN_SLICE_BYTES).min(packet)
}

/// Target = sum of the sources, `bytes` of them at offset `from` of each packet.
///
/// # Safety
/// The instruction set; all words are indexes of `at`; the bytes are readable, and writable in the target.
#[inline(always)]
unsafe fn sum<V: Vector>(at: &[*mut u8], target: u32, sources: &[u32], from: usize, bytes: usize) {
    let (mut done, end) = (from, from + bytes);
    // SAFETY: the caller vouches for words and bytes; `done` plus the bytes of a step never passes the end.
    unsafe {
        while done + WIDE * V::LEN <= end {
            step::<V, WIDE>(at, target, sources, done, V::LEN);
            done += WIDE * V::LEN;
        }
        while done < end {
            step::<V, 1>(at, target, sources, done, V::LEN.min(end - done));
            done += V::LEN;
        }
    }
}

/// `N` vectors at offset `from`; of a single one only the first `part` bytes.
///
/// # Safety
/// As [`sum`]; there is at least one source.
#[inline(always)]
unsafe fn step<V: Vector, const N: usize>(at: &[*mut u8], target: u32, sources: &[u32], from: usize, part: usize) {
    // SAFETY: the caller vouches for words and bytes.
    unsafe {
        // The only closure here: the compiler would build others without the leaf's instruction set.
        let word = |i: u32| at.get_unchecked(i as usize).add(from);
        let (first, mut rest) = sources.split_first().unwrap_unchecked();
        let first = word(*first);
        let mut sums = [V::splat(0); N];
        for (n, sum) in sums.iter_mut().enumerate() {
            *sum = load::<V, N>(first, n, part);
        }
        while let [a, b, more @ ..] = rest {
            let (a, b) = (word(*a), word(*b));
            for (n, sum) in sums.iter_mut().enumerate() {
                *sum = sum.xor3(load::<V, N>(a, n, part), load::<V, N>(b, n, part));
            }
            rest = more;
        }
        if let [a] = rest {
            let a = word(*a);
            for (n, sum) in sums.iter_mut().enumerate() {
                *sum = sum.xor(load::<V, N>(a, n, part));
            }
        }
        let out = word(target);
        for (n, sum) in sums.into_iter().enumerate() {
            store::<V, N>(sum, out, n, part);
        }
    }
}
