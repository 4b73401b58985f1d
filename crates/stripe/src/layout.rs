//! The numbers of redundancy classes: which fragments suffice to read, which hold the chunk's own bytes, how long each
//! is. Other code that counts fragments asks here and never compares with k.
//!
//! | code | fragments | read from |
//! |---|---|---|
//! | `copy` | m+1 whole copies (k = 1) | any |
//! | `rs` | k slices of the chunk, m parities | any k |
//! | `xor` | k slices of the chunk, m parities | any k |
//! | `copy+rs` | fragment 0 is the whole chunk; then the slices of `rs` from the second on, and its m parities | fragment 0, or any k others |
//!
//! The first bytes of the copy are slice 0 of the code, so any k fragments of `copy+rs` suffice too, and any m may be lost.
//!
//! Slices of `rs` and `copy+rs` are multiples of [`GROUP_BYTES`], so that the node that holds a slice can check it with the
//! chunk's group hashes alone. A chunk of fewer than k groups has empty slices at its end. Its parities are no longer than its
//! bytes: a chunk of one group has parities of its own length.

use tessera_accel::erasure::FRAGMENT_ALIGN_BYTES;
use tessera_accel::hash::GROUP_BYTES;
use tessera_policy::Scheme;
use tessera_wire::ClassInfo;

/// [`ClassInfo::code`] of whole copies.
pub const COPIES: &str = "copy";
/// [`ClassInfo::code`] of Reed–Solomon over GF(2^8).
pub const REED_SOLOMON: &str = "rs";
/// [`ClassInfo::code`] of a bit matrix: XOR alone.
pub const XOR: &str = "xor";
/// [`ClassInfo::code`] of a Reed–Solomon code whose fragment 0 is the whole chunk.
pub const COPY_AND_REED_SOLOMON: &str = "copy+rs";

/// Bytes of a packet of XOR codes: a stripe of all fragments stays in the cache while it is coded, and short chunks are padded
/// little (bench/results/accel.md: 4,096 is no faster).
const PACKET_BYTES: u32 = 1024;

// Lengths and classes are stored: a change of these would misread every chunk that exists.
const _: () = assert!(FRAGMENT_ALIGN_BYTES == 64 && PACKET_BYTES == 1024 && GROUP_BYTES == 16 << 10);
const _: () = assert!(GROUP_BYTES.is_multiple_of(FRAGMENT_ALIGN_BYTES));

/// The class that stores chunks by `scheme`. Classes are stored: these values never change.
pub fn describe(class_id: u32, scheme: Scheme) -> ClassInfo {
    let (code, matrix) = match scheme {
        Scheme::Copies { .. } => (COPIES, ""),
        Scheme::Code { .. } => (REED_SOLOMON, "cauchy1"),
        Scheme::CopyAndCode { .. } => (COPY_AND_REED_SOLOMON, "cauchy1"),
        Scheme::Raid6 { .. } => (XOR, "liberation"),
    };
    let class = ClassInfo {
        class_id,
        spec: scheme.to_string(),
        k: scheme.needed(),
        m: scheme.losses(),
        code: code.into(),
        matrix: matrix.into(),
        ..ClassInfo::default()
    };
    assert_eq!(class.fragments(), scheme.fragments(), "fragments of {scheme}");
    match scheme {
        Scheme::Raid6 { k } => {
            let word_bits = liberation_word_bits(k);
            assert!(word_bits >= k, "a Liberation code of {k} data fragments over {word_bits} bits");
            let alignment_bytes = word_bits * PACKET_BYTES;
            ClassInfo { word_bits, packet_bytes: PACKET_BYTES, alignment_bytes, ..class }
        }
        _ => class,
    }
}

/// The w of a Liberation code with `k` data fragments: the smallest prime that is neither below k nor below 7.
fn liberation_word_bits(k: u32) -> u32 {
    [7, 11, 13, 17, 19, 23, 29].into_iter().find(|w| *w >= k).unwrap_or(31)
}

