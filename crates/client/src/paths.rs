//! Paths: each call resolves its path to a directory and a name, or to an inode. Reads and writes of a name are one
//! request to the manager, which resolves the name itself.

use crate::client::Client;
use crate::error::{Cause, Error};
use crate::inodes::owner_and_mtime;
use crate::lease_cache::Directory;
use crate::locate::Located;
use crate::memory::{Held, Means};
use crate::path::StorePath;
use crate::read::Sink;
use crate::read::core::{Opened, ReadParams};
use crate::read::describe::Described;
use crate::write::core::{Owner, Target, Times, WriteDone, WriteParams};
use crate::write::input::{ReadHoles, Source};
use crate::write::pack::SmallFile;
use crate::write::{Cancel, Progress, ProgressFn, WriteHandle};
use bytes::Bytes;
use tessera_net::boot_ns;
use tessera_policy::Policy;
use tessera_wire::meta::*;
use tessera_wire::{Attr, Code, Error as WireError, Hint, InodeKind, Request};

/// Names that are removed by one request.
const REMOVED_NAMES: u32 = 1_024;
/// Bytes read at a time from a file with holes.
const SPARSE_BUFFER_BYTES: usize = 1 << 20;

/// How a file is written.
#[derive(Default)]
pub struct PutOptions<'a> {
    /// Hints (name without `user.tessera.`, value) that override the file's own; stored with a new file.
    pub hints: Vec<(String, String)>,
    /// Refuse unless this version is current (0: unless there is no file): compare and swap.
    pub if_version: Option<u64>,
    /// Modification time to record, ns since 1970; 0: now.
    pub mtime_ns: i64,
    /// Permission bits, owner and group for a new file.
    pub owner: Owner,
    /// Called with the number of bytes read from the source.
    pub progress: Option<ProgressFn<'a>>,
    /// Stops the write.
    pub cancel: Cancel,
}

/// A small file that is stored together with others.
#[derive(Debug, Clone)]
pub struct SmallPut {
    /// Its path in the store.
    pub path: StorePath,
    /// All of its bytes.
    pub content: Bytes,
    /// Modification time to record, ns since 1970; 0: now.
    pub mtime_ns: i64,
    /// Permission bits, owner and group for a new file.
    pub owner: Owner,
}

/// Which bytes of which version are read.
#[derive(Default)]
pub struct GetOptions<'a> {
    /// Version number within the file; 0: the current one.
    pub version: u64,
    /// The range to read; all if `None`.
    pub range: Option<std::ops::Range<u64>>,
    /// Many small files are read one after the other or side by side: what they share is fetched once.
    pub bulk: bool,
    /// What [`Client::describe`] said of the file, of this version: it is not opened. Needs no `range`.
    pub described: Option<Described>,
    /// Called with the number of bytes that have arrived.
    pub progress: Option<ProgressFn<'a>>,
}

impl Client {
    /// Sends a request about a path; a refusal names the operation and the path.
    fn ask_at<R: Request>(&self, operation: &'static str, path: &StorePath, request: &R) -> Result<R::Reply, Error> {
        at(operation, path, self.ask(request))
    }

    /// As [`Client::ask_at`], for a change of names or hints by this client: the manager recalls no leases for a client's
    /// own changes, so the cache is emptied.
    fn change<R: Request>(&self, operation: &'static str, path: &StorePath, request: &R) -> Result<R::Reply, Error> {
        let answer = self.ask_at(operation, path, request);
        self.directories.clear();
        answer
    }

    fn resolve(&self, path: &StorePath, want_lease: bool) -> Result<Entry, Error> {
        let components = path.components().to_vec();
        self.ask_at("resolve", path, &Resolve { start: 1, components, want_lease })
    }

    /// Attributes of the inode at a path.
    ///
    /// # Errors
    /// There is nothing at this path, or the manager does not answer. All calls by path fail for these two reasons,
    /// and when the manager refuses the operation.
    pub fn stat(&self, path: &StorePath) -> Result<Attr, Error> {
        Ok(self.resolve(path, false)?.attr.unwrap_or_default())
    }

    fn ino(&self, path: &StorePath) -> Result<u64, Error> {
        Ok(self.stat(path)?.ino)
    }

    /// A directory by path: from the cache, or from the manager under a lease.
    fn directory(&self, path: &StorePath) -> Result<Directory, Error> {
        if let Ok(known) = self.directories.find(path) {
            return Ok(known);
        }
        let _turn = self.directories.turn(path);
        let recalls = match self.directories.find(path) {
            Ok(known) => return Ok(known),
            Err(recalls) => recalls,
        };
        let asked_ns = boot_ns();
        let entry = self.resolve(path, true)?;
        self.directories.insert(path, &entry, asked_ns, recalls);
        let ino = entry.attr.as_ref().map_or(0, |attr| attr.ino);
        Ok(Directory { ino, hints: entry.hints })
    }

