//! The computing part of a rebuild: pure functions from fragments to a verified fragment (P2, P6).
//!
//! Nothing leaves here that was not derived from bytes whose BLAKE3 is the chunk's name. A device that
//! computes wrongly, a source that lies and a checksum that collides all end in "no match".

use bytes::Bytes;
use parking_lot::Mutex;
use std::sync::OnceLock;
use tessera_accel::checksum::crc32c;
use tessera_accel::coder::Description;
use tessera_accel::{Coder, ReconstructJob, Tree, device};
use tessera_wire::ClassInfo;
use tessera_wire::class::{COPIES, COPY_AND_REED_SOLOMON, REED_SOLOMON};

/// A fragment as a source gave it.
#[derive(Clone, Debug, PartialEq)]
pub struct Source {
    /// Fragment number.
    pub fragment: u32,
    /// Its bytes.
    pub data: Bytes,
    /// Its checksum as stored; compared here.
    pub crc32c: u32,
}

/// What [`rebuild`] needs.
#[derive(Clone, Debug, PartialEq)]
pub struct RebuildJob {
    /// Class of the chunk.
    pub class: ClassInfo,
    /// Name of the chunk.
    pub hash: [u8; 32],
    /// Its length in bytes.
    pub chunk_len_bytes: u64,
    /// Fragment to make.
    pub wanted: u32,
    /// Distinct fragments that suffice, if there is to be hope.
    pub sources: Vec<Source>,
    /// Try at most so many different sets of sources.
    pub max_combinations: usize,
}

/// What [`rebuild`] found.
#[derive(Clone, Debug, PartialEq)]
pub enum RebuildOutcome {
    /// The chunk has its name, and this is the fragment of it.
    Rebuilt {
        /// The fragment.
        data: Bytes,
        /// Its checksum.
        crc32c: u32,
        /// Group hashes of the chunk.
        groups: Bytes,
        /// Sources that were wrong.
        bad: Vec<u32>,
    },
    /// No copy and no set of k sources gives the chunk.
    NoMatch {
        /// Sources that are wrong for certain (checksum or length).
        bad: Vec<u32>,
    },
    /// No such class, fragment or chunk: other sources would not help.
    Impossible(String),
}

/// Decodes the chunk, compares it with its name, and makes the fragment that is wanted.
pub fn rebuild(job: &RebuildJob) -> RebuildOutcome {
    match Decoder::of(&job.class) {
        Ok(_) if job.class.fragment_bytes(job.chunk_len_bytes, job.wanted).is_none() => {
            RebuildOutcome::Impossible(format!("class {} has no fragment {}", job.class.spec, job.wanted))
        }
        Ok(decoder) => Attempt { job, decoder }.run(),
        Err(why) => RebuildOutcome::Impossible(why),
    }
}

/// How a class turns fragments into chunks.
enum Decoder {
    Copies,
    Code(Coder),
}

impl Decoder {
    fn of(class: &ClassInfo) -> Result<Decoder, String> {
        match class.code.as_str() {
            COPIES if class.k == 1 => Ok(Decoder::Copies),
            _ => code(class).map(Decoder::Code),
        }
    }
}

/// Codes are kept: they remember their decoding matrices.
fn code(class: &ClassInfo) -> Result<Coder, String> {
    static CODES: OnceLock<Mutex<Vec<(ClassInfo, Coder)>>> = OnceLock::new();
    let plain = if class.code == COPY_AND_REED_SOLOMON { REED_SOLOMON } else { &class.code };
    let key = ClassInfo { class_id: 0, spec: String::new(), code: plain.into(), ..class.clone() };
    let mut codes = CODES.get_or_init(Mutex::default).lock();
    if let Some((_, code)) = codes.iter().find(|(known, _)| *known == key) {
        return Ok(code.clone());
    }
    let described = Description {
        code: plain,
        matrix: &class.matrix,
        k: class.k,
        m: class.m,
        w: class.word_bits,
        packet_bytes: class.packet_bytes,
        align_bytes: class.alignment_bytes,
    };
    let code = Coder::described(&described).map_err(|e| format!("class {}: {e}", class.spec))?;
    codes.push((key, code.clone()));
    Ok(code)
}

struct Attempt<'a> {
    job: &'a RebuildJob,
    decoder: Decoder,
}

