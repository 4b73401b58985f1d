//! Files that this mount creates before the manager knows them.

use super::*;
use tessera_client::{Owner, Times};

#[test]
fn a_recalled_delegation_is_answered_once_the_manager_knows_the_new_files() {
    let (store, disk, mut tasks) = (store("sliding-window"), SimDisk::new(1), Tasks::default());
    let (mount, _) = mount(&store, &disk, 1);
    let directory = tasks.run(mount.make_directory(CALLER, (ROOT, b"d"), 0o755)).unwrap().attr.ino;
    tasks.run(mount.create(CALLER, (directory, b"new"), 0o644, true, true)).unwrap();
    assert!(store.list(directory).is_empty(), "the manager does not know the file yet");
    tasks.spawn(driver::work(Arc::downgrade(&mount)));
    store.holds_creates.set(true);
    let answered = Arc::<AtomicBool>::default();
    let answer = answered.clone();
    mount.namespace.delegation_recalled(vec![directory], Box::new(move || answer.store(true, Ordering::Release)));
    let wait = async || {
        for _ in 0..100 {
            pause().await;
        }
    };
    tasks.run(wait());
    assert!(!answered.load(Ordering::Acquire));
    store.holds_creates.set(false);
    tasks.run(wait());
    assert!(answered.load(Ordering::Acquire));
    assert_eq!(store.list(directory)[0].0, "new");
}

/// As `cp -a` and tar do: owner, mode and times are set before the file is closed.
#[test]
fn the_attributes_of_a_new_file_travel_with_its_first_version() {
    for content in [&b"content"[..], b""] {
        let (store, disk, mut tasks) = (store("sliding-window"), SimDisk::new(1), Tasks::default());
        let (mount, _) = mount(&store, &disk, 1);
        let directory = tasks.run(mount.make_directory(CALLER, (ROOT, b"d"), 0o755)).unwrap().attr.ino;
        tasks.run(async {
            let (entry, opened) = mount.create(CALLER, (directory, b"new"), 0o600, true, true).await.unwrap();
            let ino = entry.attr.ino;
            if !content.is_empty() {
                mount.write(opened.handle, 0, content).await.unwrap();
            }
            let times = NewAttr { mtime_ns: Some(5_000), atime_ns: Some(6_000), ..NewAttr::default() };
            let owner = NewAttr { uid: Some(7), gid: Some(8), ctime_ns: Some(9_000), ..NewAttr::default() };
            let mode = NewAttr { mode: Some(0o4751), ctime_ns: Some(9_001), ..NewAttr::default() };
            for new in [times, owner, mode] {
                mount.set_attributes(ino, new, None).await.unwrap();
            }
            let shown = mount.attributes(0, ino).await.unwrap();
            assert_eq!((shown.mtime_ns, shown.ctime_ns, shown.atime_ns), (5_000, 9_001, 6_000));
            assert_eq!((shown.mode, shown.uid, shown.gid), (0o4751, 7, 8));
            assert!(store.list(directory).is_empty(), "the manager does not know the file yet");
            mount.flush(ino, opened.handle, OWNER).await.unwrap();
            mount.release(ino, opened.handle).await;
        });
        let owner = Owner { mode: 0o4751, uid: 7, gid: 8 };
        let times = Times { mtime_ns: 5_000, ctime_ns: 9_001, atime_ns: 6_000 };
        assert_eq!((store.made.get(), store.set_attrs.get()), (Some((owner, times)), 0), "{content:?}");
    }
}

/// Another mount has just given the file the name to which it is to be moved: POSIX rename then does nothing, and both names stay.
#[test]
fn a_rename_between_two_names_of_one_file_leaves_both() {
    let (store, disk, mut tasks) = (store("sliding-window"), SimDisk::new(1), Tasks::default());
    let (mount, _) = mount(&store, &disk, 1);
    tasks.run(async {
        let directory = mount.make_directory(CALLER, (ROOT, b"d"), 0o755).await.unwrap().attr.ino;
        let (entry, opened) = mount.create(CALLER, (directory, b"a"), 0o644, true, true).await.unwrap();
        let ino = entry.attr.ino;
        mount.write(opened.handle, 0, b"content").await.unwrap();
        mount.flush(ino, opened.handle, OWNER).await.unwrap();
        mount.release(ino, opened.handle).await;
        store.names.borrow_mut().insert((ROOT, b"b".to_vec()), ino);
        store.links.set(1);
        mount.rename((directory, b"a"), (ROOT, b"b"), Default::default()).await.unwrap();
        assert_eq!(store.list(directory), [("a".to_owned(), ino)]);
        assert_eq!(mount.lookup(0, (directory, b"a")).await.map(|shown| shown.attr.ino), Ok(ino));
    });
}

/// The connection is lost while the first commit is on its way, and no manager answers it or what follows it for a while.
#[test]
fn a_new_file_whose_commit_nobody_answered_is_still_there() {
    let (store, disk, mut tasks) = (store("sliding-window"), SimDisk::new(1), Tasks::default());
    let (mount, _) = mount(&store, &disk, 1);
    let directory = tasks.run(mount.make_directory(CALLER, (ROOT, b"d"), 0o755)).unwrap().attr.ino;
    let (entry, opened) = tasks.run(mount.create(CALLER, (directory, b"new"), 0o644, true, true)).unwrap();
    let (ino, handle) = (entry.attr.ino, opened.handle);
    tasks.run(mount.write(handle, 0, b"content")).unwrap();
    store.holds_creates.set(true);
    store.silent_creates.set(2);
    let writer = mount.clone();
    tasks.spawn(async move { _ = writer.fsync(handle).await });
    let looked = Arc::<std::sync::Mutex<Option<Result<u64, Errno>>>>::default();
    let (looker, found) = (mount.clone(), looked.clone());
    tasks.run(async {
        for _ in 0..10 {
            pause().await;
        }
        mount.leases_recalled(None);
    });
    tasks.spawn(async move {
        let shown = looker.lookup(0, (directory, b"new")).await.map(|shown| shown.attr.ino);
        *found.lock().unwrap() = Some(shown);
    });
    tasks.run(async {
        for _ in 0..10 {
            pause().await;
        }
        store.holds_creates.set(false);
        for _ in 0..100 {
            pause().await;
        }
    });
    assert!(mount.namespace.with(|core, _| core.deferred.entry(ino).is_some()), "the mount still holds the new file");
    assert_eq!(*looked.lock().unwrap(), Some(Ok(ino)));
}
