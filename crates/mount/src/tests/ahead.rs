//! Contents of small files that are fetched ahead, and read without a session.

use super::*;
use std::cell::Cell;

const FILES: usize = 20;

/// A directory of small files that a program listed a while ago.
struct Listed {
    store: Rc<Store>,
    mount: Arc<Mount<Client>>,
    tasks: Tasks,
    inos: Vec<u64>,
}

fn listed(lease_ms: u64, write_mode: &str) -> Listed {
    let (store, disk, mut tasks) = (store(write_mode), SimDisk::new(1), Tasks::default());
    let (mount, _) = mount(&store, &disk, 1);
    store.lease_ms.set(lease_ms);
    let inos: Vec<u64> = (0..FILES).map(|at| store.create(ROOT, name(at).as_bytes(), 0).unwrap()).collect();
    for (at, ino) in inos.iter().enumerate() {
        store.commit(*ino, name(at).as_bytes(), 0);
    }
    tasks.run(list(&mount));
    store.clock.set(20_000_000_000);
    Listed { store, mount, tasks, inos }
}

fn name(at: usize) -> String {
    format!("file{at:02}")
}

async fn list(mount: &Mount<Client>) {
    let directory = mount.open_directory(ROOT).await.unwrap();
    mount.read_directory(ROOT, directory, 0, false, |_| false).await.unwrap();
    mount.release_directory(directory);
}

async fn open(mount: &Mount<Client>, ino: u64) -> u64 {
    let opened = mount.open(1, ino, false).await.unwrap();
    mount.read_ahead().await;
    opened.handle
}

async fn close(mount: &Mount<Client>, ino: u64, handle: u64) {
    mount.flush(ino, handle, OWNER).await.unwrap();
    mount.release(ino, handle).await;
}

async fn read_file(mount: &Mount<Client>, ino: u64) -> Vec<u8> {
    let handle = open(mount, ino).await;
    let read = mount.read(handle, 0, 100).await.unwrap();
    close(mount, ino, handle).await;
    read
}

/// Reads the first three files, after which those that follow are fetched.
async fn read_three(mount: &Mount<Client>, inos: &[u64]) {
    for (at, ino) in inos[..3].iter().enumerate() {
        assert_eq!(read_file(mount, *ino).await, name(at).as_bytes());
    }
}

fn count(counter: &Cell<u32>) -> u32 {
    counter.take()
}

#[test]
fn small_files_that_follow_are_opened_and_read_without_a_request() {
    let Listed { store, mount, mut tasks, inos } = listed(60_000, "sliding-window");
    tasks.run(async {
        read_three(&mount, &inos).await;
        assert_eq!((count(&store.opens), store.descriptions.get()), (3, (1, 16)));
        store.gets.set(0);
        for (at, ino) in inos.iter().enumerate().skip(3) {
            assert_eq!(read_file(&mount, *ino).await, name(at).as_bytes());
        }
        let asked = [&store.opens, &store.gets, &store.lookups].map(count);
        assert_eq!((asked, store.descriptions.get()), ([0; 3], (2, 17)));
    });
}

#[test]
fn a_file_that_is_replaced_while_it_is_open_without_a_session_can_be_read_to_its_end() {
    let Listed { store, mount, mut tasks, inos } = listed(60_000, "sliding-window");
    tasks.run(async {
        read_three(&mount, &inos).await;
        let handle = open(&mount, inos[3]).await;
        assert_eq!(count(&store.opens), 3);
        mount.leases_recalled(Some(&[inos[3], inos[4]]));
        store.commit(inos[3], b"replaced", 0);
        store.commit(inos[4], b"replaced, too", 0);
        assert_eq!(mount.read(handle, 0, 100).await.unwrap(), b"file03", "as it was opened");
        close(&mount, inos[3], handle).await;
        assert_eq!(read_file(&mount, inos[3]).await, b"replaced");
        assert_eq!(read_file(&mount, inos[4]).await, b"replaced, too", "it was fetched before");
        assert_eq!(read_file(&mount, inos[5]).await, b"file05");
        assert_eq!(count(&store.opens), 2, "only those that were replaced");
    });
}

