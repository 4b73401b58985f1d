//! Arguments of `mount`.

use super::Common;
use clap::Args;
use std::path::PathBuf;

/// The spool of `mount` and of `up --mount`.
#[derive(Debug, Clone, Args)]
pub struct SpoolArgs {
    /// Local directory that holds files with write-mode complete-local or incremental until they are stored. It is made with mode 0700 if
    /// missing, and one mount may use it. Without it such files are written like others.
    #[arg(long, value_name = "DIR")]
    pub spool: Option<PathBuf>,
    /// Most bytes in the spool; files that do not fit are written like others.
    #[arg(long, value_name = "SIZE", default_value = "10G", requires = "spool", value_parser = super::parse_limit)]
    pub spool_size: u64,
}

/// `tessera mount`.
#[derive(Debug, Args)]
#[command(after_help = "\
Runs until it is unmounted or asked to stop (SIGTERM, Ctrl-C); open files are committed first. Close makes a file
visible to other mounts, fsync makes it durable whatever its policy. docs/mount.md lists the guarantees.

Examples:
  tessera mount /mnt/tessera                (after mkdir -p /mnt/tessera)
  tessera mount /mnt/tessera --strict       ask the manager at every lookup
  tessera mount /mnt/tessera --spool /var/spool/tessera --spool-size 50G
  tessera mount /mnt/tessera --metrics 127.0.0.1:9790
  umount /mnt/tessera")]
pub struct MountArgs {
    /// Existing directory to mount at.
    pub dir: PathBuf,
    /// Milliseconds for which the kernel may answer from its cache; changes made elsewhere usually show at once.
    #[arg(long, value_name = "MS", default_value_t = 1000)]
    pub cache_ms: u64,
    /// Ask the manager at every lookup of a name: the same as --cache-ms 0.
    #[arg(long, conflicts_with_all = ["cache_ms", "write_back"])]
    pub strict: bool,
    /// Let the kernel collect small writes: faster, but two mounts must then not write to one page of 4 KiB.
    #[arg(long)]
    pub write_back: bool,
    /// Allow only the user who mounts (a mount by root is open to all users otherwise).
    #[arg(long, conflicts_with = "allow_other")]
    pub private: bool,
    /// Allow other users (needs user_allow_other in /etc/fuse.conf unless root mounts).
    #[arg(long)]
    pub allow_other: bool,
    /// Mount read-only.
    #[arg(long)]
    pub read_only: bool,
    /// Requests served at once; three quarters of them at most read ahead.
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub threads: u16,
    /// The spool.
    #[command(flatten)]
    pub spool: SpoolArgs,
    /// Serve Prometheus metrics at http://ADDR/metrics.
    #[arg(long, value_name = "ADDR")]
    pub metrics: Option<String>,
    /// Print the mount point as JSON.
    #[arg(long, hide = true)]
    pub announce: bool,
    /// Stop when stdin ends, which it does when the parent process ends.
    #[arg(long, hide = true)]
    pub follow_stdin: bool,
    /// Common.
    #[command(flatten)]
    pub common: Common,
}
