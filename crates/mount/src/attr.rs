//! The store's attributes, and the kernel's numbers for them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tessera_wire::InodeKind;

/// The inode kind for the type bits of `mode`, if `mknod` makes that kind.
pub fn node_kind(mode: u32) -> Option<InodeKind> {
    const TYPE_BITS: u32 = 0o170_000;
    match mode & TYPE_BITS {
        0 | 0o100_000 => Some(InodeKind::File),
        0o010_000 => Some(InodeKind::Fifo),
        0o140_000 => Some(InodeKind::Socket),
        0o020_000 => Some(InodeKind::CharDevice),
        0o060_000 => Some(InodeKind::BlockDevice),
        _ => None,
    }
}

/// The moment `ns` after (or before) 1970.
pub fn system_time(ns: i64) -> SystemTime {
    let magnitude = Duration::from_nanos(ns.unsigned_abs());
    match ns < 0 {
        true => UNIX_EPOCH.checked_sub(magnitude).unwrap_or(UNIX_EPOCH),
        false => UNIX_EPOCH.checked_add(magnitude).unwrap_or(UNIX_EPOCH),
    }
}

/// Nanoseconds since 1970; a time beyond what 64 bits hold becomes the nearest that fits.
pub fn nanoseconds(time: SystemTime) -> i64 {
    let clip = |since: Duration| i64::try_from(since.as_nanos()).unwrap_or(i64::MAX);
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => clip(since),
        Err(before) => clip(before.duration()).saturating_neg(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_1970_and_nanoseconds_survive() {
        for ns in [0, 1, 1_700_000_000_123_456_789, -1, -86_400_000_000_001] {
            assert_eq!(nanoseconds(system_time(ns)), ns);
        }
    }

    #[test]
    fn each_type_that_mknod_makes_has_a_kind() {
        for (kind, bits) in [
            (InodeKind::File, 0o100_000),
            (InodeKind::Fifo, 0o010_000),
            (InodeKind::Socket, 0o140_000),
            (InodeKind::CharDevice, 0o020_000),
            (InodeKind::BlockDevice, 0o060_000),
        ] {
            assert_eq!(node_kind(bits | 0o644), Some(kind));
        }
        assert_eq!(node_kind(0o644), Some(InodeKind::File));
        assert_eq!(node_kind(0o040_000), None);
    }
}
