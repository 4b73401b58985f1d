//! A server of `tessera flash serve`, and a client of its own.

// Not every test uses all of it.
#![allow(dead_code)]

use crate::common::{self, tessera};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Bytes of the export.
pub const SIZE: u64 = 64 << 20;

/// A server; it ends with the test.
pub struct Server {
    child: Child,
    pub socket: PathBuf,
    pub uri: String,
}

impl Server {
    pub fn start(dir: &Path, options: &[&str]) -> Server {
        Server::start_with(dir, options, Stdio::inherit())
    }

    pub fn start_with(dir: &Path, options: &[&str], stderr: Stdio) -> Server {
        let socket = dir.join("ssd.sock");
        let mut command = Command::new(env!("CARGO_BIN_EXE_tessera"));
        let capacity: &[&str] = if options.contains(&"--capacity") { &[] } else { &["--capacity", "64M"] };
        command
            .args(["flash", "serve", "--over-provisioning", "60%"])
            .args(capacity)
            .args(["--nbd", &format!("unix:{}", socket.display())]);
        let mut child = command.args(options).stdout(Stdio::piped()).stderr(stderr).spawn().unwrap();
        let mut uri = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut uri).unwrap();
        Server { child, socket, uri: uri.trim().into() }
    }

    pub fn control(&self) -> String {
        format!("{}.control", self.socket.display())
    }

    /// The most memory that the server had.
    pub fn peak_kib(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.trim_end_matches("kB").trim().parse().unwrap()
    }

    /// Asks the server to end; returns its exit code.
    pub fn terminate(&mut self) -> i32 {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
        self.child.wait().unwrap().code().unwrap_or(-1)
    }

    pub fn stat(&self) -> serde_json::Value {
        tessera(&["flash", "stat", &self.control(), "--json"]).json()
    }

    pub fn cut(&self, more: &[&str]) -> common::Run {
        let run = tessera(&[&["flash", "cut", &self.control()], more].concat());
        assert_eq!(run.code, 0, "{run:?}");
        run
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// A server whose SSD is a file, too, and that file.
pub fn serve_file(dir: &Path, more: &[&str]) -> (Server, PathBuf) {
    let file = dir.join("ssd");
    let server = Server::start(dir, &[&["--ftl", "dftl", "--fuse", file.to_str().unwrap()], more].concat());
    (server, file)
}

/// Whether this machine can mount. Continuous integration must.
pub fn has_fuse() -> bool {
    let can = std::fs::File::options().read(true).write(true).open("/dev/fuse").is_ok();
    can || skipped("/dev/fuse cannot be opened")
}

/// Says why a test is skipped, which must not be in continuous integration. Returns false.
pub fn skipped(why: &str) -> bool {
    assert!(std::env::var_os("CI").is_none(), "{why}");
    eprintln!("skipped: {why}");
    false
}

/// A client that took the export.
pub struct Client {
    pub stream: UnixStream,
}

impl Client {
    pub fn connect(server: &Server) -> Client {
        let mut stream = UnixStream::connect(&server.socket).unwrap();
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting).unwrap();
        stream.write_all(&[&[0, 0, 0, 3][..], b"IHAVEOPT", &[0, 0, 0, 1, 0, 0, 0, 0]].concat()).unwrap();
        let mut export = [0; 10];
        stream.read_exact(&mut export).unwrap();
        assert_eq!(export[..8], SIZE.to_be_bytes());
        Client { stream }
    }

    pub fn send(&mut self, cookie: u64, number: u16, offset: u64, length: u32, data: &[u8]) {
        self.send_with(0, cookie, number, offset, length, data);
    }

    fn send_with(&mut self, flags: u16, cookie: u64, number: u16, offset: u64, length: u32, data: &[u8]) {
        let head =
            [&0x2560_9513u32.to_be_bytes()[..], &flags.to_be_bytes(), &number.to_be_bytes(), &cookie.to_be_bytes()]
                .concat();
        self.stream.write_all(&[&head[..], &offset.to_be_bytes(), &length.to_be_bytes(), data].concat()).unwrap();
    }

    /// Error and cookie of the next reply.
    pub fn reply(&mut self) -> (u32, u64) {
        let mut head = [0; 16];
        self.stream.read_exact(&mut head).unwrap();
        assert_eq!(head[..4], 0x6744_6698u32.to_be_bytes());
        (u32::from_be_bytes(head[4..8].try_into().unwrap()), u64::from_be_bytes(head[8..].try_into().unwrap()))
    }

    pub fn write(&mut self, offset: u64, data: &[u8]) -> u32 {
        self.send(1, 1, offset, data.len() as u32, data);
        self.reply().0
    }

    /// Writes with FUA: what succeeds is durable.
    pub fn write_through(&mut self, offset: u64, data: &[u8]) -> u32 {
        self.send_with(1, 4, 1, offset, data.len() as u32, data);
        self.reply().0
    }

    pub fn flush(&mut self) -> u32 {
        self.send(3, 3, 0, 0, &[]);
        self.reply().0
    }

    /// Reads; an error is as the protocol's number.
    pub fn try_read(&mut self, offset: u64, length: usize) -> Result<Vec<u8>, u32> {
        self.send(2, 0, offset, length as u32, &[]);
        match self.reply() {
            (0, 2) => {}
            (error, _) => return Err(error),
        }
        let mut data = vec![0; length];
        self.stream.read_exact(&mut data).unwrap();
        Ok(data)
    }

    pub fn read(&mut self, offset: u64, length: usize) -> Vec<u8> {
        self.try_read(offset, length).unwrap()
    }
}
