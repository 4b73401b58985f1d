//! Stdout and stderr: results, notes, JSON. A closed pipe (`| head`) ends the output without a panic.

use crate::args::OutputOptions;
use crate::exit::{Exit, Failure, Outcome};
use std::io::{self, IsTerminal, Write};

/// Where and how a command prints.
#[derive(Debug, Clone, Copy)]
pub struct Out {
    output: OutputOptions,
}

impl Out {
    /// Output with the user's options.
    pub fn new(output: OutputOptions) -> Self {
        Out { output }
    }

    /// Whether results are JSON.
    pub fn json(&self) -> bool {
        self.output.json
    }

    /// Whether notes are suppressed.
    pub fn quiet(&self) -> bool {
        self.output.quiet
    }

    /// Whether progress bars can be drawn.
    pub fn draws(&self) -> bool {
        !self.output.quiet && !self.output.json && io::stderr().is_terminal()
    }

    /// Prints one line of a result.
    ///
    /// # Errors
    /// Stdout cannot be written.
    pub fn line(&self, line: impl AsRef<str>) -> Outcome {
        let mut out = io::stdout().lock();
        out.write_all(line.as_ref().as_bytes()).and_then(|()| out.write_all(b"\n")).map_err(|e| stdout_failed(&e))
    }

    /// Prints one JSON document on its own line.
    ///
    /// # Errors
    /// Stdout cannot be written.
    pub fn document(&self, value: &serde_json::Value) -> Outcome {
        self.line(value.to_string())
    }

    /// Flushes stdout.
    ///
    /// # Errors
    /// Stdout cannot be written.
    pub fn flush(&self) -> Outcome {
        io::stdout().flush().map_err(|e| stdout_failed(&e))
    }

    /// Prints a fact for people to stderr. Suppressed by `--quiet` and `--json`.
    pub fn note(&self, line: impl AsRef<str>) {
        if !self.output.quiet && !self.output.json {
            let _ = writeln!(io::stderr(), "{}", line.as_ref());
        }
    }

    /// Warns of something that will go wrong later; on stderr, even with `--quiet`.
    pub fn caution(&self, message: impl Into<String>) {
        let message = message.into();
        let line = match self.output.json {
            true => serde_json::json!({"warning": message}).to_string(),
            false => format!("tessera: warning: {message}"),
        };
        let _ = writeln!(io::stderr(), "{line}");
    }

    /// Reports a failure that did not end the command; on stderr, even with `--quiet`.
    pub fn warn(&self, failure: &Failure) {
        if !crate::cleanup::is_interrupted() {
            failure.report(self.output.json);
        }
    }
}

/// The failure for a write to stdout. A closed pipe gets an empty message: nothing is reported.
pub fn stdout_failed(error: &io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::BrokenPipe => Failure { exit: Exit::Failed, message: String::new() },
        _ => Failure::io("stdout", error),
    }
}

/// A name as it can be shown on a terminal: control characters are escaped, bytes that are not UTF-8 become `\xNN`.
pub fn name_text(name: &[u8]) -> String {
    let mut text = String::with_capacity(name.len());
    for piece in name.utf8_chunks() {
        for c in piece.valid().chars() {
            match c.is_control() {
                true => text.extend(c.escape_default()),
                false => text.push(c),
            }
        }
        piece.invalid().iter().for_each(|b| text.push_str(&format!("\\x{b:02x}")));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_play_tricks_on_a_terminal() {
        assert_eq!(name_text(b"plain \xc3\xa4"), "plain ä");
        assert_eq!(name_text(b"a\nb\x1b[2J\xff"), "a\\nb\\u{1b}[2J\\xff");
    }
}
