//! The life of clients that hold locks: what they may ask for, how much they may hold, and what they keep at the next manager.

use super::*;
use proptest::prelude::*;

fn config() -> Config {
    Config { lock_session_ms: 1_000, lock_orphan_ms: 100, max_locks_per_client: 3, ..Default::default() }
}

fn file_lock(number: u64, start: u64, end: u64, mode: LockMode) -> FileLock {
    FileLock {
        ino: INO,
        owner: number,
        family: LockFamily::Posix as i32,
        mode: mode as i32,
        start,
        end,
        pid: 77,
        fence: None,
        may_be_shared: false,
    }
}

/// A request of a client without locks for this table.
fn begin(next_table: u64) -> HoldLocks {
    HoldLocks { next_table, ..HoldLocks::default() }
}

fn set(seq: u64, table: u64, lock: FileLock) -> SetLock {
    SetLock { seq, table, lock: Some(lock), ..Default::default() }
}

#[test]
fn nonsense_is_refused_and_changes_nothing() {
    let mut lockers = Lockers::start(9, Default::default(), 0, &config());
    let begun = lockers.hold(0, 1, &begin(9), &config()).unwrap();
    assert_eq!((begun.table, begun.lease_ms, begun.lost), (9, 1_000, false));
    let good = file_lock(1, 0, 9, LockMode::Write);
    let bad = [
        FileLock { start: 10, ..good },
        FileLock { end: u64::MAX, ..good },
        FileLock { family: 0, ..good },
        FileLock { family: 9, ..good },
        FileLock { mode: 0, ..good },
    ];
    for lock in bad {
        assert_eq!(lockers.set(0, 1, &set(1, 9, lock), &config()).unwrap_err().into_wire().code(), Code::Invalid);
    }
    assert_eq!(
        lockers.set(0, 1, &SetLock { table: 9, ..Default::default() }, &config()).unwrap_err().into_wire().code(),
        Code::Invalid
    );
    let too_many = HoldLocks { held: vec![good; 7], ..begin(9) };
    assert_eq!(lockers.hold(0, 2, &too_many, &config()).unwrap_err().into_wire().code(), Code::Invalid);
    for (client, table) in [(1, 8), (2, 9)] {
        let error = lockers.set(0, client, &set(1, table, good), &config()).unwrap_err();
        assert_eq!(error.into_wire().code(), Code::SessionExpired);
    }
    assert_eq!(lockers.stats(), (0, 0, 1));
}

/// P8: an overtaken request changes nothing, and a repeated one has one effect.
#[test]
fn a_request_that_comes_late_or_twice_has_no_effect() {
    let mut lockers = Lockers::start(9, Default::default(), 0, &config());
    lockers.hold(0, 1, &begin(9), &config()).unwrap();
    let mut ask = |seq, mode| lockers.set(0, 1, &set(seq, 9, file_lock(1, 0, 9, mode)), &config()).unwrap();
    let granted = LockAnswer::Granted(Some(LockFence { table: 9, number: 1 }));
    let overtaken = LockAnswer::Now(LockOutcome::Overtaken);
    assert_eq!(ask(5, LockMode::Write), granted);
    assert_eq!(ask(5, LockMode::Write), granted);
    assert_eq!(ask(4, LockMode::Unlock), overtaken);
    assert_eq!(ask(6, LockMode::Unlock), LockAnswer::Granted(None));
    assert_eq!(ask(5, LockMode::Write), overtaken);
    assert_eq!(lockers.stats().0, 0);
    lockers.cancel(0, 1, &CancelLock { seq: 20, table: 9 }).unwrap();
    let late = lockers.set(0, 1, &set(20, 9, file_lock(1, 0, 9, LockMode::Write)), &config()).unwrap();
    assert_eq!(late, overtaken, "its cancellation came first");
}

#[test]
fn a_client_has_only_so_many_locks() {
    let mut lockers = Lockers::start(9, Default::default(), 0, &config());
    lockers.hold(0, 1, &begin(9), &config()).unwrap();
    for i in 0..4 {
        let lock = file_lock(1, i * 10, i * 10, LockMode::Write);
        let outcome = lockers.set(0, 1, &set(i + 1, 9, lock), &config()).unwrap();
        let fence = Some(LockFence { table: 9, number: 1 });
        let wanted = if i < 3 { LockAnswer::Granted(fence) } else { LockAnswer::Now(LockOutcome::TooMany) };
        assert_eq!(outcome, wanted);
    }
}

