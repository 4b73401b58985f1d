//! Arguments of `up`, `demo` and `manager`, and of `node` without a subcommand.

use super::{Common, SpoolArgs};
use crate::term::Out;
use crate::up::directory::{MAX_DISKS, MAX_MANAGERS, MAX_NODES};
use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;
use tessera_accel::Spec;

/// `tessera up`.
#[derive(Debug, Args)]
#[command(after_help = "\
All files are under --dir: manager/, manager2/ and so on, n1/ to nN/, logs/, cluster.json (addresses and process ids).
The next `tessera up` with this --dir starts the same store. Ctrl-C stops the managers, then the nodes.

Examples:
  tessera up
  tessera up --nodes 12 --disks 2 --dir /srv/tessera --listen 127.0.0.1:9000
  tessera up --managers 2                            a second manager that takes over if the first fails
  tessera up --dir ./scratch --listen 127.0.0.1:0    any free ports
  tessera up --mount /mnt/tessera                    mount the store as well
  tessera up --restart                               restart daemons that die
  tessera up --restore                               after the loss of every manager's directory")]
pub struct UpArgs {
    /// Number of managers, of which one leads and the others stand by (default: as many as the directory has or the last start had, else 1). A manager whose directory is new or lost joins the others.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_MANAGERS)))]
    pub managers: Option<u32>,
    /// Number of nodes, each with its own host label (default: as many as the directory has or the last start had, else 8).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_NODES)))]
    pub nodes: Option<u32>,
    /// Number of disks (directories) of each node (default: as many as the directory has, else 1).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_DISKS)))]
    pub disks: Option<u32>,
    /// Directory of the store.
    #[arg(long, value_name = "DIR", default_value = "./tessera-data")]
    pub dir: PathBuf,
    /// Address of the manager. Nodes use the following ports, metrics those from 100 above, further managers 99 and less above; port 0: any free ports.
    #[arg(long, value_name = "ADDR", default_value = super::DEFAULT_MANAGER)]
    pub listen: String,
    /// Also mount the store at DIR (see `tessera mount --help`).
    #[arg(long, value_name = "DIR")]
    pub mount: Option<PathBuf>,
    /// The mount's spool.
    #[command(flatten)]
    pub spool: SpoolArgs,
    /// Restart daemons that die, after increasing pauses, instead of only reporting them.
    #[arg(long)]
    pub restart: bool,
    /// Rebuild the database that all managers have lost from the log and snapshots on the nodes, then start. If the nodes are no majority of the peers that keep the metadata, as manager --restore does.
    #[arg(long)]
    pub restore: bool,
    /// Configuration file for every manager (see `tessera manager --help`).
    #[arg(long, value_name = "FILE")]
    pub manager_config: Option<PathBuf>,
    /// Configuration file for every node (see `tessera node --help`).
    #[arg(long, value_name = "FILE")]
    pub node_config: Option<PathBuf>,
    /// Output.
    #[command(flatten)]
    pub output: Out,
}

/// `tessera demo`.
#[derive(Debug, Args)]
#[command(after_help = "\
The demo starts a scratch store of two managers and eight nodes, stores PATH and an edited copy of it, and
meanwhile kills the manager that leads (SIGKILL). It kills two nodes, reads everything back comparing every
byte, waits for repair, wipes the disks of both managers, restores them from the nodes, and compares again.
PATH is not changed.

Examples:
  tessera demo
  tessera demo --size 2G
  tessera demo ~/src --keep
  tessera demo --json | jq .steps")]
pub struct DemoArgs {
    /// Directory or file to store (default: generated self-similar files).
    pub path: Option<PathBuf>,
    /// Bytes to generate when no PATH is given.
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = parse_size)]
    pub size: u64,
    /// Directory of the scratch store (default: a new directory under the system's temporary directory).
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Keep the scratch store, and print its directory.
    #[arg(long)]
    pub keep: bool,
    /// Output.
    #[command(flatten)]
    pub output: Out,
}

