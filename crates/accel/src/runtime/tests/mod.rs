//! Tests of the runtime, on emulated devices.

mod kernels;
