//! The encoded bytes of the manager's own commands and of encoded columns stay what they are (P14): logs and databases
//! hold them.

use crate::db::pages;
use crate::internal::*;
use crate::namespace::hints::HintSet;
use bytes::Bytes;
use prost::Message;
use tessera_wire::meta::FragmentRef;
use tessera_wire::{Code, Error, Extent, Health, hex};

fn fragment() -> FragmentRef {
    FragmentRef { chunk_id: 300, fragment: 2, epoch: 7, disk_id: 9 }
}

fn error() -> Error {
    Error::new(Code::NotFound, "no")
}

/// A command with every field set, as it is logged.
fn logged<C: Internal>(command: C) -> String {
    let proposal = command.propose();
    assert_eq!(C::decode(proposal.body.clone()).unwrap().encode_to_vec(), proposal.body);
    format!("{:x} {}", proposal.kind, hex(&proposal.body)).trim_end().into()
}

#[test]
fn logged_commands_keep_their_bytes() {
    let reader = ReaderRow { session_id: 1, client_id: u64::MAX, started_ns: -3, ino: 4, version: 500, number: 6 };
    let change = Move { pg_id: 1, position: 2, disk_id: 300, incoming_was: 4, incoming: 5 };
    let advance = AdvanceBackfill { pg_id: 1, position: 2, incoming: 3, from: 4, to: 500, done: vec![5, 600] };
    let finish = FinishBackfill { pg_id: 1, position: 2, incoming: 300 };
    let page = InventoryPage {
        disk_id: 1,
        after: Some(fragment()),
        held: vec![fragment(), fragment()],
        last: true,
        bound: 500,
        pending: vec![6, 700],
    };
    let commands = [
        logged(NewTerm { term: 300, restored: true }),
        logged(RecordRefusal { client_id: u64::MAX, op_id: 2, error: Some(error()) }),
        logged(EndSessions { session_ids: vec![1, 300] }),
        logged(PersistReaders { readers: vec![reader] }),
        logged(TrimVersions { inos: vec![1, 300] }),
        logged(ReleaseOrphans { inos: vec![1, 300] }),
        logged(SweepPages { limit: 64 }),
        logged(PruneReplies { to_seq: 300 }),
        logged(NoteLeases {}),
        logged(ExpireFiles { inos: vec![1, 300] }),
        logged(NoteLockers { client_ids: vec![1, u64::MAX] }),
        logged(SetNodeHealth { node_id: 1, incarnation: 300, health: Health::Out as i32 }),
        logged(FailDisks { disk_ids: vec![1, 300] }),
        logged(MoveMembers { moves: vec![change] }),
        logged(advance),
        logged(FinishBackfills { backfills: vec![finish] }),
        logged(FragmentsDone { fragments: vec![fragment()] }),
        logged(FragmentsBad { fragments: vec![fragment()] }),
        logged(DeletesDone { fragments: vec![fragment()] }),
        logged(CollectGarbage { before_ns: -300, limit: 4, held_from_ns: 0, kept_before_ns: 0 }),
        logged(SetInventory { want: vec![1, 300], done_disk_id: 4, done_wanted: 5, done_incarnation: 6 }),
        logged(page),
        logged(DisksDrained { disk_ids: vec![1, 300] }),
        logged(ChunksProven { chunks: vec![ProvenChunk { chunk_id: 1, proof_epoch: 300 }] }),
        logged(ChunksUnreadable { chunk_ids: vec![1, 300] }),
        logged(SetGroups { create: vec![NewGroup { disk_ids: vec![1, 300] }], close: vec![4] }),
    ];
    let expected = include_str!("stored_commands.txt");
    assert_eq!(commands.join("\n"), expected.trim_end(), "a logged command has other bytes");
}

#[test]
fn encoded_columns_keep_their_bytes() {
    let replies = CachedReplies {
        answers: vec![
            CachedReply { client_id: u64::MAX, op_id: 300, reply: Bytes::from_static(b"ab"), error: None },
            CachedReply { client_id: 1, op_id: 2, reply: Bytes::new(), error: Some(error()) },
        ],
    };
    let mut hints = HintSet::default();
    hints.set("dedup", "off").unwrap();
    hints.set("lifetime", "purge:2d").unwrap();
    let page =
        [Extent::of_chunk(10, 5, 1, b"abcdefghi", 0), Extent::hole(15, 700), Extent::of_chunk(800, 1, 3, b"jk", 300)];
    let columns = [replies.encode_to_vec(), hints.column(), pages::encode(&page)];
    let expected = [
        "0a1208ffffffffffffffffff0110ac021a0261620a0c080110022206080312026e6f",
        "0a0c0a05646564757012036f66660a140a086c69666574696d65120870757267653a3264",
        "0a03000055120405bc05011a0301000322040000ac022a18686766656463626100000000000000000000000000006b6a",
    ];
    assert_eq!(columns.map(|column| hex(&column)), expected, "an encoded column has other bytes");
}
