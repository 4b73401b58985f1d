//! [`SimDisk`]: a disk in memory whose failures follow from a seed, the same in every run.
//!
//! # Fault model
//!
//! *Cache.* Written bytes are readable at once and durable only after [`DiskFile::sync_data`]. The creation, rename or
//! removal of a name is durable only after [`Disk::sync_dir`] of its directory; syncing the file does not help.
//!
//! *Power loss* ([`SimDisk::crash`]) keeps what was synced. [`CrashKind`] decides about the rest: nothing survives;
//! everything does; each sector is independently in any state it had since the last sync (reordered, torn), as is the
//! length, and each name operation survives or not; or the oldest writes survive whole, one is torn at a sector
//! boundary, and the later ones are lost. A sector is never half old, half new.
//!
//! *Restart of the process* ([`SimDisk::reopen`]) keeps the cache: unsynced bytes are still readable and still not
//! durable.
//!
//! *Failing I/O*: at a given index ([`SimDisk::fail_at`]) or at a random rate ([`FaultRates`]). A failing write may
//! have written some leading sectors. A failed sync may have written any part; it poisons the disk, and reopening the
//! disk shows what the medium received. A sync may lie. A write may be lost (the sectors stay stale) or land in the
//! wrong place (misdirected).
//!
//! *Rot*: stored bits flip ([`SimDisk::rot`]), sectors become unreadable until rewritten ([`SimDisk::break_sector`]).
//! *Full*: the sum of file lengths stays within the capacity.
//!
//! Every operation counts as one I/O ([`SimDisk::io_count`]), except taking the lock and asking for space or lengths.

mod faults;
mod inode;
mod names;

use std::io::IoSlice;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use parking_lot::Mutex;

pub use faults::{Fault, FaultRates};
pub use names::CrashKind;

use crate::disk::{Disk, DiskFile, DiskLock, OpenMode, Space};
use crate::error::{DiskError, DiskOp};
use crate::path;
use crate::poison::Poison;
use crate::rng::SplitMix64;
use faults::Faults;
use inode::Inode;
use names::Names;

/// Options of a simulated disk.
#[derive(Clone, Debug)]
pub struct SimOptions {
    /// Seed of all random choices.
    pub seed: u64,
    /// Maximum sum of file lengths, in bytes.
    pub capacity_bytes: u64,
    /// Bytes of a sector, which a crash never tears; a power of two.
    pub sector_bytes: u64,
    /// Rates of random faults.
    pub rates: FaultRates,
}

impl SimOptions {
    /// A large disk without random faults.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        SimOptions { seed, capacity_bytes: 1 << 50, sector_bytes: 512, rates: FaultRates::default() }
    }
}

/// A simulated disk; see the module's fault model. Clones share it.
#[derive(Clone)]
pub struct SimDisk {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    poison: Poison,
    sector_bytes: u64,
}

struct State {
    names: Names,
    faults: Faults,
    rng: SplitMix64,
    capacity_bytes: u64,
    locked: bool,
}

struct SimFile {
    path: String,
    inode: Arc<Mutex<Inode>>,
    shared: Arc<Shared>,
}

struct Unlock(Arc<Shared>);

impl Drop for Unlock {
    fn drop(&mut self) {
        self.0.state.lock().locked = false;
    }
}

