//! Small files that were described, read whole and many at a time: as one file that consists of them, so that the requests to a node
//! travel together.

use super::core::{Opened, ReadParams};
use super::describe::Described;
use super::{How, ReadHandle, Sink};
use crate::client::Client;
use crate::config::Options;
use crate::memory;
use bytes::Bytes;
use std::io::Write;
use std::sync::Arc;
use tessera_wire::meta::{ListExtentsReply, OpenRead, OpenReadReply, VersionInfo};
use tessera_wire::{Attr, Extent};

/// Nothing keeps the chunks that are read here, and nobody waits for them: one that cannot be read within this time is left out.
const DEADLINE_MS: u64 = 1_000;

/// A version of a small file in memory, verified (P2). It needs no session.
#[derive(Debug, Clone)]
pub struct WholeFile {
    opened: Opened,
    bytes: Bytes,
}

impl WholeFile {
    /// The version, and the file's attributes and policy when it was described.
    pub fn opened(&self) -> &Opened {
        &self.opened
    }

    /// Its bytes.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Copies the bytes at `offset` that are there and fit; returns how many.
    pub fn read_at(&self, offset: u64, out: &mut [u8]) -> usize {
        let from = usize::try_from(offset).map_or(self.bytes.len(), |offset| offset.min(self.bytes.len()));
        let len = out.len().min(self.bytes.len() - from);
        out[..len].copy_from_slice(&self.bytes[from..from + len]);
        len
    }
}

impl Client {
    /// Reads files that [`Client::describe_names`] has described. `None`: it must be opened by itself.
    pub fn read_described(&self, files: Vec<OpenReadReply>) -> Vec<Option<WholeFile>> {
        let files: Vec<Option<OpenReadReply>> = files.into_iter().map(describable).collect();
        let lengths = files.iter().map(|file| file.as_ref().map(len_bytes).unwrap_or_default());
        let mut parts = Parts::new(lengths.collect());
        let joined = joined(files.iter().flatten());
        let total = len_bytes(&joined);
        if total > 0
            && let Err(error) = self.read_joined(joined, total, &mut parts)
        {
            tracing::debug!(%error, "files are opened one by one: some could not be read as described");
        }
        let whole = |(file, bytes): (Option<OpenReadReply>, Vec<u8>)| {
            let file = file?;
            (bytes.len() as u64 == len_bytes(&file)).then_some(())?;
            let opened = Opened { attr: file.attr?, version: file.version?, policy: file.policy };
            Some(WholeFile { opened, bytes: bytes.into() })
        };
        files.into_iter().zip(parts.parts).map(whole).collect()
    }

    fn read_joined(&self, joined: OpenReadReply, total: u64, parts: &mut Parts) -> Result<(), crate::FileError> {
        let (file, open) = ("small files".to_string(), OpenRead { len_bytes: total, ..OpenRead::default() });
        let params = ReadParams { file, open, known: Some(Box::new(joined)), bulk: true };
        let get_deadline_ms = self.context.options.get_deadline_ms.min(DEADLINE_MS);
        let options = Options { get_deadline_ms, ..(*self.context.options).clone() };
        let handle = ReadHandle::open_with(&self.context, params, Arc::new(options))?;
        let (_share, window_bytes) = memory::of_read(&self.context, total, true);
        let how = How { len_bytes: total, stream: true, window_bytes };
        handle.read_range(0, how, &mut Sink::Writer(parts), None).map(drop)
    }
}

fn len_bytes(file: &OpenReadReply) -> u64 {
    file.version.as_ref().map_or(0, |version| version.size_bytes)
}

/// The description of a file, if it is one of a small file whose extents follow each other from its first byte to its last.
fn describable(file: OpenReadReply) -> Option<OpenReadReply> {
    let file = Described::of(file)?.into_reply();
    let end = file
        .extents
        .iter()
        .flat_map(|extents| &extents.extents)
        .try_fold(0, |at, extent| (extent.offset == at).then(|| extent.len_bytes.checked_add(at)).flatten());
    (end == Some(len_bytes(&file))).then_some(file)
}

/// The description of a file that consists of these, one behind the other.
fn joined<'a>(files: impl Iterator<Item = &'a OpenReadReply>) -> OpenReadReply {
    let mut all = ListExtentsReply::default();
    for file in files {
        let Some(extents) = &file.extents else { continue };
        let at = all.next_offset;
        all.extents.extend(extents.extents.iter().map(|extent| Extent { offset: at + extent.offset, ..*extent }));
        all.chunks.extend(extents.chunks.iter().cloned());
        all.contents.extend(extents.contents.iter().cloned());
        all.next_offset += len_bytes(file);
    }
    let version = VersionInfo { size_bytes: all.next_offset, ..VersionInfo::default() };
    OpenReadReply {
        attr: Some(Attr::default()),
        version: Some(version),
        extents: Some(all),
        ..OpenReadReply::default()
    }
}

/// Takes the bytes of files that lie one behind the other.
struct Parts {
    lengths: Vec<u64>,
    parts: Vec<Vec<u8>>,
    /// The file whose bytes come next.
    at: usize,
}

impl Parts {
    fn new(lengths: Vec<u64>) -> Parts {
        let parts = lengths.iter().map(|_| Vec::new()).collect();
        Parts { lengths, parts, at: 0 }
    }
}

impl Write for Parts {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let (Some(len_bytes), Some(part)) = (self.lengths.get(self.at), self.parts.get_mut(self.at)) else {
                return Err(std::io::Error::other("more bytes than the files have"));
            };
            let lacks = (*len_bytes as usize).saturating_sub(part.len());
            if lacks == 0 {
                self.at += 1;
                continue;
            }
            if part.is_empty() {
                part.reserve_exact(lacks);
            }
            let (now, later) = rest.split_at(lacks.min(rest.len()));
            part.extend_from_slice(now);
            rest = later;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
