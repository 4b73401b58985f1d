//! Files in and out of a real cluster: `get` returns what `put` stored, with modes, times, links and names.

mod common;

use common::{Cluster, assert_refused, tree};
use std::fs::Permissions;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::Command;

/// Runs a test on a cluster shared by this file, because a start costs more than a test. Each test uses its own
/// directory.
fn with_cluster(test: impl FnOnce(&Cluster)) {
    test(&Cluster::start(6));
}

/// P1, P2: every byte, mode, time, link and odd name of a tree comes back; a second put deduplicates.
#[test]
fn a_tree_comes_back_as_it_was() {
    with_cluster(|c| {
        let (src, back) = (c.path().join("src"), c.path().join("back"));
        std::fs::create_dir(&src).unwrap();
        tree::make(&src);
        let put = c.ok(&["put", "-r", "--json", src.to_str().unwrap(), "tess:/tree"]).json();
        let files = tree::snapshot(&src).values().filter(|e| e.0 == 'f').count() as u64;
        assert_eq!((put["files"].as_u64(), put["symlinks"].as_u64()), (Some(files), Some(2)));
        assert_eq!(put["failed"], 0);
        c.ok(&["get", "-r", "--quiet", "tess:/tree", back.to_str().unwrap()]);
        tree::assert_equal(&src, &back);

        // Again, into an existing directory: the tree goes below it, and no chunk is stored twice.
        let before = c.status()["bytes"]["unique"].as_u64();
        let again = c.ok(&["put", "-r", "--json", src.to_str().unwrap(), "tess:/"]).json();
        assert_eq!(again["new_bytes"], 0, "all of it was known");
        assert_eq!(c.status()["bytes"]["unique"].as_u64(), before);
        let listed = c.ok(&["ls", "tess:/"]).text();
        assert_eq!(listed, "src/\ntree/\n");

        // Over itself: links are replaced, files get versions.
        c.ok(&["put", "-r", "--quiet", src.to_str().unwrap(), "tess:/"]);
        c.ok(&["get", "-r", "--quiet", "tess:/src", back.to_str().unwrap()]);
        tree::assert_equal(&src, &back.join("src"));
        assert_eq!(c.ok(&["ls", "-R", "--json", "tess:/src"]).text().lines().count(), tree::snapshot(&src).len());
        c.ok(&["rm", "-r", "tess:/src", "tess:/tree"]);
        assert_eq!(c.ok(&["ls"]).text(), "");
    });
}