/// The layout of the fragments of a class's chunks.
pub trait ClassLayout {
    /// Fragments of a chunk.
    fn fragments(&self) -> u32;
    /// Number of fragments that are the whole chunk; they come first.
    fn copies(&self) -> u32;
    /// Length of a parity, and of a slice before it is cut at the end of a short chunk.
    fn slice_bytes(&self, chunk_bytes: u64) -> u64;
    /// Stored length of fragment `fragment`; `None` if the class has no such fragment.
    fn fragment_bytes(&self, chunk_bytes: u64, fragment: u32) -> Option<u64>;
    /// Whether the chunk can be read from these distinct fragments.
    fn suffices(&self, present: impl IntoIterator<Item = u32>) -> bool;
    /// Space reserved for fragment `fragment` before it is stored.
    fn room_bytes(&self, chunk_bytes: u64, fragment: u32) -> u64;

    /// Bytes of all fragments of a chunk together.
    fn stored_bytes(&self, chunk_bytes: u64) -> u64 {
        let lengths = (0..self.fragments()).filter_map(|fragment| self.fragment_bytes(chunk_bytes, fragment));
        lengths.fold(0, u64::saturating_add)
    }

    /// Whether fragment `fragment` is the whole chunk.
    fn is_copy(&self, fragment: u32) -> bool {
        fragment < self.copies()
    }

    /// Whether the fragment's bytes are the chunk's own: a copy or a slice. The others are parity.
    fn is_plain(&self, fragment: u32) -> bool;

    /// Position in the chunk of the first byte of a copy or slice; `None` for parity.
    fn plain_offset(&self, chunk_bytes: u64, fragment: u32) -> Option<u64>;

    /// Number of fragments that placement hints apply to, from the first on: the copies if there are any, else the
    /// slices.
    fn hinted_fragments(&self) -> u32;

    /// Whether the chunk can be read without the fragments for which `is_missing` is true.
    fn suffices_without(&self, is_missing: impl Fn(u32) -> bool) -> bool {
        self.suffices((0..self.fragments()).filter(|fragment| !is_missing(*fragment)))
    }

    /// Whether a chunk with any `count` of its fragments survives the loss of one more. (A copy and k−1 others would
    /// not, if the copy is lost.)
    fn is_redundant(&self, count: u32) -> bool;
}

impl ClassLayout for ClassInfo {
    fn fragments(&self) -> u32 {
        self.k.saturating_add(self.m)
    }

    fn copies(&self) -> u32 {
        match self.code.as_str() {
            COPIES => self.fragments(),
            COPY_AND_REED_SOLOMON => 1,
            _ => 0,
        }
    }

    fn slice_bytes(&self, chunk_bytes: u64) -> u64 {
        let round_up = |bytes: u64, align: u64| bytes.saturating_add(align - 1) / align * align;
        let kth = chunk_bytes.div_ceil(u64::from(self.k.max(1)));
        match self.code.as_str() {
            COPIES => chunk_bytes,
            XOR => round_up(kth, u64::from(self.alignment_bytes.max(1))),
            _ => round_up(kth, GROUP_BYTES as u64).min(round_up(chunk_bytes, FRAGMENT_ALIGN_BYTES as u64)),
        }
    }

    fn fragment_bytes(&self, chunk_bytes: u64, fragment: u32) -> Option<u64> {
        let full = self.slice_bytes(chunk_bytes);
        match fragment {
            i if i >= self.fragments() => None,
            i if self.is_copy(i) => Some(chunk_bytes),
            i if i < self.k => Some(chunk_bytes.saturating_sub(u64::from(i).saturating_mul(full)).min(full)),
            _ => Some(full),
        }
    }

    fn suffices(&self, present: impl IntoIterator<Item = u32>) -> bool {
        let (mut count, mut copy) = (0, false);
        for fragment in present {
            count += 1;
            copy |= self.is_copy(fragment);
        }
        copy || count >= self.k
    }

    fn room_bytes(&self, chunk_bytes: u64, fragment: u32) -> u64 {
        if self.is_copy(fragment) { chunk_bytes } else { self.slice_bytes(chunk_bytes) }
    }

    fn is_plain(&self, fragment: u32) -> bool {
        fragment < self.k || self.is_copy(fragment)
    }

    fn plain_offset(&self, chunk_bytes: u64, fragment: u32) -> Option<u64> {
        match fragment {
            i if self.is_copy(i) => Some(0),
            i if i < self.k => Some(u64::from(i).saturating_mul(self.slice_bytes(chunk_bytes)).min(chunk_bytes)),
            _ => None,
        }
    }

    fn hinted_fragments(&self) -> u32 {
        if self.copies() > 0 { self.copies() } else { self.k }
    }

