//! Opens a store from the bytes on a disk.
//!
//! Segments are read in the order of their numbers, records in the order of their offsets. Of a fragment's records, the
//! one with the highest sequence decides. The last segment may have a torn tail. It is cut at the first record that is
//! incomplete or invalid, unless a later record says that this place was durable. In that case, and in all other
//! segments, a bad stretch is damage: it is reported and left in place, and the rest is used. No record becomes visible
//! before a sync, because after a kill the system's cache may hold records that the medium lacks.
//!
//! An index that survived the restart saves most of the reading: see `resume.rs`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use parking_lot::{Mutex, RwLock};
use tessera_disk::record::{HeaderFault, RecordPlace, parse_numbered_name};
use tessera_disk::{Disk, DiskError, DiskFile, Identity, OpenMode, hex16};
use tessera_failpoint as failpoint;

use crate::compact::Compactor;
use crate::config::Options;
use crate::error::{Damage, Finding, OpenError};
use crate::format::{RecordKind, SEGMENT_HEADER_BYTES, SEGMENT_VERSION, SEQUENCES_END, SegmentHeader};
use crate::index::{Entry, FragmentId, Index, IndexError, Point, SegmentRow};
use crate::ledger::{Ledger, Overlay, Segments};
use crate::scan::{Item, Scanner, check_payload};
use crate::segment::{SEGMENTS_DIR, Segment};
use crate::store::SegmentStore;
use crate::writer::{Writer, entry_of};

/// Progress of opening.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenProgress {
    /// Segments scanned.
    pub segments_done: u64,
    /// Segments on the disk.
    pub segments_total: u64,
    /// Records found so far.
    pub records: u64,
}

/// A torn tail that was cut from the last segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TornTail {
    /// Segment number.
    pub segment: u64,
    /// Length of the segment after the cut.
    pub offset: u64,
    /// Bytes removed.
    pub cut_bytes: u64,
    /// Fragments whose headers were readable in the tail. They were never acknowledged, unless the end of the disk's
    /// data rotted; an inventory finds that.
    pub ids: Vec<FragmentId>,
}

/// Result of opening a store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpenReport {
    /// Number of segment files.
    pub segments: u64,
    /// Valid records read, dead ones included.
    pub records: u64,
    /// True if opening resumed from the index and read only later records.
    pub resumed: bool,
    /// Why the existing index could not be used.
    pub index_lost: Option<String>,
    /// Live fragments.
    pub fragments: u64,
    /// The torn tail of the last segment.
    pub torn_tail: Option<TornTail>,
    /// Number of a removed last segment whose creation a crash interrupted.
    pub removed_unborn: Option<u64>,
    /// Damage, oldest segment first.
    pub findings: Vec<Finding>,
    /// Files in `segments/` that no segment store writes; they are left alone.
    pub foreign_files: Vec<String>,
}

/// Records entered between two updates of the index.
const INDEX_BATCH_RECORDS: usize = 4096;

/// A segment file, with its header if the header is valid.
pub(crate) struct SegmentFile {
    pub(crate) number: u64,
    pub(crate) file: Arc<dyn DiskFile>,
    pub(crate) header: Option<SegmentHeader>,
}

/// Where the scan of a segment starts.
pub(crate) struct ScanStart {
    pub(crate) row: SegmentRow,
    /// Offset of the first record to read.
    pub(crate) from: u64,
    /// All records before have sequences of at most this.
    pub(crate) after_sequence: u64,
}

/// State while opening.
pub(crate) struct Opening {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) identity: Identity,
    pub(crate) index: Box<dyn Index>,
    pub(crate) ledger: Ledger,
    pub(crate) segments: Segments,
    pub(crate) next_sequence: u64,
    /// Entries that the index lacks.
    overlay: Overlay,
    /// Highest segment number on the disk.
    highest: u64,
    pub(crate) report: OpenReport,
}

impl SegmentStore {
    /// Opens the segments of a disk that has an identity.
    ///
    /// If the state that the index kept over a restart matches the segments, only later records are scanned. Otherwise
    /// the index is reset, and the headers of all records and the data of the last segment are scanned. A torn tail is
    /// cut, and everything visible is synced. Calls `progress` once per segment. The caller holds the disk's lock.
    ///
    /// # Errors
    /// [`OpenError`]; the disk is unchanged.
    pub fn open_with_index(
        disk: Arc<dyn Disk>,
        options: Options,
        index: Box<dyn Index>,
        progress: &mut dyn FnMut(OpenProgress),
    ) -> Result<(Self, OpenReport), OpenError> {
        let identity = Identity::require(&*disk)?;
        let mut opening = Opening::new(disk.clone(), identity, index);
        opening.run(progress)?;
        let (index, segments, writer, report) = opening.finish();
        let store = SegmentStore {
            disk,
            identity,
            options,
            more_reserve_bytes: AtomicU64::new(0),
            index: RwLock::new(Some(index)),
            index_given_up: AtomicBool::new(false),
            segments: RwLock::new(segments),
            writer: Mutex::new(writer),
            sync_turn: Mutex::new(()),
            compactor: Mutex::new(Compactor::default()),
        };
        Ok((store, report))
    }
}

