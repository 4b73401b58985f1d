//! BLAKE3's compression function on as many nodes of trees at once as a vector has lanes. The nodes may belong to
//! one message or to many: a lane is a leaf or a parent, with its own counter, length and flags.
#![allow(unsafe_code, clippy::needless_range_loop)] // Words of the state are indexes, side by side.

use super::reference::{CHUNK_END, CHUNK_START, IV, PERMUTATION};
use crate::isa::{Isa, Level};
use crate::simd::words::{BLOCK_BYTES, MAX_LANES, One, Words};
#[cfg(target_arch = "x86_64")]
use crate::simd::{Avx2, Avx512};

/// A node: up to 1,024 bytes of a message, or the 64 bytes of two children's chaining values.
#[derive(Clone, Copy)]
pub struct Node<'a> {
    /// What is compressed, block by block.
    pub bytes: &'a [u8],
    /// Index of a leaf in its message; 0 for a parent.
    pub counter: u64,
    /// Whether the first and last block are flagged as a leaf's.
    pub leaf: bool,
    /// Flags of the last block: [`super::reference::PARENT`], [`super::reference::ROOT`].
    pub flags: u32,
}

/// How far ahead each lane's bytes are asked for: nothing else would see sixteen streams coming.
const PREFETCH_BYTES: usize = 256;

impl Node<'_> {
    fn blocks(&self) -> usize {
        self.bytes.len().div_ceil(BLOCK_BYTES).max(1)
    }
}