    /// The parent directory of a path, and the path's last name.
    pub(crate) fn place(&self, path: &StorePath) -> Result<(Directory, Vec<u8>), Error> {
        let (parent, name) = path.split_last()?;
        Ok((self.directory(&parent)?, name.to_vec()))
    }

    /// All entries of a directory, in byte order of names.
    ///
    /// # Errors
    /// As [`Client::stat`].
    pub fn list(&self, path: &StorePath) -> Result<Vec<Dirent>, Error> {
        let ino = self.directory(path)?.ino;
        at("list", path, self.list_rest(ino, Vec::new()))
    }

    /// The entries of a directory, in byte order of names, some thousands at a time: so much of a long directory is in memory at once.
    /// The first failure ends it.
    ///
    /// # Errors
    /// As [`Client::stat`].
    pub fn list_pages(&self, path: &StorePath) -> Result<impl Iterator<Item = Result<Vec<Dirent>, Error>> + '_, Error> {
        let (ino, path) = (self.directory(path)?.ino, path.clone());
        Ok(self.pages_after(ino, Vec::new()).map(move |page| at("list", &path, page)))
    }

    /// Makes a directory, with its parent's hints; with `exist_ok`, an existing directory is fine.
    ///
    /// # Errors
    /// The name is taken, or as [`Client::stat`] of the directory above.
    pub fn mkdir(&self, path: &StorePath, exist_ok: bool) -> Result<Attr, Error> {
        if path.is_root() && exist_ok {
            return self.stat(path);
        }
        let (parent, name) = self.place(path)?;
        let (op_id, parent, mode) = (self.op_id(), parent.ino, 0o755);
        let request = MakeDir { op_id, parent, name, mode, exist_ok, ..MakeDir::default() };
        Ok(self.ask_at("mkdir", path, &request)?.attr.unwrap_or_default())
    }

    /// Makes a directory and its missing ancestors.
    ///
    /// # Errors
    /// As [`Client::mkdir`].
    pub fn mkdir_all(&self, path: &StorePath) -> Result<Attr, Error> {
        let mut here = StorePath::root();
        let mut attr = None;
        for name in path.components() {
            here = here.join(name)?;
            attr = Some(self.mkdir(&here, true)?);
        }
        match attr {
            Some(attr) => Ok(attr),
            None => self.stat(&here),
        }
    }

    /// Removes a file's name, or an empty directory.
    ///
    /// # Errors
    /// As [`Client::stat`]; or the directory is not empty.
    pub fn unlink(&self, path: &StorePath, directory: bool) -> Result<(), Error> {
        let (parent, name) = self.place(path)?;
        self.change("remove", path, &Unlink { op_id: self.op_id(), parent: parent.ino, name, directory }).map(drop)
    }

    /// Removes a file, and never a directory, even if another client puts one in the file's place meanwhile; adds to `removed` how many
    /// entries. With `recursive` as [`Client::remove_all`].
    ///
    /// # Errors
    /// `IsDirectory`: it is one. Otherwise as [`Client::remove_all`].
    pub fn remove(&self, path: &StorePath, recursive: bool, removed: &mut u64) -> Result<(), Error> {
        if recursive {
            return self.remove_all(path, removed);
        }
        // The manager tells a file from a directory when it removes the name. What was seen before is no help.
        self.unlink(path, false)?;
        *removed += 1;
        Ok(())
    }

    /// Removes a file, or a directory with everything below it; adds to `removed` how many entries. What another client
    /// moves out of the directory meanwhile stays.
    ///
    /// # Errors
    /// As [`Client::unlink`], or the path leads to the directory no longer, because another client moved or replaced it or one
    /// above it; what was removed before stays removed.
    pub fn remove_all(&self, path: &StorePath, removed: &mut u64) -> Result<(), Error> {
        let attr = self.stat(path)?;
        let directory = attr.kind() == InodeKind::Directory;
        if directory {
            let tree = Subtree { components: path.components().to_vec() };
            self.empty(path, attr.ino, &tree, removed)?;
        }
        self.unlink(path, directory)?;
        *removed += 1;
        Ok(())
    }

    /// Removes everything in a directory, page by page, as long as the directory is in `tree`.
    fn empty(&self, path: &StorePath, ino: u64, tree: &Subtree, removed: &mut u64) -> Result<(), Error> {
        loop {
            let page = List { ino, limit: REMOVED_NAMES, within: Some(tree.clone()), ..List::default() };
            let entries = self.ask_at("list", path, &page)?.entries;
            if entries.is_empty() {
                return Ok(());
            }
            for entry in &entries {
                if let Some(attr) = entry.attr.as_ref().filter(|attr| attr.kind() == InodeKind::Directory) {
                    match self.empty(&path.join(&entry.name)?, attr.ino, tree, removed) {
                        // It left the tree since it was listed, or the tree was moved: then the next request here fails.
                        Err(error) if matches!(error.code(), Code::NotFound | Code::VersionConflict) => {}
                        done => done?,
                    }
                }
            }
            let names = entries.into_iter().map(|entry| entry.name).collect();
            let request = RemoveNames { op_id: self.op_id(), parent: ino, names, within: Some(tree.clone()) };
            self.remove_names(path, &request, removed)?;
        }
    }

    /// Removes names of a directory. Some may be gone already.
    fn remove_names(&self, path: &StorePath, request: &RemoveNames, removed: &mut u64) -> Result<(), Error> {
        let refused = self.change("remove names in", path, request)?.refused;
        *removed += request.names.len().saturating_sub(refused.len()) as u64;
        for NotRemoved { index, error } in &refused {
            let error = error.clone().unwrap_or_default();
            if error.code() != Code::NotFound {
                let name = request.names.get(*index as usize).map_or(&[][..], Vec::as_slice);
                at("remove", &path.join(name)?, Err(error))?;
            }
        }
        Ok(())
    }

    /// Moves a name; an existing target is replaced unless `no_replace`. Hints stay with the file.
    ///
    /// # Errors
    /// As [`Client::stat`]; or the target is taken and cannot be replaced.
    pub fn rename(&self, from: &StorePath, to: &StorePath, no_replace: bool) -> Result<(), Error> {
        let (from_parent, from_name) = self.place(from)?;
        let (to_parent, to_name) = self.place(to)?;
        let (op_id, from_parent, to_parent) = (self.op_id(), from_parent.ino, to_parent.ino);
        let request = Rename { op_id, from_parent, from_name, to_parent, to_name, no_replace, exchange: false };
        self.change("rename", from, &request).map(drop)
    }

    fn symlink(&self, target: &[u8], path: &StorePath) -> Result<(), Error> {
        let (parent, name) = self.place(path)?;
        let (op_id, parent, target) = (self.op_id(), parent.ino, target.to_vec());
        self.ask_at("symlink", path, &Symlink { op_id, parent, name, target, uid: 0, gid: 0 }).map(drop)
    }

    /// Makes a symbolic link at `path` to `target`; replaces a link or file of that name.
    ///
    /// # Errors
    /// As [`Client::stat`] of the directory above; or a directory has that name.
    pub fn replace_symlink(&self, target: &[u8], path: &StorePath) -> Result<(), Error> {
        match self.symlink(target, path) {
            Err(error) if error.code() == Code::Exists => {
                let there = self.stat(path)?;
                if there.kind() == InodeKind::Symlink && there.symlink_target == target {
                    return Ok(());
                }
                self.unlink(path, false)?;
                self.symlink(target, path)
            }
            made => made,
        }
    }

    /// Changes permission bits, owner and modification time (ns since 1970).
    ///
    /// # Errors
    /// As [`Client::stat`].
    pub fn set_attributes(&self, path: &StorePath, owner: Owner, mtime_ns: i64) -> Result<(), Error> {
        let set = owner_and_mtime(self.ino(path)?, owner, mtime_ns);
        self.ask_at("change", path, &SetAttr { op_id: self.op_id(), ..set }).map(drop)
    }

    /// Hints set on a file or directory: name and value.
    ///
    /// # Errors
    /// As [`Client::stat`].
    pub fn hints(&self, path: &StorePath) -> Result<Vec<(String, String)>, Error> {
        Ok(self.resolve(path, false)?.hints.into_iter().map(|hint| (hint.name, hint.value)).collect())
    }

    /// Sets hints (name without `user.tessera.`, value); an empty value removes the hint. All are checked before
    /// anything is changed (P14).
    ///
    /// # Errors
    /// A hint is invalid, or as [`Client::stat`].
    pub fn set_hints(&self, path: &StorePath, hints: &[(String, String)]) -> Result<(), Error> {
        let (removed, set): (Vec<_>, Vec<_>) = hints.iter().cloned().partition(|(_, value)| value.is_empty());
        let set = canonical(path, &set)?;
        if hints.is_empty() {
            return Ok(());
        }
        let ino = self.ino(path)?;
        let xattr = |name: &str| format!("{}{name}", tessera_policy::PREFIX);
        for Hint { name, value } in set {
            let (op_id, name, value) = (self.op_id(), xattr(&name), value.into_bytes());
            self.change("set an attribute of", path, &SetXattr { op_id, ino, name, value, ..SetXattr::default() })?;
        }
        let there = if removed.is_empty() { Vec::new() } else { self.hints(path)? };
        for (name, _) in removed.iter().filter(|(name, _)| there.iter().any(|(n, _)| n == name)) {
            let request = RemoveXattr { op_id: self.op_id(), ino, name: xattr(name) };
            self.change("remove an attribute of", path, &request)?;
        }
        Ok(())
    }

    /// Versions of a file, oldest first.
    ///
    /// # Errors
    /// As [`Client::stat`].
    pub fn versions(&self, path: &StorePath) -> Result<Vec<VersionInfo>, Error> {
        Ok(self.ask_at("list versions of", path, &ListVersions { ino: self.ino(path)? })?.versions)
    }

    /// Where the fragments of a file's current version are.
    ///
    /// # Errors
    /// As [`Client::stat`].
    pub fn locate(&self, path: &StorePath) -> Result<Located, Error> {
        at("locate", path, self.locate_inode(self.ino(path)?))
    }

    /// Writes a source as a new version, which appears whole or not at all.
    ///
    /// # Errors
    /// Reading the source or the write failed; no part of it is visible.
    pub fn put<'a>(
        &self,
        path: &StorePath,
        source: impl Into<Source<'a>>,
        options: PutOptions<'_>,
    ) -> Result<WriteDone, Error> {
        let source = match source.into() {
            Source::Sparse { file, len_bytes } => return self.put_sparse(path, file, len_bytes, options),
            source => source,
        };
        let params = self.write_params(path, &options, source.len_bytes())?;
        let means = match &source {
            // Its bytes are the caller's.
            Source::Bytes(_) => Means::of_options(&self.context),
            source => {
                let (policy, len_bytes) = (params.expect_policy.as_ref(), source.len_bytes());
                Means::of_write(&self.context, &params.file, policy, len_bytes, &options.cancel)?
            }
        };
        Ok(crate::write::put(&self.context, params, source, options.progress, options.cancel, means)?)
    }

    /// Writes small files, each as a new version that appears whole or not at all. As far as their policies allow, their contents share
    /// chunks of [`PACK_BYTES`](crate::PACK_BYTES), which costs much less than a write of each. Returns the result of each, in order. `hints`
    /// are as in [`PutOptions`], and `held` is for the bytes of all files.
    pub fn put_small(
        &self,
        files: Vec<SmallPut>,
        hints: &[(String, String)],
        held: &Held,
        cancel: &Cancel,
    ) -> Vec<Result<WriteDone, Error>> {
        let params = |file: &SmallPut| {
            let options =
                PutOptions { hints: hints.to_vec(), mtime_ns: file.mtime_ns, owner: file.owner, ..Default::default() };
            self.write_params(&file.path, &options, Some(file.content.len() as u64))
        };
        let (mut results, mut small) = (Vec::with_capacity(files.len()), Vec::new());
        for file in files {
            results.push(params(&file).map(|params| small.push(SmallFile { params, content: file.content })));
        }
        let mut done = crate::write::pack::put_all(&self.context, small, held, cancel).into_iter();
        let mut next = || done.next().expect("each file that was handed over has a result").map_err(Error::from);
        results.into_iter().map(|result| result.and_then(|()| next())).collect()
    }

    /// Writes a file that has holes: they are not read, and stay holes.
    fn put_sparse(
        &self,
        path: &StorePath,
        file: &mut dyn ReadHoles,
        len_bytes: u64,
        mut options: PutOptions<'_>,
    ) -> Result<WriteDone, Error> {
        let failed = |e: std::io::Error| Cause::Input(e.to_string()).of(path.to_string());
        let mut progress = options.progress.take();
        let mut report = |done| {
            if let Some(progress) = progress.as_mut() {
                progress(Progress { done, total: Some(len_bytes) });
            }
        };
        let params = self.write_params(path, &options, None)?;
        let policy = params.expect_policy.as_ref();
        let means = Means::of_write(&self.context, &params.file, policy, None, &options.cancel)?;
        let mut handle = WriteHandle::open(&self.context, params, options.cancel, means)?;
        let (mut buffer, mut at) = (vec![0; SPARSE_BUFFER_BYTES], 0);
        while let Some(data) = file.next_data(at, len_bytes).map_err(failed)? {
            handle.skip_to(data.start)?;
            at = data.start;
            while at < data.end {
                let room = buffer.len().min(usize::try_from(data.end - at).unwrap_or(usize::MAX));
                match file.read(&mut buffer[..room]).map_err(failed)? {
                    // The file became shorter meanwhile.
                    0 => break,
                    read => {
                        handle.write(&buffer[..read])?;
                        at += read as u64;
                        report(at);
                    }
                }
            }
        }
        let size_bytes = len_bytes.max(at);
        report(size_bytes);
        handle.skip_to(size_bytes)?;
        let done = handle.finish()?;
        assert_eq!(done.input_bytes, size_bytes, "a sparse file of {size_bytes} bytes was stored with another length");
        Ok(done)
    }

    /// Opens a file for writing piece by piece; the commit of its first version creates it.
    ///
    /// # Errors
    /// A hint is invalid, the directory does not exist, or the manager refuses or does not answer.
    pub fn open_write(&self, path: &StorePath, options: PutOptions<'_>) -> Result<WriteHandle, Error> {
        let params = self.write_params(path, &options, None)?;
        let means = Means::of_options(&self.context);
        Ok(WriteHandle::open(&self.context, params, options.cancel, means)?)
    }

    pub(crate) fn write_params(
        &self,
        path: &StorePath,
        options: &PutOptions<'_>,
        size: Option<u64>,
    ) -> Result<WriteParams, Error> {
        let hints = canonical(path, &options.hints)?;
        let (parent, name) = self.place(path)?;
        let all = parent.hints.iter().chain(&hints).map(|h| (h.name.as_str(), h.value.as_str()));
        Ok(WriteParams {
            want_lease: false,
            content: 0,
            lock_fence: None,
            pack: None,
            file: path.to_string(),
            target: Target::Name { parent: parent.ino, name },
            mode: CommitMode::Replace,
            if_version: options.if_version,
            size_hint_bytes: size,
            // Hints of a newer release on the directory are no reason to fail: the manager knows them.
            expect_policy: Policy::from_hints(all).ok(),
            hints,
            times: Times { mtime_ns: options.mtime_ns, ..Times::default() },
            owner: options.owner,
        })
    }

    /// Reads a version, or a range of it, into a sink; returns the version and how many bytes. Verified (P2).
    ///
    /// # Errors
    /// There is no such version, too few of its fragments can be read, or the sink fails.
    pub fn get(&self, path: &StorePath, mut sink: Sink<'_>, options: GetOptions<'_>) -> Result<(Opened, u64), Error> {
        assert!(options.described.is_none() || options.range.is_none(), "a file that was described is read as a whole");
        let described = options.described.and_then(|known| self.get_described(path, known, &mut sink, options.bulk));
        if let Some(read) = described {
            let (opened, len_bytes) = read?;
            if let Some(progress) = options.progress {
                progress(Progress { done: len_bytes, total: Some(len_bytes) });
            }
            return Ok((opened, len_bytes));
        }
        let range = options.range.unwrap_or(0..u64::MAX);
        let (parent, name) = self.place(path)?;
        let (parent, number, offset) = (parent.ino, options.version, range.start);
        let len_bytes = range.end.saturating_sub(offset);
        let open = OpenRead { parent, name, number, offset, len_bytes, ..OpenRead::default() };
        let params = ReadParams { file: path.to_string(), open, known: None, bulk: options.bulk };
        Ok(crate::read::get(&self.context, params, &mut sink, options.progress)?)
    }
}

/// Adds the operation and the path to the manager's refusal.
fn at<T>(operation: &'static str, path: &StorePath, answer: Result<T, WireError>) -> Result<T, Error> {
    answer.map_err(|error| Error::refused(operation, path, error))
}

/// Hints in canonical form, or which of them is invalid or contradicts one before it.
fn canonical(path: &StorePath, hints: &[(String, String)]) -> Result<Vec<Hint>, Error> {
    let invalid = |message: String| Error::Hint { path: path.brief(), message };
    let mut all: Vec<Hint> = Vec::with_capacity(hints.len());
    for (name, value) in hints {
        let (own, value) = tessera_policy::canonical(name, value).map_err(|e| invalid(e.to_string()))?;
        match all.iter().find(|hint| hint.name == own) {
            Some(first) if first.value != value => {
                return Err(invalid(format!(
                    "{own}={} and {own}={value} (as {name}) exclude each other; give one",
                    first.value
                )));
            }
            Some(_) => {}
            None => all.push(Hint { name: own.to_string(), value }),
        }
    }
    Ok(all)
}
