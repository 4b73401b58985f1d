//! Deletes, rebuilds, verification, inventories, scrubbing, compaction.

use super::*;
use tessera_net::BufferPool;
use tessera_wire::data::{GetFragments, GetFragmentsReply};

fn serving(task: Task) -> Script {
    Script::served(HeartbeatReply { tasks: vec![task], ..beat() })
}

/// Everything that heartbeats report from now on. The last heartbeat stays unanswered.
fn results(script: &mut Script) -> Vec<TaskResult> {
    let waiting = |script: &Script| script.calls.iter().any(|(kind, ..)| *kind == Kind::Heartbeat);
    let mut all = Vec::new();
    if waiting(script) {
        all.extend(script.sent::<Heartbeat>(Kind::Heartbeat).results);
        script.answer(Kind::Heartbeat, Ok(beat()));
    }
    if !waiting(script) {
        script.tick(200);
    }
    all.extend(script.sent::<Heartbeat>(Kind::Heartbeat).results);
    all
}

/// The manager repeats a delete until it is reported; the node carries it out once.
#[test]
fn deletes_are_done_once_and_reported() {
    let deletes = vec![of(7, 0, 101), of(7, 1, 102), of(7, 0, 999)];
    let mut script = Script::joined();
    let reply = HeartbeatReply { deletes: deletes.clone(), ..beat() };
    assert_eq!(script.answer(Kind::Heartbeat, Ok(reply.clone())), ["disk 0 delete 7.0", "disk 1 delete 7.1"]);
    script.tick(200);
    assert_eq!(script.answer(Kind::Heartbeat, Ok(reply.clone())), NOTHING, "under way");
    script.disk(Ok(DiskReply::Deleted));
    script.disk(Err(fault(false)));
    script.tick(200);
    assert_eq!(script.sent::<Heartbeat>(Kind::Heartbeat).deleted, [of(7, 0, 101)]);
    let lines = script.answer(Kind::Heartbeat, Ok(reply));
    assert!(lines.contains(&"disk 1 delete 7.1".to_string()), "what failed is tried again: {lines:?}");
}

/// Nodes 20.. serve disks 201..; the task asks for fragment 1 of ec:4+2 on the local disk 102.
fn rebuild_task(chunk: &[u8], task_id: u64) -> (Task, ClusterMap) {
    let node = |i: u64| NodeInfo { node_id: 20 + i, health: Health::Up as i32, ..NodeInfo::default() };
    let disk =
        |i: u64| DiskInfo { disk_id: 200 + i, node_id: 20 + i, health: Health::Up as i32, ..DiskInfo::default() };
    let mut members: Vec<PgMember> = (0..6).map(|i| PgMember { disk_id: 200 + i, ..PgMember::default() }).collect();
    members[1] = PgMember { disk_id: 201, incoming_disk_id: 102, since_epoch: 4, put_to_incoming: true };
    let chunk = ChunkInfo {
        chunk_id: 77,
        hash: tessera_accel::hash::chunk_hash(chunk).0.to_vec().into(),
        len_bytes: chunk.len() as u64,
        class_id: 1,
        pg_id: 5,
        missing: vec![1],
    };
    let rebuild = RebuildTask {
        pg: Some(PgInfo { pg_id: 5, epoch: 4, members }),
        fragment: 1,
        disk_id: 102,
        class: Some(class(4, 2)),
        chunks: vec![chunk],
        domain: 0,
        prove: false,
        hurry: false,
    };
    let map = ClusterMap {
        version: 3,
        nodes: (0..6).map(node).collect(),
        disks: (0..6).map(disk).collect(),
        ..ClusterMap::default()
    };
    (Task { task_id, rebuild: Some(rebuild), ..Task::default() }, map)
}

fn fetched(script: &mut Script, source: &tessera_stripe::Fragment) -> Vec<String> {
    let result = tessera_wire::data::GetResult {
        len_bytes: source.bytes.len() as u32,
        fragment_len_bytes: source.bytes.len() as u32,
        crc32c: source.crc32c,
        ..Default::default()
    };
    let reply = GetFragmentsReply { results: vec![result] };
    script.answer_with(Kind::GetFragments, Ok(reply), source.bytes.to_vec())
}

