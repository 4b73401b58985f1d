//! Files and versions against a model that maps every byte of every version to a byte of some content.

use crate::config::Config;
use crate::rig::*;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use std::cell::RefCell;
use std::collections::BTreeMap;
use tessera_wire::meta::*;
use tessera_wire::{Code, Error, Extent, InodeKind};

/// Name of a byte: content and offset in it; content 0 is a hole.
type Byte = (u8, u64);

/// A piece to write: gap before it, content (0: an explicit hole), part of the content's 100 bytes.
#[derive(Debug, Clone)]
struct Part {
    gap: u64,
    content: u8,
    skip: u64,
    len: u64,
}

#[derive(Debug, Clone)]
enum Op {
    Replace { file: u8, parts: Vec<Part>, staged: usize },
    Patch { file: u8, parts: Vec<Part>, staged: usize, size: u64, cuts: bool },
    Append { file: u8, parts: Vec<Part>, staged: usize },
    Lifetime { file: u8, keep: u64 },
    Unlink { file: u8 },
    Rename { file: u8, to: u8 },
    OpenRead { file: u8 },
    CloseRead,
    Abandon { file: u8, parts: Vec<Part> },
    Tick { ms: i64 },
}

fn parts() -> impl Strategy<Value = Vec<Part>> {
    let part = (0u64..60, 0u8..7, 0u64..90, 1u64..100).prop_map(|(gap, content, skip, len)| Part {
        gap,
        content,
        skip,
        len: len.min(100 - skip),
    });
    prop::collection::vec(part, 0..7)
}

fn op() -> impl Strategy<Value = Op> {
    let file = || 0u8..3;
    prop_oneof![
        3 => (file(), parts(), 0usize..3).prop_map(|(file, parts, staged)| Op::Replace { file, parts, staged }),
        6 => (file(), parts(), 0usize..3, 0u64..900, any::<bool>())
            .prop_map(|(file, parts, staged, size, cuts)| Op::Patch { file, parts, staged, size, cuts }),
        4 => (file(), parts(), 0usize..3).prop_map(|(file, parts, staged)| Op::Append { file, parts, staged }),
        1 => (file(), 0u64..4).prop_map(|(file, keep)| Op::Lifetime { file, keep }),
        1 => file().prop_map(|file| Op::Unlink { file }),
        1 => (file(), file()).prop_map(|(file, to)| Op::Rename { file, to }),
        2 => file().prop_map(|file| Op::OpenRead { file }),
        1 => Just(Op::CloseRead),
        1 => (file(), parts()).prop_map(|(file, parts)| Op::Abandon { file, parts }),
        1 => (1i64..3000).prop_map(|ms| Op::Tick { ms }),
    ]
}

#[derive(Debug, Clone, Default)]
struct File {
    ino: u64,
    versions: BTreeMap<u64, Vec<Byte>>,
    number: u64,
    /// None: keep all.
    keep: Option<u64>,
}

struct Open {
    session: u64,
    bytes: Vec<Byte>,
}

struct Model {
    dir: u64,
    files: BTreeMap<u8, File>,
    open: Vec<Open>,
    /// Content by chunk id.
    contents: BTreeMap<u64, u8>,
}

fn name(file: u8) -> String {
    format!("f{file}")
}

/// The bytes that parts cover: (offset, bytes). `contiguous`: gaps become explicit holes.
fn lay_out(parts: &[Part], contiguous: bool) -> Vec<(u64, u8, u64, u64)> {
    let mut at = 0;
    let mut out = Vec::new();
    for part in parts {
        if part.gap > 0 && contiguous {
            out.push((at, 0, 0, part.gap));
        }
        at += part.gap;
        out.push((at, part.content, if part.content == 0 { 0 } else { part.skip }, part.len));
        at += part.len;
    }
    out
}

fn paint(bytes: &mut Vec<Byte>, shift: u64, pieces: &[(u64, u8, u64, u64)]) {
    for &(at, content, skip, len) in pieces {
        let end = (shift + at + len) as usize;
        if bytes.len() < end {
            bytes.resize(end, (0, 0));
        }
        for i in 0..len {
            bytes[(shift + at + i) as usize] = if content == 0 { (0, 0) } else { (content, skip + i) };
        }
    }
}

/// A write: a partial commit stages the first `staged` pieces; `abandon`: no other commit follows.
struct Write<'a> {
    file: u8,
    mode: CommitMode,
    pieces: &'a [(u64, u8, u64, u64)],
    size_bytes: u64,
    cuts: bool,
    staged: usize,
    abandon: bool,
}

