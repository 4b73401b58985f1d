//! `tessera get`.

use super::holes::Sparse;
use super::local::{self, Pending};
use super::pool::{self, Tally};
use super::put::split;
use super::target::{Target, all_differ, store_path};
use crate::args::GetArgs;
use crate::exit::{Exit, Failure, Outcome};
use crate::remote::{Item, Store, Wanted};
use crate::term::{Out, Progress, units};
use serde_json::json;
use std::ffi::OsString;
use std::fs::DirBuilder;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Instant;
use tessera_client::Sink;
use tessera_client::path::StorePath;
use tessera_wire::InodeKind;

/// An entry to fetch, and its local path.
struct Job {
    item: Item,
    to: PathBuf,
}

/// `tessera get`.
///
/// # Errors
/// An argument is not valid, or an entry cannot be read, verified or written.
pub fn get(args: GetArgs) -> Outcome {
    let out = Out::new(args.common.output);
    let (sources, target) = split(&args.paths)?;
    let sources = sources.iter().map(|s| store_path(s)).collect::<Outcome<Vec<_>>>()?;
    let store = Store::connect(&args.common)?;
    store.give_up_when_interrupted();
    if target.as_bytes() == b"-" {
        return to_stdout(&store, &sources, args.version, &out);
    }
    let target = local_target(target, sources.len())?;
    let started = Instant::now();
    let mut jobs = Vec::new();
    for source in &sources {
        plan(&store, source, &target, args.recursive, &mut jobs)?;
    }
    if let Target::IntoNew(directory) = &target {
        std::fs::create_dir(directory).map_err(|e| Failure::io(directory.display(), &e))?;
    }
    let (jobs, special): (Vec<Job>, Vec<Job>) = jobs
        .into_iter()
        .partition(|j| matches!(j.item.kind(), InodeKind::File | InodeKind::Directory | InodeKind::Symlink));
    let skipped: Vec<String> = special.iter().map(|j| j.item.path.to_string()).collect();
    skipped.iter().for_each(|s| out.note(format!("skipped {s}: neither file, directory nor symbolic link")));
    let places = jobs.iter().filter(|j| j.item.kind() != InodeKind::Directory);
    all_differ(places.map(|j| (j.to.display().to_string(), j.item.path.to_string())))?;
    let bytes = jobs.iter().filter(|j| j.item.kind() == InodeKind::File).map(|j| j.item.size_bytes).sum();
    let links = jobs.iter().filter(|j| j.item.kind() == InodeKind::Symlink).count();
    let progress = Progress::bytes(&out, "get", Some(bytes));
    let ran = carry_out(&store, jobs, args.version, args.jobs.into(), &out, &progress);
    progress.finish();
    let (fetched, failed) = (ran.done, ran.failures.len());
    let time = started.elapsed();
    if out.json() {
        let seconds = time.as_secs_f64();
        out.document(&json!({
            "files": fetched, "symlinks": links, "bytes": progress.done(), "skipped": skipped, "failed": failed,
            "untried": ran.untried, "seconds": seconds,
            "read_around": super::cat::report_document(store.read_report()),
        }))?;
    } else {
        let any = fetched > 0 || failed == 0;
        let note = |line: String| {
            if any {
                out.note(line)
            }
        };
        note(format!(
            "fetched {}{}, {} in {} ({}), every byte verified",
            units::things(fetched, "file"),
            if links > 0 { format!(", {}", units::things(links as u64, "symbolic link")) } else { String::new() },
            units::bytes(progress.done()),
            units::duration(time),
            units::rate(progress.done(), time),
        ));
        super::cat::tell_report(store.read_report(), &out);
    }
    pool::sum(ran)
}

fn to_stdout(store: &Store, sources: &[StorePath], version: Option<u64>, out: &Out) -> Outcome {
    let ran = pool::each(out, sources, |path| super::cat::write_out(store, path, Wanted { version, range: None }));
    super::cat::tell_report(store.read_report(), out);
    pool::sum(ran).and(out.flush())
}

fn local_target(word: &OsString, sources: usize) -> Outcome<Target<PathBuf>> {
    let path = PathBuf::from(word);
    let wants_directory = sources > 1 || word.as_bytes().ends_with(b"/");
    match path.is_dir() {
        true => Ok(Target::Into(path)),
        false if path.exists() && wants_directory => {
            Err(Failure::usage(format!("{}: is not a directory; give a directory as the target", path.display())))
        }
        false if wants_directory => Ok(Target::IntoNew(path)),
        false => Ok(Target::As(path)),
    }
}

