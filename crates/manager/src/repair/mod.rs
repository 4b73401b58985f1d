//! Redundancy kept and restored: rebuilding missing fragments, replacing members of groups, inventories, maintenance jobs.

pub mod backfill;
pub mod inventory;
pub mod maintenance;
pub mod rebuild;
pub mod redundancy;
