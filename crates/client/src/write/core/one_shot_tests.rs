//! Small files under preallocated ids: one request to the manager each, and a session when anything is not as expected.

use super::*;
use crate::config::MS;
use crate::test_drive::{Drive, data, read_all, write_all};
use tessera_testkit::Cluster;
use tessera_wire::Kind;

fn content(seed: u64) -> Vec<u8> {
    data(4096, seed)
}

/// Writes a small file as `put` does: all input is there before the opening.
fn put(drive: &mut Drive, name: &str, bytes: &[u8]) -> WriteDone {
    put_expecting(drive, name, bytes, Policy { redundancy: "replica:3".parse().unwrap(), ..Policy::default() })
}

pub(super) fn put_expecting(drive: &mut Drive, name: &str, bytes: &[u8], policy: Policy) -> WriteDone {
    let mut core = drive.writer(name, CommitMode::Replace, Some(bytes.len() as u64));
    core.params.expect_policy = Some(policy);
    let mut events = write_all(bytes, 10_000);
    events.rotate_left(1);
    drive.trace.clear();
    drive.write(&mut core, events).0.unwrap()
}

/// A client that has preallocated ids: it wrote some small files one after another.
fn warm() -> Drive {
    let mut drive = Drive::new(Cluster::new(8, 1).with("redundancy", "replica:3"));
    for i in 0..3 {
        put(&mut drive, &format!("warm{i}"), &content(i));
    }
    drive
}

fn manager_calls(drive: &Drive) -> Vec<&str> {
    let calls = drive.trace.iter().filter_map(|line| line.strip_prefix("manager "));
    calls.map(|line| line.split_once(' ').map_or(line, |(kind, _)| kind)).collect()
}

#[test]
fn the_manager_is_asked_once_for_each_of_many_small_files() {
    let mut drive = warm();
    for i in 10..200 {
        let done = put(&mut drive, &format!("f{i}"), &content(i));
        assert_eq!((done.number, done.new_bytes, done.known_chunks), (1, 4096, 0));
        let closed = |kind: &&str| *kind == "CloseSession";
        let asked: Vec<&str> = manager_calls(&drive).into_iter().filter(|k| !closed(k)).collect();
        assert_eq!(asked, ["Commit"], "file {i}: {:#?}", drive.trace);
    }
    // Sessions whose ids are all used are closed; the sessions of the last grants remain.
    let sessions = drive.cluster.status().sessions;
    assert!(sessions <= 2, "{sessions} sessions");
    for i in 10..200 {
        assert_eq!(read_all(&mut drive, &format!("f{i}")).unwrap(), content(i));
    }
    drive.cluster.check_all_stored();
}

#[test]
fn an_empty_file_needs_no_blank_and_one_trip() {
    let mut drive = Drive::new(Cluster::new(8, 1).with("redundancy", "replica:3"));
    put(&mut drive, "empty", b"");
    assert_eq!(manager_calls(&drive), ["Commit"]);
    assert_eq!(read_all(&mut drive, "empty").unwrap(), b"");
}

/// A commit that is staged in parts needs a session.
#[test]
fn a_file_of_many_pieces_is_opened() {
    let mut drive = warm();
    drive.options = std::sync::Arc::new(Options { commit_extents: 3, ..(*drive.options).clone() });
    let piece = &content(40).repeat(3)[..10_000];
    put(&mut drive, "pieces", &piece.repeat(5));
    assert_eq!(manager_calls(&drive)[0], "OpenWrite");
    assert_eq!(read_all(&mut drive, "pieces").unwrap(), piece.repeat(5));
    drive.cluster.check_all_stored();
}

#[test]
fn content_that_is_stored_already_is_kept_once() {
    let mut drive = warm();
    // Written by another client, so this one cannot know.
    let known = content(77);
    let view = std::mem::replace(&mut drive.view, crate::view::View::shared());
    put(&mut drive, "other", &known);
    drive.view = view;
    let chunks = |drive: &Drive| drive.cluster.committed().len();
    let before = chunks(&drive);
    let done = put(&mut drive, "same", &known);
    assert_eq!((done.new_bytes, done.known_chunks, chunks(&drive)), (0, 1, before));
    assert_eq!(read_all(&mut drive, "same").unwrap(), known);
    // The client asks about the next content first, until it writes new content.
    put(&mut drive, "new", &content(78));
    assert_eq!(manager_calls(&drive)[0], "OpenWrite");
    put(&mut drive, "newer", &content(79));
    assert_eq!(manager_calls(&drive)[0], "Commit");
}

#[test]
fn content_that_this_client_has_written_is_named_in_one_request() {
    let mut drive = warm();
    let done = put(&mut drive, "again", &content(1));
    assert_eq!((done.number, done.sent_bytes, done.new_bytes, done.known_chunks), (1, 0, 0, 1));
    assert_eq!(manager_calls(&drive), ["Commit"], "{:#?}", drive.trace);
    assert_eq!(read_all(&mut drive, "again").unwrap(), content(1));
    drive.cluster.check_all_stored();
}

