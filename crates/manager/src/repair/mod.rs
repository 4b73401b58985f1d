//! Redundancy: rebuilds missing fragments, replaces members of groups, and runs inventories and maintenance jobs.

pub mod backfill;
pub mod inventory;
pub mod maintenance;
pub mod moves;
pub mod proof;
pub mod rebuild;
