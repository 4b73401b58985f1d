//! `tessera node`: a storage node on real disks.

use super::Daemon;
use super::config::NodeSettings;
use super::metrics::{Family, device_families};
use super::packs;
use super::signals::Event;
use crate::args::NodeRunArgs;
use crate::exit::{Exit, Failure, Outcome, failure};
use crossbeam_channel::select;
use std::path::Path;
use std::sync::Arc;
use tessera_disk::{Disk, DiskError, IdentityError, RealDisk};
use tessera_node::{NodeMetrics, NodeServer, StartError};
use tessera_wire::Code;

/// Runs a node until it is asked to stop or fails.
///
/// # Errors
/// The configuration is not valid, a disk cannot be opened, or the cluster rejected the node.
pub fn run(args: NodeRunArgs) -> Outcome {
    run_on(args, |disk| disk)
}

/// As [`run`], on what `wrap` makes of each disk.
///
/// # Errors
/// As [`run`].
pub fn run_on(args: NodeRunArgs, wrap: impl Fn(Arc<dyn Disk>) -> Arc<dyn Disk>) -> Outcome {
    let mut settings = NodeSettings::new(args)?;
    let (daemon, events) = Daemon::prepare(&settings.flags, |node: &NodeServer| families(&node.metrics()))?;
    tessera_accel::use_device(settings.device, Default::default())?;
    settings.options.metrics_address = daemon.metrics_address().unwrap_or_default();
    let fresh: Vec<_> = settings.disks.iter().filter(|disk| holds_only(disk, &[])).cloned().collect();
    let open = |path| open_disk(path, settings.capacity_bytes).map(&wrap);
    settings.options.disks = settings.disks.iter().map(|path| open(path)).collect::<Outcome<_>>()?;
    tracing::info!(manager = %settings.options.managers, from = settings.manager_from, "joins the manager's cluster");
    let upkeep = packs::prepare(&settings.options);
    let started = NodeServer::start(settings.options).map_err(refused);
    if started.is_err() {
        // What was an empty directory is one again.
        let locked = fresh.iter().filter(|disk| holds_only(disk, &[LOCK_FILE]));
        locked.for_each(|disk| drop(std::fs::remove_file(disk.join(LOCK_FILE))));
    }
    let started = started?;
    settings.disks.iter().for_each(|disk| super::make_private(disk));
    let (fatal, listen) = (started.fatal().clone(), started.endpoints().to_vec());
    daemon.announce("node", started, &listen);
    upkeep.map_or(Ok(()), packs::Upkeep::start)?;
    let outcome = loop {
        select! {
            recv(fatal) -> error => {
                let failure = error.map_or_else(|_| Failure::new(Exit::Failed, "the node ended"), rejected);
                tracing::error!("{failure}");
                break Err(failure);
            }
            recv(events.receiver()) -> event => if let Ok(Event::Stop(why)) = event {
                tracing::info!(why, "stopping");
                break Ok(());
            }
        }
    };
    if let Some(mut node) = daemon.take() {
        node.stop();
        tracing::info!("stopped");
    }
    outcome
}

/// The file that a daemon locks on its disk.
const LOCK_FILE: &str = "lock";

/// Whether a directory holds exactly these entries.
fn holds_only(dir: &Path, names: &[&str]) -> bool {
    let Ok(entries) = std::fs::read_dir(dir) else { return false };
    let found: Vec<_> = entries.flatten().map(|entry| entry.file_name()).collect();
    found.iter().map(|name| name.to_string_lossy()).eq(names.iter().copied())
}

fn open_disk(path: &Path, capacity_bytes: Option<u64>) -> Outcome<Arc<dyn Disk>> {
    let disk = RealDisk::open(path).map_err(|e| missing(path, e))?;
    Ok(Arc::new(match capacity_bytes {
        Some(bytes) => disk.with_limit(bytes),
        None => disk,
    }))
}

/// A missing directory is not created: it may be the mount point of a disk that is not mounted.
fn missing(path: &Path, error: DiskError) -> Failure {
    match error {
        DiskError::NotFound { .. } => failure!(
            Exit::NotFound,
            "disk {}: no such directory; mount the disk, or make the directory",
            path.display()
        ),
        _ if path.exists() && !path.is_dir() => {
            failure!(Exit::Conflict, "disk {}: is not a directory; name the one it is mounted at", path.display())
        }
        error => Failure::new(Exit::Failed, error.to_string()),
    }
}

/// Why a running node cannot continue: another node has taken its name in the cluster.
fn rejected(error: tessera_wire::Error) -> Failure {
    match error.code() {
        Code::Exists => Failure::new(Exit::Refused, error.message),
        _ => error.into(),
    }
}

