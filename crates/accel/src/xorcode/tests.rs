//! Every schedule and instruction set against the definition (P10), every loss that the codes survive (P1), Jerasure's
//! bytes, every misuse (P14).

use super::*;
use crate::isa::Isa;
use crate::testing::test_bytes;
use rand::{RngExt, SeedableRng, rngs::StdRng};

/// Bytes with a prime period, so that swapped packets are noticed.
fn painted(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i % 251) as u8).collect()
}

/// Packets that a schedule reads; one that is the XOR of n others reads n.
fn reads(program: &Program) -> usize {
    program.steps().iter().map(|step| step.sources.len()).sum()
}

/// Codes of every technique, small and wide.
fn codes(packet: usize) -> Vec<XorCode> {
    use Technique::*;
    let shapes = [
        (Liberation, 1, 2, 3),
        (Liberation, 4, 2, 5),
        (Liberation, 4, 2, 7),
        (Liberation, 10, 2, 11),
        (Liberation, 16, 2, 17),
        (BlaumRoth, 2, 2, 2),
        (BlaumRoth, 4, 2, 4),
        (BlaumRoth, 6, 2, 6),
        (BlaumRoth, 10, 2, 10),
        (BlaumRoth, 16, 2, 16),
        (CauchyOrig, 1, 1, 2),
        (CauchyOrig, 4, 2, 3),
        (CauchyOrig, 6, 3, 4),
        (CauchyOrig, 8, 3, 8),
        (CauchyOrig, 3, 5, 3),
        (CauchyGood, 4, 2, 4),
        (CauchyGood, 6, 3, 4),
        (CauchyGood, 8, 3, 4),
        (CauchyGood, 10, 4, 4),
        (CauchyGood, 12, 4, 4),
        (CauchyGood, 16, 4, 5),
        (CauchyGood, 17, 3, 5),
        (CauchyGood, 20, 2, 8),
        (CauchyGood, 5, 3, 11),
    ];
    shapes.into_iter().map(|(technique, k, m, w)| XorCode::new(technique, k, m, w, packet).unwrap()).collect()
}

fn encode(code: &XorCode, isa: Isa, data: &[&[u8]]) -> Vec<Vec<u8>> {
    let mut parity = vec![vec![0x55u8; data[0].len()]; code.m()];
    let mut room: Vec<&mut [u8]> = parity.iter_mut().map(|p| p.as_mut_slice()).collect();
    code.encode_on(isa, data, &mut room).unwrap();
    parity
}

/// Parity by the bit matrix alone.
fn defined_parity(code: &XorCode, data: &[&[u8]]) -> Vec<Vec<u8>> {
    let (w, packet) = (code.w(), code.packet_bytes());
    let mut parity = vec![vec![0u8; data[0].len()]; code.m()];
    for (r, parity) in parity.iter_mut().enumerate() {
        for (at, sum) in parity.iter_mut().enumerate() {
            let (stripe, i, byte) = (at / code.stripe_bytes(), at / packet % w, at % packet);
            for (c, data) in data.iter().enumerate() {
                for j in (0..w).filter(|j| code.bit(r, i, c, *j)) {
                    *sum ^= data[stripe * code.stripe_bytes() + j * packet + byte];
                }
            }
        }
    }
    parity
}

#[test]
fn parity_is_the_bit_matrix_for_every_code() {
    for code in codes(8) {
        let bytes = painted(code.k() * 3 * code.stripe_bytes());
        let data: Vec<&[u8]> = bytes.chunks(3 * code.stripe_bytes()).collect();
        let expected = defined_parity(&code, &data);
        for isa in Isa::supported() {
            assert!(encode(&code, isa, &data) == expected, "{isa:?} {} {}+{}", code.technique(), code.k(), code.m());
        }
        let code = &code;
        let packets = |fragments| (0..fragments).flat_map(|f| (0..code.w()).map(move |i| (f, i)));
        let bits = packets(code.m()).flat_map(|(r, i)| packets(code.k()).filter(move |(c, j)| code.bit(r, i, *c, *j)));
        assert!(reads(code.encode_program()) <= bits.count(), "a schedule reads no more than the definition");
        assert_eq!(
            code.verify_on(Isa::best(), &data, &expected.iter().map(|p| p.as_slice()).collect::<Vec<_>>()),
            Ok(vec![])
        );
    }
}

