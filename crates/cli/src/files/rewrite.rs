//! `tessera rewrite`.

use super::get::tree;
use super::pool;
use super::target::store_paths;
use crate::args::RewriteArgs;
use crate::exit::{Exit, Failure, Outcome, bail};
use crate::remote::{Item, Store};
use crate::term::{Progress, units};
use serde_json::json;
use std::sync::atomic::{AtomicU64, Ordering};
use tessera_client::Cancel;
use tessera_client::path::StorePath;
use tessera_wire::InodeKind;

/// `tessera rewrite`.
///
/// # Errors
/// A file cannot be read, or the store refuses the new version.
pub fn rewrite(args: RewriteArgs) -> Outcome {
    let out = args.on.common.output;
    let paths = store_paths(&args.on.paths)?;
    let store = Store::connect_for_files(&args.on.common, args.memory)?;
    store.end_sessions_on_interrupt();
    let mut files: Vec<Item> = Vec::new();
    for path in &paths {
        files.extend(files_at(&store, path, args.recursive)?);
    }
    let progress = Progress::bytes(out, "rewrite", Some(files.iter().map(|item| item.size_bytes).sum()));
    let (new, sent) = (AtomicU64::new(0), AtomicU64::new(0));
    let work = |item: Item| -> Outcome {
        let done = store.rewrite_inode(item.ino, &mut progress.steps(), &Cancel::default());
        let done = done.map_err(|e| Failure::from(e).of(&item.path))?;
        new.fetch_add(done.new_bytes, Ordering::Relaxed);
        sent.fetch_add(done.sent_bytes, Ordering::Relaxed);
        Ok(())
    };
    let ran = pool::run(files, |item| item.size_bytes, args.jobs.into(), work, |failure| progress.warn(failure));
    let chunks_reduced = store.settle();
    progress.finish();
    let (new, sent, bytes, time) = (new.into_inner(), sent.into_inner(), progress.done(), progress.elapsed());
    out.summary(
        &json!({
            "files": ran.done, "failed": ran.failures.len(), "untried": ran.untried, "bytes": bytes,
            "new_bytes": new, "sent_bytes": sent, "chunks_reduced": chunks_reduced, "seconds": time.as_secs_f64(),
            "most_memory_bytes": store.most_memory_bytes(),
        }),
        format!(
            "rewrote {}, {} in {}: {} stored anew, the rest was as it should be",
            units::plural(ran.done, "file"),
            units::bytes(bytes),
            units::duration(time),
            units::bytes(new),
        ),
    )?;
    Store::note_reduced(out, chunks_reduced);
    ran.outcome()
}

/// The file at a path; with `recursive` all files below it.
fn files_at(store: &Store, path: &StorePath, recursive: bool) -> Outcome<Vec<Item>> {
    let item = store.item(path)?;
    if item.kind() == InodeKind::Directory && !recursive {
        bail!(Exit::Usage, "{path} is a directory; rewrite what is below it with --recursive");
    }
    let all = tree(store, item)?;
    Ok(all.into_iter().filter(|item| item.kind() == InodeKind::File && item.size_bytes > 0).collect())
}
