//! Files and versions against a model that maps every byte of every version to a byte of some content.

use crate::rig::*;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use std::cell::RefCell;
use std::collections::BTreeMap;
use tessera_wire::meta::*;
use tessera_wire::{Code, Error, Extent};

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
