//! Files that were made here, and that the manager does not know yet.
//!
//! Whoever makes a directory through this mount, or some files in one that was there, has the names in there to itself for a while
//! ([`tessera_wire::meta::Entry::delegation_ms`]): what is not among them is not there, and a new file need not be asked for. It comes to be with the
//! commit of its content, one trip instead of three; or by itself ([`Making::settle`]) as soon as anything else is to be
//! done with it, a third of that while has passed, or others want to make names there. So all that a program on another mount can
//! notice is that a file which is still open for its first time may not be there yet.
//!
//! If this client was cut off for longer than the manager waits, another's file may have taken the name: then the
//! program hears at `close` or `fsync` that its own is none any more (`ESTALE`).

use crate::attr::explained;
use crate::mount::Store;
use crate::names::Known;
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, unbounded};
use fuser::Errno;
use parking_lot::{Mutex, MutexGuard};
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use tessera_client::inodes::{NewAttr, NewFile, NewNode};
use tessera_client::{Client, Owner, WriteDone, WriteError};
use tessera_wire::meta::{Entry, InoRange};
use tessera_wire::{Attr, Code, Error, InodeKind};

const TAKEN: &str = "another file has taken a new one's name: it is none any more";
/// Inode numbers that are asked for at once.
pub const INOS: u32 = 128;
/// A directory of more names than this is not kept any more.
const MAX_NAMES: usize = 100_000;
/// Longer names are the manager's to refuse.
const MAX_NAME_BYTES: usize = 255;
/// How often files are looked for that wait too long.
const TICK: Duration = Duration::from_millis(100);
/// A file waits for its content for at most this part of the time that the names are ours.
const WAITS: u32 = 3;

/// So many names are made in a directory that was there before its names are asked for, and twice as many each time they are not had or
/// taken back: whoever makes names by turns with others asks each time.
const ASKED_AFTER: u32 = 4;
/// At most.
const ASKED_AFTER_MOST: u32 = 1024;
/// Of so many directories it is known how many names were made.
const MAX_DIRECTORIES: usize = 4096;

/// See the module.
pub struct Making {
    state: Mutex<State>,
    recalled: Sender<Recall>,
}

/// Directories whose names are others' to make, once the function is called.
type Recall = (Vec<u64>, Box<dyn FnOnce() + Send>);

#[derive(Default)]
struct State {
    directories: HashMap<u64, Directory>,
    asked_for: HashMap<u64, AskedFor>,
    inos: Vec<InoRange>,
    files: HashMap<u64, Arc<New>>,
    by_name: HashMap<(u64, Vec<u8>), u64>,
    /// Names that were taken back, counted: an answer on its way meanwhile may be about the same.
    recalls: u64,
    /// Files that came to nothing, and are still open.
    lost: HashMap<u64, Errno>,
}

/// A directory whose names are ours.
struct Directory {
    until: Instant,
    for_long: Duration,
    /// All names in it, and perhaps some that are gone.
    names: HashSet<Vec<u8>>,
}

/// A directory in which names are made by asking the manager.
#[derive(Default)]
struct AskedFor {
    /// Requests on their way that make names in there.
    under_way: usize,
    /// The names of these, and of all since the oldest of them: what the manager lists may lack them.
    names: HashSet<Vec<u8>>,
    /// Names made since it was last asked for all.
    made: u32,
    /// Ask when so many were; 0: [`ASKED_AFTER`].
    ask_after: u32,
}

/// A name is being made by asking the manager; until this is dropped.
pub struct Adding<'a> {
    making: &'a Making,
    directory: u64,
}

impl Drop for Adding<'_> {
    fn drop(&mut self) {
        let mut state = self.making.state.lock();
        let Some(asked_for) = state.asked_for.get_mut(&self.directory) else { return };
        asked_for.under_way -= 1;
        if asked_for.under_way == 0 {
            asked_for.names = HashSet::new();
        }
    }
}

/// A new file.
struct New {
    ino: u64,
    parent: u64,
    name: Vec<u8>,
    settle_at: Instant,
    known: Mutex<Known>,
    /// Held while the manager is told of it; true: it was, or the file came to nothing.
    told: Mutex<bool>,
}

/// What is known here of a name.
pub enum Found {
    /// A new file.
    New(Known),
    /// Nothing has it.
    Nothing,
    /// Ask the manager.
    Unknown,
}

