//! `tessera flash serve`: an emulated SSD as a network block device. A thread reads the commands of a connection. With
//! delays a second one sends each reply when the simulated SSD is done with it; replies may overtake each other.

use super::backing_file::BackingFile;
use super::listen::{Listener, Stream, UnixSocket, Until};
use super::made::Made;
use super::replies::{Waiting, send_in_time, send_soon, stay_awake};
use super::room::Room;
use super::{control, device_search, fuse, memory};
use crate::args::ServeArgs;
use crate::daemon::signals::Events;
use crate::exit::{At, Exit, Failure, Outcome, bail, failure};
use crate::term::Out;
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::io::{self, BufReader, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};
use tessera_flash::nbd::{Command, Error, Kind, Reply, Session, negotiate};
use tessera_flash::{Config, CutCount, Cuts, Emulator, Histogram, Ns, Power, Refusal};

/// The most connections at once: each may have 64 MiB of replies that wait.
const CONNECTIONS_MAX: u64 = 64;

/// A client that has not agreed on an SSD for so long is hung up on, so that it takes nobody's place.
const HANDSHAKE_TIME: Duration = Duration::from_secs(5);

/// The least time between two lines about the same trouble: on a full file system some changes fail, and those that need no room do not.
const TROUBLE_PAUSE: Duration = Duration::from_secs(60);

/// Time to wait when the system gives no connection.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// An emulated SSD, and what all connections share.
pub struct Server {
    /// The SSD.
    pub emulator: Mutex<Emulator>,
    /// What it is, for `stat`.
    pub about: Value,
    /// Name of the layer.
    pub ftl: String,
    start: Instant,
    /// Whether replies wait until the simulated SSD is done.
    delays: bool,
    size: u64,
    page_bytes: u32,
    connections: AtomicU64,
    /// Those of the emulator, for threads that do not lock it.
    power_cuts: AtomicU64,
    /// How long after the simulated SSD was done replies left.
    late: Mutex<Histogram>,
    output: Out,
    /// Why a change of the backing failed last.
    trouble: Mutex<Option<Trouble>>,
}

/// Why changes of the backing fail.
struct Trouble {
    kind: io::ErrorKind,
    said: Instant,
    /// Whether a change succeeded since.
    is_over: bool,
}

impl Trouble {
    /// Whether nothing is to be said of such a failure: it was said before, and lasts or was a moment ago.
    fn is_known(&self, kind: io::ErrorKind) -> bool {
        self.kind == kind && (!self.is_over || self.said.elapsed() < TROUBLE_PAUSE)
    }
}

/// The SSD. One whose data are in a file has its flash laid out anew; a new file goes unless it is kept.
fn emulator(args: &ServeArgs, config: &Config) -> Outcome<(Emulator, Made)> {
    if args.backing == Path::new("memory") {
        return Ok((Emulator::new(config).map_err(Failure::usage)?, Made::default()));
    }
    // What cannot be made leaves no file.
    drop(Emulator::new(config).map_err(Failure::usage)?);
    let (file, made) = BackingFile::open(&args.backing, args.capacity, &args.geometry)?;
    let extents = file.extents().at(&args.backing)?;
    let mut emulator = Emulator::with_backing(config, Box::new(file)).map_err(Failure::usage)?;
    emulator.preload(extents);
    Ok((emulator, made))
}

/// Whether the layer learns from requests: asked of a device of its own, before there is a backing file.
fn learns(config: &Config) -> Outcome<bool> {
    Ok(Emulator::new(config).map_err(Failure::usage)?.plan_learning(1))
}

