//! The file of `tessera flash serve --backing`: a header of 4 KiB, then the bytes of the SSD. It is sparse: bytes that were never
//! written or were trimmed take no room. The header is two lines of text, then zeros: the format, and the options that make the SSD.

use super::made::Made;
use crate::exit::{At, Exit, Outcome, bail};
use crate::files::holes::next_data;
use rustix::fs::{FallocateFlags, FlockOperation, fallocate, flock};
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use tessera_flash::{Backing, Shape};

const FORMAT: &str = "tessera flash backing 1";

/// Bytes of the header.
const HEADER: u64 = 4096;

/// Zeros that are written at a time where no hole can be punched.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// An open backing file, locked until it is dropped.
pub struct BackingFile {
    file: File,
    capacity: u64,
    /// Whether a sync failed: the system may have dropped what was written before.
    has_failed: bool,
}

/// The options of an SSD.
fn options(capacity: u64, shape: &Shape) -> String {
    let Shape { channels, chips, dies, planes, pages, page_bytes, oob_bytes } = shape;
    format!(
        "--capacity {capacity} --geometry channels={channels},chips={chips},dies={dies},planes={planes},pages={pages},page={page_bytes},oob={oob_bytes}"
    )
}

impl BackingFile {
    /// Opens a file, or makes it; then it goes again unless it is kept.
    ///
    /// # Errors
    /// It is in use, has another SSD or something else, or cannot be written.
    pub fn open(path: &Path, capacity: u64, shape: &Shape) -> Outcome<(BackingFile, Made)> {
        let shown = path.display();
        // Neither a device nor a pipe: opening one may wait or do something.
        if std::fs::metadata(path).is_ok_and(|found| !found.is_file()) {
            bail!(Exit::Conflict, "{shown} is no regular file; name another one for --backing");
        }
        let mut how = OpenOptions::new();
        how.read(true).write(true).create(true).truncate(false).mode(0o600);
        let made = Made::create(path).at(path)?;
        let file = how.open(path).at(path)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(rustix::io::Errno::WOULDBLOCK) => {
                // It locked the file first that this one made.
                made.keep();
                bail!(Exit::Refused, "{shown}: another server serves this file; end it, or name another file")
            }
            locked => locked.map_err(io::Error::from).at(path)?,
        }
        if file.metadata().at(path)?.nlink() == 0 {
            bail!(Exit::Refused, "{shown}: another server made this file, did not start, and removed it; start again");
        }
        let (options, whole) = (options(capacity, shape), HEADER + capacity);
        let len = file.metadata().at(path)?.len();
        // One that has nothing but its length was being made.
        let is_empty = len == 0 || len == whole && next_data(&file, 0, whole).at(path)?.is_none();
        if is_empty && let Err(error) = make(&file, path, &options, whole) {
            // It is this server's alone, and has nothing.
            made.keep();
            let _ = std::fs::remove_file(path);
            bail!(Exit::NoSpace, "{shown}: {error}; free space there, or name another file");
        }
        check_header(&file, path, &options)?;
        let len = file.metadata().at(path)?.len();
        if len != whole {
            bail!(
                Exit::Corrupt,
                "{shown} has {len} bytes in place of {whole}: it was cut off or added to; restore it, or name another file"
            );
        }
        Ok((BackingFile { file, capacity, has_failed: false }, made))
    }

    /// Where there is data, in order.
    ///
    /// # Errors
    /// The system's.
    pub fn extents(&self) -> io::Result<Vec<Range<u64>>> {
        let (mut extents, mut at, end) = (Vec::new(), HEADER, HEADER + self.capacity);
        while let Some(data) = next_data(&self.file, at, end)? {
            at = data.end;
            extents.push(data.start - HEADER..data.end - HEADER);
        }
        Ok(extents)
    }

    fn check(&self) -> io::Result<()> {
        match self.has_failed {
            true => Err(io::Error::other("a flush of it failed before; start the server again")),
            false => Ok(()),
        }
    }
}

/// The length comes first: a file with a header that is shorter was cut off.
fn make(file: &File, path: &Path, options: &str, whole: u64) -> io::Result<()> {
    file.set_len(whole)?;
    file.sync_all()?;
    let mut header = format!("{FORMAT}\n{options}\n").into_bytes();
    header.resize(HEADER as usize, 0);
    file.write_all_at(&header, 0)?;
    file.sync_all()?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(parent)?.sync_all()
}

fn check_header(file: &File, path: &Path, options: &str) -> Outcome {
    let (mut header, shown) = ([0; HEADER as usize], path.display());
    let is_whole = match file.read_exact_at(&mut header, 0) {
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => false,
        read => read.at(path).map(|()| true)?,
    };
    let text = String::from_utf8_lossy(&header);
    let mut lines = text.trim_end_matches('\0').lines();
    let (format, found) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
    if !is_whole || !format.starts_with("tessera flash backing ") {
        bail!(Exit::Conflict, "{shown} is no backing file of `tessera flash serve`; name another file");
    }
    if format != FORMAT {
        bail!(
            Exit::Refused,
            "{shown} has the format `{format}`, and this release knows `{FORMAT}`; use the other release"
        );
    }
    if found != options {
        bail!(Exit::Refused, "{shown} has another SSD; serve it with {found}, or name another file");
    }
    Ok(())
}

impl Backing for BackingFile {
    fn read(&mut self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(buffer, HEADER + offset)
    }

    fn write(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.check()?;
        self.file.write_all_at(data, HEADER + offset)
    }

    fn zero(&mut self, offset: u64, bytes: u64) -> io::Result<()> {
        self.check()?;
        if bytes == 0 {
            return Ok(());
        }
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match fallocate(&self.file, flags, HEADER + offset, bytes) {
            Err(rustix::io::Errno::OPNOTSUPP) => {
                let step = |at: u64| ZEROS.len().min((offset + bytes - at) as usize);
                let mut starts = (offset..offset + bytes).step_by(ZEROS.len());
                starts.try_for_each(|at| self.file.write_all_at(&ZEROS[..step(at)], HEADER + at))
            }
            punched => punched.map_err(Into::into),
        }
    }

    fn sync(&mut self) -> io::Result<()> {
        self.check()?;
        let synced = self.file.sync_data();
        self.has_failed = synced.is_err();
        synced
    }
}
