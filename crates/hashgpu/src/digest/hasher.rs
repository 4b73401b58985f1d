//! The digest of bytes that arrive in pieces: data too large for memory, or not complete yet.

use super::{Digest, Function};

/// Takes bytes piece by piece; [`Hasher::finish`] returns what [`super::digest`] returns for all of them together.
#[derive(Clone, Debug)]
pub struct Hasher(Chain);

#[derive(Clone, Debug)]
enum Chain {
    Md5(md5::Md5),
    Sha1(sha1::Sha1),
    Sha256(sha2::Sha256),
    // Boxed, because it is fifteen times as large as the others.
    Blake3(Box<blake3::Hasher>),
}

impl Hasher {
    /// A hasher of no bytes.
    pub fn new(function: Function) -> Hasher {
        Hasher(match function {
            Function::Md5 => Chain::Md5(Default::default()),
            Function::Sha1 => Chain::Sha1(Default::default()),
            Function::Sha256 => Chain::Sha256(Default::default()),
            Function::Blake3 => Chain::Blake3(Default::default()),
        })
    }

    /// Adds the next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        match &mut self.0 {
            Chain::Md5(chain) => md5::Digest::update(chain, bytes),
            Chain::Sha1(chain) => sha1::Digest::update(chain, bytes),
            Chain::Sha256(chain) => sha2::Digest::update(chain, bytes),
            Chain::Blake3(chain) => drop(chain.update(bytes)),
        }
    }

    /// The digest of all bytes.
    pub fn finish(self) -> Digest {
        match self.0 {
            Chain::Md5(chain) => Digest::new(&md5::Digest::finalize(chain)),
            Chain::Sha1(chain) => Digest::new(&sha1::Digest::finalize(chain)),
            Chain::Sha256(chain) => Digest::new(&sha2::Digest::finalize(chain)),
            Chain::Blake3(chain) => Digest::new(chain.finalize().as_bytes()),
        }
    }
}
