//! Files whose locks the manager has delegated to the mount.

use super::locks::{lock, locking};
use super::store::LockTable;
use super::*;
use crate::locks::HeldBefore;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::Poll;
use tessera_wire::Code;
use tessera_wire::meta::{FileLock, LockFamily, LockMode, LockOutcome};

const INO: u64 = 7;
const LAST_BYTE: u64 = i64::MAX as u64;
const OTHER: u64 = OWNER + 1;

/// The store, the mount, and its tasks; the manager delegates.
fn rig() -> (Rc<Store>, Arc<Mount<Client>>, Tasks) {
    let (store, mount) = locking();
    {
        let mut locks = store.locks.borrow_mut();
        (locks.delegates, locks.lease_ms) = (true, 1_000_000);
    }
    let mut tasks = Tasks::default();
    tasks.spawn(crate::locks::work(Arc::downgrade(&mount)));
    tasks.spawn(crate::locks::return_delegations(Arc::downgrade(&mount)));
    (store, mount, tasks)
}

async fn set(mount: &Mount<Client>, lock: &FileLock, wait: bool) -> LockOutcome {
    mount.locks.set(lock, wait, &mut || false, &mut HeldBefore::default()).await.unwrap()
}

/// Locks and unlocks until the manager has delegated the file.
async fn get_delegation(mount: &Mount<Client>, store: &Store) {
    for round in 0.. {
        assert!(round < 10, "the manager is not asked for the delegation");
        let before = store.locks.borrow().requests;
        for mode in [LockMode::Write, LockMode::Unlock] {
            assert_eq!(set(mount, &lock(mode, 0, 9), false).await, LockOutcome::Granted);
        }
        if store.locks.borrow().requests == before {
            return;
        }
    }
}

async fn until(store: &Store, is_so: impl Fn(&LockTable) -> bool) {
    for _ in 0..10_000 {
        if is_so(&store.locks.borrow()) {
            return;
        }
        pause().await;
    }
    panic!("the manager waits for what does not come");
}

#[test]
fn locks_on_a_delegated_file_cost_no_request() {
    let (store, mount, mut tasks) = rig();
    tasks.run(async {
        get_delegation(&mount, &store).await;
        let before = store.locks.borrow().requests;
        assert!((4..=9).contains(&before), "{before} requests before the delegation");
        let (read, write, unlock) = (LockMode::Read, LockMode::Write, LockMode::Unlock);
        let other = |lock: FileLock| FileLock { owner: OTHER, ..lock };
        assert_eq!(set(&mount, &lock(write, 0, 9), false).await, LockOutcome::Granted);
        assert_eq!(set(&mount, &other(lock(read, 5, 5)), false).await, LockOutcome::Refused);
        assert_eq!(set(&mount, &other(lock(read, 10, 19)), false).await, LockOutcome::Granted);
        assert_eq!(set(&mount, &lock(read, 0, 19), false).await, LockOutcome::Granted);
        let flock = FileLock { family: LockFamily::Flock as i32, ..other(lock(write, 0, LAST_BYTE)) };
        assert_eq!(set(&mount, &flock, false).await, LockOutcome::Granted, "families do not conflict");
        let found = mount.locks.test(&other(lock(write, 3, 3))).await.unwrap();
        assert_eq!(found, Some(FileLock { owner: 0, ..lock(read, 0, 19) }));
        assert_eq!(mount.locks.test(&lock(read, 0, 99)).await.unwrap(), None);
        assert!(mount.locks.fence(INO).is_some_and(|fence| fence.number == 1));
        for owner in [OWNER, OTHER] {
            assert_eq!(
                set(&mount, &FileLock { owner, ..lock(unlock, 0, LAST_BYTE) }, false).await,
                LockOutcome::Granted
            );
            assert!(!mount.locks.holds(INO, owner));
        }
        assert_eq!((store.locks.borrow().requests, mount.locks.fence(INO)), (before, None));
        assert_eq!(store.locks.borrow().returns, 0);
    });
}

