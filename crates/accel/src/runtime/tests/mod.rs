//! Tests of the runtime, on emulated devices.

mod jobs;
mod kernels;
mod parity;
mod roofs;
