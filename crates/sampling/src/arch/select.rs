//! Which rows are sampled, and which thread reads which: the four assignments of ArchSampler.

use super::file::Architecture;
use super::partition::Partitions;
use crate::Error;
use crate::schedule::{MIN_STRATUM_UNITS, Shuffle, share};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// How rows are drawn and given to threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Assignment {
    /// Equal shares of banks, and a thread reads only banks that it owns: ArchSampler.
    ContentionFree,
    /// Equal shares of banks, and each thread reads an equal part of each bank in random order.
    LoadBalanced,
    /// Rows at random, dealt to threads at random.
    Random,
    /// All threads read the same bank at the same time, one bank after the other: the synthetic worst case. What it
    /// reads is no random sample, so nothing can be estimated from it.
    Worst,
}

impl Assignment {
    /// All, from the best to the worst.
    pub const ALL: [Assignment; 4] =
        [Assignment::ContentionFree, Assignment::LoadBalanced, Assignment::Random, Assignment::Worst];

    /// Name in results.
    pub fn name(self) -> &'static str {
        match self {
            Assignment::ContentionFree => "contention-free",
            Assignment::LoadBalanced => "load-balanced",
            Assignment::Random => "random",
            Assignment::Worst => "worst",
        }
    }

    /// Each bank gets its share.
    pub fn is_balanced(self) -> bool {
        matches!(self, Assignment::ContentionFree | Assignment::LoadBalanced)
    }
}

/// Rows to read, by thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selection {
    /// How they were drawn.
    pub assignment: Assignment,
    /// Rows of each thread, in the order in which it reads them.
    pub threads: Vec<Vec<u64>>,
    /// NUMA domain of each thread.
    pub domains: Vec<usize>,
}

impl Selection {
    /// Number of rows.
    pub fn rows(&self) -> u64 {
        self.threads.iter().map(|rows| rows.len() as u64).sum()
    }

    /// Rows of each bank.
    pub fn by_bank(&self, partitions: &Partitions) -> Vec<u64> {
        let mut count = vec![0; partitions.banks()];
        self.threads.iter().flatten().for_each(|row| count[partitions.bank(*row)] += 1);
        count
    }

    /// Most rows of a bank compared with the mean of all banks (figure 2.4 of ArchSampler); 1 is balanced.
    pub fn skew(&self, partitions: &Partitions) -> f64 {
        let most = self.by_bank(partitions).into_iter().max().unwrap_or(0);
        most as f64 * partitions.banks() as f64 / self.rows().max(1) as f64
    }
}

/// Draws `rows` rows and gives them to `threads` threads. A balanced selection takes at least two rows of every bank,
/// because a variance needs two, so it may be larger. Equal seeds draw equal rows.
///
/// # Errors
/// There is no thread.
pub fn select(
    partitions: &Partitions,
    memory: &Architecture,
    rows: u64,
    assignment: Assignment,
    threads: usize,
    seed: u64,
) -> Result<Selection, Error> {
    if threads == 0 {
        return Err(Error::Question("no thread is to read; use at least one".into()));
    }
    let mut rng = StdRng::seed_from_u64(seed);
    let rows = rows.min(partitions.rows());
    let owned = |banks: Vec<Vec<u64>>| own(&banks, threads);
    let threads_rows = match assignment {
        Assignment::ContentionFree => owned(balanced(partitions, memory, rows, threads, &mut rng)),
        Assignment::LoadBalanced => {
            let mut dealt = deal(balanced(partitions, memory, rows, threads, &mut rng).into_iter().flatten(), threads);
            dealt.iter_mut().for_each(|rows| shuffle(rows, &mut rng));
            dealt
        }
        Assignment::Random => {
            let mut all = Shuffle::new(partitions.rows());
            deal((0..rows).map_while(|_| all.next(&mut rng)), threads)
        }
        Assignment::Worst => {
            let capacities: Vec<u64> = (0..partitions.banks()).map(|bank| partitions.rows_of(bank)).collect();
            let mut left = rows;
            let quotas = capacities.into_iter().map(|capacity| {
                let quota = capacity.min(left);
                left -= quota;
                quota
            });
            deal(draw(partitions, &quotas.collect::<Vec<_>>(), &mut rng).into_iter().flatten(), threads)
        }
    };
    let domains = memory.domains.len();
    let domain = |thread: usize| match assignment {
        Assignment::ContentionFree => first_bank(thread, partitions.banks(), threads) / memory.banks,
        _ => thread * domains / threads,
    };
    Ok(Selection { assignment, threads: threads_rows, domains: (0..threads).map(domain).collect() })
}

