//! The engines behind one small trait, each with 64 MiB of cache, 16 MiB write buffers, 10-bit filters where it has them, no compression, and every
//! write handed to the operating system before it is acknowledged.

use std::ffi::{CString, c_char, c_int, c_uchar, c_void};
use std::path::Path;

const CACHE_BYTES: usize = 64 << 20;
const BUFFER_BYTES: usize = 16 << 20;

pub trait Engine {
    fn put(&self, key: &[u8], value: &[u8]);
    /// Calls `f` with the value, if there is one.
    fn get(&self, key: &[u8], f: &mut dyn FnMut(&[u8])) -> bool;
    fn delete(&self, key: &[u8]);
    /// Calls `f` with key and value of at most `count` records, from the first one on whose key is not below `from`.
    fn scan(&self, from: &[u8], count: usize, f: &mut dyn FnMut(&[u8], &[u8]));
    /// What may be read often: records merged, microseconds of merging and of waiting, cells.
    fn moment(&self) -> serde_json::Value {
        serde_json::Value::Null
    }
    /// Figures of its own, if it has any.
    fn figures(&self) -> serde_json::Value {
        serde_json::Value::Null
    }
}

pub fn open(system: &str, dir: &Path, variant: &str) -> Box<dyn Engine> {
    match system {
        "cona" => Box::new(Cona::open(dir, variant)),
        "fjall" => Box::new(Fjall::open(dir)),
        "leveldb" => Box::new(C::<Level>::open(dir)),
        "rocksdb" => Box::new(C::<Rocks>::open(dir)),
        other => panic!("{other}: choose cona, leveldb, rocksdb or fjall"),
    }
}

struct Cona(tessera_cona::Store);

impl Cona {
    fn open(dir: &Path, variant: &str) -> Self {
        use tessera_cona::{Background, Options, Shape};
        let mut options = Options { cache_bytes: CACHE_BYTES as u64, buffer_bytes: BUFFER_BYTES as u64, ..Options::default() };
        for word in variant.split(',').filter(|w| !w.is_empty()) {
            let (name, value) = word.split_once('=').expect("variants are name=value,…");
            let number: u64 = value.parse().expect("variants have numbers");
            match name {
                "paper" => options = Options { cache_bytes: 0, ..Options::paper() },
                "buffer_kib" => options.buffer_bytes = number << 10,
                "buffers" => options.buffers = number as u32,
                "cache_mib" => options.cache_bytes = number << 20,
                "doubling" => options.shape = Shape::Doubling { growth: number as u32 },
                "volatile" => options.volatile = number > 0,
                "inline" => options.background = Background::Inline,
                "threads" => options.background = Background::Threads(number as u32),
                "fold" => options.shape = Shape::Folded { growth: 4, fold_percent: number as u32 },
                _ => panic!("variant {name}: choose paper, buffer_kib, buffers, cache_mib, doubling, fold, volatile, inline, threads"),
            }
        }
        Cona(tessera_cona::Store::open(dir, options).unwrap())
    }
}

impl Engine for Cona {
    fn put(&self, key: &[u8], value: &[u8]) {
        self.0.put(key, value).unwrap();
    }
    fn get(&self, key: &[u8], f: &mut dyn FnMut(&[u8])) -> bool {
        let found = self.0.get(key).unwrap();
        found.as_deref().map(f).is_some()
    }
    fn delete(&self, key: &[u8]) {
        self.0.delete(key).unwrap();
    }
    fn scan(&self, from: &[u8], count: usize, f: &mut dyn FnMut(&[u8], &[u8])) {
        let mut records = self.0.range_at_most(from.., count).unwrap();
        while let Some((key, value)) = records.next_record().unwrap() {
            f(key, value);
        }
    }
    fn moment(&self) -> serde_json::Value {
        let s = self.0.stats();
        serde_json::json!([s.merged_records, s.merge_us, s.wait_us, s.cells.len()])
    }
    fn figures(&self) -> serde_json::Value {
        let s = self.0.stats();
        serde_json::json!({
            "index_bytes": s.index_bytes, "filter_bytes": s.filter_bytes, "cell_records": s.cell_records, "cells": s.cells.len(),
            "lookups": s.lookups, "buffer_hits": s.buffer_hits, "cache_hits": s.cache_hits, "page_reads": s.page_reads,
            "user_bytes": s.user_bytes, "written_bytes": s.log_bytes + s.written_cell_bytes + s.manifest_bytes,
            "flush_us": s.flush_us, "merge_us": s.merge_us, "merged_records": s.merged_records, "level_hits": s.level_hits,
            "level_max": s.cells.iter().map(|c| c.0).filter(|level| *level < 255).max().unwrap_or(0),
            "wait_us": s.wait_us, "merges": s.merges, "flushes": s.flushes, "file_bytes": s.cell_file_bytes + s.value_file_bytes,
            "cache_bytes": s.cache_bytes, "buffer_bytes": s.buffer_bytes, "merge_bytes": s.merge_bytes,
        })
    }
}

