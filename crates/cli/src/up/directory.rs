//! The directory of a local store: its lock, its paths, and `cluster.json`.

use crate::daemon::make_private;
use crate::exit::{At, Exit, Failure, Outcome, bail};
use serde_json::Value;
use std::fs::{File, TryLockError};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};
use tessera_disk::{Identity, RealDisk, hex16};
use tessera_manager::group::restore::RESTORING_FILE;

/// Longest path of a Unix socket that the system accepts, bytes; leaves room for the terminating zero.
const MAX_SOCKET_PATH: usize = 100;
/// Limits of `tessera up`.
pub const MAX_MANAGERS: u32 = 5;
/// See [`MAX_MANAGERS`].
pub const MAX_NODES: u32 = 200;
/// See [`MAX_MANAGERS`]; of each node.
pub const MAX_DISKS: u32 = 64;

/// The file that tells programs the addresses.
pub const CLUSTER_FILE: &str = "cluster.json";
/// The file that the running `tessera up` keeps locked.
const LOCK_FILE: &str = "up.lock";

/// Numbers of daemons and disks in a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// Managers.
    pub managers: u32,
    /// Nodes.
    pub nodes: u32,
    /// Disks of each node.
    pub disks: u32,
}

impl Counts {
    /// The daemons in words.
    pub fn daemons(&self) -> String {
        let count = |n: u32, one: &str| if n == 1 { format!("a {one}") } else { format!("{n} {one}s") };
        format!("{} and {}", count(self.managers, "manager"), count(self.nodes, "node"))
    }
}

/// Name of manager `number` (from 1), and of its directory: `manager`, `manager2`, …
pub fn manager_name(number: u32) -> String {
    if number == 1 { "manager".into() } else { format!("manager{number}") }
}

/// The directory. This process holds its lock until the drop.
#[derive(Debug)]
pub struct Directory {
    root: PathBuf,
    _lock: File,
}

