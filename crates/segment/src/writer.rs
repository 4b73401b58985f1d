//! Append, delete, sync: how records reach the open segment and then the index.
//!
//! A record is *written* (one gathered write a batch), *staged* (remembered, invisible), and
//! *published* (visible in the index) once a sync has covered it. A write that fails is cut off
//! again; if even that fails, it is tried again before the next write, and the next sync syncs.

use std::collections::{BTreeSet, HashMap};
use std::io::IoSlice;
use std::sync::Arc;

use tessera_disk::{DiskError, OpenMode};
use tessera_failpoint as failpoint;

use crate::error::StoreError;
use crate::format::{ALIGN, OFFSET_MAX, RecordHeader, RecordKind, RecordMeta, SEGMENT_HEADER_BYTES, SegmentHeader};
use crate::graves::Graves;
use crate::index::{Entry, FragmentId, Point};
use crate::segment::{SEGMENTS_DIR, Segment};
use crate::store::{Appended, DeleteOrder, Deleted, Record, SegmentStore};

static PADDING: [u8; ALIGN as usize] = [0; ALIGN as usize];

/// Written and not yet synced.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Staged {
    Put(Entry),
    Delete(Entry),
    /// A living record that compaction copied from another place.
    Move {
        to: Entry,
        from: (u64, u64),
    },
    /// A delete record that compaction copied.
    MoveDelete {
        to: Entry,
        from: (u64, u64),
    },
}

impl Staged {
    pub(crate) fn entry(&self) -> &Entry {
        match self {
            Staged::Put(e) | Staged::Delete(e) => e,
            Staged::Move { to, .. } | Staged::MoveDelete { to, .. } => to,
        }
    }
}

/// What the one writer of a disk knows.
pub(crate) struct Writer {
    /// The segment that is appended to; none before the first append.
    pub(crate) open: Option<Arc<Segment>>,
    pub(crate) next_segment: u64,
    pub(crate) next_sequence: u64,
    /// Bytes that may be appended before free space is asked for again.
    pub(crate) granted_bytes: u64,
    /// A failed write may have left bytes behind the end.
    pub(crate) tail_dirty: bool,
    /// Something must be synced although nothing is staged: a cut-off tail.
    pub(crate) sync_needed: bool,
    pub(crate) staged: Vec<Staged>,
    /// The newest staged word on a fragment.
    pub(crate) staged_ids: HashMap<FragmentId, Staged>,
    pub(crate) graves: Graves,
    /// Up to where the index has taken records in.
    pub(crate) point: Point,
    /// Segments of which the index does not know what they are like now.
    pub(crate) touched: BTreeSet<u64>,
}

/// Free space is asked for at least once in so many bytes appended.
const MAX_GRANT_BYTES: u64 = 64 << 20;

/// A record about to be written, wherever its bytes come from.
pub(crate) struct Outgoing<'a> {
    pub(crate) kind: RecordKind,
    pub(crate) id: FragmentId,
    pub(crate) meta: RecordMeta,
    pub(crate) groups: &'a [u8],
    pub(crate) groups_crc: u32,
    pub(crate) data: &'a [u8],
    pub(crate) data_crc: u32,
    /// Where compaction found it.
    pub(crate) from: Option<(u64, u64)>,
}

impl Outgoing<'_> {
    fn bytes(&self) -> u64 {
        crate::format::record_bytes(self.groups.len() as u64, self.data.len() as u64)
    }

    fn staged(&self, entry: Entry) -> Staged {
        match (self.kind, self.from) {
            (RecordKind::Fragment, None) => Staged::Put(entry),
            (RecordKind::Delete, None) => Staged::Delete(entry),
            (RecordKind::Fragment, Some(from)) => Staged::Move { to: entry, from },
            (RecordKind::Delete, Some(from)) => Staged::MoveDelete { to: entry, from },
        }
    }
}

