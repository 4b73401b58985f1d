//! The model of a translation page: some lines from places in it to virtual page numbers, and a filter with a bit for each logical page that says
//! whether its line is right. All arithmetic is in whole numbers, so a line that was right once stays right.

/// Lines of a model.
pub const PIECES: usize = 8;
/// Bytes of a line: first place, slope, intercept.
const PIECE_BYTES: u64 = 8;
/// A slope of one.
const ONE: i64 = 1 << 15;
/// The steepest slope.
const STEEPEST: i64 = u16::MAX as i64;

/// A place in a translation page, and the virtual number of the page that its entry names.
pub type Point = (u16, u32);

/// A line, which is used from its first place to that of the next line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Piece {
    from: u16,
    /// Fixed-point number with 15 bits after the point.
    slope: u16,
    /// Virtual number at the first place.
    base: u32,
}

impl Piece {
    fn at(&self, place: u16) -> u32 {
        let rise = (i64::from(self.slope) * i64::from(place - self.from) + ONE / 2) >> 15;
        (i64::from(self.base) + rise) as u32
    }
}

/// Bytes of a model of so many entries.
pub fn model_bytes(entries: u32) -> u64 {
    PIECES as u64 * PIECE_BYTES + u64::from(entries.div_ceil(8))
}

/// A model.
#[derive(Debug, Default)]
pub struct Model {
    pieces: Vec<Piece>,
    filter: Vec<u64>,
    /// Bits that are set.
    exact: u32,
}

impl Model {
    /// Learns points, sorted by place, and forgets what was learned before. If they need more lines than there are, the lines with the most points
    /// stay.
    pub fn train(&mut self, points: &[Point], entries: u32) {
        let (mut found, mut rest) = (Vec::new(), points);
        while !rest.is_empty() {
            let (piece, len) = longest(rest);
            found.push((len, piece));
            rest = &rest[len..];
        }
        found.sort_by_key(|(len, _)| std::cmp::Reverse(*len));
        found.truncate(PIECES);
        self.pieces.clear();
        self.pieces.extend(found.into_iter().map(|(_, piece)| piece));
        self.pieces.sort_unstable_by_key(|piece| piece.from);
        self.filter.clear();
        self.filter.resize(entries.div_ceil(64) as usize, 0);
        self.exact = 0;
        for (place, number) in points {
            self.confirm(*place, *number);
        }
    }

    /// What the lines say of a place, right or wrong.
    fn line(&self, place: u16) -> Option<u32> {
        let piece = self.pieces[..self.pieces.partition_point(|piece| piece.from <= place)].last()?;
        Some(piece.at(place))
    }

    fn is_exact(&self, place: u16) -> bool {
        self.filter.get(usize::from(place) / 64).is_some_and(|word| word >> (place % 64) & 1 != 0)
    }

    /// The virtual number of a place, if the filter says that its line is right.
    pub fn predict(&self, place: u16) -> Option<u32> {
        if self.is_exact(place) { self.line(place) } else { None }
    }

    /// The page of a place has this virtual number now: sets its bit if its line says so.
    pub fn confirm(&mut self, place: u16, number: u32) -> bool {
        let is_right = self.line(place) == Some(number);
        if is_right && !self.is_exact(place) {
            self.filter[usize::from(place) / 64] |= 1 << (place % 64);
            self.exact += 1;
        }
        is_right
    }

    /// The page of a place has moved: clears its bit.
    pub fn clear(&mut self, place: u16) {
        if self.is_exact(place) {
            self.filter[usize::from(place) / 64] &= !(1 << (place % 64));
            self.exact -= 1;
        }
    }

    /// Places that are predicted.
    pub fn exact(&self) -> u32 {
        self.exact
    }

