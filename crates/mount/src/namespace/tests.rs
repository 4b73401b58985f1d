//! The races that delegations and deferred creates must survive, one test each.

use super::*;

const DIR: u64 = 7;
const NOW: i64 = 1_000 * MS;

/// An answer that delegates a directory with these names.
fn granted(names: &[&[u8]]) -> Entry {
    let names = names.iter().map(|name| name.to_vec()).collect();
    Entry {
        attr: Some(Attr { ino: 50, nlink: 1, ..Attr::default() }),
        delegation_ms: 60_000,
        names,
        inos: Some(InoRange { first: 100, count: 9 }),
        ..Entry::default()
    }
}

fn grant(core: &mut Namespace, directory: u64, stamp: Stamp, names: &[&[u8]]) {
    core.created_here(stamp, 1, b"made", &mut granted(names), directory);
}

/// As [`grant`], in answer to the create of a file in the directory.
fn grant_to_create(core: &mut Namespace, directory: u64, stamp: Stamp, names: &[&[u8]]) {
    core.created_here(stamp, directory, b"made", &mut granted(names), directory);
}

fn delegated() -> Namespace {
    let mut core = Namespace::default();
    let stamp = core.stamp(NOW);
    grant(&mut core, DIR, stamp, &[]);
    core
}

fn create(core: &mut Namespace, name: &[u8]) -> Option<u64> {
    create_at(core, NOW, name)
}

fn create_at(core: &mut Namespace, now_ns: i64, name: &[u8]) -> Option<u64> {
    let attr = Attr { nlink: 1, ..Attr::default() };
    core.create_deferred(now_ns, (DIR, name), attr, &EntryAttr::default()).map(|entry| entry.attr.ino)
}

fn actions(core: &mut Namespace) -> Vec<Action> {
    std::iter::from_fn(|| core.poll()).collect()
}

/// Hands an event in; returns the actions as text: `create INO`, `commit W INO`, `settled W`, `lost W CODE`, `answer
/// R`.
fn handle(core: &mut Namespace, event: Event) -> Vec<String> {
    handle_at(core, NOW, event)
}

fn handle_at(core: &mut Namespace, now_ns: i64, event: Event) -> Vec<String> {
    core.handle(now_ns, event);
    let say = |action: Action| match action {
        Action::Create { file, .. } => format!("create {}", file.ino),
        Action::Commit(waiter, Some(file)) => format!("commit {} {}", waiter.0, file.ino),
        Action::Commit(waiter, None) => format!("commit {}", waiter.0),
        Action::Settled(waiter, Ok(())) => format!("settled {}", waiter.0),
        Action::Settled(waiter, Err(loss)) => format!("lost {} {loss:?}", waiter.0),
        Action::AnswerRecall(recall) => format!("answer {recall}"),
        Action::InvalidateNames(names) => format!("invalidate {}", names.len()),
    };
    actions(core).into_iter().map(say).collect()
}

fn created(group: u64, ino: u64, result: Result<(), Code>) -> Event {
    Event::Created { group, ino, result }
}

fn committed(core: &mut Namespace, waiter: u64, ino: u64, result: Result<FirstCommit, Code>) -> Event {
    Event::Committed { waiter: Waiter(waiter), ino, stamp: core.stamp(NOW), result }
}

#[test]
fn a_recall_that_overtakes_the_grant_voids_it() {
    let mut core = delegated();
    assert!(core.delegations.is_delegated(DIR) && core.lookup(NOW, DIR, b"a") == LookupResult::Absent);
    let stamp = core.stamp(NOW);
    assert_eq!(handle(&mut core, Event::DelegationRecalled { recall: 1, directories: vec![8] }), ["answer 1"]);
    grant(&mut core, 8, stamp, &[]);
    assert!(!core.delegations.is_delegated(8) && core.lookup(NOW, 8, b"a") == LookupResult::Unknown);
}

/// Another program on this mount may use a new directory before the answer to its `mkdir` arrives.
#[test]
fn a_new_directory_that_was_used_before_its_answer_came_is_not_delegated() {
    let mut core = Namespace::default();
    let stamp = core.stamp(NOW);
    core.delegations.begin_create(DIR, b"a");
    core.delegations.end_create(DIR);
    grant(&mut core, DIR, stamp, &[]);
    assert!(!core.delegations.is_delegated(DIR));
}

#[test]
fn a_lost_connection_ends_every_delegation_and_keeps_the_files() {
    let mut core = delegated();
    let ino = create(&mut core, b"a").unwrap();
    let stamp = core.stamp(NOW);
    handle(&mut core, Event::Recalled(None));
    grant(&mut core, DIR, stamp, &[]);
    assert!(!core.delegations.is_delegated(DIR));
    assert!(matches!(core.lookup(NOW, DIR, b"a"), LookupResult::Found(entry) if entry.attr.ino == ino));
    assert_eq!(create(&mut core, b"b"), None);
}

