//! Work on a stripe after it was encoded: updating parity after a data fragment changed, and checking parity against
//! its data.

use super::dispatch::Slot;
use super::{XorCallError, XorCode};
use crate::isa::Isa;

impl XorCode {
    /// Updates parity in place when data fragment `index` changes from `old` to `new`, without reading the other data.
    /// All slices are equally long: the same whole stripes of each fragment.
    ///
    /// # Errors
    /// There is no such data fragment, or counts or lengths do not fit.
    pub fn update(&self, index: usize, old: &[u8], new: &[u8], parity: &mut [&mut [u8]]) -> Result<(), XorCallError> {
        let (k, m, w, packet) = (self.k(), self.m(), self.w(), self.packet_bytes());
        if index >= k {
            return Err(XorCallError::Index { index, total: k });
        }
        if parity.len() != m {
            return Err(XorCallError::Count { what: "parity fragments", expected: m, got: parity.len() });
        }
        let lengths = [(index, old.len()), (index, new.len())];
        let parities = parity.iter().enumerate().map(|(r, p)| (k + r, p.len()));
        let len = self.check_lengths(lengths.into_iter().chain(parities))?;
        let mut delta = vec![0u8; self.stripe_bytes()];
        for start in (0..len).step_by(self.stripe_bytes()) {
            let stripe = start..start + self.stripe_bytes();
            delta.copy_from_slice(&old[stripe.clone()]);
            add(&mut delta, &new[stripe]);
            for (row, bits) in self.shape().rows.iter().enumerate() {
                let at = start + row % w * packet;
                let target = &mut parity[row / w][at..at + packet];
                for j in (0..w).filter(|j| bits.has(index * w + j)) {
                    add(target, &delta[j * packet..(j + 1) * packet]);
                }
            }
        }
        Ok(())
    }

    /// The parity fragments (0..m) that differ from what `data` gives; empty if none do. All slices are equally long,
    /// whole stripes. Does not tell whether data or parity is wrong.
    ///
    /// # Errors
    /// Counts or lengths do not fit the code.
    pub fn verify(&self, data: &[&[u8]], parity: &[&[u8]]) -> Result<Vec<usize>, XorCallError> {
        self.verify_on(Isa::best(), data, parity)
    }

    /// [`XorCode::verify`] by the kernels of `isa`.
    ///
    /// # Errors
    /// As [`XorCode::verify`].
    pub fn verify_on(&self, isa: Isa, data: &[&[u8]], parity: &[&[u8]]) -> Result<Vec<usize>, XorCallError> {
        let len = self.check_stripes(data, parity)?;
        let stripe_bytes = self.stripe_bytes();
        let mut wrong = vec![false; self.m()];
        let mut scratch = vec![0u8; self.m() * stripe_bytes];
        for start in (0..len).step_by(stripe_bytes) {
            let mut slots: Vec<Slot<'_>> = data.iter().map(|d| Slot::In(&d[start..start + stripe_bytes])).collect();
            slots.extend(scratch.chunks_mut(stripe_bytes).map(Slot::Out));
            self.run(isa, self.encode_program(), &mut slots, stripe_bytes);
            for (i, (parity, expected)) in parity.iter().zip(scratch.chunks(stripe_bytes)).enumerate() {
                wrong[i] |= parity[start..start + stripe_bytes] != *expected;
            }
        }
        Ok((0..self.m()).filter(|i| wrong[*i]).collect())
    }
}

fn add(sum: &mut [u8], x: &[u8]) {
    sum.iter_mut().zip(x).for_each(|(sum, x)| *sum ^= x);
}
