//! Locks of files that programs close: what is committed when, and whose locks go.

use super::locks::{lock, locking, whole_file};
use super::*;
use std::cell::Cell;
use tessera_wire::meta::{FileLock, LockFamily, LockMode};

/// An unlock whose write-back fails releases the lock, so that others go on; the owner learns of it from `fsync` and `close`.
#[test]
fn an_unlock_that_cannot_write_back_fails_the_file_for_its_owner() {
    let (store, disk, mut tasks) = (store("sliding-window"), SimDisk::new(1), Tasks::default());
    let (mount, _) = mount(&store, &disk, 1);
    let ino = store.create(ROOT, b"file", 0).unwrap();
    store.commit(ino, b"before", 0);
    let of_file = |mode| FileLock { ino, ..lock(mode, 0, 9) };
    tasks.run(async {
        let handle = mount.open(1, ino, true).await.unwrap().handle;
        mount.set_lock(&of_file(LockMode::Write), handle, false, &mut || false).await.unwrap();
        mount.write(handle, 0, b"under the lock").await.unwrap();
        store.is_full.set(true);
        mount.set_lock(&of_file(LockMode::Unlock), handle, false, &mut || false).await.unwrap();
        assert!(!store.locks.borrow().held.contains_key(&ino), "others wait for it");
        store.is_full.set(false);
        assert_eq!(mount.fsync(handle).await, Err(Errno::ENOSPC));
        assert_eq!(mount.flush(ino, handle, OWNER).await, Err(Errno::ENOSPC));
        mount.release(ino, handle).await;
    });
    assert_eq!((store.current(ino).bytes.as_slice(), store.versions(ino)), (&b"before"[..], 1));
}

/// A program closes its file under `flock`: the next owner on another mount must find what it wrote (P7). So what a close
/// acknowledged from the spool does not wait for a push: another owner's version would be there before.
#[test]
fn a_flock_that_a_close_gives_up_leaves_nothing_in_the_spool() {
    for (mode, durability) in
        [("complete-local", "pessimistic"), ("complete-local", "optimistic"), ("incremental", "optimistic")]
    {
        let (store, disk, mut tasks) = (store(mode), SimDisk::new(1), Tasks::default());
        store.set_hint("durability", durability);
        let (mount, _) = mount(&store, &disk, 1);
        let ino = store.create(ROOT, b"file", 0).unwrap();
        store.commit(ino, b"before", 0);
        tasks.run(async {
            mount.lookup(0, (ROOT, b"file")).await.unwrap();
            let handle = mount.open(1, ino, true).await.unwrap().handle;
            let lock = FileLock { ino, family: LockFamily::Flock as i32, ..lock(LockMode::Write, 0, i64::MAX as u64) };
            mount.set_lock(&lock, handle, false, &mut || false).await.unwrap();
            mount.write(handle, 0, b"under the lock").await.unwrap();
            // The kernel names another owner here than for `flock`.
            mount.flush(ino, handle, OWNER + 1).await.unwrap();
            assert!(store.locks.borrow().held.contains_key(&ino));
            mount.release(ino, handle).await;
        });
        assert!(!store.locks.borrow().held.contains_key(&ino));
        let current = String::from_utf8(store.current(ino).bytes).unwrap();
        assert_eq!(current, "under the lock", "{mode}, {durability}");
    }
}

/// A mount on which a handle is being released.
struct Closing {
    store: Rc<Store>,
    mount: Arc<Mount<Client>>,
    tasks: Tasks,
    ino: u64,
}

