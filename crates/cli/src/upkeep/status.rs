//! `tessera status`: the state of the cluster.

use crate::args::StatusArgs;
use crate::exit::{Failure, Outcome};
use crate::remote::Store;
use crate::term::{Align, Out, Table, units};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::time::Duration;
use tessera_wire::meta::{ClusterStatus, DeviceWork, RejectedNode};
use tessera_wire::{DiskInfo, Health, hex};

/// Width of a space bar, cells.
const BAR: usize = 16;

/// `tessera status`.
///
/// # Errors
/// The manager cannot be reached, or stdout cannot be written.
pub fn status(args: StatusArgs) -> Outcome {
    let out = Out::new(args.common.output);
    let store = Store::connect(&args.common)?;
    loop {
        let status = match (store.status().map_err(Failure::from), args.watch) {
            (Err(failure), Some(seconds)) => {
                // With `--watch` the command goes on, to see the manager come back.
                out.warn(&failure);
                std::thread::sleep(Duration::from_secs(seconds.max(1)));
                continue;
            }
            (status, _) => status?,
        };
        match out.json() {
            true => out.document(&document(&status))?,
            false => {
                if args.watch.is_some() && std::io::stdout().is_terminal() {
                    // Cursor home, then clear what is below: the screen does not flicker.
                    let _ = write!(std::io::stdout(), "\x1b[H\x1b[J");
                }
                lines(&status).iter().try_for_each(|line| out.line(line))?;
            }
        }
        out.flush()?;
        match args.watch {
            None => return Ok(()),
            Some(seconds) => std::thread::sleep(Duration::from_secs(seconds.max(1))),
        }
    }
}

/// Advice for chunks that the cluster cannot restore.
pub const HEAL: &str =
    "`tessera get -r tess:/ DIR` names the files; storing the same bytes again heals them, else remove them";

/// A health state in one word.
pub fn health_name(health: i32) -> &'static str {
    match Health::try_from(health).unwrap_or(Health::Unknown) {
        Health::Up => "up",
        Health::Down => "down",
        Health::Out => "out",
        Health::Draining => "draining",
        Health::Drained => "drained",
        Health::Unknown => "unknown",
    }
}

/// Whether everything is in order.
pub fn is_healthy(s: &ClusterStatus) -> bool {
    s.chunks_reduced == 0 && s.chunks_lost == 0 && s.members_backfilling == 0 && s.fragments_to_repair == 0
}

/// The state in one line.
fn verdict(s: &ClusterStatus) -> String {
    if s.chunks_lost > 0 {
        let away = super::maintain::away(s);
        let way_out = match away.is_empty() {
            true => HEAL.to_string(),
            false => format!("start what is missing: {}", away.join(", ")),
        };
        return format!(
            "DATA UNREADABLE: {} chunks have fewer good fragments within reach than they need; {way_out}",
            units::count(s.chunks_lost)
        );
    }
    let not_up = s.nodes.iter().filter(|n| n.health == Health::Down as i32).count();
    if s.chunks_reduced > 0 {
        return format!(
            "reduced redundancy: everything can be read; {} chunks miss fragments, {} fragments to repair or move",
            units::count(s.chunks_reduced),
            units::count(s.fragments_to_repair)
        );
    }
    match not_up {
        0 if s.members_backfilling > 0 => {
            format!(
                "healthy: every chunk has all its fragments; {} being moved",
                units::things(s.members_backfilling, "group member")
            )
        }
        0 => "healthy: every chunk has all its fragments".into(),
        n => format!(
            "{n} node{} down: everything can be read; repair starts when they are declared out",
            if n == 1 { "" } else { "s" }
        ),
    }
}

