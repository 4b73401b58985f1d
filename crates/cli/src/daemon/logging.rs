//! The log: structured, on stderr, as text or JSON lines.

use crate::args::LogFormat;
use crate::daemon::config::Shared;
use crate::exit::{Failure, Outcome};
use std::io::IsTerminal;
use tracing_subscriber::EnvFilter;

/// Level when nothing is said.
pub const DEFAULT_LEVEL: &str = "info";

/// Starts the log of a daemon.
///
/// # Errors
/// A level that is none.
pub fn start(shared: &Shared) -> Outcome {
    start_at(shared.log_level.as_deref().unwrap_or(DEFAULT_LEVEL), shared.log_format.unwrap_or(LogFormat::Text))
}

/// Starts the log of a command: `TESSERA_LOG`, or nothing below errors.
pub fn start_for_command() -> Outcome {
    match std::env::var("TESSERA_LOG") {
        Ok(level) => start_at(&level, LogFormat::Text),
        Err(_) => Ok(()),
    }
}

fn start_at(level: &str, format: LogFormat) -> Outcome {
    let filter = EnvFilter::builder().parse(level).map_err(|error| {
        Failure::usage(format!(
            "log level {level:?}: {error}; write error, warn, info, debug, trace, or target=level pairs with commas"
        ))
    })?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match format {
        LogFormat::Text => builder.with_ansi(std::io::stderr().is_terminal()).init(),
        LogFormat::Json => builder.json().flatten_event(true).init(),
    }
    Ok(())
}
