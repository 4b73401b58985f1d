//! The store's attributes and errors in the form that the kernel takes.

use fuser::{Errno, FileAttr, FileType, INodeNo};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tessera_mount::attr::{nanoseconds, system_time};
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

/// A time that a program sets, nanoseconds since 1970. The FUSE library gets a time before 1970 as seconds and as nanoseconds behind
/// them, and takes both away from 1970.
pub fn as_set(time: SystemTime) -> i64 {
    match UNIX_EPOCH.duration_since(time) {
        Ok(before) => {
            let behind_ns = 2 * u64::from(before.subsec_nanos());
            nanoseconds(time.checked_add(Duration::from_nanos(behind_ns)).unwrap_or(time))
        }
        Err(_) => nanoseconds(time),
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

/// The FUSE library's form of an error number.
pub fn errno(errno: tessera_mount::errno::Errno) -> Errno {
    Errno::from_i32(errno as i32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_before_1970_is_the_one_that_was_set() {
        // As the FUSE library makes it of -2 seconds and 750 million nanoseconds.
        let of_library = UNIX_EPOCH - Duration::new(2, 750_000_000);
        assert_eq!(as_set(of_library), -1_250_000_000);
        assert_eq!(as_set(UNIX_EPOCH - Duration::from_secs(7)), -7_000_000_000);
        assert_eq!(as_set(UNIX_EPOCH - Duration::new(9_223_372_037, 999_999_999)), -9_223_372_036_000_000_001);
        assert_eq!(as_set(UNIX_EPOCH + Duration::new(7, 5)), 7_000_000_005);
    }

    /// The kernel refuses lengths above the greatest signed number (`fuse_valid_size`).
    #[test]
    fn an_entry_that_only_names_an_inode_has_no_length_that_the_kernel_takes() {
        let named = name_only(7, InodeKind::File);
        assert!(named.size > i64::MAX as u64 && named.ino == INodeNo(7) && named.kind == FileType::RegularFile);
    }
}
