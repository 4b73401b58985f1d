//! What the mount core runs on in the simulator: requests that the simulated network carries, the kernel's cache, and
//! the world's time.

use super::env::Env;
use super::executor::Owner as Process;
use super::kernel::Kernel;
use super::link::{DEADLINE_MS, Link, TIMEOUT_MS};
use super::store::{BlockReader, BlockWriter, Store, Target};
use bytes::Bytes;
use std::cell::{Cell, OnceCell};
use std::io;
use std::ops::Range;
use std::rc::Rc;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tessera_client::inodes::{NewFile, OnlyIf};
use tessera_client::locate::Located;
use tessera_client::{Cancel, FileError, Opened, ProgressFn, Times, WriteDone};
use tessera_mount::backend::{Backend, Drain, Reader, Writer};
use tessera_mount::mount::Mount;
use tessera_mount::namespace::Name;
use tessera_policy::Policy;
use tessera_wire::meta::{DescribeReads, LockFence, OpenRead, OpenReadReply};
use tessera_wire::{Code, Error, Request};

/// See the module.
pub struct SimBackend {
    link: Link,
    store: Store,
    /// The kernel above the mount.
    pub kernel: Rc<Kernel>,
    started_ns: i64,
    /// For the requests that the kernel sends because the mount asked it to.
    mount: OnceCell<Weak<Mount<SimBackend>>>,
    /// Names that the kernel has not dropped yet.
    stale_names: Rc<Cell<usize>>,
}

impl SimBackend {
    /// A backend of the process behind `link`.
    pub fn new(link: Link, store: Store) -> SimBackend {
        let started_ns = link.env().now_ns();
        let kernel = Rc::new(Kernel::new(link.random().is_multiple_of(2)));
        SimBackend { link, store, kernel, started_ns, mount: OnceCell::new(), stale_names: Rc::default() }
    }

    /// Sets the mount, which the kernel's own requests reach.
    pub fn attach(&self, mount: &Arc<Mount<SimBackend>>) {
        let _ = self.mount.set(Arc::downgrade(mount));
    }

    /// Time, timers and tasks.
    pub fn env(&self) -> &Env {
        self.link.env()
    }

    /// The process.
    pub fn process(&self) -> Process {
        self.link.owner()
    }
}

impl Writer for BlockWriter {
    async fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Result<(), FileError> {
        BlockWriter::write_at(self, offset, bytes).await
    }

    async fn clear(&mut self, range: Range<u64>) -> Result<(), FileError> {
        BlockWriter::clear(self, range).await
    }

    async fn skip_to(&mut self, offset: u64) -> Result<(), FileError> {
        BlockWriter::skip_to(self, offset).await
    }

    async fn set_len(&mut self, size_bytes: u64) -> Result<(), FileError> {
        BlockWriter::set_len(self, size_bytes).await
    }

    fn set_lock_fence(&mut self, fence: Option<LockFence>) {
        BlockWriter::set_lock_fence(self, fence);
    }

    async fn sync(&mut self, times: Times, content: u64) -> Result<WriteDone, FileError> {
        self.set_times(times);
        self.set_content(content);
        BlockWriter::sync(self).await
    }

    async fn finish(mut self, times: Times, content: u64) -> Result<WriteDone, FileError> {
        self.set_times(times);
        self.set_content(content);
        BlockWriter::finish(self).await
    }

    fn len_bytes(&self) -> u64 {
        BlockWriter::len_bytes(self)
    }
}

impl Reader for BlockReader {
    async fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<usize, FileError> {
        BlockReader::read_at(self, offset, out).await
    }

    fn opened(&self) -> &Opened {
        BlockReader::opened(self)
    }

    fn is_in_memory(&self) -> bool {
        !self.has_session()
    }
}

impl Backend for SimBackend {
    type Writer = BlockWriter;
    type Reader = BlockReader;

    async fn ask<R: Request>(&self, request: &R) -> Result<R::Reply, Error> {
        self.link.ask(request.clone()).await
    }

    async fn ask_manager<R: Request>(&self, request: &R, wait_ms: u64) -> Result<R::Reply, Error> {
        self.link.ask_once(request, TIMEOUT_MS + wait_ms).await
    }

    fn tell_manager<R: Request>(&self, request: &R) {
        self.link.tell(request);
    }

    fn op_id(&self) -> u64 {
        self.link.op_id()
    }

    fn manager_deadline(&self) -> Duration {
        Duration::from_millis(DEADLINE_MS)
    }

    fn machine(&self) -> String {
        format!("machine {}", self.link.owner().index)
    }

    // No group of managers is restored here.
    async fn map_version(&self) -> Result<u64, Error> {
        Ok(0)
    }

