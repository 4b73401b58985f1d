//! Measures how fast a node receives fragments over a socket, and the CPU time this costs.
//!
//! `cargo run --release -p tessera-node --example put_throughput -- [DIR] [GIB] [CONNECTIONS] [unix|tcp]`
//! (With DIR on a tmpfs, the node is measured and not the disk.) The senders only send: their fragments and checksums
//! are computed once. CPU time is that of the whole process; that of the sending threads is shown separately.

#[path = "../tests/common/mod.rs"]
mod common;

use bytes::Bytes;
use common::*;
use prost::Message;
use rustix::time::{ClockId, clock_gettime};
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};
use tessera_net::Endpoint;
use tessera_node::NodeServer;
use tessera_wire::Kind;

const FRAGMENT_BYTES: usize = 256 << 10;
const PER_PUT: usize = 16;
/// Puts in flight per sender.
const WINDOW: usize = 4;

fn seconds(clock: ClockId) -> f64 {
    let t = clock_gettime(clock);
    t.tv_sec as f64 + t.tv_nsec as f64 * 1e-9
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let dir = args.get(1).cloned().unwrap_or_else(|| std::env::temp_dir().display().to_string());
    let gib: f64 = args.get(2).and_then(|s| s.parse().ok()).unwrap_or(4.0);
    let connections: usize = args.get(3).and_then(|s| s.parse().ok()).unwrap_or(2);
    let unix = args.get(4).is_some_and(|s| s == "unix");

    let dir = tempfile::tempdir_in(dir).unwrap();
    let manager = Manager::start();
    let disks = [dir.path().join("d1"), dir.path().join("d2")];
    let mut options = node(&manager, "a", &[&disks[0], &disks[1]]);
    options.unix_socket = Some(dir.path().join("a.sock"));
    let node = NodeServer::start(options).unwrap();
    manager.wait("a heartbeat", |s| s.heartbeats > 0);
    let at = if unix { Endpoint::Unix(dir.path().join("a.sock")) } else { node.endpoints()[0].clone() };

    let chunk = bytes(1, FRAGMENT_BYTES * 4);
    let data: Bytes = chunk[..FRAGMENT_BYTES].to_vec().into();
    let template = item(&chunk, 1, 101, 0, &data);
    let puts_each = (gib * (1u64 << 30) as f64 / (FRAGMENT_BYTES * PER_PUT * connections) as f64) as usize;
    let total_bytes = (puts_each * connections * PER_PUT * FRAGMENT_BYTES) as f64;

    let (cpu, start) = (seconds(ClockId::ProcessCPUTime), Instant::now());
    let senders: Vec<_> = (0..connections)
        .map(|number| {
            let (at, data, template) = (at.clone(), data.clone(), template.clone());
            std::thread::spawn(move || {
                let client = client();
                let (sender, done) = sync_channel(WINDOW);
                let mut waiting = 0;
                for put in 0..=puts_each + WINDOW {
                    while waiting == WINDOW || (put >= puts_each && waiting > 0) {
                        let ok: bool = done.recv().unwrap();
                        assert!(ok);
                        waiting -= 1;
                    }
                    if put >= puts_each {
                        break;
                    }
                    let chunk_id = |i: usize| ((number * puts_each + put) * PER_PUT + i) as u64 + 1;
                    let items: Vec<_> = (0..PER_PUT)
                        .map(|i| {
                            let disk_id = 101 + (put % 2) as u64;
                            tessera_wire::data::PutItem { chunk_id: chunk_id(i), disk_id, ..template.clone() }
                        })
                        .collect();
                    let (body, sender) = (put_of(items).encode_to_vec(), sender.clone());
                    let callback = Box::new(move |result: Result<(Bytes, Bytes), tessera_wire::Error>| {
                        let reply =
                            result.map(|(body, _)| tessera_wire::data::PutFragmentsReply::decode(body).unwrap());
                        let _ = sender.send(reply.is_ok_and(|r| r.results.iter().all(|r| r.error.is_none())));
                    });
                    let payload = vec![data.clone(); PER_PUT];
                    client.call(&at, Kind::PutFragments, body.into(), payload, Duration::from_secs(60), callback);
                    waiting += 1;
                }
                seconds(ClockId::ThreadCPUTime)
            })
        })
        .collect();
    let senders_cpu: f64 = senders.into_iter().map(|t| t.join().unwrap()).sum();
    let (wall, cpu) = (start.elapsed().as_secs_f64(), seconds(ClockId::ProcessCPUTime) - cpu);
    let gb = total_bytes / 1e9;
    println!(
        "put {gb:.2} GB over {}: {:.2} GB/s, node {:.3} CPU s/GB, senders {:.3} CPU s/GB",
        at,
        gb / wall,
        (cpu - senders_cpu) / gb,
        senders_cpu / gb
    );
    threads_cpu(gb);
    reads(&at, puts_each * connections, gb);
}

/// CPU seconds per GB by thread name, in user code and in the kernel. Threads that have ended are not included.
fn threads_cpu(gb: f64) {
    let mut by_name: std::collections::BTreeMap<String, (f64, f64)> = Default::default();
    for task in std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten() {
        let Ok(stat) = std::fs::read_to_string(task.path().join("stat")) else { continue };
        let (Some(open), Some(close)) = (stat.find('('), stat.rfind(')')) else { continue };
        let fields: Vec<&str> = stat[close + 2..].split(' ').collect();
        let ticks = |i: usize| fields.get(i).and_then(|f| f.parse::<f64>().ok()).unwrap_or(0.0) / 100.0;
        let entry = by_name.entry(stat[open + 1..close].to_string()).or_default();
        entry.0 += ticks(11);
        entry.1 += ticks(12);
    }
    for (name, (user, kernel)) in by_name.iter().filter(|(_, (u, k))| u + k > 0.005 * gb) {
        println!("  {name}: user {:.3}, kernel {:.3} s/GB", user / gb, kernel / gb);
    }
}

/// Reads everything back. The receiving side is in this process too, so the CPU time covers both sides.
fn reads(at: &Endpoint, puts: usize, gb: f64) {
    use tessera_wire::data::{GetFragments, GetItem};
    let (cpu, start) = (seconds(ClockId::ProcessCPUTime), Instant::now());
    let threads: Vec<_> = (0..2)
        .map(|half| {
            let at = at.clone();
            std::thread::spawn(move || {
                let client = client();
                for put in (0..puts).filter(|p| p % 2 == half) {
                    let items = (0..PER_PUT).map(|i| GetItem {
                        chunk_id: (put * PER_PUT + i) as u64 + 1,
                        disk_id: 101 + ((put % (puts / 2).max(1)) % 2) as u64,
                        whole: true,
                        ..GetItem::default()
                    });
                    let get = GetFragments { items: items.collect(), hints: vec![] };
                    let (reply, _) = client.call_wait(&at, &get, vec![], Duration::from_secs(60)).unwrap();
                    assert!(reply.results.iter().all(|r| r.error.is_none()), "{:?}", reply.results);
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|t| t.join().unwrap());
    let (wall, cpu) = (start.elapsed().as_secs_f64(), seconds(ClockId::ProcessCPUTime) - cpu);
    println!("get {gb:.2} GB: {:.2} GB/s, both sides {:.3} CPU s/GB", gb / wall, cpu / gb);
}
