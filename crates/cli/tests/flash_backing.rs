//! `tessera flash serve --backing FILE`: what is there after a restart, and files that cannot be served.

mod common;
mod nbd;

use common::{Run, assert_refused, tessera};
use nbd::{Client, Server};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

/// What a server that does not start says.
fn refused(dir: &Path, file: &Path, more: &[&str]) -> Run {
    let (socket, file) = (format!("unix:{}", dir.join("other.sock").display()), file.display().to_string());
    let serve = ["flash", "serve", "--nbd", &socket, "--backing", &file, "--over-provisioning", "60%"];
    tessera(&[&serve[..], if more.is_empty() { &["--capacity", "64M"] } else { more }].concat())
}

#[test]
fn what_was_flushed_is_there_after_the_server_was_killed_and_what_only_the_buffer_had_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("ssd");
    let options = ["--ftl", "dftl", "--write-buffer", "1M", "--backing", file.to_str().unwrap()];
    let server = Server::start(dir.path(), &options);
    let mut client = Client::connect(&server);
    assert_eq!((client.write(10_000, &[1; 50_000]), client.flush(), client.write(10_100, &[2; 9])), (0, 0, 0));
    assert_eq!(server.stat()["backing"], file.to_str().unwrap());
    drop(server);
    let found = fs::metadata(&file).unwrap();
    assert_eq!((found.permissions().mode() & 0o777, found.len()), (0o600, 4096 + nbd::SIZE));
    assert!(found.blocks() * 512 < 200_000, "{} blocks: it is sparse", found.blocks());
    // docs/formats.md, section 8.
    let header = "tessera flash backing 1\n\
                  --capacity 67108864 --geometry channels=4,chips=1,dies=1,planes=1,pages=64,page=4096,oob=128\n";
    let found = fs::read(&file).unwrap();
    assert_eq!(String::from_utf8_lossy(&found[..4096]).trim_end_matches('\0'), header);
    assert!(
        found[4096..][..70_000].iter().enumerate().all(|(at, byte)| *byte == u8::from((10_000..60_000).contains(&at)))
    );
    let server = Server::start(dir.path(), &options);
    let mut client = Client::connect(&server);
    let mut expected = vec![0; 70_000];
    expected[10_000..60_000].fill(1);
    assert_eq!(client.read(0, 70_000), expected);
    // The flash is laid out anew: each page with data is read from one, and the counters begin at 0.
    let stat = server.stat();
    assert_eq!((stat["host_programs"].as_u64(), stat["host_reads"].as_u64()), (Some(0), Some(13)));
    client.send(7, 4, 0, 64 << 20, &[]);
    assert_eq!((client.reply(), client.flush()), ((0, 7), 0));
    assert!(fs::metadata(&file).unwrap().blocks() * 512 < 20_000, "what was trimmed takes no room");
}

#[test]
fn without_a_write_buffer_what_was_acknowledged_outlives_the_server() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("ssd");
    let options = ["--backing", file.to_str().unwrap()];
    let server = Server::start(dir.path(), &options);
    assert_eq!(Client::connect(&server).write(100, b"kept"), 0);
    drop(server);
    assert_eq!(Client::connect(&Server::start(dir.path(), &options)).read(100, 4), b"kept");
}

#[test]
fn a_file_that_is_in_use_or_has_something_else_is_refused_and_stays_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("ssd");
    let server = Server::start(dir.path(), &["--backing", file.to_str().unwrap()]);
    assert_refused(&refused(dir.path(), &file, &[]), 8, &["ssd", "another server", "name another file"]);
    drop(server);
    let other = refused(dir.path(), &file, &["--capacity", "32M"]);
    assert_refused(&other, 8, &["another SSD", "--capacity 67108864 --geometry channels=4,", "name another file"]);
    let other = refused(dir.path(), &file, &["--capacity", "64M", "--geometry", "one-die"]);
    assert_refused(&other, 8, &["another SSD", "channels=4,", "name another file"]);
    fs::OpenOptions::new().write(true).open(&file).unwrap().set_len(100_000).unwrap();
    assert_refused(&refused(dir.path(), &file, &[]), 5, &["100000 bytes", "67112960", "restore it"]);
    fs::OpenOptions::new().write(true).open(&file).unwrap().set_len(4096).unwrap();
    assert_refused(&refused(dir.path(), &file, &[]), 5, &["4096 bytes", "67112960", "restore it"]);
    // A server that was killed while it made the file.
    let begun = dir.path().join("begun");
    fs::File::create(&begun).unwrap().set_len(4096 + nbd::SIZE).unwrap();
    assert_eq!(Client::connect(&Server::start(dir.path(), &["--backing", begun.to_str().unwrap()])).flush(), 0);
    let thesis = dir.path().join("thesis");
    fs::write(&thesis, "long and good").unwrap();
    assert_refused(&refused(dir.path(), &thesis, &[]), 6, &["thesis", "no backing file", "name another file"]);
    assert_eq!(fs::read_to_string(&thesis).unwrap(), "long and good");
    assert_refused(&refused(dir.path(), dir.path(), &[]), 6, &["no regular file", "--backing"]);
    assert_refused(&refused(dir.path(), Path::new("/nowhere/ssd"), &[]), 3, &["/nowhere/ssd"]);
}

