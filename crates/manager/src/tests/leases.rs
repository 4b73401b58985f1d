//! Leases: the manager recalls a client's lease before the cached state changes.

use crate::coherence::leases::LeaseTarget;
use crate::core::Event;
use crate::log::lease_effects;
use crate::rig::*;
use bytes::Bytes;
use prost::Message;
use tessera_net::End;
use tessera_wire::meta::*;
use tessera_wire::rpc::Peer;
use tessera_wire::{Ack, Code, Error, InodeKind, Kind, Role};

/// A third client.
const CAROL: u64 = 0xca401;

fn lookup(rig: &mut Rig, client: u64) -> Entry {
    let request = Lookup { parent: 1, name: b"f".to_vec(), want_lease: true, ahead: 0 };
    rig.ask_as(Role::Client, client, &request).unwrap()
}

/// A rig with a file `f` that grants leases.
fn rig() -> Rig {
    let mut rig = Rig::new(4);
    rig.put(1, "f", b"a").unwrap();
    assert_eq!(lookup(&mut rig, ALICE).lease_ms, 0, "that leases exist is noted first");
    assert_eq!(lookup(&mut rig, ALICE).lease_ms, LEASE_MS);
    rig
}

fn chmod(rig: &mut Rig, client: u64, ino: u64) -> u64 {
    let request = SetAttr { op_id: rig.op(), ino, mode: Some(0o600), ..Default::default() };
    let id = rig.send(Role::Client, client, &request);
    rig.settle();
    id
}

#[test]
pub(super) fn a_change_waits_for_the_holders_answer() {
    let mut rig = rig();
    let ino = lookup(&mut rig, ALICE).attr.unwrap().ino;
    let id = chmod(&mut rig, BOB, ino);
    assert!(!rig.replies.contains_key(&id), "applied before the holder was asked");
    let recall = rig.calls.pop_front().expect("a recall");
    assert_eq!((recall.peer.clone(), recall.kind), (Peer::Connection(ALICE), Kind::RecallLease));
    assert_eq!(RecallLease::decode(recall.body).unwrap().inos, [ino]);
    assert_eq!(lookup(&mut rig, ALICE).lease_ms, 0, "about to change: no new lease");
    rig.answer(recall.token, Ok(Bytes::from(Ack {}.encode_to_vec())));
    rig.settle();
    assert!(rig.replies[&id].is_ok());
    assert_eq!(lookup(&mut rig, ALICE).lease_ms, LEASE_MS);
}

/// Each of the names that follow one has a lease of its own.
#[test]
fn what_is_looked_up_ahead_is_recalled_like_what_was_asked_for() {
    let mut rig = rig();
    for name in ["e", "g", "h", "i"] {
        rig.put(1, name, b"a").unwrap();
    }
    let look_up = |rig: &mut Rig, ahead| {
        let request = Lookup { parent: 1, name: b"f".to_vec(), want_lease: true, ahead };
        let entry: Entry = rig.ask_as(Role::Client, ALICE, &request).unwrap();
        let named = |named: NamedEntry| (String::from_utf8(named.name).unwrap(), named.entry.unwrap());
        entry.ahead.into_iter().map(named).collect::<Vec<(String, Entry)>>()
    };
    let names = |found: &[(String, Entry)]| found.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
    assert_eq!(names(&look_up(&mut rig, 2)), ["g", "h"]);
    let all = look_up(&mut rig, u32::MAX);
    assert_eq!(names(&all), ["g", "h", "i"]);
    assert!(all.iter().all(|(_, entry)| entry.lease_ms == LEASE_MS));
    let ino = all[1].1.attr.as_ref().unwrap().ino;
    let id = chmod(&mut rig, BOB, ino);
    assert!(!rig.replies.contains_key(&id), "applied before the holder was asked");
    let leases_ms: Vec<u64> = look_up(&mut rig, 9).iter().map(|(_, entry)| entry.lease_ms).collect();
    assert_eq!(leases_ms, [LEASE_MS, 0, LEASE_MS], "about to change: no new lease");
    let recall = rig.calls.pop_front().expect("a recall");
    assert_eq!(RecallLease::decode(recall.body).unwrap().inos, [ino]);
    rig.answer(recall.token, Ok(Bytes::from(Ack {}.encode_to_vec())));
    rig.settle();
    assert!(rig.replies[&id].is_ok());
    assert_eq!(look_up(&mut rig, 9)[1].1.attr.as_ref().unwrap().mode, 0o600);
}

