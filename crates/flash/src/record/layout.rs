//! What a file system with a page cache would ask of one device: the core of a recording.

use super::dirty::Dirty;
use super::space::{Placement, Space};
use crate::device::Ns;
use crate::ssd::Op;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

/// Dirty pages of longer than this are written although nobody syncs them, as Linux does by default.
pub const DIRTY_AGE: Ns = 30_000_000_000;
/// Dirty bytes of a disk above which those of the file that is dirty for longest are written.
pub const DIRTY_BYTES_MAX: u64 = 256 << 20;

/// Number of a file. A name that is created again is another file.
pub type FileId = u64;

/// A request, and what it is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    /// What it does.
    pub op: Op,
    /// Bytes of the device.
    pub place: Range<u64>,
    /// The files that it is for, such as `segments/*.seg`: see [`kind_of`].
    pub kind: Arc<str>,
}

#[derive(Debug)]
struct File {
    kind: Arc<str>,
    placement: Placement,
    dirty: Dirty,
    /// When the first of its dirty pages became dirty.
    dirty_since: Option<Ns>,
    handles: u32,
    has_name: bool,
}

impl File {
    fn new(path: &str) -> File {
        let (placement, dirty) = (Placement::default(), Dirty::default());
        File { kind: kind_of(path), placement, dirty, dirty_since: None, handles: 0, has_name: true }
    }

    /// Asks for these places.
    fn ask(&self, op: Op, places: Vec<Range<u64>>, asked: &mut Vec<Asked>) {
        asked.extend(places.into_iter().map(|place| Asked { op, place, kind: self.kind.clone() }));
    }
}

/// The files of a disk on the addresses of a device.
#[derive(Debug, Default)]
pub struct Layout {
    space: Space,
    names: BTreeMap<String, FileId>,
    files: BTreeMap<FileId, File>,
    next: FileId,
    /// Files with dirty pages, by the time since when.
    waiting: BTreeSet<(Ns, FileId)>,
    dirty_bytes: u64,
}

impl Layout {
    /// A handle for the file of this name. A file that existed before the recording begins gets its place when it is used.
    pub fn open(&mut self, path: &str) -> FileId {
        let id = *self.names.entry(path.into()).or_insert_with(|| {
            self.next += 1;
            self.next
        });
        self.files.entry(id).or_insert_with(|| File::new(path)).handles += 1;
        id
    }

    /// The kind of an open file.
    pub fn kind(&self, id: FileId) -> Arc<str> {
        self.files[&id].kind.clone()
    }

    /// A handle is gone.
    pub fn close(&mut self, id: FileId, asked: &mut Vec<Asked>) {
        self.file(id).handles -= 1;
        self.free_if_unused(id, asked);
    }

    /// A name is gone. The bytes stay while there is a handle.
    pub fn remove(&mut self, path: &str, asked: &mut Vec<Asked>) {
        if let Some(id) = self.names.remove(path) {
            self.file(id).has_name = false;
            self.free_if_unused(id, asked);
        }
    }

    /// A file has another name, in place of the file that had it.
    pub fn rename(&mut self, from: &str, to: &str, asked: &mut Vec<Asked>) {
        if from == to {
            return;
        }
        self.remove(to, asked);
        if let Some(id) = self.names.remove(from) {
            self.names.insert(to.into(), id);
        }
    }

    /// Bytes were read; what is dirty comes from the cache.
    pub fn read(&mut self, id: FileId, bytes: Range<u64>, asked: &mut Vec<Asked>) {
        let file = self.files.get_mut(&id).expect("an open file");
        for range in file.dirty.others(bytes) {
            let places = file.placement.place(&mut self.space, range);
            file.ask(Op::Read, places, asked);
        }
    }

    /// Bytes were written, to the cache.
    pub fn write(&mut self, now: Ns, id: FileId, bytes: Range<u64>, asked: &mut Vec<Asked>) {
        if bytes.is_empty() {
            return;
        }
        let file = self.files.get_mut(&id).expect("an open file");
        self.dirty_bytes += file.dirty.add(bytes);
        if file.dirty_since.is_none() {
            file.dirty_since = Some(now);
            self.waiting.insert((now, id));
        }
        while self.dirty_bytes > DIRTY_BYTES_MAX
            && let Some((_, oldest)) = self.waiting.first().copied()
        {
            self.write_back(oldest, asked);
        }
    }

    /// A file was shortened; one that grows has a hole.
    pub fn truncate(&mut self, id: FileId, len: u64, asked: &mut Vec<Asked>) {
        let file = self.files.get_mut(&id).expect("an open file");
        self.dirty_bytes -= file.dirty.cut(len);
        let places = file.placement.cut(&mut self.space, len.next_multiple_of(super::PAGE_BYTES));
        file.ask(Op::Trim, places, asked);
    }

    /// Writes the dirty pages of a file.
    pub fn write_back(&mut self, id: FileId, asked: &mut Vec<Asked>) {
        let file = self.files.get_mut(&id).expect("a file");
        let Some(since) = file.dirty_since.take() else { return };
        self.waiting.remove(&(since, id));
        for range in file.dirty.take() {
            self.dirty_bytes -= range.end - range.start;
            let places = file.placement.place(&mut self.space, range);
            file.ask(Op::Write, places, asked);
        }
    }

    /// Writes the files that became dirty at `before` or earlier.
    pub fn write_back_older(&mut self, before: Ns, asked: &mut Vec<Asked>) {
        while let Some((_, id)) = self.waiting.first().filter(|(since, _)| *since <= before).copied() {
            self.write_back(id, asked);
        }
    }

    fn file(&mut self, id: FileId) -> &mut File {
        self.files.get_mut(&id).expect("a file that is open or has a name")
    }

