//! Where a file's bytes are: for schedulers that send work to data, and for people who want to know how safe the data
//! is.

use crate::client::Client;
use crate::view::View;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use tessera_stripe::ClassLayout;
use tessera_wire::meta::*;
use tessera_wire::{ChunkInfo, ClassInfo, Code, Error as WireError, Extent, Health};

/// A file's current version, extent by extent.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Located {
    /// Inode number.
    pub ino: u64,
    /// Version id.
    pub version: u64,
    /// Its number within the file.
    pub version_number: u64,
    /// Its length.
    pub size_bytes: u64,
    /// Bytes of chunks that were new with it.
    pub new_bytes: u64,
    /// When it was committed, ns since 1970.
    pub committed_ns: i64,
    /// Extents in order of offset.
    pub extents: Vec<LocatedExtent>,
}

/// An extent of a file: bytes of one chunk, or a hole.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LocatedExtent {
    /// Offset in the file.
    pub offset: u64,
    /// Its length.
    pub len_bytes: u64,
    /// The chunk; 0 for a hole.
    pub chunk_id: u64,
    /// Offset of the piece in the chunk.
    pub chunk_offset: u64,
    /// The chunk's whole length.
    pub chunk_len_bytes: u64,
    /// The chunk is a pack: other files have the rest of it.
    pub packed: bool,
    /// The metadata keeps the bytes, on each of its peers, until the file moves into a pack; `chunk_id` is no chunk.
    pub in_metadata: bool,
    /// Redundancy class: `ec:4+2`, `copy+ec:4+2`, `replica:3`; empty for a hole, and for bytes in the metadata.
    pub class: String,
    /// How many fragments suffice to read it, in any combination (a copy may suffice alone).
    pub needed: u32,
    /// Where the chunk's fragments are.
    pub fragments: Vec<LocatedFragment>,
    /// The class in full: what its fragments hold, and which of them suffice.
    #[serde(skip)]
    pub coding: ClassInfo,
}

/// What a fragment holds of its chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Holds {
    /// All bytes.
    Copy,
    /// Some of the bytes, unchanged.
    Slice,
    /// Parity, from which lost slices are computed.
    Parity,
}

impl Holds {
    fn of(class: &ClassInfo, fragment: u32) -> Holds {
        match (class.is_copy(fragment), class.is_plain(fragment)) {
            (true, _) => Holds::Copy,
            (_, true) => Holds::Slice,
            _ => Holds::Parity,
        }
    }
}

/// A fragment and where it is.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LocatedFragment {
    /// Its number.
    pub fragment: u32,
    /// What it holds.
    pub holds: Holds,
    /// Name of the node.
    pub node: String,
    /// The node's host label.
    pub host: String,
    /// The node's address.
    pub address: String,
    /// The disk.
    pub disk_id: u64,
    /// The fragment is there, and its node is up.
    pub readable: bool,
    /// All data that was on the disk at this time (ns since 1970) has been re-read since; 0: unknown.
    pub verified_ns: i64,
}

/// The state of a file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct FileState {
    /// Version id.
    pub version: u64,
    /// Its number within the file.
    pub version_number: u64,
    /// Length of the file.
    pub logical_bytes: u64,
    /// Bytes of chunks that were new with this version.
    pub unique_bytes: u64,
    /// Bytes on disks for its chunks, shared chunks included; of packs, the file's share.
    pub stored_bytes: u64,
    /// Bytes that the metadata keeps.
    pub metadata_bytes: u64,
    /// Distinct chunks.
    pub chunks: u64,
    /// Chunks with all fragments readable.
    pub chunks_full: u64,
    /// Chunks that can be read from fewer.
    pub chunks_reduced: u64,
    /// Chunks that cannot be read now.
    pub chunks_lost: u64,
    /// Redundancy classes of its chunks.
    pub classes: Vec<String>,
    /// Every readable fragment was re-read from its disk and found good at this time (ns since 1970) or later. `None`:
    /// some have not been re-read since the version was committed, as far as nodes and manager remember; a restart of
    /// either forgets. A chunk with a bad fragment is not in `chunks_full`.
    pub last_verified_ns: Option<i64>,
}

