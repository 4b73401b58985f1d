//! The ledger of live and dead records. Opening enters the records it scans; a sync enters the records it made durable.
//!
//! A record is *live* while it decides the state of its fragment: the newest put, or a delete record that an older
//! record on the disk still needs (P3). All others are dead, and compaction may remove them. A segment's live bytes are
//! the bytes of its live records, so every record is entered exactly once.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use crate::index::{Changes, Entry, FragmentId, IndexError, Point, SegmentRow};
use crate::segment::Segment;
use crate::tombstones::Tombstones;

/// The segments of a disk by their numbers.
pub(crate) type Segments = BTreeMap<u64, Arc<Segment>>;

/// Entries of the index with the changes of one batch on top.
#[derive(Default)]
pub(crate) struct Overlay {
    /// Entries as read from the index, then as changed.
    now: HashMap<FragmentId, Option<Entry>>,
    changed: BTreeMap<FragmentId, Option<Entry>>,
    added: i64,
}

impl Overlay {
    /// The entry, if the overlay has looked it up.
    pub(crate) fn get(&self, id: FragmentId) -> Option<Option<Entry>> {
        self.now.get(&id).copied()
    }

    /// Stores an entry as read from the index.
    pub(crate) fn looked_up(&mut self, id: FragmentId, entry: Option<Entry>) {
        self.now.entry(id).or_insert(entry);
    }

    /// Sets or removes an entry; returns the previous one.
    fn set(&mut self, id: FragmentId, entry: Option<Entry>) -> Option<Entry> {
        assert!(entry.is_none_or(|e| e.id == id), "the entry of another fragment is set for {id}");
        assert!(self.now.contains_key(&id), "{id} is changed before it was looked up");
        let old = self.now.insert(id, entry).flatten();
        self.changed.insert(id, entry);
        self.added += i64::from(entry.is_some()) - i64::from(old.is_some());
        assert!(self.added.unsigned_abs() <= self.changed.len() as u64, "more entries added than changed");
        old
    }
}

/// Which records are live, and which of these facts the index lacks.
#[derive(Default)]
pub(crate) struct Ledger {
    pub(crate) tombstones: Tombstones,
    /// All records before this place are entered.
    pub(crate) point: Point,
    /// Segments whose index rows are out of date.
    pub(crate) dirty_segments: BTreeSet<u64>,
}

impl Ledger {
    /// The ledger that an index kept.
    pub(crate) fn recovered(point: Point, tombstones: Tombstones) -> Self {
        Ledger { tombstones, point, dirty_segments: BTreeSet::new() }
    }

    /// Enters a put that is newer than every other record of its fragment.
    pub(crate) fn put(&mut self, segments: &Segments, overlay: &mut Overlay, entry: Entry) -> Result<(), IndexError> {
        self.live(segments, &entry)?;
        if let Some(delete) = self.tombstones.take_delete(entry.id) {
            self.dead(segments, &delete)?;
        }
        if let Some(old) = overlay.set(entry.id, Some(entry)) {
            self.dead(segments, &old)?;
            self.tombstones.add_copy(entry.id);
        }
        assert!(self.tombstones.delete_of(entry.id).is_none(), "{} is held and deleted", entry.id);
        Ok(())
    }

    /// Enters a delete record that is newer than every other record of its fragment.
    pub(crate) fn delete(
        &mut self,
        segments: &Segments,
        overlay: &mut Overlay,
        delete: Entry,
    ) -> Result<(), IndexError> {
        if let Some(old) = overlay.get(delete.id).flatten() {
            overlay.set(delete.id, None);
            self.dead(segments, &old)?;
            self.tombstones.add_copy(delete.id);
        }
        self.live(segments, &delete)?;
        if let Some(old) = self.tombstones.set_delete(delete) {
            self.dead(segments, &old)?;
        }
        assert!(overlay.get(delete.id).flatten().is_none(), "{} is deleted and held", delete.id);
        Ok(())
    }

    /// Enters a copy of the put at `from` that compaction wrote. The copy is dead at once if a newer record has
    /// replaced that put.
    pub(crate) fn move_put(
        &mut self,
        segments: &Segments,
        overlay: &mut Overlay,
        to: Entry,
        from: (u64, u64),
    ) -> Result<(), IndexError> {
        assert!((to.segment, to.offset) > from, "{}: a record moves to a higher place", to.id);
        self.tombstones.add_copy(to.id);
        let current = overlay.get(to.id).flatten().filter(|e| (e.segment, e.offset) == from);
        if let Some(old) = current {
            assert!(to.record_bytes() == old.record_bytes(), "{}: a copy has the length of its record", to.id);
            self.live(segments, &to)?;
            self.dead(segments, &old)?;
            overlay.set(to.id, Some(to));
        }
        Ok(())
    }

    /// Enters a copy of the delete record at `from` that compaction wrote. Does nothing if that delete record is no
    /// longer needed.
    pub(crate) fn move_delete(&mut self, segments: &Segments, to: Entry, from: (u64, u64)) -> Result<(), IndexError> {
        if self.tombstones.move_delete(to, from) {
            self.live(segments, &to)?;
            self.dead(segments, &Entry { segment: from.0, offset: from.1, ..to })?;
        }
        Ok(())
    }

    /// Marks a record live.
    fn live(&mut self, segments: &Segments, entry: &Entry) -> Result<(), IndexError> {
        let Some(segment) = segments.get(&entry.segment) else { return Ok(()) };
        self.dirty_segments.insert(entry.segment);
        if segment.add_live(entry.record_bytes()) { Ok(()) } else { Err(contradiction(segment)) }
    }

    /// Marks a record dead.
    ///
    /// # Errors
    /// [`IndexError::Contradicts`]: the segment has fewer live bytes than the record, so a row of an earlier index was
    /// wrong.
    pub(crate) fn dead(&mut self, segments: &Segments, entry: &Entry) -> Result<(), IndexError> {
        let Some(segment) = segments.get(&entry.segment) else { return Ok(()) };
        self.dirty_segments.insert(entry.segment);
        if segment.sub_live(entry.record_bytes()) { Ok(()) } else { Err(contradiction(segment)) }
    }

    /// Notes that everything before `point` is entered.
    pub(crate) fn advance(&mut self, point: Point) {
        let place = |p: Point| (p.segment, p.offset);
        assert!(place(point) >= place(self.point), "the point goes back from {:?} to {point:?}", self.point);
        self.point = point;
        self.dirty_segments.insert(point.segment);
    }

    /// The changes for the index: the entries of a batch, and all other rows that changed with them.
    pub(crate) fn take_changes(&mut self, segments: &Segments, overlay: Overlay) -> Changes {
        let row = |number| (number, segments.get(&number).map(|s| self.row_of(s)));
        Changes {
            entries: overlay.changed,
            added: overlay.added,
            segments: self.dirty_segments.iter().map(|&number| row(number)).collect(),
            point: Some(self.point),
            tombstones: {
                self.dirty_segments.clear();
                self.tombstones.take_changes()
            },
        }
    }

    /// The index row of a segment once everything before the point is entered.
    fn row_of(&self, segment: &Segment) -> SegmentRow {
        let at_point = segment.number == self.point.segment;
        SegmentRow {
            end: if at_point { self.point.offset } else { segment.end() },
            live_bytes: segment.live_bytes(),
            damaged: segment.is_damaged(),
            sealed: segment.size_limit_bytes == 0,
        }
    }
}

fn contradiction(segment: &Segment) -> IndexError {
    IndexError::Contradicts { segment: segment.number }
}
