//! Snapshots of the database, as files beside the log. A file is its content and then a footer that describes it.
//!
//! The leader's manager makes one ([`SnapshotFiles::part`], [`seal`]); other peers copy it in pieces ([`SnapshotFiles::receive`]).
//! Each holds at most one, and drops entries of its log only if its snapshot contains them.

use super::LogError;
use super::format::crc32c;
use prost::Message;
use std::sync::Arc;
use tessera_disk::{Disk, DiskFile, OpenMode};
use tessera_failpoint as failpoint;
use tessera_wire::consensus::SnapshotInfo;

/// The end of a snapshot file: length of the description, its checksum, and this.
const MAGIC: [u8; 8] = *b"TESSRSNP";
const TAIL_BYTES: u64 = 16;
/// Bytes hashed at a time.
const PIECE_BYTES: usize = 1 << 20;
/// Room that a snapshot leaves free while it is received: the log grows, and deletes need records. Less on a small disk.
const ROOM_BYTES: u64 = 256 << 20;
/// The longest description: five peers need a few hundred bytes.
const INFO_MAX_BYTES: u64 = 1 << 20;

/// The snapshot that a peer holds, and the one that it receives.
pub struct SnapshotFiles {
    disk: Arc<dyn Disk>,
    dir: String,
    held: Option<SnapshotInfo>,
    part: Option<Part>,
}

struct Part {
    info: SnapshotInfo,
    file: Arc<dyn DiskFile>,
    have_bytes: u64,
    hasher: blake3::Hasher,
}

fn file_name(info: &SnapshotInfo) -> String {
    format!("{:016x}-{:016x}.snap", info.index, info.term)
}

impl SnapshotFiles {
    /// Opens the snapshots in `dir`, which exists: keeps the newest whole one and removes all others.
    ///
    /// # Errors
    /// The disk's.
    pub fn open(disk: Arc<dyn Disk>, dir: &str) -> Result<Self, LogError> {
        let mut files = SnapshotFiles { disk, dir: dir.to_string(), held: None, part: None };
        let names = files.disk.list(dir)?;
        let mut found: Vec<(String, SnapshotInfo)> = Vec::new();
        for name in names.iter().filter(|name| name.ends_with(".snap")) {
            let file = files.disk.open(&format!("{dir}/{name}"), OpenMode::Existing)?;
            match read_info(&*file)?.filter(|info| file_name(info) == *name) {
                Some(info) => found.push((name.clone(), info)),
                None => tracing::warn!(name, "a snapshot file is damaged; another peer has it"),
            }
        }
        found.sort_by_key(|(_, info)| (info.index, info.term));
        files.held = found.pop().map(|(_, info)| info);
        let kept = files.held.as_ref().map(file_name);
        for name in names.iter().filter(|name| name.ends_with(".snap") || name.ends_with(".part")) {
            if Some(name) != kept.as_ref() {
                files.disk.remove(&format!("{dir}/{name}"))?;
            }
        }
        Ok(files)
    }

    /// The snapshot held.
    #[must_use]
    pub fn held(&self) -> Option<&SnapshotInfo> {
        self.held.as_ref()
    }

    /// Whether the snapshot held is this one.
    #[must_use]
    pub fn holds(&self, info: &SnapshotInfo) -> bool {
        self.held
            .as_ref()
            .is_some_and(|held| (held.index, held.term, &held.hash) == (info.index, info.term, &info.hash))
    }

    /// Where the maker of a snapshot writes its content, relative to the disk. A file that is there is from a failed attempt.
    #[must_use]
    pub fn part(&self) -> String {
        format!("{}/made.part", self.dir)
    }

    /// Takes over a snapshot that [`seal`] has completed; removes an older one. Removes the new one if a newer is held by now.
    ///
    /// # Errors
    /// The disk's.
    pub fn adopt(&mut self, info: SnapshotInfo) -> Result<(), LogError> {
        if self.held.as_ref().is_some_and(|held| held.index > info.index) {
            self.disk.remove(&self.path(&info))?;
            return Ok(self.disk.sync_dir(&self.dir)?);
        }
        let own_name = file_name(&info);
        // Another snapshot of the same entry has replaced the file.
        let older = self.held.replace(info).filter(|older| file_name(older) != own_name);
        if let Some(older) = older {
            self.disk.remove(&self.path(&older))?;
            self.disk.sync_dir(&self.dir)?;
        }
        Ok(())
    }

    /// The offset from which a snapshot is still to be received; `None` if it is held, or a newer one.
    pub fn wanted_from(&mut self, info: &SnapshotInfo) -> Option<u64> {
        if self.held.as_ref().is_some_and(|held| held.index >= info.index && held.term >= info.term) {
            return None;
        }
        Some(self.part.as_ref().filter(|part| part.info == *info).map_or(0, |part| part.have_bytes))
    }

    /// Stores a piece at the offset that [`SnapshotFiles::wanted_from`] gave. Returns true if the snapshot is now complete and
    /// held.
    ///
    /// # Errors
    /// [`LogError::SnapshotHash`] if it does not have its hash, [`LogError::NoRoom`], or the disk's; then it is received anew.
    pub fn receive(&mut self, info: &SnapshotInfo, offset: u64, piece: &[u8]) -> Result<bool, LogError> {
        if self.wanted_from(info) != Some(offset) {
            return Ok(false);
        }
        let taken = self.take_piece(info, piece);
        if taken.is_err() && self.part.take().is_some() {
            self.disk.remove(&self.received())?;
        }
        taken
    }

    /// Where a snapshot is received.
    fn received(&self) -> String {
        format!("{}/received.part", self.dir)
    }

