//! The table of commands: name, help, arguments and function, one row each.

use crate::args::*;
use crate::exit::Outcome;
use crate::{accel, daemon, demo, files, flash, mount, query, sample, up, upkeep};
use clap::Subcommand;
use tessera_wire::meta::MaintenanceJob;

/// Makes the enum that clap parses and the call of each command's function. A `client` command connects to a running
/// cluster and logs only warnings, as text; an `own` command starts its own log.
macro_rules! commands {
    ($($(#[$meta:meta])* $kind:ident $name:ident($args:ty) => $run:expr;)*) => {
        /// Every command. A process has one, so its size does not matter.
        #[derive(Debug, Subcommand)]
        #[allow(clippy::large_enum_variant)]
        pub enum Command {
            $($(#[$meta])* $name($args),)*
        }

        impl Command {
            /// Runs the command.
            ///
            /// # Errors
            /// The command's failure.
            pub fn run(self) -> Outcome {
                match self {
                    $(Command::$name(args) => {
                        $kind()?;
                        $run(args)
                    })*
                }
            }
        }
    };
}

commands! {
    /// Run a store on this machine: one manager and several nodes.
    own Up(UpArgs) => up::run;
    /// Show on a scratch store that the loss of nodes and of the manager loses no data.
    own Demo(DemoArgs) => demo::run;
    /// Mount the store as a directory.
    own Mount(MountArgs) => mount::run;
    /// Store files and directories.
    client Put(PutArgs) => files::put;
    /// Fetch files and directories.
    client Get(GetArgs) => files::get;
    /// Write files to stdout.
    client Cat(CatArgs) => files::cat;
    /// List directories.
    client Ls(LsArgs) => files::ls;
    /// Show the attributes and hints of paths.
    client Stat(StatArgs) => files::stat;
    /// Remove files and directories.
    client Rm(RmArgs) => files::rm;
    /// Move or rename.
    client Mv(MvArgs) => files::mv;
    /// Make directories.
    client Mkdir(MkdirArgs) => files::mkdir;
    /// Show how much of a file each host holds, and its redundancy.
    client Locate(LocateArgs) => files::locate;
    /// Answer questions from a random part of files, with intervals that hold the truth.
    client Sample(SampleArgs) => sample::sample;
    /// Answer SQL over files, exactly or from a sample; starts tessera-query.
    #[command(disable_help_flag = true)]
    client Query(QueryArgs) => query::query;
    /// List a file's versions.
    client Versions(VersionsArgs) => files::versions;
    /// Store files again under their current policies.
    client Rewrite(RewriteArgs) => files::rewrite;
    /// Show and change policies.
    #[command(subcommand)]
    client Policy(PolicyCommand) => files::policy;
    /// Show the state of the cluster.
    client Status(StatusArgs) => upkeep::status;
    /// Run a storage node, list nodes (`node list`), or drain one (`node drain`).
    own Node(NodeArgs) => node;
    /// Rebuild missing fragments now.
    #[command(after_help = REPAIR_HELP)]
    client Repair(UpkeepArgs) => |args| upkeep::maintain(MaintenanceJob::Repair, args);
    /// Re-read and verify every fragment on every disk now, and compare the managers' databases.
    #[command(after_help = SCRUB_HELP)]
    client Scrub(UpkeepArgs) => |args| upkeep::maintain(MaintenanceJob::Scrub, args);
    /// Collect garbage now.
    #[command(after_help = GC_HELP)]
    client Gc(UpkeepArgs) => |args| upkeep::maintain(MaintenanceJob::Gc, args);
    /// Run a manager, or list and change the managers of a cluster (`manager list`, `remove`, `transfer`).
    own Manager(ManagerArgs) => manager;
    /// Hash, cut and code files on the CPU or a GPU, without a store; list the devices.
    #[command(subcommand)]
    own Accel(AccelCommand) => accel::run;
    /// Replay block traces on simulated SSDs with several flash translation layers; record, look at and make traces; serve an emulated SSD.
    #[command(subcommand)]
    own Flash(FlashCommand) => flash::run;
}

/// Runs a node, or a subcommand about nodes.
fn node(args: NodeArgs) -> Outcome {
    match args.command {
        None => daemon::node::run(args.run),
        Some(command) => {
            client()?;
            upkeep::node(command)
        }
    }
}

/// Runs a manager, or a subcommand about managers.
fn manager(args: ManagerArgs) -> Outcome {
    match args.command {
        None => daemon::manager::run(args.run),
        Some(ManagerCommand::Add(mut run)) => {
            if run.join.is_empty() {
                let named = std::env::var("TESSERA_MANAGER").unwrap_or_else(|_| crate::args::DEFAULT_MANAGER.into());
                run.join = named.split(',').map(String::from).collect();
            }
            daemon::manager::run(*run)
        }
        Some(command) => {
            client()?;
            upkeep::manager(command)
        }
    }
}

/// Starts the log of a `client` command.
fn client() -> Outcome {
    crate::daemon::logging::start_for_command(!["--json", "--quiet", "-q"].into_iter().any(crate::has_flag))
}

/// An `own` command starts its log itself.
fn own() -> Outcome {
    Ok(())
}
