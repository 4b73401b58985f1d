//! Published vectors, and every instruction set against RustCrypto (P10).

use super::*;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use tessera_accel::testing::test_bytes;

/// Lengths around the edges of blocks and of padding.
const EDGES: [usize; 21] =
    [0, 1, 2, 3, 54, 55, 56, 57, 63, 64, 65, 118, 119, 120, 121, 127, 128, 129, 1000, 1024, 4097];

#[test]
fn published_vectors_by_every_set() {
    let long = "12345678901234567890123456789012345678901234567890123456789012345678901234567890";
    let million = "a".repeat(1_000_000);
    // RFC 1321, §A.5; FIPS 180-4's examples; BLAKE3's test_vectors.json (length 0).
    for (function, message, expected) in [
        (Function::Md5, "", "d41d8cd98f00b204e9800998ecf8427e"),
        (Function::Md5, "a", "0cc175b9c0f1b6a831c399e269772661"),
        (Function::Md5, "abc", "900150983cd24fb0d6963f7d28e17f72"),
        (Function::Md5, "message digest", "f96b697d7cb7938d525a2f31aaf161d0"),
        (Function::Md5, "abcdefghijklmnopqrstuvwxyz", "c3fcd3d76192e4007dfb496cca67e13b"),
        (Function::Md5, long, "57edf4a22be3c955ac49da2e2107b67a"),
        (Function::Sha1, "", "da39a3ee5e6b4b0d3255bfef95601890afd80709"),
        (Function::Sha1, "abc", "a9993e364706816aba3e25717850c26c9cd0d89d"),
        (
            Function::Sha1,
            "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
            "84983e441c3bd26ebaae4aa1f95129e5e54670f1",
        ),
        (Function::Sha1, &million, "34aa973cd4c4daa4f61eeb2bdbad27316534016f"),
        (Function::Sha256, "", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"),
        (Function::Sha256, "abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),
        (
            Function::Sha256,
            "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1",
        ),
        (Function::Sha256, &million, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"),
        (Function::Blake3, "", "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"),
    ] {
        assert_eq!(digest(function, message.as_bytes()).to_string(), expected, "{function}");
        assert_eq!(digest(function, b"").as_bytes().len(), function.digest_bytes());
        for isa in Isa::supported() {
            // Together with other messages, so that lanes are used.
            let batch = batch_on(isa, function, &[b"x", message.as_bytes(), b"yz"]);
            assert_eq!(batch[1].to_string(), expected, "{function} {isa:?}");
        }
    }
}

#[test]
fn lengths_around_every_edge_by_every_set() {
    let pool = test_bytes(1, 4200);
    let buffers: Vec<&[u8]> = EDGES.iter().map(|len| &pool[..*len]).collect();
    for function in Function::ALL {
        let expected = batch_on(Isa::REFERENCE, function, &buffers);
        for isa in Isa::supported() {
            assert_eq!(batch_on(isa, function, &buffers), expected, "{function} {isa:?}");
            for len in EDGES {
                let same = vec![&pool[..len]; 17];
                assert_eq!(
                    batch_on(isa, function, &same)[16],
                    digest(function, &pool[..len]),
                    "{function} {isa:?} {len}"
                );
            }
            assert_eq!(batch_on(isa, function, &[]), []);
        }
    }
}

/// More than 100,000 random messages per instruction set, in batches of random sizes and lengths.
#[test]
fn every_set_equals_the_reference_on_a_hundred_thousand_random_messages() {
    let mut rng = StdRng::seed_from_u64(5);
    let pool = test_bytes(5, 1 << 16);
    let mut messages = 0;
    while messages < 110_000 {
        let most = [70, 200, 700, 3000][rng.random_range(0..4)];
        let buffers: Vec<&[u8]> = (0..rng.random_range(0..50))
            .map(|_| {
                let len = rng.random_range(0..most);
                let at = rng.random_range(0..pool.len() - len);
                &pool[at..at + len]
            })
            .collect();
        messages += buffers.len();
        let function = Function::ALL[messages % 3];
        let expected = batch_on(Isa::REFERENCE, function, &buffers);
        for isa in Isa::supported().into_iter().skip(1) {
            assert!(batch_on(isa, function, &buffers) == expected, "{function} {isa:?} after {messages} messages");
        }
    }
}

#[test]
fn a_segmented_hash_is_the_digest_of_the_segments_digests() {
    let bytes = test_bytes(6, 50_000);
    for function in Function::ALL {
        for (len, segment) in [(0, 1), (1, 1), (20, 3), (4096, 4096), (4097, 4096), (50_000, 64), (50_000, usize::MAX)]
        {
            let joined: Vec<u8> =
                bytes[..len].chunks(segment).flat_map(|s| digest(function, s).as_bytes().to_vec()).collect();
            let expected = digest(function, &joined);
            for isa in Isa::supported() {
                assert_eq!(
                    segmented_on(isa, function, &bytes[..len], segment),
                    Ok(expected),
                    "{function} {isa:?} {len}"
                );
            }
        }
    }
    assert_eq!(segmented(Function::Md5, b"abc", 0), Err(SegmentError::Empty));
    // Computed by hand with md5sum: md5(md5("ab") ‖ md5("c")), digests as bytes.
    let known = segmented(Function::Md5, b"abc", 2).map(|d| d.to_string());
    assert_eq!(known, Ok("d833159094d1d7ad96ffcc78414e3682".to_string()));
}

#[test]
fn functions_are_known_by_name() {
    for function in Function::ALL {
        assert_eq!(function.name().parse(), Ok(function));
    }
    let unknown = "md4".parse::<Function>().unwrap_err();
    assert_eq!(unknown.to_string(), "no hash function is called \"md4\"; known are md5, sha1, sha256, blake3");
}

/// Pieces of any length, also empty ones, give the digest of the whole.
#[test]
fn pieces_give_the_digest_of_the_whole() {
    let mut rng = StdRng::seed_from_u64(8);
    let bytes = test_bytes(9, 5_000);
    for function in Function::ALL {
        for len in EDGES {
            let (mut hasher, mut rest) = (Hasher::new(function), &bytes[..len]);
            while !rest.is_empty() {
                let (piece, later) = rest.split_at(rng.random_range(0..=rest.len()));
                hasher.update(piece);
                rest = later;
            }
            assert_eq!(hasher.finish(), digest(function, &bytes[..len]), "{function} {len}");
        }
    }
}
