//! Segment files of a disk (docs/formats.md, section 2): whatever they hold, a store opens or says why not, shows nothing that fails a
//! checksum, opens to the same again, and works (P2, P9).

use crate::Target;
use crate::input::{Parts, split};
use crate::mutate::{index, number, one_in};
use std::sync::Arc;
use tessera_disk::record::RecordPlace;
use tessera_disk::{Disk, Identity, OpenMode, SimDisk, SplitMix64};
use tessera_segment::{
    ConaIndex, DeleteOrder, Entry, FragmentId, Index, MemIndex, OpenReport, Options, Record, RecordMeta, ScrubCursor,
    SegmentStore,
};

/// See the module.
pub const TARGET: Target = Target {
    name: "segments",
    run,
    seeds,
    adapt,
    runs: 600,
    // Two indexes, the disk's own state, a window of the scanner and its buffer of 1 MiB.
    base_bytes: 8 << 20,
    bytes_per_byte: 64,
};

const IDENTITY: Identity = Identity { cluster_id: [7; 16], disk_uuid: [9; 16], created_ms: 1 };
/// A fragment that no seed holds.
const FRESH: FragmentId = FragmentId { chunk_id: 1 << 40, fragment: 3 };

fn path(file: usize) -> String {
    format!("segments/{:016x}.seg", file + 1)
}

fn options() -> Options {
    Options { segment_size_bytes: 8 << 10, reserve_bytes: 0, ..Options::default() }
}

fn disk_of(parts: &[Vec<u8>]) -> SimDisk {
    let disk = SimDisk::new(0);
    IDENTITY.create(&disk).expect("an empty disk");
    disk.create_dir("segments").expect("an empty disk");
    for (file, bytes) in parts.iter().enumerate() {
        disk.open(&path(file), OpenMode::Create).and_then(|file| file.write_at(0, bytes)).expect("a file");
    }
    disk
}

fn open(disk: &SimDisk, flash: bool) -> Result<(SegmentStore, OpenReport), tessera_segment::OpenError> {
    let disk: Arc<dyn Disk> = Arc::new(disk.clone());
    let index: Box<dyn Index> = match flash {
        true => Box::new(ConaIndex::open_inline(disk.clone(), 4096)),
        false => Box::<MemIndex>::default(),
    };
    SegmentStore::open_with_index(disk, options(), index, &mut |_| {})
}

/// Each part is a segment.
#[must_use]
pub fn run(input: &[u8]) -> String {
    let parts = split(input);
    let disk = disk_of(&parts);
    let (store, report) = match open(&disk, false) {
        Ok(opened) => opened,
        Err(error) => {
            let unchanged = |(file, bytes): (usize, &Vec<u8>)| disk.contents(&path(file)).as_ref() == Some(bytes);
            assert!(parts.iter().enumerate().all(unchanged), "a disk that is not opened is not changed");
            return shape(&error.to_string());
        }
    };
    let held = settle(&disk, store, &report);
    check_reopened(&disk, &held);
    work(&disk, &held);
    let findings: String = report.findings.iter().map(|finding| format!("{:?}", finding.damage)).collect();
    format!("{} {} {} {}", report.torn_tail.is_some(), report.removed_unborn.is_some(), held.len(), shape(&findings))
}

fn shape(text: &str) -> String {
    text.chars().filter(char::is_ascii_alphabetic).take(200).collect()
}

/// Opens a store until nothing is cut or removed: a segment without a header goes once it has no record and no other follows it.
fn settle(disk: &SimDisk, store: SegmentStore, report: &OpenReport) -> Held {
    let (mut held, mut report) = (readable(&store), report.clone());
    drop(store);
    while report.torn_tail.is_some() || report.removed_unborn.is_some() {
        let (store, next) = open(disk, false).expect("what was opened opens again");
        let now = readable(&store);
        if report.removed_unborn.is_none() {
            assert_eq!(now, held, "a cut tail takes nothing more with it: {report:?}, then {next:?}");
        }
        (held, report) = (now, next);
    }
    held
}

