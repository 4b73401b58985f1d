//! Opens a log: docs/formats.md, section 4, *Opening*.

use super::format::*;
use super::{Base, HardState, Location, Log, LogFile, LogIdentity, LogOpenError, LogOptions};
use crate::message::{END, is_consistent};
use prost::Message;
use std::sync::Arc;
use tessera_disk::record::{HeaderFault, parse_numbered_name, read_blocks};
use tessera_disk::{Disk, DiskFile, OpenMode};
use tessera_failpoint as failpoint;
use tessera_wire::consensus::{EntryKind, Membership};

impl Log {
    /// Opens the log in `dir`; `None` if there is none, or only one whose creation a crash interrupted.
    ///
    /// # Errors
    /// [`LogOpenError`].
    pub fn open(disk: Arc<dyn Disk>, dir: &str, options: LogOptions) -> Result<Option<Log>, LogOpenError> {
        disk.create_dir(dir)?;
        let mut numbers: Vec<u64> =
            disk.list(dir)?.iter().filter_map(|name| parse_numbered_name(name, ".log")).collect();
        numbers.sort_unstable();
        let mut log = Log::empty(disk, dir, LogIdentity { cluster_id: [0; 16], peer_id: 0 }, options);
        let last = numbers.last().copied();
        let mut replay = Replay::default();
        for number in numbers {
            log.load(number, Some(number) == last, &mut replay)?;
        }
        if log.files.is_empty() {
            return Ok(None);
        }
        replay.finish(&log)?;
        (log.state, log.base, log.entries) = (replay.state, replay.base, replay.entries.into());
        log.memberships = replay.memberships;
        log.state.commit = log.state.commit.clamp(log.base.index, log.last_index());
        let base = log.base;
        log.set_base(base);
        Ok(Some(log))
    }

    fn load(&mut self, number: u64, is_last: bool, replay: &mut Replay) -> Result<(), LogOpenError> {
        let path = self.path(number);
        let file = self.disk.open(&path, OpenMode::Existing)?;
        let len_bytes = file.len()?;
        let mut bytes = vec![0; len_bytes as usize];
        if let Some(error) = read_blocks(&*file, 0, &mut bytes)? {
            return Err(damaged(&path, 0, format!("unreadable: {error}")));
        }
        let header = match FILE.decode::<FileHeader>(&bytes) {
            Ok(header) => header,
            Err(HeaderFault::Version(found)) => {
                return Err(LogOpenError::Version { name: path, found, supported: LOG_VERSION });
            }
            // A file is used once its first records are synced, and these come after its header.
            Err(_) if is_last && !has_records(&bytes) => return self.remove_unborn(&path),
            Err(_) => return Err(damaged(&path, 0, "the header is damaged".into())),
        };
        self.check_home(&path, &header, number)?;
        let before = is_last.then(|| replay.clone());
        let (end, is_born) = replay.file(&path, number, &bytes, header, is_last)?;
        if let Some(before) = before.filter(|_| !is_born) {
            *replay = before;
            return self.remove_unborn(&path);
        }
        let end = match failpoint::is_active("consensus.keeps_torn_tail") {
            true => padded(len_bytes),
            false => end,
        };
        if end < len_bytes {
            tracing::info!(file = path, bytes = len_bytes - end, "removed a write that a crash interrupted");
            file.truncate(end)?;
        }
        if is_last {
            file.sync_data()?;
            self.disk.sync_dir(&self.dir)?;
        }
        self.enter(number, file, end);
        Ok(())
    }

    fn enter(&mut self, number: u64, file: Arc<dyn DiskFile>, end: u64) {
        self.files.insert(number, LogFile { file, end });
        self.current = number;
    }

    fn remove_unborn(&mut self, path: &str) -> Result<(), LogOpenError> {
        self.disk.remove(path)?;
        Ok(self.disk.sync_dir(&self.dir)?)
    }

    fn check_home(&mut self, path: &str, header: &FileHeader, number: u64) -> Result<(), LogOpenError> {
        let found = LogIdentity { cluster_id: header.cluster_id, peer_id: header.peer_id };
        if self.identity.peer_id == 0 && found.peer_id != 0 {
            self.identity = found;
        }
        let field = match (found.cluster_id == self.identity.cluster_id, found.peer_id == self.identity.peer_id) {
            (true, true) if header.number == number => return Ok(()),
            (false, _) => "cluster id",
            (_, false) => "peer id",
            _ => "file name",
        };
        Err(LogOpenError::Foreign { name: path.into(), field })
    }
}

