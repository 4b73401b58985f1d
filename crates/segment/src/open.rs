//! What a restart makes of the bytes on a disk.
//!
//! Segments are read in order of their numbers, records in order of their offsets; the higher sequence
//! decides about a fragment. The last segment may have a torn tail: it is cut at the first record that is not
//! whole and valid, unless a later record says that this place was durable when it was written. Then, and
//! in any other segment, it is damage: reported, left in place, and no reason to refuse the rest. Nothing that was found becomes visible
//! before it was synced: a process that was killed leaves records in the system's cache.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};
use tessera_disk::{Disk, DiskError, DiskFile, Identity, IdentityError, OpenMode, hex16};

use crate::compact::Compactor;
use crate::config::Options;
use crate::error::{Damage, Finding, OpenError};
use crate::format::{
    HeaderFault, Place, RecordHeader, RecordKind, SEGMENT_HEADER_BYTES, SEGMENT_VERSION, SegmentHeader, parse_file_name,
};
use crate::index::{Entry, FragmentId, Index};
use crate::planted::PlantedBug;
use crate::scan::{Item, Scanner, check_payload};
use crate::segment::{SEGMENTS_DIR, Segment};
use crate::store::SegmentStore;
use crate::writer::{Writer, entry_of};

/// How far opening has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenProgress {
    /// Segments scanned.
    pub segments_done: u64,
    /// Segments there are.
    pub segments_total: u64,
    /// Records found so far.
    pub records: u64,
}

/// What was cut off the last segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TornTail {
    /// Segment number.
    pub segment: u64,
    /// Its length now.
    pub offset: u64,
    /// Bytes cut.
    pub cut_bytes: u64,
    /// Fragments whose header could be read there. They were never acknowledged, unless the disk rotted right at its
    /// end: an inventory will tell.
    pub ids: Vec<FragmentId>,
}

/// What opening found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpenReport {
    /// Segment files.
    pub segments: u64,
    /// Valid records, dead ones too.
    pub records: u64,
    /// Living fragments.
    pub fragments: u64,
    /// Bytes cut off the last segment.
    pub torn_tail: Option<TornTail>,
    /// A last segment whose creation was cut short by a crash: removed.
    pub removed_unborn: Option<u64>,
    /// Damage, oldest segment first.
    pub findings: Vec<Finding>,
    /// Files in `segments/` that are none of ours; left alone.
    pub foreign_files: Vec<String>,
}

/// The fragments of which dead records are still on the disk, and their delete records.
///
/// A delete record must outlive every older record of its fragment (P3): it is needed while `copies` is above 0, or
/// while a damaged stretch somewhere may hide a copy.
#[derive(Default)]
pub(crate) struct Graves(HashMap<FragmentId, Grave>);

#[derive(Default)]
struct Grave {
    /// Dead fragment records on the disk.
    copies: u32,
    /// The delete record, if the fragment is deleted.
    tombstone: Option<Entry>,
}

impl Graves {
    pub(crate) fn delete_records(&self) -> u64 {
        self.0.values().filter(|g| g.tombstone.is_some()).count() as u64
    }

    pub(crate) fn add_copy(&mut self, id: FragmentId) {
        self.0.entry(id).or_default().copies += 1;
    }

    /// One dead record is gone from the disk.
    pub(crate) fn drop_copy(&mut self, id: FragmentId) {
        if let Some(grave) = self.0.get_mut(&id) {
            grave.copies = grave.copies.saturating_sub(1);
        }
    }

    /// The delete record is no longer needed, for the fragment lives again.
    pub(crate) fn take_tombstone(&mut self, id: FragmentId) -> Option<Entry> {
        self.0.get_mut(&id)?.tombstone.take()
    }

    /// Sets the delete record; gives the one it replaces.
    pub(crate) fn bury(&mut self, tombstone: Entry) -> Option<Entry> {
        self.0.entry(tombstone.id).or_default().tombstone.replace(tombstone)
    }

    pub(crate) fn tombstone(&self, id: FragmentId) -> Option<&Entry> {
        self.0.get(&id)?.tombstone.as_ref()
    }

    /// True if it was at `from` and is at `to` now.
    pub(crate) fn move_tombstone(&mut self, to: Entry, from: (u64, u64)) -> bool {
        match self.0.get_mut(&to.id).and_then(|g| g.tombstone.as_mut()) {
            Some(tombstone) if (tombstone.segment, tombstone.offset) == from => {
                *tombstone = to;
                true
            }
            _ => false,
        }
    }

