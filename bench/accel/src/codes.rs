//! Erasure codes beside ISA-L and Jerasure.

use crate::Bench;
use std::hint::black_box;
use tessera_accel::erasure::{Code, Matrix};
use tessera_accel::xorcode::{Technique, XorCode};
use tessera_bench_accel::peers::{Isal, Jerasure};
use tessera_bench_accel::roofs::Memory;
use tessera_bench_accel::timing::noise;

const FRAGMENT_BYTES: usize = 1 << 20;

/// Encode, and decode of m lost data fragments, of 1 MiB fragments.
pub fn reed_solomon(bench: &Bench) {
    let isal = Isal::load();
    for (k, m) in [(4, 2), (6, 3), (8, 3), (10, 2), (10, 4), (12, 4), (16, 2), (16, 4), (17, 3)] {
        encode(bench, isal.as_ref(), k, m);
        decode(bench, isal.as_ref(), k, m);
    }
}

fn fragments(count: usize) -> Vec<Vec<u8>> {
    noise(count * FRAGMENT_BYTES).chunks(FRAGMENT_BYTES).map(|c| c.to_vec()).collect()
}

fn encode(bench: &Bench, isal: Option<&Isal>, k: usize, m: usize) {
    let name = format!("rs encode {k}+{m} vs isa-l");
    if !bench.wants(&name) {
        return;
    }
    let code = Code::new(k, m, Matrix::Cauchy1).expect("valid code");
    let data = fragments(k);
    let data: Vec<&[u8]> = data.iter().map(|d| d.as_slice()).collect();
    let (mut ours, mut theirs) = (vec![vec![0u8; FRAGMENT_BYTES]; m], vec![vec![0u8; FRAGMENT_BYTES]; m]);
    let peer = isal.map(|isal| (isal, isal.code(k, &isal.parity_rows("cauchy1", k, m))));
    let mut run_ours = || {
        let mut room: Vec<&mut [u8]> = ours.iter_mut().map(|p| p.as_mut_slice()).collect();
        code.encode(black_box(&data), FRAGMENT_BYTES, &mut room).expect("valid call");
    };
    let mut run_theirs = || {
        if let Some((isal, tables)) = &peer {
            isal.encode(tables, black_box(&data), &mut theirs);
        }
    };
    let rates = bench.timing.compare(k * FRAGMENT_BYTES, &mut [&mut run_ours, &mut run_theirs]);
    assert!(isal.is_none() || ours == theirs, "{name}: bytes differ");
    let roof = Memory::measure(bench.timing, (k + m) * FRAGMENT_BYTES).code(k, m);
    bench.row(&name, rates[0], isal.map(|_| rates[1]), Some(roof));
}

fn decode(bench: &Bench, isal: Option<&Isal>, k: usize, m: usize) {
    let name = format!("rs decode {m} of {k}+{m} vs isa-l");
    if !bench.wants(&name) {
        return;
    }
    let code = Code::new(k, m, Matrix::Cauchy1).expect("valid code");
    let mut all = fragments(k);
    let mut parity = vec![vec![0u8; FRAGMENT_BYTES]; m];
    {
        let data: Vec<&[u8]> = all.iter().map(|d| d.as_slice()).collect();
        let mut room: Vec<&mut [u8]> = parity.iter_mut().map(|p| p.as_mut_slice()).collect();
        code.encode(&data, FRAGMENT_BYTES, &mut room).expect("valid call");
    }
    all.append(&mut parity);
    let wanted: Vec<usize> = (0..m).collect();
    let present: Vec<(usize, &[u8])> = (m..k + m).map(|i| (i, all[i].as_slice())).collect();
    let sources: Vec<&[u8]> = all[m..].iter().map(|f| f.as_slice()).collect();
    let (mut ours, mut theirs) = (vec![vec![0u8; FRAGMENT_BYTES]; m], vec![vec![0u8; FRAGMENT_BYTES]; m]);
    // ISA-L multiplies by rows that its caller inverts; ours, found by decoding unit vectors, serve it too.
    let peer = isal.map(|isal| (isal, isal.code(k, &decode_rows(&code, &wanted, &present))));
    let mut run_ours = || {
        let mut room: Vec<&mut [u8]> = ours.iter_mut().map(|p| p.as_mut_slice()).collect();
        code.reconstruct(FRAGMENT_BYTES, black_box(&present), &wanted, &mut room).expect("valid call");
    };
    let mut run_theirs = || {
        if let Some((isal, tables)) = &peer {
            isal.encode(tables, black_box(&sources), &mut theirs);
        }
    };
    let rates = bench.timing.compare(k * FRAGMENT_BYTES, &mut [&mut run_ours, &mut run_theirs]);
    assert!(isal.is_none() || ours == theirs, "{name}: bytes differ");
    let roof = Memory::measure(bench.timing, (k + m) * FRAGMENT_BYTES).code(k, m);
    bench.row(&name, rates[0], isal.map(|_| rates[1]), Some(roof));
}

/// Row by row, the coefficients by which the sources give the wanted fragments: what decoding does to a one in
/// source j and zeros elsewhere.
fn decode_rows(code: &Code, wanted: &[usize], present: &[(usize, &[u8])]) -> Vec<u8> {
    let mut rows = vec![0u8; wanted.len() * present.len()];
    for j in 0..present.len() {
        let unit: Vec<(usize, &[u8])> =
            present.iter().enumerate().map(|(i, (n, _))| (*n, if i == j { &[1u8][..] } else { &[0u8][..] })).collect();
        let mut out = vec![[0u8; 1]; wanted.len()];
        let mut room: Vec<&mut [u8]> = out.iter_mut().map(|o| o.as_mut_slice()).collect();
        code.reconstruct(1, &unit, wanted, &mut room).expect("valid call");
        out.iter().enumerate().for_each(|(r, x)| rows[r * present.len() + j] = x[0]);
    }
    rows
}

