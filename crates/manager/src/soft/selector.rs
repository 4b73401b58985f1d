//! State of group selection ([`crate::placement::select`]) between selections.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The open groups and their weights, kept between selections.
#[derive(Debug, Default)]
pub struct GroupSelector {
    /// By width of the groups.
    pub(crate) widths: RefCell<BTreeMap<u32, WeightedGroups>>,
    /// State of the random generator.
    pub(crate) random: Cell<u64>,
    /// (width, host) that placement hints asked for: groups that begin there stay open.
    pub(crate) asked: RefCell<BTreeSet<(u32, String)>>,
    /// By width of the groups: the room that the last fragment needed for which no group had it, although enough hosts did.
    pub(crate) lacking: RefCell<BTreeMap<u32, u64>>,
}

/// The open groups of one width.
#[derive(Debug)]
pub(crate) struct WeightedGroups {
    /// Map version from which they were read.
    pub(crate) map_version: u64,
    /// [`crate::soft::stats::ClusterStats::generation`] from which the weights were computed.
    pub(crate) generation: u64,
    pub(crate) groups: Vec<OpenGroup>,
    /// Running sums of the weights of `groups`.
    pub(crate) sums: Vec<f64>,
}

/// A group that takes new chunks.
#[derive(Debug)]
pub(crate) struct OpenGroup {
    pub(crate) pg_id: u64,
    /// (disk that takes puts, its capacity) per member.
    pub(crate) disks: Vec<(u64, u64)>,
    /// Host per member.
    pub(crate) hosts: Vec<Arc<str>>,
    /// Members that take no puts now.
    pub(crate) unable: u32,
}
