//! Contents of small files, which have names of their own: in packs, and in the metadata.
//!
//! A chunk's name tells that its bytes are the chunk's, and only a content's own name tells that the manager named the right part of
//! a pack (P2). So the first read of any part of a content fetches and compares all of it. Later reads fetch what they ask for.

use super::*;
use std::ops::Range;
use tessera_accel::hash::{chunk_hash, chunk_hash_parts};
use tessera_wire::meta::{ContentInfo, ListExtentsReply};

/// A content of a pack.
#[derive(Debug, Clone)]
pub(super) struct PackedContent {
    pack_id: u64,
    /// Where it lies in the pack.
    pub range: Range<u64>,
    name: Hash,
    /// Whether its bytes were compared with its name.
    pub is_compared: bool,
}

impl PartialEq for PackedContent {
    fn eq(&self, other: &PackedContent) -> bool {
        (self.pack_id, &self.range, self.name) == (other.pack_id, &other.range, other.name)
    }
}

impl PackedContent {
    /// Whether these are its bytes.
    pub fn is(&self, parts: &[Bytes]) -> bool {
        chunk_hash_parts(parts.iter().map(|part| &part[..])) == self.name
            || tessera_failpoint::is_active("client.names_not_compared")
    }

    /// Why its bytes are refused.
    pub fn wrong(&self) -> Cause {
        Cause::WrongContent { name: tessera_wire::hex(&self.name.0) }
    }
}

/// The contents of packs that hold the bytes of extents, by the offsets of these in the file.
pub(super) fn packed(reply: &ListExtentsReply) -> Result<HashMap<u64, PackedContent>, Cause> {
    let mut found = HashMap::new();
    for extent in &reply.extents {
        let Some(content) = reply.content_of(extent).filter(|content| content.chunk_id != 0) else { continue };
        let pack = reply.chunks.iter().find(|chunk| chunk.chunk_id == content.chunk_id);
        let end = content.chunk_offset.checked_add(content.len_bytes);
        let end = end.filter(|end| pack.is_some_and(|pack| *end <= pack.len_bytes));
        let (Some(end), Ok(name)) = (end, Hash::try_from(&content.hash[..])) else {
            let message = format!("content {} is not within pack {}", content.content_id, content.chunk_id);
            return Err(Cause::Nonsense(message));
        };
        let range = content.chunk_offset..end;
        found.insert(extent.offset, PackedContent { pack_id: content.chunk_id, range, name, is_compared: false });
    }
    Ok(found)
}

/// The bytes of the contents that lie in the metadata, by their ids. They are compared with their names, as they may have
/// rotted since the manager did so (P2).
pub(super) fn inlined(contents: Vec<ContentInfo>) -> Result<HashMap<u64, Bytes>, Cause> {
    let mut found = HashMap::new();
    for content in contents.into_iter().filter(|content| content.chunk_id == 0) {
        let is_equal =
            content.inlined.len() as u64 == content.len_bytes && chunk_hash(&content.inlined).0[..] == content.hash[..];
        if !is_equal && !tessera_failpoint::is_active("client.names_not_compared") {
            return Err(Cause::WrongContent { name: tessera_wire::hex(&content.hash) });
        }
        found.insert(content.content_id, content.inlined);
    }
    Ok(found)
}
