//! Erasure codes compared with ISA-L and Jerasure.

use crate::Bench;
use std::cell::RefCell;
use std::hint::black_box;
use std::ops::Range;
use tessera_accel::Isa;
use tessera_accel::erasure::{Code, Matrix};
use tessera_accel::xorcode::{Technique, XorCode};
use tessera_bench_accel::peers::{Isal, Jerasure};
use tessera_bench_accel::report::Row;
use tessera_bench_accel::roofs::{self, Roof};
use tessera_bench_accel::rotation::{Place, Rotation};
use tessera_bench_accel::timing::noise;

const FRAGMENT_BYTES: usize = 1 << 20;

/// All fragments of a chunk, in order, each allocated apart.
#[derive(Clone)]
struct Chunk {
    fragments: Vec<Vec<u8>>,
    /// The fragments that are computed; the others are read.
    outputs: Range<usize>,
}

impl Chunk {
    /// The fragments that are read, and those to compute.
    fn split(&mut self) -> (Vec<&[u8]>, &mut [Vec<u8>]) {
        let (first, rest) = self.fragments.split_at_mut(self.outputs.start);
        let (outputs, last) = rest.split_at_mut(self.outputs.len());
        (first.iter().chain(&*last).map(|f| f.as_slice()).collect(), outputs)
    }

    fn outputs(&self) -> &[Vec<u8>] {
        &self.fragments[self.outputs.clone()]
    }
}

/// Computes the outputs of a chunk.
type Way<'a> = &'a mut dyn FnMut(&mut Chunk);

/// Two codes that compute the same fragments of `chunk`, or of copies of it that take turns.
struct Race<'a> {
    name: &'a str,
    place: Place,
    chunk: Chunk,
    goal: f64,
    compute: Option<Roof>,
    /// Whether the codes are to give the same bytes.
    equal: bool,
}

impl Race<'_> {
    /// Times `ours`, `theirs` (if there is one) and memory in turns, and prints the row.
    fn run(self, bench: &Bench, ours: Way<'_>, theirs: Option<Way<'_>>) {
        let (m, len) = (self.chunk.outputs.len(), self.chunk.fragments[0].len());
        let k = self.chunk.fragments.len() - m;
        let chunks = Rotation::new(self.place, (k + m) * len, |_| RefCell::new(self.chunk.clone()));
        let installed = theirs.is_some();
        let mut nobody = |_: &mut Chunk| ();
        let theirs = theirs.unwrap_or(&mut nobody);
        let mut by_us = || ours(black_box(&mut chunks.turn().borrow_mut()));
        let mut by_them = || theirs(black_box(&mut chunks.turn().borrow_mut()));
        let mut read = || chunks.turn().borrow_mut().split().0.iter().for_each(|bytes| roofs::read(bytes));
        let mut copy = || {
            let mut chunk = chunks.turn().borrow_mut();
            let (reads, outputs) = chunk.split();
            reads.iter().enumerate().for_each(|(i, from)| roofs::copy(from, &mut outputs[i % m]));
            black_box(outputs);
        };
        let rates = bench.timing.compare(k * len, &mut [&mut by_us, &mut by_them, &mut read, &mut copy]);
        bench.row(Row {
            name: self.name.to_owned(),
            ours: rates.of(0),
            peer: installed.then(|| rates.of(1)),
            ratio: installed.then(|| rates.ratio(0, 1)),
            spread: installed.then(|| rates.ratio_quartiles(0, 1)),
            roof: Roof::lower(roofs::coded(&rates, 2, 3, k, m), self.compute),
            goal: Some(self.goal),
        });
        let mut results = [self.chunk.clone(), self.chunk];
        ours(&mut results[0]);
        theirs(&mut results[1]);
        assert!(
            !installed || !self.equal || results[0].outputs() == results[1].outputs(),
            "{}: bytes differ",
            self.name
        );
    }
}

fn fragments(count: usize, len: usize) -> Vec<Vec<u8>> {
    noise(count * len).chunks(len).map(|c| c.to_vec()).collect()
}

fn room(fragments: &mut [Vec<u8>]) -> Vec<&mut [u8]> {
    fragments.iter_mut().map(|f| f.as_mut_slice()).collect()
}

/// k fragments of noise, and m to compute.
fn to_encode(k: usize, m: usize, len: usize) -> Chunk {
    let mut fragments = fragments(k, len);
    fragments.resize(k + m, vec![0; len]);
    Chunk { fragments, outputs: k..k + m }
}

/// The chunk, encoded by `encode`, without its first m fragments.
fn to_decode(mut chunk: Chunk, mut encode: impl FnMut(&mut Chunk)) -> Chunk {
    encode(&mut chunk);
    chunk.outputs = 0..chunk.outputs.len();
    chunk.fragments[chunk.outputs.clone()].iter_mut().for_each(|lost| lost.fill(0));
    chunk
}

