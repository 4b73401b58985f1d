//! The clock that deadlines and leases are measured with.

use rustix::time::{ClockId, clock_gettime};

/// Time since the machine started, sleep included, in ns (`CLOCK_BOOTTIME`). It only advances: setting the wall clock
/// neither extends a lease nor ends a session, and a machine that was suspended finds its leases expired (P11).
pub fn boot_ns() -> i64 {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}
