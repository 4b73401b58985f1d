//! Chunks are proven before other clients rely on them, and a proof counts only for what it has looked at.

use crate::db::sql::args;
use crate::internal::{ChunksProven, ChunksUnreadable, Internal, ProvenChunk};
use crate::rig::*;
use tessera_wire::meta::*;

/// `proof` and `proof_epoch` of a chunk.
fn proof(rig: &Rig, chunk_id: u64) -> (i64, u64) {
    let sql = "SELECT proof, proof_epoch FROM chunks WHERE chunk_id = ?1";
    rig.core.db().first(sql, args![chunk_id]).unwrap().expect("a chunk")
}

/// Nodes have reported the last fragment of a proof that began under this epoch.
fn prove(rig: &mut Rig, chunk_id: u64, proof_epoch: u64) {
    rig.core.propose(ChunksProven { chunks: vec![ProvenChunk { chunk_id, proof_epoch }] }.propose());
    rig.settle();
}

/// A file of one chunk without its parity; its acknowledgement with the receipts of all fragments.
fn write_without_parity(rig: &mut Rig, name: &str, content: u8) -> ChunkAck {
    let session = rig.open_write(1, name, &[("durability", "optimistic")]).unwrap().session_id;
    let mut commit = rig.replacing(session, &[content]).unwrap();
    let ack = commit.acks[0].clone();
    commit.acks[0].missing = vec![2];
    rig.ask(&commit).unwrap();
    let receipts = rig.receipts(&ack);
    ChunkAck { stored: vec![0, 1, 2], receipts, ..ack }
}

/// P13: parity that a client supplies while nodes prove the chunk is not part of their proof.
#[test]
fn a_proof_does_not_count_for_parity_that_came_later() {
    let mut rig = Rig::new(4);
    // The writer itself supplies it.
    let ack = write_without_parity(&mut rig, "a", 1);
    let (_, began) = proof(&rig, ack.chunk_id);
    let fragment = FragmentRef { chunk_id: ack.chunk_id, fragment: 2, epoch: ack.epochs[0], disk_id: 0 };
    let op_id = rig.op();
    rig.ask(&CompleteFragments { op_id, fragments: vec![fragment], receipts: vec![ack.receipts[2]] }).unwrap();
    prove(&mut rig, ack.chunk_id, began);
    assert_eq!(proof(&rig, ack.chunk_id), (1, began + 1), "supplied by its writer");
    prove(&mut rig, ack.chunk_id, began + 1);
    assert_eq!(proof(&rig, ack.chunk_id), (2, began + 1));
    // Another writer of the same bytes supplies it.
    let ack = write_without_parity(&mut rig, "b", 2);
    let (_, began) = proof(&rig, ack.chunk_id);
    rig.now_ns += MS;
    let session = rig.open_write(1, "c", &[]).unwrap().session_id;
    let mut commit = rig.replacing(session, &[2]).unwrap();
    assert_eq!(commit.acks[0].chunk_id, ack.chunk_id, "incomplete");
    commit.acks[0] = ack.clone();
    rig.ask(&commit).unwrap();
    prove(&mut rig, ack.chunk_id, began);
    assert_eq!(proof(&rig, ack.chunk_id), (1, began + 1), "supplied by another writer");
    rig.audit();
}

/// P2: a proof of the parity alone does not make a chunk sound that a client could not read meanwhile.
#[test]
fn a_proof_does_not_count_for_a_chunk_that_was_unreadable_meanwhile() {
    let mut rig = Rig::new(4);
    rig.put(1, "a", &[1]).unwrap();
    let chunk_id = rig.read(1, "a").unwrap().extents.unwrap().chunks[0].chunk_id;
    let (_, began) = proof(&rig, chunk_id);
    rig.core.propose(ChunksUnreadable { chunk_ids: vec![chunk_id] }.propose());
    rig.settle();
    prove(&mut rig, chunk_id, began);
    assert_eq!(proof(&rig, chunk_id), (0, began + 1));
    prove(&mut rig, chunk_id, began + 1);
    assert_eq!(proof(&rig, chunk_id), (2, began + 1));
}

/// P2: a client gets a dedup hit on what another client stored only if nodes have proven it.
#[test]
fn a_client_shares_only_what_nodes_have_proven() {
    let mut rig = Rig::new(4);
    let session = rig.open_write(1, "a", &[]).unwrap().session_id;
    let commit = rig.replacing(session, &[1]).unwrap();
    let mut lie = commit.clone();
    (lie.op_id, lie.acks[0].stored) = (rig.op(), vec![0, 1, 2]);
    lie.acks[0].receipts = vec![7; 3];
    let answer = |rig: &mut Rig, name: &str| {
        let request = OpenWrite {
            op_id: rig.op(),
            parent: 1,
            name: name.into(),
            redundancy: "ec:2+1".into(),
            chunks: vec![chunk(1)],
            ..Default::default()
        };
        let opened: OpenWriteReply = rig.ask_as(tessera_wire::Role::Client, BOB, &request).unwrap();
        opened.allocated.unwrap().answers.remove(0)
    };
    assert_eq!(rig.ask(&lie).unwrap().stale.len(), 1);
    let asked = answer(&mut rig, "b");
    assert_eq!(
        (asked.state(), asked.missing),
        (ChunkState::Incomplete, vec![0, 1, 2]),
        "nothing of it counts as stored"
    );
    rig.ask(&commit).unwrap();
    assert_eq!(answer(&mut rig, "c").state(), ChunkState::Durable, "nodes gave receipts for its slices");
    let chunk_id = commit.acks[0].chunk_id;
    rig.core.propose(ChunksUnreadable { chunk_ids: vec![chunk_id] }.propose());
    rig.settle();
    assert_eq!(answer(&mut rig, "d").state(), ChunkState::New, "a reader found no bytes with the name");
}
