//! Which files have the content that a client has found in local files.
//!
//! Equal is only what nobody needs to store again: every chunk would answer the dedup question as durable. So a client that stores the
//! others repairs what it has the bytes of.

use crate::chunks::table::{COMMITTED, UNPROVEN};
use crate::chunks::{contents, missing};
use crate::db::Db;
use crate::db::cache::Caches;
use crate::db::sql::{args, row};
use crate::error::{Failure, Result, invalid};
use crate::files::versions;
use crate::namespace::inodes;
use std::collections::HashMap;
use tessera_wire::Extent;
use tessera_wire::content::Pieces;
use tessera_wire::meta::{CompareFiles, CompareFilesReply, FileDigest, MAX_FILES_COMPARED, MAX_PIECES_COMPARED};

row! {
    struct Whole {
        len_bytes: u64,
        hash: Vec<u8>,
        state: i64,
        proof: i64,
        pg_id: u64,
    }
}

/// A comparison of many files.
struct Comparison<'a> {
    db: &'a Db,
    caches: Caches,
    any_missing: bool,
    /// Length and name of each chunk that was looked at; `None`: it is not durable.
    chunks: HashMap<u64, Option<(u64, [u8; 32])>>,
    /// Extents that may still be read for this request.
    extents_left: usize,
}

/// What a file is, compared with what a client has.
enum Verdict {
    Digest([u8; 32]),
    Incomparable,
    /// It has more extents than may still be read.
    Later,
}

/// Answers [`CompareFiles`].
///
/// # Errors
/// There are too many files, a page is damaged, or the database fails.
pub fn compare_files(db: &Db, request: &CompareFiles) -> Result<CompareFilesReply> {
    let files = request.files.len();
    if files > MAX_FILES_COMPARED {
        return invalid(format!(
            "{files} files to compare, at most {MAX_FILES_COMPARED} at once; send several requests"
        ));
    }
    let (caches, any_missing) = (Caches::default(), missing::any(db)?);
    let extents_left = if cfg!(test) { 64 } else { MAX_PIECES_COMPARED };
    let mut comparison = Comparison { db, caches, any_missing, chunks: HashMap::new(), extents_left };
    let mut equal = Vec::with_capacity(files);
    for file in &request.files {
        equal.push(match comparison.look(file) {
            // What is wrong is said to the client that stores the file.
            Err(Failure::Refused(_)) => false,
            verdict => match verdict? {
                Verdict::Digest(digest) => digest[..] == file.digest[..],
                Verdict::Later if !equal.is_empty() => break,
                Verdict::Incomparable | Verdict::Later => false,
            },
        });
    }
    Ok(CompareFilesReply { equal })
}

impl Comparison<'_> {
    /// Looks at the current version.
    fn look(&mut self, file: &FileDigest) -> Result<Verdict> {
        let inode = inodes::get(self.db, file.ino)?;
        if !inode.is_file() {
            return Ok(Verdict::Incomparable);
        }
        let (number, size) = (inode.version_number, inode.size_bytes);
        if self.extents_left == 0 {
            return Ok(Verdict::Later);
        }
        let extents = versions::read(self.db, inode.ino, number, size, 0, size, self.extents_left)?;
        if extents.last().map_or(0, Extent::end) < size {
            return Ok(Verdict::Later);
        }
        // Also a file without extents is looked at.
        self.extents_left = self.extents_left.saturating_sub(extents.len().max(1));
        let mut pieces = Pieces::default();
        for extent in &extents {
            match self.name(extent)? {
                _ if extent.chunk_id == 0 => pieces.hole(extent.len_bytes),
                Some(name) if extent.name_prefix == Extent::prefix_of(&name) => pieces.named(extent.len_bytes, &name),
                // A reader would refuse the bytes if another name were written there.
                _ => return Ok(Verdict::Incomparable),
            }
        }
        Ok(Verdict::Digest(pieces.digest()))
    }

    /// The name of an extent's bytes, if it is all of a durable chunk, or of a content of one.
    fn name(&mut self, extent: &Extent) -> Result<Option<[u8; 32]>> {
        let (len_bytes, name) = if contents::is_content(extent.chunk_id) {
            let content = contents::find(self.db, extent.chunk_id)?;
            let Some(content) = content.filter(|content| content.hash.len() == 32) else { return Ok(None) };
            let in_metadata = content.chunk_id == 0;
            if !in_metadata && self.chunk(content.chunk_id)?.is_none() {
                return Ok(None);
            }
            (content.len_bytes, content.hash.try_into().unwrap_or_default())
        } else {
            match self.chunk(extent.chunk_id)? {
                Some(chunk) => chunk,
                None => return Ok(None),
            }
        };
        Ok((extent.chunk_offset == 0 && extent.len_bytes == len_bytes).then_some(name))
    }

    /// Length and name of a chunk, if it is durable.
    fn chunk(&mut self, chunk_id: u64) -> Result<Option<(u64, [u8; 32])>> {
        if let Some(known) = self.chunks.get(&chunk_id) {
            return Ok(*known);
        }
        let sql = "SELECT len_bytes, hash, state, proof, pg_id FROM chunks WHERE chunk_id = ?1";
        let whole: Option<Whole> = self.db.first(sql, args![chunk_id])?;
        let mut found = None;
        if let Some(Whole { len_bytes, hash, state: COMMITTED, proof, pg_id }) = whole
            && proof != UNPROVEN
            && self.caches.pg(self.db, pg_id)?.in_place
            && (!self.any_missing || missing::of_chunk(self.db, chunk_id)?.is_empty())
        {
            found = hash.try_into().ok().map(|name| (len_bytes, name));
        }
        self.chunks.insert(chunk_id, found);
        Ok(found)
    }
}