#[test]
fn a_file_that_was_described_is_recalled_like_one_that_was_looked_up() {
    let mut rig = rig();
    rig.put(1, "g", b"a").unwrap();
    rig.mkdir(1, "directory");
    let describe = |rig: &mut Rig, want_leases| {
        let open = |name: &str| OpenRead { parent: 1, name: name.into(), ..OpenRead::default() };
        let files = ["f", "directory", "absent", "g"].map(open).to_vec();
        let request = DescribeReads { files, want_leases, ..DescribeReads::default() };
        let reply: DescribeReadsReply = rig.ask_as(Role::Client, ALICE, &request).unwrap();
        reply.files
    };
    let leases_ms = |files: &[OpenReadReply]| files.iter().map(|file| file.lease_ms).collect::<Vec<_>>();
    let ino = describe(&mut rig, false)[3].attr.as_ref().unwrap().ino;
    let id = chmod(&mut rig, BOB, ino);
    assert!(rig.replies[&id].is_ok(), "nobody asked for a lease");
    assert_eq!(leases_ms(&describe(&mut rig, true)), [LEASE_MS, 0, 0, LEASE_MS]);
    let id = chmod(&mut rig, BOB, ino);
    assert!(!rig.replies.contains_key(&id), "applied before the holder was asked");
    assert_eq!(leases_ms(&describe(&mut rig, true)), [LEASE_MS, 0, 0, 0], "about to change: no new lease");
    let recall = rig.calls.pop_front().expect("a recall");
    assert_eq!(RecallLease::decode(recall.body).unwrap().inos, [ino]);
    rig.answer(recall.token, Ok(Bytes::from(Ack {}.encode_to_vec())));
    rig.settle();
    assert!(rig.replies[&id].is_ok());
}

/// While a rename waits for a lease on the inode it moves, its target becomes the name of a new file that CAROL caches.
#[test]
pub(super) fn a_command_that_waited_recalls_what_its_names_stand_for_by_then() {
    let mut rig = rig();
    let (from_name, to_name) = (b"f".to_vec(), b"g".to_vec());
    let op_id = rig.op();
    let rename =
        Rename { op_id, from_parent: 1, from_name, to_parent: 1, to_name: to_name.clone(), ..Default::default() };
    let id = rig.send(Role::Client, BOB, &rename);
    rig.settle();
    let first = rig.calls.pop_front().expect("ALICE's lease is recalled");
    let node = MakeNode {
        op_id: rig.op(),
        parent: 1,
        name: to_name,
        kind: InodeKind::File as i32,
        mode: 0o644,
        want_lease: true,
        ..Default::default()
    };
    let made = rig.ask_as(Role::Client, CAROL, &node).unwrap();
    assert_eq!(made.lease_ms, LEASE_MS);
    rig.answer(first.token, Ok(Bytes::new()));
    rig.settle();
    assert!(!rig.replies.contains_key(&id), "CAROL's cache would be wrong");
    let second = rig.calls.pop_front().expect("CAROL's lease is recalled");
    assert_eq!(second.peer, Peer::Connection(CAROL));
    assert_eq!(RecallLease::decode(second.body).unwrap().inos, [made.attr.unwrap().ino]);
    rig.answer(second.token, Ok(Bytes::new()));
    rig.settle();
    assert!(rig.replies[&id].is_ok());
}

