//! Packs: files that are written together, and what moves into packs later, as nodes and `tessera gc` do it.

use super::*;
use tessera_client::write::compact::{Refill, reading};
use tessera_client::write::core::PackParams;
use tessera_client::write::inlined::InlinedBatch;
use tessera_client::write::moving::Batch;
use tessera_client::write::pack::{Packed, SmallFile};
use tessera_wire::meta::{
    ContentInfo, InlinedContent, ListInlined, ListInlinedReply, ListPacks, ListPacksReply, PackUse,
};
use tessera_wire::{ChunkInfo, ClassInfo};

/// Most bytes of a file that is written into a pack.
const MOST_PACKED_BYTES: usize = 100_000;

/// What moves into packs besides files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Listing {
    /// Contents in the metadata.
    Inlined,
    /// What is left of packs, be it all.
    Packs,
}

impl Listing {
    /// The question.
    pub fn call(self) -> Call {
        match self {
            Listing::Inlined => {
                Call::new(Peer::Manager, 0, &ListInlined { all: 1, ..ListInlined::default() }, Vec::new(), 1_000)
            }
            Listing::Packs => {
                Call::new(Peer::Manager, 0, &ListPacks { after: 0, most_living_percent: 100 }, Vec::new(), 1_000)
            }
        }
    }
}

/// Packs that are written anew.
pub(super) struct Refilling {
    /// Reads the last of the packs.
    pub core: Box<ReadCore>,
    /// What it read of that pack.
    pub got: Vec<u8>,
    packs: Vec<PackUse>,
    classes: Vec<ClassInfo>,
    refill: Refill,
}

impl ClientHost {
    /// Begins to write all of its files together, or one of them, if they have nothing to share.
    pub(super) fn begin_pack(&mut self, now_ns: i64, oracle: &mut Oracle) {
        let paths: Vec<String> = (0..3).map(|k| name_of(self.index, k)).collect();
        let small = |path: &String| {
            let mut content = self.content();
            content.truncate(MOST_PACKED_BYTES);
            let params = WriteParams {
                expect_policy: Some(self.policy()),
                ..self.params(path, CommitMode::Replace, content.len())
            };
            SmallFile { params, content: content.into() }
        };
        let small: Vec<SmallFile> = paths.iter().map(small).collect();
        let Some(packed) = Packed::of(&small.iter().collect::<Vec<_>>()) else {
            return self.begin_write(now_ns, name_of(self.index, 0), oracle);
        };
        let bytes_of = |file: &SmallFile| Some(Arc::new(file.content.to_vec()));
        let files: Vec<(String, Content)> = paths.into_iter().zip(small.iter().map(bytes_of)).collect();
        for (path, content) in &files {
            oracle.begin(path, content.clone());
            self.exists.insert(path.clone(), true);
        }
        let params = packed.params(&small[0].params);
        let core = self.pack_core(now_ns, params, packed.bytes);
        self.op = Some(Op::Pack { core, files });
    }

    /// Whether to move files into a pack instead of writing one: only `auto` stores small files in another way than long ones.
    pub(super) fn moves(&mut self) -> bool {
        let is_auto = self.hints[0].value.starts_with("auto");
        is_auto && self.alone.values().any(|file| is_small(&file.2)) && self.rng.percent(50)
    }

    pub(super) fn begin_move(&mut self, now_ns: i64) {
        let mut batch = Batch::of(Vec::new());
        let mut target = 0;
        for (ino, version, content) in self.alone.values().filter(|file| is_small(&file.2)) {
            let whole = Bytes::from(content.as_deref().cloned().unwrap_or_default());
            let piece = |start: usize| whole.slice(start..(start + self.piece_bytes).min(whole.len()));
            let pieces: Vec<Bytes> = (0..whole.len()).step_by(self.piece_bytes).map(piece).collect();
            batch.add(*ino, *version, &pieces);
            target = *ino;
        }
        let (bytes, pack) = batch.finish();
        self.store_pack(now_ns, target, bytes, pack);
    }

    /// Begins to store a pack; `target`: a file that moves into it, or 0.
    fn store_pack(&mut self, now_ns: i64, target: u64, bytes: Bytes, pack: PackParams) {
        let params = WriteParams {
            target: Target::Inode(target),
            pack: Some(Arc::new(pack)),
            ..self.params("a pack", CommitMode::Replace, bytes.len())
        };
        let core = self.pack_core(now_ns, params, bytes);
        self.op = Some(Op::Move { core });
    }

    fn pack_core(&mut self, now_ns: i64, params: WriteParams, bytes: Bytes) -> Box<WriteCore> {
        let size_bytes = bytes.len() as u64;
        let mut core = Box::new(WriteCore::new(params, self.options.clone(), self.view.clone(), self.rng.any()));
        core.handle(now_ns, WriteRequest::Chunk(ChunkReady::new(0, 0, bytes)));
        core.handle(now_ns, WriteRequest::EndOfInput { size_bytes, cuts: false, keep_session: false });
        core.handle(now_ns, WriteRequest::Open);
        core
    }

