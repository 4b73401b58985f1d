//! Write sessions.

use super::*;

/// An open write session, with the rules of `tessera_client::WriteHandle`.
pub struct BlockWriter {
    pub(super) link: Link,
    pub(super) file: String,
    pub(super) owner: Owner,
    pub(super) session: OpenSession,
    pub(super) mode: CommitMode,
    pub(super) if_version: Option<u64>,
    /// Where the last write ended.
    pub(super) position: u64,
    /// Written since the last commit.
    pub(super) blocks: BTreeMap<u64, Block>,
    pub(super) size_bytes: u64,
    /// Where what was written since the last commit ends.
    pub(super) end_bytes: u64,
    /// The length was set since the last commit.
    pub(super) cuts: bool,
    /// Extents may be sent before the commit.
    pub(super) stages: bool,
    /// Some blocks lie before ones that were written earlier since the last commit.
    pub(super) goes_back: bool,
    pub(super) times: Times,
    pub(super) content: u64,
    pub(super) lock_fence: Option<LockFence>,
    pub(super) failed: Option<FileError>,
}

impl BlockWriter {
    /// Writes blocks at `offset`. Blocks written since the last commit are committed before they are written again, and before the
    /// session goes back behind extents that it may have sent.
    ///
    /// # Errors
    /// The write failed; what was written since the last commit is lost.
    pub async fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Result<(), FileError> {
        self.check()?;
        if self.mode != CommitMode::Patch && offset < self.position {
            let message = format!("write at {offset} after {}: open the file to patch it", self.position);
            return Err(Cause::Input(message).of(self.file.clone()));
        }
        let end = offset + bytes.len() as u64;
        if self.blocks.range(offset..end).next().is_some() || self.is_behind_staged(offset) {
            self.sync().await?;
        }
        self.blank_cut(offset);
        self.put(offset, bytes);
        self.position = end;
        (self.size_bytes, self.end_bytes) = (self.size_bytes.max(end), self.end_bytes.max(end));
        self.link.env().sleep_ms(self.link.random() % 2).await;
        Ok(())
    }

    fn put(&mut self, offset: u64, bytes: &[u8]) {
        self.goes_back |= !bytes.is_empty() && offset < self.written_to();
        self.blocks.extend(cut(offset, bytes));
    }

    /// Where the blocks written since the last commit end.
    fn written_to(&self) -> u64 {
        self.blocks.last_key_value().map_or(0, |(at, _)| at + BLOCK_BYTES)
    }

    fn is_behind_staged(&self, offset: u64) -> bool {
        self.stages && !self.goes_back && self.blocks.len() >= WHOLE_EXTENTS && offset < self.written_to()
    }

    /// The file goes on at `offset`. What a length has cut off since the last commit does not come back below it.
    fn blank_cut(&mut self, offset: u64) {
        if self.cuts && offset > self.size_bytes {
            self.put(self.size_bytes, &vec![0; (offset - self.size_bytes) as usize]);
        }
    }

    /// Makes blocks zeros.
    ///
    /// # Errors
    /// As [`BlockWriter::write_at`].
    pub async fn clear(&mut self, range: Range<u64>) -> Result<(), FileError> {
        match range.is_empty() {
            true => Ok(()),
            false => self.write_at(range.start, &vec![0; (range.end - range.start) as usize]).await,
        }
    }

    /// Leaves a hole up to `offset`.
    ///
    /// # Errors
    /// As [`BlockWriter::write_at`].
    pub async fn skip_to(&mut self, offset: u64) -> Result<(), FileError> {
        self.write_at(offset, &[]).await
    }

    /// Changes the length. Only a session that patches can.
    ///
    /// # Errors
    /// As [`BlockWriter::write_at`].
    pub async fn set_len(&mut self, size_bytes: u64) -> Result<(), FileError> {
        self.check()?;
        if self.mode != CommitMode::Patch {
            let message = "only a handle that patches can change the length".to_string();
            return Err(Cause::Input(message).of(self.file.clone()));
        }
        if size_bytes != self.size_bytes && !self.blocks.is_empty() {
            self.sync().await?;
        }
        self.blank_cut(size_bytes);
        self.cuts = true;
        self.size_bytes = size_bytes;
        Ok(())
    }

    /// Sets the times of the next version.
    pub fn set_times(&mut self, times: Times) {
        self.times = times;
    }

    /// Sets the name of the content of the next version.
    pub fn set_content(&mut self, content: u64) {
        self.content = content;
    }