impl Making {
    /// Nothing is ours yet. What [`work`] is to do comes by the receiver.
    pub fn new() -> (Making, Receiver<Recall>) {
        let (recalled, to_settle) = unbounded();
        (Making { state: Mutex::default(), recalled }, to_settle)
    }

    /// Before names are asked for: goes back with the answer.
    pub fn asking(&self) -> (Instant, u64) {
        (Instant::now(), self.state.lock().recalls)
    }

    /// The names in `directory`, which are these, are ours for so long since they were asked for, unless a recall overtook the answer.
    pub fn owns(&self, directory: u64, (asked, recalls): (Instant, u64), granted: &mut Entry) {
        let mut state = self.state.lock();
        state.inos.extend(granted.inos);
        if granted.delegation_ms > 0 && state.recalls == recalls {
            let for_long = Duration::from_millis(granted.delegation_ms);
            let mut names: HashSet<Vec<u8>> = std::mem::take(&mut granted.names).into_iter().collect();
            if let Some(asked_for) = state.asked_for.get_mut(&directory) {
                names.extend(asked_for.names.iter().cloned());
                asked_for.ask_after /= 2;
            }
            names.extend(state.files.values().filter(|new| new.parent == directory).map(|new| new.name.clone()));
            let mine = Directory { until: asked + for_long, for_long, names };
            let now = Instant::now();
            state.directories.retain(|_, mine| mine.until > now);
            state.directories.insert(directory, mine);
        }
    }

    /// The names in a directory are others' to make, too; none: in all directories.
    pub fn disowns(&self, directory: Option<u64>) {
        let mut state = self.state.lock();
        state.recalls += 1;
        match directory {
            Some(directory) => {
                state.directories.remove(&directory);
                if let Some(asked_for) = state.asked_for.get_mut(&directory) {
                    asked_for.ask_after = (asked_for.ask_after.max(ASKED_AFTER) * 2).min(ASKED_AFTER_MOST);
                    asked_for.made = 0;
                }
            }
            None => state.directories.clear(),
        }
    }

    /// Whether the names in a directory are ours, as far as is known here.
    pub fn has_names(&self, directory: u64) -> bool {
        self.state.lock().directories.contains_key(&directory)
    }

