//! A client's requests to the store: the [`Backend`] of a mount under test.

use super::sessions::{OpenVersion, Session, failed};
use super::{Store, Version};
use crate::backend::{Backend, Drain, Writer};
use crate::namespace::Name;
use crate::tests::tasks::pause;
use bytes::Bytes;
use prost::Message;
use std::cell::Cell;
use std::future::poll_fn;
use std::io;
use std::ops::{Bound, Range};
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;
use tessera_client::inodes::{NewFile, OnlyIf};
use tessera_client::locate::Located;
use tessera_client::{Cancel, Cause, FileError, Opened, Owner, ProgressFn, Times, WriteDone};
use tessera_policy::Policy;
use tessera_wire::meta::*;
use tessera_wire::{Ack, Attr, Code, Error, InodeKind, Kind, Request};

/// The lifetime of a delegation, ms.
const DELEGATION_MS: u64 = 10_000;

/// One client of a store.
pub struct Client {
    pub store: Rc<Store>,
    numbers: Cell<u64>,
}

impl Client {
    pub fn new(store: &Rc<Store>, seed: u64) -> Client {
        Client { store: store.clone(), numbers: Cell::new(seed) }
    }
}

impl Client {
    async fn rename(&self, Rename { from_parent, from_name, to_parent, to_name, .. }: Rename) -> Result<Ack, Error> {
        for _ in 0..self.store.unlink_rounds.get() {
            pause().await;
        }
        let mut names = self.store.names.borrow_mut();
        let stands_for = |parent, name: &[u8]| names.get(&(parent, name.to_vec())).copied();
        let (moved, there) = (stands_for(from_parent, &from_name), stands_for(to_parent, &to_name));
        if moved.is_some() && moved == there {
            // Two names of one file: POSIX rename does nothing.
            return Ok(Ack {});
        }
        let ino = names.remove(&(from_parent, from_name)).ok_or_else(|| Error::new(Code::NotFound, "no such name"))?;
        if let Some(replaced) = names.insert((to_parent, to_name), ino) {
            self.store.unnamed.borrow_mut().insert(replaced);
        }
        self.removed().map(|()| Ack {})
    }

    /// Loses the answer to a removal if it is to be lost.
    fn removed(&self) -> Result<(), Error> {
        let Some(left) = self.store.lost_removals.get().checked_sub(1) else { return Ok(()) };
        self.store.lost_removals.set(left);
        Err(Error::new(Code::Timeout, "lost"))
    }

    async fn set_attr(&self, new: SetAttr) -> Result<Entry, Error> {
        for _ in 0..self.store.set_attr_rounds.get() {
            pause().await;
        }
        self.store.mode.set(new.mode.unwrap_or(self.store.mode.get()));
        self.store.atime_ns.set(new.atime_ns);
        self.store.set_attrs.update(|requests| requests + 1);
        self.store.entry(new.ino)
    }
}

/// What this store does not have.
macro_rules! absent {
    ($($name:ident($($kind:ty),*) -> $answer:ty;)*) => {
        $(async fn $name(&self, $(_: $kind),*) -> $answer {
            panic!(concat!("these tests' store has no ", stringify!($name)))
        })*
    };
}

impl Backend for Client {
    type Writer = Session;
    type Reader = OpenVersion;