    /// Refuses bytes that would leave too little room for everything else on the disk.
    fn check_room(&self, needed_bytes: u64) -> Result<(), LogError> {
        let space = self.disk.space()?;
        let room_bytes = ROOM_BYTES.min(space.capacity_bytes / 16);
        match space.free_bytes >= needed_bytes.saturating_add(room_bytes) {
            true => Ok(()),
            false => Err(LogError::NoRoom { needed_bytes, room_bytes, free_bytes: space.free_bytes }),
        }
    }

    fn take_piece(&mut self, info: &SnapshotInfo, piece: &[u8]) -> Result<bool, LogError> {
        let (received, have_bytes) = (self.received(), self.wanted_from(info).unwrap_or(0));
        self.check_room(info.len_bytes.saturating_sub(have_bytes))?;
        if self.part.as_ref().is_none_or(|part| part.info != *info) {
            let file = self.disk.open(&received, OpenMode::Create)?;
            file.truncate(0)?;
            self.part = Some(Part { info: info.clone(), file, have_bytes: 0, hasher: blake3::Hasher::new() });
        }
        let Some(part) = &mut self.part else { return Ok(false) };
        let end = part.have_bytes + piece.len() as u64;
        if end > info.len_bytes {
            return Err(LogError::SnapshotHash { index: info.index });
        }
        part.file.write_at(part.have_bytes, piece)?;
        part.hasher.update(piece);
        part.have_bytes = end;
        if end < info.len_bytes {
            return Ok(false);
        }
        let is_whole = part.hasher.finalize().as_bytes()[..] == info.hash[..];
        if !is_whole && !failpoint::is_active("consensus.skips_snapshot_hash") {
            return Err(LogError::SnapshotHash { index: info.index });
        }
        complete(&*self.disk, &self.dir, &received, &*part.file, info)?;
        self.part = None;
        self.adopt(info.clone())?;
        Ok(true)
    }

    /// Reads a piece of the snapshot held.
    ///
    /// # Errors
    /// [`LogError::NoSnapshot`] if another one is held, or the disk's.
    pub fn read(&self, index: u64, hash: &[u8], offset: u64, max_bytes: u32) -> Result<Vec<u8>, LogError> {
        let held = self.held.as_ref().filter(|held| held.index == index && held.hash == hash);
        let Some(held) = held else { return Err(LogError::NoSnapshot { index }) };
        let len_bytes = held.len_bytes.saturating_sub(offset).min(u64::from(max_bytes));
        let mut piece = vec![0; len_bytes as usize];
        if len_bytes > 0 {
            self.disk.open(&self.path(held), OpenMode::Existing)?.read_twice(offset, &mut piece)?;
        }
        Ok(piece)
    }

    fn path(&self, info: &SnapshotInfo) -> String {
        format!("{}/{}", self.dir, file_name(info))
    }
}

/// Completes a snapshot whose content somebody wrote to `part`: hashes it, adds the footer, syncs it and gives it its name. Any
/// thread may do so; the owner of the [`SnapshotFiles`] then adopts the result.
///
/// # Errors
/// The disk's.
pub fn seal(disk: &dyn Disk, dir: &str, part: &str, mut info: SnapshotInfo) -> Result<SnapshotInfo, LogError> {
    let file = disk.open(part, OpenMode::Existing)?;
    info.len_bytes = file.len()?;
    let (mut hasher, mut offset, mut piece) = (blake3::Hasher::new(), 0, vec![0; PIECE_BYTES]);
    while offset < info.len_bytes {
        let len = (info.len_bytes - offset).min(PIECE_BYTES as u64) as usize;
        file.read_twice(offset, &mut piece[..len])?;
        hasher.update(&piece[..len]);
        offset += len as u64;
    }
    info.hash = hasher.finalize().as_bytes().to_vec();
    complete(disk, dir, part, &*file, &info)?;
    Ok(info)
}

fn complete(disk: &dyn Disk, dir: &str, part: &str, file: &dyn DiskFile, info: &SnapshotInfo) -> Result<(), LogError> {
    assert!(info.index > 0 && info.hash.len() == 32, "a snapshot says what it contains");
    let mut footer = info.encode_to_vec();
    let (len, crc) = (footer.len() as u32, crc32c(&footer));
    footer.extend(len.to_le_bytes());
    footer.extend(crc.to_le_bytes());
    footer.extend(MAGIC);
    file.write_at(info.len_bytes, &footer)?;
    file.sync_data()?;
    Ok(disk.rename_durable(part, &format!("{dir}/{}", file_name(info)))?)
}

fn read_info(file: &dyn DiskFile) -> Result<Option<SnapshotInfo>, LogError> {
    let total = file.len()?;
    let mut tail = [0; TAIL_BYTES as usize];
    let Some(tail_at) = total.checked_sub(TAIL_BYTES) else { return Ok(None) };
    file.read_twice(tail_at, &mut tail)?;
    let number = |at: usize| u32::from_le_bytes([tail[at], tail[at + 1], tail[at + 2], tail[at + 3]]);
    let (len, crc) = (u64::from(number(0)), number(4));
    let Some(at) = tail_at.checked_sub(len).filter(|_| tail[8..] == MAGIC && len <= INFO_MAX_BYTES) else {
        return Ok(None);
    };
    let mut bytes = vec![0; len as usize];
    file.read_twice(at, &mut bytes)?;
    let info = SnapshotInfo::decode(&bytes[..]).ok().filter(|_| crc32c(&bytes) == crc);
    Ok(info.filter(|info| info.len_bytes == at && info.hash.len() == 32))
}
