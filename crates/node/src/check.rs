//! Checks messages from peers (P14). The checks run on the connection's thread, before the core is locked.
//!
//! This module checks counts, lengths, checksums, and that copies and slices are what their chunk's name says (P2). The core
//! checks what depends on the cluster: lease, epochs, disks, classes.

use crate::config::NodeConfig;
use crate::core::{AppendItem, FragmentKey};
use bytes::Bytes;
use tessera_accel::checksum::crc32c;
use tessera_accel::coder::MOST_STRIPE_BYTES;
use tessera_accel::erasure::MAX_FRAGMENTS;
use tessera_accel::hash::{HASH_BYTES, Hash, group_count};
use tessera_failpoint as failpoint;
use tessera_segment::RecordMeta;
use tessera_stripe::check_part;
use tessera_wire::data::{GetFragments, GetItem, PutFragments, PutItem};
use tessera_wire::frame::{MAX_PAYLOAD_BYTES, decode_message};
use tessera_wire::{Code, Error, Kind};

/// A put whose lengths and checksums are valid.
#[derive(Clone, Debug, PartialEq)]
pub struct CheckedPut {
    /// Reply once durable instead of once written.
    pub sync: bool,
    /// (disk id, fragment), in the order of the request.
    pub items: Vec<(u64, AppendItem)>,
}

impl CheckedPut {
    /// Total bytes of the fragments.
    pub(crate) fn len_bytes(&self) -> u64 {
        self.items.iter().map(|(_, item)| item.data.len() as u64).sum()
    }
}

/// A request that a node serves.
#[derive(Debug)]
pub enum NodeRequest {
    /// For the core: [`crate::core::Event::Put`].
    Put(CheckedPut),
    /// For the core: [`crate::core::Event::Status`].
    Status,
    /// For [`crate::read`], on the connection's thread.
    Get(GetFragments),
}

/// Lengths of the fragments in a request's payload; empty for requests without fragments.
pub(crate) fn pieces(kind: u16, body: &[u8]) -> Vec<u32> {
    let put = match kind == Kind::PutFragments as u16 {
        true => message::<PutFragments>(kind, body).unwrap_or_default(),
        false => PutFragments::default(),
    };
    put.items.iter().map(|item| item.len_bytes).collect()
}

/// Decodes and checks a request. `sums` are the checksums of its fragments, if they were computed while receiving it.
///
/// # Errors
/// `Invalid`: the peer broke the protocol or a limit. `Corrupt`: the payload changed in transit. `Unsupported`: this
/// release does not serve the request.
pub fn decode(config: &NodeConfig, kind: u16, body: &[u8], payload: Bytes, sums: &[u32]) -> Result<NodeRequest, Error> {
    match Kind::from_number(kind) {
        Some(Kind::PutFragments) => Ok(NodeRequest::Put(check_put(config, message(kind, body)?, &payload, sums)?)),
        Some(Kind::GetFragments) => {
            no_payload(kind, &payload)?;
            let get: GetFragments = message(kind, body)?;
            check_get(config, &get)?;
            Ok(NodeRequest::Get(get))
        }
        Some(Kind::GetNodeStatus) => no_payload(kind, &payload).map(|()| NodeRequest::Status),
        Some(known) => {
            Err(Error::new(Code::Unsupported, format!("{} is not for a node; send it to the manager", known.name())))
        }
        None => Err(Error::new(
            Code::Unsupported,
            format!("message kind {kind:#06x} is unknown to this release; run the same release on both sides"),
        )),
    }
}

/// Decodes a message; a failure is the peer's fault.
pub(crate) fn message<M: prost::Message + Default>(kind: u16, body: &[u8]) -> Result<M, Error> {
    decode_message(kind, body).map_err(|e| invalid(e.to_string()))
}

fn no_payload(kind: u16, payload: &Bytes) -> Result<(), Error> {
    match payload.len() {
        0 => Ok(()),
        len => Err(invalid(format!("message of kind {kind:#06x} came with {len} payload bytes, it has none"))),
    }
}

