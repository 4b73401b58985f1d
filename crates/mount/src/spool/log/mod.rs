//! A log on a local disk: one file of the store while it waits to be pushed. It only grows, so that earlier states can
//! be read while more is written, and a crash loses nothing that was acknowledged.

use super::budget::{Budget, BudgetError};
use super::logfile::{LogFile, View};
use super::overlay::{LogSlice, Overlay};
use super::record::{HEADER_BYTES, Header, Kind, MAX_PAYLOAD_BYTES};
use super::replay::{LogOrigin, PendingPush, ReplayedLog};
use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tessera_client::Times;
use tessera_disk::{Disk, DiskError, DiskFile, OpenMode};
use tessera_failpoint as failpoint;
use tessera_wire::meta::CONTENT_DRAWN;
use thiserror::Error;

/// Records written in one call.
const RECORDS_AT_ONCE: usize = 32;

/// Why an operation on a log failed.
#[derive(Debug, Error)]
pub enum LogError {
    /// The spool is full.
    #[error(transparent)]
    Budget(#[from] BudgetError),
    /// The local disk failed.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// A record read back does not match its checksum.
    #[error("{path}: the record at {position} is not what was written")]
    Damaged {
        /// The log.
        path: String,
        /// Position of the record in the log.
        position: u64,
    },
}

/// A log that can be written.
pub struct Log {
    pub file: Arc<LogFile>,
    /// With the version below the log.
    pub origin: LogOrigin,
    overlay: Overlay,
    end: u64,
    /// End of the last record that changes the file's bytes.
    bytes_end: u64,
    /// End of the record of the last close.
    closed_end: u64,
    /// Times of the last close, if nothing was written since.
    closed: Option<Times>,
    /// Something acknowledged is in no version.
    owes: bool,
    /// The version below has what the records before this position changed.
    stored_end: u64,
    /// Pushes of acknowledged states that the store may have, without the log saying so.
    pushes: Vec<PendingPush>,
    /// A durable state of the file ends here; none: not even the log's name is durable.
    durable_end: Option<u64>,
}

impl Log {
    /// Creates a log on `disk`.
    ///
    /// # Errors
    /// No budget is left, or the disk failed.
    pub fn create(disk: Arc<dyn Disk>, number: u64, budget: Arc<Budget>, origin: LogOrigin) -> Result<Log, LogError> {
        let path = format!("{:016x}-{number:016x}.{EXTENSION}", origin.ino);
        budget.reserve_log()?;
        let file = disk.open(&path, OpenMode::CreateNew).inspect_err(|_| budget.release_log(0))?;
        let overlay = Overlay::new(origin.base_bytes);
        let mut log = Log::new(LogFile::new(disk, file, number, budget), origin, overlay, 0);
        let first = log.origin.encode();
        match log.append(&[(Kind::Begin, number, &first)]) {
            Ok(()) => Ok(log),
            Err(error) => {
                log.remove();
                Err(error)
            }
        }
    }

    fn new(file: LogFile, origin: LogOrigin, overlay: Overlay, end: u64) -> Log {
        Log {
            file: Arc::new(file),
            origin,
            overlay,
            end,
            bytes_end: end,
            closed_end: end,
            closed: None,
            owes: false,
            stored_end: 0,
            pushes: Vec::new(),
            durable_end: None,
        }
    }

    /// Adopts a log that an earlier mount left, and cuts off what follows its acknowledged part.
    ///
    /// # Errors
    /// The disk's error.
    pub fn adopt(
        disk: Arc<dyn Disk>,
        file: Arc<dyn DiskFile>,
        budget: Arc<Budget>,
        found: ReplayedLog,
    ) -> Result<Log, LogError> {
        let ReplayedLog { log, origin, overlay, times, pushes, bytes_end, stored_end, end, records, cut_bytes: _ } =
            found;
        budget.adopt_log(end, records);
        let file = LogFile::new(disk, file, log, budget);
        file.bytes.store(end, Ordering::Release);
        file.records.store(records, Ordering::Release);
        let mut log = Log::new(file, origin, overlay, end);
        (log.bytes_end, log.stored_end) = (bytes_end, stored_end);
        // The last close may be durable; later writes must not damage it.
        (log.closed, log.owes, log.durable_end) = (Some(times), true, Some(0));
        // The tail that is cut off may hold this `Stored` record. This one replaces it before the cut, and cancels the
        // same pushes: their records are before the cut.
        log.append_stored(stored_end);
        for push in pushes {
            log.append_push(push);
        }
        log.file.file.truncate(log.end)?;
        Ok(log)
    }

    /// The file as the log describes it now.
    pub fn view(&self) -> View {
        View {
            origin: self.origin.clone(),
            overlay: self.overlay.clone(),
            times: self.closed.unwrap_or_default(),
            bytes_end: self.bytes_end,
            closed_end: self.closed_end,
            stored_end: self.stored_end,
            file: self.file.clone(),
        }
    }

