use super::*;
use crate::namespace::MS;

fn entry(ino: u64, lease_ms: u64) -> Entry {
    Entry { attr: Some(Attr { ino, ..Attr::default() }), lease_ms, ..Entry::default() }
}

fn stamp(cache: &EntryCache, at_ns: i64) -> Stamp {
    Stamp { at_ns, changes: cache.changes, recalls: 0 }
}

const NOW: i64 = 100_000 * MS;

#[test]
fn a_name_does_not_outlive_its_lease_though_its_inode_is_leased_again() {
    let mut cache = EntryCache::default();
    cache.fetched(stamp(&cache, NOW - 10_000 * MS), Some((1, b"a")), &entry(7, 5_000));
    cache.advance(NOW);
    // The request was sent under the lease, and answered after its end.
    cache.fetched(stamp(&cache, NOW - 6_000 * MS), None, &entry(7, 11_000));
    assert!(cache.get(NOW, 7).is_some() && cache.lookup(NOW, 1, b"a").is_none());
    assert!(cache.get(NOW + 5_000 * MS, 7).is_none(), "the lease ended");
}

#[test]
fn a_name_that_went_with_its_inode_does_not_come_back_with_a_new_lease() {
    let leased = || {
        let mut cache = EntryCache::default();
        cache.fetched(stamp(&cache, NOW), Some((1, b"a")), &entry(7, 60_000));
        cache
    };
    let two_names =
        |lease_ms| Entry { attr: Some(Attr { ino: 7, nlink: 2, ..Attr::default() }), lease_ms, ..Entry::default() };
    let mut linked = leased();
    linked.fetched(stamp(&linked, NOW), None, &two_names(60_000));
    let mut changed = leased();
    let before = stamp(&changed, NOW);
    changed.changed_here(stamp(&changed, NOW), &entry(7, 0));
    changed.changed_here(before, &entry(7, 60_000));
    let mut unlinked = leased();
    unlinked.name_changed(1, b"b", &Attr { ino: 7, nlink: 1, ..Attr::default() });
    for mut cache in [linked, changed, unlinked] {
        assert!(cache.get(NOW, 7).is_none());
        // Elsewhere the name `a` is removed: without a lease, no recall says so.
        cache.fetched(stamp(&cache, NOW), None, &entry(7, 60_000));
        assert!(cache.get(NOW, 7).is_some() && cache.lookup(NOW, 1, b"a").is_none());
    }
}

#[test]
fn an_inode_that_this_mount_changes_stays_cached() {
    let mut cache = EntryCache::default();
    cache.fetched(stamp(&cache, NOW), Some((1, b"a")), &entry(7, 60_000));
    let changed =
        |mode, lease_ms| Entry { attr: Some(Attr { ino: 7, mode, ..Attr::default() }), lease_ms, ..Entry::default() };
    cache.changed_here(stamp(&cache, NOW), &changed(0o600, 0));
    assert_eq!(cache.lookup(NOW, 1, b"a").unwrap().attr.mode, 0o600, "under the lease of before");
    let (first, second) = (stamp(&cache, NOW), stamp(&cache, NOW));
    cache.changed_here(second, &changed(0o640, 60_000));
    cache.changed_here(first, &changed(0o644, 60_000));
    assert!(cache.get(NOW, 7).is_none(), "it is unknown which of two changes came first");
    let first = stamp(&cache, NOW);
    // Another mount changed it, too, before this one asked.
    cache.fetched(stamp(&cache, NOW + 1), None, &changed(0o604, 60_000));
    cache.changed_here(first, &changed(0o603, 0));
    assert!(
        cache.get(NOW, 7).is_none(),
        "it is unknown which is newer, the answer to the change or to the later question"
    );
    let before = stamp(&cache, NOW);
    cache.forget(Some(&[7]));
    cache.changed_here(before, &changed(0o600, 60_000));
    assert!(cache.get(NOW, 7).is_none(), "a recall overtook it");
    cache.changed_here(stamp(&cache, NOW), &changed(0o600, 0));
    assert!(cache.get(NOW, 7).is_none(), "no lease");
    cache.changed_here(stamp(&cache, NOW), &changed(0o600, 60_000));
    assert_eq!(cache.get(NOW, 7).unwrap().attr.mode, 0o600);
    cache.created_here(stamp(&cache, NOW), 1, b"new", &entry(9, 60_000));
    assert_eq!(cache.lookup(NOW, 1, b"new").unwrap().attr.ino, 9);
    let before = stamp(&cache, NOW);
    cache.forget(Some(&[10]));
    cache.created_here(before, 1, b"other", &entry(10, 60_000));
    assert!(cache.lookup(NOW, 1, b"other").is_none());
}

