//! Erasure codes compared with ISA-L and Jerasure.

use crate::Bench;
use std::hint::black_box;
use tessera_accel::erasure::{Code, Matrix};
use tessera_accel::xorcode::{Technique, XorCode};
use tessera_bench_accel::peers::{Isal, Jerasure};
use tessera_bench_accel::report::Row;
use tessera_bench_accel::roofs::{self, Roof};
use tessera_bench_accel::timing::noise;

const FRAGMENT_BYTES: usize = 1 << 20;

/// Computes fragments (second argument) from others (first argument).
type Fill<'a> = &'a mut dyn FnMut(&[&[u8]], &mut [&mut [u8]]);

/// Two codes that compute `outputs` fragments from the same sources.
struct Race<'a> {
    name: &'a str,
    reads: &'a [&'a [u8]],
    outputs: usize,
    goal: f64,
    compute: Option<Roof>,
}

impl Race<'_> {
    /// Times `ours`, `theirs` (if there is one) and memory in turns, prints the row, and returns the result of `ours`.
    fn run(self, bench: &Bench, ours: Fill<'_>, theirs: Option<&mut dyn FnMut()>) -> Vec<Vec<u8>> {
        let (k, len) = (self.reads.len(), self.reads[0].len());
        let (mut filled, mut copies) = (vec![vec![0u8; len]; self.outputs], vec![vec![0u8; len]; self.outputs]);
        let installed = theirs.is_some();
        let mut nobody = || ();
        let mut run_ours = || {
            let mut room: Vec<&mut [u8]> = filled.iter_mut().map(|p| p.as_mut_slice()).collect();
            ours(black_box(self.reads), &mut room);
        };
        let mut read = || self.reads.iter().for_each(|bytes| roofs::read(bytes));
        let mut copy = || {
            for (i, from) in self.reads.iter().enumerate() {
                roofs::copy(from, &mut copies[i % self.outputs]);
            }
            black_box(&mut copies);
        };
        let ways: &mut [&mut dyn FnMut()] = &mut [&mut run_ours, theirs.unwrap_or(&mut nobody), &mut read, &mut copy];
        let rates = bench.timing.compare(k * len, ways);
        bench.row(Row {
            name: self.name.to_owned(),
            ours: rates.of(0),
            peer: installed.then(|| rates.of(1)),
            ratio: installed.then(|| rates.ratio(0, 1)),
            roof: Roof::lower(roofs::coded(&rates, 2, 3, k, self.outputs), self.compute),
            goal: Some(self.goal),
        });
        filled
    }
}

fn fragments(count: usize, len: usize) -> Vec<Vec<u8>> {
    noise(count * len).chunks(len).map(|c| c.to_vec()).collect()
}

fn slices(fragments: &[Vec<u8>]) -> Vec<&[u8]> {
    fragments.iter().map(|f| f.as_slice()).collect()
}

/// Encode, and decode of m lost data fragments, of 1 MiB fragments.
pub fn reed_solomon(bench: &Bench) {
    let isal = Isal::load();
    for (k, m) in [(4, 2), (6, 3), (8, 3), (10, 2), (10, 4), (12, 4), (16, 2), (16, 4), (17, 3)] {
        rs_encode(bench, isal.as_ref(), k, m);
        rs_decode(bench, isal.as_ref(), k, m);
    }
}

/// A race against ISA-L's product with `rows`.
fn beside_isal(bench: &Bench, isal: Option<&Isal>, race: Race<'_>, rows: impl Fn(&Isal) -> Vec<u8>, ours: Fill<'_>) {
    let (name, k, len) = (race.name.to_owned(), race.reads.len(), race.reads[0].len());
    let mut filled = vec![vec![0u8; len]; race.outputs];
    let reads = race.reads;
    let peer = isal.map(|isal| (isal, isal.code(k, &rows(isal))));
    let mut theirs = || {
        if let Some((isal, tables)) = &peer {
            isal.encode(tables, black_box(reads), &mut filled);
        }
    };
    let expected = race.run(bench, ours, isal.is_some().then_some(&mut theirs));
    assert!(isal.is_none() || expected == filled, "{name}: bytes differ");
}

fn rs_encode(bench: &Bench, isal: Option<&Isal>, k: usize, m: usize) {
    let name = format!("rs encode {k}+{m} vs isa-l");
    if !bench.wants(&name) {
        return;
    }
    let code = Code::new(k, m, Matrix::Cauchy1).expect("valid code");
    let data = fragments(k, FRAGMENT_BYTES);
    let race = Race { name: &name, reads: &slices(&data), outputs: m, goal: 1.0, compute: bench.vectors_for_rs(m) };
    beside_isal(bench, isal, race, |isal| isal.parity_rows("cauchy1", k, m), &mut |data, room| {
        code.encode(data, FRAGMENT_BYTES, room).expect("valid call");
    });
}

