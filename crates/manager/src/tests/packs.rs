//! Packs: many files and one chunk in one commit.

use crate::internal::{ChunksUnreadable, Internal};
use crate::rig::{Rig, acks, chunk};
use crate::tests::placement::register_with_free;
use crate::tests::preallocated::redundancy;
use std::collections::BTreeSet;
use tessera_wire::content::Pieces;
use tessera_wire::meta::*;
use tessera_wire::{Code, Extent};

const SPEC: &str = "ec:2+1";

/// A content of 25 bytes, named after one byte.
fn content(c: u8, offset: u64) -> PackedContent {
    PackedContent { hash: vec![c; 32], offset, len_bytes: 25 }
}

/// The commit of a file whose extents are the contents at these places of a pack.
fn file(name: &str, pack: &Pack, places: &[u64]) -> Commit {
    let extent =
        |(i, place): (u64, &u64)| Extent::of_chunk(i * 25, 25, *place, &pack.contents[*place as usize - 1].hash, 0);
    let open = OpenWrite { parent: 1, name: name.into(), hints: redundancy(SPEC), ..Default::default() };
    Commit {
        mode: CommitMode::Replace as i32,
        size_bytes: places.len() as u64 * 25,
        extents: (0..).zip(places).map(extent).collect(),
        open: Some(Box::new(open)),
        ..Default::default()
    }
}

/// A pack of four contents, in the chunk `c`, and its files: name and places of contents.
fn pack(files: &[(&str, &[u64])]) -> Pack {
    let mut pack = Pack { contents: (0..4).map(|i| content(100 + i as u8, i * 25)).collect(), ..Pack::default() };
    pack.files = files.iter().map(|(name, places)| file(name, &pack, places)).collect();
    pack
}

/// Opens the session of a pack whose first file has this name.
fn open(rig: &mut Rig, name: &str) -> Result<OpenWriteReply, tessera_wire::Error> {
    let op_id = rig.op();
    let hints = redundancy(SPEC);
    rig.ask(&OpenWrite { op_id, parent: 1, name: name.into(), hints, pack: true, ..Default::default() })
}

/// The commit of a pack that is stored as the chunk `c`.
fn commit(rig: &mut Rig, c: u8, pack: Pack) -> Commit {
    let opened = open(rig, "first").unwrap();
    assert_eq!((opened.ino, opened.base_version), (0, 0), "a pack is no file");
    let whole = rig.replacing(opened.session_id, &[c]).unwrap();
    Commit { pack: Some(pack), ..whole }
}

fn count(rig: &Rig, what: &str) -> i64 {
    rig.core.db().conn().query_row(&format!("SELECT count(*) FROM {what}"), [], |row| row.get(0)).unwrap()
}

#[test]
pub(super) fn files_of_a_pack_appear_together_and_share_its_chunk() {
    let mut rig = Rig::new(4);
    let request =
        commit(&mut rig, 1, pack(&[("first", &[1]), ("second", &[2, 3]), ("third", &[1, 4]), ("empty", &[])]));
    let reply = rig.ask(&request).unwrap();
    assert_eq!(rig.ask(&request).unwrap(), reply, "P8: the same again is answered, not done");
    assert!(reply.files.iter().all(|file| file.error.is_none() && file.version > 0 && file.number == 1), "{reply:?}");
    assert_eq!((count(&rig, "contents"), count(&rig, "chunks"), count(&rig, "sessions")), (4, 1, 0));
    rig.audit();
    let opened = rig.read(1, "second").unwrap();
    rig.ask(&CloseSession { session_id: opened.session_id, ..Default::default() }).unwrap();
    let mut listed = opened.extents.unwrap();
    let named: Vec<u64> = listed.extents.iter().map(|extent| extent.chunk_id).collect();
    assert_eq!(named, listed.contents.iter().map(|content| content.content_id).collect::<Vec<_>>());
    listed.resolve_contents().unwrap();
    let pack_id = listed.chunks[0].chunk_id;
    let in_pack = |offset, at| Extent::of_chunk(offset, 25, pack_id, &chunk(1).hash, at);
    assert_eq!(listed.extents, [in_pack(0, 25), in_pack(25, 50)]);
    // A content goes with the last file that names it, the pack with its last content.
    for (name, left) in [("first", 4), ("second", 2), ("third", 0)] {
        let op_id = rig.op();
        rig.ask(&Unlink { op_id, parent: 1, name: name.into(), directory: false }).unwrap();
        rig.tick(10_000);
        assert_eq!(count(&rig, "contents"), left, "without {name}");
        rig.audit();
    }
    assert_eq!(count(&rig, "chunks WHERE refs = 0"), count(&rig, "chunks"));
}