#[test]
fn delegations_are_requested_after_some_creates_and_less_often_if_others_create_too() {
    let mut core = Namespace::default();
    fn until_requested(core: &mut Namespace) -> Option<u32> {
        (1..2_000).find(|_| {
            core.delegations.begin_create(DIR, b"n");
            core.delegations.end_create(DIR);
            core.delegations.request(DIR).is_some()
        })
    }
    assert_eq!(core.delegations.request(DIR), None);
    let denied = [(); 3].map(|()| until_requested(&mut core));
    assert_eq!(denied, [Some(4), Some(8), Some(16)], "denied");
    let stamp = core.stamp(NOW);
    grant_to_create(&mut core, DIR, stamp, &[]);
    assert_eq!(until_requested(&mut core), Some(16), "granted, and ended");
    let stamp = core.stamp(NOW);
    grant_to_create(&mut core, DIR, stamp, &[]);
    handle(&mut core, Event::DelegationRecalled { recall: 1, directories: vec![DIR] });
    assert_eq!(until_requested(&mut core), Some(32), "recalled");
    (0..20).for_each(|_| assert!(until_requested(&mut core).is_some()));
    assert_eq!(until_requested(&mut core), Some(1024));
    assert_eq!(core.delegations.request(8), None, "of another directory");
}

/// A list from the manager may lack names of requests that were in flight, no matter when their answers arrive.
#[test]
fn names_in_flight_are_part_of_a_delegation() {
    let mut core = Namespace::default();
    core.delegations.begin_create(DIR, b"long ago");
    core.delegations.end_create(DIR);
    core.delegations.begin_create(DIR, b"before");
    core.delegations.begin_create(DIR, b"ours");
    let stamp = core.stamp(NOW);
    core.delegations.begin_create(DIR, b"meanwhile");
    core.delegations.end_create(DIR);
    core.delegations.end_create(DIR);
    core.delegations.begin_create(DIR, b"after");
    grant_to_create(&mut core, DIR, stamp, &[b"long ago", b"ours"]);
    core.delegations.end_create(DIR);
    core.delegations.end_create(DIR);
    for name in [&b"long ago"[..], b"before", b"ours", b"meanwhile", b"after"] {
        assert_eq!(core.lookup(NOW, DIR, name), LookupResult::Unknown, "{name:?}");
        assert_eq!(create(&mut core, name), None);
    }
    assert_eq!(core.lookup(NOW, DIR, b"new"), LookupResult::Absent);
    assert_eq!(create(&mut core, b"new"), Some(100));
    // The delegation is granted again while only this mount knows that file.
    let stamp = core.stamp(NOW);
    grant_to_create(&mut core, DIR, stamp, &[b"long ago"]);
    assert!(matches!(core.lookup(NOW, DIR, b"new"), LookupResult::Found(_)));
    assert_eq!((create(&mut core, b"new"), core.delegations.names_in_flight(DIR)), (None, 0));
}

/// The manager lists the names, then learns of the file; both answers are in flight.
#[test]
fn a_file_that_was_settled_while_names_were_listed_is_among_them() {
    let mut core = delegated();
    let ino = create(&mut core, b"new").unwrap();
    core.delegations.begin_create(DIR, b"ours");
    let stamp = core.stamp(NOW);
    assert_eq!(handle(&mut core, Event::Settle(Waiter(1), Scope::File(ino))), ["create 100"]);
    let group = core.last_group;
    assert_eq!(handle(&mut core, created(group, ino, Ok(()))), ["settled 1"]);
    grant_to_create(&mut core, DIR, stamp, &[]);
    core.delegations.end_create(DIR);
    assert_eq!(core.lookup(NOW, DIR, b"new"), LookupResult::Unknown);
}

#[test]
fn one_request_at_a_time_tells_the_manager_of_a_file() {
    let mut core = delegated();
    let ino = create(&mut core, b"a").unwrap();
    assert_eq!(handle(&mut core, Event::Commit(Waiter(1), ino)), ["commit 1 100"]);
    assert!(handle(&mut core, Event::Settle(Waiter(2), Scope::Directory(DIR))).is_empty());
    assert!(handle(&mut core, Event::Commit(Waiter(3), ino)).is_empty());
    let change = NewAttr { mode: Some(0o600), ..NewAttr::default() };
    assert_eq!(core.set_deferred_attr(ino, &change), None, "the request carries the old mode");
    let event = committed(&mut core, 1, ino, Ok(FirstCommit::default()));
    assert_eq!(handle(&mut core, event), ["settled 2", "commit 3"]);
    assert_eq!(core.is_settled(ino), Some(Ok(())));
}

