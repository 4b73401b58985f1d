//! What a panic ends. The code of a device (a driver's bindings, an operation's own code) is contained: a panic there fails one job or
//! one device. A panic anywhere else in a background thread is a bug that would leave others waiting for that thread for ever, so
//! [`end_on_panic`] ends the process: every daemon restarts from what is on disk.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    /// Calls of [`contain`] that this thread is in.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// Runs `code`, whose panic ends neither the thread nor the process. What `code` has changed by reference must not be used after a panic.
///
/// # Errors
/// What it panicked with.
pub fn contain<T>(code: impl FnOnce() -> T) -> Result<T, Box<dyn Any + Send>> {
    DEPTH.set(DEPTH.get() + 1);
    let result = catch_unwind(AssertUnwindSafe(code));
    DEPTH.set(DEPTH.get() - 1);
    result
}

/// From now on a panic of any thread but this one ends the process with SIGABRT, after its message, unless it is contained.
pub fn end_on_panic() {
    let main = std::thread::current().id();
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        if DEPTH.get() == 0 && std::thread::current().id() != main {
            eprintln!(
                "this is a bug; the process ends, so that nothing waits for this thread for ever; it can be started again"
            );
            std::process::abort();
        }
    }));
}
