//! Opens, lookups and changes of the length beside others that end, fail or are not sent.

use super::*;
use std::cell::Cell;
use std::time::Duration;

/// The reply to a listing is full before the entry of a file that another mount changed.
#[test]
fn an_entry_that_was_not_sent_leaves_the_kernels_pages_current() {
    let (store, disk, mut tasks) = (store("sliding-window"), SimDisk::new(1), Tasks::default());
    let (mount, _) = mount_with(&store, &disk, 1, true);
    let ino = store.create(ROOT, b"file", 0).unwrap();
    store.commit(ino, b"before", 0);
    tasks.run(async {
        mount.lookup(0, (ROOT, b"file")).await.unwrap();
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
            assert_eq!(mount.lookup(0, (ROOT, b"file")).await.unwrap().attr.size_bytes, 6);
            assert_eq!(mount.open(thread, ino, true).await, Err(Errno::ESTALE));
            assert_eq!(mount.lookup(0, (ROOT, b"file")).await.unwrap().attr.size_bytes, 16);
            mount.open(thread, ino, true).await.unwrap();
        });
    }
}

/// A program opens `/proc/self/fd/3` with `O_APPEND`: the kernel looks no name up when it tries again, but checks the permissions, for which
/// it asks for the attributes if it has none.
#[test]
fn an_open_that_looks_up_no_name_gets_the_length() {
    let (store, disk, mut tasks) = (store("sliding-window"), SimDisk::new(1), Tasks::default());
    let (mount, _) = mount_with(&store, &disk, 1, false);
    let ino = known_file(&mount, &store, &mut tasks);
    tasks.run(async {
        mount.open(7, ino, true).await.unwrap();
        store.commit(ino, b"before and after", 0);
        store.forgotten.borrow_mut().clear();
        assert_eq!(mount.open(7, ino, true).await, Err(Errno::ESTALE));
        assert_eq!(*store.forgotten.borrow(), [ino], "the kernel would write at byte 6");
        assert_eq!(mount.attributes(0, ino).await.unwrap().size_bytes, 16);
        mount.open(7, ino, true).await.unwrap();
    });
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
        mount.lookup(0, (ROOT, b"file")).await.unwrap();
        let handle = mount.open(1, ino, true).await.unwrap().handle;
        mount.write(handle, 6, b"second").await.unwrap();
        // A program asks for attributes; then there is one more line.
        assert_eq!(mount.attributes(0, ino).await.unwrap().size_bytes, 12);
        mount.write(handle, 12, b"third ").await.unwrap();
        handle
    });
    let other = mount.clone();
    tasks.spawn(async move {
        other.flush(ino, handle, OWNER).await.unwrap();
        other.release(ino, handle).await;
    });
    tasks.run(async {
        // Let the close begin.
        pause().await;
        let shown = mount.lookup(0, (ROOT, b"file")).await.unwrap().attr;
        let opened = mount.open(3, ino, true).await;
        assert_eq!(shown.size_bytes, 18, "the next O_APPEND of this mount writes there; {opened:?}");
    });
}

/// A file that the kernel knows with pages, another mount changed, and a listing shows; the listing's next page is another request.
fn listed_file(store: &Rc<Store>, mount: &Mount<Client>, tasks: &mut Tasks) -> u64 {
    let ino = store.create(ROOT, b"a", 0).unwrap();
    let other = store.create(ROOT, b"b", 0).unwrap();
    store.commit(ino, b"before", 0);
    store.commit(other, b"other", 0);
    store.list_names.set(1);
    tasks.run(async {
        mount.lookup(0, (ROOT, b"a")).await.unwrap();
        assert!(keeps_pages(mount, ino).await);
        store.commit(ino, b"BEFORE and after", 0);
        mount.leases_recalled(Some(&[ino]));
        store.clock.set(1_000_000_000);
    });
    ino
}

/// The kernel gets the entries that there are, but nothing new of a file that it knows; then the error.
#[test]
fn a_listing_that_fails_changes_nothing() {
    for write_back in [true, false] {
        let (store, disk, mut tasks) = (store("sliding-window"), SimDisk::new(1), Tasks::default());
        let (mount, _) = mount_with(&store, &disk, 1, write_back);
        let ino = listed_file(&store, &mount, &mut tasks);
        tasks.run(async {
            store.refuses_next_pages.set(true);
            let directory = mount.open_directory(ROOT).await.unwrap();
            let mut listed = Vec::new();
            let add = |entry: &ListedEntry<'_>| {
                listed.push((entry.name.to_vec(), entry.next, entry.shown.is_some()));
                false
            };
            mount.read_directory(ROOT, directory, 0, true, add).await.unwrap();
            assert_eq!(listed[2], (b"a".to_vec(), 3, false));
            assert!(mount.read_directory(ROOT, directory, 3, true, |_| false).await.is_err());
            let opened = mount.open(7, ino, true).await;
            assert_eq!(
                opened,
                Err(Errno::ESTALE),
                "write-back {write_back}: the kernel has 6 bytes, and pages of them"
            );
        });
    }
}