/// Allocates, stages and commits.
fn write(rig: &mut Rig, model: &mut Model, write: Write) -> Result<CommitReply, Error> {
    let Write { file, mode, pieces, size_bytes, cuts, staged, abandon } = write;
    let session_id = rig.open_write(model.dir, &name(file), &[])?.session_id;
    let names: Vec<ChunkName> = pieces.iter().filter(|p| p.1 != 0).map(|p| chunk(p.1)).collect();
    let answers = if names.is_empty() { Vec::new() } else { rig.allocate(session_id, &names)?.answers };
    let mut ids: BTreeMap<u8, u64> = BTreeMap::new();
    for (piece, answer) in pieces.iter().filter(|p| p.1 != 0).zip(&answers) {
        ids.insert(piece.1, answer.chunk_id);
        model.contents.insert(answer.chunk_id, piece.1);
    }
    let extents: Vec<Extent> = pieces
        .iter()
        .map(|&(offset, content, skip, len)| match content {
            0 => Extent { chunk_offset: skip, ..Extent::hole(offset, len) },
            _ => Extent::of_chunk(offset, len, ids[&content], &chunk(content).hash, skip),
        })
        .collect();
    let mut acks = acks(&answers);
    let staged = staged.min(extents.len());
    let (first, rest) = extents.split_at(staged);
    let commit = Commit { session_id, mode: mode as i32, size_bytes, cuts, ..Default::default() };
    if staged > 0 || abandon {
        let op_id = rig.op();
        let partial = Commit { op_id, partial: true, extents: first.to_vec(), acks: acks.clone(), ..commit.clone() };
        rig.ask(&partial)?;
        acks.clear();
        if abandon {
            return Ok(CommitReply::default());
        }
        // The second part acknowledges the chunks that the first did not name.
        acks = crate::rig::acks(&answers);
        acks.retain(|a| {
            rest.iter().any(|e| e.chunk_id == a.chunk_id) && !first.iter().any(|e| e.chunk_id == a.chunk_id)
        });
    }
    let op_id = rig.op();
    rig.ask(&Commit { op_id, extents: rest.to_vec(), acks, ..commit })
}

fn committed(model: &mut Model, file: u8, reply: &CommitReply, bytes: Vec<Byte>) {
    let entry = model.files.entry(file).or_insert_with(|| File { keep: Some(1), ..Default::default() });
    entry.ino = reply.ino;
    entry.number += 1;
    assert_eq!(reply.number, entry.number);
    entry.versions.insert(entry.number, bytes);
    if let Some(keep) = entry.keep {
        while entry.versions.len() as u64 > keep {
            entry.versions.pop_first();
        }
    }
}

