//! Scripts for the write core against a cluster in memory: which requests it sends, in which order, and their effects.

use super::one_shot_tests::put_expecting;
use super::*;
use crate::test_drive::{Drive, data, read_all, write_all};
use std::collections::BTreeMap;
use tessera_testkit::Cluster;
use tessera_wire::{Health, Kind};

fn cluster(spec: &str) -> Drive {
    Drive::new(Cluster::new(8, 1).with("redundancy", spec))
}

/// Writes `data` in chunks of 10,000 bytes.
fn put(drive: &mut Drive, name: &str, data: &[u8]) -> Result<WriteDone, FileError> {
    let mut core = drive.writer(name, CommitMode::Replace, Some(data.len() as u64));
    drive.write(&mut core, write_all(data, 10_000)).0
}

fn script(drive: &Drive) -> Vec<&str> {
    drive.trace.iter().map(String::as_str).collect()
}

#[test]
fn golden_new_data() {
    let mut drive = cluster("ec:4+2");
    put(&mut drive, "a", &data(25_000, 1)).unwrap();
    // One request for each node: the first chunk's fragment first.
    let mut puts = BTreeMap::<u64, Vec<u32>>::new();
    for chunk in drive.cluster.chunks() {
        for member in drive.cluster.members_of(chunk.pg_id) {
            puts.entry(drive.cluster.node_of(member.disk_id).node_id).or_default().push(member.position);
        }
    }
    let mut expected = vec!["manager OpenWrite".to_string(), "manager AllocateChunks 3".to_string()];
    expected.extend(puts.iter().map(|(node, fragments)| format!("n{node} PutFragments {fragments:?}")));
    expected.extend(["manager Commit 3 extents 3 acks".to_string(), "done: version 1".to_string()]);
    assert_eq!(drive.trace, expected);
    drive.cluster.check_all_stored();
}

#[test]
fn golden_known_data_sends_nothing() {
    let mut drive = cluster("ec:4+2");
    put(&mut drive, "a", &data(25_000, 1)).unwrap();
    drive.trace.clear();
    let done = put(&mut drive, "b", &data(25_000, 1)).unwrap();
    assert_eq!(
        script(&drive),
        ["manager OpenWrite", "manager AllocateChunks 3", "manager Commit 3 extents 0 acks", "done: version 1"]
    );
    assert_eq!((done.known_chunks, done.new_bytes, done.sent_bytes), (3, 0, 0));
    assert_eq!(read_all(&mut drive, "b").unwrap(), data(25_000, 1));
}

#[test]
fn golden_small_files_ask_when_they_open() {
    let mut drive = cluster("auto");
    put_expecting(&mut drive, "small", &data(5_000, 1), Policy::default());
    let puts = |d: &Drive| d.trace.iter().filter(|l| l.contains("PutFragments")).count();
    assert_eq!((drive.trace[0].as_str(), puts(&drive), drive.trace.len()), ("manager OpenWrite", 3, 6));
    // The directory's policy is not the file's: the client asks again for the right class.
    let policy = Policy { redundancy: "ec:2+1".parse().unwrap(), ..Policy::default() };
    put_expecting(&mut drive, "other", &data(4096, 2), policy);
    assert_eq!(drive.trace[1], "manager AllocateChunks 1");
    assert_eq!(read_all(&mut drive, "other").unwrap(), data(4096, 2));
}

#[test]
fn repeated_content_is_asked_and_sent_once() {
    let mut drive = cluster("replica:3");
    let one = data(10_000, 1);
    let done = put(&mut drive, "a", &one.repeat(5)).unwrap();
    assert_eq!((done.chunks, done.sent_bytes, drive.cluster.chunks().len()), (1, 30_000, 1));
    assert_eq!(read_all(&mut drive, "a").unwrap(), one.repeat(5));
}

#[test]
fn empty_files_and_holes_cost_no_chunks() {
    let mut drive = cluster("ec:4+2");
    put(&mut drive, "empty", b"").unwrap();
    assert_eq!(read_all(&mut drive, "empty").unwrap(), b"");
    let mut core = drive.writer("sparse", CommitMode::Replace, None);
    let events = vec![
        WriteRequest::Open,
        WriteRequest::Hole { index: 0, offset: 0, len_bytes: 1 << 20 },
        WriteRequest::Chunk(ChunkReady::new(1, 1 << 20, Bytes::from_static(b"end"))),
        WriteRequest::EndOfInput { size_bytes: (1 << 20) + 3, cuts: false, keep_session: false },
    ];
    drive.write(&mut core, events).0.unwrap();
    let read = read_all(&mut drive, "sparse").unwrap();
    assert_eq!((read.len(), &read[(1 << 20) - 1..], drive.cluster.chunks().len()), ((1 << 20) + 3, &b"\0end"[..], 1));
}

