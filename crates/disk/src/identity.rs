//! The identity file `tessera-disk`: it says which disk of which cluster a directory is (docs/formats.md, section 1).

use crate::disk::{Disk, OpenMode};
use crate::error::DiskError;
use crate::record::{bytes_at, u32_at, u64_at};

/// Name of the identity file in the disk's root.
pub const IDENTITY_FILE: &str = "tessera-disk";
/// The format version this code writes and reads.
pub const IDENTITY_VERSION: u32 = 1;
/// Length of the identity file.
pub const IDENTITY_BYTES: usize = 64;

const MAGIC: [u8; 8] = *b"TESSDISK";
/// Offset of the checksum.
const CRC_AT: usize = IDENTITY_BYTES - 4;

// docs/formats.md, section 1: magic, version, zeros, cluster, disk, time, zeros, checksum.
const _: () = assert!(8 + 4 + 4 + 16 + 16 + 8 <= CRC_AT && CRC_AT == 60);

/// Files that an otherwise empty directory may hold when it becomes a disk.
const HARMLESS: [&str; 4] = ["lock", "lost+found", "poisoned", "tessera-disk.tmp"];

/// The identity of a directory: its cluster and its disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The cluster it belongs to.
    pub cluster_id: [u8; 16],
    /// The id of this disk; never changes.
    pub disk_uuid: [u8; 16],
    /// Creation time of the disk, in ms since 1970.
    pub created_ms: u64,
}

/// Why a directory cannot serve as the expected disk. None of these cases changes the directory.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// The directory has no identity file, and none may be created.
    #[error("{disk}: not a Tessera disk (no file tessera-disk); check the path, or initialise it first")]
    Missing {
        /// The directory.
        disk: String,
    },
    /// [`Identity::create`] on a directory that has an identity file.
    #[error("{disk}: is a Tessera disk already; use it as it is, or choose an empty directory")]
    AlreadyThere {
        /// The directory.
        disk: String,
    },
    /// [`Identity::create`] on a directory with other files in it.
    #[error("{disk}: holds {found:?} but no file tessera-disk; choose an empty directory, or restore that file")]
    NotEmpty {
        /// The directory.
        disk: String,
        /// One of the files found.
        found: String,
    },
    /// The identity file has the wrong length.
    #[error("{disk}: tessera-disk has {got} bytes, expected {IDENTITY_BYTES}; restore it or replace the disk")]
    Length {
        /// The directory.
        disk: String,
        /// The file's length.
        got: u64,
    },
    /// The identity file does not begin with the magic.
    #[error("{disk}: tessera-disk does not begin with TESSDISK; this is not a Tessera disk")]
    Magic {
        /// The directory.
        disk: String,
    },
    /// A newer release created the disk.
    #[error("{disk}: format version {found}, but this program knows {supported}; use a newer release")]
    Version {
        /// The directory.
        disk: String,
        /// The version in the file.
        found: u32,
        /// The version this code reads.
        supported: u32,
    },
    /// The identity file is damaged.
    #[error(
        "{disk}: tessera-disk is damaged: checksum {got:#010x}, expected {expected:#010x}; replace the disk, its fragments will be rebuilt"
    )]
    Checksum {
        /// The directory.
        disk: String,
        /// crc32c in the file.
        expected: u32,
        /// crc32c of its bytes.
        got: u32,
    },
    /// The disk belongs to another cluster.
    #[error("{disk}: belongs to cluster {found}, not {expected}; give it back, or choose another directory")]
    OtherCluster {
        /// The directory.
        disk: String,
        /// The expected cluster, in hexadecimal.
        expected: String,
        /// The cluster found.
        found: String,
    },
    /// Another disk of the same cluster.
    #[error("{disk}: is disk {found}, not {expected}; the directories of two disks were swapped")]
    OtherDisk {
        /// The directory.
        disk: String,
        /// The expected disk, in hexadecimal.
        expected: String,
        /// The disk found.
        found: String,
    },
    /// The disk itself failed, or another daemon holds it.
    #[error(transparent)]
    Disk(#[from] DiskError),
}

/// Sixteen bytes in hexadecimal, for messages.
#[must_use]
pub fn hex16(id: &[u8; 16]) -> String {
    id.iter().map(|b| format!("{b:02x}")).collect()
}

