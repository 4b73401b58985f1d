//! A redundancy class as the client computes with it: which bytes of a chunk each fragment holds.

use bytes::Bytes;
use std::ops::Range;
use tessera_accel::Coder;
use tessera_accel::coder::Description;
use tessera_wire::ClassInfo;
use tessera_wire::class::{COPIES, COPY_AND_REED_SOLOMON, REED_SOLOMON};

/// A class and, unless it has copies only, its code. Which fragments suffice and which are plain is said by [`ClassInfo`].
#[derive(Debug)]
pub struct Class {
    /// As the manager described it.
    pub info: ClassInfo,
    code: Option<Coder>,
}

impl Class {
    /// Checks what the manager said and builds the code; the text of a failure names what does not fit.
    pub fn new(info: ClassInfo) -> Result<Self, String> {
        let code = match info.code.as_str() {
            COPIES if info.k == 1 && info.m < 255 => None,
            code => {
                let described = Description {
                    code: if code == COPY_AND_REED_SOLOMON { REED_SOLOMON } else { code },
                    matrix: &info.matrix,
                    k: info.k,
                    m: info.m,
                    w: info.word_bits,
                    packet_bytes: info.packet_bytes,
                    align_bytes: info.alignment_bytes,
                };
                Some(Coder::described(&described).map_err(|e| format!("class {}: {e}", info.spec))?)
            }
        };
        Ok(Class { info, code })
    }

    /// The code; none for copies.
    pub fn code(&self) -> Option<&Coder> {
        self.code.as_ref()
    }

    /// Fragments of a chunk.
    pub fn fragments(&self) -> u32 {
        self.info.fragments()
    }

    /// Fragments of any kind that suffice to read: the size of the sets that a code decodes. Whether *these* do, ask
    /// [`ClassInfo::suffices`].
    pub fn needed(&self) -> u32 {
        self.info.k
    }

    /// Fragments whose bytes are the chunk's own: reading these needs no decoding.
    pub fn is_plain(&self, fragment: u32) -> bool {
        self.info.is_plain(fragment)
    }

    /// Length F of a slice before the end of a short chunk is cut off, and of a parity, in bytes.
    pub fn full_len(&self, chunk_len: u64) -> usize {
        self.info.slice_bytes(chunk_len) as usize
    }

    /// The bytes of the chunk that the code takes as its data fragment `slice`; of copies, all.
    pub fn slice_range(&self, chunk_len: u64, slice: u32) -> Range<usize> {
        let (len, full) = (chunk_len as usize, self.full_len(chunk_len));
        match self.code {
            Some(_) => {
                let start = (slice as usize).saturating_mul(full).min(len);
                start..start.saturating_add(full).min(len)
            }
            None => 0..len,
        }
    }

    /// The bytes of the chunk that plain fragment `fragment` holds.
    pub fn plain_range(&self, chunk_len: u64, fragment: u32) -> Range<usize> {
        match self.info.is_copy(fragment) {
            true => 0..chunk_len as usize,
            false => self.slice_range(chunk_len, fragment),
        }
    }

    /// Length in bytes of fragment `fragment` as it is stored.
    pub fn stored_len(&self, chunk_len: u64, fragment: u32) -> usize {
        self.info.fragment_bytes(chunk_len, fragment).unwrap_or(0) as usize
    }

    /// Length in bytes of what the code takes of fragment `fragment`: all of it, or of a copy beside coded pieces the first slice.
    pub fn coded_len(&self, chunk_len: u64, fragment: u32) -> usize {
        match self.is_plain(fragment) {
            true => self.slice_range(chunk_len, fragment).len(),
            false => self.full_len(chunk_len),
        }
    }

    /// Plain fragment `fragment` of `chunk`, sharing its memory.
    pub fn plain(&self, chunk: &Bytes, fragment: u32) -> Bytes {
        chunk.slice(self.plain_range(chunk.len() as u64, fragment))
    }

