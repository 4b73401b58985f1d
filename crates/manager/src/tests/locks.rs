//! Locks through the core: waiting replies, clients that leave, managers that restart.

use crate::coherence::locks::noted;
use crate::config::Config;
use crate::core::Event;
use crate::db::Db;
use crate::internal::{Internal, NoteLockers};
use crate::rig::*;
use prost::Message;
use std::collections::BTreeSet;
use tessera_net::End;
use tessera_wire::meta::*;
use tessera_wire::{Code, Error, Role};

fn lock(mode: LockMode) -> FileLock {
    let (family, mode) = (LockFamily::Posix as i32, mode as i32);
    FileLock { ino: 5, owner: 1, family, mode, start: 0, end: 9, pid: 77, fence: None, may_be_shared: false }
}

/// An assertion that asks for the table that the manager names to this client now.
fn assertion(rig: &mut Rig, client: u64, table: u64, held: &[FileLock]) -> HoldLocks {
    let claim = HoldLocks { table, held: held.to_vec(), machine: "here".into(), next_table: 0 };
    let HoldLocksReply { next_table, .. } = rig.ask_as(Role::Client, client, &claim).unwrap();
    HoldLocks { next_table, ..claim }
}

fn hold(rig: &mut Rig, client: u64, table: u64, held: &[FileLock]) -> HoldLocksReply {
    let claim = assertion(rig, client, table, held);
    rig.ask_as(Role::Client, client, &claim).unwrap()
}

fn request(rig: &mut Rig, table: u64, mode: LockMode, wait_ms: u64) -> SetLock {
    SetLock { seq: rig.op(), table, lock: Some(lock(mode)), wait: wait_ms > 0, wait_ms, ..SetLock::default() }
}

fn set(rig: &mut Rig, client: u64, table: u64, mode: LockMode) -> Result<LockOutcome, Error> {
    let request = request(rig, table, mode, 0);
    rig.ask_as(Role::Client, client, &request).map(|reply| reply.outcome())
}

fn waits(rig: &mut Rig, client: u64, table: u64, wait_ms: u64) -> (u64, SetLock) {
    let request = request(rig, table, LockMode::Write, wait_ms);
    let id = rig.send(Role::Client, client, &request);
    rig.settle();
    (id, request)
}

fn told(rig: &mut Rig, id: u64) -> Option<LockOutcome> {
    let reply = rig.replies.remove(&id)?;
    Some(SetLockReply::decode(reply.unwrap()).unwrap().outcome())
}

/// Alice and Bob may hold locks; Alice holds one.
fn rig() -> (Rig, u64) {
    let mut rig = Rig::new(4);
    let table = hold(&mut rig, ALICE, 0, &[]).table;
    assert_eq!(hold(&mut rig, BOB, 0, &[]), HoldLocksReply { table, lease_ms: 30_000, ..Default::default() });
    assert_eq!(set(&mut rig, ALICE, table, LockMode::Write), Ok(LockOutcome::Granted));
    (rig, table)
}

#[test]
fn a_waiting_request_is_answered_when_its_turn_comes() {
    let (mut rig, table) = rig();
    assert_eq!(set(&mut rig, BOB, table, LockMode::Read), Ok(LockOutcome::Refused));
    let in_the_way = rig.ask_as(Role::Client, BOB, &TestLock { table, lock: Some(lock(LockMode::Read)) }).unwrap();
    assert_eq!(in_the_way.lock, Some(FileLock { owner: 0, ..lock(LockMode::Write) }));
    let (id, _) = waits(&mut rig, BOB, table, 5_000);
    assert_eq!(told(&mut rig, id), None);
    rig.mkdir(1, "others go on");
    assert_eq!(set(&mut rig, ALICE, table, LockMode::Unlock), Ok(LockOutcome::Granted));
    assert_eq!(told(&mut rig, id), Some(LockOutcome::Granted));
    let free = rig.ask_as(Role::Client, BOB, &TestLock { table, lock: Some(lock(LockMode::Write)) }).unwrap();
    assert_eq!(free.lock, None, "one's own is no obstacle");
}

