//! Files that lose their last name while a program has them open, or opens them.

use super::*;

/// Removes the name `file`, or renames another file over it.
async fn remove(mount: &Mount<Client>, renames: bool) {
    match renames {
        false => mount.remove((ROOT, b"file"), false).await.unwrap(),
        true => mount.rename((ROOT, b"new"), (ROOT, b"file"), Default::default()).await.unwrap(),
    }
}

/// What a program reads from a file that it has written and committed, and whose last name is removed at one of these moments.
fn read_after(renames: bool, opens_first: bool, write_mode: &str) -> Result<Vec<u8>, Errno> {
    let (store, disk, mut tasks) = (store(write_mode), SimDisk::new(1), Tasks::default());
    let (mount, queues) = mount(&store, &disk, 1);
    start_pushes(&mut tasks, &mount, queues);
    let ino = known_file(&mount, &store, &mut tasks);
    store.create(ROOT, b"new", 0).unwrap();
    store.unlink_rounds.set(50);
    let is_removed = Arc::<AtomicBool>::default();
    let (remover, removed) = (mount.clone(), is_removed.clone());
    let first = match opens_first {
        true => Some(tasks.run(mount.open(1, ino, true)).unwrap().handle),
        false => None,
    };
    tasks.spawn(async move {
        remove(&remover, renames).await;
        removed.store(true, Ordering::Release);
    });
    tasks.run(async {
        // It is on its way to the manager when the program goes on.
        for _ in 0..20 {
            pause().await;
        }
        let handle = match first {
            Some(handle) => handle,
            None => mount.open(1, ino, true).await.unwrap().handle,
        };
        mount.write(handle, 0, b"B").await.unwrap();
        mount.fsync(handle).await.unwrap();
        assert!(!is_removed.load(Ordering::Acquire));
        while !is_removed.load(Ordering::Acquire) {
            pause().await;
        }
        mount.read(handle, 0, 100).await
    })
}

#[test]
fn a_file_that_is_committed_while_its_last_name_goes_can_be_read() {
    for mode in ["sliding-window", "complete-local"] {
        for renames in [false, true] {
            assert_eq!(read_after(renames, true, mode), Ok(b"Before".to_vec()), "{mode}, {renames}");
        }
    }
}

#[test]
fn a_file_that_is_opened_while_its_last_name_goes_can_be_read() {
    for mode in ["sliding-window", "complete-local"] {
        for renames in [false, true] {
            assert_eq!(read_after(renames, false, mode), Ok(b"Before".to_vec()), "{mode}, {renames}");
        }
    }
}

/// The name stays, so the file needs no session.
#[test]
fn a_removal_that_fails_leaves_the_file_as_it_was() {
    let (store, disk, mut tasks) = (store("complete-local"), SimDisk::new(1), Tasks::default());
    let (mount, _) = mount(&store, &disk, 1);
    let ino = known_file(&mount, &store, &mut tasks);
    tasks.run(async {
        let handle = mount.open(1, ino, true).await.unwrap().handle;
        let renamed = mount.rename((ROOT, b"absent"), (ROOT, b"file"), Default::default()).await;
        assert_eq!(renamed, Err(Errno::ENOENT));
        mount.write(handle, 0, b"B").await.unwrap();
        assert_eq!(mount.stats().spool.unwrap().waiting_files, 1, "a file without a name would not be spooled");
    });
}

/// Nobody knows whether the name is gone, so the file counts as one without a name.
#[test]
fn a_removal_whose_answer_is_lost_may_have_removed_the_last_name() {
    for renames in [false, true] {
        let (store, disk, mut tasks) = (store("complete-local"), SimDisk::new(1), Tasks::default());
        let (mount, _) = mount(&store, &disk, 1);
        let ino = known_file(&mount, &store, &mut tasks);
        store.create(ROOT, b"new", 0).unwrap();
        store.lost_removals.set(1);
        tasks.run(async {
            let handle = mount.open(1, ino, true).await.unwrap().handle;
            let removed = match renames {
                false => mount.remove((ROOT, b"file"), false).await,
                true => mount.rename((ROOT, b"new"), (ROOT, b"file"), Default::default()).await,
            };
            assert_eq!(removed, Err(Errno::ETIMEDOUT));
            mount.write(handle, 0, b"B").await.unwrap();
            assert_eq!(mount.stats().spool.unwrap().waiting_files, 0, "{renames}");
        });
    }
}

