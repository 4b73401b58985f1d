//! The directory of a local store: who holds it, what lies where, and `cluster.json`.

use crate::exit::{Exit, Failure, Outcome};
use serde_json::Value;
use std::fs::{File, TryLockError};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};

/// Longest path of a Unix socket that the system takes, with room for its end mark.
const MAX_SOCKET_PATH: usize = 100;
/// The file that tells programs where things listen.
pub const CLUSTER_FILE: &str = "cluster.json";
/// The file that whoever runs the store holds locked.
const LOCK_FILE: &str = "up.lock";

/// The directory, held by this process as long as this lives.
#[derive(Debug)]
pub struct Directory {
    root: PathBuf,
    _lock: File,
}

impl Directory {
    /// Makes it if need be, and takes its lock.
    ///
    /// # Errors
    /// Another `up` holds it; it is no directory; it holds other people's files.
    pub fn open(path: &Path) -> Outcome<Self> {
        std::fs::create_dir_all(path).map_err(|e| Failure::io(path.display(), &e))?;
        let root = path.canonicalize().map_err(|e| Failure::io(path.display(), &e))?;
        refuse_foreign(&root)?;
        let lock_path = root.join(LOCK_FILE);
        let mut lock = File::options()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .open(&lock_path)
            .map_err(|e| Failure::io(lock_path.display(), &e))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut holder = String::new();
                let _ = lock.read_to_string(&mut holder);
                return Err(Failure::new(
                    Exit::Refused,
                    format!(
                        "{}: a running `tessera up` holds this directory (process {}); stop it, or choose another --dir",
                        root.display(),
                        holder.trim()
                    ),
                ));
            }
            Err(TryLockError::Error(e)) => return Err(Failure::io(lock_path.display(), &e)),
        }
        let written =
            lock.set_len(0).and_then(|()| lock.rewind()).and_then(|()| writeln!(lock, "{}", std::process::id()));
        written.map_err(|e| Failure::io(lock_path.display(), &e))?;
        for below in ["manager", "logs", "run"] {
            let below = root.join(below);
            std::fs::create_dir_all(&below).map_err(|e| Failure::io(below.display(), &e))?;
        }
        Ok(Directory { root, _lock: lock })
    }

    /// Its path.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Where the manager's database lies.
    pub fn manager(&self) -> PathBuf {
        self.root.join("manager")
    }

    /// Directory of disk `disk` (from 1) of node `node` (from 1).
    pub fn disk(&self, node: u32, disk: u32) -> PathBuf {
        self.root.join(format!("n{node}")).join(format!("d{disk}"))
    }

    /// Log of the child called `name`.
    pub fn log(&self, name: &str) -> PathBuf {
        self.root.join("logs").join(format!("{name}.log"))
    }

    /// Unix socket of the child called `name`, unless its path would be too long for the system.
    pub fn socket(&self, name: &str) -> Option<PathBuf> {
        let path = self.root.join("run").join(format!("{name}.sock"));
        (path.as_os_str().len() <= MAX_SOCKET_PATH).then_some(path)
    }

    /// Nodes and disks of each that are here already.
    pub fn found(&self) -> (u32, u32) {
        let count = |has: &dyn Fn(u32) -> bool| (1..).take_while(|i| has(*i)).count() as u32;
        let nodes = count(&|node| self.root.join(format!("n{node}")).is_dir());
        (nodes, count(&|disk| self.disk(1, disk).is_dir()))
    }

    /// Writes `cluster.json`, whole or not at all.
    pub fn write_cluster_file(&self, value: &Value) -> Outcome {
        let path = self.root.join(CLUSTER_FILE);
        let temporary = self.root.join("cluster.json.tmp");
        let text = serde_json::to_string_pretty(value).unwrap_or_default() + "\n";
        std::fs::write(&temporary, text)
            .and_then(|()| std::fs::rename(&temporary, &path))
            .map_err(|e| Failure::io(path.display(), &e))
    }
}

/// A directory with files but none of ours is somebody else's: nothing is put there (P14).
fn refuse_foreign(root: &Path) -> Outcome {
    let entries = std::fs::read_dir(root).map_err(|e| Failure::io(root.display(), &e))?;
    let names: Vec<String> = entries.flatten().map(|e| e.file_name().to_string_lossy().into_owned()).collect();
    let ours = names.is_empty() || names.iter().any(|n| n == LOCK_FILE || n == "lost+found");
    match ours {
        true => Ok(()),
        false => Err(Failure::new(
            Exit::Refused,
            format!(
                "{}: holds {:?} but no store of `tessera up`; choose an empty directory with --dir",
                root.display(),
                names[0]
            ),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_has_one_holder() {
        let dir = tempfile::tempdir().unwrap();
        let held = Directory::open(dir.path()).unwrap();
        let refused = Directory::open(dir.path()).unwrap_err();
        assert_eq!(refused.exit, Exit::Refused);
        assert!(refused.message.contains(&std::process::id().to_string()), "{refused}");
        drop(held);
        Directory::open(dir.path()).unwrap();
    }

    /// P14: a directory of somebody else is left as it is.
    #[test]
    fn other_peoples_directories_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("thesis.tex"), "x").unwrap();
        assert!(Directory::open(dir.path()).unwrap_err().message.contains("thesis.tex"));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_is_there_is_counted() {
        let dir = tempfile::tempdir().unwrap();
        let directory = Directory::open(dir.path()).unwrap();
        assert_eq!(directory.found(), (0, 0));
        for (node, disk) in [(1, 1), (1, 2), (2, 1), (2, 2), (4, 1)] {
            std::fs::create_dir_all(directory.disk(node, disk)).unwrap();
        }
        assert_eq!(directory.found(), (2, 2));
    }
}
