//! Rebuilds one lost fragment of a chunk from a copy or any k others (P2, P6).
//!
//! Every rebuilt fragment derives from bytes whose BLAKE3 is the chunk's name. A device that computes wrongly, a
//! source that lies and a checksum that collides all end in [`Rebuilt::Mismatch`].

use crate::Fragment;
use crate::class::Class;
use crate::decode::{Decoder, Search};
use crate::encode::fragment;
use crate::layout::ClassLayout;
use bytes::Bytes;
use tessera_accel::checksum::crc32c;
use tessera_accel::device;
use tessera_accel::hash::{HASH_BYTES, Hash, group_count};
use tessera_net::BufferPool;
use tessera_wire::ClassInfo;

/// Sets of fragments tried in one step. A rebuild tries as many sets as a reader ([`crate::MAX_SETS`]), but a wrong
/// source must not hold up a node: each set costs decoding and hashing the chunk, a few milliseconds for 4 MiB, so a
/// step takes up to a quarter of a second. It runs on one of the node's computing threads, never on a disk's, and the
/// next step queues behind all other rebuilds.
const SETS_PER_STEP: usize = 64;
const _: () = assert!(SETS_PER_STEP > 0 && SETS_PER_STEP < crate::MAX_SETS);

/// Makes fragment `wanted` of the chunk of this name from other fragments.
#[derive(Clone, Debug, PartialEq)]
pub struct RebuildJob {
    /// Class of the chunk.
    pub class: ClassInfo,
    /// Name of the chunk.
    pub name: Hash,
    /// Length of the chunk in bytes.
    pub chunk_len: u64,
    /// Number of the fragment to make.
    pub wanted: u32,
    /// Distinct fragments of the right lengths, which suffice to read.
    pub sources: Vec<Fragment>,
    /// No other source is available: use also those that do not match their checksum.
    pub search: bool,
    /// Number of the first set to try: earlier steps tried those before it; see [`Rebuilt::Unfinished`].
    pub first_set: usize,
}

/// The result of one step of a [`RebuildJob`].
#[derive(Clone, Debug, PartialEq)]
pub enum Rebuilt {
    /// A set gives the chunk's name, and this is the fragment.
    Verified {
        /// The fragment.
        fragment: Fragment,
        /// Group hashes of the chunk.
        groups: Bytes,
        /// Sources that are wrong, or do not match their checksum.
        wrong: Vec<u32>,
    },
    /// No set of this step gives the name; continue with the next one.
    Unfinished {
        /// [`RebuildJob::first_set`] of the next step.
        next_set: usize,
    },
    /// No set gives the name.
    Mismatch {
        /// Sources that do not match their checksum; may be empty.
        wrong: Vec<u32>,
    },
    /// There is no such class or fragment: other sources would not help.
    Impossible(String),
}

impl RebuildJob {
    /// Decodes the chunk from the next sets of sources, compares it with its name, and makes the fragment. Takes memory
    /// from `pool`.
    pub fn run(&self, pool: &BufferPool) -> Rebuilt {
        let class = match Class::new(self.class.clone()) {
            Ok(class) => class,
            Err(error) => return Rebuilt::Impossible(error.to_string()),
        };
        if class.fragment_bytes(self.chunk_len, self.wanted).is_none() {
            return Rebuilt::Impossible(format!("class {} has no fragment {}", class.spec, self.wanted));
        }
        let mut decoder = Decoder::new(&class, self.chunk_len, &self.sources, pool);
        let wrong = decoder.compare_checksums();
        let sets = self.first_set..self.first_set + SETS_PER_STEP;
        let next_set = sets.end;
        match decoder.search(sets, self.search, |parts| self.verify(parts, pool)) {
            Search::Found { set, value: (chunk, groups) } => {
                let bytes = fragment(&class, &chunk, self.wanted, pool);
                assert_eq!(chunk.len() as u64, self.chunk_len, "a verified chunk has its length");
                let fragment = Fragment { number: self.wanted, crc32c: crc32c(&bytes), bytes };
                // If an earlier set did not give the name, or there are more sources than one set needs (because an
                // earlier step failed with fewer), a source may be wrong although it matches its checksum.
                let suspicious = set > 0 || !wrong.is_empty() || self.sources.len() > class.k as usize;
                let wrong = if suspicious { decoder.wrong_fragments(&chunk) } else { Vec::new() };
                Rebuilt::Verified { fragment, groups, wrong }
            }
            Search::Open => Rebuilt::Unfinished { next_set },
            Search::Exhausted => Rebuilt::Mismatch { wrong },
        }
    }

