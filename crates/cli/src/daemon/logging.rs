//! The log: structured, on stderr, as text or JSON lines, without characters that a terminal would act on.

use super::repeats::Repeats;
use crate::args::{DaemonFlags, LogFormat};
use crate::exit::{Exit, Outcome, failure};
use crate::term::{printable, printable_json};
use std::io::{self, IsTerminal, Write};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

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
        let builder = tracing_subscriber::fmt().with_max_level(tracing::Level::WARN).with_writer(|| Text);
        let builder = builder.log_internal_errors(false).with_ansi(io::stderr().is_terminal());
        builder.without_time().with_target(false).init();
    }
    Ok(())
}

fn start_at(level: &str, format: LogFormat) -> Outcome {
    let filter = filter(level)?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter);
    // A log that cannot be written (a full disk) must not end the daemon. By default `tracing` prints the error to the same
    // stderr, and that panics.
    let builder = builder.log_internal_errors(false);
    match format {
        LogFormat::Text => {
            let text = builder.with_ansi(io::stderr().is_terminal()).with_writer(|| Text);
            text.finish().with(Repeats::default()).init();
        }
        LogFormat::Json => {
            let json = builder.json().flatten_event(true).with_writer(|| Json);
            json.finish().with(Repeats::default()).init();
        }
    }
    Ok(())
}

/// Writes lines of text to stderr.
struct Text;
/// Writes lines of JSON to stderr.
struct Json;

/// Writes a line of the log. `tracing` passes each whole, with its line break.
fn write_line(line: &[u8], escape: impl Fn(&str) -> String) -> io::Result<usize> {
    let text = String::from_utf8_lossy(line);
    let mut shown = escape(text.trim_end_matches('\n'));
    shown.push('\n');
    io::stderr().write_all(shown.as_bytes())?;
    Ok(line.len())
}

impl Write for Text {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        // Colours are escape sequences; `tracing` escapes those of others.
        let escape = |line: &str| line.split('\x1b').map(printable).collect::<Vec<_>>().join("\x1b");
        write_line(line, |line| if io::stderr().is_terminal() { escape(line) } else { printable(line).into_owned() })
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Write for Json {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        write_line(line, |line| printable_json(line).into_owned())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
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
