//! BLAKE3's compression function on as many tree nodes at once as a vector has lanes. The nodes may belong to one
//! message or to many: a lane is a leaf with its own counter, length and flags, or a parent with its own flags.
#![allow(unsafe_code, clippy::needless_range_loop)] // Words of the state are indexes, side by side.

use super::reference::{CHUNK_END, CHUNK_START, IV, PERMUTATION};
use crate::isa::Isa;
use crate::simd::{BLOCK_BYTES, MAX_LANES, OnVectors, Vector, on_vectors};
use std::ops::Range;

/// Up to 1,024 bytes of a message.
#[derive(Clone, Copy)]
pub struct Leaf<'a> {
    /// The bytes to compress, block by block.
    pub bytes: &'a [u8],
    /// Its index in its message.
    pub counter: u32,
    /// Extra flags of the last block: [`super::reference::ROOT`], or none.
    pub flags: u32,
}

/// Two neighbouring values, or one without a neighbour.
#[derive(Clone, Copy)]
pub struct Pair {
    /// Index of the left value; the right one follows it.
    pub left: u32,
    /// Flags of the parent's block: [`super::reference::PARENT`], [`super::reference::ROOT`]; none if there is no right
    /// value and the left one stays as it is.
    pub flags: u32,
}

/// Chaining values, stored word by word: the layout that lanes write and parents read.
#[derive(Default)]
pub struct Values {
    /// Word w of value i is at w · `room` + i.
    words: Vec<u32>,
    room: usize,
}

impl Values {
    /// Makes room for `count` values, for the values that idle lanes write, and for the reads of pairs at the end.
    fn make_room(&mut self, count: usize) {
        self.room = count.next_multiple_of(MAX_LANES) + 2 * MAX_LANES;
        self.words.resize(self.words.len().max(8 * self.room), 0);
    }

    /// The bytes of value `i`.
    pub fn get(&self, i: usize) -> [u8; 32] {
        let mut bytes = [0; 32];
        for (w, bytes) in bytes.chunks_exact_mut(4).enumerate() {
            bytes.copy_from_slice(&self.words[w * self.room + i].to_le_bytes());
        }
        bytes
    }
}

/// Prefetch distance of each lane: a CPU's own prefetcher does not follow sixteen streams.
const PREFETCH_BYTES: usize = 256;

/// Chaining values of `leaves`, in order.
pub fn compress_leaves(isa: Isa, leaves: &[Leaf<'_>], out: &mut Values) {
    out.make_room(leaves.len());
    on_vectors(isa, Compress { nodes: Nodes::Leaves(leaves), out });
}

/// The parent value of each of `pairs` of the values `below`, in order.
pub fn compress_pairs(isa: Isa, below: &Values, pairs: &[Pair], out: &mut Values) {
    // A vector of pairs is read whole, from its first pair on.
    assert!(pairs.iter().all(|pair| pair.left as usize + 2 * MAX_LANES <= below.room));
    out.make_room(pairs.len());
    on_vectors(isa, Compress { nodes: Nodes::Pairs(below, pairs), out });
    for (i, pair) in pairs.iter().enumerate().filter(|(_, pair)| pair.flags == 0) {
        for w in 0..8 {
            out.words[w * out.room + i] = below.words[w * below.room + pair.left as usize];
        }
    }
}

/// Nodes that `isa` computes at once.
pub fn count(isa: Isa) -> usize {
    struct Count<'a>(&'a mut usize);
    impl OnVectors for Count<'_> {
        #[inline(always)]
        unsafe fn run<V: Vector>(self) {
            *self.0 = V::LANES;
        }
    }
    let mut lanes = 0;
    on_vectors(isa, Count(&mut lanes));
    lanes
}

/// Chaining values of nodes on vectors. `out` has room for as many values as there are leaves or pairs; the values below
/// have room for two vectors from each pair's left value on.
struct Compress<'a> {
    nodes: Nodes<'a>,
    out: &'a mut Values,
}

enum Nodes<'a> {
    Leaves(&'a [Leaf<'a>]),
    Pairs(&'a Values, &'a [Pair]),
}

