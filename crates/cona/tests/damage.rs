//! P2, P14: damaged files and bad requests give clear errors, never wrong values, never a panic.

mod common;

use std::sync::Arc;

use common::*;
use tessera_cona::*;
use tessera_disk::{Disk, OpenMode, SimDisk, SplitMix64};
use tessera_failpoint as failpoint;

fn filled(options: &Options) -> (SimDisk, Model) {
    let disk = SimDisk::new(1);
    let store = Store::open_on(Arc::new(disk.clone()), "", options.clone()).unwrap();
    let mut rng = SplitMix64::new(3);
    let mut model = Model::new();
    for i in 0..160 {
        let (key, value) = (key(&mut rng, 500), value(&mut rng));
        store.put(&key, &value).unwrap();
        model.insert(key, value);
        if i == 120 {
            store.flush().unwrap();
        }
    }
    store.sync().unwrap();
    (disk, model)
}

/// Reads everything; `Err` if something was wrong without an error.
fn read_all(disk: &SimDisk, model: &Model, options: &Options) -> Result<Vec<Error>, String> {
    let mut errors = Vec::new();
    let store = match Store::open_on(Arc::new(disk.clone()), "", options.clone()) {
        Ok(store) => store,
        Err(error) => return Ok(vec![error]),
    };
    for (key, value) in model {
        match store.get(key) {
            Ok(got) if got.as_ref() == Some(value) => {}
            Ok(got) => return Err(format!("{key:?}: wrong value ({:?} bytes)", got.map(|v| v.len()))),
            Err(error) => errors.push(error),
        }
    }
    match store.range(..).and_then(all) {
        Ok(got) if &got == model => {}
        Ok(_) => return Err("a scan gave wrong records".into()),
        Err(error) => errors.push(error),
    }
    if store.verify().damage.is_empty() && !errors.is_empty() {
        return Err("verify did not see what lookups saw".into());
    }
    Ok(errors)
}

#[test]
fn a_flipped_bit_anywhere_is_an_error_or_harmless() {
    let options = small();
    let (disk, model) = filled(&options);
    let files: Vec<(String, u64)> =
        disk.paths().into_iter().map(|p| (p.clone(), disk.contents(&p).unwrap().len() as u64)).collect();
    let total: u64 = files.iter().map(|(_, len)| len).sum();
    let (mut seen, mut tried) = (0, 0);
    for n in 0..1500_u64 {
        let mut at = n * total / 1500;
        let Some((path, _)) = files.iter().find(|(_, len)| {
            at < *len || {
                at -= len;
                false
            }
        }) else {
            continue;
        };
        let flipped = disk.reopen_copy();
        flipped.rot(path, at, 1 << (n % 8));
        // A flip after the last frame that is known to be durable passes for a torn tail: batches may be missing, but
        // none is wrong.
        let outcome = read_all(&flipped, &model, &options);
        tried += 1;
        match outcome {
            Ok(errors) => {
                seen += usize::from(!errors.is_empty());
                for error in errors {
                    assert!(error.is_damage() || matches!(error, Error::NewerFormat { .. }), "{path} at {at}: {error}");
                    assert!(
                        error.to_string().contains(path.as_str()) || path.ends_with(".log"),
                        "{path} at {at}: {error}"
                    );
                }
            }
            Err(what) => assert!(path.ends_with(".log"), "{path} at {at}: {what}"),
        }
    }
    assert!(seen * 10 > tried * 5, "only {seen} of {tried} flips were noticed");
}

trait Copied {
    fn reopen_copy(&self) -> SimDisk;
}

impl Copied for SimDisk {
    /// The same files on another disk.
    fn reopen_copy(&self) -> SimDisk {
        let copy = SimDisk::new(5);
        for path in self.paths() {
            let file = copy.open(&path, OpenMode::Create).unwrap();
            file.write_at(0, &self.contents(&path).unwrap()).unwrap();
        }
        copy
    }
}

/// A log whose header is gone must not pass for one that a crash left without any batch.
#[test]
fn a_flipped_bit_in_the_header_of_a_log_loses_no_durable_batch() {
    let options = Options { durability: Durability::Sync, ..small() };
    let disk = SimDisk::new(1);
    let store = Store::open_on(Arc::new(disk.clone()), "", options.clone()).unwrap();
    let model: Model = (0..3u8).map(|n| (vec![n], vec![n; 9])).collect();
    model.iter().for_each(|(key, value)| store.put(key, value).unwrap());
    drop(store);
    let log = disk.paths().into_iter().find(|path| path.ends_with(".log")).unwrap();
    assert!(read_all(&disk.reopen_copy(), &model, &options).unwrap().is_empty());
    for at in 0..32 {
        for bit in 0..8 {
            let flipped = disk.reopen_copy();
            flipped.rot(&log, at, 1 << bit);
            let errors =
                read_all(&flipped, &model, &options).unwrap_or_else(|what| panic!("byte {at}, bit {bit}: {what}"));
            let [error] = &errors[..] else { panic!("byte {at}, bit {bit}: {errors:?}") };
            assert!(error.to_string().contains(&log), "byte {at}, bit {bit}: {error}");
        }
    }
}

