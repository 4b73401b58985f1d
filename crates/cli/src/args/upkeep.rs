//! Commands on the cluster: status, nodes, repair, scrub, gc.

use super::{Common, NodeRunArgs};
use clap::{Args, Subcommand};

/// `tessera status`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tessera status
  tessera status --watch                    again every 2 seconds, until Ctrl-C
  tessera status --json | jq .chunks.reduced")]
pub struct StatusArgs {
    /// Repeat every SECONDS seconds.
    #[arg(long, short, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "2")]
    pub watch: Option<u64>,
    /// Common.
    #[command(flatten)]
    pub common: Common,
}

/// `tessera repair`, `scrub`, `gc`. Each command has its own examples.
#[derive(Debug, Args)]
pub struct UpkeepArgs {
    /// Start the pass and return without waiting.
    #[arg(long, conflicts_with = "look")]
    pub no_wait: bool,
    /// Do not start a pass; show the running one, or the last one.
    #[arg(long)]
    pub look: bool,
    /// Common.
    #[command(flatten)]
    pub common: Common,
}

/// `tessera node`.
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
Without a subcommand this runs a storage node. Its disks are directories, best each on its own device.

Examples:
  tessera node --manager 10.0.0.1:7700 --listen 10.0.0.11:7710 --disk /srv/d1 --disk /srv/d2
  tessera node --config /etc/tessera/node.toml
  tessera node list
  tessera node drain n3 --follow            move all fragments away, then it may be switched off"
)]
pub struct NodeArgs {
    /// List or drain nodes instead of running one.
    #[command(subcommand)]
    pub command: Option<NodeCommand>,
    /// Run a node.
    #[command(flatten)]
    pub run: NodeRunArgs,
}

/// `tessera node list`, `drain`.
#[derive(Debug, Subcommand)]
pub enum NodeCommand {
    /// List nodes and their disks.
    List {
        /// Common.
        #[command(flatten)]
        common: Common,
    },
    /// Move all fragments from a node or a disk to others; it serves meanwhile.
    #[command(after_help = "\
Examples:
  tessera node drain n3
  tessera node drain n3 --disk 5 --follow
  tessera node drain n3 --undo")]
    Drain {
        /// Name or id of the node.
        node: String,
        /// Only this disk of it, by id (see `tessera node list`).
        #[arg(long, value_name = "ID")]
        disk: Option<u64>,
        /// Cancel the drain.
        #[arg(long)]
        undo: bool,
        /// Wait for the end of the drain.
        #[arg(long, short, conflicts_with = "undo")]
        follow: bool,
        /// Common.
        #[command(flatten)]
        common: Common,
    },
}

/// End of `tessera repair --help`.
pub const REPAIR_HELP: &str = "\
Nodes that are down count as out at once: their fragments are rebuilt on other hosts, if there are enough.
The pass runs in the cluster: Ctrl-C stops watching it, not the pass.

Examples:
  tessera repair
  tessera repair --look                     show its progress
  tessera repair --no-wait --json";

/// End of `tessera scrub --help`.
pub const SCRUB_HELP: &str = "\
Every fragment is compared with its checksum; bad fragments are rebuilt from the others.
Managers compare what their databases hold; `tessera status` shows the result.
The pass runs in the cluster: Ctrl-C stops watching it, not the pass.

Examples:
  tessera scrub
  tessera scrub --no-wait
  tessera scrub --look --json | jq .counters.rot_found";

/// End of `tessera gc --help`.
pub const GC_HELP: &str = "\
Unused chunks are deleted and their space freed in the background too. This pass rewrites a segment when a tenth of it
is dead (the node's key gc_dead_percent); the bytes freed are net of what was rewritten.
The pass runs in the cluster: Ctrl-C stops watching it, not the pass.

Examples:
  tessera gc
  tessera gc --json | jq .counters.freed_bytes";
