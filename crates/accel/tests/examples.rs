//! The numbered examples are run, not only compiled: what the README points at works.

use std::path::PathBuf;
use std::process::Command;

/// What the example called `name` prints. `cargo test` builds examples beside tests.
fn run(name: &str, words: &[&str]) -> String {
    let test = std::env::current_exe().unwrap();
    let built = test.parent().and_then(|deps| deps.parent()).unwrap().join("examples").join(name);
    let missing = "the example is not built: `cargo test -p tessera-accel` without --test builds it";
    let run = Command::new(&built).args(words).env("TESSERA_CALIBRATION", "").output().expect(missing);
    let said = String::from_utf8_lossy(&run.stdout).into_owned();
    assert!(run.status.success(), "{name}: {said}{}", String::from_utf8_lossy(&run.stderr));
    said
}

#[test]
fn every_numbered_example_runs() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("examples");
    let mut names: Vec<String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path().file_stem().unwrap().to_string_lossy().into_owned())
        .filter(|name| name.starts_with(|c: char| c.is_ascii_digit()))
        .collect();
    names.sort();
    assert!(names.len() >= 5, "{names:?}");
    for name in names.iter().filter(|name| !name.starts_with("05")) {
        assert!(!run(name, &[]).is_empty(), "{name} says nothing");
    }
}

/// P10 as a user sees it: a real file, encoded, lost in part and rebuilt on each device, compared with the reference.
#[test]
fn a_real_file_is_coded_on_each_device_and_compared() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/kernels/blake3.cu");
    let said = run("05-a-file-on-each-device", &[file]);
    for device in ["cpu", "emulated:1"] {
        let line = said.lines().find(|line| line.starts_with(&format!("{device}: "))).unwrap_or_default();
        assert!(line.contains("equal bytes"), "{said}");
    }
    // Where there is no GPU it says why.
    assert!(said.lines().any(|line| line.starts_with("cuda: ")), "{said}");
}
