//! Delegations of a file's locks: who gets one, how others get their locks, and what stays true when a client is gone.

use super::table::{LockResult, LockTable, Owner, Ticket, Want};
use super::*;
use proptest::prelude::*;
use tessera_wire::locks::Held;

const INO: u64 = 5;
const ALICE: u64 = 1;
const BOB: u64 = 2;
const CAROL: u64 = 3;

fn config() -> Config {
    Config { lock_session_ms: 1_000, lock_orphan_ms: 100, max_locks_per_client: 1_024, ..Default::default() }
}

fn file_lock(owner: u64, start: u64, end: u64, mode: LockMode) -> FileLock {
    let (family, mode) = (LockFamily::Posix as i32, mode as i32);
    FileLock { ino: INO, owner, family, mode, start, end, pid: 77, ..FileLock::default() }
}

fn write(owner: u64, start: u64, end: u64) -> FileLock {
    file_lock(owner, start, end, LockMode::Write)
}

/// Alice, Bob and Carol may hold locks; requests are numbered.
struct Rig {
    lockers: Lockers,
    config: Config,
    seq: u64,
    now_ns: i64,
}

impl Rig {
    fn new() -> Rig {
        let config = config();
        let mut lockers = Lockers::start(9, Default::default(), 0, &config);
        for client in [ALICE, BOB, CAROL] {
            let claim = HoldLocks { next_table: 9, machine: "here".into(), ..HoldLocks::default() };
            assert_eq!(lockers.hold(0, client, &claim, &config).unwrap().table, 9);
            lockers.reached_on(client, 100 + client);
        }
        let noted = lockers.note().unwrap().client_ids.into_iter().collect();
        lockers.noted(noted);
        Rig { lockers, config, seq: 0, now_ns: 0 }
    }

    fn send(&mut self, client: u64, request: SetLock) -> (LockAnswer, u64) {
        self.seq += 1;
        let request = SetLock { seq: self.seq, table: 9, ..request };
        (self.lockers.set(self.now_ns, client, &request, &self.config).unwrap(), self.seq)
    }

    fn set(&mut self, client: u64, lock: FileLock) -> LockAnswer {
        self.send(client, SetLock { lock: Some(lock), ..SetLock::default() }).0
    }

    fn ask(&mut self, client: u64, lock: FileLock) -> LockAnswer {
        self.send(client, SetLock { lock: Some(lock), want_delegation: true, ..SetLock::default() }).0
    }

    fn wait(&mut self, client: u64, lock: FileLock) -> (LockAnswer, u64) {
        self.send(client, SetLock { lock: Some(lock), wait: true, ..SetLock::default() })
    }

    fn give_back(&mut self, client: u64, held: &[FileLock]) -> LockAnswer {
        self.seq += 1;
        let request = ReturnLocks { seq: self.seq, table: 9, ino: INO, held: held.to_vec() };
        self.lockers.take_back(self.now_ns, client, &request).unwrap()
    }

    fn recalls(&mut self) -> Vec<(u64, Vec<u64>)> {
        self.lockers.take_recalls(self.now_ns).into_iter().collect()
    }

    fn granted(&mut self) -> Vec<u64> {
        self.lockers.take_granted().into_iter().map(|(ticket, _)| ticket.seq).collect()
    }

    fn refused(&mut self) -> Vec<(u64, LockOutcome)> {
        self.lockers.take_refused().into_iter().map(|(ticket, outcome)| (ticket.seq, outcome)).collect()
    }

    fn test(&mut self, client: u64, lock: FileLock) -> Option<TestLockReply> {
        self.lockers.test(self.now_ns, client, &TestLock { table: 9, lock: Some(lock) }).unwrap()
    }
}

const WAITING: LockAnswer = LockAnswer::Now(LockOutcome::Waiting);
const REFUSED: LockAnswer = LockAnswer::Now(LockOutcome::Refused);
const OVERTAKEN: LockAnswer = LockAnswer::Now(LockOutcome::Overtaken);

fn fence(number: u64) -> Option<LockFence> {
    Some(LockFence { table: 9, number })
}