struct Fjall {
    _database: fjall::Database,
    keyspace: fjall::Keyspace,
}

impl Fjall {
    fn open(dir: &Path) -> Self {
        let database = fjall::Database::builder(dir).cache_size(CACHE_BYTES as u64).open().unwrap();
        let options = || fjall::KeyspaceCreateOptions::default().max_memtable_size(BUFFER_BYTES as u64);
        let keyspace = database.keyspace("ycsb", options).unwrap();
        Fjall { _database: database, keyspace }
    }
}

impl Engine for Fjall {
    fn put(&self, key: &[u8], value: &[u8]) {
        self.keyspace.insert(key, value).unwrap();
    }
    fn get(&self, key: &[u8], f: &mut dyn FnMut(&[u8])) -> bool {
        self.keyspace.get(key).unwrap().map(|v| f(&v)).is_some()
    }
    fn delete(&self, key: &[u8]) {
        self.keyspace.remove(key).unwrap();
    }
    fn scan(&self, from: &[u8], count: usize, f: &mut dyn FnMut(&[u8], &[u8])) {
        for record in self.keyspace.range(from..).take(count) {
            let (key, value) = record.into_inner().unwrap();
            f(&key, &value);
        }
    }
}

/// An engine with a C interface in the manner of LevelDB's.
trait Interface {
    unsafe fn open(path: *const c_char) -> *mut c_void;
    unsafe fn put(db: *mut c_void, o: *mut c_void, k: *const c_char, kl: usize, v: *const c_char, vl: usize, e: *mut *mut c_char);
    unsafe fn get(db: *mut c_void, o: *mut c_void, k: *const c_char, kl: usize, vl: *mut usize, e: *mut *mut c_char) -> *mut c_char;
    unsafe fn delete(db: *mut c_void, o: *mut c_void, k: *const c_char, kl: usize, e: *mut *mut c_char);
    unsafe fn cursor(db: *mut c_void, o: *mut c_void) -> *mut c_void;
    unsafe fn seek(it: *mut c_void, k: *const c_char, kl: usize);
    unsafe fn valid(it: *const c_void) -> c_uchar;
    unsafe fn next(it: *mut c_void);
    unsafe fn key(it: *const c_void, len: *mut usize) -> *const c_char;
    unsafe fn value(it: *const c_void, len: *mut usize) -> *const c_char;
    unsafe fn close_cursor(it: *mut c_void);
    unsafe fn free(p: *mut c_void);
    unsafe fn options() -> (*mut c_void, *mut c_void);
    unsafe fn close(db: *mut c_void);
    unsafe fn table_memory(_db: *mut c_void) -> Option<String> {
        None
    }
}

struct C<I: Interface> {
    db: *mut c_void,
    write: *mut c_void,
    read: *mut c_void,
    _kind: std::marker::PhantomData<I>,
}

impl<I: Interface> C<I> {
    fn open(dir: &Path) -> Self {
        let path = CString::new(dir.to_str().unwrap()).unwrap();
        // SAFETY: the path is a C string that lives through the call; the options live as long as the process.
        let (db, (write, read)) = unsafe { (I::open(path.as_ptr()), I::options()) };
        C { db, write, read, _kind: std::marker::PhantomData }
    }
}

impl<I: Interface> Drop for C<I> {
    fn drop(&mut self) {
        // SAFETY: opened in `open`, closed once.
        unsafe { I::close(self.db) }
    }
}

