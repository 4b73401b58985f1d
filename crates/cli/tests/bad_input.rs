//! «Bad input, nothing lost» (P14): every error gets one line that names the thing and the way out, a non-zero exit
//! code, and leaves everything stored unchanged.

mod common;

use common::{Cluster, Daemon, Special, assert_refused, eventually, tree};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use tessera_wire::frame::{self, FrameHeader, HEADER_BYTES};
use tessera_wire::{Code, Error, Hello, Request};

const DATA: usize = 3 << 20;

fn store(c: &Cluster) -> Vec<u8> {
    let data = tree::bytes(42, DATA);
    let put = c.with_stdin(&["put", "--policy", "redundancy=ec:2+2", "-", "tess:/f"], &data);
    assert_eq!(put.code, 0, "{put:?}");
    data
}

fn assert_intact(c: &Cluster, data: &[u8]) {
    assert!(c.ok(&["cat", "tess:/f"]).stdout == data);
}

/// Checks the last line of the daemon's log, as a user of the command would see it.
fn refused(result: Result<Daemon, common::Run>, code: i32, words: &[&str]) {
    let Err(mut run) = result else { panic!("it was not refused") };
    run.stderr = run.stderr.lines().rfind(|l| l.starts_with("tessera: ")).unwrap_or_default().to_string();
    assert_refused(&run, code, words);
}

/// A second node on the same disk, a disk of another cluster, a directory with foreign files.
#[test]
fn disks_that_are_not_ours_to_take() {
    let mut c = Cluster::start(4);
    let data = store(&c);
    let mut args = c.node_args(1);
    refused(Daemon::try_start(&args, &c.log("second")), 8, &["n1", "serve"]);

    let other = Cluster::start(1);
    let at = args.iter().position(|a| a == "--manager").unwrap();
    let disk = args.iter().position(|a| a == "--disk").unwrap();
    // Give a disk of this cluster to the manager of the other.
    c.kill_node(4);
    args[disk + 1] = c.disk(4).display().to_string();
    args[at + 1] = other.address().to_string();
    match Daemon::try_start(&args, &c.log("stray")) {
        // The node serves its disk until the manager answers; then it ends.
        Ok(mut daemon) => {
            let code = daemon.wait().code();
            assert_eq!(code, Some(8));
            let log = std::fs::read_to_string(c.log("stray")).unwrap();
            assert!(log.lines().last().unwrap().contains("cluster"), "{log}");
        }
        Err(run) => assert_eq!(run.code, 8, "{run:?}"),
    }

    // A directory with foreign files.
    let foreign = c.path().join("foreign");
    std::fs::create_dir(&foreign).unwrap();
    std::fs::write(foreign.join("thesis.tex"), "x").unwrap();
    args[disk + 1] = foreign.display().to_string();
    refused(Daemon::try_start(&args, &c.log("foreign")), 8, &["thesis.tex", "empty directory"]);
    assert_eq!(std::fs::read(foreign.join("thesis.tex")).unwrap(), b"x");

    c.start_node(4);
    c.wait_up(4);
    assert_intact(&c, &data);
}

/// ENOSPC during a write: the write fails with its own exit code, the store stays readable, and deleting frees space.
#[test]
fn a_full_disk() {
    let special = Special { node: vec!["--capacity", "24M", "--set", "segment_size_bytes=2M"], ..Special::default() };
    let c = Cluster::start_special(4, special);
    let data = store(&c);
    let more = tree::bytes(43, 96 << 20);
    let full = c.with_stdin(&["put", "--quiet", "--policy", "redundancy=ec:2+2", "-", "tess:/more"], &more);
    assert_refused(&full, 7, &["tess:/more", "space"]);
    assert_intact(&c, &data);
    assert_refused(&c.run(&["stat", "tess:/more"]), 3, &["tess:/more"]);
}

/// `ec:k+m` needs more hosts than are up.
#[test]
fn too_few_nodes_for_a_policy() {
    let c = Cluster::start(4);
    let data = store(&c);
    let put = c.with_stdin(&["put", "--quiet", "--policy", "redundancy=ec:6+3", "-", "tess:/wide"], &data);
    assert_refused(&put, 4, &["tess:/wide", "9", "4"]);
    assert_intact(&c, &data);
    assert_refused(&c.run(&["stat", "tess:/wide"]), 3, &["tess:/wide"]);
}

