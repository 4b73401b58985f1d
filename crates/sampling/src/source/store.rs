//! Files in the store. `locate` tells which disk holds which bytes; each file's version is pinned.

use super::{Contents, DiskIndex, FileIndex, Source, SourceFile};
use crate::error::Error;
use crate::layout::Run;
use hashbrown::{HashMap, HashSet};
use parking_lot::Mutex;
use std::sync::Arc;
use tessera_client::locate::Located;
use tessera_client::path::StorePath;
use tessera_client::{Client, ReadHandle};
use tessera_wire::InodeKind;

/// Open handles at most; each is a session at the manager.
const MAX_HANDLES: usize = 256;

/// Versions of files in the store, as they were when the source was opened. Reads are verified group by group (P2).
pub struct StoreFiles {
    client: Client,
    contents: Contents,
    versions: Vec<(u64, u64)>,
    handles: Mutex<HashMap<FileIndex, Arc<ReadHandle>>>,
}

impl StoreFiles {
    /// Locates files, and all files under directories; each once, however often it was named.
    ///
    /// # Errors
    /// A path does not exist, or the manager does not answer; there are no files.
    pub fn open(client: Client, paths: &[StorePath]) -> Result<StoreFiles, Error> {
        let mut found = Vec::new();
        for path in paths {
            collect(&client, path, &mut found)?;
        }
        let mut source = StoreFiles {
            client,
            contents: Contents::default(),
            versions: Vec::new(),
            handles: Mutex::new(HashMap::new()),
        };
        let mut numbers = HashMap::new();
        let mut names = HashSet::new();
        for path in found {
            if !names.insert(path.clone()) {
                source.contents.repeated.push(path.brief().to_string());
                continue;
            }
            let located =
                source.client.locate(&path).map_err(|error| Error::store(path.brief(), &error, error.code()))?;
            source.add(&path, &located, &mut numbers);
        }
        if source.contents.files.is_empty() {
            return Err(Error::NoFiles { paths: paths.iter().map(|path| path.brief().to_string()).collect() });
        }
        Ok(source)
    }

    fn add(&mut self, path: &StorePath, located: &Located, numbers: &mut HashMap<u64, DiskIndex>) {
        let file = self.contents.files.len() as FileIndex;
        let mut at = 0;
        for extent in &located.extents {
            for (range, fragment) in extent.plain_parts() {
                let disk = *numbers.entry(fragment.disk_id).or_insert_with(|| {
                    self.contents.disks.push(format!("{}:{:x}", fragment.node, fragment.disk_id));
                    self.contents.disks.len() as DiskIndex - 1
                });
                // A hole lies with what follows it.
                let run = Run { file, offset: at, len_bytes: range.end - at, disk, rows: None };
                match self.contents.runs.last_mut().filter(|last| last.file == file && last.disk == disk) {
                    Some(last) => last.len_bytes += run.len_bytes,
                    None => self.contents.runs.push(run),
                }
                at = range.end;
            }
        }
        if at < located.size_bytes {
            self.add_rest(file, at, located.size_bytes);
        }
        self.contents.files.push(SourceFile { name: path.brief().to_string(), len_bytes: located.size_bytes });
        self.versions.push((located.ino, located.version));
    }

    /// A hole at the end lies with what is before it, or on the first disk.
    fn add_rest(&mut self, file: FileIndex, offset: u64, end: u64) {
        if let Some(last) = self.contents.runs.last_mut().filter(|last| last.file == file) {
            last.len_bytes += end - offset;
            return;
        }
        if self.contents.disks.is_empty() {
            self.contents.disks.push("hole".to_string());
        }
        self.contents.runs.push(Run { file, offset, len_bytes: end - offset, disk: 0, rows: None });
    }

    fn handle(&self, file: FileIndex) -> Result<Arc<ReadHandle>, Error> {
        if let Some(handle) = self.handles.lock().get(&file) {
            return Ok(handle.clone());
        }
        let (ino, version) = self.versions[file as usize];
        let name = &self.contents.files[file as usize].name;
        // The version is gone if the file was replaced or removed and nothing keeps it.
        let gone = |error: tessera_client::FileError| match error.code() {
            tessera_wire::Code::NotFound => Error::Changed { file: name.clone() },
            code => Error::store(name, error, code),
        };
        let handle = Arc::new(self.client.read_inode(ino, version, 0..0).map_err(gone)?);
        let mut handles = self.handles.lock();
        if handles.len() >= MAX_HANDLES {
            handles.clear();
        }
        handles.insert(file, handle.clone());
        Ok(handle)
    }
}

fn collect(client: &Client, path: &StorePath, found: &mut Vec<StorePath>) -> Result<(), Error> {
    let fail = |error: tessera_client::Error| Error::store(path.brief(), &error, error.code());
    let attr = client.stat(path).map_err(|error| match error.code() {
        tessera_wire::Code::NotFound => Error::NotFound { file: path.brief().to_string() },
        _ => fail(error),
    })?;
    match attr.kind() {
        InodeKind::Directory => {
            for entry in client.list(path).map_err(fail)? {
                let hidden = entry.name.starts_with(b".");
                let kind = entry.attr.as_ref().map(tessera_wire::Attr::kind);
                if !hidden && matches!(kind, Some(InodeKind::Directory | InodeKind::File)) {
                    let inner = path.join(&entry.name).map_err(|error| Error::io(path.brief(), error))?;
                    collect(client, &inner, found)?;
                }
            }
        }
        _ => found.push(path.clone()),
    }
    Ok(())
}

impl Source for StoreFiles {
    fn contents(&self) -> &Contents {
        &self.contents
    }

    /// A version never changes; one that is gone is an error of the read.
    fn check_unchanged(&self) -> Result<(), Error> {
        Ok(())
    }

    fn read_at(&self, file: FileIndex, offset: u64, out: &mut [u8]) -> Result<usize, Error> {
        let handle = self.handle(file)?;
        let name = &self.contents.files[file as usize].name;
        handle.read_at(offset, out).map_err(|error| Error::store(name, &error, error.code()))
    }
}