/// Its files were removed, and what they had is collected; or fragments of it are missing.
#[test]
fn content_that_this_client_has_written_and_that_is_gone_is_sent_again() {
    let mut drive = warm();
    for i in 0..3 {
        drive.cluster.unlink(&format!("warm{i}"));
    }
    drive.cluster.run(120_000);
    let done = put(&mut drive, "again", &content(1));
    assert_eq!((done.number, done.new_bytes, done.known_chunks), (1, 4096, 0));
    assert_eq!(manager_calls(&drive)[..2], ["Commit", "OpenWrite"], "{:#?}", drive.trace);
    assert_eq!(read_all(&mut drive, "again").unwrap(), content(1));
    drive.cluster.check_all_stored();
}

#[test]
fn expired_preallocated_ids_lead_to_an_ordinary_allocation() {
    let mut drive = warm();
    drive.cluster.run(31_000);
    assert_eq!(drive.cluster.status().sessions, 0);
    let done = put(&mut drive, "a", &content(50));
    assert_eq!((done.number, done.new_bytes), (1, 4096));
    assert_eq!(manager_calls(&drive)[..2], ["Commit", "OpenWrite"], "{:#?}", drive.trace);
    assert_eq!(read_all(&mut drive, "a").unwrap(), content(50));
    drive.cluster.check_all_stored();
}

#[test]
fn preallocated_ids_are_not_kept_for_long() {
    let mut drive = warm();
    drive.now += 16_000 * MS;
    put(&mut drive, "a", &content(50));
    assert_eq!(manager_calls(&drive)[0], "OpenWrite");
    assert!(manager_calls(&drive).contains(&"CloseSession"), "{:#?}", drive.trace);
    assert_eq!(drive.cluster.status().sessions, 0);
}

#[test]
fn a_policy_that_was_not_expected_leads_to_the_ordinary_way() {
    let mut drive = warm();
    drive.cluster.set_hint("redundancy", "ec:2+1");
    put(&mut drive, "a", &content(50));
    assert_eq!(manager_calls(&drive)[..2], ["Commit", "OpenWrite"], "{:#?}", drive.trace);
    assert_eq!(read_all(&mut drive, "a").unwrap(), content(50));
    drive.cluster.check_all_stored();
}

/// Small input is cut before the client knows the file's policy.
#[test]
fn chunks_are_cut_as_the_file_asks_whatever_was_expected() {
    let cuts = |drive: &Drive| drive.cluster.committed().iter().map(|c| c.len_bytes).collect::<Vec<_>>();
    let mut bytes = content(3).repeat(3);
    bytes[4096..8192].fill(0);
    bytes.extend(content(4).iter().take(100));
    for hints in [("chunking", "fixed:4K"), ("placement", "scatter:4K")] {
        let mut drive = Drive::new(Cluster::new(8, 1).with("redundancy", "replica:3").with(hints.0, hints.1));
        let done = put(&mut drive, "a", &bytes);
        // The first and the third are the same. Each region has a chunk of its own, because it has a host of its own. The
        // second is a hole.
        let expected = if hints.0 == "chunking" { vec![4096, 100] } else { vec![4096, 4096, 100] };
        assert_eq!((done.chunks, done.input_bytes), (expected.len() as u64, 12_388));
        assert_eq!(cuts(&drive), expected);
        assert_eq!(read_all(&mut drive, "a").unwrap(), bytes);
        drive.cluster.check_all_stored();

        // The same with preallocated ids: the manager says so at the commit.
        let mut drive = warm();
        drive.cluster.set_hint(hints.0, hints.1);
        let before = cuts(&drive).len();
        put(&mut drive, "a", &bytes);
        assert_eq!(manager_calls(&drive)[..2], ["Commit", "OpenWrite"], "{:#?}", drive.trace);
        assert_eq!(cuts(&drive)[before..], expected);
        assert_eq!(read_all(&mut drive, "a").unwrap(), bytes);
        drive.cluster.check_all_stored();
    }
}

/// P11: fragments acknowledged under an outdated epoch are stored again.
#[test]
fn a_stale_commit_leads_to_the_ordinary_way() {
    let mut drive = warm();
    drive.cluster.before(Kind::Commit, |cluster| {
        let is_put = |id| cluster.disks.values().any(|disk| disk.held.contains_key(&(id, 0)));
        let put = cluster.chunks().into_iter().find(|chunk| !chunk.committed && is_put(chunk.chunk_id)).unwrap();
        cluster.fail_disk(cluster.members_of(put.pg_id)[0].disk_id);
    });
    put(&mut drive, "a", &content(50));
    assert_eq!(manager_calls(&drive).iter().filter(|k| **k == "Commit").count(), 2, "{:#?}", drive.trace);
    assert_eq!(read_all(&mut drive, "a").unwrap(), content(50));
    drive.cluster.check_stored(drive.cluster.committed().last().unwrap());
}

