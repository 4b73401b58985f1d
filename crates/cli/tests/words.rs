//! Usage errors that need no cluster: each gets one line that names it, and the exit code for usage (P14).

mod common;

use common::{assert_refused, tessera};

#[test]
fn help_lists_every_command_and_every_exit_code() {
    let help = tessera(&["--help"]);
    assert_eq!(help.code, 0);
    let text = help.text();
    for word in [
        "up", "demo", "put", "get", "cat", "ls", "stat", "rm", "mv", "mkdir", "versions", "policy", "status", "node",
        "repair", "scrub", "gc", "manager", "accel", "flash",
    ] {
        assert!(text.contains(&format!("\n  {word} ")), "{word} is not in:\n{text}");
        let own = tessera(&[word, "--help"]);
        assert_eq!(own.code, 0, "{word}");
    }
    for code in ["  0  done", "  3  not found", "  5  corrupt", "  8  refused"] {
        assert!(text.contains(code), "{code} is not in:\n{text}");
    }
}

/// The options of `put` are a contract with scripts: this text changes only on purpose.
#[test]
fn the_help_of_put_is_as_it_was() {
    let text = tessera(&["put", "--help"]).text();
    for line in [
        "Usage: tessera put [OPTIONS] <SOURCE>... <TESS:/TARGET>",
        "  -r, --recursive",
        "  -p, --policy <NAME=VALUE>",
        "      --if-version <VERSION>",
        "  -j, --jobs <N>",
        "  -m, --manager <ADDR>",
        "  -q, --quiet",
        "      --json",
        "  tessera put -r ~/src tess:/backup",
    ] {
        assert!(text.contains(line), "{line} is not in:\n{text}");
    }
}

#[test]
fn words_that_are_none_are_usage_errors() {
    assert_eq!(tessera(&["frobnicate"]).code, 2);
    assert_eq!(tessera(&["put", "--colour", "a", "tess:/a"]).code, 2);
    assert_eq!(tessera(&["put", "one"]).code, 2);
    assert_eq!(tessera(&["up", "--nodes", "0"]).code, 2);
}

/// P14: unknown or malformed policies are refused before anything is opened or requested.
#[test]
fn policies_that_cannot_be_are_named_with_what_is_allowed() {
    for (policy, words) in [
        ("redundancy=ec:4+0", ["ec:4+0", "allowed"]),
        ("redundancy=ec:200+100", ["255", "allowed"]),
        ("redundancy=replica:1", ["replica:1", "none"]),
        ("chunking=fixed:1", ["fixed:1", "4K"]),
        ("chunking=cdc:1M..2M", ["four times", "allowed"]),
        ("lifetime=purge", ["purge", "replace:N"]),
        ("colour=red", ["colour", "redundancy"]),
        ("redundancy", ["redundancy", "NAME=VALUE"]),
    ] {
        let run = tessera(&["put", "--policy", policy, "Cargo.toml", "tess:/x"]);
        assert_refused(&run, 2, &words);
        let set = tessera(&["policy", "set", "tess:/x", policy]);
        assert_refused(&set, 2, &words);
    }
}

/// P14: paths that are invalid, escape, or have too long names.
#[test]
fn store_paths_that_cannot_be_are_named() {
    let long = format!("tess:/{}", "x".repeat(256));
    for (path, words) in [
        ("/no/scheme", vec!["/no/scheme", "tess:/"]),
        ("tess:/a/../b", vec!["'..'", "root"]),
        ("tess:..", vec!["'..'"]),
        (&long, vec!["256 bytes", "255"]),
    ] {
        for command in ["cat", "stat", "rm", "versions", "mkdir", "ls"] {
            assert_refused(&tessera(&[command, path]), 2, &words);
        }
        assert_refused(&tessera(&["put", "Cargo.toml", path]), 2, &words);
        assert_refused(&tessera(&["mv", path, "tess:/b"]), 2, &words);
    }
    assert_refused(&tessera(&["put", "", "tess:/x"]), 2, &["is not a path"]);
    assert_refused(&tessera(&["rm", "-r", "tess:/"]), 2, &["tess:/", "cannot be removed"]);
    assert_refused(&tessera(&["cat", "--range", "9..1", "tess:/a"]), 2, &["9..1"]);
}

