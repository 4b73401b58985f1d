//! Small files that were written by themselves move into packs.

use crate::rig::{Rig, acks, chunk};
use tessera_wire::meta::*;
use tessera_wire::{Code, Extent};

pub(super) const POLICY: &[(&str, &str)] = &[("redundancy", "auto:2+1")];

/// Stores a file by itself. Each byte of `content` stands for a chunk of 100 bytes.
fn put(rig: &mut Rig, name: &str, hints: &[(&str, &str)], content: &[u8]) -> CommitReply {
    let session_id = rig.open_write(1, name, hints).unwrap().session_id;
    let request = rig.replacing(session_id, content).unwrap();
    rig.ask(&request).unwrap()
}

pub(super) fn unpacked(rig: &mut Rig, unwritten_ms: u64) -> Vec<u64> {
    let reply = rig.ask(&ListUnpacked { after: 0, unwritten_ms }).unwrap();
    assert_eq!(reply.next_after, 0);
    reply.inos
}

fn moved(file: &CommitReply, places: &[u64]) -> MovedFile {
    MovedFile { ino: file.ino, version: file.version, places: places.to_vec() }
}

/// Commits a pack, the chunk `c`, of these chunks, as `like` asks, and moves files into it.
fn move_into(
    rig: &mut Rig,
    like: &CommitReply,
    (c, contents): (u8, &[u8]),
    moved_files: Vec<MovedFile>,
) -> Result<CommitReply, tessera_wire::Error> {
    let op_id = rig.op();
    let session_id = rig.ask(&OpenWrite { op_id, ino: like.ino, pack: true, ..OpenWrite::default() })?.session_id;
    let name = ChunkName { hash: vec![c; 32].into(), len_bytes: 100 * contents.len() as u64, region: 0 };
    let content = |(i, c): (u64, &u8)| PackedContent { hash: chunk(*c).hash.to_vec(), offset: 100 * i, len_bytes: 100 };
    let contents = (0..).zip(contents).map(content).collect();
    commit_pack(rig, session_id, &name, Pack { contents, moved_files, ..Pack::default() })
}

/// Stores the chunk of a pack, and commits it.
pub(super) fn commit_pack(
    rig: &mut Rig,
    session_id: u64,
    name: &ChunkName,
    pack: Pack,
) -> Result<CommitReply, tessera_wire::Error> {
    let answers = rig.allocate(session_id, std::slice::from_ref(name))?.answers;
    let request = Commit {
        op_id: rig.op(),
        session_id,
        mode: CommitMode::Replace as i32,
        size_bytes: name.len_bytes,
        extents: vec![Extent::of_chunk(0, name.len_bytes, answers[0].chunk_id, &name.hash, 0)],
        acks: acks(&answers),
        pack: Some(pack),
        ..Commit::default()
    };
    rig.ask(&request)
}

/// Of each extent of a file, its place in a chunk: the chunk's name, and the offset there.
fn places(rig: &mut Rig, name: &str) -> Vec<(u8, u64)> {
    let opened = rig.read(1, name).unwrap();
    rig.ask(&CloseSession { session_id: opened.session_id, ..Default::default() }).unwrap();
    let mut list = opened.extents.unwrap();
    list.resolve_contents().unwrap();
    let name_of = |id| list.chunks.iter().find(|chunk| chunk.chunk_id == id).unwrap().hash[0];
    list.extents.iter().map(|extent| (name_of(extent.chunk_id), extent.chunk_offset)).collect()
}

fn unreferenced(rig: &Rig) -> i64 {
    let sql = "SELECT count(*) FROM chunks WHERE refs = 0";
    rig.core.db().conn().query_row(sql, [], |row| row.get(0)).unwrap()
}

