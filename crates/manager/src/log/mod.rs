//! The command log: the table of requests, group commit, replay, the reply cache.

pub mod batch;
pub mod lease_effects;
pub mod records;
pub mod registry;
pub mod reply_cache;
