//! Requests for locks, their answers, and locks that are lost.

use super::*;
use crate::locks::HeldBefore;
use tessera_failpoint as failpoint;
use tessera_wire::Code;
use tessera_wire::meta::{FileLock, LockFamily, LockMode, LockOutcome};

const INO: u64 = 7;

pub(super) fn lock(mode: LockMode, start: u64, end: u64) -> FileLock {
    let (family, mode) = (LockFamily::Posix as i32, mode as i32);
    FileLock { ino: INO, owner: OWNER, family, mode, start, end, pid: 1, fence: None, may_be_shared: false }
}

pub(super) fn locking() -> (Rc<Store>, Arc<Mount<Client>>) {
    let store = store("write-through");
    let (mount, _) = mount(&store, &SimDisk::new(1), 1);
    (store, mount)
}

/// An owner unlocks while the manager is silent, its locks are lost, and it locks again. Returns whether the manager then
/// holds that lock for it.
fn locks_again_after_a_loss() -> bool {
    let (store, mount) = locking();
    let (mut tasks, unlocking) = (Tasks::default(), mount.clone());
    let (whole, unlock) = (lock(LockMode::Write, 0, 9), lock(LockMode::Unlock, 0, 9));
    assert_eq!(
        tasks.run(mount.locks.set(&whole, false, &mut || false, &mut HeldBefore::default())),
        Ok(LockOutcome::Granted)
    );
    store.locks.borrow_mut().is_silent = true;
    tasks.spawn(async move {
        unlocking.locks.set(&unlock, false, &mut || false, &mut HeldBefore::default()).await.unwrap();
    });
    tasks.run(pause());
    store.locks.borrow_mut().expire();
    store.locks.borrow_mut().is_silent = false;
    tasks.run(async {
        while store.locks.borrow().assertions < 1 {
            pause().await;
        }
        store.holds_unlocks.set(true);
        while store.locks.borrow().assertions < 2 {
            pause().await;
        }
        assert_eq!(
            mount.locks.set(&whole, false, &mut || false, &mut HeldBefore::default()).await,
            Ok(LockOutcome::Granted)
        );
        store.holds_unlocks.set(false);
        for _ in 0..100 {
            pause().await;
        }
    });
    assert!(mount.locks.holds(INO, OWNER));
    store.locks.borrow().held.contains_key(&INO)
}

#[test]
fn an_unlock_from_before_a_loss_is_not_sent_after_it() {
    assert!(locks_again_after_a_loss());
    let _sent = failpoint::activate("mount.stale_lock_message_sent");
    assert!(!locks_again_after_a_loss());
}

/// A manager that begins to lead waits for all clients that were on record, also for those that hold nothing by now.
#[test]
fn an_idle_client_tells_a_new_manager_that_it_holds_nothing() {
    let (store, mount) = locking();
    let mut tasks = Tasks::default();
    tasks.spawn(crate::locks::work(Arc::downgrade(&mount)));
    tasks.run(async {
        for mode in [LockMode::Write, LockMode::Unlock] {
            let done = mount.locks.set(&lock(mode, 0, 9), false, &mut || false, &mut HeldBefore::default()).await;
            assert_eq!(done, Ok(LockOutcome::Granted));
        }
        let assertions = async || {
            for _ in 0..40 {
                pause().await;
            }
            store.locks.borrow().assertions
        };
        let before = assertions().await;
        // The next manager does not know the client's table.
        store.locks.borrow_mut().is_silent = true;
        store.locks.borrow_mut().expire();
        assert_eq!(assertions().await, before);
        store.locks.borrow_mut().is_silent = false;
        while store.locks.borrow().assertions == before {
            pause().await;
        }
        assert_eq!(assertions().await, before + 1, "once is enough");
    });
}

/// P7: the program is told that its locks on the file are lost, so nobody would release a lock that it gets after that.
#[test]
fn a_request_that_waited_through_a_loss_gets_no_lock() {
    (0..8).for_each(waits_through_a_loss);
}