/// P1: what is in the way of a directory or link is replaced if it can be, and named if it cannot.
#[test]
fn a_tree_is_stored_over_another_one() {
    with_cluster(|c| {
        let (src, back) = (c.path().join("src"), c.path().join("back"));
        std::fs::create_dir_all(src.join("a/b/c/d")).unwrap();
        std::fs::create_dir(src.join("e")).unwrap();
        let link = |target: &str, name: &str| std::os::unix::fs::symlink(target, src.join(name)).unwrap();
        link("c/d", "a/b/link");
        link("nowhere", "was-a-file");
        link("e", "was-a-link");
        (0..1_100).for_each(|i| link(&format!("{i}"), &format!("e/{i}")));
        std::fs::set_permissions(src.join("a/b"), Permissions::from_mode(0o711)).unwrap();
        let (file, src_text) = (c.path().join("file"), src.to_str().unwrap());
        std::fs::write(&file, "text").unwrap();
        let file = file.to_str().unwrap();
        let first = c.path().join("first/over");
        std::fs::create_dir_all(&first).unwrap();
        std::os::unix::fs::symlink("elsewhere", first.join("was-a-link")).unwrap();
        c.ok(&["mkdir", "-p", "tess:/over/a/b"]);
        c.ok(&["put", "--quiet", file, "tess:/over/was-a-file"]);
        c.ok(&["put", "-r", "--quiet", first.to_str().unwrap(), "tess:/"]);
        std::fs::rename(&src, c.path().join("over")).unwrap();
        std::fs::create_dir(&src).unwrap();
        std::fs::rename(c.path().join("over"), src.join("over")).unwrap();
        let put = c.ok(&["put", "-r", "--json", &format!("{src_text}/over"), "tess:/"]).json();
        assert_eq!((&put["directories"], &put["symlinks"]), (&6.into(), &1_103.into()), "{put}");
        c.ok(&["get", "-r", "--quiet", "tess:/over", back.to_str().unwrap()]);
        tree::assert_equal(&src.join("over"), &back);

        // What is put into the root does not change the root.
        let root = || c.ok(&["stat", "--json", "tess:/"]).json();
        let before = root();
        std::fs::set_permissions(&src, Permissions::from_mode(0o700)).unwrap();
        c.ok(&["put", "-r", "--quiet", &format!("{src_text}/."), "tess:/"]);
        c.ok(&["put", "-r", "--quiet", "--skip-unchanged", &format!("{src_text}/."), "tess:/"]);
        assert_eq!((&before["mode"], &before["uid"]), (&root()["mode"], &root()["uid"]));
        std::fs::set_permissions(&src, Permissions::from_mode(0o755)).unwrap();

        // A directory cannot take the place of a file, nor a link that of a directory.
        c.ok(&["rm", "-r", "tess:/over/a/b", "tess:/over/was-a-link"]);
        c.ok(&["put", "--quiet", file, "tess:/over/a/b"]);
        c.ok(&["mkdir", "tess:/over/was-a-link"]);
        let ran = c.run(&["put", "-r", &format!("{src_text}/over"), "tess:/"]);
        assert!(ran.code != 0 && ran.stderr.contains("tess:/over/a/b") && ran.stderr.contains("in the way"), "{ran:?}");
        c.ok(&["rm", "tess:/over/a/b"]);
        let ran = c.run(&["put", "-r", &format!("{src_text}/over"), "tess:/"]);
        assert!(ran.code != 0 && ran.stderr.contains("tess:/over/was-a-link"), "{ran:?}");
        assert!(c.ok(&["ls", "tess:/over/e"]).text().lines().count() == 1_100, "the other links are there");
    });
}

/// P1: what is skipped as unchanged is there, and whatever changes an attribute is stored again.
#[test]
fn an_unchanged_tree_is_not_read_again() {
    with_cluster(|c| {
        let (src, back) = (c.path().join("src"), c.path().join("back"));
        std::fs::create_dir(&src).unwrap();
        tree::make(&src);
        let files = tree::snapshot(&src).values().filter(|e| e.0 == 'f').count() as u64;
        let put = || {
            let words = ["put", "-r", "--skip-unchanged", "--json", src.to_str().unwrap(), "tess:/"];
            let said = c.ok(&words).json();
            c.ok(&["get", "-r", "--quiet", "tess:/src", back.to_str().unwrap()]);
            tree::assert_equal(&src, &back.join("src"));
            std::fs::remove_dir_all(&back).unwrap();
            ["files", "unchanged", "directories", "symlinks"].map(|name| said[name].as_u64().unwrap())
        };
        let long_ago = std::time::SystemTime::now() - std::time::Duration::from_secs(60);
        let make_old = |path: &std::path::Path, s: u64| {
            let time = long_ago + std::time::Duration::from_secs(s);
            std::fs::File::open(path).unwrap().set_modified(time).unwrap();
        };
        for (path, entry) in tree::snapshot(&src) {
            if entry.0 == 'f' {
                make_old(&src.join(std::ffi::OsStr::from_bytes(&path)), 0);
            }
        }
        std::fs::create_dir(&back).unwrap();
        assert_eq!(put()[..2], [files, 0], "the store has nothing yet");
        std::fs::create_dir(&back).unwrap();
        assert_eq!(put(), [0, files, 0, 0]);

        // The same length at another time, another mode, a new file, and another target of a link.
        std::fs::create_dir_all(src.join("more/below")).unwrap();
        std::fs::write(src.join("more/below/a"), "one").unwrap();
        std::fs::write(src.join("more/b"), "two").unwrap();
        std::os::unix::fs::symlink("a", src.join("more/link")).unwrap();
        make_old(&src.join("more/below/a"), 0);
        make_old(&src.join("more/b"), 0);
        std::fs::create_dir(&back).unwrap();
        assert_eq!(put(), [2, files, 3, 1], "src, more and more/below");
        std::fs::write(src.join("more/below/a"), "two").unwrap();
        make_old(&src.join("more/below/a"), 1);
        std::fs::set_permissions(src.join("more/b"), Permissions::from_mode(0o600)).unwrap();
        std::fs::remove_file(src.join("more/link")).unwrap();
        std::os::unix::fs::symlink("b", src.join("more/link")).unwrap();
        std::fs::create_dir(&back).unwrap();
        assert_eq!(put(), [2, files, 2, 1], "more and more/below");

        // A change that follows the first one at once may have the same time.
        let now = std::time::SystemTime::now();
        std::fs::write(src.join("more/b"), "six").unwrap();
        std::fs::File::open(src.join("more/b")).unwrap().set_modified(now).unwrap();
        std::fs::create_dir(&back).unwrap();
        put();
        std::fs::write(src.join("more/b"), "ten").unwrap();
        std::fs::File::open(src.join("more/b")).unwrap().set_modified(now).unwrap();
        std::fs::create_dir(&back).unwrap();
        assert_eq!(put()[0], 1);
    });
}

