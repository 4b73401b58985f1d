//! Decodes a chunk from one copy or any k of its fragments, and verifies it against its name (P1, P2).
//!
//! Only the name decides. Checksums just help to find which fragment is wrong. If they do not (a wrong fragment may
//! match its checksum), every copy and every set of k fragments is tried.

use crate::Fragment;
use crate::class::Class;
use crate::encode::fragment;
use crate::layout::ClassLayout;
use bytes::Bytes;
use std::ops::Range;
use std::sync::Arc;
use tessera_accel::checksum::crc32c;
use tessera_accel::hash::Hash;
use tessera_accel::{ReconstructJob, device};
use tessera_net::BufferPool;

/// Readers and repair try this many sets of k fragments before a chunk counts as corrupt. Up to 16 fragments have fewer
/// sets than this (16 over 8 is 12,870), so for those classes the search is complete.
pub const MAX_SETS: usize = 20_000;
const _: () = assert!(MAX_SETS >= 12_870, "the search of 16 fragments is complete");

/// Decodes the chunk of this name from these fragments.
#[derive(Debug)]
pub struct DecodeJob {
    /// Class of the chunk.
    pub class: Arc<Class>,
    /// Length of the chunk in bytes.
    pub chunk_len: u64,
    /// Name of the chunk.
    pub name: Hash,
    /// Distinct fragments of the right lengths, which suffice to read.
    pub fragments: Vec<Fragment>,
    /// No other fragment is available: try every set, even with fragments that do not match their checksum.
    pub search: bool,
}

/// The result of a [`DecodeJob`].
#[derive(Debug)]
pub enum Decoded {
    /// The chunk.
    Verified {
        /// The chunk's bytes in order, in pieces.
        parts: Vec<Bytes>,
        /// Fragments found wrong. Empty if the first set gave the name: the others were not checked.
        wrong: Vec<u32>,
    },
    /// No tried set gives the name.
    Mismatch {
        /// Fragments that do not match their checksum; may be empty.
        wrong: Vec<u32>,
    },
}

impl DecodeJob {
    /// Decodes and verifies. Takes memory from `pool`.
    pub fn run(&self, pool: &BufferPool) -> Decoded {
        let verify = |parts: Vec<Bytes>| {
            let slices: Vec<&[u8]> = parts.iter().map(|part| &part[..]).collect();
            (device().hash_parts(&slices) == self.name).then_some(parts)
        };
        let mut decoder = Decoder::new(&self.class, self.chunk_len, &self.fragments, pool);
        // Nearly always the first set gives the name; checksums are computed only if it does not.
        if let Search::Found { value: parts, .. } = decoder.search(0..1, true, verify) {
            return Decoded::Verified { parts, wrong: Vec::new() };
        }
        let wrong = decoder.compare_checksums();
        if !self.search {
            return Decoded::Mismatch { wrong };
        }
        match decoder.search(0..usize::MAX, true, verify) {
            Search::Found { value: parts, .. } => {
                let wrong = decoder.wrong_fragments(&parts.concat().into());
                Decoded::Verified { parts, wrong }
            }
            Search::Open | Search::Exhausted => Decoded::Mismatch { wrong },
        }
    }
}

/// Fragments of one chunk, and the order in which sets of them are tried; reading and repair share it.
pub(crate) struct Decoder<'a> {
    class: &'a Class,
    chunk_len: u64,
    pool: &'a BufferPool,
    /// By number; after [`Decoder::compare_checksums`], those that match come first, so that likely sets are tried
    /// early.
    fragments: Vec<&'a Fragment>,
    /// This many fragments at the front are not known to be wrong.
    sound: usize,
}

/// The result of trying some of the sets.
pub(crate) enum Search<T> {
    /// Set number `set` gives the name.
    Found { set: usize, value: T },
    /// None so far; there are more sets.
    Open,
    /// No set gives the name.
    Exhausted,
}

