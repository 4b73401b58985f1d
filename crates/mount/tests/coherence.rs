//! Several namespace cores against a model of the manager's leases and delegations, from one seed.
//!
//! Messages take random times and overtake each other. A mount can be cut off for a while, and recalls sent to it
//! meanwhile are lost. The test checks that whatever a core answers from memory is what the manager has at that moment
//! (unless the mount itself is changing it), that a deferred create is lost only by a mount that was cut off, that
//! every closed file exists, and that every recall is answered. Mutants break the shell's part of the contract, and
//! each must be caught.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use tessera_mount::namespace::{
    Action, AttrChange, EntryAttr, Event, FirstCommit, LookupResult, Namespace, NewFile, Scope, Stamp, Waiter,
};
use tessera_wire::meta::{Entry, InoRange};
use tessera_wire::{Attr, Code, InodeKind};

const MS: i64 = 1_000_000;
const LEASE_MS: u64 = 400;
/// A third of it exceeds a tick plus the slowest message: without a cut, files are settled in time.
const DELEGATION_MS: u64 = 1_500;
const MOUNTS: usize = 3;
const NAMES: u64 = 6;
const STEPS: usize = 400;
const ROOT: u64 = 1;

/// A fault of the shells in a world.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mutant {
    None,
    /// A recall of leases is answered, and the core does not hear of it.
    LostRecall,
    /// A recall of delegations is answered, and the core does not hear of it.
    LostDelegationRecall,
    /// A recall of delegations is answered before the files are settled.
    RecallAnsweredEarly,
    /// Answers are handed in with the stamp of their arrival.
    FreshStamps,
    /// The core does not hear of creates in flight.
    UntoldCreates,
}

struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

#[derive(Debug, Clone)]
enum Request {
    Lookup(u64, Vec<u8>),
    GetAttr(u64),
    SetAttr(u64, u32),
    Unlink(u64, Vec<u8>),
    MakeDir(u64, Vec<u8>),
    /// Directory, name, number (0: any), whether a delegation is requested, mode.
    MakeNode(u64, Vec<u8>, u64, bool, u32),
}

/// Why a mount sent a request.
#[derive(Debug, Clone)]
enum Purpose {
    Program,
    Core { group: u64 },
    Commit { waiter: Waiter },
}

#[derive(Debug)]
struct Sent {
    request: Request,
    purpose: Purpose,
    stamp: Stamp,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Covered {
    Inode(u64),
    Names(u64),
}

#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "a few at a time")]
enum ModelEvent {
    Arrive { mount: usize, id: u64, request: Request },
    Answer { mount: usize, id: u64, result: Result<Entry, Code> },
    Recall { mount: usize, recall: u64, inos: Vec<u64>, directories: Vec<u64> },
    RecallAnswer { mount: usize, what: Vec<Covered> },
    ConnectionLost { mount: usize },
    LeasesEnd,
    Tick { mount: usize },
    Step,
}

/// A change that waits until leases are recalled.
struct Pending {
    mount: usize,
    id: u64,
    request: Request,
    covers: Vec<Covered>,
}

#[derive(Default)]
struct Manager {
    inodes: BTreeMap<u64, Attr>,
    names: BTreeMap<(u64, Vec<u8>), u64>,
    leases: BTreeMap<(Covered, usize), i64>,
    pending: Vec<Pending>,
    last_ino: u64,
    last_recall: u64,
    recalls: BTreeMap<u64, Vec<Covered>>,
    ever: BTreeSet<u64>,
}

#[derive(Default)]
struct MountHost {
    core: Namespace,
    sent: BTreeMap<u64, Sent>,
    /// Deferred creates that are open.
    open: Vec<u64>,
    /// Waiters, and for a waiter that closes a file, that file.
    waiting: BTreeMap<u64, Option<u64>>,
    cut_until_ns: i64,
}

struct World {
    mutant: Mutant,
    rng: Rng,
    now_ns: i64,
    queue: BinaryHeap<Reverse<(i64, u64)>>,
    events: BTreeMap<u64, ModelEvent>,
    last_number: u64,
    manager: Manager,
    mounts: Vec<MountHost>,
    steps: usize,
    cuts: bool,
    answered_from_memory: usize,
    deferred: usize,
}

type Verdict = Result<(), String>;

impl World {
    fn new(seed: u64, mutant: Mutant) -> World {
        let mut rng = Rng(seed);
        let cuts = rng.below(3) == 0;
        let root = Attr { ino: ROOT, kind: InodeKind::Directory as i32, nlink: 2, ..Attr::default() };
        let manager = Manager { inodes: [(ROOT, root)].into(), last_ino: 10, ..Manager::default() };
        let mut world = World {
            mutant,
            rng,
            now_ns: 1_000 * MS,
            queue: BinaryHeap::new(),
            events: BTreeMap::new(),
            last_number: 0,
            manager,
            mounts: (0..MOUNTS).map(|_| MountHost::default()).collect(),
            steps: 0,
            cuts,
            answered_from_memory: 0,
            deferred: 0,
        };
        world.push(0, ModelEvent::Step);
        (0..MOUNTS).for_each(|mount| world.push(0, ModelEvent::Tick { mount }));
        world
    }