/// The kernel gets all entries of a reply at its end.
#[test]
fn an_open_during_a_listing_does_not_count_on_its_reply() {
    for write_back in [true, false] {
        let (store, disk, mut tasks) = (store("sliding-window"), SimDisk::new(1), Tasks::default());
        let (mount, _) = mount_with(&store, &disk, 1, write_back);
        let ino = listed_file(&store, &mount, &mut tasks);
        store.list_rounds.set(10);
        let (lister, replied) = (mount.clone(), Arc::<AtomicBool>::default());
        let (reply, listed) = (replied.clone(), Arc::<AtomicBool>::default());
        let first = listed.clone();
        tasks.spawn(async move {
            let directory = lister.open_directory(ROOT).await.unwrap();
            let add = |entry: &ListedEntry<'_>| {
                first.fetch_or(entry.name == b"a", Ordering::Relaxed);
                false
            };
            lister.read_directory(ROOT, directory, 0, true, add).await.unwrap();
            reply.store(true, Ordering::Relaxed);
        });
        tasks.run(async {
            while !listed.load(Ordering::Relaxed) {
                pause().await;
            }
            let opened = mount.open(7, ino, true).await;
            assert!(
                replied.load(Ordering::Relaxed) || opened == Err(Errno::ESTALE),
                "write-back {write_back}: the kernel still has 6 bytes, and pages of them: {opened:?}"
            );
        });
    }
}

/// A restored manager has an older version than the kernel was sent. The mount asks once whether there is a newer one.
#[test]
fn a_version_that_was_lost_does_not_cost_a_request_at_each_look() {
    for write_back in [false, true] {
        let (store, disk, mut tasks) = (store("sliding-window"), SimDisk::new(1), Tasks::default());
        let (mount, _) = mount_with(&store, &disk, 1, write_back);
        let ino = store.create(ROOT, b"file", 0).unwrap();
        store.lease_ms.set(60_000);
        store.commit(ino, b"first", 0);
        tasks.run(async {
            mount.lookup(0, (ROOT, b"file")).await.unwrap();
            write(&mount, ino, b"second").await;
            store.lose_current(ino);
            mount.leases_recalled(None);
            store.clock.set(1_000_000_000);
            mount.lookup(0, (ROOT, b"file")).await.unwrap();
            let before = store.gets.get();
            for second in 2..12 {
                store.clock.set(second * 1_000_000_000);
                mount.lookup(0, (ROOT, b"file")).await.unwrap();
                assert_eq!(mount.attributes(0, ino).await.unwrap().size_bytes, 5);
            }
            let requests = store.gets.get() - before;
            assert!(requests <= 1, "write-back {write_back}: {requests} requests under one lease");
        });
    }
}

/// A program on this mount reads a file to its end again and again while another mount appends. The kernel has zeros behind the end
/// in its last page, and takes over a greater length before it drops that page.
#[test]
fn the_kernel_drops_its_last_page_before_it_learns_a_greater_length() {
    let (store, disk, mut tasks) = (store("sliding-window"), SimDisk::new(1), Tasks::default());
    let (mount, _) = mount_with(&store, &disk, 1, false);
    let ino = known_file(&mount, &store, &mut tasks);
    tasks.run(async {
        let reader = mount.open(5, ino, false).await.unwrap().handle;
        store.commit(ino, b"before and after", 0);
        assert_eq!(mount.attributes(0, ino).await.unwrap().size_bytes, 6);
        assert_eq!(store.dropped_from.borrow()[..], [], "its length stays until another program opens it");
        assert_eq!(mount.open(7, ino, true).await, Err(Errno::ESTALE));
        assert_eq!(store.dropped_from.take(), [(ino, 6)]);
        assert_eq!(
            mount.read_page(reader, 0, 4096).await.unwrap(),
            b"before and after",
            "what the page is read with then"
        );
        mount.lookup(0, (ROOT, b"file")).await.unwrap();
        let writer = mount.open(7, ino, true).await.unwrap().handle;
        assert_eq!(store.dropped_from.take(), [(ino, 0)], "all pages, as they are of an older version");
        // A commit here brings what another mount appended since.
        mount.write(writer, 0, b"B").await.unwrap();
        assert_eq!(store.dropped_from.take(), [(ino, 0)], "what the other program has read");
        store.commit(ino, b"before and after that", 0);
        mount.flush(ino, writer, OWNER).await.unwrap();
        assert_eq!(
            store.dropped_from.take(),
            [(ino, 16)],
            "the kernel ignores the length in replies to requests from before"
        );
        assert_eq!(mount.attributes(0, ino).await.unwrap().size_bytes, 21);
    });
}

