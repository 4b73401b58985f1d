//! Tells the kernel to look a name up before it uses it again, and to keep what it has of it until then.
//!
//! `fuser` knows only the notice that drops a name. The kernel then unhashes a directory even while it is some program's working
//! directory, and `getcwd` fails there. The notice here has the flag `FUSE_EXPIRE_ONLY` (include/uapi/linux/fuse.h, FUSE 7.38, Linux 6.2).
//! Older kernels ignore the flag, and drop the name.

use rustix::io::Errno;
use std::os::fd::OwnedFd;

/// `FUSE_NOTIFY_INVAL_ENTRY`.
const NOTICE: i32 = 3;
/// `FUSE_EXPIRE_ONLY`.
const EXPIRE_ONLY: u32 = 1;
/// Bytes of `fuse_out_header` and `fuse_notify_inval_entry_out`.
const HEADER_BYTES: usize = 32;

/// The kernel's side of a mount, for notices.
pub struct Expiry(OwnedFd);

impl Expiry {
    /// `device` is the mount's connection.
    pub fn new(device: OwnedFd) -> Expiry {
        Expiry(device)
    }

    /// The kernel must look `name` up before it uses it again. Waits while an operation in the directory is under way.
    ///
    /// # Errors
    /// `ENOENT`: the kernel has no such name; others if the mount is gone.
    pub fn expire(&self, parent: u64, name: &[u8]) -> Result<(), Errno> {
        let notice = notice(parent, name);
        let written = rustix::io::write(&self.0, &notice)?;
        assert_eq!(written, notice.len(), "the kernel takes a notice as a whole");
        Ok(())
    }
}

fn notice(parent: u64, name: &[u8]) -> Vec<u8> {
    let name_bytes = u32::try_from(name.len()).expect("a name is short");
    let total = HEADER_BYTES + name.len() + 1;
    let mut notice = Vec::with_capacity(total);
    notice.extend(u32::try_from(total).expect("a name is short").to_ne_bytes());
    notice.extend(NOTICE.to_ne_bytes());
    // No request has this number.
    notice.extend(0u64.to_ne_bytes());
    notice.extend(parent.to_ne_bytes());
    notice.extend(name_bytes.to_ne_bytes());
    notice.extend(EXPIRE_ONLY.to_ne_bytes());
    assert_eq!(notice.len(), HEADER_BYTES, "the layout of the kernel's structures");
    notice.extend(name);
    notice.push(0);
    notice
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_notice_is_laid_out_as_the_kernel_reads_it() {
        let expected: [u8; 36] = [
            36, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x42, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 1, 0, 0, 0, b'a',
            b'b', b'c', 0,
        ];
        if cfg!(target_endian = "little") {
            assert_eq!(notice(0x42, b"abc"), expected);
        }
    }
}
