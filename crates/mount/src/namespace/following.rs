//! Which small files of a directory are opened next. Whoever opens them in the order of their names, or of their numbers (`cp` sorts
//! so), goes on: their contents are asked for ahead, more and more of them, as long as most of those that were asked for are opened.

use std::collections::{HashMap, HashSet};
use tessera_wire::{Attr, InodeKind};

/// A run ends if no further file is opened within this time, ns.
const RUN_NS: i64 = 1_000_000_000;
/// Whoever opens the first file of a directory that was listed no longer ago goes on to the others, ns.
const LISTED_NS: i64 = 10_000_000_000;
/// Files asked for at first; four times as many with each further time.
const FIRST_FILES: usize = 16;
const MOST_FILES: usize = 128;
/// Longer files are opened by themselves.
const MOST_FILE_BYTES: u64 = 128 << 10;
/// Bytes of files asked for at once.
const MOST_BYTES: u64 = 4 << 20;
/// Files of a directory that may be asked for in vain, beside three times as many as were opened.
const IN_VAIN: usize = 64;
/// What was in vain so long ago does not count any more, ns.
const VAIN_NS: i64 = 60_000_000_000;
/// Directories in a row whose files were asked for when they were listed, and of whose files none was opened: no more are.
const UNUSED_LISTINGS: u32 = 4;
/// Files that are remembered.
const MAX_FILES: usize = 32_768;
/// Directories that are remembered.
const MAX_DIRECTORIES: usize = 4_096;

/// Small files to ask for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    /// Their directory.
    pub directory: u64,
    /// Names and numbers.
    pub files: Vec<(Vec<u8>, u64)>,
}

/// See the module.
#[derive(Debug, Default)]
pub struct FollowingFiles {
    /// So many files are opened in order before others are asked for.
    pub after: u32,
    directories: HashMap<u64, Directory>,
    /// Directory and place of a file in it.
    places: HashMap<u64, (u64, usize)>,
    /// In which order files of some directory were opened last that had been asked for, and when: whoever goes through a tree goes on in
    /// the next directory.
    walk: Option<(Order, i64)>,
    unused_listings: u32,
}

#[derive(Debug, Default)]
struct Directory {
    files: Vec<File>,
    /// Places in order of names, and of numbers; brought up to date when they are needed.
    by_name: Vec<usize>,
    by_ino: Vec<usize>,
    /// When it was listed last.
    listed_ns: Option<i64>,
    run: Run,
    /// What was asked for and not opened yet.
    asked: HashSet<usize>,
    /// How many were asked for, when that was last, and how many of them were opened.
    all_asked: usize,
    asked_ns: i64,
    used: usize,
    is_asking: bool,
    /// Files were asked for when it was listed, and none was opened yet.
    is_unused_listing: bool,
}

#[derive(Debug)]
struct File {
    name: Vec<u8>,
    ino: u64,
    size_bytes: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    Name,
    Ino,
}

#[derive(Debug, Default)]
struct Run {
    at_ns: i64,
    /// Place of the file that was opened last.
    last: Option<usize>,
    /// Files in a row that were opened in order of their names, and of their numbers, without the first one.
    in_order: [u32; 2],
    order: Option<Order>,
    /// Place of the last file that was asked for.
    to: Option<usize>,
    /// How many were asked for at once.
    batch: usize,
}

impl FollowingFiles {
    /// A directory is listed from its start.
    pub fn listed_anew(&mut self, now_ns: i64, directory: u64) {
        self.make_room(directory);
        let known = self.directories.entry(directory).or_default();
        for file in &known.files {
            self.places.remove(&file.ino);
        }
        let Directory { all_asked, used, asked_ns, is_asking, .. } = *known;
        *known = Directory { listed_ns: Some(now_ns), all_asked, used, asked_ns, is_asking, ..Directory::default() };
    }

    /// The first names of a directory that is listed anew are noted. Returns what to ask for now; [`FollowingFiles::asked`] follows.
    pub fn listed(&mut self, now_ns: i64, directory: u64) -> Option<Batch> {
        let (order, _) = self.walk.filter(|(_, at_ns)| now_ns.saturating_sub(*at_ns) < RUN_NS)?;
        if self.unused_listings >= UNUSED_LISTINGS {
            return None;
        }
        let known = self.directories.get_mut(&directory)?;
        let files = known.ask(now_ns, order, None)?;
        known.is_unused_listing = true;
        self.unused_listings += 1;
        Some(Batch { directory, files })
    }

