//! Serves reads: from the index to the payload of an answer, without the core.
//!
//! Fragments are immutable and their ids are never reused, so a reader gets the right fragment or none. A read
//! therefore needs no lease, epoch or registration. The receiver verifies the bytes (P2).

use crate::core::FragmentKey;
use crate::disk_worker::{find, store_error};
use bytes::Bytes;
use std::sync::Arc;
use tessera_disk::DiskFile;
use tessera_segment::{FragmentHandle, SegmentStore, StoreError};
use tessera_wire::data::{GetFragments, GetFragmentsReply, GetItem, GetResult};
use tessera_wire::frame::MAX_PAYLOAD_BYTES;
use tessera_wire::meta::FragmentRef;
use tessera_wire::{Code, Error};

/// One part of an answer's payload.
pub enum PayloadPart {
    /// Bytes in memory.
    Bytes(Bytes),
    /// Bytes of a file with a descriptor: the shell may use `sendfile`.
    File {
        /// The segment file.
        file: Arc<dyn DiskFile>,
        /// Offset of the first byte.
        offset: u64,
        /// Number of bytes.
        len_bytes: u64,
    },
}

impl PayloadPart {
    fn len_bytes(&self) -> u64 {
        match self {
            PayloadPart::Bytes(bytes) => bytes.len() as u64,
            PayloadPart::File { len_bytes, .. } => *len_bytes,
        }
    }
}

/// The answer to a get.
pub struct GetAnswer {
    /// The reply message.
    pub reply: GetFragmentsReply,
    /// Its payload.
    pub payload: Vec<PayloadPart>,
    /// Corrupt fragments found, for [`crate::core::Event::FoundBad`].
    pub bad: Vec<FragmentRef>,
}

/// Answers a get. `store` returns the store of a disk id. Pieces shorter than `file_min_bytes` are read into memory.
pub fn serve(get: &GetFragments, file_min_bytes: u64, store: &dyn Fn(u64) -> Option<Arc<SegmentStore>>) -> GetAnswer {
    let mut served = GetAnswer {
        reply: GetFragmentsReply::default(),
        payload: Vec::with_capacity(get.items.len()),
        bad: Vec::new(),
    };
    let mut room = u64::from(MAX_PAYLOAD_BYTES);
    for item in &get.items {
        let result = serve_item(item, file_min_bytes, &mut room, store, &mut served.payload).unwrap_or_else(|error| {
            if error.code() == Code::Corrupt {
                let (chunk_id, fragment, disk_id) = (item.chunk_id, item.fragment, item.disk_id);
                served.bad.push(FragmentRef { chunk_id, fragment, disk_id, epoch: 0 });
            }
            GetResult { error: Some(error), ..GetResult::default() }
        });
        served.reply.results.push(result);
    }
    let announced: u64 =
        served.reply.results.iter().filter(|it| it.error.is_none()).map(|it| u64::from(it.len_bytes)).sum();
    let sent: u64 = served.payload.iter().map(PayloadPart::len_bytes).sum();
    assert_eq!(served.reply.results.len(), get.items.len(), "each item of a get has its result");
    assert_eq!(sent, announced, "the payload of a get is what its results announce");
    served
}

fn serve_item(
    item: &GetItem,
    file_min_bytes: u64,
    room: &mut u64,
    store: &dyn Fn(u64) -> Option<Arc<SegmentStore>>,
    payload: &mut Vec<PayloadPart>,
) -> Result<GetResult, Error> {
    let Some(store) = store(item.disk_id) else {
        // A node that has just started may not know the ids of its disks yet; the client may retry.
        return Err(Error::new(
            Code::Unavailable,
            format!("disk {} is not served by this node (yet); ask the manager for the map again", item.disk_id),
        ));
    };
    let key = FragmentKey { chunk_id: item.chunk_id, fragment: item.fragment };
    let Some(held) = find(&store, key).map_err(|e| store_error(&e))? else {
        return Err(Error::new(
            Code::NotFound,
            format!("fragment {}.{} is not on disk {}", item.chunk_id, item.fragment, item.disk_id),
        ));
    };
    let fragment_len = held.entry().data_len;
    let (offset, len) = if item.whole { (0, fragment_len) } else { (item.offset, item.len_bytes) };
    if offset.checked_add(len).is_none_or(|end| end > fragment_len) {
        return Err(Error::new(
            Code::Invalid,
            format!(
                "fragment {}.{}: {len} bytes at {offset} pass its end at {fragment_len}",
                item.chunk_id, item.fragment
            ),
        ));
    }
    if u64::from(len) > *room {
        return Err(Error::new(Code::Invalid, "the answer is full; ask for less at a time"));
    }
    let groups = match item.want_groups {
        true => held.read_groups().map_err(|e| read_error(&e))?.into(),
        false => Bytes::new(),
    };
    if let Some(piece) = piece(&held, offset, len, item.verify, file_min_bytes)? {
        *room -= u64::from(len);
        payload.push(piece);
    }
    Ok(GetResult {
        error: None,
        len_bytes: len,
        fragment_len_bytes: fragment_len,
        crc32c: held.entry().data_crc,
        groups,
    })
}

fn piece(
    held: &FragmentHandle,
    offset: u32,
    len: u32,
    verify: bool,
    file_min_bytes: u64,
) -> Result<Option<PayloadPart>, Error> {
    if verify {
        let data = Bytes::from(held.read_verified().map_err(|e| read_error(&e))?);
        return Ok((len > 0).then(|| PayloadPart::Bytes(data.slice(offset as usize..(offset + len) as usize))));
    }
    if len == 0 {
        return Ok(None);
    }
    let (file, start, _) = held.source();
    if u64::from(len) >= file_min_bytes && file.as_fd().is_some() {
        return Ok(Some(PayloadPart::File { file, offset: start + u64::from(offset), len_bytes: u64::from(len) }));
    }
    let mut data = vec![0; len as usize];
    held.read_data(u64::from(offset), &mut data).map_err(|e| read_error(&e))?;
    Ok(Some(PayloadPart::Bytes(data.into())))
}

/// Bytes that the disk cannot read count as corrupt: the fragment must be rebuilt.
fn read_error(error: &StoreError) -> Error {
    let told = store_error(error);
    match error {
        StoreError::Disk(_) => Error::new(Code::Corrupt, told.message),
        _ => told,
    }
}
