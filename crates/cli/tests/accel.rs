//! `tessera accel`: the same results on every device (P10), fragments that survive losses (P1), and bad input that
//! changes nothing (P14).

mod common;

use common::{assert_refused, tessera, tree};
use serde_json::json;
use std::fs;
use std::path::Path;
use std::process::Command;
use tessera_hashgpu::digest::{self, Function};
use tessera_hashgpu::windows::Windows;

fn path(dir: &Path, name: &str) -> String {
    dir.join(name).display().to_string()
}

#[test]
fn names_and_boundaries_are_the_same_on_every_device() {
    let dir = tempfile::tempdir().unwrap();
    let file = path(dir.path(), "f");
    fs::write(&file, tree::bytes(1, 300_000)).unwrap();
    let empty = path(dir.path(), "empty");
    fs::write(&empty, b"").unwrap();
    let on = |device: &str, words: &[&str]| {
        let run = tessera(&[&["accel"], words, &["--device", device, &file, &empty]].concat());
        assert_eq!(run.code, 0, "{run:?}");
        run.text()
    };
    let hash = on("cpu", &["hash"]);
    assert!(hash.contains("af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262  "), "{hash}");
    assert_eq!(on("emulated:2", &["hash"]), hash);
    let cuts = on("cpu", &["boundaries", "--chunking", "cdc:4K..64K"]);
    assert!(cuts.lines().count() > 5, "{cuts}");
    assert_eq!(on("emulated", &["boundaries", "--chunking", "cdc:4K..64K"]), cuts);
    for function in ["md5", "sha1", "sha256", "blake3"] {
        for segment in [&[][..], &["--segment", "4K"], &["--segment", "1000"]] {
            let words = [&["hash", "--function", function][..], segment].concat();
            assert_eq!(on("emulated:2", &words), on("cpu", &words), "{words:?}");
        }
    }
    let fixed = on("cpu", &["boundaries", "--json", "--chunking", "fixed:100000"]);
    assert_eq!(fixed.lines().count(), 3);
}

