//! Every instruction set against single slices (P10), streams against whole buffers, misuse (P14).

use super::*;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use tessera_accel::testing::test_bytes;

#[test]
fn wrong_windows_are_typed_errors() {
    let new = |window, step, width| Windows::new(Function::Sha1, window, step, width);
    assert_eq!(new(0, 1, 1), Err(WindowsError::Window));
    assert_eq!(new(1, 0, 1), Err(WindowsError::Step));
    for got in [0, 21, usize::MAX] {
        assert_eq!(new(1, 1, got), Err(WindowsError::Width { function: Function::Sha1, most: 20, got }));
    }
    let huge = new(usize::MAX, usize::MAX, 20).unwrap();
    assert_eq!((huge.count(usize::MAX), huge.count(usize::MAX - 1), huge.count(0)), (1, 0, 0));
    assert_eq!(huge.hash(b"short"), []);
}

#[test]
fn counts_are_the_formulas() {
    let windows = Windows::new(Function::Md5, 20, 4, 4).unwrap();
    for (len, count) in [(0, 0), (19, 0), (20, 1), (23, 1), (24, 2), (28, 3), (1020, 251)] {
        assert_eq!(windows.count(len), count);
        assert_eq!(windows.hash(&test_bytes(1, len)).len(), 4 * count);
    }
}

/// Known answers: md5("abc"), md5("bcd") from `md5sum`, cut to six bytes.
#[test]
fn two_windows_known() {
    let windows = Windows::new(Function::Md5, 3, 1, 6).unwrap();
    for isa in Isa::supported() {
        let hex: String = windows.hash_on(isa, b"abcd").iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(hex, "900150983cd2d4b7c284882c", "{isa:?}");
    }
}

/// Windows around every edge of blocks and padding, steps below, at and above them, any width; more than 100,000
/// windows per instruction set.
#[test]
fn every_set_equals_the_reference() {
    let mut rng = StdRng::seed_from_u64(9);
    let pool = test_bytes(9, 1 << 14);
    let edges = [1, 2, 3, 4, 20, 48, 54, 55, 56, 57, 63, 64, 65, 100, 119, 120, 127, 128, 129, 200];
    let mut hashed = 0;
    while hashed < 110_000 {
        let function = Function::ALL[rng.random_range(0..4)];
        let window = edges[rng.random_range(0..edges.len())];
        let step = [1, 2, 3, window, window + 1, rng.random_range(1..300)][rng.random_range(0..6)];
        let windows = Windows::new(function, window, step, rng.random_range(1..=function.digest_bytes())).unwrap();
        let len = rng.random_range(0..1000);
        let at = rng.random_range(0..pool.len() - len);
        let expected = windows.hash_on(Isa::REFERENCE, &pool[at..at + len]);
        for isa in Isa::supported().into_iter().skip(1) {
            assert!(windows.hash_on(isa, &pool[at..at + len]) == expected, "{isa:?} {windows:?} length {len}");
        }
        hashed += windows.count(len);
    }
}

#[test]
fn a_stream_gives_what_the_whole_gives_however_it_is_cut() {
    let mut rng = StdRng::seed_from_u64(10);
    for case in 0..3000 {
        let (window, step) = (rng.random_range(1..40), rng.random_range(1..60));
        let windows = Windows::new(Function::ALL[case % 4], window, step, 5).unwrap();
        let bytes = test_bytes(case as u64, rng.random_range(0..400));
        let isa = Isa::supported()[case % Isa::supported().len()];
        let mut stream = Stream::new_on(isa, windows);
        let (mut out, mut rest) = (Vec::new(), &bytes[..]);
        while !rest.is_empty() {
            let (part, after) = rest.split_at(rng.random_range(0..=rest.len().min(50)));
            stream.feed(part, &mut out);
            rest = after;
        }
        assert!(out == windows.hash(&bytes), "{windows:?} of {}", bytes.len());
    }
}