impl SegmentStore {
    /// Appends fragments to the open segment in one gathered write (one more for each segment it
    /// fills). Nothing of it is visible, and nothing may be acknowledged, before [`SegmentStore::sync`]
    /// returns. The answers are in the order of the batch. A fragment that is held already with
    /// the same checksum, and whose copy proves sound when read, is not written again (P8).
    ///
    /// # Errors
    /// [`StoreError::Full`] or the disk's error. The store is as before, except that a leading part of the
    /// batch may be held, as if it had been appended alone; sending the batch again is right.
    pub fn append(&self, batch: &[Record<'_>]) -> Result<Vec<Appended>, StoreError> {
        for record in batch {
            check_lengths(record)?;
        }
        let mut writer = self.writer.lock();
        let mut outcomes = Vec::with_capacity(batch.len());
        let mut outgoing: Vec<Outgoing<'_>> = Vec::with_capacity(batch.len());
        let mut slots = Vec::with_capacity(batch.len());
        let mut batch_ids: HashMap<FragmentId, usize> = HashMap::new();
        for (slot, record) in batch.iter().enumerate() {
            if let Some(&first) = batch_ids.get(&record.id) {
                // The same fragment twice in one batch: the first decides; its place is filled in below.
                let same = batch[first].data_crc == record.data_crc && batch[first].data.len() == record.data.len();
                outcomes.push(if same { None } else { Some(Appended::Conflict { held_crc: batch[first].data_crc }) });
                continue;
            }
            let known = self.known(&writer, record)?;
            if known.is_none() {
                batch_ids.insert(record.id, slot);
                slots.push(slot);
                outgoing.push(Outgoing {
                    kind: RecordKind::Fragment,
                    id: record.id,
                    meta: record.meta,
                    groups: record.groups,
                    groups_crc: tessera_accel::checksum::crc32c(record.groups),
                    data: record.data,
                    data_crc: record.data_crc,
                    from: None,
                });
            }
            outcomes.push(known);
        }
        let needed_bytes: u64 = outgoing.iter().map(Outgoing::bytes).sum();
        if needed_bytes > 0 {
            self.check_reserve(&mut writer, needed_bytes)?;
        }
        let entries = self.write(&mut writer, &outgoing)?;
        let written: HashMap<usize, Entry> = slots.into_iter().zip(entries).collect();
        let done = outcomes.into_iter().enumerate().map(|(slot, outcome)| match (outcome, written.get(&slot)) {
            (Some(outcome), _) => outcome,
            (None, Some(entry)) => Appended::Written(*entry),
            (None, None) => Appended::AlreadyHeld(written[&batch_ids[&batch[slot].id]]),
        });
        Ok(done.collect())
    }

    /// Deletes fragments: writes a delete record for each that is held. Gone once [`SegmentStore::sync`]
    /// returns, and for good (P3), unless the order names an epoch: then until a put under a newer one.
    /// Works on a full disk while any of the reserve is left.
    pub fn delete(&self, orders: &[DeleteOrder], written_ms: u64) -> Result<Vec<Deleted>, StoreError> {
        let mut writer = self.writer.lock();
        let mut outcomes = Vec::with_capacity(orders.len());
        let mut outgoing: Vec<Outgoing<'_>> = Vec::new();
        let mut seen = std::collections::HashSet::new();
        for &DeleteOrder { id, pg_id, epoch } in orders {
            let held = match writer.staged_ids.get(&id) {
                Some(Staged::Put(e) | Staged::Move { to: e, .. }) => Some(*e),
                Some(Staged::Delete(_) | Staged::MoveDelete { .. }) => None,
                None => self.index.read().get(id)?,
            };
            let meant = held.is_some_and(|e| epoch == 0 || self.epoch_of(&e).is_none_or(|written| written <= epoch));
            if !meant || !seen.insert(id) {
                outcomes.push(Deleted::NotHeld);
                continue;
            }
            outcomes.push(Deleted::Removed);
            outgoing.push(Outgoing {
                kind: RecordKind::Delete,
                id,
                meta: RecordMeta { pg_id, epoch, written_ms, ..RecordMeta::default() },
                groups: &[],
                groups_crc: 0,
                data: &[],
                data_crc: 0,
                from: None,
            });
        }
        self.write(&mut writer, &outgoing)?;
        Ok(outcomes)
    }

    /// Makes everything appended and deleted so far durable, then visible. Only after this returns
    /// may the caller acknowledge (P9). Does nothing if there is nothing. Appends go on meanwhile.
    ///
    /// # Errors
    /// The disk's. It is poisoned then, and what was not synced is neither visible nor may it be
    /// acknowledged: open the store anew, or give the disk up.
    pub fn sync(&self) -> Result<(), StoreError> {
        let _turn = self.sync_turn.lock();
        let (segment, point) = {
            let mut writer = self.writer.lock();
            self.cut_failed_write(&mut writer)?;
            if writer.staged.is_empty() && !writer.sync_needed {
                return Ok(());
            }
            let Some(open) = writer.open.clone() else { return Ok(()) };
            writer.sync_needed = false;
            let point = Point { segment: open.number, offset: open.end(), next_sequence: writer.next_sequence };
            (open, point)
        };
        if !failpoint::is_active("segment.ack_before_sync") {
            segment.file.sync_data()?;
        }
        let mut writer = self.writer.lock();
        // Only what was written when the sync began; a rotation may have published some of it already.
        segment.set_durable_end(segment.durable_end().max(point.offset));
        self.publish(&mut writer, point)
    }

    /// What is known of a fragment that is to be appended; `None` if it must be written.
    fn known(&self, writer: &Writer, record: &Record<'_>) -> Result<Option<Appended>, StoreError> {
        let same = |e: &Entry| e.data_crc == record.data_crc && e.data_len as usize == record.data.len();
        match writer.staged_ids.get(&record.id) {
            Some(Staged::Put(e) | Staged::Move { to: e, .. }) if same(e) => return Ok(Some(Appended::AlreadyHeld(*e))),
            Some(Staged::Put(e) | Staged::Move { to: e, .. }) => {
                return Ok(Some(Appended::Conflict { held_crc: e.data_crc }));
            }
            Some(Staged::Delete(e) | Staged::MoveDelete { to: e, .. }) => return Ok(self.refuse_deleted(record, e)),
            None => {}
        }
        if let Some(entry) = self.index.read().get(record.id)? {
            // Never acknowledge a copy unseen: a repair of rot must not be taken for a retry (P8, P13).
            let sound = failpoint::is_active("segment.trust_duplicates") || self.verify(&entry).is_ok();
            return Ok(match (sound, same(&entry)) {
                (_, false) => Some(Appended::Conflict { held_crc: entry.data_crc }),
                (true, true) => Some(Appended::AlreadyHeld(entry)),
                (false, true) => None,
            });
        }
        Ok(writer.graves.tombstone(record.id).and_then(|tombstone| self.refuse_deleted(record, tombstone)))
    }

    /// A late put must not bring back what was deleted (P3). What the manager knows of may: a repair, or a put under
    /// a newer epoch than that in which the fragment was found not to belong here (it moved away and comes back).
    fn refuse_deleted(&self, record: &Record<'_>, tombstone: &Entry) -> Option<Appended> {
        let epoch = self.epoch_of(tombstone).unwrap_or(0);
        let comes_back = record.meta.session_id == 0 || (epoch != 0 && record.meta.epoch > epoch);
        (!comes_back).then_some(Appended::Deleted)
    }

    /// Epoch of a record, from its header; `None` if that cannot be read.
    fn epoch_of(&self, entry: &Entry) -> Option<u64> {
        let file = self.segment(entry.segment)?.file.clone();
        let handle = crate::handle::FragmentHandle::new(*entry, file, self.identity.disk_uuid);
        handle.read_header().ok().map(|header| header.meta.epoch)
    }

    /// Bytes that may still be appended, in bytes: what is free beyond the reserve.
    pub fn spare_bytes(&self) -> Result<u64, DiskError> {
        Ok(self.disk.space()?.free_bytes.saturating_sub(self.options.reserve_bytes))
    }

    /// Leaves the reserve alone. Asking the file system costs as much as a small append, so one answer is good for
    /// some bytes: few enough that whoever fills the disk beside us meanwhile leaves most of the reserve.
    fn check_reserve(&self, writer: &mut Writer, needed_bytes: u64) -> Result<(), StoreError> {
        if let Some(left) = writer.granted_bytes.checked_sub(needed_bytes) {
            writer.granted_bytes = left;
            return Ok(());
        }
        writer.granted_bytes = 0;
        let free_bytes = self.disk.space()?.free_bytes;
        let reserve_bytes = self.options.reserve_bytes;
        if let Some(spare_bytes) = free_bytes.checked_sub(needed_bytes.saturating_add(reserve_bytes)) {
            writer.granted_bytes = (spare_bytes / 16).min(reserve_bytes / 4).min(MAX_GRANT_BYTES);
            return Ok(());
        }
        Err(StoreError::Full { disk: self.disk.describe(), free_bytes, reserve_bytes, needed_bytes })
    }

    /// Writes and stages records; the entries are in their order.
    pub(crate) fn write(&self, writer: &mut Writer, records: &[Outgoing<'_>]) -> Result<Vec<Entry>, StoreError> {
        let mut entries = Vec::with_capacity(records.len());
        self.cut_failed_write(writer)?;
        let mut rest = records;
        while let Some(first) = rest.first() {
            let open = self.segment_with_room(writer, first.bytes())?;
            let mut end = open.end() + first.bytes();
            let fitting = rest[1..].iter().take_while(|r| {
                end += r.bytes();
                end <= open.size_limit_bytes
            });
            let count = 1 + fitting.count();
            self.write_run(writer, &open, &rest[..count], &mut entries)?;
            rest = &rest[count..];
        }
        Ok(entries)
    }

    /// One gathered write of records that fit into the open segment.
    fn write_run(
        &self,
        writer: &mut Writer,
        open: &Segment,
        run: &[Outgoing<'_>],
        entries: &mut Vec<Entry>,
    ) -> Result<(), StoreError> {
        let start = open.end();
        let mut end = start;
        let mut headers = Vec::with_capacity(run.len());
        let first = entries.len();
        for record in run {
            let header = RecordHeader {
                kind: record.kind,
                id: record.id,
                meta: record.meta,
                sequence: writer.next_sequence,
                data_len: record.data.len() as u32,
                groups_len: record.groups.len() as u32,
                data_crc: record.data_crc,
                groups_crc: record.groups_crc,
                synced_to: open.durable_end(),
            };
            writer.next_sequence += 1;
            headers.push(header.encode(self.place(open.number), end));
            entries.push(entry_of(&header, open.number, end));
            end += header.total_bytes();
        }
        let mut slices = Vec::with_capacity(run.len() * 4);
        for (record, header) in run.iter().zip(&headers) {
            let unpadded = header.len() + record.groups.len() + record.data.len();
            let padding = record.bytes() as usize - unpadded;
            slices.extend([&header[..], record.groups, record.data, &PADDING[..padding]].map(IoSlice::new));
        }
        if let Err(e) = open.file.write_vectored_at(start, &slices) {
            entries.truncate(first);
            writer.tail_dirty = !failpoint::is_active("segment.keep_failed_append");
            if !writer.tail_dirty {
                open.set_end(open.file.len()?.next_multiple_of(ALIGN));
            }
            // If this fails too, it is tried again before the next write.
            let _ = self.cut_failed_write(writer);
            return Err(e.into());
        }
        open.set_end(end);
        for (record, entry) in run.iter().zip(&entries[first..]) {
            let staged = record.staged(*entry);
            writer.staged.push(staged);
            writer.staged_ids.insert(entry.id, staged);
        }
        Ok(())
    }

    /// Removes what a failed write left behind the end, so that half a batch never shows.
    pub(crate) fn cut_failed_write(&self, writer: &mut Writer) -> Result<(), DiskError> {
        if let (true, Some(open)) = (writer.tail_dirty, &writer.open) {
            open.file.truncate(open.end())?;
            writer.tail_dirty = false;
            writer.sync_needed = true;
        }
        Ok(())
    }

    /// The open segment if `bytes` fit into it, else a new one.
    fn segment_with_room(&self, writer: &mut Writer, bytes: u64) -> Result<Arc<Segment>, StoreError> {
        if let Some(open) = &writer.open {
            let end = open.end();
            if end == SEGMENT_HEADER_BYTES || end + bytes <= open.size_limit_bytes {
                return Ok(open.clone());
            }
        }
        self.rotate(writer)
    }

    /// Seals the open segment and makes the next one, which exists before the old one can go: numbers are
    /// never used twice, also when nothing else is left on the disk.
    pub(crate) fn rotate(&self, writer: &mut Writer) -> Result<Arc<Segment>, StoreError> {
        self.cut_failed_write(writer)?;
        if let Some(open) = writer.open.clone() {
            // Only the last segment may have an unsynced tail.
            open.file.sync_data()?;
            open.set_durable_end(open.end());
            let point = Point { segment: open.number, offset: open.end(), next_sequence: writer.next_sequence };
            writer.sync_needed = false;
            self.publish(writer, point)?;
            // So that a restart has little more than the last segment to read. What fails here is tried again, and told by later changes.
            let _ = self.index.read().persist(false);
        }
        let segment = Arc::new(self.create_segment(writer)?);
        self.segments.write().insert(segment.number, segment.clone());
        writer.next_segment = segment.number + 1;
        writer.open = Some(segment.clone());
        Ok(segment)
    }

    /// Makes a segment file whose header and name are durable before the first record is written.
    fn create_segment(&self, writer: &Writer) -> Result<Segment, DiskError> {
        let header = SegmentHeader {
            cluster_id: self.identity.cluster_id,
            disk_uuid: self.identity.disk_uuid,
            number: writer.next_segment,
            size_limit_bytes: self.options.segment_size_bytes.min(OFFSET_MAX / 2),
            after_sequence: writer.next_sequence - 1,
        };
        let path = Segment::path(header.number);
        // A file of this number can only be left over from an attempt that failed half-way.
        let file = self.disk.open(&path, OpenMode::Create)?;
        let written = file.truncate(0).and_then(|()| file.write_at(0, &header.encode()));
        if let Err(e) = written {
            let _ = self.disk.remove(&path);
            return Err(e);
        }
        file.sync_data()?;
        self.disk.sync_dir(SEGMENTS_DIR)?;
        Ok(Segment::new(header.number, file, header.after_sequence, header.size_limit_bytes, SEGMENT_HEADER_BYTES))
    }
}

fn check_lengths(record: &Record<'_>) -> Result<(), StoreError> {
    let bad = |what, len: usize| StoreError::BadRecord { id: record.id, what, len_bytes: len as u64 };
    if u32::try_from(record.data.len()).is_err() {
        return Err(bad("data", record.data.len()));
    }
    if u32::try_from(record.groups.len()).is_err() || !record.groups.len().is_multiple_of(32) {
        return Err(bad("groups", record.groups.len()));
    }
    Ok(())
}

pub(crate) fn entry_of(header: &RecordHeader, segment: u64, offset: u64) -> Entry {
    Entry {
        id: header.id,
        pg_id: header.meta.pg_id,
        sequence: header.sequence,
        segment,
        offset,
        groups_len: header.groups_len,
        data_len: header.data_len,
        groups_crc: header.groups_crc,
        data_crc: header.data_crc,
    }
}
