//! The model equals arithmetic where arithmetic is possible.

use super::*;
use crate::arch::file::{Architecture, LINE_BYTES};
use crate::arch::{Assignment, Partitions, Placement, Selection, select};

/// Rows of `lines` lines over `banks` banks.
fn memory(banks: usize, lines: usize, rows: usize) -> (Architecture, Partitions) {
    let mut memory = Architecture::preset("pcm").unwrap();
    (memory.banks, memory.row_bytes) = (banks, lines * LINE_BYTES);
    memory.bank_weights = vec![1.0; banks];
    let partitions = Partitions::at(0, 1, rows * memory.row_bytes, &memory, Placement::Domain(0)).unwrap();
    (memory, partitions)
}

fn threads(threads: Vec<Vec<u64>>) -> Selection {
    Selection { assignment: Assignment::Random, domains: vec![0; threads.len()], threads }
}

const ONE_BY_ONE: Workload = Workload { compute_ns: 40, ahead: 1, writes: false };

#[test]
fn a_stream_of_hits_takes_one_opening_and_a_hit_for_each_line() {
    let (_, rows) = memory(4, 128, 4);
    let figures = run(&rows, &threads(vec![vec![2]]), 1, &Timing::PCM, ONE_BY_ONE);
    assert_eq!(figures.time_ns, 150 + 128 * (15 + 40));
    assert_eq!((figures.latency_ns, figures.service_ns), (150 + 128 * 15, 150 + 128 * 15));
    assert_eq!((figures.requests, figures.hits, figures.conflicts, figures.blocked), (128, 127, 0, 0));
    assert_eq!((figures.by_bank.clone(), figures.skew()), (vec![0, 0, 128, 0], 4.0));
}

#[test]
fn a_stream_of_conflicts_opens_a_row_for_each_line() {
    // Rows 0, 4, 8, … of one line each lie in bank 0.
    let (_, rows) = memory(4, 1, 400);
    let stream = threads(vec![(0..100).map(|i| 4 * i).collect()]);
    let pcm = run(&rows, &stream, 1, &Timing::PCM, ONE_BY_ONE);
    assert_eq!((pcm.time_ns, pcm.hits, pcm.conflicts), (100 * (150 + 15 + 40), 0, 99));
    let ddr4 = run(&rows, &stream, 1, &Timing::DDR4, ONE_BY_ONE);
    assert_eq!(ddr4.time_ns, 100 * (14 + 14 + 3 + 40) + 99 * 14);
}

#[test]
fn requests_ahead_hide_the_memory_behind_the_work() {
    let (_, rows) = memory(4, 128, 4);
    let workload = Workload { ahead: 16, ..ONE_BY_ONE };
    let figures = run(&rows, &threads(vec![vec![0]]), 1, &Timing::PCM, workload);
    assert_eq!(figures.time_ns, 165 + 128 * 40, "the first line is waited for");
    let fast = Workload { compute_ns: 1, ..workload };
    let figures = run(&rows, &threads(vec![vec![0]]), 1, &Timing::PCM, fast);
    assert_eq!(figures.time_ns, 150 + 128 * 15 + 1, "the bank bounds");
}

#[test]
fn two_cores_that_meet_in_a_bank_open_their_rows_in_turn() {
    let (_, rows) = memory(2, 8, 8);
    let workload = Workload { compute_ns: 0, ahead: 1, writes: false };
    let apart = run(&rows, &threads(vec![vec![0], vec![1]]), 1, &Timing::PCM, workload);
    assert_eq!((apart.time_ns, apart.conflicts), (150 + 8 * 15, 0));
    // One line each at a time: when one is read, only the other core's request waits.
    for compute_ns in [0, 100] {
        let workload = Workload { compute_ns, ..workload };
        let met = run(&rows, &threads(vec![vec![0], vec![2]]), 1, &Timing::PCM, workload);
        assert_eq!((met.conflicts, met.hits), (15, 0));
        assert_eq!(met.time_ns, 16 * 165 + compute_ns);
    }
    // Several lines each: hits overtake, so a row is read to its end although the other core has waited longer.
    let (_, rows) = memory(2, 32, 8);
    let workload = Workload { ahead: 4, ..workload };
    let met = run(&rows, &threads(vec![vec![0], vec![2]]), 1, &Timing::PCM, workload);
    assert_eq!((met.conflicts, met.time_ns), (1, 2 * (150 + 32 * 15)));
}

#[test]
fn writes_fill_the_buffer_and_then_wait_for_cells() {
    let (_, rows) = memory(2, 64, 2);
    let workload = Workload { compute_ns: 10, ahead: 1, writes: true };
    let figures = run(&rows, &threads(vec![vec![0]]), 1, &Timing::PCM, workload);
    assert_eq!(figures.time_ns, 64 * 500, "the bank writes all the time");
    assert_eq!(figures.service_ns, 64 * 500);
    // One is written and 16 are buffered without waiting.
    let few = Workload { compute_ns: 1, ..workload };
    let (_, rows) = memory(2, 17, 2);
    assert_eq!(run(&rows, &threads(vec![vec![0]]), 1, &Timing::PCM, few).latency_ns, 0);
}

#[test]
fn dram_writes_through_its_row_buffer() {
    let (_, rows) = memory(2, 64, 2);
    let workload = Workload { compute_ns: 0, ahead: 1, writes: true };
    let figures = run(&rows, &threads(vec![vec![0]]), 1, &Timing::DDR4, workload);
    assert_eq!((figures.hits, figures.conflicts), (63, 0));
    assert_eq!(figures.service_ns, 14 + 64 * 14);
}

#[test]
fn the_bus_bounds_what_banks_serve_together() {
    let (_, rows) = memory(8, 128, 8);
    let workload = Workload { compute_ns: 0, ahead: 16, writes: false };
    let figures = run(&rows, &threads((0..8).map(|row| vec![row]).collect()), 1, &Timing::DDR4, workload);
    assert_eq!(figures.time_ns, 28 + 8 * 128 * 3, "the bus never rests once the first line is read");
}

#[test]
fn the_assignments_are_as_good_as_they_are_ordered() {
    let (architecture, rows) = memory(8, 128, 4000);
    for timing in [Timing::PCM, Timing::DDR4] {
        let time = |assignment| {
            let selection = select(&rows, &architecture, 160, assignment, 8, 3).unwrap();
            let figures = run(&rows, &selection, 1, &timing, ONE_BY_ONE);
            assert_eq!(figures.requests, 160 * 128);
            assert_eq!(figures, run(&rows, &selection, 1, &timing, ONE_BY_ONE), "equal inputs, equal figures");
            (figures.time_ns, figures.conflicts)
        };
        let [best, balanced, random, worst] = Assignment::ALL.map(time);
        assert!(best < balanced && balanced < worst && random < worst, "{best:?} {balanced:?} {random:?} {worst:?}");
        assert!(best.1 == 160 - 8, "a conflict for each row but the first of each bank: {best:?}");
    }
}