#[test]
fn a_file_that_cannot_be_a_part_is_refused_by_itself() {
    let mut rig = Rig::new(4);
    rig.mkdir(1, "directory");
    rig.put(1, "other", &[9]).unwrap();
    let mut all = pack(&[("first", &[1]), ("directory", &[2]), ("other", &[3]), ("lost", &[4]), ("last", &[2])]);
    all.files[2].if_version = Some(0);
    all.files[3].open.as_mut().unwrap().parent = 77;
    all.files[4].open.as_mut().unwrap().hints.push(tessera_wire::Hint { name: "dedup".into(), value: "off".into() });
    let request = commit(&mut rig, 1, all);
    let codes: Vec<Option<Code>> =
        rig.ask(&request).unwrap().files.iter().map(|file| Some(file.error.as_ref()?.code())).collect();
    let expected =
        [None, Some(Code::IsDirectory), Some(Code::VersionConflict), Some(Code::NotFound), Some(Code::SessionExpired)];
    assert_eq!(codes, expected);
    assert_eq!(count(&rig, "contents"), 1, "only what a file names is kept");
    rig.audit();
}

#[test]
fn files_that_a_pack_replaces_lose_their_old_contents() {
    let mut rig = Rig::new(4);
    let request = commit(&mut rig, 1, pack(&[("a", &[1, 2]), ("b", &[2])]));
    rig.ask(&request).unwrap();
    let request = commit(&mut rig, 2, pack(&[("a", &[3]), ("a", &[4])]));
    let reply = rig.ask(&request).unwrap();
    let codes: Vec<Option<Code>> = reply.files.iter().map(|file| Some(file.error.as_ref()?.code())).collect();
    assert_eq!(codes, [None, Some(Code::SessionExpired)], "a name is written once");
    rig.tick(10_000);
    rig.audit();
    assert_eq!(count(&rig, "contents"), 2, "of b, and of a");
    // The same pack again: it has these contents already.
    let request = commit(&mut rig, 1, pack(&[("c", &[2]), ("d", &[4])]));
    assert!(rig.ask(&request).unwrap().files.iter().all(|file| file.error.is_none()));
    assert_eq!(count(&rig, "contents"), 3);
    rig.audit();
    // A patch cuts a content in two; both parts name it.
    let session_id = rig.open_write(1, "b", &[("redundancy", SPEC)]).unwrap().session_id;
    let answers = rig.allocate(session_id, &[chunk(7)]).unwrap().answers;
    let patch = Commit {
        op_id: rig.op(),
        session_id,
        mode: CommitMode::Patch as i32,
        size_bytes: 25,
        extents: vec![Extent::of_chunk(10, 5, answers[0].chunk_id, &chunk(7).hash, 0)],
        acks: acks(&answers),
        ..Default::default()
    };
    rig.ask(&patch).unwrap();
    rig.audit();
    let mut listed = rig.read(1, "b").unwrap().extents.unwrap();
    assert_eq!(listed.contents.len(), 1);
    listed.resolve_contents().unwrap();
    assert_eq!(listed.extents.iter().map(|extent| extent.chunk_offset).collect::<Vec<_>>(), [25, 0, 40]);
}

