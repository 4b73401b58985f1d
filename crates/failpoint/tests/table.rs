//! The registry's behaviour, and that names, code and manifests agree.

use std::path::{Path, PathBuf};
use std::process::Command;

use tessera_failpoint::{ALL, activate, inherit, is_active};

const ONE: &str = "segment.ack_before_sync";
const OTHER: &str = "segment.keep_torn_tail";
const THIRD: &str = "segment.remove_before_sync";

#[test]
fn a_failpoint_is_active_while_a_guard_lives() {
    assert!(!is_active(ONE));
    let first = activate(ONE);
    let second = activate(ONE);
    assert!(is_active(ONE) && !is_active(OTHER));
    drop(first);
    assert!(is_active(ONE));
    drop(second);
    assert!(!is_active(ONE));
}

#[test]
fn a_panic_drops_the_guard() {
    let caught = std::panic::catch_unwind(|| {
        let _guard = activate(ONE);
        panic!("as a test that catches the mistake does");
    });
    assert!(caught.is_err() && !is_active(ONE));
}

#[test]
fn threads_have_registries_of_their_own_and_inherit_on_request() {
    let _guard = activate(ONE);
    std::thread::spawn(|| assert!(!is_active(ONE))).join().unwrap();
    let inherited = inherit();
    let started = std::thread::spawn(move || {
        inherited.enter();
        (is_active(ONE), is_active(OTHER))
    });
    assert_eq!(started.join().unwrap(), (true, false));
}

/// Runs itself again, because the variable counts for a whole process.
#[test]
fn the_environment_names_failpoints_of_all_threads() {
    const VARIABLE: &str = "TESSERA_FAILPOINTS";
    if std::env::var(VARIABLE).is_ok() {
        assert!(std::thread::spawn(|| is_active(ONE) && is_active(OTHER) && !is_active(THIRD)).join().unwrap());
        return;
    }
    let this = "the_environment_names_failpoints_of_all_threads";
    let again = |names: &str| {
        let mut test = Command::new(std::env::current_exe().unwrap());
        test.args([this, "--exact"]).env(VARIABLE, names).output().unwrap().status.success()
    };
    assert!(again(&format!("{ONE},{OTHER}")));
    assert!(!again(ONE));
    assert!(!again("segment.nonsense"));
}

#[test]
#[should_panic(expected = "no failpoint is called `segment.nonsense`")]
fn an_unknown_name_cannot_be_asked_for() {
    let _ = is_active("segment.nonsense");
}

#[test]
#[should_panic(expected = "no failpoint is called `segment.nonsense`")]
fn an_unknown_name_cannot_be_activated() {
    let _ = activate("segment.nonsense");
}

#[test]
fn the_table_is_sorted_and_says_what_goes_wrong() {
    assert!(ALL.is_sorted_by(|a, b| a.0 < b.0), "sort the table; no name twice");
    for (name, effect) in ALL {
        let (owner, mistake) = name.split_once('.').expect("crate, dot, mistake");
        assert!(crates().join(owner).is_dir(), "{name}: no crate {owner}");
        assert!(!mistake.is_empty() && effect.len() > 20, "{name}");
    }
}

fn crates() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Rust files of all other crates.
fn sources() -> Vec<(PathBuf, String)> {
    let (mut folders, mut sources) = (vec![crates()], Vec::new());
    while let Some(folder) = folders.pop() {
        for path in std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() && !path.ends_with("failpoint") && !path.ends_with("target") {
                folders.push(path);
            } else if path.extension().is_some_and(|ext| ext == "rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                sources.push((path, text));
            }
        }
    }
    sources
}

/// A misspelt name in code that no test reaches would never panic.
#[test]
fn every_name_in_the_code_is_in_the_table() {
    for (path, text) in sources() {
        for call in ["failpoint::is_active(\"", "failpoint::activate(\""] {
            for (at, _) in text.match_indices(call) {
                let name = text[at + call.len()..].split('"').next().unwrap();
                assert!(ALL.iter().any(|(known, _)| *known == name), "{}: {name}", path.display());
            }
        }
    }
}

/// Release builds have no failpoints: nothing that the binary needs, but for tests, turns the feature on.
#[test]
fn the_binary_is_built_without_failpoints() {
    let features = |package: &str, edges: &str| {
        let mut tree = Command::new(env!("CARGO"));
        tree.args([
            "tree",
            "--offline",
            "--package",
            package,
            "--edges",
            edges,
            "--format",
            "{p} [{f}]",
            "--prefix",
            "none",
        ]);
        let output = tree.current_dir(crates().join("..")).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && text.contains("tessera-"), "{}", String::from_utf8_lossy(&output.stderr));
        text.lines().filter(|l| l.contains("tessera-failpoint ")).any(|l| l.contains("[active]"))
    };
    assert!(!features("tessera-cli", "normal,build"), "the binary's dependencies turn on failpoints");
    // With its tests: failpoints would be in the binary that they start.
    assert!(!features("tessera-cli", "normal,build,dev"), "the binary's own dev-dependencies turn on failpoints");
    assert!(features("tessera-segment", "normal,build,dev"), "the check sees a feature that is on");
}