#[test]
fn a_page_that_is_believed_unchecked_is_caught() {
    let _guard = failpoint::activate("cona.skip_page_check");
    let options = small();
    let (disk, model) = filled(&options);
    let wrong = (0..400_u64).any(|n| {
        let copy = disk.reopen_copy();
        let cells: Vec<String> = copy.paths().into_iter().filter(|p| p.ends_with(".cell")).collect();
        copy.rot(&cells[n as usize % cells.len()], 40 + n * 5, 4);
        read_all(&copy, &model, &options).is_err()
    });
    assert!(wrong, "skipping the checksum was not caught");
}

#[test]
fn requests_that_cannot_be_are_refused_with_the_fact_and_the_limit() {
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::new(0));
    let store = open(&disk, &small());
    let long = vec![1; KEY_BYTES_MAX + 1];
    assert_eq!(
        store.put(&long, b"").unwrap_err().to_string(),
        "the key has 1025 bytes, at most 1024 are allowed; store a hash of it"
    );
    assert!(matches!(store.put(b"", b"x"), Err(Error::EmptyKey)));
    assert!(matches!(store.delete(&long), Err(Error::KeyTooLong { len_bytes: 1025 })));
    let mut batch = Batch::new();
    batch.put(b"good", b"1").put(&long, b"2");
    assert!(store.write(batch).is_err());
    assert_eq!(store.get(b"good").unwrap(), None, "a batch is all or nothing");
    store.put(&long[..KEY_BYTES_MAX], &vec![9; 1 << 20]).unwrap();
    assert_eq!(store.get(&long[..KEY_BYTES_MAX]).unwrap(), Some(vec![9; 1 << 20]));
    assert!(store.get(b"").unwrap().is_none() && store.get(&long).unwrap().is_none());
    assert!(matches!(Store::open_on(disk.clone(), "", small()), Err(Error::Locked { .. })));
    for bad in [
        Options { page_bytes: 5000, ..small() },
        Options { buffers: 1, ..small() },
        Options { shape: Shape::Doubling { growth: 9 }, ..small() },
        Options { filter_bits: FilterBits::Fixed { upper: 17, last: 0 }, ..small() },
        Options { filter_bits: FilterBits::Levels { levels: [1, 2, 3, 4, 5, 6, 7, 17], last: 0 }, ..small() },
    ] {
        let error = Store::open_on(Arc::new(SimDisk::new(0)), "", bad).unwrap_err();
        assert!(matches!(error, Error::BadOption { .. }), "{error}");
    }
}

#[test]
fn a_directory_that_is_no_store_or_is_in_use_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let missing = Options { create: false, ..small() };
    let error = Store::open(dir.path(), missing.clone()).unwrap_err();
    assert!(matches!(error, Error::NotAStore { .. }), "{error}");
    assert!(matches!(Store::open(dir.path().join("none"), missing), Err(Error::NotAStore { .. })));
    let store = Store::open(dir.path(), small()).unwrap();
    store.put(b"a", b"1").unwrap();
    assert!(matches!(Store::open(dir.path(), small()), Err(Error::Locked { .. })));
    drop(store);
    let file = dir.path().join("file");
    std::fs::write(&file, b"x").unwrap();
    assert!(Store::open(&file, small()).is_err());
    assert_eq!(Store::open(dir.path(), small()).unwrap().get(b"a").unwrap().as_deref(), Some(&b"1"[..]));
}

/// Runs `f` on a thread that obeys file permissions, even if root runs the tests.
fn as_nobody<T: Send>(f: impl FnOnce() -> T + Send) -> T {
    let unprivileged = || {
        if rustix::process::geteuid().is_root() {
            let nobody = rustix::process::Uid::from_raw(65534);
            rustix::thread::set_thread_res_uid(None, Some(nobody), None).unwrap();
        }
        f()
    };
    std::thread::scope(|scope| scope.spawn(unprivileged).join().unwrap())
}

