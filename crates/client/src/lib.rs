//! The library every front end uses.

pub mod class;
pub mod config;
pub mod error;
pub mod job;
pub mod path;
pub mod view;
mod calls;
mod fetch;
pub mod write_core;
pub mod cache;
pub mod read_core;
#[cfg(test)]
pub(crate) mod fake;