/// Checks a put and splits its payload into fragments without copying them. `sums`: see [`decode`].
fn check_put(config: &NodeConfig, put: PutFragments, payload: &Bytes, sums: &[u32]) -> Result<CheckedPut, Error> {
    check_count(config, put.items.len())?;
    if put.session_id == 0 {
        return Err(invalid("a put names its session; only repair on this very node writes without one".into()));
    }
    let announced: u64 = put.items.iter().map(|item| u64::from(item.len_bytes)).sum();
    if announced != payload.len() as u64 {
        return Err(invalid(format!(
            "the put's fragments have {announced} bytes together, its payload has {}",
            payload.len()
        )));
    }
    let mut items = Vec::with_capacity(put.items.len());
    let mut at = 0;
    for (number, item) in put.items.into_iter().enumerate() {
        let end = at + item.len_bytes as usize;
        items.push(check_item(config, put.session_id, item, payload.slice(at..end), sums.get(number).copied())?);
        at = end;
    }
    assert_eq!(at, payload.len(), "the fragments of a put are its payload");
    Ok(CheckedPut { sync: !put.no_sync, items })
}

fn check_item(
    config: &NodeConfig,
    session_id: u64,
    item: PutItem,
    data: Bytes,
    sum: Option<u32>,
) -> Result<(u64, AppendItem), Error> {
    let bad = |what: String| invalid(format!("chunk {} fragment {}: {what}", item.chunk_id, item.fragment));
    if item.chunk_id == 0 || item.disk_id == 0 || item.pg_id == 0 {
        return Err(bad("chunk, disk and group must be named (none may be 0)".into()));
    }
    if item.fragment as usize >= MAX_FRAGMENTS {
        return Err(bad(format!("a chunk has at most {MAX_FRAGMENTS} fragments, numbered from 0")));
    }
    let Ok(chunk_hash) = <[u8; HASH_BYTES]>::try_from(&item.hash[..]) else {
        return Err(bad(format!("a chunk name has {HASH_BYTES} bytes, got {}", item.hash.len())));
    };
    if item.chunk_len_bytes == 0 || item.chunk_len_bytes > config.max_chunk_bytes {
        return Err(bad(format!("a chunk has 1 to {} bytes, got {}", config.max_chunk_bytes, item.chunk_len_bytes)));
    }
    // An upper bound for every class. The core checks the exact length, because it knows the class.
    let longest = item.chunk_len_bytes.saturating_add(u64::from(MOST_STRIPE_BYTES));
    if u64::from(item.len_bytes) > longest {
        return Err(bad(format!(
            "{} bytes are more than any fragment of a chunk of {} bytes has",
            item.len_bytes, item.chunk_len_bytes
        )));
    }
    let groups_len = group_count(item.chunk_len_bytes) * HASH_BYTES as u64;
    if item.groups.len() as u64 != groups_len {
        return Err(bad(format!(
            "a chunk of {} bytes has {groups_len} bytes of group hashes, got {}",
            item.chunk_len_bytes,
            item.groups.len()
        )));
    }
    let got = sum.unwrap_or_else(|| crc32c(&data));
    if got != item.crc32c {
        return Err(Error::new(
            Code::Corrupt,
            format!(
                "chunk {} fragment {}: arrived with checksum {got:#010x}, announced {:#010x}; send it again",
                item.chunk_id, item.fragment, item.crc32c
            ),
        ));
    }
    check_content(&item, &Hash(chunk_hash), &data)?;
    let meta = RecordMeta {
        session_id,
        pg_id: item.pg_id,
        epoch: item.epoch,
        domain: item.domain,
        class_id: item.class_id,
        chunk_hash,
        chunk_len_bytes: item.chunk_len_bytes,
        ..RecordMeta::default()
    };
    let key = FragmentKey { chunk_id: item.chunk_id, fragment: item.fragment };
    let append = AppendItem { key, meta, groups: item.groups, offset: item.offset, crc32c: item.crc32c, data };
    Ok((item.disk_id, append))
}

/// Checks that a copy or slice holds the bytes of the chunk that the put names. Parity cannot be checked alone.
fn check_content(item: &PutItem, name: &Hash, data: &Bytes) -> Result<(), Error> {
    let (groups, _) = item.groups.as_chunks::<HASH_BYTES>();
    let (leaves, rest) = item.leaves.as_chunks::<HASH_BYTES>();
    let Some(offset) = item.offset.filter(|_| !failpoint::is_active("node.content_unchecked")) else { return Ok(()) };
    if !rest.is_empty() {
        return Err(invalid(format!("chunk {}: {} bytes of leaf hashes", item.chunk_id, item.leaves.len())));
    }
    check_part(name, item.chunk_len_bytes, groups, leaves, offset, data).map_err(|error| {
        let (chunk_id, fragment) = (item.chunk_id, item.fragment);
        Error::new(
            Code::Corrupt,
            format!("chunk {chunk_id} fragment {fragment}: {error}; send the bytes that {name} names"),
        )
    })
}

