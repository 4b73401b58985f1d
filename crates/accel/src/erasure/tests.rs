//! Every instruction set against the reference (P10), every loss that the codes survive (P1), every misuse (P14).

use super::dispatch::{Coefficients, Source, Target, multiply};
use super::*;
use crate::isa::Isa;
use crate::testing::test_bytes;
use proptest::prelude::*;
use rand::{Rng, RngExt, SeedableRng, rngs::StdRng};

/// Bytes with a prime period, so that swapped blocks are noticed.
fn painted(len: usize, salt: usize) -> Vec<u8> {
    (0..len).map(|i| ((i + 31 * salt) % 251) as u8).collect()
}

/// Lengths around the edges of vectors, passes and cache blocks.
fn lengths() -> Vec<usize> {
    let mut lengths = vec![0, 1, 2];
    for edge in [16, 32, 64, 96, 128, 192, 256, 512, 1024, 6144, 24 * 1024] {
        lengths.extend([edge - 1, edge, edge + 1]);
    }
    lengths
}

/// Product by the given set, over freshly painted targets so that unwritten bytes are noticed.
fn product(isa: Isa, coefficients: &Coefficients, sources: &[Source<'_>], rows: usize, len: usize) -> Vec<Vec<u8>> {
    let mut out: Vec<Vec<u8>> = (0..rows).map(|r| painted(len, r + 7)).collect();
    let mut targets: Vec<_> = out.iter_mut().enumerate().map(|(row, bytes)| Target { row, bytes }).collect();
    multiply(isa, coefficients, sources, &mut targets);
    out
}

#[test]
fn every_set_equals_the_reference_around_every_edge() {
    for (rows, columns) in [(1, 1), (1, 4), (2, 4), (3, 5), (4, 10), (5, 3), (6, 2), (7, 17), (13, 3)] {
        let mut values = test_bytes(rows as u64, rows * columns);
        values[..columns].fill(1);
        let coefficients = Coefficients::new(columns, values);
        for len in lengths() {
            let data: Vec<Vec<u8>> = (0..columns).map(|c| painted(len, c)).collect();
            let sources: Vec<_> = data.iter().enumerate().map(|(column, bytes)| Source { column, bytes }).collect();
            let expected = product(Isa::REFERENCE, &coefficients, &sources, rows, len);
            for isa in Isa::supported() {
                let got = product(isa, &coefficients, &sources, rows, len);
                assert!(got == expected, "{isa:?} {rows}x{columns} length {len}");
            }
        }
    }
}

/// Long fragments are read in longer steps, and farther ahead.
#[test]
fn every_set_equals_the_reference_on_long_fragments() {
    for (rows, columns) in [(1, 4), (2, 6), (3, 5), (4, 16), (5, 13), (6, 3), (2, 10), (4, 17)] {
        let coefficients = Coefficients::new(columns, test_bytes(columns as u64, rows * columns));
        for len in [(64 << 10) - 1, 64 << 10, (64 << 10) + 321] {
            let data: Vec<Vec<u8>> = (0..columns).map(|c| painted(len + c, c)).collect();
            let sources: Vec<_> =
                data.iter().enumerate().map(|(column, bytes)| Source { column, bytes: &bytes[column..] }).collect();
            let expected = product(Isa::REFERENCE, &coefficients, &sources, rows, len);
            for isa in Isa::supported().into_iter().skip(1) {
                let got = product(isa, &coefficients, &sources, rows, len);
                assert!(got == expected, "{isa:?} {rows}x{columns} length {len}");
            }
        }
    }
}

/// 100,000 random small products per instruction set: sizes, offsets, column subsets and coefficients.
#[test]
fn every_set_equals_the_reference_on_a_hundred_thousand_random_cases() {
    let mut rng = StdRng::seed_from_u64(3);
    let mut pool = vec![0u8; 1 << 16];
    rng.fill_bytes(&mut pool);
    for case in 0..100_000 {
        let (rows, columns) = (rng.random_range(1..=7), rng.random_range(1..=9));
        let mut values: Vec<u8> = (0..rows * columns).map(|_| rng.random()).collect();
        if case % 5 == 0 {
            values[..columns].fill(1);
        }
        let coefficients = Coefficients::new(columns, values);
        let len = rng.random_range(0..300);
        let mut sources = Vec::new();
        for column in 0..columns {
            let at = rng.random_range(0..pool.len() - len);
            if !rng.random_ratio(1, 10) {
                sources.push(Source { column, bytes: &pool[at..at + len] });
            }
        }
        let expected = product(Isa::REFERENCE, &coefficients, &sources, rows, len);
        for isa in Isa::supported().into_iter().skip(1) {
            let got = product(isa, &coefficients, &sources, rows, len);
            assert!(got == expected, "case {case} {isa:?} {rows}x{columns} length {len}");
        }
    }
}

/// P1: for each code, every set of up to m lost fragments is rebuilt, by every instruction set.
#[test]
fn every_loss_of_up_to_m_fragments_is_rebuilt() {
    for (k, m) in [(4, 2), (6, 3), (8, 3), (10, 4), (12, 4), (16, 4), (17, 3)] {
        let code = Code::new(k, m, Matrix::Cauchy1).unwrap();
        let fragments = encoded(&code, &painted(k * 67 - 29, 0));
        for lost in losses(k + m, m) {
            for isa in Isa::supported() {
                check_rebuild(&code, isa, &fragments, &lost);
            }
        }
    }
}

#[test]
fn vandermonde_rebuilds_every_loss_in_its_safe_range() {
    for (k, m) in [(1, 5), (4, 1), (4, 2), (10, 3), (20, 3), (3, 6), (5, 5), (8, 4)] {
        let code = Code::new(k, m, Matrix::Vandermonde).unwrap();
        let fragments = encoded(&code, &painted(k * 67 - 29, 0));
        for lost in losses(k + m, m) {
            check_rebuild(&code, Isa::best(), &fragments, &lost);
        }
    }
}

#[test]
fn the_widest_codes_rebuild_what_they_can() {
    for (k, m) in [(254, 1), (1, 254), (127, 128), (128, 127), (200, 55), (2, 253), (253, 2)] {
        let code = Code::new(k, m, Matrix::Cauchy1).unwrap();
        let fragments = encoded(&code, &painted(k * 67 - 29, 0));
        let mut rng = StdRng::seed_from_u64(k as u64);
        let first: Vec<usize> = (0..m).collect();
        let last: Vec<usize> = (k..k + m).collect();
        let mut scattered: Vec<usize> = (0..k + m).collect();
        (0..m).for_each(|i| {
            let j = rng.random_range(i..scattered.len());
            scattered.swap(i, j);
        });
        for lost in [first, last, scattered[..m].to_vec()] {
            check_rebuild(&code, Isa::best(), &fragments, &lost);
        }
    }
}

/// P1 for every named matrix: every loss of up to m fragments.
#[test]
fn every_named_matrix_rebuilds_every_loss() {
    for matrix in Matrix::ALL {
        for (k, m) in [(1, 1), (4, 2), (6, 3), (10, 4), (3, 5), (17, 3)] {
            let Ok(code) = Code::new(k, m, matrix) else { continue };
            assert_eq!(matrix.name().parse(), Ok(matrix));
            let fragments = encoded(&code, &painted(k * 67 - 29, 0));
            for lost in losses(k + m, m) {
                check_rebuild(&code, Isa::best(), &fragments, &lost);
            }
        }
    }
}

/// Rows that Jerasure 2 gives for 4 + 3 (and `cauchy_good` for 4 + 2, which has a construction of its own).
#[test]
fn jerasures_matrices_have_the_known_rows() {
    let rows = |matrix: Matrix, m: usize| -> Vec<Vec<u8>> {
        let code = Code::new(4, m, matrix).unwrap();
        (0..m).map(|i| (0..4).map(|j| code.coefficient(i, j).unwrap()).collect()).collect()
    };
    assert_eq!(rows(Matrix::ReedSolVan, 3), [[1, 1, 1, 1], [1, 217, 92, 172], [1, 70, 143, 200]]);
    assert_eq!(rows(Matrix::CauchyOrig, 3), [[244, 71, 167, 122], [142, 167, 71, 186], [1, 122, 186, 71]]);
    assert_eq!(rows(Matrix::CauchyGood, 3), [[1, 1, 1, 1], [200, 151, 172, 1], [140, 1, 92, 70]]);
    assert_eq!(rows(Matrix::CauchyGood, 2), [[1, 1, 1, 1], [1, 2, 142, 4]]);
}

/// Digests of the parity that ISA-L and Jerasure gave for painted data: `fixtures/parity.txt`, written by
/// `bench/accel`.
#[test]
fn parity_is_the_libraries_by_the_fixtures() {
    let mut seen = 0;
    let fixtures = include_str!("../../fixtures/parity.txt");
    for line in fixtures.lines().filter(|l| l.starts_with("isal ") || l.starts_with("jerasure ")) {
        let fields: Vec<&str> = line.split(' ').collect();
        let number = |i: usize| fields[i].parse::<usize>().unwrap();
        let (k, len) = (number(2), number(4));
        let code = Code::new(k, number(3), fields[1].parse().unwrap()).unwrap();
        let bytes = painted(k * len, 0);
        let data: Vec<&[u8]> = bytes.chunks(len).collect();
        let mut parity = vec![vec![0u8; len]; code.m()];
        code.encode(&data, len, &mut parity.iter_mut().map(|p| p.as_mut_slice()).collect::<Vec<_>>()).unwrap();
        assert_eq!(crate::hash::chunk_hash(&parity.concat()).to_string(), fields[5], "{line}");
        seen += 1;
    }
    assert!(seen >= 40, "{seen} fixtures");
}

/// The parity after an update is the parity of the changed data, for every range and by every set. `verify` notices any
/// flipped bit, and names the parity (P2).
#[test]
fn parity_follows_changes_and_verify_notices_what_does_not() {
    let mut rng = StdRng::seed_from_u64(12);
    for case in 0..600 {
        let (k, m) = (rng.random_range(1..12), rng.random_range(1..6));
        let code = Code::new(k, m, Matrix::ALL[case % 2 * 2]).unwrap();
        let len = rng.random_range(1..10_000);
        let mut data: Vec<Vec<u8>> = (0..k).map(|i| test_bytes((case * 99 + i) as u64, len)).collect();
        let encode = |data: &[Vec<u8>]| {
            let data: Vec<&[u8]> = data.iter().map(|d| d.as_slice()).collect();
            let mut parity = vec![vec![0u8; len]; m];
            let mut room: Vec<&mut [u8]> = parity.iter_mut().map(|p| p.as_mut_slice()).collect();
            code.encode(&data, len, &mut room).unwrap();
            parity
        };
        let mut parity = encode(&data);
        let (index, start) = (rng.random_range(0..k), rng.random_range(0..len));
        let end = rng.random_range(start..=len);
        let new = test_bytes(case as u64, end - start);
        for isa in Isa::supported() {
            let mut changed = parity.clone();
            let mut room: Vec<&mut [u8]> = changed.iter_mut().map(|p| &mut p[start..end]).collect();
            code.update_on(isa, index, &data[index][start..end], &new, &mut room).unwrap();
            let mut after = data.clone();
            after[index][start..end].copy_from_slice(&new);
            assert!(changed == encode(&after), "{isa:?} {k}+{m} {start}..{end} of {len}");
        }
        let wrong = rng.random_range(0..m);
        let verify = |data: &[Vec<u8>], parity: &[Vec<u8>]| {
            let data: Vec<&[u8]> = data.iter().map(|d| d.as_slice()).collect();
            let parity: Vec<&[u8]> = parity.iter().map(|p| p.as_slice()).collect();
            let isa = Isa::supported()[case % Isa::supported().len()];
            code.verify_on(isa, &data, len, &parity).unwrap()
        };
        assert_eq!(verify(&data, &parity), []);
        parity[wrong][start] ^= 1;
        assert_eq!(verify(&data, &parity), [wrong]);
        parity[wrong][start] ^= 1;
        data[index][start] ^= 0x80;
        assert_eq!(verify(&data, &parity), (0..m).collect::<Vec<_>>());
    }
}

#[test]
fn misuse_of_update_and_verify_is_a_typed_error() {
    use CoderError::*;
    let code = Code::new(2, 1, Matrix::Cauchy1).unwrap();
    let mut parity = [0u8; 8];
    let bytes = [0u8; 9];
    let mut update = |index, old: usize, new: usize, parity_len: usize| {
        code.update_on(Isa::best(), index, &bytes[..old], &bytes[..new], &mut [&mut parity[..parity_len]])
    };
    assert_eq!(update(1, 8, 8, 8), Ok(()));
    assert_eq!(update(0, 0, 0, 0), Ok(()));
    assert_eq!(update(2, 8, 8, 8), Err(Index { index: 2, total: 2 }));
    assert_eq!(update(0, 8, 9, 8), Err(Length { what: "the new data of fragment", index: 0, expected: 8, got: 9 }));
    assert_eq!(update(0, 8, 8, 7), Err(Length { what: "parity fragment", index: 0, expected: 8, got: 7 }));
    let refused = code.update_on(Isa::best(), 0, &bytes, &bytes, &mut []);
    assert_eq!(refused, Err(Count { what: "parity fragments", expected: 1, got: 0 }));
    let refused = code.verify_on(Isa::best(), &[&bytes, &bytes], 9, &[&bytes[..8]]);
    assert_eq!(refused, Err(Length { what: "parity fragment", index: 0, expected: 9, got: 8 }));
}

fn encoded(code: &Code, chunk: &[u8]) -> Vec<Vec<u8>> {
    let mut parity = Vec::new();
    let frag_len = code.encode_chunk(chunk, &mut parity);
    let data = (0..code.k()).map(|i| data_slice(chunk, code.k(), i).to_vec());
    let mut fragments: Vec<Vec<u8>> = data.collect();
    assert!(parity.iter().all(|p| p.len() == frag_len));
    fragments.append(&mut parity);
    fragments
}

/// All sets of 1 to `most` numbers below `total`.
fn losses(total: usize, most: usize) -> Vec<Vec<usize>> {
    let mut all: Vec<Vec<usize>> = (0..total).map(|i| vec![i]).collect();
    let mut from = 0;
    for _ in 1..most {
        let to = all.len();
        for i in from..to {
            let last = all[i][all[i].len() - 1];
            for next in last + 1..total {
                let mut longer = all[i].clone();
                longer.push(next);
                all.push(longer);
            }
        }
        from = to;
    }
    all
}

fn check_rebuild(code: &Code, isa: Isa, fragments: &[Vec<u8>], lost: &[usize]) {
    let frag_len = fragments[code.k()].len();
    let present: Vec<(usize, &[u8])> =
        (0..fragments.len()).filter(|i| !lost.contains(i)).map(|i| (i, fragments[i].as_slice())).collect();
    let mut rebuilt: Vec<Vec<u8>> = lost.iter().map(|i| vec![0xaa; fragments[*i].len()]).collect();
    let mut out: Vec<&mut [u8]> = rebuilt.iter_mut().map(|f| f.as_mut_slice()).collect();
    code.reconstruct_on(isa, frag_len, &present, lost, &mut out).unwrap();
    for (got, index) in rebuilt.iter().zip(lost) {
        assert!(*got == fragments[*index], "{}+{} {isa:?} lost {lost:?} fragment {index}", code.k(), code.m());
    }
}

#[test]
fn parity_is_the_documented_sum() {
    let code = Code::new(4, 2, Matrix::Cauchy1).unwrap();
    let chunk = painted(1000, 0);
    let fragments = encoded(&code, &chunk);
    assert_eq!(fragment_len(1000, 4), 256);
    for row in 0..2 {
        for (at, got) in fragments[4 + row].iter().enumerate() {
            let sum = (0..4).fold(0, |sum, j| {
                let x = chunk.get(j * 256 + at).copied().unwrap_or(0);
                sum ^ field::multiply(code.coefficient(row, j).unwrap(), x)
            });
            assert_eq!(*got, sum);
        }
    }
    assert_eq!(code.coefficient(2, 0), None);
}

#[test]
fn lengths_of_fragments() {
    for (chunk, k, expected) in
        [(0, 4, 0), (1, 4, 64), (256, 4, 64), (257, 4, 128), (1 << 20, 4, 1 << 18), (5, 1, 64), (64, 255, 64)]
    {
        assert_eq!(fragment_len(chunk, k), expected);
    }
    assert!(fragment_len(usize::MAX, 1).is_multiple_of(64));
    assert_eq!(data_slice(&[1, 2, 3], 4, 0), [1, 2, 3]);
    assert_eq!(data_slice(&[1, 2, 3], 4, 3), []);
    assert_eq!(data_slice(&[1, 2, 3], 4, usize::MAX), []);
}

#[test]
fn codes_that_cannot_be_are_refused() {
    use CodeError::*;
    let new = |k, m| Code::new(k, m, Matrix::Cauchy1).map(|c| c.fragments());
    assert_eq!(new(0, 2), Err(NoData));
    assert_eq!(new(2, 0), Err(NoParity));
    assert_eq!(new(254, 2), Err(TooManyFragments { k: 254, m: 2 }));
    assert_eq!(new(usize::MAX, usize::MAX), Err(TooManyFragments { k: usize::MAX, m: usize::MAX }));
    assert_eq!(new(254, 1), Ok(255));
    let refused = Code::new(22, 4, Matrix::Vandermonde).map(|c| c.fragments());
    assert_eq!(refused, Err(Unsafe { matrix: Matrix::Vandermonde, k: 22, m: 4 }));
    assert_eq!("cauchy1".parse(), Ok(Matrix::Cauchy1));
    assert!("liberation".parse::<Matrix>().is_err());
}

#[test]
fn misuse_of_encode_is_a_typed_error_and_writes_nothing() {
    use CoderError::*;
    let code = Code::new(2, 2, Matrix::Cauchy1).unwrap();
    let (full, long, short) = ([7u8; 64], [7u8; 65], [7u8; 3]);
    let try_encode = |data: &[&[u8]], lengths: &[usize]| {
        let mut parity: Vec<Vec<u8>> = lengths.iter().map(|len| vec![0x55; *len]).collect();
        let mut room: Vec<&mut [u8]> = parity.iter_mut().map(|p| p.as_mut_slice()).collect();
        let result = code.encode(data, 64, &mut room);
        assert!(result.is_ok() || parity.iter().flatten().all(|b| *b == 0x55));
        result
    };
    assert_eq!(try_encode(&[&full, &short], &[64, 64]), Ok(()));
    assert_eq!(try_encode(&[&full], &[64, 64]), Err(Count { what: "data fragments", expected: 2, got: 1 }));
    assert_eq!(try_encode(&[&full, &full], &[64]), Err(Count { what: "parity fragments", expected: 2, got: 1 }));
    assert_eq!(
        try_encode(&[&full, &long], &[64, 64]),
        Err(Length { what: "data fragment", index: 1, expected: 64, got: 65 })
    );
    assert_eq!(
        try_encode(&[&full, &full], &[64, 63]),
        Err(Length { what: "parity fragment", index: 1, expected: 64, got: 63 })
    );
}

#[test]
fn misuse_of_reconstruct_is_a_typed_error_and_writes_nothing() {
    use CoderError::*;
    let code = Code::new(2, 2, Matrix::Cauchy1).unwrap();
    let (full, short, long) = (&[7u8; 64][..], &[7u8; 63][..], &[7u8; 65][..]);
    let attempt = |present: &[(usize, &[u8])], wanted: &[usize], lengths: &[usize]| {
        let mut rebuilt: Vec<Vec<u8>> = lengths.iter().map(|len| vec![0x55; *len]).collect();
        let mut room: Vec<&mut [u8]> = rebuilt.iter_mut().map(|p| p.as_mut_slice()).collect();
        let result = code.reconstruct(64, present, wanted, &mut room);
        assert!(result.is_ok() || rebuilt.iter().flatten().all(|b| *b == 0x55));
        result
    };
    assert_eq!(attempt(&[(1, full), (3, full)], &[0, 2], &[64, 64]), Ok(()));
    assert_eq!(attempt(&[(1, full)], &[0], &[64]), Err(TooFewFragments { needed: 2, got: 1 }));
    assert_eq!(attempt(&[(1, full), (1, full)], &[0], &[64]), Err(Duplicate { index: 1 }));
    assert_eq!(attempt(&[(1, full), (2, full)], &[0, 0], &[64, 64]), Err(Duplicate { index: 0 }));
    assert_eq!(attempt(&[(1, full), (4, full)], &[0], &[64]), Err(Index { index: 4, total: 4 }));
    assert_eq!(attempt(&[(1, full), (2, full)], &[9], &[64]), Err(Index { index: 9, total: 4 }));
    assert_eq!(
        attempt(&[(1, full), (2, full)], &[0, 3], &[64]),
        Err(Count { what: "slices for the wanted fragments", expected: 2, got: 1 })
    );
    assert_eq!(
        attempt(&[(1, full), (2, short)], &[0], &[64]),
        Err(Length { what: "fragment", index: 2, expected: 64, got: 63 })
    );
    assert_eq!(
        attempt(&[(1, long), (2, full)], &[0], &[64]),
        Err(Length { what: "fragment", index: 1, expected: 64, got: 65 })
    );
    assert_eq!(
        attempt(&[(1, full), (2, full)], &[3], &[63]),
        Err(Length { what: "room for fragment", index: 3, expected: 64, got: 63 })
    );
    // Short data is valid on both sides; present data is copied even if fewer than k fragments are present.
    assert_eq!(attempt(&[(1, short), (2, full)], &[0], &[5]), Ok(()));
    assert_eq!(attempt(&[(1, short)], &[1], &[64]), Ok(()));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// P1, on ragged chunks, any code, any loss, whole fragments and byte ranges of them.
    #[test]
    fn any_loss_is_rebuilt(k in 1usize..30, m in 1usize..10, len in 0usize..20_000, seed in any::<u64>()) {
        let code = Code::new(k, m, Matrix::Cauchy1).unwrap();
        let fragments = encoded(&code, &test_bytes(seed, len));
        let mut rng = StdRng::seed_from_u64(seed);
        let mut order: Vec<usize> = (0..k + m).collect();
        (0..m).for_each(|i| { let j = rng.random_range(i..k + m); order.swap(i, j) });
        let lost = &order[..rng.random_range(1..=m)];
        check_rebuild(&code, Isa::best(), &fragments, lost);

        let frag_len = fragments[k].len();
        let start = rng.random_range(0..=frag_len);
        let end = rng.random_range(start..=frag_len);
        let part = |i: usize| { let f = &fragments[i]; &f[start.min(f.len())..end.min(f.len())] };
        let present: Vec<(usize, &[u8])> = order[m..].iter().map(|i| (*i, part(*i))).collect();
        let mut rebuilt = vec![0u8; end - start];
        code.reconstruct(end - start, &present, &[lost[0]], &mut [&mut rebuilt]).unwrap();
        let mut expected = part(lost[0]).to_vec();
        expected.resize(end - start, 0);
        prop_assert_eq!(rebuilt, expected);
    }

    /// With more than k present, the choice of sources makes no difference.
    #[test]
    fn the_choice_of_sources_makes_no_difference(seed in any::<u64>()) {
        let code = Code::new(5, 4, Matrix::Cauchy1).unwrap();
        let fragments = encoded(&code, &test_bytes(seed, 3000));
        for lost in [vec![0], vec![3, 8], vec![6], vec![1, 2, 7]] {
            check_rebuild(&code, Isa::best(), &fragments, &lost);
        }
    }
}