/// P1: every set of up to m lost fragments, and every member of it wanted alone.
#[test]
fn every_loss_of_up_to_m_fragments_is_rebuilt() {
    for code in codes(8) {
        let (k, m) = (code.k(), code.m());
        let bytes = test_bytes(k as u64, k * code.stripe_bytes());
        let data: Vec<&[u8]> = bytes.chunks(code.stripe_bytes()).collect();
        let parity = encode(&code, Isa::best(), &data);
        let fragments: Vec<&[u8]> = data.iter().copied().chain(parity.iter().map(|p| p.as_slice())).collect();
        for (number, lost) in losses(k + m, m).into_iter().enumerate() {
            let sets = Isa::supported();
            rebuild(&code, sets[number % sets.len()], &fragments, &lost, &lost);
            rebuild(&code, Isa::best(), &fragments, &lost, &lost[number % lost.len()..][..1]);
        }
    }
}

fn rebuild(code: &XorCode, isa: Isa, fragments: &[&[u8]], lost: &[usize], wanted: &[usize]) {
    let present: Vec<(usize, &[u8])> =
        fragments.iter().enumerate().filter(|(i, _)| !lost.contains(i)).map(|(i, f)| (i, *f)).collect();
    let mut out = vec![vec![0x55u8; fragments[0].len()]; wanted.len()];
    let mut room: Vec<&mut [u8]> = out.iter_mut().map(|o| o.as_mut_slice()).collect();
    code.reconstruct_on(isa, &present, wanted, &mut room).unwrap();
    for (rebuilt, index) in out.iter().zip(wanted) {
        assert!(rebuilt == fragments[*index], "{isa:?} {} lost {lost:?}: {index}", code.technique());
    }
}

/// All sets of 1 to `most` numbers below `total`.
fn losses(total: usize, most: usize) -> Vec<Vec<usize>> {
    let mut all: Vec<Vec<usize>> = vec![vec![]];
    let mut from = 0;
    for _ in 0..most {
        let to = all.len();
        for i in from..to {
            let first = all[i].last().map_or(0, |last| last + 1);
            all.extend((first..total).map(|j| [&all[i][..], &[j]].concat()).collect::<Vec<_>>());
        }
        from = to;
    }
    all.split_off(1)
}

/// 100,000 random small calls per instruction set: encode, any loss, unaligned slices, odd packet sizes.
#[test]
fn every_set_equals_the_reference_on_a_hundred_thousand_random_cases() {
    let mut rng = StdRng::seed_from_u64(4);
    let pool = test_bytes(4, 1 << 17);
    let codes: Vec<XorCode> = [8, 16, 40, 64, 72, 136].into_iter().flat_map(codes).collect();
    for case in 0..100_000 {
        let code = &codes[rng.random_range(0..codes.len())];
        let len = code.stripe_bytes() * if code.k() * code.stripe_bytes() < 2000 { rng.random_range(0..3) } else { 1 };
        let data: Vec<&[u8]> = (0..code.k())
            .map(|_| {
                let at = rng.random_range(0..pool.len() - len);
                &pool[at..at + len]
            })
            .collect();
        let expected = encode(code, Isa::REFERENCE, &data);
        for isa in Isa::supported().into_iter().skip(2) {
            assert!(encode(code, isa, &data) == expected, "case {case} {isa:?} {code:?}");
        }
        if case % 8 == 0 {
            let fragments: Vec<&[u8]> = data.iter().copied().chain(expected.iter().map(|p| p.as_slice())).collect();
            let lost: Vec<usize> = (0..code.m()).map(|_| rng.random_range(0..code.k() + code.m())).collect();
            let lost: Vec<usize> = (0..code.k() + code.m()).filter(|i| lost.contains(i)).collect();
            for isa in Isa::supported() {
                rebuild(code, isa, &fragments, &lost, &lost);
            }
        }
    }
}

/// Packets larger than a slice, in more than one stripe.
#[test]
fn large_packets_are_done_by_slices() {
    for packet in [512, 4096, 70_000] {
        let code = XorCode::new(Technique::Liberation, 16, 2, 17, packet).unwrap();
        let bytes = test_bytes(1, 16 * code.stripe_bytes());
        let data: Vec<&[u8]> = bytes.chunks(code.stripe_bytes()).collect();
        let expected = encode(&code, Isa::REFERENCE, &data);
        for isa in Isa::supported() {
            assert!(encode(&code, isa, &data) == expected, "{isa:?} packets of {packet}");
        }
    }
}

