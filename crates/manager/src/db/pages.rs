//! Pages: stores, cuts, overlays and packs runs of extents. Pure functions, no database.

use prost::Message;
use tessera_wire::Extent;
use tessera_wire::manager::PageExtents;

/// Most extents in a page.
pub const MAX_PAGE_EXTENTS: usize = 256;
const _: () = assert!(MAX_PAGE_EXTENTS >= 2, "a split page must leave extents on both sides");

/// The parts of an extent before and from `at`; `None` for an empty part.
fn split(extent: Extent, at: u64) -> (Option<Extent>, Option<Extent>) {
    if at <= extent.offset {
        return (None, Some(extent));
    }
    if at >= extent.end() {
        return (Some(extent), None);
    }
    let head = at - extent.offset;
    assert!(head > 0 && head < extent.len_bytes, "a split leaves bytes on both sides");
    let chunk_offset = if extent.chunk_id == 0 { 0 } else { extent.chunk_offset + head };
    let tail = Extent { offset: at, len_bytes: extent.len_bytes - head, chunk_offset, ..extent };
    (Some(Extent { len_bytes: head, ..extent }), Some(tail))
}

/// Whether the extents are in order, do not overlap and are not empty.
pub fn are_ordered(pieces: &[Extent]) -> bool {
    pieces.iter().all(|p| p.len_bytes > 0) && pieces.windows(2).all(|w| w[0].end() <= w[1].offset)
}

/// Checks the invariants of a page before it is written.
pub fn assert_page(pieces: &[Extent]) {
    assert!(!pieces.is_empty(), "a page has an extent");
    assert!(pieces.len() <= MAX_PAGE_EXTENTS, "a page of {} extents", pieces.len());
    assert!(are_ordered(pieces), "the extents of a page are out of order: {pieces:?}");
}

/// Encodes the extents of a page that starts at its first piece.
pub fn encode(pieces: &[Extent]) -> Vec<u8> {
    assert!(pieces.iter().all(|p| p.chunk_id != 0 || p.chunk_offset == 0), "a hole has no offset into a chunk");
    let mut page = PageExtents {
        lens: pieces.iter().map(|p| p.len_bytes).collect(),
        chunks: pieces.iter().map(|p| p.chunk_id).collect(),
        ..Default::default()
    };
    if pieces.windows(2).any(|w| w[0].end() != w[1].offset) {
        page.gaps = std::iter::once(0).chain(pieces.windows(2).map(|w| w[1].offset - w[0].end())).collect();
    }
    if pieces.iter().any(|p| p.name_prefix != 0) {
        page.name_prefixes = pieces.iter().map(|p| p.name_prefix).collect();
    }
    if pieces.iter().any(|p| p.chunk_offset != 0) {
        page.chunk_offsets = pieces.iter().map(|p| p.chunk_offset).collect();
    }
    page.encode_to_vec()
}

/// The page in a column. Bytes that are none, or lists of unequal lengths, are a page without extents: what is read and what is
/// counted must be the same.
fn page_of(column: &[u8]) -> PageExtents {
    let page = PageExtents::decode(column).unwrap_or_default();
    let len = page.lens.len();
    let fits = |list: usize| list == 0 || list == len;
    let is_whole = page.chunks.len() == len
        && [page.gaps.len(), page.chunk_offsets.len(), page.name_prefixes.len()].into_iter().all(fits);
    if is_whole { page } else { PageExtents::default() }
}

/// Decodes a page that starts at `start`; invalid bytes decode to no extents.
pub fn decode(start: u64, column: &[u8]) -> Vec<Extent> {
    let page = page_of(column);
    let mut at = start;
    let mut pieces = Vec::with_capacity(page.lens.len());
    for (i, (&len, &chunk)) in page.lens.iter().zip(&page.chunks).enumerate() {
        at = at.saturating_add(page.gaps.get(i).copied().unwrap_or(0));
        let chunk_offset = page.chunk_offsets.get(i).copied().unwrap_or(0);
        let name_prefix = page.name_prefixes.get(i).copied().unwrap_or(0);
        pieces.push(Extent { offset: at, len_bytes: len, chunk_id: chunk, chunk_offset, name_prefix });
        at = at.saturating_add(len);
    }
    pieces
}

/// Calls `each` with the chunk of every extent of an encoded page.
pub fn for_each_chunk(column: &[u8], mut each: impl FnMut(u64)) {
    page_of(column).chunks.into_iter().filter(|&chunk| chunk != 0).for_each(&mut each);
}

/// Number of extents in an encoded page.
pub fn count(column: &[u8]) -> usize {
    page_of(column).lens.len()
}

