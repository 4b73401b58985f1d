//! A log on a local disk: one file of the store while it waits to be pushed. It only grows, so that what it said earlier can be read while
//! more is written, and a crash takes nothing that was acknowledged.

use super::overlay::{Overlay, Piece};
use super::record::{HEADER_BYTES, Header, Kind, MAX_PAYLOAD_BYTES};
use super::replay::{Begun, Replayed};
use std::fs::File;
use std::io::{self, IoSlice};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use thiserror::Error;

/// Logs at a time.
const MAX_LOGS: u64 = 256;
/// Records that go to the disk in one call.
const RECORDS_AT_ONCE: usize = 32;

/// What a log cannot do.
#[derive(Debug, Error)]
pub enum LogError {
    /// The spool has no room for it.
    #[error("the spool is full ({used_bytes} of {limit_bytes} bytes)")]
    Full {
        /// Bytes of all logs.
        used_bytes: u64,
        /// Bytes they may have.
        limit_bytes: u64,
    },
    /// Each log is an open file.
    #[error("{MAX_LOGS} files wait in the spool")]
    TooMany,
    /// The local disk failed.
    #[error("{path}: {error}")]
    Disk {
        /// The log.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// What is read is not what was written.
    #[error("{path}: the record at {position} is not what was written")]
    Damaged {
        /// The log.
        path: PathBuf,
        /// Where in it.
        position: u64,
    },
}

/// Bytes that all logs of a spool have, and may have.
#[derive(Debug)]
pub struct Room {
    used: AtomicU64,
    logs: AtomicU64,
    limit_bytes: u64,
}

impl Room {
    /// Nothing is used.
    pub fn new(limit_bytes: u64) -> Room {
        Room { used: AtomicU64::new(0), logs: AtomicU64::new(0), limit_bytes }
    }

    /// Bytes used.
    pub fn used_bytes(&self) -> u64 {
        self.used.load(Ordering::Acquire)
    }

    /// Bytes there may be.
    pub fn limit_bytes(&self) -> u64 {
        self.limit_bytes
    }

    /// Takes so many bytes.
    ///
    /// # Errors
    /// There is not so much room.
    pub fn take(&self, bytes: u64) -> Result<(), LogError> {
        let fits = |used: u64| used.checked_add(bytes).filter(|sum| *sum <= self.limit_bytes);
        let taken = self.used.fetch_update(Ordering::AcqRel, Ordering::Acquire, fits);
        taken.map(drop).map_err(|used_bytes| LogError::Full { used_bytes, limit_bytes: self.limit_bytes })
    }

    fn take_log(&self) -> Result<(), LogError> {
        let taken = self.logs.fetch_update(Ordering::AcqRel, Ordering::Acquire, |n| (n < MAX_LOGS).then_some(n + 1));
        taken.map(drop).map_err(|_| LogError::TooMany)
    }

    /// What was there before is there, whether it fits or not.
    fn found(&self, bytes: u64) {
        self.logs.fetch_add(1, Ordering::AcqRel);
        self.used.fetch_add(bytes, Ordering::AcqRel);
    }

    /// Gives them back.
    pub fn give_back(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Ordering::AcqRel);
    }
}

/// The file; what was written once stays as it is. Its room is given back when nobody has it open any more.
#[derive(Debug)]
pub struct LogFile {
    file: File,
    path: PathBuf,
    number: u64,
    room: Arc<Room>,
    bytes: AtomicU64,
}

impl Drop for LogFile {
    fn drop(&mut self) {
        self.room.logs.fetch_sub(1, Ordering::AcqRel);
        self.room.give_back(self.bytes.load(Ordering::Acquire));
    }
}

impl LogFile {
    fn disk(&self, error: io::Error) -> LogError {
        LogError::Disk { path: self.path.clone(), error }
    }

