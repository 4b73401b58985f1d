//! Runs the core's operations on one disk, synchronously. The shell calls it from the disk's threads, the simulator
//! inline.
//!
//! Writes go through [`write_batch`]: it writes all waiting appends, syncs once, and only then answers them (P9). Reads
//! ([`read`]) never wait for that.

use crate::core::{AppendItem, DiskFault, DiskOp, DiskReply, DiskStats, FragmentKey, ScrubCursor, Verdict};
use tessera_accel::hash::{HASH_BYTES, group_count};
use tessera_disk::DiskError;
use tessera_segment::{
    AppendOutcome, DeleteOrder, FragmentHandle, FragmentId, OpenReport, Record, RecordMeta, SegmentStore, StoreError,
};
use tessera_wire::meta::FragmentRef;
use tessera_wire::{Code, Error};

/// The result of one operation.
pub type DiskResult = Result<DiskReply, DiskFault>;

/// One operation of a batch.
#[derive(Debug)]
pub struct QueuedOp {
    /// Id returned with the result.
    pub op_id: u64,
    /// A write (see [`DiskOp::is_write`]).
    pub op: DiskOp,
}

/// Results of operations, by their ids.
pub type Done = Vec<(u64, DiskResult)>;

/// Runs a batch of writes. `done` gets every operation exactly once: first those that need no sync or have failed;
/// after one sync for all, the rest (P9). `now_ms` is stored in the records for diagnosis.
pub fn write_batch(store: &SegmentStore, now_ms: u64, batch: Vec<QueuedOp>, done: &mut dyn FnMut(Done)) {
    let (mut early, mut to_sync) = (Done::new(), Vec::with_capacity(batch.len()));
    let mut rest = &batch[..];
    while !rest.is_empty() {
        let appends = rest.iter().take_while(|w| matches!(w.op, DiskOp::Append { .. })).count();
        let (now, later) = rest.split_at(appends.max(1));
        rest = later;
        let results = write(store, now_ms, now);
        assert_eq!(results.len(), now.len(), "each operation of a batch has its result");
        for (QueuedOp { op_id, op }, result) in now.iter().zip(results) {
            let waits = !matches!(op, DiskOp::Append { sync: false, .. } | DiskOp::Compact { .. });
            match result {
                Ok(reply) if waits => to_sync.push((*op_id, reply)),
                result => early.push((*op_id, result)),
            }
        }
    }
    assert_eq!(early.len() + to_sync.len(), batch.len(), "each operation of a batch is answered once");
    drop(batch);
    if !early.is_empty() {
        done(early);
    }
    let synced = store.sync().map_err(|e| fault(store, &e));
    if !to_sync.is_empty() {
        done(to_sync.into_iter().map(|(op_id, reply)| (op_id, synced.clone().map(|()| reply))).collect());
    }
}

/// Runs one operation, or any number of appends as one gathered write.
fn write(store: &SegmentStore, now_ms: u64, now: &[QueuedOp]) -> Vec<DiskResult> {
    match now {
        [QueuedOp { op: DiskOp::Delete(doomed), .. }] => vec![delete(store, now_ms, doomed)],
        [QueuedOp { op: DiskOp::Compact { dead_percent, seal, max_bytes }, .. }] => {
            vec![compact(store, *dead_percent, *seal, *max_bytes)]
        }
        [QueuedOp { op, .. }] if !op.is_write() => vec![read(store, op)],
        appends => match append(store, now_ms, appends) {
            Ok(replies) => replies.into_iter().map(Ok).collect(),
            // A disk without space for all may have space for some.
            Err(_) if appends.len() > 1 => appends.chunks(1).flat_map(|one| write(store, now_ms, one)).collect(),
            Err(fault) => vec![Err(fault)],
        },
    }
}

/// Runs a read operation.
///
/// # Errors
/// The store or its disk failed, the fragment is absent, or `op` is a write.
pub fn read(store: &SegmentStore, op: &DiskOp) -> DiskResult {
    match op {
        DiskOp::Verify(keys) => {
            let verdicts: Result<Vec<Verdict>, StoreError> = keys.iter().map(|&key| verify(store, key)).collect();
            verdicts.map(DiskReply::Verified).map_err(|e| fault(store, &e))
        }
        DiskOp::Read(key) => read_whole(store, *key),
        DiskOp::List { after, limit } => list(store, *after, *limit),
        DiskOp::Scrub { cursor, max_bytes } => scrub(store, *cursor, *max_bytes),
        DiskOp::Stats => {
            stats_after_repair(store).map(DiskReply::Stats).map_err(|e| fault(store, &StoreError::Disk(e)))
        }
        DiskOp::Append { .. } | DiskOp::Delete(_) | DiskOp::Compact { .. } => {
            Err(DiskFault { error: Error::new(Code::Internal, "a write was given to a reader"), poisoned: false })
        }
    }
}

