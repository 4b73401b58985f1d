//! `tessera mount`: the store as a directory, until it is unmounted or asked to stop.

use crate::args::{Common, MountArgs, SpoolArgs};
use crate::daemon::announce::Announcement;
use crate::daemon::metrics::{Family, Server, device_families};
use crate::daemon::signals::{Event, Events};
use crate::daemon::{keep_private, logging};
use crate::exit::{Exit, Failure, Outcome, bail};
use crate::remote::{Store, WaitNotice};
use crate::term::Out;
use crossbeam_channel::RecvTimeoutError;
use serde_json::json;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tessera_fuse::spool::{SpoolError, SpoolOptions};
use tessera_fuse::{Mount, MountError, MountMetrics, Options};
use tessera_wire::meta::DeviceWork;

/// Interval of the check whether the mount still exists.
const CHECK_EVERY: Duration = Duration::from_millis(200);

/// Mounts, serves, unmounts.
///
/// # Errors
/// The store cannot be mounted, or open files could not be committed at the end.
pub fn run(args: MountArgs) -> Outcome {
    let out = args.common.output;
    logging::start_for_command(true)?;
    keep_private();
    let events = Events::listen(false)?;
    if args.follow_stdin {
        events.follow_stdin()?;
    }
    // Metrics start before the mount: an address that cannot be bound leaves no mount behind.
    let measured: Arc<OnceLock<Measured>> = Arc::default();
    let metrics = args.metrics.as_ref().map(|address| serve_metrics(address, measured.clone())).transpose()?;
    let mount = start(&args.common, &args.dir, options(&args))?;
    let _ = measured.set(Box::new(mount.metrics()));
    let metrics_address = metrics.as_ref().map(Server::address);
    let shown = mount.path().display().to_string();
    match out.json {
        _ if args.announce => {
            Announcement { role: "mount".into(), listen: vec![shown.clone()], metrics: metrics_address }.print(true);
        }
        true => out.document(&json!({"mounted": shown, "manager": args.common.manager, "metrics": metrics_address}))?,
        false => out.line(format!("tess:/ is mounted at {shown}; Ctrl-C or `umount {shown}` ends it"))?,
    }
    while !mount.is_over() {
        match events.receiver().recv_timeout(CHECK_EVERY) {
            Ok(Event::Stop(_)) | Err(RecvTimeoutError::Disconnected) => break,
            Ok(Event::Child) | Err(RecvTimeoutError::Timeout) => {}
        }
    }
    end(mount)
}

/// Mounts the store that `common` names at `dir`.
///
/// # Errors
/// The manager cannot be reached, or `dir` cannot be mounted.
pub fn start(common: &Common, dir: &Path, options: Options) -> Outcome<Mount> {
    // The client waits for a manager that restarts: programs on the mount see a delay, not an error.
    let client = Store::client(common, tessera_client::Options::default())?;
    Ok(Mount::new(client, dir, options)?)
}

/// Commits open files and unmounts.
///
/// # Errors
/// Some files could not be committed, or the unmount failed.
pub fn end(mount: Mount) -> Outcome {
    let shown = mount.path().display().to_string();
    let text = format!(
        "unmounting {shown}: waiting until what programs wrote is stored ... (a manager or nodes that do not answer are waited for)"
    );
    let started = Instant::now();
    let _notice = WaitNotice::start(Out::default(), text, move || started.elapsed());
    match mount.unmount() {
        Ok(0) => Ok(()),
        Ok(failed) => bail!(
            Exit::Failed,
            "{shown}: {failed} files could not be committed; the log above says why, and which of them stay in the spool"
        ),
        Err(error) => Err(Failure::io(format!("unmount {shown}"), &error)),
    }
}

fn options(args: &MountArgs) -> Options {
    Options {
        cache_ttl: if args.strict { Duration::ZERO } else { Duration::from_millis(args.cache_ms) },
        write_back: args.write_back,
        allow_other: args.allow_other || (Options::default().allow_other && !args.private),
        read_only: args.read_only,
        threads: args.threads.into(),
        spool: spool(&args.spool),
    }
}

