//! `tessera manager --restore`: a [`Restore`] over sockets.

use super::new_paths::NewPaths;
use super::start::{dialer, draw_id};
use crate::db::{Db, DirLock};
use crate::group::restore::{Ask, Restore, RestoreError, Restored, Survey};
use bytes::Bytes;
use std::cell::RefCell;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tessera_net::{Dialer, Endpoint};
use tessera_wire::consensus::{Member, PeerKind};
use tessera_wire::{Code, Error, Kind, Request};

/// Limit of the wait for a description, …
const DESCRIBE_TIMEOUT: Duration = Duration::from_secs(3);
/// … and for anything else: a fence is synced, a piece is read.
const TIMEOUT: Duration = Duration::from_secs(30);

/// What to restore, and how.
#[derive(Debug, Clone, Default)]
pub struct RestoreOptions {
    /// Addresses of nodes and managers that still run.
    pub from: Vec<Endpoint>,
    /// The peer whose state is to be taken; `None`: the newest.
    pub state_of: Option<String>,
    /// Take an older state, and replace the fence of another restore.
    pub force: bool,
    /// Host label of the new manager.
    pub host: String,
    /// Address of the new manager, as far as it is known.
    pub address: String,
}

/// A restore that has looked at what is left, and has changed nothing yet.
pub struct PlannedRestore {
    /// Before the lock: what it removes is still locked.
    made: NewPaths,
    lock: DirLock,
    ask: Sockets,
    survey: Survey,
    dir: PathBuf,
    options: RestoreOptions,
    begun: Option<u64>,
}

/// Finds out what is left of the group of these peers.
///
/// # Errors
/// As [`Survey::make`].
pub fn survey(from: &[Endpoint]) -> Result<Survey, RestoreError> {
    let addresses: Vec<String> = from.iter().map(Endpoint::to_string).collect();
    Survey::make(&Sockets::default(), &addresses)
}

impl PlannedRestore {
    /// Looks at the directory, which it locks, and at what is left of the group.
    ///
    /// # Errors
    /// The directory is in use, or nobody answers.
    pub fn new(dir: &Path, options: RestoreOptions) -> Result<PlannedRestore, RestoreError> {
        let (lock, made) = NewPaths::before_locking(dir).locked(Db::lock(dir))?;
        let ask = Sockets::default();
        let begun = restore(&ask, dir, &options).begun()?;
        let addresses: Vec<String> = options.from.iter().map(Endpoint::to_string).collect();
        let survey = Survey::make(&ask, &addresses)?;
        Ok(PlannedRestore { made, lock, ask, survey, dir: dir.to_path_buf(), options, begun })
    }

    /// What is left.
    #[must_use]
    pub fn survey(&self) -> &Survey {
        &self.survey
    }

    /// Refuses what [`PlannedRestore::run`] would refuse before it changes anything.
    ///
    /// # Errors
    /// As [`Survey::check`].
    pub fn check(&self) -> Result<(), RestoreError> {
        self.survey.check(self.begun, self.options.force)?;
        match restore(&self.ask, &self.dir, &self.options).candidates(&self.survey) {
            Err(error @ RestoreError::NoSuchPeer { .. }) => Err(error),
            // What is newest is known only once all are fenced.
            _ => Ok(()),
        }
    }

    /// Fences what is left, and fills the directory. [`super::ManagerServer::start`] then serves it.
    ///
    /// # Errors
    /// As [`Restore::run`].
    pub fn run(self) -> Result<Restored, RestoreError> {
        let PlannedRestore { made, lock, ask, survey, dir, options, .. } = self;
        made.keep();
        restore(&ask, &dir, &options).run(lock, survey, draw_id())
    }
}

fn restore<'a>(ask: &'a Sockets, dir: &Path, options: &RestoreOptions) -> Restore<'a, Sockets> {
    let (host, address) = (options.host.clone(), options.address.clone());
    let name = format!("manager-{address}");
    Restore {
        ask,
        dir: dir.to_path_buf(),
        member: Member { id: draw_id(), kind: PeerKind::Manager as i32, name, host, address },
        state_of: options.state_of.clone(),
        force: options.force,
    }
}

/// A dialer for each address: each peer names its own cluster.
#[derive(Default)]
struct Sockets(RefCell<HashMap<String, Dialer>>);

impl Ask for Sockets {
    fn ask<R: Request>(&self, address: &str, request: &R) -> Result<(R::Reply, Bytes), Error> {
        let endpoint: Endpoint = address.parse().map_err(|why: String| Error::new(Code::Invalid, why))?;
        let dialer = self.0.borrow_mut().entry(address.to_string()).or_insert_with(|| dialer(&[])).clone();
        let timeout = if R::KIND == Kind::DescribePeer { DESCRIBE_TIMEOUT } else { TIMEOUT };
        dialer.call_wait(&endpoint, request, Vec::new(), timeout)
    }
}

impl Drop for Sockets {
    fn drop(&mut self) {
        self.0.borrow().values().for_each(Dialer::close);
    }
}