/// P12: if a node dies during the write, chunks move to other groups, and the write succeeds.
#[test]
fn chunks_move_when_a_node_dies() {
    for kill in 1..=8 {
        let mut drive = cluster("ec:4+2");
        drive.cluster.before(Kind::PutFragments, move |cluster| cluster.node(kill).down = true);
        put(&mut drive, "a", &data(95_000, kill)).unwrap();
        drive.cluster.check_all_stored();
        assert_eq!(read_all(&mut drive, "a").unwrap(), data(95_000, kill));
    }
}

/// A file that is written in parts becomes longer while chunks of it are on their way.
#[test]
fn a_chunk_that_moves_keeps_its_class_though_the_file_is_longer() {
    for kill in 1..=8 {
        let mut drive = cluster("auto");
        let mut core = drive.writer("a", CommitMode::Replace, None);
        let (first, rest) = (data(10_000, kill), data(200_000, 100 + kill));
        let part = |index, offset, data: &[u8]| {
            let length = WriteRequest::Length { size_bytes: offset + data.len() as u64 };
            [length, WriteRequest::Chunk(ChunkReady::new(index, offset, Bytes::copy_from_slice(data)))]
        };
        let mut events = vec![WriteRequest::Open];
        events.extend(part(0, 0, &first).into_iter().chain(part(1, 10_000, &rest)));
        events.push(WriteRequest::EndOfInput { size_bytes: 210_000, cuts: false, keep_session: false });
        drive.cluster.before(Kind::PutFragments, move |cluster| cluster.node(kill).down = true);
        // The file is short until the first chunk has a place.
        let later = events.split_off(3);
        events.into_iter().for_each(|event| core.handle(drive.now, event));
        drive.idle(&mut core, drive.now + 10 * crate::config::MS);
        drive.write(&mut core, later).0.unwrap();
        let (classes, committed) = (drive.cluster.classes(), drive.cluster.committed());
        let mut stored: Vec<_> = committed.iter().map(|c| (c.len_bytes, &classes[&c.class_id].spec[..])).collect();
        stored.sort_unstable();
        assert_eq!(stored, [(10_000, "replica:3"), (200_000, "ec:4+2")], "{:#?}", drive.trace);
        assert_eq!(read_all(&mut drive, "a").unwrap(), [first, rest].concat());
    }
}

#[test]
fn a_full_disk_is_avoided() {
    let mut drive = cluster("ec:4+2");
    drive.cluster.node(3).refuse_puts = Some(Error::new(Code::NoSpace, "disk 30 is full"));
    put(&mut drive, "a", &data(50_000, 1)).unwrap();
    assert!(drive.trace.iter().any(|l| l.contains("elsewhere")), "{:#?}", drive.trace);
    assert!(drive.cluster.disks[&3].held.is_empty());
    assert_eq!(read_all(&mut drive, "a").unwrap(), data(50_000, 1));
}

/// P11: puts under an outdated epoch are refused, and go where the newer map says.
#[test]
fn stale_puts_follow_the_map() {
    let mut drive = cluster("ec:4+2");
    drive.cluster.before(Kind::PutFragments, |cluster| cluster.fail_disk(3));
    put(&mut drive, "a", &data(50_000, 1)).unwrap();
    assert!(drive.trace.iter().any(|l| l == "manager GetMap"));
    drive.cluster.check_all_stored();
    assert_eq!(read_all(&mut drive, "a").unwrap(), data(50_000, 1));
}