    /// Sets the fence of the locks held on the file.
    pub fn set_lock_fence(&mut self, fence: Option<LockFence>) {
        self.lock_fence = fence;
    }

    /// Length of the file as written so far.
    pub fn len_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Commits what was written, and keeps the session.
    ///
    /// # Errors
    /// As [`BlockWriter::write_at`].
    pub async fn sync(&mut self) -> Result<WriteDone, FileError> {
        self.commit(true).await
    }

    /// Commits what was written, and ends the session.
    ///
    /// # Errors
    /// As [`BlockWriter::write_at`].
    pub async fn finish(mut self) -> Result<WriteDone, FileError> {
        self.commit(false).await
    }

    fn check(&self) -> Result<(), FileError> {
        self.failed.clone().map_or(Ok(()), Err)
    }

    async fn commit(&mut self, keep_session: bool) -> Result<WriteDone, FileError> {
        self.check()?;
        let result = self.try_commit(keep_session).await;
        if let Err(error) = &result {
            self.failed = Some(error.clone());
        }
        result
    }

    async fn try_commit(&mut self, keep_session: bool) -> Result<WriteDone, FileError> {
        let (ids, mut acks) = self.allocate().await?;
        let blocks: Vec<(u64, Block)> = self.blocks.iter().map(|(at, block)| (*at, *block)).collect();
        let mut extents: Vec<Extent> = match self.mode {
            CommitMode::Patch => blocks.iter().map(|(at, block)| extent(*at, block, &ids)).collect(),
            _ => whole_extents(&blocks, self.size_bytes, &ids),
        };
        if self.stages && extents.len() > WHOLE_EXTENTS {
            let rest = extents.split_off(extents.len() / 2);
            let part = Commit { extents: std::mem::replace(&mut extents, rest), partial: true, ..self.request() };
            let staged: Vec<ChunkAck> =
                acks.extract_if(.., |ack| part.extents.iter().any(|e| e.chunk_id == ack.chunk_id)).collect();
            self.ask("Commit", Commit { acks: staged, ..part }).await?;
        }
        let commit = Commit {
            extents,
            acks,
            size_bytes: if self.mode == CommitMode::Patch && !self.cuts { self.end_bytes } else { self.size_bytes },
            cuts: self.cuts,
            mtime_ns: self.times.mtime_ns,
            ctime_ns: self.times.ctime_ns,
            atime_ns: self.times.atime_ns,
            content: self.content,
            want_lease: true,
            keep_session,
            ..self.request()
        };
        let reply = self.ask("Commit", commit).await?;
        let done = done(&self.file, reply)?;
        self.session.closed.set(!keep_session);
        self.blocks.clear();
        (self.cuts, self.goes_back, self.end_bytes) = (false, false, 0);
        (self.times, self.content) = (Times::default(), 0);
        self.mode = CommitMode::Patch;
        self.if_version = self.if_version.map(|_| done.version);
        Ok(done)
    }

    fn request(&self) -> Commit {
        Commit {
            op_id: self.link.op_id(),
            session_id: self.session.id,
            mode: self.mode as i32,
            if_version: self.if_version,
            file_mode: Some(self.owner.mode),
            uid: self.owner.uid,
            gid: self.owner.gid,
            lock_fence: self.lock_fence,
            ..Commit::default()
        }
    }

    /// Asks for the chunks of the written blocks: their ids, and the acknowledgements of those that are new.
    async fn allocate(&self) -> Result<(BTreeMap<Block, u64>, Vec<ChunkAck>), FileError> {
        let mut unique: Vec<Block> = self.blocks.values().copied().filter(|block| *block != HOLE).collect();
        unique.sort_unstable();
        unique.dedup();
        if unique.is_empty() {
            return Ok(Default::default());
        }
        let question = AllocateChunks {
            op_id: self.link.op_id(),
            session_id: self.session.id,
            redundancy: REDUNDANCY.into(),
            chunks: unique.iter().map(chunk_name).collect(),
            ..AllocateChunks::default()
        };
        let answers = self.ask("AllocateChunks", question).await?.answers;
        let needs = |answer: &&ChunkAnswer| answer.state() != ChunkState::Durable;
        let acks = answers.iter().filter(needs).map(ack).collect();
        Ok((unique.into_iter().zip(answers.iter().map(|answer| answer.chunk_id)).collect(), acks))
    }

    async fn ask<R: Request>(&self, name: &'static str, request: R) -> Result<R::Reply, FileError> {
        self.link.ask(request).await.map_err(|error| write_refused(&self.file, self.if_version, name, error))
    }
}