#[test]
fn parity_follows_changes_and_verify_notices_what_does_not() {
    for (case, code) in codes(16).into_iter().enumerate() {
        let len = 2 * code.stripe_bytes();
        let mut bytes = test_bytes(case as u64, code.k() * len);
        let index = case % code.k();
        let (old, new) = (bytes[index * len..(index + 1) * len].to_vec(), test_bytes(99, len));
        let before = encode(&code, Isa::best(), &bytes.chunks(len).collect::<Vec<_>>());
        bytes[index * len..(index + 1) * len].copy_from_slice(&new);
        let after = encode(&code, Isa::best(), &bytes.chunks(len).collect::<Vec<_>>());
        for isa in Isa::supported() {
            let mut parity = before.clone();
            let mut room: Vec<&mut [u8]> = parity.iter_mut().map(|p| p.as_mut_slice()).collect();
            code.update_on(isa, index, &old, &new, &mut room).unwrap();
            assert!(parity == after, "{} {isa:?}", code.technique());
        }
        let mut parity = after;

        let wrong = case % code.m();
        parity[wrong][len - 1] ^= 4;
        let parity: Vec<&[u8]> = parity.iter().map(|p| p.as_slice()).collect();
        assert_eq!(code.verify_on(Isa::best(), &bytes.chunks(len).collect::<Vec<_>>(), &parity), Ok(vec![wrong]));
    }
}

/// Decoding by a good schedule reads little more than encoding; by solved equations alone it reads several times that.
#[test]
fn schedules_of_decodes_are_short() {
    for (k, w) in [(4, 5), (4, 7), (10, 11), (16, 17)] {
        let code = XorCode::new(Technique::Liberation, k, 2, w, 8).unwrap();
        let encode = reads(code.encode_program());
        for lost in losses(k, 2).into_iter().filter(|lost| lost.len() == 2) {
            let present: Vec<usize> = (0..k + 2).filter(|i| !lost.contains(i)).collect();
            let reads = reads(&code.decode_program(&present, &lost).unwrap());
            println!("{k}+2 {lost:?} {reads} {encode}");
            assert!(reads * 10 <= encode * 13, "lost {lost:?}: {reads} reads, encode {encode}");
        }
    }
}

#[test]
fn codes_that_cannot_be_are_refused() {
    use Technique::*;
    use XorCodeError as E;
    let new = |t, k, m, w, p| XorCode::new(t, k, m, w, p).map(|_| ());
    assert_eq!(new(Liberation, 0, 2, 7, 8), Err(E::Fragments { k: 0, m: 2 }));
    assert_eq!(new(CauchyGood, 2, 0, 7, 8), Err(E::Fragments { k: 2, m: 0 }));
    assert_eq!(new(CauchyGood, usize::MAX, 2, 7, 8), Err(E::Fragments { k: usize::MAX, m: 2 }));
    assert_eq!(new(Liberation, 4, 3, 7, 8), Err(E::ParityCount { technique: Liberation, m: 3 }));
    for w in [0, 1, 2, 4, 6, 9, 15, 257, usize::MAX] {
        assert!(matches!(new(Liberation, 2, 2, w, 8), Err(E::W { technique: Liberation, .. })), "{w}");
    }
    for w in [0, 1, 3, 5, 8, 14, 256, usize::MAX] {
        assert!(matches!(new(BlaumRoth, 2, 2, w, 8), Err(E::W { technique: BlaumRoth, .. })), "{w}");
    }
    for w in [0, 1, 12, usize::MAX] {
        assert!(matches!(new(CauchyGood, 2, 2, w, 8), Err(E::W { .. })), "{w}");
    }
    let wide = E::TooWide { technique: Liberation, w: 7, what: "data fragments", most: 7, got: 8 };
    assert_eq!(new(Liberation, 8, 2, 7, 8), Err(wide));
    assert!(matches!(new(CauchyOrig, 14, 3, 4, 8), Err(E::TooWide { most: 16, got: 17, .. })));
    for packet in [0, 1, 7, 12, usize::MAX, usize::MAX - 7] {
        assert_eq!(new(Liberation, 4, 2, 7, packet), Err(E::PacketBytes { got: packet }));
    }
    assert_eq!("blaum_roth".parse(), Ok(BlaumRoth));
    assert!("reed_sol_van".parse::<Technique>().is_err());
}