impl SimDisk {
    /// An empty disk without random faults.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self::with_options(&SimOptions::new(seed))
    }

    /// An empty disk.
    #[must_use]
    pub fn with_options(options: &SimOptions) -> Self {
        assert!(options.sector_bytes.is_power_of_two(), "sector_bytes must be a power of two");
        Self::assemble(Names::default(), options)
    }

    fn assemble(names: Names, options: &SimOptions) -> Self {
        let state = State {
            names,
            faults: Faults { rates: options.rates, ..Faults::default() },
            rng: SplitMix64::new(options.seed),
            capacity_bytes: options.capacity_bytes,
            locked: false,
        };
        let shared = Shared { state: Mutex::new(state), poison: Poison::default(), sector_bytes: options.sector_bytes };
        SimDisk { shared: Arc::new(shared) }
    }

    /// Number of I/O operations so far.
    #[must_use]
    pub fn io_count(&self) -> u64 {
        self.shared.state.lock().faults.io_count
    }

    /// Applies `fault` once, to the first operation it fits whose index (from 0) is at least `io_index`.
    pub fn fail_at(&self, io_index: u64, fault: Fault) {
        self.shared.state.lock().faults.planned.push((io_index, fault));
    }

    /// Replaces the rates of random faults.
    pub fn set_rates(&self, rates: FaultRates) {
        self.shared.state.lock().faults.rates = rates;
    }

    /// Changes the capacity; existing files stay.
    pub fn set_capacity(&self, capacity_bytes: u64) {
        self.shared.state.lock().capacity_bytes = capacity_bytes;
    }

    /// From now on every operation fails with an I/O error, as after a power loss or when the disk vanishes.
    pub fn power_off(&self) {
        self.shared.state.lock().faults.off = true;
    }

    /// True after [`SimDisk::power_off`] or a planned [`Fault::PowerLoss`].
    #[must_use]
    pub fn is_off(&self) -> bool {
        self.shared.state.lock().faults.off
    }

    /// The disk after a power loss at this moment: a new disk, powered on, without planned faults. This handle is off
    /// from now on.
    #[must_use]
    pub fn crash(&self, kind: CrashKind) -> SimDisk {
        self.successor(|names, rng, sector| names.after_power_loss(kind, sector, rng))
    }

    /// The disk as the next process on the same machine finds it. The cache survives, except for bytes that a failed
    /// sync lost. This handle is off from now on.
    #[must_use]
    pub fn reopen(&self) -> SimDisk {
        let poisoned = self.shared.poison.is_set();
        self.successor(|names, rng, sector| {
            if poisoned { names.after_power_loss(CrashKind::KeepSome, sector, rng) } else { names.clone_deep() }
        })
    }

    fn successor(&self, next: impl FnOnce(&Names, &mut SplitMix64, u64) -> Names) -> SimDisk {
        let mut state = self.shared.state.lock();
        state.faults.off = true;
        let state = &mut *state;
        let names = next(&state.names, &mut state.rng, self.shared.sector_bytes);
        let options = SimOptions {
            seed: state.rng.next_u64(),
            capacity_bytes: state.capacity_bytes,
            sector_bytes: self.shared.sector_bytes,
            rates: state.faults.rates,
        };
        Self::assemble(names, &options)
    }

    /// Flips the bits of `mask` in the stored byte of `path` at `offset`. Returns false if there is no such byte.
    pub fn rot(&self, path: &str, offset: u64, mask: u8) -> bool {
        let state = self.shared.state.lock();
        state.names.get(path).is_some_and(|inode| inode.lock().rot(offset, mask))
    }

    /// Flips one random bit of one random file and returns its place. `None` if no bytes are stored.
    pub fn rot_somewhere(&self) -> Option<(String, u64)> {
        let mut state = self.shared.state.lock();
        let State { names, rng, .. } = &mut *state;
        let mut at = rng.below(names.used_bytes());
        for (path, inode) in names.files() {
            let mut inode = inode.lock();
            if at < inode.len() {
                inode.rot(at, 1 << rng.below(8));
                return Some((path.to_owned(), at));
            }
            at -= inode.len();
        }
        None
    }

    /// Makes the sector that holds `offset` of `path` unreadable until it is rewritten.
    pub fn break_sector(&self, path: &str, offset: u64) -> bool {
        let state = self.shared.state.lock();
        let sector = offset / self.shared.sector_bytes;
        match state.names.get(path) {
            Some(inode) => inode.lock().bad_sectors.insert(sector),
            None => false,
        }
    }

    /// The names of all files, sorted.
    #[must_use]
    pub fn paths(&self) -> Vec<String> {
        self.shared.state.lock().names.files().map(|(path, _)| path.to_owned()).collect()
    }

    /// The current bytes of a file. Does not count as I/O.
    #[must_use]
    pub fn contents(&self, path: &str) -> Option<Vec<u8>> {
        let state = self.shared.state.lock();
        state.names.get(path).map(|inode| inode.lock().bytes().to_vec())
    }

    /// One operation on names. Its `change` reaches the cache even if the power fails during it.
    fn on_names<T>(
        &self,
        path: &str,
        op: DiskOp,
        change: impl FnOnce(&mut Names) -> Result<T, DiskError>,
    ) -> Result<T, DiskError> {
        let mut state = self.shared.state.lock();
        match state.next(path, op, 0)? {
            None => change(&mut state.names),
            Some(fault) => {
                if fault == Fault::PowerLoss {
                    let _ = change(&mut state.names);
                }
                Err(faults::error(fault, path, op, 0))
            }
        }
    }
}

