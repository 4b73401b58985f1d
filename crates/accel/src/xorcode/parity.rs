//! Work on a stripe after it was encoded: updating parity after a data fragment changed, and checking parity against
//! its data.

use super::XorCode;
use super::dispatch::Slot;
use super::program::{Program, Step, Word};
use crate::erasure::{CoderError, add, check_count};
use crate::isa::Isa;

impl XorCode {
    /// Updates parity in place when data fragment `index` changes from `old` to `new`, without reading the other data,
    /// by the kernels of `isa`. All slices are equally long: the same whole stripes of each fragment.
    ///
    /// # Errors
    /// There is no such data fragment, or counts or lengths do not fit.
    pub fn update_on(
        &self,
        isa: Isa,
        index: usize,
        old: &[u8],
        new: &[u8],
        parity: &mut [&mut [u8]],
    ) -> Result<(), CoderError> {
        if index >= self.k() {
            return Err(CoderError::Index { index, total: self.k() });
        }
        check_count("parity fragments", self.m(), parity.len())?;
        let parities = parity.iter().enumerate().map(|(r, p)| (self.k() + r, p.len()));
        let len = self.check_lengths([(index, old.len()), (index, new.len())].into_iter().chain(parities))?;
        let (program, mut change) = (self.update_program(index), vec![0u8; self.stripe_bytes()]);
        for start in (0..len).step_by(self.stripe_bytes()) {
            let stripe = start..start + self.stripe_bytes();
            change.copy_from_slice(&old[stripe.clone()]);
            add(&mut change, &new[stripe.clone()]);
            let mut slots = vec![Slot::In(&change)];
            slots.extend(parity.iter_mut().map(|p| Slot::Out(&mut p[stripe.clone()])));
            self.run(isa, &program, &mut slots, self.stripe_bytes());
        }
        Ok(())
    }

    /// Adds to each parity fragment, from number 1 on, the packets that it contains of data fragment `index`, whose
    /// change is fragment 0.
    fn update_program(&self, index: usize) -> Program {
        // Fragments here are at most k + m, which is below 256, and so is w.
        let word = |fragment: usize, packet: usize| Word { fragment: fragment as u8, packet: packet as u8 };
        let step = |row: usize| {
            let target = word(1 + row / self.w(), row % self.w());
            let changed = (0..self.w()).filter(|j| self.bit(row / self.w(), row % self.w(), index, *j));
            Step { target, sources: [target].into_iter().chain(changed.map(|j| word(0, j))).collect() }
        };
        Program::of(self.w(), (0..self.m() * self.w()).map(step).collect())
    }

    /// The parity fragments (0..m) that differ from what `data` gives; empty if none do. All slices are equally long,
    /// whole stripes. Does not tell whether data or parity is wrong.
    ///
    /// # Errors
    /// Counts or lengths do not fit the code.
    pub fn verify_on(&self, isa: Isa, data: &[&[u8]], parity: &[&[u8]]) -> Result<Vec<usize>, CoderError> {
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
