//! What a store keeps from others: its files from other users of the machine, and a user's terminal from names that others
//! chose.

mod common;

use common::{Cluster, Daemon, TESSERA, tree};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};

/// Sets a directory to the mode that `mkdir` gives.
fn open_up(dir: &Path) {
    std::fs::set_permissions(dir, PermissionsExt::from_mode(0o755)).unwrap();
}

/// What was read; `None`: it was removed meanwhile.
fn present<T>(result: std::io::Result<T>) -> Option<T> {
    match result {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => None,
        result => Some(result.unwrap()),
    }
}

/// Asserts that no other user may read `root` or anything below it. Daemons remove files meanwhile: those are passed over.
fn assert_private(root: &Path) {
    let root_mode = std::fs::symlink_metadata(root).unwrap().mode() & 0o7777;
    assert_eq!(root_mode, 0o700, "{}", root.display());
    let mut todo = vec![root.to_path_buf()];
    while let Some(path) = todo.pop() {
        let Some(meta) = present(std::fs::symlink_metadata(&path)) else { continue };
        assert_eq!(meta.mode() & 0o077, 0, "{}", path.display());
        if meta.is_dir() {
            let listed = present(std::fs::read_dir(&path)).into_iter().flatten();
            todo.extend(listed.map(|entry| entry.unwrap().path()));
        }
    }
}

#[test]
fn stored_data_is_its_users_alone() {
    let mut c = Cluster::start(3);
    let private = |c: &Cluster| {
        assert_private(&c.manager_dir());
        (1..=3).for_each(|node| assert_private(&c.disk(node)));
    };
    assert_eq!(c.with_stdin(&["put", "-p", "redundancy=replica:2", "-", "tess:/f"], &tree::bytes(1, 3 << 20)).code, 0);
    private(&c);
    // Directories that an operator made with the usual mode.
    c.manager.take().unwrap().stop();
    c.nodes[0].take().unwrap().stop();
    [c.manager_dir(), c.disk(1)].iter().for_each(|dir| open_up(dir));
    c.start_manager(&[]);
    c.start_node(1);
    private(&c);
    c.ok(&["cat", "tess:/f"]);
}

#[test]
fn a_store_on_one_machine_is_its_users_alone() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path().join("store");
    std::fs::create_dir(&dir).unwrap();
    open_up(&dir);
    let mut up = Command::new(TESSERA)
        .args(["up", "--json", "--listen", "127.0.0.1:0", "--nodes", "2", "--dir", dir.to_str().unwrap()])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(up.stdout.take().unwrap()), &mut line).unwrap();
    rustix::process::kill_process(rustix::process::Pid::from_child(&up), rustix::process::Signal::TERM).unwrap();
    up.wait().unwrap();
    assert!(line.contains("manager"), "{line}");
    assert_private(&dir);
}

/// P14: names of nodes, hosts and files cannot move a reader's cursor or turn text around.
#[test]
fn names_of_others_are_printed_escaped() {
    let c = Cluster::start(1);
    let disk = c.path().join("other");
    std::fs::create_dir(&disk).unwrap();
    let (name, host) = ("n\x1b[31m\u{202e}x", "h\u{9b}2J\u{2066}");
    let mut args = c.node_args(1);
    for (flag, value) in [("--disk", disk.to_str().unwrap()), ("--name", name), ("--host", host)] {
        let at = args.iter().position(|arg| arg == flag).unwrap();
        args[at + 1] = value.into();
    }
    let log = c.path().join("other.log");
    let _node = Daemon::start(&args, &log);
    let path = "tess:/gpj.\u{202e}exe\u{1b}[2J";
    assert_eq!(c.with_stdin(&["put", "--quiet", "-p", "redundancy=none", "-", path], b"x").code, 0);
    let commands: [&[&str]; 9] = [
        &["status"],
        &["status", "--json"],
        &["node", "list"],
        &["ls", "-l"],
        &["ls", "--json"],
        &["stat", path],
        &["locate", "--extents", path],
        &["mkdir", path],
        &["node", "drain", "n\u{202e}\x1b"],
    ];
    for command in commands {
        let ran = c.run(command);
        let shown = ran.text() + &ran.stderr;
        assert!(!shown.contains(['\x1b', '\u{202e}', '\u{9b}', '\u{2066}']), "{command:?}: {shown:?}");
    }
    let listed: serde_json::Value = serde_json::from_str(&c.ok(&["ls", "--json"]).text()).unwrap();
    assert_eq!(listed["path"], path);
    let node_list = c.ok(&["node", "list"]).text();
    assert!(node_list.contains("n\\u{1b}[31m\\u{202e}x"), "{node_list}");
    let log = std::fs::read_to_string(log).unwrap();
    assert!(!log.contains(['\x1b', '\u{202e}', '\u{9b}']), "{log}");
}
