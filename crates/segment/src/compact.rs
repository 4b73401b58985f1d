//! Compaction copies the live records of a mostly dead segment to the open segment, syncs them, and removes the old
//! file.
//!
//! A crash at any point leaves each live record at least once; the copy has the higher sequence. A record that fails
//! its checksums is not copied; its segment stays until the record is repaired or deleted. A delete record is copied
//! while an older record of its fragment is on the disk (P3). The open segment is sealed first if it is mostly dead, or
//! on request (`seal_dead`), so compaction reaches every dead record (P5).
//!
//! The copies need room before the old file goes. A segment is taken only if there is room for all its live records, so
//! each one that is taken leaves more free space than it found, and a full disk gets better step by step. Segments
//! without live records need no room and go first. The size of segments is bounded so that the reserve has room for the
//! live records of any (`writer.rs`). If space runs out all the same (another program took it), what is copied stays
//! copied, and the choice begins anew: nothing waits for the rest of that segment.

use std::collections::HashMap;
use std::sync::Arc;

use tessera_failpoint as failpoint;

use crate::error::{Finding, StoreError};
use crate::format::{RECORD_HEADER_BYTES, RecordHeader, RecordKind, SEGMENT_HEADER_BYTES};
use crate::index::{Entry, FragmentId, IndexError};
use crate::ledger::Overlay;
use crate::scan::{Item, Scanner};
use crate::segment::{SEGMENTS_DIR, Segment};
use crate::store::SegmentStore;
use crate::writer::{PendingRecord, Writer, entry_of};

/// Compaction seals the open segment if at least this percentage of it is dead.
const OPEN_DEAD_PERCENT_MIN: u64 = 50;

/// Result of one compaction step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CompactReport {
    /// Live records copied.
    pub moved_records: u64,
    /// Bytes of these records.
    pub moved_bytes: u64,
    /// Segments removed.
    pub removed_segments: u64,
    /// Bytes of the removed files.
    pub removed_bytes: u64,
    /// `removed_bytes` minus the records copied out of the removed files, in this step or earlier.
    pub freed_bytes: u64,
    /// Live records that failed their checksums. Their segments stay until the fragments are rebuilt.
    pub findings: Vec<Finding>,
    /// True if more work is due now.
    pub more: bool,
}

/// Progress of compaction.
#[derive(Default)]
pub(crate) struct Compactor {
    /// The current segment, and the offset up to which its live records are copied.
    current: Option<(Arc<Segment>, u64)>,
    /// Segments with damaged live records, and their live bytes at that time. A segment is skipped until that number
    /// changes.
    blocked: HashMap<u64, u64>,
    /// Bytes copied out of each segment that is not removed yet.
    moved_bytes: HashMap<u64, u64>,
}

/// Live records read from a segment and ready to be written.
#[derive(Default)]
struct CopyBatch {
    records: Vec<(RecordHeader, u64, Vec<u8>)>,
    bytes: u64,
}

impl SegmentStore {
    /// Copies about `budget_bytes` of live records out of segments of which at least `dead_percent` is dead, and removes
    /// the segments without live records; 0: any dead byte counts. Call it again while [`CompactReport::more`] is true.
    /// Reads and appends continue meanwhile.
    ///
    /// # Errors
    /// The disk's, or no space: [`StoreError::NoRoomToCompact`] before any copy, else the disk's. Nothing is lost; the
    /// step can be retried.
    pub fn compact_step(&self, dead_percent: u64, budget_bytes: u64) -> Result<CompactReport, StoreError> {
        let mut compactor = self.compactor.lock();
        let mut report = CompactReport::default();
        let mut left = budget_bytes;
        loop {
            if compactor.current.is_none() {
                let chosen = match self.choose(&compactor.blocked, dead_percent) {
                    // The next step tells.
                    Err(e) if e.is_no_space() && report != CompactReport::default() => {
                        report.more = true;
                        return Ok(report);
                    }
                    chosen => chosen?,
                };
                compactor.current = chosen.map(|segment| (segment, SEGMENT_HEADER_BYTES));
            }
            let Some((segment, at)) = compactor.current.clone() else { return Ok(report) };
            if left == 0 && segment.live_bytes() > 0 {
                report.more = true;
                return Ok(report);
            }
            let moved_before = report.moved_bytes;
            let copied = self.copy_some(&segment, at, left, &mut report);
            *compactor.moved_bytes.entry(segment.number).or_default() += report.moved_bytes - moved_before;
            if copied.as_ref().is_err_and(StoreError::is_no_space) {
                compactor.current = None;
                self.sync()?;
            }
            let (next, loaded) = copied?;
            left = left.saturating_sub(loaded);
            compactor.current = Some((segment.clone(), next));
            if next >= segment.end() {
                compactor.current = None;
                self.retire(&mut compactor, &segment, &mut report)?;
            }
        }
    }