    /// A name is about to be made in `directory` by asking the manager. The caller keeps what this returns until the answer is there, and
    /// [`Making::owns`] has heard of it.
    #[must_use]
    pub fn adds(&self, directory: u64, name: &[u8]) -> Adding<'_> {
        let mut state = self.state.lock();
        if state.asked_for.len() >= MAX_DIRECTORIES {
            state.asked_for.retain(|_, asked_for| asked_for.under_way > 0);
        }
        let asked_for = state.asked_for.entry(directory).or_default();
        asked_for.under_way += 1;
        asked_for.made = asked_for.made.saturating_add(1);
        asked_for.names.insert(name.to_vec());
        if let Some(mine) = state.directories.get_mut(&directory) {
            mine.names.insert(name.to_vec());
            if mine.names.len() > MAX_NAMES {
                state.directories.remove(&directory);
            }
        }
        Adding { making: self, directory }
    }

    /// Whether the names in a directory are to be asked for with the next one that is made; and how many inode numbers.
    pub fn wants_names(&self, directory: u64) -> Option<u32> {
        let mut state = self.state.lock();
        let inos = if state.is_short() { INOS } else { 0 };
        let asked_for = state.asked_for.get_mut(&directory)?;
        let ask_after = asked_for.ask_after.max(ASKED_AFTER);
        if asked_for.made < ask_after || asked_for.names.len() > MAX_NAMES {
            return None;
        }
        // If they are had it is half of that again.
        (asked_for.made, asked_for.ask_after) = (0, (ask_after * 2).min(ASKED_AFTER_MOST));
        Some(inos)
    }

    /// What `name` in `directory` means.
    pub fn find(&self, directory: u64, name: &[u8]) -> Found {
        let state = self.state.lock();
        if (state.directories.is_empty() && state.files.is_empty()) || name.len() > MAX_NAME_BYTES {
            return Found::Unknown;
        }
        if let Some(new) = state.by_name.get(&(directory, name.to_vec())).and_then(|ino| state.files.get(ino)) {
            return Found::New(new.known.lock().clone());
        }
        match state.directories.get(&directory) {
            Some(mine) if mine.until > Instant::now() && !mine.names.contains(name) => Found::Nothing,
            _ => Found::Unknown,
        }
    }

    /// A new file, if the manager need not be asked; `attr` is what it is like but for its number, `hints` are its directory's.
    pub fn make(&self, parent: u64, name: &[u8], attr: Attr, above: &Known) -> Option<Known> {
        let mut state = self.state.lock();
        let now = Instant::now();
        let mine = state.directories.get_mut(&parent)?;
        // It must be settled while they are ours.
        let settle_at = now + mine.for_long / WAITS;
        if settle_at + mine.for_long / WAITS > mine.until || mine.names.contains(name) || name.len() > MAX_NAME_BYTES {
            return None;
        }
        let ino = state.draw()?;
        state.directories.get_mut(&parent)?.names.insert(name.to_vec());
        let known = Known { attr: Attr { ino, ..attr }, hints: above.hints.clone() };
        let (name, told) = (name.to_vec(), Mutex::new(false));
        let new = New { ino, parent, name: name.clone(), settle_at, known: Mutex::new(known.clone()), told };
        state.by_name.insert((parent, name), ino);
        state.files.insert(ino, Arc::new(new));
        Some(known)
    }

    /// A new file, as it is.
    pub fn known(&self, ino: u64) -> Option<Known> {
        self.get(ino).map(|new| new.known.lock().clone())
    }

    /// Changes a new file's attributes, if these are all that is to be changed; as it is then.
    pub fn set_attr(&self, ino: u64, wanted: &NewAttr) -> Option<Known> {
        let NewAttr { mode, uid, gid, mtime_ns: None, atime_ns: None } = *wanted else { return None };
        let new = self.get(ino)?;
        let told = new.told.lock();
        if *told {
            return None;
        }
        let mut known = new.known.lock();
        let attr = &mut known.attr;
        (attr.mode, attr.uid, attr.gid) = (mode.unwrap_or(attr.mode), uid.unwrap_or(attr.uid), gid.unwrap_or(attr.gid));
        Some(known.clone())
    }

    fn get(&self, ino: u64) -> Option<Arc<New>> {
        self.state.lock().files.get(&ino).cloned()
    }

    /// Numbers of those in one directory; none: of all.
    fn waiting(&self, directory: Option<u64>) -> Vec<u64> {
        let state = self.state.lock();
        state.files.values().filter(|new| directory.is_none_or(|of| of == new.parent)).map(|new| new.ino).collect()
    }

    fn due(&self) -> Vec<u64> {
        let (state, now) = (self.state.lock(), Instant::now());
        state.files.values().filter(|new| new.settle_at <= now).map(|new| new.ino).collect()
    }

    fn is_told(&self, new: &New, mut told: MutexGuard<'_, bool>) {
        *told = true;
        let mut state = self.state.lock();
        // Names that are being listed meanwhile may lack it.
        if let Some(asked_for) = state.asked_for.get_mut(&new.parent).filter(|asked_for| asked_for.under_way > 0) {
            asked_for.names.insert(new.name.clone());
        }
        state.files.remove(&new.ino);
        state.by_name.remove(&(new.parent, new.name.clone()));
    }

    /// Nobody has it open any more. It was made, also if nothing of its content could be stored.
    pub fn is_closed(&self, client: &Client, ino: u64) {
        if self.settle(client, ino).is_err()
            && let Some(new) = self.get(ino)
        {
            self.is_told(&new, new.told.lock());
        }
        let mut state = self.state.lock();
        if !state.lost.is_empty() {
            state.lost.remove(&ino);
        }
    }

    /// Fails if a file came to nothing.
    ///
    /// # Errors
    /// Why.
    pub fn check(&self, ino: u64) -> Result<(), Errno> {
        self.state.lock().lost.get(&ino).map_or(Ok(()), |errno| Err(*errno))
    }

    /// Writes a file's first version, and makes it with that if it is new; none: it is not, or the manager knows it by now.
    pub fn write(
        &self,
        store: &Store,
        ino: u64,
        mtime_ns: i64,
        bytes: impl FnOnce() -> bytes::Bytes,
    ) -> Option<Result<WriteDone, WriteError>> {
        let new = self.get(ino)?;
        let told = new.told.lock();
        if *told {
            return None;
        }
        let (owner, policy) = {
            let known = new.known.lock();
            (owner_of(&known.attr), known.policy())
        };
        let (now, asked) = (Instant::now(), store.names.asking());
        let inos = if self.state.lock().is_short() { INOS } else { 0 };
        let file = NewFile { parent: new.parent, name: &new.name, ino, owner, policy, inos };
        let done = store.client.inodes().write_new(file, bytes(), mtime_ns);
        if matches!(&done, Err(error) if error.code() == Code::VersionConflict) {
            tracing::error!(ino, parent = new.parent, "{TAKEN}");
            self.state.lock().lost.insert(ino, Errno::ESTALE);
        }
        if let Ok(done) = &done {
            if let Some(entry) = &done.entry {
                store.names.made(asked, new.parent, &new.name, entry);
            }
            self.is_told(&new, told);
            let mut state = self.state.lock();
            state.inos.extend(done.inos);
            if let Some(mine) = state.directories.get_mut(&new.parent) {
                mine.until = mine.until.max(now + Duration::from_millis(done.delegation_ms));
            }
        }
        Some(done)
    }

    /// Makes the manager know a file, if it is new.
    ///
    /// # Errors
    /// The manager's; where it refuses for good, the file is none any more.
    pub fn settle(&self, client: &Client, ino: u64) -> Result<(), Errno> {
        let Some(new) = self.get(ino) else { return self.check(ino) };
        let told = new.told.lock();
        if *told {
            return self.check(ino);
        }
        let owner = owner_of(&new.known.lock().attr);
        let node = NewNode { kind: InodeKind::File, owner, ino, ..NewNode::default() };
        match client.inodes().make_node(new.parent, &new.name, node) {
            Ok(_) => {
                self.is_told(&new, told);
                Ok(())
            }
            Err(error) => {
                let errno = refused(&new, &error);
                if !error.is_retryable() {
                    self.state.lock().lost.insert(ino, errno);
                    self.is_told(&new, told);
                }
                Err(errno)
            }
        }
    }

    /// Settles all files in a directory; none: all files.
    ///
    /// # Errors
    /// As [`Making::settle`], of the first that comes to nothing; the others are tried all the same.
    pub fn settle_all(&self, client: &Client, directory: Option<u64>) -> Result<(), Errno> {
        self.waiting(directory).into_iter().map(|ino| self.settle(client, ino)).fold(Ok(()), Result::and)
    }

    /// Settles the file of this name, if it is new.
    ///
    /// # Errors
    /// As [`Making::settle`].
    pub fn settle_name(&self, client: &Client, directory: u64, name: &[u8]) -> Result<(), Errno> {
        let ino = self.state.lock().by_name.get(&(directory, name.to_vec())).copied();
        ino.map_or(Ok(()), |ino| self.settle(client, ino))
    }

    /// The manager takes names back; it is to be answered with the function.
    pub fn recall(&self, directories: Vec<u64>, answer: Box<dyn FnOnce() + Send>) {
        directories.iter().for_each(|directory| self.disowns(Some(*directory)));
        let waits = directories.iter().any(|directory| !self.waiting(Some(*directory)).is_empty());
        if !waits {
            return answer();
        }
        if let Err(unsent) = self.recalled.send((directories, answer)) {
            unsent.into_inner().1();
        }
    }
}

