//! Opens a store: reads the manifest and the cells' indexes, and replays the batches that only the logs hold.

use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use parking_lot::{Condvar, Mutex, RwLock};
use tessera_disk::record::parse_numbered_name;
use tessera_disk::{Disk, DiskError};

use crate::buffer::Buffer;
use crate::cache::RecordCache;
use crate::cell::{Cell, StoreContext, cell_name};
use crate::commit::{Committer, may_hide};
use crate::error::Error;
use crate::log::{Log, LogReader, log_name};
use crate::manifest::{MANIFEST, Manifest};
use crate::options::Options;
use crate::state::{Failures, Shared, State};
use crate::values::values_name;

/// Turns a failure to write into an error that names the directory.
fn refused(context: &StoreContext, error: Error) -> Error {
    if let Error::Disk(disk) = &error
        && let DiskError::Io { source, .. } = &**disk
        && matches!(source.kind(), ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem)
    {
        return Error::ReadOnly { dir: context.describe(), reason: source.to_string() };
    }
    error
}

struct Files {
    cells: Vec<u64>,
    logs: Vec<u64>,
    values: Vec<u64>,
    leftovers: Vec<String>,
}

fn list(context: &StoreContext) -> Result<Files, Error> {
    let mut files = Files { cells: Vec::new(), logs: Vec::new(), values: Vec::new(), leftovers: Vec::new() };
    for name in context.disk.list(&context.dir)? {
        if let Some(number) = parse_numbered_name(&name, ".cell") {
            files.cells.push(number);
        } else if let Some(number) = parse_numbered_name(&name, ".log") {
            files.logs.push(number);
        } else if let Some(number) = parse_numbered_name(&name, ".values") {
            files.values.push(number);
        } else if name == format!("{MANIFEST}.tmp") {
            files.leftovers.push(name);
        }
    }
    files.logs.sort_unstable();
    Ok(files)
}

/// Creates the manifest of an empty store, or returns an error if the options forbid it.
fn create(context: &StoreContext, files: &Files, options: &Options) -> Result<Manifest, Error> {
    if let Some(number) = files.cells.first() {
        let what = format!("the manifest is gone, but cells are here ({})", cell_name(*number));
        return Err(Error::damaged(&context.path(MANIFEST), 0, what));
    }
    if !options.create {
        return Err(Error::NotAStore { dir: context.describe() });
    }
    let manifest = Manifest { next_file: 1, ..Manifest::default() };
    manifest.write(context)?;
    Ok(manifest)
}

/// Opens the store in `dir` of `disk`.
pub(crate) fn open(disk: Arc<dyn Disk>, dir: &str, options: Options) -> Result<Arc<Shared>, Error> {
    options.check()?;
    let context = StoreContext::new(disk, dir, !options.volatile);
    open_in(context.clone(), options).map_err(|error| refused(&context, error))
}

fn open_in(context: Arc<StoreContext>, options: Options) -> Result<Arc<Shared>, Error> {
    if !context.dir.is_empty() && options.create {
        context.disk.create_dir(&context.dir)?;
    }
    let mut files = list(&context)?;
    if options.volatile {
        clear(&context, &mut files)?;
    }
    for leftover in &files.leftovers {
        context.disk.remove(&context.path(leftover))?;
    }
    let manifest = match Manifest::read(&context)? {
        Some(manifest) => manifest,
        None if options.volatile => Manifest { next_file: 1, ..Manifest::default() },
        None => create(&context, &files, &options)?,
    };
    let mut cells = Vec::with_capacity(manifest.cells.len());
    for entry in &manifest.cells {
        cells.push(Arc::new(Cell::open(&context, entry.number, entry.level, entry.file_bytes)?));
    }
    let named = |number: &&u64| manifest.cells.iter().any(|c| c.number == **number);
    for orphan in files.cells.iter().filter(|n| !named(n)) {
        context.disk.remove(&context.path(&cell_name(*orphan)))?;
    }
    let owned = |number: &&u64| cells.iter().any(|c| c.owns(**number));
    for orphan in files.values.iter().filter(|n| !owned(n)) {
        context.disk.remove(&context.path(&values_name(*orphan)))?;
    }
    let active = Buffer::new(options.buffer_bytes);
    let (last_seq, needed_logs) = {
        let hides = |key: &[u8], hash| may_hide(&cells, options.shape, key, hash);
        replay(&context, &files.logs, manifest.flushed_seq, &active, hides)?
    };
    let used = files.cells.iter().chain(&files.logs).chain(&files.values).map(|n| n + 1).max().unwrap_or(0);
    let number = manifest.next_file.max(used);
    assert!(last_seq >= manifest.flushed_seq, "replay ends before what is in cells");
    let logged = options.logged && context.durable;
    let log = if logged { Some(Log::create(&context, number, options.log_step_bytes())?) } else { None };
    active.logs.lock().extend(needed_logs.iter().chain(log.as_ref().map(|log| &log.number)));
    let next_seq = last_seq + 1;
    let state = State { active: Arc::new(active), frozen: Vec::new(), cells: Arc::new(cells), version: 0 };
    Ok(Arc::new(Shared {
        cache: RecordCache::new(options.cache_bytes),
        options,
        context,
        state: RwLock::new(Arc::new(state)),
        committer: Mutex::new(Committer::new(log, next_seq)),
        queue: Default::default(),
        flushed_seq: Mutex::new(manifest.flushed_seq),
        next_file: AtomicU64::new(number + 1),
        visible_seq: AtomicU64::new(last_seq),
        snapshots: Default::default(),
        jobs: Default::default(),
        failures: Mutex::new(Failures::default()),
        changed: Condvar::new(),
        signal: Mutex::new(0),
        stopping: AtomicBool::new(false),
    }))
}