impl Attempt<'_> {
    fn run(&self) -> RebuildOutcome {
        let (sound, mut bad) = self.sift();
        let need = self.job.class.k as usize;
        // Copies first (they come first), then whatever k there are.
        let is_copy = |s: &&&Source| self.job.class.is_copy(s.fragment);
        let copies = sound.iter().take_while(is_copy).count();
        let codes = if self.job.class.copies() < self.job.class.fragments() { sound.len() } else { 0 };
        let sets = (0..copies).map(|i| vec![i]).chain(Combinations::new(codes, need));
        for (tried, set) in sets.take(self.job.max_combinations.max(1)).enumerate() {
            let chosen: Vec<&Source> = set.iter().map(|&i| sound[i]).collect();
            let Some((chunk, groups)) = self.decode(&chosen) else { continue };
            if tried > 0 || sound.len() > need {
                // Some set did not match, now or before (else there would not be so many sources): a source is
                // wrong although its checksum is right. Find it.
                let is_wrong = |s: &&&Source| self.fragment(&chunk, s.fragment).as_ref() != Some(&s.data);
                bad.extend(sound.iter().filter(is_wrong).map(|s| s.fragment));
            }
            let Some(data) = self.fragment(&chunk, self.job.wanted) else { continue };
            return RebuildOutcome::Rebuilt { crc32c: crc32c(&data), data, groups, bad };
        }
        RebuildOutcome::NoMatch { bad }
    }

    /// Sources with the right length and checksum, and the numbers of the others.
    fn sift(&self) -> (Vec<&Source>, Vec<u32>) {
        let is_sound = |s: &&Source| {
            self.job.class.fragment_bytes(self.job.chunk_len_bytes, s.fragment) == Some(s.data.len() as u64)
                && crc32c(&s.data) == s.crc32c
        };
        let (sound, bad): (Vec<&Source>, Vec<&Source>) = self.job.sources.iter().partition(is_sound);
        (sound, bad.iter().map(|s| s.fragment).collect())
    }

    /// The chunk made of this copy or these k sources and its group hashes, if it has the name (P2).
    fn decode(&self, sources: &[&Source]) -> Option<(Bytes, Bytes)> {
        let chunk = match (&self.decoder, sources) {
            (_, [copy]) if self.job.class.is_copy(copy.fragment) => copy.data.clone(),
            (Decoder::Code(code), _) => Bytes::from(self.decode_with(code, sources)?),
            (Decoder::Copies, _) => return None,
        };
        let tree: Tree = device().tree(&[&chunk]).pop()?;
        (tree.root.0 == self.job.hash).then(|| (chunk, Bytes::from(tree.groups.concat())))
    }

    fn decode_with(&self, code: &Coder, sources: &[&Source]) -> Option<Vec<u8>> {
        let chunk_len = usize::try_from(self.job.chunk_len_bytes).ok()?;
        let frag_len = code.fragment_len(chunk_len);
        let mut chunk = vec![0; chunk_len];
        let mut present: Vec<(usize, &[u8])> = Vec::with_capacity(sources.len());
        let (mut wanted, mut out): (Vec<usize>, Vec<&mut [u8]>) = (Vec::new(), Vec::new());
        for s in sources {
            // A copy begins with the code's first slice.
            let len = if self.job.class.is_copy(s.fragment) { frag_len.min(s.data.len()) } else { s.data.len() };
            present.push((s.fragment as usize, &s.data[..len]));
        }
        // Pieces of a chunk of length 0 mod F are empty and there is nothing to reconstruct of them.
        for (index, piece) in chunk.chunks_mut(frag_len.max(1)).enumerate() {
            match present.iter().find(|(number, _)| *number == index) {
                Some((_, bytes)) => piece.copy_from_slice(bytes),
                None => {
                    wanted.push(index);
                    out.push(piece);
                }
            }
        }
        if !wanted.is_empty() {
            code.reconstruct_on(device(), ReconstructJob { frag_len, present, wanted, out }).ok()?;
        }
        Some(chunk)
    }

    /// Fragment `number` of a verified chunk.
    fn fragment(&self, chunk: &Bytes, number: u32) -> Option<Bytes> {
        match &self.decoder {
            _ if self.job.class.is_copy(number) => Some(chunk.clone()),
            Decoder::Copies => None,
            Decoder::Code(code) if (number as usize) < code.k() => {
                Some(chunk.slice_ref(code.data_slice(chunk, number as usize)))
            }
            Decoder::Code(code) => {
                let frag_len = code.fragment_len(chunk.len());
                let mut parity = vec![0; frag_len];
                let present = (0..code.k()).map(|i| (i, code.data_slice(chunk, i))).collect();
                let job = ReconstructJob { frag_len, present, wanted: vec![number as usize], out: vec![&mut parity] };
                code.reconstruct_on(device(), job).ok().map(|()| parity.into())
            }
        }
    }
}

