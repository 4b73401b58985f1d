//! `tessera status`: the state of the cluster.

use super::maintain::{counter, counters_document, disk_name};
use super::waiting;
use crate::args::StatusArgs;
use crate::exit::{Failure, Outcome};
use crate::remote::Store;
use crate::term::Table;
use crate::term::units::{self, bytes, count, percent, plural};

use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::time::Duration;
use tessera_wire::consensus::PeerKind;
use tessera_wire::meta::{ClusterStatus, ComparisonResult, DeviceWork, MetadataComparison, PeerStatus, RejectedNode};
use tessera_wire::{DiskInfo, Health, hex};

/// Width of a space bar, cells.
const BAR: usize = 16;

/// `tessera status`.
///
/// # Errors
/// The manager cannot be reached, or stdout cannot be written.
pub fn status(args: StatusArgs) -> Outcome {
    let out = args.common.output;
    let store = Store::connect(&args.common)?;
    loop {
        match (store.status().map_err(Failure::from), args.watch) {
            // With `--watch` the command goes on, to see the manager come back.
            (Err(failure), Some(_)) => out.warn(&failure),
            (Err(failure), None) => return Err(failure),
            (Ok(status), _) if out.json => out.document(&document(&status))?,
            (Ok(status), watch) => {
                if watch.is_some() && std::io::stdout().is_terminal() {
                    // Cursor home, then clear what is below: the screen does not flicker.
                    let _ = write!(std::io::stdout(), "\x1b[H\x1b[J");
                }
                lines(&status).iter().try_for_each(|line| out.line(line))?;
            }
        }
        let Some(seconds) = args.watch else { return Ok(()) };
        std::thread::sleep(Duration::from_secs(seconds.max(1)));
    }
}

/// Advice for chunks that the cluster cannot restore.
pub const HEAL_ADVICE: &str =
    "`tessera get -r tess:/ DIR` names the files; storing the same bytes again heals them, else remove them";

/// Advice for managers of which nobody knows whose database is right.
pub const DIFFERS_ADVICE: &str = "find out which is right, have it lead (`tessera manager transfer`), let it compare again (`tessera scrub`), then stop each of the others, move \
     its directory away and start it with --join";

/// A health state in one word.
pub fn health_name(health: i32) -> String {
    units::enum_name(Health::try_from(health).unwrap_or(Health::Unknown).as_str_name(), "HEALTH_")
}

/// Whether everything is in order.
pub fn is_healthy(s: &ClusterStatus) -> bool {
    !s.nodes.is_empty()
        && s.chunks_reduced == 0
        && s.chunks_lost == 0
        && s.members_backfilling == 0
        && s.fragments_to_repair == 0
        && comparison(s).differing.is_empty()
        && s.no_room.is_empty()
}

/// The last comparison of the managers' databases.
pub fn comparison(s: &ClusterStatus) -> MetadataComparison {
    s.comparison.clone().unwrap_or_default()
}

/// The state in one line.
fn verdict(s: &ClusterStatus) -> String {
    if s.nodes.is_empty() {
        return "no nodes: nothing can be stored; start some with `tessera node`".into();
    }
    let not_up = s.nodes.iter().filter(|n| n.health == Health::Down as i32).count() as u64;
    if s.chunks_lost > 0 {
        let away = super::maintain::away(s);
        let missing = format!("start what is missing: {}", away.join(", "));
        return format!(
            "DATA UNREADABLE: {} chunks have fewer good fragments within reach than they need; {}",
            count(s.chunks_lost),
            if away.is_empty() { HEAL_ADVICE } else { &missing }
        );
    }
    if s.chunks_reduced > 0 {
        let (chunks, fragments) = (count(s.chunks_reduced), count(s.fragments_to_repair));
        return format!(
            "reduced redundancy: everything can be read; {chunks} chunks miss fragments, {fragments} fragments to repair or move"
        );
    }
    let healthy = "healthy: every chunk has all its fragments";
    match (not_up, s.members_backfilling) {
        (0, 0) => healthy.into(),
        (0, members) => format!("{healthy}; {} being moved", plural(members, "group member")),
        (nodes, _) => {
            let nodes = plural(nodes, "node");
            format!("{nodes} down: everything can be read; repair starts when they are declared out")
        }
    }
}

