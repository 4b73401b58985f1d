//! Threads that read the selected rows, on the CPUs of the domain in which these lie.
//!
//! Memory policy is first touch: the kernel puts a page into the domain of the CPU that first writes it, and [`place`]
//! has each domain's block written by threads of that domain. `mbind` would do the same for pages that exist, but it has
//! no safe interface, and this crate has no unsafe code. Where CPUs cannot be chosen (a container forbids it, or none of
//! a domain's CPUs is allowed), threads run anywhere: results are the same, only slower.

use super::file::{Architecture, Domain};
use super::partition::{Partitions, Placement};
use super::select::Selection;
use crate::Error;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::thread;

/// CPUs of a domain on which this thread may run.
fn allowed(domain: &Domain) -> Option<CpuSet> {
    let may = sched_getaffinity(None).ok()?;
    let mut set = CpuSet::new();
    domain.cpus.iter().filter(|cpu| may.is_set(**cpu)).for_each(|cpu| set.set(*cpu));
    (set.count() > 0).then_some(set)
}

/// Keeps this thread on the CPUs of a domain. Returns whether it is kept there.
fn pin(domain: &Domain) -> bool {
    allowed(domain).is_some_and(|set| sched_setaffinity(None, &set).is_ok())
}

/// Runs `each` on every selected row, each thread on its own rows in their order. Returns what the threads accumulated,
/// beginning with `start`, by thread.
pub fn fold<T: Sync, A: Send>(
    data: &[T],
    partitions: &Partitions,
    memory: &Architecture,
    selection: &Selection,
    start: impl Fn() -> A + Sync,
    each: impl Fn(&mut A, u64, &[T]) + Sync,
) -> Vec<A> {
    assert_eq!(data.len() as u64, partitions.elements(), "the partitions are of this data");
    let read = |rows: &[u64], domain: usize| {
        pin(&memory.domains[domain]);
        let mut all = start();
        rows.iter().for_each(|row| each(&mut all, *row, &data[partitions.range(*row)]));
        all
    };
    let read = &read;
    thread::scope(|scope| {
        let spawn = |(rows, domain): (&'_ Vec<u64>, &usize)| {
            let (rows, domain) = (rows.clone(), *domain);
            scope.spawn(move || read(&rows, domain))
        };
        let running: Vec<_> = selection.threads.iter().zip(&selection.domains).map(spawn).collect();
        running.into_iter().map(|thread| thread.join().unwrap_or_else(|e| std::panic::resume_unwind(e))).collect()
    })
}

/// Makes `len` elements, `fill(i)` each, in one block for each domain. What is returned is split by
/// [`Placement::Blocks`]. Integers lie where they are first written, since the allocator hands out untouched pages of
/// zeros; types whose default is not all zeros are written by the calling thread first and lie in its domain.
///
/// # Errors
/// As [`Partitions::of`].
pub fn place<T: Copy + Default + Send + Sync>(
    memory: &Architecture,
    len: usize,
    fill: impl Fn(usize) -> T + Sync,
) -> Result<Vec<T>, Error> {
    let mut data = vec![T::default(); len];
    let partitions = Partitions::of(&data, memory, Placement::Blocks)?;
    let fill = &fill;
    thread::scope(|scope| {
        let (mut rest, mut first) = (data.as_mut_slice(), 0);
        for (index, domain) in memory.domains.iter().enumerate() {
            let end = partitions.block(index).end;
            let (block, after) = rest.split_at_mut(end - first);
            let threads = allowed(domain).map_or(1, |cpus| cpus.count() as usize);
            let part_len = block.len().div_ceil(threads).max(1);
            for (number, part) in block.chunks_mut(part_len).enumerate() {
                let from = first + number * part_len;
                scope.spawn(move || {
                    pin(domain);
                    part.iter_mut().enumerate().for_each(|(i, element)| *element = fill(from + i));
                });
            }
            (rest, first) = (after, end);
        }
    });
    Ok(data)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::select::{Assignment, select};

    fn memory(domains: Vec<Domain>) -> Architecture {
        let mut memory = Architecture::preset("pcm").unwrap();
        (memory.banks, memory.row_bytes, memory.domains) = (4, 64, domains);
        memory.bank_weights = vec![1.0; memory.all_banks()];
        memory
    }

    fn cpu_of_this_thread() -> usize {
        (0..CpuSet::MAX_CPU).find(|cpu| sched_getaffinity(None).unwrap().is_set(*cpu)).unwrap()
    }

    #[test]
    fn each_selected_row_is_read_once_by_its_thread() {
        let memory = memory(vec![Domain { cpus: vec![] }; 2]);
        let data = place(&memory, 5000, |i| i as u32).unwrap();
        assert!(data.iter().enumerate().all(|(i, value)| *value == i as u32));
        let rows = Partitions::of(&data, &memory, Placement::Blocks).unwrap();
        let selection = select(&rows, &memory, 100, Assignment::ContentionFree, 3, 4).unwrap();
        let read = fold(&data, &rows, &memory, &selection, Vec::new, |all, row, elements| {
            assert_eq!(elements[0] as usize, rows.range(row).start);
            all.push(row);
        });
        assert_eq!(read, selection.threads);
    }

    #[test]
    fn a_thread_stays_on_the_cpus_of_its_domain() {
        let cpu = cpu_of_this_thread();
        let on = thread::spawn(move || {
            assert!(pin(&Domain { cpus: vec![cpu] }));
            sched_getaffinity(None).unwrap()
        });
        let on = on.join().unwrap();
        assert!(on.is_set(cpu) && on.count() == 1);
    }

    #[test]
    fn a_domain_whose_cpus_are_not_allowed_is_read_all_the_same() {
        let far = Domain { cpus: vec![CpuSet::MAX_CPU - 1] };
        assert!(!pin(&far));
        let memory = memory(vec![far]);
        let data = place(&memory, 1000, |i| i as u8).unwrap();
        let rows = Partitions::of(&data, &memory, Placement::Domain(0)).unwrap();
        let selection = select(&rows, &memory, u64::MAX, Assignment::LoadBalanced, 2, 4).unwrap();
        let sums = fold(
            &data,
            &rows,
            &memory,
            &selection,
            || 0u64,
            |sum, _, row| {
                *sum += row.iter().map(|byte| u64::from(*byte)).sum::<u64>();
            },
        );
        assert_eq!(sums.iter().sum::<u64>(), data.iter().map(|byte| u64::from(*byte)).sum::<u64>());
    }
}
