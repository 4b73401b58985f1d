//! What a program can do on a mount: the operations of the kernel's file system interface that the simulator uses.

use tessera_mount::errno::Errno;
use tessera_wire::InodeKind;

/// An inode as a program sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Its number.
    pub ino: u64,
    /// Its kind.
    pub kind: InodeKind,
    /// Permission bits.
    pub mode: u32,
    /// Length, bytes.
    pub size_bytes: u64,
    /// Which of the inodes that had this number it is for the kernel.
    pub generation: u64,
}

/// An open handle of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Handle(pub u64);

/// A directory and a name in it.
pub type At<'a> = (u64, &'a [u8]);

/// See the module. Errors are those that the kernel would pass to the program.
#[allow(async_fn_in_trait, reason = "everything runs in one thread")]
#[allow(missing_docs, reason = "each is the operation of that name")]
pub trait FileSystem: 'static {
    /// Whether an open may fail because the file changed twice meanwhile: with the kernel's write-back cache it may.
    fn refuses_changed(&self) -> bool;
    async fn lookup(&self, at: At<'_>) -> Result<Found, Errno>;
    async fn attr(&self, ino: u64) -> Result<Found, Errno>;
    /// Names and inodes of a directory.
    async fn list(&self, directory: u64) -> Result<Vec<(Vec<u8>, u64)>, Errno>;
    async fn create(&self, at: At<'_>, mode: u32) -> Result<(Found, Handle), Errno>;
    async fn open(&self, thread: u32, file: &Found, writes: bool) -> Result<Handle, Errno>;
    async fn read(&self, file: Handle, offset: u64, len: usize) -> Result<Vec<u8>, Errno>;
    async fn write(&self, file: Handle, offset: u64, bytes: &[u8]) -> Result<(), Errno>;
    async fn truncate(&self, ino: u64, size_bytes: u64) -> Result<(), Errno>;
    async fn sync(&self, file: Handle) -> Result<(), Errno>;
    /// Flushes and releases the handle. The error is that of the flush.
    async fn close(&self, file: Handle, owner: u64) -> Result<(), Errno>;
    async fn make_directory(&self, at: At<'_>, mode: u32) -> Result<Found, Errno>;
    async fn remove(&self, at: At<'_>, directory: bool) -> Result<(), Errno>;
    async fn rename(&self, from: At<'_>, to: At<'_>, replace: bool) -> Result<(), Errno>;
    async fn link(&self, ino: u64, at: At<'_>) -> Result<Found, Errno>;
    async fn symlink(&self, at: At<'_>, target: &[u8]) -> Result<Found, Errno>;
    async fn set_mode(&self, ino: u64, mode: u32) -> Result<Found, Errno>;
    /// Locks a whole file exclusively.
    async fn lock(&self, ino: u64, owner: u64, wait: bool) -> Result<(), Errno>;
    async fn unlock(&self, ino: u64, owner: u64) -> Result<(), Errno>;
}