impl LocatedExtent {
    /// Which fragment a read takes each byte from while it is readable, as ranges of the file in their order: the first
    /// readable copy has all of them, else each slice has its own. Nothing for a hole, and for bytes in the metadata.
    pub fn plain_parts(&self) -> Vec<(Range<u64>, &LocatedFragment)> {
        let end = self.offset + self.len_bytes;
        let copies = || self.fragments.iter().filter(|fragment| fragment.holds == Holds::Copy);
        if let Some(copy) = copies().find(|copy| copy.readable).or(copies().next()) {
            return vec![(self.offset..end, copy)];
        }
        let slices = self.fragments.iter().filter(|fragment| fragment.holds == Holds::Slice);
        let part = |slice: &LocatedFragment| self.range_of_slice(slice.fragment).filter(|range| !range.is_empty());
        slices.filter_map(|slice| Some((part(slice)?, slice))).collect()
    }

    /// What a slice has of the extent, as a range of the file.
    fn range_of_slice(&self, fragment: u32) -> Option<Range<u64>> {
        let end = self.offset + self.len_bytes;
        let slice_bytes = self.coding.slice_bytes(self.chunk_len_bytes);
        let start = self.coding.plain_offset(self.chunk_len_bytes, fragment)?;
        // From offsets in the chunk to offsets in the file, cut to what the extent has of it.
        let in_file = |at: u64| (self.offset + at.saturating_sub(self.chunk_offset)).min(end);
        Some(in_file(start)..in_file((start + slice_bytes).min(self.chunk_len_bytes)))
    }

    /// Bytes on disks: of a pack, the share of these bytes.
    fn stored_bytes(&self) -> u64 {
        let stored_bytes = self.coding.stored_bytes(self.chunk_len_bytes);
        match self.packed {
            true => (u128::from(stored_bytes) * u128::from(self.len_bytes))
                .div_ceil(u128::from(self.chunk_len_bytes.max(1))) as u64,
            false => stored_bytes,
        }
    }
}

impl Located {
    /// Bytes of the file whose plain slices (not parity) each host holds and could read: what is local to it.
    pub fn bytes_by_host(&self) -> BTreeMap<String, u64> {
        let mut hosts = BTreeMap::new();
        for extent in &self.extents {
            for fragment in extent.fragments.iter().filter(|f| f.readable) {
                let own = match fragment.holds {
                    Holds::Copy => extent.len_bytes,
                    Holds::Slice => extent.range_of_slice(fragment.fragment).map_or(0, |range| range.end - range.start),
                    Holds::Parity => continue,
                };
                if own > 0 {
                    *hosts.entry(fragment.host.clone()).or_default() += own;
                }
            }
        }
        hosts
    }

    /// The oldest time of a disk that the file is read from, if all of the version was there by then.
    fn last_verified_ns(&self) -> Option<i64> {
        let fragments = self.extents.iter().flat_map(|extent| &extent.fragments);
        let oldest_ns = fragments.filter(|f| f.readable).map(|f| f.verified_ns).min();
        oldest_ns.filter(|oldest_ns| *oldest_ns >= self.committed_ns)
    }

