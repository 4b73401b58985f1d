//! Names and attributes: lookup, create, remove, change.

use super::{TesseraFs, writable};
use crate::attr::{explained, file_attr};
use crate::files::OpenFile;
use fuser::{Errno, FileAttr, Generation, Request};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::SystemTime;
use tessera_client::Owner;
use tessera_client::inodes::{NewAttr, NewNode, RenameMode};
use tessera_mount::attr::{nanoseconds, node_kind};
use tessera_mount::namespace::{EntryAttr, INOS, Namespace, Scope};
use tessera_policy::WriteMode;
use tessera_wire::{Attr, InodeKind};

const SET_GROUP_ID: u32 = 0o2000;

impl TesseraFs {
    pub(super) fn known(&self, ino: u64) -> Result<EntryAttr, Errno> {
        writable(ino)?;
        self.store.namespace.get(&self.store.client, ino).map_err(|e| explained("get", ino, &e))
    }

    pub(super) fn lookup_known(&self, parent: u64, name: &[u8]) -> Result<EntryAttr, Errno> {
        self.store.namespace.lookup(&self.store.client, parent, name).map_err(|e| explained("look up", parent, &e))
    }

    /// Attributes as this mount shows them: an open file may be longer than its version.
    pub(super) fn seen(&self, mut attr: Attr) -> Attr {
        if let Some(file) = self.store.files.get(attr.ino) {
            let (size_bytes, changed) = file.size();
            attr.size_bytes = size_bytes;
            if changed {
                attr.mtime_ns = file.mtime_ns().unwrap_or_else(|| nanoseconds(SystemTime::now()));
            }
        }
        attr
    }

    /// Attributes and generation to tell the kernel in the reply to a lookup.
    pub(super) fn entry(&self, attr: Attr) -> (FileAttr, Generation) {
        let generation = self.store.kernel.lock().looked_up(&attr, self.store.files.is_open(attr.ino));
        (file_attr(&self.seen(attr)), Generation(generation))
    }

    /// Owner of a new inode. In a directory with the set-group-id bit it gets the directory's group, and a new
    /// directory inherits the bit.
    pub(super) fn owner(&self, parent: u64, req: &Request, mode: u32, directory: bool) -> Result<Owner, Errno> {
        let above = self.known(parent)?.attr;
        let inherits = above.mode & SET_GROUP_ID != 0;
        let gid = if inherits { above.gid } else { req.gid() };
        let bit = if inherits && directory { SET_GROUP_ID } else { 0 };
        Ok(Owner { mode: mode & 0o7777 | bit, uid: req.uid(), gid })
    }

    /// Pins the open file behind a name that is about to be removed: an open file must outlive its last name.
    pub(super) fn pin(&self, parent: u64, name: &[u8]) -> Option<Arc<OpenFile>> {
        if self.store.files.is_empty() {
            return None;
        }
        let attr = self.lookup_known(parent, name).ok()?.attr;
        let file = self.store.files.get(attr.ino)?;
        if let Err(errno) = file.pin(&self.store) {
            tracing::warn!(ino = attr.ino, ?errno, "a file that is open cannot be kept beyond its name");
        }
        Some(file)
    }

    pub(super) fn make_node(
        &self,
        req: &Request,
        parent: u64,
        name: &OsStr,
        mode: u32,
        rdev: u32,
    ) -> Result<EntryAttr, Errno> {
        let kind = node_kind(mode).ok_or(Errno::EINVAL)?;
        let owner = self.owner(parent, req, mode, false)?;
        let namespace = &self.store.namespace;
        let _in_flight = namespace.begin_create(parent, name.as_bytes());
        let delegates = kind == InodeKind::File && self.may_defer_creates(parent)?;
        let inos = if delegates { namespace.with(|core, _| core.request_delegation(parent)) } else { None };
        let new = NewNode {
            kind,
            owner,
            rdev,
            want_delegation: inos.is_some(),
            inos: inos.unwrap_or(0),
            ..NewNode::default()
        };
        let stamp = namespace.with(Namespace::stamp);
        match self.store.client.inodes().make_node(parent, name.as_bytes(), new) {
            Ok(mut entry) => {
                namespace.with(|core, _| core.created_here(stamp, parent, name.as_bytes(), &mut entry, parent));
                Ok(entry.into())
            }
            Err(error) => {
                namespace.with(|core, _| core.forget_name(parent, name.as_bytes()));
                Err(explained("create", parent, &error))
            }
        }
    }

    /// Whether this mount may defer creates in a directory.
    fn may_defer_creates(&self, parent: u64) -> Result<bool, Errno> {
        // A spooled file has a log under its inode number, so the manager must know that number.
        let windowed =
            |above: EntryAttr| above.policy().is_some_and(|policy| policy.write_mode == WriteMode::SlidingWindow);
        Ok(!self.ttl().is_zero() && (self.store.spool.is_none() || windowed(self.known(parent)?)))
    }

