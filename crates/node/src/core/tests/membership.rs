//! Joining, heartbeats, leases, rejoining (P8, P11).

use super::*;

#[test]
fn a_node_registers_then_beats() {
    let mut script = Script::new();
    assert_eq!(script.tick(0), ["call Manager RegisterNode"]);
    assert_eq!(script.tick(10), NOTHING, "one at a time");
    let register: RegisterNode = script.sent(Kind::RegisterNode);
    assert_eq!(register.disks.iter().map(|d| d.uuid[0]).collect::<Vec<_>>(), [1, 2]);
    let lines = script.answer(Kind::RegisterNode, Ok(welcome(1)));
    assert_eq!(lines, ["keep term 1", "disks are [101, 102]", "call Manager Heartbeat"]);
    let first: Heartbeat = script.sent(Kind::Heartbeat);
    assert_eq!((first.node_id, first.incarnation, first.number), (9, 1, 1));
    assert_eq!(first.disks.iter().map(|d| d.disk_id).collect::<Vec<_>>(), [101, 102]);
    assert_eq!(script.answer(Kind::Heartbeat, Ok(beat())), NOTHING);
    assert_eq!(script.core.next_deadline_ns(), (script.now_ms + 200) * MS);
    assert_eq!(script.tick(199), NOTHING);
    assert_eq!(script.tick(1), ["call Manager Heartbeat"]);
}

/// P8: while an attempt may have arrived, the next one carries the same op id. Waits grow within bounds.
#[test]
fn registration_is_tried_again_under_the_same_number() {
    let mut script = Script::new();
    script.tick(0);
    let first: RegisterNode = script.sent(Kind::RegisterNode);
    let mut waits = Vec::new();
    for _ in 0..10 {
        assert_eq!(script.answer::<RegisterNodeReply>(Kind::RegisterNode, lost(Code::Timeout)), NOTHING);
        let wait_ns = script.core.next_deadline_ns() - script.now_ms * MS;
        waits.push(wait_ns / MS);
        assert_eq!(script.tick(wait_ns / MS), ["call Manager RegisterNode"]);
        assert_eq!(script.sent::<RegisterNode>(Kind::RegisterNode).op_id, first.op_id);
    }
    assert!(waits[0] < 200 && waits[9] >= 5_000 && waits[9] <= 5_100, "{waits:?}");
    // The manager would repeat a final refusal for the same op id, so the next attempt uses a new one.
    script.answer::<RegisterNodeReply>(Kind::RegisterNode, lost(Code::Internal));
    script.tick(6_000);
    assert_ne!(script.sent::<RegisterNode>(Kind::RegisterNode).op_id, first.op_id);
}

#[test]
fn another_cluster_is_fatal() {
    let mut script = Script::new();
    script.tick(0);
    let other = RegisterNodeReply { cluster_id: vec![8; 16], ..welcome(1) };
    assert_eq!(script.answer(Kind::RegisterNode, Ok(other)), ["fatal: WrongCluster"]);
    let mut script = Script::new();
    script.tick(0);
    let lines = script.answer::<RegisterNodeReply>(Kind::RegisterNode, lost(Code::WrongCluster));
    assert_eq!(lines, ["fatal: WrongCluster"]);
}

/// P14: an impossible answer is rejected.
#[test]
fn a_senseless_welcome_is_refused() {
    for reply in [RegisterNodeReply { disk_ids: vec![1], ..welcome(1) }, welcome(0)] {
        let mut script = Script::new();
        script.tick(0);
        assert_eq!(script.answer(Kind::RegisterNode, Ok(reply)), NOTHING);
        assert_eq!(script.tick(1_000), ["call Manager RegisterNode"]);
    }
}

/// P11: the lease counts from when the answered heartbeat was sent, not from when the answer came.
#[test]
fn the_lease_runs_from_the_sending() {
    let mut script = Script::joined();
    // Sent at 1,000; answered at 1,900.
    script.now_ms = 1_900;
    script.answer(Kind::Heartbeat, Ok(beat()));
    assert_eq!(script.put(1, 1, &[(7, 0, 101)]), ["disk 0 append 7.0 of session 3"]);
    script.now_ms = 1_999;
    assert_eq!(script.disk(stored(1)), ["reply 1: ok in incarnation 1"]);
    script.now_ms = 2_000;
    assert_eq!(script.put(2, 1, &[(7, 1, 101)]), ["reply 2: Unavailable"]);
}

