//! The FUSE requests, one function each: look up what is needed, carry the request out, reply.
//!
//! This module makes no decisions of its own: [`crate::files`] owns the bytes, [`crate::namespace`] the names and
//! leases. The kernel checks permissions (`default_permissions`).

mod opening;
mod tree;

use crate::attr::{errno, explained, file_attr, file_type};
use crate::counts::Op;
use crate::dirs::{self, OpenDirectory};
use crate::files::{self, OpenFile};
use crate::history::{self, History};
use crate::locking::{self, Asked};
use crate::mount::Store;
use crate::xattrs;
use fuser::*;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, SystemTime};
use tessera_client::ReadHandle;
use tessera_client::inodes::{NewAttr, RenameMode};
use tessera_mount::attr::nanoseconds;
use tessera_mount::namespace::Scope;
use tessera_mount::synthetic;
use tessera_wire::{Attr, InodeKind};

/// Longest write that the kernel sends at once, bytes.
const MAX_WRITE_BYTES: u32 = 1 << 20;
/// Background requests that the kernel keeps in flight.
const MAX_BACKGROUND: u16 = 64;
/// `O_EXCL`.
const EXCLUSIVE: i32 = 0o200;
/// Sizes in `statfs` are multiples of this, bytes.
const STATFS_BLOCK_BYTES: u32 = 1 << 20;

/// The FUSE file system over one [`Store`]. See the module.
pub struct TesseraFs {
    store: Arc<Store>,
    history: History,
    handles: Mutex<HashMap<u64, Handle>>,
    next_handle: AtomicU64,
}

#[derive(Clone)]
enum Handle {
    File {
        file: Arc<OpenFile>,
        writes: bool,
    },
    Directory(Arc<Mutex<OpenDirectory>>),
    /// One old version of a file.
    Version(Arc<ReadHandle>),
    /// A directory of old versions, with its entries.
    Versions(Arc<Vec<history::Entry>>),
}

/// Old versions are read-only: a synthetic inode gives `EROFS`.
fn writable(ino: u64) -> Result<u64, Errno> {
    if history::is_synthetic(ino) { Err(Errno::EROFS) } else { Ok(ino) }
}

impl TesseraFs {
    /// Serves `store`.
    pub fn new(store: Arc<Store>) -> Self {
        TesseraFs { store, history: History::default(), handles: Mutex::default(), next_handle: AtomicU64::new(1) }
    }

    fn ttl(&self) -> Duration {
        self.store.options.cache_ttl
    }

    fn reply_entry(&self, result: Result<Attr, Errno>, reply: ReplyEntry) {
        match result {
            Ok(attr) => {
                let (attr, generation) = self.entry(attr);
                reply.entry(&self.ttl(), &attr, generation);
            }
            Err(errno) => reply.error(errno),
        }
    }

    /// Replies with the current attributes and changes nothing. The kernel takes over the length in the reply
    /// ([`crate::beside`]).
    fn show_attributes(&self, ino: u64, reply: ReplyAttr) {
        match self.known(ino) {
            Ok(known) => reply.attr(&self.ttl(), &file_attr(&self.seen(known.attr))),
            Err(errno) => reply.error(errno),
        }
    }

    /// Adds the entries from `position` on until `add` returns that the reply is full.
    fn show(
        &self,
        ino: u64,
        fh: FileHandle,
        position: u64,
        mut add: impl FnMut(u64, &[u8], Option<&Attr>, InodeKind, u64) -> bool,
    ) -> Result<(), Errno> {
        let directory = self.directory(fh)?;
        let mut directory = directory.lock();
        if position == 0 {
            self.store.namespace.settle(&self.store.client, Scope::Directory(ino))?;
            directory.rewind();
        }
        for next in position.. {
            if next < dirs::DOTS {
                let name: &[u8] = if next == 0 { b"." } else { b".." };
                if add(ino, name, None, InodeKind::Directory, next + 1) {
                    return Ok(());
                }
                continue;
            }
            let found = directory.entry(&self.store.client.inodes(), ino, next);
            let Some(entry) = found.map_err(|e| explained("list", ino, &e))? else { return Ok(()) };
            let child = entry.attr.as_ref().map_or(0, |attr| attr.ino);
            if add(child, &entry.name, entry.attr.as_ref(), dirs::kind(entry), next + 1) {
                return Ok(());
            }
        }
        Ok(())
    }

