//! `tessera flash serve`: an emulated SSD, seen by a client of the tests' own and by other people's.

mod common;
mod nbd;

use common::{assert_refused, eventually, tessera};
use nbd::{Client, SIZE, Server};
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

fn pattern(seed: u64, length: usize) -> Vec<u8> {
    (0..length as u64).map(|i| ((i + seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

#[test]
fn what_is_written_is_read_over_any_connection_with_and_without_delays() {
    for options in [&["--ftl", "dftl"][..], &["--ftl", "cpftl", "--timing", "emulator"]] {
        let dir = tempfile::tempdir().unwrap();
        let server = Server::start(dir.path(), options);
        let (mut one, mut other) = (Client::connect(&server), Client::connect(&server));
        let data = pattern(3, 300_000);
        assert_eq!(one.write(12_345, &data), 0);
        assert_eq!(other.read(12_345, data.len()), data);
        assert_eq!(other.read(12_340, 5), [0; 5]);
        // A page that is trimmed is zero, and one that is trimmed in part stays.
        one.send(7, 4, 16_384, 4_096 + 100, &[]);
        assert_eq!(one.reply(), (0, 7));
        let after = other.read(12_345, data.len());
        assert_eq!(after[16_384 - 12_345..20_480 - 12_345], [0; 4_096]);
        assert_eq!(after[20_480 - 12_345..], data[20_480 - 12_345..]);
        one.send(8, 6, 20_000, 1_000_000, &[]);
        assert_eq!(one.reply(), (0, 8));
        assert_eq!(other.read(20_000, 300_000), [0; 300_000]);
        one.send(9, 3, 0, 0, &[]);
        assert_eq!(one.reply(), (0, 9));
        // Wrong commands get an error, and the connection goes on.
        assert_eq!((one.write(SIZE - 1, b"ab"), one.write(SIZE - 2, b"ab")), (28, 0));
        one.send(10, 0, SIZE, 1, &[]);
        assert_eq!(one.reply(), (22, 10));
        one.send(11, 99, 0, 1, &[]);
        assert_eq!((one.reply(), one.read(SIZE - 2, 2)), ((95, 11), b"ab".to_vec()));
    }
}

#[test]
fn the_options_of_layers_and_of_collection_are_those_of_replay() {
    for (options, figure) in [
        (&["--ftl", "leaftl", "--error-bound", "2", "--gc", "cost-benefit"][..], "/leaftl/segments"),
        (&["--ftl", "cola", "--cola", "buffer=64", "--device", "emulated"], "/cola/device_queries"),
        (&["--ftl", "cpftl", "--cpftl", "no-skew,support=2"], "/map_lookups"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let server = Server::start(dir.path(), options);
        let mut client = Client::connect(&server);
        assert_eq!(client.write(0, &pattern(1, 1 << 20)), 0);
        assert_eq!(client.read(0, 1 << 20), pattern(1, 1 << 20));
        let stat = server.stat();
        assert!(stat.pointer(figure).is_some_and(serde_json::Value::is_u64), "{figure} of {stat}");
    }
    let dir = tempfile::tempdir().unwrap();
    let backing = dir.path().join("ssd");
    let learns = ["--learn-after", "10", "--ftl", "cpftl", "--cpftl", "no-correlation,no-skew"];
    let serve = ["flash", "serve", "--capacity", "1G", "--nbd", "127.0.0.1:0", "--backing"];
    let refused = tessera(&[&serve[..], &[&backing.display().to_string()], &learns].concat());
    assert_refused(&refused, 2, &["--learn-after", "with these options cpftl learns nothing"]);
    assert!(!backing.exists(), "what is refused leaves no file");
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap();
    let total_kib = meminfo.split_ascii_whitespace().nth(1).unwrap().parse::<u64>().unwrap();
    for (options, words) in [
        (&["--capacity", "1G", "--ftl", "leaftl", "--error-bound", "9999"][..], &["error bound of 9999", "lower"][..]),
        (&["--capacity", "1G", "--ftl", "cola", "--device", "cuda:63"], &["cuda"]),
        (&["--capacity", "7T", "--ftl", "cola"], &["cola", "of memory", "is available", "lower --capacity"]),
        // Of 70 GB all but 5 are for the map cache.
        (
            &["--capacity", "256G", "--ftl", "dftl", "--map-cache", "4G"],
            &["dftl", "of memory", "lower --map-cache or --capacity"],
        ),
    ] {
        // 7T needs 76 GB with `cola`.
        if options[1] == "1G" || total_kib < 60 << 20 {
            let serve = [&["flash", "serve", "--nbd", "127.0.0.1:0"], options].concat();
            assert_refused(&tessera(&serve), 2, words);
        }
    }
}

#[test]
fn replies_of_other_dies_overtake_a_slow_one() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &["--timing", "read=1ms,program=300ms"]);
    let mut client = Client::connect(&server);
    client.send(1, 1, 0, 4_096, &pattern(1, 4_096));
    // Nothing was written there, so nothing is read from flash.
    client.send(2, 0, 1 << 20, 1, &[]);
    assert_eq!(client.reply(), (0, 2));
    client.stream.read_exact(&mut [0]).unwrap();
    assert_eq!(client.reply(), (0, 1));
    let late = |server: &Server| server.stat()["late_ns"].clone();
    assert!(late(&server)["max"].as_u64() > Some(0), "no reply leaves before its time: {}", server.stat());
    drop(server);
    let undelayed = Server::start(dir.path(), &[]);
    assert!(late(&undelayed).is_null(), "{}", undelayed.stat());
}

#[test]
fn a_client_that_asks_for_much_and_takes_nothing_makes_the_server_hold_a_bounded_part_of_it() {
    const LENGTH: usize = 32 << 20;
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &["--timing", "emulator"]);
    let mut client = Client::connect(&server);
    (0..40).for_each(|cookie| client.send(cookie, 0, 0, LENGTH as u32, &[]));
    eventually("replies wait", || server.stat()["requests"].as_u64() >= Some(2));
    let mut data = vec![0; LENGTH];
    for _ in 0..40 {
        assert_eq!(client.reply().0, 0);
        client.stream.read_exact(&mut data).unwrap();
    }
    let kib = server.peak_kib();
    assert!(kib < 400 << 10, "{kib} KiB");
}

#[test]
fn connections_are_bounded_and_those_that_ended_make_room() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &["-q"]);
    let mut clients: Vec<Client> = (0..64).map(|_| Client::connect(&server)).collect();
    let mut refused = UnixStream::connect(&server.socket).unwrap();
    assert_eq!(refused.read(&mut [0; 1]).unwrap_or(0), 0, "it is hung up on");
    assert_eq!(clients[63].read(0, 1), [0]);
    clients.truncate(1);
    eventually("there is room", || server.stat()["connections"] == 1);
    assert_eq!(Client::connect(&server).read(0, 1), [0]);
}