#[test]
fn a_recalled_delegation_is_returned_for_what_is_held() {
    let (store, mount, mut tasks) = rig();
    tasks.run(async {
        get_delegation(&mount, &store).await;
        let held = [lock(LockMode::Write, 0, 9), lock(LockMode::Read, 20, 29)];
        for lock in &held {
            assert_eq!(set(&mount, lock, false).await, LockOutcome::Granted);
        }
        store.holds_lock_answers.set(true);
        mount.locks_recalled(&[INO, 99]);
        let unlock = lock(LockMode::Unlock, 0, 4);
        let mut unlocked = pin!(set(&mount, &unlock, false));
        for _ in 0..20 {
            assert!(
                std::future::poll_fn(|context| std::task::Poll::Ready(unlocked.as_mut().poll(context).is_pending()))
                    .await
            );
            pause().await;
        }
        store.holds_lock_answers.set(false);
        assert_eq!(unlocked.await, LockOutcome::Granted);
        until(&store, |locks| locks.returns == 1 && !locks.modes.contains_key(&(INO, 4))).await;
        let modes: Vec<u64> = store.locks.borrow().modes.keys().map(|(_, byte)| *byte).collect();
        assert_eq!(modes, (5..10).chain(20..30).collect::<Vec<u64>>());
        let before = store.locks.borrow().requests;
        assert_eq!(set(&mount, &lock(LockMode::Write, 40, 49), false).await, LockOutcome::Granted);
        assert_eq!(store.locks.borrow().requests, before + 1, "the manager decides");
        mount.locks_recalled(&[INO]);
        for _ in 0..200 {
            pause().await;
        }
        assert_eq!(store.locks.borrow().returns, 1, "there is nothing to return");
    });
}

/// Queues, fairness and deadlocks are the manager's.
#[test]
fn a_lock_that_must_wait_is_waited_for_at_the_manager() {
    let (store, mount, mut tasks) = rig();
    tasks.run(async {
        get_delegation(&mount, &store).await;
        assert_eq!(set(&mount, &lock(LockMode::Write, 0, 9), false).await, LockOutcome::Granted);
        let before = store.locks.borrow().requests;
        let waiting = FileLock { owner: OTHER, ..lock(LockMode::Write, 5, 5) };
        assert_eq!(set(&mount, &waiting, true).await, LockOutcome::Granted, "this manager lets all in");
        let locks = store.locks.borrow();
        assert_eq!(
            (locks.requests, locks.returns, &locks.told[..]),
            (before + 1, 1, &[lock(LockMode::Write, 0, 9)][..])
        );
    });
}

/// Lets a request go on until the manager has it, which is before it is answered.
async fn send(store: &Store, mut asked: Pin<&mut impl Future<Output = LockOutcome>>) {
    let before = store.locks.borrow().requests;
    while store.locks.borrow().requests == before {
        let is_pending = poll_fn(|context| Poll::Ready(asked.as_mut().poll(context).is_pending()));
        assert!(is_pending.await, "the manager has the request first");
        pause().await;
    }
}

/// Without an answer nobody knows whether the file is delegated: the manager is told what is held before anything else.
#[test]
fn a_lost_answer_about_a_delegation_is_cleared_up() {
    let (store, mount, mut tasks) = rig();
    tasks.run(async {
        assert_eq!(set(&mount, &lock(LockMode::Read, 60, 60), false).await, LockOutcome::Granted);
        for at in 0..3 {
            assert_eq!(set(&mount, &lock(LockMode::Write, at, at), false).await, LockOutcome::Granted);
        }
        store.locks.borrow_mut().loses_answers = true;
        let whole = lock(LockMode::Write, 0, 9);
        let mut asked = pin!(set(&mount, &whole, false));
        send(&store, asked.as_mut()).await;
        store.locks.borrow_mut().loses_answers = false;
        assert_eq!(asked.await, LockOutcome::Granted);
        let locks = store.locks.borrow();
        assert_eq!((locks.returns, locks.told.len()), (1, 2), "bytes 0 to 2, and byte 60");
        assert!((0..10).chain([60]).all(|byte| locks.modes.contains_key(&(INO, byte))));
    });
}

/// A recall that overtakes the answer which it is about.
#[test]
fn a_delegation_that_is_recalled_before_it_is_known_is_returned() {
    let (store, mount, mut tasks) = rig();
    tasks.run(async {
        for at in 0..4 {
            assert_eq!(set(&mount, &lock(LockMode::Write, at, at), false).await, LockOutcome::Granted);
        }
        store.lock_rounds.set(20);
        let whole = lock(LockMode::Write, 0, 9);
        let mut asked = pin!(set(&mount, &whole, false));
        let before = store.locks.borrow().requests;
        send(&store, asked.as_mut()).await;
        store.locks.borrow_mut().delegates = false;
        mount.locks_recalled(&[INO]);
        assert_eq!(asked.await, LockOutcome::Granted);
        let locks = store.locks.borrow();
        assert_eq!((locks.returns, locks.requests), (1, before + 2), "it is asked for again after the return");
    });
}

