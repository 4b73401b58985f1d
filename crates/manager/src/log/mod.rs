//! The command log: the table of requests, group commit, replication, the reply cache, restore from replicas.

pub mod batch;
pub mod lease_effects;
pub mod records;
pub mod registry;
pub mod replicate;
pub mod reply_cache;
pub mod restore;
