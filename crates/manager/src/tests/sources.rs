//! Rules about the crate's own sources: folders import each other in one direction, one module writes each table.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Production files: path below `src`, text without comments and unit tests.
fn sources() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let (mut folders, mut sources) = (vec![root.clone()], Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path: PathBuf = entry.unwrap().path();
            let name = path.strip_prefix(&root).unwrap().to_str().unwrap().replace('\\', "/");
            let is_test = ["tests", "rig.rs"].iter().any(|part| name.contains(part));
            if path.is_dir() && !is_test {
                folders.push(path);
            } else if name.ends_with(".rs") && !is_test && name != "lib.rs" {
                let text = std::fs::read_to_string(&path).unwrap();
                let code = text.split("mod tests {").next().unwrap();
                let code: Vec<&str> = code.lines().map(|line| line.split("//").next().unwrap()).collect();
                sources.push((name, code.join("\n")));
            }
        }
    }
    assert!(sources.len() > 40, "the sources were not found");
    sources.sort();
    sources
}

/// The word at the start of `text`.
fn word(text: &str) -> &str {
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    &text[..end]
}

fn module(path: &str) -> &str {
    path.split(['/', '.']).next().unwrap()
}

#[test]
fn folders_import_each_other_in_one_direction() {
    let mut imports: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let sources = sources();
    for (path, code) in &sources {
        let own = module(path);
        let grouped = code.split("use crate::{").skip(1).flat_map(|group| {
            let group = group.split(';').next().unwrap();
            group.split([',', ' ', '\n']).map(|import| word(import.trim_start_matches('{')))
        });
        let named = code.split("crate::").skip(1).map(word).chain(grouped);
        let others = named.filter(|other| *other != own && sources.iter().any(|(path, _)| module(path) == *other));
        imports.entry(own.to_string()).or_default().extend(others.map(String::from));
    }
    // Takes away modules that import nothing that is left, until nothing or a circle is left.
    while let Some(lowest) = imports.iter().find(|(_, imports)| imports.is_empty()).map(|(name, _)| name.clone()) {
        imports.remove(&lowest);
        imports.values_mut().for_each(|imports| _ = imports.remove(&lowest));
    }
    assert!(imports.is_empty(), "these modules import each other in a circle (or something in one): {imports:#?}");
}

#[test]
fn each_table_is_written_by_one_module() {
    let mut writers: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    // db/mod.rs makes the first rows of a new database.
    for (path, code) in sources().iter().filter(|(path, _)| path != "db/mod.rs") {
        for (verb, skip) in [("INSERT ", true), ("UPDATE ", false), ("DELETE FROM ", false)] {
            for text in code.split(verb).skip(1) {
                let table = match skip {
                    true => word(text.split_once("INTO ").map_or("", |(_, table)| table)),
                    false => word(text),
                };
                // `ON CONFLICT DO UPDATE SET`
                if !matches!(table, "" | "SET") {
                    writers.entry(table.to_string()).or_default().insert(path.clone());
                }
            }
        }
    }
    assert!(writers.len() >= 20, "the statements were not found: {writers:?}");
    writers.retain(|_, paths| paths.len() > 1);
    assert!(writers.is_empty(), "several modules write these tables: {writers:#?}");
}
