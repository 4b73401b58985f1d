//! What a client acknowledges counts only with the receipts of the nodes.

use crate::db::sql::args;
use crate::internal::{FailDisks, FragmentsBad, FragmentsDone, Internal, SetInventory};
use crate::rig::*;
use prost::Message;
use tessera_wire::meta::*;

/// P2: what a client says it stored counts only with the receipts of the nodes, for this chunk and this fragment. A commit
/// without them changes nothing and says what to store again.
#[test]
fn a_commit_counts_only_what_nodes_have_proven() {
    let mut rig = Rig::new(4);
    let session = rig.open_write(1, "a", &[]).unwrap().session_id;
    let commit = rig.replacing(session, &[1, 2]).unwrap();
    let [first, second] = [0, 1].map(|i| rig.receipts(&commit.acks[i]));
    let all = || vec![0, 1, 2];
    let wrong = [
        ("no receipts", all(), vec![]),
        ("one too few", vec![0, 1], first[..2].to_vec()),
        ("made up", all(), vec![7; 3]),
        ("of another fragment", all(), vec![first[1], first[0], first[2]]),
        ("of another chunk", all(), second.clone()),
    ];
    for (what, stored, receipts) in wrong {
        let mut lie = commit.clone();
        lie.op_id = rig.op();
        (lie.acks[0].stored, lie.acks[0].receipts) = (stored, receipts);
        let reply = rig.ask(&lie).unwrap();
        assert_eq!((reply.version, reply.stale.len()), (0, 1), "{what}");
        assert_eq!(reply.stale[0].chunk_id, commit.acks[0].chunk_id, "{what}");
    }
    assert!(rig.read(1, "a").is_err(), "nothing was committed");
    let mut proven = commit.clone();
    proven.op_id = rig.op();
    (proven.acks[0].stored, proven.acks[0].receipts) = (all(), first);
    assert_ne!(rig.ask(&proven).unwrap().version, 0);
    rig.audit();
}

/// P2: content stored under one name is not committed under another: the name of a preallocated chunk is the one that its
/// nodes have proven.
#[test]
fn a_preallocated_chunk_gets_no_other_name_than_it_was_stored_under() {
    let mut rig = Rig::new(4);
    let session = rig.open_write(1, "a", &[]).unwrap().session_id;
    let commit = rig.replacing(session, &[1]).unwrap();
    let mut poisoned = commit.clone();
    // The receipts that nodes give for the same chunk id under the name that a victim will ask about.
    let named = |rig: &Rig, c: u8| {
        let mut it = commit.clone();
        it.preallocated_ids = vec![commit.acks[0].chunk_id];
        it.open = Some(Box::new(OpenWrite { chunks: vec![chunk(c)], ..Default::default() }));
        let given = tessera_testkit::with_receipts(rig.core.db().conn(), &it.encode_to_vec()).unwrap();
        Commit::decode(&given[..]).unwrap().acks.remove(0)
    };
    poisoned.acks = vec![named(&rig, 9)];
    assert_eq!(rig.ask(&poisoned).unwrap().stale.len(), 1);
    poisoned.acks = vec![named(&rig, 1)];
    poisoned.op_id = rig.op();
    assert_ne!(rig.ask(&poisoned).unwrap().version, 0);
}

fn disk_of(rig: &Rig, chunk_id: u64, fragment: u32) -> u64 {
    let sql =
        "SELECT disk_id FROM pg_members m JOIN chunks c ON c.pg_id = m.pg_id WHERE chunk_id = ?1 AND position = ?2";
    rig.core.db().one(sql, args![chunk_id, fragment]).unwrap()
}

/// Nodes have found a fragment bad or absent.
fn lose(rig: &mut Rig, chunk_id: u64, fragment: u32) {
    let disk_id = disk_of(rig, chunk_id, fragment);
    let fragments = vec![FragmentRef { chunk_id, fragment, epoch: 0, disk_id }];
    rig.core.propose(FragmentsBad { fragments }.propose());
    rig.settle();
}

/// All disks are lost, and their nodes return with them.
fn lose_disks(rig: &mut Rig) {
    rig.core.propose(FailDisks { disk_ids: vec![1, 2, 3, 4] }.propose());
    rig.settle();
    for done_disk_id in 1..=4 {
        rig.register(done_disk_id);
        rig.core.propose(SetInventory { want: vec![], done_disk_id, done_wanted: 1, done_incarnation: 1 }.propose());
        rig.settle();
    }
}

fn missing(rig: &Rig) -> Vec<(u64, u32)> {
    rig.core.db().all("SELECT chunk_id, fragment FROM missing_fragments", []).unwrap()
}

/// What the nodes gave for all three fragments of a chunk that was put under its group's current epoch.
fn proven(rig: &Rig, chunk_id: u64) -> ChunkAck {
    let sql = "SELECT epoch FROM pgs p JOIN chunks c ON c.pg_id = p.pg_id WHERE chunk_id = ?1";
    let epochs = vec![rig.core.db().one(sql, args![chunk_id]).unwrap(); 3];
    let ack = ChunkAck { chunk_id, epochs, stored: vec![0, 1, 2], ..ChunkAck::default() };
    ChunkAck { receipts: rig.receipts(&ack), ..ack }
}

