//! The durable log of a peer: entries, term and vote, memberships, in append-only files.
//!
//! [`Log::write`] returns once everything is synced, so what a peer says after it survives a crash (Raft, figure 2, "persistent
//! state"). Damage to anything that was synced is an error: a peer that has forgotten a vote or an entry must not take part again.

mod error;
pub mod fence;
mod format;
mod open;
pub mod snapshot;

pub use error::{LogError, LogOpenError};

use bytes::Bytes;
use format::{
    BASE, COMMAND, CONFIGURATION, FILE_HEADER_BYTES, FileHeader, MEMBERSHIP, RECORD_HEADER_BYTES, RecordHeader, STATE,
};
use format::{crc32c, padded};
use prost::Message;
use std::collections::{BTreeMap, VecDeque};
use std::io::IoSlice;
use std::sync::Arc;
use tessera_disk::record::{create_file, numbered_name};
use tessera_disk::{Disk, DiskError, DiskFile};
use tessera_failpoint as failpoint;
use tessera_wire::consensus::{EntryKind, Membership};

/// Maximum length of an entry in bytes.
pub const ENTRY_MAX_BYTES: usize = 64 << 20;
/// Bytes of the newest entries that are kept in memory.
const RECENT_BYTES: usize = 32 << 20;

/// Whose log it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogIdentity {
    /// The cluster.
    pub cluster_id: [u8; 16],
    /// The peer; never 0.
    pub peer_id: u64,
}

/// An entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogEntry {
    /// What its bytes are.
    pub kind: EntryKind,
    /// Term of the leader that made it.
    pub term: u64,
    /// Position in the log.
    pub index: u64,
    /// The encoded command or change.
    pub data: Bytes,
}

/// What Raft keeps besides entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HardState {
    /// Current term.
    pub term: u64,
    /// The peer voted for in that term; 0: none.
    pub vote: u64,
    /// Last entry known as committed; may be older than the truth.
    pub commit: u64,
}

/// The entry after which the log begins. A snapshot holds the state up to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Base {
    /// Its index.
    pub index: u64,
    /// Its term.
    pub term: u64,
}

#[derive(Clone, Copy, Debug)]
struct Location {
    term: u64,
    kind: EntryKind,
    file: u64,
    offset: u64,
    len_bytes: u32,
    crc: u32,
}

struct LogFile {
    file: Arc<dyn DiskFile>,
    end: u64,
}

/// Bytes at which a file counts as full and a new one begins. Entries are dropped by whole files.
#[derive(Clone, Copy, Debug)]
pub struct LogOptions {
    /// Default 16 MiB.
    pub file_size_bytes: u64,
}

impl Default for LogOptions {
    fn default() -> Self {
        LogOptions { file_size_bytes: 16 << 20 }
    }
}

/// The log. It has one owner.
pub struct Log {
    disk: Arc<dyn Disk>,
    dir: String,
    identity: LogIdentity,
    options: LogOptions,
    state: HardState,
    base: Base,
    /// Locations of the entries after the base, without gaps.
    entries: VecDeque<Location>,
    recent: VecDeque<LogEntry>,
    recent_bytes: usize,
    /// Memberships since the base, oldest first; the first one holds at the base.
    memberships: Vec<Membership>,
    files: BTreeMap<u64, LogFile>,
    /// The file that takes records.
    current: u64,
    /// A failed write may have left bytes after the end of the current file.
    tail_dirty: bool,
}

impl std::fmt::Debug for Log {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (state, base, last) = (self.state, self.base, self.last_index());
        f.debug_struct("Log").field("state", &state).field("base", &base).field("last", &last).finish_non_exhaustive()
    }
}

struct Record<'a> {
    kind: u8,
    term: u64,
    index: u64,
    data: std::borrow::Cow<'a, [u8]>,
}

impl Log {
    /// Creates the log of a new peer in `dir`, which holds none. `membership` holds at the base; empty: others will tell.
    ///
    /// # Errors
    /// The disk's.
    pub fn create(
        disk: Arc<dyn Disk>,
        dir: &str,
        identity: LogIdentity,
        options: LogOptions,
        base: Base,
        membership: Membership,
    ) -> Result<Log, LogError> {
        assert!(identity.peer_id > 0, "peer ids are never 0");
        disk.create_dir(dir)?;
        let mut log = Log::empty(disk, dir, identity, options);
        (log.base, log.memberships) = (base, vec![membership]);
        log.state = HardState { term: base.term, vote: 0, commit: base.index };
        log.begin_file()?;
        Ok(log)
    }