    /// Sums up the state of the file.
    pub fn state(&self) -> FileState {
        let mut state = FileState {
            version: self.version,
            version_number: self.version_number,
            logical_bytes: self.size_bytes,
            unique_bytes: self.new_bytes,
            last_verified_ns: self.last_verified_ns(),
            ..FileState::default()
        };
        let (mut seen, mut classes) = (BTreeSet::new(), BTreeSet::new());
        let in_metadata = self.extents.iter().filter(|e| e.in_metadata);
        state.metadata_bytes = in_metadata.map(|extent| extent.len_bytes).sum();
        for extent in self.extents.iter().filter(|e| e.chunk_id != 0 && !e.in_metadata) {
            if extent.packed {
                state.stored_bytes += extent.stored_bytes();
            }
            if !seen.insert(extent.chunk_id) {
                continue;
            }
            classes.insert(extent.class.clone());
            let readable = extent.fragments.iter().filter(|f| f.readable).map(|f| f.fragment);
            state.chunks += 1;
            state.stored_bytes += if extent.packed { 0 } else { extent.stored_bytes() };
            match extent.coding.suffices(readable) {
                true if extent.fragments.iter().all(|f| f.readable) => state.chunks_full += 1,
                true => state.chunks_reduced += 1,
                false => state.chunks_lost += 1,
            }
        }
        state.classes = classes.into_iter().collect();
        state
    }
}

impl Client {
    /// Where the fragments of a file's current version are.
    ///
    /// # Errors
    /// There is no such file, or the manager does not answer.
    pub fn locate_inode(&self, ino: u64) -> Result<Located, WireError> {
        let (opened, listed) = self.extents_of(ino, 0)?;
        let pg_ids: BTreeSet<u64> = listed.chunks.iter().map(|c| c.pg_id).collect();
        let pg_ids = pg_ids.into_iter().collect();
        let mut view = View::default();
        view.merge(&self.ask(&GetMap { known_version: 0, pg_ids, all_nodes: true })?, true);
        listed.classes.iter().for_each(|class| view.add_class(class));
        let chunks: HashMap<u64, &ChunkInfo> = listed.chunks.iter().map(|c| (c.chunk_id, c)).collect();
        let packs: BTreeSet<u64> =
            listed.contents.iter().map(|content| content.chunk_id).filter(|id| *id != 0).collect();
        let located = |e: &Extent| {
            let packed = packs.contains(&e.chunk_id);
            LocatedExtent { packed, ..locate(&view, e, chunks.get(&e.chunk_id).copied()) }
        };
        let version = opened.version.unwrap_or_default();
        Ok(Located {
            ino,
            version: version.version,
            version_number: version.number,
            size_bytes: version.size_bytes,
            new_bytes: version.new_bytes,
            committed_ns: version.committed_ns,
            extents: listed.extents.iter().map(located).collect(),
        })
    }

    /// A version (0: the current one), and all its extents with their chunks and classes.
    pub(crate) fn extents_of(&self, ino: u64, version: u64) -> Result<(OpenReadReply, ListExtentsReply), WireError> {
        let mut opened = self.ask(&OpenRead { ino, version, len_bytes: u64::MAX, ..OpenRead::default() })?;
        let (session_id, size_bytes) = (opened.session_id, opened.version.as_ref().map_or(0, |v| v.size_bytes));
        let mut all = opened.extents.take().unwrap_or_default();
        let mut listed = Ok(());
        while all.next_offset < size_bytes && !all.extents.is_empty() && listed.is_ok() {
            let (offset, len_bytes) = (all.next_offset, size_bytes - all.next_offset);
            let page = self.ask(&ListExtents { session_id, offset, len_bytes, known_map_version: 0 });
            listed = page.map(|page| {
                all.extents.extend(page.extents);
                all.chunks.extend(page.chunks);
                all.classes.extend(page.classes);
                all.contents.extend(page.contents);
                // A page that does not advance would be requested forever.
                all.next_offset = if page.next_offset > offset { page.next_offset } else { size_bytes };
            });
        }
        // A lost answer does no harm; a session that is not closed expires.
        let _ = self.ask(&CloseSession { session_id, ..Default::default() });
        listed?;
        match all.resolve_contents() {
            Ok(()) => Ok((opened, all)),
            Err(wrong) => Err(WireError::new(Code::Corrupt, format!("the manager's answer makes no sense: {wrong:?}"))),
        }
    }
}

