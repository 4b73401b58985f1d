//! A disk worker on the simulated disk. Every acknowledged operation survives any crash, an unacknowledged one may or
//! may not, and nothing else is there (P9).

use std::collections::BTreeMap;
use std::sync::Arc;
use tessera_disk::{CrashKind, Disk, Fault, Identity, SimDisk, SplitMix64};
use tessera_failpoint as failpoint;
use tessera_node::core::{AppendItem, DiskOp, DiskReply, FragmentKey, Verdict};
use tessera_node::disk_worker::{DiskResult, QueuedOp, read, write_batch};
use tessera_segment::{ConaIndex, Options, RecordMeta, SegmentStore};

const HASH: [u8; 32] = [3; 32];

fn identity() -> Identity {
    Identity { cluster_id: [1; 16], disk_uuid: [2; 16], created_ms: 5 }
}

fn open(disk: &SimDisk) -> Option<SegmentStore> {
    let options = Options { segment_size_bytes: 64 << 10, reserve_bytes: 0, ..Options::default() };
    let disk: Arc<dyn Disk> = Arc::new(disk.clone());
    // As in a node, but without a thread of its own.
    let index = Box::new(ConaIndex::open_inline(disk.clone(), 4096));
    SegmentStore::open_with_index(disk, options, index, &mut |_| {}).ok().map(|(store, _)| store)
}

fn key(chunk_id: u64) -> FragmentKey {
    FragmentKey { chunk_id, fragment: 0 }
}

fn item(chunk_id: u64) -> AppendItem {
    let data = vec![chunk_id as u8; 500 + (chunk_id as usize * 37) % 3_000];
    let meta = RecordMeta {
        session_id: 9,
        pg_id: 1,
        epoch: 1,
        class_id: 1,
        chunk_hash: HASH,
        chunk_len_bytes: data.len() as u64,
        ..RecordMeta::default()
    };
    let (groups, crc32c) = (Default::default(), tessera_accel::checksum::crc32c(&data));
    AppendItem { key: key(chunk_id), meta, groups, offset: None, crc32c, data: data.into() }
}

fn append(op_id: u64, chunk_ids: &[u64], sync: bool) -> QueuedOp {
    let items = chunk_ids.iter().map(|&id| item(id)).collect();
    QueuedOp { op_id, op: DiskOp::Append { sync, items } }
}

/// What must, must not, or may be there.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Expected {
    There,
    Gone,
    Either,
}

/// Runs random batches of appends and deletes on a disk that fails at its `fail_at`th operation. Returns what was
/// promised.
fn run(disk: &SimDisk, seed: u64, fail_at: Option<u64>, mistake: Option<&str>) -> BTreeMap<u64, Expected> {
    let _guard = mistake.map(failpoint::activate);
    let mut expected = BTreeMap::new();
    if let Some(io_index) = fail_at {
        disk.fail_at(io_index, Fault::PowerLoss);
    }
    if identity().create(disk).is_err() {
        return expected;
    }
    let Some(store) = open(disk) else { return expected };
    let mut random = SplitMix64::new(seed);
    let mut next_chunk = 1;
    for _ in 0..40 {
        let mut batch = Vec::new();
        let mut ops: BTreeMap<u64, (bool, Vec<u64>, bool)> = BTreeMap::new();
        for op_id in 0..1 + random.below(4) {
            let delete = next_chunk > 4 && random.below(3) == 0;
            if delete {
                let ids: Vec<u64> = (0..2).map(|_| 1 + random.below(next_chunk - 1)).collect();
                let keys = ids.iter().map(|&id| key(id).on_disk(0)).collect();
                batch.push(QueuedOp { op_id, op: DiskOp::Delete(keys) });
                ops.insert(op_id, (true, ids, true));
            } else {
                let ids: Vec<u64> = (0..1 + random.below(3)).map(|i| next_chunk + i).collect();
                next_chunk += ids.len() as u64;
                let sync = random.below(4) > 0;
                batch.push(append(op_id, &ids, sync));
                ops.insert(op_id, (false, ids, sync));
            }
        }
        if random.below(4) == 0 {
            batch.push(QueuedOp { op_id: 99, op: DiskOp::Compact { dead_percent: 1, seal: true, max_bytes: 10_000 } });
        }
        // Begun: until it is answered, either state may be found; but what is deleted stays deleted (P3).
        for id in ops.values().flat_map(|(_, ids, _)| ids) {
            if expected.get(id) != Some(&Expected::Gone) {
                expected.insert(*id, Expected::Either);
            }
        }
        let mut answered: Vec<(u64, DiskResult)> = Vec::new();
        write_batch(&store, 7, batch, &mut |done| answered.extend(done));
        assert_eq!(answered.len(), {
            let mut ids: Vec<u64> = answered.iter().map(|(id, _)| *id).collect();
            ids.sort();
            ids.dedup();
            ids.len()
        });
        answered.sort_by_key(|(op_id, _)| *op_id);
        for (op_id, result) in answered {
            let Some((delete, ids, sync)) = ops.get(&op_id) else { continue };
            match result {
                Ok(DiskReply::Deleted) => expected.extend(ids.iter().map(|&id| (id, Expected::Gone))),
                Ok(DiskReply::Appended(fates)) if *sync && !delete => {
                    for (&id, fate) in ids.iter().zip(fates) {
                        if fate.is_ok() {
                            expected.insert(id, Expected::There);
                        }
                    }
                }
                _ => {}
            }
        }
    }
    expected
}

