//! `tessera get`.

use super::cat::{note_report, to_stdout};
use super::holes::Sparse;
use super::place::{self, PartialFile};
use super::pool::{self, Tally};
use super::small::{self, Group};
use super::target::{Target, all_differ, split, store_paths};
use crate::args::GetArgs;
use crate::exit::{At, Exit, Failure, Outcome, bail};
use crate::remote::{Item, Store};
use crate::term::{Progress, units};
use serde_json::json;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Instant;
use tessera_client::path::StorePath;
use tessera_client::{Described, GetOptions, Sink};
use tessera_wire::InodeKind;

/// An entry to fetch, and its local path.
struct Job {
    item: Item,
    to: place::Target,
}

/// `tessera get`.
///
/// # Errors
/// An argument is not valid, or an entry cannot be read, verified or written.
pub fn get(args: GetArgs) -> Outcome {
    let out = args.common.output;
    let (sources, target) = split(&args.paths)?;
    let sources = store_paths(sources)?;
    let store = Store::connect_for_files(&args.common, args.memory)?;
    store.end_sessions_on_interrupt();
    if target.as_bytes() == b"-" {
        return to_stdout(&store, &sources, args.version, None, out);
    }
    let target = local_target(target, sources.len())?;
    let started = Instant::now();
    let mut jobs = Vec::new();
    for source in &sources {
        plan(&store, source, &target, args.recursive, &mut jobs)?;
    }
    if let Target::IntoNew(directory) = &target {
        std::fs::create_dir(directory).at(directory)?;
    }
    let (directories, rest) = of_kind(jobs, InodeKind::Directory);
    let (files, rest) = of_kind(rest, InodeKind::File);
    let (links, special) = of_kind(rest, InodeKind::Symlink);
    let skipped = pool::note_skipped(out, special.iter().map(|j| j.item.path.to_string()));
    all_differ(files.iter().chain(&links).map(|j| (j.to.path().display().to_string(), j.item.path.to_string())))?;
    let bytes = files.iter().map(|j| j.item.size_bytes).sum();
    let link_count = links.len() as u64;
    let progress = Progress::bytes(out, "get", Some(bytes));
    let ran = carry_out(&store, [directories, files, links], &args, &progress);
    progress.finish();
    let (time, bytes, report) = (started.elapsed(), progress.done(), store.read_report());
    if out.json {
        out.document(&json!({
            "files": ran.done, "symlinks": link_count, "bytes": bytes, "skipped": skipped,
            "failed": ran.failures.len(), "untried": ran.untried, "seconds": time.as_secs_f64(),
            "most_memory_bytes": store.most_memory_bytes(),
            "read_around": {"bad": report.bad, "unreachable": report.unreachable, "late": report.late},
        }))?;
    } else if ran.done > 0 || ran.failures.is_empty() {
        out.note(format!(
            "fetched {}, {} in {} ({}), every byte verified",
            units::files_and_links(ran.done, link_count),
            units::bytes(bytes),
            units::duration(time),
            units::rate(bytes, time),
        ));
    }
    note_report(report, out);
    ran.outcome()
}

/// The jobs on entries of this kind, and the rest.
fn of_kind(jobs: Vec<Job>, kind: InodeKind) -> (Vec<Job>, Vec<Job>) {
    jobs.into_iter().partition(|job| job.item.kind() == kind)
}

fn local_target(word: &OsString, sources: usize) -> Outcome<Target<PathBuf>> {
    let path = PathBuf::from(word);
    let wants_directory = sources > 1 || word.as_bytes().ends_with(b"/");
    match path.is_dir() {
        true => Ok(Target::Into(path)),
        false if path.exists() && wants_directory => {
            bail!(Exit::Usage, "{}: is not a directory; give a directory as the target", path.display())
        }
        false if wants_directory => Ok(Target::IntoNew(path)),
        false => Ok(Target::As(path)),
    }
}

