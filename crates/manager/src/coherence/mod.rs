//! What keeps clients coherent: leases on what they cache, and locks on byte ranges.

pub mod leases;
pub mod locks;
