//! Failing disks and full spools: acknowledged state stays acknowledged, and no other state counts as acknowledged.

use super::*;
use crate::spool::recover::Input;
use crate::spool::replay::replay;
use std::mem::replace;
use tessera_disk::{FaultRates, SimDisk};

fn origin() -> LogOrigin {
    LogOrigin {
        cluster_id: vec![1],
        ino: 4,
        parent: 1,
        name: vec![],
        base_version: 3,
        base_bytes: 0,
        base_content: 5,
        map_version: 0,
    }
}

/// Times to close with.
fn at(time_ns: i64) -> Times {
    Times { mtime_ns: time_ns, ctime_ns: time_ns + 1_000, ..Times::default() }
}

fn log_on(disk: &Arc<dyn Disk>, budget: &Arc<Budget>) -> Log {
    Log::create(disk.clone(), 6, budget.clone(), origin()).unwrap()
}

fn memory() -> Arc<dyn Disk> {
    Arc::new(SimDisk::new(1))
}

fn adopt(disk: &Arc<dyn Disk>, path: &str, budget: Arc<Budget>) -> Log {
    let file = disk.open(path, OpenMode::Existing).unwrap();
    Log::adopt(disk.clone(), file, budget, found(disk, path)).unwrap()
}

/// Accepts writes and fails every sync.
fn failing_disk() -> Arc<dyn DiskFile> {
    let disk = SimDisk::new(1);
    disk.set_rates(FaultRates { sync_fails: 1_000_000, ..FaultRates::default() });
    disk.open("log", OpenMode::Create).unwrap()
}

/// Moves the log to another disk; returns the disk before.
fn swap(log: &mut Log, file: Arc<dyn DiskFile>) -> Arc<dyn DiskFile> {
    replace(&mut Arc::get_mut(&mut log.file).unwrap().file, file)
}

fn found(disk: &Arc<dyn Disk>, path: &str) -> ReplayedLog {
    replay(Input::new(disk.open(path, OpenMode::Existing).unwrap()).unwrap()).unwrap()
}

/// A kernel reports a page that it could not write once, and then calls it clean.
#[test]
fn a_disk_that_failed_once_acknowledges_nothing_more() {
    let disk = memory();
    let mut log = log_on(&disk, &Arc::new(Budget::new(1 << 20)));
    log.write(0, b"bytes").unwrap();
    let good = swap(&mut log, failing_disk());
    assert!(matches!(log.close(at(5), true), Err(LogError::Disk(_))));
    swap(&mut log, good);
    assert!(matches!(log.close(at(5), true), Err(LogError::Disk(_))), "the same closing");
    log.write(5, b"more").unwrap();
    assert!(matches!(log.close(at(6), true), Err(LogError::Disk(_))), "a later one");
}

/// A disk that loses power may keep the end of its unsynced bytes without the beginning. If an earlier close is
/// durable, no later close is in the log before everything that it covers is durable (P9).
#[test]
fn a_closing_that_fails_does_not_spoil_one_that_is_durable() {
    let disk = memory();
    let budget = Arc::new(Budget::new(1 << 20));
    let mut log = log_on(&disk, &budget);
    log.write(0, b"durable").unwrap();
    log.close(at(5), true).unwrap();
    log.write(0, b"never so").unwrap();
    let before = log.end;
    let good = swap(&mut log, failing_disk());
    assert!(log.close(at(6), true).is_err() && log.close(at(7), false).is_err());
    assert_eq!((log.end, log.closed()), (before, None));
    swap(&mut log, good);
    let path = log.path().to_string();
    drop(log);
    // The same holds for closes on the next mount.
    let mut log = adopt(&disk, &path, budget);
    assert_eq!((log.size_bytes(), log.closed()), (7, Some(at(5))));
    log.write(0, b"again").unwrap();
    let before = log.end;
    swap(&mut log, failing_disk());
    assert!(log.close(at(8), true).is_err());
    assert_eq!(log.end, before);
}

/// A log is adopted even if it does not fit into the budget: the spool was full at the crash, or is smaller now.
#[test]
fn a_log_is_found_again_where_there_is_no_room_for_it() {
    let disk = memory();
    let mut log = log_on(&disk, &Arc::new(Budget::new(1 << 20)));
    log.write(0, &[7; 5000]).unwrap();
    log.close(at(5), true).unwrap();
    log.write(9, b"not closed").unwrap();
    let path = log.path().to_string();
    drop(log);
    let small = Arc::new(Budget::with_records(1000, 1));
    let mut log = adopt(&disk, &path, small.clone());
    assert_eq!((log.size_bytes(), log.owes(), small.used_bytes()), (5000, true, log.end));
    assert_eq!(disk.open(&path, OpenMode::Existing).unwrap().len().unwrap(), log.end, "what was not closed is cut off");
    assert!(matches!(log.write(0, b"x"), Err(LogError::Budget(BudgetError::Records { limit: 1 }))));
    log.remove();
    assert_eq!(small.used_bytes(), 0);
}

