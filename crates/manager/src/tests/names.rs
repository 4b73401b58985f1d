//! Directory delegations: deferred creates, and the requests of other clients that wait for a recall (P7, P8, P14).

use super::preallocated::{draw, filling, redundancy};
use crate::config::Config;
use crate::rig::*;
use bytes::Bytes;
use prost::Message;
use tessera_wire::meta::*;
use tessera_wire::rpc::Call;
use tessera_wire::{Ack, Code, Error, InodeKind, Kind, Request, Role};

const INOS: u32 = 4;

fn make_dir(rig: &mut Rig, name: &str) -> Entry {
    let op_id = rig.op();
    rig.ask(&MakeDir { op_id, parent: 1, name: name.into(), inos: INOS, ..Default::default() }).unwrap()
}

/// A rig in which ALICE has just made a directory and holds its delegation.
fn rig() -> (Rig, u64, InoRange) {
    let mut rig = Rig::new(4);
    assert_eq!(make_dir(&mut rig, "first").delegation_ms, 0, "that leases exist is noted first");
    let made = make_dir(&mut rig, "d");
    assert_eq!((made.delegation_ms, made.inos.unwrap().count), (LEASE_MS, INOS));
    (rig, made.attr.unwrap().ino, made.inos.unwrap())
}

fn make_node(rig: &mut Rig, parent: u64, name: &str, ino: u64) -> MakeNode {
    let (op_id, kind) = (rig.op(), InodeKind::File as i32);
    MakeNode { op_id, parent, name: name.into(), kind, mode: 0o644, ino, ..Default::default() }
}

/// The commit of a new file with this inode number.
fn new_file(rig: &mut Rig, parent: u64, name: &str, ino: u64) -> Commit {
    let preallocated = draw(rig, 1, redundancy("ec:2+1")).preallocated.unwrap();
    let mut commit = filling(rig, name, &[ino as u8], &preallocated);
    let open = commit.open.as_mut().unwrap();
    (open.parent, open.ino, open.inos) = (parent, ino, INOS);
    commit.if_version = Some(0);
    commit
}

fn recall(call: &Call) -> RecallLease {
    assert_eq!(call.kind, Kind::RecallLease);
    RecallLease::decode(call.body.clone()).unwrap()
}

/// Sends a request as BOB; it must wait until ALICE has returned the delegation of `directory`.
fn recalls<R: Request>(rig: &mut Rig, directory: u64, request: &R) -> Result<Bytes, Error> {
    let id = rig.send(Role::Client, BOB, request);
    rig.settle();
    assert!(!rig.replies.contains_key(&id), "{} did not wait", R::KIND.name());
    let call = rig.calls.pop_front().expect("a recall");
    assert_eq!(recall(&call).delegated_dirs, [directory], "{}", R::KIND.name());
    rig.answer(call.token, Ok(Bytes::from(Ack {}.encode_to_vec())));
    rig.settle();
    rig.replies.remove(&id).expect("answered")
}

#[test]
fn a_file_comes_to_be_with_its_first_commit() {
    let (mut rig, d, inos) = rig();
    let commit = new_file(&mut rig, d, "f", inos.first + 1);
    let reply = rig.ask(&commit).unwrap();
    assert_eq!((reply.ino, reply.number, reply.delegation_ms), (inos.first + 1, 1, LEASE_MS));
    let more = reply.inos.unwrap();
    assert!(more.count == INOS && more.first >= inos.first + u64::from(INOS), "others than before");
    let found = rig.ask(&Lookup { parent: d, name: b"f".to_vec(), want_lease: false, ahead: 0 }).unwrap();
    assert_eq!(found.attr.unwrap().ino, inos.first + 1);
    // P8: a repeated request changes nothing, and its reply omits state that may have changed.
    assert_eq!(rig.ask(&commit).unwrap(), CommitReply { delegation_ms: 0, ..reply });
    let made = make_node(&mut rig, d, "empty", inos.first);
    assert_eq!(rig.ask(&made).unwrap().attr.unwrap().ino, inos.first);
    // A create without an inode number gets an unused one.
    let any = make_node(&mut rig, d, "any", 0);
    let any = rig.ask(&any).unwrap().attr.unwrap().ino;
    assert!(any >= more.first + u64::from(INOS));
    rig.audit();
}

