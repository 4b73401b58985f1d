//! Directories, links and attributes of a tree, many in one request.

use crate::ctx::Ctx;
use crate::db::Db;
use crate::error::{Failure, Result, invalid};
use crate::namespace::names::{self, Page};
use tessera_wire::meta::*;
use tessera_wire::{Code, Error};

fn check_count(what: &str, count: usize) -> Result<()> {
    match count {
        ..=MAX_AT_ONCE => Ok(()),
        _ => invalid(format!("{count} {what}, at most {MAX_AT_ONCE} at once; send several requests")),
    }
}

/// What was refused of one of many; the others go on.
///
/// # Errors
/// Failures of the database, damaged rows among them: they undo the whole command, and end a manager that replays it.
pub(super) fn refusal<T>(result: Result<T>) -> Result<std::result::Result<T, Error>> {
    match result {
        Ok(done) => Ok(Ok(done)),
        Err(Failure::Refused(error)) if error.code() != Code::Corrupt => Ok(Err(error)),
        Err(failure) => Err(failure),
    }
}

/// Lists directories, as many as fit into a page together.
pub fn list_many(db: &Db, request: &ListMany, max_entries: u32) -> Result<ListManyReply> {
    check_count("directories to list", request.inos.len())?;
    let (mut directories, mut left) = (Vec::new(), Page::new(max_entries));
    for ino in &request.inos {
        if left.is_full() {
            break;
        }
        let listed = match refusal(names::list_within(db, &List { ino: *ino, ..List::default() }, left))? {
            Ok(ListReply { entries, more, .. }) => ListedDirectory { entries, more, refused: None },
            Err(error) => ListedDirectory { refused: Some(error), ..ListedDirectory::default() },
        };
        // A page that is cut short by what came before it is left to the next request.
        if listed.more && !directories.is_empty() {
            break;
        }
        listed.entries.iter().for_each(|entry| left.take(entry));
        directories.push(listed);
    }
    Ok(ListManyReply { directories })
}

/// Makes directories and symbolic links. A refusal of one changes nothing, and the others are made.
pub fn make_entries(ctx: &mut Ctx, request: &MakeEntries) -> Result<MakeEntriesReply> {
    check_count("entries to make", request.entries.len())?;
    let mut made = Vec::with_capacity(request.entries.len());
    for entry in &request.entries {
        made.push(match refusal(make_entry(ctx, entry))? {
            Ok(ino) => MadeEntry { ino, refused: None },
            Err(error) => MadeEntry { ino: 0, refused: Some(error) },
        });
    }
    Ok(MakeEntriesReply { made })
}

fn make_entry(ctx: &mut Ctx, new: &NewEntry) -> Result<u64> {
    let NewEntry { parent, mode, uid, gid, mtime_ns, .. } = *new;
    let (name, target) = (new.name.clone(), new.target.clone());
    let made = match target.is_empty() {
        true => names::make_dir(ctx, &MakeDir { parent, name, mode, uid, gid, exist_ok: true, ..MakeDir::default() })?,
        false => {
            let made = names::symlink(ctx, &Symlink { parent, name, target, uid, gid, ..Symlink::default() })?;
            let ino = made.attr.as_ref().map_or(0, |attr| attr.ino);
            match mtime_ns {
                None => made,
                time => names::set_attr(ctx, &SetAttr { ino, mtime_ns: time, ..SetAttr::default() })?,
            }
        }
    };
    Ok(made.attr.map_or(0, |attr| attr.ino))
}

/// Changes attributes. A refusal of one changes nothing, and the others are changed.
pub fn set_attrs(ctx: &mut Ctx, request: &SetAttrs) -> Result<SetAttrsReply> {
    check_count("inodes to change", request.inodes.len())?;
    let mut refused = Vec::new();
    for (index, of) in (0..).zip(&request.inodes) {
        if let Err(error) = refusal(names::set_attr(ctx, of))? {
            refused.push(NotSet { index, error: Some(error) });
        }
    }
    Ok(SetAttrsReply { refused })
}
