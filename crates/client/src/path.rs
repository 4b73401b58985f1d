//! Store paths: `tess:/a/b`. Names are bytes; a path cannot leave the store (P14).

use std::fmt;
use thiserror::Error;

/// Prefix of a store path.
pub const SCHEME: &str = "tess:";
/// Longest name in a directory, in bytes.
pub const MAX_NAME_BYTES: usize = 255;
/// Longest path, in bytes.
pub const MAX_PATH_BYTES: usize = 64 << 10;

/// Why a text is not a store path (P14).
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PathError {
    /// Not `tess:/…`.
    #[error("{path:?} is not a store path; write tess:/directory/name")]
    Scheme {
        /// As given.
        path: String,
    },
    /// A component is `..`.
    #[error("{path:?} contains '..', which store paths do not have; write the path from the root, tess:/…")]
    Escapes {
        /// As given.
        path: String,
    },
    /// A NUL byte in a name.
    #[error("{path:?} contains a NUL byte; names cannot")]
    Nul {
        /// As given.
        path: String,
    },
    /// A component is too long.
    #[error("a name in {path:?} has {got} bytes, names have at most {MAX_NAME_BYTES}")]
    NameTooLong {
        /// As given.
        path: String,
        /// Bytes of the name.
        got: usize,
    },
    /// The whole is too long.
    #[error("the path has {got} bytes, paths have at most {MAX_PATH_BYTES}")]
    TooLong {
        /// Bytes of the path.
        got: usize,
    },
    /// The root where a name is needed.
    #[error("tess:/ is the root directory; name something in it")]
    Root,
}

/// A path in the store: the names from the root down.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct StorePath {
    components: Vec<Vec<u8>>,
}

impl StorePath {
    /// The root directory, `tess:/`.
    pub fn root() -> Self {
        Self::default()
    }

    /// Parses `tess:/a/b` (or `tess:a/b`, the same). Repeated slashes and `.` are ignored.
    ///
    /// # Errors
    /// The scheme is missing, or as [`StorePath::from_bytes`].
    pub fn parse(text: &str) -> Result<Self, PathError> {
        let rest = text.strip_prefix(SCHEME).ok_or_else(|| PathError::Scheme { path: shorten(text.as_bytes()) })?;
        Self::from_bytes(rest.as_bytes())
    }

    /// Parses a path without its scheme: names separated by slashes.
    ///
    /// # Errors
    /// The path or a name is too long, or contains `..` or a NUL byte.
    pub fn from_bytes(path: &[u8]) -> Result<Self, PathError> {
        if path.len() > MAX_PATH_BYTES {
            return Err(PathError::TooLong { got: path.len() });
        }
        let mut out = Self::root();
        for name in path.split(|b| *b == b'/').filter(|name| !name.is_empty() && *name != b".") {
            check_name(name, path)?;
            out.components.push(name.to_vec());
        }
        Ok(out)
    }

    /// This path with one more name below it.
    ///
    /// # Errors
    /// `name` is not the name of a directory entry, or the path becomes too long.
    pub fn join(&self, name: &[u8]) -> Result<Self, PathError> {
        check_name(name, name)?;
        if name.is_empty() || name == b"." || name.contains(&b'/') {
            return Err(PathError::Scheme { path: shorten(name) });
        }
        let mut components = self.components.clone();
        components.push(name.to_vec());
        Ok(StorePath { components })
    }

    /// The names from the root down.
    pub fn components(&self) -> &[Vec<u8>] {
        &self.components
    }

    /// Whether this is the root directory.
    pub fn is_root(&self) -> bool {
        self.components.is_empty()
    }

    /// The parent directory and the last name.
    ///
    /// # Errors
    /// The path is the root.
    pub fn split_last(&self) -> Result<(StorePath, &[u8]), PathError> {
        let (name, parents) = self.components.split_last().ok_or(PathError::Root)?;
        Ok((StorePath { components: parents.to_vec() }, name))
    }

