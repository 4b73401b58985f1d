//! All computation on bytes: chunk names ([`hash`]), Reed–Solomon codes ([`erasure`]), codes of XOR alone
//! ([`xorcode`]), both behind one interface ([`coder`]), checksums ([`checksum`]) and chunk boundaries
//! ([`boundaries`]), and the [`Device`]s that run them.
//!
//! Each family has one plain `reference.rs`, and loops over the vectors of [`simd`] that must equal it byte for byte
//! (P10). Where instruction sets need different algorithms, a `dispatch.rs` picks among leaves (`avx2.rs`, `neon.rs`, …).
//! The same holds for the GPU's [`kernels`], which every test run executes on [`emulated`] devices. Only code on vectors
//! or on a device's memory contains `unsafe`. This crate does no I/O except for the small calibration file. It knows no
//! node or policy and imports no other crate of the project; only the [`runtime`] starts threads. Inputs may come from a
//! network or a disk: invalid ones give a typed error, never a panic (P14).
//!
//! Start reading at [`mod@device`]; then the module documentation of each family.

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

pub mod accelerated;
pub mod boundaries;
pub mod checksum;
pub mod coder;
#[cfg(feature = "cuda")]
pub mod cuda;
pub mod device;
pub mod emulated;
pub mod erasure;
pub mod hash;
pub mod isa;
pub mod kernels;
mod named_enum;
pub mod panics;
pub mod runtime;
pub mod simd;
pub mod spec;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod windows;
pub mod xorcode;

pub use accelerated::{Accelerated, RunError};
pub use coder::Coder;
pub use device::{Cpu, Device, EncodeJob, ReconstructJob, UpdateJob, Usage, VerifyJob, device, set_device, work_done};
pub use erasure::CoderError;
pub use hash::{GROUP_BYTES, Hash, Tree};
pub use isa::Isa;
pub use spec::{DeviceError, Spec, use_device};
