//! Recovers what an earlier mount left in the spool: opens the files that were closed and not pushed, and pushes them.

use super::Spool;
use super::log::{EXTENSION, Log, aside};
use super::push::{push, was_restored};
use super::replay::{LogOrigin, ReplayError, replay};
use crate::backend::Backend;
use crate::mount::Mount;
use std::io::{self, BufReader, Read};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tessera_disk::{DiskError, DiskFile, OpenMode};
use tessera_failpoint as failpoint;
use tessera_wire::Code;

const BUFFER_BYTES: usize = 1 << 20;

/// Reads a file of a disk from its start.
pub(super) struct Input {
    file: Arc<dyn DiskFile>,
    at: u64,
    end: u64,
}

impl Input {
    pub fn new(file: Arc<dyn DiskFile>) -> Result<Input, DiskError> {
        let end = file.len()?;
        Ok(Input { file, at: 0, end })
    }
}

impl Read for Input {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let now = (self.end - self.at).min(out.len() as u64) as usize;
        self.file.read_at(self.at, &mut out[..now]).map_err(io::Error::other)?;
        self.at += now as u64;
        Ok(now)
    }
}

impl<B: Backend> Mount<B> {
    /// Takes over the logs in the spool. From then on this mount shows their content.
    pub async fn recover(&self) {
        let Some(spool) = &self.spool else { return };
        spool.map_version.store(self.backend.map_version().await.unwrap_or_default(), Ordering::Relaxed);
        let mut logs = match spool.disk.list("") {
            Ok(logs) => logs,
            Err(error) => return tracing::error!(%error, "the spool cannot be listed"),
        };
        logs.retain(|path| path.strip_suffix(EXTENSION).is_some_and(|path| path.ends_with('.')));
        for path in logs {
            if let Err(fate) = take_over(self, &path).await {
                carry_out(spool, &path, fate);
            }
        }
    }
}

/// What to do with a log that is not pushed.
enum Fate {
    /// Remove it: nothing in it was acknowledged, or its file is gone.
    Remove(String, Option<LogOrigin>),
    /// Rename it: it cannot be read.
    SetAside(String),
    /// Leave it as it is.
    Leave(String),
}

async fn take_over<B: Backend>(mount: &Mount<B>, path: &str) -> Result<(), Fate> {
    let Some(spool) = &mount.spool else { return Ok(()) };
    let leave = |error: &dyn std::fmt::Display| Fate::Leave(error.to_string());
    let file = spool.disk.open(path, OpenMode::Existing).map_err(|e| leave(&e))?;
    let input = Input::new(file.clone()).map_err(|e| leave(&e))?;
    if input.end == 0 {
        return Err(Fate::Remove("nothing was written to it when the mount ended".into(), None));
    }
    let found = match replay(BufReader::with_capacity(BUFFER_BYTES, input)) {
        Ok(found) => found,
        Err(ReplayError::NotClosed { origin }) if origin.cluster_id == spool.cluster_id => {
            return Err(Fate::Remove("its file was not closed when the mount ended".into(), Some(origin)));
        }
        Err(ReplayError::NotClosed { .. }) => return Err(Fate::Leave("it is of another cluster".into())),
        Err(ReplayError::Io(error)) => return Err(leave(&error)),
        Err(error) => return Err(Fate::SetAside(error.to_string())),
    };
    let (ino, origin) = (found.origin.ino, found.origin.clone());
    if origin.cluster_id != spool.cluster_id {
        return Err(Fate::Leave("it is of another cluster".into()));
    }
    let there = mount.backend.get(ino).await;
    if matches!(&there, Err(error) if error.code() == Code::NotFound) {
        match was_restored(mount, &origin).await {
            // A deleted file stays deleted (P3).
            Ok(false) => return Err(Fate::Remove("its file was removed".into(), Some(origin))),
            // The push keeps it.
            Ok(true) => {}
            Err(error) => return Err(leave(&error)),
        }
    }
    if mount.files.is_open(ino) {
        return Err(Fate::Leave("another log is of the same file; the next mount takes this one".into()));
    }
    let (bytes, cut_bytes) = (found.overlay.size_bytes(), found.cut_bytes);
    let log = Log::adopt(spool.disk.clone(), file, spool.budget.clone(), found).map_err(|e| leave(&e))?;
    let name = String::from_utf8_lossy(&origin.name).into_owned();
    tracing::info!(ino, name, bytes, cut_bytes, "found in the spool: closed, and not pushed");
    let file = mount.files.adopt(ino, log);
    let other = there.ok().and_then(|entry| entry.attr).filter(|attr| attr.version != origin.base_version);
    // Another mount changed the file: push now, so that no program here reads the log over that version. Any other log
    // is pushed once the mount serves.
    if let (Some(attr), Some(view)) = (other, file.closed_view().await)
        && !file.recognizes(mount, &attr, &view).await
        && let Err(error) = push(mount, &file).await
    {
        tracing::warn!(ino, %error, "a file stays in the spool, and is pushed later");
    }
    spool.push(ino);
    Ok(())
}

fn carry_out(spool: &Spool, log: &str, fate: Fate) {
    match fate {
        Fate::Remove(why, origin) => {
            let (ino, name) = origin.map_or_else(Default::default, |origin| {
                (origin.ino, String::from_utf8_lossy(&origin.name).into_owned())
            });
            tracing::warn!(log, ino, name, why, "a log in the spool is removed");
            if let Err(error) = spool.disk.remove(log) {
                tracing::warn!(log, %error, "it cannot be removed");
            }
        }
        Fate::SetAside(why) => {
            spool.counts.lock().set_aside += 1;
            let aside = aside(log);
            tracing::error!(log, why, aside, "a log in the spool cannot be pushed, and is set aside");
            if let Err(error) = spool.disk.rename(log, &aside) {
                tracing::error!(log, %error, "it cannot be renamed");
            }
        }
        Fate::Leave(why) => {
            tracing::error!(log, why, "a log in the spool is left alone");
            if failpoint::is_active("mount.unread_log_removed") {
                let _ = spool.disk.remove(log);
            }
        }
    }
}
