//! Operations on files: their content, and locks.

use super::*;

impl<F: FileSystem> Program<F> {
    pub(super) async fn create(&mut self) {
        if self.open.len() >= MAX_HANDLES {
            return self.close_one().await;
        }
        let name = self.name();
        let (from_ns, number) = (self.now_ns(), self.begin(format!("create {}", Self::show(&name))));
        self.model.borrow_mut().creates(self.mount, true);
        let made = self.fs.create((name.0, &name.1), 0o644).await;
        self.model.borrow_mut().creates(self.mount, false);
        let ino = made.as_ref().map_or(0, |(found, _)| found.ino);
        self.end(number, &[ino], &made);
        match made {
            Ok((found, handle)) => {
                self.model.borrow_mut().created(self.mount, found.ino, name.clone());
                let known = self.any(from_ns, |tree| tree.lookup(name.0, &name.1) == Some(found.ino));
                if !known && !self.model.borrow().is_deferred(self.mount, found.ino) {
                    self.broken("P7", ino, format!("{} was created as {ino}, and never was", Self::show(&name)));
                }
                let since_ns = self.model.borrow_mut().opens(self.mount, ino, from_ns);
                self.open.push(Open { handle, ino, writes: true, since_ns, locked: false });
                if self.rng.percent(70) {
                    self.write_to(self.open.len() - 1).await;
                }
            }
            Err(Errno::EEXIST) => {
                if !self.exists(from_ns, &name) {
                    self.broken("P7", 0, format!("{} is said to exist, which it never did", Self::show(&name)));
                }
            }
            Err(errno) => self.check_parent(from_ns, "create", name.0, errno),
        }
    }

    /// An operation in a directory failed: it may be gone.
    pub(super) fn check_parent(&self, from_ns: i64, what: &str, parent: u64, errno: Errno) {
        let gone = matches!(errno, Errno::ENOENT | Errno::ESTALE)
            && self.any(from_ns, |tree| !tree.inodes.contains_key(&parent));
        if !gone {
            self.check_failure(what, parent, errno);
        }
    }

    pub(super) async fn open_existing(&mut self) {
        if self.open.len() >= MAX_HANDLES {
            return self.close_one().await;
        }
        let mut cached = self.rng.percent(50).then(|| self.recent.clone()).flatten();
        let name = cached.as_ref().map_or_else(|| self.name(), |(name, _)| name.clone());
        // As the kernel does, opens what it has cached for the name, and looks the name up again if the mount says that
        // the inode is stale.
        for _ in 0..3 {
            let found = match cached.take() {
                Some((_, found)) => Some(found),
                None => self.resolve(&name).await,
            };
            self.recent = None;
            let Some(found) = found.filter(|found| found.kind == InodeKind::File) else { return };
            self.recent = Some((name.clone(), found.clone()));
            let writes = self.rng.percent(60);
            let (from_ns, ino) = (self.now_ns(), found.ino);
            let number =
                self.begin(format!("open {} ({ino}){}", Self::show(&name), if writes { "" } else { " to read" }));
            let since_ns = self.model.borrow_mut().opens(self.mount, ino, from_ns);
            let opened = self.fs.open(1, &found, writes).await;
            self.end(number, &[ino], &opened);
            match opened {
                Ok(handle) => {
                    self.open.push(Open { handle, ino, writes, since_ns, locked: false });
                    if !writes {
                        self.read_from(self.open.len() - 1).await;
                    }
                    return;
                }
                Err(Errno::ESTALE | Errno::ENOENT) => self.model.borrow_mut().closes(self.mount, ino, self.now_ns()),
                Err(errno) => {
                    self.model.borrow_mut().closes(self.mount, ino, self.now_ns());
                    return self.check_failure("open", ino, errno);
                }
            }
        }
    }

    pub(super) fn some_handle(&mut self, writes: bool) -> Option<usize> {
        let fit: Vec<usize> = (0..self.open.len()).filter(|at| self.open[*at].writes || !writes).collect();
        if fit.is_empty() { None } else { Some(*self.rng.pick(&fit)) }
    }

    pub(super) async fn write(&mut self) {
        match self.some_handle(true) {
            Some(at) => self.write_to(at).await,
            None => self.create().await,
        }
    }