#[test]
fn a_client_alone_on_a_file_gets_its_locks_delegated() {
    let mut rig = Rig::new();
    assert_eq!(rig.set(ALICE, write(1, 0, 9)), LockAnswer::Granted(fence(1)));
    assert_eq!(rig.set(BOB, write(1, 20, 29)), LockAnswer::Granted(fence(2)));
    assert_eq!(rig.ask(ALICE, write(2, 10, 19)), LockAnswer::Granted(fence(1)), "Bob holds a lock");
    assert_eq!(rig.set(BOB, file_lock(1, 0, LAST_BYTE, LockMode::Unlock)), LockAnswer::Granted(None));
    let (waiting, seq) = rig.wait(ALICE, write(3, 0, 9));
    assert_eq!((waiting, rig.ask(ALICE, write(2, 30, 39))), (WAITING, LockAnswer::Granted(fence(1))), "one waits");
    let cancel = CancelLock { seq, table: 9 };
    assert_eq!(rig.lockers.cancel(0, ALICE, &cancel).unwrap(), Some(Ticket { client_id: ALICE, seq }));
    assert_eq!(rig.lockers.stats(), (3, 0, 3));
    assert_eq!(rig.ask(ALICE, write(2, 40, 49)), LockAnswer::Delegated(fence(1)), "the fence stays");
    assert_eq!(rig.lockers.stats(), (1, 0, 3), "the delegation stands for all");
    let again =
        SetLock { lock: Some(write(2, 40, 49)), want_delegation: true, seq: rig.seq, table: 9, ..Default::default() };
    assert_eq!(rig.lockers.set(0, ALICE, &again, &rig.config).unwrap(), LockAnswer::Delegated(fence(1)), "P8");
    assert_eq!(rig.set(ALICE, write(1, 50, 59)), OVERTAKEN, "it is of before the delegation");
    assert!(rig.recalls().is_empty());
}

#[test]
fn another_client_gets_its_lock_once_the_delegation_is_returned() {
    let mut rig = Rig::new();
    assert_eq!(rig.ask(ALICE, write(1, 0, 9)), LockAnswer::Delegated(fence(1)));
    let (answer, first) = rig.send(BOB, SetLock { lock: Some(write(1, 5, 5)), ..SetLock::default() });
    assert_eq!(answer, WAITING, "a request that may not wait is held back");
    let (answer, second) = rig.send(BOB, SetLock { lock: Some(write(2, 30, 39)), ..SetLock::default() });
    assert_eq!((answer, rig.wait(CAROL, write(1, 35, 49)).0), (WAITING, WAITING));
    let third = rig.seq;
    assert_eq!(rig.recalls(), [(100 + ALICE, vec![INO])]);
    assert!(rig.recalls().is_empty(), "once is enough");
    rig.now_ns = 1_000_000_000;
    assert_eq!(rig.recalls(), [(100 + ALICE, vec![INO])], "the first one may be lost");
    rig.lockers.reached_on(ALICE, 55);
    assert_eq!(rig.recalls(), [(55, vec![INO])], "the client has another connection");
    assert_eq!(
        rig.give_back(ALICE, &[write(7, 0, 9), file_lock(8, 50, 59, LockMode::Read)]),
        LockAnswer::Granted(fence(1))
    );
    assert_eq!((rig.granted(), rig.refused()), (vec![second], vec![(first, LockOutcome::Refused)]));
    assert_eq!(rig.lockers.stats(), (3, 1, 3), "Carol waits for Bob");
    assert_eq!(rig.set(BOB, file_lock(2, 0, LAST_BYTE, LockMode::Unlock)), LockAnswer::Granted(None));
    assert_eq!(rig.granted(), [third]);
    assert_eq!(rig.set(BOB, write(1, 55, 55)), REFUSED, "what was returned is held");
    assert!(rig.recalls().is_empty());
}

