//! What garbage collection should cost, by theory.
//!
//! B. Van Houdt: "A mean field model for a class of garbage collection algorithms in flash-based solid state drives",
//! SIGMETRICS 2013. Pages of `N` blocks of `b` pages are overwritten uniformly at random; a share ρ of all pages is
//! valid. For `N` → ∞ the share `m_i` of blocks with `i` valid pages follows an ordinary differential equation, whose
//! fixed point gives the write amplification.
//!
//! Between two collections the host writes `w` pages. Each write invalidates a valid page drawn uniformly, so blocks
//! pass from `i` to `i − 1` valid pages at the rate `w · i · m_i / (ρ b)` for each collection. A collected block
//! comes back with `b` valid pages. Let `p_i` be the probability that the collected block has `i` valid pages. At the
//! fixed point, for `i < b`:
//!
//! `w (i + 1) m_(i+1) / (ρ b) = w i m_i / (ρ b) + p_i`,   `w = b − Σ i p_i`,   `Σ m_i = 1`.
//!
//! The greedy algorithm collects a block with the fewest valid pages. Blocks that reach `k − 1` valid pages are
//! collected at once, so only `p_k` and `p_(k−1) = q` are positive, and `w = b − k + q`. Flow conservation gives
//! `m_i = ρ b / (w i)` for `i > k` and `m_k = q ρ b / (w k)`. With `Σ m_i = 1`:
//!
//! `ρ b (1/(k+1) + … + 1/b + q / k) = b − k + q`,   `0 ≤ q ≤ 1`,
//!
//! which has one solution `(k, q)`. The write amplification is `b / w`.

/// Write amplification of greedy garbage collection under uniform random writes, for blocks of `pages` pages of which
/// the share `used` (ρ, below 1) is valid.
pub fn greedy_write_amplification(pages: u32, used: f64) -> f64 {
    let b = f64::from(pages);
    let mut tail = 0.0;
    for k in (1..=pages).rev() {
        let k = f64::from(k);
        // ρ b (tail + q / k) = b − k + q, solved for q.
        let slope = used * b / k - 1.0;
        let q = (b - k - used * b * tail) / slope;
        if slope > 0.0 && (0.0..=1.0).contains(&q) {
            return b / (b - k + q);
        }
        tail += 1.0 / k;
    }
    1.0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The same model for `d` random choices, by following the differential equation until it rests. For large `d` it
    /// becomes the greedy algorithm.
    fn by_iteration(b: usize, used: f64, d: i32) -> f64 {
        let mut m = vec![0.0; b + 1];
        let low = (used * b as f64).floor() as usize;
        (m[low], m[low + 1]) = (1.0 - (used * b as f64 - low as f64), used * b as f64 - low as f64);
        let mut w = 1.0;
        for _ in 0..400_000 {
            let above: Vec<f64> = (0..=b + 1).map(|i| m[i.min(b)..].iter().sum::<f64>() * f64::from(i <= b)).collect();
            let p: Vec<f64> = (0..=b).map(|i| above[i].powi(d) - above[i + 1].powi(d)).collect();
            w = b as f64 - p.iter().enumerate().map(|(i, p)| i as f64 * p).sum::<f64>();
            let flow = |i: usize| if i > b { 0.0 } else { w * i as f64 * m[i] / (used * b as f64) };
            let change: Vec<f64> = (0..=b).map(|i| flow(i + 1) - flow(i) - p[i] + f64::from(i == b)).collect();
            m.iter_mut().zip(change).for_each(|(m, c)| *m += c * 2e-4);
        }
        b as f64 / w
    }

    #[test]
    fn the_fixed_point_is_where_the_differential_equation_rests() {
        for used in [0.7, 0.85] {
            let (closed, followed) = (greedy_write_amplification(8, used), by_iteration(8, used, 500));
            assert!((closed / followed - 1.0).abs() < 0.01, "{used}: {closed} and {followed}");
        }
    }

    #[test]
    fn larger_blocks_and_fuller_devices_cost_more() {
        assert!(greedy_write_amplification(64, 0.9) > greedy_write_amplification(16, 0.9));
        assert!(greedy_write_amplification(64, 0.9) > greedy_write_amplification(64, 0.8));
        assert!((greedy_write_amplification(1, 0.5) - 1.0).abs() < 1e-9);
    }
}
