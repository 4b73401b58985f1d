//! The node's clock: starts at the current time in ns since 1970, then only advances, also while the machine sleeps.
//!
//! Leases are measured with it (P11). So setting the wall clock back must not extend a lease, and a machine that was
//! suspended must find its lease expired.

use std::time::{SystemTime, UNIX_EPOCH};
use tessera_net::boot_ns;

#[derive(Debug)]
pub(super) struct Clock {
    start_ns: i64,
    started_ns: i64,
}

impl Clock {
    pub(super) fn new() -> Self {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Clock { start_ns: i64::try_from(wall.as_nanos()).unwrap_or(0), started_ns: boot_ns() }
    }

    pub(super) fn now_ns(&self) -> i64 {
        self.start_ns + (boot_ns() - self.started_ns)
    }

    pub(super) fn now_ms(&self) -> u64 {
        u64::try_from(self.now_ns() / 1_000_000).unwrap_or(0)
    }
}
