//! Cuts do not depend on buffers, devices or history; sizes keep their limits and their mean (P10, P14).

use super::*;
use crate::testing::test_bytes;
use crate::windows::{Compression, Md5};
use proptest::prelude::*;

fn cuts_on(isa: Isa, rule: Rule, data: &[u8], buffer: usize) -> Vec<u64> {
    let mut cutter = Cutter::new_on(isa, rule);
    let mut cuts = Vec::new();
    data.chunks(buffer.max(1)).for_each(|part| cutter.feed(part, &mut cuts));
    cuts.extend(cutter.finish());
    cuts
}

fn cuts_of(rule: Rule, data: &[u8], buffer: usize) -> Vec<u64> {
    cuts_on(Isa::best(), rule, data, buffer)
}

fn sizes(cuts: &[u64]) -> Vec<u64> {
    let starts = std::iter::once(&0).chain(cuts);
    cuts.iter().zip(starts).map(|(end, start)| end - start).collect()
}

/// The stream of docs/chunking.md: SplitMix64 from seed 0, each number as eight little-endian bytes.
fn documented_stream(len: usize) -> Vec<u8> {
    let mut state = 0u64;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bytes.extend_from_slice(&(z ^ (z >> 31)).to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// The vectors of docs/chunking.md. If this fails the format has changed, and stored data no longer dedups.
#[test]
fn documented_vectors() {
    let window: Vec<u8> = (0..64).collect();
    assert_eq!(reference::mix(&window), 0x52a6_0929_fc5c_0e8f);
    for (min, max, mean, above, any_below, strong_below) in [
        (4096, 8192, 5792, -1, 0xb028_ddb8_5f1d_bfff, 0x2c0a_376e_17c7_6fff),
        (4096, 65536, 16384, -1, 0x18bf_c936_d745_9fff, 0x062f_f24d_b5d1_67ff),
        (262_144, 4_194_304, 1_048_576, 63, 0x00c6_02a4_24b5_2fff, 0x0031_80a9_092d_4bff),
        (5000, 90_001, 21213, -1, 0x12c2_3f8d_464e_dfff, 0x04b0_8fe3_5193_b7ff),
    ] {
        let p = Params::new(min, max).unwrap();
        let got = (p.mean(), p.above, p.any_below, p.strong_below);
        assert_eq!(got, (mean, above, any_below, strong_below), "cdc:{min}..{max}");
    }
    let data = documented_stream(1 << 20);
    for isa in Isa::supported() {
        assert_eq!(
            cuts_on(isa, Rule::cdc(4096, 65536).unwrap(), &data[..150_000], 1 << 20),
            [23153, 35325, 56113, 72147, 90979, 100_913, 110_925, 127_758, 135_875, 142_652, 150_000]
        );
        assert_eq!(
            cuts_on(isa, Rule::cdc(65536, 1 << 20).unwrap(), &data, 1 << 20),
            [287_159, 600_214, 813_759, 1_048_576]
        );
    }
}

#[test]
fn cuts_are_the_same_however_the_stream_is_split() {
    let data = test_bytes(1, 1 << 20);
    for rule in [Rule::cdc(4096, 16384).unwrap(), Rule::cdc(8192, 131_072).unwrap(), Rule::fixed(5000).unwrap()] {
        let whole = cuts_of(rule, &data, data.len());
        assert!(whole.len() > 5);
        for buffer in [1, 7, 62, 63, 64, 65, 100, 4095, 4096, 4097, 100_000] {
            assert_eq!(cuts_of(rule, &data, buffer), whole, "buffers of {buffer} bytes");
        }
    }
}

#[test]
fn the_mean_on_random_data_is_the_geometric_mean() {
    for (min, max, len) in [(4096, 8192, 16 << 20), (4096, 65536, 64 << 20), (5000, 90_001, 64 << 20)] {
        let rule = Rule::cdc(min, max).unwrap();
        let cuts = cuts_of(rule, &test_bytes(2, len), len);
        let (mean, target) = (len as f64 / cuts.len() as f64, rule.mean_bytes() as f64);
        assert!((mean / target - 1.0).abs() < 0.03, "cdc:{min}..{max}: mean {mean}, target {target}");
    }
}

/// The derived chances give the mean for every allowed pair, not only for the pairs sampled above.
#[test]
fn thresholds_exist_for_the_tightest_and_widest_sizes() {
    for (min, max) in [(4096, 8192), (4096, MAX_CHUNK_BYTES), (MAX_CHUNK_BYTES / 2, MAX_CHUNK_BYTES), (4097, 8195)] {
        let params = Params::new(min, max).unwrap();
        assert!(params.any_below < u64::MAX, "cdc:{min}..{max} asks for more candidates than survive");
        assert!(params.strong_below > 0 && params.strong_below < params.any_below);
    }
}

#[test]
fn every_set_finds_the_reference_candidates_at_every_length() {
    let data = test_bytes(3, 3000);
    let loose = Params::new(4096, 8192).unwrap().with_everything_a_candidate();
    for len in 0..data.len() {
        let mut expected = Vec::new();
        reference::scan(&loose, &data[..len], &mut expected);
        assert!(len < 2900 || expected.len() > 2);
        for isa in Isa::supported() {
            let mut got = Vec::new();
            dispatch::scan(isa, &loose, &data[..len], &mut got);
            assert_eq!(got, expected, "{isa:?} length {len}");
        }
    }
}

/// 100,000 random slices of kinds of data that reach the tables' corners.
#[test]
fn every_set_equals_the_reference_on_a_hundred_thousand_random_slices() {
    let random = test_bytes(4, 1 << 16);
    let pools: [Vec<u8>; 4] = [
        random.clone(),
        random.iter().map(|b| b & 1).collect(),
        random.iter().map(|b| b | 0x70).collect(),
        random.iter().map(|b| if *b < 200 { 0 } else { *b }).collect(),
    ];
    let loose = Params::new(4096, 8192).unwrap().with_everything_a_candidate();
    let mut found = 0;
    for case in 0..100_000usize {
        let pool = &pools[case % 4];
        let (at, len) = (case * 7919 % 60_000, case * 104_729 % 700);
        let slice = &pool[at..at + len];
        let mut expected = Vec::new();
        reference::scan(&loose, slice, &mut expected);
        found += expected.len();
        for isa in Isa::supported().into_iter().skip(1) {
            let mut got = Vec::new();
            dispatch::scan(isa, &loose, slice, &mut got);
            assert_eq!(got, expected, "{isa:?} case {case}");
        }
    }
    assert!(found > 10_000, "too few candidates to compare: {found}");
}

#[test]
fn runs_of_any_one_byte_are_cut_at_the_maximum() {
    let rule = Rule::cdc(4096, 65536).unwrap();
    for byte in 0..=255 {
        let cuts = cuts_of(rule, &vec![byte; 200_000], 10_000);
        assert_eq!(cuts, [65536, 131_072, 196_608, 200_000], "byte {byte}");
    }
}

/// Small alphabets and structured numbers still find boundaries, so that shifted copies dedup.
#[test]
fn data_of_low_entropy_is_cut_by_content() {
    let random = test_bytes(5, 2 << 20);
    let letters = |alphabet: &[u8]| random.iter().map(|b| alphabet[*b as usize % alphabet.len()]).collect::<Vec<u8>>();
    let integers: Vec<u8> =
        random.chunks_exact(2).flat_map(|p| [p[0], p[1] & 3, 0, 0, 0, 0, 0, 0]).take(2 << 20).collect();
    let kinds = [
        ("bits", letters(&[0, 1])),
        ("masks", letters(&[0, 255])),
        ("binary digits", letters(b"01")),
        ("bases", letters(b"ACGT")),
        ("hexadecimal", letters(b"0123456789abcdef")),
        ("words", letters(b"eeeeeeettttaaaooiinnsshhrrddlucmfwypvbgk      \n")),
        ("even bytes", random.iter().map(|b| b & 0xfe).collect()),
        ("high nibbles", random.iter().map(|b| b & 0xf0).collect()),
        ("small 64-bit integers", integers),
    ];
    let rule = Rule::cdc(4096, 65536).unwrap();
    for (kind, data) in kinds {
        let cuts = cuts_of(rule, &data, data.len());
        let forced = sizes(&cuts).iter().filter(|size| **size == 65536).count();
        let mean = data.len() / cuts.len();
        assert!(mean < 5 * rule.mean_bytes() / 2, "{kind}: mean {mean}");
        assert!(forced * 4 < cuts.len(), "{kind}: {forced} of {} cuts at the maximum", cuts.len());
    }
}

/// Dedup relies on this: after an insertion the cuts return to the same content.
#[test]
fn cuts_resynchronise_after_an_insertion() {
    let data = test_bytes(6, 1 << 20);
    let mut shifted = data[..300_000].to_vec();
    shifted.extend_from_slice(b"seventeen letters");
    shifted.extend_from_slice(&data[300_000..]);
    let rule = Rule::cdc(4096, 65536).unwrap();
    let (before, after) = (cuts_of(rule, &data, 1 << 20), cuts_of(rule, &shifted, 1 << 20));
    let common = before.iter().filter(|cut| {
        let moved = if **cut <= 300_000 { **cut } else { **cut + 17 };
        after.contains(&moved)
    });
    let common = common.count();
    assert!(common + 6 >= before.len(), "{common} of {} cuts survive", before.len());
}

#[test]
fn sizes_out_of_bounds_are_refused() {
    assert_eq!(Params::new(4095, 65536), Err(ParamsError::Size { got: 4095 }));
    assert_eq!(Params::new(0, 0), Err(ParamsError::Size { got: 0 }));
    let above = MAX_CHUNK_BYTES + 1;
    assert_eq!(Params::new(4096, above), Err(ParamsError::Size { got: above }));
    assert_eq!(Params::new(8192, 8192), Err(ParamsError::Order { min: 8192, max: 8192 }));
    assert_eq!(Params::new(8192, 16383), Err(ParamsError::Order { min: 8192, max: 16383 }));
    assert!(Rule::fixed(4096).is_ok() && Rule::fixed(MAX_CHUNK_BYTES).is_ok());
    assert!(Rule::fixed(4095).is_err() && Rule::fixed(usize::MAX).is_err());
}

#[test]
fn an_empty_stream_has_no_chunks_and_a_cutter_can_be_used_again() {
    let mut cutter = Cutter::new(Rule::cdc(4096, 8192).unwrap());
    assert_eq!(cutter.finish(), None);
    let data = test_bytes(7, 50_000);
    let once = |cutter: &mut Cutter| {
        let mut cuts = Vec::new();
        cutter.feed(&data, &mut cuts);
        cuts.extend(cutter.finish());
        cuts
    };
    let first = once(&mut cutter);
    assert_eq!(once(&mut cutter), first);
    assert_eq!(first.last(), Some(&50_000));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn context_is_all_that_crosses_a_seam(seed in any::<u64>(), len in 0usize..200_000, at in any::<prop::sample::Index>(), context in 63usize..200) {
        let data = test_bytes(seed, len);
        let params = Params::new(4096, 8192).unwrap();
        let mut whole = Vec::new();
        candidates(&params, &[], &data, &mut whole);
        let at = at.index(len + 1);
        let mut parts = Vec::new();
        candidates(&params, &[], &data[..at], &mut parts);
        let first = parts.len();
        candidates(&params, &data[at.saturating_sub(context)..at], &data[at..], &mut parts);
        parts[first..].iter_mut().for_each(|c| c.position += at);
        prop_assert_eq!(parts, whole);
    }

    /// Every split, every set, and candidates found by another scan give the same list of cuts, within limits.
    #[test]
    fn one_stream_has_one_list_of_cuts(seed in any::<u64>(), len in 0usize..300_000, min in 4096usize..20_000, ratio in 2usize..20, buffer in 1usize..70_000) {
        let data = test_bytes(seed, len);
        let rule = Rule::cdc(min, min * ratio).unwrap();
        let Rule::Cdc(params) = rule else { unreachable!() };
        let cuts = cuts_of(rule, &data, buffer);
        for isa in Isa::supported().into_iter().skip(1) {
            prop_assert_eq!(&cuts_on(isa, rule, &data, len), &cuts);
        }
        let (mut cutter, mut apart) = (Cutter::new(rule), Vec::new());
        for (i, part) in data.chunks(buffer).enumerate() {
            let mut found = Vec::new();
            candidates(&params, &data[..i * buffer], part, &mut found);
            cutter.feed_candidates(part.len(), &found, &mut apart);
        }
        apart.extend(cutter.finish());
        prop_assert_eq!(&apart, &cuts);
        prop_assert_eq!(cuts.last().copied().unwrap_or(0), len as u64);
        let sizes = sizes(&cuts);
        for size in &sizes[..sizes.len().saturating_sub(1)] {
            prop_assert!((params.min() as u64..=params.max() as u64).contains(size));
        }
        prop_assert!(sizes.iter().all(|size| *size > 0 && *size <= params.max() as u64));
    }
}

/// stdchk's rule, window by window from its definition.
fn defined_cbch_cuts(m: usize, k: u32, p: usize, bytes: &[u8]) -> Vec<u64> {
    let (mut cuts, mut start, mut at) = (Vec::new(), 0, 0);
    loop {
        let limit = start + MAX_CHUNK_BYTES;
        let end = at + m;
        if end > limit.min(bytes.len()) {
            if bytes.len() < limit {
                return cuts;
            }
            (start, at) = (limit, limit);
            cuts.push(limit as u64);
            continue;
        }
        let digest = <Md5 as Compression>::reference(&bytes[at..end]);
        let low = u32::from_le_bytes(digest[..4].try_into().unwrap());
        if low & ((1 << k) - 1) == 0 {
            (start, at) = (end, end);
            cuts.push(end as u64);
        } else {
            at += p;
        }
    }
}

#[test]
fn cbch_cuts_are_the_definitions_by_every_set_and_however_the_stream_is_split() {
    let bytes = test_bytes(21, 300_000);
    for (m, k, p) in [(20, 12, 1), (20, 8, 20), (64, 7, 64), (100, 6, 300), (2, 12, 1), (4096, 1, 1000), (55, 9, 17)] {
        let rule = Rule::cbch(m, k, p).unwrap();
        let expected = defined_cbch_cuts(m, k, p, &bytes);
        assert!(expected.len() > 8, "cbch:{m},{k},{p} cuts {} times", expected.len());
        let mean = expected[expected.len() - 1] as usize / expected.len();
        assert!((rule.mean_bytes() / 2..rule.mean_bytes() * 2).contains(&mean), "mean {mean} of {rule:?}");
        for (number, isa) in Isa::supported().into_iter().enumerate() {
            for piece in [bytes.len(), 1000 + number, 61] {
                let mut cutter = Cutter::new_on(isa, rule);
                let mut cuts = Vec::new();
                bytes.chunks(piece).for_each(|part| cutter.feed(part, &mut cuts));
                assert!(cuts == expected, "{isa:?} {rule:?} pieces of {piece}");
                assert_eq!(cutter.finish(), Some(bytes.len() as u64));
                assert_eq!((cutter.position(), cutter.chunk_start()), (0, 0));
            }
        }
    }
}

/// Without a boundary the maximum cuts, even if steps jump over it.
#[test]
fn cbch_chunks_end_at_the_maximum() {
    let bytes = vec![0u8; 2 * MAX_CHUNK_BYTES + 5];
    for (m, k, p) in [(20, 11, 1000), (20, 10, 5000), (20, 3, 1_000_000)] {
        let mut cuts = Vec::new();
        Cutter::new(Rule::cbch(m, k, p).unwrap()).feed(&bytes, &mut cuts);
        assert_eq!(cuts, defined_cbch_cuts(m, k, p, &bytes), "cbch:{m},{k},{p}");
        assert_eq!(cuts, [MAX_CHUNK_BYTES as u64, 2 * MAX_CHUNK_BYTES as u64], "cbch:{m},{k},{p}");
    }
}

#[test]
fn cbch_rules_that_cannot_be_are_refused() {
    for (m, k, p) in [
        (0, 14, 1),
        (20, 14, 0),
        (20, 11, 1),
        (20, 24, 1),
        (20, 64, 1),
        (20, u32::MAX, 1),
        (65_537, 1, 1),
        (20, 12, usize::MAX),
    ] {
        let refused = ParamsError::Cbch { window_bytes: m, low_bits: k, advance_bytes: p };
        assert_eq!(Rule::cbch(m, k, p), Err(refused));
    }
    assert_eq!(Rule::cbch(20, 14, 1).map(|rule| (rule.mean_bytes(), rule.max_bytes())), Ok((16_403, MAX_CHUNK_BYTES)));
}
