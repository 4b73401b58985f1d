//! The daemons as this binary runs them: configuration, logs, metrics, signals, and the two commands
//! `tessera manager` and `tessera node`. What the daemons do is in their own crates.
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