/// Published digests (RFC 1321, FIPS 180-4) and HashGPU's direct hashing of one segment, f(f(x)).
#[test]
fn digests_are_those_that_were_published() {
    let dir = tempfile::tempdir().unwrap();
    let file = path(dir.path(), "abc");
    fs::write(&file, b"abc").unwrap();
    for (words, digest) in [
        (&["md5"][..], "900150983cd24fb0d6963f7d28e17f72"),
        (&["sha1"], "a9993e364706816aba3e25717850c26c9cd0d89d"),
        (&["sha256"], "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),
        (&["md5", "--segment", "4K"], "af5da9f45af7a300e3aded972f8ff687"),
    ] {
        let run = tessera(&[&["accel", "hash", &file, "--json", "--function"], words].concat());
        assert_eq!(run.json()[words[0]], digest, "{run:?}");
    }
}

/// Files of several pieces give what the library gives of all their bytes.
#[test]
fn long_files_are_hashed_in_pieces_without_a_seam() {
    let dir = tempfile::tempdir().unwrap();
    let (file, results) = (path(dir.path(), "f"), path(dir.path(), "results"));
    let data = tree::bytes(5, 68_000_000);
    fs::write(&file, &data).unwrap();
    let hash = |words: &[&str]| {
        let run = tessera(&[&["accel", "hash", "--function", "md5", &file], words].concat());
        run.text().split("  ").next().unwrap_or_default().to_owned()
    };
    let tree = tessera(&["accel", "hash", &file]).text();
    assert!(tree.starts_with(&digest::digest(Function::Blake3, &data).to_string()), "{tree}");
    let whole = digest::digest(Function::Md5, &data).to_string();
    assert_eq!(hash(&[]), whole);
    for segment in [100_000usize, 20_000_000] {
        let expected = digest::segmented(Function::Md5, &data, segment).unwrap().to_string();
        assert_eq!(hash(&["--segment", &segment.to_string()]), expected);
    }

    let data = &data[..2_500_000];
    fs::write(&file, data).unwrap();
    for (window, step, width) in [(3_000, 1_009, 5), (10, 700_000, 16), (1_500_000, 400_000, 16), (20, 50, 1)] {
        let numbers = [window, step, width].map(|n: usize| n.to_string());
        let [w, s, n] = numbers.each_ref().map(|n| n.as_str());
        let mut words = vec!["accel", "windows", "--window", w, "--step", s, "--width", n, "--output", &results, &file];
        words.extend(Path::new(&results).exists().then_some("--force"));
        assert_eq!(tessera(&words).code, 0);
        let expected = Windows::new(Function::Md5, window, step, width).unwrap().hash(data);
        assert!(fs::read(&results).unwrap() == expected, "windows of {window} at {step}");
    }
}

#[test]
fn windows_are_the_same_on_every_device() {
    let dir = tempfile::tempdir().unwrap();
    let file = path(dir.path(), "f");
    fs::write(&file, tree::bytes(6, 3_000)).unwrap();
    for function in ["md5", "sha1", "sha256", "blake3"] {
        let on = |device| {
            let words = ["accel", "windows", "--function", function, "--width", "6", "--device", device, &file];
            tessera(&words).text()
        };
        let lines = on("cpu");
        assert_eq!(lines.lines().count(), (3_000 - 20) / 4 + 1);
        assert_eq!(on("emulated"), lines, "{function}");
    }
    assert_refused(&tessera(&["accel", "windows", "--step", "0", &file]), 2, &["steps of 0 bytes"]);
    assert_refused(&tessera(&["accel", "windows", "--width", "17", &file]), 2, &["17 bytes", "md5"]);
}

/// Fragments longer than a piece: the file comes back through losses, and is never put in place half.
#[test]
fn long_files_are_coded_in_pieces() {
    let dir = tempfile::tempdir().unwrap();
    let (file, copy) = (path(dir.path(), "f"), path(dir.path(), "copy"));
    let data = tree::bytes(7, 40_000_003);
    fs::write(&file, &data).unwrap();
    for code in [&["-k", "3", "-m", "2"][..], &["--code", "liberation", "-k", "3", "-w", "5", "--packet", "4K"]] {
        let encoded = tessera(&[&["accel", "encode", "--force", &file], code].concat());
        assert_eq!(encoded.code, 0, "{encoded:?}");
        (0..2).for_each(|i| fs::remove_file(format!("{file}.fragment.{i}")).unwrap());
        let decoded = tessera(&["accel", "decode", "--force", "-o", &copy, &file]);
        assert_eq!(decoded.code, 0, "{decoded:?}");
        assert!(fs::read(&copy).unwrap() == data, "{code:?}");
    }
    // P2: sound fragments, but a page that names another file.
    let page = format!("{file}.fragments.json");
    let text = fs::read_to_string(&page).unwrap();
    let digest = serde_json::from_str::<serde_json::Value>(&text).unwrap()["blake3"].as_str().unwrap().to_owned();
    fs::write(&page, text.replace(&digest, &digest.replace(['0', '1', '2'], "3"))).unwrap();
    fs::remove_file(&copy).unwrap();
    assert_refused(&tessera(&["accel", "decode", "-o", &copy, &file]), 5, &["nothing was written"]);
    let names = || fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    assert!(!names().any(|name| name == "copy" || name.ends_with(".part")), "{:?}", names().collect::<Vec<_>>());
}

#[test]
fn fragments_made_on_one_device_are_put_together_on_another() {
    let dir = tempfile::tempdir().unwrap();
    for (number, code) in [
        &["-k", "4", "-m", "2"][..],
        &["-k", "5", "-m", "3", "--matrix", "reed_sol_van"],
        &["--code", "liberation", "-k", "4", "-w", "5", "--packet", "1K"],
        &["--code", "blaum_roth", "-k", "4", "-w", "6", "--packet", "512"],
        &["--code", "cauchy_good", "-k", "3", "-m", "3", "-w", "4", "--packet", "64"],
    ]
    .iter()
    .enumerate()
    {
        let file = path(dir.path(), &format!("f{number}"));
        let data = tree::bytes(number as u64, 50_000 + number);
        fs::write(&file, &data).unwrap();
        let encoded = tessera(&[&["accel", "encode", "--device", "emulated"], *code, &[&file]].concat());
        assert_eq!(encoded.code, 0, "{encoded:?}");
        let before = fs::read(format!("{file}.fragment.5")).unwrap();
        let again = tessera(&[&["accel", "encode", "--force"], *code, &[&file]].concat());
        assert_eq!(again.code, 0, "{again:?}");
        assert!(fs::read(format!("{file}.fragment.5")).unwrap() == before, "{code:?} on the CPU");
        assert_eq!(tessera(&["accel", "verify", &file]).code, 0);

        // One fragment gone, one damaged in one bit.
        fs::remove_file(format!("{file}.fragment.0")).unwrap();
        let mut damaged = fs::read(format!("{file}.fragment.2")).unwrap();
        damaged[17] ^= 1;
        fs::write(format!("{file}.fragment.2"), damaged).unwrap();
        let verify = tessera(&["accel", "verify", "--json", &file]);
        assert_eq!((verify.code, &verify.json()["missing"], &verify.json()["damaged"]), (5, &json!([0]), &json!([2])));
        fs::remove_file(&file).unwrap();
        for (device, copy) in [("cpu", format!("{file}.a")), ("emulated:2", format!("{file}.b"))] {
            let decoded = tessera(&["accel", "decode", "--device", device, "--output", &copy, &file]);
            assert_eq!(decoded.code, 0, "{code:?} {decoded:?}");
            assert!(fs::read(copy).unwrap() == data, "{code:?} on {device}");
        }
    }
}

#[test]
fn too_many_losses_are_said_and_nothing_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let file = path(dir.path(), "f");
    fs::write(&file, tree::bytes(3, 10_000)).unwrap();
    assert_eq!(tessera(&["accel", "encode", &file]).code, 0);
    assert_refused(&tessera(&["accel", "encode", &file]), 6, &["--force"]);
    assert_refused(&tessera(&["accel", "decode", &file]), 6, &["exists", "--output"]);
    (0..3).for_each(|i| fs::remove_file(format!("{file}.fragment.{i}")).unwrap());
    let copy = path(dir.path(), "copy");
    assert_refused(&tessera(&["accel", "decode", "-o", &copy, &file]), 5, &["3 sound fragments", "4 are needed"]);
    assert!(!Path::new(&copy).exists());
    let page = format!("{file}.fragments.json");
    let text = fs::read_to_string(&page).unwrap();
    for (from, to) in [
        (&*text, ""),
        (&text, "{}"),
        (&text, "[1]"),
        ("\"k\": 4", "\"k\": 400"),
        ("\"rs\"", "\"sr\""),
        ("cauchy1", "cauchy0"),
        ("\"bytes\": 10000", "\"bytes\": 18446744073709551615"),
    ] {
        let wrong = text.replace(from, to);
        assert_ne!(wrong, text);
        fs::write(&page, &wrong).unwrap();
        assert_eq!(tessera(&["accel", "decode", "-o", &copy, &file]).code, 5, "{wrong}");
        assert!(!Path::new(&copy).exists());
    }
}