/// A segment with flipped bytes: reads return the right bytes, scrub finds the damage and repair fixes it (P2, P13).
#[test]
fn a_segment_damaged_by_hand() {
    let c = Cluster::start(4);
    let data = store(&c);
    let mut damaged = 0;
    for node in [1, 2] {
        let segments = c.disk(node).join("segments");
        for entry in std::fs::read_dir(segments).unwrap() {
            let path = entry.unwrap().path();
            let mut bytes = std::fs::read(&path).unwrap();
            // Records follow the segment's header.
            let middle = 4096 + (bytes.len() - 4096) / 2;
            if bytes.len() > 8192 {
                bytes[middle..middle + 64].iter_mut().for_each(|b| *b = !*b);
                std::fs::write(&path, bytes).unwrap();
                damaged += 1;
            }
        }
    }
    assert!(damaged > 0);
    assert_intact(&c, &data);
    let scrub = c.ok(&["scrub", "--json"]).json();
    assert!(scrub["counters"]["rot_found"].as_u64().unwrap() >= 1, "{scrub}");
    eventually("what rotted is put right", || {
        let status = c.status();
        status["chunks"]["reduced"] == 0 && status["repair"]["fragments_to_repair"] == 0
    });
    let again = c.ok(&["scrub", "--json"]).json();
    assert_eq!(again["counters"]["rot_found"], 0, "{again}");
    assert_intact(&c, &data);
}

/// P2: a read that does without some fragments says so in one line, and in JSON; its bytes are right.
#[test]
fn what_was_read_around_is_told() {
    let c = Cluster::start(4);
    let data = tree::bytes(44, 24 << 20);
    assert_eq!(c.with_stdin(&["put", "--quiet", "--policy", "redundancy=ec:2+2", "-", "tess:/f"], &data).code, 0);
    let target = c.path().join("target");
    let target = target.to_str().unwrap();
    let get = || c.ok(&["get", "--json", "tess:/f", target]).json()["read_around"]["bad"].as_u64().unwrap();
    assert_eq!(get(), 0);
    assert!(!c.ok(&["get", "tess:/f", target]).stderr.contains("read around"));
    // Damage every fragment on two of four nodes: some chunk loses a data fragment.
    for node in [1, 2] {
        for entry in std::fs::read_dir(c.disk(node).join("segments")).unwrap() {
            let path = entry.unwrap().path();
            let mut bytes = std::fs::read(&path).unwrap();
            bytes[4096..].iter_mut().step_by(16 << 10).for_each(|b| *b = !*b);
            std::fs::write(&path, bytes).unwrap();
        }
    }
    let run = c.ok(&["cat", "tess:/f"]);
    assert!(run.stdout == data);
    let line = run.stderr.trim_end();
    assert!(line.starts_with("fragments read around: ") && line.contains("reported for repair"), "{line}");
    assert!(!line.contains('\n'), "{line}");
}

/// A database of a later release, or of another program, is refused unchanged; the right one still serves.
#[test]
fn a_database_from_the_future() {
    let mut c = Cluster::start(4);
    let data = store(&c);
    c.manager.take().unwrap().stop();
    let path = c.manager_dir().join("manager.db");
    let set = |version: i64| {
        let db = tessera_pagesum::open(&path, rusqlite::OpenFlags::default()).unwrap();
        let now: i64 = db.query_row("PRAGMA user_version", [], |r| r.get(0)).unwrap();
        db.pragma_update(None, "user_version", version).unwrap();
        now
    };
    let version = set(999);
    let args = c.manager_args(&[]);
    refused(Daemon::try_start(&args, &c.log("manager")), 8, &["manager.db", "999", "later release"]);
    set(version);
    c.start_manager(&[]);
    c.wait_up(4);
    assert_intact(&c, &data);

    // A page that rotted, and a write-ahead log whose database is gone.
    c.manager.take().unwrap().stop();
    let mut rotten = std::fs::read(&path).unwrap();
    rotten[4096 * 2 + 100] ^= 1;
    std::fs::write(&path, rotten).unwrap();
    c.start_manager(&[]);
    c.wait_up(4);
    assert_intact(&c, &data);
    let said = std::fs::read_to_string(c.log("manager")).unwrap();
    assert!(said.contains("page 3") && said.contains("rebuilding the database from the log"), "{said}");
    c.manager.take().unwrap().stop();
    std::fs::remove_file(&path).unwrap();
    let log = c.manager_dir().join("manager.db-wal");
    std::fs::write(&log, [1; 100]).unwrap();
    refused(Daemon::try_start(&args, &c.log("manager")), 8, &["manager.db-wal", "remove this file"]);
    // Without either, the database is rebuilt.
    std::fs::remove_file(&log).unwrap();
    c.start_manager(&[]);
    c.wait_up(4);

    // A second manager on the same directory.
    refused(
        Daemon::try_start(&c.manager_args(&["--listen", "127.0.0.1:0"]), &c.log("second")),
        8,
        &["another manager"],
    );
    assert_intact(&c, &data);
}

