//! The house rules that a machine can check: floors, file lengths, unsafe code, promises that somebody keeps.

use std::fs;
use std::path::{Path, PathBuf};

/// Crates from the ground up; a crate may depend only on those before it.
const FLOORS: &[&[&str]] = &[
    &["accel", "disk", "failpoint", "policy", "wire"],
    &["cona", "net"],
    &["segment"],
    &["manager", "node"],
    &["client"],
    &["fuse"],
    &["cli", "sim"],
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn sources() -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    let mut folders = vec![root().join("crates")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap().map(|e| e.unwrap().path()) {
            match entry.extension() {
                _ if entry.is_dir() => folders.push(entry),
                Some(ext) if ext == "rs" => found.push((entry.clone(), fs::read_to_string(entry).unwrap())),
                _ => {}
            }
        }
    }
    assert!(found.len() > 50, "the sources were not found");
    found
}

#[test]
fn lower_floors_never_import_upper_ones() {
    for (floor, crates) in FLOORS.iter().enumerate() {
        for name in *crates {
            let manifest = fs::read_to_string(root().join("crates").join(name).join("Cargo.toml")).unwrap();
            let needs = manifest.split("[dependencies]").nth(1).unwrap().split("\n[").next().unwrap().to_string();
            for upper in FLOORS[floor..].iter().flat_map(|f| f.iter()) {
                assert!(!needs.contains(&format!("tessera-{upper}.")), "{name} must not depend on {upper}");
            }
        }
    }
    let on_a_floor: usize = FLOORS.iter().map(|f| f.len()).sum();
    assert_eq!(fs::read_dir(root().join("crates")).unwrap().count(), on_a_floor, "a crate has no floor");
}

#[test]
fn every_crate_says_what_lives_there() {
    for name in FLOORS.iter().flat_map(|f| f.iter()).filter(|n| **n != "cli") {
        let lib = fs::read_to_string(root().join("crates").join(name).join("src/lib.rs")).unwrap();
        let opening = lib.lines().take_while(|l| l.starts_with("//!")).count();
        assert!(opening >= 4, "{name}/src/lib.rs must open with a paragraph on its job");
    }
}

#[test]
fn files_stay_readable() {
    for (path, text) in sources() {
        let lines = text.lines().count();
        assert!(lines <= 1000, "{}: {lines} lines; split it by idea", path.display());
    }
}

#[test]
fn unsafe_code_lives_in_accel_alone_and_says_why() {
    for (path, text) in sources() {
        let blocks = text.lines().filter(|l| l.contains(concat!("unsafe ", "{"))).count();
        let reasons = text.lines().filter(|l| l.contains("SAFETY:")).count();
        assert!(blocks == 0 || path.components().any(|c| c.as_os_str() == "accel"), "unsafe in {}", path.display());
        assert!(reasons >= blocks, "{}: {blocks} unsafe blocks, {reasons} SAFETY lines", path.display());
    }
}

#[test]
fn every_promise_is_cited_where_it_is_kept_and_where_it_is_tested() {
    let word = |text: &str, promise: &str| {
        text.match_indices(promise).any(|(at, _)| !text[at + promise.len()..].starts_with(|c: char| c.is_ascii_digit()))
    };
    for promise in (1..=14).map(|n| format!("P{n}")) {
        let is_test =
            |path: &Path, text: &str| path.components().any(|c| c.as_os_str() == "tests") || text.contains("#[test]");
        let kept =
            sources().iter().any(|(p, t)| !p.components().any(|c| c.as_os_str() == "tests") && word(t, &promise));
        let tested = sources().iter().any(|(p, t)| is_test(p, t) && word(t, &promise));
        assert!(kept && tested, "{promise}: kept {kept}, tested {tested}");
    }
}
