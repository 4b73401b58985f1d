//! P10 against the libraries themselves: parity of `tessera-accel` equals that of ISA-L and Jerasure under the same
//! name. Where a library is not installed its tests say so and pass.

use tessera_accel::erasure::{Code, Matrix};
use tessera_accel::xorcode::XorCode;
use tessera_bench_accel::peers::{Isal, Jerasure};
use tessera_bench_accel::timing::noise;

fn skipped<T>(found: Option<T>, what: &str) -> Option<T> {
    if found.is_none() {
        println!("skipped: {what} is not installed");
    }
    found
}

fn parity(code: &Code, data: &[&[u8]]) -> Vec<Vec<u8>> {
    let mut parity = vec![vec![0u8; data[0].len()]; code.m()];
    let mut room: Vec<&mut [u8]> = parity.iter_mut().map(|p| p.as_mut_slice()).collect();
    code.encode(data, data[0].len(), &mut room).unwrap();
    parity
}

#[test]
fn reed_solomon_parity_is_isals() {
    let Some(isal) = skipped(Isal::load(), "libisal.so.2") else { return };
    for (k, m) in [(1, 1), (2, 2), (4, 2), (6, 3), (8, 3), (10, 4), (12, 4), (16, 4), (17, 3), (20, 3), (100, 20)] {
        let bytes = noise(k * 1024);
        let data: Vec<&[u8]> = bytes.chunks(1024).collect();
        for matrix in [Matrix::Cauchy1, Matrix::Vandermonde] {
            let Ok(code) = Code::new(k, m, matrix) else { continue };
            let tables = isal.code(k, &isal.parity_rows(matrix.name(), k, m));
            let mut expected = vec![vec![0u8; 1024]; m];
            isal.encode(&tables, &data, &mut expected);
            assert!(parity(&code, &data) == expected, "{matrix} {k}+{m}");
        }
    }
}

#[test]
fn reed_solomon_parity_is_jerasures() {
    let Some(jerasure) = skipped(Jerasure::load(), "libJerasure.so.2") else { return };
    for (k, m) in
        [(1, 1), (2, 2), (4, 2), (6, 3), (8, 3), (10, 4), (12, 4), (16, 4), (17, 3), (20, 2), (40, 9), (100, 20)]
    {
        let bytes = noise(k * 1024);
        let data: Vec<&[u8]> = bytes.chunks(1024).collect();
        for matrix in [Matrix::ReedSolVan, Matrix::CauchyOrig, Matrix::CauchyGood] {
            let code = Code::new(k, m, matrix).unwrap();
            let expected = jerasure.matrix_encode(matrix.name(), k, m, &data);
            assert!(parity(&code, &data) == expected, "{matrix} {k}+{m}");
        }
    }
}

/// Shapes of the fixtures: technique, k, m, w, packet bytes.
const BIT_CODES: [(&str, usize, usize, usize, usize); 26] = [
    ("liberation", 1, 2, 3, 8),
    ("liberation", 4, 2, 5, 8),
    ("liberation", 4, 2, 7, 64),
    ("liberation", 5, 2, 7, 1024),
    ("liberation", 10, 2, 11, 8),
    ("liberation", 13, 2, 13, 16),
    ("liberation", 16, 2, 17, 8),
    ("blaum_roth", 2, 2, 2, 8),
    ("blaum_roth", 4, 2, 4, 16),
    ("blaum_roth", 6, 2, 6, 8),
    ("blaum_roth", 10, 2, 10, 8),
    ("blaum_roth", 12, 2, 12, 32),
    ("blaum_roth", 16, 2, 16, 8),
    ("cauchy_orig", 1, 1, 2, 8),
    ("cauchy_orig", 4, 2, 3, 8),
    ("cauchy_orig", 6, 3, 4, 8),
    ("cauchy_orig", 8, 3, 8, 8),
    ("cauchy_orig", 10, 4, 11, 8),
    ("cauchy_good", 4, 2, 4, 8),
    ("cauchy_good", 6, 3, 4, 8),
    ("cauchy_good", 10, 4, 4, 8),
    ("cauchy_good", 16, 4, 5, 8),
    ("cauchy_good", 17, 3, 5, 8),
    ("cauchy_good", 20, 2, 8, 8),
    ("cauchy_good", 12, 4, 8, 16),
    ("cauchy_good", 5, 3, 11, 8),
];

