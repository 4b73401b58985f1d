//! The operations that a kernel asks for, as methods of [`crate::mount::Mount`]: names and attributes ([`tree`]), files
//! and directories ([`opening`]), the bits that a write takes away ([`privileges`]), extended attributes ([`xattrs`]),
//! locks ([`locks`]).
//!
//! The kernel checks permissions. No lock of the mount is held when an operation begins or ends.

pub(crate) mod directories;
pub(crate) mod history;
pub mod locks;
pub mod opening;
pub mod privileges;
pub mod rewrites;
pub mod tree;
pub mod xattrs;

use crate::errno::{Errno, Outcome};
use crate::synthetic::SyntheticInode;
use std::time::Duration;
use tessera_wire::{Attr, InodeKind};

/// Who makes something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caller {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// The thread, by the kernel's number; 0: it has none here.
    pub thread: u32,
}

/// An entry as the kernel learns it.
#[derive(Debug, Clone, PartialEq)]
pub struct ShownEntry {
    /// Attributes.
    pub attr: Attr,
    /// Generation of the inode ([`crate::kernel_cache`]).
    pub generation: u64,
}

/// A handle that was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Opened {
    /// Number of the handle.
    pub handle: u64,
    /// The kernel may keep what it has cached of the file.
    pub keep_cache: bool,
    /// The kernel should read and write through this handle without its pages: the file may change. It fills the rest of the last
    /// page with zeros, and shows them if it learns a greater length before a program has read the page.
    pub direct: bool,
}

/// An entry of a listing.
#[derive(Debug)]
pub struct ListedEntry<'a> {
    /// Inode; 0: unknown.
    pub ino: u64,
    /// Name.
    pub name: &'a [u8],
    /// Kind.
    pub kind: InodeKind,
    /// Position of the entry after this one.
    pub next: u64,
    /// How long ago its attributes were asked for.
    pub age: Duration,
    /// How long the kernel may keep the name at most: its change is recalled until then.
    pub kept_for: Duration,
    /// The entry in full, which counts as a lookup; none: the kernel does not want it, or it is `.` or `..`.
    pub shown: Option<ShownEntry>,
}

/// The error of a request about an inode that the kernel has cached for a name. If the inode is gone, another one may have the name by now:
/// at `ESTALE` the kernel looks the name up again, and `ENOENT` would reach the program.
fn stale_if_gone(errno: Errno) -> Errno {
    if errno == Errno::ENOENT { Errno::ESTALE } else { errno }
}

/// Old versions are read-only: a synthetic inode gives `EROFS`.
fn writable(ino: u64) -> Outcome {
    if SyntheticInode::of(ino).is_some() { Err(Errno::EROFS) } else { Ok(()) }
}
