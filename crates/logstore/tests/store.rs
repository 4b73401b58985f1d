//! Behaviour of the log store, one behaviour per test.

mod common;

use std::sync::Arc;

use common::*;
use tessera_disk::{CrashKind, Disk, Fault, OpenMode, SimDisk};
use tessera_failpoint as failpoint;
use tessera_logstore::*;

fn open_log(disk: &SimDisk) -> (LogStore, LogReport) {
    let options = LogOptions { file_size_bytes: 500 };
    LogStore::open(Arc::new(disk.clone()), options).unwrap()
}

fn entry(term: u64, seq: u64) -> LogEntry {
    LogEntry { term, seq, bytes: format!("entry {seq} of term {term}").into_bytes() }
}

fn run(term: u64, seqs: std::ops::RangeInclusive<u64>) -> Vec<LogEntry> {
    seqs.map(|seq| entry(term, seq)).collect()
}

fn all(log: &LogStore) -> Vec<LogEntry> {
    let state = log.state();
    let mut found: Vec<LogEntry> = Vec::new();
    let mut from = state.first_seq.max(1);
    while from <= state.last_seq {
        let some = log.entries(from, 50).unwrap();
        from = some.last().unwrap().seq + 1;
        found.extend(some);
    }
    found
}

fn snapshot(seq: u64, term: u64, bytes: &[u8]) -> Snapshot {
    Snapshot { seq, term, total_bytes: bytes.len() as u64, hash: *blake3::hash(bytes).as_bytes() }
}

#[test]
fn entries_come_back_after_a_power_loss() {
    let disk = sim(1);
    let (mut log, report) = open_log(&disk);
    assert_eq!(report, LogReport::default());
    assert_eq!(log.state(), LogState::default());
    for seq in 1..=40 {
        log.append(3, if seq == 1 { 0 } else { 3 }, &[entry(3, seq)]).unwrap();
    }
    let (log, report) = open_log(&disk.crash(CrashKind::KeepNone));
    assert_eq!(report, LogReport::default());
    assert_eq!(all(&log), run(3, 1..=40));
    let state = log.state();
    assert_eq!((state.term, state.first_seq, state.last_seq, state.last_term), (3, 1, 40, 3));
    assert!(log.entries(41, 100).unwrap().is_empty());
}

/// P8: an append that is sent twice takes effect once.
#[test]
fn an_append_may_be_repeated_and_may_overlap() {
    let disk = sim(1);
    let (mut log, _) = LogStore::open(Arc::new(disk.clone()), LogOptions::default()).unwrap();
    log.append(1, 0, &run(1, 1..=5)).unwrap();
    let before = disk.io_count();
    log.append(1, 0, &run(1, 1..=5)).unwrap();
    assert_eq!(disk.io_count(), before + 5, "five entries compared, nothing written");
    log.append(1, 1, &run(1, 3..=6)).unwrap();
    assert_eq!(all(&log), run(1, 1..=6));
    assert_eq!(disk.contents("log/0000000000000001.log").unwrap().len(), 128 + 48 + 6 * (48 + 24));
}

/// P11: a sender with an older term is refused, also after a restart.
#[test]
fn older_terms_are_refused_for_ever() {
    let disk = sim(1);
    let (mut log, _) = open_log(&disk);
    log.append(1, 0, &run(1, 1..=2)).unwrap();
    log.observe_term(7).unwrap();
    for disk in [disk.reopen(), disk.crash(CrashKind::KeepNone)] {
        let (mut log, _) = open_log(&disk);
        assert_eq!(log.state().term, 7);
        let refused = log.append(6, 1, &[entry(6, 3)]);
        assert!(matches!(refused, Err(LogError::StaleTerm { got: 6, highest: 7 })));
        assert!(matches!(log.observe_term(6), Err(LogError::StaleTerm { .. })));
        assert!(matches!(log.put_snapshot(6, snapshot(1, 1, b"x"), 0, b"x"), Err(LogError::StaleTerm { .. })));
        log.append(7, 1, &[entry(1, 3)]).unwrap();
        assert_eq!(all(&log), run(1, 1..=3));
    }
}