#[test]
fn a_failed_request_leaves_the_file_to_the_next_in_the_queue() {
    let mut core = delegated();
    let ino = create(&mut core, b"a").unwrap();
    handle(&mut core, Event::Settle(Waiter(1), Scope::File(ino)));
    let first = core.last_group;
    handle(&mut core, Event::Settle(Waiter(2), Scope::File(ino)));
    let answers = handle(&mut core, created(first, ino, Err(Code::Timeout)));
    assert_eq!(answers, ["lost 1 Timeout", "create 100"], "the manager could not be asked, and is asked again");
    assert_eq!(handle(&mut core, created(first + 1, ino, Err(Code::Timeout))), ["lost 2 Timeout"]);
    assert_eq!(core.is_settled(ino), None);
    assert_eq!(core.deferred.check(ino), Ok(()), "it may still come to be");
}

#[test]
fn a_file_whose_name_was_taken_is_lost_until_it_is_closed() {
    let mut core = delegated();
    let ino = create(&mut core, b"a").unwrap();
    handle(&mut core, Event::Settle(Waiter(1), Scope::File(ino)));
    let group = core.last_group;
    let answers = handle(&mut core, created(group, ino, Err(Code::VersionConflict)));
    assert_eq!(answers, ["lost 1 VersionConflict"]);
    assert_eq!(core.is_settled(ino), Some(Err(Code::VersionConflict)));
    assert_eq!(handle(&mut core, Event::Commit(Waiter(2), ino)), ["commit 2"], "the shell checks, and says so");
    assert_eq!(handle(&mut core, Event::Closed(Waiter(3), ino)), ["lost 3 VersionConflict"]);
    assert_eq!(core.deferred.check(ino), Ok(()));
}

/// A file exists even if its content could not be stored.
#[test]
fn a_file_whose_commit_failed_is_created_empty_when_it_is_closed() {
    let mut core = delegated();
    let ino = create(&mut core, b"a").unwrap();
    handle(&mut core, Event::Commit(Waiter(1), ino));
    let event = committed(&mut core, 1, ino, Err(Code::NoSpace));
    assert!(handle(&mut core, event).is_empty());
    assert_eq!(handle(&mut core, Event::Closed(Waiter(2), ino)), ["create 100"]);
    let group = core.last_group;
    assert_eq!(handle(&mut core, created(group, ino, Ok(()))), ["settled 2"]);
}

#[test]
fn a_closed_file_that_cannot_be_created_is_dropped() {
    let mut core = delegated();
    let ino = create(&mut core, b"a").unwrap();
    handle(&mut core, Event::Closed(Waiter(1), ino));
    let group = core.last_group;
    // A recall queues behind it, then tries again.
    handle(&mut core, Event::DelegationRecalled { recall: 9, directories: vec![DIR] });
    let answers = handle(&mut core, created(group, ino, Err(Code::Timeout)));
    assert_eq!(answers, ["lost 1 Timeout", "create 100"]);
    assert_eq!(handle(&mut core, created(group + 1, ino, Err(Code::Timeout))), ["answer 9"]);
    assert_eq!(core.is_settled(ino), Some(Ok(())), "nobody is left to try");
}

#[test]
fn a_recall_is_answered_once_the_manager_knows_the_files() {
    let mut core = delegated();
    let inos = [&b"a"[..], b"b"].map(|name| create(&mut core, name).unwrap());
    assert_eq!(
        handle(&mut core, Event::DelegationRecalled { recall: 5, directories: vec![DIR] }),
        [format!("create {}", inos[0])]
    );
    assert_eq!(create(&mut core, b"c"), None, "others may create names from now on");
    let group = core.last_group;
    assert_eq!(handle(&mut core, created(group, inos[0], Ok(()))), [format!("create {}", inos[1])]);
    assert_eq!(handle(&mut core, created(group, inos[1], Err(Code::VersionConflict))), ["answer 5"]);
}

#[test]
fn files_are_settled_while_the_delegation_lasts() {
    let mut core = delegated();
    assert_eq!(create_at(&mut core, NOW + 20_000 * MS, b"late"), Some(100));
    assert_eq!(create_at(&mut core, NOW + 20_001 * MS, b"too late"), None);
    assert!(handle_at(&mut core, NOW + 39_999 * MS, Event::Tick).is_empty());
    assert_eq!(handle_at(&mut core, NOW + 40_000 * MS, Event::Tick), ["create 100"]);
    assert!(handle_at(&mut core, NOW + 41_000 * MS, Event::Tick).is_empty(), "it is on its way");
    assert_eq!(core.lookup(NOW + 60_000 * MS, DIR, b"x"), LookupResult::Unknown, "the delegation ended");
}

