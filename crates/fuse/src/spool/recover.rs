//! Recovers what an earlier mount left in the spool: opens the files that were closed and not pushed, and pushes them.

use super::EXTENSION_DAMAGED;
use super::log::{EXTENSION, Log};
use super::push::push;
use crate::mount::Store;
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use tessera_mount::spool::replay::{LogOrigin, ReplayError, replay};

const BUFFER_BYTES: usize = 1 << 20;

/// Takes over the logs in the spool. From then on this mount shows their content.
pub fn recover(store: &Store) {
    let Some(spool) = &store.spool else { return };
    let listed = std::fs::read_dir(&spool.dir).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let entries = match listed {
        Ok(entries) => entries,
        Err(error) => return tracing::error!(spool = %spool.dir.display(), %error, "the spool cannot be listed"),
    };
    let mut logs: Vec<PathBuf> = entries.iter().map(|entry| entry.path()).collect();
    logs.retain(|path| path.extension().is_some_and(|end| end == EXTENSION));
    logs.sort();
    for path in logs {
        if let Err(error) = take_over(store, &path) {
            said(store, &path, error);
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

fn take_over(store: &Store, path: &Path) -> Result<(), Fate> {
    let Some(spool) = &store.spool else { return Ok(()) };
    let leave = |error: &dyn std::fmt::Display| Fate::Leave(error.to_string());
    let file = File::options().read(true).write(true).open(path).map_err(|e| leave(&e))?;
    if file.metadata().is_ok_and(|meta| meta.len() == 0) {
        return Err(Fate::Remove("nothing was written to it when the mount ended".into(), None));
    }
    let found = match replay(BufReader::with_capacity(BUFFER_BYTES, &file)) {
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
    // A deleted file stays deleted (P3).
    let there = store.client.inodes().get(ino);
    if matches!(&there, Err(error) if error.kind() == tessera_wire::Code::NotFound) {
        return Err(Fate::Remove("its file was removed".into(), Some(origin)));
    }
    if store.files.is_open(ino) {
        return Err(Fate::Leave("another log is of the same file; the next mount takes this one".into()));
    }
    let (bytes, cut_bytes) = (found.overlay.size_bytes(), found.cut_bytes);
    let log = Log::adopt(path.to_path_buf(), file, spool.budget.clone(), found).map_err(|e| leave(&e))?;
    let name = String::from_utf8_lossy(&origin.name).into_owned();
    tracing::info!(ino, name, bytes, cut_bytes, "found in the spool: closed, and not pushed");
    let file = store.files.adopt(ino, log);
    let other = there.ok().and_then(|entry| entry.attr).filter(|attr| attr.version != origin.base_version);
    // Another mount changed the file: push now, so that no program here reads the log over that version. Any other log
    // is pushed once the mount serves.
    if let (Some(attr), Some(view)) = (other, file.closed_view())
        && !file.knows(store, &attr, &view)
        && let Err(error) = push(store, &file)
    {
        tracing::warn!(ino, %error, "a file stays in the spool, and is pushed later");
    }
    spool.push(ino);
    Ok(())
}

fn said(store: &Store, path: &Path, fate: Fate) {
    let log = path.display();
    match fate {
        Fate::Remove(why, origin) => {
            let (ino, name) = origin.map_or_else(Default::default, |origin| {
                (origin.ino, String::from_utf8_lossy(&origin.name).into_owned())
            });
            tracing::warn!(%log, ino, name, why, "a log in the spool is removed");
            if let Err(error) = std::fs::remove_file(path) {
                tracing::warn!(%log, %error, "it cannot be removed");
            }
        }
        Fate::SetAside(why) => {
            if let Some(spool) = &store.spool {
                spool.counts.set_aside.fetch_add(1, Ordering::Relaxed);
            }
            let aside = path.with_extension(EXTENSION_DAMAGED);
            tracing::error!(%log, why, aside = %aside.display(), "a log in the spool cannot be pushed, and is set aside");
            if let Err(error) = std::fs::rename(path, &aside) {
                tracing::error!(%log, %error, "it cannot be renamed");
            }
        }
        Fate::Leave(why) => tracing::error!(%log, why, "a log in the spool is left alone"),
    }
}
