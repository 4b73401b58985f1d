//! `tessera rm`, `mv`, `mkdir`.

use super::pool;
use super::put::hints;
use super::target::{Target, all_differ, missing, split, store_paths};
use crate::args::{MkdirArgs, MvArgs, RmArgs};
use crate::exit::{Exit, Outcome, bail};
use crate::remote::Store;
use crate::term::units;
use serde_json::json;
use tessera_client::path::StorePath;
use tessera_wire::Code;

/// `tessera rm`.
///
/// # Errors
/// An argument is not valid, or an entry cannot be removed.
pub fn rm(args: RmArgs) -> Outcome {
    let out = args.on.common.output;
    let paths = store_paths(&args.on.paths)?;
    if paths.iter().any(StorePath::is_root) {
        bail!(Exit::Usage, "tess:/ itself cannot be removed; name what is in it");
    }
    let store = Store::connect(&args.on.common)?;
    let mut removed = 0;
    let ran = pool::each(out, &paths, |path| match remove(&store, path, args.recursive, &mut removed) {
        Err(failure) if failure.exit == Exit::NotFound && args.force => Ok(()),
        done => done,
    });
    match out.json {
        true => out.document(&json!({"removed": removed, "failed": ran.failures.len(), "untried": ran.untried}))?,
        false if args.recursive => out.note(match removed {
            1 => "removed 1 entry".to_string(),
            n => format!("removed {} entries", units::count(n)),
        }),
        false => {}
    }
    ran.outcome()
}

fn remove(store: &Store, path: &StorePath, recursive: bool, removed: &mut u64) -> Outcome {
    match store.remove(path, recursive, removed) {
        Err(error) if error.code() == Code::IsDirectory => {
            bail!(Exit::Usage, "{path} is a directory; remove it with --recursive");
        }
        done => Ok(done?),
    }
}

/// `tessera mv`.
///
/// # Errors
/// An argument is not valid, or an entry cannot be moved.
pub fn mv(args: MvArgs) -> Outcome {
    let out = args.common.output;
    let (sources, target) = split(&args.paths)?;
    let sources = store_paths(sources)?;
    let store = Store::connect(&args.common)?;
    let target = Target::in_store(&store, target, sources.len())?;
    if let Target::IntoNew(directory) = &target {
        return Err(missing("mv", &directory.to_string()));
    }
    let places = sources.iter().map(|from| target.place(from.name())).collect::<Outcome<Vec<_>>>()?;
    all_differ(places.iter().zip(&sources).map(|(to, from)| (to.to_string(), from.to_string())))?;
    let mut moved = Vec::new();
    let ran = pool::each(out, sources.iter().zip(places), |(from, to)| {
        store.rename(from, &to, args.no_replace)?;
        moved.push(json!({"from": from.to_string(), "to": to.to_string()}));
        Ok(())
    });
    if out.json {
        out.document(&json!({"moved": moved, "failed": ran.failures.len(), "untried": ran.untried}))?;
    }
    ran.outcome()
}

/// `tessera mkdir`.
///
/// # Errors
/// An argument is not valid, or a directory cannot be made.
pub fn mkdir(args: MkdirArgs) -> Outcome {
    let out = args.on.common.output;
    let hints = hints(&args.policy)?;
    let paths = store_paths(&args.on.paths)?;
    let store = Store::connect(&args.on.common)?;
    let mut made = Vec::new();
    let ran = pool::each(out, &paths, |path| {
        match args.parents {
            true => store.mkdir_all(path)?,
            false => store.mkdir(path, false)?,
        };
        store.set_hints(path, &hints)?;
        if !hints.is_empty() {
            super::policy::warn_if_too_wide(&store, path, out)?;
        }
        made.push(path.to_string());
        Ok(())
    });
    if out.json {
        out.document(&json!({"made": made, "failed": ran.failures.len(), "untried": ran.untried}))?;
    }
    ran.outcome()
}
