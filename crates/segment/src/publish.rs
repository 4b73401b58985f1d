//! From staged to visible: what a sync made durable goes into the index, as one change of it.
//!
//! Look-ups come first: they may fail, and then nothing has changed and the records stay staged. From there on nothing fails halfway: the index
//! keeps what it cannot write.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use tessera_failpoint as failpoint;

use crate::error::StoreError;
use crate::index::{Changes, Entry, FragmentId, Point, SegmentRow};
use crate::segment::Segment;
use crate::store::SegmentStore;
use crate::writer::{Staged, Writer};

/// Entries as they become while records are taken in.
#[derive(Default)]
pub(crate) struct Overlay {
    /// As looked up, then as changed.
    now: HashMap<FragmentId, Option<Entry>>,
    changed: BTreeMap<FragmentId, Option<Entry>>,
    added: i64,
}

impl Overlay {
    /// The entry, if it was looked up.
    pub(crate) fn get(&self, id: FragmentId) -> Option<Option<Entry>> {
        self.now.get(&id).copied()
    }

    pub(crate) fn looked_up(&mut self, id: FragmentId, entry: Option<Entry>) {
        self.now.entry(id).or_insert(entry);
    }

    /// Sets or removes an entry; gives the one before.
    pub(crate) fn set(&mut self, id: FragmentId, entry: Option<Entry>) -> Option<Entry> {
        let old = self.now.insert(id, entry).flatten();
        self.changed.insert(id, entry);
        self.added += i64::from(entry.is_some()) - i64::from(old.is_some());
        old
    }

    /// What has changed, to be completed.
    pub(crate) fn into_changes(self) -> Changes {
        Changes { entries: self.changed, added: self.added, ..Changes::default() }
    }
}

/// What the index is to know of a segment when it has taken in everything up to `point`.
pub(crate) fn row_of(segment: &Segment, point: Point) -> SegmentRow {
    SegmentRow {
        end: if segment.number == point.segment { point.offset } else { segment.end() },
        live_bytes: segment.live_bytes(),
        damaged: segment.is_damaged(),
        sealed: segment.size_limit_bytes == 0,
    }
}

impl SegmentStore {
    /// Makes visible what is durable now: staged records with sequences below `point.next_sequence`, all before its place.
    pub(crate) fn publish(&self, writer: &mut Writer, point: Point) -> Result<(), StoreError> {
        if point.next_sequence <= writer.point.next_sequence && point.segment <= writer.point.segment {
            // A rotation came first and has published it all.
            return Ok(());
        }
        let count = writer.staged.partition_point(|s| s.entry().sequence < point.next_sequence);
        let mut overlay = self.look_up(&writer.staged[..count])?;
        let published: Vec<Staged> = writer.staged.drain(..count).collect();
        for staged in published {
            let id = staged.entry().id;
            if writer.staged_ids.get(&id).is_some_and(|s| s.entry().sequence < point.next_sequence) {
                writer.staged_ids.remove(&id);
            }
            self.publish_one(writer, &mut overlay, staged);
        }
        writer.point = point;
        writer.touched.insert(point.segment);
        self.apply(writer, overlay.into_changes())
    }

    fn look_up(&self, staged: &[Staged]) -> Result<Overlay, StoreError> {
        let ids: BTreeSet<FragmentId> = staged.iter().map(|s| s.entry().id).collect();
        let ids: Vec<FragmentId> = ids.into_iter().collect();
        let entries = self.index.read().get_many(&ids)?;
        let mut overlay = Overlay::default();
        ids.into_iter().zip(entries).for_each(|(id, entry)| overlay.looked_up(id, entry));
        Ok(overlay)
    }

    /// Tells the index what has changed, all at once.
    pub(crate) fn apply(&self, writer: &mut Writer, changes: Changes) -> Result<(), StoreError> {
        let mut changes = Changes { graves: writer.graves.take_changes(), point: Some(writer.point), ..changes };
        let segments = self.segments.read();
        for number in std::mem::take(&mut writer.touched) {
            changes.segments.insert(number, segments.get(&number).map(|s| row_of(s, writer.point)));
        }
        drop(segments);
        if failpoint::is_active("segment.index_forgets_tombstones") {
            changes.graves.clear();
        }
        if failpoint::is_active("segment.index_forgets_entries") {
            changes.entries.retain(|id, _| id.chunk_id % 7 != 0);
        }
        Ok(self.index.read().apply(&changes)?)
    }

    fn publish_one(&self, writer: &mut Writer, overlay: &mut Overlay, staged: Staged) {
        match staged {
            Staged::Put(entry) => {
                self.live(writer, &entry);
                if let Some(tombstone) = writer.graves.take_tombstone(entry.id) {
                    self.dead(writer, &tombstone);
                }
                if let Some(old) = overlay.set(entry.id, Some(entry)) {
                    self.dead(writer, &old);
                    writer.graves.add_copy(entry.id);
                }
            }
            Staged::Delete(entry) => {
                if let Some(old) = overlay.get(entry.id).flatten() {
                    overlay.set(entry.id, None);
                    self.dead(writer, &old);
                    writer.graves.add_copy(entry.id);
                }
                self.live(writer, &entry);
                if let Some(tombstone) = writer.graves.bury(entry) {
                    self.dead(writer, &tombstone);
                }
            }
            Staged::Move { to, from } => {
                let current = overlay.get(to.id).flatten().filter(|e| (e.segment, e.offset) == from);
                // Overtaken by a newer record: the copy is dead at birth.
                writer.graves.add_copy(to.id);
                if let Some(old) = current {
                    self.live(writer, &to);
                    self.dead(writer, &old);
                    overlay.set(to.id, Some(to));
                }
            }
            Staged::MoveDelete { to, from } => {
                if writer.graves.move_tombstone(to, from) {
                    self.live(writer, &to);
                    self.dead(writer, &Entry { segment: from.0, offset: from.1, ..to });
                }
            }
        }
    }

    fn live(&self, writer: &mut Writer, entry: &Entry) {
        if let Some(segment) = self.segment(entry.segment) {
            segment.add_live(entry.record_bytes());
            writer.touched.insert(entry.segment);
        }
    }

    pub(crate) fn dead(&self, writer: &mut Writer, entry: &Entry) {
        if let Some(segment) = self.segment(entry.segment) {
            segment.sub_live(entry.record_bytes());
            writer.touched.insert(entry.segment);
        }
    }
}
