//! `tessera rewrite`.

use super::get::tree;
use super::pool;
use super::target::store_path;
use crate::args::RewriteArgs;
use crate::exit::{Failure, Outcome};
use crate::remote::{Item, Store};
use crate::term::{Out, Progress, units};
use parking_lot::Mutex;
use serde_json::json;
use tessera_client::path::StorePath;
use tessera_wire::InodeKind;

/// Bytes of a run.
#[derive(Default)]
struct Sum {
    new: u64,
    sent: u64,
}

/// `tessera rewrite`.
///
/// # Errors
/// A file cannot be read, or the store refuses the new version.
pub fn rewrite(args: RewriteArgs) -> Outcome {
    let out = Out::new(args.common.output);
    let paths = args.paths.iter().map(|p| store_path(p)).collect::<Outcome<Vec<_>>>()?;
    let store = Store::connect(&args.common)?;
    store.give_up_when_interrupted();
    let mut files: Vec<Item> = Vec::new();
    for path in &paths {
        files.extend(wanted(&store, path, args.recursive)?);
    }
    let total = files.iter().map(|item| item.size_bytes).sum();
    let progress = Progress::bytes(&out, "rewrite", Some(total));
    let sum = Mutex::new(Sum::default());
    let work = |item: Item| -> Outcome {
        let done = store.rewrite(&item, &|bytes| progress.add(bytes))?;
        let mut sum = sum.lock();
        sum.new += done.new_bytes;
        sum.sent += done.sent_bytes;
        Ok(())
    };
    let tell = |failure: &Failure| progress.suspend(|| out.warn(failure));
    let items = files.into_iter().map(|item| (item.size_bytes, item)).collect();
    let ran = pool::run(items, args.jobs.into(), work, tell);
    let settled = store.settle();
    progress.finish();
    let Sum { new, sent } = sum.into_inner();
    match out.json() {
        true => out.document(&json!({
            "files": ran.done, "failed": ran.failures.len(), "untried": ran.untried, "bytes": progress.done(),
            "new_bytes": new, "sent_bytes": sent, "seconds": progress.elapsed().as_secs_f64(),
        }))?,
        false => out.note(format!(
            "rewrote {}, {} in {}: {} stored anew, the rest was as it should be",
            units::things(ran.done, "file"),
            units::bytes(progress.done()),
            units::duration(progress.elapsed()),
            units::bytes(new),
        )),
    }
    pool::sum(ran).and(settled)
}

/// The file at a path; with `recursive` all files below it.
fn wanted(store: &Store, path: &StorePath, recursive: bool) -> Outcome<Vec<Item>> {
    let item = store.item(path)?;
    if item.kind() == InodeKind::Directory && !recursive {
        return Err(Failure::usage(format!("{path} is a directory; rewrite what is below it with --recursive")));
    }
    let all = tree(store, item)?;
    Ok(all.into_iter().filter(|item| item.kind() == InodeKind::File && item.size_bytes > 0).collect())
}
