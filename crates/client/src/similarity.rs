//! Similarity of the versions of a file: how many bytes each shares with the version before it, and with everything
//! stored before it (the detected similarity of the dissertation's tables 9 and 10, which compare a checkpoint with the
//! one before it).
//!
//! The comparison is by chunk, as they were cut: bytes count as shared if the other version has the chunk that holds
//! them.

use crate::client::Client;
use crate::error::{Cause, Error, by_name};
use crate::path::StorePath;
use serde::Serialize;
use std::collections::HashSet;
use tessera_wire::Extent;
use tessera_wire::meta::{ContentInfo, FIRST_CONTENT, ListExtentsReply, ListVersions, VersionInfo};

/// A version compared with what was stored before it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Similarity {
    /// The version.
    #[serde(skip)]
    pub version: VersionInfo,
    /// Bytes of the version without holes.
    pub data_bytes: u64,
    /// Those of these bytes in chunks that the previous kept version also has; 0 for the first.
    pub in_previous_bytes: u64,
    /// Those of these bytes in chunks that were stored already, by any file or earlier in this version.
    pub in_all_bytes: u64,
}

/// For each extent of a version, in order of offset, without holes: what identifies its chunk or content, and the extent's bytes.
type Bytes = Vec<(u64, u64)>;

/// The chunk of an extent, or, in a pack or in the metadata, the beginning of the content's name.
fn identity(listed: &ListExtentsReply, extent: &Extent) -> u64 {
    if extent.chunk_id >= FIRST_CONTENT {
        return extent.name_prefix;
    }
    let holds = |content: &&ContentInfo| {
        let range = content.chunk_offset..content.chunk_offset + content.len_bytes;
        content.chunk_id == extent.chunk_id && range.contains(&extent.chunk_offset)
    };
    listed.contents.iter().find(holds).map_or(extent.chunk_id, |content| Extent::prefix_of(&content.hash))
}

impl Client {
    /// Compares each kept version of a file with the one before it; oldest first.
    ///
    /// # Errors
    /// There is no such file, or a version was removed meanwhile.
    pub fn similarity(&self, path: &StorePath) -> Result<Vec<Similarity>, Error> {
        let refused = |error| Cause::Refused(by_name(error)).of(path.brief());
        let ino = self.stat(path)?.ino;
        let versions = self.ask(&ListVersions { ino }).map_err(refused)?.versions;
        let mut previous = HashSet::new();
        let mut found = Vec::new();
        for version in versions {
            let (_, listed) = self.extents_of(ino, version.version).map_err(refused)?;
            let data = listed.extents.iter().filter(|extent| extent.chunk_id != 0);
            let bytes: Bytes = data.map(|extent| (identity(&listed, extent), extent.len_bytes)).collect();
            found.push(compare(version, &bytes, &previous));
            previous = bytes.into_iter().map(|(chunk, _)| chunk).collect();
        }
        Ok(found)
    }
}

fn compare(version: VersionInfo, bytes: &Bytes, previous: &HashSet<u64>) -> Similarity {
    let data_bytes = bytes.iter().map(|(_, len_bytes)| len_bytes).sum();
    let in_previous_bytes = bytes.iter().filter(|(chunk, _)| previous.contains(chunk)).map(|(_, len)| len).sum();
    let in_all_bytes = u64::saturating_sub(data_bytes, version.new_bytes);
    Similarity { version, data_bytes, in_previous_bytes, in_all_bytes }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_found_where_their_chunk_is() {
        let version = VersionInfo { new_bytes: 30, ..VersionInfo::default() };
        let bytes = vec![(7, 100), (8, 50), (7, 100), (9, 30)];
        let found = compare(version, &bytes, &HashSet::from([7, 10]));
        assert_eq!((found.data_bytes, found.in_previous_bytes, found.in_all_bytes), (280, 200, 250));
        // A patch may have stored whole chunks and use only a part of each.
        let patched = VersionInfo { new_bytes: 500, ..version };
        assert_eq!(compare(patched, &bytes, &HashSet::new()).in_all_bytes, 0);
    }
}