    /// Forgets other directories than this one, if there are too many or they have too many files.
    fn make_room(&mut self, directory: u64) {
        if self.directories.len() == 1 && self.directories.contains_key(&directory) {
            return; // There is no other.
        }
        if self.places.len() >= MAX_FILES || self.directories.len() >= MAX_DIRECTORIES {
            self.directories.retain(|of, _| *of == directory);
            self.places.retain(|_, (of, _)| *of == directory);
        }
    }

    /// Names in a directory, and what they stand for.
    pub fn note<'a>(&mut self, directory: u64, entries: impl IntoIterator<Item = (&'a [u8], &'a Attr)>) {
        let is_file = |attr: &Attr| attr.kind() == InodeKind::File;
        for (name, attr) in entries.into_iter().filter(|(_, attr)| is_file(attr)) {
            if let Some((of, at)) = self.places.get(&attr.ino).copied() {
                let known = self.directories.get_mut(&of).and_then(|known| known.files.get_mut(at));
                if let Some(known) = known.filter(|known| of == directory && known.name == name) {
                    known.size_bytes = attr.size_bytes;
                    continue;
                }
            }
            self.make_room(directory);
            if self.places.len() >= MAX_FILES {
                return;
            }
            let files = &mut self.directories.entry(directory).or_default().files;
            self.places.insert(attr.ino, (directory, files.len()));
            files.push(File { name: name.to_vec(), ino: attr.ino, size_bytes: attr.size_bytes });
        }
    }

    /// A program opened a file to read it. Returns what to ask for now; [`FollowingFiles::asked`] follows.
    pub fn opened(&mut self, now_ns: i64, ino: u64) -> Option<Batch> {
        let (directory, at) = *self.places.get(&ino)?;
        let known = self.directories.get_mut(&directory)?;
        let used = known.used;
        let files = known.next(now_ns, at, self.after);
        if known.used > used && std::mem::take(&mut known.is_unused_listing) {
            self.unused_listings = 0;
        }
        if known.used > used && 2 * known.used >= known.all_asked {
            self.walk = known.run.order.map(|order| (order, now_ns));
        }
        Some(Batch { directory, files: files? })
    }

    /// What was to be asked for in a directory has come, or cannot.
    pub fn asked(&mut self, directory: u64) {
        if let Some(known) = self.directories.get_mut(&directory) {
            known.is_asking = false;
        }
    }
}

impl Directory {
    fn next(&mut self, now_ns: i64, at: usize, after: u32) -> Option<Vec<(Vec<u8>, u64)>> {
        let goes_back = |run: &Run| {
            let (order, last) = run.order.zip(run.last)?;
            Some(self.is_before(order, at, last))
        };
        let is_over = self.run.last.is_some() && now_ns.saturating_sub(self.run.at_ns) >= RUN_NS;
        if is_over || goes_back(&self.run) == Some(true) {
            self.run = Run::default();
        }
        self.run.at_ns = now_ns;
        self.used += usize::from(self.asked.remove(&at));
        let last = self.run.last.replace(at);
        if last == Some(at) {
            return None;
        }
        if let Some(last) = last {
            for order in [Order::Name, Order::Ino] {
                let follows = self.is_before(order, last, at);
                let in_order = &mut self.run.in_order[order as usize];
                *in_order = if follows { *in_order + 1 } else { 0 };
            }
        }
        let goes_on = |order: &Order| self.run.in_order[*order as usize] >= after;
        let going_on = self.run.order.into_iter().chain([Order::Name, Order::Ino]).find(goes_on);
        let order = match going_on {
            Some(order) => order,
            None if last.is_none() => self.begins(now_ns, at)?,
            None => return None,
        };
        if self.run.order != Some(order) {
            self.run.to = None;
        }
        self.run.order = Some(order);
        self.ask(now_ns, order, Some(at))
    }

    /// The order in which a run may go on that begins with this file.
    fn begins(&mut self, now_ns: i64, at: usize) -> Option<Order> {
        if now_ns.saturating_sub(self.listed_ns?) >= LISTED_NS {
            return None;
        }
        self.sort();
        let firsts = [(&self.by_name, Order::Name), (&self.by_ino, Order::Ino)];
        firsts.into_iter().find_map(|(sorted, order)| (sorted.first() == Some(&at)).then_some(order))
    }