#[test]
fn a_server_that_does_not_start_leaves_no_file_that_it_made() {
    let dir = tempfile::tempdir().unwrap();
    let (new, old) = (dir.path().join("new"), dir.path().join("old"));
    drop(Server::start(dir.path(), &["--backing", old.to_str().unwrap()]));
    fs::write(dir.path().join("taken"), "").unwrap();
    let taken = dir.path().join("taken").display().to_string();
    for file in [&new, &old] {
        for more in [["--control", &taken], ["--control", "/nonexistent/c"], ["--fuse", "/nonexistent/f"]] {
            let run = refused(dir.path(), file, &[&["--capacity", "64M"], &more[..]].concat());
            assert_refused(
                &run,
                if more[1] == taken { 6 } else { 3 },
                &[if more[1] == taken { "taken" } else { "/nonexistent" }],
            );
        }
        let socket = format!("unix:{}", dir.path().join("other.sock").display());
        let serve =
            ["flash", "serve", "--capacity", "64M", "--over-provisioning", "60%", "--nbd", &socket, "--backing"];
        let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let ended = Command::new(common::TESSERA).args(serve).arg(file).arg("-q").stdout(full).status().unwrap();
        assert_eq!(ended.code(), Some(7), "nobody can know where it listens");
        assert!(!dir.path().join("other.sock").exists() && !dir.path().join("other.sock.control").exists());
    }
    assert_eq!((new.exists(), fs::metadata(&old).unwrap().len()), (false, 4096 + nbd::SIZE));
}

/// A file system of 4 MiB, unmounted when dropped.
struct SmallDisk<'a>(&'a Path);

impl Drop for SmallDisk<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0).status();
    }
}

#[test]
fn a_full_file_system_fails_writes_with_a_line_and_they_succeed_once_there_is_room() {
    let dir = tempfile::tempdir().unwrap();
    let mount = Command::new("mount").args(["-t", "tmpfs", "-o", "size=4m", "none"]).arg(dir.path()).output();
    if !mount.is_ok_and(|mounted| mounted.status.success()) {
        eprintln!("skipped: no file system can be mounted");
        return;
    }
    let disk = SmallDisk(dir.path());
    let (file, fill) = (disk.0.join("ssd"), disk.0.join("fill"));
    fs::write(&fill, vec![1; 8 << 20]).unwrap_err();
    assert_refused(&refused(disk.0, &file, &[]), 7, &["ssd", "No space left", "free space there"]);
    assert!(!file.exists(), "nothing is left");
    fs::write(&fill, vec![1; 2 << 20]).unwrap();
    let log = tempfile::NamedTempFile::new().unwrap();
    let stderr = log.reopen().unwrap();
    let server = Server::start_with(disk.0, &["-q", "--backing", file.to_str().unwrap()], stderr.into());
    let mut client = Client::connect(&server);
    assert_eq!((client.write(0, &[1; 4096]), client.flush()), (0, 0));
    assert_eq!([client.write(0, &[2; 4 << 20]), client.write(8 << 20, &[2; 4 << 20])], [28, 28]);
    // What needs no room succeeds meanwhile.
    for _ in 0..20 {
        assert_eq!((client.write(0, &[1; 4096]), client.write(8 << 20, &[2; 4 << 20])), (0, 28));
    }
    let text = fs::read_to_string(log.path()).unwrap();
    assert!(text.contains("ssd: No space left on device") && text.contains("free space there"), "{text}");
    assert_eq!(text.lines().count(), 1, "said once: {text}");
    fs::remove_file(&fill).unwrap();
    assert_eq!((client.write(0, &[3; 1 << 20]), client.flush()), (0, 0));
    assert_eq!(client.read(0, 1 << 20), vec![3; 1 << 20]);
}