    fn space(&self) -> Result<(u64, u64, u64), Errno> {
        let status = self.store.client.status().map_err(|e| errno(e.code()))?;
        let sum = |each: fn(&tessera_wire::DiskInfo) -> u64| status.disks.iter().map(each).sum::<u64>();
        Ok((sum(|d| d.capacity_bytes), sum(|d| d.free_bytes), status.files + status.directories))
    }
}

fn done(result: Result<(), Errno>, reply: ReplyEmpty) {
    match result {
        Ok(()) => reply.ok(),
        Err(errno) => reply.error(errno),
    }
}

fn at(time: TimeOrNow) -> i64 {
    match time {
        TimeOrNow::SpecificTime(time) => nanoseconds(time),
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
        if self.store.options.write_back {
            wanted |= InitFlags::FUSE_WRITEBACK_CACHE;
        }
        let _ = config.add_capabilities(wanted & config.capabilities());
        let _ = config.set_max_write(MAX_WRITE_BYTES);
        let _ = config.set_max_background(MAX_BACKGROUND);
        if let Err(most) = config.set_max_readahead((self.store.options.read_ahead_kib << 10) as u32) {
            let _ = config.set_max_readahead(most);
        }
        Ok(())
    }

    fn lookup(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.store.counts.asked(Op::Lookup);
        if parent == INodeNo::ROOT
            && self.store.beside.is_ours(req.pid())
            && let Some(ino) = self.store.beside.number(name.as_bytes())
        {
            return match self.known(ino) {
                Ok(known) => {
                    let generation = self.store.kernel.lock().looked_up(&known.attr, true);
                    reply.entry(&Duration::ZERO, &file_attr(&self.seen(known.attr)), Generation(generation));
                }
                Err(errno) => reply.error(errno),
            };
        }
        if history::is_synthetic(parent.0) || (parent == INodeNo::ROOT && name.as_bytes() == synthetic::ROOT_NAME) {
            return match self.history.lookup(&self.store, parent.0, name.as_bytes()) {
                Ok(attr) => reply.entry(&self.ttl(), &attr, Generation(0)),
                Err(errno) => reply.error(errno),
            };
        }
        self.reply_entry(self.lookup_known(parent.0, name.as_bytes()).map(|known| known.attr), reply);
    }

    fn forget(&self, _req: &Request, ino: INodeNo, lookups: u64) {
        self.store.kernel.lock().forgot(ino.0, lookups);
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        self.store.counts.asked(Op::GetAttr);
        if history::is_synthetic(ino.0) {
            return match self.history.attr(&self.store, ino.0) {
                Ok(attr) => reply.attr(&self.ttl(), &attr),
                Err(errno) => reply.error(errno),
            };
        }
        match self.known(ino.0) {
            Ok(known) => reply.attr(&self.ttl(), &file_attr(&self.seen(known.attr))),
            Err(errno) => reply.error(errno),
        }
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
        _ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        self.store.counts.asked(Op::SetAttr);
        if self.store.beside.is_ours(req.pid()) {
            return self.show_attributes(ino.0, reply);
        }
        let mode = mode.map(|mode| mode & 0o7777);
        let new = NewAttr { mode, uid, gid, mtime_ns: mtime.map(at), atime_ns: atime.map(at) };
        match self.set_attributes(ino.0, new, size) {
            Ok(attr) => reply.attr(&self.ttl(), &file_attr(&self.seen(attr))),
            Err(errno) => reply.error(errno),
        }
    }

    fn readlink(&self, _req: &Request, ino: INodeNo, reply: ReplyData) {
        match self.known(ino.0) {
            Ok(known) if known.attr.kind() == InodeKind::Symlink => reply.data(&known.attr.symlink_target),
            Ok(_) => reply.error(Errno::EINVAL),
            Err(errno) => reply.error(errno),
        }
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
        self.reply_entry(self.make_node(req, parent.0, name, mode, rdev).map(|known| known.attr), reply);
    }

    fn mkdir(&self, req: &Request, parent: INodeNo, name: &OsStr, mode: u32, _umask: u32, reply: ReplyEntry) {
        let made = self.make_directory(req, parent.0, name.as_bytes(), mode);
        self.reply_entry(made, reply);
    }

    fn unlink(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        done(self.remove(parent.0, name.as_bytes(), false), reply);
    }

    fn rmdir(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        done(self.remove(parent.0, name.as_bytes(), true), reply);
    }

    fn symlink(&self, req: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let made = self.owner(parent.0, req, 0o777, false).and_then(|owner| {
            let target = target.as_os_str().as_bytes();
            let _in_flight = self.store.namespace.begin_create(parent.0, name.as_bytes());
            let made = self.store.client.inodes().symlink(parent.0, name.as_bytes(), target, owner.uid, owner.gid);
            self.store.namespace.with(|core, _| core.forget_name(parent.0, name.as_bytes()));
            made.map_err(|e| explained("make symbolic link", parent.0, &e))
        });
        self.reply_entry(made, reply);
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
        done(self.rename_names(from, to, mode), reply);
    }

    fn link(&self, _req: &Request, ino: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let made = writable(ino.0).and(writable(parent.0)).and_then(|_| {
            self.store.settle(ino.0)?;
            let _in_flight = self.store.namespace.begin_create(parent.0, name.as_bytes());
            let made = self.store.client.inodes().link(ino.0, parent.0, name.as_bytes());
            self.store.namespace.with(|core, _| core.forget(&[ino.0, parent.0]));
            made.map_err(|e| explained("link", ino.0, &e))
        });
        self.reply_entry(made, reply);
    }

    fn open(&self, req: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        self.store.counts.asked(Op::Open);
        if self.store.beside.is_ours(req.pid()) {
            let (fh, flags) = self.open_beside(ino.0, flags);
            return reply.opened(fh, flags);
        }
        match self.open_file(ino.0, flags) {
            Ok((fh, flags)) => reply.opened(fh, flags),
            Err(errno) => reply.error(errno),
        }
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
        self.store.counts.asked(Op::Create);
        let writes = OpenFlags(flags).acc_mode() != OpenAccMode::O_RDONLY;
        let here = match writes {
            true => self.create_deferred(req, parent.0, name.as_bytes(), mode & 0o7777),
            false => Ok(None),
        };
        let made = match here {
            Ok(Some(known)) => Ok(known),
            Ok(None) => self.make_node(req, parent.0, name, mode & 0o7777, 0),
            Err(errno) => Err(errno),
        };
        match made {
            Err(errno) if errno.code() == Errno::EEXIST.code() && flags & EXCLUSIVE == 0 => {
                self.open_existing(parent.0, name.as_bytes(), OpenFlags(flags), reply);
            }
            Ok(known) => {
                let attr = known.attr.clone();
                let file = self.store.files.open(attr.ino, 0, writes);
                file.made(known);
                let (attr, generation) = self.entry(attr);
                let fh = self.keep(Handle::File { file, writes });
                reply.created(&self.ttl(), &attr, generation, fh, FopenFlags::FOPEN_KEEP_CACHE);
            }
            Err(errno) => reply.error(errno),
        }
    }

    fn read(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.store.counts.asked(Op::Read);
        let handle = self.handles.lock().get(&fh.0).cloned();
        let read = match handle {
            Some(Handle::Version(version)) => files::read_version(&version, offset, size as usize),
            Some(Handle::File { file, .. }) => file.read(&self.store, offset, size as usize),
            _ => Err(Errno::EBADF),
        };
        match read {
            Ok(bytes) => {
                self.store.counts.read(bytes.len());
                reply.data(&bytes);
            }
            Err(errno) => reply.error(errno),
        }
    }

    fn write(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        self.store.counts.asked(Op::Write);
        match self.file(fh).and_then(|file| file.write(&self.store, offset, data)) {
            Ok(()) => {
                self.store.counts.written(data.len());
                reply.written(data.len() as u32);
            }
            Err(errno) => reply.error(errno),
        }
    }

    fn flush(&self, _req: &Request, ino: INodeNo, fh: FileHandle, lock_owner: LockOwner, reply: ReplyEmpty) {
        self.store.counts.asked(Op::Close);
        let handle = self.handles.lock().get(&fh.0).cloned();
        let flushed = match handle {
            Some(Handle::File { file, writes: true }) => file.close(&self.store),
            _ => Ok(()),
        };
        let closed = locking::closes(&self.store, ino.0, lock_owner.0);
        done(flushed.and(closed), reply);
    }

    fn fsync(&self, _req: &Request, _ino: INodeNo, fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        self.store.counts.asked(Op::Fsync);
        done(self.file(fh).and_then(|file| file.commit(&self.store)), reply);
    }

    fn release(
        &self,
        _req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        let handle = self.handles.lock().remove(&fh.0);
        let release = || {
            if let Some(Handle::File { file, writes }) = handle {
                self.store.files.release(&self.store, &file, writes);
            }
        };
        match lock_owner {
            Some(owner) => locking::leaves(&self.store, ino.0, owner.0, release),
            None => release(),
        }
        reply.ok();
    }

    fn opendir(&self, _req: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let handle = match history::is_synthetic(ino.0) {
            true => self.history.entries(&self.store, ino.0).map(|entries| Handle::Versions(Arc::new(entries))),
            false => Ok(Handle::Directory(Arc::default())),
        };
        match handle {
            Ok(handle) => reply.opened(self.keep(handle), FopenFlags::empty()),
            Err(errno) => reply.error(errno),
        }
    }

    fn readdir(&self, _req: &Request, ino: INodeNo, fh: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        self.store.counts.asked(Op::List);
        if let Some(entries) = self.versions(fh) {
            for (next, entry) in (1u64..).zip(entries.iter()).skip(offset as usize) {
                if reply.add(entry.attr.ino, next, entry.attr.kind, OsStr::from_bytes(&entry.name)) {
                    break;
                }
            }
            return reply.ok();
        }
        let shown = self.show(ino.0, fh, offset, |child, name, _, kind, next| {
            reply.add(INodeNo(child), next, file_type(kind), OsStr::from_bytes(name))
        });
        match shown {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(errno),
        }
    }

    fn readdirplus(&self, _req: &Request, ino: INodeNo, fh: FileHandle, offset: u64, mut reply: ReplyDirectoryPlus) {
        self.store.counts.asked(Op::List);
        let ttl = self.ttl();
        if let Some(entries) = self.versions(fh) {
            for (next, entry) in (1u64..).zip(entries.iter()).skip(offset as usize) {
                let name = OsStr::from_bytes(&entry.name);
                if reply.add(entry.attr.ino, next, name, &ttl, &entry.attr, Generation(0)) {
                    break;
                }
            }
            return reply.ok();
        }
        let shown = self.show(ino.0, fh, offset, |child, name, attr, kind, next| {
            let name = OsStr::from_bytes(name);
            let Some(attr) = attr else {
                let dot = Attr { ino: child, kind: kind as i32, ..Attr::default() };
                return reply.add(INodeNo(child), next, name, &Duration::ZERO, &file_attr(&dot), Generation(0));
            };
            let (shown, generation) = self.entry(attr.clone());
            let full = reply.add(INodeNo(child), next, name, &ttl, &shown, generation);
            if full {
                self.store.kernel.lock().forgot(child, 1);
            }
            full
        });
        match shown {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(errno),
        }
    }

    fn releasedir(&self, _req: &Request, _ino: INodeNo, fh: FileHandle, _flags: OpenFlags, reply: ReplyEmpty) {
        self.handles.lock().remove(&fh.0);
        reply.ok();
    }

    /// The call that makes a name also makes it durable; only deferred creates must be settled here.
    fn fsyncdir(&self, _req: &Request, ino: INodeNo, _fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        done(self.store.namespace.settle(&self.store.client, Scope::Directory(ino.0)), reply);
    }

    fn statfs(&self, _req: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        const LONGEST_NAME: u32 = 255;
        let block = u64::from(STATFS_BLOCK_BYTES);
        match self.space() {
            Ok((capacity, free, inodes)) => {
                let (blocks, free) = (capacity / block, free / block);
                let no_limit = u64::from(u32::MAX);
                reply.statfs(
                    blocks,
                    free,
                    free,
                    inodes + no_limit,
                    no_limit,
                    STATFS_BLOCK_BYTES,
                    LONGEST_NAME,
                    STATFS_BLOCK_BYTES,
                );
            }
            Err(errno) => reply.error(errno),
        }
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
        let set = |ino| xattrs::set(&self.store, ino, name.as_bytes(), value, flags);
        done(writable(ino.0).and_then(set), reply);
    }

    fn getxattr(&self, _req: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let value = match history::is_synthetic(ino.0) {
            true => Err(Errno::ENODATA),
            false => xattrs::get(&self.store, ino.0, name.as_bytes()),
        };
        xattrs::reply(value, size, reply);
    }

    fn listxattr(&self, _req: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        let names = if history::is_synthetic(ino.0) { Ok(Vec::new()) } else { xattrs::list(&self.store, ino.0) };
        xattrs::reply(names, size, reply);
    }

    fn removexattr(&self, _req: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        done(writable(ino.0).and_then(|ino| xattrs::remove(&self.store, ino, name.as_bytes())), reply);
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

    /// Not supported: the kernel then reads and writes instead, and deduplication finds the copied chunks.
    fn copy_file_range(
        &self,
        _req: &Request,
        _ino_in: INodeNo,
        _fh_in: FileHandle,
        _offset_in: u64,
        _ino_out: INodeNo,
        _fh_out: FileHandle,
        _offset_out: u64,
        _len: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        reply.error(Errno::ENOSYS);
    }

    fn getlk(
        &self,
        req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        lock_owner: LockOwner,
        start: u64,
        end: u64,
        typ: i32,
        pid: u32,
        reply: ReplyLock,
    ) {
        let (ino, owner, tid) = (ino.0, lock_owner.0, req.pid());
        locking::test(&self.store, &Asked { ino, owner, start, end, kind: typ, pid, tid, wait: false }, reply);
    }

    fn setlk(
        &self,
        req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        lock_owner: LockOwner,
        start: u64,
        end: u64,
        typ: i32,
        pid: u32,
        sleep: bool,
        reply: ReplyEmpty,
    ) {
        let (ino, owner, tid) = (ino.0, lock_owner.0, req.pid());
        locking::set(&self.store, Asked { ino, owner, start, end, kind: typ, pid, tid, wait: sleep }, reply);
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
        let extend = |file: Arc<OpenFile>| match (mode, offset.checked_add(length)) {
            (0, Some(end)) if end > file.size().0 => file.truncate(&self.store, end),
            (0, Some(_)) => Ok(()),
            _ => Err(Errno::EOPNOTSUPP),
        };
        done(self.file(fh).and_then(extend), reply);
    }
}