fn refused(error: StartError) -> Failure {
    let exit = match &error {
        full if full.is_full() => Exit::NoSpace,
        StartError::NoDisks | StartError::Advertise { .. } => Exit::Usage,
        StartError::Disk(DiskError::Locked { .. })
        | StartError::Identity(IdentityError::Disk(DiskError::Locked { .. })) => Exit::Refused,
        StartError::Identity(IdentityError::Checksum { .. } | IdentityError::Length { .. }) => Exit::Corrupt,
        StartError::Identity(_) => Exit::Refused,
        StartError::NoManager { .. } => Exit::Unavailable,
        // Another node has its name or serves its disks.
        StartError::Refused { error, .. } if error.code() == Code::Exists => Exit::Refused,
        StartError::Refused { error, .. } => Exit::of_code(error.code()),
        _ => Exit::Failed,
    };
    Failure::new(exit, error.to_string())
}

fn families(m: &NodeMetrics) -> Vec<Family> {
    let (c, t) = (&m.core, &m.traffic);
    let mut families = vec![
        Family::gauge("node_id", "Id of this node; 0 before the first registration", m.node_id),
        Family::gauge("node_incarnation", "Incarnation of this node", m.incarnation),
        Family::gauge("node_has_lease", "Whether the node may acknowledge puts", u64::from(m.has_lease)),
        Family::counter("node_puts", "Put requests received", t.puts),
        Family::counter("node_gets", "Get requests served", t.gets),
        Family::counter("node_received_bytes", "Payload bytes received", t.received_bytes),
        Family::counter("node_sent_bytes", "Payload bytes sent", t.sent_bytes),
        Family::counter(
            "node_far_received_bytes",
            "Fragment bytes received from other hosts, by host label",
            t.far_received_bytes,
        ),
        Family::counter("node_far_sent_bytes", "Payload bytes sent to other hosts, by host label", t.far_sent_bytes),
        Family::counter("node_log_received_bytes", "Bytes of the manager's command log", t.log_received_bytes),
        Family::counter("node_fragments_stored", "Fragments acknowledged", c.fragments_stored),
        Family::counter("node_fragments_refused", "Fragments refused one by one", c.fragments_refused),
        Family::counter("node_puts_refused", "Puts refused as a whole", c.puts_refused),
        Family::counter("node_fragments_deleted", "Fragments deleted", c.fragments_deleted),
        Family::counter("node_fragments_rebuilt", "Fragments rebuilt here", c.fragments_rebuilt),
        Family::counter("node_rebuilds_failed", "Fragments that could not be rebuilt", c.rebuilds_failed),
        Family::counter("node_rebuilt_bytes", "Bytes written by rebuilds", c.rebuilt_bytes),
        Family::counter("node_bad_sources", "Fragments of others found bad while rebuilding", c.bad_sources),
        Family::counter("node_rot_found", "Corrupt fragments found here", c.rot_found),
        Family::counter("node_scrubbed_bytes", "Bytes re-read by scrubbing", c.scrubbed_bytes),
        Family::counter("node_compacted_bytes", "Bytes freed by compaction", c.compacted_bytes),
        Family::counter("node_heartbeats_answered", "Heartbeats the manager answered", c.heartbeats_answered),
        Family::counter("node_heartbeats_lost", "Heartbeats without an answer", c.heartbeats_lost),
        Family::counter("node_rejoins", "Times this node had to register again", c.rejoins),
    ];
    let labels = |path: &str, id: &u64| vec![("disk", id.to_string()), ("path", path.to_string())];
    let each = |name, help, value: fn(&tessera_node::core::DiskStats) -> u64| {
        Family::each(name, help, m.disks.iter().map(|(path, id, _, stats)| (labels(path, id), value(stats))))
    };
    families.push(each("disk_capacity_bytes", "Size of the disk, or its limit", |s| s.capacity_bytes));
    families.push(each("disk_free_bytes", "Free bytes of the disk, within its limit", |s| s.free_bytes));
    families.push(each("disk_segments", "Segments", |s| s.store.segments));
    families.push(each("disk_fragments", "Live fragments", |s| s.store.fragments));
    families.push(each("disk_live_bytes", "Bytes of live records", |s| s.store.live_bytes));
    families.push(each("disk_dead_bytes", "Dead bytes that compaction can free", |s| s.store.dead_bytes));
    families.push(each("disk_index_bytes", "Memory of the disk's index", |s| s.store.index_bytes));
    let failed = m.disks.iter().map(|(path, id, why, _)| (labels(path, id), u64::from(!why.is_empty())));
    families.extend(device_families(&m.device_work));
    families.push(Family::each("disk_failed", "Whether the disk has failed and accepts no writes", failed));
    families
}
