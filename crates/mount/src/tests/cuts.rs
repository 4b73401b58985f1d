//! Files that are cut off while programs read them through the kernel's pages. The kernel has zeros behind an answer that is shorter
//! than the file that it knows.

use super::*;
use tessera_wire::meta::{FileLock, LockFamily, LockMode};

/// A file that the kernel knows with 6 bytes, and a handle of a program that reads it through the kernel's pages.
fn read_file(write_mode: &str) -> (Rc<Store>, Arc<Mount<Client>>, Tasks, u64, u64) {
    let (store, disk, mut tasks) = (store(write_mode), SimDisk::new(1), Tasks::default());
    let (mount, queues) = mount_with(&store, &disk, 1, false);
    start_pushes(&mut tasks, &mount, queues);
    let ino = known_file(&mount, &store, &mut tasks);
    let kept = tasks.run(mount.open(5, ino, false)).unwrap();
    assert!(!kept.direct);
    store.clock.set(1);
    (store, mount, tasks, ino, kept.handle)
}

/// Sets the length as a program does, by a request of the kernel.
async fn cut(mount: &Mount<Client>, ino: u64, size_bytes: u64) {
    let cut = mount.begin_cut(ino);
    mount.set_attributes(ino, NewAttr::default(), Some(size_bytes)).await.unwrap();
    mount.end_cut(cut).await;
}

/// A program on this mount writes what another one then reads. Before, another mount has cut the file off, and the kernel has not
/// taken the length over yet.
#[test]
fn what_was_written_here_is_not_read_as_before_it() {
    for write_mode in ["sliding-window", "complete-local"] {
        let (store, mount, mut tasks, ino, kept) = read_file(write_mode);
        tasks.run(async {
            store.commit(ino, b"BE", 0);
            let writer = open_as_kernel(&mount, 6, ino, true).await.handle;
            mount.write(writer, 0, b"XX").await.unwrap();
            assert_eq!(mount.read(kept, 0, 100).await.unwrap()[..2], *b"XX", "{write_mode}");
            mount.fsync(writer).await.unwrap();
            assert_eq!(mount.read(kept, 0, 100).await.unwrap()[..2], *b"XX", "{write_mode}");
        });
    }
}

/// The kernel knows of the first cut, and not of the second.
#[test]
fn a_cut_that_the_kernel_knows_does_not_stand_for_the_next_one() {
    let (store, mount, mut tasks, ino, kept) = read_file("sliding-window");
    tasks.run(async {
        cut(&mount, ino, 4).await;
        // Reads around the kernel's pages.
        let direct = open_as_kernel(&mount, 6, ino, true).await.handle;
        assert_eq!(mount.read(direct, 0, 100).await.unwrap(), b"befo");
        store.clock.set(5_000_000_000);
        store.commit(ino, b"BE", 0);
        open_as_kernel(&mount, 7, ino, false).await;
        mount.kernel.lock().noticed(ino, store.clock.get());
        assert_eq!(mount.read(kept, 0, 100).await.unwrap(), b"BEfo");
    });
}

/// Bytes before the end are everybody's: a program that opens the file later may read the same page, and another cut shows no older
/// ones.
#[test]
fn bytes_before_the_end_are_never_those_of_before() {
    let (_, mount, mut tasks, ino, kept) = read_file("sliding-window");
    tasks.run(async {
        let first = mount.begin_cut(ino);
        mount.set_attributes(ino, NewAttr::default(), Some(5)).await.unwrap();
        let writer = open_as_kernel(&mount, 6, ino, true).await.handle;
        mount.write(writer, 0, b"XX").await.unwrap();
        mount.fsync(writer).await.unwrap();
        let second = mount.begin_cut(ino);
        mount.set_attributes(ino, NewAttr::default(), Some(4)).await.unwrap();
        assert_eq!(mount.read(kept, 0, 100).await.unwrap(), b"XXfore");
        assert_eq!(
            mount.read_direct(kept, 0, 100, false).await.unwrap(),
            b"XXfo",
            "no pages: the kernel cuts nothing off"
        );
        // The file grows again: what was cut off is zeros.
        let third = mount.begin_cut(ino);
        mount.set_attributes(ino, NewAttr::default(), Some(9)).await.unwrap();
        assert_eq!(mount.read(kept, 0, 100).await.unwrap(), b"XXfo\0\0\0\0\0");
        for cut in [first, second, third] {
            mount.end_cut(cut).await;
        }
    });
}

