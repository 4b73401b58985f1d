//! Compares the table with a model of single bytes; tests its queues and the life of clients that hold locks.

use super::ranges::Ranges;
use super::table::{LockResult, LockTable, Owner, Ticket, Want};
use super::*;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const INO: u64 = 5;

fn owner(number: u64) -> Owner {
    Owner { client_id: number % 3 + 1, number }
}

fn ticket(number: u64, seq: u64) -> Ticket {
    Ticket { client_id: owner(number).client_id, seq }
}

fn want(ino: u64, number: u64, start: u64, end: u64, mode: LockMode, families: u8) -> Want {
    let held = Held { mode, families, pid: number as u32 };
    Want { ino, owner: owner(number), bytes: Bytes { start, end }, held }
}

fn read(number: u64, start: u64, end: u64) -> Want {
    want(INO, number, start, end, LockMode::Read, 1)
}

fn write(number: u64, start: u64, end: u64) -> Want {
    want(INO, number, start, end, LockMode::Write, 1)
}

fn granted(table: &mut LockTable) -> Vec<Ticket> {
    table.take_granted().into_iter().map(|(ticket, _)| ticket).collect()
}

/// A fence lasts while its client holds any lock on the file.
#[test]
fn a_fence_ends_with_the_last_lock_of_its_client() {
    let mut table = LockTable::new(4);
    table.lock(read(1, 0, 9), None);
    let fence = table.fence(INO, 2).unwrap();
    assert_eq!((fence.table, table.fence(INO, 3)), (4, None));
    table.lock(write(4, 20, 29), None);
    table.unlock(INO, owner(1), Bytes { start: 0, end: 9 });
    assert_eq!(table.fence(INO, 2), Some(fence), "owner 4 is of the same client");
    table.lock(write(2, 20, 29), Some(ticket(2, 1)));
    table.unlock(INO, owner(4), Bytes { start: 0, end: LAST_BYTE });
    assert_eq!(table.fence(INO, 2), None);
    let next = table.take_granted()[0].1;
    assert!(next.number > fence.number && table.fence(INO, 3) == Some(next));
    table.end(&BTreeSet::from([3]));
    assert_eq!(table.fence(INO, 3), None);
}

#[test]
fn readers_share_and_writers_do_not() {
    let mut table = LockTable::default();
    assert_eq!(table.lock(read(1, 0, 9), None), LockResult::Granted);
    assert_eq!(table.lock(read(2, 5, 15), None), LockResult::Granted);
    assert_eq!(table.lock(write(1, 0, 4), None), LockResult::Granted, "where it is alone");
    assert_eq!(table.lock(write(1, 4, 5), None), LockResult::Refused);
    let (holder, bytes, held) = table.in_the_way(&write(3, 0, 20)).unwrap();
    assert_eq!((holder, bytes, held.mode, held.pid), (owner(1), Bytes { start: 0, end: 4 }, LockMode::Write, 1));
    table.unlock(INO, owner(2), Bytes { start: 0, end: LAST_BYTE });
    assert_eq!(table.lock(write(1, 4, 30), None), LockResult::Granted);
    assert_eq!((table.held_by(owner(1).client_id), table.held_by(owner(2).client_id)), (1, 0), "joined; gone");
}

#[test]
fn families_ignore_each_other_and_either_ignores_none() {
    let mut table = LockTable::default();
    assert_eq!(table.lock(want(INO, 1, 0, 9, LockMode::Write, 1), None), LockResult::Granted);
    assert_eq!(table.lock(want(INO, 2, 0, 9, LockMode::Write, 2), None), LockResult::Granted);
    assert_eq!(table.lock(want(INO, 3, 0, 9, LockMode::Read, 3), None), LockResult::Refused);
    assert_eq!(table.lock(want(INO, 1, 0, 9, LockMode::Write, 2), None), LockResult::Refused);
}

