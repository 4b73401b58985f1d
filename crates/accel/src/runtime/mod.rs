//! The task runtime: jobs with their buffers are queued, run on whatever device is free, and are waited for or
//! call back.
//!
//! After CrystalGPU (Gharaibeh, Al-Kiswany, Gopalakrishnan, Ripeanu, "A GPU accelerated storage system",
//! HPDC 2010, §3.2.3). What is here so far: what a device must do ([`Backend`]), what a job computes
//! ([`Operation`]), and the buffers both work on ([`Pool`]).

mod backend;
#[allow(dead_code)] // Until jobs and queues are here.
mod flight;
mod operation;
pub mod operations;
mod pool;

#[cfg(test)]
mod tests;

pub use backend::{Backend, Fault, Stream};
pub use operation::{Operation, Places};
pub use pool::{Buffer, HostMemory, NoMemory, Pageable, Pool, PoolUse};
