//! Opens the log's files: docs/formats.md, section 4, *Opening*.

use std::collections::BTreeMap;
use std::sync::Arc;

use tessera_disk::record::{Field, HeaderFault, HeaderFormat, RecordPlace, parse_numbered_name, read_blocks};
use tessera_disk::{Disk, DiskFile, Identity, OpenMode};
use tessera_failpoint as failpoint;

use crate::error::{LogDamage, LogOpenError};
use crate::format::{ENTRY, EntryHeader, FILE, FILE_HEADER_BYTES, FileHeader, LOG_VERSION, SNAPSHOT, SnapshotHeader};
use crate::snapshot;
use crate::store::{LOG_DIR, Location, LogFile, LogOptions, LogStore, file_path};

/// What opening a log found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogReport {
    /// Bytes of a torn write removed from the last file.
    pub cut_bytes: u64,
    /// Number of a removed last file whose creation a crash interrupted.
    pub removed_unborn: Option<u64>,
    /// Damage found.
    pub damage: Vec<LogDamage>,
}

type Headers = Vec<(u64, Arc<dyn DiskFile>, Option<FileHeader>)>;

impl LogStore {
    /// Opens or creates the log of a disk that has an identity. The caller holds the disk's lock.
    ///
    /// # Errors
    /// [`LogOpenError`]; the disk is unchanged.
    pub fn open(disk: Arc<dyn Disk>, options: LogOptions) -> Result<(Self, LogReport), LogOpenError> {
        let identity = Identity::require(&*disk)?;
        disk.create_dir(LOG_DIR)?;
        let mut log = LogStore {
            disk,
            identity,
            options,
            term: 0,
            entries: BTreeMap::new(),
            files: BTreeMap::new(),
            current: None,
            next_file: 1,
            tail_dirty: false,
            snapshot: None,
            part: None,
            missing_seq: None,
        };
        let mut report = LogReport::default();
        let names = log.disk.list(LOG_DIR)?;
        // Check all headers before changing anything (P14).
        let headers = log.file_headers(&names)?;
        let snapshots = log.find_snapshot(&names, &mut report)?;
        let count = headers.len();
        for (nth, (number, file, header)) in headers.into_iter().enumerate() {
            log.load_file(number, file, header, nth + 1 == count, &mut report)?;
        }
        let newest = log.snapshot.map(|s| snapshot::file_name(&s));
        let superseded = snapshots.iter().filter(|name| newest.as_ref() != Some(*name));
        for name in names.iter().filter(|name| name.ends_with(".part")).chain(superseded) {
            log.disk.remove(&format!("{LOG_DIR}/{name}"))?;
        }
        if let Some(snapshot) = log.snapshot {
            log.settle_behind(&snapshot)?;
        }
        log.find_missing();
        Ok((log, report))
    }

    fn file_headers(&self, names: &[String]) -> Result<Headers, LogOpenError> {
        let mut headers = Vec::new();
        for name in names {
            let Some(number) = parse_numbered_name(name, ".log") else { continue };
            let file = self.disk.open(&file_path(number), OpenMode::Existing)?;
            let header = read_header::<FileHeader>(&*file, name, &FILE)?;
            if let Some(h) = header {
                self.check_home(name, &h.cluster_id, &h.disk_uuid, h.number == number)?;
            }
            headers.push((number, file, header));
        }
        headers.sort_unstable_by_key(|(number, ..)| *number);
        Ok(headers)
    }

    fn check_home(&self, name: &str, cluster: &[u8; 16], disk: &[u8; 16], named: bool) -> Result<(), LogOpenError> {
        let field = match (*cluster == self.identity.cluster_id, *disk == self.identity.disk_uuid, named) {
            (true, true, true) => return Ok(()),
            (false, ..) => "cluster id",
            (_, false, _) => "disk uuid",
            _ => "file name",
        };
        Err(LogOpenError::Foreign { name: name.into(), field })
    }

    /// Finds the newest snapshot; returns the names of all valid ones.
    fn find_snapshot(&mut self, names: &[String], report: &mut LogReport) -> Result<Vec<String>, LogOpenError> {
        let mut sound = Vec::new();
        for name in names.iter().filter(|name| name.ends_with(".snap")) {
            let file = self.disk.open(&format!("{LOG_DIR}/{name}"), OpenMode::Existing)?;
            let len = file.len()?;
            let Some(header) = read_header::<SnapshotHeader>(&*file, name, &SNAPSHOT)? else {
                report.damage.push(LogDamage::Snapshot { name: name.clone(), reason: "header is damaged".into() });
                continue;
            };
            let found = header.snapshot;
            self.check_home(name, &header.cluster_id, &header.disk_uuid, snapshot::file_name(&found) == *name)?;
            if len != FILE_HEADER_BYTES.saturating_add(found.total_bytes) {
                let reason = format!("{len} bytes, expected {}", FILE_HEADER_BYTES.saturating_add(found.total_bytes));
                report.damage.push(LogDamage::Snapshot { name: name.clone(), reason });
            } else {
                sound.push(name.clone());
                if self.snapshot.is_none_or(|s| (s.seq, s.term) < (found.seq, found.term)) {
                    self.snapshot = Some(found);
                }
            }
        }
        Ok(sound)
    }

