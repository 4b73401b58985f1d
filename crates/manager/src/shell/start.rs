//! How a manager's process starts: it listens, opens its directory or joins a group, and starts its threads.

use super::new_paths::NewPaths;
use super::run::CoreLoop;
use super::{In, Job, ManagerServer, RELEASE, Shared, room, spawn};
use crate::config::Config;
use crate::db::{Db, DbError, DirLock};
use crate::error::Failure;
use crate::group::{DbHome, Found, GroupError, Manager, Setup, StartError, disk_of, resume};
use crate::inbox::Inbox;
use parking_lot::Mutex;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tessera_consensus::PeerConfig;
use tessera_net::dialer::NoService;
use tessera_net::{BufferPool, Dialer, Endpoint, Limits, Server, ServerError};
use tessera_wire::consensus::{JoinGroup, Member, PeerKind};
use tessera_wire::{Code, Error, Hello, PROTOCOL_VERSION, Role, hex};
use thiserror::Error as ThisError;

/// Threads that write to sockets, beside the core's. None of them waits for a peer.
const SENDERS: usize = 4;
/// Limit of the wait for one peer of the group to join.
const ASK_TIMEOUT: Duration = Duration::from_secs(2);
/// Pause before all are asked again.
const ASK_AGAIN: Duration = Duration::from_millis(500);

/// What a manager is started with.
#[derive(Debug, Clone)]
pub struct ServeOptions {
    /// Its directory.
    pub dir: PathBuf,
    /// Addresses to listen on; the first `HOST:PORT` is the one that other peers and clients are told.
    pub listen: Vec<Endpoint>,
    /// `HOST:PORT` to tell others instead.
    pub advertise: Option<String>,
    /// Host label: voters of the group are on distinct hosts.
    pub host: String,
    /// Addresses of peers of a group to join if the directory is empty. Empty: a new cluster is founded.
    pub join: Vec<Endpoint>,
    /// Id of a cluster that is founded; `None`: a random one.
    pub cluster_id: Option<[u8; 16]>,
    /// Knobs.
    pub config: Config,
}

impl ServeOptions {
    /// The defaults: an empty directory becomes a new cluster.
    #[must_use]
    pub fn new(dir: &Path, listen: &[Endpoint], config: Config) -> ServeOptions {
        ServeOptions {
            dir: dir.to_path_buf(),
            listen: listen.to_vec(),
            advertise: None,
            host: "localhost".into(),
            join: Vec::new(),
            cluster_id: None,
            config,
        }
    }
}

/// Why a manager did not start.
#[derive(Debug, ThisError)]
pub enum ServeError {
    /// The directory cannot be served.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The configuration is not valid.
    #[error(transparent)]
    Config(#[from] Failure),
    /// The server could not listen on an address.
    #[error(transparent)]
    Listen(#[from] ServerError),
    /// A thread could not be started.
    #[error("cannot start a thread: {0}")]
    Thread(std::io::Error),
    /// No address that others can reach is known.
    #[error(
        "--listen {listen}: other managers and nodes cannot reach this manager there; listen on HOST:PORT, or give --advertise HOST:PORT"
    )]
    Address {
        /// Where it listens.
        listen: String,
    },
    /// An empty directory, and nobody else is named.
    #[error(
        "--join {address} is this manager itself, and its directory is empty; name other managers or nodes of the group"
    )]
    JoinsItself {
        /// Its address.
        address: String,
    },
    /// The peers named by `--join` belong to two clusters.
    #[error(
        "--join names two clusters: {} at {first} and {} at {second}; name managers or nodes of one", hex(.first_id), hex(.second_id)
    )]
    TwoClusters {
        /// One that answered.
        first: String,
        /// Its cluster.
        first_id: [u8; 16],
        /// Another one.
        second: String,
        /// Its cluster.
        second_id: [u8; 16],
    },
    /// The disk has no room for what a start writes.
    #[error(
        "{dir}: the disk is full ({free_bytes} bytes are free, about {needed_bytes} are needed); free space on it, then start this manager \
         again"
    )]
    Full {
        /// The directory, absolute.
        dir: String,
        /// Free bytes.
        free_bytes: u64,
        /// Bytes that a start may need.
        needed_bytes: u64,
    },
    /// None of the peers named by `--join` answers.
    #[error("none of {addresses} answers ({error}); check --join, and that one of them runs")]
    NoPeer {
        /// The addresses.
        addresses: String,
        /// What the last one answered.
        error: Error,
    },
}

