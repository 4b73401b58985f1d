//! The index finds every key of any shape, with about a byte per key.

use super::*;

struct Built {
    index: PageIndex,
    pages: Vec<Vec<Vec<u8>>>,
}

fn build(keys: &[Vec<u8>], keys_a_page: usize, filter_bits: u32) -> Built {
    let mut builder = IndexBuilder::new(filter_bits);
    let mut last: Vec<u8> = Vec::new();
    let pages: Vec<Vec<Vec<u8>>> = keys.chunks(keys_a_page).map(<[_]>::to_vec).collect();
    for page in &pages {
        let hashes: Vec<u64> = page.iter().map(|k| hash_key(k)).collect();
        builder.page(&page[0], &last, &hashes, 1);
        last = page.last().unwrap().clone();
    }
    let index = builder.finish();
    assert_eq!(PageIndex::decode(&index.encode()).as_ref(), Ok(&index));
    Built { index, pages }
}

impl Built {
    /// Mean number of pages read by a lookup of a present key.
    fn reads(&self) -> f64 {
        let (mut reads, mut keys) = (0, 0);
        for (number, page) in self.pages.iter().enumerate() {
            for key in page {
                let c = self.index.candidates(key).unwrap();
                let hash = hash_key(key);
                let tried: Vec<usize> = (c.from..=c.to)
                    .rev()
                    .filter(|&p| self.index.may_hold(c.block, p, hash))
                    .map(|p| self.index.physical(c.block, p) as usize)
                    .collect();
                let found = tried.iter().position(|&p| p == number);
                reads += found.unwrap_or_else(|| panic!("{key:?} is on page {number}, not in {tried:?} {c:?}")) + 1;
                keys += 1;
            }
        }
        reads as f64 / keys as f64
    }

    fn bytes_a_key(&self) -> f64 {
        let (index, filter) = self.index.memory_bytes();
        (index + filter) as f64 / self.index.keys as f64
    }
}

fn numbers(n: u64, render: impl Fn(u64) -> Vec<u8>) -> Vec<Vec<u8>> {
    let mut keys: Vec<Vec<u8>> = (0..n).map(render).collect();
    keys.sort_unstable();
    keys.dedup();
    keys
}

fn mixed(i: u64) -> u64 {
    hash_key(&i.to_le_bytes())
}

#[test]
fn every_kind_of_key_is_found_in_little_memory() {
    let kinds: [(&str, f64, Vec<Vec<u8>>); 8] = [
        ("random bytes", 1.2, numbers(12_000, |i| [mixed(i).to_be_bytes(), mixed(i + 1).to_be_bytes()].concat())),
        ("user and digits", 1.2, numbers(12_000, |i| format!("user{:016}", mixed(i) % 10_000_000_000_000_000).into())),
        ("counted", 1.2, numbers(12_000, |i| i.to_be_bytes().to_vec())),
        ("fragments", 1.2, numbers(12_000, |i| [&(i / 6).to_be_bytes()[..], &(i as u16 % 6).to_be_bytes()].concat())),
        ("counted in words", 1.2, numbers(12_000, |i| format!("item-{i}").into())),
        (
            "paths",
            3.0,
            numbers(12_000, |i| {
                format!("/home/u{}/project-{}/src/file{:05}.rs", mixed(i) % 40, mixed(i + 7) % 9, i).into()
            }),
        ),
        ("prefixes of one another", 40.0, numbers(700, |i| vec![b'a'; i as usize])),
        (
            "far apart and deep",
            6.0,
            numbers(3_000, |i| [&mixed(i / 3).to_be_bytes()[..], &[7; 40], &[(i % 3) as u8]].concat()),
        ),
    ];
    for (name, bound, keys) in kinds {
        for keys_a_page in [1, 7, 18, 60] {
            let built = build(&keys, keys_a_page, 6);
            let (reads, bytes) = (built.reads(), built.bytes_a_key());
            println!("{name}, {keys_a_page} a page: {reads:.4} reads, {bytes:.3} B/key");
            assert!(reads < 1.05, "{name}: {reads} reads");
            assert!(keys_a_page < 18 || bytes < bound, "{name}: {bytes} B/key");
        }
    }
}

#[test]
fn random_keys_take_what_the_text_says() {
    let keys = numbers(200_000, |i| [mixed(i).to_be_bytes(), mixed(i + 1).to_be_bytes()].concat());
    let built = build(&keys, 18, 6);
    let (index, filter) = built.index.memory_bytes();
    assert_eq!(filter, 200_000);
    let fences = index as f64 / 200_000.0;
    assert!(fences < 0.14, "{fences} B/key of fences");
}

#[test]
fn without_a_filter_a_lookup_still_takes_about_one_read() {
    let keys = numbers(100_000, |i| format!("user{:016}", mixed(i) % 10_000_000_000_000_000).into());
    let reads = build(&keys, 18, 0).reads();
    assert!(reads < 1.02, "{reads}");
}

#[test]
fn the_filter_rejects_most_absent_keys() {
    let keys = numbers(50_000, |i| mixed(i).to_be_bytes().to_vec());
    for (bits, most) in [(4, 0.085), (8, 0.0065)] {
        let index = build(&keys, 20, bits).index;
        let through = (0..50_000_u64)
            .map(|i| mixed(i + 1_000_000).to_be_bytes())
            .filter(|key| {
                let c = index.candidates(key).unwrap();
                (c.from..=c.to).any(|p| index.may_hold(c.block, p, hash_key(key)))
            })
            .count();
        assert!((through as f64) < most * 50_000.0, "{bits} bits: {through} of 50,000");
    }
}

#[test]
fn numbers_keep_order() {
    let mut keys: Vec<Vec<u8>> = (0..4000_u64).map(|i| mixed(i).to_be_bytes()[..(i % 9) as usize].to_vec()).collect();
    keys.extend((0..2000_u64).map(|i| format!("{}", mixed(i) % 1000).into_bytes()));
    keys.sort_unstable();
    for (lo, hi, symbols) in [(b'0', b'9', 19), (0, 255, 8), (b'a', b'b', 64), (3, 200, 5)] {
        assert!(keys.is_sorted_by_key(|k| number(k, lo, hi, symbols)), "{lo} {hi}");
    }
}

proptest::proptest! {
    /// P14: decoding a damaged index (its checksum would normally reject it) gives an error or some page, never a
    /// panic.
    #[test]
    fn any_index_parses_or_fails(
        flips in proptest::collection::vec((proptest::prelude::any::<proptest::sample::Index>(), 0_u8..8), 1..6),
        cut in 0_usize..3,
        bits in 0_u32..17,
    ) {
        let mut bytes = build(&numbers(300, |n| format!("user{n:016}").into_bytes()), 18, bits).index.encode();
        for (at, bit) in flips {
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
        }
        bytes.truncate(bytes.len() - cut);
        if let Ok(index) = PageIndex::decode(&bytes) {
            for key in [&b"user"[..], b"user0000000000000007", b"userZ", b"", &[255; 40]] {
                let Some(found) = index.candidates(key) else { continue };
                for page in (found.from..=found.to).take(100) {
                    let _ = (index.may_hold(found.block, page, hash_key(key)), index.physical(found.block, page));
                }
            }
        }
    }
}
