//! Bad input to the manager changes nothing and gets a typed error that says what to do (P14).

use crate::rig::*;
use bytes::Bytes;
use prost::Message;
use tessera_wire::meta::*;
use tessera_wire::{Code, DiskInfo, Extent, Hint, Kind, NodeInfo, Request, Role};

struct Cases {
    rig: Rig,
    before: String,
}

/// Tables that record refused requests.
const REMEMBERED: &[&str] = &["ops", "meta"];

impl Cases {
    fn new(rig: Rig) -> Cases {
        let before = rig.dump(REMEMBERED);
        Cases { rig, before }
    }

    fn refused<R: Request + std::fmt::Debug>(&mut self, code: Code, request: R) -> String {
        let error = self.rig.ask(&request).err().unwrap_or_else(|| panic!("accepted: {request:?}"));
        assert_eq!(error.code(), code, "{request:?}: {error}");
        assert!(error.message.len() > 10 && !error.message.contains('\n'), "{error}");
        assert_eq!(self.rig.dump(REMEMBERED), self.before, "{request:?}");
        error.message
    }
}

/// What all attributes of a file have must fit into one reply, or nobody could list them.
#[test]
fn attributes_that_are_too_long_together() {
    let mut rig = Rig::new(4);
    let ino = rig.put(1, "file", b"a").unwrap().ino;
    let set = |rig: &mut Rig, name: &str, byte| {
        let op_id = rig.op();
        SetXattr { op_id, ino, name: name.into(), value: vec![byte; 64 << 10], ..Default::default() }
    };
    for number in 0..15 {
        let request = set(&mut rig, &format!("user.long{number}"), 1);
        rig.ask(&request).unwrap();
    }
    let request = set(&mut rig, "user.last", 1);
    let mut cases = Cases::new(rig);
    assert!(cases.refused(Code::NoSpace, request).contains("at most 1048576 are possible"));
    // In the place of one of them another one fits.
    let request = set(&mut cases.rig, "user.long3", 2);
    cases.rig.ask(&request).unwrap();
}

