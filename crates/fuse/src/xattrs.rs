//! Extended attributes: hints, knowledge, and what programs keep there.
//!
//! `user.tessera.*`, and the papers' names for them (`user.DP`, …), are hints, validated by the manager. Names outside `user.` and `trusted.` are not stored.

use crate::attr::explained;
use crate::mount::Store;
use fuser::{Errno, ReplyXattr};
use tessera_client::locate::Located;
use tessera_policy::{CLASSIC, Classic, PREFIX, Policy, hint_of_attribute};
use tessera_wire::meta::Xattr;
use tessera_wire::{Code, Error, InodeKind};

/// Makes an attribute of what is known.
type Tell = fn(&Store, &Located) -> serde_json::Value;

/// What the store says of a file, by attribute: a name and a function. They are computed when they are asked for, and not
/// listed: `getfattr -n` has them, `getfattr -d` does not print a map of every chunk.
const KNOWLEDGE: &[(&str, Tell)] = &[
    ("user.tessera.location", |_, located| serde_json::json!(located)),
    ("user.tessera.state", |store, located| {
        let mut state = serde_json::json!(located.state());
        let rewriting = store.rewrites.of(located.ino);
        state["rewriting"] = rewriting.map_or(
            serde_json::Value::Null,
            |r| serde_json::json!({"done_bytes": r.done_bytes, "total_bytes": r.total_bytes}),
        );
        state["written"] = store.speeds.of(located.ino).map_or(serde_json::Value::Null, |speed| speed.shown());
        state
    }),
];

/// How the mount itself stands, by any file or directory.
const OF_THE_MOUNT: &str = "user.tessera.mount";

const CREATE: i32 = 1;
const REPLACE: i32 = 2;

/// The name as text, if it is one that is kept.
fn kept(name: &[u8]) -> Result<&str, Errno> {
    let text = std::str::from_utf8(name).map_err(|_| Errno::EINVAL)?;
    match text.starts_with("user.") || text.starts_with("trusted.") {
        true => Ok(text),
        false => Err(Errno::EOPNOTSUPP),
    }
}

/// An attribute that is not there has an errno of its own.
fn refusal(what: &str, ino: u64, error: &Error) -> Errno {
    match error.kind() {
        Code::NotFound => Errno::ENODATA,
        _ => explained(what, ino, error),
    }
}

/// Value of an attribute.
pub fn get(store: &Store, ino: u64, name: &[u8]) -> Result<Vec<u8>, Errno> {
    let name = kept(name)?;
    if name == OF_THE_MOUNT {
        let spool = store.spool.as_ref().map(|spool| spool.shown(store.files.spooled().len()));
        return Ok(serde_json::json!({ "spool": spool }).to_string().into_bytes());
    }
    store.settle(ino)?;
    if let Some((_, tell)) = KNOWLEDGE.iter().find(|(known, _)| *known == name) {
        let located = store.client.inodes().locate(ino).map_err(|e| explained("locate", ino, &e))?;
        return Ok(tell(store, &located).to_string().into_bytes());
    }
    let all = store.client.inodes().xattrs(ino).map_err(|e| explained("attributes", ino, &e))?;
    match name.strip_prefix("user.").and_then(|name| CLASSIC.iter().find(|classic| classic.name == name)) {
        Some(classic) => classic_value(classic, &all).ok_or(Errno::ENODATA),
        None => all.into_iter().find(|x| x.name == name).map(|x| x.value).ok_or(Errno::ENODATA),
    }
}

/// What a hint that is set is called by a paper.
fn classic_value(classic: &Classic, all: &[Xattr]) -> Option<Vec<u8>> {
    let hint = all.iter().find(|x| x.name.strip_prefix(PREFIX) == Some(classic.hint))?;
    let policy = Policy::from_hints([(classic.hint, std::str::from_utf8(&hint.value).ok()?)]).ok()?;
    Some(classic.value(&policy).into_bytes())
}

/// Names of all, each ended by a NUL.
pub fn list(store: &Store, ino: u64) -> Result<Vec<u8>, Errno> {
    store.settle(ino)?;
    let all = store.client.inodes().xattrs(ino).map_err(|e| explained("attributes", ino, &e))?;
    Ok(all.iter().flat_map(|x| x.name.bytes().chain([0])).collect())
}

/// New files must be known to have attributes, and took their directory's as it was.
fn settle(store: &Store, ino: u64) -> Result<(), Errno> {
    store.settle(ino).and(store.making.settle_all(&store.client, Some(ino)))
}

/// Sets an attribute.
pub fn set(store: &Store, ino: u64, name: &[u8], value: &[u8], flags: i32) -> Result<(), Errno> {
    let name = kept(name)?;
    if name == OF_THE_MOUNT || KNOWLEDGE.iter().any(|(known, _)| *known == name) {
        return Err(Errno::EPERM);
    }
    settle(store, ino)?;
    let done = store.client.inodes().set_xattr(ino, name, value, flags & CREATE != 0, flags & REPLACE != 0);
    store.names.forget(Some(&[ino]));
    if let Some(file) = store.files.get(ino) {
        file.forget_made();
    }
    done.map_err(|e| refusal("set attribute", ino, &e))?;
    hint_changed(store, ino, name);
    Ok(())
}

/// What a file holds follows its hints.
fn hint_changed(store: &Store, ino: u64, name: &str) {
    let Some(hint) = hint_of_attribute(name) else { return };
    let attr = store.client.inodes().get(ino).ok().and_then(|entry| entry.attr);
    if attr.is_some_and(|attr| attr.kind() == InodeKind::File && attr.version != 0) {
        store.rewrites.hint_changed(ino, hint);
    }
}

/// Removes an attribute.
pub fn remove(store: &Store, ino: u64, name: &[u8]) -> Result<(), Errno> {
    let name = kept(name)?;
    settle(store, ino)?;
    let done = store.client.inodes().remove_xattr(ino, name);
    store.names.forget(Some(&[ino]));
    if let Some(file) = store.files.get(ino) {
        file.forget_made();
    }
    done.map_err(|e| refusal("remove attribute", ino, &e))?;
    hint_changed(store, ino, name);
    Ok(())
}

/// Answers with the bytes, or with how many they are if that is asked (`size` 0).
pub fn reply(result: Result<Vec<u8>, Errno>, size: u32, reply: ReplyXattr) {
    match result {
        Ok(bytes) if size == 0 => reply.size(bytes.len() as u32),
        Ok(bytes) if bytes.len() > size as usize => reply.error(Errno::ERANGE),
        Ok(bytes) => reply.data(&bytes),
        Err(errno) => reply.error(errno),
    }
}