    absent! {
        locate(u64) -> Result<Located, Error>;
        rewrite(u64, ProgressFn<'_>, &Cancel) -> Result<WriteDone, tessera_client::Error>;
    }

    // There is no kernel that holds names or pages: what a program writes has reached the mount.
    async fn names_invalidated(&self) {}

    async fn write_back_pages(&self, _: u64) -> io::Result<()> {
        Ok(())
    }

    async fn lookup(&self, parent: u64, name: &[u8], ahead: u32) -> Result<Entry, Error> {
        self.store.lookups.update(|lookups| lookups + 1);
        let names = self.store.names.borrow();
        let ino = names.get(&(parent, name.to_vec())).copied();
        let entry = self.store.entry(ino.ok_or_else(|| Error::new(Code::NotFound, "no such name"))?)?;
        let behind = (Bound::Excluded((parent, name.to_vec())), Bound::Excluded((parent + 1, Vec::new())));
        let following = names.range(behind).take(ahead as usize);
        let named = |((_, name), ino): (&(u64, Vec<u8>), &u64)| {
            Ok(NamedEntry { name: name.clone(), entry: Some(self.store.entry(*ino)?) })
        };
        Ok(Entry { ahead: following.map(named).collect::<Result<_, Error>>()?, ..entry })
    }

    async fn get(&self, ino: u64) -> Result<Entry, Error> {
        self.store.gets.update(|gets| gets + 1);
        for _ in 0..self.store.get_rounds.get() {
            pause().await;
        }
        self.store.entry(ino)
    }

    async fn list(&self, parent: u64, after: &[u8]) -> Result<ListReply, Error> {
        for _ in 0..self.store.list_rounds.get() {
            pause().await;
        }
        if self.store.refuses_next_pages.get() && !after.is_empty() {
            return Err(Error::new(Code::Unavailable, "no answer"));
        }
        let names = self.store.list(parent).into_iter().filter(|(name, _)| name.as_bytes() > after);
        let mut names: Vec<_> = names.collect();
        let limit = self.store.list_names.get();
        let more = limit != 0 && names.len() > limit;
        if more {
            names.truncate(limit);
        }
        let entry =
            |(name, ino): (String, u64)| Ok(Dirent { name: name.into_bytes(), attr: self.store.entry(ino)?.attr });
        let entries = names.into_iter().map(entry).collect::<Result<_, Error>>()?;
        Ok(ListReply { entries, more, lease_ms: self.store.list_lease_ms.get() })
    }

    async fn make_directory(&self, _: u64, _: &[u8], _: Owner, inos: u32) -> Result<Entry, Error> {
        let (ino, kind) = (1000 + self.store.number(), InodeKind::Directory as i32);
        let attr = Some(Attr { ino, kind, nlink: 2, ..Attr::default() });
        let inos = Some(InoRange { first: 5000, count: inos });
        let hints = self.store.hints.borrow().clone();
        Ok(Entry { attr, hints, lease_ms: DELEGATION_MS, delegation_ms: DELEGATION_MS, inos, ..Entry::default() })
    }

    async fn make_node(&self, new: MakeNode) -> Result<Entry, Error> {
        let waits = || if self.store.holds_creates.get() { Poll::Pending } else { Poll::Ready(()) };
        poll_fn(|_| waits()).await;
        if let Some(left) = self.store.silent_creates.get().checked_sub(1) {
            self.store.silent_creates.set(left);
            return Err(Error::new(Code::Unavailable, "no manager"));
        }
        let MakeNode { mode, uid, gid, mtime_ns, ctime_ns, atime_ns, .. } = new;
        self.store.made.set(Some((Owner { mode, uid, gid }, Times { mtime_ns, ctime_ns, atime_ns })));
        self.store.entry(self.store.create(new.parent, &new.name, new.ino)?)
    }

    async fn unlink(&self, parent: u64, name: &[u8], _: bool) -> Result<Attr, Error> {
        for _ in 0..self.store.unlink_rounds.get() {
            pause().await;
        }
        let ino = self.store.names.borrow_mut().remove(&(parent, name.to_vec())).unwrap_or_default();
        let nlink = self.store.other_names.get();
        if nlink == 0 {
            self.store.unnamed.borrow_mut().insert(ino);
        }
        self.removed()?;
        Ok(Attr { ino, nlink, ..Attr::default() })
    }

    async fn open_read(&self, ino: u64, version: u64, _: Range<u64>) -> Result<OpenVersion, FileError> {
        self.store.opens.update(|opens| opens + 1);
        for _ in 0..self.store.open_rounds.get() {
            pause().await;
        }
        if self.store.unnamed.borrow().contains(&ino) {
            return Err(failed(Cause::Refused(Error::new(Code::NotFound, "no such inode"))));
        }
        if self.store.refuses_opens.get() {
            return Err(failed(Cause::Refused(Error::new(Code::Io, "no version can be opened"))));
        }
        if version != 0
            && version != self.store.current(ino).id
            && let Some(left) = self.store.silent_old_opens.get().checked_sub(1)
        {
            self.store.silent_old_opens.set(left);
            return Err(failed(Cause::ManagerSilent { request: "OpenRead", waited_ms: 1, last: "lost".into() }));
        }
        let attr = self.store.entry(ino).map_err(|error| failed(Cause::Refused(error)))?.attr.unwrap();
        let files = self.store.files.borrow();
        let wanted = |v: &&Version| version == 0 || v.id == version;
        let number = files[&ino].iter().rposition(|v| wanted(&v)).map_or(0, |at| at as u64 + 1);
        let Version { id, bytes, .. } = files[&ino].iter().rev().find(wanted).cloned().unwrap_or_default();
        let version = VersionInfo { version: id, number, size_bytes: bytes.len() as u64, ..VersionInfo::default() };
        Ok(OpenVersion { opened: Opened { attr, version, policy: Vec::new() }, bytes, is_in_memory: false })
    }

    async fn describe(&self, directory: u64, names: &[Vec<u8>]) -> Result<Vec<OpenReadReply>, Error> {
        let (requests, files) = self.store.descriptions.get();
        self.store.descriptions.set((requests + 1, files + names.len() as u32));
        let describe = |name: &Vec<u8>| {
            let ino = *self.store.names.borrow().get(&(directory, name.clone()))?;
            let Entry { attr, hints, lease_ms, .. } = self.store.entry(ino).ok()?;
            let Version { id, bytes, .. } = self.store.current(ino);
            let (number, size_bytes) = (self.store.versions(ino) as u64, bytes.len() as u64);
            let version = Some(VersionInfo { version: id, number, size_bytes, ..VersionInfo::default() });
            Some(OpenReadReply { attr, version, policy: hints, lease_ms, ..OpenReadReply::default() })
        };
        let described = names.iter().map(|name| describe(name).unwrap_or_default()).collect();
        for _ in 0..self.store.describe_rounds.get() {
            pause().await;
        }
        Ok(described)
    }

    async fn read_described(&self, files: Vec<OpenReadReply>) -> Vec<Option<OpenVersion>> {
        let read = |file: OpenReadReply| {
            let (attr, version) = (file.attr?, file.version?);
            let files = self.store.files.borrow();
            let kept = files.get(&attr.ino)?.iter().find(|kept| kept.id == version.version)?;
            let opened = Opened { attr, version, policy: file.policy };
            let is_there = !self.store.chunks_are_gone.get();
            is_there.then(|| OpenVersion { opened, bytes: kept.bytes.clone(), is_in_memory: true })
        };
        files.into_iter().map(read).collect()
    }

    async fn open_write(&self, ino: u64, patch: bool, if_version: Option<u64>) -> Result<Session, FileError> {
        self.store.sessions.update(|opened| opened + 1);
        self.begin_session(ino, patch, if_version)
    }

    async fn write_whole(
        &self,
        ino: u64,
        bytes: Bytes,
        _: Option<Policy>,
        times: Times,
        only_if: OnlyIf,
    ) -> Result<WriteDone, FileError> {
        let mut session = self.begin_session(ino, false, only_if.version)?;
        session.write_at(0, &bytes).await?;
        session.finish(times, 0).await
    }

    async fn write_new(&self, new: NewFile<'_>, bytes: Bytes, times: Times) -> Result<WriteDone, FileError> {
        let waits = || if self.store.holds_creates.get() { Poll::Pending } else { Poll::Ready(()) };
        poll_fn(|_| waits()).await;
        if let Some(left) = self.store.silent_creates.get().checked_sub(1) {
            self.store.silent_creates.set(left);
            return Err(failed(Cause::ManagerSilent { request: "Commit", waited_ms: 1, last: "no manager".into() }));
        }
        let made = self.store.create(new.parent, new.name, new.ino);
        made.map_err(|_| failed(Cause::VersionConflict { expected: 0, current: 1 }))?;
        self.store.made.set(Some((new.owner, times)));
        self.write_whole(new.ino, bytes, None, times, OnlyIf::default()).await
    }

    async fn ask<R: Request>(&self, request: &R) -> Result<R::Reply, Error> {
        let bytes = request.encode_to_vec();
        let reply = match R::KIND {
            Kind::Rename => self.rename(Rename::decode(&bytes[..]).unwrap()).await?.encode_to_vec(),
            Kind::SetAttr => self.set_attr(SetAttr::decode(&bytes[..]).unwrap()).await?.encode_to_vec(),
            kind => panic!("these tests' store takes no {kind:?}"),
        };
        Ok(R::Reply::decode(&reply[..]).unwrap())
    }

    async fn map_version(&self) -> Result<u64, Error> {
        Ok(self.store.map_version.get())
    }

    fn op_id(&self) -> u64 {
        self.random()
    }

    async fn ask_manager<R: Request>(&self, request: &R, _: u64) -> Result<R::Reply, Error> {
        let is_of_locks =
            matches!(R::KIND, Kind::HoldLocks | Kind::SetLock | Kind::TestLock | Kind::CancelLock | Kind::ReturnLocks);
        while self.store.holds_lock_answers.get() && is_of_locks {
            pause().await;
        }
        let unlocks = |lock: FileLock| lock.mode() == LockMode::Unlock;
        let asked = SetLock::decode(&request.encode_to_vec()[..]).ok().filter(|_| R::KIND == Kind::SetLock);
        while self.store.holds_unlocks.get() && asked.as_ref().and_then(|asked| asked.lock).is_some_and(unlocks) {
            pause().await;
        }
        // Other requests have time to queue up behind an assertion.
        for _ in 0..if R::KIND == Kind::HoldLocks { 8 } else { 1 } {
            pause().await;
        }
        let reply = self.store.locks.borrow_mut().answer(R::KIND, &request.encode_to_vec())?;
        for _ in 0..if R::KIND == Kind::SetLock { self.store.lock_rounds.get() } else { 0 } {
            pause().await;
        }
        Ok(R::Reply::decode(&reply[..]).unwrap())
    }

    fn tell_manager<R: Request>(&self, _: &R) {}

    fn manager_deadline(&self) -> Duration {
        Duration::from_secs(60)
    }

    fn machine(&self) -> String {
        "machine".into()
    }

    fn invalidate_names(&self, names: Vec<Name>) -> bool {
        self.store.invalidated.borrow_mut().extend(names);
        if let Some(look) = &*self.store.on_recall.borrow() {
            look();
        }
        !self.store.takes_no_notices.get()
    }

    fn forget_attributes(&self, ino: u64) {
        self.store.forgotten.borrow_mut().push(ino);
    }

    async fn drop_pages_of(&self, ino: u64, bytes: Range<u64>) -> bool {
        for _ in 0..self.store.drop_rounds.get() {
            pause().await;
        }
        self.store.dropped_from.borrow_mut().push((ino, bytes.start));
        !self.store.pages_stay.get()
    }

    fn maps_direct(&self) -> bool {
        true
    }

    async fn drop_pages(&self, ino: u64, _: u64) -> io::Result<()> {
        self.store.dropped_from.borrow_mut().push((ino, 0));
        for _ in 0..self.store.drop_rounds.get() {
            pause().await;
        }
        Ok(())
    }

    fn now_ns(&self) -> i64 {
        self.store.clock.get()
    }

    fn wall_ns(&self) -> i64 {
        1_700_000_000_000_000_000
    }

    /// Takes longer than a request.
    async fn sleep(&self, time: Duration) {
        self.store.slept.update(|slept| slept + time);
        for _ in 0..if time == crate::locks::TELLING { 600 } else { 12 } {
            pause().await;
        }
    }

    fn random(&self) -> u64 {
        self.numbers.set(self.numbers.get() + 1);
        self.numbers.get()
    }

    fn start_drain(&self, drain: Drain<Client>) -> io::Result<()> {
        self.store.drains.borrow_mut().push(drain);
        Ok(())
    }
}
