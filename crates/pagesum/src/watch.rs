//! What is known about the files of a database, shared by all connections of the process to it.

use crate::page::PAGE_BYTES;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::{fmt, io};
use xxhash_rust::xxh3::xxh3_64;

/// Bytes of the header of a write-ahead log, and of each of its frames
/// (<https://www.sqlite.org/fileformat2.html#the_write_ahead_log>).
pub(crate) const LOG_HEADER_BYTES: u64 = 32;
pub(crate) const FRAME_HEADER_BYTES: u64 = 24;
pub(crate) const FRAME_BYTES: u64 = FRAME_HEADER_BYTES + PAGE_BYTES as u64;

/// What a file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Database,
    Log,
}

/// Why a database is not to be believed any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Damage {
    /// A page does not hold what was written.
    Page {
        /// The file.
        file: String,
        /// Number of the page (of the frame, in a write-ahead log), from 1.
        number: u64,
    },
    /// A write or a sync failed: nobody knows what the disk holds.
    Unsynced {
        /// The file.
        file: String,
    },
}

impl Damage {
    /// Whether it is that of a disk that failed to sync.
    #[must_use]
    pub fn is_unsynced(&self) -> bool {
        matches!(self, Damage::Unsynced { .. })
    }
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Damage::Page { file, number } => {
                write!(f, "{file}: page {number} does not have the checksum it was written with")
            }
            Damage::Unsynced { file } => write!(f, "{file}: the disk failed to write or sync it"),
        }
    }
}

/// A file that this process has open is not at its path any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Displaced {
    /// There is no file at this path.
    Gone(PathBuf),
    /// Another file is at this path.
    Replaced(PathBuf),
}

impl Displaced {
    /// Compares the open file with this identity with what is at the path. `None` also if nobody can tell.
    #[must_use]
    pub fn find(path: &Path, open: FileId) -> Option<Displaced> {
        match FileId::at(path) {
            Ok(found) if found == open => None,
            Ok(_) => Some(Displaced::Replaced(path.to_path_buf())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Some(Displaced::Gone(path.to_path_buf())),
            Err(_) => None,
        }
    }
}

/// Device and inode of a file. They are its own for as long as it is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileId(u64, u64);

impl FileId {
    /// That of the file or directory at `path`.
    ///
    /// # Errors
    /// The system's.
    pub fn at(path: &Path) -> io::Result<FileId> {
        std::fs::metadata(path).map(|meta| FileId(meta.dev(), meta.ino()))
    }
}

/// A file that connections have open.
#[derive(Debug, Default)]
struct OpenFile {
    /// That of the first connection; `None`: it could not be read.
    id: Option<FileId>,
    connections: u64,
}

/// See the module.
#[derive(Debug)]
pub struct Watch {
    path: PathBuf,
    /// The database and its write-ahead log.
    open: Mutex<[OpenFile; 2]>,
    damage: OnceLock<Damage>,
    /// Sums of the pages in the write-ahead log, by the number of their frame.
    frames: Mutex<BTreeMap<u64, u64>>,
    pages_scrubbed: AtomicU64,
    scrubbed_ns: AtomicU64,
}

impl Watch {
    pub(crate) fn new(path: PathBuf) -> Watch {
        Watch {
            path,
            open: Mutex::default(),
            damage: OnceLock::new(),
            frames: Mutex::default(),
            pages_scrubbed: AtomicU64::new(0),
            scrubbed_ns: AtomicU64::new(0),
        }
    }

    /// The database.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A connection has opened the file at its path. False: other connections have another file open, so it must be closed unread.
    pub(crate) fn opened(&self, kind: Kind) -> bool {
        let id = FileId::at(&self.path_of(kind)).ok();
        let open = &mut self.open.lock()[kind as usize];
        if open.connections == 0 {
            open.id = id;
        }
        let is_same = open.connections == 0 || id.is_some() && open.id == id;
        open.connections += u64::from(is_same);
        is_same
    }

    /// A connection has closed a file that [`Watch::opened`] took.
    pub(crate) fn closed(&self, kind: Kind) {
        self.open.lock()[kind as usize].connections -= 1;
    }

    /// The first of the files that connections have open which is not at its path any more.
    #[must_use]
    pub fn displaced(&self) -> Option<Displaced> {
        let open = self.open.lock();
        [Kind::Database, Kind::Log].into_iter().find_map(|kind| {
            let file = Some(&open[kind as usize]).filter(|file| file.connections > 0)?;
            Displaced::find(&self.path_of(kind), file.id?)
        })
    }

