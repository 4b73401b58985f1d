//! The directory of a peer (docs/formats.md, section 4): log files, the snapshot, the fence. A log opens to the same again and goes on,
//! or says why not; a peer that starts on it takes part or stops (P9, P14).

use crate::Target;
use crate::input::{Parts, split};
use crate::mutate::{index, number, one_in};
use crate::proto;
use std::sync::Arc;
use tessera_consensus::log::fence::{FENCE_FILE, Fence};
use tessera_consensus::log::snapshot::{SnapshotFiles, seal};
use tessera_consensus::log::{Base, HardState, Log, LogEntry, LogIdentity, LogOpenError, LogOptions};
use tessera_consensus::{Input, Peer, PeerConfig};
use tessera_disk::record::RecordPlace;
use tessera_disk::{Disk, OpenMode, SimDisk, SplitMix64};
use tessera_wire::consensus::{EntryKind, Member, Membership, PeerKind, SnapshotInfo};

/// See the module.
pub const TARGET: Target =
    Target { name: "consensus-log", run, seeds, adapt, runs: 8_000, base_bytes: 4 << 20, bytes_per_byte: 400 };

const IDENTITY: LogIdentity = LogIdentity { cluster_id: [7; 16], peer_id: 1 };
const DIR: &str = "log";
const OPTIONS: LogOptions = LogOptions { file_size_bytes: 1_000 };
/// Parts before the log files.
const OTHERS: usize = 2;

fn log_path(file: usize) -> String {
    format!("{DIR}/{:016x}.log", file + 1)
}

/// The first part is the fence, the second one the snapshot, with its name before it; the others are log files. The first two may be
/// empty: then there is none.
fn disk_of(parts: &[Vec<u8>]) -> SimDisk {
    let disk = SimDisk::new(0);
    disk.create_dir(DIR).expect("an empty disk");
    let put = |path: &str, bytes: &[u8]| {
        disk.open(path, OpenMode::Create).and_then(|file| file.write_at(0, bytes)).expect("a file");
    };
    if let Some(fence) = parts.first().filter(|fence| !fence.is_empty()) {
        put(&format!("{DIR}/{FENCE_FILE}"), fence);
    }
    if let Some((name, content)) = parts.get(1).and_then(|part| part.split_first_chunk::<16>()) {
        let (index, term) = name.split_at(8);
        let hex = |bytes: &[u8]| bytes.iter().rev().map(|byte| format!("{byte:02x}")).collect::<String>();
        put(&format!("{DIR}/{}-{}.snap", hex(index), hex(term)), content);
    }
    for (file, bytes) in parts.iter().skip(OTHERS).enumerate() {
        put(&log_path(file), bytes);
    }
    disk
}

/// See [`disk_of`].
#[must_use]
pub fn run(input: &[u8]) -> String {
    let parts = split(input);
    let disk = disk_of(&parts);
    let shared: Arc<dyn Disk> = Arc::new(disk.clone());
    let fence = match Fence::load(&disk, &format!("{DIR}/{FENCE_FILE}")) {
        Ok(fence) => format!("fence {};", fence.is_some()),
        Err(error) => shape(&error.to_string()),
    };
    let files = SnapshotFiles::open(shared.clone(), DIR).expect("a healthy disk");
    let snapshot = check_snapshot(&files);
    let log = match Log::open(shared.clone(), DIR, OPTIONS) {
        Ok(Some(log)) => log,
        Ok(None) => return format!("{fence}{snapshot} none"),
        Err(error) => {
            let last = parts.len().saturating_sub(OTHERS + 1);
            // Only a last file may be cut or removed before damage is met elsewhere; a log that is refused is read first.
            for (file, bytes) in parts.iter().skip(OTHERS).enumerate().take(last) {
                assert_eq!(disk.contents(&log_path(file)).as_ref(), Some(bytes), "a refused log is not changed");
            }
            assert!(!matches!(error, LogOpenError::Disk(_)), "a healthy disk: {error}");
            return format!("{fence}{snapshot}{}", shape(&error.to_string()));
        }
    };
    let found = content(&log);
    drop(log);
    let again = Log::open(shared.clone(), DIR, OPTIONS).expect("an opened log opens again").expect("a log");
    assert_eq!(content(&again), found, "a log opens to the same again");
    go_on(again, &shared);
    format!("{fence}{snapshot}{} {}", found.entries.len(), start(&shared))
}

