//! What can go wrong.

use std::fmt::Display;
use tessera_wire::Code;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file cannot be read.
    #[error("cannot read `{file}`: {message}")]
    Io {
        /// The file.
        file: String,
        /// The reason.
        message: String,
    },
    /// A file in the store cannot be read.
    #[error("cannot read `{file}`: {message}")]
    Store {
        /// The file.
        file: String,
        /// The reason.
        message: String,
        /// The store's code for it.
        code: Code,
    },
    /// A path does not exist.
    #[error("`{file}` does not exist")]
    NotFound {
        /// The path.
        file: String,
    },
    /// A file changed while it was sampled.
    #[error(
        "`{file}` changed while it was read; sample again when nothing writes it, or put it into the store, which pins versions"
    )]
    Changed {
        /// The file.
        file: String,
    },
    /// There is nothing to sample.
    #[error("no files in {}; name files or directories that hold some", paths.join(", "))]
    NoFiles {
        /// What was searched.
        paths: Vec<String>,
    },
    /// A record is not in its format.
    #[error("`{file}`, near byte {offset}: {message}")]
    Record {
        /// The file.
        file: String,
        /// Where the record starts.
        offset: u64,
        /// What is wrong, and the way out.
        message: String,
    },
    /// An architecture file says what cannot be.
    #[error("`{file}`, `{key}`: {fact}; {way_out}")]
    Architecture {
        /// The file.
        file: String,
        /// The key, `architecture` if the file is wrong as a whole.
        key: String,
        /// What is wrong.
        fact: String,
        /// What to write instead.
        way_out: String,
    },
    /// A disk cannot store what a set is persisted to.
    #[error("cannot store on the disk `{disk}`: {message}; make room or leave the disk out, and persist again")]
    Disk {
        /// The disk.
        disk: String,
        /// The reason.
        message: String,
    },
    /// A closure or a source panicked.
    #[error("a task panicked: {message}")]
    Panic {
        /// What the panic said.
        message: String,
    },
    /// The question cannot be asked.
    #[error("{0}")]
    Question(String),
}

impl Error {
    /// A file in the store cannot be read.
    pub fn store(file: impl Display, error: impl Display, code: Code) -> Error {
        Error::Store { file: file.to_string(), message: error.to_string(), code }
    }

    /// A file cannot be read.
    pub fn io(file: impl Display, error: impl Display) -> Error {
        Error::Io { file: file.to_string(), message: error.to_string() }
    }
}
