//! Damaged bytes: nothing wrong is ever returned (P2), nothing panics. Also the format's fixture.

mod common;
#[path = "../../segment/tests/common/harm.rs"]
mod harm;

use std::sync::Arc;

use common::*;
use harm::*;
use proptest::prelude::*;
use tessera_disk::{Disk, OpenMode, SimDisk};
use tessera_logstore::*;

fn log_filled() -> SimDisk {
    let disk = sim(1);
    let options = LogOptions { file_size_bytes: 600 };
    let (mut log, _) = LogStore::open(Arc::new(disk.clone()), options).unwrap();
    for seq in 1..=20u64 {
        let term = 1 + seq / 8;
        log.append(term, 0, &[LogEntry { term, seq, bytes: format!("entry {seq}") }]).unwrap();
    }
    let bytes = [7; 300];
    let snapshot = Snapshot { seq: 6, term: 1, total_bytes: 300, hash: *blake3::hash(&bytes).as_bytes() };
    log.put_snapshot(3, snapshot, 0, &bytes).unwrap();
    disk
}

#[test]
fn no_damage_makes_a_log_return_wrong_entries() {
    let files = files(&log_filled());
    let logs: Vec<String> = files.keys().filter(|p| p.starts_with("log/")).cloned().collect();
    assert!(logs.len() > 3);
    proptest!(ProptestConfig { cases: 5000, failure_persistence: None, ..ProptestConfig::default() }, |(harms in prop::collection::vec((0..9usize, harm()), 1..4))| {
        let disk = copy(&files);
        for (which, harm) in harms {
            apply(&disk, &logs[which % logs.len()], harm);
        }
        let Ok((mut log, _)) = LogStore::open(Arc::new(disk), LogOptions::default()) else { return Ok(()) };
        for seq in 1..=20 {
            for entry in log.entries(seq, 1).unwrap_or_default() {
                prop_assert_eq!(entry, LogEntry { term: 1 + seq / 8, seq, bytes: format!("entry {seq}").into_bytes() });
            }
        }
        let _ = snapshot_is_sound(&log);
        let state = log.state();
        prop_assert!(state.term <= 3 && state.last_seq <= 20);
        let seq = state.missing_seq.unwrap_or(state.last_seq + 1);
        log.append(9, 0, &[LogEntry { term: 9, seq, bytes: b"x" }]).unwrap();
        prop_assert_eq!(log.state().last_seq, seq);
    });
}

/// Version 1 as first written; must remain readable. `TESSERA_WRITE_FIXTURES=1` writes missing fixtures.
#[test]
fn fixtures_of_version_1() {
    let dir = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/v1"));
    if std::env::var_os("TESSERA_WRITE_FIXTURES").is_some() {
        for (path, bytes) in files(&log_filled()) {
            let path = dir.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, bytes).unwrap();
        }
    }
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::new(0));
    disk.create_dir("log").unwrap();
    let mut paths = vec!["tessera-disk".to_string()];
    let names =
        std::fs::read_dir(dir.join("log")).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap());
    paths.extend(names.map(|name| format!("log/{name}")));
    for path in paths {
        let bytes = std::fs::read(dir.join(&path)).unwrap();
        disk.open(&path, OpenMode::Create).unwrap().write_at(0, &bytes).unwrap();
    }
    let (log, report) = LogStore::open(disk, LogOptions::default()).unwrap();
    assert_eq!(report, LogReport::default());
    let state = log.state();
    assert_eq!((state.term, state.last_seq, state.last_term, state.snapshot.unwrap().seq), (3, 20, 3, 6));
    assert_eq!(log.entries(20, 1).unwrap()[0].bytes, b"entry 20");
    assert!(snapshot_is_sound(&log));
}

/// A file whose number has no successor is not a file of the log.
#[test]
fn the_highest_file_number_is_ignored() {
    let disk = log_filled();
    disk.open("log/ffffffffffffffff.log", OpenMode::Create).unwrap();
    let (mut log, _) = LogStore::open(Arc::new(disk), LogOptions::default()).unwrap();
    log.append(9, 0, &[LogEntry { term: 9, seq: 21, bytes: b"x" }]).unwrap();
    assert_eq!(log.state().last_seq, 21);
}