impl From<DbError> for ServeError {
    fn from(error: DbError) -> Self {
        ServeError::Start(error.into())
    }
}

impl From<GroupError> for ServeError {
    fn from(error: GroupError) -> Self {
        ServeError::Start(error.into())
    }
}

impl ManagerServer {
    /// Serves the directory: goes on from what it holds, or joins a group, or founds a cluster.
    ///
    /// # Errors
    /// The directory, the database, the log or an address cannot be used.
    pub fn start(options: ServeOptions) -> Result<ManagerServer, ServeError> {
        crate::placement::groups::check_config(&options.config)?;
        let inbox = Arc::<Inbox<In>>::default();
        let shared = Arc::new(Shared {
            cluster_id: OnceLock::new(),
            inbox: inbox.clone(),
            members: Mutex::default(),
            greeted: Arc::default(),
        });
        if !Db::is_in(&options.dir) {
            // An address that is taken must leave no trace in a new directory.
            tessera_net::probe(&options.listen)?;
        }
        let locked = NewPaths::before_locking(&options.dir).locked(Db::lock(&options.dir));
        let (lock, made) = locked.map_err(|error| room::explain(&options.dir, error.into()))?;
        let server =
            Server::start(&options.listen, shared.clone(), BufferPool::new(16 << 20), limits(&options.config))?;
        let address = public_address(&options, server.endpoints())?;
        let mut manager = open(&options, &lock, address).map_err(|error| room::explain(&options.dir, error))?;
        made.keep();
        let cluster_id = manager.peer().log().identity().cluster_id;
        manager.set_seeds(options.join.iter().map(Endpoint::to_string).collect());
        *shared.members.lock() = manager.member_addresses();
        let _ = shared.cluster_id.set(cluster_id);
        let metrics = Arc::new(Mutex::new(manager.metrics()));
        let dialer = dialer(&cluster_id);
        let mut outboxes = Vec::new();
        let mut senders = Vec::new();
        for i in 0..SENDERS {
            let (outbox, jobs) = channel();
            let (shared, dialer) = (shared.clone(), dialer.clone());
            let send = move || jobs.iter().for_each(|job: Job| job(&shared, &dialer));
            senders.push(spawn(format!("sender-{i}"), send).map_err(ServeError::Thread)?);
            outboxes.push(outbox);
        }
        #[cfg(test)]
        let readers = manager.readers().expect("its database is in a directory").clone();
        let core = CoreLoop::new(manager, inbox, shared.greeted.clone(), outboxes, metrics.clone())
            .map_err(ServeError::Thread)?;
        let core = Some(spawn("core".into(), move || core.run()).map_err(ServeError::Thread)?);
        Ok(ManagerServer {
            shared,
            server: Some(server),
            core,
            senders,
            metrics,
            #[cfg(test)]
            readers,
        })
    }
}

/// What is in the directory, or what becomes of an empty one.
fn open(options: &ServeOptions, lock: &DirLock, address: String) -> Result<Manager, ServeError> {
    let dir = &options.dir;
    let host = options.host.clone();
    let name = format!("manager-{address}");
    let member = Member { id: draw_id(), kind: PeerKind::Manager as i32, name, host, address };
    let setup = || -> Result<Setup, GroupError> {
        Ok(Setup {
            home: DbHome::in_dir(dir, lock.clone()),
            disk: disk_of(dir, lock)?,
            config: options.config.clone(),
            peer: PeerConfig {
                voters_max: options.config.max_voters as usize,
                ..PeerConfig::new(member.clone(), rand::random())
            },
        })
    };
    match resume(dir, setup()?)? {
        Found::Manager(manager) => Ok(*manager),
        Found::Nothing(db) if options.join.is_empty() => Ok(Manager::found(found(options, lock, db)?, setup()?)?),
        Found::Nothing(Some(_)) => Err(StartError::LogMissing { dir: dir.display().to_string() }.into()),
        Found::Nothing(None) => {
            Db::check_empty(dir)?;
            let others: Vec<&Endpoint> =
                options.join.iter().filter(|peer| peer.to_string() != member.address).collect();
            if others.is_empty() {
                return Err(ServeError::JoinsItself { address: member.address });
            }
            let cluster_id = ask_cluster(&others, Duration::from_millis(options.config.join_timeout_ms))?;
            tracing::info!(cluster = hex(&cluster_id), "{} is empty: this manager joins a group", dir.display());
            Ok(Manager::join_in(dir, lock.clone(), cluster_id, setup()?)?)
        }
    }
}