#[test]
fn a_higher_term_overrules_from_where_it_differs() {
    let disk = sim(1);
    let (mut log, _) = open_log(&disk);
    log.append(1, 0, &run(1, 1..=30)).unwrap();
    log.append(2, 1, &run(2, 6..=7)).unwrap();
    let mut want = run(1, 1..=5);
    want.extend(run(2, 6..=7));
    assert_eq!(all(&log), want);
    let (mut log, report) = open_log(&disk.crash(CrashKind::KeepNone));
    assert_eq!((all(&log), report), (want, LogReport::default()));
    log.append(2, 2, &run(2, 8..=8)).unwrap();
    assert_eq!(log.state().last_seq, 8);
}

#[test]
fn what_does_not_follow_is_refused_with_what_is_needed() {
    let (mut log, _) = open_log(&sim(1));
    assert!(matches!(log.append(1, 0, &[entry(1, 2)]), Err(LogError::Gap { got: 2, next_seq: 1 })));
    log.append(1, 0, &run(1, 1..=3)).unwrap();
    assert!(matches!(log.append(1, 1, &[entry(1, 5)]), Err(LogError::Gap { got: 5, next_seq: 4 })));
    assert!(matches!(log.append(3, 2, &[entry(3, 4)]), Err(LogError::PrevTerm { seq: 3, held: 1, expected: 2 })));
    for bad in [
        vec![entry(1, 0)],
        vec![entry(0, 4)],
        vec![entry(9, 4)],
        vec![entry(1, 4), entry(1, 6)],
        vec![entry(2, 4), entry(1, 5)],
    ] {
        assert!(matches!(log.append(3, 1, &bad), Err(LogError::BadEntry { .. })), "{bad:?}");
    }
    let mut other = entry(1, 3);
    other.bytes[0] ^= 1;
    assert!(matches!(log.append(1, 1, &[other]), Err(LogError::Conflict { seq: 3, .. })));
    assert_eq!(all(&log), run(1, 1..=3));
    assert!(matches!(log.entries(0, 10), Err(LogError::NotHeld { seq: 0 })));
}

#[test]
fn snapshots_are_complete_or_absent_and_let_entries_go() {
    let disk = sim(1);
    let (mut log, _) = open_log(&disk);
    log.append(1, 0, &run(1, 1..=40)).unwrap();
    let blob: Vec<u8> = (0..3000u32).map(|i| i as u8).collect();
    let snap = snapshot(30, 1, &blob);
    assert!(matches!(log.put_snapshot(1, snap, 10, &blob[10..20]), Err(LogError::Piece { expected: 0, .. })));
    log.put_snapshot(1, snap, 0, &blob[..1000]).unwrap();
    log.put_snapshot(1, snap, 500, &blob[500..1000]).unwrap();
    assert!(matches!(log.put_snapshot(1, snap, 1001, &blob[1001..]), Err(LogError::Piece { expected: 1000, .. })));
    assert!(matches!(log.put_snapshot(1, snap, 2999, b"xx"), Err(LogError::PieceLength { .. })));
    assert_eq!(log.state().snapshot, None);
    assert_eq!(open_log(&disk.crash(CrashKind::KeepAll)).0.state().snapshot, None);

    let disk = sim(1);
    let (mut log, _) = open_log(&disk);
    for seq in 1..=40 {
        log.append(1, 0, &[entry(1, seq)]).unwrap();
    }
    log.drop_to(30).unwrap();
    assert_eq!(log.state().first_seq, 1, "no snapshot, nothing dropped");
    log.put_snapshot(1, snap, 0, &blob[..1000]).unwrap();
    assert_eq!(log.state().snapshot, None);
    log.put_snapshot(1, snap, 1000, &blob[1000..]).unwrap();
    assert_eq!(log.state().snapshot, Some(snap));
    log.put_snapshot(1, snap, 0, &blob).expect("again");
    log.drop_to(99).unwrap();
    let first = log.state().first_seq;
    assert!((20..=31).contains(&first), "{first}");
    let (mut log, report) = open_log(&disk.crash(CrashKind::KeepNone));
    assert_eq!((report, log.state().snapshot, log.state().first_seq), (LogReport::default(), Some(snap), first));
    assert_eq!(log.read_snapshot(30, 2990, 100).unwrap(), blob[2990..]);
    assert!(snapshot_is_sound(&log));
    assert!(matches!(log.read_snapshot(29, 0, 1), Err(LogError::NoSnapshot { seq: 29 })));
    let newer = snapshot(35, 1, b"small");
    log.put_snapshot(1, newer, 0, b"small").unwrap();
    assert_eq!(log.state().snapshot, Some(newer));
    assert_eq!(disk.paths().iter().filter(|p| p.contains("snap")).count(), 1);
    log.append(1, 1, &run(1, 41..=41)).unwrap();
}

