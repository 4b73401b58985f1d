//! How large `cola`'s buffer is.

use crate::config::ConfigError;
use crate::device::Shape;

/// Bytes of an entry in a level: logical and physical page number.
pub const CACHED_BYTES: u32 = 8;

/// The two ways to size the insertion buffer of 000, section 4.2.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Options {
    /// So many entries, whatever the device holds: each level costs the same, and there are more of them on larger devices.
    Buffer(u32),
    /// As many entries as bound the number of levels by this: the whole look-up costs the same on every device.
    Height(u32),
}

impl Default for Options {
    fn default() -> Self {
        Options::Buffer(4096)
    }
}

impl Options {
    /// Reads `buffer=N` (entries) or `height=N` (levels).
    ///
    /// # Errors
    /// Something else, or a number outside its range.
    pub fn parse(text: &str) -> Result<Options, ConfigError> {
        let (key, value) = text.split_once('=').ok_or_else(|| ConfigError::Cola(text.into()))?;
        let number = |range: std::ops::RangeInclusive<u32>, words| {
            let wrong = || ConfigError::Key { key: key.into(), value: value.into(), range: words };
            value.parse().ok().filter(|n| range.contains(n)).ok_or_else(wrong)
        };
        match key {
            "buffer" => Ok(Options::Buffer(number(64..=1 << 24, "64 to 16777216 entries")?)),
            "height" => Ok(Options::Height(number(1..=24, "1 to 24 levels")?)),
            _ => Err(ConfigError::Cola(text.into())),
        }
    }

    /// Entries of the buffer for so many logical pages: a multiple of those in a translation page, so that a level ends with a
    /// full page, unless the device is smaller.
    pub fn buffer(self, shape: &Shape, logical_pages: u32) -> u32 {
        let wanted = match self {
            Options::Buffer(entries) => entries,
            // Level i holds `buffer << i` entries, and the lowest one all pages.
            Options::Height(levels) => logical_pages.div_ceil(1 << (levels - 1)),
        };
        let per_page = entries_per_page(shape);
        wanted.next_multiple_of(per_page).min(logical_pages / per_page * per_page).max(per_page.min(logical_pages))
    }
}

/// Entries in a page of a level.
pub fn entries_per_page(shape: &Shape) -> u32 {
    shape.page_bytes / CACHED_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_and_wrong_ones_refused() {
        assert_eq!(Options::parse("buffer=64").unwrap(), Options::Buffer(64));
        assert_eq!(Options::parse("height=8").unwrap(), Options::Height(8));
        for bad in ["", "buffer", "buffer=63", "buffer=x", "height=0", "height=25", "levels=3", "buffer=64,height=2"] {
            assert!(Options::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn buffers_are_whole_pages_of_the_map() {
        let buffer = |options: Options, pages| options.buffer(&Shape::ONE_DIE, pages);
        assert_eq!(buffer(Options::Buffer(4096), 1 << 22), 4096);
        assert_eq!(buffer(Options::Buffer(100), 1 << 22), 512);
        assert_eq!(buffer(Options::Buffer(4096), 3000), 2560, "at most what the device holds");
        assert_eq!(buffer(Options::Buffer(4096), 7), 7);
        assert_eq!(buffer(Options::Height(8), 1 << 22), 1 << 15);
        assert_eq!(buffer(Options::Height(24), 1 << 22), 512);
    }
}
