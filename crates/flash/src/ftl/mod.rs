//! Flash translation layers: where the host's pages are on flash.
//!
//! A layer is one file or folder here and one row of [`LAYERS`]. It keeps the map, decides which part of it is in memory, and
//! reads and writes translation pages through the [`Device`], which accounts for their time. It never moves data and
//! never collects garbage: `collect.rs` does, and tells it what moved.

/// What [`Ftl`](crate::ftl::Ftl) asks of a layer whose parts are the fields `directory` and `cache`.
#[macro_export]
macro_rules! directory_and_cache {
    () => {
        fn directory(&self) -> Option<&$crate::ftl::Directory> {
            Some(&self.directory)
        }

        fn directory_mut(&mut self) -> Option<&mut $crate::ftl::Directory> {
            Some(&mut self.directory)
        }

        fn cache(&self) -> &$crate::ftl::CacheUse {
            &self.cache
        }

        fn cache_mut(&mut self) -> &mut $crate::ftl::CacheUse {
            &mut self.cache
        }
    };
}

mod cola;
mod condensed;
mod cpftl;
mod dftl;
mod directory;
mod dirty_buffer;
mod entry_map;
mod ideal;
mod index;
mod leaftl;
mod learnedftl;
mod sftl;
mod tpftl;

pub use cola::{OnCpu, Options as ColaOptions, Search, Searches, View};
pub use cpftl::Options as CpftlOptions;
pub use directory::{Directory, ENTRY_BYTES, entries_per_page, translation_pages};
pub use entry_map::{EntryMap, check_clean};
pub use index::NONE;
pub(crate) use index::{Index, Links, List, Slab};
pub(crate) use leaftl::check_error_bound;

use crate::config::{Config, ConfigError};
use crate::device::{Cause, Device, Geometry, Grouping, Ppn, Shape};
use crate::mining::History;
use std::ops::Range;

/// A data page that garbage collection moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Move {
    /// The logical page.
    pub lpn: u32,
    /// Where it was.
    pub from: Ppn,
    /// Where it is.
    pub to: Ppn,
}

/// Use of the map cache.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CacheUse {
    /// Entries that requests needed.
    pub lookups: u64,
    /// Those that were in the cache.
    pub hits: u64,
    /// Bytes in use.
    pub bytes: u64,
    /// The most bytes that were in use.
    pub peak: u64,
}

impl CacheUse {
    /// Begins to count anew.
    pub(crate) fn reset(&mut self) {
        (self.lookups, self.hits) = (0, 0);
    }

    /// Counts a lookup.
    pub fn count(&mut self, hit: bool) {
        self.lookups += 1;
        self.hits += u64::from(hit);
    }

    /// Notes the bytes in use, which never exceed the budget.
    pub fn set_bytes(&mut self, bytes: u64, budget: u64) {
        assert!(bytes <= budget, "the map cache has {bytes} bytes of {budget}");
        self.bytes = bytes;
        self.peak = self.peak.max(bytes);
    }
}

/// A flash translation layer.
pub trait Ftl: Send {
    /// A request for these logical pages begins; lookups or updates of each follow in order.
    fn request(&mut self, _pages: Range<u32>) {}

    /// The host will ask for these logical pages soon, perhaps: a layer may search them together. Nothing of the device is used.
    fn ahead(&mut self, _pages: &mut dyn Iterator<Item = u32>) {}

    /// Where a logical page is, for a read.
    fn lookup(&mut self, device: &mut Device, lpn: u32) -> Option<Ppn>;

    /// Maps a logical page to a page that was written, or to none (TRIM). Returns where it was.
    fn update(&mut self, device: &mut Device, lpn: u32, to: Option<Ppn>) -> Option<Ppn>;

    /// Garbage collection moved data pages; they are sorted by logical page. [`EntryMap`] is how most layers follow.
    fn moved(&mut self, device: &mut Device, moves: &[Move]);

    /// How logical pages are divided into groups that have blocks of their own and are collected as a whole; `None`: they are not.
    fn grouping(&self, _geometry: &Geometry) -> Option<Grouping> {
        None
    }

    /// All pages of a group were collected: they were written in the order of logical pages, and [`Ftl::moved`] was told where.
    fn collected(&mut self, _device: &Device, _pages: Range<u32>) {}

    /// Whether collection is to write the pages of a block in the order of their logical pages, and not in that of the block.
    fn moves_in_order(&self) -> bool {
        false
    }

    /// Where a logical page is, without effect on cache, device or figures: for checks.
    fn peek(&self, device: &Device, lpn: u32) -> Option<Ppn>;

    /// The translation pages on flash; `None`: the whole map is in memory.
    fn directory(&self) -> Option<&Directory> {
        None
    }

    /// As [`Ftl::directory`].
    fn directory_mut(&mut self) -> Option<&mut Directory> {
        None
    }

    /// Takes over the map that was recovered after a power cut: where each logical page is, or [`NONE`]. The layer is new; it
    /// writes nothing.
    fn restore(&mut self, _device: &Device, map: &[u32]) {
        if let Some(directory) = self.directory_mut() {
            directory.restore(map);
        }
    }

