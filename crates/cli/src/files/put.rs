//! `tessera put`.

use super::checksum;
use super::holes::SparseSource;
use super::local::{self, Kind, LocalEntry};
use super::pool::{self, Tally};
use super::small::{self, Group, mixture, state};
use super::target::{Target, all_differ, split, store_path};
use super::tree::{self, Directories};
use super::unchanged::Known;
use crate::args::PutArgs;
use crate::exit::{At, Exit, Failure, Outcome, bail, failure};
use crate::remote::Store;
use crate::term::{Out, Progress, units};
use serde_json::json;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use tessera_client::path::StorePath;
use tessera_client::{Owner, ProgressFn, PutOptions, Source, WriteDone};
use tessera_policy::{HINTS, PREFIX, canonical, own_name};

/// An entry to store, and its path in the store.
pub(super) struct Job {
    pub found: LocalEntry,
    pub to: StorePath,
}

/// What the command says of each file.
pub(super) struct Condition {
    /// Hints; they override those of the directory.
    pub hints: Vec<(String, String)>,
    /// Store only if this is the current version.
    pub if_version: Option<u64>,
}

impl Condition {
    fn options<'a>(&self, owner: Owner, mtime_ns: i64, progress: ProgressFn<'a>) -> PutOptions<'a> {
        let (hints, if_version) = (self.hints.clone(), self.if_version);
        PutOptions { hints, if_version, owner, mtime_ns, progress: Some(progress), ..PutOptions::default() }
    }
}

/// Bytes stored so far.
#[derive(Default)]
pub(super) struct Sums {
    bytes: AtomicU64,
    new_bytes: AtomicU64,
}

impl Sums {
    pub fn add(&self, put: &WriteDone) {
        self.new_bytes.fetch_add(put.new_bytes, Ordering::Relaxed);
        self.bytes.fetch_add(put.input_bytes, Ordering::Relaxed);
    }
}

/// `tessera put`.
///
/// # Errors
/// An argument is not valid, a source cannot be read, or the store refuses it.
pub fn put(args: PutArgs) -> Outcome {
    let out = args.common.output;
    let condition = Condition { hints: hints(&args.policy)?, if_version: args.if_version };
    let (sources, target) = split(&args.paths)?;
    store_path(target)?;
    if args.if_version.is_some() && (sources.len() > 1 || args.recursive) {
        bail!(Exit::Usage, "--if-version is for one file");
    }
    let store = Store::connect_for_files(&args.common, args.memory)?;
    store.end_sessions_on_interrupt();
    let target = Target::in_store(&store, target, sources.len())?;
    if sources.iter().any(|s| s.as_bytes() == b"-") {
        return put_stdin(&store, &target, sources, &condition, out);
    }
    let started = Instant::now();
    let (jobs, failures) = plan(sources, &target, args.recursive)?;
    if let Target::IntoNew(directory) = &target {
        store.mkdir(directory, true)?;
    }
    failures.iter().for_each(|f| out.warn(f));
    let of_kind = |jobs: Vec<Job>, is: fn(&Kind) -> bool| jobs.into_iter().partition(|job| is(&job.found.kind));
    let (special, jobs): (Vec<Job>, _) = of_kind(jobs, |kind| *kind == Kind::Special);
    let (directories, jobs): (Vec<Job>, _) = of_kind(jobs, |kind| *kind == Kind::Directory);
    let (files, links): (Vec<Job>, Vec<Job>) = of_kind(jobs, |kind| matches!(kind, Kind::File(_)));
    let files_found = files.len();
    let mut all = [directories, files, links];
    let mut attributes = Vec::new();
    if args.skip_unchanged || args.checksum {
        let known = Known::list(&store, every(&all).filter_map(parent).collect(), args.jobs.into())?;
        all = if args.checksum {
            let [directories, files, links] = all;
            let compared = checksum::compare(&store, &known, files, &condition, args.jobs.into(), out)?;
            attributes = compared.attributes;
            changed(&known, [directories, compared.files, links], |_| true)
        } else {
            changed(&known, all, |job| !known.has(&job.found, &job.to))
        };
    }
    let [directories, files, links] = all;
    let (unchanged, attributes_set) = (files_found - files.len() - attributes.len(), attributes.len());
    let skipped = pool::note_skipped(out, special.iter().map(|job| job.found.path.display().to_string()));
    let (directory_count, link_count) = (directories.len(), links.len());
    let progress = Progress::bytes(out, "put", Some(files.iter().map(|job| job.found.len_bytes()).sum()));
    let sums = Sums::default();
    let set = tree::set_attributes(&store, attributes, args.jobs.into(), &progress);
    let ran = carry_out(&store, [directories, files, links], &condition, args.jobs.into(), &progress, &sums).and(set);
    let ran = ran.and(Tally { failures, ..Tally::default() });
    let chunks_reduced = store.settle();
    progress.finish();
    let (bytes, new_bytes, time) = (sums.bytes.into_inner(), sums.new_bytes.into_inner(), started.elapsed());
    if out.json {
        out.document(&json!({
            "files": ran.done, "bytes": bytes, "new_bytes": new_bytes, "directories": directory_count,
            "symlinks": link_count, "unchanged": unchanged, "attributes_set": attributes_set, "skipped": skipped, "failed": ran.failures.len(), "untried": ran.untried,
            "chunks_reduced": chunks_reduced, "most_memory_bytes": store.most_memory_bytes(), "seconds": time.as_secs_f64(),
        }))?;
    } else if ran.done > 0 || ran.failures.is_empty() {
        out.note(format!(
            "stored {}, {}, {} of it new, in {} ({}){}{}",
            units::files_and_links(ran.done, link_count as u64),
            units::bytes(bytes),
            units::bytes(new_bytes),
            units::duration(time),
            units::rate(bytes, time),
            others(&args, unchanged as u64, attributes_set as u64),
            if skipped.is_empty() { String::new() } else { format!(", {} skipped", skipped.len()) },
        ));
    }
    Store::note_reduced(out, chunks_reduced);
    ran.outcome()
}

