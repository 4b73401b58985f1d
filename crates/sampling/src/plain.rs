//! Files that are not plain text: compressed ones are refused, others get a warning.
//!
//! Records are found by their line breaks, which compressed bytes have by chance: an answer would be of nothing.

use crate::error::Error;
use crate::source::{FileIndex, Source};

/// Bytes of a file that are looked at.
const HEAD_BYTES: u64 = 64 << 10;
/// Files that are looked at, spread over all.
const MAX_FILES: usize = 32;

/// How compressed files begin, what they are, and what makes plain files of them.
const COMPRESSED: [(&[u8], &str, &str); 6] = [
    (b"\x1f\x8b", "gzip", "gunzip"),
    (b"\x28\xb5\x2f\xfd", "zstd", "unzstd"),
    // Behind these four bytes comes a digit, and then that of a block or of the end.
    (b"BZh", "bzip2", "bunzip2"),
    (b"\xfd7zXZ\x00", "xz", "unxz"),
    (b"\x04\x22\x4d\x18", "lz4", "unlz4"),
    (b"PK\x03\x04", "zip", "unzip"),
];
const BZIP2_BLOCK: &[u8] = b"\x31\x41\x59\x26\x53\x59";
const BZIP2_END: &[u8] = b"\x17\x72\x45\x38\x50\x90";
/// Ends of the names of compressed files.
const NAMES: [&str; 9] = ["gz", "gzip", "tgz", "zst", "zstd", "bz2", "xz", "lz4", "zip"];

/// Looks at the beginnings of some files of text, CSV or JSON. Returns a warning if one of them is no text.
///
/// # Errors
/// A file is compressed, or cannot be read.
pub fn check(source: &dyn Source) -> Result<Option<String>, Error> {
    let mut warning = None;
    for file in looked_at(source) {
        let name = &source.files()[file as usize].name;
        let head = source.read_vec(file, 0, HEAD_BYTES)?;
        if let Some((what, tool)) = compression(&head) {
            return Err(Error::Question(format!(
                "`{name}` is compressed ({what}), and only plain files are read; decompress it first: {tool} {name}"
            )));
        }
        if warning.is_none() && head.contains(&0) {
            warning = Some(format!(
                "`{name}` has a byte 0 in its first 64 KiB, so it is binary or UTF-16, and is read as if it were UTF-8 text"
            ));
        }
    }
    Ok(warning)
}

/// Those with the name of a compressed file first.
fn looked_at(source: &dyn Source) -> impl Iterator<Item = FileIndex> {
    let files = || (0..).zip(source.files()).filter(|(_, file)| file.len_bytes > 0);
    let is_named = |name: &str| {
        let end = name.rsplit('.').next().unwrap_or_default().to_ascii_lowercase();
        NAMES.contains(&end.as_str())
    };
    let named: Vec<FileIndex> = files().filter(|(_, file)| is_named(&file.name)).map(|(i, _)| i).collect();
    let all: Vec<FileIndex> = files().map(|(i, _)| i).collect();
    let step = all.len().div_ceil(MAX_FILES).max(1);
    named.into_iter().take(MAX_FILES).chain(all.into_iter().step_by(step))
}

fn compression(head: &[u8]) -> Option<(&'static str, &'static str)> {
    let (_, what, tool) = COMPRESSED.iter().find(|(magic, what, _)| {
        let follows = |mark| head.get(4..).is_some_and(|rest| rest.starts_with(mark));
        head.starts_with(magic) && (*what != "bzip2" || follows(BZIP2_BLOCK) || follows(BZIP2_END))
    })?;
    Some((what, tool))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::LocalFiles;
    use std::path::PathBuf;

    fn checked(contents: &[&[u8]]) -> Result<Option<String>, Error> {
        let dir = tempfile::TempDir::new().unwrap();
        for (i, content) in contents.iter().enumerate() {
            std::fs::write(dir.path().join(format!("{i:03}.txt")), content).unwrap();
        }
        check(&LocalFiles::open(&[PathBuf::from(dir.path())], None).unwrap())
    }

    #[test]
    fn compressed_files_are_refused_by_their_first_bytes() {
        for (begins, what) in [
            (&b"\x1f\x8b\x08\x00"[..], "gunzip"),
            (b"\x28\xb5\x2f\xfd\x04", "unzstd"),
            (b"BZh91AY&SY", "bunzip2"),
            (b"BZh9\x17\x72\x45\x38\x50\x90", "bunzip2"),
            (b"\xfd7zXZ\x00", "unxz"),
        ] {
            let error = checked(&[b"plain\n", b"", begins]).unwrap_err().to_string();
            assert!(error.contains("002.txt` is compressed") && error.contains(what), "{error}");
        }
        assert_eq!(checked(&[b"BZh9 is text\n", b"", "\u{feff}\u{1f}x\n".as_bytes()]).unwrap(), None);
    }

    #[test]
    fn a_byte_0_is_warned_of_where_it_is_looked_for() {
        let warning = checked(&[b"plain\n", b"a\0b\n"]).unwrap().expect("a warning");
        assert!(warning.contains("001.txt` has a byte 0"), "{warning}");
        assert_eq!(checked(&[&[&[b'x'; 64 << 10][..], b"\0"].concat()]).unwrap(), None);
    }

    #[test]
    fn of_many_files_those_with_telling_names_are_looked_at() {
        let dir = tempfile::TempDir::new().unwrap();
        for i in 0..100 {
            std::fs::write(dir.path().join(format!("{i:03}.csv")), "a\n1\n").unwrap();
        }
        std::fs::write(dir.path().join("050.csv.GZ"), b"\x1f\x8b\x08").unwrap();
        let source = LocalFiles::open(&[PathBuf::from(dir.path())], None).unwrap();
        assert!(check(&source).unwrap_err().to_string().contains("050.csv.GZ` is compressed (gzip)"));
    }
}
