//! What a client acknowledges counts only with the receipts of the nodes.

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
