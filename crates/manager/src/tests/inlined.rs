//! Tiny files whose bytes the metadata keeps until they move into packs.

use super::unpacked::{POLICY, commit_pack, unpacked};
use crate::config::Config;
use crate::db::{Db, FILE_NAME, digest};
use crate::log::batch::replay_all;
use crate::rig::{Rig, acks};
use tessera_consensus::Room;
use tessera_wire::content::Pieces;
use tessera_wire::meta::*;
use tessera_wire::{Code, Extent};

type Change = fn(&mut Commit);
type Hints<'a> = &'a [(&'a str, &'a str)];

fn name_of(bytes: &[u8]) -> ChunkName {
    let hash = blake3::hash(bytes).as_bytes().to_vec();
    ChunkName { hash: hash.into(), len_bytes: bytes.len() as u64, region: 0 }
}

/// The commit that writes a file of these pieces and brings their bytes.
fn bringing(rig: &mut Rig, name: &str, hints: Hints<'_>, pieces: &[&[u8]]) -> Commit {
    let hint = |(name, value): &(&str, &str)| tessera_wire::Hint { name: name.to_string(), value: value.to_string() };
    let names: Vec<ChunkName> = pieces.iter().map(|bytes| name_of(bytes)).collect();
    let ids: Vec<u64> = (KNOWN_ID..).take(pieces.len()).collect();
    let mut at = 0;
    let extent = |(id, name): (&u64, &ChunkName)| {
        at += name.len_bytes;
        Extent::of_chunk(at - name.len_bytes, name.len_bytes, *id, &name.hash, 0)
    };
    let extents: Vec<Extent> = ids.iter().zip(&names).map(extent).collect();
    let open = OpenWrite {
        parent: 1,
        name: name.into(),
        hints: hints.iter().map(hint).collect(),
        chunks: names,
        ..OpenWrite::default()
    };
    Commit {
        op_id: rig.op(),
        mode: CommitMode::Replace as i32,
        size_bytes: pieces.iter().map(|bytes| bytes.len() as u64).sum(),
        extents,
        open: Some(Box::new(open)),
        preallocated_ids: ids,
        inlined: pieces.iter().map(|bytes| bytes.to_vec().into()).collect(),
        ..Commit::default()
    }
}

fn put(rig: &mut Rig, name: &str, pieces: &[&[u8]]) -> CommitReply {
    let commit = bringing(rig, name, POLICY, pieces);
    rig.ask(&commit).unwrap()
}

/// What a reader gets of a file: its extents, and what they name.
fn listed(rig: &mut Rig, name: &str) -> ListExtentsReply {
    let opened = rig.read(1, name).unwrap();
    rig.ask(&CloseSession { session_id: opened.session_id, ..Default::default() }).unwrap();
    opened.extents.unwrap()
}

fn bytes_of(rig: &mut Rig, name: &str) -> Vec<u8> {
    let list = listed(rig, name);
    let bytes = |extent| list.content_of(extent).map(|content| content.inlined.to_vec()).unwrap();
    list.extents.iter().flat_map(bytes).collect()
}

fn inlined_bytes(rig: &mut Rig) -> u64 {
    rig.audit();
    rig.ask(&GetStatus {}).unwrap().inlined_bytes
}

fn unlink(rig: &mut Rig, name: &str) {
    let op_id = rig.op();
    rig.ask(&Unlink { op_id, parent: 1, name: name.into(), directory: false }).unwrap();
}

/// P4, P5: they are there at once and after a restart, and go with the last extent that names them.
#[test]
fn tiny_files_are_kept_with_their_names() {
    let mut rig = Rig::new(4);
    put(&mut rig, "a", &[b"one", b"two"]);
    let before = put(&mut rig, "b", &[b"three"]);
    assert_eq!((before.number, inlined_bytes(&mut rig)), (1, 11));
    let status = rig.ask(&GetStatus {}).unwrap();
    assert_eq!((status.unique_bytes, status.logical_bytes, status.chunks, status.sessions), (11, 11, 0, 0));
    let mut rig = rig.restart();
    assert_eq!((bytes_of(&mut rig, "a"), bytes_of(&mut rig, "b")), (b"onetwo".to_vec(), b"three".to_vec()));
    assert_eq!(put(&mut rig, "b", &[b"four"]).number, 2);
    // The one before goes once no reader of before the restart can have it.
    (0..60).for_each(|_| rig.tick(1_000));
    assert_eq!((bytes_of(&mut rig, "b"), inlined_bytes(&mut rig)), (b"four".to_vec(), 10));
    ["a", "b"].into_iter().for_each(|name| unlink(&mut rig, name));
    rig.tick(10_000);
    assert_eq!(inlined_bytes(&mut rig), 0);
    assert_eq!(unpacked(&mut rig, 0), [0; 0]);
}

