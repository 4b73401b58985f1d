//! P14: files whose checksums fit and whose content does not. Nothing panics, and the error names the file.

use std::sync::Arc;

use tessera_disk::record::parse_numbered_name;
use tessera_disk::{Disk, OpenMode, SimDisk};

use crate::cell::FOOTER_BYTES;
use crate::error::Error;
use crate::options::{Background, Options};
use crate::page::{self, crc32c};
use crate::store::Store;

const PAGE_BYTES: usize = 2048;
const KEYS: u32 = 100;

fn open(sim: &SimDisk, apart_bytes: u64) -> Result<Store, Error> {
    let page_bytes = PAGE_BYTES as u32;
    let options = Options { page_bytes, apart_bytes, background: Background::Inline, ..Options::default() };
    Store::open_on(Arc::new(sim.clone()), "", options)
}

fn fill(store: &Store) {
    (0..KEYS).for_each(|n| store.put(&n.to_be_bytes(), &[0xaa; 100]).unwrap());
}

/// A store of one cell on a disk, and the path of the cell.
fn stored(apart_bytes: u64) -> (SimDisk, String) {
    let sim = SimDisk::new(0);
    let store = open(&sim, apart_bytes).unwrap();
    fill(&store);
    store.compact().unwrap();
    drop(store);
    let path = sim.paths().into_iter().find(|path| path.ends_with(".cell")).unwrap();
    (sim, path)
}

fn edit(sim: &SimDisk, path: &str, edit: impl FnOnce(&mut [u8])) {
    let mut bytes = sim.contents(path).unwrap();
    edit(&mut bytes);
    sim.open(path, OpenMode::Existing).unwrap().write_at(0, &bytes).unwrap();
}

/// Replaces bytes on a cell's first page, with a checksum that fits.
fn forge_page(sim: &SimDisk, path: &str, from: &[u8], to: &[u8]) {
    let number = parse_numbered_name(path, ".cell").unwrap();
    edit(sim, path, |bytes| {
        let page = &mut bytes[..PAGE_BYTES];
        let at = page.windows(from.len()).position(|window| window == from).unwrap();
        page[at..at + to.len()].copy_from_slice(to);
        let crc = crc32c(&page[4..]) ^ page::place(number, 0);
        page[..4].copy_from_slice(&crc.to_le_bytes());
    });
}

/// Replaces numbers in a cell's footer, with a checksum that fits.
fn forge_footer(sim: &SimDisk, path: &str, numbers: &[(usize, &[u8])]) {
    edit(sim, path, |bytes| {
        let at = bytes.len() - FOOTER_BYTES;
        let footer = &mut bytes[at..];
        numbers.iter().for_each(|(at, number)| footer[*at..at + number.len()].copy_from_slice(number));
        let crc = crc32c(&footer[..FOOTER_BYTES - 4]);
        footer[FOOTER_BYTES - 4..].copy_from_slice(&crc.to_le_bytes());
    });
}

/// Merges meet the forged cell, name it, and leave it out from then on.
fn merges_name(sim: &SimDisk, path: &str, apart_bytes: u64, what: &str) {
    let store = open(sim, apart_bytes).unwrap();
    store.put(&KEYS.to_be_bytes(), b"new").unwrap();
    let error = store.compact().unwrap_err();
    assert!(error.is_damage() && error.to_string().contains(path), "{error}");
    assert!(error.to_string().contains(what), "{error}");
    assert_eq!(store.stats().damaged_cells, 1);
    let names = |suffix: &str| sim.paths().iter().filter(|path| path.ends_with(suffix)).count();
    assert_eq!(names(".cell"), 2, "an unfinished cell is left");
    store.settle().unwrap();
}

#[test]
fn a_pointer_to_a_foreign_value_file_names_its_cell() {
    let (sim, path) = stored(64);
    let values = sim.paths().iter().find_map(|path| parse_numbered_name(path, ".values")).unwrap();
    forge_page(&sim, &path, &values.to_le_bytes(), &(values + 77).to_le_bytes());
    merges_name(&sim, &path, 64, "of no merged cell");
}

#[test]
fn keys_that_do_not_ascend_name_their_cell() {
    let (sim, path) = stored(u64::MAX);
    forge_page(&sim, &path, &[4, 101, 0, 0, 0, 1], &[4, 101, 0, 0, 0, 0]);
    merges_name(&sim, &path, u64::MAX, "do not ascend");
}

#[test]
fn a_footer_that_does_not_fit_index_and_values_is_refused() {
    let (most, count) = ([255; 8], u64::from(KEYS));
    let forged: [&[(usize, &[u8])]; 7] = [
        // The bytes of pages, index and bounds together pass 64 bits.
        &[(12, &most[..4]), (24, &most[..4]), (28, &most[..4]), (32, &most[..4])],
        &[(40, &(count - 1).to_le_bytes())],
        &[(40, &(count + 1).to_le_bytes())],
        &[(48, &(count + 1).to_le_bytes())],
        &[(56, &(count - 1).to_le_bytes())],
        &[(56, &most)],
        &[(40, &most), (56, &most)],
    ];
    for apart_bytes in [64, u64::MAX] {
        for numbers in forged {
            let (sim, path) = stored(apart_bytes);
            forge_footer(&sim, &path, numbers);
            let error = open(&sim, apart_bytes).unwrap_err();
            assert!(error.is_damage() && error.to_string().contains(&path), "{numbers:?}: {error}");
        }
    }
}

/// Opening reads no records, so it cannot tell how many bytes they have. A merge can.
#[test]
fn a_footer_with_too_few_bytes_is_found_by_a_merge() {
    let (sim, path) = stored(u64::MAX);
    forge_footer(&sim, &path, &[(56, &(2 * u64::from(KEYS)).to_le_bytes())]);
    let store = open(&sim, u64::MAX).unwrap();
    store.put(&KEYS.to_be_bytes(), b"new").unwrap();
    let error = store.compact().unwrap_err();
    assert!(error.is_damage() && error.to_string().contains(&path), "{error}");
    assert_eq!((store.stats().damaged_cells, store.verify().damage.len()), (1, 1));
    assert_eq!(store.get(&3_u32.to_be_bytes()).unwrap(), Some(vec![0xaa; 100]));
    assert_eq!(sim.paths().iter().filter(|path| path.ends_with(".cell")).count(), 2);
}