/// The fragments that are read when the first m are lost, with their numbers.
fn numbered<'a>(m: usize, reads: &[&'a [u8]]) -> Vec<(usize, &'a [u8])> {
    (m..).zip(reads.iter().copied()).collect()
}

/// Encode, and decode of m lost data fragments, of 1 MiB fragments.
pub fn reed_solomon(bench: &Bench) {
    let isal = Isal::load();
    for (k, m) in [(4, 2), (6, 3), (8, 3), (10, 2), (10, 4), (12, 4), (16, 2), (16, 4), (17, 3)] {
        for place in Place::BOTH {
            rs_encode(bench, isal.as_ref(), k, m, place);
            rs_decode(bench, isal.as_ref(), k, m, place);
        }
    }
}

/// Memory bounds both codes when the bytes come from there.
fn rs_goal(place: Place) -> f64 {
    if place == Place::Memory { 0.98 } else { 1.0 }
}

/// A race against ISA-L's product with `rows`.
fn beside_isal(bench: &Bench, isal: Option<&Isal>, race: Race<'_>, rows: impl Fn(&Isal) -> Vec<u8>, ours: Way<'_>) {
    let k = race.chunk.fragments.len() - race.chunk.outputs.len();
    let peer = isal.map(|isal| (isal, isal.code(k, &rows(isal))));
    let mut theirs = |chunk: &mut Chunk| {
        if let Some((isal, tables)) = &peer {
            let (reads, outputs) = chunk.split();
            isal.encode(tables, &reads, outputs);
        }
    };
    race.run(bench, ours, isal.is_some().then_some(&mut theirs));
}

fn rs_encode(bench: &Bench, isal: Option<&Isal>, k: usize, m: usize, place: Place) {
    let name = format!("rs encode {k}+{m} vs isa-l{}", place.suffix());
    if !bench.wants(&name) {
        return;
    }
    let code = Code::new(k, m, Matrix::Cauchy1).expect("valid code");
    let chunk = to_encode(k, m, FRAGMENT_BYTES);
    let race = Race { name: &name, place, chunk, goal: rs_goal(place), compute: bench.vectors_for_rs(m), equal: true };
    beside_isal(bench, isal, race, |isal| isal.parity_rows("cauchy1", k, m), &mut |chunk| encode_by(&code, chunk));
}

fn encode_by(code: &Code, chunk: &mut Chunk) {
    let (reads, outputs) = chunk.split();
    code.encode(&reads, outputs[0].len(), &mut room(outputs)).expect("valid call");
}

fn rs_decode(bench: &Bench, isal: Option<&Isal>, k: usize, m: usize, place: Place) {
    let name = format!("rs decode {m} of {k}+{m} vs isa-l{}", place.suffix());
    if !bench.wants(&name) {
        return;
    }
    let code = Code::new(k, m, Matrix::Cauchy1).expect("valid code");
    let chunk = to_decode(to_encode(k, m, FRAGMENT_BYTES), |chunk| encode_by(&code, chunk));
    let lost: Vec<usize> = (0..m).collect();
    let race = Race { name: &name, place, chunk, goal: rs_goal(place), compute: bench.vectors_for_rs(m), equal: true };
    // ISA-L multiplies by rows that its caller inverts. It gets this crate's rows, found by decoding unit vectors.
    beside_isal(bench, isal, race, |_| decode_rows(&code, k, m), &mut |chunk| {
        let (reads, outputs) = chunk.split();
        code.reconstruct(FRAGMENT_BYTES, &numbered(m, &reads), &lost, &mut room(outputs)).expect("valid call");
    });
}

/// Row by row, the coefficients by which fragments m..m + k give the first m: the result of decoding a one in source j
/// and zeros elsewhere.
fn decode_rows(code: &Code, k: usize, m: usize) -> Vec<u8> {
    let lost: Vec<usize> = (0..m).collect();
    let mut rows = vec![0u8; m * k];
    for j in 0..k {
        let unit: Vec<(usize, &[u8])> = (0..k).map(|i| (m + i, if i == j { &[1u8][..] } else { &[0u8][..] })).collect();
        let mut out = vec![[0u8; 1]; m];
        let mut room: Vec<&mut [u8]> = out.iter_mut().map(|o| o.as_mut_slice()).collect();
        code.reconstruct(1, &unit, &lost, &mut room).expect("valid call");
        out.iter().enumerate().for_each(|(r, x)| rows[r * k + j] = x[0]);
    }
    rows
}

/// XOR codes compared with Jerasure at the same w and packet size. Fragments are the most whole stripes below 1 MiB.
pub fn xor(bench: &Bench) {
    let jerasure = Jerasure::load();
    use Technique::*;
    for (technique, k, m, w) in [
        (Liberation, 4, 2, 7),
        (Liberation, 10, 2, 11),
        (Liberation, 16, 2, 17),
        (BlaumRoth, 10, 2, 10),
        (CauchyGood, 10, 4, 4),
        (CauchyGood, 16, 2, 5),
    ] {
        for packet in [1024, 4096] {
            let code = XorCode::new(technique, k, m, w, packet).expect("valid code");
            for place in Place::BOTH {
                xor_encode(bench, jerasure.as_ref(), &code, place);
                xor_decode(bench, jerasure.as_ref(), &code, place);
            }
        }
    }
}

