//! Redundancy classes: the one place that says how fragments and chunk hang together. Which fragments suffice to read, which hold
//! the chunk's own bytes, how long each is. Whoever counts fragments asks here; nobody compares with k.
//!
//! | code | fragments | read from |
//! |---|---|---|
//! | `copy` | m+1 whole copies (k = 1) | any |
//! | `rs` | k slices of the chunk, m parities | any k |
//! | `xor` | k slices of the chunk, m parities | any k |
//! | `copy+rs` | fragment 0 is the whole chunk; then the slices of `rs` from the second on, and its m parities | fragment 0, or any k others |
//!
//! The first bytes of the copy are slice 0 of the code, so that of `copy+rs`, too, any k fragments suffice, and any m may be lost.

/// How chunks of a redundancy class become fragments.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ClassInfo {
    /// Class id.
    #[prost(uint32, tag = "1")]
    pub class_id: u32,
    /// Canonical text: `none`, `replica:3`, `ec:4+2`, `raid6:8+2`, `copy+ec:4+2`.
    #[prost(string, tag = "2")]
    pub spec: String,
    /// Fragments of any kind that suffice to read: k for codes, 1 for copies.
    #[prost(uint32, tag = "3")]
    pub k: u32,
    /// Fragments of any kind that may be lost.
    #[prost(uint32, tag = "4")]
    pub m: u32,
    /// One of the module's table; `rs` is Reed–Solomon over GF(2^8), 0x11d; `xor` a bit matrix.
    #[prost(string, tag = "5")]
    pub code: String,
    /// Coding matrix: `cauchy1`; of `xor` `liberation` or another technique; empty for copies.
    #[prost(string, tag = "6")]
    pub matrix: String,
    /// Of `xor`: packets of a stripe, w.
    #[prost(uint32, tag = "7")]
    pub word_bits: u32,
    /// Of `xor`: bytes of a packet.
    #[prost(uint32, tag = "8")]
    pub packet_bytes: u32,
    /// Of `xor`: slices start at multiples of this, which is a stripe.
    #[prost(uint32, tag = "9")]
    pub alignment_bytes: u32,
}

/// Code of whole copies.
pub const COPIES: &str = "copy";
/// Reed–Solomon code.
pub const REED_SOLOMON: &str = "rs";
/// Code of XOR alone.
pub const XOR: &str = "xor";
/// Reed–Solomon code whose fragment 0 is the whole chunk.
pub const COPY_AND_REED_SOLOMON: &str = "copy+rs";

/// Slices of Reed–Solomon codes start at multiples of this, as `tessera_accel::erasure` has it.
pub const RS_ALIGN_BYTES: u64 = 64;

impl ClassInfo {
    /// Fragments a chunk of this class has.
    pub fn fragments(&self) -> u32 {
        self.k.saturating_add(self.m)
    }

    /// Fragments from 0 on that are the whole chunk, each.
    pub fn copies(&self) -> u32 {
        match self.code.as_str() {
            COPIES => self.fragments(),
            COPY_AND_REED_SOLOMON => 1,
            _ => 0,
        }
    }

    /// Whether fragment `fragment` is the whole chunk.
    pub fn is_copy(&self, fragment: u32) -> bool {
        fragment < self.copies()
    }

    /// Whether the fragment's bytes are the chunk's own: a copy or a slice. Others are parity.
    pub fn is_plain(&self, fragment: u32) -> bool {
        fragment < self.k || self.is_copy(fragment)
    }

    /// Where a whole chunk, or its first slice, lies at best: fragments from 0 up to and without this one. A copy, where
    /// there is one, else any slice.
    pub fn anchors(&self) -> u32 {
        if self.copies() > 0 { self.copies() } else { self.k }
    }

    /// Whether the chunk can be read from these fragments (distinct ones).
    pub fn suffices(&self, there: impl IntoIterator<Item = u32>) -> bool {
        let (mut count, mut copy) = (0, false);
        for fragment in there {
            count += 1;
            copy |= self.is_copy(fragment);
        }
        copy || count >= self.k
    }

    /// Whether it can be read while `away` says which fragments are not there.
    pub fn suffices_without(&self, away: impl Fn(u32) -> bool) -> bool {
        self.suffices((0..self.fragments()).filter(|fragment| !away(*fragment)))
    }

    /// Whether a chunk with `count` of its fragments, whichever they are, outlives the loss of one more. (With a copy and k−1
    /// others it would not: the copy may go.)
    pub fn is_redundant(&self, count: u32) -> bool {
        count > self.k
    }

