//! The control socket of `tessera flash serve`. A client sends one line (`stat`, `restore`, `cut`, or `cut MS`), and gets one JSON
//! document; then the connection ends.

use super::listen::{self, Stream, UnixSocket, Until};
use super::replay::cpu_time;
use super::report::add_figures;
use super::serve::{ACCEPT_PAUSE, Server};
use crate::exit::{Exit, Failure, Outcome, bail, failure};
use rustix::time::ClockId;
use serde_json::{Value, json};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tessera_flash::Power;

/// What a client's line may have.
const LINE_MAX: u64 = 64;

/// The longest that a client may take to send its line, or to take the answer: the next one waits.
const CLIENT_TIME: Duration = Duration::from_secs(1);

/// The longest that a server may take to answer: it recovers the map of a large device meanwhile.
const ANSWER_TIME: Duration = Duration::from_secs(120);

/// What follows the path of the NBD socket.
const SUFFIX: &str = ".control";

/// Where the control socket of a server is.
pub fn path(named: Option<&Path>, nbd: &str) -> Option<PathBuf> {
    let beside = || nbd.strip_prefix("unix:").map(|path| PathBuf::from(format!("{path}{SUFFIX}")));
    named.map(Path::to_path_buf).or_else(beside)
}

/// Listens there.
///
/// # Errors
/// The path is taken, or no socket can be there.
pub fn bind(path: &Path) -> Outcome<UnixSocket> {
    listen::bind_unix(path).map_err(|e| e.of("the control socket"))
}

/// Answers clients, one after the other, for ever. `refused` gets why the system gave no connection.
pub fn answer_all(server: &Server, listener: &UnixSocket, refused: impl Fn(io::Error)) {
    loop {
        match listener.accept() {
            // A client that is gone or slow needs no answer.
            Ok(stream) => drop(answer(server, stream)),
            Err(error) => {
                refused(error);
                std::thread::sleep(ACCEPT_PAUSE);
            }
        }
    }
}

fn answer(server: &Server, stream: UnixStream) -> io::Result<()> {
    let (mut stream, mut line) = (Stream::Unix(stream), String::new());
    let timed = Until { stream: &mut stream, end: Instant::now() + CLIENT_TIME };
    BufReader::new(timed).take(LINE_MAX).read_line(&mut line)?;
    let words: Vec<&str> = line.split_whitespace().collect();
    let document = match words[..] {
        ["stat"] => stat(server),
        ["restore"] => restore(server),
        ["cut"] => cut(server, None),
        ["cut", ms] if ms.parse::<u64>().is_ok() => cut(server, ms.parse().ok()),
        _ => json!({ "error": "the server knows stat, restore, cut and cut MS" }),
    };
    let mut timed = Until { stream: &mut stream, end: Instant::now() + CLIENT_TIME };
    timed.write_all(format!("{document}\n").as_bytes())
}

fn stat(server: &Server) -> Value {
    let mut document = server.about.clone();
    let mut emulator = server.emulator.lock();
    let now = server.now();
    match emulator.power(now) {
        Power::On => document["power"] = "on".into(),
        Power::Off { until } => {
            document["power"] = "off".into();
            document["power_returns_in_ms"] = until.map(|until| (until - now).div_ceil(1_000_000)).into();
        }
    }
    document["connections"] = server.connections().into();
    if let Some(late) = server.late_ns() {
        document["late_ns"] = late;
    }
    let (figures, layer) = (emulator.figures(), emulator.ssd().layer_figures());
    drop(emulator);
    document["power_cuts"] = figures.power_cuts.into();
    document["cpu_ns_per_request"] =
        (cpu_time(ClockId::ProcessCPUTime).as_nanos() as u64 / figures.requests.max(1)).into();
    document["response_sum_ns"] = u64::try_from(figures.response.sum()).unwrap_or(u64::MAX).into();
    document["response_count"] = figures.response.len().into();
    add_figures(&mut document, &figures, &server.ftl, &layer);
    document
}

fn restore(server: &Server) -> Value {
    let mut emulator = server.emulator.lock();
    emulator.restore_power(server.now());
    json!({ "power": "on" })
}

fn cut(server: &Server, ms: Option<u64>) -> Value {
    let mut emulator = server.emulator.lock();
    let now = server.now();
    let lost = emulator.cut_power(now, ms.map(|ms| now.saturating_add(ms.saturating_mul(1_000_000))));
    server.note_cuts(&emulator);
    json!({ "power": "off", "lost_pages": lost, "power_returns_in_ms": ms })
}

/// Asks a server.
///
/// # Errors
/// None answers there, or not as one does.
pub fn ask(path: &Path, line: &str) -> Outcome<Value> {
    let shown = path.display();
    let mut stream = match UnixStream::connect(path) {
        Ok(stream) => stream,
        Err(error) if error.kind() == io::ErrorKind::NotFound => bail!(
            Exit::NotFound,
            "{shown}: no such socket; name what --control of `tessera flash serve` names, or its NBD socket with {SUFFIX} behind it"
        ),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            bail!(Exit::Unavailable, "{shown}: no server listens there; start `tessera flash serve` again")
        }
        Err(error) => return Err(Failure::io(path, &error)),
    };
    let mut answer = Vec::new();
    let asked = stream.set_read_timeout(Some(ANSWER_TIME));
    // In one piece. A server that hangs up has said why.
    let asked = asked.and_then(|()| stream.write_all(format!("{line}\n").as_bytes()));
    let read = stream.take(1 << 20).read_to_end(&mut answer);
    if answer.starts_with(b"NBDMAGIC") {
        bail!(
            Exit::Usage,
            "{shown} is the NBD socket of a server; its control socket is {shown}{SUFFIX} unless --control names one"
        );
    }
    asked.and(read).map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => failure!(
            Exit::Unavailable,
            "{shown}: no answer within {} s; what listens there is stopped or no server of `tessera flash serve`",
            ANSWER_TIME.as_secs()
        ),
        _ => Failure::io(path, &error),
    })?;
    match serde_json::from_slice::<Value>(&answer) {
        Ok(document) if document["error"].is_null() => Ok(document),
        Ok(document) => bail!(Exit::Usage, "{shown}: {}; use the same release on both sides", document["error"]),
        Err(_) => bail!(
            Exit::Usage,
            "{shown}: what listens there is no server of `tessera flash serve`; name its control socket"
        ),
    }
}
