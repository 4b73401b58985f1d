//! What scans and merges ask the disk for before they read it: values that they read, and no others.

mod common;

use std::io::IoSlice;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use common::*;
use tessera_cona::*;
use tessera_disk::{Disk, DiskError, DiskFile, DiskLock, OpenMode, SimDisk, Space};

/// Bytes of value files that were asked for ahead, and bytes that were read.
#[derive(Debug, Default)]
struct Counts {
    asked: AtomicU64,
    read: AtomicU64,
}

impl Counts {
    fn now(&self) -> (u64, u64) {
        (self.asked.load(Ordering::Relaxed), self.read.load(Ordering::Relaxed))
    }
}

/// Counts what is asked of value files. Reads of other files take as long as a flash's.
struct Spy {
    disk: SimDisk,
    counts: Arc<Counts>,
}

struct SpyFile {
    file: Arc<dyn DiskFile>,
    counts: Arc<Counts>,
}

impl SpyFile {
    fn is_of_values(&self) -> bool {
        self.file.path().ends_with(".values")
    }
}

impl Disk for Spy {
    fn open(&self, path: &str, mode: OpenMode) -> Result<Arc<dyn DiskFile>, DiskError> {
        Ok(Arc::new(SpyFile { file: self.disk.open(path, mode)?, counts: self.counts.clone() }))
    }
    fn list(&self, dir: &str) -> Result<Vec<String>, DiskError> {
        self.disk.list(dir)
    }
    fn list_dirs(&self, dir: &str) -> Result<Vec<String>, DiskError> {
        self.disk.list_dirs(dir)
    }
    fn create_dir(&self, dir: &str) -> Result<(), DiskError> {
        self.disk.create_dir(dir)
    }
    fn remove(&self, path: &str) -> Result<(), DiskError> {
        self.disk.remove(path)
    }
    fn rename(&self, from: &str, to: &str) -> Result<(), DiskError> {
        self.disk.rename(from, to)
    }
    fn sync_dir(&self, dir: &str) -> Result<(), DiskError> {
        self.disk.sync_dir(dir)
    }
    fn space(&self) -> Result<Space, DiskError> {
        self.disk.space()
    }
    fn lock(&self) -> Result<DiskLock, DiskError> {
        self.disk.lock()
    }
    fn describe(&self) -> String {
        self.disk.describe()
    }
    fn is_poisoned(&self) -> bool {
        self.disk.is_poisoned()
    }
}

impl DiskFile for SpyFile {
    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> Result<(), DiskError> {
        if self.is_of_values() {
            self.counts.read.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        } else {
            std::thread::sleep(Duration::from_micros(30));
        }
        self.file.read_at(offset, bytes)
    }
    fn write_vectored_at(&self, offset: u64, slices: &[IoSlice<'_>]) -> Result<(), DiskError> {
        self.file.write_vectored_at(offset, slices)
    }
    fn sync_data(&self) -> Result<(), DiskError> {
        self.file.sync_data()
    }
    fn len(&self) -> Result<u64, DiskError> {
        self.file.len()
    }
    fn truncate(&self, len: u64) -> Result<(), DiskError> {
        self.file.truncate(len)
    }
    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    fn will_read(&self, _offset: u64, len: u64) {
        if self.is_of_values() {
            self.counts.asked.fetch_add(len, Ordering::Relaxed);
        }
    }
    fn path(&self) -> &str {
        self.file.path()
    }
}

fn spied() -> (Store, Arc<Counts>) {
    let counts = Arc::new(Counts::default());
    let options = Options { buffer_bytes: 64 << 10, page_bytes: 4096, apart_bytes: 1024, ..small() };
    let spy = Spy { disk: SimDisk::new(0), counts: counts.clone() };
    (Store::open_on(Arc::new(spy), "", options).unwrap(), counts)
}

/// A merge that writes a small value file anew does not ask for the values of the large one, which it leaves where they
/// are.
#[test]
fn a_merge_asks_only_for_values_that_it_writes_anew() {
    let (store, counts) = spied();
    let key = |n: u32| n.wrapping_mul(0x9e37_79b1).to_be_bytes();
    (0..2000).for_each(|n| store.put(&key(n), &vec![n as u8; 4096]).unwrap());
    store.compact().unwrap();
    let (asked_before, read_before) = counts.now();
    (0..10).for_each(|n| store.put(&key(10_000 + n), &[n as u8; 4096]).unwrap());
    store.flush().unwrap();
    store.put(&key(10_003), b"small").unwrap();
    store.compact().unwrap();
    let (asked, read) = counts.now();
    let (asked, read) = (asked - asked_before, read - read_before);
    assert_eq!(read, 9 * 4096, "the small file is written anew");
    assert!(asked <= 2 * read, "{asked} bytes were asked for and {read} read");
}

/// A scan asks for no value beyond its end or its limit, and for no more than a mebibyte at once.
#[test]
fn a_scan_asks_only_for_values_that_it_returns() {
    let (store, counts) = spied();
    let (key, bytes) = (|n: u32| n.to_be_bytes(), 64 << 10);
    (0..200_u32).for_each(|n| store.put(&key(n), &vec![n as u8; bytes]).unwrap());
    store.compact().unwrap();
    let asked_by = |scan: &dyn Fn() -> usize| {
        let (asked, read) = counts.now();
        let found = scan();
        let (asked_after, read_after) = counts.now();
        assert_eq!(read_after - read, (found * bytes) as u64);
        (asked_after - asked) as usize
    };
    // Once the store knows that reads are slow.
    (0..20).for_each(|_| assert_eq!(store.prefix(&key(7)).unwrap().count(), 1));
    assert_eq!(asked_by(&|| store.prefix(&key(7)).unwrap().count()), bytes);
    assert_eq!(asked_by(&|| store.range_at_most(&key(7)[..].., 3).unwrap().count()), 3 * bytes);
    assert_eq!(asked_by(&|| store.range(&key(7)[..]..&key(12)).unwrap().count()), 5 * bytes);
    assert!(asked_by(&|| store.range_at_most(&key(7)[..].., 16).unwrap().count()) <= 1 << 20);
    // A value in each of three newer cells.
    for n in [20, 40, 60] {
        store.put(&key(n), &vec![1; bytes]).unwrap();
        store.flush().unwrap();
    }
    assert_eq!(store.stats().cells.len(), 4);
    assert_eq!(asked_by(&|| store.range_at_most(&key(7)[..].., 1).unwrap().count()), bytes);
    assert_eq!(asked_by(&|| store.range_at_most(&key(20)[..].., 1).unwrap().count()), bytes);
}