    /// The last name, if this is not the root.
    pub fn name(&self) -> Option<&[u8]> {
        self.components.last().map(Vec::as_slice)
    }

    /// Enough of the path to recognise it in a message: a long path loses its middle.
    pub fn brief(&self) -> String {
        let chars: Vec<char> = self.to_string().chars().collect();
        match chars.len() {
            0..=400 => chars.iter().collect(),
            len => format!("{}…{}", String::from_iter(&chars[..200]), String::from_iter(&chars[len - 100..])),
        }
    }

    /// Whether `self` is `other` or an ancestor of it.
    pub fn contains(&self, other: &StorePath) -> bool {
        other.components.starts_with(&self.components)
    }
}

fn check_name(name: &[u8], path: &[u8]) -> Result<(), PathError> {
    if name == b".." {
        return Err(PathError::Escapes { path: shorten(path) });
    }
    if name.contains(&0) {
        return Err(PathError::Nul { path: shorten(path) });
    }
    if name.len() > MAX_NAME_BYTES {
        return Err(PathError::NameTooLong { path: shorten(path), got: name.len() });
    }
    Ok(())
}

/// Enough of a path to recognise it in one line.
fn shorten(path: &[u8]) -> String {
    let text = String::from_utf8_lossy(path);
    match text.char_indices().nth(80) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.into_owned(),
    }
}

impl fmt::Display for StorePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(SCHEME)?;
        if self.components.is_empty() {
            return f.write_str("/");
        }
        self.components.iter().try_for_each(|name| write!(f, "/{}", String::from_utf8_lossy(name)))
    }
}

impl fmt::Debug for StorePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_have_one_form() {
        for (text, shown, names) in [
            ("tess:/", "tess:/", 0),
            ("tess:", "tess:/", 0),
            ("tess:/a", "tess:/a", 1),
            ("tess:a/b", "tess:/a/b", 2),
            ("tess://a//./b/", "tess:/a/b", 2),
            ("tess:/…/ä", "tess:/…/ä", 2),
        ] {
            let path = StorePath::parse(text).unwrap();
            assert_eq!((path.to_string().as_str(), path.components().len()), (shown, names), "{text}");
            assert_eq!(StorePath::parse(shown).unwrap(), path);
        }
    }

    /// P14: text that is not a store path is refused, with a typed error.
    #[test]
    fn paths_that_are_none_are_refused() {
        let parse = |text: &str| StorePath::parse(text).unwrap_err();
        assert!(matches!(parse("/a"), PathError::Scheme { .. }));
        assert!(matches!(parse("tess:/a/../b"), PathError::Escapes { .. }));
        assert!(matches!(parse("tess:.."), PathError::Escapes { .. }));
        assert!(matches!(parse("tess:/a\0b"), PathError::Nul { .. }));
        let long = "x".repeat(256);
        assert!(matches!(parse(&format!("tess:/{long}")), PathError::NameTooLong { got: 256, .. }));
        assert!(StorePath::parse(&format!("tess:/{}", &long[1..])).is_ok());
        assert!(matches!(parse(&format!("tess:{}", "/a".repeat(40_000))), PathError::TooLong { .. }));
        assert!(matches!(StorePath::root().split_last(), Err(PathError::Root)));
        for name in [&b""[..], b".", b"..", b"a/b", b"a\0"] {
            assert!(StorePath::root().join(name).is_err(), "{name:?}");
        }
    }

    #[test]
    fn a_directory_contains_itself_and_what_is_below() {
        let (a, ab, b) = ("tess:/a", "tess:/a/b", "tess:/ab");
        let [a, ab, b] = [a, ab, b].map(|t| StorePath::parse(t).unwrap());
        assert!(a.contains(&ab) && a.contains(&a) && !a.contains(&b) && !ab.contains(&a));
        assert_eq!(ab.split_last().unwrap(), (a, &b"b"[..]));
    }
}
