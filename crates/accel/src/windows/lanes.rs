//! Hashes windows side by side. Each lane reads its window in place; masks add the padding that all windows share, so
//! nothing is copied.
#![allow(unsafe_code, clippy::needless_range_loop)] // Lanes and words are indexes, side by side.

use super::{Compression, MAX_STATE, WindowShape, digest_of_lane, padding};
use crate::isa::Isa;
use crate::simd::{BLOCK_BYTES, MAX_LANES, OnVectors, Vector, on_vectors};
use std::marker::PhantomData;

/// See [`WindowShape::append`].
pub fn append<H: Compression>(isa: Isa, windows: &WindowShape, buffer: &[u8], out: &mut Vec<u8>) {
    let count = windows.count(buffer.len());
    let plan = Plan::new::<H>(windows);
    // Lanes read whole blocks. Windows whose last block passes the buffer's end are hashed in a copy of the end.
    let reads = (plan.whole + 1) * BLOCK_BYTES;
    let safe = buffer.len().checked_sub(reads).map_or(0, |room| room / windows.step_bytes + 1).min(count);
    run::<H>(isa, &plan, buffer, safe, out);
    if safe < count {
        let mut end = buffer[safe * windows.step_bytes..].to_vec();
        end.resize(end.len() + reads, 0);
        run::<H>(isa, &plan, &end, count - safe, out);
    }
}

/// What all windows of a call have in common.
struct Plan {
    step: usize,
    width: usize,
    /// Whole blocks of a window.
    whole: usize,
    /// Mask of the window's bytes in the block after them, by word.
    keep: [u32; 16],
    /// Padding: one or two blocks, by word.
    padding: [[u32; 16]; 2],
    padding_blocks: usize,
}

impl Plan {
    fn new<H: Compression>(windows: &WindowShape) -> Plan {
        let rest = windows.window_bytes % BLOCK_BYTES;
        let (padding, padding_blocks) = padding::<H>(rest, windows.window_bytes);
        let mut keep = [0u8; BLOCK_BYTES];
        keep[..rest].fill(!0);
        let word = |bytes: &[u8], i: usize| {
            u32::from_le_bytes([bytes[4 * i], bytes[4 * i + 1], bytes[4 * i + 2], bytes[4 * i + 3]])
        };
        Plan {
            step: windows.step_bytes,
            width: windows.width_bytes,
            whole: windows.window_bytes / BLOCK_BYTES,
            keep: std::array::from_fn(|i| word(&keep, i)),
            padding: std::array::from_fn(|b| std::array::from_fn(|i| word(&padding, 16 * b + i))),
            padding_blocks,
        }
    }
}

/// Hashes the first `count` windows of `buffer`, which reaches a block beyond the whole blocks of the last one.
fn run<H: Compression>(isa: Isa, plan: &Plan, buffer: &[u8], count: usize, out: &mut Vec<u8>) {
    assert!(count == 0 || (count - 1) * plan.step + (plan.whole + 1) * BLOCK_BYTES <= buffer.len());
    on_vectors(isa, Run { function: PhantomData::<H>, plan, buffer, count, out });
}

/// See [`run`], which has checked the length of the buffer.
struct Run<'a, H> {
    function: PhantomData<H>,
    plan: &'a Plan,
    buffer: &'a [u8],
    count: usize,
    out: &'a mut Vec<u8>,
}

impl<H: Compression> OnVectors for Run<'_, H> {
    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let Run { plan, buffer, count, out, .. } = self;
        for first in (0..count).step_by(V::LANES) {
            let busy = V::LANES.min(count - first);
            // Idle lanes hash the first window again, and their results are ignored.
            let mut at = [buffer[first * plan.step..].as_ptr(); MAX_LANES];
            for lane in 1..busy {
                at[lane] = at[0].wrapping_add(lane * plan.step);
            }
            let mut words = [[0u32; MAX_LANES]; MAX_STATE];
            // SAFETY: the instruction set, by the contract; the buffer's length, by the type's.
            unsafe {
                let mut state = [V::splat(0); MAX_STATE];
                for i in 0..H::STATE {
                    state[i] = V::splat(H::START[i]);
                }
                for block in 0..plan.whole {
                    add_block::<H, V>(&mut state, V::transposed(&at, block * BLOCK_BYTES));
                }
                let mut end = V::transposed(&at, plan.whole * BLOCK_BYTES);
                for i in 0..16 {
                    end[i] = end[i].and(V::splat(plan.keep[i])).or(V::splat(plan.padding[0][i]));
                }
                add_block::<H, V>(&mut state, end);
                if plan.padding_blocks == 2 {
                    for i in 0..16 {
                        end[i] = V::splat(plan.padding[1][i]);
                    }
                    add_block::<H, V>(&mut state, end);
                }
                for i in 0..H::STATE {
                    state[i].store(words[i].as_mut_ptr());
                }
            }
            for lane in 0..busy {
                let digest = digest_of_lane::<H, MAX_LANES>(&words, lane);
                out.extend_from_slice(&digest[..plan.width]);
            }
        }
    }
}

/// # Safety
/// The instruction set.
#[inline(always)]
unsafe fn add_block<H: Compression, V: Vector>(state: &mut [V; MAX_STATE], mut block: [V; 16]) {
    // SAFETY: the caller vouches for the instruction set.
    unsafe {
        if H::BIG_ENDIAN {
            for i in 0..16 {
                block[i] = block[i].swap_bytes();
            }
        }
        H::compress(state, &mut block);
    }
}
