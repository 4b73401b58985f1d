//! From input to named chunks: buffers are filled, cut, and handed to the threads that hash them, while the next buffer
//! is filled. Chunks are slices of the buffers; only a chunk that crosses the end of a buffer has its first part
//! copied, to the front of the next. Input in shared memory is not copied.

use crate::error::Cause;
use bytes::Bytes;
use std::cell::Cell;
use std::io::{self, Read};
use tessera_accel::boundaries::{Cutter, Rule};
use tessera_accel::device;
use tessera_net::PooledBuf;
use tessera_policy::{Chunking, Policy};

/// Where the bytes of a write come from.
pub enum Source<'a> {
    /// Memory that can be shared: never copied.
    Bytes(Bytes),
    /// A stream or a file, with its length if known.
    Reader {
        /// The stream.
        reader: &'a mut (dyn Read + Send),
        /// Bytes it will give, if known: space is reserved for them at once.
        len_bytes: Option<u64>,
    },
    /// A file that may have holes: they are not read, and stay holes.
    Sparse {
        /// The file.
        file: &'a mut dyn ReadHoles,
        /// Its length.
        len_bytes: u64,
    },
}

/// A file whose holes can be found.
pub trait ReadHoles: Read + Send {
    /// Moves to the next range of data at or after `at` and before `len_bytes`; `None`: only a hole is left.
    ///
    /// # Errors
    /// The system's error.
    fn next_data(&mut self, at: u64, len_bytes: u64) -> io::Result<Option<std::ops::Range<u64>>>;
}

impl Source<'_> {
    /// Its length, if known.
    pub fn len_bytes(&self) -> Option<u64> {
        match self {
            Source::Bytes(bytes) => Some(bytes.len() as u64),
            Source::Reader { len_bytes, .. } => *len_bytes,
            Source::Sparse { len_bytes, .. } => Some(*len_bytes),
        }
    }
}

impl From<Bytes> for Source<'_> {
    fn from(bytes: Bytes) -> Self {
        Source::Bytes(bytes)
    }
}

impl From<&[u8]> for Source<'_> {
    fn from(slice: &[u8]) -> Self {
        Source::Bytes(Bytes::copy_from_slice(slice))
    }
}

thread_local! {
    /// The last rule this thread used: computing a rule's thresholds costs as much as hashing a small file.
    static LAST_RULE: Cell<Option<(Chunking, Rule)>> = const { Cell::new(None) };
}

/// The rule for a policy's chunking.
fn rule(chunking: Chunking) -> Result<Rule, String> {
    if let Some((last, rule)) = LAST_RULE.get()
        && last == chunking
    {
        return Ok(rule);
    }
    let rule = match chunking {
        Chunking::Fixed { size_bytes } => Rule::fixed(size_bytes as usize),
        Chunking::Cdc { min_bytes, max_bytes } => Rule::cdc(min_bytes as usize, max_bytes as usize),
        Chunking::Cbch { window_bytes, low_bits, advance_bytes } => {
            Rule::cbch(window_bytes as usize, low_bits, advance_bytes as usize)
        }
    };
    let rule = rule.map_err(|e| e.to_string())?;
    LAST_RULE.set(Some((chunking, rule)));
    Ok(rule)
}

/// A stretch of input: `bytes[fresh..]` are new, `bytes[..fresh]` repeat the end of the previous stretch.
pub(crate) struct Stretch {
    pub bytes: Bytes,
    pub fresh: usize,
    pub last: bool,
}

/// Reads a source stretch by stretch.
pub(crate) struct Input<'a> {
    source: Source<'a>,
    at: usize,
}

/// Shared memory is cut in stretches of this length, so that hashing starts before all of it is cut.
const STRETCH_BYTES: usize = 4 << 20;

impl<'a> Input<'a> {
    pub fn new(source: Source<'a>) -> Self {
        let source = match source {
            Source::Sparse { file, len_bytes } => Source::Reader { reader: file, len_bytes: Some(len_bytes) },
            source => source,
        };
        Input { source, at: 0 }
    }

