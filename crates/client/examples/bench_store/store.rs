//! The same work on Tessera, through the client library.

use crate::{Reply, Small};
use std::error::Error;

/// A connection to a cluster.
pub struct Store {}

/// The client library cannot do this yet.
const PENDING: &str = "the client library is not ready";

impl Store {
    /// Connects to the manager at `address`.
    pub fn connect(_address: &str) -> Result<Store, Box<dyn Error>> {
        Err(PENDING.into())
    }

    /// Makes a directory and sets hints on it, each `name=value`.
    pub fn mkdir(&self, _path: &str, _hints: &[&str]) -> Reply {
        Err(PENDING.into())
    }

    /// Writes one file, and comes back when it is committed.
    pub fn write(&self, _path: &str, _source: &[u8]) -> Result<(), Box<dyn Error>> {
        Err(PENDING.into())
    }

    /// Reads one whole file.
    pub fn read(&self, _path: &str, _sink: &mut [u8]) -> Result<(), Box<dyn Error>> {
        Err(PENDING.into())
    }

    /// Small files, each committed before its writer goes on.
    pub fn small(&self, _dir: &str, _args: Small, _source: &[u8]) -> Reply {
        Err(PENDING.into())
    }

    /// What reads had to work around.
    pub fn stats(&self) -> String {
        String::new()
    }
}
