//! The `tessera` binary: every daemon and every command.
//!
//! This crate has what a user types and reads: arguments ([`args`]), the daemons' configuration, logs and metrics
//! ([`daemon`]), the local store ([`up`]), commands on files ([`files`]) and on the cluster ([`upkeep`]), computation on local
//! files ([`accel`]), the flash laboratory ([`flash`]), the [`demo`], and exit codes ([`exit`]). The store itself is in the
//! crates below; nothing here knows how a chunk is cut or a placement group laid out. Start at [`commands`], the table of
//! commands: a new command is a row there, a struct in [`args`] and its function.

mod accel;
mod args;
mod cleanup;
mod commands;
mod daemon;
mod demo;
mod exit;
mod files;
mod flash;
mod mount;
mod query;
mod remote;
mod sample;
mod term;
mod up;
mod upkeep;

use args::Cli;
use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    tessera_accel::panics::end_on_panic();
    let json = has_flag("--json");
    let outcome = match Cli::try_parse() {
        Ok(cli) => cli.command.run(),
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

/// Whether a flag was given. Needed before the arguments are parsed, and when they cannot be parsed.
fn has_flag(flag: &str) -> bool {
    std::env::args_os().take_while(|a| a != "--").any(|a| a == flag)
}

/// The failure for arguments that cannot be parsed, for programs: the fact without the usage text.
fn usage_error(error: &clap::Error) -> exit::Failure {
    let text = error.render().to_string();
    let facts = text.split("\n\nUsage:").next().unwrap_or_default();
    exit::Failure::usage(facts.strip_prefix("error: ").unwrap_or(facts))
}
