//! Databases on real files: sums are written, damage is met, failed syncs are remembered.

use rusqlite::{Connection, ErrorCode, OpenFlags, ffi};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use tempfile::TempDir;
use tessera_pagesum::page::{self, Format, PAGE_BYTES};
use tessera_pagesum::scrub::{Scrub, Step};
use tessera_pagesum::{Damage, Displaced, log_check, open, reserve, unsynced, watch};

const FLAGS: OpenFlags = OpenFlags::SQLITE_OPEN_READ_WRITE.union(OpenFlags::SQLITE_OPEN_CREATE);

fn connect(path: &Path) -> Connection {
    let conn = open(path, FLAGS).unwrap();
    conn.execute_batch("PRAGMA cache_size = 20; PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;").unwrap();
    conn
}

struct Scene {
    dir: TempDir,
}

impl Scene {
    fn new() -> Scene {
        Scene { dir: tempfile::tempdir().unwrap() }
    }

    fn database(&self) -> PathBuf {
        self.dir.path().join("d.db")
    }

    fn log(&self) -> PathBuf {
        self.dir.path().join("d.db-wal")
    }

    /// A database with a table; automatic checkpoints are off.
    fn create(&self) -> Connection {
        let conn = open(&self.database(), FLAGS).unwrap();
        reserve(&conn).unwrap();
        drop(conn);
        let conn = open(&self.database(), FLAGS).unwrap();
        reserve(&conn).unwrap();
        conn.execute_batch(
            "PRAGMA cache_size = 20; PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA wal_autocheckpoint = 0;
             CREATE TABLE t (k INTEGER PRIMARY KEY, v BLOB NOT NULL);",
        )
        .unwrap();
        conn
    }
}

fn fill(conn: &Connection, from: i64, count: i64) {
    for k in from..from + count {
        conn.execute("INSERT OR REPLACE INTO t VALUES (?1, randomblob(900))", [k]).unwrap();
    }
}

fn flip(path: &Path, offset: u64) {
    let file = std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).unwrap();
    file.write_all_at(&[byte[0] ^ 0x10], offset).unwrap();
}

fn scrub(path: &Path) -> Step {
    let mut pass = Scrub::start(path).unwrap();
    loop {
        match pass.step() {
            Step::More | Step::Again => {}
            end => return end,
        }
    }
}

fn read_all(conn: &Connection) -> rusqlite::Result<i64> {
    conn.query_row("SELECT sum(length(v)) FROM t", [], |row| row.get(0))
}

fn is_data_error(result: &rusqlite::Result<i64>) -> bool {
    matches!(result, Err(rusqlite::Error::SqliteFailure(error, _)) if error.extended_code == ffi::SQLITE_IOERR_DATA)
}

/// Inserts, deletes, spills of the cache, rollbacks, checkpoints and reopened files: every page of the file has its sum.
#[test]
fn every_page_that_sqlite_writes_has_its_sum() {
    let scene = Scene::new();
    let mut conn = scene.create();
    for round in 0..12 {
        conn.execute_batch("BEGIN").unwrap();
        fill(&conn, round * 300, 400);
        conn.execute_batch(if round % 4 == 3 { "ROLLBACK" } else { "COMMIT" }).unwrap();
        conn.execute("DELETE FROM t WHERE k % 7 < 5 AND k < ?1", [round * 250]).unwrap();
        if round % 3 == 2 {
            conn.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
            assert!(matches!(scrub(&scene.database()), Step::Done(pages) if pages > 10));
        }
        if round % 5 == 4 {
            conn.close().unwrap();
            conn = connect(&scene.database());
        }
        let fine: String = conn.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
        assert_eq!(fine, "ok");
    }
    assert_eq!(watch(&conn).unwrap().damage(), None);
    let start = std::fs::read(scene.database()).unwrap();
    assert_eq!(page::format_of(&start[..100]), Format::Summed);
}

