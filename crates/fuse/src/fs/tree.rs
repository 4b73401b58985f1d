//! Names and attributes: looked up, made, removed, changed.

use super::{TesseraFs, writable};
use crate::attr::{explained, file_attr};
use crate::files::OpenFile;
use crate::making::{self, Found};
use crate::names::Known;
use fuser::{Errno, FileAttr, Generation, Request};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::SystemTime;
use tessera_client::Owner;
use tessera_client::inodes::{NewAttr, NewNode, RenameMode};
use tessera_mount::attr::{nanoseconds, node_kind};
use tessera_policy::WriteMode;
use tessera_wire::{Attr, InodeKind};

const SET_GROUP_ID: u32 = 0o2000;

impl TesseraFs {
    pub(super) fn known(&self, ino: u64) -> Result<Known, Errno> {
        writable(ino)?;
        if let Some(known) = self.store.names.get(ino).or_else(|| self.store.making.known(ino)) {
            return Ok(known);
        }
        let asked = self.store.names.asking();
        let entry = self.store.client.inodes().get(ino).map_err(|e| explained("get", ino, &e))?;
        self.store.names.keep(asked, None, &entry);
        Ok(Known { attr: entry.attr.unwrap_or_default(), hints: entry.hints })
    }

    pub(super) fn lookup_known(&self, parent: u64, name: &[u8]) -> Result<Known, Errno> {
        if let Some(known) = self.store.names.lookup(parent, name) {
            return Ok(known);
        }
        match self.store.making.find(parent, name) {
            Found::New(known) => return Ok(known),
            Found::Nothing => return Err(Errno::ENOENT),
            Found::Unknown => {}
        }
        let asked = self.store.names.asking();
        let entry = self.store.client.inodes().lookup(parent, name).map_err(|e| explained("look up", parent, &e))?;
        self.store.names.keep(asked, Some((parent, name)), &entry);
        Ok(Known { attr: entry.attr.unwrap_or_default(), hints: entry.hints })
    }

    /// Attributes as they are seen here: an open file may be longer than its version.
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

    /// What the kernel is told of an inode it learns of.
    pub(super) fn entry(&self, attr: Attr) -> (FileAttr, Generation) {
        let generation = self.store.kernel.lock().looked_up(&attr, self.store.files.is_open(attr.ino));
        (file_attr(&self.seen(attr)), Generation(generation))
    }

    /// Owner of something new: in a directory with the set-group-id bit the group is the directory's (and new directories
    /// pass the bit on).
    pub(super) fn owner(&self, parent: u64, req: &Request, mode: u32, directory: bool) -> Result<Owner, Errno> {
        let above = self.known(parent)?.attr;
        let inherits = above.mode & SET_GROUP_ID != 0;
        let gid = if inherits { above.gid } else { req.gid() };
        let bit = if inherits && directory { SET_GROUP_ID } else { 0 };
        Ok(Owner { mode: mode & 0o7777 | bit, uid: req.uid(), gid })
    }