impl OnVectors for Compress<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        // SAFETY: the instruction set, by the contract; the room, by the type's; there are at most LANES at a time.
        unsafe {
            match self.nodes {
                Nodes::Leaves(leaves) => {
                    for (i, leaves) in leaves.chunks(V::LANES).enumerate() {
                        put(self.out, i * V::LANES, &side_by_side::<V>(leaves));
                    }
                }
                Nodes::Pairs(below, pairs) => {
                    for (i, pairs) in pairs.chunks(V::LANES).enumerate() {
                        put(self.out, i * V::LANES, &parents::<V>(below, pairs));
                    }
                }
            }
        }
    }
}

/// Writes LANES values from value `at` on.
///
/// # Safety
/// The instruction set; there is room for them.
#[inline(always)]
unsafe fn put<V: Vector>(out: &mut Values, at: usize, value: &[V; 8]) {
    for w in 0..8 {
        // SAFETY: the caller vouches for the set and the room.
        unsafe { value[w].store(out.words.as_mut_ptr().add(w * out.room + at)) };
    }
}

/// Parents of up to LANES pairs.
///
/// # Safety
/// The instruction set; 1 to LANES pairs, and two vectors of words from each pair's left value on.
#[inline(always)]
unsafe fn parents<V: Vector>(below: &Values, pairs: &[Pair]) -> [V; 8] {
    let (first, last) = (pairs[0].left as usize, pairs[pairs.len() - 1].left as usize);
    let mut flags = [0u32; MAX_LANES];
    flags.iter_mut().zip(pairs).for_each(|(flags, pair)| *flags = pair.flags);
    // SAFETY: the caller vouches for the instruction set, and for the words that are read.
    unsafe {
        let mut message = [V::splat(0); 16];
        for w in 0..8 {
            let plane = below.words.as_ptr().add(w * below.room);
            // Pairs rise, in steps of two if each has both values.
            if last - first == 2 * (pairs.len() - 1) {
                (message[w], message[8 + w]) = V::pairs(plane.add(first));
            } else {
                let mut words = [[0u32; MAX_LANES]; 2];
                for (lane, pair) in pairs.iter().enumerate() {
                    let at = plane.add(pair.left as usize);
                    (words[0][lane], words[1][lane]) = (*at, *at.add(1));
                }
                (message[w], message[8 + w]) = (V::load(words[0].as_ptr()), V::load(words[1].as_ptr()));
            }
        }
        let (zero, len) = (V::splat(0), V::splat(BLOCK_BYTES as u32));
        compress(&initial(), &message, [zero, zero], len, V::load(flags.as_ptr()))
    }
}

/// The initial chaining value.
///
/// # Safety
/// The instruction set.
#[inline(always)]
unsafe fn initial<V: Vector>() -> [V; 8] {
    // SAFETY: the caller vouches for the instruction set.
    unsafe {
        let mut value = [V::splat(0); 8];
        for i in 0..8 {
            value[i] = V::splat(IV[i]);
        }
        value
    }
}

/// The lanes' leaves. A lane without a leaf walks the first leaf, and its result is ignored.
struct Walk {
    /// Address of each leaf's blocks.
    at: [*const u8; MAX_LANES],
    counter: [u32; MAX_LANES],
    /// Flags of the last block.
    flags: [u32; MAX_LANES],
    /// Bytes of the shortest and of the longest leaf.
    fewest: usize,
    most: usize,
}

