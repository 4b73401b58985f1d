//! Old versions as files: fetches from the manager what the synthetic inodes of [`tessera_mount::synthetic`] show.

use crate::attr::{errno, explained, file_attr};
use crate::mount::Store;
use fuser::{Errno, FileAttr};
use parking_lot::Mutex;
use std::sync::Arc;
use tessera_client::ReadHandle;
use tessera_mount::synthetic::{self, ShownVersion, SyntheticInode, VersionNumbers};
use tessera_wire::Attr;
use tessera_wire::meta::VersionInfo;

const STORE_ROOT: u64 = 1;

/// Bytes of the file whose extents an open fetches.
const FIRST_EXTENTS_BYTES: u64 = 64 << 20;

/// Whether an inode is synthetic.
pub fn is_synthetic(ino: u64) -> bool {
    SyntheticInode::of(ino).is_some()
}

/// An entry of a synthetic directory.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Attributes.
    pub attr: FileAttr,
    /// Name.
    pub name: Vec<u8>,
}

/// The versions that the kernel was told of.
#[derive(Default)]
pub struct History(Mutex<VersionNumbers>);

impl History {
    fn shown(&self, count: u64) -> Result<ShownVersion, Errno> {
        self.0.lock().get(count).cloned().ok_or(Errno::ESTALE)
    }

    /// Attributes of a synthetic inode.
    ///
    /// # Errors
    /// `ESTALE` if this mount did not show the version, and the store's errors.
    pub fn attr(&self, store: &Store, ino: u64) -> Result<FileAttr, Errno> {
        let (real, version) = match SyntheticInode::of(ino).ok_or(Errno::ENOENT)? {
            SyntheticInode::Root => (STORE_ROOT, None),
            SyntheticInode::Directory(real) | SyntheticInode::File(real) => (real, None),
            SyntheticInode::Version(count) => {
                let ShownVersion { file, version } = self.shown(count)?;
                (file, Some(version))
            }
        };
        Ok(file_attr(&synthetic::attr(ino, &real_attr(store, real)?, version.as_ref())))
    }

    /// Looks a name up in the mount's root (the synthetic root) or in a synthetic directory.
    ///
    /// # Errors
    /// `ENOENT`, and the manager's.
    pub fn lookup(&self, store: &Store, parent: u64, name: &[u8]) -> Result<FileAttr, Errno> {
        let found = match SyntheticInode::of(parent) {
            None => synthetic::ROOT_INO,
            Some(SyntheticInode::Root) if name == synthetic::VERSIONS_NAME => SyntheticInode::versions_root(),
            Some(SyntheticInode::Directory(real)) => {
                let entry = store.client.inodes().lookup(real, name).map_err(|e| explained("look up", real, &e))?;
                let attr = entry.attr.unwrap_or_default();
                SyntheticInode::mirror(attr.ino, attr.kind()).ok_or(Errno::ENOENT)?
            }
            Some(SyntheticInode::File(real)) => {
                // `01` is not another name of version 1.
                let named = |version: &VersionInfo| version.number.to_string().as_bytes() == name;
                let version = versions(store, real)?.into_iter().find(named).ok_or(Errno::ENOENT)?;
                self.0.lock().number(real, &version)
            }
            _ => return Err(Errno::ENOENT),
        };
        self.attr(store, found)
    }

    /// Entries of a synthetic directory, with attributes: the kernel trusts the first length that it learns.
    ///
    /// # Errors
    /// `ENOTDIR` for a version, and the store's.
    pub fn entries(&self, store: &Store, ino: u64) -> Result<Vec<Entry>, Errno> {
        match SyntheticInode::of(ino).ok_or(Errno::ENOENT)? {
            SyntheticInode::Root => {
                let tree = synthetic::attr(SyntheticInode::versions_root(), &real_attr(store, STORE_ROOT)?, None);
                Ok(vec![Entry { attr: file_attr(&tree), name: synthetic::VERSIONS_NAME.to_vec() }])
            }
            SyntheticInode::Directory(real) => mirrored(store, real),
            SyntheticInode::File(real) => {
                let (of, versions) = (real_attr(store, real)?, versions(store, real)?);
                let mut numbers = self.0.lock();
                let entry = |version: &VersionInfo| {
                    let attr = synthetic::attr(numbers.number(real, version), &of, Some(version));
                    Entry { attr: file_attr(&attr), name: version.number.to_string().into_bytes() }
                };
                Ok(versions.iter().map(entry).collect())
            }
            SyntheticInode::Version(_) => Err(Errno::ENOTDIR),
        }
    }

    /// Opens a version.
    ///
    /// # Errors
    /// `EISDIR` for a synthetic directory, and the store's.
    pub fn open(&self, store: &Store, ino: u64) -> Result<Arc<ReadHandle>, Errno> {
        let Some(SyntheticInode::Version(count)) = SyntheticInode::of(ino) else { return Err(Errno::EISDIR) };
        let ShownVersion { file, version } = self.shown(count)?;
        let first = 0..version.size_bytes.min(FIRST_EXTENTS_BYTES);
        let opened = store.client.inodes().open_read(file, version.version, first);
        opened.map(Arc::new).map_err(|error| {
            tracing::warn!(ino = file, version = version.number, %error, "a version cannot be opened");
            errno(error.code())
        })
    }
}

fn real_attr(store: &Store, ino: u64) -> Result<Attr, Errno> {
    let entry = store.client.inodes().get(ino).map_err(|e| explained("get", ino, &e))?;
    Ok(entry.attr.unwrap_or_default())
}

fn mirrored(store: &Store, real: u64) -> Result<Vec<Entry>, Errno> {
    let (mut entries, mut after) = (Vec::new(), Vec::new());
    loop {
        let (page, more) = store.client.inodes().list(real, &after).map_err(|e| explained("list", real, &e))?;
        after = page.last().map(|entry| entry.name.clone()).unwrap_or_default();
        let more = more && !page.is_empty();
        entries.extend(page.into_iter().filter_map(|entry| {
            let of = entry.attr?;
            let mirror = SyntheticInode::mirror(of.ino, of.kind())?;
            Some(Entry { attr: file_attr(&synthetic::attr(mirror, &of, None)), name: entry.name })
        }));
        if !more {
            return Ok(entries);
        }
    }
}

fn versions(store: &Store, ino: u64) -> Result<Vec<VersionInfo>, Errno> {
    store.client.inodes().versions(ino).map_err(|e| explained("list versions of", ino, &e))
}