/// P2: a flipped bit on any page is an error that names the page, and nothing is written after it.
#[test]
fn a_rotten_page_is_met_when_it_is_read() {
    let scene = Scene::new();
    let conn = scene.create();
    fill(&conn, 0, 300);
    conn.close().unwrap();
    let pages = std::fs::metadata(scene.database()).unwrap().len() / PAGE_BYTES as u64;
    for number in (2..=pages).step_by(7) {
        let at = (number - 1) * PAGE_BYTES as u64 + (number * 577) % PAGE_BYTES as u64;
        flip(&scene.database(), at);
        let conn = connect(&scene.database());
        assert!(is_data_error(&read_all(&conn)), "page {number}");
        let file = scene.database().display().to_string();
        assert_eq!(watch(&conn).unwrap().damage(), Some(&Damage::Page { file, number }));
        assert!(conn.execute("DELETE FROM t", []).is_err());
        drop(conn);
        assert_eq!(scrub(&scene.database()), Step::Damaged(number as u32));
        flip(&scene.database(), at);
    }
    assert!(read_all(&connect(&scene.database())).is_ok());
}

/// A file that was cut, or a page that was written to the place of another one.
#[test]
fn cut_files_and_misplaced_pages_are_met() {
    let scene = Scene::new();
    let conn = scene.create();
    fill(&conn, 0, 100);
    conn.close().unwrap();
    let good = std::fs::read(scene.database()).unwrap();
    let swapped = [&good[..PAGE_BYTES * 5], &good[PAGE_BYTES * 6..PAGE_BYTES * 7], &good[PAGE_BYTES * 6..]].concat();
    for bad in [&good[..PAGE_BYTES * 6], &good[..PAGE_BYTES * 6 + 100], &swapped] {
        std::fs::write(scene.database(), bad).unwrap();
        let conn = open(&scene.database(), FLAGS).unwrap();
        let error = read_all(&conn).unwrap_err().sqlite_error_code();
        assert!(matches!(error, Some(ErrorCode::SystemIoFailure | ErrorCode::DatabaseCorrupt)), "{error:?}");
    }
}

/// Pages in the write-ahead log are compared too, by every connection.
#[test]
fn a_rotten_frame_is_met_when_it_is_read() {
    let scene = Scene::new();
    let conn = scene.create();
    fill(&conn, 0, 200);
    let other = connect(&scene.database());
    let sum = read_all(&other).unwrap();
    let len = std::fs::metadata(scene.log()).unwrap().len();
    let frame = PAGE_BYTES as u64 + 24;
    let last = (len - 32) / frame - 1;
    flip(&scene.log(), 32 + last * frame + 24 + 700);
    let reader = connect(&scene.database());
    assert!(is_data_error(&read_all(&reader)), "the last frame holds the newest page of the table");
    assert!(
        matches!(watch(&conn).unwrap().damage(), Some(Damage::Page { file, number }) if file.ends_with("-wal") && *number == last + 1)
    );
    flip(&scene.log(), 32 + last * frame + 24 + 700);
    assert_eq!(read_all(&reader).unwrap(), sum, "the page is as it was");
}

/// Rot in the middle of the log that a crash left is told apart from a torn end.
#[test]
fn a_log_that_rotted_in_the_middle_is_no_crash() {
    let scene = Scene::new();
    let conn = scene.create();
    fill(&conn, 0, 60);
    let log = std::fs::read(scene.log()).unwrap();
    let crashed = Scene::new();
    std::fs::copy(scene.database(), crashed.database()).unwrap();
    let frame = PAGE_BYTES + 24;
    let frames = (log.len() - 32) / frame;
    let check = |log: &[u8]| {
        std::fs::write(crashed.log(), log).unwrap();
        log_check::first_damaged_frame(&crashed.database()).unwrap()
    };
    assert_eq!(check(&log), None);
    for cut in [0, 20, 32, 50, 32 + frame, log.len() / 2, log.len() - 1] {
        assert_eq!(check(&log[..cut]), None, "cut to {cut} bytes");
    }
    for at in [8, 20, 25, 31] {
        let mut rotten = log.clone();
        rotten[at] ^= 4;
        assert_eq!(check(&rotten), (at < 24).then_some(0), "byte {at} of the header");
    }
    for number in [1, 2, frames / 2, frames - 6] {
        let mut rotten = log.clone();
        rotten[32 + (number - 1) * frame + 24 + 99] ^= 1;
        assert_eq!(check(&rotten), Some(number as u64), "frame {number} of {frames}");
    }
    // The last transaction may be torn in any frame.
    let mut torn = log.clone();
    torn[32 + (frames - 1) * frame + 30] ^= 1;
    assert_eq!(check(&torn), None);
}

