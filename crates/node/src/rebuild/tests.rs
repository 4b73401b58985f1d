//! The rebuild machine against a simulated cluster: every erasure pattern, wrong answers, and dead nodes.

use super::*;
use crate::test_chunks::{bytes, class, copy_class, fragments, raid6_class};
use std::collections::{BTreeMap, BTreeSet};
use tessera_net::BufferPool;
use tessera_wire::PgMember;

/// Disks 11.. hold fragments 0..; disk 99 is local.
struct Cluster {
    chunk: Bytes,
    class: ClassInfo,
    /// The answer of each (disk, fragment).
    held: BTreeMap<(u64, u32), Result<(Bytes, u32), Code>>,
    down: BTreeSet<u64>,
    asked: Vec<SourceAt>,
    appended: Option<AppendItem>,
    /// The fragment of the last task, if it was a proof.
    proven: Option<u32>,
}

impl Cluster {
    fn source(&self, disk_id: u64) -> Option<Source> {
        (disk_id != 77).then(|| Source { up: !self.down.contains(&disk_id), load: 0 })
    }

    fn new(k: u32, m: u32, len: usize) -> Self {
        Cluster::of(class(k, m), len)
    }

    fn of(class: ClassInfo, len: usize) -> Self {
        let chunk = bytes(len as u64, len);
        let held = fragments(&class, &chunk)
            .into_iter()
            .map(|it| ((11 + u64::from(it.number), it.number), Ok((it.bytes, it.crc32c))))
            .collect();
        Cluster { chunk, class, held, down: BTreeSet::new(), asked: Vec::new(), appended: None, proven: None }
    }

    fn task(&self, wanted: u32, missing: Vec<u32>) -> RebuildTask {
        let member = |i: u32| PgMember { disk_id: 11 + u64::from(i), ..PgMember::default() };
        let mut members: Vec<PgMember> = (0..self.class.fragments()).map(member).collect();
        members[wanted as usize].incoming_disk_id = 99;
        members[wanted as usize].put_to_incoming = true;
        RebuildTask {
            pg: Some(PgInfo { pg_id: 5, epoch: 9, members }),
            fragment: wanted,
            disk_id: 99,
            class: Some(self.class.clone()),
            chunks: vec![ChunkInfo {
                chunk_id: 1234,
                hash: tessera_accel::hash::chunk_hash(&self.chunk).0.to_vec().into(),
                len_bytes: self.chunk.len() as u64,
                class_id: 1,
                pg_id: 5,
                missing,
            }],
            domain: 3,
            prove: false,
            hurry: false,
        }
    }

    /// A task to prove a fragment of a group at rest.
    fn proof(&self, fragment: u32) -> RebuildTask {
        let mut task = RebuildTask { prove: true, disk_id: 11 + u64::from(fragment), ..self.task(fragment, vec![]) };
        let members = &mut task.pg.as_mut().unwrap().members;
        (members[fragment as usize].incoming_disk_id, members[fragment as usize].put_to_incoming) = (0, false);
        task
    }

    /// The fragment on the disk of the node that proves it.
    fn local(&self) -> Result<(Bytes, u32), Error> {
        let at = self.proven.expect("a proof");
        let held = self.held.get(&(11 + u64::from(at), at)).cloned().unwrap_or(Err(Code::NotFound));
        held.map_err(|code| Error::new(code, "no"))
    }

    fn lose(&mut self, fragment: u32, code: Code) {
        self.held.insert((11 + u64::from(fragment), fragment), Err(code));
    }

    /// Changes a byte; with `consistently`, also its checksum.
    fn spoil(&mut self, fragment: u32, consistently: bool) {
        let at = (11 + u64::from(fragment), fragment);
        if let Some(Ok((data, crc))) = self.held.get_mut(&at) {
            let mut wrong = data.to_vec();
            wrong[0] ^= 1;
            if consistently {
                *crc = tessera_accel::checksum::crc32c(&wrong);
            }
            *data = wrong.into();
        }
    }