/// XOR codes beside Jerasure at the same w and packet size, and beside our own Reed–Solomon with as many parities.
/// Fragments are the whole stripes nearest below 1 MiB.
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
            xor_encode(bench, jerasure.as_ref(), technique, k, m, w, packet);
            xor_decode(bench, jerasure.as_ref(), technique, k, m, w, packet);
        }
    }
}

/// Encoding by Liberation beside Reed–Solomon, k + 2.
pub fn xor_beside_reed_solomon(bench: &Bench) {
    for (k, w, packet) in
        [(4, 5, 512), (4, 7, 512), (4, 7, 1024), (10, 11, 512), (10, 11, 1024), (16, 17, 512), (16, 17, 1024)]
    {
        let name = format!("liberation {k}+2 w={w} p={packet} vs our rs");
        if !bench.wants(&name) {
            continue;
        }
        let xor = XorCode::new(Technique::Liberation, k, 2, w, packet).expect("valid code");
        let rs = Code::new(k, 2, Matrix::Cauchy1).expect("valid code");
        let len = FRAGMENT_BYTES / xor.stripe_bytes() * xor.stripe_bytes();
        let data = fragments(k);
        let data: Vec<&[u8]> = data.iter().map(|d| &d[..len]).collect();
        let (mut p, mut q) = (vec![0u8; len], vec![0u8; len]);
        let (mut r, mut s) = (vec![0u8; len], vec![0u8; len]);
        let mut by_xor = || xor.encode(black_box(&data), &mut [&mut p, &mut q]).expect("valid call");
        let mut by_rs = || rs.encode(black_box(&data), len, &mut [&mut r, &mut s]).expect("valid call");
        let rates = bench.timing.compare(k * len, &mut [&mut by_xor, &mut by_rs]);
        bench.row(&name, rates[0], Some(rates[1]), None);
    }
}

fn xor_encode(
    bench: &Bench,
    jerasure: Option<&Jerasure>,
    technique: Technique,
    k: usize,
    m: usize,
    w: usize,
    packet: usize,
) {
    let name = format!("{technique} encode {k}+{m} w={w} packet={packet}");
    if !bench.wants(&name) {
        return;
    }
    let code = XorCode::new(technique, k, m, w, packet).expect("valid code");
    let len = FRAGMENT_BYTES / code.stripe_bytes() * code.stripe_bytes();
    let data = fragments(k);
    let data: Vec<&[u8]> = data.iter().map(|d| &d[..len]).collect();
    let (mut ours, mut theirs) = (vec![vec![0u8; len]; m], vec![vec![0u8; len]; m]);
    let peer = jerasure.map(|j| (j, j.code(technique.name(), k, m, w)));
    let mut run_ours = || {
        let mut room: Vec<&mut [u8]> = ours.iter_mut().map(|p| p.as_mut_slice()).collect();
        code.encode(black_box(&data), &mut room).expect("valid call");
    };
    let mut run_theirs = || {
        if let Some((jerasure, code)) = &peer {
            jerasure.encode(code, black_box(&data), &mut theirs, packet);
        }
    };
    let rates = bench.timing.compare(k * len, &mut [&mut run_ours, &mut run_theirs]);
    assert!(jerasure.is_none() || ours == theirs, "{name}: bytes differ");
    let roof = Memory::measure(bench.timing, (k + m) * len).code(k, m);
    bench.row(&name, rates[0], jerasure.map(|_| rates[1]), Some(roof));
}

fn xor_decode(
    bench: &Bench,
    jerasure: Option<&Jerasure>,
    technique: Technique,
    k: usize,
    m: usize,
    w: usize,
    packet: usize,
) {
    let name = format!("{technique} decode {m} of {k}+{m} w={w} packet={packet}");
    if !bench.wants(&name) {
        return;
    }
    let code = XorCode::new(technique, k, m, w, packet).expect("valid code");
    let len = FRAGMENT_BYTES / code.stripe_bytes() * code.stripe_bytes();
    let mut all: Vec<Vec<u8>> = fragments(k).iter().map(|f| f[..len].to_vec()).collect();
    let mut parity = vec![vec![0u8; len]; m];
    {
        let data: Vec<&[u8]> = all.iter().map(|d| d.as_slice()).collect();
        let mut room: Vec<&mut [u8]> = parity.iter_mut().map(|p| p.as_mut_slice()).collect();
        code.encode(&data, &mut room).expect("valid call");
    }
    all.append(&mut parity);
    let lost: Vec<usize> = (0..m).collect();
    let mut theirs = all.clone();
    let mut ours = vec![vec![0u8; len]; m];
    let present: Vec<(usize, &[u8])> = (m..k + m).map(|i| (i, all[i].as_slice())).collect();
    let peer = jerasure.map(|j| (j, j.code(technique.name(), k, m, w)));
    let mut run_ours = || {
        let mut room: Vec<&mut [u8]> = ours.iter_mut().map(|p| p.as_mut_slice()).collect();
        code.reconstruct(black_box(&present), &lost, &mut room).expect("valid call");
    };
    let mut run_theirs = || {
        if let Some((jerasure, code)) = &peer {
            jerasure.decode(code, &lost, &mut theirs, packet);
        }
    };
    let rates = bench.timing.compare(k * len, &mut [&mut run_ours, &mut run_theirs]);
    assert!(ours[..] == all[..m] && theirs == all, "{name}: bytes differ");
    let roof = Memory::measure(bench.timing, (k + m) * len).code(k, m);
    bench.row(&name, rates[0], jerasure.map(|_| rates[1]), Some(roof));
}
