//! Which chunk holds which bytes of the version: pages of extents, requested ahead of the readers.

use super::contents::{PackedContent, inlined, packed};
use super::*;
use tessera_wire::meta::{ListExtents, ListExtentsReply};
use tessera_wire::{Extent, WrongContent};

/// Most extents cached; a reader that returns to an evicted page requests it again.
const MAX_EXTENTS: usize = 16_384;
/// The first request covers at least this many bytes of the version. Each covers twice as many as the one before it, so that a reader at random
/// places soon knows all extents, and one that reads few bytes asks for few.
const FIRST_REACH_BYTES: u64 = AHEAD_BYTES;
/// A request reaches no farther than to this many extents that are as long as those of the last answer, unless a read does.
const MAX_REACH_EXTENTS: u64 = MAX_EXTENTS as u64 / 4;
/// As that, once not all extents fit.
const FEW_EXTENTS: u64 = 8;
/// No request covers more bytes than this, unless a read does.
const MAX_REACH_BYTES: u64 = 1 << 30;

/// The pages known. They do not overlap.
#[derive(Debug)]
pub(super) struct Pages {
    by_start: BTreeMap<u64, Page>,
    /// Offset that the request in flight starts at.
    pub asked: Option<u64>,
    reach_bytes: u64,
    /// [`MAX_REACH_EXTENTS`], or [`FEW_EXTENTS`].
    reach_extents: u64,
    extents: usize,
    uses: u64,
}

impl Default for Pages {
    fn default() -> Self {
        Pages {
            by_start: BTreeMap::new(),
            asked: None,
            reach_bytes: FIRST_REACH_BYTES,
            reach_extents: MAX_REACH_EXTENTS,
            extents: 0,
            uses: 0,
        }
    }
}

#[derive(Debug)]
struct Page {
    end: u64,
    extents: Vec<Extent>,
    chunks: HashMap<u64, ChunkInfo>,
    /// Bytes of contents that lie in the metadata, compared with their names.
    inlined: HashMap<u64, Bytes>,
    /// The contents of packs that hold the bytes of extents, by the offsets of these.
    packed: HashMap<u64, PackedContent>,
    /// Number of its last use.
    used: u64,
}

/// Where the bytes of an extent are.
#[derive(Debug)]
pub(super) enum Place {
    Hole,
    Chunk(ChunkInfo),
    /// Here: all bytes of the content that the extent names.
    Inlined(Bytes),
}

impl Pages {
    /// The extent that holds byte `at`, and where its bytes are.
    pub fn find(&mut self, at: u64) -> Option<(Extent, Place)> {
        let (_, page) = self.by_start.range_mut(..=at).next_back().filter(|(_, page)| at < page.end)?;
        self.uses += 1;
        page.used = self.uses;
        let place = page.extents.partition_point(|e| e.offset + e.len_bytes <= at);
        let extent = page.extents.get(place)?;
        let place = match (page.chunks.get(&extent.chunk_id), page.inlined.get(&extent.chunk_id)) {
            (Some(chunk), _) => Place::Chunk(chunk.clone()),
            (None, Some(bytes)) => Place::Inlined(bytes.clone()),
            (None, None) => Place::Hole,
        };
        Some((*extent, place))
    }

    /// The content of a pack that holds the bytes of an extent.
    pub fn content_of(&self, extent: &Extent) -> Option<&PackedContent> {
        let (_, page) = self.by_start.range(..=extent.offset).next_back()?;
        page.packed.get(&extent.offset)
    }

    /// The bytes of the content that holds byte `at` of the file have its name.
    pub fn note_equal(&mut self, at: u64, content: &PackedContent) {
        let Some((Extent { offset, .. }, _)) = self.find(at) else { return };
        let page = self.by_start.range_mut(..=offset).next_back().map(|(_, page)| page);
        let known = page.and_then(|page| page.packed.get_mut(&offset)).filter(|known| *known == content);
        known.into_iter().for_each(|known| known.is_compared = true);
    }

    /// The end of the extents known without a gap from `at` on.
    pub fn known_to(&self, at: u64) -> u64 {
        let mut end = at;
        while let Some((_, page)) = self.by_start.range(..=end).next_back().filter(|(_, page)| page.end > end) {
            end = page.end;
        }
        end
    }

    /// Whether a reader at `at` has used half of the last known page.
    pub fn is_near_end(&self, at: u64) -> bool {
        let found = self.by_start.range(..=at).next_back().filter(|(_, page)| at < page.end);
        found
            .is_some_and(|(start, page)| at - start >= (page.end - start) / 2 && !self.by_start.contains_key(&page.end))
    }

