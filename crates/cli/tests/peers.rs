//! Peers that do not read, do not greet, take too many connections or speak another version (P14): the others are served.

mod common;

use common::{Cluster, Special, assert_refused, eventually};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;
use tessera_net::dialer::NoService;
use tessera_net::{BufferPool, Dialer, Endpoint};
use tessera_wire::frame::{self, FLAG_ERROR, FLAG_REPLY, FrameHeader, HEADER_BYTES, decode_message};
use tessera_wire::meta::{Entry, List, MakeDir};
use tessera_wire::rpc::{Call, Peer};
use tessera_wire::{Code, Error, Hello, Kind, PROTOCOL_VERSION, Request, Role};

/// Shorter than the 30 s after which a peer that does not read is dropped.
const WAIT: Duration = Duration::from_secs(10);

fn hello(role: Role, client_id: u64) -> Hello {
    Hello { protocol_version: PROTOCOL_VERSION, role: role as i32, client_id, ..Hello::default() }
}

fn encode<R: Request>(id: u64, message: &R) -> Vec<u8> {
    frame::encode_message(R::KIND as u16, 0, id, message, 0)
}

/// The next frame that is no keepalive frame.
fn frame_of(stream: &mut TcpStream) -> (FrameHeader, Vec<u8>) {
    let mut raw = [0; HEADER_BYTES];
    stream.read_exact(&mut raw).unwrap();
    let header = FrameHeader::decode(&raw).unwrap();
    if (header.request_id, header.flags) == (0, FLAG_REPLY) {
        return frame_of(stream);
    }
    let mut body = vec![0; header.body_len as usize];
    stream.read_exact(&mut body).unwrap();
    (header, body)
}

/// A connection without a greeting.
fn raw(address: &str) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(WAIT)).unwrap();
    stream
}

/// A connection whose greeting was accepted.
fn greeted(address: &str, client_id: u64) -> TcpStream {
    let mut stream = raw(address);
    stream.write_all(&encode(1, &hello(Role::Client, client_id))).unwrap();
    assert_eq!(frame_of(&mut stream).0.flags, FLAG_REPLY);
    stream
}

/// The error that refuses a connection as a whole.
fn refusal(stream: &mut TcpStream) -> Error {
    let (header, body) = frame_of(stream);
    assert_eq!((header.request_id, header.flags), (0, FLAG_REPLY | FLAG_ERROR));
    decode_message(header.kind, &body).unwrap()
}

/// A client whose requests are answered within [`WAIT`].
struct Other(Dialer, Endpoint, u64);

impl Other {
    fn new(address: &str) -> Other {
        let dialer = Dialer::new(hello(Role::Client, 77), Arc::new(NoService), BufferPool::new(1 << 20));
        Other(dialer, address.parse().unwrap(), 0)
    }

    fn mkdir(&mut self, parent: u64) -> u64 {
        let entry = self.mkdirs(parent, 1);
        entry[0]
    }

    /// Makes directories, all at once; returns their inodes.
    fn mkdirs(&mut self, parent: u64, count: u64) -> Vec<u64> {
        let (sender, answers) = channel();
        for _ in 0..count {
            self.2 += 1;
            let name = format!("{:0>200}", self.2).into_bytes();
            let request = MakeDir { op_id: self.2, parent, name, mode: 0o755, ..MakeDir::default() };
            let (sender, call) = (sender.clone(), Call::new(Peer::Manager, 0, &request, Vec::new(), 0));
            let callback = Box::new(move |result| drop(sender.send(result)));
            self.0.call(&self.1, call.kind, call.body, call.payload, WAIT, callback);
        }
        drop(sender);
        let made: Vec<_> = answers.iter().map(|answer| answer.expect("a directory").0).collect();
        assert_eq!(made.len() as u64, count);
        let ino = |body: &bytes::Bytes| decode_message::<Entry>(Kind::MakeDir as u16, body).unwrap().attr.unwrap().ino;
        made.iter().map(ino).collect()
    }
}

fn resident_mib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|l| l.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
}

/// Four connections ask for a long listing 2,000 times each and read nothing. Everybody else is served, and the manager's memory
/// does not hold what nobody fetches.
#[test]
fn listings_that_nobody_reads_delay_no_other() {
    let c = Cluster::start(1);
    let mut other = Other::new(c.address());
    let dir = other.mkdir(1);
    (0..4).for_each(|_| drop(other.mkdirs(dir, 1_000)));
    let pid = c.manager.as_ref().unwrap().child.id();
    let before_mib = resident_mib(pid);
    let list = List { ino: dir, limit: 4_096, ..List::default() };
    let mut unread: Vec<TcpStream> = (0..4).map(|i| greeted(c.address(), 100 + i)).collect();
    for stream in &mut unread {
        let requests: Vec<u8> = (2..2_002).flat_map(|id| encode(id, &list)).collect();
        // The manager may stop reading before it has taken all.
        stream.set_nonblocking(true).unwrap();
        let _ = stream.write_all(&requests);
    }
    for _ in 0..50 {
        other.mkdir(1);
        c.ok(&["ls", "--quiet", "tess:/"]);
    }
    let grown_mib = resident_mib(pid).saturating_sub(before_mib);
    assert!(grown_mib < 300, "the manager grew by {grown_mib} MiB");
    c.wait_up(1);
    drop(unread);
}

