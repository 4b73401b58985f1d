//! The map of a flash translation layer as sorted levels, all of them full, and the queries that are asked of it.

use std::fs::File;
use std::path::Path;
use tessera_bench_accel::timing::Noise;
use tessera_flash::Shape;
use tessera_flash::ftl::ColaOptions;
use tessera_flash::trace::{Reader, Request, Span};
use tessera_hashgpu::lookup::{KeyPosition, Levels, Sorted};

/// Bytes of a logical page.
const PAGE_BYTES: u64 = 4096;

/// Bytes of a line of the caches.
const LINE_BYTES: f64 = 64.0;

/// Entries of logical pages, in the order of the pages.
#[derive(Debug)]
pub struct Level {
    /// Logical pages; they rise strictly.
    pub keys: Vec<u32>,
    /// The physical page of each.
    pub places: Vec<u32>,
}

/// Levels, newest first. All physical pages differ, so that an answer says which entry was found.
#[derive(Debug)]
pub struct Map {
    pages: u32,
    levels: Vec<Level>,
}

impl Map {
    /// A map of so many logical pages with every level full. The layer `cola` would have these levels: each has twice as many
    /// entries as the one above, and the lowest has all pages.
    pub fn full(pages: u32, options: ColaOptions, noise: &mut Noise) -> Map {
        let buffer = options.buffer(&Shape::ONE_DIE, pages);
        let above = (pages / buffer).max(1).ilog2();
        let mut keys: Vec<Vec<u32>> = (0..above).map(|level| sample(pages, buffer << level, noise)).collect();
        keys.push((0..pages).collect());
        Map::of(pages, keys)
    }

    /// A map with these logical pages in its levels.
    pub fn of(pages: u32, keys: Vec<Vec<u32>>) -> Map {
        let mut places = 0..u32::MAX;
        let level = |keys: Vec<u32>| Level { places: places.by_ref().take(keys.len()).collect(), keys };
        Map { pages, levels: keys.into_iter().map(level).collect() }
    }

    /// The levels, newest first.
    pub fn levels(&self) -> &[Level] {
        &self.levels
    }

    /// Their keys, as the look-up primitive takes them.
    pub fn views(&self) -> Levels<'_, u32> {
        let views = self.levels.iter().map(|level| Sorted::trusted(&level.keys)).collect();
        Levels::new(views).expect("few levels")
    }

    /// The physical page of an entry that was found, [`u32::MAX`] if none was.
    pub fn place(&self, found: Option<KeyPosition>) -> u32 {
        found.map_or(u32::MAX, |at| self.levels[usize::from(at.level)].places[at.index as usize])
    }

    /// The same map as a table with a row for each logical page.
    pub fn table(&self) -> Vec<u32> {
        let mut table = vec![u32::MAX; self.pages as usize];
        for level in self.levels.iter().rev() {
            level.keys.iter().zip(&level.places).for_each(|(key, place)| table[*key as usize] = *place);
        }
        table
    }

    /// Mean number of levels that a search for a random page meets, and of cache lines that it touches: by halving every level,
    /// and by pointers at every `spacing`-th entry.
    pub fn touched(&self, spacing: usize) -> Touched {
        let per_line = LINE_BYTES / 4.0;
        // The last keys that are compared share a line.
        let halving = |keys: usize| (keys as f64 / per_line).max(1.0).log2() + 1.0;
        let mean_scan = spacing as f64 / 2.0;
        let mut touched = Touched { levels: 0.0, halving: 1.0, pointers: 0.0 };
        let mut reached = 1.0;
        for (number, level) in self.levels.iter().enumerate() {
            let keys = level.keys.len();
            touched.levels += reached;
            touched.halving += reached * halving(keys);
            // One line more has the physical page and the pointer.
            touched.pointers +=
                reached * if number == 0 { halving(keys) } else { 1.0 + mean_scan / per_line } + reached;
            reached *= 1.0 - keys as f64 / f64::from(self.pages);
        }
        touched
    }
}

/// What a search touches.
#[derive(Debug)]
pub struct Touched {
    /// Levels that are searched until the page is found.
    pub levels: f64,
    /// Cache lines if every level is halved.
    pub halving: f64,
    /// Cache lines if pointers lead from level to level.
    pub pointers: f64,
}

/// So many different numbers below `bound`, in order (selection sampling: Knuth, volume 2, algorithm 3.4.2 S).
fn sample(bound: u32, count: u32, noise: &mut Noise) -> Vec<u32> {
    let mut left = count;
    let is_taken = |number: &u32| {
        let taken = noise.below(bound - number) < left;
        left -= u32::from(taken);
        taken
    };
    (0..bound).filter(is_taken).collect()
}

