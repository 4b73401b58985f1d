//! Pages: stores, cuts, overlays and packs runs of extents. Pure functions, no database.

use prost::Message;
use tessera_wire::Extent;
use tessera_wire::manager::PageExtents;

/// Most extents in a page.
pub const MAX_PAGE_EXTENTS: usize = 256;
const _: () = assert!(MAX_PAGE_EXTENTS >= 2, "a split page must leave extents on both sides");

/// A piece of a file: `len` bytes of a chunk, or (chunk 0) an explicit hole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileExtent {
    /// Offset in the file.
    pub start: u64,
    /// Length, bytes.
    pub len: u64,
    /// Chunk; 0: hole.
    pub chunk: u64,
    /// Offset of the piece in the chunk.
    pub chunk_offset: u64,
}

impl FileExtent {
    /// Offset in the file after the last byte.
    pub fn end(&self) -> u64 {
        self.start.saturating_add(self.len)
    }

    /// Converts a wire extent; adds `shift` to its offset.
    pub fn from_wire(extent: &Extent, shift: u64) -> FileExtent {
        FileExtent {
            start: extent.offset + shift,
            len: extent.len_bytes,
            chunk: extent.chunk_id,
            chunk_offset: extent.chunk_offset,
        }
    }

    /// Converts to a wire extent.
    pub fn to_wire(self) -> Extent {
        Extent { offset: self.start, len_bytes: self.len, chunk_id: self.chunk, chunk_offset: self.chunk_offset }
    }

    /// The parts before and from `at`; `None` for an empty part.
    fn split(self, at: u64) -> (Option<FileExtent>, Option<FileExtent>) {
        if at <= self.start {
            return (None, Some(self));
        }
        if at >= self.end() {
            return (Some(self), None);
        }
        let head = at - self.start;
        assert!(head > 0 && head < self.len, "a split leaves bytes on both sides");
        let chunk_offset = if self.chunk == 0 { 0 } else { self.chunk_offset + head };
        (
            Some(FileExtent { len: head, ..self }),
            Some(FileExtent { start: at, len: self.len - head, chunk_offset, ..self }),
        )
    }
}

/// Whether the extents are in order, do not overlap and are not empty.
pub fn are_ordered(pieces: &[FileExtent]) -> bool {
    pieces.iter().all(|p| p.len > 0) && pieces.windows(2).all(|w| w[0].end() <= w[1].start)
}

/// Checks the invariants of a page before it is written.
pub fn assert_page(pieces: &[FileExtent]) {
    assert!(!pieces.is_empty(), "a page has an extent");
    assert!(pieces.len() <= MAX_PAGE_EXTENTS, "a page of {} extents", pieces.len());
    assert!(are_ordered(pieces), "the extents of a page are out of order: {pieces:?}");
}

/// Encodes the extents of a page that starts at its first piece.
pub fn encode(pieces: &[FileExtent]) -> Vec<u8> {
    assert!(pieces.iter().all(|p| p.chunk != 0 || p.chunk_offset == 0), "a hole has no offset into a chunk");
    let mut page = PageExtents {
        lens: pieces.iter().map(|p| p.len).collect(),
        chunks: pieces.iter().map(|p| p.chunk).collect(),
        ..Default::default()
    };
    if pieces.windows(2).any(|w| w[0].end() != w[1].start) {
        page.gaps = std::iter::once(0).chain(pieces.windows(2).map(|w| w[1].start - w[0].end())).collect();
    }
    if pieces.iter().any(|p| p.chunk_offset != 0) {
        page.chunk_offsets = pieces.iter().map(|p| p.chunk_offset).collect();
    }
    page.encode_to_vec()
}

/// Decodes a page that starts at `start`; invalid bytes decode to no extents.
pub fn decode(start: u64, column: &[u8]) -> Vec<FileExtent> {
    let page = PageExtents::decode(column).unwrap_or_default();
    let mut at = start;
    let mut pieces = Vec::with_capacity(page.lens.len());
    for (i, (&len, &chunk)) in page.lens.iter().zip(&page.chunks).enumerate() {
        at = at.saturating_add(page.gaps.get(i).copied().unwrap_or(0));
        pieces.push(FileExtent {
            start: at,
            len,
            chunk,
            chunk_offset: page.chunk_offsets.get(i).copied().unwrap_or(0),
        });
        at = at.saturating_add(len);
    }
    pieces
}

/// Calls `each` with the chunk of every extent of an encoded page.
pub fn for_each_chunk(column: &[u8], mut each: impl FnMut(u64)) {
    let page = PageExtents::decode(column).unwrap_or_default();
    page.chunks.into_iter().filter(|&chunk| chunk != 0).for_each(&mut each);
}

/// Number of extents in an encoded page.
pub fn count(column: &[u8]) -> usize {
    PageExtents::decode(column).map_or(0, |page| page.lens.len())
}

