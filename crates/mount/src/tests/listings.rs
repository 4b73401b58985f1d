//! What listings tell the kernel, and for how long it keeps that.

use super::*;
use crate::backend::RenameMode;
use crate::ops::directories;
use std::cell::Cell;
use std::time::Duration;

/// Name, presence of attributes and their age, ms, of the entry at a position of a listing.
async fn entry_at(mount: &Mount<Client>, directory: u64, position: u64) -> (String, bool, u128) {
    let mut found = None;
    let add = |entry: &ListedEntry<'_>| {
        let name = String::from_utf8(entry.name.to_vec()).unwrap();
        found.get_or_insert((name, entry.shown.is_some(), entry.age.as_millis()));
        true
    };
    mount.read_directory(ROOT, directory, position, true, add).await.unwrap();
    found.unwrap()
}

/// A program reads a directory slowly, or a recall comes between the manager's list and the reply to the kernel: attributes from before
/// would be cached for as long as fresh ones.
#[test]
fn attributes_that_may_be_outdated_are_not_told_by_a_listing() {
    let (store, disk, mut tasks) = (store("sliding-window"), SimDisk::new(1), Tasks::default());
    let (mount, _) = mount_with(&store, &disk, 1, false);
    for name in [&b"a"[..], b"b", b"c", b"d"] {
        store.create(ROOT, name, 0).unwrap();
    }
    tasks.run(async {
        let directory = mount.open_directory(ROOT).await.unwrap();
        let listed = async |position| entry_at(&mount, directory, position).await;
        store.clock.set(5_000_000_000);
        let from = directories::DOTS;
        assert_eq!(listed(from).await, ("a".into(), true, 0));
        mount.leases_recalled(Some(&[store.list(ROOT)[1].1]));
        assert_eq!(listed(from + 1).await, ("b".into(), false, 0), "it was recalled");
        store.clock.set(6_000_000_000);
        assert_eq!(listed(from + 2).await, ("c".into(), true, 1000));
        store.clock.set(6_000_000_001);
        assert_eq!(listed(from + 3).await, ("d".into(), false, 1000), "it is old");
    });
}

/// The kernel has taken over what programs on this mount changed since the listing was asked for.
#[test]
fn a_listing_tells_nothing_from_before_a_change_on_this_mount() {
    let (store, disk, mut tasks) = (store("sliding-window"), SimDisk::new(1), Tasks::default());
    let (mount, _) = mount_with(&store, &disk, 1, false);
    for name in [&b"a"[..], b"b", b"c", b"d", b"e"] {
        store.create(ROOT, name, 0).unwrap();
    }
    store.lease_ms.set(60_000);
    tasks.run(async {
        let directory = mount.open_directory(ROOT).await.unwrap();
        let listed = async |position| {
            let (name, is_shown, _) = entry_at(&mount, directory, position).await;
            (name, is_shown)
        };
        let from = directories::DOTS;
        assert_eq!(listed(from).await, ("a".into(), true));
        mount.remove((ROOT, b"b"), false).await.unwrap();
        assert_eq!(listed(from + 1).await, ("b".into(), false), "it is gone");
        assert_eq!(listed(from + 2).await, ("c".into(), true));
        let d = mount.lookup(0, (ROOT, b"d")).await.unwrap().attr.ino;
        mount.set_attributes(d, NewAttr { mode: Some(0o600), ..NewAttr::default() }, None).await.unwrap();
        assert_eq!(listed(from + 3).await, ("d".into(), false), "it has another mode");
        assert_eq!(listed(from + 4).await, ("e".into(), true));
    });
}

/// Names of a listing that no lease covers are looked up at each use: a program that holds a lock could use one that stood for another file
/// before its turn.
#[test]
fn the_kernel_keeps_the_names_of_a_listing_while_their_changes_are_recalled() {
    let (store, disk, mut tasks) = (store("sliding-window"), SimDisk::new(1), Tasks::default());
    let (mount, _) = mount_with(&store, &disk, 1, false);
    let inos = [&b"a"[..], b"b"].map(|name| store.create(ROOT, name, 0).unwrap());
    tasks.run(async {
        let directory = mount.open_directory(ROOT).await.unwrap();
        let kept = async |position: u64| {
            let mut kept = Vec::new();
            let add = |entry: &ListedEntry<'_>| {
                kept.extend(entry.shown.as_ref().map(|_| entry.kept_for.as_millis()));
                false
            };
            mount.read_directory(ROOT, directory, position, true, add).await.unwrap();
            kept
        };
        assert_eq!(kept(0).await, [0, 0], "no lease");
        store.list_lease_ms.set(1_500);
        assert_eq!(kept(0).await, [1_000, 1_000]);
        assert!(mount.leases_recalled(Some(&[77])).is_empty());
        let recalled = mount.leases_recalled(Some(&[ROOT]));
        assert_eq!((recalled.until_told.as_millis(), recalled.untold.as_millis()), (1_050, 0));
        assert_eq!(store.invalidated.take(), [(ROOT, b"a".to_vec()), (ROOT, b"b".to_vec())]);
        assert_eq!(kept(directories::DOTS).await, [0, 0], "what was listed under the lease that ended");
        assert_eq!(kept(0).await, [0, 0], "mounts take turns there");
        store.clock.update(|now_ns| now_ns + 11_000_000_000);
        assert_eq!(kept(0).await, [1_000, 1_000]);
        mount.remove((ROOT, b"b"), false).await.unwrap();
        assert_eq!(
            mount.leases_recalled(Some(&[inos[0], ROOT])).until_told.as_millis(),
            1_050,
            "this mount's changes end nothing"
        );
    });
}

