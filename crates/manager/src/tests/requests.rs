//! Single requests: their effects and refusals.

use crate::core::reading::KnownCounts;
use crate::core::{Action, Event};
use crate::rig::*;
use prost::Message;
use tessera_net::End;
use tessera_wire::meta::*;
use tessera_wire::{Code, Hint, Role};

#[test]
fn a_file_is_written_and_read() {
    let mut rig = Rig::new(4);
    let dir = rig.mkdir(1, "d");
    let written = rig.put(dir, "f", b"aab").unwrap();
    assert_eq!((written.number, written.superseded), (1, 0));
    let read = rig.read(dir, "f").unwrap();
    let extents = read.extents.unwrap();
    assert_eq!(extents.extents.len(), 3);
    assert_eq!((extents.next_offset, extents.chunks.len(), extents.classes.len()), (300, 2, 1));
    assert_eq!(extents.map.unwrap().nodes.len(), 4);
    assert_eq!(read.attr.unwrap().size_bytes, 300);
    // The same again: every chunk is durable and none is new.
    let session = rig.open_write(dir, "g", &[]).unwrap().session_id;
    let again = rig.allocate(session, &[chunk(b'a'), chunk(b'c')]).unwrap().answers;
    assert_eq!(again[0].state, ChunkState::Durable as i32);
    assert_eq!(again[1].state, ChunkState::New as i32);
    rig.audit();
}

#[test]
fn an_unknown_chunk_is_refused_and_nothing_changes() {
    let mut rig = Rig::new(4);
    let session = rig.open_write(1, "f", &[]).unwrap().session_id;
    let mut commit = rig.replacing(session, b"a").unwrap();
    commit.extents[0].chunk_id = 999;
    let before = rig.dump(&["ops", "meta"]);
    assert_eq!(rig.ask(&commit).unwrap_err().code(), Code::Invalid);
    assert_eq!(rig.dump(&["ops", "meta"]), before);
}

/// P7: the reply to a long read shows the state of the term in which it was asked for, or nothing.
#[test]
fn p7_a_long_read_of_an_earlier_term_is_refused() {
    let mut rig = Rig::new(4);
    let ask = |rig: &mut Rig| {
        let id = rig.send(Role::Client, ALICE, &List { ino: 1, ..Default::default() });
        let job = std::iter::from_fn(|| rig.core.poll()).find_map(|action| match action {
            Action::Read(job) => Some(job),
            _ => None,
        });
        let done = job.unwrap().run(rig.core.db(), rig.core.config(), &mut KnownCounts::default());
        (id, done)
    };
    let (id, done) = ask(&mut rig);
    rig.core.handle(rig.now_ns, Event::Read(done));
    rig.drain();
    assert!(rig.replies[&id].is_ok());
    let (id, done) = ask(&mut rig);
    let mut rig = rig.restart();
    rig.core.handle(rig.now_ns, Event::Read(done));
    rig.drain();
    assert_eq!(rig.replies[&id].as_ref().unwrap_err().code(), Code::Unavailable);
}

fn reserved(rig: &Rig) -> u64 {
    rig.core.soft.sessions.reserved_bytes()
}

/// A client that is gone holds no reservation; a client that was only cut off reserves again when it returns.
#[test]
fn what_a_client_reserved_is_free_when_its_last_connection_ends() {
    const WANTED: u64 = 600 << 20;
    let mut rig = Rig::new(4);
    let open = |rig: &mut Rig, client: u64, name: &str| {
        let request =
            OpenWrite { op_id: rig.op(), parent: 1, name: name.into(), size_hint_bytes: WANTED, ..Default::default() };
        rig.send(Role::Client, client, &request)
    };
    let id = open(&mut rig, ALICE, "f");
    rig.settle();
    let session_id = OpenWriteReply::decode(rig.replies[&id].clone().unwrap()).unwrap().session_id;
    open(&mut rig, BOB, "g");
    rig.settle();
    assert_eq!(reserved(&rig), 2 * WANTED);
    let closed = |client_gone| Event::ConnectionClosed { connection: ALICE, end: End::Broken, client_gone };
    rig.core.handle(rig.now_ns, closed(0));
    assert_eq!(reserved(&rig), 2 * WANTED, "it has another connection");
    // A session that it asked for last is opened when it is gone already.
    open(&mut rig, ALICE, "h");
    rig.core.handle(rig.now_ns, closed(ALICE));
    assert_eq!(reserved(&rig), WANTED, "Bob's");
    rig.settle();
    rig.tick(100);
    assert_eq!(reserved(&rig), WANTED);
    assert_eq!(rig.core.soft.sessions.len(), 3, "they may come back");
    rig.ask(&RenewSession { session_id, reserve_bytes: WANTED }).unwrap();
    rig.tick(100);
    assert_eq!(reserved(&rig), 2 * WANTED);
}

