//! Puts and the fences that refuse them; failing disks (P11, P14).

use super::*;

fn pg(epoch: u64, since_epoch: u64) -> PgInfo {
    let member = |disk_id, since_epoch| PgMember { disk_id, since_epoch, ..PgMember::default() };
    PgInfo { pg_id: 5, epoch, members: vec![member(101, 1), member(102, since_epoch), member(201, 1)] }
}

fn knowing(pg: PgInfo) -> Script {
    Script::served(HeartbeatReply { pgs: vec![pg], ..beat() })
}

/// P11: a put under an epoch before the member's last change, or for another disk, is refused with the current epoch.
#[test]
fn old_epochs_are_refused() {
    let mut script = knowing(pg(6, 4));
    let lines = script.put(1, 3, &[(7, 0, 101), (7, 1, 102), (7, 2, 101), (7, 3, 101)]);
    assert_eq!(lines, ["disk 0 append 7.0 of session 3"]);
    assert_eq!(script.disk(stored(1)), ["reply 1: ok in incarnation 1, StaleEpoch, StaleEpoch, StaleEpoch"]);
    // Epochs since the member's change, and epochs newer than the node knows, are accepted.
    for (request, epoch) in [(2, 4), (3, 6), (4, 7)] {
        assert_eq!(script.put(request, epoch, &[(7, 1, 102)]), ["disk 1 append 7.1 of session 3"]);
        assert_eq!(script.disk(stored(1)), [format!("reply {request}: ok in incarnation 1")]);
    }
}

/// P11: if the epoch changes while the disk writes, the put is not acknowledged.
#[test]
fn epochs_fence_at_the_acknowledgement_too() {
    let mut script = knowing(pg(3, 1));
    script.put(1, 3, &[(7, 1, 102), (7, 0, 101)]);
    script.tick(200);
    script.answer(Kind::Heartbeat, Ok(HeartbeatReply { pgs: vec![pg(4, 4)], ..beat() }));
    assert_eq!(script.disk(stored(1)), NOTHING);
    assert_eq!(script.disk(stored(1)), ["reply 1: StaleEpoch, ok in incarnation 1"]);
    // An older description of the group changes nothing.
    script.tick(200);
    script.answer(Kind::Heartbeat, Ok(HeartbeatReply { pgs: vec![pg(3, 1)], ..beat() }));
    assert_eq!(script.put(2, 3, &[(7, 1, 102)]), ["reply 2: StaleEpoch"]);
}

/// New fragments of a lost member go to the incoming disk and nowhere else.
#[test]
fn the_incoming_disk_takes_puts() {
    let mut group = pg(3, 3);
    group.members[1] = PgMember { disk_id: 201, incoming_disk_id: 102, since_epoch: 3, put_to_incoming: true };
    let mut script = knowing(group);
    assert_eq!(script.put(1, 3, &[(7, 1, 102)]), ["disk 1 append 7.1 of session 3"]);
}

#[test]
fn disks_and_lengths_that_cannot_be() {
    let class = class(4, 2);
    let map = ClusterMap { classes: vec![class], ..ClusterMap::default() };
    let mut script = Script::served(HeartbeatReply { map: Some(map), ..beat() });
    // Fragment 0 of a chunk of 10 bytes has 10 bytes, fragment 1 none.
    let lines = script.put(1, 1, &[(7, 0, 101), (7, 1, 101), (7, 6, 101), (8, 0, 999)]);
    assert_eq!(lines, ["disk 0 append 7.0 of session 3"]);
    assert_eq!(script.disk(stored(1)), ["reply 1: ok in incarnation 1, Invalid, Invalid, NotFound"]);
}

/// P2: a copy or slice that is sent as parity, or as another part of its chunk, would not be checked against the chunk's name.
#[test]
fn a_put_that_says_something_else_than_its_class() {
    let classes = vec![class(4, 2)];
    let mut script =
        Script::served(HeartbeatReply { map: Some(ClusterMap { classes, ..ClusterMap::default() }), ..beat() });
    assert_eq!(script.put_at(1, 1, &[(7, 0, 101)], None), ["reply 1: Invalid"]);
    assert_eq!(script.put_at(2, 1, &[(7, 0, 101)], Some(5)), ["reply 2: Invalid"]);
    assert_eq!(script.put_at(3, 1, &[(7, 4, 101)], Some(0)), ["reply 3: Invalid"]);
    assert_eq!(script.put_at(4, 1, &[(7, 0, 101)], Some(0)), ["disk 0 append 7.0 of session 3"]);
}

/// Fragments for two disks are written in parallel; the reply is in their order once both disks have answered.
#[test]
fn a_put_to_two_disks() {
    let mut script = Script::served(beat());
    let lines = script.put(1, 1, &[(7, 0, 101), (7, 1, 102), (8, 0, 101)]);
    assert_eq!(lines, ["disk 0 append 7.0 8.0 of session 3", "disk 1 append 7.1 of session 3"]);
    let full = Error::new(Code::NoSpace, "full");
    assert_eq!(script.disk(Ok(DiskReply::Appended(vec![Ok(()), Err(full)]))), NOTHING);
    assert_eq!(script.disk(Err(fault(false))), ["reply 1: ok in incarnation 1, Io, NoSpace"]);
    assert_eq!(script.core.counters.fragments_stored, 1);
}

