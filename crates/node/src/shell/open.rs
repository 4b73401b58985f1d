//! Opens a node's disks. Each disk must belong to this cluster, be served by no other process, and have a known format;
//! otherwise the node does not start (P14).

use super::StartError;
use crate::core::{DiskDescription, FragmentKey};
use crate::disk_worker;
use std::sync::Arc;
use tessera_disk::{Disk, DiskError, DiskLock, Identity, IdentityError, hex16};
use tessera_segment::{ConaIndex, OpenProgress, Options, SegmentStore};

/// A disk that this process has locked. Nothing on it has changed yet.
pub(super) struct LockedDisk {
    pub(super) disk: Arc<dyn Disk>,
    identity: Option<Identity>,
    /// Its uuid; a new disk gets it with its identity.
    pub(super) uuid: [u8; 16],
    lock: DiskLock,
}

/// A disk ready to serve.
pub(super) struct OpenDisk {
    pub(super) store: Arc<SegmentStore>,
    pub(super) about: DiskDescription,
    /// Keeps other processes from serving the disk.
    pub(super) lock: DiskLock,
}

/// Locks the disks and reads their identities.
pub(super) fn lock_all(disks: Vec<Arc<dyn Disk>>) -> Result<Vec<LockedDisk>, StartError> {
    if disks.is_empty() {
        return Err(StartError::NoDisks);
    }
    let lock = |disk: Arc<dyn Disk>| -> Result<LockedDisk, StartError> {
        let lock = disk.lock().map_err(|source| match source {
            DiskError::Locked { .. } => StartError::Disk(source),
            source => StartError::Lock { disk: disk.describe(), source },
        })?;
        let identity = Identity::load(&*disk)?;
        if identity.is_none() {
            Identity::check_empty(&*disk)?;
        }
        let uuid = identity.as_ref().map_or_else(rand::random, |identity| identity.disk_uuid);
        Ok(LockedDisk { disk, identity, uuid, lock })
    };
    disks.into_iter().map(lock).collect()
}

/// The cluster of the disks, which must agree with each other. `None` if all disks are new.
pub(super) fn cluster_of(disks: &[LockedDisk]) -> Result<Option<[u8; 16]>, StartError> {
    let mut cluster = None;
    for it in disks {
        let Some(identity) = &it.identity else { continue };
        match cluster {
            Some(expected) if expected != identity.cluster_id => {
                return Err(IdentityError::OtherCluster {
                    disk: it.disk.describe(),
                    expected: hex16(&expected),
                    found: hex16(&identity.cluster_id),
                }
                .into());
            }
            _ => cluster = Some(identity.cluster_id),
        }
    }
    Ok(cluster)
}

/// Initialises new disks, and opens all stores.
pub(super) fn open_all(
    disks: Vec<LockedDisk>,
    cluster_id: [u8; 16],
    now_ms: u64,
    options: &Options,
) -> Result<Vec<OpenDisk>, StartError> {
    for it in &disks {
        if it.identity.is_none() {
            let identity = Identity { cluster_id, disk_uuid: it.uuid, created_ms: now_ms };
            identity.create(&*it.disk)?;
            tracing::info!(disk = %it.disk.describe(), "made a new disk");
        }
    }
    disks.into_iter().map(|it| open_one(it, options)).collect()
}

fn open_one(it: LockedDisk, options: &Options) -> Result<OpenDisk, StartError> {
    let path = it.disk.describe();
    let mut progress =
        |p: OpenProgress| tracing::debug!(disk = path, done = p.segments_done, of = p.segments_total, "scan");
    let index = Box::new(ConaIndex::open(it.disk.clone()));
    let (store, report) = SegmentStore::open_with_index(it.disk, options.clone(), index, &mut progress)
        .map_err(|source| StartError::Store { disk: path.clone(), source })?;
    if let Some(tail) = &report.torn_tail {
        tracing::info!(
            disk = path,
            segment = tail.segment,
            cut_bytes = tail.cut_bytes,
            "cut a torn tail: after a crash it was never acknowledged; if the disk lost synced bytes, the manager's inventory finds \
             what is missing"
        );
    }
    for finding in &report.findings {
        tracing::warn!(disk = path, %finding, "found while opening");
    }
    if let Some(reason) = &report.index_lost {
        tracing::warn!(disk = path, reason, "the index was made anew from the segments");
    }
    let (segments, fragments, records_read) = (report.segments, report.fragments, report.records);
    tracing::info!(disk = path, segments, fragments, records_read, resumed = report.resumed, "disk is open");
    let rot: Vec<FragmentKey> = disk_worker::rot_of_opening(&report);
    let stats = disk_worker::stats(&store)?;
    let about =
        DiskDescription { uuid: store.identity().disk_uuid, path, stats: crate::core::DiskStats { rot, ..stats } };
    Ok(OpenDisk { store: Arc::new(store), about, lock: it.lock })
}
