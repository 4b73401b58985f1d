//! Append, delete and sync: how records reach the open segment, and then the index.
//!
//! A record is *written* (one gathered write per batch), then *staged* (remembered, invisible), then *published*
//! (visible in the index) once a sync has covered it. The bytes of a failed write are cut off. If the cut fails too,
//! the next write retries it first. The next sync covers the cut.

use std::collections::HashMap;
use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tessera_disk::{DiskError, record::create_file};
use tessera_failpoint as failpoint;

use crate::error::StoreError;
use crate::format::{ALIGN, OFFSET_MAX, RecordHeader, RecordKind, RecordMeta, SEGMENT_HEADER_BYTES, SegmentHeader};
use crate::index::{Entry, FragmentId, Point};
use crate::ledger::Ledger;
use crate::segment::{SEGMENTS_DIR, Segment};
use crate::store::{AppendOutcome, DeleteOrder, DeleteOutcome, Record, SegmentStore};

static PADDING: [u8; ALIGN as usize] = [0; ALIGN as usize];

/// A record that is written but not yet published.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StagedRecord {
    pub(crate) kind: RecordKind,
    pub(crate) entry: Entry,
    /// The place that compaction copied the record from.
    pub(crate) from: Option<(u64, u64)>,
}

/// State of a disk's only writer.
#[derive(Default)]
pub(crate) struct Writer {
    /// The segment that takes appends; `None` before the first append.
    pub(crate) open: Option<Arc<Segment>>,
    pub(crate) next_segment: u64,
    pub(crate) next_sequence: u64,
    /// Bytes that may be appended before the free space is checked again.
    pub(crate) granted_bytes: u64,
    /// A failed write may have left bytes after the end of the open segment.
    pub(crate) tail_dirty: bool,
    /// The next sync must run although nothing is staged: it must cover a cut.
    pub(crate) sync_needed: bool,
    pub(crate) staged: Vec<StagedRecord>,
    /// The newest staged record of each fragment.
    pub(crate) staged_ids: HashMap<FragmentId, StagedRecord>,
    pub(crate) ledger: Ledger,
}

/// Maximum number of bytes appended between two checks of the free space.
const MAX_GRANT_BYTES: u64 = 64 << 20;

/// Segments are made smaller for compaction's sake until a disk has about this many.
const MAX_SEGMENTS_FOR_ROOM: u64 = 1024;

/// A record to write, from a client or from compaction.
pub(crate) struct PendingRecord<'a> {
    /// Sequence and `synced_to` are set when it is written.
    pub(crate) header: RecordHeader,
    pub(crate) groups: &'a [u8],
    pub(crate) data: &'a [u8],
    /// The place that compaction copies the record from.
    pub(crate) from: Option<(u64, u64)>,
}

impl<'a> PendingRecord<'a> {
    fn new(kind: RecordKind, record: &Record<'a>) -> Self {
        let Record { id, meta, groups, data, data_crc } = *record;
        let header = RecordHeader {
            kind,
            id,
            meta,
            sequence: 0,
            data_len: data.len() as u32,
            groups_len: groups.len() as u32,
            data_crc,
            groups_crc: tessera_accel::checksum::crc32c(groups),
            synced_to: 0,
        };
        PendingRecord { header, groups, data, from: None }
    }

    fn bytes(&self) -> u64 {
        crate::format::record_bytes(self.groups.len() as u64, self.data.len() as u64)
    }
}

