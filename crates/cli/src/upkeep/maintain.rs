//! `tessera repair`, `scrub` and `gc`: start maintenance jobs in the cluster and follow them.

use super::status::{DIFFERS_ADVICE, HEAL_ADVICE, comparison};
use super::waiting;
use crate::args::UpkeepArgs;
use crate::exit::{Exit, Failure, Outcome, bail, failure};
use crate::remote::Store;
use crate::term::{Out, Progress, units};
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tessera_client::{Cancel, Compacted, Share};
use tessera_wire::meta::{ClusterStatus, ComparisonResult, Counter, MaintainReply, MaintenanceJob, WaitReason};
use tessera_wire::{DiskInfo, Health};

/// Interval of the status requests.
const CHECK_EVERY: Duration = Duration::from_millis(250);

/// A repair without progress and without running tasks for this long, while fragments are missing, is stuck.
const STUCK_AFTER: Duration = Duration::from_secs(10);

/// Starts the maintenance job `what` and follows it to its end.
///
/// # Errors
/// The manager cannot be reached, or the job left damage that needs attention.
pub fn maintain(what: MaintenanceJob, args: UpkeepArgs) -> Outcome {
    let out = args.common.output;
    let store = Store::connect(&args.common)?;
    let started = Instant::now();
    let follows = !args.look && !args.no_wait;
    let mut rewritten = Compacted::default();
    if what == MaintenanceJob::Gc && follows {
        rewritten = rewrite_packs(&store, out)?;
        move_into_packs(&store, out);
    }
    let mut state = store.maintain(what, !args.look)?;
    let mut damage = Ok(());
    if follows {
        state = follow(&store, what, state, out)?;
        damage = match what {
            MaintenanceJob::Repair => unrepaired(&state, &store.status()?),
            MaintenanceJob::Scrub => {
                let status = store.status()?;
                lost(status.chunks_lost).and_then(|()| undecided(&status))
            }
            MaintenanceJob::Gc => undeleted(&state, &store.status()?, out)
                .and_then(|()| uncompacted(&state))
                .and_then(|()| unwritten(rewritten)),
            MaintenanceJob::Unknown => Ok(()),
        };
    }
    out.result(&document(what, &state), sentence(what, &state, started.elapsed()))?;
    let waiting = counter(&state.counters, "garbage_chunks");
    if what == MaintenanceJob::Gc && !state.running && waiting > 0 {
        out.note(format!(
            "{} chunks wait for sessions that began before they became garbage (after a restart of the manager: for those it may not know); they are collected later",
            units::count(waiting)
        ));
    }
    damage
}

/// The manager has heard of space that became free after this time.
const SPACE_IS_KNOWN_AFTER: Duration = Duration::from_secs(1);
/// Packs of whose bytes at most this share is left are written anew before garbage is collected.
const LIVING_PERCENT: u32 = 75;

/// Writes packs of small files anew of which little is left, so that their space comes back. In a full store only a few find room at a time:
/// garbage is collected between them, as long as that gives space back.
fn rewrite_packs(store: &Store, out: Out) -> Outcome<Compacted> {
    store.end_sessions_on_interrupt();
    let mut all = Compacted::default();
    loop {
        let done = match store.compact_packs(LIVING_PERCENT, |_| true, &Cancel::default()) {
            Ok(done) => done,
            Err(error) => {
                out.caution(format!("packs of small files were not written anew: {error}"));
                break;
            }
        };
        let (packs, goes_on) = (done.packs, done.is_without_space());
        all.packs += packs;
        all.pack_bytes += done.pack_bytes;
        all.moved_bytes += done.moved_bytes;
        all.failed = done.failed;
        if !goes_on {
            break;
        }
        let state = store.maintain(MaintenanceJob::Gc, true)?;
        let state = follow(store, MaintenanceJob::Gc, state, out)?;
        if packs == 0 && counter(&state.counters, "freed_bytes") == 0 {
            break;
        }
        std::thread::sleep(SPACE_IS_KNOWN_AFTER);
    }
    if all.packs > 0 {
        let (left, bytes) = (units::bytes(all.moved_bytes), units::bytes(all.pack_bytes));
        let packs = units::plural(all.packs, "pack");
        out.note(format!("wrote {packs} of small files anew: {left} of {bytes} were left"));
    }
    Ok(all)
}