/// Two owners wait for each other, and the manager learns only with the return of a delegation that one of them holds a lock.
#[test]
fn a_deadlock_through_a_delegation_is_found_when_it_is_returned() {
    let mut rig = Rig::new();
    assert_eq!(rig.ask(ALICE, write(1, 0, 9)), LockAnswer::Delegated(fence(1)));
    let other = |lock: FileLock| FileLock { ino: 6, ..lock };
    assert!(matches!(rig.set(BOB, other(write(1, 0, 9))), LockAnswer::Granted(Some(_))));
    assert_eq!(rig.wait(ALICE, other(write(1, 0, 9))).0, WAITING);
    let (answer, seq) = rig.wait(BOB, write(1, 0, 9));
    assert_eq!(answer, WAITING);
    assert_eq!(rig.give_back(ALICE, &[write(1, 0, 9)]), LockAnswer::Granted(fence(1)));
    assert_eq!((rig.granted(), rig.refused()), (vec![], vec![(seq, LockOutcome::Deadlock)]));
}

#[test]
fn a_test_for_a_lock_waits_for_the_return() {
    let mut rig = Rig::new();
    assert_eq!(rig.ask(ALICE, write(1, 0, 9)), LockAnswer::Delegated(fence(1)));
    assert_eq!(rig.test(BOB, write(1, 5, 5)), None);
    assert_eq!(rig.recalls(), [(100 + ALICE, vec![INO])]);
    assert_eq!(rig.give_back(ALICE, &[write(7, 0, 9)]), LockAnswer::Granted(fence(1)));
    let in_the_way = rig.test(BOB, write(1, 5, 5)).unwrap().lock;
    assert_eq!(in_the_way, Some(FileLock { owner: 0, ..write(7, 0, 9) }));
    assert_eq!(rig.test(BOB, write(1, 10, 10)).unwrap().lock, None);
}

/// P8: requests of before the return change nothing after it, and a return of before later requests undoes none of them.
#[test]
fn what_comes_late_changes_nothing() {
    let mut rig = Rig::new();
    assert_eq!(rig.ask(ALICE, write(1, 0, 9)), LockAnswer::Delegated(fence(1)));
    let asked = rig.seq;
    assert_eq!(rig.give_back(ALICE, &[write(2, 0, 9)]), LockAnswer::Granted(fence(1)));
    let returned = rig.seq;
    for owner in [1, 2] {
        let late = SetLock { seq: asked, table: 9, lock: Some(write(owner, 0, 9)), ..SetLock::default() };
        assert_eq!(rig.lockers.set(0, ALICE, &late, &rig.config).unwrap(), OVERTAKEN, "{owner}");
    }
    assert_eq!(rig.set(ALICE, file_lock(2, 0, 9, LockMode::Unlock)), LockAnswer::Granted(None));
    let late = ReturnLocks { seq: returned, table: 9, ino: INO, held: vec![write(2, 0, 9)] };
    assert_eq!(rig.lockers.take_back(0, ALICE, &late).unwrap(), OVERTAKEN);
    assert!(matches!(rig.set(BOB, write(1, 0, 9)), LockAnswer::Granted(Some(_))));
    assert_eq!(rig.give_back(ALICE, &[write(2, 0, 9)]), REFUSED, "another client has it");
    assert_eq!(rig.lockers.stats(), (1, 0, 3));
}

