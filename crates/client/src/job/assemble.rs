//! A chunk from one copy or any k of its fragments, verified against its name (P1, P2).
//!
//! The name decides, nothing else: checksums only help to find which fragment was wrong. When they do not
//! tell (a fragment that is whole but not the right one), every copy and every choice of k fragments is tried.

use super::encode;
use crate::class::Class;
use bytes::Bytes;
use std::sync::Arc;
use tessera_accel::checksum::crc32c;
use tessera_accel::hash::Hash;
use tessera_accel::{ReconstructJob, device};
use tessera_net::BufferPool;

/// A fragment at hand.
#[derive(Debug, Clone)]
pub struct Held {
    /// Its number.
    pub number: u32,
    /// Its bytes.
    pub bytes: Bytes,
    /// The checksum that was stored with it.
    pub crc32c: u32,
    /// Its checksum or content was found wrong before: only used when nothing else is left.
    pub suspect: bool,
}

/// Make the chunk of this name from these fragments, all of the right lengths; they suffice.
#[derive(Debug)]
pub struct Assemble {
    /// Its class.
    pub class: Arc<Class>,
    /// Its length in bytes.
    pub chunk_len: u64,
    /// Its name.
    pub name: Hash,
    /// What is at hand.
    pub held: Vec<Held>,
    /// Nothing more can be had: try every choice of fragments.
    pub search: bool,
}

/// What came of it.
#[derive(Debug)]
pub enum Assembled {
    /// The chunk, in pieces; and fragments that turned out to be wrong.
    Right {
        /// The chunk's bytes in order.
        parts: Vec<Bytes>,
        /// Numbers of wrong fragments.
        wrong: Vec<u32>,
    },
    /// The bytes do not have the name.
    Wrong {
        /// Numbers of fragments that do not have their checksum; may be none.
        culprits: Vec<u32>,
    },
}

/// Choices of fragments tried before a chunk is called corrupt: all there are for n ≤ 16 or so.
const MAX_CHOICES: usize = 20_000;

impl Assemble {
    pub(super) fn run(self, pool: &BufferPool) -> Assembled {
        let (mut good, suspect): (Vec<Held>, Vec<Held>) = self.held.iter().cloned().partition(|h| !h.suspect);
        good.sort_by_key(|h| h.number);
        let needed = self.class.needed() as usize;
        let first = match good.first() {
            Some(copy) if self.class.info.is_copy(copy.number) => good.get(..1),
            _ => good.get(..needed),
        };
        if let Some(parts) = first.and_then(|first| self.attempt(first, pool)) {
            return Assembled::Right { parts, wrong: Vec::new() };
        }
        let lies = |h: &&Held| crc32c(&h.bytes) != h.crc32c;
        let culprits: Vec<u32> = good.iter().filter(lies).map(|h| h.number).collect();
        if !self.search {
            return Assembled::Wrong { culprits };
        }
        // Sound ones first, so that the likeliest choices come first.
        good.sort_by_key(|h| (culprits.contains(&h.number), h.number));
        good.extend(suspect);
        match self.search_all(&good, pool) {
            Some(parts) => Assembled::Right { wrong: self.wrong_ones(&parts, &good, pool), parts },
            None => Assembled::Wrong { culprits },
        }
    }

    /// The chunk from exactly this copy or these k fragments, if it has the name.
    fn attempt(&self, from: &[Held], pool: &BufferPool) -> Option<Vec<Bytes>> {
        let parts = self.decode(from, pool)?;
        let slices: Vec<&[u8]> = parts.iter().map(|p| &p[..]).collect();
        (device().hash_parts(&slices) == self.name).then_some(parts)
    }

