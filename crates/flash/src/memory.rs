//! How much memory a simulated SSD takes.

use crate::config::{Config, ConfigError};
use crate::ftl;

/// Eighths of a byte of each physical page: owner, order number, and whether it is valid.
const PAGE_BITS: u64 = 8 * (4 + 5) + 1;

/// Bytes of each block: what is known of it, its place among the free ones, and when its die is free.
const BLOCK_BYTES: u64 = 72;

/// Bytes that each byte of map cache takes at most: entries stand in hash tables and lists.
const CACHE_BYTES: u64 = 16;

/// The most bytes of map cache that a logical page has a use for.
const CACHE_PAGE_BYTES: u64 = 64;

/// Bytes of each page that waits in the write buffer: an entry in a tree, and another one while all are programmed in order.
const BUFFERED_BYTES: u64 = 24;

/// Bytes of each logical page in the map of a layer.
fn map_bytes(layer: &str) -> u64 {
    match layer {
        // Levels of sorted entries, and another copy of them while they are merged.
        "cola" => 29,
        // Segments that were learned from pages written in random order, one for each, and the gaps that groups leave in the heap as
        // they grow and shrink (bench/results/flash.md).
        "leaftl" => 22,
        "learnedftl" => 5,
        _ => 4,
    }
}

impl Config {
    /// The most bytes that recovery after a power cut takes besides: the map that it finds, and a second layer.
    ///
    /// # Errors
    /// The SSD cannot be made.
    pub fn recovery_bytes(&self) -> Result<u64, ConfigError> {
        let geometry = self.geometry(ftl::find(&self.ftl)?)?;
        Ok((4 + map_bytes(&self.ftl)) * u64::from(geometry.logical_pages))
    }

    /// The most bytes of memory that the SSD takes (docs/flash.md); what no request touches may take less.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn memory_bytes(&self) -> Result<u64, ConfigError> {
        let geometry = self.geometry(ftl::find(&self.ftl)?)?;
        let (physical, logical) = (geometry.pages(), u64::from(geometry.logical_pages));
        let contents = if self.contents { 4 * physical } else { 0 };
        let buffered = BUFFERED_BYTES * (self.write_buffer / u64::from(self.shape.page_bytes) / 2).min(logical);
        let device = physical * PAGE_BITS / 8 + contents + u64::from(geometry.block_count()) * BLOCK_BYTES;
        Ok(device + map_bytes(&self.ftl) * logical + self.cache_bytes() + buffered)
    }

    /// The most bytes of memory that the map cache takes of these.
    pub fn cache_bytes(&self) -> u64 {
        CACHE_BYTES * self.map_cache.min(CACHE_PAGE_BYTES * (self.capacity / u64::from(self.shape.page_bytes)))
    }
}
