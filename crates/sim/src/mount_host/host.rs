//! A mount in the simulator: the core, its background tasks, and the kernel above it.

use super::backend::SimBackend;
use super::fs::{At, FileSystem, Found, Handle};
use super::link::RecallHook;
use super::store::BLOCK_BYTES;
use crate::mount_world::{Host, Setup};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tessera_mount::backend::{Backend, NewAttr, RenameMode};
use tessera_mount::errno::Errno;
use tessera_mount::mount::{Mount, Options};
use tessera_mount::ops::{Caller, ListedEntry, Opened, ShownEntry};
use tessera_mount::spool::SpoolConfig;
use tessera_mount::{locks, namespace, spool};
use tessera_wire::Attr;
use tessera_wire::meta::{FileLock, LockFamily, LockMode};

/// User of all programs.
const CALLER: Caller = Caller { uid: 0, gid: 0, thread: 1 };
/// Longest time from the end of a `close` to the release of the handle, ns.
const LONGEST_RELEASE_NS: u64 = 4_000_000;
/// Longest time from the kernel to the mount, or back, ns.
const LONGEST_HOP_NS: u64 = 500_000;

/// See the module.
pub struct MountHost {
    mount: Arc<Mount<SimBackend>>,
    /// Inode of each handle, and its generation.
    handles: RefCell<BTreeMap<u64, (u64, u64)>>,
    /// Handles that read without the kernel's cache.
    direct: RefCell<BTreeSet<u64>>,
    /// Number of handles that programs have closed and the kernel has not released.
    releasing: Rc<Cell<usize>>,
}

/// Passes recalls on to the core.
struct Recalls(Weak<Mount<SimBackend>>);

impl RecallHook for Recalls {
    fn recalled(&self, inos: Option<Vec<u64>>) {
        if let Some(mount) = self.0.upgrade() {
            let _ = mount.leases_recalled(inos.as_deref());
        }
    }

    fn delegation_recalled(&self, directories: Vec<u64>, answer: Box<dyn FnOnce() + Send>) {
        match self.0.upgrade() {
            Some(mount) => mount.namespace.delegation_recalled(directories, answer),
            None => answer(),
        }
    }

    fn locks_recalled(&self, files: &[u64]) {
        if let Some(mount) = self.0.upgrade() {
            mount.locks_recalled(files);
        }
    }
}

impl Host for MountHost {
    #[allow(clippy::arc_with_non_send_sync, reason = "the core takes an `Arc`; everything runs in one thread")]
    async fn start(setup: Setup) -> Rc<MountHost> {
        let Setup { env, owner, link, store, disk, spool_bytes, cluster_id } = setup;
        let backend = Arc::new(SimBackend::new(link.clone(), store));
        let spool = SpoolConfig { disk: Arc::new(disk), limit_bytes: spool_bytes, cluster_id };
        let options = Options {
            defers_creates: true,
            write_back: backend.kernel.has_write_back(),
            keeps_names_for: Duration::ZERO,
            // Directories here have few names.
            ahead_after: 0,
            delegates_locks_after: 1 + (env.number() % 3) as u32,
            spool: Some(spool),
        };
        let (mount, queues) = Mount::new(backend.clone(), options);
        let mount = Arc::new(mount);
        backend.attach(&mount);
        link.set_hook(Rc::new(Recalls(Arc::downgrade(&mount))));
        mount.recover().await;
        env.spawn(owner, namespace::driver::work(Arc::downgrade(&mount)));
        env.spawn(owner, locks::work(Arc::downgrade(&mount)));
        env.spawn(owner, locks::return_delegations(Arc::downgrade(&mount)));
        for queue in std::iter::repeat_n(queues.pushes, spool::push::TASKS).flatten() {
            env.spawn(owner, spool::push::work(Arc::downgrade(&mount), queue));
        }
        Rc::new(MountHost { mount, handles: RefCell::default(), direct: RefCell::default(), releasing: Rc::default() })
    }

    async fn unmount(&self) -> usize {
        while self.releasing.get() > 0 {
            self.backend().env().sleep_ms(1).await;
        }
        match self.mount.store_all().await {
            0 => self.mount.store_all().await,
            failed => failed,
        }
    }
}

