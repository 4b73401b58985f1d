//! What the manager's database held, state by state: names, inodes and the content of every version.
//!
//! The world records a state after each group commit (of one command). An answer to a program is right if some state
//! between the program's call and its answer explains it.

use crate::mount_host::executor::Owner;
use crate::mount_host::store::{BLOCK_BYTES, Block, HOLE};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use tessera_manager::db::Db;
use tessera_wire::InodeKind;

/// Inode number of the root directory.
pub const ROOT: u64 = 1;

/// An inode in the database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inode {
    /// Its kind.
    pub kind: InodeKind,
    /// Permission bits.
    pub mode: u32,
    /// Number of names.
    pub nlink: u32,
    /// Length, bytes.
    pub size_bytes: u64,
    /// Current version; 0: never written.
    pub version: u64,
}

/// The namespace after a command.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tree {
    /// Directory and name → inode.
    pub names: BTreeMap<(u64, Vec<u8>), u64>,
    /// All inodes.
    pub inodes: BTreeMap<u64, Inode>,
}

impl Tree {
    /// The inode behind a name.
    pub fn lookup(&self, parent: u64, name: &[u8]) -> Option<u64> {
        self.names.get(&(parent, name.to_vec())).copied()
    }

    /// The names in a directory.
    pub fn list(&self, directory: u64) -> BTreeSet<(Vec<u8>, u64)> {
        let of = self.names.iter().filter(|((parent, _), _)| *parent == directory);
        of.map(|((_, name), ino)| (name.clone(), *ino)).collect()
    }
}

/// One version of a file.
#[derive(Debug, Clone)]
pub struct Version {
    /// Its id.
    pub id: u64,
    /// The file.
    pub ino: u64,
    /// The version before; 0: none.
    pub before: u64,
    /// When the manager committed it, by the world's clock, ns.
    pub at_ns: i64,
    /// When the next version took its place.
    pub until_ns: i64,
    /// Its blocks.
    pub blocks: Rc<Vec<Block>>,
    /// The process whose commit made it.
    pub by: Option<Owner>,
}

/// See the module.
#[derive(Default)]
pub struct History {
    states: Vec<(i64, Rc<Tree>)>,
    versions: BTreeMap<u64, Version>,
    by_file: BTreeMap<u64, Vec<u64>>,
    /// Every inode number that ever existed.
    ever: BTreeSet<u64>,
}

impl History {
    /// Records the state of the database. `commits`: versions that the answers of this group commit name, with the
    /// process that asked. Returns the new versions.
    pub fn record(&mut self, now_ns: i64, db: &Db, commits: &BTreeMap<u64, Owner>) -> Vec<Version> {
        let tree = read_tree(db);
        if self.states.last().is_some_and(|(_, last)| **last == tree) {
            return Vec::new();
        }
        self.ever.extend(tree.inodes.keys());
        let mut new = Vec::new();
        for (&ino, inode) in tree.inodes.iter().filter(|(_, inode)| inode.version != 0) {
            if self.versions.contains_key(&inode.version) {
                continue;
            }
            let of = self.by_file.entry(ino).or_default();
            let before = of.last().copied().unwrap_or(0);
            of.push(inode.version);
            let blocks = Rc::new(read_blocks(db, ino, inode.size_bytes));
            let by = commits.get(&inode.version).copied();
            let version = Version { id: inode.version, ino, before, at_ns: now_ns, until_ns: i64::MAX, blocks, by };
            if let Some(before) = self.versions.get_mut(&before) {
                before.until_ns = now_ns;
            }
            self.versions.insert(inode.version, version.clone());
            new.push(version);
        }
        self.states.push((now_ns, Rc::new(tree)));
        new
    }

    /// Number of states.
    pub fn len(&self) -> usize {
        self.states.len()
    }

    /// Whether there is no state yet.
    pub fn is_empty(&self) -> bool {
        self.states.is_empty()
    }

    /// The current state.
    pub fn now(&self) -> Rc<Tree> {
        self.states.last().map(|(_, tree)| tree.clone()).unwrap_or_default()
    }

    /// All states that were current at any time from `from_ns` to `to_ns`.
    pub fn between(&self, from_ns: i64, to_ns: i64) -> &[(i64, Rc<Tree>)] {
        let first = self.states.partition_point(|(at_ns, _)| *at_ns < from_ns).saturating_sub(1);
        let end = self.states.partition_point(|(at_ns, _)| *at_ns <= to_ns);
        &self.states[first.min(end)..end]
    }

    /// Whether some state from `from_ns` to `to_ns` satisfies `test`.
    pub fn any(&self, from_ns: i64, to_ns: i64, test: impl Fn(&Tree) -> bool) -> bool {
        self.between(from_ns, to_ns).iter().any(|(_, tree)| test(tree))
    }

