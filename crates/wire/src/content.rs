//! What a client and the manager compare of a file instead of its bytes.

/// Describes a file by its pieces in order, each by its length and its name; a hole, however it is divided, by its length and zeros. Files
/// with the same description have the same bytes. Files with the same bytes may have been cut differently.
#[derive(Debug, Clone, Default)]
pub struct Pieces {
    /// Of what was described so far.
    hasher: blake3::Hasher,
    hole_bytes: u64,
    count: usize,
}

/// Bytes of a name, a BLAKE3-256.
const NAME_BYTES: usize = 32;

impl Pieces {
    /// Adds a hole.
    pub fn hole(&mut self, len_bytes: u64) {
        self.hole_bytes = self.hole_bytes.saturating_add(len_bytes);
    }

    /// Adds bytes with this name.
    pub fn named(&mut self, len_bytes: u64, name: &[u8; NAME_BYTES]) {
        self.end_hole();
        self.push(len_bytes, name);
    }

    /// How many were added, without a hole at the end.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count
    }

    /// The file's digest: BLAKE3-256 of the description.
    #[must_use]
    pub fn digest(mut self) -> [u8; 32] {
        self.end_hole();
        self.hasher.finalize().into()
    }

    fn end_hole(&mut self) {
        match std::mem::take(&mut self.hole_bytes) {
            0 => {}
            len => self.push(len, &[0; NAME_BYTES]),
        }
    }

    fn push(&mut self, len_bytes: u64, name: &[u8; NAME_BYTES]) {
        self.hasher.update(&len_bytes.to_le_bytes()).update(name);
        self.count += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holes_are_the_same_however_they_are_divided_and_names_are_not() {
        let of = |pieces: &[(u64, u8)]| {
            let mut all = Pieces::default();
            for (len, name) in pieces {
                if *name == 0 { all.hole(*len) } else { all.named(*len, &[*name; NAME_BYTES]) }
            }
            all.digest()
        };
        assert_eq!(of(&[(1, 0), (2, 0), (5, 7), (0, 0), (4, 0)]), of(&[(3, 0), (5, 7), (2, 0), (2, 0)]));
        let others: [&[(u64, u8)]; 5] = [&[], &[(3, 0)], &[(3, 7)], &[(3, 8)], &[(1, 7), (2, 7)]];
        for (i, one) in others.iter().enumerate() {
            others[..i].iter().for_each(|other| assert_ne!(of(one), of(other)));
        }
    }
}
