//! Commands on files and directories.

use super::Common;
use crate::term::Out;
use clap::{Args, Subcommand};
use std::ffi::OsString;

/// Memory of a command that writes or reads files.
#[derive(Debug, Clone, Copy, Args)]
pub struct MemoryArgs {
    /// Most bytes of files in memory, over all files in transfer: fewer at once if need be.
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = parse_memory)]
    pub memory: u64,
}

/// Memory for files: enough for one of them.
fn parse_memory(text: &str) -> Result<u64, String> {
    let (bytes, least) = (super::parse_size(text)?, tessera_client::LEAST_MEMORY_BYTES);
    match bytes >= least {
        true => Ok(bytes),
        false => Err(format!("one file alone needs up to {0}; give {0} or more", tessera_policy::format_size(least))),
    }
}

/// Paths of a command that takes several.
#[derive(Debug, Args)]
pub struct StorePaths {
    /// Paths in the store.
    #[arg(required = true, value_name = "TESS:/PATH")]
    pub paths: Vec<OsString>,
    /// Common.
    #[command(flatten)]
    pub common: Common,
}

/// `tessera put`.
#[derive(Debug, Args)]
#[command(
    override_usage = "tessera put [OPTIONS] <SOURCE>... <TESS:/TARGET>",
    after_help = "\
As with cp: a target that is a directory, or several sources, put each source into the target under its own
name; else the target is the new name. A target that ends with a slash is always a directory and is made if it
is missing, so that the same command always stores to the same names; known data is not sent again.
Modes, modification times, symbolic links and holes are kept; sockets, pipes and devices are
skipped and counted. Owners are kept when root stores, and restored when root fetches; else files
belong to the user who stores them.

Examples:
  tessera put movie.mkv tess:/films/             store a file under its name
  tessera put -r ~/src tess:/backup/             store a directory as tess:/backup/src
  tessera put -r --skip-unchanged ~/src tess:/backup/    again, and read only what has changed
  tessera put -r --checksum ~/src tess:/backup/    again, compared by content, whatever the times say
  pg_dump db | tessera put - tess:/db.sql        store stdin
  tessera put -p redundancy=ec:6+2 -p lifetime=keep model.bin tess:/models/m1
  tessera put --if-version 42 notes tess:/notes  only if 42 is still the current version"
)]
pub struct PutArgs {
    /// Local files or directories, then the store path. `-` is stdin.
    #[arg(required = true, value_name = "PATH")]
    pub paths: Vec<OsString>,
    /// Store directories recursively.
    #[arg(long, short)]
    pub recursive: bool,
    /// Hint for the stored files, overrides that of the directory; may be repeated (see `tessera policy list`).
    #[arg(long, short, value_name = "NAME=VALUE")]
    pub policy: Vec<String>,
    /// Fail unless this is the current version id of the file; 0: unless the file does not exist.
    #[arg(long, value_name = "VERSION", conflicts_with = "recursive")]
    pub if_version: Option<u64>,
    /// Memory.
    #[command(flatten)]
    pub memory: MemoryArgs,
    /// Do not read files that the store has with the same size, modification time, mode and owner. They keep their hints. A file that
    /// was changed within the two seconds before it was stored is read.
    #[arg(long, conflicts_with = "if_version")]
    pub skip_unchanged: bool,
    /// Read every file, and send only those of which the store has not the content under their names; of the others set mode, owner and time if
    /// these differ. They keep their hints.
    #[arg(long, conflicts_with_all = ["if_version", "skip_unchanged"])]
    pub checksum: bool,
    /// Files in transfer at once.
    #[arg(long, short, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub jobs: u16,
    /// Common.
    #[command(flatten)]
    pub common: Common,
}

/// `tessera get`.
#[derive(Debug, Args)]
#[command(
    override_usage = "tessera get [OPTIONS] <TESS:/SOURCE>... <TARGET>",
    after_help = "\
A file appears under its name only when every byte has arrived and was verified; until then an existing
file stays as it is. A target directory takes each source under its own name, as with cp; a target that ends with
a slash is made if it is missing. Below the target no link is followed: a link where a file goes is replaced.

