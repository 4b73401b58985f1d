//! Comparisons for `tessera-accel`. [`peers`] loads the libraries, [`timing`] takes turns, [`rotation`] keeps
//! bytes out of caches, [`roofs`] computes upper bounds; `src/main.rs` prints GB/s side by side, `tests/` compares bytes. The store does not depend on this crate.

pub mod peers;
pub mod report;
pub mod roofs;
pub mod rotation;
pub mod timing;