/// `NAME=VALUE` arguments, each checked against the registry of hints (P14). An empty value stays: `policy set` removes
/// such a hint.
pub(super) fn hints(words: &[String]) -> Outcome<Vec<(String, String)>> {
    let mut policy = tessera_policy::Policy::default();
    let hint = |word: &String| -> Outcome<(String, String)> {
        let (name, value) = word.split_once('=').ok_or_else(|| {
            failure!(
                Exit::Usage,
                "policy {word:?} is not NAME=VALUE, as in redundancy=ec:4+2; see `tessera policy list`"
            )
        })?;
        let name = name.strip_prefix(PREFIX).unwrap_or(name);
        if value.is_empty() {
            let name = own_name(name);
            canonical(name, HINTS.iter().find(|h| h.name == name).map_or("", |h| h.default))?;
            return Ok((name.to_string(), String::new()));
        }
        policy.set(name, value)?;
        Ok((name.to_string(), value.to_string()))
    };
    words.iter().map(hint).collect()
}

fn put_stdin(
    store: &Store,
    target: &Target<StorePath>,
    sources: &[OsString],
    condition: &Condition,
    out: Out,
) -> Outcome {
    let Target::As(to) = target else {
        bail!(Exit::Usage, "stdin has no name: write the target as tess:/directory/name");
    };
    if sources.len() > 1 {
        bail!(Exit::Usage, "stdin (-) must be the only source");
    }
    let progress = Progress::bytes(out, "put", None);
    let source = Source::Reader { reader: &mut std::io::stdin(), len_bytes: None };
    let owner = Owner { mode: 0o644, ..local::process_owner() };
    let put = store.put(to, source, condition.options(owner, 0, &mut progress.steps()))?;
    let chunks_reduced = store.settle();
    progress.finish();
    out.summary(
        &json!({
            "path": to.to_string(), "version": put.version, "files": 1, "bytes": put.input_bytes,
            "chunks_reduced": chunks_reduced,
        }),
        format!("stored {to}, {} in {}", units::bytes(put.input_bytes), units::duration(progress.elapsed())),
    )?;
    Store::note_reduced(out, chunks_reduced);
    Ok(())
}

/// What to store where, and failures of entries that cannot be examined.
fn plan(sources: &[OsString], target: &Target<StorePath>, recursive: bool) -> Outcome<(Vec<Job>, Vec<Failure>)> {
    let (mut jobs, mut failures) = (Vec::new(), Vec::new());
    for source in sources {
        let path = Path::new(source);
        let root = target.place(path.file_name().map(|n| n.as_bytes()))?;
        let (found, failed) = match recursive {
            true => local::walk(path)?,
            false => (vec![local::look(path)?], Vec::new()),
        };
        failures.extend(failed);
        for found in found {
            if found.kind == Kind::Directory && !recursive {
                bail!(Exit::Usage, "{} is a directory; store it with --recursive", path.display());
            }
            // Special files below a directory are skipped with a note. One that the user named is an error.
            if found.kind == Kind::Special && found.names.is_empty() {
                let message = "is not a regular file; store its output with `tessera put - TESS:/FILE`";
                bail!(Exit::Usage, "{}: {message}", path.display());
            }
            let to = found.names.iter().try_fold(root.clone(), |to, name| to.join(name));
            let to = to.map_err(|e| failure!(Exit::Usage, "{}: {e}", found.path.display()))?;
            jobs.push(Job { found, to });
        }
    }
    let source = |found: &LocalEntry| match &found.kind {
        Kind::File(_) => Some(found.path.display().to_string()),
        Kind::Symlink(target) => Some(format!("a link to {}", String::from_utf8_lossy(target))),
        Kind::Directory | Kind::Special => None,
    };
    all_differ(jobs.iter().filter_map(|job| Some((job.to.to_string(), source(&job.found)?))))?;
    Ok((jobs, failures))
}