/// Threads of a process are one owner. A request of one that waits keeps its place when another one asks for something else.
#[test]
fn a_waiting_request_is_not_overtaken_by_its_owners_others() {
    let mut lockers = Lockers::start(9, Default::default(), 0, &config());
    lockers.hold(0, 1, &begin(9), &config()).unwrap();
    let of = |owner, start, end, mode| FileLock { owner, ..file_lock(1, start, end, mode) };
    let fence = |number| LockFence { table: 9, number };
    let granted = |number| LockAnswer::Granted(Some(fence(number)));
    let mut ask = |seq, lock, wait| {
        let request = SetLock { wait, wait_ms: 1_000, ..set(seq, 9, lock) };
        let answer = lockers.set(0, 1, &request, &config()).unwrap();
        (answer, lockers.take_granted())
    };
    assert_eq!(ask(1, of(50, 0, 9, LockMode::Write), false).0, granted(1));
    let waits = of(60, 0, 9, LockMode::Write);
    let later = LockAnswer::Later(Ticket { client_id: 1, seq: 2 }, 1_000);
    assert_eq!(ask(2, waits, true).0, later);
    assert_eq!(ask(3, of(60, 20, 29, LockMode::Write), true).0, granted(1));
    assert_eq!(ask(4, of(60, 20, 29, LockMode::Unlock), false).0, granted(1));
    assert_eq!(ask(2, waits, true).0, later, "it asks again, as after each interval of its wait");
    let (unlocked, granted_then) = ask(5, of(50, 0, 9, LockMode::Unlock), false);
    assert_eq!((unlocked, granted_then), (granted(2), vec![(Ticket { client_id: 1, seq: 2 }, fence(2))]));
    assert_eq!(ask(6, of(60, 0, 9, LockMode::Unlock), false).0, LockAnswer::Granted(None));
    assert_eq!(lockers.stats(), (0, 0, 1), "nothing is held or waits once all have released");
}

/// P11: a client that did not come back in time may claim its locks at the next manager, as long as it is on record.
#[test]
fn the_locks_of_a_client_that_does_not_come_back_are_free_once_that_is_on_record() {
    let noted = BTreeSet::from([1, 2]);
    let (write, over) = (file_lock(1, 0, 9, LockMode::Write), 1_001_000_000);
    let mut lockers = Lockers::start(9, noted.clone(), 0, &config());
    let claim = |held| HoldLocks { table: 8, held, ..begin(9) };
    assert!(!lockers.hold(0, 2, &claim(Vec::new()), &config()).unwrap().lost);
    let ask = |lockers: &mut Lockers, seq| lockers.set(over, 2, &set(seq, 9, write), &config()).unwrap();
    assert_eq!(ask(&mut lockers, 1), LockAnswer::Now(LockOutcome::Grace));
    lockers.expire(over, over - 1_000);
    assert_eq!(ask(&mut lockers, 2), LockAnswer::Now(LockOutcome::Grace), "client 1 is on record");
    // What the next manager would do if this one ended here.
    let mut next = Lockers::start(10, noted, over, &config());
    let claimed = next.hold(over, 1, &HoldLocks { table: 8, held: vec![write], ..begin(10) }, &config());
    assert!(!claimed.unwrap().lost);
    let note = lockers.note().unwrap();
    lockers.noted(note.client_ids.into_iter().collect());
    assert!(matches!(ask(&mut lockers, 3), LockAnswer::Granted(Some(_))));
    // A client that begins anew when the time is over is not waited for.
    let mut lockers = Lockers::start(9, BTreeSet::from([2]), 0, &config());
    lockers.hold(over, 2, &begin(9), &config()).unwrap();
    lockers.expire(over, over - 1_000);
    assert!(matches!(ask(&mut lockers, 1), LockAnswer::Granted(Some(_))));
}