/// A whole rebuild, with one unreachable source and one that lies.
#[test]
fn a_rebuild_from_end_to_end() {
    let chunk = bytes(1, 100_000);
    let all = fragments(&class(4, 2), &chunk);
    let (task, map) = rebuild_task(&chunk, 1);
    let mut script = Script::joined();
    let lines = script.answer(Kind::Heartbeat, Ok(HeartbeatReply { tasks: vec![task], map: Some(map), ..beat() }));
    assert_eq!(lines, ["disk 1 verify 77.1"], "perhaps it is at home");
    let lines = script.disk(Ok(DiskReply::Verified(vec![Verdict::Missing])));
    assert_eq!(lines.len(), 4, "k sources at once: {lines:?}");
    let asked: Vec<u32> = script
        .calls
        .iter()
        .filter(|(kind, ..)| *kind == Kind::GetFragments)
        .map(|(_, _, body)| GetFragments::decode(&body[..]).unwrap().items[0].fragment)
        .collect();
    let other = (0..6).find(|f| *f != 1 && !asked.contains(f)).unwrap();
    // The first is unreachable: the remaining one is asked instead.
    let lines = script.answer::<GetFragmentsReply>(Kind::GetFragments, lost(Code::Unavailable));
    assert_eq!(lines, [format!("call Node({}) GetFragments", 20 + other)]);
    // The second returns a wrong fragment, with a checksum that reveals it.
    let mut wrong = all[asked[1] as usize].clone();
    let mut spoilt = wrong.bytes.to_vec();
    spoilt[9] ^= 1;
    wrong.bytes = spoilt.into();
    assert_eq!(fetched(&mut script, &wrong), NOTHING);
    for fragment in [asked[2], asked[3], other] {
        fetched(&mut script, &all[fragment as usize]);
    }
    let (op_id, job) = script.jobs.remove(0);
    let lines = script.happen(Event::Computed { op_id, result: job.run(&BufferPool::new(0)) });
    // Of six fragments one is lost, one unreachable, one wrong; the three left are too few. The disk that was given up
    // is the last resort; it has not returned.
    assert_eq!(lines, ["call Node(21) GetFragments"]);
    let lines = script.answer::<GetFragmentsReply>(Kind::GetFragments, lost(Code::Unavailable));
    // No other source is left: the wrong fragment is tried too, as a reader would.
    assert_eq!(
        lines,
        [format!("compute 1 from {:?}", script.jobs[0].1.sources.iter().map(|it| it.number).collect::<Vec<_>>())]
    );
    let (op_id, job) = script.jobs.remove(0);
    assert!(job.search && job.sources.len() == 4);
    let lines = script.happen(Event::Computed { op_id, result: job.run(&BufferPool::new(0)) });
    assert_eq!(lines[..1], ["call Manager ReportBad"]);
    let reported: ReportBad = script.sent(Kind::ReportBad);
    assert_eq!(reported.fragments[0].fragment, asked[1]);
    let result = results(&mut script).remove(0);
    assert!(result.finished && result.done.is_empty(), "{result:?}");
    assert!(result.reason.contains("3 of the 4"), "{}", result.reason);

    // The task is handed out again, and all sources answer correctly.
    let (task, _) = rebuild_task(&chunk, 2);
    script.answer(Kind::Heartbeat, Ok(HeartbeatReply { tasks: vec![task], ..beat() }));
    script.disk(Ok(DiskReply::Verified(vec![Verdict::Bad("rot".into())])));
    while let Some((_, _, body)) = script.calls.iter().find(|(kind, ..)| *kind == Kind::GetFragments) {
        let wanted = GetFragments::decode(&body[..]).unwrap().items[0].fragment;
        fetched(&mut script, &all[wanted as usize]);
    }
    let (op_id, job) = script.jobs.remove(0);
    let lines = script.happen(Event::Computed { op_id, result: job.run(&BufferPool::new(0)) });
    assert_eq!(lines, ["disk 1 append 77.1 of session 0"]);
    let Some((_, DiskOp::Append { items, .. })) = script.ops.first() else { panic!("an append") };
    assert_eq!((items[0].data.clone(), items[0].meta.epoch), (all[1].bytes.clone(), 4));
    script.disk(stored(1));
    let result = results(&mut script).remove(0);
    assert_eq!(result.done, [FragmentRef { epoch: 4, ..of(77, 1, 102) }]);
    assert_eq!((result.finished, result.bytes), (true, all[1].bytes.len() as u64));
    // The result is reported until answered, then forgotten.
    script.answer(Kind::Heartbeat, Ok(beat()));
    assert_eq!(results(&mut script), []);
}

