//! A whole store on one machine: managers and nodes as child processes of this binary, under one directory.
//!
//! [`shape`] says how many there are, and where they listen. [`cluster::Cluster`] starts, watches and stops them (the demo
//! uses it, too); [`run`] is the command. Nothing is restarted silently: a child that dies is reported, and restarted only
//! with `--restart`.

pub mod child;
pub mod cluster;
pub mod directory;
pub mod shape;

use crate::args::{Common, UpArgs};
use crate::daemon::signals::{Event, Events};
use crate::exit::{Exit, Failure, Outcome, bail, failure};
use crate::term::Out;
use cluster::{Cluster, Death};
use crossbeam_channel::RecvTimeoutError;
use directory::{Counts, Directory};
use serde_json::json;
use shape::Shape;
use std::path::Path;
use std::time::{Duration, Instant};
use tessera_fuse::Mount;

/// Shortest and longest pause before a dead child is restarted.
const RESTART_PAUSE: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(60));
/// After this long, nodes that are not up are reported.
const READY_WITHIN: Duration = Duration::from_secs(60);
/// The mount waits this many seconds for the manager, which has already announced itself.
const MOUNT_WAIT_S: u64 = 10;

/// `tessera up`.
///
/// # Errors
/// The store cannot be started or mounted, or a daemon had to be killed at the end.
pub fn run(args: UpArgs) -> Outcome {
    let out = args.output;
    if args.spool.spool.is_some() && args.mount.is_none() {
        bail!(Exit::Usage, "--spool is the mount's: give --mount DIR, too");
    }
    let events = Events::listen(true)?;
    crate::daemon::keep_private();
    let directory = Directory::open(&args.dir)?;
    let shape = Shape::of(&args, &directory)?;
    let Counts { nodes, disks, .. } = shape.counts;
    out.note(format!(
        "Starting {} with {disks} disk{}{} under {} ...",
        shape.counts.daemons(),
        if disks == 1 { "" } else { "s" },
        if nodes == 1 { "" } else { " each" },
        directory.root().display()
    ));
    let mut cluster = Cluster::new(directory, shape);
    let outcome = serve(&mut cluster, &events, out, &args);
    let stopped = cluster.stop(out);
    if outcome.is_ok() && stopped.is_ok() {
        out.note("Stopped. Everything is kept; the next `tessera up` finds it again.");
    }
    outcome.and(stopped)
}

fn serve(cluster: &mut Cluster, events: &Events, out: Out, args: &UpArgs) -> Outcome {
    cluster.start(events, out)?;
    cluster.wait_ready(events, READY_WITHIN)?;
    let mounted = args.mount.as_ref().map(|dir| mount(cluster, dir, args)).transpose()?;
    welcome(cluster, out, mounted.as_ref())?;
    let watched = watch(cluster, events, out, args.restart);
    // Unmount while the cluster still serves, so that open files are committed.
    mounted.map_or(Ok(()), crate::mount::end).and(watched)
}

fn mount(cluster: &Cluster, dir: &Path, args: &UpArgs) -> Outcome<Mount> {
    let common = Common::new(&cluster.manager_list(), MOUNT_WAIT_S, args.output);
    crate::daemon::logging::start_for_command(!args.output.json)?;
    let spool = crate::mount::spool(&args.spool);
    crate::mount::start(&common, dir, tessera_fuse::Options { spool, ..Default::default() })
}

/// Prints the addresses and what to type next.
fn welcome(cluster: &Cluster, out: Out, mounted: Option<&Mount>) -> Outcome {
    if out.json {
        return out.document(&cluster.describe());
    }
    out.table(&cluster.table())?;
    if out.quiet {
        return Ok(());
    }
    let (program, manager, nodes) = (program(), cluster.manager_list(), cluster.shape.counts.nodes);
    let is_default = manager == crate::args::DEFAULT_MANAGER;
    let export = if is_default { String::new() } else { format!("  export TESSERA_MANAGER={manager}\n") };
    let ls = mounted.map(|mounted| format!("  ls {}\n", mounted.path().display())).unwrap_or_default();
    let text = format!(
        "\nAll {nodes} nodes are up. In another terminal:\n\n{export}  {program} put -r DIRECTORY tess:/\n  {program} ls -l \
         tess:/\n  {program} status\n{ls}\nCtrl-C stops everything cleanly."
    );
    text.lines().try_for_each(|line| out.line(line))
}

/// The command that the user types for this binary.
fn program() -> String {
    std::env::args().next().unwrap_or_else(|| "tessera".into())
}

/// A dead child that is to be restarted.
struct Restart {
    name: String,
    deaths: u32,
    at: Instant,
}

/// Watches the children until a stop is requested.
fn watch(cluster: &mut Cluster, events: &Events, out: Out, restart: bool) -> Outcome {
    let mut restarts: Vec<Restart> = Vec::new();
    loop {
        let now = Instant::now();
        let wait = restarts.iter().map(|r| r.at.saturating_duration_since(now)).min();
        let event = match wait {
            Some(wait) => events.receiver().recv_timeout(wait),
            None => events.receiver().recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match event {
            Ok(Event::Stop(why)) => {
                out.note("");
                out.note(format!("Stopping ({why}): managers first, then nodes ..."));
                return Ok(());
            }
            Ok(Event::Child) => {
                for death in cluster.reap() {
                    report(&death, out, restart)?;
                    if restart {
                        let at = Instant::now() + pause(death.deaths);
                        restarts.push(Restart { name: death.name, deaths: death.deaths, at });
                    }
                }
            }
            Err(RecvTimeoutError::Timeout) => restart_due(cluster, events, out, &mut restarts),
            Err(RecvTimeoutError::Disconnected) => {
                return Err(Failure::new(Exit::Failed, "signals cannot be heard any more"));
            }
        }
    }
}

fn pause(deaths: u32) -> Duration {
    RESTART_PAUSE.0.saturating_mul(1 << deaths.clamp(1, 16).saturating_sub(1)).min(RESTART_PAUSE.1)
}

fn report(death: &Death, out: Out, restart: bool) -> Outcome {
    if out.json {
        return out.document(&json!({"event": "died", "name": death.name, "how": death.how, "log": death.log}));
    }
    let next = match restart {
        true => "it is started again".to_string(),
        false => format!("start it again by stopping and starting `{} up`, or use --restart", program()),
    };
    out.warn(&failure!(Exit::Failed, "{}; {next}", death.text()));
    Ok(())
}

fn restart_due(cluster: &mut Cluster, events: &Events, out: Out, restarts: &mut Vec<Restart>) {
    let now = Instant::now();
    for restart in restarts.extract_if(.., |r| r.at <= now).collect::<Vec<_>>() {
        match cluster.launch(&restart.name, &[], events) {
            Ok(()) if out.json => drop(out.document(&json!({"event": "restarted", "name": restart.name}))),
            Ok(()) => out.note(format!("{} runs again", restart.name)),
            Err(failure) => {
                out.warn(&failure);
                restarts.push(Restart { at: now + pause(restart.deaths), ..restart });
            }
        }
    }
}
