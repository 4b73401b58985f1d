//! CONA's filter: the low bits of each key, in the order of the sorted data. A reader that knows a key's possible
//! position compares fragments before it reads the key from flash; of absent keys one in 2^8 or 2^16 passes.

/// The low bits of a key that are kept.
pub trait Fragment: Copy + Eq {
    /// The fragment of a key, or of its hash where keys are not spread evenly.
    fn of(key: u64) -> Self;
}

impl Fragment for u8 {
    fn of(key: u64) -> u8 {
        key as u8
    }
}

impl Fragment for u16 {
    fn of(key: u64) -> u16 {
        key as u16
    }
}

/// Why a query was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FragmentsError {
    /// The numbers of positions and keys differ.
    #[error("{positions} positions for {keys} keys")]
    Count {
        /// Positions given.
        positions: usize,
        /// Keys given.
        keys: usize,
    },
}

/// One fragment per key: 1 or 2 bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fragments<F> {
    fragments: Vec<F>,
}

impl<F: Fragment> Fragments<F> {
    /// Fragments of the keys of a sorted array, in its order.
    pub fn new(keys: &[u64]) -> Fragments<F> {
        Fragments { fragments: keys.iter().map(|key| F::of(*key)).collect() }
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        self.fragments.len()
    }

    /// Whether there are no keys.
    pub fn is_empty(&self) -> bool {
        self.fragments.is_empty()
    }

    /// For each (position, key), whether the key may be at the position. Never false if it is there; false beyond the
    /// end.
    ///
    /// # Errors
    /// [`FragmentsError::Count`] unless there are as many positions as keys.
    pub fn may_hold(&self, positions: &[u32], keys: &[u64]) -> Result<Vec<bool>, FragmentsError> {
        if positions.len() != keys.len() {
            return Err(FragmentsError::Count { positions: positions.len(), keys: keys.len() });
        }
        let holds = |(at, key): (&u32, &u64)| self.fragments.get(*at as usize).is_some_and(|f| *f == F::of(*key));
        Ok(positions.iter().zip(keys).map(holds).collect())
    }
}