    fn empty(disk: Arc<dyn Disk>, dir: &str, identity: LogIdentity, options: LogOptions) -> Log {
        Log {
            disk,
            dir: dir.to_string(),
            identity,
            options,
            state: HardState::default(),
            base: Base::default(),
            entries: VecDeque::new(),
            recent: VecDeque::new(),
            recent_bytes: 0,
            memberships: Vec::new(),
            files: BTreeMap::new(),
            current: 0,
            tail_dirty: false,
        }
    }

    /// Whose log it is.
    #[must_use]
    pub fn identity(&self) -> LogIdentity {
        self.identity
    }

    /// The disk that holds it.
    #[must_use]
    pub fn disk(&self) -> &Arc<dyn Disk> {
        &self.disk
    }

    /// Its directory on that disk.
    #[must_use]
    pub fn dir(&self) -> &str {
        &self.dir
    }

    /// Term, vote, committed entry.
    #[must_use]
    pub fn state(&self) -> HardState {
        self.state
    }

    /// The entry after which it begins.
    #[must_use]
    pub fn base(&self) -> Base {
        self.base
    }

    /// Last entry; the base if none follows it.
    #[must_use]
    pub fn last_index(&self) -> u64 {
        self.base.index + self.entries.len() as u64
    }

    /// Term of the last entry.
    #[must_use]
    pub fn last_term(&self) -> u64 {
        self.entries.back().map_or(self.base.term, |at| at.term)
    }

    /// Term of an entry; `None` if it is before the base or after the last one.
    #[must_use]
    pub fn term(&self, index: u64) -> Option<u64> {
        match index.checked_sub(self.base.index)? {
            0 => Some(self.base.term),
            after => self.entries.get(after as usize - 1).map(|at| at.term),
        }
    }

    /// The newest membership.
    #[must_use]
    pub fn membership(&self) -> &Membership {
        // One holds at the base, and only older ones are dropped.
        &self.memberships[self.memberships.len() - 1]
    }

    /// The membership as of an entry at or after the base.
    #[must_use]
    pub fn membership_at(&self, index: u64) -> &Membership {
        self.memberships.iter().rev().find(|m| m.index <= index).unwrap_or(&self.memberships[0])
    }

    /// Bytes of the entries after `index`.
    #[must_use]
    pub fn bytes_after(&self, index: u64) -> u64 {
        let skip = index.saturating_sub(self.base.index) as usize;
        self.entries.iter().skip(skip).map(|at| u64::from(at.len_bytes)).sum()
    }

    /// Writes a state and entries, and syncs them. The first entry follows one that the log holds; it and its successors replace
    /// what the log held from there on.
    ///
    /// # Errors
    /// The disk's; nothing has changed, and the same write may be repeated if the disk was full.
    pub fn write(&mut self, state: Option<HardState>, entries: &[LogEntry]) -> Result<(), LogError> {
        let next = state.unwrap_or(self.state);
        assert!(next.term >= self.state.term, "term {} after {}", next.term, self.state.term);
        if let Some(first) = entries.first() {
            let fits = first.index > self.base.index && first.index <= self.last_index() + 1;
            assert!(fits, "entry {} does not follow {} to {}", first.index, self.base.index, self.last_index());
            let steps =
                entries.windows(2).all(|pair| pair[1].index == pair[0].index + 1 && pair[1].term >= pair[0].term);
            assert!(
                steps && self.term(first.index - 1) <= Some(first.term),
                "entries from {} are out of order",
                first.index
            );
            self.file_with_room()?;
        }
        let mut records = Vec::with_capacity(entries.len() + 1);
        records.extend(state.map(state_record));
        records.extend(entries.iter().map(|entry| Record {
            kind: if entry.kind == EntryKind::Membership { MEMBERSHIP } else { COMMAND },
            term: entry.term,
            index: entry.index,
            data: (&entry.data[..]).into(),
        }));
        let places = self.append(&records)?;
        self.state = next;
        if let Some(first) = entries.first() {
            self.truncate(first.index);
        }
        let skip = places.len() - entries.len();
        for (entry, (offset, crc)) in entries.iter().zip(places.into_iter().skip(skip)) {
            let (len_bytes, file) = (entry.data.len() as u32, self.current);
            self.entries.push_back(Location { term: entry.term, kind: entry.kind, file, offset, len_bytes, crc });
            self.remember(entry.clone());
        }
        Ok(())
    }

    /// Notes that an entry is committed. The next write records it.
    pub fn note_committed(&mut self, index: u64) {
        self.state.commit = self.state.commit.max(index.min(self.last_index()));
    }