/// P11: a put that was stored while the lease ran out is not acknowledged, nor is a later one. Reads need no core.
#[test]
fn nothing_is_acknowledged_after_the_lease() {
    let mut script = Script::joined();
    assert_eq!(script.put(1, 1, &[(7, 0, 101)]), ["disk 0 append 7.0 of session 3"]);
    script.now_ms = 2_000;
    assert_eq!(script.disk(stored(1)), ["reply 1: Unavailable"]);
    // The heartbeat of 1,000 ms is answered now: its lease is already over.
    script.answer(Kind::Heartbeat, Ok(beat()));
    assert_eq!(script.put(2, 1, &[(7, 0, 101)]), ["reply 2: Unavailable"]);
    script.tick(0);
    script.answer(Kind::Heartbeat, Ok(beat()));
    assert_eq!(script.put(3, 1, &[(7, 0, 101)]), ["disk 0 append 7.0 of session 3"]);
    assert_eq!(script.disk(stored(1)), ["reply 3: ok in incarnation 1"]);
}

/// Setting a clock back does not extend the lease of a heartbeat sent before.
#[test]
fn time_does_not_run_backwards() {
    let mut script = Script::served(beat());
    script.now_ms = 1_999;
    script.tick(0);
    script.now_ms = 500;
    script.answer(Kind::Heartbeat, Ok(beat()));
    script.now_ms = 2_998;
    assert_eq!(script.put(1, 1, &[(7, 0, 101)])[..1], ["disk 0 append 7.0 of session 3"]);
    script.now_ms = 2_999;
    assert_eq!(script.disk(stored(1)), ["reply 1: Unavailable"]);
}

#[test]
fn before_registration_nothing_is_stored() {
    let mut script = Script::new();
    script.tick(0);
    assert_eq!(script.put(1, 1, &[(7, 0, 101)]), ["reply 1: Unavailable"]);
}

/// A lost heartbeat is repeated soon, then less often, with the same report. The answer removes the reported items.
#[test]
fn reports_are_repeated_until_answered() {
    let mut script = Script::served(HeartbeatReply { deletes: vec![of(7, 0, 101)], ..beat() });
    script.disk(Ok(DiskReply::Deleted));
    script.happen(Event::FoundBad(of(8, 1, 102)));
    assert_eq!(script.tick(50), ["call Manager Heartbeat"], "news goes out early");
    for wait_ms in [100, 200, 200] {
        let sent: Heartbeat = script.sent(Kind::Heartbeat);
        assert_eq!((sent.deleted, sent.bad), (vec![of(7, 0, 101)], vec![of(8, 1, 102)]));
        assert_eq!(script.answer::<HeartbeatReply>(Kind::Heartbeat, lost(Code::Unavailable)), NOTHING);
        assert_eq!(script.tick(wait_ms - 1), NOTHING);
        assert_eq!(script.tick(1), ["call Manager Heartbeat"]);
    }
    // Found while the heartbeat is in progress: its answer does not remove this item.
    script.happen(Event::FoundBad(of(9, 0, 101)));
    script.answer(Kind::Heartbeat, Ok(beat()));
    script.tick(200);
    let sent: Heartbeat = script.sent(Kind::Heartbeat);
    assert_eq!((sent.deleted, sent.bad), (vec![], vec![of(9, 0, 101)]));
}

/// P11: a node declared out acknowledges nothing, drops its tasks, and returns with a new incarnation and op id.
#[test]
fn a_node_that_was_given_up_rejoins() {
    let verify = VerifyTask { fragments: vec![of(7, 0, 101)] };
    let task = Task { task_id: 4, verify: Some(verify), ..Task::default() };
    let mut script = Script::joined();
    let before: u64 = script.core.membership.incarnation;
    script.put(1, 1, &[(7, 0, 101)]);
    script.answer(Kind::Heartbeat, Ok(HeartbeatReply { tasks: vec![task], ..beat() }));
    script.tick(200);
    assert_eq!(script.sent::<Heartbeat>(Kind::Heartbeat).running_tasks, [4]);
    let lines = script.answer(Kind::Heartbeat, Ok(HeartbeatReply { must_register: true, ..beat() }));
    assert_eq!(lines, ["call Manager RegisterNode"]);
    assert_eq!(script.put(2, 1, &[(7, 0, 101)]), ["reply 2: Fenced"]);
    script.answer(Kind::RegisterNode, Ok(welcome(before + 1)));
    assert_eq!(script.disk(stored(1)), ["reply 1: Unavailable"], "stored in another incarnation");
    assert_eq!(script.put(3, 1, &[(7, 0, 101)]), ["disk 0 append 7.0 of session 3"]);
    script.ops.remove(0); // the verification of the dropped task
    assert_eq!(script.disk(stored(1)), ["reply 3: ok in incarnation 2"]);
    let sent: Heartbeat = script.sent(Kind::Heartbeat);
    assert_eq!((sent.incarnation, sent.number, sent.running_tasks), (2, 1, vec![]));
}

