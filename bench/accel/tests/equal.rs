//! P10 against the libraries themselves: parity of `tessera-accel` equals that of ISA-L and Jerasure under the same
//! name. Where a library is not installed its tests say so and pass.

use tessera_accel::erasure::{Code, Matrix};
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