/// What is said of files that are not stored.
fn others(args: &PutArgs, unchanged: u64, attributes_set: u64) -> String {
    let mut text = String::new();
    if args.skip_unchanged || args.checksum {
        text += &format!(", {} unchanged", units::count(unchanged));
    }
    if attributes_set > 0 {
        text += &format!(", {} with other attributes", units::count(attributes_set));
    }
    text
}

fn every(all: &[Vec<Job>; 3]) -> impl Iterator<Item = &Job> {
    all.iter().flatten()
}

fn parent(job: &Job) -> Option<StorePath> {
    Some(job.to.split_last().ok()?.0)
}

/// Directories, files and links without those that the store has; `is_changed` says which files it has not. A directory in which something
/// changes gets its time again.
fn changed(
    known: &Known,
    [directories, files, links]: [Vec<Job>; 3],
    is_changed: impl Fn(&Job) -> bool,
) -> [Vec<Job>; 3] {
    let files: Vec<Job> = files.into_iter().filter(is_changed).collect();
    let links: Vec<Job> = links.into_iter().filter(|job| !known.has(&job.found, &job.to)).collect();
    let is_new = |job: &&Job| !known.has_directory(&job.to);
    let new = directories.iter().filter(is_new);
    let touched: BTreeSet<StorePath> = new.chain(&files).chain(&links).filter_map(parent).collect();
    let directories =
        directories.into_iter().filter(|job| touched.contains(&job.to) || !known.has(&job.found, &job.to));
    [directories.collect(), files, links]
}

fn carry_out(
    store: &Store,
    [directories, files, links]: [Vec<Job>; 3],
    condition: &Condition,
    jobs: usize,
    progress: &Progress,
    sums: &Sums,
) -> Tally {
    let made = match Directories::make(store, &directories) {
        Ok(made) => made,
        Err(failure) => {
            progress.warn(&failure);
            return Tally { failures: vec![failure], untried: files.len() as u64, ..Tally::default() };
        }
    };
    let files = pool::run_groups(
        small::grouped(files, condition),
        (|group: &Group<Job>| group.len_bytes(|job| job.found.len_bytes()), Group::files),
        jobs,
        |group| match group {
            Group::One(job) => vec![put_file(store, &job, condition, progress, sums)],
            Group::Small(jobs) => small::put(store, &jobs, condition, progress, sums),
        },
        |failure| progress.warn(failure),
    );
    let links = made.link(jobs, links, progress);
    files.and(links).and(made.finish(jobs, directories, progress))
}

pub(super) fn put_file(
    store: &Store,
    Job { found, to }: &Job,
    condition: &Condition,
    progress: &Progress,
    sums: &Sums,
) -> Outcome {
    let path = &found.path;
    let mut file = found.open()?;
    let before = file.metadata().at(path)?;
    let watch = file.try_clone().at(path)?;
    let source = match found.sparse {
        true => Source::Sparse { file: &mut SparseSource(&mut file), len_bytes: found.len_bytes() },
        false => Source::Reader { reader: &mut file, len_bytes: Some(found.len_bytes()) },
    };
    let mut steps = progress.steps();
    let options = condition.options(found.owner, found.mtime_ns, &mut steps);
    let put = store.put(to, source, options).map_err(|e| Failure::from(e).of(path.display()))?;
    if put.number > 1 {
        set_owner(store, found, to)?;
    }
    sums.add(&put);
    let after = watch.metadata().at(path)?;
    if state(&before) != state(&after) || put.input_bytes != after.len() {
        return Err(mixture(found, to));
    }
    Ok(())
}

/// Gives a file the mode and owner of its source: one that was there before has its old ones.
pub(super) fn set_owner(store: &Store, found: &LocalEntry, to: &StorePath) -> Outcome {
    let there = store.stat(to)?;
    let has = Owner { mode: there.mode, uid: there.uid, gid: there.gid };
    if has != found.owner {
        store.set_attributes(to, found.owner, found.mtime_ns)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// P14: an impossible policy is refused before anything is opened.
    #[test]
    fn policies_are_checked_by_name_and_value() {
        let good = hints(&["redundancy=ec:4+2".into(), "user.tessera.dedup=off".into(), "lifetime=".into()]).unwrap();
        assert_eq!(good[1], ("dedup".into(), "off".into()));
        for (word, named) in [
            ("redundancy", "NAME=VALUE"),
            ("redundancy=ec:0+2", "allowed"),
            ("colour=red", "colour"),
            ("colour=", "colour"),
        ] {
            let failure = hints(&[word.to_string()]).unwrap_err();
            assert_eq!(failure.exit, Exit::Usage);
            assert!(failure.message.contains(named), "{failure}");
        }
    }
}
