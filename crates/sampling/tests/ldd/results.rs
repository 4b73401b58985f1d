//! What unsampled sets give, and which partitions samples read.

use crate::{Disks, plain_count, text, word_count};
use std::collections::HashMap;
use tessera_sampling::ldd::{Bytes, Ldd, Lines, PartitionSampling, Place};
use tessera_sampling::schedule::Shares;

#[test]
fn word_count_over_several_disks_is_a_plain_count() {
    let disks = Disks::new(4);
    let texts: Vec<String> = (0..4).map(|disk| text(disk, 500 + 300 * disk)).collect();
    (0..4).for_each(|disk| disks.write(disk, "text", &texts[disk]));
    for (unit_bytes, threads) in [(64, 3), (1000, 1), (1 << 20, 2)] {
        let lines = Ldd::read(disks.shared(), unit_bytes, Lines).unwrap().with_threads(threads);
        let counts = word_count(&lines);
        assert_eq!(counts.partitions().len(), threads);
        let counts: HashMap<String, u64> = counts.collect().unwrap().into_iter().collect();
        assert_eq!(counts, plain_count(&texts), "units of {unit_bytes} bytes");
        assert_eq!(lines.count().unwrap() as usize, texts.iter().map(|text| text.lines().count()).sum::<usize>());
    }
}

#[test]
fn partitions_know_their_places_and_cover_the_files() {
    let disks = Disks::new(2);
    disks.write(0, "a", &text(0, 200));
    disks.write(1, "b", &text(1, 300));
    let lines = Ldd::read(disks.shared(), 512, Lines).unwrap();
    let mut ends: HashMap<String, u64> = HashMap::new();
    for partition in lines.partitions() {
        let Place::Disk { disk, file, offset, len_bytes } = &partition.place else { panic!("{partition:?}") };
        assert!(file.starts_with(&**disk));
        assert_eq!(ends.insert(file.to_string(), offset + len_bytes).unwrap_or(0), *offset);
    }
    for (file, end) in ends {
        assert_eq!(std::fs::metadata(file).unwrap().len(), end);
    }
    assert_eq!(lines.map(|line| line.len()).partitions()[0].place, Place::Computed { from: 1 });
    assert_eq!(word_count(&lines).partitions()[0].place, Place::Computed { from: lines.partitions().len() });
    assert_eq!(Ldd::in_memory(vec![1, 2, 3], 2).partitions()[0].place, Place::Memory);
    let bytes = Ldd::read(disks.shared(), 512, Bytes).unwrap().collect().unwrap().concat();
    assert_eq!(bytes, [text(0, 200), text(1, 300)].concat().into_bytes());
}

#[test]
fn a_join_pairs_all_values_of_a_key() {
    let left: Vec<(u32, u64)> = (0..300).map(|i| (i % 40, u64::from(i))).collect();
    let right: Vec<(u32, String)> = (0..90).map(|i| (i % 60, format!("r{i}"))).collect();
    let mut expected = Vec::new();
    for (key, v) in &left {
        expected.extend(right.iter().filter(|(other, _)| other == key).map(|(_, w)| (*key, (*v, w.clone()))));
    }
    let (left, right) = (Ldd::in_memory(left, 7), Ldd::in_memory(right, 5));
    let mut joined = left.join(&right).collect().unwrap();
    joined.sort();
    expected.sort();
    assert_eq!(joined, expected);
    // A set with itself: its partitions are computed once and taken twice.
    let own = left.join(&left).filter(|(_, (a, b))| a == b);
    assert_eq!(own.count().unwrap(), 300);
    let reduced = left.reduce_by_key(|a, b| a.max(b));
    assert_eq!(reduced.join(&reduced).count().unwrap(), 40);
}

#[test]
fn wide_sets_can_be_transformed_further_and_empty_ones_are_empty() {
    let numbers = Ldd::in_memory((0..1000u64).collect(), 13).with_threads(3);
    let sums = numbers.map(|v| (v % 10, v)).reduce_by_key(|a, b| a + b).map(|(key, sum)| (key % 2, sum));
    let mut halves = sums.reduce_by_key(|a, b| a + b).collect().unwrap();
    halves.sort_unstable();
    assert_eq!(halves, [(0, 249_500), (1, 250_000)]);
    let partial = numbers.map(|v| (v % 10, v)).reduce_by_key_partitions(|a, b| a + b);
    assert_eq!(partial.count().unwrap(), 13 * 10);
    let sum = partial.sum(|(_, sum)| *sum as f64, 0.95).unwrap();
    assert_eq!((sum.low, sum.value, sum.high, sum.claimed), (499_500.0, 499_500.0, 499_500.0, true));
    let nothing = Ldd::in_memory(Vec::<(u32, u32)>::new(), 4);
    assert!(nothing.reduce_by_key(|a, _| a).join(&nothing).collect().unwrap().is_empty());
    assert_eq!(nothing.count().unwrap(), 0);
}

#[test]
fn a_sample_has_equal_numbers_of_each_disk_or_shares() {
    let disks = Disks::new(3);
    (0..3).for_each(|disk| disks.write(disk, "text", &text(disk, 3000 + 3000 * disk)));
    let lines = Ldd::read(disks.shared(), 256, Lines).unwrap();
    let of_disks = |set: &Ldd<String>| {
        let mut numbers = [0; 3];
        set.partitions().iter().for_each(|partition| numbers[partition.stratum] += 1);
        numbers
    };
    let all = lines.partitions().len();
    let equal = of_disks(&lines.sample_partitions(0.3, 5).unwrap());
    let expected = (all as f64 * 0.3).ceil() as usize;
    assert_eq!(equal.iter().sum::<usize>(), expected);
    assert!(equal.iter().max().unwrap() - equal.iter().min().unwrap() <= 1, "{equal:?}");
    let sampling = |shares, drop| PartitionSampling { ratio: 0.3, shares, drop, seed: 5 };
    let shares = of_disks(&lines.sample_partitions_with(&sampling(Shares::Speeds(vec![1.0, 2.0, 1.0]), 0.0)).unwrap());
    assert!(shares[1].abs_diff(2 * shares[0]) <= 2 && shares[0].abs_diff(shares[2]) <= 1, "{shares:?}");
    assert!(lines.sample_partitions_with(&sampling(Shares::Speeds(vec![1.0]), 0.0)).is_err());
    for ratio in [0.0, -1.0, 1.5, f64::NAN] {
        assert!(lines.sample_partitions(ratio, 1).is_err() && lines.sample(ratio, 1).is_err());
    }
    let twice = lines.sample_partitions(0.5, 1).unwrap().sample_partitions(0.5, 2).unwrap();
    assert_eq!(twice.partitions().len(), (((all as f64 * 0.5).ceil()) * 0.5).ceil() as usize);
    assert_eq!(twice.collect().unwrap(), twice.collect().unwrap(), "equal seeds, equal samples");
}
