//! What one commit does beside another: patches, versions that must be current, contents, deduplication, durability and times.

use crate::rig::*;
use tessera_wire::meta::*;
use tessera_wire::{Code, Extent, InodeKind};

#[test]
fn a_small_patch_of_a_long_file_writes_one_page() {
    let mut rig = Rig::new(4);
    let session = rig.open_write(1, "long", &[("lifetime", "keep")]).unwrap().session_id;
    let answer = rig.allocate(session, &[chunk(1), chunk(2)]).unwrap().answers;
    let extent =
        |i: u64, which: usize| Extent::of_chunk(i * 100, 100, answer[which].chunk_id, &chunk(1 + which as u8).hash, 0);
    // Alternating chunks, so that extents do not join.
    let extents: Vec<Extent> = (0..10_000).map(|i| extent(i, (i % 2) as usize)).collect();
    let op_id = rig.op();
    let mode = CommitMode::Replace as i32;
    let commit = Commit {
        op_id,
        session_id: session,
        mode,
        size_bytes: 1_000_000,
        extents,
        acks: acks(&answer),
        keep_session: true,
        ..Default::default()
    };
    rig.ask(&commit).unwrap();
    let pages =
        |rig: &Rig| rig.core.db().conn().query_row("SELECT count(*) FROM pages", [], |r| r.get::<_, i64>(0)).unwrap();
    let before = pages(&rig);
    let op_id = rig.op();
    let mode = CommitMode::Patch as i32;
    let patch = Commit { op_id, mode, extents: vec![extent(5_000, 1)], acks: vec![], ..commit };
    rig.ask(&patch).unwrap();
    assert_eq!(pages(&rig), before + 1);
    rig.audit();
}

/// Two clients patch a file without locks: who wrote less does not cut off what the other one appended, unless it
/// shortened the file.
#[test]
fn a_patch_keeps_what_another_writer_appended() {
    let mut rig = Rig::new(4);
    rig.put(1, "f", b"a").unwrap();
    let open = |rig: &mut Rig| rig.open_write(1, "f", &[]).unwrap().session_id;
    let (longer, shorter, cutter) = (open(&mut rig), open(&mut rig), open(&mut rig));
    let patch = |rig: &mut Rig, session_id: u64, size_bytes: u64, cuts: bool| {
        let (op_id, mode) = (rig.op(), CommitMode::Patch as i32);
        let extents = vec![Extent::hole(size_bytes - 10, 10)];
        let commit =
            Commit { op_id, session_id, mode, size_bytes, cuts, extents, want_lease: true, ..Commit::default() };
        rig.ask(&commit).unwrap().entry.unwrap().attr.unwrap().size_bytes
    };
    assert_eq!(patch(&mut rig, longer, 300, false), 300);
    assert_eq!(patch(&mut rig, shorter, 100, false), 300);
    assert_eq!(patch(&mut rig, cutter, 50, true), 50);
    rig.audit();
}

#[test]
fn if_version_lets_one_of_two_writers_win() {
    let mut rig = Rig::new(4);
    let first = rig.put(1, "f", b"a").unwrap();
    let (a, b) = (rig.open_write(1, "f", &[]).unwrap(), rig.open_write(1, "f", &[]).unwrap());
    assert_eq!(a.base_version, first.version);
    let commit = |rig: &mut Rig, session: &OpenWriteReply, content: &[u8]| {
        let request = rig.replacing(session.session_id, content).unwrap();
        rig.ask(&Commit { if_version: Some(session.base_version), ..request })
    };
    let won = commit(&mut rig, &a, b"b").unwrap();
    let lost = commit(&mut rig, &b, b"c").unwrap_err();
    assert_eq!((lost.code(), lost.current), (Code::VersionConflict, won.version));
    // Without it the later commit wins, and its reply names the version it replaced.
    let request = rig.replacing(b.session_id, b"c").unwrap();
    assert_eq!(rig.ask(&request).unwrap().superseded, won.version);
    // 0: the file must not exist.
    let c = rig.open_write(1, "new", &[]).unwrap();
    commit(&mut rig, &c, b"d").unwrap();
    let d = rig.open_write(1, "new", &[]).unwrap();
    let request = rig.replacing(d.session_id, b"e").unwrap();
    let error = rig.ask(&Commit { if_version: Some(0), ..request }).unwrap_err();
    assert_eq!(error.code(), Code::VersionConflict);
    // For a file opened by inode number: it was never written.
    let (op_id, kind) = (rig.op(), InodeKind::File as i32);
    let made = rig.ask(&MakeNode { op_id, parent: 1, name: b"empty".to_vec(), kind, ..MakeNode::default() }).unwrap();
    let ino = made.attr.unwrap().ino;
    let mut by_number = |content: &[u8]| {
        let op_id = rig.op();
        let session_id = rig.ask(&OpenWrite { op_id, ino, ..OpenWrite::default() }).unwrap().session_id;
        let request = rig.replacing(session_id, content).unwrap();
        rig.ask(&Commit { if_version: Some(0), ..request })
    };
    by_number(b"f").unwrap();
    assert_eq!(by_number(b"g").unwrap_err().code(), Code::VersionConflict);
}