/// The store's id of a fragment; `None` if no such fragment can exist.
pub(crate) fn fragment_id(key: FragmentKey) -> Option<FragmentId> {
    Some(FragmentId { chunk_id: key.chunk_id, fragment: u16::try_from(key.fragment).ok()? })
}

fn key_of(id: FragmentId) -> FragmentKey {
    FragmentKey { chunk_id: id.chunk_id, fragment: u32::from(id.fragment) }
}

// --- writing ------------------------------------------------------------------------------------------------

fn append(store: &SegmentStore, now_ms: u64, appends: &[QueuedOp]) -> Result<Vec<DiskReply>, DiskFault> {
    let mut records: Vec<Record<'_>> = Vec::new();
    for QueuedOp { op, .. } in appends {
        if let DiskOp::Append { items, .. } = op {
            for item in items {
                let error = || Error::new(Code::Invalid, format!("fragment number {} is too large", item.key.fragment));
                let id = fragment_id(item.key).ok_or_else(|| DiskFault { error: error(), poisoned: false })?;
                records.push(record(now_ms, item, id));
            }
        }
    }
    let outcomes = store.append(&records).map_err(|e| fault(store, &e))?;
    assert_eq!(outcomes.len(), records.len(), "each record has its outcome");
    let mut fates = records.iter().zip(outcomes).map(|(record, outcome)| match outcome {
        // A rebuilt fragment was verified against the chunk's name; the bytes that it replaces were not (P6).
        AppendOutcome::Conflict { .. } if record.meta.session_id == 0 => replace(store, now_ms, record),
        outcome => fate(record.id, outcome),
    });
    let replies = appends.iter().map(|QueuedOp { op, .. }| match op {
        DiskOp::Append { items, .. } => DiskReply::Appended(fates.by_ref().take(items.len()).collect()),
        _ => DiskReply::Appended(Vec::new()),
    });
    let replies: Vec<DiskReply> = replies.collect();
    assert!(fates.next().is_none(), "outcomes of an append are left over");
    Ok(replies)
}

fn record(now_ms: u64, item: &AppendItem, id: FragmentId) -> Record<'_> {
    let chunk_len = item.meta.chunk_len_bytes;
    let groups = group_count(chunk_len) * HASH_BYTES as u64;
    assert_eq!(item.groups.len() as u64, groups, "bytes of group hashes of a chunk of {chunk_len} bytes");
    let meta = RecordMeta { written_ms: now_ms, ..item.meta };
    Record { id, meta, groups: &item.groups, data: &item.data, data_crc: item.crc32c }
}

fn fate(id: FragmentId, outcome: AppendOutcome) -> Result<(), Error> {
    match outcome {
        AppendOutcome::Written(_) | AppendOutcome::AlreadyHeld(_) => Ok(()),
        AppendOutcome::Deleted => Err(Error::new(
            Code::NotFound,
            format!("fragment {id} was deleted here and cannot be stored again; ask the manager for a new chunk"),
        )),
        AppendOutcome::Conflict { held_crc } => Err(Error::new(
            Code::Invalid,
            format!("fragment {id} is held with other bytes (checksum {held_crc:#010x}); a chunk never changes"),
        )),
    }
}

fn replace(store: &SegmentStore, now_ms: u64, record: &Record<'_>) -> Result<(), Error> {
    let order = DeleteOrder { id: record.id, epoch: 0 };
    store.delete(&[order], now_ms).map_err(|e| store_error(&e))?;
    let outcome = store.append(std::slice::from_ref(record)).map_err(|e| store_error(&e))?;
    outcome.into_iter().next().map_or(Ok(()), |outcome| fate(record.id, outcome))
}

fn delete(store: &SegmentStore, now_ms: u64, doomed: &[FragmentRef]) -> DiskResult {
    let order = |it: &FragmentRef| Some(DeleteOrder { id: fragment_id(it.into())?, epoch: it.epoch });
    let orders: Vec<DeleteOrder> = doomed.iter().filter_map(order).collect();
    store.delete(&orders, now_ms).map_err(|e| fault(store, &e))?;
    Ok(DiskReply::Deleted)
}

fn compact(store: &SegmentStore, dead_percent: u8, seal: bool, max_bytes: u64) -> DiskResult {
    match if seal { store.seal_dead(u64::from(dead_percent)) } else { Ok(false) } {
        // There is no space for another segment; compacting sealed ones may free some.
        Err(e) if !e.is_no_space() => return Err(fault(store, &e)),
        _ => {}
    }
    let report = store.compact_step(u64::from(dead_percent), max_bytes).map_err(|e| fault(store, &e))?;
    Ok(DiskReply::Compacted { freed_bytes: report.freed_bytes, more: report.more })
}

