//! Half-written files of a `get` that was killed.

mod common;

use common::{Cluster, eventually, tree};
use rustix::process::{Pid, Signal, kill_process};
use std::path::Path;
use std::process::{Child, Stdio};

/// Half-written files in a directory.
fn parts(directory: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(directory) else { return Vec::new() };
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.ends_with(".part")).collect()
}

fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

/// One node of which every file needs a chunk. The others keep the metadata going.
fn signal_node(cluster: &Cluster, to_send: Signal) {
    signal(&cluster.nodes[0].as_ref().unwrap().child, to_send);
}

/// Starts a command while a node answers nothing, and waits until it has begun a file there.
fn begin(cluster: &Cluster, words: &[&str], directory: &Path) -> Child {
    let before = parts(directory).len();
    signal_node(cluster, Signal::STOP);
    let child = cluster.command(words).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    eventually("a file is begun", || parts(directory).len() > before);
    child
}

/// A killed command leaves what it had begun; the next one there removes it. What a command that lives has begun stays.
#[test]
fn what_a_killed_get_left_is_removed_by_the_next() {
    let cluster = Cluster::start(6);
    let (src, back) = (cluster.path().join("src"), cluster.path().join("back"));
    std::fs::create_dir_all(src.join("below")).unwrap();
    let long = tree::bytes(1, 3 << 20);
    std::fs::write(src.join("long"), &long).unwrap();
    std::fs::write(src.join("below/other"), tree::bytes(2, 2 << 20)).unwrap();
    let (from, to) = (src.to_str().unwrap(), format!("{}/", back.display()));
    cluster.ok(&["put", "-r", "--quiet", "-p", "redundancy=none", "-p", "chunking=fixed:16K", from, "tess:/t"]);
    let get = ["get", "-r", "--quiet", "tess:/t", &to];
    let back = back.join("t");

    let mut killed = begin(&cluster, &get, &back);
    eventually("a file below is begun", || !parts(&back.join("below")).is_empty());
    signal(&killed, Signal::KILL);
    killed.wait().unwrap();
    signal_node(&cluster, Signal::CONT);
    assert!(!parts(&back).is_empty() && !parts(&back.join("below")).is_empty());
    // A file of another program, and one that only looks similar.
    std::fs::write(back.join("mine.part"), "mine").unwrap();
    cluster.ok(&get);
    assert_eq!((parts(&back), parts(&back.join("below"))), (vec!["mine.part".to_string()], vec![]));
    std::fs::remove_file(back.join("mine.part")).unwrap();
    tree::assert_equal(&src, &back);

    // One that is stopped holds what it has begun, and goes on with it.
    let one = ["get", "--quiet", "tess:/t/long", back.to_str().unwrap()];
    let mut stopped = begin(&cluster, &one, &back);
    signal(&stopped, Signal::STOP);
    signal_node(&cluster, Signal::CONT);
    let held = parts(&back);
    cluster.ok(&one);
    assert_eq!(parts(&back), held, "somebody writes it");
    std::fs::remove_file(back.join("long")).unwrap();
    signal(&stopped, Signal::CONT);
    assert!(stopped.wait().unwrap().success());
    assert!(parts(&back).is_empty() && std::fs::read(back.join("long")).unwrap() == long);
}