    fn load_file(
        &mut self,
        number: u64,
        file: Arc<dyn DiskFile>,
        header: Option<FileHeader>,
        last: bool,
        report: &mut LogReport,
    ) -> Result<(), LogOpenError> {
        self.next_file = number + 1;
        let len = file.len()?;
        if header.is_none() && last && len <= FILE_HEADER_BYTES {
            self.disk.remove(&file_path(number))?;
            self.disk.sync_dir(LOG_DIR)?;
            report.removed_unborn = Some(number);
            return Ok(());
        }
        let mut bytes = vec![0; len as usize];
        let unreadable = read_blocks(&*file, 0, &mut bytes)?.is_some();
        let loaded = self.load_entries(number, &bytes, header, last && !unreadable, report);
        let mut end = len;
        if last {
            // A file with a damaged header or unreadable sectors takes no more entries.
            self.current = (header.is_some() && !unreadable).then_some(number);
            if let Some(cut) = loaded
                && !failpoint::is_active("logstore.keep_torn_tail")
            {
                file.truncate(cut)?;
                report.cut_bytes = len - cut;
                end = cut;
            }
            file.sync_data()?;
            self.disk.sync_dir(LOG_DIR)?;
        }
        self.files.insert(number, LogFile { file, end });
        Ok(())
    }

    /// Loads a file's entries; returns the offset of its torn tail, if any.
    fn load_entries(
        &mut self,
        number: u64,
        bytes: &[u8],
        header: Option<FileHeader>,
        may_be_torn: bool,
        report: &mut LogReport,
    ) -> Option<u64> {
        match header {
            Some(header) => {
                self.term = self.term.max(header.term);
                self.entries.split_off(&header.resume_seq);
            }
            None => report.damage.push(LogDamage::FileHeader { file: number }),
        }
        let place = RecordPlace { disk_uuid: self.identity.disk_uuid, file: number };
        let (mut at, mut gap, mut first) = (FILE_HEADER_BYTES, None, header.is_none());
        while at < bytes.len() as u64 {
            let Some(entry) = EntryHeader::decode(bytes, place, at) else {
                gap.get_or_insert(at);
                at += 8;
                continue;
            };
            if let Some(from) = gap.take() {
                if may_be_torn && entry.synced_to <= from {
                    return Some(from);
                }
                report.damage.push(LogDamage::Entries { file: number, offset: from, len_bytes: at - from });
            }
            self.term = self.term.max(entry.term);
            if entry.kind == ENTRY {
                if std::mem::take(&mut first) {
                    self.entries.split_off(&entry.seq);
                }
                self.enter(number, at, &entry, report);
            }
            at += entry.total_bytes();
        }
        let from = gap?;
        if may_be_torn {
            return Some(from);
        }
        report.damage.push(LogDamage::Entries { file: number, offset: from, len_bytes: bytes.len() as u64 - from });
        None
    }

    fn enter(&mut self, file: u64, offset: u64, entry: &EntryHeader, report: &mut LogReport) {
        if self.entries.keys().next_back().is_some_and(|&last| entry.seq <= last) {
            report.damage.push(LogDamage::Order { file, offset, seq: entry.seq });
            return;
        }
        let location = Location { term: entry.term, file, offset, len: entry.len, crc: entry.crc };
        self.entries.insert(entry.seq, location);
    }
}

/// Reads and decodes a file's header; `None` if it is damaged or incomplete.
fn read_header<H: Field>(file: &dyn DiskFile, name: &str, format: &HeaderFormat) -> Result<Option<H>, LogOpenError> {
    if file.len()? < FILE_HEADER_BYTES {
        return Ok(None);
    }
    let mut bytes = [0; FILE_HEADER_BYTES as usize];
    read_blocks(file, 0, &mut bytes)?;
    match format.decode(&bytes) {
        Ok(header) => Ok(Some(header)),
        Err(HeaderFault::Version(found)) => {
            Err(LogOpenError::Version { name: name.into(), found, supported: LOG_VERSION })
        }
        Err(HeaderFault::Magic | HeaderFault::Checksum { .. }) => Ok(None),
    }
}
