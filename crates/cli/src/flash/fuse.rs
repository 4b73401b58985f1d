//! `serve --fuse FILE`: the emulated SSD as a file, through FUSE, for a loop device that makes it a disk of file systems.
//!
//! The file is the root of the mount: the kernel mounts over a file as over a directory. The kernel caches nothing of it.

use super::later::Later;
use super::made::Made;
use super::serve::Server;
use crate::exit::{At, Exit, Failure, Outcome, bail};
use crate::term::Out;
use fuser::{
    Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, INodeNo, InitFlags, KernelConfig, LockOwner,
    MountOption, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyOpen, ReplyWrite, Request, Session, WriteFlags,
};
use parking_lot::Mutex;
use rustix::fs::FallocateFlags;
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};
use tessera_flash::nbd::{Command, Kind};
use tessera_flash::{CutCount, Ns};
use tessera_fuse::{Attached, SOURCE, is_dead};

/// Longest write that the kernel sends at once, bytes.
const MAX_WRITE_BYTES: u32 = 1 << 20;
/// Background requests that the kernel keeps in flight.
const MAX_BACKGROUND: u16 = 64;
/// Threads that take requests; the SSD carries out one at a time.
const THREADS: usize = 2;
/// Most bytes of one TRIM or zeroing.
const PIECE_BYTES: u64 = 1 << 30;
/// `O_DSYNC`, which is part of `O_SYNC`.
const DSYNC: i32 = 0o10000;
/// The attributes never change.
const TTL: Duration = Duration::from_secs(3600);

/// The file system that consists of the file.
struct SsdFile {
    server: Arc<Server>,
    later: Option<Arc<Later>>,
    attr: FileAttr,
    open: Arc<Handles>,
}

/// Handles that programs have open, a loop device's among them. Each is as a connection: it hears of every power cut.
#[derive(Default)]
struct Handles {
    seen_cuts: Mutex<HashMap<u64, CutCount>>,
    opened: AtomicU64,
}

/// What a request asks the SSD for.
struct Asked {
    handle: FileHandle,
    kind: Kind,
    offset: u64,
    bytes: u64,
    data: Vec<u8>,
    /// Whether it is to be durable before it is answered.
    fua: bool,
}

impl SsdFile {
    /// Carries out a request, and answers when the SSD is done with it.
    fn carry_out(&self, asked: Asked, answer: impl FnOnce(Result<Vec<u8>, Errno>) + Send + 'static) {
        let (due, power_cuts, result) = self.execute(asked);
        match &self.later {
            Some(later) => {
                later.at(due, power_cuts, move |is_cut| answer(if is_cut { Err(Errno::EIO) } else { result }))
            }
            None => answer(result),
        }
    }

    fn execute(&self, asked: Asked) -> (Ns, u64, Result<Vec<u8>, Errno>) {
        let Asked { handle, kind, mut offset, bytes, data, fua } = asked;
        let mut handles = self.open.seen_cuts.lock();
        let seen_cuts = handles.entry(handle.0).or_insert_with(|| self.server.cut_count());
        let (mut done, end, mut data) = (0, offset + bytes, Some(data));
        loop {
            let length = (end - offset).min(PIECE_BYTES) as u32;
            let data = data.take().unwrap_or_default();
            let command = Command { kind: Ok(kind), fua, cookie: 0, offset, length, data };
            let (due, power_cuts, reply) = self.server.execute(&command, seen_cuts);
            done = done.max(due);
            offset += u64::from(length);
            match reply.error {
                Some(error) => return (done, power_cuts, Err(Errno::from_i32(error as i32))),
                None if offset < end => {}
                None => return (done, power_cuts, Ok(reply.data.map(|(_, bytes)| bytes).unwrap_or_default())),
            }
        }
    }

    fn change(&self, handle: FileHandle, kind: Kind, offset: u64, bytes: u64, reply: ReplyEmpty) {
        self.carry_out(Asked { handle, kind, offset, bytes, data: Vec::new(), fua: false }, |result| match result {
            Ok(_) => reply.ok(),
            Err(errno) => reply.error(errno),
        });
    }
}

