//! The command line as a user sees it: output and exit codes.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn cona(dir: &Path, words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_cona")).arg("-d").arg(dir).args(words).output().unwrap()
}

/// Output of a command that succeeds.
fn said(dir: &Path, words: &[&str]) -> String {
    let output = cona(dir, words);
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Exit code and message of a command that fails.
fn refused(dir: &Path, words: &[&str]) -> (i32, String) {
    let output = cona(dir, words);
    (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn records_are_put_read_scanned_and_removed() {
    let parent = tempfile::tempdir().unwrap();
    let dir = &parent.path().join("store");
    let (code, why) = refused(dir, &["get", "stone"]);
    assert!(code == 1 && why.contains("no CONA store"), "{code}: {why}");
    for (key, value) in [("stone:red", "12"), ("stone:blue", "7"), ("glue", "1"), ("zinc", "3")] {
        assert_eq!(said(dir, &["put", key, value]), "");
    }
    let mut piped = Command::new(env!("CARGO_BIN_EXE_cona"));
    let mut child = piped.arg("-d").arg(dir).args(["put", "piped"]).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"two\nlines").unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(said(dir, &["get", "piped"]), "two\nlines\n");
    assert_eq!(said(dir, &["del", "glue"]), "");
    assert_eq!(refused(dir, &["get", "glue"]), (2, "cona: \"glue\" is not there\n".into()));
    assert_eq!(said(dir, &["scan", "--prefix", "stone:"]), "stone:blue\t7\nstone:red\t12\n");
    assert_eq!(said(dir, &["scan", "--from", "q", "--to", "stone:red", "--keys"]), "stone:blue\n");
    assert_eq!(said(dir, &["scan", "--limit", "1"]), "piped\ttwo\\nlines\n");
    let (code, why) = refused(dir, &["put", &"k".repeat(1025), "v"]);
    assert!(code == 1 && why.contains("at most 1024"), "{why}");
}

/// Bytes of the cells and value files of a store.
fn bytes_of(dir: &Path) -> u64 {
    let files = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let kept = files.filter(|path| path.extension().is_some_and(|e| e == "cell" || e == "values"));
    kept.map(|path| path.metadata().unwrap().len()).sum()
}

#[test]
fn figures_checks_copies_and_rates() {
    let parent = tempfile::tempdir().unwrap();
    let (dir, copy) = (&parent.path().join("store"), parent.path().join("copy"));
    (0..20).for_each(|i| drop(said(dir, &["put", &format!("k{i}"), "v"])));
    said(dir, &["put", "k3", &"v".repeat(2000)]);
    said(dir, &["compact"]);
    said(dir, &["put", "k3", "v"]);
    said(dir, &["put", "gone", "v"]);
    said(dir, &["del", "gone"]);
    let did = said(dir, &["compact"]);
    let of = |what: &str| did.lines().find_map(|line| line.strip_prefix(what)).unwrap().trim().to_owned();
    assert!(of("cells") == "2 -> 1" && of("records") == "22 -> 20", "{did}");
    let number = |text: &str| text.parse::<u64>().unwrap();
    let (before, after) = of("bytes").split_once(" -> ").map(|(a, b)| (number(a), number(b))).unwrap();
    assert!(after == bytes_of(dir) && before > after + 2000, "{did}: {} bytes are there", bytes_of(dir));
    assert!(of("written").ends_with(" bytes") && of("written") != "0 bytes", "{did}");
    let again = said(dir, &["compact"]);
    assert!(again.contains("cells    1 -> 1") && again.contains("written  0 bytes"), "{again}");
    let stats = said(dir, &["stats"]);
    assert!(stats.contains("records in cells    20 (0 deletes)") && stats.contains("index and filter"), "{stats}");
    assert!(said(dir, &["verify"]).starts_with("1 cells, 20 records"));
    said(dir, &["checkpoint", copy.to_str().unwrap()]);
    assert_eq!(said(&copy, &["get", "k7"]), "v\n");
    let bench = said(dir, &["bench", "--records", "2000", "--value-bytes", "50"]);
    for line in
        ["put  ", "get, present", "get, absent", "pages read, present", "index and filter", "write amplification"]
    {
        assert!(bench.contains(line), "{line} is missing: {bench}");
    }
    assert_eq!(said(dir, &["get", "k7"]), "v\n", "a benchmark touched what was stored");
    // Damage has its own exit code, and the message names the file.
    let cell = std::fs::read_dir(&copy).unwrap().map(|e| e.unwrap().path());
    let cell = cell.into_iter().find(|p| p.extension().is_some_and(|e| e == "cell")).unwrap();
    let mut bytes = std::fs::read(&cell).unwrap();
    bytes[100] ^= 1;
    std::fs::write(&cell, bytes).unwrap();
    let verified = cona(&copy, &["verify"]);
    let text = String::from_utf8(verified.stdout).unwrap();
    let name = cell.file_name().unwrap().to_str().unwrap();
    assert!(verified.status.code() == Some(1) && text.contains(name) && text.contains("1 damaged"), "{text}");
    let (code, why) = refused(&copy, &["get", "k7"]);
    assert!(code == 1 && why.contains(name), "{why}");
}
