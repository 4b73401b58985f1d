//! Solves the bit matrix's equations for lost packets.

use super::bits::BitRow;

/// Shape of a code, and its parity rows over the k·w data packets.
#[derive(Debug)]
pub struct Shape {
    pub k: usize,
    pub m: usize,
    pub w: usize,
    pub rows: Vec<BitRow>,
}

impl Shape {
    /// Packets in a stripe of all fragments: packet p of fragment f has number f·w + p.
    pub fn words(&self) -> usize {
        (self.k + self.m) * self.w
    }

    /// For every packet of the data fragments in `lost` (rising), the packets of present fragments that sum to it.
    /// `parities` are as many present parity fragments (0..m). `None` if they do not determine it.
    pub fn lost_data(&self, lost: &[usize], parities: &[usize]) -> Option<Vec<BitRow>> {
        let w = self.w;
        let n = lost.len() * w;
        assert_eq!(lost.len(), parities.len(), "an equation for each lost packet");
        // Equation (parity packet) = (lost packets) + (present packets), with the lost ones on the left: `left` over
        // lost packets, `right` over all packets of the stripe.
        let (mut left, mut right) = (Vec::with_capacity(n), Vec::with_capacity(n));
        for row in parities.iter().flat_map(|r| r * w..(r + 1) * w) {
            let (mut unknown, mut known) = (BitRow::new(n), BitRow::new(self.words()));
            known.flip(self.k * w + row);
            for packet in self.rows[row].ones() {
                match lost.iter().position(|f| *f == packet / w) {
                    Some(e) => unknown.flip(e * w + packet % w),
                    None => known.flip(packet),
                }
            }
            left.push(unknown);
            right.push(known);
        }
        eliminate(&mut left, &mut right)?;
        Some(right)
    }

    /// Parity packet `row` over present packets, with lost data replaced by its sums.
    pub fn lost_parity(&self, row: usize, lost: &[usize], lost_data: &[BitRow]) -> BitRow {
        let mut sum = BitRow::new(self.words());
        for packet in self.rows[row].ones() {
            match lost.iter().position(|f| *f == packet / self.w) {
                Some(e) => sum.add(&lost_data[e * self.w + packet % self.w]),
                None => sum.flip(packet),
            }
        }
        sum
    }
}

/// Gauss–Jordan elimination over GF(2): makes `left` the identity and does the same to `right`.
fn eliminate(left: &mut [BitRow], right: &mut [BitRow]) -> Option<()> {
    let n = left.len();
    for column in 0..n {
        let pivot = (column..n).find(|row| left[*row].has(column))?;
        left.swap(pivot, column);
        right.swap(pivot, column);
        let (pivot_left, pivot_right) = (left[column].clone(), right[column].clone());
        for row in (0..n).filter(|row| *row != column) {
            if left[row].has(column) {
                left[row].add(&pivot_left);
                right[row].add(&pivot_right);
            }
        }
    }
    Some(())
}
