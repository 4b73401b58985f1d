//! How a manager starts: it founds a group, joins one, or goes on from its directory.

use super::backlog::Backlog;
use super::compare::{Comparisons, OwnState};
use super::replies::Unconfirmed;
use super::room::DiskRoom;
use super::{DbHome, GroupError, LOG_DIR, Manager, State};
use crate::config::Config;
use crate::db::cache::Caches;
use crate::db::{Db, DbError, DirLock, FILE_NAME, RESTORING_NAME};
use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use tessera_consensus::log::snapshot::SnapshotFiles;
use tessera_consensus::log::{Base, Log, LogIdentity, LogOptions};
use tessera_consensus::{Peer, PeerConfig};
use tessera_disk::{Disk, RealDisk};
use tessera_failpoint as failpoint;
use tessera_wire::consensus::{Membership, SnapshotInfo};

/// What a manager starts with.
pub struct Setup {
    /// Where the database lives.
    pub home: DbHome,
    /// Holds the log, in [`LOG_DIR`].
    pub disk: Arc<dyn Disk>,
    /// Knobs of the core.
    pub config: Config,
    /// The peer. Where there is a log, its id is the log's.
    pub peer: PeerConfig,
}

/// Why a directory cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// See [`GroupError`].
    #[error(transparent)]
    Group(#[from] GroupError),
    /// There is a database, and the log beside it is gone.
    #[error(
        "{dir}: holds a database, but not the log that belongs to it ({LOG_DIR}/); put it back, or move the directory away and start this \
         manager with --join ADDR, where ADDR is a manager or node that runs, or with --restore if a majority of them is lost"
    )]
    LogMissing {
        /// The directory.
        dir: String,
    },
    /// A restore was interrupted.
    #[error(
        "{dir}: a restore was interrupted here ({RESTORING_NAME}); run it again: tessera manager --dir {dir} --restore --from ADDR,... \
         with the nodes and managers that still run"
    )]
    Restoring {
        /// The directory.
        dir: String,
    },
    /// There is a log, and neither a database nor a snapshot to rebuild it from.
    #[error(
        "{dir}: the database is gone, and the log beside it ({LOG_DIR}/) holds no snapshot to rebuild it from; move the directory away \
         and start this manager with --join ADDR, where ADDR is a manager or node that runs, or with --restore if a majority of them is \
         lost"
    )]
    NothingLeft {
        /// The directory.
        dir: String,
    },
}

impl From<DbError> for StartError {
    fn from(error: DbError) -> Self {
        StartError::Group(error.into())
    }
}

impl Manager {
    /// Founds a group of one on a fresh database.
    ///
    /// # Errors
    /// The disk or the database fails.
    pub fn found(db: Db, setup: Setup) -> Result<Manager, GroupError> {
        let base = Base { index: 1, term: 1 };
        let member = setup.peer.member.clone();
        let membership =
            Membership { index: 1, voters: vec![member.id], members: vec![member], ..Membership::default() };
        let identity = LogIdentity { cluster_id: db.meta()?.cluster_id, peer_id: setup.peer.member.id };
        let log = Log::create(setup.disk.clone(), LOG_DIR, identity, LogOptions::default(), base, membership)?;
        Manager::finish_founding(db, log, setup)
    }

    /// A crash may have come between the log's first file and its first snapshot.
    fn finish_founding(db: Db, log: Log, setup: Setup) -> Result<Manager, GroupError> {
        let (base, membership) = (log.base(), log.membership().clone());
        let mut meta = db.meta()?;
        (meta.log_seq, meta.term) = (base.index, base.term);
        db.begin()?;
        meta.store(&db)?;
        db.commit()?;
        let files = SnapshotFiles::open(setup.disk.clone(), LOG_DIR)?;
        let mut manager = Manager::assemble(db, log, files, setup)?;
        let (index, term) = (base.index, base.term);
        manager.snapshot_now(SnapshotInfo { index, term, membership: Some(membership), ..SnapshotInfo::default() })?;
        Ok(manager)
    }

    /// Joins a group from an empty directory: it waits until a leader makes it a member. `db` is an empty database of the cluster; the
    /// group's snapshot replaces it.
    ///
    /// # Errors
    /// As [`Manager::found`].
    pub fn join(db: Db, setup: Setup) -> Result<Manager, GroupError> {
        let log = Manager::create_joining(db.meta()?.cluster_id, &setup)?;
        let files = SnapshotFiles::open(setup.disk.clone(), LOG_DIR)?;
        Manager::assemble(db, log, files, setup)
    }

    /// As [`Manager::join`], in a directory: the log is created before the database, so that a crash in between does not look like a
    /// group that is being founded.
    pub(crate) fn join_in(
        dir: &Path,
        lock: DirLock,
        cluster_id: [u8; 16],
        setup: Setup,
    ) -> Result<Manager, GroupError> {
        let log = Manager::create_joining(cluster_id, &setup)?;
        let db = Db::create_with(dir, lock, cluster_id)?;
        db.rely_on_log()?;
        let files = SnapshotFiles::open(setup.disk.clone(), LOG_DIR)?;
        Manager::assemble(db, log, files, setup)
    }

    fn create_joining(cluster_id: [u8; 16], setup: &Setup) -> Result<Log, GroupError> {
        let identity = LogIdentity { cluster_id, peer_id: setup.peer.member.id };
        let empty = Membership::default();
        Ok(Log::create(setup.disk.clone(), LOG_DIR, identity, LogOptions::default(), Base::default(), empty)?)
    }

