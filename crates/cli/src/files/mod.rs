//! Commands on files and directories: local trees on one side, the client library on the other.
//!
//! [`local`] walks local trees, [`place`] makes fetched entries, [`pool`] runs many transfers at once, [`small`] stores many small files
//! together, [`target`] decides the names under which things are stored. Each command has a module of its name.

mod cat;
mod checksum;
mod get;
pub mod holes;
pub mod local;
mod locate;
mod namespace;
pub mod place;
mod policy;
pub mod pool;
mod put;
mod rewrite;
mod show;
mod small;
mod stale;
mod target;
mod tree;
mod unchanged;

pub use cat::cat;
pub use get::get;
pub use locate::locate;
pub use namespace::{mkdir, mv, rm};
pub use policy::policy;
pub use put::put;
pub use rewrite::rewrite;
pub use show::{ls, stat, versions};
pub use target::store_paths;
