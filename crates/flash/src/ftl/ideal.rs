//! The ideal layer: the whole map is in memory, so translation costs no flash operation. It bounds the others.

use super::{CacheUse, ENTRY_BYTES, Ftl, Move, NONE, some};
use crate::device::{Device, Ppn};

/// The whole map.
#[derive(Debug)]
pub struct Ideal {
    map: Vec<u32>,
    cache: CacheUse,
}

impl Ideal {
    /// The empty map of a device.
    pub fn new(device: &Device) -> Self {
        let map = vec![NONE; device.geometry().logical_pages as usize];
        let bytes = map.len() as u64 * u64::from(ENTRY_BYTES);
        Ideal { map, cache: CacheUse { bytes, peak: bytes, ..CacheUse::default() } }
    }
}

impl Ftl for Ideal {
    fn lookup(&mut self, _: &mut Device, lpn: u32) -> Option<Ppn> {
        self.cache.count(true);
        some(self.map[lpn as usize])
    }

    fn update(&mut self, _: &mut Device, lpn: u32, to: Option<Ppn>) -> Option<Ppn> {
        self.cache.count(true);
        some(std::mem::replace(&mut self.map[lpn as usize], to.unwrap_or(NONE)))
    }

    fn moved(&mut self, _: &mut Device, moves: &[Move]) {
        for m in moves {
            let before = std::mem::replace(&mut self.map[m.lpn as usize], m.to);
            assert_eq!(before, m.from, "logical page {} was not there", m.lpn);
        }
    }

    fn peek(&self, _: &Device, lpn: u32) -> Option<Ppn> {
        some(self.map[lpn as usize])
    }

    fn restore(&mut self, _: &Device, map: &[u32]) {
        self.map.copy_from_slice(map);
    }

    fn cache(&self) -> &CacheUse {
        &self.cache
    }

    fn cache_mut(&mut self) -> &mut CacheUse {
        &mut self.cache
    }
}