/// P14.
#[test]
fn nonsense_about_delegations_is_refused() {
    let mut rig = Rig::new();
    let delegation = FileLock::delegation(INO);
    let invalid = |result: Result<LockAnswer>| assert_eq!(result.unwrap_err().into_wire().code(), Code::Invalid);
    let set = SetLock { seq: 1, table: 9, lock: Some(delegation), ..SetLock::default() };
    invalid(rig.lockers.set(0, ALICE, &set, &rig.config));
    let held = |held: Vec<FileLock>| ReturnLocks { seq: 1, table: 9, ino: INO, held };
    invalid(rig.lockers.take_back(0, ALICE, &held(vec![delegation])));
    invalid(rig.lockers.take_back(0, ALICE, &held(vec![file_lock(1, 0, 9, LockMode::Unlock)])));
    invalid(rig.lockers.take_back(0, ALICE, &held(vec![FileLock { ino: 6, ..write(1, 0, 9) }])));
    invalid(rig.lockers.take_back(0, ALICE, &held(vec![write(1, 0, 9); MAX_DELEGATED_LOCKS + 1])));
    for part in [FileLock { end: 9, ..delegation }, FileLock { mode: LockMode::Read as i32, ..delegation }] {
        let claim = HoldLocks { held: vec![part], next_table: 9, ..HoldLocks::default() };
        let refused = rig.lockers.hold(0, 9, &claim, &rig.config);
        assert_eq!(refused.unwrap_err().into_wire().code(), Code::Invalid);
    }
    assert_eq!(rig.lockers.stats(), (0, 0, 3));
    let conflicting = [write(1, 0, 9), write(2, 5, 5)];
    assert_eq!(rig.give_back(ALICE, &conflicting), REFUSED);
    // Nothing was delegated, so there is nothing to return but what is held.
    assert_eq!(rig.give_back(ALICE, &[write(1, 0, 9)]), REFUSED);
    assert_eq!(rig.lockers.stats(), (0, 0, 3));
    assert!(matches!(rig.set(ALICE, write(1, 0, 9)), LockAnswer::Granted(_)));
    assert!(matches!(rig.give_back(ALICE, &[write(1, 0, 9)]), LockAnswer::Granted(_)));
    assert_eq!(rig.give_back(ALICE, &[write(1, 0, 10)]), REFUSED);
    assert_eq!(rig.lockers.stats(), (1, 0, 3));
}

/// Half the locks that a client may have are for delegations at most, and there is room for what is returned.
#[test]
fn delegations_count_as_what_may_be_returned() {
    let mut rig = Rig::new();
    let on = |ino, lock: FileLock| FileLock { ino, ..lock };
    let most = (rig.config.max_locks_per_client / 2 / MAX_DELEGATED_LOCKS) as u64;
    for ino in 0..most {
        assert!(matches!(rig.ask(ALICE, on(10 + ino, write(1, 0, 9))), LockAnswer::Delegated(_)));
    }
    assert!(matches!(rig.ask(ALICE, on(9, write(1, 0, 9))), LockAnswer::Granted(_)));
    let mut held = 1;
    while rig.set(ALICE, on(9, write(1, 20 * held, 20 * held + 9))) != LockAnswer::Now(LockOutcome::TooMany) {
        held += 1;
        assert!(held <= 1_024, "there is a limit");
    }
    assert_eq!(held as usize, rig.config.max_locks_per_client / 2);
}

#[test]
fn a_client_with_many_locks_on_a_file_gets_no_delegation_there() {
    let mut rig = Rig::new();
    for at in 0..MAX_DELEGATED_LOCKS as u64 {
        assert_eq!(rig.set(ALICE, write(1, 20 * at, 20 * at + 9)), LockAnswer::Granted(fence(1)));
    }
    assert_eq!(rig.ask(ALICE, write(2, 10, 19)), LockAnswer::Granted(fence(1)));
    assert_eq!(rig.set(ALICE, file_lock(2, 10, 19, LockMode::Unlock)), LockAnswer::Granted(fence(1)));
    assert_eq!(rig.ask(ALICE, write(1, 0, 9)), LockAnswer::Delegated(fence(1)));
}

/// A client that is gone, or keeps what others wait for, loses its delegation as any lock.
#[test]
fn a_delegation_is_lost_with_its_client() {
    for is_gone in [true, false] {
        let mut rig = Rig::new();
        assert_eq!(rig.ask(ALICE, write(1, 0, 9)), LockAnswer::Delegated(fence(1)));
        let (answer, first) = rig.send(BOB, SetLock { lock: Some(write(1, 0, 9)), ..SetLock::default() });
        assert_eq!((answer, rig.wait(CAROL, write(1, 0, 9)).0), (WAITING, WAITING));
        assert_eq!(rig.recalls().len(), 1);
        if is_gone {
            rig.lockers.orphan(0, ALICE, &rig.config);
        }
        rig.now_ns = if is_gone { 200_000_000 } else { 2_100_000_000 };
        let alive = if is_gone { vec![BOB, CAROL] } else { vec![ALICE, BOB, CAROL] };
        for client in alive {
            rig.lockers.cancel(rig.now_ns, client, &CancelLock { seq: 0, table: 9 }).unwrap();
        }
        rig.lockers.expire(rig.now_ns, rig.now_ns - 1_000_000_000);
        assert!(rig.granted().is_empty(), "the record lists it still");
        let noted = rig.lockers.note().unwrap().client_ids.into_iter().collect();
        rig.lockers.noted(noted);
        assert_eq!((rig.granted(), rig.refused()), (vec![first], vec![]), "{is_gone}");
        assert!(!rig.lockers.is_held(ALICE, INO, fence(1).unwrap()));
    }
}

