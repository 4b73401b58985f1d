//! What the mount core runs on in production: the client library, the kernel, and the system's clocks.
//!
//! The futures of the client's requests are ready at once: the calls block.

use crate::block_on::{self, block_on};
use crate::loopback::Loopback;
use crate::notices::{NoticeQueue, Notices, notices};
use crate::spool::SpoolDirectory;
use bytes::Bytes;
use fuser::{INodeNo, Notifier};
use std::hash::{BuildHasher, Hasher};
use std::io;
use std::ops::Range;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime};
use tessera_client::inodes::{NewFile, OnlyIf};
use tessera_client::locate::Located;
use tessera_client::{
    Cancel, Client, FileError, Opened, ProgressFn, ReadHandle, RecallAnswer, Times, WholeFile, WriteDone, WriteHandle,
    boot_ns,
};
use tessera_mount::attr::nanoseconds;
use tessera_mount::backend::{Backend, Drain, Reader, Writer};
use tessera_mount::namespace::{KeptNames, Name};
use tessera_policy::Policy;
use tessera_wire::meta::{GetStatus, LockFence, OpenReadReply};
use tessera_wire::{Code, Error, Request};
use tokio::sync::oneshot;

/// Longest wait for the kernel to drop names.
const INVALIDATE_WITHIN: Duration = Duration::from_secs(2);
/// Longest wait for the kernel to drop pages. It waits for reads of them, which may wait for the thread that waits for it.
const DROP_PAGES_WITHIN: Duration = Duration::from_secs(1);

/// Threads that tell the kernel to drop pages; each has its share of the files.
const PAGE_NOTIFIERS: usize = 4;

/// What to tell the kernel.
pub struct NoticeQueues {
    /// Names to drop.
    pub names: NoticeQueue<Name, ()>,
    /// Bytes of inodes whose pages to drop.
    pub pages: Vec<NoticeQueue<u64, Range<u64>>>,
}

/// See the module.
pub struct FuseBackend {
    /// Connection to the cluster.
    pub client: Client,
    /// Threads that use the mount as programs do.
    pub loopback: Loopback,
    /// Names that the kernel must drop.
    names: Notices<Name, ()>,
    /// Pages of inodes that the kernel must drop. Names do not wait for reads, and few files wait for those of another one.
    pages: [Notices<u64, Range<u64>>; PAGE_NOTIFIERS],
    /// Programs can map files that are read and written without the kernel's pages. Set when the kernel has said so.
    pub direct_maps: OnceLock<bool>,
    /// Tells the kernel at once what it can hear without a wait. Set when the mount is in its place.
    pub notifier: OnceLock<Notifier>,
    /// Keeps other mounts out of the spool.
    _spool: Option<SpoolDirectory>,
}

impl FuseBackend {
    /// Each queue is what a thread of its own tells the kernel.
    pub fn new(client: Client, loopback: Loopback, spool: Option<SpoolDirectory>) -> (FuseBackend, NoticeQueues) {
        let (names, names_queue) = notices();
        let mut queues = NoticeQueues { names: names_queue, pages: Vec::new() };
        let pages = std::array::from_fn(|_| {
            let (pages, queue) = notices();
            queues.pages.push(queue);
            pages
        });
        let (direct_maps, notifier) = (OnceLock::new(), OnceLock::new());
        (FuseBackend { client, loopback, names, pages, direct_maps, notifier, _spool: spool }, queues)
    }
}

/// An open write session of the client library.
pub struct ClientWriter(WriteHandle);

impl Writer for ClientWriter {
    async fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Result<(), FileError> {
        self.0.write_at(offset, bytes)
    }

    async fn clear(&mut self, range: Range<u64>) -> Result<(), FileError> {
        self.0.clear(range)
    }

    async fn skip_to(&mut self, offset: u64) -> Result<(), FileError> {
        self.0.skip_to(offset)
    }

    async fn set_len(&mut self, size_bytes: u64) -> Result<(), FileError> {
        self.0.set_len(size_bytes)
    }

    fn set_lock_fence(&mut self, fence: Option<LockFence>) {
        self.0.set_lock_fence(fence);
    }

    async fn sync(&mut self, times: Times, content: u64) -> Result<WriteDone, FileError> {
        self.0.set_times(times);
        self.0.set_content(content);
        self.0.sync()
    }

