//! The program of a mount: random operations, one after another, on few names.
//!
//! Each operation is recorded in the model before it begins and when it ends, and its answer is checked against what the
//! manager held meanwhile.

mod files;
mod names;
pub mod reader;

use super::Shared;
use super::history::{History, ROOT, Tree};
use super::model::{Change, Model, block};
use super::plan::Theme;
use crate::mount_host::env::Env;
use crate::mount_host::fs::{FileSystem, Found, Handle};
use crate::mount_host::store::BLOCK_BYTES;
use crate::plan::Rng;
use std::cell::RefCell;
use std::rc::Rc;
use tessera_mount::errno::Errno;
use tessera_wire::InodeKind;

/// Longest file, blocks.
const MAX_BLOCKS: u64 = 12;
/// Handles that a program has open at most.
const MAX_HANDLES: usize = 4;

/// A handle that the program has open.
#[derive(Debug, Clone, Copy)]
struct Open {
    handle: Handle,
    ino: u64,
    writes: bool,
    /// When the program asked for it, or for its lock: nothing older may be read.
    since_ns: i64,
    locked: bool,
}

/// See the module.
pub struct Program<F> {
    mount: usize,
    fs: Rc<F>,
    env: Env,
    model: Rc<RefCell<Model>>,
    history: Rc<RefCell<History>>,
    shared: Rc<Shared>,
    rng: Rng,
    open: Vec<Open>,
    /// The file that was opened last, by its name.
    recent: Option<(Name, Found)>,
}

/// A directory and a name.
type Name = (u64, Vec<u8>);

impl<F: FileSystem> Program<F> {
    /// A program that uses a mount.
    pub fn new(
        mount: usize,
        fs: Rc<F>,
        env: Env,
        model: Rc<RefCell<Model>>,
        history: Rc<RefCell<History>>,
        shared: Rc<Shared>,
        rng: Rng,
    ) -> Program<F> {
        Program { mount, fs, env, model, history, shared, rng, open: Vec::new(), recent: None }
    }

    /// Does the operations that are left, then closes what is open.
    pub async fn run(mut self) {
        while self.shared.left.borrow()[self.mount] > 0 {
            if self.shared.left.borrow()[self.mount] == 1 {
                while let Some(open) = self.open.pop() {
                    self.close(open).await;
                }
            } else {
                self.step().await;
            }
            self.shared.left.borrow_mut()[self.mount] -= 1;
            let pause_ms = self.rng.between(0, self.shared.pause_ms.get());
            self.env.sleep_ms(pause_ms).await;
        }
    }

    async fn step(&mut self) {
        match self.shared.theme.get() {
            Theme::Locks if self.rng.percent(30) => match self.open.iter().any(|open| open.locked) {
                true => return self.unlock().await,
                false => return self.lock().await,
            },
            Theme::Creates if self.rng.percent(40) => match self.rng.between(0, 9) {
                0 => return self.make_directory().await,
                1 => return self.unlink().await,
                _ => return self.create().await,
            },
            _ => {}
        }
        match self.rng.between(0, 99) {
            0..=17 => self.create().await,
            18..=27 => self.open_existing().await,
            28..=45 => self.write().await,
            46..=53 => self.read().await,
            54..=56 => self.truncate().await,
            57 => self.truncate_by_name().await,
            58..=61 => self.sync().await,
            62..=72 => self.close_one().await,
            73..=78 => self.unlink().await,
            79..=82 => self.rename().await,
            83..=84 => self.make_directory().await,
            85 => self.remove_directory().await,
            86..=88 => self.link().await,
            89 => self.symlink().await,
            90 => self.set_mode().await,
            91..=93 => self.look_up().await,
            94..=95 => self.list().await,
            96..=97 => self.lock().await,
            _ => self.unlock().await,
        }
    }

    // --- helpers ------------------------------------------------------------------------------------------------

    fn now_ns(&self) -> i64 {
        self.env.now_ns()
    }

    fn begin(&self, text: String) -> usize {
        self.model.borrow_mut().begin(self.mount, self.now_ns(), text)
    }