Examples:
  tessera get tess:/films/movie.mkv .            fetch a file
  tessera get -r tess:/backup/src ./copy       fetch a directory
  tessera get tess:/db.sql - | psql db           write to stdout
  tessera get --version 3 tess:/notes notes.3    an earlier version, by its number"
)]
pub struct GetArgs {
    /// Store paths, then the local target. `-` is stdout.
    #[arg(required = true, value_name = "PATH")]
    pub paths: Vec<OsString>,
    /// Fetch directories recursively.
    #[arg(long, short)]
    pub recursive: bool,
    /// Number of the version (see `tessera versions`).
    #[arg(long, value_name = "NUMBER", conflicts_with = "recursive", value_parser = clap::value_parser!(u64).range(1..))]
    pub version: Option<u64>,
    /// Files in transfer at once.
    #[arg(long, short, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub jobs: u16,
    /// Memory.
    #[command(flatten)]
    pub memory: MemoryArgs,
    /// Restore set-user-id and set-group-id bits. Without it a stored program gets no rights from its mode.
    #[arg(long)]
    pub set_id: bool,
    /// Common.
    #[command(flatten)]
    pub common: Common,
}

/// `tessera cat`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tessera cat tess:/notes
  tessera cat --range 1M..1028K tess:/model.bin | xxd     only these bytes are read and verified
  tessera cat --version 1 tess:/notes")]
pub struct CatArgs {
    /// Bytes from START up to END; both are optional.
    #[arg(long, value_name = "START..END")]
    pub range: Option<String>,
    /// Memory.
    #[command(flatten)]
    pub memory: MemoryArgs,
    /// Number of the version.
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..))]
    pub version: Option<u64>,
    /// Paths.
    #[command(flatten)]
    pub on: StorePaths,
}

/// `tessera ls`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tessera ls
  tessera ls -l tess:/backup
  tessera ls -R --json tess:/ | jq -r 'select(.size_bytes > 1e9) | .path'")]
pub struct LsArgs {
    /// Directories or files.
    #[arg(value_name = "TESS:/PATH", default_value = "tess:/")]
    pub paths: Vec<OsString>,
    /// Show mode, version, size and time.
    #[arg(long, short)]
    pub long: bool,
    /// List subdirectories recursively.
    #[arg(long, short = 'R', visible_short_alias = 'r')]
    pub recursive: bool,
    /// Common.
    #[command(flatten)]
    pub common: Common,
}

/// `tessera stat`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tessera stat tess:/notes
  tessera stat --json tess:/notes | jq .version")]
pub struct StatArgs {
    /// Paths.
    #[command(flatten)]
    pub on: StorePaths,
}

/// `tessera rm`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tessera rm tess:/notes
  tessera rm -r tess:/backup/old
  tessera rm -f tess:/maybe-there               no error if it does not exist")]
pub struct RmArgs {
    /// Remove directories recursively.
    #[arg(long, short)]
    pub recursive: bool,
    /// Ignore paths that do not exist.
    #[arg(long, short)]
    pub force: bool,
    /// Paths.
    #[command(flatten)]
    pub on: StorePaths,
}

/// `tessera mv`.
#[derive(Debug, Args)]
#[command(
    override_usage = "tessera mv [OPTIONS] <TESS:/SOURCE>... <TESS:/TARGET>",
    after_help = "\
A moved file keeps the policy it was created with. An existing file at the target is replaced in the
same step.

Examples:
  tessera mv tess:/a tess:/b
  tessera mv tess:/a tess:/b tess:/directory/
  tessera mv -n tess:/a tess:/b                 do not replace b"
)]
pub struct MvArgs {
    /// Sources, then the target.
    #[arg(required = true, value_name = "PATH")]
    pub paths: Vec<OsString>,
    /// Fail if the target exists.
    #[arg(long, short)]
    pub no_replace: bool,
    /// Common.
    #[command(flatten)]
    pub common: Common,
}

