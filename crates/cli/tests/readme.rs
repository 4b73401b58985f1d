//! README's section "Use": runs every command in order, as a reader would type it.

mod common;

use common::{TESSERA, run, tree};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use tempfile::TempDir;

/// A process that runs until the test ends.
struct Running {
    child: Child,
    /// Stays open: a command ends when its output has no reader.
    _out: BufReader<ChildStdout>,
}

impl Drop for Running {
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let _ = self.child.wait();
    }
}

/// The reader's environment: a home with sources, a model, a database that can be dumped, and a store once it is
/// started.
struct Reader {
    home: TempDir,
    manager: String,
    /// In the order of their start; dropped in reverse.
    running: Vec<Running>,
}

impl Drop for Reader {
    fn drop(&mut self) {
        while self.running.pop().is_some() {}
    }
}

impl Reader {
    fn new() -> Reader {
        let home = tempfile::tempdir().unwrap();
        let at = |name: &str| home.path().join(name);
        for folder in ["src/deep", "bin", "mnt"] {
            fs::create_dir_all(at(folder)).unwrap();
        }
        fs::write(at("src/main.c"), tree::bytes(1, 300_000)).unwrap();
        fs::write(at("src/deep/notes"), "notes\n").unwrap();
        fs::write(at("model.bin"), tree::bytes(2, 3 << 20)).unwrap();
        fs::write(at("bin/pg_dump"), "#!/bin/sh\necho \"create table $1();\"\n").unwrap();
        fs::set_permissions(at("bin/pg_dump"), fs::Permissions::from_mode(0o755)).unwrap();
        std::os::unix::fs::symlink(TESSERA, at("bin/tessera")).unwrap();
        Reader { home, manager: String::new(), running: Vec::new() }
    }

    fn shell(&self, line: &str) -> Command {
        let path = format!("{}/bin:{}", self.home.path().display(), std::env::var("PATH").unwrap_or_default());
        let mut command = Command::new("/bin/sh");
        command.args(["-c", line]).current_dir(self.home.path()).env("HOME", self.home.path()).env("PATH", path);
        command.env("TESSERA_MANAGER", &self.manager);
        command
    }

    /// Starts a command that does not end by itself; returns its first line of output.
    fn start(&mut self, line: &str) -> String {
        let line = format!("exec {line}");
        let mut child = self.shell(&line).stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut first = String::new();
        out.read_line(&mut first).unwrap();
        assert!(!first.is_empty() && child.try_wait().unwrap().is_none(), "{line} ended");
        self.running.push(Running { child, _out: out });
        first
    }

    /// Runs a command of the page.
    fn types(&mut self, line: &str) {
        match line {
            "make run" => {
                let said = self.start("tessera up --json --listen 127.0.0.1:0 --dir tessera-data");
                let said: Value = serde_json::from_str(&said).unwrap();
                assert_eq!(said["nodes"].as_array().unwrap().len(), 8, "README says eight nodes");
                self.manager = said["managers"][0]["listen"][0].as_str().unwrap().to_string();
            }
            "tessera mount /mnt/tessera" => self.mounts(),
            "tessera status --watch" => drop(self.start(line)),
            line => {
                let run = run(&mut self.shell(line), b"");
                assert_eq!(run.code, 0, "README's `{line}`: {run:?}");
                assert!(!run.stderr.contains("warning"), "README's `{line}`: {run:?}");
            }
        }
    }

    fn mounts(&mut self) {
        if fs::File::options().read(true).write(true).open("/dev/fuse").is_err() {
            eprintln!("skipped: /dev/fuse cannot be opened");
            return;
        }
        self.start("tessera mount mnt");
        let same = fs::read(self.at("mnt/backup/src/deep/notes")).unwrap() == b"notes\n";
        assert!(same, "the mount shows what was stored");
    }

    fn at(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }
}

/// Lines after a `$` in the section's console blocks, without comments.
fn commands() -> Vec<String> {
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../README.md")).unwrap();
    let section = page.split("\n## Use\n").nth(1).expect("README has a section Use").split("\n## ").next().unwrap();
    let blocks = section.split("```console\n").skip(1).flat_map(|block| block.split("\n```").next().unwrap().lines());
    let typed = blocks.filter_map(|line| line.strip_prefix("$ "));
    typed.map(|line| line.split(" #").next().unwrap().trim_end().to_string()).collect()
}

#[test]
fn the_first_page_works_as_it_is_written() {
    let commands = commands();
    assert!(commands.len() > 8 && commands[0] == "make run", "{commands:?}");
    let mut reader = Reader::new();
    commands.iter().for_each(|line| reader.types(line));

    let differ = Command::new("diff").args(["-r", "src", "copy"]).current_dir(reader.home.path()).output().unwrap();
    assert!(differ.status.success(), "what was fetched is what was stored: {differ:?}");
    let put = commands.iter().find(|line| line.starts_with("tessera put -r")).expect("a directory is stored");
    let again = run(&mut reader.shell(&format!("{put} --json")), b"").json();
    assert_eq!((again["files"].as_u64(), again["new_bytes"].as_u64()), (Some(2), Some(0)), "again: only what is new");
    let nested = run(&mut reader.shell("tessera stat tess:/backup/src/src"), b"");
    assert_eq!(nested.code, 3, "the second time stores to the same names: {nested:?}");

    let wide = run(&mut reader.shell("tessera policy set tess:/models redundancy=ec:8+3"), b"");
    assert_eq!(wide.code, 0, "{wide:?}");
    assert!(
        wide.stderr.contains("needs 11 hosts, the cluster has 8"),
        "a class too wide is set with a warning: {wide:?}"
    );
    let refused = run(&mut reader.shell("tessera put model.bin tess:/models/m2"), b"");
    assert_eq!(refused.code, 4, "{refused:?}");
}
