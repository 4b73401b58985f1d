//! Which hosts a file's bytes go to: the values of the hint `placement`.
//!
//! Placement selects a placement group. The manager turns each value into a host (the file's *affinity*), and selects a
//! group whose first copy or data is on it. Source: WOSS's data placement tags (dissertation, chapter 3, table 12).

use crate::MIN_CHUNK_BYTES;
use crate::size::{format_size, parse_size};
use std::fmt;

/// Longest name of a collocation group, in bytes.
const MAX_GROUP_BYTES: usize = 64;
/// Most chunks in a region.
const MAX_REGION_CHUNKS: u64 = 1 << 32;

/// Where a file's bytes should be.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Placement {
    /// Anywhere: balanced over all disks.
    Spread,
    /// On the host that writes them.
    Local,
    /// All files of this group on one host.
    Collocate {
        /// Name of the group.
        group: String,
    },
    /// Each region on the next host.
    Scatter(Region),
}

/// Length of a region of a scattered file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Region {
    /// In bytes.
    Bytes(u64),
    /// In chunks of mean length.
    Chunks(u64),
}

impl Placement {
    pub(crate) fn parse(value: &str) -> Result<Self, String> {
        match value.split_once(':').map(|(word, rest)| (word, rest.trim())) {
            None if value == "spread" => Ok(Placement::Spread),
            None if value == "local" => Ok(Placement::Local),
            Some(("collocate", group)) => Placement::collocate(group),
            Some(("scatter", region)) => Region::parse(region).map(Placement::Scatter),
            _ => Err("not a placement".into()),
        }
    }

    fn collocate(group: &str) -> Result<Self, String> {
        match group.len() {
            1..=MAX_GROUP_BYTES if !group.contains(char::is_control) => {
                Ok(Placement::Collocate { group: group.to_string() })
            }
            1..=MAX_GROUP_BYTES => Err("a group's name has no control characters".into()),
            len => Err(format!("a group's name has 1 to {MAX_GROUP_BYTES} bytes, not {len}")),
        }
    }
}

impl Region {
    fn parse(text: &str) -> Result<Self, String> {
        if let Some(count) = text.strip_suffix("chunks") {
            return match count.trim().parse() {
                Ok(count @ 1..=MAX_REGION_CHUNKS) => Ok(Region::Chunks(count)),
                _ => Err(format!("{:?} is not a number of chunks from 1 to 2^32", count.trim())),
            };
        }
        match parse_size(text).map_err(|e| e.to_string())? {
            bytes @ MIN_CHUNK_BYTES.. => Ok(Region::Bytes(bytes)),
            _ => Err(format!("a region of {text} is shorter than the shortest chunk, 4K")),
        }
    }
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Placement::Spread => f.write_str("spread"),
            Placement::Local => f.write_str("local"),
            Placement::Collocate { group } => write!(f, "collocate:{group}"),
            Placement::Scatter(Region::Bytes(bytes)) => write!(f, "scatter:{}", format_size(*bytes)),
            Placement::Scatter(Region::Chunks(count)) => write!(f, "scatter:{count}chunks"),
        }
    }
}
