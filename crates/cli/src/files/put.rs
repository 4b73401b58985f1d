//! `tessera put`.

use super::holes::SparseSource;
use super::local::{self, Kind, LocalEntry};
use super::pool::{self, Tally};
use super::target::{Target, all_differ};
use crate::args::PutArgs;
use crate::exit::{Exit, Failure, Outcome};
use crate::remote::{Given, Store};
use crate::term::{Out, Progress, units};
use serde_json::json;
use std::ffi::OsString;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use tessera_client::Source;
use tessera_client::path::StorePath;

/// A file to store.
struct FileJob {
    found: LocalEntry,
    to: StorePath,
}

/// Everything that one command has to do.
#[derive(Default)]
struct Plan {
    directories: Vec<(StorePath, LocalEntry)>,
    files: Vec<(u64, FileJob)>,
    links: Vec<(StorePath, Vec<u8>, LocalEntry)>,
    skipped: Vec<String>,
    failures: Vec<Failure>,
}

/// Permission bits of symbolic links, which Linux ignores.
const LINK_MODE: u32 = 0o777;

/// Bytes stored so far.
#[derive(Default)]
struct Sums {
    bytes: AtomicU64,
    new_bytes: AtomicU64,
}

/// `tessera put`.
///
/// # Errors
/// An argument is not valid, a source cannot be read, or the store refuses it.
pub fn put(args: PutArgs) -> Outcome {
    let out = Out::new(args.common.output);
    let given =
        Given { hints: hints(&args.policy)?, if_version: args.if_version, mode: 0o644, mtime_ns: 0, owner: None };
    let (sources, target) = split(&args.paths)?;
    super::target::store_path(target)?;
    let single = sources.len() == 1 && !args.recursive;
    if args.if_version.is_some() && !single {
        return Err(Failure::usage("--if-version is for one file"));
    }
    let store = Store::connect(&args.common)?;
    store.give_up_when_interrupted();
    let target = Target::in_store(&store, target, sources.len())?;
    if sources.iter().any(|s| s.as_bytes() == b"-") {
        return put_stdin(&store, &target, sources, &given, &out);
    }
    let started = Instant::now();
    let plan = plan(sources, &target, args.recursive)?;
    if let Target::IntoNew(directory) = &target {
        store.mkdir(directory, true)?;
    }
    plan.failures.iter().for_each(|f| out.warn(f));
    let (directories, links) = (plan.directories.len(), plan.links.len());
    let skipped = plan.skipped.clone();
    skipped.iter().for_each(|s| out.note(format!("skipped {s}: neither file, directory nor symbolic link")));
    let bytes: u64 = plan.files.iter().map(|(len, _)| len).sum();
    let progress = Progress::bytes(&out, "put", Some(bytes));
    let sums = Sums::default();
    let ran = carry_out(&store, plan, &given, args.jobs.into(), &out, &progress, &sums);
    let settled = store.settle();
    progress.finish();
    let (bytes, new_bytes) = (sums.bytes.into_inner(), sums.new_bytes.into_inner());
    let (stored, failed) = (ran.done, ran.failures.len());
    if out.json() {
        out.document(&json!({
            "files": stored, "bytes": bytes, "new_bytes": new_bytes, "directories": directories, "symlinks": links,
            "skipped": skipped, "failed": failed, "untried": ran.untried, "seconds": started.elapsed().as_secs_f64(),
        }))?;
    } else if stored > 0 || failed == 0 {
        let links =
            if links > 0 { format!(", {}", units::things(links as u64, "symbolic link")) } else { String::new() };
        let skipped = if skipped.is_empty() { String::new() } else { format!(", {} skipped", skipped.len()) };
        out.note(format!(
            "stored {}{links}, {}, {} of it new, in {} ({}){skipped}",
            units::things(stored, "file"),
            units::bytes(bytes),
            units::bytes(new_bytes),
            units::duration(started.elapsed()),
            units::rate(bytes, started.elapsed()),
        ));
    }
    pool::sum(ran).and(settled)
}