fn found(attr: &Attr, generation: u64) -> Found {
    Found { ino: attr.ino, kind: attr.kind(), mode: attr.mode, size_bytes: attr.size_bytes, generation }
}

impl MountHost {
    /// What the shell does when the kernel has its answer.
    fn read_ahead(&self) {
        let mount = self.mount.clone();
        self.backend().env().spawn(self.backend().process(), async move { mount.read_ahead().await });
    }

    fn backend(&self) -> &SimBackend {
        &self.mount.backend
    }

    fn ino(&self, file: Handle) -> u64 {
        self.handles.borrow().get(&file.0).map_or(0, |(ino, _)| *ino)
    }

    /// The inode of a handle, unless it is another one for the kernel by now.
    fn good_ino(&self, file: Handle) -> Result<u64, Errno> {
        let (ino, generation) = self.handles.borrow().get(&file.0).copied().unwrap_or_default();
        match self.backend().kernel.generation(ino) == Some(generation) {
            true => Ok(ino),
            false => Err(Errno::EIO),
        }
    }

    /// A request, or its reply, is on its way between the kernel and the mount.
    async fn hop(&self) {
        let (env, ns) = (self.backend().env(), self.backend().random() % LONGEST_HOP_NS);
        env.sleep_until(env.now_ns() + ns as i64).await;
    }

    /// Attributes as the kernel shows them: with its own generation of a file that it knows, and with its own length if it
    /// has its write-back cache. (Without, it shows an older length to who asks while another reply is on its way; opens
    /// and reads must be right all the same.)
    fn shown(&self, attr: &Attr) -> Found {
        let kernel = &self.backend().kernel;
        let known = kernel.size_bytes(attr.ino).filter(|_| kernel.has_write_back());
        let generation = kernel.generation(attr.ino).unwrap_or(0);
        Found { size_bytes: known.unwrap_or(attr.size_bytes), ..found(attr, generation) }
    }

    /// The kernel takes over what the mount answered to a lookup or create, after the reply's way.
    async fn learn(&self, entry: &ShownEntry, changes: u64) -> Found {
        self.hop().await;
        let (kernel, ino, size_bytes) = (&self.backend().kernel, entry.attr.ino, entry.attr.size_bytes);
        kernel.looked_up(ino, entry.generation, size_bytes);
        kernel.replied(ino, changes, size_bytes);
        self.shown(&entry.attr)
    }

    /// The kernel releases a handle after `close` has returned.
    fn release_later(&self, ino: u64, handle: u64) {
        let (mount, kernel, releasing) = (self.mount.clone(), self.backend().kernel.clone(), self.releasing.clone());
        let (env, process) = (self.backend().env().clone(), self.backend().process());
        let at_ns = env.now_ns() + (self.backend().random() % LONGEST_RELEASE_NS) as i64;
        releasing.set(releasing.get() + 1);
        env.clone().spawn(process, async move {
            env.sleep_until(at_ns).await;
            mount.release(ino, handle).await;
            kernel.closed(ino);
            releasing.set(releasing.get() - 1);
        });
    }

