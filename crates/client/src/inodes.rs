//! Files and directories by inode number: the requests of a mounted file system, one request each.
//!
//! This API caches nothing. The caller may cache answers that came under a lease until [`Client::on_recall`] recalls
//! them, or the lease ends; it runs from when the request was sent.

use crate::client::Client;
use crate::error::FileError;
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

/// See the module. Metadata errors are the manager's own.
#[derive(Clone, Copy)]
pub struct Inodes<'a> {
    pub(crate) client: &'a Client,
    /// Whether to request leases with answers that can be cached.
    pub(crate) want_leases: bool,
}

/// How a rename treats an existing target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RenameMode {
    /// The target is replaced.
    #[default]
    Replace,
    /// The target must be free.
    NoReplace,
    /// The two names change places.
    Exchange,
}

/// Changes of attributes; absent ones stay as they are.
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

/// A new entry that is neither a directory nor a symbolic link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NewNode {
    /// What it is.
    pub kind: InodeKind,
    /// Permission bits, owner, group.
    pub owner: Owner,
    /// Device number, for devices.
    pub rdev: u32,
    /// Its inode number, granted before; 0: any.
    pub ino: u64,
    /// Also request the delegation of the directory that it is made in ([`Entry::delegation_ms`]).
    pub want_delegation: bool,
    /// Inode numbers to draw along with it, for later files.
    pub inos: u32,
}

/// A file that is created by writing it.
#[derive(Debug, Clone)]
pub struct NewFile<'a> {
    /// Its directory.
    pub parent: u64,
    /// Its name in the directory.
    pub name: &'a [u8],
    /// Its inode number, granted before.
    pub ino: u64,
    /// Permission bits, owner, group.
    pub owner: Owner,
    /// Its policy, which is its directory's.
    pub policy: Option<Policy>,
    /// Inode numbers to draw along with it, for later files.
    pub inos: u32,
}

/// Limit of a page with as many entries as the manager gives at once.
const AS_MANY_AS_POSSIBLE: u32 = 0;