impl Shared {
    /// One sync; `apply` makes bytes or names durable.
    fn sync(&self, path: &str, op: DiskOp, apply: impl FnOnce(&mut State)) -> Result<(), DiskError> {
        self.poison.check()?;
        let mut state = self.state.lock();
        match state.next(path, op, 0)? {
            None => apply(&mut state),
            Some(Fault::SyncLies) => {}
            Some(fault) => {
                if fault != Fault::PowerLoss {
                    self.poison.set(path);
                }
                return Err(faults::error(fault, path, op, 0));
            }
        }
        Ok(())
    }
}

impl State {
    /// Counts an operation; returns the fault that it meets, or an error if the disk is off.
    fn next(&mut self, path: &str, op: DiskOp, offset: u64) -> Result<Option<Fault>, DiskError> {
        if self.faults.off {
            return Err(faults::error(Fault::PowerLoss, path, op, offset));
        }
        Ok(self.faults.next(op, &mut self.rng))
    }

    fn free_bytes(&self) -> u64 {
        self.capacity_bytes.saturating_sub(self.names.used_bytes())
    }
}

fn not_found(path: &str) -> DiskError {
    DiskError::NotFound { path: path.into() }
}

impl Disk for SimDisk {
    fn open(&self, path: &str, mode: OpenMode) -> Result<Arc<dyn DiskFile>, DiskError> {
        path::check(path)?;
        if mode != OpenMode::Existing {
            self.shared.poison.check()?;
        }
        let inode = self.on_names(path, DiskOp::Open, |names| match (names.get(path).cloned(), mode) {
            (Some(_), OpenMode::CreateNew) => Err(DiskError::Exists { path: path.into() }),
            (Some(inode), _) => Ok(inode),
            (None, OpenMode::Create | OpenMode::CreateNew) if names.has_dir(path::parent(path)) => {
                Ok(names.create(path))
            }
            (None, _) => Err(not_found(path)),
        })?;
        Ok(Arc::new(SimFile { path: path.into(), inode, shared: self.shared.clone() }))
    }

    fn list(&self, dir: &str) -> Result<Vec<String>, DiskError> {
        path::check_dir(dir)?;
        self.on_names(
            dir,
            DiskOp::List,
            |names| {
                if names.has_dir(dir) { Ok(names.files_in(dir)) } else { Err(not_found(dir)) }
            },
        )
    }

    fn list_dirs(&self, dir: &str) -> Result<Vec<String>, DiskError> {
        path::check_dir(dir)?;
        self.on_names(dir, DiskOp::List, |names| Ok(names.dirs_in(dir)))
    }

    fn create_dir(&self, dir: &str) -> Result<(), DiskError> {
        path::check(dir)?;
        self.shared.poison.check()?;
        self.on_names(dir, DiskOp::CreateDir, |names| {
            names.create_dir(dir);
            Ok(())
        })
    }

    fn remove(&self, path: &str) -> Result<(), DiskError> {
        path::check(path)?;
        self.shared.poison.check()?;
        self.on_names(path, DiskOp::Remove, |names| if names.remove(path) { Ok(()) } else { Err(not_found(path)) })
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), DiskError> {
        path::check(from)?;
        path::check(to)?;
        self.shared.poison.check()?;
        self.on_names(from, DiskOp::Rename, |names| if names.rename(from, to) { Ok(()) } else { Err(not_found(from)) })
    }

    fn sync_dir(&self, dir: &str) -> Result<(), DiskError> {
        path::check_dir(dir)?;
        self.shared.sync(dir, DiskOp::SyncDir, |state| state.names.sync_dir(dir))
    }

