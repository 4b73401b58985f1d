//! Old versions as files: fetches from the manager what the synthetic inodes of [`crate::synthetic`] show.

use crate::backend::Backend;
use crate::errno::{Errno, Outcome, explained};
use crate::mount::Mount;
use crate::open_file::open_version;
use crate::synthetic::{self, STORE_ROOT, SyntheticInode, VersionNumbers};
use parking_lot::Mutex;
use std::sync::Arc;
use tessera_wire::Attr;
use tessera_wire::meta::{ListReply, ListVersions, VersionInfo};

/// An entry of a synthetic directory.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Attributes.
    pub attr: Attr,
    /// Name.
    pub name: Vec<u8>,
}

/// The versions that the kernel was told of.
#[derive(Default)]
pub struct History(Mutex<VersionNumbers>);

impl History {
    fn shown(&self, count: u64) -> Outcome<(u64, VersionInfo)> {
        self.0.lock().get(count).ok_or(Errno::ESTALE)
    }

    /// Attributes of a synthetic inode.
    ///
    /// # Errors
    /// `ESTALE` if this mount did not show the version, and the store's errors.
    pub async fn attr<B: Backend>(&self, mount: &Mount<B>, ino: u64) -> Outcome<Attr> {
        let (real, version) = match SyntheticInode::of(ino).ok_or(Errno::ENOENT)? {
            SyntheticInode::Root => (STORE_ROOT, None),
            SyntheticInode::Directory(real) | SyntheticInode::File(real) => (real, None),
            SyntheticInode::Version(count) => {
                let (file, version) = self.shown(count)?;
                (file, Some(version))
            }
        };
        Ok(synthetic::attr(ino, &real_attr(mount, real).await?, version.as_ref()))
    }

    /// Looks a name up in the mount's root (the synthetic root) or in a synthetic directory.
    ///
    /// # Errors
    /// `ENOENT`, and the manager's.
    pub async fn lookup<B: Backend>(&self, mount: &Mount<B>, parent: u64, name: &[u8]) -> Outcome<Attr> {
        let found = match SyntheticInode::of(parent) {
            None => synthetic::ROOT_INO,
            Some(SyntheticInode::Root) if name == synthetic::VERSIONS_NAME => SyntheticInode::versions_root(),
            Some(SyntheticInode::Directory(real)) => {
                let entry = mount.backend.lookup(real, name, 0).await.map_err(|e| explained("look up", real, &e))?;
                let attr = entry.attr.unwrap_or_default();
                SyntheticInode::mirror(attr.ino, attr.kind()).ok_or(Errno::ENOENT)?
            }
            Some(SyntheticInode::File(real)) => {
                // `01` is not another name of version 1.
                let named = |version: &VersionInfo| version.number.to_string().as_bytes() == name;
                let version = versions(mount, real).await?.into_iter().find(named).ok_or(Errno::ENOENT)?;
                self.0.lock().number(real, &version)
            }
            _ => return Err(Errno::ENOENT),
        };
        self.attr(mount, found).await
    }

    /// Entries of a synthetic directory, with attributes: the kernel trusts the first length that it learns.
    ///
    /// # Errors
    /// `ENOTDIR` for a version, and the store's.
    pub async fn entries<B: Backend>(&self, mount: &Mount<B>, ino: u64) -> Outcome<Vec<Entry>> {
        match SyntheticInode::of(ino).ok_or(Errno::ENOENT)? {
            SyntheticInode::Root => {
                let tree = synthetic::attr(SyntheticInode::versions_root(), &real_attr(mount, STORE_ROOT).await?, None);
                Ok(vec![Entry { attr: tree, name: synthetic::VERSIONS_NAME.to_vec() }])
            }
            SyntheticInode::Directory(real) => mirrored(mount, real).await,
            SyntheticInode::File(real) => {
                let (of, versions) = (real_attr(mount, real).await?, versions(mount, real).await?);
                let mut numbers = self.0.lock();
                let entry = |version: &VersionInfo| {
                    let attr = synthetic::attr(numbers.number(real, version), &of, Some(version));
                    Entry { attr, name: version.number.to_string().into_bytes() }
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
    pub async fn open<B: Backend>(&self, mount: &Mount<B>, ino: u64) -> Outcome<Arc<B::Reader>> {
        let Some(SyntheticInode::Version(count)) = SyntheticInode::of(ino) else { return Err(Errno::EISDIR) };
        let (file, version) = self.shown(count)?;
        open_version(mount, file, version.version).await
    }
}

async fn real_attr<B: Backend>(mount: &Mount<B>, ino: u64) -> Outcome<Attr> {
    let entry = mount.backend.get(ino).await.map_err(|e| explained("get", ino, &e))?;
    Ok(entry.attr.unwrap_or_default())
}

async fn mirrored<B: Backend>(mount: &Mount<B>, real: u64) -> Outcome<Vec<Entry>> {
    let (mut entries, mut after) = (Vec::new(), Vec::new());
    loop {
        let ListReply { entries: page, more, .. } =
            mount.backend.list(real, &after).await.map_err(|e| explained("list", real, &e))?;
        after = page.last().map(|entry| entry.name.clone()).unwrap_or_default();
        let more = more && !page.is_empty();
        entries.extend(page.into_iter().filter_map(|entry| {
            let of = entry.attr?;
            let mirror = SyntheticInode::mirror(of.ino, of.kind())?;
            Some(Entry { attr: synthetic::attr(mirror, &of, None), name: entry.name })
        }));
        if !more {
            return Ok(entries);
        }
    }
}

async fn versions<B: Backend>(mount: &Mount<B>, ino: u64) -> Outcome<Vec<VersionInfo>> {
    let listed = mount.backend.ask(&ListVersions { ino }).await;
    Ok(listed.map_err(|e| explained("list versions of", ino, &e))?.versions)
}