/// Nodes of other clusters that try to register: one line a cluster.
fn rejected_nodes(s: &ClusterStatus) -> Vec<String> {
    let mut hosts: BTreeMap<&[u8], Vec<&str>> = BTreeMap::new();
    s.rejected_nodes.iter().for_each(|it| hosts.entry(&it.cluster_id).or_default().push(&it.host));
    let line = |(cluster, hosts): (&[u8], Vec<&str>)| {
        format!(
            "REFUSED: nodes of another cluster, {}, on {}; if this manager has lost its directory, stop it, move the directory \
             away and start it with --restore; else correct those nodes' --manager",
            hex(cluster),
            hosts.join(", ")
        )
    };
    hosts.into_iter().map(line).collect()
}

/// The whole state, for people.
pub fn lines(s: &ClusterStatus) -> Vec<String> {
    let mut lines = vec![format!("cluster {}   release {}   term {}", hex(&s.cluster_id), s.release, s.term)];
    lines.push(verdict(s));
    lines.extend(rejected_nodes(s));
    lines.push(String::new());
    lines.extend(node_table(s).lines());
    lines.push(String::new());
    let row = |name: &str, text: String| format!("{name:<12} {text}");
    lines.push(row(
        "files",
        format!(
            "{} files, {} directories, {} versions",
            units::count(s.files),
            units::count(s.directories),
            units::count(s.versions)
        ),
    ));
    let saved = s.logical_bytes.saturating_sub(s.unique_bytes);
    lines.push(row(
        "data",
        format!(
            "{} logical, {} unique ({} saved by deduplication), {} on disks",
            units::bytes(s.logical_bytes),
            units::bytes(s.unique_bytes),
            units::percent(saved, s.logical_bytes),
            units::bytes(s.stored_bytes)
        ),
    ));
    lines.push(row(
        "chunks",
        format!(
            "{} in {} groups: {} full, {} reduced, {} lost",
            units::count(s.chunks),
            units::count(s.pgs),
            units::count(s.chunks_full),
            units::count(s.chunks_reduced),
            units::count(s.chunks_lost)
        ),
    ));
    lines.push(row("repair", repair(s)));
    lines.push(row(
        "garbage",
        format!(
            "{} chunks, {}; {} deletes not yet confirmed",
            units::count(s.garbage_chunks),
            units::bytes(s.garbage_bytes),
            units::count(s.deletes_pending)
        ),
    ));
    lines.push(row(
        "sessions",
        format!("{} open, {} reserved", units::count(s.sessions), units::bytes(s.reserved_bytes)),
    ));
    lines.extend(hints(s).map(|text| row("hints", text)));
    lines.push(row("log", log(s)));
    lines.push(row("index", index(s)));
    lines.extend(computed(s).into_iter().map(|text| row("computed", text)));
    lines
}

/// Effects of hints since the manager started, if any: placements that could not be honoured, files that expired.
fn hints(s: &ClusterStatus) -> Option<String> {
    let value = |name: &str| s.counters.iter().find(|c| c.name == name).map_or(0, |c| c.value);
    let clauses = [
        (value("placements_not_met"), "new chunks not where their placement asked (no such host, or full)"),
        (value("files_expired"), "files gone by their lifetime"),
    ];
    let clauses = clauses.into_iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{} {what}", units::count(n)));
    Some(clauses.collect::<Vec<_>>().join("; ")).filter(|text| !text.is_empty())
}

/// Index memory in bytes a million fragments, if there are fragments. It means little while buffers dominate.
fn index_bytes_per_million(index_bytes: u64, fragments: u64) -> Option<u64> {
    u64::try_from(u128::from(index_bytes) * 1_000_000 / u128::from(fragments.max(1))).ok().filter(|_| fragments > 0)
}

/// Memory of the nodes' indexes.
fn index(s: &ClusterStatus) -> String {
    let bytes = s.disks.iter().fold(0_u64, |sum, d| sum.saturating_add(d.index_bytes));
    let fragments = s.disks.iter().fold(0_u64, |sum, d| sum.saturating_add(d.fragments));
    let rate = index_bytes_per_million(bytes, fragments);
    let rate = rate.map_or(String::new(), |rate| format!(", {} a million", units::bytes(rate)));
    format!("{} of memory for {} fragments{rate}", units::bytes(bytes), units::count(fragments))
}

