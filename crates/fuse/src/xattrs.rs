//! Extended attributes: hints, computed attributes, and those that programs set.
//!
//! `user.tessera.*` and the papers' names for them (`user.DP`, …) are hints; the manager validates them. Names outside
//! `user.` and `trusted.` are not stored.

use crate::attr::explained;
use crate::mount::Store;
use fuser::{Errno, ReplyXattr};
use serde_json::{Value, json};
use tessera_client::locate::Located;
use tessera_mount::namespace::Scope;
use tessera_mount::rewrite_queue::RewriteProgress;
use tessera_mount::xattr::{XattrName, XattrNameError};
use tessera_policy::{CLASSIC, Classic, PREFIX, Policy, hint_of_attribute};
use tessera_wire::meta::Xattr;
use tessera_wire::{Code, Error, InodeKind};

const CREATE: i32 = 1;
const REPLACE: i32 = 2;

fn parse(name: &[u8]) -> Result<XattrName<'_>, Errno> {
    XattrName::parse(name).map_err(|error| match error {
        XattrNameError::NotText => Errno::EINVAL,
        XattrNameError::OtherNamespace => Errno::EOPNOTSUPP,
    })
}

/// A missing attribute has an errno of its own.
fn refusal(what: &str, ino: u64, error: &Error) -> Errno {
    match error.kind() {
        Code::NotFound => Errno::ENODATA,
        _ => explained(what, ino, error),
    }
}

/// Value of an attribute. Computed ones are not listed: `getfattr -n` shows them, so `getfattr -d` does not print a map
/// of every chunk.
///
/// # Errors
/// `ENODATA` if there is none, and the store's.
pub fn get(store: &Store, ino: u64, name: &[u8]) -> Result<Vec<u8>, Errno> {
    let name = match parse(name)? {
        XattrName::Mount => {
            let spool = store.spool.as_ref().map(|spool| spool.shown(store.files.spooled().len()));
            return Ok(json!({ "spool": spool }).to_string().into_bytes());
        }
        XattrName::Location => return Ok(json!(locate(store, ino)?).to_string().into_bytes()),
        XattrName::State => return Ok(state(store, &locate(store, ino)?).to_string().into_bytes()),
        XattrName::Stored(name) => name,
    };
    store.settle(ino)?;
    let all = store.client.inodes().xattrs(ino).map_err(|e| explained("attributes", ino, &e))?;
    match name.strip_prefix("user.").and_then(|name| CLASSIC.iter().find(|classic| classic.name == name)) {
        Some(classic) => classic_value(classic, &all).ok_or(Errno::ENODATA),
        None => all.into_iter().find(|x| x.name == name).map(|x| x.value).ok_or(Errno::ENODATA),
    }
}

fn locate(store: &Store, ino: u64) -> Result<Located, Errno> {
    store.settle(ino)?;
    store.client.inodes().locate(ino).map_err(|e| explained("locate", ino, &e))
}

fn state(store: &Store, located: &Located) -> Value {
    let mut state = json!(located.state());
    let progress = |r: RewriteProgress| json!({"done_bytes": r.done_bytes, "total_bytes": r.total_bytes});
    state["rewriting"] = store.rewrites.get(located.ino).map_or(Value::Null, progress);
    state["written"] = store.speeds.lock().get(located.ino).map_or(Value::Null, |speed| speed.to_json());
    state
}

/// The value of a paper's attribute, from the hint that is set.
fn classic_value(classic: &Classic, all: &[Xattr]) -> Option<Vec<u8>> {
    let hint = all.iter().find(|x| x.name.strip_prefix(PREFIX) == Some(classic.hint))?;
    let policy = Policy::from_hints([(classic.hint, std::str::from_utf8(&hint.value).ok()?)]).ok()?;
    Some(classic.value(&policy).into_bytes())
}

/// Names of all attributes, each ended by a NUL.
///
/// # Errors
/// The manager's.
pub fn list(store: &Store, ino: u64) -> Result<Vec<u8>, Errno> {
    store.settle(ino)?;
    let all = store.client.inodes().xattrs(ino).map_err(|e| explained("attributes", ino, &e))?;
    Ok(all.iter().flat_map(|x| x.name.bytes().chain([0])).collect())
}

/// Settles `ino`, so that it can have attributes, and the deferred creates in directory `ino`, which took the hints
/// that it has before the change.
fn settle(store: &Store, ino: u64) -> Result<(), Errno> {
    store.settle(ino).and(store.namespace.settle(&store.client, Scope::Directory(ino)))
}

/// Sets an attribute.
///
/// # Errors
/// `EPERM` for a computed attribute, and the manager's.
pub fn set(store: &Store, ino: u64, name: &[u8], value: &[u8], flags: i32) -> Result<(), Errno> {
    let name = parse(name)?.stored().ok_or(Errno::EPERM)?;
    settle(store, ino)?;
    let done = store.client.inodes().set_xattr(ino, name, value, flags & CREATE != 0, flags & REPLACE != 0);
    store.namespace.with(|core, _| core.forget(&[ino]));
    if let Some(file) = store.files.get(ino) {
        file.forget_made();
    }
    done.map_err(|e| refusal("set attribute", ino, &e))?;
    hint_changed(store, ino, name);
    Ok(())
}

/// Queues a rewrite if the hint is about stored bytes.
fn hint_changed(store: &Store, ino: u64, name: &str) {
    let Some(hint) = hint_of_attribute(name) else { return };
    let attr = store.client.inodes().get(ino).ok().and_then(|entry| entry.attr);
    if attr.is_some_and(|attr| attr.kind() == InodeKind::File && attr.version != 0) {
        store.rewrites.hint_changed(ino, hint);
    }
}

/// Removes an attribute.
///
/// # Errors
/// `ENODATA` if there is none, and the manager's.
pub fn remove(store: &Store, ino: u64, name: &[u8]) -> Result<(), Errno> {
    let name = parse(name)?.stored().ok_or(Errno::ENODATA)?;
    settle(store, ino)?;
    let done = store.client.inodes().remove_xattr(ino, name);
    store.namespace.with(|core, _| core.forget(&[ino]));
    if let Some(file) = store.files.get(ino) {
        file.forget_made();
    }
    done.map_err(|e| refusal("remove attribute", ino, &e))?;
    hint_changed(store, ino, name);
    Ok(())
}

/// Replies with the bytes, or with their number if the caller asks for that (`size` 0).
pub fn reply(result: Result<Vec<u8>, Errno>, size: u32, reply: ReplyXattr) {
    match result {
        Ok(bytes) if size == 0 => reply.size(bytes.len() as u32),
        Ok(bytes) if bytes.len() > size as usize => reply.error(Errno::ERANGE),
        Ok(bytes) => reply.data(&bytes),
        Err(errno) => reply.error(errno),
    }
}
