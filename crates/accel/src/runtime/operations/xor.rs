//! XOR-schedule codes on fragments.

use crate::isa::Isa;
use crate::kernels::{Kernel, Launch, XorRows};
use crate::runtime::operation::{Operation, Places};
use crate::runtime::{Buffer, NoMemory};
use crate::xorcode::{Program, Word, XorCallError, XorCode};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

const PIECE_BYTES: usize = 8;

/// Computes fragments of an XOR code from other fragments, for a batch of chunks.
///
/// A device computes all packets at once, so it computes each from present packets alone. The CPU's schedules reuse
/// results for later packets and give the same bytes with fewer XORs.
///
/// Input: for each chunk its present fragments in rising order. Output: for each chunk the wanted ones, likewise.
#[derive(Debug, Clone)]
pub struct XorFragments {
    code: Arc<XorCode>,
    work: XorWork,
    present: Vec<usize>,
    wanted: Vec<usize>,
    rows: Vec<Row>,
    fragment: usize,
    chunks: usize,
}

/// What is computed, and from which fragments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum XorWork {
    /// Parity from data.
    Encode,
    /// Fragments from others.
    Reconstruct,
    /// New parity from the old data fragment, the new data fragment and the old parity.
    Update { index: usize },
    /// Expected parity plus actual parity, from all fragments.
    Differences,
}

/// A wanted packet and the present packets that sum to it, numbered slot · w + packet.
#[derive(Debug, Clone)]
struct Row {
    word: u32,
    list: Vec<u32>,
}

impl XorFragments {
    /// Parity of `chunks` chunks with fragments of `fragment` bytes. `None` if these are not whole stripes.
    pub fn encode(code: &Arc<XorCode>, fragment: usize, chunks: usize) -> Option<XorFragments> {
        let (k, m) = (code.k(), code.m());
        let (present, wanted): (Vec<usize>, Vec<usize>) = ((0..k).collect(), (k..k + m).collect());
        let rows = direct_rows(&code.encode_direct(), code.w(), &present, &wanted);
        XorFragments { code: code.clone(), work: XorWork::Encode, present, wanted, rows, fragment, chunks }.checked()
    }

    /// The parity of `chunks` chunks after data fragment `index` of each has changed. Present: the old fragment, the
    /// new fragment, and the m old parity fragments, `len` bytes each: the same whole stripes of each. `None` if `len`
    /// is not a whole number of stripes, or there is no such fragment.
    pub fn update(code: &Arc<XorCode>, index: usize, len: usize, chunks: usize) -> Option<XorFragments> {
        let (k, m, w) = (code.k(), code.m(), code.w());
        let rows = (0..m * w).map(|row| {
            let changed = (0..w).filter(|j| code.bit(row / w, row % w, index, *j));
            let mut list: Vec<u32> = changed.flat_map(|j| [j as u32, (w + j) as u32]).collect();
            list.push((2 * w + row) as u32);
            Row { word: row as u32, list }
        });
        let (rows, present, wanted) = (rows.collect(), (0..2 + m).collect(), (k..k + m).collect());
        let work = XorWork::Update { index };
        let made = XorFragments { code: code.clone(), work, present, wanted, rows, fragment: len, chunks };
        made.checked().filter(|_| index < k)
    }

    /// For each parity fragment, its expected value plus its actual value. Present: all k + m fragments.
    pub(super) fn differences(code: &Arc<XorCode>, fragment: usize, chunks: usize) -> Option<XorFragments> {
        let (k, m) = (code.k(), code.m());
        let (present, wanted): (Vec<usize>, Vec<usize>) = ((0..k + m).collect(), (k..k + m).collect());
        let mut rows = direct_rows(&code.encode_direct(), code.w(), &present, &wanted);
        rows.iter_mut().for_each(|row| row.list.push((k * code.w()) as u32 + row.word));
        let work = XorWork::Differences;
        XorFragments { code: code.clone(), work, present, wanted, rows, fragment, chunks }.checked()
    }

    /// Fragments `wanted` from the fragments `present`; the two sets are disjoint. `None` if they cannot be decoded.
    pub fn reconstruct(
        code: &Arc<XorCode>,
        present: &[usize],
        wanted: &[usize],
        fragment: usize,
        chunks: usize,
    ) -> Option<XorFragments> {
        let total = code.k() + code.m();
        let rising = |list: &[usize]| list.windows(2).all(|pair| pair[0] < pair[1]);
        let known = present.iter().chain(wanted).all(|f| *f < total);
        if !known || !rising(present) || !rising(wanted) || wanted.iter().any(|f| present.contains(f)) {
            return None;
        }
        let program = code.decode_program(present, wanted).ok()?;
        let rows = direct_rows(&program, code.w(), present, wanted);
        let (work, present, wanted) = (XorWork::Reconstruct, present.to_vec(), wanted.to_vec());
        XorFragments { code: code.clone(), work, present, wanted, rows, fragment, chunks }.checked()
    }

    /// `self` if its fragments are whole stripes.
    fn checked(self) -> Option<XorFragments> {
        self.fragment.is_multiple_of(self.code.stripe_bytes()).then_some(self)
    }

    /// Bytes in a fragment.
    pub(super) fn fragment_bytes(&self) -> usize {
        self.fragment
    }