    /// Writes a translation page of a map that was restored.
    fn checkpoint(&mut self, device: &mut Device, page: u32) {
        if let Some(directory) = self.directory_mut()
            && directory.range(page).any(|lpn| directory.get(lpn) != NONE)
        {
            directory.store(device, page, Cause::Recovery);
        }
    }

    /// Figures of the map cache.
    fn cache(&self) -> &CacheUse;

    /// As [`Ftl::cache`].
    fn cache_mut(&mut self) -> &mut CacheUse;

    /// Begins to count anew what was done; what the layer holds stays.
    fn reset(&mut self) {
        self.cache_mut().reset();
    }

    /// Figures of the layer's own, by name.
    fn figures(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    /// Checks that what it holds twice agrees: sums, and entries that need not be written with those on flash.
    ///
    /// # Errors
    /// The first disagreement.
    fn check(&self, _device: &Device) -> Result<(), String> {
        Ok(())
    }

    /// The layer as one that is trained before it is measured, if it is one.
    fn trainee(&mut self) -> Option<&mut dyn Trainee> {
        None
    }
}

/// A layer that learns from requests of the past what to write before it is measured.
pub trait Trainee {
    /// Learns from a history of requests; [`Trainee::build`] then writes what it made of it.
    fn learn(&mut self, device: &mut Device, history: History);

    /// Writes one more page of what was learned; `false`: there is none left.
    fn build(&mut self, device: &mut Device) -> bool;
}

/// A translation layer that can be chosen by name.
#[derive(Debug)]
pub struct Layer {
    /// Name in commands and reports.
    pub name: &'static str,
    /// What it is, and its paper.
    pub about: &'static str,
    /// Bytes of map cache that it needs; `None`: the whole map is in memory, whatever the cache.
    pub min_cache: Option<fn(&Config) -> u64>,
    /// Translation pages that it may need for so many logical pages.
    pub map_pages: fn(&Shape, u64) -> u32,
    /// Makes it for an erased device.
    pub make: fn(&Device, &Config) -> Box<dyn Ftl>,
}

/// Every layer.
pub const LAYERS: &[Layer] = &[
    Layer {
        name: "ideal",
        about: "the whole map in memory",
        min_cache: None,
        map_pages: |_, _| 0,
        make: |device, _| Box::new(ideal::Ideal::new(device)),
    },
    Layer {
        name: "dftl",
        about: "cached map entries in a segmented LRU (Gupta et al., ASPLOS 2009)",
        min_cache: Some(|_| dftl::MIN_CACHE),
        map_pages: translation_pages,
        make: |device, config| Box::new(dftl::Dftl::new(device, config.map_cache)),
    },
    Layer {
        name: "sftl",
        about: "condensed translation pages and a dirty buffer (Jiang et al., MSST 2011)",
        min_cache: Some(|config| sftl::min_cache(&config.shape)),
        map_pages: translation_pages,
        make: |device, config| Box::new(sftl::Sftl::new(device, config.map_cache)),
    },
    Layer {
        name: "tpftl",
        about: "two-level lists with prefetch and batch update (Zhou et al., EuroSys 2015)",
        min_cache: Some(|_| tpftl::MIN_CACHE),
        map_pages: translation_pages,
        make: |device, config| Box::new(tpftl::Tpftl::new(device, config.map_cache)),
    },
    Layer {
        name: "cpftl",
        about: "pages of correlated entries found by prediction, and an index of dirty entries (Zhou, UCF 2018)",
        min_cache: Some(cpftl::min_cache),
        map_pages: translation_pages,
        make: |device, config| Box::new(cpftl::Cpftl::new(device, config)),
    },
    Layer {
        name: "leaftl",
        about: "learned segments in levels, with an error bound (Sun et al., ASPLOS 2023)",
        min_cache: Some(|_| leaftl::MIN_CACHE),
        map_pages: leaftl::map_pages,
        make: |device, config| Box::new(leaftl::LeaFtl::new(device, config)),
    },
    Layer {
        name: "learnedftl",
        about: "cached entries, and models with bitmap filters by groups of translation pages (Wang et al., HPCA 2024)",
        min_cache: Some(|_| learnedftl::MIN_CACHE),
        map_pages: translation_pages,
        make: |device, config| Box::new(learnedftl::LearnedFtl::new(device, config)),
    },
    Layer {
        name: "cola",
        about: "the whole map in memory as sorted levels, searched in batches, written at merges (Khasymski, Virginia Tech 2015)",
        min_cache: None,
        map_pages: cola::map_pages,
        make: |device, config| Box::new(cola::Cola::new(device, config)),
    },
];

/// Finds a layer by its name.
///
/// # Errors
/// No layer has that name.
pub fn find(name: &str) -> Result<&'static Layer, ConfigError> {
    LAYERS.iter().find(|layer| layer.name == name).ok_or_else(|| ConfigError::Layer {
        name: name.into(),
        known: LAYERS.iter().map(|layer| layer.name).collect::<Vec<_>>().join(", "),
    })
}

/// The page that an entry names; `None` for [`NONE`].
pub fn some(ppn: u32) -> Option<Ppn> {
    (ppn != NONE).then_some(ppn)
}