/// With its write-back cache the kernel keeps its own length, and may have bytes in the page that only it has.
#[test]
fn the_write_back_cache_keeps_its_last_page() {
    let (store, disk, mut tasks) = (store("sliding-window"), SimDisk::new(1), Tasks::default());
    let (mount, _) = mount_with(&store, &disk, 1, true);
    let ino = known_file(&mount, &store, &mut tasks);
    tasks.run(async {
        mount.open(5, ino, false).await.unwrap();
        store.commit(ino, b"before and after", 0);
        mount.open(7, ino, false).await.unwrap();
        assert_eq!(store.dropped_from.borrow()[..], []);
    });
}

/// The kernel drops older pages when it gets the answer to an open. The answer to the next open may overtake that one.
#[test]
fn an_open_that_may_keep_pages_finds_no_older_ones() {
    let (store, disk, mut tasks) = (store("sliding-window"), SimDisk::new(1), Tasks::default());
    let (mount, _) = mount_with(&store, &disk, 1, false);
    let ino = known_file(&mount, &store, &mut tasks);
    store.commit(ino, b"BEFORE", 0);
    store.drop_rounds.set(10);
    let (first, done) = (mount.clone(), Arc::<AtomicBool>::default());
    let opened = done.clone();
    tasks.spawn(async move {
        assert!(!first.open(5, ino, true).await.unwrap().keep_cache);
        opened.store(true, Ordering::Relaxed);
    });
    tasks.run(async {
        for _ in 0..5 {
            pause().await;
        }
        assert!(!done.load(Ordering::Relaxed), "it waits for the kernel");
        assert_eq!(mount.open(7, ino, true).await, Err(Errno::ESTALE), "until then the kernel may have older pages");
        assert!(open_as_kernel(&mount, 9, ino, true).await.keep_cache);
    });
}

/// A commit here over another mount's version, while an open that found that version waits for the kernel to drop its pages: the kernel
/// still has pages, or the length, of the version before both.
#[test]
fn a_commit_beside_an_open_does_not_make_the_kernels_pages_current() {
    let (store, disk, mut tasks) = (store("sliding-window"), SimDisk::new(1), Tasks::default());
    let (mount, _) = mount_with(&store, &disk, 1, false);
    let ino = known_file(&mount, &store, &mut tasks);
    let writer = tasks.run(mount.open(3, ino, true)).unwrap().handle;
    store.commit(ino, b"BEFORE", 0);
    store.drop_rounds.set(20);
    let first = mount.clone();
    tasks.spawn(async move {
        first.open(5, ino, true).await.unwrap();
    });
    tasks.run(async {
        for _ in 0..5 {
            pause().await;
        }
        mount.write(writer, 0, b"b").await.unwrap();
        mount.fsync(writer).await.unwrap();
        assert_eq!(store.current(ino).bytes, b"bEFORE");
        let opened = mount.open(7, ino, true).await;
        let dropped = store.dropped_from.borrow().contains(&(ino, 0));
        assert!(dropped || !opened.is_ok_and(|opened| opened.keep_cache), "the kernel still has the bytes \"before\"");
    });
}

/// As above, and the other mount has made the file longer.
#[test]
fn a_commit_beside_an_open_does_not_bring_a_length_that_the_kernel_was_not_told() {
    let (store, disk, mut tasks) = (store("sliding-window"), SimDisk::new(1), Tasks::default());
    let (mount, _) = mount_with(&store, &disk, 1, false);
    let ino = known_file(&mount, &store, &mut tasks);
    let writer = tasks.run(mount.open(3, ino, true)).unwrap().handle;
    store.commit(ino, b"before and after", 0);
    store.drop_rounds.set(20);
    let (first, done) = (mount.clone(), Rc::new(std::cell::Cell::new(None)));
    let opened = done.clone();
    tasks.spawn(async move {
        opened.set(Some(first.open(5, ino, true).await.map(drop)));
    });
    tasks.run(async {
        for _ in 0..5 {
            pause().await;
        }
        mount.write(writer, 0, b"B").await.unwrap();
        mount.fsync(writer).await.unwrap();
        while done.get().is_none() {
            pause().await;
        }
        assert_eq!(done.get(), Some(Err(Errno::ESTALE)), "the kernel has 6 bytes, and appends there");
    });
}

