//! The FUSE requests, one function each: translates the request, runs the operation of the mount core, replies.

use crate::attr::{as_set, errno, file_attr, file_type, name_only};
use crate::backend::FuseBackend;
use crate::block_on::block_on;
use crate::counts::{Counts, Op};
use crate::expiry::Lookups;
use crate::locking::{LockRequest, Locking};
use crate::loopback;
use crate::mount::READ_AHEAD_KIB;
use fuser::*;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tessera_mount::attr::nanoseconds;
use tessera_mount::backend::{Backend, NewAttr, RenameMode};
use tessera_mount::mount::Mount;
use tessera_mount::ops::{Caller, ListedEntry, Opened, ShownEntry};
use tessera_wire::{Attr, DiskInfo, InodeKind};

/// Longest write that the kernel sends at once, bytes.
const MAX_WRITE_BYTES: u32 = 1 << 20;
/// Of four threads so many serve background requests, which read ahead. Reads of which a node does not answer leave the others to names,
/// attributes and other files.
const BACKGROUND_OF_FOUR: usize = 3;
/// `O_EXCL`.
const EXCLUSIVE: i32 = 0o200;
const APPEND: i32 = rustix::fs::OFlags::APPEND.bits() as i32;
const DIRECT: i32 = rustix::fs::OFlags::DIRECT.bits() as i32;
/// Sizes in `statfs` are multiples of this, bytes.
const STATFS_BLOCK_BYTES: u32 = 1 << 20;

/// The FUSE file system over one mount core. See the module.
pub struct TesseraFs {
    mount: Arc<Mount<FuseBackend>>,
    locking: Locking,
    counts: Arc<Counts>,
    lookups: Arc<Lookups>,
    options: crate::Options,
}

/// Replies with the result, or with its error.
macro_rules! answer {
    ($result:expr, $reply:ident, $done:pat => $with:expr) => {
        match $result {
            Ok($done) => $with,
            Err(error) => $reply.error(errno(error)),
        }
    };
}

type Outcome<T> = Result<T, tessera_mount::errno::Errno>;

impl TesseraFs {
    /// Serves `mount`.
    pub(crate) fn new(
        mount: Arc<Mount<FuseBackend>>,
        counts: Arc<Counts>,
        lookups: Arc<Lookups>,
        options: crate::Options,
    ) -> Self {
        TesseraFs { mount, locking: Locking::default(), counts, lookups, options }
    }

    fn is_loopback(&self, req: &Request) -> bool {
        self.mount.backend.loopback.is_loopback(req.pid())
    }

    /// How long the kernel may cache the answer to a request that arrived at `since_ns`.
    fn ttl_of(&self, attr: &Attr, since_ns: i64) -> Duration {
        if self.mount.was_recalled_since(attr.ino, since_ns) { Duration::ZERO } else { self.options.cache_ttl }
    }

    /// How long the kernel may cache a name: no longer than its change is recalled.
    fn name_ttl_of(&self, parent: INodeNo, attr: &Attr, since_ns: i64) -> Duration {
        self.mount.name_ttl(parent.0, attr.ino, self.ttl_of(attr, since_ns))
    }

    fn now_ns(&self) -> i64 {
        self.mount.backend.now_ns()
    }

    fn reply_entry(&self, parent: INodeNo, result: Outcome<ShownEntry>, since_ns: i64, reply: ReplyEntry) {
        answer!(result, reply, ShownEntry { attr, generation } => {
            reply.entry(&self.name_ttl_of(parent, &attr, since_ns), &file_attr(&attr), Generation(generation));
        });
    }

    fn reply_attr(&self, result: Outcome<Attr>, since_ns: i64, reply: ReplyAttr) {
        answer!(result, reply, attr => reply.attr(&self.ttl_of(&attr, since_ns), &file_attr(&attr)));
    }
}

fn reply_empty(result: Outcome<()>, reply: ReplyEmpty) {
    answer!(result, reply, () => reply.ok());
}

fn reply_data(result: Outcome<Vec<u8>>, reply: ReplyData) {
    answer!(result, reply, bytes => reply.data(&bytes));
}