impl Directory {
    /// Creates the directory if necessary, and locks it.
    ///
    /// # Errors
    /// Another `up` holds the lock; the path is no directory; the directory holds foreign files.
    pub fn open(path: &Path) -> Outcome<Self> {
        match tessera_disk::create_dir_durably(path) {
            Err(_) if path.exists() && !path.is_dir() => {
                let message = "is not a directory; name one, or a path that does not exist yet";
                bail!(Exit::Conflict, "{}: {message}", path.display())
            }
            made => made.at(path)?,
        }
        let root = path.canonicalize().at(path)?;
        refuse_foreign(&root)?;
        make_private(&root);
        let lock_path = root.join(LOCK_FILE);
        let mut lock =
            File::options().create(true).truncate(false).read(true).write(true).open(&lock_path).at(&lock_path)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut holder = String::new();
                let _ = lock.read_to_string(&mut holder);
                let (root, holder) = (root.display(), holder.trim());
                bail!(
                    Exit::Refused,
                    "{root}: a running `tessera up` holds this directory (process {holder}); stop it, or choose another --dir"
                );
            }
            Err(TryLockError::Error(e)) => return Err(Failure::io(lock_path, &e)),
        }
        let written =
            lock.set_len(0).and_then(|()| lock.rewind()).and_then(|()| writeln!(lock, "{}", std::process::id()));
        written.at(&lock_path)?;
        for below in ["manager", "logs", "run"] {
            let below = root.join(below);
            tessera_disk::create_dir_durably(&below).at(&below)?;
        }
        Ok(Directory { root, _lock: lock })
    }

    /// Path of the directory.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Directory of the database of manager `number` (from 1).
    pub fn manager(&self, number: u32) -> PathBuf {
        self.root.join(manager_name(number))
    }

    /// Whether manager `number` has a database. One whose restore was interrupted has none.
    pub fn has_database(&self, number: u32) -> bool {
        let directory = self.manager(number);
        tessera_manager::db::Db::is_in(&directory) && !directory.join(RESTORING_FILE).exists()
    }

    /// Directory of disk `disk` (from 1) of node `node` (from 1).
    pub fn disk(&self, node: u32, disk: u32) -> PathBuf {
        self.root.join(format!("n{node}")).join(format!("d{disk}"))
    }

    /// Log of the child `name`.
    pub fn log(&self, name: &str) -> PathBuf {
        self.root.join("logs").join(format!("{name}.log"))
    }

    /// Unix socket of the child `name`; `None` if its path would be too long for the system.
    pub fn socket(&self, name: &str) -> Option<PathBuf> {
        let path = self.root.join("run").join(format!("{name}.sock"));
        (path.as_os_str().len() <= MAX_SOCKET_PATH).then_some(path)
    }

    /// What exists here already.
    pub fn found(&self) -> Counts {
        let highest = |most: u32, is_there: &dyn Fn(u32) -> bool| (1..=most).rev().find(|i| is_there(*i)).unwrap_or(0);
        let nodes = highest(MAX_NODES, &|node| self.root.join(format!("n{node}")).is_dir());
        let disks = |node| highest(MAX_DISKS, &|disk| self.disk(node, disk).is_dir());
        Counts {
            managers: highest(MAX_MANAGERS, &|manager| self.manager(manager).is_dir()),
            nodes,
            disks: (1..=nodes).map(disks).max().unwrap_or(0),
        }
    }

    /// Numbers of managers and nodes of the last start, whose directories may be lost; 0 if it is not known.
    pub fn started_last(&self) -> (u32, u32) {
        let text = std::fs::read(self.root.join(CLUSTER_FILE)).unwrap_or_default();
        let cluster: Value = serde_json::from_slice(&text).unwrap_or_default();
        let len = |name: &str, most: u32| cluster[name].as_array().map_or(0, |all| all.len() as u32).min(most);
        (len("managers", MAX_MANAGERS), len("nodes", MAX_NODES))
    }

    /// Refuses to start disks of which no manager's database is left, unless it is to be restored. Refuses to restore where
    /// a database exists, because the other managers join it, or where no disk can provide one. `counts` is to be started.
    ///
    /// # Errors
    /// Names the way out (P14).
    pub fn check_managers(&self, counts: &Counts, restore: bool) -> Outcome {
        let of_a_cluster = (1..=counts.nodes).find_map(|node| self.cluster_of(node, counts.disks));
        let having = (1..=counts.managers).find(|manager| self.has_database(*manager));
        let database = self.manager(having.unwrap_or(1)).join(tessera_manager::db::FILE_NAME);
        let (database, root) = (database.display(), self.root.display());
        match (having.is_some(), restore, of_a_cluster) {
            (true, true, _) => {
                bail!(Exit::Conflict, "{database} exists: there is nothing to restore; start without --restore")
            }
            (false, true, None) => {
                bail!(Exit::NotFound, "{root}: no disk here belongs to a cluster; there is nothing to restore from")
            }
            (false, false, Some((disk, cluster))) => bail!(
                Exit::Refused,
                "{} belongs to cluster {cluster}, but {database} is gone: a new manager would know nothing of what the disks hold; \
                 rebuild it from them with `tessera up --restore`, or choose another --dir for a new store",
                disk.display()
            ),
            _ => Ok(()),
        }
    }

    /// The first disk of a node that carries a cluster id, and the id. Unreadable disks are left to the node, which reports them.
    pub fn cluster_of(&self, node: u32, disks: u32) -> Option<(PathBuf, String)> {
        let mut found = (1..=disks).filter_map(|disk| {
            let path = self.disk(node, disk);
            let disk = RealDisk::open(&path).ok()?;
            let identity = Identity::load(&disk).ok().flatten()?;
            Some((path, hex16(&identity.cluster_id)))
        });
        found.next()
    }

    /// Replaces `cluster.json` atomically.
    ///
    /// # Errors
    /// The system's, with the path.
    pub fn write_cluster_file(&self, value: &Value) -> Outcome {
        let path = self.root.join(CLUSTER_FILE);
        let temporary = self.root.join("cluster.json.tmp");
        let text = serde_json::to_string_pretty(value).unwrap_or_default() + "\n";
        std::fs::write(&temporary, text).and_then(|()| std::fs::rename(&temporary, &path)).at(&path)
    }
}

