//! Reaching the cluster: the client library with this program's options, and its errors in one line.

use crate::args::Common;
use crate::exit::{Exit, Failure, Outcome};
use std::io::{Read, Write};
use std::sync::Arc;
use std::time::Duration;
use tessera_client::path::StorePath;
use tessera_net::{BufferPool, Dialer, DialerOptions, dialer::NoService};
use tessera_wire::meta::{ClusterStatus, GetStatus, MaintainReply, Upkeep, VersionInfo};
use tessera_wire::{Hello, InodeKind, Request, Role};

/// An inode and the path it was found at.
#[derive(Debug, Clone, PartialEq)]
pub struct Item {
    /// Where.
    pub path: StorePath,
    /// File, directory or symbolic link.
    pub kind: InodeKind,
    /// Inode number.
    pub ino: u64,
    /// Length of the current version.
    pub size_bytes: u64,
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Names it has.
    pub nlink: u32,
    /// Modification time, ns since 1970.
    pub mtime_ns: i64,
    /// Change time, ns since 1970.
    pub ctime_ns: i64,
    /// Current version id.
    pub version: u64,
    /// Its number within the file.
    pub version_number: u64,
    /// Target of a symbolic link.
    pub symlink_target: Vec<u8>,
}

/// What a file is stored with.
#[derive(Debug, Clone, Default)]
pub struct Given {
    /// Hints over those of the directory.
    pub hints: Vec<(String, String)>,
    /// Only over this version.
    pub if_version: Option<u64>,
    /// Permission bits.
    pub mode: u32,
    /// Modification time, ns since 1970; 0: now.
    pub mtime_ns: i64,
}

/// What of a file is wanted.
#[derive(Debug, Clone, Default)]
pub struct Wanted {
    /// Number of the version; none: the current one.
    pub version: Option<u64>,
    /// From, and up to.
    pub range: Option<(u64, Option<u64>)>,
}

/// What came of a put.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stored {
    /// Id of the new version.
    pub version: u64,
    /// Its length.
    pub bytes: u64,
}

/// A connection to the cluster.
pub struct Store {}

fn later<T>() -> Outcome<T> {
    Err(Failure::new(Exit::Failed, "not built yet"))
}

impl Store {
    pub fn connect(_common: &Common) -> Outcome<Store> {
        later()
    }
    pub fn resolve(&self, _path: &StorePath) -> Outcome<Item> {
        later()
    }
    pub fn list(&self, _path: &StorePath) -> Outcome<Vec<Item>> {
        later()
    }
    pub fn make_directory(&self, _path: &StorePath, _mode: u32, _exist_ok: bool) -> Outcome {
        later()
    }
    pub fn make_all(&self, _path: &StorePath) -> Outcome {
        later()
    }
    pub fn unlink(&self, _path: &StorePath) -> Outcome {
        later()
    }
    pub fn remove_all(&self, _path: &StorePath) -> Outcome<u64> {
        later()
    }
    pub fn rename(&self, _from: &StorePath, _to: &StorePath, _no_replace: bool) -> Outcome {
        later()
    }
    pub fn symlink(&self, _path: &StorePath, _target: &[u8]) -> Outcome {
        later()
    }
    pub fn set_attributes(&self, _path: &StorePath, _mode: u32, _mtime_ns: i64) -> Outcome {
        later()
    }
    pub fn hints(&self, _path: &StorePath) -> Outcome<Vec<(String, String)>> {
        later()
    }
    pub fn set_hints(&self, _path: &StorePath, _hints: &[(String, String)]) -> Outcome {
        later()
    }
    pub fn versions(&self, _path: &StorePath) -> Outcome<Vec<VersionInfo>> {
        later()
    }
    pub fn put(
        &self,
        _path: &StorePath,
        _source: impl Read + Send,
        _given: &Given,
        _len: Option<u64>,
        _progress: &(dyn Fn(u64) + Sync),
    ) -> Outcome<Stored> {
        later()
    }
    pub fn get(
        &self,
        _path: &StorePath,
        _sink: &mut (impl Write + Send),
        _wanted: &Wanted,
        _progress: &(dyn Fn(u64) + Sync),
    ) -> Outcome<u64> {
        later()
    }
    pub fn status(&self) -> Outcome<ClusterStatus> {
        later()
    }
    pub fn drain(&self, _node: u64, _disk: u64, _undo: bool) -> Outcome {
        later()
    }
    pub fn maintain(&self, _what: Upkeep, _start: bool) -> Outcome<MaintainReply> {
        later()
    }
}

/// Asks once, without the client library's patience.
pub fn ask_once<R: Request>(address: &str, message: &R, timeout: Duration) -> Outcome<R::Reply> {
    let endpoint = crate::daemon::config::endpoint(address)?;
    let hello = Hello {
        protocol_version: tessera_wire::PROTOCOL_VERSION,
        role: Role::Client as i32,
        release: env!("CARGO_PKG_VERSION").into(),
        client_id: rand::random(),
        ..Hello::default()
    };
    let dialer = Dialer::new(hello, Arc::new(NoService), BufferPool::new(1 << 20), DialerOptions::default());
    let answer = dialer.call_wait(&endpoint, message, Vec::new(), timeout);
    dialer.close();
    Ok(answer.map_err(Failure::from)?.0)
}

/// The state of the cluster, asked once.
pub fn status_once(address: &str) -> Outcome<ClusterStatus> {
    ask_once(address, &GetStatus {}, Duration::from_secs(5))
}