/// P3: a delete overtakes a rebuild; nothing is stored or reported afterwards.
#[test]
fn a_deleted_fragment_is_not_rebuilt() {
    let chunk = bytes(2, 1_000);
    let (task, map) = rebuild_task(&chunk, 1);
    let mut script = serving(task);
    script.tick(200);
    let reply = HeartbeatReply { deletes: vec![of(77, 1, 102)], map: Some(map), ..beat() };
    assert_eq!(script.answer(Kind::Heartbeat, Ok(reply))[0], "disk 1 delete 77.1");
    assert_eq!(script.disk(Ok(DiskReply::Verified(vec![Verdict::Missing]))), NOTHING);
    script.disk(Ok(DiskReply::Deleted));
    let result = results(&mut script).remove(0);
    assert!(result.finished && result.done.is_empty() && result.failed.is_empty());
}

/// P11: during the rebuild the group gave the place to another disk; the rebuild is not reported as done.
#[test]
fn a_rebuild_for_a_group_that_moved_on() {
    let chunk = bytes(3, 200_000);
    let (task, map) = rebuild_task(&chunk, 1);
    let mut pg = task.rebuild.clone().unwrap().pg.unwrap();
    let mut script = Script::joined();
    script.answer(Kind::Heartbeat, Ok(HeartbeatReply { tasks: vec![task], map: Some(map), ..beat() }));
    (pg.epoch, pg.members[1].incoming_disk_id) = (5, 300);
    script.disk(Ok(DiskReply::Verified(vec![Verdict::Missing])));
    let all = fragments(&class(4, 2), &chunk);
    while let Some((_, _, body)) = script.calls.iter().find(|(kind, ..)| *kind == Kind::GetFragments) {
        let wanted = GetFragments::decode(&body[..]).unwrap().items[0].fragment;
        fetched(&mut script, &all[wanted as usize]);
    }
    let (op_id, job) = script.jobs.remove(0);
    script.happen(Event::Computed { op_id, result: job.run(&BufferPool::new(0)) });
    script.tick(200);
    script.answer(Kind::Heartbeat, Ok(HeartbeatReply { pgs: vec![pg], ..beat() }));
    script.disk(stored(1));
    let result = results(&mut script).remove(0);
    assert_eq!((result.done.len(), result.failed.len()), (0, 1));
    assert!(result.reason.contains("no longer has disk 102"), "{}", result.reason);
}

/// The bandwidth bound holds: chunks start only when the bucket allows it.
#[test]
fn rebuilds_are_paced() {
    let chunk = bytes(4, 1 << 20);
    let (mut task, _) = rebuild_task(&chunk, 1);
    if let Some(rebuild) = &mut task.rebuild {
        rebuild.chunks = vec![rebuild.chunks[0].clone(); 100];
        (0..100).for_each(|i| rebuild.chunks[i].chunk_id = i as u64 + 1);
    }
    // Each chunk costs 5 × 256 KiB; 4 MiB/s allow 3.2 chunks a second.
    let mut script = Script::joined();
    let reply = HeartbeatReply { tasks: vec![task], repair_bytes_per_s: 4 << 20, ..beat() };
    script.answer(Kind::Heartbeat, Ok(reply));
    let mut started = 0;
    for _ in 0..1_000 {
        // No source answers, so the rebuild fails at once.
        while !script.ops.is_empty() {
            started += 1;
            script.disk(Ok(DiskReply::Verified(vec![Verdict::Missing])));
            while script.calls.iter().any(|(kind, ..)| *kind == Kind::GetFragments) {
                script.answer::<GetFragmentsReply>(Kind::GetFragments, lost(Code::Unavailable));
            }
        }
        script.calls.retain(|(kind, ..)| *kind != Kind::Heartbeat);
        script.tick(10);
    }
    assert!((31..=34).contains(&started), "{started} in ten seconds");
}