/// P14: no result takes the place of what is there, least of all of what it is made from, unless that was asked for.
#[test]
fn what_is_there_is_not_overwritten() {
    let dir = tempfile::tempdir().unwrap();
    let (file, link) = (path(dir.path(), "f"), path(dir.path(), "link"));
    let data = tree::bytes(9, 3_000);
    fs::write(&file, &data).unwrap();
    fs::hard_link(&file, &link).unwrap();
    for output in [&file, &link] {
        let refused = tessera(&["accel", "windows", "--output", output, &file]);
        assert_refused(&refused, 6, &["exists", "--force"]);
        assert!(fs::read(&file).unwrap() == data);
    }
    // With --force even that one: all of it is read before it is replaced.
    let expected = Windows::new(Function::Md5, 20, 4, 16).unwrap().hash(&data);
    assert_eq!(tessera(&["accel", "windows", "--force", "--output", &file, &file]).code, 0);
    assert!(fs::read(&file).unwrap() == expected && fs::read(&link).unwrap() == data);
    let absent = path(dir.path(), "absent");
    assert_eq!(tessera(&["accel", "windows", "--output", &path(dir.path(), "none"), &absent]).code, 3);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2, "nothing is left of what failed");

    let theirs = format!("{file}.fragment.5");
    fs::write(&theirs, b"theirs").unwrap();
    assert_refused(&tessera(&["accel", "encode", &file]), 6, &["--force"]);
    assert_eq!(fs::read(&theirs).unwrap(), b"theirs");
    assert_eq!(tessera(&["accel", "encode", "-k", "3", &file]).code, 0, "which makes no fragment 5");
    assert_eq!(fs::read(&theirs).unwrap(), b"theirs");
}

