//! What fails is an error that says where, and nothing hangs.

use crate::{Disks, text, word_count};
use std::io;
use tessera_sampling::error::Error;
use tessera_sampling::ldd::{DirectoryLog, DiskLog, Ldd, Lines, Logs};

/// A log on a disk of few bytes.
struct Small {
    log: DirectoryLog,
    bytes: u64,
}

impl DiskLog for Small {
    fn file(&self) -> &str {
        self.log.file()
    }

    fn append(&self, bytes: &[u8]) -> io::Result<u64> {
        let offset = self.log.append(bytes)?;
        let full = offset + bytes.len() as u64 > self.bytes;
        if full { Err(io::ErrorKind::StorageFull.into()) } else { Ok(offset) }
    }

    fn sync(&self) -> io::Result<()> {
        self.log.sync()
    }

    fn read(&self, offset: u64, len_bytes: u64) -> io::Result<Vec<u8>> {
        self.log.read(offset, len_bytes)
    }
}

#[test]
fn a_full_disk_is_named() {
    let disks = Disks::new(3);
    let log = |(i, bytes): (usize, u64)| {
        let log = DirectoryLog::create(&disks.directories[i]).unwrap();
        (format!("disk {i}"), Box::new(Small { log, bytes }) as Box<dyn DiskLog>)
    };
    let logs = Logs::new([1 << 30, 5000, 1 << 30].into_iter().enumerate().map(log).collect()).unwrap();
    let numbers = Ldd::in_memory((0..100_000u64).collect(), 500).with_threads(2);
    for _ in 0..2 {
        // It is full the second time too: nothing is appended behind a write that failed.
        match numbers.persist(&logs) {
            Err(Error::Disk { disk, .. }) => assert_eq!(disk, "disk 1"),
            other => panic!("{:?}", other.map(|set| set.partitions().len())),
        }
    }
}

#[test]
fn a_removed_directory_is_named() {
    let disks = Disks::new(2);
    let numbers = Ldd::in_memory((0..1000u64).collect(), 20);
    let logs = Logs::in_directories(&disks.directories).unwrap();
    let removed = &disks.directories[1];
    std::fs::remove_dir_all(removed).unwrap();
    for error in [numbers.persist(&logs).err(), Logs::in_directories(&disks.directories).err()] {
        match error {
            Some(Error::Disk { disk, .. }) => assert_eq!(disk, removed.display().to_string()),
            other => panic!("{other:?}"),
        }
    }
    assert!(Logs::in_directories(&[]).is_err());
    let twice = vec![disks.directories[0].clone(), disks.directories[0].clone()];
    assert!(matches!(Logs::in_directories(&twice), Err(Error::Question(_))));
}

#[test]
fn a_log_that_another_file_replaced_is_an_error() {
    let disks = Disks::new(1);
    let logs = Logs::in_directories(&disks.directories).unwrap();
    std::fs::remove_file(disks.directories[0].join(".ldd-0.log")).unwrap();
    disks.write(0, ".ldd-0.log", "");
    let error = Ldd::in_memory(vec![1u64, 2, 3], 2).persist(&logs).err().unwrap();
    assert!(matches!(&error, Error::Disk { disk, .. } if *disk == disks.directories[0].display().to_string()));
}

#[test]
fn a_log_that_was_damaged_or_cut_is_an_error() {
    let disks = Disks::new(1);
    let logs = Logs::in_directories(&disks.directories).unwrap();
    let kept = Ldd::in_memory(vec!["one".to_string(), "two".to_string()], 1).persist(&logs).unwrap();
    let path = disks.directories[0].join(".ldd-0.log");
    let whole = std::fs::read(&path).unwrap();
    let mut damaged = whole.clone();
    *damaged.last_mut().unwrap() ^= 1;
    std::fs::write(&path, &damaged).unwrap();
    assert!(matches!(kept.collect(), Err(Error::Record { .. })));
    std::fs::write(&path, &whole[..whole.len() - 1]).unwrap();
    assert!(matches!(kept.collect(), Err(Error::Io { .. })));
}

#[test]
fn a_panic_in_a_closure_is_an_error() {
    let disks = Disks::new(2);
    (0..2).for_each(|disk| disks.write(disk, "text", &text(disk, 2000)));
    let lines = Ldd::read(disks.shared(), 256, Lines).unwrap();
    let message = |result: Result<u64, Error>| match result {
        Err(Error::Panic { message }) => message,
        other => panic!("{other:?}"),
    };
    let bad = lines.map(|line| if line.len() > 100 { panic!("line of {}", line.len()) } else { line });
    assert!(message(bad.count()).starts_with("line of "));
    assert!(message(word_count(&bad).count()).starts_with("line of "));
    let logs = Logs::in_directories(&disks.directories).unwrap();
    assert!(message(bad.persist(&logs).map(|_| 0)).starts_with("line of "));
    let reduced = lines.map(|line| (line.len(), 1u64)).reduce_by_key(|_, _| panic!("no sum"));
    assert_eq!(message(reduced.count()), "no sum");
}

#[test]
fn a_file_that_is_cut_while_it_is_read_is_an_error() {
    let disks = Disks::new(2);
    (0..2).for_each(|disk| disks.write(disk, "text", &text(disk, 2000)));
    let lines = Ldd::read(disks.shared(), 256, Lines).unwrap();
    disks.write(1, "text", "short\n");
    assert!(matches!(lines.count(), Err(Error::Changed { .. })));
    assert!(disks.root().exists());
}
