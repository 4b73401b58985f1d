//! Handles that read and write without the kernel's pages.

use super::*;

/// What the kernel holds of a file that changes it may have read before a change.
#[test]
fn whatever_may_change_is_not_read_through_the_kernels_pages() {
    let (store, disk, mut tasks) = (store("sliding-window"), SimDisk::new(1), Tasks::default());
    let (mount, _) = mount_with(&store, &disk, 1, false);
    let ino = known_file(&mount, &store, &mut tasks);
    tasks.run(async {
        let reader = mount.open(5, ino, false).await.unwrap();
        assert!(!reader.direct, "nobody changes it");
        let writer = mount.open(6, ino, true).await.unwrap();
        assert!(writer.direct);
        assert!(mount.open(7, ino, false).await.unwrap().direct, "a program writes it");
        mount.flush(ino, writer.handle, OWNER).await.unwrap();
        assert!(!mount.open(7, ino, false).await.unwrap().direct, "it has closed the file");
        assert!(mount.create(CALLER, (ROOT, b"new"), 0o644, true, true).await.unwrap().1.direct);
    });
}

/// The kernel may read a page again between the moment when a write gives it up and the write.
#[test]
fn what_is_read_beside_a_write_is_dropped_after_it() {
    let (store, disk, mut tasks) = (store("sliding-window"), SimDisk::new(1), Tasks::default());
    let (mount, _) = mount_with(&store, &disk, 1, false);
    let ino = known_file(&mount, &store, &mut tasks);
    tasks.run(async {
        let reader = mount.open(5, ino, false).await.unwrap().handle;
        let writer = mount.open(6, ino, true).await.unwrap().handle;
        store.dropped_from.take();
        mount.write(writer, 0, b"b").await.unwrap();
        assert_eq!(store.dropped_from.take(), [], "the kernel has no page");
        mount.read(reader, 0, 4096).await.unwrap();
        mount.write(writer, 3, b"o").await.unwrap();
        assert_eq!(store.dropped_from.take(), [(ino, 3)]);
        mount.write_page(writer, 0, b"before").await.unwrap();
        assert_eq!(store.dropped_from.take(), [], "the kernel holds the page until it is written");
    });
}

/// A read that does not end keeps the kernel from dropping a page.
#[test]
fn pages_that_were_not_dropped_are_not_kept() {
    let (store, disk, mut tasks) = (store("sliding-window"), SimDisk::new(1), Tasks::default());
    let (mount, _) = mount_with(&store, &disk, 1, false);
    let ino = known_file(&mount, &store, &mut tasks);
    tasks.run(async {
        mount.open(5, ino, false).await.unwrap();
        store.commit(ino, b"BEFORE", 0);
        store.pages_stay.set(true);
        let opened = open_as_kernel(&mount, 6, ino, false).await;
        assert!(opened.direct && !opened.keep_cache);
        store.clock.set(60_000_000_000);
        let opened = open_as_kernel(&mount, 6, ino, false).await;
        assert!(opened.direct && !opened.keep_cache, "also when no other mount changes the file any more");
        store.pages_stay.set(false);
        open_as_kernel(&mount, 6, ino, false).await;
        let opened = open_as_kernel(&mount, 6, ino, false).await;
        assert!(!opened.direct && opened.keep_cache);
    });
}

/// The kernel appends at the end that it knows, and another mount has moved it.
#[test]
fn an_append_goes_to_the_end_wherever_the_kernel_believes_it() {
    for mode in ["sliding-window", "complete-local"] {
        let (store, disk, mut tasks) = (store(mode), SimDisk::new(1), Tasks::default());
        let (mount, _) = mount_with(&store, &disk, 1, false);
        let ino = known_file(&mount, &store, &mut tasks);
        tasks.run(async {
            store.commit(ino, b"before and", 0);
            let opened = open_as_kernel(&mount, 7, ino, true).await;
            mount.append(opened.handle, 6, b" after").await.unwrap();
            mount.append(opened.handle, 12, b" that").await.unwrap();
            assert_eq!(mount.read(opened.handle, 0, 100).await.unwrap(), b"before and after that", "{mode}");
            mount.fsync(opened.handle).await.unwrap();
            assert_eq!(mount.open(8, ino, true).await, Err(Errno::ESTALE), "the kernel does not know the end");
        });
    }
}
