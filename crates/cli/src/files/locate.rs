//! `tessera locate`.

use super::pool;
use super::target::store_path;
use crate::args::LocateArgs;
use crate::exit::Outcome;
use crate::remote::Store;
use crate::term::{Align, Out, Table, units};
use serde_json::json;
use tessera_client::locate::{Holds, Located, LocatedFragment};

/// `tessera locate`.
///
/// # Errors
/// No such file, or it is no regular file.
pub fn locate(args: LocateArgs) -> Outcome {
    let out = Out::new(args.common.output);
    let paths = args.paths.iter().map(|p| store_path(p)).collect::<Outcome<Vec<_>>>()?;
    let store = Store::connect(&args.common)?;
    let ran = pool::each(&out, &paths, |path| {
        let located = store.locate(path)?;
        if out.json() {
            let (hosts, state) = (located.bytes_by_host(), located.state());
            let extents = if args.extents { json!(located.extents) } else { json!(null) };
            return out
                .document(&json!({"path": path.to_string(), "state": state, "hosts": hosts, "extents": extents}));
        }
        describe(&out, &path.to_string(), &located)?;
        if args.extents { extents(&out, &located) } else { Ok(()) }
    });
    pool::sum(ran).and(out.flush())
}

fn describe(out: &Out, path: &str, located: &Located) -> Outcome {
    let state = located.state();
    out.line(format!(
        "{path}: version {}, {} in {}: {} full, {} reduced, {} lost; {} on disks ({})",
        state.version_number,
        units::bytes(state.logical_bytes),
        units::things(state.chunks, "chunk"),
        units::count(state.chunks_full),
        units::count(state.chunks_reduced),
        units::count(state.chunks_lost),
        units::bytes(state.stored_bytes),
        if state.classes.is_empty() { "nothing stored".into() } else { state.classes.join(", ") },
    ))?;
    if let Some(verified_ns) = state.last_verified_ns {
        out.line(format!("every fragment re-read since {} UTC", units::time(verified_ns)))?;
    }
    let mut table = Table::new([("host", Align::Left), ("holds", Align::Right), ("of the file", Align::Right)]);
    for (host, bytes) in located.bytes_by_host() {
        table.row([host, units::bytes(bytes), units::percent(bytes, state.logical_bytes)]);
    }
    if table.is_empty() { Ok(()) } else { table.lines().iter().try_for_each(|line| out.line(line)) }
}

fn extents(out: &Out, located: &Located) -> Outcome {
    let mut table = Table::new([
        ("offset", Align::Right),
        ("bytes", Align::Right),
        ("class", Align::Left),
        ("fragments", Align::Left),
    ]);
    for extent in &located.extents {
        // Marks a copy among coded fragments, and fragments that cannot be read now.
        let pieces = extent.fragments.iter().any(|f| f.holds != Holds::Copy);
        let place = |f: &LocatedFragment| {
            let whole = if pieces && f.holds == Holds::Copy { "*" } else { "" };
            format!("{}{whole}{}:{}", if f.readable { "" } else { "!" }, f.node, f.disk_id)
        };
        let places: Vec<String> = extent.fragments.iter().map(place).collect();
        let class = if extent.chunk_id == 0 { "hole".into() } else { extent.class.clone() };
        table.row([units::count(extent.offset), units::count(extent.len_bytes), class, places.join(" ")]);
    }
    if table.is_empty() { Ok(()) } else { table.lines().iter().try_for_each(|line| out.line(line)) }
}