/// A program writes a file under a lock and closes it. The kernel releases the handle meanwhile; its commit takes so many rounds.
fn close_under(of_file: &FileLock, commit_rounds: u32) -> Closing {
    let (store, disk, mut tasks) = (store("complete-local"), SimDisk::new(1), Tasks::default());
    let (mount, _) = mount(&store, &disk, 1);
    let ino = store.create(ROOT, b"file", 0).unwrap();
    store.commit(ino, b"before", 0);
    let handle = tasks.run(async {
        mount.lookup(0, (ROOT, b"file")).await.unwrap();
        let handle = mount.open(1, ino, true).await.unwrap().handle;
        mount.set_lock(&FileLock { ino, ..*of_file }, handle, false, &mut || false).await.unwrap();
        mount.write(handle, 0, b"under the lock").await.unwrap();
        // The kernel names another owner here than for the lock. A copy of the descriptor writes after that.
        mount.flush(ino, handle, OWNER + 1).await.unwrap();
        mount.write(handle, 0, b"after it").await.unwrap();
        handle
    });
    store.commit_rounds.set(commit_rounds);
    let closing = mount.clone();
    tasks.spawn(async move { closing.release(ino, handle).await });
    Closing { store, mount, tasks, ino }
}

/// A program closes a file under `flock`, opens it again and locks it: the kernel names the new owner as the old one, since it gave
/// the new open file the memory of the old one. The lock that the close gives up is not that of the new open.
#[test]
fn a_flock_of_the_next_open_outlasts_a_close_that_is_under_way() {
    let whole = whole_file(LockFamily::Flock, LockMode::Write);
    let Closing { store, mount, mut tasks, ino } = close_under(&whole, 5);
    let whole = FileLock { ino, ..whole };
    tasks.run(async {
        pause().await;
        let next = mount.open(1, ino, true).await.unwrap().handle;
        mount.set_lock(&whole, next, true, &mut || false).await.unwrap();
        for _ in 0..20 {
            pause().await;
        }
        assert!(mount.locks.holds(ino, OWNER) && store.locks.borrow().held.contains_key(&ino), "it is still held");
        mount.release(ino, next).await;
    });
}

/// A program locks a file by one descriptor and writes it by another, which it closes before it unlocks: the next owner on another
/// mount must find what it wrote (P7), though no program has the file open to write any more.
#[test]
fn an_unlock_leaves_nothing_of_an_earlier_close_in_the_spool() {
    for mode in [LockMode::Unlock, LockMode::Read] {
        let (store, disk, mut tasks) = (store("complete-local"), SimDisk::new(1), Tasks::default());
        let (mount, _) = mount(&store, &disk, 1);
        let ino = store.create(ROOT, b"file", 0).unwrap();
        store.commit(ino, b"before", 0);
        let flock = |mode| FileLock { ino, family: LockFamily::Flock as i32, ..lock(mode, 0, i64::MAX as u64) };
        tasks.run(async {
            mount.lookup(0, (ROOT, b"file")).await.unwrap();
            let locking = mount.open(1, ino, false).await.unwrap().handle;
            mount.set_lock(&flock(LockMode::Write), locking, true, &mut || false).await.unwrap();
            let writing = mount.open(1, ino, true).await.unwrap().handle;
            mount.write(writing, 0, b"under the lock").await.unwrap();
            mount.flush(ino, writing, OWNER + 1).await.unwrap();
            mount.release(ino, writing).await;
            mount.set_lock(&flock(mode), locking, true, &mut || false).await.unwrap();
            let current = String::from_utf8(store.current(ino).bytes).unwrap();
            assert_eq!(current, "under the lock", "{mode:?}");
            mount.release(ino, locking).await;
        });
    }
}

/// As [`a_flock_of_the_next_open_outlasts_a_close_that_is_under_way`], and the close takes longer than a lock waits for one.
#[test]
fn a_flock_of_the_next_open_outlasts_a_close_that_takes_long() {
    for waits in [true, false] {
        let whole = whole_file(LockFamily::Flock, LockMode::Write);
        let Closing { store, mount, mut tasks, ino } = close_under(&whole, 200);
        let whole = FileLock { ino, ..whole };
        tasks.run(async {
            // The kernel reports the close after it. An open after that would wait for the commit.
            let next = mount.open(1, ino, true).await.unwrap().handle;
            pause().await;
            let locked = mount.set_lock(&whole, next, waits, &mut || false).await;
            for _ in 0..400 {
                pause().await;
            }
            let is_held = mount.locks.holds(ino, OWNER) && store.locks.borrow().held.contains_key(&ino);
            let expected = if waits { Ok(()) } else { Err(Errno::EAGAIN) };
            assert_eq!((locked, is_held), (expected, waits));
            mount.release(ino, next).await;
        });
    }
}

