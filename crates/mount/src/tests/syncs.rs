//! Files that are synced again and again.

use super::*;

/// The client keeps a note of each chunk that a session has written, and looks through them at each commit.
#[test]
fn a_file_that_stays_open_and_is_synced_often_is_written_by_more_than_one_session() {
    let (store, disk, mut tasks) = (store("sliding-window"), SimDisk::new(1), Tasks::default());
    let (mount, _) = mount(&store, &disk, 1);
    let ino = store.create(ROOT, b"file", 0).unwrap();
    // Longer than what a mount keeps to commit it as a whole.
    let (begin_bytes, syncs) = (100_000, 3_000);
    let bytes: Vec<u8> = (0..begin_bytes + syncs).map(|at| (at % 251) as u8).collect();
    tasks.run(async {
        let handle = mount.open(1, ino, true).await.unwrap().handle;
        mount.write(handle, 0, &bytes[..begin_bytes]).await.unwrap();
        for (at, byte) in bytes.iter().enumerate().skip(begin_bytes) {
            mount.write(handle, at as u64, &[*byte]).await.unwrap();
            mount.fsync(handle).await.unwrap();
        }
    });
    assert!(store.current(ino).bytes == bytes && store.versions(ino) == syncs);
    let most = store.most_chunks.get();
    assert!(most < 1_100, "a session wrote {most} chunks");
}

/// As journals and small databases are.
#[test]
fn a_small_file_that_is_synced_again_is_committed_as_a_whole() {
    let (store, disk, mut tasks) = (store("sliding-window"), SimDisk::new(1), Tasks::default());
    let (mount, _) = mount(&store, &disk, 1);
    let ino = store.create(ROOT, b"file", 0).unwrap();
    let mut model = b"a page, and its header".to_vec();
    tasks.run(async {
        let handle = mount.open(1, ino, true).await.unwrap().handle;
        mount.write(handle, 0, &model).await.unwrap();
        mount.fsync(handle).await.unwrap();
        for (at, bytes) in [(2, &b"PAGE"[..]), (30, b"behind a gap"), (64 << 10, b"long")] {
            mount.write(handle, at as u64, bytes).await.unwrap();
            model.resize(model.len().max(at + bytes.len()), 0);
            model[at..at + bytes.len()].copy_from_slice(bytes);
            mount.fsync(handle).await.unwrap();
            assert!(store.current(ino).bytes == model);
        }
        assert_eq!((store.versions(ino), store.sessions.get()), (4, 1), "only the long file needs a session");
    });
}

#[test]
fn a_sync_of_a_small_file_goes_over_what_another_mount_committed() {
    for content in [&b"ANOTHER MOUNT WROTE MORE"[..], b"LESS"] {
        let (store, disk, mut tasks) = (store("sliding-window"), SimDisk::new(1), Tasks::default());
        let (mount, _) = mount(&store, &disk, 1);
        let ino = store.create(ROOT, b"file", 0).unwrap();
        tasks.run(async {
            let handle = mount.open(1, ino, true).await.unwrap().handle;
            mount.write(handle, 0, b"the first mount").await.unwrap();
            mount.fsync(handle).await.unwrap();
            store.commit(ino, content, 0);
            mount.write(handle, 0, b"TH").await.unwrap();
            mount.fsync(handle).await.unwrap();
        });
        assert_eq!(store.current(ino).bytes, [b"TH", &content[2..]].concat());
    }
}
