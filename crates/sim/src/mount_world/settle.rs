//! The end of a run: the mounts are unmounted, and nothing may be left over.

use super::*;
use history::Tree;
use tessera_wire::InodeKind;

/// Each mount that leaves logs is started again at most so many times.
const RESTARTS: usize = 3;
/// What a mount takes over is pushed within this time, ms.
const PUSH_MS: i64 = 10_000;

impl<H: Host> MountWorld<H> {
    pub(super) fn settle(&mut self) -> Result<(), Violation> {
        if !self.programs_are_done() {
            let left = self.shared.left.borrow().clone();
            self.model.borrow_mut().broken(
                "P12",
                0,
                format!("programs do not end after the faults: {left:?} operations left"),
            );
            return self.verdict();
        }
        self.mounts.iter_mut().for_each(|slot| slot.dies_at_commit = None);
        self.restart_for_logs()?;
        self.compare_trees()?;
        self.read_all()?;
        self.unmount()?;
        self.model.borrow_mut().settled();
        self.verdict()?;
        self.check_leftovers()
    }

    fn verdict(&self) -> Result<(), Violation> {
        self.model.borrow().violation().cloned().map_or(Ok(()), Err)
    }

    /// A mount that could not read its spool when it started leaves the logs to the next one. Of several logs of a file each
    /// mount takes over one.
    fn restart_for_logs(&mut self) -> Result<(), Violation> {
        for _ in 0..RESTARTS {
            let left: Vec<usize> = (0..self.mounts.len()).filter(|index| self.leaves_logs(*index)).collect();
            if left.is_empty() {
                break;
            }
            left.into_iter().for_each(|index| self.kill_mount(index, false, 0));
            self.run_until(self.now_ns + SETTLE_MS * MS, Self::programs_are_done)?;
            let all = 0..self.mounts.len();
            self.run_until(self.now_ns + PUSH_MS * MS, |world| !all.clone().any(|index| world.leaves_logs(index)))?;
        }
        self.run_until(self.now_ns + SETTLE_MS * MS, Self::programs_are_done)
    }

    /// Whether a mount may leave logs to the next one, and has some.
    fn leaves_logs(&self, mount: usize) -> bool {
        let is_log = |path: &String| path.ends_with(".spool");
        self.shared.leaves_logs.borrow()[mount] && self.mounts[mount].disk.paths().iter().any(is_log)
    }

    /// Every mount shows the manager's tree.
    fn compare_trees(&mut self) -> Result<(), Violation> {
        for index in 0..self.mounts.len() {
            let Some(host) = self.mounts[index].host.clone() else { continue };
            let done = Rc::new(Cell::new(false));
            let (finished, env) = (done.clone(), self.env.clone());
            let (model, history) = (self.model.clone(), self.history.clone());
            self.env.spawn(self.owner(index), async move {
                walk(index, &*host, &env, &model, &history).await;
                finished.set(true);
            });
            self.run_until(self.now_ns + SETTLE_MS * MS, |_| done.get())?;
        }
        self.verdict()
    }

    /// Every mount shows the newest version of each file of which nothing waits.
    fn read_all(&mut self) -> Result<(), Violation> {
        // What a mount still has open is released, and what waits is pushed.
        let has_logs = |slot: &Slot<H>| slot.disk.paths().iter().any(|path| path.ends_with(".spool"));
        self.run_until(self.now_ns + 1_000 * MS, |_| false)?;
        self.run_until(self.now_ns + PUSH_MS * MS, |world| !world.mounts.iter().any(has_logs))?;
        for index in 0..self.mounts.len() {
            let Some(host) = self.mounts[index].host.clone().filter(|_| !has_logs(&self.mounts[index])) else {
                continue;
            };
            let done = Rc::new(Cell::new(false));
            let (finished, env) = (done.clone(), self.env.clone());
            let (model, history) = (self.model.clone(), self.history.clone());
            self.env.spawn(self.owner(index), async move {
                last_reads::read_all(index, &*host, &env, &model, &history).await;
                finished.set(true);
            });
            self.run_until(self.now_ns + SETTLE_MS * MS, |_| done.get())?;
        }
        self.verdict()
    }