    /// Forgets the pages that name a chunk.
    pub fn forget(&mut self, chunk_id: u64) {
        let naming =
            self.by_start.iter().filter(|(_, page)| page.chunks.contains_key(&chunk_id)).map(|(start, _)| *start);
        naming.collect::<Vec<u64>>().into_iter().for_each(|start| self.remove(start));
    }

    fn remove(&mut self, start: u64) {
        if let Some(page) = self.by_start.remove(&start) {
            self.extents -= page.extents.len();
        }
    }

    /// Adds a page instead of those that begin in it. The pages that were used least recently make room.
    fn insert(&mut self, start: u64, mut page: Page) {
        assert!(start < page.end, "an empty page at {start}");
        let covered: Vec<u64> = self.by_start.range(start..page.end).map(|(start, _)| *start).collect();
        covered.into_iter().for_each(|start| self.remove(start));
        let extent_bytes = (page.end - start) / page.extents.len().max(1) as u64;
        self.extents += page.extents.len();
        self.uses += 1;
        page.used = self.uses;
        self.by_start.insert(start, page);
        while self.extents > MAX_EXTENTS && self.by_start.len() > 1 {
            let oldest = self.by_start.iter().min_by_key(|(_, page)| page.used).map(|(start, _)| *start);
            oldest.into_iter().for_each(|start| self.remove(start));
            // Not all of them fit: what is asked for beside what is wanted is forgotten before it is used.
            self.reach_extents = FEW_EXTENTS;
        }
        self.reach_bytes = self.reach_bytes.min(self.reach_extents.saturating_mul(extent_bytes.max(1)));
    }

    /// How many bytes from `from` on to ask for, of which `wanted` are needed: more with each request, but none that are known.
    fn reach(&mut self, from: u64, wanted: u64) -> u64 {
        let reach_bytes = self.reach_bytes;
        self.reach_bytes = (2 * reach_bytes).min(MAX_REACH_BYTES);
        let next = self.by_start.range(from + 1..).next().map_or(u64::MAX, |(start, _)| *start);
        wanted.max(reach_bytes).min(next - from)
    }
}

impl ReadCore {
    /// Requests the extents for a reader from `at` to `end`, unless they are known or requested.
    pub(super) fn ask_extents(&mut self, at: u64, end: u64) {
        let from = self.pages.known_to(at);
        if self.pages.asked.is_some() || from >= end || self.session.reopening {
            return;
        }
        self.pages.asked = Some(from);
        let known_map_version = self.view.read().known_version();
        let len_bytes = self.pages.reach(from, end - from);
        let request = ListExtents { session_id: self.session.lease.id, offset: from, len_bytes, known_map_version };
        self.rpcs.ask_manager(self.now, &request, Purpose::Extents { offset: from }, &self.options);
    }

    pub(super) fn on_extents(&mut self, answer: Answer, offset: u64, waited_ms: u64) {
        self.pages.asked = None;
        match answer.decode::<ListExtents>() {
            Ok((reply, _)) => self.take_extents(offset, reply),
            Err(error) if error.code() == Code::SessionExpired => self.reopen(),
            Err(error) => self.fail_all(Cause::of_manager("ListExtents", error, waited_ms)),
        }
    }

    pub(super) fn take_extents(&mut self, offset: u64, mut reply: ListExtentsReply) {
        self.view.write().learn(&reply.classes, reply.map.as_ref());
        let packed = match packed(&reply) {
            Ok(packed) => packed,
            Err(cause) => return self.fail_all(cause),
        };
        self.packs_seen.extend(reply.contents.iter().map(|content| content.chunk_id).filter(|pack| *pack != 0));
        if let Err(wrong) = reply.resolve_contents() {
            let WrongContent { offset, content_id: chunk_id, written, stored } = wrong;
            return self.fail_all(Cause::WrongChunk { offset, chunk_id, written, stored });
        }
        let inlined = match inlined(reply.contents) {
            Ok(inlined) => inlined,
            Err(cause) => return self.fail_all(cause),
        };
        let chunks: HashMap<u64, ChunkInfo> = reply.chunks.into_iter().map(|c| (c.chunk_id, c)).collect();
        match check(offset, &reply.extents, (&chunks, &inlined), reply.next_offset) {
            Ok(start) if start < reply.next_offset => {
                let page = Page { end: reply.next_offset, extents: reply.extents, chunks, inlined, packed, used: 0 };
                self.pages.insert(start, page);
            }
            Ok(_) => {
                // No extents, though more were expected: the version is shorter than the manager said.
                let size = self.opened.as_ref().map_or(0, |o| o.version.size_bytes);
                if offset < size {
                    let message = format!("no extents at {offset} of a version of {size} bytes");
                    self.fail_all(Cause::Nonsense(message));
                }
            }
            Err(cause) => self.fail_all(cause),
        }
    }
}