    fn space(&self) -> Result<Space, DiskError> {
        let state = self.shared.state.lock();
        let free_bytes = state.free_bytes();
        Ok(Space { capacity_bytes: state.capacity_bytes, free_bytes, writable_bytes: free_bytes })
    }

    fn lock(&self) -> Result<DiskLock, DiskError> {
        let mut state = self.shared.state.lock();
        if std::mem::replace(&mut state.locked, true) {
            return Err(DiskError::Locked { disk: self.describe() });
        }
        Ok(DiskLock::new(Unlock(self.shared.clone())))
    }

    fn describe(&self) -> String {
        "simulated disk".into()
    }

    fn is_poisoned(&self) -> bool {
        self.shared.poison.is_set()
    }
}

impl SimFile {
    fn fail<T>(&self, fault: Fault, op: DiskOp, offset: u64) -> Result<T, DiskError> {
        Err(faults::error(fault, &self.path, op, offset))
    }
}

impl DiskFile for SimFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DiskError> {
        if let Some(fault) = self.shared.state.lock().next(&self.path, DiskOp::Read, offset)? {
            return self.fail(fault, DiskOp::Read, offset);
        }
        let inode = self.inode.lock();
        let end = offset.saturating_add(buf.len() as u64);
        if end > inode.len() {
            let got = inode.len().saturating_sub(offset);
            let (path, expected) = (self.path.clone(), buf.len() as u64);
            return Err(DiskError::ShortRead { path, offset, expected, got });
        }
        let sector = self.shared.sector_bytes;
        if inode.bad_sectors.range(offset / sector..end.div_ceil(sector)).next().is_some() {
            return self.fail(Fault::Eio, DiskOp::Read, offset);
        }
        buf.copy_from_slice(&inode.bytes()[offset as usize..end as usize]);
        Ok(())
    }

    fn write_vectored_at(&self, offset: u64, slices: &[IoSlice<'_>]) -> Result<(), DiskError> {
        self.shared.poison.check()?;
        let sector = self.shared.sector_bytes;
        let len: u64 = slices.iter().map(|s| s.len() as u64).sum();
        let mut state = self.shared.state.lock();
        let fault = state.next(&self.path, DiskOp::Write, offset)?;
        let grows = (offset + len).saturating_sub(self.inode.lock().len());
        let missing = grows.saturating_sub(state.free_bytes());
        let mut inode = self.inode.lock();
        let (at, written) = match fault {
            None => (offset, len - missing),
            Some(Fault::PowerLoss) => (offset, len),
            Some(Fault::Misdirected { sectors }) => (offset + sectors * sector, len),
            Some(Fault::LostWrite) => {
                let grown = inode.len().max(offset + len);
                inode.truncate(grown);
                (offset, 0)
            }
            Some(_) => {
                let part = sector - offset % sector + sector * state.rng.below(len / sector + 1);
                (offset, part.min(len.saturating_sub(1)))
            }
        };
        inode.write(at, slices, written, sector);
        match fault {
            None if missing > 0 => Err(DiskError::NoSpace { path: self.path.clone(), offset, len }),
            None | Some(Fault::LostWrite | Fault::Misdirected { .. }) => Ok(()),
            Some(fault) => self.fail(fault, DiskOp::Write, offset),
        }
    }

    fn sync_data(&self) -> Result<(), DiskError> {
        self.shared.sync(&self.path, DiskOp::Sync, |_| self.inode.lock().sync())
    }

    fn len(&self) -> Result<u64, DiskError> {
        Ok(self.inode.lock().len())
    }

    fn truncate(&self, len: u64) -> Result<(), DiskError> {
        self.shared.poison.check()?;
        let mut state = self.shared.state.lock();
        let fault = state.next(&self.path, DiskOp::Truncate, len)?;
        let grows = len.saturating_sub(self.inode.lock().len());
        if fault.is_none() && grows > state.free_bytes() {
            return Err(DiskError::NoSpace { path: self.path.clone(), offset: len, len: grows });
        }
        if matches!(fault, None | Some(Fault::PowerLoss)) {
            self.inode.lock().truncate(len);
        }
        fault.map_or(Ok(()), |fault| self.fail(fault, DiskOp::Truncate, len))
    }

    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn path(&self) -> &str {
        &self.path
    }
}