/// P2, P14: nothing changes.
#[test]
pub(super) fn bytes_that_are_not_what_they_are_called_are_refused() {
    let mut rig = Rig::new(4);
    let wrong: [(&str, Change); 7] = [
        ("another byte", |c| c.inlined[1] = b"twO".to_vec().into()),
        ("too few bytes", |c| c.inlined[1] = b"tw".to_vec().into()),
        ("bytes of one chunk only", |c| _ = c.inlined.pop()),
        ("an id of the manager", |c| c.preallocated_ids[0] = 7),
        ("a chunk that no extent names", |c| {
            c.extents.pop();
            c.size_bytes = 3;
        }),
        ("an extent of another name", |c| c.extents[1].name_prefix ^= 1),
        ("an extent that is longer", |c| {
            c.extents[1].len_bytes += 1;
            c.size_bytes += 1;
        }),
    ];
    for (what, change) in wrong {
        let mut commit = bringing(&mut rig, "f", POLICY, &[b"one", b"two"]);
        change(&mut commit);
        assert_eq!(rig.ask(&commit).map_err(|error| error.code()), Err(Code::Invalid), "{what}");
        assert_eq!(inlined_bytes(&mut rig), 0, "{what}");
    }
    // Contents have ids that no client names.
    put(&mut rig, "a", &[b"secret"]);
    let id = listed(&mut rig, "a").extents[0].chunk_id;
    let mut commit = bringing(&mut rig, "f", POLICY, &[b"one"]);
    commit.extents.push(Extent::of_chunk(3, 6, id, &name_of(b"secret").hash, 0));
    commit.size_bytes = 9;
    assert!(rig.ask(&commit).is_err());
    assert_eq!(inlined_bytes(&mut rig), 6);
}