/// The requested spool.
pub fn spool(args: &SpoolArgs) -> Option<SpoolOptions> {
    args.spool.clone().map(|dir| SpoolOptions { dir, limit_bytes: args.spool_size })
}

/// Metrics of the mount; `None`: the mount is gone.
type Measured = Box<dyn Fn() -> Option<MountMetrics> + Send + Sync>;

fn serve_metrics(address: &str, measured: Arc<OnceLock<Measured>>) -> Outcome<Server> {
    let now = move || measured.get().and_then(|measured| measured());
    Server::start(address, Box::new(move || now().map(|m| families(&m)).unwrap_or_default()))
}

fn families(m: &MountMetrics) -> Vec<Family> {
    let requests = m.requests.iter().map(|(op, count)| (vec![("op", op.to_string())], *count));
    let names = &m.stats.names;
    let mut families = vec![
        Family { counter: true, ..Family::each("mount_requests", "Requests of the kernel, by kind", requests) },
        Family::counter("mount_read_bytes", "Bytes the kernel read for programs", m.read_bytes),
        Family::counter("mount_written_bytes", "Bytes the kernel wrote for programs", m.written_bytes),
        Family::counter("mount_names_known", "Lookups of names and attributes answered under a lease", names.hits),
        Family::counter("mount_names_asked", "Lookups of names and attributes sent to the manager", names.misses),
        Family::gauge("mount_leased_inodes", "Inodes whose attributes are under a lease", names.leased_inodes),
        Family::gauge("mount_open_files", "Files that are open or wait in the spool", m.stats.open_files),
        Family::gauge("mount_uncommitted_files", "Open files with uncommitted bytes", m.stats.uncommitted_files),
    ];
    if let Some(s) = &m.stats.spool {
        families.extend([
            Family::gauge("mount_spool_limit_bytes", "Size limit of the spool", s.limit_bytes),
            Family::gauge("mount_spool_used_bytes", "Bytes in the spool", s.used_bytes),
            Family::gauge("mount_spool_waiting_files", "Files that wait to be pushed", s.waiting_files),
            Family::counter("mount_spool_pushed", "Versions pushed from the spool", s.pushed),
            Family::counter("mount_spool_segments", "Temporary files of incremental writes", s.segments),
            Family::counter("mount_spool_fallbacks", "Files meant for the spool but written without it", s.fallbacks),
            Family::counter("mount_spool_conflicts", "Files kept under another name after a conflict", s.conflicts),
            Family::counter("mount_spool_dropped", "Files removed before they were pushed", s.dropped),
            Family::counter("mount_spool_set_aside", "Logs that cannot be read", s.set_aside),
            Family::counter("mount_spool_lost", "Closed files of incremental writes that cannot be stored", s.lost),
            Family::counter("mount_spool_retries", "Failed pushes that are retried", s.retries),
        ]);
    }
    let device_work = tessera_accel::work_done().into_iter();
    let device_work =
        device_work.map(|(device, primitive, work)| DeviceWork::of_process(device, primitive, work.jobs, work.bytes));
    families.extend(device_families(&device_work.collect::<Vec<_>>()));
    families
}

impl From<MountError> for Failure {
    fn from(error: MountError) -> Self {
        let exit = match &error {
            MountError::NoDirectory { .. } => Exit::NotFound,
            MountError::NoFuse(_) => Exit::Unavailable,
            MountError::Refused { .. } | MountError::Mounted { .. } | MountError::Dead { .. } => Exit::Refused,
            MountError::Unknown(_) => Exit::Unavailable,
            MountError::Spool(SpoolError::NotPrivate { .. } | SpoolError::InUse { .. }) => Exit::Refused,
            MountError::Spool(SpoolError::InMount { .. }) => Exit::Usage,
            MountError::Spool(SpoolError::Io { .. }) => Exit::Failed,
        };
        Failure::new(exit, error.to_string())
    }
}
