//! Opens, lookups and changes of the length beside others that end, fail or are not sent.

use super::*;

/// The reply to a listing is full before the entry of a file that another mount changed.
#[test]
fn an_entry_that_was_not_sent_leaves_the_kernels_pages_current() {
    let (store, disk, mut tasks) = (store("sliding-window"), SimDisk::new(1), Tasks::default());
    let (mount, _) = mount_with(&store, &disk, 1, true);
    let ino = store.create(ROOT, b"file", 0).unwrap();
    store.commit(ino, b"before", 0);
    tasks.run(async {
        mount.lookup((ROOT, b"file")).await.unwrap();
        assert!(keeps_pages(&mount, ino).await);
        // The kernel has the generation of the lookup, and pages of "before".
        store.commit(ino, b"BEFORE", 0);
        mount.leases_recalled(Some(&[ino]));
        store.clock.set(1_000_000_000);
        let directory = mount.open_directory(ROOT).await.unwrap();
        mount.read_directory(ROOT, directory, 0, true, |entry| entry.name == b"file").await.unwrap();
        assert!(!keeps_pages(&mount, ino).await, "the kernel keeps pages of the version before");
    });
}

/// The length of a file is unknown until its first open has asked for it.
#[test]
fn a_truncate_beside_an_open_that_fails_truncates() {
    let (store, disk, mut tasks) = (store("sliding-window"), SimDisk::new(1), Tasks::default());
    let (mount, _) = mount_with(&store, &disk, 1, true);
    let ino = store.create(ROOT, b"file", 0).unwrap();
    store.commit(ino, b"before", 0);
    store.open_rounds.set(20);
    store.get_rounds.set(5);
    store.refuses_opens.set(true);
    let other = mount.clone();
    tasks.spawn(async move {
        pause().await;
        assert!(other.open(1, ino, false).await.is_err());
    });
    tasks.run(async {
        let done = mount.set_attributes(ino, NewAttr::default(), Some(0)).await;
        store.refuses_opens.set(false);
        assert!(done.is_err() || store.current(ino).bytes.is_empty(), "{done:?}: {:?}", store.current(ino));
    });
}

/// The kernel writes with `O_APPEND` at the length that it was told last.
#[test]
fn an_open_by_a_thread_without_a_number_gets_the_length() {
    for thread in [0, 7] {
        let (store, disk, mut tasks) = (store("sliding-window"), SimDisk::new(1), Tasks::default());
        let (mount, _) = mount_with(&store, &disk, 1, false);
        let ino = known_file(&mount, &store, &mut tasks);
        tasks.run(async {
            mount.open(5, ino, false).await.unwrap();
            store.commit(ino, b"before and after", 0);
            assert_eq!(mount.lookup((ROOT, b"file")).await.unwrap().attr.size_bytes, 6);
            assert_eq!(mount.open(thread, ino, true).await, Err(Errno::ESTALE));
            assert_eq!(mount.lookup((ROOT, b"file")).await.unwrap().attr.size_bytes, 16);
            mount.open(thread, ino, true).await.unwrap();
        });
    }
}

/// Two programs of one mount append; a third one opens the file meanwhile, and looks it up while the last of the two closes it.
#[test]
fn a_lookup_during_a_close_shows_what_the_close_commits() {
    let (store, disk, mut tasks) = (store("sliding-window"), SimDisk::new(1), Tasks::default());
    let (mount, _) = mount_with(&store, &disk, 1, false);
    let ino = store.create(ROOT, b"file", 0).unwrap();
    store.commit(ino, b"first ", 0);
    store.lease_ms.set(60_000);
    store.commit_waits.set(5);
    let handle = tasks.run(async {
        mount.lookup((ROOT, b"file")).await.unwrap();
        let handle = mount.open(1, ino, true).await.unwrap().handle;
        mount.write(handle, 6, b"second").await.unwrap();
        // A program asks for attributes; then there is one more line.
        assert_eq!(mount.attributes(ino).await.unwrap().size_bytes, 12);
        mount.write(handle, 12, b"third ").await.unwrap();
        handle
    });
    let other = mount.clone();
    tasks.spawn(async move {
        other.flush(ino, handle, OWNER).await.unwrap();
        other.release(ino, handle, None).await;
    });
    tasks.run(async {
        // Let the close begin.
        pause().await;
        let shown = mount.lookup((ROOT, b"file")).await.unwrap().attr;
        let opened = mount.open(3, ino, true).await;
        assert_eq!(shown.size_bytes, 18, "the next O_APPEND of this mount writes there; {opened:?}");
    });
}
