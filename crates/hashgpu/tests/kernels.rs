//! Every kernel of this crate's operations, on an emulated device and on whatever GPUs there are, against the CPU's
//! reference (P10): edges first, then random cases. The emulated device is slow, so most cases are small.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::sync::Arc;
use tessera_accel::runtime::{Backend, Buffer, Operation, Options, Runtime, Target};
use tessera_accel::testing::test_bytes;
use tessera_accel::{Isa, emulated::Emulated};
use tessera_hashgpu::digest::{self, Function};
use tessera_hashgpu::lookup::{BlockedBloom, Levels, Sorted};
use tessera_hashgpu::operations::{AskBloom, DigestBatch, FindInLevels, HashWindows, Segmented};
use tessera_hashgpu::windows::Windows;

/// A runtime over an emulated device and every GPU there is.
struct Bench(Runtime);

impl Bench {
    fn new() -> Bench {
        let mut backends: Vec<Arc<dyn Backend>> = vec![Arc::new(Emulated::new(0))];
        match tessera_accel::cuda::devices() {
            Ok(devices) => backends.extend(devices.into_iter().map(|d| Arc::new(d) as Arc<dyn Backend>)),
            Err(why) => println!("skipped on GPUs: {why}"),
        }
        Bench(Runtime::new(backends, Options { cpu_threads: 1, ..Options::default() }).unwrap())
    }

