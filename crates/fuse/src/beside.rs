//! Threads that use the mount as programs do, to have the kernel do what no message of ours can: write back what it holds of a file,
//! and take over another length for one that is open.
//!
//! A file is reached by a name that only this process knows ([`Beside::number`]). These threads have a table of open files of their own, made before
//! the mount's own device was opened: a thread that waits for the kernel, which waits for us, must not keep the device open when
//! this process is killed, or neither would ever end. Requests of the kernel are never served here, and whoever serves them must
//! not wait for these threads.

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use std::fs::File;
use std::hash::{BuildHasher, Hasher};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

const THREADS: usize = 4;
const O_APPEND: i32 = rustix::fs::OFlags::APPEND.bits() as i32;

enum Work {
    /// Begin to write back what the kernel holds of all files.
    FlushAll,
    /// Write back what the kernel holds of this file.
    Flush(u64),
    /// Forget what the kernel holds of this file, and have it take it for so long.
    Refresh(u64, u64),
}

struct Job {
    work: Work,
    done: Sender<io::Result<()>>,
}

/// See the module.
pub struct Beside {
    prefix: String,
    jobs: Sender<Job>,
    tids: Vec<u32>,
}

impl Beside {
    /// Starts the threads, for a mount that will be at `path`.
    ///
    /// # Errors
    /// A thread cannot be had.
    pub fn start(path: &Path) -> io::Result<Beside> {
        let secret = || std::collections::hash_map::RandomState::new().build_hasher().finish();
        let prefix = format!(".tessera-inode-{:016x}{:016x}-", secret(), secret());
        let (jobs, todo) = unbounded();
        let (started, tids) = bounded(THREADS);
        for _ in 0..THREADS {
            let (todo, names, started) = (todo.clone(), path.join(&prefix), started.clone());
            let place = path.to_path_buf();
            std::thread::Builder::new().name("beside".into()).spawn(move || run(&place, &names, &todo, &started))?;
        }
        let gone = |_| io::Error::from(io::ErrorKind::BrokenPipe);
        let tids = (0..THREADS).map(|_| tids.recv().map_err(gone)?).collect::<io::Result<Vec<u32>>>()?;
        Ok(Beside { prefix, jobs, tids })
    }

    /// The inode that a name in the root directory means, if it is one of ours.
    pub fn number(&self, name: &[u8]) -> Option<u64> {
        std::str::from_utf8(name.strip_prefix(self.prefix.as_bytes())?).ok()?.parse().ok()
    }

    /// Whether this thread is one of ours.
    pub fn is_ours(&self, tid: u32) -> bool {
        self.tids.contains(&tid)
    }

    /// Has the kernel begin to write back what it holds of all files; FUSE's writes arrive here later.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn flush_all(&self) -> io::Result<()> {
        self.ask(Work::FlushAll)
    }

    /// Has the kernel write back what it holds of a file; it is committed then.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn flush(&self, ino: u64) -> io::Result<()> {
        self.ask(Work::Flush(ino))
    }

    /// Has the kernel forget what it holds of a file, and take it to be so long.
    ///
    /// # Errors
    /// What the kernel says.
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
    // Nothing here opens, closes or passes on a descriptor of the common table afterwards.
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

/// What these opens mean is known to `fs`: under `O_APPEND` the kernel forgets what it has.
fn refresh(path: &Path, size_bytes: u64) -> io::Result<()> {
    let file = forgetting(path)?;
    if file.metadata()?.len() != size_bytes {
        file.set_len(size_bytes)?;
        drop(file);
        // What lies around the old end was read with the old length.
        forgetting(path)?;
    }
    Ok(())
}

fn forgetting(path: &Path) -> io::Result<File> {
    let writing = File::options().read(true).append(true).open(path);
    match writing {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            File::options().read(true).custom_flags(O_APPEND).open(path)
        }
        done => done,
    }
}

/// Whether an open of ours asks the kernel to forget what it has.
pub fn forgets(flags: i32) -> bool {
    flags & O_APPEND != 0
}
