//! `tessera flash serve --fuse`: the emulated SSD as a file. Skipped, with a message, where there is no FUSE, except in
//! continuous integration.

mod common;
mod nbd;

use common::tessera;
use nbd::{Client, SIZE, Server};
use rustix::fs::{FallocateFlags, fallocate};
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};

#[test]
fn the_file_has_the_bytes_of_the_ssd() {
    if !nbd::has_fuse() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    for delays in [&[][..], &["--timing", "real"]] {
        let (mut server, path) = nbd::serve_file(dir.path(), delays);
        let file = File::options().read(true).write(true).open(&path).unwrap();
        assert_eq!(file.metadata().unwrap().len(), SIZE);
        let mut client = Client::connect(&server);
        file.write_all_at(&[1; 20_000], 5_000).unwrap();
        file.sync_all().unwrap();
        assert_eq!((client.read(5_000, 20_000), client.write(8_000, &[2; 100])), (vec![1; 20_000], 0));
        let mut read = vec![0; 100];
        file.read_exact_at(&mut read, 8_000).unwrap();
        assert_eq!(read, [2; 100]);
        let hole = |flags| fallocate(&file, flags | FallocateFlags::KEEP_SIZE, 6_000, 10_000);
        hole(FallocateFlags::PUNCH_HOLE).unwrap();
        assert_eq!((client.read(5_999, 10_002)[1..10_001].iter().max(), client.read(5_999, 1)), (Some(&0), vec![1]));
        assert!(hole(FallocateFlags::COLLAPSE_RANGE).is_err());
        let beyond = |flags, offset| fallocate(&file, flags | FallocateFlags::KEEP_SIZE, offset, 2 * SIZE);
        beyond(FallocateFlags::PUNCH_HOLE, SIZE).unwrap();
        file.write_all_at(&[3; 4096], SIZE - 4096).unwrap();
        beyond(FallocateFlags::PUNCH_HOLE, SIZE - 4095).unwrap();
        assert_eq!(client.read(SIZE - 4096, 2), [3, 0]);
        assert_eq!(file.write_at(&[1], SIZE).unwrap_err().kind(), ErrorKind::StorageFull);
        assert_eq!((file.read_at(&mut read, SIZE).unwrap(), file.set_len(1).is_err()), (0, true));
        server.cut(&["--for", "0"]);
        assert!(file.sync_all().is_err(), "it hears of the cut");
        file.sync_all().unwrap();
        drop(file);
        assert_eq!(server.terminate(), 0);
        assert_eq!(path.metadata().unwrap().len(), 0, "the mount is gone");
        assert!(!server.socket.exists() && !Path::new(&server.control()).exists(), "and so are the sockets");
    }
}

#[test]
fn each_program_that_has_the_file_open_hears_of_a_power_cut() {
    if !nbd::has_fuse() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (mut server, path) = nbd::serve_file(dir.path(), &["--write-buffer", "256K"]);
    let open = || File::options().read(true).write(true).open(&path).unwrap();
    let (writer, reader) = (open(), open());
    writer.write_all_at(&[1; 4096], 0).unwrap();
    server.cut(&["--for", "0"]);
    assert!(reader.read_at(&mut [0; 512], 0).is_err(), "it hears of the cut");
    assert!(writer.sync_all().is_err(), "what it wrote is lost");
    assert!(reader.sync_all().is_err(), "a loop device may have written it for another program");
    assert!(writer.sync_all().is_ok() && reader.sync_all().is_ok() && open().sync_all().is_ok());
    drop((writer, reader));
    assert_eq!(server.terminate(), 0);
}

#[test]
fn a_server_that_ends_while_the_file_is_open_says_so() {
    if !nbd::has_fuse() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    for is_open in [true, false] {
        let (path, said) = (dir.path().join("ssd"), dir.path().join("stderr"));
        let stderr = Stdio::from(File::create(&said).unwrap());
        let mut server = Server::start_with(dir.path(), &["--fuse", path.to_str().unwrap()], stderr);
        let file = is_open.then(|| File::options().read(true).write(true).open(&path).unwrap());
        assert_eq!(server.terminate(), 0);
        let said = fs::read_to_string(&said).unwrap();
        assert_eq!(said.contains("warning") && said.contains("losetup --detach"), is_open, "{said}");
        assert!(file.is_none_or(|file| file.write_all_at(&[1], 0).is_err()));
    }
}

#[test]
fn what_cannot_be_mounted_over_is_refused() {
    if !nbd::has_fuse() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let full = dir.path().join("full");
    fs::write(&full, "bytes").unwrap();
    let socket = format!("unix:{}", dir.path().join("s").display());
    for path in [&full, dir.path()] {
        let path = path.to_str().unwrap();
        let size = ["--capacity", "64M", "--over-provisioning", "60%"];
        let run = tessera(&[&["flash", "serve", "--nbd", &socket, "--fuse", path], &size[..]].concat());
        assert_eq!(run.code, 6, "{run:?}");
        assert!(run.stderr.contains(path) && run.stderr.contains("name an empty or new file"), "{run:?}");
        assert!(!run.stderr.contains("figures"), "a server that does not start announces nothing: {run:?}");
        assert!(!dir.path().join("s").exists() && !dir.path().join("s.control").exists(), "nor does it leave sockets");
    }
    let (mut server, taken) = nbd::serve_file(dir.path(), &[]);
    let options = ["--capacity", "64M", "--over-provisioning", "60%", "--fuse", taken.to_str().unwrap()];
    let again = tessera(&[&["flash", "serve", "--nbd", &socket], &options[..]].concat());
    assert_eq!(
        (again.code, again.stderr.contains("another server serves its SSD as this file")),
        (6, true),
        "{again:?}"
    );
    assert_eq!(server.terminate(), 0);
}

#[test]
fn a_server_that_cannot_say_where_it_is_leaves_no_mount_and_no_file() {
    if !nbd::has_fuse() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (new, old) = (dir.path().join("new"), dir.path().join("old"));
    fs::write(&old, "").unwrap();
    for path in [&new, &old] {
        let socket = format!("unix:{}", dir.path().join("s").display());
        let serve = ["flash", "serve", "--capacity", "64M", "--over-provisioning", "60%", "--nbd", &socket, "--fuse"];
        let full = File::options().write(true).open("/dev/full").unwrap();
        let ended = Command::new(common::TESSERA).args(serve).arg(path).arg("-q").stdout(full).status().unwrap();
        assert_eq!(ended.code(), Some(7));
    }
    let names = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name());
    assert_eq!(names.collect::<Vec<_>>(), ["old"], "neither sockets nor a file that it made");
    assert_eq!(fs::read(&old).unwrap(), b"", "nothing is mounted there");
}