/// The locks are lost after the request was tried for so many rounds.
fn waits_through_a_loss(rounds: usize) {
    let (store, mount) = locking();
    let mut tasks = Tasks::default();
    let first = lock(LockMode::Write, 0, 9);
    assert_eq!(
        tasks.run(mount.locks.set(&first, false, &mut || false, &mut HeldBefore::default())),
        Ok(LockOutcome::Granted)
    );
    store.locks.borrow_mut().is_silent = true;
    let (waiting, outcome) = (mount.clone(), Rc::new(std::cell::OnceCell::new()));
    let told = outcome.clone();
    tasks.spawn(async move {
        told.set(
            waiting.locks.set(&lock(LockMode::Write, 10, 19), true, &mut || false, &mut HeldBefore::default()).await,
        )
        .unwrap();
    });
    (0..rounds).for_each(|_| tasks.run(pause()));
    store.locks.borrow_mut().expire();
    store.locks.borrow_mut().is_silent = false;
    tasks.run(async {
        assert!(mount.locks.are_lost(INO).await);
        while outcome.get().is_none() {
            pause().await;
        }
    });
    assert_eq!(outcome.get().unwrap().as_ref().unwrap_err().code(), Code::SessionExpired);
    assert!(store.locks.borrow().held.is_empty(), "{rounds} rounds: a lock that its owner does not know of");
    tasks.run(mount.locks.release(INO, OWNER));
    assert!(!mount.locks.holds(INO, OWNER));
}

/// A lock is granted, and what another mount changed of the file cannot be shown: the program gets an error, and holds no lock.
#[test]
fn a_lock_whose_file_cannot_be_shown_is_given_back() {
    let is_held = || {
        let (store, disk, mut tasks) = (store("sliding-window"), SimDisk::new(1), Tasks::default());
        let (mount, _) = mount(&store, &disk, 1);
        let ino = store.create(ROOT, b"file", 0).unwrap();
        store.commit(ino, b"before", 0);
        tasks.run(async {
            let handle = mount.open(1, ino, false).await.unwrap().handle;
            store.commit(ino, b"afterwards", 0);
            store.refuses_opens.set(true);
            let lock = FileLock { ino, ..lock(LockMode::Write, 0, 9) };
            assert!(mount.set_lock(&lock, handle, false, &mut || false).await.is_err());
            let is_held = store.locks.borrow().held.contains_key(&ino);
            mount.release(ino, handle).await;
            is_held
        })
    };
    assert!(!is_held());
    let _mistake = failpoint::activate("mount.failed_lock_is_held");
    assert!(is_held(), "the mistake shows");
}

pub(super) fn whole_file(family: LockFamily, mode: LockMode) -> FileLock {
    FileLock { family: family as i32, ..lock(mode, 0, i64::MAX as u64) }
}

/// The manager was silent, so a request failed, and its withdrawal waits. The next request gets the lock, but what another mount changed
/// cannot be shown: as in [`a_lock_whose_file_cannot_be_shown_is_given_back`].
#[test]
fn a_lock_that_fails_after_one_without_an_answer_is_given_back() {
    let (store, disk, mut tasks) = (store("sliding-window"), SimDisk::new(1), Tasks::default());
    let (mount, _) = mount(&store, &disk, 1);
    let ino = store.create(ROOT, b"file", 0).unwrap();
    store.commit(ino, b"before", 0);
    tasks.run(async {
        let handle = mount.open(1, ino, false).await.unwrap().handle;
        store.commit(ino, b"afterwards", 0);
        let lock = FileLock { ino, ..lock(LockMode::Write, 0, 9) };
        mount
            .set_lock(&FileLock { mode: LockMode::Unlock as i32, ..lock }, handle, false, &mut || false)
            .await
            .unwrap();
        mount.locks.set(&lock, false, &mut || false, &mut HeldBefore::default()).await.unwrap();
        mount.locks.release(ino, OWNER).await;
        store.locks.borrow_mut().is_silent = true;
        assert!(mount.set_lock(&lock, handle, true, &mut || true).await.is_err());
        store.locks.borrow_mut().is_silent = false;
        store.refuses_opens.set(true);
        assert!(mount.set_lock(&lock, handle, false, &mut || false).await.is_err());
        assert!(!store.locks.borrow().held.contains_key(&ino));
        mount.release(ino, handle).await;
    });
}

