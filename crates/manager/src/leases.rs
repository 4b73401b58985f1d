//! Leases on what clients cache of inodes.

/// Leases granted by this manager since it started.
#[derive(Default)]
pub struct Leases {}