/// Refuses a directory that has only foreign files: nothing is written there (P14).
fn refuse_foreign(root: &Path) -> Outcome {
    let entries = std::fs::read_dir(root).at(root)?;
    let names = entries.flatten().map(|e| e.file_name().to_string_lossy().into_owned());
    let names: Vec<String> = names.filter(|n| n != "lost+found").collect();
    match names.first() {
        Some(first) if !names.iter().any(|n| n == LOCK_FILE) => bail!(
            Exit::Refused,
            "{}: holds {first:?} but no store of `tessera up`; choose an empty directory with --dir",
            root.display()
        ),
        _ => Ok(()),
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

    /// P14: a directory with foreign files stays unchanged.
    #[test]
    fn other_peoples_directories_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("thesis.tex"), "x").unwrap();
        assert!(Directory::open(dir.path()).unwrap_err().message.contains("thesis.tex"));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    /// P14: disks are not served to a manager that does not know them.
    #[test]
    fn disks_without_their_managers_database_are_told_apart_from_new_ones() {
        let dir = tempfile::tempdir().unwrap();
        let directory = Directory::open(dir.path()).unwrap();
        let counts = Counts { managers: 2, nodes: 2, disks: 1 };
        let refused = |restore| directory.check_managers(&counts, restore).unwrap_err();
        assert!(directory.check_managers(&counts, false).is_ok(), "a first start");
        assert_eq!(refused(true).exit, Exit::NotFound);
        let disk = RealDisk::create(directory.disk(2, 1)).unwrap();
        assert!(directory.check_managers(&counts, false).is_ok(), "a first start that got no further");
        Identity { cluster_id: [0xab; 16], disk_uuid: [1; 16], created_ms: 1 }.create(&disk).unwrap();
        let failure = refused(false);
        assert_eq!(failure.exit, Exit::Refused);
        assert!(failure.message.contains("abab") && failure.message.contains("up --restore"), "{failure}");
        assert!(directory.check_managers(&counts, true).is_ok());
        std::fs::write(directory.manager(1).join("manager.db"), "").unwrap();
        assert!(directory.check_managers(&counts, false).is_ok());
        assert_eq!(refused(true).exit, Exit::Conflict);
        // A restore that was interrupted is to be repeated.
        std::fs::write(directory.manager(1).join("restoring"), "").unwrap();
        assert!(directory.check_managers(&counts, true).is_ok());
        assert!(refused(false).message.contains("up --restore"));
        // Managers without a database join one that has it.
        std::fs::create_dir(directory.manager(2)).unwrap();
        std::fs::write(directory.manager(2).join("manager.db"), "").unwrap();
        assert!(directory.check_managers(&counts, false).is_ok());
        assert!(refused(true).message.contains("manager2/manager.db"));
    }

    #[test]
    fn what_is_there_is_counted() {
        let dir = tempfile::tempdir().unwrap();
        let directory = Directory::open(dir.path()).unwrap();
        assert_eq!(directory.found(), Counts { managers: 1, nodes: 0, disks: 0 });
        assert_eq!(directory.started_last(), (0, 0));
        std::fs::create_dir(directory.manager(2)).unwrap();
        for (node, disk) in [(1, 1), (1, 2), (2, 1), (2, 2), (4, 1)] {
            std::fs::create_dir_all(directory.disk(node, disk)).unwrap();
        }
        assert_eq!(directory.found(), Counts { managers: 2, nodes: 4, disks: 2 });
        // The directories of a manager and of nodes are lost.
        let names = |count| serde_json::Value::from(vec![serde_json::json!({}); count]);
        directory.write_cluster_file(&serde_json::json!({"managers": names(3), "nodes": names(6)})).unwrap();
        std::fs::remove_dir_all(dir.path().join("n1")).unwrap();
        assert_eq!(directory.found(), Counts { managers: 2, nodes: 4, disks: 2 });
        assert_eq!(directory.started_last(), (3, 6));
    }
}
