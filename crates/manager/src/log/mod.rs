//! From request to command to log: the commands, group commit, replication, the reply cache, restoring from replicas.

pub mod batch;
pub mod cluster;
pub mod command;
pub mod internal;
pub mod replicate;
pub mod reply_cache;
pub mod restore;
pub mod upkeep;