impl<I: Interface> Engine for C<I> {
    fn put(&self, key: &[u8], value: &[u8]) {
        let mut error = std::ptr::null_mut();
        // SAFETY: pointers and lengths are of live slices; the engine copies them.
        unsafe { I::put(self.db, self.write, key.as_ptr().cast(), key.len(), value.as_ptr().cast(), value.len(), &mut error) };
        assert!(error.is_null(), "the engine failed to write");
    }
    fn get(&self, key: &[u8], f: &mut dyn FnMut(&[u8])) -> bool {
        let (mut error, mut len) = (std::ptr::null_mut(), 0);
        // SAFETY: as above; the value is the engine's allocation of `len` bytes, freed once.
        unsafe {
            let value = I::get(self.db, self.read, key.as_ptr().cast(), key.len(), &mut len, &mut error);
            assert!(error.is_null(), "the engine failed to read");
            if value.is_null() {
                return false;
            }
            f(std::slice::from_raw_parts(value.cast(), len));
            I::free(value.cast());
        }
        true
    }
    fn delete(&self, key: &[u8]) {
        let mut error = std::ptr::null_mut();
        // SAFETY: pointer and length are of a live slice; the engine copies it.
        unsafe { I::delete(self.db, self.write, key.as_ptr().cast(), key.len(), &mut error) };
        assert!(error.is_null(), "the engine failed to delete");
    }
    fn scan(&self, from: &[u8], count: usize, f: &mut dyn FnMut(&[u8], &[u8])) {
        // SAFETY: the cursor is used while the database is open and closed once; what it points to is valid until it moves.
        unsafe {
            let cursor = I::cursor(self.db, self.read);
            I::seek(cursor, from.as_ptr().cast(), from.len());
            for _ in 0..count {
                if I::valid(cursor) == 0 {
                    break;
                }
                let (mut key_len, mut value_len) = (0, 0);
                let key = I::key(cursor, &mut key_len);
                let value = I::value(cursor, &mut value_len);
                f(std::slice::from_raw_parts(key.cast(), key_len), std::slice::from_raw_parts(value.cast(), value_len));
                I::next(cursor);
            }
            I::close_cursor(cursor);
        }
    }
    fn figures(&self) -> serde_json::Value {
        // SAFETY: the database is open.
        match unsafe { I::table_memory(self.db) } {
            Some(bytes) => serde_json::json!({ "table_memory_bytes": bytes.parse::<u64>().unwrap_or(0) }),
            None => serde_json::Value::Null,
        }
    }
}

struct Level;
#[link(name = "leveldb")]
unsafe extern "C" {
    fn leveldb_options_create() -> *mut c_void;
    fn leveldb_options_set_create_if_missing(o: *mut c_void, v: c_uchar);
    fn leveldb_options_set_write_buffer_size(o: *mut c_void, v: usize);
    fn leveldb_options_set_compression(o: *mut c_void, v: c_int);
    fn leveldb_options_set_cache(o: *mut c_void, c: *mut c_void);
    fn leveldb_options_set_filter_policy(o: *mut c_void, p: *mut c_void);
    fn leveldb_cache_create_lru(bytes: usize) -> *mut c_void;
    fn leveldb_filterpolicy_create_bloom(bits: c_int) -> *mut c_void;
    fn leveldb_open(o: *mut c_void, path: *const c_char, e: *mut *mut c_char) -> *mut c_void;
    fn leveldb_close(db: *mut c_void);
    fn leveldb_writeoptions_create() -> *mut c_void;
    fn leveldb_readoptions_create() -> *mut c_void;
    fn leveldb_readoptions_set_verify_checksums(o: *mut c_void, v: c_uchar);
    fn leveldb_put(db: *mut c_void, o: *mut c_void, k: *const c_char, kl: usize, v: *const c_char, vl: usize, e: *mut *mut c_char);
    fn leveldb_get(db: *mut c_void, o: *mut c_void, k: *const c_char, kl: usize, vl: *mut usize, e: *mut *mut c_char) -> *mut c_char;
    fn leveldb_free(p: *mut c_void);
    fn leveldb_delete(db: *mut c_void, o: *mut c_void, k: *const c_char, kl: usize, e: *mut *mut c_char);
    fn leveldb_create_iterator(db: *mut c_void, o: *mut c_void) -> *mut c_void;
    fn leveldb_iter_seek(it: *mut c_void, k: *const c_char, kl: usize);
    fn leveldb_iter_valid(it: *const c_void) -> c_uchar;
    fn leveldb_iter_next(it: *mut c_void);
    fn leveldb_iter_key(it: *const c_void, len: *mut usize) -> *const c_char;
    fn leveldb_iter_value(it: *const c_void, len: *mut usize) -> *const c_char;
    fn leveldb_iter_destroy(it: *mut c_void);
}