/// Checks that the extents cover `offset` to `next` without gaps, lie within their chunks, and that the chunks have the names
/// that the writers of the extents gave them (P2). Returns where the extents start. Those that name contents in the metadata were checked.
fn check(
    offset: u64,
    extents: &[Extent],
    (chunks, inlined): (&HashMap<u64, ChunkInfo>, &HashMap<u64, Bytes>),
    next: u64,
) -> Result<u64, Cause> {
    let nonsense = |message: String| Err(Cause::Nonsense(message));
    let start = extents.first().map_or(next.max(offset), |e| e.offset);
    if start > offset && !extents.is_empty() {
        return nonsense(format!("extents from {start}, asked for from {offset}"));
    }
    let mut at = start;
    for extent in extents {
        let end = extent.offset.checked_add(extent.len_bytes).filter(|end| *end > extent.offset);
        let (true, Some(end)) = (extent.offset == at, end) else {
            let message = format!("an extent of {} bytes at {}, expected one at {at}", extent.len_bytes, extent.offset);
            return nonsense(message);
        };
        at = end;
        if !inlined.contains_key(&extent.chunk_id) {
            check_name(extent, chunks.get(&extent.chunk_id))?;
        }
    }
    if at != next && !extents.is_empty() {
        return nonsense(format!("extents end at {at}, the next are said to start at {next}"));
    }
    Ok(start)
}