    /// Seals the open segment if at least `dead_percent` of it (0: any record) is dead, so that later steps can free
    /// its space (P5). For a compaction on request: call it once, before the first step. Returns true if it sealed the
    /// segment.
    ///
    /// # Errors
    /// The disk's, or no space for the header of the next segment. The open segment then stays open.
    pub fn seal_dead(&self, dead_percent: u64) -> Result<bool, StoreError> {
        let mut writer = self.writer.lock();
        let worth = |(open, dead): (Arc<Segment>, u64)| dead > 0 && dead * 100 >= dead_percent * open.record_bytes();
        let dead = dead_in_open(&writer).is_some_and(worth);
        if dead {
            self.rotate(&mut writer)?;
        }
        Ok(dead)
    }

    /// The segment with the greatest dead share, if the share is large enough and there is room for its live records.
    /// Seals and takes the open segment only if no other one qualifies and at least half of it is dead, whatever
    /// `dead_percent` is. Otherwise compaction would copy its own copies and delete records again and again.
    fn choose(&self, blocked: &HashMap<u64, u64>, dead_percent: u64) -> Result<Option<Arc<Segment>>, StoreError> {
        let mut writer = self.writer.lock();
        let open = writer.open.as_ref().map(|s| s.number);
        let mut worth: Vec<Arc<Segment>> = {
            let segments = self.segments.read();
            let worth = segments.values().filter(|s| {
                let (live, total) = (s.live_bytes(), s.record_bytes());
                let dead_enough = live < total && (total - live) * 100 >= dead_percent * total;
                Some(s.number) != open
                    && blocked.get(&s.number) != Some(&live)
                    && (live == 0 || dead_enough || s.is_damaged())
            });
            worth.cloned().collect()
        };
        let free_bytes = self.disk.space()?.writable_bytes;
        let fits = |s: &Segment| room_to_copy(s.live_bytes()) <= free_bytes;
        let live_share = |s: &&Arc<Segment>| (u128::from(s.live_bytes()) << 32) / u128::from(s.record_bytes().max(1));
        if let Some(best) = worth.iter().filter(|s| fits(s)).min_by_key(live_share) {
            return Ok(Some(best.clone()));
        }
        let percent = dead_percent.max(OPEN_DEAD_PERCENT_MIN);
        let mostly_dead = |(s, dead): &(Arc<Segment>, u64)| *dead > 0 && dead * 100 >= percent * s.record_bytes();
        if let Some((segment, _)) = dead_in_open(&writer).filter(mostly_dead) {
            if fits(&segment) {
                self.rotate(&mut writer)?;
                return Ok(Some(segment));
            }
            worth.push(segment);
        }
        let Some(needed_bytes) = worth.iter().map(|s| room_to_copy(s.live_bytes())).min() else { return Ok(None) };
        let dead_bytes = worth.iter().map(|s| s.dead_bytes()).sum();
        Err(StoreError::NoRoomToCompact { disk: self.disk.describe(), free_bytes, needed_bytes, dead_bytes })
    }

