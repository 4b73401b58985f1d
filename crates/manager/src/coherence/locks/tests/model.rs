//! Compares the table with a model of single bytes, and its search for circles with a slow one.

use super::super::ranges::Ranges;
use super::*;
use proptest::prelude::*;

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
