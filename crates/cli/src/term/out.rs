//! Stdout and stderr: results, notes, JSON. A closed pipe (`| head`) ends the output without a panic.

use super::{Table, printable, printable_json};
use crate::exit::{At, Exit, Failure, Outcome};
use serde_json::{Value, json};
use std::io::{self, IsTerminal, Write};

/// How a command prints.
#[derive(Debug, Clone, Copy, Default, clap::Args)]
pub struct Out {
    /// Print only results and errors.
    #[arg(long, short)]
    pub quiet: bool,
    /// One JSON document, or one per line, on stdout; errors as JSON on stderr (docs/config.md, section 4).
    #[arg(long)]
    pub json: bool,
}

impl Out {
    /// Whether facts for people are printed to stderr.
    pub fn has_notes(self) -> bool {
        !self.quiet && !self.json
    }

    /// Whether progress bars can be drawn.
    pub fn draws(self) -> bool {
        self.has_notes() && io::stderr().is_terminal()
    }

    /// Prints one line of a result, without characters that a terminal would act on. Stdout is line-buffered, so the line
    /// needs no flush.
    ///
    /// # Errors
    /// Stdout cannot be written.
    pub fn line(self, line: impl AsRef<str>) -> Outcome {
        print(&printable(line.as_ref()))
    }

    /// Prints a table.
    ///
    /// # Errors
    /// Stdout cannot be written.
    pub fn table(self, table: &Table) -> Outcome {
        self.lines(table.lines())
    }

    /// Prints lines at once.
    ///
    /// # Errors
    /// Stdout cannot be written.
    pub fn lines(self, lines: impl IntoIterator<Item = impl AsRef<str>>) -> Outcome {
        print_all(lines.into_iter().map(|line| printable(line.as_ref()).into_owned()))
    }

    /// Prints JSON documents at once, each on its own line.
    ///
    /// # Errors
    /// Stdout cannot be written.
    pub fn documents(self, values: impl IntoIterator<Item = Value>) -> Outcome {
        print_all(values.into_iter().map(|value| printable_json(&value.to_string()).into_owned()))
    }

    /// Prints one JSON document on its own line.
    ///
    /// # Errors
    /// Stdout cannot be written.
    pub fn document(self, value: &Value) -> Outcome {
        print(&printable_json(&value.to_string()))
    }

    /// Prints a result: with `--json` the document, else the line.
    ///
    /// # Errors
    /// Stdout cannot be written.
    pub fn result(self, document: &Value, line: impl AsRef<str>) -> Outcome {
        if self.json { self.document(document) } else { self.line(line) }
    }

    /// Prints a summary: with `--json` the document to stdout, else the line to stderr.
    ///
    /// # Errors
    /// Stdout cannot be written.
    pub fn summary(self, document: &Value, line: impl AsRef<str>) -> Outcome {
        self.note(line);
        if self.json { self.document(document) } else { Ok(()) }
    }

    /// Flushes stdout.
    ///
    /// # Errors
    /// Stdout cannot be written.
    pub fn flush(self) -> Outcome {
        written(io::stdout().flush())
    }

    /// Prints a fact for people to stderr. Suppressed by `--quiet` and `--json`.
    pub fn note(self, line: impl AsRef<str>) {
        if self.has_notes() {
            let _ = writeln!(io::stderr(), "{}", printable(line.as_ref()));
        }
    }

    /// Warns of something that will go wrong later; on stderr, even with `--quiet`.
    pub fn caution(self, message: String) {
        let line = match self.json {
            true => printable_json(&json!({"warning": message}).to_string()).into_owned(),
            false => format!("tessera: warning: {}", printable(&message)),
        };
        let _ = writeln!(io::stderr(), "{line}");
    }

    /// Reports a failure that did not end the command; on stderr, even with `--quiet`.
    pub fn warn(self, failure: &Failure) {
        if !crate::cleanup::is_interrupted() {
            failure.report(self.json);
        }
    }
}

fn print_all(lines: impl Iterator<Item = String>) -> Outcome {
    let mut text = String::new();
    for line in lines {
        text.push_str(&line);
        text.push('\n');
    }
    written(io::stdout().lock().write_all(text.as_bytes()))
}

fn print(line: &str) -> Outcome {
    let mut out = io::stdout().lock();
    written(out.write_all(line.as_bytes()).and_then(|()| out.write_all(b"\n")))
}

/// The outcome of a write to stdout. A closed pipe gets an empty message: nothing is reported.
fn written(outcome: io::Result<()>) -> Outcome {
    match outcome {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(Failure::silent(Exit::Failed)),
        outcome => outcome.at("stdout"),
    }
}