/// P14: configuration by flag and by file.
#[test]
fn configuration_that_cannot_be_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("node.toml");
    std::fs::write(&file, "disks = ['d']\ncolour = 'red'\n").unwrap();
    let file = file.to_str().unwrap();
    let d = dir.path().join("d");
    let d = d.to_str().unwrap();
    // A daemon that is not refused ends with its stdin, so that the test fails instead of hanging.
    let tessera = |words: &[&str]| match words {
        ["up", ..] => tessera(words),
        words => tessera(&[words, &["--follow-stdin"]].concat()),
    };
    assert_refused(&tessera(&["node", "--config", file]), 2, &["node.toml line 2", "colour", "expected one of"]);
    assert_refused(&tessera(&["node", "--config", "/nowhere.toml"]), 3, &["/nowhere.toml"]);
    assert_refused(&tessera(&["node"]), 2, &["--disk"]);
    assert_refused(&tessera(&["manager"]), 2, &["--dir"]);
    assert_refused(&tessera(&["manager", "--dir", d, "--listen", "nowhere"]), 2, &["nowhere", "HOST:PORT"]);
    assert_refused(&tessera(&["manager", "--dir", d, "--set", "heartbeats=1"]), 2, &["heartbeats", "heartbeat_ms"]);
    assert_refused(&tessera(&["manager", "--dir", d, "--log-level", "loud"]), 2, &["loud", "debug"]);
    assert_refused(&tessera(&["node", "--disk", "/nowhere/d1"]), 3, &["/nowhere/d1", "make the directory"]);
    assert_refused(
        &tessera(&["up", "--quiet", "--listen", "127.0.0.1:65530", "--dir", d]),
        2,
        &["65530", "lower port"],
    );
    let foreign = dir.path().join("foreign");
    std::fs::create_dir(&foreign).unwrap();
    std::fs::write(foreign.join("thesis.tex"), "x").unwrap();
    let foreign = foreign.to_str().unwrap();
    assert_refused(&tessera(&["up", "--quiet", "--dir", foreign]), 8, &["thesis.tex", "empty directory"]);
    assert_refused(&tessera(&["manager", "--dir", foreign]), 8, &["thesis.tex", "empty directory"]);
    assert_refused(&tessera(&["manager", "--dir", d, "--set", "sweep_pages=0"]), 2, &["sweep_pages cannot be 0", "64"]);
    for words in [["manager", "--dir", file], ["up", "--dir", file]] {
        assert_refused(&tessera(&words), 6, &["node.toml", "not a directory"]);
    }
    assert_refused(&tessera(&["node", "--disk", file]), 6, &["node.toml", "not a directory"]);
}

#[test]
fn nobody_there_is_said_with_the_way_out_and_as_json() {
    let run = tessera(&["ls", "--quiet", "--wait", "0", "--manager", "127.0.0.1:1"]);
    assert_refused(&run, 4, &["127.0.0.1:1", "TESSERA_MANAGER"]);
    let run = tessera(&["ls", "--json", "--wait", "0", "--manager", "127.0.0.1:1"]);
    let error: serde_json::Value = serde_json::from_str(&run.stderr).unwrap();
    assert_eq!((run.code, error["error"]["exit"].as_u64()), (4, Some(4)));
    assert_eq!(error["error"]["code"], "unavailable");
    assert!(run.stdout.is_empty());
    for (list, words) in [("a:1,", "empty address"), ("a:1,b:2,a:1", "names a:1 twice"), ("", "no manager is named")] {
        assert_refused(&tessera(&["ls", "--quiet", "--manager", list]), 2, &[words]);
        assert_refused(&tessera(&["node", "--disk", "d", "--manager", list]), 2, &["--manager", words]);
    }
}

/// Programs get one line of JSON even when the arguments form no command.
#[test]
fn words_that_make_no_command_are_json_too() {
    for words in [&["ls", "--json", "--colour"][..], &["put", "--json"], &["frobnicate", "--json"]] {
        let run = tessera(words);
        let error: serde_json::Value = serde_json::from_str(&run.stderr).unwrap_or_else(|e| panic!("{e}: {run:?}"));
        assert_eq!((run.code, error["error"]["code"].as_str()), (2, Some("usage")), "{run:?}");
        assert!(!error["error"]["message"].as_str().unwrap().contains("Usage:"), "{run:?}");
    }
}

#[test]
fn policies_are_listed_for_people_and_programs() {
    assert!(tessera(&["policy", "list"]).text().contains("default auto:4+2"));
    let list = tessera(&["policy", "list", "--json"]).json();
    assert!(list.as_array().unwrap().iter().any(|h| h["name"] == "redundancy" && h["default"] == "auto:4+2"));
}

/// The program starts another one, which is not there: neither beside it nor in the search path.
#[test]
fn query_says_how_to_get_its_program() {
    let empty = tempfile::TempDir::new().unwrap();
    let alone = empty.path().join("tessera");
    std::fs::hard_link(env!("CARGO_BIN_EXE_tessera"), &alone)
        .or_else(|_| std::fs::copy(env!("CARGO_BIN_EXE_tessera"), &alone).map(drop))
        .unwrap();
    let run =
        std::process::Command::new(&alone).args(["query", "SELECT 1", "--json"]).env("PATH", "").output().unwrap();
    let said = String::from_utf8_lossy(&run.stderr).into_owned();
    assert_eq!(run.status.code(), Some(3), "{said}");
    assert!(said.contains("tessera-query is not installed; build it with `make query`"), "{said}");
    // With a program beside it, that one is started, with all arguments.
    std::os::unix::fs::symlink("/bin/echo", empty.path().join("tessera-query")).unwrap();
    let run = std::process::Command::new(&alone).args(["query", "SELECT 1", "--help", "-x"]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&run.stdout), "SELECT 1 --help -x\n");
}