/// P14.
#[test]
fn a_number_is_used_once_and_only_if_it_was_drawn() {
    let (mut rig, d, inos) = rig();
    let first = make_node(&mut rig, d, "first", inos.first);
    rig.ask(&first).unwrap();
    for (ino, code) in
        [(inos.first, Code::Exists), (1, Code::Invalid), (1 << 40, Code::Invalid), (u64::MAX, Code::Invalid)]
    {
        let before = rig.dump(&["meta", "ops"]);
        let node = make_node(&mut rig, d, "node", ino);
        assert_eq!(rig.ask(&node).unwrap_err().code(), code, "{ino}");
        let op_id = rig.op();
        let open = OpenWrite { op_id, parent: d, name: b"open".to_vec(), ino, ..Default::default() };
        assert_eq!(rig.ask(&open).unwrap_err().code(), code, "{ino}");
        assert_eq!(rig.dump(&["meta", "ops"]), before);
        let commit = new_file(&mut rig, d, "commit", ino);
        assert_eq!(rig.ask(&commit).unwrap_err().code(), code, "{ino}");
    }
    // Two sessions that each create a file, with the same inode number.
    let mut sessions = Vec::new();
    for name in ["one", "two"] {
        let op_id = rig.op();
        let open = OpenWrite { op_id, parent: d, name: name.into(), ino: inos.first + 2, ..Default::default() };
        sessions.push(rig.ask(&open).unwrap().session_id);
    }
    let commits: Vec<Commit> = sessions.iter().map(|session| rig.replacing(*session, b"x").unwrap()).collect();
    assert!(rig.ask(&commits[0]).is_ok());
    assert_eq!(rig.ask(&commits[1]).unwrap_err().code(), Code::Exists);
    let many = MakeDir { op_id: rig.op(), parent: 1, name: b"many".to_vec(), inos: u32::MAX, ..Default::default() };
    assert_eq!(rig.ask(&many).unwrap().inos.unwrap().count, 256);
    rig.audit();
}

/// P8: a client that got no answer for minutes asks again in another request. The file is the one that it has made.
#[test]
fn a_file_that_was_made_without_an_answer_is_ones_own() {
    let (mut rig, d, inos) = rig();
    let first = make_node(&mut rig, d, "f", inos.first);
    let made = rig.ask(&first).unwrap();
    let again = make_node(&mut rig, d, "f", inos.first);
    assert_eq!(rig.ask(&again).unwrap().attr, made.attr);
    let other = make_node(&mut rig, d, "f", inos.first + 1);
    assert_eq!(rig.ask(&other).unwrap_err().code(), Code::Exists);
    rig.audit();
}

#[test]
fn a_name_that_is_taken_is_not_taken_over() {
    let (mut rig, d, inos) = rig();
    let there = make_node(&mut rig, d, "f", 0);
    let there = rig.ask(&there).unwrap().attr.unwrap();
    let commit = new_file(&mut rig, d, "f", inos.first);
    assert_eq!(rig.ask(&commit).unwrap_err().code(), Code::VersionConflict);
    let found = rig.ask(&Lookup { parent: d, name: b"f".to_vec(), want_lease: false, ahead: 0 }).unwrap();
    assert_eq!(found.attr.unwrap(), there);
}

