//! Answers from a sample, with intervals that hold.
//!
//! An analyst asks a question of many files: how often does each word occur, what is the mean of a column? This crate
//! reads a random part of them and says how far its answer can be from that of all of them. It knows on which disk each
//! part lies, so that all disks work equally and none is waited for (ApproxSSD), and in which bank of the memory
//! (ArchSampler). It never starts a scheduler of its own beyond the machine, and never claims an interval that its
//! variance does not support: rare groups are called rare.
//!
//! Start at [`layout`] (what is drawn), [`schedule`] (which, in which order, when it is enough) and [`estimate`] (what
//! follows from it). `engine` has the threads. [`ldd`] is for programs: sets of partitions with map, filter, sample and
//! reduce. The papers are chapters 1 and 2 of one thesis, cited as ApproxSSD and
//! ArchSampler, with sections and equations.

pub mod answer;
pub mod arch;
mod ask;
pub mod engine;
pub mod error;
pub mod estimate;
pub mod filter;
pub mod format;
pub mod largest;
pub mod layout;
pub mod ldd;
pub mod plain;
pub mod question;
pub mod schedule;
pub mod source;
pub mod tally;
pub mod words;

pub use error::Error;
