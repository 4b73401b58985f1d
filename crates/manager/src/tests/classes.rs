//! Redundancy classes with different kinds of fragments: which fragments a commit may omit, and what totals count.

use crate::rig::*;
use tessera_wire::meta::*;
use tessera_wire::{Code, Error, Extent};

/// A file of one chunk in `class` under these hints, committed without the fragments `missing`.
fn commit(
    rig: &mut Rig,
    name: &str,
    class: &str,
    hints: &[(&str, &str)],
    missing: &[u32],
) -> Result<CommitReply, Error> {
    let session_id = rig.open_write(1, name, hints)?.session_id;
    let chunks = vec![ChunkName { len_bytes: 4_000, ..chunk(name.as_bytes()[0]) }];
    let redundancy = class.to_string();
    let op_id = rig.op();
    let allocated = rig.ask(&AllocateChunks { op_id, session_id, redundancy, chunks, ..Default::default() })?;
    let mut acks = acks(&allocated.answers);
    acks[0].missing = missing.to_vec();
    let hash = chunk(name.as_bytes()[0]).hash;
    let extents = vec![Extent::of_chunk(0, 4_000, allocated.answers[0].chunk_id, &hash, 0)];
    let op_id = rig.op();
    let mode = CommitMode::Replace as i32;
    rig.ask(&Commit { op_id, session_id, mode, size_bytes: 4_000, extents, acks, ..Default::default() })
}

/// P1: an optimistic commit needs a readable chunk (the copy or any k); a degraded one must survive one more loss.
#[test]
fn a_commit_may_lack_what_can_be_done_without() {
    for pattern in 1u32..64 {
        let mut rig = Rig::new(6);
        let missing: Vec<u32> = (0..6).filter(|i| pattern >> i & 1 == 1).collect();
        for (name, hints, enough) in [
            ("a", ("durability", "optimistic"), missing[0] != 0 || missing.len() <= 2),
            ("b", ("degraded-writes", "yes"), missing.len() <= 1),
            ("c", ("dedup", "off"), false),
        ] {
            let result = commit(&mut rig, name, "copy+ec:4+2", &[hints], &missing);
            match enough {
                true => assert_eq!(result.unwrap().missing_fragments, missing.len() as u64, "{hints:?} {missing:?}"),
                false => assert_eq!(result.unwrap_err().code(), Code::TooFewFragments, "{hints:?} {missing:?}"),
            }
        }
        let status = rig.ask(&GetStatus {}).unwrap();
        assert_eq!((status.chunks_lost, status.chunks_full), (0, 0), "{missing:?}");
        rig.audit();
    }
}

/// A copy, and k+m-1 slices and parities of 1/k of the chunk each.
#[test]
fn a_copy_is_counted_whole_and_pieces_as_what_they_are() {
    let mut rig = Rig::new(6);
    for (name, class, stored) in [
        ("a", "copy+ec:4+2", 4_000 + 2 * 4_032),
        ("b", "ec:4+2", 4_000 + 2 * 4_032),
        ("c", "copy+ec:2+1", 4_000 + 4_032),
        ("d", "raid6:4+2", 4_000 + 2 * 7_168),
    ] {
        let before = rig.ask(&GetStatus {}).unwrap().stored_bytes;
        commit(&mut rig, name, class, &[], &[]).unwrap();
        assert_eq!(rig.ask(&GetStatus {}).unwrap().stored_bytes - before, stored, "{class}");
        rig.audit();
    }
}

/// The row of an XOR class has all parameters of its code, and the reply carries them.
#[test]
fn a_raid6_class_says_what_its_code_is() {
    let mut rig = Rig::new(10);
    for (k, w) in [(2, 7), (3, 7), (4, 7), (7, 7), (8, 11)] {
        commit(&mut rig, &format!("{k}"), &format!("raid6:{k}+2"), &[], &[]).unwrap();
        let map = rig.ask(&GetMap { all_nodes: true, ..GetMap::default() }).unwrap();
        let class = map.classes.iter().find(|c| c.k == k && c.m == 2).unwrap();
        let parameters =
            (class.code.as_str(), class.matrix.as_str(), class.word_bits, class.packet_bytes, class.alignment_bytes);
        assert_eq!(parameters, ("xor", "liberation", w, 1024, w * 1024), "{class:?}");
    }
}

#[test]
fn what_is_no_class_is_refused_and_says_what_is() {
    let mut rig = Rig::new(6);
    for (class, word) in
        [("copy+ec:1+2", "replica:3"), ("copy+ec:4", "copy+ec:K+M"), ("copy+ec:200+60", "255"), ("raid6:4+3", "ec:4+3")]
    {
        let error = commit(&mut rig, "a", class, &[], &[]).unwrap_err();
        assert!(error.code() == Code::Invalid && error.message.contains(word), "{class}: {error}");
    }
    let error = commit(&mut rig, "a", "copy+ec:4+3", &[], &[]).unwrap_err();
    assert!(error.code() == Code::TooFewHosts && error.message.contains("7 hosts"), "{error}");
}