impl SegmentStore {
    /// Appends fragments to the open segment in one gathered write (plus one for each segment it fills). Nothing is
    /// visible, and nothing may be acknowledged, before [`SegmentStore::sync`] returns. The outcomes are in the order
    /// of the batch. A fragment is not written again if it is held with the same checksum and its copy passes
    /// verification (P8).
    ///
    /// # Errors
    /// [`StoreError::Full`], or the disk's. The store is unchanged, except that a leading part of the batch may be
    /// held, as if appended alone. Resending the batch is right.
    pub fn append(&self, batch: &[Record<'_>]) -> Result<Vec<AppendOutcome>, StoreError> {
        for record in batch {
            check_lengths(record)?;
        }
        let mut writer = self.writer.lock();
        let mut outcomes = Vec::with_capacity(batch.len());
        let mut outgoing: Vec<PendingRecord<'_>> = Vec::with_capacity(batch.len());
        let mut slots = Vec::with_capacity(batch.len());
        let mut batch_ids: HashMap<FragmentId, usize> = HashMap::new();
        for (slot, record) in batch.iter().enumerate() {
            if let Some(&first) = batch_ids.get(&record.id) {
                // The same fragment twice in one batch: the first record decides. Its place is known after the write.
                let (a, b) = (&batch[first], record);
                let named = |it: &Record<'_>| (it.meta.chunk_hash, it.meta.chunk_len_bytes);
                let same = (a.data_crc, a.data.len(), named(a)) == (b.data_crc, b.data.len(), named(b));
                outcomes.push((!same).then_some(AppendOutcome::Conflict { held_crc: batch[first].data_crc }));
                continue;
            }
            let known = self.known(&writer, record)?;
            if known.is_none() {
                batch_ids.insert(record.id, slot);
                slots.push(slot);
                outgoing.push(PendingRecord::new(RecordKind::Fragment, record));
            }
            outcomes.push(known);
        }
        let needed_bytes: u64 = outgoing.iter().map(PendingRecord::bytes).sum();
        if needed_bytes > 0 {
            self.check_reserve(&mut writer, needed_bytes)?;
        }
        let mut entries = Vec::with_capacity(outgoing.len());
        self.write(&mut writer, &outgoing, &mut entries)?;
        let written: HashMap<usize, Entry> = slots.into_iter().zip(entries).collect();
        let done = outcomes.into_iter().enumerate().map(|(slot, outcome)| match (outcome, written.get(&slot)) {
            (Some(outcome), _) => outcome,
            (None, Some(entry)) => AppendOutcome::Written(*entry),
            (None, None) => AppendOutcome::AlreadyHeld(written[&batch_ids[&batch[slot].id]]),
        });
        Ok(done.collect())
    }

    /// Writes a delete record for each fragment that is held. The fragment is gone once [`SegmentStore::sync`] returns:
    /// permanently (P3), or, if the order names an epoch, until a put under a newer epoch. Works on a full disk while
    /// some of the reserve is left.
    ///
    /// # Errors
    /// The index's or the disk's; the store is unchanged.
    pub fn delete(&self, orders: &[DeleteOrder], written_ms: u64) -> Result<Vec<DeleteOutcome>, StoreError> {
        let mut writer = self.writer.lock();
        let mut outcomes = Vec::with_capacity(orders.len());
        let mut outgoing: Vec<PendingRecord<'_>> = Vec::new();
        let mut seen = std::collections::HashSet::new();
        for &DeleteOrder { id, epoch } in orders {
            let held = match writer.staged_ids.get(&id) {
                Some(staged) => (staged.kind == RecordKind::Fragment).then_some(staged.entry),
                None => self.index()?.get(id)?,
            };
            let meant = held.filter(|e| epoch == 0 || self.epoch_of(e).is_none_or(|written| written <= epoch));
            let Some(Entry { pg_id, .. }) = meant.filter(|_| seen.insert(id)) else {
                outcomes.push(DeleteOutcome::NotHeld);
                continue;
            };
            outcomes.push(DeleteOutcome::Removed);
            let meta = RecordMeta { pg_id, epoch, written_ms, ..RecordMeta::default() };
            let record = Record { id, meta, groups: &[], data: &[], data_crc: 0 };
            outgoing.push(PendingRecord::new(RecordKind::Delete, &record));
        }
        self.write(&mut writer, &outgoing, &mut Vec::new())?;
        Ok(outcomes)
    }

    /// Makes all appends and deletes so far durable, then visible. The caller may acknowledge them only after this
    /// returns (P9). Appends continue meanwhile.
    ///
    /// # Errors
    /// The disk's. The disk is then poisoned; unsynced records are invisible and must not be acknowledged. Reopen the
    /// store, or give up the disk.
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
        // Only records written before the sync began are covered. A rotation may have published some of them.
        segment.set_durable_end(point.offset);
        self.publish(&mut writer, point)
    }