    /// Reads a piece, and checks the record that it is of (P2).
    ///
    /// # Errors
    /// The disk's, and that it is not what was written.
    pub fn read(&self, piece: &Piece, out: &mut [u8]) -> Result<(), LogError> {
        let damaged = || LogError::Damaged { path: self.path.clone(), position: piece.record };
        let mut header = [0; HEADER_BYTES];
        self.file.read_exact_at(&mut header, piece.record).map_err(|e| self.disk(e))?;
        let header = Header::decode(&header, self.number, piece.record).ok_or_else(damaged)?;
        let mut payload = vec![0; header.len_bytes as usize];
        self.file.read_exact_at(&mut payload, piece.record + HEADER_BYTES as u64).map_err(|e| self.disk(e))?;
        let skip = piece.skip_bytes as usize;
        let wanted = payload.get(skip..skip + piece.len_bytes as usize).ok_or_else(damaged)?;
        if !header.fits(&payload) {
            return Err(damaged());
        }
        out.copy_from_slice(wanted);
        Ok(())
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// What a log says at some moment.
#[derive(Debug, Clone)]
pub struct View {
    /// Whose file it is.
    pub begun: Begun,
    /// The file.
    pub overlay: Overlay,
    /// Modification time, ns since 1970.
    pub mtime_ns: i64,
    /// Where the log ended.
    end: u64,
    /// Where the record of the last closing ended.
    closed_end: u64,
    /// Where the bytes are.
    pub file: Arc<LogFile>,
}

impl View {
    /// Reads at `offset`, over what `out` holds of the version below.
    ///
    /// # Errors
    /// The log's.
    pub fn read_over(&self, offset: u64, out: &mut [u8]) -> Result<(), LogError> {
        for piece in self.overlay.pieces(offset..offset + out.len() as u64) {
            let at = (piece.offset - offset) as usize;
            self.file.read(&piece, &mut out[at..at + piece.len_bytes as usize])?;
        }
        Ok(())
    }
}

/// A log that is written.
#[derive(Debug)]
pub struct Log {
    file: Arc<LogFile>,
    begun: Begun,
    overlay: Overlay,
    end: u64,
    /// Where the record of the last closing ends.
    closed_end: u64,
    /// The modification time at the last closing, if nothing was written since.
    closed: Option<i64>,
    /// Something in it was acknowledged and is in no version.
    owes: bool,
    /// Its name is durable.
    named: bool,
}

impl Log {
    /// A new one in `dir`.
    ///
    /// # Errors
    /// No room, and the disk's.
    pub fn create(dir: &Path, number: u64, room: Arc<Room>, begun: Begun) -> Result<Log, LogError> {
        let path = dir.join(format!("{:016x}-{number:016x}.{EXTENSION}", begun.ino));
        room.take_log()?;
        let file = File::options().read(true).write(true).create_new(true).mode(0o600).open(&path);
        let file = file.map_err(|error| {
            room.logs.fetch_sub(1, Ordering::AcqRel);
            LogError::Disk { path: path.clone(), error }
        })?;
        let file = Arc::new(LogFile { file, path, number, room, bytes: AtomicU64::new(0) });
        let overlay = Overlay::new(begun.base_bytes);
        let mut log = Log { file, begun, overlay, end: 0, closed_end: 0, closed: None, owes: false, named: false };
        let first = log.begun.encode();
        match log.append(&[(Kind::Begin, number, &first)]) {
            Ok(()) => Ok(log),
            Err(error) => {
                log.remove();
                Err(error)
            }
        }
    }

    /// One that was left behind; what is behind its end is cut off.
    ///
    /// # Errors
    /// The disk's.
    pub fn adopt(path: PathBuf, file: File, room: Arc<Room>, found: Replayed) -> Result<Log, LogError> {
        let Replayed { log, begun, overlay, mtime_ns, end, cut_bytes: _ } = found;
        file.set_len(end).map_err(|error| LogError::Disk { path: path.clone(), error })?;
        room.found(end);
        let file = Arc::new(LogFile { file, path, number: log, room, bytes: AtomicU64::new(end) });
        let closed = Some(mtime_ns);
        let mut log = Log { file, begun, overlay, end, closed_end: end, closed, owes: true, named: true };
        // What is cut off may have said so; it covers no closing.
        log.append(&[(Kind::Stored, log.begun.base_version, &0u64.to_le_bytes())])?;
        Ok(log)
    }

    /// The file as the log has it now.
    pub fn view(&self) -> View {
        View {
            begun: self.begun.clone(),
            overlay: self.overlay.clone(),
            mtime_ns: self.closed.unwrap_or_default(),
            end: self.end,
            closed_end: self.closed_end,
            file: self.file.clone(),
        }
    }

    /// As [`Log::view`], of some bytes only.
    pub fn view_of(&self, offset: u64, len_bytes: u64) -> (Vec<Piece>, Arc<LogFile>) {
        (self.overlay.pieces(offset..offset + len_bytes).collect(), self.file.clone())
    }

    /// Length of the file.
    pub fn size_bytes(&self) -> u64 {
        self.overlay.size_bytes()
    }

    /// See [`Overlay::kept_bytes`].
    pub fn kept_bytes(&self) -> u64 {
        self.overlay.kept_bytes()
    }

    /// Bytes of the log.
    pub fn len_bytes(&self) -> u64 {
        self.end
    }

    /// The modification time at the last closing, if nothing was written since.
    pub fn closed(&self) -> Option<i64> {
        self.closed
    }

    /// Whether something in it was acknowledged and is in no version.
    pub fn owes(&self) -> bool {
        self.owes
    }

    /// Writes.
    ///
    /// # Errors
    /// No room, and the disk's; the log is as it was then.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), LogError> {
        let at = self.end;
        let records: Vec<(Kind, u64, &[u8])> = bytes
            .chunks(MAX_PAYLOAD_BYTES)
            .zip((offset..).step_by(MAX_PAYLOAD_BYTES))
            .map(|(bytes, offset)| (Kind::Write, offset, bytes))
            .collect();
        self.append(&records)?;
        self.overlay.write(offset, bytes.len() as u64, at);
        self.closed = None;
        Ok(())
    }

    /// Changes the length.
    ///
    /// # Errors
    /// As [`Log::write`].
    pub fn set_len(&mut self, size_bytes: u64) -> Result<(), LogError> {
        self.append(&[(Kind::Length, size_bytes, &[])])?;
        self.overlay.set_len(size_bytes);
        self.closed = None;
        Ok(())
    }

    /// The file is closed: what was written is found again after a crash of this process; with `sync`, after one of the machine.
    ///
    /// # Errors
    /// As [`Log::write`]; after one of the disk nothing in the log may be taken for acknowledged.
    pub fn close(&mut self, mtime_ns: i64, sync: bool) -> Result<(), LogError> {
        if self.closed != Some(mtime_ns) {
            let size_bytes = self.size_bytes().to_le_bytes();
            self.append(&[(Kind::Closed, mtime_ns as u64, &size_bytes)])?;
            (self.closed, self.closed_end, self.owes) = (Some(mtime_ns), self.end, true);
        }
        if sync {
            self.file.file.sync_data().map_err(|e| self.file.disk(e))?;
            if !self.named {
                let directory = self.file.path.parent().map_or_else(|| File::open("."), File::open);
                directory.and_then(|dir| dir.sync_all()).map_err(|e| self.file.disk(e))?;
                self.named = true;
            }
        }
        Ok(())
    }

    /// The store has `version`, which is what the log said in `view`. Whether that is all.
    pub fn stored(&mut self, version: u64, view: &View) -> bool {
        self.begun.base_version = version;
        if self.is(view) {
            return true;
        }
        self.owes &= view.closed_end != self.closed_end;
        // Without the record the next mount pushes once more what is there.
        if let Err(error) = self.append(&[(Kind::Stored, version, &view.closed_end.to_le_bytes())]) {
            tracing::warn!(%error, "a log does not say what was pushed of it");
        }
        false
    }

    /// Whether nothing was added since.
    pub fn is(&self, view: &View) -> bool {
        self.file.number == view.file.number && self.end == view.end
    }

    /// Whether the view is one of this log.
    pub fn gave(&self, view: &View) -> bool {
        self.file.number == view.file.number
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// The version it is written over; 0: none.
    pub fn base_version(&self) -> u64 {
        self.begun.base_version
    }

    /// Gives it a name that no mount takes for a log; that.
    pub fn set_aside(self) -> PathBuf {
        let aside = self.path().with_extension(super::EXTENSION_DAMAGED);
        if let Err(error) = std::fs::rename(self.path(), &aside) {
            tracing::warn!(path = %self.path().display(), %error, "a log cannot be set aside");
        }
        aside
    }

    /// Removes it.
    pub fn remove(self) {
        if let Err(error) = std::fs::remove_file(&self.file.path) {
            tracing::warn!(path = %self.file.path.display(), %error, "a log that is done with cannot be removed");
        }
    }

    fn append(&mut self, records: &[(Kind, u64, &[u8])]) -> Result<(), LogError> {
        let bytes = records.iter().map(|(_, _, payload)| (HEADER_BYTES + payload.len()) as u64).sum();
        self.file.room.take(bytes)?;
        let mut end = self.end;
        let done = records.chunks(RECORDS_AT_ONCE).try_for_each(|records| {
            let mut headers = Vec::with_capacity(records.len());
            let start = end;
            for (kind, value, payload) in records {
                let header = Header::new(*kind, *value, payload);
                headers.push(header.encode(self.file.number, end));
                end += header.record_bytes();
            }
            let parts = headers.iter().zip(records).flat_map(|(header, (_, _, payload))| [&header[..], payload]);
            write_all_at(&self.file.file, parts.map(IoSlice::new).collect(), start)
        });
        match done {
            Ok(()) => {
                self.file.bytes.fetch_add(bytes, Ordering::AcqRel);
                self.end = end;
                Ok(())
            }
            Err(error) => {
                self.file.room.give_back(bytes);
                Err(self.file.disk(error))
            }
        }
    }
}

/// Logs' names end in this.
pub const EXTENSION: &str = "spool";

fn write_all_at(file: &File, mut parts: Vec<IoSlice<'_>>, mut position: u64) -> io::Result<()> {
    let mut parts = &mut parts[..];
    IoSlice::advance_slices(&mut parts, 0);
    while !parts.is_empty() {
        match rustix::io::pwritev(file, parts, position) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => {
                position += written as u64;
                IoSlice::advance_slices(&mut parts, written);
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