    /// The next stretch, of at most `most_bytes`; `rest` is the uncut end of the last one, and shorter. A reader fills what `buffer` returns
    /// for a length.
    pub fn next(
        &mut self,
        rest: Bytes,
        most_bytes: usize,
        buffer: impl FnOnce(usize) -> Result<PooledBuf, Cause>,
    ) -> Result<Stretch, Cause> {
        assert!(rest.len() <= self.at, "{} bytes uncut of {}", rest.len(), self.at);
        match &mut self.source {
            Source::Bytes(bytes) => {
                let start = self.at - rest.len();
                let end = (self.at + STRETCH_BYTES).min(bytes.len());
                self.at = end;
                Ok(Stretch { bytes: bytes.slice(start..end), fresh: rest.len(), last: end == bytes.len() })
            }
            Source::Sparse { .. } => unreachable!("made a reader at the start"),
            Source::Reader { reader, len_bytes } => {
                // A short file needs only a short buffer; one more byte tells its end from a file that grew.
                let left = len_bytes.and_then(|len| usize::try_from(len).ok()?.checked_sub(self.at + 1));
                let left = left.map_or(usize::MAX, |left| left + 1);
                let room = most_bytes.min(left.saturating_add(rest.len()).saturating_add(1));
                assert!(rest.len() < room, "{} bytes uncut, {room} in a buffer", rest.len());
                let mut buffer = buffer(room)?;
                buffer[..rest.len()].copy_from_slice(&rest);
                let mut filled = rest.len();
                let mut last = false;
                while filled < buffer.len() && !last {
                    match reader.read(&mut buffer[filled..]) {
                        Ok(0) => last = true,
                        Ok(n) => filled += n,
                        Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                        Err(e) => return Err(Cause::Input(e.to_string())),
                    }
                }
                self.at += filled - rest.len();
                buffer.truncate(filled);
                Ok(Stretch { bytes: buffer.freeze(), fresh: rest.len(), last })
            }
        }
    }
}

/// How a file is cut: by a rule, and at the boundaries of its regions, if it has any.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CutRule {
    rule: Rule,
    region_bytes: Option<u64>,
}

impl CutRule {
    /// The rule for a policy.
    pub fn of(policy: &Policy) -> Result<CutRule, String> {
        Ok(CutRule { rule: rule(policy.chunking)?, region_bytes: policy.region_bytes() })
    }
}

/// Cuts stretches into chunks.
pub(crate) struct Cutting {
    rule: CutRule,
    cutter: Cutter,
    /// Offset in the stream where the cutter began.
    began: u64,
    /// Offset in the file where the stream begins.
    base: u64,
    cuts: Vec<u64>,
}

impl Cutting {
    /// For a stream that begins at offset `base` of a file.
    pub fn new(rule: CutRule, base: u64) -> Self {
        Cutting { rule, cutter: Cutter::new(rule.rule), began: 0, base, cuts: Vec::new() }
    }

    /// Bytes from here to the end of the region.
    fn left_of_region(&self) -> usize {
        let Some(region_bytes) = self.rule.region_bytes else { return usize::MAX };
        let here = self.base + self.began + self.cutter.position();
        usize::try_from(region_bytes - here % region_bytes).unwrap_or(usize::MAX)
    }

    /// Finds the cuts in more of the stream.
    fn find(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let left = self.left_of_region();
            let (now, later) = bytes.split_at(bytes.len().min(left));
            let first = self.cuts.len();
            self.cutter.feed_on(device(), now, &mut self.cuts);
            let ends = now.len() == left;
            let here = self.cutter.position();
            if ends {
                self.cuts.extend(self.cutter.finish());
            }
            self.cuts[first..].iter_mut().for_each(|cut| *cut += self.began);
            self.began += if ends { here } else { 0 };
            bytes = later;
        }
    }

    /// The chunks that end in this stretch (offset in the stream, bytes), and the rest.
    pub fn feed(&mut self, stretch: &Stretch) -> (Vec<(u64, Bytes)>, Bytes) {
        let base = self.began + self.cutter.position() - stretch.fresh as u64;
        let mut from = self.began + self.cutter.chunk_start();
        assert_eq!(from, base, "a stretch does not begin with the uncut end of the one before");
        self.cuts.clear();
        self.find(&stretch.bytes[stretch.fresh..]);
        if stretch.last {
            self.cuts.extend(self.cutter.finish().map(|cut| cut + self.began));
        }
        let mut chunks = Vec::with_capacity(self.cuts.len());
        for &to in &self.cuts {
            chunks.push((from, stretch.bytes.slice((from - base) as usize..(to - base) as usize)));
            from = to;
        }
        (chunks, stretch.bytes.slice((from - base) as usize..))
    }
}