impl<'a> Decoder<'a> {
    /// A decoder that has not compared checksums. The fragments are distinct and have the lengths of the class; their
    /// receiver checked that.
    pub(crate) fn new(class: &'a Class, chunk_len: u64, fragments: &'a [Fragment], pool: &'a BufferPool) -> Self {
        let mut fragments: Vec<&Fragment> = fragments.iter().collect();
        fragments.sort_by_key(|it| it.number);
        for it in &fragments {
            assert_eq!(
                class.fragment_bytes(chunk_len, it.number),
                Some(it.bytes.len() as u64),
                "length of fragment {} of a chunk of {chunk_len} bytes of class {}",
                it.number,
                class.spec
            );
        }
        assert!(fragments.windows(2).all(|pair| pair[0].number < pair[1].number), "a fragment is there twice");
        let sound = fragments.len();
        Decoder { class, chunk_len, pool, fragments, sound }
    }

    /// Numbers of the fragments that do not match their checksum. From now on they are tried last.
    pub(crate) fn compare_checksums(&mut self) -> Vec<u32> {
        let is_wrong = |it: &&Fragment| crc32c(&it.bytes) != it.crc32c;
        let (wrong, sound): (Vec<_>, Vec<_>) = self.fragments.iter().copied().partition(is_wrong);
        self.sound = sound.len();
        let numbers = wrong.iter().map(|it| it.number).collect();
        self.fragments = [sound, wrong].concat();
        numbers
    }

    /// Tries the sets with these numbers until `verify` accepts the bytes of one. With `all`, includes sets that
    /// contain fragments known not to match their checksum.
    pub(crate) fn search<T>(
        &self,
        sets: Range<usize>,
        all: bool,
        verify: impl Fn(Vec<Bytes>) -> Option<T>,
    ) -> Search<T> {
        let fragments = if all { &self.fragments[..] } else { &self.fragments[..self.sound] };
        let mut candidates = self.sets_of(fragments).enumerate().skip(sets.start);
        for (set, numbers) in candidates.by_ref().take(sets.len()) {
            let chosen: Vec<&Fragment> = numbers.iter().map(|i| fragments[*i]).collect();
            if let Some(value) = self.decode(&chosen).and_then(&verify) {
                return Search::Found { set, value };
            }
        }
        if candidates.next().is_some() { Search::Open } else { Search::Exhausted }
    }

    /// The sets to try, as positions in `fragments`: each copy, then k fragments at a time in lexicographic order.
    fn sets_of(&self, fragments: &[&Fragment]) -> impl Iterator<Item = Vec<usize>> {
        let copies: Vec<usize> = (0..fragments.len()).filter(|i| self.class.is_copy(fragments[*i].number)).collect();
        let coded = if self.class.coder().is_some() { fragments.len() } else { 0 };
        let coded = Subsets::new(coded, self.class.k as usize).take(MAX_SETS);
        copies.into_iter().map(|i| vec![i]).chain(coded)
    }

    /// Decodes one copy, or k fragments, into pieces; does not verify them.
    fn decode(&self, set: &[&Fragment]) -> Option<Vec<Bytes>> {
        if let [copy] = set
            && self.class.is_copy(copy.number)
        {
            return Some(vec![copy.bytes.clone()]);
        }
        let coder = self.class.coder()?;
        assert!(set.len() == coder.k(), "{} fragments to decode a code of k = {}", set.len(), coder.k());
        // A copy begins with the code's first slice.
        let coded = |it: &Fragment| it.bytes.slice(..self.class.coded_len(self.chunk_len, it.number));
        let find = |number: u32| set.iter().find(|it| it.number == number).map(|it| coded(it));
        let mut parts: Vec<Option<Bytes>> = (0..self.class.k).map(find).collect();
        let wanted: Vec<usize> = (0..parts.len()).filter(|i| parts[*i].is_none()).collect();
        if !wanted.is_empty() {
            let slices: Vec<(usize, Bytes)> = set.iter().map(|it| (it.number as usize, coded(it))).collect();
            let present = slices.iter().map(|(number, bytes)| (*number, &bytes[..])).collect();
            let lens = wanted.iter().map(|i| self.class.coded_len(self.chunk_len, *i as u32));
            let mut buffers: Vec<_> = lens.map(|len| self.pool.get(len)).collect();
            let out: Vec<&mut [u8]> = buffers.iter_mut().map(|buffer| &mut buffer[..]).collect();
            let frag_len = self.class.full_len(self.chunk_len);
            let job = ReconstructJob { frag_len, present, wanted: wanted.clone(), out };
            device().reconstruct(coder, &mut [job]).ok()?;
            for (index, buffer) in wanted.into_iter().zip(buffers) {
                parts[index] = Some(buffer.freeze());
            }
        }
        let parts: Vec<Bytes> = parts.into_iter().flatten().filter(|part| !part.is_empty()).collect();
        let len: usize = parts.iter().map(Bytes::len).sum();
        assert_eq!(len as u64, self.chunk_len, "slices of class {} do not add up to the chunk", self.class.spec);
        Some(parts)
    }

