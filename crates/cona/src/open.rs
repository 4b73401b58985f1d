//! Opens a store: reads the manifest and the cells' indexes, and replays the batches that only the logs hold.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use parking_lot::{Condvar, Mutex, RwLock};
use tessera_disk::{Disk, DiskError};

use crate::buffer::Buffer;
use crate::cache::RecordCache;
use crate::cell::{Cell, StoreContext, cell_name, path_in};
use crate::commit::Committer;
use crate::error::Error;
use crate::log::{Log, LogReader, log_name};
use crate::manifest::{MANIFEST, Manifest};
use crate::options::Options;
use crate::state::{Failures, Shared, State};

/// Turns a failure to write into an error that names the directory.
fn refused(around: &StoreContext, error: Error) -> Error {
    let kinds = [std::io::ErrorKind::PermissionDenied, std::io::ErrorKind::ReadOnlyFilesystem];
    match &error {
        Error::Disk(disk) => match &**disk {
            DiskError::Io { source, .. } if kinds.contains(&source.kind()) => {
                Error::ReadOnly { dir: place_name(around), reason: source.to_string() }
            }
            _ => error,
        },
        _ => error,
    }
}

pub(crate) fn place_name(around: &StoreContext) -> String {
    match &around.dir[..] {
        "" => around.disk.describe(),
        dir => format!("{}/{dir}", around.disk.describe()),
    }
}

struct Files {
    cells: Vec<u64>,
    logs: Vec<u64>,
    leftovers: Vec<String>,
}

fn list(around: &StoreContext) -> Result<Files, Error> {
    let mut files = Files { cells: Vec::new(), logs: Vec::new(), leftovers: Vec::new() };
    for name in around.disk.list(&around.dir)? {
        let number = |suffix: &str| name.strip_suffix(suffix).and_then(|hex| u64::from_str_radix(hex, 16).ok());
        match (number(".cell"), number(".log")) {
            (Some(n), _) if name == cell_name(n) => files.cells.push(n),
            (_, Some(n)) if name == log_name(n) => files.logs.push(n),
            _ if name == format!("{MANIFEST}.tmp") => files.leftovers.push(name),
            _ => {}
        }
    }
    files.logs.sort_unstable();
    Ok(files)
}

/// Creates the manifest of an empty store, or returns an error if the options forbid it.
fn create(around: &StoreContext, files: &Files, options: &Options) -> Result<Manifest, Error> {
    if let Some(number) = files.cells.first() {
        let what = format!("the manifest is gone, but cells are here ({})", cell_name(*number));
        return Err(Error::damaged(&path_in(&around.dir, MANIFEST), 0, what));
    }
    if !options.create {
        return Err(Error::NotAStore { dir: place_name(around) });
    }
    let manifest = Manifest { next_file: 1, ..Manifest::default() };
    manifest.write(around)?;
    Ok(manifest)
}

/// Opens the store in `dir` of `disk`.
pub(crate) fn open(disk: Arc<dyn Disk>, dir: &str, options: Options) -> Result<Arc<Shared>, Error> {
    options.check()?;
    let around = StoreContext {
        disk,
        dir: dir.into(),
        trash: Default::default(),
        counters: Default::default(),
        durable: !options.volatile,
    };
    open_around(around.clone(), options).map_err(|error| refused(&around, error))
}