/// Nodes of other clusters that try to register: one line a cluster.
fn rejected_nodes(s: &ClusterStatus) -> Vec<String> {
    let mut hosts: BTreeMap<&[u8], Vec<&str>> = BTreeMap::new();
    s.rejected_nodes.iter().for_each(|it| hosts.entry(&it.cluster_id).or_default().push(&it.host));
    let line = |(cluster, hosts): (&[u8], Vec<&str>)| {
        format!(
            "REFUSED: nodes of another cluster, {}, on {}; if this manager has lost its directory, stop it, move the directory \
             away and start it with --join; else correct those nodes' --manager",
            hex(cluster),
            hosts.join(", ")
        )
    };
    hosts.into_iter().map(line).collect()
}

/// A disk that the metadata fills.
fn no_room(s: &ClusterStatus) -> Option<String> {
    let text = || format!("NO ROOM FOR METADATA: nothing new is stored; {}", s.no_room);
    (!s.no_room.is_empty()).then(text)
}

/// Databases of managers that differ.
fn databases_differ(s: &ClusterStatus) -> Option<String> {
    let last = comparison(s);
    let (seq, table, names) = (last.log_seq, &last.table, last.differing.join(", "));
    match last.result() {
        ComparisonResult::Rebuilds => Some(format!(
            "METADATA DIFFERS after entry {seq} in table {table}: each of {names} ends and rebuilds its database from another manager's \
             snapshot at its next start"
        )),
        ComparisonResult::Undecided => Some(format!(
            "METADATA DIFFERS after entry {seq} in table {table} between {names}, and no majority of the managers agrees: nothing is \
             changed; {DIFFERS_ADVICE}"
        )),
        ComparisonResult::Unknown | ComparisonResult::Equal => None,
    }
}

/// Disks that do not serve although their nodes are up.
fn disks_down(s: &ClusterStatus) -> Vec<String> {
    let up = |node_id| s.nodes.iter().any(|n| n.node_id == node_id && n.health == Health::Up as i32);
    let down = s.disks.iter().filter(|d| d.health == Health::Down as i32 && up(d.node_id));
    let line = |disk: &DiskInfo| {
        format!(
            "{} is down: if its node runs without it, it counts as lost within disk_gone_after_ms and is rebuilt elsewhere \
             (`tessera repair` does not wait); if it has returned, it serves once it is listed",
            disk_name(s, disk)
        )
    };
    down.map(line).collect()
}

/// The whole state, for people.
pub fn lines(s: &ClusterStatus) -> Vec<String> {
    let mut lines = vec![format!("cluster {}   release {}   term {}", hex(&s.cluster_id), s.release, s.term)];
    lines.push(verdict(s));
    lines.extend(databases_differ(s));
    lines.extend(no_room(s));
    lines.extend(rejected_nodes(s));
    lines.extend(disks_down(s));
    let waiting = waiting::members(s, |_| true);
    lines
        .extend(waiting.into_iter().map(|(why, members)| format!("REPAIR WAITS: {}", waiting::sentence(why, members))));
    lines.push(String::new());
    lines.extend(node_table(s).lines());
    lines.push(String::new());
    let saved = percent(s.logical_bytes.saturating_sub(s.unique_bytes), s.logical_bytes);
    let (files, directories, versions) = (count(s.files), count(s.directories), count(s.versions));
    let (logical, unique, stored) = (bytes(s.logical_bytes), bytes(s.unique_bytes), bytes(s.stored_bytes));
    let inlined = match s.inlined_bytes {
        0 => String::new(),
        inlined => format!(", {} in the metadata until they move into packs", bytes(inlined)),
    };
    let (chunks, groups) = (count(s.chunks), count(s.pgs));
    let (full, reduced, lost) = (count(s.chunks_full), count(s.chunks_reduced), count(s.chunks_lost));
    let (garbage, garbage_bytes) = (count(s.garbage_chunks), bytes(s.garbage_bytes));
    let mut rows = vec![
        ("files", format!("{files} files, {directories} directories, {versions} versions")),
        (
            "data",
            format!("{logical} logical, {unique} unique ({saved} saved by deduplication), {stored} on disks{inlined}"),
        ),
        ("chunks", format!("{chunks} in {groups} groups: {full} full, {reduced} reduced, {lost} lost")),
        ("proof", proof(s)),
        ("repair", repair(s)),
        (
            "garbage",
            format!("{garbage} chunks, {garbage_bytes}; {} deletes not yet confirmed", count(s.deletes_pending)),
        ),
        ("sessions", format!("{} open, {} reserved", count(s.sessions), bytes(s.reserved_bytes))),
        ("hints", hints(s)),
        ("log", log(s)),
        ("managers", s.surplus_managers.clone()),
        ("compared", compared(s)),
        ("index", index(s)),
        ("computed", computed(s, "clients", |node_id| node_id == 0)),
        ("computed", computed(s, "nodes", |node_id| node_id != 0)),
    ];
    rows.retain(|(_, text)| !text.is_empty());
    lines.extend(rows.iter().map(|(name, text)| format!("{name:<12} {text}")));
    lines
}

