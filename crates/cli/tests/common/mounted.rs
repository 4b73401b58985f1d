//! A mount of a test's cluster.

use super::{Cluster, Daemon};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A mount, unmounted when it is dropped.
pub struct Mounted {
    pub daemon: Daemon,
    pub path: PathBuf,
}

impl Drop for Mounted {
    /// The daemon is killed next: what a killed one leaves would stay mounted for good.
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.path).stderr(Stdio::null()).status();
    }
}

impl Mounted {
    /// Mounts at a directory of this name beside the cluster's, with more flags.
    pub fn new(c: &Cluster, name: &str, more: &[&str]) -> Mounted {
        let path = c.path().join(name);
        std::fs::create_dir_all(&path).expect("a directory");
        let shown = path.display().to_string();
        let words = ["mount", &shown, "--manager", c.address()];
        let args: Vec<String> = words.iter().chain(more).map(|w| w.to_string()).collect();
        Mounted { daemon: Daemon::start(&args, &c.log(name)), path }
    }

    pub fn at(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }
}

/// Whether this machine can mount; a test that says no says so.
pub fn can_mount(c: &Cluster) -> bool {
    let fuse = Path::new("/dev/fuse");
    let can = fuse.exists() && std::fs::File::options().read(true).write(true).open(fuse).is_ok();
    if !can {
        eprintln!("skipped: /dev/fuse cannot be opened ({})", c.path().display());
    }
    can
}
