//! Batches that find no room on the manager's disk, and what happens before the first batch of a manager.

use crate::core::{Action, Event, ManagerCore};
use crate::rig::*;
use prost::Message;
use tessera_wire::meta::*;
use tessera_wire::{Code, Error, Request, Role};

const ALICE: u64 = 71;
const BOB: u64 = 72;

/// More than fits into a database that may grow by one page.
fn big(op_id: u64) -> SetXattr {
    SetXattr { op_id, ino: 1, name: "user.big".into(), value: vec![7; 60_000], ..Default::default() }
}

fn fill(core: &ManagerCore) {
    let pages: i64 = core.db().conn().query_row("PRAGMA page_count", [], |row| row.get(0)).unwrap();
    core.db().conn().pragma_update(None, "max_page_count", pages + 1).unwrap();
}

fn make_room(core: &ManagerCore) {
    core.db().conn().pragma_update(None, "max_page_count", 1 << 30).unwrap();
}

fn sessions(core: &ManagerCore) -> i64 {
    core.db().conn().query_row("SELECT count(*) FROM sessions", [], |row| row.get(0)).unwrap()
}

/// P5: the row of a reader that found no room is not written once the reader has closed: nobody would remove it.
#[test]
fn a_reader_that_closes_before_its_row_found_room_leaves_none() {
    let mut rig = Rig::new(4);
    rig.put(1, "f", b"a").unwrap();
    let (session_id, other) = (rig.read(1, "f").unwrap().session_id, rig.read(1, "f").unwrap().session_id);
    fill(&rig.core);
    let op_id = rig.op();
    let refused = rig.send(Role::Client, BOB, &big(op_id));
    rig.tick(1_100);
    assert_eq!(rig.replies[&refused].as_ref().unwrap_err().code(), Code::NoSpace);
    make_room(&rig.core);
    assert_eq!(sessions(&rig.core), 0, "the rows found no room");
    rig.ask(&CloseSession { session_id, ..Default::default() }).unwrap();
    rig.tick(1_100);
    rig.tick(100);
    assert_eq!(sessions(&rig.core), 1, "that of the other reader is written later");
    rig.ask(&CloseSession { session_id: other, ..Default::default() }).unwrap();
    let op_id = rig.op();
    rig.ask(&Unlink { op_id, parent: 1, name: "f".into(), directory: false }).unwrap();
    (0..20).for_each(|_| rig.tick(100));
    assert_eq!(rig.core.meta().files, 0);
    assert_eq!(sessions(&rig.core), 0);
    let entries = rig.log.len();
    (0..20).for_each(|_| rig.tick(100));
    assert_eq!(rig.log.len(), entries, "nothing is left to do");
}

/// What the manager proposes of its own does not become more with each batch that finds no room.
#[test]
fn what_found_no_room_does_not_add_up() {
    let mut rig = Rig::new(4);
    rig.put(1, "f", b"a").unwrap();
    let (op_id, value) = (rig.op(), b"purge:1s".to_vec());
    let name = "user.tessera.lifetime".into();
    rig.ask(&SetXattr { op_id, ino: 2, name, value, ..Default::default() }).unwrap();
    fill(&rig.core);
    let waiting = |rig: &Rig| rig.core.metrics().gauges.iter().find(|gauge| gauge.0 == "requests_waiting").unwrap().1;
    for _ in 0..30 {
        let op_id = rig.op();
        rig.send(Role::Client, BOB, &big(op_id));
        rig.tick(1_100);
        assert!(waiting(&rig) < 5, "{} wait", waiting(&rig));
    }
    make_room(&rig.core);
    (0..3).for_each(|_| rig.tick(1_100));
    assert_eq!(rig.core.meta().files, 0, "the file is purged in the end");
}

fn next_term(rig: Rig) -> (ManagerCore, i64) {
    let now_ns = rig.now_ns;
    let db = rig.core.into_db();
    let term = db.meta().unwrap().term + 1;
    (ManagerCore::lead(db, config(), now_ns, now_ns, term).unwrap(), now_ns)
}

fn send<R: Request>(core: &mut ManagerCore, now_ns: i64, client_id: u64, request_id: u64, request: &R) {
    let (connection, role, kind, body) = (client_id, Role::Client, R::KIND, request.encode_to_vec().into());
    core.handle(now_ns, Event::Request { connection, role, client_id, request_id, kind, body });
}

fn ask<R: Request>(core: &mut ManagerCore, now_ns: i64, client_id: u64, request: &R) -> Result<R::Reply, Error> {
    const ID: u64 = 9_999;
    send(core, now_ns, client_id, ID, request);
    let actions = std::iter::from_fn(|| core.poll());
    let answer = |action| match action {
        Action::Reply { request_id: ID, result, .. } => Some(result),
        _ => None,
    };
    let answers: Vec<_> = actions.filter_map(answer).collect();
    answers[0].clone().map(|body| R::Reply::decode(body).unwrap())
}

/// P2: readers of two managers have different sessions, also before the second one's first batch is committed.
#[test]
fn a_new_leader_gives_no_reader_the_session_of_another() {
    for finds_room in [true, false] {
        let mut rig = Rig::new(4);
        rig.put(1, "f", b"a").unwrap();
        rig.put(1, "g", b"b").unwrap();
        let of_f = rig.read(1, "f").unwrap();
        let (mut core, now_ns) = next_term(rig);
        if !finds_room {
            fill(&core);
            send(&mut core, now_ns, BOB, 1, &big(77));
            assert!(core.commit_batch(now_ns).is_none() && core.stopped().is_none());
        }
        let open = OpenRead { parent: 1, name: "g".into(), len_bytes: 1, ..Default::default() };
        let of_g = ask(&mut core, now_ns, BOB, &open).unwrap();
        let more = ListExtents { session_id: of_f.session_id, offset: 0, len_bytes: 100, known_map_version: 0 };
        let more = ask(&mut core, now_ns, ALICE, &more);
        assert_eq!(more.unwrap_err().code(), Code::SessionExpired, "ALICE reads on in `f`, and opens it again");
        assert_ne!(of_f.session_id, of_g.session_id);
        make_room(&core);
        core.commit_batch(now_ns + 1_000_000_000);
        assert_eq!(core.meta().term, core.term(), "its first batch says that it leads");
    }
}

#[test]
fn a_new_leader_opens_a_reader_beside_one_on_record() {
    let mut rig = Rig::new(4);
    rig.put(1, "f", b"a").unwrap();
    rig.put(1, "g", b"b").unwrap();
    rig.read(1, "f").unwrap();
    rig.tick(1_100);
    assert_eq!(sessions(&rig.core), 1);
    let (mut core, now_ns) = next_term(rig);
    let open = OpenRead { parent: 1, name: "g".into(), len_bytes: 1, ..Default::default() };
    ask(&mut core, now_ns, BOB, &open).unwrap();
    assert_eq!(core.soft.sessions.len(), 2);
}