const MIB: u64 = 1 << 20;

/// Chunks of 4 MiB, named after a byte each.
fn large(bytes: std::ops::Range<u8>) -> Vec<ChunkName> {
    bytes.map(|c| ChunkName { hash: vec![c; 32].into(), len_bytes: 4 * MIB, region: 0 }).collect()
}

/// Data is refused for lack of room only if it is new and other clients have reserved the free space: before the client
/// names its chunks, the manager does not know how much is stored already.
#[test]
fn reservations_hold_space_for_new_chunks_and_refuse_no_others() {
    let mut rig = Rig::new(0);
    (1..=4).for_each(|node| rig.register_disk_of(node, 64 * MIB));
    // 4 disks of 63 MiB for data, two thirds of it before coding.
    let space = 4 * 63 * MIB * 2 / 3;
    let open = |rig: &mut Rig, client: u64, size_hint_bytes: u64, hints: Vec<Hint>| {
        let op_id = rig.op();
        let name = format!("f{op_id}").into_bytes();
        let request = OpenWrite { op_id, parent: 1, name, size_hint_bytes, hints, ..Default::default() };
        rig.ask_as(Role::Client, client, &request).map(|reply| reply.session_id)
    };
    let alice = open(&mut rig, ALICE, 120 * MIB, vec![]).unwrap();
    assert_eq!(reserved(&rig), 120 * MIB);
    // A request for more than the free space reserves all of it, because the data may be stored already.
    let bob = open(&mut rig, BOB, 1000 * MIB, vec![]).unwrap();
    assert_eq!(reserved(&rig), space);
    let off = Hint { name: "dedup".into(), value: "off".into() };
    let refusal = open(&mut rig, BOB, 1000 * MIB, vec![off]).unwrap_err();
    assert_eq!(refusal.code(), Code::NoSpace, "surely too much");
    for words in ["1000 MiB", "reserved 168 MiB", "tessera gc"] {
        assert!(refusal.message.contains(words), "{words:?}: {refusal}");
    }
    rig.allocate(bob, &large(0..12)).unwrap();
    assert_eq!(reserved(&rig), 120 * MIB, "what was asked for needs no reservation");
    assert_eq!(rig.allocate(bob, &large(12..13)).unwrap_err().code(), Code::NoSpace);
    assert_eq!(rig.allocate(bob, &large(0..12)).unwrap().answers.len(), 12, "known ones need no space");
    // A stream's reservation is a guess: it gets a part of what is left, here nothing.
    assert_eq!(rig.ask(&RenewSession { session_id: bob, reserve_bytes: 64 * MIB }).unwrap().reserved_bytes, 0);
    rig.allocate(alice, &large(100..105)).unwrap();
    assert_eq!(reserved(&rig), 100 * MIB);
    rig.ask(&RenewSession { session_id: alice, reserve_bytes: 20 * MIB }).unwrap();
    assert_eq!(reserved(&rig), 20 * MIB, "it needs no more");
    let stream = open(&mut rig, BOB, 0, vec![]).unwrap();
    let reply = rig.ask(&RenewSession { session_id: stream, reserve_bytes: 64 * MIB }).unwrap();
    assert_eq!(reply.reserved_bytes, (space - 48 * MIB - 20 * MIB - 20 * MIB) / 4);
    rig.allocate(bob, &large(12..13)).unwrap();
}

/// A file of mode 0 keeps it; a client that sends no mode gets the default.
#[test]
fn a_new_file_has_the_mode_it_was_given_be_it_none() {
    let mut rig = Rig::new(4);
    for (name, file_mode, mode) in [("a", Some(0), 0), ("b", None, 0o644), ("c", Some(0o400), 0o400)] {
        let session = rig.open_write(1, name, &[]).unwrap().session_id;
        let commit = Commit { file_mode, ..rig.replacing(session, b"a").unwrap() };
        rig.ask(&commit).unwrap();
        assert_eq!(rig.read(1, name).unwrap().attr.unwrap().mode & 0o7777, mode, "{name}");
    }
}
