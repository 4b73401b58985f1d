//! GB/s of `tessera-accel` beside its peers, one thread, in one run:
//! `cargo run --release --manifest-path bench/accel/Cargo.toml -- [--seconds S] [--best] [FILTER…]`.
//!
//! The ways of a row take turns; each figure is a median, or with `--best` the best sample, in GB/s (10^9 bytes of data). `roof` is what this
//! machine's memory allows, measured in the same run; a peer that is not installed shows as `-`.

mod codes;
mod hashes;
mod lookups;

use std::time::Duration;
use tessera_accel::Isa;
use tessera_bench_accel::timing::Timing;

/// What every group of rows needs.
pub struct Bench {
    timing: Timing,
    filters: Vec<String>,
}

impl Bench {
    /// Whether the row called `name` was asked for.
    pub fn wants(&self, name: &str) -> bool {
        self.filters.iter().all(|f| name.contains(f.as_str()))
    }

    /// Prints a row: ours, the peer, their ratio, the roof.
    pub fn row(&self, name: &str, ours: f64, peer: Option<f64>, roof: Option<f64>) {
        let or_dash = |figure: Option<f64>| figure.map_or("-".to_owned(), |f| format!("{f:.2}"));
        let ratio = peer.map(|p| ours / p);
        println!("{name:<44} {ours:>8.2} {:>8} {:>6} {:>8}", or_dash(peer), or_dash(ratio), or_dash(roof));
    }
}

fn main() {
    let mut filters: Vec<String> = std::env::args().skip(1).collect();
    let mut seconds = 0.4;
    if let Some(at) = filters.iter().position(|a| a == "--seconds") {
        let given = filters.get(at + 1).and_then(|s| s.parse::<f64>().ok()).filter(|s| *s > 0.0 && *s < 1e4);
        let Some(given) = given else {
            eprintln!("--seconds takes a number above 0");
            std::process::exit(2);
        };
        seconds = given;
        filters.drain(at..at + 2);
    }
    let best = filters.iter().any(|a| a == "--best");
    filters.retain(|a| a != "--best");
    let bench = Bench { timing: Timing { budget: Duration::from_secs_f64(seconds), best }, filters };
    println!("instruction sets: {:?}, used: {:?}", Isa::supported(), Isa::best());
    println!("{:<44} {:>8} {:>8} {:>6} {:>8}", "GB/s of data, one thread", "ours", "peer", "ratio", "roof");
    codes::reed_solomon(&bench);
    codes::xor(&bench);
    codes::xor_beside_reed_solomon(&bench);
    hashes::batches(&bench);
    hashes::segmented(&bench);
    hashes::windows(&bench);
    lookups::all(&bench);
}