/// Effects of hints since the manager started: placements that could not be honoured, files that expired.
fn hints(s: &ClusterStatus) -> String {
    let clauses = [
        (
            counter(&s.counters, "placements_not_met"),
            "new chunks not where their placement asked (no such host, or full)",
        ),
        (counter(&s.counters, "files_expired"), "files gone by their lifetime"),
    ];
    units::clauses(clauses, "; ")
}

/// What nodes have yet to compare with the rest of its chunk, and what they found.
fn proof(s: &ClusterStatus) -> String {
    let clauses = [
        (counter(&s.counters, "chunks_unproven"), "chunks with fragments that no node has compared yet"),
        (counter(&s.counters, "wrong_fragments_replaced"), "wrong fragments replaced"),
    ];
    units::clauses(clauses, "; ")
}

/// Index memory in bytes a million fragments, if there are fragments. It means little while buffers dominate.
fn index_bytes_per_million(index_bytes: u64, fragments: u64) -> Option<u64> {
    u64::try_from(u128::from(index_bytes) * 1_000_000 / u128::from(fragments.max(1))).ok().filter(|_| fragments > 0)
}

/// Memory of the nodes' indexes.
fn index(s: &ClusterStatus) -> String {
    let sum = |of: fn(&DiskInfo) -> u64| s.disks.iter().map(of).fold(0, u64::saturating_add);
    let (memory, fragments) = (sum(|d| d.index_bytes), sum(|d| d.fragments));
    let rate = index_bytes_per_million(memory, fragments).map(|rate| format!(", {} a million", bytes(rate)));
    format!("{} of memory for {} fragments{}", bytes(memory), count(fragments), rate.unwrap_or_default())
}

/// Computation on devices by these nodes together; node 0 stands for the clients.
fn computed(s: &ClusterStatus, by: &str, includes: fn(u64) -> bool) -> String {
    let mut devices: BTreeMap<&str, BTreeMap<&str, u64>> = BTreeMap::new();
    for work in s.device_work.iter().filter(|w| includes(w.node_id)) {
        let sum = devices.entry(&work.device).or_default().entry(&work.primitive).or_default();
        *sum = sum.saturating_add(work.bytes);
    }
    let device = |(name, work): (&&str, &BTreeMap<&str, u64>)| {
        let work: Vec<String> = work.iter().map(|(primitive, n)| format!("{primitive} {}", bytes(*n))).collect();
        format!("{name}: {}", work.join(", "))
    };
    let devices: Vec<String> = devices.iter().map(device).collect();
    if devices.is_empty() { String::new() } else { format!("by {by} on {}", devices.join("; ")) }
}

fn repair(s: &ClusterStatus) -> String {
    let (repaired, repaired_bytes) = (count(s.fragments_repaired), bytes(s.repaired_bytes));
    let done = format!("{repaired} fragments ({repaired_bytes}) since the manager started");
    let waiting: u64 = s.members_waiting.iter().map(|it| it.members).sum();
    match (s.members_backfilling + s.fragments_to_repair + waiting == 0, s.chunks_reduced + s.chunks_lost) {
        (true, 0) => format!("nothing to do; {done}"),
        (true, short) => format!(
            "{} chunks miss fragments on nodes that are down; repair begins when they count as out, or ends when they return; {done}",
            count(short)
        ),
        (false, _) => {
            let (fragments, members) = (count(s.fragments_to_repair), count(s.members_backfilling));
            let waiting = if waiting > 0 { format!(", {} waiting for a disk", count(waiting)) } else { String::new() };
            format!("{fragments} fragments to go, {members} group members being filled{waiting}; {done}")
        }
    }
}

