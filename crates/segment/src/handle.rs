//! A handle on a fragment: its entry and the open file. Reading through it takes no lock of the store. If compaction
//! removes the file meanwhile, the handle keeps it readable.

use std::sync::Arc;

use tessera_disk::{DiskError, DiskFile, record::RecordPlace};

use crate::error::{Damage, Finding, StoreError};
use crate::format::{RECORD_HEADER_BYTES, RecordHeader};
use crate::index::Entry;

/// A fragment that is held and ready to be read.
#[derive(Clone)]
pub struct FragmentHandle {
    entry: Entry,
    file: Arc<dyn DiskFile>,
    disk_uuid: [u8; 16],
}

impl std::fmt::Debug for FragmentHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("FragmentHandle").field(&self.entry).finish()
    }
}

impl FragmentHandle {
    pub(crate) fn new(entry: Entry, file: Arc<dyn DiskFile>, disk_uuid: [u8; 16]) -> Self {
        FragmentHandle { entry, file, disk_uuid }
    }

    /// Returns the fragment's place and lengths.
    #[must_use]
    pub fn entry(&self) -> &Entry {
        &self.entry
    }

    /// Returns file, offset and length of the data, for `sendfile`. Unverified: the receiver checks.
    #[must_use]
    pub fn source(&self) -> (Arc<dyn DiskFile>, u64, u64) {
        (self.file.clone(), self.entry.data_offset(), u64::from(self.entry.data_len))
    }

    /// Fills `buf` with the data from `offset` on. Unverified: the receiver checks (P2).
    ///
    /// # Errors
    /// [`StoreError::Range`], or the disk's.
    pub fn read_data(&self, offset: u64, buf: &mut [u8]) -> Result<(), StoreError> {
        let len_bytes = buf.len() as u64;
        let data_len_bytes = u64::from(self.entry.data_len);
        if offset.checked_add(len_bytes).is_none_or(|end| end > data_len_bytes) {
            return Err(StoreError::Range { id: self.entry.id, offset, len_bytes, data_len_bytes });
        }
        Ok(self.file.read_at(self.entry.data_offset() + offset, buf)?)
    }

    /// Reads all of the data and compares it with its checksum (P2).
    ///
    /// # Errors
    /// [`StoreError::Damaged`], or the disk's.
    pub fn read_verified(&self) -> Result<Vec<u8>, StoreError> {
        let mut data = vec![0; self.entry.data_len as usize];
        self.read_or_damage(self.entry.data_offset(), &mut data)?;
        self.check_data(&data)?;
        Ok(data)
    }

    /// Reads the group hashes and compares them with their checksum.
    ///
    /// # Errors
    /// As for [`FragmentHandle::read_verified`].
    pub fn read_groups(&self) -> Result<Vec<u8>, StoreError> {
        let mut groups = vec![0; self.entry.groups_len as usize];
        self.read_or_damage(self.entry.groups_offset(), &mut groups)?;
        self.check_groups(&groups)?;
        Ok(groups)
    }

    /// Reads the record's header: hash and length of the chunk, class, epoch and so on.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] if the record there is not the one that the index names, or the disk's.
    pub fn read_header(&self) -> Result<RecordHeader, StoreError> {
        let mut bytes = [0; RECORD_HEADER_BYTES as usize];
        self.read_or_damage(self.entry.offset, &mut bytes)?;
        let place = RecordPlace { disk_uuid: self.disk_uuid, file: self.entry.segment };
        match RecordHeader::decode(&bytes, place, self.entry.offset) {
            Some(header) if header.id == self.entry.id && header.sequence == self.entry.sequence => Ok(header),
            _ => Err(self.finding(Damage::Header).into()),
        }
    }

    /// Reads header, groups and data from the disk and checks them all.
    ///
    /// # Errors
    /// As for [`FragmentHandle::read_verified`].
    pub fn verify(&self) -> Result<(), StoreError> {
        self.read_header()?;
        self.read_groups()?;
        self.read_verified().map(drop)
    }

    pub(crate) fn check_data(&self, data: &[u8]) -> Result<(), StoreError> {
        self.compare(data, self.entry.data_crc, |expected, got| Damage::Data { expected, got })
    }

    pub(crate) fn check_groups(&self, groups: &[u8]) -> Result<(), StoreError> {
        self.compare(groups, self.entry.groups_crc, |expected, got| Damage::Groups { expected, got })
    }

    fn read_or_damage(&self, offset: u64, buf: &mut [u8]) -> Result<(), StoreError> {
        self.file.read_at(offset, buf).map_err(|e| match e {
            DiskError::ShortRead { .. } => self.finding(Damage::Unreadable { reason: e.to_string() }).into(),
            e => StoreError::Disk(e),
        })
    }

    fn compare(&self, bytes: &[u8], expected: u32, damage: impl Fn(u32, u32) -> Damage) -> Result<(), StoreError> {
        let got = tessera_accel::checksum::crc32c(bytes);
        if got == expected { Ok(()) } else { Err(self.finding(damage(expected, got)).into()) }
    }

    pub(crate) fn finding(&self, damage: Damage) -> Finding {
        Finding::of_record(&self.entry, true, damage)
    }
}