/// P11: if a commit finds outdated acknowledgements, exactly those fragments are stored again, although the
/// bytes have left memory.
#[test]
fn a_stale_commit_reads_back_and_stores_again() {
    for spec in ["ec:4+2", "replica:3"] {
        let mut drive = cluster(spec);
        drive.cluster.before(Kind::Commit, |cluster| cluster.fail_disk(1));
        put(&mut drive, "a", &data(50_000, 1)).unwrap();
        assert_eq!(drive.cluster.count("Commit"), 2);
        let (first, second) = drive.trace.split_at(drive.trace.iter().position(|l| l.contains("Commit")).unwrap());
        let puts = |lines: &[String], node: &str| {
            let of = lines.iter().filter(|l| l.starts_with(node) && l.contains("PutFragments"));
            of.map(|l| l.matches(|c: char| c.is_ascii_digit()).count() - 1).sum::<usize>()
        };
        let lost = puts(first, "n1 ");
        assert!(lost > 0 && puts(second, "n") == lost, "{:#?}", drive.trace);
        drive.cluster.check_all_stored();
        assert_eq!(read_all(&mut drive, "a").unwrap(), data(50_000, 1));
    }
}

/// P8: lost answers change nothing: one version, one session, one set of chunks.
#[test]
fn lost_answers_have_one_effect() {
    let kinds = [Kind::OpenWrite, Kind::AllocateChunks, Kind::Commit, Kind::RenewSession];
    for kind in kinds {
        let mut drive = cluster("ec:4+2");
        drive.cluster.lose_answers.insert(kind, 3);
        let done = put(&mut drive, "a", &data(30_000, 1)).unwrap();
        let chunks = drive.cluster.chunks().len();
        assert_eq!((done.number, chunks, drive.cluster.status().sessions), (1, 3, 0), "{kind:?}");
        assert_eq!(read_all(&mut drive, "a").unwrap(), data(30_000, 1));
    }
}

#[test]
fn a_manager_that_stays_silent_is_an_error_that_says_so() {
    let mut drive = cluster("ec:4+2");
    drive.cluster.lose_answers.insert(Kind::AllocateChunks, u32::MAX);
    let error = put(&mut drive, "a", &data(30_000, 1)).unwrap_err();
    assert!(matches!(error.cause, Cause::ManagerSilent { request: "AllocateChunks" | "OpenWrite", .. }), "{error}");
}

#[test]
fn too_few_hosts_is_said_clearly() {
    let mut drive = Drive::new(Cluster::new(5, 1).with("redundancy", "ec:4+2"));
    let error = put(&mut drive, "a", &data(30_000, 1)).unwrap_err();
    assert!(error.code() == Code::TooFewHosts && error.to_string().contains("6 hosts"), "{error}");
    assert_eq!(drive.cluster.status().sessions, 0, "the session is closed");
    assert!(drive.cluster.names().is_empty());
}

/// Without another group, the write waits for a dead node; then it fails with what was not stored.
#[test]
fn no_other_group_waits_then_fails_then_writes_degraded_if_allowed() {
    let mut drive = Drive::new(Cluster::new(6, 1).with("redundancy", "ec:4+2"));
    drive.cluster.node(2).down = true;
    let error = put(&mut drive, "a", &data(30_000, 1)).unwrap_err();
    assert!(matches!(error.cause, Cause::NotStored { waited_ms: 120_000.., .. }), "{error}");

    for spec in ["ec:4+2", "copy+ec:4+2"] {
        let mut drive = Drive::new(Cluster::new(6, 1).with("redundancy", spec).with("degraded-writes", "yes"));
        drive.cluster.node(2).down = true;
        let done = put(&mut drive, "a", &data(30_000, 1)).unwrap();
        assert_eq!(done.missing_fragments, 3);
        assert_eq!(read_all(&mut drive, "a").unwrap(), data(30_000, 1));
    }
}

#[test]
fn a_node_that_comes_back_takes_its_fragments() {
    let mut drive = Drive::new(Cluster::new(6, 1).with("redundancy", "ec:4+2"));
    drive.cluster.node(2).down = true;
    // The node is back at the third request for the map.
    (0..2).for_each(|_| drive.cluster.before(Kind::GetMap, |_| {}));
    drive.cluster.before(Kind::GetMap, |cluster| cluster.node(2).down = false);
    put(&mut drive, "a", &data(30_000, 1)).unwrap();
    drive.cluster.check_all_stored();
}

/// P1: an optimistic write is acknowledged when it can be read; its redundancy follows and is reported.
#[test]
fn optimistic_writes_are_done_before_their_parity() {
    let mut drive = Drive::new(Cluster::new(8, 1).with("redundancy", "ec:4+2").with("durability", "optimistic"));
    for node in drive.cluster.nodes.iter_mut().filter(|n| n.node_id > 6) {
        node.delay_ns = 5_000_000_000;
    }
    put(&mut drive, "a", &data(55_000, 1)).unwrap();
    let at = |text: &str| drive.trace.iter().position(|l| l.starts_with(text));
    assert!(at("done").unwrap() < at("manager CompleteFragments").unwrap(), "{:#?}", drive.trace);
    assert!(drive.cluster.count("CompleteFragments") > 0);
    assert!(drive.cluster.chunks().iter().all(|c| c.missing.is_empty()));
    drive.cluster.check_all_stored();
}