/// Checks a get, except for what depends on the disks.
fn check_get(config: &NodeConfig, get: &GetFragments) -> Result<(), Error> {
    check_count(config, get.items.len())?;
    let wanted: u64 = get.items.iter().filter(|item| !item.whole).map(|item| u64::from(item.len_bytes)).sum();
    if wanted > u64::from(MAX_PAYLOAD_BYTES) {
        return Err(invalid(format!(
            "the get asks for {wanted} bytes, an answer holds at most {MAX_PAYLOAD_BYTES}; ask for less at a time"
        )));
    }
    get.items.iter().try_for_each(check_get_item)
}

fn check_get_item(item: &GetItem) -> Result<(), Error> {
    let bad = |what: &str| Err(invalid(format!("chunk {} fragment {}: {what}", item.chunk_id, item.fragment)));
    if item.whole && (item.offset != 0 || item.len_bytes != 0) {
        return bad("`whole` goes without offset and length");
    }
    if item.offset.checked_add(item.len_bytes).is_none() {
        return bad("offset and length together pass 2^32");
    }
    Ok(())
}

fn check_count(config: &NodeConfig, count: usize) -> Result<(), Error> {
    match count {
        0 => Err(invalid("no fragment is named; name at least one".into())),
        n if n > config.max_items => {
            Err(invalid(format!("{n} fragments in one request, at most {} are accepted", config.max_items)))
        }
        _ => Ok(()),
    }
}