/// P7: the kernel keeps what it knows of the old name for the new one, here from a listing: a lease of a lookup that is over tells no change of it.
#[test]
fn a_name_of_a_listing_that_is_moved_here_is_told() {
    for (lookup_lease_ms, recalled_before) in [(0, false), (1_200, false), (1_400, false), (1_400, true)] {
        let (store, disk, mut tasks) = (store("sliding-window"), SimDisk::new(1), Tasks::default());
        let (mount, _) = mount_with(&store, &disk, 1, false);
        store.create(ROOT, b"file", 0).unwrap();
        tasks.run(async {
            store.lease_ms.set(lookup_lease_ms);
            mount.lookup(0, (ROOT, b"file")).await.unwrap();
            store.clock.update(|now_ns| now_ns + 1_300_000_000);
            store.list_lease_ms.set(2_000);
            let (directory, mut kept_for) = (mount.open_directory(ROOT).await.unwrap(), Duration::ZERO);
            let add = |entry: &ListedEntry<'_>| {
                kept_for = kept_for.max(entry.kept_for);
                false
            };
            mount.read_directory(ROOT, directory, 0, true, add).await.unwrap();
            assert_eq!(kept_for.as_millis(), 1_000, "the kernel keeps the name for so long");
            if recalled_before {
                // The kernel hears of it when the directory is free again: after the move.
                let _ = mount.leases_recalled(Some(&[ROOT]));
            }
            store.invalidated.take();
            mount.rename((ROOT, b"file"), (ROOT, b"moved"), RenameMode::Replace).await.unwrap();
            // The lease of the lookup is over, that on the listing is not, and the kernel keeps the name for 800 ms more.
            store.clock.update(|now_ns| now_ns + 200_000_000);
            let _ = mount.leases_recalled(Some(&[ROOT]));
            let told = store.invalidated.take();
            assert!(
                told.contains(&(ROOT, b"moved".to_vec())),
                "lease of the lookup {lookup_lease_ms} ms: told {told:?}"
            );
        });
    }
}

/// P7: the time for which the kernel keeps an entry counts from the reply. One that waited for a further page would come when the lease is over.
#[test]
fn entries_of_a_listing_do_not_wait_for_the_next_page() {
    let (store, disk, mut tasks) = (store("sliding-window"), SimDisk::new(1), Tasks::default());
    let (mount, _) = mount_with(&store, &disk, 1, false);
    for name in [&b"a"[..], b"b", b"c"] {
        store.create(ROOT, name, 0).unwrap();
    }
    store.list_names.set(2);
    store.list_lease_ms.set(2_000);
    tasks.run(async {
        let directory = mount.open_directory(ROOT).await.unwrap();
        let listed = async |position: u64| {
            let mut names = Vec::new();
            let add = |entry: &ListedEntry<'_>| {
                names.push(String::from_utf8(entry.name.to_vec()).unwrap());
                false
            };
            mount.read_directory(ROOT, directory, position, true, add).await.unwrap();
            names
        };
        assert_eq!(listed(0).await, [".", "..", "a", "b"]);
        assert_eq!(listed(4).await, ["c"]);
        assert!(listed(5).await.is_empty());
        assert_eq!(listed(3).await, ["b", "c"], "both are here");
    });
}

/// P7: as above, where the manager is asked for a file that was committed here since the page came, or an open has a file's state.
#[test]
fn entries_of_a_listing_do_not_wait_for_a_later_one() {
    for is_opened in [false, true] {
        let (store, disk, mut tasks) = (store("sliding-window"), SimDisk::new(1), Tasks::default());
        let (mount, _) = mount_with(&store, &disk, 1, false);
        for name in [&b"a"[..], b"b"] {
            store.create(ROOT, name, 0).unwrap();
        }
        let last = store.create(ROOT, b"c", 0).unwrap();
        store.commit(last, b"before", 0);
        store.list_lease_ms.set(2_000);
        let (opener, opens) = (mount.clone(), Rc::new(Cell::new(false)));
        let begins = opens.clone();
        tasks.spawn(async move {
            while !begins.get() {
                pause().await;
            }
            opener.open(7, last, false).await.unwrap();
        });
        tasks.run(async {
            let directory = mount.open_directory(ROOT).await.unwrap();
            let listed = async |position: u64| {
                let mut kept = Vec::new();
                let add = |entry: &ListedEntry<'_>| {
                    kept.push((String::from_utf8(entry.name.to_vec()).unwrap(), entry.kept_for.as_millis()));
                    false
                };
                mount.read_directory(ROOT, directory, position, true, add).await.unwrap();
                kept
            };
            mount.lookup(0, (ROOT, b"c")).await.unwrap();
            assert_eq!(listed(directories::DOTS).await.len(), 3, "the page is here");
            if is_opened {
                store.open_rounds.set(20);
                opens.set(true);
                pause().await;
            } else {
                write(&mount, last, b"afterwards").await;
                store.get_rounds.set(20);
            }
            assert_eq!(listed(directories::DOTS).await, [("a".into(), 1_000), ("b".into(), 1_000)]);
            assert_eq!(listed(directories::DOTS + 2).await, [("c".into(), 1_000)]);
        });
    }
}