/// P1: a copy with slices is acknowledged once the copy is stored, or any k other fragments are.
#[test]
fn optimistic_writes_are_done_with_the_copy_or_with_pieces() {
    for (slow, until) in [(1..6usize, "pieces"), (0..1, "copy")] {
        let cluster = Cluster::new(6, 1).with("redundancy", "copy+ec:4+2").with("durability", "optimistic");
        let mut drive = Drive::new(cluster);
        drive.cluster.before(Kind::PutFragments, move |cluster| {
            for member in &cluster.members_of(cluster.chunks()[0].pg_id)[slow] {
                cluster.node_of(member.disk_id).delay_ns = 5_000_000_000;
            }
        });
        put(&mut drive, "a", &data(9_000, 1)).unwrap();
        let at = |text: &str| drive.trace.iter().position(|l| l.starts_with(text));
        assert!(at("done").unwrap() < at("manager CompleteFragments").unwrap(), "{until}: {:#?}", drive.trace);
        drive.cluster.check_all_stored();
        assert!(drive.cluster.chunks().iter().all(|c| c.missing.is_empty()));
    }
}

#[test]
fn huge_files_are_staged_and_only_the_last_commit_shows() {
    let mut drive = cluster("replica:3");
    drive.options = Arc::new(Options { commit_extents: 10, ..Options::default() });
    let bytes = data(1_000_000, 3);
    put(&mut drive, "a", &bytes).unwrap();
    let partial = drive.trace.iter().filter(|l| l.ends_with("partial")).count();
    assert_eq!((partial, drive.cluster.status().versions), (9, 1));
    assert_eq!(read_all(&mut drive, "a").unwrap(), bytes);
}

/// Chunks are freed when they are stored: never more than the window is held.
#[test]
fn the_window_bounds_memory() {
    for spec in ["ec:4+2", "replica:3", "copy+ec:4+2"] {
        let mut drive = cluster(spec);
        drive.options = Arc::new(Options { write_window_bytes: 50_000, ..Options::default() });
        let bytes = data(2_000_000, 4);
        let mut core = drive.writer("a", CommitMode::Replace, None);
        let (done, most) = drive.write(&mut core, write_all(&bytes, 10_000));
        assert_eq!(done.unwrap().chunks, 200);
        assert!((20_000..=60_000).contains(&most), "{most}");
        assert_eq!(read_all(&mut drive, "a").unwrap(), bytes);
    }
}

#[test]
fn patches_appends_and_compare_and_swap() {
    let mut drive = cluster("ec:4+2");
    let mut bytes = data(60_000, 5);
    let first = put(&mut drive, "a", &bytes).unwrap();

    let patch = data(7_000, 6);
    let mut core = drive.writer("a", CommitMode::Patch, Some(7_000));
    let events = vec![
        WriteRequest::Open,
        WriteRequest::Chunk(ChunkReady::new(0, 15_123, Bytes::from(patch.clone()))),
        WriteRequest::EndOfInput { size_bytes: 60_000, cuts: false, keep_session: false },
    ];
    let second = drive.write(&mut core, events).0.unwrap();
    bytes[15_123..22_123].copy_from_slice(&patch);
    assert_eq!(read_all(&mut drive, "a").unwrap(), bytes);

    let tail = data(5_000, 7);
    let mut core = drive.writer("a", CommitMode::Append, Some(5_000));
    let done = drive.write(&mut core, write_all(&tail, 10_000)).0.unwrap();
    bytes.extend_from_slice(&tail);
    assert_eq!((done.append_offset, read_all(&mut drive, "a").unwrap()), (60_000, bytes.clone()));

    let mut core = drive.writer("a", CommitMode::Replace, Some(3));
    core.params.if_version = Some(first.version);
    let error = drive.write(&mut core, write_all(b"new", 10)).0.unwrap_err();
    assert!(matches!(error.cause, Cause::VersionConflict { expected, .. } if expected == first.version), "{error}");
    assert_ne!(first.version, second.version);
    assert_eq!(read_all(&mut drive, "a").unwrap(), bytes);
}