/// P14: what a client unlocks divides its locks, and it may hold all pieces on at the next manager.
#[test]
fn locks_are_divided_no_further_than_a_client_may_claim() {
    let mut lockers = Lockers::start(9, BTreeSet::from([1]), 0, &config());
    lockers.hold(0, 1, &HoldLocks { table: 8, ..begin(9) }, &config()).unwrap();
    let mut seq = 0;
    let mut ask = |start, end, mode| {
        seq += 1;
        lockers.set(0, 1, &set(seq, 9, file_lock(1, start, end, mode)), &config()).unwrap()
    };
    let granted = |answer: LockAnswer| matches!(answer, LockAnswer::Granted(Some(_)));
    assert!(granted(ask(0, 99, LockMode::Write)));
    for at in (10..60).step_by(10) {
        assert!(granted(ask(at, at, LockMode::Unlock)), "{at}");
    }
    assert_eq!(ask(60, 60, LockMode::Unlock), LockAnswer::Now(LockOutcome::TooMany));
    assert_eq!(ask(62, 62, LockMode::Read), LockAnswer::Now(LockOutcome::TooMany));
    assert!(granted(ask(51, 60, LockMode::Unlock)), "it divides nothing");
    assert_eq!(ask(200, 209, LockMode::Write), LockAnswer::Now(LockOutcome::TooMany));
    let ranges = [(0, 9), (11, 19), (21, 29), (31, 39), (41, 49), (61, 99)];
    let held: Vec<FileLock> = ranges.map(|(start, end)| file_lock(1, start, end, LockMode::Write)).into();
    let mut next = Lockers::start(10, BTreeSet::from([1]), 0, &config());
    let claim = HoldLocks { table: 9, held: held.clone(), ..begin(10) };
    assert!(!next.hold(0, 1, &claim, &config()).unwrap().lost);
    let ask = set(1, 10, file_lock(1, 0, 9, LockMode::Read));
    assert!(granted(next.set(0, 1, &ask, &config()).unwrap()), "a lock that is shared again is not lost");
}

/// P11: a client that begins anew while the record without it is on its way to the group holds locks only once the record lists it again.
#[test]
fn a_client_holds_no_lock_that_it_could_not_claim_at_the_next_manager() {
    let (write, over) = (file_lock(1, 0, 9, LockMode::Write), 1_001_000_000);
    let mut lockers = Lockers::start(9, BTreeSet::from([1, 2]), 0, &config());
    assert!(!lockers.hold(0, 2, &HoldLocks { table: 8, ..begin(9) }, &config()).unwrap().lost);
    lockers.expire(over, 0);
    // Proposed, and not committed yet.
    let note = lockers.note().unwrap();
    let _ = lockers.hold(over, 1, &begin(9), &config());
    let answered_at_once = lockers.note().is_none();
    // The group has the record.
    lockers.noted(note.client_ids.iter().copied().collect());
    let held = lockers.set(over, 1, &set(1, 9, write), &config());
    let holds = answered_at_once && matches!(held, Ok(LockAnswer::Granted(Some(_))));
    // The manager ends before it proposes the next record.
    let mut next = Lockers::start(10, note.client_ids.into_iter().collect(), over, &config());
    assert!(!next.hold(over, 2, &HoldLocks { table: 9, ..begin(10) }, &config()).unwrap().lost);
    let other = next.set(over, 2, &set(1, 10, write), &config()).unwrap();
    assert!(!holds || !matches!(other, LockAnswer::Granted(Some(_))), "clients 1 and 2 hold one lock");
    // It begins anew once the record leaves it out, and is then on record before it is answered.
    assert!(!lockers.hold(over, 1, &begin(9), &config()).unwrap().lost);
    assert_eq!(lockers.note().map(|note| note.client_ids), Some(vec![1, 2]));
}

/// Clients 1 and 2 share bytes 0 to 10,000.
fn shared(config: &Config) -> Lockers {
    let mut lockers = Lockers::start(9, BTreeSet::new(), 0, config);
    for client in [1, 2] {
        lockers.hold(0, client, &begin(9), config).unwrap();
        let shared = set(1, 9, file_lock(1, 0, 10_000, LockMode::Read));
        assert!(matches!(lockers.set(0, client, &shared, config).unwrap(), LockAnswer::Granted(Some(_))));
    }
    lockers
}

/// How many of these exclusive locks client 1 waits for, while client 2 shares the bytes.
fn waits_for_parts(lockers: &mut Lockers, parts: impl Iterator<Item = (u64, u64)>, config: &Config) -> usize {
    let wait = |(seq, (start, end))| SetLock { wait: true, ..set(seq, 9, file_lock(1, start, end, LockMode::Write)) };
    let mut answer = |ask| lockers.set(0, 1, &ask, config).unwrap();
    (2..).zip(parts).filter(|part| answer(wait(*part)) == LockAnswer::Now(LockOutcome::Waiting)).count()
}

fn unlock_all(lockers: &mut Lockers, client: u64, config: &Config) {
    let unlock = set(2, 9, file_lock(1, 0, LAST_BYTE, LockMode::Unlock));
    lockers.set(0, client, &unlock, config).unwrap();
}