/// Serves until the process is ended.
pub fn serve(args: &ServeArgs) -> Outcome {
    let config = Config {
        shape: args.geometry,
        timing: args.timing.unwrap_or(tessera_flash::Timing::SIMULATION),
        searches: device_search::searches(args.ssd.device, &[args.ftl])?,
        ..args.ssd.config(args.capacity, args.ftl, args.map_cache)
    };
    memory::check(&config)?;
    // A signal that comes before this leaves nothing; one that comes later ends the server once all is there.
    let events = Events::listen(false)?;
    // Before the backing: an address that is taken makes no file there.
    let listener = Listener::bind(&args.nbd)?;
    if args.learn_after.is_some() && !learns(&config)? {
        bail!(
            Exit::Usage,
            "--learn-after: with these options {} learns nothing from requests; cpftl with its correlations does",
            args.ftl.name
        );
    }
    let control = control::path(args.control.as_deref(), &args.nbd);
    let control_socket = control.as_deref().map(control::bind).transpose()?;
    let (mut emulator, made) = emulator(args, &config)?;
    if let Some(after) = args.cut_after {
        let off_for = args.cut_for.map(|ms| ms * 1_000_000);
        emulator.plan_cuts(Cuts { after, seed: args.cut_seed, off_for });
    }
    if let Some(requests) = args.learn_after {
        emulator.plan_learning(requests);
    }
    let about = json!({
        "nbd": listener.uri(), "control": control.as_deref().map(shown), "capacity_bytes": args.capacity, "ftl": args.ftl.name,
        "map_cache_bytes": args.ftl.min_cache.map(|_| args.map_cache), "write_buffer_bytes": args.ssd.write_buffer,
        "backing": shown(&args.backing), "fuse": args.fuse.as_deref().map(shown),
    });
    let server = Arc::new(Server {
        emulator: Mutex::new(emulator),
        about,
        ftl: args.ftl.name.into(),
        start: Instant::now(),
        delays: args.timing.is_some(),
        size: args.capacity,
        page_bytes: args.geometry.page_bytes,
        connections: AtomicU64::new(0),
        power_cuts: AtomicU64::new(0),
        late: Mutex::default(),
        output: args.output,
        trouble: Mutex::new(None),
    });
    // From here on a server that does not start removes the file while nobody else can lock it.
    let made = made;
    let sockets = [listener.path(), control_socket.as_ref().map(UnixSocket::path)]
        .into_iter()
        .flatten()
        .map(Path::to_path_buf)
        .collect();
    let mounted = args.fuse.as_ref().map(|file| fuse::serve(&server, file, args.output)).transpose()?;
    // Before the threads: these would keep the sockets and the mount of a server that cannot say where it is.
    args.output.result(&server.about, listener.uri())?;
    args.output.flush()?;
    start_end(events, sockets, mounted)?;
    if let Some(socket) = control_socket {
        start_control(&server, socket, args.output)?;
    }
    made.keep();
    loop {
        let output = args.output;
        let stream = match listener.accept() {
            Ok(stream) => stream,
            Err(error) => {
                output.note(format!("no connection is accepted: {error}"));
                std::thread::sleep(ACCEPT_PAUSE);
                continue;
            }
        };
        if server.connections() >= CONNECTIONS_MAX {
            output.note(format!("a client was hung up on: there are {CONNECTIONS_MAX} connections already"));
            continue;
        }
        let counted = Counted::new(&server);
        let work = move || {
            if let Err(error) = counted.0.connection(stream) {
                output.note(format!("a connection ended: {error}"));
            }
        };
        if let Err(error) = std::thread::Builder::new().name("nbd".into()).spawn(work) {
            output.note(format!("a client was hung up on: no thread for it: {error}"));
        }
    }
}

/// A connection that counts.
struct Counted(Arc<Server>);

