//! Lengths of files, unsafe code, and promises that code keeps and tests check.

use tessera_tidy::{Source, root, rust_sources};

/// Longest file of production code, and of tests.
const PRODUCTION_LINES: usize = 700;
const TEST_LINES: usize = 1000;

#[test]
fn files_stay_readable() {
    for source in rust_sources() {
        let lines = source.text.lines().count();
        let limit = if source.is_test() { TEST_LINES } else { PRODUCTION_LINES };
        assert!(lines <= limit, "{}: {lines} lines, {limit} are allowed; split it by idea", source.path);
    }
}

/// Crates that may hold unsafe code: SIMD leaves, what touches a device's memory, and what SQLite calls.
const UNSAFE_CRATES: &[&str] = &["crates/accel/", "crates/hashgpu/", "crates/pagesum/"];

/// Who reads the wall clock: for the start of a clock of its own, for times of files, for when something was checked. Deadlines are
/// measured by `tessera_net::boot_ns`, which nobody can set.
const WALL_CLOCKS: &[&str] = &[
    "crates/fuse/src/backend.rs",
    "crates/fuse/src/fs.rs",
    "crates/manager/src/metadata_scrub.rs",
    "crates/manager/src/shell/run.rs",
    "crates/node/src/shell/clock.rs",
];

#[test]
fn deadlines_do_not_follow_the_wall_clock() {
    for source in rust_sources().iter().filter(|source| !source.is_test() && source.path.contains("/src/")) {
        let reads = source.text.contains(concat!("SystemTime::", "now"));
        let allowed = WALL_CLOCKS.contains(&source.path.as_str());
        assert_eq!(reads, allowed, "{}: what reads the wall clock is listed here", source.path);
    }
}

#[test]
fn module_folders_have_a_mod_rs() {
    let sources = rust_sources();
    for source in &sources {
        let folder = format!("{}/", source.path.trim_end_matches(".rs"));
        let is_flat = sources.iter().any(|other| other.path.starts_with(&folder));
        assert!(!is_flat, "{}: move it to {folder}mod.rs", source.path);
    }
}

#[test]
fn unsafe_code_lives_in_few_crates_and_says_why() {
    let mut silent = Vec::new();
    for source in rust_sources() {
        let count = |text: &str| source.text.lines().filter(|line| line.contains(text)).count();
        let blocks = count(concat!("unsafe ", "{")) + count(concat!("unsafe ", "impl"));
        let functions = unexplained_functions(&source);
        let allowed = UNSAFE_CRATES.iter().any(|name| source.path.starts_with(name));
        assert!(allowed || blocks + count(concat!("unsafe ", "fn")) == 0, "unsafe code in {}", source.path);
        let reasons = count(concat!("SAFETY", ":"));
        assert!(reasons >= blocks, "{}: {blocks} unsafe blocks and impls, {reasons} SAFETY lines", source.path);
        silent.extend(functions.iter().map(|line| format!("{}:{line}", source.path)));
    }
    assert!(silent.is_empty(), "unsafe functions without `# Safety`:\n{}", silent.join("\n"));
}

/// Lines of unsafe functions whose comment has no `# Safety`. An implementation of a trait needs none, the trait says it;
/// nor does a function inside the only function that calls it, or one that a macro writes into implementations.
fn unexplained_functions(source: &Source) -> Vec<usize> {
    let lines: Vec<&str> = source.text.lines().collect();
    let indent = |line: &str| line.len() - line.trim_start().len();
    let is_unexplained = |at: usize| {
        let mut head = lines[..at].iter().rev().take_while(|l| l.trim_start().starts_with(['/', '#']));
        let above = lines[..at].iter().rev().find(|l| !l.trim().is_empty() && indent(l) < indent(lines[at]));
        let above = above.copied().unwrap_or_default();
        let implements = above.contains("impl") && above.contains(" for ");
        let is_local = above.contains("fn ");
        let in_macro = above.ends_with("=> {");
        let exempt = implements || is_local || in_macro;
        let is_explained = head.any(|l| l.contains("# Safety") || l.contains(concat!("SAFETY", ":")));
        !exempt && !is_explained
    };
    let is_function = |line: &str| {
        let code = line.split("//").next().unwrap_or_default();
        code.contains(concat!("unsafe ", "fn ")) || code.contains(concat!("unsafe extern \"C\" ", "fn "))
    };
    (0..lines.len()).filter(|&at| is_function(lines[at]) && is_unexplained(at)).map(|at| at + 1).collect()
}

#[test]
fn every_promise_is_cited_where_it_is_kept_and_where_it_is_tested() {
    let cites = |text: &str, promise: &str| {
        text.match_indices(promise).any(|(at, _)| !text[at + promise.len()..].starts_with(|c: char| c.is_ascii_digit()))
    };
    let sources = rust_sources();
    for promise in (1..=14).map(|n| format!("P{n}")) {
        let citing: Vec<_> = sources.iter().filter(|s| cites(&s.text, &promise)).collect();
        let kept = citing.iter().any(|s| !s.path.split('/').any(|part| part == "tests"));
        let tested = citing.iter().any(|s| s.path.contains("/tests/") || s.text.contains("#[test]"));
        assert!(kept && tested, "{promise}: kept {kept}, tested {tested}");
    }
}

/// docs/promises.md names, for each promise, tests that would catch a violation: they exist.
#[test]
fn the_tests_that_promises_name_exist() {
    let text = std::fs::read_to_string(root().join("docs/promises.md")).unwrap();
    let (_, table) = text.split_once("## Which test catches a violation").expect("a section about tests");
    let sources = rust_sources();
    for promise in (1..=14).map(|n| format!("| P{n} |")) {
        let row = table.lines().find(|line| line.starts_with(&promise)).unwrap_or_else(|| panic!("no row {promise}"));
        let names = row.split('`').skip(1).step_by(2).filter(|name| !name.contains([' ', '/']));
        let missing: Vec<&str> =
            names.filter(|name| !sources.iter().any(|s| s.text.contains(&format!("fn {name}(")))).collect();
        assert!(missing.is_empty() && row.contains('`'), "{promise}: {missing:?}");
    }
}