#[test]
fn a_writer_that_waits_is_not_starved_by_readers() {
    let mut table = LockTable::default();
    table.lock(read(1, 0, 9), None);
    assert_eq!(table.lock(write(2, 0, 9), Some(ticket(2, 1))), LockResult::Waiting);
    assert_eq!(table.lock(read(3, 0, 9), Some(ticket(3, 2))), LockResult::Waiting, "behind the writer");
    assert_eq!(table.lock(read(4, 20, 29), Some(ticket(4, 3))), LockResult::Granted, "elsewhere");
    table.unlock(INO, owner(1), Bytes { start: 0, end: 9 });
    assert_eq!(granted(&mut table), [ticket(2, 1)]);
    table.unlock(INO, owner(2), Bytes { start: 0, end: 9 });
    assert_eq!(granted(&mut table), [ticket(3, 2)]);
    assert!(table.cancel(ticket(3, 2)).is_none(), "granted is granted");
}

/// An owner that an earlier request waits for goes first: behind that request neither would ever be served.
#[test]
fn a_reader_that_asks_for_more_is_not_held_up_by_the_writer_that_waits_for_it() {
    let mut table = LockTable::default();
    table.lock(read(1, 0, 9), None);
    table.lock(write(2, 0, 19), Some(ticket(2, 1)));
    assert_eq!(table.lock(read(1, 10, 19), Some(ticket(1, 2))), LockResult::Granted);
    // A third owner queues behind the writer, until the writer waits for it.
    assert_eq!(table.lock(read(3, 15, 19), Some(ticket(3, 3))), LockResult::Waiting);
    table.lock(write(3, 30, 39), None);
    assert_eq!(table.lock(write(1, 30, 39), Some(ticket(1, 4))), LockResult::Waiting);
    assert_eq!(granted(&mut table), [ticket(3, 3)], "1 waits for 3, and 2 for 1");
}

#[test]
fn the_wait_that_closes_a_circle_is_refused_and_flock_waits() {
    for (families, outcome) in [(1, LockResult::Deadlock), (2, LockResult::Waiting)] {
        let mut table = LockTable::default();
        let want = |ino, number| want(ino, number, 0, 9, LockMode::Write, families);
        (1..=3).for_each(|n| assert_eq!(table.lock(want(n, n), None), LockResult::Granted));
        assert_eq!(table.lock(want(2, 1), Some(ticket(1, 1))), LockResult::Waiting);
        assert_eq!(table.lock(want(3, 2), Some(ticket(2, 2))), LockResult::Waiting);
        assert_eq!(table.lock(want(1, 3), Some(ticket(3, 3))), outcome);
        table.cancel(ticket(2, 2));
        table.unlock(2, owner(2), Bytes { start: 0, end: 9 });
        assert_eq!(granted(&mut table), [ticket(1, 1)]);
    }
}

/// Thousands of requests wait for one lock: each request that comes and each lock that goes must take steps that the table can
/// afford, not as many as there are triples of requests.
#[test]
fn thousands_that_wait_are_served_in_turn() {
    const WRITERS: u64 = 800;
    for families in [1, 2] {
        let mut table = LockTable::default();
        let whole = |number, mode| want(INO, number, 0, LAST_BYTE, mode, families);
        for reader in [1, 2] {
            assert_eq!(table.lock(whole(reader, LockMode::Read), None), LockResult::Granted);
        }
        for number in 10..10 + 2 * WRITERS {
            let mode = if number < 10 + WRITERS { LockMode::Write } else { LockMode::Read };
            assert_eq!(table.lock(whole(number, mode), Some(ticket(number, number))), LockResult::Waiting);
        }
        // A holder that waits, too, may be in a circle.
        table.lock(want(INO + 1, 3, 0, 9, LockMode::Write, families), None);
        let elsewhere = want(INO + 1, 1, 0, 9, LockMode::Write, families);
        assert_eq!(table.lock(elsewhere, Some(ticket(1, 2))), LockResult::Waiting);
        let whole = Bytes { start: 0, end: LAST_BYTE };
        table.unlock(INO, owner(2), whole);
        assert!(granted(&mut table).is_empty(), "a reader holds it");
        table.unlock(INO, owner(1), whole);
        for number in 10..10 + WRITERS {
            assert_eq!(granted(&mut table), [ticket(number, number)]);
            table.unlock(INO, owner(number), whole);
        }
        assert_eq!(granted(&mut table).len(), WRITERS as usize, "the readers share it");
    }
}

