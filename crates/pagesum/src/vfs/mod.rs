//! The VFS: the system's, with sums. It looks at databases and write-ahead logs; all other files go to the system's VFS.
#![allow(unsafe_code, reason = "SQLite calls a VFS through C function pointers")]

mod file;
mod forward;

use crate::page::SUM_BYTES;
use crate::watch::{Kind, Watch};
use parking_lot::Mutex;
use rusqlite::ffi::{self, sqlite3_file, sqlite3_vfs};
use rusqlite::{Connection, OpenFlags};
use std::collections::HashMap;
use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::{Arc, OnceLock, Weak};

/// The name of the VFS.
pub const VFS_NAME: &CStr = c"tessera-pagesum";

/// Opens a database whose pages have sums. A new one needs [`reserve`] before anything else.
///
/// # Errors
/// SQLite's.
pub fn open(path: &Path, flags: OpenFlags) -> rusqlite::Result<Connection> {
    register()?;
    Connection::open_with_flags_and_vfs(path, flags, VFS_NAME)
}

/// Reserves the bytes of the sums in each page of an empty database.
///
/// # Errors
/// SQLite's.
pub fn reserve(conn: &Connection) -> rusqlite::Result<()> {
    let mut bytes = SUM_BYTES as c_int;
    // SAFETY: the handle lives as long as `conn`, and the call reads and writes one int.
    let code = unsafe {
        ffi::sqlite3_file_control(conn.handle(), ptr::null(), ffi::SQLITE_FCNTL_RESERVE_BYTES, (&raw mut bytes).cast())
    };
    check(code)
}

/// What is known about the files of a connection's database; `None` if it was not opened by [`open`].
pub fn watch(conn: &Connection) -> Option<Arc<Watch>> {
    let mut file: *mut sqlite3_file = ptr::null_mut();
    // SAFETY: the handle lives as long as `conn`, and the call writes one pointer.
    let code = unsafe {
        ffi::sqlite3_file_control(conn.handle(), ptr::null(), ffi::SQLITE_FCNTL_FILE_POINTER, (&raw mut file).cast())
    };
    check(code).ok()?;
    file::watch_of(file)
}

fn check(code: c_int) -> rusqlite::Result<()> {
    match code {
        ffi::SQLITE_OK => Ok(()),
        code => Err(rusqlite::Error::SqliteFailure(ffi::Error::new(code), None)),
    }
}

/// The registered VFS. SQLite keeps a pointer to it for as long as the process lives.
struct Registered(#[expect(dead_code, reason = "SQLite owns it")] *mut sqlite3_vfs);

// SAFETY: the pointer is never read through this value.
unsafe impl Send for Registered {}
// SAFETY: as above.
unsafe impl Sync for Registered {}

fn register() -> rusqlite::Result<()> {
    static DONE: OnceLock<Result<Registered, c_int>> = OnceLock::new();
    let done = DONE.get_or_init(|| {
        // SAFETY: SQLite returns its default VFS, which is never removed.
        let under = unsafe { ffi::sqlite3_vfs_find(ptr::null()) };
        // SAFETY: the pointer is null or valid for ever.
        let Some(base) = (unsafe { under.as_ref() }) else { return Err(ffi::SQLITE_ERROR) };
        let vfs = Box::into_raw(Box::new(sqlite3_vfs {
            szOsFile: file::HEAD_BYTES as c_int + base.szOsFile,
            pNext: ptr::null_mut(),
            zName: VFS_NAME.as_ptr(),
            pAppData: under.cast::<c_void>(),
            xOpen: Some(x_open),
            xDelete: Some(x_delete),
            ..forward::methods(base)
        }));
        // SAFETY: the VFS is never freed, and its functions fit their types.
        match unsafe { ffi::sqlite3_vfs_register(vfs, 0) } {
            ffi::SQLITE_OK => Ok(Registered(vfs)),
            code => Err(code),
        }
    });
    done.as_ref().map(|_| ()).or_else(|code| check(*code))
}

/// The VFS below ours.
fn under(vfs: *mut sqlite3_vfs) -> *mut sqlite3_vfs {
    // SAFETY: SQLite passes the VFS that `register` made, whose `pAppData` is the VFS below it.
    unsafe { (*vfs).pAppData.cast() }
}

/// One [`Watch`] for each open database.
fn watch_for(path: &Path) -> Arc<Watch> {
    static ALL: OnceLock<Mutex<HashMap<PathBuf, Weak<Watch>>>> = OnceLock::new();
    let mut all = ALL.get_or_init(Mutex::default).lock();
    if let Some(watch) = all.get(path).and_then(Weak::upgrade) {
        return watch;
    }
    all.retain(|_, watch| watch.strong_count() > 0);
    let watch = Arc::new(Watch::new(path.to_path_buf()));
    all.insert(path.to_path_buf(), Arc::downgrade(&watch));
    watch
}

/// The database whose write-ahead log has this name.
fn database_of(log: &[u8]) -> Option<&Path> {
    log.strip_suffix(b"-wal").map(|path| Path::new(OsStr::from_bytes(path)))
}

/// The bytes of a file name.
fn name_of<'a>(name: *const c_char) -> &'a [u8] {
    match name.is_null() {
        true => b"",
        // SAFETY: SQLite passes null or a name that ends with a zero and outlives the call.
        false => unsafe { CStr::from_ptr(name) }.to_bytes(),
    }
}

extern "C" fn x_open(
    vfs: *mut sqlite3_vfs,
    name: *const c_char,
    out: *mut sqlite3_file,
    flags: c_int,
    out_flags: *mut c_int,
) -> c_int {
    let under = under(vfs);
    // SAFETY: the VFS below lives for ever.
    let Some(open) = (unsafe { (*under).xOpen }) else { return ffi::SQLITE_ERROR };
    let path = name_of(name);
    let watched = match (flags & ffi::SQLITE_OPEN_MAIN_DB != 0, flags & ffi::SQLITE_OPEN_WAL != 0) {
        _ if path.is_empty() => None,
        (true, _) => Some((Kind::Database, watch_for(Path::new(OsStr::from_bytes(path))))),
        (_, true) => database_of(path).map(|database| (Kind::Log, watch_for(database))),
        _ => None,
    };
    match watched {
        Some((kind, watch)) => {
            // SAFETY: SQLite gives `szOsFile` bytes at `out`, which has room for the head and for the file below.
            unsafe { file::open(out, kind, watch, |file| open(under, name, file, flags, out_flags)) }
        }
        // SAFETY: the arguments are SQLite's own; `szOsFile` bytes suffice for the VFS below.
        None => unsafe { open(under, name, out, flags, out_flags) },
    }
}

extern "C" fn x_delete(vfs: *mut sqlite3_vfs, name: *const c_char, sync_dir: c_int) -> c_int {
    if let Some(database) = database_of(name_of(name)) {
        let watch = watch_for(database);
        if watch.displaced().is_some() {
            // The last connection closes its database. The log at this path belongs to another one.
            return ffi::SQLITE_OK;
        }
        watch.log_truncated(0);
    }
    let under = under(vfs);
    // SAFETY: the VFS below lives for ever, and the arguments are SQLite's own.
    unsafe { (*under).xDelete.map_or(ffi::SQLITE_ERROR, |delete| delete(under, name, sync_dir)) }
}
