//! One bound for the bytes that all files of a command hold.

mod common;

use common::{Cluster, Run, assert_refused, tree};

/// The least that `--memory` accepts.
const LEAST: u64 = 96 << 20;

fn within(run: &Run) {
    let most = run.json()["most_memory_bytes"].as_u64().unwrap();
    assert!(most > 0 && most <= LEAST, "{most} bytes in buffers: {run:?}");
}

/// Long files, small ones and one with a hole, more at once than fit, come back, and their bytes stay within the memory at any moment.
#[test]
fn a_command_stays_within_its_memory_whatever_it_transfers() {
    let cluster = Cluster::start(6);
    let (src, back) = (cluster.path().join("src"), cluster.path().join("back"));
    std::fs::create_dir(&src).unwrap();
    tree::make(&src);
    // Files of up to 16 MiB are transferred many at a time, longer ones few.
    for (i, len) in [15, 15, 15, 15, 15, 15, 40, 40].into_iter().enumerate() {
        std::fs::write(src.join(format!("long{i}")), tree::bytes(500 + i as u64, len << 20)).unwrap();
    }
    std::fs::write(src.join("holes"), tree::bytes(600, 10 << 20)).unwrap();
    std::fs::File::options().write(true).open(src.join("holes")).unwrap().set_len(100 << 20).unwrap();
    let (src, to) = (src.to_str().unwrap(), back.to_str().unwrap());
    within(&cluster.ok(&["put", "-r", "--json", "--memory", "96M", "--jobs", "64", src, "tess:/t"]));
    within(&cluster.ok(&["get", "-r", "--json", "--memory", "98304K", "--jobs", "64", "tess:/t", to]));
    tree::assert_equal(src.as_ref(), &back);
    within(&cluster.ok(&["rewrite", "-r", "--json", "--memory", "100663296", "--jobs", "64", "tess:/t"]));
    // What is lost is decoded, which takes more memory.
    let mut cluster = cluster;
    cluster.kill_node(1);
    within(&cluster.ok(&["get", "-r", "--json", "--memory", "96M", "--jobs", "64", "tess:/t", to]));
    tree::assert_equal(src.as_ref(), &back.join("t"));
    let read = cluster.ok(&["cat", "--memory", "96M", "tess:/t/long6"]);
    assert!(read.stdout == tree::bytes(506, 40 << 20));
}

/// P14: a value that is no size, or too small, is refused with the least that works.
#[test]
fn memory_that_cannot_work_is_refused() {
    let refused = |value: &str, words: &[&str]| {
        for command in
            [&["put", "a", "tess:/a"][..], &["get", "tess:/a", "a"], &["cat", "tess:/a"], &["rewrite", "tess:/a"]]
        {
            let flag = format!("--memory={value}");
            let run = common::tessera(&[&command[..1], &[&flag], &command[1..]].concat());
            assert_refused(&Run { stderr: run.stderr.lines().next().unwrap_or("").to_string(), ..run }, 2, words);
        }
    };
    for too_small in ["0", "1", "64M", "98303K", "100663295"] {
        refused(too_small, &["--memory", "96M or more"]);
    }
    for no_size in ["", "-1", "lots", "1.5G", "128X", "99999999999T", "12 M"] {
        refused(no_size, &["--memory", "is not a size", "K, M, G or T"]);
    }
}
