//! [`LogStore`]: entries in append-only files, and the highest term.

use std::collections::BTreeMap;
use std::io::IoSlice;
use std::sync::Arc;

use tessera_disk::record::{RecordPlace, create_file, numbered_name};
use tessera_disk::{Disk, DiskError, DiskFile, Identity};
use tessera_failpoint as failpoint;

use crate::error::LogError;
use crate::format::{ENTRY, ENTRY_HEADER_BYTES, EntryHeader, FILE_HEADER_BYTES, FileHeader, TERM, padded};
use crate::snapshot::{self, Snapshot};

/// The log's directory on a disk.
pub(crate) const LOG_DIR: &str = "log";
/// Maximum length of an entry in bytes.
pub const ENTRY_MAX_BYTES: u32 = 64 << 20;

/// Options of a [`LogStore`].
#[derive(Clone, Debug)]
pub struct LogOptions {
    /// Bytes at which a file counts as full and a new one begins. Default 16 MiB; 4 KiB to 1 GiB. Entries are dropped
    /// by whole files.
    pub file_size_bytes: u64,
}

impl Default for LogOptions {
    fn default() -> Self {
        LogOptions { file_size_bytes: 16 << 20 }
    }
}

/// An entry: one group commit of the manager.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogEntry<B = Vec<u8>> {
    /// Term of the manager that created it.
    pub term: u64,
    /// Position in the log: from 1, without gaps.
    pub seq: u64,
    /// The encoded commands.
    pub bytes: B,
}

/// The state of a replica.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogState {
    /// Highest term ever seen, durably recorded.
    pub term: u64,
    /// First readable entry; 0 if there is none.
    pub first_seq: u64,
    /// Last durable entry; the snapshot's position if no entry follows it; 0 if there is neither.
    pub last_seq: u64,
    /// Term of `last_seq`.
    pub last_term: u64,
    /// Newest complete snapshot.
    pub snapshot: Option<Snapshot>,
    /// First entry after the snapshot that is lost to damage while a later one is held. The manager must resend from
    /// here, or send a snapshot.
    pub missing_seq: Option<u64>,
}

/// The location of an entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Location {
    pub(crate) term: u64,
    pub(crate) file: u64,
    pub(crate) offset: u64,
    pub(crate) len: u32,
    pub(crate) crc: u32,
}

pub(crate) struct LogFile {
    pub(crate) file: Arc<dyn DiskFile>,
    pub(crate) end: u64,
}

/// A node's replica of the command log. It has one owner; wrap it in a lock to share it.
pub struct LogStore {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) identity: Identity,
    pub(crate) options: LogOptions,
    pub(crate) term: u64,
    pub(crate) entries: BTreeMap<u64, Location>,
    pub(crate) files: BTreeMap<u64, LogFile>,
    /// The file that takes appends. `None` before the first append, and after a file that must not grow.
    pub(crate) current: Option<u64>,
    pub(crate) next_file: u64,
    /// A failed write may have left bytes after the end of the current file.
    pub(crate) tail_dirty: bool,
    pub(crate) snapshot: Option<Snapshot>,
    pub(crate) part: Option<snapshot::Part>,
    pub(crate) missing_seq: Option<u64>,
}

impl std::fmt::Debug for LogStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LogStore").field("state", &self.state()).finish_non_exhaustive()
    }
}

impl LogStore {
    /// Returns the state of the replica.
    #[must_use]
    pub fn state(&self) -> LogState {
        LogState {
            term: self.term,
            first_seq: self.entries.keys().next().copied().unwrap_or(0),
            last_seq: self.last_seq(),
            last_term: self.term_at(self.last_seq()).unwrap_or(0),
            snapshot: self.snapshot,
            missing_seq: self.missing_seq,
        }
    }

    /// Records durably that a manager with this term exists. Lower terms are refused from now on (P11).
    ///
    /// # Errors
    /// [`LogError::StaleTerm`] if a higher one is known, or the disk's.
    pub fn observe_term(&mut self, term: u64) -> Result<(), LogError> {
        self.check_term(term)?;
        if term > self.term { self.write(term, &[]) } else { Ok(()) }
    }

