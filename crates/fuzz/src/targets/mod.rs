//! The targets, one for each kind of input.

pub mod consensus_log;
pub mod extents;
pub mod frames;
pub mod hints;
pub mod peer;
pub mod requests;
pub mod segments;
pub mod spool_log;

use crate::Target;

/// All targets.
pub const ALL: [&Target; 8] = [
    &frames::TARGET,
    &requests::TARGET,
    &segments::TARGET,
    &extents::TARGET,
    &consensus_log::TARGET,
    &peer::TARGET,
    &hints::TARGET,
    &spool_log::TARGET,
];