#[test]
fn a_file_that_is_removed_elsewhere_while_it_is_open_without_a_session_lives_on() {
    let Listed { store, mount, mut tasks, inos } = listed(60_000, "sliding-window");
    tasks.run(async {
        read_three(&mount, &inos).await;
        let handle = open(&mount, inos[3]).await;
        mount.leases_recalled(Some(&[inos[3], ROOT]));
        store.remove(inos[3]);
        assert_eq!(mount.read(handle, 2, 100).await.unwrap(), b"le03");
        let attr = mount.attributes(1, inos[3]).await.unwrap();
        assert_eq!((attr.ino, attr.size_bytes, attr.nlink), (inos[3], 6, 0));
        close(&mount, inos[3], handle).await;
        assert_eq!(mount.attributes(1, inos[3]).await, Err(Errno::ESTALE));
        assert!(mount.open(1, inos[3], false).await.is_err());
    });
}

#[test]
fn a_file_that_is_open_without_a_session_gets_one_before_its_name_is_removed_here() {
    let Listed { store, mount, mut tasks, inos } = listed(60_000, "sliding-window");
    tasks.run(async {
        read_three(&mount, &inos).await;
        let handle = open(&mount, inos[3]).await;
        assert_eq!(count(&store.opens), 3);
        mount.remove((ROOT, name(3).as_bytes()), false).await.unwrap();
        assert_eq!(count(&store.opens), 1, "only a session keeps its inode");
        assert_eq!(mount.read(handle, 0, 100).await.unwrap(), b"file03");
    });
}

#[test]
fn after_a_lost_connection_each_open_asks_for_the_newest_version() {
    let Listed { store, mount, mut tasks, inos } = listed(60_000, "sliding-window");
    tasks.run(async {
        read_three(&mount, &inos).await;
        let handle = open(&mount, inos[3]).await;
        mount.leases_recalled(None);
        for ino in &inos[3..6] {
            store.commit(*ino, b"newer", 0);
        }
        for ino in &inos[4..6] {
            assert_eq!(read_file(&mount, *ino).await, b"newer");
        }
        assert_eq!(mount.read(handle, 0, 100).await.unwrap(), b"file03", "as it was opened");
        close(&mount, inos[3], handle).await;
        assert_eq!(read_file(&mount, inos[3]).await, b"newer");
    });
}

/// Without a lease an open asks for the attributes, and the content counts only if they name its version.
#[test]
fn an_outdated_description_is_not_read() {
    let Listed { store, mount, mut tasks, inos } = listed(0, "sliding-window");
    tasks.run(async {
        read_three(&mount, &inos).await;
        store.opens.set(0);
        store.gets.set(0);
        assert_eq!(read_file(&mount, inos[3]).await, b"file03");
        assert_eq!([&store.opens, &store.gets].map(count), [0, 1]);
        store.commit(inos[4], b"newer", 0);
        assert_eq!(read_file(&mount, inos[4]).await, b"newer");
        assert_eq!(count(&store.opens), 1);
    });
}

#[test]
fn a_file_that_changes_while_it_is_described_is_read_as_it_is_then() {
    let Listed { store, mount, mut tasks, inos } = listed(60_000, "sliding-window");
    store.describe_rounds.set(20);
    tasks.run(async {
        for ino in &inos[..2] {
            read_file(&mount, *ino).await;
        }
    });
    let (reader, third) = (mount.clone(), inos[2]);
    tasks.spawn(async move { drop(read_file(&reader, third).await) });
    tasks.run(async {
        for _ in 0..10 {
            pause().await;
        }
        assert_eq!(store.descriptions.get(), (1, 16), "and its answer is on its way");
        mount.leases_recalled(Some(&[inos[3]]));
        store.commit(inos[3], b"newer", 0);
        assert_eq!(read_file(&mount, inos[3]).await, b"newer");
        assert_eq!(read_file(&mount, inos[4]).await, b"file04");
    });
}

/// The answer takes longer than an open waits.
#[test]
fn an_open_does_not_wait_long_for_what_is_fetched() {
    let Listed { store, mount, mut tasks, inos } = listed(60_000, "sliding-window");
    tasks.run(async {
        for ino in &inos[..2] {
            read_file(&mount, *ino).await;
        }
    });
    store.describe_rounds.set(u32::MAX);
    let (reader, third) = (mount.clone(), inos[2]);
    tasks.spawn(async move { drop(read_file(&reader, third).await) });
    tasks.run(async {
        for _ in 0..10 {
            pause().await;
        }
        assert_eq!(store.descriptions.get(), (1, 16));
        let handle = mount.open(1, inos[3], false).await.unwrap().handle;
        assert_eq!(mount.read(handle, 0, 100).await.unwrap(), b"file03");
    });
}

