//! Methods of generated messages.

use crate::meta::DeviceWork;
use crate::meta::{ContentInfo, FIRST_CONTENT, ListExtentsReply};
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

/// An extent that names a content which the reply lacks, which has another name, or which is shorter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WrongContent {
    /// Where the extent starts in the file.
    pub offset: u64,
    /// The content that it names.
    pub content_id: u64,
    /// The first 8 bytes of the content's name as the file's writer gave them.
    pub written: u64,
    /// The same of the content's row; 0: there is no such row.
    pub stored: u64,
}

impl ListExtentsReply {
    /// The content that the extent names, if it names one.
    pub fn content_of(&self, extent: &Extent) -> Option<&ContentInfo> {
        self.contents.iter().find(|content| content.content_id == extent.chunk_id)
    }

    /// Lets the extents that name contents name their packs, which are chunks of the reply. Those whose contents lie in no pack stay.
    ///
    /// # Errors
    /// A content has another name than the file's writer gave it, or is shorter than its extent (P2).
    pub fn resolve_contents(&mut self) -> Result<(), WrongContent> {
        for extent in self.extents.iter_mut().filter(|extent| extent.chunk_id >= FIRST_CONTENT) {
            let Extent { offset, len_bytes, chunk_id: content_id, chunk_offset, name_prefix: written } = *extent;
            let content = self.contents.iter().find(|content| content.content_id == content_id);
            let stored = content.map_or(0, |content| Extent::prefix_of(&content.hash));
            let wrong = WrongContent { offset, content_id, written, stored };
            let content = content.filter(|_| stored == written).ok_or(wrong)?;
            let end = chunk_offset.checked_add(len_bytes).filter(|end| *end <= content.len_bytes);
            if content.chunk_id == 0 && end.is_some() {
                continue;
            }
            let in_pack = end.and_then(|_| content.chunk_offset.checked_add(chunk_offset)).ok_or(wrong)?;
            let pack = self.chunks.iter().find(|chunk| chunk.chunk_id == content.chunk_id).ok_or(wrong)?;
            *extent = Extent::of_chunk(offset, len_bytes, pack.chunk_id, &pack.hash, in_pack);
        }
        Ok(())
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
