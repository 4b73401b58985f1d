//! A manager whose disk gets full, on real processes and a small file system (P12, P14). Needs the right to mount; skipped without.

mod common;

use common::{Cluster, assert_refused, eventually, tessera};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// A file system of 48 MiB, unmounted when dropped.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(path: PathBuf) -> Option<SmallDisk> {
        fs::create_dir_all(&path).unwrap();
        let mut mount = Command::new("mount");
        let mounted = mount.args(["-t", "tmpfs", "-o", "size=48m", "none"]).arg(&path).output();
        match mounted.is_ok_and(|mounted| mounted.status.success()) {
            true => Some(SmallDisk(path)),
            false => {
                eprintln!("skipped: no file system can be mounted");
                None
            }
        }
    }

    /// Takes all its room.
    fn fill(&self) {
        let error = fs::write(self.0.join("fill"), vec![1; 64 << 20]).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::StorageFull);
    }

    fn clear(&self) {
        fs::remove_file(self.0.join("fill")).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

fn manager(dir: &Path, more: &[&str]) -> common::Run {
    let mut args = vec!["manager", "--listen", "127.0.0.1:0", "--dir", dir.to_str().unwrap()];
    args.extend(more);
    let run = tessera(&args);
    // Its log comes before.
    common::Run { stderr: run.stderr.lines().last().unwrap_or_default().to_string(), ..run }
}

#[test]
fn p14_a_manager_that_starts_on_a_full_disk_names_the_disk_and_the_way_out() {
    let dir = TempDir::new().unwrap();
    let Some(disk) = SmallDisk::mount(dir.path().join("disk")) else { return };
    let home = disk.0.join("manager");
    fs::create_dir(&home).unwrap();
    disk.fill();
    let words = [home.to_str().unwrap(), "0 bytes are free", "8388608 are needed", "free space on it"];
    assert_refused(&manager(&home, &[]), 7, &words);
    let cluster = Cluster::start(0);
    let joins = manager(&home, &["--join", cluster.address()]);
    assert_refused(&joins, 7, &words);
    assert!(!joins.stderr.contains("add a disk"), "{joins:?}");
}

#[test]
fn p14_a_node_that_starts_on_a_full_disk_names_the_disk_and_the_way_out() {
    let dir = TempDir::new().unwrap();
    let Some(disk) = SmallDisk::mount(dir.path().join("disk")) else { return };
    let home = disk.0.join("n1");
    fs::create_dir(&home).unwrap();
    disk.fill();
    let cluster = Cluster::start(0);
    let run = cluster.run(&[
        "node",
        "--disk",
        home.to_str().unwrap(),
        "--name",
        "n1",
        "--host",
        "h1",
        "--set",
        "reserve_bytes=0",
    ]);
    let run = common::Run { stderr: run.stderr.lines().last().unwrap_or_default().to_string(), ..run };
    assert_refused(&run, 7, &["full", "free space"]);
}

/// P14: a drain that finds no room says so once and waits, and `status` and the metrics say how much waits; it ends once there is room.
#[test]
fn p14_a_drain_without_room_says_so_and_ends_once_there_is_some() {
    let mut cluster = Cluster::start(3);
    assert_eq!(cluster.with_stdin(&["put", "-p", "redundancy=replica:3", "-", "tess:/f"], b"bytes").code, 0);
    // The only other node leaves all its room to others.
    let full = ["--set".to_string(), format!("reserve_bytes={}", u64::MAX)];
    std::fs::create_dir(cluster.disk(4)).unwrap();
    let args: Vec<String> = cluster.node_args(4).into_iter().chain(full).collect();
    cluster.nodes.push(Some(common::Daemon::start(&args, &cluster.log("n4"))));
    cluster.wait_up(4);
    let said = cluster.path().join("said");
    let stderr = fs::File::create(&said).unwrap();
    let mut drain = cluster.command(&["node", "drain", "n1", "--follow", "--quiet"]).stderr(stderr).spawn().unwrap();
    let words = "the drain waits: no disk on a further host has room for";
    eventually("it says why it waits", || fs::read_to_string(&said).unwrap().contains(words));
    let waiting = cluster.status()["repair"]["members_waiting"].clone();
    assert_eq!((&waiting[0]["reason"], &waiting[1]), (&"no-room".into(), &serde_json::Value::Null), "{waiting}");
    let text = cluster.ok(&["status"]).text();
    assert!(text.contains("REPAIR WAITS: no disk on a further host has room for"), "{text}");
    let metrics = common::http(cluster.manager.as_ref().unwrap().metrics.as_ref().unwrap(), "/metrics");
    assert!(
        metrics.contains(&format!("tessera_manager_members_waiting_for_room {}", waiting[0]["members"])),
        "{metrics}"
    );
    cluster.nodes[3].take().unwrap().stop();
    cluster.start_node(4);
    assert!(drain.wait().unwrap().success());
    assert_eq!(fs::read_to_string(&said).unwrap().matches(words).count(), 1);
    assert!(!cluster.ok(&["status"]).text().contains("WAITS"));
}

#[test]
fn p12_a_manager_whose_disk_gets_full_serves_reads_and_goes_on_once_there_is_room() {
    let dir = TempDir::new().unwrap();
    let mut cluster = Cluster::start(0);
    let Some(disk) = SmallDisk::mount(dir.path().join("disk")) else { return };
    cluster.kill_manager();
    // A cluster of its own in the small file system.
    let home = disk.0.join("manager");
    let mut args = cluster.manager_args(&[]);
    let at = args.iter().position(|arg| arg == "--dir").unwrap() + 1;
    args[at] = home.display().to_string();
    cluster.manager = Some(common::Daemon::start(&args, &cluster.log("manager")));
    eventually("the manager serves", || cluster.run(&["mkdir", "tess:/a"]).code == 0);
    disk.fill();
    eventually("the disk is full", || {
        let refused = cluster.run(&["mkdir", "-p", "tess:/b"]);
        refused.code == 7 && refused.stderr.contains(home.to_str().unwrap()) && refused.stderr.contains("free space")
    });
    assert!(cluster.ok(&["ls", "tess:/"]).text().contains('a'));
    assert_eq!(cluster.run(&["rm", "-r", "tess:/a"]).code, 7);
    disk.clear();
    eventually("there is room", || cluster.run(&["mkdir", "tess:/c"]).code == 0);
    cluster.ok(&["rm", "-r", "tess:/a"]);
    cluster.stop();
}