impl Identity {
    /// Encodes the 64 bytes of the file.
    #[must_use]
    pub fn encode(&self) -> [u8; IDENTITY_BYTES] {
        let mut bytes = [0; IDENTITY_BYTES];
        bytes[0..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&IDENTITY_VERSION.to_le_bytes());
        bytes[16..32].copy_from_slice(&self.cluster_id);
        bytes[32..48].copy_from_slice(&self.disk_uuid);
        bytes[48..56].copy_from_slice(&self.created_ms.to_le_bytes());
        let crc = crc_fast::crc32_iscsi(&bytes[..CRC_AT]);
        bytes[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Decodes the file's bytes; errors name `disk`. Every version keeps magic, version and the checksum of the first
    /// 60 bytes where version 1 has them, so this code tells a newer version from damage.
    ///
    /// # Errors
    /// [`IdentityError::Length`], [`IdentityError::Magic`], [`IdentityError::Checksum`] or [`IdentityError::Version`].
    pub fn decode(bytes: &[u8], disk: &str) -> Result<Self, IdentityError> {
        let disk = || disk.to_owned();
        let len = bytes.len() as u64;
        let Some(bytes) = bytes.first_chunk::<IDENTITY_BYTES>() else {
            return Err(IdentityError::Length { disk: disk(), got: len });
        };
        if bytes[0..8] != MAGIC {
            return Err(IdentityError::Magic { disk: disk() });
        }
        let expected = u32_at(bytes, CRC_AT);
        let got = crc_fast::crc32_iscsi(&bytes[..CRC_AT]);
        if expected != got {
            return Err(IdentityError::Checksum { disk: disk(), expected, got });
        }
        let found = u32_at(bytes, 8);
        if found != IDENTITY_VERSION {
            return Err(IdentityError::Version { disk: disk(), found, supported: IDENTITY_VERSION });
        }
        if len != IDENTITY_BYTES as u64 {
            return Err(IdentityError::Length { disk: disk(), got: len });
        }
        Ok(Identity { cluster_id: bytes_at(bytes, 16), disk_uuid: bytes_at(bytes, 32), created_ms: u64_at(bytes, 48) })
    }

    /// Turns an empty directory into a disk.
    ///
    /// # Errors
    /// [`IdentityError::AlreadyThere`] or [`IdentityError::NotEmpty`] if the directory is not empty: a disk that lost
    /// its identity file must not become a new one.
    pub fn create(&self, disk: &dyn Disk) -> Result<(), IdentityError> {
        let names = disk.list("")?;
        if names.iter().any(|name| name == IDENTITY_FILE) {
            return Err(IdentityError::AlreadyThere { disk: disk.describe() });
        }
        let dirs = disk.list_dirs("")?;
        let foreign = names.into_iter().chain(dirs).find(|n| !HARMLESS.contains(&n.as_str()));
        if let Some(found) = foreign {
            return Err(IdentityError::NotEmpty { disk: disk.describe(), found });
        }
        Ok(disk.write_durable(IDENTITY_FILE, &self.encode())?)
    }

    /// Reads a disk's identity; `None` if the directory has none.
    ///
    /// # Errors
    /// As for [`Identity::decode`], or the disk's.
    pub fn load(disk: &dyn Disk) -> Result<Option<Self>, IdentityError> {
        let file = match disk.open(IDENTITY_FILE, OpenMode::Existing) {
            Ok(file) => file,
            Err(DiskError::NotFound { .. }) => return Ok(None),
            Err(e) => return Err(e.into()),
        };
        let len = file.len()?;
        let mut bytes = vec![0; len.min(4096) as usize];
        file.read_at(0, &mut bytes)?;
        Self::decode(&bytes, &disk.describe()).map(Some)
    }

    /// Reads a disk's identity and compares it with the expected one.
    ///
    /// # Errors
    /// As for [`Identity::load`]; [`IdentityError::Missing`], [`IdentityError::OtherCluster`], and, if `disk_uuid` is given,
    /// [`IdentityError::OtherDisk`].
    pub fn check(disk: &dyn Disk, cluster_id: &[u8; 16], disk_uuid: Option<&[u8; 16]>) -> Result<Self, IdentityError> {
        let Some(found) = Self::load(disk)? else {
            return Err(IdentityError::Missing { disk: disk.describe() });
        };
        if found.cluster_id != *cluster_id {
            return Err(IdentityError::OtherCluster {
                disk: disk.describe(),
                expected: hex16(cluster_id),
                found: hex16(&found.cluster_id),
            });
        }
        match disk_uuid {
            Some(expected) if *expected != found.disk_uuid => Err(IdentityError::OtherDisk {
                disk: disk.describe(),
                expected: hex16(expected),
                found: hex16(&found.disk_uuid),
            }),
            _ => Ok(found),
        }
    }
}