/// Sets of `need` out of `count`, the first ones first.
struct Combinations {
    count: usize,
    next: Option<Vec<usize>>,
}

impl Combinations {
    fn new(count: usize, need: usize) -> Self {
        Combinations { count, next: (need > 0 && need <= count).then(|| (0..need).collect()) }
    }
}

impl Iterator for Combinations {
    type Item = Vec<usize>;
    fn next(&mut self) -> Option<Vec<usize>> {
        let now = self.next.take()?;
        let need = now.len();
        if let Some(i) = (0..need).rev().find(|&i| now[i] < self.count - need + i) {
            let mut after = now.clone();
            after[i] += 1;
            for j in i + 1..need {
                after[j] = after[j - 1] + 1;
            }
            self.next = Some(after);
        }
        Some(now)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// `raid6:k+2`.
    pub(crate) fn raid6_class(k: u32) -> ClassInfo {
        let (spec, code, matrix) = (format!("raid6:{k}+2"), "xor".into(), "liberation".into());
        ClassInfo { spec, code, matrix, word_bits: 7, packet_bytes: 512, alignment_bytes: 3584, ..class(k, 2) }
    }

    /// `copy+ec:k+m`.
    pub(crate) fn copy_class(k: u32, m: u32) -> ClassInfo {
        ClassInfo { spec: format!("copy+ec:{k}+{m}"), code: "copy+rs".into(), ..class(k, m) }
    }

    pub(crate) fn class(k: u32, m: u32) -> ClassInfo {
        let (spec, code, matrix) = match k {
            1 => (format!("replica:{}", m + 1), "copy", ""),
            _ => (format!("ec:{k}+{m}"), "rs", "cauchy1"),
        };
        ClassInfo { class_id: 1, spec, k, m, code: code.into(), matrix: matrix.into(), ..ClassInfo::default() }
    }

    pub(crate) fn bytes(seed: u64, len: usize) -> Vec<u8> {
        let mut rng = tessera_disk::SplitMix64::new(seed);
        (0..len).map(|_| rng.next_u64() as u8).collect()
    }

    /// All fragments of a chunk, made the way a client does.
    pub(crate) fn fragments(class: &ClassInfo, chunk: &[u8]) -> Vec<Source> {
        let source =
            |(i, data): (usize, Vec<u8>)| Source { fragment: i as u32, crc32c: crc32c(&data), data: data.into() };
        if class.code == "copy" {
            return vec![chunk.to_vec(); class.fragments() as usize].into_iter().enumerate().map(source).collect();
        }
        let code = code(class).unwrap();
        let frag_len = code.fragment_len(chunk.len());
        let data: Vec<&[u8]> = (0..code.k()).map(|i| code.data_slice(chunk, i)).collect();
        let mut parity = vec![vec![0; frag_len]; code.m()];
        let mut rooms: Vec<&mut [u8]> = parity.iter_mut().map(|p| &mut p[..]).collect();
        code.encode(&data, frag_len, &mut rooms).unwrap();
        let stored =
            |(i, slice): (usize, &&[u8])| if class.is_copy(i as u32) { chunk.to_vec() } else { slice.to_vec() };
        data.iter().enumerate().map(stored).chain(parity).enumerate().map(source).collect()
    }

    fn job(class: &ClassInfo, chunk: &[u8], wanted: u32, sources: Vec<Source>) -> RebuildJob {
        RebuildJob {
            class: class.clone(),
            hash: tessera_accel::hash::chunk_hash(chunk).0,
            chunk_len_bytes: chunk.len() as u64,
            wanted,
            sources,
            max_combinations: 64,
        }
    }

    /// Every pattern of every class: what suffices gives any fragment, at lengths around all edges (P1, P6); what does not, none.
    #[test]
    fn whatever_suffices_gives_any_fragment() {
        for class in [class(4, 2), copy_class(4, 2), copy_class(2, 1), raid6_class(4), raid6_class(3)] {
            for len in [1, 63, 64, 65, 255, 256, 257, 16_384, 16_385, 100_003] {
                every_pattern(&class, len);
            }
        }
    }

    fn every_pattern(class: &ClassInfo, len: usize) {
        let chunk = bytes(len as u64, len);
        let all = fragments(class, &chunk);
        let groups = tessera_accel::hash::tree(&chunk).groups.concat();
        for (i, fragment) in all.iter().enumerate() {
            assert_eq!(class.fragment_bytes(len as u64, i as u32), Some(fragment.data.len() as u64));
        }
        let n = class.fragments();
        for pattern in 0u32..1 << n {
            let sources: Vec<Source> = all.iter().filter(|s| pattern >> s.fragment & 1 == 1).cloned().collect();
            // All at once is nothing new, and slow.
            if sources.len() > class.k as usize + 1 {
                continue;
            }
            let enough = class.suffices(sources.iter().map(|s| s.fragment));
            for wanted in 0..n {
                let expected = match enough {
                    true => RebuildOutcome::Rebuilt {
                        data: all[wanted as usize].data.clone(),
                        crc32c: all[wanted as usize].crc32c,
                        groups: groups.clone().into(),
                        bad: vec![],
                    },
                    false => RebuildOutcome::NoMatch { bad: vec![] },
                };
                let found = rebuild(&job(class, &chunk, wanted, sources.clone()));
                assert_eq!(found, expected, "{} {len} {pattern:b} {wanted}", class.spec);
            }
        }
    }

    /// P2: with five sources of which one is wrong in either way, the wrong one is named and the rest suffices.
    #[test]
    fn one_wrong_source_is_found_out() {
        for class in [class(4, 2), copy_class(4, 2), raid6_class(4)] {
            let chunk = bytes(1, 50_000);
            let all = fragments(&class, &chunk);
            for culprit in 0..5usize {
                for checksum_too in [false, true] {
                    let mut sources = all[..5].to_vec();
                    let mut wrong = sources[culprit].data.to_vec();
                    *wrong.last_mut().unwrap() ^= 0x40;
                    if checksum_too {
                        sources[culprit].crc32c = crc32c(&wrong);
                    }
                    sources[culprit].data = wrong.into();
                    match rebuild(&job(&class, &chunk, 5, sources)) {
                        RebuildOutcome::Rebuilt { data, bad, .. } => {
                            assert_eq!(data, all[5].data);
                            assert_eq!(bad, vec![culprit as u32], "culprit {culprit}, checksum_too {checksum_too}");
                        }
                        other => panic!("culprit {culprit}: {other:?}"),
                    }
                }
            }
        }
    }

    /// P6: nothing comes of sources that do not lead to the name.
    #[test]
    fn wrong_sources_alone_give_nothing() {
        let class = class(4, 2);
        let chunk = bytes(2, 5_000);
        let other = fragments(&class, &bytes(3, 5_000));
        assert_eq!(rebuild(&job(&class, &chunk, 0, other)), RebuildOutcome::NoMatch { bad: vec![] });
        let mut short = fragments(&class, &chunk)[..4].to_vec();
        short[2].data = short[2].data.slice(1..);
        assert_eq!(rebuild(&job(&class, &chunk, 0, short)), RebuildOutcome::NoMatch { bad: vec![2] });
    }

    #[test]
    fn copies_are_checked_and_chosen() {
        let class = class(1, 2);
        let chunk = bytes(4, 20_000);
        let mut all = fragments(&class, &chunk);
        let wrong = bytes(5, 20_000);
        all[0] = Source { fragment: 0, crc32c: crc32c(&wrong), data: wrong.into() };
        match rebuild(&job(&class, &chunk, 2, all[..2].to_vec())) {
            RebuildOutcome::Rebuilt { data, bad, .. } => {
                assert_eq!(data, chunk);
                assert_eq!(bad, vec![0]);
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn unknown_classes_and_fragments_are_refused() {
        let mut strange = class(4, 2);
        let chunk = bytes(6, 100);
        let sources = fragments(&strange, &chunk);
        assert!(matches!(rebuild(&job(&strange, &chunk, 6, sources.clone())), RebuildOutcome::Impossible(_)));
        strange.code = "liberation".into();
        assert!(matches!(rebuild(&job(&strange, &chunk, 0, sources)), RebuildOutcome::Impossible(_)));
    }

    #[test]
    fn combinations_are_all_there_and_in_order() {
        let all: Vec<_> = Combinations::new(4, 2).collect();
        assert_eq!(all, [[0, 1], [0, 2], [0, 3], [1, 2], [1, 3], [2, 3]]);
        assert_eq!(Combinations::new(2, 3).count(), 0);
        assert_eq!(Combinations::new(3, 3).count(), 1);
    }
}