/// Small files move into packs before garbage is collected if they were not written for so long.
const MOVED_AFTER: Duration = Duration::from_secs(60);

/// Moves small files that were written by themselves into packs, which are coded: their copies become garbage.
fn move_into_packs(store: &Store, out: Out) {
    let done = store.move_into_packs(MOVED_AFTER, Share::ALL, &Cancel::default());
    let failed = match done {
        Err(error) => Some(error.to_string()),
        Ok(done) => {
            if done.files > 0 {
                out.note(format!("moved {} into packs", units::plural(done.files, "small file")));
            }
            if done.contents > 0 {
                let contents = units::plural(done.contents, "content");
                out.note(format!("moved {contents} of tiny files out of the metadata into packs"));
            }
            done.failed.map(|error| error.to_string())
        }
    };
    if let Some(error) = failed {
        out.caution(format!("not all small files that could move into packs did; they stay stored as they are, and nodes try again: {error}"));
    }
}

/// The failure for packs of small files that could not be written anew.
fn unwritten(rewritten: Compacted) -> Outcome {
    match rewritten.failed {
        None => Ok(()),
        Some(error) => Err(Failure::from(tessera_client::Error::from(error))
            .of("not all packs of small files were written anew, run `tessera gc` again later")),
    }
}

/// The value of a counter; 0 if it is missing.
pub(super) fn counter(counters: &[Counter], name: &str) -> u64 {
    counters.iter().find(|c| c.name == name).map_or(0, |c| c.value)
}

/// Counters as a JSON object.
pub(super) fn counters_document(counters: &[Counter]) -> Value {
    Value::Object(counters.iter().map(|c| (c.name.clone(), c.value.into())).collect())
}

/// The failure for what a repair left missing when it ended or got stuck. Programs see it in the exit code.
fn unrepaired(state: &MaintainReply, status: &ClusterStatus) -> Outcome {
    let [reduced, lost] = ["chunks_reduced", "chunks_lost"].map(|name| counter(&state.counters, name));
    if !state.running && reduced + lost == 0 {
        return Ok(());
    }
    let away = away(status);
    if away.is_empty() && lost > 0 {
        return self::lost(lost);
    }
    let for_room = waiting::members(status, |_| true).remove(&WaitReason::NoRoom);
    let for_room = for_room.map(|members| waiting::sentence(WaitReason::NoRoom, members));
    let missing = (!away.is_empty()).then(|| {
        let away = away.join(", ");
        format!("{away} missing: start what is missing, or add nodes; the cluster then goes on by itself")
    });
    let ways_out: Vec<String> = for_room.into_iter().chain(missing).collect();
    let way_out = if ways_out.is_empty() { "see `tessera status`".to_string() } else { ways_out.join("; ") };
    let left = state.total.saturating_sub(state.done);
    Err(failure!(
        Exit::Unavailable,
        "repair cannot go on: {} to rebuild, {} with reduced redundancy, {} unreadable; {way_out}",
        units::plural(left, "fragment"),
        units::plural(reduced, "chunk"),
        units::plural(lost, "chunk"),
    ))
}

/// A disk with less free space than this may have no room for the records of deletes.
const FULL_BYTES: u64 = 8 << 20;

/// The failure for deletes that full disks cannot carry out. Those of nodes that are down are noted.
fn undeleted(state: &MaintainReply, status: &ClusterStatus, out: Out) -> Outcome {
    let left = counter(&state.counters, "deletes_pending");
    if left == 0 {
        return Ok(());
    }
    let is_full = |d: &&DiskInfo| d.health == Health::Up as i32 && d.free_bytes < FULL_BYTES;
    let free = |d: &DiskInfo| {
        format!(
            "{} has {} free of {}",
            disk_name(status, d),
            units::bytes(d.free_bytes),
            units::bytes(d.capacity_bytes)
        )
    };
    let full: Vec<String> = status.disks.iter().filter(is_full).map(free).collect();
    let left = units::plural(left, "delete");
    if full.is_empty() {
        out.note(format!("{left} not yet confirmed; nodes carry them out once they are up"));
        return Ok(());
    }
    bail!(
        Exit::NoSpace,
        "{left} not carried out: the record of a delete needs room, and {}; make room there, the cluster then goes on by itself",
        full.join(", ")
    )
}