/// Checks that the extent lies within its chunk, and that the chunk's row has the name that the extent's writer gave it.
fn check_name(extent: &Extent, chunk: Option<&ChunkInfo>) -> Result<(), Cause> {
    let stored = match (extent.chunk_id, chunk) {
        (0, _) => 0,
        (_, Some(chunk)) => Extent::prefix_of(&chunk.hash),
        (id, None) => {
            return Err(Cause::Nonsense(format!("the extent at {} names chunk {id}, which is absent", extent.offset)));
        }
    };
    if extent.name_prefix != stored && !tessera_failpoint::is_active("client.names_not_compared") {
        let Extent { offset, chunk_id, name_prefix: written, .. } = *extent;
        return Err(Cause::WrongChunk { offset, chunk_id, written, stored });
    }
    let end = extent.chunk_offset.checked_add(extent.len_bytes);
    match chunk.filter(|_| extent.chunk_id != 0).is_none_or(|c| end.is_some_and(|end| end <= c.len_bytes)) {
        true => Ok(()),
        false => {
            let message = format!("the extent at {} is not within chunk {}", extent.offset, extent.chunk_id);
            Err(Cause::Nonsense(message))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(offset: u64, len_bytes: u64, chunk_id: u64, chunk_offset: u64) -> Extent {
        match chunk_id {
            0 => Extent { chunk_offset, ..Extent::hole(offset, len_bytes) },
            _ => Extent::of_chunk(offset, len_bytes, chunk_id, b"name", chunk_offset),
        }
    }

    fn chunks() -> HashMap<u64, ChunkInfo> {
        [(1, ChunkInfo { chunk_id: 1, len_bytes: 100, hash: Bytes::from_static(b"name"), ..Default::default() })].into()
    }

    /// P14: extents that contradict each other are refused.
    #[test]
    fn extents_are_checked() {
        let good = [extent(0, 50, 1, 50), extent(50, 10, 0, 0), extent(60, 100, 1, 0)];
        assert_eq!(check(0, &good, (&chunks(), &HashMap::new()), 160), Ok(0));
        assert_eq!(check(20, &good, (&chunks(), &HashMap::new()), 160), Ok(0));
        assert!(check(0, &good, (&chunks(), &HashMap::new()), 161).is_err());
        for bad in [
            vec![extent(0, 51, 1, 50)],
            vec![extent(0, 5, 2, 0)],
            vec![extent(0, 5, 1, u64::MAX)],
            vec![extent(0, 0, 0, 0)],
            vec![extent(5, 5, 0, 0)],
            vec![extent(0, 5, 0, 0), extent(6, 5, 0, 0)],
            vec![extent(0, u64::MAX, 0, 0), extent(u64::MAX, 1, 0, 0)],
        ] {
            let next = bad.last().map_or(0, |e| e.offset.wrapping_add(e.len_bytes));
            assert!(check(0, &bad, (&chunks(), &HashMap::new()), next).is_err(), "{bad:?}");
        }
    }

    /// P2: an extent whose writer knew its chunk by another name is refused, and so is a hole that was a chunk.
    #[test]
    fn names_of_chunks_are_compared() {
        let good = extent(0, 50, 1, 0);
        for (written, chunk_id) in [(Extent::prefix_of(b"nama"), 1), (0, 1), (good.name_prefix, 0)] {
            let bad = Extent { name_prefix: written, chunk_id, ..good };
            let stored = if chunk_id == 0 { 0 } else { good.name_prefix };
            let cause = Cause::WrongChunk { offset: 0, chunk_id, written, stored };
            assert_eq!(check(0, &[bad], (&chunks(), &HashMap::new()), 50), Err(cause));
        }
    }

    fn page(end: u64, extents: Vec<Extent>) -> Page {
        Page { end, extents, chunks: chunks(), inlined: HashMap::new(), packed: HashMap::new(), used: 0 }
    }

    #[test]
    fn the_pages_used_least_recently_make_room() {
        let mut pages = Pages::default();
        let most = MAX_EXTENTS as u64;
        let bytes = |from: u64, to: u64| page(to, (from..to).map(|at| extent(at, 1, 0, 0)).collect());
        pages.insert(0, bytes(0, 10));
        pages.insert(10, bytes(10, 20));
        assert!(pages.find(0).is_some());
        pages.insert(20, bytes(20, most + 10));
        assert!(pages.find(0).is_some() && pages.find(10).is_none() && pages.find(20).is_some());
        // One page may be longer than all together may be.
        pages.insert(most + 10, bytes(most + 10, 3 * most));
        assert!(pages.find(20).is_none() && pages.find(2 * most).is_some());
        assert_eq!(pages.reach(4 * most, 1), FEW_EXTENTS, "not all fit");
        assert_eq!(pages.by_start.len(), 1);
    }

    /// A page that covers others takes their place: else bytes behind a short one would not be found.
    #[test]
    fn pages_do_not_overlap() {
        let mut pages = Pages::default();
        pages.insert(20, page(30, vec![extent(20, 10, 0, 0)]));
        pages.insert(40, page(50, vec![extent(40, 10, 0, 0)]));
        pages.insert(10, page(45, vec![extent(10, 35, 0, 0)]));
        assert!((10..45).all(|at| pages.find(at).is_some_and(|(extent, _)| extent.offset == 10)));
        assert!(pages.find(45).is_none());
        assert_eq!(pages.extents, 1);
    }

    /// Each request covers more than the one before it, and nothing that is known, until not all fit.
    #[test]
    fn requests_reach_farther_each_time() {
        let mut pages = Pages::default();
        assert_eq!(pages.reach(5, 100), FIRST_REACH_BYTES);
        assert_eq!(pages.reach(5, 3 * FIRST_REACH_BYTES), 3 * FIRST_REACH_BYTES);
        pages.insert(20, page(30, vec![extent(20, 10, 0, 0)]));
        let most = MAX_REACH_EXTENTS * 10;
        assert_eq!((pages.reach(5, 100), pages.reach(30, 100)), (15, 2 * most), "as long as the extents are");
        pages.insert(1 << 40, page((1 << 40) + (1 << 30), vec![extent(1 << 40, 1 << 30, 0, 0)]));
        (0..60).for_each(|_| _ = pages.reach(30, 1));
        assert_eq!(pages.reach(30, 1), MAX_REACH_BYTES);
    }

    #[test]
    fn pages_find_their_bytes() {
        let mut pages = Pages::default();
        let extents = vec![extent(0, 50, 1, 50), extent(50, 10, 0, 0)];
        pages.insert(0, page(60, extents));
        assert_eq!(pages.find(49).unwrap().0.chunk_id, 1);
        assert!(matches!(pages.find(50).unwrap().1, Place::Hole));
        assert!(pages.find(60).is_none());
        assert_eq!((pages.known_to(10), pages.known_to(70)), (60, 70));
        assert!(pages.is_near_end(30) && !pages.is_near_end(29));
    }
}
