//! Records that end with a line break.

use super::{Block, MAX_RECORD_BYTES, bad_record};
use crate::error::Error;
use crate::layout::Unit;
use crate::source::Source;
use memchr::memchr;

/// Bytes read beyond a unit at first, to end its last record.
pub(super) const MARGIN_BYTES: u64 = 1024;

/// Reads a unit and the rest of its last record. The records are those behind a line break inside the unit; the first
/// record of a file belongs to the first unit.
pub(crate) fn load(source: &dyn Source, unit: Unit, mut bytes: Vec<u8>) -> Result<Block, Error> {
    source.read_into(unit.file, unit.offset, unit.len_bytes + MARGIN_BYTES, &mut bytes)?;
    let own = unit.len_bytes as usize;
    let first = if unit.offset == 0 { Some(0) } else { memchr(b'\n', &bytes[..own]).map(|at| at + 1) };
    let Some(start) = first else {
        return Ok(Block { unit, offset: unit.offset, bytes: Vec::new(), records: 0..0 });
    };
    let mut from = own;
    let end = loop {
        if let Some(at) = memchr(b'\n', &bytes[from.min(bytes.len())..]) {
            break from + at + 1;
        }
        from = bytes.len().max(own);
        if !extend(source, unit, &mut bytes)? {
            break bytes.len();
        }
    };
    Ok(Block { unit, offset: unit.offset, bytes, records: start.min(end)..end })
}

/// Reads on behind `bytes`, twice as far each time. False at the end of the file.
pub(super) fn extend(source: &dyn Source, unit: Unit, bytes: &mut Vec<u8>) -> Result<bool, Error> {
    let beyond = (bytes.len() as u64).saturating_sub(unit.len_bytes).max(MARGIN_BYTES);
    if beyond > MAX_RECORD_BYTES {
        let file = &source.files()[unit.file as usize];
        let message = format!("a record is longer than {} MiB; is this text?", MAX_RECORD_BYTES >> 20);
        return Err(bad_record(&file.name, unit.end(), message));
    }
    let more = source.read_vec(unit.file, unit.offset + bytes.len() as u64, beyond)?;
    bytes.extend_from_slice(&more);
    Ok(!more.is_empty())
}

/// Calls `each` with every line and its offset in the records. A carriage return before the line break is left out, as
/// DuckDB and Python do.
pub(crate) fn for_each<'a, E>(
    records: &'a [u8],
    mut each: impl FnMut(usize, &'a [u8]) -> Result<(), E>,
) -> Result<(), E> {
    let mut at = 0;
    while at < records.len() {
        let end = memchr(b'\n', &records[at..]).map_or(records.len(), |len| at + len);
        let line = &records[at..end];
        each(at, line.strip_suffix(b"\r").unwrap_or(line))?;
        at = end + 1;
    }
    Ok(())
}