/// P1: what is not sent because of its content is there, whatever times say, and gets the attributes of its source.
#[test]
fn a_tree_is_compared_by_content() {
    with_cluster(|c| {
        let (src, back) = (c.path().join("src"), c.path().join("back"));
        std::fs::create_dir(&src).unwrap();
        tree::make(&src);
        std::fs::write(src.join("long"), tree::bytes(5, 11 << 20)).unwrap();
        let holes = std::fs::File::create(src.join("holes")).unwrap();
        for at in [1 << 20, 5 << 20] {
            std::os::unix::fs::FileExt::write_all_at(&holes, &tree::bytes(6, 700_000), at).unwrap();
        }
        holes.set_len(9 << 20).unwrap();
        let all: Vec<_> = tree::snapshot(&src).into_iter().filter(|(_, entry)| entry.0 == 'f').collect();
        let files = all.len() as u64;
        let put = || {
            let words = ["put", "-r", "--checksum", "--json", src.to_str().unwrap(), "tess:/"];
            let said = c.ok(&words).json();
            std::fs::create_dir(&back).unwrap();
            c.ok(&["get", "-r", "--quiet", "tess:/src", back.to_str().unwrap()]);
            tree::assert_equal(&src, &back.join("src"));
            std::fs::remove_dir_all(&back).unwrap();
            ["files", "unchanged", "attributes_set", "directories", "symlinks"].map(|name| said[name].as_u64().unwrap())
        };
        assert_eq!(put()[..3], [files, 0, 0], "the store has nothing yet");
        assert_eq!(put(), [0, files, 0, 0, 0]);
        let version =
            |name: &str| c.ok(&["stat", "--json", &format!("tess:/src/{name}")]).json()["version_number"].as_u64();
        // Other times and modes: no byte is stored.
        for (path, _) in &all {
            let file = std::fs::File::open(src.join(std::ffi::OsStr::from_bytes(path))).unwrap();
            file.set_modified(std::time::UNIX_EPOCH + std::time::Duration::from_secs(77)).unwrap();
        }
        std::fs::set_permissions(src.join("program"), Permissions::from_mode(0o711)).unwrap();
        assert_eq!(put(), [0, 0, files, 0, 0]);
        assert_eq!((version("program"), version("long"), version("holes")), (Some(1), Some(1), Some(1)));
        // Other bytes, and the same length and time: those files are stored.
        for name in ["sizes/131072", "many/0/file-4", "long", "holes"] {
            let mut bytes = std::fs::read(src.join(name)).unwrap();
            let at = bytes.len() / 5;
            bytes[at] ^= 1;
            let file = std::fs::File::options().write(true).open(src.join(name)).unwrap();
            std::os::unix::fs::FileExt::write_all_at(&file, &bytes[at..=at], at as u64).unwrap();
            file.set_modified(std::time::UNIX_EPOCH + std::time::Duration::from_secs(77)).unwrap();
        }
        assert_eq!(put()[..3], [4, files - 4, 0]);
        assert_eq!((version("program"), version("long"), version("holes")), (Some(1), Some(2), Some(2)));
        assert_eq!(put(), [0, files, 0, 0, 0]);
        // A file in the place of a directory, and a directory in the place of a file.
        std::fs::remove_file(src.join("program")).unwrap();
        std::fs::create_dir(src.join("program")).unwrap();
        c.ok(&["rm", "tess:/src/program"]);
        assert_eq!(put()[..2], [0, files - 1]);
        let refused = c.run(&["put", "-r", "--checksum", "--skip-unchanged", src.to_str().unwrap(), "tess:/"]);
        assert_eq!(refused.code, 2, "{refused:?}");
    });
}

