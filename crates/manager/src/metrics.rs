//! Metrics of the core, as `/metrics` exports them.

use std::collections::BTreeMap;
use tessera_wire::Kind;

/// A snapshot of the manager's counters and gauges; names without the `tessera_manager_` prefix.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Metrics {
    /// Requests by kind.
    pub requests: BTreeMap<&'static str, u64>,
    /// Requests answered with an error.
    pub refused: u64,
    /// Group commits.
    pub batches: u64,
    /// Commands in group commits.
    pub commands: u64,
    /// Group commits that failed.
    pub failed_batches: u64,
    /// Values that go up and down.
    pub gauges: Vec<(&'static str, u64)>,
}

impl Metrics {
    pub(crate) fn request(&mut self, kind: Kind) {
        *self.requests.entry(kind.name()).or_default() += 1;
    }

    pub(crate) fn batch(&mut self, commands: usize) {
        self.batches += 1;
        self.commands += commands as u64;
    }
}
