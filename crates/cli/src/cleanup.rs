//! Clean-up of an interrupted command: on Ctrl-C or SIGTERM it removes half-written files, tells the manager that its
//! sessions have ended, and ends with exit code 130.

use crate::exit::Exit;
use parking_lot::Mutex;
use rustix::fs::{AtFlags, Mode, OFlags};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Once};
use std::time::Duration;
use tessera_client::Client;

/// Half-written files: their directories and names.
static FILES: Mutex<Vec<(Arc<OwnedFd>, OsString)>> = Mutex::new(Vec::new());
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

/// A file under a temporary name. A drop or an interrupt removes it.
pub struct Temporary {
    directory: Arc<OwnedFd>,
    name: OsString,
}

/// Creates a file that a drop or an interrupt removes. The umask applies to its permissions.
///
/// # Errors
/// The system's; an interrupted process creates none.
pub fn create(directory: &Arc<OwnedFd>, name: &OsStr) -> io::Result<(File, Temporary)> {
    start();
    // An interrupt takes this lock before it removes files, so a file is in the list before that or is not created.
    let mut files = FILES.lock();
    if is_interrupted() {
        return Err(io::ErrorKind::Interrupted.into());
    }
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(directory, name, flags, Mode::from_raw_mode(0o666))?;
    files.push((directory.clone(), name.to_os_string()));
    Ok((file.into(), Temporary { directory: directory.clone(), name: name.to_os_string() }))
}

impl Temporary {
    /// The temporary name.
    pub fn name(&self) -> &OsStr {
        &self.name
    }

    /// Gives the file its name in the same directory. Replaces a file or link of that name.
    ///
    /// # Errors
    /// The system's; the file is removed then.
    pub fn rename(self, name: &OsStr) -> io::Result<()> {
        Ok(rustix::fs::renameat(&self.directory, &self.name, &self.directory, name)?)
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // After a rename nothing has the name.
        let _ = rustix::fs::unlinkat(&self.directory, &self.name, AtFlags::empty());
        FILES.lock().retain(|(directory, name)| !Arc::ptr_eq(directory, &self.directory) || *name != self.name);
    }
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
                interrupt();
                if let Some(client) = CLIENT.lock().take() {
                    client.close(CLOSE_TIMEOUT);
                }
                std::process::exit(Exit::Interrupted as i32);
            }
        });
    });
}

/// Removes half-written files. From now on none is created.
fn interrupt() {
    INTERRUPTED.store(true, Ordering::Release);
    for (directory, name) in FILES.lock().drain(..) {
        let _ = rustix::fs::unlinkat(&directory, &name, AtFlags::empty());
    }
}
