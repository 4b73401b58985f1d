//! Synthetic traces: as long as asked for, fitted to a trace or made of stated shares.
//!
//! [`Profile`] measures a trace: share of reads, sizes, gaps between arrivals, sequential requests, reuse distances, regions
//! and pages that are read together. [`Generator`] draws requests that have the same. What it draws is independent of each
//! other: bursts, phases, and sizes that go with places are lost. Equal seeds give equal traces.

mod addresses;
mod draw;
mod generator;
mod profile;
mod recency;

pub use draw::Zipf;
pub use generator::{Generator, Plan, PlanError, Shares};
pub use profile::Profile;

/// Bytes of a page, and of a place that a skewed trace draws.
const PAGE: u64 = 4096;