    /// Creates a file for writing without asking the manager, if this mount holds a delegation of the directory.
    pub(super) fn create_deferred(
        &self,
        req: &Request,
        parent: u64,
        name: &[u8],
        mode: u32,
    ) -> Result<Option<EntryAttr>, Errno> {
        let namespace = &self.store.namespace;
        if !namespace.with(|core, _| core.is_delegated(parent)) || !self.may_defer_creates(parent)? {
            return Ok(None);
        }
        let Owner { mode, uid, gid } = self.owner(parent, req, mode, false)?;
        let above = self.known(parent)?;
        let (kind, now) = (InodeKind::File as i32, nanoseconds(SystemTime::now()));
        let times = Attr { mtime_ns: now, ctime_ns: now, atime_ns: now, ..Attr::default() };
        let attr = Attr { kind, mode, uid, gid, nlink: 1, ..times };
        Ok(namespace.with(|core, now_ns| core.create_deferred(now_ns, parent, name, attr, &above)))
    }

    /// Makes a directory. The reply delegates it to this mount.
    pub(super) fn make_directory(&self, req: &Request, parent: u64, name: &[u8], mode: u32) -> Result<Attr, Errno> {
        let owner = self.owner(parent, req, mode, true)?;
        let namespace = &self.store.namespace;
        let _in_flight = namespace.begin_create(parent, name);
        let stamp = namespace.with(Namespace::stamp);
        let mut made = self.store.client.inodes().make_directory(parent, name, owner, INOS).map_err(|error| {
            namespace.with(|core, _| core.forget_name(parent, name));
            explained("make directory", parent, &error)
        })?;
        let attr = made.attr.clone().ok_or(Errno::EIO)?;
        namespace.with(|core, _| {
            // The parent has one more link.
            core.forget(&[parent]);
            core.created_here(stamp, parent, name, &mut made, attr.ino);
        });
        Ok(attr)
    }

    fn settle(&self, scope: Scope) -> Result<(), Errno> {
        self.store.namespace.settle(&self.store.client, scope)
    }

    pub(super) fn set_attributes(&self, ino: u64, new: NewAttr, size: Option<u64>) -> Result<Attr, Errno> {
        writable(ino)?;
        if let Some(size) = size {
            self.truncate(ino, size)?;
        }
        if let Some(attr) = self.store.kernel.lock().unlinked(ino)
            && !self.store.files.is_open(ino)
        {
            return Ok(attr);
        }
        let mut new = new;
        if let (Some(mtime_ns), Some(file)) = (new.mtime_ns, self.store.files.get(ino))
            && file.set_mtime(mtime_ns)
        {
            new.mtime_ns = None;
        }
        let file = self.store.files.get(ino);
        if let Some(known) = self.store.namespace.set_deferred_attr(ino, &new) {
            if let Some(file) = file {
                file.made(known.clone());
            }
            return Ok(known.attr);
        }
        self.store.settle(ino)?;
        if new == NewAttr::default() {
            let made = file.and_then(|file| file.made_as());
            return made.map_or_else(|| self.known(ino), Ok).map(|known| known.attr);
        }
        if let Some(file) = file {
            file.forget_made();
        }
        let stamp = self.store.namespace.with(Namespace::stamp);
        let changed = self.store.client.inodes().set_attr(ino, new);
        if changed.is_err() {
            self.store.namespace.with(|core, _| core.forget(&[ino]));
        }
        let entry = changed.map_err(|e| explained("set attributes", ino, &e))?;
        self.store.namespace.with(|core, _| core.changed_here(stamp, &entry));
        entry.attr.ok_or(Errno::EIO)
    }

    pub(super) fn rename_names(&self, from: (u64, &[u8]), to: (u64, &[u8]), mode: RenameMode) -> Result<(), Errno> {
        writable(from.0).and(writable(to.0))?;
        self.settle(Scope::Name(from.0, from.1.to_vec()))?;
        self.settle(Scope::Name(to.0, to.1.to_vec()))?;
        self.settle(Scope::Below(to.0, to.1.to_vec()))?;
        let _in_flight = self.store.namespace.begin_create(to.0, to.1);
        let replaced = if mode == RenameMode::Replace { self.pin(to.0, to.1) } else { None };
        let done = self.store.client.inodes().rename(from, to, mode);
        self.store.namespace.with(|core, _| core.forget_name(from.0, from.1));
        self.store.namespace.with(|core, _| core.forget_name(to.0, to.1));
        done.map_err(|e| explained("rename", from.0, &e))?;
        if let Some(file) = replaced {
            file.unlinked();
        }
        Ok(())
    }

    pub(super) fn remove(&self, parent: u64, name: &[u8], directory: bool) -> Result<(), Errno> {
        writable(parent)?;
        match directory {
            true => self.settle(Scope::Below(parent, name.to_vec()))?,
            false => self.settle(Scope::Name(parent, name.to_vec()))?,
        }
        let open = if directory { None } else { self.pin(parent, name) };
        match self.store.client.inodes().unlink(parent, name, directory) {
            Ok(left) if !directory => {
                self.store.namespace.with(|core, _| core.removed_here(parent, name, &left));
                self.store.kernel.lock().name_removed(left);
            }
            Ok(_) => self.store.namespace.with(|core, _| core.forget_name(parent, name)),
            Err(error) => {
                self.store.namespace.with(|core, _| core.forget_name(parent, name));
                return Err(explained("remove", parent, &error));
            }
        }
        if let Some(file) = open {
            file.unlinked();
        }
        Ok(())
    }
}
