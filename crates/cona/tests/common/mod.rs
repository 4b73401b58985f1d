//! Shared by the tests: small stores, keys, a model.
#![allow(dead_code)]

use std::collections::BTreeMap;
use std::sync::Arc;

use tessera_cona::{Background, Error, FilterBits, Options, Shape, Store};
use tessera_disk::{Disk, SplitMix64};

pub type Model = BTreeMap<Vec<u8>, Vec<u8>>;

/// Tiny buffers and pages, so that few writes make many cells.
pub fn small() -> Options {
    Options {
        buffer_bytes: 4096,
        page_bytes: 2048,
        apart_bytes: 400,
        cache_bytes: 4096,
        background: Background::Inline,
        merge_slice_bytes: 64 << 10,
        ..Options::default()
    }
}

/// Random options.
pub fn drawn(rng: &mut SplitMix64) -> Options {
    let growth = 2 + rng.below(3) as u32;
    Options {
        page_bytes: [2048, 4096][rng.below(2) as usize],
        cache_bytes: [0, 4096, 1 << 20][rng.below(3) as usize],
        shape: match rng.below(2) {
            0 => Shape::Doubling { growth },
            _ => Shape::Folded { growth, fold_percent: 20 + rng.below(200) as u32 },
        },
        filter_bits: match rng.below(4) {
            0 => FilterBits::Fixed { upper: 16, last: 0 },
            1 => FilterBits::Fixed { upper: 0, last: 3 },
            2 => FilterBits::Levels { levels: [12, 9, 0, 7, 1, 16, 4, 2], last: 6 },
            _ => FilterBits::Auto,
        },
        buffers: 2 + rng.below(2) as u32,
        apart_bytes: [64, 512, u64::MAX][rng.below(3) as usize],
        ..small()
    }
}

pub fn key(rng: &mut SplitMix64, spread: u64) -> Vec<u8> {
    let n = rng.below(spread);
    match n % 5 {
        0 => n.to_be_bytes().to_vec(),
        1 => format!("user{n:08}").into_bytes(),
        2 => vec![b'a'; 1 + n as usize % 40],
        3 => [&b"long common prefix of many keys, longer than any window"[..], &(n as u16).to_be_bytes()].concat(),
        _ => format!("k{n}").into_bytes(),
    }
}

/// Mostly short, sometimes longer than a page, rarely several pages.
pub fn value(rng: &mut SplitMix64) -> Vec<u8> {
    let len = match rng.below(40) {
        0 => 3000 + rng.below(9000),
        1..=3 => 0,
        4..=10 => 300 + rng.below(900),
        _ => rng.below(120),
    };
    let fill = rng.next_u64() as u8;
    (0..len).map(|i| fill.wrapping_add((i % 251) as u8)).collect()
}

pub fn open(disk: &Arc<dyn Disk>, options: &Options) -> Store {
    Store::open_on(disk.clone(), "", options.clone()).unwrap()
}

pub fn all(scan: impl Iterator<Item = Result<(Vec<u8>, Vec<u8>), Error>>) -> Result<Model, Error> {
    let mut last: Option<Vec<u8>> = None;
    scan.inspect(|item| {
        if let Ok((key, _)) = item {
            assert!(last.as_ref().is_none_or(|l| l < key), "a scan is out of order at {key:?}");
            last = Some(key.clone());
        }
    })
    .collect()
}
