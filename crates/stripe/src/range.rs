//! A range of a chunk in whole 16 KiB groups, verified by the groups' hashes without the rest of the chunk (P2).

use crate::class::Class;
use crate::layout::ClassLayout;
use bytes::Bytes;
use std::ops::Range;
use std::sync::Arc;
use tessera_accel::ReconstructJob;
use tessera_accel::hash::{GROUP_BYTES, HASH_BYTES, Hash, verify_group, verify_groups};
use tessera_net::BufferPool;

/// Some bytes of a fragment.
#[derive(Debug, Clone)]
pub struct RangePart {
    /// Fragment number.
    pub number: u32,
    /// Position of the first byte in the fragment.
    pub at: usize,
    /// The bytes.
    pub bytes: Bytes,
}

/// Makes the bytes `range` of a chunk from parts of fragments.
#[derive(Debug)]
pub struct RangeJob {
    /// Class of the chunk.
    pub class: Arc<Class>,
    /// Length of the chunk in bytes.
    pub chunk_len: u64,
    /// Name of the chunk.
    pub name: Hash,
    /// Group hashes as a node sent them, 32 bytes each.
    pub groups: Bytes,
    /// Range of the chunk's bytes; it starts at a group boundary, and ends at one or at the end of the chunk.
    pub range: Range<u64>,
    /// One part of a copy over the whole range; or parts of the slices that hold bytes of the range. For a missing
    /// slice there are parts of as many other fragments as decoding needs, over the positions that [`steps_around`]
    /// returns.
    pub parts: Vec<RangePart>,
}

impl RangeJob {
    /// The verified bytes; `None` if the group hashes do not lead to the name, or the bytes do not match them. Takes
    /// memory from `pool`.
    pub fn run(&self, pool: &BufferPool) -> Option<Bytes> {
        let group = GROUP_BYTES as u64;
        assert!(self.range.start.is_multiple_of(group), "a range starts at a group, not at {}", self.range.start);
        assert!(
            self.range.end.is_multiple_of(group) || self.range.end == self.chunk_len,
            "a range ends with a group or the chunk ({}), not at {}",
            self.chunk_len,
            self.range.end
        );
        let (hashes, rest) = self.groups.as_chunks::<HASH_BYTES>();
        if !rest.is_empty() {
            return None;
        }
        verify_groups(&self.name, self.chunk_len, hashes).ok()?;
        let mut buffer = pool.get((self.range.end - self.range.start) as usize);
        let all = self.range.start as usize..self.range.end as usize;
        let copies = self.parts.iter().filter(|part| self.class.is_copy(part.number));
        match copies.filter_map(|part| covering(part, &all)).find(|bytes| bytes.len() == buffer.len()) {
            Some(bytes) => buffer.copy_from_slice(bytes),
            None => self.fill_slices(&mut buffer)?,
        }
        let first = self.range.start / GROUP_BYTES as u64;
        for (i, group) in buffer.chunks(GROUP_BYTES).enumerate() {
            verify_group(first + i as u64, self.chunk_len, hashes, group).ok()?;
        }
        Some(buffer.freeze())
    }

    fn fill_slices(&self, buffer: &mut [u8]) -> Option<()> {
        for (number, positions) in slices(&self.class, self.chunk_len, self.range.clone()) {
            let start = self.class.slice_range(self.chunk_len, number).start as u64 + positions.start as u64;
            let at = (start - self.range.start) as usize;
            self.fill(number, positions.clone(), &mut buffer[at..at + positions.len()])?;
        }
        Some(())
    }

    /// Fills `out` with positions `positions` of slice `number`, as received or decoded from other fragments.
    fn fill(&self, number: u32, positions: Range<usize>, out: &mut [u8]) -> Option<()> {
        let coder = self.class.coder()?;
        let of_it = self.parts.iter().filter(|part| part.number == number);
        let here = of_it.filter_map(|part| covering(part, &positions)).find(|bytes| bytes.len() == out.len());
        if let Some(bytes) = here {
            out.copy_from_slice(bytes);
            return Some(());
        }
        let around = steps_around(&self.class, self.chunk_len, positions.clone());
        let mut present: Vec<(usize, &[u8])> = Vec::new();
        for part in self.parts.iter().filter(|p| p.number != number && p.at <= around.start) {
            // The code treats a short data fragment as padded with zeros.
            let coded = self.class.coded_len(self.chunk_len, part.number);
            let wanted = coded.min(around.end).saturating_sub(around.start);
            let bytes = covering(part, &around).unwrap_or_default();
            let bytes = &bytes[..bytes.len().min(wanted)];
            let index = part.number as usize;
            if bytes.len() == wanted && present.iter().all(|(known, _)| *known != index) {
                present.push((index, bytes));
            }
        }
        let mut buffer = vec![0; around.len()];
        let job =
            ReconstructJob { frag_len: around.len(), present, wanted: vec![number as usize], out: vec![&mut buffer] };
        coder.reconstruct(job).ok()?;
        let from = positions.start - around.start;
        out.copy_from_slice(buffer.get(from..from + out.len())?);
        Some(())
    }
}