#[test]
fn a_synced_handle_goes_on() {
    let mut drive = cluster("ec:4+2");
    let (a, b) = (data(20_000, 8), data(20_000, 9));
    let mut core = drive.writer("a", CommitMode::Append, None);
    let piece =
        |i: u64, bytes: &[u8]| WriteRequest::Chunk(ChunkReady::new(i, i * 20_000, Bytes::copy_from_slice(bytes)));
    let end = |keep| WriteRequest::EndOfInput {
        size_bytes: if keep { 20_000 } else { 40_000 },
        cuts: false,
        keep_session: keep,
    };
    core.handle(drive.now, WriteRequest::Open);
    core.handle(drive.now, piece(0, &a));
    core.handle(drive.now, end(true));
    drive.write_until_done(&mut core).unwrap();
    assert_eq!(read_all(&mut drive, "a").unwrap(), a);
    drive.write(&mut core, vec![piece(1, &b), end(false)]).0.unwrap();
    assert_eq!(read_all(&mut drive, "a").unwrap(), [a, b].concat());
}

#[test]
fn a_cancelled_write_leaves_nothing_visible() {
    let mut drive = cluster("ec:4+2");
    let mut core = drive.writer("a", CommitMode::Replace, None);
    let mut events = write_all(&data(30_000, 1), 10_000);
    events.pop();
    events.push(WriteEvent::Cancel);
    assert!(matches!(drive.write(&mut core, events).0, Err(FileError { cause: Cause::Cancelled, .. })));
    assert!(drive.cluster.names().is_empty());
}

/// A write that is given up closes its session, even one that is still being opened: sessions hold space and garbage.
#[test]
fn a_write_that_is_given_up_leaves_no_session() {
    let cancelled = |events: Vec<WriteEvent>| {
        let mut drive = cluster("ec:4+2");
        let mut core = drive.writer("a", CommitMode::Replace, None);
        let result = drive.write(&mut core, events).0;
        assert!(matches!(result, Err(FileError { cause: Cause::Cancelled, .. })), "{result:?}");
        while let Some(WriteAction::Call(call)) = core.poll() {
            drive.call(&call).result.unwrap();
        }
        let sessions = drive.cluster.status().sessions;
        (drive.cluster.count("OpenWrite"), drive.cluster.count("CloseSession"), sessions)
    };
    assert_eq!(cancelled(vec![WriteEvent::Cancel]), (0, 0, 0));
    assert_eq!(cancelled(vec![WriteRequest::Open.into(), WriteEvent::Cancel]), (1, 1, 0), "cancelled while it opens");
    let mut events = write_all(&data(30_000, 1), 10_000);
    events.pop();
    events.push(WriteEvent::Cancel);
    assert_eq!(cancelled(events), (1, 1, 0));
}

#[test]
fn sessions_are_renewed_and_space_is_reserved_ahead() {
    let mut drive = cluster("ec:4+2");
    let mut core = drive.writer("a", CommitMode::Replace, None);
    drive.cluster.nodes.iter_mut().for_each(|node| node.delay_ns = 15_000_000_000);
    drive.write(&mut core, write_all(&data(90_000, 1), 10_000)).0.unwrap();
    assert_eq!(drive.cluster.count("RenewSession"), 1, "once in 15 s of a session of 30 s");

    let mut core = drive.writer("b", CommitMode::Replace, None);
    core.handle(drive.now, WriteRequest::Open);
    let Some(WriteAction::Call(open)) = core.poll() else { panic!() };
    core.handle(drive.now, WriteEvent::Answer(drive.call(&open)));
    core.handle(drive.now, WriteRequest::Chunk(ChunkReady::new(0, 0, Bytes::from_static(b"x"))));
    let calls: Vec<Call> = std::iter::from_fn(|| core.poll())
        .filter_map(|a| if let WriteAction::Call(c) = a { Some(c) } else { None })
        .collect();
    let renew = calls.iter().find(|c| c.kind == Kind::RenewSession).unwrap();
    drive.call(renew).result.unwrap();
    assert!(drive.cluster.status().reserved_bytes >= 64 << 20);
}

