//! Clean-up of an interrupted command: on Ctrl-C or SIGTERM it removes half-written files, tells the manager that its
//! sessions have ended, and ends with exit code 130.

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
/// Longest wait for a manager that does not answer. The sessions of this process expire anyway.
pub const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Registers `client`: an interrupt ends its sessions.
pub fn register_client(client: &Client) {
    *CLIENT.lock() = Some(client.clone());
    start();
}

/// Registers `file`: an interrupt removes it.
pub fn register_file(file: &Path) {
    start();
    FILES.lock().push(file.to_path_buf());
}

/// Whether this process was interrupted. Later failures are consequences and are not reported.
pub fn is_interrupted() -> bool {
    INTERRUPTED.load(Ordering::Acquire)
}

/// Blocks in an interrupted process until it exits with code 130.
pub fn end_if_interrupted() {
    while is_interrupted() {
        std::thread::park_timeout(CLOSE_TIMEOUT);
    }
}

fn start() {
    START.call_once(|| {
        // Without this thread an interrupted command leaves a `.part` file and a session that must expire.
        let Ok(mut signals) = signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGHUP]) else { return };
        let _ = std::thread::Builder::new().name("cleanup".into()).spawn(move || {
            if signals.forever().next().is_some() {
                INTERRUPTED.store(true, Ordering::Release);
                FILES.lock().drain(..).for_each(|file| drop(std::fs::remove_file(file)));
                if let Some(client) = CLIENT.lock().take() {
                    client.close(CLOSE_TIMEOUT);
                }
                std::process::exit(Exit::Interrupted as i32);
            }
        });
    });
}

/// Unregisters `file`: it is complete and stays.
pub fn unregister_file(file: &Path) {
    FILES.lock().retain(|f| f != file);
}
