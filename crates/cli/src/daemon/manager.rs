//! `tessera manager`: the metadata service on its embedded database.

use super::Daemon;
use super::config::ManagerSettings;
use super::metrics::Family;
use super::signals::{Event, Events};
use crate::args::ManagerRunArgs;
use crate::exit::{At, Exit, Failure, Outcome, bail};
use crossbeam_channel::{RecvTimeoutError, bounded};
use std::time::Duration;
use tessera_manager::db::DbError;
use tessera_manager::group::{GroupError, StartError};
use tessera_manager::metrics::Metrics;
use tessera_manager::shell::{ManagerServer, ServeError, ServeOptions};
use tessera_net::Endpoint;
use tessera_wire::Code;

/// Interval of the check whether the manager still serves.
const CHECK_EVERY: Duration = Duration::from_millis(200);

/// A manager that is told to stop while it starts waits this long for what the start finds.
const REFUSAL_WAIT: Duration = Duration::from_secs(1);

/// Runs a manager until it is asked to stop or fails.
///
/// # Errors
/// The configuration is not valid, the manager cannot start, or it ended by itself.
pub fn run(args: ManagerRunArgs) -> Outcome {
    let settings = ManagerSettings::new(args)?;
    let (daemon, events) = Daemon::prepare(&settings.flags, |manager: &ManagerServer| families(&manager.metrics()))?;
    if settings.restoring.restore {
        super::restore::run(&settings)?;
    }
    let Some(started) = start(&settings, &events)? else { return Ok(()) };
    super::make_private(&settings.dir);
    let listen = started.endpoints().to_vec();
    let addresses: Vec<String> = listen.iter().map(Endpoint::to_string).collect();
    tracing::info!(cluster = tessera_wire::hex(&started.cluster_id()), listen = addresses.join(" "), "serving");
    daemon.announce("manager", started, &listen);
    loop {
        match events.receiver().recv_timeout(CHECK_EVERY) {
            Ok(Event::Stop(why)) => {
                tracing::info!(why, "stopping");
                break;
            }
            Ok(Event::Child) => {}
            Err(RecvTimeoutError::Timeout) if daemon.is(|manager| !manager.is_finished()) => {}
            Err(_) => break,
        }
    }
    match daemon.take().and_then(ManagerServer::stop) {
        None => {
            tracing::info!("stopped");
            Ok(())
        }
        Some(why) => {
            tracing::error!("{why}");
            Err(why.into())
        }
    }
}

/// Starts the manager; `None`: it was told to stop first. It may wait for the peers to join for long, and a crash at any instant of it
/// is harmless.
fn start(settings: &ManagerSettings, events: &Events) -> Outcome<Option<ManagerServer>> {
    let options = ServeOptions::new(&settings.dir, &settings.listen, settings.core.clone());
    let (advertise, host, join) = (settings.advertise.clone(), settings.host.clone(), settings.join.clone());
    let options = ServeOptions { advertise, host, join, ..options };
    let (sender, started) = bounded(1);
    let run = move || _ = sender.send(ManagerServer::start(options));
    std::thread::Builder::new().name("start".into()).spawn(run).at("cannot start a thread")?;
    loop {
        crossbeam_channel::select! {
            recv(started) -> server => match server {
                Ok(server) => return server.map(Some).map_err(refused),
                Err(_) => bail!(Exit::Failed, "the manager's start panicked; its log says where"),
            },
            recv(events.receiver()) -> event => if let Ok(Event::Stop(why)) = event {
                // A refusal that comes at once is worth more than a silent end.
                return match started.recv_timeout(REFUSAL_WAIT) {
                    Ok(Err(error)) => Err(refused(error)),
                    Ok(Ok(server)) => server.stop().map_or(Ok(None), |why| Err(why.into())),
                    Err(_) => {
                        tracing::info!(why, "stopped before it served");
                        Ok(None)
                    }
                };
            },
        }
    }
}

fn refused(error: ServeError) -> Failure {
    let exit = match &error {
        ServeError::Start(StartError::Group(GroupError::Db(error))) => of_database(error),
        ServeError::Start(StartError::Group(GroupError::Peer(_) | GroupError::Open(_) | GroupError::Rebuild(_))) => {
            Exit::Refused
        }
        ServeError::Start(
            StartError::LogMissing { .. } | StartError::NothingLeft { .. } | StartError::Restoring { .. },
        ) => Exit::Refused,
        ServeError::Config(tessera_manager::error::Failure::Refused(error)) => Exit::of_code(error.code()),
        ServeError::Full { .. } => Exit::NoSpace,
        ServeError::NoPeer { error, .. } => Exit::of_code(error.code()),
        ServeError::Address { .. } | ServeError::JoinsItself { .. } | ServeError::TwoClusters { .. } => Exit::Usage,
        _ => Exit::Failed,
    };
    Failure::new(exit, error.to_string())
}

pub(super) fn of_database(error: &DbError) -> Exit {
    match error {
        DbError::LaterSchema { .. }
        | DbError::NotManagerDb { .. }
        | DbError::Locked { .. }
        | DbError::LogAlone(_)
        | DbError::NoSums(_)
        | DbError::Foreign { .. } => Exit::Refused,
        DbError::Damaged(_) => Exit::of_code(Code::Corrupt),
        DbError::NoDirectory { .. } => Exit::Conflict,
        DbError::Absent { .. } => Exit::NotFound,
        DbError::Exists { .. } => Exit::Conflict,
        error if error.is_full() => Exit::NoSpace,
        _ => Exit::Failed,
    }
}

fn families(m: &Metrics) -> Vec<Family> {
    let requests = m.requests.iter().map(|(kind, n)| (vec![("kind", kind.to_string())], *n));
    let mut families = vec![
        Family { counter: true, ..Family::each("manager_requests", "Requests by kind", requests) },
        Family::counter("manager_refused", "Requests answered with an error", m.refused),
        Family::counter("manager_group_commits", "Group commits", m.batches),
        Family::counter("manager_commands", "Commands in group commits", m.commands),
        Family::counter("manager_failed_group_commits", "Group commits that failed", m.failed_batches),
    ];
    families.extend(m.gauges.iter().map(|(name, value)| Family::gauge(format!("manager_{name}"), help(name), *value)));
    families
}

fn help(gauge: &str) -> &'static str {
    match gauge {
        "term" => "Term of the manager",
        "log_seq" => "Last entry of the command log",
        "map_version" => "Version of the map of nodes, disks and groups",
        "sessions" => "Open sessions",
        "reserved_bytes" => "Bytes reserved by sessions",
        "leases" => "Leases held by clients",
        "answers_kept" => "Replies in the reply cache",
        "requests_waiting" => "Requests that wait for a group commit",
        "files" => "Regular files",
        "directories" => "Directories",
        "versions" => "Versions kept",
        "logical_bytes" => "Bytes of all versions, every use of a chunk counted",
        "chunks" => "Chunks committed",
        "unique_bytes" => "Bytes of distinct chunks",
        "stored_bytes" => "Bytes of all fragments",
        "inlined_bytes" => "Bytes of tiny files that the metadata keeps until they move into packs",
        "members_waiting_for_room" => {
            "Members of lost and draining disks that wait: no disk on a further host has room"
        }
        "members_waiting_for_host" => "Members of lost and draining disks that wait: no further host is up",
        "metadata_compared_ms" => "End of the last comparison of the managers' databases, ms since 1970",
        "metadata_managers_compared" => "Managers in that comparison",
        "metadata_managers_differing" => "Managers whose databases differed in it",
        "metadata_differs" => "1: this manager's database differs from what a majority has",
        _ => "See tessera status",
    }
}