/// Replies with the bytes, or with their number if the caller asks for that (`size` 0).
fn reply_xattr(result: Outcome<Vec<u8>>, size: u32, reply: ReplyXattr) {
    match result {
        Ok(bytes) if size == 0 => reply.size(bytes.len() as u32),
        Ok(bytes) if bytes.len() > size as usize => reply.error(Errno::ERANGE),
        Ok(bytes) => reply.data(&bytes),
        Err(error) => reply.error(errno(error)),
    }
}

fn open_flags(keep_cache: bool, direct: bool) -> FopenFlags {
    let cache = if keep_cache { FopenFlags::FOPEN_KEEP_CACHE } else { FopenFlags::empty() };
    if direct { cache | FopenFlags::FOPEN_DIRECT_IO } else { cache }
}

fn writes(flags: OpenFlags) -> bool {
    flags.acc_mode() != OpenAccMode::O_RDONLY
}

fn caller(req: &Request) -> Caller {
    Caller { uid: req.uid(), gid: req.gid(), thread: req.pid() }
}

fn at(time: TimeOrNow) -> i64 {
    match time {
        TimeOrNow::SpecificTime(time) => as_set(time),
        TimeOrNow::Now => nanoseconds(SystemTime::now()),
    }
}

impl Filesystem for TesseraFs {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let mut wanted = InitFlags::FUSE_PARALLEL_DIROPS
            | InitFlags::FUSE_DO_READDIRPLUS
            | InitFlags::FUSE_READDIRPLUS_AUTO
            | InitFlags::FUSE_CACHE_SYMLINKS
            | InitFlags::FUSE_POSIX_LOCKS
            | InitFlags::FUSE_FLOCK_LOCKS;
        if self.options.write_back {
            wanted |= InitFlags::FUSE_WRITEBACK_CACHE;
        }
        let _ = config.add_capabilities(wanted & config.capabilities());
        let maps_direct = config.add_capabilities(InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP).is_ok();
        let _ = self.mount.backend.direct_maps.set(maps_direct);
        let _ = config.set_max_write(MAX_WRITE_BYTES);
        let background = (self.options.threads * BACKGROUND_OF_FOUR / 4).clamp(1, usize::from(u16::MAX)) as u16;
        let _ = config.set_max_background(background);
        let _ = config.set_congestion_threshold(background);
        if let Err(most) = config.set_max_readahead(READ_AHEAD_KIB << 10) {
            let _ = config.set_max_readahead(most);
        }
        Ok(())
    }

    fn lookup(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.counts.asked(Op::Lookup);
        if parent == INodeNo::ROOT
            && self.is_loopback(req)
            && let Some(ino) = self.mount.backend.loopback.inode_of(name.as_bytes())
        {
            return answer!(block_on(self.mount.lookup_inode(ino)), reply, ShownEntry { attr, generation } => {
                reply.entry(&Duration::ZERO, &file_attr(&attr), Generation(generation));
            });
        }
        let mut looking_up = self.lookups.begin((parent.0, name.as_bytes().to_vec()));
        let since_ns = self.now_ns();
        let looked_up = block_on(self.mount.lookup(req.pid(), (parent.0, name.as_bytes())));
        if looked_up.as_ref().is_ok_and(|shown| shown.attr.kind() == InodeKind::Directory) {
            looking_up.found_directory();
        }
        self.reply_entry(parent, looked_up, since_ns, reply);
    }

    fn forget(&self, _req: &Request, ino: INodeNo, lookups: u64) {
        self.mount.forget(ino.0, lookups);
    }

    fn getattr(&self, req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        self.counts.asked(Op::GetAttr);
        let since_ns = self.now_ns();
        self.reply_attr(block_on(self.mount.attributes(req.pid(), ino.0)), since_ns, reply);
    }

    fn setattr(
        &self,
        req: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        self.counts.asked(Op::SetAttr);
        // For a loopback thread nothing changes: the kernel takes over the length in the reply.
        if self.is_loopback(req) {
            return self.reply_attr(block_on(self.mount.attributes(0, ino.0)), self.now_ns(), reply);
        }
        let mode = mode.map(|mode| mode & 0o7777);
        let (mtime_ns, atime_ns) = (mtime.map(at), atime.map(at));
        let new = NewAttr { mode, uid, gid, mtime_ns, ctime_ns: ctime.map(as_set), atime_ns };
        let since_ns = self.now_ns();
        let cut = size.map(|_| self.mount.begin_cut(ino.0));
        self.reply_attr(block_on(self.mount.set_attributes(ino.0, new, size)), since_ns, reply);
        if let Some(cut) = cut {
            block_on(self.mount.end_cut(cut));
        }
    }

    fn readlink(&self, _req: &Request, ino: INodeNo, reply: ReplyData) {
        reply_data(block_on(self.mount.read_link(ino.0)), reply);
    }

    fn mknod(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let since_ns = self.now_ns();
        let made = block_on(self.mount.make_node(caller(req), (parent.0, name.as_bytes()), mode, rdev));
        self.reply_entry(parent, made, since_ns, reply);
    }

    fn mkdir(&self, req: &Request, parent: INodeNo, name: &OsStr, mode: u32, _umask: u32, reply: ReplyEntry) {
        let since_ns = self.now_ns();
        let made = block_on(self.mount.make_directory(caller(req), (parent.0, name.as_bytes()), mode));
        if made.is_ok() {
            self.lookups.made((parent.0, name.as_bytes().to_vec()));
        }
        self.reply_entry(parent, made, since_ns, reply);
    }

    fn unlink(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        reply_empty(block_on(self.mount.remove((parent.0, name.as_bytes()), false)), reply);
    }

    fn rmdir(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        reply_empty(block_on(self.mount.remove((parent.0, name.as_bytes()), true)), reply);
    }

    fn symlink(&self, req: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let target = target.as_os_str().as_bytes();
        let since_ns = self.now_ns();
        let made = block_on(self.mount.make_symlink(caller(req), (parent.0, name.as_bytes()), target));
        self.reply_entry(parent, made, since_ns, reply);
    }

    fn rename(
        &self,
        _req: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let mode = match flags {
            f if f.is_empty() => RenameMode::Replace,
            f if f == RenameFlags::RENAME_NOREPLACE => RenameMode::NoReplace,
            f if f == RenameFlags::RENAME_EXCHANGE => RenameMode::Exchange,
            _ => return reply.error(Errno::EINVAL),
        };
        let (from, to) = ((parent.0, name.as_bytes()), (new_parent.0, new_name.as_bytes()));
        reply_empty(block_on(self.mount.rename(from, to, mode)), reply);
    }

    fn link(&self, _req: &Request, ino: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let since_ns = self.now_ns();
        let made = block_on(self.mount.link(ino.0, (parent.0, name.as_bytes())));
        self.reply_entry(parent, made, since_ns, reply);
    }

    fn open(&self, req: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        self.counts.asked(Op::Open);
        if self.is_loopback(req) {
            let handle = block_on(self.mount.open_loopback(ino.0));
            return reply.opened(FileHandle(handle), open_flags(!loopback::drops_pages(flags.0), false));
        }
        answer!(block_on(self.mount.open(req.pid(), ino.0, writes(flags))), reply, Opened { handle, keep_cache, direct } => {
            reply.opened(FileHandle(handle), open_flags(keep_cache, direct));
            block_on(self.mount.read_ahead());
        });
    }

    fn create(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        self.counts.asked(Op::Create);
        let (writes, exclusive) = (writes(OpenFlags(flags)), flags & EXCLUSIVE != 0);
        let (caller, mode, since_ns) = (caller(req), mode & 0o7777, self.now_ns());
        let created = block_on(self.mount.create(caller, (parent.0, name.as_bytes()), mode, writes, exclusive));
        answer!(created, reply, (ShownEntry { attr, generation }, Opened { handle, keep_cache, direct }) => {
            let (ttl, generation) = (self.name_ttl_of(parent, &attr, since_ns), Generation(generation));
            let flags = open_flags(keep_cache, direct);
            reply.created(&ttl, &file_attr(&attr), generation, FileHandle(handle), flags);
            block_on(self.mount.read_ahead());
        });
    }

    fn read(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        flags: OpenFlags,
        lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.counts.asked(Op::Read);
        // The kernel names a reader where it reads around its pages. It fills some for a map of a handle with O_DIRECT, too.
        let read = match (flags.0 & DIRECT, lock_owner) {
            (0, None) => block_on(self.mount.read_page(fh.0, offset, size as usize)),
            (0, Some(_)) => block_on(self.mount.read(fh.0, offset, size as usize)),
            (_, owner) => block_on(self.mount.read_direct(fh.0, offset, size as usize, owner.is_none())),
        };
        self.counts.read(read.as_ref().map_or(0, Vec::len));
        reply_data(read, reply);
    }

    fn write(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        self.counts.asked(Op::Write);
        if write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID)
            && let Err(error) = block_on(self.mount.drop_privileges(fh.0))
        {
            return reply.error(errno(error));
        }
        // A write through the kernel's pages has its place.
        let appends = flags.0 & APPEND != 0 && self.mount.bypasses_pages();
        let written = match write_flags.contains(WriteFlags::FUSE_WRITE_CACHE) {
            true => block_on(self.mount.write_page(fh.0, offset, data)),
            false if appends => block_on(self.mount.append(fh.0, offset, data)),
            false => block_on(self.mount.write(fh.0, offset, data)),
        };
        answer!(written, reply, () => {
            self.counts.written(data.len());
            reply.written(data.len() as u32);
        });
    }

    fn flush(&self, _req: &Request, ino: INodeNo, fh: FileHandle, lock_owner: LockOwner, reply: ReplyEmpty) {
        self.counts.asked(Op::Close);
        reply_empty(block_on(self.mount.flush(ino.0, fh.0, lock_owner.0)), reply);
    }

    fn fsync(&self, _req: &Request, _ino: INodeNo, fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        self.counts.asked(Op::Fsync);
        reply_empty(block_on(self.mount.fsync(fh.0)), reply);
    }

    fn release(
        &self,
        _req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        block_on(self.mount.release(ino.0, fh.0));
        reply.ok();
    }

    fn opendir(&self, _req: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let opened = block_on(self.mount.open_directory(ino.0));
        answer!(opened, reply, handle => reply.opened(FileHandle(handle), FopenFlags::empty()));
    }

    fn readdir(&self, _req: &Request, ino: INodeNo, fh: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        self.counts.asked(Op::List);
        let add = |entry: &ListedEntry<'_>| {
            reply.add(INodeNo(entry.ino), entry.next, file_type(entry.kind), OsStr::from_bytes(entry.name))
        };
        answer!(block_on(self.mount.read_directory(ino.0, fh.0, offset, false, add)), reply, () => reply.ok());
        block_on(self.mount.read_ahead());
    }

    fn readdirplus(&self, _req: &Request, ino: INodeNo, fh: FileHandle, offset: u64, mut reply: ReplyDirectoryPlus) {
        self.counts.asked(Op::List);
        let add = |entry: &ListedEntry<'_>| {
            let (attr, ttl, generation) = match &entry.shown {
                Some(shown) => {
                    let ttl = self.options.cache_ttl.saturating_sub(entry.age).min(entry.kept_for);
                    if shown.attr.kind() == InodeKind::Directory {
                        self.lookups.made((ino.0, entry.name.to_vec()));
                    }
                    (file_attr(&shown.attr), ttl, shown.generation)
                }
                None => (name_only(entry.ino, entry.kind), Duration::ZERO, 0),
            };
            let name = OsStr::from_bytes(entry.name);
            reply.add(INodeNo(entry.ino), entry.next, name, &ttl, &attr, Generation(generation))
        };
        answer!(block_on(self.mount.read_directory(ino.0, fh.0, offset, true, add)), reply, () => reply.ok());
        block_on(self.mount.read_ahead());
    }

    fn releasedir(&self, _req: &Request, _ino: INodeNo, fh: FileHandle, _flags: OpenFlags, reply: ReplyEmpty) {
        self.mount.release_directory(fh.0);
        reply.ok();
    }

    fn fsyncdir(&self, _req: &Request, ino: INodeNo, _fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        reply_empty(block_on(self.mount.sync_directory(ino.0)), reply);
    }

    fn statfs(&self, _req: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        const LONGEST_NAME: u32 = 255;
        let block = u64::from(STATFS_BLOCK_BYTES);
        let status = match block_on(self.mount.status()) {
            Ok(status) => status,
            Err(error) => return reply.error(errno(error)),
        };
        let blocks = |of: fn(&DiskInfo) -> u64| status.disks.iter().map(of).sum::<u64>() / block;
        let (capacity, free) = (blocks(|disk| disk.capacity_bytes), blocks(|disk| disk.free_bytes));
        let no_limit = u64::from(u32::MAX);
        let inodes = status.files + status.directories + no_limit;
        reply.statfs(capacity, free, free, inodes, no_limit, STATFS_BLOCK_BYTES, LONGEST_NAME, STATFS_BLOCK_BYTES);
    }

    fn setxattr(
        &self,
        _req: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        reply_empty(block_on(self.mount.set_xattr(ino.0, name.as_bytes(), value, flags)), reply);
    }

    fn getxattr(&self, _req: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        reply_xattr(block_on(self.mount.get_xattr(ino.0, name.as_bytes())), size, reply);
    }

    fn listxattr(&self, _req: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        reply_xattr(block_on(self.mount.list_xattrs(ino.0)), size, reply);
    }

    fn removexattr(&self, _req: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        reply_empty(block_on(self.mount.remove_xattr(ino.0, name.as_bytes())), reply);
    }

    /// No file is a device, so there is no `ioctl` to pass on.
    fn ioctl(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _flags: IoctlFlags,
        _cmd: u32,
        _in_data: &[u8],
        _out_size: u32,
        reply: ReplyIoctl,
    ) {
        reply.error(Errno::ENOTTY);
    }

    /// Not implemented: the kernel then seeks by itself and does not ask again.
    fn lseek(&self, _req: &Request, _ino: INodeNo, _fh: FileHandle, _offset: i64, _whence: i32, reply: ReplyLseek) {
        reply.error(Errno::ENOSYS);
    }

    fn getlk(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        lock_owner: LockOwner,
        start: u64,
        end: u64,
        typ: i32,
        pid: u32,
        reply: ReplyLock,
    ) {
        let (ino, handle, owner, tid) = (ino.0, fh.0, lock_owner.0, req.pid());
        LockRequest { ino, handle, owner, start, end, kind: typ, pid, tid, wait: false }.test(&self.mount, reply);
    }

    fn setlk(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        lock_owner: LockOwner,
        start: u64,
        end: u64,
        typ: i32,
        pid: u32,
        sleep: bool,
        reply: ReplyEmpty,
    ) {
        let (ino, handle, owner, tid) = (ino.0, fh.0, lock_owner.0, req.pid());
        let request = LockRequest { ino, handle, owner, start, end, kind: typ, pid, tid, wait: sleep };
        self.locking.set(&self.mount, request, reply);
    }

    /// Blocks cannot be allocated in advance; only the length can grow.
    fn fallocate(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        reply_empty(block_on(self.mount.allocate(fh.0, offset, length, mode)), reply);
    }

    fn copy_file_range(
        &self,
        _req: &Request,
        _ino_in: INodeNo,
        fh_in: FileHandle,
        offset_in: u64,
        _ino_out: INodeNo,
        fh_out: FileHandle,
        offset_out: u64,
        len: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        self.counts.asked(Op::Write);
        let copied = block_on(self.mount.copy((fh_in.0, offset_in), (fh_out.0, offset_out), len));
        answer!(copied, reply, copied => {
            self.counts.read(copied as usize);
            self.counts.written(copied as usize);
            reply.written(copied as u32);
        });
    }
}