fn plan(store: &Store, source: &StorePath, target: &Target<PathBuf>, recursive: bool, jobs: &mut Vec<Job>) -> Outcome {
    let root = match (target, source.name()) {
        (Target::As(path), _) | (Target::Into(path) | Target::IntoNew(path), None) => path.clone(),
        (Target::Into(path) | Target::IntoNew(path), Some(name)) => local::below(path, &[name.to_vec()])?,
    };
    let item = store.item(source)?;
    if item.kind() != InodeKind::Directory {
        jobs.push(Job { item, to: root });
        return Ok(());
    }
    if !recursive {
        return Err(Failure::usage(format!("{source} is a directory; fetch it with --recursive")));
    }
    let depth = source.components().len();
    for item in tree(store, item)? {
        let to = local::below(&root, &item.path.components()[depth..])?;
        jobs.push(Job { item, to });
    }
    Ok(())
}

/// `root` and everything below it, parents before children.
pub(super) fn tree(store: &Store, root: Item) -> Outcome<Vec<Item>> {
    let (mut all, mut todo) = (Vec::new(), vec![root]);
    while let Some(item) = todo.pop() {
        if item.kind() == InodeKind::Directory {
            let mut children = store.items(&item.path)?;
            children.reverse();
            todo.extend(children);
        }
        all.push(item);
    }
    Ok(all)
}

fn carry_out(
    store: &Store,
    jobs: Vec<Job>,
    version: Option<u64>,
    at_once: usize,
    out: &Out,
    progress: &Progress,
) -> Tally {
    let of_kind = |kind: InodeKind| move |job: &Job| job.item.kind() == kind;
    let (directories, rest): (Vec<_>, Vec<_>) = jobs.into_iter().partition(of_kind(InodeKind::Directory));
    let (files, links): (Vec<_>, Vec<_>) = rest.into_iter().partition(of_kind(InodeKind::File));
    for directory in &directories {
        if let Err(failure) = make_directory(&directory.to) {
            out.warn(&failure);
            return Tally { failures: vec![failure], untried: files.len() as u64, ..Tally::default() };
        }
    }
    let tell = |failure: &Failure| progress.suspend(|| out.warn(failure));
    let files = files.into_iter().map(|job| (job.item.size_bytes, job)).collect();
    let mut ran = pool::run(files, at_once, |job| get_file(store, &job, version, progress), tell);
    // Links come after files, so that nothing is written through a link.
    let links = links.into_iter().map(|job| (0, job)).collect();
    ran = ran.and(pool::run(links, 1, |job: Job| local::make_symlink(&job.to, &job.item.symlink_target), tell));
    for directory in directories.iter().rev() {
        if let Err(failure) = finish(directory) {
            out.warn(&failure);
            ran.failures.push(failure);
        }
    }
    ran
}

/// Makes a directory, or uses the existing one. A symbolic link of that name is not followed (P14).
fn make_directory(path: &Path) -> Outcome {
    match std::fs::symlink_metadata(path) {
        Ok(meta) if meta.is_dir() => Ok(()),
        Ok(_) => Err(Failure::new(
            Exit::Conflict,
            format!("{}: a directory must go here and a file is in its place; move it away", path.display()),
        )),
        Err(_) => {
            let made = DirBuilder::new().mode(0o700).recursive(false).create(path);
            made.map_err(|e| Failure::io(path.display(), &e))
        }
    }
}

fn finish(directory: &Job) -> Outcome {
    let item = &directory.item;
    local::finish_directory(&directory.to, item.mode, item.mtime_ns, (item.uid, item.gid))
}

fn get_file(store: &Store, job: &Job, version: Option<u64>, progress: &Progress) -> Outcome {
    if job.to.is_dir() {
        let message = format!("{}: is a directory, {} is a file", job.to.display(), job.item.path);
        return Err(Failure::new(Exit::Conflict, message));
    }
    let mut pending = Pending::create(&job.to)?;
    let wanted = Wanted { version, range: None };
    let mut sink = Sparse::new(pending.file()?);
    store.fetch(&job.item.path, Sink::Sparse(&mut sink), &wanted, &|n| progress.add(n))?;
    sink.finish().map_err(|e| Failure::io(job.to.display(), &e))?;
    pending.finish(job.item.mode, job.item.mtime_ns, (job.item.uid, job.item.gid))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// P14: an existing entry at the target decides where bytes go; a link there never does.
    #[test]
    fn directories_do_not_go_through_links() {
        let dir = tempfile::tempdir().unwrap();
        let (real, link) = (dir.path().join("real"), dir.path().join("link"));
        make_directory(&real).unwrap();
        make_directory(&real).unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        assert_eq!(make_directory(&link).unwrap_err().exit, Exit::Conflict);
    }
}
