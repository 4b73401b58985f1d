//! The store's attributes and errors in the form that the kernel takes.

use fuser::{Errno, FileAttr, FileType, INodeNo};
use std::time::UNIX_EPOCH;
use tessera_mount::attr::system_time;
use tessera_wire::{Attr, Code, Error, InodeKind};

/// I/O size to recommend to the kernel, bytes.
const BLOCK_BYTES: u32 = 1 << 20;
/// Unit of `st_blocks`, bytes.
const SECTOR_BYTES: u64 = 512;

/// What `stat` shows of an inode.
pub fn file_attr(attr: &Attr) -> FileAttr {
    let kind = file_type(attr.kind());
    FileAttr {
        ino: INodeNo(attr.ino),
        size: attr.size_bytes,
        blocks: attr.size_bytes.div_ceil(SECTOR_BYTES),
        atime: system_time(attr.atime_ns),
        mtime: system_time(attr.mtime_ns),
        ctime: system_time(attr.ctime_ns),
        crtime: UNIX_EPOCH,
        kind,
        perm: (attr.mode & 0o7777) as u16,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        blksize: BLOCK_BYTES,
        flags: 0,
    }
}

/// The kernel's type for an inode kind; a kind that this release does not know shows as a file.
pub fn file_type(kind: InodeKind) -> FileType {
    match kind {
        InodeKind::Directory => FileType::Directory,
        InodeKind::Symlink => FileType::Symlink,
        InodeKind::Fifo => FileType::NamedPipe,
        InodeKind::Socket => FileType::Socket,
        InodeKind::CharDevice => FileType::CharDevice,
        InodeKind::BlockDevice => FileType::BlockDevice,
        InodeKind::File | InodeKind::Unknown => FileType::RegularFile,
    }
}

/// The errno for an error of the store (docs/mount.md lists them).
pub fn errno(code: Code) -> Errno {
    match code {
        Code::NotFound => Errno::ENOENT,
        Code::Exists => Errno::EEXIST,
        Code::NotEmpty => Errno::ENOTEMPTY,
        Code::NotDirectory => Errno::ENOTDIR,
        Code::IsDirectory => Errno::EISDIR,
        Code::NameTooLong => Errno::ENAMETOOLONG,
        Code::Invalid => Errno::EINVAL,
        Code::Permission => Errno::EACCES,
        Code::NoSpace => Errno::ENOSPC,
        Code::Unsupported => Errno::EOPNOTSUPP,
        Code::VersionConflict => Errno::ESTALE,
        Code::Unavailable | Code::Timeout | Code::TooFewHosts => Errno::ETIMEDOUT,
        _ => Errno::EIO,
    }
}

/// As [`errno`], and logs the error: an errno alone says little.
pub fn explained(what: &str, ino: u64, error: &Error) -> Errno {
    let errno = errno(error.kind());
    if !matches!(error.kind(), Code::NotFound | Code::Exists | Code::NotEmpty) {
        tracing::warn!(what, ino, %error, "the store refuses");
    }
    errno
}