fn step(rig: &mut Rig, model: &mut Model, op: &Op) {
    match op {
        Op::Replace { file, parts, staged } => {
            let pieces = lay_out(parts, true);
            let mut bytes = Vec::new();
            paint(&mut bytes, 0, &pieces);
            let reply = write(
                rig,
                model,
                Write {
                    file: *file,
                    mode: CommitMode::Replace,
                    pieces: &pieces,
                    size_bytes: bytes.len() as u64,
                    cuts: false,
                    staged: *staged,
                    abandon: false,
                },
            )
            .unwrap();
            committed(model, *file, &reply, bytes);
        }
        Op::Patch { file, parts, staged, size, cuts } => {
            let pieces = lay_out(parts, false);
            let mut bytes = model.files.get(file).map_or(Vec::new(), |f| f.versions[&f.number].clone());
            paint(&mut bytes, 0, &pieces);
            let end = pieces.last().map_or(0, |p| p.0 + p.3);
            let size = (*size).max(end);
            let kept = if *cuts { size } else { size.max(bytes.len() as u64) };
            bytes.resize(kept as usize, (0, 0));
            let reply = write(
                rig,
                model,
                Write {
                    file: *file,
                    mode: CommitMode::Patch,
                    pieces: &pieces,
                    size_bytes: size,
                    cuts: *cuts,
                    staged: *staged,
                    abandon: false,
                },
            )
            .unwrap();
            committed(model, *file, &reply, bytes);
        }
        Op::Append { file, parts, staged } => {
            let pieces = lay_out(parts, true);
            let mut bytes = model.files.get(file).map_or(Vec::new(), |f| f.versions[&f.number].clone());
            let base = bytes.len() as u64;
            paint(&mut bytes, base, &pieces);
            let len = bytes.len() as u64 - base;
            let reply = write(
                rig,
                model,
                Write {
                    file: *file,
                    mode: CommitMode::Append,
                    pieces: &pieces,
                    size_bytes: len,
                    cuts: false,
                    staged: *staged,
                    abandon: false,
                },
            )
            .unwrap();
            assert_eq!(reply.append_offset, base);
            committed(model, *file, &reply, bytes);
        }
        Op::Lifetime { file, keep } => {
            let Some(entry) = model.files.get_mut(file) else { return };
            let value = if *keep == 0 { "keep".to_string() } else { format!("replace:{keep}") };
            let (op_id, ino) = (rig.op(), entry.ino);
            let name = "user.tessera.lifetime".to_string();
            rig.ask(&SetXattr { op_id, ino, name, value: value.into_bytes(), ..Default::default() }).unwrap();
            entry.keep = (*keep > 0).then_some(*keep);
        }
        Op::Unlink { file } => {
            let op_id = rig.op();
            let request = Unlink { op_id, parent: model.dir, name: name(*file).into(), directory: false };
            let expected = model.files.remove(file).map(|_| ()).ok_or(Code::NotFound);
            assert_eq!(rig.ask(&request).map(|_| ()).map_err(|e| e.code()), expected);
        }
        Op::Rename { file, to } => {
            let (op_id, from_parent, to_parent) = (rig.op(), model.dir, model.dir);
            let (from_name, to_name) = (name(*file).into(), name(*to).into());
            let request =
                Rename { op_id, from_parent, from_name, to_parent, to_name, no_replace: false, exchange: false };
            let result = rig.ask(&request);
            if let Some(moved) = model.files.remove(file) {
                result.unwrap();
                model.files.insert(*to, moved);
            } else {
                assert_eq!(result.unwrap_err().code(), Code::NotFound);
            }
        }
        Op::OpenRead { file } => {
            let Some(entry) = model.files.get(file) else { return };
            let session = rig.ask(&OpenRead { ino: entry.ino, ..Default::default() }).unwrap().session_id;
            model.open.push(Open { session, bytes: entry.versions[&entry.number].clone() });
        }
        Op::CloseRead => {
            if let Some(open) = model.open.pop() {
                rig.ask(&CloseSession { session_id: open.session, ..Default::default() }).unwrap();
            }
        }
        Op::Abandon { file, parts } => {
            let pieces = lay_out(parts, true);
            write(
                rig,
                model,
                Write {
                    file: *file,
                    mode: CommitMode::Replace,
                    pieces: &pieces,
                    size_bytes: 0,
                    cuts: false,
                    staged: pieces.len(),
                    abandon: true,
                },
            )
            .unwrap();
        }
        Op::Tick { ms } => rig.tick(*ms),
    }
}

/// Reads a version through a session in replies of a few bytes, and names each byte.
fn read(rig: &mut Rig, model: &Model, session_id: u64, len: usize, stride: u64) -> Vec<Byte> {
    let mut bytes: Vec<Byte> = Vec::new();
    while bytes.len() < len {
        let offset = bytes.len() as u64;
        let request = ListExtents { session_id, offset, len_bytes: stride, known_map_version: u64::MAX };
        let answer = rig.ask(&request).unwrap();
        assert!(answer.next_offset > offset, "no progress at {offset}");
        assert!(answer.next_offset >= (offset + stride).min(len as u64), "less than was asked for");
        let mut at = offset;
        for extent in &answer.extents {
            assert!(extent.offset <= at, "a gap at {at}");
            for i in at - extent.offset..extent.len_bytes {
                let byte = match extent.chunk_id {
                    0 => (0, 0),
                    id => (model.contents[&id], extent.chunk_offset + i),
                };
                bytes.push(byte);
            }
            at = extent.offset + extent.len_bytes;
        }
        assert_eq!(at, answer.next_offset);
    }
    assert_eq!(bytes.len(), len, "longer than the file");
    bytes
}

fn compare(rig: &mut Rig, model: &Model) {
    for file in model.files.values() {
        let versions = rig.ask(&ListVersions { ino: file.ino }).unwrap().versions;
        // Readers may hold older ones for longer.
        let kept: Vec<u64> = versions.iter().map(|v| v.number).collect();
        assert!(
            file.versions.keys().all(|number| kept.contains(number)),
            "{kept:?}, expected {:?}",
            file.versions.keys()
        );
        for (&number, bytes) in &file.versions {
            let request = OpenRead { ino: file.ino, number, ..Default::default() };
            let opened = rig.ask(&request).unwrap();
            assert_eq!(opened.version.unwrap().size_bytes, bytes.len() as u64);
            assert_eq!(&read(rig, model, opened.session_id, bytes.len(), 70), bytes, "version {number}");
            rig.ask(&CloseSession { session_id: opened.session_id, ..Default::default() }).unwrap();
        }
    }
    for open in &model.open {
        assert_eq!(read(rig, model, open.session, open.bytes.len(), 333), open.bytes, "an open version changed");
    }
}