    async fn locate(&self, _ino: u64) -> Result<Located, Error> {
        Err(Error::new(Code::Unsupported, "no node of the simulated store holds bytes"))
    }

    async fn open_read(&self, ino: u64, version: u64, _first: Range<u64>) -> Result<BlockReader, FileError> {
        self.store.open_read(ino, version).await
    }

    async fn describe(&self, directory: u64, names: &[Vec<u8>]) -> Result<Vec<OpenReadReply>, Error> {
        let open = |name: &Vec<u8>| OpenRead { parent: directory, name: name.clone(), ..OpenRead::default() };
        let files = names.iter().map(open).collect();
        let request = DescribeReads { files, want_leases: true, ..DescribeReads::default() };
        Ok(self.link.ask_once(&request, TIMEOUT_MS).await?.files)
    }

    async fn read_described(&self, files: Vec<OpenReadReply>) -> Vec<Option<BlockReader>> {
        self.store.read_described(files).await
    }

    async fn open_write(&self, ino: u64, patch: bool, if_version: Option<u64>) -> Result<BlockWriter, FileError> {
        self.store.open_write(Target::inode(ino), patch, if_version).await
    }

    async fn write_whole(
        &self,
        ino: u64,
        bytes: Bytes,
        _policy: Option<Policy>,
        times: Times,
        only_if: OnlyIf,
    ) -> Result<WriteDone, FileError> {
        self.store.write_whole(Target::inode(ino), &bytes, times, only_if).await
    }

    async fn write_new(&self, new: NewFile<'_>, bytes: Bytes, times: Times) -> Result<WriteDone, FileError> {
        let NewFile { parent, name, ino, owner, inos, .. } = new;
        let target = Target { parent, name: name.to_vec(), ino, inos, owner };
        let only_if = OnlyIf { version: Some(0), ..OnlyIf::default() };
        self.store.write_whole(target, &bytes, times, only_if).await
    }

    async fn rewrite(
        &self,
        _ino: u64,
        _progress: ProgressFn<'_>,
        _cancel: &Cancel,
    ) -> Result<WriteDone, tessera_client::Error> {
        Ok(WriteDone::default())
    }

    fn invalidate_names(&self, names: Vec<Name>) -> bool {
        // The kernel here caches no names; what follows an invalidation must still wait for it.
        self.stale_names.set(self.stale_names.get() + names.len());
        let (stale, count) = (self.stale_names.clone(), names.len());
        let pause = self.env().sleep_ms(self.link.random() % 3);
        self.env().spawn(self.process(), async move {
            pause.await;
            stale.set(stale.get() - count);
        });
        true
    }

    async fn names_invalidated(&self) {
        while self.stale_names.get() > 0 {
            self.env().sleep_ms(1).await;
        }
    }

    fn forget_attributes(&self, ino: u64) {
        self.kernel.forget_attributes(ino);
    }

    async fn drop_pages_of(&self, ino: u64, _: Range<u64>) -> bool {
        self.env().sleep_ms(self.link.random() % 2).await;
        // Sometimes a read of a page takes longer than the mount waits.
        let drops = !self.link.random().is_multiple_of(16);
        if drops {
            self.kernel.forget_pages(ino);
        }
        drops
    }

    fn maps_direct(&self) -> bool {
        !self.kernel.has_write_back()
    }

    async fn write_back_pages(&self, ino: u64) -> io::Result<()> {
        let Some(mount) = self.mount.get().and_then(Weak::upgrade) else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        let handle = mount.open_loopback(ino).await;
        let synced = mount.fsync(handle).await;
        mount.release(ino, handle).await;
        synced.map_err(|errno| io::Error::from_raw_os_error(errno as i32))
    }

    /// The kernel takes over the length that the mount has by then.
    async fn drop_pages(&self, ino: u64, _: u64) -> io::Result<()> {
        self.env().sleep_ms(self.link.random() % 2).await;
        let Some(mount) = self.mount.get().and_then(Weak::upgrade) else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        let attr = mount.attributes(0, ino).await.map_err(|errno| io::Error::from_raw_os_error(errno as i32))?;
        match self.kernel.drop_pages(ino, attr.size_bytes) {
            true => Ok(()),
            false => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn now_ns(&self) -> i64 {
        self.env().now_ns() - self.started_ns
    }

    fn wall_ns(&self) -> i64 {
        self.env().now_ns()
    }

    async fn sleep(&self, duration: Duration) {
        let ns = i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX / 2);
        self.env().sleep_until(self.env().now_ns().saturating_add(ns)).await;
    }

    fn random(&self) -> u64 {
        self.link.random()
    }

    fn start_drain(&self, task: Drain<Self>) -> io::Result<()> {
        self.env().spawn(self.process(), task.run());
        Ok(())
    }
}
