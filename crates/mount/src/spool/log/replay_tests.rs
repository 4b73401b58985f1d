//! Logs that are truncated, torn or damaged: replay finds the acknowledged state or reports damage, and never anything
//! else.

use super::Log;
use crate::spool::budget::Budget;
use crate::spool::logfile::View;
use crate::spool::overlay::Overlay;
use crate::spool::record::{HEADER_BYTES, Header, Kind, MAX_PAYLOAD_BYTES};
use crate::spool::replay::{CLOSED_BYTES, LogOrigin, PendingPush, ReplayError, ReplayedLog, replay};
use proptest::prelude::*;
use std::sync::Arc;
use tessera_client::Times;
use tessera_disk::SimDisk;

fn origin(base_bytes: u64) -> LogOrigin {
    LogOrigin {
        cluster_id: vec![0, 255, 7],
        ino: 42,
        parent: 1,
        name: b"a \xff".to_vec(),
        base_version: 9,
        base_bytes,
        base_content: 5,
        map_version: 0,
    }
}

/// Times to close with.
fn at(time_ns: i64) -> Times {
    Times { mtime_ns: time_ns, ctime_ns: time_ns + 1_000, ..Times::default() }
}

#[derive(Debug, Clone)]
enum Op {
    Write(u64, usize),
    Length(u64),
    Close(i64),
    /// The store has the state of the last close, or of the one before.
    Stored(bool),
    /// The store may have it.
    Pushed(bool),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        4 => (0u64..3000, 1usize..2000).prop_map(|(offset, len)| Op::Write(offset, len)),
        1 => Just(Op::Write(100, MAX_PAYLOAD_BYTES + 77)),
        1 => (0u64..4000).prop_map(Op::Length),
        3 => (1i64..1000).prop_map(Op::Close),
        2 => any::<bool>().prop_map(Op::Stored),
        2 => any::<bool>().prop_map(Op::Pushed),
    ];
    proptest::collection::vec(op, 1..14)
}

/// What replay finds at some length of the log: file, times, version below and its content, pushes. None: nothing is
/// owed.
type Owed = Option<(Overlay, Times, u64, u64, Vec<PendingPush>)>;

/// The log's bytes after `ops`, what is owed from each length on, and the position of the last close.
fn written(ops: &[Op]) -> (Vec<u8>, Vec<(u64, Owed)>, usize) {
    let mut log = Log::create(Arc::new(SimDisk::new(1)), 77, Arc::new(Budget::new(1 << 30)), origin(500)).unwrap();
    let mut owed: Vec<(u64, Owed)> = vec![(0, None)];
    let (mut closings, mut version, mut content, mut last_closed): (Vec<View>, _, _, _) = (Vec::new(), 9, 5, 0);
    let mut pushes: Vec<PendingPush> = Vec::new();
    for (n, op) in ops.iter().enumerate() {
        match op {
            Op::Write(offset, len) => log.write(*offset, &vec![n as u8 + 1; *len]).unwrap(),
            Op::Length(len) => log.set_len(*len).unwrap(),
            Op::Close(time_ns) => {
                log.close(at(*time_ns), false).unwrap();
                closings.push(log.view());
                last_closed = log.end as usize;
            }
            Op::Stored(older) => {
                let Some(view) = closings.iter().rev().nth(usize::from(*older)).cloned() else { continue };
                if log.is(&view) {
                    continue;
                }
                (version, content) = (version + 1, content + 10);
                pushes.retain(|push| push.closed_end > view.closed_end);
                assert!(!log.stored(version, content, &view), "there is more");
            }
            Op::Pushed(older) => {
                // Another close may have happened since the push began.
                let Some(view) = closings.iter().rev().nth(usize::from(*older)) else { continue };
                let closed_end = view.closed_end;
                pushes.push(PendingPush { content: log.is_pushed(view, n as u64), closed_end });
            }
        }
        if !matches!(op, Op::Write(..) | Op::Length(_)) {
            let last = closings.last().filter(|_| log.owes());
            let found = last.map(|last| (last.overlay.clone(), last.times, version, content, pushes.clone()));
            owed.push((log.end, found));
        }
    }
    (bytes_of(&log), owed, last_closed)
}

fn bytes_of(log: &Log) -> Vec<u8> {
    let mut bytes = vec![0; log.end as usize];
    log.file.file.read_at(0, &mut bytes).unwrap();
    bytes
}