/// Rows of each bank, in shares by weight. What the division leaves over goes to banks of different threads.
fn balanced(
    partitions: &Partitions,
    memory: &Architecture,
    rows: u64,
    threads: usize,
    rng: &mut StdRng,
) -> Vec<Vec<u64>> {
    let banks = partitions.banks();
    let mut order: Vec<usize> = (0..banks).collect();
    order.sort_by_key(|bank| {
        let owner = owners(*bank, banks, threads).start;
        (bank - first_bank(owner, banks, threads), owner)
    });
    let capacities: Vec<u64> = order.iter().map(|bank| partitions.rows_of(*bank)).collect();
    let weights: Vec<f64> = order.iter().map(|bank| memory.bank_weights[*bank]).collect();
    let mut quotas = vec![0; banks];
    for ((bank, quota), capacity) in order.iter().zip(share(rows, &weights, &capacities)).zip(&capacities) {
        quotas[*bank] = quota.max(MIN_STRATUM_UNITS.min(*capacity));
    }
    draw(partitions, &quotas, rng)
}

/// Draws that many rows of each bank.
fn draw(partitions: &Partitions, quotas: &[u64], rng: &mut StdRng) -> Vec<Vec<u64>> {
    let of_bank = |(bank, quota): (usize, &u64)| {
        let mut all = Shuffle::new(partitions.rows_of(bank));
        (0..*quota).map_while(|_| all.next(rng)).map(|index| partitions.row_of(bank, index)).collect()
    };
    quotas.iter().enumerate().map(of_bank).collect()
}

/// Deals rows to threads one by one.
fn deal(rows: impl Iterator<Item = u64>, threads: usize) -> Vec<Vec<u64>> {
    let mut dealt = vec![Vec::new(); threads];
    rows.enumerate().for_each(|(i, row)| dealt[i % threads].push(row));
    dealt
}

/// Threads that read a bank (the N/T rule of ArchSampler, section on contention-free threading). With no more threads
/// than banks each bank has one thread, and a thread owns N/T banks, rounded up or down. With more threads each thread
/// has one bank, and a bank at most T/N threads, rounded up. Numbers need not be powers of two. Banks that follow each
/// other, so those of a domain, go to the same thread.
pub fn owners(bank: usize, banks: usize, threads: usize) -> std::ops::Range<usize> {
    if threads <= banks {
        let thread = bank * threads / banks;
        thread..thread + 1
    } else {
        // The threads t with ⌊t·N/T⌋ = bank.
        (bank * threads).div_ceil(banks)..((bank + 1) * threads).div_ceil(banks)
    }
}

fn first_bank(thread: usize, banks: usize, threads: usize) -> usize {
    if threads <= banks { (thread * banks).div_ceil(threads) } else { thread * banks / threads }
}