    fn decode(&self, from: &[Held], pool: &BufferPool) -> Option<Vec<Bytes>> {
        let code = match (self.class.code(), from) {
            (Some(code), [_, _, ..]) => code,
            (Some(code), [one]) if !self.class.info.is_copy(one.number) => code,
            (_, [copy]) => return Some(vec![copy.bytes.clone()]),
            _ => return None,
        };
        // A copy begins with the code's first slice.
        let slice = |h: &Held| h.bytes.slice(..self.class.coded_len(self.chunk_len, h.number));
        let find = |number: u32| from.iter().find(|h| h.number == number).map(slice);
        let mut parts: Vec<Option<Bytes>> = (0..self.class.needed()).map(find).collect();
        let wanted: Vec<usize> = (0..parts.len()).filter(|i| parts[*i].is_none()).collect();
        if !wanted.is_empty() {
            let slices: Vec<(usize, Bytes)> = from.iter().map(|h| (h.number as usize, slice(h))).collect();
            let present = slices.iter().map(|(number, bytes)| (*number, &bytes[..])).collect();
            let lens = wanted.iter().map(|i| self.class.coded_len(self.chunk_len, *i as u32));
            let mut rooms: Vec<_> = lens.map(|len| pool.get(len)).collect();
            let out: Vec<&mut [u8]> = rooms.iter_mut().map(|r| &mut r[..]).collect();
            let frag_len = self.class.full_len(self.chunk_len);
            let job = ReconstructJob { frag_len, present, wanted: wanted.clone(), out };
            code.reconstruct_on(device(), job).ok()?;
            for (index, room) in wanted.into_iter().zip(rooms) {
                parts[index] = Some(room.freeze());
            }
        }
        Some(parts.into_iter().flatten().filter(|p| !p.is_empty()).collect())
    }

    /// Tries the copies, then choices of k out of `held`, in lexicographic order of their places in it.
    fn search_all(&self, held: &[Held], pool: &BufferPool) -> Option<Vec<Bytes>> {
        let mut copies = held.iter().filter(|h| self.class.info.is_copy(h.number));
        if let Some(parts) = copies.find_map(|copy| self.attempt(std::slice::from_ref(copy), pool)) {
            return Some(parts);
        }
        self.class.code()?;
        let (n, k) = (held.len(), self.class.needed() as usize);
        if n < k {
            return None;
        }
        let mut choice: Vec<usize> = (0..k).collect();
        for _ in 0..MAX_CHOICES {
            let picked: Vec<Held> = choice.iter().map(|i| held[*i].clone()).collect();
            if let Some(parts) = self.attempt(&picked, pool) {
                return Some(parts);
            }
            // The rightmost place that can still move, moves; those behind it follow it.
            let place = (0..k).rev().find(|i| choice[*i] < n - k + i)?;
            let first = choice[place] + 1;
            (place..k).for_each(|i| choice[i] = first + (i - place));
        }
        None
    }