thread_local! {
    static RIG: RefCell<Option<(Rig, u32)>> = const { RefCell::new(None) };
}

/// The rig serves many cases, and is sometimes replaced so that recounts stay quick.
fn run(ops: &[Op]) {
    RIG.with_borrow_mut(|slot| {
        let (mut rig, cases) = slot.take().filter(|(_, cases)| *cases < 100).unwrap_or_else(|| (Rig::new(4), 0));
        let name = format!("case-{}", rig.op());
        let dir = rig.mkdir(1, &name);
        let mut model = Model { dir, files: BTreeMap::new(), open: Vec::new(), contents: contents(&rig) };
        for op in ops {
            step(&mut rig, &mut model, op);
        }
        compare(&mut rig, &model);
        if cases % 20 == 19 {
            rig.audit();
        }
        for open in std::mem::take(&mut model.open) {
            rig.ask(&CloseSession { session_id: open.session, ..Default::default() }).unwrap();
        }
        if cases == 99 {
            at_rest(&mut rig);
        }
        *slot = Some((rig, cases + 1));
    });
}

/// Chunks that earlier cases have stored: dedup hits may name them.
fn contents(rig: &Rig) -> BTreeMap<u64, u8> {
    let mut rows = rig.core.db().stmt("SELECT chunk_id, hash FROM chunks").unwrap();
    let rows = rows.query_map([], |row| Ok((row.get::<_, i64>(0)? as u64, row.get::<_, Vec<u8>>(1)?[0]))).unwrap();
    rows.map(|row| row.unwrap()).collect()
}

/// After sessions end, their staged pages and pins are gone, and the counts are right (P4, P5).
fn at_rest(rig: &mut Rig) {
    rig.tick(1);
    rig.tick(61_000);
    for _ in 0..50 {
        rig.tick(100);
    }
    rig.audit();
    let count = |sql: &str| rig.core.db().conn().query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap();
    assert_eq!(count("SELECT count(*) FROM sessions"), 0);
    assert_eq!(count("SELECT count(*) FROM staged_pages"), 0);
    assert_eq!(count("SELECT count(*) FROM dropped_pages"), 0);
    assert_eq!(count("SELECT count(*) FROM inodes WHERE nlink = 0"), 0);
    assert_eq!(count("SELECT count(*) FROM overdue"), 0);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 10_000, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn files_hold_what_was_committed_to_them(ops in prop::collection::vec(op(), 1..9)) {
        run(&ops);
    }
}

/// Runs up to `cases` cases from a fixed seed; also checks that failpoints are caught.
pub(super) fn cases(cases: u32) {
    RIG.set(None);
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let strategy = prop::collection::vec(op(), 1..9);
    for _ in 0..cases {
        run(&strategy.new_tree(&mut runner).unwrap().current());
    }
}

#[test]
fn a_small_patch_of_a_long_file_writes_one_page() {
    let mut rig = Rig::new(4);
    let session = rig.open_write(1, "long", &[("lifetime", "keep")]).unwrap().session_id;
    let answer = rig.allocate(session, &[chunk(1), chunk(2)]).unwrap().answers;
    let extent =
        |i: u64, which: usize| Extent::of_chunk(i * 100, 100, answer[which].chunk_id, &chunk(1 + which as u8).hash, 0);
    // Alternating chunks, so that extents do not join.
    let extents: Vec<Extent> = (0..10_000).map(|i| extent(i, (i % 2) as usize)).collect();
    let op_id = rig.op();
    let mode = CommitMode::Replace as i32;
    let commit = Commit {
        op_id,
        session_id: session,
        mode,
        size_bytes: 1_000_000,
        extents,
        acks: acks(&answer),
        keep_session: true,
        ..Default::default()
    };
    rig.ask(&commit).unwrap();
    let pages =
        |rig: &Rig| rig.core.db().conn().query_row("SELECT count(*) FROM pages", [], |r| r.get::<_, i64>(0)).unwrap();
    let before = pages(&rig);
    let op_id = rig.op();
    let mode = CommitMode::Patch as i32;
    let patch = Commit { op_id, mode, extents: vec![extent(5_000, 1)], acks: vec![], ..commit };
    rig.ask(&patch).unwrap();
    assert_eq!(pages(&rig), before + 1);
    rig.audit();
}

