//! What a restart makes of the bytes on a disk.
//!
//! Segments are read in order of their numbers, records in order of their offsets; the higher sequence
//! decides about a fragment. The last segment may have a torn tail: it is cut at the first record that is not
//! whole and valid, unless a later record says that this place was durable when it was written. Then, and
//! in any other segment, it is damage: reported, left in place, and no reason to refuse the rest. Nothing that was found becomes visible
//! before it was synced: a process that was killed leaves records in the system's cache.
//!
//! An index that survived saves most of the reading: `resume.rs`.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use parking_lot::{Mutex, RwLock};
use tessera_disk::{
    Disk, DiskError, DiskFile, Identity, IdentityError, OpenMode, hex16,
    record::{RecordPlace, parse_numbered_name},
};
use tessera_failpoint as failpoint;

use crate::compact::Compactor;
use crate::config::Options;
use crate::error::{Damage, Finding, OpenError};
use crate::format::{HeaderFault, RecordHeader, RecordKind, SEGMENT_HEADER_BYTES, SEGMENT_VERSION, SegmentHeader};
use crate::graves::Graves;
use crate::index::{Entry, FragmentId, Index, IndexError, Point, SegmentRow};
use crate::publish::{Overlay, row_of};
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
    /// Valid records that were read, dead ones too.
    pub records: u64,
    /// True: the index of an earlier life was used, and only what came after it was read.
    pub resumed: bool,
    /// Why the index of an earlier life was thrown away, if it was.
    pub index_lost: Option<String>,
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

/// Records that are taken in before the index is told.
const TAKEN_AT_ONCE: usize = 4096;

/// A segment file and its header, if that can be read.
pub(crate) struct Headed {
    pub(crate) number: u64,
    pub(crate) file: Arc<dyn DiskFile>,
    pub(crate) header: Option<SegmentHeader>,
}

/// What is known of a segment before it is read.
pub(crate) struct Known {
    pub(crate) row: SegmentRow,
    /// Reading begins here.
    pub(crate) from: u64,
    /// Sequences of the records before.
    pub(crate) after_sequence: u64,
}

/// One run of opening.
pub(crate) struct Opening {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) identity: Identity,
    pub(crate) index: Box<dyn Index>,
    pub(crate) graves: Graves,
    pub(crate) segments: BTreeMap<u64, Arc<Segment>>,
    pub(crate) next_sequence: u64,
    /// Up to where records were taken in.
    pub(crate) point: Point,
    /// What the index was not told yet.
    overlay: Overlay,
    touched: BTreeSet<u64>,
    /// Highest segment number on the disk.
    highest: u64,
    pub(crate) report: OpenReport,
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
    let mut opening = Opening::new(disk.clone(), identity, index);
    opening.run(progress)?;
    let Opened { index, segments, writer, report } = opening.finish();
    let store = SegmentStore {
        disk,
        identity,
        options,
        index: RwLock::new(index),
        index_given_up: AtomicBool::new(false),
        segments: RwLock::new(segments),
        writer: Mutex::new(writer),
        sync_turn: Mutex::new(()),
        compactor: Mutex::new(Compactor::default()),
    };
    Ok((store, report))
}

/// What opening made.
pub(crate) struct Opened {
    pub(crate) index: Box<dyn Index>,
    pub(crate) segments: BTreeMap<u64, Arc<Segment>>,
    pub(crate) writer: Writer,
    pub(crate) report: OpenReport,
}

impl Opening {
    pub(crate) fn new(disk: Arc<dyn Disk>, identity: Identity, index: Box<dyn Index>) -> Self {
        Opening {
            disk,
            identity,
            index,
            graves: Graves::default(),
            segments: BTreeMap::new(),
            next_sequence: 1,
            point: Point::default(),
            overlay: Overlay::default(),
            touched: BTreeSet::new(),
            highest: 0,
            report: OpenReport::default(),
        }
    }

    /// From what the index kept, or from all segments.
    pub(crate) fn run(&mut self, progress: &mut dyn FnMut(OpenProgress)) -> Result<(), OpenError> {
        let numbers = self.list()?;
        self.highest = numbers.last().copied().unwrap_or(0);
        let headed = self.read_headers(&numbers)?;
        if !self.resume(&headed, progress)? {
            self.start_over()?;
            for at in 0..headed.len() {
                self.segment(&headed[at], None, at + 1 == headed.len())?;
                self.tell(progress, at, headed.len());
            }
            self.close_graves()?;
        }
        Ok(())
    }