/// Whether a chunk is all zeros, and long enough to be stored as a hole.
pub(crate) fn is_hole(chunk: &[u8]) -> bool {
    chunk.len() >= 4096 && chunk[..64].iter().all(|b| *b == 0) && chunk[64..].iter().all(|b| *b == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(len: usize) -> Vec<u8> {
        let mut state = 88_172_645_463_325_252u64;
        let next = |_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 24) as u8
        };
        (0..len).map(next).collect()
    }

    fn cut(source: Source<'_>) -> Vec<(u64, Bytes)> {
        cut_as(&Policy::default(), source)
    }

    /// Cuts it as if it were written at 3 MiB of a file.
    fn cut_as(policy: &Policy, source: Source<'_>) -> Vec<(u64, Bytes)> {
        let (mut input, pool) = (Input::new(source), tessera_net::BufferPool::new(1 << 26));
        let mut cutting = Cutting::new(CutRule::of(policy).unwrap(), 3 << 20);
        let (mut all, mut rest) = (Vec::new(), Bytes::new());
        loop {
            let stretch = input.next(rest, 16 << 20, |len| Ok(pool.get(len))).unwrap();
            let (chunks, left) = cutting.feed(&stretch);
            all.extend(chunks);
            rest = left;
            if stretch.last {
                assert!(rest.is_empty());
                return all;
            }
        }
    }

    /// A reader that gives a few bytes at a time.
    struct Dribble<'a>(&'a [u8]);
    impl Read for Dribble<'_> {
        fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
            let n = out.len().min(self.0.len()).min(777_777);
            out[..n].copy_from_slice(&self.0[..n]);
            self.0 = &self.0[n..];
            Ok(n)
        }
    }

    #[test]
    fn every_kind_of_source_gives_the_same_chunks_and_all_the_bytes() {
        let bytes = data(50_000_000);
        let expected = cut(Source::Bytes(bytes.clone().into()));
        assert!(expected.len() > 20);
        let mut at = 0;
        for (offset, chunk) in &expected {
            assert_eq!((*offset, &chunk[..]), (at as u64, &bytes[at..at + chunk.len()]));
            at += chunk.len();
        }
        assert_eq!(at, bytes.len());
        assert!(cut(Source::from(&bytes[..])) == expected);
        for len_bytes in [None, Some(50_000_000), Some(1), Some(60_000_000)] {
            assert!(cut(Source::Reader { reader: &mut Dribble(&bytes), len_bytes }) == expected, "{len_bytes:?}");
        }
        for len in [0usize, 1, 1000] {
            assert_eq!(cut(Source::from(&bytes[..len])).len(), usize::from(len > 0));
            assert_eq!(cut(Source::Bytes(bytes[..len].to_vec().into())).len(), usize::from(len > 0));
        }
    }

    /// No chunk crosses a region boundary; the cuts do not depend on how the input arrives.
    #[test]
    fn regions_are_cut_apart() {
        let bytes = data(10_000_000);
        for (region, chunks) in [("scatter:1M", 11..40), ("scatter:4K", 2442..2443), ("scatter:2chunks", 10..40)] {
            let policy = Policy::from_hints([("placement", region)]).unwrap();
            let region_bytes = policy.region_bytes().unwrap();
            let cuts = cut_as(&policy, Source::from(&bytes[..]));
            assert!(chunks.contains(&cuts.len()), "{region}: {}", cuts.len());
            let mut at = 0;
            for (offset, chunk) in &cuts {
                assert_eq!(*offset, at);
                at += chunk.len() as u64;
                let (first, last) = ((3 << 20) + offset, (3 << 20) + at - 1);
                assert_eq!(first / region_bytes, last / region_bytes, "{region}: {offset} {}", chunk.len());
            }
            assert_eq!(at, 10_000_000);
            assert!(cut_as(&policy, Source::Reader { reader: &mut Dribble(&bytes), len_bytes: None }) == cuts);
            assert!(cut_as(&policy, Source::Bytes(bytes.clone().into())) == cuts);
        }
    }

    /// Every chunking that a policy accepts makes a rule, and policies refuse the others.
    #[test]
    fn the_rules_of_policies_are_rules() {
        let parsed = |text: &str| {
            let mut policy = tessera_policy::Policy::default();
            policy.set("chunking", text).ok().map(|()| policy.chunking)
        };
        for m in [1, 20, 4096, 65_535, 65_536, 65_537] {
            for (k, p) in [(0, 1), (0, 9), (7, 20), (8, 20), (12, 1), (14, 20), (23, 1), (22, 2), (32, 1), (10, 65_536)]
            {
                let may = parsed(&format!("cbch:{m},{k},{p}"));
                assert_eq!(may.is_some(), Rule::cbch(m, k, p).is_ok(), "cbch:{m},{k},{p}");
                assert!(may.is_none_or(|chunking| rule(chunking).is_ok()));
            }
        }
        for text in ["cdc:4K..16K", "cdc:2M..8M", "cdc:256K..4M", "fixed:4K", "fixed:8M"] {
            assert!(parsed(text).is_some_and(|chunking| rule(chunking).is_ok()), "{text}");
        }
    }

    /// Chunks of shared memory share that memory.
    #[test]
    fn shared_memory_is_not_copied() {
        let bytes = Bytes::from(data(10_000_000));
        for (offset, chunk) in cut(Source::Bytes(bytes.clone())) {
            assert_eq!(chunk.as_ptr(), bytes[offset as usize..].as_ptr());
        }
    }

    #[test]
    fn only_zeros_are_holes() {
        let mut chunk = vec![0u8; 5000];
        assert!(is_hole(&chunk) && !is_hole(&chunk[..4000]));
        chunk[4999] = 1;
        assert!(!is_hole(&chunk));
    }
}
