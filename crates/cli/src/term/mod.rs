//! Output for people: lines, units, tables, progress bars. Nothing here knows what it shows.

mod out;
mod printable;
mod progress;
mod table;
pub mod units;

pub use out::Out;
pub use printable::{html_text, name_text, printable, printable_json};
pub use progress::Progress;
pub use table::Table;
