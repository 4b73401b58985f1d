//! `tessera demo` shows the promises on a scratch store whose daemons are really killed.
//!
//! [`steps`] runs the steps; [`edits`] reads an edited copy that is never on disk; [`compare`] checks every byte;
//! [`data`] generates files when PATH is not given.

mod compare;
mod data;
mod edits;
mod steps;

use crate::args::DemoArgs;
use crate::daemon::signals::Events;
use crate::exit::{At, Exit, Outcome, bail};
use crate::up::cluster::Cluster;
use crate::up::directory::{Counts, Directory};
use crate::up::shape::Shape;
use std::path::{Path, PathBuf};

/// The scratch store: a manager may fail while another one stands by; `ec:4+2` can lose two of eight nodes and rebuild on the rest.
const EXTENT: Counts = Counts { managers: 2, nodes: 8, disks: 1 };
/// Knobs that make the scratch store notice losses in seconds instead of minutes.
const FAST_FAILURE_DETECTION: &[&str] =
    &["heartbeat_ms=200", "node_lease_ms=1500", "down_after_ms=2000", "out_after_ms=4000", "lease_entry_ms=500"];

/// `tessera demo`.
///
/// # Errors
/// A step failed, or a byte differs.
pub fn run(args: DemoArgs) -> Outcome {
    let out = args.output;
    let events = Events::listen(true)?;
    let scratch = Scratch::new(args.dir.as_deref(), args.keep)?;
    let source = match &args.path {
        Some(path) => path.clone(),
        None => {
            let path = scratch.path.join("files");
            out.note(format!("Making {} of self-similar files ...", crate::term::units::bytes(args.size)));
            data::generate(&path, args.size)?;
            path
        }
    };
    let directory = Directory::open(&scratch.path.join("store"))?;
    let set = |knobs: &[&str]| knobs.iter().flat_map(|k| ["--set".to_string(), k.to_string()]).collect();
    let shape = Shape {
        counts: EXTENT,
        listen: "127.0.0.1:0".into(),
        manager_args: set(FAST_FAILURE_DETECTION),
        node_args: set(&["reserve_bytes=0"]),
        restore: false,
    };
    let mut cluster = Cluster::new(directory, shape);
    let outcome = steps::run(&mut cluster, &source, &events, out);
    let stopped = cluster.stop(out);
    drop(cluster);
    if args.keep {
        out.note(format!("The store is kept: tessera up --dir {}", scratch.path.join("store").display()));
    }
    outcome.and(stopped)
}

/// A directory that is removed on drop, unless it is to be kept.
struct Scratch {
    path: PathBuf,
    made: bool,
    keep: bool,
}

impl Scratch {
    fn new(requested: Option<&Path>, keep: bool) -> Outcome<Self> {
        let path = match requested {
            Some(path) => path.to_path_buf(),
            None => std::env::temp_dir().join(format!("tessera-demo-{:08x}", rand::random::<u32>())),
        };
        let made = !path.exists();
        std::fs::create_dir_all(&path).at(&path)?;
        let path = path.canonicalize().at(&path)?;
        let in_use = std::fs::read_dir(&path).at(&path)?.next().is_some();
        if in_use {
            bail!(Exit::Usage, "{} is not empty; the demo needs an empty directory", path.display());
        }
        Ok(Scratch { path, made, keep })
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if self.keep {
            return;
        }
        // Remove what the demo made. A directory that existed before stays, empty.
        let _ = std::fs::remove_dir_all(self.path.join("files"));
        let _ = std::fs::remove_dir_all(self.path.join("store"));
        if self.made {
            let _ = std::fs::remove_dir(&self.path);
        }
    }
}
