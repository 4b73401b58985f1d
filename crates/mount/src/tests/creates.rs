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