/// [`tessera_wire::Attr::content`]: the writer's number, the previous one, or a unique one of the manager.
#[test]
fn contents_are_called_what_the_writer_says_or_a_number_of_their_own() {
    let mut rig = Rig::new(4);
    let ino = rig.put(1, "f", b"a").unwrap().ino;
    let content = |rig: &mut Rig, ino| {
        let by_ino = rig.ask(&GetAttr { ino, want_lease: false }).unwrap().attr.unwrap();
        let read = rig.ask(&OpenRead { ino, ..OpenRead::default() }).unwrap().attr.unwrap();
        assert_eq!((by_ino.content, by_ino.version), (read.content, read.version));
        by_ino.content
    };
    let commit = |rig: &mut Rig, bytes: &[u8], content| {
        let session_id = rig.open_write(1, "f", &[]).unwrap().session_id;
        let request = rig.replacing(session_id, bytes).unwrap();
        rig.ask(&Commit { content, ..request }).unwrap()
    };
    let first = content(&mut rig, ino);
    assert!(first != 0 && first < CONTENT_DRAWN);
    commit(&mut rig, b"a", first);
    assert_eq!(content(&mut rig, ino), first, "stored anew");
    commit(&mut rig, b"b", 0);
    assert!(![0, first].contains(&content(&mut rig, ino)));
    let drawn = CONTENT_DRAWN | 77;
    commit(&mut rig, b"c", drawn);
    // Other changes of the file and a restart keep it.
    let op_id = rig.op();
    rig.ask(&SetAttr { op_id, ino, mode: Some(0o600), ..SetAttr::default() }).unwrap();
    assert_eq!(content(&mut rig, ino), drawn);
    let mut rig = rig.restart();
    assert_eq!(content(&mut rig, ino), drawn);
    let listed = rig.ask(&List { ino: 1, limit: 10, ..List::default() }).unwrap().entries;
    assert_eq!(listed[0].attr.as_ref().unwrap().content, drawn);
    let other = rig.put(1, "g", b"c").unwrap().ino;
    assert!(![0, first, drawn].contains(&content(&mut rig, other)));
    rig.audit();
}

#[test]
fn dedup_follows_the_policy() {
    let mut rig = Rig::new(4);
    rig.put(1, "shared", b"a").unwrap();
    let state = |rig: &mut Rig, name: &str, dedup: &str| {
        let session = rig.open_write(1, name, &[("dedup", dedup)]).unwrap().session_id;
        let answers = rig.allocate(session, &[chunk(b'a'), chunk(b'a')]).unwrap().answers;
        assert_eq!(answers[0], answers[1], "repeated in one question: answered alike");
        let op_id = rig.op();
        let extents = vec![Extent::of_chunk(0, 100, answers[0].chunk_id, &chunk(b'a').hash, 0)];
        let mode = CommitMode::Replace as i32;
        let commit = Commit {
            op_id,
            session_id: session,
            mode,
            size_bytes: 100,
            extents,
            acks: acks(&answers),
            ..Default::default()
        };
        rig.ask(&commit).unwrap();
        ChunkState::try_from(answers[0].state).unwrap()
    };
    assert_eq!(state(&mut rig, "f", "all"), ChunkState::Durable);
    assert_eq!(state(&mut rig, "g", "version"), ChunkState::New);
    assert_eq!(state(&mut rig, "g", "version"), ChunkState::Durable);
    assert_eq!(state(&mut rig, "h", "off"), ChunkState::New);
    assert_eq!(state(&mut rig, "h", "off"), ChunkState::New);
    rig.audit();
}