    async fn finish(mut self, times: Times, content: u64) -> Result<WriteDone, FileError> {
        self.0.set_times(times);
        self.0.set_content(content);
        self.0.finish()
    }

    fn len_bytes(&self) -> u64 {
        self.0.len_bytes()
    }
}

/// An open version of the client library.
pub enum ClientReader {
    /// In a session.
    Open(ReadHandle),
    /// In memory.
    Whole(WholeFile),
}

impl Reader for ClientReader {
    async fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<usize, FileError> {
        match self {
            ClientReader::Open(handle) => handle.read_at(offset, out),
            ClientReader::Whole(file) => Ok(file.read_at(offset, out)),
        }
    }

    fn opened(&self) -> &Opened {
        match self {
            ClientReader::Open(handle) => handle.opened(),
            ClientReader::Whole(file) => file.opened(),
        }
    }

    fn is_in_memory(&self) -> bool {
        matches!(self, ClientReader::Whole(_))
    }
}

impl Backend for FuseBackend {
    type Writer = ClientWriter;
    type Reader = ClientReader;

    async fn ask<R: Request>(&self, request: &R) -> Result<R::Reply, Error> {
        self.client.ask(request)
    }

    async fn ask_manager<R: Request>(&self, request: &R, wait_ms: u64) -> Result<R::Reply, Error> {
        let (sender, answer) = oneshot::channel();
        self.client.ask_manager(request, wait_ms, move |answer| _ = sender.send(answer));
        answer.await.unwrap_or_else(|_| Err(Error::new(Code::Unavailable, "the call was dropped")))
    }

    fn tell_manager<R: Request>(&self, request: &R) {
        self.client.ask_manager(request, 0, drop);
    }

    fn op_id(&self) -> u64 {
        self.client.op_id()
    }

    fn manager_deadline(&self) -> Duration {
        self.client.manager_deadline()
    }

    fn machine(&self) -> String {
        self.client.machine()
    }

    async fn map_version(&self) -> Result<u64, Error> {
        Ok(self.client.ask(&GetStatus {})?.map_version)
    }

    async fn locate(&self, ino: u64) -> Result<Located, Error> {
        self.client.locate_inode(ino)
    }

    async fn open_read(&self, ino: u64, version: u64, first: Range<u64>) -> Result<ClientReader, FileError> {
        self.client.read_inode(ino, version, first).map(ClientReader::Open)
    }

    async fn describe(&self, directory: u64, names: &[Vec<u8>]) -> Result<Vec<OpenReadReply>, Error> {
        self.client.describe_names(directory, names)
    }

    async fn read_described(&self, files: Vec<OpenReadReply>) -> Vec<Option<ClientReader>> {
        self.client.read_described(files).into_iter().map(|file| file.map(ClientReader::Whole)).collect()
    }

    fn close_readers(&self, readers: Vec<Arc<ClientReader>>) {
        let handle = |reader| match Arc::into_inner(reader)? {
            ClientReader::Open(handle) => Some(handle),
            ClientReader::Whole(_) => None,
        };
        self.client.close_reads(readers.into_iter().filter_map(handle).collect());
    }

    async fn open_write(&self, ino: u64, patch: bool, if_version: Option<u64>) -> Result<ClientWriter, FileError> {
        self.client.open_inode(ino, patch, if_version).map(ClientWriter)
    }

    async fn write_whole(
        &self,
        ino: u64,
        bytes: Bytes,
        policy: Option<Policy>,
        times: Times,
        only_if: OnlyIf,
    ) -> Result<WriteDone, FileError> {
        self.client.write_inode(ino, bytes, policy, times, only_if)
    }

    async fn write_new(&self, new: NewFile<'_>, bytes: Bytes, times: Times) -> Result<WriteDone, FileError> {
        self.client.create_inode(new, bytes, times)
    }

    async fn rewrite(
        &self,
        ino: u64,
        progress: ProgressFn<'_>,
        cancel: &Cancel,
    ) -> Result<WriteDone, tessera_client::Error> {
        self.client.rewrite_inode(ino, progress, cancel)
    }