/// Two clients patch a file without locks: who wrote less does not cut off what the other one appended, unless it
/// shortened the file.
#[test]
fn a_patch_keeps_what_another_writer_appended() {
    let mut rig = Rig::new(4);
    rig.put(1, "f", b"a").unwrap();
    let open = |rig: &mut Rig| rig.open_write(1, "f", &[]).unwrap().session_id;
    let (longer, shorter, cutter) = (open(&mut rig), open(&mut rig), open(&mut rig));
    let patch = |rig: &mut Rig, session_id: u64, size_bytes: u64, cuts: bool| {
        let (op_id, mode) = (rig.op(), CommitMode::Patch as i32);
        let extents = vec![Extent::hole(size_bytes - 10, 10)];
        let commit =
            Commit { op_id, session_id, mode, size_bytes, cuts, extents, want_lease: true, ..Commit::default() };
        rig.ask(&commit).unwrap().entry.unwrap().attr.unwrap().size_bytes
    };
    assert_eq!(patch(&mut rig, longer, 300, false), 300);
    assert_eq!(patch(&mut rig, shorter, 100, false), 300);
    assert_eq!(patch(&mut rig, cutter, 50, true), 50);
    rig.audit();
}

#[test]
fn if_version_lets_one_of_two_writers_win() {
    let mut rig = Rig::new(4);
    let first = rig.put(1, "f", b"a").unwrap();
    let (a, b) = (rig.open_write(1, "f", &[]).unwrap(), rig.open_write(1, "f", &[]).unwrap());
    assert_eq!(a.base_version, first.version);
    let commit = |rig: &mut Rig, session: &OpenWriteReply, content: &[u8]| {
        let request = rig.replacing(session.session_id, content).unwrap();
        rig.ask(&Commit { if_version: Some(session.base_version), ..request })
    };
    let won = commit(&mut rig, &a, b"b").unwrap();
    let lost = commit(&mut rig, &b, b"c").unwrap_err();
    assert_eq!((lost.code(), lost.current), (Code::VersionConflict, won.version));
    // Without it the later commit wins, and its reply names the version it replaced.
    let request = rig.replacing(b.session_id, b"c").unwrap();
    assert_eq!(rig.ask(&request).unwrap().superseded, won.version);
    // 0: the file must not exist.
    let c = rig.open_write(1, "new", &[]).unwrap();
    commit(&mut rig, &c, b"d").unwrap();
    let d = rig.open_write(1, "new", &[]).unwrap();
    let request = rig.replacing(d.session_id, b"e").unwrap();
    let error = rig.ask(&Commit { if_version: Some(0), ..request }).unwrap_err();
    assert_eq!(error.code(), Code::VersionConflict);
    // For a file opened by inode number: it was never written.
    let (op_id, kind) = (rig.op(), InodeKind::File as i32);
    let made = rig.ask(&MakeNode { op_id, parent: 1, name: b"empty".to_vec(), kind, ..MakeNode::default() }).unwrap();
    let ino = made.attr.unwrap().ino;
    let mut by_number = |content: &[u8]| {
        let op_id = rig.op();
        let session_id = rig.ask(&OpenWrite { op_id, ino, ..OpenWrite::default() }).unwrap().session_id;
        let request = rig.replacing(session_id, content).unwrap();
        rig.ask(&Commit { if_version: Some(0), ..request })
    };
    by_number(b"f").unwrap();
    assert_eq!(by_number(b"g").unwrap_err().code(), Code::VersionConflict);
}

/// [`tessera_wire::Attr::content`]: the writer's number, the previous one, or a unique one of the manager.
#[test]
fn contents_are_called_what_the_writer_says_or_a_number_of_their_own() {
    let mut rig = Rig::new(4);
    let ino = rig.put(1, "f", b"a").unwrap().ino;
    let content = |rig: &mut Rig, ino| {
        let by_ino = rig.ask(&GetAttr { ino, want_lease: false }).unwrap().attr.unwrap();
        let read = rig.ask(&OpenRead { ino, ..OpenRead::default() }).unwrap().attr.unwrap();
        assert_eq!((by_ino.content, by_ino.version), (read.content, read.version));
        by_ino.content
    };
    let commit = |rig: &mut Rig, bytes: &[u8], content| {
        let session_id = rig.open_write(1, "f", &[]).unwrap().session_id;
        let request = rig.replacing(session_id, bytes).unwrap();
        rig.ask(&Commit { content, ..request }).unwrap()
    };
    let first = content(&mut rig, ino);
    assert!(first != 0 && first < CONTENT_DRAWN);
    commit(&mut rig, b"a", first);
    assert_eq!(content(&mut rig, ino), first, "stored anew");
    commit(&mut rig, b"b", 0);
    assert!(![0, first].contains(&content(&mut rig, ino)));
    let drawn = CONTENT_DRAWN | 77;
    commit(&mut rig, b"c", drawn);
    // Other changes of the file and a restart keep it.
    let op_id = rig.op();
    rig.ask(&SetAttr { op_id, ino, mode: Some(0o600), ..SetAttr::default() }).unwrap();
    assert_eq!(content(&mut rig, ino), drawn);
    let mut rig = rig.restart();
    assert_eq!(content(&mut rig, ino), drawn);
    let listed = rig.ask(&List { ino: 1, limit: 10, ..List::default() }).unwrap().entries;
    assert_eq!(listed[0].attr.as_ref().unwrap().content, drawn);
    let other = rig.put(1, "g", b"c").unwrap().ino;
    assert!(![0, first, drawn].contains(&content(&mut rig, other)));
    rig.audit();
}

