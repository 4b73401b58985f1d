//! How a simulated SSD is set up, and why it cannot be.

use crate::collect::Policy;
use crate::device::{Geometry, Shape, Timing};
use crate::ftl;

/// A simulated SSD.
#[derive(Debug, Clone)]
pub struct Config {
    /// Bytes that the host can address.
    pub capacity: u64,
    /// Name of the translation layer ([`ftl::LAYERS`]).
    pub ftl: String,
    /// Bytes of map cache.
    pub map_cache: u64,
    /// Bytes of the device's write buffer, in two halves; 0: none.
    pub write_buffer: u64,
    /// What the layer `cpftl` does.
    pub cpftl: ftl::CpftlOptions,
    /// Pages by which a place that the layer `leaftl` predicts may be wrong.
    pub error_bound: u32,
    /// How large the buffer of the layer `cola` is.
    pub cola: ftl::ColaOptions,
    /// What searches the levels of the layer `cola`.
    pub searches: ftl::Searches,
    /// Channels, chips, dies, planes, pages.
    pub shape: Shape,
    /// Times of flash operations.
    pub timing: Timing,
    /// Which block is collected.
    pub policy: Policy,
    /// Spare blocks, as a share of the capacity.
    pub over_provisioning: f64,
    /// Whether blocks are collected ahead: after writes, and while the device is idle.
    pub background: bool,
    /// Whether static wear levelling moves data that does not change.
    pub wear_levelling: bool,
    /// Whether the device keeps a number for what each page holds.
    pub contents: bool,
}

impl Config {
    /// An SSD with the defaults of the CPFTL paper: 256 KiB of map cache, 15 % spare, the times of table 3.3.
    pub fn new(capacity: u64, ftl: &str) -> Self {
        Config {
            capacity,
            ftl: ftl.into(),
            map_cache: 256 << 10,
            write_buffer: 0,
            cpftl: ftl::CpftlOptions::default(),
            error_bound: 0,
            cola: ftl::ColaOptions::default(),
            searches: ftl::Searches::default(),
            shape: Shape::ONE_DIE,
            timing: Timing::SIMULATION,
            policy: Policy::Greedy,
            over_provisioning: 0.15,
            background: true,
            wear_levelling: true,
            contents: false,
        }
    }
}

/// Why an SSD cannot be simulated. Each message names the way out.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ConfigError {
    /// Not a whole number of pages.
    #[error(
        "a capacity of {capacity} bytes is not a whole number of pages of {page_bytes} bytes; round it, or choose another page size"
    )]
    Capacity {
        /// Bytes asked for.
        capacity: u64,
        /// Bytes of a page.
        page_bytes: u32,
    },
    /// More pages than a map entry can number.
    #[error(
        "a capacity of {capacity} bytes is too large: with pages of this size and this over-provisioning at most {max} bytes can be addressed; choose {}",
        if *max == 0 { "fewer planes or smaller blocks" } else { "larger pages" }
    )]
    TooLarge {
        /// Bytes asked for.
        capacity: u64,
        /// Bytes that can be addressed.
        max: u64,
    },
    /// Too little is spare to collect garbage.
    #[error(
        "over-provisioning leaves {have} spare blocks in each plane and {needed} are needed; raise the over-provisioning or the capacity, or use smaller blocks or fewer planes"
    )]
    Spare {
        /// Blocks that are spare in each plane.
        have: u64,
        /// Blocks that must be.
        needed: u64,
    },
    /// Over-provisioning outside its range.
    #[error("over-provisioning of {0} is not between 0 and 10 (1000 %)")]
    OverProvisioning(f64),
    /// No layer has that name.
    #[error("no translation layer is named `{name}`; there are {known}")]
    Layer {
        /// The name.
        name: String,
        /// Names that are known.
        known: String,
    },
    /// The layer cannot work with so little.
    #[error("a map cache of {bytes} bytes is too small for {ftl}: at this page size it needs {min} bytes")]
    MapCache {
        /// The layer.
        ftl: &'static str,
        /// Bytes asked for.
        bytes: u64,
        /// Bytes that the layer needs.
        min: u64,
    },
    /// Not a geometry.
    #[error(
        "`{0}` is not a geometry: write one-die, four-channels, or channels=N,chips=N,dies=N,planes=N,pages=N,page=N,oob=N"
    )]
    Geometry(String),
    /// Not a timing.
    #[error("`{0}` is not a timing: write simulation, emulator, or read=25us,program=200us,erase=1.5ms,transfer=10us")]
    Timing(String),
    /// Not an option of `cpftl`.
    #[error(
        "`{0}` is no option of cpftl: write no-sequential, no-correlation, full-mining, full-search, no-dirty-index, no-skew, or support=N,window=N,region=N,pairs=N,bring=N,outdated=N,predictor=N,dirty=N,hot=N,keep=N"
    )]
    Cpftl(String),
    /// Not an option of `cola`.
    #[error("`{0}` is no option of cola: write buffer=N (entries) or height=N (levels)")]
    Cola(String),
    /// The neighbours of a page do not fit into its out-of-band area.
    #[error(
        "an error bound of {bound} pages needs the numbers of as many neighbours on each side of a page, and its out-of-band area of {oob_bytes} bytes has those of {most}; lower the bound, or use a geometry with a larger oob"
    )]
    ErrorBound {
        /// Pages asked for.
        bound: u32,
        /// Out-of-band bytes of a page.
        oob_bytes: u32,
        /// The most pages.
        most: u32,
    },
    /// Something is set more than once.
    #[error("`{key}` is named more than once in `{text}`; name it once")]
    Twice {
        /// What is set.
        key: String,
        /// All that is set.
        text: String,
    },
    /// A number outside its range.
    #[error("{key} cannot be `{value}`: it must be {range}")]
    Key {
        /// What is set.
        key: String,
        /// To what.
        value: String,
        /// What it may be.
        range: &'static str,
    },
}