/// The kernel reports a close later than it asks for the lock of the next open, whose owner has the same number. The first one may have
/// unlocked.
#[test]
fn a_flock_of_the_next_open_outlasts_a_close_that_is_reported_later() {
    for unlocks in [false, true] {
        let (store, disk, mut tasks) = (store("sliding-window"), SimDisk::new(1), Tasks::default());
        let (mount, _) = mount(&store, &disk, 1);
        let ino = store.create(ROOT, b"file", 0).unwrap();
        let flock = |mode| FileLock { ino, family: LockFamily::Flock as i32, ..lock(mode, 0, i64::MAX as u64) };
        let releasing = mount.clone();
        let handle = tasks.run(async {
            let handle = mount.open(1, ino, true).await.unwrap().handle;
            mount.set_lock(&flock(LockMode::Write), handle, false, &mut || false).await.unwrap();
            if unlocks {
                mount.set_lock(&flock(LockMode::Unlock), handle, false, &mut || false).await.unwrap();
            }
            mount.flush(ino, handle, OWNER + 1).await.unwrap();
            handle
        });
        tasks.spawn(async move {
            for _ in 0..50 {
                pause().await;
            }
            releasing.release(ino, handle).await;
        });
        tasks.run(async {
            let next = mount.open(1, ino, true).await.unwrap().handle;
            assert_eq!(mount.set_lock(&flock(LockMode::Write), next, false, &mut || false).await, Err(Errno::EAGAIN));
            assert_eq!(mount.set_lock(&flock(LockMode::Write), next, true, &mut || true).await, Err(Errno::EINTR));
            mount.set_lock(&flock(LockMode::Write), next, true, &mut || false).await.unwrap();
            for _ in 0..100 {
                pause().await;
            }
            assert!(mount.locks.holds(ino, OWNER) && store.locks.borrow().held.contains_key(&ino), "{unlocks}");
            mount.release(ino, next).await;
        });
        assert!(!mount.locks.holds(ino, OWNER));
    }
}

/// The kernel does not report that a lock of an open file description ends with it: the next owner gets it, and finds what was written
/// under it (P7). A process that has the file open twice keeps its own lock when the other handle goes.
#[test]
fn a_lock_of_an_open_file_ends_with_its_handle() {
    let (store, disk, mut tasks) = (store("complete-local"), SimDisk::new(1), Tasks::default());
    let (mount, _) = mount(&store, &disk, 1);
    let ino = store.create(ROOT, b"file", 0).unwrap();
    store.commit(ino, b"before", 0);
    let range = |owner| FileLock { ino, owner, ..lock(LockMode::Write, 0, 9) };
    let (process, open_file) = (OWNER + 1, OWNER);
    tasks.run(async {
        mount.lookup(0, (ROOT, b"file")).await.unwrap();
        let handle = mount.open(1, ino, true).await.unwrap().handle;
        mount.set_lock(&range(open_file), handle, false, &mut || false).await.unwrap();
        mount.write(handle, 0, b"under the lock").await.unwrap();
        mount.flush(ino, handle, process).await.unwrap();
        assert!(mount.locks.holds(ino, open_file), "another open may have a copy of the descriptor");
        mount.release(ino, handle).await;
        assert_eq!(store.current(ino).bytes, b"under the lock");

        let handles = [mount.open(1, ino, true).await.unwrap().handle, mount.open(1, ino, true).await.unwrap().handle];
        for handle in handles {
            mount.set_lock(&range(process), handle, false, &mut || false).await.expect("nobody holds it");
        }
        mount.release(ino, handles[0]).await;
        assert!(mount.locks.holds(ino, process), "its other handle locks, too");
        mount.release(ino, handles[1]).await;
        assert!(!mount.locks.holds(ino, process));
    });
    assert!(!store.locks.borrow().held.contains_key(&ino));
}

