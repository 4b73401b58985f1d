//! Small files that a program goes through on a mount are fetched ahead and opened without sessions (docs/mount.md). Skipped, with a
//! message, where there is no FUSE.

mod common;

use common::mounted::{Mounted, can_mount};
use common::{Cluster, http};
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

const DIRECTORIES: u64 = 5;
const FILES: u64 = 40;

/// Number of requests of a kind that the manager has answered.
fn requests(c: &Cluster, kind: &str) -> u64 {
    let text = http(c.manager.as_ref().unwrap().metrics.as_ref().unwrap(), "/metrics");
    let line = format!("tessera_manager_requests_total{{kind=\"{kind}\"}} ");
    text.lines().find_map(|l| l.strip_prefix(&line)).map_or(0, |n| n.trim().parse().unwrap())
}

fn content(directory: u64, file: u64) -> Vec<u8> {
    (0..=211 * file).map(|at| (at * (directory + 3) + file) as u8).collect()
}

fn make_tree(top: &Path) {
    for directory in 0..DIRECTORIES {
        fs::create_dir(top.join(format!("{directory}"))).unwrap();
        for file in 0..FILES {
            fs::write(top.join(format!("{directory}/{file:02}")), content(directory, file)).unwrap();
        }
    }
}

/// The files of a directory in the order in which it lists them.
fn list(directory: &Path) -> Vec<PathBuf> {
    fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect()
}

#[test]
fn a_tree_of_small_files_is_read_with_few_requests() {
    let c = Cluster::start(6);
    if !can_mount(&c) {
        return;
    }
    let (writing, reading) = (Mounted::new(&c, "writing", &[]), Mounted::new(&c, "reading", &[]));
    make_tree(&writing.path);
    for directory in 0..DIRECTORIES {
        let files = list(&reading.at(&format!("{directory}")));
        assert_eq!(files.len() as u64, FILES);
        for path in files {
            let file = path.file_name().unwrap().to_str().unwrap().parse().unwrap();
            assert!(fs::read(&path).unwrap() == content(directory, file), "{}", path.display());
        }
    }
    // The page of metrics lags by a second, which only makes them fewer: it is looked at when it shows the descriptions.
    common::eventually("files were described", || requests(&c, "DescribeReads") >= 2 * DIRECTORIES);
    let (opened, described) = (requests(&c, "OpenRead"), requests(&c, "DescribeReads"));
    assert!(opened + described < DIRECTORIES * FILES / 4, "{opened} opens and {described} requests for descriptions");
}

#[test]
fn files_that_are_open_without_a_session_outlive_what_another_mount_does() {
    let c = Cluster::start(6);
    if !can_mount(&c) {
        return;
    }
    let (writing, reading) = (Mounted::new(&c, "writing", &[]), Mounted::new(&c, "reading", &[]));
    make_tree(&writing.path);
    let files = list(&reading.at("0"));
    fs::read(&files[0]).unwrap();
    let [mut replaced, mut removed, mut cut] = [5, 6, 7].map(|at| File::open(&files[at]).unwrap());
    fs::write(writing.at("new"), b"new").unwrap();
    fs::rename(writing.at("new"), writing.at("0/05")).unwrap();
    fs::remove_file(writing.at("0/06")).unwrap();
    fs::write(writing.at("0/08"), b"rewritten").unwrap();
    let read = |file: &mut File| {
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).unwrap();
        bytes
    };
    assert!(read(&mut replaced) == content(0, 5) && read(&mut removed) == content(0, 6));
    assert_eq!(removed.metadata().unwrap().size(), content(0, 6).len() as u64);
    assert!(fs::read(&files[5]).unwrap() == b"new" && fs::read(&files[8]).unwrap() == b"rewritten");
    assert!(File::open(&files[6]).is_err());
    // On its own mount, too.
    fs::remove_file(&files[7]).unwrap();
    assert!(read(&mut cut) == content(0, 7) && cut.metadata().unwrap().nlink() == 0);
}
