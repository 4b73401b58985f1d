//! The daemons of this binary: configuration, logs, metrics, signals, and the commands `tessera manager` and `tessera
//! node`. The daemons' logic is in other crates.
//!
//! Start at [`manager::run`] and [`node::run`].

pub mod announce;
mod capacity;
pub mod config;
pub mod knobs;
pub mod logging;
pub mod manager;
pub mod metrics;
pub mod node;
pub mod signals;