    /// Begins to move what is listed into a pack. A list may be old: who moves much takes long.
    pub(super) fn begin_refill(&mut self, now_ns: i64, of: Listing) {
        match self.lists.iter().position(|(other, _)| *other == of).filter(|_| self.rng.percent(50)) {
            None => self.op = Some(Op::List { of, again_at_ns: now_ns }),
            Some(at) => {
                let (_, body) = self.lists.swap_remove(at);
                self.refill_from(now_ns, of, body);
            }
        }
    }

    /// Takes the list of what may move into a pack.
    pub(super) fn listed(&mut self, now_ns: i64, result: Result<(Bytes, Bytes), Error>) {
        let Some(Op::List { of, again_at_ns }) = &mut self.op else { return };
        let Ok((body, _)) = result else {
            *again_at_ns = now_ns + 300_000_000;
            return;
        };
        let of = *of;
        self.op = None;
        self.op_number += 1;
        self.lists.retain(|(other, _)| *other != of);
        self.lists.push((of, body.clone()));
        self.refill_from(now_ns, of, body);
    }

    fn refill_from(&mut self, now_ns: i64, of: Listing, body: Bytes) {
        match of {
            Listing::Inlined => self.move_inlined(now_ns, ListInlinedReply::decode(body).expect("a reply")),
            Listing::Packs => {
                let ListPacksReply { packs, classes, .. } = ListPacksReply::decode(body).expect("a reply");
                self.view.write().learn(&classes, None);
                self.read_packs(now_ns, packs, classes);
            }
        }
    }

    /// Moves what is like one of the contents in the metadata.
    fn move_inlined(&mut self, now_ns: i64, listed: ListInlinedReply) {
        if listed.contents.is_empty() {
            return;
        }
        let InlinedContent { domain, class_id, .. } = *self.rng.pick(&listed.contents);
        let mut batch = InlinedBatch::of(domain, class_id);
        let alike = listed.contents.iter().filter(|other| (other.domain, other.class_id) == (domain, class_id));
        let contents: Vec<&ContentInfo> = alike.filter_map(|other| other.content.as_ref()).collect();
        contents.iter().for_each(|content| batch.add(content));
        let (bytes, pack) = batch.finish();
        let like = self.rng.pick(&contents).content_id;
        self.store_pack(now_ns, 0, bytes, PackParams { pack, like });
    }

    /// Reads some packs of one class.
    fn read_packs(&mut self, now_ns: i64, mut packs: Vec<PackUse>, classes: Vec<ClassInfo>) {
        if packs.is_empty() {
            return;
        }
        let class_id = chunk_of(self.rng.pick(&packs)).class_id;
        packs.retain(|pack| chunk_of(pack).class_id == class_id);
        packs.truncate(self.rng.between(1, 4) as usize);
        let refill = Refill::like(chunk_of(&packs[0]));
        self.read_pack(now_ns, packs, classes, refill);
    }

    /// Reads the last of the packs.
    fn read_pack(&mut self, now_ns: i64, packs: Vec<PackUse>, classes: Vec<ClassInfo>, refill: Refill) {
        let params = reading(chunk_of(packs.last().expect("a pack")), &classes);
        let core = self.read_core(now_ns, params);
        self.op = Some(Op::Refill(Box::new(Refilling { core, got: Vec::new(), packs, classes, refill })));
    }

    /// Carries out the actions of what reads a pack until it waits for an answer, or goes on with the next one.
    pub(super) fn advance_refill(
        &mut self,
        now_ns: i64,
        mut refilling: Box<Refilling>,
        oracle: &mut Oracle,
    ) -> Result<Vec<Call>, Violation> {
        let mut calls = Vec::new();
        match self.advance_read(now_ns, &mut refilling.core, &mut refilling.got, &mut calls) {
            None => {
                self.number(&mut calls);
                self.op = Some(Op::Refill(refilling));
                Ok(calls)
            }
            Some(end) => {
                self.op_number += 1;
                self.refill(now_ns, *refilling, matches!(end, ReadEnd::All));
                self.advance(now_ns, oracle)
            }
        }
    }

    /// A pack was read, or cannot be: it is gone, or waits for nodes.
    fn refill(&mut self, now_ns: i64, refilling: Refilling, is_read: bool) {
        let Refilling { got, mut packs, classes, mut refill, .. } = refilling;
        let pack = packs.pop().expect("it was read");
        if is_read {
            refill.add(chunk_of(&pack).chunk_id, &pack.contents, &got);
        }
        if !packs.is_empty() {
            return self.read_pack(now_ns, packs, classes, refill);
        }
        let (bytes, pack) = refill.finish();
        if !bytes.is_empty() {
            let like = self.rng.pick(&pack.moved).from_chunk_id;
            self.store_pack(now_ns, 0, bytes, PackParams { pack, like });
        }
    }
}

fn chunk_of(pack: &PackUse) -> &ChunkInfo {
    pack.chunk.as_ref().expect("a listed pack is a chunk")
}

/// Whether a file may move into a pack.
fn is_small(content: &Content) -> bool {
    content.as_ref().is_some_and(|bytes| (1..=MOST_PACKED_BYTES).contains(&bytes.len()))
}