/// Two threads of a process get a lock each at the same moment. What another mount changed cannot be shown to the first one, or the locks are
/// lost: the first thread's error is its own affair.
#[test]
fn a_lock_that_fails_takes_no_other_threads_lock_with_it() {
    for are_lost in [false, true] {
        let (store, disk, mut tasks) = (store("sliding-window"), SimDisk::new(1), Tasks::default());
        let (mount, _) = mount(&store, &disk, 1);
        let ino = store.create(ROOT, b"file", 0).unwrap();
        store.commit(ino, b"before", 0);
        let handle = tasks.run(async { mount.open(1, ino, false).await.unwrap().handle });
        store.commit(ino, b"afterwards", 0);
        store.open_rounds.set(9);
        store.refuses_opens.set(!are_lost);
        let results = [0, 20].map(|start| {
            let (mount, result) = (mount.clone(), Rc::new(std::cell::Cell::new(None)));
            let (told, lock) = (result.clone(), FileLock { ino, ..lock(LockMode::Write, start, start + 9) });
            tasks.spawn(async move { told.set(Some(mount.set_lock(&lock, handle, false, &mut || false).await)) });
            result
        });
        tasks.run(async {
            while !store.locks.borrow().held.contains_key(&ino) {
                pause().await;
            }
            pause().await;
            if are_lost {
                store.locks.borrow_mut().expire();
            }
            while results.iter().all(|result| result.get().is_none()) {
                pause().await;
            }
            store.refuses_opens.set(false);
            while results.iter().any(|result| result.get().is_none()) {
                pause().await;
            }
            let locked = results.iter().filter(|result| result.get() == Some(Ok(()))).count();
            let owns = mount.locks.owns(ino, OWNER);
            let is_lost = mount.locks.is_lost(ino, OWNER).await;
            let expected = if are_lost { (0, true, true) } else { (1, true, false) };
            assert_eq!((locked, owns, is_lost), expected);
            mount.flush(ino, handle, OWNER).await.unwrap();
            mount.release(ino, handle).await;
        });
        assert!(!mount.locks.holds(ino, OWNER));
    }
}

/// A request of an owner that holds locks on the file already is granted, and what another mount changed cannot be shown: the owner holds what
/// it held before. Bytes 0 to 9 are locked by the first mode before.
#[test]
fn a_lock_that_fails_leaves_what_its_owner_held_before() {
    let (read, write) = (LockMode::Read, LockMode::Write);
    for (before, asked) in [
        (write, lock(write, 20, 29)),
        (read, lock(read, 5, 29)),
        (read, lock(write, 0, 9)),
        (read, lock(write, 5, 14)),
        (write, lock(read, 0, 9)),
        (write, lock(read, 3, 6)),
    ] {
        let (store, disk, mut tasks) = (store("sliding-window"), SimDisk::new(1), Tasks::default());
        let (mount, _) = mount(&store, &disk, 1);
        let ino = store.create(ROOT, b"file", 0).unwrap();
        store.commit(ino, b"before", 0);
        tasks.run(async {
            let handle = mount.open(1, ino, false).await.unwrap().handle;
            mount.set_lock(&FileLock { ino, ..lock(before, 0, 9) }, handle, false, &mut || false).await.unwrap();
            store.commit(ino, b"afterwards", 0);
            store.refuses_opens.set(true);
            assert!(mount.set_lock(&FileLock { ino, ..asked }, handle, false, &mut || false).await.is_err());
            let expected = (0..10).map(|byte| ((ino, byte), before)).collect();
            assert_eq!(store.locks.borrow().modes, expected, "{before:?}, {asked:?}");
            mount.flush(ino, handle, OWNER).await.unwrap();
            mount.release(ino, handle).await;
        });
        assert!(store.locks.borrow().modes.is_empty());
    }
}

/// A program that must end does not wait for a manager that says nothing, whether it waits for the lock or tries it. What the manager
/// granted is given up.
#[test]
fn a_request_that_must_stop_does_not_wait_for_its_answer() {
    for waits in [true, false] {
        let (store, mount) = locking();
        let (whole, unlock) = (lock(LockMode::Write, 0, 9), lock(LockMode::Unlock, 0, 9));
        Tasks::default().run(async {
            for lock in [whole, unlock] {
                mount.locks.set(&lock, false, &mut || false, &mut HeldBefore::default()).await.unwrap();
            }
            store.lock_rounds.set(u32::MAX);
            let outcome = mount.locks.set(&whole, waits, &mut || true, &mut HeldBefore::default()).await;
            assert_eq!(outcome, Ok(LockOutcome::Cancelled));
            assert!(store.locks.borrow().held.contains_key(&INO), "it was granted");
            store.lock_rounds.set(0);
            mount.locks.tell(INO, OWNER).await;
        });
        assert!(!mount.locks.holds(INO, OWNER) && !store.locks.borrow().held.contains_key(&INO));
    }
}