/// Computation on devices: one line for clients, one for all nodes together.
fn computed(s: &ClusterStatus) -> Vec<String> {
    let line = |who: &str, of_clients: bool| {
        let mut sums: BTreeMap<(&str, &str), u64> = BTreeMap::new();
        for work in s.device_work.iter().filter(|w| (w.node_id == 0) == of_clients) {
            let sum = sums.entry((&work.device, &work.primitive)).or_default();
            *sum = sum.saturating_add(work.bytes);
        }
        let mut devices: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for ((device, primitive), bytes) in sums {
            devices.entry(device).or_default().push(format!("{primitive} {}", units::bytes(bytes)));
        }
        let devices: Vec<String> = devices.iter().map(|(name, work)| format!("{name}: {}", work.join(", "))).collect();
        (!devices.is_empty()).then(|| format!("by {who} on {}", devices.join("; ")))
    };
    line("clients", true).into_iter().chain(line("nodes", false)).collect()
}

fn repair(s: &ClusterStatus) -> String {
    let done = format!(
        "{} fragments ({}) since the manager started",
        units::count(s.fragments_repaired),
        units::bytes(s.repaired_bytes)
    );
    match (s.members_backfilling == 0 && s.fragments_to_repair == 0, s.chunks_reduced + s.chunks_lost) {
        (true, 0) => format!("nothing to do; {done}"),
        (true, short) => format!(
            "{} chunks miss fragments on nodes that are down; repair begins when they count as out, or ends when they return; {done}",
            units::count(short)
        ),
        (false, _) => format!(
            "{} fragments to go, {} group members being filled; {done}",
            units::count(s.fragments_to_repair),
            units::count(s.members_backfilling)
        ),
    }
}

fn log(s: &ClusterStatus) -> String {
    let name = |id: &u64| {
        let node = s.nodes.iter().find(|n| n.node_id == *id);
        node.map_or_else(|| format!("node {id}"), |n| n.name.clone())
    };
    let names: Vec<String> = s.log_replicas.iter().map(name).collect();
    let wanted = (s.log_copies as usize).min(s.nodes.len());
    let short = s.log_replicas.len() < wanted;
    format!(
        "entry {} on {} of {} replicas{}{}",
        s.log_seq,
        s.log_replicas.len(),
        s.log_copies,
        if names.is_empty() { String::new() } else { format!(" ({})", names.join(", ")) },
        if short { ", catching up" } else { "" }
    )
}

/// Nodes and their disks: bytes that Tessera uses, bytes free and in all on the file system, and a bar of how full that is.
pub fn node_table(s: &ClusterStatus) -> Table {
    let mut table = Table::new([
        ("node", Align::Left),
        ("state", Align::Left),
        ("address", Align::Left),
        ("disk", Align::Right),
        ("state", Align::Left),
        ("used", Align::Right),
        ("free", Align::Right),
        ("of", Align::Right),
        ("", Align::Left),
        ("fragments", Align::Right),
        ("directory", Align::Left),
    ]);
    for node in &s.nodes {
        let mut disks = s.disks.iter().filter(|d| d.node_id == node.node_id);
        let first = [node.name.clone(), health_name(node.health).into(), node.address.clone()];
        match disks.next() {
            Some(disk) => add(&mut table, first, disk),
            None => table.row(first),
        }
        disks.for_each(|disk| add(&mut table, Default::default(), disk));
    }
    table
}

fn add(table: &mut Table, [name, state, address]: [String; 3], disk: &DiskInfo) {
    table.row([
        name,
        state,
        address,
        disk.disk_id.to_string(),
        health_name(disk.health).into(),
        units::bytes(disk.used_bytes),
        units::bytes(disk.free_bytes),
        units::bytes(disk.capacity_bytes),
        units::bar(disk.capacity_bytes.saturating_sub(disk.free_bytes), disk.capacity_bytes, BAR),
        units::count(disk.fragments),
        disk.path.clone(),
    ]);
}

