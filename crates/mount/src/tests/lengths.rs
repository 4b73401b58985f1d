//! Lengths of files that another mount writes while they are open here.

use super::*;

const OTHER: &[u8] = b"of another mount";

/// A file that was `before` when a program opened it for writing, and that another mount has written since.
struct Scene {
    store: Rc<Store>,
    mount: Arc<Mount<Client>>,
    tasks: Tasks,
    ino: u64,
    handle: u64,
}

impl Scene {
    fn new(write_mode: &str, before: &[u8]) -> Scene {
        let (store, disk, mut tasks) = (store(write_mode), SimDisk::new(1), Tasks::default());
        let (mount, queues) = mount(&store, &disk, 1);
        start_pushes(&mut tasks, &mount, queues);
        tasks.spawn(run_drains(store.clone()));
        let ino = store.create(ROOT, b"file", 0).unwrap();
        if !before.is_empty() {
            store.commit(ino, before, 0);
        }
        let opened = tasks.run(async {
            mount.lookup(0, (ROOT, b"file")).await.unwrap();
            mount.open(1, ino, true).await.unwrap()
        });
        store.commit(ino, OTHER, 0);
        Scene { store, mount, tasks, ino, handle: opened.handle }
    }

    fn set_length(&mut self, size: u64) {
        self.tasks.run(self.mount.set_attributes(self.ino, NewAttr::default(), Some(size))).unwrap();
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) {
        self.tasks.run(self.mount.write(self.handle, offset, bytes)).unwrap();
    }

    fn sync(&mut self) {
        self.tasks.run(self.mount.fsync(self.handle)).unwrap();
    }

    /// Content of the file after the close.
    fn close(mut self) -> Vec<u8> {
        self.tasks.run(async {
            self.mount.flush(self.ino, self.handle, OWNER).await.unwrap();
            self.mount.release(self.ino, self.handle).await;
            until_pushed(&self.mount).await;
        });
        assert_eq!(self.store.list(ROOT).len(), 1, "nothing is kept beside it");
        self.store.current(self.ino).bytes
    }
}

const MODES: [&str; 3] = ["sliding-window", "incremental", "complete-local"];

