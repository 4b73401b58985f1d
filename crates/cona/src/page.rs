//! A page: records in ascending key order, their offsets, a checksum (docs/formats.md, section 5.2).
//!
//! The checksum is masked with the page's place (cell and page number), so that a page written to the wrong place is
//! damage, too. Parsing checks every field before use and never panics.

use tessera_failpoint as failpoint;

use tessera_disk::record::Field;

use crate::options::{KEY_BYTES_MAX, PAGE_BYTES_MAX, PAGE_BYTES_MIN};
use crate::values::{POINTER_BYTES, Place, Pointer};

/// Bytes before the first record.
pub(crate) const PAGE_HEADER_BYTES: usize = 8;
/// Bytes before the record in the first page of a run.
pub(crate) const RUN_HEADER_BYTES: usize = 16;

/// Added to the length of a key whose value is apart.
const APART: usize = 1 << 11;
const RECORDS: u8 = 1;
const RUN: u8 = 2;

// docs/formats.md, section 5.2: checksum, count, kind, a zero byte; a run adds two words.
const _: () = assert!(PAGE_HEADER_BYTES == 4 + 2 + 1 + 1 && RUN_HEADER_BYTES == PAGE_HEADER_BYTES + 4 + 4);
const _: () = assert!(KEY_BYTES_MAX < APART, "the length of a key leaves the bit free that says where its value is");
const _: () = assert!(PAGE_BYTES_MAX <= u16::MAX as u32, "a slot has 16 bits");
const _: () =
    assert!(PAGE_BYTES_MIN as usize > PAGE_HEADER_BYTES + KEY_BYTES_MAX + 2 * 10 + 2, "a page holds the longest key");

pub(crate) fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// The mask that a page's place adds to its checksum (SplitMix64's finalizer).
pub(crate) fn place(cell: u64, page: u32) -> u32 {
    let z = (cell ^ (u64::from(page) << 40)).wrapping_add(u64::from(page)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z ^ (z >> 31)) as u32
}

/// Appends a number as a varint: seven bits per byte, lowest first.
pub(crate) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

pub(crate) fn varint_bytes(value: u64) -> usize {
    (64 - (value | 1).leading_zeros() as usize).div_ceil(7)
}

