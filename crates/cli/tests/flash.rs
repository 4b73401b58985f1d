//! `tessera flash`: traces are read whatever their compression, every combination is replayed, and bad input gets one
//! line that names the thing and the way out (P14).

mod common;

use common::{assert_refused, tessera};
use flate2::{Compression, write::GzEncoder};
use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;
use tessera_flash::ftl::LAYERS;

/// An SPC trace of two devices, one of 2,047 and one of 2,048 pages: writes and reads of 4 KiB.
fn spc(requests: u64) -> String {
    let line = |i: u64| {
        let (page, op) = (i * 7919 % 2048, if i.is_multiple_of(3) { 'R' } else { 'W' });
        format!("{},{},4096,{op},{}.{:06}\n", i % 2, page * 8, i / 1000, i % 1000 * 1000)
    };
    (0..requests).map(line).collect()
}

fn file(dir: &Path, name: &str, bytes: &[u8]) -> String {
    let path = dir.join(name);
    fs::write(&path, bytes).unwrap();
    path.display().to_string()
}

#[test]
fn every_combination_is_replayed_and_compressed_traces_give_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let text = spc(20_000);
    let plain = file(dir.path(), "t.spc", text.as_bytes());
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    gzip.write_all(text.as_bytes()).unwrap();
    let packed = file(dir.path(), "t.gz", &gzip.finish().unwrap());
    let (first, rest) = text.as_bytes().split_at(100_000);
    let level = ruzstd::encoding::CompressionLevel::Fastest;
    // Around the frames are such that a reader skips, as pzstd writes them.
    let skipped = [0x50, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, b'a', b'b', b'c'];
    let frames = [first, rest].map(|part| [ruzstd::encoding::compress_to_vec(part, level), skipped.to_vec()].concat());
    let frames = [&skipped[..], &frames.concat()].concat();
    let zstd = file(dir.path(), "t.zst", &frames);

    let traces = [&plain[..], &packed, &zstd];
    let options = ["--over-provisioning", "60%", "--geometry", "pages=16", "--map-cache", "8K,16K", "--json"];
    let run = tessera(&[&["flash", "replay"], &traces[..], &options].concat());
    assert_eq!(run.code, 0, "{run:?}");
    let text = run.text();
    let documents: Vec<serde_json::Value> = text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    // One simulation for each trace of the layers that have the whole map in memory, and two of each other layer.
    let each = 2 + (LAYERS.len() - 2) * 2;
    assert_eq!(documents.len(), 3 * each, "{text}");
    for document in &documents {
        assert_eq!((&document["requests"], &document["capacity_bytes"]), (&20_000.into(), &(4095u64 * 4096).into()));
        let budget = document["map_cache_bytes"].as_u64();
        let is_whole = document["ftl"] == "ideal" || document["ftl"] == "cola";
        assert_eq!(budget.is_none(), is_whole, "the whole map has no budget: {document}");
        assert!(is_whole || document["map_cache_peak_bytes"].as_u64() <= budget, "{document}");
        assert!(document["write_amplification"].as_f64() >= Some(1.0), "{document}");
    }
    let figures = |i: usize| {
        let mut document = documents[i].clone();
        let object = document.as_object_mut().unwrap();
        object.remove("trace");
        object.remove("cpu_ns_per_request");
        document
    };
    for i in 0..each {
        assert_eq!(figures(i), figures(i + each), "gzip");
        assert_eq!(figures(i), figures(i + 2 * each), "zstd");
    }
    let table = tessera(&[&["flash", "replay", &plain, "--ftl", "dftl", "-q"], &options[..4]].concat());
    assert!(table.text().contains("dftl"), "{table:?}");
}