/// Another mount renamed a file over the name. The kernel goes by the inode that it has for the name, and looks it up again at `ESTALE`.
#[test]
fn a_name_whose_inode_was_replaced_is_looked_up_again() {
    let (store, disk, mut tasks) = (store("sliding-window"), SimDisk::new(1), Tasks::default());
    let (mount, _) = mount_with(&store, &disk, 1, false);
    let old = known_file(&mount, &store, &mut tasks);
    let new = store.create(ROOT, b"other", 0).unwrap();
    store.commit(new, b"after", 0);
    store.replace((ROOT, b"other"), (ROOT, b"file"));
    mount.leases_recalled(Some(&[old]));
    tasks.run(async {
        // It asks for the attributes first, to check the permissions.
        assert_eq!(mount.attributes(0, old).await, Err(Errno::ESTALE));
        assert_eq!(mount.open(1, old, false).await, Err(Errno::ESTALE));
        assert_eq!(mount.set_attributes(old, NewAttr::default(), Some(0)).await, Err(Errno::ESTALE));
        assert_eq!(mount.read_link(old).await, Err(Errno::ESTALE));
        assert_eq!(mount.lookup(0, (ROOT, b"file")).await.unwrap().attr.ino, new);
        // Nothing has the name any more: that is what a program learns.
        assert_eq!(mount.lookup(0, (ROOT, b"other")).await, Err(Errno::ENOENT));
    });
}

#[test]
fn an_answer_that_a_recall_overtook_is_not_cached() {
    let (store, disk, mut tasks) = (store("sliding-window"), SimDisk::new(1), Tasks::default());
    let (mount, _) = mount_with(&store, &disk, 1, false);
    let ino = known_file(&mount, &store, &mut tasks);
    store.clock.set(5_000_000_000);
    mount.leases_recalled(Some(&[ino]));
    assert!(mount.was_recalled_since(ino, 4_999_999_999) && mount.was_recalled_since(ino, 5_000_000_000));
    assert!(!mount.was_recalled_since(ino, 5_000_000_001) && !mount.was_recalled_since(ino + 1, 0));
}

/// The answer may reach the kernel right after that.
#[test]
fn a_recall_counts_before_the_kernel_is_told_of_it() {
    let (store, disk, mut tasks) = (store("sliding-window"), SimDisk::new(1), Tasks::default());
    let (mount, _) = mount_with(&store, &disk, 1, false);
    store.lease_ms.set(60_000);
    let ino = known_file(&mount, &store, &mut tasks);
    let (weak, told) = (Arc::downgrade(&mount), Rc::new(Cell::new(None)));
    let tell = told.clone();
    let look = move || tell.set(weak.upgrade().map(|mount| mount.was_recalled_since(ino, 0)));
    *store.on_recall.borrow_mut() = Some(Box::new(look));
    mount.leases_recalled(Some(&[ino]));
    assert_eq!(told.get(), Some(true));
}

/// The manager recalls what it gave a lease on, and gives none on what it is about to change. A kernel that kept the name of a removed file
/// would let two programs into a lock file's section, each with its own file.
#[test]
fn the_kernel_keeps_a_name_no_longer_than_its_change_is_recalled() {
    const SECOND: Duration = Duration::from_secs(1);
    const HEARS: Duration = Duration::from_millis(50);
    let (store, disk, mut tasks) = (store("sliding-window"), SimDisk::new(1), Tasks::default());
    let (mount, _) = mount_with(&store, &disk, 1, false);
    let is_shared = |mount: &Mount<Client>| mount.namespace.with(|core, now_ns| core.cache.is_shared(now_ns, ROOT));
    let ino = store.create(ROOT, b"file", 0).unwrap();
    tasks.run(async {
        let ttl = async || {
            let attr = mount.lookup(0, (ROOT, b"file")).await.unwrap().attr;
            mount.name_ttl(ROOT, attr.ino, SECOND)
        };
        assert_eq!(ttl().await, Duration::ZERO, "no lease");
        store.lease_ms.set(1_200);
        assert_eq!(ttl().await, SECOND);
        store.clock.update(|now_ns| now_ns + 900_000_000);
        assert_eq!(ttl().await, Duration::from_millis(300), "what is left of the lease");
        let directory = mount.make_directory(CALLER, (ROOT, b"d"), 0o755).await.unwrap().attr.ino;
        let new = mount.create(CALLER, (directory, b"new"), 0o644, true, true).await.unwrap().0.attr;
        assert_eq!(mount.name_ttl(directory, new.ino, SECOND), SECOND, "the directory is recalled");
        let versions = mount.lookup(0, (ROOT, b".tessera")).await.unwrap().attr;
        assert_eq!(mount.name_ttl(ROOT, versions.ino, SECOND), SECOND, "no other mount changes it");
        store.lease_ms.set(60_000);
        store.clock.update(|now_ns| now_ns + 1_000_000_000);
        assert_eq!((ttl().await, is_shared(&mount)), (SECOND, false));
        assert_eq!(mount.leases_recalled(Some(&[ino])).until_told, SECOND + HEARS, "the kernel keeps the name");
        assert_eq!((ttl().await, is_shared(&mount)), (Duration::ZERO, true), "mounts take turns there");
        store.clock.update(|now_ns| now_ns + 600_000_000);
        assert_eq!(mount.leases_recalled(Some(&[ino])).until_told, SECOND + HEARS - Duration::from_millis(600));
        store.clock.update(|now_ns| now_ns + 600_000_000);
        assert!(mount.leases_recalled(Some(&[ino])).is_empty() && mount.leases_recalled(Some(&[99])).is_empty());
        store.clock.update(|now_ns| now_ns + 10_000_000_001);
        assert_eq!((ttl().await, is_shared(&mount)), (SECOND, false));
    });
}