#[test]
fn files_whose_chunks_are_gone_are_opened_one_by_one() {
    let Listed { store, mount, mut tasks, inos } = listed(60_000, "sliding-window");
    store.chunks_are_gone.set(true);
    tasks.run(async {
        for (at, ino) in inos.iter().enumerate() {
            assert_eq!(read_file(&mount, *ino).await, name(at).as_bytes());
        }
    });
    assert_eq!(count(&store.opens), FILES as u32);
}

/// A log that lies over a version needs it until it is pushed.
#[test]
fn a_version_that_is_written_over_has_a_session() {
    for write_mode in ["sliding-window", "complete-local"] {
        let Listed { store, mount, mut tasks, inos } = listed(60_000, write_mode);
        tasks.run(async {
            read_three(&mount, &inos).await;
            let reading = open(&mount, inos[3]).await;
            assert_eq!(count(&store.opens), 3);
            let writing = mount.open(1, inos[3], true).await.unwrap().handle;
            assert_eq!(count(&store.opens), 1, "{write_mode}");
            mount.write(writing, 0, b"FI").await.unwrap();
            assert_eq!(mount.read(reading, 0, 100).await.unwrap(), b"FIle03");
            close(&mount, inos[4], open(&mount, inos[4]).await).await;
            mount.set_attributes(inos[4], NewAttr::default(), Some(2)).await.unwrap();
            assert_eq!(read_file(&mount, inos[4]).await, b"fi");
        });
    }
}

/// A program cuts a file off that another one has open without a session.
#[test]
fn a_log_over_a_version_in_memory_has_a_session_for_it() {
    let Listed { store, mount, mut tasks, inos } = listed(60_000, "complete-local");
    tasks.run(async {
        read_three(&mount, &inos).await;
        let handle = open(&mount, inos[3]).await;
        assert_eq!(count(&store.opens), 3);
        mount.set_attributes(inos[3], NewAttr::default(), Some(4)).await.unwrap();
        assert!(count(&store.opens) > 0);
        assert_eq!(mount.read(handle, 0, 100).await.unwrap(), b"file");
    });
}

/// A program has very many files open.
#[test]
fn what_is_open_without_a_session_is_bounded() {
    const LEN: usize = 128 << 10;
    let (store, disk, mut tasks) = (store("sliding-window"), SimDisk::new(1), Tasks::default());
    let (mount, _) = mount(&store, &disk, 1);
    store.lease_ms.set(1_000_000);
    let inos: Vec<u64> = (0..700).map(|at| store.create(ROOT, format!("{at:03}").as_bytes(), 0).unwrap()).collect();
    for ino in &inos {
        store.commit(*ino, &vec![7; LEN], 0);
    }
    tasks.run(async {
        list(&mount).await;
        let mut handles = Vec::new();
        for ino in &inos {
            store.clock.update(|now_ns| now_ns + 1_000_000);
            handles.push(open(&mount, *ino).await);
        }
        let in_memory = inos.len() as u32 - count(&store.opens);
        assert!((500..=512).contains(&in_memory), "{in_memory} of 128 KiB in 64 MiB");
        for (ino, handle) in inos.iter().zip(handles) {
            close(&mount, *ino, handle).await;
        }
        store.clock.update(|now_ns| now_ns + 20_000_000_000);
        mount.recent.expire(&mount.backend);
        list(&mount).await;
        for ino in &inos[..100] {
            read_file(&mount, *ino).await;
        }
        assert_eq!(count(&store.opens), 1, "all but the first, once the others are closed");
    });
}

#[test]
fn what_is_fetched_is_bounded_and_goes_if_nobody_opens_it() {
    const LEN: usize = 128 << 10;
    let (store, disk, mut tasks) = (store("sliding-window"), SimDisk::new(1), Tasks::default());
    let (mount, _) = mount(&store, &disk, 1);
    store.lease_ms.set(60_000);
    tasks.run(async {
        for directory in 0..30 {
            let create = |at| store.create(100 + directory, name(at).as_bytes(), 0).unwrap();
            let inos: Vec<u64> = (0..FILES).map(create).collect();
            for ino in &inos {
                store.commit(*ino, &vec![7; LEN], 0);
            }
            for (at, ino) in inos[..3].iter().enumerate() {
                mount.lookup(1, (100 + directory, name(at).as_bytes())).await.unwrap();
                read_file(&mount, *ino).await;
            }
            assert!(mount.ahead.held_bytes() <= 32 << 20);
        }
        assert!(mount.ahead.held_bytes() > 30 << 20);
        store.clock.update(|now_ns| now_ns + 10_000_000_000);
        mount.ahead.expire(store.clock.get());
        assert_eq!(mount.ahead.held_bytes(), 0);
    });
}
