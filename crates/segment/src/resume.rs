//! Going on where an index of an earlier life stopped.
//!
//! The index says up to which point it has taken records in, and what it then knew of every segment. If the segments are what it says, only
//! what lies behind the point is read. If anything does not fit (a segment is gone or has another length, the index is damaged), it is
//! thrown away and all segments are read: it is a cache, and this a way to save time, never a reason to believe it.

use crate::error::{Damage, OpenError};
use crate::format::SEGMENT_HEADER_BYTES;
use crate::graves::Graves;
use crate::index::Recovered;
use crate::open::{Headed, Known, OpenProgress, Opening};

impl Opening {
    /// Goes on from what the index kept. False: it kept nothing that can be used.
    pub(crate) fn resume(
        &mut self,
        headed: &[Headed],
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
        match self.go_on(recovered, headed, progress) {
            Ok(()) => self.report.resumed = true,
            Err(OpenError::Index(e)) => self.report.index_lost = Some(e.to_string()),
            Err(e) => return Err(e),
        }
        Ok(self.report.resumed)
    }

    fn go_on(
        &mut self,
        recovered: Recovered,
        headed: &[Headed],
        progress: &mut dyn FnMut(OpenProgress),
    ) -> Result<(), OpenError> {
        let Recovered { point, segments, graves } = recovered;
        self.graves = Graves::recovered(graves);
        (self.point, self.next_sequence) = (point, point.next_sequence);
        for (at, it) in headed.iter().enumerate() {
            let row = segments.get(&it.number).filter(|_| it.number <= point.segment);
            let known = row.map(|&row| Known { row, from: row.end, after_sequence: point.next_sequence - 1 });
            if let Some(Known { row, .. }) = &known
                && row.damaged
            {
                self.tell_damage_again(it, row.end)?;
            }
            self.segment(it, known, at + 1 == headed.len())?;
            self.tell(progress, at, headed.len());
        }
        Ok(self.close_graves()?)
    }

    /// What was found in an earlier life, and is still there.
    fn tell_damage_again(&mut self, it: &Headed, end: u64) -> Result<(), OpenError> {
        let after_sequence = it.header.map_or(0, |h| h.after_sequence);
        self.scan(it.number, &*it.file, SEGMENT_HEADER_BYTES..end, after_sequence, false)?;
        Ok(())
    }
}

/// In what the segments are not those that the index knew.
fn misfit(recovered: &Recovered, headed: &[Headed]) -> Result<Option<String>, OpenError> {
    let point = recovered.point;
    let known = || recovered.segments.iter().filter(|(number, _)| **number <= point.segment);
    let gone = known().find(|(number, _)| headed.binary_search_by_key(*number, |it| it.number).is_err());
    if let Some((number, _)) = gone {
        return Ok(Some(format!("index: segment {number:016x} is gone")));
    }
    if point.segment != 0 && recovered.segments.get(&point.segment).is_none_or(|row| row.end != point.offset) {
        return Ok(Some(format!("index: it says nothing of segment {:016x}, up to which it goes", point.segment)));
    }
    for it in headed.iter().filter(|it| it.number <= point.segment) {
        let Some(row) = recovered.segments.get(&it.number) else {
            return Ok(Some(format!("index: segment {:016x} is not known to it", it.number)));
        };
        let len = it.file.len()?.max(SEGMENT_HEADER_BYTES);
        let grown = it.number == point.segment && len > row.end;
        if len != row.end && !grown {
            return Ok(Some(format!("index: segment {:016x} has {len} bytes, not {}", it.number, row.end)));
        }
        if it.header.is_none() && !row.damaged {
            return Ok(Some(format!("index: segment {:016x}: {}", it.number, Damage::SegmentHeader)));
        }
    }
    Ok(None)
}