#[test]
fn too_much_that_waits_is_told_to_come_later() {
    let mut script = Script::with(NodeConfig { max_waiting_put_bytes: 25, scrub_every_s: 0, ..NodeConfig::default() });
    script.join();
    script.put(1, 1, &[(7, 0, 101), (7, 1, 101)]);
    assert_eq!(script.put(2, 1, &[(8, 0, 101)]), ["reply 2: Unavailable"]);
    script.disk(stored(2));
    assert_eq!(script.put(3, 1, &[(8, 0, 101)]), ["disk 0 append 8.0 of session 3"]);
}

/// After a failed sync the disk takes no more writes and is reported as failed; the other disk continues.
#[test]
fn a_poisoned_disk_is_reported_and_left_alone() {
    let mut script = Script::served(beat());
    script.core.tell(Vec::new(), 77);
    script.put(1, 1, &[(7, 0, 101)]);
    assert_eq!(script.disk(Err(fault(true))), ["reply 1: Io"]);
    assert_eq!(script.tick(50), ["call Manager Heartbeat"], "at once");
    let sent = script.sent::<Heartbeat>(Kind::Heartbeat);
    assert_eq!(sent.failed_disks, [101]);
    assert_eq!(sent.voter_id, 0, "its log is on that disk");
    assert_eq!(script.put(2, 1, &[(8, 0, 101)]), ["reply 2: Io"]);
    assert_eq!(script.put(3, 1, &[(8, 0, 102)]), ["disk 1 append 8.0 of session 3"]);
    script.answer(Kind::Heartbeat, Ok(HeartbeatReply { deletes: vec![of(7, 0, 101)], ..beat() }));
    assert_eq!(script.ops.len(), 1, "no delete for a dead disk");
    // When the node rejoins, it does not offer that disk.
    script.tick(200);
    script.answer(Kind::Heartbeat, Ok(HeartbeatReply { must_register: true, ..beat() }));
    let register: RegisterNode = script.sent(Kind::RegisterNode);
    assert_eq!(register.disks.iter().map(|d| d.disk_id).collect::<Vec<_>>(), [102]);
}

/// A disk that nobody writes to is noticed, too, when its directory is gone: every heartbeat asks the disks for their space.
#[test]
fn an_idle_disk_that_is_gone_is_reported() {
    let mut script = Script::served(beat());
    script.gone = Some(1);
    assert_eq!(script.tick(200), ["call Manager Heartbeat"]);
    assert_eq!(script.sent::<Heartbeat>(Kind::Heartbeat).failed_disks, [] as [u64; 0]);
    script.answer(Kind::Heartbeat, Ok(beat()));
    assert_eq!(script.tick(50), ["call Manager Heartbeat"], "at once");
    assert_eq!(script.sent::<Heartbeat>(Kind::Heartbeat).failed_disks, [102]);
    assert_eq!(script.put(1, 1, &[(7, 0, 102)]), ["reply 1: Io"]);
    assert_eq!(script.put(2, 1, &[(7, 0, 101)]), ["disk 0 append 7.0 of session 3"]);
}

/// A disk that vanished fails every write without any sync: after a few failures the node gives it up. A disk that is
/// merely full is not given up.
#[test]
fn a_disk_that_only_fails_is_given_up() {
    let failed = |script: &Script| script.core.metrics().disks.into_iter().filter(|d| !d.2.is_empty()).count();
    let mut script = Script::served(beat());
    let full = DiskFault { error: Error::new(Code::NoSpace, "full"), poisoned: false };
    let results = [Err(full.clone()), Err(full.clone()), Err(full), Err(fault(false)), stored(1), Err(fault(false))];
    for result in results.into_iter().chain([Err(fault(false))]) {
        script.put(1, 1, &[(7, 0, 101)]);
        script.disk(result);
        assert_eq!(failed(&script), 0);
    }
    script.put(1, 1, &[(7, 0, 101)]);
    script.disk(Err(fault(false)));
    assert_eq!(failed(&script), 1);
}

/// An operation that never ends is a failure. A long pause of the process is not.
#[test]
fn a_stuck_disk_is_found_out() {
    let mut script = Script::served(beat());
    script.put(1, 1, &[(7, 0, 101)]);
    script.begin_ops();
    script.tick(3_600_000);
    assert_eq!(
        script.core.metrics().disks.into_iter().filter(|d| !d.2.is_empty()).count(),
        0,
        "we slept, the disk did not fail"
    );
    for _ in 0..30 {
        script.tick(1_000);
    }
    let failed: Vec<String> =
        script.core.metrics().disks.into_iter().filter(|d| !d.2.is_empty()).map(|d| d.0).collect();
    assert_eq!(failed, ["d1"]);
}

/// A disk with a long queue is slow, not stuck: what it has not begun does not count.
#[test]
fn operations_that_wait_for_their_disk_do_not_condemn_it() {
    let failed = |script: &Script| script.core.metrics().disks.into_iter().filter(|d| !d.2.is_empty()).count();
    let mut script = Script::served(beat());
    script.put(1, 1, &[(7, 0, 101)]);
    for _ in 0..60 {
        script.tick(1_000);
    }
    assert_eq!(failed(&script), 0);
    script.begin_ops();
    for _ in 0..31 {
        script.tick(1_000);
    }
    assert_eq!(failed(&script), 1);
}
