//! What the sockets cost: one caller, six peers, fragments of 256 KiB there and back, Unix and TCP.
//!
//! `cargo run --release -p tessera-net --example net_throughput`

use bytes::Bytes;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};
use tessera_net::*;
use tessera_wire::*;

struct Sink(Bytes);

impl Service for Sink {
    fn request(&self, connection: &Arc<Connection>, frame: Frame) {
        if frame.header.kind == Kind::Hello as u16 {
            connection.admit(Role::Client).expect("a free place");
        }
        let wants_bytes = frame.header.kind == Kind::GetFragments as u16;
        let payload = if wants_bytes { vec![Part::Bytes(self.0.clone())] } else { vec![] };
        connection.reply(frame.header.kind, frame.header.request_id, Ok((Bytes::new(), payload)));
    }
}

const FRAGMENT_BYTES: usize = 256 << 10;
const FRAGMENTS: usize = 12_000;
const PEERS: usize = 6;
const WINDOW: usize = 96;

fn main() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let fragment = Bytes::from(vec![7u8; FRAGMENT_BYTES]);
    for unix in [true, false] {
        let endpoint = |i: usize| {
            if unix {
                Endpoint::Unix(scratch.path().join(format!("{i}")))
            } else {
                "127.0.0.1:0".parse().expect("an address")
            }
        };
        let servers: Vec<Server> = (0..PEERS)
            .map(|i| {
                Server::start(
                    &[endpoint(i)],
                    Arc::new(Sink(fragment.clone())),
                    BufferPool::new(64 << 20),
                    Limits::default(),
                )
                .expect("a server")
            })
            .collect();
        let dialer = Dialer::new(Hello::default(), Arc::new(dialer::NoService), BufferPool::new(256 << 20));
        for kind in [Kind::PutFragments, Kind::GetFragments] {
            let (done, finished) = sync_channel::<()>(FRAGMENTS);
            let (started, cpu) = (Instant::now(), cpu_seconds());
            for n in 0..FRAGMENTS + WINDOW {
                if n >= WINDOW {
                    finished.recv().expect("an answer");
                }
                if n < FRAGMENTS {
                    let payload = if kind == Kind::PutFragments { vec![fragment.clone()] } else { vec![] };
                    let done = done.clone();
                    let callback = Box::new(move |result: Result<_, Error>| {
                        result.expect("an answer without error");
                        done.send(()).expect("a listener");
                    });
                    dialer.call(
                        &servers[n % PEERS].endpoints()[0],
                        kind,
                        Bytes::new(),
                        payload,
                        Duration::from_secs(10),
                        callback,
                    );
                }
            }
            let gigabytes = (FRAGMENTS * FRAGMENT_BYTES) as f64 / 1e9;
            let (wall, cpu) = (started.elapsed().as_secs_f64(), cpu_seconds() - cpu);
            println!(
                "{} {:?}: {:.2} GB/s, {:.2} CPU seconds a GB",
                if unix { "unix" } else { "tcp" },
                kind,
                gigabytes / wall,
                cpu / gigabytes
            );
        }
    }
}

/// User and system time of this process so far.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("/proc");
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    (fields[11].parse::<f64>().unwrap_or(0.0) + fields[12].parse::<f64>().unwrap_or(0.0)) / 100.0
}