// --- reading ------------------------------------------------------------------------------------------------

/// Verifies a fragment. A failed index look-up is an error of the disk, not a missing fragment.
fn verify(store: &SegmentStore, key: FragmentKey) -> Result<Verdict, StoreError> {
    let Some(held) = find(store, key)? else { return Ok(Verdict::Missing) };
    Ok(match held.verify().and_then(|()| held.read_header()) {
        Ok(header) => Verdict::Good { hash: header.meta.chunk_hash, len_bytes: header.data_len },
        Err(error) => Verdict::Bad(error.to_string()),
    })
}

fn read_whole(store: &SegmentStore, key: FragmentKey) -> DiskResult {
    let Some(held) = find(store, key).map_err(|e| fault(store, &e))? else {
        let error = Error::new(Code::NotFound, format!("fragment {}.{} is not here", key.chunk_id, key.fragment));
        return Err(DiskFault { error, poisoned: false });
    };
    let mut data = vec![0; held.entry().data_len as usize];
    held.read_data(0, &mut data).map_err(|e| fault(store, &e))?;
    Ok(DiskReply::Read { data: data.into(), crc32c: held.entry().data_crc })
}

fn list(store: &SegmentStore, after: Option<FragmentKey>, limit: usize) -> DiskResult {
    let held = store.list(after.and_then(fragment_id), limit).map_err(|e| fault(store, &e))?;
    let last = held.len() < limit;
    Ok(DiskReply::Listed { held: held.iter().map(|entry| key_of(entry.id)).collect(), last })
}

fn scrub(store: &SegmentStore, cursor: Option<ScrubCursor>, max_bytes: u64) -> DiskResult {
    let report = store.scrub_step(cursor.unwrap_or_default(), max_bytes).map_err(|e| fault(store, &e))?;
    for finding in &report.findings {
        tracing::warn!(disk = %store.disk().describe(), %finding, "scrub");
    }
    Ok(DiskReply::Scrubbed {
        next: report.next,
        bytes: report.bytes,
        bad: report.findings.iter().filter(|f| f.live).filter_map(|f| f.id).map(key_of).collect(),
    })
}

/// Returns [`stats`] after rebuilding a failed index. Heartbeats request statistics regularly, so failures are noticed
/// here. A disk whose directory is gone is noticed first: its index must not be rebuilt from what is at its path.
fn stats_after_repair(store: &SegmentStore) -> Result<DiskStats, DiskError> {
    store.disk().space()?;
    if store.index_failed() {
        let disk = store.disk().describe();
        tracing::warn!(%disk, "the index cannot be read; it is rebuilt from the segments");
        match store.rebuild_index() {
            Ok(report) => tracing::info!(%disk, records_read = report.records, "the index was rebuilt"),
            Err(error) => tracing::error!(%disk, %error, "the index could not be rebuilt; restart the node"),
        }
    }
    stats(store)
}

/// Returns the space and counts of a store and its disk.
///
/// # Errors
/// The disk does not report its free space.
pub fn stats(store: &SegmentStore) -> Result<DiskStats, DiskError> {
    let capacity_bytes = store.disk().space()?.capacity_bytes;
    Ok(DiskStats { capacity_bytes, free_bytes: store.spare_bytes()?, store: store.stats(), rot: Vec::new() })
}

/// Fragments found corrupt or cut off when the store was opened, for reporting.
pub fn rot_of_opening(report: &OpenReport) -> Vec<FragmentKey> {
    report.findings.iter().filter(|f| f.live).filter_map(|f| f.id).map(key_of).collect()
}

/// Converts an error of the store to an error for messages.
pub(crate) fn store_error(error: &StoreError) -> Error {
    let code = match error {
        e if e.is_no_space() => Code::NoSpace,
        StoreError::BadRecord { .. } | StoreError::Range { .. } => Code::Invalid,
        StoreError::Damaged(_) => Code::Corrupt,
        _ => Code::Io,
    };
    Error::new(code, error.to_string())
}

fn fault(store: &SegmentStore, error: &StoreError) -> DiskFault {
    DiskFault { error: store_error(error), poisoned: store.disk().is_poisoned() }
}

/// Finds a fragment; `None` if it is not in the store.
pub(crate) fn find(store: &SegmentStore, key: FragmentKey) -> Result<Option<FragmentHandle>, StoreError> {
    fragment_id(key).map_or(Ok(None), |id| store.get(id))
}
