//! The fence: a small file beside the log of a peer that a restore, or the group that replaced its own, has taken out of use
//! (docs/formats.md, section 4).

use super::LogOpenError;
use tessera_disk::record::{HeaderFault, HeaderFormat};
use tessera_disk::{Disk, DiskError, OpenMode, layout};

/// Name of the file in the directory of the log.
pub const FENCE_FILE: &str = "fenced";
const FENCE_VERSION: u32 = 1;
const FENCE_BYTES: usize = 64;
const FORMAT: HeaderFormat = HeaderFormat { magic: *b"TESSFENC", version: FENCE_VERSION, crc_at: FENCE_BYTES - 4 };

const _: () = assert!(8 + 4 + 4 + 16 + 3 * 8 <= FORMAT.crc_at);

layout! {
    /// What the file says.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Fence {
        /// The cluster.
        pub cluster_id: [u8; 16] = 16,
        /// The peer.
        pub peer_id: u64 = 32,
        /// The term in which the group begins that replaces the peer's.
        pub term: u64 = 40,
        /// Random number of the restore that makes this group; 0: the group itself has spoken to the peer.
        pub restore_id: u64 = 48,
    }
}

impl Fence {
    /// Reads the file at `path`, if there is one.
    ///
    /// # Errors
    /// It is damaged, of a later release, or the disk fails.
    pub fn load(disk: &dyn Disk, path: &str) -> Result<Option<Fence>, LogOpenError> {
        let file = match disk.open(path, OpenMode::Existing) {
            Ok(file) => file,
            Err(DiskError::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let mut bytes = vec![0; (file.len()? as usize).min(FENCE_BYTES)];
        file.read_twice(0, &mut bytes)?;
        let name = path.to_string();
        match FORMAT.decode::<Fence>(&bytes) {
            Ok(fence) => Ok(Some(fence)),
            Err(HeaderFault::Version(found)) => Err(LogOpenError::Version { name, found, supported: FENCE_VERSION }),
            Err(_) => Err(LogOpenError::Damaged { name, offset: 0, what: "the fence is damaged".into() }),
        }
    }

    /// Writes the file at `path`, durably, in place of an older one.
    ///
    /// # Errors
    /// The disk's; the older one, or none, is still there.
    pub fn store(&self, disk: &dyn Disk, path: &str) -> Result<(), DiskError> {
        disk.write_durable(path, &FORMAT.encode::<FENCE_BYTES>(self))
    }
}
