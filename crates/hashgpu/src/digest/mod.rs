//! MD5, SHA-1, SHA-256 and BLAKE3 of batches of buffers, and the papers' *direct hashing*: a large buffer is hashed
//! segment by segment, then the digests are hashed.
//!
//! One message of MD5, SHA-1 or SHA-256 is a chain that no vector can shorten. A batch has as many chains as buffers,
//! and every lane of a vector walks one: [`batch`]. HashGPU's construction makes a batch of one large buffer:
//! [`segmented`].
//!
//! Names of chunks are BLAKE3 ([`tessera_accel::hash`]). MD5 and SHA-1 are here because the systems that Tessera
//! descends from name data by them; neither resists deliberate collisions.
//!
//! Reading order inside: `functions` (the three compression functions), `lanes` (the loop that feeds them), `segments`.
//! The reference is RustCrypto's crates (`md-5`, `sha1`, `sha2`); every faster path must equal them (P10).
//!
//! Sources: RFC 1321 (MD5), FIPS 180-4 (SHA-1, SHA-256); Al-Kiswany et al., "StoreGPU", HPDC 2008 (direct hashing);
//! Damgård, "A design principle for hash functions", CRYPTO 1989 (hashing the digests of segments is as strong).

pub(crate) mod functions;
mod hasher;
mod lanes;
mod segments;

#[cfg(test)]
mod tests;

use functions::{Sha1, Sha256};
use std::fmt;
use tessera_accel::windows::{Compression, MAX_DIGEST_BYTES, Md5};
use tessera_accel::{Isa, hash, named_enum};

pub use hasher::Hasher;
pub use segments::{SEGMENT_BYTES, SegmentError, segmented, segmented_on};

named_enum! {
    /// A hash function.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    pub enum Function (UnknownFunction = |name| UnknownFunction { name }) {
        /// RFC 1321, 16 bytes. Broken against attackers; HashGPU and MosaStore measured it.
        Md5 = "md5",
        /// FIPS 180-4, 20 bytes. Broken against attackers.
        Sha1 = "sha1",
        /// FIPS 180-4, 32 bytes.
        Sha256 = "sha256",
        /// BLAKE3-256, 32 bytes.
        Blake3 = "blake3",
    }
}

impl Function {
    /// Bytes in a digest.
    pub fn digest_bytes(self) -> usize {
        match self {
            Function::Md5 => 16,
            Function::Sha1 => 20,
            Function::Sha256 | Function::Blake3 => 32,
        }
    }
}

/// No hash function has this name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no hash function is called {name:?}; known are {}", Function::ALL.map(Function::name).join(", "))]
pub struct UnknownFunction {
    /// Name given.
    pub name: String,
}

/// The result of a function: 16 to 32 bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Digest {
    /// The digest, then zeros.
    bytes: [u8; MAX_DIGEST_BYTES],
    len: u8,
}

impl Digest {
    /// The digest `bytes`. No digest is longer than [`MAX_DIGEST_BYTES`]; further bytes are dropped.
    pub(crate) fn new(bytes: &[u8]) -> Digest {
        let len = bytes.len().min(MAX_DIGEST_BYTES);
        let mut digest = Digest { bytes: [0; MAX_DIGEST_BYTES], len: len as u8 };
        digest.bytes[..len].copy_from_slice(&bytes[..len]);
        digest
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl From<hash::Hash> for Digest {
    fn from(hash: hash::Hash) -> Digest {
        Digest::new(hash.as_bytes())
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_bytes().iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Digest({self})")
    }
}

/// Digest of one buffer.
pub fn digest(function: Function, bytes: &[u8]) -> Digest {
    match function {
        Function::Md5 => Digest::new(&Md5::reference(bytes)[..16]),
        Function::Sha1 => Digest::new(&Sha1::reference(bytes)[..20]),
        Function::Sha256 => Digest::new(&Sha256::reference(bytes)),
        Function::Blake3 => Digest::new(hash::chunk_hash(bytes).as_bytes()),
    }
}

/// [`digest`] of every buffer, in order. The more buffers, the higher the rate.
pub fn batch(function: Function, buffers: &[&[u8]]) -> Vec<Digest> {
    batch_on(Isa::best(), function, buffers)
}

/// [`batch`] by the kernels of `isa`; the digests are the same (P10).
pub fn batch_on(isa: Isa, function: Function, buffers: &[&[u8]]) -> Vec<Digest> {
    if function == Function::Blake3 {
        return hash::batch_on(isa, buffers).iter().map(|hash| Digest::new(hash.as_bytes())).collect();
    }
    // The reference crates are fastest for a single chain.
    if isa == Isa::REFERENCE || buffers.len() == 1 {
        return buffers.iter().map(|bytes| digest(function, bytes)).collect();
    }
    match function {
        Function::Md5 => lanes::batch::<Md5>(isa, buffers),
        Function::Sha1 => lanes::batch::<Sha1>(isa, buffers),
        _ => lanes::batch::<Sha256>(isa, buffers),
    }
}