fn whole_stripes(code: &XorCode) -> usize {
    FRAGMENT_BYTES / code.stripe_bytes() * code.stripe_bytes()
}

fn encode_by_xor(code: &XorCode, chunk: &mut Chunk) {
    let (reads, outputs) = chunk.split();
    code.encode(&reads, &mut room(outputs)).expect("valid call");
}

fn xor_encode(bench: &Bench, jerasure: Option<&Jerasure>, code: &XorCode, place: Place) {
    let (k, m, w, packet) = (code.k(), code.m(), code.w(), code.packet_bytes());
    let name = format!("{} encode {k}+{m} w={w} packet={packet}{}", code.technique(), place.suffix());
    if !bench.wants(&name) {
        return;
    }
    let peer = jerasure.map(|j| (j, j.code(code.technique().name(), k, m, w)));
    let mut theirs = |chunk: &mut Chunk| {
        if let Some((jerasure, code)) = &peer {
            let (reads, outputs) = chunk.split();
            jerasure.encode(code, &reads, outputs, packet);
        }
    };
    let chunk = to_encode(k, m, whole_stripes(code));
    let race = Race { name: &name, place, chunk, goal: 1.5, compute: None, equal: true };
    race.run(bench, &mut |chunk| encode_by_xor(code, chunk), jerasure.is_some().then_some(&mut theirs));
}

fn xor_decode(bench: &Bench, jerasure: Option<&Jerasure>, code: &XorCode, place: Place) {
    let (k, m, w, packet) = (code.k(), code.m(), code.w(), code.packet_bytes());
    let name = format!("{} decode {m} of {k}+{m} w={w} packet={packet}{}", code.technique(), place.suffix());
    if !bench.wants(&name) {
        return;
    }
    let chunk = to_decode(to_encode(k, m, whole_stripes(code)), |chunk| encode_by_xor(code, chunk));
    let lost: Vec<usize> = (0..m).collect();
    let peer = jerasure.map(|j| (j, j.code(code.technique().name(), k, m, w)));
    let mut theirs = |chunk: &mut Chunk| {
        if let Some((jerasure, code)) = &peer {
            jerasure.decode(code, &lost, &mut chunk.fragments, packet);
        }
    };
    let race = Race { name: &name, place, chunk, goal: 1.5, compute: None, equal: true };
    let mut ours = |chunk: &mut Chunk| {
        let (reads, outputs) = chunk.split();
        code.reconstruct(&numbered(m, &reads), &lost, &mut room(outputs)).expect("valid call");
    };
    race.run(bench, &mut ours, jerasure.is_some().then_some(&mut theirs));
}

/// Encoding by Liberation compared with Reed–Solomon, k + 2, both by the best set and by AVX2, which has no instruction for
/// products; of 1 MiB fragments, and of fragments that stay in the cache.
pub fn xor_beside_reed_solomon(bench: &Bench) {
    for (k, w, packet) in [(4, 7, 1024), (10, 11, 1024), (16, 17, 1024)] {
        for (fragment, place) in
            [(32 << 10, Place::Cache), (FRAGMENT_BYTES, Place::Cache), (FRAGMENT_BYTES, Place::Memory)]
        {
            let xor = XorCode::new(Technique::Liberation, k, 2, w, packet).expect("valid code");
            let len = fragment / xor.stripe_bytes() * xor.stripe_bytes();
            for isa in Isa::supported().into_iter().filter(|isa| *isa == Isa::best() || isa.name() == "avx2") {
                let (kib, suffix) = (fragment >> 10, place.suffix());
                let name = format!("liberation {k}+2 w={w} of {kib} KiB vs our rs, {}{suffix}", isa.name());
                if bench.wants(&name) {
                    beside_reed_solomon(bench, isa, &name, &xor, to_encode(k, 2, len), place);
                }
            }
        }
    }
}

fn beside_reed_solomon(bench: &Bench, isa: Isa, name: &str, xor: &XorCode, chunk: Chunk, place: Place) {
    let rs = Code::new(xor.k(), xor.m(), Matrix::Cauchy1).expect("valid code");
    let race = Race { name, place, chunk, goal: 1.0, compute: None, equal: false };
    let mut by_xor = |chunk: &mut Chunk| {
        let (reads, outputs) = chunk.split();
        xor.encode_on(isa, &reads, &mut room(outputs)).expect("valid call");
    };
    let mut by_rs = |chunk: &mut Chunk| {
        let (reads, outputs) = chunk.split();
        rs.encode_on(isa, &reads, outputs[0].len(), &mut room(outputs)).expect("valid call");
    };
    race.run(bench, &mut by_xor, Some(&mut by_rs));
}
