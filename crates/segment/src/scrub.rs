//! Scrubbing: reads every record and compares it with its checksums, one step at a time (P13).
//!
//! A cycle walks the segments in ascending order, and records only move to higher places. So it sees every record that
//! existed when it began. A record with a damaged header is found through the index, which names the records of each
//! place.

use std::sync::Arc;

use crate::error::{Damage, Finding, StoreError};
use crate::format::{SEGMENT_HEADER_BYTES, SegmentHeader};
use crate::scan::{Item, Scanner, check_payload};
use crate::segment::Segment;
use crate::store::SegmentStore;
use crate::writer::entry_of;

/// The place where a scrub cycle resumes. It may be stored and used after a restart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ScrubCursor {
    /// Segment number.
    pub segment: u64,
    /// Offset in the segment.
    pub offset: u64,
}

/// Result of one step of scrubbing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScrubReport {
    /// Cursor for the next step; `None` if the cycle is complete.
    pub next: Option<ScrubCursor>,
    /// Records checked.
    pub records: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Damage. Findings with `live` set are fragments to rebuild.
    pub findings: Vec<Finding>,
}

impl SegmentStore {
    /// Checks about `budget_bytes` of records from `cursor` on, at least one record. The default cursor begins a new
    /// cycle.
    ///
    /// # Errors
    /// Only if a whole segment cannot be read, or the index's. Damage is a finding, not an error.
    pub fn scrub_step(&self, cursor: ScrubCursor, budget_bytes: u64) -> Result<ScrubReport, StoreError> {
        let mut report = ScrubReport::default();
        let mut at = cursor;
        let mut buf = Vec::new();
        loop {
            let Some(segment) = self.segment_from(at.segment) else { return Ok(report) };
            let offset = if segment.number == at.segment { at.offset } else { 0 };
            let reached = self.scrub_segment(&segment, offset, budget_bytes, &mut report, &mut buf)?;
            at = match reached {
                Some(offset) => ScrubCursor { segment: segment.number, offset },
                None => ScrubCursor { segment: segment.number + 1, offset: 0 },
            };
            if report.bytes >= budget_bytes && self.segment_from(at.segment).is_some() {
                report.next = Some(at);
                return Ok(report);
            }
        }
    }

    fn segment_from(&self, number: u64) -> Option<Arc<Segment>> {
        self.segments.read().range(number..).next().map(|(_, s)| s.clone())
    }

    /// Checks one segment from `offset` on. Returns the offset where it stopped, or `None` at the end.
    fn scrub_segment(
        &self,
        segment: &Segment,
        offset: u64,
        budget_bytes: u64,
        report: &mut ScrubReport,
        buf: &mut Vec<u8>,
    ) -> Result<Option<u64>, StoreError> {
        let end = segment.durable_end();
        // Read from the medium, not from the cache.
        segment.file.drop_cache(0, end);
        if offset == 0 {
            self.scrub_header(segment, report);
        }
        let from = offset.max(SEGMENT_HEADER_BYTES);
        let place = self.place(segment.number);
        let mut scanner = Scanner::new(&*segment.file, place, from, end, segment.after_sequence);
        while let Some(item) = scanner.next()? {
            match item {
                Item::Record { offset, header } => {
                    report.records += 1;
                    report.bytes += header.total_bytes();
                    if let Some(damage) = check_payload(&*segment.file, offset, &header, buf) {
                        let entry = entry_of(&header, segment.number, offset);
                        let live = self.index()?.get(entry.id)? == Some(entry);
                        report.findings.push(Finding::of_record(&entry, live, damage));
                    }
                }
                Item::Gap { from, to, damage } => {
                    report.bytes += to - from;
                    let stale_cursor = from == offset;
                    self.gap_findings(segment, from, to, &damage, stale_cursor, &mut report.findings)?;
                }
            }
            if report.bytes >= budget_bytes {
                return Ok(Some(scanner.position()));
            }
        }
        Ok(None)
    }

    fn scrub_header(&self, segment: &Segment, report: &mut ScrubReport) {
        let mut bytes = vec![0; SEGMENT_HEADER_BYTES as usize];
        report.bytes += SEGMENT_HEADER_BYTES;
        if segment.file.read_at(0, &mut bytes).is_err() || SegmentHeader::decode(&bytes).is_err() {
            self.mark_damaged(segment);
            let finding = Finding::of_stretch(segment.number, 0, SEGMENT_HEADER_BYTES, Damage::SegmentHeader);
            report.findings.push(finding);
        }
    }

    /// Checks each record that the index places in a stretch without a valid record. A cursor from before a restart may
    /// point into a record; then nothing is wrong.
    fn gap_findings(
        &self,
        segment: &Segment,
        from: u64,
        to: u64,
        damage: &Damage,
        stale_cursor: bool,
        findings: &mut Vec<Finding>,
    ) -> Result<(), StoreError> {
        let held = self.held_in(segment.number, from, to)?;
        let bad: Vec<_> = held.iter().filter(|entry| self.verify(entry).is_err()).collect();
        if bad.is_empty() && (stale_cursor || !held.is_empty()) {
            return Ok(());
        }
        self.mark_damaged(segment);
        if bad.is_empty() {
            findings.push(Finding::of_stretch(segment.number, from, to - from, damage.clone()));
        }
        findings.extend(bad.into_iter().map(|entry| Finding::of_record(entry, true, damage.clone())));
        Ok(())
    }

    /// Marks a segment as damaged: it may hide records that the ledger lacks. The index learns of it with the next
    /// change.
    fn mark_damaged(&self, segment: &Segment) {
        segment.set_damaged();
        self.writer.lock().ledger.dirty_segments.insert(segment.number);
    }
}
