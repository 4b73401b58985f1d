//! Published vectors, the reference, and wrong group hashes (P2, P10, P14).

use super::*;
use proptest::prelude::*;

/// Input of the published BLAKE3 vectors: bytes 0..=250 repeated (prime period, so swapped blocks are noticed).
fn painted(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i % 251) as u8).collect()
}

/// Lengths around every edge: block, leaf, SIMD widths of leaves, group, several groups.
fn lengths() -> Vec<usize> {
    let mut lengths = vec![0, 1, 2, 3, 63, 64, 65, 127, 128, 129, 1023, 1024, 1025];
    for edge in [2048, 3072, 4096, 8192, 16384, 17408, 32768, 49152, 65536, 81920, 131072, 262144, 1 << 20] {
        lengths.extend([edge - 1, edge, edge + 1]);
    }
    lengths
}

#[test]
fn published_vectors() {
    // From test_vectors.json of the BLAKE3 project: (input length, first 32 bytes of the digest).
    for (len, expected) in [
        (0, "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"),
        (1, "2d3adedff11b61f14c886e35afa036736dcd87a74d27b5c1510225d0f592e213"),
        (1023, "10108970eeda3eb932baac1428c7a2163b0e924c9a9e25b35bba72b28f70bd11"),
        (1024, "42214739f095a406f3fc83deb889744ac00df831c10daa55189b5d121c855af7"),
        (1025, "d00278ae47eb27b34faecf67b4fe263f82d5412916c1ffd97c8cb7fb814b8444"),
        (16384, "f875d6646de28985646f34ee13be9a576fd515f76b5b0a26bb324735041ddde4"),
        (31744, "62b6960e1a44bcc1eb1a611a8d6235b6b4b78f32e7abc4fb4c6cdcce94895c47"),
        (102400, "bc3e3d41a1146b069abffad3c0d44860cf664390afce4d9661f7902e7943e085"),
    ] {
        let input = painted(len);
        assert_eq!(chunk_hash(&input).to_string(), expected, "length {len}");
        assert_eq!(reference::tree(&input).root.to_string(), expected, "reference, length {len}");
    }
}

#[test]
fn trees_equal_the_reference_and_the_standard_digest_at_every_edge() {
    for len in lengths() {
        let input = painted(len);
        let tree = tree(&input);
        assert_eq!(tree, reference::tree(&input), "length {len}");
        assert_eq!(tree.root, chunk_hash(&input), "length {len}");
        assert_eq!(tree.groups.len() as u64, group_count(len as u64));
        verify_groups(&tree.root, len as u64, &tree.groups).unwrap();
        for (index, bytes) in input.chunks(GROUP_BYTES).enumerate().take(tree.groups.len()) {
            verify_group(index as u64, len as u64, &tree.groups, bytes).unwrap();
        }
    }
}

/// A batch of every length around every edge, alone, together and repeated many times.
#[test]
fn batches_equal_the_reference_by_every_set() {
    let lengths: Vec<usize> = lengths().into_iter().filter(|len| *len < 140_000).collect();
    let input = painted(140_000);
    let buffers: Vec<&[u8]> = lengths.iter().map(|len| &input[..*len]).collect();
    let expected = batch_on(Isa::REFERENCE, &buffers);
    for isa in Isa::supported() {
        assert_eq!(batch_on(isa, &buffers), expected, "{isa:?}");
        assert_eq!(batch_on(isa, &[]), []);
        for (buffer, expected) in buffers.iter().zip(&expected) {
            assert_eq!(batch_on(isa, &[buffer]), [*expected], "{isa:?} length {}", buffer.len());
            let many = if buffer.len() < 5000 { 37 } else { 3 };
            assert_eq!(batch_on(isa, &vec![*buffer; many]), vec![*expected; many], "{isa:?} length {}", buffer.len());
        }
    }
}

/// More than 100,000 random messages per instruction set, in batches of random sizes and lengths.
#[test]
fn batches_equal_the_crate_on_a_hundred_thousand_random_messages() {
    use rand::{RngExt, SeedableRng, rngs::StdRng};
    let mut rng = StdRng::seed_from_u64(8);
    let pool = crate::testing::test_bytes(8, 1 << 16);
    let mut messages = 0;
    while messages < 110_000 {
        let most = [70, 1100, 3000, 9000, 17_500][rng.random_range(0..5)];
        let buffers: Vec<&[u8]> = (0..rng.random_range(0..60))
            .map(|_| {
                let len = rng.random_range(0..most);
                let at = rng.random_range(0..pool.len() - len);
                &pool[at..at + len]
            })
            .collect();
        messages += buffers.len();
        let expected: Vec<Hash> = buffers.iter().map(|b| chunk_hash(b)).collect();
        for isa in Isa::supported().into_iter().skip(1) {
            assert!(batch_on(isa, &buffers) == expected, "{isa:?} after {messages} messages");
        }
    }
}