    fn path_of(&self, kind: Kind) -> PathBuf {
        match kind {
            Kind::Database => self.path.clone(),
            Kind::Log => self.log_path(),
        }
    }

    /// The first damage that any connection met.
    pub fn damage(&self) -> Option<&Damage> {
        self.damage.get()
    }

    /// A page of the database is damaged.
    pub fn note_page(&self, number: u32) {
        let _ = self.damage.set(Damage::Page { file: self.path.display().to_string(), number: u64::from(number) });
    }

    /// All pages were read, the last one at this time (ns since 1970).
    pub fn note_scrub(&self, pages: u64, now_ns: u64) {
        self.pages_scrubbed.store(pages, Ordering::Relaxed);
        self.scrubbed_ns.store(now_ns, Ordering::Relaxed);
    }

    /// The end of the last complete scrub (ns since 1970; 0: none yet) and the pages that it read.
    pub fn last_scrub(&self) -> (u64, u64) {
        (self.scrubbed_ns.load(Ordering::Relaxed), self.pages_scrubbed.load(Ordering::Relaxed))
    }

    /// A write or a sync of the database or its write-ahead log failed.
    pub(crate) fn note_unsynced(&self, file: &Path) {
        let _ = self.damage.set(Damage::Unsynced { file: file.display().to_string() });
        crate::unsynced::mark(&self.path);
    }

    pub(crate) fn log_path(&self) -> PathBuf {
        with_suffix(&self.path, "-wal")
    }

    /// Bytes were written to the write-ahead log.
    pub(crate) fn log_written(&self, offset: u64, bytes: &[u8]) {
        let mut frames = self.frames.lock();
        match page_in(offset, bytes) {
            Some((frame, page)) => _ = frames.insert(frame, xxh3_64(page)),
            None if is_header(offset, bytes.len()) => {}
            None => forget(&mut frames, offset, offset + bytes.len() as u64),
        }
    }

    /// The write-ahead log was cut.
    pub(crate) fn log_truncated(&self, len: u64) {
        forget(&mut self.frames.lock(), len, u64::MAX);
    }

    /// Compares what SQLite reads from the write-ahead log with what was written. Whole frames that nobody here wrote come
    /// from an earlier process: SQLite reads them once, checks them itself, and they are remembered.
    pub(crate) fn check_log(&self, offset: u64, bytes: &[u8]) -> bool {
        let Some((frame, page)) = page_in(offset, bytes) else { return true };
        let sum = xxh3_64(page);
        let mut frames = self.frames.lock();
        let sound = match frames.get(&frame) {
            Some(written) => *written == sum,
            None if bytes.len() as u64 == FRAME_BYTES => frames.insert(frame, sum).is_none(),
            None => false,
        };
        if !sound {
            let file = self.log_path().display().to_string();
            let _ = self.damage.set(Damage::Page { file, number: frame + 1 });
        }
        sound
    }
}

/// A path with a suffix at its end.
pub(crate) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// The number of the frame whose page these bytes are or end with, and the page.
fn page_in(offset: u64, bytes: &[u8]) -> Option<(u64, &[u8])> {
    let at = offset.checked_sub(LOG_HEADER_BYTES)?;
    let (frame, within) = (at / FRAME_BYTES, at % FRAME_BYTES);
    match bytes.len() as u64 {
        FRAME_BYTES if within == 0 => Some((frame, &bytes[FRAME_HEADER_BYTES as usize..])),
        len if len == PAGE_BYTES as u64 && within == FRAME_HEADER_BYTES => Some((frame, bytes)),
        _ => None,
    }
}

fn is_header(offset: u64, len: usize) -> bool {
    let at_frame = offset.checked_sub(LOG_HEADER_BYTES).is_some_and(|at| at % FRAME_BYTES == 0);
    offset == 0 && len as u64 == LOG_HEADER_BYTES || at_frame && len as u64 == FRAME_HEADER_BYTES
}

/// Forgets the frames that overlap bytes `from..to` of the file.
fn forget(frames: &mut BTreeMap<u64, u64>, from: u64, to: u64) {
    let number = |offset: u64| offset.saturating_sub(LOG_HEADER_BYTES) / FRAME_BYTES;
    let gone: Vec<u64> = frames.range(number(from)..=number(to)).map(|(frame, _)| *frame).collect();
    gone.iter().for_each(|frame| _ = frames.remove(frame));
}
