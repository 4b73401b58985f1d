//! Methods of generated messages.

use crate::meta::DeviceWork;
use crate::{Code, Error, Extent, Hello, PROTOCOL_VERSION, PgMember, Role};

impl Error {
    /// An error with `code` and `message`.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Error { code: code as i32, message: message.into(), ..Error::default() }
    }

    /// See [`Code::is_retryable`].
    pub fn is_retryable(&self) -> bool {
        self.code().is_retryable()
    }
}

impl Code {
    /// Whether the same request may succeed later, or at another manager, although the sender changes nothing.
    pub fn is_retryable(self) -> bool {
        matches!(self, Code::Unavailable | Code::Timeout | Code::NotLeader)
    }
}

impl Hello {
    /// Refuses a peer of another protocol version or of another cluster (P14). A cluster id that is not known yet is empty,
    /// and fits every cluster.
    ///
    /// # Errors
    /// [`Code::ProtocolVersion`] or [`Code::WrongCluster`], naming both sides.
    pub fn check(&self, cluster_id: &[u8]) -> Result<(), Error> {
        let Hello { protocol_version, release, .. } = self;
        if *protocol_version != PROTOCOL_VERSION {
            let text = format!(
                "peer (release {release:?}) speaks protocol {protocol_version}, this daemon speaks {PROTOCOL_VERSION}; run the \
                 same release on both sides"
            );
            return Err(Error::new(Code::ProtocolVersion, text));
        }
        if !self.cluster_id.is_empty() && !cluster_id.is_empty() && self.cluster_id != cluster_id {
            let (theirs, ours) = (hex(&self.cluster_id), hex(cluster_id));
            let text = match self.role() {
                Role::Client => format!(
                    "the client works with cluster {theirs}, but cluster {ours} answers at this address; start the daemon of \
                     {theirs} there, or restart the client to work with {ours}"
                ),
                _ => format!(
                    "peer belongs to cluster {theirs}, this is cluster {ours}; check --manager and the disk directories"
                ),
            };
            return Err(Error::new(Code::WrongCluster, text));
        }
        Ok(())
    }
}

impl Extent {
    /// Offset in the file after the last byte.
    pub fn end(&self) -> u64 {
        self.offset.saturating_add(self.len_bytes)
    }

    /// A piece of a chunk that the writer knows by `name`.
    pub fn of_chunk(offset: u64, len_bytes: u64, chunk_id: u64, name: &[u8], chunk_offset: u64) -> Extent {
        Extent { offset, len_bytes, chunk_id, chunk_offset, name_prefix: Extent::prefix_of(name) }
    }

    /// A hole.
    pub fn hole(offset: u64, len_bytes: u64) -> Extent {
        Extent { offset, len_bytes, ..Extent::default() }
    }

    /// The prefix of a chunk's name that extents carry: its first 8 bytes, the first one most significant. What is missing
    /// of them counts as zero.
    pub fn prefix_of(name: &[u8]) -> u64 {
        let mut first = [0; 8];
        first.iter_mut().zip(name).for_each(|(to, from)| *to = *from);
        u64::from_be_bytes(first)
    }
}

impl PgMember {
    /// Disk that takes new fragments.
    pub fn put_disk_id(&self) -> u64 {
        if self.put_to_incoming { self.incoming_disk_id } else { self.disk_id }
    }

    /// Whether a fragment that was put, or acknowledged, under `epoch` of the group is where readers look for it (P11).
    pub fn accepts(&self, epoch: u64) -> bool {
        epoch >= self.since_epoch
    }
}

impl DeviceWork {
    /// Work of a device of this process. The receiver knows which process reports.
    pub fn of_process(device: String, primitive: &str, jobs: u64, bytes: u64) -> DeviceWork {
        DeviceWork { node_id: 0, device, primitive: primitive.to_owned(), jobs, bytes }
    }
}

/// Lower-case hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}
