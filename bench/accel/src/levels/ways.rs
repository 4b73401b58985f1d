//! The ways to look logical pages up. Each answers with physical pages, in the order of the queries.

use crate::cola::Cola;
use crate::map::Map;
use std::hint::black_box;
use tessera_accel::Spec;
use tessera_accel::runtime::{Options, Runtime};
use tessera_bench_accel::timing::Timing;
use tessera_hashgpu::ResidentLevels;
use tessera_hashgpu::lookup::{Levels, Sorted};

/// Queries of a sample.
const SAMPLE: usize = 1 << 14;

/// Appends the physical pages of the queries.
type Find<'a> = Box<dyn Fn(&[u32], &mut Vec<u32>) + 'a>;

/// A way to look pages up.
pub struct Way<'a> {
    name: String,
    find: Find<'a>,
}

/// Time of a look-up, in ns.
#[derive(Clone, Debug)]
pub struct Time {
    /// The way's name.
    pub way: String,
    /// Median.
    pub median: f64,
    /// First and third quartile.
    pub quartiles: [f64; 2],
}

impl<'a> Way<'a> {
    fn new(name: String, find: impl Fn(&[u32], &mut Vec<u32>) + 'a) -> Way<'a> {
        Way { name, find: Box::new(find) }
    }

    /// A plain table.
    pub fn table(table: &'a [u32]) -> Way<'a> {
        Way::new("table".into(), |queries, places| places.extend(queries.iter().map(|page| table[*page as usize])))
    }

    /// Lookahead pointers.
    pub fn cola(cola: &'a Cola, name: String) -> Way<'a> {
        Way::new(name, |queries, places| places.extend(queries.iter().map(|page| cola.find(*page))))
    }

    /// A binary search of one level after another, for one query after another.
    pub fn halving(map: &'a Map) -> Way<'a> {
        let levels = map.views();
        Way::new("halving, 1".into(), move |queries, places| {
            places.extend(levels.find_reference(queries).into_iter().map(|found| map.place(found)));
        })
    }

    /// The look-up primitive on the CPU, with so many queries at a time.
    pub fn batches(map: &'a Map, len: usize) -> Way<'a> {
        let levels = map.views();
        Way::new(format!("primitive, {len}"), move |queries, places| {
            for batch in queries.chunks(len) {
                places.extend(levels.find(batch).into_iter().map(|found| map.place(found)));
            }
        })
    }

    /// The same on a GPU that has the levels in its memory.
    pub fn gpu(map: &'a Map, gpu: &'a Gpu, levels: &'a ResidentLevels, len: usize) -> Way<'a> {
        Way::new(format!("GPU, {len}"), move |queries, places| {
            for batch in queries.chunks(len) {
                let batch: Vec<u64> = batch.iter().map(|page| u64::from(*page)).collect();
                let found = levels.find(&gpu.runtime, &batch).unwrap_or_else(|why| panic!("the GPU: {why}"));
                places.extend(found.into_iter().map(|found| map.place(found)));
            }
        })
    }
}

/// A device with memory of its own.
pub struct Gpu {
    runtime: Runtime,
}

impl Gpu {
    /// Opens a device; levels go to the first that `spec` names.
    ///
    /// # Errors
    /// Why there is none.
    pub fn open(spec: Spec) -> Result<Gpu, String> {
        let (runtime, _) = spec.runtime(Options::default()).map_err(|why| why.to_string())?;
        Ok(Gpu { runtime })
    }

    /// Its name.
    pub fn name(&self) -> String {
        self.runtime.devices().first().map_or(String::new(), |device| device.description.clone())
    }

    /// Puts the levels of a map into its memory.
    ///
    /// # Errors
    /// It has no memory for them, or failed.
    pub fn put(&self, map: &Map) -> Result<ResidentLevels, String> {
        let wide = |keys: &Vec<u32>| keys.iter().map(|key| u64::from(*key)).collect();
        let keys: Vec<Vec<u64>> = map.levels().iter().map(|level| wide(&level.keys)).collect();
        let levels =
            Levels::new(keys.iter().map(|keys| Sorted::trusted(keys)).collect()).map_err(|why| why.to_string())?;
        ResidentLevels::new(&self.runtime, 0, &levels).map_err(|why| why.to_string())
    }

    /// Checks that no job went to the CPU: the time would be another's.
    ///
    /// # Errors
    /// How many did.
    pub fn did_all(&self) -> Result<(), String> {
        match self.runtime.queues().fallen_back {
            0 => Ok(()),
            jobs => Err(format!("the GPU failed: the CPU did {jobs} of its jobs, so its times say nothing")),
        }
    }
}

/// Compares the answers of all ways with those of the first.
///
/// # Errors
/// A way and the query that it answers differently.
pub fn check(ways: &[Way<'_>], queries: &[u32]) -> Result<(), String> {
    let Some((first, others)) = ways.split_first() else { return Ok(()) };
    let answers = |way: &Way<'_>| {
        let mut places = Vec::with_capacity(queries.len());
        (way.find)(queries, &mut places);
        places
    };
    let expected = answers(first);
    for way in others {
        let places = answers(way);
        if places.len() != expected.len() {
            return Err(format!("{} gives {} answers to {} queries", way.name, places.len(), expected.len()));
        }
        if let Some(at) = places.iter().zip(&expected).position(|(place, expected)| place != expected) {
            let (page, place, expected) = (queries[at], places[at], expected[at]);
            return Err(format!("page {page} is at {place} for {}, at {expected} for {}", way.name, first.name));
        }
    }
    Ok(())
}

/// Times the ways in turns. Each goes through all queries, and each begins at another place of them, so that it does not find in
/// the caches what the one before has just asked for.
pub fn measure(timing: Timing, ways: &[Way<'_>], queries: &[u32]) -> Vec<Time> {
    let samples: Vec<&[u32]> = queries.chunks_exact(SAMPLE).collect();
    let samples = &samples;
    let mut turns: Vec<Box<dyn FnMut() + '_>> = Vec::new();
    for (number, way) in ways.iter().enumerate() {
        let mut next = number * samples.len() / ways.len();
        let mut places = Vec::with_capacity(SAMPLE);
        turns.push(Box::new(move || {
            places.clear();
            (way.find)(samples[next % samples.len()], &mut places);
            black_box(&places);
            next += 1;
        }));
    }
    let mut turns: Vec<&mut dyn FnMut()> = turns.iter_mut().map(|turn| &mut **turn as &mut dyn FnMut()).collect();
    // Counting a query as a thousand bytes turns GB/s into millions of look-ups a second.
    let rates = timing.compare(1000 * SAMPLE, &mut turns);
    let time = |(number, way): (usize, &Way<'_>)| {
        let [slow, fast] = rates.quartiles(number);
        Time { way: way.name.clone(), median: 1e3 / rates.of(number), quartiles: [1e3 / fast, 1e3 / slow] }
    };
    ways.iter().enumerate().map(time).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tessera_bench_accel::timing::Noise;
    use tessera_flash::ftl::ColaOptions;

    #[test]
    fn all_ways_agree_and_one_that_does_not_is_named() {
        let mut noise = Noise::default();
        let map = Map::full(1 << 13, ColaOptions::Buffer(512), &mut noise);
        let (table, cola) = (map.table(), Cola::new(&map, 8));
        let queries: Vec<u32> = (0..5000).map(|_| noise.below(1 << 13)).collect();
        let gpu = Gpu::open(Spec::Emulated(1)).expect("an emulated device");
        let levels = gpu.put(&map).expect("memory");
        let mut wrong = table.clone();
        wrong[queries[7] as usize] += 1;
        let mut ways = vec![Way::table(&table), Way::cola(&cola, "cola".into()), Way::halving(&map)];
        ways.extend([1, 32, 4096].map(|len| Way::batches(&map, len)));
        ways.extend([32, 4096].map(|len| Way::gpu(&map, &gpu, &levels, len)));
        assert_eq!((check(&ways, &queries), gpu.did_all()), (Ok(()), Ok(())));

        ways.push(Way { name: "wrong".into(), ..Way::table(&wrong) });
        let why = check(&ways, &queries).expect_err("an answer differs");
        assert!(why.contains(&format!("page {} is at", queries[7])) && why.contains("for wrong"), "{why}");
        ways.pop();
        ways.push(Way::new("lazy".into(), |_, _| ()));
        assert!(check(&ways, &queries).is_err_and(|why| why.contains("lazy gives 0 answers")));
    }
}
