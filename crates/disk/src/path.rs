//! Paths below a disk's root: '/'-separated names that cannot leave it (P14).

use crate::DiskError;

/// Rejects paths that leave the root or have more than one spelling.
pub(crate) fn check(path: &str) -> Result<(), DiskError> {
    let bad = path.is_empty()
        || path.contains('\0')
        || path.split('/').any(|name| name.is_empty() || name == "." || name == "..");
    if bad { Err(DiskError::BadPath { path: path.into() }) } else { Ok(()) }
}

/// Like [`check`], but allows the empty path, which is the root.
pub(crate) fn check_dir(path: &str) -> Result<(), DiskError> {
    if path.is_empty() { Ok(()) } else { check(path) }
}

/// The directory part; empty for a name in the root.
pub(crate) fn parent(path: &str) -> &str {
    path.rfind('/').map_or("", |at| &path[..at])
}

/// The name of `path` within `dir`, if `path` is directly in `dir`.
pub(crate) fn name_in<'a>(dir: &str, path: &'a str) -> Option<&'a str> {
    let rest = if dir.is_empty() { path } else { path.strip_prefix(dir)?.strip_prefix('/')? };
    (!rest.contains('/')).then_some(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_leave_the_root_are_refused() {
        for bad in ["", "/a", "a/", "a//b", "..", "a/../b", ".", "a/.", "a\0b"] {
            assert!(check(bad).is_err(), "{bad:?}");
        }
        for good in ["a", "a/b", "segments/0000000000000001.seg", "..a"] {
            assert!(check(good).is_ok(), "{good:?}");
        }
    }

    #[test]
    fn parents_and_names() {
        assert_eq!(parent("a"), "");
        assert_eq!(parent("a/b/c"), "a/b");
        assert_eq!(name_in("", "a"), Some("a"));
        assert_eq!(name_in("", "a/b"), None);
        assert_eq!(name_in("a", "a/b"), Some("b"));
        assert_eq!(name_in("a", "ab"), None);
    }
}