#[test]
fn layers_learn_from_a_first_share_and_figures_are_of_the_rest() {
    let dir = tempfile::tempdir().unwrap();
    // Groups of eight pages far apart, each read again and again.
    let page = |i: u64| (i / 8 * 31 % 250 + i % 8 * 2_000) * 8;
    let text: String = (0..16_000u64).map(|i| format!("0,{},4096,R,{}.0\n", page(i), i)).collect();
    let trace = file(dir.path(), "t.spc", text.as_bytes());
    let replay = |options: &[&str]| {
        let common = ["flash", "replay", &trace, "--capacity", "64M", "--preload", "--map-cache", "8K", "--json"];
        let run = tessera(&[&common[..], options].concat());
        assert_eq!(run.code, 0, "{run:?}");
        run.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect::<Vec<serde_json::Value>>()
    };
    for document in replay(&["--train", "75%"]) {
        assert_eq!((&document["requests"], &document["host_reads"]), (&4_000.into(), &4_000.into()), "{document}");
        let ftl = document["ftl"].as_str().unwrap();
        assert_eq!(document.get(ftl).is_some(), ftl != "ideal", "figures of the layer's own: {document}");
    }
    let reads = |options: &str| {
        let options = format!("window=8,predictor=50,{options}");
        replay(&["--train", "75%", "--ftl", "cpftl", "--cpftl", &options])[0]["map_reads"].as_u64().unwrap()
    };
    let (with, without) = (reads("full-search"), reads("no-correlation"));
    assert!(with * 4 < without, "{with} of {without}");
}

/// A lesson of 4,000 requests ends before the first cut, and each cut begins another one.
#[test]
fn a_layer_learns_anew_after_a_power_cut() {
    let dir = tempfile::tempdir().unwrap();
    let page = |i: u64| (i / 8 * 31 % 250 + i % 8 * 2_000) * 8;
    let text: String = (0..16_400u64).map(|i| format!("0,{},4096,R,{}.0\n", page(i), i)).collect();
    let trace = file(dir.path(), "t.spc", text.as_bytes());
    let replay = |every: &str| {
        let fixed = ["flash", "replay", &trace, "--capacity", "64M", "--preload", "--map-cache", "8K", "--json"];
        let options = ["--train", "25%", "--ftl", "cpftl", "--cpftl", "window=8,predictor=50", "--cut-every", every];
        let run = tessera(&[&fixed[..], &options].concat());
        assert_eq!(run.code, 0, "{run:?}");
        let document: serde_json::Value = serde_json::from_str(run.text().trim()).unwrap();
        let figures = [&document["requests"], &document["lessons"]].map(|value| value.as_u64().unwrap());
        (figures, document["cpftl"]["mined_pairs"].as_u64().unwrap(), run.stderr)
    };
    let (figures, pairs, _) = replay("6000");
    assert_eq!(figures, [12_300, 3], "a lesson from the start, from 6,000 and from 12,000 on");
    assert!(pairs > 0);
    let (figures, pairs, caution) = replay("4000");
    assert_eq!((figures, pairs), ([12_300, 0], 0));
    assert!(caution.contains("never learns") && caution.contains("4100"), "{caution}");
}

#[test]
fn cola_gives_equal_figures_on_every_device() {
    let dir = tempfile::tempdir().unwrap();
    let trace = file(dir.path(), "t.spc", spc(2_000).as_bytes());
    let replay = |options: &[&str]| {
        let fixed = ["flash", "replay", &trace, "--ftl", "cola", "--capacity", "320M", "--preload=random", "--json"];
        let run = tessera(&[&fixed[..], options].concat());
        assert_eq!(run.code, 0, "{run:?}");
        let mut document: serde_json::Value = serde_json::from_str(run.text().trim()).unwrap();
        document.as_object_mut().unwrap().remove("cpu_ns_per_request");
        document
    };
    let (cpu, mut emulated) = (replay(&[]), replay(&["--device", "emulated"]));
    let layer = emulated["cola"].as_object_mut().unwrap();
    let of_device = ["device_loads", "device_queries", "device_failures"].map(|name| layer.remove(name).unwrap());
    assert_eq!(emulated, cpu);
    assert!(of_device[0].as_u64() > Some(0) && of_device[1].as_u64() > Some(1_000), "{of_device:?}");
    assert_eq!(of_device[2], 0);
    // A device that is absent keeps no other layer from running.
    for (layer, code) in [("cola", 2), ("dftl", 0)] {
        let mut command = Command::new(common::TESSERA);
        command
            .args(["flash", "replay", &trace, "--ftl", layer, "--capacity", "320M"])
            .env("TESSERA_DEVICE", "cuda:63");
        assert_eq!(common::run(&mut command, b"").code, code, "{layer}");
    }
    let layer = &cpu["cola"];
    let batches = (layer["batches"].as_u64().unwrap(), layer["batch_queries"].as_u64().unwrap());
    assert!(batches.0 <= 63 && batches.1 > 1_000, "32 requests are searched together: {batches:?}");
}