#[test]
fn a_holder_that_is_silent_is_waited_out() {
    let mut rig = rig();
    let ino = lookup(&mut rig, ALICE).attr.unwrap().ino;
    let id = chmod(&mut rig, BOB, ino);
    let token = rig.calls.pop_front().unwrap().token;
    rig.answer(token, Err(Error::new(Code::Unavailable, "gone")));
    rig.settle();
    assert!(!rig.replies.contains_key(&id), "a client that cannot be reached may still use its cache");
    rig.tick(LEASE_MS as i64 - 100);
    assert!(!rig.replies.contains_key(&id));
    rig.tick(200);
    assert!(rig.replies[&id].is_ok());
}

/// P7: a client that closed its connection has dropped its cache; a client that was cut off may still use it.
#[test]
fn only_an_orderly_end_of_the_connection_gives_its_leases_back() {
    for end in [End::ByPeer, End::Reset, End::Broken] {
        let mut rig = rig();
        let ino = lookup(&mut rig, ALICE).attr.unwrap().ino;
        let waits = chmod(&mut rig, BOB, ino);
        rig.core.handle(rig.now_ns, Event::ConnectionClosed { connection: ALICE, end, client_gone: 0 });
        rig.settle();
        let by_peer = end == End::ByPeer;
        assert_eq!(rig.replies.contains_key(&waits), by_peer, "a change that waited");
        let next = chmod(&mut rig, BOB, ino);
        assert_eq!(rig.replies.contains_key(&next), by_peer, "a later one");
        assert_eq!(rig.core.soft.leases.is_empty(), by_peer);
    }
}

#[test]
fn ones_own_lease_is_no_obstacle() {
    let mut rig = rig();
    let ino = lookup(&mut rig, ALICE).attr.unwrap().ino;
    let id = chmod(&mut rig, ALICE, ino);
    assert!(rig.replies[&id].is_ok());
}

#[test]
fn a_restarted_manager_waits_as_long_as_leases_last() {
    let mut rig = rig().restart();
    let ino = lookup(&mut rig, ALICE).attr.unwrap().ino;
    let id = chmod(&mut rig, ALICE, ino);
    assert!(!rig.replies.contains_key(&id), "somebody may hold a lease of the manager before");
    rig.tick(3_100);
    assert!(rig.replies[&id].is_ok());
}

#[test]
fn commits_unlinks_and_renames_recall_too() {
    let mut rig = rig();
    let session = rig.open_write(1, "f", &[]).unwrap().session_id;
    let commit = rig.replacing(session, b"b").unwrap();
    let op_id = rig.op();
    let rename = Rename {
        op_id,
        from_parent: 1,
        from_name: b"f".to_vec(),
        to_parent: 1,
        to_name: b"g".to_vec(),
        no_replace: false,
        exchange: false,
    };
    let op_id = rig.op();
    let unlink = Unlink { op_id, parent: 1, name: b"f".to_vec(), directory: false };
    let mut recalls = |kind: Kind, body: Vec<u8>| {
        assert_eq!(lookup(&mut rig, ALICE).lease_ms, LEASE_MS);
        let id = rig.send_raw(Role::Client, BOB, kind, body.into());
        rig.settle();
        assert!(!rig.replies.contains_key(&id), "{}", kind.name());
        let token = rig.calls.pop_front().expect("a recall").token;
        rig.answer(token, Ok(Bytes::new()));
        rig.settle();
        assert!(rig.replies[&id].is_ok(), "{}", kind.name());
    };
    recalls(Kind::Commit, commit.encode_to_vec());
    recalls(Kind::Rename, rename.encode_to_vec());
    rig.put(1, "f", b"c").unwrap();
    let mut recalls = |kind: Kind, body: Vec<u8>| {
        assert_eq!(lookup(&mut rig, ALICE).lease_ms, LEASE_MS);
        let id = rig.send_raw(Role::Client, BOB, kind, body.into());
        rig.settle();
        assert!(!rig.replies.contains_key(&id));
    };
    recalls(Kind::Unlink, unlink.encode_to_vec());
}