/// More idle connections than the manager keeps keep nobody out, whether or not nodes and clients are connected already.
#[test]
fn idle_connections_keep_nobody_out() {
    let mut c = Cluster::start(2);
    let node = c.nodes[0].as_ref().unwrap().address().to_string();
    let idle: Vec<TcpStream> = (0..4_096).map(|_| raw(c.address())).collect();
    let at_node: Vec<TcpStream> = (0..1_500).map(|_| raw(&node)).collect();
    c.kill_node(2);
    c.start_node(2);
    c.wait_up(2);
    c.ok(&["mkdir", "tess:/d"]);
    assert_eq!(c.with_stdin(&["put", "--policy", "redundancy=replica:2", "-", "tess:/f"], b"content").code, 0);
    assert_eq!(c.ok(&["cat", "tess:/f"]).stdout, b"content");
    drop((idle, at_node));
}

/// Clients that have greeted have a limit, which the error names; nodes have their own.
#[test]
fn clients_beyond_the_limit_are_told_so_and_nodes_are_not_kept_out() {
    let special = Special { manager: vec!["max_client_connections=20"], ..Special::default() };
    let mut c = Cluster::start_special(1, special);
    let mut held: Vec<TcpStream> = Vec::new();
    eventually("all places are taken", || {
        let mut stream = raw(c.address());
        stream.write_all(&encode(1, &hello(Role::Client, 5))).unwrap();
        let taken = frame_of(&mut stream).0.flags == FLAG_REPLY;
        held.extend(taken.then_some(stream));
        !taken
    });
    assert!(held.len() <= 20);
    let run = c.run(&["ls", "--quiet", "--wait", "1", "tess:/"]);
    assert_refused(&run, 4, &[c.address(), "20 clients", "max_client_connections"]);
    c.kill_node(1);
    c.start_node(1);
    held.clear();
    c.wait_up(1);
    c.ok(&["ls", "tess:/"]);
}

#[test]
fn long_frames_before_the_greeting_are_refused() {
    let c = Cluster::start(1);
    for address in [c.address(), c.nodes[0].as_ref().unwrap().address()] {
        let mut stream = raw(address);
        let header = frame::encode_raw(Kind::PutFragments as u16, 0, 1, &vec![0; 16 << 20], 64 << 20);
        let mut sending = stream.try_clone().unwrap();
        let sent = std::thread::spawn(move || {
            let mut bytes = 0;
            while bytes < 80 << 20 {
                let piece = &header[bytes % (8 << 20)..][..1 << 16];
                if sending.write_all(piece).is_err() {
                    return bytes;
                }
                bytes += piece.len();
            }
            bytes
        });
        let error = refusal(&mut stream);
        assert_eq!(error.code(), Code::Invalid, "{error:?}");
        drop(stream);
        sent.join().unwrap();
    }
    c.wait_up(1);
}

/// A daemon with another version of frames, and a client of another version: both name the versions, and the command ends
/// with the code for that.
#[test]
fn frames_of_another_version() {
    let c = Cluster::start(1);
    for address in [c.address(), c.nodes[0].as_ref().unwrap().address()] {
        let mut stream = raw(address);
        let mut newer = encode(1, &hello(Role::Client, 1));
        newer[frame::MAGIC.len()] = 9;
        stream.write_all(&newer).unwrap();
        let error = refusal(&mut stream);
        assert_eq!(error.code(), Code::ProtocolVersion);
        assert!(error.message.contains("version 9"), "{error:?}");
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut refusal =
                frame::encode_message(Kind::Hello as u16, FLAG_REPLY | FLAG_ERROR, 0, &Error::default(), 0);
            refusal[frame::MAGIC.len()] = 9;
            let _ = stream.read(&mut [0; 1 << 10]);
            let _ = stream.write_all(&refusal);
            let _ = stream.read_to_end(&mut Vec::new());
        }
    });
    let run = common::tessera(&["ls", "--quiet", "--manager", &address]);
    assert_refused(&run, 8, &[&address, "version 9", "same release"]);
}