/// A thread waits for a lock, and another one closes the descriptor meanwhile: the kernel has flushed when the lock is granted, and releases
/// the handle after that.
#[test]
fn a_lock_that_is_granted_after_the_close_ends_with_the_handle() {
    let (store, mount) = locking();
    let mut tasks = Tasks::default();
    let ino = store.create(ROOT, b"file", 0).unwrap();
    let range = move |start| FileLock { ino, ..lock(LockMode::Write, start, start + 9) };
    let (waiting, is_granted) = (mount.clone(), Rc::new(std::cell::Cell::new(false)));
    let handles = tasks.run(async {
        let handles = [mount.open(1, ino, true).await.unwrap().handle, mount.open(1, ino, true).await.unwrap().handle];
        mount.set_lock(&range(0), handles[0], false, &mut || false).await.unwrap();
        handles
    });
    store.locks.borrow_mut().waits = true;
    let granted = is_granted.clone();
    tasks.spawn(async move {
        waiting.set_lock(&range(20), handles[1], true, &mut || false).await.unwrap();
        granted.set(true);
    });
    tasks.run(async {
        for _ in 0..20 {
            pause().await;
        }
        mount.flush(ino, handles[1], OWNER).await.unwrap();
        assert!(!is_granted.get());
        store.locks.borrow_mut().waits = false;
        while !is_granted.get() {
            pause().await;
        }
        mount.release(ino, handles[1]).await;
        assert!(!mount.locks.holds(ino, OWNER));
        mount.release(ino, handles[0]).await;
    });
    assert!(!store.locks.borrow().held.contains_key(&ino));
}

/// A process unlocks a file that others share the handle of, and ends: nobody waits for that handle.
#[test]
fn a_process_that_has_closed_a_file_is_none_of_its_lockers() {
    let (store, mount) = locking();
    let mut tasks = Tasks::default();
    let ino = store.create(ROOT, b"file", 0).unwrap();
    let of_file = |mode, family: LockFamily| FileLock { ino, family: family as i32, ..lock(mode, 0, i64::MAX as u64) };
    tasks.run(async {
        let shared = mount.open(1, ino, true).await.unwrap().handle;
        mount.set_lock(&of_file(LockMode::Write, LockFamily::Posix), shared, false, &mut || false).await.unwrap();
        mount.set_lock(&of_file(LockMode::Unlock, LockFamily::Either), shared, false, &mut || false).await.unwrap();
        mount.flush(ino, shared, OWNER).await.unwrap();
        let next = mount.open(1, ino, true).await.unwrap().handle;
        mount.set_lock(&of_file(LockMode::Write, LockFamily::Flock), next, false, &mut || false).await.unwrap();
        mount.release(ino, next).await;
        assert!(!mount.locks.holds(ino, OWNER));
        mount.release(ino, shared).await;
    });
}

/// As [`a_flock_of_the_next_open_outlasts_a_close_that_is_under_way`], for a lock of which the mount cannot see whether it is a `flock`, and
/// which another client refuses: the next open then holds nothing.
#[test]
fn the_next_open_does_not_inherit_a_lock_that_a_close_gives_up() {
    for family in [LockFamily::Either, LockFamily::Posix] {
        let Closing { store, mount, mut tasks, ino } = close_under(&whole_file(family, LockMode::Read), 5);
        let exclusive = FileLock { ino, ..whole_file(family, LockMode::Write) };
        store.locks.borrow_mut().is_shared = true;
        tasks.run(async {
            pause().await;
            let next = mount.open(1, ino, true).await.unwrap().handle;
            let refused = mount.set_lock(&exclusive, next, false, &mut || false).await;
            assert_eq!((refused, mount.locks.holds(ino, OWNER)), (Err(Errno::EAGAIN), false), "{family:?}");
            mount.release(ino, next).await;
        });
    }
}

