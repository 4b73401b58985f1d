//! The segments of an ELF core image (System V ABI, "Object Files" and "Program Loading"; core(5)): a process's
//! memory, mapping by mapping.

const ELF_HEADER_BYTES: usize = 64;
const ENTRY_BYTES: usize = 56;
/// Of a file of 64-bit class, little-endian, version 1.
const IDENT: &[u8] = b"\x7fELF\x02\x01\x01";
const ET_CORE: u16 = 4;
const PT_LOAD: u32 = 1;

/// Offsets where the segments of at least `floor_bytes` begin and end, in rising order, if a file that begins with
/// `head` is a core image (64-bit, little-endian) whose table of segments lies in `head`; else nothing.
pub fn core_segments(head: &[u8], floor_bytes: u64) -> Vec<u64> {
    let mut edges: Vec<u64> = entries(head)
        .unwrap_or_default()
        .chunks_exact(ENTRY_BYTES)
        .filter(|entry| u32_at(entry, 0) == Some(PT_LOAD))
        .filter_map(|entry| {
            let (offset, len) = (u64_at(entry, 8)?, u64_at(entry, 32)?);
            Some([offset, offset.checked_add(len).filter(|_| len >= floor_bytes.max(1))?])
        })
        .flatten()
        .collect();
    edges.sort_unstable();
    edges.dedup();
    edges
}

/// The program header table.
fn entries(head: &[u8]) -> Option<&[u8]> {
    let is_core = head.starts_with(IDENT) && u16_at(head, 16)? == ET_CORE;
    let sizes_fit = is_core && usize::from(u16_at(head, 54)?) == ENTRY_BYTES;
    let start = usize::try_from(u64_at(head, 32)?).ok().filter(|start| sizes_fit && *start >= ELF_HEADER_BYTES)?;
    head.get(start..start.checked_add(usize::from(u16_at(head, 56)?) * ENTRY_BYTES)?)
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}