fn open_around(around: StoreContext, options: Options) -> Result<Arc<Shared>, Error> {
    if !around.dir.is_empty() && options.create {
        around.disk.create_dir(&around.dir)?;
    }
    let mut files = list(&around)?;
    if options.volatile {
        clear(&around, &mut files)?;
    }
    for leftover in &files.leftovers {
        around.disk.remove(&path_in(&around.dir, leftover))?;
    }
    let manifest = match Manifest::read(&around)? {
        Some(manifest) => manifest,
        None if options.volatile => Manifest { next_file: 1, ..Manifest::default() },
        None => create(&around, &files, &options)?,
    };
    let mut cells = Vec::with_capacity(manifest.cells.len());
    for entry in &manifest.cells {
        cells.push(Arc::new(Cell::open(&around, entry.number, entry.level, entry.file_bytes)?));
    }
    let named = |number: &&u64| manifest.cells.iter().any(|c| c.number == **number);
    for orphan in files.cells.iter().filter(|n| !named(n)) {
        around.disk.remove(&path_in(&around.dir, &cell_name(*orphan)))?;
    }
    let active = Buffer::new(options.buffer_bytes);
    let replayed = replay(&around, &files.logs, manifest.flushed_seq, &active)?;
    let used = files.cells.iter().chain(&files.logs).map(|n| n + 1).max().unwrap_or(0);
    let number = manifest.next_file.max(used);
    assert!(replayed.last_seq >= manifest.flushed_seq, "replay ends before what is in cells");
    let logged = options.logged && around.durable;
    let log = if logged { Some(Log::create(&around, number, options.log_step_bytes())?) } else { None };
    active.logs.lock().extend(replayed.logs.iter().chain(log.as_ref().map(|log| &log.number)));
    let next_seq = replayed.last_seq + 1;
    let state = State { active: Arc::new(active), frozen: Vec::new(), cells: Arc::new(cells), version: 0 };
    Ok(Arc::new(Shared {
        cache: RecordCache::new(options.cache_bytes),
        options,
        around,
        state: RwLock::new(Arc::new(state)),
        committer: Mutex::new(Committer::new(log, next_seq)),
        queue: Default::default(),
        flushed_seq: Mutex::new(manifest.flushed_seq),
        next_file: AtomicU64::new(number + 1),
        visible_seq: AtomicU64::new(replayed.last_seq),
        snapshots: Default::default(),
        jobs: Default::default(),
        failures: Mutex::new(Failures::default()),
        changed: Condvar::new(),
        signal: Mutex::new(0),
        stopping: AtomicBool::new(false),
    }))
}

/// Removes everything that an earlier volatile store left.
fn clear(around: &StoreContext, files: &mut Files) -> Result<(), Error> {
    let cells = files.cells.drain(..).map(cell_name);
    let logs = files.logs.drain(..).map(log_name);
    let manifest = [MANIFEST.to_owned()];
    for name in cells.chain(logs).chain(manifest) {
        match around.disk.remove(&path_in(&around.dir, &name)) {
            Err(DiskError::NotFound { .. }) => {}
            removed => removed?,
        }
    }
    Ok(())
}

struct ReplayResult {
    last_seq: u64,
    /// Logs whose batches are in the buffer.
    logs: Vec<u64>,
}

/// Replays the batches after `flushed_seq` in order, up to the first gap. Removes logs that hold none of them.
fn replay(around: &StoreContext, numbers: &[u64], flushed_seq: u64, buffer: &Buffer) -> Result<ReplayResult, Error> {
    let mut done = ReplayResult { last_seq: flushed_seq, logs: Vec::new() };
    let mut gone = Vec::new();
    let nobody = AtomicU64::new(0);
    let mut ended: Option<(String, u64)> = None;
    for &number in numbers {
        let Some(mut reader) = LogReader::open(around, number)? else {
            gone.push(number);
            continue;
        };
        let continues = reader.peek().is_none_or(|seq| seq <= done.last_seq + 1);
        if !continues {
            let (path, offset) = ended.get_or_insert((reader.path.clone(), reader.offset())).clone();
            check_lost(reader.durable_later(), done.last_seq, &path, offset)?;
            gone.push(number);
            continue;
        }
        let before = done.last_seq;
        while let Some((seq, changes)) = reader.next()? {
            if seq == done.last_seq + 1 {
                buffer.apply(std::iter::once((seq, &changes[..])), &nobody, &AtomicU64::new(0));
                done.last_seq = seq;
            }
        }
        check_lost(reader.durable_later(), done.last_seq, &reader.path, reader.offset())?;
        ended = Some((reader.path.clone(), reader.offset()));
        if done.last_seq > before { done.logs.push(number) } else { gone.push(number) }
    }
    // Remove void frames before their sequences are used again.
    for number in &gone {
        around.disk.remove(&path_in(&around.dir, &log_name(*number)))?;
    }
    if around.durable {
        around.disk.sync_dir(&around.dir)?;
    }
    Ok(done)
}

/// Reports damage instead of a torn tail if something written later says that more was durable.
fn check_lost(durable_seq: u64, last_seq: u64, path: &str, offset: u64) -> Result<(), Error> {
    if durable_seq <= last_seq {
        return Ok(());
    }
    let what = format!("batches {} to {durable_seq} were durable, but the log ends here", last_seq + 1);
    Err(Error::damaged(path, offset, what))
}