impl State {
    fn draw(&mut self) -> Option<u64> {
        let some = self.inos.last_mut()?;
        let ino = some.first;
        (some.first, some.count) = (some.first + 1, some.count.saturating_sub(1));
        if some.count == 0 {
            self.inos.pop();
        }
        Some(ino)
    }

    fn is_short(&self) -> bool {
        self.inos.iter().map(|some| some.count).sum::<u32>() < INOS / 2
    }
}

fn owner_of(attr: &Attr) -> Owner {
    Owner { mode: attr.mode, uid: attr.uid, gid: attr.gid }
}

fn refused(new: &New, error: &Error) -> Errno {
    match error.kind() {
        Code::Exists => {
            tracing::error!(ino = new.ino, parent = new.parent, "{TAKEN}");
            Errno::ESTALE
        }
        _ => explained("make", new.parent, error),
    }
}

/// Settles what was recalled, and what waits too long; until the store is gone.
pub fn work(store: &Weak<Store>, recalled: &Receiver<Recall>) {
    loop {
        let next = recalled.recv_timeout(TICK);
        let Some(store) = store.upgrade() else { return };
        match next {
            Ok((directories, answer)) => {
                for directory in directories {
                    // Who has such a file open hears of what went wrong when it closes it.
                    let _ = store.making.settle_all(&store.client, Some(directory));
                }
                answer();
            }
            Err(RecvTimeoutError::Timeout) => {
                for ino in store.making.due() {
                    let _ = store.making.settle(&store.client, ino);
                }
            }
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the manager grants, with these names in the directory.
    fn granted(names: &[&[u8]]) -> Entry {
        let names = names.iter().map(|name| name.to_vec()).collect();
        Entry { delegation_ms: 60_000, names, inos: Some(InoRange { first: 100, count: 9 }), ..Entry::default() }
    }

    fn make(making: &Making, directory: u64, name: &[u8]) -> Option<u64> {
        let above = Known { attr: Attr::default(), hints: Vec::new() };
        making.make(directory, name, Attr::default(), &above).map(|known| known.attr.ino)
    }

    #[test]
    fn names_that_were_taken_back_before_the_answer_came_are_not_ours() {
        let (making, _) = Making::new();
        let asked = making.asking();
        making.owns(7, asked, &mut granted(&[]));
        assert!(making.has_names(7) && matches!(making.find(7, b"a"), Found::Nothing));
        let asked = making.asking();
        making.recall(vec![8], Box::new(|| {}));
        making.owns(8, asked, &mut granted(&[]));
        assert!(!making.has_names(8) && matches!(making.find(8, b"a"), Found::Unknown));
    }

    #[test]
    fn names_of_a_directory_are_asked_for_once_some_were_made_and_less_often_if_others_make_some_too() {
        let (making, _) = Making::new();
        let until_wanted = || {
            (1..).find(|_| {
                drop(making.adds(7, b"n"));
                making.wants_names(7).is_some()
            })
        };
        assert_eq!(making.wants_names(7), None);
        assert_eq!((until_wanted(), until_wanted(), until_wanted()), (Some(4), Some(8), Some(16)), "not had");
        making.owns(7, making.asking(), &mut granted(&[]));
        assert_eq!(until_wanted(), Some(16), "had, and run out");
        making.owns(7, making.asking(), &mut granted(&[]));
        making.disowns(Some(7));
        assert_eq!(until_wanted(), Some(32), "taken back");
        (0..20).for_each(|_| assert!(until_wanted().is_some()));
        assert_eq!(until_wanted(), Some(1024));
        assert_eq!(making.wants_names(8), None, "of another directory");
    }

    /// What the manager lists may lack what was on its way then, whenever the answers come.
    #[test]
    fn names_that_are_being_made_meanwhile_are_known() {
        let (making, _) = Making::new();
        drop(making.adds(7, b"long ago"));
        let before = making.adds(7, b"before");
        let ours = making.adds(7, b"ours");
        let asked = making.asking();
        let meanwhile = making.adds(7, b"meanwhile");
        drop((before, meanwhile));
        let after = making.adds(7, b"after");
        making.owns(7, asked, &mut granted(&[b"long ago", b"ours"]));
        drop((ours, after));
        for name in [&b"long ago"[..], b"before", b"ours", b"meanwhile", b"after"] {
            assert!(matches!(making.find(7, name), Found::Unknown), "{name:?}");
            assert_eq!(make(&making, 7, name), None);
        }
        assert!(matches!(making.find(7, b"new"), Found::Nothing));
        assert_eq!(make(&making, 7, b"new"), Some(100));
        // Asked for once more, while that is only known here.
        making.owns(7, making.asking(), &mut granted(&[b"long ago"]));
        assert!(matches!(making.find(7, b"new"), Found::New(_)));
        assert_eq!(make(&making, 7, b"new"), None);
        assert!(making.state.lock().asked_for[&7].names.is_empty(), "nothing is on its way");
        // The manager knows it after it has listed the names, and before that is heard of.
        let (ours, asked) = (making.adds(7, b"ours"), making.asking());
        let new = making.get(100).unwrap();
        making.is_told(&new, new.told.lock());
        making.owns(7, asked, &mut granted(&[b"long ago"]));
        drop(ours);
        assert!(matches!(making.find(7, b"new"), Found::Unknown));
    }
}