    /// The outcome of an append that needs no write; `None` if the record must be written.
    fn known(&self, writer: &Writer, record: &Record<'_>) -> Result<Option<AppendOutcome>, StoreError> {
        // A checksum is easily forged: the bytes are the same only if the chunk's name is, too (P2).
        let named = |e: &Entry| {
            let header = self.handle(*e).and_then(|held| held.read_header().ok());
            header.is_none_or(|it| {
                let RecordMeta { chunk_hash, chunk_len_bytes, .. } = record.meta;
                (it.meta.chunk_hash, it.meta.chunk_len_bytes) == (chunk_hash, chunk_len_bytes)
            })
        };
        let same = |e: &Entry| e.data_crc == record.data_crc && e.data_len as usize == record.data.len() && named(e);
        match writer.staged_ids.get(&record.id) {
            Some(StagedRecord { kind: RecordKind::Delete, entry, .. }) => return Ok(self.refuse_deleted(record, entry)),
            Some(StagedRecord { entry, .. }) if same(entry) => return Ok(Some(AppendOutcome::AlreadyHeld(*entry))),
            Some(StagedRecord { entry, .. }) => return Ok(Some(AppendOutcome::Conflict { held_crc: entry.data_crc })),
            None => {}
        }
        if let Some(entry) = self.index()?.get(record.id)? {
            // Verify the copy before acknowledging it: a repair of rot must not pass for a retry (P8, P13).
            let sound = failpoint::is_active("segment.trust_duplicates") || self.verify(&entry).is_ok();
            return Ok(match (sound, same(&entry)) {
                (_, false) => Some(AppendOutcome::Conflict { held_crc: entry.data_crc }),
                (true, true) => Some(AppendOutcome::AlreadyHeld(entry)),
                (false, true) => None,
            });
        }
        Ok(writer.ledger.tombstones.delete_of(record.id).and_then(|tombstone| self.refuse_deleted(record, tombstone)))
    }

    /// Refuses a late put, which must not bring a deleted fragment back (P3). Two kinds of put may, because the manager
    /// ordered them: a repair, and a put under a newer epoch than the delete's (the fragment moved away and returns).
    fn refuse_deleted(&self, record: &Record<'_>, tombstone: &Entry) -> Option<AppendOutcome> {
        let epoch = self.epoch_of(tombstone).unwrap_or(0);
        let comes_back = record.meta.session_id == 0 || (epoch != 0 && record.meta.epoch > epoch);
        (!comes_back).then_some(AppendOutcome::Deleted)
    }

    /// Epoch of a record, from its header; `None` if the header cannot be read.
    fn epoch_of(&self, entry: &Entry) -> Option<u64> {
        Some(self.handle(*entry)?.read_header().ok()?.meta.epoch)
    }

    /// Returns the bytes that may still be appended: free space beyond the reserve.
    ///
    /// # Errors
    /// The disk's.
    pub fn spare_bytes(&self) -> Result<u64, DiskError> {
        Ok(self.disk.space()?.free_bytes.saturating_sub(self.reserve_bytes()))
    }

    /// Appends leave this much more free than the configured reserve.
    pub fn reserve_more(&self, bytes: u64) {
        self.more_reserve_bytes.store(bytes, Ordering::Relaxed);
    }

    fn reserve_bytes(&self) -> u64 {
        self.options.reserve_bytes.saturating_add(self.more_reserve_bytes.load(Ordering::Relaxed))
    }