#[test]
fn traces_are_shown_and_converted() {
    let dir = tempfile::tempdir().unwrap();
    let plain = file(dir.path(), "t.spc", spc(1_000).as_bytes());
    let info = tessera(&["flash", "trace", "info", &plain, "--json"]).json();
    assert_eq!((&info["format"], &info["requests"], &info["devices"]), (&"spc".into(), &1_000.into(), &2.into()));
    let mqsim = file(dir.path(), "t.mqsim", b"11413000 0 657728 16 1\n11565000 1 31244784 64 1\n");
    let detected =
        |options: &[&str]| tessera(&[&["flash", "trace", "info", &mqsim, "--json"], options].concat()).json();
    assert_eq!(detected(&[])["formats"], serde_json::json!(["ssdsim", "mqsim"]));
    assert_eq!(detected(&["--format", "mqsim"])["formats"], serde_json::json!(["mqsim"]));
    let converted = tessera(&["flash", "trace", "convert", &plain, "--to", "fio"]);
    let again = file(dir.path(), "t.fio", converted.text().as_bytes());
    let same = tessera(&["flash", "trace", "info", &again, "--json"]).json();
    assert_eq!(
        (&same["format"], &same["reads"], &same["span_bytes"]),
        (&"fio".into(), &info["reads"], &info["span_bytes"])
    );
}

#[test]
fn fio_replays_what_is_converted() {
    if Command::new("fio").arg("--version").output().is_err() {
        eprintln!("skipped: fio is not installed");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let plain = file(dir.path(), "t.spc", spc(999).as_bytes());
    let iolog =
        file(dir.path(), "t.fio", tessera(&["flash", "trace", "convert", &plain, "--to", "fio"]).text().as_bytes());
    let disk = file(dir.path(), "disk", b"");
    fs::File::options().write(true).open(&disk).unwrap().set_len(16 << 20).unwrap();
    let options = ["--name=x", "--ioengine=psync", "--replay_no_stall=1", "--output-format=json"];
    let files = [format!("--read_iolog={iolog}"), format!("--replay_redirect={disk}")];
    let run = Command::new("fio").current_dir(&dir).args(options).args(files).output().unwrap();
    let text = String::from_utf8_lossy(&run.stdout);
    let document: serde_json::Value = serde_json::from_str(&text[text.find('{').unwrap()..]).unwrap();
    let job = &document["jobs"][0];
    assert_eq!((&job["read"]["total_ios"], &job["write"]["total_ios"]), (&333.into(), &666.into()));
    assert!(run.status.success() && !text.contains("bad ") && run.stderr.is_empty(), "{run:?}");
}

#[test]
fn a_synthetic_trace_says_so_and_has_what_was_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let plain = file(dir.path(), "t.spc", spc(3_000).as_bytes());
    let make = |options: &[&str]| tessera(&[&["flash", "trace", "synthesize"], options].concat());
    let fitted = make(&[&plain, "--requests", "9000", "--correlated", "30%", "--groups", "20", "--to", "fio"]);
    let text = fitted.text();
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some("fio version 3 iolog"));
    let (device, label) = lines.next().unwrap().split_once(" add # ").unwrap();
    assert!(["0 device0", "0 device1"].contains(&device), "an iolog has no comments of its own: {device}");
    let label: Vec<&str> = label.split("; ").collect();
    assert_eq!(label[0], "SYNTHETIC trace of `tessera flash trace synthesize`, fitted to t.spc");
    let correlated = "30.0 % of reads correlated in 20 groups of 8 pages";
    assert!(
        label[1].starts_with("9000 requests, seed 1, 33.3 % reads, 0.0 % sequential") && label[1].ends_with(correlated)
    );
    assert!(fitted.stderr.contains("of the reads belong to correlated groups"), "{fitted:?}");
    let made = file(dir.path(), "made.fio", text.as_bytes());
    let info = tessera(&["flash", "trace", "info", &made, "--json"]).json();
    assert_eq!((&info["requests"], &info["devices"]), (&9_000.into(), &2.into()));
    let stated = make(&["--requests", "500", "--footprint", "8M", "--reads", "100%", "--gap", "2ms", "--seed", "7"]);
    assert!(
        stated.text().starts_with("# SYNTHETIC trace of `tessera flash trace synthesize`, of stated shares\n# 500 ")
    );
    let made = file(dir.path(), "made.spc", stated.text().as_bytes());
    let info = tessera(&["flash", "trace", "info", &made, "--json"]).json();
    assert_eq!((&info["reads"], &info["time_ns"]), (&500.into(), &(499 * 2_000_000u64).into()));
    for (options, words) in [
        (&["--reads", "101%"][..], &["101%", "0% to 100%"][..]),
        (&["--sequential", "90%", "--reads", "100%", "--correlated", "20%"], &["90.0 %", "20.0 %", "lower"]),
        (&["--skew", "9"], &["`9`", "0 to 5"]),
        (&["--gap", "2h"], &["2h", "1.5ms"]),
        (&["--footprint", "0"], &["--footprint", "above 0"]),
        (&["--read-size", "0"], &["--read-size", "above 0"]),
        (&[&plain, "--footprint", "1G"], &["--footprint", "TRACE"]),
    ] {
        assert_refused(&make(&[options, &["--json"]].concat()), 2, words);
    }
}

