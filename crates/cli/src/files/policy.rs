//! `tessera policy`.

use super::put::hints;
use super::target::store_path;
use crate::args::PolicyCommand;
use crate::exit::{Failure, Outcome};
use crate::remote::Store;
use crate::term::{Out, Table};
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use tessera_client::path::StorePath;
use tessera_policy::{CLASSIC, HINTS, PREFIX, Policy, Scheme};

/// `tessera policy`.
///
/// # Errors
/// A hint is not valid, or the manager refuses the change.
pub fn policy(command: PolicyCommand) -> Outcome {
    match command {
        PolicyCommand::List { output } => list(output),
        PolicyCommand::Get { path, common } => {
            let path = store_path(path.as_ref())?;
            let set = Store::connect(&common)?.hints(&path)?;
            show(common.output, &path.to_string(), &set)
        }
        PolicyCommand::Set { path, hints: words, common } => {
            let path = store_path(path.as_ref())?;
            let hints = hints(&words)?;
            let store = Store::connect(&common)?;
            store.set_hints(&path, &hints)?;
            let out = common.output;
            warn_if_too_wide(&store, &path, out)?;
            match out.quiet {
                true => Ok(()),
                false => show(out, &path.to_string(), &store.hints(&path)?),
            }
        }
    }
}

/// Warns when the redundancy of `path` needs more hosts than the cluster has: nothing can be stored there until hosts are
/// added.
pub(super) fn warn_if_too_wide(store: &Store, path: &StorePath, out: Out) -> Outcome {
    let set = store.hints(path)?;
    let Some((_, redundancy)) = set.iter().find(|(name, _)| name == "redundancy") else { return Ok(()) };
    let policy = Policy::from_hints(set.iter().map(|(n, v)| (n.as_str(), v.as_str())))?;
    let schemes = [0, u64::MAX].map(|file_bytes| policy.redundancy.scheme(file_bytes, &policy.placement));
    let needed = schemes.map(Scheme::fragments).into_iter().max().unwrap_or_default() as usize;
    let nodes = store.status()?.nodes;
    let hosts = nodes.iter().map(|node| &node.host).collect::<BTreeSet<_>>().len();
    if needed > hosts {
        let fact = format!("{path}: {redundancy} needs {needed} hosts, the cluster has {hosts}");
        let way_out = "add nodes on more hosts or choose fewer fragments; until then files stored here are refused";
        out.caution(format!("{fact}; {way_out}"));
    }
    Ok(())
}

fn list(out: Out) -> Outcome {
    if out.json {
        let one = |h: &tessera_policy::HintSpec| json!({"name": h.name, "allowed": h.allowed, "default": h.default, "help": h.help});
        return out.document(&Value::Array(HINTS.iter().map(one).collect()));
    }
    for hint in HINTS {
        out.line(format!("{} = {}   (default {})", hint.name, hint.allowed, hint.default))?;
        out.line(format!("    {}", hint.help))?;
    }
    out.line("")?;
    out.line(format!("As extended attributes their names start with {PREFIX}"))?;
    out.line("Other names, from the papers (as extended attributes user.NAME):")?;
    for classic in CLASSIC {
        out.line(format!("    {} = {}   (is {})", classic.name, classic.allowed, classic.hint))?;
    }
    Ok(())
}

/// Prints the hints in effect, and whether each was set or is the default.
fn show(out: Out, path: &str, set: &[(String, String)]) -> Outcome {
    let pairs = set.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    let policy = Policy::from_hints(pairs).map_err(|e| Failure::from(e).of(path))?;
    let rows = policy.to_hints();
    let is_set = |name: &str| set.iter().any(|(n, _)| n == name);
    if out.json {
        let one = |(name, value): &(&str, String)| (name.to_string(), json!({"value": value, "set": is_set(name)}));
        let map: Map<String, Value> = rows.iter().map(one).collect();
        return out.document(&json!({"path": path, "policy": map}));
    }
    let mut table = Table::new("lll", &["hint", "value", ""]);
    for (name, value) in rows {
        table.row([name.into(), value, if is_set(name) { "set" } else { "default" }.into()]);
    }
    out.table(&table)
}
