//! Generated files for a demo without PATH: typical kinds of self-similar data.
//!
//! Checkpoints of one long run, each with few pages changed; releases of one archive with bytes shifted; a disk image
//! with long runs of zeros; a tree of small texts; and odd files (empty, one byte, names with spaces and accents,
//! symbolic links).

use super::edits::{random_bytes, seeded};
use crate::exit::{At, Outcome};
use rand::{Rng, RngExt};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

/// Page size of a checkpoint, bytes.
const PAGE_BYTES: usize = 4096;
/// Between two checkpoints one page in this many differs.
const PAGE_CHANGED_ONE_IN: u32 = 200;

/// Makes about `size_bytes` of files in `directory`.
///
/// # Errors
/// The system's, with the path.
pub fn generate(directory: &Path, size_bytes: u64) -> Outcome {
    let made = checkpoints(&directory.join("checkpoints"), size_bytes / 5, 3)
        .and_then(|()| releases(&directory.join("releases"), size_bytes * 3 / 20, 2))
        .and_then(|()| image(&directory.join("images"), size_bytes / 20))
        .and_then(|()| texts(&directory.join("sources"), size_bytes / 20))
        .and_then(|()| odd_ones(&directory.join("odd ones")));
    made.at(directory)
}

/// Creates a file, and the directory that it is in.
fn create(directory: &Path, name: &str) -> io::Result<BufWriter<File>> {
    std::fs::create_dir_all(directory)?;
    Ok(BufWriter::with_capacity(1 << 20, File::create(directory.join(name))?))
}

/// Writes `count` states of one memory image. Pages change at random, mostly where they changed before.
fn checkpoints(directory: &Path, size_bytes: u64, count: u64) -> io::Result<()> {
    let pages = (size_bytes / PAGE_BYTES as u64).max(1);
    for state in 0..count {
        let mut out = create(directory, &format!("step-{:03}.ckpt", state * 100))?;
        let mut page = vec![0; PAGE_BYTES];
        for number in 0..pages {
            let last_change = (0..=state).rev().find(|s| *s == 0 || changed(number, *s)).unwrap_or(0);
            seeded(number << 8 | last_change).fill_bytes(&mut page);
            out.write_all(&page)?;
        }
        out.flush()?;
    }
    Ok(())
}

/// Whether step `state` wrote page `number`. The region that a step touches moves from step to step.
fn changed(number: u64, state: u64) -> bool {
    let region = number / 1024;
    region % 7 == state % 7 && seeded(number ^ state << 40).random_ratio(7, PAGE_CHANGED_ONE_IN)
}

/// Writes `count` archives. Each has a new file near its front, which shifts the rest.
fn releases(directory: &Path, size_bytes: u64, count: u64) -> io::Result<()> {
    for release in 1..=count {
        let mut out = create(directory, &format!("release-{release}.tar"))?;
        let (mut written, mut number) = (0, 0u64);
        while written < size_bytes {
            if number == 3 {
                (1..release).try_for_each(|extra| out.write_all(&random_bytes(&mut seeded(!extra), 7_777)))?;
            }
            let mut random = seeded(number.wrapping_mul(0x5bd1_e995));
            let len = random.random_range(200..400_200);
            out.write_all(&random_bytes(&mut random, len))?;
            written += len as u64;
            number += 1;
        }
        out.flush()?;
    }
    Ok(())
}

/// Writes data between runs of zeros.
fn image(directory: &Path, size_bytes: u64) -> io::Result<()> {
    let mut out = create(directory, "disk.img")?;
    let mut block = vec![0; 64 << 10];
    for number in 0..(size_bytes / block.len() as u64).max(1) {
        match number % 16 < 6 {
            true => seeded(number ^ 0xd15c).fill_bytes(&mut block),
            false => block.fill(0),
        }
        out.write_all(&block)?;
    }
    out.flush()
}

const WORDS: &[&str] = &[
    "tile", "mosaic", "fragment", "parity", "node", "disk", "segment", "chunk", "page", "extent", "version", "group",
    "epoch", "lease", "let", "fn", "match", "return", "if", "else", "the", "a", "of", "to", "and", "in",
];

/// Writes small texts in directories, like a source tree.
fn texts(directory: &Path, size_bytes: u64) -> io::Result<()> {
    let (mut written, mut number) = (0, 0u64);
    while written < size_bytes {
        let mut random = seeded(number ^ 0x7e47);
        let kind = if number % 3 == 0 { "tests" } else { "src" };
        let below = directory.join(format!("module-{:02}", number / 24)).join(kind);
        std::fs::create_dir_all(&below)?;
        let longest = 1 << random.random_range(10..16);
        let len = 300 + random.random_range(0..longest);
        let mut text = String::new();
        while text.len() < len {
            text.push_str(WORDS[random.random_range(0..WORDS.len())]);
            text.push(if random.random_ratio(1, 9) { '\n' } else { ' ' });
        }
        std::fs::write(below.join(format!("part-{number:04}.txt")), &text)?;
        written += text.len() as u64;
        number += 1;
    }
    Ok(())
}

fn odd_ones(directory: &Path) -> io::Result<()> {
    std::fs::create_dir_all(directory.join("empty directory"))?;
    std::fs::write(directory.join("empty"), b"")?;
    std::fs::write(directory.join("one byte"), b"x")?;
    std::fs::write(directory.join("naïve café"), random_bytes(&mut seeded(5), 131_072))?;
    std::fs::write(directory.join("just over"), random_bytes(&mut seeded(6), 131_073))?;
    std::os::unix::fs::symlink("one byte", directory.join("a link"))?;
    std::os::unix::fs::symlink("../nowhere", directory.join("a dangling link"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::local;

    #[test]
    fn the_data_has_about_the_size_asked_for_and_is_always_the_same() {
        let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for dir in [&a, &b] {
            generate(dir.path(), 8 << 20).unwrap();
        }
        let (found, _) = local::walk(a.path()).unwrap();
        let bytes: u64 = found.iter().map(|f| if let local::Kind::File(len) = f.kind { len } else { 0 }).sum();
        assert!((7 << 20..11 << 20).contains(&bytes), "{bytes}");
        for file in found.iter().filter(|f| matches!(f.kind, local::Kind::File(_))) {
            let other = b.path().join(file.path.strip_prefix(a.path()).unwrap());
            assert!(std::fs::read(&file.path).unwrap() == std::fs::read(other).unwrap(), "{}", file.path.display());
        }
    }

    #[test]
    fn checkpoints_share_most_pages() {
        let dir = tempfile::tempdir().unwrap();
        checkpoints(dir.path(), 32 << 20, 2).unwrap();
        let [a, b] = ["step-000.ckpt", "step-100.ckpt"].map(|n| std::fs::read(dir.path().join(n)).unwrap());
        let different = a.chunks(PAGE_BYTES).zip(b.chunks(PAGE_BYTES)).filter(|(a, b)| a != b).count();
        assert!((1..400).contains(&different), "{different}");
    }
}
