//! CRC-32C (Castagnoli, reflected polynomial 0x82f63b78, as in iSCSI, RFC 3720 §12.1): the checksum of records, frames
//! and fragments. It finds bit rot and torn writes. It does not protect against an adversary; [`crate::hash`] does.

use crc_fast::CrcAlgorithm;

/// CRC-32C of `bytes`.
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// CRC-32C of `a ‖ b`, given `crc`, the checksum of `a`, and `b` itself.
pub fn crc32c_append(crc: u32, b: &[u8]) -> u32 {
    // The register holds the complement of the checksum.
    let mut rest = crc_fast::Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(!crc));
    rest.update(b);
    rest.finalize() as u32
}

/// CRC-32C of `a ‖ b`, given the checksums of both and the length of `b`, without reading the bytes.
pub fn crc32c_combine(crc_a: u32, crc_b: u32, len_b_bytes: usize) -> u32 {
    crc_fast::checksum_combine(CrcAlgorithm::Crc32Iscsi, crc_a.into(), crc_b.into(), len_b_bytes as u64) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Bit by bit, from the polynomial.
    fn reference(bytes: &[u8]) -> u32 {
        let mut crc = !0u32;
        for &b in bytes {
            crc ^= u32::from(b);
            for _ in 0..8 {
                crc = (crc >> 1) ^ (0x82f6_3b78 & (crc & 1).wrapping_neg());
            }
        }
        !crc
    }

    #[test]
    fn rfc3720_vectors() {
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
        let rising: Vec<u8> = (0..32).collect();
        assert_eq!(crc32c(&rising), 0x46dd_794e);
        let falling: Vec<u8> = (0..32).rev().collect();
        assert_eq!(crc32c(&falling), 0x113f_db5c);
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(b""), 0);
    }

    proptest! {
        #[test]
        fn equals_the_bitwise_reference(bytes in proptest::collection::vec(any::<u8>(), 0..5000), cut in 0usize..5000) {
            let cut = cut.min(bytes.len());
            let (a, b) = bytes.split_at(cut);
            let whole = reference(&bytes);
            prop_assert_eq!(crc32c(&bytes), whole);
            prop_assert_eq!(crc32c_append(crc32c(a), b), whole);
            prop_assert_eq!(crc32c_combine(crc32c(a), crc32c(b), b.len()), whole);
        }
    }
}
