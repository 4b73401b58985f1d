//! XOR-schedule codes on fragments.
#![allow(unsafe_code)]

use super::coding::{Coding, Layout};
use crate::erasure::{CoderError, add};
use crate::isa::Isa;
use crate::kernels::{Kernel, Launch, XorRows};
use crate::runtime::operation::{Addresses, Operation, Sizes};
use crate::runtime::{Buffer, NoMemory};
use crate::xorcode::{PacketSum, XorCode};
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
    layout: Layout,
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
    /// `None` if fragments of `fragment` bytes are not whole stripes.
    fn new(
        code: &Arc<XorCode>,
        work: XorWork,
        (present, wanted): (Vec<usize>, Vec<usize>),
        rows: Vec<Row>,
        (fragment, chunks): (usize, usize),
    ) -> Option<XorFragments> {
        let layout = Layout { sources: present.len(), targets: wanted.len(), fragment, chunks };
        let is_whole = fragment.is_multiple_of(code.stripe_bytes());
        is_whole.then(|| XorFragments { code: code.clone(), work, present, wanted, rows, layout })
    }

    /// Parity of `chunks` chunks with fragments of `fragment` bytes. `None` if these are not whole stripes.
    pub fn encode(code: &Arc<XorCode>, fragment: usize, chunks: usize) -> Option<XorFragments> {
        let (present, wanted): (Vec<usize>, Vec<usize>) = ((0..code.k()).collect(), code.parities().collect());
        let rows = rows(code, &present, &wanted)?;
        XorFragments::new(code, XorWork::Encode, (present, wanted), rows, (fragment, chunks))
    }

    /// The parity of `chunks` chunks after data fragment `index` of each has changed. Present: the old fragment, the
    /// new fragment, and the m old parity fragments, `len` bytes each: the same whole stripes of each. `None` if `len`
    /// is not a whole number of stripes, or there is no such fragment.
    pub fn update(code: &Arc<XorCode>, index: usize, len: usize, chunks: usize) -> Option<XorFragments> {
        let (m, w) = (code.m(), code.w());
        if index >= code.k() {
            return None;
        }
        let row = |row: usize| {
            let changed = (0..w).filter(|j| code.bit(row / w, row % w, index, *j));
            let mut list: Vec<u32> = changed.flat_map(|j| [j as u32, (w + j) as u32]).collect();
            list.push((2 * w + row) as u32);
            Row { word: row as u32, list }
        };
        let fragments = ((0..2 + m).collect(), code.parities().collect());
        let rows = (0..m * w).map(row).collect();
        XorFragments::new(code, XorWork::Update { index }, fragments, rows, (len, chunks))
    }

    /// For each parity fragment, its expected value plus its actual value. Present: all k + m fragments.
    pub(super) fn differences(code: &Arc<XorCode>, fragment: usize, chunks: usize) -> Option<XorFragments> {
        let (k, wanted) = (code.k(), code.parities().collect::<Vec<_>>());
        let present: Vec<usize> = (0..k + code.m()).collect();
        let data: Vec<usize> = (0..k).collect();
        let mut rows = rows(code, &data, &wanted)?;
        rows.iter_mut().for_each(|row| row.list.push((k * code.w()) as u32 + row.word));
        XorFragments::new(code, XorWork::Differences, (present, wanted), rows, (fragment, chunks))
    }

    /// Fragments `wanted` from the fragments `present`; the two sets are disjoint. `None` if they cannot be decoded.
    pub fn reconstruct(
        code: &Arc<XorCode>,
        present: &[usize],
        wanted: &[usize],
        fragment: usize,
        chunks: usize,
    ) -> Option<XorFragments> {
        let known = present.iter().chain(wanted).all(|f| *f < code.k() + code.m());
        let rising = |list: &[usize]| list.windows(2).all(|pair| pair[0] < pair[1]);
        if !known || !rising(present) || !rising(wanted) || wanted.iter().any(|f| present.contains(f)) {
            return None;
        }
        let rows = rows(code, present, wanted)?;
        let fragments = (present.to_vec(), wanted.to_vec());
        XorFragments::new(code, XorWork::Reconstruct, fragments, rows, (fragment, chunks))
    }

    /// One chunk on the CPU.
    fn chunk_on_cpu(&self, isa: Isa, sources: Vec<&[u8]>, targets: &mut [&mut [u8]]) -> Result<(), CoderError> {
        match self.work {
            XorWork::Encode => self.code.encode_on(isa, &sources, targets),
            XorWork::Reconstruct => {
                let present: Vec<(usize, &[u8])> = self.present.iter().copied().zip(sources).collect();
                self.code.reconstruct_on(isa, &present, &self.wanted, targets)
            }
            XorWork::Update { index } => {
                targets.iter_mut().zip(&sources[2..]).for_each(|(target, old)| target.copy_from_slice(old));
                self.code.update_on(isa, index, sources[0], sources[1], targets)
            }
            XorWork::Differences => {
                let (data, parity) = sources.split_at(self.code.k());
                self.code.encode_on(isa, data, targets)?;
                let both = targets.iter_mut().zip(parity);
                both.for_each(|(target, actual)| add(target, actual));
                Ok(())
            }
        }
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

impl Coding for XorFragments {
    fn layout(&self) -> Layout {
        self.layout
    }
}

/// Every wanted packet as a sum of present packets. `None` if they do not determine it.
fn rows(code: &XorCode, present: &[usize], wanted: &[usize]) -> Option<Vec<Row>> {
    let w = code.w();
    let number = |list: &[usize], packet: usize| {
        let slot = list.iter().position(|f| *f == packet / w);
        slot.map(|slot| (slot * w + packet % w) as u32)
    };
    let row = |sum: PacketSum| {
        let list = sum.present.ones().filter_map(|packet| number(present, packet)).collect();
        Some(Row { word: number(wanted, sum.target)?, list })
    };
    code.sums(present, wanted).ok()?.into_iter().map(row).collect()
}

// SAFETY: its kernels touch only its own memory.
unsafe impl Operation for XorFragments {
    fn primitive(&self) -> &'static str {
        match self.work {
            XorWork::Encode => "xor-encode",
            XorWork::Reconstruct => "xor-reconstruct",
            XorWork::Update { .. } => "xor-update",
            XorWork::Differences => "xor-verify",
        }
    }

    fn sizes(&self) -> Sizes {
        Sizes { input: self.layout.input_bytes(), output: self.layout.output_bytes(), ..Sizes::default() }
    }

    fn on_cpu(&self, isa: Isa, input: &[u8], output: &mut Buffer) -> Result<(), NoMemory> {
        for (sources, mut targets) in self.layout.chunks(input, output) {
            // Lengths, counts and numbers were checked when the operation was made.
            self.chunk_on_cpu(isa, sources, &mut targets).expect("a checked call");
        }
        Ok(())
    }

    fn tables(&self) -> Vec<u8> {
        self.table_words().concat().iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    fn launches(&self, at: &Addresses) -> Vec<Launch> {
        let (w, packet) = (self.code.w(), self.code.packet_bytes());
        let Layout { sources, targets, fragment, chunks } = self.layout;
        let stripes = fragment / self.code.stripe_bytes();
        let threads = chunks * stripes * (packet / PIECE_BYTES);
        let [firsts, words, _] = self.table_words();
        let words_at = at.tables + 4 * firsts.len() as u64;
        let argument = XorRows {
            sources: at.input,
            targets: at.result,
            firsts: at.tables,
            words: words_at,
            lists: words_at + 4 * words.len() as u64,
            source_chunk: (sources * fragment) as u64,
            target_chunk: (targets * fragment) as u64,
            fragment: fragment as u64,
            stripes: stripes as u64,
            packet: packet as u64,
            chunks: chunks as u32,
            w: w as u32,
        };
        Launch::new(Kernel::XorRows, threads, self.rows.len(), argument.to_bytes()).into_iter().collect()
    }
}