    fn run(&mut self, task: &RebuildTask) -> RebuildReport {
        let mut machine = ChunkRebuild::new(task, 0).unwrap();
        self.proven = task.prove.then_some(task.fragment);
        let mut wishes = machine.next(|disk_id| self.source(disk_id));
        for _ in 0..1_000 {
            let mut after = Vec::new();
            for wish in std::mem::take(&mut wishes) {
                match wish {
                    RebuildAction::CheckLocal => after.extend(machine.on_local_check(&Verdict::Missing)),
                    RebuildAction::Fetch(at) => {
                        self.asked.push(at);
                        let held = self.held.get(&(at.disk_id, at.fragment)).cloned().unwrap_or(Err(Code::NotFound));
                        machine.on_fetched(at, held.map_err(|code| Error::new(code, "no")));
                    }
                    RebuildAction::Compute(job) => after.extend(machine.on_computed(job.run(&BufferPool::new(0)))),
                    RebuildAction::ReadLocal => after.extend(machine.on_local_read(self.local())),
                    RebuildAction::Append(item) => {
                        self.appended = Some(item);
                        after.extend(machine.on_appended(Ok(())));
                    }
                    RebuildAction::Finished(outcome) => return outcome,
                }
            }
            wishes = if after.is_empty() { machine.next(|disk_id| self.source(disk_id)) } else { after };
        }
        panic!("the machine neither finishes nor wants anything: {machine:?}");
    }

    fn expect_right(&self, wanted: u32) {
        let item = self.appended.as_ref().expect("something was appended");
        let right = &fragments(&self.class, &self.chunk)[wanted as usize];
        assert_eq!(item.data, right.bytes);
        assert_eq!((item.crc32c, item.meta.epoch, item.meta.pg_id, item.meta.domain), (right.crc32c, 9, 5, 3));
        assert_eq!(item.groups, tessera_accel::hash::tree(&self.chunk).groups.concat());
    }
}

/// P1, P6: every set of at most two lost fragments, each of them rebuilt; at most m are lost in all.
#[test]
fn every_erasure_pattern_of_four_and_two() {
    for class in [class(4, 2), copy_class(4, 2), raid6_class(4)] {
        for (len, wanted, other) in patterns(&[1, 300, 100_000]) {
            for code in [Code::NotFound, Code::Unavailable] {
                let mut cluster = Cluster::of(class.clone(), len);
                cluster.lose(wanted, code);
                cluster.lose(other, code);
                let task = cluster.task(wanted, vec![wanted]);
                let outcome = cluster.run(&task);
                assert_eq!(outcome.result, Ok(()), "{}: {len} bytes, {wanted} and {other} lost", class.spec);
                cluster.expect_right(wanted);
            }
        }
    }
}

fn patterns(lens: &[usize]) -> Vec<(usize, u32, u32)> {
    lens.iter().flat_map(|len| (0..36).map(move |i| (*len, i / 6, i % 6))).collect()
}

/// The copy alone yields any piece, whatever else is lost; a wrong copy is detected. Any k pieces yield the copy; fewer
/// do not.
#[test]
fn copies_and_pieces_rebuild_each_other() {
    for wanted in 1..6u32 {
        let mut cluster = Cluster::of(copy_class(4, 2), 100_000);
        (1..6).for_each(|i| cluster.lose(i, Code::Unavailable));
        let task = cluster.task(wanted, vec![wanted]);
        assert_eq!(cluster.run(&task).result, Ok(()), "{wanted}");
        cluster.expect_right(wanted);
        assert_eq!(cluster.asked, [SourceAt { fragment: 0, disk_id: 11 }], "no other source is asked");

        for consistently in [false, true] {
            let mut cluster = Cluster::of(copy_class(4, 2), 100_000);
            cluster.spoil(0, consistently);
            let task = cluster.task(wanted, vec![wanted]);
            let outcome = cluster.run(&task);
            assert_eq!(outcome.result, Ok(()), "{wanted} {consistently}");
            cluster.expect_right(wanted);
            assert_eq!(outcome.bad.iter().map(|it| it.fragment).collect::<Vec<_>>(), [0]);
        }
    }
    for (lost, possible) in [(&[1][..], true), (&[3, 5], false)] {
        let mut cluster = Cluster::of(copy_class(4, 2), 100_000);
        cluster.lose(0, Code::NotFound);
        lost.iter().for_each(|i| cluster.lose(*i, Code::NotFound));
        let task = cluster.task(0, vec![0]);
        let result = cluster.run(&task).result;
        match possible {
            true => cluster.expect_right(0),
            false => assert!(result.unwrap_err().contains("3 of the 4 fragments needed")),
        }
    }
}

