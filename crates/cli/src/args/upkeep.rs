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
    /// Start the pass and return.
    #[arg(long, conflicts_with = "look")]
    pub no_wait: bool,
    /// Start nothing; show the running pass, or the last one.
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
Without a further word this runs a storage node. Its disks are directories, best each on a device of its own.

Examples:
  tessera node --manager 10.0.0.1:7700 --listen 10.0.0.11:7710 --disk /srv/d1 --disk /srv/d2
  tessera node --config /etc/tessera/node.toml
  tessera node list
  tessera node drain n3 --follow            empty it, then it may be switched off"
)]
pub struct NodeArgs {
    /// Look at nodes instead of running one.
    #[command(subcommand)]
    pub command: Option<NodeCommand>,
    /// Run one.
    #[command(flatten)]
    pub run: NodeRunArgs,
}

/// `tessera node list`, `drain`.
#[derive(Debug, Subcommand)]
pub enum NodeCommand {
    /// Nodes and their disks.
    List {
        /// Common.
        #[command(flatten)]
        common: Common,
    },
    /// Empty a node or a disk: its fragments move to others while it keeps serving.
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
        /// Take it back.
        #[arg(long)]
        undo: bool,
        /// Wait until it is empty.
        #[arg(long, short, conflicts_with = "undo")]
        follow: bool,
        /// Common.
        #[command(flatten)]
        common: Common,
    },
}

/// End of `tessera repair --help`.
pub const REPAIR_HELP: &str = "\
Nodes that are down count as out at once: their fragments are rebuilt on other hosts, as far as there are enough.
The pass runs in the cluster: Ctrl-C stops watching it, not the pass.

Examples:
  tessera repair
  tessera repair --look                     how far it is
  tessera repair --no-wait --json";

/// End of `tessera scrub --help`.
pub const SCRUB_HELP: &str = "\
Every fragment is compared with its checksum; what is bad is rebuilt from the others.
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
