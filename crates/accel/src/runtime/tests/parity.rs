//! Parity updates and checks by the kernels of every device, for both families of codes, against the CPU's reference
//! (P10). Cases are small because the emulated device is slow.

use super::kernels::Bench;
use crate::device::{UpdateJob, VerifyJob};
use crate::emulated::Emulated;
use crate::erasure::{Code, Matrix};
use crate::isa::Isa;
use crate::runtime::operations::{Coding, Multiply, Verify, XorFragments};
use crate::runtime::{Options, Runtime, Target};
use crate::testing::Blocks;
use crate::testing::test_bytes;
use crate::xorcode::{Technique, XorCode};
use crate::{Accelerated, Coder, Cpu, Device};
use rand::rngs::StdRng;
use rand::{Rng, RngExt, SeedableRng};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

const XOR_CODES: [(Technique, usize, usize, usize, usize); 5] = [
    (Technique::Liberation, 2, 2, 3, 8),
    (Technique::Liberation, 5, 2, 5, 24),
    (Technique::BlaumRoth, 4, 2, 4, 16),
    (Technique::CauchyOrig, 4, 3, 4, 8),
    (Technique::CauchyGood, 5, 3, 4, 40),
];

/// A code of either family.
enum Any {
    Rs(Arc<Code>),
    Xor(Arc<XorCode>),
}

impl Any {
    fn shape(&self) -> (usize, usize) {
        match self {
            Any::Rs(code) => (code.k(), code.m()),
            Any::Xor(code) => (code.k(), code.m()),
        }
    }

    /// The k data fragments, followed by their parity.
    fn encoded(&self, data: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
        let len = data[0].len();
        let mut parity = vec![vec![0; len]; self.shape().1];
        let slices: Vec<&[u8]> = data.iter().map(|d| d.as_slice()).collect();
        let mut targets: Vec<&mut [u8]> = parity.iter_mut().map(|p| p.as_mut_slice()).collect();
        match self {
            Any::Rs(code) => code.encode_on(Isa::REFERENCE, &slices, len, &mut targets).unwrap(),
            Any::Xor(code) => code.encode_on(Isa::REFERENCE, &slices, &mut targets).unwrap(),
        }
        data.into_iter().chain(parity).collect()
    }

    fn some_chunks(&self, rng: &mut StdRng, count: usize, len: usize) -> Vec<Vec<Vec<u8>>> {
        let k = self.shape().0;
        (0..count).map(|_| self.encoded((0..k).map(|_| test_bytes(rng.next_u64(), len)).collect())).collect()
    }
}

/// New parity of each chunk, from each device.
fn updated(bench: &mut Bench, code: &Any, index: usize, len: usize, sources: &[Vec<&[u8]>]) -> Vec<Vec<Vec<u8>>> {
    let m = code.shape().1;
    match code {
        Any::Rs(code) => {
            let operation = Multiply::update(code, index, len, sources.len()).unwrap();
            let output = bench.run(&operation, |input| {
                for (chunk, list) in sources.iter().enumerate() {
                    list.iter().enumerate().for_each(|(c, bytes)| operation.pack(chunk, c, bytes, input));
                }
            });
            let part = |chunk, row| output[operation.target_range(chunk, row)][..len].to_vec();
            (0..sources.len()).map(|chunk| (0..m).map(|row| part(chunk, row)).collect()).collect()
        }
        Any::Xor(code) => {
            let operation = XorFragments::update(code, index, len, sources.len()).unwrap();
            let output = bench.run(&operation, |input| {
                for (chunk, list) in sources.iter().enumerate() {
                    let places = list.iter().enumerate();
                    places.for_each(|(c, bytes)| operation.pack(chunk, c, bytes, input));
                }
            });
            let part = |chunk, row| output[operation.target_range(chunk, row)].to_vec();
            (0..sources.len()).map(|chunk| (0..m).map(|row| part(chunk, row)).collect()).collect()
        }
    }
}

/// An update leaves the parity of the new data, which is also what the CPU's own update leaves.
fn update(bench: &mut Bench, rng: &mut StdRng, code: &Any, index: usize, len: usize, count: usize) {
    let before = code.some_chunks(rng, count, len);
    let (k, m) = code.shape();
    let mut after = before.clone();
    after.iter_mut().for_each(|chunk| {
        chunk.truncate(k);
        chunk[index] = test_bytes(rng.next_u64(), len);
        *chunk = code.encoded(std::mem::take(chunk));
    });
    let sources: Vec<Vec<&[u8]>> = before
        .iter()
        .zip(&after)
        .map(|(old, new)| {
            let parity = old[k..].iter().map(|p| p.as_slice());
            [&old[index][..], &new[index][..]].into_iter().chain(parity).collect()
        })
        .collect();
    let found = updated(bench, code, index, len, &sources);
    for (chunk, found) in found.iter().enumerate() {
        assert_eq!(found[..], after[chunk][k..], "{k}+{m}, fragment {index} of {len} bytes");
        let mut by_cpu = before[chunk][k..].to_vec();
        let mut targets: Vec<&mut [u8]> = by_cpu.iter_mut().map(|p| p.as_mut_slice()).collect();
        let (old, new) = (&before[chunk][index], &after[chunk][index]);
        match code {
            Any::Rs(code) => code.update_on(Isa::REFERENCE, index, old, new, &mut targets).unwrap(),
            Any::Xor(code) => code.update_on(Isa::REFERENCE, index, old, new, &mut targets).unwrap(),
        }
        assert_eq!(*found, by_cpu);
    }
}

