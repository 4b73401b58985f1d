//! `tessera ls`, `stat`, `versions`.

use super::pool;
use super::target::{store_path, store_paths};
use crate::args::{LsArgs, StatArgs, VersionsArgs};
use crate::exit::Outcome;
use crate::remote::{Item, Store};
use crate::term::{Out, Table, name_text, units};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use tessera_client::path::StorePath;
use tessera_client::similarity::Similarity;
use tessera_wire::meta::VersionInfo;
use tessera_wire::{InodeKind, hex};

/// `tessera ls`.
///
/// # Errors
/// A path does not exist, or the manager cannot be reached.
pub fn ls(args: LsArgs) -> Outcome {
    let out = args.common.output;
    let paths = store_paths(&args.paths)?;
    let store = Store::connect(&args.common)?;
    let ran = pool::each(out, &paths, |path| {
        let item = store.item(path)?;
        if item.kind() != InodeKind::Directory {
            return Listing::new(out, args.long).print(&[item], &path_text(path));
        }
        if paths.len() > 1 && !args.recursive && !out.json {
            out.line(format!("{}:", path_text(path)))?;
        }
        directory(&store, out, path, &args)
    });
    ran.outcome()
}

/// Prints directories as they arrive, without waiting for the whole tree, and a long one page by page.
fn directory(store: &Store, out: Out, path: &StorePath, args: &LsArgs) -> Outcome {
    let mut todo = vec![path.clone()];
    while let Some(path) = todo.pop() {
        let (mut listing, mut below) = (Listing::new(out, args.long), Vec::new());
        for (page, number) in store.item_pages(&path)?.zip(0u64..) {
            let page = page?;
            if number == 0 && args.recursive && !out.json {
                out.line(format!("{}:", path_text(&path)))?;
            }
            if args.recursive {
                let directories = page.iter().filter(|item| item.kind() == InodeKind::Directory);
                below.extend(directories.map(|item| item.path.clone()));
            }
            listing.print(&page, "")?;
        }
        todo.extend(below.into_iter().rev());
        if args.recursive && !out.json && !todo.is_empty() {
            out.line("")?;
        }
    }
    Ok(())
}

fn path_text(path: &StorePath) -> String {
    let names = path.components().iter().map(|n| name_text(n)).collect::<Vec<_>>();
    format!("{}/{}", tessera_client::path::SCHEME, names.join("/"))
}

/// The entries of one directory, which come in pages.
struct Listing {
    out: Out,
    /// With `-l`.
    table: Option<Table>,
}

impl Listing {
    fn new(out: Out, long: bool) -> Self {
        let table = || Table::new("lrrll", &["mode", "version", "size", "modified (UTC)", "name"]);
        Listing { out, table: long.then(table) }
    }

    /// Prints a page; `whole` is shown instead of a name unless it is empty.
    fn print(&mut self, items: &[Item], whole: &str) -> Outcome {
        if self.out.json {
            return self.out.documents(items.iter().map(document));
        }
        let name = |item: &Item| match whole {
            "" => item.path.name().map(name_text).unwrap_or_default(),
            whole => whole.to_string(),
        };
        let Some(table) = &mut self.table else {
            let mark = |item: &Item| if item.kind() == InodeKind::Directory { "/" } else { "" };
            return self.out.lines(items.iter().map(|item| format!("{}{}", name(item), mark(item))));
        };
        items.iter().for_each(|item| table.row(long_row(item, name(item))));
        if items.is_empty() { Ok(()) } else { self.out.lines(table.take_lines()) }
    }
}

fn long_row(item: &Item, name: String) -> [String; 5] {
    let arrow = match item.kind() {
        InodeKind::Symlink => format!(" -> {}", name_text(&item.symlink_target)),
        InodeKind::Directory => "/".into(),
        _ => String::new(),
    };
    let is_file = item.kind() == InodeKind::File;
    [
        units::mode(letter(item.kind()), item.mode),
        if is_file { item.version_number.to_string() } else { String::new() },
        if is_file { units::count(item.size_bytes) } else { String::new() },
        units::time(item.mtime_ns),
        format!("{name}{arrow}"),
    ]
}

/// The letter of `ls -l` for a kind, by the kind's number.
fn letter(kind: InodeKind) -> char {
    char::from(b"?-dlpscb"[kind as usize])
}

fn kind_name(kind: InodeKind) -> String {
    units::enum_name(kind.as_str_name(), "INODE_KIND_")
}