    /// Forgets graves without copies; gives their delete records, which are dead now.
    pub(crate) fn close_empty(&mut self, ids: Option<&[FragmentId]>) -> Vec<Entry> {
        let mut closed = Vec::new();
        match ids {
            Some(ids) => {
                for id in ids {
                    if self.0.get(id).is_some_and(|g| g.copies == 0) {
                        closed.extend(self.0.remove(id).and_then(|g| g.tombstone));
                    }
                }
            }
            None => self.0.retain(|_, grave| {
                if grave.copies == 0 {
                    closed.extend(grave.tombstone.take());
                }
                grave.copies > 0
            }),
        }
        closed
    }
}

/// One run of opening.
struct Opening {
    disk: Arc<dyn Disk>,
    identity: Identity,
    planted: PlantedBug,
    index: Box<dyn Index>,
    graves: Graves,
    segments: std::collections::BTreeMap<u64, Arc<Segment>>,
    next_sequence: u64,
    report: OpenReport,
}

pub(crate) fn open(
    disk: Arc<dyn Disk>,
    options: Options,
    index: Box<dyn Index>,
    progress: &mut dyn FnMut(OpenProgress),
) -> Result<(SegmentStore, OpenReport), OpenError> {
    let Some(identity) = Identity::load(&*disk)? else {
        return Err(IdentityError::Missing { disk: disk.describe() }.into());
    };
    let mut opening = Opening {
        disk,
        identity,
        planted: options.planted,
        index,
        graves: Graves::default(),
        segments: std::collections::BTreeMap::new(),
        next_sequence: 1,
        report: OpenReport::default(),
    };
    let numbers = opening.list()?;
    let headers = opening.read_headers(&numbers)?;
    for (done, (number, file, header)) in headers.into_iter().enumerate() {
        let last = done + 1 == numbers.len();
        opening.segment(number, file, header, last)?;
        progress(OpenProgress {
            segments_done: done as u64 + 1,
            segments_total: numbers.len() as u64,
            records: opening.report.records,
        });
    }
    Ok(opening.finish(options, numbers.last().copied().unwrap_or(0)))
}