/// What would not move into a pack, and what is too much, is stored in chunks: the client opens the file.
#[test]
fn only_tiny_files_that_will_move_are_taken() {
    let mut rig = Rig::new(4);
    let long = vec![7; 17 << 10];
    let cases: [(Hints<'_>, &[u8]); 4] = [
        (&[("redundancy", "replica:3")], b"one"),
        (&[POLICY[0], ("lifetime", "purge:1d")], b"one"),
        (&[POLICY[0], ("dedup", "off")], b"one"),
        (POLICY, &long),
    ];
    for (hints, bytes) in cases {
        let commit = bringing(&mut rig, "f", hints, &[bytes]);
        assert_eq!(rig.ask(&commit).map_err(|error| error.code()), Err(Code::SessionExpired), "{hints:?}");
    }
    let mut commit = bringing(&mut rig, "f", POLICY, &[&[1; 65]]);
    let whole = commit.extents[0];
    let byte = |at| Extent { offset: at, len_bytes: 1, chunk_offset: at, ..whole };
    commit.extents = (0..65).map(byte).collect();
    assert_eq!(rig.ask(&commit).unwrap_err().code(), Code::SessionExpired, "many extents");
    assert_eq!(inlined_bytes(&mut rig), 0);
    // The most of all files together.
    put(&mut rig, "a", &[b"one"]);
    rig.core.db().conn().execute("UPDATE meta SET inlined_bytes = ?1", [(128 << 20) - 2]).unwrap();
    let mut rig = rig.restart();
    let commit = bringing(&mut rig, "b", POLICY, &[b"one"]);
    assert_eq!(rig.ask(&commit).unwrap_err().code(), Code::SessionExpired);
    let commit = bringing(&mut rig, "b", POLICY, &[b"on"]);
    assert_eq!(rig.ask(&commit).unwrap().number, 1);
}

/// What the store has in a chunk is named; the rest of the file is kept.
#[test]
fn content_that_is_stored_already_is_named() {
    let mut rig = Rig::new(4);
    let session_id = rig.open_write(1, "stored", POLICY).unwrap().session_id;
    let (op_id, chunks) = (rig.op(), vec![name_of(b"one")]);
    let question =
        AllocateChunks { op_id, session_id, redundancy: "replica:2".into(), chunks, ..AllocateChunks::default() };
    let answers = rig.ask(&question).unwrap().answers;
    let commit = Commit {
        op_id: rig.op(),
        session_id,
        mode: CommitMode::Replace as i32,
        size_bytes: 3,
        extents: vec![Extent::of_chunk(0, 3, answers[0].chunk_id, &name_of(b"one").hash, 0)],
        acks: acks(&answers),
        ..Commit::default()
    };
    rig.ask(&commit).unwrap();
    let reply = put(&mut rig, "a", &[b"one", b"two"]);
    assert_eq!(reply.known, [KNOWN_ID]);
    assert_eq!(listed(&mut rig, "a").extents[0].chunk_id, answers[0].chunk_id);
    assert_eq!(inlined_bytes(&mut rig), 3);
}

/// Equal contents of a domain are kept once.
#[test]
fn equal_contents_are_kept_once() {
    let mut rig = Rig::new(4);
    assert_eq!(put(&mut rig, "a", &[b"one", b"two"]).known, [0; 0]);
    assert_eq!(put(&mut rig, "a", &[b"one", b"two"]).known, [KNOWN_ID, KNOWN_ID + 1], "the same again");
    assert_eq!(put(&mut rig, "b", &[b"two", b"three"]).known, [KNOWN_ID]);
    assert_eq!((bytes_of(&mut rig, "b"), inlined_bytes(&mut rig)), (b"twothree".to_vec(), 11));
    unlink(&mut rig, "a");
    rig.tick(10_000);
    assert_eq!((bytes_of(&mut rig, "b"), inlined_bytes(&mut rig)), (b"twothree".to_vec(), 8));
}

/// A pack keeps what its class promises, and a row that rotted serves nobody.
#[test]
fn contents_are_shared_by_those_that_the_same_pack_could_take() {
    let mut rig = Rig::new(5);
    put(&mut rig, "a", &[b"one"]);
    let wider = bringing(&mut rig, "b", &[("redundancy", "auto:3+1")], &[b"one"]);
    assert_eq!((rig.ask(&wider).unwrap().known, inlined_bytes(&mut rig)), (vec![], 6));
    rig.core.db().conn().execute("UPDATE inlined SET bytes = x'112233'", []).unwrap();
    assert_eq!(put(&mut rig, "c", &[b"one"]).known, [0; 0]);
    assert_eq!(bytes_of(&mut rig, "c"), b"one");
    // Many of one length are not gone through.
    let plan = format!("EXPLAIN QUERY PLAN {}", crate::chunks::contents::FIND_INLINED);
    let mut plan = rig.core.db().conn().prepare(&plan).unwrap();
    let steps: Vec<String> = plan
        .query_map((&[0u8; 32][..], 3, 1, 1, &b"one"[..]), |row| row.get(3))
        .unwrap()
        .collect::<Result<_, _>>()
        .unwrap();
    assert!(steps[0].contains("contents_inlined (hash=? AND len_bytes=?)"), "{steps:?}");
}

fn list(rig: &mut Rig, after: u64, unwritten_ms: u64) -> Vec<InlinedContent> {
    let shares = [0, 1].map(|own| rig.ask(&ListInlined { after, unwritten_ms, own, all: 2 }).unwrap());
    assert!(shares.iter().all(|share| share.next_after == 0));
    shares.into_iter().flat_map(|share| share.contents).collect()
}

/// Commits a pack of these bytes for contents of the metadata, by their ids and places.
fn move_into(rig: &mut Rig, parts: &[&[u8]], moved: &[(u64, u64)]) -> Result<CommitReply, tessera_wire::Error> {
    let op_id = rig.op();
    let like = moved[0].0;
    let session_id = rig.ask(&OpenWrite { op_id, pack: true, pack_like: like, ..OpenWrite::default() })?.session_id;
    let name = name_of(&parts.concat());
    let mut end = 0;
    let content = |part: &&[u8]| {
        end += part.len() as u64;
        PackedContent {
            hash: name_of(part).hash.to_vec(),
            offset: end - part.len() as u64,
            len_bytes: part.len() as u64,
        }
    };
    let contents = parts.iter().map(content).collect();
    let moved = moved.iter().map(|(content_id, place)| MovedContent {
        content_id: *content_id,
        from_chunk_id: 0,
        place: *place,
    });
    commit_pack(rig, session_id, &name, Pack { contents, moved: moved.collect(), ..Pack::default() })
}

/// P4, P5: their bytes leave the metadata whatever became of the files since: cut, patched, renamed, of another policy, of an older version.
#[test]
pub(super) fn contents_move_into_a_pack() {
    let mut rig = Rig::new(4);
    put(&mut rig, "a", &[b"one", b"two"]);
    let hints = [POLICY[0], ("lifetime", "keep")];
    for bytes in [b"three", b"fourx"] {
        let commit = bringing(&mut rig, "b", &hints, &[bytes]);
        rig.ask(&commit).unwrap();
    }
    let session_id = rig.open_write(1, "a", &[]).unwrap().session_id;
    let op_id = rig.op();
    let cut =
        Commit { op_id, session_id, mode: CommitMode::Patch as i32, size_bytes: 5, cuts: true, ..Commit::default() };
    assert_eq!(rig.ask(&cut).unwrap().number, 2);
    assert_eq!(list(&mut rig, 0, 60_000), []);
    rig.tick(60_000);
    let all = list(&mut rig, 0, 60_000);
    let ids: Vec<u64> = all.iter().filter_map(|it| it.content.as_ref()).map(|content| content.content_id).collect();
    assert_eq!((ids.len(), list(&mut rig, ids[1], 0).len(), inlined_bytes(&mut rig)), (4, 2, 16));
    assert!(all.iter().all(|it| it.class_id == all[0].class_id && it.domain == 1));
    // A pack that is not what it takes, or takes less than it has: nobody else has the bytes.
    for (parts, moved) in [([b"one", b"twO"], vec![(ids[0], 1), (ids[1], 2)]), ([b"one", b"two"], vec![(ids[0], 1)])] {
        let error = move_into(&mut rig, &parts.map(|part| &part[..]), &moved).unwrap_err();
        assert!(matches!(error.code(), Code::Invalid | Code::SessionExpired), "{error}");
        assert_eq!(inlined_bytes(&mut rig), 16);
    }
    // The third has another length than its place; the first is named twice.
    let moved = [(ids[2], 2), (ids[0], 1), (ids[1], 2), (ids[0], 1)];
    assert_eq!(move_into(&mut rig, &[b"one", b"two"], &moved).unwrap().moved, 2);
    assert_eq!(inlined_bytes(&mut rig), 10);
    let named = listed(&mut rig, "a");
    assert!(named.contents.iter().all(|content| content.chunk_id != 0 && content.inlined.is_empty()), "{named:?}");
    let shown: Vec<(u64, u64)> = named.extents.iter().map(|extent| (extent.chunk_id, extent.len_bytes)).collect();
    assert_eq!(shown, [(ids[0], 3), (ids[1], 2)], "the page is as it was");
    assert_eq!(move_into(&mut rig, &[b"three", b"fourx"], &[(ids[2], 1), (ids[3], 2)]).unwrap().moved, 2);
    assert_eq!((inlined_bytes(&mut rig), list(&mut rig, 0, 0)), (0, vec![]));
    // They are gone from there.
    assert_eq!(move_into(&mut rig, &[b"one"], &[(ids[0], 1)]).unwrap_err().code(), Code::NotFound);
    ["a", "b"].into_iter().for_each(|name| unlink(&mut rig, name));
    rig.tick(10_000);
    rig.audit();
}

/// `put --checksum` finds them by their content.
#[test]
fn tiny_files_are_compared() {
    let mut rig = Rig::new(4);
    let a = put(&mut rig, "a", &[b"one", b"two"]);
    let digest = |parts: &[&[u8]]| {
        let mut pieces = Pieces::default();
        for bytes in parts {
            pieces.named(bytes.len() as u64, name_of(bytes).hash[..].try_into().unwrap());
        }
        FileDigest { ino: a.ino, digest: pieces.digest().to_vec() }
    };
    let files = vec![digest(&[b"one", b"two"]), digest(&[b"one", b"twO"])];
    assert_eq!(rig.ask(&CompareFiles { files }).unwrap().equal, [true, false]);
}

/// A database of before they were kept is like a new one.
#[test]
fn a_database_of_the_second_schema_is_migrated() {
    let dir = tempfile::TempDir::new().unwrap();
    let new = digest(&Db::create(dir.path(), [3; 16]).unwrap()).unwrap();
    let old = tessera_pagesum::open(&dir.path().join(FILE_NAME), rusqlite::OpenFlags::default()).unwrap();
    old.execute_batch(
        "DROP TABLE inlined; DROP INDEX contents_inlined; ALTER TABLE meta DROP COLUMN inlined_bytes; PRAGMA user_version = 2",
    )
    .unwrap();
    drop(old);
    let db = Db::open(dir.path()).unwrap();
    assert_eq!(digest(&db).unwrap(), new);
    let index = "SELECT count(*) FROM sqlite_schema WHERE name = 'contents_inlined'";
    assert_eq!(db.conn().query_row(index, [], |row| row.get::<_, i64>(0)).unwrap(), 1);
}

/// P2: what a pack says of a content is compared with its bytes, not with those of another content that it names for the same place.
#[test]
fn of_two_contents_at_one_place_the_other_stays() {
    let mut rig = Rig::new(4);
    put(&mut rig, "a", &[b"one"]);
    put(&mut rig, "b", &[b"two"]);
    let ids = ["a", "b"].map(|name| listed(&mut rig, name).extents[0].chunk_id);
    let op_id = rig.op();
    let open = OpenWrite { op_id, pack: true, pack_like: ids[0], ..OpenWrite::default() };
    let session_id = rig.ask(&open).unwrap().session_id;
    let contents = vec![PackedContent { hash: name_of(b"one").hash.to_vec(), offset: 0, len_bytes: 3 }];
    let moved = ids.map(|content_id| MovedContent { content_id, from_chunk_id: 0, place: 1 }).to_vec();
    let pack = Pack { contents, moved, ..Pack::default() };
    let error = commit_pack(&mut rig, session_id, &name_of(b"two"), pack).unwrap_err();
    assert_eq!(error.code(), Code::Invalid, "{error}");
    assert_eq!((bytes_of(&mut rig, "a"), bytes_of(&mut rig, "b")), (b"one".to_vec(), b"two".to_vec()));
}

/// P7: a row that rotted on one manager changes nothing that others do: those that are right go on.
#[test]
fn a_rotten_row_stops_no_other_manager() {
    for rots_on_leader in [true, false] {
        let mut rig = Rig::new(4);
        put(&mut rig, "a", &[b"one"]);
        put(&mut rig, "b", &[b"two"]);
        let standby = Db::in_memory([7; 16]).unwrap();
        replay_all(&standby, &rig.log).unwrap();
        let mut replayed = rig.log.len();
        let rotten = if rots_on_leader { rig.core.db().conn() } else { standby.conn() };
        rotten.execute("UPDATE inlined SET bytes = x'112233' WHERE bytes = x'6f6e65'", []).unwrap();
        put(&mut rig, "c", &[b"one"]);
        put(&mut rig, "d", &[b"three"]);
        replay_all(&standby, &rig.log[replayed..]).unwrap();
        replayed = rig.log.len();
        let ids = ["b", "c", "d"].map(|name| listed(&mut rig, name).extents[0].chunk_id);
        let places = [(ids[0], 1), (ids[1], 2), (ids[2], 3)];
        assert_eq!(move_into(&mut rig, &[b"two", b"one", b"three"], &places).unwrap().moved, 3);
        replay_all(&standby, &rig.log[replayed..]).unwrap();
        let next = rig.core.db().meta().unwrap().next_content;
        assert_eq!(standby.meta().unwrap().next_content, next, "rotten on the leader: {rots_on_leader}");
    }
}

/// Questions look at some thousands of contents, and each is shown once.
#[test]
fn lists_of_contents_are_bounded() {
    let mut rig = Rig::new(4);
    put(&mut rig, "a", &[b"one"]);
    let first = listed(&mut rig, "a").extents[0].chunk_id;
    let sql = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 9999)
         INSERT INTO inlined SELECT content_id + i, domain, class_id, since_ns, bytes FROM inlined, n";
    rig.core.db().conn().execute(sql, []).unwrap();
    for all in [1, 2, 7] {
        let (mut shown, mut questions) = (0, 0);
        for own in 0..all {
            let mut after = 0;
            loop {
                let reply = rig.ask(&ListInlined { after, unwritten_ms: 0, own, all }).unwrap();
                (shown, questions) = (shown + reply.contents.len(), questions + 1);
                if reply.next_after == 0 {
                    break;
                }
                assert!(reply.next_after > after.max(first - 1));
                after = reply.next_after;
            }
        }
        assert_eq!(shown, 10_000, "of {all} shares");
        assert!(questions <= 3 * all + 10_000 / 1_024 + 1, "{questions} questions about {all} shares");
    }
    assert_eq!(list(&mut rig, 0, 1_000).len(), 0, "all are young");
    let error = rig.ask(&ListInlined { after: 0, unwritten_ms: 0, own: 2, all: 2 }).unwrap_err();
    assert_eq!(error.code(), Code::Invalid);
}