#[test]
fn an_unlinked_file_lives_until_its_last_session_ends() {
    let mut rig = Rig::new(4);
    let ino = rig.put(1, "f", b"abc").unwrap().ino;
    let reader = rig.read(1, "f").unwrap().session_id;
    let op_id = rig.op();
    rig.ask(&Unlink { op_id, parent: 1, name: b"f".to_vec(), directory: false }).unwrap();
    rig.tick(100);
    let again = ListExtents { session_id: reader, offset: 0, len_bytes: 300, known_map_version: 0 };
    assert_eq!(rig.ask(&again).unwrap().extents.len(), 3);
    rig.tick(2_000); // Old enough to get a row.
    let mut rig = rig.restart();
    rig.tick(100);
    assert_eq!(rig.ask(&again).unwrap().extents.len(), 3, "a reader survives the manager's restart");
    rig.ask(&CloseSession { session_id: reader, ..Default::default() }).unwrap();
    // Readers without a row may hold it, until a session's lifetime has passed since the restart.
    let session_ms = config().session_ms as i64;
    rig.tick(session_ms - 1_000);
    assert!(rig.ask(&GetAttr { ino, want_lease: false }).is_ok());
    rig.tick(1_000);
    rig.tick(100);
    assert_eq!(rig.ask(&GetAttr { ino, want_lease: false }).unwrap_err().code(), Code::NotFound);
    rig.audit();
}

#[test]
fn one_request_closes_many_readers_and_no_writer() {
    let mut rig = Rig::new(4);
    rig.put(1, "f", b"abc").unwrap();
    let read = |rig: &mut Rig| rig.read(1, "f").unwrap().session_id;
    let old = read(&mut rig);
    rig.tick(2_000); // Old enough to get a row.
    let (first, second) = (read(&mut rig), read(&mut rig));
    let writer = rig.open_write(1, "f", &[]).unwrap().session_id;
    assert_eq!(rig.core.soft.sessions.len(), 4);
    rig.ask(&CloseSession { session_id: first, readers: vec![second], ..Default::default() }).unwrap();
    assert_eq!(rig.core.soft.sessions.len(), 2, "those without a row");
    let readers = vec![read(&mut rig), old, writer, 77];
    let session_id = read(&mut rig);
    rig.ask(&CloseSession { session_id, readers, ..Default::default() }).unwrap();
    assert_eq!(rig.core.soft.sessions.len(), 1, "the writer's is left");
    rig.ask(&RenewSession { session_id: writer, reserve_bytes: 0 }).unwrap();
    let close = CloseSession { session_id: writer, readers: vec![1; 1_025], ..Default::default() };
    assert_eq!(rig.ask(&close).unwrap_err().code(), Code::Invalid);
    rig.audit();
}