#[test]
fn misuse_of_calls_is_a_typed_error_and_writes_nothing() {
    use crate::CoderError::*;
    let code = XorCode::new(Technique::Liberation, 2, 2, 3, 8).unwrap();
    let (good, short, odd) = (&[7u8; 24][..], &[7u8; 16][..], &[7u8; 23][..]);
    let attempt = |data: &[&[u8]], lengths: &[usize]| {
        let mut parity: Vec<Vec<u8>> = lengths.iter().map(|len| vec![0x55; *len]).collect();
        let result = code.encode(data, &mut parity.iter_mut().map(|p| p.as_mut_slice()).collect::<Vec<_>>());
        assert!(result.is_ok() || parity.iter().flatten().all(|b| *b == 0x55));
        result
    };
    assert_eq!(attempt(&[good, good], &[24, 24]), Ok(()));
    assert_eq!(attempt(&[&[], &[]], &[0, 0]), Ok(()));
    assert_eq!(attempt(&[good], &[24, 24]), Err(Count { what: "data fragments", expected: 2, got: 1 }));
    assert_eq!(attempt(&[good, good], &[24]), Err(Count { what: "parity fragments", expected: 2, got: 1 }));
    assert_eq!(attempt(&[good, short], &[24, 24]), Err(Length { what: "fragment", index: 1, expected: 24, got: 16 }));
    assert_eq!(attempt(&[good, good], &[24, 0]), Err(Length { what: "fragment", index: 3, expected: 24, got: 0 }));
    assert_eq!(attempt(&[odd, odd], &[23, 23]), Err(Stripe { got: 23, stripe_bytes: 24 }));

    let attempt = |present: &[(usize, &[u8])], wanted: &[usize], lengths: &[usize]| {
        let mut rebuilt: Vec<Vec<u8>> = lengths.iter().map(|len| vec![0x55; *len]).collect();
        let mut room: Vec<&mut [u8]> = rebuilt.iter_mut().map(|p| p.as_mut_slice()).collect();
        let result = code.reconstruct(present, wanted, &mut room);
        assert!(result.is_ok() || rebuilt.iter().flatten().all(|b| *b == 0x55));
        result
    };
    assert_eq!(attempt(&[(1, good), (3, good)], &[0, 2], &[24, 24]), Ok(()));
    assert_eq!(attempt(&[(1, good)], &[1], &[24]), Ok(()));
    assert_eq!(attempt(&[], &[], &[]), Ok(()));
    assert_eq!(attempt(&[(1, good)], &[0], &[24]), Err(TooFewFragments { needed: 2, got: 1 }));
    assert_eq!(attempt(&[(1, good), (1, good)], &[0], &[24]), Err(Duplicate { index: 1 }));
    assert_eq!(attempt(&[(1, good), (2, good)], &[0, 0], &[24, 24]), Err(Duplicate { index: 0 }));
    assert_eq!(attempt(&[(1, good), (4, good)], &[0], &[24]), Err(Index { index: 4, total: 4 }));
    assert_eq!(attempt(&[(1, good), (2, good)], &[7], &[24]), Err(Index { index: 7, total: 4 }));
    let count = Count { what: "slices for the wanted fragments", expected: 2, got: 1 };
    assert_eq!(attempt(&[(1, good), (2, good)], &[0, 3], &[24]), Err(count));
    let unequal = Length { what: "fragment", index: 2, expected: 24, got: 16 };
    assert_eq!(attempt(&[(1, good), (2, short)], &[0], &[24]), Err(unequal));
    assert_eq!(attempt(&[(1, odd), (2, odd)], &[0], &[23]), Err(Stripe { got: 23, stripe_bytes: 24 }));

    let update = |index, parity: &mut [&mut [u8]]| code.update_on(Isa::best(), index, good, good, parity);
    assert_eq!(update(2, &mut []), Err(Index { index: 2, total: 2 }));
    assert_eq!(update(0, &mut []), Err(Count { what: "parity fragments", expected: 2, got: 0 }));
    let (mut a, mut b) = ([0u8; 24], [0u8; 16]);
    assert_eq!(update(0, &mut [&mut a, &mut b]), Err(Length { what: "fragment", index: 3, expected: 24, got: 16 }));
}

/// Digests of the parity that Jerasure gave for painted data: `fixtures/parity.txt`, written by `bench/accel`.
#[test]
fn parity_is_jerasures_by_the_fixtures() {
    let mut seen = 0;
    for line in include_str!("../../fixtures/parity.txt").lines().filter(|l| l.starts_with("jerasure-bits ")) {
        let fields: Vec<&str> = line.split(' ').collect();
        let number = |i: usize| fields[i].parse::<usize>().unwrap();
        let code = XorCode::new(fields[1].parse().unwrap(), number(2), number(3), number(4), number(5)).unwrap();
        let len = 2 * code.stripe_bytes();
        let bytes = painted(code.k() * len);
        let parity = encode(&code, Isa::best(), &bytes.chunks(len).collect::<Vec<_>>()).concat();
        assert_eq!(crate::hash::chunk_hash(&parity).to_string(), fields[6], "{line}");
        seen += 1;
    }
    assert!(seen >= 20, "{seen} fixtures");
}