/// P2, P6: one source lost, one damaged or lying. Both are detected, replaced and reported, and the result is right.
#[test]
fn one_lost_and_one_wrong_source() {
    for class in [class(4, 2), copy_class(4, 2), raid6_class(4)] {
        for (_, wanted, liar) in patterns(&[100_000]).into_iter().filter(|(_, wanted, liar)| wanted != liar) {
            for consistently in [false, true] {
                let mut cluster = Cluster::of(class.clone(), 100_000);
                cluster.lose(wanted, Code::NotFound);
                cluster.spoil(liar, consistently);
                let task = cluster.task(wanted, vec![wanted]);
                let outcome = cluster.run(&task);
                assert_eq!(outcome.result, Ok(()), "{wanted} lost, {liar} wrong, consistently {consistently}");
                cluster.expect_right(wanted);
                let was_asked = cluster.asked.iter().any(|at| at.fragment == liar);
                let named: Vec<u32> = outcome.bad.iter().map(|it| it.fragment).collect();
                assert_eq!(named, if was_asked { vec![liar] } else { vec![] });
            }
        }
    }
}

/// P2: with more than m faults there is no right answer, and there must be no wrong one.
#[test]
fn too_much_lost_or_wrong_gives_nothing() {
    let mut cluster = Cluster::new(4, 2, 100_000);
    for i in 0..3 {
        cluster.lose(i, Code::NotFound);
    }
    let task = cluster.task(0, vec![0]);
    let outcome = cluster.run(&task);
    assert!(outcome.result.unwrap_err().contains("3 of the 4 fragments needed"));
    assert_eq!(cluster.appended, None);
    assert_eq!(outcome.bad.len(), 2, "the other two are reported missing");

    let mut cluster = Cluster::new(4, 2, 100_000);
    cluster.lose(0, Code::NotFound);
    cluster.spoil(1, true);
    cluster.spoil(2, true);
    let task = cluster.task(0, vec![0]);
    let outcome = cluster.run(&task);
    assert!(outcome.result.unwrap_err().contains("no set of readable fragments"));
    assert_eq!(cluster.appended, None);
}

/// Fragments with a wrong stored checksum are reported, and still used if nothing else is left: a reader could read the
/// chunk.
#[test]
fn suspects_are_the_last_resort() {
    for class in [class(4, 2), copy_class(4, 2), raid6_class(4)] {
        let mut cluster = Cluster::of(class, 100_000);
        cluster.lose(0, Code::NotFound);
        for fragment in [2, 4] {
            let Some(Ok((_, crc32c))) = cluster.held.get_mut(&(11 + u64::from(fragment), fragment)) else { panic!() };
            *crc32c ^= 1;
        }
        let task = cluster.task(0, vec![0]);
        let outcome = cluster.run(&task);
        assert_eq!(outcome.result, Ok(()));
        cluster.expect_right(0);
        let mut named: Vec<u32> = outcome.bad.iter().map(|it| it.fragment).collect();
        named.sort_unstable();
        assert_eq!(named, [2, 4], "each is reported once");
    }
}

/// A rebuild tries as many sets of sources as a reader does: three lying sources among ten of 7+4 take more than one
/// step.
#[test]
fn repair_searches_as_long_as_a_reader() {
    let mut cluster = Cluster::new(7, 4, 230_000);
    cluster.lose(10, Code::NotFound);
    (0..3).for_each(|i| cluster.spoil(i, true));
    let task = cluster.task(10, vec![10]);
    let outcome = cluster.run(&task);
    assert_eq!(outcome.result, Ok(()));
    cluster.expect_right(10);
    assert_eq!(outcome.bad.iter().map(|it| it.fragment).collect::<Vec<_>>(), [0, 1, 2]);
}