/// A program that held a lock shares it, and the answer is lost, so it gets an error and holds what it held. By then another client may share
/// it, too: then the program's lock is lost.
#[test]
fn a_lock_that_the_manager_does_not_give_again_is_lost() {
    for others_share in [false, true] {
        let (store, mount) = locking();
        let (whole, shared) = (lock(LockMode::Write, 0, 9), lock(LockMode::Read, 0, 9));
        Tasks::default().run(async {
            mount.locks.set(&whole, false, &mut || false, &mut HeldBefore::default()).await.unwrap();
            store.lock_rounds.set(u32::MAX);
            let outcome = mount.locks.set(&shared, false, &mut || true, &mut HeldBefore::default()).await;
            assert_eq!(outcome, Ok(LockOutcome::Cancelled));
            store.lock_rounds.set(0);
            store.locks.borrow_mut().is_shared = others_share;
            mount.locks.tell(INO, OWNER).await;
            assert_eq!(mount.locks.knows_lost(INO), others_share);
            assert_eq!(mount.locks.excludes_others(&whole), !others_share);
            if others_share {
                let again = mount.locks.set(&whole, false, &mut || false, &mut HeldBefore::default()).await;
                assert_eq!(again.unwrap_err().code(), Code::SessionExpired);
                assert!(!store.locks.borrow().held.contains_key(&INO), "nothing is left at the manager");
                let unlock = FileLock { end: i64::MAX as u64, ..lock(LockMode::Unlock, 0, 9) };
                mount.locks.set(&unlock, false, &mut || false, &mut HeldBefore::default()).await.unwrap();
                assert!(!mount.locks.knows_lost(INO), "the program has begun anew");
            }
        });
    }
}

/// Two threads of one process ask for a range, and a signal interrupts one while the manager is slow: what that one gives up is not the
/// other one's.
#[test]
fn a_request_that_stops_does_not_take_another_threads_lock() {
    let (store, mount) = locking();
    let mut tasks = Tasks::default();
    let whole = lock(LockMode::Write, 0, 9);
    store.lock_rounds.set(1_000);
    let (first, told) = (mount.clone(), Rc::new(std::cell::OnceCell::new()));
    let outcome = told.clone();
    tasks.spawn(async move {
        let done = first.locks.set(&whole, true, &mut || true, &mut HeldBefore::default()).await;
        outcome.set(done).unwrap();
    });
    (0..10).for_each(|_| tasks.run(pause()));
    store.lock_rounds.set(40);
    let (second, got) = (mount.clone(), Rc::new(std::cell::OnceCell::new()));
    let outcome = got.clone();
    tasks.spawn(async move {
        let done = second.locks.set(&whole, true, &mut || false, &mut HeldBefore::default()).await;
        outcome.set(done).unwrap();
    });
    tasks.run(async {
        while got.get().is_none() {
            pause().await;
        }
    });
    assert_eq!(told.get(), Some(&Ok(LockOutcome::Cancelled)));
    assert_eq!(got.get(), Some(&Ok(LockOutcome::Granted)));
    store.lock_rounds.set(0);
    tasks.run(mount.locks.tell(INO, OWNER));
    assert!(store.locks.borrow().held.contains_key(&INO), "the second thread was told that it holds the lock");
}

