//! The bound for all files of a client.

use crate::memory::{LEAST_MEMORY_BYTES, Means, Memory};
use crate::test_drive::data;
use crate::tests::{client, path, read};
use crate::*;
use std::io::{self, Read};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tessera_policy::Policy;
use tessera_testkit::Cluster;

/// The least memory, of which five eighths are for long files.
fn least() -> (Memory, u64) {
    (Memory::new(LEAST_MEMORY_BYTES), LEAST_MEMORY_BYTES / 8 * 5)
}

#[test]
fn shares_are_never_more_than_there_is_and_come_back() {
    let (memory, total) = least();
    let (held, most_held) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for thread in 0..16u64 {
            let (memory, held, most_held) = (&memory, &held, &most_held);
            scope.spawn(move || {
                for i in 0..200 {
                    let least = 5_000_000 + (thread * 977 + i * 613) % 40 * 1_000_000;
                    let share = memory.share(least, least * 2, &Cancel::default()).unwrap();
                    assert!(share.bytes() >= least && share.bytes() <= (least * 2).min(total / 2).max(least));
                    let now = held.fetch_add(share.bytes(), Ordering::SeqCst) + share.bytes();
                    most_held.fetch_max(now, Ordering::SeqCst);
                    std::thread::yield_now();
                    held.fetch_sub(share.bytes(), Ordering::SeqCst);
                }
            });
        }
    });
    assert!(most_held.into_inner() <= total);
    assert_eq!(memory.share(total, total, &Cancel::default()).unwrap().bytes(), total);
}

/// A file that needs much is not passed for ever by files that need little.
#[test]
fn shares_are_given_in_order() {
    let (memory, total) = least();
    let memory = Arc::new(memory);
    let first = memory.share(total / 2, total / 2, &Cancel::default()).unwrap();
    let take = |bytes: u64, given: &Arc<AtomicU64>, rank: u64| {
        let (asked, given) = (memory.clone(), given.clone());
        let taking = std::thread::spawn(move || {
            let share = asked.share(bytes, bytes, &Cancel::default()).unwrap();
            (given.fetch_add(1, Ordering::SeqCst), share)
        });
        while memory.waiting() < rank {
            std::thread::yield_now();
        }
        taking
    };
    let given = Arc::default();
    let all = take(2 * total, &given, 1);
    let little = take(6 << 20, &given, 2);
    assert_eq!(given.load(Ordering::SeqCst), 0, "there is room for the second, and the first is before it");
    // Who is cancelled lets the others pass.
    let cancel = Cancel::default();
    cancel.cancel();
    assert!(memory.share(total, total, &cancel).is_none());
    drop(first);
    let (rank, share) = all.join().unwrap();
    assert_eq!((rank, share.bytes()), (0, total), "who needs more than there is gets all");
    drop(share);
    assert_eq!(little.join().unwrap().0, 1);
}

#[test]
fn small_files_do_not_wait_for_long_ones() {
    let (memory, total) = least();
    let _all = memory.share(total, total, &Cancel::default()).unwrap();
    assert!(memory.share(1 << 20, 3 << 20, &Cancel::default()).is_some());
}

/// A file with a hole between two ranges of data.
struct Holed<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Read for Holed<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let n = (&self.bytes[self.at..]).read(out)?;
        self.at += n;
        Ok(n)
    }
}

impl ReadHoles for Holed<'_> {
    fn next_data(&mut self, at: u64, len_bytes: u64) -> io::Result<Option<Range<u64>>> {
        self.at = at as usize;
        Ok((at < len_bytes).then_some(at..len_bytes))
    }
}

