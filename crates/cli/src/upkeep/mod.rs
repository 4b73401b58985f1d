//! Commands on the cluster: its state, its nodes, its maintenance jobs.

pub mod maintain;
mod managers;
mod nodes;
pub mod status;
mod waiting;

pub use maintain::maintain;
pub use managers::manager;
pub use nodes::node;
pub use status::status;