/// Checks a disk after a crash.
fn judge(disk: &SimDisk, expected: &BTreeMap<u64, Expected>) -> Result<(), String> {
    let Some(store) = open(disk) else {
        return match expected.values().all(|e| *e == Expected::Either) {
            true => Ok(()),
            false => Err("the disk does not open".into()),
        };
    };
    let keys: Vec<FragmentKey> = expected.keys().map(|&id| key(id)).collect();
    let Ok(DiskReply::Verified(verdicts)) = read(&store, &DiskOp::Verify(keys)) else {
        return Err("it cannot be verified".into());
    };
    for ((&id, expected), verdict) in expected.iter().zip(verdicts) {
        match (expected, verdict) {
            (_, Verdict::Bad(why)) => return Err(format!("chunk {id} is half there: {why}")),
            (Expected::There, Verdict::Missing) => return Err(format!("chunk {id} was acknowledged and is lost")),
            (Expected::Gone, Verdict::Good { .. }) => return Err(format!("chunk {id} was deleted and is back")),
            (_, Verdict::Good { hash, len_bytes }) => {
                assert_eq!((hash, len_bytes as usize), (HASH, item(id).data.len()), "chunk {id}");
            }
            (_, Verdict::Missing) => {}
        }
    }
    let Ok(DiskReply::Listed { held, .. }) = read(&store, &DiskOp::List { after: None, limit: 10_000 }) else {
        return Err("it cannot be listed".into());
    };
    match held.iter().find(|key| !expected.contains_key(&key.chunk_id)) {
        Some(key) => Err(format!("chunk {} was never sent", key.chunk_id)),
        None => Ok(()),
    }
}

fn check(disk: &SimDisk, expected: &BTreeMap<u64, Expected>, what: &str) {
    judge(disk, expected).unwrap_or_else(|why| panic!("{what}: {why}"));
}

/// Cuts the power at every third operation of the script in turn; the seed chooses which third. Returns how often that
/// broke a promise, and the first case.
fn cut_everywhere(seed: u64, mistake: Option<&str>) -> (usize, Option<String>) {
    let dry = SimDisk::new(seed);
    run(&dry, seed, None, mistake);
    let all = dry.io_count();
    assert!(all > 100, "the script does something: {all} operations");
    let (mut broken, mut first) = (0, None);
    for at in (1 + seed % 3..all).step_by(3) {
        for kind in [CrashKind::KeepNone, CrashKind::KeepAll, CrashKind::KeepSome, CrashKind::Torn] {
            let disk = SimDisk::new(seed);
            let expected = run(&disk, seed, Some(at), mistake);
            if let Err(why) = judge(&disk.crash(kind), &expected) {
                broken += 1;
                first.get_or_insert(format!("seed {seed}, operation {at} of {all}, {kind:?}: {why}"));
            }
        }
    }
    (broken, first)
}

/// The power fails at every single operation of the disk, and all, some or none of the unsynced bytes survive.
#[test]
fn power_fails_at_every_operation() {
    for seed in 1..4 {
        assert_eq!(cut_everywhere(seed, None), (0, None));
    }
}

/// The test above can fail: it detects a store that acknowledges before it syncs.
#[test]
fn an_early_acknowledgement_is_found_out() {
    let (broken, first) = cut_everywhere(1, Some("segment.ack_before_sync"));
    assert!(broken > 0 && first.unwrap().contains("was acknowledged and is lost"));
}