    fn push(&mut self, after_ns: i64, event: ModelEvent) {
        self.last_number += 1;
        self.queue.push(Reverse((self.now_ns + after_ns, self.last_number)));
        self.events.insert(self.last_number, event);
    }

    /// Delivery of a message from or to a mount: it waits until a cut ends.
    fn carry(&mut self, mount: usize, event: ModelEvent) {
        let slow = if self.rng.below(8) == 0 { 20 } else { 1 };
        let delay_ns = (1 + self.rng.below(10) as i64) * slow * MS;
        let cut_ns = (self.mounts[mount].cut_until_ns - self.now_ns).max(0);
        self.push(cut_ns + delay_ns, event);
    }

    fn run(&mut self) -> Verdict {
        while let Some(Reverse((at_ns, number))) = self.queue.pop() {
            self.now_ns = at_ns;
            let event = self.events.remove(&number).expect("it was queued");
            self.happen(event)?;
        }
        if !self.manager.pending.is_empty() {
            return Err("a change waits for ever".into());
        }
        for (index, host) in self.mounts.iter().enumerate() {
            if !host.waiting.is_empty() || !host.sent.is_empty() || !host.open.is_empty() {
                return Err(format!("mount {index} still waits: {:?} {:?}", host.waiting, host.sent));
            }
        }
        Ok(())
    }

    fn happen(&mut self, event: ModelEvent) -> Verdict {
        match event {
            ModelEvent::Step => {
                self.steps += 1;
                if self.steps < STEPS {
                    let pause_ns = self.rng.below(20) as i64 * MS;
                    self.push(pause_ns, ModelEvent::Step);
                }
                let mount = self.rng.below(MOUNTS as u64) as usize;
                self.step(mount)
            }
            ModelEvent::Tick { mount } => {
                self.event(mount, Event::Tick)?;
                let busy = self.steps < STEPS || !self.mounts[mount].open.is_empty();
                if self.steps >= STEPS
                    && let Some(ino) = self.mounts[mount].open.pop()
                {
                    self.close(mount, ino)?;
                }
                if busy {
                    self.push(100 * MS, ModelEvent::Tick { mount });
                }
                Ok(())
            }
            ModelEvent::Arrive { mount, id, request } => {
                self.arrive(mount, id, request);
                Ok(())
            }
            ModelEvent::Answer { mount, id, result } => self.answer(mount, id, result),
            ModelEvent::Recall { mount, recall, inos, directories } => self.recall(mount, recall, inos, directories),
            ModelEvent::RecallAnswer { mount, what } => {
                self.manager.leases.retain(|(covered, holder), _| *holder != mount || !what.contains(covered));
                self.apply_pending();
                Ok(())
            }
            ModelEvent::ConnectionLost { mount } => self.event(mount, Event::Recalled(None)),
            ModelEvent::LeasesEnd => {
                self.apply_pending();
                Ok(())
            }
        }
    }

    // --- mounts -----------------------------------------------------------------------------------------------

    fn name(&mut self) -> Vec<u8> {
        format!("n{}", self.rng.below(NAMES)).into_bytes()
    }

    fn directory(&mut self) -> u64 {
        let directories: Vec<u64> = self
            .manager
            .inodes
            .values()
            .filter(|attr| attr.kind() == InodeKind::Directory)
            .map(|attr| attr.ino)
            .collect();
        directories[self.rng.below(directories.len() as u64) as usize]
    }

