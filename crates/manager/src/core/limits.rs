//! Configured limits of requests, checked before a request becomes a command (P14): a command that was applied once must be
//! replayed under any configuration.

use crate::config::Config;
use crate::error::{Result, invalid};
use crate::log::registry::Command;
use crate::namespace::names::MAX_REMOVED_NAMES;
use tessera_wire::meta::{ChunkAck, ChunkName, Commit, MAX_AT_ONCE};

/// Most files, and most contents, of one pack.
const MOST_IN_PACK: usize = 1_024;

/// Most readers that one request closes.
const MOST_READERS: usize = 1_024;

/// Checks the limits that hold for `command`.
///
/// # Errors
/// `Invalid`: the request exceeds one.
pub(super) fn check(command: &Command, config: &Config) -> Result<()> {
    match command {
        Command::Commit(request) => check_commit(request, config),
        Command::OpenWrite(request) => check_query(&request.chunks, config),
        Command::AllocateChunks(request) => {
            check_query(&request.chunks, config)?;
            check_stored(&request.stored, config)
        }
        Command::CloseSession(request) => {
            check_count(request.readers.len(), "readers to close", MOST_READERS)?;
            check_stored(&request.stored, config)
        }
        // These checks are made again where the command is applied. Here they come before it waits for anything.
        Command::MakeEntries(request) => check_count(request.entries.len(), "entries to make", MAX_AT_ONCE),
        Command::SetAttrs(request) => check_count(request.inodes.len(), "inodes to change", MAX_AT_ONCE),
        Command::RemoveNames(request) => check_count(request.names.len(), "names to remove", MAX_REMOVED_NAMES),
        _ => Ok(()),
    }
}

fn check_count(count: usize, what: &str, most: usize) -> Result<()> {
    match count > most {
        true => invalid(format!("{count} {what}, at most {most} at once; send several requests")),
        false => Ok(()),
    }
}

fn check_commit(request: &Commit, config: &Config) -> Result<()> {
    let most = config.max_commit_extents;
    if request.extents.len() > most || request.acks.len() > most {
        let what = "extents or acknowledgements in one commit";
        return invalid(format!("more than {most} {what}; stage parts with `partial`"));
    }
    if let Some(pack) = &request.pack {
        let (files, contents) = (pack.files.len(), pack.contents.len());
        let moved = pack.moved.len() + pack.moved_files.len();
        if files.max(contents).max(moved) > MOST_IN_PACK {
            let text = format!(
                "{files} files, {contents} contents and {moved} moved ones in a pack, at most {MOST_IN_PACK} of each"
            );
            return invalid(format!("{text}; send several packs"));
        }
    }
    let of_files = request.pack.iter().flat_map(|pack| &pack.files).map(|file| file.extents.len());
    let of_moved = request.pack.iter().flat_map(|pack| &pack.moved_files).map(|file| file.places.len());
    if of_files.chain(of_moved).fold(0, usize::saturating_add) > most {
        return invalid(format!("more than {most} extents of the files of one pack; send several packs"));
    }
    request.open.as_ref().map_or(Ok(()), |open| check_query(&open.chunks, config))
}

fn check_query(chunks: &[ChunkName], config: &Config) -> Result<()> {
    let (got, most) = (chunks.len(), config.max_allocate_chunks);
    match got > most {
        true => invalid(format!("{got} chunks in one question, at most {most} are answered; ask in parts")),
        false => Ok(()),
    }
}

fn check_stored(stored: &[ChunkAck], config: &Config) -> Result<()> {
    let (got, most) = (stored.len(), config.max_allocate_chunks);
    match got > most {
        true => invalid(format!("{got} chunks reported as stored, at most {most} may be in one request; send fewer")),
        false => Ok(()),
    }
}
