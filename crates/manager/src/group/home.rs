//! Where a manager's database lives, and how snapshots are made from it and become it.

use super::GroupError;
use crate::db::Db;
use tessera_consensus::log::Log;
use tessera_consensus::log::snapshot::{SnapshotFiles, seal};
use tessera_disk::OpenMode;
use tessera_wire::consensus::SnapshotInfo;

/// Bytes of a snapshot read at a time.
const PIECE_BYTES: u32 = 1 << 20;

/// The place of the database.
#[derive(Debug, Clone)]
pub enum DbHome {
    /// In memory: simulations and tests.
    Memory,
}

impl DbHome {
    /// Replaces the database by the content of a snapshot.
    pub(super) fn restore(&self, old: Db, files: &SnapshotFiles, info: &SnapshotInfo) -> Result<Db, GroupError> {
        let mut content = Vec::with_capacity(info.len_bytes as usize);
        while (content.len() as u64) < info.len_bytes {
            let piece = files.read(info.index, &info.hash, content.len() as u64, PIECE_BYTES)?;
            assert!(!piece.is_empty(), "a snapshot is as long as it says");
            content.extend(piece);
        }
        drop(old);
        Ok(Db::from_image(&content)?)
    }

    /// Makes a snapshot of the database.
    pub(super) fn make_snapshot(
        &self,
        db: &mut Db,
        log: &Log,
        files: &SnapshotFiles,
        info: SnapshotInfo,
    ) -> Result<SnapshotInfo, GroupError> {
        let image = db.image()?;
        let part = files.part();
        let file = log.disk().open(&part, OpenMode::Create).map_err(tessera_consensus::log::LogError::from)?;
        let written = file.truncate(0).and_then(|()| file.write_at(0, &image));
        written.map_err(tessera_consensus::log::LogError::from)?;
        Ok(seal(&**log.disk(), log.dir(), &part, info)?)
    }
}