#[test]
fn tasks_are_bounded_and_not_started_twice() {
    let verify = |task_id, disk_id| Task {
        task_id,
        verify: Some(VerifyTask { fragments: vec![of(7, 0, disk_id)] }),
        ..Task::default()
    };
    let mut script = Script::with(NodeConfig { max_tasks: 2, scrub_every_s: 0, ..NodeConfig::default() });
    script.join();
    let tasks = vec![verify(1, 101), verify(1, 101), verify(2, 999), verify(3, 101), verify(4, 101), verify(5, 101)];
    let lines = script.answer(Kind::Heartbeat, Ok(HeartbeatReply { tasks, ..beat() }));
    assert_eq!(lines, ["disk 0 verify 7.0"]);
    let told: BTreeMap<u64, String> = results(&mut script).into_iter().map(|r| (r.task_id, r.reason)).collect();
    assert_eq!(told.keys().copied().collect::<Vec<_>>(), [2, 3, 4], "5 is dropped: the manager sees it does not run");
    assert!(told[&3].contains("hand it out later"), "{told:?}");
}

#[test]
fn senseless_tasks_are_refused_with_a_reason() {
    let rebuild = |task: RebuildTask| Task { task_id: 1, rebuild: Some(task), ..Task::default() };
    let strange = [
        (Task { task_id: 1, ..Task::default() }, "does not know"),
        (rebuild(RebuildTask { disk_id: 102, ..RebuildTask::default() }), "no group"),
        (rebuild(RebuildTask { disk_id: 5, ..RebuildTask::default() }), "not served"),
        (Task { task_id: 1, scrub: Some(ScrubTask { disk_id: 5 }), ..Task::default() }, "not served"),
    ];
    for (task, expected) in strange {
        let result = results(&mut serving(task)).remove(0);
        assert!(result.finished && result.reason.contains(expected), "{result:?}");
    }
}

#[test]
fn verification_tells_good_from_bad() {
    let fragments = vec![of(1, 0, 101), of(2, 0, 101), of(3, 0, 101), of(4, 0, 102), of(5, 0, 888)];
    let task = Task { task_id: 1, verify: Some(VerifyTask { fragments }), ..Task::default() };
    let mut script = Script::joined();
    let lines = script.answer(Kind::Heartbeat, Ok(HeartbeatReply { tasks: vec![task], ..beat() }));
    assert_eq!(lines, ["disk 0 verify 1.0 2.0 3.0"]);
    let good = Verdict::Good { hash: [0; 32], len_bytes: 10 };
    let verdicts = vec![good.clone(), Verdict::Missing, Verdict::Bad("rot".into())];
    assert_eq!(script.disk(Ok(DiskReply::Verified(verdicts))), ["disk 1 verify 4.0"]);
    script.disk(Ok(DiskReply::Verified(vec![good])));
    let result = results(&mut script).remove(0);
    assert_eq!(result.done, [of(1, 0, 101), of(4, 0, 102)]);
    assert_eq!(result.failed, [of(2, 0, 101), of(3, 0, 101), of(5, 0, 888)]);
    assert!(result.finished);
}

/// Pages follow each other. An unanswered page is sent again. What does not belong on the disk is deleted.
#[test]
fn an_inventory_in_pages() {
    let key = |chunk_id| FragmentKey { chunk_id, fragment: 0 };
    let task = Task { task_id: 1, inventory: Some(InventoryTask { disk_id: 101 }), ..Task::default() };
    let mut script = serving(task);
    assert!(matches!(&script.ops[0].1, DiskOp::List { after: None, .. }));
    script.disk(Ok(DiskReply::Listed { held: vec![key(1), key(2)], last: false }));
    let page: Inventory = script.sent(Kind::Inventory);
    assert_eq!((page.disk_id, page.node_id, page.incarnation, page.last), (101, 9, 1, false));
    script.answer::<InventoryReply>(Kind::Inventory, lost(Code::Timeout));
    assert_eq!(script.tick(999).iter().filter(|l| l.contains("Inventory")).count(), 0);
    assert_eq!(script.tick(1).iter().filter(|l| l.contains("Inventory")).count(), 1);
    assert_eq!(script.sent::<Inventory>(Kind::Inventory), page);
    let reply = InventoryReply { remove: vec![of(2, 0, 0)], term: 1, log_seq: 10 };
    let lines = script.answer(Kind::Inventory, Ok(reply));
    assert_eq!(lines, ["disk 0 delete 2.0", "disk 0 list 8192 after 2.0"]);
    script.disk(Ok(DiskReply::Deleted));
    script.disk(Ok(DiskReply::Listed { held: vec![], last: true }));
    let page: Inventory = script.sent(Kind::Inventory);
    assert_eq!((page.after, page.last), (Some(of(2, 0, 101)), true));
    script.answer(Kind::Inventory, Ok(InventoryReply { term: 1, log_seq: 10, ..InventoryReply::default() }));
    assert!(results(&mut script)[0].finished);
}