/// Overlays `old` with `new`; both are in order without overlaps. Drops the parts of `old` that `new` covers, and keeps the
/// holes of `new` as pieces.
pub fn overlay(old: &[FileExtent], new: &[FileExtent]) -> Vec<FileExtent> {
    let mut out = Vec::with_capacity(old.len() + new.len() + 2);
    let mut rest = old.iter().copied();
    let mut current = rest.next();
    for &piece in new {
        // Keep everything before the new piece.
        while let Some(p) = current {
            let (before, after) = p.split(piece.start);
            out.extend(before);
            current = after;
            if current.is_some() {
                break;
            }
            current = rest.next();
        }
        // Drop what the new piece covers.
        while let Some(p) = current {
            let (_, after) = p.split(piece.end());
            current = after;
            if current.is_some() {
                break;
            }
            current = rest.next();
        }
        out.push(piece);
    }
    out.extend(current);
    out.extend(rest);
    assert!(out.windows(2).all(|w| w[0].end() <= w[1].start), "an overlay keeps extents in order");
    out
}

/// Joins pieces that are contiguous in file and chunk, drops holes, and packs the rest evenly into pages.
pub fn pack(pieces: &[FileExtent]) -> Vec<Vec<FileExtent>> {
    let mut joined: Vec<FileExtent> = Vec::with_capacity(pieces.len());
    for &piece in pieces.iter().filter(|p| p.chunk != 0) {
        match joined.last_mut() {
            Some(last)
                if last.end() == piece.start
                    && last.chunk == piece.chunk
                    && last.chunk_offset + last.len == piece.chunk_offset =>
            {
                last.len += piece.len;
            }
            _ => joined.push(piece),
        }
    }
    assert_eq!(data_bytes(&joined), data_bytes(pieces), "joining extents loses no bytes");
    split_evenly(joined)
}

/// As [`pack`], but keeps holes (a staged patch must record the holes it makes).
pub fn pack_with_holes(pieces: &[FileExtent]) -> Vec<Vec<FileExtent>> {
    split_evenly(pieces.to_vec())
}

fn split_evenly(extents: Vec<FileExtent>) -> Vec<Vec<FileExtent>> {
    let pages = extents.len().div_ceil(MAX_PAGE_EXTENTS);
    let split: Vec<Vec<FileExtent>> = match pages {
        0 => Vec::new(),
        1 => vec![extents],
        _ => extents.chunks(extents.len().div_ceil(pages)).map(<[FileExtent]>::to_vec).collect(),
    };
    assert!(
        split.iter().all(|page| (1..=MAX_PAGE_EXTENTS).contains(&page.len())),
        "every page has 1 to the most extents"
    );
    split
}

/// Sum of the bytes outside holes.
pub fn data_bytes(pieces: &[FileExtent]) -> u64 {
    pieces.iter().filter(|p| p.chunk != 0).map(|p| p.len).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn piece(start: u64, len: u64, chunk: u64, chunk_offset: u64) -> FileExtent {
        FileExtent { start, len, chunk, chunk_offset }
    }

    #[test]
    fn pages_survive_encoding() {
        let pieces = [piece(10, 5, 1, 0), piece(15, 7, 2, 3), piece(40, 1, 3, 0)];
        assert_eq!(decode(10, &encode(&pieces)), pieces);
        assert_eq!(decode(0, b"\xff\xff"), []);
        let run = [piece(0, 4096, 7, 0)];
        assert!(encode(&run).len() < 10, "a small file's page is small: {}", encode(&run).len());
    }

    #[test]
    fn a_piece_in_the_middle_splits_what_is_there() {
        let out = overlay(&[piece(0, 100, 1, 0)], &[piece(40, 20, 2, 0)]);
        assert_eq!(out, [piece(0, 40, 1, 0), piece(40, 20, 2, 0), piece(60, 40, 1, 60)]);
        assert_eq!(pack(&overlay(&out, &[piece(40, 20, 1, 40)])), [vec![piece(0, 100, 1, 0)]]);
    }

    /// The simplest model: each byte is a pair (chunk, offset in the chunk).
    fn paint(pieces: &[FileExtent], len: usize) -> Vec<(u64, u64)> {
        let mut bytes = vec![(0, 0); len];
        for p in pieces {
            for i in 0..p.len {
                bytes[(p.start + i) as usize] = if p.chunk == 0 { (0, 0) } else { (p.chunk, p.chunk_offset + i) };
            }
        }
        bytes
    }

    fn run() -> impl Strategy<Value = Vec<FileExtent>> {
        prop::collection::vec((0u64..6, 1u64..9, 0u64..4, 0u64..5), 0..12).prop_map(|steps| {
            let mut at = 0;
            steps
                .into_iter()
                .map(|(gap, len, chunk, offset)| {
                    let p = piece(at + gap, len, chunk, if chunk == 0 { 0 } else { offset });
                    at = p.end();
                    p
                })
                .collect()
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4096))]
        #[test]
        fn overlay_equals_painting(old in run(), new in run()) {
            let out = overlay(&old, &new);
            prop_assert!(out.windows(2).all(|w| w[0].end() <= w[1].start));
            let mut expected = paint(&old, 256);
            for p in &new {
                for i in 0..p.len {
                    expected[(p.start + i) as usize] = if p.chunk == 0 { (0, 0) } else { (p.chunk, p.chunk_offset + i) };
                }
            }
            prop_assert_eq!(paint(&out, 256), expected.clone());
            let packed: Vec<FileExtent> = pack(&out).concat();
            prop_assert_eq!(paint(&packed, 256), expected);
            prop_assert_eq!(decode(packed.first().map_or(0, |p| p.start), &encode(&packed)), packed);
        }
    }
}
