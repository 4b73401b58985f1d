//! Files and directories by inode number: what a mounted file system asks for, one request each.
//!
//! Nothing is remembered here. Answers that ask for a lease may be kept by the caller until [`Client::on_recall`] says
//! otherwise, or the lease ends; it runs from when the question was asked.

use crate::client::Client;
use crate::error::{ReadError, WriteError};
use crate::locate::Located;
use crate::read::ReadHandle;
use crate::read::core::ReadParams;
use crate::write::core::{Owner, Target, WriteDone, WriteParams};
use crate::write::input::Source;
use crate::write::{Cancel, WriteHandle};
use bytes::Bytes;
use tessera_policy::Policy;
use tessera_wire::meta::*;
use tessera_wire::{Attr, Error, InodeKind};

/// See the module. Errors of metadata are the manager's own.
#[derive(Clone, Copy)]
pub struct Inodes<'a> {
    pub(crate) client: &'a Client,
    /// Whether answers that can be kept are asked for under a lease.
    pub(crate) want_leases: bool,
}

/// How a name is moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RenameMode {
    /// What stands at the target gives way.
    #[default]
    Replace,
    /// The target must be free.
    NoReplace,
    /// The two names change places.
    Exchange,
}

/// Changes of attributes; absent ones stay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NewAttr {
    /// Permission bits.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Modification time, ns since 1970.
    pub mtime_ns: Option<i64>,
    /// Access time, ns since 1970.
    pub atime_ns: Option<i64>,
}

/// Something new in a directory that is neither a directory nor a symbolic link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NewNode {
    /// What it is.
    pub kind: InodeKind,
    /// Permission bits, owner, group.
    pub owner: Owner,
    /// Devices: their number.
    pub rdev: u32,
    /// Its inode number, grant before; 0: any.
    pub ino: u64,
    /// The names in its directory are asked for as well, to have them for oneself as with [`Inodes::make_directory`].
    pub want_delegation: bool,
    /// Numbers to draw with it, for files to come.
    pub inos: u32,
}

/// A file that is made by writing it.
#[derive(Debug, Clone)]
pub struct NewFile<'a> {
    /// Its directory.
    pub parent: u64,
    /// Its name in there.
    pub name: &'a [u8],
    /// Its inode number, grant before.
    pub ino: u64,
    /// Permission bits, owner, group.
    pub owner: Owner,
    /// Its policy: its directory's.
    pub policy: Option<Policy>,
    /// Numbers to draw with it, for files to come.
    pub inos: u32,
}

/// A page that asks for as many entries as the manager gives at once.
const AS_MANY_AS_POSSIBLE: u32 = 0;