/// Each record costs memory, so records have a budget of their own.
#[test]
fn a_file_that_is_written_byte_by_byte_goes_without_the_spool() {
    let disk = memory();
    let budget = Arc::new(Budget::with_records(1 << 20, 10));
    let mut log = log_on(&disk, &budget);
    (0..9).for_each(|at| log.write(at, b"x").unwrap());
    let before = (log.end, budget.used_bytes());
    assert!(matches!(log.write(9, b"x"), Err(LogError::Budget(BudgetError::Records { limit: 10 }))));
    assert_eq!((log.end, budget.used_bytes(), log.size_bytes()), (before.0, before.1, 9));
    log.remove();
    log_on(&disk, &budget).write(0, &[1; 1000]).unwrap();
}

/// The record of a push counts against the limit, and is released with its log.
#[test]
fn the_record_of_a_push_is_counted() {
    let disk = memory();
    let budget = Arc::new(Budget::with_records(1 << 20, 4));
    let mut log = log_on(&disk, &budget);
    log.write(0, b"x").unwrap();
    log.close(at(5), true).unwrap();
    log.is_pushed(&log.view(), 77);
    assert!(matches!(log.write(1, b"x"), Err(LogError::Budget(BudgetError::Records { limit: 4 }))));
    log.remove();
    log_on(&disk, &budget).write(0, b"x").unwrap();
}

/// A push that happens during writes is on record, even in a full spool. Otherwise the next mount would take its own
/// version for another client's.
#[test]
fn what_was_pushed_is_on_record_in_a_full_spool() {
    let disk = memory();
    let budget = Arc::new(Budget::new(10_000));
    let mut log = log_on(&disk, &budget);
    log.write(0, &[1; 2000]).unwrap();
    log.close(at(5), true).unwrap();
    let view = log.view();
    let left = 10_000 - budget.used_bytes() - 48 - HEADER_BYTES as u64;
    log.write(0, &vec![2; left as usize]).unwrap();
    log.close(at(6), true).unwrap();
    assert_eq!(budget.used_bytes(), 10_000);
    assert!(!log.stored(12, 70, &view));
    let last = log.view();
    let content = log.is_pushed(&last, 77);
    assert!(content >= CONTENT_DRAWN && content != log.is_pushed(&last, 78), "a number of its own each time");
    let (path, closed_end) = (log.path().to_string(), last.closed_end);
    assert!(log.is(&log.view()) && log.pushed_as(content) == Some(closed_end));
    drop(log);
    // A crash of the next mount does not lose the record either, and mounts that repeat it do not add to it.
    let mut lengths = Vec::new();
    for _ in 0..3 {
        let found = found(&disk, &path);
        assert_eq!((found.origin.base_version, found.origin.base_content, found.times), (12, 70, at(6)));
        assert_eq!((found.pushes.len(), found.pushes[0]), (2, PendingPush { content, closed_end }));
        let log = adopt(&disk, &path, budget.clone());
        assert_eq!((log.pushed_as(content), log.origin.base_content), (Some(closed_end), 70));
        lengths.push(log.end);
    }
    assert_eq!(lengths[0], lengths[2]);
}

/// Another mount's version then stands without a copy beside it.
#[test]
fn a_close_without_changes_leaves_the_bytes_in_the_version_below() {
    let (disk, budget) = (memory(), Arc::new(Budget::new(10_000)));
    let mut log = log_on(&disk, &budget);
    log.write(0, b"bytes").unwrap();
    log.close(at(5), false).unwrap();
    let view = log.view();
    assert!(!view.is_in_version_below());
    log.close(at(6), false).unwrap();
    assert!(!log.stored(12, 70, &view) && log.view().is_in_version_below());
    let path = log.path().to_string();
    drop(log);
    let mut log = adopt(&disk, &path, budget.clone());
    assert!(log.owes() && log.view().is_in_version_below(), "on the next mount, too");
    log.set_len(2).unwrap();
    log.close(at(7), false).unwrap();
    assert!(!log.view().is_in_version_below());
    drop(log);
    assert!(!adopt(&disk, &path, budget).view().is_in_version_below());
}

