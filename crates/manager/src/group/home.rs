//! Where a manager's database lives, and how snapshots are made from it and become it.

use super::GroupError;
use crate::db::{Db, DirLock, FILE_NAME};
use parking_lot::Mutex;
use rusqlite::InterruptHandle;
use std::io::{Error as IoError, ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tessera_consensus::log::snapshot::{SnapshotFiles, seal};
use tessera_consensus::log::{Log, LogError};
use tessera_disk::{Disk, OpenMode};
use tessera_wire::consensus::SnapshotInfo;

/// Bytes of a snapshot read at a time.
const PIECE_BYTES: u32 = 1 << 20;

/// The place of the database.
#[derive(Debug, Clone)]
pub enum DbHome {
    /// In memory: simulations and tests.
    Memory,
    /// In a directory, whose lock keeps other managers out. The log's disk is this directory.
    Dir {
        /// The directory.
        dir: PathBuf,
        /// Its lock.
        lock: DirLock,
    },
}

/// Work on a snapshot that takes long: whoever gets it runs it beside the manager and passes the result to
/// [`Manager::snapshot_done`](super::Manager::snapshot_done).
#[derive(Debug)]
pub struct SnapshotJob {
    step: Step,
    stop: SnapshotStop,
}

/// Ends a [`SnapshotJob`] that runs.
#[derive(Clone, Default)]
pub struct SnapshotStop(Arc<Mutex<Option<InterruptHandle>>>);

impl SnapshotStop {
    /// Interrupts the copy, if one is under way. One that is about to begin does not notice.
    pub fn interrupt(&self) {
        if let Some(handle) = &*self.0.lock() {
            handle.interrupt();
        }
    }
}

impl std::fmt::Debug for SnapshotStop {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SnapshotStop")
    }
}

#[allow(clippy::large_enum_variant, reason = "there is one at a time")]
enum Step {
    Copy { from: PathBuf, to: PathBuf },
    Seal { disk: Arc<dyn Disk>, dir: String, part: String, info: SnapshotInfo },
}

impl std::fmt::Debug for Step {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Step::Copy { from, to } => write!(f, "copy {} to {}", from.display(), to.display()),
            Step::Seal { part, .. } => write!(f, "seal {part}"),
        }
    }
}

/// What a [`SnapshotJob`] did.
#[derive(Debug)]
pub enum SnapshotDone {
    /// The database is copied, with the state after this entry.
    Copied(u64),
    /// The snapshot is whole.
    Sealed(SnapshotInfo),
}

impl SnapshotJob {
    pub(super) fn copy(dir: &Path, files: &SnapshotFiles) -> SnapshotJob {
        SnapshotJob::of(Step::Copy { from: dir.join(FILE_NAME), to: dir.join(files.part()) })
    }

    pub(super) fn seal(log: &Log, files: &SnapshotFiles, info: SnapshotInfo) -> SnapshotJob {
        SnapshotJob::of(Step::Seal { disk: log.disk().clone(), dir: log.dir().to_string(), part: files.part(), info })
    }

    fn of(step: Step) -> SnapshotJob {
        SnapshotJob { step, stop: SnapshotStop::default() }
    }

    /// What ends it before it is done.
    #[must_use]
    pub fn stop(&self) -> SnapshotStop {
        self.stop.clone()
    }

    /// Does the work.
    ///
    /// # Errors
    /// The database or the disk fails.
    pub fn run(self) -> Result<SnapshotDone, GroupError> {
        match self.step {
            Step::Copy { from, to } => {
                remove(&to)?;
                let copied = Db::copy_of(&from, &to, |handle| *self.stop.0.lock() = Some(handle));
                if copied.is_err() {
                    // A copy for which there was no room must not keep the log from growing.
                    remove(&to)?;
                }
                Ok(SnapshotDone::Copied(copied?.log_seq))
            }
            Step::Seal { disk, dir, part, info } => Ok(SnapshotDone::Sealed(seal(&*disk, &dir, &part, info)?)),
        }
    }
}

/// Removes a copy, and what SQLite keeps beside it.
fn remove(copy: &Path) -> Result<(), GroupError> {
    for left in [copy.to_path_buf(), PathBuf::from(format!("{}-journal", copy.display()))] {
        match std::fs::remove_file(&left) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(GroupError::File { path: left.display().to_string(), source: error });
            }
            _ => {}
        }
    }
    Ok(())
}

impl DbHome {
    /// Replaces the database by the content of a snapshot.
    pub(super) fn restore(
        &self,
        old: Option<Db>,
        files: &SnapshotFiles,
        info: &SnapshotInfo,
    ) -> Result<Db, GroupError> {
        let mut content = Content { files, info, at: 0, hasher: blake3::Hasher::new() };
        match self {
            DbHome::Memory => {
                let mut image = Vec::with_capacity(info.len_bytes as usize);
                let path = || "a snapshot".to_string();
                content.read_to_end(&mut image).map_err(|source| GroupError::File { path: path(), source })?;
                Ok(Db::from_image(&image)?)
            }
            DbHome::Dir { dir, lock } => {
                old.map(Db::close).transpose()?;
                let db = Db::replace(dir, lock.clone(), &mut content)?;
                db.rely_on_log()?;
                Ok(db)
            }
        }
    }

    /// Makes a snapshot of the database at once.
    pub(super) fn make_snapshot(
        &self,
        db: &mut Db,
        log: &Log,
        files: &SnapshotFiles,
        info: SnapshotInfo,
    ) -> Result<SnapshotInfo, GroupError> {
        match self {
            DbHome::Memory => {
                let image = db.image()?;
                let file = log.disk().open(&files.part(), OpenMode::Create).map_err(LogError::from)?;
                file.truncate(0).and_then(|()| file.write_at(0, &image)).map_err(LogError::from)?;
            }
            DbHome::Dir { dir, .. } => _ = SnapshotJob::copy(dir, files).run()?,
        }
        Ok(seal(&**log.disk(), log.dir(), &files.part(), info)?)
    }
}

/// Reads the content of the snapshot held, and compares its hash at the end.
struct Content<'a> {
    files: &'a SnapshotFiles,
    info: &'a SnapshotInfo,
    at: u64,
    hasher: blake3::Hasher,
}

impl Read for Content<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if self.at == self.info.len_bytes {
            let is_whole = self.hasher.finalize().as_bytes()[..] == self.info.hash[..];
            let damaged = || IoError::new(ErrorKind::InvalidData, "the snapshot's content does not have its hash");
            return if is_whole { Ok(0) } else { Err(damaged()) };
        }
        let max_bytes = PIECE_BYTES.min(u32::try_from(buffer.len()).unwrap_or(PIECE_BYTES));
        let piece = self.files.read(self.info.index, &self.info.hash, self.at, max_bytes).map_err(IoError::other)?;
        assert!(!piece.is_empty() || buffer.is_empty(), "a snapshot is as long as it says");
        buffer[..piece.len()].copy_from_slice(&piece);
        self.hasher.update(&piece);
        self.at += piece.len() as u64;
        Ok(piece.len())
    }
}