/// The whole state, for programs.
pub fn document(s: &ClusterStatus) -> Value {
    json!({
        "cluster_id": hex(&s.cluster_id),
        "release": s.release,
        "term": s.term,
        "healthy": is_healthy(s),
        "nodes": nodes_document(s),
        "files": s.files,
        "directories": s.directories,
        "versions": s.versions,
        "bytes": {"logical": s.logical_bytes, "unique": s.unique_bytes, "stored": s.stored_bytes},
        "chunks": {"all": s.chunks, "full": s.chunks_full, "reduced": s.chunks_reduced, "lost": s.chunks_lost},
        "groups": s.pgs,
        "repair": {
            "members_backfilling": s.members_backfilling,
            "fragments_to_repair": s.fragments_to_repair,
            "fragments_repaired": s.fragments_repaired,
            "repaired_bytes": s.repaired_bytes,
        },
        "garbage": {"chunks": s.garbage_chunks, "bytes": s.garbage_bytes, "deletes_pending": s.deletes_pending},
        "sessions": {"open": s.sessions, "reserved_bytes": s.reserved_bytes},
        "log": {"seq": s.log_seq, "replicas": s.log_replicas, "copies": s.log_copies},
        "map_version": s.map_version,
        "rejected_nodes": s.rejected_nodes.iter().map(rejected_node).collect::<Vec<_>>(),
        "device_work": s.device_work.iter().map(device_work).collect::<Vec<_>>(),
        "counters": s.counters.iter().map(|c| (c.name.clone(), c.value.into())).collect::<serde_json::Map<_, _>>(),
    })
}

fn device_work(it: &DeviceWork) -> Value {
    json!({
        "node_id": it.node_id, "device": it.device, "primitive": it.primitive, "jobs": it.jobs, "bytes": it.bytes,
    })
}

fn rejected_node(it: &RejectedNode) -> Value {
    json!({"cluster_id": hex(&it.cluster_id), "host": it.host, "seen": units::rfc3339(it.seen_ns), "times": it.times})
}