fn locate(view: &View, extent: &Extent, chunk: Option<&ChunkInfo>) -> LocatedExtent {
    let class = chunk.and_then(|c| view.class(c.class_id));
    let fragments = match (chunk, &class, chunk.and_then(|c| view.pg(c.pg_id))) {
        (Some(chunk), Some(class), Some(pg)) => {
            let members = (0..class.fragments()).zip(&pg.members);
            members.map(|(number, member)| locate_fragment(view, class, number, member.disk_id, chunk)).collect()
        }
        _ => Vec::new(),
    };
    LocatedExtent {
        offset: extent.offset,
        len_bytes: extent.len_bytes,
        chunk_id: extent.chunk_id,
        chunk_offset: extent.chunk_offset,
        chunk_len_bytes: chunk.map_or(0, |c| c.len_bytes),
        packed: false,
        in_metadata: extent.chunk_id >= FIRST_CONTENT,
        class: class.as_ref().map(|c| c.spec.clone()).unwrap_or_default(),
        needed: class.as_ref().map_or(0, |c| c.k),
        fragments,
        coding: class.map(|c| c.info().clone()).unwrap_or_default(),
    }
}

fn locate_fragment(view: &View, class: &ClassInfo, fragment: u32, disk_id: u64, chunk: &ChunkInfo) -> LocatedFragment {
    let disk = view.disk(disk_id).cloned().unwrap_or_default();
    let node = view.node(disk.node_id).cloned().unwrap_or_default();
    let serves = |health: Health| matches!(health, Health::Up | Health::Draining | Health::Drained);
    LocatedFragment {
        fragment,
        holds: Holds::of(class, fragment),
        readable: serves(node.health()) && serves(disk.health()) && !chunk.missing.contains(&fragment),
        node: node.name,
        host: node.host,
        address: node.address,
        disk_id,
        verified_ns: disk.verified_ns,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(chunk_id: u64, len_bytes: u64, spec: &str, hosts: &[(&str, bool)]) -> LocatedExtent {
        let coding =
            if spec.is_empty() { ClassInfo::default() } else { tessera_stripe::describe(1, spec.parse().unwrap()) };
        let fragment = |(i, (host, readable)): (usize, &(&str, bool))| LocatedFragment {
            fragment: i as u32,
            holds: Holds::of(&coding, i as u32),
            node: host.to_string(),
            host: host.to_string(),
            address: String::new(),
            disk_id: 1,
            readable: *readable,
            verified_ns: 500,
        };
        let fragments = hosts.iter().enumerate().map(fragment).collect();
        let (class, needed) = (spec.into(), coding.k);
        LocatedExtent {
            offset: 0,
            len_bytes,
            chunk_id,
            chunk_offset: 0,
            chunk_len_bytes: len_bytes,
            packed: false,
            in_metadata: false,
            class,
            needed,
            fragments,
            coding,
        }
    }

    fn located(extents: Vec<LocatedExtent>) -> Located {
        Located { ino: 1, version: 2, version_number: 1, size_bytes: 300, new_bytes: 300, committed_ns: 400, extents }
    }

    #[test]
    fn plain_parts_tile_an_extent_that_begins_inside_its_chunk() {
        let whole = extent(
            7,
            100_000,
            "ec:4+2",
            &[("a", true), ("b", true), ("c", true), ("d", false), ("e", true), ("f", true)],
        );
        let piece = LocatedExtent { offset: 5000, len_bytes: 70_000, chunk_offset: 20_000, ..whole };
        let mut at = 5000;
        for (range, slice) in piece.plain_parts() {
            assert_eq!(range.start, at);
            let in_chunk = range.start - 5000 + 20_000;
            let slice_bytes = piece.coding.slice_bytes(100_000);
            assert_eq!(u64::from(slice.fragment), in_chunk / slice_bytes);
            at = range.end;
        }
        assert_eq!(at, 75_000);
        let copies = extent(7, 100, "replica:3", &[("a", false), ("b", true), ("c", true)]);
        let [(range, copy)] = &copies.plain_parts()[..] else { panic!("one copy has all") };
        assert_eq!((range.clone(), copy.fragment), (0..100, 1));
    }

    #[test]
    fn a_file_is_where_its_own_slices_are_and_as_safe_as_its_weakest_chunk_says() {
        // Slices are whole groups: the first has 16 KiB of it, the second 4 KiB.
        let coded = extent(1, 20 << 10, "ec:2+1", &[("a", true), ("b", true), ("c", false)]);
        let copies = extent(2, 50, "replica:2", &[("a", true), ("c", true)]);
        let located = located(vec![coded.clone(), copies, extent(0, 50, "", &[]), coded]);
        let hosts = located.bytes_by_host();
        assert_eq!(hosts, BTreeMap::from([("a".into(), (32 << 10) + 50), ("b".into(), 8 << 10), ("c".into(), 50)]));
        let state = located.state();
        assert_eq!((state.chunks, state.chunks_full, state.chunks_reduced, state.chunks_lost), (2, 1, 1, 0));
        assert_eq!(state.stored_bytes, (20 << 10) + (16 << 10) + 100);
        assert_eq!(state.classes, ["ec:2+1", "replica:2"]);
    }

    #[test]
    fn a_file_in_packs_has_its_share_of_them() {
        let pack = extent(1, 1 << 20, "ec:2+1", &[("a", true), ("b", true), ("c", true)]);
        let part = |chunk_offset| LocatedExtent { len_bytes: 1 << 10, chunk_offset, packed: true, ..pack.clone() };
        let located = located(vec![part(100), part(600 << 10)]);
        let state = located.state();
        assert_eq!((state.chunks, state.stored_bytes), (1, 2 * 1536));
        assert_eq!(located.bytes_by_host(), BTreeMap::from([("a".into(), 1 << 10), ("b".into(), 1 << 10)]));
    }

    #[test]
    fn a_file_was_verified_when_the_last_of_its_disks_was_but_not_before_it_was_written() {
        let copies = extent(2, 50, "replica:2", &[("a", true), ("c", true)]);
        let mut file = located(vec![extent(0, 50, "", &[]), copies]);
        assert_eq!(file.state().last_verified_ns, Some(500));
        file.extents[1].fragments[1].verified_ns = 450;
        assert_eq!(file.state().last_verified_ns, Some(450));
        file.extents[1].fragments[1].verified_ns = 399;
        assert_eq!(file.state().last_verified_ns, None);
        file.extents[1].fragments[1].readable = false;
        assert_eq!(file.state().last_verified_ns, Some(500), "one that cannot be read is not counted as full");
        assert_eq!(located(Vec::new()).state().last_verified_ns, None);
    }

    #[test]
    fn a_copy_is_all_of_a_chunk_and_enough_of_it() {
        let at = |a, b, c| [("a", a), ("b", b), ("c", c)];
        let class = "copy+ec:2+1";
        let located = located(vec![
            extent(1, 100, class, &at(true, true, true)),
            extent(2, 100, class, &at(true, false, false)),
            extent(3, 100, class, &at(false, true, true)),
            extent(4, 100, class, &at(false, false, true)),
        ]);
        let hosts = located.bytes_by_host();
        assert_eq!(hosts, BTreeMap::from([("a".into(), 200)]), "the slice of b has nothing of so little");
        let state = located.state();
        assert_eq!((state.chunks_full, state.chunks_reduced, state.chunks_lost), (1, 2, 1));
        assert_eq!(state.stored_bytes, 4 * (100 + 128));
        let holds: Vec<Holds> = located.extents[0].fragments.iter().map(|f| f.holds).collect();
        assert_eq!(holds, [Holds::Copy, Holds::Slice, Holds::Parity]);
    }
}