/// Reads a varint at `at` and advances `at` past it.
pub(crate) fn get_varint(bytes: &[u8], at: &mut usize) -> Option<u64> {
    let mut value = 0_u64;
    for shift in (0..64).step_by(7) {
        let byte = *bytes.get(*at)?;
        *at += 1;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

/// What a record says of its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content<'a> {
    Delete,
    Value(&'a [u8]),
    /// A value in a value file.
    Apart(Pointer),
}

impl<'a> Content<'a> {
    pub(crate) fn of(value: Option<&'a [u8]>) -> Self {
        value.map_or(Content::Delete, Content::Value)
    }

    pub(crate) fn is_delete(&self) -> bool {
        matches!(self, Content::Delete)
    }

    /// Bytes of the value, wherever it is.
    pub(crate) fn len(&self) -> usize {
        match self {
            Content::Delete => 0,
            Content::Value(value) => value.len(),
            Content::Apart(pointer) => pointer.len,
        }
    }

    /// Bytes of the value or of the pointer in the record.
    pub(crate) fn stored_bytes(&self) -> usize {
        if matches!(self, Content::Apart(_)) { POINTER_BYTES } else { self.len() }
    }
}

/// Encoded bytes of a record: the lengths, the key, the value (`None` is a delete).
pub(crate) fn record_bytes(key: &[u8], value: Option<&[u8]>) -> usize {
    let len = value.map_or(0, <[u8]>::len);
    varint_bytes(key.len() as u64) + varint_bytes(value.map_or(0, |_| len as u64 + 1)) + key.len() + len
}

pub(crate) fn put_record(out: &mut Vec<u8>, key: &[u8], value: Option<&[u8]>) {
    assert!((1..=KEY_BYTES_MAX).contains(&key.len()), "a key of {} bytes", key.len());
    let from = out.len();
    put_varint(out, key.len() as u64);
    put_varint(out, value.map_or(0, |v| v.len() as u64 + 1));
    out.extend_from_slice(key);
    out.extend_from_slice(value.unwrap_or(&[]));
    assert!(out.len() - from == record_bytes(key, value), "a record of {} bytes has another length", out.len() - from);
}

/// Encoded bytes of a record on a page.
pub(crate) fn content_bytes(key: &[u8], content: &Content<'_>) -> usize {
    match content {
        Content::Delete => record_bytes(key, None),
        Content::Value(value) => record_bytes(key, Some(value)),
        Content::Apart(pointer) => {
            let lens = varint_bytes((key.len() | APART) as u64) + varint_bytes(pointer.len as u64 + 1);
            lens + key.len() + POINTER_BYTES
        }
    }
}

/// Appends a record of a page.
pub(crate) fn put_content(out: &mut Vec<u8>, key: &[u8], content: &Content<'_>) {
    let pointer = match content {
        Content::Delete => return put_record(out, key, None),
        Content::Value(value) => return put_record(out, key, Some(value)),
        Content::Apart(pointer) => pointer,
    };
    assert!((1..=KEY_BYTES_MAX).contains(&key.len()), "a key of {} bytes", key.len());
    put_varint(out, (key.len() | APART) as u64);
    put_varint(out, pointer.len as u64 + 1);
    out.extend_from_slice(key);
    let mut place = [0; POINTER_BYTES];
    pointer.place.put(&mut place);
    out.extend_from_slice(&place);
}

/// A decoded record head: where key and value are, and whether the record is a delete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spot {
    pub(crate) key_at: usize,
    pub(crate) value_at: usize,
    pub(crate) value_len: usize,
    pub(crate) deleted: bool,
    /// The value is in a value file; a pointer is in its place.
    pub(crate) apart: bool,
}

impl Spot {
    pub(crate) fn key<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        bytes.get(self.key_at..self.value_at).unwrap_or(&[])
    }

    /// Where the record ends.
    pub(crate) fn end(&self) -> usize {
        self.value_at + if self.apart { POINTER_BYTES } else { self.value_len }
    }

    /// The content, if the record is whole.
    pub(crate) fn content<'a>(&self, bytes: &'a [u8]) -> Option<Content<'a>> {
        let stored = bytes.get(self.value_at..self.end())?;
        Some(match (self.deleted, self.apart) {
            (true, _) => Content::Delete,
            (false, false) => Content::Value(stored),
            (false, true) => Content::Apart(Pointer { place: Place::take(stored), len: self.value_len }),
        })
    }
}

/// Decodes a record head at `at`. The value may reach beyond `bytes`, the key may not.
pub(crate) fn spot(bytes: &[u8], mut at: usize) -> Option<Spot> {
    let word = usize::try_from(get_varint(bytes, &mut at)?).ok()?;
    let (key_len, apart) = (word & (APART - 1), word & APART != 0);
    let marked = usize::try_from(get_varint(bytes, &mut at)?).ok()?;
    let value_at = at.checked_add(key_len).filter(|&end| end <= bytes.len())?;
    if key_len == 0
        || word >= 2 * APART
        || (apart && marked == 0)
        || value_at.checked_add(marked.max(POINTER_BYTES)).is_none()
    {
        return None;
    }
    Some(Spot { key_at: at, value_at, value_len: marked.saturating_sub(1), deleted: marked == 0, apart })
}

/// A checked page.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Page<'a> {
    /// Records, all within the page.
    Records(Records<'a>),
    /// One record that continues in the following pages.
    Run {
        /// Bytes of the record.
        record_bytes: u32,
        /// Masked checksum of the record's bytes after this page.
        rest_crc: u32,
    },
}

/// The records of a page.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Records<'a> {
    bytes: &'a [u8],
    count: usize,
}

impl<'a> Records<'a> {
    pub(crate) fn len(&self) -> usize {
        self.count
    }

    pub(crate) fn spot(&self, index: usize) -> Option<Spot> {
        let slot = self.bytes.len().checked_sub(2 * (index + 1))?;
        let at = usize::from(u16::from_le_bytes([*self.bytes.get(slot)?, *self.bytes.get(slot + 1)?]));
        let limit = self.bytes.len() - 2 * self.count;
        let found = spot(self.bytes, at)?;
        (found.end() <= limit).then_some(found)
    }