    /// Frees a file without name and handles. Its dirty pages are never written.
    fn free_if_unused(&mut self, id: FileId, asked: &mut Vec<Asked>) {
        let file = self.file(id);
        if file.handles > 0 || file.has_name {
            return;
        }
        if let Some(since) = file.dirty_since {
            self.waiting.remove(&(since, id));
        }
        self.truncate(id, 0, asked);
        self.files.remove(&id);
    }
}

/// What stands for all files that are like this one: its directory and its ending, without the ending of a file that is to
/// be renamed into place.
pub fn kind_of(path: &str) -> Arc<str> {
    let path = path.strip_suffix(".tmp").unwrap_or(path);
    let (directory, name) = path.rsplit_once('/').map_or(("", path), |(directory, name)| (directory, name));
    let name = name.rsplit_once('.').map_or_else(|| name.into(), |(_, ending)| format!("*.{ending}"));
    if directory.is_empty() { name.into() } else { format!("{directory}/{name}").into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// What `work` asks for: operation, first byte, bytes.
    fn asked(layout: &mut Layout, work: impl FnOnce(&mut Layout, &mut Vec<Asked>)) -> Vec<(Op, u64, u64)> {
        let mut asked = Vec::new();
        work(layout, &mut asked);
        asked.into_iter().map(|a| (a.op, a.place.start, a.place.end - a.place.start)).collect()
    }

    #[test]
    fn writes_reach_the_device_as_whole_pages_when_they_are_synced() {
        let mut layout = Layout::default();
        let file = layout.open("a");
        let nothing = asked(&mut layout, |layout, asked| {
            layout.write(0, file, 100..200, asked);
            layout.write(0, file, 4000..4200, asked);
            layout.read(file, 0..8192, asked);
        });
        assert_eq!(nothing, [], "dirty pages are in the cache");
        assert_eq!(asked(&mut layout, |l, asked| l.write_back(file, asked)), [(Op::Write, 0, 8192)]);
        assert_eq!(asked(&mut layout, |l, asked| l.write_back(file, asked)), []);
        assert_eq!(asked(&mut layout, |l, asked| l.read(file, 5000..5001, asked)), [(Op::Read, 4096, 4096)]);
    }

    #[test]
    fn pages_that_nobody_syncs_are_written_when_they_are_old_or_too_many() {
        let mut layout = Layout::default();
        let (a, b) = (layout.open("a"), layout.open("b"));
        let many = asked(&mut layout, |layout, asked| {
            layout.write(0, b, 0..1, asked);
            layout.write(1, a, 0..DIRTY_BYTES_MAX, asked);
        });
        assert_eq!(many, [(Op::Write, 0, 4096)], "the file that is dirty for longest");
        assert_eq!(asked(&mut layout, |l, asked| l.write_back_older(0, asked)), []);
        let old = asked(&mut layout, |l, asked| l.write_back_older(1, asked));
        assert_eq!((old.len() as u64, layout.dirty_bytes), (DIRTY_BYTES_MAX / MIB, 0));
    }

    #[test]
    fn a_removed_file_is_trimmed_once_its_last_handle_is_gone() {
        let mut layout = Layout::default();
        let (first, second) = (layout.open("a"), layout.open("a"));
        assert_eq!(first, second);
        let nothing = asked(&mut layout, |layout, asked| {
            layout.write(0, first, 0..5000, asked);
            layout.write_back(first, asked);
            asked.clear();
            layout.write(0, first, 9000..9001, asked);
            layout.remove("a", asked);
            layout.close(first, asked);
        });
        assert_eq!(nothing, []);
        assert_ne!(layout.open("a"), first, "a new file of the same name");
        assert_eq!(asked(&mut layout, |l, asked| l.close(second, asked)), [(Op::Trim, 0, 8192)]);
        assert_eq!((layout.dirty_bytes, layout.waiting.len()), (0, 0), "what was dirty is never written");
    }

    #[test]
    fn a_file_that_takes_the_name_of_another_frees_it() {
        let mut layout = Layout::default();
        let (old, new) = (layout.open("a"), layout.open("a.tmp"));
        let trimmed = asked(&mut layout, |layout, asked| {
            for file in [old, new] {
                layout.write(0, file, 0..4096, asked);
                layout.write_back(file, asked);
                layout.close(file, asked);
            }
            asked.clear();
            layout.rename("a.tmp", "a", asked);
            layout.rename("a", "a", asked);
        });
        assert_eq!(trimmed, [(Op::Trim, 0, 4096)]);
        assert_eq!(layout.open("a"), new);
        let third = layout.open("b");
        let reused = asked(&mut layout, |layout, asked| {
            layout.write(0, third, 0..4096, asked);
            layout.write_back(third, asked);
        });
        assert_eq!(reused, [(Op::Write, 0, 4096)], "what was freed is used again");
    }

    #[test]
    fn files_are_counted_by_directory_and_ending() {
        let kinds = ["segments/01.seg", "03.cell", "MANIFEST.tmp", "index/MANIFEST"].map(kind_of);
        assert_eq!(kinds.each_ref().map(|kind| &**kind), ["segments/*.seg", "*.cell", "MANIFEST", "index/MANIFEST"]);
    }

    #[test]
    fn a_truncated_file_keeps_the_page_of_its_last_byte() {
        let mut layout = Layout::default();
        let file = layout.open("a");
        let trimmed = asked(&mut layout, |layout, asked| {
            layout.write(0, file, 0..3 * MIB, asked);
            layout.write_back(file, asked);
            asked.clear();
            layout.truncate(file, MIB + 1, asked);
            layout.truncate(file, 9 * MIB, asked);
        });
        assert_eq!(trimmed, [(Op::Trim, MIB + 4096, MIB - 4096), (Op::Trim, 2 * MIB, MIB)]);
    }
}