#[test]
fn bzip2_and_stdin_are_read() {
    let streams = include_bytes!("../../flash/tests/streams.bz2");
    let dir = tempfile::tempdir().unwrap();
    let packed = file(dir.path(), "t.bz2", streams);
    let piped = |args: &[&str], stdin: &[u8]| {
        let run = common::run(Command::new(env!("CARGO_BIN_EXE_tessera")).arg("flash").args(args).arg("--json"), stdin);
        assert_eq!(run.code, 0, "{run:?}");
        let mut document = run.json();
        for key in ["trace", "cpu_ns_per_request"] {
            document.as_object_mut().unwrap().remove(key);
        }
        document
    };
    // The second stream is a wrong line, and the third another.
    let info = piped(&["trace", "info", &packed, "--skip-bad"], b"");
    assert_eq!((&info["requests"], &info["skipped_lines"]), (&300.into(), &2.into()));
    assert_eq!(piped(&["trace", "info", "-", "--skip-bad"], streams), info);
    // A replay reads its trace twice.
    let replay = ["replay", "-", "--ftl", "dftl", "--capacity", "64M"];
    let text = spc(2_000);
    let plain = file(dir.path(), "t.spc", text.as_bytes());
    let replayed = piped(&replay, text.as_bytes());
    assert_eq!(replayed["requests"], 2_000);
    assert_eq!(replayed, piped(&[&["replay", &plain], &replay[2..]].concat(), b""));
}

#[test]
fn a_damaged_file_is_named_and_not_a_wrong_line() {
    let dir = tempfile::tempdir().unwrap();
    let text = spc(3_000);
    // What is stored and not compressed becomes a wrong line by one bit.
    let mut gzip = GzEncoder::new(Vec::new(), Compression::none());
    gzip.write_all(text.as_bytes()).unwrap();
    let level = ruzstd::encoding::CompressionLevel::Uncompressed;
    let zstd = ruzstd::encoding::compress_to_vec(text.as_bytes(), level);
    let bzip2 = include_bytes!("../../flash/tests/streams.bz2").to_vec();
    for end in [6, 200] {
        let cut = file(dir.path(), "cut.zst", &zstd[..end]);
        assert_refused(&tessera(&["flash", "trace", "info", &cut]), 1, &["cut.zst", "zstd", "cut off", "restore"]);
    }
    for (name, packed, word) in
        [("t.gz", gzip.finish().unwrap(), "checksum"), ("t.zst", zstd, "zstd: the checksum"), ("t.bz2", bzip2, "bzip2")]
    {
        let line = packed.windows(6).position(|bytes| bytes == b",4096,");
        let mut damaged = packed.clone();
        damaged[line.map_or(200, |at| at + 1)] ^= 1 << 6;
        let trace = file(dir.path(), name, &damaged);
        assert_refused(&tessera(&["flash", "trace", "info", &trace]), 1, &[name, word]);
    }
}