#[test]
fn a_long_wait_ends_with_a_reply_to_ask_again_and_keeps_its_place() {
    let (mut rig, table) = rig();
    let (id, again) = waits(&mut rig, BOB, table, 1_000);
    rig.tick(1_100);
    assert_eq!(told(&mut rig, id), Some(LockOutcome::Waiting));
    let carol = 0xca401;
    hold(&mut rig, carol, 0, &[]);
    let (later, _) = waits(&mut rig, carol, table, 5_000);
    let id = rig.send(Role::Client, BOB, &again);
    assert_eq!(set(&mut rig, ALICE, table, LockMode::Unlock), Ok(LockOutcome::Granted));
    assert_eq!((told(&mut rig, id), told(&mut rig, later)), (Some(LockOutcome::Granted), None));
}

#[test]
fn waiting_can_be_cancelled() {
    let (mut rig, table) = rig();
    let (id, request) = waits(&mut rig, BOB, table, 5_000);
    rig.ask_as(Role::Client, BOB, &CancelLock { seq: request.seq, table }).unwrap();
    assert_eq!(told(&mut rig, id), Some(LockOutcome::Cancelled));
    set(&mut rig, ALICE, table, LockMode::Unlock).unwrap();
    let free = rig.ask_as(Role::Client, ALICE, &TestLock { table, lock: Some(lock(LockMode::Write)) }).unwrap();
    assert_eq!(free.lock, None);
}

/// The locks of a client that ended or was killed are released soon; those of a client that was cut off, after the silence limit.
#[test]
fn a_client_that_is_gone_loses_its_locks() {
    for (end, after_ms) in [(End::ByPeer, 2_100), (End::Reset, 2_100), (End::Broken, 30_100)] {
        let (mut rig, table) = rig();
        let (mut id, request) = waits(&mut rig, BOB, table, 60_000);
        rig.core.handle(rig.now_ns, Event::ConnectionClosed { connection: ALICE, end, client_gone: ALICE });
        rig.tick(after_ms - 200);
        assert_eq!(told(&mut rig, id), None);
        // The waiting client repeats its request.
        rig.send(Role::Client, BOB, &request);
        rig.settle();
        id = rig.send(Role::Client, BOB, &request);
        rig.tick(200);
        assert_eq!(told(&mut rig, id), Some(LockOutcome::Granted));
        let late = set(&mut rig, ALICE, table, LockMode::Read).unwrap_err();
        assert_eq!(late.code(), Code::SessionExpired);
        let back = hold(&mut rig, ALICE, table, &[lock(LockMode::Write)]);
        assert_eq!(back, HoldLocksReply { lease_ms: 30_000, lost: true, ..Default::default() });
        assert!(hold(&mut rig, ALICE, table, &[lock(LockMode::Write)]).lost, "the answer may have been lost");
        assert_eq!(set(&mut rig, ALICE, table, LockMode::Read).unwrap_err().code(), Code::SessionExpired);
        let again = hold(&mut rig, ALICE, 0, &[]);
        assert!(!again.lost && again.table > table);
        assert_eq!(set(&mut rig, ALICE, again.table, LockMode::Read), Ok(LockOutcome::Refused));
    }
}

#[test]
fn a_client_that_comes_back_in_time_keeps_its_locks() {
    let (mut rig, table) = rig();
    rig.core.handle(rig.now_ns, Event::ConnectionClosed { connection: ALICE, end: End::ByPeer, client_gone: ALICE });
    rig.tick(1_000);
    assert!(!hold(&mut rig, ALICE, table, &[lock(LockMode::Write)]).lost);
    rig.tick(5_000);
    assert_eq!(set(&mut rig, BOB, table, LockMode::Read), Ok(LockOutcome::Refused));
}

/// A restarted manager grants no lock before the earlier holders have reported their locks, and they keep them.
#[test]
fn locks_outlive_the_manager() {
    let (rig, before) = rig();
    // Twice: a lock not asserted to the second manager can still be asserted to the third.
    let mut rig = rig.restart().restart();
    let begun = hold(&mut rig, BOB, before, &[]);
    assert!(!begun.lost && begun.table > before);
    let table = begun.table;
    assert_eq!(set(&mut rig, BOB, table, LockMode::Read), Ok(LockOutcome::Grace));
    assert_eq!(set(&mut rig, BOB, table, LockMode::Unlock), Ok(LockOutcome::Granted));
    let held = [lock(LockMode::Write)];
    assert!(!hold(&mut rig, ALICE, before, &held).lost);
    let again = hold(&mut rig, ALICE, before, &held);
    assert_eq!(again, HoldLocksReply { table, lease_ms: 30_000, ..Default::default() });
    assert_eq!(set(&mut rig, BOB, table, LockMode::Read), Ok(LockOutcome::Refused), "all are back: the grace is over");
    assert_eq!(set(&mut rig, ALICE, table, LockMode::Unlock), Ok(LockOutcome::Granted));
    assert_eq!(set(&mut rig, BOB, table, LockMode::Read), Ok(LockOutcome::Granted));
}

