//! How a node with only new disks joins a cluster: it learns the manager's cluster, asks whether the manager accepts it, and
//! only then writes the cluster's id onto its disks. A node that the manager refuses leaves them as they were (P14).

use super::open::LockedDisk;
use super::{NodeOptions, StartError, hello, node_info};
use crate::core::Rival;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tessera_net::dialer::NoService;
use tessera_net::{BufferPool, Connection, Dialer, Endpoint, Managers, Stream};
use tessera_wire::meta::RegisterNode;
use tessera_wire::{Code, DiskInfo, Error, Role, hex};

/// Asks all managers which cluster they serve. Nothing is believed if two clusters answer: a manager that lost its directory may have
/// founded one of its own.
///
/// # Errors
/// All refuse, two clusters answer, or none answers within `join_timeout`.
pub(super) fn ask_cluster(options: &NodeOptions) -> Result<[u8; 16], StartError> {
    let ask = || {
        let managers = options.managers.endpoints();
        let answers = std::thread::scope(|scope| {
            let greetings: Vec<_> = managers.iter().map(|manager| scope.spawn(|| greet(options, manager))).collect();
            greetings.into_iter().map(|greeting| greeting.join().expect("a greeting that panics is a bug")).collect()
        });
        one_cluster(managers, answers)
    };
    retry(options, ask, |_| false)
}

/// The cluster that all managers serve that know theirs.
fn one_cluster(managers: &[Endpoint], answers: Vec<Result<[u8; 16], Error>>) -> Result<[u8; 16], (Endpoint, Error)> {
    let (mut found, mut failure): (Option<(&Endpoint, [u8; 16])>, _) = (None, None);
    for (manager, answer) in managers.iter().zip(answers) {
        match (answer, found) {
            (Ok(cluster), None) => found = Some((manager, cluster)),
            (Ok(cluster), Some((first, other))) if cluster != other => {
                let text = format!(
                    "two clusters answer: {first} serves {}, {manager} serves {}; stop the one that is wrong, remove its directory, and \
                     start it with --join",
                    hex(&other),
                    hex(&cluster)
                );
                return Err((manager.clone(), Error::new(Code::WrongCluster, text)));
            }
            (Ok(_), Some(_)) => {}
            // A manager that may answer later counts more than one that refuses.
            (Err(error), _) if error.is_retryable() || failure.is_none() => failure = Some((manager.clone(), error)),
            (Err(_), _) => {}
        }
    }
    found.map(|(_, cluster)| cluster).ok_or_else(|| failure.expect("a list has at least one manager"))
}

/// Asks the leading manager whether this node may join with these disks. A rival in its place is given time to be found dead.
///
/// # Errors
/// As [`ask_cluster`].
pub(super) fn ask_admission(
    options: &NodeOptions,
    cluster_id: [u8; 16],
    address: &str,
    disks: &[LockedDisk],
) -> Result<(), StartError> {
    let disk = |it: &LockedDisk| DiskInfo { uuid: it.uuid.to_vec(), path: it.disk.describe(), ..DiskInfo::default() };
    let disks: Vec<DiskInfo> = disks.iter().map(disk).collect();
    let dialer = Dialer::new(hello(cluster_id, &options.host), Arc::new(NoService), BufferPool::new(0));
    let managers = Managers::new(dialer.clone(), options.managers.clone());
    let ask = || {
        let node = Some(node_info(options, address));
        // The key that the node keeps is made with its disks.
        let receipt_key = rand::random::<[u8; 32]>().to_vec();
        let disks = disks.clone();
        let request = RegisterNode { op_id: rand::random(), node, disks, receipt_key, check_only: true };
        let answer = managers.call_wait(&request, Vec::new(), timeout(options));
        answer.map(drop).map_err(|error| (managers.leader(), error))
    };
    let mut rival = Rival::default();
    let admitted = retry(options, ask, |error| Rival::is_named(error) && !rival.is_alive(error));
    dialer.close();
    admitted
}

/// Repeats `ask` for `join_timeout` while its errors are such that it may succeed later. They name the manager that was asked.
fn retry<T>(
    options: &NodeOptions,
    mut ask: impl FnMut() -> Result<T, (Endpoint, Error)>,
    mut may_pass: impl FnMut(&Error) -> bool,
) -> Result<T, StartError> {
    let give_up = Instant::now() + options.join_timeout;
    let mut noted = false;
    loop {
        let error = match ask() {
            Ok(answer) => return Ok(answer),
            Err((_, error)) if error.is_retryable() || may_pass(&error) => error,
            Err((manager, error)) => return Err(StartError::Refused { manager, error }),
        };
        let managers = &options.managers;
        if Instant::now() >= give_up {
            return Err(StartError::NoManager { managers: managers.clone(), error });
        }
        if !std::mem::replace(&mut noted, true) {
            tracing::warn!(%managers, %error, "new disks join no cluster yet; asking the manager again");
        }
        std::thread::sleep(Duration::from_millis(options.config.register_retry_min_ms));
    }
}

fn timeout(options: &NodeOptions) -> Duration {
    Duration::from_millis(options.config.register_timeout_ms)
}

/// The cluster of a manager.
fn greet(options: &NodeOptions, manager: &Endpoint) -> Result<[u8; 16], Error> {
    let unreachable = |e: std::io::Error| Error::new(Code::Unavailable, e.to_string());
    let stream = Stream::connect(manager, timeout(options)).map_err(unreachable)?;
    let connection = Connection::start(stream, Arc::new(NoService), BufferPool::new(0)).map_err(unreachable)?;
    let answer = connection.call_wait(&hello([0; 16], &options.host), Vec::new(), timeout(options));
    connection.close();
    let (reply, _) = answer?;
    if reply.role() != Role::Manager {
        let text = "it is a node and no manager; name the manager with --manager";
        return Err(Error::new(Code::Unsupported, text));
    }
    let cluster = <[u8; 16]>::try_from(&reply.cluster_id[..]);
    cluster.map_err(|_| Error::new(Code::Unavailable, "it does not know its cluster yet"))
}
