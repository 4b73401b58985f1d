//! The shape of a device: how many channels, chips, dies, planes, blocks and pages it has.

use crate::ConfigError;
use crate::config::options;

/// The most logical pages: the top bit of a page's owner marks translation pages ([`super::Owner`]).
pub const PAGES_MAX: u64 = (1 << 31) - 2;

/// Free blocks of each plane below which garbage is collected before a write goes on. Of them a write takes at most one for data, and
/// the collections that follow take one for moved pages, which the erase gives back. The map takes one, and never the
/// [`KEPT_BLOCKS`].
///
/// That suffices however many translation pages a layer writes. A page that is written again leaves garbage in another block of the map.
/// So free pages, free pages of open blocks of the map and garbage of the map stay as many as they were: at
/// least three blocks' worth in each plane. If no plane has more than the kept two blocks free, and no block of the map is open, the rest
/// is garbage in full blocks of the map, and collecting one of them makes room. A page that is written for the first time leaves no
/// garbage; blocks for all of those stay free beyond the reserve.
pub const RESERVE_BLOCKS: u32 = 5;

/// Free blocks of a plane that the map does not take: one for moved pages, and one to collect a block of the map into, whose erase gives
/// it back.
pub(crate) const KEPT_BLOCKS: u32 = 2;

const _: () =
    assert!(RESERVE_BLOCKS > KEPT_BLOCKS + 2, "data and moved pages take a block each, and the map needs one");

/// Blocks of a plane that may be partly written: one for each stream of writes.
pub const STREAMS: usize = 6;

/// What does not depend on the capacity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Channels of the device.
    pub channels: u32,
    /// Chips on a channel.
    pub chips: u32,
    /// Dies of a chip. A die does one operation at a time.
    pub dies: u32,
    /// Planes of a die. They share the die's time; each has its own blocks.
    pub planes: u32,
    /// Pages of a block.
    pub pages: u32,
    /// Bytes of a page.
    pub page_bytes: u32,
    /// Out-of-band bytes of a page.
    pub oob_bytes: u32,
}

/// The shape of a device with a capacity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Channels, chips, dies, planes, pages.
    pub shape: Shape,
    /// Blocks of a plane.
    pub blocks: u32,
    /// Pages that the host can address.
    pub logical_pages: u32,
}

impl Shape {
    /// One die of 256 KiB blocks (table 3.3 of the CPFTL paper, which names no parallelism; its simulator serves one
    /// operation at a time).
    pub const ONE_DIE: Shape =
        Shape { channels: 1, chips: 1, dies: 1, planes: 1, pages: 64, page_bytes: 4096, oob_bytes: 128 };

    /// Four channels with a die each (table 3.6, the paper's emulator).
    pub const FOUR_CHANNELS: Shape = Shape { channels: 4, ..Shape::ONE_DIE };

    /// Planes of the device.
    pub fn units(&self) -> u32 {
        self.channels * self.chips * self.dies * self.planes
    }

    /// Reads a preset (`one-die`, `four-channels`) or `KEY=N,…` with the keys channels, chips, dies, planes, pages,
    /// page (bytes, with K) and oob; keys that are not named are those of `one-die`.
    ///
    /// # Errors
    /// An unknown name, or a number outside its range.
    pub fn parse(text: &str) -> Result<Shape, ConfigError> {
        match text {
            "one-die" => return Ok(Self::ONE_DIE),
            "four-channels" => return Ok(Self::FOUR_CHANNELS),
            _ => {}
        }
        let mut shape = Self::ONE_DIE;
        for part in options(text)? {
            let (key, value) = part.split_once('=').ok_or_else(|| ConfigError::Geometry(part.into()))?;
            let (digits, unit) = match value.strip_suffix(['K', 'k']) {
                Some(digits) if key == "page" => (digits, 1024),
                _ => (value, 1),
            };
            let wrong = |range| ConfigError::Key { key: key.into(), value: value.into(), range };
            let (field, range, words) = match key {
                "channels" => (&mut shape.channels, 1..=256, "1 to 256"),
                "chips" => (&mut shape.chips, 1..=64, "1 to 64"),
                "dies" => (&mut shape.dies, 1..=64, "1 to 64"),
                "planes" => (&mut shape.planes, 1..=64, "1 to 64"),
                "pages" => (&mut shape.pages, 4..=4096, "4 to 4096"),
                "page" => (&mut shape.page_bytes, 512..=65_536, "512 to 64K"),
                "oob" => (&mut shape.oob_bytes, 16..=4096, "16 to 4096"),
                _ => return Err(ConfigError::Geometry(part.into())),
            };
            let number = digits.parse::<u32>().ok().and_then(|n| n.checked_mul(unit));
            *field = number.filter(|n| range.contains(n)).ok_or_else(|| wrong(words))?;
        }
        match shape.page_bytes.is_power_of_two() {
            true => Ok(shape),
            false => Err(ConfigError::Key {
                key: "page".into(),
                value: shape.page_bytes.to_string(),
                range: "a power of two",
            }),
        }
    }