/// Chaining values of `nodes`, in order, into `out`, which has as many entries.
pub fn compress_all(isa: Isa, nodes: &[Node<'_>], out: &mut [[u8; 32]]) {
    assert_eq!(nodes.len(), out.len());
    match isa.level() {
        // SAFETY: a plain word needs no instruction set.
        Level::Reference | Level::Portable => unsafe { all::<One>(nodes, out) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: an Isa of this level exists only if the CPU has AVX2.
        Level::Avx2 => unsafe { avx2(nodes, out) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: an Isa of these levels exists only if the CPU has AVX-512F, BW and VL.
        Level::Avx512 | Level::Gfni => unsafe { avx512(nodes, out) },
    }
}

/// Nodes that are computed at once on `isa`.
pub fn lanes(isa: Isa) -> usize {
    match isa.level() {
        Level::Reference | Level::Portable => One::LANES,
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => Avx2::LANES,
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 | Level::Gfni => Avx512::LANES,
    }
}

/// # Safety
/// AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn avx2(nodes: &[Node<'_>], out: &mut [[u8; 32]]) {
    // SAFETY: the caller vouches for the instruction set.
    unsafe { all::<Avx2>(nodes, out) }
}

/// # Safety
/// AVX-512F and BW.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn avx512(nodes: &[Node<'_>], out: &mut [[u8; 32]]) {
    // SAFETY: the caller vouches for the instruction set.
    unsafe { all::<Avx512>(nodes, out) }
}

/// # Safety
/// The instruction set of `V`.
#[inline(always)]
unsafe fn all<V: Words>(nodes: &[Node<'_>], out: &mut [[u8; 32]]) {
    for (nodes, out) in nodes.chunks(V::LANES).zip(out.chunks_mut(V::LANES)) {
        // SAFETY: the caller vouches for the instruction set; there are at most LANES nodes, and as many outputs.
        unsafe { side_by_side::<V>(nodes, out) };
    }
}

/// What the lanes walk: every lane its node, lanes without a node the first one's (and nobody looks at what they get).
struct Walk {
    /// Where the node's blocks begin.
    at: [*const u8; MAX_LANES],
    /// Where its last block is: in the node, or padded with zeros.
    last: [*const u8; MAX_LANES],
    blocks: [usize; MAX_LANES],
    last_len: [u32; MAX_LANES],
    first_flags: [u32; MAX_LANES],
    last_flags: [u32; MAX_LANES],
    counter_low: [u32; MAX_LANES],
    counter_high: [u32; MAX_LANES],
}

impl Walk {
    /// At least one node, at most as many as lanes; `padded` gets the last blocks that are not whole.
    fn new(nodes: &[Node<'_>], padded: &mut [[u8; BLOCK_BYTES]; MAX_LANES]) -> Walk {
        let nothing = std::ptr::null();
        let mut walk = Walk {
            at: [nothing; MAX_LANES],
            last: [nothing; MAX_LANES],
            blocks: [0; MAX_LANES],
            last_len: [0; MAX_LANES],
            first_flags: [0; MAX_LANES],
            last_flags: [0; MAX_LANES],
            counter_low: [0; MAX_LANES],
            counter_high: [0; MAX_LANES],
        };
        for lane in 0..MAX_LANES {
            let node = nodes.get(lane).unwrap_or(&nodes[0]);
            let blocks = node.blocks();
            let last = &node.bytes[(blocks - 1) * BLOCK_BYTES..];
            walk.at[lane] = node.bytes.as_ptr();
            walk.last[lane] = last.as_ptr();
            if last.len() < BLOCK_BYTES {
                padded[lane] = [0; BLOCK_BYTES];
                padded[lane][..last.len()].copy_from_slice(last);
                walk.last[lane] = padded[lane].as_ptr();
            }
            walk.blocks[lane] = blocks;
            walk.last_len[lane] = last.len() as u32;
            walk.first_flags[lane] = if node.leaf { CHUNK_START } else { 0 };
            walk.last_flags[lane] = if node.leaf { CHUNK_END | node.flags } else { node.flags };
            (walk.counter_low[lane], walk.counter_high[lane]) = (node.counter as u32, (node.counter >> 32) as u32);
        }
        walk
    }
}

/// Up to LANES nodes, block by block.
///
/// # Safety
/// The instruction set; 1 to LANES nodes, and as many outputs.
#[inline(always)]
unsafe fn side_by_side<V: Words>(nodes: &[Node<'_>], out: &mut [[u8; 32]]) {
    let mut padded = [[0u8; BLOCK_BYTES]; MAX_LANES];
    let walk = Walk::new(nodes, &mut padded);
    let blocks = &walk.blocks[..V::LANES];
    let (fewest, most) = (blocks.iter().min().map_or(1, |n| *n), blocks.iter().max().map_or(1, |n| *n));
    // SAFETY: the instruction set, by the contract; blocks that are read are whole blocks of a node, or padded.
    unsafe {
        let counter = [V::load(walk.counter_low.as_ptr()), V::load(walk.counter_high.as_ptr())];
        let mut value = [V::splat(0); 8];
        for i in 0..8 {
            value[i] = V::splat(IV[i]);
        }
        // While every lane has a whole block, and none or all of them their last one, they differ in little but bytes.
        let whole = walk.last_len[..V::LANES].iter().all(|len| *len == BLOCK_BYTES as u32);
        let (first, last) = (V::load(walk.first_flags.as_ptr()), V::load(walk.last_flags.as_ptr()));
        let alike = if whole && fewest == most { most } else { fewest - 1 };
        for block in 0..alike {
            let mut flags = if block == 0 { first } else { V::splat(0) };
            if block + 1 == most {
                flags = flags.or(last);
            }
            let message = V::transposed(&walk.at, block * BLOCK_BYTES);
            V::prefetch(&walk.at, block * BLOCK_BYTES + PREFETCH_BYTES);
            value = compress(&value, &message, counter, V::splat(BLOCK_BYTES as u32), flags);
        }
        for block in alike..most {
            value = near_the_end(&walk, value, counter, block);
        }
        let mut words = [[0u32; MAX_LANES]; 8];
        for i in 0..8 {
            value[i].store(words[i].as_mut_ptr());
        }
        for (lane, out) in out.iter_mut().enumerate() {
            for i in 0..8 {
                out[4 * i..4 * i + 4].copy_from_slice(&words[i][lane].to_le_bytes());
            }
        }
    }
}

/// One block where some lanes may be at their last block, or through.
///
/// # Safety
/// The instruction set; `walk` points to what it says.
#[inline(always)]
unsafe fn near_the_end<V: Words>(walk: &Walk, value: [V; 8], counter: [V; 2], block: usize) -> [V; 8] {
    let mut at = walk.last;
    let (mut len, mut flags, mut active) = ([0u32; MAX_LANES], [0u32; MAX_LANES], [0u32; MAX_LANES]);
    for lane in 0..V::LANES {
        let last = block + 1 >= walk.blocks[lane];
        if !last {
            at[lane] = walk.at[lane].wrapping_add(block * BLOCK_BYTES);
        }
        len[lane] = if last { walk.last_len[lane] } else { BLOCK_BYTES as u32 };
        let first = if block == 0 { walk.first_flags[lane] } else { 0 };
        flags[lane] = first | if last { walk.last_flags[lane] } else { 0 };
        active[lane] = if block < walk.blocks[lane] { !0 } else { 0 };
    }
    // SAFETY: the caller vouches for the instruction set and the pointers; lanes that are through read their last
    // block again.
    unsafe {
        let message = V::transposed(&at, 0);
        let mut next = compress(&value, &message, counter, V::load(len.as_ptr()), V::load(flags.as_ptr()));
        let active = V::load(active.as_ptr());
        for i in 0..8 {
            next[i] = active.choose(next[i], value[i]);
        }
        next
    }
}

/// Which message word goes where in each round: the permutation of table 2, applied again and again.
const SCHEDULE: [[usize; 16]; 7] = {
    let mut schedule = [[0; 16]; 7];
    let mut i = 0;
    while i < 16 {
        schedule[0][i] = i;
        i += 1;
    }
    let mut round = 1;
    while round < 7 {
        let mut i = 0;
        while i < 16 {
            schedule[round][i] = schedule[round - 1][PERMUTATION[i]];
            i += 1;
        }
        round += 1;
    }
    schedule
};

/// The compression function (BLAKE3 paper, §2.2), lane by lane.
///
/// # Safety
/// The instruction set.
#[inline(always)]
unsafe fn compress<V: Words>(value: &[V; 8], message: &[V; 16], counter: [V; 2], len: V, flags: V) -> [V; 8] {
    // SAFETY: the caller vouches for the instruction set.
    unsafe {
        let mut v = [len; 16];
        v[..8].copy_from_slice(value);
        for i in 0..4 {
            v[8 + i] = V::splat(IV[i]);
        }
        (v[12], v[13], v[14], v[15]) = (counter[0], counter[1], len, flags);
        macro_rules! rounds {
            ($($r:literal)*) => {$(
                quarters::<V, 0>(&mut v, message, &SCHEDULE[$r], 0);
                quarters::<V, 1>(&mut v, message, &SCHEDULE[$r], 8);
            )*};
        }
        rounds!(0 1 2 3 4 5 6);
        let mut out = [len; 8];
        for i in 0..8 {
            out[i] = v[i].xor(v[i + 8]);
        }
        out
    }
}

/// Four quarter rounds side by side: on columns with `TURN` = 0, on diagonals with `TURN` = 1, where rows 1, 2 and 3 of
/// the 4 × 4 state are turned by as many places.
///
/// # Safety
/// The instruction set.
#[inline(always)]
unsafe fn quarters<V: Words, const TURN: usize>(v: &mut [V; 16], message: &[V; 16], order: &[usize; 16], first: usize) {
    // SAFETY: the caller vouches for the instruction set.
    unsafe {
        half::<V, TURN, 16, 16, 20, 12>(v, message, order, first);
        half::<V, TURN, 24, 8, 25, 7>(v, message, order, first + 1);
    }
}

/// The first or the second half of four quarter rounds, rotating by `R1` and `R2` (right; `L1` and `L2` left).
///
/// # Safety
/// The instruction set.
#[inline(always)]
unsafe fn half<V: Words, const TURN: usize, const L1: i32, const R1: i32, const L2: i32, const R2: i32>(
    v: &mut [V; 16],
    message: &[V; 16],
    order: &[usize; 16],
    first: usize,
) {
    // Written row by row, so that four independent operations stand side by side.
    // SAFETY: the caller vouches for the instruction set.
    unsafe {
        for i in 0..4 {
            v[i] = v[i].add(message[order[first + 2 * i]]).add(v[4 + (i + TURN) % 4]);
        }
        for i in 0..4 {
            let d = 12 + (i + 3 * TURN) % 4;
            v[d] = v[d].xor(v[i]).rotate::<L1, R1>();
        }
        for i in 0..4 {
            let c = 8 + (i + 2 * TURN) % 4;
            v[c] = v[c].add(v[12 + (i + 3 * TURN) % 4]);
        }
        for i in 0..4 {
            let b = 4 + (i + TURN) % 4;
            v[b] = v[b].xor(v[8 + (i + 2 * TURN) % 4]).rotate::<L2, R2>();
        }
    }
}
