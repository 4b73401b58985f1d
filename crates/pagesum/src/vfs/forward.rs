//! Functions of the VFS that call the one below and do nothing else.

use super::under;
use rusqlite::ffi::{self, sqlite3_int64, sqlite3_vfs};
use std::ffi::{c_char, c_int, c_void};

type Symbol = unsafe extern "C" fn(*mut sqlite3_vfs, *mut c_void, *const c_char);

macro_rules! forward {
    ($($name:ident = $field:ident($($arg:ident: $type:ty),*) $(-> $result:ty, else $absent:expr)?;)*) => {
        $(extern "C" fn $name(vfs: *mut sqlite3_vfs $(, $arg: $type)*) $(-> $result)? {
            let under = under(vfs);
            // SAFETY: the VFS below lives for ever, and the arguments are SQLite's own.
            unsafe {
                match (*under).$field {
                    Some(call) => call(under $(, $arg)*),
                    None => forward!(@absent $($absent)?),
                }
            }
        })*
    };
    (@absent $absent:expr) => { $absent };
    (@absent) => { () };
}

forward! {
    x_access = xAccess(name: *const c_char, flags: c_int, out: *mut c_int) -> c_int, else ffi::SQLITE_ERROR;
    x_full_pathname = xFullPathname(name: *const c_char, len: c_int, out: *mut c_char) -> c_int, else ffi::SQLITE_ERROR;
    x_dl_open = xDlOpen(name: *const c_char) -> *mut c_void, else std::ptr::null_mut();
    x_dl_error = xDlError(len: c_int, out: *mut c_char);
    x_dl_sym = xDlSym(library: *mut c_void, name: *const c_char) -> Option<Symbol>, else None;
    x_dl_close = xDlClose(library: *mut c_void);
    x_randomness = xRandomness(len: c_int, out: *mut c_char) -> c_int, else 0;
    x_sleep = xSleep(microseconds: c_int) -> c_int, else 0;
    x_current_time = xCurrentTime(out: *mut f64) -> c_int, else ffi::SQLITE_ERROR;
    x_current_time_ms = xCurrentTimeInt64(out: *mut sqlite3_int64) -> c_int, else ffi::SQLITE_ERROR;
    x_last_error = xGetLastError(len: c_int, out: *mut c_char) -> c_int, else 0;
}

/// A VFS with these functions, of the version that has them; the caller fills in the rest.
pub(super) fn methods(base: &sqlite3_vfs) -> sqlite3_vfs {
    sqlite3_vfs {
        iVersion: base.iVersion.min(2),
        xAccess: Some(x_access),
        xFullPathname: Some(x_full_pathname),
        xDlOpen: Some(x_dl_open),
        xDlError: Some(x_dl_error),
        xDlSym: Some(x_dl_sym),
        xDlClose: Some(x_dl_close),
        xRandomness: Some(x_randomness),
        xSleep: Some(x_sleep),
        xCurrentTime: Some(x_current_time),
        xGetLastError: Some(x_last_error),
        xCurrentTimeInt64: base.xCurrentTimeInt64.map(|_| x_current_time_ms as _),
        xSetSystemCall: None,
        xGetSystemCall: None,
        xNextSystemCall: None,
        ..*base
    }
}