#[test]
fn devices_and_codes_that_cannot_be() {
    let dir = tempfile::tempdir().unwrap();
    let file = path(dir.path(), "f");
    fs::write(&file, b"x").unwrap();
    assert_eq!(tessera(&["accel", "hash", "--device", "gpu", &file]).code, 2);
    assert_eq!(tessera(&["accel", "hash"]).code, 2);
    assert_eq!(tessera(&["accel", "hash", "--device", "cuda:99", &file]).code, 3);
    assert_refused(&tessera(&["accel", "hash", &path(dir.path(), "none")]), 3, &["none"]);
    assert_refused(&tessera(&["accel", "encode", "-k", "200", "-m", "100", &file]), 2, &["200", "100"]);
    assert_refused(&tessera(&["accel", "encode", "--code", "liberation", "-w", "4", "-k", "3", &file]), 2, &["w = 4"]);
    assert_refused(
        &tessera(&["accel", "encode", "--matrix", "vandermonde", "-k", "30", "-m", "4", &file]),
        2,
        &["vandermonde"],
    );
    assert!(fs::read_dir(dir.path()).unwrap().count() == 1, "nothing was written");
}

/// A broken GPU costs no result: what it was to do the CPU does, with equal bytes (P10), and that is said.
#[test]
#[cfg(target_os = "linux")]
fn a_device_that_fails_is_said_and_the_results_are_right() {
    let dir = tempfile::tempdir().unwrap();
    let driver = concat!(env!("CARGO_MANIFEST_DIR"), "/../accel/kernels/host/driver.c");
    let built = Command::new(std::env::var_os("CC").unwrap_or("cc".into()))
        .args(["-std=gnu11", "-O2", "-shared", "-fPIC", "-fno-strict-aliasing", "-DFAILS_AFTER=0", driver, "-o"])
        .arg(dir.path().join("libcuda.so.1"))
        .status();
    assert!(built.unwrap().success());
    let file = path(dir.path(), "f");
    fs::write(&file, tree::bytes(8, 100_000)).unwrap();
    let copy = path(dir.path(), "copy");
    let on = |device: &str, words: &[&str]| {
        let mut command = Command::new(common::TESSERA);
        command.env("LD_LIBRARY_PATH", dir.path()).arg("accel").args(words).args(["--device", device]);
        let run = common::run(&mut command, b"");
        assert_eq!(run.code, 0, "{run:?}");
        run
    };
    let encode = ["encode", "--force", "-k", "3", "-m", "2", &file];
    assert_eq!(on("cpu", &encode).stderr, "");
    fs::remove_file(format!("{file}.fragment.0")).unwrap();
    for words in [
        &["hash", &file][..],
        &["hash", "--function", "md5", "--segment", "4K", &file],
        &["windows", "--step", "1000", &file],
        &["boundaries", "--chunking", "cdc:4K..64K", &file],
        &["decode", "--force", "-o", &copy, &file],
        &encode,
        &["verify", &file],
    ] {
        let (right, found) = (on("cpu", words), on("cuda:0", words));
        assert_eq!((right.text(), &*right.stderr), (found.text(), ""), "{words:?}");
        let said = found.stderr.trim_end();
        assert!(said.starts_with("cuda:0: ") && said.contains("the CPU did the rest"), "{words:?}: {found:?}");
        assert!(!said.contains('\n'), "{said}");
    }
    assert!(fs::read(&copy).unwrap() == fs::read(&file).unwrap());
    // A program that asks is told nothing but results, and no figure of the CPU's is given out as the device's.
    assert_eq!(on("cuda:0", &["hash", "--json", &file]).stderr, "");
    let bench = on("cuda:0", &["bench", "--size", "4K", "--json"]);
    let rows = bench.text();
    let encode = rows.lines().find(|l| l.contains("\"xor-encode\"")).unwrap_or_else(|| panic!("{bench:?}"));
    let encode: serde_json::Value = serde_json::from_str(encode).unwrap();
    assert!(encode["cpu_bytes_per_s"].as_f64() > Some(0.0) && encode["device_bytes_per_s"].is_null(), "{encode}");
    assert!(encode["resident_bytes_per_s"].is_null(), "{encode}");
}