#[test]
fn a_write_buffer_absorbs_writes_for_every_layer() {
    let dir = tempfile::tempdir().unwrap();
    let line = |i: u64| format!("0,{},4096,W,{}.0\n", i % 3 * 8, i);
    let trace = file(dir.path(), "t.spc", (0..300).map(line).collect::<String>().as_bytes());
    let run = tessera(&["flash", "replay", &trace, "--capacity", "64M", "--write-buffer", "64K", "--json"]);
    let documents: Vec<serde_json::Value> = run.text().lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(documents.len(), LAYERS.len());
    for document in documents {
        assert_eq!((&document["host_programs"], &document["requests"]), (&3.into(), &300.into()), "{document}");
    }
}

#[test]
fn power_cuts_are_survived_and_counted() {
    let dir = tempfile::tempdir().unwrap();
    let trace = file(dir.path(), "t.spc", spc(3_000).as_bytes());
    let replay = |more: &[&str]| {
        let run = tessera(&[&["flash", "replay", &trace, "--capacity", "64M", "--json"], more].concat());
        assert_eq!(run.code, 0, "{run:?}");
        run.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect::<Vec<serde_json::Value>>()
    };
    for (cut, whole) in replay(&["--cut-every", "1000"]).iter().zip(&replay(&[])) {
        assert_eq!((&cut["power_cuts"], &cut["host_programs"]), (&3.into(), &whole["host_programs"]), "{cut}");
        assert!(whole.get("power_cuts").is_none(), "{whole}");
        // Three times every page that was written so far is read.
        let (reads, programs) = (cut["recovery_reads"].as_u64().unwrap(), cut["recovery_programs"].as_u64().unwrap());
        assert!(reads > 3_500 && (programs > 0) == (cut["ftl"] != "ideal"), "{cut}");
        assert!(cut["recovery_ns_per_cut"].as_u64().unwrap() >= reads / 3 * 25_000, "{cut}");
    }
}

#[test]
fn a_page_shows_every_replay_without_other_files() {
    let dir = tempfile::tempdir().unwrap();
    let trace = file(dir.path(), "a<b>.spc", spc(2_000).as_bytes());
    let page = dir.path().join("page.html").display().to_string();
    let options = ["--capacity", "64M", "--ftl", "ideal,dftl,sftl", "--map-cache", "16K,64K"];
    let run = tessera(&[&["flash", "replay", &trace, "--html", &page], &options[..]].concat());
    assert_eq!(run.code, 0, "{run:?}");
    let html = fs::read_to_string(&page).unwrap();
    assert!(html.contains("a&lt;b&gt;.spc") && !html.contains("a<b>"), "names are escaped");
    for outside in ["<script", "http:", "https:", "url(", "@import", " src=", "<link"] {
        assert!(!html.contains(outside), "{outside}");
    }
    let count = |text: &str| html.matches(text).count();
    // Five replays: lines of the first plot, bars of four others, rows of the table under its headings.
    assert_eq!((count("<svg"), count("<polyline"), count("<rect"), count("<tr>")), (5, 5, 4 * 5, 6));
    for tag in ["svg", "table", "figure", "text"] {
        assert_eq!(count(&format!("<{tag}>")) + count(&format!("<{tag} ")), count(&format!("</{tag}>")), "{tag}");
    }
    // The times of the table and of the page are the same.
    let line = run.text().lines().find(|line| line.contains("sftl")).unwrap().to_string();
    let mean = line.split("  ").filter(|cell| cell.contains('s')).nth(2).unwrap().trim();
    assert!(html.contains(&format!("<td>{mean}</td>")), "{mean} of {line}");
    fs::write(&page, "before").unwrap();
    let refused = tessera(&["flash", "replay", &trace, "--html", &page, "--capacity", "5000"]);
    assert_eq!((refused.code, &fs::read_to_string(&page).unwrap()[..]), (2, "before"));
    let over_itself = tessera(&["flash", "replay", &trace, "--html", &trace]);
    assert_refused(&over_itself, 2, &["this is the trace", "another file"]);
    assert_eq!(fs::read_to_string(&trace).unwrap().lines().count(), spc(2_000).lines().count());
    let new = dir.path().join("new.html");
    let refused = tessera(&["flash", "replay", &trace, "--html", &new.display().to_string(), "--capacity", "5000"]);
    assert_eq!((refused.code, new.exists()), (2, false), "no empty page stays");
    std::os::unix::fs::symlink("page-of-link.html", &new).unwrap();
    let refused = tessera(&["flash", "replay", &trace, "--html", &new.display().to_string(), "--capacity", "5000"]);
    assert_eq!((refused.code, new.is_symlink(), new.exists()), (2, true, false), "the link stays");
    let nowhere = dir.path().join("no/page.html").display().to_string();
    assert_refused(&tessera(&["flash", "replay", &trace, "--html", &nowhere]), 3, &["no/page.html", "No such file"]);
}

