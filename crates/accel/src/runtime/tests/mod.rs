//! Tests of the runtime, on emulated devices.

mod faulty;
mod jobs;
mod kernels;
mod roofs;
mod upkeep;