    /// The slices of a range of the file, and the file that holds them.
    pub fn view_of(&self, offset: u64, len_bytes: u64) -> (Vec<LogSlice>, Arc<LogFile>) {
        (self.overlay.slices(offset..offset + len_bytes).collect(), self.file.clone())
    }

    /// Length of the file.
    pub fn size_bytes(&self) -> u64 {
        self.overlay.size_bytes()
    }

    /// See [`Overlay::kept_bytes`].
    pub fn kept_bytes(&self) -> u64 {
        self.overlay.kept_bytes()
    }

    /// Offset behind the bytes from `from` on that are those of the version below.
    pub fn kept_until(&self, from: u64) -> u64 {
        let written = self.overlay.slices(from..u64::MAX).next();
        written.map_or(u64::MAX, |slice| slice.offset).min(self.kept_bytes())
    }

    /// Bytes that may not be on the disk yet.
    pub fn unsynced_bytes(&self) -> u64 {
        self.end - self.durable_end.unwrap_or_default()
    }

    /// Times of the last close, if nothing was written since.
    pub fn closed(&self) -> Option<Times> {
        self.closed
    }

    /// Whether something acknowledged is in no version.
    pub fn owes(&self) -> bool {
        self.owes
    }

    /// The version below has what the records before this position changed.
    pub fn stored_end(&self) -> u64 {
        self.stored_end
    }

    /// Writes bytes at `offset`.
    ///
    /// # Errors
    /// No budget is left, or the disk failed; the log is then unchanged.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), LogError> {
        if bytes.is_empty() {
            return Ok(());
        }
        let at = self.end;
        let records: Vec<(Kind, u64, &[u8])> = bytes
            .chunks(MAX_PAYLOAD_BYTES)
            .zip((offset..).step_by(MAX_PAYLOAD_BYTES))
            .map(|(bytes, offset)| (Kind::Write, offset, bytes))
            .collect();
        self.append(&records)?;
        self.overlay.write(offset, bytes.len() as u64, at);
        (self.closed, self.bytes_end) = (None, self.end);
        Ok(())
    }

    /// Makes the file at least so long, by a write of no bytes.
    ///
    /// # Errors
    /// As [`Log::write`].
    pub fn extend(&mut self, size_bytes: u64) -> Result<(), LogError> {
        let record = self.end;
        self.append(&[(Kind::Write, size_bytes, &[])])?;
        self.overlay.write(size_bytes, 0, record);
        (self.closed, self.bytes_end) = (None, self.end);
        Ok(())
    }

    /// Sets the length.
    ///
    /// # Errors
    /// As [`Log::write`].
    pub fn set_len(&mut self, size_bytes: u64) -> Result<(), LogError> {
        let record = self.end;
        self.append(&[(Kind::Length, size_bytes, &[])])?;
        self.overlay.set_len(size_bytes, record);
        (self.closed, self.bytes_end) = (None, self.end);
        Ok(())
    }

    /// The file was closed. The state survives a crash of this process; with `sync`, also a crash of the machine.
    ///
    /// # Errors
    /// As [`Log::write`]. After an error of the disk, nothing counts as acknowledged that did not before.
    pub fn close(&mut self, times: Times, sync: bool) -> Result<(), LogError> {
        if self.closed != Some(times) {
            // A disk that loses power may keep any part of its unsynced bytes. If it kept this close's record without
            // the bytes before it, the log would be damaged, and with it the state that is durable now. So sync those
            // bytes first.
            if self.durable_end.is_some_and(|end| end < self.end) {
                self.sync()?;
            }
            let numbers = [self.size_bytes(), times.ctime_ns as u64].map(u64::to_le_bytes);
            self.append(&[(Kind::Closed, times.mtime_ns as u64, numbers.as_flattened())])?;
            (self.closed, self.closed_end, self.owes) = (Some(times), self.end, true);
        }
        if sync && !failpoint::is_active("mount.log_close_not_synced") { self.sync() } else { Ok(()) }
    }

    fn sync(&mut self) -> Result<(), LogError> {
        self.file.sync()?;
        if self.durable_end.is_none() {
            self.file.sync_name()?;
        }
        self.durable_end = Some(self.end);
        Ok(())
    }

    /// The store has the state of `view` as `version`, whose content is named `content`. Returns whether that is the
    /// whole log.
    pub fn stored(&mut self, version: u64, content: u64, view: &View) -> bool {
        (self.origin.base_version, self.origin.base_content) = (version, content);
        self.pushes.retain(|push| push.closed_end > view.closed_end);
        if self.is(view) {
            return true;
        }
        self.owes &= view.closed_end != self.closed_end;
        self.stored_end = view.bytes_end;
        self.append_stored(view.closed_end);
        false
    }

    /// The content of the version below was rewritten as `version`.
    pub fn rebase(&mut self, version: u64) {
        self.origin.base_version = version;
        self.append_stored(0);
    }

    /// The last close in `view` is about to be committed, perhaps with later writes. Logs a name for the content, made
    /// of the random number `drawn`, by which this mount and the next recognise the version.
    pub fn is_pushed(&mut self, view: &View, drawn: u64) -> u64 {
        let content = (drawn % CONTENT_DRAWN) | CONTENT_DRAWN;
        self.append_push(PendingPush { content, closed_end: view.closed_end });
        content
    }

