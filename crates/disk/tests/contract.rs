//! The contract of all backends, and the faults of the simulated one (P9).

use std::io::IoSlice;
use std::sync::Arc;

use tessera_disk::*;

fn each(test: impl Fn(&dyn Disk)) {
    let dir = tempfile::tempdir().unwrap();
    test(&RealDisk::open(dir.path()).unwrap());
    test(&SimDisk::new(1));
}

#[test]
fn bytes_written_are_read_back_and_short_reads_are_typed() {
    each(|disk| {
        disk.create_dir("a/b").unwrap();
        let file = disk.open("a/b/c", OpenMode::CreateNew).unwrap();
        let many: Vec<IoSlice<'_>> = (0..3000).map(|_| IoSlice::new(b"xyz")).collect();
        file.write_vectored_at(5, &many).unwrap();
        file.write_vectored_at(0, &[IoSlice::new(b""), IoSlice::new(b"hello"), IoSlice::new(b"")]).unwrap();
        assert_eq!(file.len().unwrap(), 9005);
        let mut buf = [0; 8];
        file.read_at(3, &mut buf).unwrap();
        assert_eq!(&buf, b"loxyzxyz");
        match file.read_at(9000, &mut buf) {
            Err(DiskError::ShortRead { expected: 8, got: 5, offset: 9000, .. }) => {}
            other => panic!("{other:?}"),
        }
        file.truncate(2).unwrap();
        file.truncate(4).unwrap();
        file.read_at(0, &mut buf[..4]).unwrap();
        assert_eq!(&buf[..4], b"he\0\0");
        file.sync_data().unwrap();
    });
}

#[test]
fn names_are_created_listed_renamed_and_removed() {
    each(|disk| {
        assert!(matches!(disk.open("x", OpenMode::Existing), Err(DiskError::NotFound { .. })));
        assert!(matches!(disk.open("no/x", OpenMode::Create), Err(DiskError::NotFound { .. })));
        assert!(matches!(disk.open("../x", OpenMode::Create), Err(DiskError::BadPath { .. })));
        assert!(matches!(disk.list("no"), Err(DiskError::NotFound { .. })));
        disk.create_dir("d").unwrap();
        disk.create_dir("d").unwrap();
        let file = disk.open("d/one", OpenMode::Create).unwrap();
        assert!(matches!(disk.open("d/one", OpenMode::CreateNew), Err(DiskError::Exists { .. })));
        file.write_at(0, b"1").unwrap();
        disk.write_durable("d/two", b"22").unwrap();
        assert_eq!(disk.list("d").unwrap(), ["one", "two"]);
        assert_eq!(disk.list_dirs("").unwrap(), ["d"]);
        disk.rename_durable("d/one", "d/two").unwrap();
        assert_eq!(disk.list("d").unwrap(), ["two"]);
        disk.remove("d/two").unwrap();
        assert!(matches!(disk.remove("d/two"), Err(DiskError::NotFound { .. })));
        let mut buf = [0; 1];
        file.read_at(0, &mut buf).unwrap();
        assert_eq!(&buf, b"1", "an open handle outlives its name");
        assert!(disk.space().unwrap().capacity_bytes > 0);
    });
}

#[test]
fn a_second_daemon_on_the_same_disk_is_refused() {
    each(|disk| {
        let held = disk.lock().unwrap();
        let text = match disk.lock() {
            Err(e @ DiskError::Locked { .. }) => e.to_string(),
            _ => panic!("the lock was given twice"),
        };
        assert!(text.contains("another daemon"), "{text}");
        drop(held);
        disk.lock().unwrap();
    });
}

const ID: Identity = Identity { cluster_id: [1; 16], disk_uuid: [2; 16], created_ms: 1_700_000_000_000 };

/// P14: each kind of wrong directory gets its own error and stays unchanged.
#[test]
fn wrong_directories_are_refused_by_name_and_unchanged() {
    each(|disk| {
        assert!(matches!(Identity::require(disk), Err(IdentityError::Missing { .. })));
        ID.create(disk).unwrap();
        assert_eq!(Identity::require(disk).unwrap(), ID);
        assert_eq!(Identity::load(disk).unwrap(), Some(ID));
        assert!(matches!(ID.create(disk), Err(IdentityError::AlreadyThere { .. })));
        assert_eq!(Identity::load(disk).unwrap(), Some(ID));
    });
}

#[test]
fn a_disk_that_lost_its_identity_is_not_taken_over() {
    each(|disk| {
        disk.create_dir("segments").unwrap();
        assert!(matches!(ID.create(disk), Err(IdentityError::NotEmpty { .. })));
    });
}

