//! Windows of MD5 by every instruction set (P10). `tessera-hashgpu` tests the lanes with every function.

use super::*;
use crate::testing::test_bytes;

/// Known answers: md5("abc"), md5("bcd") from `md5sum`, cut to six bytes.
#[test]
fn two_windows_known() {
    let shape = WindowShape::new(3, 1, 6).unwrap();
    for isa in Isa::supported() {
        let mut out = Vec::new();
        shape.append::<Md5>(isa, b"abcd", &mut out);
        let hex: String = out.iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(hex, "900150983cd2d4b7c284882c", "{isa:?}");
    }
}

#[test]
fn windows_around_the_edges_of_blocks_and_padding() {
    let bytes = test_bytes(9, 1000);
    for window in [1, 20, 54, 55, 56, 63, 64, 65, 119, 120, 127, 128, 129] {
        for (step, width) in [(1, 8), (window, 16), (window + 1, 5)] {
            let shape = WindowShape::new(window, step, width).unwrap();
            let results = |isa| {
                let mut out = Vec::new();
                shape.append::<Md5>(isa, &bytes, &mut out);
                out
            };
            let expected = results(Isa::REFERENCE);
            assert!(Isa::supported().into_iter().all(|isa| results(isa) == expected), "{shape:?}");
        }
    }
    for (window, step, width) in [(0, 1, 1), (1, 0, 1), (1, 1, 0), (1, 1, MAX_DIGEST_BYTES + 1)] {
        assert_eq!(WindowShape::new(window, step, width), None);
    }
}