/// Short chunks: data fragments past the end are empty and need no fetch.
#[test]
fn a_short_chunk_needs_one_source() {
    let mut cluster = Cluster::new(4, 2, 10);
    for i in 0..6 {
        if i != 5 {
            cluster.lose(i, Code::Unavailable);
        }
    }
    let task = cluster.task(0, vec![0]);
    assert_eq!(cluster.run(&task).result, Ok(()));
    cluster.expect_right(0);
    assert_eq!(cluster.class.fragment_bytes(10, 3), Some(0));
}

#[test]
fn copies_move_past_a_bad_one() {
    let mut cluster = Cluster::new(1, 2, 20_000);
    cluster.lose(2, Code::NotFound);
    cluster.spoil(0, true);
    let task = cluster.task(2, vec![2]);
    assert_eq!(cluster.run(&task).result, Ok(()));
    cluster.expect_right(2);
}

/// Drain: the old member still serves and may be a source. Disks that are down are asked last. Fragments that the
/// manager knows to be missing are not asked for.
#[test]
fn sources_are_chosen_with_care() {
    let mut cluster = Cluster::new(4, 2, 100_000);
    let mut task = cluster.task(3, vec![0]);
    if let Some(pg) = &mut task.pg {
        pg.members[3].put_to_incoming = false;
        pg.members[5].incoming_disk_id = 50;
    }
    cluster.down = [11, 12].into();
    assert_eq!(cluster.run(&task).result, Ok(()));
    cluster.expect_right(3);
    let asked: BTreeSet<u64> = cluster.asked.iter().map(|at| at.disk_id).collect();
    assert_eq!(asked, [13, 14, 15, 16].into(), "fragments 2 to 5, not the missing 0, not the down 1");
}

/// A member that is still being filled may lack the fragment; this is expected and not reported as rot.
#[test]
fn a_filling_member_is_not_accused() {
    let mut cluster = Cluster::new(4, 2, 100_000);
    let mut task = cluster.task(0, vec![0]);
    if let Some(pg) = &mut task.pg {
        pg.members[1].incoming_disk_id = 50;
        pg.members[1].put_to_incoming = true;
        pg.members[2].disk_id = 77; // of unknown address
    }
    cluster.down = [12].into();
    let outcome = cluster.run(&task);
    assert_eq!(outcome.result, Ok(()));
    assert_eq!(outcome.bad, vec![]);
    assert!(cluster.asked.contains(&SourceAt { fragment: 1, disk_id: 50 }));
    cluster.expect_right(0);
}

#[test]
fn what_is_at_home_already_is_compared() {
    let cluster = Cluster::new(4, 2, 100_000);
    let task = cluster.task(0, vec![0]);
    let hash = tessera_accel::hash::chunk_hash(&cluster.chunk).0;
    let len_bytes = fragments(&cluster.class, &cluster.chunk)[0].bytes.len() as u32;
    let good = Verdict::Good { hash, len_bytes };
    // It is compared: nobody need have checked it when it was put (P2).
    for (local, written_bytes) in [(0, 0), (1, u64::from(len_bytes))] {
        let mut machine = ChunkRebuild::new(&task, 0).unwrap();
        machine.next(|disk_id| cluster.source(disk_id));
        assert_eq!(machine.on_local_check(&good), vec![]);
        for action in machine.next(|disk_id| cluster.source(disk_id)) {
            let RebuildAction::Fetch(at) = action else { panic!("{action:?}") };
            let held = cluster.held[&(at.disk_id, at.fragment)].clone();
            machine.on_fetched(at, held.map_err(|code| Error::new(code, "no")));
        }
        let computed = machine.next(|disk_id| cluster.source(disk_id)).remove(0);
        let RebuildAction::Compute(job) = computed else { panic!("{computed:?}") };
        assert_eq!(machine.on_computed(job.run(&BufferPool::new(0))), vec![RebuildAction::ReadLocal]);
        let held = cluster.held[&(11 + local, local as u32)].clone();
        match machine.on_local_read(held.map_err(|code| Error::new(code, "no"))).remove(0) {
            RebuildAction::Append(item) => assert_eq!(item.data.len() as u64, written_bytes),
            RebuildAction::Finished(report) => assert_eq!((report.result, written_bytes), (Ok(()), 0)),
            other => panic!("{other:?}"),
        }
    }

    // A fragment of another chunk or of another length: rebuilt.
    let mut machine = ChunkRebuild::new(&task, 0).unwrap();
    machine.next(|disk_id| cluster.source(disk_id));
    assert_eq!(machine.on_local_check(&Verdict::Good { hash: [0; 32], len_bytes: 1 }), vec![]);
    assert_eq!(machine.next(|disk_id| cluster.source(disk_id)).len(), 4);
}