#[test]
fn damaged_identities_are_told_apart() {
    let good = ID.encode();
    for len in 0..IDENTITY_BYTES {
        assert!(matches!(Identity::decode(&good[..len], "d"), Err(IdentityError::Length { .. })));
    }
    for bit in 0..IDENTITY_BYTES * 8 {
        let mut bad = good;
        bad[bit / 8] ^= 1 << (bit % 8);
        match Identity::decode(&bad, "d") {
            Err(IdentityError::Magic { .. }) => assert!(bit < 64),
            Err(IdentityError::Checksum { .. }) => {}
            other => panic!("bit {bit}: {other:?}"),
        }
    }
    let mut newer = good.to_vec();
    newer[8] = 2;
    let crc = crc_fast::crc32_iscsi(&newer[..60]);
    newer[60..64].copy_from_slice(&crc.to_le_bytes());
    newer.extend_from_slice(b"what version 2 added");
    let text = match Identity::decode(&newer, "d") {
        Err(e @ IdentityError::Version { found: 2, supported: 1, .. }) => e.to_string(),
        other => panic!("{other:?}"),
    };
    assert!(text.contains("version 2") && text.contains('1'), "{text}");
}

/// Version 1 as first written; must remain readable.
#[test]
fn fixture_of_identity_version_1() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/tessera-disk.v1");
    if std::env::var_os("TESSERA_WRITE_FIXTURES").is_some() {
        std::fs::write(path, ID.encode()).unwrap();
    }
    assert_eq!(Identity::decode(&std::fs::read(path).unwrap(), "fixture").unwrap(), ID);
}

fn put(disk: &dyn Disk, path: &str, bytes: &[u8]) -> Arc<dyn DiskFile> {
    let file = disk.open(path, OpenMode::Create).unwrap();
    file.write_at(0, bytes).unwrap();
    file
}

#[test]
fn power_loss_keeps_what_was_synced_and_only_that() {
    let disk = SimDisk::new(3);
    let file = put(&disk, "f", &[1; 2000]);
    file.sync_data().unwrap();
    assert!(disk.crash(CrashKind::KeepNone).paths().is_empty(), "the name was never synced");

    let disk = SimDisk::new(3);
    let file = put(&disk, "f", &[1; 2000]);
    file.sync_data().unwrap();
    disk.sync_dir("").unwrap();
    file.write_at(1000, &[2; 3000]).unwrap();
    file.truncate(100).unwrap();
    file.write_at(50, &[3; 100]).unwrap();
    put(&disk, "g", &[4; 10]);
    disk.remove("f").unwrap();
    let after = disk.crash(CrashKind::KeepNone);
    assert_eq!(after.paths(), ["f"]);
    assert_eq!(after.contents("f").unwrap(), [1; 2000]);
    assert!(file.sync_data().is_err(), "the old disk is off");
}

#[test]
fn power_loss_keeps_any_mixture_of_unsynced_sectors_but_never_tears_one() {
    let (mut lengths, mut mixtures) = (std::collections::BTreeSet::new(), std::collections::BTreeSet::new());
    for seed in 0..200 {
        let disk = SimDisk::new(seed);
        let file = put(&disk, "f", &[1; 4096]);
        file.sync_data().unwrap();
        disk.sync_dir("").unwrap();
        file.write_at(0, &[2; 4096]).unwrap();
        file.write_at(512, &[3; 4096]).unwrap();
        let kind = if seed % 2 == 0 { CrashKind::KeepSome } else { CrashKind::Torn };
        let bytes = disk.crash(kind).contents("f").unwrap();
        lengths.insert(bytes.len());
        let sectors: Vec<u8> = bytes.chunks(512).map(|s| s[0]).collect();
        assert!(bytes.chunks(512).all(|s| s.iter().all(|b| *b == s[0])), "torn within a sector");
        assert!(sectors.iter().take(8).all(|s| (1..=3).contains(s)));
        mixtures.insert(sectors);
    }
    assert!(lengths.len() == 2 && mixtures.len() > 50, "{} {}", lengths.len(), mixtures.len());
}

#[test]
fn equal_seeds_give_equal_crashes() {
    let run = || {
        let disk = SimDisk::new(7);
        let file = put(&disk, "f", &[1; 9000]);
        disk.sync_dir("").unwrap();
        file.write_at(100, &[2; 9000]).unwrap();
        disk.crash(CrashKind::KeepSome).contents("f")
    };
    assert_eq!(run(), run());
}