#[test]
fn a_snapshot_with_the_wrong_hash_is_refused() {
    let (mut log, _) = open_log(&sim(1));
    let snap = snapshot(3, 1, b"right");
    assert!(matches!(log.put_snapshot(1, snap, 0, b"wrong"), Err(LogError::SnapshotHash { seq: 3 })));
    assert_eq!(log.state().snapshot, None);
    log.put_snapshot(1, snap, 0, b"right").unwrap();
    assert_eq!(log.state().snapshot, Some(snap));
}

#[test]
fn a_snapshot_ahead_of_the_log_replaces_it() {
    let disk = sim(1);
    let (mut log, _) = open_log(&disk);
    log.append(1, 0, &run(1, 1..=5)).unwrap();
    log.put_snapshot(2, snapshot(50, 2, b"s"), 0, b"s").unwrap();
    let state = log.state();
    assert_eq!((state.last_seq, state.last_term, state.missing_seq), (50, 2, None));
    log.append(2, 2, &run(2, 51..=53)).unwrap();
    log.drop_to(50).unwrap();
    let (log, report) = open_log(&disk.crash(CrashKind::KeepNone));
    assert_eq!(report, LogReport::default());
    assert_eq!((log.state().last_seq, log.state().missing_seq), (53, None));
    assert_eq!(log.entries(51, 1000).unwrap(), run(2, 51..=53));
}

/// A snapshot of another branch voids the entries held after its position.
#[test]
fn entries_that_do_not_continue_a_snapshot_are_void() {
    let disk = sim(1);
    let (mut log, _) = open_log(&disk);
    log.append(1, 0, &run(1, 1..=8)).unwrap();
    log.put_snapshot(2, snapshot(6, 2, b"s"), 0, b"s").unwrap();
    assert_eq!((log.state().last_seq, log.state().last_term), (6, 2));
    let (mut log, _) = open_log(&disk.crash(CrashKind::KeepNone));
    assert_eq!(log.state().last_seq, 6);
    log.append(2, 2, &run(2, 7..=7)).unwrap();
}

#[test]
fn rot_is_reported_by_position_and_healed_by_sending_again() {
    let disk = sim(1);
    let (mut log, _) = open_log(&disk);
    for seq in 1..=9 {
        log.append(1, 0, &[entry(1, seq)]).unwrap();
    }
    let path = "log/0000000000000001.log";
    let bytes = disk.contents(path).unwrap();
    let needle = b"entry 4 of";
    let at = bytes.windows(needle.len()).position(|w| w == needle).unwrap() as u64;
    disk.rot(path, at, 1);
    assert!(matches!(log.entries(4, 100), Err(LogError::Damaged { seq: 4, .. })));
    assert_eq!(log.entries(1, 1000).unwrap(), run(1, 1..=3));
    let (mut log, report) = open_log(&disk.reopen());
    assert!(matches!(report.damage[..], [LogDamage::Entries { file: 1, .. }]));
    assert_eq!(log.state().missing_seq, Some(4));
    assert_eq!(log.entries(5, 1000).unwrap(), run(1, 5..=9));
    assert!(matches!(log.entries(4, 100), Err(LogError::NotHeld { seq: 4 })));
    assert!(matches!(log.append(1, 1, &[entry(1, 10)]), Err(LogError::Gap { next_seq: 4, .. })));
    log.append(1, 1, &run(1, 4..=10)).unwrap();
    assert_eq!((all(&log), log.state().missing_seq), (run(1, 1..=10), None));
}