/// A failed sync is final: nothing is written afterwards, and the next process is told.
#[test]
fn a_failed_sync_is_remembered() {
    let scene = Scene::new();
    let conn = scene.create();
    fill(&conn, 0, 10);
    assert!(!unsynced::is_marked(&scene.database()));
    {
        let _fails = tessera_failpoint::activate("pagesum.sync_fails");
        let error = conn.execute("DELETE FROM t WHERE k = 1", []).unwrap_err();
        assert_eq!(error.sqlite_error_code(), Some(ErrorCode::SystemIoFailure));
    }
    assert!(conn.execute("DELETE FROM t WHERE k = 2", []).is_err(), "the disk is not tried again");
    assert!(matches!(watch(&conn).unwrap().damage(), Some(Damage::Unsynced { .. })));
    assert!(unsynced::is_marked(&scene.database()));
}

/// Images for other managers carry sums.
#[test]
fn images_are_sealed_and_checked() {
    let scene = Scene::new();
    let conn = scene.create();
    fill(&conn, 0, 50);
    conn.close().unwrap();
    let mut image = std::fs::read(scene.database()).unwrap();
    page::check_image(&image).unwrap();
    image[PAGE_BYTES * 3 + 5] ^= 1;
    assert!(page::check_image(&image).unwrap_err().to_string().contains("page 4"));
    page::seal_image(&mut image);
    page::check_image(&image).unwrap();
    assert!(page::check_image(&image[..image.len() - 1]).is_err());
}

/// Puts a copy of the directory's files in their places, as somebody does who replaces the directory.
fn replace_files(dir: &Path) {
    let files: Vec<_> = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    for file in files {
        let copy = dir.join("copy");
        std::fs::copy(&file, &copy).unwrap();
        std::fs::rename(&copy, &file).unwrap();
    }
}

#[test]
fn a_connection_never_reads_another_file_than_the_one_before_it() {
    let scene = Scene::new();
    let conn = scene.create();
    fill(&conn, 0, 10);
    let known = watch(&conn).unwrap();
    assert_eq!((known.displaced(), read_all(&connect(&scene.database())).unwrap()), (None, 9000));
    replace_files(scene.dir.path());
    assert_eq!(known.displaced(), Some(Displaced::Replaced(scene.database())));
    let refused = open(&scene.database(), FLAGS).unwrap_err();
    assert_eq!(refused.sqlite_error_code(), Some(ErrorCode::CannotOpen));
    fill(&conn, 10, 1);
    assert_eq!(read_all(&conn).unwrap(), 9900, "the first connection goes on");
    drop(conn);
    assert_eq!(known.displaced(), None, "nothing is open");
    assert_eq!(read_all(&connect(&scene.database())).unwrap(), 9000, "the copy keeps its write-ahead log");
}

/// SQLite opens the write-ahead log when a connection first reads.
#[test]
fn a_connection_never_reads_another_log_than_the_one_before_it() {
    let scene = Scene::new();
    let conn = scene.create();
    fill(&conn, 0, 10);
    let (known, late) = (watch(&conn).unwrap(), open(&scene.database(), FLAGS).unwrap());
    let away = scene.dir.path().join("away");
    std::fs::rename(scene.log(), &away).unwrap();
    assert_eq!(known.displaced(), Some(Displaced::Gone(scene.log())));
    std::fs::copy(&away, scene.log()).unwrap();
    assert_eq!(known.displaced(), Some(Displaced::Replaced(scene.log())));
    assert!(read_all(&late).is_err());
    std::fs::rename(&away, scene.log()).unwrap();
    assert_eq!((known.displaced(), read_all(&late).unwrap()), (None, 9000));
}