/// P4, P5: versions and what is in them stay, copies become garbage.
#[test]
pub(super) fn cold_small_files_move_into_a_pack() {
    let mut rig = Rig::new(4);
    let files =
        [("a", &[1][..]), ("b", &[2, 3]), ("c", &[1])].map(|(name, content)| put(&mut rig, name, POLICY, content));
    put(&mut rig, "coded", &[("redundancy", "ec:2+1")], &[4]);
    put(&mut rig, "empty", POLICY, &[]);
    put(&mut rig, "short-lived", &[POLICY[0], ("lifetime", "purge:1d")], &[5]);
    assert_eq!(unpacked(&mut rig, 60_000), [0; 0]);
    rig.tick(60_000);
    let all: Vec<u64> = files.iter().map(|file| file.ino).collect();
    assert_eq!(unpacked(&mut rig, 60_000), all);
    let shown = |rig: &mut Rig| {
        let opened = rig.read(1, "b").unwrap();
        rig.ask(&CloseSession { session_id: opened.session_id, ..Default::default() }).unwrap();
        (opened.attr, opened.version)
    };
    let before = shown(&mut rig);
    let wanted = [moved(&files[0], &[1]), moved(&files[1], &[2, 3]), moved(&files[2], &[1])].to_vec();
    let reply = move_into(&mut rig, &files[0], (9, &[1, 2, 3]), wanted.clone()).unwrap();
    assert_eq!(reply.moved, 3);
    rig.audit();
    assert_eq!((unpacked(&mut rig, 0), unreferenced(&rig)), (vec![], 3));
    assert_eq!([places(&mut rig, "a"), places(&mut rig, "b")], [vec![(9, 0)], vec![(9, 100), (9, 200)]]);
    assert_eq!(shown(&mut rig), before);
    // Again: they are in a pack.
    assert_eq!(move_into(&mut rig, &files[0], (8, &[1, 2, 3]), wanted).unwrap().moved, 0);
    rig.audit();
    // A file that is written again waits again; its content leaves the pack.
    put(&mut rig, "b", POLICY, &[6]);
    assert_eq!(unpacked(&mut rig, 0), [files[1].ino]);
    for name in ["a", "b", "c"] {
        let op_id = rig.op();
        rig.ask(&Unlink { op_id, parent: 1, name: name.into(), directory: false }).unwrap();
    }
    rig.tick(10_000);
    rig.audit();
    assert_eq!(unpacked(&mut rig, 0), [0; 0]);
}

/// P2, P14.
#[test]
pub(super) fn a_file_stays_where_it_is_unless_all_fits() {
    let mut rig = Rig::new(4);
    let mut files: Vec<CommitReply> = (1..8).map(|c| put(&mut rig, &format!("f{c}"), POLICY, &[c])).collect();
    let newer = put(&mut rig, "f1", POLICY, &[11]);
    let op_id = rig.op();
    rig.ask(&Unlink { op_id, parent: 1, name: b"f3".to_vec(), directory: false }).unwrap();
    let own = put(&mut rig, "own", &[POLICY[0], ("dedup", "off")], &[12]);
    let other = put(&mut rig, "other", &[("redundancy", "auto:3+1")], &[7]);
    files.push(own);
    files.push(other.clone());
    rig.tick(1_000);
    let wanted = vec![
        moved(&files[0], &[1]),    // Written since.
        moved(&files[1], &[1]),    // The content of another file.
        moved(&files[2], &[3]),    // Removed.
        moved(&files[3], &[4, 5]), // More than it has.
        moved(&files[4], &[]),     // Nothing is said.
        moved(&files[5], &[6]),    // This one fits.
        moved(&files[7], &[7]),    // Shares nothing.
        moved(&files[8], &[7]),    // Belongs into a pack of another class.
        MovedFile { ino: 1, ..MovedFile::default() },
        MovedFile { ino: 999, version: 1, places: vec![1] },
    ];
    let reply = move_into(&mut rig, &files[5], (9, &[1, 2, 3, 4, 5, 6, 7]), wanted).unwrap();
    assert_eq!(reply.moved, 1);
    rig.audit();
    assert_eq!(places(&mut rig, "f6"), [(9, 500)]);
    for c in [2, 4, 5, 7] {
        assert_eq!(places(&mut rig, &format!("f{c}")), [(c, 0)]);
    }
    // What could not move is not listed again; what may move is.
    assert_eq!(unpacked(&mut rig, 0), [newer.ino, files[6].ino, other.ino]);
    let error = move_into(&mut rig, &files[6], (8, &[1, 7]), vec![moved(&files[6], &[3])]).unwrap_err();
    assert_eq!(error.code(), Code::Invalid);
    // Hints that let it share nothing.
    let op_id = rig.op();
    let set = SetXattr {
        op_id,
        ino: files[6].ino,
        name: "user.tessera.dedup".into(),
        value: b"off".to_vec(),
        ..Default::default()
    };
    rig.ask(&set).unwrap();
    assert_eq!(unpacked(&mut rig, 0), [newer.ino, other.ino]);
    rig.audit();
}
