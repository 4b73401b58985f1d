//! What the project depends on: licences, sources, banned crates and wildcard versions, as deny.toml says. cargo-deny reads the same
//! file and checks more (`make deny`); this test needs no tool but cargo.

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::Command;
use tessera_tidy::root;

/// The strings of a list in deny.toml.
fn rules(section: &str, list: &str) -> BTreeSet<String> {
    let text = fs::read_to_string(root().join("deny.toml")).expect("deny.toml");
    let table: toml::Table = text.parse().expect("deny.toml is TOML");
    let list = table[section][list].as_array().expect("a list");
    let text = |entry: &toml::Value| entry.get("name").unwrap_or(entry).as_str().map(String::from).expect("a string");
    list.iter().map(text).collect()
}

/// The packages that a build on Linux takes in, with those of the repository.
fn packages() -> Vec<Value> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let platform = "--filter-platform=x86_64-unknown-linux-gnu";
    let done =
        Command::new(cargo).args(["metadata", "--locked", "--format-version=1", platform]).current_dir(root()).output();
    let done = done.expect("cargo runs");
    assert!(done.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&done.stderr));
    let metadata: Value = serde_json::from_slice(&done.stdout).expect("cargo writes JSON");
    let packages = metadata["packages"].as_array().expect("packages").clone();
    assert!(packages.len() > 100, "{} packages", packages.len());
    packages
}

fn named(package: &Value) -> String {
    format!("{} {}", package["name"].as_str().unwrap_or_default(), package["version"].as_str().unwrap_or_default())
}

/// Licences in an expression (SPDX): `OR`, `AND`, parentheses; `/` as it was written before.
struct Expression<'a> {
    words: std::iter::Peekable<std::vec::IntoIter<String>>,
    allowed: &'a BTreeSet<String>,
}

fn is_allowed(expression: &str, allowed: &BTreeSet<String>) -> bool {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<String> = spaced.split_whitespace().map(String::from).collect();
    let mut expression = Expression { words: words.into_iter().peekable(), allowed };
    expression.alternatives() && expression.words.next().is_none()
}

impl Expression<'_> {
    fn takes(&mut self, word: &str) -> bool {
        self.words.next_if(|next| next == word).is_some()
    }

    fn alternatives(&mut self) -> bool {
        let mut any = self.together();
        while self.takes("OR") {
            any |= self.together();
        }
        any
    }

    fn together(&mut self) -> bool {
        let mut all = self.one();
        while self.takes("AND") {
            all &= self.one();
        }
        all
    }

    fn one(&mut self) -> bool {
        if self.takes("(") {
            let inner = self.alternatives();
            return self.takes(")") && inner;
        }
        let mut licence = self.words.next().unwrap_or_default();
        if self.takes("WITH") {
            licence = format!("{licence} WITH {}", self.words.next().unwrap_or_default());
        }
        self.allowed.contains(&licence)
    }
}

#[test]
fn expressions_of_licences_are_understood() {
    let allowed: BTreeSet<String> =
        ["MIT", "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "Zlib"].map(String::from).into();
    for good in [
        "MIT",
        "MIT/Apache-2.0",
        "GPL-3.0 OR MIT",
        "MIT AND Zlib",
        "(GPL-3.0 OR MIT) AND Zlib",
        "Apache-2.0 WITH LLVM-exception",
    ] {
        assert!(is_allowed(good, &allowed), "{good}");
    }
    for bad in
        ["", "GPL-3.0", "MIT AND GPL-3.0", "MIT WITH Commons-Clause", "(MIT OR Zlib) AND GPL-3.0", "(MIT", "MIT MIT"]
    {
        assert!(!is_allowed(bad, &allowed), "{bad}");
    }
}

#[test]
fn dependencies_have_allowed_licences_and_none_is_banned() {
    let (licences, banned) = (rules("licenses", "allow"), rules("bans", "deny"));
    for package in packages() {
        let licence = package["license"].as_str().unwrap_or_default();
        assert!(
            is_allowed(licence, &licences),
            "{}: its licence {licence:?} is not allowed in deny.toml",
            named(&package)
        );
        let name = package["name"].as_str().unwrap_or_default();
        assert!(!banned.contains(name), "{name} is banned in deny.toml; `cargo tree -i {name}` says what brings it");
    }
}

#[test]
fn every_version_in_a_manifest_is_bounded() {
    for package in packages().iter().filter(|package| package["source"].is_null()) {
        for dependency in package["dependencies"].as_array().expect("dependencies") {
            let is_wild = dependency["req"] == "*" && dependency["path"].is_null();
            assert!(!is_wild, "{}: `{}` has no version", named(package), dependency["name"]);
        }
    }
}

/// Also those that other platforms need: the lock file names them all.
#[test]
fn dependencies_come_from_the_registry() {
    let lock = fs::read_to_string(root().join("Cargo.lock")).expect("Cargo.lock");
    let sources: Vec<&str> = lock.lines().filter_map(|line| line.strip_prefix("source = ")).collect();
    assert!(sources.len() > 100, "{} packages from elsewhere", sources.len());
    for source in &sources {
        assert!(source.trim_matches('"').starts_with("registry+"), "{source} is no registry");
        assert_eq!(*source, sources[0], "two registries");
    }
}

/// No error: two versions of a crate cost time and bytes, and go with the next release of what needs the older one.
#[test]
fn crates_in_two_versions_are_listed() {
    let mut versions: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for package in packages() {
        let text = |field: &str| package[field].as_str().unwrap_or_default().to_string();
        versions.entry(text("name")).or_default().insert(text("version"));
    }
    for (name, versions) in versions.iter().filter(|(_, versions)| versions.len() > 1) {
        println!("warning: {name} is there in the versions {versions:?}");
    }
}
