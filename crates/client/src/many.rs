//! Directories, links and attributes of a tree, many in one request: by inode, because each name of a path that is looked up by
//! itself costs as much as a request about a thousand.

use crate::client::Client;
use crate::error::Error;
use crate::inodes::owner_and_mtime;
use crate::write::core::Owner;
use tessera_wire::meta::*;
use tessera_wire::{Code, Error as WireError};

/// What the manager says of one of many.
pub type Answer<T> = Result<T, WireError>;

impl Client {
    /// The entries of directories, in byte order of names; of each, or why it cannot be listed.
    ///
    /// # Errors
    /// The manager does not answer.
    pub fn list_many(&self, directories: &[u64]) -> Result<Vec<Answer<Vec<Dirent>>>, Error> {
        let mut listed = Vec::with_capacity(directories.len());
        while listed.len() < directories.len() {
            let rest = &directories[listed.len()..];
            let asked = &rest[..rest.len().min(MAX_AT_ONCE)];
            let reply = self.ask(&ListMany { inos: asked.to_vec() })?.directories;
            if reply.is_empty() || reply.len() > asked.len() {
                return Err(short("ListMany", asked.len(), reply.len()).into());
            }
            for (ino, directory) in asked.iter().zip(reply) {
                listed.push(match directory {
                    ListedDirectory { refused: Some(error), .. } => Err(error),
                    ListedDirectory { entries, more: false, .. } => Ok(entries),
                    ListedDirectory { entries, .. } => self.list_rest(*ino, entries),
                });
            }
        }
        Ok(listed)
    }

    /// The entries of a directory that begin with these.
    pub(crate) fn list_rest(&self, ino: u64, mut entries: Vec<Dirent>) -> Answer<Vec<Dirent>> {
        let after = entries.last().map_or_else(Vec::new, |last| last.name.clone());
        for page in self.pages_after(ino, after) {
            entries.extend(page?);
        }
        Ok(entries)
    }

    /// The entries of a directory behind this name, as many at a time as the manager gives at once. Ends at the first failure.
    pub(crate) fn pages_after(&self, ino: u64, after: Vec<u8>) -> impl Iterator<Item = Answer<Vec<Dirent>>> + '_ {
        let mut from = Some(after);
        std::iter::from_fn(move || {
            // Limit 0: as many as the manager gives at once.
            let page = match self.ask(&List { ino, after: from.take()?, ..List::default() }) {
                Ok(page) => page,
                Err(error) => return Some(Err(error)),
            };
            from = page.entries.last().filter(|_| page.more).map(|last| last.name.clone());
            Some(Ok(page.entries))
        })
    }

    /// Makes directories and symbolic links: of each its inode, or why it is not there. A directory that is there is fine.
    ///
    /// # Errors
    /// The manager does not answer. Some may have been made.
    pub fn make_many(&self, entries: &[NewEntry]) -> Result<Vec<Answer<u64>>, Error> {
        let mut made = Vec::with_capacity(entries.len());
        for some in entries.chunks(MAX_AT_ONCE) {
            let reply = self.ask(&MakeEntries { op_id: self.op_id(), entries: some.to_vec() })?.made;
            if reply.len() != some.len() {
                return Err(short("MakeEntries", some.len(), reply.len()).into());
            }
            made.extend(reply.into_iter().map(|MadeEntry { ino, refused }| refused.map_or(Ok(ino), Err)));
        }
        Ok(made)
    }

    /// Changes permission bits, owner and modification time (ns since 1970) of inodes. Returns the places of those that were
    /// refused, and why.
    ///
    /// # Errors
    /// The manager does not answer. Some may have been changed.
    pub fn set_many(&self, inodes: &[(u64, Owner, i64)]) -> Result<Vec<(usize, WireError)>, Error> {
        let mut refused = Vec::new();
        for (number, some) in inodes.chunks(MAX_AT_ONCE).enumerate() {
            let set = |(ino, owner, mtime_ns): &(u64, Owner, i64)| owner_and_mtime(*ino, *owner, *mtime_ns);
            let reply = self.ask(&SetAttrs { op_id: self.op_id(), inodes: some.iter().map(set).collect() })?;
            let place = |index: u32| number * MAX_AT_ONCE + index as usize;
            refused.extend(reply.refused.into_iter().map(|of| (place(of.index), of.error.unwrap_or_default())));
        }
        Ok(refused)
    }
}

fn short(request: &str, asked: usize, answered: usize) -> WireError {
    WireError::new(
        Code::Invalid,
        format!("{request}: {answered} answers to {asked} questions; the manager is of another release"),
    )
}