/// A thread waits for a lock, and another one unlocks, which the manager does not hear: then a signal interrupts the first. Its request does not
/// stay in the manager's queue, or nobody would know of the lock that it gets.
#[test]
fn a_request_that_stops_behind_an_unlock_does_not_stay_in_the_queue() {
    let (store, mount) = locking();
    let (mut tasks, stops) = (Tasks::default(), Rc::new(std::cell::Cell::new(false)));
    let (first, unlock) = (lock(LockMode::Write, 0, 9), lock(LockMode::Unlock, 0, 9));
    tasks.run(mount.locks.set(&first, false, &mut || false, &mut HeldBefore::default())).unwrap();
    (store.locks.borrow_mut().waits, _) = (true, store.lock_rounds.set(20));
    let (waiting, told, is_over) = (mount.clone(), Rc::new(std::cell::OnceCell::new()), stops.clone());
    let outcome = told.clone();
    tasks.spawn(async move {
        let second = lock(LockMode::Write, 20, 29);
        let done = waiting.locks.set(&second, true, &mut || is_over.get(), &mut HeldBefore::default()).await;
        outcome.set(done).unwrap();
    });
    tasks.run(async {
        while store.locks.borrow().queued.is_empty() {
            pause().await;
        }
    });
    store.locks.borrow_mut().is_silent = true;
    let unlocking = mount.clone();
    tasks.spawn(async move {
        unlocking.locks.set(&unlock, false, &mut || false, &mut HeldBefore::default()).await.unwrap();
    });
    tasks.run(async {
        for _ in 0..50 {
            pause().await;
        }
        stops.set(true);
        while told.get().is_none() {
            pause().await;
        }
        store.locks.borrow_mut().is_silent = false;
        mount.locks.tell(INO, OWNER).await;
    });
    assert_eq!(told.get(), Some(&Ok(LockOutcome::Cancelled)));
    assert!(!mount.locks.holds(INO, OWNER));
    assert!(store.locks.borrow().queued.is_empty(), "a request that nobody waits for");
}

/// As above, and the owner's locks on the file are lost while one of its threads waits.
#[test]
fn a_request_that_fails_because_a_lock_is_lost_does_not_stay_in_the_queue() {
    let (store, mount) = locking();
    let mut tasks = Tasks::default();
    let (whole, shared) = (lock(LockMode::Write, 0, 9), lock(LockMode::Read, 0, 9));
    tasks.run(mount.locks.set(&whole, false, &mut || false, &mut HeldBefore::default())).unwrap();
    store.locks.borrow_mut().waits = true;
    let (waiting, told) = (mount.clone(), Rc::new(std::cell::OnceCell::new()));
    let outcome = told.clone();
    tasks.spawn(async move {
        let second = lock(LockMode::Write, 20, 29);
        outcome.set(waiting.locks.set(&second, true, &mut || false, &mut HeldBefore::default()).await).unwrap();
    });
    tasks.run(async {
        store.lock_rounds.set(100);
        let outcome = mount.locks.set(&shared, false, &mut || true, &mut HeldBefore::default()).await;
        assert_eq!(outcome, Ok(LockOutcome::Cancelled));
        store.lock_rounds.set(0);
        store.locks.borrow_mut().is_shared = true;
        mount.locks.tell(INO, OWNER).await;
        assert!(mount.locks.knows_lost(INO));
        while told.get().is_none() {
            pause().await;
        }
        assert_eq!(told.get().unwrap().as_ref().unwrap_err().code(), Code::SessionExpired);
        mount.locks.release(INO, OWNER).await;
    });
    assert!(!mount.locks.holds(INO, OWNER));
    assert!(store.locks.borrow().queued.is_empty(), "a request that nobody waits for");
}

/// P7: a process has shared a range. One of its threads makes a part of it exclusive, while another thread's request for another part gets no
/// answer: what that one sets again is not the first one's.
#[test]
fn a_request_that_stops_leaves_what_another_thread_gets_beside_it() {
    let (store, mount) = locking();
    let mut tasks = Tasks::default();
    tasks.run(mount.locks.set(&lock(LockMode::Read, 0, 49), false, &mut || false, &mut HeldBefore::default())).unwrap();
    store.lock_rounds.set(1_000);
    let first = mount.clone();
    tasks.spawn(async move {
        let part = lock(LockMode::Write, 0, 9);
        let done = first.locks.set(&part, true, &mut || true, &mut HeldBefore::default()).await;
        assert_eq!(done, Ok(LockOutcome::Cancelled));
        first.locks.tell(INO, OWNER).await;
    });
    (0..10).for_each(|_| tasks.run(pause()));
    store.lock_rounds.set(60);
    let (second, got) = (mount.clone(), Rc::new(std::cell::OnceCell::new()));
    let outcome = got.clone();
    tasks.spawn(async move {
        let part = lock(LockMode::Write, 20, 29);
        outcome.set(second.locks.set(&part, true, &mut || false, &mut HeldBefore::default()).await).unwrap();
    });
    tasks.run(async {
        while got.get().is_none() {
            pause().await;
        }
        store.lock_rounds.set(0);
        mount.locks.tell(INO, OWNER).await;
    });
    assert_eq!(got.get(), Some(&Ok(LockOutcome::Granted)));
    let modes = store.locks.borrow().modes.clone();
    assert_eq!(modes[&(INO, 0)], LockMode::Read, "the first thread was told that it got nothing");
    assert_eq!(modes[&(INO, 25)], LockMode::Write, "the second thread was told that it excludes all others");
}

