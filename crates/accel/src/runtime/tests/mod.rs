//! Tests of the runtime, on emulated devices.

mod jobs;
mod kernels;
mod roofs;
mod upkeep;
