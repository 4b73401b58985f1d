//! The cut rules of chunks: the values of the hint `chunking`.

use crate::size::{format_size, parse_size};
use std::fmt;

/// How chunks are cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Chunking {
    /// Every `size_bytes`.
    Fixed {
        /// Chunk size.
        size_bytes: u64,
    },
    /// By content, between these lengths.
    Cdc {
        /// No chunk but the last is shorter.
        min_bytes: u64,
        /// No chunk is longer.
        max_bytes: u64,
    },
    /// stdchk's content-based rule (docs/chunking.md, section 1); slow, for comparisons.
    Cbch {
        /// Bytes in a window (m).
        window_bytes: u64,
        /// Low bits of a window's hash that must be zero where a chunk ends (k).
        low_bits: u32,
        /// Bytes a window advances (p).
        advance_bytes: u64,
    },
}

/// Smallest allowed chunk size.
pub const MIN_CHUNK_BYTES: u64 = 4 << 10;
/// Largest allowed chunk size.
pub const MAX_CHUNK_BYTES: u64 = 8 << 20;
/// Largest allowed window of `cbch`.
const MAX_WINDOW_BYTES: u64 = 64 << 10;

impl Chunking {
    pub(crate) fn parse(value: &str) -> Result<Self, String> {
        let size = |text: &str| -> Result<u64, String> {
            let bytes = parse_size(text).map_err(|e| e.to_string())?;
            match (MIN_CHUNK_BYTES..=MAX_CHUNK_BYTES).contains(&bytes) {
                true => Ok(bytes),
                false => Err(format!("{text} is outside 4K..8M")),
            }
        };
        if let Some(text) = value.strip_prefix("fixed:") {
            return Ok(Chunking::Fixed { size_bytes: size(text)? });
        }
        if let Some(text) = value.strip_prefix("cbch:") {
            return Chunking::parse_cbch(text);
        }
        let range = value.strip_prefix("cdc:").ok_or("neither fixed:, cdc: nor cbch:")?;
        let (min, max) = range.split_once("..").ok_or("no MIN..MAX")?;
        let (min_bytes, max_bytes) = (size(min)?, size(max)?);
        match min_bytes.checked_mul(4).is_some_and(|four| four <= max_bytes) {
            true => Ok(Chunking::Cdc { min_bytes, max_bytes }),
            false => Err("MAX must be at least four times MIN, or there is no room for content to decide".into()),
        }
    }

    fn parse_cbch(text: &str) -> Result<Self, String> {
        let mut numbers = text.split(',').map(|n| n.trim().parse::<u64>().map_err(|_| format!("{n:?} is no number")));
        let (m, k, p) = (numbers.next(), numbers.next(), numbers.next());
        let (Some(m), Some(k), Some(p), None) = (m, k, p, numbers.next()) else {
            return Err("cbch: has three numbers, M,K,P".into());
        };
        let (window_bytes, k, advance_bytes) = (m?, k?, p?);
        let low_bits = u32::try_from(k).ok().filter(|k| *k <= 32).ok_or("K is a number of bits up to 32")?;
        if !(1..=MAX_WINDOW_BYTES).contains(&window_bytes) || advance_bytes == 0 {
            return Err(format!("M is 1 to {MAX_WINDOW_BYTES} and P at least 1"));
        }
        let mean = ((1 << low_bits) - 1u64).checked_mul(advance_bytes).and_then(|rest| rest.checked_add(window_bytes));
        match mean {
            Some(MIN_CHUNK_BYTES..=MAX_CHUNK_BYTES) => Ok(Chunking::Cbch { window_bytes, low_bits, advance_bytes }),
            _ => Err("the mean chunk, M + (2^K - 1)·P bytes, is outside 4K..8M".into()),
        }
    }

    /// Mean length of the chunks that it cuts from bytes without structure.
    pub fn mean_bytes(&self) -> u64 {
        match *self {
            Chunking::Fixed { size_bytes } => size_bytes,
            Chunking::Cdc { min_bytes, max_bytes } => (min_bytes * max_bytes).isqrt(),
            Chunking::Cbch { window_bytes, low_bits, advance_bytes } => {
                window_bytes + ((1 << low_bits) - 1) * advance_bytes
            }
        }
    }
}

impl fmt::Display for Chunking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Chunking::Fixed { size_bytes } => write!(f, "fixed:{}", format_size(*size_bytes)),
            Chunking::Cdc { min_bytes, max_bytes } => {
                write!(f, "cdc:{}..{}", format_size(*min_bytes), format_size(*max_bytes))
            }
            Chunking::Cbch { window_bytes, low_bits, advance_bytes } => {
                write!(f, "cbch:{window_bytes},{low_bits},{advance_bytes}")
            }
        }
    }
}
