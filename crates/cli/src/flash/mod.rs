//! `tessera flash`: the shell of the flash laboratory. It opens traces and runs simulations in threads; everything that
//! is simulated is in `tessera_flash` (docs/flash.md).

mod backing_file;
mod control;
mod device_search;
mod fuse;
mod html;
mod input;
mod later;
mod listen;
mod made;
mod memory;
mod record;
mod replay;
mod replies;
mod report;
mod room;
mod serve;
mod stat;
mod svg;
mod synthesize;
mod trace;
mod ycsb;

use crate::args::{FlashCommand, TraceCommand};
use crate::exit::Outcome;

/// Runs a command.
///
/// # Errors
/// The failure of the command.
pub fn run(command: FlashCommand) -> Outcome {
    match &command {
        FlashCommand::Replay(args) => input::check(&args.reading)?,
        FlashCommand::Trace(TraceCommand::Info { reading, .. }) => input::check(reading)?,
        _ => {}
    }
    match command {
        FlashCommand::Replay(args) => replay::replay(&args),
        FlashCommand::Serve(args) => serve::serve(&args),
        FlashCommand::Record(args) => record::record(args),
        FlashCommand::Stat(args) => stat::stat(&args),
        FlashCommand::Cut(args) => stat::cut(&args),
        FlashCommand::Trace(TraceCommand::Info { reading, output }) => trace::info(&reading, output),
        FlashCommand::Trace(TraceCommand::Convert { trace, lines, to, output }) => {
            trace::convert(&trace, lines, to, output)
        }
        FlashCommand::Trace(TraceCommand::Synthesize(args)) => synthesize::synthesize(&args),
    }
}