/// P13: a cycle continues from step to step. Rot is reported by itself and with the task. A new cycle starts from the
/// beginning.
#[test]
fn scrubbing_on_request() {
    let task = |task_id| Task { task_id, scrub: Some(ScrubTask { disk_id: 102 }), ..Task::default() };
    let mut script = serving(task(1));
    assert!(matches!(script.ops[0].1, DiskOp::Scrub { cursor: None, .. }));
    let at = |offset| Some(ScrubCursor { segment: 1, offset });
    let lines = script.disk(Ok(DiskReply::Scrubbed {
        next: at(5),
        bytes: 100,
        bad: vec![FragmentKey { chunk_id: 7, fragment: 2 }],
    }));
    assert_eq!(lines, ["disk 1 scrub from 5"]);
    // A request in the middle of a cycle: the step in progress does not count for the new cycle.
    script.tick(200);
    let sent: Heartbeat = script.sent(Kind::Heartbeat);
    assert_eq!((sent.bad, sent.scrubbed_bytes), (vec![of(7, 2, 102)], vec![0, 100]));
    assert_eq!(sent.results[0].failed, [of(7, 2, 102)]);
    script.answer(Kind::Heartbeat, Ok(HeartbeatReply { tasks: vec![task(2)], ..beat() }));
    let asked_ms = script.now_ms;
    let lines = script.disk(Ok(DiskReply::Scrubbed { next: None, bytes: 50, bad: vec![] }));
    assert_eq!(lines, ["disk 1 scrub from 0"]);
    script.tick(200);
    assert_eq!(script.sent::<Heartbeat>(Kind::Heartbeat).disks[1].verified_ns, 0, "no cycle is through");
    script.disk(Ok(DiskReply::Scrubbed { next: None, bytes: 150, bad: vec![] }));
    let finished: Vec<u64> = results(&mut script).iter().filter(|r| r.finished).map(|r| r.task_id).collect();
    assert_eq!(finished, [1, 2]);
    let verified: Vec<i64> = script.sent::<Heartbeat>(Kind::Heartbeat).disks.iter().map(|d| d.verified_ns).collect();
    assert_eq!(verified, [0, asked_ms * MS], "what was there when the cycle began");
}

/// Task ids are unique only within a term: a scrub that an earlier manager requested does not finish the rebuild with
/// the same id.
#[test]
fn a_task_id_that_comes_again_is_another_task() {
    let mut script = serving(Task { task_id: 1, scrub: Some(ScrubTask { disk_id: 102 }), ..Task::default() });
    script.tick(200);
    let (task, map) = rebuild_task(&bytes(1, 100_000), 1);
    let reply = HeartbeatReply { tasks: vec![task], map: Some(map), term: 2, log_seq: 1, ..beat() };
    let lines = script.answer(Kind::Heartbeat, Ok(reply));
    assert!(lines.contains(&"disk 1 verify 77.1".into()), "{lines:?}");
    script.disk(Ok(DiskReply::Scrubbed { next: None, bytes: 50, bad: vec![] }));
    script.tick(200);
    let sent: Heartbeat = script.sent(Kind::Heartbeat);
    assert_eq!((sent.running_tasks, sent.results), (vec![1], vec![]), "the rebuild goes on");
}