    /// Appends entries and syncs them: on return all are durable. `term` is the sender's; `prev_term` is the term of
    /// the entry before the first (0: unknown, not compared). Entries already held are skipped. An entry of another
    /// term at a held position voids that position and all later ones.
    ///
    /// # Errors
    /// [`LogError`]; nothing has changed, except that voided entries may be gone.
    pub fn append<B: AsRef<[u8]>>(
        &mut self,
        term: u64,
        prev_term: u64,
        entries: &[LogEntry<B>],
    ) -> Result<(), LogError> {
        self.check_term(term)?;
        let entries: Vec<LogEntry<&[u8]>> =
            entries.iter().map(|e| LogEntry { term: e.term, seq: e.seq, bytes: e.bytes.as_ref() }).collect();
        self.check_entries(term, prev_term, &entries)?;
        let mut new = 0;
        while new < entries.len() && self.is_held(term, &entries[new])? {
            new += 1;
        }
        let new = &entries[new..];
        if let Some(first) = new.first()
            && first.seq <= self.last_seq()
        {
            self.begin_file(first.seq)?;
        }
        if new.is_empty() && term == self.term {
            return Ok(());
        }
        self.write(term, new)
    }

    /// Returns entries from `from_seq` on: about `max_bytes` of them and at least one, or none if `from_seq` is after
    /// the last.
    ///
    /// # Errors
    /// [`LogError::NotHeld`] if the entry was dropped or lost, [`LogError::Damaged`] if it is damaged, or the disk's.
    pub fn entries(&self, from_seq: u64, max_bytes: u64) -> Result<Vec<LogEntry>, LogError> {
        let (mut found, mut bytes, mut seq) = (Vec::new(), 0, from_seq);
        while seq <= self.last_seq() && (bytes < max_bytes || found.is_empty()) {
            match self.read(seq) {
                Ok(entry) => {
                    bytes += entry.bytes.len() as u64;
                    found.push(entry);
                }
                // The entries before the damage are intact; the next call reports it.
                Err(_) if !found.is_empty() => break,
                Err(e) => return Err(e),
            }
            seq += 1;
        }
        Ok(found)
    }

    /// Drops entries up to `seq`, limited to those in the newest complete snapshot. Frees space by whole files.
    ///
    /// # Errors
    /// The disk's; some of the files may be gone.
    pub fn drop_to(&mut self, seq: u64) -> Result<(), LogError> {
        let up_to = seq.min(self.snapshot.map_or(0, |s| s.seq));
        let last_file = self.files.keys().next_back().copied();
        // Strictly oldest first: the header of a newer file says which entries of older ones are void.
        assert!(up_to <= self.last_seq(), "entries up to {up_to} are dropped of {}", self.last_seq());
        while let Some((&number, _)) = self.files.first_key_value() {
            let needed = self.entries.iter().any(|(&seq, at)| at.file == number && seq > up_to);
            if needed || Some(number) == last_file {
                return Ok(());
            }
            self.disk.remove(&file_path(number))?;
            self.disk.sync_dir(LOG_DIR)?;
            self.files.remove(&number);
            self.entries.retain(|_, at| at.file != number);
        }
        Ok(())
    }

    pub(crate) fn last_seq(&self) -> u64 {
        let entry = self.entries.keys().next_back().copied().unwrap_or(0);
        entry.max(self.snapshot.map_or(0, |s| s.seq))
    }

    /// The term of a position, if known.
    fn term_at(&self, seq: u64) -> Option<u64> {
        let snapshot = self.snapshot.filter(|s| s.seq == seq && s.term != 0).map(|s| s.term);
        snapshot.or_else(|| self.entries.get(&seq).map(|at| at.term))
    }