fn damaged(path: &str, offset: u64, what: String) -> LogOpenError {
    LogOpenError::Damaged { name: path.into(), offset, what }
}

/// Whether anything but zeros follows the header.
fn has_records(bytes: &[u8]) -> bool {
    bytes.get(FILE_HEADER_BYTES as usize..).unwrap_or_default().iter().any(|&byte| byte != 0)
}

#[derive(Clone, Default)]
struct Replay {
    state: HardState,
    base: Base,
    /// The entry before the first of `entries`. It may be after the base only while a later base is still to be read.
    start: u64,
    entries: Vec<Location>,
    memberships: Vec<Membership>,
}

impl Replay {
    /// Reads a file's records. Returns where the next one goes, and whether the records that a file begins with are complete.
    fn file(
        &mut self,
        path: &str,
        number: u64,
        bytes: &[u8],
        header: FileHeader,
        is_last: bool,
    ) -> Result<(u64, bool), LogOpenError> {
        let (place, len) = (header.place(), bytes.len() as u64);
        let (mut at, mut bad, mut is_born) = (FILE_HEADER_BYTES, None, false);
        while at < len {
            let Some((record, data)) = RecordHeader::decode(bytes, place, at) else {
                bad.get_or_insert(at);
                at += 8;
                continue;
            };
            if let Some(from) = bad {
                // The bad stretch and this record may be of one write that never was, unless a later record says that it was.
                if !is_last || record.synced_to > from {
                    return Err(damaged(path, from, "bytes that were synced hold no valid record".into()));
                }
                at += record.total_bytes();
                continue;
            }
            self.record(&record, data, number, at).map_err(|what| damaged(path, at, what))?;
            is_born |= record.kind == BASE;
            at += record.total_bytes();
        }
        if !is_last && !is_born {
            // With a file after it, it was complete. Without that one it would count as none, and the peer as new.
            return Err(damaged(path, FILE_HEADER_BYTES, "no record says where the log begins".into()));
        }
        match bad {
            Some(from) if !is_last => Err(damaged(path, from, format!("{} bytes hold no valid record", len - from))),
            bad => Ok((bad.unwrap_or(len), is_born)),
        }
    }

    fn record(&mut self, record: &RecordHeader, data: &[u8], file: u64, offset: u64) -> Result<(), String> {
        let RecordHeader { kind, term, index, len_bytes, crc, .. } = *record;
        if term >= END || index >= END {
            return Err(format!("entry {index} of term {term}: no group gets so far"));
        }
        match kind {
            STATE => {
                let vote = data.try_into().map(u64::from_le_bytes).map_err(|_| "a vote has eight bytes".to_string())?;
                if term < self.state.term {
                    return Err(format!("term {term} follows {}", self.state.term));
                }
                self.state = HardState { term, vote, commit: index };
                Ok(())
            }
            CONFIGURATION => {
                let membership = Membership::decode(data).map_err(|error| format!("a membership: {error}"))?;
                if !is_consistent(&membership) {
                    return Err(format!("a membership that no group has, of entry {index}"));
                }
                self.memberships.retain(|m| m.index < membership.index);
                self.memberships.push(membership);
                Ok(())
            }
            BASE => self.begin_after(Base { index, term }),
            _ => {
                let kind = if kind == MEMBERSHIP { EntryKind::Membership } else { EntryKind::Command };
                self.entry(index, Location { term, kind, file, offset, len_bytes, crc })
            }
        }
    }

    fn last(&self) -> u64 {
        self.start + self.entries.len() as u64
    }

    fn entry(&mut self, index: u64, location: Location) -> Result<(), String> {
        let is_gap = self.start > self.base.index;
        if index > self.base.index && (self.entries.is_empty() || is_gap && index <= self.start) {
            // Older files are gone: what they held was dropped, or replaced by this entry.
            self.entries.clear();
            self.start = index - 1;
        } else if index <= self.start || index > self.last() + 1 {
            return Err(format!("entry {index} does not follow {} to {}", self.start + 1, self.last()));
        }
        self.entries.truncate((index - self.start) as usize - 1);
        self.entries.push(location);
        Ok(())
    }