    fn unmount(&mut self) -> Result<(), Violation> {
        for index in 0..self.mounts.len() {
            let slot = &mut self.mounts[index];
            let Some(host) = slot.host.take() else { continue };
            let unmounted = slot.unmounted.clone();
            self.env.spawn(self.owner(index), async move { unmounted.set(Some(host.unmount().await)) });
        }
        self.run_until(self.now_ns + SETTLE_MS * MS, |world| {
            world.mounts.iter().all(|slot| slot.unmounted.get().is_some())
        })?;
        for index in 0..self.mounts.len() {
            let failed = self.mounts[index].unmounted.get();
            // What a spool that failed, or that keeps a log, does to a file that other mounts removed is not promised.
            let excused = failed.is_some() && self.shared.leaves_logs.borrow()[index];
            if failed != Some(0) && !excused {
                let fact = format!("mount {index} did not store everything at the unmount: {failed:?} files are left");
                self.model.borrow_mut().broken("P12", 0, fact);
            }
        }
        self.verdict()?;
        // The processes end: their connections close in order, their leases and locks with them.
        for index in 0..self.mounts.len() {
            self.send_outgoing();
            let owner = self.owner(index);
            self.executor.kill(owner);
            self.send_outgoing();
            self.mounts[index].link = None;
            self.mount_gone(owner, false);
        }
        self.run_until(self.now_ns + 15_000 * MS, |_| false)
    }

    fn check_leftovers(&mut self) -> Result<(), Violation> {
        let gauges = ["leases", "locks", "locks_waiting", "lock_clients", "sessions", "requests_waiting"];
        for name in gauges {
            let left = self.manager.gauge(name);
            if left != Some(0) {
                self.model.borrow_mut().broken("P5", 0, format!("{left:?} {name} are left over"));
            }
        }
        for (index, slot) in self.mounts.iter().enumerate() {
            let left = slot.disk.paths();
            // A loss of power may bring back the name of a local file of incremental writes.
            let logs: Vec<&String> = left.iter().filter(|path| !path.ends_with(".segment")).collect();
            if !logs.is_empty() && !self.shared.leaves_logs.borrow()[index] {
                // A log's name begins with the number of its file.
                let ino = logs[0].get(..16).and_then(|hex| u64::from_str_radix(hex, 16).ok()).unwrap_or(0);
                self.model.borrow_mut().broken("P5", ino, format!("the spool of mount {index} still has {logs:?}"));
            }
        }
        if let Err(fact) = self.manager.recount() {
            self.model.borrow_mut().broken("P4", 0, fact);
        }
        self.verdict()
    }
}

/// Compares what a mount shows with what the manager has, from the root down.
async fn walk<H: Host>(mount: usize, host: &H, env: &Env, model: &RefCell<Model>, history: &RefCell<History>) {
    let mut directories = vec![history::ROOT];
    let now_ns = || env.now_ns();
    while let Some(directory) = directories.pop() {
        let from_ns = now_ns();
        let Ok(listed) = host.list(directory).await else {
            return model.borrow_mut().broken("P12", 0, format!("mount {mount} cannot list inode {directory}"));
        };
        let listed = listed.into_iter().collect();
        if !history.borrow().any(from_ns, now_ns(), |tree| tree.list(directory) == listed) {
            let there = history.borrow().now().list(directory);
            let fact = format!("mount {mount} lists {listed:?} in inode {directory}, there is {there:?}");
            return model.borrow_mut().broken("P7", directory, fact);
        }
        for (name, ino) in listed {
            let from_ns = now_ns();
            let shown = host.lookup((directory, &name)).await;
            let seen = shown.as_ref().ok().map(|found| (found.ino, found.kind, found.mode));
            let real = |tree: &Tree| {
                let ino = tree.lookup(directory, &name)?;
                tree.inodes.get(&ino).map(|inode| (ino, inode.kind, inode.mode))
            };
            if !history.borrow().any(from_ns, now_ns(), |tree| real(tree) == seen) {
                let there = real(&history.borrow().now());
                let fact = format!("mount {mount} shows {shown:?} as {name:?} in {directory}, there is {there:?}");
                return model.borrow_mut().broken("P7", ino, fact);
            }
            if seen.is_some_and(|(_, kind, _)| kind == InodeKind::Directory) {
                directories.push(ino);
            }
        }
    }
}
