//! The room on a disk: its free bytes less a reserve. How much of the reserve may be used depends on what the bytes are for.

use crate::ctx::View;
use crate::db::rows::DiskRow;
use crate::error::Result;
use crate::soft::stats::ClusterStats;

/// Most bytes of a disk's reserve.
const RESERVE_CAP_BYTES: u64 = 1 << 30;
/// A disk with less free space than this many times its reserve is nearly full.
const NEARLY_FULL_RESERVES: u64 = 4;

/// What bytes are placed for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Chunks that writers store.
    NewChunks,
    /// Moves that make disks equally full.
    Balance,
    /// Members whose disk is lost or drains.
    Repair,
    /// Packs of which little is left, written anew: that gives back more space than it takes.
    Rewrite,
}

/// Bytes that stay free on a disk when something is placed on it: 1/64 of the disk, at most 1 GiB; for repair and rewriting half of that.
///
/// Repair must go on when writers have used all that they may use, and a full store must be able to get space back, so these two have the
/// first half of the reserve to themselves. The second half
/// is for compaction, and for what repair does not foresee: headers of records, and chunks that writers store meanwhile. A move that
/// only evens out disks can wait, so it leaves the reserve alone.
///
/// A node keeps its own `reserve_bytes` out of the free bytes that it reports, so it does not refuse what fits here.
fn reserve_bytes(capacity_bytes: u64, purpose: Purpose) -> u64 {
    let whole = (capacity_bytes / 64).min(RESERVE_CAP_BYTES);
    match purpose {
        Purpose::NewChunks | Purpose::Balance => whole,
        Purpose::Repair | Purpose::Rewrite => whole / 2,
    }
}

/// Bytes that may be placed on a disk for this purpose.
pub(crate) fn room_bytes(stats: &ClusterStats, disk_id: u64, capacity_bytes: u64, purpose: Purpose) -> u64 {
    stats.available_bytes(disk_id, capacity_bytes).saturating_sub(reserve_bytes(capacity_bytes, purpose))
}

/// Whether a disk has room for a fragment of a new chunk. With 0 bytes: whether it takes new chunks at all.
pub(crate) fn has_room(
    stats: &ClusterStats,
    disk_id: u64,
    capacity_bytes: u64,
    fragment_bytes: u64,
    purpose: Purpose,
) -> bool {
    let needed = reserve_bytes(capacity_bytes, purpose).saturating_add(fragment_bytes);
    stats.available_bytes(disk_id, capacity_bytes) >= needed
}

/// Whether a disk that takes new chunks has little space left.
///
/// # Errors
/// The database fails.
pub fn is_nearly_full(view: &View<'_>) -> Result<bool> {
    let little = |d: &DiskRow| {
        let available_bytes = view.soft.cluster.stats.available_bytes(d.disk_id, d.capacity_bytes);
        available_bytes < NEARLY_FULL_RESERVES * reserve_bytes(d.capacity_bytes, Purpose::NewChunks)
    };
    Ok(view.caches.node_map(view.db)?.disks.values().any(|d| d.writable() && little(d)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repair_and_rewriting_may_use_half_of_what_is_reserved() {
        let reserves = |capacity| {
            [Purpose::NewChunks, Purpose::Balance, Purpose::Repair, Purpose::Rewrite]
                .map(|purpose| reserve_bytes(capacity, purpose))
        };
        assert_eq!(reserves(64 << 20), [1 << 20, 1 << 20, 1 << 19, 1 << 19]);
        let large = [1 << 30, 1 << 30, 1 << 29, 1 << 29];
        assert_eq!(reserves(252 << 30), large, "a large disk keeps no more than 1 GiB free");
        assert_eq!(reserves(u64::MAX), large);
    }
}