    /// Length F of a slice before the end of a short chunk is cut off, and of a parity.
    pub fn slice_bytes(&self, chunk_bytes: u64) -> u64 {
        let align = match self.code.as_str() {
            COPIES => return chunk_bytes,
            XOR => u64::from(self.alignment_bytes.max(1)),
            _ => RS_ALIGN_BYTES,
        };
        chunk_bytes.div_ceil(u64::from(self.k.max(1))).saturating_add(align - 1) / align * align
    }

    /// Length of fragment `fragment` of a chunk as it is stored; none if there is no such fragment.
    pub fn fragment_bytes(&self, chunk_bytes: u64, fragment: u32) -> Option<u64> {
        let full = self.slice_bytes(chunk_bytes);
        match fragment {
            i if i >= self.fragments() => None,
            i if self.is_copy(i) => Some(chunk_bytes),
            i if i < self.k => Some(chunk_bytes.saturating_sub(u64::from(i).saturating_mul(full)).min(full)),
            _ => Some(full),
        }
    }

    /// Bytes that all fragments of a chunk take together, as totals count them: of `rs` a k-th of the chunk for each slice and parity, not
    /// padded. It never changes, for totals that were kept must come out again.
    pub fn stored_bytes(&self, chunk_bytes: u64) -> u64 {
        let sum = |count: u32, each: u64| u64::from(count).saturating_mul(each);
        let kth = chunk_bytes.div_ceil(u64::from(self.k.max(1)));
        match self.code.as_str() {
            XOR => chunk_bytes.saturating_add(sum(self.m, self.slice_bytes(chunk_bytes))),
            _ => sum(self.fragments() - self.copies(), kth).saturating_add(sum(self.copies(), chunk_bytes)),
        }
    }

    /// Room that fragment `fragment` is counted with before it is there.
    pub fn room_bytes(&self, chunk_bytes: u64, fragment: u32) -> u64 {
        match self.code.as_str() {
            _ if self.is_copy(fragment) => chunk_bytes,
            XOR => self.slice_bytes(chunk_bytes),
            _ => chunk_bytes.div_ceil(u64::from(self.k.max(1))),
        }
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

    /// P1: whatever m fragments go, the rest suffices; a copy suffices by itself, k−1 others never.
    #[test]
    fn any_m_may_be_lost_of_every_class() {
        for class in classes() {
            let n = class.fragments();
            for pattern in 0u32..1 << n {
                let there: Vec<u32> = (0..n).filter(|i| pattern >> i & 1 == 1).collect();
                let suffices = class.suffices(there.iter().copied());
                let expected = there.len() as u32 >= class.k || there.contains(&0) && class.code.starts_with("copy");
                assert_eq!(suffices, expected, "{class:?} {there:?}");
                assert!(suffices || n - there.len() as u32 > class.m, "{class:?} {there:?}");
                assert_eq!(class.suffices_without(|i| !there.contains(&i)), suffices);
                // Degraded writes: one more may go, whichever.
                if class.is_redundant(there.len() as u32) {
                    assert!(there.iter().all(|gone| class.suffices(there.iter().copied().filter(|i| i != gone))));
                }
            }
        }
    }

    #[test]
    fn lengths_add_up() {
        for class in classes() {
            for len in [0, 1, 63, 64, 65, 255, 256, 257, 7168, 28_673, 100_003] {
                let bytes: Vec<u64> = (0..class.fragments()).map(|i| class.fragment_bytes(len, i).unwrap()).collect();
                assert_eq!(class.fragment_bytes(len, class.fragments()), None);
                assert!((0..class.copies()).all(|i| bytes[i as usize] == len));
                if class.code != "copy" {
                    let slices = (0..class.k).map(|i| {
                        ClassInfo { code: class.code.replace("copy+", ""), ..class.clone() }
                            .fragment_bytes(len, i)
                            .unwrap()
                    });
                    assert_eq!(slices.sum::<u64>(), len);
                }
                let padded: u64 = bytes.iter().sum();
                let counted = class.stored_bytes(len);
                assert!(
                    padded.abs_diff(counted) <= (128 + u64::from(class.alignment_bytes)) * u64::from(class.fragments()),
                    "{class:?} {len}: {padded} {counted}"
                );
            }
        }
        assert_eq!(class("copy+rs", 4, 2).stored_bytes(4_000_000), 4_000_000 + 5 * 1_000_000);
    }
}
