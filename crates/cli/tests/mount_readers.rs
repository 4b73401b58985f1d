//! Programs on one mount read a file while a program on another mount appends to it (docs/mount.md). What they read is a part of what
//! was appended, whenever they look. Skipped, with a message, where there is no FUSE.

mod common;

use common::mounted::{Mounted, mountable};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Most lines that are appended to a file, and the longest time for them. Either ends the test well.
const LINES: u64 = 4_000;
const LONGEST: Duration = Duration::from_secs(4);

/// The whole file: lines of several lengths, each with its number. No byte is 0.
fn lines() -> (Vec<u8>, Vec<usize>) {
    let (mut all, mut ends) = (Vec::new(), Vec::new());
    for number in 0..LINES {
        let len = 40 + (number as usize * 7_919) % 700;
        writeln!(all, "{number:08} {}", "x".repeat(len)).unwrap();
        ends.push(all.len());
    }
    (all, ends)
}

/// What the program that appends and those that read share.
struct Log {
    all: Vec<u8>,
    /// How many bytes, or which rewrite, an fsync or a close has acknowledged.
    acknowledged: AtomicU64,
    is_over: AtomicBool,
}

/// Ends the readers, also when the test fails.
struct Over<'a>(&'a Log);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::Release);
    }
}

impl Log {
    /// Appends a few lines at a time. `keeps`: with one open file and an fsync each time, else with an open and a close.
    fn append(&self, path: &Path, ends: &[usize], keeps: bool) {
        let (begun, open) = (Instant::now(), || File::options().append(true).open(path).unwrap());
        let (mut kept, mut start, mut left) = (keeps.then(open), 0, ends);
        while let Some(end) = left.get(start % 3).or(left.last()).filter(|_| begun.elapsed() < LONGEST) {
            let bytes = &self.all[start..*end];
            match &mut kept {
                Some(file) => {
                    file.write_all(bytes).unwrap();
                    file.sync_all().unwrap();
                }
                None => open().write_all(bytes).unwrap(),
            }
            start = *end;
            left = &ends[ends.partition_point(|end| *end <= start)..];
            self.acknowledged.store(start as u64, Ordering::Release);
        }
    }

    fn check(&self, who: &str, offset: usize, bytes: &[u8]) {
        let wanted = &self.all[offset..][..bytes.len()];
        if let Some(at) = (0..bytes.len()).find(|at| bytes[*at] != wanted[*at]) {
            let (byte, len, at) = (bytes[at], bytes.len(), offset + at);
            panic!("{who}: byte {at} is {byte}, which was not written ({len} bytes from {offset} on)");
        }
    }

    /// Opens the file and reads it to its end, again and again.
    fn read_anew(&self, who: &str, path: &Path, writes: bool) {
        let mut last_bytes = 0;
        while !self.is_over.load(Ordering::Acquire) {
            let acknowledged_bytes = self.acknowledged.load(Ordering::Acquire).max(last_bytes);
            let mut file = File::options().read(true).write(writes).open(path).unwrap();
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes).unwrap();
            last_bytes = bytes.len() as u64;
            self.check(who, 0, &bytes);
            assert!(last_bytes >= acknowledged_bytes, "{who}: {last_bytes} of {acknowledged_bytes} bytes");
        }
    }

    /// Keeps the file open, and reads on from where it is, as `tail -f`. Begins anew from time to time.
    fn follow(&self, who: &str, path: &Path) {
        while !self.is_over.load(Ordering::Acquire) {
            let (file, mut offset, mut buffer) = (File::open(path).unwrap(), 0, vec![0; 64 << 10]);
            for _ in 0..200 {
                file.metadata().unwrap();
                let len = file.read_at(&mut buffer, offset as u64).unwrap();
                self.check(who, offset, &buffer[..len]);
                offset += len;
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
}

/// Each reader's view of the file is a part of what was written, and an open shows everything that was acknowledged before it.
#[test]
fn readers_beside_another_mounts_appends_see_what_was_appended() {
    let Some(c) = mountable() else { return };
    let (here, there) = (Mounted::new(&c, "here", &[]), Mounted::new(&c, "there", &[]));
    let (all, ends) = lines();
    for keeps in [false, true] {
        let name = format!("log-{keeps}");
        fs::write(here.at(&name), b"").unwrap();
        let (acknowledged, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
        let log = Log { all: all.clone(), acknowledged, is_over };
        let (log, path) = (&log, &there.at(&name));
        std::thread::scope(|scope| {
            scope.spawn(move || log.read_anew("reads", path, false));
            scope.spawn(move || log.read_anew("reads, open for writing", path, true));
            scope.spawn(move || log.follow("follows", path));
            let _over = Over(log);
            log.append(&here.at(&name), &ends, keeps);
        });
        let len = log.acknowledged.load(Ordering::Acquire) as usize;
        assert!(len > 0 && fs::read(there.at(&name)).unwrap() == all[..len]);
    }
}

/// Records of 16 bytes with the number of the write that made them.
fn records(number: u64) -> Vec<u8> {
    format!("{number:015}\n").repeat(600).into_bytes()
}

/// A program on another mount writes the whole file again and again, in place. An open shows no record that is older than what was
/// acknowledged before it, whether it is one for reading or one for writing, too.
#[test]
fn opens_beside_another_mounts_rewrites_see_what_was_acknowledged() {
    let Some(c) = mountable() else { return };
    let (here, there) = (Mounted::new(&c, "here", &[]), Mounted::new(&c, "there", &[]));
    fs::write(here.at("f"), records(0)).unwrap();
    let log = &Log { all: Vec::new(), acknowledged: AtomicU64::new(0), is_over: AtomicBool::new(false) };
    let read = |writes: bool| {
        while !log.is_over.load(Ordering::Acquire) {
            let least = log.acknowledged.load(Ordering::Acquire);
            let (mut text, path) = (String::new(), there.at("f"));
            let mut file = File::options().read(true).write(writes).open(path).unwrap();
            file.read_to_string(&mut text).unwrap();
            assert_eq!(text.len(), records(0).len());
            for line in text.lines() {
                let number = line.parse::<u64>().unwrap_or_else(|e| panic!("{line:?} was not written: {e}"));
                assert!(number >= least, "{number} after {least} was acknowledged (opened for writing: {writes})");
            }
        }
    };
    let read = &read;
    std::thread::scope(|scope| {
        for writes in [false, true, true] {
            scope.spawn(move || (*read)(writes));
        }
        let (_over, begun) = (Over(log), Instant::now());
        for number in (1..=2_000).take_while(|_| begun.elapsed() < LONGEST) {
            File::options().write(true).open(here.at("f")).unwrap().write_all(&records(number)).unwrap();
            log.acknowledged.store(number, Ordering::Release);
        }
    });
    assert!(log.acknowledged.load(Ordering::Acquire) > 0);
}