/// Logical pages to look up, of a map of any size.
pub enum Workload {
    /// Random pages.
    Uniform,
    /// The pages of the requests of a trace, in order.
    Trace(Vec<u32>),
}

impl Workload {
    /// Reads the pages of a block trace of any format that `tessera flash replay` recognizes.
    ///
    /// # Errors
    /// The file cannot be read, or has no requests.
    pub fn read(path: &Path) -> Result<Workload, String> {
        let say = |why: &dyn std::fmt::Display| format!("{}: {why}", path.display());
        let file = File::open(path).map_err(|why| say(&why))?;
        let reader = Reader::new(file, None, false).map_err(|why| say(&why))?;
        let requests = reader.collect::<Result<Vec<Request>, _>>().map_err(|why| say(&why))?;
        let mut span = Span::default();
        requests.iter().for_each(|request| span.add(request));
        let span = span.lay(PAGE_BYTES).map_err(|why| say(&why))?;
        let pages_of = |request: &Request| {
            let first = span.place(request).unwrap_or(0);
            let end = first + request.bytes;
            (first / PAGE_BYTES..end.div_ceil(PAGE_BYTES)).map(|page| page as u32)
        };
        let pages: Vec<u32> = requests.iter().flat_map(pages_of).collect();
        if pages.is_empty() { Err(say(&"the trace has no requests")) } else { Ok(Workload::Trace(pages)) }
    }

    /// Its name in the report.
    pub fn name(&self) -> &'static str {
        match self {
            Workload::Uniform => "uniform",
            Workload::Trace(_) => "trace",
        }
    }

    /// So many queries of a map of so many logical pages. A trace is repeated, each time at another place of the map, so that
    /// a repetition finds in the caches what it has touched itself.
    pub fn queries(&self, count: usize, pages: u32, noise: &mut Noise) -> Vec<u32> {
        match self {
            Workload::Uniform => (0..count).map(|_| noise.below(pages)).collect(),
            Workload::Trace(trace) => {
                let mut queries = Vec::with_capacity(count);
                while queries.len() < count {
                    let moved = u64::from(noise.below(pages));
                    let place = |page: &u32| ((u64::from(*page) + moved) % u64::from(pages)) as u32;
                    queries.extend(trace.iter().take(count - queries.len()).map(place));
                }
                queries
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_level_is_full_and_the_newest_entry_counts() {
        let map = Map::full(1 << 14, ColaOptions::Buffer(4096), &mut Noise::default());
        let lens: Vec<usize> = map.levels().iter().map(|level| level.keys.len()).collect();
        assert_eq!(lens, [4096, 8192, 16384]);
        assert!(map.levels().iter().all(|level| level.keys.is_sorted_by(|a, b| a < b)));
        let table = map.table();
        let in_first = map.levels()[0].keys.iter().zip(&map.levels()[0].places);
        assert!(
            in_first.clone().all(|(key, place)| table[*key as usize] == *place),
            "the first level hides the others"
        );
        assert_eq!(Map::full(1 << 20, ColaOptions::Height(8), &mut Noise::default()).levels().len(), 8);
    }

    #[test]
    fn half_of_the_pages_are_found_above_the_lowest_level() {
        let map = Map::of(16, vec![(0..8).collect(), (0..16).collect()]);
        let touched = map.touched(8);
        assert_eq!((touched.levels, touched.halving), (1.5, 2.5), "a line of keys for each level, and one of places");
        assert_eq!(touched.pointers, 1.0 + 1.0 + 0.5 * (1.25 + 1.0));
    }

    #[test]
    fn queries_of_a_trace_keep_their_distances() {
        let trace = Workload::Trace(vec![100, 101, 900]);
        let queries = trace.queries(7, 1000, &mut Noise::default());
        assert_eq!(queries.len(), 7);
        for pass in queries.chunks_exact(3) {
            assert_eq!(((pass[1] + 1000 - pass[0]) % 1000, (pass[2] + 1000 - pass[0]) % 1000), (1, 800));
        }
        assert_ne!(queries[0], queries[3], "each pass is at another place");
    }

    #[test]
    fn the_pages_of_a_trace_are_read_in_order() {
        let path = std::env::temp_dir().join(format!("tessera-bench-levels-{}.ascii", std::process::id()));
        // Time in ns, device, sector, sectors, 1 = read.
        std::fs::write(&path, "0 0 8 16 1\n26214000 0 0 8 0\n26214000 1 9 7 1\n").expect("a temporary file");
        let read = Workload::read(&path);
        let _ = std::fs::remove_file(&path);
        let Ok(Workload::Trace(pages)) = read else { panic!("the trace is not read") };
        assert_eq!(pages, [1, 2, 0, 4]);
        assert!(Workload::read(&path).is_err_and(|why| why.contains("tessera-bench-levels")));
    }
}