    /// Whether some command from `from_ns` to `to_ns` made a change that satisfies `test` (before, after).
    pub fn changed(&self, from_ns: i64, to_ns: i64, test: impl Fn(&Tree, &Tree) -> bool) -> bool {
        self.between(from_ns, to_ns).windows(2).any(|pair| test(&pair[0].1, &pair[1].1))
    }

    /// Contents of a file that were current at any time from `from_ns` to `to_ns`, oldest first. A file that was never
    /// written is empty.
    pub fn contents(&self, ino: u64, from_ns: i64, to_ns: i64) -> Vec<Rc<Vec<Block>>> {
        let of: Vec<&Version> = self.versions_of(ino).collect();
        let unwritten = of.first().is_none_or(|first| first.at_ns >= from_ns);
        let empty = unwritten.then(|| Rc::new(Vec::new()));
        let current = of.into_iter().filter(|version| version.at_ns <= to_ns && version.until_ns >= from_ns);
        empty.into_iter().chain(current.map(|version| version.blocks.clone())).collect()
    }

    /// All versions of a file, oldest first.
    pub fn versions_of(&self, ino: u64) -> impl Iterator<Item = &Version> {
        self.by_file.get(&ino).into_iter().flatten().map(|id| &self.versions[id])
    }

    /// All versions.
    pub fn versions(&self) -> impl Iterator<Item = &Version> {
        self.versions.values()
    }

    /// A version.
    pub fn version(&self, id: u64) -> Option<&Version> {
        self.versions.get(&id)
    }

    /// Whether an inode ever existed.
    pub fn existed(&self, ino: u64) -> bool {
        self.ever.contains(&ino)
    }
}

fn read_tree(db: &Db) -> Tree {
    let mut tree = Tree::default();
    let conn = db.conn();
    let mut names = conn.prepare_cached("SELECT parent, name, ino FROM dentries").expect("the manager's schema");
    let rows = names.query_map([], |r| Ok(((r.get::<_, i64>(0)? as u64, r.get(1)?), r.get::<_, i64>(2)? as u64)));
    tree.names = rows.expect("the manager's schema").map(|row| row.expect("the manager's schema")).collect();
    let sql = "SELECT ino, kind, mode, nlink, size_bytes, version_id FROM inodes";
    let mut inodes = conn.prepare_cached(sql).expect("the manager's schema");
    let rows = inodes.query_map([], |r| {
        let kind = InodeKind::try_from(r.get::<_, i32>(1)?).unwrap_or(InodeKind::Unknown);
        let (mode, nlink) = (r.get(2)?, r.get(3)?);
        let (size_bytes, version) = (r.get::<_, i64>(4)? as u64, r.get::<_, i64>(5)? as u64);
        Ok((r.get::<_, i64>(0)? as u64, Inode { kind, mode, nlink, size_bytes, version }))
    });
    tree.inodes = rows.expect("the manager's schema").map(|row| row.expect("the manager's schema")).collect();
    tree
}

/// The content of a file's current version.
fn read_blocks(db: &Db, ino: u64, size_bytes: u64) -> Vec<Block> {
    let conn = db.conn();
    let mut blocks = vec![HOLE; (size_bytes / BLOCK_BYTES) as usize];
    let sql = "SELECT start, extents FROM pages WHERE ino = ?1 AND died IS NULL ORDER BY start";
    let mut pages = conn.prepare_cached(sql).expect("the manager's schema");
    let rows = pages.query_map([ino as i64], |r| Ok((r.get::<_, i64>(0)? as u64, r.get::<_, Vec<u8>>(1)?)));
    let mut chunks = conn.prepare_cached("SELECT hash FROM chunks WHERE chunk_id = ?1").expect("the manager's schema");
    for (start, column) in rows.expect("the manager's schema").map(|row| row.expect("the manager's schema")) {
        for extent in tessera_manager::page_extents(start, &column) {
            let whole = extent.offset.is_multiple_of(BLOCK_BYTES) && extent.len_bytes.is_multiple_of(BLOCK_BYTES);
            assert!(whole, "{extent:?} of inode {ino} is not of whole blocks");
            let block = match extent.chunk_id {
                0 => HOLE,
                chunk => chunks.query_row([chunk as i64], |r| r.get(0)).expect("an extent's chunk exists"),
            };
            let range = extent.offset / BLOCK_BYTES..extent.end() / BLOCK_BYTES;
            let len = blocks.len() as u64;
            range.filter(|at| *at < len).for_each(|at| blocks[at as usize] = block);
        }
    }
    blocks
}
