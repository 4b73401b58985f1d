//! A database or write-ahead log as SQLite has it open: our head, then the file of the VFS below.

use crate::page::{self, PAGE_BYTES};
use crate::watch::{Kind, Watch};
use rusqlite::ffi::{self, sqlite3_file, sqlite3_int64, sqlite3_io_methods};
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::Arc;
use tessera_failpoint as failpoint;

/// Begins the memory that SQLite gives for a file.
#[repr(C)]
struct Head {
    /// SQLite reads it: the functions below.
    base: sqlite3_file,
    kind: Kind,
    watch: *const Watch,
}

/// Bytes of the head, a multiple of every alignment that the file below may need.
pub(super) const HEAD_BYTES: usize = size_of::<Head>().next_multiple_of(16);

/// Version 2: with the functions of the write-ahead log, without memory maps, whose reads nobody would see.
static METHODS: sqlite3_io_methods = sqlite3_io_methods {
    iVersion: 2,
    xClose: Some(x_close),
    xRead: Some(x_read),
    xWrite: Some(x_write),
    xTruncate: Some(x_truncate),
    xSync: Some(x_sync),
    xFileSize: Some(x_file_size),
    xLock: Some(x_lock),
    xUnlock: Some(x_unlock),
    xCheckReservedLock: Some(x_check_reserved_lock),
    xFileControl: Some(x_file_control),
    xSectorSize: Some(x_sector_size),
    xDeviceCharacteristics: Some(x_device_characteristics),
    xShmMap: Some(x_shm_map),
    xShmLock: Some(x_shm_lock),
    xShmBarrier: Some(x_shm_barrier),
    xShmUnmap: Some(x_shm_unmap),
    xFetch: None,
    xUnfetch: None,
};

/// Writes the head and opens the file below with `open`. A file other than the one that other connections have open is refused.
///
/// # Safety
/// At `out` are [`HEAD_BYTES`] and the bytes of a file of the VFS below, aligned as SQLite aligns memory.
pub(super) unsafe fn open(
    out: *mut sqlite3_file,
    kind: Kind,
    watch: Arc<Watch>,
    open: impl FnOnce(*mut sqlite3_file) -> c_int,
) -> c_int {
    let head = out.cast::<Head>();
    let mut code = open(below(out));
    if code == ffi::SQLITE_OK && !watch.opened(kind) {
        close_below(out);
        code = ffi::SQLITE_CANTOPEN;
    }
    // SAFETY: the caller gives room for the head.
    unsafe {
        match code {
            ffi::SQLITE_OK => {
                let base = sqlite3_file { pMethods: &raw const METHODS };
                head.write(Head { base, kind, watch: Arc::into_raw(watch) });
            }
            // SQLite does not close a file without methods.
            _ => (*out).pMethods = ptr::null(),
        }
    }
    code
}

/// The watch of a file that [`open`] opened; `None`: another VFS opened it.
pub(super) fn watch_of(file: *mut sqlite3_file) -> Option<Arc<Watch>> {
    // SAFETY: SQLite gives null or an open file; with these methods, `open` wrote its head, which holds one reference.
    unsafe {
        let ours = !file.is_null() && ptr::eq((*file).pMethods, &raw const METHODS);
        ours.then(|| {
            let watch = (*file.cast::<Head>()).watch;
            Arc::increment_strong_count(watch);
            Arc::from_raw(watch)
        })
    }
}

/// The file of the VFS below.
fn below(file: *mut sqlite3_file) -> *mut sqlite3_file {
    file.wrapping_byte_add(HEAD_BYTES)
}

/// Kind and watch of an open file.
fn head<'a>(file: *mut sqlite3_file) -> (Kind, &'a Watch) {
    // SAFETY: SQLite passes files that `open` opened, until `x_close` returns; the head holds a reference of the watch.
    unsafe {
        let head = &*file.cast::<Head>();
        (head.kind, &*head.watch)
    }
}

macro_rules! forward {
    ($($name:ident = $field:ident($($arg:ident: $type:ty),*) $(-> $result:ty, else $absent:expr)?;)*) => {
        $(extern "C" fn $name(file: *mut sqlite3_file $(, $arg: $type)*) $(-> $result)? {
            let below = below(file);
            // SAFETY: SQLite passes an open file, so the file below is open; the other arguments are SQLite's own.
            unsafe {
                match (*(*below).pMethods).$field {
                    Some(call) => call(below $(, $arg)*),
                    None => forward!(@absent $($absent)?),
                }
            }
        })*
    };
    (@absent $absent:expr) => { $absent };
    (@absent) => { () };
}