/// Removes everything that an earlier volatile store left.
fn clear(context: &StoreContext, files: &mut Files) -> Result<(), Error> {
    let cells = files.cells.drain(..).map(cell_name);
    let logs = files.logs.drain(..).map(log_name);
    let values = files.values.drain(..).map(values_name);
    let manifest = [MANIFEST.to_owned()];
    for name in cells.chain(logs).chain(values).chain(manifest) {
        match context.disk.remove(&context.path(&name)) {
            Err(DiskError::NotFound { .. }) => {}
            removed => removed?,
        }
    }
    Ok(())
}

/// Replays the batches after `flushed_seq` in order, up to the first gap. Removes logs that hold none of them. Returns the
/// last sequence, and the logs whose batches are in the buffer.
fn replay(
    context: &StoreContext,
    numbers: &[u64],
    flushed_seq: u64,
    buffer: &Buffer,
    hides: impl Fn(&[u8], u64) -> bool,
) -> Result<(u64, Vec<u64>), Error> {
    let (mut last_seq, mut needed, mut unneeded) = (flushed_seq, Vec::new(), Vec::new());
    let no_snapshot = AtomicU64::new(0);
    let mut ended: Option<(String, u64)> = None;
    for &number in numbers {
        let mut reader = LogReader::open(context, number)?;
        if !reader.has_header {
            check_lost(reader.durable_later(), last_seq, &reader.path, 0)?;
            unneeded.push(number);
            continue;
        }
        if reader.peek().is_some_and(|seq| seq > last_seq + 1) {
            let (path, offset) = ended.get_or_insert((reader.path.clone(), reader.offset()));
            check_lost(reader.durable_later(), last_seq, path, *offset)?;
            unneeded.push(number);
            continue;
        }
        let before = last_seq;
        while let Some((seq, changes)) = reader.next()? {
            if seq == last_seq + 1 {
                buffer.apply(std::iter::once((seq, &changes[..])), &no_snapshot, &AtomicU64::new(0), &hides);
                last_seq = seq;
            }
        }
        check_lost(reader.durable_later(), last_seq, &reader.path, reader.offset())?;
        ended = Some((reader.path.clone(), reader.offset()));
        if last_seq > before { needed.push(number) } else { unneeded.push(number) }
    }
    // Remove void frames before their sequences are used again.
    for number in &unneeded {
        context.disk.remove(&context.path(&log_name(*number)))?;
    }
    if context.durable {
        context.disk.sync_dir(&context.dir)?;
    }
    Ok((last_seq, needed))
}

/// Reports damage instead of a torn tail if something written later says that more was durable.
fn check_lost(durable_seq: u64, last_seq: u64, path: &str, offset: u64) -> Result<(), Error> {
    if durable_seq <= last_seq {
        return Ok(());
    }
    let what = format!("batches {} to {durable_seq} were durable, but the log ends here", last_seq + 1);
    Err(Error::damaged(path, offset, what))
}