    /// End of the record of the close that was pushed under this content name.
    pub fn pushed_as(&self, content: u64) -> Option<u64> {
        self.pushes.iter().find(|push| push.content == content).map(|push| push.closed_end)
    }

    /// Ignores the budget: without this record the next mount takes the version for another client's.
    fn append_stored(&mut self, closed_end: u64) {
        let LogOrigin { base_version, base_content, .. } = self.origin;
        let [mut payload, content] = [closed_end, base_content].map(|number| number.to_le_bytes().to_vec());
        payload.extend(content);
        self.append_anyway((Kind::Stored, base_version, &payload));
    }

    /// As [`Log::append_stored`].
    fn append_push(&mut self, push: PendingPush) {
        self.pushes.push(push);
        self.append_anyway((Kind::Pushed, push.content, &push.closed_end.to_le_bytes()));
    }

    fn append_anyway(&mut self, record: (Kind, u64, &[u8])) {
        self.file.budget.force(bytes_of(&[record]), 1);
        if let Err(error) = self.append_taken(&[record]) {
            tracing::warn!(%error, "a log does not say what was pushed of it");
        }
    }

    /// Whether the log is unchanged since `view`.
    fn is(&self, view: &View) -> bool {
        self.gave(view) && self.bytes_end.max(self.closed_end) == view.bytes_end.max(view.closed_end)
    }

    /// As [`Log::is`], but ignores the modification time.
    pub fn has_bytes_of(&self, view: &View) -> bool {
        self.gave(view) && self.bytes_end == view.bytes_end
    }

    /// Whether `view` is a view of this log.
    pub fn gave(&self, view: &View) -> bool {
        self.file.number == view.file.number
    }

    /// Path of the log on its disk.
    pub fn path(&self) -> &str {
        self.file.path()
    }

    /// Renames the log so that no mount takes it for one. Returns the new path.
    pub fn set_aside(self) -> String {
        let aside = aside(self.path());
        if let Err(error) = self.file.disk.rename(self.path(), &aside) {
            tracing::warn!(path = self.path(), %error, "a log cannot be set aside");
        }
        aside
    }

    /// Removes the log.
    pub fn remove(self) {
        if let Err(error) = self.file.disk.remove(self.path()) {
            tracing::error!(
                path = self.path(),
                %error,
                "a log that is no longer needed cannot be removed; remove it before a mount uses this spool again, which \
                 would keep its old content as a conflict file"
            );
        }
    }

    fn append(&mut self, records: &[(Kind, u64, &[u8])]) -> Result<(), LogError> {
        let budget = &self.file.budget;
        budget.reserve_records(records.len() as u64)?;
        budget.reserve_bytes(bytes_of(records)).inspect_err(|_| budget.release_records(records.len() as u64))?;
        self.append_taken(records)
    }

    /// Appends records that the budget counts already, with their bytes.
    fn append_taken(&mut self, records: &[(Kind, u64, &[u8])]) -> Result<(), LogError> {
        let (bytes, count, mut end) = (bytes_of(records), records.len() as u64, self.end);
        let done = records.chunks(RECORDS_AT_ONCE).try_for_each(|records| {
            let mut headers = Vec::with_capacity(records.len());
            let start = end;
            for (kind, value, payload) in records {
                let header = Header::new(*kind, *value, payload);
                headers.push(header.encode(self.file.number, end));
                end += header.record_bytes();
            }
            let parts = headers.iter().zip(records).flat_map(|(header, (_, _, payload))| [&header[..], payload]);
            self.file.file.write_vectored_at(start, &parts.map(IoSlice::new).collect::<Vec<_>>())
        });
        match done {
            Ok(()) => {
                self.file.bytes.fetch_add(bytes, Ordering::AcqRel);
                self.file.records.fetch_add(count, Ordering::AcqRel);
                self.end = end;
                Ok(())
            }
            Err(error) => {
                self.file.budget.release_bytes(bytes);
                self.file.budget.release_records(count);
                // Cuts off whole records that the failed write left, so that they do not follow later ones. If the file
                // cannot be cut, it has no such record.
                let _ = self.file.file.truncate(self.end);
                Err(error.into())
            }
        }
    }
}

fn bytes_of(records: &[(Kind, u64, &[u8])]) -> u64 {
    records.iter().map(|(_, _, payload)| (HEADER_BYTES + payload.len()) as u64).sum()
}

/// Extension of logs.
pub const EXTENSION: &str = "spool";
/// Extension of logs that cannot be read.
const EXTENSION_DAMAGED: &str = "damaged";

/// The path at which a log that cannot be read is kept.
pub fn aside(path: &str) -> String {
    format!(
        "{}.{EXTENSION_DAMAGED}",
        path.strip_suffix(EXTENSION).and_then(|path| path.strip_suffix('.')).unwrap_or(path)
    )
}

#[cfg(test)]
mod replay_tests;
#[cfg(test)]
mod tests;