/// A lease on a listing is recalled before a name goes, and not before one comes.
#[test]
fn a_listing_is_recalled_before_another_client_takes_a_name() {
    let mut rig = rig();
    rig.put(1, "x", b"c").unwrap();
    let op_id = rig.op();
    let made = rig.ask(&MakeDir { op_id, parent: 1, name: b"d".to_vec(), ..MakeDir::default() }).unwrap();
    let other = made.attr.unwrap().ino;
    let list = |rig: &mut Rig, ino: u64| {
        let id = rig.send(Role::Client, ALICE, &List { ino, want_lease: true, ..List::default() });
        rig.settle();
        ListReply::decode(rig.replies.remove(&id).expect("answered").unwrap()).unwrap()
    };
    let recalls = |rig: &mut Rig, listed: u64, (from_parent, to_parent): (u64, u64)| {
        assert_eq!(list(rig, listed).lease_ms, LEASE_MS);
        let (op_id, name) = (rig.op(), b"x".to_vec());
        let rename =
            Rename { op_id, from_parent, from_name: name.clone(), to_parent, to_name: name, ..Rename::default() };
        let id = rig.send(Role::Client, BOB, &rename);
        rig.settle();
        assert!(!rig.replies.contains_key(&id), "ALICE has listed {listed}");
        assert_eq!(list(rig, listed).lease_ms, 0, "a name is about to change");
        let call = rig.calls.pop_front().expect("a recall");
        assert_eq!(RecallLease::decode(call.body.clone()).unwrap().inos, [listed]);
        rig.answer(call.token, Ok(Bytes::new()));
        rig.settle();
        assert!(rig.replies[&id].is_ok());
    };
    recalls(&mut rig, 1, (1, other));
    recalls(&mut rig, 1, (other, 1));
    recalls(&mut rig, other, (1, other));
    recalls(&mut rig, other, (other, 1));
    assert_eq!(list(&mut rig, 1).entries.len(), 3);
    let (op_id, kind) = (rig.op(), InodeKind::File as i32);
    let new = MakeNode { op_id, parent: 1, name: b"new".to_vec(), kind, ..MakeNode::default() };
    rig.ask_as(Role::Client, BOB, &new).unwrap();
    let ino =
        rig.ask_as(Role::Client, BOB, &Lookup { parent: 1, name: b"x".to_vec(), want_lease: false, ahead: 0 }).unwrap();
    let ino = ino.attr.unwrap().ino;
    let waits = |rig: &mut Rig, what: &str, id: u64| {
        rig.settle();
        assert!(!rig.replies.contains_key(&id), "{what}");
        let call = rig.calls.pop_front().expect("a recall");
        assert_eq!(RecallLease::decode(call.body.clone()).unwrap().inos, [1], "{what}");
        rig.answer(call.token, Ok(Bytes::new()));
        rig.settle();
        assert!(rig.replies[&id].is_ok(), "{what}");
        assert_eq!(list(rig, 1).lease_ms, LEASE_MS);
    };
    let session = rig.open_write(1, "x", &[]).unwrap().session_id;
    let commit = rig.replacing(session, b"b").unwrap();
    let id = rig.send(Role::Client, BOB, &commit);
    waits(&mut rig, "a version", id);
    let id = chmod(&mut rig, BOB, ino);
    waits(&mut rig, "a mode", id);
    let op_id = rig.op();
    let id = rig.send(Role::Client, BOB, &Link { op_id, ino, parent: other, name: b"y".to_vec() });
    waits(&mut rig, "a link elsewhere", id);
    let op_id = rig.op();
    let id = rig.send(Role::Client, BOB, &Unlink { op_id, parent: other, name: b"y".to_vec(), directory: false });
    waits(&mut rig, "its end", id);
    let (op_id, name) = (rig.op(), b"x".to_vec());
    let id = rig.send(Role::Client, BOB, &Unlink { op_id, parent: 1, name, directory: false });
    waits(&mut rig, "its last name", id);
}

