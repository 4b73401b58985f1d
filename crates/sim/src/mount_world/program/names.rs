//! Operations on names and attributes.

use super::*;

impl<F: FileSystem> Program<F> {
    pub(super) async fn look_up(&mut self) {
        // The kernel's length is that of the lookup.
        let (name, from_ns) = (self.name(), self.now_ns());
        let Some(found) = self.resolve(&name).await else { return };
        let number = self.begin(format!("attributes of {}", found.ino));
        let attr = self.fs.attr(found.ino).await;
        self.end(number, &[found.ino], &attr);
        match attr {
            Ok(found) => self.check_attr(from_ns, &found),
            Err(Errno::ESTALE) if self.any(from_ns, |tree| !tree.inodes.contains_key(&found.ino)) => {}
            Err(errno) => self.check_failure("getattr", found.ino, errno),
        }
    }

    pub(super) async fn list(&mut self) {
        let directory = self.directory();
        let (from_ns, number) = (self.now_ns(), self.begin(format!("list {directory}")));
        let listed = self.fs.list(directory).await;
        self.end(number, &[directory], &listed);
        match listed {
            Ok(listed) => {
                let listed = listed.into_iter().collect();
                if !self.any(from_ns, |tree| tree.list(directory) == listed) {
                    self.broken("P7", directory, format!("lists {listed:?} in {directory}, which it never held"));
                }
            }
            Err(errno) => self.check_parent(from_ns, "list", directory, errno),
        }
    }

    /// The kernel drops what it has cached for names that it changes.
    fn forget_recent(&mut self, names: &[&Name]) {
        self.recent.take_if(|(recent, _)| names.contains(&&*recent));
    }

    pub(super) async fn unlink(&mut self) {
        let name = self.name();
        let Some(found) = self.resolve(&name).await.filter(|found| found.kind != InodeKind::Directory) else { return };
        let number = self.begin(format!("unlink {} ({})", Self::show(&name), found.ino));
        let from_ns = self.now_ns();
        self.forget_recent(&[&name]);
        let done = self.fs.remove((name.0, &name.1), false).await;
        self.end(number, &[found.ino], &done);
        self.check_removed("unlink", from_ns, &name, done);
    }

    pub(super) async fn remove_directory(&mut self) {
        let name = self.name();
        let Some(found) = self.resolve(&name).await.filter(|found| found.kind == InodeKind::Directory) else { return };
        let number = self.begin(format!("rmdir {} ({})", Self::show(&name), found.ino));
        let from_ns = self.now_ns();
        let done = self.fs.remove((name.0, &name.1), true).await;
        self.end(number, &[found.ino], &done);
        self.check_removed("rmdir", from_ns, &name, done);
    }

    pub(super) fn check_removed(&self, what: &str, from_ns: i64, name: &Name, done: Result<(), Errno>) {
        let of = |tree: &Tree| tree.lookup(name.0, &name.1);
        match done {
            Ok(()) => {
                let removed = |before: &Tree, after: &Tree| of(before).is_some() && of(after) != of(before);
                if !self.history.borrow().changed(from_ns, self.now_ns(), removed) {
                    self.broken("P7", 0, format!("{what} of {} succeeded and removed nothing", Self::show(name)));
                }
            }
            Err(Errno::ENOENT) if self.any(from_ns, |tree| of(tree).is_none()) => {}
            Err(Errno::ENOTEMPTY | Errno::EISDIR | Errno::ENOTDIR) => {}
            Err(errno) => self.check_failure(what, 0, errno),
        }
    }

    pub(super) async fn rename(&mut self) {
        let (from, to, replace) = (self.name(), self.name(), self.rng.percent(70));
        let how = if replace { "rename" } else { "rename without replacing" };
        let number = self.begin(format!("{how} {} to {}", Self::show(&from), Self::show(&to)));
        let from_ns = self.now_ns();
        self.forget_recent(&[&from, &to]);
        let done = self.fs.rename((from.0, &from.1), (to.0, &to.1), replace).await;
        self.end(number, &[], &done);
        let old = |tree: &Tree| tree.lookup(from.0, &from.1);
        let new = |tree: &Tree| tree.lookup(to.0, &to.1);
        match done {
            Ok(()) => {
                let same = |tree: &Tree| old(tree).is_some() && old(tree) == new(tree);
                let moved = |before: &Tree, after: &Tree| old(before).is_some() && new(after) == old(before);
                if !self.any(from_ns, same) && !self.history.borrow().changed(from_ns, self.now_ns(), moved) {
                    let fact = format!("rename of {} to {} moved nothing", Self::show(&from), Self::show(&to));
                    self.broken("P7", 0, fact);
                }
            }
            Err(Errno::ENOENT) if self.any(from_ns, |t| old(t).is_none() || !t.inodes.contains_key(&to.0)) => {}
            Err(Errno::EEXIST) if !replace && self.any(from_ns, |tree| new(tree).is_some()) => {}
            Err(Errno::ENOTEMPTY | Errno::EISDIR | Errno::ENOTDIR | Errno::EINVAL) => {}
            Err(errno) => self.check_failure("rename", 0, errno),
        }
    }

