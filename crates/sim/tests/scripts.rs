//! Golden scripts (`tests/scripts/*.txt`): commands to a cluster, and their results.
//!
//! `REWRITE_SCRIPTS=1` rewrites them with the actual results; review the difference.

use tessera_sim::world::script::play;

#[test]
fn every_script_comes_out_as_it_is_written() {
    let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scripts");
    let mut paths: Vec<_> = std::fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(paths.len() >= 8, "scripts are missing");
    let mut wrong = Vec::new();
    for path in paths {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let written = std::fs::read_to_string(&path).unwrap();
        let played = play(&written).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(!played.contains("BROKEN"), "{name} breaks a promise:\n{played}");
        if played == written {
            continue;
        }
        match std::env::var_os("REWRITE_SCRIPTS") {
            Some(_) => std::fs::write(&path, played).unwrap(),
            None => wrong.push(format!("--- {name} is written so:\n{written}\n--- and comes out so:\n{played}")),
        }
    }
    assert!(wrong.is_empty(), "{}\nREWRITE_SCRIPTS=1 rewrites them", wrong.join("\n"));
}

/// A script with a wrong result is reported.
#[test]
fn a_wrong_script_does_not_pass() {
    let script = "cluster nodes=4 m=1\nput a 5000 ec:2+1\n  stored, and the moon is of cheese\nget a\n";
    let played = play(script).unwrap();
    assert!(played.contains("  stored;") && !played.contains("cheese"), "{played}");
    assert_eq!(play(&played).unwrap(), played);
    assert!(play("fly to the moon\n").unwrap_err().contains("line 1"));
    assert!(play("put a 1 none\n").unwrap_err().contains("no cluster"));
}
