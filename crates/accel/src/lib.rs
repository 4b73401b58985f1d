//! Everything that computes on bytes: chunk names ([`hash`]), Reed–Solomon codes ([`erasure`]), checksums
//! ([`checksum`]) and chunk boundaries ([`boundaries`]), and the [`Device`]s that run them.
//!
//! Each family has one plain `reference.rs`, one `dispatch.rs` that picks an instruction set, and leaves
//! (`avx2.rs`, `avx512.rs`, …) that must equal the reference byte for byte (P10). Only leaves contain
//! `unsafe`. This crate never does I/O, never starts threads, knows no file, node or policy, and imports no
//! other crate of the project. Inputs may come from a network or a disk: what can be wrong with them is a
//! typed error, never a panic (P14).
//!
//! Start reading at [`mod@device`]; then the module documentation of each family.

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

pub mod boundaries;
pub mod checksum;
pub mod device;
pub mod erasure;
pub mod hash;
mod isa;
#[cfg(target_arch = "x86_64")]
mod simd;
pub mod xorcode;

pub use device::{Cpu, Device, EncodeJob, ReconstructJob, Usage, device};
pub use hash::{GROUP_BYTES, Hash, Tree};
pub use isa::Isa;