#[test]
fn an_append_that_fails_is_a_failure() {
    let cluster = Cluster::new(1, 1, 100);
    let task = cluster.task(1, vec![1]);
    let mut machine = ChunkRebuild::new(&task, 0).unwrap();
    machine.next(|disk_id| cluster.source(disk_id));
    machine.on_local_check(&Verdict::Bad("rot".into()));
    let RebuildAction::Fetch(at) = machine.next(|disk_id| cluster.source(disk_id))[0] else { panic!("a fetch") };
    let crc = tessera_accel::checksum::crc32c(&cluster.chunk);
    machine.on_fetched(at, Ok((cluster.chunk.clone(), crc)));
    let RebuildAction::Compute(job) = machine.next(|disk_id| cluster.source(disk_id)).remove(0) else {
        panic!("a computation")
    };
    machine.on_computed(job.run(&BufferPool::new(0)));
    let wishes = machine.on_appended(Err(Error::new(Code::NoSpace, "full")));
    assert!(matches!(&wishes[..], [RebuildAction::Finished(RebuildReport { result: Err(why), .. })] if why == "full"));
}

#[test]
fn tasks_that_make_no_sense_are_refused() {
    let cluster = Cluster::new(4, 2, 100);
    let good = cluster.task(0, vec![]);
    assert!(ChunkRebuild::new(&RebuildTask { pg: None, ..good.clone() }, 0).is_err());
    assert!(ChunkRebuild::new(&RebuildTask { class: None, ..good.clone() }, 0).is_err());
    assert!(ChunkRebuild::new(&RebuildTask { fragment: 6, ..good.clone() }, 0).is_err());
    assert!(ChunkRebuild::new(&good, 1).is_err());
    let mut bad_hash = good;
    bad_hash.chunks[0].hash = Bytes::from_static(b"short");
    assert!(ChunkRebuild::new(&bad_hash, 0).is_err());
}

/// A client's parity is believed once it equals what the slices give. A wrong one is replaced, even if its checksum fits.
#[test]
fn a_proof_finds_wrong_parity_and_replaces_it() {
    for class in [class(4, 2), copy_class(4, 2), raid6_class(4)] {
        for parity in [4, 5] {
            let mut cluster = Cluster::of(class.clone(), 100_000);
            let task = cluster.proof(parity);
            let report = cluster.run(&task);
            assert_eq!((report.result, report.replaced, &cluster.appended), (Ok(()), false, &None), "right as it is");
            assert!(cluster.asked.iter().all(|at| at.fragment < 4), "from slices: {:?}", cluster.asked);
            for consistently in [true, false] {
                let mut cluster = Cluster::of(class.clone(), 100_000);
                cluster.spoil(parity, consistently);
                let task = cluster.proof(parity);
                let report = cluster.run(&task);
                assert_eq!((report.result, report.replaced, report.bad), (Ok(()), true, vec![]));
                cluster.expect_right(parity);
            }
        }
    }
}