/// The failure for disks that keep dead bytes which compaction was to free.
fn uncompacted(state: &MaintainReply) -> Outcome {
    match counter(&state.counters, "disks_uncompacted") {
        0 => Ok(()),
        disks => bail!(
            Exit::Unavailable,
            "{} could not be compacted to the end, most likely for want of room: what lives must be copied before the space beside it is freed; \
             the logs of the nodes name the disks and the bytes; free space there, or delete more",
            units::plural(disks, "disk")
        ),
    }
}

/// The failure for managers whose databases differ while nobody knows which is right.
fn undecided(status: &ClusterStatus) -> Outcome {
    let last = comparison(status);
    match last.result() {
        ComparisonResult::Undecided => bail!(
            Exit::Corrupt,
            "the databases of the managers {} differ after entry {} in table {}; {DIFFERS_ADVICE}",
            last.differing.join(", "),
            last.log_seq,
            last.table
        ),
        _ => Ok(()),
    }
}

/// The failure for lost chunks, which no maintenance job can restore.
fn lost(chunks: u64) -> Outcome {
    match chunks {
        0 => Ok(()),
        n => bail!(Exit::Corrupt, "{} damaged beyond repair; {HEAL_ADVICE}", units::plural(n, "chunk")),
    }
}

/// Names of the nodes and disks that do not serve.
pub(super) fn away(status: &ClusterStatus) -> Vec<String> {
    let serves = |health: i32| !matches!(Health::try_from(health), Ok(Health::Down | Health::Out));
    let nodes = status.nodes.iter().filter(|n| !serves(n.health)).map(|n| format!("node {}", n.name));
    let of_live_node = |id: u64| status.nodes.iter().any(|n| n.node_id == id && serves(n.health));
    let disks = status.disks.iter().filter(|d| !serves(d.health) && of_live_node(d.node_id));
    nodes.chain(disks.map(|d| disk_name(status, d))).collect()
}

/// A disk in words: its number, its directory, its node.
pub(super) fn disk_name(status: &ClusterStatus, disk: &DiskInfo) -> String {
    let node = status.nodes.iter().find(|n| n.node_id == disk.node_id).map_or("?", |n| &n.name);
    format!("disk {} ({} of {node})", disk.disk_id, disk.path)
}

/// Whether a repair without progress is stuck: chunks are lost, daemons are away or members find no disk, and no node has a task.
fn is_stuck(status: &ClusterStatus) -> bool {
    let waits = status.chunks_lost > 0 || !status.members_waiting.is_empty() || !away(status).is_empty();
    waits && counter(&status.counters, "tasks_out") == 0
}

fn follow(store: &Store, what: MaintenanceJob, mut state: MaintainReply, out: Out) -> Outcome<MaintainReply> {
    let progress = match what {
        MaintenanceJob::Scrub => Progress::bytes(out, name(what), Some(state.total)),
        _ => Progress::items(out, name(what)),
    };
    let mut moved = (Instant::now(), state.done, state.total);
    while state.running {
        progress.set(state.done, state.total.max(state.done));
        std::thread::sleep(CHECK_EVERY);
        let term = state.term;
        state = store.maintain(what, false)?;
        if state.term != term {
            out.note(format!("another manager leads now; {} begins again", name(what)));
            state = store.maintain(what, true)?;
        }
        if (moved.1, moved.2) != (state.done, state.total) {
            moved = (Instant::now(), state.done, state.total);
        } else if what == MaintenanceJob::Repair && moved.0.elapsed() >= STUCK_AFTER && is_stuck(&store.status()?) {
            break;
        }
    }
    progress.finish();
    Ok(state)
}

fn name(what: MaintenanceJob) -> String {
    units::enum_name(what.as_str_name(), "MAINTENANCE_JOB_")
}

fn document(what: MaintenanceJob, state: &MaintainReply) -> Value {
    let counters = counters_document(&state.counters);
    json!({"pass": name(what), "running": state.running, "done": state.done, "total": state.total, "counters": counters})
}

fn sentence(what: MaintenanceJob, state: &MaintainReply, elapsed: Duration) -> String {
    let amount = |n: u64| match what {
        MaintenanceJob::Scrub => units::bytes(n),
        MaintenanceJob::Gc => format!("{} disks", units::count(n)),
        _ => format!("{} fragments", units::count(n)),
    };
    let words: Vec<String> = state.counters.iter().map(|c| phrase(&c.name, c.value)).collect();
    let words = if words.is_empty() { String::new() } else { format!(": {}", words.join(", ")) };
    match state.running {
        true => format!("{} runs, {} of {}{words}", name(what), amount(state.done), amount(state.total)),
        false => format!("{} done in {}, {}{words}", name(what), units::duration(elapsed), amount(state.done)),
    }
}