/// The sync of a batch fails. Nothing of the batch is acknowledged, the fault says that the disk must be given up, and
/// earlier acknowledged fragments are there after reopening.
#[test]
fn a_failed_sync_acknowledges_nothing() {
    let disk = SimDisk::new(1);
    identity().create(&disk).unwrap();
    let store = open(&disk).unwrap();
    let mut before = Vec::new();
    write_batch(&store, 7, vec![append(1, &[1], true)], &mut |done| before.extend(done));
    assert_eq!(before, vec![(1, Ok(DiskReply::Appended(vec![Ok(())])))]);
    // The next operations of the disk: a write, then the sync.
    let at = disk.io_count();
    for io_index in at..at + 4 {
        disk.fail_at(io_index, Fault::SyncFails);
    }
    let mut answered = Vec::new();
    write_batch(&store, 7, vec![append(2, &[2], true), append(3, &[3], true)], &mut |done| answered.extend(done));
    assert_eq!(answered.len(), 2);
    for (_, result) in &answered {
        assert!(result.as_ref().is_err_and(|fault| fault.poisoned), "{result:?}");
    }
    let mut after = Vec::new();
    write_batch(&store, 7, vec![append(4, &[4], true)], &mut |done| after.extend(done));
    assert!(after[0].1.as_ref().is_err_and(|fault| fault.poisoned));
    drop(store);
    let expected = BTreeMap::from([(1, Expected::There), (2, Expected::Either), (3, Expected::Either)]);
    check(&disk.crash(CrashKind::KeepNone), &expected, "after the failed sync");
}

/// The reply to a put without `sync` comes before the sync, the others after it; each once.
#[test]
fn who_need_not_wait_does_not() {
    let disk = SimDisk::new(1);
    identity().create(&disk).unwrap();
    let store = open(&disk).unwrap();
    let mut rounds = Vec::new();
    let batch = vec![append(1, &[1], true), append(2, &[2], false), append(3, &[3], true)];
    write_batch(&store, 7, batch, &mut |done| rounds.push(done.iter().map(|(id, _)| *id).collect::<Vec<_>>()));
    assert_eq!(rounds, [vec![2], vec![1, 3]]);
}

/// A disk too full for one put may have space for another; deletes still work; nothing is left half done.
#[test]
fn a_full_disk() {
    let disk = SimDisk::new(1);
    identity().create(&disk).unwrap();
    let store = open(&disk).unwrap();
    write_batch(&store, 7, vec![append(1, &[1], true)], &mut |_| {});
    let used = disk.space().unwrap();
    disk.set_capacity(used.capacity_bytes - used.free_bytes + 3_000);
    let mut answered = BTreeMap::new();
    let large = append(2, &[40, 41, 42, 43], true);
    write_batch(&store, 7, vec![large, append(3, &[3], true)], &mut |done| answered.extend(done));
    let refused = answered[&2].as_ref().unwrap_err();
    assert_eq!(refused.error.code(), tessera_wire::Code::NoSpace);
    assert!(!refused.poisoned);
    assert_eq!(answered[&3], Ok(DiskReply::Appended(vec![Ok(())])));
    let mut answered = Vec::new();
    let delete = QueuedOp { op_id: 4, op: DiskOp::Delete(vec![key(1).on_disk(0)]) };
    write_batch(&store, 7, vec![delete], &mut |done| answered.extend(done));
    assert_eq!(answered, vec![(4, Ok(DiskReply::Deleted))]);
    drop(store);
    let expected = BTreeMap::from([
        (1, Expected::Gone),
        (3, Expected::There),
        (40, Expected::Gone),
        (41, Expected::Gone),
        (42, Expected::Gone),
        (43, Expected::Gone),
    ]);
    check(&disk.crash(CrashKind::KeepAll), &expected, "full");
}

/// P6, P8: a client that sends other bytes under a known name is refused. A repair, which has verified its bytes, is
/// not.
#[test]
fn conflicts_and_repairs() {
    let disk = SimDisk::new(1);
    identity().create(&disk).unwrap();
    let store = open(&disk).unwrap();
    let put = |session_id, chunk_id: u64, byte: u8| {
        let data = vec![byte; 700];
        let crc32c = tessera_accel::checksum::crc32c(&data);
        let it = item(chunk_id);
        let meta = RecordMeta { session_id, chunk_len_bytes: 700, ..it.meta };
        let it = AppendItem { data: data.into(), crc32c, meta, ..it };
        let mut answered = Vec::new();
        let op = DiskOp::Append { sync: true, items: vec![it] };
        write_batch(&store, 7, vec![QueuedOp { op_id: 1, op }], &mut |done| answered.extend(done));
        match answered.remove(0).1 {
            Ok(DiskReply::Appended(mut fates)) => fates.remove(0),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(put(9, 1, 0xaa), Ok(()));
    assert_eq!(put(9, 1, 0xaa), Ok(()), "sent twice");
    assert_eq!(put(9, 1, 0xbb).unwrap_err().code(), tessera_wire::Code::Invalid);
    assert_eq!(put(0, 1, 0xbb), Ok(()));
    let Ok(DiskReply::Read { data, .. }) = read(&store, &DiskOp::Read(key(1))) else { panic!("a fragment") };
    assert_eq!(data, vec![0xbb; 700]);
}