/// P14.
#[test]
fn wrong_packs_are_refused() {
    let mut rig = Rig::new(4);
    let good = commit(&mut rig, 1, pack(&[("a", &[1]), ("b", &[2])]));
    type Spoil = fn(&mut Commit);
    let wrong: [(&str, Spoil); 16] = [
        ("two chunks", |c| c.extents.push(c.extents[0])),
        ("a hole", |c| c.extents[0] = Extent::hole(0, 100)),
        ("partial", |c| c.partial = true),
        ("a content beyond the chunk", |c| c.pack.as_mut().unwrap().contents[3].offset = 76),
        ("a content that overlaps", |c| c.pack.as_mut().unwrap().contents[1].offset = 24),
        ("a name too short", |c| _ = c.pack.as_mut().unwrap().contents[1].hash.pop()),
        ("a content that is not there", |c| c.pack.as_mut().unwrap().files[0].extents[0].chunk_id = 5),
        ("more than the content has", |c| c.pack.as_mut().unwrap().files[0].extents[0].len_bytes = 26),
        ("by another name", |c| c.pack.as_mut().unwrap().files[0].extents[0].name_prefix = 1),
        ("a pack in a pack", |c| c.pack.as_mut().unwrap().files[0].pack = Some(Pack::default())),
        ("no target", |c| c.pack.as_mut().unwrap().files[0].open = None),
        ("a file by number", |c| c.pack.as_mut().unwrap().files[0].open.as_mut().unwrap().ino = 5),
        ("opened and packed", |c| c.open = c.pack.as_ref().unwrap().files[0].open.clone()),
        ("files and moves", |c| {
            c.pack.as_mut().unwrap().moved.push(MovedContent { content_id: 1 << 48, from_chunk_id: 1, place: 1 })
        }),
        ("too many files", |c| {
            let pack = c.pack.as_mut().unwrap();
            pack.files = vec![pack.files[0].clone(); 1_025];
        }),
        ("no bytes", |c| c.pack.as_mut().unwrap().contents[0].len_bytes = 0),
    ];
    for (what, spoil) in wrong {
        let mut request = Commit { op_id: rig.op(), ..good.clone() };
        spoil(&mut request);
        let error = rig.ask(&request).expect_err(what);
        assert_eq!(error.code(), Code::Invalid, "{what}: {error}");
        rig.audit();
    }
    // A session of a file takes no pack, and that of a pack no file.
    let session_id = rig.open_write(1, "f", &[("redundancy", SPEC)]).unwrap().session_id;
    let whole = rig.replacing(session_id, &[2]).unwrap();
    assert_eq!(rig.ask(&Commit { pack: good.pack.clone(), ..whole }).unwrap_err().code(), Code::Invalid);
    let op_id = rig.op();
    for partial in [false, true] {
        let file = Commit { op_id: op_id + u64::from(partial), pack: None, partial, ..good.clone() };
        assert_eq!(rig.ask(&file).unwrap_err().code(), Code::Invalid);
    }
    let op_id = rig.op();
    let mut hints = redundancy(SPEC);
    hints.push(tessera_wire::Hint { name: "placement".into(), value: "local".into() });
    let local = OpenWrite { op_id, parent: 1, name: b"p".to_vec(), hints, pack: true, ..Default::default() };
    assert_eq!(rig.ask(&local).unwrap_err().code(), Code::SessionExpired);
    rig.ask(&good).unwrap();
    rig.audit();
}

/// Opens the session of a pack like this chunk.
fn open_like(rig: &mut Rig, chunk_id: u64) -> Result<OpenWriteReply, tessera_wire::Error> {
    let op_id = rig.op();
    rig.ask(&OpenWrite { op_id, pack: true, pack_like: chunk_id, ..Default::default() })
}