/// The look at the file before a removal is not what its log lies over: another mount wrote meanwhile.
#[test]
fn a_removal_that_fails_leaves_a_spooled_file_over_its_version() {
    let (store, disk, mut tasks) = (store("complete-local"), SimDisk::new(1), Tasks::default());
    let (mount, _) = mount(&store, &disk, 1);
    let ino = known_file(&mount, &store, &mut tasks);
    tasks.run(async {
        let handle = mount.open(1, ino, true).await.unwrap().handle;
        mount.write(handle, 0, b"B").await.unwrap();
        mount.fsync(handle).await.unwrap();
        mount.write(handle, 0, b"b").await.unwrap();
        store.commit(ino, b"elsewhere", 0);
        mount.rename((ROOT, b"absent"), (ROOT, b"file"), Default::default()).await.unwrap_err();
        assert_eq!(mount.read(handle, 0, 100).await.unwrap(), b"before");
    });
}

/// A new file that another mount writes, too, before anything of it is committed here.
#[test]
fn a_removal_that_fails_shows_a_new_file_over_another_mounts_version() {
    let (store, disk, mut tasks) = (store("sliding-window"), SimDisk::new(1), Tasks::default());
    let (mount, _) = mount(&store, &disk, 1);
    tasks.run(async {
        let (entry, opened) = mount.create(CALLER, (ROOT, b"file"), 0o644, true, true).await.unwrap();
        mount.write(opened.handle, 0, b"mine").await.unwrap();
        store.commit(entry.attr.ino, b"of another mount", 0);
        mount.rename((ROOT, b"absent"), (ROOT, b"file"), Default::default()).await.unwrap_err();
        let read = mount.read(opened.handle, 0, 100).await.unwrap();
        assert!(read == b"mine" || read == b"minenother mount", "{read:?}");
        mount.fsync(opened.handle).await.unwrap();
        assert_eq!(store.current(entry.attr.ino).bytes, b"minenother mount");
    });
}

/// A new file is set to length 0, so what is written here replaces all of it.
#[test]
fn a_removal_that_fails_leaves_a_file_that_is_replaced_as_it_was() {
    for writes_first in [false, true] {
        let (store, disk, mut tasks) = (store("sliding-window"), SimDisk::new(1), Tasks::default());
        let (mount, _) = mount(&store, &disk, 1);
        tasks.run(async {
            let directory = mount.make_directory(CALLER, (ROOT, b"directory"), 0o755).await.unwrap().attr.ino;
            let (entry, opened) = mount.create(CALLER, (directory, b"file"), 0o644, true, true).await.unwrap();
            let (ino, handle) = (entry.attr.ino, opened.handle);
            mount.set_attributes(ino, NewAttr::default(), Some(0)).await.unwrap();
            if writes_first {
                mount.write(handle, 0, b"mi").await.unwrap();
            }
            mount.sync_directory(directory).await.unwrap();
            store.commit(ino, b"of another mount", 0);
            mount.rename((directory, b"absent"), (directory, b"file"), Default::default()).await.unwrap_err();
            mount.write(handle, 0, b"mine").await.unwrap();
            assert_eq!(mount.read(handle, 0, 100).await.unwrap(), b"mine", "{writes_first}");
            mount.append(handle, 4, b"!").await.unwrap();
            mount.fsync(handle).await.unwrap();
            assert_eq!(store.current(ino).bytes, b"mine!", "{writes_first}");
        });
    }
}

