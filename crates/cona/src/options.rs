//! Options of a store, each with default, unit and range.

use crate::cell_writer::CellShape;
use crate::error::Error;
use crate::index::FILTER_BITS_MAX;

/// Maximum length of a key in bytes.
pub const KEY_BYTES_MAX: usize = 1024;
/// Minimum page size in bytes.
pub(crate) const PAGE_BYTES_MIN: u32 = 2 << 10;
/// Maximum page size in bytes.
pub(crate) const PAGE_BYTES_MAX: u32 = 32 << 10;
/// Maximum length of a value in bytes.
pub const VALUE_BYTES_MAX: usize = 256 << 20;
/// Maximum length of a batch in bytes: keys and values with their lengths, overwritten ones of the same batch included.
pub const BATCH_BYTES_MAX: u64 = u32::MAX as u64;

const _: () =
    assert!(VALUE_BYTES_MAX as u64 + KEY_BYTES_MAX as u64 + 64 < u32::MAX as u64, "the length of a run has 32 bits");
const _: () =
    assert!(PAGE_BYTES_MIN.is_power_of_two() && PAGE_BYTES_MAX.is_power_of_two() && PAGE_BYTES_MIN < PAGE_BYTES_MAX);

/// When a write is acknowledged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// Once the log holds it and is synced. Writers that wait at the same time share one sync.
    Sync,
    /// Once the operating system has it. It survives the end of the process but not a power loss. After a power loss a
    /// prefix of the history survives.
    #[default]
    Os,
}

/// How cells are merged: the shape of the array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// The default. `growth` cells of one level become one of the next. Once all newer cells together weigh
    /// `fold_percent` of the oldest one, all cells are folded into one. Few bytes are written, and nearly all keys are
    /// in one cell with the smallest filter.
    Folded {
        /// Cells of one level that are merged, 2 to 8.
        growth: u32,
        /// Weight of the newer cells in percent of the oldest at which they are folded into it, 10 to 400.
        fold_percent: u32,
    },
    /// The paper's shape: `growth` cells of one level become one of the next, at any depth.
    Doubling {
        /// Cells of one level that are merged, 2 to 8. The paper uses 2, 3 and 4.
        growth: u32,
    },
}

/// Bits of each key's hash in the filters, 0 to 16.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilterBits {
    /// 10 in the smallest cells, 9 in larger ones, 5 in the oldest.
    Auto,
    /// One value for the oldest cell and one for all others; 0 means no filter. The paper uses 16 and 0.
    Fixed {
        /// In every cell except the oldest.
        upper: u32,
        /// In the oldest cell, which holds most keys.
        last: u32,
    },
    /// Level by level.
    Levels {
        /// In cells of level 0 (flushed buffers), 1, 2, …; deeper cells use the eighth value.
        levels: [u32; 8],
        /// In the oldest cell, at any level.
        last: u32,
    },
}

/// Which thread merges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Background {
    /// This many background threads of the store.
    Threads(u32),
    /// The writer's thread: it does all due work before the write returns. For simulations, and for the paper's
    /// single-threaded variant.
    Inline,
}

/// Options of a store.
#[derive(Clone, Debug)]
pub struct Options {
    /// Create a store if the directory holds none.
    pub create: bool,
    /// Bytes of keys and values in an insert buffer before the next one begins, 4 KiB to 1 GiB.
    pub buffer_bytes: u64,
    /// Insert buffers, including the one being filled, 2 to 16.
    pub buffers: u32,
    /// Bytes of memory for the record cache, 0 for none.
    pub cache_bytes: u64,
    /// Page size of cells in bytes, 2 KiB to 32 KiB, a power of two. A lookup reads one page.
    pub page_bytes: u32,
    /// Values of at least this many bytes are kept apart from their keys, in value files, and are not written anew with
    /// every merge; 64 bytes or more. Reading one takes a second read. `u64::MAX`: none is.
    pub apart_bytes: u64,
    /// How cells are merged.
    pub shape: Shape,
    /// Bits of the filters.
    pub filter_bits: FilterBits,
    /// When a write is acknowledged, unless the write says otherwise.
    pub durability: Durability,
    /// Which thread merges.
    pub background: Background,
    /// Bytes that a merge handles before it checks for more urgent work, 64 KiB to 64 MiB.
    pub merge_slice_bytes: u64,
    /// Take the disk's lock. False if the caller holds it.
    pub lock: bool,
    /// Keep a write-ahead log. Without it, a write survives once its buffer is a cell: after [`crate::Store::flush`],
    /// or when the buffer is full. A crash still leaves a prefix of the history in whole batches. For caches whose
    /// source can supply the missing writes.
    pub logged: bool,
    /// Nothing needs to survive. Opening removes the content of the directory; nothing is logged or synced. For indexes
    /// that can be rebuilt.
    pub volatile: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            create: true,
            buffer_bytes: 16 << 20,
            buffers: 2,
            cache_bytes: 32 << 20,
            page_bytes: 4096,
            apart_bytes: 1024,
            shape: Shape::Folded { growth: 4, fold_percent: 50 },
            filter_bits: FilterBits::Auto,
            durability: Durability::Os,
            background: Background::Threads(1),
            merge_slice_bytes: 2 << 20,
            lock: true,
            logged: true,
            volatile: false,
        }
    }
}

