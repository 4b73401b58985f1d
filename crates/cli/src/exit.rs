//! How a command ends: an exit code for programs and one line for people (P14).

use crate::term::{printable, printable_json};
use serde::Serialize;
use serde_json::json;
use std::fmt;
use std::io;
use std::path::Path;
use tessera_wire::Code;

/// Makes a [`Failure`] from an exit code and a format string.
macro_rules! failure {
    ($exit:expr, $($message:tt)+) => { $crate::exit::Failure::new($exit, format!($($message)+)) };
}
pub(crate) use failure;

/// Returns early with a [`Failure`] made from an exit code and a format string.
macro_rules! bail {
    ($exit:expr, $($message:tt)+) => { return Err($crate::exit::failure!($exit, $($message)+)) };
}
pub(crate) use bail;

/// Exit codes; `tessera --help` lists them. Numbers never change meaning. JSON has the name in kebab case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[repr(u8)]
pub enum Exit {
    /// The command failed, or did only part of its work.
    Failed = 1,
    /// An argument, path or policy is not valid.
    Usage = 2,
    /// No such file, version or node.
    NotFound = 3,
    /// A retry may succeed: daemons cannot be reached, or too few hosts are up.
    Unavailable = 4,
    /// Stored bytes could not be verified.
    Corrupt = 5,
    /// It exists already, is not empty, or another version was committed.
    Conflict = 6,
    /// A local disk or a disk of the cluster is full.
    NoSpace = 7,
    /// Another cluster, another protocol version, or a directory in use.
    Refused = 8,
    /// The command was interrupted with Ctrl-C.
    Interrupted = 130,
}

impl Exit {
    /// The exit code for an error code.
    pub fn of_code(code: Code) -> Exit {
        match code {
            Code::Invalid | Code::NameTooLong | Code::NotDirectory | Code::IsDirectory | Code::Unsupported => {
                Exit::Usage
            }
            Code::NotFound => Exit::NotFound,
            Code::Exists | Code::NotEmpty | Code::VersionConflict => Exit::Conflict,
            Code::NoSpace => Exit::NoSpace,
            Code::TooFewHosts | Code::Unavailable | Code::TooFewFragments | Code::Timeout | Code::NotLeader => {
                Exit::Unavailable
            }
            Code::Corrupt => Exit::Corrupt,
            Code::ProtocolVersion | Code::WrongCluster | Code::Permission | Code::Fenced => Exit::Refused,
            Code::Unknown
            | Code::Internal
            | Code::StaleEpoch
            | Code::SessionExpired
            | Code::LockLost
            | Code::Io
            | Code::NotRegistered => Exit::Failed,
        }
    }
}

/// Why a command ended early.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The exit code, for programs.
    pub exit: Exit,
    /// For people: the thing, the fact, the way out. One line.
    pub message: String,
}

/// What commands return.
pub type Outcome<T = ()> = Result<T, Failure>;

impl Failure {
    /// A failure. Line breaks in `message` become `; `: a failure is one line.
    pub fn new(exit: Exit, message: impl Into<String>) -> Self {
        let message = message.into();
        let lines: Vec<&str> = message.lines().map(str::trim).filter(|l| !l.is_empty()).collect();
        Failure { exit, message: lines.join("; ") }
    }

    /// A failure caused by invalid arguments.
    pub fn usage(message: impl ToString) -> Self {
        Self::new(Exit::Usage, message.to_string())
    }

    /// A failure that gets no message: it was already printed, or the reader of the output is gone.
    pub fn silent(exit: Exit) -> Self {
        Failure { exit, message: String::new() }
    }

    /// A failure of local I/O on `what`.
    pub fn io(what: impl AsRef<Path>, error: &io::Error) -> Self {
        let exit = match error.kind() {
            io::ErrorKind::NotFound => Exit::NotFound,
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Exit::NoSpace,
            io::ErrorKind::AlreadyExists => Exit::Conflict,
            _ => Exit::Failed,
        };
        failure!(exit, "{}: {error}", what.as_ref().display())
    }

    /// The same failure, with the name of the thing that it concerns.
    pub fn of(self, what: impl fmt::Display) -> Self {
        Failure { exit: self.exit, message: format!("{what}: {}", self.message) }
    }

    /// Prints the failure to stderr, as a line or as JSON.
    pub fn report(&self, json: bool) {
        use io::Write;
        let document = json!({"error": {"code": self.exit, "exit": self.exit as u8, "message": self.message}});
        let line = match json {
            true => printable_json(&document.to_string()).into_owned(),
            false => format!("tessera: {}", printable(&self.message)),
        };
        let _ = writeln!(io::stderr(), "{line}");
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// Gives an I/O error the name of what it concerns.
pub trait At<T> {
    /// Converts the error into a [`Failure`] that names `what`: a path, or a phrase.
    ///
    /// # Errors
    /// The I/O error.
    fn at(self, what: impl AsRef<Path>) -> Outcome<T>;
}

impl<T> At<T> for io::Result<T> {
    fn at(self, what: impl AsRef<Path>) -> Outcome<T> {
        self.map_err(|error| Failure::io(what, &error))
    }
}

impl From<tessera_wire::Error> for Failure {
    fn from(error: tessera_wire::Error) -> Self {
        Failure::new(Exit::of_code(error.code()), error.message)
    }
}

impl From<tessera_client::Error> for Failure {
    fn from(error: tessera_client::Error) -> Self {
        Failure::new(Exit::of_code(error.code()), error.to_string())
    }
}

macro_rules! usage_errors {
    ($($error:ty),+) => {$(
        impl From<$error> for Failure {
            fn from(error: $error) -> Self {
                Failure::usage(error)
            }
        }
    )+};
}

usage_errors!(
    tessera_client::path::PathError,
    tessera_policy::HintError,
    tessera_accel::erasure::CodeError,
    tessera_accel::boundaries::ParamsError,
    tessera_accel::xorcode::XorCodeError,
    tessera_hashgpu::windows::WindowsError
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_one_line_whatever_it_was_made_of() {
        let failure = Failure::new(Exit::Failed, "a\n  b\n\n").of("put x");
        assert_eq!(failure.message, "put x: a; b");
    }

    #[test]
    fn codes_tell_programs_what_they_can_act_on() {
        for (code, exit) in [
            (Code::NotFound, 3),
            (Code::TooFewHosts, 4),
            (Code::TooFewFragments, 4),
            (Code::Corrupt, 5),
            (Code::VersionConflict, 6),
            (Code::NoSpace, 7),
            (Code::ProtocolVersion, 8),
            (Code::Invalid, 2),
        ] {
            assert_eq!(Exit::of_code(code) as u8, exit, "{code:?}");
        }
    }
}