    /// What to ask for while the file at this place is open; none: before the first one is opened.
    fn ask(&mut self, now_ns: i64, order: Order, at: Option<usize>) -> Option<Vec<(Vec<u8>, u64)>> {
        if now_ns.saturating_sub(self.asked_ns) >= VAIN_NS {
            (self.all_asked, self.used) = (0, 0);
        }
        if self.is_asking || self.all_asked > IN_VAIN + 4 * self.used {
            return None;
        }
        self.sort();
        let sorted = if order == Order::Name { &self.by_name } else { &self.by_ino };
        let behind = |of: usize| sorted.partition_point(|place| !self.is_before(order, of, *place));
        let next = at.map_or(0, behind);
        let from = self.run.to.map_or(next, |to| behind(to).max(next));
        if from - next > self.run.batch / 2 {
            return None;
        }
        let is_useful = self.run.batch > 0 && 2 * self.used >= self.all_asked;
        let most = if is_useful { (4 * self.run.batch).min(MOST_FILES) } else { FIRST_FILES };
        let (mut places, mut bytes) = (Vec::new(), 0);
        for place in &sorted[from..] {
            let size_bytes = self.files[*place].size_bytes;
            if size_bytes > MOST_FILE_BYTES {
                continue;
            }
            bytes += size_bytes;
            if places.len() == most || bytes > MOST_BYTES {
                break;
            }
            places.push(*place);
        }
        self.run.to = Some(*places.last()?);
        (self.run.order, self.run.batch) = (Some(order), most);
        (self.is_asking, self.asked_ns) = (true, now_ns);
        self.all_asked += places.len();
        self.asked.extend(&places);
        Some(places.iter().map(|place| &self.files[*place]).map(|file| (file.name.clone(), file.ino)).collect())
    }

    fn is_before(&self, order: Order, first: usize, second: usize) -> bool {
        let (first, second) = (&self.files[first], &self.files[second]);
        match order {
            Order::Name => first.name < second.name,
            Order::Ino => first.ino < second.ino,
        }
    }