/// A new manager takes a delegation over, with its fence, and recalls it as the one before did.
#[test]
fn a_delegation_is_asserted_to_a_new_manager() {
    let config = config();
    let mut lockers = Lockers::start(19, BTreeSet::from([ALICE, BOB]), 0, &config);
    let delegation = FileLock { fence: fence(4), ..FileLock::delegation(INO) };
    let claim = |held| HoldLocks { table: 9, held, next_table: 19, ..HoldLocks::default() };
    assert!(!lockers.hold(0, ALICE, &claim(vec![delegation]), &config).unwrap().lost);
    assert!(lockers.hold(0, BOB, &claim(vec![write(1, 0, 9)]), &config).unwrap().lost, "Alice has all bytes");
    let mut rig = Rig { lockers, config, seq: 0, now_ns: 0 };
    let noted = rig.lockers.note().unwrap().client_ids.into_iter().collect();
    rig.lockers.noted(noted);
    rig.lockers.reached_on(ALICE, 7);
    assert!(rig.lockers.is_held(ALICE, INO, fence(4).unwrap()));
    assert_eq!(
        rig.lockers.hold(0, CAROL, &HoldLocks { next_table: 19, ..HoldLocks::default() }, &rig.config).unwrap().table,
        19
    );
    let ask = SetLock { seq: 1, table: 19, lock: Some(write(1, 0, 9)), ..SetLock::default() };
    assert_eq!(rig.lockers.set(0, CAROL, &ask, &rig.config).unwrap(), WAITING);
    assert_eq!(rig.recalls(), [(7, vec![INO])]);
    let returned = ReturnLocks { seq: 1, table: 19, ino: INO, held: vec![write(1, 0, 0)] };
    assert_eq!(rig.lockers.take_back(0, ALICE, &returned).unwrap(), LockAnswer::Granted(fence(4)));
    assert_eq!(rig.refused(), [(1, LockOutcome::Refused)]);
}

/// Another client may still assert a lock on the file.
#[test]
fn nothing_is_delegated_before_all_clients_are_back() {
    let config = config();
    let mut lockers = Lockers::start(19, BTreeSet::from([ALICE, BOB]), 0, &config);
    let claim = |held| HoldLocks { table: 9, held, next_table: 19, ..HoldLocks::default() };
    assert!(!lockers.hold(0, ALICE, &claim(vec![write(1, 0, 9)]), &config).unwrap().lost);
    let ask = |seq| SetLock { seq, table: 19, lock: Some(write(1, 0, 9)), want_delegation: true, ..SetLock::default() };
    assert!(matches!(lockers.set(0, ALICE, &ask(1), &config).unwrap(), LockAnswer::Granted(_)));
    assert!(!lockers.hold(0, BOB, &claim(vec![write(1, 20, 29)]), &config).unwrap().lost);
    assert!(matches!(lockers.set(0, ALICE, &ask(2), &config).unwrap(), LockAnswer::Granted(_)));
    let unlock = SetLock { lock: Some(file_lock(1, 0, LAST_BYTE, LockMode::Unlock)), ..ask(1) };
    assert_eq!(lockers.set(0, BOB, &unlock, &config).unwrap(), LockAnswer::Granted(None));
    assert!(matches!(lockers.set(0, ALICE, &ask(3), &config).unwrap(), LockAnswer::Delegated(_)));
}