fn names(dir: &std::path::Path) -> Vec<String> {
    let mut names: Vec<String> =
        std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// P14: the error for a directory that is not writable says so and names it, with or without a store in it. Nothing in
/// it changes.
#[test]
fn a_read_only_directory_is_refused_by_name() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let allow = |path: &std::path::Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    let (empty, full) = (dir.path().join("empty"), dir.path().join("full"));
    std::fs::create_dir(&empty).unwrap();
    Store::open(&full, small()).unwrap().put(b"a", b"1").unwrap();
    for path in [dir.path(), &empty, &full] {
        allow(path, 0o555);
    }
    // The files' own permissions do not matter: those of the directory decide.
    for mode in [0o444, 0o666] {
        names(&full).iter().for_each(|name| allow(&full.join(name), mode));
        let before = names(&full);
        for create in [true, false] {
            for path in [&full, &empty, &dir.path().join("none")] {
                let error = as_nobody(|| Store::open(path, Options { create, ..small() })).unwrap_err();
                let absent = !create && !path.exists();
                let named = error.to_string().contains(path.to_str().unwrap());
                assert!(named && (absent || matches!(error, Error::ReadOnly { .. })), "{create}, {mode:o}: {error}");
            }
        }
        assert_eq!((names(&full), names(&empty).len()), (before, 0));
    }
    for path in [dir.path(), &empty, &full] {
        allow(path, 0o755);
    }
    assert_eq!(Store::open(&full, small()).unwrap().get(b"a").unwrap().as_deref(), Some(&b"1"[..]));
}

#[test]
fn a_lost_manifest_beside_cells_is_no_empty_store() {
    let (disk, _) = filled(&small());
    let disk = disk.reopen_copy();
    disk.remove("MANIFEST").unwrap();
    let error = Store::open_on(Arc::new(disk), "", small()).unwrap_err();
    assert!(error.is_damage() && error.to_string().contains("the manifest is gone"), "{error}");
}

/// A file whose number has no successor is not a file of the store.
#[test]
fn the_highest_file_number_is_ignored() {
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::new(0));
    open(&disk, &small()).put(b"key", b"value").unwrap();
    for name in ["ffffffffffffffff.log", "ffffffffffffffff.cell"] {
        disk.open(name, OpenMode::Create).unwrap();
    }
    let store = open(&disk, &small());
    store.flush().unwrap();
    assert_eq!(store.get(b"key").unwrap().as_deref(), Some(&b"value"[..]));
}

/// Once the oldest cell is harmed by `harm`, which gets one of its files, newer cells are still merged among themselves.
fn merges_go_on(background: Background, apart_bytes: u64, harm: fn(&SimDisk, &str) -> bool) {
    let sim = SimDisk::new(0);
    let options = Options { apart_bytes, background, ..small() };
    let store = Store::open_on(Arc::new(sim.clone()), "", options).unwrap();
    let key = |n: u32| n.to_be_bytes();
    (0..500).for_each(|n| store.put(&key(n), &[n as u8; 100]).unwrap());
    store.compact().unwrap();
    let suffix = if apart_bytes == u64::MAX { ".cell" } else { ".values" };
    let file = sim.paths().into_iter().find(|p| p.ends_with(suffix)).unwrap();
    assert!(harm(&sim, &file));
    // So many values are dead that the others are written anew, if they are apart.
    (0..250).for_each(|n| store.put(&key(2 * n), &[1; 100]).unwrap());
    // Whether this merge or one in the background met the damage: compacting says so.
    for _ in 0..2 {
        assert!(store.compact().is_err_and(|error| error.to_string().contains(&file)));
    }
    assert_eq!(store.stats().damaged_cells, 1);
    for n in 0..10_000 {
        store.put(&key(1000 + n), &[n as u8; 100]).unwrap();
    }
    store.settle().unwrap();
    let stats = store.stats();
    assert!(stats.flushes > 200 && stats.cells.len() < 24, "{stats:?}");
    assert_eq!(store.get(&key(1003)).unwrap(), Some(vec![3; 100]));
}

#[test]
fn merges_go_on_above_a_damaged_cell() {
    merges_go_on(Background::Inline, u64::MAX, |sim, file| sim.rot(file, 7000, 1));
}

/// A sector that cannot be read is damage to merges, in a cell and in a value file.
#[test]
fn merges_go_on_above_a_cell_with_an_unreadable_sector() {
    for background in [Background::Inline, Background::Threads(1)] {
        for apart_bytes in [u64::MAX, 64] {
            merges_go_on(background, apart_bytes, |sim, file| sim.break_sector(file, 7000));
        }
    }
}

/// What keeps a store from being opened, verify finds while it is open.
#[test]
fn verify_sees_the_header_and_the_length_of_a_value_file() {
    let sim = SimDisk::new(0);
    let store = Store::open_on(Arc::new(sim.clone()), "", small()).unwrap();
    (0..100_u32).for_each(|n| store.put(&n.to_be_bytes(), &vec![n as u8; 1000]).unwrap());
    store.compact().unwrap();
    assert!(store.verify().damage.is_empty());
    let path = sim.paths().into_iter().find(|p| p.ends_with(".values")).unwrap();
    sim.rot(&path, 20, 1);
    let damage = store.verify().damage;
    assert!(damage.len() == 1 && damage[0].to_string().contains(&path), "{damage:?}");
    sim.rot(&path, 20, 1);
    sim.open(&path, OpenMode::Existing).unwrap().write_at(sim.contents(&path).unwrap().len() as u64, b"more").unwrap();
    assert_eq!(store.verify().damage.len(), 1);
}
