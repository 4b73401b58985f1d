//! The daemons of this binary: configuration, logs, metrics, signals, and the commands `tessera manager` and `tessera
//! node`. The daemons' logic is in other crates.
//!
//! Start at [`manager::run`] and [`node::run`].

pub mod announce;
pub mod config;
pub mod knobs;
pub mod logging;
pub mod manager;
pub mod metrics;
pub mod node;
mod packs;
mod repeats;
pub mod restore;
pub mod signals;

use crate::args::DaemonFlags;
use crate::exit::Outcome;
use announce::Announcement;
use metrics::Family;
use parking_lot::Mutex;
use rustix::fs::Mode;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use signals::Events;
use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use tessera_net::Endpoint;

/// Makes the files and directories that this process creates its user's alone: they hold the files of all users.
pub fn keep_private() {
    rustix::process::umask(Mode::RWXG | Mode::RWXO);
}

/// Makes an existing directory of data this user's alone. If that is not allowed, it stays as it is with a warning.
pub fn make_private(dir: &Path) {
    let Ok(meta) = dir.metadata() else { return };
    let mode = meta.mode() & 0o7777;
    if mode & 0o077 == 0 {
        return;
    }
    match std::fs::set_permissions(dir, Permissions::from_mode(mode & !0o077)) {
        Ok(()) => tracing::info!(dir = %dir.display(), "other users had access: made it this user's alone"),
        Err(error) => {
            tracing::warn!(dir = %dir.display(), mode = format!("{mode:o}"), %error, "other users have access; chmod 700")
        }
    }
}

/// What the daemons have in common: a server `S` whose numbers `/metrics` serves while it runs.
struct Daemon<S> {
    server: Arc<Mutex<Option<S>>>,
    metrics: Option<metrics::Server>,
    announces: bool,
}

impl<S: Send + 'static> Daemon<S> {
    /// Starts the log, the signals and `/metrics`, before the server exists.
    fn prepare(flags: &DaemonFlags, families: fn(&S) -> Vec<Family>) -> Outcome<(Self, Events)> {
        keep_private();
        logging::start(flags)?;
        raise_file_limit();
        let events = Events::listen(false)?;
        if flags.follow_stdin {
            events.follow_stdin()?;
        }
        let server: Arc<Mutex<Option<S>>> = Arc::default();
        let measured = server.clone();
        let snapshot = Box::new(move || measured.lock().as_ref().map(families).unwrap_or_default());
        let metrics = flags.metrics.as_ref().map(|address| metrics::Server::start(address, snapshot)).transpose()?;
        Ok((Daemon { server, metrics, announces: flags.announce }, events))
    }

    fn metrics_address(&self) -> Option<String> {
        self.metrics.as_ref().map(metrics::Server::address)
    }

    /// Keeps the server that has started, and says where it listens.
    fn announce(&self, role: &str, server: S, listen: &[Endpoint]) {
        *self.server.lock() = Some(server);
        let listen = listen.iter().map(Endpoint::to_string).collect();
        Announcement { role: role.into(), listen, metrics: self.metrics_address() }.print(self.announces);
    }

    /// Whether the server has this property.
    fn is(&self, property: impl Fn(&S) -> bool) -> bool {
        self.server.lock().as_ref().is_some_and(property)
    }

    /// The server, to stop it.
    fn take(&self) -> Option<S> {
        self.server.lock().take()
    }
}

/// Allows as many open files as the system lets this process have: each connection takes two file descriptors.
fn raise_file_limit() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        tracing::warn!(%error, ?maximum, "the limit of open files stays as it is");
    }
}