    /// The largest capacity in bytes whose pages have numbers, with those that are spare.
    pub fn capacity_max(&self, spare: f64) -> u64 {
        // Blocks are divided among planes, so there are up to a block more in each.
        let pages = f64::from(u32::MAX) - 1.0 - f64::from(self.units()) * f64::from(self.pages);
        PAGES_MAX.min((pages / (1.0 + spare)) as u64) * u64::from(self.page_bytes)
    }

    /// The geometry for a capacity in bytes, of which the device has a share of `spare` more (0.07 is 7 %).
    /// `translation` says how many translation pages a layer keeps for a number of logical pages.
    ///
    /// # Errors
    /// The capacity is not a whole number of pages or too large, or what is spare does not suffice to collect garbage.
    pub fn geometry(&self, capacity: u64, spare: f64, translation: u32) -> Result<Geometry, ConfigError> {
        let page = u64::from(self.page_bytes);
        if capacity == 0 || !capacity.is_multiple_of(page) {
            return Err(ConfigError::Capacity { capacity, page_bytes: self.page_bytes });
        }
        let logical = capacity / page;
        if logical > PAGES_MAX {
            return Err(ConfigError::TooLarge { capacity, max: self.capacity_max(spare) });
        }
        let per_plane = (logical as f64 * (1.0 + spare) / f64::from(self.units()) / f64::from(self.pages)).ceil();
        let physical = per_plane * f64::from(self.units()) * f64::from(self.pages);
        if physical >= f64::from(u32::MAX) {
            return Err(ConfigError::TooLarge { capacity, max: self.capacity_max(spare) });
        }
        let geometry = Geometry { shape: *self, blocks: per_plane as u32, logical_pages: logical as u32 };
        let needed = logical + u64::from(translation);
        let most = u64::from(geometry.valid_max()) * u64::from(self.units());
        if needed > most {
            let have = geometry.pages().saturating_sub(needed) / u64::from(self.units()) / u64::from(self.pages);
            return Err(ConfigError::Spare { have, needed: u64::from(RESERVE_BLOCKS) + STREAMS as u64 + 1 });
        }
        Ok(geometry)
    }
}

impl Geometry {
    /// Pages of the device, spare ones included.
    pub fn pages(&self) -> u64 {
        u64::from(self.shape.units()) * u64::from(self.blocks) * u64::from(self.shape.pages)
    }

    /// Blocks of the device.
    pub fn block_count(&self) -> u32 {
        self.shape.units() * self.blocks
    }

    /// Blocks of a plane that the host's data do not fill.
    pub(crate) fn spare_blocks(&self) -> u32 {
        let data = self.logical_pages.div_ceil(self.shape.units() * self.shape.pages);
        self.blocks.saturating_sub(data)
    }

    /// The most valid pages of a plane: with more, garbage collection could find nothing to gain.
    pub fn valid_max(&self) -> u32 {
        self.blocks.saturating_sub(RESERVE_BLOCKS + STREAMS as u32 + 1) * self.shape.pages
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_are_read_and_wrong_ones_refused() {
        let shape = Shape::parse("channels=8,planes=2,page=16K").unwrap();
        assert_eq!((shape.channels, shape.planes, shape.page_bytes, shape.units()), (8, 2, 16_384, 16));
        for bad in
            ["", "eight", "channels=0", "page=5000", "pages=1", "oob=8", "lanes=2", "page=99999999K", "dies=2,dies=2"]
        {
            assert!(Shape::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_capacity_has_to_fit_the_geometry() {
        let shape = Shape::ONE_DIE;
        let geometry = shape.geometry(1 << 30, 0.15, 256).unwrap();
        assert_eq!((geometry.logical_pages, geometry.blocks), (1 << 18, 4711));
        assert!(matches!(shape.geometry(5000, 0.15, 1), Err(ConfigError::Capacity { .. })));
        assert!(matches!(shape.geometry(1 << 50, 0.15, 1), Err(ConfigError::TooLarge { .. })));
        for spare in [0.07, 0.15, 0.999, 1.1, 4.0, 10.0] {
            let max = shape.capacity_max(spare);
            assert!(shape.geometry(max, spare, 1).is_ok(), "{max} with {spare}");
            let error = shape.geometry(max + (1 << 21), spare, 1).unwrap_err();
            assert_eq!(error, ConfigError::TooLarge { capacity: max + (1 << 21), max });
        }
        assert!(matches!(shape.geometry(1 << 20, 0.07, 1), Err(ConfigError::Spare { .. })));
        let planes = Shape::parse("channels=256,chips=64,dies=64,planes=64").unwrap();
        let error = planes.geometry(1 << 30, 0.15, 1).unwrap_err().to_string();
        assert!(error.ends_with("at most 0 bytes can be addressed; choose fewer planes or smaller blocks"), "{error}");
    }
}
