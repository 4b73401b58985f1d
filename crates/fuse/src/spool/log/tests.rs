//! Failing disks and full spools: acknowledged state stays acknowledged, and no other state counts as acknowledged.

use super::*;
use std::mem::replace;
use tessera_mount::spool::replay::{ReplayedLog, replay};

fn origin() -> LogOrigin {
    LogOrigin { cluster_id: vec![1], ino: 4, parent: 1, name: vec![], base_version: 3, base_bytes: 0, base_content: 5 }
}

fn log_in(dir: &Path, budget: &Arc<Budget>) -> Log {
    Log::create(dir, 6, budget.clone(), origin()).unwrap()
}

/// Accepts writes and fails every sync.
fn failing_disk() -> File {
    File::options().read(true).write(true).open("/dev/null").unwrap()
}

/// Moves the log to another disk; returns the disk before.
fn disk(log: &mut Log, file: File) -> File {
    replace(&mut Arc::get_mut(&mut log.file).unwrap().file, file)
}

fn found(path: &Path) -> ReplayedLog {
    replay(File::open(path).unwrap()).unwrap()
}

/// A kernel reports a page that it could not write once, and then calls it clean.
#[test]
fn a_disk_that_failed_once_acknowledges_nothing_more() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = log_in(dir.path(), &Arc::new(Budget::new(1 << 20)));
    log.write(0, b"bytes").unwrap();
    let good = disk(&mut log, failing_disk());
    assert!(matches!(log.close(5, true), Err(LogError::Disk { .. })));
    disk(&mut log, good);
    assert!(matches!(log.close(5, true), Err(LogError::Disk { .. })), "the same closing");
    log.write(5, b"more").unwrap();
    assert!(matches!(log.close(6, true), Err(LogError::Disk { .. })), "a later one");
}

/// A disk that loses power may keep the end of its unsynced bytes without the beginning. If an earlier close is
/// durable, no later close is in the log before everything that it covers is durable (P9).
#[test]
fn a_closing_that_fails_does_not_spoil_one_that_is_durable() {
    let dir = tempfile::tempdir().unwrap();
    let budget = Arc::new(Budget::new(1 << 20));
    let mut log = log_in(dir.path(), &budget);
    log.write(0, b"durable").unwrap();
    log.close(5, true).unwrap();
    log.write(0, b"never so").unwrap();
    let before = log.len_bytes();
    let good = disk(&mut log, failing_disk());
    assert!(log.close(6, true).is_err() && log.close(7, false).is_err());
    assert_eq!((log.len_bytes(), log.closed()), (before, None));
    disk(&mut log, good);
    let path = log.path().to_path_buf();
    drop(log);
    // The same holds for closes on the next mount.
    let file = File::options().read(true).write(true).open(&path).unwrap();
    let mut log = Log::adopt(path.clone(), file, budget, found(&path)).unwrap();
    assert_eq!((log.size_bytes(), log.closed()), (7, Some(5)));
    log.write(0, b"again").unwrap();
    let before = log.len_bytes();
    disk(&mut log, failing_disk());
    assert!(log.close(8, true).is_err());
    assert_eq!(log.len_bytes(), before);
}

/// A log is adopted even if it does not fit into the budget: the spool was full at the crash, or is smaller now.
#[test]
fn a_log_is_found_again_where_there_is_no_room_for_it() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = log_in(dir.path(), &Arc::new(Budget::new(1 << 20)));
    log.write(0, &[7; 5000]).unwrap();
    log.close(5, true).unwrap();
    log.write(9, b"not closed").unwrap();
    let path = log.path().to_path_buf();
    drop(log);
    let small = Arc::new(Budget::with_records(1000, 1));
    let file = File::options().read(true).write(true).open(&path).unwrap();
    let mut log = Log::adopt(path.clone(), file, small.clone(), found(&path)).unwrap();
    assert_eq!((log.size_bytes(), log.owes(), small.used_bytes()), (5000, true, log.len_bytes()));
    assert_eq!(path.metadata().unwrap().len(), log.len_bytes(), "what was not closed is cut off");
    assert!(matches!(log.write(0, b"x"), Err(LogError::Budget(BudgetError::Records { limit: 1 }))));
    log.remove();
    assert_eq!(small.used_bytes(), 0);
}

/// Each record costs memory, so records have a budget of their own.
#[test]
fn a_file_that_is_written_byte_by_byte_goes_without_the_spool() {
    let dir = tempfile::tempdir().unwrap();
    let budget = Arc::new(Budget::with_records(1 << 20, 10));
    let mut log = log_in(dir.path(), &budget);
    (0..9).for_each(|at| log.write(at, b"x").unwrap());
    let before = (log.len_bytes(), budget.used_bytes());
    assert!(matches!(log.write(9, b"x"), Err(LogError::Budget(BudgetError::Records { limit: 10 }))));
    assert_eq!((log.len_bytes(), budget.used_bytes(), log.size_bytes()), (before.0, before.1, 9));
    log.remove();
    log_in(dir.path(), &budget).write(0, &[1; 1000]).unwrap();
}

/// A push that happens during writes is on record, even in a full spool. Otherwise the next mount would take its own
/// version for another client's.
#[test]
fn what_was_pushed_is_on_record_in_a_full_spool() {
    let dir = tempfile::tempdir().unwrap();
    let budget = Arc::new(Budget::new(10_000));
    let mut log = log_in(dir.path(), &budget);
    log.write(0, &[1; 2000]).unwrap();
    log.close(5, true).unwrap();
    let view = log.view();
    let left = 10_000 - budget.used_bytes() - 40 - HEADER_BYTES as u64;
    log.write(0, &vec![2; left as usize]).unwrap();
    log.close(6, true).unwrap();
    assert_eq!(budget.used_bytes(), 10_000);
    assert!(!log.stored(12, 70, &view));
    let last = log.view();
    let content = log.is_pushed(&last);
    assert!(content >= CONTENT_DRAWN && content != log.is_pushed(&last), "a number of its own each time");
    let (path, closed_end) = (log.path().to_path_buf(), last.closed_end);
    assert!(log.is(&log.view()) && log.pushed_as(content) == Some(closed_end));
    drop(log);
    // A crash of the next mount does not lose the record either.
    for _ in 0..3 {
        let found = found(&path);
        assert_eq!((found.origin.base_version, found.origin.base_content, found.mtime_ns), (12, 70, 6));
        assert_eq!((found.pushes.len(), found.pushes[0]), (2, PendingPush { content, closed_end }));
        let file = File::options().read(true).write(true).open(&path).unwrap();
        let log = Log::adopt(path.clone(), file, budget.clone(), found).unwrap();
        assert_eq!((log.pushed_as(content), log.base_content()), (Some(closed_end), 70));
    }
}

/// The kernel sets times at any moment. A set time does not change the bytes.
#[test]
fn a_time_that_was_set_is_no_other_content() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = log_in(dir.path(), &Arc::new(Budget::new(1 << 20)));
    log.write(0, b"bytes").unwrap();
    log.close(5, false).unwrap();
    let view = log.view();
    log.close(6, false).unwrap();
    assert!(!log.is(&view) && log.has_bytes_of(&view));
    log.write(0, b"other").unwrap();
    assert!(!log.has_bytes_of(&view) && log.has_bytes_of(&log.view()));
}

#[test]
fn a_write_of_nothing_is_none() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = log_in(dir.path(), &Arc::new(Budget::new(1 << 20)));
    log.write(1000, b"").unwrap();
    log.close(5, true).unwrap();
    assert_eq!((log.size_bytes(), found(log.path()).overlay.size_bytes()), (0, 0));
}
