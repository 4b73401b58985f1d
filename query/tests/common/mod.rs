//! Runs the program on files of a directory.

use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};

/// Runs the program in a directory.
pub fn run(directory: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tessera-query"));
    command.args(arguments).current_dir(directory).env_remove("TESSERA_MANAGER");
    command.output().expect("the program starts")
}

/// The answer as JSON.
pub fn ask(directory: &Path, arguments: &[&str]) -> Value {
    let mut all = arguments.to_vec();
    all.push("--json");
    let output = run(directory, &all);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON on stdout")
}

/// The exit code, and what stderr says.
#[allow(dead_code, reason = "some tests refuse nothing")]
pub fn fails(directory: &Path, arguments: &[&str]) -> (i32, String) {
    let output = run(directory, arguments);
    assert!(output.stdout.is_empty(), "{arguments:?} printed an answer");
    (output.status.code().expect("it ended by itself"), String::from_utf8_lossy(&output.stderr).into_owned())
}
