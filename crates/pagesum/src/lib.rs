//! A checksum in every page of an SQLite database.
//!
//! SQLite believes what its file holds. The VFS of this crate stands between SQLite and the system's files: it writes an
//! 8-byte sum into the reserved bytes at the end of each page ([`page`]), and compares it whenever SQLite reads a page. Pages
//! in the write-ahead log are compared with the sums of what was written there, which [`Watch`] remembers. The first page
//! that does not match is kept as [`Damage`], and SQLite gets an I/O error.
//!
//! It also remembers failed writes and syncs, across a restart too: after a failed sync the system's page cache may hold
//! pages that the disk does not ([`unsynced`]). [`scrub`] reads pages that nobody asks for; [`log_check`] finds a write-ahead
//! log that lost entries in its middle. Connections to one path have one file open: a directory may be replaced while one of them is
//! open, and a later one would read another database ([`Watch::displaced`]). Start at [`open`]. What does not live here: what the pages mean.
//!
//! The names in the docs of functions are those of SQLite's C interface (<https://www.sqlite.org/c3ref/vfs.html>).

pub mod log_check;
pub mod page;
pub mod scrub;
pub mod unsynced;
mod vfs;
mod watch;

pub use vfs::{VFS_NAME, open, reserve, watch};
pub use watch::{Damage, Displaced, FileId, Watch};