fn found(options: &ServeOptions, lock: &DirLock, db: Option<Db>) -> Result<Db, ServeError> {
    let dir = &options.dir;
    let db = match db {
        Some(db) => db,
        None => {
            Db::check_empty(dir)?;
            let cluster_id = options.cluster_id.unwrap_or_else(rand::random);
            tracing::warn!(
                "{} held no database: this manager serves a new cluster, {}; if it should serve one that exists, stop it, \
                 move the directory away and start it with --join",
                dir.display(),
                hex(&cluster_id)
            );
            Db::create_with(dir, lock.clone(), cluster_id)?
        }
    };
    db.rely_on_log().map_err(GroupError::from)?;
    Ok(db)
}

pub(super) fn draw_id() -> u64 {
    rand::random::<u64>().max(1)
}

/// Asks all peers to join which cluster they belong to, until one answers. Peers of two clusters are refused: a directory joins once.
fn ask_cluster(peers: &[&Endpoint], timeout: Duration) -> Result<[u8; 16], ServeError> {
    let give_up = Instant::now() + timeout;
    loop {
        let (mut found, mut last) = (None, Error::new(Code::Unavailable, "no address was given"));
        for endpoint in peers {
            match (ask_peer(endpoint), found) {
                (Ok(id), None) => found = Some((endpoint, id)),
                (Ok(id), Some((first, first_id))) if id != first_id => {
                    let (first, second) = (first.to_string(), endpoint.to_string());
                    return Err(ServeError::TwoClusters { first, first_id, second, second_id: id });
                }
                (Ok(_), Some(_)) => {}
                (Err(error), _) => last = error,
            }
        }
        if let Some((_, cluster_id)) = found {
            return Ok(cluster_id);
        }
        if Instant::now() >= give_up || !last.is_retryable() {
            let addresses: Vec<String> = peers.iter().map(|endpoint| endpoint.to_string()).collect();
            return Err(ServeError::NoPeer { addresses: addresses.join(", "), error: last });
        }
        tracing::warn!(error = %last, "no peer of the group to join answers; asking again");
        std::thread::sleep(ASK_AGAIN);
    }
}

/// Asks one peer. A dialer takes all its peers for one cluster, so each has its own.
fn ask_peer(peer: &Endpoint) -> Result<[u8; 16], Error> {
    let dialer = dialer(&[]);
    let answer = dialer.call_wait(peer, &JoinGroup::default(), Vec::new(), ASK_TIMEOUT);
    dialer.close();
    let unknown = |_| Error::new(Code::Unavailable, "it does not know its cluster yet");
    answer.and_then(|(reply, _)| <[u8; 16]>::try_from(&reply.cluster_id[..]).map_err(unknown))
}

/// What the manager lets its peers take. Only frames of the group have payloads.
fn limits(config: &Config) -> Limits {
    Limits {
        clients: config.max_client_connections,
        nodes: config.max_node_connections,
        client_payload_bytes: 0,
        ..Limits::default()
    }
}

/// A dialer for calls to nodes and to other peers of the group.
pub(super) fn dialer(cluster_id: &[u8]) -> Dialer {
    let (cluster_id, release) = (cluster_id.to_vec(), RELEASE.to_string());
    let protocol_version = PROTOCOL_VERSION;
    let hello = Hello { protocol_version, role: Role::Manager as i32, cluster_id, release, ..Hello::default() };
    Dialer::new(hello, Arc::new(NoService), BufferPool::new(16 << 20))
}

/// The address that the manager announces. One that listens on a Unix socket only is alone: it announces the socket.
fn public_address(options: &ServeOptions, bound: &[Endpoint]) -> Result<String, ServeError> {
    if let Some(address) = &options.advertise {
        return Ok(address.clone());
    }
    let tcp = bound.iter().find(|endpoint| matches!(endpoint, Endpoint::Tcp(_)));
    let listen = tcp.or(bound.first()).map(Endpoint::to_string).unwrap_or_default();
    let is_any = listen.parse::<std::net::SocketAddr>().is_ok_and(|address| address.ip().is_unspecified());
    let is_local = tcp.is_none() && !options.join.is_empty();
    if is_any || is_local { Err(ServeError::Address { listen }) } else { Ok(listen) }
}