    fn is_redundant(&self, count: u32) -> bool {
        count > self.k
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(code: &str, k: u32, m: u32) -> ClassInfo {
        ClassInfo { k, m, code: code.into(), ..ClassInfo::default() }
    }

    fn classes() -> Vec<ClassInfo> {
        let pairs = [(2, 1), (4, 2), (3, 2), (10, 4)];
        let mut all: Vec<_> = pairs.iter().flat_map(|(k, m)| [class("rs", *k, *m), class("copy+rs", *k, *m)]).collect();
        all.extend([class("copy", 1, 0), class("copy", 1, 2)]);
        all.push(ClassInfo { alignment_bytes: 7168, ..class("xor", 4, 2) });
        all
    }

    /// P1: after the loss of any m fragments the rest suffices; a copy suffices alone, k−1 others never do.
    #[test]
    fn any_m_fragments_may_be_lost() {
        for class in classes() {
            let n = class.fragments();
            for pattern in 0u32..1 << n {
                let present: Vec<u32> = (0..n).filter(|i| pattern >> i & 1 == 1).collect();
                let suffices = class.suffices(present.iter().copied());
                let expected =
                    present.len() as u32 >= class.k || present.contains(&0) && class.code.starts_with("copy");
                assert_eq!(suffices, expected, "{class:?} {present:?}");
                assert!(suffices || n - present.len() as u32 > class.m, "{class:?} {present:?}");
                assert_eq!(class.suffices_without(|i| !present.contains(&i)), suffices);
                // Degraded writes: any one more fragment may be lost.
                if class.is_redundant(present.len() as u32) {
                    let without = |lost: &u32| class.suffices(present.iter().copied().filter(|i| i != lost));
                    assert!(present.iter().all(without));
                }
            }
        }
    }

    #[test]
    fn lengths_add_up() {
        for class in classes() {
            for len in [0, 1, 63, 64, 65, 255, 256, 257, 7168, 16_384, 16_385, 28_673, 100_003, 1 << 20] {
                let bytes: Vec<u64> = (0..class.fragments()).map(|i| class.fragment_bytes(len, i).unwrap()).collect();
                assert_eq!(class.fragment_bytes(len, class.fragments()), None);
                assert!((0..class.copies()).all(|i| bytes[i as usize] == len));
                if class.code != "copy" {
                    let coded = ClassInfo { code: class.code.replace("copy+", ""), ..class.clone() };
                    assert_eq!((0..class.k).map(|i| coded.fragment_bytes(len, i).unwrap()).sum::<u64>(), len);
                }
                assert_eq!(class.stored_bytes(len), bytes.iter().sum::<u64>());
                assert!((0..class.fragments()).all(|i| class.room_bytes(len, i) >= bytes[i as usize]));
                // A group lies in one slice, and no parity is longer than the chunk, rounded up.
                let slice = class.slice_bytes(len);
                let aligned = slice.is_multiple_of(16_384) || slice >= len;
                assert!(aligned || class.code == "xor", "{class:?} {len}: slices of {slice}");
                assert!(slice <= len.next_multiple_of(64) || class.code == "xor", "{class:?} {len}: slices of {slice}");
            }
        }
        assert_eq!(class("copy+rs", 4, 2).stored_bytes(4 << 20), (4 << 20) + 5 * (1 << 20));
        assert_eq!(class("rs", 4, 2).stored_bytes(10_000), 3 * 10_000 + 2 * 48);
    }

    /// These values are stored in the classes of every cluster: they never change.
    #[test]
    fn schemes_are_described_as_they_always_were() {
        let of = |spec: &str| describe(7, spec.parse().unwrap());
        let raid6 = of("raid6:9+2");
        assert_eq!((raid6.word_bits, raid6.packet_bytes, raid6.alignment_bytes), (11, 1024, 11 * 1024));
        assert_eq!((raid6.code.as_str(), raid6.matrix.as_str()), ("xor", "liberation"));
        assert_eq!(
            of("copy+ec:4+2"),
            ClassInfo { class_id: 7, spec: "copy+ec:4+2".into(), matrix: "cauchy1".into(), ..class("copy+rs", 4, 2) }
        );
        assert_eq!(
            of("ec:4+2"),
            ClassInfo { class_id: 7, spec: "ec:4+2".into(), matrix: "cauchy1".into(), ..class("rs", 4, 2) }
        );
        assert_eq!(of("none"), ClassInfo { class_id: 7, spec: "none".into(), ..class("copy", 1, 0) });
    }
}