/// Entries with their bytes, if these pass the checks.
type Held = Vec<(Entry, Option<Vec<u8>>)>;

/// All entries, with their bytes if these pass the checks.
fn readable(store: &SegmentStore) -> Held {
    let entries = store.list(None, usize::MAX).expect("the index is in memory");
    let read = |entry: &Entry| {
        let handle = store.get(entry.id).expect("the index is whole").expect("a listed fragment is found");
        let data = handle.read_verified().ok();
        assert!(data.as_ref().is_none_or(|data| crc_fast::crc32_iscsi(data) == entry.data_crc), "P2: {}", entry.id);
        let sound = handle.verify().is_ok();
        assert!(!sound || data.is_some() && handle.read_header().is_ok(), "{}: verified, and not readable", entry.id);
        (*entry, data)
    };
    entries.iter().map(read).collect()
}

/// Opened again, with any index, the store holds the same, and nothing is left to be cut.
fn check_reopened(disk: &SimDisk, held: &[(Entry, Option<Vec<u8>>)]) {
    for (flash, what) in [(false, "from memory"), (true, "with an index of files"), (true, "resumed")] {
        let (store, report) = open(disk, flash).expect("what was opened opens again");
        assert!(report.torn_tail.is_none() && report.removed_unborn.is_none(), "{what}: {report:?}");
        assert_eq!(report.fragments, held.len() as u64, "{what}");
        assert_eq!(readable(&store), held, "{what}");
        store.close().expect("a healthy disk");
    }
}

/// A store with damage in it takes, deletes, scrubs and compacts, and loses nothing that could be read.
fn work(disk: &SimDisk, held: &[(Entry, Option<Vec<u8>>)]) {
    let (store, _) = open(disk, true).expect("what was opened opens again");
    let fresh = [5; 300];
    let (groups, meta) = ([6; 32], RecordMeta { epoch: u64::MAX, ..RecordMeta::default() });
    let record = Record { id: FRESH, meta, groups: &groups, data: &fresh, data_crc: crc_fast::crc32_iscsi(&fresh) };
    store.append(&[record]).expect("room");
    let gone = held.first().map(|(entry, _)| entry.id).filter(|id| *id != FRESH);
    let orders: Vec<DeleteOrder> = gone.iter().map(|&id| DeleteOrder { id, epoch: 0 }).collect();
    store.delete(&orders, 0).expect("a delete");
    store.sync().expect("a healthy disk");
    let mut cursor = ScrubCursor::default();
    while let Some(next) = store.scrub_step(cursor, 3_000).expect("a healthy disk").next {
        assert!(next > cursor, "a scrub goes on");
        cursor = next;
    }
    for _ in 0..64 {
        if !store.compact_step(50, 10_000).expect("a healthy disk").more {
            break;
        }
    }
    drop(store);
    let (store, _) = open(disk, true).expect("what was written opens again");
    let now = readable(&store);
    let find = |id: FragmentId| now.iter().find(|(entry, _)| entry.id == id);
    for (entry, data) in
        held.iter().filter(|(entry, data)| data.is_some() && ![Some(FRESH), gone].contains(&Some(entry.id)))
    {
        assert_eq!(find(entry.id).map(|(_, data)| data), Some(data), "{} was readable", entry.id);
    }
    assert!(gone.is_none_or(|id| find(id).is_none()), "P3: {gone:?} is back");
    assert!(find(FRESH).is_some(), "what was stored is there");
}

