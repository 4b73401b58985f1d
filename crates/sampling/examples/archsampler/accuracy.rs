//! Figures 2.7 and 2.8: errors and intervals of balanced and of random selections.
//!
//! The reviews of the paper cannot be had, so text and ratings are made: words follow Zipf's law, reviews of a product
//! follow each other and resemble each other. In a third set each bank has its own mean, as data has whose period is that
//! of the banks.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};
use tessera_sampling::arch::{Architecture, Assignment, Partitions, Placement, RowSample, select};
use tessera_sampling::estimate::{Estimate, Moments, Quantity};

const ROWS: usize = 16_384;
const SEEDS: u64 = 300;
const PERCENT: [f64; 5] = [0.5, 1.0, 2.0, 4.0, 8.0];
/// Ratings in a row of 8 KiB, 4 bytes each.
const RATINGS: usize = 2048;

/// Rows with what they contribute to the question.
struct Set {
    name: &'static str,
    quantity: Quantity,
    rows: Vec<Moments>,
    truth: f64,
}

/// How often a word occurs in each row. A product has 2 to 40 reviews of about 80 words, and its own affinity to the word.
fn word_count() -> Set {
    let mut rng = StdRng::seed_from_u64(1);
    let mut rows = vec![Moments::default(); ROWS];
    let (mut byte, mut words_left, mut chance) = (0, 0, 0.0);
    while byte < ROWS * 8192 {
        if words_left == 0 {
            words_left = 80 * rng.random_range(2..40);
            chance = 0.004 * rng.random_range(0.0f64..1.8).powi(3);
        }
        words_left -= 1;
        rows[byte / 8192].count += f64::from(u8::from(rng.random_bool(chance)));
        byte += rng.random_range(3..11);
    }
    let truth = rows.iter().map(|row| row.count).sum();
    Set { name: "word count", quantity: Quantity::Count, rows, truth }
}

/// Ratings of 1 to 5; a product has 20 to 2000, around its own mean.
fn ratings() -> Set {
    let mut rng = StdRng::seed_from_u64(2);
    let (mut left, mut mean) = (0, 0.0);
    let mut row = || {
        let mut row = Moments { count: RATINGS as f64, ..Default::default() };
        for _ in 0..RATINGS {
            if left == 0 {
                (left, mean) = (rng.random_range(20..2000), rng.random_range(2.5..4.9));
            }
            left -= 1;
            let rating = (mean + rng.random_range(-2.0f64..2.0)).round().clamp(1.0, 5.0);
            row.sum += rating;
            row.squares += rating * rating;
        }
        row
    };
    let rows: Vec<Moments> = (0..ROWS).map(|_| row()).collect();
    let truth = rows.iter().map(|row| row.sum).sum::<f64>() / (ROWS * RATINGS) as f64;
    Set { name: "average rating", quantity: Quantity::Mean, rows, truth }
}

/// Ratings whose mean depends on the bank.
fn banks_differ() -> Set {
    let mut set = ratings();
    for (i, row) in set.rows.iter_mut().enumerate() {
        row.sum += (i % 32) as f64 * 0.02 * RATINGS as f64;
    }
    set.truth = set.rows.iter().map(|row| row.sum).sum::<f64>() / (ROWS * RATINGS) as f64;
    Set { name: "banks differ", ..set }
}

#[derive(Default)]
struct Score {
    error: f64,
    half: f64,
    covered: u64,
    bootstrap_half: f64,
    bootstrap_covered: u64,
}

fn score(set: &Set, percent: f64, assignment: Assignment) -> Value {
    let memory = Architecture::preset("pcm").expect("it is in the table");
    let partitions = Partitions::at(0, 4, ROWS * RATINGS, &memory, Placement::Domain(0)).expect("there are rows");
    let mut score = Score::default();
    for seed in 0..SEEDS {
        let rows = (ROWS as f64 * percent / 100.0).round() as u64;
        let selection = select(&partitions, &memory, rows, assignment, 8, seed).expect("there are threads");
        let read = selection.threads.iter().flatten().map(|row| (*row, RATINGS as u64, set.rows[*row as usize]));
        let sample = RowSample::of(&partitions, &selection, read).expect("a random sample");
        let bootstrap = sample.bootstrap(0.95, seed, |rows, weights| {
            let sum =
                |of: fn(&Moments) -> f64| -> f64 { rows.iter().zip(weights).map(|(r, w)| w * of(&r.moments)).sum() };
            let count = sum(|moments| moments.count);
            Some(if set.quantity == Quantity::Mean { sum(|moments| moments.sum) / count } else { count })
        });
        let covers = |found: &Estimate| u64::from(found.low <= set.truth && set.truth <= found.high);
        let (found, bootstrap) = (sample.estimate(set.quantity, 0.95), bootstrap.expect("there are rows"));
        score.error += (found.value / set.truth - 1.0).abs();
        score.half += found.relative_error();
        score.bootstrap_half += bootstrap.relative_error();
        score.covered += covers(&found);
        score.bootstrap_covered += covers(&bootstrap);
    }
    let n = SEEDS as f64;
    json!({
        "set": set.name, "percent": percent, "assignment": assignment.name(), "error": score.error / n,
        "half": score.half / n, "covered": score.covered as f64 / n, "bootstrap_half": score.bootstrap_half / n,
        "bootstrap_covered": score.bootstrap_covered as f64 / n,
    })
}

/// Everything.
pub fn figures() -> Value {
    let mut rows = Vec::new();
    for set in [word_count(), ratings(), banks_differ()] {
        for percent in PERCENT {
            rows.extend([Assignment::ContentionFree, Assignment::Random].map(|how| score(&set, percent, how)));
        }
    }
    json!({"rows": rows, "seeds": SEEDS, "memory_rows": ROWS})
}