    /// Finds the first gap. Only removals cause one: appends are contiguous.
    pub(crate) fn find_missing(&mut self) {
        let after = self.snapshot.map_or(0, |s| s.seq);
        let behind = self.entries.range(after + 1..).map(|(seq, _)| *seq);
        self.missing_seq = (after + 1..).zip(behind).find(|(expected, seq)| expected != seq).map(|(hole, _)| hole);
    }

    fn check_term(&self, term: u64) -> Result<(), LogError> {
        if term < self.term { Err(LogError::StaleTerm { got: term, highest: self.term }) } else { Ok(()) }
    }

    /// Checks a batch without reading stored entries.
    fn check_entries(&self, term: u64, prev_term: u64, entries: &[LogEntry<&[u8]>]) -> Result<(), LogError> {
        let Some(first) = entries.first() else { return Ok(()) };
        let mut before = (first.seq.wrapping_sub(1), prev_term);
        for entry in entries {
            let fits = entry.bytes.len() as u64 <= u64::from(ENTRY_MAX_BYTES);
            let in_order = entry.seq == before.0.wrapping_add(1) && entry.term >= before.1;
            if entry.seq == 0 || entry.term == 0 || entry.term > term || !in_order || !fits {
                return Err(LogError::BadEntry {
                    seq: entry.seq,
                    term: entry.term,
                    len_bytes: entry.bytes.len() as u64,
                });
            }
            before = (entry.seq, entry.term);
        }
        let next_seq = self.missing_seq.unwrap_or(self.last_seq() + 1);
        if first.seq > next_seq {
            return Err(LogError::Gap { got: first.seq, next_seq });
        }
        match self.term_at(first.seq - 1) {
            Some(held) if prev_term != 0 && held != 0 && held != prev_term => {
                Err(LogError::PrevTerm { seq: first.seq - 1, held, expected: prev_term })
            }
            _ => Ok(()),
        }
    }

    /// True if the entry need not be written. False if it is new, overrules the held one, or replaces a damaged copy.
    fn is_held(&self, sender_term: u64, entry: &LogEntry<&[u8]>) -> Result<bool, LogError> {
        if self.snapshot.is_some_and(|s| entry.seq <= s.seq) {
            return Ok(true);
        }
        let Some(held) = self.entries.get(&entry.seq) else { return Ok(false) };
        if held.term == entry.term {
            let same =
                held.len as usize == entry.bytes.len() && held.crc == tessera_accel::checksum::crc32c(entry.bytes);
            // A damaged copy is rewritten, like an entry of another term.
            return match (same, self.read(entry.seq)) {
                (true, read) => Ok(read.is_ok()),
                (false, _) => Err(LogError::Conflict { seq: entry.seq, term: entry.term }),
            };
        }
        if sender_term > held.term { Ok(false) } else { Err(LogError::Conflict { seq: entry.seq, term: entry.term }) }
    }

    fn read(&self, seq: u64) -> Result<LogEntry, LogError> {
        let Some(at) = self.entries.get(&seq) else { return Err(LogError::NotHeld { seq }) };
        let Some(file) = self.files.get(&at.file) else { return Err(LogError::NotHeld { seq }) };
        let mut bytes = vec![0; at.len as usize];
        file.file.read_at(at.offset + ENTRY_HEADER_BYTES, &mut bytes)?;
        let got = tessera_accel::checksum::crc32c(&bytes);
        if got != at.crc {
            let (file, offset, expected) = (at.file, at.offset, at.crc);
            return Err(LogError::Damaged { seq, file, offset, expected, got });
        }
        Ok(LogEntry { term: at.term, seq, bytes })
    }