fn shape(text: &str) -> String {
    text.chars().filter(char::is_ascii_lowercase).take(60).collect()
}

/// What a snapshot file holds can be read.
fn check_snapshot(files: &SnapshotFiles) -> String {
    let Some(held) = files.held() else { return "no snapshot;".into() };
    let content = files.read(held.index, &held.hash, 0, u32::MAX).expect("a snapshot that is held");
    assert_eq!(content.len() as u64, held.len_bytes, "a snapshot has its length");
    "snapshot;".into()
}

#[derive(Debug, PartialEq)]
struct Content {
    state: HardState,
    base: Base,
    membership: Membership,
    entries: Vec<Option<LogEntry>>,
}

/// All that a log holds.
fn content(log: &Log) -> Content {
    let (base, last, state) = (log.base(), log.last_index(), log.state());
    assert!((base.index..=last).contains(&state.commit), "{state:?} of {} to {last}", base.index);
    let read = |index: u64| {
        let entry = log.read(index, index + 1, u64::MAX).ok().and_then(|mut entries| entries.pop());
        assert_eq!(entry.as_ref().map(|entry| (entry.index, entry.term)), log.term(index).map(|term| (index, term)));
        entry
    };
    let entries = (1..=last - base.index).map(|at| read(base.index + at)).collect();
    Content { state, base, membership: log.membership().clone(), entries }
}

/// A log that was opened takes another entry, and holds it when it is opened again.
fn go_on(mut log: Log, disk: &Arc<dyn Disk>) {
    let index = log.last_index() + 1;
    let term = log.last_term().max(log.state().term);
    let entry = LogEntry { kind: EntryKind::Command, term, index, data: vec![1; 40].into() };
    let state = HardState { term, vote: 1, commit: log.state().commit };
    log.write(Some(state), &[entry]).expect("room");
    let written = content(&log);
    drop(log);
    let again = Log::open(disk.clone(), DIR, OPTIONS).expect("a written log opens again").expect("a log");
    assert_eq!(content(&again), written, "what was written is there");
}

/// A peer starts on the log, or says why not.
fn start(disk: &Arc<dyn Disk>) -> String {
    let log = Log::open(disk.clone(), DIR, OPTIONS).expect("it was opened").expect("a log");
    let files = SnapshotFiles::open(disk.clone(), DIR).expect("a healthy disk");
    let (id, base) = (log.identity().peer_id, log.base().index);
    let mut peer = match Peer::start(log, files, base, PeerConfig::new(member(id), 1)) {
        Ok(peer) => peer,
        Err(error) => return shape(&error.to_string()),
    };
    for tick in 0..40 {
        peer.handle(tick * 100_000_000, Input::Tick);
        while peer.poll().is_some() {}
    }
    format!("leads {} stopped {:?}", peer.standing().leads, peer.stopped().map(|error| shape(&error.to_string())))
}

fn member(id: u64) -> Member {
    let name = format!("h{id}");
    Member { id, kind: PeerKind::Manager as i32, host: name.clone(), address: name.clone(), name }
}

fn group(index: u64, voters: &[u64]) -> Membership {
    let members = voters.iter().map(|&id| member(id)).collect();
    Membership { index, voters: voters.to_vec(), members, ..Membership::default() }
}

fn seeds() -> Vec<Parts> {
    [vec![1], vec![1, 2, 3]].iter().flat_map(|voters| logs(voters)).collect()
}

