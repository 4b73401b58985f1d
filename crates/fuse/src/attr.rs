//! The store's attributes and errors in the form that the kernel takes.

use fuser::{Errno, FileAttr, FileType, INodeNo};
use std::time::UNIX_EPOCH;
use tessera_mount::attr::system_time;
use tessera_wire::{Attr, InodeKind};

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

/// An entry of a listing that tells the kernel nothing but inode and kind. The kernel takes over the attributes of an entry that
/// has valid ones, and a length of 0 would cut off what programs have mapped. No file has this length, so it takes over none, and
/// forgets the entry's lookup (`fuse_direntplus_link`).
pub fn name_only(ino: u64, kind: InodeKind) -> FileAttr {
    file_attr(&Attr { ino, kind: kind as i32, size_bytes: u64::MAX, ..Attr::default() })
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

/// The FUSE library's form of an error number.
pub fn errno(errno: tessera_mount::errno::Errno) -> Errno {
    Errno::from_i32(errno as i32)
}
