//! Files that a client compares by content.

use crate::internal::{ChunksUnreadable, Internal};
use crate::rig::*;
use tessera_wire::content::Pieces;
use tessera_wire::meta::*;
use tessera_wire::{Code, Extent};

/// The digest of pieces of this length, each named after one byte; 0: a hole.
fn digest(len_bytes: u64, names: &[u8]) -> Vec<u8> {
    let mut pieces = Pieces::default();
    for name in names {
        if *name == 0 { pieces.hole(len_bytes) } else { pieces.named(len_bytes, &[*name; 32]) }
    }
    pieces.digest().to_vec()
}

fn ino(rig: &mut Rig, name: &str) -> u64 {
    let entry = rig.ask(&Lookup { parent: 1, name: name.into(), ..Lookup::default() }).unwrap();
    entry.attr.unwrap().ino
}

fn compare(rig: &mut Rig, files: &[(u64, Vec<u8>)]) -> Vec<bool> {
    let files = files.iter().map(|(ino, digest)| FileDigest { ino: *ino, digest: digest.clone() }).collect();
    rig.ask(&CompareFiles { files }).unwrap().equal
}

#[test]
fn files_are_equal_if_their_pieces_are() {
    let mut rig = Rig::new(4);
    rig.put(1, "a", &[1, 2]).unwrap();
    rig.put(1, "b", &[3]).unwrap();
    rig.put(1, "b", &[4]).unwrap();
    rig.put(1, "empty", &[]).unwrap();
    let directory = rig.mkdir(1, "d");
    let [a, b, empty] = ["a", "b", "empty"].map(|name| ino(&mut rig, name));
    let of = |names: &[u8]| digest(100, names);
    let asked = [
        (a, of(&[1, 2])),
        (a, of(&[2, 1])),
        (a, of(&[1])),
        (a, of(&[1, 2, 0])),
        (a, Vec::new()),
        (b, of(&[4])),
        (b, of(&[3])),
        (empty, of(&[])),
        (empty, of(&[1])),
        (directory, of(&[])),
        (999_999, of(&[])),
    ];
    let equal = compare(&mut rig, &asked);
    assert_eq!(equal, [true, false, false, false, false, true, false, true, false, false, false]);
    let files = vec![FileDigest { ino: a, digest: of(&[1, 2]) }; 4097];
    assert_eq!(rig.ask(&CompareFiles { files }).unwrap_err().code(), Code::Invalid);
}

/// Holes count by their length, and a part of a chunk has no name.
#[test]
fn holes_are_compared_and_parts_of_chunks_are_not() {
    let mut rig = Rig::new(4);
    let session = rig.open_write(1, "holes", &[]).unwrap().session_id;
    let mut commit = rig.replacing(session, &[1, 2]).unwrap();
    commit.size_bytes = 500;
    commit.extents[1].offset = 300;
    commit.extents.insert(1, Extent::hole(100, 150));
    commit.extents.insert(2, Extent::hole(250, 50));
    commit.extents.push(Extent::hole(400, 100));
    rig.ask(&commit).unwrap();
    let holes = ino(&mut rig, "holes");
    let asked = [(holes, digest(100, &[1, 0, 0, 2, 0])), (holes, digest(100, &[1, 0, 2, 0, 0]))];
    assert_eq!(compare(&mut rig, &asked), [true, false]);

    let session = rig.open_write(1, "part", &[]).unwrap().session_id;
    let mut commit = rig.replacing(session, &[3]).unwrap();
    commit.size_bytes = 60;
    let whole = commit.extents[0];
    commit.extents = vec![Extent::of_chunk(0, 60, whole.chunk_id, &chunk(3).hash, 0)];
    rig.ask(&commit).unwrap();
    let part = ino(&mut rig, "part");
    assert_eq!(compare(&mut rig, &[(part, digest(60, &[3])), (part, digest(100, &[3]))]), [false, false]);
}

/// P1, P2: what must be stored again to be safe is not equal, so that the client stores it.
#[test]
fn a_file_with_too_few_fragments_or_that_cannot_be_read_is_not_equal() {
    let mut rig = Rig::new(4);
    let session = rig.open_write(1, "a", &[("durability", "optimistic")]).unwrap().session_id;
    let mut commit = rig.replacing(session, &[1]).unwrap();
    let ack = commit.acks[0].clone();
    commit.acks[0].missing = vec![2];
    rig.ask(&commit).unwrap();
    rig.put(1, "b", &[2]).unwrap();
    let asked = [(ino(&mut rig, "a"), digest(100, &[1])), (ino(&mut rig, "b"), digest(100, &[2]))];
    assert_eq!(compare(&mut rig, &asked), [false, true], "parity is missing");
    let receipts = vec![rig.receipts(&ack)[2]];
    let fragment = FragmentRef { chunk_id: ack.chunk_id, fragment: 2, epoch: ack.epochs[0], disk_id: 0 };
    let op_id = rig.op();
    rig.ask(&CompleteFragments { op_id, fragments: vec![fragment], receipts }).unwrap();
    assert_eq!(compare(&mut rig, &asked), [true, true], "it was supplied");
    rig.core.propose(ChunksUnreadable { chunk_ids: vec![ack.chunk_id] }.propose());
    rig.settle();
    assert_eq!(compare(&mut rig, &asked), [false, true], "a reader found it unreadable");
}

/// P14: a request asks for work within bounds. The manager answers for the first files, and the client asks on.
#[test]
fn a_request_is_answered_for_as_many_files_as_it_may_look_at() {
    let mut rig = Rig::new(4);
    let names: Vec<u8> = (1..=30).collect();
    let long: Vec<u8> = (1..=90).collect();
    for (name, content) in [("a", &names), ("b", &names), ("c", &names), ("long", &long)] {
        rig.put(1, name, content).unwrap();
    }
    let asked: Vec<(u64, Vec<u8>)> = ["a", "b", "c", "long"]
        .into_iter()
        .map(|name| (ino(&mut rig, name), digest(100, if name == "long" { &long } else { &names })))
        .collect();
    assert_eq!(compare(&mut rig, &asked), [true, true], "a third one would be too many pieces");
    assert_eq!(compare(&mut rig, &asked[2..]), [true]);
    assert_eq!(compare(&mut rig, &asked[3..]), [false], "it is too long for any request");
}
