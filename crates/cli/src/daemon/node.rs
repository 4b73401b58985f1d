//! `tessera node`.

use crate::args::NodeRunArgs;
use crate::exit::Outcome;

/// Runs a node until it is asked to stop.
pub fn run(args: NodeRunArgs) -> Outcome {
    let _ = crate::daemon::config::NodeSettings::new(args)?;
    Ok(())
}
