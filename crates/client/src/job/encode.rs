//! Fragments of a chunk: data fragments are slices of it, parity is computed, all get a checksum.

use crate::class::Class;
use bytes::Bytes;
use std::sync::Arc;
use tessera_accel::checksum::crc32c;
use tessera_net::BufferPool;

/// Make fragments `wanted` of the chunk `data`.
#[derive(Debug)]
pub struct Encode {
    /// Its class.
    pub class: Arc<Class>,
    /// The chunk.
    pub data: Bytes,
    /// Fragment numbers, below the class's count.
    pub wanted: Vec<u32>,
}

/// The fragments, in the order wanted.
#[derive(Debug)]
pub struct Encoded {
    /// The fragments.
    pub fragments: Vec<Fragment>,
}

/// One fragment, ready to be sent.
#[derive(Debug, Clone)]
pub struct Fragment {
    /// Its number.
    pub number: u32,
    /// Its bytes.
    pub bytes: Bytes,
    /// crc32c of them.
    pub crc32c: u32,
}

impl Encode {
    pub(super) fn run(self, pool: &BufferPool) -> Encoded {
        let class = &self.class;
        let parity = match self.wanted.iter().any(|number| !class.is_plain(*number)) {
            true => parity(class, &self.data, pool),
            false => Bytes::new(),
        };
        let full = class.full_len(self.data.len() as u64);
        let bytes_of = |number: u32| match class.is_plain(number) {
            true => class.plain(&self.data, number),
            false => {
                let row = (number - class.needed()) as usize;
                parity.slice(row * full..(row + 1) * full)
            }
        };
        // Copies are all the same bytes: one checksum serves them all.
        let whole_crc = class.code().is_none().then(|| crc32c(&self.data));
        let fragments = self.wanted.iter().map(|&number| {
            let bytes = bytes_of(number);
            let crc32c = whole_crc.unwrap_or_else(|| crc32c(&bytes));
            Fragment { number, bytes, crc32c }
        });
        Encoded { fragments: fragments.collect() }
    }
}

/// The m parity fragments of `chunk`, back to back; empty for copies.
pub(super) fn parity(class: &Class, chunk: &Bytes, pool: &BufferPool) -> Bytes {
    let Some(code) = class.code() else { return Bytes::new() };
    let full = class.full_len(chunk.len() as u64);
    if full == 0 {
        return Bytes::new();
    }
    let mut room = pool.get(full * code.m());
    let data: Vec<&[u8]> = (0..class.needed()).map(|i| &chunk[class.plain_range(chunk.len() as u64, i)]).collect();
    let mut rows: Vec<&mut [u8]> = room.chunks_exact_mut(full).collect();
    code.encode(&data, full, &mut rows).expect("shapes follow from the class");
    room.freeze()
}
