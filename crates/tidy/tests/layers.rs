//! Which crate may use which, and that each says what it is for.

use std::fs;
use tessera_tidy::root;

/// The layers from the lowest to the highest. A crate may depend only on crates of lower layers. A new crate takes its
/// place here before it exists, so that its first commit already obeys.
const LAYERS: &[(&str, &[&str])] = &[
    ("tools of the code itself", &["failpoint", "interleave", "knobs", "tidy"]),
    ("primitives", &["accel", "disk", "pagesum", "policy", "wire"]),
    ("index, sockets", &["cona", "consensus", "hashgpu", "net"]),
    ("data on disks, coding of chunks", &["flash", "segment", "stripe"]),
    ("services", &["manager", "node"]),
    ("a cluster for tests", &["testkit"]),
    ("access", &["client"]),
    ("analysis", &["sampling"]),
    ("mount", &["mount"]),
    ("front ends of the kernel", &["fuse"]),
    ("programs", &["cli", "fuzz", "sim"]),
];

/// The table `[dependencies]` of a crate: the crates of this repository in it.
fn dependencies(name: &str) -> Option<Vec<String>> {
    let manifest = fs::read_to_string(root().join("crates").join(name).join("Cargo.toml")).ok()?;
    let table = manifest.split("\n[dependencies]\n").nth(1)?.split("\n[").next()?;
    let names = table.lines().filter_map(|line| line.strip_prefix("tessera-"));
    Some(names.map(|line| line.split(['.', ' ', '=']).next().unwrap_or_default().to_string()).collect())
}

#[test]
fn crates_depend_only_on_lower_layers() {
    for (layer, (title, crates)) in LAYERS.iter().enumerate() {
        for name in *crates {
            for needed in dependencies(name).unwrap_or_default() {
                let lower = LAYERS[..layer].iter().any(|(_, crates)| crates.contains(&needed.as_str()));
                assert!(lower, "{name} ({title}) must not depend on {needed}: it is not in a lower layer");
            }
        }
    }
}

#[test]
fn every_crate_has_a_layer() {
    for entry in fs::read_dir(root().join("crates")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let layers = LAYERS.iter().filter(|(_, crates)| crates.contains(&name.as_str())).count();
        assert_eq!(layers, 1, "crates/{name} stands in {layers} layers; give it one in crates/tidy/tests/layers.rs");
        assert!(dependencies(&name).is_some(), "crates/{name}/Cargo.toml has no [dependencies]");
    }
}

#[test]
fn every_crate_says_what_it_is_for() {
    for name in LAYERS.iter().flat_map(|(_, crates)| crates.iter()) {
        let Ok(lib) = fs::read_to_string(root().join("crates").join(name).join("src/lib.rs")) else { continue };
        let opening = lib.lines().take_while(|l| l.starts_with("//!")).count();
        assert!(opening >= 4, "{name}/src/lib.rs must open with a paragraph on what the crate is for");
    }
}