/// P8: the session has ended with a commit whose answers were lost. A renewal that finds it gone decides nothing: the repeated commit
/// gets its answer.
#[test]
fn p8_a_renewal_after_an_unanswered_commit_does_not_fail_the_write() {
    let mut drive = cluster("ec:4+2");
    drive.lost_commits = 2;
    let mut core = drive.writer("a", CommitMode::Replace, None);
    drive.write(&mut core, write_all(&data(90_000, 1), 10_000)).0.unwrap();
    let renewed = |line: &String| line.contains("RenewSession") && line.contains("SessionExpired");
    assert!(drive.trace.iter().any(renewed), "{:#?}", drive.trace);
}

#[test]
fn nodes_that_are_down_are_not_allocated() {
    let mut drive = cluster("ec:4+2");
    drive.cluster.declare_down(4);
    assert_eq!(drive.cluster.status().nodes[3].health(), Health::Down);
    put(&mut drive, "a", &data(30_000, 1)).unwrap();
    assert!(!drive.trace.iter().any(|l| l.starts_with("n4")));
}

/// P12: a fragment that waits while another one's disk is full does not count as sent: if there is no other
/// group, it is sent to its own disk, whether the version is visible by then or not.
#[test]
fn what_waits_beside_a_hopeless_fragment_is_sent_later() {
    for durability in ["pessimistic", "optimistic"] {
        for (full, garbles) in (1..=6).map(|n| (n, n % 6 + 1)) {
            let cluster = Cluster::new(6, 1).with("redundancy", "ec:4+2").with("durability", durability);
            let mut drive = Drive::new(cluster);
            drive.cluster.node(full).refuse_puts = Some(Error::new(Code::NoSpace, "full"));
            drive.cluster.node(garbles).refuse_puts = Some(Error::new(Code::Corrupt, "garbled"));
            drive.cluster.before(Kind::GetMap, move |cluster| cluster.node(garbles).refuse_puts = None);
            // The full disk has space again at the third request for the map.
            drive.cluster.before(Kind::GetMap, |_| {});
            drive.cluster.before(Kind::GetMap, move |cluster| cluster.node(full).refuse_puts = None);
            put(&mut drive, "a", &data(9_000, 1)).unwrap();
            drive.cluster.check_all_stored();
        }
    }
}

/// P12: a chunk that is to move waits for its new group, even if the fragments that arrive meanwhile would suffice for
/// a degraded write.
#[test]
fn acknowledgements_during_a_move_do_not_settle_the_chunk() {
    for (full, slow, slower) in (1..=8).flat_map(|n| (1..=6).map(move |i| (n, n % 8 + 1, (n + i) % 8 + 1))) {
        let mut drive = Drive::new(Cluster::new(8, 1).with("redundancy", "ec:4+2").with("degraded-writes", "yes"));
        drive.cluster.node(full).refuse_puts = Some(Error::new(Code::NoSpace, "full"));
        // One node answers during the request for another group; another delays the commit.
        drive.cluster.node(slow).delay_ns = 1_500_000;
        drive.cluster.node(slower).delay_ns = 5_000_000;
        put(&mut drive, "a", &data(50_000, 1)).unwrap();
        assert_eq!(read_all(&mut drive, "a").unwrap(), data(50_000, 1));
    }
}

/// P12: a node that takes nothing holds up the end of an optimistic write for ten seconds, not for two minutes. The other fragments follow.
#[test]
fn p12_redundancy_that_a_node_does_not_take_is_left_to_repair_soon() {
    for away in 1..=6 {
        let mut drive = Drive::new(Cluster::new(6, 1).with("redundancy", "ec:4+2").with("durability", "optimistic"));
        drive.cluster.node(away).refuse_puts = Some(Error::new(Code::Unavailable, "it does not answer"));
        let began = drive.now;
        put(&mut drive, "a", &data(50_000, 1)).unwrap();
        let (took_ms, late_ms) = ((drive.now - began) / crate::config::MS, drive.options.late_deadline_ms as i64);
        assert!((late_ms..late_ms + 5_000).contains(&took_ms), "node {away}: {took_ms} ms");
        assert!(drive.cluster.chunks().iter().all(|c| c.missing.len() == 1), "node {away}");
        assert_eq!(drive.view.read().left_to_repair, drive.cluster.chunks().len() as u64);
        assert_eq!(read_all(&mut drive, "a").unwrap(), data(50_000, 1));
    }
}

