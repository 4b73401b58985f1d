//! What an interrupted write had stored is known to the next one.

use super::*;
use crate::test_drive::{Drive, data, read_all, write_all};
use tessera_testkit::Cluster;
use tessera_wire::Kind;
use tessera_wire::meta::AllocateChunks;

const CHUNK: usize = 10_000;

/// A cluster whose clients hold few chunks, so that most chunks are stored when the input of a write ends.
fn drive(hints: &[(&str, &str)]) -> Drive {
    let mut cluster = Cluster::new(8, 1).with("redundancy", "ec:4+2");
    hints.iter().for_each(|(name, value)| cluster.set_hint(name, value));
    let mut drive = Drive::new(cluster);
    drive.options = Arc::new(Options { write_window_bytes: 2 * CHUNK as u64, ..Options::default() });
    drive
}

/// Cancels a write after the input, but before its end.
fn interrupt(drive: &mut Drive, data: &[u8]) {
    let mut core = drive.writer("a", CommitMode::Replace, None);
    let mut events = write_all(data, CHUNK);
    events.pop();
    events.push(WriteEvent::Cancel);
    drive.write(&mut core, events).0.unwrap_err();
    assert_eq!(drive.cluster.count("CloseSession"), 1);
}

fn put(drive: &mut Drive, data: &[u8]) -> WriteDone {
    let mut core = drive.writer("a", CommitMode::Replace, None);
    let done = drive.write(&mut core, write_all(data, CHUNK)).0.unwrap();
    assert_eq!(read_all(drive, "a").unwrap(), data);
    done
}

#[test]
fn a_write_that_is_repeated_sends_only_what_was_not_stored() {
    let data = data(20 * CHUNK, 1);
    let mut drive = drive(&[]);
    interrupt(&mut drive, &data);
    let done = put(&mut drive, &data);
    assert_eq!((done.known_chunks, done.new_bytes), (18, 2 * CHUNK as u64), "two chunks were on their way");
}

/// A writer whose process was killed, or that lost its connection, has reported what it stored with its questions.
#[test]
fn a_write_that_is_repeated_after_a_kill_sends_little() {
    let data = data(20 * CHUNK, 2);
    let mut drive = drive(&[]);
    // Its last request finds no session: as if it had never come.
    drive.cluster.before(Kind::CloseSession, |cluster| {
        cluster.db().conn().execute("DELETE FROM sessions", []).unwrap();
    });
    interrupt(&mut drive, &data);
    let done = put(&mut drive, &data);
    assert!((14..18).contains(&done.known_chunks), "{done:?}");
}

/// A commit that is refused leaves everything stored.
#[test]
fn a_write_that_is_refused_reports_everything() {
    let data = data(20 * CHUNK, 3);
    let mut drive = drive(&[]);
    let mut core = drive.writer("a", CommitMode::Replace, None);
    core.params.if_version = Some(77);
    drive.write(&mut core, write_all(&data, CHUNK)).0.unwrap_err();
    assert_eq!(put(&mut drive, &data).new_bytes, 0);
}

/// When all chunks were asked about, a question about none reports what was stored since; a write needs no answer to it.
#[test]
fn much_that_is_stored_is_reported_by_itself() {
    let data = data(12 << 20, 4);
    let mut drive = drive(&[]);
    drive.options = Arc::new(Options::default());
    let mut core = drive.writer("a", CommitMode::Replace, None);
    drive.write(&mut core, write_all(&data, 1 << 20)).0.unwrap();
    let reports = || drive.trace.iter().filter(|line| *line == "manager AllocateChunks 0").count();
    assert_eq!(reports(), 1, "{:#?}", drive.trace);
}

/// A manager that takes no longer questions takes no longer reports.
#[test]
fn a_report_is_no_longer_than_a_question() {
    let data = data(60 * CHUNK, 6);
    let mut drive = drive(&[]);
    drive.options = Arc::new(Options { ask_chunks: 4, write_window_bytes: 40 * CHUNK as u64, ..Options::default() });
    interrupt(&mut drive, &data);
    let reports = drive.cluster.asked::<AllocateChunks>().into_iter().map(|question| question.stored.len());
    let lengths: Vec<usize> =
        reports.chain(drive.cluster.asked::<CloseSession>().into_iter().map(|close| close.stored.len())).collect();
    assert_eq!(lengths.iter().max(), Some(&4), "{lengths:?}");
}

#[test]
fn chunks_that_no_other_write_may_share_are_not_reported() {
    let data = data(20 * CHUNK, 5);
    let mut drive = drive(&[("dedup", "off")]);
    interrupt(&mut drive, &data);
    assert!(drive.cluster.asked::<AllocateChunks>().iter().all(|question| question.stored.is_empty()));
    assert!(drive.cluster.asked::<CloseSession>().iter().all(|close| close.stored.is_empty()));
}