#[test]
fn packs_of_which_little_is_left_are_listed_and_moved() {
    let mut rig = Rig::new(4);
    for (c, names) in [(1, ["a", "b", "c", "d"]), (2, ["e", "f", "g", "h"])] {
        let files: Vec<(&str, &[u64])> = names.iter().zip([&[1][..], &[2], &[3], &[4]]).map(|(n, p)| (*n, p)).collect();
        let request = commit(&mut rig, c, pack(&files));
        rig.ask(&request).unwrap();
    }
    let list = |rig: &mut Rig, percent| rig.ask(&ListPacks { after: 0, most_living_percent: percent }).unwrap();
    assert_eq!((list(&mut rig, 99).packs.len(), list(&mut rig, 100).packs.len()), (0, 2));
    for name in ["a", "b", "c", "f", "g", "h"] {
        let op_id = rig.op();
        rig.ask(&Unlink { op_id, parent: 1, name: name.into(), directory: false }).unwrap();
    }
    rig.tick(10_000);
    let listed = list(&mut rig, 25);
    assert_eq!((listed.packs.len(), listed.classes.len(), listed.next_after), (2, 1, 0));
    let left: Vec<&ContentInfo> = listed.packs.iter().flat_map(|pack| &pack.contents).collect();
    assert_eq!(left.iter().map(|content| content.chunk_offset).collect::<Vec<_>>(), [75, 0]);
    let old: Vec<u64> = left.iter().map(|content| content.chunk_id).collect();
    let moved: Vec<MovedContent> = left
        .iter()
        .zip(1..)
        .map(|(content, place)| MovedContent { content_id: content.content_id, from_chunk_id: content.chunk_id, place })
        .collect();
    let contents: Vec<PackedContent> = left
        .iter()
        .zip([0, 25])
        .map(|(content, offset)| PackedContent { hash: content.hash.clone(), offset, len_bytes: 25 })
        .collect();
    let session_id = open_like(&mut rig, old[0]).unwrap().session_id;
    let whole = rig.replacing(session_id, &[3]).unwrap();
    let new = whole.extents[0].chunk_id;
    let request =
        Commit { pack: Some(Pack { contents: contents.clone(), moved: moved.clone(), ..Default::default() }), ..whole };
    assert_eq!(rig.ask(&request).unwrap().moved, 2);
    rig.audit();
    for (name, at) in [("d", 0), ("e", 25)] {
        let mut extents = rig.read(1, name).unwrap().extents.unwrap();
        extents.resolve_contents().unwrap();
        assert_eq!((extents.extents[0].chunk_id, extents.extents[0].chunk_offset), (new, at), "{name}");
    }
    assert_eq!(count(&rig, "chunks WHERE refs = 0 AND kept = 1"), 2, "readers may know them for a while");
    // Again: nothing lies where it is moved from. A name that is another one's moves nothing either, nor a pack of another class.
    let mut wrong = moved.clone();
    wrong[0].from_chunk_id = new;
    for (c, moved) in [(4, moved), (5, vec![MovedContent { place: 2, ..wrong[0] }])] {
        let session_id = open_like(&mut rig, new).unwrap().session_id;
        let whole = rig.replacing(session_id, &[c]).unwrap();
        let pack = Pack { contents: contents.clone(), moved, ..Default::default() };
        assert_eq!(rig.ask(&Commit { pack: Some(pack), ..whole }).unwrap().moved, 0);
        rig.audit();
    }
    let session_id = open_like(&mut rig, new).unwrap().session_id;
    let whole = rig.replacing(session_id, &[6]).unwrap();
    wrong[0].place = 3;
    let pack = Pack { contents, moved: wrong, ..Default::default() };
    assert_eq!(rig.ask(&Commit { pack: Some(pack), ..whole }).unwrap_err().code(), Code::Invalid);
    assert_eq!(open_like(&mut rig, 99).unwrap_err().code(), Code::NotFound);
}

#[test]
fn many_reads_are_described_at_once() {
    let mut rig = Rig::new(4);
    let files: &[(&str, &[u64])] =
        &[("first", &[1]), ("second", &[2, 3]), ("empty", &[]), ("pieces", &[1; 64]), ("too many", &[1; 65])];
    let request = commit(&mut rig, 1, pack(files));
    rig.ask(&request).unwrap();
    rig.mkdir(1, "directory");
    rig.put(1, "own", &[9]).unwrap();
    let names = ["own", "second", "directory", "empty", "absent", "", "pieces", "too many", "second"];
    let open = |name: &str| OpenRead { parent: 1, name: name.into(), ..OpenRead::default() };
    let request = DescribeReads { files: names.map(open).to_vec(), ..DescribeReads::default() };
    let reply = rig.ask(&request).unwrap();
    assert_eq!(reply.files.len(), names.len());
    assert_eq!(rig.core.soft.sessions.len(), 0, "nothing is open");
    let (mut classes, mut pgs) = (BTreeSet::new(), BTreeSet::new());
    for (name, file) in names.into_iter().zip(&reply.files) {
        if ["directory", "absent", "", "too many"].contains(&name) {
            assert_eq!(*file, OpenReadReply::default(), "{name}");
            continue;
        }
        let mut opened = rig.read(1, name).unwrap();
        (opened.session_id, opened.session_ms) = (0, 0);
        let extents = opened.extents.as_mut().unwrap();
        classes.extend(extents.classes.drain(..).map(|class| class.class_id));
        pgs.extend(extents.map.take().unwrap().pgs.into_iter().map(|pg| pg.pg_id));
        assert_eq!(*file, opened, "{name}");
    }
    assert_eq!(reply.classes.iter().map(|class| class.class_id).collect::<BTreeSet<_>>(), classes);
    assert_eq!(reply.map.unwrap().pgs.iter().map(|pg| pg.pg_id).collect::<BTreeSet<_>>(), pgs);
    let request = DescribeReads { files: vec![open("first"); 129], ..DescribeReads::default() };
    assert_eq!(rig.ask(&request).unwrap_err().code(), Code::Invalid);
}