/// A counter in words: `freed_bytes` 3 MiB is "3.0 MiB freed".
fn phrase(name: &str, value: u64) -> String {
    match name.strip_suffix("_bytes") {
        Some(name) => format!("{} {}", units::bytes(value), name.replace('_', " ")),
        None => format!("{} {}", units::count(value), name.replace('_', " ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pass_ends_in_a_sentence_with_units() {
        let state = MaintainReply {
            running: false,
            done: 3 << 20,
            total: 3 << 20,
            counters: vec![Counter { name: "rot_found".into(), value: 1 }],
            term: 1,
        };
        assert_eq!(
            sentence(MaintenanceJob::Scrub, &state, Duration::from_secs(2)),
            "scrub done in 2.0 s, 3.0 MiB: 1 rot found"
        );
        let state = MaintainReply { running: true, ..state };
        assert!(
            sentence(MaintenanceJob::Repair, &state, Duration::ZERO).starts_with("repair runs, 3,145,728 fragments of")
        );
        assert_eq!(phrase("freed_bytes", 3 << 20), "3.0 MiB freed");
    }

    /// P14: a repair that cannot go on because disks are full says so, not only what is missing.
    #[test]
    fn a_repair_without_room_says_so() {
        let waiting = tessera_wire::meta::MembersWaiting { disk_id: 1, reason: WaitReason::NoRoom.into(), members: 12 };
        let mut status = ClusterStatus { members_waiting: vec![waiting], ..ClusterStatus::default() };
        assert!(is_stuck(&status));
        let counters = vec![Counter { name: "chunks_reduced".into(), value: 3 }];
        let state = MaintainReply { running: true, total: 5, counters, ..MaintainReply::default() };
        let failure = unrepaired(&state, &status).unwrap_err();
        assert!(failure.message.contains("has room for 12 group members; delete files"), "{failure}");
        status.members_waiting.clear();
        assert!(unrepaired(&state, &status).unwrap_err().message.ends_with("see `tessera status`"));
        assert!(!is_stuck(&status));
    }

    #[test]
    fn disks_that_cannot_be_compacted_are_a_failure() {
        let of = |value| MaintainReply {
            counters: vec![Counter { name: "disks_uncompacted".into(), value }],
            ..MaintainReply::default()
        };
        assert_eq!(uncompacted(&of(0)), Ok(()));
        let failure = uncompacted(&of(2)).unwrap_err();
        assert!(failure.exit == Exit::Unavailable && failure.message.starts_with("2 disks could not"), "{failure}");
    }

    /// A delete needs room for its record: a full disk is named, with its bytes.
    #[test]
    fn deletes_that_full_disks_cannot_carry_out_are_a_failure() {
        let disk = |disk_id, free_bytes| DiskInfo {
            disk_id,
            node_id: 1,
            health: Health::Up as i32,
            capacity_bytes: 10 << 30,
            free_bytes,
            path: format!("/d{disk_id}"),
            ..DiskInfo::default()
        };
        let node = tessera_wire::NodeInfo { node_id: 1, name: "n1".into(), ..Default::default() };
        let mut status =
            ClusterStatus { nodes: vec![node], disks: vec![disk(1, 0), disk(2, 1 << 30)], ..Default::default() };
        let left = |value| MaintainReply {
            counters: vec![Counter { name: "deletes_pending".into(), value }],
            ..MaintainReply::default()
        };
        assert_eq!(undeleted(&left(0), &status, Out::default()), Ok(()));
        let failure = undeleted(&left(7), &status, Out::default()).unwrap_err();
        assert_eq!(failure.exit, Exit::NoSpace);
        for words in ["7 deletes", "disk 1 (/d1 of n1) has 0 B free of 10.0 GiB", "make room"] {
            assert!(failure.message.contains(words), "{failure}");
        }
        assert!(!failure.message.contains("/d2"), "{failure}");
        status.disks.remove(0);
        assert_eq!(undeleted(&left(7), &status, Out { quiet: true, json: false }), Ok(()));
    }
}