/// The positions of other fragments needed to decode `positions` of one fragment.
pub fn steps_around(class: &Class, chunk_len: u64, positions: Range<usize>) -> Range<usize> {
    let step = class.coder().map_or(1, |coder| coder.step_bytes());
    let end = positions.end.next_multiple_of(step).min(class.full_len(chunk_len)).max(positions.end);
    let around = positions.start / step * step..end;
    assert!(around.start <= positions.start && around.end >= positions.end, "{around:?} holds {positions:?}");
    around
}

/// The bytes of `part` at `positions`; fewer if the part ends early, as the last data fragments do.
fn covering<'a>(part: &'a RangePart, positions: &Range<usize>) -> Option<&'a [u8]> {
    let from = positions.start.checked_sub(part.at)?;
    part.bytes.get(from..(from + positions.len()).min(part.bytes.len()))
}

/// The slices that hold `range` of a chunk, in order, with the positions in them. A copy holds the whole range.
pub fn slices(class: &Class, chunk_len: u64, range: Range<u64>) -> Vec<(u32, Range<usize>)> {
    if class.coder().is_none() {
        return vec![(0, range.start as usize..range.end as usize)];
    }
    let cut = |number: u32| {
        let held = class.slice_range(chunk_len, number);
        let (from, to) = (held.start.max(range.start as usize), held.end.min(range.end as usize));
        (from < to).then(|| (number, from - held.start..to - held.start))
    };
    let all: Vec<(u32, Range<usize>)> = (0..class.k).filter_map(cut).collect();
    let len: usize = all.iter().map(|(_, positions)| positions.len()).sum();
    let end = range.end.min(chunk_len);
    assert_eq!(len as u64, end.saturating_sub(range.start), "slices cover {range:?} of {chunk_len} bytes");
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Fragment;
    use crate::class::tests::class;
    use crate::encode::encode;
    use tessera_accel::hash::tree;

    const LEN: u64 = 300_001;

    fn job(spec: &str, range: Range<u64>, without: &[u32]) -> (RangeJob, Bytes) {
        let class = class(spec);
        let data: Bytes = (0..LEN as usize).map(|i| (i * 7 % 253) as u8).collect::<Vec<_>>().into();
        let wanted: Vec<u32> = (0..class.fragments()).collect();
        let fragments = encode(&class, &data, &wanted, &BufferPool::new(0));
        let whole = |it: &Fragment| RangePart { number: it.number, at: 0, bytes: it.bytes.clone() };
        let parts = fragments.iter().filter(|f| !without.contains(&f.number)).map(whole).collect();
        let tree = tree(&data);
        let groups = tree.groups.concat().into();
        (RangeJob { class, chunk_len: LEN, name: tree.root, groups, range, parts }, data)
    }

    #[test]
    fn ranges_are_cut_out_and_verified_also_when_fragments_are_missing() {
        let without = [vec![], vec![0], vec![0, 1], vec![2, 3], vec![3, 5], vec![1, 2, 3, 4, 5]];
        let cases = without.iter().flat_map(|w| ["ec:4+2", "copy+ec:4+2", "raid6:4+2"].map(|spec| (spec, w.clone())));
        for (spec, without) in cases.filter(|(spec, without)| without.len() <= 2 || spec.starts_with("copy")) {
            for range in [0..16384, 65536..131072, 262144..LEN, 0..LEN] {
                let (job, data) = job(spec, range.clone(), &without);
                let bytes = job.run(&BufferPool::new(0)).unwrap_or_else(|| panic!("{spec} {without:?} {range:?}"));
                assert_eq!(bytes, data[range.start as usize..range.end as usize]);
            }
        }
    }

    /// P2: a flipped bit in the bytes or in the group hashes is detected.
    #[test]
    fn damage_is_noticed() {
        for spec in ["ec:4+2", "replica:3", "copy+ec:4+2", "raid6:4+2"] {
            let (mut job, _) = self::job(spec, 16384..32768, &[]);
            let mut groups = job.groups.to_vec();
            groups[40] ^= 1;
            job.groups = groups.into();
            assert_eq!(job.run(&BufferPool::new(0)), None);
            let (mut job, _) = self::job(spec, 16384..32768, &[]);
            let mut bytes = job.parts[0].bytes.to_vec();
            bytes[20_000] ^= 1;
            job.parts[0].bytes = bytes.into();
            assert_eq!(job.run(&BufferPool::new(0)), None);
        }
    }
}
