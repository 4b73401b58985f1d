//! How many small files a second the manager's core takes: clients that write 4 KiB files, two requests each (OpenWrite with
//! the dedup question, Commit), on a database on disk. No sockets, no nodes: what is measured is the core and SQLite.
//!
//! `cargo run --release -p tessera-manager --example manager_throughput [CLIENTS] [FILES] [DIR]`

use prost::Message;
use std::path::PathBuf;
use std::time::Instant;
use tessera_manager::config::Config;
use tessera_manager::core::{Action, Event, ManagerCore};
use tessera_manager::db::Db;
use tessera_wire::meta::*;
use tessera_wire::{DiskInfo, Extent, Kind, NodeInfo, Request, Role};

struct Client {
    id: u64,
    written: u64,
    map_version: u64,
}

fn main() {
    let mut args = std::env::args().skip(1);
    let clients: u64 = args.next().map_or(32, |a| a.parse().expect("CLIENTS is a number"));
    let files: u64 = args.next().map_or(50_000, |a| a.parse().expect("FILES is a number"));
    let dir = args.next().map_or_else(|| std::env::temp_dir().join("tessera-throughput"), PathBuf::from);
    let _ = std::fs::remove_dir_all(&dir);
    let db = Db::create(&dir, [1; 16]).expect("a new database");
    let config = Config { down_after_ms: 1 << 40, out_after_ms: 1 << 41, ..Default::default() };
    let mut core = ManagerCore::lead(db, config, 1, 1, 1).expect("a manager");
    for node in 1..=6 {
        register(&mut core, node);
    }
    let mut clients: Vec<Client> = (1..=clients).map(|id| Client { id, written: 0, map_version: 0 }).collect();
    let per_client = files / clients.len() as u64;
    let (start, cpu) = (Instant::now(), cpu_seconds());
    clients.iter_mut().for_each(|client| open(&mut core, client));
    let mut running = clients.len();
    while running > 0 {
        core.commit_batch(now());
        while let Some(action) = core.poll() {
            let Action::Reply { connection, result, kind, .. } = action else { continue };
            let client = &mut clients[connection as usize - 1];
            let body = result.expect("accepted");
            match kind {
                Kind::OpenWrite => {
                    let opened = OpenWriteReply::decode(body).expect("a reply");
                    commit(&mut core, client, &opened);
                }
                Kind::Commit if client.written < per_client => open(&mut core, client),
                _ => running -= 1,
            }
        }
    }
    let (seconds, cpu) = (start.elapsed().as_secs_f64(), cpu_seconds() - cpu);
    let done = per_client * clients.len() as u64;
    println!(
        "{done} files by {} clients in {seconds:.2} s: {:.0} files/s, {:.1} us CPU a file, {} group commits",
        clients.len(),
        done as f64 / seconds,
        cpu / done as f64 * 1e6,
        core.metrics().batches
    );
    drop(core);
    let _ = std::fs::remove_dir_all(&dir);
}

fn now() -> i64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_nanos() as i64)
}

/// CPU time of this process: user and system ticks of /proc/self/stat.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    let ticks = |i: usize| fields.get(i).and_then(|f| f.parse::<f64>().ok()).unwrap_or(0.0);
    (ticks(11) + ticks(12)) / 100.0
}

fn send<R: Request>(core: &mut ManagerCore, role: Role, client: u64, request: &R) {
    let event = Event::Request {
        connection: client,
        role,
        client_id: client,
        request_id: 0,
        kind: R::KIND,
        body: request.encode_to_vec().into(),
    };
    core.handle(now(), event);
}

fn register(core: &mut ManagerCore, node: u64) {
    let disk =
        DiskInfo { uuid: vec![node as u8; 16], capacity_bytes: 1 << 44, free_bytes: 1 << 44, ..Default::default() };
    let info = NodeInfo {
        name: format!("n{node}"),
        host: format!("h{node}"),
        address: format!("127.0.0.1:{node}"),
        ..Default::default()
    };
    send(
        core,
        Role::Node,
        0,
        &RegisterNode { op_id: node, node: Some(info), disks: vec![disk], receipt_key: vec![1; 32], check_only: false },
    );
    core.commit_batch(now());
    while core.poll().is_some() {}
}

/// The start of the name of a client's chunk: spread like a real hash.
fn mixed(client: u64, written: u64) -> u64 {
    (client << 32 | written).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn open(core: &mut ManagerCore, client: &mut Client) {
    let mixed = mixed(client.id, client.written);
    let mut hash = [0u8; 32];
    hash[..8].copy_from_slice(&mixed.to_be_bytes());
    let request = OpenWrite {
        op_id: mixed | 1,
        parent: 1,
        name: format!("file-{}-{}", client.id, client.written).into_bytes(),
        size_hint_bytes: 4096,
        chunks: vec![ChunkName { hash: hash.to_vec().into(), len_bytes: 4096, region: 0 }],
        redundancy: "auto".into(),
        known_map_version: client.map_version,
        ..Default::default()
    };
    client.written += 1;
    send(core, Role::Client, client.id, &request);
}

fn commit(core: &mut ManagerCore, client: &mut Client, opened: &OpenWriteReply) {
    let allocated = opened.allocated.as_ref().expect("an answer for the chunk");
    client.map_version = allocated.map.as_ref().map_or(0, |map| map.version);
    let answer = &allocated.answers[0];
    let request = Commit {
        op_id: opened.session_id << 1 | 1,
        session_id: opened.session_id,
        mode: CommitMode::Replace as i32,
        size_bytes: 4096,
        extents: vec![Extent::of_chunk(
            0,
            4096,
            answer.chunk_id,
            &mixed(client.id, client.written - 1).to_be_bytes(),
            0,
        )],
        acks: vec![ChunkAck { chunk_id: answer.chunk_id, epochs: vec![answer.epoch], ..Default::default() }],
        ..Default::default()
    };
    send(core, Role::Client, client.id, &request);
}
