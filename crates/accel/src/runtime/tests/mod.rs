//! Tests of the runtime, on emulated devices.

mod faulty;
mod jobs;
mod kernels;
mod levels;
mod roofs;
mod upkeep;