#[test]
fn a_client_that_returns_after_the_grace_period_has_lost_its_locks() {
    let (rig, before) = rig();
    let mut rig = rig.restart();
    let table = hold(&mut rig, BOB, before, &[]).table;
    for _ in 0..31 {
        rig.tick(1_000);
        hold(&mut rig, BOB, table, &[]);
    }
    assert_eq!(set(&mut rig, BOB, table, LockMode::Write), Ok(LockOutcome::Granted));
    assert!(hold(&mut rig, ALICE, before, &[lock(LockMode::Write)]).lost);
    let table = hold(&mut rig, ALICE, 0, &[]).table;
    assert_eq!(set(&mut rig, ALICE, table, LockMode::Write), Ok(LockOutcome::Refused));
}

/// The answer that told a client of its loss may not arrive: it must not assert the lost locks to the next manager.
#[test]
fn a_client_that_has_not_heard_of_its_loss_does_not_get_the_locks_back_from_the_next_manager() {
    let (mut rig, before) = rig();
    rig.core.handle(rig.now_ns, Event::ConnectionClosed { connection: ALICE, end: End::ByPeer, client_gone: ALICE });
    rig.tick(3_000);
    assert!(hold(&mut rig, ALICE, before, &[lock(LockMode::Write)]).lost);
    let mut rig = rig.restart();
    assert!(hold(&mut rig, ALICE, before, &[lock(LockMode::Write)]).lost);
}

/// Alice holds a lock on a file that she has open. Returns the lock's fence and her write session.
fn locked_file(rig: &mut Rig) -> (u64, u64, LockFence, FileLock) {
    let table = hold(rig, ALICE, 0, &[]).table;
    hold(rig, BOB, 0, &[]);
    let (op_id, kind) = (rig.op(), tessera_wire::InodeKind::File as i32);
    let made = rig.ask(&MakeNode { op_id, parent: 1, name: b"a".to_vec(), kind, ..Default::default() }).unwrap();
    let ino = made.attr.unwrap().ino;
    let lock = FileLock { ino, ..lock(LockMode::Write) };
    let request = SetLock { seq: rig.op(), table, lock: Some(lock), ..SetLock::default() };
    let fence = rig.ask_as(Role::Client, ALICE, &request).unwrap().fence.unwrap();
    let op_id = rig.op();
    let open = rig.ask_as(Role::Client, ALICE, &OpenWrite { op_id, ino, ..Default::default() }).unwrap();
    (table, open.session_id, fence, lock)
}

fn commit(rig: &mut Rig, session_id: u64, lock_fence: Option<LockFence>) -> Result<CommitReply, Error> {
    let mode = CommitMode::Replace as i32;
    let op_id = rig.op();
    rig.ask_as(
        Role::Client,
        ALICE,
        &Commit { op_id, session_id, mode, lock_fence, keep_session: true, ..Default::default() },
    )
}

