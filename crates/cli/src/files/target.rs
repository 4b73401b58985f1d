//! The names under which things are stored, as with `cp`: below the target when it is a directory, ends with a slash or there
//! are several sources; else as the target. `put` and `get` create a missing target that ends with a slash, as `rsync` does,
//! so that the same command always stores to the same names.

use crate::exit::{Exit, Failure, Outcome, bail, failure};
use crate::remote::Store;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use tessera_client::path::StorePath;
use tessera_wire::InodeKind;

/// Parses an argument as a store path.
///
/// # Errors
/// A usage error that names the argument.
pub fn store_path(word: &OsStr) -> Outcome<StorePath> {
    Ok(match word.as_bytes().strip_prefix(tessera_client::path::SCHEME.as_bytes()) {
        Some(path) => StorePath::from_bytes(path)?,
        None => StorePath::parse(&word.to_string_lossy())?,
    })
}

/// Parses arguments as store paths.
///
/// # Errors
/// As [`store_path`].
pub fn store_paths(words: &[OsString]) -> Outcome<Vec<StorePath>> {
    words.iter().map(|word| store_path(word)).collect()
}

/// Splits the arguments into sources and target. The target is the last one.
///
/// # Errors
/// There are fewer than two arguments, or one is empty.
pub fn split(paths: &[OsString]) -> Outcome<(&[OsString], &OsString)> {
    if paths.iter().any(|p| p.is_empty()) {
        bail!(Exit::Usage, "`''` is not a path; name a file, a directory or `-`");
    }
    match paths.split_last() {
        Some((target, sources)) if !sources.is_empty() => Ok((sources, target)),
        _ => bail!(Exit::Usage, "name at least one source, and the target"),
    }
}

/// The target of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target<P> {
    /// The one source gets this path.
    As(P),
    /// Each source goes below this directory, under its own name.
    Into(P),
    /// As [`Target::Into`], but the directory is missing; its parent exists.
    IntoNew(P),
}

impl Target<StorePath> {
    /// The target for `word`, by what the store has there.
    ///
    /// # Errors
    /// The target must be a directory and is a file, or its parent is missing.
    pub fn in_store(store: &Store, word: &OsStr, sources: usize) -> Outcome<Self> {
        let path = store_path(word)?;
        let shown = path.brief();
        let wants_directory = sources > 1 || word.as_bytes().ends_with(b"/");
        match store.item(&path) {
            Ok(entry) if entry.kind() == InodeKind::Directory => Ok(Target::Into(path)),
            Ok(_) if wants_directory => bail!(Exit::Usage, "{shown} is not a directory"),
            Ok(_) => Ok(Target::As(path)),
            Err(failure) if failure.exit == Exit::NotFound => match path.split_last() {
                Ok((above, _)) if store.item(&above).is_err_and(|failure| failure.exit == Exit::NotFound) => {
                    Err(missing(&shown, &above.brief()))
                }
                _ if wants_directory => Ok(Target::IntoNew(path)),
                _ => Ok(Target::As(path)),
            },
            Err(failure) => Err(failure),
        }
    }

    /// The path for a source called `name`. Without a name (`.`, `/`) its contents go into the target.
    ///
    /// # Errors
    /// The path would not be valid.
    pub fn place(&self, name: Option<&[u8]>) -> Outcome<StorePath> {
        Ok(match (self, name) {
            (Target::As(path), _) | (Target::Into(path) | Target::IntoNew(path), None) => path.clone(),
            (Target::Into(path) | Target::IntoNew(path), Some(name)) => path.join(name)?,
        })
    }
}

/// The failure for a target whose parent directory is missing.
pub fn missing(target: &str, directory: &str) -> Failure {
    let way_out = "make it with `tessera mkdir --parents`";
    failure!(Exit::NotFound, "{target}: there is no directory {directory}; {way_out}")
}

/// Refuses two sources that would get the same name.
///
/// # Errors
/// Names both sources and the place.
pub fn all_differ(places: impl IntoIterator<Item = (String, String)>) -> Outcome {
    let mut taken = std::collections::HashMap::new();
    for (to, from) in places {
        if let Some(other) = taken.insert(to.clone(), from.clone()) {
            bail!(Exit::Usage, "{other} and {from} would both become {to}; give them other names");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_sources_do_not_become_one() {
        let pair = |to: &str, from: &str| (to.to_string(), from.to_string());
        assert!(all_differ([pair("x", "a/x"), pair("y", "b/y")]).is_ok());
        let error = all_differ([pair("x", "a/x"), pair("x", "b/x")]).unwrap_err();
        assert_eq!((error.exit, error.message.starts_with("a/x and b/x would both become x")), (Exit::Usage, true));
    }

    #[test]
    fn names_are_bytes() {
        let path = store_path(OsStr::from_bytes(b"tess:/a/\xff")).unwrap();
        assert_eq!(path.components(), [b"a".to_vec(), b"\xff".to_vec()]);
        for bad in ["/a", "a", "", "tess:/a/../b"] {
            assert_eq!(store_path(OsStr::new(bad)).unwrap_err().exit, Exit::Usage, "{bad}");
        }
    }

    #[test]
    fn sources_without_a_name_bring_their_contents() {
        let dir = StorePath::parse("tess:/d").unwrap();
        assert_eq!(Target::Into(dir.clone()).place(Some(b"x")).unwrap().to_string(), "tess:/d/x");
        assert_eq!(Target::Into(dir.clone()).place(None).unwrap(), dir);
        assert_eq!(Target::As(dir.clone()).place(Some(b"x")).unwrap(), dir);
    }
}