/// P14: a link that an earlier fetch left below the target does not lead a later one out of it, and modes give no rights.
#[test]
fn a_tree_does_not_lead_out_of_its_target() {
    with_cluster(|c| {
        let (src, back, outside) = (c.path().join("src"), c.path().join("back"), c.path().join("outside"));
        std::fs::create_dir(&src).unwrap();
        std::fs::write(&outside, "precious").unwrap();
        std::os::unix::fs::symlink("../outside", src.join("readme")).unwrap();
        let [from, to] = [&src, &back].map(|path| path.to_str().unwrap());
        c.ok(&["put", "-r", "--quiet", from, "tess:/tree"]);
        c.ok(&["get", "-r", "--quiet", "tess:/tree", to]);
        c.ok(&["rm", "tess:/tree/readme"]);
        std::fs::remove_file(src.join("readme")).unwrap();
        std::fs::write(src.join("readme"), "payload").unwrap();
        std::fs::set_permissions(src.join("readme"), Permissions::from_mode(0o6755)).unwrap();
        c.ok(&["put", "--quiet", src.join("readme").to_str().unwrap(), "tess:/tree/readme"]);
        for (flags, mode) in [(&["-r"][..], 0o755), (&["-r", "--set-id"], 0o6755)] {
            c.ok(&[&["get", "--quiet"], flags, &["tess:/tree", c.path().to_str().unwrap()]].concat());
            c.ok(&[&["get", "--quiet"], flags, &["tess:/tree/readme", to]].concat());
            assert_eq!(std::fs::read_to_string(&outside).unwrap(), "precious");
            let meta = std::fs::symlink_metadata(back.join("readme")).unwrap();
            assert_eq!((meta.is_file(), meta.mode() & 0o7777), (true, mode));
        }
    });
}