    fn step(&mut self, mount: usize) -> Verdict {
        let (parent, name) = (self.directory(), self.name());
        match self.rng.below(24) {
            0..4 => self.look_up(mount, parent, name),
            4..7 => match self.some_ino() {
                Some(ino) => self.get(mount, ino),
                None => Ok(()),
            },
            7..9 => match self.some_ino() {
                Some(ino) => {
                    let mode = self.rng.below(8) as u32;
                    self.settled(mount, ino).map(|()| self.send(mount, Request::SetAttr(ino, mode), Purpose::Program))
                }
                None => Ok(()),
            },
            9 => {
                self.wait(mount, |waiter| Event::Settle(waiter, Scope::Name(parent, name.clone())), None)?;
                self.send(mount, Request::Unlink(parent, name), Purpose::Program);
                Ok(())
            }
            10 if self.manager.inodes.len() < 60 => {
                // The kernel looks a name up before it creates it.
                if let LookupResult::Found(_) = self.mounts[mount].core.lookup(self.now_ns, parent, &name) {
                    return Ok(());
                }
                self.begin_create(mount, parent, &name);
                self.send(mount, Request::MakeDir(parent, name), Purpose::Program);
                Ok(())
            }
            11..19 => self.create(mount, parent, name),
            19..21 => match self.mounts[mount].open.pop() {
                Some(ino) => self.close(mount, ino),
                None => Ok(()),
            },
            21 => self.wait(mount, |waiter| Event::Settle(waiter, Scope::Directory(parent)), None),
            22 => match self.mounts[mount].open.last().copied() {
                Some(ino) => {
                    let change = AttrChange { mode: Some(self.rng.below(8) as u32), ..AttrChange::default() };
                    self.mounts[mount].core.set_deferred_attr(ino, change);
                    Ok(())
                }
                None => Ok(()),
            },
            _ if self.cuts && self.steps < STEPS / 2 => {
                let length_ns = (1 + self.rng.below(1_500) as i64) * MS;
                self.mounts[mount].cut_until_ns = self.now_ns + length_ns;
                let noticed_ns = self.rng.below(length_ns as u64) as i64;
                self.push(noticed_ns, ModelEvent::ConnectionLost { mount });
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn some_ino(&mut self) -> Option<u64> {
        let inos: Vec<u64> = self.manager.inodes.keys().copied().collect();
        Some(inos[self.rng.below(inos.len() as u64) as usize])
    }

    fn settled(&mut self, mount: usize, ino: u64) -> Verdict {
        match self.mounts[mount].core.is_settled(ino) {
            Some(_) => Ok(()),
            None => self.wait(mount, |waiter| Event::Settle(waiter, Scope::File(ino)), None),
        }
    }

    /// Whether the mount itself is changing this.
    fn changes(&self, mount: usize, ino: u64, name: Option<(u64, &[u8])>) -> bool {
        self.mounts[mount].sent.values().any(|sent| match &sent.request {
            Request::SetAttr(changed, _) => *changed == ino,
            Request::Unlink(parent, removed) => {
                name == Some((*parent, removed)) || self.manager.names.get(&(*parent, removed.clone())) == Some(&ino)
            }
            Request::MakeDir(parent, made) | Request::MakeNode(parent, made, ..) => {
                name == Some((*parent, made)) || *parent == ino
            }
            _ => false,
        }) || self.unlinking(mount, ino)
    }

    fn unlinking(&self, mount: usize, ino: u64) -> bool {
        let unlinks = |sent: &Sent| matches!(&sent.request, Request::Unlink(..));
        !self.manager.inodes.contains_key(&ino) && self.mounts[mount].sent.values().any(unlinks)
    }

    fn look_up(&mut self, mount: usize, parent: u64, name: Vec<u8>) -> Verdict {
        let found = self.mounts[mount].core.lookup(self.now_ns, parent, &name);
        let there = self.manager.names.get(&(parent, name.clone())).copied();
        match found {
            LookupResult::Unknown => self.send(mount, Request::Lookup(parent, name), Purpose::Program),
            LookupResult::Absent => {
                self.answered_from_memory += 1;
                if there.is_some() && !self.changes(mount, 0, Some((parent, &name))) {
                    return Err(format!("mount {mount}: {name:?} in {parent} is said to be absent, it is {there:?}"));
                }
            }
            LookupResult::Found(entry) => {
                let ino = entry.attr.ino;
                let deferred = self.mounts[mount].core.is_settled(ino).is_none();
                if !deferred && there != Some(ino) && !self.changes(mount, ino, Some((parent, &name))) {
                    return Err(format!("mount {mount}: {name:?} in {parent} is said to be {ino}, it is {there:?}"));
                }
                return self.judge(mount, &entry);
            }
        }
        Ok(())
    }

    fn get(&mut self, mount: usize, ino: u64) -> Verdict {
        match self.mounts[mount].core.attr(self.now_ns, ino) {
            Some(entry) => self.judge(mount, &entry),
            None => {
                self.send(mount, Request::GetAttr(ino), Purpose::Program);
                Ok(())
            }
        }
    }

    fn judge(&mut self, mount: usize, entry: &EntryAttr) -> Verdict {
        let ino = entry.attr.ino;
        if self.mounts[mount].core.is_settled(ino).is_none() || self.changes(mount, ino, None) {
            return Ok(());
        }
        self.answered_from_memory += 1;
        let there = self.manager.inodes.get(&ino).map(|attr| (attr.mode, attr.nlink));
        match there == Some((entry.attr.mode, entry.attr.nlink)) {
            true => Ok(()),
            false => Err(format!("mount {mount}: {ino} is said to be {:?}, it is {there:?}", entry.attr)),
        }
    }

    fn begin_create(&mut self, mount: usize, parent: u64, name: &[u8]) {
        // A mutant still counts the creates, or it would never request a delegation.
        let told = if self.mutant == Mutant::UntoldCreates { b"untold" } else { name };
        self.mounts[mount].core.begin_create(parent, told);
    }

    fn create(&mut self, mount: usize, parent: u64, name: Vec<u8>) -> Verdict {
        let host = &mut self.mounts[mount];
        let attr = Attr { kind: InodeKind::File as i32, nlink: 1, mode: 6, ..Attr::default() };
        if let LookupResult::Found(_) = host.core.lookup(self.now_ns, parent, &name) {
            return Ok(());
        }
        if let Some(entry) = host.core.create_deferred(self.now_ns, parent, &name, attr, &EntryAttr::default()) {
            host.open.push(entry.attr.ino);
            self.deferred += 1;
            let there = self.manager.names.get(&(parent, name.clone())).copied();
            if let Some(there) = there
                && !self.changes(mount, 0, Some((parent, &name)))
            {
                return Err(format!("mount {mount}: {name:?} in {parent} is created, and is {there} already"));
            }
            return Ok(());
        }
        self.begin_create(mount, parent, &name);
        let wants = self.mounts[mount].core.request_delegation(parent).is_some();
        self.send(mount, Request::MakeNode(parent, name, 0, wants, 6), Purpose::Program);
        Ok(())
    }

    fn close(&mut self, mount: usize, ino: u64) -> Verdict {
        match self.rng.below(4) {
            // Nothing was written.
            0 => self.wait(mount, |waiter| Event::Closed(waiter, ino), Some(ino)),
            _ => self.wait(mount, |waiter| Event::Commit(waiter, ino), Some(ino)),
        }
    }

    fn wait(&mut self, mount: usize, event: impl FnOnce(Waiter) -> Event, closes: Option<u64>) -> Verdict {
        self.last_number += 1;
        let waiter = self.last_number;
        self.mounts[mount].waiting.insert(waiter, closes);
        self.event(mount, event(Waiter(waiter)))
    }

    fn event(&mut self, mount: usize, event: Event) -> Verdict {
        self.mounts[mount].core.handle(self.now_ns, event);
        while let Some(action) = self.mounts[mount].core.poll() {
            match action {
                Action::Create { group, file } => self.send_file(mount, file, Purpose::Core { group }),
                Action::Commit(waiter, Some(file)) => self.send_file(mount, file, Purpose::Commit { waiter }),
                Action::Commit(waiter, None) => {
                    let closes = self.mounts[mount].waiting.remove(&waiter.0).flatten();
                    if let Some(ino) = closes {
                        self.wait(mount, |waiter| Event::Closed(waiter, ino), Some(ino))?;
                    }
                }
                Action::Settled(waiter, result) => {
                    let closes = self.mounts[mount].waiting.remove(&waiter.0).flatten();
                    match result {
                        Err(loss) if !self.cuts => return Err(format!("mount {mount} lost a file: {loss:?}")),
                        Ok(()) if closes.is_some_and(|ino| !self.manager.ever.contains(&ino)) => {
                            return Err(format!("mount {mount}: {closes:?} was closed, and never existed"));
                        }
                        _ => {}
                    }
                }
                Action::AnswerRecall(recall) => self.answer_recall(mount, recall),
                Action::InvalidateNames(_) => {}
            }
        }
        Ok(())
    }

    fn send_file(&mut self, mount: usize, file: NewFile, purpose: Purpose) {
        let NewFile { ino, parent, name, entry, .. } = file;
        self.send(mount, Request::MakeNode(parent, name, ino, false, entry.attr.mode), purpose);
    }

    fn send(&mut self, mount: usize, request: Request, purpose: Purpose) {
        self.last_number += 1;
        let id = self.last_number;
        let stamp = self.mounts[mount].core.stamp(self.now_ns);
        self.mounts[mount].sent.insert(id, Sent { request: request.clone(), purpose, stamp });
        self.carry(mount, ModelEvent::Arrive { mount, id, request });
    }

    fn answer(&mut self, mount: usize, id: u64, result: Result<Entry, Code>) -> Verdict {
        let now_ns = self.now_ns;
        let Sent { request, purpose, mut stamp } = self.mounts[mount].sent.remove(&id).expect("it was sent");
        let core = &mut self.mounts[mount].core;
        if self.mutant == Mutant::FreshStamps {
            stamp = core.stamp(now_ns);
        }
        match (request, purpose, result) {
            (Request::MakeNode(_, _, ino, ..), Purpose::Core { group }, result) => {
                let result = result.map(drop).map_err(|_| Code::VersionConflict);
                return self.event(mount, Event::Created { group, ino, result });
            }
            (Request::MakeNode(_, _, ino, ..), Purpose::Commit { waiter }, result) => {
                let result = result.map_err(|_| Code::VersionConflict).map(|entry| FirstCommit {
                    inos: entry.inos,
                    delegation_ms: entry.delegation_ms,
                    entry: Some(Box::new(entry)),
                });
                self.event(mount, Event::Committed { waiter, ino, stamp, result })?;
                // The handle is closed once its commit is over.
                let closes = self.mounts[mount].waiting.remove(&waiter.0).flatten();
                return match closes {
                    Some(ino) => self.wait(mount, |waiter| Event::Closed(waiter, ino), Some(ino)),
                    None => Ok(()),
                };
            }
            (Request::Lookup(parent, name), _, Ok(entry)) => core.fetched(stamp, Some((parent, &name)), &entry),
            (Request::GetAttr(_), _, Ok(entry)) => core.fetched(stamp, None, &entry),
            (Request::SetAttr(..), _, Ok(entry)) => core.changed_here(stamp, &entry),
            (Request::SetAttr(ino, _), _, Err(_)) => core.forget(&[ino]),
            (Request::Unlink(parent, name), _, Ok(entry)) => {
                core.removed_here(parent, &name, &entry.attr.unwrap_or_default());
            }
            (Request::Unlink(parent, name), _, Err(_)) => core.forget_name(parent, &name),
            (Request::MakeDir(parent, name), _, result) => {
                match result {
                    Ok(mut entry) => {
                        let directory = entry.attr.as_ref().map_or(0, |attr| attr.ino);
                        core.forget(&[parent]);
                        core.created_here(stamp, parent, &name, &mut entry, directory);
                    }
                    Err(_) => core.forget_name(parent, &name),
                }
                core.end_create(parent);
            }
            (Request::MakeNode(parent, name, ..), Purpose::Program, result) => {
                match result {
                    Ok(mut entry) => core.created_here(stamp, parent, &name, &mut entry, parent),
                    Err(_) => core.forget_name(parent, &name),
                }
                core.end_create(parent);
            }
            (Request::Lookup(..) | Request::GetAttr(_), _, Err(_)) => {}
        }
        Ok(())
    }

    fn recall(&mut self, mount: usize, recall: u64, inos: Vec<u64>, directories: Vec<u64>) -> Verdict {
        if self.mutant != Mutant::LostRecall {
            self.event(mount, Event::Recalled(Some(inos)))?;
        }
        if self.mutant == Mutant::LostDelegationRecall || self.mutant == Mutant::RecallAnsweredEarly {
            self.answer_recall(mount, recall);
        }
        if self.mutant != Mutant::LostDelegationRecall {
            self.event(mount, Event::DelegationRecalled { recall, directories })?;
        }
        Ok(())
    }

    fn answer_recall(&mut self, mount: usize, recall: u64) {
        if let Some(what) = self.manager.recalls.remove(&recall) {
            self.carry(mount, ModelEvent::RecallAnswer { mount, what });
        }
    }

    // --- the manager ------------------------------------------------------------------------------------------

    fn arrive(&mut self, mount: usize, id: u64, request: Request) {
        let at = |parent: u64, name: &Vec<u8>| self.manager.names.get(&(parent, name.clone())).copied();
        let covers = match &request {
            Request::Lookup(..) | Request::GetAttr(_) => Vec::new(),
            Request::SetAttr(ino, _) => vec![Covered::Inode(*ino)],
            Request::Unlink(parent, name) => at(*parent, name).map(Covered::Inode).into_iter().collect(),
            Request::MakeDir(parent, _) => vec![Covered::Names(*parent), Covered::Inode(*parent)],
            Request::MakeNode(parent, ..) => vec![Covered::Names(*parent)],
        };
        let mut held: BTreeMap<usize, Vec<Covered>> = BTreeMap::new();
        for ((covered, holder), until_ns) in &self.manager.leases {
            if *holder != mount && covers.contains(covered) && *until_ns > self.now_ns {
                held.entry(*holder).or_default().push(*covered);
                let wait_ns = until_ns - self.now_ns;
                self.last_number += 1;
                self.queue.push(Reverse((self.now_ns + wait_ns, self.last_number)));
                self.events.insert(self.last_number, ModelEvent::LeasesEnd);
            }
        }
        self.manager.pending.push(Pending { mount, id, request, covers });
        for (holder, what) in held {
            self.manager.last_recall += 1;
            let recall = self.manager.last_recall;
            let inos =
                what.iter().filter_map(|c| if let Covered::Inode(ino) = c { Some(*ino) } else { None }).collect();
            let directories =
                what.iter().filter_map(|c| if let Covered::Names(dir) = c { Some(*dir) } else { None }).collect();
            self.manager.recalls.insert(recall, what);
            // The connection of a mount that is cut off is gone.
            if self.mounts[holder].cut_until_ns <= self.now_ns {
                self.carry(holder, ModelEvent::Recall { mount: holder, recall, inos, directories });
            }
        }
        self.apply_pending();
    }

    fn apply_pending(&mut self) {
        loop {
            let now_ns = self.now_ns;
            let leases = &self.manager.leases;
            let free = |pending: &Pending| {
                let holds = |((covered, holder), until_ns): (&(Covered, usize), &i64)| {
                    pending.covers.contains(covered) && *holder != pending.mount && *until_ns > now_ns
                };
                !leases.iter().any(holds)
            };
            let Some(at) = self.manager.pending.iter().position(free) else { return };
            let pending = self.manager.pending.remove(at);
            let result = self.apply(&pending);
            let Pending { mount, id, .. } = pending;
            self.carry(mount, ModelEvent::Answer { mount, id, result });
        }
    }

    /// Grants a lease, unless a change to the thing is pending, or (for names) another mount has a lease.
    fn grant(&mut self, covered: Covered, mount: usize, ms: u64) -> u64 {
        let changing = self.manager.pending.iter().any(|pending| pending.covers.contains(&covered));
        let taken = |((held, holder), until_ns): (&(Covered, usize), &i64)| {
            *held == covered && *holder != mount && *until_ns > self.now_ns
        };
        let exclusive = matches!(covered, Covered::Names(_));
        if changing || (exclusive && self.manager.leases.iter().any(taken)) {
            return 0;
        }
        let until_ns = self.now_ns + ms as i64 * MS;
        let lease = self.manager.leases.entry((covered, mount)).or_insert(until_ns);
        *lease = until_ns.max(*lease);
        ms
    }

    fn entry(&mut self, mount: usize, ino: u64) -> Entry {
        let lease_ms = self.grant(Covered::Inode(ino), mount, LEASE_MS);
        Entry { attr: self.manager.inodes.get(&ino).cloned(), lease_ms, ..Entry::default() }
    }

    fn apply(&mut self, pending: &Pending) -> Result<Entry, Code> {
        let mount = pending.mount;
        match &pending.request {
            Request::Lookup(parent, name) => {
                let ino = *self.manager.names.get(&(*parent, name.clone())).ok_or(Code::NotFound)?;
                Ok(self.entry(mount, ino))
            }
            Request::GetAttr(ino) => {
                self.manager.inodes.get(ino).ok_or(Code::NotFound)?;
                Ok(self.entry(mount, *ino))
            }
            Request::SetAttr(ino, mode) => {
                self.manager.inodes.get_mut(ino).ok_or(Code::NotFound)?.mode = *mode;
                Ok(self.entry(mount, *ino))
            }
            Request::Unlink(parent, name) => {
                let key = (*parent, name.clone());
                let ino = *self.manager.names.get(&key).ok_or(Code::NotFound)?;
                // The name came to stand for another inode while the change waited; leases on that inode were not
                // recalled.
                if self.manager.inodes[&ino].kind() == InodeKind::Directory
                    || !pending.covers.contains(&Covered::Inode(ino))
                {
                    return Err(Code::IsDirectory);
                }
                self.manager.names.remove(&key);
                let attr = self.manager.inodes.remove(&ino).expect("a name means an inode");
                Ok(Entry { attr: Some(Attr { nlink: 0, ..attr }), ..Entry::default() })
            }
            Request::MakeDir(parent, name) => {
                let ino = self.make(*parent, name, 0, InodeKind::Directory, 7)?;
                self.manager.inodes.get_mut(parent).expect("directories stay").nlink += 1;
                let delegation_ms = self.grant(Covered::Names(ino), mount, DELEGATION_MS);
                let inos = Some(self.draw(8));
                Ok(Entry { delegation_ms, inos, ..self.entry(mount, ino) })
            }
            Request::MakeNode(parent, name, chosen, wants, mode) => {
                let ino = self.make(*parent, name, *chosen, InodeKind::File, *mode)?;
                let holds = self.manager.leases.get(&(Covered::Names(*parent), mount));
                let renews = *chosen != 0 && holds.is_some_and(|until_ns| *until_ns > self.now_ns);
                let delegation_ms = match *wants || renews {
                    true => self.grant(Covered::Names(*parent), mount, DELEGATION_MS),
                    false => 0,
                };
                let listed = *wants && delegation_ms > 0;
                let names = self.manager.names.keys().filter(|(directory, _)| listed && directory == parent);
                let names = names.map(|(_, name)| name.clone()).collect();
                let inos = listed.then(|| self.draw(8));
                Ok(Entry { delegation_ms, names, inos, ..self.entry(mount, ino) })
            }
        }
    }

    fn make(&mut self, parent: u64, name: &[u8], chosen: u64, kind: InodeKind, mode: u32) -> Result<u64, Code> {
        let key = (parent, name.to_vec());
        if self.manager.names.contains_key(&key) {
            return Err(Code::Exists);
        }
        let ino = if chosen == 0 { self.draw(1).first } else { chosen };
        let nlink = if kind == InodeKind::Directory { 2 } else { 1 };
        self.manager.inodes.insert(ino, Attr { ino, kind: kind as i32, nlink, mode, ..Attr::default() });
        self.manager.names.insert(key, ino);
        self.manager.ever.insert(ino);
        Ok(ino)
    }

    fn draw(&mut self, count: u32) -> InoRange {
        let first = self.manager.last_ino + 1;
        self.manager.last_ino += u64::from(count);
        InoRange { first, count }
    }
}

#[test]
fn what_a_mount_answers_from_memory_is_true() {
    let (mut answered, mut deferred) = (0, 0);
    for seed in 0..300 {
        let mut world = World::new(seed, Mutant::None);
        if let Err(fact) = world.run() {
            panic!("seed {seed}: {fact}");
        }
        answered += world.answered_from_memory;
        deferred += world.deferred;
    }
    assert!(answered > 4_000 && deferred > 300, "{answered} answers from memory, {deferred} deferred creates");
}

#[test]
fn each_mutant_is_caught() {
    for mutant in [
        Mutant::LostRecall,
        Mutant::LostDelegationRecall,
        Mutant::RecallAnsweredEarly,
        Mutant::FreshStamps,
        Mutant::UntoldCreates,
    ] {
        let caught = (0..1_000).find(|seed| World::new(*seed, mutant).run().is_err());
        assert!(caught.is_some(), "{mutant:?} was not caught");
    }
}
