//! Records what a program asks of its disks, as a block trace.
//!
//! [`Recorder::wrap`] gives a [`Disk`] that does what the disk under it does and writes down what a device would be asked
//! for. Nothing is known of the real file system's layout, so files get addresses here:
//!
//! - *Addresses* (`space.rs`). A file gets extents of 1 MiB, the lowest free one first, when their bytes are first used. A file
//!   that is removed is trimmed and its extents are free once its last handle is closed; truncation trims too.
//! - *Page cache* (`dirty.rs`, `layout.rs`). Writes wait as dirty pages of 4 KiB until the file is synced, or for 30 s, or until
//!   256 MiB of a disk wait. Then the file's dirty pages are written in order, in requests of at most 1 MiB. Reads of
//!   dirty pages ask for nothing; every other read asks for its pages, although the system's cache may hold them.
//! - *Trace* (`log.rs`). Each disk is a device. A sync of a file or directory is a flush. What a file system writes for itself
//!   (inodes, journal, directories) is not there.
//!
//! A trace that cannot be written ends, and never harms the program: [`Recorder::new`] is told what to call then.

mod dirty;
mod disk;
mod layout;
mod log;
mod space;

pub use log::{OnFailure, Totals};
use space::PAGE_BYTES;

use crate::device::Ns;
use crate::trace::Request;
use disk::RecordingDisk;
use layout::{Asked, DIRTY_AGE, FileId, Layout};
use log::Log;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::io::Write;
use std::ops::Range;
use std::sync::Arc;
use tessera_disk::Disk;

/// The time since the recording began.
pub type Clock = Box<dyn Fn() -> Ns + Send + Sync>;

/// A recording of one or more disks. Clones share it.
#[derive(Clone)]
pub struct Recorder {
    shared: Arc<Shared>,
}

struct Shared {
    clock: Clock,
    state: Mutex<State>,
}

struct State {
    log: Log,
    disks: Vec<Layout>,
    /// By kind of file.
    totals: BTreeMap<Arc<str>, Totals>,
}

impl Recorder {
    /// Begins a recording into `out`, which has a buffer in front of it here.
    pub fn new(out: Box<dyn Write + Send>, clock: Clock, on_failure: OnFailure) -> Recorder {
        let log = Log::new(out, on_failure);
        let state = State { log, disks: Vec::new(), totals: BTreeMap::new() };
        Recorder { shared: Arc::new(Shared { clock, state: Mutex::new(state) }) }
    }

    /// The same disk, recorded as the next device of the trace.
    pub fn wrap(&self, disk: Arc<dyn Disk>) -> Arc<dyn Disk> {
        let mut state = self.shared.state.lock();
        let device = state.disks.len();
        state.disks.push(Layout::default());
        state.log.open((self.shared.clock)(), device as u64);
        Arc::new(RecordingDisk::new(disk, self.clone(), device))
    }

    /// Writes what waits too long: dirty pages, and lines of the trace. Without it, they wait for the next operation of their disk.
    pub fn tick(&self) {
        let mut state = self.shared.state.lock();
        for device in 0..state.disks.len() {
            state.note(&self.shared.clock, device, |_, _, _| ());
        }
        state.log.write();
    }

    /// Ends the recording: dirty pages and the last lines are written. Returns what was asked for, by kind of file, such as
    /// `segments/*.seg`; a name that ends in `/` is a directory. What comes later is recorded too, and written with a later call.
    pub fn finish(&self) -> BTreeMap<Arc<str>, Totals> {
        let mut state = self.shared.state.lock();
        for device in 0..state.disks.len() {
            state.note(&self.shared.clock, device, |now, layout, asked| layout.write_back_older(now, asked));
        }
        state.log.write();
        state.totals.clone()
    }
}

impl Shared {
    /// See [`State::note`].
    fn note<T: Default>(&self, device: usize, work: impl FnOnce(Ns, &mut Layout, &mut Vec<Asked>) -> T) -> T {
        self.state.lock().note(&self.clock, device, work)
    }

    /// Notes what was written to a file.
    fn wrote(&self, device: usize, file: FileId, bytes: Range<u64>) {
        let mut state = self.state.lock();
        let stored = bytes.end - bytes.start;
        let kind = state.note(&self.clock, device, |now, layout, asked| {
            layout.write(now, file, bytes, asked);
            Some(layout.kind(file))
        });
        if let Some(kind) = kind {
            state.totals.entry(kind).or_default().stored_bytes += stored;
        }
    }

    /// Notes a sync of a file, which has its dirty pages written.
    fn synced(&self, device: usize, file: FileId) {
        let mut state = self.state.lock();
        let kind = state.note(&self.clock, device, |_, layout, asked| {
            layout.write_back(file, asked);
            Some(layout.kind(file))
        });
        if let Some(kind) = kind {
            state.flush((self.clock)(), device, kind);
        }
    }

    /// Notes a sync of a directory.
    fn synced_directory(&self, device: usize, directory: &str) {
        self.state.lock().flush((self.clock)(), device, format!("{directory}/").into());
    }
}

impl State {
    /// Lets `work` change a layout, and writes down what that asks for. Does nothing once the trace has ended.
    fn note<T: Default>(
        &mut self,
        clock: &Clock,
        device: usize,
        work: impl FnOnce(Ns, &mut Layout, &mut Vec<Asked>) -> T,
    ) -> T {
        if self.log.has_failed() {
            return T::default();
        }
        let (now, mut asked) = (clock(), Vec::new());
        let layout = &mut self.disks[device];
        if let Some(before) = now.checked_sub(DIRTY_AGE) {
            layout.write_back_older(before, &mut asked);
        }
        let done = work(now, layout, &mut asked);
        for Asked { op, place, kind } in asked {
            let bytes = place.end - place.start;
            self.log.request(&Request { at: now, op, device: device as u64, offset: place.start, bytes });
            self.totals.entry(kind).or_default().add(op, bytes);
        }
        done
    }

    /// Writes down a flush.
    fn flush(&mut self, now: Ns, device: usize, kind: Arc<str>) {
        if !self.log.has_failed() {
            self.log.flush(now, device as u64);
            self.totals.entry(kind).or_default().flushes += 1;
        }
    }
}