/// Splits the arguments into sources and target. The target is the last one.
pub(super) fn split(paths: &[OsString]) -> Outcome<(&[OsString], &OsString)> {
    if paths.iter().any(|p| p.is_empty()) {
        return Err(Failure::usage("`''` is not a path; name a file, a directory or `-`"));
    }
    match paths.split_last() {
        Some((target, sources)) if !sources.is_empty() => Ok((sources, target)),
        _ => Err(Failure::usage("name at least one source, and the target")),
    }
}

/// `NAME=VALUE` arguments, each checked against the registry of hints (P14). An empty value stays: `policy set` removes
/// such a hint.
pub(super) fn hints(words: &[String]) -> Outcome<Vec<(String, String)>> {
    let mut policy = tessera_policy::Policy::default();
    let mut hints = Vec::new();
    for word in words {
        let (name, value) = word.split_once('=').ok_or_else(|| {
            Failure::usage(format!(
                "policy {word:?} is not NAME=VALUE, as in redundancy=ec:4+2; see `tessera policy list`"
            ))
        })?;
        let name = name.strip_prefix(tessera_policy::PREFIX).unwrap_or(name);
        if value.is_empty() {
            tessera_policy::canonical(tessera_policy::own_name(name), default_of(name))?;
        } else {
            policy.set(name, value)?;
        }
        match value.is_empty() {
            true => hints.push((tessera_policy::own_name(name).to_string(), String::new())),
            false => hints.push((name.to_string(), value.to_string())),
        }
    }
    Ok(hints)
}

fn default_of(name: &str) -> &'static str {
    tessera_policy::HINTS.iter().find(|h| h.name == tessera_policy::own_name(name)).map_or("", |h| h.default)
}

fn put_stdin(store: &Store, target: &Target<StorePath>, sources: &[OsString], given: &Given, out: &Out) -> Outcome {
    let Target::As(to) = target else {
        return Err(Failure::usage("stdin has no name: write the target as tess:/directory/name"));
    };
    if sources.len() > 1 {
        return Err(Failure::usage("stdin (-) goes alone, into one file"));
    }
    let progress = Progress::bytes(out, "put", None);
    let put = store
        .store(to, Source::Reader { reader: &mut std::io::stdin(), len_bytes: None }, given, &|n| progress.add(n))?;
    store.settle()?;
    progress.finish();
    if out.json() {
        return out
            .document(&json!({"path": to.to_string(), "version": put.version, "files": 1, "bytes": put.input_bytes}));
    }
    out.note(format!("stored {to}, {} in {}", units::bytes(put.input_bytes), units::duration(progress.elapsed())));
    Ok(())
}

fn plan(sources: &[OsString], target: &Target<StorePath>, recursive: bool) -> Outcome<Plan> {
    let mut plan = Plan::default();
    for source in sources {
        let path = Path::new(source);
        let to = target.place(path.file_name().map(|n| n.as_bytes()))?;
        let (found, failures) = match recursive {
            true => local::walk(path)?,
            false => (vec![local::look(path)?], Vec::new()),
        };
        plan.failures.extend(failures);
        for found in found {
            if found.kind == Kind::Directory && !recursive {
                return Err(Failure::usage(format!("{} is a directory; store it with --recursive", path.display())));
            }
            // Special files below a directory are skipped with a note. One that the user named is an error.
            if found.kind == Kind::Special && found.names.is_empty() {
                let message = "is not a regular file; store its output with `tessera put - TESS:/FILE`";
                return Err(Failure::usage(format!("{}: {message}", path.display())));
            }
            plan.add(found, &to)?;
        }
    }
    let files = plan.files.iter().map(|(_, job)| (job.to.to_string(), job.found.path.display().to_string()));
    let links = plan
        .links
        .iter()
        .map(|(to, target, _)| (to.to_string(), format!("a link to {}", String::from_utf8_lossy(target))));
    all_differ(files.chain(links))?;
    Ok(plan)
}