    /// Copies about `budget` bytes of live records from `at` on. Returns the offset to continue at and the bytes read.
    fn copy_some(
        &self,
        segment: &Segment,
        at: u64,
        budget: u64,
        report: &mut CompactReport,
    ) -> Result<(u64, u64), StoreError> {
        if segment.live_bytes() == 0 {
            return Ok((segment.end(), 0));
        }
        let (load, next) = self.load(segment, at, budget.min(self.options.compact_buffer_bytes), report)?;
        let mut writer = self.writer.lock();
        let mut outgoing: Vec<PendingRecord<'_>> = Vec::with_capacity(load.records.len());
        for (header, offset, bytes) in &load.records {
            if !self.still_needed(&writer, header, segment.number, *offset)? {
                continue;
            }
            let (groups, data) = bytes.split_at(header.groups_len as usize);
            outgoing.push(PendingRecord { header: *header, groups, data, from: Some((segment.number, *offset)) });
        }
        let mut entries = Vec::with_capacity(outgoing.len());
        let written = self.write(&mut writer, &outgoing, &mut entries);
        for (to, record) in entries.iter().zip(&outgoing) {
            assert!(Some((to.segment, to.offset)) > record.from, "{} was not copied to a higher place", to.id);
            assert!(
                to.data_crc == record.header.data_crc && to.groups_crc == record.header.groups_crc,
                "{} was copied wrongly",
                to.id
            );
        }
        report.moved_records += entries.len() as u64;
        report.moved_bytes += entries.iter().map(|e| e.record_bytes()).sum::<u64>();
        written.map(|()| (next, load.bytes))
    }

    /// Reads live records from `at` on until they fill `budget` bytes; at least one.
    fn load(
        &self,
        segment: &Segment,
        at: u64,
        budget: u64,
        report: &mut CompactReport,
    ) -> Result<(CopyBatch, u64), StoreError> {
        let mut load = CopyBatch::default();
        let mut scanner = self.scanner(segment, at);
        while load.bytes < budget.max(1) {
            let Some(item) = scanner.next()? else { break };
            let Item::Record { offset, header } = item else { continue };
            let needed = {
                let writer = self.writer.lock();
                self.still_needed(&writer, &header, segment.number, offset)?
            };
            if !needed {
                continue;
            }
            match self.load_record(segment, offset, &header) {
                Ok(bytes) => {
                    load.bytes += header.total_bytes();
                    load.records.push((header, offset, bytes));
                }
                Err(StoreError::Damaged(finding)) => report.findings.push(finding),
                Err(e) => return Err(e),
            }
        }
        Ok((load, scanner.position()))
    }

    /// Reads groups and data of a record and verifies them: compaction copies no damaged bytes.
    fn load_record(&self, segment: &Segment, offset: u64, header: &RecordHeader) -> Result<Vec<u8>, StoreError> {
        let mut bytes = vec![0; header.groups_len as usize + header.data_len as usize];
        let entry = entry_of(header, segment.number, offset);
        let handle = crate::handle::FragmentHandle::new(entry, segment.file.clone(), self.identity.disk_uuid);
        let at = offset + RECORD_HEADER_BYTES;
        if let Err(e) = segment.file.read_twice(at, &mut bytes) {
            return Err(handle.finding(crate::error::Damage::Unreadable { reason: e.to_string() }).into());
        }
        let (groups, data) = bytes.split_at(header.groups_len as usize);
        handle.check_groups(groups)?;
        handle.check_data(data)?;
        Ok(bytes)
    }

    /// True if this record is live and no newer record of its fragment is staged.
    ///
    /// # Errors
    /// [`IndexError::Disagrees`]: the index names this place but describes another record.
    fn still_needed(
        &self,
        writer: &Writer,
        header: &RecordHeader,
        segment: u64,
        offset: u64,
    ) -> Result<bool, StoreError> {
        if writer.staged_ids.contains_key(&header.id) {
            return Ok(false);
        }
        let here = |e: &Entry| (e.segment, e.offset) == (segment, offset);
        Ok(match header.kind {
            RecordKind::Fragment => match self.index()?.get(header.id)?.filter(here) {
                Some(entry) if entry != entry_of(header, segment, offset) => {
                    return Err(IndexError::Disagrees { id: header.id, segment, offset }.into());
                }
                held => held.is_some(),
            },
            RecordKind::Delete if failpoint::is_active("segment.drop_deletes_early") => false,
            RecordKind::Delete => writer.ledger.tombstones.delete_of(header.id).is_some_and(here),
        })
    }