impl Walk {
    /// Takes at least one leaf, at most as many as there are lanes.
    #[inline(always)]
    fn new(leaves: &[Leaf<'_>], lanes: usize) -> Walk {
        let mut walk = Walk {
            at: [leaves[0].bytes.as_ptr(); MAX_LANES],
            counter: [0; MAX_LANES],
            flags: [0; MAX_LANES],
            fewest: usize::MAX,
            most: 0,
        };
        for (lane, leaf) in leaves.iter().enumerate().take(lanes) {
            walk.at[lane] = leaf.bytes.as_ptr();
            walk.counter[lane] = leaf.counter;
            walk.flags[lane] = CHUNK_END | leaf.flags;
            walk.fewest = walk.fewest.min(leaf.bytes.len());
            walk.most = walk.most.max(leaf.bytes.len());
        }
        walk
    }
}

/// Up to LANES leaves, block by block.
///
/// # Safety
/// The instruction set; 1 to LANES leaves.
#[inline(always)]
unsafe fn side_by_side<V: Vector>(leaves: &[Leaf<'_>]) -> [V; 8] {
    let walk = Walk::new(leaves, V::LANES);
    // While every lane has a whole block, and none or all of them their last one, the lanes differ only in bytes,
    // counters and flags.
    let (fewest, most) = (walk.fewest.div_ceil(BLOCK_BYTES).max(1), walk.most.div_ceil(BLOCK_BYTES).max(1));
    let together = walk.fewest == walk.most && walk.most == most * BLOCK_BYTES;
    let alike = if together { most } else { fewest - 1 };
    // SAFETY: the instruction set, by the contract; every leaf has `alike` whole blocks.
    unsafe {
        let counter = [V::load(walk.counter.as_ptr()), V::splat(0)];
        let mut value = initial();
        for block in 0..alike {
            let mut flags = V::splat(if block == 0 { CHUNK_START } else { 0 });
            if block + 1 == most {
                flags = flags.or(V::load(walk.flags.as_ptr()));
            }
            let message = V::transposed(&walk.at, block * BLOCK_BYTES);
            for at in &walk.at[..V::LANES] {
                V::prefetch(at.wrapping_add(block * BLOCK_BYTES + PREFETCH_BYTES));
            }
            value = compress(&value, &message, counter, V::splat(BLOCK_BYTES as u32), flags);
        }
        if alike < most {
            value = to_the_end(leaves, &walk, value, counter, alike..most);
        }
        value
    }
}

/// Blocks in which some lanes may reach their last block or have ended.
///
/// # Safety
/// The instruction set; `walk` is that of the leaves.
#[inline(always)]
unsafe fn to_the_end<V: Vector>(
    leaves: &[Leaf<'_>],
    walk: &Walk,
    mut value: [V; 8],
    counter: [V; 2],
    blocks: Range<usize>,
) -> [V; 8] {
    let mut padded = [[0u8; BLOCK_BYTES]; MAX_LANES];
    for block in blocks {
        // A lane that has no leaf or has ended reads zeros and keeps its value.
        let mut at = [padded[0].as_ptr(); MAX_LANES];
        let (mut len, mut flags, mut active) = ([0u32; MAX_LANES], [0u32; MAX_LANES], [0u32; MAX_LANES]);
        for (lane, leaf) in leaves.iter().enumerate() {
            let rest = leaf.bytes.get(block * BLOCK_BYTES..).unwrap_or_default();
            if rest.is_empty() && block > 0 {
                continue;
            }
            (active[lane], at[lane], len[lane]) = (!0, rest.as_ptr(), BLOCK_BYTES as u32);
            flags[lane] = if block == 0 { CHUNK_START } else { 0 };
            if rest.len() <= BLOCK_BYTES {
                flags[lane] |= walk.flags[lane];
            }
            if rest.len() < BLOCK_BYTES {
                padded[lane][..rest.len()].copy_from_slice(rest);
                (at[lane], len[lane]) = (padded[lane].as_ptr(), rest.len() as u32);
            }
        }
        // SAFETY: the caller vouches for the instruction set; every pointer is to a whole block.
        unsafe {
            let message = V::transposed(&at, 0);
            let next = compress(&value, &message, counter, V::load(len.as_ptr()), V::load(flags.as_ptr()));
            let active = V::load(active.as_ptr());
            for i in 0..8 {
                value[i] = active.choose(next[i], value[i]);
            }
        }
    }
    value
}

/// The message word for each position in each round: the permutation of table 2, applied repeatedly.
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
unsafe fn compress<V: Vector>(value: &[V; 8], message: &[V; 16], counter: [V; 2], len: V, flags: V) -> [V; 8] {
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
/// the 4 × 4 state are rotated by 1, 2 and 3 places.
///
/// # Safety
/// The instruction set.
#[inline(always)]
unsafe fn quarters<V: Vector, const TURN: usize>(
    v: &mut [V; 16],
    message: &[V; 16],
    order: &[usize; 16],
    first: usize,
) {
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
unsafe fn half<V: Vector, const TURN: usize, const L1: i32, const R1: i32, const L2: i32, const R2: i32>(
    v: &mut [V; 16],
    message: &[V; 16],
    order: &[usize; 16],
    first: usize,
) {
    // Written row by row, so that four independent operations are neighbours.
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