/// Requests that a delegation holds back are decided in the order in which they came: one that may not wait, and is refused, lets the next one
/// have what a later one would take.
#[test]
fn what_is_held_back_is_decided_in_order() {
    let mut rig = Rig::new();
    assert!(matches!(rig.ask(ALICE, write(1, 0, 0)), LockAnswer::Delegated(_)));
    let first = rig.send(BOB, SetLock { lock: Some(write(12, 17, 19)), ..SetLock::default() }).1;
    let second = rig.wait(BOB, file_lock(13, 12, 17, LockMode::Read)).1;
    let third = rig.send(BOB, SetLock { lock: Some(write(11, 8, 12)), ..SetLock::default() }).1;
    assert!(matches!(rig.give_back(ALICE, &[file_lock(1, 19, 20, LockMode::Read)]), LockAnswer::Granted(_)));
    let refused = [(first, LockOutcome::Refused), (third, LockOutcome::Refused)];
    assert_eq!((rig.granted(), rig.refused()), (vec![second], refused.to_vec()));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// Requests that are held back get what they would have got from a table that knew the holder's locks.
    #[test]
    fn a_delegation_changes_when_locks_are_granted_and_not_which(
        held in proptest::collection::vec((1u64..4, 0u64..20, 1u64..6, any::<bool>()), 0..6),
        asked in proptest::collection::vec((1u64..4, 0u64..20, 1u64..6, any::<bool>(), any::<bool>()), 0..8),
    ) {
        let mode = |is_write| if is_write { LockMode::Write } else { LockMode::Read };
        let want = |client_id, number, start, len, is_write| Want {
            ino: INO,
            owner: Owner { client_id, number },
            bytes: Bytes { start, end: start + len },
            held: Held { mode: mode(is_write), families: 1, pid: 0 },
        };
        let (mut plain, mut delegated) = (LockTable::new(1), LockTable::new(1));
        let all = Want {
            bytes: Bytes { start: 0, end: LAST_BYTE },
            held: FileLock::delegation(INO).held(),
            ..want(ALICE, DELEGATE, 0, 0, true)
        };
        prop_assert!(delegated.replace(INO, ALICE, &[all]).0);
        let mut returned = Vec::new();
        for (number, start, len, is_write) in held {
            let want = want(ALICE, number, start, len, is_write);
            // An owner's lock in another one of its own would replace a part of it.
            let is_new = !plain.holds_some(INO, want.owner, want.bytes);
            if is_new && plain.lock(want, None) == LockResult::Granted {
                returned.push(want);
            }
        }
        let (mut expected, mut refused) = (Vec::new(), Vec::new());
        for (seq, (number, start, len, is_write, waits)) in asked.into_iter().enumerate() {
            let want = want(BOB, 10 + number, start, len, is_write);
            let ticket = Ticket { client_id: BOB, seq: seq as u64 };
            // An owner waits for one thing at a time.
            if delegated.is_queued(INO, want.owner) {
                continue;
            }
            match plain.lock(want, waits.then_some(ticket)) {
                LockResult::Granted => expected.push(ticket.seq),
                LockResult::Refused => refused.push(ticket.seq),
                LockResult::Waiting => {}
                LockResult::Deadlock => panic!("nobody waits in a circle"),
            }
            match waits {
                true => prop_assert_eq!(delegated.lock(want, Some(ticket)), LockResult::Waiting),
                false => delegated.hold_back(want, ticket),
            }
        }
        prop_assert!(delegated.take_granted().is_empty());
        prop_assert!(delegated.replace(INO, ALICE, &returned).0);
        let mut got: Vec<u64> = delegated.take_granted().into_iter().map(|(ticket, _)| ticket.seq).collect();
        let not: Vec<u64> = delegated.take_refused().into_iter().map(|(ticket, _, _)| ticket.seq).collect();
        got.sort_unstable();
        prop_assert_eq!(got, expected);
        prop_assert_eq!(not, refused);
        prop_assert_eq!(delegated.waiting(), plain.waiting());
        prop_assert_eq!(delegated.len(), plain.len());
    }
}
