//! What `tessera-accel` is compared with. [`peers`] loads the libraries, [`timing`] takes turns, [`roofs`] says
//! what memory allows; `src/main.rs` prints GB/s side by side, `tests/` compares bytes. Nothing of the store
//! depends on this crate.

pub mod peers;
pub mod report;
pub mod roofs;
pub mod timing;
