//! Chunks, classes and fragments for tests.

use bytes::Bytes;
use tessera_net::BufferPool;
use tessera_stripe::{Class, ClassLayout, Fragment, describe, encode};
use tessera_wire::ClassInfo;

/// `raid6:k+2`.
pub(crate) fn raid6_class(k: u32) -> ClassInfo {
    describe(1, format!("raid6:{k}+2").parse().unwrap())
}

/// `copy+ec:k+m`.
pub(crate) fn copy_class(k: u32, m: u32) -> ClassInfo {
    describe(1, format!("copy+ec:{k}+{m}").parse().unwrap())
}

/// `ec:k+m`, or m+1 copies.
pub(crate) fn class(k: u32, m: u32) -> ClassInfo {
    let spec = if k == 1 { format!("replica:{}", m + 1) } else { format!("ec:{k}+{m}") };
    describe(1, spec.parse().unwrap())
}

/// Pseudorandom bytes.
pub(crate) fn bytes(seed: u64, len: usize) -> Bytes {
    let mut rng = tessera_disk::SplitMix64::new(seed);
    (0..len).map(|_| rng.next_u64() as u8).collect::<Vec<_>>().into()
}

/// All fragments of a chunk, as a client computes them.
pub(crate) fn fragments(class: &ClassInfo, chunk: &Bytes) -> Vec<Fragment> {
    let all: Vec<u32> = (0..class.fragments()).collect();
    encode(&Class::new(class.clone()).unwrap(), chunk, &all, &BufferPool::new(0))
}