#[test]
fn a_client_that_never_agrees_on_anything_is_hung_up_on() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &[]);
    let mut silent = UnixStream::connect(&server.socket).unwrap();
    let mut heard = Vec::new();
    silent.read_to_end(&mut heard).unwrap();
    assert!(heard.starts_with(b"NBDMAGIC"));
    // An option of a gigabyte, a byte now and then.
    let mut slow = UnixStream::connect(&server.socket).unwrap();
    slow.write_all(&[&[0, 0, 0, 1][..], b"IHAVEOPT", &7u32.to_be_bytes(), &(1u32 << 30).to_be_bytes()].concat())
        .unwrap();
    eventually("it is hung up on", || slow.write_all(&[0]).is_err());
}

#[test]
fn a_client_of_the_control_socket_that_sends_a_byte_now_and_then_keeps_no_other_waiting() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &[]);
    let mut slow = UnixStream::connect(server.control()).unwrap();
    let sending = std::thread::spawn(move || {
        let is_sent = |_: &i32| {
            std::thread::sleep(Duration::from_millis(300));
            slow.write_all(b"s").is_ok()
        };
        (0..60).take_while(is_sent).count()
    });
    let start = Instant::now();
    assert_eq!(server.stat()["power"], "on");
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    assert!(sending.join().unwrap() < 20, "it was hung up on");
}

#[test]
fn a_client_that_breaks_the_protocol_ends_its_own_connection_only() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &["-q"]);
    let mode = fs::metadata(&server.socket).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "the socket is its user's alone");
    let (mut bad, mut good) = (Client::connect(&server), Client::connect(&server));
    bad.stream.write_all(&[9; 28]).unwrap();
    assert_eq!(bad.stream.read_to_end(&mut Vec::new()).unwrap(), 0);
    assert_eq!((good.write(0, b"abc"), good.read(0, 3)), (0, b"abc".to_vec()));
}

#[test]
fn an_address_that_is_taken_is_refused_and_one_that_was_left_is_used_again() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &[]);
    let address = format!("unix:{}", server.socket.display());
    let serve = |address: &str| {
        tessera(&["flash", "serve", "--capacity", "64M", "--over-provisioning", "60%", "--nbd", address])
    };
    assert_refused(&serve(&address), 6, &["ssd.sock", "another server", "name another path"]);
    drop(server);
    let again = Server::start(dir.path(), &[]);
    assert_eq!(Client::connect(&again).read(0, 1), [0]);
    assert_refused(&serve("nowhere"), 2, &["`nowhere`", "unix:PATH or HOST:PORT"]);
    fs::write(dir.path().join("file"), "kept").unwrap();
    let file = format!("unix:{}", dir.path().join("file").display());
    assert_refused(&serve(&file), 6, &["no socket", "another path"]);
    assert_eq!(fs::read_to_string(dir.path().join("file")).unwrap(), "kept");
    // A server that does not start leaves nothing.
    let [new, other] = ["new", "other.sock"].map(|name| dir.path().join(name));
    let backed = |address: &str, backing: &str| {
        let serve = ["flash", "serve", "--capacity", "64M", "--over-provisioning", "60%", "--nbd", address];
        tessera(&[&serve[..], &["--backing", backing]].concat())
    };
    assert_refused(&backed(&address, new.to_str().unwrap()), 6, &["another server"]);
    let unix = format!("unix:{}", other.display());
    assert_refused(&backed(&unix, dir.path().join("file").to_str().unwrap()), 6, &["file"]);
    let elsewhere = ["flash", "serve", "--capacity", "64M", "--over-provisioning", "60%", "--nbd", &unix, "--control"];
    assert_eq!(tessera(&[&elsewhere[..], &["/nonexistent/c"]].concat()).code, 3);
    assert!(!new.exists() && !other.exists());
    assert_refused(&serve("unix:"), 2, &["names no path", "unix:PATH"]);
    assert_refused(&serve(&format!("unix:/tmp/{}", "x".repeat(200))), 2, &["cannot listen", "shorter path"]);
    let mut again = again;
    assert_eq!((again.terminate(), again.socket.exists(), Path::new(&again.control()).exists()), (0, false, false));
}