#[test]
fn no_space_in_mid_append_leaves_the_log_intact_and_usable() {
    let disk = sim(1);
    let (mut log, _) = open_log(&disk);
    log.append(1, 0, &run(1, 1..=3)).unwrap();
    for seq in 4..=6 {
        disk.fail_at(disk.io_count(), Fault::NoSpace);
        assert!(matches!(log.append(1, 1, &run(1, seq..=seq + 5)), Err(LogError::Disk(e)) if e.is_no_space()));
        log.append(1, 1, &[entry(1, seq)]).unwrap();
    }
    let (log, report) = open_log(&disk.crash(CrashKind::KeepSome));
    assert_eq!((all(&log), report), (run(1, 1..=6), LogReport::default()));
}

/// P14: files of other disks, clusters or versions are refused by name and stay unchanged.
#[test]
fn logs_from_elsewhere_and_from_the_future_are_refused() {
    let disk = sim(1);
    let (mut log, _) = open_log(&disk);
    log.append(1, 0, &run(1, 1..=3)).unwrap();
    log.put_snapshot(1, snapshot(2, 1, b"s"), 0, b"s").unwrap();
    for path in disk.paths().iter().filter(|p| p.starts_with("log/")) {
        let check = |at: usize| {
            let again = disk.reopen();
            let mut bytes = disk.contents(path).unwrap();
            bytes[at] ^= 3;
            let crc = tessera_accel::checksum::crc32c(&bytes[..104]);
            bytes[104..108].copy_from_slice(&crc.to_le_bytes());
            again.open(path, OpenMode::Existing).unwrap().write_at(0, &bytes).unwrap();
            let result = LogStore::open(Arc::new(again.clone()), LogOptions::default()).map(drop);
            assert_eq!(again.contents(path).unwrap(), bytes);
            result.unwrap_err()
        };
        assert!(matches!(check(8), LogOpenError::Version { found: 2, supported: 1, .. }));
        assert!(matches!(check(16), LogOpenError::Foreign { field: "cluster id", .. }));
        assert!(matches!(check(32), LogOpenError::Foreign { field: "disk uuid", .. }));
        assert!(matches!(check(48), LogOpenError::Foreign { field: "file name", .. }));
    }
}

/// What was acknowledged in the crash test's workload, step by step.
#[derive(Clone, Default, Debug)]
struct Acknowledged {
    term: u64,
    entries: Vec<LogEntry>,
    snapshot: Option<Snapshot>,
}

/// Runs the workload until an operation fails. `acked` holds what returned Ok, `tried` what may have happened besides.
fn script(log: &mut LogStore, acked: &mut Acknowledged, tried: &mut Vec<LogEntry>) -> Result<(), LogError> {
    for round in 0..4u64 {
        let term = round + 1;
        let from = round * 6 + 1;
        for seq in (from..from + 8).step_by(2) {
            let batch = run(term, seq..=seq + 1);
            tried.extend(batch.clone());
            let prev = acked.entries.iter().find(|e| e.seq + 1 == seq).map_or(0, |e| e.term);
            log.append(term, prev, &batch)?;
            acked.entries.truncate(seq as usize - 1);
            acked.entries.extend(batch);
            acked.term = acked.term.max(term);
        }
        let blob = vec![round as u8; 700];
        let snap = snapshot(from, acked.entries[from as usize - 1].term, &blob);
        log.put_snapshot(term, snap, 0, &blob[..300])?;
        log.put_snapshot(term, snap, 300, &blob[300..])?;
        acked.snapshot = Some(snap);
        log.drop_to(from)?;
    }
    Ok(())
}

