//! Garbage collection when memory and rows disagree.

use crate::internal::{CollectGarbage, Internal};
use crate::rig::*;
use tessera_wire::meta::*;

/// P4: the row of a session protects the chunks that its writer may have learned of, whatever a command says.
#[test]
fn a_session_with_a_row_keeps_its_chunks_from_every_collection() {
    let mut rig = Rig::new(3);
    rig.put(1, "a", b"x").unwrap();
    rig.now_ns += MS;
    let session = rig.open_write(1, "copy", &[]).unwrap().session_id;
    let commit = rig.replacing(session, b"x").unwrap();
    assert!(commit.acks.is_empty(), "the chunk is known");
    rig.now_ns += MS;
    let op_id = rig.op();
    rig.ask(&Unlink { op_id, parent: 1, name: "a".into(), directory: false }).unwrap();
    rig.now_ns += MS;
    rig.core.propose(
        CollectGarbage { before_ns: i64::MAX, limit: 100, held_from_ns: 0, kept_before_ns: i64::MAX }.propose(),
    );
    rig.settle();
    rig.ask(&commit).unwrap();
    rig.audit();
}

/// Repair plans by what the members of a group hold, and a group closes by it.
#[test]
fn a_group_does_not_count_what_was_collected() {
    let mut rig = Rig::new(3);
    rig.put(1, "a", b"xy").unwrap();
    let bytes = |rig: &Rig| rig.core.db().one::<u64>("SELECT sum(bytes) FROM pgs", []).unwrap();
    assert_eq!(bytes(&rig), 200);
    let op_id = rig.op();
    rig.ask(&Unlink { op_id, parent: 1, name: "a".into(), directory: false }).unwrap();
    rig.ask(&Maintain { what: MaintenanceJob::Gc as i32, start: true }).unwrap();
    (0..10).for_each(|_| rig.tick(1_000));
    assert_eq!(bytes(&rig), 0);
    rig.audit();
}

/// P12: a collection takes what was garbage when it began, and ends whatever becomes garbage meanwhile.
#[test]
fn a_collection_does_not_wait_for_what_is_removed_after_it_began() {
    let mut rig = Rig::new(3);
    let replace = |rig: &mut Rig, content: u8| drop(rig.put(1, "a", &[content]).unwrap());
    replace(&mut rig, 1);
    replace(&mut rig, 2);
    let pass = |rig: &Rig| rig.core.soft.cluster.jobs.gc;
    rig.ask(&Maintain { what: MaintenanceJob::Gc as i32, start: true }).unwrap();
    let mut ordered = 0;
    for content in 3..40 {
        replace(&mut rig, content);
        rig.tick(1_000);
        let done = "DELETE FROM deletes WHERE log_seq <= ?1";
        // Disks do the deletes that were ordered until the tick before.
        rig.core.db().conn().execute(done, [ordered as i64]).unwrap();
        ordered = rig.core.db().one::<u64>("SELECT coalesce(max(log_seq), 0) FROM deletes", []).unwrap();
        if pass(&rig).compacting {
            assert!(rig.core.db().any("SELECT 1 FROM deletes", []).unwrap(), "there is more to do at all times");
            return;
        }
    }
    panic!("it waits after 37 s: {:?}", pass(&rig));
}
