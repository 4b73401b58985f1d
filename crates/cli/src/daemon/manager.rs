//! `tessera manager`.

use crate::args::ManagerArgs;
use crate::exit::Outcome;

/// Runs a manager until it is asked to stop.
pub fn run(args: ManagerArgs) -> Outcome {
    let _ = crate::daemon::config::ManagerSettings::new(args)?;
    Ok(())
}