/// Overlays `old` with `new`; both are in order without overlaps. Drops the parts of `old` that `new` covers, and keeps the
/// holes of `new` as pieces.
pub fn overlay(old: &[Extent], new: &[Extent]) -> Vec<Extent> {
    let mut out = Vec::with_capacity(old.len() + new.len() + 2);
    let mut rest = old.iter().copied();
    let mut current = rest.next();
    for &piece in new {
        // Keep everything before the new piece.
        while let Some(p) = current {
            let (before, after) = split(p, piece.offset);
            out.extend(before);
            current = after;
            if current.is_some() {
                break;
            }
            current = rest.next();
        }
        // Drop what the new piece covers.
        while let Some(p) = current {
            let (_, after) = split(p, piece.end());
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
    assert!(out.windows(2).all(|w| w[0].end() <= w[1].offset), "an overlay keeps extents in order");
    out
}

/// Joins pieces that are contiguous in file and chunk, drops holes, and packs the rest evenly into pages.
pub fn pack(pieces: &[Extent]) -> Vec<Vec<Extent>> {
    let mut joined: Vec<Extent> = Vec::with_capacity(pieces.len());
    for &piece in pieces.iter().filter(|p| p.chunk_id != 0) {
        match joined.last_mut() {
            Some(last)
                if last.end() == piece.offset
                    && (last.chunk_id, last.name_prefix) == (piece.chunk_id, piece.name_prefix)
                    && last.chunk_offset + last.len_bytes == piece.chunk_offset =>
            {
                last.len_bytes += piece.len_bytes;
            }
            _ => joined.push(piece),
        }
    }
    assert_eq!(data_bytes(&joined), data_bytes(pieces), "joining extents loses no bytes");
    split_evenly(joined)
}

/// As [`pack`], but keeps holes (a staged patch must record the holes it makes).
pub fn pack_with_holes(pieces: &[Extent]) -> Vec<Vec<Extent>> {
    split_evenly(pieces.to_vec())
}

fn split_evenly(extents: Vec<Extent>) -> Vec<Vec<Extent>> {
    let pages = extents.len().div_ceil(MAX_PAGE_EXTENTS);
    let split: Vec<Vec<Extent>> = match pages {
        0 => Vec::new(),
        1 => vec![extents],
        _ => extents.chunks(extents.len().div_ceil(pages)).map(<[Extent]>::to_vec).collect(),
    };
    assert!(
        split.iter().all(|page| (1..=MAX_PAGE_EXTENTS).contains(&page.len())),
        "every page has 1 to the most extents"
    );
    split
}

/// Sum of the bytes outside holes.
pub fn data_bytes(pieces: &[Extent]) -> u64 {
    pieces.iter().filter(|p| p.chunk_id != 0).map(|p| p.len_bytes).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn piece(offset: u64, len_bytes: u64, chunk_id: u64, chunk_offset: u64) -> Extent {
        Extent { offset, len_bytes, chunk_id, chunk_offset, name_prefix: chunk_id << 56 }
    }

    #[test]
    fn pages_survive_encoding() {
        let pieces = [piece(10, 5, 1, 0), piece(15, 7, 2, 3), piece(40, 1, 3, 0)];
        assert_eq!(decode(10, &encode(&pieces)), pieces);
        assert_eq!(decode(0, b"\xff\xff"), []);
        let run = [piece(0, 4096, 7, 0)];
        assert!(encode(&run).len() < 20, "a small file's page is small: {}", encode(&run).len());
    }

    /// P4: a reference is counted of every extent that is read, and of no other.
    #[test]
    fn a_page_of_unequal_lists_holds_no_extents() {
        for (lens, chunks, gaps) in
            [(vec![5, 6], vec![1], vec![]), (vec![5], vec![1, 2], vec![]), (vec![5], vec![1], vec![0, 3])]
        {
            let column = PageExtents { lens, chunks, gaps, ..PageExtents::default() }.encode_to_vec();
            let mut chunks = 0;
            for_each_chunk(&column, |_| chunks += 1);
            assert_eq!((decode(0, &column), count(&column), chunks), (vec![], 0, 0));
        }
    }

    #[test]
    fn a_piece_in_the_middle_splits_what_is_there() {
        let out = overlay(&[piece(0, 100, 1, 0)], &[piece(40, 20, 2, 0)]);
        assert_eq!(out, [piece(0, 40, 1, 0), piece(40, 20, 2, 0), piece(60, 40, 1, 60)]);
        assert_eq!(pack(&overlay(&out, &[piece(40, 20, 1, 40)])), [vec![piece(0, 100, 1, 0)]]);
    }

    /// The simplest model: each byte is a pair (chunk, offset in the chunk).
    fn paint(pieces: &[Extent], len: usize) -> Vec<(u64, u64)> {
        let mut bytes = vec![(0, 0); len];
        for p in pieces {
            for i in 0..p.len_bytes {
                bytes[(p.offset + i) as usize] =
                    if p.chunk_id == 0 { (0, 0) } else { (p.chunk_id, p.chunk_offset + i) };
            }
        }
        bytes
    }

    fn run() -> impl Strategy<Value = Vec<Extent>> {
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
            prop_assert!(out.windows(2).all(|w| w[0].end() <= w[1].offset));
            let mut expected = paint(&old, 256);
            for p in &new {
                for i in 0..p.len_bytes {
                    expected[(p.offset + i) as usize] = if p.chunk_id == 0 { (0, 0) } else { (p.chunk_id, p.chunk_offset + i) };
                }
            }
            prop_assert_eq!(paint(&out, 256), expected.clone());
            let packed: Vec<Extent> = pack(&out).concat();
            prop_assert_eq!(paint(&packed, 256), expected);
            prop_assert_eq!(decode(packed.first().map_or(0, |p| p.offset), &encode(&packed)), packed);
        }
    }
}