/// Many writers of long files, of small ones and of files with holes, and rewrites, hold no more together than the client may; all go on.
#[test]
fn all_files_together_stay_within_the_memory() {
    const MEMORY: u64 = 3 << 20;
    let options = Options { memory_bytes: MEMORY, buffer_bytes: 64 << 10, ..Options::default() };
    let (client, cluster) = client(Cluster::new(8, 1), options);
    let hints = [("chunking", "cdc:16K..64K"), ("redundancy", "ec:4+2")].map(|(n, v)| (n.to_string(), v.to_string()));
    client.set_hints(&path("tess:/"), &hints).unwrap();
    std::thread::scope(|scope| {
        for writer in 0..12u64 {
            let client = client.clone();
            scope.spawn(move || {
                let bytes = data(900_000 + 50_000 * writer as usize, writer + 1);
                let name = format!("tess:/w{writer}");
                let options = PutOptions::default();
                let len_bytes = Some(bytes.len() as u64);
                match writer % 3 {
                    0 => client.put(&path(&name), Source::Reader { reader: &mut &bytes[..], len_bytes }, options),
                    1 => client.put(&path(&name), Source::Reader { reader: &mut &bytes[..], len_bytes: None }, options),
                    _ => {
                        let file = &mut Holed { bytes: &bytes, at: 0 };
                        client.put(&path(&name), Source::Sparse { file, len_bytes: bytes.len() as u64 }, options)
                    }
                }
                .unwrap();
                let ino = client.stat(&path(&name)).unwrap().ino;
                client.rewrite_inode(ino, &mut |_| (), &Cancel::default()).unwrap();
                assert!(read(&client, &name) == bytes);
            });
        }
    });
    let most = client.most_memory_bytes();
    assert!(most <= MEMORY && most > MEMORY / 8, "{most} bytes of {MEMORY}");
    cluster.lock().check_all_stored();
}

/// An optimistic file counts until its redundancy is stored; a write that fails gives its share back.
#[test]
fn shares_of_failed_and_of_optimistic_writes_come_back() {
    struct Broken;
    impl Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::Error::other("broken"))
        }
    }
    let memory_bytes = 1 << 20;
    let options = Options { memory_bytes, buffer_bytes: 64 << 10, ..Options::default() };
    let (client, _cluster) = client(Cluster::new(8, 1), options);
    let hints = [("chunking", "fixed:32K"), ("redundancy", "ec:4+2"), ("durability", "optimistic")];
    client.set_hints(&path("tess:/"), &hints.map(|(n, v)| (n.to_string(), v.to_string()))).unwrap();
    for i in 0..5 {
        let failed = Source::Reader { reader: &mut Broken, len_bytes: None };
        client.put(&path("tess:/broken"), failed, PutOptions::default()).unwrap_err();
        let bytes = data(500_000, i + 1);
        let source = Source::Reader { reader: &mut &bytes[..], len_bytes: None };
        client.put(&path("tess:/f"), source, PutOptions::default()).unwrap();
        assert!(read(&client, "tess:/f") == bytes);
    }
    client.flush(std::time::Duration::from_secs(10));
    let most = client.most_memory_bytes();
    assert!(most <= memory_bytes, "{most} bytes");
}

/// A write gets another buffer only once earlier ones are gone, however many chunks still need them.
#[test]
fn a_write_has_no_more_buffers_than_its_share() {
    let options = Options { memory_bytes: LEAST_MEMORY_BYTES, ..Options::default() };
    let (client, _cluster) = client(Cluster::new(8, 1), options);
    let (policy, cancelled) = (Policy::default(), Cancel::default());
    let means = Means::of_write(&client.context, "f", Some(&policy), None, &cancelled).unwrap();
    cancelled.cancel();
    let mut buffers = Vec::new();
    // Who has to wait finds out that it was cancelled.
    while let Some(buffer) = means.buffer(means.buffer_bytes, &cancelled) {
        buffers.push(buffer);
    }
    let bytes = buffers.len() * means.buffer_bytes;
    assert!(buffers.len() >= 2 && bytes as u64 <= LEAST_MEMORY_BYTES / 8 * 5 / 2, "{bytes} bytes");
    buffers.pop();
    assert!(means.buffer(means.buffer_bytes, &cancelled).is_some());
    // Its share is free for others only when its last buffer is gone.
    let total = LEAST_MEMORY_BYTES / 8 * 5;
    drop(means);
    assert!(client.context.memory.share(total, total, &cancelled).is_none());
    drop(buffers);
    assert!(client.context.memory.share(total, total, &Cancel::default()).is_some());
}
