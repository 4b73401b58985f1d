//! Which cells to merge next: a pure function of the cells. Cells are listed from newest to oldest. A merge always
//! takes neighbours, so that age still decides which record of a key wins.

use crate::options::Shape;

/// Level of a folded cell: everything older is in it.
pub(crate) const BOTTOM: u32 = 255;

/// What planning knows about a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct View {
    pub(crate) level: u32,
    /// Bytes of the cell, and for each delete that may hide a record its [`delete_weight`].
    pub(crate) weight: u64,
    /// Being merged.
    pub(crate) busy: bool,
    /// No merge takes it.
    pub(crate) damaged: bool,
}

impl View {
    /// True if a merge may take it.
    pub(crate) fn is_free(&self) -> bool {
        !self.busy && !self.damaged
    }
}

/// A merge of cells `from..=to` into one cell of `level`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) level: u32,
}

/// Weight of a delete that hides a record of `usual` bytes.
///
/// An overwritten record wastes as many bytes as its new version has. A deleted one also makes what lives smaller, to
/// which the bound on waste relates. Let `o` be the bytes of the oldest cell, `w` the bytes of newer ones, `h` the bytes
/// that deletes hide, `f` the fold percentage as a fraction. `o + w <= (1 + f)(o - h)` is wanted, which is
/// `w + (1 + f) h <= f o`. Puts that overwrite larger records make what lives smaller too, by bytes that are not counted:
/// from its bytes alone a small put that overwrites is not told from one of a new key, and if all counted as overwriting,
/// small records beside large ones would bring on a fold of everything each time that some were added.
pub(crate) fn delete_weight(usual: u64, shape: Shape) -> u64 {
    match shape {
        Shape::Doubling { .. } => usual,
        Shape::Folded { fold_percent, .. } => usual.saturating_mul(100 + u64::from(fold_percent)) / 100,
    }
}

/// Merges all free cells, down to the oldest.
pub(crate) fn whole(cells: &[View]) -> Option<Plan> {
    let from = free_tail(cells);
    assert!(cells[from..].iter().all(View::is_free), "a busy or damaged cell is free");
    (from + 1 < cells.len()).then_some(Plan { from, to: cells.len() - 1, level: BOTTOM })
}

/// Index of the first cell of the free run that ends with the oldest cell; the number of cells if the oldest is not free.
fn free_tail(cells: &[View]) -> usize {
    cells.iter().rposition(|c| !c.is_free()).map_or(0, |taken| taken + 1)
}

/// The next merge that is due.
pub(crate) fn next(cells: &[View], shape: Shape) -> Option<Plan> {
    match shape {
        Shape::Doubling { growth } => level_merge(cells, growth as usize, u64::MAX),
        Shape::Folded { growth, fold_percent } => {
            let oldest = cells.last()?;
            let due = oldest.weight.saturating_mul(u64::from(fold_percent)) / 100;
            let fold =
                whole(cells).filter(|plan| cells[plan.from..plan.to].iter().map(|c| c.weight).sum::<u64>() >= due);
            // A merge that the next fold would soon repeat is not worth its writes. Cells above a damaged one are never folded.
            let weight_max = if cells.iter().any(|c| c.damaged) { u64::MAX } else { due / 2 };
            fold.or_else(|| level_merge(&cells[..cells.len() - 1], growth as usize, weight_max))
        }
    }
}

