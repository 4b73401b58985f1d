//! Programs that benchmarks drive: commands on standard input, one a line, each answered by one line.

use std::io::{BufRead, Write};

/// Answers each line of standard input with `ok` and what the command says, or `err` and why it failed. Ends with the input, when nobody
/// reads the answers, or when `run` returns `None`.
pub fn serve<E: std::fmt::Display>(mut run: impl FnMut(&str) -> Option<Result<String, E>>) {
    let mut out = std::io::stdout();
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        let said = match run(&line) {
            None => break,
            Some(Ok(facts)) => writeln!(out, "ok {facts}"),
            Some(Err(error)) => writeln!(out, "err {}", error.to_string().replace('\n', " ")),
        };
        if said.and_then(|()| out.flush()).is_err() {
            break;
        }
    }
}