#[test]
fn renames_are_atomic_and_durable_once_the_directory_is_synced() {
    let mut seen = std::collections::BTreeSet::new();
    for seed in 0..50 {
        let disk = SimDisk::new(seed);
        disk.write_durable("f", b"old").unwrap();
        let file = put(&disk, "f.tmp", b"new");
        file.sync_data().unwrap();
        disk.rename("f.tmp", "f").unwrap();
        let bytes = disk.crash(CrashKind::KeepSome).contents("f").unwrap();
        assert!(bytes == b"old" || bytes == b"new");
        seen.insert(bytes);
    }
    assert_eq!(seen.len(), 2);
    let disk = SimDisk::new(0);
    disk.write_durable("f", b"old").unwrap();
    disk.write_durable("f", b"new").unwrap();
    assert_eq!(disk.crash(CrashKind::KeepNone).contents("f").unwrap(), b"new");
}

/// P9: a failed sync poisons the disk; nothing is written until the disk is reopened.
#[test]
fn a_failed_sync_is_never_retried() {
    let disk = SimDisk::new(5);
    let file = put(&disk, "f", &[1; 4096]);
    file.sync_data().unwrap();
    disk.sync_dir("").unwrap();
    file.write_at(0, &[2; 4096]).unwrap();
    disk.fail_at(0, Fault::SyncFails);
    assert!(matches!(file.sync_data(), Err(DiskError::Io { op: DiskOp::Sync, .. })));
    assert!(disk.is_poisoned());
    for result in [file.sync_data(), file.write_at(0, b"x"), file.truncate(0), disk.sync_dir(""), disk.remove("f")] {
        assert!(matches!(result, Err(DiskError::Poisoned { .. })), "{result:?}");
    }
    let mut buf = [0; 4096];
    file.read_at(0, &mut buf).unwrap();
    let again = disk.reopen();
    assert!(!again.is_poisoned());
    assert_eq!(again.contents("f").unwrap().len(), 4096);
    assert_eq!(again.contents("f"), again.crash(CrashKind::KeepNone).contents("f"), "what is read is durable");
}

#[test]
fn a_lying_sync_loses_what_it_promised() {
    let disk = SimDisk::new(5);
    let file = put(&disk, "f", &[1; 100]);
    disk.sync_dir("").unwrap();
    disk.fail_at(0, Fault::SyncLies);
    file.sync_data().unwrap();
    assert_eq!(disk.crash(CrashKind::KeepNone).contents("f").unwrap(), b"");
}

#[test]
fn a_full_disk_says_so_and_may_have_written_a_part() {
    let options = SimOptions { capacity_bytes: 1000, ..SimOptions::new(1) };
    let disk = SimDisk::with_options(&options);
    let file = put(&disk, "f", &[1; 900]);
    assert!(file.write_at(900, &[2; 200]).unwrap_err().is_no_space());
    file.truncate(900).unwrap();
    assert_eq!(disk.space().unwrap().free_bytes, 100);
    file.write_at(900, &[2; 100]).unwrap();
}

#[test]
fn lost_misdirected_and_rotten_sectors() {
    let disk = SimDisk::new(1);
    let file = put(&disk, "f", &[1; 2048]);
    disk.fail_at(0, Fault::LostWrite);
    file.write_at(0, &[2; 512]).unwrap();
    assert_eq!(disk.contents("f").unwrap(), [1; 2048]);
    disk.fail_at(0, Fault::Misdirected { sectors: 2 });
    file.write_at(0, &[3; 512]).unwrap();
    let bytes = disk.contents("f").unwrap();
    assert!(bytes[0] == 1 && bytes[1024] == 3 && bytes[1536] == 1);
    assert!(disk.break_sector("f", 600));
    assert!(matches!(file.read_at(0, &mut [0; 1024]), Err(DiskError::Io { op: DiskOp::Read, .. })));
    file.read_at(1024, &mut [0; 512]).unwrap();
    file.write_at(512, &[4; 512]).unwrap();
    file.read_at(0, &mut [0; 1024]).unwrap();
    let (path, at) = disk.rot_somewhere().unwrap();
    assert!(path == "f" && at < 2048);
}

#[test]
fn a_restart_keeps_the_cache_but_does_not_make_it_durable() {
    let disk = SimDisk::new(1);
    put(&disk, "f", b"new");
    let again = disk.reopen();
    assert_eq!(again.contents("f").unwrap(), b"new");
    assert!(again.crash(CrashKind::KeepNone).paths().is_empty());
}

