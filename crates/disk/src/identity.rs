//! The identity file `tessera-disk`: it says which disk of which cluster a directory is (docs/formats.md, section 1).

use crate::disk::{Disk, OpenMode};
use crate::error::DiskError;
use crate::record::{HeaderFault, HeaderFormat};

/// Name of the identity file in the disk's root.
pub const IDENTITY_FILE: &str = "tessera-disk";
/// The format version this code writes and reads.
pub const IDENTITY_VERSION: u32 = 1;
/// Length of the identity file.
pub const IDENTITY_BYTES: usize = 64;

/// docs/formats.md, section 1.
const FORMAT: HeaderFormat =
    HeaderFormat { magic: *b"TESSDISK", version: IDENTITY_VERSION, crc_at: IDENTITY_BYTES - 4 };

// docs/formats.md, section 1: magic, version, zeros, cluster, disk, time, zeros, checksum.
const _: () = assert!(8 + 4 + 4 + 16 + 16 + 8 <= FORMAT.crc_at && FORMAT.crc_at == 60);

/// Files that an otherwise empty directory may hold when it becomes a disk.
const HARMLESS: [&str; 4] = ["lock", "lost+found", "poisoned", "tessera-disk.tmp"];

crate::layout! {
    /// The identity of a directory: its cluster and its disk.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Identity {
        /// The cluster it belongs to.
        pub cluster_id: [u8; 16] = 16,
        /// The id of this disk; never changes.
        pub disk_uuid: [u8; 16] = 32,
        /// Creation time of the disk, in ms since 1970.
        pub created_ms: u64 = 48,
    }
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
        FORMAT.encode(self)
    }

    /// Decodes the file's bytes; errors name `disk`. Every version keeps magic, version and the checksum of the first
    /// 60 bytes where version 1 has them, so this code tells a newer version from damage.
    ///
    /// # Errors
    /// [`IdentityError::Length`], [`IdentityError::Magic`], [`IdentityError::Checksum`] or [`IdentityError::Version`].
    pub fn decode(bytes: &[u8], disk: &str) -> Result<Self, IdentityError> {
        let (disk, got) = (disk.to_owned(), bytes.len() as u64);
        if bytes.len() < IDENTITY_BYTES {
            return Err(IdentityError::Length { disk, got });
        }
        match FORMAT.decode(bytes) {
            Ok(_) if bytes.len() > IDENTITY_BYTES => Err(IdentityError::Length { disk, got }),
            Ok(identity) => Ok(identity),
            Err(HeaderFault::Magic) => Err(IdentityError::Magic { disk }),
            Err(HeaderFault::Checksum { expected, got }) => Err(IdentityError::Checksum { disk, expected, got }),
            Err(HeaderFault::Version(found)) => {
                Err(IdentityError::Version { disk, found, supported: IDENTITY_VERSION })
            }
        }
    }

    /// Turns an empty directory into a disk.
    ///
    /// # Errors
    /// As for [`Identity::check_empty`], or the disk's.
    pub fn create(&self, disk: &dyn Disk) -> Result<(), IdentityError> {
        Self::check_empty(disk)?;
        Ok(disk.write_durable(IDENTITY_FILE, &self.encode())?)
    }

    /// Checks that a directory may become a disk.
    ///
    /// # Errors
    /// [`IdentityError::AlreadyThere`] or [`IdentityError::NotEmpty`] if the directory is not empty: a disk that lost
    /// its identity file must not become a new one.
    pub fn check_empty(disk: &dyn Disk) -> Result<(), IdentityError> {
        let names = disk.list("")?;
        if names.iter().any(|name| name == IDENTITY_FILE) {
            return Err(IdentityError::AlreadyThere { disk: disk.describe() });
        }
        let dirs = disk.list_dirs("")?;
        let foreign = names.into_iter().chain(dirs).find(|n| !HARMLESS.contains(&n.as_str()));
        if let Some(found) = foreign {
            return Err(IdentityError::NotEmpty { disk: disk.describe(), found });
        }
        Ok(())
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

    /// Reads the identity of a directory that must be a disk.
    ///
    /// # Errors
    /// As for [`Identity::load`]; [`IdentityError::Missing`].
    pub fn require(disk: &dyn Disk) -> Result<Self, IdentityError> {
        Self::load(disk)?.ok_or_else(|| IdentityError::Missing { disk: disk.describe() })
    }
}