/// P11: what a dropped task had in progress does not count for the task of the next incarnation with the same id.
#[test]
fn results_that_outlive_their_task_are_ignored() {
    let fragments = |chunk_id| vec![of(chunk_id, 0, 101)];
    let verify =
        |chunk_id| Task { task_id: 1, verify: Some(VerifyTask { fragments: fragments(chunk_id) }), ..Task::default() };
    let list = || Task { task_id: 2, inventory: Some(InventoryTask { disk_id: 101 }), ..Task::default() };
    let key = |chunk_id| FragmentKey { chunk_id, fragment: 0 };
    let mut script = Script::served(HeartbeatReply { tasks: vec![verify(1), list()], ..beat() });
    script.tick(200);
    script.answer(Kind::Heartbeat, Ok(HeartbeatReply { must_register: true, ..beat() }));
    script.answer(Kind::RegisterNode, Ok(welcome(2)));
    let lines = script.answer(Kind::Heartbeat, Ok(HeartbeatReply { tasks: vec![verify(8), list()], ..beat() }));
    assert_eq!(lines, ["disk 0 verify 8.0", "disk 0 list 8192 after -"]);
    // The first incarnation's: the verification failed, the listing was of a later page.
    script.disk(Ok(DiskReply::Verified(vec![Verdict::Missing])));
    assert_eq!(script.disk(Ok(DiskReply::Listed { held: vec![key(50)], last: true })), NOTHING);
    script.disk(Ok(DiskReply::Verified(vec![Verdict::Good { hash: [0; 32], len_bytes: 10 }])));
    script.disk(Ok(DiskReply::Listed { held: vec![key(8)], last: true }));
    assert_eq!(script.sent::<Inventory>(Kind::Inventory).held, fragments(8));
    let result = results(&mut script).remove(0);
    assert_eq!((result.task_id, result.done, result.failed, result.finished), (1, fragments(8), vec![], true));
}

/// P13: without a request, a disk is scrubbed within the interval, at the background rate.
#[test]
fn scrubbing_in_the_background() {
    let config = NodeConfig { scrub_every_s: 100, compact_every_ms: 0, ..NodeConfig::default() };
    let mut script = Script::with(config);
    script.join();
    script.answer(Kind::Heartbeat, Ok(HeartbeatReply { scrub_bytes_per_s: 1_000, ..beat() }));
    let mut started = Vec::new();
    let done = |next, bytes| Ok(DiskReply::Scrubbed { next, bytes, bad: vec![] });
    for _ in 0..1_000 {
        script.calls.clear();
        started.extend(script.tick(100).into_iter().filter(|l| l.contains("scrub")));
        while !script.ops.is_empty() {
            script.disk(done(None, 0));
        }
    }
    started.sort();
    assert_eq!(started, ["disk 0 scrub from 0", "disk 1 scrub from 0"]);
    // The next cycle: a step of 5,000 bytes takes the budget of five seconds.
    while script.ops.is_empty() {
        script.tick(100);
    }
    script.disk(done(Some(ScrubCursor { segment: 1, offset: 9 }), 5_000));
    let steps = |lines: Vec<String>| lines.iter().filter(|l| l.contains("scrub from 9")).count();
    assert_eq!(steps(script.tick(4_700)), 0);
    assert_eq!(steps(script.tick(300)), 1);
}

#[test]
fn compaction_by_itself_and_on_request() {
    let config = NodeConfig { scrub_every_s: 0, compact_every_ms: 5_000, ..NodeConfig::default() };
    let mut script = Script::with(config);
    script.join();
    script.answer(Kind::Heartbeat, Ok(beat()));
    let lines = script.tick(5_000);
    assert!(lines.contains(&"disk 0 compact above 50 %".into()), "{lines:?}");
    assert_eq!(script.disk(Ok(DiskReply::Compacted { freed_bytes: 10, more: true })), ["disk 0 compact above 50 %"]);
    script.ops.retain(|(_, op)| !matches!(op, DiskOp::Compact { .. }));

    let task = Task { task_id: 1, compact: Some(CompactTask { disk_id: 101 }), ..Task::default() };
    let mut script = serving(task);
    assert!(matches!(script.ops[0].1, DiskOp::Compact { dead_percent: 10, seal: true, .. }));
    assert_eq!(script.disk(Ok(DiskReply::Compacted { freed_bytes: 10, more: true })), ["disk 0 compact above 10 %"]);
    script.disk(Ok(DiskReply::Compacted { freed_bytes: 5, more: false }));
    let result = results(&mut script).remove(0);
    assert_eq!((result.finished, result.bytes), (true, 15));
}

/// P14: who asked for a compaction that finds no room learns what it freed until then, and why it ended.
#[test]
fn a_compaction_without_room_ends_with_the_reason() {
    let task = Task { task_id: 1, compact: Some(CompactTask { disk_id: 101 }), ..Task::default() };
    let mut script = serving(task);
    script.disk(Ok(DiskReply::Compacted { freed_bytes: 10, more: true }));
    let error = Error::new(Code::NoSpace, "5 bytes are free");
    script.disk(Err(DiskFault { error, poisoned: false }));
    let result = results(&mut script).remove(0);
    assert_eq!((result.finished, result.bytes, &result.reason[..]), (true, 10, "5 bytes are free"));
}
