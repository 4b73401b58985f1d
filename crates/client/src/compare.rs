//! Whether the store has the content of local files, for thousands of files at once.

use crate::client::Client;
use crate::error::{Cause, Error, FileError};
use crate::memory::Means;
use crate::path::StorePath;
use crate::paths::PutOptions;
use crate::write::Cancel;
use crate::write::input::{CutRule, Cutting, Input, ReadHoles, Source, is_hole};
use bytes::Bytes;
use std::io::Read;
use tessera_accel::hash::chunk_hash;
use tessera_wire::content::Pieces;
use tessera_wire::meta::{CompareFiles, FileDigest, MAX_FILES_COMPARED, MAX_PIECES_COMPARED};

impl Client {
    /// The digest of what would be stored at `path` with these hints, for [`Client::compare`]. `None`: it has too many pieces to be compared.
    ///
    /// # Errors
    /// A hint is invalid, there is no such directory, the manager does not answer, or the source cannot be read.
    pub fn digest(
        &self,
        path: &StorePath,
        hints: &[(String, String)],
        source: Source<'_>,
        cancel: &Cancel,
    ) -> Result<Option<[u8; 32]>, Error> {
        let options = PutOptions { hints: hints.to_vec(), ..PutOptions::default() };
        let policy = self.write_params(path, &options, None)?.expect_policy.unwrap_or_default();
        let (file, len_bytes) = (path.to_string(), source.len_bytes());
        let rule = CutRule::of(&policy).map_err(|message| Cause::Policy(message).of(&file))?;
        let means = Means::of_input(&self.context, &file, &policy, len_bytes, cancel)?;
        let mut digesting = Digesting { file, rule, means, cancel, pieces: Pieces::default() };
        match source {
            Source::Sparse { file, len_bytes } => digesting.sparse(file, len_bytes)?,
            source => drop(digesting.run(source, 0)?),
        }
        Ok((!digesting.is_too_long()).then(|| digesting.pieces.digest()))
    }

    /// Whether the current versions of files, by inode, have the contents with these digests, and nothing of them needs to be stored again.
    /// A file that was cut otherwise counts as different.
    ///
    /// # Errors
    /// The manager refuses, or does not answer.
    pub fn compare(&self, files: &[(u64, [u8; 32])]) -> Result<Vec<bool>, Error> {
        let mut equal = Vec::with_capacity(files.len());
        while equal.len() < files.len() {
            let some = &files[equal.len()..files.len().min(equal.len() + MAX_FILES_COMPARED)];
            let digest = |(ino, digest): &(u64, [u8; 32])| FileDigest { ino: *ino, digest: digest.to_vec() };
            let mut reply = self.ask(&CompareFiles { files: some.iter().map(digest).collect() })?;
            if reply.equal.is_empty() {
                reply.equal.push(false); // Nonsense, and no reason to ask for ever.
            }
            equal.extend(reply.equal.into_iter().take(some.len()));
        }
        Ok(equal)
    }
}

struct Digesting<'a> {
    file: String,
    rule: CutRule,
    means: Means,
    cancel: &'a Cancel,
    pieces: Pieces,
}

impl Digesting<'_> {
    fn is_too_long(&self) -> bool {
        self.pieces.count() > MAX_PIECES_COMPARED
    }

    /// Adds a stream that begins at an offset of the file. Returns its length.
    fn run(&mut self, source: Source<'_>, base: u64) -> Result<u64, FileError> {
        let (mut input, mut cutting) = (Input::new(source), Cutting::new(self.rule, base));
        let (mut rest, mut len_bytes) = (Bytes::new(), 0);
        loop {
            let buffer = |len| self.means.buffer(len, self.cancel).ok_or(Cause::Cancelled);
            let stretch = input.next(rest, self.means.buffer_bytes, buffer).map_err(|cause| cause.of(&self.file))?;
            let (chunks, uncut) = cutting.feed(&stretch);
            for (_, chunk) in chunks {
                let len = chunk.len() as u64;
                len_bytes += len;
                match is_hole(&chunk) {
                    true => self.pieces.hole(len),
                    false => self.pieces.named(len, &chunk_hash(&chunk).0),
                }
            }
            if stretch.last || self.is_too_long() {
                return Ok(len_bytes);
            }
            rest = uncut;
        }
    }

    /// Adds a file with holes, cut as [`Client::put`] cuts it: each range of data by itself.
    fn sparse(&mut self, mut file: &mut dyn ReadHoles, len_bytes: u64) -> Result<(), FileError> {
        let mut at = 0;
        loop {
            let data = file.next_data(at, len_bytes).map_err(|e| Cause::Input(e.to_string()).of(&self.file))?;
            let Some(data) = data.filter(|_| !self.is_too_long()) else { break };
            self.pieces.hole(data.start - at);
            let len = data.end - data.start;
            let reader = &mut Read::take(&mut file, len);
            at = data.start + self.run(Source::Reader { reader, len_bytes: Some(len) }, data.start)?;
        }
        self.pieces.hole(len_bytes.saturating_sub(at));
        Ok(())
    }
}