    fn end<T>(&self, number: usize, inos: &[u64], result: &Result<T, Errno>) {
        let text = match result {
            Ok(_) => "ok".to_string(),
            Err(errno) => format!("{errno:?}"),
        };
        self.model.borrow_mut().end(number, self.now_ns(), inos, text);
    }

    fn broken(&self, promise: &'static str, ino: u64, fact: String) {
        self.model.borrow_mut().broken(promise, ino, format!("mount {}: {fact}", self.mount));
    }

    /// Checks that an error has a reason that no state of the tree shows.
    fn check_failure(&self, what: &str, ino: u64, errno: Errno) {
        let excused =
            matches!(errno, Errno::ETIMEDOUT | Errno::EIO | Errno::ESTALE | Errno::ENOSPC) && !self.shared.calm.get();
        if !excused {
            self.broken("P14", ino, format!("{what} failed with {errno:?}, without a reason"));
        }
    }

    /// Whether some state since `from_ns` satisfies `test`.
    fn any(&self, from_ns: i64, test: impl Fn(&Tree) -> bool) -> bool {
        self.history.borrow().any(from_ns, self.now_ns(), test)
    }

    fn directory(&mut self) -> u64 {
        let fixed = self.shared.directories.borrow().clone();
        let tree = self.history.borrow().now();
        let others = tree
            .inodes
            .iter()
            .filter(|(ino, inode)| inode.kind == InodeKind::Directory && **ino != ROOT && !fixed.contains(ino));
        let others: Vec<u64> = others.map(|(ino, _)| *ino).collect();
        match others.is_empty() || self.rng.percent(60) {
            true => *self.rng.pick(&fixed),
            false => *self.rng.pick(&others),
        }
    }

    fn name(&mut self) -> Name {
        let number = self.rng.between(0, self.shared.names.get() - 1);
        (self.directory(), format!("n{number}").into_bytes())
    }

    fn show(name: &Name) -> String {
        format!("{}/{}", name.0, String::from_utf8_lossy(&name.1))
    }

    /// Whether a name existed at some time since `from_ns`, here or at the manager.
    fn exists(&self, from_ns: i64, name: &Name) -> bool {
        self.any(from_ns, |tree| tree.lookup(name.0, &name.1).is_some())
            || self.model.borrow().deferred_in(self.mount, name.0).iter().any(|(of, _)| *of == name.1)
    }

    /// Looks a name up, and checks the answer.
    async fn resolve(&self, name: &Name) -> Option<Found> {
        let (from_ns, number) = (self.now_ns(), self.begin(format!("look up {}", Self::show(name))));
        let found = self.fs.lookup((name.0, &name.1)).await;
        let ino = found.as_ref().map_or(0, |found| found.ino);
        self.end(number, &[ino], &found);
        let now = |tree: &Tree| tree.lookup(name.0, &name.1);
        match &found {
            Ok(found) => {
                let known = self.any(from_ns, |tree| now(tree) == Some(found.ino));
                if !known && !self.model.borrow().is_deferred(self.mount, found.ino) {
                    let fact = format!("{} is shown as inode {}, which it never was", Self::show(name), found.ino);
                    self.broken("P7", found.ino, fact);
                }
                self.check_attr(from_ns, found);
            }
            Err(Errno::ENOENT) => {
                if !self.any(from_ns, |tree| now(tree).is_none()) {
                    self.broken("P7", 0, format!("{} is shown as absent, which it never was", Self::show(name)));
                }
            }
            Err(errno) => self.check_failure("lookup", 0, *errno),
        }
        found.ok()
    }

    /// Checks attributes that the mount showed.
    fn check_attr(&self, from_ns: i64, found: &Found) {
        if self.model.borrow().is_deferred(self.mount, found.ino) {
            return;
        }
        let same = |tree: &Tree| {
            tree.inodes.get(&found.ino).is_some_and(|inode| (inode.kind, inode.mode) == (found.kind, found.mode))
        };
        if !self.any(from_ns, same) {
            return self.broken("P7", found.ino, format!("shows {found:?}, which it never was"));
        }
        if found.kind == InodeKind::File {
            let (blocks, now_ns) = (found.size_bytes / BLOCK_BYTES, self.now_ns());
            self.model.borrow_mut().shows_length(self.mount, found.ino, from_ns, now_ns, blocks);
        }
    }
}
