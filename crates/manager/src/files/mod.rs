//! Files: write and read sessions, commits, versions and their extents, expiry.

pub mod commit;
pub mod expiry;
pub mod pages;
pub mod reads;
pub mod sessions;
pub mod versions;
