//! How a node with only new disks joins a cluster: it learns the manager's cluster, asks whether the manager accepts it, and
//! only then writes the cluster's id onto its disks. A node that the manager refuses leaves them as they were (P14).

use super::open::LockedDisk;
use super::{NodeOptions, StartError, hello, node_info};
use crate::core::Rival;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tessera_net::dialer::NoService;
use tessera_net::{BufferPool, Dialer, Endpoint, Managers};
use tessera_wire::meta::RegisterNode;
use tessera_wire::{Code, DiskInfo, Error};

/// Asks all managers which cluster they serve, and waits for each of them: what the node writes onto its disks stays.
///
/// # Errors
/// All refuse, two clusters answer, or none answers within `join_timeout`.
pub(super) fn ask_cluster(options: &NodeOptions) -> Result<[u8; 16], StartError> {
    let hello = hello([0; 16], &options.host);
    let dialer = Dialer::with_timeout(hello, Arc::new(NoService), BufferPool::new(0), timeout(options));
    let managers = Managers::new(dialer.clone(), options.managers.clone());
    let ask = || {
        let cluster_id = managers.learn_cluster()?;
        let unknown = |_| (managers.leader(), Error::new(Code::Unavailable, "it does not know its cluster yet"));
        cluster_id.try_into().map_err(unknown)
    };
    let learned = retry(options, ask, |_| false);
    dialer.close();
    learned
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
    admitted?;
    // A manager that was silent when the cluster was learnt may belong to another, and answer by now.
    match ask_cluster(options)? {
        id if id == cluster_id => Ok(()),
        other => {
            let [known, other] = [&cluster_id, &other].map(|id| tessera_wire::hex(id));
            let text =
                format!("cluster {known} let this node in, and now cluster {other} answers; name managers of one");
            let (manager, error) = (managers.leader(), Error::new(Code::WrongCluster, text));
            Err(StartError::Refused { manager, error })
        }
    }
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