#[test]
fn bad_names_and_attributes() {
    let mut rig = Rig::new(4);
    let file = rig.put(1, "file", b"a").unwrap().ino;
    let dir = rig.mkdir(1, "dir");
    let inside = rig.mkdir(dir, "inside");
    let mut cases = Cases::new(rig);
    let long = vec![b'x'; 256];
    let names: [(&[u8], Code); 7] = [
        (b"", Code::Invalid),
        (b".", Code::Invalid),
        (b"..", Code::Invalid),
        (b"a/b", Code::Invalid),
        (b"a\0b", Code::Invalid),
        (b"/", Code::Invalid),
        (&long, Code::NameTooLong),
    ];
    for (name, code) in names {
        let name = name.to_vec();
        let op_id = cases.rig.op();
        cases.refused(code, MakeDir { op_id, parent: 1, name: name.clone(), ..Default::default() });
        let op_id = cases.rig.op();
        cases.refused(code, Unlink { op_id, parent: 1, name: name.clone(), directory: false });
        let op_id = cases.rig.op();
        cases.refused(code, Symlink { op_id, parent: 1, name: name.clone(), target: vec![1], ..Default::default() });
        let op_id = cases.rig.op();
        cases.refused(code, Link { op_id, ino: file, parent: 1, name: name.clone() });
        let op_id = cases.rig.op();
        cases.refused(code, OpenWrite { op_id, parent: 1, name: name.clone(), ..Default::default() });
        cases.refused(code, OpenRead { parent: 1, name: name.clone(), ..Default::default() });
        cases.refused(code, Lookup { parent: 1, name: name.clone(), want_lease: true, ahead: 0 });
        cases.refused(code, Resolve { start: 1, components: vec![name.clone()], want_lease: false });
        for (from, to) in [(name.clone(), b"x".to_vec()), (b"file".to_vec(), name.clone())] {
            let op_id = cases.rig.op();
            cases.refused(
                code,
                Rename {
                    op_id,
                    from_parent: 1,
                    from_name: from,
                    to_parent: 1,
                    to_name: to,
                    no_replace: false,
                    exchange: false,
                },
            );
        }
    }
    let op_id = cases.rig.op();
    let into_itself = Rename {
        op_id,
        from_parent: 1,
        from_name: b"dir".to_vec(),
        to_parent: inside,
        to_name: b"d".to_vec(),
        no_replace: false,
        exchange: false,
    };
    cases.refused(Code::Invalid, into_itself);
    let op_id = cases.rig.op();
    cases.refused(Code::NotEmpty, Unlink { op_id, parent: 1, name: b"dir".to_vec(), directory: true });
    let op_id = cases.rig.op();
    let names: Vec<Vec<u8>> = (0..1_025).map(|i| format!("f{i}").into_bytes()).collect();
    cases.refused(Code::Invalid, RemoveNames { op_id, parent: 1, names, within: None });
    let op_id = cases.rig.op();
    cases.refused(Code::NotDirectory, RemoveNames { op_id, parent: file, names: vec![b"f".to_vec()], within: None });
    let op_id = cases.rig.op();
    cases.refused(Code::IsDirectory, Link { op_id, ino: dir, parent: 1, name: b"l".to_vec() });
    let op_id = cases.rig.op();
    cases.refused(
        Code::Invalid,
        Symlink { op_id, parent: 1, name: b"l".to_vec(), target: vec![b'x'; 4096], ..Default::default() },
    );
    cases.refused(Code::NotDirectory, List { ino: file, ..Default::default() });
    cases.refused(Code::IsDirectory, OpenRead { ino: dir, ..Default::default() });
    cases.refused(Code::IsDirectory, ListVersions { ino: dir });
    cases.refused(Code::NotFound, OpenRead { ino: file, version: 999, ..Default::default() });
    cases.refused(Code::NotFound, GetAttr { ino: u64::MAX, want_lease: false });
    let op_id = cases.rig.op();
    cases.refused(Code::Invalid, SetAttr { op_id, ino: file, mode: Some(0o100644), ..Default::default() });
    let mut xattr = |code, name: &str, value: &[u8]| {
        let op_id = cases.rig.op();
        let (name, value) = (name.to_string(), value.to_vec());
        cases.refused(code, SetXattr { op_id, ino: file, name, value, ..Default::default() })
    };
    assert!(xattr(Code::Invalid, "user.tessera.redundancy", b"ec:0+2").contains("allowed"));
    assert!(xattr(Code::Invalid, "user.tessera.colour", b"red").contains("redundancy"));
    xattr(Code::Invalid, "user.tessera.dedup", b"\xff\xfe");
    xattr(Code::Invalid, "", b"");
    xattr(Code::Invalid, &"x".repeat(256), b"");
    xattr(Code::Invalid, "user.big", &vec![0; 65 << 10]);
    let op_id = cases.rig.op();
    cases.refused(Code::NotFound, RemoveXattr { op_id, ino: file, name: "user.none".into() });
    let hints = vec![Hint { name: "chunking".into(), value: "1M".into() }];
    let op_id = cases.rig.op();
    cases.refused(Code::Invalid, OpenWrite { op_id, parent: 1, name: b"n".to_vec(), hints, ..Default::default() });
    // Without an op id, a repeated request could not be recognized.
    cases.refused(Code::Invalid, MakeDir { op_id: 0, parent: 1, name: b"n".to_vec(), ..Default::default() });
}

#[test]
fn bad_dedup_questions() {
    let mut rig = Rig::new(4);
    let session_id = rig.open_write(1, "f", &[]).unwrap().session_id;
    rig.allocate(session_id, &[chunk(1)]).unwrap(); // the class has its row
    let mut cases = Cases::new(rig);
    let mut ask = |code, redundancy: &str, chunks: Vec<ChunkName>, session_id: u64| {
        let op_id = cases.rig.op();
        cases.refused(
            code,
            AllocateChunks { op_id, session_id, redundancy: redundancy.into(), chunks, ..Default::default() },
        )
    };
    let named = |hash: usize, len_bytes: u64| ChunkName { hash: Bytes::from(vec![1; hash]), len_bytes, region: 0 };
    ask(Code::Invalid, "ec:2+1", vec![named(31, 100)], session_id);
    ask(Code::Invalid, "ec:2+1", vec![named(33, 100)], session_id);
    ask(Code::Invalid, "ec:2+1", vec![named(32, 0)], session_id);
    ask(Code::Invalid, "ec:2+1", vec![named(32, u64::MAX)], session_id);
    ask(Code::Invalid, "ec:2+1", vec![named(32, 1); 20_000], session_id);
    ask(Code::Invalid, "", vec![named(32, 1)], session_id);
    ask(Code::Invalid, "raid7", vec![named(32, 1)], session_id);
    ask(Code::SessionExpired, "ec:2+1", vec![named(32, 1)], 4711);
    let message = ask(Code::TooFewHosts, "ec:4+2", vec![named(32, 1)], session_id);
    assert!(message.contains("ec:4+2") && message.contains('6'), "{message}");
}