fn plan(store: &Store, source: &StorePath, target: &Target<PathBuf>, recursive: bool, jobs: &mut Vec<Job>) -> Outcome {
    let root = match (target, source.name()) {
        (Target::As(path), _) | (Target::Into(path) | Target::IntoNew(path), None) => place::Target::new(path, &[])?,
        (Target::Into(path) | Target::IntoNew(path), Some(name)) => place::Target::new(path, &[name.to_vec()])?,
    };
    let item = store.item(source)?;
    if item.kind() == InodeKind::Directory && !recursive {
        bail!(Exit::Usage, "{source} is a directory; fetch it with --recursive");
    }
    let depth = source.components().len();
    for item in tree(store, item)? {
        let to = root.below(&item.path.components()[depth..])?;
        jobs.push(Job { item, to });
    }
    Ok(())
}

/// `root` and everything below it, parents before children.
pub(super) fn tree(store: &Store, root: Item) -> Outcome<Vec<Item>> {
    let (mut all, mut todo) = (Vec::new(), vec![root]);
    while let Some(item) = todo.pop() {
        if item.kind() == InodeKind::Directory {
            todo.extend(store.items(&item.path)?.into_iter().rev());
        }
        all.push(item);
    }
    Ok(all)
}

fn carry_out(store: &Store, [directories, files, links]: [Vec<Job>; 3], args: &GetArgs, progress: &Progress) -> Tally {
    if let Err(failure) = directories.iter().try_for_each(|directory| directory.to.make_directory()) {
        progress.warn(&failure);
        return Tally { failures: vec![failure], untried: files.len() as u64, ..Tally::default() };
    }
    let warn = |failure: &_| progress.warn(failure);
    let len_bytes = |job: &Job| job.item.size_bytes;
    let mut ran = pool::run_groups(
        small::described(files, len_bytes, args.jobs.into()),
        (|group: &Group<Job>| group.len_bytes(len_bytes), Group::files),
        args.jobs.into(),
        |group| match group {
            Group::One(job) => vec![get_file(store, &job, None, args, progress)],
            Group::Small(jobs) => get_small(store, &jobs, args, progress),
        },
        warn,
    );
    let link = |job: Job| job.to.make_symlink(&job.item.symlink_target);
    ran = ran.and(pool::run(links, |_| 0, 1, link, warn));
    let finish = |Job { item, to }: Job| to.finish_directory(&item.attr, args.set_id);
    ran.and(pool::run(directories.into_iter().rev().collect(), |_| 0, 1, finish, warn))
}

/// Returns the outcome of each, in order, up to the first failure that applies to all.
fn get_small(store: &Store, jobs: &[Job], args: &GetArgs, progress: &Progress) -> Vec<Outcome> {
    let paths: Vec<&StorePath> = jobs.iter().map(|job| &job.item.path).collect();
    let described = match store.describe(&paths, args.version.unwrap_or(0)).map_err(Failure::from) {
        Err(failure) if pool::is_general(&failure) => return vec![Err(failure.of(paths[0]))],
        described => described.unwrap_or_else(|_| vec![None; jobs.len()]),
    };
    let mut outcomes = Vec::with_capacity(jobs.len());
    for (job, described) in jobs.iter().zip(described) {
        outcomes.push(get_file(store, job, described, args, progress));
        if matches!(outcomes.last(), Some(Err(failure)) if pool::is_general(failure)) {
            break;
        }
    }
    outcomes
}

fn get_file(
    store: &Store,
    Job { item, to }: &Job,
    described: Option<Described>,
    args: &GetArgs,
    progress: &Progress,
) -> Outcome {
    let path = to.path();
    if std::fs::symlink_metadata(&path).is_ok_and(|meta| meta.is_dir()) {
        bail!(Exit::Conflict, "{}: is a directory, {} is a file", path.display(), item.path);
    }
    let mut partial = PartialFile::create_at(to)?;
    let mut sink = Sparse::new(partial.file());
    let (version, steps) = (args.version.unwrap_or(0), &mut progress.steps());
    let options =
        GetOptions { version, described, bulk: args.recursive, progress: Some(steps), ..GetOptions::default() };
    let (opened, _) = store.get(&item.path, Sink::Sparse(&mut sink), options)?;
    sink.finish().at(&path)?;
    // The file may have changed since it was listed.
    partial.finish(&opened.attr, args.set_id)
}