/// Each of its names counts.
#[test]
fn a_removal_of_many_names_recalls_the_lease_on_each() {
    let mut rig = rig();
    rig.put(1, "f", b"c").unwrap();
    assert_eq!(lookup(&mut rig, ALICE).lease_ms, LEASE_MS);
    let names = [&b"absent"[..], b"f"].map(<[u8]>::to_vec).into();
    let request = RemoveNames { op_id: rig.op(), parent: 1, names, within: None };
    let id = rig.send(Role::Client, BOB, &request);
    rig.settle();
    assert!(!rig.replies.contains_key(&id), "ALICE may still show it");
    let token = rig.calls.pop_front().expect("a recall").token;
    rig.answer(token, Ok(Bytes::new()));
    rig.settle();
    let reply = RemoveNamesReply::decode(rig.replies[&id].clone().unwrap()).unwrap();
    assert_eq!(reply.refused.iter().map(|r| r.index).collect::<Vec<_>>(), [0]);
}

/// The reply to a create or change carries a lease on request. It is recalled like any other; a repeated request gets none.
#[test]
fn answers_to_changes_carry_leases() {
    let mut rig = rig();
    let ino = lookup(&mut rig, BOB).attr.unwrap().ino;
    rig.calls.clear();
    let set = SetAttr { op_id: rig.op(), ino, mode: Some(0o640), want_lease: true, ..Default::default() };
    let id = rig.send(Role::Client, ALICE, &set);
    rig.settle();
    let token = rig.calls.pop_front().expect("BOB's is recalled").token;
    rig.answer(token, Ok(Bytes::from(Ack {}.encode_to_vec())));
    rig.settle();
    let answer = Entry::decode(rig.replies[&id].clone().unwrap()).unwrap();
    assert_eq!((answer.lease_ms, answer.attr.unwrap().mode), (LEASE_MS, 0o640));
    assert_eq!(rig.ask(&set).unwrap().lease_ms, 0, "the same again");
    let change = |rig: &mut Rig| {
        let id = chmod(rig, BOB, ino);
        let recall = rig.calls.pop_front().expect("a recall");
        assert_eq!(RecallLease::decode(recall.body).unwrap().inos, [ino]);
        rig.answer(recall.token, Ok(Bytes::from(Ack {}.encode_to_vec())));
        rig.settle();
        assert!(rig.replies[&id].is_ok());
    };
    change(&mut rig);
    let session_id = rig.open_write(1, "f", &[]).unwrap().session_id;
    let commit = Commit { want_lease: true, ..rig.replacing(session_id, b"bc").unwrap() };
    let reply = rig.ask(&commit).unwrap();
    let entry = reply.entry.unwrap();
    let attr = entry.attr.unwrap();
    assert_eq!((entry.lease_ms, attr.size_bytes, attr.version), (LEASE_MS, 200, reply.version));
    assert_eq!(rig.ask(&commit).unwrap().entry.unwrap().lease_ms, 0, "the same again");
    change(&mut rig);
    let node =
        MakeNode { op_id: rig.op(), parent: 1, name: b"n".to_vec(), kind: 1, want_lease: true, ..Default::default() };
    assert_eq!(rig.ask(&node).unwrap().lease_ms, LEASE_MS);
    let session_id = rig.open_write(1, "f", &[]).unwrap().session_id;
    let unasked = rig.replacing(session_id, b"d").unwrap();
    assert_eq!(rig.ask(&unasked).unwrap().entry, None);
}