/// P9: an open file outlives its name. Nothing is confirmed that a restart would not find at the disk's path.
#[test]
fn p9_a_directory_that_is_gone_takes_no_more_writes() {
    use std::fs;
    use std::path::Path;
    type Loss = fn(&Path, &Path);
    let losses: [(&str, Loss); 6] = [
        ("moved", |dir, away| fs::rename(dir, away).unwrap()),
        ("deleted", |dir, _| fs::remove_dir_all(dir).unwrap()),
        ("deleted and made again", |dir, _| {
            fs::remove_dir_all(dir).unwrap();
            fs::create_dir(dir).unwrap();
        }),
        ("emptied", |dir, _| {
            for entry in fs::read_dir(dir).unwrap() {
                fs::remove_file(entry.unwrap().path()).unwrap();
            }
        }),
        ("swapped for another disk", |dir, away| {
            fs::rename(dir, away).unwrap();
            fs::create_dir(dir).unwrap();
            fs::write(dir.join("f"), b"other").unwrap();
            fs::write(dir.join("lock"), b"").unwrap();
        }),
        ("now a file", |dir, away| {
            fs::rename(dir, away).unwrap();
            fs::write(dir, b"").unwrap();
        }),
    ];
    for (what, lose) in losses {
        for noticed_by_sync in [true, false] {
            let parent = tempfile::tempdir().unwrap();
            let (dir, away) = (parent.path().join("disk"), parent.path().join("away"));
            let disk = RealDisk::create(&dir).unwrap();
            let lock = disk.lock().unwrap();
            let file = put(&disk, "f", b"kept");
            disk.space().unwrap();
            lose(&dir, &away);
            let noticed = match noticed_by_sync {
                true => file.sync_data(),
                false => disk.space().map(drop),
            };
            let error = noticed.expect_err(what);
            assert!(matches!(error, DiskError::Gone { .. }) && error.is_poisoned(), "{what}: {error:?}");
            assert!(error.to_string().contains(dir.to_str().unwrap()), "{error}");
            assert!(disk.is_poisoned());
            let made = disk.open("g", OpenMode::Create).map(drop);
            let results = [file.sync_data(), file.write_at(0, b"x"), file.truncate(0), disk.sync_dir("")];
            for result in results.into_iter().chain([disk.remove("f"), disk.rename("f", "h"), made]) {
                assert!(matches!(result, Err(DiskError::Gone { .. })), "{what}: {result:?}");
            }
            // What is open can still be read, for a rebuild elsewhere.
            let mut buf = [0; 4];
            file.read_at(0, &mut buf).unwrap();
            assert_eq!(&buf, b"kept");
            drop(lock);
            if away.exists() {
                let again = RealDisk::open(&away).unwrap();
                again.lock().unwrap();
                assert_eq!(again.list("").unwrap(), ["f", "lock"], "no write follows, not even a note");
                again.open("f", OpenMode::Existing).unwrap().sync_data().unwrap();
            }
        }
    }
}

/// A disk is where its path leads: a link to it, or to its parent, may be the path, and may be made anew.
#[test]
fn a_path_may_be_a_link_that_leads_to_the_same_directory() {
    use std::os::unix::fs::symlink;
    let parent = tempfile::tempdir().unwrap();
    let (dir, link, other) = (parent.path().join("disk"), parent.path().join("link"), parent.path().join("other"));
    std::fs::create_dir(&dir).unwrap();
    symlink(&dir, &link).unwrap();
    let disk = RealDisk::open(&link).unwrap();
    let _lock = disk.lock().unwrap();
    let file = put(&disk, "f", b"kept");
    std::fs::rename(&dir, &other).unwrap();
    std::fs::remove_file(&link).unwrap();
    symlink(&other, &link).unwrap();
    file.sync_data().unwrap();
    disk.space().unwrap();
    std::fs::remove_file(&link).unwrap();
    symlink(parent.path(), &link).unwrap();
    assert!(matches!(file.sync_data(), Err(DiskError::Gone { .. })));
}

/// The marker file of a failed sync makes the next process drop the cache.
#[test]
fn a_poisoned_directory_opens_again() {
    let dir = tempfile::tempdir().unwrap();
    let disk = RealDisk::open(dir.path()).unwrap();
    disk.write_durable("f", b"kept").unwrap();
    std::fs::write(dir.path().join("poisoned"), "f").unwrap();
    let disk = RealDisk::open(dir.path()).unwrap();
    assert!(!dir.path().join("poisoned").exists());
    let mut buf = [0; 4];
    disk.open("f", OpenMode::Existing).unwrap().read_at(0, &mut buf).unwrap();
    assert_eq!(&buf, b"kept");
}
