//! Real processes for tests: a manager and nodes on loopback with free ports and short timeouts. Each ends through its
//! handle.
#![allow(dead_code)]

pub mod fragments;
pub mod mounted;
pub mod tree;

use serde_json::Value;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The binary under test.
pub const TESSERA: &str = env!("CARGO_BIN_EXE_tessera");

/// Knobs that make a manager notice losses quickly. Tests that wait for `out` pass a shorter `out_after_ms`.
const HASTE: &[&str] =
    &["heartbeat_ms=100", "node_lease_ms=2000", "down_after_ms=1500", "out_after_ms=600000", "lease_entry_ms=300"];
/// Nodes of tests share one file system, so none reserves space on it.
const NODE_HASTE: &[&str] = &["reserve_bytes=0", "register_retry_max_ms=300", "segment_size_bytes=8M"];
/// A step that takes longer than this has failed.
const PATIENCE: Duration = Duration::from_secs(60);

/// The result of a command.
#[derive(Debug)]
pub struct Run {
    pub code: i32,
    pub stdout: Vec<u8>,
    pub stderr: String,
}

impl Run {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// The JSON document on stdout.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.stdout).unwrap_or_else(|e| panic!("no JSON ({e}): {self:?}"))
    }
}

/// Runs the binary to its end with these arguments.
pub fn tessera<I: AsRef<std::ffi::OsStr>>(args: &[I]) -> Run {
    run(Command::new(TESSERA).args(args), b"")
}