#[test]
fn a_recalled_inode_is_forgotten_by_every_name() {
    let mut cache = EntryCache::default();
    let before = stamp(&cache, NOW);
    cache.fetched(before, Some((1, b"a")), &entry(7, 60_000));
    cache.fetched(before, Some((2, b"b")), &entry(7, 60_000));
    cache.fetched(before, Some((1, b"c")), &entry(8, 60_000));
    assert_eq!(cache.lookup(NOW, 1, b"a").unwrap().attr.ino, 7);
    let mut forgotten = cache.forget(Some(&[7]));
    forgotten.sort();
    assert_eq!(forgotten, [(1, b"a".to_vec()), (2, b"b".to_vec())]);
    assert!(cache.lookup(NOW, 1, b"a").is_none() && cache.lookup(NOW, 2, b"b").is_none());
    assert!(cache.get(NOW, 7).is_none() && cache.lookup(NOW, 1, b"c").is_some());
}

/// The kernel may have it from before.
#[test]
fn a_recall_tells_the_name_of_an_inode_that_is_not_cached_any_more() {
    let mut cache = EntryCache::default();
    cache.fetched(stamp(&cache, NOW), Some((1, b"a")), &entry(7, 60_000));
    let before = stamp(&cache, NOW);
    cache.changed_here(stamp(&cache, NOW), &entry(7, 0));
    cache.changed_here(before, &entry(7, 60_000));
    assert!(cache.get(NOW, 7).is_none());
    assert_eq!(cache.forget(Some(&[7])), [(1, b"a".to_vec())]);
}

/// The kernel moves what it knows of the old name.
#[test]
fn a_recall_tells_the_name_that_this_mount_gave_an_inode() {
    let mut cache = EntryCache::default();
    cache.fetched(stamp(&cache, NOW), Some((1, b"a")), &entry(7, 60_000));
    cache.fetched(stamp(&cache, NOW), Some((1, b"c")), &entry(8, 60_000));
    assert!(cache.begin_move((1, b"a"), (2, b"b")) && !cache.begin_move((1, b"unknown"), (1, b"other")));
    [(1, &b"a"[..]), (2, b"b")].iter().for_each(|(parent, name)| cache.forget_name(*parent, name));
    cache.note_last_name(7, (1, b"c".to_vec()));
    assert_eq!(cache.forget(Some(&[7])), [(1, b"a".to_vec()), (2, b"b".to_vec())], "`c` stands for another one");
}

#[test]
fn an_inode_with_several_names_is_recalled_by_each() {
    let mut cache = EntryCache::default();
    let attr = Some(Attr { ino: 7, nlink: 2, ..Attr::default() });
    let linked = Entry { attr, lease_ms: 500, ..Entry::default() };
    cache.fetched(stamp(&cache, NOW), Some((1, b"a")), &linked);
    cache.fetched(stamp(&cache, NOW), Some((1, b"b")), &linked);
    assert_eq!((cache.get(NOW, 7), cache.lease_left_ns(NOW, 7)), (None, Some(500 * MS)));
    assert_eq!(cache.forget(Some(&[7])), [(1, b"a".to_vec()), (1, b"b".to_vec())]);
    assert_eq!(cache.lease_left_ns(NOW, 7), None);
}

/// The kernel may keep a name only as long as a recall tells it.
#[test]
fn a_name_that_no_recall_would_tell_has_no_lease() {
    let mut cache = EntryCache::default();
    let names: Vec<Name> = (b'a'..b'f').map(|name| (1, vec![name])).collect();
    let attr = Some(Attr { ino: 7, nlink: names.len() as u32, ..Attr::default() });
    let linked = Entry { attr, lease_ms: 500, ..Entry::default() };
    for (parent, name) in &names {
        cache.fetched(stamp(&cache, NOW), Some((*parent, name)), &linked);
    }
    let may_be_kept = cache.lease_left_ns(NOW, 7).is_some_and(|left_ns| left_ns > 0);
    let told = cache.forget(Some(&[7]));
    assert!(!may_be_kept || told == names, "the kernel keeps {names:?}, and is told of {told:?}");
}

#[test]
fn nothing_waits_for_a_kernel_that_keeps_no_names() {
    let kept = |kept_ns| {
        let mut cache = EntryCache::new(kept_ns);
        cache.advance(NOW);
        cache.fetched(stamp(&cache, NOW), Some((1, b"a")), &entry(7, 500));
        cache.kept_names(NOW, &[7])
    };
    assert!(kept(0).is_empty());
    assert_eq!(kept(1_000 * MS).until_told, Duration::from_millis(1_050));
}