#[test]
fn streams_ranges_versions_names_and_policies() {
    with_cluster(|c| {
        let data = tree::bytes(7, 3 << 20);
        assert_eq!(c.with_stdin(&["put", "-", "tess:/stream"], &data).code, 0);
        assert!(c.ok(&["cat", "tess:/stream"]).stdout == data);
        assert!(c.ok(&["get", "tess:/stream", "-"]).stdout == data);
        let range = c.ok(&["cat", "--range", "1000003..2000005", "tess:/stream"]);
        assert!(range.stdout == data[1_000_003..2_000_005]);
        assert_eq!(c.with_stdin(&["put", "-", "tess:/"], &data).code, 2);

        // Versions: as many as the policy allows, each with its own bytes; compare and swap.
        c.ok(&["mkdir", "--policy", "lifetime=replace:2", "tess:/kept"]);
        for text in ["one", "two", "three"] {
            assert_eq!(c.with_stdin(&["put", "-", "tess:/kept/f"], text.as_bytes()).code, 0);
        }
        let versions: Vec<serde_json::Value> = c
            .ok(&["versions", "--json", "tess:/kept/f"])
            .text()
            .lines()
            .map(|l| serde_json::from_str(l).unwrap())
            .collect();
        let numbers: Vec<_> = versions.iter().map(|v| v["number"].as_u64().unwrap()).collect();
        assert_eq!(numbers, [2, 3]);
        assert_eq!(c.ok(&["cat", "--version", "2", "tess:/kept/f"]).text(), "two");
        assert_refused(&c.run(&["cat", "--version", "1", "tess:/kept/f"]), 3, &["tess:/kept/f"]);
        let current = versions[1]["version"].as_u64().unwrap().to_string();
        let older = versions[0]["version"].as_u64().unwrap().to_string();
        let local = c.path().join("local");
        std::fs::write(&local, "four").unwrap();
        let local = local.to_str().unwrap();
        let late = c.run(&["put", "--quiet", "--if-version", &older, local, "tess:/kept/f"]);
        assert_refused(&late, 6, &["tess:/kept/f", &current]);
        c.ok(&["put", "--if-version", &current, local, "tess:/kept/f"]);
        assert_eq!(c.ok(&["cat", "tess:/kept/f"]).text(), "four");

        // A file inherits its policy at creation and keeps it when it moves.
        c.ok(&["policy", "set", "tess:/kept", "redundancy=replica:3"]);
        c.with_stdin(&["put", "-", "tess:/kept/g"], b"g");
        c.ok(&["mv", "tess:/kept/g", "tess:/moved"]);
        let policy = c.ok(&["policy", "get", "--json", "tess:/moved"]).json();
        assert_eq!(policy["policy"]["redundancy"]["value"], "replica:3");
        c.ok(&["policy", "set", "tess:/moved", "redundancy="]);
        let policy = c.ok(&["policy", "get", "--json", "tess:/moved"]).json();
        assert_eq!(policy["policy"]["redundancy"]["set"], false);

        // Names that exist, that do not, and that are in the way.
        c.ok(&["mkdir", "--parents", "tess:/a/b/c"]);
        assert_refused(&c.run(&["mkdir", "tess:/a"]), 6, &["tess:/a"]);
        assert_refused(&c.run(&["mkdir", "tess:/no/way"]), 3, &["tess:/no"]);
        assert_refused(&c.run(&["rm", "tess:/a"]), 2, &["tess:/a", "--recursive"]);
        assert_refused(&c.run(&["rm", "tess:/nope"]), 3, &["tess:/nope"]);
        c.ok(&["rm", "-f", "tess:/nope"]);
        assert_refused(&c.run(&["mv", "-n", "tess:/moved", "tess:/stream"]), 6, &["tess:/moved"]);
        assert_refused(&c.run(&["get", "tess:/a", c.path().to_str().unwrap()]), 2, &["tess:/a", "--recursive"]);
        assert_refused(&c.run(&["put", "--quiet", c.path().to_str().unwrap(), "tess:/x"]), 2, &["--recursive"]);
        assert_refused(&c.run(&["put", "--quiet", local, "tess:/no/such/"]), 3, &["tess:/no/such", "mkdir"]);
        assert_refused(&c.run(&["put", local, "tess:/no/such/name"]), 3, &["tess:/no/such", "mkdir --parents"]);
        assert_refused(&c.run(&["cat", "tess:/a"]), 2, &["tess:/a", "ls"]);
        let stat = c.ok(&["stat", "--json", "tess:/kept/f"]).json();
        assert_eq!((stat["kind"].as_str(), stat["size_bytes"].as_u64()), (Some("file"), Some(4)));
    });
}

