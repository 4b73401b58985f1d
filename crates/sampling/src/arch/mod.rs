//! ArchSampler: samples of data in memory that use all banks equally, by threads that do not meet in a bank.
//!
//! The data is split into partitions as large as a row of the memory. Partitions are grouped by bank and NUMA domain, an
//! equal number of each group is drawn, and each thread owns banks (ArchSampler, section on design). Rows are clusters
//! and banks are strata, so the intervals of [`crate::estimate`] hold. It never moves the data, and never claims to know
//! physical addresses: [`file::Architecture::banks_are_known`] says when virtual ones suffice.
//!
//! ```
//! use tessera_sampling::arch::answer::moments;
//! use tessera_sampling::arch::{Architecture, Assignment, Partitions, Placement, RowSample, select};
//! use tessera_sampling::estimate::Quantity;
//! # fn main() -> Result<(), tessera_sampling::Error> {
//! let memory = Architecture::of_kernel()?;
//! let data: Vec<u32> = (0..2_000_000).collect();
//! let rows = Partitions::of(&data, &memory, Placement::Domain(0))?;
//! let selection = select(&rows, &memory, rows.rows() / 5, Assignment::ContentionFree, 8, 1)?;
//! let sample = RowSample::read(&data, &rows, &memory, &selection, |row| moments(row.iter().map(|v| f64::from(*v))))?;
//! let mean = sample.estimate(Quantity::Mean, 0.9999);
//! assert!(mean.low < 999_999.5 && 999_999.5 < mean.high);
//! # Ok(())
//! # }
//! ```
//!
//! Start at [`mod@file`] (the memory), [`partition`] (rows of the data), [`mod@select`] (which rows, for which thread),
//! [`threads`] (how they are read) and [`answer`] (what follows). [`sort`] and [`graph`] have loads that depend on the
//! content. [`model`] is a memory in simulated time, on which the paper's figures are redone (docs/sampling.md).

pub mod answer;
pub mod file;
pub mod graph;
pub mod model;
pub mod partition;
pub mod select;
pub mod sort;
pub mod threads;

pub use answer::RowSample;
pub use file::Architecture;
pub use partition::{Partitions, Placement};
pub use select::{Assignment, Selection, select};