#[test]
fn xor_parity_and_decoding_are_jerasures() {
    let Some(jerasure) = skipped(Jerasure::load(), "libJerasure.so.2") else { return };
    for (name, k, m, w, packet) in BIT_CODES {
        let code = XorCode::new(name.parse().unwrap(), k, m, w, packet).unwrap();
        let theirs = jerasure.code(name, k, m, w);
        let len = 3 * code.stripe_bytes();
        let bytes = noise(k * len);
        let data: Vec<&[u8]> = bytes.chunks(len).collect();
        let mut expected = vec![vec![0u8; len]; m];
        jerasure.encode(&theirs, &data, &mut expected, packet);
        let mut parity = vec![vec![0u8; len]; m];
        code.encode(&data, &mut parity.iter_mut().map(|p| p.as_mut_slice()).collect::<Vec<_>>()).unwrap();
        assert!(parity == expected, "{name} {k}+{m} w={w}");

        let whole: Vec<Vec<u8>> = data.iter().map(|d| d.to_vec()).chain(parity).collect();
        let lost: Vec<usize> = (0..m.min(k)).collect();
        let mut damaged = whole.clone();
        lost.iter().for_each(|i| damaged[*i].fill(0));
        jerasure.decode(&theirs, &lost, &mut damaged, packet);
        assert!(damaged == whole, "{name} {k}+{m} w={w}: Jerasure reads what we wrote");
    }
}

/// The digests by which `tessera-accel` tests equality where no library is installed. `WRITE_FIXTURES=1` writes them.
#[test]
fn the_fixtures_are_what_the_libraries_give() {
    let (Some(isal), Some(jerasure)) =
        (skipped(Isal::load(), "libisal.so.2"), skipped(Jerasure::load(), "libJerasure.so.2"))
    else {
        return;
    };
    let painted = |len: usize| -> Vec<u8> { (0..len).map(|i| (i % 251) as u8).collect() };
    let digest = |parity: &[Vec<u8>]| blake3::hash(&parity.concat()).to_hex().to_string();
    let mut text = String::from("# library matrix k m length digest / jerasure-bits technique k m w packet digest\n");
    const LEN: usize = 320;
    for (k, m) in [(1, 1), (4, 2), (6, 3), (8, 3), (10, 4), (12, 4), (16, 4), (17, 3), (40, 9)] {
        let bytes = painted(k * LEN);
        let data: Vec<&[u8]> = bytes.chunks(LEN).collect();
        for matrix in Matrix::ALL {
            if Code::new(k, m, matrix).is_err() {
                continue;
            }
            let (library, parity) = if matches!(matrix, Matrix::Cauchy1 | Matrix::Vandermonde) {
                let mut parity = vec![vec![0u8; LEN]; m];
                isal.encode(&isal.code(k, &isal.parity_rows(matrix.name(), k, m)), &data, &mut parity);
                ("isal", parity)
            } else {
                ("jerasure", jerasure.matrix_encode(matrix.name(), k, m, &data))
            };
            text += &format!("{library} {matrix} {k} {m} {LEN} {}\n", digest(&parity));
        }
    }
    for (name, k, m, w, packet) in BIT_CODES {
        let len = 2 * w * packet;
        let bytes = painted(k * len);
        let mut parity = vec![vec![0u8; len]; m];
        jerasure.encode(&jerasure.code(name, k, m, w), &bytes.chunks(len).collect::<Vec<_>>(), &mut parity, packet);
        text += &format!("jerasure-bits {name} {k} {m} {w} {packet} {}\n", digest(&parity));
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../crates/accel/fixtures/parity.txt");
    if std::env::var_os("WRITE_FIXTURES").is_some() {
        std::fs::write(path, &text).unwrap();
    }
    assert!(std::fs::read_to_string(path).unwrap() == text, "parity.txt differs: WRITE_FIXTURES=1 writes it anew");
}
