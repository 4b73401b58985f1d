//! `tessera flash record`: runs a node, or CONA under YCSB, on disks that write down what is asked of them.

use super::ycsb;
use crate::args::{RecordArgs, Recorded};
use crate::daemon;
use crate::exit::{At, Exit, Outcome, bail};
use crate::term::{Out, Table, units};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tessera_flash::Op;
use tessera_flash::record::{Recorder, Totals};

/// How often an idle recording writes what waits.
const TICK: Duration = Duration::from_secs(1);

/// Records until the program ends.
pub fn record(args: RecordArgs) -> Outcome {
    if let Recorded::Node(node) = &args.program {
        check_apart(&args.out, &node.disks)?;
    }
    let failure = Arc::new(OnceLock::new());
    let recorder = recorder(create(&args.out)?, args.out.display().to_string(), failure.clone());
    let (stop, stopped) = channel();
    let ticking = recorder.clone();
    let tick = move || {
        while stopped.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
            ticking.tick()
        }
    };
    std::thread::Builder::new().name("record".into()).spawn(tick).at("a thread")?;
    let outcome = match args.program {
        Recorded::Node(node) => daemon::node::run_on(*node, |disk| recorder.wrap(disk)),
        Recorded::Cona(cona) => ycsb::run(&cona, args.output, |disk| recorder.wrap(disk)),
    };
    drop::<Sender<()>>(stop);
    let totals = recorder.finish();
    if outcome.is_err() && totals.is_empty() {
        std::fs::remove_file(&args.out).at(&args.out)?;
    }
    outcome?;
    if let Some(error) = failure.get() {
        let name = args.out.display();
        bail!(
            Exit::Failed,
            "{name}: could not be written ({error}), so the trace ends early; name a file with more room"
        );
    }
    show(&args.out, &totals, args.output)
}

/// A trace within a disk that is recorded would fill it, and be deleted with what the disk does not know.
fn check_apart(out: &Path, disks: &[PathBuf]) -> Outcome {
    let directory = out.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let Ok(directory) = directory.canonicalize() else { return Ok(()) };
    for disk in disks {
        if disk.canonicalize().is_ok_and(|disk| directory.starts_with(disk)) {
            bail!(
                Exit::Usage,
                "{}: is within {}, a disk that is recorded; name a file elsewhere with --out",
                out.display(),
                disk.display()
            );
        }
    }
    Ok(())
}

/// A new file, its user's alone.
fn create(path: &Path) -> Outcome<File> {
    match OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            bail!(Exit::Conflict, "{}: exists already; remove it, or name another file with --out", path.display())
        }
        file => file.at(path),
    }
}

/// A recorder that says in `failure` why the trace ended early.
fn recorder(file: File, name: String, failure: Arc<OnceLock<String>>) -> Recorder {
    let begun = Instant::now();
    let clock = Box::new(move || begun.elapsed().as_nanos() as u64);
    let on_failure = Box::new(move |error: &io::Error| {
        tracing::warn!(trace = name, %error, "the trace cannot be written: it ends here, and what is recorded goes on");
        _ = failure.set(error.to_string());
    });
    Recorder::new(Box::new(file), clock, on_failure)
}

/// Prints what was asked for, by kind of file.
fn show(trace: &Path, totals: &BTreeMap<Arc<str>, Totals>, out: Out) -> Outcome {
    if out.json {
        let files: BTreeMap<&str, Value> = totals.iter().map(|(name, t)| (&**name, document(t))).collect();
        return out.document(&json!({ "trace": trace.display().to_string(), "files": files }));
    }
    let heads = ["files", "stored", "written", "writes", "flushes", "read", "reads", "trimmed", "trims"];
    let mut table = Table::new("lrrrrrrrr", &heads);
    for (name, t) in totals {
        let [read, write, trim] = [Op::Read, Op::Write, Op::Trim].map(|op| op as usize);
        table.row([
            name.to_string(),
            units::bytes(t.stored_bytes),
            units::bytes(t.bytes[write]),
            units::count(t.requests[write]),
            units::count(t.flushes),
            units::bytes(t.bytes[read]),
            units::count(t.requests[read]),
            units::bytes(t.bytes[trim]),
            units::count(t.requests[trim]),
        ]);
    }
    out.table(&table)
}

fn document(t: &Totals) -> Value {
    let [read, write, trim] = [Op::Read, Op::Write, Op::Trim].map(|op| op as usize);
    json!({
        "stored_bytes": t.stored_bytes, "written_bytes": t.bytes[write], "writes": t.requests[write],
        "flushes": t.flushes, "read_bytes": t.bytes[read], "reads": t.requests[read],
        "trimmed_bytes": t.bytes[trim], "trims": t.requests[trim],
    })
}