impl Inodes<'_> {
    /// Entry of a directory, under a lease if there is one to be had.
    pub fn lookup(&self, parent: u64, name: &[u8]) -> Result<Entry, Error> {
        self.client.context.ask(&Lookup { parent, name: name.to_vec(), want_lease: self.want_leases })
    }

    /// An inode, under a lease if there is one to be had.
    pub fn get(&self, ino: u64) -> Result<Entry, Error> {
        self.client.context.ask(&GetAttr { ino, want_lease: self.want_leases })
    }

    /// A page of a directory: names after `after` in byte order, and whether there are more.
    pub fn list(&self, ino: u64, after: &[u8]) -> Result<(Vec<Dirent>, bool), Error> {
        let reply = self.client.context.ask(&List { ino, after: after.to_vec(), limit: AS_MANY_AS_POSSIBLE })?;
        Ok((reply.entries, reply.more))
    }

    /// New directory. With `inos`, so many inode numbers are asked for, and the delegation of the directory
    /// ([`Entry::delegation_ms`], [`Client::on_delegation_recall`]).
    ///
    /// # Errors
    /// The manager refuses, or does not answer.
    pub fn make_directory(&self, parent: u64, name: &[u8], owner: Owner, inos: u32) -> Result<Entry, Error> {
        self.make_dir(parent, name, owner, inos, false)
    }

    /// As [`Inodes::make_directory`]; with `exist_ok` one that exists will do.
    pub(crate) fn make_dir(
        &self,
        parent: u64,
        name: &[u8],
        owner: Owner,
        inos: u32,
        exist_ok: bool,
    ) -> Result<Entry, Error> {
        let Owner { mode, uid, gid } = owner;
        let (op_id, want_lease) = (self.client.context.op_id(), self.want_leases);
        let name = name.to_vec();
        self.client.context.ask(&MakeDir { op_id, parent, name, mode, uid, gid, exist_ok, inos, want_lease })
    }

    /// New empty file, named pipe, socket or device (with its number). Its change time is now the directory's modification
    /// time.
    pub fn make_node(&self, parent: u64, name: &[u8], new: NewNode) -> Result<Entry, Error> {
        let NewNode { kind, owner: Owner { mode, uid, gid }, rdev, ino, want_delegation, inos } = new;
        let (op_id, kind, name) = (self.client.context.op_id(), kind as i32, name.to_vec());
        self.client.context.ask(&MakeNode {
            op_id,
            parent,
            name,
            kind,
            mode,
            uid,
            gid,
            rdev,
            exist_ok: false,
            ino,
            want_lease: self.want_leases,
            want_delegation,
            inos,
        })
    }

    /// New symbolic link.
    pub fn symlink(&self, parent: u64, name: &[u8], target: &[u8], uid: u32, gid: u32) -> Result<Attr, Error> {
        let op_id = self.client.context.op_id();
        attr(self.client.context.ask(&Symlink {
            op_id,
            parent,
            name: name.to_vec(),
            target: target.to_vec(),
            uid,
            gid,
        })?)
    }

    /// Another name.
    pub fn link(&self, ino: u64, parent: u64, name: &[u8]) -> Result<Attr, Error> {
        let op_id = self.client.context.op_id();
        attr(self.client.context.ask(&Link { op_id, ino, parent, name: name.to_vec() })?)
    }

    /// Removes a name; of a directory if `directory`. What it meant, as it is after that: its change time is now the
    /// directory's modification time.
    pub fn unlink(&self, parent: u64, name: &[u8], directory: bool) -> Result<Attr, Error> {
        let op_id = self.client.context.op_id();
        attr(self.client.context.ask(&Unlink { op_id, parent, name: name.to_vec(), directory })?)
    }

    /// Moves a name.
    pub fn rename(&self, from: (u64, &[u8]), to: (u64, &[u8]), mode: RenameMode) -> Result<(), Error> {
        self.client.context.ask(&Rename {
            op_id: self.client.context.op_id(),
            from_parent: from.0,
            from_name: from.1.to_vec(),
            to_parent: to.0,
            to_name: to.1.to_vec(),
            no_replace: mode == RenameMode::NoReplace,
            exchange: mode == RenameMode::Exchange,
        })?;
        Ok(())
    }

    /// Changes attributes; the inode as it is then.
    pub fn set_attr(&self, ino: u64, new: NewAttr) -> Result<Entry, Error> {
        let NewAttr { mode, uid, gid, mtime_ns, atime_ns } = new;
        let op_id = self.client.context.op_id();
        self.client.context.ask(&SetAttr {
            op_id,
            ino,
            mode,
            uid,
            gid,
            mtime_ns,
            atime_ns,
            want_lease: self.want_leases,
        })
    }

    /// Extended attributes, hints among them.
    pub fn xattrs(&self, ino: u64) -> Result<Vec<Xattr>, Error> {
        Ok(self.client.context.ask(&ListXattrs { ino })?.xattrs)
    }

    /// Sets an extended attribute; `create`: it must be new, `replace`: it must be there.
    pub fn set_xattr(&self, ino: u64, name: &str, value: &[u8], create: bool, replace: bool) -> Result<(), Error> {
        self.client.context.ask(&SetXattr {
            op_id: self.client.context.op_id(),
            ino,
            name: name.into(),
            value: value.to_vec(),
            create_only: create,
            replace_only: replace,
        })?;
        Ok(())
    }

    /// Removes an extended attribute.
    pub fn remove_xattr(&self, ino: u64, name: &str) -> Result<(), Error> {
        self.client.context.ask(&RemoveXattr { op_id: self.client.context.op_id(), ino, name: name.into() })?;
        Ok(())
    }

    /// Where the current version of a file lies.
    pub fn locate(&self, ino: u64) -> Result<Located, Error> {
        self.client.locate_inode(ino)
    }

    /// Versions of a file, oldest first.
    pub fn versions(&self, ino: u64) -> Result<Vec<VersionInfo>, Error> {
        Ok(self.client.context.ask(&ListVersions { ino })?.versions)
    }

    /// Opens a version (its id; 0: the current one) for reads at any offset. It stays readable while the handle lives,
    /// also without a name.
    pub fn open_read(&self, ino: u64, version: u64, first: std::ops::Range<u64>) -> Result<ReadHandle, ReadError> {
        let file = format!("inode {ino}");
        let params = ReadParams { file, parent: 0, name: Vec::new(), ino, version, number: 0, first };
        ReadHandle::open(&self.client.context, params, &Cancel::default())
    }

    /// Replaces a file's content by `bytes`, as one version; `policy` is the file's, as far as it is known (small files
    /// are then asked about and opened in one question). `mtime_ns` 0: now.
    pub fn write_whole(
        &self,
        ino: u64,
        bytes: Bytes,
        policy: Option<Policy>,
        mtime_ns: i64,
    ) -> Result<WriteDone, WriteError> {
        let size = Some(bytes.len() as u64);
        let params = WriteParams { expect_policy: policy, size_hint_bytes: size, mtime_ns, ..params(ino, false) };
        crate::write::put(&self.client.context, params, Source::Bytes(bytes), 0, None, Cancel::default())
    }

    /// As [`Inodes::write_whole`], of a file that is made with that. Refused (`VersionConflict`) if there is one of that name.
    pub fn write_new(&self, new: NewFile<'_>, bytes: Bytes, mtime_ns: i64) -> Result<WriteDone, WriteError> {
        let NewFile { parent, name, ino, owner, policy, inos } = new;
        let params = WriteParams {
            target: Target::New { parent, name: name.to_vec(), ino, inos },
            if_version: Some(0),
            expect_policy: policy,
            size_hint_bytes: Some(bytes.len() as u64),
            mtime_ns,
            owner,
            ..params(ino, false)
        };
        crate::write::put(&self.client.context, params, Source::Bytes(bytes), 0, None, Cancel::default())
    }

    /// Opens a file to be changed: what is written goes over what there is (`patch`), or takes its place.
    pub fn open_write(&self, ino: u64, patch: bool) -> Result<WriteHandle, WriteError> {
        WriteHandle::open(&self.client.context, params(ino, patch), Cancel::default())
    }

    /// As [`Inodes::open_write`]; what is written is refused (`VersionConflict`) unless `version` (0: none was ever written) is the
    /// current one when it is committed.
    pub fn open_write_if(&self, ino: u64, patch: bool, version: u64) -> Result<WriteHandle, WriteError> {
        let params = WriteParams { if_version: Some(version), ..params(ino, patch) };
        WriteHandle::open(&self.client.context, params, Cancel::default())
    }
}

fn params(ino: u64, patch: bool) -> WriteParams {
    WriteParams {
        file: format!("inode {ino}"),
        target: Target::Inode(ino),
        mode: if patch { CommitMode::Patch } else { CommitMode::Replace },
        if_version: None,
        size_hint_bytes: None,
        expect_policy: None,
        hints: Vec::new(),
        mtime_ns: 0,
        owner: Owner::default(),
        want_lease: true,
        content: 0,
    }
}

fn attr(entry: Entry) -> Result<Attr, Error> {
    entry.attr.ok_or_else(|| Error::new(tessera_wire::Code::Internal, "an answer without attributes"))
}