#[test]
fn wrong_counts_indexes_and_lengths_are_typed_errors() {
    let input = painted(3 * GROUP_BYTES + 5);
    let len = input.len() as u64;
    let Tree { root, groups } = tree(&input);
    let too_few = &groups[..3];
    assert_eq!(verify_groups(&root, len, too_few), Err(TreeError::GroupCount { chunk_len: len, expected: 4, got: 3 }));
    assert_eq!(
        verify_groups(&root, u64::MAX, &groups),
        Err(TreeError::GroupCount { chunk_len: u64::MAX, expected: 1 << 50, got: 4 })
    );
    assert_eq!(verify_groups(&root, 0, &groups), Err(TreeError::GroupCount { chunk_len: 0, expected: 0, got: 4 }));
    assert_eq!(verify_group(4, len, &groups, &[]), Err(TreeError::Index { index: 4, groups: 4, chunk_len: len }));
    assert!(matches!(verify_group(u64::MAX, len, &groups, &[]), Err(TreeError::Index { .. })));
    assert!(matches!(verify_group(0, 5, &[], b"hello"), Err(TreeError::Index { groups: 0, .. })));
    for bytes in [&input[..0], &input[..GROUP_BYTES - 1], &input[..GROUP_BYTES + 1]] {
        assert!(matches!(
            verify_group(0, len, &groups, bytes),
            Err(TreeError::GroupLength { expected: GROUP_BYTES, .. })
        ));
    }
    assert!(matches!(
        verify_group(3, len, &groups, &input[3 * GROUP_BYTES..3 * GROUP_BYTES + 4]),
        Err(TreeError::GroupLength { expected: 5, got: 4, .. })
    ));
}

#[test]
fn a_name_is_read_and_written_as_hexadecimal() {
    let name = chunk_hash(b"tessera");
    assert_eq!(name.to_string().parse::<Hash>(), Ok(name));
    assert!("af13".parse::<Hash>().is_err());
    assert_eq!(Hash::try_from(&[0u8; 31][..]), Err(HashParseError::Length { got: 31 }));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn equals_the_reference(seed in any::<u64>(), len in 0usize..200_000) {
        let input = crate::testing::test_bytes(seed, len);
        prop_assert_eq!(tree(&input), reference::tree(&input));
    }

    /// P2: a change of any single bit of the bytes, the list or the name is refused.
    #[test]
    fn any_flipped_bit_is_refused(seed in any::<u64>(), len in GROUP_BYTES + 1..5 * GROUP_BYTES, at in any::<prop::sample::Index>(), bit in 0u8..8) {
        let mut input = crate::testing::test_bytes(seed, len);
        let Tree { root, mut groups } = tree(&input);

        let at_byte = at.index(len);
        input[at_byte] ^= 1 << bit;
        let index = at_byte / GROUP_BYTES;
        let bytes = &input[index * GROUP_BYTES..len.min((index + 1) * GROUP_BYTES)];
        prop_assert_eq!(verify_group(index as u64, len as u64, &groups, bytes), Err(TreeError::Group { index: index as u64 }));

        let at_group = at.index(groups.len());
        groups[at_group][at.index(HASH_BYTES)] ^= 1 << bit;
        let refused = matches!(verify_groups(&root, len as u64, &groups), Err(TreeError::Root { .. }));
        prop_assert!(refused);
    }

    /// A group's bytes under another group's number are refused, as are group hashes in another order.
    #[test]
    fn swapped_groups_are_refused(seed in any::<u64>(), a in 0usize..4, b in 0usize..4) {
        prop_assume!(a != b);
        let input = crate::testing::test_bytes(seed, 4 * GROUP_BYTES);
        let len = input.len() as u64;
        let Tree { root, mut groups } = tree(&input);
        let bytes = &input[a * GROUP_BYTES..(a + 1) * GROUP_BYTES];
        prop_assert!(verify_group(b as u64, len, &groups, bytes).is_err());
        groups.swap(a, b);
        prop_assert!(verify_groups(&root, len, &groups).is_err());
    }
}