#[test]
fn the_list_and_the_bench_print_every_device_and_primitive() {
    let list = tessera(&["accel", "list", "--json"]);
    assert_eq!(list.code, 0, "{list:?}");
    assert!(list.text().lines().any(|l| l.contains("\"device\":\"cpu\"")));
    assert!(list.text().contains("cuda") && list.text().contains("emulated"));
    // All that calibration measures, which is all there is.
    let bench = tessera(&["accel", "bench", "--size", "64K"]);
    let names: Vec<&str> = tessera_hashgpu::samples(64 << 10).iter().map(|s| s.primitive()).collect();
    for name in &names {
        let row = bench.text().lines().any(|l| l.starts_with(&format!("{name} ")) && l.contains("goes to the CPU"));
        assert!(row, "{name}: {bench:?}");
    }
    // Beside each figure of a device stands what transfers, or its memory, allow; an emulated one's say what they are.
    let bench = tessera(&["accel", "bench", "--device", "emulated", "--size", "4K", "--json"]);
    assert_eq!(bench.code, 0, "{bench:?}");
    let lines: Vec<serde_json::Value> = bench.text().lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let (transfers, primitives): (Vec<_>, Vec<_>) = lines.iter().partition(|l| l["transfer"].is_string());
    assert_eq!(transfers.len(), 4, "{bench:?}");
    assert!(transfers.iter().all(|l| l["bytes_per_s"].as_f64() > Some(0.0)), "{bench:?}");
    assert!(primitives.len() == names.len() && lines.iter().all(|l| l["emulated"] == true), "{bench:?}");
    for figure in ["device", "device_roof", "resident", "resident_roof"] {
        let above_zero = |l: &&serde_json::Value| l[format!("{figure}_bytes_per_s")].as_f64() > Some(0.0);
        assert!(primitives.iter().all(above_zero), "{figure}: {bench:?}");
    }
    let text = tessera(&["accel", "bench", "--device", "emulated", "--size", "4K"]).text();
    assert!(text.contains("emulated, no speed") && text.contains("to the device: "), "{text}");
    assert!(!text.contains("device GB/s") && !text.contains("resident GB/s"), "{text}");
    let ablate = tessera(&["accel", "bench", "--ablate", "--json", "--device", "emulated", "--size", "16K"]);
    let made = |name: &str| {
        let text = ablate.text();
        let line = text.lines().find(|l| l.contains(name)).unwrap_or_else(|| panic!("{ablate:?}")).to_owned();
        serde_json::from_str::<serde_json::Value>(&line).unwrap()
    };
    assert!(made("everything")["buffers_reused"].as_u64() > Some(0));
    assert_eq!(made("no buffer reuse")["buffers_reused"], 0);
    assert_eq!(made("more devices")["devices"], 2);
}