    fn invalidate_names(&self, names: Vec<Name>) -> bool {
        // Names for which there is no room live as long as the kernel may cache them.
        let without_room = names.into_iter().filter(|name| self.names.add(name.clone(), ()).is_none()).count();
        if without_room > 0 {
            tracing::warn!(
                names = without_room,
                "the kernel is not told of changed names: it has not answered for long"
            );
        }
        without_room == 0
    }

    async fn names_invalidated(&self) {
        self.names.wait(self.names.last(), INVALIDATE_WITHIN);
    }

    fn forget_attributes(&self, ino: u64) {
        if let Some(notifier) = self.notifier.get() {
            // An offset below 0 is that of no page. Fails if the kernel does not have the inode; that is no error.
            let _ = notifier.inval_inode(INodeNo(ino), -1, 0);
        }
    }

    async fn drop_pages_of(&self, ino: u64, bytes: Range<u64>) -> bool {
        let notices = &self.pages[(ino % PAGE_NOTIFIERS as u64) as usize];
        let dropped = notices.add(ino, bytes.clone()).is_some_and(|ticket| notices.wait(ticket, DROP_PAGES_WITHIN));
        if !dropped {
            tracing::debug!(ino, ?bytes, "the kernel has not dropped pages that are older than the file");
        }
        dropped
    }

    fn maps_direct(&self) -> bool {
        self.direct_maps.get() == Some(&true)
    }

    async fn write_back_pages(&self, ino: u64) -> io::Result<()> {
        self.loopback.flush(ino)
    }

    async fn drop_pages(&self, ino: u64, size_bytes: u64) -> io::Result<()> {
        self.loopback.refresh(ino, size_bytes)
    }

    fn now_ns(&self) -> i64 {
        boot_ns()
    }

    fn wall_ns(&self) -> i64 {
        nanoseconds(SystemTime::now())
    }

    async fn sleep(&self, duration: Duration) {
        block_on::sleep(duration).await;
    }

    fn random(&self) -> u64 {
        std::collections::hash_map::RandomState::new().build_hasher().finish()
    }

    fn start_drain(&self, task: Drain<FuseBackend>) -> io::Result<()> {
        std::thread::Builder::new().name("stage".into()).spawn(move || block_on(task.run())).map(drop)
    }
}

/// Hears recalls for the mount, of which another thread tells the kernel. A thread that hears recalls must not wait for the kernel, which may be
/// waiting for this mount.
pub fn hear_recalls(mount: &Arc<tessera_mount::mount::Mount<FuseBackend>>) {
    let client = &mount.backend.client;
    let weak = Arc::downgrade(mount);
    client.on_recall(move |inos, answer| match weak.upgrade() {
        Some(mount) => {
            let kept = mount.leases_recalled(inos);
            if kept.is_empty() { answer() } else { answer_when_forgotten(mount, kept, answer) }
        }
        None => answer(),
    });
    let namespace = Arc::downgrade(&mount.namespace);
    client.on_delegation_recall(move |directories, answer| match namespace.upgrade() {
        Some(namespace) => namespace.delegation_recalled(directories, answer),
        None => answer(),
    });
    let weak = Arc::downgrade(mount);
    client.on_lock_recall(move |files| {
        if let Some(mount) = weak.upgrade() {
            mount.locks_recalled(files);
        }
    });
}

/// Answers a recall once the kernel has forgotten the names: or a program could use one of them after the other mount's change is answered. It
/// hears of them at once, unless a program here changes names in the same directory, and waits for the manager, or for the other
/// mount. Then it forgets them by itself.
fn answer_when_forgotten(mount: Arc<tessera_mount::mount::Mount<FuseBackend>>, kept: KeptNames, answer: RecallAnswer) {
    let (ticket, since) = (mount.backend.names.last(), Instant::now());
    let answer = Arc::new(parking_lot::Mutex::new(Some(answer)));
    let later = answer.clone();
    let wait = move || {
        mount.backend.names.wait_a_moment(ticket, kept.until_told);
        std::thread::sleep(kept.untold.saturating_sub(since.elapsed()));
        give(&later);
    };
    if std::thread::Builder::new().name("recall".into()).spawn(wait).is_err() {
        give(&answer);
    }
}

fn give(answer: &parking_lot::Mutex<Option<RecallAnswer>>) {
    if let Some(answer) = answer.lock().take() {
        answer();
    }
}
