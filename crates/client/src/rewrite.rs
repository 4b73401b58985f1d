//! Rewrites a file under its current policy, so that changed hints take effect for old data.
//!
//! The current version is read and written as the next one, with the same content, content number and modification
//! time. It is committed only if no client changed the file meanwhile; otherwise the rewrite starts again from the new
//! version.

use crate::client::Client;
use crate::error::{Cause, Error, FileError};
use crate::inodes::write_params;
use crate::memory::Means;
use crate::read::ReadHandle;
use crate::write::core::{Times, WriteDone, WriteParams};
use crate::write::input::Source;
use crate::write::{Cancel, ProgressFn};
use std::io::{self, Read};
use tessera_policy::Policy;

/// Attempts on a file that other clients keep writing.
const ATTEMPTS: u32 = 4;
/// A version is opened with the extents of this many bytes.
const FIRST_EXTENTS_BYTES: u64 = 64 << 20;

impl Client {
    /// Rewrites a file's current version under its current policy. A file that was never written, or is empty, stays as
    /// it is.
    ///
    /// # Errors
    /// Reading or writing failed, or other clients change the file faster than it can be rewritten.
    pub fn rewrite_inode(&self, ino: u64, progress: ProgressFn<'_>, cancel: &Cancel) -> Result<WriteDone, Error> {
        for attempt in 1.. {
            let from = self.read_inode(ino, 0, 0..FIRST_EXTENTS_BYTES)?;
            if from.len_bytes() == 0 {
                return Ok(WriteDone::default());
            }
            match self.rewrite_version(ino, &from, &mut *progress, cancel) {
                Err(FileError { cause: Cause::VersionConflict { .. }, .. }) if attempt < ATTEMPTS => {}
                result => return Ok(result?),
            }
        }
        Ok(WriteDone::default())
    }

    fn rewrite_version(
        &self,
        ino: u64,
        from: &ReadHandle,
        progress: ProgressFn<'_>,
        cancel: &Cancel,
    ) -> Result<WriteDone, FileError> {
        let opened = from.opened();
        let size_bytes = from.len_bytes();
        let params = WriteParams {
            if_version: Some(opened.version.version),
            size_hint_bytes: Some(size_bytes),
            // No byte changes.
            times: Times { mtime_ns: opened.attr.mtime_ns, ctime_ns: opened.attr.ctime_ns, atime_ns: 0 },
            want_lease: false,
            content: if opened.attr.version == opened.version.version { opened.attr.content } else { 0 },
            ..write_params(ino, false)
        };
        let hints = opened.policy.iter().map(|hint| (hint.name.as_str(), hint.value.as_str()));
        let policy = Policy::from_hints(hints).ok();
        let means = Means::of_rewrite(&self.context, &params.file, policy.as_ref(), size_bytes, cancel)?;
        let mut reader = InOrder { from, at: 0, window_bytes: means.read_window_bytes };
        let source = Source::Reader { reader: &mut reader, len_bytes: Some(size_bytes) };
        crate::write::put(&self.context, params, source, Some(progress), cancel.clone(), means)
    }
}

/// A version as a stream.
struct InOrder<'a> {
    from: &'a ReadHandle,
    at: u64,
    window_bytes: u64,
}

impl Read for InOrder<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let there = self.from.len_bytes().saturating_sub(self.at).min(out.len() as u64) as usize;
        let read = self.from.read_within(self.at, &mut out[..there], self.window_bytes)?;
        self.at += read as u64;
        Ok(read)
    }
}