/// P7, P11: bytes written under a lock do not replace what the lock's next holder wrote.
#[test]
fn a_commit_under_a_lock_that_was_lost_is_refused() {
    let mut rig = Rig::new(4);
    let (table, session, fence, lock) = locked_file(&mut rig);
    assert_eq!(commit(&mut rig, session, Some(fence)).unwrap().number, 1);
    let other = LockFence { number: fence.number + 1, ..fence };
    assert_eq!(commit(&mut rig, session, Some(other)).unwrap_err().code(), Code::LockLost);
    rig.core.handle(rig.now_ns, Event::ConnectionClosed { connection: ALICE, end: End::ByPeer, client_gone: ALICE });
    rig.tick(3_000);
    rig.tick(100);
    assert_eq!(commit(&mut rig, session, Some(fence)).unwrap_err().code(), Code::LockLost);
    assert_eq!(commit(&mut rig, session, None).unwrap().number, 2, "without a lock nothing is checked");
    // Nor does the fence come back with another lock, or with the next manager.
    assert!(hold(&mut rig, ALICE, table, &[lock]).lost);
    let table = hold(&mut rig, ALICE, 0, &[]).table;
    let request = SetLock { seq: rig.op(), table, lock: Some(lock), ..SetLock::default() };
    let next = rig.ask_as(Role::Client, ALICE, &request).unwrap().fence.unwrap();
    assert_ne!(next, fence);
    assert_eq!(commit(&mut rig, session, Some(fence)).unwrap_err().code(), Code::LockLost);
    assert_eq!(commit(&mut rig, session, Some(next)).unwrap().number, 3);
    rig.audit();
}

/// Alice's commit arrives after Bob got her lock, and wrote and released it.
fn late_commit() -> Result<CommitReply, Error> {
    let mut rig = Rig::new(4);
    let (_, session, fence, lock) = locked_file(&mut rig);
    rig.core.handle(rig.now_ns, Event::ConnectionClosed { connection: ALICE, end: End::ByPeer, client_gone: ALICE });
    rig.tick(3_000);
    rig.tick(100);
    let table = hold(&mut rig, BOB, 0, &[]).table;
    for mode in [LockMode::Write, LockMode::Unlock] {
        let lock = FileLock { mode: mode as i32, ..lock };
        let request = SetLock { seq: rig.op(), table, lock: Some(lock), ..SetLock::default() };
        assert_eq!(rig.ask_as(Role::Client, BOB, &request).unwrap().outcome(), LockOutcome::Granted);
    }
    commit(&mut rig, session, Some(fence))
}

#[test]
fn a_commit_that_arrives_after_the_next_holder_is_done_is_refused() {
    assert_eq!(late_commit().unwrap_err().code(), Code::LockLost);
    let _accepted = tessera_failpoint::activate("manager.lost_lock_commits");
    late_commit().unwrap();
}

/// The lock outlives the manager, and so does its fence. Before it is asserted, the commit is to be repeated.
#[test]
fn a_commit_under_a_lock_waits_until_the_next_manager_knows_the_lock() {
    let mut rig = Rig::new(4);
    let (table, session, fence, lock) = locked_file(&mut rig);
    let mut rig = rig.restart();
    assert_eq!(commit(&mut rig, session, Some(fence)).unwrap_err().code(), Code::Unavailable);
    let held = FileLock { fence: Some(fence), ..lock };
    assert!(!hold(&mut rig, ALICE, table, &[held]).lost);
    assert_eq!(commit(&mut rig, session, Some(fence)).unwrap().number, 1);
    rig.audit();
}

#[test]
fn without_held_locks_there_is_no_grace() {
    let (mut rig, _) = rig();
    rig.core.handle(rig.now_ns, Event::ConnectionClosed { connection: ALICE, end: End::ByPeer, client_gone: ALICE });
    rig.core.handle(rig.now_ns, Event::ConnectionClosed { connection: BOB, end: End::ByPeer, client_gone: BOB });
    rig.tick(3_000);
    rig.tick(100);
    let mut rig = rig.restart();
    let table = hold(&mut rig, ALICE, 0, &[]).table;
    assert_eq!(set(&mut rig, ALICE, table, LockMode::Write), Ok(LockOutcome::Granted));
    rig.audit();
}

/// A manager that always has something to do puts on record that a client did not come back, too: until then it grants no lock.
#[test]
fn locks_are_granted_at_a_busy_manager() {
    let (rig, before) = rig();
    let mut rig = rig.restart();
    let table = hold(&mut rig, BOB, before, &[]).table;
    let mut last = Ok(LockOutcome::Unknown);
    // The time to come back is 30 s.
    for at in 0..600 {
        let op_id = rig.op();
        rig.send(Role::Client, BOB, &MakeDir { op_id, parent: 1, name: format!("d{at}").into(), ..Default::default() });
        rig.tick(100);
        last = set(&mut rig, BOB, table, LockMode::Read);
    }
    assert_eq!(last, Ok(LockOutcome::Granted), "after a minute");
}