/// A write and a close follow the record of a push, so that a mount that takes the log over repeats a record that it keeps.
#[test]
fn mounts_that_end_early_do_not_make_a_log_grow() {
    let (disk, budget) = (memory(), Arc::new(Budget::new(10_000)));
    let mut log = log_on(&disk, &budget);
    log.write(0, b"first").unwrap();
    log.close(at(5), false).unwrap();
    let content = log.is_pushed(&log.view(), 77);
    log.write(0, b"later").unwrap();
    log.close(at(6), false).unwrap();
    let (path, closed_end) = (log.path().to_string(), log.pushed_as(content));
    drop(log);
    let lengths: Vec<u64> = (0..3).map(|_| adopt(&disk, &path, budget.clone()).end).collect();
    assert_eq!(lengths[0], lengths[2], "{lengths:?}");
    assert_eq!(adopt(&disk, &path, budget).pushed_as(content), closed_end);
}

/// The record that a push ended is in the tail that the next mount cuts off; the record that it began is not.
#[test]
fn a_push_that_ended_stays_ended_for_later_mounts() {
    let (disk, budget) = (memory(), Arc::new(Budget::new(10_000)));
    let mut log = log_on(&disk, &budget);
    log.write(0, b"first").unwrap();
    log.close(at(5), false).unwrap();
    let first = log.view();
    let content = log.is_pushed(&first, 77);
    log.close(at(6), false).unwrap();
    assert!(!log.stored(12, content, &first));
    let path = log.path().to_string();
    drop(log);
    for _ in 0..3 {
        let log = adopt(&disk, &path, budget.clone());
        assert_eq!((log.origin.base_version, log.pushed_as(content)), (12, None));
    }
}

/// The kernel sets times at any moment. A set time does not change the bytes.
#[test]
fn a_time_that_was_set_is_no_other_content() {
    let disk = memory();
    let mut log = log_on(&disk, &Arc::new(Budget::new(1 << 20)));
    log.write(0, b"bytes").unwrap();
    log.close(at(5), false).unwrap();
    let view = log.view();
    log.close(at(6), false).unwrap();
    assert!(!log.is(&view) && log.has_bytes_of(&view));
    log.write(0, b"other").unwrap();
    assert!(!log.has_bytes_of(&view) && log.has_bytes_of(&log.view()));
}

#[test]
fn a_write_of_nothing_is_none() {
    let disk = memory();
    let mut log = log_on(&disk, &Arc::new(Budget::new(1 << 20)));
    log.write(1000, b"").unwrap();
    log.close(at(5), true).unwrap();
    assert_eq!((log.size_bytes(), found(&disk, log.path()).overlay.size_bytes()), (0, 0));
}

#[test]
fn a_spool_that_is_full_takes_nothing_more_until_something_went() {
    let disk = memory();
    let budget = Arc::new(Budget::new(3000));
    let origin = |ino| LogOrigin {
        cluster_id: vec![],
        ino,
        parent: 1,
        name: vec![],
        base_version: 0,
        base_bytes: 0,
        base_content: 5,
        map_version: 0,
    };
    let mut one = Log::create(disk.clone(), 1, budget.clone(), origin(1)).unwrap();
    one.write(0, &[1; 1000]).unwrap();
    let before = (one.end, budget.used_bytes());
    assert_eq!(before.0, before.1);
    assert!(matches!(one.write(1000, &[2; 3000]), Err(LogError::Budget(BudgetError::Bytes { limit_bytes: 3000, .. }))));
    assert_eq!((one.end, budget.used_bytes(), one.size_bytes()), (before.0, before.1, 1000));
    let view = one.view();
    one.remove();
    let mut out = [0; 10];
    view.read_over(990, &mut out).unwrap();
    assert_eq!(out, [1; 10], "who still reads it can");
    drop(view);
    assert_eq!(budget.used_bytes(), 0);
    assert_eq!(disk.list("").unwrap().len(), 0);
    let (mut many, roomy) = (Vec::new(), Arc::new(Budget::new(1 << 20)));
    let refused = loop {
        match Log::create(disk.clone(), many.len() as u64, roomy.clone(), origin(1)) {
            Ok(log) => many.push(log),
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, LogError::Budget(BudgetError::Logs)) && many.len() > 100);
    many.pop();
    Log::create(disk.clone(), 1 << 40, roomy, origin(2)).unwrap();
}

/// A read from a log is checked (P2).
#[test]
fn a_log_that_rots_is_not_read() {
    let disk = SimDisk::new(1);
    let origin = LogOrigin {
        cluster_id: vec![],
        ino: 3,
        parent: 1,
        name: vec![],
        base_version: 0,
        base_bytes: 0,
        base_content: 5,
        map_version: 0,
    };
    let mut log = Log::create(Arc::new(disk.clone()), 9, Arc::new(Budget::new(1 << 20)), origin).unwrap();
    log.write(0, &[7; 200_000]).unwrap();
    assert!(disk.rot(log.path(), log.end - 1, 1));
    let mut out = [0; 100];
    log.view().read_over(0, &mut out).unwrap();
    assert!(matches!(log.view().read_over(140_000, &mut out), Err(LogError::Damaged { .. })));
}
