//! Handles: opens files and directories, and finds what a handle stands for.

use super::{Handle, TesseraFs};
use crate::dirs::OpenDirectory;
use crate::files::OpenFile;
use crate::history;
use fuser::{Errno, FileHandle, FopenFlags, OpenAccMode, OpenFlags, ReplyCreate};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl TesseraFs {
    pub(super) fn keep(&self, handle: Handle) -> FileHandle {
        let number = self.next_handle.fetch_add(1, Ordering::Relaxed);
        self.handles.lock().insert(number, handle);
        FileHandle(number)
    }

    pub(super) fn file(&self, fh: FileHandle) -> Result<Arc<OpenFile>, Errno> {
        match self.handles.lock().get(&fh.0) {
            Some(Handle::File { file, .. }) => Ok(file.clone()),
            _ => Err(Errno::EBADF),
        }
    }

    /// An open by a thread of [`crate::beside`].
    pub(super) fn open_beside(&self, ino: u64, flags: OpenFlags) -> (FileHandle, FopenFlags) {
        let size_bytes = self.known(ino).map_or(0, |known| known.attr.size_bytes);
        let file = self.store.files.open(ino, size_bytes, false);
        let forgets = crate::beside::forgets(flags.0);
        let cache = if forgets { FopenFlags::empty() } else { FopenFlags::FOPEN_KEEP_CACHE };
        (self.keep(Handle::File { file, writes: false }), cache)
    }

    pub(super) fn open_file(&self, ino: u64, flags: OpenFlags) -> Result<(FileHandle, FopenFlags), Errno> {
        let writes = flags.acc_mode() != OpenAccMode::O_RDONLY;
        if history::is_synthetic(ino) {
            return match writes {
                true => Err(Errno::EROFS),
                false => {
                    Ok((self.keep(Handle::Version(self.history.open(&self.store, ino)?)), FopenFlags::FOPEN_KEEP_CACHE))
                }
            };
        }
        let file = self.store.files.open(ino, 0, writes);
        let (version, size_bytes) = match file.refresh(&self.store) {
            Ok(found) => found,
            Err(errno) => {
                self.store.namespace.with(|core, _| core.forget(&[ino]));
                self.store.files.release(&self.store, &file, writes);
                // The inode that the kernel had cached for the name is gone. `ESTALE` makes the kernel look the name up
                // again.
                return Err(if errno.code() == Errno::ENOENT.code() { Errno::ESTALE } else { errno });
            }
        };
        if self.store.files.is_open_once(ino) && self.store.kernel.lock().must_look_up_again(ino, size_bytes) {
            self.store.namespace.with(|core, _| core.forget(&[ino]));
            self.store.files.release(&self.store, &file, writes);
            return Err(Errno::ESTALE);
        }
        let fresh = self.store.kernel.lock().opens(ino, version, size_bytes);
        let cache = if fresh { FopenFlags::FOPEN_KEEP_CACHE } else { FopenFlags::empty() };
        Ok((self.keep(Handle::File { file, writes }), cache))
    }

    /// Opens a file that another client created between the kernel's lookup and its create.
    pub(super) fn open_existing(&self, parent: u64, name: &[u8], flags: OpenFlags, reply: ReplyCreate) {
        self.store.namespace.with(|core, _| core.forget_name(parent, name));
        let opened =
            self.lookup_known(parent, name).and_then(|known| Ok((self.open_file(known.attr.ino, flags)?, known)));
        match opened {
            Ok(((fh, flags), known)) => {
                let (attr, generation) = self.entry(known.attr);
                reply.created(&self.ttl(), &attr, generation, fh, flags);
            }
            Err(errno) => reply.error(errno),
        }
    }

    pub(super) fn truncate(&self, ino: u64, size: u64) -> Result<(), Errno> {
        if let Some(file) = self.store.files.get(ino) {
            return file.truncate(&self.store, size);
        }
        let there = self.known(ino)?.attr.size_bytes;
        let file = self.store.files.open(ino, there, true);
        let done = file.truncate(&self.store, size).and_then(|()| file.commit(&self.store));
        self.store.files.release(&self.store, &file, true);
        done
    }

    pub(super) fn directory(&self, fh: FileHandle) -> Result<Arc<Mutex<OpenDirectory>>, Errno> {
        match self.handles.lock().get(&fh.0) {
            Some(Handle::Directory(directory)) => Ok(directory.clone()),
            _ => Err(Errno::EBADF),
        }
    }

    /// Entries of an open directory of old versions.
    pub(super) fn versions(&self, fh: FileHandle) -> Option<Arc<Vec<history::Entry>>> {
        match self.handles.lock().get(&fh.0) {
            Some(Handle::Versions(entries)) => Some(entries.clone()),
            _ => None,
        }
    }
}
