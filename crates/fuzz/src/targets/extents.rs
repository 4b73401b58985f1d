//! Pages of extents, as the manager's database and its log hold them, and runs of extents as a commit brings them.

use crate::Target;
use crate::input::{Parts, split};
use crate::proto;
use prost::Message;
use tessera_disk::SplitMix64;
use tessera_manager::db::pages;
use tessera_wire::Extent;
use tessera_wire::manager::PageExtents;

/// See the module.
pub const TARGET: Target = Target {
    name: "extents",
    run,
    seeds,
    adapt,
    runs: 6_000,
    base_bytes: 64 << 10,
    // A byte of a length and one of a chunk make an extent of 40 bytes, which is copied a few times.
    bytes_per_byte: 300,
};

/// The first part is where the first page begins; the others are pages, each laid over those before.
#[must_use]
pub fn run(input: &[u8]) -> String {
    let parts = split(input);
    let start = parts.first().and_then(|part| part.first_chunk()).map_or(0, |bytes| u64::from_le_bytes(*bytes));
    let (mut file, mut done) = (Vec::new(), String::new());
    for column in parts.iter().skip(1) {
        let extents = pages::decode(start, column);
        check_reads(column, &extents);
        let sound = pages::are_ordered(&extents) && extents.iter().all(is_sound);
        done += &format!("{sound} {};", extents.len().min(300).next_power_of_two().leading_zeros());
        if sound {
            check_page(&extents);
            file = overlaid(&file, &extents);
        }
    }
    done
}

/// The three readers of a page agree.
fn check_reads(column: &[u8], extents: &[Extent]) {
    let mut chunks = Vec::new();
    pages::for_each_chunk(column, |chunk| chunks.push(chunk));
    let named: Vec<u64> = extents.iter().map(|extent| extent.chunk_id).filter(|&chunk| chunk != 0).collect();
    assert_eq!(chunks, named, "references are counted of the extents that are read");
    assert_eq!(pages::count(column), extents.len(), "extents are counted as they are read");
}

/// As the manager lets extents pass: `Extent`s of a commit have ends within 63 bits, and holes no offset into a chunk.
fn is_sound(extent: &Extent) -> bool {
    let ends = [extent.offset, extent.chunk_offset].map(|at| at.checked_add(extent.len_bytes));
    ends.iter().all(|end| end.is_some_and(|end| end < 1 << 63)) && (extent.chunk_id != 0 || extent.chunk_offset == 0)
}

fn check_page(extents: &[Extent]) {
    let Some(first) = extents.first() else { return };
    let column = pages::encode(extents);
    assert_eq!(pages::decode(first.offset, &column), extents, "a page returns from its encoding");
}

fn overlaid(file: &[Extent], extents: &[Extent]) -> Vec<Extent> {
    let all = pages::overlay(file, extents);
    assert!(pages::are_ordered(&all), "an overlay is in order");
    let packed = pages::pack(&all);
    for page in &packed {
        pages::assert_page(page);
        check_page(page);
    }
    let packed = packed.concat();
    assert_eq!(pages::data_bytes(&packed), pages::data_bytes(&all), "packing loses nothing");
    packed
}

fn seeds() -> Vec<Parts> {
    let page = |lens: &[u64], chunks: &[u64], gaps: &[u64], offsets: &[u64]| {
        let name_prefixes = chunks.iter().map(|chunk| chunk << 56).collect();
        let page = PageExtents {
            lens: lens.to_vec(),
            chunks: chunks.to_vec(),
            gaps: gaps.to_vec(),
            chunk_offsets: offsets.to_vec(),
            name_prefixes,
        };
        page.encode_to_vec()
    };
    let many: Vec<u64> = (1..=256).collect();
    vec![
        vec![0_u64.to_le_bytes().to_vec(), page(&[4096], &[7], &[], &[])],
        vec![10_u64.to_le_bytes().to_vec(), page(&[5, 7, 1], &[1, 2, 3], &[0, 0, 18], &[0, 3, 0])],
        vec![0_u64.to_le_bytes().to_vec(), page(&many, &many, &[], &many), page(&[9, 9], &[0, 4], &[3, 2000], &[])],
    ]
}

fn adapt(parts: &mut Parts, rng: &mut SplitMix64) {
    for part in parts.iter_mut().skip(1) {
        if rng.below(2) > 0 {
            proto::mutate(part, rng);
        }
    }
}