/// Begins a batch of one command, which stays open.
fn begin(rig: &mut Rig) {
    let index = rig.core.db().meta().unwrap().log_seq + 1;
    rig.core.begin_entry(rig.now_ns, index).expect("a command waits");
}

/// A client that is on record may hold locks only if no record that leaves it out is on its way.
#[test]
fn a_client_holds_locks_only_once_the_last_record_on_its_way_lists_it() {
    let config = Config { max_batch_commands: 1, ..config() };
    let mut rig = Rig::with(Db::in_memory([7; 16]).unwrap(), config, 4);
    hold(&mut rig, ALICE, 0, &[]);
    hold(&mut rig, BOB, 0, &[]);
    let carol = 0xca401;
    let ask_to_hold = |rig: &mut Rig, client: u64| {
        // Each client that is gone takes the number of its table with it.
        let next_table = rig.core.soft.locks.next_table();
        rig.send(Role::Client, client, &HoldLocks { next_table, ..HoldLocks::default() })
    };
    let leave = |rig: &mut Rig, client: u64| {
        let closed = Event::ConnectionClosed { connection: client, end: End::ByPeer, client_gone: client };
        rig.core.handle(rig.now_ns, closed);
        rig.now_ns += 2_100 * MS;
        rig.core.handle(rig.now_ns, Event::Tick);
    };
    // The record of Bob is being logged when Carol comes and goes.
    leave(&mut rig, ALICE);
    begin(&mut rig);
    ask_to_hold(&mut rig, carol);
    leave(&mut rig, carol);
    ask_to_hold(&mut rig, BOB);
    rig.core.finish_batch();
    assert_eq!(noted(rig.core.db()).unwrap(), BTreeSet::from([BOB]));
    // She comes again, and goes while she is recorded. Between the record with her and the one without her she is refused.
    ask_to_hold(&mut rig, carol);
    begin(&mut rig);
    leave(&mut rig, carol);
    let refused = [ask_to_hold(&mut rig, carol), {
        rig.core.finish_batch();
        assert!(noted(rig.core.db()).unwrap().contains(&carol));
        ask_to_hold(&mut rig, carol)
    }];
    rig.settle();
    assert!(refused.iter().all(|id| rig.replies[id].as_ref().is_err_and(Error::is_retryable)));
    assert_eq!(noted(rig.core.db()).unwrap(), BTreeSet::from([BOB]));
    let id = ask_to_hold(&mut rig, carol);
    rig.settle();
    let reply = HoldLocksReply::decode(rig.replies[&id].clone().unwrap()).unwrap();
    assert!(noted(rig.core.db()).unwrap().contains(&carol), "another manager would grant her locks to others");
    assert_eq!(set(&mut rig, carol, reply.table, LockMode::Write), Ok(LockOutcome::Granted));
    rig.audit();
}

/// A request of before its client's locks were taken away is delivered late, on a connection that the client has given up: nobody at the client knows of
/// the lock that it would get, so nobody would release it.
#[test]
pub(super) fn a_request_of_before_a_loss_gets_no_lock_after_it() {
    let mut rig = Rig::new(4);
    let table = hold(&mut rig, ALICE, 0, &[]).table;
    hold(&mut rig, BOB, 0, &[]);
    // Alice's network is cut, with this request on its way. The program that asked is interrupted.
    let late = request(&mut rig, table, LockMode::Write, 0);
    for _ in 0..40 {
        rig.tick(1_000);
        rig.ask_as(Role::Client, BOB, &CancelLock { seq: 0, table }).unwrap();
    }
    // It is back, hears of its loss, begins anew, and another program locks another file.
    assert!(hold(&mut rig, ALICE, table, &[]).lost);
    let again = hold(&mut rig, ALICE, 0, &[]).table;
    let other = FileLock { ino: 6, ..lock(LockMode::Write) };
    let ask = SetLock { seq: rig.op(), table: again, lock: Some(other), ..SetLock::default() };
    assert_eq!(rig.ask_as(Role::Client, ALICE, &ask).unwrap().outcome(), LockOutcome::Granted);
    let _ = rig.ask_as(Role::Client, ALICE, &late);
    for _ in 0..100 {
        rig.tick(1_000);
        rig.ask_as(Role::Client, BOB, &CancelLock { seq: 0, table }).unwrap();
        rig.ask_as(Role::Client, ALICE, &CancelLock { seq: 0, table: again }).unwrap();
    }
    assert_eq!(set(&mut rig, BOB, table, LockMode::Write), Ok(LockOutcome::Granted), "no program has it");
}