impl Inodes<'_> {
    /// Entry of a directory, under a lease if the manager grants one.
    ///
    /// # Errors
    /// There is no such name, or the manager does not answer.
    pub fn lookup(&self, parent: u64, name: &[u8]) -> Result<Entry, Error> {
        self.client.context.ask(&Lookup { parent, name: name.to_vec(), want_lease: self.want_leases })
    }

    /// An inode, under a lease if the manager grants one.
    ///
    /// # Errors
    /// There is no such inode, or the manager does not answer.
    pub fn get(&self, ino: u64) -> Result<Entry, Error> {
        self.client.context.ask(&GetAttr { ino, want_lease: self.want_leases })
    }

    /// A page of a directory: names after `after` in byte order, and whether there are more.
    ///
    /// # Errors
    /// There is no such directory, or the manager does not answer.
    pub fn list(&self, ino: u64, after: &[u8]) -> Result<(Vec<Dirent>, bool), Error> {
        let reply = self.client.context.ask(&List { ino, after: after.to_vec(), limit: AS_MANY_AS_POSSIBLE })?;
        Ok((reply.entries, reply.more))
    }

    /// Makes a directory. `inos`: how many inode numbers to request, along with the delegation of the new directory
    /// ([`Entry::delegation_ms`], [`Client::on_delegation_recall`]); 0: neither.
    ///
    /// # Errors
    /// The manager refuses, or does not answer.
    pub fn make_directory(&self, parent: u64, name: &[u8], owner: Owner, inos: u32) -> Result<Entry, Error> {
        self.make_dir(parent, name, owner, inos, false)
    }

    /// As [`Inodes::make_directory`]; with `exist_ok`, an existing directory is fine.
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

    /// Makes an empty file, named pipe, socket or device (with its number). Its change time is also the directory's new
    /// modification time.
    ///
    /// # Errors
    /// The name is taken, or the manager refuses or does not answer.
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

    /// Makes a symbolic link.
    ///
    /// # Errors
    /// The name is taken, or the manager refuses or does not answer.
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

    /// Adds a name to a file.
    ///
    /// # Errors
    /// The name is taken, or the manager refuses or does not answer.
    pub fn link(&self, ino: u64, parent: u64, name: &[u8]) -> Result<Attr, Error> {
        let op_id = self.client.context.op_id();
        attr(self.client.context.ask(&Link { op_id, ino, parent, name: name.to_vec() })?)
    }

    /// Removes a name; `directory`: that of a directory. Returns the inode after that; its change time is also the
    /// directory's new modification time.
    ///
    /// # Errors
    /// There is no such name, or the manager refuses or does not answer.
    pub fn unlink(&self, parent: u64, name: &[u8], directory: bool) -> Result<Attr, Error> {
        let op_id = self.client.context.op_id();
        attr(self.client.context.ask(&Unlink { op_id, parent, name: name.to_vec(), directory })?)
    }

    /// Moves a name.
    ///
    /// # Errors
    /// The manager refuses (`mode` says what the target may be), or does not answer.
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

    /// Changes attributes; returns the inode after that.
    ///
    /// # Errors
    /// There is no such inode, or the manager does not answer.
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

    /// Extended attributes, hints included.
    ///
    /// # Errors
    /// There is no such inode, or the manager does not answer.
    pub fn xattrs(&self, ino: u64) -> Result<Vec<Xattr>, Error> {
        Ok(self.client.context.ask(&ListXattrs { ino })?.xattrs)
    }

    /// Sets an extended attribute; `create`: it must be new, `replace`: it must exist.
    ///
    /// # Errors
    /// The manager refuses the attribute or its value, or does not answer.
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
    ///
    /// # Errors
    /// There is no such attribute, or the manager does not answer.
    pub fn remove_xattr(&self, ino: u64, name: &str) -> Result<(), Error> {
        self.client.context.ask(&RemoveXattr { op_id: self.client.context.op_id(), ino, name: name.into() })?;
        Ok(())
    }

    /// Where the fragments of a file's current version are.
    ///
    /// # Errors
    /// There is no such file, or the manager does not answer.
    pub fn locate(&self, ino: u64) -> Result<Located, Error> {
        self.client.locate_inode(ino)
    }

    /// Versions of a file, oldest first.
    ///
    /// # Errors
    /// There is no such file, or the manager does not answer.
    pub fn versions(&self, ino: u64) -> Result<Vec<VersionInfo>, Error> {
        Ok(self.client.context.ask(&ListVersions { ino })?.versions)
    }

    /// Opens a version (its id; 0: the current one) for reads at any offset. It stays readable while the handle lives,
    /// even if its name is removed.
    ///
    /// # Errors
    /// There is no such version, or the manager does not answer.
    pub fn open_read(&self, ino: u64, version: u64, first: std::ops::Range<u64>) -> Result<ReadHandle, FileError> {
        let file = format!("inode {ino}");
        let params = ReadParams { file, parent: 0, name: Vec::new(), ino, version, number: 0, first };
        ReadHandle::open(&self.client.context, params, &Cancel::default())
    }

    /// Replaces a file's content by `bytes`, as one version. `policy` is the file's, if known: small files then open
    /// and ask about their chunks in one request. `mtime_ns` 0: now.
    ///
    /// # Errors
    /// The write failed; no part of it is visible.
    pub fn write_whole(
        &self,
        ino: u64,
        bytes: Bytes,
        policy: Option<Policy>,
        mtime_ns: i64,
    ) -> Result<WriteDone, FileError> {
        let size = Some(bytes.len() as u64);
        let params = WriteParams { expect_policy: policy, size_hint_bytes: size, mtime_ns, ..write_params(ino, false) };
        crate::write::put(&self.client.context, params, Source::Bytes(bytes), 0, None, Cancel::default())
    }

    /// As [`Inodes::write_whole`], for a file that the write creates.
    ///
    /// # Errors
    /// `VersionConflict` if the name is taken; else as [`Inodes::write_whole`].
    pub fn write_new(&self, new: NewFile<'_>, bytes: Bytes, mtime_ns: i64) -> Result<WriteDone, FileError> {
        let NewFile { parent, name, ino, owner, policy, inos } = new;
        let params = WriteParams {
            target: Target::New { parent, name: name.to_vec(), ino, inos },
            if_version: Some(0),
            expect_policy: policy,
            size_hint_bytes: Some(bytes.len() as u64),
            mtime_ns,
            owner,
            ..write_params(ino, false)
        };
        crate::write::put(&self.client.context, params, Source::Bytes(bytes), 0, None, Cancel::default())
    }

    /// Opens a file for writing: the written bytes overwrite parts of the current version (`patch`), or replace all of
    /// it.
    ///
    /// # Errors
    /// There is no such file, or the manager refuses or does not answer.
    pub fn open_write(&self, ino: u64, patch: bool) -> Result<WriteHandle, FileError> {
        WriteHandle::open(&self.client.context, write_params(ino, patch), Cancel::default())
    }

    /// As [`Inodes::open_write`], for a compare and swap: the commit is refused (`VersionConflict`) unless `version`
    /// (0: never written) is current then.
    ///
    /// # Errors
    /// As [`Inodes::open_write`].
    pub fn open_write_if(&self, ino: u64, patch: bool, version: u64) -> Result<WriteHandle, FileError> {
        let params = WriteParams { if_version: Some(version), ..write_params(ino, patch) };
        WriteHandle::open(&self.client.context, params, Cancel::default())
    }
}

/// The parameters of a write of a file without conditions.
pub(crate) fn write_params(ino: u64, patch: bool) -> WriteParams {
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