/// A lock request waits for handles with locks that are being closed. One whose owner has unlocked is none of them: where programs
/// open, lock, unlock and close a file all the time, there is always one.
#[test]
fn nobody_waits_for_the_close_of_a_handle_without_locks() {
    for unlocks in [true, false] {
        let (store, disk, mut tasks) = (store("sliding-window"), SimDisk::new(1), Tasks::default());
        let (mount, _) = mount(&store, &disk, 1);
        let ino = store.create(ROOT, b"file", 0).unwrap();
        let of_file = |mode| FileLock { ino, ..lock(mode, 0, 9) };
        let closing = mount.clone();
        let handle = tasks.run(async {
            let handle = mount.open(1, ino, true).await.unwrap().handle;
            mount.set_lock(&of_file(LockMode::Write), handle, false, &mut || false).await.unwrap();
            if unlocks {
                mount.set_lock(&of_file(LockMode::Unlock), handle, false, &mut || false).await.unwrap();
            }
            mount.write(handle, 0, b"without a lock").await.unwrap();
            handle
        });
        store.commit_rounds.set(8);
        tasks.spawn(async move { closing.release(ino, handle).await });
        tasks.run(async {
            pause().await;
            assert_eq!(mount.closing.count(ino), usize::from(!unlocks));
            while store.versions(ino) == 0 || mount.closing.count(ino) > 0 {
                pause().await;
            }
        });
    }
}

/// A waiting `flock` that makes a shared lock exclusive gives the shared one up first: the next owner on another mount must find what was
/// written under it (P7). If that cannot be stored, the lock stays.
#[test]
fn a_flock_that_is_converted_leaves_nothing_in_the_spool() {
    for is_full in [false, true] {
        let (store, disk, mut tasks) = (store("complete-local"), SimDisk::new(1), Tasks::default());
        let (mount, _) = mount(&store, &disk, 1);
        let ino = store.create(ROOT, b"file", 0).unwrap();
        store.commit(ino, b"before", 0);
        let flock = |mode| FileLock { ino, family: LockFamily::Flock as i32, ..lock(mode, 0, i64::MAX as u64) };
        tasks.run(async {
            mount.lookup(0, (ROOT, b"file")).await.unwrap();
            let handle = mount.open(1, ino, true).await.unwrap().handle;
            mount.set_lock(&flock(LockMode::Read), handle, true, &mut || false).await.unwrap();
            mount.write(handle, 0, b"under the lock").await.unwrap();
            store.locks.borrow_mut().is_shared = true;
            store.is_full.set(is_full);
            let converted = mount.set_lock(&flock(LockMode::Write), handle, true, &mut || false).await;
            let expected = if is_full { Errno::ENOSPC } else { Errno::EAGAIN };
            assert_eq!((converted, mount.locks.holds(ino, OWNER)), (Err(expected), is_full));
            let current = String::from_utf8(store.current(ino).bytes).unwrap();
            assert_eq!(current, if is_full { "before" } else { "under the lock" });
            store.is_full.set(false);
            let _ = mount.flush(ino, handle, OWNER + 1).await;
            mount.release(ino, handle).await;
        });
    }
}

/// Programs on two mounts lock ranges of a file, write them, and close the file while a lock is held: neither is kept beside the other's
/// version (P7). The second one that closes here has no lock.
#[test]
fn what_is_closed_under_a_lock_is_written_over_another_mounts_range() {
    for closes_another in [false, true] {
        let (store, disk, mut tasks) = (store("complete-local"), SimDisk::new(1), Tasks::default());
        let (mount, queues) = mount(&store, &disk, 1);
        let ino = store.create(ROOT, b"file", 0).unwrap();
        store.commit(ino, b"aabbcc", 0);
        start_pushes(&mut tasks, &mount, queues);
        tasks.run(async {
            mount.lookup(0, (ROOT, b"file")).await.unwrap();
            let handle = mount.open(1, ino, true).await.unwrap().handle;
            let range = FileLock { ino, ..lock(LockMode::Write, 0, 1) };
            mount.set_lock(&range, handle, false, &mut || false).await.unwrap();
            mount.write(handle, 0, b"AA").await.unwrap();
            let mut expected = b"AABBcc".to_vec();
            if closes_another {
                let other = mount.open(2, ino, true).await.unwrap().handle;
                mount.write(other, 4, b"C").await.unwrap();
                mount.flush(ino, other, OWNER + 1).await.unwrap();
                mount.release(ino, other).await;
                expected[4] = b'C';
            }
            let mut over = store.current(ino).bytes;
            over[2..4].copy_from_slice(b"BB");
            store.commit(ino, &over, 0);
            mount.flush(ino, handle, OWNER).await.unwrap();
            mount.release(ino, handle).await;
            until_pushed(&mount).await;
            assert_eq!(String::from_utf8(store.current(ino).bytes), String::from_utf8(expected), "{closes_another}");
        });
        assert_eq!(store.list(ROOT).len(), 1, "nothing is kept beside it");
    }
}

