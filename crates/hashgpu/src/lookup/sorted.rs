//! Sorted arrays, and levels of them.

use std::hint::select_unpredictable;

/// Searches that run side by side.
const SIDE_BY_SIDE: usize = 16;

/// So many searches take longer one after the other than sixteen side by side do.
const PADDED_MIN: usize = 3;

/// Why an array cannot be searched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LookupError {
    /// A key is not above the one before it.
    #[error("key {index} is not above the one before it: keys must rise strictly; sort and deduplicate them first")]
    Unsorted {
        /// Index of the key.
        index: usize,
    },
    /// More keys than a position can number.
    #[error("{got} keys: an array has at most 4,294,967,295; split it into levels")]
    TooMany {
        /// Keys given.
        got: usize,
    },
    /// More levels than a level index can number.
    #[error("{got} levels: there are at most 65,535")]
    TooManyLevels {
        /// Levels given.
        got: usize,
    },
}

/// Strictly rising keys.
#[derive(Clone, Copy, Debug)]
pub struct Sorted<'a, K> {
    keys: &'a [K],
}

impl<'a, K: Copy + Ord> Sorted<'a, K> {
    /// Wraps keys that rise strictly; checks them once.
    ///
    /// # Errors
    /// The keys do not rise strictly, or there are too many.
    pub fn new(keys: &'a [K]) -> Result<Sorted<'a, K>, LookupError> {
        if u32::try_from(keys.len()).is_err() {
            return Err(LookupError::TooMany { got: keys.len() });
        }
        match keys.windows(2).position(|pair| pair[0] >= pair[1]) {
            Some(before) => Err(LookupError::Unsorted { index: before + 1 }),
            None => Ok(Sorted { keys }),
        }
    }

    /// Wraps keys that the caller knows to rise strictly, and to be fewer than 2^32; nothing is checked. If they do not
    /// rise, answers are wrong.
    pub fn trusted(keys: &'a [K]) -> Sorted<'a, K> {
        Sorted { keys }
    }

    /// The keys.
    pub fn keys(&self) -> &'a [K] {
        self.keys
    }

    /// For each query, the number of keys below it: the position of the first key that is not.
    pub fn lower_bounds(&self, queries: &[K]) -> Vec<u32> {
        let mut out = Vec::with_capacity(queries.len());
        let mut groups = queries.chunks_exact(SIDE_BY_SIDE);
        for group in &mut groups {
            out.extend_from_slice(&self.side_by_side(group));
        }
        let rest = groups.remainder();
        if rest.len() < PADDED_MIN {
            out.extend(self.lower_bounds_reference(rest));
        } else {
            let mut group = [rest[0]; SIDE_BY_SIDE];
            group[..rest.len()].copy_from_slice(rest);
            out.extend_from_slice(&self.side_by_side(&group)[..rest.len()]);
        }
        out
    }

    /// [`Sorted::lower_bounds`], one query after another: the definition (P10).
    pub fn lower_bounds_reference(&self, queries: &[K]) -> Vec<u32> {
        // `new` has checked that positions fit.
        queries.iter().map(|query| self.keys.partition_point(|key| key < query) as u32).collect()
    }

    /// For each query, its position if it is one of the keys.
    pub fn find(&self, queries: &[K]) -> Vec<Option<u32>> {
        let positions = self.lower_bounds(queries).into_iter().zip(queries);
        positions.map(|(at, query)| self.keys.get(at as usize).filter(|key| *key == query).map(|_| at)).collect()
    }

    /// Sixteen queries. All searches halve the same length, so they need no branches and differ only in position.
    fn side_by_side(&self, queries: &[K]) -> [u32; SIDE_BY_SIDE] {
        let mut low = [0usize; SIDE_BY_SIDE];
        let mut len = self.keys.len();
        while len > 1 {
            let half = len / 2;
            for (low, query) in low.iter_mut().zip(queries) {
                // low + half ≤ low + len ≤ keys.len(), by induction. A branch would be mispredicted half the time.
                *low += select_unpredictable(self.keys[*low + half - 1] < *query, half, 0);
            }
            len -= half;
        }
        let mut out = [0u32; SIDE_BY_SIDE];
        for ((out, low), query) in out.iter_mut().zip(low).zip(queries) {
            *out = low as u32 + u32::from(self.keys.get(low).is_some_and(|key| key < query));
        }
        out
    }
}

/// The place of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeyPosition {
    /// Index of the level.
    pub level: u16,
    /// Position among the level's keys.
    pub index: u32,
}

/// Levels of sorted arrays, newest first: the entry of a key in a newer level hides those in older ones.
#[derive(Clone, Debug)]
pub struct Levels<'a, K> {
    levels: Vec<Sorted<'a, K>>,
}

impl<'a, K: Copy + Ord> Levels<'a, K> {
    /// Takes the levels, newest first.
    ///
    /// # Errors
    /// There are too many levels.
    pub fn new(levels: Vec<Sorted<'a, K>>) -> Result<Levels<'a, K>, LookupError> {
        if levels.len() > usize::from(u16::MAX) {
            return Err(LookupError::TooManyLevels { got: levels.len() });
        }
        Ok(Levels { levels })
    }

    /// The levels, newest first.
    pub fn levels(&self) -> &[Sorted<'a, K>] {
        &self.levels
    }

    /// For each query, its place in the newest level that has it. A level is searched only for queries that newer ones
    /// lack.
    pub fn find(&self, queries: &[K]) -> Vec<Option<KeyPosition>> {
        let mut found = vec![None; queries.len()];
        let mut left: Vec<usize> = (0..queries.len()).collect();
        for (level, sorted) in self.levels.iter().enumerate() {
            let asked: Vec<K> = left.iter().map(|i| queries[*i]).collect();
            let mut answers = sorted.find(&asked).into_iter();
            left.retain(|i| {
                found[*i] = answers.next().flatten().map(|index| KeyPosition { level: level as u16, index });
                found[*i].is_none()
            });
        }
        found
    }

    /// [`Levels::find`], one query and one level after another: the definition (P10).
    pub fn find_reference(&self, queries: &[K]) -> Vec<Option<KeyPosition>> {
        let find = |query: &K| {
            self.levels.iter().enumerate().find_map(|(level, sorted)| {
                let index = sorted.keys.binary_search(query).ok()?;
                Some(KeyPosition { level: level as u16, index: index as u32 })
            })
        };
        queries.iter().map(find).collect()
    }
}
