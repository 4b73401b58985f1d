//! The driver of `bench/store.py`: one program that writes and reads for Tessera and for its peers, so
//! that all of them are timed by the same clock around the same buffers.
//!
//! It reads commands from standard input, one a line, words separated by spaces, and answers each with one
//! line: `ok key=value …` or `err what went wrong`. Data is made before the clock starts and compared after
//! it stops. Start at [`Driver::run`]; `posix.rs` drives any mounted file system, `store.rs` Tessera.

mod core_image;
mod data;
mod oracle;
mod posix;
mod similar;
mod store;

use bytes::{Bytes, BytesMut};
use std::time::Instant;

/// What a command answers, or why it failed.
type Reply = Result<String, Box<dyn std::error::Error>>;

/// Buffers and connection that live from command to command.
struct Driver {
    /// What is written, and what reads are compared with.
    source: Bytes,
    /// What was read last.
    sink: Vec<u8>,
    store: Option<store::Store>,
    /// Where naming chunks costs nothing (`--oracle`).
    oracle: Option<oracle::Oracle>,
    seen: similar::Seen,
}

/// What the commands are, for a person who starts this by hand.
const HELP: &str = "prepare BYTES SEED | memcpy ROUNDS | kernels | tcp | verify | quit | \
    posix-write PATH | posix-read PATH | posix-take PATH | posix-small DIR WRITERS FILES BYTES | \
    connect MANAGER [KNOB=NUMBER ...] | disconnect | mkdir PATH [HINT=VALUE ...] | write PATH | read PATH | take PATH | \
    small DIR WRITERS FILES BYTES | load PATH | foresee CUT | similar CUT | add PATH";

impl Driver {
    /// Carries out one command line; `None` ends the program.
    fn run(&mut self, line: &str) -> Option<Reply> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let reply = match words.as_slice() {
            ["quit"] => return None,
            ["prepare", bytes, seed] => self.prepare(bytes, seed),
            ["memcpy", rounds] => self.memcpy(rounds),
            ["kernels"] => data::kernels(&self.source),
            ["tcp"] => timed(self.source.len(), || data::tcp(&self.source)),
            ["verify"] => self.verify(),
            ["posix-write", path] => timed(self.source.len(), || posix::write(path.as_ref(), &self.source)),
            ["posix-read", path] => timed(self.sink.len(), || posix::read(path.as_ref(), &mut self.sink)),
            ["posix-take", path] => timed(self.sink.len(), || posix::take(path.as_ref(), self.sink.len())),
            ["posix-small", dir, writers, files, bytes] => {
                small_args(writers, files, bytes).and_then(|a| posix::small(dir.as_ref(), a, &self.source))
            }
            ["connect", manager, knobs @ ..] => store::Store::connect(manager, knobs).map(|s| {
                self.store = Some(s);
                String::new()
            }),
            ["disconnect"] => {
                self.store = None;
                Ok(String::new())
            }
            ["mkdir", path, hints @ ..] => self.store().and_then(|s| s.mkdir(path, hints)),
            ["write", path] => {
                let Driver { source, store, .. } = self;
                match store {
                    Some(s) => timed(source.len(), || s.write(path, source)),
                    None => Err(UNCONNECTED.into()),
                }
            }
            ["read", path] => {
                let Driver { sink, store, .. } = self;
                match store {
                    Some(s) => timed(sink.len(), || s.read(path, sink)),
                    None => Err(UNCONNECTED.into()),
                }
            }
            ["take", path] => {
                let len = self.sink.len();
                self.store().and_then(|s| timed(len, || s.take(path, len)))
            }
            ["small", dir, writers, files, bytes] => {
                small_args(writers, files, bytes).and_then(|a| self.store().and_then(|s| s.small(dir, a, &self.source)))
            }
            ["load", path] => std::fs::read(path).map_err(Into::into).map(|bytes| {
                self.source = bytes.into();
                String::new()
            }),
            ["foresee", cut] => similar::Cut::parse(cut).map(|cut| {
                if let Some(oracle) = &self.oracle {
                    oracle.foresee(&self.source, cut.params(), &cut.ends(&self.source));
                }
                String::new()
            }),
            ["similar", cut] => self.seen.look(cut, &self.source),
            ["add", path] => self.add(path),
            _ => Err(format!("unknown command; there are: {HELP}").into()),
        };
        Some(reply)
    }

    fn store(&self) -> Result<&store::Store, Box<dyn std::error::Error>> {
        self.store.as_ref().ok_or_else(|| UNCONNECTED.into())
    }

    /// Writes the source as one file; with what the store had to take of it.
    fn add(&self, path: &str) -> Reply {
        let computed = || self.oracle.as_ref().map_or(0, oracle::Oracle::computed_bytes);
        let (before, mut done) = (computed(), Default::default());
        let reply = timed(self.source.len(), || {
            done = self.store()?.add(path, &self.source)?;
            Ok(())
        })?;
        Ok(format!(
            "{reply} new_bytes={} sent_bytes={} chunks={} known_chunks={} computed_bytes={}",
            done.new_bytes,
            done.sent_bytes,
            done.chunks,
            done.known_chunks,
            computed() - before,
        ))
    }

    /// Fills the source with bytes that occur nowhere else, and touches every page of the sink.
    fn prepare(&mut self, bytes: &str, seed: &str) -> Reply {
        let (bytes, seed): (usize, u64) = (bytes.parse()?, seed.parse()?);
        // The same memory again, unless somebody still holds it: fresh pages would cost time later.
        let mut source = std::mem::take(&mut self.source).try_into_mut().unwrap_or_else(|_| BytesMut::new());
        source.resize(bytes, 0);
        data::fill(&mut source, seed);
        self.source = source.freeze();
        self.sink.resize(bytes, 0);
        self.sink.fill(0);
        Ok(String::new())
    }

    /// Copies source to sink, over and over, on one thread.
    fn memcpy(&mut self, rounds: &str) -> Reply {
        let rounds: usize = rounds.parse()?;
        let Driver { source, sink, .. } = self;
        timed(source.len() * rounds, || {
            for _ in 0..rounds {
                sink.copy_from_slice(std::hint::black_box(&source[..]));
            }
            Ok(())
        })
    }

    /// Whether what was read last is what was written last, and at how many bytes it differs.
    fn verify(&mut self) -> Reply {
        let wrong = if self.source[..] == self.sink[..] {
            0
        } else {
            self.source[..].iter().zip(&self.sink).filter(|(a, b)| a != b).count()
        };
        self.sink.fill(0);
        Ok(format!("wrong_bytes={wrong}"))
    }
}

