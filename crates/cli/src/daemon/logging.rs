//! The log: structured, on stderr, as text or JSON lines.

use crate::args::{DaemonFlags, LogFormat};
use crate::exit::{Exit, Outcome, failure};
use std::io::IsTerminal;
use tracing_subscriber::EnvFilter;

/// Default level.
pub const DEFAULT_LEVEL: &str = "info";

/// Starts the log of a daemon.
///
/// # Errors
/// The level is not valid.
pub fn start(flags: &DaemonFlags) -> Outcome {
    start_at(flags.log_level.as_deref().unwrap_or(DEFAULT_LEVEL), flags.log_format.unwrap_or(LogFormat::Text))
}

/// Starts the log of a command: by `TESSERA_LOG`, or else, for people, warnings as text.
///
/// # Errors
/// `TESSERA_LOG` is not valid.
pub fn start_for_command(for_people: bool) -> Outcome {
    if let Ok(level) = std::env::var("TESSERA_LOG") {
        return start_at(&level, LogFormat::Text);
    }
    if for_people {
        let builder = tracing_subscriber::fmt().with_max_level(tracing::Level::WARN).with_writer(std::io::stderr);
        let builder = builder.log_internal_errors(false).with_ansi(std::io::stderr().is_terminal());
        builder.without_time().with_target(false).init();
    }
    Ok(())
}

fn start_at(level: &str, format: LogFormat) -> Outcome {
    let filter = filter(level)?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // A log that cannot be written (a full disk) must not end the daemon. By default `tracing` prints the error to the same
    // stderr, and that panics.
    let builder = builder.log_internal_errors(false);
    match format {
        LogFormat::Text => builder.with_ansi(std::io::stderr().is_terminal()).init(),
        LogFormat::Json => builder.json().flatten_event(true).init(),
    }
    Ok(())
}

/// The filter parser takes any bare word as a target and then logs nothing else: a typing error would silence the log (P14).
fn filter(level: &str) -> Outcome<EnvFilter> {
    let is_level = |word: &str| ["off", "error", "warn", "info", "debug", "trace"].contains(&word.trim());
    let bad = level.split(',').find(|part| !is_level(part.rsplit_once('=').map_or(*part, |(_, level)| level)));
    let wrong = |part: &str| {
        failure!(
            Exit::Usage,
            "`{part}` is not a log level; write error, warn, info, debug, trace, or target=level pairs with commas"
        )
    };
    match bad {
        Some(part) => Err(wrong(part)),
        None => EnvFilter::builder().parse(level).map_err(|_| wrong(level)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_typing_error_is_no_silence() {
        for good in ["info", "warn,tessera_node=debug", "off"] {
            assert!(filter(good).is_ok(), "{good}");
        }
        for bad in ["loud", "", "info,tessera_node", "tessera_node=", "x=loud", "info;debug"] {
            assert!(filter(bad).is_err(), "{bad}");
        }
    }
}
