//! Handles that read and write without the kernel's pages.

use super::*;

/// What the kernel holds of a file that changes it may have read before a change.
#[test]
fn whatever_may_change_is_not_read_through_the_kernels_pages() {
    let (store, disk, mut tasks) = (store("sliding-window"), SimDisk::new(1), Tasks::default());
    let (mount, _) = mount_with(&store, &disk, 1, false);
    let ino = known_file(&mount, &store, &mut tasks);
    tasks.run(async {
        let reader = mount.open(5, ino, false).await.unwrap();
        assert!(!reader.direct, "nobody changes it");
        let writer = mount.open(6, ino, true).await.unwrap();
        assert!(writer.direct);
        assert!(mount.open(7, ino, false).await.unwrap().direct, "a program writes it");
        mount.flush(ino, writer.handle, OWNER).await.unwrap();
        assert!(!mount.open(7, ino, false).await.unwrap().direct, "it has closed the file");
        assert!(mount.create(CALLER, (ROOT, b"new"), 0o644, true, true).await.unwrap().1.direct);
    });
}

/// The kernel may read a page again between the moment when a write gives it up and the write.
#[test]
fn what_is_read_beside_a_write_is_dropped_after_it() {
    let (store, disk, mut tasks) = (store("sliding-window"), SimDisk::new(1), Tasks::default());
    let (mount, _) = mount_with(&store, &disk, 1, false);
    let ino = known_file(&mount, &store, &mut tasks);
    tasks.run(async {
        let writer = mount.open(6, ino, true).await.unwrap().handle;
        store.dropped_from.take();
        mount.read(writer, 0, 4096).await.unwrap();
        mount.write(writer, 0, b"b").await.unwrap();
        assert_eq!(store.dropped_from.take(), [], "what was read bypassed its pages");
        mount.read_page(writer, 0, 4096).await.unwrap();
        mount.write(writer, 2, b"f").await.unwrap();
        assert_eq!(store.dropped_from.take(), [(ino, 2)], "a map has them");
        mount.release(ino, writer).await;
        assert!(!open_as_kernel(&mount, 5, ino, false).await.direct);
        let writer = mount.open(6, ino, true).await.unwrap().handle;
        store.dropped_from.take();
        mount.write(writer, 3, b"o").await.unwrap();
        assert_eq!(store.dropped_from.take(), [(ino, 3)]);
        mount.write_page(writer, 0, b"before").await.unwrap();
        assert_eq!(store.dropped_from.take(), [], "the kernel holds the page until it is written");
    });
}

/// A read that does not end keeps the kernel from dropping a page.
#[test]
fn pages_that_were_not_dropped_are_not_kept() {
    let (store, disk, mut tasks) = (store("sliding-window"), SimDisk::new(1), Tasks::default());
    let (mount, _) = mount_with(&store, &disk, 1, false);
    let ino = known_file(&mount, &store, &mut tasks);
    tasks.run(async {
        mount.open(5, ino, false).await.unwrap();
        store.commit(ino, b"BEFORE", 0);
        store.pages_stay.set(true);
        let opened = open_as_kernel(&mount, 6, ino, false).await;
        assert!(opened.direct && !opened.keep_cache);
        store.clock.set(60_000_000_000);
        let opened = open_as_kernel(&mount, 6, ino, false).await;
        assert!(opened.direct && !opened.keep_cache, "also when no other mount changes the file any more");
        store.pages_stay.set(false);
        open_as_kernel(&mount, 6, ino, false).await;
        let opened = open_as_kernel(&mount, 6, ino, false).await;
        assert!(!opened.direct && opened.keep_cache);
    });
}

/// The kernel appends at the end that it knows, and another mount has moved it.
#[test]
fn an_append_goes_to_the_end_wherever_the_kernel_believes_it() {
    for mode in ["sliding-window", "complete-local"] {
        let (store, disk, mut tasks) = (store(mode), SimDisk::new(1), Tasks::default());
        let (mount, _) = mount_with(&store, &disk, 1, false);
        let ino = known_file(&mount, &store, &mut tasks);
        tasks.run(async {
            store.commit(ino, b"before and", 0);
            let opened = open_as_kernel(&mount, 7, ino, true).await;
            mount.append(opened.handle, 6, b" after").await.unwrap();
            mount.append(opened.handle, 12, b" that").await.unwrap();
            assert_eq!(mount.read(opened.handle, 0, 100).await.unwrap(), b"before and after that", "{mode}");
            mount.fsync(opened.handle).await.unwrap();
            assert_eq!(mount.open(8, ino, true).await, Err(Errno::ESTALE), "the kernel does not know the end");
        });
    }
}