/// `git status` and `rm -r` go through a directory in order of its names.
#[test]
fn whoever_looks_names_up_in_their_order_gets_the_next_ones_in_few_requests() {
    const NAMES: usize = 300;
    let (store, disk, mut tasks) = (store("sliding-window"), SimDisk::new(1), Tasks::default());
    let (mount, _) = mount_with(&store, &disk, 1, false);
    let name = |at: usize| format!("{at:03}").into_bytes();
    let inos: Vec<u64> = (0..NAMES).map(|at| store.create(ROOT, &name(at), 0).unwrap()).collect();
    store.lease_ms.set(60_000);
    let look_up = async |at: usize| mount.lookup(0, (ROOT, &name(at))).await.map(|shown| shown.attr.ino);
    tasks.run(async {
        for (at, ino) in inos.iter().enumerate() {
            assert_eq!(look_up(at).await, Ok(*ino));
        }
        assert_eq!(store.lookups.get(), 5, "for 1, 1, 17, 65 and 257 names");
        mount.leases_recalled(Some(&[inos[299]]));
        store.remove(inos[299]);
        assert_eq!(look_up(299).await, Err(Errno::ENOENT));
        mount.remove((ROOT, &name(298)), false).await.unwrap();
        assert_eq!(look_up(298).await, Err(Errno::ENOENT));
        assert_eq!((look_up(297).await, store.lookups.get()), (Ok(inos[297]), 7));
    });
}

/// A compiler does so with headers.
#[test]
fn a_file_that_is_opened_again_is_not_asked_for_while_a_lease_says_that_it_has_not_changed() {
    let (store, disk, mut tasks) = (store("sliding-window"), SimDisk::new(1), Tasks::default());
    let (mount, _) = mount_with(&store, &disk, 1, false);
    let ino = store.create(ROOT, b"file", 0).unwrap();
    store.commit(ino, b"before", 0);
    store.lease_ms.set(60_000);
    let read = async || {
        mount.lookup(0, (ROOT, b"file")).await.unwrap();
        let handle = mount.open(1, ino, false).await.unwrap().handle;
        let bytes = mount.read(handle, 0, 100).await.unwrap();
        mount.release(ino, handle).await;
        (String::from_utf8(bytes).unwrap(), store.opens.get())
    };
    tasks.run(async {
        for _ in 0..3 {
            assert_eq!(read().await, ("before".into(), 1));
        }
        mount.leases_recalled(Some(&[ino]));
        store.commit(ino, b"BEFORE", 0);
        assert_eq!(read().await, ("BEFORE".into(), 2));
        store.clock.set(800_000_000);
        assert_eq!(read().await, ("BEFORE".into(), 3), "it was opened once, and is not kept for long");
        for clock_ns in [1_500_000_000, 5_799_999_999] {
            store.clock.set(clock_ns);
            assert_eq!(read().await, ("BEFORE".into(), 3), "it is opened again and again");
        }
        store.clock.set(5_800_000_000);
        assert_eq!(read().await, ("BEFORE".into(), 4), "its session may be over");
        mount.leases_recalled(None);
        assert_eq!(read().await, ("BEFORE".into(), 5), "its session may be gone with the connection");
    });
}