/// As above, of the request with which the client began: were the client on record again, it could assert to the next manager what it has lost.
#[test]
pub(super) fn a_request_to_begin_that_is_delayed_hides_no_loss() {
    let mut rig = Rig::new(4);
    let late = assertion(&mut rig, ALICE, 0, &[]);
    let table = hold(&mut rig, ALICE, 0, &[]).table;
    hold(&mut rig, BOB, 0, &[]);
    assert_eq!(set(&mut rig, ALICE, table, LockMode::Write), Ok(LockOutcome::Granted));
    rig.core.handle(rig.now_ns, Event::ConnectionClosed { connection: ALICE, end: End::Reset, client_gone: ALICE });
    rig.tick(2_100);
    rig.tick(100);
    for mode in [LockMode::Write, LockMode::Unlock] {
        assert_eq!(set(&mut rig, BOB, table, mode), Ok(LockOutcome::Granted));
    }
    let begun = rig.ask_as(Role::Client, ALICE, &late).unwrap();
    let held = [lock(LockMode::Write)];
    // She hears nothing before the manager changes.
    let mut rig = rig.restart();
    assert!(hold(&mut rig, ALICE, table, &held).lost, "BOB has had the lock since");
    assert!(!hold(&mut rig, ALICE, 0, &[]).lost);
    assert!(begun.table == 0 && begun.next_table != 0);
}

/// All come at once, e.g. when many hosts mount the store: one record lists them all.
#[test]
fn clients_that_come_together_are_recorded_together() {
    let mut rig = Rig::new(4);
    let begin = HoldLocks { next_table: rig.core.soft.locks.next_table(), ..HoldLocks::default() };
    let ids: Vec<u64> = (1..=200).map(|client| rig.send(Role::Client, client, &begin)).collect();
    rig.settle();
    assert!(ids.iter().all(|id| rig.replies[id].is_ok()));
    assert_eq!(noted(rig.core.db()).unwrap(), (1..=200).collect());
    let records = rig.log.iter().flat_map(|entry| &entry.commands).filter(|command| command.kind == NoteLockers::KIND);
    let listed: usize = records.map(|record| NoteLockers::decode(record.body.clone()).unwrap().client_ids.len()).sum();
    assert_eq!(listed, 200);
}

/// P11: the record of a client fails with the batch that it is in, because the disk is full. Its reply is at the head of the next batch.
#[test]
fn a_client_holds_no_locks_when_its_record_failed() {
    let config = Config { max_batch_commands: 2, ..config() };
    let mut rig = Rig::with(Db::in_memory([7; 16]).unwrap(), config, 4);
    let pages: i64 = rig.core.db().conn().query_row("PRAGMA page_count", [], |row| row.get(0)).unwrap();
    rig.core.db().conn().pragma_update(None, "max_page_count", pages + 1).unwrap();
    let op_id = rig.op();
    let value = vec![7; 60_000];
    let big = SetXattr { op_id, ino: 1, name: "user.big".into(), value, ..Default::default() };
    rig.send(Role::Client, BOB, &big);
    let begin = HoldLocks { next_table: rig.core.soft.locks.next_table(), ..HoldLocks::default() };
    let id = rig.send(Role::Client, ALICE, &begin);
    rig.settle();
    assert!(rig.core.stopped().is_none(), "it goes on without that batch");
    let is_recorded = noted(rig.core.db()).unwrap().contains(&ALICE);
    let reply = rig.replies.get(&id).expect("an answer");
    assert!(is_recorded || reply.is_err(), "another manager would grant her locks to others");
}