/// The directory of a peer of a group, as it grows.
fn logs(voters: &[u64]) -> Vec<Parts> {
    let disk = SimDisk::new(1);
    let shared: Arc<dyn Disk> = Arc::new(disk.clone());
    let base = Base { index: 1, term: 1 };
    let mut log = Log::create(shared.clone(), DIR, IDENTITY, OPTIONS, base, group(1, voters)).expect("an empty disk");
    let mut found = vec![parts_of(&disk)];
    let write = |log: &mut Log, index: u64, term: u64| {
        let data = vec![index as u8; 20 * index as usize].into();
        let entry = LogEntry { kind: EntryKind::Command, term, index, data };
        log.write(Some(HardState { term, vote: 1, commit: index - 1 }), &[entry]).expect("room");
    };
    (2..8).for_each(|index| write(&mut log, index, 2));
    found.push(parts_of(&disk));
    // Entries replace others, the members change.
    (6..14).for_each(|index| write(&mut log, index, 3));
    log.write_membership(group(9, voters)).expect("room");
    found.push(parts_of(&disk));
    let info = SnapshotInfo { index: 9, term: 3, membership: Some(group(9, voters)), ..SnapshotInfo::default() };
    let part = format!("{DIR}/made.part");
    disk.open(&part, OpenMode::Create).and_then(|file| file.write_at(0, &[3; 100])).expect("room");
    seal(&disk, DIR, &part, info).expect("room");
    log.drop_to(9).expect("room");
    found.push(parts_of(&disk));
    let fence = Fence { cluster_id: IDENTITY.cluster_id, peer_id: 1, term: 9, restore_id: 4 };
    fence.store(&disk, &format!("{DIR}/{FENCE_FILE}")).expect("room");
    found.push(parts_of(&disk));
    found
}

/// Log files that are gone leave their numbers empty, so a directory begins with its first file here.
fn parts_of(disk: &SimDisk) -> Parts {
    let contents = |ending: &str| {
        let paths = disk.paths().into_iter().filter(|path| path.ends_with(ending)).collect::<Vec<_>>();
        paths.into_iter().map(|path| disk.contents(&path).expect("a file")).collect::<Parts>()
    };
    let snapshot =
        contents(".snap").pop().map(|bytes| [&9_u64.to_le_bytes(), &3_u64.to_le_bytes(), &bytes[..]].concat());
    let mut parts = vec![contents(FENCE_FILE).pop().unwrap_or_default(), snapshot.unwrap_or_default()];
    for (file, mut bytes) in contents(".log").into_iter().enumerate() {
        restore(file as u64 + 1, &mut bytes, None, &mut SplitMix64::new(0), true);
        parts.push(bytes);
    }
    parts
}

fn adapt(parts: &mut Parts, rng: &mut SplitMix64) {
    if let Some(fence) = parts.first_mut().filter(|fence| fence.len() >= 64 && !one_in(rng, 8)) {
        let sum = crc_fast::crc32_iscsi(&fence[..60]);
        fence[60..64].copy_from_slice(&sum.to_le_bytes());
    }
    if let Some(snapshot) = parts.get_mut(1) {
        adapt_snapshot(snapshot, rng);
    }
    let at = index(rng, parts.len().saturating_sub(OTHERS));
    for (file, bytes) in parts.iter_mut().skip(OTHERS).enumerate() {
        let changed = if file == at && one_in(rng, 2) { Some(index(rng, 16)) } else { None };
        restore(file as u64 + 1, bytes, changed, rng, false);
    }
}