impl Options {
    /// The paper's configuration: two buffers of 64 KiB, doubling cells, 16-bit fragments in all cells except the last.
    #[must_use]
    pub fn paper() -> Self {
        Options {
            buffer_bytes: 64 << 10,
            cache_bytes: 0,
            shape: Shape::Doubling { growth: 2 },
            filter_bits: FilterBits::Fixed { upper: 16, last: 0 },
            ..Options::default()
        }
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        let within = |option, value: u64, from: u64, to: u64, allowed| {
            if (from..=to).contains(&value) { Ok(()) } else { Err(Error::BadOption { option, value, allowed }) }
        };
        within("buffer_bytes", self.buffer_bytes, 4096, 1 << 30, "4 KiB to 1 GiB")?;
        within("buffers", self.buffers.into(), 2, 16, "2 to 16")?;
        let (least, most) = (PAGE_BYTES_MIN.into(), PAGE_BYTES_MAX.into());
        within("page_bytes", self.page_bytes.into(), least, most, "a power of two, 2 KiB to 32 KiB")?;
        let power = u64::from(self.page_bytes.is_power_of_two());
        within("page_bytes", u64::from(self.page_bytes) * power, least, most, "a power of two, 2 KiB to 32 KiB")?;
        within("apart_bytes", self.apart_bytes, 64, u64::MAX, "64 or more, u64::MAX for never")?;
        within("merge_slice_bytes", self.merge_slice_bytes, 64 << 10, 64 << 20, "64 KiB to 64 MiB")?;
        let growth = match self.shape {
            Shape::Folded { growth, fold_percent } => {
                within("fold_percent", fold_percent.into(), 10, 400, "10 to 400")?;
                growth
            }
            Shape::Doubling { growth } => growth,
        };
        within("growth", growth.into(), 2, 8, "2 to 8")?;
        let most = match self.filter_bits {
            FilterBits::Auto => 0,
            FilterBits::Fixed { upper, last } => upper.max(last),
            FilterBits::Levels { levels, last } => levels.into_iter().fold(last, u32::max),
        };
        within("filter_bits", most.into(), 0, FILTER_BITS_MAX.into(), "0 to 16")?;
        if let Background::Threads(threads) = self.background {
            within("background threads", threads.into(), 1, 16, "1 to 16")?;
        }
        Ok(())
    }

    /// Bytes by which a log grows.
    pub(crate) fn log_step_bytes(&self) -> u64 {
        (self.buffer_bytes / 16).clamp(256, 1 << 20)
    }

    /// Bytes of a log at which its buffer counts as full. Overwritten records take no more room in the buffer, but they
    /// do in the log.
    pub(crate) fn log_bytes_max(&self) -> u64 {
        self.buffer_bytes.saturating_mul(4)
    }

    /// How a new cell is written.
    pub(crate) fn cell_shape(&self, level: u32, oldest: bool) -> CellShape {
        let filter_bits = self.filter_bits_of(level, oldest);
        CellShape { page_bytes: self.page_bytes, filter_bits, apart_bytes: self.apart_bytes }
    }

    /// Filter bits of a new cell.
    pub(crate) fn filter_bits_of(&self, level: u32, oldest: bool) -> u32 {
        match self.filter_bits {
            FilterBits::Auto if oldest => 5,
            FilterBits::Auto => 10_u32.saturating_sub(level).max(9),
            FilterBits::Fixed { last, .. } | FilterBits::Levels { last, .. } if oldest => last,
            FilterBits::Fixed { upper, .. } => upper,
            FilterBits::Levels { levels, .. } => levels[(level as usize).min(levels.len() - 1)],
        }
    }
}

/// Rejects keys that no store can hold.
pub(crate) fn check_key(key: &[u8]) -> Result<(), Error> {
    match key.len() {
        0 => Err(Error::EmptyKey),
        1..=KEY_BYTES_MAX => Ok(()),
        len_bytes => Err(Error::KeyTooLong { len_bytes }),
    }
}

pub(crate) fn check_value(value: &[u8]) -> Result<(), Error> {
    if value.len() > VALUE_BYTES_MAX { Err(Error::ValueTooLong { len_bytes: value.len() }) } else { Ok(()) }
}

/// Rejects batches that no frame of the log can hold.
pub(crate) fn check_batch(len_bytes: u64) -> Result<(), Error> {
    if len_bytes > BATCH_BYTES_MAX { Err(Error::BatchTooLong { len_bytes }) } else { Ok(()) }
}