/// The file was written here, and not read since. Then another mount cuts it off, and no program opens it.
#[test]
fn a_version_that_was_committed_here_is_read_until_the_kernel_knows_a_shorter_one() {
    for write_mode in ["sliding-window", "complete-local"] {
        for opens in [false, true] {
            let (store, mount, mut tasks, ino, kept) = read_file(write_mode);
            tasks.run(async {
                write(&mount, ino, b"BEFORE").await;
                until_pushed(&mount).await;
                store.commit(ino, b"BE", 0);
                if opens {
                    open_as_kernel(&mount, 7, ino, false).await;
                    mount.kernel.lock().noticed(ino, 1);
                }
                let size_bytes = mount.attributes(0, ino).await.unwrap().size_bytes;
                assert_eq!(size_bytes, if opens { 2 } else { 6 });
                let read = mount.read(kept, 0, 100).await.unwrap();
                assert_eq!(read, b"BEFORE", "{write_mode}, {opens}");
            });
        }
    }
}

/// A program gets a lock while another one fills the kernel's pages with the file of before: the kernel must not keep them under the
/// lock.
#[test]
fn a_lock_is_granted_once_the_kernel_has_no_pages_of_before() {
    let (store, mount, mut tasks, ino, kept) = read_file("sliding-window");
    tasks.run(async {
        store.commit(ino, b"BE", 0);
        open_as_kernel(&mount, 6, ino, false).await;
        mount.kernel.lock().noticed(ino, 1);
    });
    let is_locked = Arc::<AtomicBool>::default();
    let (locker, locked) = (mount.clone(), is_locked.clone());
    store.drop_rounds.set(10);
    store.dropped_from.take();
    tasks.spawn(async move {
        let (family, mode) = (LockFamily::Posix as i32, LockMode::Write as i32);
        let lock =
            FileLock { ino, owner: OWNER, family, mode, start: 0, end: 9, pid: 1, fence: None, may_be_shared: false };
        locker.set_lock(&lock, 0, false, &mut || false).await.unwrap();
        locked.store(true, Ordering::Release);
    });
    tasks.run(async {
        let mut drops_before_older = None;
        while !is_locked.load(Ordering::Acquire) {
            if mount.read(kept, 0, 100).await.unwrap() == b"BEfore" {
                drops_before_older = Some(store.dropped_from.borrow().len());
            }
            pause().await;
        }
        assert_eq!(mount.read(kept, 0, 100).await.unwrap(), b"BE");
        let drops = store.dropped_from.borrow().len();
        assert!(drops_before_older.is_some_and(|before| before < drops), "{drops_before_older:?} of {drops}");
    });
}

/// A copy does not go through the kernel's pages: nobody else looks whether the file ends before.
#[test]
fn a_copy_ends_where_the_file_ends() {
    let (_, mount, mut tasks, ino, kept) = read_file("sliding-window");
    tasks.run(async {
        let copy = mount.create(CALLER, (ROOT, b"copy"), 0o644, true, true).await.unwrap().1.handle;
        let cut = mount.begin_cut(ino);
        mount.set_attributes(ino, NewAttr::default(), Some(2)).await.unwrap();
        assert_eq!(mount.copy((kept, 0), (copy, 0), 100).await, Ok(2));
        assert_eq!(mount.read(copy, 0, 100).await.unwrap(), b"be");
        mount.end_cut(cut).await;
    });
}

/// The read commits first what was written here, and the version has what another mount has appended or cut off meanwhile.
#[test]
fn a_read_that_commits_first_has_nothing_of_before_in_front_of_the_new_end() {
    for new_end in [11 << 19, 9 << 19] {
        let (store, mount, mut tasks, ino, kept) = read_file("sliding-window");
        tasks.run(async {
            store.commit(ino, &[b'o'; 6 << 20], 0);
            open_as_kernel(&mount, 7, ino, false).await;
            store.commit(ino, &[b'o'; 5 << 20], 0);
            let writer = open_as_kernel(&mount, 6, ino, true).await.handle;
            mount.kernel.lock().noticed(ino, 1);
            mount.write(writer, 0, &[b'x'; 17 << 18]).await.unwrap();
            store.commit(ino, &vec![b'n'; new_end], 0);
            store.dropped_from.take();
            let read = mount.read(kept, 4 << 20, 2 << 20).await.unwrap();
            let (new, old) = read.split_at(new_end - (4 << 20));
            assert!(new[1 << 18..].iter().all(|byte| *byte == b'n'), "{new_end}");
            assert!(old.len() == (6 << 20) - new_end && old.iter().all(|byte| *byte == b'o'), "{new_end}");
            mount.files.get(ino).unwrap().drop_old_end(&mount).await;
            let dropped = store.dropped_from.take();
            assert!(dropped.iter().any(|(_, from)| *from <= new_end as u64), "{new_end}: {dropped:?}");
        });
    }
}