/// An operator may keep files out of the metadata.
#[test]
fn the_bytes_in_the_metadata_are_bounded_by_a_knob() {
    let mut rig = Rig::with(Db::in_memory([7; 16]).unwrap(), Config { inlined_bytes: 5, ..crate::rig::config() }, 4);
    put(&mut rig, "a", &[b"one"]);
    let commit = bringing(&mut rig, "b", POLICY, &[b"two"]);
    assert_eq!(rig.ask(&commit).unwrap_err().code(), Code::SessionExpired);
    put(&mut rig, "c", &[b"tw"]);
    assert_eq!(inlined_bytes(&mut rig), 5);
}

/// P12: what is kept of tiny files leaves the metadata while its disk has little room.
#[test]
fn contents_move_while_nothing_new_is_taken() {
    let mut rig = Rig::new(4);
    put(&mut rig, "a", &[b"one"]);
    put(&mut rig, "b", &[b"two"]);
    let ids = ["a", "b"].map(|name| listed(&mut rig, name).extents[0].chunk_id);
    rig.core.set_room(Room::Scarce, Some(tessera_wire::Error::new(Code::NoSpace, "the disk is nearly full")));
    let commit = bringing(&mut rig, "c", POLICY, &[b"three"]);
    assert_eq!(rig.ask(&commit).unwrap_err().code(), Code::NoSpace);
    assert_eq!(move_into(&mut rig, &[b"one", b"two"], &[(ids[0], 1), (ids[1], 2)]).unwrap().moved, 2);
    assert_eq!(inlined_bytes(&mut rig), 0);
}

/// A manager whose disk gets full gives back the room of the database's log.
#[test]
fn the_log_of_the_database_is_cut_while_it_is_open() {
    let dir = tempfile::tempdir().unwrap();
    let mut rig = Rig::with(Db::create(dir.path(), [7; 16]).unwrap(), crate::rig::config(), 4);
    (0..100u8).for_each(|i| drop(put(&mut rig, &format!("f{i}"), &[&[i; 4_000]])));
    let log_bytes = || std::fs::metadata(dir.path().join(format!("{FILE_NAME}-wal"))).unwrap().len();
    assert!(log_bytes() > 400_000);
    assert!(rig.core.db().shrink_log().unwrap());
    assert_eq!((log_bytes(), bytes_of(&mut rig, "f7")), (0, vec![7; 4_000]));
}