fn expected(owed: &[(u64, Owed)], len: usize) -> &Owed {
    &owed.iter().rev().find(|(from, _)| *from <= len as u64).unwrap().1
}

fn check(found: Result<ReplayedLog, ReplayError>, owed: &Owed, what: &str) -> Result<(), TestCaseError> {
    match (found, owed) {
        (Ok(found), Some((overlay, times, version, content, pushes))) => {
            prop_assert_eq!(&found.overlay, overlay, "{}", what);
            prop_assert_eq!((found.times, found.origin.base_version), (*times, *version), "{}", what);
            prop_assert_eq!((found.origin.base_content, &found.pushes), (*content, pushes), "{}", what);
        }
        (Err(ReplayError::NotClosed { .. } | ReplayError::NotALog), None) => {}
        (found, owed) => return Err(TestCaseError::fail(format!("{what}: {found:?}, not {owed:?}"))),
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    /// The process dies, or a power failure takes the end of the log, at every byte (P9).
    #[test]
    fn a_log_that_is_cut_off_anywhere_is_what_was_closed_before(ops in ops()) {
        let (bytes, owed, _) = written(&ops);
        let near = |len: usize| owed.iter().any(|(at, _)| len.abs_diff(*at as usize) < 40);
        for len in (0..=bytes.len()).filter(|len| near(*len) || len % 2003 == 0) {
            check(replay(&bytes[..len]), expected(&owed, len), &format!("cut at {len}"))?;
        }
    }

    /// Anything may follow the last record: zeros, or bytes of an older file.
    #[test]
    fn what_lies_behind_the_end_is_not_looked_at(ops in ops(), rest in proptest::collection::vec(any::<u8>(), 0..300)) {
        let (mut bytes, owed, _) = written(&ops);
        let wanted = expected(&owed, bytes.len()).clone();
        bytes.extend_from_slice(&rest);
        bytes.extend_from_slice(&bytes.clone());
        check(replay(&bytes[..]), &wanted, "more behind it")?;
    }

    /// A bit flips: the state of an earlier close is found only if no close follows the damage (P2, P14).
    #[test]
    fn a_bent_log_is_never_taken_for_a_sound_one(ops in ops(), bits in proptest::collection::vec(any::<prop::sample::Index>(), 60)) {
        let (bytes, owed, last_closed) = written(&ops);
        for bit in bits {
            let bit = bit.index(bytes.len() * 8);
            let mut bent = bytes.clone();
            bent[bit / 8] ^= 1 << (bit % 8);
            let found = replay(&bent[..]);
            let at = bit / 8;
            if at >= last_closed {
                // After the last close, only `Stored` and `Pushed` records matter.
                let before = expected(&owed, at);
                let after = expected(&owed, bytes.len());
                let good = |owed| check(replay(&bent[..]), owed, "");
                prop_assert!(good(before).is_ok() || good(after).is_ok(), "bit {} gives {:?}", bit, found);
            } else {
                let damaged = matches!(found, Err(ReplayError::Damaged { .. } | ReplayError::NotALog));
                // The flip hit the last close's own record: the state before it counts.
                let torn = check(found, expected(&owed, at), "").is_ok() && at + CLOSED_BYTES >= last_closed;
                prop_assert!(damaged || torn, "bit {} of {}", bit, last_closed);
            }
        }
    }
}

/// File content that looks like a `Closed` record is not one.
#[test]
fn a_files_own_bytes_close_nothing() {
    let mut log = Log::create(Arc::new(SimDisk::new(1)), 5, Arc::new(Budget::new(1 << 30)), origin(0)).unwrap();
    log.write(0, b"first").unwrap();
    log.close(at(1), false).unwrap();
    let closed = log.end;
    let fake = Header::new(Kind::Closed, 1, &9u64.to_le_bytes());
    // Valid except for the log's number, which a program cannot know.
    let position = closed + 2 * HEADER_BYTES as u64;
    log.write(100, &[&[0; HEADER_BYTES][..], &fake.encode(6, position), &9u64.to_le_bytes()].concat()).unwrap();
    let mut bytes = bytes_of(&log);
    bytes[closed as usize + 9] ^= 1;
    assert_eq!(replay(&bytes[..]).unwrap().overlay.size_bytes(), 5);
}