    pub(super) async fn write_to(&mut self, at: usize) {
        let Open { handle, ino, .. } = self.open[at];
        let from_ns = self.now_ns();
        let lengths = self.model.borrow().lengths(self.mount, ino, from_ns, from_ns);
        let end = lengths.last().copied().unwrap_or(0).min(MAX_BLOCKS - 1);
        let start = match self.rng.between(0, 9) {
            0..=3 => end,
            4..=7 => self.rng.between(0, end),
            _ => self.rng.between(0, MAX_BLOCKS - 1),
        };
        let count = self.rng.between(1, 3);
        self.put(handle, ino, start, count).await;
    }

    pub(super) async fn put(&mut self, handle: Handle, ino: u64, start: u64, count: u64) {
        let number = self.model.borrow().next_write();
        let blocks: Vec<_> = (start..start + count).map(|at| block(self.mount, number, at)).collect();
        let change = Change::Write(start, blocks.clone());
        let entry = self.begin(format!("inode {ino}: {change}"));
        self.model.borrow_mut().writes(self.mount, ino, self.now_ns(), change);
        let written = self.fs.write(handle, start * BLOCK_BYTES, &blocks.concat()).await;
        self.end(entry, &[ino], &written);
        self.model.borrow_mut().wrote(self.mount, ino, self.now_ns());
        self.note_failure("write", ino, written);
    }

    /// A failed change of a file leaves it open what is stored.
    pub(super) fn note_failure(&self, what: &str, ino: u64, result: Result<(), Errno>) {
        let Err(errno) = result else { return };
        self.model.borrow_mut().fails(self.mount, ino);
        let lost = self.shared.locks_may_be_lost(self.mount, i64::MIN, self.now_ns());
        let removed = matches!(errno, Errno::ENOENT | Errno::ESTALE) && self.is_gone(ino);
        if lost && errno == Errno::EIO && self.open.iter().any(|open| open.ino == ino && open.locked) {
            self.model.borrow_mut().locks_lost(self.mount, ino);
        }
        if lost && errno == Errno::EIO && self.model.borrow().is_spooled(ino) {
            // The last writer's close leaves the log as it was closed before.
            self.shared.leaves_logs.borrow_mut()[self.mount] = true;
        }
        if !(removed || lost && errno == Errno::EIO) {
            // Another mount's version took the place of what waits in the spool.
            let conflict = errno == Errno::ESTALE && self.model.borrow().is_spooled(ino);
            if !conflict {
                self.check_failure(what, ino, errno);
            }
        }
    }

    /// Whether a file lost its last name, or its name before the manager knew it.
    pub(super) fn is_gone(&self, ino: u64) -> bool {
        if self.history.borrow().existed(ino) {
            return self.history.borrow().now().inodes.get(&ino).is_none_or(|inode| inode.nlink == 0);
        }
        let Some(name) = self.model.borrow().deferred_name(self.mount, ino) else { return false };
        // Another mount may take the name of a file that this mount could not make known in time.
        !self.shared.calm.get() && self.any(i64::MIN / 2, |tree| tree.lookup(name.0, &name.1).is_some())
            || !self.history.borrow().now().inodes.contains_key(&name.0)
    }

    pub(super) async fn read(&mut self) {
        if let Some(at) = self.some_handle(false) {
            self.read_from(at).await;
        }
    }

    pub(super) async fn read_from(&mut self, at: usize) {
        let Open { handle, ino, since_ns, .. } = self.open[at];
        let number = self.begin(format!("read inode {ino}"));
        let read = self.fs.read(handle, 0, (2 * MAX_BLOCKS * BLOCK_BYTES) as usize).await;
        self.end(number, &[ino], &read);
        match read {
            Ok(bytes) => self.model.borrow_mut().reads(self.mount, ino, since_ns, self.now_ns(), &bytes),
            Err(errno) => self.note_failure("read", ino, Err(errno)),
        }
    }

    pub(super) async fn truncate(&mut self) {
        if let Some(at) = self.some_handle(true) {
            self.set_length(self.open[at].ino).await;
        }
    }

    /// As `truncate(2)`, without a handle: no close follows, so the new length counts at once.
    pub(super) async fn truncate_by_name(&mut self) {
        let name = self.name();
        let Some(found) = self.resolve(&name).await.filter(|found| found.kind == InodeKind::File) else { return };
        let (from_ns, ino) = (self.now_ns(), found.ino);
        if self.open.iter().any(|open| open.ino == ino && open.writes) {
            return;
        }
        self.model.borrow_mut().opens(self.mount, ino, from_ns);
        if self.set_length(ino).await {
            self.model.borrow_mut().acknowledged(self.mount, ino, true, from_ns, self.now_ns());
        }
        self.model.borrow_mut().closes(self.mount, ino, self.now_ns());
    }