    /// Refuses an append that would use the reserve. Asking the file system costs as much as a small append, so one
    /// answer covers several appends. It covers few enough bytes that most of the reserve remains if another program
    /// fills the disk meanwhile.
    fn check_reserve(&self, writer: &mut Writer, needed_bytes: u64) -> Result<(), StoreError> {
        if let Some(left) = writer.granted_bytes.checked_sub(needed_bytes) {
            writer.granted_bytes = left;
            return Ok(());
        }
        writer.granted_bytes = 0;
        let free_bytes = self.disk.space()?.free_bytes;
        let reserve_bytes = self.reserve_bytes();
        if let Some(spare_bytes) = free_bytes.checked_sub(needed_bytes.saturating_add(reserve_bytes)) {
            writer.granted_bytes = (spare_bytes / 16).min(reserve_bytes / 4).min(MAX_GRANT_BYTES);
            return Ok(());
        }
        Err(StoreError::Full { disk: self.disk.describe(), free_bytes, reserve_bytes, needed_bytes })
    }

    /// Writes and stages records, and adds their entries in the same order; after an error, the entries of a leading part
    /// that is staged.
    pub(crate) fn write(
        &self,
        writer: &mut Writer,
        records: &[PendingRecord<'_>],
        entries: &mut Vec<Entry>,
    ) -> Result<(), StoreError> {
        let before = entries.len();
        self.cut_failed_write(writer)?;
        let mut rest = records;
        while let Some(first) = rest.first() {
            let open = self.segment_with_room(writer, first.bytes())?;
            assert!(writer.open.as_ref().is_some_and(|s| s.number == open.number), "records go to the open segment");
            let mut end = open.end() + first.bytes();
            let fitting = rest[1..].iter().take_while(|r| {
                end += r.bytes();
                end <= open.size_limit_bytes
            });
            let count = 1 + fitting.count();
            self.write_run(writer, &open, &rest[..count], entries)?;
            rest = &rest[count..];
        }
        let added = entries.len() - before;
        assert!(added == records.len(), "{added} entries for {} records", records.len());
        Ok(())
    }

    /// Writes records that fit into the open segment in one gathered write.
    fn write_run(
        &self,
        writer: &mut Writer,
        open: &Segment,
        run: &[PendingRecord<'_>],
        entries: &mut Vec<Entry>,
    ) -> Result<(), StoreError> {
        let start = open.end();
        assert!(open.durable_end() <= start, "segment {:016x}: durable beyond its end", open.number);
        let mut end = start;
        let mut headers = Vec::with_capacity(run.len());
        let first = entries.len();
        for record in run {
            let (sequence, synced_to) = (writer.next_sequence, open.durable_end());
            let header = RecordHeader { sequence, synced_to, ..record.header };
            writer.next_sequence += 1;
            headers.push(header.encode(self.place(open.number), end));
            entries.push(entry_of(&header, open.number, end));
            assert!(
                header.total_bytes() == record.bytes(),
                "{}: the record was given {} bytes",
                header.id,
                record.bytes()
            );
            end += header.total_bytes();
        }
        let fits = end <= open.size_limit_bytes || run.len() == 1 && start == SEGMENT_HEADER_BYTES;
        assert!(fits, "segment {:016x}: records up to {end} pass its limit", open.number);
        let mut slices = Vec::with_capacity(run.len() * 4);
        for (record, header) in run.iter().zip(&headers) {
            let unpadded = header.len() + record.groups.len() + record.data.len();
            let padding = record.bytes() as usize - unpadded;
            slices.extend([&header[..], record.groups, record.data, &PADDING[..padding]].map(IoSlice::new));
        }
        let bytes: u64 = slices.iter().map(|slice| slice.len() as u64).sum();
        assert!(bytes == end - start, "{bytes} bytes for records of {}", end - start);
        if let Err(e) = open.file.write_vectored_at(start, &slices) {
            entries.truncate(first);
            writer.tail_dirty = !failpoint::is_active("segment.keep_failed_append");
            if !writer.tail_dirty {
                open.set_end(open.file.len()?.next_multiple_of(ALIGN));
            }
            // If this fails too, the next write retries it first.
            let _ = self.cut_failed_write(writer);
            return Err(e.into());
        }
        open.set_end(end);
        for (record, entry) in run.iter().zip(&entries[first..]) {
            let last = writer.staged.last().map_or(0, |s| s.entry.sequence);
            assert!(entry.sequence > last && entry.id == record.header.id, "{} is staged out of order", entry.id);
            let staged = StagedRecord { kind: record.header.kind, entry: *entry, from: record.from };
            writer.staged.push(staged);
            writer.staged_ids.insert(entry.id, staged);
        }
        Ok(())
    }

    /// Cuts off the bytes of a failed write, so that no part of its batch becomes visible.
    pub(crate) fn cut_failed_write(&self, writer: &mut Writer) -> Result<(), DiskError> {
        if let (true, Some(open)) = (writer.tail_dirty, &writer.open) {
            open.file.truncate(open.end())?;
            writer.tail_dirty = false;
            writer.sync_needed = true;
        }
        Ok(())
    }

    /// The open segment if `bytes` fit into it, otherwise a new one.
    fn segment_with_room(&self, writer: &mut Writer, bytes: u64) -> Result<Arc<Segment>, StoreError> {
        if let Some(open) = &writer.open {
            let end = open.end();
            if end == SEGMENT_HEADER_BYTES || end + bytes <= open.size_limit_bytes {
                return Ok(open.clone());
            }
        }
        self.rotate(writer)
    }

    /// Seals the open segment and creates the next one. The next one exists before compaction can remove the sealed
    /// one, so the highest number on the disk never decreases, and no number is reused.
    pub(crate) fn rotate(&self, writer: &mut Writer) -> Result<Arc<Segment>, StoreError> {
        self.cut_failed_write(writer)?;
        if let Some(open) = writer.open.clone() {
            // Only the last segment may have an unsynced tail.
            open.file.sync_data()?;
            open.set_durable_end(open.end());
            assert!(open.durable_end() == open.end(), "segment {:016x} is sealed with an unsynced tail", open.number);
            let point = Point { segment: open.number, offset: open.end(), next_sequence: writer.next_sequence };
            writer.sync_needed = false;
            self.publish(writer, point)?;
            // Keeps the next opening's scan close to the last segment. A failed attempt is retried, and later changes
            // report it.
            let _ = self.index().and_then(|index| index.persist(false));
        }
        let segment = Arc::new(self.create_segment(writer)?);
        let replaced = self.segments.write().insert(segment.number, segment.clone());
        assert!(replaced.is_none(), "segment {:016x} is made twice", segment.number);
        writer.next_segment = segment.number + 1;
        writer.open = Some(segment.clone());
        Ok(segment)
    }

    /// Creates a segment file. Its header and name are durable before the first record is written.
    fn create_segment(&self, writer: &Writer) -> Result<Segment, DiskError> {
        assert!(writer.staged.is_empty(), "a segment is sealed with unpublished records");
        let open = writer.open.as_ref().map_or(0, |s| s.number);
        assert!(writer.next_segment > open, "segment {:016x} is used again", writer.next_segment);
        let header = SegmentHeader {
            cluster_id: self.identity.cluster_id,
            disk_uuid: self.identity.disk_uuid,
            number: writer.next_segment,
            size_limit_bytes: self.segment_size_bytes()?,
            after_sequence: writer.next_sequence - 1,
        };
        let path = Segment::path(header.number);
        let file = create_file(&*self.disk, SEGMENTS_DIR, &path, &header.encode())?;
        Ok(Segment::new(header.number, file, header.after_sequence, header.size_limit_bytes, SEGMENT_HEADER_BYTES))
    }

    /// Size limit of a new segment. Half of the reserve, so that compaction has room for the live bytes of any segment;
    /// the other half is for deletes. But a small reserve does not divide a large disk into very many segments.
    fn segment_size_bytes(&self) -> Result<u64, DiskError> {
        let share_bytes = self.disk.space()?.capacity_bytes / MAX_SEGMENTS_FOR_ROOM;
        let limit_bytes = (self.options.reserve_bytes / 2).max(share_bytes).max(4 * SEGMENT_HEADER_BYTES);
        Ok(self.options.segment_size_bytes.min(limit_bytes).min(OFFSET_MAX / 2))
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

/// The index entry of a record at this place.
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
