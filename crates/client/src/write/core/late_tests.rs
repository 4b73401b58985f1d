//! Redundancy of optimistic writes that nodes do not take, in a cluster that has no other group for it.

use super::*;
use crate::test_drive::{Drive, data, read_all};
use tessera_testkit::Cluster;
use tessera_wire::Kind;

/// Length of each chunk.
const CHUNK: usize = 20_000;

fn cluster() -> Drive {
    let mut drive = Drive::new(Cluster::new(6, 1).with("redundancy", "ec:4+2").with("durability", "optimistic"));
    let options = Arc::make_mut(&mut drive.options);
    (options.put_bytes, options.puts_in_flight) = (4 << 10, 1);
    drive
}

/// Chunks number `range` of `bytes`.
fn pieces(bytes: &[u8], range: std::ops::Range<usize>) -> Vec<WriteEvent> {
    let piece = |i: usize| {
        let data = Bytes::copy_from_slice(&bytes[i * CHUNK..(i + 1) * CHUNK]);
        WriteRequest::Chunk(ChunkReady::new(i as u64, (i * CHUNK) as u64, data)).into()
    };
    range.map(piece).collect()
}

/// Gives a write the chunks number `range` of `bytes`.
fn give(drive: &Drive, core: &mut WriteCore, bytes: &[u8], range: std::ops::Range<usize>) {
    pieces(bytes, range).into_iter().for_each(|event| core.handle(drive.now, event));
}

fn end(chunks: usize, keep_session: bool) -> WriteEvent {
    WriteRequest::EndOfInput { size_bytes: (chunks * CHUNK) as u64, cuts: false, keep_session }.into()
}

/// A write that has been open for `open_ms` since it was given the first `chunks` of `bytes`.
fn open_for(drive: &mut Drive, open_ms: u64, bytes: &[u8], chunks: usize) -> WriteCore {
    let mut core = drive.writer("a", CommitMode::Append, None);
    core.handle(drive.now, WriteRequest::Open);
    give(drive, &mut core, bytes, 0..chunks);
    let until_ns = drive.now + ms(open_ms);
    drive.idle(&mut core, until_ns);
    core
}

fn refuses() -> Option<Error> {
    Some(Error::new(Code::Unavailable, "it does not answer"))
}

/// P12: a file that stays open after an optimistic sync does not fail although the second attempt at a fragment waits for
/// longer than `put_deadline_ms` behind others for a silent node.
#[test]
fn p12_an_open_file_outlasts_a_queue_for_a_silent_node() {
    let mut drive = cluster();
    let bytes = data(10 * CHUNK, 1);
    drive.cluster.node(3).delay_ns = i64::MAX;
    let mut core = open_for(&mut drive, 0, &bytes, 9);
    core.handle(drive.now, end(9, true));
    drive.write_until_done(&mut core).unwrap();
    let later_ns = drive.now + 5 * ms(drive.options.put_deadline_ms);
    drive.idle(&mut core, later_ns);
    drive.write(&mut core, pieces(&bytes, 9..10).into_iter().chain([end(10, false)]).collect()).0.unwrap();
    assert_eq!(read_all(&mut drive, "a").unwrap(), bytes);
}

/// P12: a write whose input takes long does not fail because a node takes no redundancy. The commit says what is missing.
#[test]
fn p12_a_long_write_outlasts_a_node_that_takes_nothing() {
    for silent in [false, true] {
        let mut drive = cluster();
        let bytes = data(4 * CHUNK, 1);
        match silent {
            true => drive.cluster.node(3).delay_ns = i64::MAX,
            false => drive.cluster.node(3).refuse_puts = refuses(),
        }
        let open_ms = 3 * drive.options.put_deadline_ms;
        let mut core = open_for(&mut drive, open_ms, &bytes, 4);
        assert_eq!(core.held_bytes(), 0, "what is left to repair takes no memory");
        let done = drive.write(&mut core, vec![end(4, false)]).0.unwrap();
        assert_eq!((done.missing_fragments, drive.view.read().left_to_repair), (4, 4));
        assert_eq!(read_all(&mut drive, "a").unwrap(), bytes);
    }
}