/// Errors name files, never inodes; the rest of the command is done and reported.
#[test]
fn one_of_several_paths_is_wrong() {
    with_cluster(|c| {
        for name in ["a", "b"] {
            assert_eq!(c.with_stdin(&["put", "-", &format!("tess:/{name}")], name.as_bytes()).code, 0);
        }
        c.ok(&["mkdir", "tess:/d"]);
        let link = c.path().join("link");
        std::os::unix::fs::symlink("../d", &link).unwrap();
        let tree = c.path().join("tree");
        std::fs::create_dir(&tree).unwrap();
        std::fs::rename(link, tree.join("link")).unwrap();
        c.ok(&["put", "-r", "--quiet", tree.to_str().unwrap(), "tess:/"]);

        for (words, wanted) in [
            (["ls", "tess:/a", "tess:/no", "tess:/b"], "tess:/a\ntess:/b\n"),
            (["cat", "tess:/a", "tess:/no", "tess:/b"], "ab"),
        ] {
            let run = c.run(&words);
            assert_eq!((run.code, run.text()), (3, wanted.to_string()), "{run:?}");
            assert_eq!((run.stderr.lines().count(), run.stderr.contains("tess:/no")), (1, true), "{run:?}");
        }
        let made = c.run(&["mkdir", "--json", "tess:/e", "tess:/a", "tess:/f"]);
        assert_eq!((made.code, made.json()["made"].as_array().unwrap().len()), (6, 2), "{made:?}");
        serde_json::from_str::<serde_json::Value>(made.stderr.trim()).expect("one line of JSON");
        let moved = c.run(&["mv", "--json", "tess:/nope", "tess:/b", "tess:/d"]);
        assert_eq!((moved.code, moved.json()["moved"].as_array().unwrap().len()), (3, 1), "{moved:?}");

        for path in ["tess:/a/x", "tess:/a"] {
            assert_refused(&c.run(&["mkdir", "-p", path]), 6, &["tess:/a", "in the way"]);
        }
        for words in [&["cat", "tess:/tree/link/b"][..], &["mv", "tess:/d", "tess:/d"]] {
            let run = c.run(words);
            assert!(run.code == 2 && !run.stderr.contains("inode"), "{run:?}");
        }
        let time = std::fs::symlink_metadata(tree.join("link")).unwrap().modified().unwrap();
        let out = c.path().join("with-times");
        c.ok(&["get", "-r", "--quiet", "tess:/tree", out.to_str().unwrap()]);
        let stat = c.ok(&["stat", "--json", "tess:/tree/link"]).json();
        let wanted = time.duration_since(std::time::UNIX_EPOCH).unwrap().subsec_nanos();
        assert!(stat["mtime"].as_str().unwrap().contains(&format!(".{wanted:09}")), "{stat} {wanted}");
        let deep = format!("tess:/{}", "x/".repeat(3_000));
        let run = c.run(&["put", tree.join("link").to_str().unwrap(), &deep]);
        assert!(run.code != 0 && run.stderr.len() < 2_000, "{} bytes", run.stderr.len());
        let got = c.run(&["get", "tess:/tree/link", c.path().join("got").to_str().unwrap()]);
        assert!(got.stderr.contains("1 symbolic link"), "{got:?}");
    });
}

#[test]
fn a_reader_that_goes_away_ends_cat_quietly_and_a_failed_get_leaves_the_old_file() {
    with_cluster(|c| {
        let data = tree::bytes(3, 4 << 20);
        assert_eq!(c.with_stdin(&["put", "-", "tess:/big"], &data).code, 0);
        let script = format!("{} cat tess:/big | head -c 10 | wc -c", common::TESSERA);
        let mut shell = Command::new("sh");
        let run = common::run(shell.args(["-c", &script]).env("TESSERA_MANAGER", c.address()), b"");
        assert_eq!((run.text().trim(), run.stderr.as_str()), ("10", ""));

        let target = c.path().join("target");
        std::fs::write(&target, "old").unwrap();
        assert_refused(&c.run(&["get", "--quiet", "tess:/nope", target.to_str().unwrap()]), 3, &["tess:/nope"]);
        assert_eq!(std::fs::read(&target).unwrap(), b"old");
        c.ok(&["get", "--quiet", "tess:/big", target.to_str().unwrap()]);
        assert!(std::fs::read(&target).unwrap() == data);
        let left: Vec<_> = std::fs::read_dir(c.path()).unwrap().flatten().map(|e| e.file_name()).collect();
        assert!(!left.iter().any(|n| n.to_string_lossy().contains(".part")), "{left:?}");
    });
}

