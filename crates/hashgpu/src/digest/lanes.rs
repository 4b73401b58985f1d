//! Feeds messages to lanes: each lane walks one message block by block, and takes the next message at its end.
#![allow(unsafe_code, clippy::needless_range_loop)] // Lanes and words are indexes, side by side.

use super::Digest;
use std::marker::PhantomData;
use tessera_accel::Isa;
use tessera_accel::simd::{BLOCK_BYTES, MAX_LANES, OnVectors, Vector, on_vectors};
use tessera_accel::windows::{Compression, MAX_STATE, digest_of_lane, padding};

/// Digests of all buffers, in order.
pub fn batch<H: Compression>(isa: Isa, buffers: &[&[u8]]) -> Vec<Digest> {
    let mut digests = vec![Digest::default(); buffers.len()];
    on_vectors(isa, Batch { function: PhantomData::<H>, buffers, digests: &mut digests });
    digests
}

struct Batch<'a, H> {
    function: PhantomData<H>,
    buffers: &'a [&'a [u8]],
    digests: &'a mut [Digest],
}

/// A message in progress: its whole blocks, read in place, then its padded end.
#[derive(Clone, Copy)]
struct Lane {
    message: usize,
    at: *const u8,
    /// Blocks left at `at`.
    blocks: usize,
    /// Blocks of padding that follow: 1, 2 or 0.
    end_blocks: usize,
}

/// The last bytes of a message, the one bit, zeros, and the message's length in bits: one or two blocks.
#[derive(Clone, Copy)]
struct End([u8; 2 * BLOCK_BYTES]);

impl End {
    fn of<H: Compression>(message: &[u8]) -> (End, usize) {
        let tail = &message[message.len() / BLOCK_BYTES * BLOCK_BYTES..];
        let (mut end, blocks) = padding::<H>(tail.len(), message.len());
        end[..tail.len()].copy_from_slice(tail);
        (End(end), blocks)
    }
}

impl<H: Compression> OnVectors for Batch<'_, H> {
    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let Batch { buffers, digests, .. } = self;
        let mut ends = [End([0; 2 * BLOCK_BYTES]); MAX_LANES];
        let mut lanes: [Option<Lane>; MAX_LANES] = [None; MAX_LANES];
        // Word by word, lane by lane.
        let mut state = [[0u32; MAX_LANES]; MAX_STATE];
        let mut next = 0;
        loop {
            for lane in 0..V::LANES {
                if lanes[lane].is_none() && next < buffers.len() {
                    let message = buffers[next];
                    let (end, end_blocks) = End::of::<H>(message);
                    ends[lane] = end;
                    lanes[lane] = Some(Lane {
                        message: next,
                        at: message.as_ptr(),
                        blocks: message.len() / BLOCK_BYTES,
                        end_blocks,
                    });
                    for i in 0..H::STATE {
                        state[i][lane] = H::START[i];
                    }
                    next += 1;
                }
                if let Some(lane_now) = lanes[lane].as_mut().filter(|l| l.blocks == 0) {
                    (lane_now.at, lane_now.blocks) = (ends[lane].0.as_ptr(), lane_now.end_blocks);
                    lane_now.end_blocks = 0;
                }
            }
            let Some(blocks) = lanes.iter().flatten().map(|lane| lane.blocks).min() else { return };
            // Idle lanes read the blocks of a busy lane, and their results are ignored.
            let any = lanes.iter().flatten().map(|lane| lane.at).next().unwrap_or(std::ptr::null());
            let mut at = [any; MAX_LANES];
            for lane in 0..V::LANES {
                if let Some(busy) = &lanes[lane] {
                    at[lane] = busy.at;
                }
            }
            // SAFETY: the instruction set, by the contract; every busy lane has as many blocks at its pointer.
            unsafe { run::<H, V>(&mut state, &at, blocks) };
            for lane in 0..V::LANES {
                let Some(busy) = &mut lanes[lane] else { continue };
                (busy.at, busy.blocks) = (busy.at.wrapping_add(blocks * BLOCK_BYTES), busy.blocks - blocks);
                if busy.blocks == 0 && busy.end_blocks == 0 {
                    let digest = digest_of_lane::<H, MAX_LANES>(&state, lane);
                    digests[busy.message] = Digest::new(&digest[..4 * H::STATE]);
                    lanes[lane] = None;
                }
            }
        }
    }
}

/// `blocks` blocks in every lane.
///
/// # Safety
/// The instruction set; that many blocks are readable from each of the first LANES pointers on.
#[inline(always)]
unsafe fn run<H: Compression, V: Vector>(
    state: &mut [[u32; MAX_LANES]; MAX_STATE],
    at: &[*const u8; MAX_LANES],
    blocks: usize,
) {
    // SAFETY: the caller vouches for the instruction set and the pointers.
    unsafe {
        let mut value = [V::splat(0); MAX_STATE];
        for i in 0..H::STATE {
            value[i] = V::load(state[i].as_ptr());
        }
        for number in 0..blocks {
            let mut block = V::transposed(at, number * BLOCK_BYTES);
            if H::BIG_ENDIAN {
                for word in &mut block {
                    *word = word.swap_bytes();
                }
            }
            H::compress(&mut value, &mut block);
        }
        for i in 0..H::STATE {
            value[i].store(state[i].as_mut_ptr());
        }
    }
}