/// The kernel copies through its pages, up to the length that it knows.
#[test]
fn a_copy_has_what_another_mount_closed() {
    let (store, disk, mut tasks) = (store("sliding-window"), SimDisk::new(1), Tasks::default());
    let (mount, _) = mount_with(&store, &disk, 1, false);
    let ino = known_file(&mount, &store, &mut tasks);
    tasks.run(async {
        let to = mount.create(CALLER, (ROOT, b"copy"), 0o644, true, true).await.unwrap().1.handle;
        store.commit(ino, b"before and after", 0);
        let from = open_as_kernel(&mount, 5, ino, false).await.handle;
        assert_eq!(mount.copy((from, 7), (to, 0), 3).await, Ok(3));
        assert_eq!(mount.copy((from, 10), (to, 3), 1000).await, Ok(6), "up to the end");
        assert_eq!(mount.copy((from, 16), (to, 9), 1000).await, Ok(0));
        assert_eq!(mount.read(to, 0, 100).await.unwrap(), b"and after");
        assert_eq!(mount.copy((from, 0), (from + 77, 0), 1).await, Err(Errno::EBADF));
    });
    let (mount, _) = mount_with(&store, &SimDisk::new(2), 2, true);
    tasks.run(async {
        let handle = mount.open(5, ino, true).await.unwrap().handle;
        assert_eq!(mount.copy((handle, 0), (handle, 6), 3).await, Err(Errno::EOPNOTSUPP), "the kernel does it");
    });
}

/// Found by the simulator (seed 600406 of the mounts).
#[test]
fn a_file_that_grew_and_was_emptied_is_empty_after_its_commit() {
    let (store, disk, mut tasks) = (store("sliding-window"), SimDisk::new(1), Tasks::default());
    let (mount, _) = mount_with(&store, &disk, 1, false);
    let ino = known_file(&mount, &store, &mut tasks);
    tasks.run(async {
        let handle = mount.open(5, ino, true).await.unwrap().handle;
        mount.write(handle, 0, b"b").await.unwrap();
        mount.set_attributes(ino, NewAttr::default(), Some(70)).await.unwrap();
        mount.set_attributes(ino, NewAttr::default(), Some(0)).await.unwrap();
        mount.fsync(handle).await.unwrap();
        assert_eq!(mount.attributes(0, ino).await.unwrap().size_bytes, 0);
        assert_eq!(mount.read(handle, 0, 100).await.unwrap(), b"");
    });
}

/// Found by the simulator (seed 601730 of the mounts).
#[test]
fn what_lies_below_lost_bytes_is_not_read() {
    let (store, disk, mut tasks) = (store("sliding-window"), SimDisk::new(1), Tasks::default());
    let (mount, _) = mount_with(&store, &disk, 1, false);
    let ino = known_file(&mount, &store, &mut tasks);
    tasks.run(async {
        let handle = mount.open(5, ino, true).await.unwrap().handle;
        mount.write(handle, 0, b"B").await.unwrap();
        store.is_full.set(true);
        assert!(mount.fsync(handle).await.is_err());
        assert!(mount.read(handle, 0, 100).await.is_err(), "\"before\" has the byte that was overwritten");
    });
}

/// A program keeps a file open (`tail -f`) of which another one on its mount could not commit what it wrote.
#[test]
fn the_file_is_its_newest_version_once_who_lost_bytes_has_closed() {
    let (store, disk, mut tasks) = (store("sliding-window"), SimDisk::new(1), Tasks::default());
    let (mount, _) = mount_with(&store, &disk, 1, false);
    let ino = known_file(&mount, &store, &mut tasks);
    tasks.run(async {
        let kept = mount.open(4, ino, false).await.unwrap().handle;
        let handle = mount.open(5, ino, true).await.unwrap().handle;
        mount.write(handle, 0, b"BEFORE AND AFTER").await.unwrap();
        store.is_full.set(true);
        assert!(mount.flush(ino, handle, OWNER).await.is_err());
        assert!(mount.read(kept, 0, 100).await.is_err());
        mount.release(ino, handle).await;
        assert_eq!(mount.read(kept, 0, 100).await.unwrap(), b"before");
        store.is_full.set(false);
        let again = open_as_kernel(&mount, 6, ino, true).await.handle;
        mount.write(again, 0, b"B").await.unwrap();
        mount.flush(ino, again, OWNER).await.unwrap();
        assert_eq!(store.current(ino).bytes, b"Before");
        assert_eq!(mount.read(kept, 0, 100).await.unwrap(), b"Before");
    });
}