    /// Sets some length. Returns whether that was done.
    async fn set_length(&mut self, ino: u64) -> bool {
        let now_ns = self.now_ns();
        let longest = self.model.borrow().lengths(self.mount, ino, now_ns, now_ns).last().copied().unwrap_or(0);
        let blocks = if self.rng.percent(30) { 0 } else { self.rng.between(0, (longest + 2).min(MAX_BLOCKS)) };
        let change = Change::Length(blocks);
        let number = self.begin(format!("inode {ino}: {change}"));
        self.model.borrow_mut().writes(self.mount, ino, self.now_ns(), change);
        let done = self.fs.truncate(ino, blocks * BLOCK_BYTES).await;
        self.end(number, &[ino], &done);
        self.model.borrow_mut().wrote(self.mount, ino, self.now_ns());
        let is_done = done.is_ok();
        self.note_failure("truncate", ino, done);
        is_done
    }

    pub(super) async fn sync(&mut self) {
        let Some(at) = self.some_handle(true) else { return };
        let Open { handle, ino, .. } = self.open[at];
        let (from_ns, number) = (self.now_ns(), self.begin(format!("fsync inode {ino}")));
        let done = self.fs.sync(handle).await;
        self.end(number, &[ino], &done);
        if done.is_ok() {
            self.model.borrow_mut().acknowledged(self.mount, ino, false, from_ns, self.now_ns());
        }
        self.note_failure("fsync", ino, done);
    }

    pub(super) async fn close_one(&mut self) {
        if !self.open.is_empty() {
            let at = self.rng.between(0, self.open.len() as u64 - 1) as usize;
            let open = self.open.remove(at);
            let ino = open.ino;
            self.close(open).await;
            // The kernel has not released the handle yet.
            if self.recent.as_ref().is_some_and(|(_, found)| found.ino == ino) && self.rng.percent(50) {
                Box::pin(self.open_existing()).await;
            }
        }
    }

    pub(super) async fn close(&mut self, open: Open) {
        let Open { handle, ino, writes, .. } = open;
        let (from_ns, number) = (self.now_ns(), self.begin(format!("close inode {ino}")));
        if open.locked {
            // From here on another mount may get it.
            self.model.borrow_mut().unlocked(self.mount, ino);
        }
        let done = self.fs.close(handle, handle.0).await;
        self.end(number, &[ino], &done);
        if done.is_ok() && writes {
            self.model.borrow_mut().acknowledged(self.mount, ino, true, from_ns, self.now_ns());
            if !self.open.iter().any(|other| other.ino == ino) {
                self.model.borrow_mut().closed(self.mount, ino);
            }
        }
        self.note_failure("close", ino, done);
        self.model.borrow_mut().closes(self.mount, ino, self.now_ns());
    }

    pub(super) async fn lock(&mut self) {
        let Some(at) = self.some_handle(true) else { return };
        let Open { handle, ino, locked, .. } = self.open[at];
        if locked || self.open.iter().any(|other| other.ino == ino && other.locked) {
            return;
        }
        let wait = self.rng.percent(50);
        let (from_ns, number) = (self.now_ns(), self.begin(format!("lock inode {ino}")));
        let done = self.fs.lock(ino, handle.0, wait).await;
        self.end(number, &[ino], &done);
        match done {
            Ok(()) => {
                let now_ns = self.now_ns();
                let lost = |mount, since_ns| self.shared.locks_may_be_lost(mount, since_ns, now_ns);
                self.model.borrow_mut().locked(self.mount, ino, now_ns, lost);
                (self.open[at].locked, self.open[at].since_ns) = (true, from_ns);
            }
            Err(Errno::EAGAIN | Errno::EDEADLK) => {}
            Err(errno) => self.note_failure("lock", ino, Err(errno)),
        }
    }

    pub(super) async fn unlock(&mut self) {
        let Some(at) = self.open.iter().position(|open| open.locked) else { return };
        let Open { handle, ino, since_ns, .. } = self.open[at];
        let number = self.begin(format!("unlock inode {ino}"));
        // From here on another mount may get it.
        self.model.borrow_mut().unlocked(self.mount, ino);
        let done = self.fs.unlock(ino, handle.0).await;
        self.end(number, &[ino], &done);
        self.open[at].locked = false;
        // An unlock does not say that what was written under a lost lock is not committed; the next operation does.
        if done.is_ok() && self.shared.locks_may_be_lost(self.mount, since_ns, self.now_ns()) {
            self.model.borrow_mut().locks_lost(self.mount, ino);
        }
        self.note_failure("unlock", ino, done);
    }
}
