//! Every kernel, on an emulated device and on every GPU present, against the CPU's reference (P10): edges first, then
//! random cases. The emulated device is slow, so most cases are small.

use crate::boundaries::{Candidate, Params};
use crate::emulated::Emulated;
use crate::erasure::{Code, Matrix};
use crate::hash::{self, GROUP_BYTES};
use crate::isa::Isa;
use crate::runtime::flight::{Flight, Input};
use crate::runtime::operations::{Coding, FindCandidates, HashBatch, Multiply, XorFragments};
use crate::runtime::{Backend, Buffer, Operation, Pageable, Pool, Stream};
use crate::testing::test_bytes;
use crate::xorcode::{Technique, XorCode};
use rand::rngs::StdRng;
use rand::{Rng, RngExt, SeedableRng};
use std::sync::Arc;

/// A stream of an emulated device and of every GPU present.
pub(super) struct Bench {
    pool: Pool,
    streams: Vec<Box<dyn Stream>>,
}

impl Bench {
    pub(super) fn new() -> Bench {
        let mut streams = vec![Emulated::new(0).stream().unwrap()];
        #[cfg(feature = "cuda")]
        match crate::cuda::devices() {
            Ok(devices) => streams.extend(devices.iter().map(|d| d.stream().unwrap())),
            Err(why) => println!("skipped on GPUs: {why}"),
        }
        Bench { pool: Pool::new(Arc::new(Pageable), 1 << 26), streams }
    }