/// An inode as JSON (docs/config.md, section 4).
fn document(item: &Item) -> Value {
    let mut value = json!({
        "path": item.path.to_string(),
        "kind": kind_name(item.kind()),
        "size_bytes": item.size_bytes,
        "mode": format!("{:04o}", item.mode),
        "uid": item.uid,
        "gid": item.gid,
        "nlink": item.nlink,
        "mtime": units::rfc3339(item.mtime_ns),
        "ctime": units::rfc3339(item.ctime_ns),
        "ino": item.ino,
        "version": item.version,
        "version_number": item.version_number,
    });
    if item.kind() == InodeKind::Symlink {
        value["target"] = String::from_utf8_lossy(&item.symlink_target).into();
    }
    if item.path.components().iter().any(|name| std::str::from_utf8(name).is_err()) {
        value["path_hex"] = hex(&item.path.components().join(&b'/')).into();
    }
    value
}

/// `tessera stat`.
///
/// # Errors
/// A path does not exist, or the manager cannot be reached.
pub fn stat(args: StatArgs) -> Outcome {
    let out = args.on.common.output;
    let paths = store_paths(&args.on.paths)?;
    let store = Store::connect(&args.on.common)?;
    let ran = pool::each(out, paths.iter().enumerate(), |(i, path)| {
        let item = store.item(path)?;
        let hints = store.hints(path)?;
        if out.json {
            let mut value = document(&item);
            value["hints"] = json!(hints.into_iter().collect::<BTreeMap<_, _>>());
            return out.document(&value);
        }
        if i > 0 {
            out.line("")?;
        }
        describe(out, &item, &hints)
    });
    ran.outcome()
}

fn describe(out: Out, item: &Item, hints: &[(String, String)]) -> Outcome {
    let row = |name: &str, value: String| out.line(format!("{name:<10} {value}"));
    row("path", path_text(&item.path))?;
    row("kind", kind_name(item.kind()))?;
    if item.kind() == InodeKind::Symlink {
        row("target", name_text(&item.symlink_target))?;
    }
    if item.kind() == InodeKind::File {
        row("size", format!("{} ({} bytes)", units::bytes(item.size_bytes), units::count(item.size_bytes)))?;
        row("version", format!("{} (id {})", item.version_number, item.version))?;
    }
    row("mode", format!("{} ({:04o})", units::mode(letter(item.kind()), item.mode), item.mode))?;
    row("owner", format!("uid {}, gid {}", item.uid, item.gid))?;
    row("links", item.nlink.to_string())?;
    row("modified", format!("{} UTC", units::time(item.mtime_ns)))?;
    row("changed", format!("{} UTC", units::time(item.ctime_ns)))?;
    row("inode", item.ino.to_string())?;
    let set: Vec<String> = hints.iter().map(|(n, v)| format!("{n}={v}")).collect();
    row("policy", if set.is_empty() { "all defaults (tessera policy get shows them)".into() } else { set.join(" ") })
}

/// `tessera versions`.
///
/// # Errors
/// A path does not exist, or the manager cannot be reached.
pub fn versions(args: VersionsArgs) -> Outcome {
    let out = args.common.output;
    let path = store_path(args.path.as_ref())?;
    let store = Store::connect(&args.common)?;
    let versions: Vec<(VersionInfo, Option<Similarity>)> = match args.similarity {
        true => store.similarity(&path)?.into_iter().map(|s| (s.version, Some(s))).collect(),
        false => store.versions(&path)?.into_iter().map(|version| (version, None)).collect(),
    };
    let (mut align, mut headings) = ("rrrrl", vec!["number", "id", "size", "new bytes", "committed (UTC)"]);
    if args.similarity {
        align = "rrrrlrr";
        headings.extend(["in the one before", "in all before"]);
    }
    let mut table = Table::new(align, &headings);
    for (v, similarity) in &versions {
        if out.json {
            let mut document = json!({
                "version": v.version, "number": v.number, "size_bytes": v.size_bytes,
                "committed": units::rfc3339(v.committed_ns), "new_bytes": v.new_bytes,
            });
            if let Some(similarity) = similarity {
                document["similarity"] = json!(similarity);
            }
            out.document(&document)?;
        }
        let mut row = vec![
            v.number.to_string(),
            v.version.to_string(),
            units::count(v.size_bytes),
            units::count(v.new_bytes),
            units::time(v.committed_ns),
        ];
        let parts =
            similarity.iter().flat_map(|s| [s.in_previous_bytes, s.in_all_bytes].map(|part| (part, s.data_bytes)));
        row.extend(parts.map(|(part, whole)| units::percent(part, whole)));
        table.row(row);
    }
    if out.json { Ok(()) } else { out.table(&table) }
}
