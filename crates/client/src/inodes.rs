//! The content of files by inode number, for a mounted file system.

use crate::client::Client;
use crate::error::FileError;
use crate::memory::Means;
use crate::read::ReadHandle;
use crate::read::core::ReadParams;
use crate::write::core::{Owner, Target, Times, WriteDone, WriteParams};
use crate::write::input::Source;
use crate::write::{Cancel, WriteHandle};
use bytes::Bytes;
use tessera_policy::Policy;
use tessera_wire::meta::{CommitMode, LockFence, OpenRead, SetAttr};

/// What a commit depends on.
#[derive(Debug, Clone, Copy, Default)]
pub struct OnlyIf {
    /// The file's current version (0: it has none); none: any.
    pub version: Option<u64>,
    /// The locks on the file that must still be held.
    pub lock_fence: Option<LockFence>,
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

/// A request that sets permission bits, owner and modification time (ns since 1970), without an op id.
pub(crate) fn owner_and_mtime(ino: u64, Owner { mode, uid, gid }: Owner, mtime_ns: i64) -> SetAttr {
    let (mode, uid, gid, mtime_ns) = (Some(mode), Some(uid), Some(gid), Some(mtime_ns));
    SetAttr { ino, mode, uid, gid, mtime_ns, ..SetAttr::default() }
}

impl Client {
    /// Opens a version (its id; 0: the current one) for reads at any offset. It stays readable while the handle lives,
    /// even if its name is removed.
    ///
    /// # Errors
    /// There is no such version, or the manager does not answer.
    pub fn read_inode(&self, ino: u64, version: u64, first: std::ops::Range<u64>) -> Result<ReadHandle, FileError> {
        let file = format!("inode {ino}");
        let (offset, len_bytes) = (first.start, first.end.saturating_sub(first.start));
        let params = ReadParams {
            file,
            open: OpenRead { ino, version, offset, len_bytes, ..OpenRead::default() },
            known: None,
            bulk: false,
        };
        ReadHandle::open(&self.context, params)
    }

    /// Replaces a file's content by `bytes`, as one version. `policy` is the file's, if known: small files then open
    /// and ask about their chunks in one request.
    ///
    /// # Errors
    /// `VersionConflict`: another version is current than `only_if` names. The write failed; no part of it is visible.
    pub fn write_inode(
        &self,
        ino: u64,
        bytes: Bytes,
        policy: Option<Policy>,
        times: Times,
        only_if: OnlyIf,
    ) -> Result<WriteDone, FileError> {
        let params = WriteParams {
            expect_policy: policy,
            size_hint_bytes: Some(bytes.len() as u64),
            times,
            if_version: only_if.version,
            lock_fence: only_if.lock_fence,
            ..write_params(ino, false)
        };
        let means = Means::of_options(&self.context);
        crate::write::put(&self.context, params, Source::Bytes(bytes), None, Cancel::default(), means)
    }

    /// As [`Client::write_inode`], for a file that the write creates.
    ///
    /// # Errors
    /// `VersionConflict` if the name is taken; else as [`Client::write_inode`].
    pub fn create_inode(&self, new: NewFile<'_>, bytes: Bytes, times: Times) -> Result<WriteDone, FileError> {
        let NewFile { parent, name, ino, owner, policy, inos } = new;
        let params = WriteParams {
            target: Target::New { parent, name: name.to_vec(), ino, inos },
            if_version: Some(0),
            expect_policy: policy,
            size_hint_bytes: Some(bytes.len() as u64),
            times,
            owner,
            ..write_params(ino, false)
        };
        let means = Means::of_options(&self.context);
        crate::write::put(&self.context, params, Source::Bytes(bytes), None, Cancel::default(), means)
    }

    /// Opens a file for writing: the written bytes overwrite parts of the current version (`patch`), or replace all of
    /// it. With `if_version` the commit is refused (`VersionConflict`) unless that version (0: never written) is current
    /// then.
    ///
    /// # Errors
    /// There is no such file, or the manager refuses or does not answer.
    pub fn open_inode(&self, ino: u64, patch: bool, if_version: Option<u64>) -> Result<WriteHandle, FileError> {
        let params = WriteParams { if_version, ..write_params(ino, patch) };
        WriteHandle::open(&self.context, params, Cancel::default(), Means::of_options(&self.context))
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
        times: Times::default(),
        owner: Owner::default(),
        want_lease: true,
        content: 0,
        lock_fence: None,
        pack: None,
    }
}