#[test]
fn status_nodes_and_metrics_tell_what_is_there() {
    with_cluster(|c| {
        let data = tree::bytes(9, 2 << 20);
        assert_eq!(c.with_stdin(&["put", "-", "tess:/f"], &data).code, 0);
        let status = c.status();
        assert_eq!((status["files"].as_u64(), status["chunks"]["reduced"].as_u64()), (Some(1), Some(0)));
        assert_eq!(status["bytes"]["logical"].as_u64(), Some(2 << 20));
        assert_eq!(status["nodes"].as_array().unwrap().len(), 6);
        assert_eq!(status["chunks"]["full"], status["chunks"]["all"]);
        let text = c.ok(&["status"]).text();
        assert!(text.contains("healthy") && text.contains("n6") && text.contains("2.0 MiB logical"), "{text}");
        assert!(text.contains("of memory for "), "{text}");
        let disk = &status["nodes"][0]["disks"][0];
        assert!(disk["index_bytes"].is_u64(), "{disk}");
        let nodes = c.ok(&["node", "list", "--json"]).json();
        assert_eq!(nodes.as_array().unwrap().len(), 6);
        assert_refused(&c.run(&["node", "drain", "n9"]), 3, &["n9", "n1"]);

        let manager = c.manager.as_ref().unwrap().metrics.clone().unwrap();
        common::eventually("the manager's figures are fresh", || {
            common::http(&manager, "/metrics").contains("\ntessera_manager_files 1\n")
        });
        let node = c.nodes[0].as_ref().unwrap().metrics.clone().unwrap();
        let text = common::http(&node, "/metrics");
        assert!(
            text.contains("\ntessera_node_has_lease 1\n") && text.contains("tessera_disk_fragments{disk="),
            "{text}"
        );

        for pass in ["repair", "scrub", "gc"] {
            let done = c.ok(&[pass, "--json"]).json();
            assert_eq!((done["pass"].as_str(), done["running"].as_bool()), (Some(pass), Some(false)));
        }
        assert!(c.ok(&["cat", "tess:/f"]).stdout == data);
    });
}

/// Holes cost nothing: a terabyte-long sparse file with little data is stored and fetched quickly, and stays sparse.
#[test]
fn holes_stay_holes() {
    use std::os::unix::fs::{FileExt, MetadataExt};
    with_cluster(|c| {
        let path = c.path().join("sparse");
        let file = std::fs::File::create(&path).unwrap();
        let data = tree::bytes(5, 300_000);
        file.set_len(1 << 40).unwrap();
        file.write_all_at(&data, 7 << 30).unwrap();
        file.write_all_at(b"last words", 500 << 30).unwrap();
        if file.metadata().unwrap().blocks() * 512 > 1 << 30 {
            return; // This file system has no holes.
        }
        let put = c.ok(&["put", "--json", path.to_str().unwrap(), "tess:/sparse"]).json();
        assert_eq!((put["bytes"].as_u64(), put["failed"].as_u64()), (Some(1 << 40), Some(0)));
        assert!(put["new_bytes"].as_u64().unwrap() < 4 << 20, "{put}");
        let range = |from: u64, len: u64| {
            let range = format!("{from}..{}", from + len);
            c.ok(&["cat", "--range", &range, "tess:/sparse"]).stdout
        };
        assert!(range(7 << 30, data.len() as u64) == data);
        assert_eq!(range((500 << 30) - 3, 20), b"\0\0\0last words\0\0\0\0\0\0\0");
        assert_eq!(range((1 << 40) - 5, 100), [0; 5]);

        let small = c.path().join("small");
        let file = std::fs::File::create(&small).unwrap();
        file.set_len(64 << 20).unwrap();
        file.write_all_at(&data, 33_333_333).unwrap();
        c.ok(&["put", "--quiet", small.to_str().unwrap(), "tess:/small"]);
        let back = c.path().join("back");
        c.ok(&["get", "--quiet", "tess:/small", back.to_str().unwrap()]);
        assert!(std::fs::read(&back).unwrap() == std::fs::read(&small).unwrap());
        assert!(back.metadata().unwrap().blocks() * 512 < 16 << 20, "the holes were filled");
    });
}