/// The kernel opens once more after a refusal, and the name may have another inode then.
#[test]
fn an_open_is_refused_once_whatever_happens_to_the_name() {
    let (store, disk, mut tasks) = (store("sliding-window"), SimDisk::new(1), Tasks::default());
    let (mount, _) = mount_with(&store, &disk, 1, false);
    let ino = known_file(&mount, &store, &mut tasks);
    tasks.run(async {
        mount.kernel.lock().refused_as_gone(ino + 1, 7);
        store.commit(ino, b"before and after", 0);
        mount.open(7, ino, true).await.unwrap();
        assert_eq!(mount.open(8, ino, true).await, Err(Errno::ESTALE), "another program's open");
    });
}

/// The kernel leaves the bits to the mount where a program writes without its pages.
#[test]
fn a_write_by_another_user_ends_the_set_user_id_bit() {
    let (store, disk, mut tasks) = (store("sliding-window"), SimDisk::new(1), Tasks::default());
    let (mount, _) = mount_with(&store, &disk, 1, false);
    let ino = known_file(&mount, &store, &mut tasks);
    tasks.run(async {
        store.mode.set(0o6755);
        let handle = mount.open(5, ino, true).await.unwrap().handle;
        store.forgotten.take();
        mount.drop_privileges(handle).await.unwrap();
        assert_eq!((store.mode.get(), store.set_attrs.get(), store.forgotten.take()), (0o755, 1, vec![ino]));
        mount.drop_privileges(handle).await.unwrap();
        let gets = store.gets.get();
        mount.drop_privileges(handle).await.unwrap();
        assert_eq!((store.set_attrs.get(), store.gets.get()), (1, gets), "not at each write");
        mount.set_attributes(ino, NewAttr { mode: Some(0o4755), ..NewAttr::default() }, None).await.unwrap();
        mount.drop_privileges(handle).await.unwrap();
        assert_eq!(store.mode.get(), 0o755, "a program has set the bit again");
        store.mode.set(0o4711);
        mount.leases_recalled(Some(&[ino]));
        mount.drop_privileges(handle).await.unwrap();
        assert_eq!(store.mode.get(), 0o711, "another mount has set it, and the lease was recalled");
        store.mode.set(0o4700);
        open_as_kernel(&mount, 6, ino, true).await;
        mount.drop_privileges(handle).await.unwrap();
        assert_eq!(store.mode.get(), 0o700, "another mount has set it");
    });
}

/// A program sets the bit while another one writes. Nothing says that the mount hears of it: files with several names have no lease.
#[test]
fn a_set_user_id_bit_that_is_set_beside_a_write_ends_with_the_next_one() {
    let (store, disk, mut tasks) = (store("sliding-window"), SimDisk::new(1), Tasks::default());
    let (mount, _) = mount_with(&store, &disk, 1, false);
    let ino = known_file(&mount, &store, &mut tasks);
    store.mode.set(0o755);
    store.set_attr_rounds.set(20);
    let (other, is_set) = (mount.clone(), Arc::<AtomicBool>::default());
    let set = is_set.clone();
    tasks.spawn(async move {
        other.set_attributes(ino, NewAttr { mode: Some(0o4755), ..NewAttr::default() }, None).await.unwrap();
        set.store(true, Ordering::Release);
    });
    tasks.run(async {
        let handle = mount.open(5, ino, true).await.unwrap().handle;
        for _ in 0..5 {
            pause().await;
        }
        mount.drop_privileges(handle).await.unwrap();
        assert_eq!(store.mode.get(), 0o755);
        while !is_set.load(Ordering::Acquire) {
            pause().await;
        }
        assert_eq!(store.mode.get(), 0o4755);
        mount.drop_privileges(handle).await.unwrap();
        assert_eq!(store.mode.get(), 0o755);
    });
}

/// As `tar` does with an archive whose files are from 1970: it sets the times before it closes the file. Times of 0 mean none.
#[test]
fn times_of_the_first_second_of_1970_are_kept() {
    for write_mode in ["sliding-window", "complete-local"] {
        let (store, disk, mut tasks) = (store(write_mode), SimDisk::new(1), Tasks::default());
        let (mount, queues) = mount_with(&store, &disk, 1, false);
        start_pushes(&mut tasks, &mount, queues);
        let ino = known_file(&mount, &store, &mut tasks);
        tasks.run(async {
            let handle = mount.open(5, ino, true).await.unwrap().handle;
            mount.write(handle, 0, b"B").await.unwrap();
            let times = NewAttr { mtime_ns: Some(0), atime_ns: Some(0), ..NewAttr::default() };
            let attr = mount.set_attributes(ino, times, None).await.unwrap();
            assert_eq!(attr.mtime_ns / 1_000, 0);
            mount.flush(ino, handle, OWNER).await.unwrap();
            mount.release(ino, handle).await;
            until_pushed(&mount).await;
        });
        let is_near_zero = |ns: i64| ns != 0 && ns / 1_000 == 0;
        assert!(is_near_zero(store.times.get().mtime_ns), "{write_mode}: {:?}", store.times.get());
        assert!(store.atime_ns.get().is_some_and(is_near_zero), "{write_mode}: {:?}", store.atime_ns.get());
    }
}