/// P12: so it is with a node that answers nothing, however many fragments wait for it.
#[test]
fn p12_redundancy_that_waits_for_a_silent_node_is_left_to_repair_soon() {
    let mut drive = Drive::new(Cluster::new(6, 1).with("redundancy", "ec:4+2").with("durability", "optimistic"));
    Arc::make_mut(&mut drive.options).put_bytes = 4 << 10;
    drive.cluster.node(3).delay_ns = i64::MAX;
    let began = drive.now;
    put(&mut drive, "a", &data(400_000, 1)).unwrap();
    let took_ms = ((drive.now - began) / crate::config::MS) as u64;
    assert!((drive.options.late_deadline_ms..2 * drive.options.late_deadline_ms).contains(&took_ms), "{took_ms} ms");
    assert!(drive.cluster.chunks().iter().all(|c| c.missing.len() == 1));
    assert_eq!(drive.view.read().left_to_repair, drive.cluster.chunks().len() as u64);
}

/// P12: a file that stays open after an optimistic sync does not fail because a node does not take its redundancy.
#[test]
fn p12_an_open_file_outlasts_redundancy_that_a_node_does_not_take() {
    let mut drive = Drive::new(Cluster::new(6, 1).with("redundancy", "ec:4+2").with("durability", "optimistic"));
    drive.cluster.node(6).refuse_puts = Some(Error::new(Code::Unavailable, "it does not answer"));
    let mut core = drive.writer("a", CommitMode::Append, None);
    let bytes = data(40_000, 1);
    let piece = |i: usize| {
        let at = i * 20_000;
        let chunk = Bytes::copy_from_slice(&bytes[at..at + 20_000]);
        WriteRequest::Chunk(ChunkReady::new(i as u64, at as u64, chunk))
    };
    let end = |size_bytes, keep_session| WriteRequest::EndOfInput { size_bytes, cuts: false, keep_session };
    core.handle(drive.now, WriteRequest::Open);
    core.handle(drive.now, piece(0));
    core.handle(drive.now, end(20_000, true));
    drive.write_until_done(&mut core).unwrap();
    let later_ns = drive.now + 2 * crate::config::ms(drive.options.put_deadline_ms);
    drive.idle(&mut core, later_ns);
    drive.write(&mut core, vec![piece(1), end(40_000, false)]).0.unwrap();
    assert_eq!(read_all(&mut drive, "a").unwrap(), bytes);
}

/// P1, P11: fragments that were lost between their put and the commit are put again, by the write itself.
#[test]
fn what_is_lost_before_the_commit_is_put_again() {
    for len_bytes in [9_000, 200_000] {
        let mut drive = Drive::new(Cluster::new(7, 1).with("redundancy", "ec:4+2"));
        for lost in [1, 2] {
            drive.cluster.before(Kind::Commit, move |cluster| {
                let chunk = cluster.chunks().into_iter().rfind(|chunk| !chunk.committed).unwrap();
                (0..lost).for_each(|fragment| cluster.lose_fragment(chunk.chunk_id, fragment));
            });
            let name = format!("a{lost}");
            put(&mut drive, &name, &data(len_bytes, lost as u64)).unwrap();
            assert_eq!(read_all(&mut drive, &name).unwrap(), data(len_bytes, lost as u64));
            drive.cluster.check_all_stored();
        }
    }
}

/// P11: no acknowledgement counts under an epoch that a node reported before the map shows what it changed.
#[test]
fn an_optimistic_commit_does_not_claim_an_epoch_that_the_map_does_not_show() {
    for (turn, lost) in (0..7).flat_map(|turn| (0..4).map(move |lost| (turn, lost))) {
        let mut drive = Drive::new(Cluster::new(7, 1).with("redundancy", "ec:4+2").with("durability", "optimistic"));
        // Each further file is in another group.
        (0..turn).for_each(|i| _ = put(&mut drive, "other", &data(9_000, 2 + i)).unwrap());
        (1..=5).for_each(|node| drive.cluster.node(node).delay_ns = 500_000);
        (0..5).for_each(|_| drive.cluster.before(Kind::PutFragments, |_| {}));
        // The last put finds another epoch; its answer comes before the others'.
        drive.cluster.before(Kind::PutFragments, move |cluster| {
            let pg_id = cluster.chunks().last().unwrap().pg_id;
            cluster.fail_disk(cluster.members_of(pg_id)[lost].disk_id);
        });
        put(&mut drive, "a", &data(9_000, 1)).unwrap();
        drive.cluster.check_stored(drive.cluster.committed().last().unwrap());
    }
}