    /// One chunk on the CPU.
    fn chunk_on_cpu(&self, isa: Isa, sources: Vec<&[u8]>, targets: &mut [&mut [u8]]) -> Result<(), XorCallError> {
        match self.work {
            XorWork::Encode => self.code.encode_on(isa, &sources, targets),
            XorWork::Reconstruct => {
                let present: Vec<(usize, &[u8])> = self.present.iter().copied().zip(sources).collect();
                self.code.reconstruct_on(isa, &present, &self.wanted, targets)
            }
            XorWork::Update { index } => {
                targets.iter_mut().zip(&sources[2..]).for_each(|(target, old)| target.copy_from_slice(old));
                self.code.update(index, sources[0], sources[1], targets)
            }
            XorWork::Differences => {
                let (data, parity) = sources.split_at(self.code.k());
                self.code.encode_on(isa, data, targets)?;
                let both = targets.iter_mut().zip(parity);
                both.for_each(|(target, is)| target.iter_mut().zip(*is).for_each(|(sum, x)| *sum ^= x));
                Ok(())
            }
        }
    }

    /// Range in the input for present fragment number `slot` (its place in the list) of a chunk.
    pub fn source_range(&self, chunk: usize, slot: usize) -> Range<usize> {
        let start = (chunk * self.present.len() + slot) * self.fragment;
        start..start + self.fragment
    }

    /// Copies a present fragment to its place in the input; a shorter one counts as zeros beyond its end.
    pub fn pack(&self, chunk: usize, slot: usize, bytes: &[u8], input: &mut [u8]) {
        let room = &mut input[self.source_range(chunk, slot)];
        room[..bytes.len()].copy_from_slice(bytes);
        room[bytes.len()..].fill(0);
    }

    /// Range of wanted fragment number `slot` of a chunk in the output.
    pub fn target_range(&self, chunk: usize, slot: usize) -> Range<usize> {
        let start = (chunk * self.wanted.len() + slot) * self.fragment;
        start..start + self.fragment
    }

    /// Tables: where each row's list begins (and the last ends), each row's word, the lists.
    fn table_words(&self) -> [Vec<u32>; 3] {
        let mut firsts = vec![0u32];
        let mut lists = Vec::new();
        for row in &self.rows {
            lists.extend(&row.list);
            firsts.push(lists.len() as u32);
        }
        assert_eq!(firsts.len(), self.rows.len() + 1, "where each list begins, and the last ends");
        [firsts, self.rows.iter().map(|r| r.word).collect(), lists]
    }
}

/// Every wanted packet as a sum of present packets: a source that an earlier step computed is replaced by its sum.
fn direct_rows(program: &Program, w: usize, present: &[usize], wanted: &[usize]) -> Vec<Row> {
    let slot_of = |list: &[usize], word: Word| {
        let slot = list.iter().position(|f| *f == usize::from(word.fragment));
        slot.map(|s| (s * w + usize::from(word.packet)) as u32)
    };
    let mut sums: BTreeMap<Word, Vec<u32>> = BTreeMap::new();
    for step in program.steps() {
        let mut sum = Vec::new();
        for source in &step.sources {
            let terms = sums.get(source).cloned().unwrap_or_else(|| slot_of(present, *source).into_iter().collect());
            terms.into_iter().for_each(|term| toggle(&mut sum, term));
        }
        sums.insert(step.target, sum);
    }
    let rows = sums.into_iter().filter_map(|(word, mut list)| {
        list.sort_unstable();
        slot_of(wanted, word).map(|word| Row { word, list })
    });
    rows.collect()
}

/// A term that occurs twice cancels out.
fn toggle(sum: &mut Vec<u32>, term: u32) {
    match sum.iter().position(|t| *t == term) {
        Some(at) => drop(sum.swap_remove(at)),
        None => sum.push(term),
    }
}

impl Operation for XorFragments {
    fn primitive(&self) -> &'static str {
        match self.work {
            XorWork::Encode => "xor-encode",
            XorWork::Reconstruct => "xor-reconstruct",
            XorWork::Update { .. } => "xor-update",
            XorWork::Differences => "xor-verify",
        }
    }

    fn input_bytes(&self) -> usize {
        self.chunks * self.present.len() * self.fragment
    }

    fn output_bytes(&self) -> usize {
        self.chunks * self.wanted.len() * self.fragment
    }

    fn on_cpu(&self, isa: Isa, input: &[u8], output: &mut Buffer) -> Result<(), NoMemory> {
        if self.fragment == 0 {
            return Ok(());
        }
        assert!(input.len() == self.input_bytes() && output.len() == self.output_bytes(), "lengths of {:?}", self.work);
        for chunk in 0..self.chunks {
            let sources: Vec<&[u8]> = (0..self.present.len()).map(|s| &input[self.source_range(chunk, s)]).collect();
            let first = self.target_range(chunk, 0).start;
            let room = &mut output[first..first + self.wanted.len() * self.fragment];
            let mut targets: Vec<&mut [u8]> = room.chunks_mut(self.fragment).collect();
            // Lengths, counts and numbers were checked when the operation was made.
            self.chunk_on_cpu(isa, sources, &mut targets).expect("a checked call");
        }
        Ok(())
    }

    fn tables(&self) -> Vec<u8> {
        self.table_words().concat().iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    fn launches(&self, at: &Places) -> Vec<Launch> {
        let (w, packet) = (self.code.w(), self.code.packet_bytes());
        let stripes = self.fragment / self.code.stripe_bytes();
        let threads = self.chunks * stripes * (packet / PIECE_BYTES);
        let [firsts, words, _] = self.table_words();
        let words_at = at.tables + 4 * firsts.len() as u64;
        let argument = XorRows {
            sources: at.input,
            targets: at.result,
            firsts: at.tables,
            words: words_at,
            lists: words_at + 4 * words.len() as u64,
            source_chunk: (self.present.len() * self.fragment) as u64,
            target_chunk: (self.wanted.len() * self.fragment) as u64,
            fragment: self.fragment as u64,
            stripes: stripes as u64,
            packet: packet as u64,
            chunks: self.chunks as u32,
            w: w as u32,
        };
        Launch::new(Kernel::XorRows, threads, self.rows.len(), argument.to_bytes()).into_iter().collect()
    }
}
