//! The error that crosses the wire: a code programs can match, and one line for people.

/// What went wrong, in a form that programs can match. Numbers never change meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum Code {
    /// Not set: treated as [`Code::Internal`].
    Unknown = 0,
    /// A bug or an unexpected state; the text says what.
    Internal = 1,
    /// The request itself is wrong (bad policy, bad name, bad range).
    Invalid = 2,
    /// No such file, directory, version or chunk.
    NotFound = 3,
    /// The name is taken.
    Exists = 4,
    /// A directory was expected.
    NotDirectory = 5,
    /// A file was expected.
    IsDirectory = 6,
    /// The directory has entries.
    NotEmpty = 7,
    /// A name is longer than 255 bytes.
    NameTooLong = 8,
    /// A disk, or the cluster, has no room left.
    NoSpace = 9,
    /// Fewer live hosts than the redundancy class needs.
    TooFewHosts = 10,
    /// The epoch that came with a put or commit is not the group's current one (P11).
    StaleEpoch = 11,
    /// The session has expired or never was.
    SessionExpired = 12,
    /// `if-version`: the file's current version is another one.
    VersionConflict = 13,
    /// Not now; ask again (the daemon starts, waits for its lease, or is overloaded).
    Unavailable = 14,
    /// A disk failed.
    Io = 15,
    /// Stored bytes do not match their checksum or name, and cannot be put right from the others.
    Corrupt = 16,
    /// The peer speaks another protocol version.
    ProtocolVersion = 17,
    /// The peer belongs to another cluster.
    WrongCluster = 18,
    /// This node was declared out, or this manager superseded: it must rejoin first (P11).
    Fenced = 19,
    /// Not allowed.
    Permission = 20,
    /// The node has to register (again) before it may ask this.
    NotRegistered = 21,
    /// The operation is known but not for this kind of object.
    Unsupported = 22,
    /// Fewer fragments are reachable than are needed to read.
    TooFewFragments = 23,
    /// Did not finish in time.
    Timeout = 24,
}

/// A failed request: body of a frame with `FLAG_ERROR`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Error {
    /// A [`Code`].
    #[prost(enumeration = "Code", tag = "1")]
    pub code: i32,
    /// One line that names the thing, the fact and the way out.
    #[prost(string, tag = "2")]
    pub message: String,
    /// With [`Code::StaleEpoch`]: the current epoch. With [`Code::VersionConflict`]: the current version id.
    #[prost(uint64, tag = "3")]
    pub current: u64,
}

impl Error {
    /// An error of `code` saying `message`.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Error { code: code as i32, message: message.into(), current: 0 }
    }

    /// The code; a number from the future reads as [`Code::Unknown`].
    pub fn kind(&self) -> Code {
        Code::try_from(self.code).unwrap_or(Code::Unknown)
    }

    /// Whether the same request may succeed later without anything being changed by the asker.
    pub fn is_retryable(&self) -> bool {
        matches!(self.kind(), Code::Unavailable | Code::Timeout)
    }
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}