/// How daemons log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// One line for people.
    Text,
    /// One JSON object per line.
    Json,
}

/// Flags that manager and node share. Flags win over the configuration file.
#[derive(Debug, Clone, Args)]
pub struct DaemonFlags {
    /// TOML file; docs/config.md lists its keys.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Serve Prometheus metrics at http://ADDR/metrics.
    #[arg(long, value_name = "ADDR")]
    pub metrics: Option<String>,
    /// Format of the log (on stderr).
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub log_format: Option<LogFormat>,
    /// Log level: error, warn, info, debug, trace, or directives such as info,tessera_node=debug.
    #[arg(long, value_name = "LEVEL")]
    pub log_level: Option<String>,
    /// Set a key of the configuration file's `[tuning]` table; may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Print the addresses as one line of JSON on stdout when ready.
    #[arg(long, hide = true)]
    pub announce: bool,
    /// Stop when stdin ends, which it does when the parent process ends.
    #[arg(long, hide = true)]
    pub follow_stdin: bool,
}

/// `tessera manager`.
#[derive(Debug, Args)]
#[command(
    after_help = "\
The manager keeps the metadata in --dir. A new, empty directory starts a new cluster; with --join it becomes a
further manager of a cluster that runs. One manager leads; if it fails, another one takes over within seconds.
Nodes hold copies of the log, so a manager whose disk is lost starts again with an empty directory and --join.
If most of the peers that keep the metadata are lost for ever, --restore rebuilds it from those that are left.

Examples:
  tessera manager --dir /var/lib/tessera --listen 10.0.0.1:7700 --metrics 10.0.0.1:9700
  tessera manager --config /etc/tessera/manager.toml
  tessera manager --dir /var/lib/tessera --listen 10.0.0.2:7700 --join 10.0.0.1:7700,10.0.0.11:7710
  tessera manager --dir /var/lib/tessera --restore --from 10.0.0.11:7710,10.0.0.12:7710   print what is left
  tessera manager --dir /var/lib/tessera --restore --from 10.0.0.11:7710 --yes            restore, then serve
  tessera manager list
  tessera manager transfer 10.0.0.2:7700    before maintenance of the one that leads",
    args_conflicts_with_subcommands = true
)]
pub struct ManagerArgs {
    /// List or change the managers of a cluster instead of running one.
    #[command(subcommand)]
    pub command: Option<ManagerCommand>,
    /// Run a manager.
    #[command(flatten)]
    pub run: ManagerRunArgs,
}

/// `tessera manager list`, `add`, `remove`, `transfer`.
#[derive(Debug, Subcommand)]
pub enum ManagerCommand {
    /// List the peers that keep the metadata: managers, and voters on nodes.
    List {
        /// Common.
        #[command(flatten)]
        common: Common,
    },
    /// Run a further manager of the cluster here; as --join with the managers that TESSERA_MANAGER names.
    Add(Box<ManagerRunArgs>),
    /// Take a manager out of the group, for good: stop it, and do not start it on its directory again.
    Remove {
        /// Its name, host, address or id (see `tessera manager list`).
        #[arg(value_name = "MANAGER")]
        peer: String,
        /// Common.
        #[command(flatten)]
        common: Common,
    },
    /// Have a manager lead.
    Transfer {
        /// Its name, host, address or id (see `tessera manager list`).
        #[arg(value_name = "MANAGER")]
        peer: String,
        /// Common.
        #[command(flatten)]
        common: Common,
    },
}