#[test]
fn parity_follows_a_changed_fragment_by_reed_solomon() {
    let (mut bench, mut rng) = (Bench::new(), StdRng::seed_from_u64(21));
    for (k, m) in [(1, 1), (4, 2), (6, 3), (10, 4), (17, 3), (3, 33)] {
        let code = Any::Rs(Arc::new(Code::new(k, m, Matrix::Cauchy1).unwrap()));
        (0..k).for_each(|index| update(&mut bench, &mut rng, &code, index, 17, 1));
        for len in [0, 1, 15, 16, 64, 1000] {
            update(&mut bench, &mut rng, &code, len % k, len, 2);
        }
    }
    for _ in 0..1_000 {
        let (k, m) = (rng.random_range(1..12), rng.random_range(1..7));
        let code = Any::Rs(Arc::new(Code::new(k, m, Matrix::Cauchy1).unwrap()));
        let (index, len, count) = (rng.random_range(0..k), rng.random_range(0..120), rng.random_range(1..3));
        update(&mut bench, &mut rng, &code, index, len, count);
    }
    assert!(Multiply::update(&Code::new(4, 2, Matrix::Cauchy1).unwrap(), 4, 16, 1).is_none());
}

#[test]
fn parity_follows_a_changed_fragment_by_xor_alone() {
    let (mut bench, mut rng) = (Bench::new(), StdRng::seed_from_u64(22));
    for (technique, k, m, w, packet) in XOR_CODES {
        let code = Arc::new(XorCode::new(technique, k, m, w, packet).unwrap());
        for stripes in [0, 1, 3] {
            let any = Any::Xor(code.clone());
            (0..k).for_each(|index| update(&mut bench, &mut rng, &any, index, stripes * w * packet, 2));
        }
        assert!(XorFragments::update(&code, k, w * packet, 1).is_none());
        assert!(XorFragments::update(&code, 0, w * packet + 8, 1).is_none());
    }
}

/// The parity fragments that each device finds wrong, by chunk.
fn verified(bench: &mut Bench, code: &Any, len: usize, chunks: &[Vec<Vec<u8>>]) -> Vec<Vec<usize>> {
    let operation = match code {
        Any::Rs(code) => Verify::new(&Coder::Rs(code.clone()), len, chunks.len()).unwrap(),
        Any::Xor(code) => Verify::new(&Coder::Xor(code.clone()), len, chunks.len()).unwrap(),
    };
    let output = bench.run(&operation, |input| {
        for (chunk, fragments) in chunks.iter().enumerate() {
            fragments.iter().enumerate().for_each(|(f, bytes)| operation.pack(chunk, f, bytes, input));
        }
    });
    (0..chunks.len()).map(|chunk| operation.read(&output, chunk)).collect()
}

/// Some chunks are damaged: one bit of a parity fragment or of a data fragment. In the second case all parities that
/// include the bit differ.
fn verify(bench: &mut Bench, rng: &mut StdRng, code: &Any, len: usize, count: usize) {
    let (k, m) = code.shape();
    let mut chunks = code.some_chunks(rng, count, len);
    assert!(verified(bench, code, len, &chunks).iter().all(|wrong| wrong.is_empty()), "{k}+{m} of {len} bytes");
    if len == 0 {
        return;
    }
    let mut expected = vec![Vec::new(); count];
    for (chunk, expected) in chunks.iter_mut().zip(&mut expected) {
        for row in 0..m {
            if rng.random() {
                let at = [0, len - 1, rng.random_range(0..len)][rng.random_range(0..3)];
                chunk[k + row][at] ^= 1 << rng.random_range(0..8);
                expected.push(row);
            }
        }
    }
    assert_eq!(verified(bench, code, len, &chunks), expected, "{k}+{m} of {len} bytes");
    let (chunk, data) = (rng.random_range(0..count), rng.random_range(0..k));
    chunks[chunk][data][rng.random_range(0..len)] ^= 1 << rng.random_range(0..8);
    let by_cpu: Vec<Vec<usize>> = chunks
        .iter()
        .map(|chunk| {
            let slices: Vec<&[u8]> = chunk.iter().map(|f| f.as_slice()).collect();
            let (data, parity) = slices.split_at(k);
            match code {
                Any::Rs(code) => code.verify_on(Isa::REFERENCE, data, len, parity).unwrap(),
                Any::Xor(code) => code.verify_on(Isa::REFERENCE, data, parity).unwrap(),
            }
        })
        .collect();
    assert_eq!(verified(bench, code, len, &chunks), by_cpu, "{k}+{m} of {len} bytes");
}