    /// Whether `fragment` is among those that an optimistic write sends first: with them the chunk can be read.
    pub fn is_first(&self, fragment: u32) -> bool {
        if self.info.copies() > 0 { fragment == 0 } else { fragment < self.needed() }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::sync::Arc;

    /// The class that `spec` (`ec:4+2`, `copy+ec:4+2`, `replica:3`, `none`) names.
    pub(crate) fn class(spec: &str) -> Arc<Class> {
        let (k, m, code) = match spec.split_once(':') {
            None => (1, 0, "copy"),
            Some(("replica", n)) => (1, n.parse::<u32>().unwrap() - 1, "copy"),
            Some((kind, km)) => {
                let (k, m) = km.split_once('+').unwrap();
                let code = match kind {
                    "ec" => "rs",
                    "raid6" => "xor",
                    _ => "copy+rs",
                };
                (k.parse().unwrap(), m.parse().unwrap(), code)
            }
        };
        let matrix = match code {
            "copy" => "",
            "xor" => "liberation",
            _ => "cauchy1",
        };
        let info = ClassInfo {
            class_id: 1,
            spec: spec.into(),
            k,
            m,
            code: code.into(),
            matrix: matrix.into(),
            ..ClassInfo::default()
        };
        let info = match code {
            "xor" => ClassInfo { word_bits: 7, packet_bytes: 512, alignment_bytes: 3584, ..info },
            _ => info,
        };
        Arc::new(Class::new(info).unwrap())
    }

    #[test]
    fn plain_fragments_tile_the_chunk() {
        for spec in ["ec:4+2", "ec:1+1", "ec:10+4", "copy+ec:4+2", "raid6:4+2", "raid6:3+2"] {
            let class = class(spec);
            for len in [0u64, 1, 63, 64, 65, 255, 256, 257, 1 << 20, (1 << 20) + 1] {
                let mut at = 0;
                for i in 0..class.needed() {
                    let range = class.slice_range(len, i);
                    assert_eq!((range.start, range.len()), (at, class.coded_len(len, i)), "{spec} {len} {i}");
                    assert_eq!(class.plain_range(len, i).len(), class.stored_len(len, i), "{spec} {len} {i}");
                    at = range.end;
                }
                assert_eq!(at as u64, len);
                // What the class says is what the code computes.
                assert_eq!(class.full_len(len), class.code().unwrap().fragment_len(len as usize), "{spec} {len}");
            }
        }
    }

    #[test]
    fn classes_this_build_cannot_compute_are_refused() {
        let info = |code: &str, k, m| ClassInfo {
            class_id: 1,
            spec: "x".into(),
            k,
            m,
            code: code.into(),
            matrix: "cauchy1".into(),
            ..ClassInfo::default()
        };
        assert!(Class::new(info("xor", 4, 2)).is_err());
        assert!(Class::new(info("rs", 0, 2)).is_err());
        assert!(Class::new(info("rs", 250, 20)).is_err());
        assert!(Class::new(info("copy", 2, 2)).is_err());
        assert!(Class::new(info("copy+rs", 0, 2)).is_err());
        assert!(Class::new(info("copy+rs", u32::MAX, 2)).is_err());
        assert!(Class::new(info("copy+xor", 4, 2)).unwrap_err().contains("copy+xor"));
        let xor = |matrix: &str, w, packet_bytes, alignment_bytes| ClassInfo {
            matrix: matrix.into(),
            word_bits: w,
            packet_bytes,
            alignment_bytes,
            ..info("xor", 4, 2)
        };
        assert!(Class::new(xor("liberation", 7, 1024, 7168)).is_ok());
        assert!(Class::new(xor("cauchy1", 7, 1024, 7168)).is_err());
        assert!(Class::new(xor("liberation", 8, 1024, 8192)).is_err());
        assert!(Class::new(xor("liberation", 7, 1024, 64)).is_err());
        assert!(Class::new(xor("liberation", 7, 1 << 30, 7 << 30)).is_err());
    }
}