/// A request that creates a name in the directory, or changes it, waits; one that only removes a name does not.
#[test]
pub(super) fn others_wait_before_they_make_names() {
    let (name, other) = (|text: &str| text.as_bytes().to_vec(), 1);
    let mut tried = 0;
    loop {
        let (mut rig, d, _) = rig();
        let file = make_node(&mut rig, d, "file", 0);
        let file = rig.ask(&file).unwrap().attr.unwrap().ino;
        let op_id = rig.op();
        let done = match tried {
            0 => {
                let node = make_node(&mut rig, d, "n", 0);
                recalls(&mut rig, d, &node)
            }
            1 => recalls(&mut rig, d, &MakeDir { op_id, parent: d, name: name("n"), ..Default::default() }),
            2 => {
                let symlink = Symlink { op_id, parent: d, name: name("n"), target: name("t"), ..Default::default() };
                recalls(&mut rig, d, &symlink)
            }
            3 => recalls(&mut rig, d, &Link { op_id, ino: file, parent: d, name: name("n") }),
            4 => {
                let (from_name, to_name) = (name("first"), name("n"));
                let rename =
                    Rename { op_id, from_parent: other, from_name, to_parent: d, to_name, ..Default::default() };
                recalls(&mut rig, d, &rename)
            }
            5 => {
                let commit = new_file(&mut rig, d, "n", 0);
                recalls(&mut rig, d, &commit)
            }
            6 => {
                let session = rig.open_write(d, "n", &[]).unwrap().session_id;
                let commit = rig.replacing(session, b"x").unwrap();
                recalls(&mut rig, d, &commit)
            }
            7 => recalls(&mut rig, d, &SetAttr { op_id, ino: d, mode: Some(0o700), ..Default::default() }),
            8 => {
                let xattr = SetXattr { op_id, ino: d, name: "user.x".into(), value: name("v"), ..Default::default() };
                recalls(&mut rig, d, &xattr)
            }
            9 => {
                let unlink = Unlink { op_id, parent: 1, name: name("d"), directory: true };
                assert_eq!(recalls(&mut rig, d, &unlink).unwrap_err().code(), Code::NotEmpty);
                Ok(Bytes::new())
            }
            10 => {
                let new = NewEntry { parent: d, name: name("n"), ..Default::default() };
                recalls(&mut rig, d, &MakeEntries { op_id, entries: vec![new] })
            }
            11 => {
                let new = NewEntry { parent: 1, name: name("n"), ..Default::default() };
                let link = NewEntry { parent: d, name: name("n"), target: name("t"), ..Default::default() };
                recalls(&mut rig, d, &MakeEntries { op_id, entries: vec![new, link] })
            }
            12 => {
                let inodes = [file, d].map(|ino| SetAttr { ino, mode: Some(0o700), ..Default::default() }).into();
                recalls(&mut rig, d, &SetAttrs { op_id, inodes })
            }
            _ => {
                let unlink = Unlink { op_id, parent: d, name: name("file"), directory: false };
                rig.ask_as(Role::Client, BOB, &unlink).unwrap();
                assert!(rig.calls.is_empty());
                break;
            }
        };
        assert!(done.is_ok(), "{tried}: {done:?}");
        tried += 1;
    }
}

#[test]
fn names_that_others_are_about_to_create_are_not_delegated() {
    let (mut rig, d, inos) = rig();
    let first = new_file(&mut rig, d, "first", inos.first);
    let second = new_file(&mut rig, d, "second", inos.first + 1);
    let third = new_file(&mut rig, d, "third", inos.first + 2);
    let waiting = make_node(&mut rig, d, "bobs", 0);
    let id = rig.send(Role::Client, BOB, &waiting);
    rig.settle();
    let call = rig.calls.pop_front().expect("a recall");
    // ALICE commits her deferred creates, which does not extend the delegation.
    assert_eq!(rig.ask(&first).unwrap().delegation_ms, 0);
    assert!(!rig.replies.contains_key(&id));
    rig.answer(call.token, Ok(Bytes::from(Ack {}.encode_to_vec())));
    rig.settle();
    assert!(rig.replies.remove(&id).unwrap().is_ok());
    assert_eq!(rig.ask(&second).unwrap().delegation_ms, 0, "they were given back");
    let more = make_node(&mut rig, d, "more", 0);
    assert!(rig.ask_as(Role::Client, BOB, &more).is_ok(), "no client is asked");
    assert_eq!(
        rig.ask_as(Role::Client, BOB, &third).unwrap().delegation_ms,
        0,
        "a client that did not create the directory never has them"
    );
}

#[test]
fn a_holder_that_is_silent_is_waited_out() {
    let (mut rig, d, inos) = rig();
    rig.tick(1_000);
    let file = new_file(&mut rig, d, "f", inos.first);
    assert_eq!(rig.ask(&file).unwrap().delegation_ms, LEASE_MS, "from now on");
    rig.tick(1_000);
    let session_id = rig.open_write(d, "g", &[]).unwrap().session_id;
    let commit = rig.replacing(session_id, b"g").unwrap();
    assert_eq!(rig.ask(&commit).unwrap().delegation_ms, LEASE_MS, "in two steps, too");
    let waiting = make_node(&mut rig, d, "bobs", 0);
    let id = rig.send(Role::Client, BOB, &waiting);
    rig.settle();
    let call = rig.calls.pop_front().expect("a recall");
    rig.answer(call.token, Err(Error::new(Code::Unavailable, "gone")));
    rig.tick(LEASE_MS as i64 - 100);
    assert!(!rig.replies.contains_key(&id));
    rig.tick(200);
    assert!(rig.replies[&id].is_ok());
}

