//! Programs on one mount append to a file after a program on another mount has appended and closed it (docs/mount.md, close-to-open). Nothing
//! of either is lost. Skipped, with a message, where there is no FUSE.

mod common;

use common::mounted::{Mounted, mountable};
use rustix::fs::{FlockOperation, flock};
use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Most rounds, and the longest time for them. Either ends the test well.
const ROUNDS: usize = 400;
const LONGEST: Duration = Duration::from_secs(6);

/// A record of 16 bytes.
fn record(who: usize, round: usize) -> String {
    format!("{who:05} {round:09}\n")
}

fn append(path: &Path, who: usize, round: usize) {
    File::options().append(true).open(path).unwrap().write_all(record(who, round).as_bytes()).unwrap();
}

/// Ends those who open the file, also when the test fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// In each round a program on one mount appends and closes; then `appenders` programs on the other one append at once, while `openers`
/// open the file again and again, and one keeps it open.
fn every_record_is_kept(appenders: usize, openers: usize) {
    let Some(c) = mountable() else { return };
    let (here, there) = (Mounted::new(&c, "here", &[]), Mounted::new(&c, "there", &[]));
    fs::write(here.at("f"), b"").unwrap();
    let (path, is_over) = (&there.at("f"), &AtomicBool::new(false));
    let _kept = File::open(path).unwrap();
    std::thread::scope(|scope| {
        for number in 0..openers {
            scope.spawn(move || {
                while !is_over.load(Ordering::Acquire) {
                    drop(File::options().read(true).write(number % 2 == 0).open(path).unwrap());
                }
            });
        }
        let (_over, begun, mut before) = (Over(is_over), Instant::now(), 0);
        for round in (0..ROUNDS).take_while(|_| begun.elapsed() < LONGEST) {
            append(&here.at("f"), 0, round);
            std::thread::scope(|scope| {
                for who in 1..=appenders {
                    scope.spawn(move || append(path, who, round));
                }
            });
            let text = fs::read_to_string(here.at("f")).unwrap();
            let missing: Vec<_> =
                (0..=appenders).map(|who| record(who, round)).filter(|one| !text[before..].contains(one)).collect();
            assert!(missing.is_empty(), "round {round}: {missing:?} was acknowledged, and is lost");
            before = text.len();
        }
    });
}

#[test]
fn an_append_beside_opens_keeps_what_another_mount_closed() {
    every_record_is_kept(1, 4);
}

#[test]
fn appends_at_once_keep_what_another_mount_closed() {
    every_record_is_kept(6, 0);
}

/// Appends under a lock until the others end.
fn append_locked(path: &Path, who: usize, is_over: &AtomicBool) -> usize {
    let (mut file, mut round) = (File::options().append(true).open(path).unwrap(), 0);
    while !is_over.load(Ordering::Acquire) {
        flock(&file, FlockOperation::LockExclusive).unwrap();
        file.write_all(record(who, round).as_bytes()).unwrap();
        flock(&file, FlockOperation::Unlock).unwrap();
        round += 1;
    }
    round
}

/// A program on each mount appends under a lock; others open the file meanwhile.
#[test]
fn appends_under_a_lock_are_all_kept_beside_opens() {
    let Some(c) = mountable() else { return };
    let (here, there) = (Mounted::new(&c, "here", &[]), Mounted::new(&c, "there", &[]));
    fs::write(here.at("f"), b"").unwrap();
    let is_over = &AtomicBool::new(false);
    let paths = &[here.at("f"), there.at("f")];
    let counts = std::thread::scope(|scope| {
        for number in 0..3 {
            scope.spawn(move || {
                while !is_over.load(Ordering::Acquire) {
                    drop(File::options().read(true).write(number % 2 == 0).open(&paths[1]).unwrap());
                }
            });
        }
        let over = Over(is_over);
        let appenders: Vec<_> =
            (0..2).map(|who| scope.spawn(move || append_locked(&paths[who], who, is_over))).collect();
        std::thread::sleep(LONGEST);
        drop(over);
        appenders.into_iter().map(|one| one.join().unwrap()).collect::<Vec<_>>()
    });
    let text = fs::read_to_string(&paths[0]).unwrap();
    for (who, count) in counts.into_iter().enumerate() {
        let missing: Vec<_> = (0..count).map(|round| record(who, round)).filter(|one| !text.contains(one)).collect();
        assert!(missing.is_empty(), "{missing:?} of {count} records were acknowledged, and are lost");
    }
}

/// A commit here brings what another mount has appended. The kernel takes over no length from a reply if it was told to drop pages since it
/// sent the request.
#[test]
fn the_end_of_a_file_is_where_its_attributes_say() {
    let Some(c) = mountable() else { return };
    let (here, there) = (Mounted::new(&c, "here", &[]), Mounted::new(&c, "there", &[]));
    fs::write(here.at("f"), b"0123456789abcdef").unwrap();
    let mut file = File::options().read(true).write(true).open(there.at("f")).unwrap();
    append(&here.at("f"), 0, 0);
    file.write_all_at(b"*", 0).unwrap();
    file.sync_all().unwrap();
    let (end, len) = (file.seek(SeekFrom::End(0)).unwrap(), file.metadata().unwrap().len());
    assert_eq!((end, len), (32, 32), "what is written at the end goes over what another mount closed");
}