/// A rebuild that finds parity in its place believes it no more than a proof does: a client may have put it there.
#[test]
fn parity_that_is_in_its_place_is_compared() {
    for wrong in [false, true] {
        let mut cluster = Cluster::new(4, 2, 100_000);
        let hash = tessera_accel::hash::chunk_hash(&cluster.chunk).0;
        let right = cluster.held[&(15, 4)].clone().unwrap();
        if wrong {
            cluster.spoil(4, true);
        }
        let task = cluster.task(4, vec![4]);
        let mut machine = ChunkRebuild::new(&task, 0).unwrap();
        assert_eq!(machine.next(|disk_id| cluster.source(disk_id)), vec![RebuildAction::CheckLocal]);
        let len_bytes = right.0.len() as u32;
        assert_eq!(machine.on_local_check(&Verdict::Good { hash, len_bytes }), vec![]);
        for action in machine.next(|disk_id| cluster.source(disk_id)) {
            let RebuildAction::Fetch(at) = action else { panic!("{action:?}") };
            machine.on_fetched(
                at,
                cluster.held[&(at.disk_id, at.fragment)].clone().map_err(|code| Error::new(code, "no")),
            );
        }
        let computed = machine.next(|disk_id| cluster.source(disk_id)).remove(0);
        let RebuildAction::Compute(job) = computed else { panic!("{computed:?}") };
        assert_eq!(machine.on_computed(job.run(&BufferPool::new(0))), vec![RebuildAction::ReadLocal]);
        let local = cluster.held[&(15, 4)].clone().map_err(|code| Error::new(code, "no"));
        let end = machine.on_local_read(local).remove(0);
        match (wrong, end) {
            (true, RebuildAction::Append(item)) => assert_eq!((item.data, item.crc32c), right),
            (false, RebuildAction::Finished(report)) => assert_eq!((report.result, report.written_bytes), (Ok(()), 0)),
            (_, other) => panic!("wrong: {wrong}, {other:?}"),
        }
    }
}

/// P1: parity in its place counts as a source, because it may be one of the last k fragments.
#[test]
fn parity_in_its_place_may_be_needed_to_read_the_chunk() {
    let mut cluster = Cluster::new(4, 2, 100_000);
    cluster.lose(0, Code::NotFound);
    cluster.lose(5, Code::NotFound);
    let task = RebuildTask { disk_id: 15, ..cluster.task(4, vec![4]) };
    let parity = cluster.held[&(15, 4)].clone();
    let mut machine = ChunkRebuild::new(&task, 0).unwrap();
    machine.next(|disk_id| cluster.source(disk_id));
    let hash = tessera_accel::hash::chunk_hash(&cluster.chunk).0;
    let len_bytes = parity.as_ref().unwrap().0.len() as u32;
    assert_eq!(machine.on_local_check(&Verdict::Good { hash, len_bytes }), vec![]);
    let mut wishes = machine.next(|disk_id| cluster.source(disk_id));
    for _ in 0..100 {
        let mut after = Vec::new();
        for wish in wishes {
            match wish {
                RebuildAction::Fetch(at) => {
                    let held = cluster.held.get(&(at.disk_id, at.fragment)).cloned().unwrap_or(Err(Code::NotFound));
                    machine.on_fetched(at, held.map_err(|code| Error::new(code, "no")));
                }
                RebuildAction::Compute(job) => after.extend(machine.on_computed(job.run(&BufferPool::new(0)))),
                RebuildAction::ReadLocal => {
                    let local = parity.clone().map_err(|code| Error::new(code, "no"));
                    after.extend(machine.on_local_read(local));
                }
                RebuildAction::Finished(report) => {
                    assert_eq!((report.result, report.written_bytes), (Ok(()), 0));
                    return;
                }
                other => panic!("{other:?}"),
            }
        }
        after.extend(machine.next(|disk_id| cluster.source(disk_id)));
        wishes = after;
    }
    panic!("the rebuild does not end");
}

/// A chunk that does not have its name is never proven, and nothing is replaced.
#[test]
fn nothing_is_proven_from_bytes_without_the_name() {
    let mut cluster = Cluster::new(4, 2, 100_000);
    (0..4).for_each(|slice| cluster.spoil(slice, true));
    let task = cluster.proof(4);
    let report = cluster.run(&task);
    assert!(report.result.is_err() && cluster.appended.is_none(), "{report:?}");
    // The only copy of a chunk is compared with the name.
    for spoilt in [false, true] {
        let mut cluster = Cluster::of(tessera_stripe::describe(1, "none".parse().unwrap()), 50_000);
        if spoilt {
            cluster.spoil(0, true);
        }
        let task = cluster.proof(0);
        assert_eq!(cluster.run(&task).result.is_err(), spoilt);
    }
}