#[test]
fn a_restarted_manager_knows_of_no_names_and_waits() {
    let (rig, d, _) = rig();
    let mut rig = rig.restart();
    let waiting = make_node(&mut rig, d, "bobs", 0);
    let id = rig.send(Role::Client, BOB, &waiting);
    rig.settle();
    assert!(!rig.replies.contains_key(&id), "somebody may have them from the manager before");
    rig.tick(3_100);
    assert!(rig.replies[&id].is_ok());
}

/// A client that creates a file in an existing directory and asks for it gets the delegation and all names.
#[test]
fn the_names_of_a_directory_that_is_there_can_be_had() {
    let (mut rig, d, _) = rig();
    let wants =
        |rig: &mut Rig, name: &str| MakeNode { want_delegation: true, inos: INOS, ..make_node(rig, d, name, 0) };
    // BOB waits for ALICE and then gets the delegation; then the reverse.
    let there = make_node(&mut rig, d, "there", 0);
    rig.ask(&there).unwrap();
    let asks = wants(&mut rig, "bob");
    let entry = Entry::decode(recalls(&mut rig, d, &asks).unwrap()).unwrap();
    let sorted = |entry: &Entry| {
        let mut names: Vec<_> = entry.names.iter().map(|n| String::from_utf8(n.clone()).unwrap()).collect();
        names.sort();
        names
    };
    assert_eq!(
        (entry.delegation_ms, entry.inos.unwrap().count, sorted(&entry)),
        (LEASE_MS, INOS, vec!["bob".into(), "there".into()])
    );
    // The same once more: nothing of what may be different by now.
    let id = rig.send(Role::Client, BOB, &asks);
    rig.settle();
    let again = Entry::decode(rig.replies.remove(&id).unwrap().unwrap()).unwrap();
    assert_eq!((again.delegation_ms, again.names, again.inos), (0, Vec::new(), entry.inos));
    let makes = make_node(&mut rig, d, "alice", 0);
    let id = rig.send(Role::Client, ALICE, &makes);
    rig.settle();
    assert!(!rig.replies.contains_key(&id), "they are BOB's");
    let call = rig.calls.pop_front().expect("a recall");
    rig.answer(call.token, Ok(Bytes::from(Ack {}.encode_to_vec())));
    rig.settle();
    assert!(rig.replies[&id].is_ok());
    // The root is a directory like any other, whatever it is called.
    for parent in [0, 1] {
        let asks = MakeNode { want_delegation: true, ..make_node(&mut rig, parent, &format!("in {parent}"), 0) };
        let entry = rig.ask(&asks).unwrap();
        assert!(entry.delegation_ms == LEASE_MS && entry.names.len() == 3 + parent as usize, "{entry:?}");
        assert_eq!(entry.inos, None, "none were wanted");
    }
    rig.audit();
}

/// No delegation while other clients create names there, or if there are too many names.
#[test]
fn names_are_not_had_where_more_are_on_their_way_or_there_are_too_many() {
    let (mut rig, _, _) = rig();
    let asks = |rig: &mut Rig, name: &str| MakeNode { want_delegation: true, ..make_node(rig, 1, name, 0) };
    // Two in one group commit: what comes first might list the directory without the second.
    let (one, two) = (asks(&mut rig, "one"), asks(&mut rig, "two"));
    let sent = [rig.send(Role::Client, ALICE, &one), rig.send(Role::Client, ALICE, &two)];
    rig.settle();
    let [one, two] = sent.map(|id| Entry::decode(rig.replies.remove(&id).unwrap().unwrap()).unwrap());
    assert_eq!((one.delegation_ms, one.names.len()), (0, 0));
    assert!(
        two.delegation_ms == LEASE_MS && two.names.contains(&b"one".to_vec()) && two.names.contains(&b"two".to_vec())
    );
    let mut rig = rig.restart_with(Config { max_list_entries: 5, ..config() });
    rig.tick(3_100);
    let third = asks(&mut rig, "three");
    assert_eq!(rig.ask(&third).unwrap().names.len(), 5, "as many as may be");
    let fourth = asks(&mut rig, "four");
    let entry = rig.ask(&fourth).unwrap();
    assert_eq!((entry.delegation_ms, entry.names.len()), (0, 0), "one more");
    rig.audit();
}
