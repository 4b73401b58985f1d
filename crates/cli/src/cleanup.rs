//! What must not outlive an interrupted command: on Ctrl-C or SIGTERM half-written files are removed, the manager is told that the
//! command's sessions have ended, and the command ends with exit code 130.

use crate::exit::Exit;
use parking_lot::Mutex;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tessera_client::Client;

static FILES: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());
static CLIENT: Mutex<Option<Client>> = Mutex::new(None);
static START: Once = Once::new();
static INTERRUPTED: AtomicBool = AtomicBool::new(false);
/// A manager that does not answer is not waited for longer than this; sessions end by themselves.
pub const FAREWELL: Duration = Duration::from_secs(1);

/// `client` gives up what it does if this process is interrupted.
pub fn give_up(client: &Client) {
    *CLIENT.lock() = Some(client.clone());
    start();
}

/// `file` is removed if this process is interrupted.
pub fn watch(file: &Path) {
    start();
    FILES.lock().push(file.to_path_buf());
}

/// Whether this process was interrupted: what fails from now on was given up, and is no news.
pub fn is_interrupted() -> bool {
    INTERRUPTED.load(Ordering::Acquire)
}

/// An interrupted process ends as one, whatever its command comes to meanwhile.
pub fn end_if_interrupted() {
    while is_interrupted() {
        std::thread::park_timeout(FAREWELL);
    }
}

fn start() {
    START.call_once(|| {
        // Without the thread an interrupted command leaves a `.part` file and a session, which is a nuisance and no loss.
        if let Ok(mut signals) = signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGHUP]) {
            let _ = std::thread::Builder::new().name("cleanup".into()).spawn(move || {
                if signals.forever().next().is_some() {
                    INTERRUPTED.store(true, Ordering::Release);
                    FILES.lock().drain(..).for_each(|file| drop(std::fs::remove_file(file)));
                    if let Some(client) = CLIENT.lock().take() {
                        client.close(FAREWELL);
                    }
                    std::process::exit(Exit::Interrupted as i32);
                }
            });
        }
    });
}

/// `file` has its place.
pub fn forget(file: &Path) {
    FILES.lock().retain(|f| f != file);
}