#[test]
fn a_delegation_is_asserted_and_what_is_held_under_it_is_lost_with_it() {
    let (store, mount, mut tasks) = rig();
    tasks.run(async {
        get_delegation(&mount, &store).await;
        assert_eq!(set(&mount, &lock(LockMode::Write, 0, 9), false).await, LockOutcome::Granted);
        let fence = mount.locks.fence(INO);
        // Another manager, which takes the locks over.
        store.locks.borrow_mut().has_expired = true;
        store.locks.borrow_mut().is_silent = true;
        mount.leases_recalled(None);
        for _ in 0..20 {
            pause().await;
        }
        store.locks.borrow_mut().expire();
        store.locks.borrow_mut().is_silent = false;
        until(&store, |locks| locks.assertions == 2).await;
        assert_eq!(store.locks.borrow().told, [FileLock { fence, ..FileLock::delegation(INO) }]);
        // It answers that they are lost.
        assert!(mount.locks.are_lost(INO).await);
        let again =
            mount.locks.set(&lock(LockMode::Write, 20, 29), false, &mut || false, &mut HeldBefore::default()).await;
        assert_eq!(again.unwrap_err().code(), Code::SessionExpired);
        mount.locks.release(INO, OWNER).await;
        let before = store.locks.borrow().requests;
        assert_eq!(set(&mount, &lock(LockMode::Write, 0, 9), false).await, LockOutcome::Granted);
        assert_eq!(store.locks.borrow().requests, before + 1, "the delegation is lost, too");
    });
}

/// A mount that may have lost its locks asks before it decides about one.
#[test]
fn nothing_is_decided_after_the_lease() {
    for is_cut_off in [true, false] {
        let (store, mount, mut tasks) = rig();
        tasks.run(async {
            get_delegation(&mount, &store).await;
            store.locks.borrow_mut().expire();
            match is_cut_off {
                true => _ = mount.leases_recalled(None),
                false => store.clock.set(store.clock.get() + 2_000_000_000_000),
            }
            let before = store.locks.borrow().requests;
            assert_eq!(set(&mount, &lock(LockMode::Write, 0, 9), false).await, LockOutcome::Granted);
            assert_eq!(store.locks.borrow().requests, before + 1, "the manager decides");
        });
    }
}

#[test]
fn an_idle_delegation_is_returned_unless_something_is_locked() {
    let (store, mount, mut tasks) = rig();
    tasks.run(async {
        get_delegation(&mount, &store).await;
        let rest = async || {
            store.clock.set(store.clock.get() + 6_000_000_000);
            for _ in 0..400 {
                pause().await;
            }
        };
        assert_eq!(set(&mount, &lock(LockMode::Write, 0, 9), false).await, LockOutcome::Granted);
        rest().await;
        assert_eq!(store.locks.borrow().returns, 0);
        assert_eq!(set(&mount, &lock(LockMode::Unlock, 0, 9), false).await, LockOutcome::Granted);
        rest().await;
        assert_eq!((store.locks.borrow().returns, store.locks.borrow().told.len()), (1, 0));
    });
}

/// The manager has room for 128 locks of a delegation.
#[test]
fn a_file_with_many_locks_is_given_back() {
    let (store, mount, mut tasks) = rig();
    tasks.run(async {
        get_delegation(&mount, &store).await;
        store.locks.borrow_mut().delegates = false;
        for at in 0..100 {
            let lock = lock(LockMode::Write, 100 * at, 100 * at + 9);
            assert_eq!(set(&mount, &lock, false).await, LockOutcome::Granted);
        }
        assert_eq!(store.locks.borrow().returns, 1);
        assert!((32..128).contains(&store.locks.borrow().told.len()));
    });
    let (store, mount, mut tasks) = rig();
    tasks.run(async {
        get_delegation(&mount, &store).await;
        assert_eq!(set(&mount, &lock(LockMode::Write, 0, LAST_BYTE), false).await, LockOutcome::Granted);
        for at in 0..200 {
            let unlock = lock(LockMode::Unlock, 100 * at, 100 * at + 9);
            assert_eq!(set(&mount, &unlock, false).await, LockOutcome::Granted);
        }
        assert_eq!(store.locks.borrow().returns, 1);
        assert!((32..128).contains(&store.locks.borrow().told.len()), "{}", store.locks.borrow().told.len());
    });
}