    /// The chunk in one piece and its group hashes, if the bytes match the name (P2).
    fn verify(&self, parts: Vec<Bytes>, pool: &BufferPool) -> Option<(Bytes, Bytes)> {
        let chunk = match &parts[..] {
            [whole] => whole.clone(),
            _ => {
                let mut buffer = pool.get(self.chunk_len as usize);
                let mut at = 0;
                for part in &parts {
                    buffer[at..at + part.len()].copy_from_slice(part);
                    at += part.len();
                }
                assert_eq!(at, buffer.len(), "parts of a chunk");
                buffer.freeze()
            }
        };
        let tree = device().tree(&[&chunk]).pop()?;
        if tree.root != self.name {
            return None;
        }
        let groups = Bytes::from(tree.groups.concat());
        assert_eq!(groups.len() as u64, group_count(self.chunk_len) * HASH_BYTES as u64, "group hashes of a chunk");
        Some((chunk, groups))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::{DecodeJob, Decoded};
    use crate::encode::encode;
    use crate::layout::describe;
    use proptest::prelude::*;
    use std::sync::Arc;
    use tessera_accel::hash::{chunk_hash, tree};

    fn info(spec: &str) -> ClassInfo {
        describe(1, spec.parse().unwrap())
    }

    fn bytes(seed: usize, len: usize) -> Bytes {
        (0..len).map(|i| ((i + 7 * seed) * 131 % 251) as u8 ^ (i / 251) as u8).collect::<Vec<_>>().into()
    }

    /// All fragments of a chunk, as a client makes them.
    fn fragments(class: &ClassInfo, chunk: &Bytes) -> Vec<Fragment> {
        let class = Class::new(class.clone()).unwrap();
        encode(&class, chunk, &(0..class.fragments()).collect::<Vec<_>>(), &BufferPool::new(0))
    }

    fn job(class: &ClassInfo, chunk: &Bytes, wanted: u32, sources: Vec<Fragment>) -> RebuildJob {
        RebuildJob {
            class: class.clone(),
            name: chunk_hash(chunk),
            chunk_len: chunk.len() as u64,
            wanted,
            sources,
            search: false,
            first_set: 0,
        }
    }

    /// Runs all steps of a job.
    fn rebuild(mut job: RebuildJob) -> Rebuilt {
        loop {
            match job.run(&BufferPool::new(0)) {
                Rebuilt::Unfinished { next_set } => job.first_set = next_set,
                result => return result,
            }
        }
    }

    /// Changes the last byte of a fragment; with `checksum_too`, corrects its checksum to match.
    fn spoil(fragment: &mut Fragment, checksum_too: bool) {
        let mut bytes = fragment.bytes.to_vec();
        if let Some(last) = bytes.last_mut() {
            *last ^= 0x40;
        }
        if checksum_too {
            fragment.crc32c = crc32c(&bytes);
        }
        fragment.bytes = bytes.into();
    }

    /// Every pattern of every family: fragments that suffice give any fragment, at all edge lengths (P1, P6); others
    /// give none.
    #[test]
    fn whatever_suffices_gives_any_fragment() {
        for spec in ["ec:4+2", "ec:2+1", "copy+ec:4+2", "copy+ec:2+1", "raid6:4+2", "raid6:3+2", "replica:3", "none"] {
            for len in [1, 63, 64, 65, 255, 256, 257, 16_384, 16_385, 40_000, 100_003] {
                every_pattern(&info(spec), len);
            }
        }
    }

    fn every_pattern(class: &ClassInfo, len: usize) {
        let chunk = bytes(len, len);
        let all = fragments(class, &chunk);
        let groups: Bytes = tree(&chunk).groups.concat().into();
        let n = class.fragments();
        for pattern in 0u32..1 << n {
            let sources: Vec<_> = all.iter().filter(|it| pattern >> it.number & 1 == 1).cloned().collect();
            // More sources at once test nothing new, and are slow.
            if sources.len() > class.k as usize + 1 {
                continue;
            }
            let enough = class.suffices(sources.iter().map(|it| it.number));
            for wanted in 0..n {
                let expected = match enough {
                    true => Rebuilt::Verified {
                        fragment: all[wanted as usize].clone(),
                        groups: groups.clone(),
                        wrong: vec![],
                    },
                    false => Rebuilt::Mismatch { wrong: vec![] },
                };
                let result = rebuild(job(class, &chunk, wanted, sources.clone()));
                assert_eq!(result, expected, "{} {len} {pattern:b} {wanted}", class.spec);
            }
        }
    }

    /// P2: one of five sources is wrong, with or without a matching checksum: it is named, and the rest suffices.
    #[test]
    fn one_wrong_source_is_found() {
        for class in ["ec:4+2", "copy+ec:4+2", "raid6:4+2"].map(info) {
            let chunk = bytes(1, 50_000);
            let all = fragments(&class, &chunk);
            for (liar, checksum_too) in (0..5).flat_map(|liar| [(liar, false), (liar, true)]) {
                let mut sources = all[..5].to_vec();
                spoil(&mut sources[liar], checksum_too);
                match rebuild(job(&class, &chunk, 5, sources)) {
                    Rebuilt::Verified { fragment, wrong, .. } => {
                        assert_eq!(fragment, all[5]);
                        assert_eq!(wrong, vec![liar as u32], "liar {liar}, checksum_too {checksum_too}");
                    }
                    other => panic!("liar {liar}: {other:?}"),
                }
            }
        }
    }

    /// P6: sources that do not lead to the name give no fragment.
    #[test]
    fn wrong_sources_alone_give_nothing() {
        let class = info("ec:4+2");
        let chunk = bytes(2, 130_000);
        let other = fragments(&class, &bytes(3, 130_000));
        assert_eq!(rebuild(job(&class, &chunk, 0, other)), Rebuilt::Mismatch { wrong: vec![] });
        let mut rotten = fragments(&class, &chunk)[..4].to_vec();
        spoil(&mut rotten[2], false);
        assert_eq!(rebuild(job(&class, &chunk, 0, rotten)), Rebuilt::Mismatch { wrong: vec![2] });
    }

    #[test]
    fn copies_are_checked_and_chosen() {
        let class = info("replica:3");
        let chunk = bytes(4, 20_000);
        let mut all = fragments(&class, &chunk);
        spoil(&mut all[0], true);
        match rebuild(job(&class, &chunk, 2, all[..2].to_vec())) {
            Rebuilt::Verified { fragment, wrong, .. } => assert_eq!((fragment.bytes, wrong), (chunk, vec![0])),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn unknown_classes_and_fragments_are_refused() {
        let mut class = info("ec:4+2");
        let chunk = bytes(6, 100);
        let sources = fragments(&class, &chunk);
        assert!(matches!(rebuild(job(&class, &chunk, 6, sources.clone())), Rebuilt::Impossible(_)));
        class.code = "liberation".into();
        assert!(matches!(rebuild(job(&class, &chunk, 0, sources)), Rebuilt::Impossible(_)));
    }

    /// A search of more sets than one step tries continues where the step ended.
    #[test]
    fn long_searches_take_steps() {
        let class = info("ec:6+5");
        let chunk = bytes(7, 180_000);
        let mut sources = fragments(&class, &chunk);
        (0..4).for_each(|i| spoil(&mut sources[i], true));
        let mut job = job(&class, &chunk, 10, sources[..10].to_vec());
        let mut steps = 0;
        let result = loop {
            match job.run(&BufferPool::new(0)) {
                Rebuilt::Unfinished { next_set } => {
                    assert_eq!(next_set, job.first_set + SETS_PER_STEP);
                    job.first_set = next_set;
                    steps += 1;
                }
                result => break result,
            }
        };
        // Only the last of the 210 sets has no lying source: 64 + 64 + 64 do not reach it.
        assert_eq!(steps, 3);
        let Rebuilt::Verified { fragment, wrong, .. } = result else { panic!("{result:?}") };
        assert_eq!((fragment, wrong), (sources[10].clone(), vec![0, 1, 2, 3]));
    }

    /// Faults of a fragment.
    #[derive(Clone, Copy, Debug)]
    enum Damage {
        None,
        Lost,
        Rotten,
        /// Other bytes with a matching checksum.
        Lie,
        /// Right bytes with a wrong checksum.
        Checksum,
    }

    fn damage() -> impl Strategy<Value = Damage> {
        use Damage::*;
        prop_oneof![4 => Just(None), 1 => Just(Lost), 1 => Just(Rotten), 1 => Just(Lie), 1 => Just(Checksum)]
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

        /// P1, P6: reading and repair accept exactly the same damage, and agree on the bytes.
        #[test]
        fn what_can_be_read_can_be_repaired(
            spec in prop::sample::select(vec!["ec:4+2", "ec:3+3", "ec:6+4", "copy+ec:3+2", "raid6:4+2", "replica:4", "ec:1+2"]),
            len in prop_oneof![1usize..3_000, 3_000usize..150_000],
            damages in prop::collection::vec(damage(), 10),
            wanted in 0u32..10,
        ) {
            let class = info(spec);
            let chunk = bytes(len, len);
            let all = fragments(&class, &chunk);
            let wanted = wanted % class.fragments();
            let damaged: Vec<Fragment> = all.iter().zip(&damages).filter_map(|(it, damage)| {
                let mut it = it.clone();
                match damage {
                    Damage::None => {}
                    Damage::Lost => return None,
                    Damage::Rotten => spoil(&mut it, false),
                    Damage::Lie => spoil(&mut it, true),
                    Damage::Checksum => it.crc32c ^= 1,
                }
                Some(it)
            }).collect();
            let read = DecodeJob {
                class: Arc::new(Class::new(class.clone()).unwrap()),
                chunk_len: len as u64,
                name: chunk_hash(&chunk),
                fragments: damaged.clone(),
                search: true,
            };
            let read = read.run(&BufferPool::new(0));
            let repaired = rebuild(RebuildJob { search: true, ..job(&class, &chunk, wanted, damaged) });
            match (read, repaired) {
                (Decoded::Verified { parts, wrong: by_reader }, Rebuilt::Verified { fragment, wrong, .. }) => {
                    prop_assert_eq!(parts.concat(), chunk);
                    prop_assert_eq!(&fragment, &all[wanted as usize]);
                    // Repair checks every source; a reader only after the first set failed.
                    prop_assert!(by_reader.is_empty() || by_reader == wrong, "{:?} {:?}", by_reader, wrong);
                }
                (Decoded::Mismatch { wrong: by_reader }, Rebuilt::Mismatch { wrong }) => {
                    prop_assert_eq!(by_reader, wrong);
                }
                (read, repaired) => prop_assert!(false, "read {:?}, repaired {:?}", read, repaired),
            }
        }
    }
}
