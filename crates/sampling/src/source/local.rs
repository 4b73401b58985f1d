//! Files of local directories. The device number tells on which disk a file lies.

use super::{Contents, DiskIndex, FileIndex, Source, SourceFile};
use crate::error::Error;
use crate::layout::Run;
use hashbrown::HashSet;
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Open local files. Files that were named in a directory are read in the order of their names.
pub struct LocalFiles {
    contents: Contents,
    open: Vec<Open>,
}

struct Open {
    file: File,
    /// Of when it was opened, to notice writes.
    mtime: (i64, i64),
}

impl LocalFiles {
    /// Opens files, and all files under directories. Hidden files in directories are left out, as other engines do. A file
    /// that was named before is left out, but not another name of it, which a link is.
    /// `disk_of` names the disk of a path; by default it is the device number.
    ///
    /// # Errors
    /// A path does not exist or cannot be read; there are no files.
    pub fn open(paths: &[PathBuf], disk_of: Option<&dyn Fn(&Path) -> String>) -> Result<LocalFiles, Error> {
        let mut found = Vec::new();
        for path in paths {
            collect(path, &mut found)?;
        }
        let mut source = LocalFiles { contents: Contents::default(), open: Vec::new() };
        let mut names = HashSet::new();
        for path in found {
            match names.insert(full_name(&path)?) {
                true => source.add(&path, disk_of)?,
                false => source.contents.repeated.push(path.display().to_string()),
            }
        }
        if source.contents.files.is_empty() {
            return Err(Error::NoFiles { paths: paths.iter().map(|p| p.display().to_string()).collect() });
        }
        Ok(source)
    }

    fn add(&mut self, path: &Path, disk_of: Option<&dyn Fn(&Path) -> String>) -> Result<(), Error> {
        let fail = |error| Error::io(path.display(), error);
        let file = File::open(path).map_err(fail)?;
        let meta = file.metadata().map_err(fail)?;
        let disk = disk_of.map_or_else(|| device_name(meta.dev()), |name| name(path));
        let known = self.contents.disks.iter().position(|name| *name == disk);
        let disk = known.unwrap_or_else(|| {
            self.contents.disks.push(disk);
            self.contents.disks.len() - 1
        });
        if meta.len() == 0 && file.read_at(&mut [0], 0).map_err(fail)? > 0 {
            return Err(Error::io(
                path.display(),
                "its file system says that it is empty, but it is not; copy what it gives into a file first",
            ));
        }
        if meta.len() > 0 {
            let whole_file = Run {
                file: self.contents.files.len() as FileIndex,
                offset: 0,
                len_bytes: meta.len(),
                disk: disk as DiskIndex,
                rows: None,
            };
            self.contents.runs.push(whole_file);
        }
        self.contents.files.push(SourceFile { name: path.display().to_string(), len_bytes: meta.len() });
        self.open.push(Open { file, mtime: (meta.mtime(), meta.mtime_nsec()) });
        Ok(())
    }
}

/// The file's name in its directory, whatever way led there.
fn full_name(path: &Path) -> Result<PathBuf, Error> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let parent = parent.canonicalize().map_err(|error| Error::io(path.display(), error))?;
    Ok(path.file_name().map_or(parent.clone(), |name| parent.join(name)))
}

/// The device as `lsblk` shows its numbers.
fn device_name(dev: u64) -> String {
    format!("{}:{}", rustix::fs::major(dev), rustix::fs::minor(dev))
}

fn collect(path: &Path, found: &mut Vec<PathBuf>) -> Result<(), Error> {
    let fail = |error| Error::io(path.display(), error);
    let meta = path.metadata().map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => Error::NotFound { file: path.display().to_string() },
        _ => fail(error),
    })?;
    if meta.is_file() {
        found.push(path.to_path_buf());
        return Ok(());
    }
    if !meta.is_dir() {
        return Err(Error::io(
            path.display(),
            "it is neither a file nor a directory; write what it gives into a file first",
        ));
    }
    let mut entries: Vec<PathBuf> =
        path.read_dir().and_then(|dir| dir.map(|entry| entry.map(|e| e.path())).collect()).map_err(fail)?;
    entries.sort();
    for entry in entries {
        let hidden = entry.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        // A link to a directory may lead in a circle.
        let link_to_directory = entry.is_symlink() && entry.is_dir();
        if !hidden && !link_to_directory && (entry.is_dir() || entry.is_file()) {
            collect(&entry, found)?;
        }
    }
    Ok(())
}

impl Source for LocalFiles {
    fn contents(&self) -> &Contents {
        &self.contents
    }

    fn check_unchanged(&self) -> Result<(), Error> {
        for (file, open) in self.contents.files.iter().zip(&self.open) {
            let meta = open.file.metadata().map_err(|error| Error::io(&file.name, error))?;
            if meta.len() != file.len_bytes || (meta.mtime(), meta.mtime_nsec()) != open.mtime {
                return Err(Error::Changed { file: file.name.clone() });
            }
        }
        Ok(())
    }

    fn read_at(&self, file: FileIndex, offset: u64, out: &mut [u8]) -> Result<usize, Error> {
        let (info, open) = (&self.contents.files[file as usize], &self.open[file as usize]);
        let want = (out.len() as u64).min(info.len_bytes.saturating_sub(offset)) as usize;
        open.file.read_exact_at(&mut out[..want], offset).map_err(|error| match error.kind() {
            // It was cut after it was opened.
            std::io::ErrorKind::UnexpectedEof => Error::Changed { file: info.name.clone() },
            _ => Error::io(&info.name, error),
        })?;
        Ok(want)
    }
}
