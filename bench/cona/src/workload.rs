//! YCSB's core workloads: keys, values, zipfian choice (Gray et al., "Quickly generating billion-record synthetic databases", SIGMOD 1994).

/// SplitMix64.
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mixed(self.0)
    }
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

pub fn mixed(i: u64) -> u64 {
    let z = (i ^ (i >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Twenty bytes: "user" and sixteen digits, in no order.
pub fn key(i: u64) -> [u8; 20] {
    let mut key = *b"user0000000000000000";
    let mut rest = mixed(i.wrapping_mul(0x9e37_79b9_7f4a_7c15)) % 10_000_000_000_000_000;
    for digit in key[4..].iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    key
}

/// Bytes of values, the same each time for one record.
#[derive(Clone, Copy)]
pub struct Sizes {
    pub min: usize,
    pub max: usize,
}

impl Sizes {
    pub fn of(&self, i: u64) -> usize {
        self.min + (mixed(i ^ 0x5a5a) % (self.max - self.min + 1) as u64) as usize
    }
}

/// Random bytes; the first eight say whose they are.
pub fn value(i: u64, out: &mut [u8], rng: &mut Rng) {
    out.chunks_mut(8).for_each(|chunk| {
        let bytes = rng.next().to_le_bytes();
        chunk.copy_from_slice(&bytes[..chunk.len()]);
    });
    out[..8].copy_from_slice(&i.to_le_bytes());
}

/// Zipfian with constant 0.99 over `0..n`, the most popular first.
pub struct Zipf {
    n: u64,
    zeta: f64,
    eta: f64,
    alpha: f64,
    theta: f64,
}

impl Zipf {
    pub fn new(n: u64) -> Self {
        let theta = 0.99;
        let zeta_of = |n: u64| (1..=n).map(|i| 1.0 / (i as f64).powf(theta)).sum::<f64>();
        let (zeta, two) = (zeta_of(n), zeta_of(2));
        let eta = (1.0 - (2.0 / n as f64).powf(1.0 - theta)) / (1.0 - two / zeta);
        Zipf { n, zeta, eta, alpha: 1.0 / (1.0 - theta), theta }
    }
    pub fn next(&self, rng: &mut Rng) -> u64 {
        let u = rng.unit();
        let uz = u * self.zeta;
        if uz < 1.0 {
            return 0;
        }
        if uz < 1.0 + 0.5_f64.powf(self.theta) {
            return 1;
        }
        ((self.n as f64 * (self.eta * u - self.eta + 1.0).powf(self.alpha)) as u64).min(self.n - 1)
    }
}

/// Latencies in buckets a sixteenth of their size apart.
pub struct Histogram(Vec<u64>);

impl Default for Histogram {
    fn default() -> Self {
        Histogram(vec![0; 64 * 16])
    }
}

impl Histogram {
    pub fn add(&mut self, ns: u64) {
        let ns = ns.max(16);
        let log = ns.ilog2();
        self.0[(log as usize) * 16 + ((ns >> (log - 4)) & 15) as usize] += 1;
    }
    fn count(&self) -> u64 {
        self.0.iter().sum()
    }
    fn at(&self, share: f64) -> f64 {
        let mut left = (self.count() as f64 * share).ceil() as u64;
        for (i, n) in self.0.iter().enumerate() {
            if *n >= left && *n > 0 {
                let (log, part) = (i as u32 / 16, (i % 16) as u64);
                return (((16 + part) << log) >> 4) as f64 / 1000.0;
            }
            left -= *n;
        }
        0.0
    }
    /// Microseconds.
    pub fn json(&self) -> serde_json::Value {
        if self.count() == 0 {
            return serde_json::Value::Null;
        }
        serde_json::json!({
            "count": self.count(), "p50": self.at(0.5), "p99": self.at(0.99), "p999": self.at(0.999), "p9999": self.at(0.9999), "max": self.at(1.0),
        })
    }
}
