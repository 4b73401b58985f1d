//! The arguments of every command, with help and examples.
//!
//! Start at [`Cli`]. Each command's `--help` ends with examples; docs/config.md documents the daemons' keys.

mod accel;
mod daemons;
mod flash;
mod mount;
mod sample;
mod store;
mod upkeep;

pub use accel::*;
pub use daemons::*;
pub use flash::*;
pub use mount::*;
pub use sample::*;
pub use store::*;
pub use upkeep::*;

use crate::commands::Command;
use crate::term::Out;
use clap::Parser;
use tessera_accel::Spec;

/// Default address of the manager: where `tessera up` listens.
pub const DEFAULT_MANAGER: &str = "127.0.0.1:7700";

const EXIT_CODES: &str = "\
Exit codes:
  0  done
  1  failed, or not everything succeeded
  2  usage: an argument, path or policy that is not valid
  3  not found
  4  unavailable now: the manager or too many nodes cannot be reached, too few hosts for the policy
  5  corrupt: stored bytes do not match their checksum and cannot be rebuilt
  6  conflict: exists, not empty, or another version was committed
  7  no space
  8  refused: another cluster, another protocol version, a disk or directory in use
  130  interrupted

Start here:
  tessera up                          a store of eight nodes on this machine
  tessera put -r DIR tess:/           store a directory
  tessera status                      what is stored, and how safely
  tessera demo                        watch it survive losses";

/// One store over many disks: deduplicated, erasure-coded, verified.
#[derive(Debug, Parser)]
#[command(name = "tessera", version, after_help = EXIT_CODES, max_term_width = 110)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The longest `--wait`: a century, which every clock can add.
const MAX_WAIT_S: u64 = 100 * 366 * 86_400;

/// Arguments of every client command.
#[derive(Debug, Clone, clap::Args)]
pub struct Common {
    /// Manager to ask: HOST:PORT or unix:PATH, or several with commas between them; the one that leads answers.
    #[arg(long, short = 'm', env = "TESSERA_MANAGER", default_value = DEFAULT_MANAGER, value_name = "ADDR")]
    pub manager: String,
    /// Seconds to wait for a manager that does not answer, as mounts do.
    #[arg(long, value_name = "SECONDS", default_value_t = 120, value_parser = clap::value_parser!(u64).range(..=MAX_WAIT_S))]
    pub wait: u64,
    /// Host label of this client: nodes with the same label are near, and `placement=local` selects them. [default: the host's name]
    #[arg(long, env = "TESSERA_HOST", value_name = "LABEL")]
    pub host: Option<String>,
    /// Device that hashes, cuts and codes: cpu, auto, cuda, cuda:N, emulated:N; see tessera accel list. [default: cpu]
    #[arg(long, env = "TESSERA_DEVICE", value_name = "DEVICE")]
    pub device: Option<Spec>,
    /// Output.
    #[command(flatten)]
    pub output: Out,
}

impl Common {
    /// The arguments for a command of this process.
    pub fn new(manager: &str, wait: u64, output: Out) -> Self {
        Common { manager: manager.to_string(), wait, host: None, device: None, output }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_words_are_consistent_and_every_command_shows_an_example() {
        let mut command = Cli::command();
        command.build();
        command.clone().debug_assert();
        for sub in command.get_subcommands().filter(|c| c.get_name() != "help" && !c.has_subcommands()) {
            let help = sub.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.contains("Examples:\n  tessera "), "{} has no examples", sub.get_name());
        }
    }

    #[test]
    fn a_node_is_run_and_nodes_are_looked_at_with_the_same_word() {
        let parse = |words: &[&str]| Cli::try_parse_from([&["tessera"], words].concat()).map(|c| c.command);
        assert!(matches!(parse(&["node", "--disk", "d"]), Ok(Command::Node(NodeArgs { command: None, .. }))));
        let drain = parse(&["node", "drain", "n1", "--follow"]);
        assert!(matches!(drain, Ok(Command::Node(NodeArgs { command: Some(NodeCommand::Drain { .. }), .. }))));
        assert!(parse(&["node", "--disk", "d", "list"]).is_err());
        let Ok(Command::Put(put)) = parse(&["put", "a", "-p", "redundancy=none", "b", "--json", "tess:/x"]) else {
            panic!("options may stand between paths")
        };
        assert_eq!(put.paths.len(), 3);
    }
}