/// The peers that keep the metadata: how many answer, who leads, who is missing.
fn log(s: &ClusterStatus) -> String {
    let name = |peer: &&PeerStatus| peer.member.as_ref().map_or_else(|| "?".into(), |member| member.name.clone());
    let names =
        |wanted: &dyn Fn(&&PeerStatus) -> bool| s.peers.iter().filter(wanted).map(|p| name(&p)).collect::<Vec<_>>();
    let (all, up) = (names(&|p| p.votes), names(&|p| p.votes && p.is_up));
    let wanted = all.len().max(s.voters_wanted as usize);
    let mut text = format!("entry {} on {} of {wanted} peers ({})", s.log_seq, up.len(), up.join(", "));
    for (what, of) in [
        ("missing", names(&|p| p.votes && !p.is_up && !p.is_full)),
        ("missing, with a full disk", names(&|p| p.votes && !p.is_up && p.is_full)),
        ("catching up", names(&|p| !p.votes && p.is_up)),
        ("leads", names(&|p| p.leads)),
    ] {
        if !of.is_empty() {
            text += &format!("; {what}: {}", of.join(", "));
        }
    }
    text
}

/// When the managers' databases were last compared, and how that ended; nothing if there is one manager.
fn compared(s: &ClusterStatus) -> String {
    let last = comparison(s);
    let is_manager = |peer: &&PeerStatus| peer.member.as_ref().is_some_and(|m| m.kind() == PeerKind::Manager);
    let result = match last.result() {
        ComparisonResult::Unknown if s.peers.iter().filter(is_manager).count() < 2 => return String::new(),
        ComparisonResult::Unknown => "not since this manager leads".into(),
        result => {
            let result = match result {
                ComparisonResult::Equal => "equal",
                _ => "DIFFERENT",
            };
            let (managers, at) = (plural(u64::from(last.managers), "manager"), units::rfc3339(last.ended_ns));
            format!("{result} on {managers} at {at}, entry {}", last.log_seq)
        }
    };
    if last.running { format!("{result}; compares now") } else { result }
}

/// Nodes and their disks: bytes that Tessera uses, bytes free and in all on the file system, and a bar of how full that is.
pub fn node_table(s: &ClusterStatus) -> Table {
    let mut table = Table::new(
        "lllrlrrrlrl",
        &["node", "state", "address", "disk", "state", "used", "free", "of", "", "fragments", "directory"],
    );
    for node in &s.nodes {
        let mut name = vec![node.name.clone(), health_name(node.health), node.address.clone()];
        let disks = s.disks.iter().filter(|d| d.node_id == node.node_id);
        for disk in disks {
            table.row(name.iter().cloned().chain([
                disk.disk_id.to_string(),
                health_name(disk.health),
                bytes(disk.used_bytes),
                bytes(disk.free_bytes),
                bytes(disk.capacity_bytes),
                units::bar(disk.capacity_bytes.saturating_sub(disk.free_bytes), disk.capacity_bytes, BAR),
                count(disk.fragments),
                disk.path.clone(),
            ]));
            name = vec![String::new(); name.len()]; // Only a node's first line names it.
        }
        if !name[0].is_empty() {
            table.row(name);
        }
    }
    table
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
        "bytes": {"logical": s.logical_bytes, "unique": s.unique_bytes, "stored": s.stored_bytes, "in_metadata": s.inlined_bytes},
        "chunks": {"all": s.chunks, "full": s.chunks_full, "reduced": s.chunks_reduced, "lost": s.chunks_lost},
        "groups": s.pgs,
        "repair": {
            "members_backfilling": s.members_backfilling,
            "fragments_to_repair": s.fragments_to_repair,
            "fragments_repaired": s.fragments_repaired,
            "repaired_bytes": s.repaired_bytes,
            "members_waiting": waiting::document(s),
        },
        "garbage": {"chunks": s.garbage_chunks, "bytes": s.garbage_bytes, "deletes_pending": s.deletes_pending},
        "sessions": {"open": s.sessions, "reserved_bytes": s.reserved_bytes},
        "log": {"seq": s.log_seq, "peers": peers_document(s), "voters_wanted": s.voters_wanted, "surplus_managers": s.surplus_managers, "no_room": s.no_room},
        "comparison": comparison_document(s),
        "map_version": s.map_version,
        "rejected_nodes": s.rejected_nodes.iter().map(rejected_node).collect::<Vec<_>>(),
        "device_work": s.device_work.iter().map(device_work).collect::<Vec<_>>(),
        "counters": counters_document(&s.counters),
    })
}

