//! Where a manager's database lives, and how snapshots are made from it and become it.

use super::GroupError;
use crate::db::readers::DbReaders;
use crate::db::{Db, DirLock};
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
        /// Opens further connections.
        readers: DbReaders,
    },
}

/// Work on a snapshot that takes long: whoever gets it runs it beside the manager and passes the result to
/// [`Manager::snapshot_done`](super::Manager::snapshot_done).
#[derive(Debug)]
pub struct SnapshotJob(Step);

#[allow(clippy::large_enum_variant, reason = "there is one at a time")]
enum Step {
    Copy { from: DbReaders, to: PathBuf },
    Seal { disk: Arc<dyn Disk>, dir: String, part: String, info: SnapshotInfo },
}

impl std::fmt::Debug for Step {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Step::Copy { from, to } => write!(f, "copy {from:?} to {}", to.display()),
            Step::Seal { part, .. } => write!(f, "seal {part}"),
        }
    }
}

/// What a [`SnapshotJob`] did.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "there is one at a time")]
pub enum SnapshotDone {
    /// The database is copied, with the state after this entry.
    Copied(u64),
    /// The snapshot is whole.
    Sealed(SnapshotInfo),
}

impl SnapshotJob {
    pub(super) fn copy(from: &DbReaders, dir: &Path, files: &SnapshotFiles) -> SnapshotJob {
        SnapshotJob(Step::Copy { from: from.clone(), to: dir.join(files.part()) })
    }

    pub(super) fn seal(log: &Log, files: &SnapshotFiles, info: SnapshotInfo) -> SnapshotJob {
        SnapshotJob(Step::Seal { disk: log.disk().clone(), dir: log.dir().to_string(), part: files.part(), info })
    }

    /// Does the work.
    ///
    /// # Errors
    /// The database or the disk fails.
    pub fn run(self) -> Result<SnapshotDone, GroupError> {
        match self.0 {
            Step::Copy { from, to } => {
                remove(&to)?;
                let copied = from.with(|db| db.copy_to(&to));
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
    /// A directory that the caller has locked.
    #[must_use]
    pub fn in_dir(dir: &Path, lock: DirLock) -> DbHome {
        DbHome::Dir { dir: dir.to_path_buf(), lock, readers: DbReaders::new(dir) }
    }

    /// The entry after which the database was found to differ from those of the other managers, if it was.
    pub(super) fn differs_since(&self) -> Result<Option<u64>, GroupError> {
        match self {
            DbHome::Memory => Ok(None),
            DbHome::Dir { dir, .. } => Ok(Db::differs_since(dir)?),
        }
    }

    /// The database is right, whatever was found before.
    pub(super) fn forget_difference(&self) -> Result<(), GroupError> {
        match self {
            DbHome::Memory => Ok(()),
            DbHome::Dir { dir, .. } => Ok(Db::forget_difference(dir)?),
        }
    }

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
            DbHome::Dir { dir, lock, readers } => {
                let _closed = readers.close();
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
            DbHome::Dir { dir, readers, .. } => _ = SnapshotJob::copy(readers, dir, files).run()?,
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