/// A file in a pack has the name of its contents; the pack must be durable.
#[test]
fn files_of_packs_are_compared_by_their_contents() {
    let mut rig = Rig::new(4);
    let request = commit(&mut rig, 1, pack(&[("first", &[1]), ("second", &[2, 3]), ("empty", &[])]));
    let files = rig.ask(&request).unwrap().files;
    let digest = |names: &[u8]| {
        let mut pieces = Pieces::default();
        names.iter().for_each(|name| pieces.named(25, &[*name; 32]));
        pieces.digest().to_vec()
    };
    let file = |i: usize, names: &[u8]| FileDigest { ino: files[i].ino, digest: digest(names) };
    let asked = vec![file(0, &[100]), file(1, &[101, 102]), file(2, &[]), file(0, &[101]), file(1, &[101])];
    let request = CompareFiles { files: asked };
    assert_eq!(rig.ask(&request).unwrap().equal, [true, true, true, false, false]);
    let pack_id = rig.read(1, "first").unwrap().extents.unwrap().chunks[0].chunk_id;
    rig.core.propose(ChunksUnreadable { chunk_ids: vec![pack_id] }.propose());
    rig.settle();
    assert_eq!(rig.ask(&request).unwrap().equal, [false, false, true, false, false]);
}

/// P5: a store that writers have filled has room for packs that are written anew, so that space comes back.
#[test]
fn packs_are_written_anew_in_a_store_that_is_full_for_writers() {
    let mut rig = Rig::new(4);
    let request = commit(&mut rig, 1, pack(&[("first", &[1]), ("second", &[2])]));
    rig.ask(&request).unwrap();
    let opened = rig.read(1, "first").unwrap();
    let old = opened.extents.unwrap().chunks[0].chunk_id;
    rig.ask(&CloseSession { session_id: opened.session_id, ..Default::default() }).unwrap();
    // Less than the reserve of 1/64 of a disk, and more than half of it.
    for node in 1..=4 {
        register_with_free(&mut rig, node, (1 << 30) * 3 / 4, 64 << 30);
    }
    let allocate = |rig: &mut Rig, session_id: u64| {
        let (op_id, redundancy) = (rig.op(), SPEC.to_string());
        let chunks = vec![ChunkName { hash: vec![session_id as u8; 32].into(), len_bytes: 1 << 20, region: 0 }];
        rig.ask(&AllocateChunks { op_id, session_id, redundancy, chunks, ..Default::default() })
    };
    let session_id = open(&mut rig, "third").unwrap().session_id;
    assert_eq!(allocate(&mut rig, session_id).unwrap_err().code(), Code::NoSpace);
    let session_id = open_like(&mut rig, old).unwrap().session_id;
    assert_eq!(allocate(&mut rig, session_id).unwrap().answers.len(), 1);
    // The space that is kept for this is not for new files.
    let session_id = open_like(&mut rig, old).unwrap().session_id;
    let request = rig.replacing(session_id, &[9]).unwrap();
    let request = Commit { pack: Some(pack(&[("new", &[1])])), ..request };
    assert_eq!(rig.ask(&request).unwrap_err().code(), Code::Invalid);
    for node in 1..=4 {
        register_with_free(&mut rig, node, 1 << 28, 64 << 30);
    }
    let session_id = open_like(&mut rig, old).unwrap().session_id;
    assert_eq!(allocate(&mut rig, session_id).unwrap_err().code(), Code::NoSpace, "the rest is for nodes and repair");
    rig.audit();
}