/// P4: a reader's session that lived in memory only is gone with the manager. Its client opens the version again.
#[test]
fn a_version_opened_just_before_a_restart_can_be_opened_again() {
    for removed_before in [true, false] {
        let mut rig = Rig::new(4);
        let names = ["removed", "replaced", "unread"];
        let inos = names.map(|name| rig.put(1, name, name.as_bytes()).unwrap().ino);
        let opened = ["removed", "replaced"].map(|name| rig.read(1, name).unwrap());
        let unlink = |rig: &mut Rig, name: &str| {
            let op_id = rig.op();
            rig.ask(&Unlink { op_id, parent: 1, name: name.into(), directory: false }).unwrap();
        };
        let change = |rig: &mut Rig| {
            ["removed", "unread"].into_iter().for_each(|name| unlink(rig, name));
            rig.put(1, "replaced", b"new").unwrap();
        };
        if removed_before {
            change(&mut rig);
        }
        let mut rig = rig.restart();
        if !removed_before {
            change(&mut rig);
        }
        // Nobody may hold what came later.
        let later = rig.put(1, "later", b"later").unwrap().ino;
        unlink(&mut rig, "later");
        rig.put(1, "replaced", b"newer").unwrap();
        rig.tick(100);
        rig.tick(100);
        assert_eq!(rig.ask(&GetAttr { ino: later, ..Default::default() }).unwrap_err().code(), Code::NotFound);
        assert_eq!(rig.ask(&ListVersions { ino: inos[1] }).unwrap().versions.len(), if removed_before { 3 } else { 2 });
        rig.tick(config().session_ms as i64 - 1_000);
        let sessions: Vec<u64> = opened
            .iter()
            .map(|before| {
                let gone = rig.ask(&RenewSession { session_id: before.session_id, reserve_bytes: 0 }).unwrap_err();
                assert_eq!(gone.code(), Code::SessionExpired);
                let (ino, version) = (before.attr.as_ref().unwrap().ino, before.version.unwrap().version);
                let request = OpenRead { ino, version, len_bytes: u64::MAX, ..Default::default() };
                let again = rig.ask(&request).unwrap();
                let extents = |reply: &OpenReadReply| reply.extents.clone().unwrap().extents;
                assert_eq!(extents(&again), extents(before));
                again.session_id
            })
            .collect();
        // They hold what they opened, and everything else goes.
        rig.tick(10_000);
        rig.tick(100);
        assert!(rig.ask(&GetAttr { ino: inos[0], ..Default::default() }).is_ok());
        assert_eq!(rig.ask(&GetAttr { ino: inos[2], ..Default::default() }).unwrap_err().code(), Code::NotFound);
        for session_id in sessions {
            rig.ask(&CloseSession { session_id, ..Default::default() }).unwrap();
        }
        rig.tick(100);
        rig.tick(100);
        assert_eq!(rig.ask(&GetAttr { ino: inos[0], ..Default::default() }).unwrap_err().code(), Code::NotFound);
        assert_eq!(rig.ask(&ListVersions { ino: inos[1] }).unwrap().versions.len(), 1);
        assert!(rig.core.db().any("SELECT 1 FROM overdue", []).is_ok_and(|any| !any));
        rig.audit();
    }
}

/// P4: readers of an earlier manager could not open their versions again while the new one was stopped.
#[test]
fn readers_of_an_earlier_manager_get_more_time_when_the_new_one_was_stopped() {
    let mut rig = Rig::new(4);
    let ino = rig.put(1, "f", b"content").unwrap().ino;
    let version = rig.read(1, "f").unwrap().version.unwrap().version;
    let mut rig = rig.restart_with(Config { down_after_ms: 5_000, ..config() });
    for _ in 0..28 {
        rig.tick(2_000);
    }
    // It stops for 10 s, and the last name is removed before its first tick.
    rig.now_ns += 10_000 * MS;
    let op_id = rig.op();
    rig.ask(&Unlink { op_id, parent: 1, name: b"f".to_vec(), directory: false }).unwrap();
    for _ in 0..28 {
        rig.tick(2_000);
    }
    let again = OpenRead { ino, version, len_bytes: u64::MAX, ..Default::default() };
    let session_id = rig.ask(&again).unwrap().session_id;
    rig.ask(&CloseSession { session_id, ..Default::default() }).unwrap();
    for _ in 0..4 {
        rig.tick(2_000);
    }
    assert_eq!(rig.ask(&again).unwrap_err().code(), Code::NotFound, "it goes a session's lifetime after the stop");
    rig.audit();
}

#[test]
fn dedup_follows_the_policy() {
    let mut rig = Rig::new(4);
    rig.put(1, "shared", b"a").unwrap();
    let state = |rig: &mut Rig, name: &str, dedup: &str| {
        let session = rig.open_write(1, name, &[("dedup", dedup)]).unwrap().session_id;
        let answers = rig.allocate(session, &[chunk(b'a'), chunk(b'a')]).unwrap().answers;
        assert_eq!(answers[0], answers[1], "repeated in one question: answered alike");
        let op_id = rig.op();
        let extents = vec![Extent::of_chunk(0, 100, answers[0].chunk_id, &chunk(b'a').hash, 0)];
        let mode = CommitMode::Replace as i32;
        let commit = Commit {
            op_id,
            session_id: session,
            mode,
            size_bytes: 100,
            extents,
            acks: acks(&answers),
            ..Default::default()
        };
        rig.ask(&commit).unwrap();
        ChunkState::try_from(answers[0].state).unwrap()
    };
    assert_eq!(state(&mut rig, "f", "all"), ChunkState::Durable);
    assert_eq!(state(&mut rig, "g", "version"), ChunkState::New);
    assert_eq!(state(&mut rig, "g", "version"), ChunkState::Durable);
    assert_eq!(state(&mut rig, "h", "off"), ChunkState::New);
    assert_eq!(state(&mut rig, "h", "off"), ChunkState::New);
    rig.audit();
}