    /// The first record whose key is not below `key`, and whether it is equal. `None` if the page is malformed.
    pub(crate) fn search(&self, key: &[u8]) -> Option<(usize, bool)> {
        let (mut low, mut high) = (0, self.count);
        while low < high {
            let middle = (low + high) / 2;
            match self.spot(middle)?.key(self.bytes).cmp(key) {
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Equal => return Some((middle, true)),
                std::cmp::Ordering::Greater => high = middle,
            }
        }
        Some((low, false))
    }
}

/// Checks a page's checksum and header.
///
/// # Errors
/// A description of what is wrong with the bytes.
pub(crate) fn parse(bytes: &[u8], cell: u64, page: u32) -> Result<Page<'_>, String> {
    let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    if bytes.len() < RUN_HEADER_BYTES {
        return Err("the page is shorter than its header".into());
    }
    if !failpoint::is_active("cona.skip_page_check") {
        let (got, expected) = (crc32c(&bytes[4..]) ^ place(cell, page), word(0));
        if got != expected {
            return Err(format!("checksum of the page is {got:#010x}, expected {expected:#010x}"));
        }
    }
    match bytes[6] {
        RECORDS => {
            let count = usize::from(u16::from_le_bytes([bytes[4], bytes[5]]));
            if PAGE_HEADER_BYTES + 2 * count > bytes.len() {
                return Err(format!("the page cannot hold {count} records"));
            }
            Ok(Page::Records(Records { bytes, count }))
        }
        RUN => Ok(Page::Run { record_bytes: word(8), rest_crc: word(12) }),
        kind => Err(format!("page of unknown kind {kind}")),
    }
}

/// Fills in the header of a page of records. `page` is complete and its slots are written.
pub(crate) fn seal_records(bytes: &mut [u8], count: usize, cell: u64, page: u32) {
    assert!(
        count > 0 && PAGE_HEADER_BYTES + 2 * count < bytes.len(),
        "a page of {} bytes holds {count} records",
        bytes.len()
    );
    bytes[4..6].copy_from_slice(&(count as u16).to_le_bytes());
    bytes[6] = RECORDS;
    seal(bytes, cell, page);
}

/// Fills in the header of the first page of a run.
pub(crate) fn seal_run(bytes: &mut [u8], record_bytes: u32, rest_crc: u32, cell: u64, page: u32) {
    assert!(RUN_HEADER_BYTES + record_bytes as usize > bytes.len(), "a run of {record_bytes} bytes fits one page");
    bytes[4..6].copy_from_slice(&1_u16.to_le_bytes());
    bytes[6] = RUN;
    bytes[8..12].copy_from_slice(&record_bytes.to_le_bytes());
    bytes[12..16].copy_from_slice(&rest_crc.to_le_bytes());
    seal(bytes, cell, page);
}

fn seal(bytes: &mut [u8], cell: u64, page: u32) {
    let crc = crc32c(&bytes[4..]) ^ place(cell, page);
    bytes[0..4].copy_from_slice(&crc.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// P14: arbitrary bytes give an error or records, never a panic.
        #[test]
        fn any_bytes_parse_or_fail(bytes in proptest::collection::vec(any::<u8>(), 0..600), kind in 0_u8..4, count in 0_u16..40) {
            let mut bytes = bytes;
            if bytes.len() > 8 {
                bytes[6] = kind;
                bytes[4..6].copy_from_slice(&count.to_le_bytes());
            }
            let _guard = failpoint::activate("cona.skip_page_check");
            if let Ok(Page::Records(records)) = parse(&bytes, 1, 2) {
                let _ = records.search(b"key");
                (0..records.len() + 2).for_each(|i| { let _ = records.spot(i).map(|s| (s.key(&bytes).len(), s.content(&bytes).map(|c| c.len()))); });
            }
        }

        #[test]
        fn numbers_come_back(value in any::<u64>()) {
            let mut out = Vec::new();
            put_varint(&mut out, value);
            prop_assert_eq!(out.len(), varint_bytes(value));
            prop_assert_eq!(get_varint(&out, &mut 0), Some(value));
        }
    }
}
