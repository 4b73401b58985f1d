//! Cuts do not depend on buffers, devices or history; sizes keep their limits and their mean.

use super::*;
use crate::device::test_bytes;
use proptest::prelude::*;

fn cuts_of(rule: Rule, data: &[u8], buffer: usize) -> Vec<u64> {
    let mut cutter = Cutter::new(rule);
    let mut cuts = Vec::new();
    data.chunks(buffer.max(1)).for_each(|part| cutter.feed(part, &mut cuts));
    cuts.extend(cutter.finish());
    cuts
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
        let data = test_bytes(2, len);
        let cuts = cuts_of(rule, &data, data.len());
        let mean = len as f64 / cuts.len() as f64;
        let target = rule.mean_bytes() as f64;
        assert!((mean / target - 1.0).abs() < 0.03, "cdc:{min}..{max}: mean {mean}, target {target}");
    }
}

proptest! {
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
}

#[test]
fn every_set_finds_the_reference_candidates_at_every_length() {
    let data = test_bytes(3, 3000);
    let params = Params::new(4096, 8192).unwrap();
    let loose = params.with_everything_a_candidate();
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