/// Every write mode with each of the contents.
fn cases<const N: usize>(contents: [&'static [u8]; N]) -> impl Iterator<Item = (&'static str, &'static [u8])> {
    MODES.into_iter().flat_map(move |mode| contents.map(|before| (mode, before)))
}

#[test]
fn a_length_that_a_program_sets_holds_over_what_another_mount_wrote_since() {
    for (mode, before) in cases([&b""[..], b"before", b"before them"]) {
        for writes in [false, true] {
            let mut scene = Scene::new(mode, before);
            scene.set_length(6);
            if writes {
                scene.write(0, b"mine");
            }
            // In the mode complete-local a close keeps the file beside the other version.
            scene.sync();
            let expected = if writes { b"minenother mount" } else { OTHER };
            assert_eq!(scene.close(), &expected[..6], "{mode}, {before:?}, {writes}");
        }
    }
}

/// Or another mount's version between the two is cut off by the second.
#[test]
fn what_is_written_and_cut_off_becomes_one_version() {
    for (mode, durability) in
        [("incremental", "optimistic"), ("incremental", "pessimistic"), ("sliding-window", "pessimistic")]
    {
        // A long write goes to the session at once.
        for len in [4, (4 << 20) + 1] {
            let before = vec![b'b'; len + 100];
            let (store, disk, mut tasks) = (store(mode), SimDisk::new(1), Tasks::default());
            store.set_hint("durability", durability);
            let (mount, queues) = mount(&store, &disk, 1);
            start_pushes(&mut tasks, &mount, queues);
            tasks.spawn(run_drains(store.clone()));
            let ino = store.create(ROOT, b"file", 0).unwrap();
            store.commit(ino, &before, 0);
            tasks.run(async {
                mount.lookup(0, (ROOT, b"file")).await.unwrap();
                let handle = mount.open(1, ino, true).await.unwrap().handle;
                // Its session stays open.
                mount.write(handle, 1, b"x").await.unwrap();
                mount.fsync(handle).await.unwrap();
                let versions = store.versions(ino);
                mount.set_attributes(ino, NewAttr::default(), Some(len as u64 + 10)).await.unwrap();
                mount.write(handle, 0, &vec![b'w'; len]).await.unwrap();
                mount.flush(ino, handle, OWNER).await.unwrap();
                mount.release(ino, handle).await;
                until_pushed(&mount).await;
                assert_eq!(store.versions(ino), versions + 1, "{mode} {durability} {len}");
            });
            assert_eq!(store.current(ino).bytes, [vec![b'w'; len], before[len..len + 10].to_vec()].concat());
        }
    }
}

/// As editors do: the whole file, then its length.
#[test]
fn a_length_that_the_writes_gave_already_holds_too() {
    for mode in MODES {
        let mut scene = Scene::new(mode, b"");
        scene.write(0, b"mine!!");
        scene.set_length(6);
        scene.sync();
        assert_eq!(scene.close(), b"mine!!", "{mode}");
    }
}

#[test]
fn a_length_holds_for_one_version() {
    for mode in MODES {
        let mut scene = Scene::new(mode, b"");
        scene.set_length(0);
        scene.write(0, b"mine");
        scene.sync();
        scene.store.commit(scene.ino, OTHER, 0);
        scene.write(0, b"MINE");
        scene.sync();
        assert_eq!(scene.close(), b"MINEnother mount", "{mode}");
    }
}

/// The other mount's bytes end with the length that was set, also where nothing was written over them.
#[test]
fn a_gap_behind_a_length_that_was_set_reads_as_zeros() {
    for mode in MODES {
        let mut scene = Scene::new(mode, b"");
        scene.set_length(2);
        scene.write(5, b"mine");
        scene.sync();
        assert_eq!(scene.close(), b"of\0\0\0mine", "{mode}");
    }
}

#[test]
fn a_file_that_is_truncated_to_nothing_is_empty_without_a_write() {
    for mode in MODES {
        let mut scene = Scene::new(mode, b"");
        scene.set_length(0);
        assert_eq!(scene.close(), b"", "{mode}");
    }
}

/// `fallocate` makes a file longer, and never shorter.
#[test]
fn an_allocation_keeps_what_another_mount_wrote_behind_it() {
    for mode in MODES {
        let mut scene = Scene::new(mode, b"");
        scene.tasks.run(scene.mount.allocate(scene.handle, 0, 6, 0)).unwrap();
        scene.write(0, b"mine");
        scene.sync();
        assert_eq!(scene.close(), b"minenother mount", "{mode}");
        let mut scene = Scene::new(mode, b"");
        scene.tasks.run(scene.mount.allocate(scene.handle, 10, 10, 0)).unwrap();
        scene.sync();
        assert_eq!(scene.close(), b"of another mount\0\0\0\0", "{mode}");
    }
}

/// A program that keeps its handle reads, and appends to, the file as it was committed.
#[test]
fn a_commit_over_another_mounts_version_brings_its_length() {
    for mode in MODES {
        let mut scene = Scene::new(mode, b"");
        scene.write(0, b"mine");
        scene.sync();
        let shown = scene.tasks.run(scene.mount.attributes(0, scene.ino)).unwrap().size_bytes;
        assert_eq!(shown, OTHER.len() as u64, "{mode}");
        let read = scene.tasks.run(scene.mount.read(scene.handle, 0, 100)).unwrap();
        assert_eq!(read, b"minenother mount", "{mode}");
        scene.write(shown, b"...");
        assert_eq!(scene.close(), b"minenother mount...", "{mode}");
    }
}

/// What was never closed is no conflict: each mount's parts belong to the file.
#[test]
fn parts_that_several_mounts_write_to_a_new_file_are_all_kept() {
    for mode in MODES {
        let mut scene = Scene::new(mode, b"");
        scene.write(20, b"mine");
        scene.sync();
        assert_eq!(scene.close(), b"of another mount\0\0\0\0mine", "{mode}");
    }
}

/// A log goes on while its first part is pushed; then another mount empties the file: no byte and no length of the first part comes back.
#[test]
fn what_was_pushed_already_is_not_written_again() {
    for (offset, bytes, expected) in [(6, &b"mine"[..], &b"\0\0\0\0\0\0mine"[..]), (0, b"A", b"A")] {
        let (store, disk, mut tasks) = (store("complete-local"), SimDisk::new(1), Tasks::default());
        let (mount, queues) = mount(&store, &disk, 1);
        start_pushes(&mut tasks, &mount, queues);
        let ino = store.create(ROOT, b"file", 0).unwrap();
        store.commit_rounds.set(10);
        tasks.run(async {
            write(&mount, ino, b"pushed").await;
            while store.versions(ino) == 0 {
                pause().await;
            }
            let handle = mount.open(1, ino, true).await.unwrap().handle;
            mount.write(handle, offset, bytes).await.unwrap();
            while mount.stats().spool.unwrap().pushed == 0 {
                pause().await;
            }
            store.commit(ino, b"", 0);
            mount.fsync(handle).await.unwrap();
            mount.release(ino, handle).await;
        });
        assert_eq!(store.current(ino).bytes, expected);
    }
}

/// As above, and the first part is an allocation.
#[test]
fn an_allocation_that_was_pushed_already_makes_the_file_no_longer() {
    let (store, disk, mut tasks) = (store("complete-local"), SimDisk::new(1), Tasks::default());
    let (mount, queues) = mount(&store, &disk, 1);
    start_pushes(&mut tasks, &mount, queues);
    let ino = store.create(ROOT, b"file", 0).unwrap();
    store.commit_rounds.set(10);
    tasks.run(async {
        let handle = mount.open(1, ino, true).await.unwrap().handle;
        mount.allocate(handle, 0, 6, 0).await.unwrap();
        mount.flush(ino, handle, OWNER).await.unwrap();
        mount.release(ino, handle).await;
        while store.versions(ino) == 0 {
            pause().await;
        }
        let handle = mount.open(1, ino, true).await.unwrap().handle;
        mount.write(handle, 0, b"A").await.unwrap();
        while mount.stats().spool.unwrap().pushed == 0 {
            pause().await;
        }
        store.commit(ino, b"", 0);
        mount.fsync(handle).await.unwrap();
        mount.release(ino, handle).await;
    });
    assert_eq!(store.current(ino).bytes, b"A");
}

/// `cp new old`: the kernel hands over the pages in any order, and nothing is visible before the close. What another mount
/// commits meanwhile is cut off.
#[test]
fn a_file_that_is_replaced_shows_no_part_before_the_close_and_no_byte_of_another_mount() {
    for (mode, before) in cases([&b""[..], b"before them"]) {
        for offsets in [[0, 4], [4, 0]] {
            let mut scene = Scene::new(mode, before);
            scene.set_length(0);
            for at in offsets {
                let version = scene.store.current(scene.ino).id;
                scene.write(at, &b"minethem"[at as usize..at as usize + 4]);
                assert_eq!(scene.store.current(scene.ino).id, version, "{mode}, {before:?}, {offsets:?}");
                if mode != "complete-local" {
                    // There a close would keep the file beside the other version.
                    scene.store.commit(scene.ino, OTHER, 0);
                }
            }
            scene.sync();
            assert_eq!(scene.close(), b"minethem", "{mode}, {before:?}, {offsets:?}");
        }
    }
}

#[test]
fn what_is_behind_a_length_that_was_set_does_not_show_again_when_the_file_grows() {
    for (mode, before) in cases([&b""[..], b"before", b"before of all of them"]) {
        for allocates in [false, true] {
            let mut scene = Scene::new(mode, before);
            scene.set_length(2);
            match allocates {
                false => scene.set_length(8),
                true => scene.tasks.run(scene.mount.allocate(scene.handle, 0, 8, 0)).unwrap(),
            }
            scene.sync();
            assert_eq!(scene.close(), b"of\0\0\0\0\0\0", "{mode}, {before:?}, {allocates}");
        }
    }
}

/// A program makes the file shorter on another mount; a write here does not bring the length back.
#[test]
fn a_write_does_not_undo_a_truncate_of_another_mount() {
    for mode in MODES {
        let mut scene = Scene::new(mode, b"before, and quite long");
        scene.write(0, b"mine");
        scene.store.commit(scene.ino, b"cut of", 0);
        scene.sync();
        assert_eq!(scene.close(), b"mineof", "{mode}");
    }
}

/// A program keeps its handle; after a commit here the next read opens the current version.
#[test]
fn what_another_mount_cut_off_does_not_read_as_zeros() {
    for mode in ["sliding-window", "incremental"] {
        let mut scene = Scene::new(mode, b"before");
        scene.write(0, b"mine");
        scene.sync();
        scene.store.commit(scene.ino, b"be", 0);
        let read = scene.tasks.run(scene.mount.read(scene.handle, 0, 100)).unwrap();
        assert_eq!(read, b"be", "{mode}");
        assert_eq!(scene.tasks.run(scene.mount.attributes(0, scene.ino)).unwrap().size_bytes, 2, "{mode}");
    }
}

/// As above, with bytes that are in no version yet.
#[test]
fn what_is_written_here_lies_over_what_another_mount_left() {
    for mode in ["sliding-window", "incremental"] {
        for (at, expected) in [(0, &b"mine"[..]), (1, b"bmine"), (4, b"be\0\0mine")] {
            let mut scene = Scene::new(mode, b"before");
            scene.write(0, b"before and more");
            scene.sync();
            scene.store.commit(scene.ino, b"be", 0);
            scene.write(at, b"mine");
            let read = scene.tasks.run(scene.mount.read(scene.handle, 0, 100)).unwrap();
            assert_eq!(read, expected, "{mode}, {at}");
            assert_eq!(scene.close(), expected, "{mode}, {at}");
        }
    }
}

/// A session stays open over commits, and knows the length of before.
#[test]
fn an_allocation_holds_after_another_mount_cut_the_file_off() {
    for mode in ["sliding-window", "incremental"] {
        let mut scene = Scene::new(mode, b"before");
        scene.write(0, b"mine");
        scene.sync();
        scene.write(0, b"M");
        scene.store.commit(scene.ino, b"be", 0);
        assert_eq!(scene.tasks.run(scene.mount.read(scene.handle, 0, 100)).unwrap(), b"Me", "{mode}");
        scene.tasks.run(scene.mount.allocate(scene.handle, 0, 8, 0)).unwrap();
        scene.sync();
        assert_eq!(scene.close(), b"Me\0\0\0\0\0\0", "{mode}");
    }
}

/// The other mount's commit comes between the open of the session and the commit here.
#[test]
fn an_allocation_holds_if_another_mount_cuts_the_file_off_meanwhile() {
    for mode in MODES {
        let mut scene = Scene::new(mode, b"before");
        scene.tasks.run(scene.mount.allocate(scene.handle, 0, 10, 0)).unwrap();
        scene.store.commit_waits.set(20);
        let (store, ino) = (scene.store.clone(), scene.ino);
        scene.tasks.spawn(async move {
            for _ in 0..10 {
                pause().await;
            }
            store.commit(ino, b"be", 0);
        });
        scene.sync();
        assert_eq!(scene.close(), b"be\0\0\0\0\0\0\0\0", "{mode}");
    }
}

/// The commit that a read needs first brings the other mount's length.
#[test]
fn a_read_that_commits_first_ends_where_the_version_ends() {
    let mut scene = Scene::new("sliding-window", b"before");
    let long = vec![7; 5 << 20];
    scene.write(0, &long);
    scene.sync();
    scene.store.commit(scene.ino, b"be", 0);
    scene.write(0, &long);
    let read = scene.tasks.run(scene.mount.read(scene.handle, 0, 6 << 20)).unwrap();
    assert!(read == long);
    scene.store.commit(scene.ino, b"be", 0);
    let read = scene.tasks.run(scene.mount.read(scene.handle, 0, 6 << 20)).unwrap();
    assert!(read == long || read == b"be", "{} bytes", read.len());
}

/// A new file that is written forwards, and then from an early offset on, more than waits in the buffer for the gap before it to be
/// filled. Its session only goes forward: to go back it commits, and the bytes that made it do so are in no version then.
fn write_that_goes_back(mode: &str, allocated_bytes: u64, appended: &[u8]) -> (u64, Vec<u8>) {
    let (store, disk, mut tasks) = (store(mode), SimDisk::new(1), Tasks::default());
    let (mount, queues) = mount(&store, &disk, 1);
    start_pushes(&mut tasks, &mount, queues);
    tasks.spawn(run_drains(store.clone()));
    let ino = store.create(ROOT, b"file", 0).unwrap();
    tasks.run(async {
        mount.lookup(0, (ROOT, b"file")).await.unwrap();
        let handle = mount.open(1, ino, true).await.unwrap().handle;
        mount.set_attributes(ino, NewAttr::default(), Some(0)).await.unwrap();
        mount.write(handle, 0, &vec![1; 6 << 20]).await.unwrap();
        mount.allocate(handle, 0, allocated_bytes, 0).await.unwrap();
        mount.write(handle, 1 << 20, &vec![2; 33 << 20]).await.unwrap();
        assert_eq!(store.versions(ino), 1, "the session has gone back");
        let shown = mount.attributes(0, ino).await.unwrap().size_bytes;
        if !appended.is_empty() {
            mount.append(handle, shown, appended).await.unwrap();
        }
        mount.flush(ino, handle, OWNER).await.unwrap();
        mount.release(ino, handle).await;
        until_pushed(&mount).await;
        (shown, store.current(ino).bytes)
    })
}

/// An append must not overwrite what no version has.
#[test]
fn a_length_does_not_fall_back_when_a_write_goes_back() {
    for mode in ["sliding-window", "incremental"] {
        for allocated_bytes in [1, 40 << 20] {
            for appended in [&b""[..], b"end"] {
                let (shown, bytes) = write_that_goes_back(mode, allocated_bytes, appended);
                assert_eq!(shown, allocated_bytes.max(34 << 20), "{mode}");
                let mut expected = [vec![1; 1 << 20], vec![2; 33 << 20]].concat();
                expected.resize(shown as usize, 0);
                expected.extend(appended);
                assert!(bytes == expected, "{mode}, {allocated_bytes}: {} bytes", bytes.len());
            }
        }
    }
}

/// A program truncates a file that is empty already, and syncs it, as docs/mount.md asks before others write to it.
#[test]
fn what_another_mount_writes_after_a_truncate_was_synced_stays() {
    for mode in MODES {
        for writes in [false, true] {
            let (store, disk, mut tasks) = (store(mode), SimDisk::new(1), Tasks::default());
            let (mount, queues) = mount(&store, &disk, 1);
            start_pushes(&mut tasks, &mount, queues);
            tasks.spawn(run_drains(store.clone()));
            let ino = store.create(ROOT, b"file", 0).unwrap();
            tasks.run(async {
                mount.lookup(0, (ROOT, b"file")).await.unwrap();
                let handle = mount.open(1, ino, true).await.unwrap().handle;
                mount.set_attributes(ino, NewAttr::default(), Some(0)).await.unwrap();
                mount.fsync(handle).await.unwrap();
                store.commit(ino, OTHER, 0);
                if writes {
                    mount.write(handle, 0, b"mine").await.unwrap();
                }
                mount.fsync(handle).await.unwrap();
                mount.flush(ino, handle, OWNER).await.unwrap();
                mount.release(ino, handle).await;
                until_pushed(&mount).await;
            });
            let expected = if writes { &b"minenother mount"[..] } else { OTHER };
            assert_eq!(store.current(ino).bytes, expected, "{mode}, {writes}");
        }
    }
}

/// As above, but the other mount wrote before the sync.
#[test]
fn what_another_mount_wrote_before_a_truncate_is_synced_is_cut_off() {
    for mode in MODES {
        let (store, disk, mut tasks) = (store(mode), SimDisk::new(1), Tasks::default());
        let (mount, _) = mount(&store, &disk, 1);
        let ino = store.create(ROOT, b"file", 0).unwrap();
        tasks.run(async {
            mount.lookup(0, (ROOT, b"file")).await.unwrap();
            let handle = mount.open(1, ino, true).await.unwrap().handle;
            mount.set_attributes(ino, NewAttr::default(), Some(0)).await.unwrap();
            store.commit(ino, OTHER, 0);
            mount.fsync(handle).await.unwrap();
        });
        assert_eq!(store.current(ino).bytes, b"", "{mode}");
    }
}