    pub(super) async fn make_directory(&mut self) {
        let (directory, number) = (self.directory(), self.rng.between(0, self.shared.names.get() - 1));
        let name = (directory, format!("n{number}").into_bytes());
        let (from_ns, number) = (self.now_ns(), self.begin(format!("mkdir {}", Self::show(&name))));
        let made = self.fs.make_directory((name.0, &name.1), 0o755).await;
        let ino = made.as_ref().map_or(0, |found| found.ino);
        self.end(number, &[ino], &made);
        self.check_made("mkdir", from_ns, &name, made);
    }

    pub(super) fn check_made(&self, what: &str, from_ns: i64, name: &Name, made: Result<Found, Errno>) {
        let of = |tree: &Tree| tree.lookup(name.0, &name.1);
        match made {
            Ok(found) if self.any(from_ns, |tree| of(tree) == Some(found.ino)) => {}
            Ok(found) => {
                let fact = format!("{what} of {} gave {}, which it never was", Self::show(name), found.ino);
                self.broken("P7", found.ino, fact);
            }
            Err(Errno::EEXIST) if self.exists(from_ns, name) => {}
            Err(errno) => self.check_parent(from_ns, what, name.0, errno),
        }
    }

    pub(super) async fn link(&mut self) {
        let (from, to) = (self.name(), self.name());
        let Some(found) = self.resolve(&from).await.filter(|found| found.kind == InodeKind::File) else { return };
        let number = self.begin(format!("link {} to {}", found.ino, Self::show(&to)));
        let from_ns = self.now_ns();
        let made = self.fs.link(found.ino, (to.0, &to.1)).await;
        self.end(number, &[found.ino], &made);
        match made {
            Err(Errno::ENOENT | Errno::ESTALE)
                if self.any(from_ns, |t| t.inodes.get(&found.ino).is_none_or(|i| i.nlink == 0)) => {}
            made => self.check_made("link", from_ns, &to, made),
        }
    }

    pub(super) async fn symlink(&mut self) {
        let name = self.name();
        let (from_ns, number) = (self.now_ns(), self.begin(format!("symlink {}", Self::show(&name))));
        let made = self.fs.symlink((name.0, &name.1), b"elsewhere").await;
        let ino = made.as_ref().map_or(0, |found| found.ino);
        self.end(number, &[ino], &made);
        self.check_made("symlink", from_ns, &name, made);
    }

    pub(super) async fn set_mode(&mut self) {
        let (name, mode) = (self.name(), 0o600 + self.rng.between(0, 7) as u32);
        let from_ns = self.now_ns();
        let Some(found) = self.resolve(&name).await.filter(|found| found.kind == InodeKind::File) else { return };
        let number = self.begin(format!("chmod {} to {mode:o}", found.ino));
        let changed = self.fs.set_mode(found.ino, mode).await;
        self.end(number, &[found.ino], &changed);
        match changed {
            Ok(found) => {
                // Another mount's may follow before the answer, which is repeated, arrives here.
                let mode_of = |tree: &Tree| tree.inodes.get(&found.ino).map(|inode| inode.mode);
                let modes: Vec<_> = {
                    let history = self.history.borrow();
                    history.between(from_ns, self.now_ns()).iter().map(|(_, tree)| mode_of(tree)).collect()
                };
                let was_set = modes.iter().skip_while(|was| **was != Some(mode)).any(|was| *was == Some(found.mode));
                if found.mode != mode && !was_set && !self.model.borrow().is_deferred(self.mount, found.ino) {
                    self.broken("P7", found.ino, format!("chmod to {mode:o} gave {:o}", found.mode));
                }
                self.check_attr(from_ns, &found);
            }
            Err(Errno::ENOENT | Errno::ESTALE)
                if self.any(from_ns, |t| t.inodes.get(&found.ino).is_none_or(|i| i.nlink == 0)) => {}
            Err(errno) => self.check_failure("chmod", found.ino, errno),
        }
    }
}