/// Commits with `old`, which must be refused for these fragments, and then with receipts of now.
fn expect_stale(rig: &mut Rig, commit: Commit, old: ChunkAck, fragments: &[u32]) {
    let before = missing(rig);
    let reply = rig.ask(&Commit { acks: vec![old.clone()], ..commit.clone() }).unwrap();
    let [stale] = &reply.stale[..] else { panic!("{reply:?}") };
    assert_eq!((&stale.fragments[..], reply.version, missing(rig)), (fragments, 0, before));
    // That the old puts were of the newest epoch is a lie.
    let fresh = proven(rig, old.chunk_id);
    let lie = ChunkAck { epochs: fresh.epochs.clone(), ..old };
    let op_id = rig.op();
    assert_eq!(rig.ask(&Commit { op_id, acks: vec![lie], ..commit.clone() }).unwrap().stale.len(), 1);
    let (op_id, acks) = (rig.op(), vec![fresh]);
    assert_ne!(rig.ask(&Commit { op_id, acks, ..commit }).unwrap().version, 0);
    assert_eq!(missing(rig), []);
    rig.audit();
}

/// P1, P11: a receipt of before its disk left the cluster says nothing of what the disk holds now.
#[test]
pub(super) fn p11_a_receipt_of_before_its_disk_was_lost_does_not_count() {
    let mut rig = Rig::new(4);
    let session = rig.open_write(1, "a", &[]).unwrap().session_id;
    let commit = rig.replacing(session, &[1]).unwrap();
    let old = proven(&rig, commit.acks[0].chunk_id);
    lose_disks(&mut rig);
    expect_stale(&mut rig, commit, old, &[0, 1, 2]);
}

/// P1, P11: a receipt of before its fragment was found bad or absent says nothing of what is there now: not for the writer that has
/// not committed yet, and not for another that is asked for the fragment.
#[test]
pub(super) fn p11_a_receipt_of_before_its_fragment_was_lost_does_not_count() {
    let mut rig = Rig::new(4);
    let session = rig.open_write(1, "a", &[]).unwrap().session_id;
    let commit = rig.replacing(session, &[1]).unwrap();
    let chunk_id = commit.acks[0].chunk_id;
    let old = proven(&rig, chunk_id);
    lose(&mut rig, chunk_id, 1);
    expect_stale(&mut rig, commit, old.clone(), &[1]);
    for _ in 0..2 {
        lose(&mut rig, chunk_id, 2);
        rig.now_ns += MS;
        let session = rig.open_write(1, "b", &[]).unwrap().session_id;
        let commit = rig.replacing(session, &[1]).unwrap();
        assert_eq!(commit.acks[0].chunk_id, chunk_id, "incomplete");
        expect_stale(&mut rig, commit, old.clone(), &[2]);
    }
    // It is lost once more after the writer was told that it is missing.
    lose(&mut rig, chunk_id, 2);
    rig.now_ns += MS;
    let session = rig.open_write(1, "c", &[]).unwrap().session_id;
    let commit = rig.replacing(session, &[1]).unwrap();
    let old = proven(&rig, chunk_id);
    lose(&mut rig, chunk_id, 2);
    expect_stale(&mut rig, commit, old, &[2]);
}

/// P1, P11: neither does a report count that comes after the fragment was lost: a late fragment of a writer, or a rebuilt one of a node.
#[test]
fn p11_a_report_of_before_its_fragment_was_lost_does_not_count() {
    let mut rig = Rig::new(4);
    let session = rig.open_write(1, "a", &[("durability", "optimistic")]).unwrap().session_id;
    let mut commit = rig.replacing(session, &[1]).unwrap();
    commit.acks[0].missing = vec![2];
    let chunk_id = commit.acks[0].chunk_id;
    rig.ask(&commit).unwrap();
    let report = |rig: &mut Rig, ack: &ChunkAck, by_node: bool| {
        let disk_id = disk_of(rig, chunk_id, 2);
        let fragments = vec![FragmentRef { chunk_id, fragment: 2, epoch: ack.epochs[2], disk_id }];
        if by_node {
            rig.core.propose(FragmentsDone { fragments }.propose());
            return rig.settle();
        }
        let (op_id, receipts) = (rig.op(), vec![ack.receipts[2]]);
        rig.ask(&CompleteFragments { op_id, fragments, receipts }).unwrap();
    };
    for by_node in [false, true] {
        let old = proven(&rig, chunk_id);
        lose(&mut rig, chunk_id, 2);
        report(&mut rig, &old, by_node);
        assert_eq!(missing(&rig), [(chunk_id, 2)]);
        let fresh = proven(&rig, chunk_id);
        report(&mut rig, &fresh, by_node);
        assert_eq!(missing(&rig), []);
    }
    rig.audit();
}