impl Opening {
    pub(crate) fn new(disk: Arc<dyn Disk>, identity: Identity, index: Box<dyn Index>) -> Self {
        Opening {
            disk,
            identity,
            index,
            ledger: Ledger::default(),
            segments: Segments::new(),
            next_sequence: 1,
            overlay: Overlay::default(),
            highest: 0,
            report: OpenReport::default(),
        }
    }

    /// Resumes from the index if possible, else reads all segments.
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
            self.drop_unneeded_tombstones()?;
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

    /// Reads and checks all headers before anything is changed (P14).
    fn read_headers(&self, numbers: &[u64]) -> Result<Vec<SegmentFile>, OpenError> {
        let mut headed = Vec::with_capacity(numbers.len());
        for &number in numbers {
            let file = self.disk.open(&Segment::path(number), OpenMode::Existing)?;
            let mut bytes = vec![0; file.len()?.min(SEGMENT_HEADER_BYTES) as usize];
            let header = match file.read_twice(0, &mut bytes).map(|()| SegmentHeader::decode(&bytes)) {
                Ok(Ok(header)) => {
                    self.check_home(number, &header)?;
                    Some(header)
                }
                Ok(Err(HeaderFault::Version(found))) => {
                    return Err(OpenError::Version { segment: number, found, supported: SEGMENT_VERSION });
                }
                Ok(Err(_)) | Err(_) => None,
            };
            let header = header.filter(|header| header.after_sequence < SEQUENCES_END);
            headed.push(SegmentFile { number, file, header });
        }
        Ok(headed)
    }