/// A program of the system. Its scripts are for the system's interpreters, whatever else the user has.
fn other(program: &str) -> Command {
    let mut command = Command::new(program);
    command.env("PATH", format!("/usr/bin:{}", std::env::var("PATH").unwrap_or_default()));
    command
}

/// Whether a program is installed; a line says so if it is not.
fn has(program: &str) -> bool {
    let found = other(program).arg("--version").output().is_ok_and(|output| output.status.success());
    if !found {
        eprintln!("skipped: {program} is not installed");
    }
    found
}

fn run(program: &str, arguments: &[&str]) -> String {
    let output = other(program).args(arguments).output().unwrap();
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{program} {arguments:?}: {text}{errors}");
    text.into_owned()
}

#[test]
fn other_peoples_clients_copy_to_it_and_back() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &["--ftl", "leaftl"]);
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    let mut image = pattern(9, 20 << 20);
    image[5 << 20..11 << 20].fill(0);
    image.resize(SIZE as usize, 0);
    fs::write(&from, &image).unwrap();
    let [from, to] = [from, to].map(|path| path.display().to_string());
    if has("nbdinfo") {
        assert_eq!(run("nbdinfo", &["--size", &server.uri]).trim(), SIZE.to_string());
        let text = run("nbdinfo", &[&server.uri]);
        for part in ["can_flush: true", "can_fua: true", "can_trim: true", "can_zero: true", "can_multi_conn: true"] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
    }
    if has("nbdcopy") {
        run("nbdcopy", &["--flush", &from, &server.uri]);
        run("nbdcopy", &[&server.uri, &to]);
        assert!(fs::read(&to).unwrap() == image, "nbdcopy");
    }
    if has("nbdsh") {
        let script = "assert h.pread(5, 10) == h.pread(5, 10) and len(h.pread(1 << 20, 0)) == 1 << 20; h.pwrite(b'shell', 0); h.flush(); \
                      h.zero(4096, 1, nbd.CMD_FLAG_NO_HOLE); h.trim(4096, 8192, nbd.CMD_FLAG_FUA); \
                      assert h.pread(6, 0) == b's' + bytes(5) and h.get_structured_replies_negotiated(); h.shutdown()";
        run("nbdsh", &["--uri", &server.uri, "-c", script]);
        run("nbdcopy", &["--flush", &from, &server.uri]);
    }
    if has("qemu-img") {
        run("qemu-img", &["convert", "-n", "-f", "raw", "-O", "raw", &from, &server.uri]);
        run("qemu-img", &["compare", "-f", "raw", "-F", "raw", &from, &server.uri]);
    }
}

/// fio reads back what it wrote, at several depths, with and without the delays of an SSD.
#[test]
fn fio_verifies_what_it_wrote() {
    if !has("fio") || !run("fio", &["--enghelp"]).lines().any(|line| line.trim() == "nbd") {
        return eprintln!("skipped: fio has no nbd engine");
    }
    for delays in [&[][..], &["--timing", "emulator"]] {
        let dir = tempfile::tempdir().unwrap();
        let server = Server::start(dir.path(), &[&["--ftl", "cpftl", "--write-buffer", "256K"], delays].concat());
        let uri = format!("--uri={}", server.uri);
        for (depth, pattern) in [("1", "randwrite"), ("8", "randrw"), ("32", "write"), ("32", "randtrimwrite")] {
            let [depth, pattern] = [format!("--iodepth={depth}"), format!("--rw={pattern}")];
            let size = ["--bsrange=512-64k", "--bs_unaligned=0", "--size=8m", "--fsync=64"];
            let verify = [
                "--verify=crc32c",
                "--verify_fatal=1",
                "--do_verify=1",
                "--verify_state_save=0",
                "--output-format=terse",
            ];
            let job = ["--name=job", "--ioengine=nbd", "--thread=1", &uri, &depth, &pattern];
            run("fio", &[&job[..], &size, &verify].concat());
        }
    }
}