    /// The output, which is the same on every device and by the reference.
    fn run(&mut self, operation: &(impl Operation + Clone + 'static), fill: impl Fn(&mut [u8])) -> Buffer {
        let input = || {
            let mut input = self.0.buffer(operation.input_bytes()).unwrap();
            fill(&mut input);
            input
        };
        let mut expected = self.0.buffer(operation.output_bytes()).unwrap();
        operation.on_cpu(Isa::REFERENCE, &input(), &mut expected).unwrap();
        for (index, device) in self.0.devices().iter().enumerate() {
            let target = Target::Device(index);
            let done = self.0.submit(Arc::new(operation.clone()), input(), target).unwrap().wait().unwrap();
            assert_eq!(done.device, device.name, "{operation:?}");
            assert!(done.output[..] == expected[..], "{operation:?}");
        }
        expected
    }
}

const CHAINS: [Function; 3] = [Function::Md5, Function::Sha1, Function::Sha256];

fn digests(bench: &mut Bench, function: Function, buffers: &[&[u8]]) {
    let lens: Vec<usize> = buffers.iter().map(|b| b.len()).collect();
    let operation = DigestBatch::new(function, &lens).unwrap();
    let output = bench.run(&operation, |input| {
        buffers.iter().enumerate().for_each(|(i, bytes)| operation.pack(i, bytes, input));
    });
    let expected: Vec<_> = buffers.iter().map(|b| digest::digest(function, b)).collect();
    assert_eq!(operation.read(&output), expected);
}

/// Messages whose padding begins at every byte of a block, and fills one or two.
#[test]
fn digests_of_every_length_around_a_block_and_of_random_batches() {
    let (mut bench, mut rng) = (Bench::new(), StdRng::seed_from_u64(9));
    let bytes = test_bytes(10, 9_000);
    for function in CHAINS {
        let all: Vec<&[u8]> = (0..200).chain([1000, 4096, 8999]).map(|len| &bytes[..len]).collect();
        digests(&mut bench, function, &all);
        digests(&mut bench, function, &[]);
        for _ in 0..500 {
            let some: Vec<&[u8]> = (0..rng.random_range(1..9))
                .map(|_| {
                    let (at, len) = (rng.random_range(0..8_000), rng.random_range(0..300));
                    &bytes[at..at + len]
                })
                .collect();
            digests(&mut bench, function, &some);
        }
    }
    assert!(DigestBatch::new(Function::Blake3, &[1]).is_none());
}

#[test]
fn segments_and_the_digest_of_their_digests() {
    let (mut bench, mut rng) = (Bench::new(), StdRng::seed_from_u64(11));
    let bytes = test_bytes(12, 20_000);
    for function in CHAINS {
        for case in 0..200 {
            let len = [0, 1, 63, 64, 4096, 20_000].get(case).copied().unwrap_or_else(|| rng.random_range(0..1_500));
            // Segments of odd lengths begin at every alignment.
            let segment = if case < 6 { 4096 } else { rng.random_range(1..400) };
            let operation = Segmented::new(function, len, segment).unwrap();
            let output = bench.run(&operation, |input| input.copy_from_slice(&bytes[..len]));
            let expected = digest::segmented(function, &bytes[..len], segment).unwrap();
            assert_eq!(operation.read(&output), expected);
        }
        assert!(Segmented::new(function, 5, 0).is_none());
    }
}

/// Keys at every place: first, last, between, absent, in several levels, in empty ones.
#[test]
fn keys_are_found_in_the_newest_level_that_has_them() {
    let (mut bench, mut rng) = (Bench::new(), StdRng::seed_from_u64(13));
    let mut hits = 0;
    for case in 0..1_500u64 {
        let levels: Vec<Vec<u64>> = (0..rng.random_range(0..5))
            .map(|_| {
                let span = if case % 10 == 0 { u64::MAX } else { 60 };
                let mut keys: Vec<u64> = (0..rng.random_range(0..40)).map(|_| rng.random_range(0..=span)).collect();
                keys.sort_unstable();
                keys.dedup();
                keys
            })
            .collect();
        let known: Vec<u64> = levels.iter().flatten().copied().collect();
        let mut queries: Vec<u64> = (0..rng.random_range(0..30)).map(|_| rng.random_range(0..62)).collect();
        queries.extend(known.iter().take(20));
        queries.extend([0, u64::MAX]);
        let lens: Vec<usize> = levels.iter().map(|l| l.len()).collect();
        let operation = FindInLevels::new(&lens, queries.len()).unwrap();
        let sorted = Levels::new(levels.iter().map(|l| Sorted::new(l).unwrap()).collect()).unwrap();
        let output = bench.run(&operation, |input| operation.pack(&sorted, &queries, input));
        let found = operation.read(&output);
        assert_eq!(found, sorted.find_reference(&queries));
        hits += found.into_iter().flatten().count();
    }
    assert!(hits > 10_000, "{hits} hits are no test");
}

#[test]
fn a_bloom_filter_on_the_device_answers_like_its_definition() {
    let (mut bench, mut rng) = (Bench::new(), StdRng::seed_from_u64(14));
    let mut passed = [0usize; 2];
    for _ in 0..300 {
        let keys: Vec<u64> = (0..rng.random_range(1..200)).map(|_| rng.random()).collect();
        let mut filter = BlockedBloom::new(keys.len(), rng.random_range(1..12)).unwrap();
        filter.insert(&keys);
        let mut hashes: Vec<u64> = (0..rng.random_range(0..100)).map(|_| rng.random()).collect();
        hashes.extend(keys.iter().take(20));
        let operation = AskBloom::new(filter.blocks().len(), hashes.len()).unwrap();
        let output = bench.run(&operation, |input| operation.pack(&filter, &hashes, input));
        let expected: Vec<u8> = filter.may_hold_reference(&hashes).into_iter().map(u8::from).collect();
        assert!(output[..] == expected[..]);
        output.iter().for_each(|p| passed[usize::from(*p)] += 1);
    }
    assert!(passed.iter().all(|n| *n > 500), "{passed:?}");
    assert!(AskBloom::new(0, 1).is_none());
}

#[test]
fn windows_of_every_size_step_and_width() {
    let (mut bench, mut rng) = (Bench::new(), StdRng::seed_from_u64(15));
    let bytes = test_bytes(16, 2_000);
    for case in 0..400 {
        let function = CHAINS[case % 3];
        let (window, step) = (rng.random_range(1..150), rng.random_range(1..40));
        let width = rng.random_range(1..=function.digest_bytes());
        let windows = Windows::new(function, window, step, width).unwrap();
        let (at, len) = (rng.random_range(0..1_000), rng.random_range(0..600));
        let operation = HashWindows::new(windows, len).unwrap();
        let output = bench.run(&operation, |input| input.copy_from_slice(&bytes[at..at + len]));
        assert_eq!(output.len(), windows.count(len) * width);
    }
}
