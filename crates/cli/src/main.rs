//! The `tessera` binary: every daemon and every command.
//!
//! Here lives what a user types and reads: words ([`args`]), daemons' configuration, logs and metrics
//! ([`daemon`]), the local store ([`up`]), commands on files ([`files`]) and on the cluster ([`upkeep`]), what
//! computes on bytes ([`accel`]), the [`demo`], and how all of them end ([`exit`]). What the store does lives in the crates below; nothing here
//! knows how a chunk is cut or a group laid out. Start at [`args::Command`] and [`run`].

mod accel;
mod args;
mod cleanup;
mod daemon;
mod demo;
mod exit;
mod files;
mod mount;
mod remote;
mod term;
mod up;
mod upkeep;

use args::{Cli, Command, NodeArgs};
use clap::Parser;
use exit::Outcome;
use std::process::ExitCode;
use tessera_wire::meta::MaintenanceJob;

fn main() -> ExitCode {
    let json = says("--json");
    let outcome = match Cli::try_parse() {
        Ok(cli) => run(cli.command),
        Err(error) if json && error.use_stderr() => Err(usage_error(&error)),
        Err(error) => error.exit(),
    };
    cleanup::end_if_interrupted();
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if !failure.message.is_empty() {
                failure.report(json);
            }
            ExitCode::from(failure.exit as u8)
        }
    }
}

/// Whether a flag was given: needed before, and even if, the words are understood.
fn says(flag: &str) -> bool {
    std::env::args_os().take_while(|a| a != "--").any(|a| a == flag)
}

/// Words that make no command, for programs: the facts without the page of usage that people are shown.
fn usage_error(error: &clap::Error) -> exit::Failure {
    let text = error.render().to_string();
    let facts = text.split("\n\nUsage:").next().unwrap_or_default();
    exit::Failure::usage(facts.strip_prefix("error: ").unwrap_or(facts))
}

/// Carries a command out.
fn run(command: Command) -> Outcome {
    match command {
        Command::Up(args) => up::run(args),
        Command::Manager(args) => daemon::manager::run(args),
        Command::Node(NodeArgs { command: None, run }) => daemon::node::run(run),
        Command::Demo(args) => demo::run(args),
        Command::Accel(command) => accel::run(command),
        Command::Mount(args) => mount::run(args),
        command => {
            daemon::logging::start_for_command(!["--json", "--quiet", "-q"].into_iter().any(says))?;
            ask(command)
        }
    }
}

/// Carries out what a client asks.
fn ask(command: Command) -> Outcome {
    match command {
        Command::Put(args) => files::put(args),
        Command::Get(args) => files::get(args),
        Command::Cat(args) => files::cat(args),
        Command::Ls(args) => files::ls(args),
        Command::Stat(args) => files::stat(args),
        Command::Rm(args) => files::rm(args),
        Command::Mv(args) => files::mv(args),
        Command::Mkdir(args) => files::mkdir(args),
        Command::Locate(args) => files::locate(args),
        Command::Versions(args) => files::versions(args),
        Command::Rewrite(args) => files::rewrite(args),
        Command::Policy(command) => files::policy(command),
        Command::Status(args) => upkeep::status(args),
        Command::Node(NodeArgs { command: Some(command), .. }) => upkeep::node(command),
        Command::Repair(args) => upkeep::maintain(MaintenanceJob::Repair, args),
        Command::Scrub(args) => upkeep::maintain(MaintenanceJob::Scrub, args),
        Command::Gc(args) => upkeep::maintain(MaintenanceJob::Gc, args),
        Command::Up(_)
        | Command::Demo(_)
        | Command::Manager(_)
        | Command::Node(_)
        | Command::Accel(_)
        | Command::Mount(_) => Err(exit::Failure::usage("this command runs no client")),
    }
}
