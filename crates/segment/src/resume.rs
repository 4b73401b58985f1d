//! Resuming from an index that survived a restart.
//!
//! The index stores the point up to which records are entered, and the state of every segment at that point. If the
//! segments match, only records after the point are read. If anything differs (a segment is missing or has another
//! length, the index is damaged), the index is dropped and all segments are read: the index is a cache, and the
//! segments decide.

use crate::error::{Damage, OpenError};
use crate::format::SEGMENT_HEADER_BYTES;
use crate::index::IndexState;
use crate::ledger::Ledger;
use crate::open::{OpenProgress, Opening, ScanStart, SegmentFile};
use crate::tombstones::Tombstones;

impl Opening {
    /// Resumes from the state of the index. Returns false if the index has no usable state.
    pub(crate) fn resume(
        &mut self,
        headed: &[SegmentFile],
        progress: &mut dyn FnMut(OpenProgress),
    ) -> Result<bool, OpenError> {
        if self.index.failed() {
            return Ok(false);
        }
        let recovered = match self.index.recover(&self.identity) {
            Ok(Some(recovered)) => recovered,
            Ok(None) => return Ok(false),
            Err(e) => {
                self.report.index_lost = Some(e.to_string());
                return Ok(false);
            }
        };
        self.report.index_lost = misfit(&recovered, headed)?;
        if self.report.index_lost.is_some() {
            return Ok(false);
        }
        match self.resume_from(recovered, headed, progress) {
            Ok(()) => self.report.resumed = true,
            Err(OpenError::Index(e)) => self.report.index_lost = Some(e.to_string()),
            Err(e) => return Err(e),
        }
        Ok(self.report.resumed)
    }

    fn resume_from(
        &mut self,
        recovered: IndexState,
        headed: &[SegmentFile],
        progress: &mut dyn FnMut(OpenProgress),
    ) -> Result<(), OpenError> {
        let IndexState { point, segments, tombstones } = recovered;
        self.ledger = Ledger::recovered(point, Tombstones::recovered(tombstones));
        self.next_sequence = point.next_sequence;
        for (at, it) in headed.iter().enumerate() {
            let row = segments.get(&it.number).filter(|_| it.number <= point.segment);
            let start = row.map(|&row| ScanStart { row, from: row.end, after_sequence: point.next_sequence - 1 });
            if let Some(ScanStart { row, .. }) = &start
                && row.damaged
            {
                self.report_known_damage(it, row.end)?;
            }
            self.segment(it, start, at + 1 == headed.len())?;
            self.tell(progress, at, headed.len());
        }
        Ok(self.drop_unneeded_tombstones()?)
    }

    /// Finds and reports the damage before the point.
    fn report_known_damage(&mut self, it: &SegmentFile, end: u64) -> Result<(), OpenError> {
        let after_sequence = it.header.map_or(0, |h| h.after_sequence);
        self.scan(it.number, &*it.file, SEGMENT_HEADER_BYTES..end, after_sequence, false)?;
        Ok(())
    }
}

/// The first difference between the segments and the index's state.
fn misfit(recovered: &IndexState, headed: &[SegmentFile]) -> Result<Option<String>, OpenError> {
    let point = recovered.point;
    let known = || recovered.segments.iter().filter(|(number, _)| **number <= point.segment);
    let gone = known().find(|(number, _)| headed.binary_search_by_key(*number, |it| it.number).is_err());
    if let Some((number, _)) = gone {
        return Ok(Some(format!("index: segment {number:016x} is gone")));
    }
    if point.segment != 0 && recovered.segments.get(&point.segment).is_none_or(|row| row.end != point.offset) {
        return Ok(Some(format!("index: its row of segment {:016x}, where its point is, is gone", point.segment)));
    }
    for it in headed.iter().filter(|it| it.number <= point.segment) {
        let Some(row) = recovered.segments.get(&it.number) else {
            return Ok(Some(format!("index: it has no row of segment {:016x}", it.number)));
        };
        let len = it.file.len()?.max(SEGMENT_HEADER_BYTES);
        let grown = it.number == point.segment && len > row.end;
        if len != row.end && !grown {
            return Ok(Some(format!("index: segment {:016x} has {len} bytes, not {}", it.number, row.end)));
        }
        if row.end < SEGMENT_HEADER_BYTES || row.live_bytes > row.end - SEGMENT_HEADER_BYTES {
            return Ok(Some(format!("index: {} bytes of segment {:016x} cannot be live", row.live_bytes, it.number)));
        }
        if it.header.is_none() && !row.damaged {
            return Ok(Some(format!("index: segment {:016x}: {}", it.number, Damage::SegmentHeader)));
        }
    }
    Ok(None)
}