/// P7: as above, where the mount itself is slow.
#[test]
fn a_reply_to_a_listing_ends_once_its_first_entry_is_old() {
    let (store, disk, mut tasks) = (store("sliding-window"), SimDisk::new(1), Tasks::default());
    let (mount, _) = mount_with(&store, &disk, 1, false);
    for name in [&b"a"[..], b"b", b"c", b"d"] {
        store.create(ROOT, name, 0).unwrap();
    }
    tasks.run(async {
        for (lease_ms, listed) in [(2_000, 3), (0, 4)] {
            store.list_lease_ms.set(lease_ms);
            let (directory, mut entries) = (mount.open_directory(ROOT).await.unwrap(), 0);
            let add = |entry: &ListedEntry<'_>| {
                entries += u64::from(entry.shown.is_some());
                store.clock.update(|now_ns| now_ns + 20_000_000);
                false
            };
            mount.read_directory(ROOT, directory, 0, true, add).await.unwrap();
            assert_eq!(entries, listed, "a lease of {lease_ms} ms");
            let _ = mount.leases_recalled(Some(&[ROOT]));
        }
    });
}

/// P7: a kernel that is busy for long hears of some names only when it forgets them by itself.
#[test]
fn a_recall_waits_for_names_of_which_the_kernel_is_not_told() {
    let (store, disk, mut tasks) = (store("sliding-window"), SimDisk::new(1), Tasks::default());
    let (mount, _) = mount_with(&store, &disk, 1, false);
    store.lease_ms.set(60_000);
    let ino = known_file(&mount, &store, &mut tasks);
    let recalled = || mount.leases_recalled(Some(&[ino])).untold.as_millis();
    assert_eq!(recalled(), 0);
    store.takes_no_notices.set(true);
    tasks.run(async { mount.lookup(0, (ROOT, b"file")).await.unwrap() });
    assert_eq!(recalled(), 1_050);
    store.takes_no_notices.set(false);
    store.clock.update(|now_ns| now_ns + 600_000_000);
    assert_eq!(recalled(), 450, "the name of before waits still");
    store.clock.update(|now_ns| now_ns + 450_000_000);
    assert_eq!(recalled(), 0);
}

/// P7: the kernel keeps what it knows of the old name for the new one, and no recall need come before a program uses it.
#[test]
fn a_rename_waits_for_a_target_of_which_the_kernel_is_not_told() {
    let (store, disk, mut tasks) = (store("sliding-window"), SimDisk::new(1), Tasks::default());
    let (mount, _) = mount_with(&store, &disk, 1, false);
    store.create(ROOT, b"0", 0).unwrap();
    tasks.run(async {
        for (from, to, takes_no_notices, slept_ms) in [(b"0", b"1", false, 0), (b"1", b"2", true, 1_050)] {
            store.takes_no_notices.set(takes_no_notices);
            mount.rename((ROOT, from), (ROOT, to), RenameMode::Replace).await.unwrap();
            assert_eq!(store.slept.take().as_millis(), slept_ms, "notices are dropped: {takes_no_notices}");
        }
    });
}

/// The manager recalls a limited number of the listings that show a file.
#[test]
fn attributes_that_a_listing_tells_of_a_file_with_very_many_names_are_not_kept() {
    let (store, disk, mut tasks) = (store("sliding-window"), SimDisk::new(1), Tasks::default());
    let (mount, _) = mount_with(&store, &disk, 1, false);
    store.create(ROOT, b"file", 0).unwrap();
    store.list_lease_ms.set(2_000);
    tasks.run(async {
        for (links, kept_ms) in [(63, 1_000), (64, 0)] {
            store.links.set(links);
            let (directory, mut kept) = (mount.open_directory(ROOT).await.unwrap(), Vec::new());
            let add = |entry: &ListedEntry<'_>| {
                kept.extend(entry.shown.as_ref().map(|_| entry.kept_for.as_millis()));
                false
            };
            mount.read_directory(ROOT, directory, 0, true, add).await.unwrap();
            assert_eq!(kept, [kept_ms], "{links} other names");
        }
    });
}