/// P14, P11: what waits counts, too, also if it is for the whole of a held range.
#[test]
fn requests_that_wait_for_parts_of_a_held_lock_are_bounded() {
    for width in [0, 10_000] {
        let mut lockers = shared(&config());
        let parts = (1..=1_000).map(|at| if width == 0 { (10 * at, 10 * at) } else { (0, width) });
        let waiting = waits_for_parts(&mut lockers, parts, &config());
        unlock_all(&mut lockers, 2, &config());
        let held = lockers.stats().0;
        assert!(waiting <= 6 && held <= 6, "{waiting} waited, {held} ranges are held, a client may claim 6");
    }
}

#[test]
fn dozens_of_threads_wait_for_parts_of_a_held_lock() {
    let config = Config::default();
    let mut lockers = shared(&config);
    assert_eq!(waits_for_parts(&mut lockers, (1..=100).map(|at| (10 * at, 10 * at)), &config), 100);
    unlock_all(&mut lockers, 2, &config);
    assert_eq!((lockers.take_granted().len(), lockers.stats().0), (100, 201));
}

/// A client that has as many locks as it may have makes each of them exclusive, one at a time.
#[test]
fn a_client_with_all_its_locks_waits_to_change_one() {
    let mut lockers = Lockers::start(9, BTreeSet::new(), 0, &config());
    for client in [1, 2] {
        lockers.hold(0, client, &begin(9), &config()).unwrap();
        for at in 1..=3 {
            lockers.set(0, client, &set(at, 9, file_lock(1, 10 * at, 10 * at, LockMode::Read)), &config()).unwrap();
        }
    }
    for at in 1..=3 {
        let part = |mode| file_lock(1, 10 * at, 10 * at, mode);
        let ask = SetLock { wait: true, ..set(3 + at, 9, part(LockMode::Write)) };
        assert_eq!(lockers.set(0, 1, &ask, &config()).unwrap(), LockAnswer::Now(LockOutcome::Waiting));
        lockers.set(0, 2, &set(3 + at, 9, part(LockMode::Unlock)), &config()).unwrap();
        assert_eq!(lockers.take_granted().len(), 1);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    /// P14, P11: whatever clients ask for and in which order it is granted, none holds more than it may claim at the next manager.
    #[test]
    fn no_client_gets_more_ranges_than_it_may_claim(
        asks in proptest::collection::vec((1u64..3, 1u64..3, 0u64..30, 0u64..30, 0usize..6, any::<bool>()), 1..120),
    ) {
        const MODES: [LockMode; 6] = [LockMode::Read, LockMode::Read, LockMode::Read, LockMode::Write, LockMode::Write, LockMode::Unlock];
        let mut lockers = Lockers::start(9, BTreeSet::new(), 0, &config());
        for client in [1, 2] {
            lockers.hold(0, client, &begin(9), &config()).unwrap();
        }
        for (seq, (client, owner, a, b, mode, wait)) in (1..).zip(asks) {
            let ask = SetLock { wait, ..set(seq, 9, file_lock(owner, a.min(b), a.max(b), MODES[mode])) };
            lockers.set(0, client, &ask, &config()).unwrap();
            for client in [1, 2] {
                let held = lockers.table.held_by(client);
                prop_assert!(held <= most_pieces(&config()), "client {client} holds {held} ranges");
            }
        }
    }
}

/// A client that is gone before any record listed it may begin again: no record would leave it out.
#[test]
fn a_client_that_was_never_on_record_may_come_back() {
    let mut lockers = Lockers::start(9, BTreeSet::new(), 0, &config());
    let begins = |lockers: &mut Lockers| lockers.hold(0, 1, &begin(lockers.number), &config());
    let table = begins(&mut lockers).unwrap().table;
    let write = file_lock(1, 0, 9, LockMode::Write);
    assert!(matches!(lockers.set(0, 1, &set(1, table, write), &config()).unwrap(), LockAnswer::Granted(Some(_))));
    lockers.remove(1);
    assert!(begins(&mut lockers).is_err(), "its locks are not free yet");
    assert!(lockers.note().is_none(), "the record never listed it");
    let again = begins(&mut lockers).unwrap();
    assert!(again.table > table && !again.lost);
    lockers.hold(0, 2, &begin(lockers.number), &config()).unwrap();
    let other = lockers.clients[&2].table;
    assert!(matches!(lockers.set(0, 2, &set(1, other, write), &config()).unwrap(), LockAnswer::Granted(Some(_))));
}

/// A client that is slow to ask for the table that was named to it begins, however many others are lost meanwhile.
#[test]
fn a_slow_client_begins_while_others_are_lost() {
    let mut lockers = Lockers::start(9, BTreeSet::new(), 0, &config());
    let ask =
        |lockers: &mut Lockers, client, next_table| lockers.hold(0, client, &begin(next_table), &config()).unwrap();
    let named = ask(&mut lockers, 1, 0).next_table;
    for other in 2..REMOVED_KEPT as u64 {
        let next_table = lockers.next_table();
        assert_ne!(ask(&mut lockers, other, next_table).table, 0);
        lockers.remove(other);
    }
    let table = ask(&mut lockers, 1, named).table;
    assert_eq!(table, lockers.next_table());
    assert_eq!(ask(&mut lockers, 1, named).table, table, "the answer was lost");
    // What it asked for counts no more once it is lost itself, and neither does it once the manager forgets who was lost when.
    lockers.remove(1);
    lockers.noted(BTreeSet::new());
    assert_eq!(
        ask(&mut lockers, 1, named),
        HoldLocksReply { next_table: table + 1, lease_ms: 1_000, ..Default::default() }
    );
    let named = ask(&mut lockers, 2, 0).next_table;
    for other in 3..=2 * REMOVED_KEPT as u64 {
        lockers.remove(other);
    }
    assert!(lockers.removed.len() <= REMOVED_KEPT);
    lockers.noted(BTreeSet::new());
    for client in [1, 2] {
        assert_ne!(ask(&mut lockers, client, named).next_table, 0);
        let next_table = lockers.next_table();
        assert_ne!(ask(&mut lockers, client, next_table).table, 0);
    }
}

/// Clients 1 and 2 say after a failover that they hold these locks, in this order. Returns what the second one loses, and the manager.
fn asserted(first: FileLock, second: FileLock) -> (bool, Lockers) {
    let mut lockers = Lockers::start(9, BTreeSet::from([1, 2, 3]), 0, &config());
    let mut lost = false;
    for (client, lock) in [(1, first), (2, second)] {
        let other = FileLock { ino: INO + client, may_be_shared: false, ..lock };
        lost = lockers
            .hold(0, client, &HoldLocks { table: 8, held: vec![lock, other], ..begin(9) }, &config())
            .unwrap()
            .lost;
    }
    (lost, lockers)
}

/// P7: the first client has shared a lock, and did not hear of it before the manager changed; the second one got its share.
#[test]
fn a_lock_that_may_be_shared_is_shared_if_another_client_shares_it() {
    let (read, write) = (file_lock(1, 20, 29, LockMode::Read), file_lock(1, 0, 99, LockMode::Write));
    let doubtful = FileLock { may_be_shared: true, ..write };
    assert!(asserted(write, read).0 && asserted(read, write).0 && asserted(doubtful, write).0);
    for (first, second, shared_by) in [(doubtful, read, 1), (read, doubtful, 2)] {
        let (lost, mut lockers) = asserted(first, second);
        assert!(!lost);
        let mut ask = |at, seq, lock| lockers.set(at, shared_by, &set(seq, 9, lock), &config()).unwrap();
        let part = |mode| file_lock(1, 20, 29, mode);
        assert_eq!(ask(0, 1, part(LockMode::Write)), LockAnswer::Now(LockOutcome::Grace));
        assert!(matches!(ask(0, 2, part(LockMode::Read)), LockAnswer::Granted(Some(_))));
    }
    // Nothing else of it is shared.
    for (first, second, shared_by) in [(doubtful, read, 1), (read, doubtful, 2)] {
        let (_, mut lockers) = asserted(first, second);
        lockers.hold(0, 3, &begin(9), &config()).unwrap();
        let mut may_share = |start, end| {
            let table = lockers.clients[&3].table;
            let ask = set(start, table, file_lock(1, start, end, LockMode::Read));
            matches!(lockers.set(0, 3, &ask, &config()).unwrap(), LockAnswer::Granted(Some(_)))
        };
        let shared = [(0, 19), (20, 29), (30, 99), (50, 60)].map(|(start, end)| may_share(start, end));
        assert_eq!(shared, [false, true, false, false], "shared by {shared_by}");
    }
    // Until all are back, nobody knows that it does not share it.
    let (_, mut lockers) = asserted(doubtful, file_lock(1, 200, 209, LockMode::Read));
    let ask = |lockers: &mut Lockers, seq| lockers.set(0, 1, &set(seq, 9, write), &config()).unwrap();
    assert_eq!(ask(&mut lockers, 1), LockAnswer::Now(LockOutcome::Grace));
    lockers.hold(0, 3, &begin(9), &config()).unwrap();
    assert!(matches!(ask(&mut lockers, 2), LockAnswer::Granted(Some(_))));
    lockers.expire(0, 0);
    assert!(lockers.doubtful.is_empty());
}