/// Of each version: the bytes shared with the one before, and the bytes stored.
#[test]
fn versions_are_compared_with_the_one_before_and_with_all() {
    with_cluster(|c| {
        const CHUNK: usize = 64 << 10;
        let chunks = |seeds: &[u64]| seeds.iter().flat_map(|seed| tree::bytes(*seed, CHUNK)).collect::<Vec<u8>>();
        let put = |name: &str, seeds: &[u64]| {
            let file = c.path().join("input");
            std::fs::write(&file, chunks(seeds)).unwrap();
            let policy = ["-p", "lifetime=keep", "-p", "chunking=fixed:64K"];
            c.ok(&[&["put", "--quiet"], &policy[..], &[file.to_str().unwrap(), &format!("tess:/{name}")]].concat());
        };
        // The same size, because small files have another class and share nothing with large ones.
        put("other", &[21, 22, 23, 24]);
        put("f", &[1, 2, 3, 4]);
        put("f", &[1, 2, 21, 5, 5]);
        put("f", &[3, 4, 22]);
        let said = c.ok(&["versions", "--similarity", "--json", "tess:/f"]).text();
        let found: Vec<[u64; 3]> = said
            .lines()
            .map(|line| {
                let line: serde_json::Value = serde_json::from_str(line).unwrap();
                ["data_bytes", "in_previous_bytes", "in_all_bytes"]
                    .map(|part| line["similarity"][part].as_u64().unwrap() / CHUNK as u64)
            })
            .collect();
        assert_eq!(found, [[4, 0, 0], [5, 2, 4], [3, 0, 3]]);
        let shown = c.ok(&["versions", "--similarity", "tess:/f"]).text();
        assert!(shown.contains("in the one before") && shown.contains("40.0 %") && shown.contains("80.0 %"), "{shown}");
        assert!(!c.ok(&["versions", "--json", "tess:/f"]).text().contains("similarity"));
        assert_refused(&c.run(&["versions", "--similarity", "tess:/none"]), 3, &["none"]);
    });
}

/// A writer may pause for longer than a session lasts: the client keeps it alive.
#[test]
fn a_pause_in_the_input_does_not_end_the_write() {
    let special = common::Special { manager: vec!["session_ms=400"], ..Default::default() };
    let c = Cluster::start_special(6, special);
    let data = tree::bytes(6, 40 << 20);
    let mut put =
        c.command(&["put", "--quiet", "-", "tess:/slow"]).stdin(std::process::Stdio::piped()).spawn().unwrap();
    let mut pipe = put.stdin.take().unwrap();
    std::io::Write::write_all(&mut pipe, &data[..36 << 20]).unwrap();
    let metrics = c.manager.as_ref().unwrap().metrics.clone().unwrap();
    common::eventually("the session was renewed for several of its lives", || {
        let text = common::http(&metrics, "/metrics");
        let line = text.lines().find(|l| l.starts_with("tessera_manager_requests_total{kind=\"RenewSession\"}"));
        line.and_then(|l| l.rsplit(' ').next()?.parse::<u64>().ok()).is_some_and(|n| n >= 15)
    });
    std::io::Write::write_all(&mut pipe, &data[36 << 20..]).unwrap();
    drop(pipe);
    assert!(put.wait().unwrap().success());
    assert!(c.ok(&["cat", "tess:/slow"]).stdout == data);
}

/// P5: removed and collected data is off the disks, even where it was in segments that were still open for writing.
#[test]
fn gc_frees_the_disks() {
    with_cluster(|c| {
        let data = tree::bytes(11, 12 << 20);
        assert_eq!(c.with_stdin(&["put", "-", "tess:/gone"], &data).code, 0);
        assert_eq!(c.with_stdin(&["put", "-", "tess:/kept"], b"kept").code, 0);
        let on_disks = || -> u64 {
            let segments = (1..=6).flat_map(|n| std::fs::read_dir(c.disk(n).join("segments")).unwrap().flatten());
            segments.map(|file| file.metadata().map_or(0, |m| m.len())).sum()
        };
        assert!(on_disks() > 18 << 20);
        c.ok(&["rm", "tess:/gone"]);
        let mut freed = 0;
        common::eventually("the space is back", || {
            freed += c.ok(&["gc", "--json"]).json()["counters"]["freed_bytes"].as_u64().unwrap();
            on_disks() < 1 << 20
        });
        assert!(freed > 17 << 20, "gc says that it freed {freed} bytes");
        assert_eq!(c.ok(&["cat", "tess:/kept"]).text(), "kept");
    });
}
