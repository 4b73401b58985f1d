//! Snapshots of the manager's database. A snapshot arrives in pieces and becomes visible once complete.

use std::sync::Arc;

use tessera_disk::{DiskError, DiskFile, Identity, OpenMode};

use crate::error::LogError;
use crate::format::{FILE_HEADER_BYTES, SNAPSHOT, SnapshotHeader};
use crate::store::{LOG_DIR, LogStore};

tessera_disk::layout! {
    /// Identity of a snapshot.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Snapshot {
        /// Sequence number of the last entry it contains.
        pub seq: u64 = 0,
        /// Term of the entry at `seq`. 0 if the sender does not say; then the entries after `seq` are kept without
        /// comparing terms.
        pub term: u64 = 8,
        /// Length in bytes.
        pub total_bytes: u64 = 16,
        /// BLAKE3-256 of the whole snapshot.
        pub hash: [u8; 32] = 24,
    }
}

/// A snapshot that is being received.
pub(crate) struct Part {
    snapshot: Snapshot,
    file: Arc<dyn DiskFile>,
    have_bytes: u64,
    hasher: blake3::Hasher,
}

pub(crate) fn file_name(snapshot: &Snapshot) -> String {
    format!("{:016x}-{:016x}.snap", snapshot.seq, snapshot.term)
}

fn path(snapshot: &Snapshot) -> String {
    format!("{LOG_DIR}/{}", file_name(snapshot))
}

impl LogStore {
    /// Stores a piece of a snapshot; the piece that reaches `total_bytes` completes it. Pieces arrive in order. A piece
    /// received before is ignored (P8). A piece at offset 0 of another snapshot replaces the unfinished one.
    ///
    /// # Errors
    /// [`LogError`]; the newest complete snapshot is kept.
    pub fn put_snapshot(&mut self, term: u64, snapshot: Snapshot, offset: u64, piece: &[u8]) -> Result<(), LogError> {
        self.observe_term(term)?;
        let seq = snapshot.seq;
        let end = offset.saturating_add(piece.len() as u64);
        if end > snapshot.total_bytes {
            return Err(LogError::PieceLength { seq, end, total_bytes: snapshot.total_bytes });
        }
        if self.snapshot.is_some_and(|s| s.seq > seq || s == snapshot) {
            return Ok(());
        }
        let part = self.part_of(snapshot, offset)?;
        if offset > part.have_bytes {
            return Err(LogError::Piece { seq, offset, expected: part.have_bytes });
        }
        assert!(part.have_bytes <= snapshot.total_bytes, "{} of {} bytes", part.have_bytes, snapshot.total_bytes);
        if end > part.have_bytes {
            let new = &piece[(part.have_bytes - offset) as usize..];
            part.file.write_at(FILE_HEADER_BYTES + part.have_bytes, new)?;
            part.hasher.update(new);
            part.have_bytes = end;
        }
        if part.have_bytes == snapshot.total_bytes { self.complete() } else { Ok(()) }
    }

    /// Reads a piece of the newest complete snapshot, which must be the one at `seq`. The piece is unverified: the
    /// receiver compares the whole with its hash.
    ///
    /// # Errors
    /// [`LogError::NoSnapshot`] if the newest snapshot is another one, or the disk's.
    pub fn read_snapshot(&self, seq: u64, offset: u64, max_bytes: u32) -> Result<Vec<u8>, LogError> {
        let Some(snapshot) = self.snapshot.filter(|s| s.seq == seq) else { return Err(LogError::NoSnapshot { seq }) };
        let len = snapshot.total_bytes.saturating_sub(offset).min(u64::from(max_bytes));
        let mut piece = vec![0; len as usize];
        let file = self.disk.open(&path(&snapshot), OpenMode::Existing)?;
        if len > 0 {
            file.read_at(FILE_HEADER_BYTES + offset, &mut piece)?;
        }
        Ok(piece)
    }

    /// The unfinished snapshot of this piece; begins a new one if the piece is its first.
    fn part_of(&mut self, snapshot: Snapshot, offset: u64) -> Result<&mut Part, LogError> {
        if self.part.as_ref().is_none_or(|part| part.snapshot != snapshot) {
            if offset != 0 {
                return Err(LogError::Piece { seq: snapshot.seq, offset, expected: 0 });
            }
            self.discard_part();
            let file = self.disk.open(&format!("{}.part", path(&snapshot)), OpenMode::Create)?;
            file.truncate(0)?;
            self.part = Some(Part { snapshot, file, have_bytes: 0, hasher: blake3::Hasher::new() });
        }
        // `None` cannot happen: the code above sets it.
        self.part.as_mut().ok_or(LogError::NoSnapshot { seq: snapshot.seq })
    }

    fn discard_part(&mut self) {
        if let Some(part) = self.part.take() {
            // If this fails, the next opening removes the file.
            let _ = self.disk.remove(&format!("{}.part", path(&part.snapshot)));
        }
    }

    /// Verifies the complete snapshot, makes it durable and renames it into place.
    fn complete(&mut self) -> Result<(), LogError> {
        let Some(part) = &self.part else { return Ok(()) };
        let snapshot = part.snapshot;
        if *part.hasher.finalize().as_bytes() != snapshot.hash {
            self.discard_part();
            return Err(LogError::SnapshotHash { seq: snapshot.seq });
        }
        assert!(
            part.have_bytes == snapshot.total_bytes,
            "{} of {} bytes are complete",
            part.have_bytes,
            snapshot.total_bytes
        );
        let Identity { cluster_id, disk_uuid, .. } = self.identity;
        let header = SnapshotHeader { cluster_id, disk_uuid, snapshot };
        part.file.write_at(0, &SNAPSHOT.encode::<{ FILE_HEADER_BYTES as usize }>(&header))?;
        part.file.sync_data()?;
        let to = path(&snapshot);
        self.disk.rename_durable(&format!("{to}.part"), &to)?;
        self.part = None;
        let older = self.snapshot.replace(snapshot);
        self.find_missing();
        self.settle_behind(&snapshot)?;
        if let Some(older) = older.filter(|older| path(older) != to) {
            self.disk.remove(&path(&older))?;
            self.disk.sync_dir(LOG_DIR)?;
        }
        Ok(())
    }

    /// Voids all held entries if the one at the snapshot's position has another term: they are on another branch.
    pub(crate) fn settle_behind(&mut self, snapshot: &Snapshot) -> Result<(), DiskError> {
        let held = self.entries.get(&snapshot.seq).map_or(snapshot.term, |at| at.term);
        if snapshot.term != 0 && held != snapshot.term {
            self.begin_file(1)?;
        }
        Ok(())
    }
}
