//! Where separators stand in a block: 64 bytes are compared at once, and the places come out of a word of bits.
//!
//! `memchr` is made for rare bytes: it costs a call for each that is found. Separators stand every few bytes.

use std::array;

/// Bytes that are compared at once.
const WIDTH: usize = 64;

/// The places of bytes for which `is` holds, in their order.
pub(super) struct Separators<'a, F> {
    bytes: &'a [u8],
    is: F,
    /// Where the bytes of `found` begin.
    at: usize,
    /// Separators that were found and not yet returned, a bit each.
    found: u64,
}

impl<'a, F: Fn(u8) -> bool> Separators<'a, F> {
    pub fn new(bytes: &'a [u8], is: F) -> Self {
        let found = bits_from(bytes, 0, &is);
        Separators { bytes, is, at: 0, found }
    }
}

impl<F: Fn(u8) -> bool> Iterator for Separators<'_, F> {
    type Item = usize;

    #[inline(always)]
    fn next(&mut self) -> Option<usize> {
        while self.found == 0 {
            if self.bytes.len() - self.at <= WIDTH {
                return None;
            }
            self.at += WIDTH;
            self.found = bits_from(self.bytes, self.at, &self.is);
        }
        let place = self.at + self.found.trailing_zeros() as usize;
        self.found &= self.found - 1;
        Some(place)
    }
}

/// Calls `each` with the start and the end of every stretch of bytes for which `is` holds.
pub(crate) fn stretches(bytes: &[u8], is: impl Fn(u8) -> bool, mut each: impl FnMut(usize, usize)) {
    let (mut start, mut is_inside, mut before) = (0, false, 0);
    for at in (0..bytes.len()).step_by(WIDTH) {
        let here = bits_from(bytes, at, &is);
        // A bit wherever a stretch starts or ends.
        let mut turns = here ^ (here << 1 | before);
        before = here >> (WIDTH - 1);
        while turns != 0 {
            let place = at + turns.trailing_zeros() as usize;
            turns &= turns - 1;
            if is_inside {
                each(start, place);
            } else {
                start = place;
            }
            is_inside = !is_inside;
        }
    }
    if is_inside {
        each(start, bytes.len());
    }
}

/// Bit i is set if there is a byte i behind `at` and `is` holds for it.
#[inline(always)]
fn bits_from(bytes: &[u8], at: usize, is: impl Fn(u8) -> bool) -> u64 {
    let rest = &bytes[at..];
    match rest.first_chunk() {
        Some(chunk) => bits(chunk, is),
        None => {
            let mut last = [0; WIDTH];
            last[..rest.len()].copy_from_slice(rest);
            bits(&last, is) & ((1 << rest.len()) - 1)
        }
    }
}

/// Bit i is set if `is` holds for byte i. Both loops become vector instructions.
#[inline(always)]
fn bits(chunk: &[u8; WIDTH], is: impl Fn(u8) -> bool) -> u64 {
    let found: [u8; WIDTH] = array::from_fn(|i| u8::from(is(chunk[i])));
    let mut bits = 0;
    for (i, eight) in found.as_chunks::<8>().0.iter().enumerate() {
        // Moves the lowest bit of byte k to bit 56 + k.
        let gathered = u64::from_le_bytes(*eight).wrapping_mul(0x0102_0408_1020_4080) >> 56;
        bits |= gathered << (8 * i);
    }
    bits
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn separators_are_found_where_they_stand(bytes in prop::collection::vec(0u8..6, 0..400), wanted in 0u8..6) {
            let is = |byte: u8| byte == wanted || byte == 3;
            let expected: Vec<usize> = (0..bytes.len()).filter(|i| is(bytes[*i])).collect();
            prop_assert_eq!(Separators::new(&bytes, is).collect::<Vec<_>>(), expected);
        }

        #[test]
        fn stretches_are_what_splitting_leaves(text in "([ab]{0,70}[ \n]{0,70}){0,9}") {
            let mut found = Vec::new();
            stretches(text.as_bytes(), |byte| !byte.is_ascii_whitespace(), |start, end| found.push(&text[start..end]));
            prop_assert_eq!(found, text.split_ascii_whitespace().collect::<Vec<_>>());
        }
    }
}
