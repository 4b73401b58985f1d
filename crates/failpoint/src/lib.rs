//! Named failpoints: mistakes that production code makes on request, so that tests show that they would catch them.
//!
//! A failpoint is a name in [`ALL`]. Production code asks [`is_active`] at the place where the mistake would be made; a test
//! holds the `Guard` of `activate` while it wants the mistake. A test suite that passes with a failpoint active misses a bug.
//!
//! What lives here: the table of names and the registry. What does not: the mistakes themselves, which stand in the code that
//! they break. This crate depends on nothing.
//!
//! # Cost
//! Without the feature `active`, [`is_active`] is a `const fn` that returns false, and the compiler removes what it guards.
//! Production crates depend on this crate without the feature; only their dev-dependencies turn it on. So `cargo build -p
//! tessera-cli` has no failpoints. A build that selects tests too (`--all-targets`) may have them, because Cargo unifies the
//! features of what it builds together: never ship a binary of such a build. `tests/table.rs` checks the dependencies.
//!
//! # One registry per thread
//! The simulator runs whole clusters in parallel threads of one process, one with a failpoint and its neighbour without. So
//! the registry is thread-local. (The crate `fail` has one registry per process, which is why it does not serve here.) Code that
//! starts a background thread hands the failpoints over: [`inherit`] in the starting thread, [`Inherited::enter`] in the new one.
//!
//! Real processes take failpoints for all their threads from the variable `TESSERA_FAILPOINTS`, names with commas between them, if
//! they were built with the feature:
//! `cargo build -p tessera-cli -p tessera-failpoint --features active`.

mod table;

/// The environment variable that names failpoints of a whole process.
#[cfg(feature = "active")]
const VARIABLE: &str = "TESSERA_FAILPOINTS";

pub use table::ALL;
#[cfg(feature = "active")]
mod registry;
#[cfg(feature = "active")]
pub use registry::{Guard, Inherited, activate, inherit, is_active};

/// Whether a failpoint is active in this thread. False: this build has no failpoints.
#[cfg(not(feature = "active"))]
#[inline(always)]
#[must_use]
pub const fn is_active(_name: &str) -> bool {
    false
}

/// The failpoints of the thread that called [`inherit`]; none in this build.
#[cfg(not(feature = "active"))]
#[derive(Clone, Copy, Debug)]
pub struct Inherited;

/// The failpoints that are active in this thread, for a thread that it starts.
#[cfg(not(feature = "active"))]
#[must_use]
pub const fn inherit() -> Inherited {
    Inherited
}

#[cfg(not(feature = "active"))]
impl Inherited {
    /// Activates the failpoints in the calling thread, until the thread ends.
    pub const fn enter(self) {}
}