/// As above, where an unrelated lock comes and goes: beside many requests of one owner with others behind them, and beside readers behind
/// writers while an owner of other files holds a lock and waits.
#[test]
fn an_unrelated_lock_beside_many_that_wait_takes_few_steps() {
    const WAITING: u64 = 400;
    let aside = |table: &mut LockTable| {
        for _ in 0..100 {
            let free = Bytes { start: 1_000_000, end: 1_000_000 };
            table.lock(want(INO, 2, free.start, free.end, LockMode::Write, 1), None);
            table.unlock(INO, owner(2), free);
        }
        assert!(granted(table).is_empty());
    };
    let mut table = LockTable::default();
    table.lock(write(1, 0, 0), None);
    for seq in 0..WAITING {
        assert_eq!(table.lock(write(3, 0, 9), Some(ticket(3, seq))), LockResult::Waiting);
    }
    for number in 10..10 + WAITING {
        assert_eq!(table.lock(write(number, 5, 9), Some(ticket(number, WAITING + number))), LockResult::Waiting);
    }
    aside(&mut table);
    let mut table = LockTable::default();
    table.lock(read(1, 0, 9), None);
    for number in 10..10 + 2 * WAITING {
        let asked = if number < 10 + WAITING { write(number, 0, 9) } else { read(number, 0, 9) };
        assert_eq!(table.lock(asked, Some(ticket(number, number))), LockResult::Waiting);
    }
    table.lock(want(77, 5, 0, 9, LockMode::Write, 1), None);
    table.lock(want(88, 6, 0, 9, LockMode::Write, 1), None);
    assert_eq!(table.lock(want(88, 5, 0, 9, LockMode::Write, 1), Some(ticket(5, 7))), LockResult::Waiting);
    aside(&mut table);
}

#[derive(Debug, Clone)]
enum Step {
    Lock { number: u64, ino: u64, a: u64, b: u64, write: bool, families: u8, wait: bool },
    Unlock { number: u64, ino: u64, a: u64, b: u64 },
    Cancel(usize),
    End(BTreeSet<u64>),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        8 => (0u64..6, 1u64..3, 0u64..12, 0u64..12, any::<bool>(), 1u8..4, any::<bool>()).prop_map(
            |(number, ino, a, b, write, families, wait)| Step::Lock { number, ino, a, b, write, families, wait }
        ),
        5 => (0u64..6, 1u64..3, 0u64..12, 0u64..12).prop_map(|(number, ino, a, b)| Step::Unlock { number, ino, a, b }),
        1 => (0usize..8).prop_map(Step::Cancel),
        1 => proptest::collection::btree_set(1u64..4, 1..3).prop_map(Step::End),
    ];
    proptest::collection::vec(step, 1..60)
}

/// For each byte: its owner and the mode.
type Model = BTreeMap<(u64, u64), BTreeMap<Owner, Held>>;

fn free(model: &Model, want: &Want) -> bool {
    (want.bytes.start..=want.bytes.end).all(|byte| {
        let holders = model.get(&(want.ino, byte));
        holders.is_none_or(|h| h.iter().all(|(other, held)| *other == want.owner || !held.excludes(&want.held)))
    })
}

fn take(model: &mut Model, want: &Want) {
    for byte in want.bytes.start..=want.bytes.end {
        model.entry((want.ino, byte)).or_default().insert(want.owner, want.held);
    }
}