    /// Syncs the copies, and removes the segment if nothing in it is live.
    fn retire(
        &self,
        compactor: &mut Compactor,
        segment: &Arc<Segment>,
        report: &mut CompactReport,
    ) -> Result<(), StoreError> {
        let remove_early = failpoint::is_active("segment.remove_before_sync");
        if remove_early {
            self.remove(compactor, segment, report)?;
        }
        self.sync()?;
        if segment.live_bytes() > 0 && !remove_early && !failpoint::is_active("segment.drop_deletes_early") {
            // Either a damaged record must be repaired first, or a record was put again or deleted just now.
            compactor.blocked.insert(segment.number, segment.live_bytes());
            return Ok(());
        }
        compactor.blocked.remove(&segment.number);
        if remove_early { Ok(()) } else { self.remove(compactor, segment, report) }
    }

    fn remove(
        &self,
        compactor: &mut Compactor,
        segment: &Arc<Segment>,
        report: &mut CompactReport,
    ) -> Result<(), StoreError> {
        let mut ids: Vec<FragmentId> = Vec::new();
        let mut scanner = self.scanner(segment, SEGMENT_HEADER_BYTES);
        while let Some(item) = scanner.next()? {
            if let Item::Record { header: RecordHeader { kind: RecordKind::Fragment, id, .. }, .. } = item {
                ids.push(id);
            }
        }
        let open = self.writer.lock().open.as_ref().map(|s| s.number);
        assert!(open != Some(segment.number), "segment {:016x} is removed while it is open", segment.number);
        self.disk.remove(&Segment::path(segment.number))?;
        self.segments.write().remove(&segment.number);
        self.disk.sync_dir(SEGMENTS_DIR)?;
        report.removed_segments += 1;
        report.removed_bytes += segment.end();
        let moved_bytes = compactor.moved_bytes.remove(&segment.number).unwrap_or(0);
        report.freed_bytes += segment.end().saturating_sub(moved_bytes);
        self.forget_copies(segment, &ids)
    }

    /// Updates the tombstones: the dead records of a removed segment are gone, so some delete records are no longer
    /// needed. After a crash before the index learns this, the index still names the segment, and the next opening
    /// rebuilds it.
    fn forget_copies(&self, removed: &Segment, ids: &[FragmentId]) -> Result<(), StoreError> {
        let mut writer = self.writer.lock();
        // The ledger may lack records of a damaged segment. Counting too many dead copies is safe, counting too few is
        // not.
        if !removed.is_damaged() {
            ids.iter().for_each(|&id| writer.ledger.tombstones.drop_copy(id));
        }
        if !self.any_damaged() {
            // Tombstones that only waited for the removal of the damaged segment are not among its ids.
            let candidates = (!removed.is_damaged()).then_some(ids);
            for delete in writer.ledger.tombstones.remove_unneeded(candidates) {
                writer.ledger.dead(&self.segments.read(), &delete)?;
            }
        }
        writer.ledger.dirty_segments.insert(removed.number);
        self.apply(&mut writer, Overlay::default())?;
        drop(writer);
        let _ = self.index().and_then(|index| index.persist(false));
        Ok(())
    }

    fn scanner<'a>(&self, segment: &'a Segment, at: u64) -> Scanner<'a> {
        Scanner::new(&*segment.file, self.place(segment.number), at, segment.end(), segment.after_sequence)
    }
}

/// Bytes that must be free before this many live bytes are copied: the copies, their entries in the index, and the header
/// of the segment that they may begin.
fn room_to_copy(live_bytes: u64) -> u64 {
    if live_bytes == 0 { 0 } else { live_bytes + live_bytes / 8 + 2 * SEGMENT_HEADER_BYTES }
}

/// The open segment and its dead bytes: those neither live nor staged.
fn dead_in_open(writer: &Writer) -> Option<(Arc<Segment>, u64)> {
    let open = writer.open.clone()?;
    let staged = writer.staged.iter().map(|staged| &staged.entry).filter(|e| e.segment == open.number);
    let waiting_bytes: u64 = staged.map(|e| e.record_bytes()).sum();
    let dead_bytes = open.record_bytes().saturating_sub(open.live_bytes() + waiting_bytes);
    Some((open, dead_bytes))
}