#[test]
fn bad_commits() {
    let mut rig = Rig::new(4);
    let session_id = rig.open_write(1, "f", &[]).unwrap().session_id;
    let good = rig.replacing(session_id, &[1, 2]).unwrap();
    let mut cases = Cases::new(rig);
    let refuse = |cases: &mut Cases, code, change: &dyn Fn(&mut Commit)| {
        let mut commit = good.clone();
        commit.op_id = cases.rig.op();
        change(&mut commit);
        cases.refused(code, commit)
    };
    let refuse = &mut |code, change: &dyn Fn(&mut Commit)| refuse(&mut cases, code, change);
    refuse(Code::Invalid, &|c| c.mode = 0);
    refuse(Code::Invalid, &|c| c.mode = 99);
    refuse(Code::Invalid, &|c| c.extents.swap(0, 1));
    refuse(Code::Invalid, &|c| c.extents[1].offset = 99);
    refuse(Code::Invalid, &|c| c.extents[1].offset = 101);
    refuse(Code::Invalid, &|c| c.extents[0].offset = 1);
    refuse(Code::Invalid, &|c| c.extents[0].len_bytes = 0);
    refuse(Code::Invalid, &|c| c.extents[1].len_bytes = u64::MAX);
    refuse(Code::Invalid, &|c| c.extents[1].offset = u64::MAX - 5);
    refuse(Code::Invalid, &|c| c.extents[0].chunk_offset = 1);
    refuse(Code::Invalid, &|c| c.extents[0].chunk_offset = u64::MAX);
    refuse(Code::Invalid, &|c| c.extents[0].chunk_id = 4711);
    // P2: a writer that was given another chunk than the one it named.
    refuse(Code::Invalid, &|c| c.extents[0].chunk_id = c.extents[1].chunk_id);
    refuse(Code::Invalid, &|c| c.extents[0].name_prefix ^= 1);
    refuse(Code::Invalid, &|c| c.extents[0].name_prefix = 0);
    refuse(Code::Invalid, &|c| c.extents[0].chunk_id = 0);
    refuse(Code::Invalid, &|c| c.extents[0].chunk_id = u64::MAX);
    refuse(Code::Invalid, &|c| {
        c.extents[0].chunk_id = 0;
        c.extents[0].chunk_offset = 7;
    });
    refuse(Code::Invalid, &|c| c.size_bytes = 199);
    refuse(Code::Invalid, &|c| c.size_bytes = 201);
    refuse(Code::Invalid, &|c| c.size_bytes = u64::MAX);
    refuse(Code::Invalid, &|c| c.acks[0].chunk_id = 4711);
    refuse(Code::Invalid, &|c| c.acks[0].epochs = vec![0]);
    refuse(Code::Invalid, &|c| c.acks[0].epochs = vec![1 << 40]);
    refuse(Code::Invalid, &|c| c.acks[0].missing = vec![3]);
    refuse(Code::TooFewFragments, &|c| c.acks[0].missing = vec![0]);
    refuse(Code::Invalid, &|c| {
        let again = c.acks[0].clone();
        c.acks.push(again);
    });
    refuse(Code::Invalid, &|c| _ = c.acks.remove(0));
    refuse(Code::Invalid, &|c| c.extents = vec![Extent { len_bytes: 1, ..Default::default() }; 70_000]);
    refuse(Code::SessionExpired, &|c| c.session_id = 4711);
    refuse(Code::VersionConflict, &|c| c.if_version = Some(4711));
    refuse(Code::Invalid, &|c| c.op_id = 0);
    // Parts of different modes.
    let mut part = good.clone();
    (part.op_id, part.partial) = (cases.rig.op(), true);
    part.extents.truncate(1);
    cases.rig.ask(&part).unwrap();
    cases.before = cases.rig.dump(REMEMBERED);
    let op_id = cases.rig.op();
    cases.refused(Code::Invalid, Commit { op_id, mode: CommitMode::Patch as i32, ..good.clone() });
    let op_id = cases.rig.op();
    cases.refused(Code::Invalid, Commit { op_id, ..good.clone() }); // overlaps what is staged
    // The valid request still succeeds.
    let op_id = cases.rig.op();
    let (extents, acks) = (good.extents[1..].to_vec(), good.acks[1..].to_vec());
    cases.rig.ask(&Commit { op_id, extents, acks, ..good }).unwrap();
    cases.rig.audit();
}