/// `tessera mkdir`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tessera mkdir tess:/backup
  tessera mkdir --parents tess:/a/b/c
  tessera mkdir tess:/models -P redundancy=ec:6+2     files created in it inherit the hint")]
pub struct MkdirArgs {
    /// Make missing parents, and accept directories that exist.
    #[arg(long, short)]
    pub parents: bool,
    /// Hint for the new directory; may be repeated.
    #[arg(long, short = 'P', value_name = "NAME=VALUE")]
    pub policy: Vec<String>,
    /// Paths.
    #[command(flatten)]
    pub on: StorePaths,
}

/// `tessera versions`.
#[derive(Debug, Args)]
#[command(after_help = "\
The hint `lifetime` sets how many are kept (see `tessera policy list`).

Examples:
  tessera versions tess:/notes
  tessera versions --similarity tess:/run/A.N0    how much of each checkpoint was stored before
  tessera get --version 3 tess:/notes notes.3")]
pub struct VersionsArgs {
    /// The file.
    #[arg(value_name = "TESS:/PATH")]
    pub path: String,
    /// Show how much of each version is in the previous version, and in all earlier versions.
    #[arg(long)]
    pub similarity: bool,
    /// Common.
    #[command(flatten)]
    pub common: Common,
}

/// `tessera rewrite`.
#[derive(Debug, Args)]
#[command(after_help = "\
A changed hint applies to later writes. This command applies it to existing files: each gets a new version with the
same content. Chunks that already comply are not stored again.

Examples:
  tessera policy set tess:/model.bin redundancy=replica:3 placement=local
  tessera rewrite tess:/model.bin
  tessera rewrite -r tess:/archive")]
pub struct RewriteArgs {
    /// Memory.
    #[command(flatten)]
    pub memory: MemoryArgs,
    /// Rewrite all files below directories.
    #[arg(long, short = 'r')]
    pub recursive: bool,
    /// Files in transfer at once.
    #[arg(long, short = 'j', value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub jobs: u16,
    /// Paths.
    #[command(flatten)]
    pub on: StorePaths,
}

/// `tessera policy`.
#[derive(Debug, Subcommand)]
pub enum PolicyCommand {
    /// List every hint with its allowed values and default.
    List {
        /// Output.
        #[command(flatten)]
        output: Out,
    },
    /// Show the policy of a path: hints that are set, and defaults for the others.
    #[command(after_help = "Examples:\n  tessera policy get tess:/models")]
    Get {
        /// The path.
        #[arg(value_name = "TESS:/PATH")]
        path: String,
        /// Common.
        #[command(flatten)]
        common: Common,
    },
    /// Set hints. New files and directories inherit those of their directory; existing ones keep theirs.
    #[command(after_help = "\
Hints of a directory apply to files and directories created in it later. Existing ones keep theirs,
and there is no --recursive: stored data changes only when it is stored again (`tessera rewrite`).
Hints of a file apply to its next version.

All hints are checked before the first is set. An empty value resets a hint to its default. A redundancy that
needs more hosts than the cluster has is set with a warning: writes are refused until hosts are added.

Examples:
  tessera policy set tess:/models redundancy=ec:6+2 lifetime=keep
  tessera policy set tess:/models lifetime=")]
    Set {
        /// The path.
        #[arg(value_name = "TESS:/PATH")]
        path: String,
        /// Hints.
        #[arg(required = true, value_name = "NAME=VALUE")]
        hints: Vec<String>,
        /// Common.
        #[command(flatten)]
        common: Common,
    },
}

/// `tessera locate`.
#[derive(Debug, Args)]
#[command(after_help = "\
The bytes of a host are those of the file that a task on this host reads without the network.

Examples:
  tessera locate tess:/model.bin
  tessera locate tess:/model.bin --json | jq .hosts
  tessera locate tess:/model.bin --extents       list every extent with its fragments")]
pub struct LocateArgs {
    /// List every extent.
    #[arg(long)]
    pub extents: bool,
    /// Paths.
    #[command(flatten)]
    pub on: StorePaths,
}