/// What a store command answers before `connect`.
const UNCONNECTED: &str = "not connected: say connect ADDRESS first";

/// How many small files, by how many writers.
#[derive(Clone, Copy)]
struct Small {
    writers: usize,
    files_per_writer: usize,
    bytes: usize,
}

fn small_args(writers: &str, files: &str, bytes: &str) -> Result<Small, Box<dyn std::error::Error>> {
    let writers: usize = writers.parse()?;
    let files: usize = files.parse()?;
    if writers == 0 {
        return Err("at least one writer is needed".into());
    }
    Ok(Small { writers, files_per_writer: files.div_ceil(writers), bytes: bytes.parse()? })
}

/// Runs `work` under the clock.
fn timed(bytes: usize, work: impl FnOnce() -> Result<(), Box<dyn std::error::Error>>) -> Reply {
    let start = Instant::now();
    work()?;
    Ok(format!("bytes={bytes} seconds={:.6}", start.elapsed().as_secs_f64()))
}

/// Lets `args.writers` threads make their files through `make_one(writer, number, content)`; the contents
/// are made before the clock starts and all differ.
fn small_files<E: std::error::Error + Send + 'static>(
    args: Small,
    source: &Bytes,
    make_one: impl Fn(usize, usize, Bytes) -> Result<(), E> + Sync,
) -> Reply {
    let total = args.writers * args.files_per_writer;
    if source.len() < total * args.bytes {
        return Err(format!("{} bytes are prepared, {} are needed", source.len(), total * args.bytes).into());
    }
    let start = Instant::now();
    let mut slowest: Vec<f64> = Vec::with_capacity(total);
    std::thread::scope(|scope| -> Result<(), Box<dyn std::error::Error>> {
        let writers: Vec<_> = (0..args.writers)
            .map(|writer| {
                let make_one = &make_one;
                scope.spawn(move || -> Result<Vec<f64>, E> {
                    let mut times = Vec::with_capacity(args.files_per_writer);
                    for number in 0..args.files_per_writer {
                        let at = (writer * args.files_per_writer + number) * args.bytes;
                        let begun = Instant::now();
                        make_one(writer, number, source.slice(at..at + args.bytes))?;
                        times.push(begun.elapsed().as_secs_f64());
                    }
                    Ok(times)
                })
            })
            .collect();
        for writer in writers {
            slowest.extend(writer.join().map_err(|_| "a writer panicked")??);
        }
        Ok(())
    })?;
    let seconds = start.elapsed().as_secs_f64();
    slowest.sort_by(f64::total_cmp);
    let at = |share: f64| slowest.get(((total as f64 * share) as usize).min(total - 1)).copied().unwrap_or(0.0) * 1e3;
    Ok(format!("files={total} seconds={seconds:.6} p50_ms={:.3} p99_ms={:.3}", at(0.5), at(0.99)))
}

fn main() {
    let oracle = std::env::args().any(|word| word == "--oracle").then(oracle::Oracle::default);
    if let Some(oracle) = &oracle {
        tessera_accel::set_device(Box::new(oracle.clone()));
    }
    let mut driver = Driver { source: Bytes::new(), sink: Vec::new(), store: None, oracle, seen: Default::default() };
    tessera_testkit::commands::serve(|line| driver.run(line));
}
