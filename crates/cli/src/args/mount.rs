//! `mount`'s words.

use super::Common;
use clap::Args;
use std::path::PathBuf;

/// Where a mount spools: of `mount`, and of `up --mount`.
#[derive(Debug, Clone, Args)]
pub struct SpoolArgs {
    /// A directory on a local disk for files whose write-mode is complete-local or incremental; made with mode 0700 if it is not there, and
    /// for this mount alone. Without it they are written as others.
    #[arg(long, value_name = "DIR")]
    pub spool: Option<PathBuf>,
    /// What the spool may hold; what does not fit is written as other files are.
    #[arg(long, value_name = "SIZE", default_value = "10G", requires = "spool", value_parser = super::parse_size)]
    pub spool_size: u64,
}

/// `tessera mount`.
#[derive(Debug, Args)]
#[command(after_help = "\
Runs until it is unmounted or asked to stop (SIGTERM, Ctrl-C); what is open is committed first. Close makes a file
visible to other mounts, fsync makes it durable whatever its policy. docs/mount.md says what is promised.

Examples:
  tessera mount /mnt/tessera                (after mkdir -p /mnt/tessera)
  tessera mount /mnt/tessera --strict       never answer from a cache without asking
  tessera mount /mnt/tessera --spool /var/spool/tessera --spool-size 50G
  tessera mount /mnt/tessera --metrics 127.0.0.1:9790
  umount /mnt/tessera")]
pub struct MountArgs {
    /// Existing directory to mount at.
    pub dir: PathBuf,
    /// Milliseconds for which the kernel may answer from its cache; changes made elsewhere usually show at once.
    #[arg(long, value_name = "MS", default_value_t = 1000)]
    pub cache_ms: u64,
    /// Ask the manager at every lookup of a name: the same as --cache-ms 0 --no-write-back.
    #[arg(long, conflicts_with = "cache_ms")]
    pub strict: bool,
    /// Keep the kernel from collecting small writes.
    #[arg(long)]
    pub no_write_back: bool,
    /// Only the user who mounts may use it (root's mounts are for everybody otherwise).
    #[arg(long, conflicts_with = "allow_other")]
    pub private: bool,
    /// Other users may use it (needs user_allow_other in /etc/fuse.conf unless root mounts).
    #[arg(long)]
    pub allow_other: bool,
    /// Refuse changes.
    #[arg(long)]
    pub read_only: bool,
    /// Requests served at a time.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub threads: u16,
    /// The spool.
    #[command(flatten)]
    pub spool: SpoolArgs,
    /// Serve Prometheus metrics at http://ADDR/metrics.
    #[arg(long, value_name = "ADDR")]
    pub metrics: Option<String>,
    /// Say where it is mounted as JSON.
    #[arg(long, hide = true)]
    pub announce: bool,
    /// End with stdin, too: with the process that started this one.
    #[arg(long, hide = true)]
    pub follow_stdin: bool,
    /// Common.
    #[command(flatten)]
    pub common: Common,
}
