//! A redundancy class with its code: which bytes of a chunk each fragment holds.

use crate::layout::{COPIES, COPY_AND_REED_SOLOMON, ClassLayout, REED_SOLOMON};
use bytes::Bytes;
use std::ops::{Deref, Range};
use std::sync::{Mutex, PoisonError};
use tessera_accel::Coder;
use tessera_accel::coder::{Description, DescriptionError};
use tessera_wire::ClassInfo;

/// A class that this release can compute. It dereferences to its [`ClassInfo`].
#[derive(Debug)]
pub struct Class {
    info: ClassInfo,
    /// `None`: copies only.
    coder: Option<Coder>,
}

/// Why a class cannot be computed here.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("class {spec}: {source}")]
pub struct ClassError {
    /// The class as its users write it.
    pub spec: String,
    /// What is wrong with it.
    pub source: DescriptionError,
}

impl Class {
    /// Checks a peer's description of a class, and finds or builds its code.
    ///
    /// # Errors
    /// The code is unknown to this release, or its parameters are outside what is safe (P14).
    pub fn new(info: ClassInfo) -> Result<Self, ClassError> {
        let coder = match info.code.as_str() {
            COPIES if info.k == 1 && info.m < 255 => None,
            _ => match coder_of(&info) {
                Ok(coder) => Some(coder),
                Err(source) => return Err(ClassError { spec: info.spec, source }),
            },
        };
        if let Some(coder) = &coder {
            // The reader's lengths come from the message, the coder's from its own parameters: they must agree.
            assert_eq!((coder.k() as u32, coder.m() as u32), (info.k, info.m), "the code of class {}", info.spec);
            let aligned = info.slice_bytes(1).is_multiple_of(coder.align_bytes() as u64);
            assert!(aligned, "class {}: alignment of the code and of the class", info.spec);
        }
        Ok(Class { info, coder })
    }

    /// The class as the manager describes it.
    pub fn info(&self) -> &ClassInfo {
        &self.info
    }

    /// The code; `None` for classes of copies only.
    pub fn coder(&self) -> Option<&Coder> {
        self.coder.as_ref()
    }

    /// Stored length of fragment `fragment`; 0 if the class has no such fragment.
    pub fn stored_len(&self, chunk_len: u64, fragment: u32) -> usize {
        self.fragment_bytes(chunk_len, fragment).unwrap_or(0) as usize
    }

    /// Length of a parity, and of a slice before it is cut at the end of a short chunk.
    pub fn full_len(&self, chunk_len: u64) -> usize {
        self.slice_bytes(chunk_len) as usize
    }

    /// The bytes of the chunk that the code takes as its data fragment `slice`; for copies, all.
    pub fn slice_range(&self, chunk_len: u64, slice: u32) -> Range<usize> {
        let (len, full) = (chunk_len as usize, self.full_len(chunk_len));
        match self.coder {
            Some(_) => {
                let start = (slice as usize).saturating_mul(full).min(len);
                start..start.saturating_add(full).min(len)
            }
            None => 0..len,
        }
    }

    /// The bytes of the chunk that plain fragment `fragment` holds.
    pub fn plain_range(&self, chunk_len: u64, fragment: u32) -> Range<usize> {
        assert!(self.is_plain(fragment), "fragment {fragment} of class {} is parity", self.info.spec);
        match self.is_copy(fragment) {
            true => 0..chunk_len as usize,
            false => self.slice_range(chunk_len, fragment),
        }
    }

    /// Length of the part of fragment `fragment` that the code uses: all of it, or the first slice of a copy in a coded
    /// class.
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

    /// Whether an optimistic write sends `fragment` first: with those fragments the chunk can be read.
    pub fn is_first(&self, fragment: u32) -> bool {
        if self.copies() > 0 { fragment == 0 } else { fragment < self.k }
    }
}

impl Deref for Class {
    type Target = ClassInfo;
    fn deref(&self) -> &ClassInfo {
        &self.info
    }
}

/// Coders cached per process. A cluster has a few classes; further ones only cost time.
const MAX_CODERS: usize = 64;

/// A coder and the class it was built from, with the fields that do not affect it left empty.
type CachedCoder = (ClassInfo, Coder);

/// The coder of a class, from the process's one cache: coders are costly to build and remember their decoding matrices.
fn coder_of(class: &ClassInfo) -> Result<Coder, DescriptionError> {
    static CODERS: Mutex<Vec<CachedCoder>> = Mutex::new(Vec::new());
    let code = if class.code == COPY_AND_REED_SOLOMON { REED_SOLOMON } else { &class.code };
    let key = ClassInfo { class_id: 0, spec: String::new(), code: code.into(), ..class.clone() };
    // Every statement leaves the list consistent, so a poisoned lock does no harm.
    let lock = || CODERS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, coder)) = lock().iter().find(|(known, _)| *known == key) {
        return Ok(coder.clone());
    }
    let coder = Coder::described(&Description {
        code,
        matrix: &class.matrix,
        k: class.k,
        m: class.m,
        w: class.word_bits,
        packet_bytes: class.packet_bytes,
        align_bytes: class.alignment_bytes,
    })?;
    let mut coders = lock();
    if coders.len() >= MAX_CODERS {
        coders.remove(0);
    }
    coders.push((key, coder.clone()));
    Ok(coder)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::layout::describe;
    use std::sync::Arc;

    /// The class that `spec` names.
    pub(crate) fn class(spec: &str) -> Arc<Class> {
        Arc::new(Class::new(describe(1, spec.parse().unwrap())).unwrap())
    }

    #[test]
    fn plain_fragments_tile_the_chunk() {
        for spec in ["ec:4+2", "ec:1+1", "ec:10+4", "copy+ec:4+2", "raid6:4+2", "raid6:3+2"] {
            let class = class(spec);
            for len in [0u64, 1, 63, 64, 65, 255, 256, 257, 16_384, 16_385, 40_000, 1 << 20, (1 << 20) + 1] {
                let mut at = 0;
                for i in 0..class.k {
                    let range = class.slice_range(len, i);
                    assert_eq!((range.start, range.len()), (at, class.coded_len(len, i)), "{spec} {len} {i}");
                    assert_eq!(class.plain_range(len, i).len(), class.stored_len(len, i), "{spec} {len} {i}");
                    at = range.end;
                }
                assert_eq!(at as u64, len);
                let coder = class.coder().unwrap();
                assert!(class.full_len(len).is_multiple_of(coder.align_bytes()), "{spec} {len}");
                assert!(class.full_len(len) >= coder.fragment_len(len as usize), "{spec} {len}");
            }
        }
    }

    #[test]
    fn classes_this_release_cannot_compute_are_refused() {
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
        assert!(Class::new(info("copy+xor", 4, 2)).unwrap_err().to_string().contains("copy+xor"));
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

    /// Clients and nodes in one process share a coder, and so do copy+ec and ec.
    #[test]
    fn classes_of_one_code_share_its_coder() {
        let same = |a: &Class, b: &Class| match (a.coder(), b.coder()) {
            (Some(Coder::Rs(a)), Some(Coder::Rs(b))) => Arc::ptr_eq(a, b),
            _ => false,
        };
        assert!(same(&class("ec:5+3"), &class("copy+ec:5+3")));
        assert!(!same(&class("ec:5+3"), &class("ec:3+5")));
    }
}