impl Counted {
    fn new(server: &Arc<Server>) -> Counted {
        server.connections.fetch_add(1, Ordering::Relaxed);
        Counted(server.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A path for people and JSON.
fn shown(path: &Path) -> String {
    path.display().to_string()
}

/// Ends the process when it is told to: without its sockets, and without the file that it mounted.
fn start_end(events: Events, sockets: Vec<PathBuf>, mounted: Option<fuse::Mounted>) -> Outcome {
    let end = move || {
        let _ = events.receiver().recv();
        for socket in sockets {
            let _ = std::fs::remove_file(socket);
        }
        let is_detached = mounted.is_none_or(fuse::Mounted::detach);
        std::process::exit(i32::from(!is_detached));
    };
    std::thread::Builder::new().name("end".into()).spawn(end).at("a thread").map(drop)
}

fn start_control(server: &Arc<Server>, socket: UnixSocket, output: Out) -> Outcome {
    let (server, shown) = (server.clone(), shown(socket.path()));
    output.note(format!("figures: tessera flash stat {shown}"));
    let work = move || {
        control::answer_all(&server, &socket, |error| {
            output.note(format!("{shown}: no connection is accepted: {error}"))
        });
    };
    std::thread::Builder::new().name("control".into()).spawn(work).at("a thread").map(drop)
}

impl Server {
    fn connection(&self, mut stream: Stream) -> io::Result<()> {
        let silent = || io::Error::new(io::ErrorKind::TimedOut, "the client took too long to agree on anything");
        // Before the client has its answer: it must hear of each cut after that.
        let seen_cuts = self.cut_count();
        let mut timed = Until { stream: &mut stream, end: Instant::now() + HANDSHAKE_TIME };
        let agreed = negotiate(&mut timed, self.size, self.page_bytes);
        let agreed = agreed.map_err(|error| if error.kind() == io::ErrorKind::WouldBlock { silent() } else { error });
        let Some(session) = agreed? else { return Ok(()) };
        stream.set_timeout(None)?;
        let (mut replies, input) = (stream.try_clone()?, BufReader::new(stream));
        let room = Room::default();
        if !self.delays {
            return self.commands(input, (session, seen_cuts), &room, |_, reply| {
                replies.write_all(&reply.bytes)?;
                room.free(reply.room);
                Ok(())
            });
        }
        let (sender, receiver) = channel();
        let mut soon = replies.try_clone()?;
        std::thread::scope(|scope| {
            let sending = std::thread::Builder::new().name("nbd replies".into()).spawn_scoped(scope, || {
                let receiver = receiver;
                let sent = send_in_time(self, session, (&receiver, &room), replies);
                room.close();
                sent
            })?;
            let gone = |_| io::Error::from(io::ErrorKind::BrokenPipe);
            let read = self.commands(input, (session, seen_cuts), &room, |input, reply| {
                match send_soon(self, session, (input, &room), &mut soon, reply)? {
                    Some(reply) => sender.send(reply).map_err(gone)?,
                    None => stay_awake(self, input),
                }
                Ok(())
            });
            drop(sender);
            let sent = sending.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            sent.and(read)
        })
    }

    /// Executes the commands of a connection, each once there is room for its reply.
    fn commands(
        &self,
        mut input: BufReader<Stream>,
        (session, mut seen_cuts): (Session, CutCount),
        room: &Room,
        mut answer: impl FnMut(&BufReader<Stream>, Waiting) -> io::Result<()>,
    ) -> io::Result<()> {
        while let Some(command) = Command::read(&mut input, self.size)? {
            let taken = if command.kind == Ok(Kind::Read) { command.length as usize } else { 0 };
            if !room.take(taken) {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            let (due, power_cuts, reply) = self.execute(&command, &mut seen_cuts);
            let bytes = reply.encode(session);
            answer(&input, Waiting { due, cookie: command.cookie, power_cuts, bytes, room: taken })?;
        }
        Ok(())
    }

    /// Time since the start, in ns.
    pub fn now(&self) -> Ns {
        self.start.elapsed().as_nanos() as Ns
    }

    /// Bytes that the host can address.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Whether replies wait until the simulated SSD is done.
    pub fn delays(&self) -> bool {
        self.delays
    }

    /// Connections that are open.
    pub fn connections(&self) -> u64 {
        self.connections.load(Ordering::Relaxed)
    }

    /// Power cuts so far.
    pub fn power_cuts(&self) -> u64 {
        self.power_cuts.load(Ordering::Relaxed)
    }

    /// Power cuts that a connection which begins now needs not hear of.
    pub fn cut_count(&self) -> CutCount {
        self.emulator.lock().cut_count()
    }

    /// Counts a reply that leaves now.
    pub fn note_sent(&self, due: Ns) {
        self.late.lock().add(self.now().saturating_sub(due));
    }

    /// How late replies left, if they wait: `mean`, quantiles and `max` in ns.
    pub fn late_ns(&self) -> Option<Value> {
        let late = self.delays.then(|| self.late.lock())?;
        let [p50, p99, most] = [late.quantile(0.5), late.quantile(0.99), late.quantile(0.999)];
        Some(json!({ "mean": late.mean(), "p50": p50, "p99": p99, "p99.9": most, "max": late.max() }))
    }

    /// Lets all connections know of power cuts.
    pub fn note_cuts(&self, emulator: &Emulator) {
        self.power_cuts.store(emulator.power_cuts(), Ordering::Relaxed);
    }

    /// Executes a command; returns when the simulated SSD is done with it, and how many power cuts there were before.
    ///
    /// After a cut each connection gets at least one error, as SCSI's unit attention tells each host of a reset. After one that
    /// dropped what was acknowledged, its next FLUSH fails, too: a host that tries a read again and goes on would take it that
    /// the FLUSH covers what the cut dropped, whichever connection wrote it.
    pub fn execute(&self, command: &Command, seen_cuts: &mut CutCount) -> (Ns, u64, Reply) {
        let cookie = command.cookie;
        let mut emulator = self.emulator.lock();
        // Under the lock, so that time does not go back.
        let (now, count) = (self.now(), emulator.cut_count());
        let cuts = count.all;
        let failed = |error| (now, cuts, Reply { cookie, data: None, error: Some(error) });
        let kind = match command.kind {
            Ok(kind) => kind,
            Err(error) => return failed(error),
        };
        let is_news = std::mem::replace(&mut seen_cuts.all, count.all) != count.all;
        let is_lost = kind == Kind::Flush && std::mem::replace(&mut seen_cuts.lossy, count.lossy) != count.lossy;
        if is_news || is_lost || emulator.power(now) != Power::On {
            return failed(Error::Io);
        }
        let done = carry_out(&mut emulator, now, kind, command);
        self.note_cuts(&emulator);
        drop(emulator);
        match done {
            Ok((due, data)) => {
                if kind != Kind::Read {
                    self.trouble.lock().iter_mut().for_each(|trouble| trouble.is_over = true);
                }
                (due, cuts, Reply { cookie, data, error: None })
            }
            Err(Refusal::PowerOff) => failed(Error::Io),
            Err(Refusal::Backing(error)) => failed(self.backing_failed(&error)),
        }
    }

    /// Says why the backing failed; returns what the client gets.
    fn backing_failed(&self, error: &io::Error) -> Error {
        let kind = error.kind();
        let is_full = matches!(kind, io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
        let mut trouble = self.trouble.lock();
        let is_news = trouble.as_ref().is_none_or(|trouble| !trouble.is_known(kind));
        if is_news {
            *trouble = Some(Trouble { kind, said: Instant::now(), is_over: false });
        }
        drop(trouble);
        if is_news {
            let file = self.about["backing"].as_str().unwrap_or_default();
            let failure = match is_full {
                true => failure!(Exit::NoSpace, "{file}: {error}; clients get errors until you free space there"),
                false => failure!(Exit::Failed, "{file}: {error}; clients get errors"),
            };
            self.output.warn(&failure);
        }
        if is_full { Error::NoSpace } else { Error::Io }
    }
}

/// Where the bytes that were read begin, and the bytes.
type Data = Option<(u64, Vec<u8>)>;

fn carry_out(emulator: &mut Emulator, now: Ns, kind: Kind, command: &Command) -> Result<(Ns, Data), Refusal> {
    let (offset, length) = (command.offset, u64::from(command.length));
    let (cuts_before, mut data) = (emulator.power_cuts(), None);
    let mut due = match kind {
        Kind::Read => {
            let mut bytes = vec![0; command.length as usize];
            let due = emulator.read(now, offset, &mut bytes)?;
            data = Some((offset, bytes));
            due
        }
        Kind::Write => emulator.write(now, offset, &command.data)?,
        Kind::Flush => emulator.flush(now)?,
        Kind::Trim => emulator.trim(now, offset, length)?,
        Kind::Zero { stay } => emulator.zero(now, offset, length, stay)?,
    };
    if command.fua && kind != Kind::Read {
        if emulator.power_cuts() != cuts_before {
            // The cut that followed the request dropped what it wrote, and power may be back already.
            return Err(Refusal::PowerOff);
        }
        due = due.max(emulator.flush(now)?);
    }
    Ok((due, data))
}