    /// A name is about to go: an open file behind it must outlive it.
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
    ) -> Result<Known, Errno> {
        let kind = node_kind(mode).ok_or(Errno::EINVAL)?;
        let owner = self.owner(parent, req, mode, false)?;
        let making = &self.store.making;
        let _adding = making.adds(parent, name.as_bytes());
        let names =
            if kind == InodeKind::File && self.may_make_here(parent)? { making.wants_names(parent) } else { None };
        let new = NewNode {
            kind,
            owner,
            rdev,
            want_delegation: names.is_some(),
            inos: names.unwrap_or(0),
            ..NewNode::default()
        };
        let (ours, asked) = (making.asking(), self.store.names.asking());
        match self.store.client.inodes().make_node(parent, name.as_bytes(), new) {
            Ok(mut entry) => {
                self.store.names.made(asked, parent, name.as_bytes(), &entry);
                making.owns(parent, ours, &mut entry);
                Ok(Known { attr: entry.attr.unwrap_or_default(), hints: entry.hints })
            }
            Err(error) => {
                self.store.names.forget_name(parent, name.as_bytes());
                Err(explained("make", parent, &error))
            }
        }
    }

    /// Whether files may come to be in a directory without the manager being asked.
    fn may_make_here(&self, parent: u64) -> Result<bool, Errno> {
        // What a spool is for is asked of the manager by its number.
        let windowed =
            |above: Known| above.policy().is_some_and(|policy| policy.write_mode == WriteMode::SlidingWindow);
        Ok(!self.ttl().is_zero() && (self.store.spool.is_none() || windowed(self.known(parent)?)))
    }

    /// A new file to be written, without asking the manager, where that may be ([`crate::making`]).
    pub(super) fn make_here(&self, req: &Request, parent: u64, name: &[u8], mode: u32) -> Result<Option<Known>, Errno> {
        if !self.store.making.has_names(parent) || !self.may_make_here(parent)? {
            return Ok(None);
        }
        let Owner { mode, uid, gid } = self.owner(parent, req, mode, false)?;
        let above = self.known(parent)?;
        let (kind, now) = (InodeKind::File as i32, nanoseconds(SystemTime::now()));
        let times = Attr { mtime_ns: now, ctime_ns: now, atime_ns: now, ..Attr::default() };
        let made = self.store.making.make(parent, name, Attr { kind, mode, uid, gid, nlink: 1, ..times }, &above);
        if let Some(known) = &made {
            self.store.names.renamed(parent, name, &known.attr);
        }
        Ok(made)
    }

    /// New directory. Its names are this mount's for a while.
    pub(super) fn make_directory(&self, req: &Request, parent: u64, name: &[u8], mode: u32) -> Result<Attr, Errno> {
        let owner = self.owner(parent, req, mode, true)?;
        let _adding = self.store.making.adds(parent, name);
        let (ours, asked) = (self.store.making.asking(), self.store.names.asking());
        let made = self.store.client.inodes().make_directory(parent, name, owner, making::INOS);
        if made.is_err() {
            self.store.names.forget_name(parent, name);
        }
        let mut made = made.map_err(|e| explained("make directory", parent, &e))?;
        // The directory above has a link more.
        self.store.names.forget(Some(&[parent]));
        self.store.names.made(asked, parent, name, &made);
        let attr = made.attr.clone().ok_or(Errno::EIO)?;
        self.store.making.owns(attr.ino, ours, &mut made);
        Ok(attr)
    }

    /// What was made in a directory, if this name means one, is known to the manager from here on.
    fn settle_below(&self, parent: u64, name: &[u8]) -> Result<(), Errno> {
        let making = &self.store.making;
        let below = match (self.store.names.lookup(parent, name), making.find(parent, name)) {
            (Some(known), _) => Some(known.attr.ino),
            (None, Found::Unknown) => None,
            (None, _) => return Ok(()),
        };
        making.settle_all(&self.store.client, below)
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
        if let Some(known) = self.store.making.set_attr(ino, &new) {
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
        let asked = self.store.names.asking();
        let changed = self.store.client.inodes().set_attr(ino, new);
        if changed.is_err() {
            self.store.names.forget(Some(&[ino]));
        }
        let entry = changed.map_err(|e| explained("set attributes", ino, &e))?;
        self.store.names.changed(asked, &entry);
        entry.attr.ok_or(Errno::EIO)
    }

    pub(super) fn rename_names(&self, from: (u64, &[u8]), to: (u64, &[u8]), mode: RenameMode) -> Result<(), Errno> {
        writable(from.0).and(writable(to.0))?;
        self.store.making.settle_name(&self.store.client, from.0, from.1)?;
        self.store.making.settle_name(&self.store.client, to.0, to.1)?;
        self.settle_below(to.0, to.1)?;
        let _adding = self.store.making.adds(to.0, to.1);
        let replaced = if mode == RenameMode::Replace { self.pin(to.0, to.1) } else { None };
        let done = self.store.client.inodes().rename(from, to, mode);
        self.store.names.forget_name(from.0, from.1);
        self.store.names.forget_name(to.0, to.1);
        done.map_err(|e| explained("rename", from.0, &e))?;
        if let Some(file) = replaced {
            file.unlinked();
        }
        Ok(())
    }

    pub(super) fn remove(&self, parent: u64, name: &[u8], directory: bool) -> Result<(), Errno> {
        writable(parent)?;
        match directory {
            true => self.settle_below(parent, name)?,
            false => self.store.making.settle_name(&self.store.client, parent, name)?,
        }
        let open = if directory { None } else { self.pin(parent, name) };
        match self.store.client.inodes().unlink(parent, name, directory) {
            Ok(left) if !directory => {
                self.store.names.renamed(parent, name, &left);
                self.store.kernel.lock().name_removed(left);
            }
            Ok(_) => self.store.names.forget_name(parent, name),
            Err(error) => {
                self.store.names.forget_name(parent, name);
                return Err(explained("remove", parent, &error));
            }
        }
        if let Some(file) = open {
            file.unlinked();
        }
        Ok(())
    }
}
