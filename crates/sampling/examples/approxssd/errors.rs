//! Figure 1.7: errors and intervals of both selections, without a clock. True values are counted from all records.

use crate::data::{App, DISKS, Data, top};
use crate::strategy::{Job, balanced, random};
use serde_json::{Value, json};
use tessera_sampling::estimate::Population;
use tessera_sampling::layout::Layout;
use tessera_sampling::schedule::Issue;
use tessera_sampling::tally::{Key, Tally, Totals};

/// Groups whose errors are averaged, as in the paper.
const TOP: usize = 1000;

/// Sums over groups and seeds.
#[derive(Default)]
struct Errors {
    groups: u64,
    error: f64,
    claimed: u64,
    half: f64,
    covered: u64,
}

fn read(job: &Job<'_>, tallied: &Layout, units: &[Issue]) -> Tally {
    let (source, format) = (job.data.source(job.app, job.repeats), job.app.format());
    let mut tally = Tally::new(tallied, false, 0);
    for issue in units {
        let block = format.load(&source, issue.unit).expect("the file can be read");
        let mut unit = tally.unit(issue.stratum, block.unit.size as f64);
        format.tally(&block, "", &mut unit).expect("records are well-formed");
    }
    tally
}

impl Errors {
    fn add(&mut self, app: App, tally: &Tally, truth: &[(Key, f64)]) {
        let totals = Totals::of([tally]);
        let population = Population::new(&totals.strata, &totals.all, 0.95);
        for (key, truth) in truth {
            self.groups += 1;
            let group = totals.group(key);
            if group.is_empty() {
                self.error += 1.0;
                continue;
            }
            let found = population.estimate(app.quantity(), &group);
            self.error += (found.value / truth - 1.0).abs();
            if found.claimed {
                self.claimed += 1;
                self.half += (found.high - found.low) / 2.0 / truth;
                self.covered += u64::from(found.low <= *truth && *truth <= found.high);
            }
        }
    }

    fn row(&self, job: &Job<'_>, strategy: &str, seeds: u64) -> Value {
        let of_claimed = |sum: f64| if self.claimed == 0 { Value::Null } else { json!(sum / self.claimed as f64) };
        json!({
            "app": job.app.name(), "ratio": job.ratio, "units": job.needed(), "strategy": strategy, "seeds": seeds,
            "groups": self.groups / seeds, "error": self.error / self.groups as f64,
            "claimed": self.claimed as f64 / self.groups as f64, "half": of_claimed(self.half),
            "covered": of_claimed(self.covered as f64),
        })
    }
}

/// Errors of both selections, random and balanced, side by side on two threads.
fn both(job: &Job<'_>, truth: &[(Key, f64)], seeds: u64) -> [Errors; 2] {
    let layout = job.layout();
    let all = |select: &dyn Fn(u64) -> (Layout, Vec<Issue>)| {
        let mut errors = Errors::default();
        for seed in 0..seeds {
            let (tallied, units) = select(seed);
            errors.add(job.app, &read(job, &tallied, &units), truth);
        }
        errors
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(|| all(&|seed| random(&layout, job.needed(), seed)));
        let weights = [1.0; DISKS];
        let own = all(&|seed| (layout.clone(), balanced(layout.clone(), &weights, job.needed(), seed)));
        [other.join().expect("it did not panic"), own]
    })
}

/// Mean errors of the 100 largest groups in both selections.
pub fn mean_errors(job: &Job<'_>, seeds: u64) -> Vec<f64> {
    let truth = top(&job.data.truth(job.app, job.repeats), 100);
    both(job, &truth, seeds).iter().map(|errors| errors.error / errors.groups as f64).collect()
}

pub fn figures(data: &Data, quick: bool) -> Value {
    let mut found = Vec::new();
    for app in App::ALL {
        for (ratio, repeats, seeds) in [(0.1, 4, 8), (0.01, 32, 8), (0.001, 320, 8), (0.0001, 1280, 20)] {
            let (job, seeds) = (Job::new(data, app, repeats, ratio), if quick { 2 } else { seeds });
            let errors = both(&job, &top(&data.truth(app, repeats), TOP), seeds);
            found.extend(["random", "tessera"].iter().zip(&errors).map(|(name, errors)| errors.row(&job, name, seeds)));
        }
    }
    json!({"rows": found, "top": TOP})
}