/// Changes the description of a snapshot, and restores its checksum.
fn adapt_snapshot(snapshot: &mut Vec<u8>, rng: &mut SplitMix64) {
    let Some(tail) = snapshot.len().checked_sub(16).filter(|&tail| tail >= 16) else { return };
    let len = u32::from_le_bytes([snapshot[tail], snapshot[tail + 1], snapshot[tail + 2], snapshot[tail + 3]]) as usize;
    let Some(from) = tail.checked_sub(len).filter(|&from| from >= 16) else { return };
    let mut info = snapshot[from..tail].to_vec();
    if one_in(rng, 4) {
        proto::mutate(&mut info, rng);
    }
    let sum = crc_fast::crc32_iscsi(&info);
    let footer = [&info[..], &(info.len() as u32).to_le_bytes(), &sum.to_le_bytes(), b"TESSRSNP"].concat();
    snapshot.splice(from.., footer);
}

/// Offsets and lengths of the fields of a record's header, without its checksums.
const FIELDS: [(usize, usize); 5] = [(4, 1), (8, 8), (16, 8), (24, 8), (32, 4)];

/// Restores the checksums of a log file, after a change of one record. With `renumber`, the file gets another number.
fn restore(number_of_file: u64, bytes: &mut Vec<u8>, changed: Option<usize>, rng: &mut SplitMix64, renumber: bool) {
    if bytes.len() < 64 || !bytes.starts_with(b"TESSRAFT") {
        return;
    }
    if renumber {
        bytes[40..48].copy_from_slice(&number_of_file.to_le_bytes());
    }
    if !one_in(rng, 16) || renumber {
        let sum = crc_fast::crc32_iscsi(&bytes[..56]);
        bytes[56..60].copy_from_slice(&sum.to_le_bytes());
    }
    let mut owner: [u8; 16] = bytes[16..32].try_into().unwrap_or_default();
    (0..8).for_each(|i| owner[i] ^= bytes[32 + i]);
    let place = RecordPlace { disk_uuid: owner, file: number_of_file };
    let (mut at, mut record) = (64, 0);
    while at + 48 <= bytes.len() {
        if !bytes[at..].starts_with(b"TRFT") {
            at += 8;
            continue;
        }
        if changed == Some(record) {
            change(bytes, at, rng);
        }
        if !one_in(rng, 64) || renumber {
            seal_record(bytes, at, place);
        }
        (at, record) = (at + 8, record + 1);
    }
}

/// Changes a field of a record, or the message that it holds.
fn change(bytes: &mut Vec<u8>, at: usize, rng: &mut SplitMix64) {
    let len = u32::from_le_bytes([bytes[at + 32], bytes[at + 33], bytes[at + 34], bytes[at + 35]]) as usize;
    let data = bytes.get(at + 48..).and_then(|rest| rest.get(..len)).map(<[u8]>::to_vec);
    if let Some(mut data) = data.filter(|_| bytes[at + 4] == 4 && one_in(rng, 2)) {
        proto::mutate(&mut data, rng);
        bytes[at + 32..at + 36].copy_from_slice(&(data.len() as u32).to_le_bytes());
        data.resize(data.len().next_multiple_of(8), 0);
        let end = (at + 48 + len.next_multiple_of(8)).min(bytes.len());
        bytes.splice(at + 48..end, data);
        return;
    }
    let (field, width) = FIELDS[index(rng, FIELDS.len())];
    let mut now = [0; 8];
    now[..width].copy_from_slice(&bytes[at + field..][..width]);
    let next = number(rng, u64::from_le_bytes(now), (bytes.len() - at) as u64).to_le_bytes();
    bytes[at + field..][..width].copy_from_slice(&next[..width]);
}

fn seal_record(bytes: &mut [u8], at: usize, place: RecordPlace) {
    let len = u32::from_le_bytes([bytes[at + 32], bytes[at + 33], bytes[at + 34], bytes[at + 35]]) as usize;
    if let Some(data) = bytes.get(at + 48..).and_then(|rest| rest.get(..len)) {
        let sum = crc_fast::crc32_iscsi(data);
        bytes[at + 36..at + 40].copy_from_slice(&sum.to_le_bytes());
    }
    let seal = place.seal(&bytes[at..at + 44], at as u64);
    bytes[at + 44..at + 48].copy_from_slice(&seal.to_le_bytes());
}
