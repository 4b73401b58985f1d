//! A promised error is kept, and the intervals still hold although the sample's size follows from what was seen: whole
//! jobs, threads included, over CSV in memory.

mod populations;

use populations::{Law, Population};
use std::sync::Arc;
use std::time::Duration;
use tessera_sampling::Error;
use tessera_sampling::answer::{Amount, Answer, Terms, ask};
use tessera_sampling::engine::Options;
use tessera_sampling::estimate::Estimate;
use tessera_sampling::format::{Csv, CsvOptions};
use tessera_sampling::layout::{Layout, Run};
use tessera_sampling::question::{Aggregate, KeyBy, Question};
use tessera_sampling::schedule::{Schedule, Shares};
use tessera_sampling::source::{Contents, DiskIndex, FileIndex, Source, SourceFile};

const ERROR: f64 = 0.04;
const TOP: usize = 3;
const DISKS: u32 = 4;
/// A unit has about 40 records of 25 bytes.
const UNIT_BYTES: u64 = 1000;
const SEEDS: u64 = 50;

struct Memory {
    contents: Contents,
    files: Vec<Vec<u8>>,
}

impl Memory {
    fn new(files: Vec<Vec<u8>>) -> Memory {
        let mut contents = Contents { disks: (0..DISKS).map(|disk| disk.to_string()).collect(), ..Default::default() };
        for (file, bytes) in files.iter().enumerate() {
            let (file, len_bytes) = (file as FileIndex, bytes.len() as u64);
            contents.files.push(SourceFile { name: file.to_string(), len_bytes });
            contents.runs.push(Run { file, offset: 0, len_bytes, disk: file as DiskIndex % DISKS, rows: None });
        }
        Memory { contents, files }
    }
}

impl Source for Memory {
    fn contents(&self) -> &Contents {
        &self.contents
    }

    fn check_unchanged(&self) -> Result<(), Error> {
        Ok(())
    }

    fn read_at(&self, file: FileIndex, offset: u64, out: &mut [u8]) -> Result<usize, Error> {
        let from = &self.files[file as usize][offset as usize..];
        let len = out.len().min(from.len());
        out[..len].copy_from_slice(&from[..len]);
        Ok(len)
    }
}

fn sums_by_key(source: &Arc<Memory>, seed: u64) -> Answer {
    let key = KeyBy::parse("key", false).unwrap();
    let question =
        Question { aggregate: Aggregate::Sum, key: Some(key), value: Some("value".to_string()), filter: None };
    let format = Csv::open(&**source, question.clone().bind(), CsvOptions::default()).unwrap();
    let schedule = Schedule::new(Layout::of(&**source, &format, UNIT_BYTES), Shares::Equal, seed);
    let terms = Terms { amount: Amount::Error(ERROR), confidence: 0.95, top: TOP, drop: 0.0 };
    let options = Options { threads: 1, keep_values: false, seed, tick: Duration::from_secs(1) };
    let asked = ask(source.clone(), Arc::new(format), schedule, (&question, &terms), &options, &mut |_, _| true);
    asked.unwrap().0
}

#[test]
fn a_promised_error_is_kept_and_its_intervals_hold() {
    for law in [Law::Shuffled, Law::FilesDiffer, Law::Zipf, Law::DisksDiffer] {
        let population = Population::new(law);
        let source = Arc::new(Memory::new(population.csv()));
        let (mut totals_held, mut held, mut asked, mut exact) = (0, 0, 0, 0);
        for seed in 0..SEEDS {
            let answer = sums_by_key(&source, seed);
            assert!(answer.reached, "{law:?}, seed {seed}");
            exact += u64::from(answer.total.low == answer.total.high);
            let number =
                |key: &[u8]| population.keys.iter().position(|known| known == key).expect("a key of the population");
            let of_rows = answer
                .rows
                .iter()
                .map(|row| (row.estimate, population.truth.sums[number(row.key.as_deref().expect("sums are by key"))]));
            let mut holds = |estimate: Estimate, truth: f64| {
                assert!(estimate.claimed && estimate.relative_error() <= ERROR, "{law:?}, seed {seed}: {estimate:?}");
                // Sums in another order differ in the last digits.
                let slack = truth * 1e-12;
                asked += 1;
                u64::from(estimate.low - slack <= truth && truth <= estimate.high + slack)
            };
            held += of_rows.map(|(estimate, truth)| holds(estimate, truth)).sum::<u64>();
            totals_held += holds(answer.total, population.truth.sum);
        }
        let share = (held + totals_held) as f64 / asked as f64;
        println!("{law:?}: {:.1} % of {asked} hold, {exact} of {SEEDS} samples had to be of everything", 100.0 * share);
        assert!((0.90..=0.99).contains(&share) && exact < SEEDS / 10, "{law:?}: {share}, {exact} exact");
        assert!(totals_held as f64 >= 0.88 * SEEDS as f64, "{law:?}: {totals_held} totals of {SEEDS} hold");
    }
}