/// `tessera manager` without a subcommand: run a manager.
#[derive(Debug, Args)]
pub struct ManagerRunArgs {
    /// Directory of the database.
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Address to serve (HOST:PORT or unix:PATH); may be repeated. [default: 127.0.0.1:7700]
    #[arg(long, value_name = "ADDR")]
    pub listen: Vec<String>,
    /// Address that nodes, clients and other managers are told. [default: the first HOST:PORT that it listens on]
    #[arg(long, value_name = "HOST:PORT")]
    pub advertise: Option<String>,
    /// Host label: the peers that keep the metadata are on distinct hosts. [default: the machine's name]
    #[arg(long, value_name = "LABEL")]
    pub host: Option<String>,
    /// Managers or nodes of a cluster to join with an empty directory, as a list or repeated; one that answers is enough.
    #[arg(long, value_name = "ADDR,...", value_delimiter = ',')]
    pub join: Vec<String>,
    /// Restoring.
    #[command(flatten)]
    pub restoring: RestoreArgs,
    /// Shared.
    #[command(flatten)]
    pub flags: DaemonFlags,
}

/// `tessera manager --restore`.
#[derive(Debug, Default, Args)]
pub struct RestoreArgs {
    /// Rebuild the metadata in an empty directory, if most of the peers that keep it are lost for ever: fences the others, takes the newest state, and begins a new group.
    #[arg(long, requires = "from", conflicts_with = "join")]
    pub restore: bool,
    /// Nodes and managers that still run, as a list or repeated. They name the other peers.
    #[arg(long, value_name = "ADDR,...", value_delimiter = ',', requires = "restore")]
    pub from: Vec<String>,
    /// Take the state of this peer (name, address or id), not the newest.
    #[arg(long, value_name = "PEER", requires = "restore")]
    pub state_of: Option<String>,
    /// Take a state although a newer one is known, or replace the fence of another restore. Acknowledged changes may be lost.
    #[arg(long, requires = "restore")]
    pub force: bool,
    /// Do it. Without it only what each peer has is printed.
    #[arg(long, requires = "restore")]
    pub yes: bool,
    /// Print what each peer has as one JSON document on stdout.
    #[arg(long, requires = "restore")]
    pub json: bool,
}

/// `tessera node` without a subcommand: run a node.
#[derive(Debug, Args)]
pub struct NodeRunArgs {
    /// Directory of a disk; may be repeated. An empty one is made a disk of the cluster.
    #[arg(long = "disk", value_name = "DIR")]
    pub disks: Vec<PathBuf>,
    /// Manager to join: HOST:PORT or unix:PATH, or several with commas between them. A configuration file comes before TESSERA_MANAGER. [default: 127.0.0.1:7700]
    #[arg(long, short = 'm', value_name = "ADDR")]
    pub manager: Option<String>,
    /// Address to serve. [default: 127.0.0.1:0]
    #[arg(long, value_name = "ADDR")]
    pub listen: Option<String>,
    /// Address at which others reach this node, if it differs from --listen.
    #[arg(long, value_name = "ADDR")]
    pub advertise: Option<String>,
    /// Unix socket for clients on the same host.
    #[arg(long, value_name = "PATH")]
    pub unix_socket: Option<PathBuf>,
    /// Name of the node. [default: its host label]
    #[arg(long)]
    pub name: Option<String>,
    /// Host label: fragments of one chunk go to distinct hosts. [default: the host's name]
    #[arg(long)]
    pub host: Option<String>,
    /// Device that computes rebuilds: cpu, auto, cuda, cuda:N, emulated:N; see tessera accel list. [default: cpu]
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<Spec>,
    /// Most bytes that each disk may use. [default: the size of its file system]
    #[arg(long, value_name = "SIZE", value_parser = parse_limit)]
    pub capacity: Option<u64>,
    /// Shared.
    #[command(flatten)]
    pub flags: DaemonFlags,
}

/// A limit in bytes: a size of at least one byte.
pub fn parse_limit(text: &str) -> Result<u64, String> {
    match parse_size(text)? {
        0 => Err("a limit is at least 1 byte; leave it out for none".into()),
        bytes => Ok(bytes),
    }
}

/// Sizes as everywhere in Tessera: 4096, 64K, 1M, 2G.
pub fn parse_size(text: &str) -> Result<u64, String> {
    tessera_policy::parse_size(text).map_err(|e| e.to_string())
}