/// Peers with another protocol version; frames that are cut short, flipped or far too long; bytes that are no frames.
#[test]
fn peers_that_talk_nonsense() {
    let c = Cluster::start(4);
    let data = store(&c);
    let addresses = [c.address().to_string(), c.nodes[0].as_ref().unwrap().address().to_string()];
    for address in &addresses {
        let hello =
            |version| Hello { protocol_version: version, release: "9.9".into(), client_id: 5, ..Hello::default() };
        let reply = talk(address, &encode(&hello(99)));
        let text = String::from_utf8_lossy(&reply).into_owned();
        assert!(text.contains("protocol 99") && text.contains("9.9"), "{text}");

        let good = encode(&hello(tessera_wire::PROTOCOL_VERSION));
        for cut in [1, HEADER_BYTES - 1, HEADER_BYTES, good.len() - 1] {
            talk(address, &good[..cut]);
        }
        for byte in 0..good.len() {
            let mut flipped = good.clone();
            flipped[byte] ^= 1 << (byte % 8);
            talk(address, &flipped);
        }
        talk(address, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n");
        talk(address, &tree::bytes(1, 70_000));
        talk(address, &[0xff; 4096]);
    }
    c.wait_up(4);
    assert_intact(&c, &data);
    assert_eq!(c.with_stdin(&["put", "-", "tess:/g"], b"g").code, 0);
}

/// A daemon of another release: clients and nodes report it and end with its exit code.
#[test]
fn daemons_of_another_version() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut raw = [0; HEADER_BYTES];
            while stream.read_exact(&mut raw).is_ok() {
                let header = FrameHeader::decode(&raw).unwrap();
                std::io::copy(&mut (&mut stream).take(header.body_len.into()), &mut std::io::sink()).unwrap();
                let error = Error::new(Code::ProtocolVersion, "this daemon speaks protocol 2; run the same release");
                let flags = frame::FLAG_REPLY | frame::FLAG_ERROR;
                let reply = frame::encode_message(header.kind, flags, header.request_id, &error, 0);
                stream.write_all(&reply).unwrap();
            }
        }
    });
    let run = common::tessera(&["ls", "--quiet", "--manager", &address]);
    assert_refused(&run, 8, &[&address, "protocol 2", "same release"]);
    let dir = tempfile::tempdir().unwrap();
    let disk = dir.path().to_str().unwrap();
    let args = ["node", "--manager", &address, "--disk", disk].map(String::from);
    refused(Daemon::try_start(&args, &dir.path().with_extension("log")), 8, &[&address, "protocol 2"]);
    assert!(!dir.path().join("tessera-disk").exists(), "the directory was made a disk of nobody's cluster");
}

fn encode<R: Request>(message: &R) -> Vec<u8> {
    frame::encode_message(R::KIND as u16, 0, 1, message, 0)
}

/// Sends bytes, closes the sending side, and reads the answer.
fn talk(address: &str, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).unwrap();
    // A daemon may close the connection before it has read everything.
    stream.set_read_timeout(Some(std::time::Duration::from_secs(20))).unwrap();
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let mut reply = Vec::new();
    let _ = stream.read_to_end(&mut reply);
    reply
}

/// A log that cannot be written does not end its daemon: it continues to serve.
#[test]
fn a_full_disk_under_the_log_stops_no_daemon() {
    let mut c = Cluster::start(4);
    let data = store(&c);
    c.kill_manager();
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let mut manager = std::process::Command::new(common::TESSERA)
        .args(c.manager_args(&["--log-level", "trace"]))
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::null())
        .stderr(full)
        .spawn()
        .unwrap();
    assert_intact(&c, &data);
    assert!(manager.try_wait().unwrap().is_none(), "it serves on");
    manager.kill().unwrap();
    manager.wait().unwrap();
}

/// More fragments are rotten than redundancy covers: reads, scrub, repair and status report it, end, and name the way
/// out.
#[test]
fn damage_beyond_redundancy_ends_every_pass_with_a_clear_line() {
    let c = Cluster::start(4);
    let data = store(&c);
    for node in 1..=4 {
        let mut segments: Vec<_> =
            std::fs::read_dir(c.disk(node).join("segments")).unwrap().flatten().map(|e| e.path()).collect();
        segments.retain(|p| p.extension().is_some_and(|e| e == "seg"));
        for path in segments {
            let mut bytes = std::fs::read(&path).unwrap();
            (8192..bytes.len()).step_by(20_000).for_each(|at| bytes[at] ^= 0x55);
            std::fs::write(&path, bytes).unwrap();
        }
    }
    assert_refused(&c.run(&["cat", "--quiet", "tess:/f"]), 5, &["tess:/f"]);
    assert_refused(&c.run(&["scrub", "--quiet"]), 5, &["damaged beyond repair", "get -r"]);
    assert_refused(&c.run(&["repair", "--quiet"]), 5, &["damaged beyond repair", "get -r"]);
    let status = c.ok(&["status"]).text();
    assert!(status.contains("DATA UNREADABLE") && !status.contains("start what is missing"), "{status}");
    // Storing the same bytes again heals it.
    assert_eq!(c.with_stdin(&["put", "--policy", "redundancy=ec:2+2", "-", "tess:/again"], &data).code, 0);
    assert_intact(&c, &data);
}
