//! `tessera cat`, and `get … -`.

use super::pool;
use super::target::store_path;
use crate::args::CatArgs;
use crate::exit::{Failure, Outcome};
use crate::remote::{Store, Wanted};
use crate::term::{Out, units};
use std::io::{self, Write};
use tessera_client::path::StorePath;
use tessera_client::{ReadReport, Sink};

/// `tessera cat`.
///
/// # Errors
/// A file cannot be read or verified, or stdout cannot be written.
pub fn cat(args: CatArgs) -> Outcome {
    let range = args.range.as_deref().map(units::parse_range).transpose().map_err(Failure::usage)?;
    let paths = args.paths.iter().map(|p| store_path(p.as_ref())).collect::<Outcome<Vec<_>>>()?;
    let store = Store::connect(&args.common)?;
    let wanted = Wanted { version: args.version, range };
    let out = Out::new(args.common.output);
    let ran = pool::each(&out, &paths, |path| write_out(&store, path, wanted.clone()));
    tell_report(store.read_report(), &out);
    pool::sum(ran).and(out.flush())
}

/// Prints one line on the fragments that reads did without, unless they were only late.
pub(super) fn tell_report(report: ReadReport, out: &Out) {
    let clauses = [
        (report.bad, "missing or wrong (reported for repair)"),
        (report.unreachable, "on nodes that cannot be reached"),
        (report.late, "late"),
    ];
    let clauses = clauses.into_iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{} {what}", units::count(n)));
    if report.bad + report.unreachable > 0 {
        let clauses: Vec<String> = clauses.collect();
        out.note(format!("fragments read around: {}; every byte that was delivered is verified", clauses.join(", ")));
    }
}

/// The same report as JSON.
pub(super) fn report_document(report: ReadReport) -> serde_json::Value {
    serde_json::json!({"bad": report.bad, "unreachable": report.unreachable, "late": report.late})
}

/// Writes a file to stdout. A closed pipe ends it without a message.
pub(super) fn write_out(store: &Store, path: &StorePath, wanted: Wanted) -> Outcome {
    let mut sink = Stdout { broken: false };
    let outcome = store.fetch(path, Sink::Writer(&mut sink), &wanted, &|_| ());
    match outcome {
        Err(failure) if sink.broken => Err(Failure { message: String::new(), ..failure }),
        outcome => outcome.map(drop),
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