/// As above, and the close finds that another mount has removed the file, or that the store is full.
#[test]
fn what_cannot_be_committed_under_a_lock_waits_in_the_spool() {
    for is_full in [false, true] {
        let (store, disk, mut tasks) = (store("complete-local"), SimDisk::new(1), Tasks::default());
        let (mount, queues) = mount(&store, &disk, 1);
        let ino = store.create(ROOT, b"file", 0).unwrap();
        store.commit(ino, b"aabbcc", 0);
        start_pushes(&mut tasks, &mount, queues);
        tasks.run(async {
            mount.lookup(0, (ROOT, b"file")).await.unwrap();
            let handle = mount.open(1, ino, true).await.unwrap().handle;
            let range = FileLock { ino, ..lock(LockMode::Write, 0, 1) };
            mount.set_lock(&range, handle, false, &mut || false).await.unwrap();
            mount.write(handle, 0, b"AA").await.unwrap();
            match is_full {
                true => store.is_full.set(true),
                false => store.remove(ino),
            }
            let closed = mount.flush(ino, handle, OWNER + 1).await;
            assert_eq!(closed, if is_full { Err(Errno::ENOSPC) } else { Ok(()) });
            mount.release(ino, handle).await;
            store.is_full.set(false);
            until_pushed(&mount).await;
        });
        assert_eq!(mount.stats().uncommitted_files, 0);
        if is_full {
            assert_eq!(store.current(ino).bytes, b"AAbbcc");
        }
    }
}

/// A program without a lock closes the file while another one on this mount waits for its lock: what that one writes makes no conflict file.
#[test]
fn a_close_while_a_lock_is_waited_for_makes_no_conflict_file() {
    let (store, disk, mut tasks) = (store("complete-local"), SimDisk::new(1), Tasks::default());
    let (mount, queues) = mount(&store, &disk, 1);
    let ino = store.create(ROOT, b"file", 0).unwrap();
    store.commit(ino, b"aabbcc", 0);
    start_pushes(&mut tasks, &mount, queues);
    store.lock_rounds.set(300);
    let (locker, handle) = tasks.run(async {
        mount.lookup(0, (ROOT, b"file")).await.unwrap();
        (mount.clone(), mount.open(1, ino, true).await.unwrap().handle)
    });
    let granted = Rc::new(Cell::new(false));
    let is_granted = granted.clone();
    tasks.spawn(async move {
        let range = FileLock { ino, ..lock(LockMode::Write, 0, 1) };
        locker.set_lock(&range, handle, false, &mut || false).await.unwrap();
        is_granted.set(true);
    });
    tasks.run(async {
        for _ in 0..50 {
            pause().await;
        }
        assert!(!granted.get());
        // Without a lock, as it may have done at any time before.
        let other = mount.open(2, ino, true).await.unwrap().handle;
        mount.write(other, 4, b"C").await.unwrap();
        mount.flush(ino, other, OWNER + 1).await.unwrap();
        mount.release(ino, other).await;
        while !granted.get() {
            pause().await;
        }
        mount.write(handle, 0, b"AA").await.unwrap();
        // Another mount, under its lock of bytes 2 and 3.
        let mut over = store.current(ino).bytes;
        over[2..4].copy_from_slice(b"BB");
        store.commit(ino, &over, 0);
        mount.flush(ino, handle, OWNER).await.unwrap();
        mount.release(ino, handle).await;
        until_pushed(&mount).await;
    });
    let current = String::from_utf8(store.current(ino).bytes).unwrap();
    assert!(current.starts_with("AABB"), "{current}, {:?}", store.list(ROOT));
}