/// Found by the simulator (seed 3562 of the mounts): another mount removes a file that waits in the spool here. What was in the log is
/// gone, and a program that keeps the file open read as many zeros.
#[test]
fn a_spooled_file_that_another_mount_removed_has_no_zeros() {
    for before in [&b""[..], b"before"] {
        let (store, disk, mut tasks) = (store("complete-local"), SimDisk::new(1), Tasks::default());
        let (mount, queues) = mount(&store, &disk, 1);
        let ino = store.create(ROOT, b"file", 0).unwrap();
        if !before.is_empty() {
            store.commit(ino, before, 0);
        }
        start_pushes(&mut tasks, &mount, queues);
        tasks.run(async {
            mount.lookup(0, (ROOT, b"file")).await.unwrap();
            let kept = mount.open(1, ino, false).await.unwrap().handle;
            let handle = mount.open(2, ino, true).await.unwrap().handle;
            mount.write(handle, 0, b"spooled and more").await.unwrap();
            mount.flush(ino, handle, OWNER).await.unwrap();
            store.create(ROOT, b"new", 0).unwrap();
            store.replace((ROOT, b"new"), (ROOT, b"file"));
            mount.release(ino, handle).await;
            until_pushed(&mount).await;
            assert_eq!(mount.read(kept, 0, 100).await.unwrap(), before);
        });
    }
}

/// As before, and a part of what was written is in a version by then, which no session keeps: an error, and not the end of the empty file that
/// there was at first.
#[test]
fn a_spooled_file_that_was_removed_after_a_push_is_not_empty() {
    let (store, disk, mut tasks) = (store("complete-local"), SimDisk::new(1), Tasks::default());
    let (mount, queues) = mount(&store, &disk, 1);
    let ino = store.create(ROOT, b"file", 0).unwrap();
    start_pushes(&mut tasks, &mount, queues);
    store.commit_rounds.set(20);
    tasks.run(async {
        mount.lookup(0, (ROOT, b"file")).await.unwrap();
        let kept = mount.open(1, ino, false).await.unwrap().handle;
        let handle = mount.open(2, ino, true).await.unwrap().handle;
        mount.write(handle, 0, b"first").await.unwrap();
        mount.flush(ino, handle, OWNER).await.unwrap();
        mount.release(ino, handle).await;
        while store.versions(ino) == 0 {
            pause().await;
        }
        let handle = mount.open(2, ino, true).await.unwrap().handle;
        mount.write(handle, 0, b"2").await.unwrap();
        store.refuses_opens.set(true);
        for _ in 0..60 {
            pause().await;
        }
        store.create(ROOT, b"new", 0).unwrap();
        store.replace((ROOT, b"new"), (ROOT, b"file"));
        store.refuses_opens.set(false);
        let _ = mount.flush(ino, handle, OWNER).await;
        mount.release(ino, handle).await;
        until_pushed(&mount).await;
        assert!(mount.read(kept, 0, 100).await.is_err());
    });
}

/// A file with another name needs no session, and is spooled.
#[test]
fn a_file_that_loses_one_of_its_names_is_spooled_as_before() {
    let (store, disk, mut tasks) = (store("complete-local"), SimDisk::new(1), Tasks::default());
    let (mount, _) = mount(&store, &disk, 1);
    let ino = known_file(&mount, &store, &mut tasks);
    store.other_names.set(1);
    tasks.run(async {
        let handle = mount.open(1, ino, true).await.unwrap().handle;
        mount.remove((ROOT, b"file"), false).await.unwrap();
        mount.write(handle, 0, b"B").await.unwrap();
        assert_eq!(mount.stats().spool.unwrap().waiting_files, 1);
    });
}

/// What was written here is kept beside another mount's version while the name of the file is on its way to be removed.
#[test]
fn a_file_that_another_mounts_version_replaced_while_its_last_name_goes_can_be_read() {
    for writes_on in [false, true] {
        let (store, disk, mut tasks) = (store("complete-local"), SimDisk::new(1), Tasks::default());
        let (mount, queues) = mount(&store, &disk, 1);
        let ino = known_file(&mount, &store, &mut tasks);
        store.unlink_rounds.set(200);
        let (remover, is_removed) = (mount.clone(), Arc::<AtomicBool>::default());
        let removed = is_removed.clone();
        let (kept, second) = tasks.run(async {
            let kept = mount.open(1, ino, false).await.unwrap().handle;
            let handle = mount.open(2, ino, true).await.unwrap().handle;
            mount.write(handle, 0, b"mine").await.unwrap();
            mount.flush(ino, handle, OWNER).await.unwrap();
            store.commit(ino, b"of another mount", 0);
            if !writes_on {
                mount.release(ino, handle).await;
            }
            (kept, handle)
        });
        tasks.spawn(async move {
            remove(&remover, false).await;
            removed.store(true, Ordering::Release);
        });
        start_pushes(&mut tasks, &mount, queues);
        tasks.run(async {
            if writes_on {
                mount.fsync(second).await.unwrap();
            }
            until_pushed(&mount).await;
            assert!(!is_removed.load(Ordering::Acquire));
            while !is_removed.load(Ordering::Acquire) {
                pause().await;
            }
            assert_eq!(mount.read(kept, 0, 100).await.unwrap(), b"of another mount", "{writes_on}");
        });
    }
}

