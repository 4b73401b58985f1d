//! Local trees for tests, and their comparison: kinds, bytes, modes, times, link targets.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

/// Bytes that look random; the same for the same seed.
pub fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x2545_f491_4f6c_dd1d) | 1;
    let mut out = Vec::with_capacity(len + 8);
    while out.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        out.extend_from_slice(&state.to_le_bytes());
    }
    out.truncate(len);
    out
}

/// A tree with difficult entries: sizes around every limit, odd names, modes, times, links, an empty directory.
pub fn make(root: &Path) {
    let write = |name: &str, bytes: Vec<u8>, mode: u32, mtime: u64| {
        let path = root.join(name);
        std::fs::create_dir_all(path.parent().expect("parent")).expect("directory");
        std::fs::write(&path, bytes).expect("file");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("mode");
        let time = std::time::UNIX_EPOCH + std::time::Duration::new(mtime, 123_456_789);
        std::fs::File::open(&path).and_then(|f| f.set_modified(time)).expect("time");
    };
    for (i, len) in [0, 1, 4_095, 65_536, 131_072, 131_073, 1 << 20, 3_000_001].into_iter().enumerate() {
        write(&format!("sizes/{len}"), bytes(i as u64, len), 0o644, 1_000_000_000 + i as u64);
    }
    write("program", bytes(77, 20_000), 0o755, 1_500_000_000);
    write("private/secret", bytes(78, 100), 0o600, 1);
    write("naïve name\twith tab", bytes(79, 10), 0o444, 2_000_000_000);
    for i in 0..40 {
        write(&format!("many/{}/file-{i}", i % 4), bytes(100 + i, 50 + i as usize * 37), 0o640, 1_600_000_000);
    }
    std::fs::create_dir(root.join("empty")).expect("directory");
    let odd = root.join(std::ffi::OsStr::from_bytes(b"not utf-8 \xff\xfe"));
    std::fs::write(odd, b"x").expect("file");
    std::os::unix::fs::symlink("sizes/1", root.join("link")).expect("link");
    std::os::unix::fs::symlink("/nowhere/at all", root.join("dangling")).expect("link");
    let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_234_567_890);
    std::fs::File::open(root.join("sizes")).and_then(|f| f.set_modified(time)).expect("time");
}

/// Everything below `root`: (kind, mode, time, bytes or link target) by name.
pub fn snapshot(root: &Path) -> BTreeMap<Vec<u8>, (char, u32, i64, Vec<u8>)> {
    let mut all = BTreeMap::new();
    let mut todo = vec![root.to_path_buf()];
    while let Some(dir) = todo.pop() {
        for entry in std::fs::read_dir(&dir).expect("listed") {
            let path = entry.expect("entry").path();
            let name = path.strip_prefix(root).expect("below").as_os_str().as_bytes().to_vec();
            let meta = std::fs::symlink_metadata(&path).expect("looked at");
            let time = meta.mtime() * 1_000_000_000 + meta.mtime_nsec();
            let mode = meta.mode() & 0o7777;
            let what = if meta.is_dir() {
                todo.push(path);
                ('d', mode, time, Vec::new())
            } else if meta.is_symlink() {
                ('l', 0, 0, std::fs::read_link(&path).expect("link").as_os_str().as_bytes().to_vec())
            } else {
                ('f', mode, time, std::fs::read(&path).expect("read"))
            };
            all.insert(name, what);
        }
    }
    all
}

/// Panics at the first difference between two trees.
pub fn assert_equal(a: &Path, b: &Path) {
    let (a, b) = (snapshot(a), snapshot(b));
    let names = |t: &BTreeMap<Vec<u8>, _>| {
        t.keys().map(|n: &Vec<u8>| String::from_utf8_lossy(n).into_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names(&a), names(&b));
    for (name, (kind, mode, time, bytes)) in &a {
        let (other_kind, other_mode, other_time, other_bytes) = &b[name];
        let name = String::from_utf8_lossy(name);
        assert_eq!((kind, mode, time), (other_kind, other_mode, other_time), "{name}");
        assert!(bytes == other_bytes, "{name}: bytes differ");
    }
}