/// All owners that an owner waits for, pair by pair.
fn waits_for(table: &LockTable, from: Owner, with_queue: bool) -> BTreeSet<Owner> {
    let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
    while let Some(owner) = next.pop() {
        for file in table.files.values() {
            for (at, waiter) in file.queue.iter().enumerate().filter(|(_, waiter)| waiter.want.owner == owner) {
                let excludes = |held: &Held| held.excludes(&waiter.want.held);
                let holders = file.held.iter().filter(|(other, ranges)| {
                    **other != owner && ranges.over(waiter.want.bytes).any(|(_, held)| excludes(held))
                });
                let earlier = file.queue[..at].iter().map(|earlier| &earlier.want).filter(|earlier| {
                    with_queue
                        && earlier.owner != owner
                        && earlier.bytes.overlaps(&waiter.want.bytes)
                        && excludes(&earlier.held)
                });
                let others = holders.map(|(other, _)| *other).chain(earlier.map(|earlier| earlier.owner));
                next.extend(others.filter(|other| seen.insert(*other)));
            }
        }
    }
    seen
}

/// The index of each file has the locks of its owners, and each client's waiting requests are counted.
fn locks_and_requests_are_counted(table: &LockTable) -> Result<(), TestCaseError> {
    for file in table.files.values() {
        let of = |(owner, ranges): (&Owner, &Ranges)| {
            ranges.iter().map(|(at, held)| (*owner, at, *held)).collect::<Vec<_>>()
        };
        let held: Vec<(Owner, Bytes, Held)> = file.held.iter().flat_map(of).collect();
        for mode in [LockMode::Read, LockMode::Write] {
            for families in 1..4 {
                for start in 0..12 {
                    let want = want(INO, 99, start, (start + 3 * u64::from(families)).min(11), mode, families);
                    let mut found: Vec<_> = file.holders(&want).map(|(owner, at, held)| (owner, at, *held)).collect();
                    found.sort_unstable();
                    let in_the_way =
                        |(_, at, held): &&(Owner, Bytes, Held)| at.overlaps(&want.bytes) && held.excludes(&want.held);
                    let expected: Vec<_> = held.iter().filter(in_the_way).copied().collect();
                    prop_assert_eq!(found, expected, "{:?}", want);
                }
            }
        }
    }
    for client_id in 1..4 {
        let requests = table.files.values().flat_map(|file| &file.queue);
        let waiting = requests.filter(|waiter| waiter.ticket.client_id == client_id).count();
        prop_assert_eq!(table.waiting_of(client_id), waiting, "client {}", client_id);
    }
    Ok(())
}

