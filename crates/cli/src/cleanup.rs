//! Files that must not outlive an interrupted command: on Ctrl-C or SIGTERM they are removed and the command
//! ends with exit code 130.

use crate::exit::Exit;
use parking_lot::Mutex;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::path::{Path, PathBuf};
use std::sync::Once;

static FILES: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());
static START: Once = Once::new();

/// `file` is removed if this process is interrupted.
pub fn watch(file: &Path) {
    START.call_once(|| {
        // Without the thread an interrupted command leaves a `.part` file, which is a nuisance and no loss.
        if let Ok(mut signals) = signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGHUP]) {
            let _ = std::thread::Builder::new().name("cleanup".into()).spawn(move || {
                if signals.forever().next().is_some() {
                    FILES.lock().drain(..).for_each(|file| drop(std::fs::remove_file(file)));
                    std::process::exit(Exit::Interrupted as i32);
                }
            });
        }
    });
    FILES.lock().push(file.to_path_buf());
}

/// `file` has its place.
pub fn forget(file: &Path) {
    FILES.lock().retain(|f| f != file);
}