impl Interface for Level {
    unsafe fn open(path: *const c_char) -> *mut c_void {
        unsafe {
            let o = leveldb_options_create();
            leveldb_options_set_create_if_missing(o, 1);
            leveldb_options_set_write_buffer_size(o, BUFFER_BYTES);
            leveldb_options_set_compression(o, 0);
            leveldb_options_set_cache(o, leveldb_cache_create_lru(CACHE_BYTES));
            leveldb_options_set_filter_policy(o, leveldb_filterpolicy_create_bloom(10));
            let mut error = std::ptr::null_mut();
            let db = leveldb_open(o, path, &mut error);
            assert!(error.is_null(), "LevelDB does not open");
            db
        }
    }
    unsafe fn put(db: *mut c_void, o: *mut c_void, k: *const c_char, kl: usize, v: *const c_char, vl: usize, e: *mut *mut c_char) {
        unsafe { leveldb_put(db, o, k, kl, v, vl, e) }
    }
    unsafe fn get(db: *mut c_void, o: *mut c_void, k: *const c_char, kl: usize, vl: *mut usize, e: *mut *mut c_char) -> *mut c_char {
        unsafe { leveldb_get(db, o, k, kl, vl, e) }
    }
    unsafe fn free(p: *mut c_void) {
        unsafe { leveldb_free(p) }
    }
    unsafe fn delete(db: *mut c_void, o: *mut c_void, k: *const c_char, kl: usize, e: *mut *mut c_char) {
        unsafe { leveldb_delete(db, o, k, kl, e) }
    }
    unsafe fn cursor(db: *mut c_void, o: *mut c_void) -> *mut c_void {
        unsafe { leveldb_create_iterator(db, o) }
    }
    unsafe fn seek(it: *mut c_void, k: *const c_char, kl: usize) {
        unsafe { leveldb_iter_seek(it, k, kl) }
    }
    unsafe fn valid(it: *const c_void) -> c_uchar {
        unsafe { leveldb_iter_valid(it) }
    }
    unsafe fn next(it: *mut c_void) {
        unsafe { leveldb_iter_next(it) }
    }
    unsafe fn key(it: *const c_void, len: *mut usize) -> *const c_char {
        unsafe { leveldb_iter_key(it, len) }
    }
    unsafe fn value(it: *const c_void, len: *mut usize) -> *const c_char {
        unsafe { leveldb_iter_value(it, len) }
    }
    unsafe fn close_cursor(it: *mut c_void) {
        unsafe { leveldb_iter_destroy(it) }
    }
    unsafe fn options() -> (*mut c_void, *mut c_void) {
        unsafe {
            let read = leveldb_readoptions_create();
            // As CONA, RocksDB and fjall do.
            leveldb_readoptions_set_verify_checksums(read, 1);
            (leveldb_writeoptions_create(), read)
        }
    }
    unsafe fn close(db: *mut c_void) {
        unsafe { leveldb_close(db) }
    }
}

struct Rocks;
#[link(name = "rocksdb")]
unsafe extern "C" {
    fn rocksdb_options_create() -> *mut c_void;
    fn rocksdb_options_set_create_if_missing(o: *mut c_void, v: c_uchar);
    fn rocksdb_options_set_write_buffer_size(o: *mut c_void, v: usize);
    fn rocksdb_options_set_compression(o: *mut c_void, v: c_int);
    fn rocksdb_options_set_max_background_jobs(o: *mut c_void, v: c_int);
    fn rocksdb_options_set_block_based_table_factory(o: *mut c_void, t: *mut c_void);
    fn rocksdb_block_based_options_create() -> *mut c_void;
    fn rocksdb_block_based_options_set_filter_policy(t: *mut c_void, p: *mut c_void);
    fn rocksdb_block_based_options_set_block_cache(t: *mut c_void, c: *mut c_void);
    fn rocksdb_filterpolicy_create_bloom_full(bits: f64) -> *mut c_void;
    fn rocksdb_cache_create_lru(bytes: usize) -> *mut c_void;
    fn rocksdb_open(o: *mut c_void, path: *const c_char, e: *mut *mut c_char) -> *mut c_void;
    fn rocksdb_close(db: *mut c_void);
    fn rocksdb_writeoptions_create() -> *mut c_void;
    fn rocksdb_readoptions_create() -> *mut c_void;
    fn rocksdb_put(db: *mut c_void, o: *mut c_void, k: *const c_char, kl: usize, v: *const c_char, vl: usize, e: *mut *mut c_char);
    fn rocksdb_get(db: *mut c_void, o: *mut c_void, k: *const c_char, kl: usize, vl: *mut usize, e: *mut *mut c_char) -> *mut c_char;
    fn rocksdb_property_value(db: *mut c_void, name: *const c_char) -> *mut c_char;
    fn rocksdb_free(p: *mut c_void);
    fn rocksdb_delete(db: *mut c_void, o: *mut c_void, k: *const c_char, kl: usize, e: *mut *mut c_char);
    fn rocksdb_create_iterator(db: *mut c_void, o: *mut c_void) -> *mut c_void;
    fn rocksdb_iter_seek(it: *mut c_void, k: *const c_char, kl: usize);
    fn rocksdb_iter_valid(it: *const c_void) -> c_uchar;
    fn rocksdb_iter_next(it: *mut c_void);
    fn rocksdb_iter_key(it: *const c_void, len: *mut usize) -> *const c_char;
    fn rocksdb_iter_value(it: *const c_void, len: *mut usize) -> *const c_char;
    fn rocksdb_iter_destroy(it: *mut c_void);
}