/// Nodes with their disks, for programs.
pub fn nodes_document(s: &ClusterStatus) -> Value {
    let disk = |d: &DiskInfo| {
        json!({
            "disk_id": d.disk_id, "uuid": hex(&d.uuid), "state": health_name(d.health), "path": d.path,
            "capacity_bytes": d.capacity_bytes, "free_bytes": d.free_bytes, "used_bytes": d.used_bytes,
            "fragments": d.fragments, "queue": d.queue_len, "index_bytes": d.index_bytes,
            "index_bytes_per_million_fragments": index_bytes_per_million(d.index_bytes, d.fragments),
        })
    };
    let node = |n: &tessera_wire::NodeInfo| {
        let disks: Vec<Value> = s.disks.iter().filter(|d| d.node_id == n.node_id).map(disk).collect();
        json!({
            "node_id": n.node_id, "name": n.name, "host": n.host, "state": health_name(n.health),
            "address": n.address, "unix_socket": n.unix_socket, "metrics": n.metrics_address,
            "incarnation": n.incarnation, "disks": disks,
        })
    };
    Value::Array(s.nodes.iter().map(node).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tessera_wire::NodeInfo;

    fn sample() -> ClusterStatus {
        let node = |id: u64, health: Health| NodeInfo {
            node_id: id,
            name: format!("n{id}"),
            address: format!("127.0.0.1:770{id}"),
            health: health as i32,
            ..NodeInfo::default()
        };
        let disk = |id: u64, node_id| DiskInfo {
            disk_id: id,
            node_id,
            health: Health::Up as i32,
            capacity_bytes: 100 << 30,
            free_bytes: 75 << 30,
            used_bytes: 3 << 30,
            fragments: 1234,
            index_bytes: 2468,
            path: format!("/d{id}"),
            ..DiskInfo::default()
        };
        ClusterStatus {
            cluster_id: vec![0xab; 16],
            nodes: vec![node(1, Health::Up), node(2, Health::Up)],
            disks: vec![disk(1, 1), disk(2, 1), disk(3, 2)],
            logical_bytes: 100,
            unique_bytes: 40,
            chunks: 9,
            chunks_full: 9,
            log_copies: 3,
            log_replicas: vec![1, 2],
            ..ClusterStatus::default()
        }
    }

    #[test]
    fn the_first_line_that_matters_says_how_it_is() {
        let verdict_of = |change: fn(&mut ClusterStatus)| {
            let mut status = sample();
            change(&mut status);
            verdict(&status)
        };
        assert!(verdict_of(|_| ()).starts_with("healthy"));
        assert!(verdict_of(|s| s.nodes[0].health = Health::Down as i32).starts_with("1 node down"));
        assert!(verdict_of(|s| s.chunks_reduced = 3).starts_with("reduced"));
        assert!(verdict_of(|s| s.members_backfilling = 1).starts_with("healthy"), "a drain lowers no redundancy (P6)");
        assert!(verdict_of(|s| (s.chunks_reduced, s.chunks_lost) = (1, 1)).starts_with("DATA UNREADABLE: 1 chunks"));
    }

    #[test]
    fn a_disk_has_a_line_and_its_node_a_name() {
        let text = lines(&sample()).join("\n");
        assert_eq!(text.matches("████░░░░░░░░░░░░").count(), 3, "{text}");
        assert!(text.contains(" 3.0 GiB  75.0 GiB  100 GiB "), "{text}");
        assert!(text.contains("60.0 % saved") && text.contains("on 2 of 3 replicas (n1, n2)"), "{text}");
        assert!(text.contains("7.2 KiB of memory for 3,702 fragments, 1.9 MiB a million"), "{text}");
        let document = document(&sample());
        assert_eq!(document["nodes"][0]["disks"].as_array().unwrap().len(), 2);
        assert_eq!(document["nodes"][0]["disks"][0]["index_bytes_per_million_fragments"], 2_000_000);
    }

    #[test]
    fn what_devices_computed_is_a_line_for_clients_and_one_for_nodes() {
        let work = |node_id, device: &str, primitive: &str, bytes| DeviceWork {
            node_id,
            device: device.into(),
            primitive: primitive.into(),
            jobs: 1,
            bytes,
        };
        let device_work = vec![
            work(0, "cpu", "tree", 3 << 30),
            work(0, "cuda:0", "encode", 5 << 20),
            work(0, "cuda:0", "tree", 1 << 10),
            work(1, "cpu", "tree", 1 << 20),
            work(2, "cpu", "tree", 2 << 20),
        ];
        let status = ClusterStatus { device_work, ..sample() };
        let text = lines(&status).join("\n");
        assert!(text.contains("by clients on cpu: tree 3.0 GiB; cuda:0: encode 5.0 MiB, tree 1.0 KiB\n"), "{text}");
        assert!(text.contains("by nodes on cpu: tree 3.0 MiB"), "{text}");
        assert!(!lines(&sample()).join("\n").contains("computed"));
        assert_eq!(document(&status)["device_work"][1]["bytes"], 5 << 20);
    }

    #[test]
    fn nodes_of_another_cluster_are_a_line_with_the_way_out() {
        let rejected =
            |host: &str| RejectedNode { cluster_id: vec![0xcd; 16], host: host.into(), ..RejectedNode::default() };
        let status = ClusterStatus { rejected_nodes: vec![rejected("a"), rejected("b")], ..sample() };
        let text = lines(&status).join("\n");
        let line = text.lines().find(|l| l.starts_with("REFUSED")).expect("a line");
        for words in ["cdcdcd", "a, b", "--restore", "--manager"] {
            assert!(line.contains(words), "{line}");
        }
        assert_eq!(document(&status)["rejected_nodes"][1]["host"], "b");
    }
}
