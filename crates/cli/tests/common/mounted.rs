//! A mount of a test's cluster, and its spool.

use super::{Cluster, Daemon, eventually};
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
    /// The daemon is killed next: what a killed one leaves would stay mounted for good.
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.path).stderr(Stdio::null()).status();
    }
}

impl Mounted {
    /// Mounts at a directory of this name beside the cluster's, with more flags.
    pub fn new(c: &Cluster, name: &str, more: &[&str]) -> Mounted {
        let path = c.path().join(name);
        fs::create_dir_all(&path).expect("a directory");
        let log = c.log(name);
        Mounted { daemon: Daemon::start(&mount_args(c, name, more), &log), path, log }
    }

    /// With a spool, which all mounts of the cluster have one after the other.
    pub fn spooled(c: &Cluster, name: &str) -> Mounted {
        Mounted::new(c, name, &["--spool", &spool(c).display().to_string()])
    }

    /// With a directory `d` whose files go through the spool, and more flags.
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

    /// One of the store's attributes that are JSON.
    pub fn attribute(&self, name: &str, attribute: &str) -> Value {
        let mut value = [0; 8192];
        let len = rustix::fs::getxattr(self.at(name), attribute, &mut value).unwrap();
        serde_json::from_slice(&value[..len]).unwrap()
    }

    /// How the spool stands.
    pub fn counts(&self) -> Value {
        self.attribute("", "user.tessera.mount")["spool"].clone()
    }

    /// One of its figures.
    pub fn count(&self, name: &str) -> u64 {
        let counts = self.counts();
        counts[name].as_u64().unwrap_or_else(|| panic!("no {name} in {counts}"))
    }

    /// Nothing waits in the spool any more.
    pub fn pushed(&self) {
        eventually("all is pushed", || self.count("waiting_files") == 0);
    }

    /// SIGKILL, and the place is free again.
    pub fn kill(mut self) {
        self.daemon.kill();
    }

    /// Whether the mount's log has these words.
    pub fn said(&self, words: &str) -> bool {
        fs::read_to_string(&self.log).unwrap().contains(words)
    }
}

/// The words that mount a cluster at a directory beside its own.
pub fn mount_args(c: &Cluster, name: &str, more: &[&str]) -> Vec<String> {
    let shown = c.path().join(name).display().to_string();
    let words = ["mount", &shown, "--manager", c.address()];
    words.iter().chain(more).map(|w| w.to_string()).collect()
}

/// Where [`Mounted::spooled`] has its spool.
pub fn spool(c: &Cluster) -> PathBuf {
    c.path().join("spool")
}

/// Files in there whose names end so.
pub fn logs(c: &Cluster, end: &str) -> Vec<PathBuf> {
    let listed = fs::read_dir(spool(c)).unwrap().map(|entry| entry.unwrap().path());
    listed.filter(|path| path.extension().is_some_and(|e| e == end)).collect()
}

/// A cluster of six nodes, if it can be mounted.
pub fn mountable() -> Option<Cluster> {
    let c = Cluster::start(6);
    can_mount(&c).then_some(c)
}

/// With SIGSTOP nobody serves reads or writes of chunks: what waits in the spool stays there, until SIGCONT.
pub fn signal_nodes(c: &Cluster, signal: Signal) {
    for node in c.nodes.iter().flatten() {
        kill_process(Pid::from_child(&node.child), signal).unwrap();
    }
}

/// Whether this machine can mount; a test that says no says so.
pub fn can_mount(c: &Cluster) -> bool {
    let fuse = Path::new("/dev/fuse");
    let can = fuse.exists() && fs::File::options().read(true).write(true).open(fuse).is_ok();
    if !can {
        eprintln!("skipped: /dev/fuse cannot be opened ({})", c.path().display());
    }
    can
}
