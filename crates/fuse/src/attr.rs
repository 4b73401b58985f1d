//! The store's attributes and refusals in the kernel's words.

use fuser::{Errno, FileAttr, FileType, INodeNo};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tessera_wire::{Attr, Code, Error, InodeKind};

/// Size of I/O the kernel is told to prefer, bytes.
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
        atime: time(attr.atime_ns),
        mtime: time(attr.mtime_ns),
        ctime: time(attr.ctime_ns),
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

/// Kind of an inode for the kernel; one from the future is shown as a file that nobody can open.
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

/// The kind that the type bits of `mode` name, if it is one `mknod` makes.
pub fn node_kind(mode: u32) -> Option<InodeKind> {
    const TYPE_BITS: u32 = 0o170_000;
    match mode & TYPE_BITS {
        0 | 0o100_000 => Some(InodeKind::File),
        0o010_000 => Some(InodeKind::Fifo),
        0o140_000 => Some(InodeKind::Socket),
        0o020_000 => Some(InodeKind::CharDevice),
        0o060_000 => Some(InodeKind::BlockDevice),
        _ => None,
    }
}

fn time(ns: i64) -> SystemTime {
    let magnitude = Duration::from_nanos(ns.unsigned_abs());
    match ns < 0 {
        true => UNIX_EPOCH.checked_sub(magnitude).unwrap_or(UNIX_EPOCH),
        false => UNIX_EPOCH.checked_add(magnitude).unwrap_or(UNIX_EPOCH),
    }
}

/// Nanoseconds since 1970; times beyond what 64 bits hold become the nearest that fits.
pub fn nanoseconds(time: SystemTime) -> i64 {
    let clip = |since: Duration| i64::try_from(since.as_nanos()).unwrap_or(i64::MAX);
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => clip(since),
        Err(before) => clip(before.duration()).saturating_neg(),
    }
}

/// The errno for a refusal (docs/mount.md lists them).
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

/// The errno for a refusal that the log should explain, since an errno says so little.
pub fn explained(what: &str, ino: u64, error: &Error) -> Errno {
    let errno = errno(error.kind());
    if !matches!(error.kind(), Code::NotFound | Code::Exists | Code::NotEmpty) {
        tracing::warn!(what, ino, %error, "refused");
    }
    errno
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_1970_and_nanoseconds_survive() {
        for ns in [0, 1, 1_700_000_000_123_456_789, -1, -86_400_000_000_001] {
            assert_eq!(nanoseconds(time(ns)), ns);
        }
    }

    #[test]
    fn types_go_there_and_back() {
        for kind in [InodeKind::File, InodeKind::Fifo, InodeKind::Socket, InodeKind::CharDevice, InodeKind::BlockDevice]
        {
            let bits = match kind {
                InodeKind::Fifo => 0o010_000,
                InodeKind::Socket => 0o140_000,
                InodeKind::CharDevice => 0o020_000,
                InodeKind::BlockDevice => 0o060_000,
                _ => 0o100_000,
            };
            assert_eq!(node_kind(bits | 0o644), Some(kind));
        }
        assert_eq!(node_kind(0o040_000), None);
    }
}