#[test]
fn a_pessimistic_file_leans_on_nothing_that_is_not_durable() {
    let mut rig = Rig::new(4);
    let a = rig.open_write(1, "a", &[]).unwrap().session_id;
    let b = rig.open_write(1, "b", &[]).unwrap().session_id;
    rig.allocate(a, &[chunk(1)]).unwrap();
    // Another session's pending chunk: the writer must supply all fragments.
    let answers = rig.allocate(b, &[chunk(1)]).unwrap().answers;
    assert_eq!((answers[0].state, answers[0].missing.clone()), (ChunkState::Incomplete as i32, vec![0, 1, 2]));
    let mut commit = rig.replacing(b, &[1]).unwrap();
    commit.acks[0].missing = vec![2];
    let error = rig.ask(&commit).unwrap_err();
    assert_eq!(error.code(), Code::TooFewFragments);
    assert!(error.message.contains("avoid_pgs"), "{error}");
    // An optimistic commit may omit fragments while the chunk is readable; the rest gets missing rows and is stored later.
    let c = rig.open_write(1, "c", &[("durability", "optimistic")]).unwrap().session_id;
    let mut commit = rig.replacing(c, &[1]).unwrap();
    let ack = commit.acks[0].clone();
    commit.acks[0].missing = vec![2];
    assert_eq!(rig.ask(&commit).unwrap().missing_fragments, 1);
    let missing = |rig: &mut Rig| rig.read(1, "c").unwrap().extents.unwrap().chunks[0].missing.clone();
    assert_eq!(missing(&mut rig), [2]);
    let op_id = rig.op();
    let fragment = FragmentRef { chunk_id: ack.chunk_id, fragment: 2, epoch: ack.epochs[0], disk_id: 0 };
    // Without the node's receipt the fragment stays missing.
    rig.ask(&CompleteFragments { op_id, fragments: vec![fragment], receipts: vec![77] }).unwrap();
    assert_eq!(missing(&mut rig), [2]);
    let receipts = vec![rig.receipts(&ack)[2]];
    let op_id = rig.op();
    rig.ask(&CompleteFragments { op_id, fragments: vec![fragment], receipts }).unwrap();
    assert_eq!(missing(&mut rig), [0u32; 0]);
    rig.audit();
}

/// The client's kernel keeps a file's times; without them the manager's time counts, and an access time stays.
#[test]
fn times_are_the_clients_if_it_names_them() {
    let mut rig = Rig::new(4);
    let ctime_ns = |entry: Entry| entry.attr.unwrap().ctime_ns;
    let (op_id, kind, name) = (rig.op(), InodeKind::File as i32, b"f".to_vec());
    let times = MakeNode { mtime_ns: 39, ctime_ns: 40, atime_ns: 41, ..MakeNode::default() };
    let made = rig.ask(&MakeNode { op_id, parent: 1, name, kind, ..times }).unwrap();
    let attr = made.attr.unwrap();
    assert_eq!((attr.mtime_ns, attr.ctime_ns, attr.atime_ns), (39, 40, 41));
    let ino = attr.ino;
    for (given, recorded_ns) in [(Some(42), 42), (None, rig.now_ns)] {
        let op_id = rig.op();
        let changed =
            rig.ask(&SetAttr { op_id, ino, mode: Some(0o600), ctime_ns: given, ..SetAttr::default() }).unwrap();
        assert_eq!(ctime_ns(changed), recorded_ns);
    }
    for (given_ns, recorded_ns, atime_ns) in [(43, 43, 8), (0, rig.now_ns, 0)] {
        let op_id = rig.op();
        let session_id = rig.ask(&OpenWrite { op_id, ino, ..OpenWrite::default() }).unwrap().session_id;
        let (op_id, mode) = (rig.op(), CommitMode::Replace as i32);
        let times = Commit { mtime_ns: 7, ctime_ns: given_ns, atime_ns, ..Commit::default() };
        let commit = Commit { op_id, session_id, mode, want_lease: true, ..times };
        let attr = rig.ask(&commit).unwrap().entry.unwrap().attr.unwrap();
        assert_eq!((attr.ctime_ns, attr.mtime_ns, attr.atime_ns), (recorded_ns, 7, 8));
    }
}