/// Another mount cuts the file off, and this one learns it by a commit.
#[test]
fn what_another_mount_cut_off_before_a_commit_here_is_read_until_the_kernel_knows() {
    let (store, mount, mut tasks, ino, kept) = read_file("sliding-window");
    tasks.run(async {
        let writer = open_as_kernel(&mount, 6, ino, true).await.handle;
        assert_eq!(mount.read(kept, 0, 100).await.unwrap(), b"before");
        mount.write(writer, 0, b"XX").await.unwrap();
        store.commit(ino, b"BEFO", 0);
        mount.fsync(writer).await.unwrap();
        assert_eq!(store.current(ino).bytes, b"XXFO");
        assert!(mount.kernel.lock().lacks(ino, 4));
        assert_eq!(mount.read(kept, 0, 100).await.unwrap(), b"XXFOre");
    });
}

/// The reply to a cut here tells the kernel nothing of what another mount cuts off beside it.
#[test]
fn a_cut_here_does_not_stand_for_that_of_another_mount_beside_it() {
    let (store, mount, mut tasks, ino, kept) = read_file("sliding-window");
    tasks.run(async {
        let here = mount.begin_cut(ino);
        mount.set_attributes(ino, NewAttr::default(), Some(4)).await.unwrap();
        store.commit(ino, b"BE", 0);
        open_as_kernel(&mount, 7, ino, false).await;
        mount.kernel.lock().noticed(ino, 1);
        mount.end_cut(here).await;
        assert_eq!(mount.read(kept, 0, 100).await.unwrap()[..4], *b"BEfo");
    });
}

/// What was written over is never read again, whether a version has it or not.
#[test]
fn what_was_written_over_before_a_cut_is_not_read_behind_the_end() {
    for write_mode in ["sliding-window", "complete-local"] {
        let (_, mount, mut tasks, ino, kept) = read_file(write_mode);
        tasks.run(async {
            let writer = open_as_kernel(&mount, 6, ino, true).await.handle;
            mount.write(writer, 0, b"XXXXX").await.unwrap();
            assert_eq!(mount.read(kept, 0, 100).await.unwrap(), b"XXXXXe", "{write_mode}");
            let cut = mount.begin_cut(ino);
            mount.set_attributes(ino, NewAttr::default(), Some(2)).await.unwrap();
            let read = mount.read(kept, 0, 100).await.unwrap();
            assert!(b"XXXXXe".starts_with(&read[..]), "{write_mode}: {}", read.escape_ascii());
            mount.end_cut(cut).await;
        });
    }
}

/// As above, between a cut by another mount and one here.
#[test]
fn what_was_synced_between_two_cuts_is_read_behind_the_second_one() {
    for (written, read) in [(&b"XXXXXXX"[..], b"XXXXXXX"), (b"XXXX", b"XXXXre\0"), (b"XXXXX", b"XXXXXe\0")] {
        let (store, mount, mut tasks, ino, kept) = read_file("sliding-window");
        tasks.run(async {
            store.commit(ino, b"BEFO", 0);
            let writer = open_as_kernel(&mount, 6, ino, true).await.handle;
            mount.kernel.lock().noticed(ino, 1);
            mount.write(writer, 0, written).await.unwrap();
            mount.fsync(writer).await.unwrap();
            mount.kernel.lock().noticed(ino, 1);
            let cut = mount.begin_cut(ino);
            mount.set_attributes(ino, NewAttr::default(), Some(2)).await.unwrap();
            let found = mount.read(kept, 0, 100).await.unwrap();
            assert!(read.starts_with(&found[..]) && found.len() >= 6, "{}", found.escape_ascii());
            mount.end_cut(cut).await;
        });
    }
}

/// Another mount's shorter version replaces what waits in the spool.
#[test]
fn a_shorter_version_that_replaces_a_log_is_a_cut() {
    let (store, mount, mut tasks, ino, kept) = read_file("complete-local");
    tasks.run(async {
        let writer = open_as_kernel(&mount, 6, ino, true).await.handle;
        mount.write(writer, 0, b"XX").await.unwrap();
        mount.flush(ino, writer, OWNER).await.unwrap();
        assert_eq!(mount.read(kept, 0, 100).await.unwrap(), b"XXfore");
        store.commit(ino, b"BE", 0);
        mount.fsync(writer).await.unwrap();
        assert_eq!(store.list(ROOT).len(), 2, "the bytes are kept beside it");
        assert_eq!(mount.read(kept, 0, 100).await.unwrap(), b"BEfore");
    });
}

