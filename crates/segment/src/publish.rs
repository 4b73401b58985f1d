//! Publishing: enters the records that a sync made durable into the index, as one change.
//!
//! Look-ups come first: if one fails, nothing has changed and the records stay staged. After the look-ups nothing can
//! fail: the index keeps in memory what it cannot write.

use std::collections::BTreeSet;

use tessera_failpoint as failpoint;

use crate::error::StoreError;
use crate::format::RecordKind;
use crate::index::{FragmentId, Point};
use crate::ledger::Overlay;
use crate::store::SegmentStore;
use crate::writer::{StagedRecord, Writer};

impl SegmentStore {
    /// Publishes the durable records: staged ones with sequences below `point.next_sequence`, all of which lie before
    /// the point.
    pub(crate) fn publish(&self, writer: &mut Writer, point: Point) -> Result<(), StoreError> {
        let published = writer.ledger.point;
        if point.next_sequence <= published.next_sequence && point.segment <= published.segment {
            // A rotation has already published these records.
            return Ok(());
        }
        assert!(point.next_sequence <= writer.next_sequence, "{point:?} is beyond what was written");
        let count = writer.staged.partition_point(|s| s.entry.sequence < point.next_sequence);
        let mut overlay = self.look_up(&writer.staged[..count])?;
        let records: Vec<StagedRecord> = writer.staged.drain(..count).collect();
        for record in records {
            let entry = record.entry;
            assert!(entry.sequence >= published.next_sequence, "{} would be published twice", entry.id);
            if writer.staged_ids.get(&entry.id).is_some_and(|s| s.entry.sequence < point.next_sequence) {
                writer.staged_ids.remove(&entry.id);
            }
            self.enter(writer, &mut overlay, record);
        }
        assert!(writer.staged.len() >= writer.staged_ids.len(), "a fragment is staged without a record");
        writer.ledger.advance(point);
        self.apply(writer, overlay)
    }

    fn look_up(&self, staged: &[StagedRecord]) -> Result<Overlay, StoreError> {
        assert!(staged.is_sorted_by_key(|s| s.entry.sequence), "staged records are out of order");
        let ids: BTreeSet<FragmentId> = staged.iter().map(|s| s.entry.id).collect();
        let ids: Vec<FragmentId> = ids.into_iter().collect();
        let entries = self.index()?.get_many(&ids)?;
        assert!(entries.len() == ids.len(), "the index answers {} of {} look-ups", entries.len(), ids.len());
        let mut overlay = Overlay::default();
        ids.into_iter().zip(entries).for_each(|(id, entry)| overlay.looked_up(id, entry));
        Ok(overlay)
    }

    /// Applies all changes to the index atomically.
    pub(crate) fn apply(&self, writer: &mut Writer, overlay: Overlay) -> Result<(), StoreError> {
        let mut changes = writer.ledger.take_changes(&self.segments.read(), overlay);
        if failpoint::is_active("segment.index_forgets_tombstones") {
            changes.tombstones.clear();
        }
        if failpoint::is_active("segment.index_forgets_entries") {
            changes.entries.retain(|id, _| id.chunk_id % 7 != 0);
        }
        Ok(self.index()?.apply(&changes)?)
    }

    /// Enters one record into the ledger.
    fn enter(&self, writer: &mut Writer, overlay: &mut Overlay, record: StagedRecord) {
        let (ledger, segments) = (&mut writer.ledger, self.segments.read());
        let entry = record.entry;
        let entered = match (record.kind, record.from) {
            (RecordKind::Fragment, None) => ledger.put(&segments, overlay, entry),
            (RecordKind::Delete, None) => ledger.delete(&segments, overlay, entry),
            (RecordKind::Fragment, Some(from)) => ledger.move_put(&segments, overlay, entry, from),
            (RecordKind::Delete, Some(from)) => ledger.move_delete(&segments, entry, from),
        };
        assert!(entered.is_ok(), "{}: {entered:?}", entry.id);
    }
}