    fn sort(&mut self) {
        if self.by_name.len() != self.files.len() {
            self.by_name = (0..self.files.len()).collect();
            self.by_name.sort_by(|a, b| self.files[*a].name.cmp(&self.files[*b].name));
            self.by_ino = (0..self.files.len()).collect();
            self.by_ino.sort_by_key(|place| self.files[*place].ino);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: i64 = 1_000_000;

    fn attr(ino: u64, size_bytes: u64) -> Attr {
        Attr { ino, size_bytes, kind: InodeKind::File as i32, ..Attr::default() }
    }

    /// Files with names of four digits, in order; their numbers go down.
    fn listed(count: u64) -> FollowingFiles {
        let mut following = FollowingFiles { after: 2, ..FollowingFiles::default() };
        for at in 0..count {
            following.note(7, [(format!("{at:04}").as_bytes(), &attr(100_000 - at, 10))]);
        }
        following
    }

    fn open(following: &mut FollowingFiles, at_ms: i64, at: u64) -> Vec<u64> {
        let batch = following.opened(at_ms * MS, 100_000 - at);
        following.asked(7);
        batch.map_or_else(Vec::new, |batch| batch.files.iter().map(|(_, ino)| 100_000 - ino).collect())
    }

    #[test]
    fn more_and_more_is_asked_for_along_a_run() {
        let mut following = listed(1_000);
        assert_eq!((open(&mut following, 0, 0), open(&mut following, 0, 1)), (vec![], vec![]));
        assert_eq!(open(&mut following, 0, 2), (3..19).collect::<Vec<_>>());
        let next = (3..1_000).map(|at| (at, open(&mut following, at, at as u64))).find(|(_, batch)| !batch.is_empty());
        assert_eq!(next, Some((10, (19..83).collect())), "before the first ones are used up");
        let next = (11..1_000).map(|at| (at, open(&mut following, at, at as u64))).find(|(_, batch)| !batch.is_empty());
        assert_eq!(next, Some((50, (83..211).collect())));
        let rest: Vec<u64> = (51..1_000).flat_map(|at| open(&mut following, at, at as u64)).collect();
        assert_eq!(rest, (211..1_000).collect::<Vec<_>>(), "each once");
    }

    #[test]
    fn files_are_asked_for_in_the_order_of_their_numbers_too() {
        let mut following = listed(1_000);
        let batches = [900, 899, 898].map(|at| open(&mut following, 0, at));
        assert_eq!(batches[2], (882..898).rev().collect::<Vec<_>>());
    }

    /// The numbers go down, so the last one is the first by its number.
    #[test]
    fn a_directory_that_was_just_listed_is_followed_from_its_first_file() {
        for (first, at_ms, asked) in [(0, 9_999, 16), (999, 9_999, 16), (1, 9_999, 0), (0, 10_000, 0)] {
            let mut following = FollowingFiles { after: 2, ..FollowingFiles::default() };
            following.listed_anew(0, 7);
            let attrs: Vec<_> =
                (0..1_000).map(|at| (format!("{at:04}").into_bytes(), attr(100_000 - at, 10))).collect();
            following.note(7, attrs.iter().map(|(name, attr)| (&name[..], attr)));
            assert_eq!(open(&mut following, at_ms, first).len(), asked, "{first}, {at_ms} ms");
            assert_eq!(open(&mut following, at_ms, 500).len(), 0, "it does not go on");
        }
    }

    fn list(following: &mut FollowingFiles, at_ms: i64, directory: u64) -> usize {
        following.listed_anew(at_ms * MS, directory);
        let attrs: Vec<_> =
            (0..20).map(|at| (format!("{at:02}").into_bytes(), attr(directory * 100 + at, 10))).collect();
        following.note(directory, attrs.iter().map(|(name, attr)| (&name[..], attr)));
        let batch = following.listed(at_ms * MS, directory);
        following.asked(directory);
        batch.map_or(0, |batch| batch.files.len())
    }

    #[test]
    fn whoever_goes_through_a_tree_is_followed_into_the_next_directory() {
        let mut following = FollowingFiles { after: 2, ..FollowingFiles::default() };
        assert_eq!(list(&mut following, 0, 1), 0);
        let opened = |following: &mut FollowingFiles, at_ms: i64, ino| {
            let batch = following.opened(at_ms * MS, ino);
            following.asked(ino / 100);
            batch.map_or(0, |batch| batch.files.len())
        };
        assert_eq!((100..120).map(|ino| opened(&mut following, 0, ino)).sum::<usize>(), 19);
        assert_eq!(list(&mut following, 10, 2), 16, "before its first file is opened");
        assert_eq!((200..220).map(|ino| opened(&mut following, 20, ino)).sum::<usize>(), 4);
        assert_eq!(list(&mut following, 1_020, 3), 0, "nobody has opened anything for long");
        opened(&mut following, 1_020, 219);
        assert_eq!((200..220).map(|ino| opened(&mut following, 1_020, ino)).sum::<usize>(), 17);
        let unused: Vec<usize> = (3..10).map(|directory| list(&mut following, 1_020, directory)).collect();
        assert_eq!(unused, [16, 16, 16, 16, 0, 0, 0], "who lists only is not followed on");
        opened(&mut following, 1_030, 300);
        assert_eq!(list(&mut following, 1_030, 10), 16);
    }

    #[test]
    fn nothing_is_asked_for_where_files_are_opened_at_random_or_seldom() {
        let mut following = listed(1_000);
        assert!([5, 900, 3, 901, 2, 902].iter().all(|at| open(&mut following, 0, *at).is_empty()));
        assert!((10..20).all(|at| open(&mut following, at * 1_000, at as u64).is_empty()));
    }

    #[test]
    fn few_are_asked_for_in_vain() {
        let mut following = listed(10_000);
        let (mut asked, mut used) = (0, 0);
        for at in (0..10_000).step_by(50) {
            asked += open(&mut following, 0, at).len();
            used += 1;
        }
        assert!(used == 200 && asked <= IN_VAIN + FIRST_FILES, "{asked} asked for, {used} opened");
    }

    #[test]
    fn who_goes_through_the_directory_again_is_followed_again() {
        let mut following = listed(20);
        let mut asked = || (0..20).map(|at| open(&mut following, 0, at).len()).sum::<usize>();
        assert_eq!((asked(), asked()), (17, 17));
    }

    #[test]
    fn long_files_and_other_inodes_are_left_out() {
        let mut following = listed(3);
        following
            .note(7, [(&b"0003"[..], &attr(90_003, MOST_FILE_BYTES + 1)), (b"0004", &attr(90_004, MOST_FILE_BYTES))]);
        let directory = Attr { kind: InodeKind::Directory as i32, ..attr(90_005, 0) };
        following.note(7, [(&b"0005"[..], &directory), (b"0006", &attr(90_006, 0))]);
        (0..2).for_each(|at| drop(open(&mut following, 0, at)));
        let batch = following.opened(0, 99_998).unwrap();
        assert_eq!(batch.files, [(b"0004".to_vec(), 90_004), (b"0006".to_vec(), 90_006)]);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut following = FollowingFiles::default();
        for directory in 0..10 {
            for at in 0..5_000 {
                following.note(directory, [(format!("{at}").as_bytes(), &attr(1 + directory * 10_000 + at, 1))]);
            }
            let files: usize = following.directories.values().map(|known| known.files.len()).sum();
            assert!(files <= MAX_FILES && following.places.len() <= MAX_FILES);
        }
        following.listed_anew(0, 9);
        assert!(following.opened(0, 90_001).is_none() && following.places.len() < MAX_FILES);
    }
}
