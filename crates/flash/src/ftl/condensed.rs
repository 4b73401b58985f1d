//! The entries of a translation page, condensed: a bit for each entry says whether a run of consecutive physical pages
//! begins there, and only the first page of each run is kept.

use super::NONE;

/// Entries of one translation page.
#[derive(Debug, Default)]
pub(crate) struct Condensed {
    bits: Vec<u64>,
    /// First physical page of each run; `NONE` begins a run of unmapped entries.
    heads: Vec<u32>,
    len: usize,
}

/// The entry after one in the same run.
fn following(value: u32, steps: u32) -> u32 {
    if value == NONE { NONE } else { value + steps }
}

impl Condensed {
    /// Takes these entries in place of what was there.
    pub fn fill(&mut self, entries: impl ExactSizeIterator<Item = u32>) {
        self.len = entries.len();
        self.bits.clear();
        self.bits.resize(self.len.div_ceil(64), 0);
        self.heads.clear();
        let mut expected = None;
        for (i, value) in entries.enumerate() {
            if expected != Some(value) {
                self.bits[i / 64] |= 1 << (i % 64);
                self.heads.push(value);
            }
            expected = Some(following(value, 1));
        }
    }

    /// Bytes that the entries take.
    pub fn bytes(&self) -> u64 {
        bitmap_bytes(self.len) + 4 * self.heads.len() as u64
    }

    /// Runs.
    #[cfg(test)]
    pub fn runs(&self) -> usize {
        self.heads.len()
    }

    fn begins(&self, i: usize) -> bool {
        self.bits[i / 64] >> (i % 64) & 1 != 0
    }

    /// The run of an entry, and the entry's place in it.
    fn run(&self, i: usize) -> (usize, u32) {
        let word = i / 64;
        let upto = self.bits[word] & (u64::MAX >> (63 - i % 64));
        let before: u32 = self.bits[..word].iter().map(|w| w.count_ones()).sum();
        let mut at = word;
        let mut bits = upto;
        while bits == 0 {
            at -= 1;
            bits = self.bits[at];
        }
        let start = at * 64 + 63 - bits.leading_zeros() as usize;
        ((before + upto.count_ones()) as usize - 1, (i - start) as u32)
    }

    /// An entry.
    pub fn get(&self, i: usize) -> u32 {
        let (run, steps) = self.run(i);
        following(self.heads[run], steps)
    }

    /// Changes an entry; runs are split and joined as needed.
    pub fn set(&mut self, i: usize, value: u32) {
        let next = (i + 1 < self.len).then(|| self.get(i + 1));
        if next.is_some() {
            self.split(i + 1);
        }
        self.split(i);
        let (run, _) = self.run(i);
        self.heads[run] = value;
        if next == Some(following(value, 1)) {
            self.join(i + 1);
        }
        if i > 0 && following(self.get(i - 1), 1) == value {
            self.join(i);
        }
    }

    fn split(&mut self, i: usize) {
        if !self.begins(i) {
            let (run, steps) = self.run(i);
            self.heads.insert(run + 1, following(self.heads[run], steps));
            self.bits[i / 64] |= 1 << (i % 64);
        }
    }

    fn join(&mut self, i: usize) {
        let (run, _) = self.run(i);
        self.heads.remove(run);
        self.bits[i / 64] &= !(1 << (i % 64));
    }

    /// The entries.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        let mut run = 0;
        let mut value = NONE;
        (0..self.len).map(move |i| {
            value = match self.begins(i) {
                true => {
                    run += 1;
                    self.heads[run - 1]
                }
                false => following(value, 1),
            };
            value
        })
    }
}

/// Bytes of a bit for each entry.
pub(crate) fn bitmap_bytes(entries: usize) -> u64 {
    entries.div_ceil(8) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn condensed_entries_are_the_entries(
            len in 1usize..200,
            sets in prop::collection::vec((0usize..200, prop_oneof![Just(NONE), 0u32..40]), 0..300),
        ) {
            let mut model: Vec<u32> = (0..len as u32).map(|i| 100 + i).collect();
            let mut condensed = Condensed::default();
            condensed.fill(model.iter().copied());
            prop_assert_eq!(condensed.runs(), 1);
            for (i, value) in sets {
                model[i % len] = value;
                condensed.set(i % len, value);
                prop_assert_eq!(condensed.get(i % len), value);
            }
            prop_assert_eq!(condensed.iter().collect::<Vec<_>>(), model.clone());
            let mut anew = Condensed::default();
            anew.fill(model.iter().copied());
            prop_assert_eq!(condensed.runs(), anew.runs(), "runs are as few as they can be");
        }
    }
}
