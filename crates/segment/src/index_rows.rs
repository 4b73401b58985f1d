//! The rows of [`crate::ConaIndex`]: keys and values in its CONA store (docs/formats.md, section 6).

use std::array;

use tessera_disk::record::Field;
use tessera_disk::{Identity, layout};

use crate::index::{Entry, FragmentId, IndexError, Point, SegmentRow, Tombstone};

/// Format version. An index of another version is rebuilt: it is a cache.
pub(crate) const INDEX_VERSION: u32 = 1;
/// First byte of a key: the kind of its row.
pub(crate) const FRAGMENT: u8 = 1;
pub(crate) const TOMBSTONE: u8 = 2;
pub(crate) const SEGMENT: u8 = 3;
pub(crate) const HEAD: u8 = 4;
pub(crate) const ID_KEY_BYTES: usize = 11;
const ENTRY_BYTES: usize = 4 * 8 + 4 * 4;
const SEGMENT_KEY_BYTES: usize = 1 + 8;
const SEGMENT_ROW_BYTES: usize = 8 + 8 + 4;
const HEAD_BYTES: usize = 4 + 4 + 16 + 16 + 4 * 8;

// docs/formats.md, section 6.
const _: () = assert!(ID_KEY_BYTES == 1 + 8 + 2 && ENTRY_BYTES == 48 && SEGMENT_ROW_BYTES == 20 && HEAD_BYTES == 72);
const _: () = assert!(
    FRAGMENT < TOMBSTONE && TOMBSTONE < SEGMENT && SEGMENT < HEAD && HEAD < u8::MAX,
    "kinds of rows, in key order"
);

layout! {
    /// The index's row about itself.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct Head {
        pub(crate) version: u32 = 0,
        pub(crate) cluster_id: [u8; 16] = 8,
        pub(crate) disk_uuid: [u8; 16] = 24,
        pub(crate) point: Point = 40,
        /// Number of entries.
        pub(crate) len: u64 = 64,
    }
}

impl Head {
    pub(crate) fn of(identity: &Identity) -> Self {
        Head {
            version: INDEX_VERSION,
            cluster_id: identity.cluster_id,
            disk_uuid: identity.disk_uuid,
            point: Point::default(),
            len: 0,
        }
    }
}

/// Key of a fragment's row of `kind`.
pub(crate) fn id_key(kind: u8, id: FragmentId) -> [u8; ID_KEY_BYTES] {
    assert!(kind == FRAGMENT || kind == TOMBSTONE, "no fragment has a row of kind {kind}");
    let mut key = [kind; ID_KEY_BYTES];
    key[1..9].copy_from_slice(&id.chunk_id.to_be_bytes());
    key[9..].copy_from_slice(&id.fragment.to_be_bytes());
    key
}

pub(crate) fn segment_key(number: u64) -> [u8; SEGMENT_KEY_BYTES] {
    let mut key = [SEGMENT; SEGMENT_KEY_BYTES];
    key[1..].copy_from_slice(&number.to_be_bytes());
    key
}

fn check_len(what: &'static str, bytes: &[u8], len_bytes: usize) -> Result<(), IndexError> {
    if bytes.len() == len_bytes { Ok(()) } else { Err(IndexError::Malformed { what, len_bytes: bytes.len() }) }
}

pub(crate) fn decode_id(key: &[u8]) -> Result<FragmentId, IndexError> {
    check_len("fragment key", key, ID_KEY_BYTES)?;
    let (chunk_id, fragment) = (Field::take(&key[1..]), Field::take(&key[9..]));
    Ok(FragmentId { chunk_id: u64::from_be_bytes(chunk_id), fragment: u16::from_be_bytes(fragment) })
}

pub(crate) fn decode_segment_key(key: &[u8]) -> Result<u64, IndexError> {
    check_len("segment key", key, SEGMENT_KEY_BYTES)?;
    Ok(u64::from_be_bytes(Field::take(&key[1..])))
}

pub(crate) fn encode_entry(entry: &Entry) -> Vec<u8> {
    let long = [entry.pg_id, entry.sequence, entry.segment, entry.offset].map(u64::to_le_bytes);
    let short = [entry.groups_len, entry.data_len, entry.groups_crc, entry.data_crc].map(u32::to_le_bytes);
    let bytes = [long.as_flattened(), short.as_flattened()].concat();
    assert!(bytes.len() == ENTRY_BYTES, "an entry has {} bytes", bytes.len());
    bytes
}