fn invalid(message: String) -> Error {
    Error::new(Code::Invalid, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(data: &[u8]) -> PutItem {
        PutItem {
            chunk_id: 7,
            fragment: 1,
            disk_id: 3,
            pg_id: 2,
            epoch: 1,
            domain: 0,
            class_id: 1,
            hash: Bytes::from(vec![9; 32]),
            chunk_len_bytes: 400,
            len_bytes: data.len() as u32,
            crc32c: crc32c(data),
            groups: Bytes::new(),
            offset: None,
            leaves: Vec::new(),
        }
    }

    fn put(items: Vec<PutItem>, payload: &[u8]) -> Result<CheckedPut, Error> {
        let put = PutFragments { session_id: 5, items, no_sync: false, hints: vec![] };
        check_put(&NodeConfig::default(), put, &Bytes::copy_from_slice(payload), &[])
    }

    #[test]
    fn good_puts_are_cut_without_copying() {
        let payload = Bytes::from((0..200u8).collect::<Vec<_>>());
        let (a, b) = (item(&payload[..128]), item(&payload[128..]));
        let request = PutFragments { session_id: 5, items: vec![a, b], no_sync: true, hints: vec![] };
        let checked = check_put(&NodeConfig::default(), request, &payload, &[]).unwrap();
        assert!(!checked.sync);
        assert_eq!(checked.items[1].1.data.as_ptr(), payload[128..].as_ptr());
        assert_eq!(checked.len_bytes(), 200);
    }

    /// P14: every bad field is refused by name, with a typed code.
    #[test]
    fn bad_puts_are_refused_one_by_one() {
        let data = [1u8; 100];
        type Spoil = Box<dyn Fn(&mut PutItem)>;
        let spoilt: Vec<(&str, Spoil)> = vec![
            ("none may be 0", Box::new(|i| i.chunk_id = 0)),
            ("none may be 0", Box::new(|i| i.disk_id = 0)),
            ("none may be 0", Box::new(|i| i.pg_id = 0)),
            ("numbered from 0", Box::new(|i| i.fragment = 255)),
            ("name has 32 bytes", Box::new(|i| i.hash = Bytes::from_static(b"short"))),
            ("1 to", Box::new(|i| i.chunk_len_bytes = 0)),
            ("1 to", Box::new(|i| i.chunk_len_bytes = u64::MAX)),
            ("group hashes", Box::new(|i| i.groups = Bytes::from(vec![0; 32]))),
            ("group hashes", Box::new(|i| i.chunk_len_bytes = 20_000)),
            ("payload has 100", Box::new(|i| i.len_bytes = 99)),
            ("payload has 100", Box::new(|i| i.len_bytes = u32::MAX)),
        ];
        let long = vec![1u8; MOST_STRIPE_BYTES as usize + 65];
        let error = put(vec![PutItem { chunk_len_bytes: 64, ..item(&long) }], &long).unwrap_err();
        assert!(error.message.contains("more than any fragment"), "{error}");
        for (expected, spoil) in spoilt {
            let mut it = item(&data);
            spoil(&mut it);
            let error = put(vec![it], &data).unwrap_err();
            assert_eq!(error.code(), Code::Invalid, "{error}");
            assert!(error.message.contains(expected), "{error} should say {expected:?}");
        }
        assert_eq!(put(vec![], &[]).unwrap_err().code(), Code::Invalid);
        assert_eq!(put(vec![item(&data); 5000], &[]).unwrap_err().code(), Code::Invalid);
        let sessionless = PutFragments { session_id: 0, items: vec![item(&data)], no_sync: false, hints: vec![] };
        let payload = Bytes::copy_from_slice(&data);
        // Session 0 can bring back deleted fragments (P3).
        let error = check_put(&NodeConfig::default(), sessionless, &payload, &[crc32c(&data)]).unwrap_err();
        assert!(error.code() == Code::Invalid && error.message.contains("session"), "{error}");
        let mut rotten = item(&data);
        rotten.crc32c ^= 1;
        assert_eq!(put(vec![rotten], &data).unwrap_err().code(), Code::Corrupt);
    }

    /// P2: a slice is taken only if it is a part of the chunk that the put names. A checksum that fits does not help.
    #[test]
    fn only_slices_of_the_named_chunk_are_taken() {
        let chunk: Vec<u8> = (0..100_000u64).map(|i| (i * i % 251) as u8).collect();
        let tree = tessera_accel::hash::tree(&chunk);
        let slice = &chunk[32_768..65_536];
        let good = PutItem {
            hash: Bytes::copy_from_slice(&tree.root.0),
            chunk_len_bytes: chunk.len() as u64,
            groups: tree.groups.concat().into(),
            offset: Some(32_768),
            ..item(slice)
        };
        assert!(put(vec![good.clone()], slice).is_ok());
        let refused = |item: PutItem, bytes: &[u8]| {
            let error =
                put(vec![PutItem { crc32c: crc32c(bytes), len_bytes: bytes.len() as u32, ..item }], bytes).unwrap_err();
            assert_eq!(error.code(), Code::Corrupt, "{error}");
        };
        let mut flipped = slice.to_vec();
        flipped[77] ^= 1;
        refused(good.clone(), &flipped);
        refused(PutItem { offset: Some(0), ..good.clone() }, slice);
        refused(PutItem { offset: Some(u64::MAX), ..good.clone() }, slice);
        let mut groups = good.groups.to_vec();
        groups[0] ^= 1;
        refused(PutItem { groups: groups.into(), ..good.clone() }, slice);
        refused(PutItem { hash: Bytes::from(vec![9; 32]), ..good.clone() }, slice);
        let error = put(vec![PutItem { leaves: vec![0; 31], ..good }], slice).unwrap_err();
        assert_eq!(error.code(), Code::Invalid, "{error}");
    }

    #[test]
    fn bad_gets_and_unknown_kinds_are_refused() {
        let config = NodeConfig::default();
        let get = |item: GetItem| check_get(&config, &GetFragments { items: vec![item], hints: vec![] });
        let base = GetItem { chunk_id: 1, disk_id: 1, len_bytes: 5, ..Default::default() };
        assert!(get(base).is_ok());
        assert!(get(GetItem { whole: true, ..base }).is_err());
        assert!(get(GetItem { offset: u32::MAX, ..base }).is_err());
        assert!(get(GetItem { len_bytes: MAX_PAYLOAD_BYTES + 1, ..base }).is_err());
        for (kind, code) in [(0x7777, Code::Unsupported), (Kind::OpenWrite as u16, Code::Unsupported)] {
            assert_eq!(decode(&config, kind, &[], Bytes::new(), &[]).unwrap_err().code(), code);
        }
        let garbage = decode(&config, Kind::PutFragments as u16, &[0xff; 40], Bytes::new(), &[]).unwrap_err();
        assert_eq!(garbage.code(), Code::Invalid);
        let noise = decode(&config, Kind::GetNodeStatus as u16, &[], Bytes::from_static(b"x"), &[]).unwrap_err();
        assert_eq!(noise.code(), Code::Invalid);
    }
}
