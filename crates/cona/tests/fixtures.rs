//! Stores of every released format version must remain readable. `REWRITE_FIXTURES=1` rewrites those of the current
//! version.

mod common;

use std::path::{Path, PathBuf};

use common::*;
use tessera_cona::*;

fn folder(version: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(version)
}

/// Content of the fixture: short and long values, deletes, keys of all kinds, in cells and in batches that only the log
/// holds.
fn contents() -> Model {
    let mut model = Model::new();
    for i in 0..120_u32 {
        model.insert(format!("user{:08}", i * 37).into_bytes(), vec![i as u8; (i * 7 % 90) as usize]);
    }
    model.insert(b"long".to_vec(), (0..5000_u32).map(|i| (i % 251) as u8).collect());
    model.insert(vec![0xff; 300], b"a long key".to_vec());
    model
}

fn write() {
    let dir = folder("v2");
    let _ = std::fs::remove_dir_all(&dir);
    let store =
        Store::open(&dir, Options { buffer_bytes: 1 << 20, shape: Shape::Doubling { growth: 8 }, ..small() }).unwrap();
    store.put(b"gone", b"deleted in a later cell").unwrap();
    for (n, (key, value)) in contents().iter().enumerate() {
        store.put(key, b"overwritten").unwrap();
        store.put(key, value).unwrap();
        if n == 60 {
            store.flush().unwrap();
            store.delete(b"gone").unwrap();
        }
        if n == 90 {
            store.flush().unwrap();
        }
    }
    drop(store);
    std::fs::remove_file(dir.join("lock")).unwrap();
}

/// Opens a copy of a version's fixture, whose files have these extensions, and compares all of it.
fn read(version: &str, expected: &[&str]) {
    let copy = tempfile::tempdir().unwrap();
    let mut kinds = Vec::new();
    for entry in std::fs::read_dir(folder(version)).unwrap().map(Result::unwrap) {
        kinds.extend(entry.path().extension().map(|e| e.to_string_lossy().into_owned()));
        std::fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
    }
    kinds.sort_unstable();
    assert_eq!(kinds, expected);
    let store = Store::open(copy.path(), Options { create: false, ..small() }).unwrap();
    assert_eq!(all(store.range(..).unwrap()).unwrap(), contents());
    for (key, value) in contents() {
        assert_eq!(store.get(&key).unwrap(), Some(value));
    }
    assert_eq!(store.get(b"gone").unwrap(), None);
    assert!(store.verify().damage.is_empty());
    store.compact().unwrap();
    assert_eq!(all(store.range(..).unwrap()).unwrap(), contents());
    assert!(store.verify().damage.is_empty());
}

/// Long values were in runs of pages.
#[test]
fn version_1_is_read() {
    read("v1", &["cell", "cell", "log"]);
}

/// Long values are in value files.
#[test]
fn version_2_is_read() {
    if std::env::var_os("REWRITE_FIXTURES").is_some() {
        write();
    }
    read("v2", &["cell", "cell", "log", "values"]);
}