    /// Clears the index and everything entered so far. The report keeps what was cut or removed.
    fn start_over(&mut self) -> Result<(), IndexError> {
        self.index.reset(&self.identity)?;
        self.ledger = Ledger::default();
        self.segments.clear();
        self.next_sequence = 1;
        self.overlay = Overlay::default();
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

    /// Reads a segment from its start, and enters its records.
    pub(crate) fn segment(&mut self, it: &SegmentFile, start: Option<ScanStart>, last: bool) -> Result<(), OpenError> {
        let SegmentFile { number, file, header } = it;
        let (number, len) = (*number, file.len()?);
        let after_sequence = header.map_or(0, |h| h.after_sequence);
        let fresh = ScanStart { row: SegmentRow::default(), from: SEGMENT_HEADER_BYTES, after_sequence };
        let is_fresh = start.is_none();
        let start = start.unwrap_or(fresh);
        if is_fresh && header.is_none() && last && len <= SEGMENT_HEADER_BYTES {
            return Ok(self.remove_unborn(number)?);
        }
        let found = self.scan(number, &**file, start.from..len, start.after_sequence, last)?;
        // A segment with a damaged header or an unreadable tail takes no more records.
        let size_limit = header.filter(|_| !found.sealed && !start.row.sealed).map_or(0, |h| h.size_limit_bytes);
        let end = len.max(SEGMENT_HEADER_BYTES);
        let segment = Arc::new(Segment::new(number, file.clone(), after_sequence, size_limit, end));
        if !segment.add_live(start.row.live_bytes) {
            return Err(IndexError::Contradicts { segment: number }.into());
        }
        if header.is_none() {
            self.damage(number, 0, SEGMENT_HEADER_BYTES, Damage::SegmentHeader);
        }
        if found.damaged || header.is_none() || start.row.damaged {
            segment.set_damaged();
        }
        self.segments.insert(number, segment.clone());
        self.next_sequence = self.next_sequence.max(after_sequence + 1);
        if last {
            // Before the records are entered: the index may become durable before the segment does.
            self.settle_tail(&segment, found.torn)?;
        }
        self.report.segments += 1;
        self.enter_all(&segment, &found.entries)?;
        Ok(())
    }

    /// Removes a segment whose creation a crash interrupted. It holds no record: header and name are durable before the
    /// first one is written.
    fn remove_unborn(&mut self, number: u64) -> Result<(), DiskError> {
        if self.report.removed_unborn != Some(number) {
            self.disk.remove(&Segment::path(number))?;
            self.disk.sync_dir(SEGMENTS_DIR)?;
            self.report.removed_unborn = Some(number);
        }
        Ok(())
    }

    /// Enters the records that the scan of a segment found.
    fn enter_all(&mut self, segment: &Segment, entries: &[(RecordKind, Entry)]) -> Result<(), IndexError> {
        let number = segment.number;
        let mut chunks = entries.chunks(INDEX_BATCH_RECORDS).peekable();
        while let Some(chunk) = chunks.next() {
            chunk.iter().try_for_each(|&(kind, entry)| self.enter(kind, entry))?;
            if let (Some((_, last)), Some(_)) = (chunk.last(), chunks.peek()) {
                let offset = last.offset + last.record_bytes();
                self.tell_index(Point { segment: number, offset, next_sequence: last.sequence + 1 })?;
            }
        }
        let point = Point { segment: number, offset: segment.end(), next_sequence: self.next_sequence };
        let told = self.ledger.point;
        // An earlier index knew this segment completely: its point is further on and must not move back, or the next
        // opening would enter the segments in between twice.
        if (number, segment.end()) < (told.segment, told.offset) || point == told {
            return Ok(());
        }
        self.tell_index(point)
    }

    /// Updates the index with everything entered since the last update.
    fn tell_index(&mut self, point: Point) -> Result<(), IndexError> {
        self.ledger.advance(point);
        let changes = self.ledger.take_changes(&self.segments, std::mem::take(&mut self.overlay));
        self.index.apply(&changes)
    }

    /// Cuts the torn tail and syncs: after a kill, the medium may lack records that the cache holds.
    fn settle_tail(&mut self, segment: &Segment, torn: Option<TornTail>) -> Result<(), DiskError> {
        if let Some(torn) = torn {
            if failpoint::is_active("segment.keep_torn_tail") {
                return Ok(());
            }
            segment.file.truncate(torn.offset)?;
            segment.cut(torn.offset);
            self.report.torn_tail = Some(torn);
        }
        segment.file.sync_data()?;
        self.disk.sync_dir(SEGMENTS_DIR)
    }

    /// Reads the records of a segment. For the last segment it checks their data too, to find a torn tail.
    pub(crate) fn scan(
        &mut self,
        number: u64,
        file: &dyn DiskFile,
        range: std::ops::Range<u64>,
        after_sequence: u64,
        last: bool,
    ) -> Result<SegmentScan, OpenError> {
        let len = range.end;
        let place = RecordPlace { disk_uuid: self.identity.disk_uuid, file: number };
        let mut scanner = Scanner::new(file, place, range.start, len, after_sequence);
        let mut found = SegmentScan::default();
        let mut suspect = SuspectTail::default();
        let mut buf = Vec::new();
        while let Some(item) = scanner.next()? {
            match item {
                Item::Gap { from, to, damage } => {
                    suspect.findings.push(Finding::of_stretch(number, from, to - from, damage));
                    suspect.gap = true;
                }
                Item::Record { offset, header } => {
                    if suspect.begin().is_some_and(|begin| begin < header.synced_to) {
                        // The bad stretch had been durable, so it is rot and not a torn tail.
                        suspect.confirm(&mut found, &mut self.report.findings);
                    }
                    if last
                        && !failpoint::is_active("segment.skip_data_check")
                        && let Some(damage) = check_payload(file, offset, &header, &mut buf)
                    {
                        let entry = entry_of(&header, number, offset);
                        suspect.findings.push(Finding::of_record(&entry, false, damage));
                    }
                    let (records, synced_to) = match suspect.begin() {
                        None => (&mut found.entries, &mut found.synced_to),
                        Some(_) => (&mut suspect.entries, &mut suspect.synced_to),
                    };
                    records.push((header.kind, entry_of(&header, number, offset)));
                    *synced_to = header.synced_to.max(*synced_to);
                }
            }
        }
        // An unreadable stretch is not cut: the segment keeps it and takes no more records.
        found.sealed = suspect.findings.iter().any(|f| matches!(f.damage, Damage::Unreadable { .. }));
        // If only the tail says that records behind rot were durable, it stays: without it, the next opening would take the rot for
        // a torn tail and cut those records.
        found.sealed |= last && suspect.begin().is_some() && found.rot_from.is_some_and(|rot| found.synced_to <= rot);
        if !last || found.sealed {
            suspect.confirm(&mut found, &mut self.report.findings);
        } else if let Some(offset) = suspect.begin() {
            let mut ids: Vec<FragmentId> = suspect.entries.iter().map(|(_, e)| e.id).collect();
            ids.dedup();
            found.torn = Some(TornTail { segment: number, offset, cut_bytes: len - offset, ids });
        }
        self.report.records += found.entries.len() as u64;
        Ok(found)
    }

    pub(crate) fn damage(&mut self, segment: u64, offset: u64, len_bytes: u64, damage: Damage) {
        self.report.findings.push(Finding::of_stretch(segment, offset, len_bytes, damage));
    }

    fn entry_of(&mut self, id: FragmentId) -> Result<Option<Entry>, IndexError> {
        if let Some(entry) = self.overlay.get(id) {
            return Ok(entry);
        }
        let entry = self.index.get(id)?;
        self.overlay.looked_up(id, entry);
        Ok(entry)
    }

    /// Enters a record; the highest sequence decides.
    fn enter(&mut self, kind: RecordKind, entry: Entry) -> Result<(), IndexError> {
        let id = entry.id;
        self.next_sequence = self.next_sequence.max(entry.sequence + 1);
        let held = self.entry_of(id)?;
        let delete = self.ledger.tombstones.delete_of(id);
        let newest = entry.sequence > held.map_or(0, |e| e.sequence).max(delete.map_or(0, |d| d.sequence));
        match kind {
            RecordKind::Fragment if newest => self.ledger.put(&self.segments, &mut self.overlay, entry),
            RecordKind::Fragment => {
                self.ledger.tombstones.add_copy(id);
                Ok(())
            }
            RecordKind::Delete if newest => self.ledger.delete(&self.segments, &mut self.overlay, entry),
            RecordKind::Delete => Ok(()),
        }
    }

    /// Drops the delete records that no dead copy needs, and completes the index.
    pub(crate) fn drop_unneeded_tombstones(&mut self) -> Result<(), IndexError> {
        if !self.segments.values().any(|s| s.is_damaged()) {
            for delete in self.ledger.tombstones.remove_unneeded(None) {
                self.ledger.dead(&self.segments, &delete)?;
            }
            self.tell_index(self.ledger.point)?;
        }
        for finding in &mut self.report.findings {
            let held = finding.id.map(|id| self.index.get(id)).transpose()?.flatten();
            finding.live = held.is_some_and(|e| (e.segment, e.offset) == (finding.segment, finding.offset));
        }
        // The next opening resumes here.
        self.index.persist(false)
    }

    /// The parts of the open store.
    pub(crate) fn finish(mut self) -> (Box<dyn Index>, Segments, Writer, OpenReport) {
        self.report.fragments = self.index.len();
        assert!(
            self.segments.keys().next_back().is_none_or(|&number| number <= self.highest),
            "a segment came from nowhere"
        );
        assert!(
            self.ledger.point.next_sequence <= self.next_sequence,
            "{:?} is beyond the last record",
            self.ledger.point
        );
        // The segment before a removed unborn one is sealed: nothing has checked its tail.
        let may_grow = |s: &Arc<Segment>| s.size_limit_bytes > 0 && s.number == self.highest;
        let open = self.segments.last_key_value().map(|(_, s)| s.clone()).filter(may_grow);
        let (next_segment, next_sequence) = (self.highest + 1, self.next_sequence);
        let writer = Writer { open, next_segment, next_sequence, ledger: self.ledger, ..Writer::default() };
        (self.index, self.segments, writer, self.report)
    }
}

/// Result of scanning one segment.
#[derive(Default)]
pub(crate) struct SegmentScan {
    entries: Vec<(RecordKind, Entry)>,
    damaged: bool,
    sealed: bool,
    torn: Option<TornTail>,
    /// The last bad stretch that was found to be rot begins here.
    rot_from: Option<u64>,
    /// Everything before was durable, as the entries say.
    synced_to: u64,
}

/// The first bad stretch that may be a torn tail, and everything after it.
#[derive(Default)]
struct SuspectTail {
    findings: Vec<Finding>,
    entries: Vec<(RecordKind, Entry)>,
    /// Everything before was durable, as the entries say.
    synced_to: u64,
    /// Some stretch holds no valid record.
    gap: bool,
}

impl SuspectTail {
    fn begin(&self) -> Option<u64> {
        self.findings.first().map(|f| f.offset)
    }

    /// The stretch was durable or cannot be a torn tail, so its records count, even one with bad data. (The data of
    /// earlier segments are not checked here either; reading them finds the damage.)
    fn confirm(&mut self, found: &mut SegmentScan, findings: &mut Vec<Finding>) {
        found.damaged |= std::mem::take(&mut self.gap);
        found.rot_from = self.begin().or(found.rot_from);
        found.synced_to = found.synced_to.max(std::mem::take(&mut self.synced_to));
        found.entries.append(&mut self.entries);
        findings.append(&mut self.findings);
    }
}
