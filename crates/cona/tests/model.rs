//! CONA against a map: random sequences of all operations of a store (P1, P2, P3).

mod common;

use std::ops::Bound;
use std::sync::Arc;

use common::*;
use tessera_cona::*;
use tessera_disk::{Disk, SimDisk, SplitMix64};
use tessera_failpoint as failpoint;

fn ensure(ok: bool, what: impl FnOnce() -> String) -> Result<(), String> {
    if ok { Ok(()) } else { Err(what()) }
}

struct Run {
    rng: SplitMix64,
    disk: Arc<dyn Disk>,
    options: Options,
    store: Option<Store>,
    model: Model,
    spread: u64,
    snapshots: Vec<(Snapshot, Model)>,
}

impl Run {
    fn store(&self) -> &Store {
        self.store.as_ref().unwrap()
    }

    fn batch(&mut self) {
        let mut batch = Batch::new();
        for _ in 0..1 + self.rng.below(6) {
            let key = key(&mut self.rng, self.spread);
            if self.rng.below(4) == 0 {
                batch.delete(&key);
                self.model.remove(&key);
            } else {
                let value = value(&mut self.rng);
                batch.put(&key, &value);
                self.model.insert(key, value);
            }
        }
        self.store().write(batch).unwrap();
    }

    fn lookups(&mut self) -> Result<(), String> {
        for _ in 0..4 {
            let key = key(&mut self.rng, self.spread);
            let (got, expected) = (self.store().get(&key).unwrap(), self.model.get(&key).cloned());
            ensure(got == expected, || {
                format!("{key:?}: {:?} bytes, expected {:?}", got.map(|v| v.len()), expected.map(|v| v.len()))
            })?;
        }
        Ok(())
    }

    fn scan(&mut self) -> Result<(), String> {
        let (a, b) = (key(&mut self.rng, self.spread), key(&mut self.rng, self.spread));
        let (from, to) = if a <= b { (a, b) } else { (b, a) };
        let bounds = match self.rng.below(3) {
            0 => (Bound::Included(&from[..]), Bound::Excluded(&to[..])),
            1 => (Bound::Excluded(&from[..]), Bound::Unbounded),
            _ => (Bound::Unbounded, Bound::Included(&to[..])),
        };
        let got = all(self.store().range(bounds).unwrap()).unwrap();
        let expected: Model = self
            .model
            .iter()
            .filter(|(k, _)| std::ops::RangeBounds::contains(&bounds, &&k[..]))
            .map(|(k, v)| (k.clone(), v.clone()))
            .collect();
        ensure(got == expected, || format!("{bounds:?}: {} records, expected {}", got.len(), expected.len()))?;
        self.scan_at_most(bounds)?;
        let prefix = [&b"user"[..], b"long", b"k1", &[0, 0], &[255]][self.rng.below(5) as usize];
        let got = all(self.store().prefix(prefix).unwrap()).unwrap();
        let expected = self.model.iter().filter(|(k, _)| k.starts_with(prefix)).count();
        ensure(got.len() == expected, || format!("prefix {prefix:?}: {} records, expected {expected}", got.len()))
    }

    /// A limited scan gives the first records of the range, lent or copied.
    fn scan_at_most(&mut self, bounds: (Bound<&[u8]>, Bound<&[u8]>)) -> Result<(), String> {
        let limit = self.rng.below(40) as usize;
        let within = self.model.iter().filter(|(k, _)| std::ops::RangeBounds::contains(&bounds, &&k[..]));
        let expected: Vec<_> = within.take(limit).map(|(k, v)| (k.clone(), v.clone())).collect();
        let mut scan = self.store().range_at_most(bounds, limit).unwrap();
        let mut got = Vec::new();
        while let Some((key, value)) = scan.next_record().unwrap() {
            got.push((key.to_vec(), value.to_vec()));
        }
        ensure(scan.next_record().unwrap().is_none(), || "a scan goes on behind its end".into())?;
        ensure(got == expected, || format!("{bounds:?}, at most {limit}: {}, expected {}", got.len(), expected.len()))?;
        let copied: Result<Vec<_>, _> = self.store().range(bounds).unwrap().take(limit).collect();
        ensure(copied.unwrap() == expected, || format!("{bounds:?}: the first {limit} differ"))
    }

    fn snapshots(&mut self) -> Result<(), String> {
        if self.rng.below(2) == 0 && self.snapshots.len() < 3 {
            self.snapshots.push((self.store().snapshot(), self.model.clone()));
        }
        for (snapshot, model) in &self.snapshots {
            let got = all(snapshot.range(..).unwrap()).unwrap();
            ensure(&got == model, || format!("a snapshot has {} records, expected {}", got.len(), model.len()))?;
            let key = key(&mut self.rng, self.spread);
            let value = snapshot.get(&key).unwrap();
            ensure(value.as_ref() == model.get(&key), || format!("a snapshot differs at {key:?}"))?;
        }
        if self.rng.below(3) == 0 {
            self.snapshots.clear();
        }
        Ok(())
    }

    fn reopen(&mut self) {
        self.snapshots.clear();
        self.store = None;
        self.store = Some(open(&self.disk, &self.options));
    }

    fn step(&mut self) -> Result<(), String> {
        match self.rng.below(30) {
            0 => self.store().flush().unwrap(),
            1 => self.reopen(),
            2 if self.rng.below(4) == 0 => drop(self.store().compact().unwrap()),
            2 => self.store().settle().unwrap(),
            3 | 4 => self.scan()?,
            5 | 6 => self.snapshots()?,
            7..=15 => self.lookups()?,
            _ => self.batch(),
        }
        Ok(())
    }
}

fn sequence(seed: u64, steps: u64) -> Result<(), String> {
    let mut rng = SplitMix64::new(seed);
    let options = drawn(&mut rng);
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::new(0));
    let spread = [8, 60, 600][rng.below(3) as usize];
    let store = Some(open(&disk, &options));
    let mut run = Run { rng, disk, options, store, model: Model::new(), spread, snapshots: Vec::new() };
    for step in 0..steps {
        run.step().map_err(|e| format!("seed {seed}, step {step}: {e}"))?;
    }
    run.reopen();
    run.store().compact().unwrap();
    let got = all(run.store().range(..).unwrap()).unwrap();
    ensure(got == run.model, || {
        format!("seed {seed}: {} records at the end, expected {}", got.len(), run.model.len())
    })?;
    for (key, value) in &run.model {
        ensure(run.store().get(key).unwrap().as_ref() == Some(value), || format!("seed {seed}: {key:?} is lost"))?;
    }
    let report = run.store().verify();
    ensure(report.damage.is_empty(), || format!("seed {seed}: {:?}", report.damage))?;
    let stats = run.store().stats();
    ensure(stats.cell_records == run.model.len() as u64 && stats.cells.len() <= 1, || format!("seed {seed}: {stats:?}"))
}

#[test]
fn ten_thousand_random_sequences_equal_a_plain_map() {
    for seed in 0..10_000 {
        sequence(seed, 40).unwrap();
    }
    for seed in 0..40 {
        sequence(1 << 32 | seed, 1200).unwrap();
    }
}

#[test]
fn failpoints_of_merges_and_the_cache_are_caught() {
    for mistake in ["cona.drop_deletes_early", "cona.keep_older", "cona.stale_cache"] {
        let _guard = failpoint::activate(mistake);
        let caught = (0..2000).find(|&seed| sequence(seed, 120).is_err());
        println!("{mistake}: seed {caught:?}");
        assert!(caught.is_some(), "{mistake} was not caught");
    }
}
