//! Extended attributes: hints, computed attributes, and those that programs set.
//!
//! `user.tessera.*` and the papers' names for them (`user.DP`, …) are hints; the manager validates them. Names outside
//! `user.` and `trusted.` are not stored.

use crate::backend::Backend;
use crate::errno::{Errno, Outcome, explained};
use crate::mount::Mount;
use crate::namespace::Scope;
use crate::ops::{stale_if_gone, writable};
use crate::synthetic::SyntheticInode;
use crate::xattr::XattrName;
use serde_json::{Value, json};
use tessera_client::locate::Located;
use tessera_policy::{CLASSIC, Classic, PREFIX, Policy, hint_of_attribute};
use tessera_wire::meta::{ListXattrs, RemoveXattr, SetXattr, Xattr};
use tessera_wire::{Code, Error, InodeKind};

const CREATE: i32 = 1;
const REPLACE: i32 = 2;

/// The value of a paper's attribute, from the hint that is set.
fn classic_value(classic: &Classic, all: &[Xattr]) -> Option<Vec<u8>> {
    let hint = all.iter().find(|x| x.name.strip_prefix(PREFIX) == Some(classic.hint))?;
    let policy = Policy::from_hints([(classic.hint, std::str::from_utf8(&hint.value).ok()?)]).ok()?;
    Some(classic.value(&policy).into_bytes())
}

impl<B: Backend> Mount<B> {
    /// Value of an attribute. Computed ones are not listed: `getfattr -n` shows them, so `getfattr -d` does not print a map
    /// of every chunk.
    ///
    /// # Errors
    /// `ENODATA` if there is none, and the store's.
    pub async fn get_xattr(&self, ino: u64, name: &[u8]) -> Outcome<Vec<u8>> {
        if SyntheticInode::of(ino).is_some() {
            return Err(Errno::ENODATA);
        }
        let name = match XattrName::parse(name)? {
            XattrName::Mount => {
                let (_, _, waiting) = self.files.count();
                let spool = self.spool.as_ref().map(|spool| spool.shown(waiting));
                return Ok(json!({ "spool": spool }).to_string().into_bytes());
            }
            XattrName::Location => return Ok(json!(self.locate(ino).await?).to_string().into_bytes()),
            XattrName::State => return Ok(self.file_state(&self.locate(ino).await?).to_string().into_bytes()),
            XattrName::Stored(name) => name,
        };
        let all = self.stored_xattrs(ino).await?;
        match name.strip_prefix("user.").and_then(|name| CLASSIC.iter().find(|classic| classic.name == name)) {
            Some(classic) => classic_value(classic, &all).ok_or(Errno::ENODATA),
            None => all.into_iter().find(|x| x.name == name).map(|x| x.value).ok_or(Errno::ENODATA),
        }
    }

    async fn stored_xattrs(&self, ino: u64) -> Outcome<Vec<Xattr>> {
        self.settle(ino).await?;
        let listed = self.backend.ask(&ListXattrs { ino }).await;
        Ok(listed.map_err(|e| stale_if_gone(explained("attributes", ino, &e)))?.xattrs)
    }

    async fn locate(&self, ino: u64) -> Outcome<Located> {
        self.settle(ino).await?;
        self.backend.locate(ino).await.map_err(|e| explained("locate", ino, &e))
    }

    fn file_state(&self, located: &Located) -> Value {
        let mut state = json!(located.state());
        state["rewriting"] = json!(self.rewrites.queue.lock().get(located.ino));
        state["written"] = self.speeds.lock().get(located.ino).map_or(Value::Null, |speed| speed.to_json());
        state
    }

    /// Names of all attributes, each ended by a NUL.
    ///
    /// # Errors
    /// The manager's.
    pub async fn list_xattrs(&self, ino: u64) -> Outcome<Vec<u8>> {
        if SyntheticInode::of(ino).is_some() {
            return Ok(Vec::new());
        }
        let all = self.stored_xattrs(ino).await?;
        Ok(all.iter().flat_map(|x| x.name.bytes().chain([0])).collect())
    }

    /// Sets an attribute.
    ///
    /// # Errors
    /// `EPERM` for a computed attribute, and the manager's.
    pub async fn set_xattr(&self, ino: u64, name: &[u8], value: &[u8], flags: i32) -> Outcome {
        let (create_only, replace_only) = (flags & CREATE != 0, flags & REPLACE != 0);
        let set = async |name: &str| {
            let (op_id, name, value) = (self.backend.op_id(), name.into(), value.to_vec());
            self.backend.ask(&SetXattr { op_id, ino, name, value, create_only, replace_only }).await.map(drop)
        };
        self.change_xattr("set attribute", ino, name, Errno::EPERM, set).await
    }

    /// Removes an attribute.
    ///
    /// # Errors
    /// `ENODATA` if there is none, and the manager's.
    pub async fn remove_xattr(&self, ino: u64, name: &[u8]) -> Outcome {
        let remove = async |name: &str| {
            let (op_id, name) = (self.backend.op_id(), name.into());
            self.backend.ask(&RemoveXattr { op_id, ino, name }).await.map(drop)
        };
        self.change_xattr("remove attribute", ino, name, Errno::ENODATA, remove).await
    }

    /// `computed`: the error for a computed attribute.
    async fn change_xattr(
        &self,
        what: &str,
        ino: u64,
        name: &[u8],
        computed: Errno,
        change: impl AsyncFnOnce(&str) -> Result<(), Error>,
    ) -> Outcome {
        writable(ino)?;
        let name = XattrName::parse(name)?.stored().ok_or(computed)?;
        // The deferred creates in directory `ino` took the hints that it has before the change.
        self.settle(ino).await.and(self.namespace.settle(Scope::Directory(ino)).await)?;
        let done = change(name).await;
        self.namespace.forget(&[ino]);
        if let Some(file) = self.files.get(ino) {
            file.hints_changed().await;
        }
        // A missing attribute has an errno of its own.
        done.map_err(|error| match error.code() {
            Code::NotFound => Errno::ENODATA,
            _ => explained(what, ino, &error),
        })?;
        self.hint_changed(ino, name).await;
        Ok(())
    }

    /// Queues a rewrite if the hint is about stored bytes.
    async fn hint_changed(&self, ino: u64, name: &str) {
        let Some(hint) = hint_of_attribute(name) else { return };
        let attr = self.backend.get(ino).await.ok().and_then(|entry| entry.attr);
        if attr.is_some_and(|attr| attr.kind() == InodeKind::File && attr.version != 0) {
            self.rewrites.hint_changed(ino, hint);
        }
    }
}
