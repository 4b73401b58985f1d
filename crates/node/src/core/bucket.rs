//! A token bucket that allows debt: work starts while there are tokens, and then pays its whole cost.

/// One token is one byte. The bucket holds at most a quarter of a second's worth.
#[derive(Debug, Default)]
pub(super) struct TokenBucket {
    bytes_per_s: u64,
    tokens: i64,
    filled_ns: i64,
}

impl TokenBucket {
    pub(super) fn new(bytes_per_s: u64) -> Self {
        TokenBucket { bytes_per_s, tokens: 1, filled_ns: 0 }
    }

    /// Changes the rate; 0: no bound. Debt remains.
    pub(super) fn set_rate(&mut self, bytes_per_s: u64) {
        self.bytes_per_s = bytes_per_s;
    }

    /// True if work may start.
    pub(super) fn is_ready(&mut self, now_ns: i64) -> bool {
        self.fill(now_ns);
        self.bytes_per_s == 0 || self.tokens > 0
    }

    /// Pays for work.
    pub(super) fn take(&mut self, bytes: u64) {
        if self.bytes_per_s > 0 {
            self.tokens = self.tokens.saturating_sub(i64::try_from(bytes).unwrap_or(i64::MAX));
        }
    }

    /// The time at which [`Self::is_ready`] becomes true.
    pub(super) fn ready_at_ns(&self) -> i64 {
        let debt = 1i128 - i128::from(self.tokens);
        match self.bytes_per_s {
            0 => self.filled_ns,
            rate => {
                let wait_ns = (debt.max(0) * 1_000_000_000).div_euclid(i128::from(rate)) + 1;
                self.filled_ns.saturating_add(i64::try_from(wait_ns).unwrap_or(i64::MAX))
            }
        }
    }

    fn fill(&mut self, now_ns: i64) {
        let (rate, passed_ns) = (i128::from(self.bytes_per_s), i128::from(now_ns - self.filled_ns));
        let gained = rate * passed_ns / 1_000_000_000;
        // Fractions of a byte are kept: their time counts at the next fill.
        if gained > 0 || self.bytes_per_s == 0 {
            self.filled_ns = now_ns;
            let most = (rate / 4).max(1);
            self.tokens = (i128::from(self.tokens) + gained).min(most) as i64;
            assert!(i128::from(self.tokens) <= most, "a bucket holds more than a quarter of a second's tokens");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: i64 = 1_000_000_000;

    #[test]
    fn the_rate_holds_over_time_whatever_the_size_of_work() {
        for cost in [1_000, 1_000_000, 50_000_000u64] {
            let mut bucket = TokenBucket::new(10_000_000);
            let (mut now, mut done) = (0, 0u64);
            while now < 100 * S {
                if bucket.is_ready(now) {
                    bucket.take(cost);
                    done += cost;
                } else {
                    now = bucket.ready_at_ns();
                }
            }
            let expected = 1_000_000_000;
            assert!(
                done >= expected - expected / 1_000 - cost && done <= expected + cost + 2_500_000,
                "cost {cost}: {done}"
            );
        }
    }

    #[test]
    fn no_rate_is_no_bound() {
        let mut bucket = TokenBucket::new(0);
        for _ in 0..10 {
            assert!(bucket.is_ready(5));
            bucket.take(u64::MAX);
        }
        assert!(bucket.ready_at_ns() <= 5);
    }
}
