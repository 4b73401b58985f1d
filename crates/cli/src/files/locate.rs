//! `tessera locate`.

use super::pool;
use super::target::store_paths;
use crate::args::LocateArgs;
use crate::exit::Outcome;
use crate::remote::Store;
use crate::term::{Out, Table, units};
use serde_json::json;
use tessera_client::locate::{Holds, Located, LocatedFragment};

/// `tessera locate`.
///
/// # Errors
/// No such file, or it is no regular file.
pub fn locate(args: LocateArgs) -> Outcome {
    let out = args.on.common.output;
    let paths = store_paths(&args.on.paths)?;
    let store = Store::connect(&args.on.common)?;
    let ran = pool::each(out, &paths, |path| {
        let located = store.locate(path)?;
        if out.json {
            let (hosts, state) = (located.bytes_by_host(), located.state());
            let extents = args.extents.then_some(&located.extents);
            let path = path.to_string();
            return out.document(&json!({"path": path, "state": state, "hosts": hosts, "extents": extents}));
        }
        describe(out, &path.to_string(), &located)?;
        if args.extents { extents(out, &located) } else { Ok(()) }
    });
    ran.outcome()
}

fn describe(out: Out, path: &str, located: &Located) -> Outcome {
    let state = located.state();
    out.line(format!(
        "{path}: version {}, {} in {}: {} full, {} reduced, {} lost; {} on disks ({})",
        state.version_number,
        units::bytes(state.logical_bytes),
        units::plural(state.chunks, "chunk"),
        units::count(state.chunks_full),
        units::count(state.chunks_reduced),
        units::count(state.chunks_lost),
        units::bytes(state.stored_bytes),
        match (state.classes.is_empty(), state.metadata_bytes) {
            (false, _) => state.classes.join(", "),
            (true, 0) => "nothing stored".into(),
            (true, _) => "all in the metadata".into(),
        },
    ))?;
    if state.metadata_bytes > 0 {
        let bytes = units::bytes(state.metadata_bytes);
        out.line(format!("{bytes} in the metadata, on each of its peers, until the file moves into a pack"))?;
    }
    if let Some(verified_ns) = state.last_verified_ns {
        out.line(format!("every fragment re-read since {} UTC", units::time(verified_ns)))?;
    }
    let mut table = Table::new("lrr", &["host", "holds", "of the file"]);
    for (host, bytes) in located.bytes_by_host() {
        table.row([host, units::bytes(bytes), units::percent(bytes, state.logical_bytes)]);
    }
    if table.is_empty() { Ok(()) } else { out.table(&table) }
}

fn extents(out: Out, located: &Located) -> Outcome {
    let mut table = Table::new("rrll", &["offset", "bytes", "class", "fragments"]);
    for extent in &located.extents {
        // Marks a copy among coded fragments, and fragments that cannot be read now.
        let coded = extent.fragments.iter().any(|f| f.holds != Holds::Copy);
        let place = |f: &LocatedFragment| {
            let whole = if coded && f.holds == Holds::Copy { "*" } else { "" };
            format!("{}{whole}{}:{}", if f.readable { "" } else { "!" }, f.node, f.disk_id)
        };
        let places: Vec<String> = extent.fragments.iter().map(place).collect();
        let class = match extent.chunk_id {
            0 => "hole".into(),
            _ if extent.in_metadata => "metadata".into(),
            _ => extent.class.clone(),
        };
        table.row([units::count(extent.offset), units::count(extent.len_bytes), class, places.join(" ")]);
    }
    if table.is_empty() { Ok(()) } else { out.table(&table) }
}
