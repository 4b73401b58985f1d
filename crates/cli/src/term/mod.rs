//! Output for people: lines, units, tables, progress bars. Nothing here knows what it shows.

mod out;
mod progress;
mod table;
pub mod units;

pub use out::{Out, name_text};
pub use progress::Progress;
pub use table::Table;
