//! The content-dependent cases: how evenly a sample shares out a sort and a graph.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};
use std::time::Instant;
use tessera_sampling::arch::graph::{Edge, GraphSample, skew};
use tessera_sampling::arch::sort::sampling_sort;
use tessera_sampling::arch::{Architecture, Partitions};

const ELEMENTS: usize = 20_000_000;
const VERTICES: u32 = 1_000_000;
const PARTS: usize = 8;

fn power_law(rng: &mut StdRng) -> u32 {
    (f64::from(VERTICES).powf(rng.random_range(0.0..1.0)) - 1.0) as u32
}

/// Skew of buckets by ratio, beside buckets of equal ranges of keys.
fn sort(rng: &mut StdRng) -> Vec<Value> {
    let memory = Architecture::of_kernel().expect("the kernel reports its nodes");
    let keys: Vec<u32> = (0..ELEMENTS).map(|_| power_law(rng)).collect();
    let mut equal = [0usize; PARTS];
    keys.iter().for_each(|key| equal[*key as usize * PARTS / VERTICES as usize] += 1);
    let equal = *equal.iter().max().expect("there are parts") as f64 * PARTS as f64 / ELEMENTS as f64;
    let mut alone = keys.clone();
    let start = Instant::now();
    alone.sort_unstable();
    let alone_s = start.elapsed().as_secs_f64();
    let row = |ratio: f64| {
        let mut data = keys.clone();
        let start = Instant::now();
        let report = sampling_sort(&mut data, &memory, PARTS, ratio, 1).expect("there is data");
        let seconds = start.elapsed().as_secs_f64();
        assert!(data == alone, "the sort sorts");
        json!({"ratio": ratio, "skew": report.skew(), "equal_skew": equal, "seconds": seconds, "alone_s": alone_s})
    };
    [0.001, 0.01, 0.1].map(row).to_vec()
}

/// Skew of ranges of vertices by ratio, beside ranges of equally many vertices.
fn graph(rng: &mut StdRng) -> Vec<Value> {
    let memory = Architecture::of_kernel().expect("the kernel reports its nodes");
    let edges: Vec<Edge> = (0..ELEMENTS).map(|_| (power_law(rng), rng.random_range(0..VERTICES))).collect();
    let equal: Vec<_> =
        (0..PARTS as u32).map(|i| i * (VERTICES / PARTS as u32)..(i + 1) * (VERTICES / PARTS as u32)).collect();
    let row = |ratio: f64| {
        let start = Instant::now();
        let sample = GraphSample::read(&edges, &memory, 2, ratio, 1).expect("there are edges");
        let ranges = sample.ranges(VERTICES, PARTS);
        let seconds = start.elapsed().as_secs_f64();
        json!({
            "ratio": ratio, "skew": skew(&edges, &ranges), "equal_skew": skew(&edges, &equal), "seconds": seconds,
            "sampled": sample.sampled(),
        })
    };
    [0.001, 0.01, 0.1].map(row).to_vec()
}

/// Everything.
pub fn figures() -> Value {
    let mut rng = StdRng::seed_from_u64(3);
    let memory = Architecture::of_kernel().expect("the kernel reports its nodes");
    let known = memory.banks_are_known();
    let rows =
        Partitions::at(0, 4, ELEMENTS, &memory, tessera_sampling::arch::Placement::Domain(0)).expect("rows").rows();
    json!({"elements": ELEMENTS, "parts": PARTS, "memory_rows": rows, "banks_are_known": known, "sort": sort(&mut rng), "graph": graph(&mut rng)})
}