    /// Writes the membership that an entry made, and syncs it.
    ///
    /// # Errors
    /// As [`Log::write`].
    pub fn write_membership(&mut self, membership: Membership) -> Result<(), LogError> {
        assert!(membership.index >= self.membership().index, "memberships are written in their order");
        self.append(&[membership_record(&membership)])?;
        self.memberships.retain(|m| m.index < membership.index);
        self.memberships.push(membership);
        Ok(())
    }

    /// Drops the entries up to `index`, which a snapshot holds. Frees space by whole files.
    ///
    /// # Errors
    /// The disk's; the entries are dropped all the same.
    pub fn drop_to(&mut self, index: u64) -> Result<(), LogError> {
        let Some(term) = self.term(index).filter(|_| index > self.base.index) else { return Ok(()) };
        let base = Base { index, term };
        self.append(&[base_record(base)])?;
        self.entries.drain(..(index - self.base.index) as usize);
        self.set_base(base);
        self.remove_files()
    }

    /// Begins the log anew after an entry that a snapshot ends with.
    ///
    /// # Errors
    /// As [`Log::write`].
    pub fn reset(&mut self, base: Base, membership: Membership) -> Result<(), LogError> {
        assert!(base.index > self.base.index, "a snapshot of entry {} is before {}", base.index, self.base.index);
        assert!(self.term(base.index) != Some(base.term), "the log holds entry {} and goes on", base.index);
        self.append(&[base_record(base), membership_record(&membership)])?;
        self.entries.clear();
        self.recent.clear();
        self.recent_bytes = 0;
        self.memberships = vec![membership];
        self.set_base(base);
        self.state.commit = self.state.commit.max(base.index);
        self.remove_files()
    }

    /// Entries from `from` up to and without `to`: about `max_bytes` of them, at least one.
    ///
    /// # Errors
    /// [`LogError::NotHeld`], [`LogError::Damaged`], or the disk's.
    pub fn read(&self, from: u64, to: u64, max_bytes: u64) -> Result<Vec<LogEntry>, LogError> {
        let (mut found, mut bytes) = (Vec::new(), 0);
        for index in from..to {
            let entry = self.read_one(index)?;
            bytes += entry.data.len() as u64;
            if bytes > max_bytes && !found.is_empty() {
                break;
            }
            found.push(entry);
        }
        Ok(found)
    }

    fn read_one(&self, index: u64) -> Result<LogEntry, LogError> {
        let oldest = self.last_index() + 1 - self.recent.len() as u64;
        if let Some(entry) = index.checked_sub(oldest).and_then(|at| self.recent.get(at as usize)) {
            assert_eq!(entry.index, index, "the entries in memory are the last ones");
            return Ok(entry.clone());
        }
        let held = index.checked_sub(self.base.index + 1).and_then(|at| self.entries.get(at as usize));
        let missing = || LogError::NotHeld { index, first: self.base.index + 1, last: self.last_index() };
        let at = held.ok_or_else(missing)?;
        let file = self.files.get(&at.file).ok_or_else(missing)?;
        let mut data = vec![0; at.len_bytes as usize];
        file.file.read_twice(at.offset + RECORD_HEADER_BYTES, &mut data)?;
        let got = crc32c(&data);
        match got == at.crc {
            true => Ok(LogEntry { kind: at.kind, term: at.term, index, data: data.into() }),
            false => Err(LogError::Damaged { index, expected: at.crc, got }),
        }
    }

    fn set_base(&mut self, base: Base) {
        self.base = base;
        let oldest = self.memberships.iter().rposition(|m| m.index <= base.index).unwrap_or(0);
        self.memberships.drain(..oldest);
        while self.recent.front().is_some_and(|entry| entry.index <= base.index) {
            self.recent_bytes -= self.recent.pop_front().map_or(0, |entry| entry.data.len());
        }
    }

    fn truncate(&mut self, from: u64) {
        self.entries.truncate((from - self.base.index) as usize - 1);
        while self.recent.back().is_some_and(|entry| entry.index >= from) {
            self.recent_bytes -= self.recent.pop_back().map_or(0, |entry| entry.data.len());
        }
    }

    fn remember(&mut self, entry: LogEntry) {
        assert!(
            self.recent.back().is_none_or(|last| last.index + 1 == entry.index),
            "entry {} leaves a gap",
            entry.index
        );
        self.recent_bytes += entry.data.len();
        self.recent.push_back(entry);
        while self.recent_bytes > RECENT_BYTES && self.recent.len() > 1 {
            self.recent_bytes -= self.recent.pop_front().map_or(0, |entry| entry.data.len());
        }
    }