forward! {
    close_below = xClose() -> c_int, else ffi::SQLITE_OK;
    read_below = xRead(out: *mut c_void, len: c_int, offset: sqlite3_int64) -> c_int, else ffi::SQLITE_IOERR;
    write_below = xWrite(from: *const c_void, len: c_int, offset: sqlite3_int64) -> c_int, else ffi::SQLITE_IOERR;
    truncate_below = xTruncate(len: sqlite3_int64) -> c_int, else ffi::SQLITE_IOERR;
    sync_below = xSync(flags: c_int) -> c_int, else ffi::SQLITE_IOERR;
    x_file_size = xFileSize(out: *mut sqlite3_int64) -> c_int, else ffi::SQLITE_IOERR;
    x_lock = xLock(level: c_int) -> c_int, else ffi::SQLITE_IOERR;
    x_unlock = xUnlock(level: c_int) -> c_int, else ffi::SQLITE_IOERR;
    x_check_reserved_lock = xCheckReservedLock(out: *mut c_int) -> c_int, else ffi::SQLITE_IOERR;
    x_file_control = xFileControl(op: c_int, arg: *mut c_void) -> c_int, else ffi::SQLITE_NOTFOUND;
    x_sector_size = xSectorSize() -> c_int, else 4096;
    x_device_characteristics = xDeviceCharacteristics() -> c_int, else 0;
    x_shm_map = xShmMap(page: c_int, len: c_int, extend: c_int, out: *mut *mut c_void) -> c_int, else ffi::SQLITE_IOERR;
    x_shm_lock = xShmLock(offset: c_int, count: c_int, flags: c_int) -> c_int, else ffi::SQLITE_IOERR;
    x_shm_barrier = xShmBarrier();
    x_shm_unmap = xShmUnmap(delete: c_int) -> c_int, else ffi::SQLITE_OK;
}

extern "C" fn x_close(file: *mut sqlite3_file) -> c_int {
    let code = close_below(file);
    let (kind, watch) = head(file);
    watch.closed(kind);
    // SAFETY: SQLite closes a file once; the head holds the reference that `open` took.
    unsafe { drop(Arc::from_raw((*file.cast::<Head>()).watch)) };
    code
}

extern "C" fn x_read(file: *mut sqlite3_file, out: *mut c_void, len: c_int, offset: sqlite3_int64) -> c_int {
    let code = read_below(file, out, len, offset);
    let (kind, watch) = head(file);
    let whole_page = len as usize == PAGE_BYTES;
    match (kind, code) {
        // The file ends within or before a page that the database has.
        (Kind::Database, ffi::SQLITE_IOERR_SHORT_READ) if whole_page => {
            watch.note_page(page::number_at(offset as u64));
            return ffi::SQLITE_IOERR_DATA;
        }
        (_, ffi::SQLITE_OK) => {}
        _ => return code,
    }
    // SAFETY: SQLite gives room for `len` bytes at `out`, and the read has filled it.
    let bytes = unsafe { std::slice::from_raw_parts(out.cast::<u8>(), len as usize) };
    let number = page::number_at(offset as u64);
    let sound = match kind {
        Kind::Database if whole_page && !page::is_sound(bytes, number) => {
            watch.note_page(number);
            false
        }
        Kind::Database => true,
        Kind::Log => watch.check_log(offset as u64, bytes),
    };
    if sound { ffi::SQLITE_OK } else { ffi::SQLITE_IOERR_DATA }
}

extern "C" fn x_write(file: *mut sqlite3_file, from: *const c_void, len: c_int, offset: sqlite3_int64) -> c_int {
    let (kind, watch) = head(file);
    if watch.damage().is_some() {
        return ffi::SQLITE_IOERR_WRITE;
    }
    // SAFETY: SQLite gives `len` bytes at `from`.
    let bytes = unsafe { std::slice::from_raw_parts(from.cast::<u8>(), len as usize) };
    let code = match kind {
        Kind::Database => match <[u8; PAGE_BYTES]>::try_from(bytes) {
            Ok(mut sealed) => {
                page::seal(&mut sealed, page::number_at(offset as u64));
                write_below(file, sealed.as_ptr().cast(), len, offset)
            }
            // Pages of another size have no sums, and would be refused when they are read.
            Err(_) => return ffi::SQLITE_IOERR_WRITE,
        },
        Kind::Log => {
            let code = write_below(file, from, len, offset);
            if code == ffi::SQLITE_OK {
                watch.log_written(offset as u64, bytes);
            }
            code
        }
    };
    result(kind, watch, code)
}

extern "C" fn x_truncate(file: *mut sqlite3_file, len: sqlite3_int64) -> c_int {
    let (kind, watch) = head(file);
    if kind == Kind::Log {
        watch.log_truncated(len as u64);
    }
    result(kind, watch, truncate_below(file, len))
}

extern "C" fn x_sync(file: *mut sqlite3_file, flags: c_int) -> c_int {
    let (kind, watch) = head(file);
    if watch.damage().is_some() {
        return ffi::SQLITE_IOERR_FSYNC;
    }
    let code = match failpoint::is_active("pagesum.sync_fails") {
        true => ffi::SQLITE_IOERR_FSYNC,
        false => sync_below(file, flags),
    };
    result(kind, watch, code)
}

/// After a failure other than a full disk nobody knows what the disk holds.
fn result(kind: Kind, watch: &Watch, code: c_int) -> c_int {
    if code != ffi::SQLITE_OK && code & 0xff != ffi::SQLITE_FULL {
        match kind {
            Kind::Database => watch.note_unsynced(watch.path()),
            Kind::Log => watch.note_unsynced(&watch.log_path()),
        }
    }
    code
}