pub(crate) fn decode_entry(id: FragmentId, value: &[u8]) -> Result<Entry, IndexError> {
    check_len("fragment row", value, ENTRY_BYTES)?;
    let [pg_id, sequence, segment, offset] = array::from_fn(|i| u64::take(&value[8 * i..]));
    let [groups_len, data_len, groups_crc, data_crc] = array::from_fn(|i| u32::take(&value[32 + 4 * i..]));
    Ok(Entry { id, pg_id, sequence, segment, offset, groups_len, data_len, groups_crc, data_crc })
}

pub(crate) fn encode_tombstone(tombstone: &Tombstone) -> Vec<u8> {
    let mut bytes = tombstone.dead_copies.to_le_bytes().to_vec();
    bytes.extend(tombstone.delete.as_ref().map(encode_entry).unwrap_or_default());
    bytes
}

pub(crate) fn decode_tombstone(id: FragmentId, value: &[u8]) -> Result<Tombstone, IndexError> {
    let deleted = value.len() > 4;
    check_len("tombstone", value, if deleted { 4 + ENTRY_BYTES } else { 4 })?;
    let delete = deleted.then(|| decode_entry(id, &value[4..])).transpose()?;
    Ok(Tombstone { dead_copies: u32::take(value), delete })
}

pub(crate) fn encode_segment(row: &SegmentRow) -> Vec<u8> {
    let flags = u32::from(row.damaged) | u32::from(row.sealed) << 1;
    [&row.end.to_le_bytes()[..], &row.live_bytes.to_le_bytes(), &flags.to_le_bytes()].concat()
}

pub(crate) fn decode_segment(value: &[u8]) -> Result<SegmentRow, IndexError> {
    check_len("segment row", value, SEGMENT_ROW_BYTES)?;
    let flags = u32::take(&value[16..]);
    let (damaged, sealed) = (flags & 1 != 0, flags & 2 != 0);
    Ok(SegmentRow { end: u64::take(value), live_bytes: u64::take(&value[8..]), damaged, sealed })
}

pub(crate) fn encode_head(head: &Head) -> Vec<u8> {
    let mut bytes = vec![0; HEAD_BYTES];
    head.put(&mut bytes);
    bytes
}

pub(crate) fn decode_head(value: &[u8]) -> Result<Head, IndexError> {
    check_len("head", value, HEAD_BYTES)?;
    Ok(Head::take(value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn entry(id: FragmentId, n: u64) -> Entry {
        let long = |k: u64| n.wrapping_mul(k).rotate_left(k as u32);
        let short = |k: u64| long(k) as u32;
        Entry {
            id,
            pg_id: long(3),
            sequence: long(5),
            segment: long(7),
            offset: long(11),
            groups_len: short(13),
            data_len: short(17),
            groups_crc: short(19),
            data_crc: short(23),
        }
    }

    proptest! {
        #[test]
        fn rows_come_back(chunk_id: u64, fragment: u16, n: u64, copies: u32, deleted: bool, flags in 0..4_u8) {
            let id = FragmentId { chunk_id, fragment };
            prop_assert_eq!(decode_id(&id_key(FRAGMENT, id)).unwrap(), id);
            prop_assert_eq!(decode_segment_key(&segment_key(n)).unwrap(), n);
            let entry = entry(id, n);
            prop_assert_eq!(decode_entry(id, &encode_entry(&entry)).unwrap(), entry);
            let tombstone = Tombstone { dead_copies: copies, delete: deleted.then_some(entry) };
            prop_assert_eq!(decode_tombstone(id, &encode_tombstone(&tombstone)).unwrap(), tombstone);
            let row = SegmentRow { end: n, live_bytes: chunk_id, damaged: flags & 1 != 0, sealed: flags & 2 != 0 };
            prop_assert_eq!(decode_segment(&encode_segment(&row)).unwrap(), row);
            let head = Head {
                version: copies,
                cluster_id: [fragment as u8; 16],
                disk_uuid: [3; 16],
                point: Point { segment: n, offset: chunk_id, next_sequence: !n },
                len: 5,
            };
            prop_assert_eq!(decode_head(&encode_head(&head)).unwrap(), head);
        }

        /// P14: decoding arbitrary bytes of any length does not panic.
        #[test]
        fn any_bytes_give_a_row_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..90)) {
            let id = FragmentId { chunk_id: 1, fragment: 1 };
            let _ = (decode_id(&bytes).is_ok(), decode_segment_key(&bytes).is_ok(), decode_head(&bytes).is_ok());
            let _ = (decode_entry(id, &bytes).is_ok(), decode_tombstone(id, &bytes).is_ok(), decode_segment(&bytes).is_ok());
        }
    }
}
