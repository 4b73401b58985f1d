//! A redundancy class as the client computes with it: which bytes of a chunk each fragment holds.

use bytes::Bytes;
use std::ops::Range;
use tessera_accel::erasure::{Code, Matrix, fragment_len};
use tessera_wire::ClassInfo;

/// A class and, for `ec`, its code.
#[derive(Debug)]
pub struct Class {
    /// As the manager described it.
    pub info: ClassInfo,
    code: Option<Code>,
}

impl Class {
    /// Checks what the manager said and builds the code; the text of a failure names what does not fit.
    pub fn new(info: ClassInfo) -> Result<Self, String> {
        let code = match info.code.as_str() {
            "copy" if info.k == 1 && info.m < 255 => None,
            "rs" => {
                let matrix = [Matrix::Cauchy1, Matrix::Vandermonde].into_iter().find(|m| m.name() == info.matrix);
                let matrix = matrix.ok_or_else(|| format!("class {}: no matrix {:?} here", info.spec, info.matrix))?;
                let code = Code::new(info.k as usize, info.m as usize, matrix);
                Some(code.map_err(|e| format!("class {}: {e}", info.spec))?)
            }
            other => return Err(format!("class {} is coded by {other:?}, which this build does not know", info.spec)),
        };
        Ok(Class { info, code })
    }

    /// The Reed–Solomon code; none for copies.
    pub fn code(&self) -> Option<&Code> {
        self.code.as_ref()
    }

    /// Fragments of a chunk.
    pub fn fragments(&self) -> u32 {
        self.info.k + self.info.m
    }

    /// Fragments that suffice to read.
    pub fn needed(&self) -> u32 {
        self.info.k
    }

    /// Fragments whose bytes are the chunk's own: reading these needs no decoding.
    pub fn is_plain(&self, fragment: u32) -> bool {
        self.code.is_none() || fragment < self.info.k
    }

    /// Length F of a fragment before the end of a short chunk is cut off, in bytes.
    pub fn full_len(&self, chunk_len: u64) -> usize {
        match &self.code {
            Some(code) => fragment_len(chunk_len as usize, code.k()),
            None => chunk_len as usize,
        }
    }

    /// The bytes of the chunk that plain fragment `fragment` holds.
    pub fn plain_range(&self, chunk_len: u64, fragment: u32) -> Range<usize> {
        let (len, full) = (chunk_len as usize, self.full_len(chunk_len));
        match self.code {
            Some(_) => {
                let start = (fragment as usize).saturating_mul(full).min(len);
                start..start.saturating_add(full).min(len)
            }
            None => 0..len,
        }
    }

    /// Length in bytes of fragment `fragment` as it is stored.
    pub fn stored_len(&self, chunk_len: u64, fragment: u32) -> usize {
        match self.is_plain(fragment) {
            true => self.plain_range(chunk_len, fragment).len(),
            false => self.full_len(chunk_len),
        }
    }

    /// Plain fragment `fragment` of `chunk`, sharing its memory.
    pub fn plain(&self, chunk: &Bytes, fragment: u32) -> Bytes {
        chunk.slice(self.plain_range(chunk.len() as u64, fragment))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::sync::Arc;

    /// The class that `spec` (`ec:4+2`, `replica:3`, `none`) names.
    pub(crate) fn class(spec: &str) -> Arc<Class> {
        let (k, m, code) = match spec.split_once(':') {
            None => (1, 0, "copy"),
            Some(("replica", n)) => (1, n.parse::<u32>().unwrap() - 1, "copy"),
            Some((_, km)) => {
                let (k, m) = km.split_once('+').unwrap();
                (k.parse().unwrap(), m.parse().unwrap(), "rs")
            }
        };
        let matrix = if code == "rs" { "cauchy1" } else { "" };
        let info = ClassInfo { class_id: 1, spec: spec.into(), k, m, code: code.into(), matrix: matrix.into() };
        Arc::new(Class::new(info).unwrap())
    }

    #[test]
    fn plain_fragments_tile_the_chunk() {
        for spec in ["ec:4+2", "ec:1+1", "ec:10+4"] {
            let class = class(spec);
            for len in [0u64, 1, 63, 64, 65, 255, 256, 257, 1 << 20, (1 << 20) + 1] {
                let mut at = 0;
                for i in 0..class.needed() {
                    let range = class.plain_range(len, i);
                    assert_eq!((range.start, range.len()), (at, class.stored_len(len, i)), "{spec} {len} {i}");
                    at = range.end;
                }
                assert_eq!(at as u64, len);
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
        };
        assert!(Class::new(info("xor", 4, 2)).is_err());
        assert!(Class::new(info("rs", 0, 2)).is_err());
        assert!(Class::new(info("rs", 250, 20)).is_err());
        assert!(Class::new(info("copy", 2, 2)).is_err());
    }
}