fn check(acked: &Acknowledged, tried: &[LogEntry], log: &LogStore, context: &str) {
    let state = log.state();
    assert!(state.term >= acked.term, "{context}: term went back");
    assert_eq!(state.missing_seq, None, "{context}");
    assert!(state.snapshot.map_or(0, |s| s.seq) >= acked.snapshot.map_or(0, |s| s.seq), "{context}: snapshot lost");
    assert!(snapshot_is_sound(log));
    let covered = state.snapshot.map_or(0, |s| s.seq);
    // The batch in progress may have begun to overrule entries; everything before it must be there.
    let overruled = tried.iter().filter(|t| acked.entries.get(t.seq as usize - 1).is_some_and(|a| a.term < t.term));
    let safe = overruled.map(|t| t.seq).min().unwrap_or(u64::MAX);
    for entry in acked.entries.iter().filter(|e| e.seq > covered && e.seq < safe) {
        assert_eq!(log.entries(entry.seq, 1).unwrap()[0], *entry, "{context}: an acknowledged entry is lost");
    }
    for seq in covered + 1..=state.last_seq {
        let found = &log.entries(seq, 1).unwrap()[0];
        assert!(tried.contains(found), "{context}: {found:?} was never written");
    }
}

fn crash_everywhere(options: &LogOptions, seeds: u64) -> u64 {
    let fresh = |seed| {
        let disk = sim(seed);
        let (log, _) = LogStore::open(Arc::new(disk.clone()), options.clone()).unwrap();
        (disk, log)
    };
    let (disk, mut log) = fresh(0);
    script(&mut log, &mut Acknowledged::default(), &mut Vec::new()).unwrap();
    let total = disk.io_count();
    for at in 0..total {
        for fault in [Fault::PowerLoss, Fault::Eio, Fault::NoSpace, Fault::SyncFails] {
            for seed in 0..seeds {
                let (disk, mut log) = fresh(seed + at);
                disk.fail_at(at, fault);
                let (mut acked, mut tried) = (Acknowledged::default(), Vec::new());
                let failed = script(&mut log, &mut acked, &mut tried).is_err();
                for kind in [CrashKind::KeepNone, CrashKind::KeepAll, CrashKind::KeepSome, CrashKind::Torn] {
                    let context = format!("{fault:?} at {at}, seed {seed}, {kind:?}, failed {failed}");
                    let after = disk.crash(kind);
                    let (log, report) = LogStore::open(Arc::new(after), options.clone()).unwrap();
                    assert!(report.damage.is_empty(), "{context}: {report:?}");
                    check(&acked, &tried, &log, &context);
                }
                // The process restarts with the cache intact, then continues.
                let disk = disk.reopen();
                let (mut log, _) = LogStore::open(Arc::new(disk.clone()), options.clone()).unwrap();
                check(&acked, &tried, &log, &format!("{fault:?} at {at}, seed {seed}, reopened"));
                let state = log.state();
                let next = entry(9, state.last_seq + 1);
                log.append(9, state.last_term, std::slice::from_ref(&next)).unwrap();
                let after = disk.crash(CrashKind::KeepNone);
                let (log, report) = LogStore::open(Arc::new(after), options.clone()).unwrap();
                assert!(report.damage.is_empty(), "{fault:?} at {at}, seed {seed}, went on: {report:?}");
                assert_eq!(log.entries(next.seq, 1).unwrap(), [next]);
            }
        }
    }
    total
}

/// P9: with any fault at any I/O, everything acknowledged is there, and otherwise only what was tried.
#[test]
fn every_crash_at_every_io_keeps_what_was_acknowledged() {
    let total = crash_everywhere(&LogOptions { file_size_bytes: 300 }, 2);
    assert!(total > 100, "{total}");
}

#[test]
fn failpoints_in_the_log_are_caught() {
    let caught = |mistake: Option<&str>| {
        let _guard = mistake.map(failpoint::activate);
        let options = LogOptions { file_size_bytes: 300 };
        std::panic::catch_unwind(|| crash_everywhere(&options, 1)).is_err()
    };
    assert!(!caught(None));
    for mistake in ["logstore.ack_before_sync", "logstore.keep_torn_tail"] {
        assert!(caught(Some(mistake)), "{mistake} survived");
    }
}