    /// Appends records to the current file and syncs it. Returns the offset and the checksum of each.
    fn append(&mut self, records: &[Record]) -> Result<Vec<(u64, u32)>, DiskError> {
        self.cut_failed_write()?;
        let place =
            FileHeader { cluster_id: self.identity.cluster_id, peer_id: self.identity.peer_id, number: self.current };
        let (place, start) = (place.place(), self.files[&self.current].end);
        let (mut end, mut headers, mut places) =
            (start, Vec::with_capacity(records.len()), Vec::with_capacity(records.len()));
        for record in records {
            assert!(record.data.len() <= ENTRY_MAX_BYTES, "a record of {} bytes", record.data.len());
            let (len_bytes, crc) = (record.data.len() as u32, crc32c(&record.data));
            let (kind, term, index) = (record.kind, record.term, record.index);
            let header = RecordHeader { kind, term, index, synced_to: start, len_bytes, crc };
            headers.push(header.encode(place, end));
            places.push((end, crc));
            end += header.total_bytes();
        }
        let zeros = [0; 8];
        let mut slices = Vec::with_capacity(records.len() * 3);
        for (record, header) in records.iter().zip(&headers) {
            let padding = padded(record.data.len() as u64) as usize - record.data.len();
            slices.extend([&header[..], &record.data, &zeros[..padding]].map(IoSlice::new));
        }
        let file = self.files[&self.current].file.clone();
        if let Err(error) = file.write_vectored_at(start, &slices) {
            self.tail_dirty = true;
            // If this fails too, the next write tries it first.
            let _ = self.cut_failed_write();
            return Err(error);
        }
        if !failpoint::is_active("consensus.acknowledges_before_sync") {
            file.sync_data()?;
        }
        if let Some(file) = self.files.get_mut(&self.current) {
            file.end = end;
        }
        Ok(places)
    }

    /// Durably removes the bytes of a failed write, which must not pass for a later record.
    fn cut_failed_write(&mut self) -> Result<(), DiskError> {
        if self.tail_dirty {
            let file = &self.files[&self.current];
            file.file.truncate(file.end)?;
            file.file.sync_data()?;
            self.tail_dirty = false;
        }
        Ok(())
    }

    fn file_with_room(&mut self) -> Result<(), LogError> {
        match self.files[&self.current].end < self.options.file_size_bytes {
            true => Ok(()),
            false => self.begin_file(),
        }
    }

    /// Creates a file that repeats everything but entries, so that older files can go.
    fn begin_file(&mut self) -> Result<(), LogError> {
        if self.current != 0 {
            self.cut_failed_write()?;
        }
        let LogIdentity { cluster_id, peer_id } = self.identity;
        let (number, before) = (self.current + 1, self.current);
        let header = FileHeader { cluster_id, peer_id, number };
        let path = self.path(number);
        let file = create_file(&*self.disk, &self.dir, &path, &header.encode())?;
        self.files.insert(number, LogFile { file, end: FILE_HEADER_BYTES });
        self.current = number;
        let mut records = vec![state_record(self.state)];
        let memberships = self.memberships.clone();
        records.extend(memberships.iter().map(membership_record));
        records.push(base_record(self.base));
        let written = self.append(&records);
        if written.is_err() && before != 0 {
            self.files.remove(&number);
            (self.current, self.tail_dirty) = (before, false);
            let _ = self.disk.remove(&path);
        }
        Ok(written.map(drop)?)
    }

    /// Removes files that hold no entry after the base.
    fn remove_files(&mut self) -> Result<(), LogError> {
        let oldest = self.entries.front().map_or(self.current, |at| at.file);
        let gone: Vec<u64> = self.files.range(..oldest).map(|(&number, _)| number).collect();
        for number in &gone {
            self.disk.remove(&self.path(*number))?;
            self.files.remove(number);
        }
        if !gone.is_empty() {
            self.disk.sync_dir(&self.dir)?;
        }
        Ok(())
    }

    fn path(&self, number: u64) -> String {
        format!("{}/{}", self.dir, numbered_name(number, ".log"))
    }
}

fn state_record(state: HardState) -> Record<'static> {
    Record { kind: STATE, term: state.term, index: state.commit, data: state.vote.to_le_bytes().to_vec().into() }
}

fn base_record(base: Base) -> Record<'static> {
    Record { kind: BASE, term: base.term, index: base.index, data: Vec::new().into() }
}

fn membership_record(membership: &Membership) -> Record<'static> {
    Record { kind: CONFIGURATION, term: 0, index: membership.index, data: membership.encode_to_vec().into() }
}
