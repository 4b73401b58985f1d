//! The second program of a mount: opens files, reads and closes them, while the first one works.
//!
//! Each of its operations must succeed where nothing fails. What it reads is checked if the first program changed nothing
//! of the file meanwhile.

use super::*;

/// See the module.
pub struct Reader<F> {
    program: Program<F>,
}

impl<F: FileSystem> Reader<F> {
    /// A second program of the mount of `program`.
    pub fn new(program: Program<F>) -> Reader<F> {
        Reader { program }
    }

    /// Reads until the first program has one operation left.
    pub async fn run(mut self) {
        let mount = self.program.mount;
        self.program.shared.reading.borrow_mut()[mount] = true;
        while self.program.shared.left.borrow()[mount] > 1 {
            self.read_some_file().await;
            let pause_ms = self.program.rng.between(0, self.program.shared.pause_ms.get());
            self.program.env.sleep_ms(pause_ms).await;
        }
        self.program.shared.reading.borrow_mut()[mount] = false;
    }

    /// As the kernel does: looks a name up, opens what it finds, and begins again once if the mount says that the inode
    /// is stale.
    async fn read_some_file(&mut self) {
        let name = self.program.name();
        let from_ns = self.program.now_ns();
        for attempt in 1..=2 {
            let found = match self.program.fs.lookup((name.0, &name.1)).await {
                Ok(found) if found.kind == InodeKind::File => found,
                Ok(_) | Err(Errno::ENOENT) => return,
                Err(errno) => return self.program.check_failure("lookup by a second program", 0, errno),
            };
            let ino = found.ino;
            let quiet = self.program.model.borrow().quiet(self.program.mount, ino);
            let opening_ns = self.program.now_ns();
            let number = self.program.begin(format!("second program: open {} ({ino})", Program::<F>::show(&name)));
            let since_ns = self.program.model.borrow_mut().opens(self.program.mount, ino, opening_ns);
            let opened = self.program.fs.open(2, &found, false).await;
            self.program.end(number, &[ino], &opened);
            match opened {
                Ok(handle) => self.read(handle, ino, since_ns, quiet).await,
                Err(Errno::ESTALE) if attempt == 1 => {
                    self.program.model.borrow_mut().closes(self.program.mount, ino, self.program.now_ns());
                    continue;
                }
                Err(errno) => {
                    let stays = |tree: &Tree| tree.lookup(name.0, &name.1) == Some(ino);
                    let changed = self.program.history.borrow().versions_of(ino).any(|made| made.at_ns >= from_ns);
                    let may_fail = errno == Errno::ESTALE && changed && self.program.fs.refuses_changed();
                    if !may_fail && !self.program.any(from_ns, |tree| !stays(tree)) {
                        self.program.check_failure("open by a second program", ino, errno);
                    }
                }
            }
            return self.program.model.borrow_mut().closes(self.program.mount, ino, self.program.now_ns());
        }
    }

    async fn read(&mut self, handle: Handle, ino: u64, since_ns: i64, quiet: Option<(u64, u64)>) {
        let Program { mount, fs, model, .. } = &self.program;
        let number = self.program.begin(format!("second program: read inode {ino}"));
        let read = fs.read(handle, 0, (2 * MAX_BLOCKS * BLOCK_BYTES) as usize).await;
        self.program.end(number, &[ino], &read);
        match read {
            Ok(bytes) if quiet.is_some() && model.borrow().quiet(*mount, ino) == quiet => {
                model.borrow_mut().reads(*mount, ino, since_ns, self.program.now_ns(), &bytes);
            }
            Ok(_) => {}
            Err(Errno::ENOENT | Errno::ESTALE) if self.program.is_gone(ino) => {}
            Err(errno) => self.program.check_failure("read by a second program", ino, errno),
        }
        let (pause_ms, long) = (self.program.rng.between(0, 3), self.program.rng.percent(50));
        if long {
            self.program.env.sleep_ms(pause_ms).await;
        }
        let closed = self.program.fs.close(handle, handle.0).await;
        if let Err(errno) = closed {
            self.program.check_failure("close by a second program", ino, errno);
        }
    }
}