/// Runs a command to its end with `stdin`.
pub fn run(command: &mut Command, stdin: &[u8]) -> Run {
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("tessera starts");
    let mut pipe = child.stdin.take().expect("stdin");
    let bytes = stdin.to_vec();
    let writer = std::thread::spawn(move || drop(pipe.write_all(&bytes)));
    let output = child.wait_with_output().expect("tessera ends");
    writer.join().expect("stdin is written");
    Run {
        code: output.status.code().unwrap_or(-1),
        stdout: output.stdout,
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// Checks that a failed command printed one line with these words and ended with `code` (P14).
pub fn assert_refused(run: &Run, code: i32, words: &[&str]) {
    assert_eq!(run.code, code, "{run:?}");
    let line = run.stderr.trim_end();
    assert!(!line.is_empty() && !line.contains('\n'), "one line is wanted: {run:?}");
    for word in words {
        assert!(line.contains(word), "{word:?} is not said: {run:?}");
    }
}

/// A daemon. Killed when dropped.
pub struct Daemon {
    pub child: Child,
    pub listen: Vec<String>,
    pub metrics: Option<String>,
}

impl Daemon {
    /// Starts a daemon and waits until it serves.
    pub fn start(args: &[String], log: &Path) -> Daemon {
        Self::try_start(args, log).unwrap_or_else(|run| panic!("no daemon: {run:?}"))
    }

    /// Starts a daemon. If it ends instead: its result.
    pub fn try_start(args: &[String], log: &Path) -> Result<Daemon, Run> {
        let from = std::fs::metadata(log).map_or(0, |m| m.len());
        let file = File::options().create(true).append(true).open(log).expect("log");
        let mut child = Command::new(TESSERA)
            .args(args)
            .args(["--announce", "--follow-stdin"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(file)
            .spawn()
            .expect("tessera starts");
        let mut line = String::new();
        let mut stdout = BufReader::new(child.stdout.take().expect("stdout"));
        stdout.read_line(&mut line).expect("stdout is read");
        match serde_json::from_str::<Value>(&line) {
            Ok(said) => {
                // Its stdout stays open while it runs.
                std::thread::spawn(move || stdout.read_to_string(&mut String::new()));
                let text = |v: &Value| v.as_str().expect("text").to_string();
                let listen = said["listen"].as_array().expect("listen").iter().map(text).collect();
                Ok(Daemon { child, listen, metrics: said["metrics"].as_str().map(String::from) })
            }
            Err(_) => {
                let status = child.wait().expect("it ended");
                let log = std::fs::read(log).expect("log");
                let stderr = String::from_utf8_lossy(&log[from as usize..]).into_owned();
                Err(Run { code: status.code().unwrap_or(-1), stdout: line.into_bytes(), stderr })
            }
        }
    }

    /// The daemon's `HOST:PORT`.
    pub fn address(&self) -> &str {
        self.listen.iter().find(|a| !a.starts_with("unix:")).expect("an address")
    }

    /// Sends SIGKILL.
    pub fn kill(&mut self) {
        self.child.kill().expect("killed");
        self.child.wait().expect("ended");
    }

    /// Sends SIGTERM and waits for the end.
    pub fn stop(&mut self) -> ExitStatus {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("asked to stop");
        self.wait()
    }

    pub fn wait(&mut self) -> ExitStatus {
        let mut ended = None;
        eventually("the daemon ends", || {
            ended = self.child.try_wait().expect("status");
            ended.is_some()
        });
        ended.expect("ended")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Polls until the condition holds.
pub fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Settings that differ from the usual ones.
#[derive(Default, Clone)]
pub struct Special {
    /// More knobs for the manager.
    pub manager: Vec<&'static str>,
    /// More flags for every node.
    pub node: Vec<&'static str>,
}

/// A manager and nodes n1, n2, …
pub struct Cluster {
    pub dir: TempDir,
    pub special: Special,
    pub manager: Option<Daemon>,
    pub nodes: Vec<Option<Daemon>>,
    address: String,
}

impl Cluster {
    pub fn start(nodes: usize) -> Cluster {
        Self::start_special(nodes, Special::default())
    }

    pub fn start_special(nodes: usize, special: Special) -> Cluster {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::create_dir(dir.path().join("manager")).expect("a directory");
        let mut cluster = Cluster { dir, special, manager: None, nodes: Vec::new(), address: "127.0.0.1:0".into() };
        cluster.start_manager(&[]);
        for node in 1..=nodes {
            std::fs::create_dir(cluster.disk(node)).expect("a directory");
            cluster.nodes.push(None);
            cluster.start_node(node);
        }
        cluster.wait_up(nodes);
        cluster
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    pub fn disk(&self, node: usize) -> PathBuf {
        self.path().join(format!("n{node}"))
    }

    pub fn manager_dir(&self) -> PathBuf {
        self.path().join("manager")
    }

    pub fn address(&self) -> &str {
        &self.address
    }

    /// Has nodes that start from now on, and commands, know these managers.
    pub fn name_managers(&mut self, addresses: &[String]) {
        self.address = addresses.join(",");
    }

    pub fn manager_args(&self, more: &[&str]) -> Vec<String> {
        let dir = self.manager_dir().display().to_string();
        let mut args: Vec<String> = ["manager", "--dir", &dir, "--listen", &self.address].map(String::from).to_vec();
        args.extend(["--metrics".to_string(), "127.0.0.1:0".to_string()]);
        for knob in HASTE.iter().chain(&self.special.manager) {
            args.extend(["--set".to_string(), knob.to_string()]);
        }
        args.extend(more.iter().map(ToString::to_string));
        args
    }

    pub fn node_args(&self, node: usize) -> Vec<String> {
        let disk = self.disk(node).display().to_string();
        let name = format!("n{node}");
        let mut args: Vec<String> = ["node", "--manager", &self.address, "--disk", &disk].map(String::from).to_vec();
        args.extend(["--name", &name, "--host", &name, "--metrics", "127.0.0.1:0"].map(String::from));
        for knob in NODE_HASTE {
            args.extend(["--set".to_string(), knob.to_string()]);
        }
        args.extend(self.special.node.iter().map(ToString::to_string));
        args
    }

    pub fn log(&self, name: &str) -> PathBuf {
        self.path().join(format!("{name}.log"))
    }

    pub fn start_manager(&mut self, more: &[&str]) {
        let daemon = Daemon::start(&self.manager_args(more), &self.log("manager"));
        self.address = daemon.address().to_string();
        self.manager = Some(daemon);
    }

    pub fn start_node(&mut self, node: usize) {
        let daemon = Daemon::start(&self.node_args(node), &self.log(&format!("n{node}")));
        self.nodes[node - 1] = Some(daemon);
    }

    pub fn kill_node(&mut self, node: usize) {
        self.nodes[node - 1].take().expect("runs").kill();
    }

    pub fn kill_manager(&mut self) {
        self.manager.take().expect("runs").kill();
    }

    /// Sends SIGTERM to all daemons, to the manager first.
    pub fn stop(&mut self) {
        for mut daemon in self.manager.take().into_iter().chain(self.nodes.iter_mut().filter_map(Option::take)) {
            assert!(daemon.stop().success(), "a daemon does not stop cleanly");
        }
    }

    pub fn start_all(&mut self) {
        self.start_manager(&[]);
        (1..=self.nodes.len()).for_each(|node| self.start_node(node));
        self.wait_up(self.nodes.len());
    }

    /// Waits until the manager counts this many nodes as up.
    pub fn wait_up(&self, nodes: usize) {
        eventually("nodes are up, and so are the peers that keep the metadata", || {
            let status = self.status();
            let up = status["nodes"].as_array().map(|n| n.iter().filter(|n| n["state"] == "up").count());
            let log = &status["log"];
            let votes = log["peers"].as_array().map(|peers| peers.iter().filter(|peer| peer["votes"] == true).count());
            up == Some(nodes) && log["voters_wanted"] != 0 && log["voters_wanted"].as_u64() <= votes.map(|n| n as u64)
        });
    }

    pub fn node_is_up(&self, name: &str) -> bool {
        let status = self.status();
        status["nodes"].as_array().is_some_and(|nodes| nodes.iter().any(|n| n["name"] == name && n["state"] == "up"))
    }

    pub fn status(&self) -> Value {
        self.ok(&["status", "--json"]).json()
    }

    /// A command for this cluster.
    pub fn command<I: AsRef<std::ffi::OsStr>>(&self, args: &[I]) -> Command {
        let mut command = Command::new(TESSERA);
        command.args(args).env("TESSERA_MANAGER", &self.address);
        command
    }

    pub fn run<I: AsRef<std::ffi::OsStr>>(&self, args: &[I]) -> Run {
        run(&mut self.command(args), b"")
    }

    /// Runs a command that must succeed.
    pub fn ok<I: AsRef<std::ffi::OsStr>>(&self, args: &[I]) -> Run {
        let run = self.run(args);
        assert_eq!(run.code, 0, "{:?}: {run:?}", args.iter().map(|a| a.as_ref().to_os_string()).collect::<Vec<_>>());
        run
    }

    pub fn with_stdin<I: AsRef<std::ffi::OsStr>>(&self, args: &[I], stdin: &[u8]) -> Run {
        run(&mut self.command(args), stdin)
    }
}

/// Fetches a path over HTTP/1.0.
pub fn http(address: &str, path: &str) -> String {
    let mut stream = std::net::TcpStream::connect(address).expect("connects");
    write!(stream, "GET {path} HTTP/1.0\r\n\r\n").expect("asked");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("answered");
    text
}