/// P12: a node that took nothing for `put_deadline_ms` does not hold up every part of a long write for as long; once it takes
/// something, it is waited for again.
#[test]
fn p12_a_long_write_waits_once_for_a_node_that_takes_nothing() {
    let mut drive = cluster();
    let bytes = data(4 * CHUNK, 1);
    drive.cluster.node(3).refuse_puts = refuses();
    let open_ms = 2 * drive.options.put_deadline_ms;
    let mut core = open_for(&mut drive, open_ms, &bytes, 1);
    let feed = |drive: &mut Drive, core: &mut WriteCore, chunk: usize| {
        give(drive, core, &bytes, chunk..chunk + 1);
        let until_ns = drive.now + ms(5_000);
        drive.idle(core, until_ns);
        core.held_bytes()
    };
    assert_eq!(feed(&mut drive, &mut core, 1), 0, "it is not waited for again");
    drive.cluster.node(3).refuse_puts = None;
    assert_eq!(feed(&mut drive, &mut core, 2), 0, "it takes its fragment");
    drive.cluster.node(3).refuse_puts = refuses();
    assert!(feed(&mut drive, &mut core, 3) > 0, "it may be back soon, as far as is known");
    drive.cluster.node(3).refuse_puts = None;
    drive.write(&mut core, vec![end(4, false)]).0.unwrap();
    assert_eq!(drive.view.read().left_to_repair, 2, "of the first two chunks");
    assert_eq!(read_all(&mut drive, "a").unwrap(), bytes);
}

/// P12: the same for one that answers nothing: each of its fragments is given up after a short time.
#[test]
fn p12_a_long_write_does_not_wait_for_each_fragment_of_a_silent_node() {
    let mut drive = cluster();
    let bytes = data(11 * CHUNK, 1);
    drive.cluster.node(3).delay_ns = i64::MAX;
    let open_ms = 2 * drive.options.put_deadline_ms;
    let mut core = open_for(&mut drive, open_ms, &bytes, 1);
    assert_eq!(core.held_bytes(), 0);
    give(&drive, &mut core, &bytes, 1..11);
    // One put at a time: ten fragments of `put_timeout_ms`, twice, would take 400 seconds.
    let until_ns = drive.now + ms(40_000);
    drive.idle(&mut core, until_ns);
    assert_eq!(core.held_bytes(), 0);
}

/// P12: partial commits start no clock. Redundancy that nodes take before the version is visible, or soon after, is not left to repair.
#[test]
fn p12_redundancy_of_a_long_write_is_offered_until_its_version_is_visible() {
    for (away_ms, after_ms) in [(60_000, 0), (110_000, 0), (60_000, 8_000)] {
        let mut drive = cluster();
        Arc::make_mut(&mut drive.options).commit_extents = 2;
        let bytes = data(6 * CHUNK, 1);
        drive.cluster.node(3).refuse_puts = refuses();
        let mut core = open_for(&mut drive, away_ms, &bytes, 6);
        assert!(drive.trace.iter().any(|line| line.contains("partial")), "{:#?}", drive.trace);
        if after_ms > 0 {
            core.handle(drive.now, end(6, true));
            drive.write_until_done(&mut core).unwrap();
            let until_ns = drive.now + ms(after_ms);
            drive.idle(&mut core, until_ns);
        }
        drive.cluster.node(3).refuse_puts = None;
        drive.write(&mut core, vec![end(6, false)]).0.unwrap();
        assert_eq!(drive.view.read().left_to_repair, 0, "away for {away_ms} ms, {after_ms} ms of them visible");
        assert!(drive.cluster.chunks().iter().all(|c| c.missing.is_empty()), "{:?}", drive.cluster.chunks());
    }
}

/// Redundancy that a write gives up after its version is visible is counted; that of a write that fails is not.
#[test]
fn redundancy_is_counted_once_its_version_is_visible() {
    for is_visible in [false, true] {
        let mut drive = cluster();
        let bytes = data(3 * CHUNK, 1);
        drive.cluster.node(3).refuse_puts = refuses();
        let mut core = open_for(&mut drive, 1_000, &bytes, 3);
        if is_visible {
            core.handle(drive.now, end(3, false));
            drive.write_until_done(&mut core).unwrap();
        }
        core.handle(drive.now, WriteEvent::Cancel);
        assert!(core.is_finished());
        assert_eq!(drive.view.read().left_to_repair, if is_visible { 3 } else { 0 });
    }
}

