//! The description of a redundancy class. What it means for fragments is said by crate `stripe`.

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
    /// `copy`: whole copies; `rs`: Reed–Solomon over GF(2^8), 0x11d; `xor`: a bit matrix; `copy+rs`: `rs` whose fragment 0 is the
    /// whole chunk.
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