/// As `a_request_that_stops_does_not_take_another_threads_lock`, and the client lost its table while the first thread waited.
#[test]
fn a_request_that_stops_does_not_take_another_threads_lock_after_a_loss() {
    let (store, mount) = locking();
    let mut tasks = Tasks::default();
    let (whole, unlock) = (lock(LockMode::Write, 0, 9), lock(LockMode::Unlock, 0, 9));
    for lock in [whole, unlock] {
        tasks.run(mount.locks.set(&lock, false, &mut || false, &mut HeldBefore::default())).unwrap();
    }
    store.locks.borrow_mut().is_silent = true;
    let (first, got) = (mount.clone(), Rc::new(std::cell::OnceCell::new()));
    let outcome = got.clone();
    tasks.spawn(async move {
        outcome.set(first.locks.set(&whole, true, &mut || false, &mut HeldBefore::default()).await).unwrap();
    });
    (0..10).for_each(|_| tasks.run(pause()));
    store.locks.borrow_mut().expire();
    store.lock_rounds.set(20_000);
    store.locks.borrow_mut().is_silent = false;
    tasks.run(async {
        // The manager has granted it; the answer is on its way.
        while !store.locks.borrow().held.contains_key(&INO) {
            pause().await;
        }
        store.lock_rounds.set(500_000);
        let outcome = mount.locks.set(&whole, true, &mut || true, &mut HeldBefore::default()).await;
        assert_eq!(outcome, Ok(LockOutcome::Cancelled));
        assert!(got.get().is_none(), "the first thread has its answer later");
        store.lock_rounds.set(0);
        mount.locks.tell(INO, OWNER).await;
        while got.get().is_none() {
            pause().await;
        }
    });
    assert_eq!(got.get(), Some(&Ok(LockOutcome::Granted)));
    assert!(store.locks.borrow().held.contains_key(&INO), "the first thread was told that it holds the lock");
}

/// A mount that is cut off: its programs can be interrupted and killed, and end.
#[test]
fn a_request_of_a_mount_that_is_cut_off_can_be_interrupted() {
    for has_table in [false, true] {
        let (store, mount) = locking();
        let mut tasks = Tasks::default();
        let (whole, unlock) = (lock(LockMode::Write, 0, 9), lock(LockMode::Unlock, 0, 9));
        let mut set = |lock: &FileLock, interrupted: bool| {
            let mut looks = 0;
            let mut look = || {
                looks += 1;
                interrupted && looks > 2
            };
            tasks.run(mount.locks.set(lock, true, &mut look, &mut HeldBefore::default()))
        };
        if has_table {
            assert_eq!(set(&whole, false), Ok(LockOutcome::Granted));
            assert_eq!(set(&unlock, false), Ok(LockOutcome::Granted));
        }
        store.holds_lock_answers.set(true);
        let slept = store.slept.get();
        assert_eq!(set(&whole, true), Ok(LockOutcome::Cancelled), "table: {has_table}");
        // Its close must not wait either, nor the next request of its process.
        tasks.run(mount.locks.release(INO, OWNER));
        let mut asked = 0;
        let mut look = || std::mem::replace(&mut asked, 1) > 0;
        let again = tasks.run(mount.locks.set(&whole, true, &mut look, &mut HeldBefore::default()));
        assert_eq!(again, Ok(LockOutcome::Cancelled));
        let waited = store.slept.get() - slept;
        assert!(waited < Duration::from_secs(10), "table: {has_table}, {waited:?}");
        store.holds_lock_answers.set(false);
        tasks.run(mount.locks.tell(INO, OWNER));
        assert!(!mount.locks.holds(INO, OWNER) && store.locks.borrow().held.is_empty());
    }
}
