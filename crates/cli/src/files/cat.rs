//! `tessera cat`, and `get … -`.

use super::pool;
use super::target::store_paths;
use crate::args::CatArgs;
use crate::exit::{Failure, Outcome};
use crate::remote::Store;
use crate::term::{Out, units};
use std::io::{self, Write};
use std::ops::Range;
use tessera_client::path::StorePath;
use tessera_client::{GetOptions, ReadReport, Sink};

/// `tessera cat`.
///
/// # Errors
/// A file cannot be read or verified, or stdout cannot be written.
pub fn cat(args: CatArgs) -> Outcome {
    let range = args.range.as_deref().map(units::parse_range).transpose().map_err(Failure::usage)?;
    let paths = store_paths(&args.on.paths)?;
    let store = Store::connect_for_files(&args.on.common, args.memory)?;
    to_stdout(&store, &paths, args.version, range, args.on.common.output)
}

/// Writes files to stdout, one after the other.
pub(super) fn to_stdout(
    store: &Store,
    paths: &[StorePath],
    version: Option<u64>,
    range: Option<Range<u64>>,
    out: Out,
) -> Outcome {
    let ran = pool::each(out, paths, |path| {
        let mut sink = Stdout { broken: false };
        let options = GetOptions { version: version.unwrap_or(0), range: range.clone(), ..GetOptions::default() };
        match store.get(path, Sink::Writer(&mut sink), options).map_err(Failure::from) {
            // A closed pipe ends the output without a message.
            Err(failure) if sink.broken => Err(Failure::silent(failure.exit)),
            outcome => outcome.map(drop),
        }
    });
    note_report(store.read_report(), out);
    ran.outcome().and(out.flush())
}

/// Prints one line on the fragments that reads did without, unless they were only late.
pub(super) fn note_report(report: ReadReport, out: Out) {
    let clauses = [
        (report.bad, "missing or wrong (reported for repair)"),
        (report.unreachable, "on nodes that cannot be reached"),
        (report.late, "late"),
    ];
    let clauses = units::clauses(clauses, ", ");
    if report.bad + report.unreachable > 0 {
        out.note(format!("fragments read around: {clauses}; every byte that was delivered is verified"));
    }
}

/// Stdout; remembers whether its reader has closed the pipe.
struct Stdout {
    broken: bool,
}

impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let wrote = io::stdout().write(bytes);
        self.broken |= matches!(&wrote, Err(e) if e.kind() == io::ErrorKind::BrokenPipe);
        wrote
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stdout().flush()
    }
}
