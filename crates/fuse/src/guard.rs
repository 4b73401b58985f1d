//! Ends the kernel's connection when this process is killed.
//!
//! A thread that tells the kernel to drop a name or a page may wait for a directory or a page that the kernel holds for a request
//! which this process has not answered. No signal ends that wait. If the process is killed then, the thread stays, and keeps the
//! device open, so that the kernel goes on waiting for the answer: neither ever ends, programs on the mount wait for ever, and the
//! spool stays locked. So a shell waits for the end of this process, and aborts the connection.
//!
//! It waits for the end of a pipe. Only one thread has its other end: one that has a table of open files of its own and waits for
//! no notice, so it ends whatever the others wait for.

use crossbeam_channel::{Receiver, Sender, bounded};
use rustix::fs::{Mode, OFlags, openat};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
use std::fs::File;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

/// Where the kernel lists its connections, if somebody mounted that.
const CONNECTIONS: &str = "/sys/fs/fuse/connections";
/// What a terminal or a service manager sends to a whole group must not end it before the mount.
const WAIT_AND_ABORT: &str = "trap '' HUP INT QUIT TERM; read -r _; echo 1";

/// Connection, and where to tell whether it is guarded.
type Job = (u32, Sender<io::Result<()>>);

/// See the module. The connection is aborted when this is dropped.
pub struct Guard(Sender<Job>);

impl Guard {
    /// Starts the thread that holds the pipe. The mount's device must not be open yet.
    ///
    /// # Errors
    /// The system's.
    pub fn start() -> io::Result<Guard> {
        let (jobs, todo) = bounded(1);
        let (started, has_started) = bounded(1);
        std::thread::Builder::new().name("guard".into()).spawn(move || run(&todo, &started))?;
        has_started.recv().map_err(gone)??;
        Ok(Guard(jobs))
    }

    /// Guards the connection of the file system whose device has this minor number.
    ///
    /// # Errors
    /// Nobody lists the connections here, and the caller may not either; or there is no shell.
    pub fn watch(&self, minor: u32) -> io::Result<()> {
        let (done, answer) = bounded(1);
        self.0.send((minor, done)).map_err(gone)?;
        answer.recv().map_err(gone)?
    }
}

fn gone<E>(_: E) -> io::Error {
    io::ErrorKind::BrokenPipe.into()
}

fn run(jobs: &Receiver<Job>, started: &Sender<io::Result<()>>) {
    // From here on this thread does not open, close or pass on a descriptor of the process's common table.
    #[allow(deprecated, reason = "its successor is unsafe for what is said above")]
    let unshared = rustix::thread::unshare(rustix::thread::UnshareFlags::FILES);
    let failed = unshared.is_err();
    if started.send(unshared.map_err(Into::into)).is_err() || failed {
        return;
    }
    let Ok((minor, done)) = jobs.recv() else { return };
    let mut shell = match watcher(minor) {
        Ok(shell) => shell,
        Err(error) => return drop(done.send(Err(error))),
    };
    let _ = done.send(Ok(()));
    // Until the mount is gone.
    let _ = jobs.recv();
    drop(shell.stdin.take());
    let _ = shell.wait();
}

fn watcher(minor: u32) -> io::Result<Child> {
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", WAIT_AND_ABORT]).current_dir("/").process_group(0);
    shell.stdin(Stdio::piped()).stdout(abort_of(minor)?).stderr(Stdio::null()).spawn()
}

/// The file that aborts a connection. Once it is open it belongs to this connection, whoever gets its number later.
fn abort_of(minor: u32) -> io::Result<File> {
    let path = format!("{minor}/abort");
    if let Ok(file) = File::options().write(true).open(format!("{CONNECTIONS}/{path}")) {
        return Ok(file);
    }
    // Without a place in the tree.
    let system = fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&system)?;
    let root = fsmount(&system, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
    Ok(openat(root, path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?.into())
}
