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
        let mut separators = Separators { bytes, is, at: 0, found: 0 };
        separators.found = separators.compare();
        separators
    }

    /// Compares the bytes from `at` on.
    #[inline(always)]
    fn compare(&self) -> u64 {
        let rest = &self.bytes[self.at..];
        match rest.first_chunk() {
            Some(chunk) => bits(chunk, &self.is),
            None => {
                let mut last = [0; WIDTH];
                last[..rest.len()].copy_from_slice(rest);
                bits(&last, &self.is) & ((1 << rest.len()) - 1)
            }
        }
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
            self.found = self.compare();
        }
        let place = self.at + self.found.trailing_zeros() as usize;
        self.found &= self.found - 1;
        Some(place)
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
    }
}