    /// Starts again on a database and the log beside it; without a database, or with one that lost what the log has dropped, it
    /// takes the snapshot held. `None`: there is no log, or no snapshot where one is needed.
    ///
    /// # Errors
    /// [`GroupError`]; also if the log or the database lost what the other holds.
    pub fn restart(db: Option<Db>, mut setup: Setup) -> Result<Option<Manager>, GroupError> {
        let Some(mut log) = Log::open(setup.disk.clone(), LOG_DIR, LogOptions::default())? else { return Ok(None) };
        let files = SnapshotFiles::open(setup.disk.clone(), LOG_DIR)?;
        // A snapshot had arrived, and the log was not begun anew after it yet.
        let precedes = |held: &&SnapshotInfo| held.index > log.base().index && log.term(held.index) != Some(held.term);
        if let Some(held) = files.held().filter(precedes) {
            log.reset(Base { index: held.index, term: held.term }, held.membership.clone().unwrap_or_default())?;
        }
        setup.peer.member.id = log.identity().peer_id;
        let differs_since = setup.home.differs_since()?;
        let is_replaced = differs_since.is_some_and(|since| files.held().is_some_and(|held| held.index >= since));
        let db = db.filter(|_| !is_replaced);
        let applied = db.as_ref().map(Db::meta).transpose()?.map(|meta| meta.log_seq);
        // SQLite does not sync every commit: what it lost the log has, or the snapshot that the log begins with.
        let lags = applied.is_none_or(|applied| applied < log.base().index);
        let lags = lags && (db.is_none() || !failpoint::is_active("manager.lagging_database_kept"));
        let db = match (files.held().cloned().filter(|_| lags), db) {
            (Some(held), old) => setup.home.restore(old, &files, &held).map_err(GroupError::while_rebuilding)?,
            (None, Some(db)) if lags && log.base().index == 1 && applied == Some(0) => {
                return Manager::finish_founding(db, log, setup).map(Some);
            }
            (None, Some(db)) if !lags => db,
            (None, _) => return Ok(None),
        };
        if is_replaced {
            setup.home.forget_difference()?;
        }
        let mut manager = Manager::assemble(db, log, files, setup)?;
        if let Some(since) = differs_since.filter(|_| !is_replaced) {
            manager.differs_since(since);
        }
        Ok(Some(manager))
    }

    fn assemble(db: Db, log: Log, files: SnapshotFiles, setup: Setup) -> Result<Manager, GroupError> {
        let meta = db.meta()?;
        let peer = Peer::start(log, files, meta.log_seq, setup.peer)?;
        Ok(Manager {
            unconfirmed: Unconfirmed::new(setup.config.heartbeat_ms),
            config: setup.config,
            home: setup.home,
            peer,
            state: State::Standby { db, meta, caches: Caches::default() },
            proposed: None,
            actions: VecDeque::new(),
            backlog: Backlog::default(),
            wall_ahead_ns: 0,
            ticks: 0,
            copies: false,
            comparisons: Comparisons::default(),
            own: OwnState::default(),
            room: DiskRoom::default(),
            no_snapshot_before: 0,
            failed: None,
        })
    }
}

/// What is in a manager's directory.
pub(crate) enum Found {
    /// Nothing that counts, or what a crash left of a group that was being founded.
    Nothing(Option<Db>),
    /// A manager that goes on, or still joins.
    Manager(Box<Manager>),
}

/// The disk of the log in a manager's directory, which is locked.
pub(crate) fn disk_of(dir: &Path, lock: &DirLock) -> Result<Arc<dyn Disk>, GroupError> {
    let disk = RealDisk::open(dir).and_then(|disk| disk.with_lock(lock.file()));
    Ok(Arc::new(disk.map_err(tessera_consensus::log::LogError::from)?))
}

/// Goes on from a directory, which is locked. A database that is damaged or gone is rebuilt from the snapshot and the log beside it.
pub(crate) fn resume(dir: &Path, setup: Setup) -> Result<Found, StartError> {
    let DbHome::Dir { lock, .. } = &setup.home else { unreachable!("a directory is a home") };
    let name = || dir.display().to_string();
    if dir.join(RESTORING_NAME).exists() {
        return Err(StartError::Restoring { dir: name() });
    }
    let log = Log::open(setup.disk.clone(), LOG_DIR, LogOptions::default()).map_err(GroupError::from)?;
    let opened = match Db::is_marked_damaged(dir) && log.is_some() {
        true => Err(DbError::Damaged(format!("{}: a page was found damaged", dir.join(FILE_NAME).display()))),
        false => Db::open_with(dir, lock.clone()),
    };
    let Some(log) = log else {
        return match opened {
            Err(DbError::Absent(_)) => Ok(Found::Nothing(None)),
            Err(error) => Err(error.into()),
            Ok(db) if db.meta().map_err(GroupError::from)?.log_seq == 0 => Ok(Found::Nothing(Some(db))),
            Ok(_) => Err(StartError::LogMissing { dir: name() }),
        };
    };
    let db = match opened {
        Ok(db) => Some(db),
        Err(DbError::Absent(_)) if log.membership().voters.is_empty() && log.last_index() == 0 => {
            Some(Db::create_with(dir, lock.clone(), log.identity().cluster_id)?)
        }
        Err(DbError::Absent(_)) => {
            tracing::warn!("{} is gone: rebuilding it from the log beside it", dir.join(FILE_NAME).display());
            None
        }
        Err(error) if error.is_damage() => {
            tracing::warn!("{error}; rebuilding the database from the log beside it");
            None
        }
        Err(error) => return Err(error.into()),
    };
    if let Some(db) = &db {
        db.rely_on_log().map_err(GroupError::from)?;
    }
    drop(log);
    match Manager::restart(db, setup)? {
        Some(manager) => Ok(Found::Manager(Box::new(manager))),
        None => Err(StartError::NothingLeft { dir: name() }),
    }
}