    /// All points that are predicted.
    pub fn points(&self) -> impl Iterator<Item = Point> + '_ {
        let places = 0..(self.filter.len() as u32 * 64).min(1 << 16);
        places.map(|place| place as u16).filter_map(|place| Some((place, self.predict(place)?)))
    }

    /// Checks the number of lines and of bits.
    ///
    /// # Errors
    /// One of them is wrong.
    pub fn check(&self) -> Result<(), String> {
        let bits: u32 = self.filter.iter().map(|word| word.count_ones()).sum();
        match self.pieces.len() <= PIECES && bits == self.exact {
            true => Ok(()),
            false => Err(format!("a model has {} lines and {bits} bits, {} counted", self.pieces.len(), self.exact)),
        }
    }
}

/// The longest line from the first point on that is right for each of its points, and how many these are.
fn longest(points: &[Point]) -> (Piece, usize) {
    let ((from, base), mut len, mut slopes) = (points[0], 1, (0, STEEPEST));
    for (place, number) in &points[1..] {
        let (run, rise) = (i64::from(place - from), i64::from(*number) - i64::from(base));
        // The slopes for which rounding gives the rise.
        let least = (ONE * rise - ONE / 2 + run - 1).div_euclid(run);
        let most = (ONE * rise + ONE / 2 - 1).div_euclid(run);
        let narrowed = (slopes.0.max(least), slopes.1.min(most));
        if narrowed.0 > narrowed.1 {
            break;
        }
        (slopes, len) = (narrowed, len + 1);
    }
    // A line whose slope may be one goes on where the next pages are written one after the other.
    let slope = if len > 1 && slopes.0 <= ONE && ONE <= slopes.1 { ONE } else { (slopes.0 + slopes.1) / 2 };
    (Piece { from, slope: slope as u16, base }, len)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    const ENTRIES: u32 = 1024;

    fn trained(points: &[Point]) -> Model {
        let mut model = Model::default();
        model.train(points, ENTRIES);
        model.check().unwrap();
        model
    }

    proptest! {
        #[test]
        fn what_is_predicted_is_right(
            points in prop::collection::btree_map(0u16..1024, any::<u32>(), 0..200),
            near in prop::collection::btree_map(0u16..1024, 0u32..2000, 0..600),
        ) {
            for points in [points, near] {
                let sorted: Vec<Point> = points.iter().map(|(place, number)| (*place, *number)).collect();
                let model = trained(&sorted);
                for (place, number) in model.points() {
                    prop_assert_eq!(points.get(&place), Some(&number));
                }
                prop_assert!(model.exact() as usize >= points.len().min(PIECES));
            }
        }

        #[test]
        fn pages_in_order_need_few_lines(gaps in prop::collection::vec(1u16..4, 1..8), start in 0u32..1 << 30) {
            // Each part of the page has pages with one gap between them.
            let (mut points, mut place) = (Vec::new(), 0);
            for gap in &gaps {
                for _ in 0..40 {
                    points.push((place, start + points.len() as u32));
                    place += gap;
                }
            }
            prop_assert_eq!(trained(&points).exact() as usize, points.len());
        }

        #[test]
        fn a_filter_follows_each_change(changes in prop::collection::vec((0u16..64, 0u32..64), 0..200)) {
            let mut model = trained(&(0..64).map(|place| (place, u32::from(place))).collect::<Vec<_>>());
            let mut pages: BTreeMap<u16, u32> = (0..64).map(|place| (place, u32::from(place))).collect();
            for (place, number) in changes {
                model.clear(place);
                prop_assert_eq!(model.confirm(place, number), number == u32::from(place));
                pages.insert(place, number);
            }
            model.check().unwrap();
            for (place, number) in pages {
                prop_assert_eq!(model.predict(place), (number == u32::from(place)).then_some(number));
            }
        }
    }

    #[test]
    fn the_longest_lines_stay_if_there_are_too_many() {
        // Twelve runs that lie apart, each longer than the one before.
        let mut points = Vec::new();
        for run in 0..12u32 {
            let first = run * 80;
            points.extend((0..10 + run).map(|i| ((first + i) as u16, run * 10_000 + i)));
        }
        let model = trained(&points);
        let longest: u32 = (4..12).map(|run| 10 + run).sum();
        assert_eq!((model.exact(), model.predict(0), model.predict(11 * 80)), (longest, None, Some(110_000)));
    }
}