impl Filesystem for SsdFile {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let _ = config.add_capabilities(InitFlags::FUSE_ASYNC_DIO & config.capabilities());
        let _ = config.set_max_write(MAX_WRITE_BYTES);
        let _ = config.set_max_background(MAX_BACKGROUND);
        Ok(())
    }

    fn getattr(&self, _: &Request, _: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&TTL, &self.attr);
    }

    /// The length, owner and mode stay. Times are not kept.
    fn setattr(
        &self,
        _: &Request,
        _: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        _: Option<fuser::TimeOrNow>,
        _: Option<fuser::TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let changes =
            mode.is_some() || uid.is_some() || gid.is_some() || size.is_some_and(|size| size != self.attr.size);
        if changes { reply.error(Errno::EPERM) } else { reply.attr(&TTL, &self.attr) }
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let handle = self.open.opened.fetch_add(1, Ordering::Relaxed);
        self.open.seen_cuts.lock().insert(handle, self.server.cut_count());
        reply.opened(FileHandle(handle), FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES);
    }

    fn release(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        self.open.seen_cuts.lock().remove(&handle.0);
        reply.ok();
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let bytes = self.attr.size.saturating_sub(offset).min(size.into());
        if bytes == 0 {
            return reply.data(&[]);
        }
        self.carry_out(Asked { handle, kind: Kind::Read, offset, bytes, data: Vec::new(), fua: false }, |result| {
            match result {
                Ok(bytes) => reply.data(&bytes),
                Err(errno) => reply.error(errno),
            }
        });
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        flags: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let bytes = data.len() as u64;
        if offset.checked_add(bytes).is_none_or(|end| end > self.attr.size) {
            return reply.error(Errno::ENOSPC);
        }
        self.carry_out(
            Asked { handle, kind: Kind::Write, offset, bytes, data: data.to_vec(), fua: flags.0 & DSYNC != 0 },
            move |result| match result {
                Ok(_) => reply.written(bytes as u32),
                Err(errno) => reply.error(errno),
            },
        );
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fsync(&self, _: &Request, _: INodeNo, handle: FileHandle, _: bool, reply: ReplyEmpty) {
        self.change(handle, Kind::Flush, 0, 0, reply);
    }

    /// A hole is a TRIM of the pages within it; parts of pages become zeros.
    fn fallocate(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let flags = FallocateFlags::from_bits_retain(mode as u32);
        let beyond = offset.saturating_add(length) > self.attr.size;
        if beyond && !flags.contains(FallocateFlags::KEEP_SIZE) {
            return reply.error(Errno::ENOSPC);
        }
        // Beyond the end there is nothing to zero.
        let length = length.min(self.attr.size.saturating_sub(offset));
        match flags.difference(FallocateFlags::KEEP_SIZE) {
            _ if length == 0 => reply.ok(),
            FallocateFlags::PUNCH_HOLE => self.change(handle, Kind::Zero { stay: false }, offset, length, reply),
            FallocateFlags::ZERO_RANGE => self.change(handle, Kind::Zero { stay: true }, offset, length, reply),
            none if none.is_empty() => reply.ok(),
            _ => reply.error(Errno::EOPNOTSUPP),
        }
    }
}

/// Serves the SSD as this file.
///
/// # Errors
/// There is no FUSE, or the file cannot be mounted over.
pub fn serve(server: &Arc<Server>, path: &Path, output: Out) -> Outcome<Mounted> {
    if let Err(error) = File::options().read(true).write(true).open("/dev/fuse") {
        bail!(Exit::Failed, "/dev/fuse: {error}; load the kernel's module (`modprobe fuse`), or leave out --fuse");
    }
    let (path, modified, made) = mount_point(path)?;
    let later = server.delays().then(|| Later::start(server)).transpose().at("a thread")?;
    let open = Arc::new(Handles::default());
    let attr = attr(server.size(), modified);
    let file = SsdFile { server: server.clone(), later, attr, open: open.clone() };
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::FSName(SOURCE.into()),
        MountOption::Subtype("tessera-ssd".into()),
        MountOption::DefaultPermissions,
    ];
    config.n_threads = Some(THREADS);
    config.clone_fd = true;
    let session = Session::new(file, &path, &config).at(&path)?;
    let (attached, _) = Attached::new(session, &path).at(&path)?;
    output.note(format!("a disk: losetup --find --show --direct-io=on {}", path.display()));
    Ok(Mounted { attached, made, open, path, output })
}

/// The file while it is served.
pub struct Mounted {
    attached: Attached,
    /// After the mount: without an order to detach, the server did not start, and leaves no file.
    made: Made,
    open: Arc<Handles>,
    path: PathBuf,
    output: Out,
}

impl Mounted {
    /// Takes the file away, and says so if a program has it open; returns whether it is gone.
    pub fn detach(mut self) -> bool {
        if !self.open.seen_cuts.lock().is_empty() {
            self.output.caution(format!(
                "{}: ended while a program or a loop device has it open: it gets errors now, and what it did not flush is lost; \
                 unmount and `losetup --detach` before the server ends",
                self.path.display()
            ));
        }
        let detached = self.attached.detach();
        if let Err(error) = &detached {
            self.output.warn(&Failure::io(&self.path, error));
        }
        self.made.keep();
        detached.is_ok()
    }
}

/// An empty file there, and when it was changed; it is made if need be.
fn mount_point(path: &Path) -> Outcome<(PathBuf, SystemTime, Made)> {
    let made = Made::create(path).at(path)?;
    let shown = path.display();
    if is_dead(path) {
        bail!(Exit::Conflict, "{shown}: a server that was killed is still mounted there; run `umount {shown}` first");
    }
    let meta = path.metadata().at(path)?;
    let real = path.canonicalize().at(path)?;
    if meta.is_file() && meta.dev() != real.parent().unwrap_or(path).metadata().at(path)?.dev() {
        bail!(Exit::Conflict, "{shown}: another server serves its SSD as this file; name another file");
    }
    if !meta.is_file() || meta.len() > 0 {
        bail!(
            Exit::Conflict,
            "{shown}: is no empty file, and the SSD would hide what it has; name an empty or new file"
        );
    }
    Ok((real, meta.modified().at(path)?, made))
}

fn attr(size: u64, modified: SystemTime) -> FileAttr {
    FileAttr {
        ino: INodeNo::ROOT,
        size,
        blocks: size / 512,
        atime: modified,
        mtime: modified,
        ctime: modified,
        crtime: modified,
        kind: FileType::RegularFile,
        perm: 0o600,
        nlink: 1,
        uid: rustix::process::getuid().as_raw(),
        gid: rustix::process::getgid().as_raw(),
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}