/// A program that reads at the end of a file that has grown since makes no page an older one.
#[test]
fn a_file_that_is_as_long_again_has_nothing_of_before() {
    let (store, mount, mut tasks, ino, kept) = read_file("sliding-window");
    tasks.run(async {
        store.commit(ino, b"BE", 0);
        let writer = open_as_kernel(&mount, 6, ino, true).await.handle;
        mount.write(writer, 0, b"longer").await.unwrap();
        mount.fsync(writer).await.unwrap();
        mount.kernel.lock().noticed(ino, 1);
        let older_fills = mount.kernel.lock().older_fills(ino);
        assert_eq!(mount.read(kept, 0, 100).await.unwrap(), b"longer");
        assert_eq!(mount.kernel.lock().older_fills(ino), older_fills);
    });
}

/// Random changes and cuts, here and by another mount: a read has the file as it is, and behind its end only what was there last.
#[test]
fn no_byte_is_older_than_the_last_one_at_its_place() {
    let mut longer = 0;
    // Long writes go to sessions, and are more than the spool takes.
    let cases = (0_u64..2_000).map(|seed| (seed, 1)).chain((0..4).map(|seed| (seed, 2 << 20)));
    for (seed, unit) in cases {
        let write_mode = ["sliding-window", "complete-local"][(seed % 2) as usize];
        let (store, mount, mut tasks, ino, kept) = read_file(write_mode);
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) + 1;
        let mut draw = move |below: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 20) % below
        };
        tasks.run(async {
            let writer = open_as_kernel(&mount, 6, ino, true).await.handle;
            let (mut file, mut last) = (b"before".to_vec(), b"before".to_vec());
            let mut cuts = Vec::new();
            let mut said = String::new();
            for round in 0..12_u8 {
                store.clock.update(|ns| ns + 1000);
                match draw(7) {
                    0 | 1 => {
                        let (at, len) = (draw(7) as usize * unit, (1 + draw(4) as usize) * unit);
                        mount.write(writer, at as u64, &vec![b'A' + round; len]).await.unwrap();
                        file.resize(file.len().max(at + len), 0);
                        file[at..at + len].fill(b'A' + round);
                        said += &format!("write {at} {len}, ");
                    }
                    2 | 3 => {
                        let size = draw(9) * unit as u64;
                        cuts.push(mount.begin_cut(ino));
                        mount.set_attributes(ino, NewAttr::default(), Some(size)).await.unwrap();
                        file.resize(size as usize, 0);
                        said += &format!("cut {size}, ");
                    }
                    4 => {
                        mount.fsync(writer).await.unwrap();
                        said += "sync, ";
                    }
                    5 => {
                        mount.fsync(writer).await.unwrap();
                        file = vec![b'a' + round; draw(9) as usize * unit];
                        store.commit(ino, &file, 0);
                        let opened = open_as_kernel(&mount, 7, ino, false).await.handle;
                        mount.release(ino, opened).await;
                        // The kernel may have ignored the length.
                        mount.kernel.lock().noticed(ino, store.clock.get());
                        said += &format!("other {}, ", file.len());
                    }
                    _ => {
                        if let Some(cut) = cuts.pop() {
                            mount.end_cut(cut).await;
                            said += "end, ";
                        }
                    }
                }
                last.resize(last.len().max(file.len()), 0);
                last[..file.len()].copy_from_slice(&file);
                let from = draw(3) as usize * unit;
                let read = mount.read(kept, from as u64, 100 * unit).await.unwrap();
                let is = file.get(from..).unwrap_or_default();
                assert!(read.starts_with(is), "{seed} {unit} {write_mode}: {said}");
                longer += usize::from(read.len() > is.len());
                let was = last.get(from..).unwrap_or_default();
                assert!(was.starts_with(&read), "{seed} {unit} {write_mode}: {said}");
                assert!(
                    mount.read_direct(kept, from as u64, 100 * unit, false).await.unwrap() == is,
                    "{seed} {unit} {write_mode}: {said}"
                );
            }
            for cut in cuts {
                mount.end_cut(cut).await;
            }
            mount.fsync(writer).await.unwrap();
            assert!(store.current(ino).bytes == file, "{seed} {unit} {write_mode}: {said}");
        });
    }
    assert!(longer > 1_000, "{longer}");
}