#[test]
fn a_commit_renews_the_delegation_from_its_request_on() {
    let mut core = delegated();
    let ino = create_at(&mut core, NOW + 10_000 * MS, b"a").unwrap();
    handle_at(&mut core, NOW + 10_000 * MS, Event::Commit(Waiter(1), ino));
    let stamp = core.stamp(NOW + 10_000 * MS);
    let done = FirstCommit { delegation_ms: 60_000, ..FirstCommit::default() };
    let event = Event::Committed { waiter: Waiter(1), ino, stamp, result: Ok(done) };
    handle_at(&mut core, NOW + 15_000 * MS, event);
    assert_eq!(core.lookup(NOW + 69_999 * MS, DIR, b"x"), LookupResult::Absent);
    assert_eq!(core.lookup(NOW + 70_000 * MS, DIR, b"x"), LookupResult::Unknown);
}

#[test]
fn a_directory_that_is_unknown_may_have_any_file_below_it() {
    let mut core = delegated();
    create(&mut core, b"a").unwrap();
    assert_eq!(handle(&mut core, Event::Settle(Waiter(1), Scope::Below(1, b"d".to_vec()))), ["create 100"]);
    let none = Scope::Below(DIR, b"absent".to_vec());
    assert_eq!(handle(&mut core, Event::Settle(Waiter(2), none)), ["settled 2"]);
}

#[test]
fn inode_numbers_that_the_manager_gives_out_twice_are_used_once() {
    let mut core = delegated();
    let stamp = core.stamp(NOW);
    assert_eq!(create(&mut core, b"a"), Some(100));
    grant(&mut core, DIR, stamp, &[]);
    assert_eq!(create(&mut core, b"b"), None);
    assert_eq!(create(&mut core, b"c"), Some(101));
}

/// P7: a delegation that is over covers no name of before, whatever a commit that was sent under it says: the manager may have granted the next one by
/// then, with names that others made in between, and this mount may not have taken that.
#[test]
fn a_commit_renews_no_delegation_that_was_over() {
    for is_recalled in [true, false] {
        let after = |s: i64| NOW + s * 1_000 * MS;
        let mut core = delegated();
        let file = create_at(&mut core, after(1), b"file").unwrap();
        handle_at(&mut core, after(59), Event::Commit(Waiter(1), file));
        let committed_at = core.stamp(after(59));
        // After 60 s it is over, and another client makes `new`: nothing is recalled. This mount asks for the delegation.
        assert_eq!(core.lookup(after(62), DIR, b"new"), LookupResult::Unknown);
        let asked = core.stamp(after(63));
        if is_recalled {
            // A recall of another directory overtakes the answer, so that does not count. Else it is still on its way.
            handle_at(&mut core, after(63), Event::DelegationRecalled { recall: 1, directories: vec![8] });
            grant_to_create(&mut core, DIR, asked, &[b"new"]);
        }
        // The manager knows that the directory is delegated to this client, again, and says so in its answer to the commit.
        let result = Ok(FirstCommit { delegation_ms: 60_000, ..FirstCommit::default() });
        let done = Event::Committed { waiter: Waiter(1), ino: file, stamp: committed_at, result };
        handle_at(&mut core, after(64), done);
        assert_eq!(core.lookup(after(65), DIR, b"new"), LookupResult::Unknown, "recalled: {is_recalled}");
    }
}

/// Another mount moves a file whose create was carried out, and whose answer is late.
#[test]
fn a_new_file_that_is_recalled_before_its_answer_came_is_asked_for() {
    for commits in [false, true] {
        let mut core = delegated();
        let ino = create(&mut core, b"a").unwrap();
        let event = if commits { Event::Commit(Waiter(1), ino) } else { Event::Settle(Waiter(1), Scope::File(ino)) };
        handle(&mut core, event);
        assert!(core.attr(NOW, ino).is_some());
        assert_eq!(handle(&mut core, Event::Recalled(Some(vec![ino]))), ["invalidate 1"]);
        assert_eq!((core.lookup(NOW, DIR, b"a"), core.attr(NOW, ino)), (LookupResult::Unknown, None));
        assert_eq!(core.is_settled(ino), None, "its answer is still awaited");
        let answered = match commits {
            true => committed(&mut core, 1, ino, Ok(FirstCommit::default())),
            false => created(core.last_group, ino, Ok(())),
        };
        handle(&mut core, answered);
        assert_eq!((core.lookup(NOW, DIR, b"a"), core.is_settled(ino)), (LookupResult::Unknown, Some(Ok(()))));
    }
}