/// Alice lost her locks and is back. Her first assertion is stuck in a connection that she gave up; the repeated one was answered, and she locked anew. Returns
/// the table of before, which is Bob's still, the late assertion, and her present table.
fn locked_after_a_loss() -> (Rig, u64, HoldLocks, u64) {
    let mut rig = Rig::new(4);
    let table = hold(&mut rig, ALICE, 0, &[]).table;
    hold(&mut rig, BOB, 0, &[]);
    rig.core.handle(rig.now_ns, Event::ConnectionClosed { connection: ALICE, end: End::Reset, client_gone: ALICE });
    rig.tick(2_100);
    rig.tick(100);
    let late = assertion(&mut rig, ALICE, table, &[]);
    assert!(hold(&mut rig, ALICE, table, &[]).lost);
    let again = hold(&mut rig, ALICE, 0, &[]).table;
    assert_eq!(set(&mut rig, ALICE, again, LockMode::Write), Ok(LockOutcome::Granted));
    (rig, table, late, again)
}

/// P7: an assertion of before a loss that arrives late says nothing of the locks that its client has got since.
#[test]
fn a_late_assertion_of_before_a_loss_takes_away_no_later_lock() {
    let (mut rig, table, late, again) = locked_after_a_loss();
    assert_eq!(set(&mut rig, BOB, table, LockMode::Write), Ok(LockOutcome::Refused));
    let _ = rig.ask_as(Role::Client, ALICE, &late).unwrap();
    rig.tick(100);
    rig.tick(100);
    assert_eq!(set(&mut rig, BOB, table, LockMode::Write), Ok(LockOutcome::Refused), "she was heard 0.2 s ago");
    assert!(!hold(&mut rig, ALICE, again, &[]).lost);
}

/// P7: a request to begin that was sent to this manager before the other one led does not end the wait for what its client holds.
#[test]
pub(super) fn a_delayed_request_to_begin_takes_no_lock_from_its_client_in_grace() {
    let (rig, before) = rig();
    // As she sent it when she began.
    let begin = HoldLocks { next_table: before, ..HoldLocks::default() };
    let mut rig = rig.restart();
    let bob = hold(&mut rig, BOB, before, &[]).table;
    assert_eq!(set(&mut rig, BOB, bob, LockMode::Write), Ok(LockOutcome::Grace));
    let begun = rig.ask_as(Role::Client, ALICE, &begin).unwrap();
    rig.tick(100);
    assert_eq!(
        set(&mut rig, BOB, bob, LockMode::Write),
        Ok(LockOutcome::Grace),
        "ALICE is about to say that she holds it"
    );
    assert!(begun.table == 0 && begun.next_table > before, "she is to ask again, for a table of this manager");
    assert!(!hold(&mut rig, ALICE, before, &[lock(LockMode::Write)]).lost);
    assert_eq!(set(&mut rig, BOB, bob, LockMode::Write), Ok(LockOutcome::Refused));
}

/// P7: as above, of an assertion that was stuck in a connection while the client lost its locks, began anew and got others.
#[test]
pub(super) fn an_assertion_of_before_a_loss_takes_no_lock_from_its_client_in_grace() {
    let (rig, table, late, again) = locked_after_a_loss();
    let mut rig = rig.restart();
    let bob = hold(&mut rig, BOB, table, &[]).table;
    let _ = rig.ask_as(Role::Client, ALICE, &late).unwrap();
    assert_eq!(set(&mut rig, BOB, bob, LockMode::Write), Ok(LockOutcome::Grace));
    assert!(!hold(&mut rig, ALICE, again, &[lock(LockMode::Write)]).lost);
    assert_eq!(set(&mut rig, BOB, bob, LockMode::Write), Ok(LockOutcome::Refused));
}

/// The manager died after it had put the client on record, and before it answered: nobody waits for locks that the client does not hold.
#[test]
fn a_client_that_had_no_answer_when_it_began_begins_at_the_next_manager() {
    let (mut rig, before) = rig();
    let carol = 0xca401;
    let _unanswered = hold(&mut rig, carol, 0, &[]);
    let mut rig = rig.restart();
    hold(&mut rig, ALICE, before, &[]);
    let bob = hold(&mut rig, BOB, before, &[]).table;
    assert_eq!(set(&mut rig, BOB, bob, LockMode::Write), Ok(LockOutcome::Grace));
    assert!(!hold(&mut rig, carol, 0, &[]).lost);
    assert_eq!(set(&mut rig, BOB, bob, LockMode::Write), Ok(LockOutcome::Granted));
}