/// `getfattr -n user.tessera.mount`, and Prometheus, ask while a commit gets no answer.
#[test]
fn the_state_of_the_mount_is_shown_while_a_commit_hangs() {
    let (store, disk, mut tasks) = (store("sliding-window"), SimDisk::new(1), Tasks::default());
    let (mount, _) = mount_with(&store, &disk, 1, false);
    let ino = known_file(&mount, &store, &mut tasks);
    let handle = tasks.run(async {
        let handle = mount.open(5, ino, true).await.unwrap().handle;
        mount.write(handle, 0, b"B").await.unwrap();
        handle
    });
    store.commit_waits.set(u32::MAX);
    let other = mount.clone();
    tasks.spawn(async move { other.fsync(handle).await.unwrap() });
    tasks.run(async {
        pause().await;
        let stats = mount.stats();
        assert_eq!((stats.open_files, stats.uncommitted_files, stats.spool.unwrap().waiting_files), (1, 1, 0));
        let shown = mount.get_xattr(ino, b"user.tessera.mount").await.unwrap();
        assert!(String::from_utf8(shown).unwrap().contains("spool"));
    });
}

/// The kernel writes back a page that was changed through a map after the close. The session only goes forward, so it commits what it
/// has first.
#[test]
fn a_page_that_is_written_back_after_the_close_reaches_the_store() {
    let (store, disk, mut tasks) = (store("incremental"), SimDisk::new(1), Tasks::default());
    store.set_hint("durability", "optimistic");
    let (mount, queues) = mount(&store, &disk, 1);
    let ino = known_file(&mount, &store, &mut tasks);
    tasks.spawn(run_drains(store.clone()));
    start_pushes(&mut tasks, &mount, queues);
    let mut bytes = vec![7; 5 << 20];
    tasks.run(async {
        let handle = mount.open(1, ino, true).await.unwrap().handle;
        mount.set_attributes(ino, NewAttr::default(), Some(0)).await.unwrap();
        mount.write(handle, 0, &bytes).await.unwrap();
        mount.flush(ino, handle, OWNER).await.unwrap();
        mount.write_page(handle, 4096, &[8; 4096]).await.unwrap();
        mount.release(ino, handle).await;
        until_pushed(&mount).await;
    });
    bytes[4096..8192].fill(8);
    assert!(store.current(ino).bytes == bytes, "{} bytes", store.current(ino).bytes.len());
    assert_eq!(mount.stats().open_files, 0);
}

/// A page of a map waits while another mount cuts the file off, and is written back after that, whether or not this mount has asked
/// for the file meanwhile.
#[test]
fn a_page_that_is_written_back_makes_no_file_longer() {
    let modes = [
        ("sliding-window", false, b"Be" as &[u8]),
        ("complete-local", false, b"Be"),
        ("sliding-window", true, b"Before"),
    ];
    for ((mode, write_back, stored), asks) in modes.into_iter().flat_map(|mode| [(mode, false), (mode, true)]) {
        let (store, disk, mut tasks) = (store(mode), SimDisk::new(1), Tasks::default());
        let (mount, queues) = mount_with(&store, &disk, 1, write_back);
        start_pushes(&mut tasks, &mount, queues);
        let ino = known_file(&mount, &store, &mut tasks);
        tasks.run(async {
            let mapped = mount.open(5, ino, true).await.unwrap().handle;
            store.commit(ino, b"BE", 0);
            if asks {
                let other = open_as_kernel(&mount, 6, ino, false).await;
                assert_eq!(mount.read(other.handle, 0, 100).await.unwrap(), b"BE");
            }
            mount.write_page(mapped, 0, b"Before").await.unwrap();
            if !write_back {
                mount.write_page(mapped, 4096, &[7; 100]).await.unwrap();
            }
            mount.flush(ino, mapped, OWNER).await.unwrap();
            mount.release(ino, mapped).await;
            until_pushed(&mount).await;
        });
        assert_eq!(store.current(ino).bytes, stored, "{mode}, write-back {write_back}, asks {asks}");
    }
}

