//! A mount of a test's cluster, and its spool.

use super::{Cluster, Daemon, Special, eventually};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A mount, unmounted when it is dropped.
pub struct Mounted {
    pub daemon: Daemon,
    pub path: PathBuf,
    pub log: PathBuf,
}

impl Drop for Mounted {
    /// The daemon is killed next, and the mount of a killed daemon would stay for good.
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.path).stderr(Stdio::null()).status();
    }
}

impl Mounted {
    /// Mounts at a directory with this name beside the cluster's, with `more` flags.
    pub fn new(c: &Cluster, name: &str, more: &[&str]) -> Mounted {
        let path = c.path().join(name);
        fs::create_dir_all(&path).expect("a directory");
        let log = c.log(name);
        Mounted { daemon: Daemon::start(&mount_args(c, name, more), &log), path, log }
    }

    /// Mounts with a spool. Successive mounts of the cluster use the same spool.
    pub fn spooled(c: &Cluster, name: &str) -> Mounted {
        Mounted::new(c, name, &["--spool", &spool(c).display().to_string()])
    }

    /// Mounts with `more` flags and a directory `d` whose files go through the spool.
    pub fn local(c: &Cluster, name: &str, more: &[&str]) -> Mounted {
        let dir = spool(c).display().to_string();
        let m = Mounted::new(c, name, &[&["--spool", &dir], more].concat());
        fs::create_dir(m.at("d")).unwrap();
        m.mode("d", "complete-local");
        m
    }

    pub fn at(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Sets the write mode of a file or directory.
    pub fn mode(&self, name: &str, mode: &str) {
        let none = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(self.at(name), "user.tessera.write-mode", mode.as_bytes(), none).unwrap();
    }

    /// A JSON attribute of the store.
    pub fn attribute(&self, name: &str, attribute: &str) -> Value {
        let mut value = [0; 8192];
        let len = rustix::fs::getxattr(self.at(name), attribute, &mut value).unwrap();
        serde_json::from_slice(&value[..len]).unwrap()
    }

    /// The state of the spool.
    pub fn counts(&self) -> Value {
        self.attribute("", "user.tessera.mount")["spool"].clone()
    }

    /// One number of that state.
    pub fn count(&self, name: &str) -> u64 {
        let counts = self.counts();
        counts[name].as_u64().unwrap_or_else(|| panic!("no {name} in {counts}"))
    }

    /// Waits until the spool is empty.
    pub fn pushed(&self) {
        eventually("all is pushed", || self.count("waiting_files") == 0);
    }

    /// Sends SIGKILL and unmounts.
    pub fn kill(mut self) {
        self.daemon.kill();
    }

    /// Whether the mount's log contains these words.
    pub fn said(&self, words: &str) -> bool {
        fs::read_to_string(&self.log).unwrap().contains(words)
    }
}

/// The arguments that mount a cluster at a directory beside its own.
pub fn mount_args(c: &Cluster, name: &str, more: &[&str]) -> Vec<String> {
    let shown = c.path().join(name).display().to_string();
    let words = ["mount", &shown, "--manager", c.address()];
    words.iter().chain(more).map(|w| w.to_string()).collect()
}

/// The spool directory of [`Mounted::spooled`].
pub fn spool(c: &Cluster) -> PathBuf {
    c.path().join("spool")
}

/// Files in the spool whose names end with `end`.
pub fn logs(c: &Cluster, end: &str) -> Vec<PathBuf> {
    let listed = fs::read_dir(spool(c)).unwrap().map(|entry| entry.unwrap().path());
    listed.filter(|path| path.extension().is_some_and(|e| e == end)).collect()
}

/// A cluster of six nodes, if this machine can mount it.
pub fn mountable() -> Option<Cluster> {
    // Tests stop all nodes: the metadata must not depend on them.
    let special = Special { manager: vec!["max_voters=1"], ..Special::default() };
    let c = Cluster::start_special(6, special);
    can_mount(&c).then_some(c)
}

/// Signals all nodes. After SIGSTOP no node serves chunks: files wait in the spool until SIGCONT.
pub fn signal_nodes(c: &Cluster, signal: Signal) {
    for node in c.nodes.iter().flatten() {
        kill_process(Pid::from_child(&node.child), signal).unwrap();
    }
}

/// Whether this machine can mount. If not, prints that the test is skipped.
pub fn can_mount(c: &Cluster) -> bool {
    let fuse = Path::new("/dev/fuse");
    let can = fuse.exists() && fs::File::options().read(true).write(true).open(fuse).is_ok();
    if !can {
        eprintln!("skipped: /dev/fuse cannot be opened ({})", c.path().display());
    }
    can
}