/// Gives each bank's rows to its owners, in the order of addresses; a thread goes round its banks, so that one opens
/// its next row while another serves.
fn own(banks: &[Vec<u64>], threads: usize) -> Vec<Vec<u64>> {
    let mut queues: Vec<Vec<Vec<u64>>> = vec![Vec::new(); threads];
    for (bank, rows) in banks.iter().enumerate() {
        let owners = owners(bank, banks.len(), threads);
        let mut rows = rows.clone();
        rows.sort_unstable();
        let dealt = deal(rows.into_iter(), owners.len());
        owners.zip(dealt).for_each(|(thread, rows)| queues[thread].push(rows));
    }
    let interleave = |queues: Vec<Vec<u64>>| {
        let longest = queues.iter().map(Vec::len).max().unwrap_or(0);
        (0..longest).flat_map(|i| queues.iter().filter_map(move |rows| rows.get(i).copied())).collect()
    };
    queues.into_iter().map(interleave).collect()
}

fn shuffle(rows: &mut [u64], rng: &mut StdRng) {
    for last in (1..rows.len()).rev() {
        rows.swap(last, rng.random_range(0..=last));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::file::Domain;
    use crate::arch::partition::Placement;
    use proptest::prelude::*;
    use std::collections::{BTreeMap, BTreeSet};

    fn memory(banks: usize, domains: usize) -> Architecture {
        let mut memory = Architecture::preset("pcm").unwrap();
        memory.banks = banks;
        memory.domains = vec![Domain { cpus: vec![] }; domains];
        memory.bank_weights = vec![1.0; memory.all_banks()];
        memory
    }

    fn partitions(memory: &Architecture, rows: usize) -> Partitions {
        Partitions::at(memory.row_bytes * 3, 1, rows * memory.row_bytes, memory, Placement::Blocks).unwrap()
    }

    /// Threads of each bank, and banks of each thread.
    fn ownership(banks: usize, threads: usize) -> (Vec<usize>, Vec<usize>) {
        let of_bank = (0..banks).map(|bank| owners(bank, banks, threads).len()).collect();
        let mut of_thread = vec![0; threads];
        (0..banks).flat_map(|bank| owners(bank, banks, threads)).for_each(|thread| of_thread[thread] += 1);
        (of_bank, of_thread)
    }

    #[test]
    fn fewer_threads_than_banks_own_n_over_t_banks_each() {
        assert_eq!(ownership(8, 4), (vec![1; 8], vec![2; 4]));
        assert_eq!(ownership(8, 3), (vec![1; 8], vec![3, 3, 2]));
        assert_eq!(ownership(32, 1), (vec![1; 32], vec![32]));
    }

    #[test]
    fn as_many_threads_as_banks_own_one_each() {
        assert_eq!(ownership(4, 4), (vec![1; 4], vec![1; 4]));
        // The example of the paper: 4 banks, 4 threads, 16 rows.
        let memory = memory(4, 1);
        let rows = Partitions::at(0, 1, 16 * memory.row_bytes, &memory, Placement::Domain(0)).unwrap();
        let all = select(&rows, &memory, 16, Assignment::ContentionFree, 4, 9).unwrap();
        assert_eq!(all.threads, [[0, 4, 8, 12], [1, 5, 9, 13], [2, 6, 10, 14], [3, 7, 11, 15]]);
    }

    #[test]
    fn more_threads_than_banks_are_at_most_t_over_n_on_a_bank() {
        assert_eq!(ownership(4, 16), (vec![4; 4], vec![1; 16]));
        let (of_bank, of_thread) = ownership(4, 6);
        assert_eq!((of_bank, of_thread), (vec![2, 1, 2, 1], vec![1; 6]));
    }

    proptest! {
        #[test]
        fn no_row_is_selected_twice_and_banks_have_equal_shares(
            banks in 1usize..9, domains in 1usize..3, threads in 1usize..12, size in 20usize..600, want in 0u64..300, seed: u64,
        ) {
            let memory = memory(banks, domains);
            let rows = partitions(&memory, size);
            for assignment in Assignment::ALL {
                let selection = select(&rows, &memory, want, assignment, threads, seed).unwrap();
                let distinct: BTreeSet<u64> = selection.threads.iter().flatten().copied().collect();
                prop_assert_eq!(distinct.len() as u64, selection.rows());
                prop_assert!(distinct.iter().all(|row| *row < rows.rows()));
                let wanted = want.min(rows.rows());
                if !assignment.is_balanced() {
                    prop_assert_eq!(selection.rows(), wanted);
                    continue;
                }
                prop_assert!(selection.rows() >= wanted);
                for (bank, count) in selection.by_bank(&rows).into_iter().enumerate() {
                    let equal = wanted as f64 / rows.banks() as f64;
                    let is_full = count == rows.rows_of(bank);
                    prop_assert!(is_full || count == 2 || (count as f64 - equal).abs() <= 2.0, "{} of {}", count, equal);
                }
            }
        }

        #[test]
        fn contention_free_threads_meet_in_no_bank(banks in 1usize..17, threads in 1usize..17, seed: u64) {
            let memory = memory(banks, 1);
            let rows = partitions(&memory, 400);
            let selection = select(&rows, &memory, 200, Assignment::ContentionFree, threads, seed).unwrap();
            let mut users: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
            for (thread, own) in selection.threads.iter().enumerate() {
                own.iter().for_each(|row| users.entry(rows.bank(*row)).or_default().extend([thread]));
            }
            prop_assert!(users.values().all(|threads_of_bank| threads_of_bank.len() <= threads.div_ceil(banks)));
        }
    }

    #[test]
    fn what_the_division_leaves_over_goes_to_different_threads() {
        let memory = memory(32, 1);
        let rows = partitions(&memory, 4000);
        for (want, most) in [(256 + 8, 33), (256 + 4, 33), (256 + 17, 35)] {
            let selection = select(&rows, &memory, want, Assignment::ContentionFree, 8, 2).unwrap();
            assert_eq!(selection.threads.iter().map(Vec::len).max(), Some(most), "{want} rows");
        }
    }

    #[test]
    fn threads_read_the_memory_of_their_domain() {
        let memory = memory(4, 2);
        let rows = partitions(&memory, 512);
        for threads in [2, 4, 8, 16] {
            let selection = select(&rows, &memory, 64, Assignment::ContentionFree, threads, 1).unwrap();
            for (own, domain) in selection.threads.iter().zip(&selection.domains) {
                assert!(!own.is_empty() && own.iter().all(|row| rows.domain(*row) == *domain), "{threads} threads");
            }
        }
    }

    #[test]
    fn weights_share_out_the_sample() {
        let mut memory = memory(4, 1);
        memory.bank_weights = vec![1.0, 1.0, 3.0, 5.0];
        let rows = Partitions::at(0, 1, 400 * memory.row_bytes, &memory, Placement::Domain(0)).unwrap();
        let selection = select(&rows, &memory, 100, Assignment::LoadBalanced, 3, 1).unwrap();
        assert_eq!(selection.by_bank(&rows), [10, 10, 30, 50]);
    }

    #[test]
    fn the_worst_case_is_in_one_bank_and_a_random_one_is_skewed() {
        let memory = memory(8, 1);
        let rows = Partitions::at(0, 1, 8000 * memory.row_bytes, &memory, Placement::Domain(0)).unwrap();
        let of = |assignment| select(&rows, &memory, 160, assignment, 4, 5).unwrap().skew(&rows);
        assert_eq!((of(Assignment::Worst), of(Assignment::ContentionFree)), (8.0, 1.0));
        assert!((1.05..2.0).contains(&of(Assignment::Random)), "{}", of(Assignment::Random));
        assert!(select(&rows, &memory, 1, Assignment::Random, 0, 1).is_err());
    }

    #[test]
    fn a_small_balanced_sample_has_two_rows_of_every_bank() {
        let memory = memory(8, 1);
        let selection = select(&partitions(&memory, 400), &memory, 3, Assignment::LoadBalanced, 2, 1).unwrap();
        assert_eq!(selection.by_bank(&partitions(&memory, 400)), [2; 8]);
    }
}