/// The kernel has zeros behind an answer that is shorter than the file was when it asked.
#[test]
fn pages_are_not_filled_short_where_another_mount_has_cut_the_file_off() {
    let (store, disk, mut tasks) = (store("sliding-window"), SimDisk::new(1), Tasks::default());
    let (mount, _) = mount_with(&store, &disk, 1, false);
    let ino = known_file(&mount, &store, &mut tasks);
    tasks.run(async {
        let kept = mount.open(5, ino, false).await.unwrap();
        assert!(!kept.direct);
        store.clock.set(1);
        store.commit(ino, b"BE", 0);
        let other = open_as_kernel(&mount, 6, ino, false).await;
        assert!(other.direct);
        assert_eq!(mount.read(other.handle, 0, 100).await.unwrap(), b"BE");
        // The open dropped pages: the kernel ignores the lengths of requests that it made before.
        mount.kernel.lock().noticed(ino, 0);
        assert_eq!(mount.read(kept.handle, 0, 100).await.unwrap(), b"BEfore");
        assert_eq!(mount.read(kept.handle, 4, 100).await.unwrap(), b"re", "behind the new end");
        assert_eq!(mount.read(kept.handle, 0, 2).await.unwrap(), b"BE", "what lies before the end is current");
        assert!(!mount.kernel.lock().has_version(ino, store.current(ino).id), "the next open drops these pages");
        store.dropped_from.take();
        store.clock.set(1_000_000_000);
        assert_eq!(mount.attributes(0, ino).await.unwrap().size_bytes, 2);
        assert_eq!(store.dropped_from.take(), [(ino, 2)], "what lies behind the end in these pages");
        store.clock.set(2_000_000_000);
        mount.attributes(0, ino).await.unwrap();
        assert_eq!(mount.read(kept.handle, 0, 100).await.unwrap(), b"BE", "the kernel knows the length");
    });
}

/// The kernel learns the length by the reply, and has pages filled until then.
#[test]
fn pages_are_not_filled_short_while_a_truncate_is_answered() {
    for (size_bytes, write_mode) in
        [(0, "sliding-window"), (2, "sliding-window"), (0, "complete-local"), (2, "complete-local")]
    {
        let (store, disk, mut tasks) = (store(write_mode), SimDisk::new(1), Tasks::default());
        let (mount, _) = mount_with(&store, &disk, 1, false);
        let ino = known_file(&mount, &store, &mut tasks);
        store.commit_waits.set(20);
        // It has not read yet.
        let kept = tasks.run(mount.open(5, ino, false)).unwrap().handle;
        store.clock.set(1);
        let is_answered = Arc::<AtomicBool>::default();
        let (other, answered) = (mount.clone(), is_answered.clone());
        tasks.spawn(async move {
            let cut = other.begin_cut(ino);
            other.set_attributes(ino, NewAttr::default(), Some(size_bytes)).await.unwrap();
            pause().await;
            answered.store(true, Ordering::Release);
            other.end_cut(cut).await;
        });
        tasks.run(async {
            let mut reads = 0;
            while !is_answered.load(Ordering::Acquire) || mount.files.is_being_cut(ino) {
                assert_eq!(mount.read(kept, 0, 100).await.unwrap(), b"before");
                if mount.files.is_being_cut(ino) {
                    assert!(open_as_kernel(&mount, 7, ino, false).await.direct);
                }
                reads += 1;
                pause().await;
            }
            assert!(reads > 1);
            pause().await;
            assert_eq!(mount.read(kept, 0, 100).await.unwrap(), b"before"[..size_bytes as usize]);
        });
    }
}

/// Each older page is dropped later, and the kernel takes over no length beside that.
#[test]
fn the_file_of_before_is_not_read_for_ever() {
    let (store, disk, mut tasks) = (store("sliding-window"), SimDisk::new(1), Tasks::default());
    let (mount, _) = mount_with(&store, &disk, 1, false);
    let ino = known_file(&mount, &store, &mut tasks);
    tasks.run(async {
        let kept = mount.open(5, ino, false).await.unwrap().handle;
        store.clock.set(1);
        store.commit(ino, b"BE", 0);
        open_as_kernel(&mount, 6, ino, false).await;
        mount.kernel.lock().noticed(ino, 0);
        for round in 0..3_000 {
            store.clock.set(1 + 1_000_000 * round);
            mount.attributes(0, ino).await.unwrap();
            mount.read(kept, 0, 100).await.unwrap();
        }
        assert_eq!(mount.read(kept, 0, 100).await.unwrap(), b"BE");
    });
}