/// Merges `growth` or more neighbours of one level, the smallest level first. Small merges overtake large ones, so a
/// cell may be older than a cell of a higher level. It then counts as a cell of that level; otherwise it would never
/// have neighbours of its level again.
fn level_merge(cells: &[View], growth: usize, weight_max: u64) -> Option<Plan> {
    let (mut from, mut level) = (0, 0);
    while from < cells.len() {
        level = cells[from].level.max(level);
        let same = cells[from..].iter().take_while(|c| c.level <= level && c.is_free()).count();
        if same >= growth {
            // Takes the oldest cells first, so that the rest remain neighbours.
            let first = from + same - growth;
            let weight: u64 = cells[first..from + same].iter().map(|c| c.weight).sum();
            if weight <= weight_max {
                assert!(growth >= 2 && first + growth == from + same, "{growth} neighbours are merged");
                return Some(Plan { from: first, to: from + same - 1, level: (level + 1).min(BOTTOM - 1) });
            }
        }
        from += same.max(1);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates a store with flushes of equal size. Returns bytes written per byte flushed, the maximum number of
    /// cells, and the final weights of the cells.
    fn grow(shape: Shape, flushes: u64) -> (f64, usize, Vec<u64>) {
        let (mut cells, mut written, mut most): (Vec<View>, u64, usize) = (Vec::new(), 0, 0);
        for _ in 0..flushes {
            cells.insert(0, View { level: 0, weight: 100, busy: false, damaged: false });
            written += 100;
            while let Some(plan) = next(&cells, shape) {
                let weight: u64 = cells[plan.from..=plan.to].iter().map(|c| c.weight).sum();
                written += weight;
                cells.drain(plan.from..=plan.to);
                cells.insert(plan.from, View { level: plan.level, weight, busy: false, damaged: false });
            }
            most = most.max(cells.len());
        }
        (written as f64 / (flushes * 100) as f64, most, cells.iter().map(|c| c.weight).collect())
    }

    #[test]
    fn doubling_is_the_papers_binary_counter() {
        let (written, most, weights) = grow(Shape::Doubling { growth: 2 }, 64);
        assert_eq!((written, weights), (7.0, vec![6400]));
        assert_eq!(most, 6);
        assert_eq!(grow(Shape::Doubling { growth: 2 }, 63).2, [100, 200, 400, 800, 1600, 3200]);
        assert_eq!(grow(Shape::Doubling { growth: 4 }, 64).0, 4.0);
    }

    #[test]
    fn folding_writes_little_and_keeps_most_in_the_oldest_cell() {
        for flushes in [50, 70, 128, 500, 1000, 3000] {
            let (written, most, weights) = grow(Shape::Folded { growth: 4, fold_percent: 60 }, flushes);
            println!("{flushes}: {written:.2} bytes a byte, {most} cells, {weights:?}");
            assert!(written < 7.0 && most <= 20, "{flushes}: {written} {most}");
            let newer: u64 = weights[..weights.len() - 1].iter().sum();
            assert!(newer * 10 <= weights.last().unwrap() * 6, "{weights:?}");
        }
    }

    /// The cost of a shape over the second half of `flushes`: bytes written per byte flushed, mean and maximum number
    /// of cells, share of keys in the oldest cell, filter bytes per key, pages read per lookup of an absent and of a
    /// present key.
    fn cost(shape: Shape, flushes: u64) -> [f64; 7] {
        let options = crate::Options { shape, ..crate::Options::default() };
        let (mut cells, mut sums, mut written): (Vec<View>, [f64; 7], u64) = (Vec::new(), [0.0; 7], 0);
        for flush in 0..flushes {
            cells.insert(0, View { level: 0, weight: 100, busy: false, damaged: false });
            written += 100;
            while let Some(plan) = next(&cells, shape) {
                let weight: u64 = cells[plan.from..=plan.to].iter().map(|c| c.weight).sum();
                written += weight;
                cells.drain(plan.from..=plan.to);
                cells.insert(plan.from, View { level: plan.level, weight, busy: false, damaged: false });
            }
            sums[2] = sums[2].max(cells.len() as f64);
            if flush < flushes / 2 {
                continue;
            }
            let all: u64 = cells.iter().map(|c| c.weight).sum();
            let share = |weight: u64| weight as f64 / all as f64 / (flushes - flushes / 2) as f64;
            let (mut false_reads, last) = (0.0, cells.len() - 1);
            for (at, cell) in cells.iter().enumerate() {
                let bits = options.filter_bits_of(cell.level, at == last);
                sums[4] += share(cell.weight) * f64::from(bits + 2) / 8.0;
                sums[6] += share(cell.weight) * (1.0 + false_reads);
                false_reads += 0.5_f64.powi(bits as i32);
            }
            sums[1] += share(all) * cells.len() as f64;
            sums[3] += share(cells[last].weight);
            sums[5] += share(all) * false_reads;
        }
        sums[0] = written as f64 / (flushes * 100) as f64;
        sums
    }

    /// The table of docs/cona.md: `cargo test -p tessera-cona plan -- --nocapture`.
    #[test]
    fn what_shapes_cost() {
        let doubling = |growth| Shape::Doubling { growth };
        let folded = |growth, fold_percent| Shape::Folded { growth, fold_percent };
        let shapes = [
            doubling(2),
            doubling(3),
            doubling(4),
            folded(2, 50),
            folded(4, 25),
            folded(4, 50),
            folded(4, 100),
            folded(8, 50),
        ];
        for shape in shapes {
            for flushes in [64, 400, 1600] {
                let [written, mean, most, oldest, filter, absent, present] = cost(shape, flushes);
                println!(
                    "{shape:?} {flushes}: {written:.1} | {mean:.1} ({most}) | {:.0} % | {filter:.3} | {absent:.3} | {present:.4}",
                    oldest * 100.0
                );
                assert!(present < 1.02 && absent < 0.05 && filter < 1.2 && written < 11.0);
            }
        }
        let [written, _, most, oldest, filter, ..] = cost(crate::Options::default().shape, 1600);
        assert!(written < 7.5 && most <= 14.0 && oldest > 0.75 && filter < 1.0);
    }

    /// Work arrives faster than it is done, and small merges overtake large ones, as in the store. In the end few cells
    /// must remain.
    #[test]
    fn a_backlog_leaves_no_cell_behind() {
        for (shape, most) in [
            (Shape::Doubling { growth: 2 }, 12),
            (Shape::Doubling { growth: 4 }, 24),
            (crate::Options::default().shape, 24),
        ] {
            // Each cell, with the number of the merge it is in, if any; and the merges with the weight left to merge.
            let mut cells: Vec<(View, u64)> = Vec::new();
            let mut merges: Vec<(u64, u64, u32)> = Vec::new();
            let mut numbers = 0_u64;
            for step in 0..20_000_u64 {
                if step < 1500 {
                    cells.insert(0, (View { level: 0, weight: 100, busy: false, damaged: false }, 0));
                }
                while let Some(plan) = next(&cells.iter().map(|(view, _)| *view).collect::<Vec<_>>(), shape) {
                    numbers += 1;
                    let taken = &mut cells[plan.from..=plan.to];
                    taken.iter_mut().for_each(|(view, merge)| (view.busy, *merge) = (true, numbers));
                    merges.push((taken.iter().map(|(view, _)| view.weight).sum(), numbers, plan.level));
                }
                merges.sort_unstable();
                let Some(first) = merges.first_mut() else { continue };
                first.0 = first.0.saturating_sub(300);
                if first.0 == 0 {
                    let (_, number, level) = merges.remove(0);
                    let at = cells.iter().position(|(_, merge)| *merge == number).unwrap();
                    let weight = cells.iter().filter(|(_, merge)| *merge == number).map(|(view, _)| view.weight).sum();
                    cells.retain(|(_, merge)| *merge != number);
                    cells.insert(at, (View { level, weight, busy: false, damaged: false }, 0));
                }
            }
            let weights: Vec<u64> = cells.iter().map(|(view, _)| view.weight).collect();
            assert!(merges.is_empty() && cells.len() <= most, "{shape:?}: {weights:?}");
            assert_eq!(weights.iter().sum::<u64>(), 150_000);
        }
    }

    #[test]
    fn busy_cells_are_left_alone_and_neighbours_stay_neighbours() {
        let cell = |level, busy| View { level, weight: 100, busy, damaged: false };
        let shape = Shape::Doubling { growth: 2 };
        assert_eq!(next(&[cell(0, false), cell(0, true), cell(0, false)], shape), None);
        assert_eq!(
            next(&[cell(0, false), cell(0, false), cell(0, true)], shape),
            Some(Plan { from: 0, to: 1, level: 1 })
        );
        assert_eq!(
            whole(&[cell(0, false), cell(3, true), cell(1, false), cell(2, false)]),
            Some(Plan { from: 2, to: 3, level: BOTTOM })
        );
        assert_eq!(whole(&[cell(0, false), cell(3, true)]), None);
        assert_eq!(next(&[], Shape::Folded { growth: 4, fold_percent: 60 }), None);
    }

    /// Nothing is folded into a damaged cell. Newer ones are still merged among themselves, however much they outweigh it.
    #[test]
    fn cells_above_a_damaged_one_stay_few() {
        let shape = crate::Options::default().shape;
        let mut cells = vec![View { level: BOTTOM, weight: 100, busy: false, damaged: true }];
        for flushes in 1..=1000 {
            cells.insert(0, View { level: 0, weight: 100, busy: false, damaged: false });
            while let Some(plan) = next(&cells, shape) {
                let weight = cells[plan.from..=plan.to].iter().map(|c| c.weight).sum();
                cells.drain(plan.from..=plan.to);
                cells.insert(plan.from, View { level: plan.level, weight, busy: false, damaged: false });
            }
            assert!(cells.len() <= 20, "{} cells after {flushes} flushes", cells.len());
        }
        assert!(cells.last().is_some_and(|oldest| oldest.damaged && oldest.weight == 100));
    }
}