fn comparison_document(s: &ClusterStatus) -> Value {
    let last = comparison(s);
    let ended = (last.result() != ComparisonResult::Unknown).then(|| units::rfc3339(last.ended_ns));
    json!({
        "result": units::enum_name(last.result().as_str_name(), "COMPARISON_RESULT_"), "ended": ended, "log_seq": last.log_seq,
        "managers": last.managers, "table": last.table, "differing": last.differing, "running": last.running,
    })
}

/// The peers that keep the metadata, for programs.
pub fn peers_document(s: &ClusterStatus) -> Value {
    s.peers.iter().map(peer).collect()
}

fn peer(it: &PeerStatus) -> Value {
    let member = it.member.clone().unwrap_or_default();
    let kind = if member.kind() == PeerKind::Manager { "manager" } else { "voter" };
    json!({
        "id": format!("{:016x}", member.id), "kind": kind, "name": member.name, "host": member.host, "address": member.address,
        "votes": it.votes, "leads": it.leads, "up": it.is_up, "full": it.is_full, "log_seq": it.log_seq, "unapplied": it.unapplied,
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
    use tessera_wire::consensus::Member;
    use tessera_wire::meta::{Counter, MembersWaiting, WaitReason};

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
        let peer = |id: u64, leads| PeerStatus {
            member: Some(Member { id, name: format!("p{id}"), ..Member::default() }),
            votes: true,
            leads,
            is_up: true,
            is_full: false,
            log_seq: 7,
            unapplied: 0,
        };
        ClusterStatus {
            cluster_id: vec![0xab; 16],
            nodes: vec![node(1, Health::Up), node(2, Health::Up)],
            disks: vec![disk(1, 1), disk(2, 1), disk(3, 2)],
            logical_bytes: 100,
            unique_bytes: 40,
            chunks: 9,
            chunks_full: 9,
            peers: vec![peer(1, true), peer(2, false)],
            ..ClusterStatus::default()
        }
    }

    #[test]
    fn a_peer_that_is_missing_for_lack_of_room_is_named() {
        let mut status = sample();
        status.peers[1].is_up = false;
        assert!(log(&status).contains("; missing: p2"), "{}", log(&status));
        status.peers[1].is_full = true;
        assert!(log(&status).contains("; missing, with a full disk: p2"), "{}", log(&status));
    }

    #[test]
    fn the_first_line_that_matters_says_how_it_is() {
        let verdict_of = |change: fn(&mut ClusterStatus)| {
            let mut status = sample();
            change(&mut status);
            verdict(&status)
        };
        assert!(verdict_of(|_| ()).starts_with("healthy"));
        let full = ClusterStatus { no_room: "the disk of the manager is full".into(), ..sample() };
        assert!(!is_healthy(&full) && no_room(&full).unwrap().contains("the disk of the manager"));
        assert!(verdict_of(|s| s.nodes.clear()).starts_with("no nodes"));
        assert!(is_healthy(&sample()) && !is_healthy(&ClusterStatus::default()), "without nodes nothing is safe");
        assert!(verdict_of(|s| s.nodes[0].health = Health::Down as i32).starts_with("1 node down"));
        assert!(verdict_of(|s| s.chunks_reduced = 3).starts_with("reduced"));
        assert!(verdict_of(|s| s.members_backfilling = 1).starts_with("healthy"), "a drain lowers no redundancy (P6)");
        assert!(verdict_of(|s| (s.chunks_reduced, s.chunks_lost) = (1, 1)).starts_with("DATA UNREADABLE: 1 chunks"));
    }

    #[test]
    fn members_that_wait_for_a_disk_have_a_line_for_each_reason() {
        let waiting = |disk_id, reason: WaitReason, members| MembersWaiting { disk_id, reason: reason.into(), members };
        let members_waiting = vec![
            waiting(1, WaitReason::NoRoom, 7),
            waiting(1, WaitReason::NoHost, 1),
            waiting(2, WaitReason::NoRoom, 5),
        ];
        let status = ClusterStatus { members_waiting, ..sample() };
        let text = lines(&status).join("\n");
        for words in [
            "REPAIR WAITS: no disk on a further host has room for 12 group members; delete files",
            "REPAIR WAITS: no further host is up for 1 group member; start what is down",
            "0 group members being filled, 13 waiting for a disk",
        ] {
            assert!(text.contains(words), "{text}");
        }
        let document = &document(&status)["repair"]["members_waiting"];
        assert_eq!(document[1], json!({"disk_id": 1, "reason": "no-host", "members": 1}));
        assert!(!lines(&sample()).join("\n").contains("WAITS"));
    }

    #[test]
    fn a_disk_has_a_line_and_its_node_a_name() {
        let text = lines(&sample()).join("\n");
        assert_eq!(text.matches("████░░░░░░░░░░░░").count(), 3, "{text}");
        assert!(text.contains(" 3.0 GiB  75.0 GiB  100 GiB "), "{text}");
        assert!(text.contains("60.0 % saved") && text.contains("on 2 of 2 peers (p1, p2); leads: p1"), "{text}");
        assert!(text.contains("7.2 KiB of memory for 3,702 fragments, 1.9 MiB a million"), "{text}");
        let document = document(&sample());
        assert_eq!(document["nodes"][0]["disks"].as_array().unwrap().len(), 2);
        assert_eq!(document["nodes"][0]["disks"][0]["index_bytes_per_million_fragments"], 2_000_000);
    }

    #[test]
    fn unproven_chunks_have_a_line_while_there_are_some() {
        let counter = |name: &str, value| Counter { name: name.into(), value };
        let counters = vec![counter("chunks_unproven", 1_200), counter("wrong_fragments_replaced", 0)];
        let text = |counters| lines(&ClusterStatus { counters, ..sample() }).join("\n");
        assert!(text(counters).contains("proof        1,200 chunks with fragments that no node has compared yet\n"));
        assert!(!text(vec![counter("chunks_unproven", 0)]).contains("proof "));
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
    fn managers_whose_databases_differ_are_a_line_with_the_way_out() {
        let compared = |result: ComparisonResult, differing: &[&str]| {
            let comparison = MetadataComparison {
                result: result as i32,
                ended_ns: 1_700_000_000_000_000_000,
                log_seq: 77,
                managers: 2,
                table: if differing.is_empty() { String::new() } else { "chunks".into() },
                differing: differing.iter().map(|name| (*name).to_string()).collect(),
                running: false,
            };
            ClusterStatus { comparison: Some(comparison), ..sample() }
        };
        let equal = compared(ComparisonResult::Equal, &[]);
        let text = lines(&equal).join("\n");
        assert!(text.contains("compared     equal on 2 managers at 2023-11-14T22:13:20"), "{text}");
        assert!(is_healthy(&equal) && !text.contains("DIFFER"));
        let undecided = compared(ComparisonResult::Undecided, &["m1", "m2"]);
        let text = lines(&undecided).join("\n");
        let line = text.lines().find(|l| l.starts_with("METADATA DIFFERS")).expect("a line");
        for words in ["entry 77", "table chunks", "m1, m2", "nothing is changed", "--join"] {
            assert!(line.contains(words), "{line}");
        }
        assert!(!is_healthy(&undecided));
        let document = document(&undecided)["comparison"].clone();
        assert_eq!((&document["result"], &document["differing"][1]), (&json!("undecided"), &json!("m2")));
        let rebuilds = lines(&compared(ComparisonResult::Rebuilds, &["m2"])).join("\n");
        assert!(rebuilds.contains("each of m2 ends and rebuilds"), "{rebuilds}");
        assert!(!lines(&sample()).join("\n").contains("compared"), "peers that are no managers");
    }

    #[test]
    fn nodes_of_another_cluster_are_a_line_with_the_way_out() {
        let rejected =
            |host: &str| RejectedNode { cluster_id: vec![0xcd; 16], host: host.into(), ..RejectedNode::default() };
        let status = ClusterStatus { rejected_nodes: vec![rejected("a"), rejected("b")], ..sample() };
        let text = lines(&status).join("\n");
        let line = text.lines().find(|l| l.starts_with("REFUSED")).expect("a line");
        for words in ["cdcdcd", "a, b", "--join", "--manager"] {
            assert!(line.contains(words), "{line}");
        }
        assert_eq!(document(&status)["rejected_nodes"][1]["host"], "b");
    }
}