impl Plan {
    fn add(&mut self, found: LocalEntry, root: &StorePath) -> Outcome {
        let mut to = root.clone();
        for name in &found.names {
            to = to.join(name).map_err(|e| Failure::usage(format!("{}: {e}", found.path.display())))?;
        }
        match found.kind {
            Kind::Directory => self.directories.push((to, found)),
            Kind::File(len) => self.files.push((len, FileJob { found, to })),
            Kind::Symlink(ref target) => self.links.push((to, target.clone(), found)),
            Kind::Special => self.skipped.push(found.path.display().to_string()),
        }
        Ok(())
    }
}

fn carry_out(
    store: &Store,
    plan: Plan,
    given: &Given,
    jobs: usize,
    out: &Out,
    progress: &Progress,
    stored: &Sums,
) -> Tally {
    let mut before = Tally { failures: plan.failures, ..Tally::default() };
    for (path, _) in &plan.directories {
        // The directory gets its own mode and time at the end, when it is filled.
        if let Err(failure) = store.mkdir(path, true).map_err(Failure::from) {
            out.warn(&failure);
            before.failures.push(failure);
            before.untried = plan.files.len() as u64;
            return before;
        }
    }
    let tell = |failure: &Failure| progress.suspend(|| out.warn(failure));
    let files = pool::run(plan.files, jobs, |job| put_file(store, &job, given, progress, stored), tell);
    let links = plan.links.into_iter().map(|link| (0, link)).collect();
    let link = |(path, target, found): (StorePath, Vec<u8>, LocalEntry)| {
        store.replace_symlink(&target, &path)?;
        store.set_attributes(&path, LINK_MODE, found.mtime_ns, found.owner)
    };
    let links = pool::run(links, jobs, link, tell);
    // Filling a directory changed its time.
    let finishing = plan.directories.into_iter().map(|d| (0, d)).collect();
    let finish = |(path, found): (StorePath, LocalEntry)| match path.is_root() {
        true => Ok(()),
        false => store.set_attributes(&path, found.mode, found.mtime_ns, found.owner),
    };
    files.and(before).and(links).and(pool::run(finishing, jobs, finish, tell))
}

fn put_file(store: &Store, job: &FileJob, given: &Given, progress: &Progress, stored: &Sums) -> Outcome {
    let path = &job.found.path;
    let mut file = File::open(path).map_err(|e| Failure::io(path.display(), &e))?;
    let Kind::File(len) = job.found.kind else {
        return Err(Failure::new(Exit::Failed, format!("{} changed its kind", path.display())));
    };
    let before = file.metadata().map_err(|e| Failure::io(path.display(), &e))?;
    let watch = file.try_clone().map_err(|e| Failure::io(path.display(), &e))?;
    let given = Given { mode: job.found.mode, mtime_ns: job.found.mtime_ns, owner: job.found.owner, ..given.clone() };
    let source = match job.found.sparse {
        true => Source::Sparse { file: &mut SparseSource(&mut file), len_bytes: len },
        false => Source::Reader { reader: &mut file, len_bytes: Some(len) },
    };
    let put = store.store(&job.to, source, &given, &|n| progress.add(n)).map_err(|f| f.of(path.display()))?;
    stored.new_bytes.fetch_add(put.new_bytes, Ordering::Relaxed);
    stored.bytes.fetch_add(put.input_bytes, Ordering::Relaxed);
    let after = watch.metadata().map_err(|e| Failure::io(path.display(), &e))?;
    match changes(&before) == changes(&after) && put.input_bytes == after.len() {
        true => Ok(()),
        false => Err(Failure::new(
            Exit::Failed,
            format!("{}: changed while it was read; {} holds a mixture, store it again", path.display(), job.to),
        )),
    }
}

/// Attributes that change when a program writes to the file.
fn changes(meta: &std::fs::Metadata) -> (u64, i64, i64) {
    (meta.len(), meta.mtime(), meta.mtime_nsec())
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