    /// What each device leaves in the output.
    fn outputs(&mut self, operation: &(impl Operation + Clone + 'static), fill: impl Fn(&mut [u8])) -> Vec<Buffer> {
        let mut outputs = Vec::new();
        for (index, stream) in self.streams.iter_mut().enumerate() {
            let mut input = self.pool.take(operation.input_bytes()).unwrap();
            fill(&mut input);
            let mut flight = Flight::start(stream.as_mut(), &self.pool, operation, Input::Host(input)).unwrap();
            if index == 0 {
                flight.output.fill(0x77); // An emulated stream has done nothing yet, so all of this must go.
            }
            while !stream.is_done().unwrap() {
                std::thread::yield_now();
            }
            outputs.push(flight.output);
        }
        outputs
    }

    /// The output, which must be the same on every device and in the reference.
    pub(super) fn run(&mut self, operation: &(impl Operation + Clone + 'static), fill: impl Fn(&mut [u8])) -> Buffer {
        let mut input = self.pool.take(operation.input_bytes()).unwrap();
        fill(&mut input);
        let mut expected = self.pool.take(operation.output_bytes()).unwrap();
        operation.on_cpu(Isa::REFERENCE, &input, &mut expected).unwrap();
        let len = meaningful_bytes(operation, &expected);
        for mut output in self.outputs(operation, fill) {
            if operation.finish(&mut output) {
                assert!(output[..len] == expected[..len], "{operation:?}");
            } else {
                // Only results that do not fit are left to the CPU, whose output then grows.
                assert!(expected.len() > operation.output_bytes(), "{operation:?}");
            }
        }
        expected
    }
}

/// Length of the entries; the bytes after the last candidate are arbitrary.
fn meaningful_bytes(operation: &dyn Operation, output: &[u8]) -> usize {
    if operation.primitive() != "candidates" {
        return output.len();
    }
    4 + 4 * u32::from_ne_bytes([output[0], output[1], output[2], output[3]]) as usize
}

fn hash(bench: &mut Bench, buffers: &[&[u8]]) {
    let lens: Vec<usize> = buffers.iter().map(|b| b.len()).collect();
    for operation in [HashBatch::names(&lens).unwrap(), HashBatch::trees(&lens).unwrap()] {
        let output = bench.run(&operation, |input| {
            buffers.iter().enumerate().for_each(|(i, bytes)| operation.pack(i, bytes, input));
        });
        let trees = buffers.iter().map(|b| crate::hash::tree(b));
        if operation.primitive() == "tree" {
            assert_eq!(operation.read_trees(&output), trees.collect::<Vec<_>>());
        } else {
            assert_eq!(operation.read_names(&output), trees.map(|t| t.root).collect::<Vec<_>>());
        }
    }
}

/// A file too long for one job is hashed part by part: parts anywhere in it give the groups of the whole.
#[test]
fn group_values_of_parts_are_those_of_the_whole() {
    let mut bench = Bench::new();
    let whole = test_bytes(5, 7 * GROUP_BYTES + 1500);
    let tree = hash::tree(&whole);
    for (first, len) in [(0, 2 * GROUP_BYTES), (2, 1025), (3, 4 * GROUP_BYTES + 1500), (7, 1500), (7, 1024), (0, 1025)]
    {
        let bytes = &whole[first * GROUP_BYTES..][..len];
        let part = HashBatch::part(first as u64, len).unwrap();
        let output = bench.run(&part, |input| part.pack(0, bytes, input));
        assert_eq!(part.read_part(&output), hash::group_values(first as u64, bytes), "{first} {len}");
    }
    // At the largest file size: the numbers that wrap around come out right.
    let far = (1 << 27) - 64;
    let part = HashBatch::part(far, 3000).unwrap();
    let output = bench.run(&part, |input| part.pack(0, &whole[..3000], input));
    assert_eq!(part.read_part(&output), hash::group_values(far, &whole[..3000]));
    // Parts of two groups each, the last one smaller, joined.
    let parts: Vec<_> = whole
        .chunks(2 * GROUP_BYTES)
        .zip(0..)
        .map(|(b, i)| hash::join(&hash::group_values(2 * i, b)).unwrap())
        .collect();
    assert_eq!(hash::join_to_name(&parts), Some(tree.root));
    assert_eq!((hash::join(&[]), hash::join_to_name(&parts[..1])), (None, None));
    for (first, len) in [(0, 0), (0, 1024), (9, 0), (u64::MAX, 5), (1 << 27, 5)] {
        assert!(HashBatch::part(first, len).is_none(), "{first} {len}");
    }
}

#[test]
fn blake3_of_every_length_around_an_edge() {
    let mut bench = Bench::new();
    let bytes = test_bytes(1, 1_200_000);
    let mut lens = vec![0, 1, 3, 4, 15, 16, 17, 63, 64, 65, 127, 1000];
    for edge in [1024, 2048, 3072, 5 * 1024, 16 * 1024, 17 * 1024, 32 * 1024, 33 * 1024, 130 * 1024] {
        lens.extend([edge - 1, edge, edge + 1]);
    }
    // More groups than one warp joins: three levels.
    lens.extend([1024 * 1024, 1024 * 1024 + 1, 1_200_000]);
    lens.iter().for_each(|len| hash(&mut bench, &[&bytes[..*len]]));
    let all: Vec<&[u8]> = lens.iter().map(|len| &bytes[..*len]).collect();
    hash(&mut bench, &all);
    hash(&mut bench, &[]);
}

#[test]
fn blake3_of_random_batches() {
    let (mut bench, mut rng) = (Bench::new(), StdRng::seed_from_u64(2));
    let bytes = test_bytes(3, 40_000);
    for _ in 0..1_000 {
        let buffers: Vec<&[u8]> = (0..rng.random_range(0..6))
            .map(|_| {
                let most = if rng.random_ratio(1, 50) { 40_000 } else { 600 };
                let len = rng.random_range(0..most);
                let at = rng.random_range(0..=bytes.len() - len);
                &bytes[at..at + len]
            })
            .collect();
        hash(&mut bench, &buffers);
    }
}

fn multiply(bench: &mut Bench, operation: &Multiply, columns: usize, stripes: usize, len: usize, seed: u64) {
    let bytes = test_bytes(seed, columns * stripes * len);
    bench.run(operation, |input| {
        for stripe in 0..stripes {
            for column in 0..columns {
                let at = (stripe * columns + column) * len;
                operation.pack(stripe, column, &bytes[at..at + len], input);
            }
        }
    });
}

#[test]
fn parity_of_every_shape() {
    let mut bench = Bench::new();
    for (k, m) in [(1, 1), (2, 3), (4, 2), (5, 4), (10, 4), (12, 5), (17, 3), (31, 2), (32, 2), (33, 2), (70, 9)] {
        let code = Code::new(k, m, Matrix::Cauchy1).unwrap();
        for (len, stripes) in [(0, 1), (1, 1), (16, 3), (17, 2), (64, 1), (4096, 1), (4100, 2), (1000, 0)] {
            multiply(&mut bench, &Multiply::encode(&code, len, stripes), k, stripes, len, len as u64);
        }
    }
}

/// P1 on the device: for each code of the list every set of 1 to m lost fragments is rebuilt. Fragments are tiny: the
/// test checks that each pattern's rows reach the kernel correctly.
#[test]
fn every_loss_of_up_to_m_fragments_is_rebuilt() {
    let mut bench = Bench::new();
    let mut patterns = 0;
    for (k, m) in [(4, 2), (6, 3), (8, 3), (10, 4), (12, 4), (16, 4), (17, 3)] {
        let code = Code::new(k, m, Matrix::Cauchy1).unwrap();
        let fragments: Vec<Vec<u8>> = {
            let data: Vec<Vec<u8>> = (0..k).map(|i| test_bytes(i as u64, 16)).collect();
            let slices: Vec<&[u8]> = data.iter().map(|d| d.as_slice()).collect();
            let mut parity = vec![vec![0; 16]; m];
            let mut room: Vec<&mut [u8]> = parity.iter_mut().map(|p| p.as_mut_slice()).collect();
            code.encode(&slices, 16, &mut room).unwrap();
            data.into_iter().chain(parity).collect()
        };
        let mut rebuild = |lost: &[usize]| {
            let sources = some_survivors(k, m, lost, patterns);
            patterns += 1;
            let operation = Multiply::reconstruct(&code, &sources, lost, 16, 1).unwrap();
            let fill = |input: &mut [u8]| {
                sources.iter().enumerate().for_each(|(c, i)| operation.pack(0, c, &fragments[*i], input));
            };
            for output in bench.outputs(&operation, fill) {
                for (row, index) in lost.iter().enumerate() {
                    assert!(output[operation.target_range(0, row)] == fragments[*index], "{k}+{m} lost {lost:?}");
                }
            }
        };
        (1..=m).for_each(|lost| for_each_loss(k + m, lost, &mut rebuild));
    }
    // The sums of the binomials, so that a shortened list fails the test.
    assert_eq!(patterns, 21 + 129 + 231 + 1470 + 2516 + 6195 + 1350);
}

/// k of the surviving fragments; the choice varies from call to call.
fn some_survivors(k: usize, m: usize, lost: &[usize], call: usize) -> Vec<usize> {
    let mut left: Vec<usize> = (0..k + m).filter(|i| !lost.contains(i)).collect();
    let first = call % left.len();
    left.rotate_left(first);
    left.truncate(k);
    left.sort_unstable();
    left
}

fn for_each_loss(total: usize, lost: usize, visit: &mut dyn FnMut(&[usize])) {
    let mut chosen: Vec<usize> = (0..lost).collect();
    loop {
        visit(&chosen);
        let Some(at) = (0..lost).rev().find(|i| chosen[*i] < total - lost + i) else { return };
        chosen[at] += 1;
        (at + 1..lost).for_each(|i| chosen[i] = chosen[i - 1] + 1);
    }
}

#[test]
fn random_products() {
    let (mut bench, mut rng) = (Bench::new(), StdRng::seed_from_u64(5));
    for _ in 0..4_000 {
        let (k, m) = (rng.random_range(1..12), rng.random_range(1..7));
        let code = Code::new(k, m, Matrix::Cauchy1).unwrap();
        let (len, stripes) = (rng.random_range(0..200), rng.random_range(1..3));
        let operation = if rng.random() {
            Multiply::encode(&code, len, stripes)
        } else {
            let mut order: Vec<usize> = (0..k + m).collect();
            for i in 0..k {
                order.swap(i, rng.random_range(i..k + m));
            }
            let (sources, lost) = order.split_at_mut(k);
            sources.sort_unstable();
            Multiply::reconstruct(&code, sources, &lost[..rng.random_range(1..=m)], len, stripes).unwrap()
        };
        multiply(&mut bench, &operation, k, stripes, len, rng.random());
    }
}

/// XOR codes of each technique: their parity, and every loss of up to m fragments.
#[test]
fn xor_codes_of_each_technique_and_every_loss() {
    let mut bench = Bench::new();
    for (technique, k, m, w, packet) in [
        (Technique::Liberation, 2, 2, 3, 8),
        (Technique::Liberation, 5, 2, 5, 24),
        (Technique::Liberation, 7, 2, 7, 8),
        (Technique::BlaumRoth, 4, 2, 4, 16),
        (Technique::BlaumRoth, 6, 2, 6, 8),
        (Technique::CauchyOrig, 4, 3, 4, 8),
        (Technique::CauchyOrig, 6, 3, 8, 8),
        (Technique::CauchyGood, 5, 3, 4, 40),
    ] {
        let code = Arc::new(XorCode::new(technique, k, m, w, packet).unwrap());
        for stripes in [0, 1, 3] {
            let operation = XorFragments::encode(&code, stripes * w * packet, 2).unwrap();
            let bytes = test_bytes(stripes as u64, operation.input_bytes());
            bench.run(&operation, |input| input.copy_from_slice(&bytes));
        }
        for lost in 1..=m {
            for_each_loss(k + m, lost, &mut |lost| {
                let present: Vec<usize> = (0..k + m).filter(|i| !lost.contains(i)).collect();
                let operation = XorFragments::reconstruct(&code, &present, lost, w * packet, 1).unwrap();
                let bytes = consistent(&code, w * packet, &present);
                let expected = bench.run(&operation, |input| input.copy_from_slice(&bytes));
                assert_eq!(expected[..], consistent(&code, w * packet, lost)[..], "{technique} {k}+{m} lost {lost:?}");
            });
        }
        assert!(XorFragments::encode(&code, w * packet + 8, 1).is_none());
    }
}

/// The fragments `numbers` of some chunk, one after the other.
fn consistent(code: &XorCode, len: usize, numbers: &[usize]) -> Vec<u8> {
    let data: Vec<Vec<u8>> = (0..code.k()).map(|i| test_bytes(i as u64, len)).collect();
    let slices: Vec<&[u8]> = data.iter().map(|d| d.as_slice()).collect();
    let mut parity = vec![vec![0; len]; code.m()];
    let mut room: Vec<&mut [u8]> = parity.iter_mut().map(|p| p.as_mut_slice()).collect();
    code.encode(&slices, &mut room).unwrap();
    let all: Vec<Vec<u8>> = data.into_iter().chain(parity).collect();
    numbers.iter().flat_map(|i| all[*i].clone()).collect()
}

fn candidates(bench: &mut Bench, params: &Params, context: &[u8], data: &[u8]) -> Vec<Candidate> {
    let operation = FindCandidates::new(params, context.len(), data.len()).unwrap();
    let output = bench.run(&operation, |input| operation.pack(context, data, input));
    let mut found = Vec::new();
    operation.read(&output, &mut found);
    found
}

#[test]
fn boundaries_around_every_edge() {
    let mut bench = Bench::new();
    let params = Params::new(4096, 65536).unwrap().with_everything_a_candidate();
    let bytes = test_bytes(6, 20_000);
    let mut seen = 0;
    for context in [0, 1, 5, 62, 63, 64, 100] {
        for len in [0, 1, 2, 3, 4, 63, 64, 65, 127, 128, 700, 4095, 4096, 4097, 4200, 8192, 12_345] {
            seen += candidates(&mut bench, &params, &bytes[..context], &bytes[context..context + len]).len();
        }
    }
    assert!(seen > 500, "{seen} candidates are no test");
}

#[test]
fn boundaries_of_random_slices_and_kinds_of_data() {
    let (mut bench, mut rng) = (Bench::new(), StdRng::seed_from_u64(7));
    let wild = Params::new(4096, 65536).unwrap();
    let (mut seen, mut bytes) = (0, vec![0u8; 1 << 16]);
    for case in 0..3_000 {
        if case % 100 == 0 {
            rng.fill_bytes(&mut bytes);
            let mask = [0xff, 0x0f, 0x01, 0x7f, 0xf0][case / 100 % 5];
            bytes.iter_mut().for_each(|b| *b &= mask);
        }
        let params = if case % 7 == 0 { Params::new(262_144, 4_194_304).unwrap() } else { wild };
        let params = if case % 3 == 0 { params } else { params.with_everything_a_candidate() };
        let (context, len) = (rng.random_range(0..70), rng.random_range(0..1_500));
        let at = rng.random_range(context..bytes.len() - len);
        seen += candidates(&mut bench, &params, &bytes[at - context..at], &bytes[at..at + len]).len();
    }
    assert!(seen > 1_000, "{seen} candidates are no test");
}

/// More candidates than the output has room for: the device reports it, and the CPU does the job.
#[test]
fn more_candidates_than_there_is_room_for_are_left_to_the_cpu() {
    let mut bench = Bench::new();
    let params = Params::new(4096, 65536).unwrap().with_everything_a_candidate();
    // A window that passes, repeated: every 67th position is a candidate.
    let noise = test_bytes(8, 200_000);
    let mut found = Vec::new();
    crate::boundaries::candidates(&params, &[], &noise, &mut found);
    let at = found[0].position;
    let data: Vec<u8> = noise[at - 64..at].iter().copied().cycle().take(100_000).collect();
    let operation = FindCandidates::new(&params, 0, data.len()).unwrap();
    assert!(candidates(&mut bench, &params, &[], &data).len() > 100_000 / 128 + 64);
    for mut output in bench.outputs(&operation, |input| input.copy_from_slice(&data)) {
        assert!(!operation.finish(&mut output));
    }
}