/// P7: the answer to a repeated request shows attributes of when it was first applied.
#[test]
pub(super) fn a_repeated_answer_grants_no_lease() {
    let mut rig = rig();
    let session = rig.open_write(1, "f", &[]).unwrap().session_id;
    let commit = Commit { want_lease: true, ..rig.replacing(session, b"b").unwrap() };
    let ino = lookup(&mut rig, BOB).attr.unwrap().ino;
    let first = rig.send(Role::Client, ALICE, &commit);
    let between = chmod(&mut rig, ALICE, ino);
    let again = rig.send(Role::Client, ALICE, &commit);
    rig.settle();
    assert!([first, between, again].iter().all(|id| !rig.replies.contains_key(id)), "all wait for the holders");
    for recall in std::mem::take(&mut rig.calls) {
        rig.answer(recall.token, Ok(Bytes::from(Ack {}.encode_to_vec())));
    }
    rig.settle();
    assert!(rig.replies[&between].is_ok());
    for id in [first, again] {
        let reply = CommitReply::decode(rig.replies[&id].clone().unwrap()).unwrap();
        assert_eq!(reply.entry.map_or(0, |entry| entry.lease_ms), 0, "the file changed once more in the same batch");
    }
}

/// P7: clients cache what they listed of a file with so many names.
#[test]
fn every_listing_that_shows_an_inode_is_recalled() {
    let mut rig = rig();
    let ino = lookup(&mut rig, ALICE).attr.unwrap().ino;
    // That lease ends.
    rig.tick(2 * LEASE_MS as i64);
    let mut last = 0;
    for at in 1..MAX_LISTINGS_RECALLED {
        let op_id = rig.op();
        let made = rig.ask(&MakeDir { op_id, parent: 1, name: format!("d{at}").into(), ..MakeDir::default() }).unwrap();
        last = made.attr.unwrap().ino;
        let op_id = rig.op();
        rig.ask_as(Role::Client, CAROL, &Link { op_id, ino, parent: last, name: b"l".to_vec() }).unwrap();
    }
    rig.calls.clear();
    let list = List { ino: last, want_lease: true, ..List::default() };
    assert_eq!(rig.ask_as(Role::Client, ALICE, &list).unwrap().lease_ms, LEASE_MS);
    let id = chmod(&mut rig, BOB, ino);
    assert!(!rig.replies.contains_key(&id), "ALICE may show the old mode");
}

/// Files that expire together are mostly of one directory. What is recalled is compared with what was recalled before.
#[test]
fn files_that_expire_together_change_their_listing_once() {
    let mut rig = rig();
    let other = rig.mkdir(1, "other");
    let inos: Vec<u64> = (0..8).map(|at| rig.put(1, &format!("e{at}"), b"c").unwrap().ino).collect();
    let op_id = rig.op();
    rig.ask(&Link { op_id, ino: inos[0], parent: other, name: b"l".to_vec() }).unwrap();
    let changes = lease_effects::expired(rig.core.db(), &inos).unwrap();
    let listings: Vec<_> = changes.iter().filter(|what| matches!(what, LeaseTarget::Listing(_))).collect();
    assert_eq!(listings.len(), 2, "{listings:?}");
    assert!([1, other].iter().all(|of| listings.contains(&&LeaseTarget::Listing(*of))));
    assert_eq!(changes.len(), 2 + 2 * inos.len());
}

/// P7: an answer to a recall gives back the lease that was recalled, not one that the holder got since. Two commands wait for one lease; the holder
/// forgets at once what it cached, and its second answer waits for its kernel.
#[test]
pub(super) fn a_late_answer_to_a_recall_gives_back_no_later_lease() {
    let mut rig = rig();
    let ino = lookup(&mut rig, ALICE).attr.unwrap().ino;
    let (first, second) = (chmod(&mut rig, BOB, ino), chmod(&mut rig, CAROL, ino));
    let tokens: Vec<u64> = rig.calls.drain(..).map(|call| call.token).collect();
    assert_eq!(tokens.len(), 2, "both recalls have reached ALICE");
    rig.answer(tokens[0], Ok(Bytes::new()));
    rig.settle();
    assert!(rig.replies[&first].is_ok() && rig.replies[&second].is_ok());
    assert_eq!(lookup(&mut rig, ALICE).lease_ms, LEASE_MS, "asked for after both recalls");
    rig.answer(tokens[1], Ok(Bytes::new()));
    rig.settle();
    let third = chmod(&mut rig, BOB, ino);
    assert!(
        !rig.replies.contains_key(&third),
        "ALICE caches the mode of before under her lease, and nobody recalled that"
    );
}

