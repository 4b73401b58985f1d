//! Threads that use the mount as programs do, to make the kernel do what no FUSE message asks for: write back the dirty
//! pages of a file, and take over another length for an open file.
//!
//! They reach a file by a name that only this process knows ([`Loopback::inode_of`]). They have a table of open files of
//! their own, made before the mount's device was opened. Otherwise a thread that waits for the kernel, which waits for
//! this process, would keep the device open when the process is killed, and neither would ever end. These threads never
//! serve requests of the kernel, and a thread that serves such a request must not wait for them.

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use std::fs::File;
use std::hash::{BuildHasher, Hasher};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

const THREADS: usize = 4;
const O_APPEND: i32 = rustix::fs::OFlags::APPEND.bits() as i32;

enum Work {
    /// Begin to write back the dirty pages of all files.
    FlushAll,
    /// Write back the dirty pages of this file.
    Flush(u64),
    /// Drop the cached pages of this file, and take this length, bytes.
    Refresh(u64, u64),
}

struct Job {
    work: Work,
    done: Sender<io::Result<()>>,
}

/// See the module.
pub struct Loopback {
    prefix: String,
    jobs: Sender<Job>,
    tids: Vec<u32>,
}

impl Loopback {
    /// Starts the threads for a mount that will be at `path`.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn start(path: &Path) -> io::Result<Loopback> {
        let secret = || std::collections::hash_map::RandomState::new().build_hasher().finish();
        let prefix = format!(".tessera-inode-{:016x}{:016x}-", secret(), secret());
        let (jobs, todo) = unbounded();
        let (started, tids) = bounded(THREADS);
        for _ in 0..THREADS {
            let (todo, names, started) = (todo.clone(), path.join(&prefix), started.clone());
            let place = path.to_path_buf();
            std::thread::Builder::new().name("loopback".into()).spawn(move || run(&place, &names, &todo, &started))?;
        }
        let gone = |_| io::Error::from(io::ErrorKind::BrokenPipe);
        let tids = (0..THREADS).map(|_| tids.recv().map_err(gone)?).collect::<io::Result<Vec<u32>>>()?;
        Ok(Loopback { prefix, jobs, tids })
    }

    /// The inode that a name in the root directory stands for, if it is one of these threads' names.
    pub fn inode_of(&self, name: &[u8]) -> Option<u64> {
        std::str::from_utf8(name.strip_prefix(self.prefix.as_bytes())?).ok()?.parse().ok()
    }

    /// Whether `tid` is one of these threads.
    pub fn is_loopback(&self, tid: u32) -> bool {
        self.tids.contains(&tid)
    }

    /// Makes the kernel begin to write back the dirty pages of all files. FUSE's writes arrive here later.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn flush_all(&self) -> io::Result<()> {
        self.ask(Work::FlushAll)
    }

    /// Makes the kernel write back the dirty pages of a file, and commits the file.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn flush(&self, ino: u64) -> io::Result<()> {
        self.ask(Work::Flush(ino))
    }

    /// Makes the kernel drop the cached pages of a file, and take `size_bytes` as its length.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn refresh(&self, ino: u64, size_bytes: u64) -> io::Result<()> {
        self.ask(Work::Refresh(ino, size_bytes))
    }

    fn ask(&self, work: Work) -> io::Result<()> {
        let (done, answer) = bounded(1);
        let gone = |_| io::Error::from(io::ErrorKind::BrokenPipe);
        self.jobs.send(Job { work, done }).map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?;
        answer.recv().map_err(gone)?
    }
}

fn run(place: &Path, names: &Path, jobs: &Receiver<Job>, started: &Sender<io::Result<u32>>) {
    // From here on this thread does not open, close or pass on a descriptor of the process's common table.
    #[allow(deprecated, reason = "its successor is unsafe for what is said above")]
    let unshared = rustix::thread::unshare(rustix::thread::UnshareFlags::FILES);
    let tid = rustix::thread::gettid().as_raw_nonzero().get() as u32;
    if started.send(unshared.map(|()| tid).map_err(Into::into)).is_err() || unshared.is_err() {
        return;
    }
    let named = |ino: u64| {
        let mut name = names.as_os_str().to_owned();
        name.push(ino.to_string());
        PathBuf::from(name)
    };
    for Job { work, done } in jobs {
        let _ = done.send(match work {
            Work::FlushAll => File::open(place).and_then(|root| Ok(rustix::fs::syncfs(&root)?)),
            Work::Flush(ino) => File::open(named(ino)).and_then(|file| file.sync_data()),
            Work::Refresh(ino, size_bytes) => refresh(&named(ino), size_bytes),
        });
    }
}

/// `fs` recognises these opens: for `O_APPEND` it tells the kernel to drop its cached pages.
fn refresh(path: &Path, size_bytes: u64) -> io::Result<()> {
    let file = open_dropping_pages(path)?;
    if file.metadata()?.len() != size_bytes {
        file.set_len(size_bytes)?;
        drop(file);
        // The page around the old end was read with the old length.
        open_dropping_pages(path)?;
    }
    Ok(())
}

fn open_dropping_pages(path: &Path) -> io::Result<File> {
    let writing = File::options().read(true).append(true).open(path);
    match writing {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            File::options().read(true).custom_flags(O_APPEND).open(path)
        }
        done => done,
    }
}

/// Whether an open by one of these threads asks the kernel to drop its cached pages.
pub fn drops_pages(flags: i32) -> bool {
    flags & O_APPEND != 0
}
