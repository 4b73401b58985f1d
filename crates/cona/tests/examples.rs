//! Runs the numbered examples, so that what the README refers to works.

use std::path::PathBuf;
use std::process::Command;

/// Output of the example called `name`. `cargo test` builds examples along with tests.
fn run(name: &str) -> String {
    let test = std::env::current_exe().unwrap();
    let built = test.parent().and_then(|deps| deps.parent()).unwrap().join("examples").join(name);
    let missing = "the example is not built: `cargo test -p tessera-cona` without --test builds it";
    let run = Command::new(&built).output().expect(missing);
    let said = String::from_utf8_lossy(&run.stdout).into_owned();
    assert!(run.status.success(), "{name}: {said}{}", String::from_utf8_lossy(&run.stderr));
    said
}

#[test]
fn every_numbered_example_runs() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("examples");
    let names = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut names: Vec<String> = names.map(|path| path.file_stem().unwrap().to_string_lossy().into_owned()).collect();
    names.sort();
    let said: Vec<String> = names.iter().map(|name| run(name)).collect();
    let has = [
        ("01-put-get", "stone:blue = 7"),
        ("02-batch-snapshot", "b had 0 before and has 40 now"),
        ("03-backup-verify", "10000 records"),
        ("04-paper-shape", "paper: "),
    ];
    assert_eq!(names, has.map(|(name, _)| name), "an example without a line here, or a line without one");
    for ((name, expected), said) in has.iter().zip(&said) {
        assert!(said.contains(expected), "{name} said: {said}");
    }
}
