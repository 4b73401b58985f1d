//! Preallocated chunks: one-shot commits, refusals, and the collection of unused chunks (P4, P14).

use crate::rig::{Rig, chunk};
use tessera_wire::meta::*;
use tessera_wire::{Code, Extent, Hint};

const SPEC: &str = "ec:2+1";

pub(super) fn redundancy(value: &str) -> Vec<Hint> {
    vec![Hint { name: "redundancy".into(), value: value.into() }]
}

/// Opens a file and asks for preallocated chunks.
pub(super) fn draw(rig: &mut Rig, count: u32, hints: Vec<Hint>) -> OpenWriteReply {
    let op_id = rig.op();
    let open = OpenWrite { op_id, parent: 1, name: b"asked".to_vec(), hints, ..Default::default() };
    rig.ask(&OpenWrite { redundancy: SPEC.into(), preallocate: count, ..open }).unwrap()
}

/// The commit of a file whose chunks (one per byte of `content`) are stored under the first of these preallocated.
pub(super) fn filling(rig: &mut Rig, name: &str, content: &[u8], preallocated: &PreallocatedChunks) -> Commit {
    let answers = &preallocated.chunks[..content.len()];
    let extent = |(i, (answer, &c)): (u64, (&ChunkAnswer, &u8))| {
        Extent::of_chunk(i * 100, 100, answer.chunk_id, &chunk(c).hash, 0)
    };
    let open = OpenWrite {
        parent: 1,
        name: name.into(),
        hints: redundancy(SPEC),
        chunks: content.iter().map(|&c| chunk(c)).collect(),
        redundancy: SPEC.into(),
        ..Default::default()
    };
    Commit {
        op_id: rig.op(),
        session_id: preallocated.session_id,
        mode: CommitMode::Replace as i32,
        size_bytes: content.len() as u64 * 100,
        extents: (0u64..).zip(answers.iter().zip(content)).map(extent).collect(),
        acks: crate::rig::acks(answers),
        preallocated_ids: answers.iter().map(|a| a.chunk_id).collect(),
        open: Some(Box::new(open)),
        ..Default::default()
    }
}

fn chunks_of(rig: &mut Rig, name: &str) -> Vec<u64> {
    let opened = rig.read(1, name).unwrap();
    opened.extents.unwrap().extents.iter().map(|e| e.chunk_id).collect()
}

fn rows(rig: &Rig, condition: &str) -> i64 {
    let sql = format!("SELECT count(*) FROM chunks WHERE {condition}");
    rig.core.db().conn().query_row(&sql, [], |row| row.get(0)).unwrap()
}

#[test]
fn a_file_is_opened_and_committed_in_one() {
    let mut rig = Rig::new(4);
    let preallocated = draw(&mut rig, 5, redundancy(SPEC)).preallocated.unwrap();
    assert_eq!((preallocated.chunks.len(), rows(&rig, "hash = x''")), (5, 5));
    let commit = filling(&mut rig, "f", &[1, 2], &preallocated);
    let reply = rig.ask(&commit).unwrap();
    assert_eq!((reply.number, reply.stale.len(), reply.known.len()), (1, 0, 0));
    assert_eq!(chunks_of(&mut rig, "f"), commit.preallocated_ids);
    assert_eq!(rig.ask(&commit).unwrap(), reply, "P8: the same again is answered, not done");
    rig.audit();
    // Both an allocation and a one-shot commit find the stored chunks.
    let session_id = rig.open_write(1, "g", &[("redundancy", SPEC)]).unwrap().session_id;
    let answers = rig.allocate(session_id, &[chunk(1)]).unwrap().answers;
    assert_eq!((answers[0].state(), answers[0].chunk_id), (ChunkState::Durable, commit.preallocated_ids[0]));
    let rest = PreallocatedChunks { chunks: preallocated.chunks[2..].to_vec(), ..preallocated };
    let mut commit = filling(&mut rig, "h", &[3, 2], &rest);
    commit.open.as_mut().unwrap().preallocate = 3;
    let second = rig.ask(&commit).unwrap();
    assert_eq!(second.known, [commit.preallocated_ids[1]]);
    assert_eq!(chunks_of(&mut rig, "h"), [commit.preallocated_ids[0], chunks_of(&mut rig, "f")[1]]);
    assert_eq!(second.preallocated.unwrap().chunks.len(), 3);
    rig.audit();
}

/// A client names content that it has written before, and stores nothing.
#[test]
fn content_that_is_believed_to_be_here_is_named_without_an_id_or_refused() {
    let mut rig = Rig::new(4);
    let preallocated = draw(&mut rig, 5, redundancy(SPEC)).preallocated.unwrap();
    let first = filling(&mut rig, "f", &[1, 2], &preallocated);
    rig.ask(&first).unwrap();
    let named = |rig: &mut Rig, name: &str, content: &[u8]| {
        let own = |chunk_id| ChunkAnswer { chunk_id, ..ChunkAnswer::default() };
        let chunks = (KNOWN_ID..).take(content.len()).map(own).collect();
        let commit = filling(rig, name, content, &PreallocatedChunks { chunks, ..PreallocatedChunks::default() });
        Commit { acks: Vec::new(), ..commit }
    };
    let commit = named(&mut rig, "g", &[2, 1]);
    assert_eq!(rig.ask(&commit).unwrap().known, [KNOWN_ID, KNOWN_ID + 1]);
    assert_eq!(chunks_of(&mut rig, "g"), [first.preallocated_ids[1], first.preallocated_ids[0]]);
    let commit = named(&mut rig, "h", &[1, 3]);
    assert_eq!(rig.ask(&commit).unwrap_err().code(), Code::SessionExpired);
    let mut twice = named(&mut rig, "i", &[1, 2]);
    twice.preallocated_ids[1] = KNOWN_ID;
    assert_eq!(rig.ask(&twice).unwrap_err().code(), Code::Invalid);
    rig.audit();
}