impl Interface for Rocks {
    unsafe fn open(path: *const c_char) -> *mut c_void {
        unsafe {
            let o = rocksdb_options_create();
            rocksdb_options_set_create_if_missing(o, 1);
            rocksdb_options_set_write_buffer_size(o, BUFFER_BYTES);
            rocksdb_options_set_compression(o, 0);
            rocksdb_options_set_max_background_jobs(o, 2);
            let t = rocksdb_block_based_options_create();
            rocksdb_block_based_options_set_filter_policy(t, rocksdb_filterpolicy_create_bloom_full(10.0));
            rocksdb_block_based_options_set_block_cache(t, rocksdb_cache_create_lru(CACHE_BYTES));
            rocksdb_options_set_block_based_table_factory(o, t);
            let mut error = std::ptr::null_mut();
            let db = rocksdb_open(o, path, &mut error);
            assert!(error.is_null(), "RocksDB does not open");
            db
        }
    }
    unsafe fn put(db: *mut c_void, o: *mut c_void, k: *const c_char, kl: usize, v: *const c_char, vl: usize, e: *mut *mut c_char) {
        unsafe { rocksdb_put(db, o, k, kl, v, vl, e) }
    }
    unsafe fn get(db: *mut c_void, o: *mut c_void, k: *const c_char, kl: usize, vl: *mut usize, e: *mut *mut c_char) -> *mut c_char {
        unsafe { rocksdb_get(db, o, k, kl, vl, e) }
    }
    unsafe fn free(p: *mut c_void) {
        unsafe { rocksdb_free(p) }
    }
    unsafe fn delete(db: *mut c_void, o: *mut c_void, k: *const c_char, kl: usize, e: *mut *mut c_char) {
        unsafe { rocksdb_delete(db, o, k, kl, e) }
    }
    unsafe fn cursor(db: *mut c_void, o: *mut c_void) -> *mut c_void {
        unsafe { rocksdb_create_iterator(db, o) }
    }
    unsafe fn seek(it: *mut c_void, k: *const c_char, kl: usize) {
        unsafe { rocksdb_iter_seek(it, k, kl) }
    }
    unsafe fn valid(it: *const c_void) -> c_uchar {
        unsafe { rocksdb_iter_valid(it) }
    }
    unsafe fn next(it: *mut c_void) {
        unsafe { rocksdb_iter_next(it) }
    }
    unsafe fn key(it: *const c_void, len: *mut usize) -> *const c_char {
        unsafe { rocksdb_iter_key(it, len) }
    }
    unsafe fn value(it: *const c_void, len: *mut usize) -> *const c_char {
        unsafe { rocksdb_iter_value(it, len) }
    }
    unsafe fn close_cursor(it: *mut c_void) {
        unsafe { rocksdb_iter_destroy(it) }
    }
    unsafe fn options() -> (*mut c_void, *mut c_void) {
        unsafe { (rocksdb_writeoptions_create(), rocksdb_readoptions_create()) }
    }
    unsafe fn close(db: *mut c_void) {
        unsafe { rocksdb_close(db) }
    }
    unsafe fn table_memory(db: *mut c_void) -> Option<String> {
        unsafe {
            let value = rocksdb_property_value(db, c"rocksdb.estimate-table-readers-mem".as_ptr());
            if value.is_null() {
                return None;
            }
            let text = std::ffi::CStr::from_ptr(value).to_string_lossy().into_owned();
            rocksdb_free(value.cast());
            Some(text)
        }
    }
}
