//! Commands on the cluster: its state, its nodes, its maintenance jobs.

pub mod maintain;
mod nodes;
pub mod status;

pub use maintain::maintain;
pub use nodes::node;
pub use status::status;