    /// Which of `held` are not the fragments of the chunk `parts`.
    fn wrong_ones(&self, parts: &[Bytes], held: &[Held], pool: &BufferPool) -> Vec<u32> {
        let chunk: Bytes = parts.concat().into();
        let parity = encode::parity(&self.class, &chunk, pool);
        let full = self.class.full_len(self.chunk_len);
        let differs = |h: &&Held| match self.class.is_plain(h.number) {
            true => h.bytes != chunk[self.class.plain_range(self.chunk_len, h.number)],
            false => {
                let row = (h.number - self.class.needed()) as usize;
                h.bytes != parity[row * full..(row + 1) * full]
            }
        };
        held.iter().filter(differs).map(|h| h.number).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::class::tests::class;
    use crate::job::{Encode, Job, Output};
    use tessera_accel::hash::chunk_hash;

    fn setup(spec: &str, len: usize) -> (Assemble, Bytes, BufferPool) {
        let pool = BufferPool::new(0);
        let data: Bytes = (0..len).map(|i| (i * 31 % 251) as u8).collect::<Vec<_>>().into();
        let class = class(spec);
        let wanted = (0..class.fragments()).collect();
        let job = Encode { class: class.clone(), data: data.clone(), wanted };
        let Output::Encoded(encoded) = Job::Encode(job).run(&pool) else { unreachable!() };
        let held = encoded.fragments.into_iter();
        let held = held.map(|f| Held { number: f.number, bytes: f.bytes, crc32c: f.crc32c, suspect: false }).collect();
        (Assemble { class, chunk_len: len as u64, name: chunk_hash(&data), held, search: false }, data, pool)
    }

    /// P1: any k fragments make the chunk, and so does a copy.
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
                let held: Vec<_> = job.held.iter().filter(|h| pattern >> h.number & 1 == 1).cloned().collect();
                let copy = spec.starts_with("copy+") && pattern & 1 == 1;
                let enough = copy || held.len() >= job.class.needed() as usize;
                let job = Assemble { held, class: job.class.clone(), search: false, ..job };
                match job.run(&pool) {
                    Assembled::Right { parts, wrong } => {
                        assert!(enough && wrong.is_empty());
                        assert_eq!(parts.concat(), data, "{spec} {len} {pattern:b}");
                    }
                    Assembled::Wrong { culprits } => assert!(!enough && culprits.is_empty()),
                }
            }
        }
    }

    /// P2: two fragments that are whole, have right checksums, and are of another chunk: found by trying.
    #[test]
    fn fragments_that_lie_with_good_checksums_are_found() {
        for (a, b) in [(0, 1), (0, 5), (3, 4), (4, 5)] {
            let (mut job, data, pool) = setup("ec:4+2", 70_000);
            for i in [a, b] {
                let mut bytes = job.held[i].bytes.to_vec();
                bytes[77] ^= 1;
                job.held[i].crc32c = crc32c(&bytes);
                job.held[i].bytes = bytes.into();
            }
            job.search = true;
            match job.run(&pool) {
                Assembled::Right { parts, wrong } => {
                    assert_eq!(parts.concat(), data);
                    // Parity that was not needed is not looked at when the data alone is right.
                    assert!(wrong == [a as u32, b as u32] || (a, b) == (4, 5) && wrong.is_empty());
                }
                Assembled::Wrong { .. } => panic!("two wrong of six can be put right ({a}, {b})"),
            }
        }
    }

    /// P2: a copy that lies is found by the pieces, pieces that lie are not even looked at when the copy is right.
    #[test]
    fn copies_and_pieces_check_each_other() {
        for wrong in 0..6u32 {
            let (mut job, data, pool) = setup("copy+ec:4+2", 70_000);
            let at = if wrong == 0 { 60_000 } else { 7 };
            let mut bytes = job.held[wrong as usize].bytes.to_vec();
            bytes[at] ^= 1;
            job.held[wrong as usize].crc32c = crc32c(&bytes);
            job.held[wrong as usize].bytes = bytes.into();
            job.search = true;
            match job.run(&pool) {
                Assembled::Right { parts, wrong: found } => {
                    assert_eq!(parts.concat(), data);
                    assert_eq!(found, if wrong == 0 { vec![0] } else { vec![] });
                }
                Assembled::Wrong { .. } => panic!("one wrong fragment can be put right ({wrong})"),
            }
        }
    }

    #[test]
    fn checksums_name_the_culprit() {
        let (mut job, _, pool) = setup("ec:4+2", 70_000);
        let mut bytes = job.held[2].bytes.to_vec();
        bytes[0] ^= 0x80;
        job.held[2].bytes = bytes.into();
        assert!(matches!(job.run(&pool), Assembled::Wrong { culprits } if culprits == [2]));
    }

    /// P2: more wrong fragments than parity can replace is an error, whatever is tried.
    #[test]
    fn too_many_wrong_fragments_never_give_bytes() {
        let (mut job, _, pool) = setup("ec:4+2", 1000);
        for i in 0..3 {
            job.held[i].bytes = vec![i as u8; job.held[i].bytes.len()].into();
        }
        job.search = true;
        assert!(matches!(job.run(&pool), Assembled::Wrong { .. }));
    }
}