/// Divides options with commas between them; each is a word or `KEY=VALUE`.
///
/// # Errors
/// A key or word is there twice.
pub(crate) fn options(text: &str) -> Result<Vec<&str>, ConfigError> {
    let key = |part: &&str| part.split_once('=').map_or(*part, |(key, _)| key).to_string();
    let parts: Vec<&str> = text.split(',').collect();
    let mut seen = std::collections::BTreeSet::new();
    match parts.iter().map(key).find(|key| !seen.insert(key.clone())) {
        Some(key) => Err(ConfigError::Twice { key, text: text.into() }),
        None => Ok(parts),
    }
}

impl Config {
    /// The device with a layer.
    pub(crate) fn geometry(&self, layer: &ftl::Layer) -> Result<Geometry, ConfigError> {
        self.check(layer)?;
        let translation = (layer.map_pages)(&self.shape, self.capacity / u64::from(self.shape.page_bytes));
        self.shape.geometry(self.capacity, self.over_provisioning, translation)
    }

    /// The capacity; or if it is no whole number of pages, or too little of it would be spare, the least above it that can be. One that
    /// cannot be for another reason stays as it is.
    pub fn enough_capacity(&self) -> u64 {
        let Ok(layer) = ftl::find(&self.ftl) else { return self.capacity };
        let page = u64::from(self.shape.page_bytes);
        let at = |pages: u64| Config { capacity: pages * page, ..self.clone() }.geometry(layer);
        let is_short = |pages: u64| matches!(at(pages), Err(ConfigError::Spare { .. }));
        let (mut short, mut enough) = (self.capacity.div_ceil(page), self.capacity.div_ceil(page));
        while is_short(enough) {
            (short, enough) = (enough, enough * 2);
        }
        if at(enough).is_err() {
            return self.capacity;
        }
        while short + 1 < enough {
            let middle = short.midpoint(enough);
            match is_short(middle) {
                true => short = middle,
                false => enough = middle,
            }
        }
        enough * page
    }

    /// Checks what the geometry does not check.
    fn check(&self, layer: &ftl::Layer) -> Result<(), ConfigError> {
        if !(0.0..=10.0).contains(&self.over_provisioning) {
            return Err(ConfigError::OverProvisioning(self.over_provisioning));
        }
        ftl::check_error_bound(self)?;
        if (1..2 * u64::from(self.shape.page_bytes)).contains(&self.write_buffer) {
            let (key, value) = ("the write buffer".into(), format!("{} bytes", self.write_buffer));
            return Err(ConfigError::Key { key, value, range: "0, or at least two pages" });
        }
        let min = layer.min_cache.map_or(0, |min| min(self));
        match self.map_cache < min {
            true => Err(ConfigError::MapCache { ftl: layer.name, bytes: self.map_cache, min }),
            false => Ok(()),
        }
    }
}