    /// Writes the term if it is higher, and entries that follow the last one, then syncs.
    fn write(&mut self, term: u64, entries: &[LogEntry<&[u8]>]) -> Result<(), LogError> {
        let number = self.file_with_room(entries.first().map_or(self.last_seq() + 1, |e| e.seq))?;
        let place = RecordPlace { disk_uuid: self.identity.disk_uuid, file: number };
        let raised = (term > self.term).then_some(LogEntry { term, seq: 0, bytes: &[][..] });
        let start = self.files[&number].end;
        assert!(term >= self.term, "term {term} is written after term {}", self.term);
        assert!(
            entries.first().is_none_or(|first| first.seq == self.missing_seq.unwrap_or(self.last_seq() + 1)),
            "a gap is written"
        );
        let (mut end, mut headers, mut locations) = (start, Vec::new(), Vec::new());
        let records: Vec<&LogEntry<&[u8]>> = raised.iter().chain(entries).collect();
        for record in &records {
            let kind = if record.seq == 0 { TERM } else { ENTRY };
            let (len, crc) = (record.bytes.len() as u32, tessera_accel::checksum::crc32c(record.bytes));
            let header = EntryHeader { kind, term: record.term, seq: record.seq, synced_to: start, len, crc };
            headers.push(header.encode(place, end));
            if kind == ENTRY {
                locations.push((record.seq, Location { term: record.term, file: number, offset: end, len, crc }));
            }
            end += header.total_bytes();
        }
        assert!(locations.len() == entries.len(), "{} places for {} entries", locations.len(), entries.len());
        let zeros = [0; 8];
        let mut slices = Vec::with_capacity(records.len() * 3);
        for (record, header) in records.iter().zip(&headers) {
            let padding = padded(record.bytes.len() as u64) as usize - record.bytes.len();
            slices.extend([&header[..], record.bytes, &zeros[..padding]].map(IoSlice::new));
        }
        let bytes: u64 = slices.iter().map(|slice| slice.len() as u64).sum();
        assert!(bytes == end - start, "{bytes} bytes for entries of {}", end - start);
        let file = self.files[&number].file.clone();
        if let Err(e) = file.write_vectored_at(start, &slices) {
            self.tail_dirty = true;
            // If this fails too, the next write retries it first.
            let _ = self.cut_failed_write();
            return Err(e.into());
        }
        if !failpoint::is_active("logstore.ack_before_sync") {
            file.sync_data()?;
        }
        if let Some(file) = self.files.get_mut(&number) {
            file.end = end;
        }
        self.term = self.term.max(term);
        self.entries.extend(locations);
        Ok(())
    }

    /// Durably removes the bytes of a failed write, which must not pass for a later entry.
    fn cut_failed_write(&mut self) -> Result<(), DiskError> {
        if let (true, Some(file)) = (self.tail_dirty, self.current.and_then(|n| self.files.get(&n))) {
            file.file.truncate(file.end)?;
            file.file.sync_data()?;
            self.tail_dirty = false;
        }
        Ok(())
    }

    /// The file to append to. Creates one, with `seq` as its first entry, if there is none or it is full.
    fn file_with_room(&mut self, seq: u64) -> Result<u64, DiskError> {
        self.cut_failed_write()?;
        match self.current {
            Some(number) if self.files[&number].end < self.options.file_size_bytes => Ok(number),
            _ => self.begin_file(seq),
        }
    }

    /// Creates a file. Durably voids entries from `resume_seq` on in older files.
    pub(crate) fn begin_file(&mut self, resume_seq: u64) -> Result<u64, DiskError> {
        self.cut_failed_write()?;
        let number = self.next_file;
        let header = FileHeader {
            cluster_id: self.identity.cluster_id,
            disk_uuid: self.identity.disk_uuid,
            number,
            term: self.term,
            resume_seq,
        };
        let file = create_file(&*self.disk, LOG_DIR, &file_path(number), &header.encode())?;
        self.entries.split_off(&resume_seq);
        self.find_missing();
        assert!(
            self.files.keys().next_back().is_none_or(|&last| last < number),
            "log file {number:016x} is used again"
        );
        self.files.insert(number, LogFile { file, end: FILE_HEADER_BYTES });
        self.current = Some(number);
        self.next_file = number + 1;
        Ok(number)
    }
}

pub(crate) fn file_path(number: u64) -> String {
    format!("{LOG_DIR}/{}", numbered_name(number, ".log"))
}