/// Whether a file is found beside its name whose create only lost managers knew, or which was removed. `by_next_mount` pushes it.
fn is_kept(by_next_mount: bool, is_restored: bool, before: &[u8]) -> bool {
    let (store, disk, mut tasks) = (store("complete-local"), SimDisk::new(1), Tasks::default());
    store.map_version.set(5_000);
    let (first, queues) = mount(&store, &disk, 1);
    let ino = store.create(ROOT, b"file", 0).unwrap();
    if !before.is_empty() {
        store.commit(ino, before, 0);
    }
    tasks.run(async {
        first.recover().await;
        first.lookup(0, (ROOT, b"file")).await.unwrap();
        write(&first, ino, b"closed").await;
    });
    match is_restored {
        true => store.lose_file(ino),
        false => store.remove(ino),
    }
    let (mount, queues) = match by_next_mount {
        true => {
            drop(first);
            let next = mount(&store, &disk, 2);
            tasks.run(next.0.recover());
            next
        }
        false => (first, queues),
    };
    start_pushes(&mut tasks, &mount, queues);
    tasks.run(until_pushed(&mount));
    let aside = disk.paths().iter().filter(|path| path.ends_with(".damaged")).count();
    assert_eq!((disk.paths().len(), mount.lost_files()), (aside, aside), "no log waits");
    // What another client removes after that is gone for good.
    let ino = store.create(ROOT, b"other", 0).unwrap();
    tasks.run(async {
        let handle = mount.open(1, ino, true).await.unwrap().handle;
        mount.write(handle, 0, b"other").await.unwrap();
        mount.flush(ino, handle, OWNER).await.unwrap();
        store.remove(ino);
        mount.release(ino, handle).await;
        until_pushed(&mount).await;
    });
    match &store.list(ROOT)[..] {
        [] => aside == 1,
        [(name, kept)] => {
            assert_eq!((name.as_str(), store.current(*kept).bytes), ("file.tessera-conflict-1", b"closed".to_vec()));
            aside == 0
        }
        more => panic!("{more:?}"),
    }
}

/// The managers' group was restored from a state without a file that waits in the spool (P1). A file that was removed stays so (P3).
#[test]
fn what_waits_in_the_spool_outlasts_a_restore_that_lost_its_file() {
    for by_next_mount in [false, true] {
        assert!(is_kept(by_next_mount, true, b""));
        assert!(is_kept(by_next_mount, true, b"longer than that"), "set aside: the rest of it is lost");
        assert!(!is_kept(by_next_mount, false, b""));
        assert!(!is_kept(by_next_mount, false, b"longer than that"));
    }
}

/// The kernel reports a release after `close` has returned.
#[test]
fn a_file_that_was_closed_a_moment_ago_is_removed_without_an_open() {
    for releases in [true, false] {
        let (store, disk, mut tasks) = (store("sliding-window"), SimDisk::new(1), Tasks::default());
        let (mount, _) = mount(&store, &disk, 1);
        let ino = known_file(&mount, &store, &mut tasks);
        let handle = tasks.run(mount.open(1, ino, true)).unwrap().handle;
        tasks.run(async {
            mount.write(handle, 0, b"B").await.unwrap();
            mount.flush(ino, handle, OWNER).await.unwrap();
        });
        let opens = store.opens.get();
        let releasing = mount.clone();
        tasks.spawn(async move {
            pause().await;
            if releases {
                releasing.release(ino, handle).await;
            }
        });
        tasks.run(mount.remove((ROOT, b"file"), false)).unwrap();
        assert_eq!(store.opens.get() - opens, u32::from(!releases), "one that stays open is kept by a session");
    }
}