/// What an unlock cannot commit is not what the next owner reads. The program hears of it at its next sync or close, also where the spool
/// takes what it closes.
#[test]
fn an_unlock_that_cannot_commit_fails_the_next_close_of_its_handle() {
    for syncs in [false, true] {
        let (store, disk, mut tasks) = (store("complete-local"), SimDisk::new(1), Tasks::default());
        let (mount, _) = mount(&store, &disk, 1);
        let ino = store.create(ROOT, b"file", 0).unwrap();
        store.commit(ino, b"before", 0);
        tasks.run(async {
            mount.lookup(0, (ROOT, b"file")).await.unwrap();
            let (handle, other) =
                (mount.open(1, ino, true).await.unwrap().handle, mount.open(2, ino, true).await.unwrap().handle);
            let of_file = |mode| FileLock { ino, ..whole_file(LockFamily::Flock, mode) };
            mount.set_lock(&of_file(LockMode::Write), handle, false, &mut || false).await.unwrap();
            mount.write(handle, 0, b"under the lock").await.unwrap();
            store.is_full.set(true);
            mount.set_lock(&of_file(LockMode::Unlock), handle, false, &mut || false).await.unwrap();
            if syncs {
                store.is_full.set(false);
                assert_eq!(mount.fsync(handle).await, Err(Errno::ENOSPC));
                assert_eq!(mount.fsync(handle).await, Ok(()), "it was told");
            }
            assert_eq!(mount.flush(ino, other, OWNER + 1).await, Ok(()), "another program");
            let expected = if syncs { Ok(()) } else { Err(Errno::ENOSPC) };
            assert_eq!(mount.flush(ino, handle, OWNER + 2).await, expected);
        });
    }
}

/// What an unlock could not commit was not there for the next owner, so it does not go over what that one wrote: it is kept beside it.
#[test]
fn what_an_unlock_could_not_commit_does_not_go_over_the_next_owners_bytes() {
    for syncs in [true, false] {
        let (store, disk, mut tasks) = (store("complete-local"), SimDisk::new(1), Tasks::default());
        let (mount, queues) = mount(&store, &disk, 1);
        let ino = store.create(ROOT, b"file", 0).unwrap();
        store.commit(ino, b"aabb", 0);
        start_pushes(&mut tasks, &mount, queues);
        tasks.run(async {
            mount.lookup(0, (ROOT, b"file")).await.unwrap();
            let handle = mount.open(1, ino, true).await.unwrap().handle;
            let of_file = |mode| FileLock { ino, ..lock(mode, 0, 9) };
            mount.set_lock(&of_file(LockMode::Write), handle, false, &mut || false).await.unwrap();
            mount.write(handle, 0, b"AA").await.unwrap();
            store.is_full.set(true);
            mount.set_lock(&of_file(LockMode::Unlock), handle, false, &mut || false).await.unwrap();
            store.is_full.set(false);
            // Another mount, under its lock of the same bytes.
            store.commit(ino, b"BBbb", 0);
            if syncs {
                assert_eq!(mount.fsync(handle).await, Err(Errno::ENOSPC));
            }
            let closed = mount.flush(ino, handle, OWNER).await;
            assert_eq!(closed, if syncs { Ok(()) } else { Err(Errno::ENOSPC) });
            mount.release(ino, handle).await;
            until_pushed(&mount).await;
        });
        assert_eq!(String::from_utf8(store.current(ino).bytes).unwrap(), "BBbb", "{syncs}");
        assert_eq!(store.list(ROOT).len(), 2, "it is kept beside the file");
    }
}