#[test]
fn a_pessimistic_file_leans_on_nothing_that_is_not_durable() {
    let mut rig = Rig::new(4);
    let a = rig.open_write(1, "a", &[]).unwrap().session_id;
    let b = rig.open_write(1, "b", &[]).unwrap().session_id;
    rig.allocate(a, &[chunk(1)]).unwrap();
    // Another session's pending chunk: the writer must supply all fragments.
    let answers = rig.allocate(b, &[chunk(1)]).unwrap().answers;
    assert_eq!((answers[0].state, answers[0].missing.clone()), (ChunkState::Incomplete as i32, vec![0, 1, 2]));
    let mut commit = rig.replacing(b, &[1]).unwrap();
    commit.acks[0].missing = vec![2];
    let error = rig.ask(&commit).unwrap_err();
    assert_eq!(error.code(), Code::TooFewFragments);
    assert!(error.message.contains("avoid_pgs"), "{error}");
    // An optimistic commit may omit fragments while the chunk is readable; the rest gets missing rows and is stored later.
    let c = rig.open_write(1, "c", &[("durability", "optimistic")]).unwrap().session_id;
    let mut commit = rig.replacing(c, &[1]).unwrap();
    let ack = commit.acks[0].clone();
    commit.acks[0].missing = vec![2];
    assert_eq!(rig.ask(&commit).unwrap().missing_fragments, 1);
    let missing = |rig: &mut Rig| rig.read(1, "c").unwrap().extents.unwrap().chunks[0].missing.clone();
    assert_eq!(missing(&mut rig), [2]);
    let op_id = rig.op();
    let fragment = FragmentRef { chunk_id: ack.chunk_id, fragment: 2, epoch: ack.epochs[0], disk_id: 0 };
    // Without the node's receipt the fragment stays missing.
    rig.ask(&CompleteFragments { op_id, fragments: vec![fragment], receipts: vec![77] }).unwrap();
    assert_eq!(missing(&mut rig), [2]);
    let receipts = vec![rig.receipts(&ack)[2]];
    let op_id = rig.op();
    rig.ask(&CompleteFragments { op_id, fragments: vec![fragment], receipts }).unwrap();
    assert_eq!(missing(&mut rig), [0u32; 0]);
    rig.audit();
}

/// The client's kernel keeps a file's times; without them the manager's time counts, and an access time stays.
#[test]
fn times_are_the_clients_if_it_names_them() {
    let mut rig = Rig::new(4);
    let ctime_ns = |entry: Entry| entry.attr.unwrap().ctime_ns;
    let (op_id, kind, name) = (rig.op(), InodeKind::File as i32, b"f".to_vec());
    let times = MakeNode { mtime_ns: 39, ctime_ns: 40, atime_ns: 41, ..MakeNode::default() };
    let made = rig.ask(&MakeNode { op_id, parent: 1, name, kind, ..times }).unwrap();
    let attr = made.attr.unwrap();
    assert_eq!((attr.mtime_ns, attr.ctime_ns, attr.atime_ns), (39, 40, 41));
    let ino = attr.ino;
    for (given, recorded_ns) in [(Some(42), 42), (None, rig.now_ns)] {
        let op_id = rig.op();
        let changed =
            rig.ask(&SetAttr { op_id, ino, mode: Some(0o600), ctime_ns: given, ..SetAttr::default() }).unwrap();
        assert_eq!(ctime_ns(changed), recorded_ns);
    }
    for (given_ns, recorded_ns, atime_ns) in [(43, 43, 8), (0, rig.now_ns, 0)] {
        let op_id = rig.op();
        let session_id = rig.ask(&OpenWrite { op_id, ino, ..OpenWrite::default() }).unwrap().session_id;
        let (op_id, mode) = (rig.op(), CommitMode::Replace as i32);
        let times = Commit { mtime_ns: 7, ctime_ns: given_ns, atime_ns, ..Commit::default() };
        let commit = Commit { op_id, session_id, mode, want_lease: true, ..times };
        let attr = rig.ask(&commit).unwrap().entry.unwrap().attr.unwrap();
        assert_eq!((attr.ctime_ns, attr.mtime_ns, attr.atime_ns), (recorded_ns, 7, 8));
    }
}