fn rs_decode(bench: &Bench, isal: Option<&Isal>, k: usize, m: usize) {
    let name = format!("rs decode {m} of {k}+{m} vs isa-l");
    if !bench.wants(&name) {
        return;
    }
    let code = Code::new(k, m, Matrix::Cauchy1).expect("valid code");
    let (data, mut parity) = (fragments(k, FRAGMENT_BYTES), vec![vec![0u8; FRAGMENT_BYTES]; m]);
    let mut room: Vec<&mut [u8]> = parity.iter_mut().map(|p| p.as_mut_slice()).collect();
    code.encode(&slices(&data), FRAGMENT_BYTES, &mut room).expect("valid call");
    let lost: Vec<usize> = (0..m).collect();
    let sources: Vec<&[u8]> = data[m..].iter().chain(&parity).map(|f| f.as_slice()).collect();
    let race = Race { name: &name, reads: &sources, outputs: m, goal: 1.0, compute: bench.vectors_for_rs(m) };
    // ISA-L multiplies by rows that its caller inverts. It gets this crate's rows, found by decoding unit vectors.
    beside_isal(bench, isal, race, |_| decode_rows(&code, k, m), &mut |sources, room| {
        let present: Vec<(usize, &[u8])> = (m..).zip(sources.iter().copied()).collect();
        code.reconstruct(FRAGMENT_BYTES, &present, &lost, room).expect("valid call");
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
            xor_encode(bench, jerasure.as_ref(), &code);
            xor_decode(bench, jerasure.as_ref(), &code);
        }
    }
}

fn whole_stripes(code: &XorCode) -> usize {
    FRAGMENT_BYTES / code.stripe_bytes() * code.stripe_bytes()
}

fn xor_encode(bench: &Bench, jerasure: Option<&Jerasure>, code: &XorCode) {
    let (k, m, w, packet) = (code.k(), code.m(), code.w(), code.packet_bytes());
    let name = format!("{} encode {k}+{m} w={w} packet={packet}", code.technique());
    if !bench.wants(&name) {
        return;
    }
    let data = fragments(k, whole_stripes(code));
    let mut filled = vec![vec![0u8; whole_stripes(code)]; m];
    let peer = jerasure.map(|j| (j, j.code(code.technique().name(), k, m, w)));
    let mut theirs = || {
        if let Some((jerasure, code)) = &peer {
            jerasure.encode(code, &slices(black_box(&data)), &mut filled, packet);
        }
    };
    let race = Race { name: &name, reads: &slices(&data), outputs: m, goal: 1.5, compute: None };
    let mut ours = |data: &[&[u8]], room: &mut [&mut [u8]]| code.encode(data, room).expect("valid call");
    let expected = race.run(bench, &mut ours, jerasure.is_some().then_some(&mut theirs));
    assert!(jerasure.is_none() || expected == filled, "{name}: bytes differ");
}

fn xor_decode(bench: &Bench, jerasure: Option<&Jerasure>, code: &XorCode) {
    let (k, m, w, packet) = (code.k(), code.m(), code.w(), code.packet_bytes());
    let name = format!("{} decode {m} of {k}+{m} w={w} packet={packet}", code.technique());
    if !bench.wants(&name) {
        return;
    }
    let mut all = fragments(k + m, whole_stripes(code));
    let (data, parity) = all.split_at_mut(k);
    let mut room: Vec<&mut [u8]> = parity.iter_mut().map(|p| p.as_mut_slice()).collect();
    code.encode(&slices(data), &mut room).expect("valid call");
    let lost: Vec<usize> = (0..m).collect();
    let mut rebuilt = all.clone();
    let peer = jerasure.map(|j| (j, j.code(code.technique().name(), k, m, w)));
    let mut theirs = || {
        if let Some((jerasure, code)) = &peer {
            jerasure.decode(code, &lost, &mut rebuilt, packet);
        }
    };
    let race = Race { name: &name, reads: &slices(&all[m..]), outputs: m, goal: 1.5, compute: None };
    let mut ours = |sources: &[&[u8]], room: &mut [&mut [u8]]| {
        let present: Vec<(usize, &[u8])> = (m..).zip(sources.iter().copied()).collect();
        code.reconstruct(&present, &lost, room).expect("valid call");
    };
    let found = race.run(bench, &mut ours, jerasure.is_some().then_some(&mut theirs));
    assert!(found[..] == all[..m] && rebuilt == all, "{name}: bytes differ");
}

/// Encoding by Liberation compared with Reed–Solomon, k + 2; of 1 MiB fragments, and of fragments that stay in the
/// cache.
pub fn xor_beside_reed_solomon(bench: &Bench) {
    for (k, w, packet) in [(4, 7, 1024), (10, 11, 1024), (16, 17, 1024)] {
        for fragment in [32 << 10, FRAGMENT_BYTES] {
            let xor = XorCode::new(Technique::Liberation, k, 2, w, packet).expect("valid code");
            let len = fragment / xor.stripe_bytes() * xor.stripe_bytes();
            let name = format!("liberation {k}+2 w={w} of {} KiB vs our rs", fragment >> 10);
            if !bench.wants(&name) {
                continue;
            }
            let rs = Code::new(k, 2, Matrix::Cauchy1).expect("valid code");
            let data = fragments(k, len);
            let (mut p, mut q) = (vec![0u8; len], vec![0u8; len]);
            let mut by_rs = || rs.encode(&slices(black_box(&data)), len, &mut [&mut p, &mut q]).expect("valid call");
            let race = Race { name: &name, reads: &slices(&data), outputs: 2, goal: 1.0, compute: None };
            race.run(bench, &mut |data, room| xor.encode(data, room).expect("valid call"), Some(&mut by_rs));
        }
    }
}