#[test]
fn parity_that_is_not_its_data_s_is_named() {
    let (mut bench, mut rng) = (Bench::new(), StdRng::seed_from_u64(23));
    for (k, m) in [(1, 1), (4, 2), (10, 4), (17, 3), (32, 5)] {
        let code = Any::Rs(Arc::new(Code::new(k, m, Matrix::Cauchy1).unwrap()));
        for len in [0, 1, 16, 17, 500] {
            verify(&mut bench, &mut rng, &code, len, 2);
        }
    }
    for _ in 0..500 {
        let (k, m) = (rng.random_range(1..12), rng.random_range(1..7));
        let code = Any::Rs(Arc::new(Code::new(k, m, Matrix::Cauchy1).unwrap()));
        let (len, count) = (rng.random_range(1..120), rng.random_range(1..4));
        verify(&mut bench, &mut rng, &code, len, count);
    }
    for (technique, k, m, w, packet) in XOR_CODES {
        let code = Arc::new(XorCode::new(technique, k, m, w, packet).unwrap());
        assert!(Verify::new(&Coder::Xor(code.clone()), w * packet + 8, 1).is_none());
        for stripes in [0, 1, 3] {
            (0..10).for_each(|_| verify(&mut bench, &mut rng, &Any::Xor(code.clone()), stripes * w * packet, 2));
        }
    }
}

/// Batches through the interface, each of several jobs with some wrong ones (P14), give what the CPU gives (P10).
/// Memory that runs out at any point updates nothing twice.
#[test]
fn batches_behind_the_interface_are_done_once_whatever_memory_there_is() {
    let code = Arc::new(Code::new(3, 2, Matrix::Cauchy1).unwrap());
    let chunks = Any::Rs(code.clone()).some_chunks(&mut StdRng::seed_from_u64(24), 9, 512);
    let new = test_bytes(25, 512);
    let update = |device: &dyn Device, wrong: bool| {
        let mut parity: Vec<Vec<Vec<u8>>> = chunks.iter().map(|chunk| chunk[3..].to_vec()).collect();
        let mut jobs: Vec<UpdateJob<'_>> = Vec::new();
        for (number, (chunk, parity)) in chunks.iter().zip(&mut parity).enumerate() {
            let (index, len) = (usize::from(number > 6), if number > 5 { 500 } else { 512 });
            let targets = parity.iter_mut().map(|p| &mut p[..len]).collect();
            jobs.push(UpdateJob { index, old: &chunk[index][..len], new: &new[..len], parity: targets });
        }
        if wrong {
            jobs[4].index = 3;
        }
        let ended = device.update(&Coder::Rs(code.clone()), &mut jobs);
        drop(jobs);
        (ended, parity)
    };
    let verify = |device: &dyn Device, parity: &[Vec<Vec<u8>>], wrong: bool| {
        let jobs = chunks.iter().zip(parity).enumerate().map(|(number, (chunk, parity))| VerifyJob {
            data: chunk[..3].iter().map(|d| &d[..if number == 2 { 17 } else { 512 }]).collect(),
            frag_len: if wrong && number == 4 { 511 } else { 512 },
            parity: parity.iter().map(|p| p.as_slice()).collect(),
        });
        device.verify(&Coder::Rs(code.clone()), &jobs.collect::<Vec<_>>())
    };
    let cpu = Cpu::reference();
    let (ended, parity) = update(&cpu, false);
    assert!(ended.is_ok() && parity[8][0][500..] == chunks[8][3][500..] && parity[8][0] != chunks[8][3]);
    let unchanged: Vec<Vec<Vec<u8>>> = chunks.iter().map(|chunk| chunk[3..].to_vec()).collect();
    let mut named = vec![Vec::new(); 9];
    named[2] = vec![0, 1];
    assert_eq!(verify(&cpu, &unchanged, false), Ok(named));
    for blocks in (0..30).chain([1000]) {
        let memory = Arc::new(Blocks(AtomicUsize::new(blocks)));
        let options = Options { cpu_threads: 1, memory, keep_bytes: 0, ..Options::default() };
        let runtime = Runtime::new(vec![Arc::new(Emulated::new(0))], options).unwrap();
        let device = Accelerated::new(runtime, Target::AnyDevice, Cpu::new()).with_job_bytes(2 * 4 * 512);
        for wrong in [false, true] {
            let done = update(&device, wrong);
            assert_eq!(done, update(&cpu, wrong), "{blocks} blocks, {wrong}");
            assert_eq!(done.0.is_err(), wrong);
            for parity in [&unchanged, &parity] {
                assert_eq!(verify(&device, parity, wrong), verify(&cpu, parity, wrong), "{blocks} blocks, {wrong}");
            }
        }
        let by_device = &device.usage_by_device()[0].1;
        let (updates, checks) = (by_device.of("update").jobs, by_device.of("verify").jobs);
        assert!(blocks < 1000 || updates >= 7 && checks >= 20, "{updates} updates, {checks} checks");
    }
}
