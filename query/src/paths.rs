//! Tables by name: a path in the store (`tess:/…`) or a local one, perhaps with `*`, `?` and `[…]`.

use crate::error::Error;
use glob::Pattern;
use std::path::PathBuf;
use std::sync::Arc;
use tessera_client::path::{SCHEME, StorePath};
use tessera_client::{Client, Options};
use tessera_sampling::Error as SamplingError;
use tessera_sampling::source::{LocalFiles, Source, StoreFiles};
use tessera_wire::InodeKind;

/// How to reach the store, which is done when the first table needs it.
#[derive(Debug, Clone)]
pub struct Cluster {
    /// The managers' addresses.
    pub manager: String,
    /// Seconds to wait for one that does not answer.
    pub wait_s: u64,
}

impl Cluster {
    fn connect(&self) -> Result<Client, Error> {
        let wait_ms = self.wait_s.saturating_mul(1000);
        let options = Options {
            manager_timeout_ms: Options::default().manager_timeout_ms.min(wait_ms.max(1000)),
            manager_deadline_ms: wait_ms,
            ..Options::default()
        };
        Client::connect(&self.manager, options).map_err(|error| Error::Store(error.to_string()))
    }
}

/// Whether a name is one of files in the store.
pub fn is_in_store(name: &str) -> bool {
    name.starts_with(SCHEME)
}

/// Opens the files that a table's name means.
///
/// # Errors
/// There are none, or they cannot be opened.
pub fn open(name: &str, cluster: &Cluster) -> Result<Arc<dyn Source>, Error> {
    if !is_in_store(name) {
        return Ok(Arc::new(LocalFiles::open(&local_paths(name)?, None)?));
    }
    let client = cluster.connect()?;
    let path = StorePath::parse(name).map_err(|error| Error::Usage(format!("`{name}`: {error}")))?;
    let mut paths = vec![StorePath::root()];
    for component in path.components() {
        paths = step(&client, paths, component)?;
    }
    match paths.is_empty() {
        true => Err(SamplingError::NoFiles { paths: vec![name.to_string()] }.into()),
        false => Ok(Arc::new(StoreFiles::open(client, &paths)?)),
    }
}

fn has_wildcards(name: &str) -> bool {
    name.contains(['*', '?', '['])
}

fn pattern(name: &str) -> Result<Pattern, Error> {
    Pattern::new(name).map_err(|error| Error::Usage(format!("`{name}` is no pattern: {error}")))
}

/// A name that exists is meant as it stands, as other engines do.
fn local_paths(name: &str) -> Result<Vec<PathBuf>, Error> {
    if !has_wildcards(name) || PathBuf::from(name).exists() {
        return Ok(vec![PathBuf::from(name)]);
    }
    let found = glob::glob(name).map_err(|error| Error::Usage(format!("`{name}` is no pattern: {error}")))?;
    let paths: Vec<PathBuf> =
        found.collect::<Result<_, _>>().map_err(|error| SamplingError::io(error.path().display(), error.error()))?;
    if paths.is_empty() { Err(SamplingError::NoFiles { paths: vec![name.to_string()] }.into()) } else { Ok(paths) }
}

/// The paths below `paths` whose next component is this one, or matches it.
fn step(client: &Client, paths: Vec<StorePath>, component: &[u8]) -> Result<Vec<StorePath>, Error> {
    let fail = |path: &StorePath, error: &dyn std::fmt::Display| SamplingError::io(path.brief(), error);
    let wildcards = std::str::from_utf8(component).ok().filter(|text| has_wildcards(text));
    let mut found = Vec::new();
    for path in paths {
        let Some(text) = wildcards else {
            found.push(path.join(component).map_err(|error| fail(&path, &error))?);
            continue;
        };
        let pattern = pattern(text)?;
        // What is no directory has nothing below it.
        let attr = client.stat(&path).map_err(|error| match error.code() {
            tessera_wire::Code::NotFound => SamplingError::NotFound { file: path.brief() },
            _ => fail(&path, &error),
        })?;
        if attr.kind() != InodeKind::Directory {
            continue;
        }
        for entry in client.list(&path).map_err(|error| fail(&path, &error))? {
            let hidden = entry.name.starts_with(b".") && !text.starts_with('.');
            if !hidden && std::str::from_utf8(&entry.name).is_ok_and(|name| pattern.matches(name)) {
                found.push(path.join(&entry.name).map_err(|error| fail(&path, &error))?);
            }
        }
    }
    Ok(found)
}