/// As above, with one recall: the lease ended before the answer.
#[test]
fn an_answer_after_the_end_of_a_lease_gives_back_no_later_one() {
    let mut rig = rig();
    let ino = lookup(&mut rig, ALICE).attr.unwrap().ino;
    rig.tick(LEASE_MS as i64 - 500);
    let first = chmod(&mut rig, BOB, ino);
    let token = rig.calls.pop_front().expect("a recall").token;
    rig.tick(600);
    assert!(rig.replies[&first].is_ok(), "the lease is over");
    assert_eq!(lookup(&mut rig, ALICE).lease_ms, LEASE_MS);
    // A mount answers when its kernel has forgotten the names, up to 1.05 s after the recall.
    rig.tick(300);
    rig.answer(token, Ok(Bytes::new()));
    rig.settle();
    let second = chmod(&mut rig, BOB, ino);
    assert!(
        !rig.replies.contains_key(&second),
        "ALICE caches the mode of before under her lease, and nobody recalled that"
    );
}

/// P7: as above, for the delegation of a directory, whose recall is answered when deferred creates are settled.
#[test]
pub(super) fn a_late_answer_gives_back_no_later_delegation() {
    let mut rig = rig();
    let node = |rig: &mut Rig, client: u64, name: &str, want_delegation: bool| {
        let (op_id, kind) = (rig.op(), InodeKind::File as i32);
        let node =
            MakeNode { op_id, parent: 1, name: name.into(), kind, mode: 0o644, want_delegation, ..Default::default() };
        let id = rig.send(Role::Client, client, &node);
        rig.settle();
        id
    };
    let delegation = |rig: &mut Rig, id: u64| Entry::decode(rig.replies[&id].clone().unwrap()).unwrap().delegation_ms;
    let own = node(&mut rig, ALICE, "own", true);
    assert!(delegation(&mut rig, own) > 0);
    let (b, c) = (node(&mut rig, BOB, "b", false), node(&mut rig, CAROL, "c", false));
    let tokens: Vec<u64> = rig.calls.drain(..).map(|call| call.token).collect();
    assert_eq!(tokens.len(), 2);
    rig.answer(tokens[0], Ok(Bytes::new()));
    rig.settle();
    assert!(rig.replies[&b].is_ok() && rig.replies[&c].is_ok());
    let again = node(&mut rig, ALICE, "again", true);
    assert!(delegation(&mut rig, again) > 0);
    rig.answer(tokens[1], Ok(Bytes::new()));
    rig.settle();
    let late = node(&mut rig, BOB, "late", false);
    assert!(!rig.replies.contains_key(&late), "ALICE says that this name does not exist");
}

/// What the manager proposes once is proposed again if its batch found no room.
#[test]
fn leases_are_granted_although_their_first_record_found_no_room() {
    let mut rig = Rig::new(4);
    rig.put(1, "f", b"a").unwrap();
    let pages: i64 = rig.core.db().conn().query_row("PRAGMA page_count", [], |row| row.get(0)).unwrap();
    rig.core.db().conn().pragma_update(None, "max_page_count", pages + 1).unwrap();
    let (op_id, value) = (rig.op(), vec![7; 60_000]);
    let big = SetXattr { op_id, ino: 1, name: "user.big".into(), value, ..Default::default() };
    let refused = rig.send(Role::Client, BOB, &big);
    assert_eq!(lookup(&mut rig, ALICE).lease_ms, 0);
    assert_eq!(rig.replies[&refused].as_ref().unwrap_err().code(), Code::NoSpace);
    rig.core.db().conn().pragma_update(None, "max_page_count", 1 << 30).unwrap();
    rig.tick(1_100);
    // Whoever asks has it proposed again.
    assert_eq!(lookup(&mut rig, ALICE).lease_ms, 0);
    rig.tick(100);
    assert_eq!(lookup(&mut rig, ALICE).lease_ms, LEASE_MS);
}
