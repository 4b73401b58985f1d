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

type Job = Box<dyn FnOnce() + Send>;

/// See the module.
pub struct Loopback {
    place: PathBuf,
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
            let (todo, started) = (todo.clone(), started.clone());
            std::thread::Builder::new().name("loopback".into()).spawn(move || run(&todo, &started))?;
        }
        let gone = |_| io::Error::from(io::ErrorKind::BrokenPipe);
        let tids = (0..THREADS).map(|_| tids.recv().map_err(gone)?).collect::<io::Result<Vec<u32>>>()?;
        Ok(Loopback { place: path.to_path_buf(), prefix, jobs, tids })
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
        let place = self.place.clone();
        self.ask(move || File::open(place).and_then(|root| Ok(rustix::fs::syncfs(&root)?)))
    }

    /// Makes the kernel write back the dirty pages of a file, and commits the file.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn flush(&self, ino: u64) -> io::Result<()> {
        let path = self.path_of(ino);
        self.ask(move || File::open(path).and_then(|file| file.sync_data()))
    }

    /// Makes the kernel drop the cached pages of a file, and take `size_bytes` as its length.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn refresh(&self, ino: u64, size_bytes: u64) -> io::Result<()> {
        let path = self.path_of(ino);
        self.ask(move || refresh(&path, size_bytes))
    }

    fn path_of(&self, ino: u64) -> PathBuf {
        self.place.join(format!("{}{ino}", self.prefix))
    }

    /// Runs `work` on one of the threads, and waits for it.
    fn ask(&self, work: impl FnOnce() -> io::Result<()> + Send + 'static) -> io::Result<()> {
        let (done, answer) = bounded(1);
        let gone = || io::Error::from(io::ErrorKind::BrokenPipe);
        self.jobs.send(Box::new(move || drop(done.send(work())))).map_err(|_| gone())?;
        answer.recv().map_err(|_| gone())?
    }
}

fn run(jobs: &Receiver<Job>, started: &Sender<io::Result<u32>>) {
    // From here on this thread does not open, close or pass on a descriptor of the process's common table.
    #[allow(deprecated, reason = "its successor is unsafe for what is said above")]
    let unshared = rustix::thread::unshare(rustix::thread::UnshareFlags::FILES);
    let tid = rustix::thread::gettid().as_raw_nonzero().get() as u32;
    if started.send(unshared.map(|()| tid).map_err(Into::into)).is_err() || unshared.is_err() {
        return;
    }
    jobs.iter().for_each(|job| job());
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