#[test]
fn a_file_without_chunks_needs_no_blank() {
    let mut rig = Rig::new(4);
    let nothing = PreallocatedChunks::default();
    let commit = filling(&mut rig, "empty", &[], &nothing);
    assert_eq!(rig.ask(&commit).unwrap().number, 1);
    let by_inode = rig.ask(&commit).unwrap().ino;
    let mut again = Commit { op_id: rig.op(), ..commit };
    let open = again.open.as_mut().unwrap();
    (open.parent, open.name, open.ino) = (0, Vec::new(), by_inode);
    assert_eq!(rig.ask(&again).unwrap().number, 2);
    rig.audit();
}

#[test]
fn preallocated_ids_are_collected_with_their_session() {
    let mut rig = Rig::new(4);
    let opened = draw(&mut rig, 5, redundancy(SPEC));
    let preallocated = opened.preallocated.unwrap();
    rig.ask(&CloseSession { session_id: opened.session_id, ..Default::default() }).unwrap();
    for _ in 0..20 {
        rig.tick(1_000);
    }
    assert_eq!(rows(&rig, "hash = x''"), 5, "their session lives");
    rig.ask(&CloseSession { session_id: preallocated.session_id, ..Default::default() }).unwrap();
    for _ in 0..20 {
        rig.tick(1_000);
    }
    assert_eq!(rows(&rig, "1 = 1"), 0);
    let late = filling(&mut rig, "late", &[1], &preallocated);
    assert_eq!(rig.ask(&late).unwrap_err().code(), Code::SessionExpired);
    rig.audit();
}

#[test]
fn what_cannot_be_filled_is_refused() {
    let mut rig = Rig::new(4);
    let preallocated = draw(&mut rig, 4, redundancy(SPEC)).preallocated.unwrap();
    let used = filling(&mut rig, "used", &[1], &preallocated);
    rig.ask(&used).unwrap();
    let rest = PreallocatedChunks { chunks: preallocated.chunks[1..].to_vec(), ..preallocated };
    let good = filling(&mut rig, "f", &[2, 3], &rest);
    let before = rig.dump(&["meta", "ops"]);
    let mut refuse = |code: Code, change: &dyn Fn(&mut Commit, &mut OpenWrite)| {
        let mut open = good.open.clone().unwrap();
        let mut commit = Commit { op_id: rig.op(), open: None, ..good.clone() };
        change(&mut commit, &mut open);
        commit.open = Some(open);
        let error = rig.ask(&commit).unwrap_err();
        assert_eq!(error.code(), code, "{}", error.message);
    };
    refuse(Code::SessionExpired, &|c, _| c.session_id = 99);
    refuse(Code::SessionExpired, &|c, _| {
        c.preallocated_ids[0] = used.preallocated_ids[0];
        c.extents[0].chunk_id = used.preallocated_ids[0];
    });
    refuse(Code::SessionExpired, &|c, _| c.preallocated_ids[0] = 12_345);
    refuse(Code::SessionExpired, &|_, o| o.redundancy = "replica:2".into());
    refuse(Code::SessionExpired, &|_, o| o.hints = redundancy("replica:2"));
    refuse(Code::SessionExpired, &|_, o| o.hints.push(Hint { name: "placement".into(), value: "local".into() }));
    refuse(Code::SessionExpired, &|_, o| o.chunking = "fixed:4K".into());
    refuse(Code::Invalid, &|c, _| c.preallocated_ids[0] = c.preallocated_ids[1]);
    refuse(Code::Invalid, &|c, _| c.preallocated_ids.truncate(1));
    refuse(Code::Invalid, &|c, _| c.partial = true);
    refuse(Code::Invalid, &|c, _| c.keep_session = true);
    refuse(Code::Invalid, &|c, _| c.mode = CommitMode::Append as i32);
    refuse(Code::Invalid, &|_, o| o.chunks[0].len_bytes = 0);
    refuse(Code::Invalid, &|_, o| o.chunks[0].len_bytes = 50); // its extent is longer
    refuse(Code::Invalid, &|_, o| o.chunks[0].hash = bytes::Bytes::new());
    refuse(Code::Invalid, &|c, _| c.acks.clear());
    refuse(Code::Invalid, &|_, o| o.name = b"a/b".to_vec());
    refuse(Code::NotFound, &|_, o| o.parent = 77);
    assert_eq!(rig.dump(&["meta", "ops"]), before, "a refusal leaves nothing");
    rig.ask(&good).unwrap();
    rig.audit();
}

#[test]
fn placed_files_get_no_preallocated_ids() {
    let mut rig = Rig::new(4);
    let hints = [redundancy(SPEC), vec![Hint { name: "placement".into(), value: "local".into() }]].concat();
    assert_eq!(draw(&mut rig, 4, hints).preallocated, None);
    assert_eq!(draw(&mut rig, 9_999, redundancy(SPEC)).preallocated.unwrap().chunks.len(), 256, "as many as it likes");
}