    /// The segment numbers on the disk, ascending.
    fn list(&mut self) -> Result<Vec<u64>, DiskError> {
        self.disk.create_dir(SEGMENTS_DIR)?;
        let mut numbers = Vec::new();
        for name in self.disk.list(SEGMENTS_DIR)? {
            match parse_numbered_name(&name, ".seg") {
                Some(number) => numbers.push(number),
                None => self.report.foreign_files.push(name),
            }
        }
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// Reads and judges all headers before anything is changed (P14).
    fn read_headers(&self, numbers: &[u64]) -> Result<Vec<Headed>, OpenError> {
        let mut headed = Vec::with_capacity(numbers.len());
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
            headed.push(Headed { number, file, header });
        }
        Ok(headed)
    }

    /// Forgets what was begun, and the index with it. What was cut or removed stays told.
    fn start_over(&mut self) -> Result<(), IndexError> {
        self.index.reset(&self.identity)?;
        self.graves = Graves::default();
        self.segments.clear();
        self.next_sequence = 1;
        self.point = Point::default();
        self.overlay = Overlay::default();
        self.touched.clear();
        (self.report.records, self.report.segments) = (0, 0);
        self.report.findings.clear();
        Ok(())
    }

    pub(crate) fn tell(&self, progress: &mut dyn FnMut(OpenProgress), at: usize, of: usize) {
        let (segments_done, segments_total) = (at as u64 + 1, of as u64);
        progress(OpenProgress { segments_done, segments_total, records: self.report.records });
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

    /// Reads a segment, or what of it is not known yet, and takes its records in.
    pub(crate) fn segment(&mut self, it: &Headed, known: Option<Known>, last: bool) -> Result<(), OpenError> {
        let Headed { number, file, header } = it;
        let (number, len) = (*number, file.len()?);
        let after_sequence = header.map_or(0, |h| h.after_sequence);
        let fresh = Known { row: SegmentRow::default(), from: SEGMENT_HEADER_BYTES, after_sequence };
        let is_fresh = known.is_none();
        let known = known.unwrap_or(fresh);
        if is_fresh && header.is_none() && last && len <= SEGMENT_HEADER_BYTES {
            return Ok(self.remove_unborn(number)?);
        }
        let found = self.scan(number, &**file, known.from..len, known.after_sequence, last)?;
        // A segment whose header is damaged, or whose tail cannot be read, takes no more records.
        let size_limit = header.filter(|_| !found.sealed && !known.row.sealed).map_or(0, |h| h.size_limit_bytes);
        let end = len.max(SEGMENT_HEADER_BYTES);
        let segment = Arc::new(Segment::new(number, file.clone(), after_sequence, size_limit, end));
        segment.add_live(known.row.live_bytes);
        if header.is_none() {
            self.damage(number, 0, SEGMENT_HEADER_BYTES, Damage::SegmentHeader);
        }
        if found.damaged || header.is_none() || known.row.damaged {
            segment.set_damaged();
        }
        self.segments.insert(number, segment.clone());
        self.next_sequence = self.next_sequence.max(after_sequence + 1);
        if last {
            // Before anything of it is taken in: the index may become durable before the segment does.
            self.settle_tail(&segment, found.torn)?;
        }
        self.report.segments += 1;
        self.take_in(&segment, &found.entries)?;
        Ok(())
    }

    /// The crash came while it was made: no record is written before header and name are durable.
    fn remove_unborn(&mut self, number: u64) -> Result<(), DiskError> {
        if self.report.removed_unborn != Some(number) {
            self.disk.remove(&Segment::path(number))?;
            self.disk.sync_dir(SEGMENTS_DIR)?;
            self.report.removed_unborn = Some(number);
        }
        Ok(())
    }

    /// Takes the records of a segment, or the rest of them, into account.
    fn take_in(&mut self, segment: &Segment, entries: &[(RecordKind, Entry)]) -> Result<(), IndexError> {
        let number = segment.number;
        let mut chunks = entries.chunks(TAKEN_AT_ONCE).peekable();
        while let Some(chunk) = chunks.next() {
            chunk.iter().try_for_each(|&(kind, entry)| self.learn(kind, entry))?;
            if let (Some((_, last)), Some(_)) = (chunk.last(), chunks.peek()) {
                let offset = last.offset + last.record_bytes();
                self.tell_index(Point { segment: number, offset, next_sequence: last.sequence + 1 })?;
            }
        }
        let point = Point { segment: number, offset: segment.end(), next_sequence: self.next_sequence };
        if point == self.point { Ok(()) } else { self.tell_index(point) }
    }

    /// Tells the index what was taken in since the last time.
    fn tell_index(&mut self, point: Point) -> Result<(), IndexError> {
        self.point = point;
        self.touched.insert(point.segment);
        let mut changes = std::mem::take(&mut self.overlay).into_changes();
        changes.point = Some(point);
        changes.graves = self.graves.take_changes();
        for number in std::mem::take(&mut self.touched) {
            changes.segments.insert(number, self.segments.get(&number).map(|s| row_of(s, point)));
        }
        self.index.apply(&changes)
    }

    /// Cuts the torn tail and syncs: what a killed process wrote may not be on the medium yet.
    fn settle_tail(&mut self, segment: &Segment, torn: Option<TornTail>) -> Result<(), DiskError> {
        if let Some(torn) = torn {
            if failpoint::is_active("segment.keep_torn_tail") {
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
    pub(crate) fn scan(
        &mut self,
        number: u64,
        file: &dyn DiskFile,
        range: std::ops::Range<u64>,
        after_sequence: u64,
        last: bool,
    ) -> Result<Found, OpenError> {
        let len = range.end;
        let place = RecordPlace { disk_uuid: self.identity.disk_uuid, file: number };
        let mut scanner = Scanner::new(file, place, range.start, len, after_sequence);
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
                        && !failpoint::is_active("segment.skip_data_check")
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

    pub(crate) fn damage(&mut self, segment: u64, offset: u64, len_bytes: u64, damage: Damage) {
        self.report.findings.push(SegmentStore::finding(segment, offset, len_bytes, damage));
    }

    fn entry_of(&mut self, id: FragmentId) -> Result<Option<Entry>, IndexError> {
        if let Some(entry) = self.overlay.get(id) {
            return Ok(entry);
        }
        let entry = self.index.get(id)?;
        self.overlay.looked_up(id, entry);
        Ok(entry)
    }

    /// Takes a record into account; the higher sequence decides.
    fn learn(&mut self, kind: RecordKind, entry: Entry) -> Result<(), IndexError> {
        let id = entry.id;
        self.next_sequence = self.next_sequence.max(entry.sequence + 1);
        let alive = self.entry_of(id)?;
        let known = alive.map_or(0, |e| e.sequence).max(self.graves.tombstone(id).map_or(0, |t| t.sequence));
        let newest = entry.sequence > known;
        match kind {
            RecordKind::Fragment if newest => {
                self.account(&entry, true)?;
                if let Some(tombstone) = self.graves.take_tombstone(id) {
                    self.account(&tombstone, false)?;
                }
                if let Some(old) = self.overlay.set(id, Some(entry)) {
                    self.account(&old, false)?;
                    self.graves.add_copy(id);
                }
            }
            RecordKind::Fragment => self.graves.add_copy(id),
            RecordKind::Delete if newest => {
                if alive.is_some() {
                    self.overlay.set(id, None);
                }
                if let Some(old) = alive {
                    self.account(&old, false)?;
                    self.graves.add_copy(id);
                }
                self.account(&entry, true)?;
                if let Some(old) = self.graves.bury(entry) {
                    self.account(&old, false)?;
                }
            }
            RecordKind::Delete => {}
        }
        Ok(())
    }

    fn account(&mut self, entry: &Entry, alive: bool) -> Result<(), IndexError> {
        let Some(segment) = self.segments.get(&entry.segment) else { return Ok(()) };
        let bytes = entry.record_bytes();
        if alive {
            segment.add_live(bytes);
        } else if segment.live_bytes() >= bytes {
            segment.sub_live(bytes);
        } else {
            return Err(IndexError::Contradicts { segment: entry.segment });
        }
        self.touched.insert(entry.segment);
        Ok(())
    }

    /// Forgets delete records that nothing older is left of.
    pub(crate) fn close_graves(&mut self) -> Result<(), IndexError> {
        if !self.segments.values().any(|s| s.is_damaged()) {
            for tombstone in self.graves.close_empty(None) {
                self.account(&tombstone, false)?;
            }
            self.tell_index(self.point)?;
        }
        for finding in &mut self.report.findings {
            let held = finding.id.map(|id| self.index.get(id)).transpose()?.flatten();
            finding.live = held.is_some_and(|e| (e.segment, e.offset) == (finding.segment, finding.offset));
        }
        // A restart need not read all that again.
        self.index.persist(false)
    }

    pub(crate) fn finish(mut self) -> Opened {
        self.report.fragments = self.index.len();
        let open = self.segments.last_key_value().map(|(_, s)| s.clone()).filter(|s| s.size_limit_bytes > 0);
        let writer = Writer {
            open,
            next_segment: self.highest + 1,
            next_sequence: self.next_sequence,
            granted_bytes: 0,
            tail_dirty: false,
            sync_needed: false,
            staged: Vec::new(),
            staged_ids: HashMap::new(),
            graves: self.graves,
            point: self.point,
            touched: self.touched,
        };
        Opened { index: self.index, segments: self.segments, writer, report: self.report }
    }
}

/// What the scan of one segment gave.
#[derive(Default)]
pub(crate) struct Found {
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