/// P11: a chunk that is read back because a commit asks for a fragment again still lacks what was left to repair.
#[test]
fn what_was_left_to_repair_is_not_acknowledged_after_a_stale_commit() {
    let mut drive = cluster();
    let bytes = data(CHUNK, 1);
    drive.cluster.node(3).refuse_puts = refuses();
    let open_ms = 2 * drive.options.put_deadline_ms;
    let mut core = open_for(&mut drive, open_ms, &bytes, 1);
    let chunk = drive.cluster.chunks().pop().unwrap();
    let members = drive.cluster.members_of(chunk.pg_id);
    let stored = members.iter().find(|member| drive.cluster.node_of(member.disk_id).node_id != 3).unwrap().position;
    drive.cluster.before(Kind::Commit, move |cluster| cluster.lose_fragment(chunk.chunk_id, stored));
    let done = drive.write(&mut core, vec![end(1, false)]).0.unwrap();
    let commits = drive.trace.iter().filter(|line| line.contains("Commit")).count();
    assert_eq!((done.missing_fragments, commits), (1, 2), "{:#?}", drive.trace);
    assert_eq!(read_all(&mut drive, "a").unwrap(), bytes);
}

/// P12: a file that is closed after its last sync keeps the redundancy that is on its way; what comes too late is left to
/// repair and counted.
#[test]
fn p12_a_file_that_is_closed_after_a_sync_keeps_redundancy_on_its_way() {
    for takes in [true, false] {
        let mut drive = cluster();
        let bytes = data(3 * CHUNK, 1);
        match takes {
            true => drive.cluster.node(3).delay_ns = ms(50),
            false => drive.cluster.node(3).refuse_puts = refuses(),
        }
        let mut core = open_for(&mut drive, 0, &bytes, 3);
        core.handle(drive.now, end(3, true));
        drive.write_until_done(&mut core).unwrap();
        core.handle(drive.now, WriteEvent::Cancel);
        assert!(!core.is_finished());
        // A piece that comes after the file was dropped counts no more.
        give(&drive, &mut core, &bytes, 2..3);
        let until_ns = drive.now + 2 * ms(drive.options.late_deadline_ms);
        drive.idle(&mut core, until_ns);
        assert!(core.is_finished(), "{core:?}");
        let lacking = drive.cluster.chunks().iter().filter(|c| !c.missing.is_empty()).count() as u64;
        assert_eq!((lacking, drive.view.read().left_to_repair), if takes { (0, 0) } else { (3, 3) });
        assert_eq!(read_all(&mut drive, "a").unwrap(), bytes);
    }
}

/// A file that fails after a sync counts what it leaves to repair of what is visible.
#[test]
fn a_file_that_fails_after_a_sync_counts_what_it_leaves_to_repair() {
    let mut drive = cluster();
    let bytes = data(4 * CHUNK, 1);
    drive.cluster.node(3).refuse_puts = refuses();
    let mut core = open_for(&mut drive, 1_000, &bytes, 3);
    core.handle(drive.now, end(3, true));
    drive.write_until_done(&mut core).unwrap();
    give(&drive, &mut core, &bytes, 3..4);
    core.handle(drive.now, WriteEvent::Cancel);
    assert!(core.is_finished());
    assert_eq!(drive.view.read().left_to_repair, 3, "the fourth chunk is in no version");
}

/// Redundancy that nodes take while a file stays open, or until it is closed, is reported: repair would store it once more.
#[test]
fn redundancy_that_arrives_after_a_sync_is_reported() {
    for closes_after_ms in (1..50).chain([60_000]) {
        let mut drive = cluster();
        let bytes = data(3 * CHUNK, 1);
        drive.cluster.node(3).delay_ns = ms(10);
        let mut core = open_for(&mut drive, 0, &bytes, 3);
        core.handle(drive.now, end(3, true));
        assert!(drive.write_until_done(&mut core).unwrap().missing_fragments > 0);
        let until_ns = drive.now + ms(closes_after_ms);
        drive.idle(&mut core, until_ns);
        let lacking = |drive: &mut Drive| drive.cluster.chunks().iter().filter(|c| !c.missing.is_empty()).count();
        if closes_after_ms > 1_000 {
            assert_eq!(lacking(&mut drive), 0, "while the file is open");
        }
        core.handle(drive.now, WriteEvent::Cancel);
        let until_ns = drive.now + ms(1_000);
        drive.idle(&mut core, until_ns);
        assert!(core.is_finished(), "{core:?}");
        assert_eq!(
            (lacking(&mut drive), drive.view.read().left_to_repair),
            (0, 0),
            "closed after {closes_after_ms} ms"
        );
        assert_eq!(read_all(&mut drive, "a").unwrap(), bytes);
    }
}