/// The table finds the same owners as [`waits_for`], and no circle where it does not look for one.
fn search_is_complete(table: &LockTable) -> Result<(), TestCaseError> {
    for number in 0..6 {
        for with_queue in [false, true] {
            let found = waits_for(table, owner(number), with_queue);
            for other in 0..6 {
                let waits = table.wait_for([owner(number)], owner(other), with_queue);
                prop_assert_eq!(waits, found.contains(&owner(other)), "{} for {}", number, other);
            }
            let is_in_circle = found.contains(&owner(number));
            prop_assert!(!is_in_circle || table.may_be_in_circles().contains(&owner(number)), "{}", number);
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_500))]

    /// Grants match the model; a waiting request is served as soon as no lock is in its way; none is forgotten.
    #[test]
    fn the_table_is_what_each_byte_allows(steps in steps()) {
        let (mut table, mut model) = (LockTable::default(), Model::new());
        let mut waiting: Vec<(Ticket, Want)> = Vec::new();
        for (seq, step) in (1u64..).zip(steps) {
            match step {
                Step::Lock { number, ino, a, b, write, families, wait } => {
                    // An owner that waits asks for nothing else, like a process with one thread.
                    if waiting.iter().any(|(_, w)| w.owner == owner(number)) {
                        continue;
                    }
                    let mode = if write { LockMode::Write } else { LockMode::Read };
                    let want = want(ino, number, a.min(b), a.max(b), mode, families);
                    let allowed = free(&model, &want);
                    let outcome = table.lock(want, wait.then_some(ticket(number, seq)));
                    match outcome {
                        LockResult::Granted => {
                            prop_assert!(allowed);
                            take(&mut model, &want);
                        }
                        LockResult::Refused => prop_assert!(!wait && !allowed),
                        LockResult::Waiting => {
                            prop_assert!(wait);
                            waiting.push((ticket(number, seq), want));
                        }
                        LockResult::Deadlock => prop_assert!(wait && !allowed && !waiting.is_empty()),
                    }
                }
                Step::Unlock { number, ino, a, b } => {
                    let bytes = Bytes { start: a.min(b), end: a.max(b) };
                    table.unlock(ino, owner(number), bytes);
                    for byte in bytes.start..=bytes.end {
                        model.entry((ino, byte)).or_default().remove(&owner(number));
                    }
                }
                Step::Cancel(which) => {
                    if which < waiting.len() {
                        let (ticket, want) = waiting.remove(which);
                        prop_assert_eq!(table.cancel(ticket), Some(want));
                    }
                }
                Step::End(clients) => {
                    table.end(&clients);
                    waiting.retain(|(t, _)| !clients.contains(&t.client_id));
                    model.values_mut().for_each(|h| h.retain(|owner, _| !clients.contains(&owner.client_id)));
                }
            }
            search_is_complete(&table)?;
            locks_and_requests_are_counted(&table)?;
            for granted in granted(&mut table) {
                let at = waiting.iter().position(|(t, _)| *t == granted);
                prop_assert!(at.is_some(), "granted what no request waits for");
                let (_, want) = waiting.remove(at.unwrap());
                prop_assert!(free(&model, &want));
                take(&mut model, &want);
            }
            for (i, (t, want)) in waiting.iter().enumerate() {
                prop_assert!(table.is_waiting(*t));
                let behind = waiting[..i].iter().any(|(_, w)| {
                    w.ino == want.ino && w.bytes.overlaps(&want.bytes) && w.held.excludes(&want.held)
                });
                prop_assert!(behind || !free(&model, want), "it waits for no owner: {:?}", want);
            }
        }
        // Each owner that holds locks and does not wait releases them: in the end all are served, except cycles of flocks.
        for _ in 0..12 {
            let busy: Vec<Owner> = waiting.iter().map(|(_, w)| w.owner).collect();
            for number in (0..6).filter(|n| !busy.contains(&owner(*n))) {
                (1..3).for_each(|ino| table.unlock(ino, owner(number), Bytes { start: 0, end: LAST_BYTE }));
                model.values_mut().for_each(|h| _ = h.remove(&owner(number)));
            }
            for granted in granted(&mut table) {
                waiting.retain(|(t, _)| *t != granted);
            }
        }
        prop_assert!(waiting.iter().all(|(_, w)| w.held.families == 2) || waiting.len() != 1, "{:?}", waiting);
        if waiting.is_empty() {
            prop_assert!(table.is_empty() && table.waiting() == 0);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    /// Threads of an owner wait for several things at once.
    #[test]
    fn each_circle_of_owners_is_looked_for(steps in steps()) {
        let mut table = LockTable::default();
        for (seq, step) in (1u64..).zip(steps) {
            match step {
                Step::Lock { number, ino, a, b, write, families, wait } => {
                    let mode = if write { LockMode::Write } else { LockMode::Read };
                    table.lock(want(ino, number, a.min(b), a.max(b), mode, families), wait.then_some(ticket(number, seq)));
                }
                Step::Unlock { number, ino, a, b } => {
                    table.unlock(ino, owner(number), Bytes { start: a.min(b), end: a.max(b) });
                }
                Step::Cancel(which) => {
                    let waiting = table.files.values().flat_map(|file| &file.queue).nth(which).map(|waiter| waiter.ticket);
                    waiting.map(|ticket| table.cancel(ticket));
                }
                Step::End(clients) => table.end(&clients),
            }
            search_is_complete(&table)?;
            locks_and_requests_are_counted(&table)?;
        }
    }
}

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