/// The kernel got the first ones while the file had few.
#[test]
fn names_beyond_those_that_are_remembered_are_told_at_once() {
    let mut cache = EntryCache::default();
    let linked = |nlink| {
        let attr = Some(Attr { ino: 7, nlink, ..Attr::default() });
        Entry { attr, lease_ms: 500, ..Entry::default() }
    };
    let name = |at: u32| format!("{at}").into_bytes();
    for at in 1..=8 {
        cache.created_here(stamp(&cache, NOW), 1, &name(at), &linked(at));
        cache.fetched(stamp(&cache, NOW), Some((1, &name(at))), &linked(at));
    }
    assert_eq!((cache.evicted.len(), cache.lease_left_ns(NOW, 7)), (0, None), "the last four have no lease");
    let few: Vec<Name> = (1..=4).map(|at| (1, name(at))).collect();
    assert_eq!(cache.forget(Some(&[7])), few);
    cache.note_last_name(7, (1, b"moved".to_vec()));
    assert_eq!(cache.evicted, few[..1]);
}

#[test]
fn a_recall_tells_a_name_though_many_others_were_seen_since() {
    let mut cache = EntryCache::default();
    let attr = Some(Attr { ino: 7, nlink: 2, ..Attr::default() });
    let other = (1..).take(MAX_LAST_NAMES).map(|at| entry(1_000 + at, 500));
    for other in other.take(MAX_LAST_NAMES - 1) {
        let ino = other.attr.as_ref().unwrap().ino;
        cache.fetched(stamp(&cache, NOW), Some((2, &ino.to_le_bytes())), &other);
    }
    cache.fetched(stamp(&cache, NOW), Some((1, b"a")), &Entry { attr, lease_ms: 500, ..Entry::default() });
    cache.fetched(stamp(&cache, NOW), Some((1, b"b")), &entry(8, 500));
    assert_eq!(cache.lease_left_ns(NOW, 7), Some(500 * MS), "the kernel may keep it");
    assert_eq!(cache.forget(Some(&[7])), [(1, b"a".to_vec())]);
}

#[test]
fn an_answer_that_a_recall_overtook_is_not_cached() {
    let mut cache = EntryCache::default();
    let before = stamp(&cache, NOW);
    cache.forget(Some(&[7]));
    cache.fetched(before, Some((1, b"a")), &entry(7, 60_000));
    assert!(cache.lookup(NOW, 1, b"a").is_none());
    cache.fetched(stamp(&cache, NOW), Some((1, b"a")), &entry(7, 0));
    assert!(cache.lookup(NOW, 1, b"a").is_none(), "no lease");
}

#[test]
fn an_answer_about_another_inode_is_cached() {
    let mut cache = EntryCache::default();
    let before = stamp(&cache, NOW);
    cache.forget(Some(&[8]));
    cache.name_changed(1, b"new", &Attr { ino: 9, ..Attr::default() });
    cache.fetched(before, Some((1, b"a")), &entry(7, 60_000));
    assert!(cache.lookup(NOW, 1, b"a").is_some());
    cache.fetched(before, Some((1, b"new")), &entry(9, 60_000));
    assert!(cache.lookup(NOW, 1, b"new").is_none());
    // It is unknown which inode lost this name.
    cache.forget_name(2, b"x");
    cache.fetched(before, Some((1, b"b")), &entry(10, 60_000));
    assert!(cache.lookup(NOW, 1, b"b").is_none());
    let before = stamp(&cache, NOW);
    (0..2 * MAX_CHANGES as u64).for_each(|ino| drop(cache.forget(Some(&[1_000 + ino]))));
    cache.fetched(before, Some((1, b"b")), &entry(10, 60_000));
    assert!(cache.lookup(NOW, 1, b"b").is_none(), "more changed than is remembered");
}

#[test]
fn a_directory_stays_cached_though_its_times_change() {
    let mut cache = EntryCache::default();
    cache.fetched(stamp(&cache, NOW), None, &entry(1, 60_000));
    cache.name_changed(1, b"b", &Attr { ino: 8, ctime_ns: 20, ..Attr::default() });
    cache.name_changed(1, b"a", &Attr { ino: 7, ctime_ns: 10, ..Attr::default() });
    let attr = cache.get(NOW, 1).unwrap().attr;
    assert_eq!((attr.mtime_ns, attr.ctime_ns), (20, 20));
}

#[test]
fn a_name_that_moved_to_another_inode_outlives_the_first_ones_recall() {
    let mut cache = EntryCache::default();
    cache.fetched(stamp(&cache, NOW), Some((1, b"a")), &entry(7, 60_000));
    cache.fetched(stamp(&cache, NOW), Some((1, b"a")), &entry(8, 60_000));
    cache.forget(Some(&[7]));
    assert_eq!(cache.lookup(NOW, 1, b"a").unwrap().attr.ino, 8);
    cache.forget_name(1, b"a");
    assert!(cache.lookup(NOW, 1, b"a").is_none() && cache.get(NOW, 8).is_none());
}