    /// The kernel looks a name up before it makes it.
    async fn must_be_absent(&self, at: At<'_>) -> Result<(), Errno> {
        match self.lookup(at).await {
            Ok(_) => Err(Errno::EEXIST),
            Err(Errno::ENOENT) => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    /// A page from the kernel's cache, or from the mount.
    async fn page(&self, file: Handle, ino: u64, block: u64) -> Result<Vec<u8>, Errno> {
        let kernel = &self.backend().kernel;
        if let Some(page) = kernel.page(ino, block) {
            return Ok(page);
        }
        let (changes, page_changes) = (kernel.changes(), kernel.page_changes(ino));
        let mut page = self.mount.read_page(file.0, block * BLOCK_BYTES, BLOCK_BYTES as usize).await?;
        if page.len() < BLOCK_BYTES as usize {
            kernel.read_to_end(ino, changes, block * BLOCK_BYTES + page.len() as u64);
        }
        // Behind the end that the mount knows, the kernel has zeros.
        page.resize(BLOCK_BYTES as usize, 0);
        kernel.keep_page(ino, block, page.clone(), page_changes);
        Ok(page)
    }

    fn opened(&self, file: &Found, opened: &Opened) -> Handle {
        self.backend().kernel.opened(file.ino, opened.keep_cache);
        self.handles.borrow_mut().insert(opened.handle, (file.ino, file.generation));
        if opened.direct {
            self.direct.borrow_mut().insert(opened.handle);
        }
        Handle(opened.handle)
    }
}

impl FileSystem for MountHost {
    fn refuses_changed(&self) -> bool {
        self.backend().kernel.has_write_back()
    }

    async fn lookup(&self, at: At<'_>) -> Result<Found, Errno> {
        if self.backend().random().is_multiple_of(8) {
            let forgotten = self.backend().kernel.forget_closed();
            forgotten.into_iter().for_each(|(ino, lookups)| self.mount.forget(ino, lookups));
        }
        let changes = self.backend().kernel.changes();
        let entry = self.mount.lookup(0, at).await?;
        Ok(self.learn(&entry, changes).await)
    }

    async fn attr(&self, ino: u64) -> Result<Found, Errno> {
        let changes = self.backend().kernel.changes();
        let attr = self.mount.attributes(0, ino).await?;
        self.hop().await;
        self.backend().kernel.replied(ino, changes, attr.size_bytes);
        Ok(self.shown(&attr))
    }

    async fn list(&self, directory: u64) -> Result<Vec<(Vec<u8>, u64)>, Errno> {
        let handle = self.mount.open_directory(directory).await?;
        let (mut names, mut position, mut is_end) = (Vec::new(), 0, false);
        let mut listed = Ok(());
        while listed.is_ok() && !is_end {
            is_end = true;
            let from = position;
            let add = |entry: &ListedEntry<'_>| {
                if entry.name != b"." && entry.name != b".." {
                    names.push((entry.name.to_vec(), entry.ino));
                }
                (position, is_end) = (entry.next, false);
                false
            };
            listed = self.mount.read_directory(directory, handle, from, false, add).await;
        }
        self.mount.release_directory(handle);
        self.read_ahead();
        listed.map(|()| names)
    }

    async fn create(&self, at: At<'_>, mode: u32) -> Result<(Found, Handle), Errno> {
        self.must_be_absent(at).await?;
        let changes = self.backend().kernel.changes();
        let (entry, opened) = self.mount.create(CALLER, at, mode, true, true).await?;
        let file = self.learn(&entry, changes).await;
        self.backend().kernel.opens(file.ino);
        let handle = self.opened(&file, &opened);
        Ok((file, handle))
    }

    async fn open(&self, thread: u32, file: &Found, writes: bool) -> Result<Handle, Errno> {
        let is_current = || self.backend().kernel.generation(file.ino) == Some(file.generation);
        if !is_current() {
            // The kernel has forgotten it, and looks the name up first.
            return Err(Errno::ESTALE);
        }
        self.backend().kernel.opens(file.ino);
        self.hop().await;
        let opened = match is_current() {
            true => self.mount.open(thread, file.ino, writes).await,
            false => Err(Errno::EIO),
        };
        self.hop().await;
        self.read_ahead();
        opened.inspect_err(|_| self.backend().kernel.closed(file.ino)).map(|opened| self.opened(file, &opened))
    }

    async fn read(&self, file: Handle, offset: u64, len: usize) -> Result<Vec<u8>, Errno> {
        let (ino, kernel) = (self.good_ino(file)?, &self.backend().kernel);
        if self.direct.borrow().contains(&file.0) {
            return self.mount.read(file.0, offset, len).await;
        }
        if kernel.size_bytes(ino) < Some(offset + len as u64) && kernel.has_old_attributes(ino) {
            self.attr(ino).await?;
        }
        let mut out = Vec::new();
        let end = || kernel.size_bytes(ino).unwrap_or(0).min(offset + len as u64);
        for block in offset / BLOCK_BYTES.. {
            // The kernel looks at its length once more when it has the page.
            if block >= end() / BLOCK_BYTES {
                break;
            }
            let page = self.page(file, ino, block).await?;
            if block < end() / BLOCK_BYTES {
                out.extend(page);
            }
        }
        Ok(out)
    }

    async fn write(&self, file: Handle, offset: u64, bytes: &[u8]) -> Result<(), Errno> {
        let (ino, kernel) = (self.good_ino(file)?, &self.backend().kernel);
        if self.direct.borrow().contains(&file.0) {
            kernel.writes_direct(ino);
            self.mount.write(file.0, offset, bytes).await?;
            kernel.written_direct(ino, offset + bytes.len() as u64);
            return Ok(());
        }
        let done = self.mount.write(file.0, offset, bytes).await;
        match done {
            Ok(()) => kernel.written(ino, offset, bytes),
            Err(_) => kernel.write_failed(ino),
        }
        done
    }

    async fn truncate(&self, ino: u64, size_bytes: u64) -> Result<(), Errno> {
        let attr = self.mount.set_attributes(ino, NewAttr::default(), Some(size_bytes)).await?;
        self.backend().kernel.truncated(ino, attr.size_bytes);
        Ok(())
    }

    async fn sync(&self, file: Handle) -> Result<(), Errno> {
        self.mount.fsync(file.0).await
    }

    async fn close(&self, file: Handle, owner: u64) -> Result<(), Errno> {
        let ino = self.ino(file);
        // The kernel names the process to a flush; locks of an open file are another owner's.
        let process = if is_of_process(ino) { owner } else { !owner };
        let flushed = self.mount.flush(ino, file.0, process).await;
        self.handles.borrow_mut().remove(&file.0);
        self.direct.borrow_mut().remove(&file.0);
        self.release_later(ino, file.0);
        flushed
    }

    async fn make_directory(&self, at: At<'_>, mode: u32) -> Result<Found, Errno> {
        self.must_be_absent(at).await?;
        Ok(found(&self.mount.make_directory(CALLER, at, mode).await?.attr, 0))
    }

    async fn remove(&self, at: At<'_>, directory: bool) -> Result<(), Errno> {
        self.mount.remove(at, directory).await
    }

    async fn rename(&self, from: At<'_>, to: At<'_>, replace: bool) -> Result<(), Errno> {
        let mode = if replace { RenameMode::Replace } else { RenameMode::NoReplace };
        self.mount.rename(from, to, mode).await
    }

    async fn link(&self, ino: u64, at: At<'_>) -> Result<Found, Errno> {
        self.must_be_absent(at).await?;
        let changes = self.backend().kernel.changes();
        let entry = self.mount.link(ino, at).await?;
        Ok(self.learn(&entry, changes).await)
    }

    async fn symlink(&self, at: At<'_>, target: &[u8]) -> Result<Found, Errno> {
        self.must_be_absent(at).await?;
        Ok(found(&self.mount.make_symlink(CALLER, at, target).await?.attr, 0))
    }

    async fn set_mode(&self, ino: u64, mode: u32) -> Result<Found, Errno> {
        let new = NewAttr { mode: Some(mode), ..NewAttr::default() };
        let changes = self.backend().kernel.changes();
        let attr = self.mount.set_attributes(ino, new, None).await?;
        self.backend().kernel.replied(ino, changes, attr.size_bytes);
        Ok(self.shown(&attr))
    }

    async fn lock(&self, ino: u64, owner: u64, wait: bool) -> Result<(), Errno> {
        self.mount.set_lock(&whole_file(ino, owner, LockMode::Write), owner, wait, &mut || false).await
    }

    async fn unlock(&self, ino: u64, owner: u64) -> Result<(), Errno> {
        self.mount.set_lock(&whole_file(ino, owner, LockMode::Unlock), owner, false, &mut || false).await
    }
}

/// Whether programs lock a file by `flock`, and not by `fcntl`: locks of one do not exclude those of the other.
fn is_flock(ino: u64) -> bool {
    ino.is_multiple_of(2)
}

/// Whether programs lock a file by `fcntl` as processes, and not as open files (`flock`, `F_OFD_SETLK`).
fn is_of_process(ino: u64) -> bool {
    ino % 4 == 1
}

fn whole_file(ino: u64, owner: u64, mode: LockMode) -> FileLock {
    let family = match mode {
        LockMode::Unlock => LockFamily::Either,
        _ if is_flock(ino) => LockFamily::Flock,
        _ => LockFamily::Posix,
    };
    FileLock {
        ino,
        owner,
        family: family as i32,
        mode: mode as i32,
        start: 0,
        end: i64::MAX as u64,
        pid: 1,
        fence: None,
        may_be_shared: false,
    }
}