    fn begin_after(&mut self, base: Base) -> Result<(), String> {
        if base.index < self.base.index {
            return Err(format!("the log begins after entry {}, then after {}", self.base.index, base.index));
        }
        let held = base.index.checked_sub(self.start + 1).and_then(|at| self.entries.get(at as usize));
        if held.is_some_and(|at| at.term == base.term) {
            self.entries.drain(..(base.index - self.start) as usize);
        } else if base.index > self.start {
            self.entries.clear();
        }
        if self.entries.is_empty() || base.index > self.start {
            self.start = base.index;
        }
        self.base = base;
        Ok(())
    }

    fn finish(&self, log: &Log) -> Result<(), LogOpenError> {
        let what = if self.start > self.base.index {
            format!("entries {} to {} are missing", self.base.index + 1, self.start)
        } else if self.memberships.is_empty() {
            "no membership is recorded".to_string()
        } else {
            return Ok(());
        };
        Err(damaged(&log.path(log.current), 0, what))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::LogEntry;
    use tessera_disk::SimDisk;

    const IDENTITY: LogIdentity = LogIdentity { cluster_id: [7; 16], peer_id: 1 };
    const PATH: &str = "log/0000000000000001.log";

    fn create(disk: &SimDisk) -> Log {
        let (base, group) = (Base { index: 1, term: 1 }, Membership { voters: vec![1], ..Membership::default() });
        Log::create(Arc::new(disk.clone()), "log", IDENTITY, LogOptions::default(), base, group).unwrap()
    }

    fn open(disk: &SimDisk) -> Result<Option<Log>, LogOpenError> {
        Log::open(Arc::new(disk.clone()), "log", LogOptions::default())
    }

    /// Such a file was complete, because another one follows it. Were it taken for one that was never complete, the peer would begin
    /// anew and vote twice.
    #[test]
    fn a_file_before_the_last_one_says_where_the_log_begins() {
        let disk = SimDisk::new(1);
        create(&disk);
        let file = disk.open(PATH, OpenMode::Existing).unwrap();
        file.truncate(file.len().unwrap() - RECORD_HEADER_BYTES).unwrap();
        disk.open("log/0000000000000002.log", OpenMode::Create).unwrap();
        for _ in 0..2 {
            assert!(matches!(open(&disk), Err(LogOpenError::Damaged { .. })));
        }
    }

    /// P1, P9: a record behind the bad one is of the same write, and says nothing; a later one says that both were synced. They may have
    /// been acknowledged, so the peer must not go on without them.
    #[test]
    fn rot_in_a_write_of_several_records_is_no_torn_write_once_another_write_follows() {
        let entry = |index| LogEntry { kind: EntryKind::Command, term: 1, index, data: vec![5; 9].into() };
        for is_followed in [false, true] {
            let disk = SimDisk::new(1);
            let mut log = create(&disk);
            let file = disk.open(PATH, OpenMode::Existing).unwrap();
            let at = file.len().unwrap();
            log.write(None, &[entry(2), entry(3)]).unwrap();
            if is_followed {
                log.write(None, &[entry(4)]).unwrap();
            }
            assert!(disk.rot(PATH, at + 20, 1));
            match open(&disk) {
                Ok(log) => assert!(!is_followed && log.unwrap().last_index() == 1),
                Err(error) => assert!(is_followed && matches!(error, LogOpenError::Damaged { .. }), "{error}"),
            }
        }
    }

    #[test]
    fn an_entry_without_a_successor_is_damage() {
        let disk = SimDisk::new(1);
        let entry = LogEntry { kind: EntryKind::Command, term: 1, index: 2, data: vec![5].into() };
        create(&disk).write(None, &[entry]).unwrap();
        assert_eq!(open(&disk).unwrap().unwrap().last_index(), 2);
        let file = disk.open(PATH, OpenMode::Existing).unwrap();
        let place = FileHeader { cluster_id: IDENTITY.cluster_id, peer_id: 1, number: 1 }.place();
        let at = file.len().unwrap();
        let base = RecordHeader { kind: BASE, term: 1, index: u64::MAX, synced_to: at, len_bytes: 0, crc: 0 };
        file.write_at(at, &base.encode(place, at)).unwrap();
        assert!(matches!(open(&disk), Err(LogOpenError::Damaged { .. })));
    }
}