/// P11: an answer to a heartbeat of an earlier incarnation gives no lease.
#[test]
fn a_late_answer_of_an_earlier_life_is_nothing() {
    let mut script = Script::joined();
    let (_, old, _) = script.calls.remove(0);
    // The transport answers each call once. Here the manager's own answer arrives late, after a refusal by another
    // route.
    script
        .core
        .handle(script.now_ms * MS, Event::Answer(Answer { token: old, result: Err(Error::new(Code::Fenced, "out")) }));
    while script.core.poll().is_some() {}
    let late = Answer { token: old, result: Ok((beat().encode_to_vec().into(), Default::default())) };
    assert_eq!(script.happen(Event::Answer(late)), NOTHING);
    assert_eq!(script.put(1, 1, &[(7, 0, 101)]), ["reply 1: Fenced"]);
}

/// P3, P11: a manager whose metadata went backwards cannot delete, hand out tasks, or give a lease.
#[test]
fn a_manager_that_went_backwards_is_refused() {
    for (term, log_seq) in [(1, 9), (0, 99)] {
        let mut script = Script::served(beat());
        script.tick(900);
        let reply = HeartbeatReply {
            term,
            log_seq,
            deletes: vec![of(7, 0, 101)],
            tasks: vec![Task { task_id: 1, scrub: Some(ScrubTask { disk_id: 101 }), ..Task::default() }],
            ..beat()
        };
        assert_eq!(script.answer(Kind::Heartbeat, Ok(reply)), NOTHING);
        script.now_ms = 2_000;
        assert_eq!(script.put(1, 1, &[(7, 0, 101)]), ["reply 1: Unavailable"]);
        assert_eq!(script.core.counters.manager_went_backwards, 1);
    }
}

/// A manager with a higher term and a shorter log was restored: it is accepted, and its term is stored durably before
/// its deletes run.
#[test]
fn a_newer_term_is_believed() {
    let mut script = Script::joined();
    let reply = HeartbeatReply { term: 2, log_seq: 3, deletes: vec![of(7, 0, 101)], ..beat() };
    assert_eq!(script.answer(Kind::Heartbeat, Ok(reply)), ["keep term 2", "disk 0 delete 7.0"]);
    assert_eq!(script.happen(Event::ManagerSeen { term: 2 }), NOTHING);
    assert_eq!(script.happen(Event::ManagerSeen { term: 3 }), ["keep term 3"]);
    script.tick(200);
    script.answer(Kind::Heartbeat, Ok(HeartbeatReply { term: 2, log_seq: 4, deletes: vec![of(8, 0, 101)], ..beat() }));
    assert_eq!(script.ops.len(), 1, "the superseded manager's delete is refused");
}

/// Reordered answers are not a step backwards: each is compared with what was known when its request was sent.
#[test]
fn answers_may_overtake_each_other() {
    let inventory = Task { task_id: 1, inventory: Some(InventoryTask { disk_id: 101 }), ..Task::default() };
    let mut script = Script::served(HeartbeatReply { tasks: vec![inventory], ..beat() });
    script.disk(Ok(DiskReply::Listed { held: vec![FragmentKey { chunk_id: 7, fragment: 0 }], last: true }));
    script.tick(200);
    script.answer(Kind::Heartbeat, Ok(HeartbeatReply { log_seq: 50, ..beat() }));
    let reply = InventoryReply { remove: vec![of(7, 0, 0)], term: 1, log_seq: 49 };
    assert_eq!(script.answer(Kind::Inventory, Ok(reply)), ["disk 0 delete 7.0"]);
    assert_eq!(script.core.counters.manager_went_backwards, 0);
}

/// A node stops if another node has its place. Its own previous incarnation, which ended a moment ago, is not another
/// node.
#[test]
fn a_living_rival_is_fatal_and_ones_own_past_is_not() {
    let refused = |heard_ns: u64| -> Result<RegisterNodeReply, Error> {
        let mut error = Error::new(Code::Exists, "is alive");
        error.current = heard_ns;
        Err(error)
    };
    let mut script = Script::new();
    let attempt = |script: &mut Script, heard_ns: u64| {
        while !script.tick(100).contains(&"call Manager RegisterNode".to_string()) {}
        script.answer(Kind::RegisterNode, refused(heard_ns))
    };
    for heard_ns in [100, 100, 200, 200, 0] {
        assert_eq!(attempt(&mut script, heard_ns), NOTHING, "one heartbeat was on its way");
    }
    assert_eq!(attempt(&mut script, 300), NOTHING);
    assert_eq!(attempt(&mut script, 300), NOTHING);
    assert_eq!(attempt(&mut script, 400), ["fatal: Exists"]);
}