#[test]
fn a_node_that_dies_leads_to_the_ordinary_way() {
    let mut drive = warm();
    for i in 0..20 {
        drive.cluster.node(3).down = i % 2 == 0;
        put(&mut drive, &format!("a{i}"), &content(50 + i));
        assert_eq!(read_all(&mut drive, &format!("a{i}")).unwrap(), content(50 + i));
    }
    drive.cluster.node(3).down = false;
    drive.cluster.check_all_stored();
}

/// P8: a lost answer changes nothing.
#[test]
fn a_lost_answer_has_one_effect() {
    let mut drive = warm();
    drive.cluster.lose_answers.insert(Kind::Commit, 2);
    let done = put(&mut drive, "a", &content(50));
    assert_eq!(done.number, 1);
    assert_eq!(manager_calls(&drive), ["Commit"; 3], "{:#?}", drive.trace);
    drive.cluster.check_all_stored();
}

/// A cluster whose small files move into packs.
fn auto() -> Drive {
    Drive::new(Cluster::new(8, 1).with("redundancy", "auto"))
}

fn put_tiny(drive: &mut Drive, name: &str, bytes: &[u8]) -> WriteDone {
    put_expecting(drive, name, bytes, Policy::default())
}

fn inlined_bytes(drive: &mut Drive) -> u64 {
    drive.cluster.status().inlined_bytes
}

/// The manager keeps tiny files: no node is asked to write, nor to read, them.
#[test]
fn golden_a_tiny_file_is_one_request() {
    let mut drive = auto();
    let done = put_tiny(&mut drive, "a", &content(1));
    assert_eq!(drive.trace, ["manager Commit 1 extents 0 acks", "done: version 1"]);
    assert_eq!((done.number, done.new_bytes, done.sent_bytes, done.known_chunks), (1, 4096, 0, 0));
    let again = put_tiny(&mut drive, "b", &content(1));
    assert_eq!((again.new_bytes, again.known_chunks), (0, 1), "the manager has it");
    assert_eq!((inlined_bytes(&mut drive), drive.cluster.chunks().len()), (4096, 0));
    drive.trace.clear();
    assert_eq!(read_all(&mut drive, "a").unwrap(), content(1));
    assert!(drive.trace.iter().all(|line| line.starts_with("manager ")), "{:#?}", drive.trace);
    put_tiny(&mut drive, "a", b"shorter");
    assert_eq!(read_all(&mut drive, "a").unwrap(), b"shorter");
    put_tiny(&mut drive, "b", &data(4097, 2));
    assert_eq!(manager_calls(&drive)[0], "OpenWrite", "longer than tiny");
    drive.cluster.run(60_000);
    assert_eq!(inlined_bytes(&mut drive), 7);
    drive.cluster.check_all_stored();
}

/// A manager that does not take it costs one request; then the client asks no more for a while.
#[test]
fn a_tiny_file_that_is_not_taken_is_stored_on_nodes() {
    let mut drive = auto();
    drive.cluster.set_hint("lifetime", "purge:1d");
    put_tiny(&mut drive, "a", &content(1));
    assert_eq!(manager_calls(&drive)[..2], ["Commit", "OpenWrite"], "{:#?}", drive.trace);
    drive.cluster.set_hint("lifetime", "replace");
    put_tiny(&mut drive, "b", &content(2));
    assert_eq!(manager_calls(&drive)[0], "OpenWrite");
    drive.now += 11_000 * MS;
    put_tiny(&mut drive, "c", &content(3));
    assert_eq!(manager_calls(&drive), ["Commit"]);
    assert_eq!(inlined_bytes(&mut drive), 4096);
    for (name, seed) in [("a", 1), ("b", 2), ("c", 3)] {
        assert_eq!(read_all(&mut drive, name).unwrap(), content(seed));
    }
    drive.cluster.check_all_stored();
}

/// P2: whichever bit of them rots, nothing is read.
#[test]
fn tiny_files_are_compared_with_their_names() {
    let mut drive = auto();
    put_tiny(&mut drive, "a", b"some bytes of the file");
    for bit in 0..8 {
        let sql = "UPDATE inlined SET bytes = ?1";
        let mut rotten = b"some bytes of the file".to_vec();
        rotten[2 * bit] ^= 1 << bit;
        drive.cluster.db().conn().execute(sql, [rotten]).unwrap();
        let error = read_all(&mut drive, "a").unwrap_err();
        assert!(matches!(error.cause, Cause::WrongContent { .. }), "{error}");
    }
    drive.cluster.db().conn().execute("UPDATE inlined SET bytes = x''", []).unwrap();
    assert!(read_all(&mut drive, "a").is_err());
}