fn seeds() -> Vec<Parts> {
    let disk = SimDisk::new(1);
    IDENTITY.create(&disk).expect("an empty disk");
    let (store, _) = open(&disk, false).expect("an empty disk");
    let data: Vec<u8> = (0..700).map(|i| (i % 251) as u8).collect();
    let put = |chunk_id: u64, len: usize| {
        let (id, data, groups) = (FragmentId { chunk_id, fragment: 1 }, &data[..len], [chunk_id as u8; 32]);
        let meta = RecordMeta { pg_id: 4, session_id: 8, class_id: 2, epoch: 5, ..RecordMeta::default() };
        let record = Record { id, meta, groups: &groups, data, data_crc: crc_fast::crc32_iscsi(data) };
        store.append(&[record]).expect("room");
        store.sync().expect("a healthy disk");
    };
    let files = || (0..8).map_while(|file| disk.contents(&path(file))).collect::<Parts>();
    put(0, 700);
    let one = files();
    (1..12).for_each(|chunk| put(chunk, 700 - 50 * chunk as usize));
    for chunk_id in [2, 5] {
        let order = DeleteOrder { id: FragmentId { chunk_id, fragment: 1 }, epoch: 0 };
        store.delete(&[order], 0).expect("a delete");
        store.sync().expect("a healthy disk");
    }
    put(12, 0);
    vec![one, files()]
}

/// Changes fields of headers, and restores checksums.
fn adapt(parts: &mut Parts, rng: &mut SplitMix64) {
    let at = index(rng, parts.len());
    for (file, bytes) in parts.iter_mut().enumerate() {
        let changed = if file == at && one_in(rng, 2) { Some(index(rng, 24)) } else { None };
        adapt_file(file as u64 + 1, bytes, changed, rng);
    }
}

/// Offsets and lengths of the fields of a record's header, without its checksums.
const FIELDS: [(usize, usize); 12] =
    [(4, 1), (6, 2), (8, 8), (24, 8), (32, 8), (40, 4), (80, 8), (88, 8), (96, 4), (100, 4), (120, 4), (5, 1)];

fn adapt_file(number_of_file: u64, bytes: &mut [u8], changed: Option<usize>, rng: &mut SplitMix64) {
    if bytes.len() >= 76 && bytes.starts_with(b"TESSSEGM") && !one_in(rng, 16) {
        let sum = crc_fast::crc32_iscsi(&bytes[..72]);
        bytes[72..76].copy_from_slice(&sum.to_le_bytes());
    }
    let place = RecordPlace { disk_uuid: IDENTITY.disk_uuid, file: number_of_file };
    let starts = (4096..bytes.len().saturating_sub(127)).step_by(8).filter(|&at| bytes[at..].starts_with(b"TREC"));
    for (record, at) in starts.collect::<Vec<_>>().into_iter().enumerate() {
        if changed == Some(record) {
            let (field, width) = FIELDS[index(rng, FIELDS.len())];
            let mut now = [0; 8];
            now[..width].copy_from_slice(&bytes[at + field..][..width]);
            let next = number(rng, u64::from_le_bytes(now), (bytes.len() - at) as u64).to_le_bytes();
            bytes[at + field..][..width].copy_from_slice(&next[..width]);
        }
        seal(bytes, at, place, rng);
    }
}

fn seal(bytes: &mut [u8], at: usize, place: RecordPlace, rng: &mut SplitMix64) {
    let word = |bytes: &[u8], field: usize| {
        u32::from_le_bytes([bytes[field], bytes[field + 1], bytes[field + 2], bytes[field + 3]]) as usize
    };
    let (data_len, groups_len) = (word(bytes, at + 96), word(bytes, at + 100));
    let groups = bytes.get(at + 128..).and_then(|rest| rest.get(..groups_len)).map(crc_fast::crc32_iscsi);
    let data = bytes.get(at + 128 + groups_len..).and_then(|rest| rest.get(..data_len)).map(crc_fast::crc32_iscsi);
    for (field, sum) in [(104, data), (108, groups)] {
        if let Some(sum) = sum.filter(|_| !one_in(rng, 32)) {
            bytes[at + field..][..4].copy_from_slice(&sum.to_le_bytes());
        }
    }
    if !one_in(rng, 32) {
        let seal = place.seal(&bytes[at..at + 124], at as u64);
        bytes[at + 124..at + 128].copy_from_slice(&seal.to_le_bytes());
    }
}