    /// Numbers of the fragments that differ from those of the verified chunk `chunk`, or do not match their checksum.
    pub(crate) fn wrong_fragments(&self, chunk: &Bytes) -> Vec<u32> {
        assert_eq!(chunk.len() as u64, self.chunk_len, "fragments are compared with another chunk");
        let is_wrong = |(i, it): &(usize, &&Fragment)| {
            *i >= self.sound || fragment(self.class, chunk, it.number, self.pool) != it.bytes
        };
        let mut numbers: Vec<u32> =
            self.fragments.iter().enumerate().filter(is_wrong).map(|(_, it)| it.number).collect();
        numbers.sort_unstable();
        numbers
    }
}

/// Sets of `size` out of `count` positions in lexicographic order.
struct Subsets {
    count: usize,
    next: Option<Vec<usize>>,
}

impl Subsets {
    fn new(count: usize, size: usize) -> Self {
        Subsets { count, next: (size > 0 && size <= count).then(|| (0..size).collect()) }
    }
}

impl Iterator for Subsets {
    type Item = Vec<usize>;
    fn next(&mut self) -> Option<Vec<usize>> {
        let set = self.next.take()?;
        let size = set.len();
        // Advances the rightmost position that can still move; the positions after it follow it.
        if let Some(place) = (0..size).rev().find(|&i| set[i] < self.count - size + i) {
            let mut after = set.clone();
            (place..size).for_each(|i| after[i] = set[place] + 1 + (i - place));
            self.next = Some(after);
        }
        Some(set)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::class::tests::class;
    use crate::encode::encode;
    use tessera_accel::hash::chunk_hash;

    fn setup(spec: &str, len: usize) -> (DecodeJob, Bytes, BufferPool) {
        let pool = BufferPool::new(0);
        let data: Bytes = (0..len).map(|i| (i * 31 % 251) as u8).collect::<Vec<_>>().into();
        let class = class(spec);
        let all: Vec<u32> = (0..class.fragments()).collect();
        let fragments = encode(&class, &data, &all, &pool);
        (DecodeJob { class, chunk_len: len as u64, name: chunk_hash(&data), fragments, search: false }, data, pool)
    }

    /// Changes byte `at` of a fragment and corrects its checksum to match.
    fn lie(fragment: &mut Fragment, at: usize) {
        let mut bytes = fragment.bytes.to_vec();
        bytes[at] ^= 1;
        fragment.crc32c = crc32c(&bytes);
        fragment.bytes = bytes.into();
    }

    /// P1: any k fragments give the chunk, and so does a copy; fewer do not.
    #[test]
    fn every_erasure_pattern_gives_the_chunk() {
        for (spec, len) in [
            ("ec:4+2", 100_001),
            ("ec:4+2", 100),
            ("ec:2+1", 1),
            ("replica:3", 5000),
            ("ec:4+2", 0),
            ("copy+ec:4+2", 100_001),
            ("copy+ec:4+2", 100),
            ("copy+ec:4+2", 0),
            ("copy+ec:2+1", 70_000),
            ("copy+ec:2+1", 1),
            ("raid6:4+2", 100_001),
            ("raid6:4+2", 100),
            ("raid6:4+2", 0),
            ("raid6:3+2", 70_000),
            ("raid6:3+2", 1),
        ] {
            let (job, data, pool) = setup(spec, len);
            for pattern in 0u32..1 << job.class.fragments() {
                let present = job.fragments.iter().filter(|it| pattern >> it.number & 1 == 1);
                let fragments: Vec<_> = present.cloned().collect();
                let enough = job.class.suffices(fragments.iter().map(|it| it.number));
                let job = DecodeJob { fragments, class: job.class.clone(), search: false, ..job };
                match job.run(&pool) {
                    Decoded::Verified { parts, wrong } => {
                        assert!(enough && wrong.is_empty());
                        assert_eq!(parts.concat(), data, "{spec} {len} {pattern:b}");
                    }
                    Decoded::Mismatch { wrong } => assert!(!enough && wrong.is_empty()),
                }
            }
        }
    }

    /// P2: two fragments of another chunk that match their checksums are found by trying.
    #[test]
    fn fragments_that_lie_with_good_checksums_are_found() {
        for (a, b) in [(0, 1), (0, 5), (3, 4), (4, 5)] {
            let (mut job, data, pool) = setup("ec:4+2", 130_000);
            [a, b].into_iter().for_each(|i| lie(&mut job.fragments[i], 77));
            job.search = true;
            match job.run(&pool) {
                Decoded::Verified { parts, wrong } => {
                    assert_eq!(parts.concat(), data);
                    // Unused parity is not checked if the data alone gives the name.
                    assert!(wrong == [a as u32, b as u32] || (a, b) == (4, 5) && wrong.is_empty());
                }
                Decoded::Mismatch { .. } => panic!("two wrong of six can be put right ({a}, {b})"),
            }
        }
    }

    /// P2: the slices find a lying copy; if the copy is right, lying slices are not checked.
    #[test]
    fn copies_and_slices_check_each_other() {
        for liar in 0..6u32 {
            let (mut job, data, pool) = setup("copy+ec:4+2", 130_000);
            lie(&mut job.fragments[liar as usize], if liar == 0 { 60_000 } else { 7 });
            job.search = true;
            match job.run(&pool) {
                Decoded::Verified { parts, wrong } => {
                    assert_eq!(parts.concat(), data);
                    assert_eq!(wrong, if liar == 0 { vec![0] } else { vec![] });
                }
                Decoded::Mismatch { .. } => panic!("one wrong fragment can be put right ({liar})"),
            }
        }
    }

    #[test]
    fn checksums_name_the_wrong_fragment() {
        let (mut job, _, pool) = setup("ec:4+2", 130_000);
        let mut bytes = job.fragments[2].bytes.to_vec();
        bytes[0] ^= 0x80;
        job.fragments[2].bytes = bytes.into();
        assert!(matches!(job.run(&pool), Decoded::Mismatch { wrong } if wrong == [2]));
    }

    /// P2: more wrong fragments than parity can replace is an error, whatever sets are tried.
    #[test]
    fn too_many_wrong_fragments_never_give_bytes() {
        let (mut job, _, pool) = setup("ec:4+2", 130_000);
        for i in 0..3 {
            job.fragments[i].bytes = vec![i as u8; job.fragments[i].bytes.len()].into();
        }
        job.search = true;
        assert!(matches!(job.run(&pool), Decoded::Mismatch { .. }));
    }

    #[test]
    fn subsets_are_complete_and_in_order() {
        let all: Vec<_> = Subsets::new(4, 2).collect();
        assert_eq!(all, [[0, 1], [0, 2], [0, 3], [1, 2], [1, 3], [2, 3]]);
        assert_eq!(Subsets::new(2, 3).count(), 0);
        assert_eq!(Subsets::new(3, 3).count(), 1);
        assert_eq!(Subsets::new(16, 8).count(), 12_870);
        assert_eq!(Subsets::new(5, 0).count(), 0);
    }
}
