//! Small helpers for the tests of this crate.
#![allow(dead_code, reason = "each test file uses some of it")]

use std::sync::Arc;

use tessera_disk::{Disk, Identity, SimDisk};
use tessera_segment::*;

pub const IDENTITY: Identity = Identity { cluster_id: [7; 16], disk_uuid: [9; 16], created_ms: 1 };

pub fn id(chunk_id: u64, fragment: u16) -> FragmentId {
    FragmentId { chunk_id, fragment }
}

/// Bytes that differ for every fragment and length, without a period that is a power of two.
pub fn data_of(id: FragmentId, len: usize) -> Vec<u8> {
    let salt = id.chunk_id.wrapping_mul(31).wrapping_add(u64::from(id.fragment) * 7);
    (0..len as u64).map(|i| ((i + salt) % 251) as u8).collect()
}

pub fn groups_of(id: FragmentId, count: usize) -> Vec<u8> {
    vec![(id.chunk_id as u8) ^ 0x5a; count * 32]
}

pub fn meta(session_id: u64) -> RecordMeta {
    RecordMeta {
        encoding: 0,
        pg_id: 4,
        session_id,
        domain: 1,
        class_id: 2,
        chunk_hash: [3; 32],
        chunk_len_bytes: 99,
        epoch: 5,
        written_ms: 6,
    }
}

/// Appends one fragment of `len` bytes with one group hash.
pub fn put(store: &SegmentStore, id: FragmentId, len: usize) -> Result<AppendOutcome, StoreError> {
    put_session(store, id, len, 8)
}

pub fn put_session(
    store: &SegmentStore,
    id: FragmentId,
    len: usize,
    session: u64,
) -> Result<AppendOutcome, StoreError> {
    let (data, groups) = (data_of(id, len), groups_of(id, 1));
    let data_crc = tessera_accel::checksum::crc32c(&data);
    let record = Record { id, meta: meta(session), groups: &groups, data: &data, data_crc };
    store.append(&[record]).map(|outcomes| outcomes[0])
}

pub fn delete(store: &SegmentStore, id: FragmentId) -> Result<DeleteOutcome, StoreError> {
    store.delete(&[DeleteOrder { id, epoch: 0 }], 0).map(|outcomes| outcomes[0])
}

pub fn sim(seed: u64) -> SimDisk {
    let disk = SimDisk::new(seed);
    IDENTITY.create(&disk).unwrap();
    disk
}

pub fn small() -> Options {
    Options { segment_size_bytes: 8 << 10, reserve_bytes: 0, ..Options::default() }
}

pub fn open(disk: &SimDisk, options: Options) -> Result<(SegmentStore, OpenReport), OpenError> {
    SegmentStore::open(Arc::new(disk.clone()), options, &mut |_| {})
}

pub fn opened(disk: &SimDisk) -> (SegmentStore, OpenReport) {
    open(disk, small()).unwrap()
}

pub fn on(disk: impl Disk + 'static, options: Options) -> SegmentStore {
    SegmentStore::open(Arc::new(disk), options, &mut |_| {}).unwrap().0
}

/// All listed fragments. Checks that each can be found and read and has the right bytes.
pub fn held(store: &SegmentStore) -> Vec<(FragmentId, usize)> {
    let mut held = Vec::new();
    let mut after = None;
    loop {
        let page = store.list(after, 3).unwrap();
        let Some(last) = page.last() else { return held };
        after = Some(last.id);
        for entry in page {
            let handle = store.get(entry.id).unwrap().unwrap();
            assert_eq!(handle.entry(), &entry);
            let data = handle.read_verified().unwrap();
            assert_eq!(data, data_of(entry.id, data.len()), "wrong bytes of {}", entry.id);
            assert_eq!(handle.read_groups().unwrap(), groups_of(entry.id, 1));
            handle.read_header().unwrap();
            held.push((entry.id, data.len()));
        }
    }
}

pub fn compact_all(store: &SegmentStore) -> Result<u64, StoreError> {
    let mut removed = 0;
    loop {
        let report = store.compact_step(50, 10_000)?;
        removed += report.removed_segments;
        if !report.more {
            return Ok(removed);
        }
    }
}

pub fn scrub_all(store: &SegmentStore, budget: u64) -> Vec<Finding> {
    let (mut findings, mut cursor) = (Vec::new(), ScrubCursor::default());
    loop {
        let report = store.scrub_step(cursor, budget).unwrap();
        findings.extend(report.findings);
        match report.next {
            Some(next) => {
                assert!(next > cursor);
                cursor = next;
            }
            None => return findings,
        }
    }
}