#[test]
fn bytes_that_are_no_message() {
    let mut rig = Rig::new(4);
    let before = rig.dump(REMEMBERED);
    // The request for the cluster's status has no fields: unknown fields are skipped.
    for &kind in Kind::ALL.iter().filter(|&&kind| kind != Kind::GetStatus) {
        for body in [&b"\xff\xff\xff\xff\xff"[..], b"\x0a\x7f", b"\x08"] {
            for role in [Role::Client, Role::Node] {
                let id = rig.send_raw(role, ALICE, kind, Bytes::from_static(body));
                rig.settle();
                let result = rig.replies.remove(&id).expect("answered");
                assert!(result.is_err(), "{}", kind.name());
            }
        }
    }
    assert_eq!(rig.dump(REMEMBERED), before);
}

/// Requests on behalf of another sender are refused: each is valid except for its sender.
#[test]
fn requests_of_another_role() {
    let mut rig = Rig::new(4);
    let before = rig.dump(REMEMBERED);
    let not_a_node = [Role::Unknown, Role::Client, Role::Manager];
    for role in not_a_node {
        let beat = Heartbeat { node_id: 1, incarnation: 1, number: 7, failed_disks: vec![1], ..Default::default() };
        assert_eq!(rig.ask_as(role, ALICE, &beat).unwrap_err().code(), Code::Permission);
        let page = Inventory { node_id: 1, incarnation: 1, disk_id: 1, last: true, ..Default::default() };
        assert_eq!(rig.ask_as(role, ALICE, &page).unwrap_err().code(), Code::Permission);
        let info = NodeInfo { name: "n1".into(), host: "h1".into(), address: "x:1".into(), ..Default::default() };
        let disk = DiskInfo { uuid: vec![1; 16], ..Default::default() };
        let (receipt_key, check_only) = (vec![1; 32], false);
        let register = RegisterNode { op_id: 77, node: Some(info), disks: vec![disk], receipt_key, check_only };
        assert_eq!(rig.ask_as(role, ALICE, &register).unwrap_err().code(), Code::Permission);
    }
    for role in [Role::Unknown, Role::Node, Role::Manager] {
        let make = MakeDir { op_id: 78, parent: 1, name: b"d".to_vec(), ..Default::default() };
        assert_eq!(rig.ask_as(role, ALICE, &make).unwrap_err().code(), Code::Permission);
        let open = OpenWrite { op_id: 79, parent: 1, name: b"f".to_vec(), ..Default::default() };
        assert_eq!(rig.ask_as(role, ALICE, &open).unwrap_err().code(), Code::Permission);
    }
    rig.tick(1_000);
    assert_eq!(rig.dump(REMEMBERED), before);
    assert!(rig.ask_as(Role::Node, 0, &Heartbeat { node_id: 1, incarnation: 1, ..Default::default() }).is_ok());
}

#[test]
fn a_flood_is_turned_away() {
    let mut rig = Rig::new(4);
    let request = MakeDir { op_id: 0, parent: 1, name: b"x".to_vec(), ..Default::default() };
    let mut last = 0;
    for i in 0..70_000u64 {
        let body = MakeDir { op_id: i + 1_000_000, ..request.clone() }.encode_to_vec();
        last = rig.send_raw(Role::Client, ALICE, Kind::MakeDir, body.into());
    }
    rig.drain();
    assert_eq!(rig.replies[&last].as_ref().unwrap_err().code(), Code::Unavailable);
}