#[test]
fn a_trace_that_touches_little_is_replayed_on_the_smallest_device_that_every_layer_can_have() {
    let dir = tempfile::tempdir().unwrap();
    let trace = file(dir.path(), "t.spc", b"0,0,4096,W,0.0\n0,8,512,R,0.1\n");
    let run = tessera(&["flash", "replay", &trace, "--map-cache", "1M", "--json"]);
    let documents: Vec<serde_json::Value> = run.text().lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let capacity = documents[0]["capacity_bytes"].as_u64().unwrap();
    assert!(documents.len() == LAYERS.len() && documents.iter().all(|document| document["capacity_bytes"] == capacity));
    let smaller = (capacity - 4096).to_string();
    let refused = tessera(&["flash", "replay", &trace, "--map-cache", "1M", "--capacity", &smaller]);
    assert_refused(&refused, 2, &["spare blocks"]);
    let nothing_spare = tessera(&["flash", "replay", &trace, "--ftl", "ideal", "--over-provisioning", "0%"]);
    assert_refused(&nothing_spare, 2, &["spare blocks", "raise the over-provisioning"]);
}

#[test]
fn bad_input_is_named_with_the_way_out() {
    let dir = tempfile::tempdir().unwrap();
    let plain = file(dir.path(), "t.spc", spc(100).as_bytes());
    let bad = file(dir.path(), "bad.spc", b"0,0,4096,R,0.0\n0,0,4096,X,0.1\n0,0,4096,W,0.2\n");
    let wide = file(dir.path(), "wide.spc", b"0,0,512,R,0.0\n0,0,1099511627776,R,0.1\n");
    let replay = |options: &[&str]| tessera(&[&["flash", "replay"], options].concat());
    for (options, words) in [
        (&[&plain[..], "--capacity", "5000"][..], &["5000", "whole number of pages"][..]),
        (&[&plain, "--capacity", "0", "--json"], &["capacity", "above 0", "16G"]),
        (&[&plain, "--preload=backwards", "--json"], &["backwards", "--preload=random"]),
        (&[&plain, "--write-buffer", "4K"], &["write buffer", "4096 bytes", "two pages"]),
        (&[&plain, "--capacity", "1M"], &["spare blocks", "raise"]),
        (&[&plain, "--capacity", "64M", "--map-cache", "64", "--ftl", "dftl"], &["64 bytes", "dftl", "128"]),
        (&[&plain, "--capacity", "8M", "--over-provisioning", "90%"], &["ends at byte", "--wrap"]),
        (
            &[&plain, "--capacity", "4M", "--over-provisioning", "90%", "--compact"],
            &["the regions that are touched take 16777216 bytes", "--capacity 16777216 or more", "--wrap"],
        ),
        (&[&wide, "--compact", "--geometry", "page=512"], &["wide.spc", "line 2", "1 MiB", "page=64K", "--wrap"]),
        (
            &[&plain, "--capacity", "90T"],
            &["98956046499840 bytes", "at most 8796093014016", "larger pages", "--compact"],
        ),
        (&[&plain, "--ftl", "nftl", "--json"], &["nftl", "tpftl"]),
        (&[&plain, "--geometry", "lanes=3", "--json"], &["lanes=3", "one-die"]),
        (&[&plain, "--geometry", "dies=2,dies=4", "--json"], &["`dies`", "more than once"]),
        (&[&plain, "--timing", "read=1us,read=2us", "--json"], &["`read`", "more than once"]),
        (&[&plain, "--cpftl", "no-skew,hot=3,no-skew", "--json"], &["`no-skew`", "more than once"]),
        (&[&plain, "--cpftl", "no-filter", "--json"], &["no-filter", "full-search", "support=N"]),
        (&[&plain, "--cpftl", "support=0", "--json"], &["support", "`0`", "1 to 1000 per mille"]),
        (&[&plain, "--error-bound", "17"], &["17 pages", "128 bytes", "larger oob"]),
        (&[&plain, "--train", "100%", "--json"], &["100%", "below 100%", "the rest"]),
        (&[&bad], &["line 2", "opcode", "`X`", "--skip-bad"]),
    ] {
        assert_refused(&replay(options), 2, words);
    }
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap();
    let total = meminfo.split_ascii_whitespace().nth(1).unwrap().parse::<u64>().unwrap();
    // 7T needs 76 GB with `cola`.
    if total < 60 << 20 {
        let words = ["t.spc", "cola", "of memory", "is available", "--compact", "--wrap", "--ftl"];
        assert_refused(&replay(&[&plain, "--capacity", "7T", "--ftl", "dftl,cola"]), 2, &words);
        for (option, size) in [("--host-cache", "8T"), ("--map-cache", "4G")] {
            let run = replay(&[&plain, "--capacity", "256G", "--ftl", "dftl", option, size]);
            assert_refused(&run, 2, &["of memory", &format!("use a smaller {option}, ")]);
        }
    }
    let bzip2 = file(dir.path(), "t.bz2", b"BZh91AY");
    assert_refused(&replay(&[&bzip2]), 1, &["t.bz2", "bzip2", "ends within"]);
    assert_refused(&replay(&["-", &plain, "-"]), 2, &["stdin", "more than once"]);
    assert_refused(&replay(&["/dev/null"]), 2, &["/dev/null", "no regular file", "`-`"]);
    let wide = tessera(&["flash", "trace", "synthesize", "--requests", "3", "--footprint", "16000000T"]);
    assert_refused(&wide, 2, &["footprint", "64T"]);
    let skipping = ["--capacity", "64M", "--skip-bad", "--ftl", "ideal", "--json"];
    let skipped = replay(&[&[&bad[..]], &skipping[..]].concat()).json();
    assert_eq!((&skipped["requests"], &skipped["skipped_lines"]), (&2.into(), &1.into()));
    let wrapped = replay(&[&plain, "--capacity", "8M", "--over-provisioning", "90%", "--wrap", "--ftl", "ideal", "-q"]);
    assert_eq!(wrapped.code, 0, "{wrapped:?}");
}

#[test]
fn a_trace_may_have_any_name() {
    let dir = tempfile::tempdir().unwrap();
    let (trace, page) = (dir.path().join(OsStr::from_bytes(b"\xff\xfe.spc")), dir.path().join("page.html"));
    fs::write(&trace, spc(2_000)).unwrap();
    let [trace, page] = [&trace, &page].map(|path| path.as_os_str());
    let flash = |words: &[&str], more: &[&OsStr]| {
        let words: Vec<&OsStr> = words.iter().map(OsStr::new).chain(more.iter().copied()).collect();
        tessera(&words)
    };
    let info = flash(&["flash", "trace", "info", "--json"], &[trace]);
    assert_eq!((info.code, info.json()["requests"].as_u64()), (0, Some(2_000)), "{info:?}");
    let replay = [
        "flash",
        "replay",
        "--ftl",
        "ideal",
        "--over-provisioning",
        "60%",
        "--geometry",
        "pages=16",
        "--json",
        "--html",
    ];
    let run = flash(&replay, &[page, trace]);
    assert_eq!((run.code, run.json()["requests"].as_u64()), (0, Some(2_000)), "{run:?}");
    assert!(fs::read_to_string(page).unwrap().contains("\u{fffd}"));
}
