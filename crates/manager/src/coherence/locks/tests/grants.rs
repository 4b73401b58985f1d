//! Which locks the table grants, which requests wait and in which order they are served.

use super::*;

fn read(number: u64, start: u64, end: u64) -> Want {
    want(INO, number, start, end, LockMode::Read, 1)
}

fn write(number: u64, start: u64, end: u64) -> Want {
    want(INO, number, start, end, LockMode::Write, 1)
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
