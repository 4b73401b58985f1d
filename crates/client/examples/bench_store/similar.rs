//! How much of one file is found in those before it, by several ways of cutting.

use crate::core_image::core_segments;
use bytes::Bytes;
use std::collections::{HashMap, HashSet};
use std::error::Error;
use tessera_accel::boundaries::{Cutter, Params, Rule};
use tessera_accel::hash::{Hash, chunk_hash};
use tessera_policy::{Chunking, Policy};

/// Pages that are all zeros are counted apart.
const PAGE_BYTES: usize = 4096;

/// A way to cut: `CHUNKING`, as in policies, or `segments/FLOOR+CHUNKING`, which keeps to segments of core images of at
/// least FLOOR bytes.
pub struct Cut {
    rule: Rule,
    floor_bytes: Option<u64>,
}

impl Cut {
    pub fn parse(text: &str) -> Result<Cut, Box<dyn Error>> {
        let (floor_bytes, chunking) = match text.strip_prefix("segments/").and_then(|t| t.split_once('+')) {
            Some((floor, chunking)) => (Some(floor.parse()?), chunking),
            None => (None, text),
        };
        let rule = match Policy::from_hints([("chunking", chunking)])?.chunking {
            Chunking::Fixed { size_bytes } => Rule::fixed(size_bytes as usize)?,
            Chunking::Cdc { min_bytes, max_bytes } => Rule::cdc(min_bytes as usize, max_bytes as usize)?,
            Chunking::Cbch { window_bytes, low_bits, advance_bytes } => {
                Rule::cbch(window_bytes as usize, low_bits, advance_bytes as usize)?
            }
        };
        Ok(Cut { rule, floor_bytes })
    }

    /// Of the content-defined rule, if it is one.
    pub fn params(&self) -> Option<Params> {
        if let Rule::Cdc(params) = self.rule { Some(params) } else { None }
    }

    /// Where the chunks end.
    pub fn ends(&self, bytes: &[u8]) -> Vec<u64> {
        let mut edges = self.floor_bytes.map_or_else(Vec::new, |floor| core_segments(bytes, floor));
        edges.retain(|edge| *edge > 0 && *edge < bytes.len() as u64);
        edges.push(bytes.len() as u64);
        let (mut ends, mut cutter, mut from) = (Vec::new(), Cutter::new(self.rule), 0);
        for edge in edges {
            let first = ends.len();
            cutter.feed(&bytes[from as usize..edge as usize], &mut ends);
            ends.extend(cutter.finish());
            ends[first..].iter_mut().for_each(|end| *end += from);
            from = edge;
        }
        ends
    }
}

/// What was seen, by way of cutting.
#[derive(Default)]
pub struct Seen(HashMap<String, (HashSet<Hash>, HashSet<Hash>)>);

impl Seen {
    /// Cuts a file, says what of it was in the one before and in all before, and keeps it in mind.
    pub fn look(&mut self, cut: &str, bytes: &Bytes) -> Result<String, Box<dyn Error>> {
        let ends = Cut::parse(cut)?.ends(bytes);
        let (last, all) = self.0.entry(cut.to_string()).or_default();
        let (mut now, mut from) = (HashSet::new(), 0);
        let (mut in_last, mut in_all, mut in_itself, mut zeros) = (0, 0, 0, 0);
        for end in &ends {
            let chunk = &bytes[from..*end as usize];
            from = *end as usize;
            if is_zero(chunk) {
                zeros += chunk.len();
                continue;
            }
            let name = chunk_hash(chunk);
            in_last += if last.contains(&name) { chunk.len() } else { 0 };
            in_all += if all.contains(&name) { chunk.len() } else { 0 };
            in_itself += if now.insert(name) { 0 } else { chunk.len() };
        }
        all.extend(now.iter().copied());
        *last = now;
        let pages: usize = bytes.chunks(PAGE_BYTES).filter(|page| is_zero(page)).map(<[u8]>::len).sum();
        Ok(format!(
            "bytes={} chunks={} zero_page_bytes={pages} zero_chunk_bytes={zeros} in_last={in_last} in_all={in_all} \
             in_itself={in_itself}",
            bytes.len(),
            ends.len(),
        ))
    }
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}