impl Opening {
    /// The segment numbers on the disk, ascending.
    fn list(&mut self) -> Result<Vec<u64>, DiskError> {
        self.disk.create_dir(SEGMENTS_DIR)?;
        let mut numbers = Vec::new();
        for name in self.disk.list(SEGMENTS_DIR)? {
            match parse_file_name(&name, ".seg") {
                Some(number) => numbers.push(number),
                None => self.report.foreign_files.push(name),
            }
        }
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// Reads and judges all headers before anything is changed (P14).
    #[allow(clippy::type_complexity, reason = "a list of three things that are only passed on")]
    fn read_headers(&self, numbers: &[u64]) -> Result<Vec<(u64, Arc<dyn DiskFile>, Option<SegmentHeader>)>, OpenError> {
        let mut headers = Vec::with_capacity(numbers.len());
        for &number in numbers {
            let file = self.disk.open(&Segment::path(number), OpenMode::Existing)?;
            let mut bytes = vec![0; file.len()?.min(SEGMENT_HEADER_BYTES) as usize];
            let header = match read_twice(&*file, &mut bytes).map(|()| SegmentHeader::decode(&bytes)) {
                Ok(Ok(header)) => {
                    self.check_home(number, &header)?;
                    Some(header)
                }
                Ok(Err(HeaderFault::Version(found))) => {
                    return Err(OpenError::Version { segment: number, found, supported: SEGMENT_VERSION });
                }
                Ok(Err(HeaderFault::Damaged)) | Err(_) => None,
            };
            headers.push((number, file, header));
        }
        Ok(headers)
    }

    fn check_home(&self, segment: u64, header: &SegmentHeader) -> Result<(), OpenError> {
        let foreign = |field, expected, found| Err(OpenError::Foreign { segment, field, expected, found });
        if header.cluster_id != self.identity.cluster_id {
            return foreign("cluster id", hex16(&self.identity.cluster_id), hex16(&header.cluster_id));
        }
        if header.disk_uuid != self.identity.disk_uuid {
            return foreign("disk uuid", hex16(&self.identity.disk_uuid), hex16(&header.disk_uuid));
        }
        if header.number != segment {
            return foreign("segment number", format!("{segment:016x}"), format!("{:016x}", header.number));
        }
        Ok(())
    }

    fn segment(
        &mut self,
        number: u64,
        file: Arc<dyn DiskFile>,
        header: Option<SegmentHeader>,
        last: bool,
    ) -> Result<(), OpenError> {
        let len = file.len()?;
        let after_sequence = header.map_or(0, |h| h.after_sequence);
        let found = self.scan(number, &*file, len, after_sequence, last)?;
        if header.is_none() && last && len <= SEGMENT_HEADER_BYTES {
            // The crash came while it was made: no record is written before header and name are durable.
            self.disk.remove(&Segment::path(number))?;
            self.disk.sync_dir(SEGMENTS_DIR)?;
            self.report.removed_unborn = Some(number);
            self.report.findings.retain(|f| f.segment != number);
            return Ok(());
        }
        // A segment whose header is damaged, or whose tail cannot be read, takes no more records.
        let size_limit = header.filter(|_| !found.sealed).map_or(0, |h| h.size_limit_bytes);
        let segment = Arc::new(Segment::new(number, file, after_sequence, size_limit, len.max(SEGMENT_HEADER_BYTES)));
        if header.is_none() {
            self.damage(number, 0, SEGMENT_HEADER_BYTES, Damage::SegmentHeader);
        }
        if found.damaged || header.is_none() {
            segment.set_damaged();
        }
        self.segments.insert(number, segment.clone());
        for entry in found.entries {
            self.learn(entry);
        }
        self.next_sequence = self.next_sequence.max(after_sequence + 1);
        if last {
            self.settle_tail(&segment, found.torn)?;
        }
        self.report.segments += 1;
        Ok(())
    }

    /// Cuts the torn tail and syncs: what a killed process wrote may not be on the medium yet.
    fn settle_tail(&mut self, segment: &Segment, torn: Option<TornTail>) -> Result<(), DiskError> {
        if let Some(torn) = torn {
            if self.planted == PlantedBug::KeepTornTail {
                return Ok(());
            }
            segment.file.truncate(torn.offset)?;
            segment.set_end(torn.offset);
            segment.set_durable_end(torn.offset);
            self.report.torn_tail = Some(torn);
        }
        segment.file.sync_data()?;
        self.disk.sync_dir(SEGMENTS_DIR)
    }

    /// Reads a segment's records. Of the last one the data too, to find where its tail is torn.
    fn scan(
        &mut self,
        number: u64,
        file: &dyn DiskFile,
        len: u64,
        after_sequence: u64,
        last: bool,
    ) -> Result<Found, OpenError> {
        let place = Place { disk_uuid: self.identity.disk_uuid, file: number };
        let mut scanner = Scanner::new(file, place, SEGMENT_HEADER_BYTES, len, after_sequence);
        let mut found = Found::default();
        let mut doubt = Doubt::default();
        let mut buf = Vec::new();
        while let Some(item) = scanner.next()? {
            match item {
                Item::Gap { from, to, damage } => {
                    doubt.findings.push(SegmentStore::finding(number, from, to - from, damage));
                    doubt.gap = true;
                }
                Item::Record { offset, header } => {
                    if doubt.begin().is_some_and(|begin| begin < header.synced_to) {
                        // What was wrong had been durable: rot, not a torn tail.
                        doubt.confirm(&mut found, &mut self.report.findings);
                    }
                    if last
                        && self.planted != PlantedBug::SkipDataCheck
                        && let Some(damage) = check_payload(file, offset, &header, &mut buf)
                    {
                        doubt.findings.push(finding_of(number, offset, &header, damage));
                    }
                    let records = if doubt.begin().is_none() { &mut found.entries } else { &mut doubt.entries };
                    records.push((header.kind, entry_of(&header, number, offset)));
                }
            }
        }
        // What cannot be read is not cut: the segment is left as it is, and takes no more.
        found.sealed = doubt.findings.iter().any(|f| matches!(f.damage, Damage::Unreadable { .. }));
        if !last || found.sealed {
            doubt.confirm(&mut found, &mut self.report.findings);
        } else if let Some(offset) = doubt.begin() {
            let mut ids: Vec<FragmentId> = doubt.entries.iter().map(|(_, e)| e.id).collect();
            ids.dedup();
            found.torn = Some(TornTail { segment: number, offset, cut_bytes: len - offset, ids });
        }
        self.report.records += found.entries.len() as u64;
        Ok(found)
    }

    fn damage(&mut self, segment: u64, offset: u64, len_bytes: u64, damage: Damage) {
        self.report.findings.push(SegmentStore::finding(segment, offset, len_bytes, damage));
    }

    /// Takes a record into account; the higher sequence decides.
    fn learn(&mut self, (kind, entry): (RecordKind, Entry)) {
        let id = entry.id;
        self.next_sequence = self.next_sequence.max(entry.sequence + 1);
        let alive = self.index.get(id);
        let known = alive.map_or(0, |e| e.sequence).max(self.graves.tombstone(id).map_or(0, |t| t.sequence));
        let newest = entry.sequence > known;
        match kind {
            RecordKind::Fragment if newest => {
                self.account(&entry, true);
                if let Some(tombstone) = self.graves.take_tombstone(id) {
                    self.account(&tombstone, false);
                }
                if let Some(old) = self.index.insert(entry) {
                    self.account(&old, false);
                    self.graves.add_copy(id);
                }
            }
            RecordKind::Fragment => self.graves.add_copy(id),
            RecordKind::Delete if newest => {
                if let Some(old) = self.index.remove(id) {
                    self.account(&old, false);
                    self.graves.add_copy(id);
                }
                self.account(&entry, true);
                if let Some(old) = self.graves.bury(entry) {
                    self.account(&old, false);
                }
            }
            RecordKind::Delete => {}
        }
    }

    fn account(&self, entry: &Entry, alive: bool) {
        if let Some(segment) = self.segments.get(&entry.segment) {
            if alive { segment.add_live(entry.record_bytes()) } else { segment.sub_live(entry.record_bytes()) }
        }
    }

    fn finish(mut self, options: Options, highest: u64) -> (SegmentStore, OpenReport) {
        if !self.segments.values().any(|s| s.is_damaged()) {
            for tombstone in self.graves.close_empty(None) {
                self.account(&tombstone, false);
            }
        }
        self.report.fragments = self.index.len();
        for finding in &mut self.report.findings {
            let held = finding.id.and_then(|id| self.index.get(id));
            finding.live = held.is_some_and(|e| (e.segment, e.offset) == (finding.segment, finding.offset));
        }
        let open = self.segments.last_key_value().map(|(_, s)| s.clone()).filter(|s| s.size_limit_bytes > 0);
        let writer = Writer {
            open,
            next_segment: highest + 1,
            next_sequence: self.next_sequence,
            granted_bytes: 0,
            tail_dirty: false,
            sync_needed: false,
            staged: Vec::new(),
            staged_ids: HashMap::new(),
            graves: self.graves,
        };
        let store = SegmentStore {
            disk: self.disk,
            identity: self.identity,
            options,
            index: self.index,
            segments: RwLock::new(self.segments),
            writer: Mutex::new(writer),
            sync_turn: Mutex::new(()),
            compactor: Mutex::new(Compactor::default()),
        };
        (store, self.report)
    }
}

/// What the scan of one segment gave.
#[derive(Default)]
struct Found {
    entries: Vec<(RecordKind, Entry)>,
    damaged: bool,
    sealed: bool,
    torn: Option<TornTail>,
}

/// The first bad stretch of which it is not known yet whether it was ever durable, and everything behind it.
#[derive(Default)]
struct Doubt {
    findings: Vec<Finding>,
    entries: Vec<(RecordKind, Entry)>,
    /// Some stretch of it is no record at all.
    gap: bool,
}

impl Doubt {
    fn begin(&self) -> Option<u64> {
        self.findings.first().map(|f| f.offset)
    }

    /// It was durable, or cannot be a torn tail: the records count, also one whose data are bad (as in segments whose data are
    /// not read at opening; reading it will tell).
    fn confirm(&mut self, found: &mut Found, findings: &mut Vec<Finding>) {
        found.damaged |= std::mem::take(&mut self.gap);
        found.entries.append(&mut self.entries);
        findings.append(&mut self.findings);
    }
}

fn finding_of(segment: u64, offset: u64, header: &RecordHeader, damage: Damage) -> Finding {
    Finding {
        segment,
        offset,
        len_bytes: header.total_bytes(),
        id: Some(header.id),
        pg_id: Some(header.meta.pg_id),
        live: false,
        damage,
    }
}

/// Reads may be tried again; syncs never.
fn read_twice(file: &dyn DiskFile, bytes: &mut [u8]) -> Result<(), DiskError> {
    file.read_at(0, bytes).or_else(|_| file.read_at(0, bytes))
}
