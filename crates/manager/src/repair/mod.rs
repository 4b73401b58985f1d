//! Redundancy kept and restored: missing fragments, moves of group members, inventories, maintenance jobs.

pub mod backfill;
pub mod inventory;
pub mod maintenance;
pub mod rebuild;
pub mod tasks;
