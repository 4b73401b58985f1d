//! Changes of bytes that know no format.

use crate::input::Parts;
use tessera_disk::SplitMix64;

/// Limit of a part after mutations that lengthen it, in bytes.
const PART_MAX: usize = 64 << 10;

/// True in one of `n` cases.
pub fn one_in(rng: &mut SplitMix64, n: u64) -> bool {
    rng.below(n) == 0
}

/// An index below `len`; 0 if there is none.
pub fn index(rng: &mut SplitMix64, len: usize) -> usize {
    rng.below(len as u64) as usize
}

/// A number at which code tends to break, near `now` or near a length.
pub fn number(rng: &mut SplitMix64, now: u64, len: u64) -> u64 {
    match rng.below(10) {
        0 => rng.below(4),
        1 => u64::MAX - rng.below(4),
        2 => (1 << rng.below(64)) - rng.below(2),
        3 => 1_u64 << rng.below(64),
        4 => len.wrapping_sub(8).wrapping_add(rng.below(17)),
        5 => rng.next_u64() >> rng.below(64),
        6 => now ^ (1 << rng.below(64)),
        7 => now.wrapping_mul(2),
        _ => now.wrapping_sub(4).wrapping_add(rng.below(9)),
    }
}

/// Changes some part of `parts` a few times; `others` are parts of another input.
pub fn mutate(parts: &mut Parts, others: &[Vec<u8>], rng: &mut SplitMix64) {
    for _ in 0..1 + rng.below(3) {
        if one_in(rng, 12) {
            arrange(parts, others, rng);
        }
        let at = index(rng, parts.len());
        let Some(part) = parts.get_mut(at) else { return };
        let other = others.get(index(rng, others.len())).map_or(&[][..], Vec::as_slice);
        change(part, other, rng);
    }
}

/// Removes, repeats, exchanges or inserts whole parts.
fn arrange(parts: &mut Parts, others: &[Vec<u8>], rng: &mut SplitMix64) {
    let (a, b) = (index(rng, parts.len()), index(rng, parts.len()));
    match rng.below(4) {
        0 if parts.len() > 1 => _ = parts.remove(a),
        1 if !parts.is_empty() => parts.insert(b, parts[a].clone()),
        2 if !parts.is_empty() => parts.swap(a, b),
        _ if !others.is_empty() => parts.insert(a, others[index(rng, others.len())].clone()),
        _ => {}
    }
}

/// Changes bytes of a part.
pub fn change(part: &mut Vec<u8>, other: &[u8], rng: &mut SplitMix64) {
    let len = part.len();
    let at = index(rng, len);
    let most = (len - at).min(1 << rng.below(12)).max(1);
    let some = 1 + index(rng, most);
    match rng.below(10) {
        0..=1 if len > 0 => part[at] ^= 1 << rng.below(8),
        2 if len > 0 => part[at] = rng.next_u64() as u8,
        3..=5 => field(part, rng),
        6 => part.truncate(at),
        7 if len > 0 => _ = part.drain(at..(at + some).min(len)),
        8 if len > 0 && len < PART_MAX => {
            let copied = part[at..(at + some).min(len)].to_vec();
            let to = index(rng, len + 1);
            part.splice(to..to, copied);
        }
        _ => {
            let from = index(rng, other.len());
            let taken: Vec<u8> = other.iter().skip(from).take(some).copied().collect();
            let end = (at + if one_in(rng, 2) { taken.len() } else { 0 }).min(len);
            part.splice(at..end, taken);
            part.truncate(PART_MAX.max(len));
        }
    }
}

/// Replaces a little-endian number of 2, 4 or 8 bytes.
fn field(part: &mut [u8], rng: &mut SplitMix64) {
    let width = 2 << rng.below(3);
    let Some(room) = part.len().checked_sub(width) else { return };
    // Fields of headers are aligned.
    let at = if one_in(rng, 4) { index(rng, room + 1) } else { index(rng, room / width + 1) * width };
    let mut bytes = [0; 8];
    bytes[..width].copy_from_slice(&part[at..at + width]);
    let number = number(rng, u64::from_le_bytes(bytes), part.len() as u64);
    part[at..at + width].copy_from_slice(&number.to_le_bytes()[..width]);
}
